//! Errors of the system with remedies for the operator.

use std::io;

use respool_config::config::Resolved;
use respool_config::problem::{ConfigPlace, Problem};
use respool_driver::StartError;
use respool_engine::settings::Address;

/// The error for a failed start: the failed step, the system's reason, and the remedy.
pub(crate) fn explain(failure: &StartError) -> String {
    let remedy = match failure {
        StartError::Listen { address, error } => listen_remedy(address, error),
        StartError::ListensAlready { own, .. } => format!(
            "; choose another port, or take two reloads: the first moves the clients of {own} to \
             another port and removes {own}, the second adds this address"
        ),
        // Its text says what to do.
        StartError::Pools(_) => String::new(),
        StartError::Kernel { error, .. } => kernel_remedy(error),
        StartError::Thread { error, .. } => match thread_remedy(error) {
            remedy if is_short_of_threads(error) => format!("{remedy}, or lower --threads"),
            remedy => remedy,
        },
    };
    format!("{failure}{remedy}")
}

/// The same for several errors. Those of listeners are at the places of their addresses.
pub(crate) fn explain_at_places(resolved: &Resolved, failures: &[StartError]) -> Vec<Problem> {
    let place = |failure: &StartError| {
        let what = explain(failure);
        let of_address = |other: &Address| match failure {
            StartError::Listen { address, .. } | StartError::ListensAlready { address, .. } => {
                (address == other).then(|| what.clone())
            }
            _ => None,
        };
        let at_places = resolved.problems_of_listeners(of_address);
        let first = at_places.into_iter().next();
        first.unwrap_or_else(|| Problem::at(ConfigPlace::Default, what.clone()))
    };
    failures.iter().map(place).collect()
}

/// The same for the address of the pages about the process.
pub(crate) fn explain_metrics(failure: &StartError) -> String {
    explain(failure).replace("--listen", "--metrics-listen")
}

/// The remedy for a listener that cannot be opened.
fn listen_remedy(address: &Address, error: &io::Error) -> String {
    let remedy = match (error.kind(), address) {
        (io::ErrorKind::AddrInUse, _) => {
            "; stop the program that listens there, or choose another by --listen"
        }
        (io::ErrorKind::AddrNotAvailable, _) => "; --listen must name an address of this machine",
        (io::ErrorKind::PermissionDenied, Address::Tcp { port: 1..1024, .. }) => {
            "; choose a port above 1023, or give respool the capability CAP_NET_BIND_SERVICE \
             (AmbientCapabilities= of a systemd unit, --cap-add of a container)"
        }
        // The driver names the owner and the group, which have no error number.
        (io::ErrorKind::PermissionDenied, Address::Unix(_)) if error.raw_os_error().is_none() => {
            "; only root may give a socket to another user, or to a group that has not respool's \
             user among its members: see --socket-owner and --socket-group"
        }
        (io::ErrorKind::PermissionDenied, Address::Unix(_)) => {
            "; the user that respool runs as must be allowed to write the directory, and a socket \
             that is already there"
        }
        (io::ErrorKind::NotFound, Address::Unix(_)) => {
            "; make the directory first, or choose another by --listen"
        }
        (io::ErrorKind::AlreadyExists, Address::Unix(_)) => {
            "; respool replaces only sockets: remove the file, or choose another path by --listen"
        }
        (io::ErrorKind::ReadOnlyFilesystem, Address::Unix(_)) => {
            "; choose a directory that can be written by --listen"
        }
        // Only an error of the name look-up has no system error number.
        (_, Address::Tcp { host, .. })
            if error.raw_os_error().is_none() && host.parse::<std::net::IpAddr>().is_err() =>
        {
            "; check the name, or give an IP address in --listen"
        }
        _ => return kernel_remedy(error),
    };
    remedy.into()
}

/// The remedy for an error with a cause outside of the options.
pub(crate) fn kernel_remedy(error: &io::Error) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported => {
            "; a seccomp filter, SELinux, AppArmor or the container's policy forbids it: allow it for \
             respool (SystemCallFilter= of a systemd unit, --security-opt of a container)"
        }
        io::ErrorKind::OutOfMemory => {
            "; memory is short: raise the limit (MemoryMax= of a systemd unit, --memory of a \
             container, ulimit -v), or lower --threads"
        }
        _ if is_short_of_descriptors(error) => {
            "; no file descriptor is left: raise the limit (LimitNOFILE= of a systemd unit, --ulimit \
             nofile= of a container, ulimit -n)"
        }
        _ => "",
    };
    remedy.into()
}

/// The remedy for a thread or a process that cannot be started.
pub(crate) fn thread_remedy(error: &io::Error) -> String {
    if !is_short_of_threads(error) {
        return kernel_remedy(error);
    }
    "; the limit of threads and processes, or of memory, is reached: raise it (TasksMax= and LimitNPROC= of a systemd \
     unit, --pids-limit of a container, ulimit -u and -v)"
        .into()
}

fn is_short_of_threads(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::AGAIN.raw_os_error())
}

fn is_short_of_descriptors(error: &io::Error) -> bool {
    let short = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE];
    short
        .map(|errno| Some(errno.raw_os_error()))
        .contains(&error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os(errno: rustix::io::Errno) -> io::Error {
        io::Error::from_raw_os_error(errno.raw_os_error())
    }

    /// A start error names the failed step, the system's reason, and a remedy that belongs to that.
    #[test]
    fn start_error_names_a_remedy() {
        use rustix::io::Errno;
        let tcp = |host: &str, port| Address::Tcp {
            host: host.into(),
            port,
        };
        let unix = || Address::Unix("/run/x.sock".into());
        let listen = |address, errno| StartError::Listen {
            address,
            error: os(errno),
        };
        let kernel = |errno| StartError::Kernel {
            call: "epoll_create1",
            error: os(errno),
        };
        let thread = |errno| StartError::Thread {
            workers: 4,
            started: 1,
            error: os(errno),
        };
        for (failure, what, remedy) in [
            (
                listen(tcp("127.0.0.1", 1), Errno::ADDRINUSE),
                "cannot listen on 127.0.0.1:1: Address already in use",
                "choose another by --listen",
            ),
            (
                listen(tcp("1.2.3.4", 1), Errno::ADDRNOTAVAIL),
                "cannot listen on 1.2.3.4:1: ",
                "an address of this machine",
            ),
            (
                listen(tcp("127.0.0.1", 80), Errno::ACCESS),
                "Permission denied",
                "above 1023",
            ),
            (
                listen(tcp("127.0.0.1", 6380), Errno::ACCESS),
                "Permission denied",
                "seccomp",
            ),
            (
                listen(unix(), Errno::ACCESS),
                "Permission denied",
                "write the directory",
            ),
            (
                listen(unix(), Errno::NOENT),
                "cannot listen on unix:/run/x.sock: No such file",
                "make the directory",
            ),
            (
                kernel(Errno::PERM),
                "the system call epoll_create1 failed: Operation not permitted",
                "seccomp",
            ),
            (
                StartError::ListensAlready {
                    address: tcp("0.0.0.0", 1),
                    own: tcp("127.0.0.1", 1),
                },
                "cannot listen on 0.0.0.0:1: respool itself listens on 127.0.0.1:1",
                "two reloads",
            ),
            (kernel(Errno::NOSYS), "epoll_create1", "seccomp"),
            (kernel(Errno::MFILE), "epoll_create1", "LimitNOFILE="),
            (
                thread(Errno::AGAIN),
                "1 of 4 worker threads could be started: Resource temporarily unavailable",
                "ulimit -u and -v), or lower --threads",
            ),
            (thread(Errno::PERM), "1 of 4 worker threads", "seccomp"),
        ] {
            let text = explain(&failure);
            assert!(text.contains(what), "{text}");
            assert!(text.contains(remedy), "{text}");
            assert!(
                !text.contains("above 1023") || remedy == "above 1023",
                "{text}"
            );
        }
    }
}

//! Listening sockets: one for each worker on each address.

use std::fs::Permissions;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use respool_engine::settings::Address;
use rustix::fs::{self, Access, AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::SocketAccess;
use crate::tls::ListenerTls;

/// The file system type of /sys, see statfs(2).
const SYSFS_MAGIC: fs::FsWord = 0x6265_6572;

/// Most clients that wait to be accepted. The kernel caps it at `net.core.somaxconn`.
pub(crate) const BACKLOG: i32 = 4096;

/// How long a start waits for another process that creates or removes a socket in the directory.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// A listening socket of one worker.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: OwnedFd,
    /// Index of the pool of its sessions.
    pub(crate) pool: usize,
    /// Its path; `None` for TCP.
    pub(crate) path: Option<Arc<str>>,
    /// TLS of its sessions; `None`: plain.
    pub(crate) tls: Option<ListenerTls>,
}

/// A socket file that this process created. Dropping it removes the file, unless another process
/// has replaced it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Identity of the file after its creation; `None`: it could not be read.
    identity: Option<FileIdentity>,
}

/// Device, inode, seconds and nanoseconds of the last change of content. The system may give a new
/// file the inode of a removed one, so the time is part of it. The content of a socket never
/// changes.
type FileIdentity = (u64, u64, i64, i64);

impl SocketFile {
    /// The file that this process has just created at `path`.
    fn created_at(path: &Path) -> SocketFile {
        SocketFile {
            path: path.to_owned(),
            identity: SocketFile::identity_of(path),
        }
    }

    fn identity_of(path: &Path) -> Option<FileIdentity> {
        let file = std::fs::symlink_metadata(path).ok()?;
        Some((file.dev(), file.ino(), file.mtime(), file.mtime_nsec()))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _lock = lock_directory_of(&self.path);
        if self.identity.is_some() && SocketFile::identity_of(&self.path) == self.identity {
            // If the file is already gone, nothing is left to do.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The listening sockets of one address.
#[derive(Debug)]
pub(crate) struct BoundAddress {
    /// The address, with the port that the kernel chose.
    pub(crate) address: Address,
    /// One socket for each worker.
    pub(crate) sockets: Vec<OwnedFd>,
    /// The socket file; `None` for TCP.
    pub(crate) file: Option<SocketFile>,
}

/// Whether a socket on one of these addresses keeps others from the other one: they have the same
/// port, and the same IP address or one that stands for all.
pub(crate) fn overlap(one: &Address, other: &Address) -> bool {
    let (
        Address::Tcp { host, port },
        Address::Tcp {
            host: other_host,
            port: other_port,
        },
    ) = (one, other)
    else {
        return one == other;
    };
    if port != other_port {
        return false;
    }
    let addresses = |host: &str| -> Vec<SocketAddr> {
        let found = (host, *port).to_socket_addrs();
        found.map(Iterator::collect).unwrap_or_default()
    };
    let others = addresses(other_host);
    let meets = |one: &SocketAddr, other: &SocketAddr| {
        let (one, other) = (one.ip(), other.ip());
        let has_all = one.is_unspecified() || other.is_unspecified();
        one == other || has_all && one.is_ipv4() == other.is_ipv4()
    };
    let mut ones = addresses(host).into_iter();
    ones.any(|one| others.iter().any(|other| meets(&one, other)))
}

/// Binds `count` sockets to an address.
pub(crate) fn bind(
    address: &Address,
    count: usize,
    access: SocketAccess,
) -> io::Result<BoundAddress> {
    match address {
        Address::Tcp { host, port } => {
            let bind = |candidate| bind_tcp(candidate, count);
            let (bound, sockets) = first_that_binds((host, *port), bind)?;
            let (host, port) = (host.clone(), bound.port());
            Ok(BoundAddress {
                address: Address::Tcp { host, port },
                sockets,
                file: None,
            })
        }
        Address::Unix(path) => {
            let first = bind_unix(path, access)?;
            let file = Some(SocketFile::created_at(path));
            let mut sockets = Vec::new();
            for _ in 1..count {
                // Unix sockets have no SO_REUSEPORT, so the workers share one queue.
                sockets.push(first.try_clone()?);
            }
            sockets.push(first);
            Ok(BoundAddress {
                address: address.clone(),
                sockets,
                file,
            })
        }
    }
}

/// Whether an address could be bound now. Nothing listens at any moment, so no client gets in, and
/// no file is created or removed.
pub(crate) fn check(address: &Address) -> io::Result<()> {
    match address {
        Address::Tcp { host, port } => {
            // The kernel refuses to bind a port on which another socket listens.
            let bind = |candidate| tcp_socket(candidate, false).map(drop);
            first_that_binds((host, *port), bind)
        }
        Address::Unix(path) => {
            let address = SocketAddrUnix::new(path)?;
            check_socket_directory(path)?;
            match std::fs::symlink_metadata(path) {
                Ok(_) => is_left_by_dead_process(path, &address),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error),
            }
        }
    }
}

/// Whether this process may make a socket at `path`, as far as its directory says.
///
/// # Errors
/// When the directory is missing, cannot be written, or is one of /proc or /sys.
pub fn check_socket_directory(path: &Path) -> io::Result<()> {
    let (may, flags) = (Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
    // The dot makes a file in place of the directory an error of its own.
    let directory = directory_of(path).join(".");
    fs::accessat(CWD, &directory, may, flags)?;
    // The kernel lets root write these directories, but has no place for a file in them.
    match fs::statfs(&directory)?.f_type {
        fs::PROC_SUPER_MAGIC | SYSFS_MAGIC => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the file system of its directory takes no files",
        )),
        _ => Ok(()),
    }
}

/// Whether `path` is free for a socket, or has a socket, which a start may replace.
///
/// # Errors
/// When another file is there.
pub fn check_socket_path(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if !meta.file_type().is_socket() => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "the file exists and is not a socket",
        )),
        _ => Ok(()),
    }
}

/// Binds the first address of a host that can be bound.
fn first_that_binds<T>(
    address: (&str, u16),
    bind: impl Fn(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut error = io::Error::new(io::ErrorKind::NotFound, "no such host");
    for candidate in address.to_socket_addrs()? {
        match bind(candidate) {
            Ok(bound) => return Ok(bound),
            Err(failed) => error = failed,
        }
    }
    Err(error)
}

/// The file of a control socket, removed on drop.
#[derive(Debug)]
pub struct ControlFile {
    _file: SocketFile,
}

/// Listens on a socket in the file system that only the user of the process may use. The socket of
/// a dead process is replaced.
///
/// # Errors
/// When the socket cannot be created, or another process listens on it.
pub fn control_socket(path: &Path) -> io::Result<(UnixListener, ControlFile)> {
    let access = SocketAccess {
        mode: Some(0o600),
        ..SocketAccess::default()
    };
    let listener = UnixListener::from(bind_unix(path, access)?);
    listener.set_nonblocking(false)?;
    let file = ControlFile {
        _file: SocketFile::created_at(path),
    };
    Ok((listener, file))
}

fn bind_tcp(address: SocketAddr, count: usize) -> io::Result<(SocketAddr, Vec<OwnedFd>)> {
    // With SO_REUSEPORT, any process of this user that sets it could share the port. So a socket
    // without it first proves that the port is free.
    let probe = tcp_socket(address, false)?;
    let bound = local_address(&probe)?;
    if count == 1 {
        net::listen(&probe, BACKLOG)?;
        return Ok((bound, vec![probe]));
    }
    drop(probe);
    let mut sockets = Vec::new();
    for _ in 0..count {
        let socket = tcp_socket(bound, true)?;
        net::listen(&socket, BACKLOG)?;
        sockets.push(socket);
    }
    Ok((bound, sockets))
}

fn tcp_socket(address: SocketAddr, shared: bool) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    if address.is_ipv6() {
        // `[::]` takes IPv6 clients only, so that `0.0.0.0` can have the same port.
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if shared {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    net::bind(&socket, &address)?;
    Ok(socket)
}

fn local_address(socket: &OwnedFd) -> io::Result<SocketAddr> {
    let name = net::getsockname(socket)?;
    SocketAddr::try_from(name).map_err(|_| io::Error::other("the socket has no IP address"))
}

fn bind_unix(path: &Path, access: SocketAccess) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = unix_socket()?;
    let _lock = lock_directory_of(path);
    match net::bind(&socket, &address) {
        Ok(()) => {}
        Err(rustix::io::Errno::ADDRINUSE) => {
            // A socket that a dead process left behind is replaced, a socket in use is not.
            is_left_by_dead_process(path, &address)?;
            std::fs::remove_file(path)?;
            net::bind(&socket, &address)?;
        }
        Err(error) => return Err(error.into()),
    }
    // Access is set before the socket listens: until then no client can connect.
    if let Err(error) = give_access(path, access) {
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn unix_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    Ok(socket?)
}

/// `Err`: the file at `path` is not a socket, or a process may listen on it.
fn is_left_by_dead_process(path: &Path, address: &SocketAddrUnix) -> io::Result<()> {
    check_socket_path(path)?;
    match net::connect(&unix_socket()?, address) {
        Err(rustix::io::Errno::CONNREFUSED) => Ok(()),
        // Without access it is unknown whether a process listens there.
        Err(error @ rustix::io::Errno::ACCESS) => Err(error.into()),
        _ => Err(rustix::io::Errno::ADDRINUSE.into()),
    }
}

fn give_access(path: &Path, access: SocketAccess) -> io::Result<()> {
    let with_setting = |setting: &str, error: io::Error| {
        let text = format!("its {setting} cannot be set: {error}");
        io::Error::new(error.kind(), text)
    };
    if access.owner.is_some() || access.group.is_some() {
        std::os::unix::fs::lchown(path, access.owner, access.group)
            .map_err(|error| with_setting("owner and group", error))?;
    }
    if let Some(mode) = access.mode {
        std::fs::set_permissions(path, Permissions::from_mode(mode))
            .map_err(|error| with_setting("mode", error))?;
    }
    Ok(())
}

fn directory_of(path: &Path) -> &Path {
    let parent = path.parent();
    let parent = parent.filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Locks the directory of a socket until the result is dropped. Two processes that start at once
/// both find the socket file of a dead process. Without the lock the second process would remove
/// the new socket of the first. If the directory cannot be read, or another process keeps it
/// locked, the start goes on without the lock.
fn lock_directory_of(path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = fs::open(directory_of(path), flags, Mode::empty()).ok()?;
    let since = Instant::now();
    loop {
        match fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(directory),
            Err(rustix::io::Errno::WOULDBLOCK) if since.elapsed() < LOCK_WAIT => {
                thread::sleep(Duration::from_millis(1));
            }
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses are in each other's way on the same port, if they are equal or one stands for all
    /// of its family: `[::]` takes IPv6 clients only.
    #[test]
    fn addresses_overlap_by_port_and_ip() {
        let tcp = |host: &str, port| Address::Tcp {
            host: host.to_owned(),
            port,
        };
        for (one, other, expected) in [
            ("127.0.0.1", "127.0.0.1", true),
            ("127.0.0.1", "0.0.0.0", true),
            ("0.0.0.0", "127.0.0.1", true),
            ("127.0.0.1", "127.0.0.2", false),
            ("::", "127.0.0.1", false),
            ("::1", "::", true),
        ] {
            let found = overlap(&tcp(one, 7), &tcp(other, 7));
            assert_eq!(found, expected, "{one} and {other}");
            assert!(!overlap(&tcp(one, 7), &tcp(other, 8)));
        }
        let unix = |path: &str| Address::Unix(path.into());
        assert!(overlap(&unix("/a"), &unix("/a")));
        assert!(!overlap(&unix("/a"), &tcp("0.0.0.0", 7)));
    }

    /// A check finds addresses that are taken. It creates and removes no file.
    #[test]
    fn check_finds_taken_addresses_and_leaves_no_trace() {
        let name = format!("respool-listen-check-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let unix = Address::Unix(path.clone());
        check(&unix).expect("the path is free");
        assert!(!path.exists());
        let bound = bind(&unix, 1, SocketAccess::default()).expect("the path is free");
        let error = check(&unix).expect_err("a process listens");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(bound.sockets);
        check(&unix).expect("the process is dead");
        assert!(path.exists(), "the file stays");
        drop(bound.file);
        std::fs::write(&path, "precious").expect("the file can be written");
        let error = check(&unix).expect_err("the file is not a socket");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{error}");
        std::fs::remove_file(&path).expect("the file exists");
        let error = check(&Address::Unix("/nonexistent/x".into())).expect_err("no directory");
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");

        for count in [1, 2] {
            let any = Address::Tcp {
                host: "127.0.0.1".into(),
                port: 0,
            };
            check(&any).expect("a port is free");
            let bound = bind(&any, count, SocketAccess::default()).expect("a port is free");
            let error = check(&bound.address).expect_err("a process listens");
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{count} sockets");
            drop(bound.sockets);
            check(&bound.address).expect("the port is free again");
        }
    }

    /// At its end a process removes its own socket file, but not the socket file of another
    /// process.
    #[test]
    fn socket_file_of_another_process_stays() {
        let name = format!("respool-listen-{}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let address = Address::Unix(path.clone());
        let first = bind(&address, 2, SocketAccess::default()).expect("the path is free");
        let (sockets, file) = (first.sockets, first.file);
        // The first process closed its sockets, but its socket file is still there.
        drop(sockets);
        let second = bind(&address, 1, SocketAccess::default()).expect("nothing listens there");
        drop(file);
        assert!(path.exists(), "the second process owns the socket file");
        drop(second.file);
        assert!(!path.exists());
    }

    /// Of processes that start at once on a socket file of a dead process, exactly one listens. The
    /// others get an error.
    #[test]
    fn one_of_several_starts_takes_a_stale_socket() {
        let name = format!("respool-listen-{}.both", std::process::id());
        let path = std::env::temp_dir().join(name);
        let address = Address::Unix(path.clone());
        for round in 0..200 {
            let left =
                net::socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("a socket");
            net::bind(&left, &SocketAddrUnix::new(&path).expect("a path"))
                .expect("the path is free");
            drop(left);
            let barrier = std::sync::Barrier::new(4);
            let bound: Vec<_> = thread::scope(|scope| {
                let start = || {
                    barrier.wait();
                    bind(&address, 1, SocketAccess::default())
                };
                let starts: Vec<_> = (0..4).map(|_| scope.spawn(start)).collect();
                let ended = starts
                    .into_iter()
                    .map(|start| start.join().expect("the thread ends"));
                ended.filter_map(Result::ok).collect()
            });
            assert_eq!(bound.len(), 1, "round {round}");
            let connected = std::os::unix::net::UnixStream::connect(&path);
            assert!(connected.is_ok(), "round {round}: {connected:?}");
        }
        assert!(!path.exists());
    }

    /// A file that is not a socket is never removed, and the start fails. The same holds for a
    /// symbolic link without a target.
    #[test]
    fn file_that_is_not_a_socket_stays() {
        let name = format!("respool-listen-{}", std::process::id());
        let [file, link] = ["file", "link"].map(|kind| {
            let path = std::env::temp_dir().join(format!("{name}.{kind}"));
            let _ = std::fs::remove_file(&path);
            path
        });
        std::fs::write(&file, "precious").expect("the file can be written");
        std::os::unix::fs::symlink("/nonexistent/x", &link).expect("the link can be created");
        for path in [&file, &link] {
            let error = bind(&Address::Unix(path.clone()), 1, SocketAccess::default())
                .expect_err("the file is not a socket");
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{error}");
            assert!(std::fs::symlink_metadata(path).is_ok());
            std::fs::remove_file(path).expect("the file exists");
        }
    }
}

//! The control socket: `respool reload` asks the process to read its configuration again.
//!
//! ```text
//!   client ──► "reload" or "check", a line each
//!   client ◄── "good" or "failed", then a line for each difference or problem, then the end
//!
//!   client ──► "file"
//!   client ◄── "good", then the path of the process's configuration file
//! ```
//!
//! `respool reload` asks for the file first: a user that names another file means that one.
//!
//! Each client has a thread, since the next one must not wait for a slow one. There are
//! [`CLIENTS_MAX`] at the most, and each has a deadline for its request and one for its answer.

use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use respool_config::plain::plain;
use tracing::warn;

use super::{NOTHING_CHANGED, ReloadMode, ReloadOutcome, Reloads, own_file};
use crate::remedy::{kernel_remedy, thread_remedy};

/// The time that a client has for its whole request, and then for taking the whole answer.
const CLIENT_TIME_MAX: Duration = Duration::from_secs(5);

/// The most clients at the same time. One more waits in the kernel's queue, which has a bound, too.
const CLIENTS_MAX: usize = 8;

/// How long the client waits for the answer. Names may have to be resolved.
const ANSWER_WAIT: Duration = Duration::from_secs(60);

/// The most bytes of a request.
const REQUEST_BYTES_MAX: usize = 64;

/// The most bytes of an answer that the client reads.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// The pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const RELOAD: &str = "reload";
const CHECK: &str = "check";
const FILE: &str = "file";
const GOOD: &str = "good";
const FAILED: &str = "failed";

/// The socket file, which is removed on drop.
pub(crate) struct ControlSocket {
    _file: respool_driver::ControlFile,
}

/// Opens the control socket and starts the thread that accepts its clients.
///
/// # Errors
/// The failed step, and the remedy.
pub(crate) fn listen(path: &Path, reloads: Reloads) -> Result<ControlSocket, String> {
    let (listener, file) = respool_driver::control_socket(path).map_err(|error| {
        let remedy = match error.kind() {
            io::ErrorKind::AddrInUse => {
                "; another process listens there: choose another path by --control-socket".into()
            }
            io::ErrorKind::NotFound => {
                "; make the directory first, or choose another path by --control-socket".into()
            }
            io::ErrorKind::PermissionDenied => {
                "; the user that respool runs as must be allowed to \
                 write the directory, and a socket that is already there"
                    .into()
            }
            io::ErrorKind::ReadOnlyFilesystem => {
                "; choose a directory that can be written by --control-socket".into()
            }
            _ => kernel_remedy(&error),
        };
        let path = path.display();
        format!("cannot listen on the control socket {path}: {error}{remedy}")
    })?;
    let thread = thread::Builder::new().name("control".into());
    let clients = ClientCount::default();
    let spawned = thread.spawn(move || {
        loop {
            let place = clients.wait_for_place();
            match listener.accept() {
                Ok((client, _)) => admit(client, place, &reloads),
                Err(error) => {
                    warn!("the control socket accepts no client: {error}");
                    thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    });
    spawned.map_err(|error| {
        let remedy = thread_remedy(&error);
        format!("cannot start the thread of the control socket: {error}{remedy}")
    })?;
    Ok(ControlSocket { _file: file })
}

/// The number of clients. Clones share it.
#[derive(Clone, Default)]
struct ClientCount(Arc<(Mutex<usize>, Condvar)>);

/// The place of one client, free again on drop.
struct ClientPlace(ClientCount);

impl ClientCount {
    /// Waits until there are fewer than [`CLIENTS_MAX`] clients. Each ends at its deadlines.
    fn wait_for_place(&self) -> ClientPlace {
        let is_full = |count: &mut usize| *count >= CLIENTS_MAX;
        let free = self.0.1.wait_while(self.count(), is_full);
        *free.unwrap_or_else(PoisonError::into_inner) += 1;
        ClientPlace(self.clone())
    }

    fn count(&self) -> MutexGuard<'_, usize> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ClientPlace {
    fn drop(&mut self) {
        let clients = &self.0;
        *clients.count() -= 1;
        clients.0.1.notify_one();
    }
}

/// Starts the thread of a client.
fn admit(client: UnixStream, place: ClientPlace, reloads: &Reloads) {
    let reloads = reloads.clone();
    let thread = thread::Builder::new().name("control client".into());
    let spawned = thread.spawn(move || {
        // A client that is gone, or too slow, needs no answer.
        let _ = answer(&client, &reloads);
        drop(place);
    });
    if let Err(error) = spawned {
        let remedy = thread_remedy(&error);
        warn!("the control socket answers no client: no thread can be started: {error}{remedy}");
    }
}

fn answer(client: &UnixStream, reloads: &Reloads) -> io::Result<()> {
    let request = read_request(client, Instant::now() + CLIENT_TIME_MAX)?;
    let outcome = match request.trim_ascii_end() {
        request if request == RELOAD.as_bytes() => reloads.reload(ReloadMode::Apply, true),
        request if request == CHECK.as_bytes() => reloads.reload(ReloadMode::Check, false),
        request if request == FILE.as_bytes() => ReloadOutcome {
            is_good: true,
            is_news: false,
            lines: own_file().into_iter().collect(),
            warnings: Vec::new(),
        },
        _ => ReloadOutcome::failed(vec![format!(
            "unknown request: this version knows `{RELOAD}`, `{CHECK}` and `{FILE}`"
        )]),
    };
    write_answer(client, &outcome, Instant::now() + CLIENT_TIME_MAX)
}

/// The first line of a client, or less if the client ends. It must be whole at the deadline.
fn read_request(mut client: &UnixStream, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut request = Vec::new();
    while request.len() < REQUEST_BYTES_MAX && !request.contains(&b'\n') {
        client.set_read_timeout(Some(rest_of(deadline)?))?;
        let mut bytes = [0; REQUEST_BYTES_MAX];
        match client.read(&mut bytes[request.len()..])? {
            0 => break,
            count => request.extend_from_slice(&bytes[request.len()..][..count]),
        }
    }
    Ok(request)
}

/// Writes an outcome. The client must have taken it all at the deadline.
fn write_answer(
    mut client: &UnixStream,
    outcome: &ReloadOutcome,
    deadline: Instant,
) -> io::Result<()> {
    let mut text = String::from(if outcome.is_good { GOOD } else { FAILED });
    text.push('\n');
    for line in &outcome.lines {
        text.push_str(&plain(line));
        text.push('\n');
    }
    for warning in &outcome.warnings {
        text.push_str("warning: ");
        text.push_str(&plain(warning));
        text.push('\n');
    }
    let mut bytes = text.as_bytes();
    while !bytes.is_empty() {
        client.set_write_timeout(Some(rest_of(deadline)?))?;
        match client.write(bytes)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => bytes = &bytes[count..],
        }
    }
    Ok(())
}

/// The time until a deadline.
fn rest_of(deadline: Instant) -> io::Result<Duration> {
    let rest = deadline.saturating_duration_since(Instant::now());
    match rest.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(rest),
    }
}

/// `respool reload`: asks the process behind this socket, and prints its answer. `file`: the
/// configuration file that the user names, which must be that of the process.
pub(crate) fn ask(path: &Path, file: Option<&str>, mode: ReloadMode) -> ExitCode {
    let shown = path.display().to_string();
    let shown = plain(&shown);
    // A process of an older version fails here: then its file is not known.
    let own = ask_process(path, FILE).map(|answer| match answer.split_once('\n') {
        Some((GOOD, file)) => Some(file.trim_end_matches('\n').to_owned()),
        _ => None,
    });
    if let (Ok(Some(own)), Some(file)) = (&own, file)
        && !is_same_file(file, own)
    {
        refuse_file(&plain(file), own);
        return ExitCode::from(crate::EXIT_USAGE);
    }
    let request = match mode {
        ReloadMode::Apply => RELOAD,
        ReloadMode::Check => CHECK,
    };
    let answered = own.and_then(|own| Ok((own, ask_process(path, request)?)));
    let (own, answer) = match answered {
        Ok(answered) => answered,
        Err(error) => {
            eprintln!("error: {shown}: {}", explain_silence(path, &error));
            return ExitCode::FAILURE;
        }
    };
    let (status, lines) = answer.split_once('\n').unwrap_or((&answer, ""));
    if status == GOOD {
        return crate::say(&format!("{lines}{}\n", conclusion(mode, lines, own)));
    }
    for line in lines.lines() {
        eprintln!("error: {}", plain(line));
    }
    if status != FAILED {
        eprintln!("error: {shown}: the answer is cut: the log of respool has the outcome");
    }
    ExitCode::FAILURE
}

/// The last line of a good answer: whether the configuration is in effect now, and which file the
/// process has read. `own`: that file; empty if it has none.
fn conclusion(mode: ReloadMode, lines: &str, own: Option<String>) -> String {
    let own = own.filter(|own| !own.is_empty());
    let read = own.unwrap_or_else(|| "its environment and command line".into());
    match mode {
        _ if lines.starts_with(NOTHING_CHANGED) => format!("the process has read {read}"),
        ReloadMode::Apply => format!("applied: the process has read {read}"),
        ReloadMode::Check => format!("not applied: the process has only checked {read}"),
    }
}

/// Whether two paths are one file.
fn is_same_file(file: &str, own: &str) -> bool {
    let absolute = std::path::absolute(file);
    let is_same_path = absolute.is_ok_and(|path| plain(&path.display().to_string()) == own);
    let id = |path: &str| {
        let meta = std::fs::metadata(path).ok()?;
        Some((meta.dev(), meta.ino()))
    };
    is_same_path || id(file).is_some_and(|file| id(own) == Some(file))
}

/// Says that the process reads another file than the user names.
fn refuse_file(file: &str, own: &str) {
    let reads = match own {
        "" => "this process reads no configuration file".to_owned(),
        own => format!("this process reads {own}, and never another file"),
    };
    eprintln!(
        "error: {file}: {reads}: `respool check {file}` checks a candidate, and --control-socket PATH \
         without a file reloads a process that sees its file at another path; nothing was reloaded"
    );
}

/// Why the process has not answered, and the remedy.
fn explain_silence(path: &Path, error: &io::Error) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            return format!(
                "the process did not answer within {} s: it may be stopped, or still look up \
                 names; the log of respool has the outcome",
                ANSWER_WAIT.as_secs()
            );
        }
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => match path.metadata() {
            Ok(meta) if !meta.file_type().is_socket() => {
                return "is no socket: name the control socket of respool".into();
            }
            _ => ": no respool with this control socket runs",
        },
        io::ErrorKind::PermissionDenied => ": run this as the user of respool, or as root",
        _ => "",
    };
    format!("{error}{remedy}")
}

/// The whole answer to a request.
fn ask_process(path: &Path, request: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(ANSWER_WAIT))?;
    stream.set_write_timeout(Some(ANSWER_WAIT))?;
    writeln!(stream, "{request}")?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that sends a byte now and then has one deadline for the whole request.
    #[test]
    fn dripping_client_ends_at_the_deadline() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let drips = thread::spawn(move || {
            while theirs.write_all(b"r").is_ok() {
                thread::sleep(Duration::from_millis(20));
            }
        });
        let error = read_request(&ours, Instant::now() + Duration::from_millis(200));
        let kind = error.unwrap_err().kind();
        let late = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
        assert!(late.contains(&kind), "{kind:?}");
        drop(ours);
        drips.join().unwrap();
    }

    /// A request may come in parts. One without a line end stops at the bound.
    #[test]
    fn request_ends_at_a_line_or_at_the_bound() {
        let far = || Instant::now() + Duration::from_secs(60);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"rel").unwrap();
        let parts = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            theirs.write_all(b"oad\n").unwrap();
            theirs
        });
        assert_eq!(read_request(&ours, far()).unwrap(), b"reload\n");
        let mut theirs = parts.join().unwrap();
        theirs.write_all(&[b'x'; 1_000]).unwrap();
        assert_eq!(read_request(&ours, far()).unwrap().len(), REQUEST_BYTES_MAX);
    }

    /// A client that takes its answer slowly has one deadline, too.
    #[test]
    fn slow_reader_ends_at_the_deadline() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let reads = thread::spawn(move || {
            while theirs.read(&mut [0; 64]).is_ok_and(|count| count > 0) {
                thread::sleep(Duration::from_millis(20));
            }
        });
        let outcome = ReloadOutcome::failed(vec!["x".repeat(64 << 20)]);
        let end = Instant::now() + Duration::from_millis(200);
        assert!(write_answer(&ours, &outcome, end).is_err());
        // The reader need not take the rest.
        drop(ours);
        drop(reads);
    }

    /// A process that does not answer has the time in its error, and not a number of the system.
    #[test]
    fn late_answer_is_named_with_the_time() {
        let (mut ours, _theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(Duration::from_millis(10)))
            .unwrap();
        let error = ours.read(&mut [0; 1]).unwrap_err();
        let told = explain_silence(Path::new("/a"), &error);
        assert!(
            told.starts_with("the process did not answer within 60 s"),
            "{told}"
        );
    }

    /// There is a bound on clients, and a client that is done makes room.
    #[test]
    fn number_of_clients_has_a_bound() {
        let clients = ClientCount::default();
        let mut places: Vec<_> = (0..CLIENTS_MAX).map(|_| clients.wait_for_place()).collect();
        assert_eq!(*clients.count(), CLIENTS_MAX);
        let next = {
            let clients = clients.clone();
            thread::spawn(move || drop(clients.wait_for_place()))
        };
        places.pop();
        next.join().unwrap();
        drop(places);
        assert_eq!(*clients.count(), 0);
    }
}

//! The server of `--spawn`: starts it, waits until it answers, and stops it.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufRead, BufReader, PipeReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use respool_config::address::UNIX_PATH_BYTES_MAX;
use respool_config::backend::{BackendServers, BackendUrl};
use respool_config::config::{PROGRAMS, Plan};
use respool_engine::settings::Address;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::remedy::thread_remedy;

/// The file name of its socket.
const SOCKET: &str = "server.sock";

/// The longest time until a server answers. Without data to load, it takes a few hundredths of a
/// second.
const READY_MAX: Duration = Duration::from_secs(10);

/// The longest time for a server to end by SIGTERM. Without data to save, it ends within a tenth of
/// a second.
const STOP_MAX: Duration = Duration::from_secs(2);

/// The longest wait for the last lines of a server that has ended.
const LAST_LINES_WAIT_MAX: Duration = Duration::from_millis(100);

/// The pause between two checks of a server that starts or stops.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The number of lines of its output that are kept, to show them if it ends.
const LAST_LINES: usize = 8;

/// The most bytes of such a line. The rest of a longer line counts as the next one.
const LINE_BYTES_MAX: u64 = 4 << 10;

/// A running server. Dropping this stops it.
#[derive(Debug)]
pub(crate) struct SpawnedServer {
    program: PathBuf,
    child: Child,
    /// Its working directory, with its socket. Only this user may enter it.
    directory: PathBuf,
    socket: PathBuf,
    output: Arc<Mutex<VecDeque<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl SpawnedServer {
    /// Starts a server and waits until it answers. Returns `None` if `give_up` returns true before
    /// that. To be called on the main thread: the system kills the server when the thread that
    /// started it ends.
    ///
    /// # Errors
    /// Returns one line with the remedy. Process and directory are gone then.
    pub(crate) fn start(
        plan: &Plan,
        give_up: &mut dyn FnMut() -> bool,
    ) -> Result<Option<SpawnedServer>, String> {
        let program = find_program(plan.program.as_deref())?;
        let mut server = SpawnedServer::launch(program, plan.memory_bytes)?;
        let started = Instant::now();
        while !answers(&server.socket) {
            if let Some(status) = server.ended() {
                let last_lines = server.last_lines();
                let program = server.program.display();
                return Err(format!("{program} ended at once ({status}): {last_lines}"));
            }
            if give_up() {
                return Ok(None);
            }
            if started.elapsed() > READY_MAX {
                let (last_lines, seconds) = (server.last_lines(), READY_MAX.as_secs());
                let program = server.program.display();
                return Err(format!(
                    "{program} does not answer after {seconds} seconds: {last_lines}"
                ));
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(Some(server))
    }

    /// Starts the process in a new directory.
    fn launch(program: PathBuf, memory_bytes: u64) -> Result<SpawnedServer, String> {
        let directory = make_directory()?;
        let socket = directory.join(SOCKET);
        let mut command = Command::new(&program);
        command
            // Only this user reaches the socket, and there is no port.
            .args(["--port", "0", "--unixsocketperm", "700", "--unixsocket"])
            .arg(&socket)
            .args(["--daemonize", "no", "--save", "", "--appendonly", "no"])
            .args(["--maxmemory", &memory_bytes.to_string()])
            .args([
                "--maxmemory-policy",
                "allkeys-lru",
                "--loglevel",
                "notice",
                "--dir",
            ])
            .arg(&directory)
            .stdin(Stdio::null())
            // Ctrl-C in a terminal must not end the server before respool has drained.
            .process_group(0);
        let launched = io::pipe().and_then(|(reader, writer)| {
            command.stdout(writer.try_clone()?).stderr(writer);
            let child = respool_driver::spawn_tied(&mut command)?;
            // `command` holds copies of the writing end. The reader ends when all are closed.
            drop(command);
            Ok((child, reader))
        });
        let (child, pipe) = launched.map_err(|error| {
            // The directory is empty.
            let _ = std::fs::remove_dir(&directory);
            let remedy = spawn_remedy(&error);
            format!("cannot start {}: {error}{remedy}", program.display())
        })?;
        let output = Arc::new(Mutex::new(VecDeque::new()));
        let lines = Arc::clone(&output);
        let mut server = SpawnedServer {
            program,
            child,
            directory,
            socket,
            output,
            reader: None,
        };
        let reader = thread::Builder::new().name("server-output".into());
        match reader.spawn(move || read_output(pipe, &lines)) {
            Ok(reader) => server.reader = Some(reader),
            // Dropping `server` stops the process.
            Err(error) => {
                let remedy = thread_remedy(&error);
                return Err(format!("cannot start a thread: {error}{remedy}"));
            }
        }
        Ok(server)
    }

    /// The URL of its socket.
    pub(crate) fn backend(&self) -> BackendUrl {
        let address = Address::Unix(self.socket.clone());
        BackendUrl {
            servers: BackendServers::Single(address),
            ..BackendUrl::default()
        }
    }

    /// The path of its program.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// The id of its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its exit status, if it has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child
            .try_wait()
            .expect("no other code waits for this child")
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Its last lines of output, for a message.
    pub(crate) fn last_lines(&mut self) -> String {
        // When the server has ended, the reader soon ends, too, and has all lines. A child of the
        // server, such as one that saves, can keep the pipe open for minutes.
        let asked = Instant::now();
        while self.ended().is_some()
            && self
                .reader
                .as_ref()
                .is_some_and(|reader| !reader.is_finished())
            && asked.elapsed() < LAST_LINES_WAIT_MAX
        {
            thread::sleep(Duration::from_millis(1));
        }
        let lines = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        match lines.len() {
            0 => "it wrote nothing".into(),
            _ => format!("it wrote: {}", Vec::from(lines.clone()).join(" | ")),
        }
    }
}

impl Drop for SpawnedServer {
    fn drop(&mut self) {
        if self.ended().is_none() {
            // The system does not reuse the process id before this process has waited for it.
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
            let asked = Instant::now();
            while self.ended().is_none() {
                if asked.elapsed() > STOP_MAX {
                    tracing::warn!(
                        pid = self.pid(),
                        "the server did not end by SIGTERM: killed"
                    );
                    self.kill();
                    break;
                }
                thread::sleep(LOOK_EVERY);
            }
        }
        if let Err(error) = std::fs::remove_dir_all(&self.directory) {
            tracing::warn!(directory = %self.directory.display(), %error, "cannot be removed");
        }
    }
}

/// The remedy for a program that cannot be started.
fn spawn_remedy(error: &io::Error) -> String {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::ACCESS) => {
            "; the system does not let this user run it: look at its mode, its owner and whether its \
             file system is mounted noexec"
                .into()
        }
        _ => thread_remedy(error),
    }
}

/// The path of the program: the wanted one, or the first of [`PROGRAMS`] in PATH.
fn find_program(wanted: Option<&Path>) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    match wanted {
        Some(wanted) => find_in(&path, wanted.as_os_str()).ok_or_else(|| {
            format!(
                "--spawn-program: there is no program `{}` that respool may run",
                wanted.display()
            )
        }),
        None => {
            let found = PROGRAMS
                .iter()
                .find_map(|name| find_in(&path, OsStr::new(name)));
            found.ok_or_else(|| {
                format!(
                    "--spawn: PATH has no {}: install one, name one by --spawn-program, or name \
                     a running server by --backend",
                    PROGRAMS.join(" and no ")
                )
            })
        }
    }
}

/// Looks up a name in `path`, as a shell does. A name with a slash is a path itself.
fn find_in(path: &OsStr, name: &OsStr) -> Option<PathBuf> {
    let runs = |file: &Path| {
        std::fs::metadata(file)
            .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if name.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(|file| runs(file));
    }
    std::env::split_paths(path)
        .map(|directory| directory.join(name))
        .find(|file| runs(file))
}

/// Makes a directory that only this user may enter, with a path short enough for a socket in it.
fn make_directory() -> Result<PathBuf, String> {
    let parent = std::env::temp_dir();
    loop {
        // Other users cannot guess a random name and create it first. An existing one is not used.
        let name = format!(
            "respool-{:016x}",
            RandomState::new().build_hasher().finish()
        );
        let directory = parent.join(name);
        if directory.join(SOCKET).as_os_str().len() > UNIX_PATH_BYTES_MAX {
            return Err(format!(
                "`{}` is too long for a socket in it: set TMPDIR to a shorter one",
                parent.display()
            ));
        }
        match DirBuilder::new().mode(0o700).create(&directory) {
            Ok(()) => return Ok(directory),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(format!(
                    "cannot make a directory in `{}`: {error}: set TMPDIR to one that respool may write",
                    parent.display()
                ));
            }
        }
    }
}

/// Whether a server answers PING on the socket.
fn answers(socket: &Path) -> bool {
    let ask = || {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(READY_MAX))?;
        stream.write_all(b"PING\r\n")?;
        let mut answer = [0; 7];
        stream.read_exact(&mut answer)?;
        Ok::<_, io::Error>(answer == *b"+PONG\r\n")
    };
    ask().unwrap_or(false)
}

/// Logs each line of the server, and keeps the last ones.
fn read_output(pipe: PipeReader, last: &Mutex<VecDeque<String>>) {
    let mut pipe = BufReader::new(pipe);
    loop {
        let mut line = Vec::new();
        match (&mut pipe)
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut line)
        {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let line = String::from_utf8_lossy(&line).trim().to_owned();
        if line.is_empty() {
            continue;
        }
        tracing::debug!(target: "server", line);
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() == LAST_LINES {
            last.pop_front();
        }
        last.push_back(line);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::MutexGuard;

    use super::*;

    /// These tests run one at a time. A program that was just written cannot run while another
    /// thread is between fork and exec with a copy of the file descriptor for writing.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    fn one_at_a_time() -> MutexGuard<'static, ()> {
        ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fake_server(directory: &Path, script: &str) -> PathBuf {
        let path = directory.join("redis-server");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn start(program: PathBuf) -> Result<SpawnedServer, String> {
        let plan = Plan {
            program: Some(program),
            memory_bytes: 1 << 20,
        };
        SpawnedServer::start(&plan, &mut || false).map(|server| server.expect("not given up"))
    }

    #[test]
    fn first_executable_program_in_path_is_found() {
        let _one = one_at_a_time();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().as_os_str();
        assert_eq!(find_in(path, OsStr::new("redis-server")), None);
        let program = fake_server(directory.path(), "");
        assert_eq!(
            find_in(path, OsStr::new("redis-server")),
            Some(program.clone())
        );
        assert_eq!(find_in(path, program.as_os_str()), Some(program.clone()));
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(find_in(path, OsStr::new("redis-server")), None);
    }

    /// The error has its last lines, and its directory is gone.
    #[test]
    fn server_that_ends_at_once_is_an_error() {
        let _one = one_at_a_time();
        let directory = tempfile::tempdir().unwrap();
        // The directory of the socket follows --dir.
        let script = "while [ \"$1\" != --dir ]; do shift; done; \
                      echo \"no luck in $2\" >&2; exit 3";
        let error = start(fake_server(directory.path(), script)).expect_err("it ended");
        assert!(
            error.contains("ended at once (exit status: 3): it wrote: no luck in "),
            "{error}"
        );
        let left = error.rsplit(' ').next().unwrap();
        assert!(
            left.contains("respool-") && !Path::new(left).exists(),
            "{left}"
        );
    }

    #[test]
    fn start_ends_when_give_up_says_so() {
        let _one = one_at_a_time();
        let directory = tempfile::tempdir().unwrap();
        let program = fake_server(directory.path(), "exec sleep 600");
        let plan = Plan {
            program: Some(program),
            memory_bytes: 0,
        };
        let mut looks = 0;
        let server = SpawnedServer::start(&plan, &mut || {
            looks += 1;
            looks == 3
        });
        assert!(matches!(server, Ok(None)));
        assert_eq!(looks, 3);
    }

    #[test]
    fn error_names_a_missing_program() {
        let error = start("/nonexistent/redis-server".into()).expect_err("there is none");
        assert!(
            error.contains("no program `/nonexistent/redis-server`"),
            "{error}"
        );
    }

    #[test]
    fn dropped_server_is_gone_with_its_directory() {
        let _one = one_at_a_time();
        let Ok(program) = find_program(None) else {
            // The integration tests fail if a server is missing; this test only adds detail.
            eprintln!("skipped: PATH has no server");
            return;
        };
        let mut server = start(program).expect("it starts");
        assert_eq!(server.ended(), None);
        let (pid, directory) = (server.pid(), server.directory.clone());
        assert!(answers(&server.socket));
        let mode = std::fs::metadata(&directory).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "no other user may enter");
        drop(server);
        assert!(!directory.exists());
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }
}

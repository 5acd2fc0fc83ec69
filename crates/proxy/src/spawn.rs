//! A server of our own: started, waited for, stopped.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fmt;
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

use respool_engine::settings::{Address, Reads};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::address::{BackendUrl, Named, UNIX_PATH_BYTES_MAX};
use crate::serve::thread_remedy;

/// What is looked for in PATH, in this order.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

/// The name of its socket.
const SOCKET: &str = "server.sock";

/// How long a server may take until it answers. Without data to load, it takes a few hundredths
/// of a second.
const READY_MAX: Duration = Duration::from_secs(10);

/// How long a server may take to end by SIGTERM. Without data to save, it notices within a tenth
/// of a second.
const STOP_MAX: Duration = Duration::from_secs(2);

/// How long the lines of a server that has ended are waited for.
const LAST_WORDS_MAX: Duration = Duration::from_millis(100);

/// The pause between two looks at a server that starts or stops.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Lines of a server's output that are kept, to be shown should it end.
const LAST_LINES: usize = 8;

/// Bytes of one such line; the rest of a longer one counts as the next line.
const LINE_BYTES_MAX: u64 = 4 << 10;

/// What to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// A path, or a name for PATH. `None`: the first of ours that PATH has.
    pub(crate) program: Option<PathBuf>,
    /// 0: no limit.
    pub(crate) memory_bytes: u64,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.program {
            Some(path) => write!(f, "{}", path.display()),
            None => f.write_str(&PROGRAMS.join(" or ")),
        }
    }
}

/// A server that runs, and is stopped when this is dropped.
#[derive(Debug)]
pub(crate) struct SpawnedServer {
    program: PathBuf,
    child: Child,
    /// Ours alone; its working directory, with its socket.
    directory: PathBuf,
    socket: PathBuf,
    output: Arc<Mutex<VecDeque<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl SpawnedServer {
    /// Starts a server and waits until it answers; `None` when `give_up` said so before that. To be
    /// called on the main thread: the server is killed when the thread that started it ends.
    ///
    /// # Errors
    /// One line that says what to do. Nothing is left behind.
    pub(crate) fn start(
        plan: &Plan,
        give_up: &mut dyn FnMut() -> bool,
    ) -> Result<Option<SpawnedServer>, String> {
        let program = find_program(plan.program.as_deref())?;
        let mut server = SpawnedServer::launch(program, plan.memory_bytes)?;
        let started = Instant::now();
        while !answers(&server.socket) {
            if let Some(status) = server.ended() {
                let said = server.last_words();
                let program = server.program.display();
                return Err(format!("{program} ended at once ({status}): {said}"));
            }
            if give_up() {
                return Ok(None);
            }
            if started.elapsed() > READY_MAX {
                let (said, seconds) = (server.last_words(), READY_MAX.as_secs());
                let program = server.program.display();
                return Err(format!(
                    "{program} does not answer after {seconds} seconds: {said}"
                ));
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(Some(server))
    }

    fn launch(program: PathBuf, memory_bytes: u64) -> Result<SpawnedServer, String> {
        let directory = make_directory()?;
        let socket = directory.join(SOCKET);
        let mut command = Command::new(&program);
        command
            // A socket that only this user reaches, and no other way in.
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
            // Ctrl-C in a terminal is meant for us: the server must live until we have drained.
            .process_group(0);
        let launched = io::pipe().and_then(|(reader, writer)| {
            command.stdout(writer.try_clone()?).stderr(writer);
            let child = respool_driver::spawn_tied(&mut command)?;
            // Our copies of the writing end live in `command`; the reader ends when all are closed.
            drop(command);
            Ok((child, reader))
        });
        let (child, pipe) = launched.map_err(|error| {
            // What is left of it is empty and ours.
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
            // Dropping `server` stops it.
            Err(error) => {
                let remedy = thread_remedy(&error);
                return Err(format!("cannot start a thread: {error}{remedy}"));
            }
        }
        Ok(server)
    }

    /// How to reach it.
    pub(crate) fn backend(&self) -> BackendUrl {
        let address = Address::Unix(self.socket.clone());
        BackendUrl {
            servers: Named::One(address),
            user: None,
            password: None,
            password_file: None,
            source: None,
            db: 0,
            reads: Reads::default(),
        }
    }

    /// The program that runs.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child
            .try_wait()
            .expect("a child of ours that nobody else waits for")
    }

    /// Ends it without asking.
    pub(crate) fn kill(&mut self) {
        // It has ended already, or it does now.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The last lines that it wrote.
    pub(crate) fn last_words(&mut self) -> String {
        // Once the server has ended, the reader ends, too, and the lines are whole. A child of the
        // server, such as one that saves, can keep the pipe open for minutes.
        let asked = Instant::now();
        while self.ended().is_some()
            && self
                .reader
                .as_ref()
                .is_some_and(|reader| !reader.is_finished())
            && asked.elapsed() < LAST_WORDS_MAX
        {
            thread::sleep(Duration::from_millis(1));
        }
        let lines = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        match lines.len() {
            0 => "it said nothing".into(),
            _ => format!("it said: {}", Vec::from(lines.clone()).join(" | ")),
        }
    }
}

impl Drop for SpawnedServer {
    fn drop(&mut self) {
        if self.ended().is_none() {
            // It was alive, and its number is not given anew before we have waited for it.
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

/// For a program that cannot be started.
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

fn find_program(wanted: Option<&Path>) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    match wanted {
        Some(wanted) => find_in(&path, wanted.as_os_str()).ok_or_else(|| {
            format!(
                "--spawn-program: there is no program `{}` that we may run",
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

/// A name is looked for in `path`, as a shell does; what has a slash is a path itself.
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

/// A new directory that only we may enter, short enough for a socket in it.
fn make_directory() -> Result<PathBuf, String> {
    let parent = std::env::temp_dir();
    loop {
        // A random name, so that nobody can take it before us: what exists already is not ours.
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
                    "cannot make a directory in `{}`: {error}: set TMPDIR to one that we may write",
                    parent.display()
                ));
            }
        }
    }
}

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

/// Passes what the server says on to the log, and keeps the last of it.
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

    /// A program that has just been written cannot be run while another thread is between fork and
    /// exec, with a copy of the file that was written to: so these tests run one at a time.
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
    fn the_first_of_our_programs_in_path_that_may_be_run_is_found() {
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

    #[test]
    fn a_server_that_ends_at_once_is_an_error_with_its_last_words_and_leaves_nothing() {
        let _one = one_at_a_time();
        let directory = tempfile::tempdir().unwrap();
        // The directory of the socket is what follows --dir.
        let script = "while [ \"$1\" != --dir ]; do shift; done; \
                      echo \"no luck in $2\" >&2; exit 3";
        let error = start(fake_server(directory.path(), script)).expect_err("it ended");
        assert!(
            error.contains("ended at once (exit status: 3): it said: no luck in "),
            "{error}"
        );
        let left = error.rsplit(' ').next().unwrap();
        assert!(
            left.contains("respool-") && !Path::new(left).exists(),
            "{left}"
        );
    }

    #[test]
    fn waiting_for_a_server_ends_when_we_are_asked_to_stop() {
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
    fn a_program_that_is_none_is_named_in_the_error() {
        let error = start("/nonexistent/redis-server".into()).expect_err("there is none");
        assert!(
            error.contains("no program `/nonexistent/redis-server`"),
            "{error}"
        );
    }

    #[test]
    fn a_real_server_answers_and_is_gone_with_its_socket_once_dropped() {
        let _one = one_at_a_time();
        let Ok(program) = find_program(None) else {
            // The integration tests fail where a server is missing; this one only adds detail.
            eprintln!("skipped: PATH has no server");
            return;
        };
        let mut server = start(program).expect("it starts");
        assert_eq!(server.ended(), None);
        let (pid, directory) = (server.pid(), server.directory.clone());
        assert!(answers(&server.socket));
        let mode = std::fs::metadata(&directory).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "nobody else may enter");
        drop(server);
        assert!(!directory.exists());
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }
}

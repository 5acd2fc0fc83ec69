//! `respool-lab rotation`

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use respool_testkit::certificates::{TestCa, Validity};
use respool_testkit::servers::{Proxy, ServerProcess};
use respool_testkit::tls_client::{TlsClient, TlsPeer};
use rustls::ClientConfig;

use super::{ask_at_fixed_times, experiment, fail, read};
use crate::figure::quantile;
use crate::flags::{positive, seconds};
use crate::targets::{Programs, ServerChoice};
use crate::tls::arguments;

const NAME: &str = "rotation";
const ABOUT: &str = "\
respool-lab rotation: whether a client fails while certificates change, or has to wait.

Clients connect to respool over TLS at a fixed rate, ask one PING each, and leave. Meanwhile the
certificate and its key are replaced: in turn by a symbolic link to another directory, as Kubernetes
does it, which respool finds by itself, and by two renames with SIGHUP after them. Each client looks
at the certificate that it gets. A session that was there before asks a PING every 2 ms, for some
seconds alone and then beside the handshakes: its p99 shows whether they hurt it. Exits with 1 if a
client failed or a certificate was never seen.

Usage: respool-lab rotation [OPTIONS]
Example: respool-lab rotation --rate 500 --seconds 60";

/// The time between two replacements: respool looks every 5 s, and once more a second later.
const EVERY: Duration = Duration::from_secs(8);
/// The time between two requests of the established session.
const ASK_EVERY: Duration = Duration::from_millis(2);
/// How long the established session is alone at first.
const ALONE: Duration = Duration::from_secs(5);
/// Threads of clients. One handshake at a time each.
const CLIENTS: u32 = 16;

#[derive(Args)]
struct RotationArgs {
    /// Connections a second, due at fixed times.
    #[arg(long, value_name = "RATE", value_parser = positive::<u32>, default_value_t = 500)]
    rate: u32,
    /// How long clients connect.
    #[arg(long, value_name = "S", value_parser = seconds, default_value_t = 60.0)]
    seconds: f64,
    /// Workers of respool.
    #[arg(long, value_name = "N", value_parser = positive::<u32>, default_value_t = 1)]
    threads: u32,
    /// The respool to test [the one next to respool-lab, or from PATH].
    #[arg(long, value_name = "PATH")]
    respool: Option<PathBuf>,
}

/// What clients have found.
#[derive(Default)]
struct ClientResults {
    /// Milliseconds from the time at which a connection was due to the reply to its PING.
    ms: Vec<f64>,
    failures: Vec<String>,
    certificates: HashSet<Vec<u8>>,
}

/// Milliseconds of the requests of the established session.
#[derive(Default)]
struct Established {
    alone: Vec<f64>,
    beside: Vec<f64>,
}

/// The certificate that respool reads, and its replacements.
struct Rotating {
    ca: TestCa,
    dir: PathBuf,
    made: u32,
}

impl Rotating {
    /// The directory that respool reads: a symbolic link.
    fn current(&self) -> PathBuf {
        self.dir.join("current")
    }

    /// Writes a new certificate and key into a directory of their own.
    fn make(&mut self) -> io::Result<PathBuf> {
        self.made += 1;
        let dir = self.dir.join(self.made.to_string());
        fs::create_dir(&dir)?;
        let (certificate, key) = self.ca.pem(&["localhost"], Validity::Now)?;
        fs::write(dir.join("tls.crt"), certificate)?;
        fs::write(dir.join("tls.key"), key)?;
        Ok(dir)
    }

    /// Makes the symbolic link lead to a new directory, in one step.
    fn swap_link(&mut self) -> io::Result<()> {
        let dir = self.make()?;
        let link = self.dir.join("next");
        symlink(dir, &link)?;
        fs::rename(link, self.current())
    }

    /// Replaces the two files one by one.
    fn rename_files(&mut self) -> io::Result<()> {
        let dir = self.make()?;
        for name in ["tls.key", "tls.crt"] {
            fs::rename(dir.join(name), self.current().join(name))?;
        }
        Ok(())
    }
}

/// Runs it.
pub fn run(args: &[OsString]) -> ExitCode {
    let given: RotationArgs = match read(NAME, ABOUT, args) {
        Ok(given) => given,
        Err(code) => return code,
    };
    if Duration::from_secs_f64(given.seconds) < EVERY * 2 {
        let least = EVERY.as_secs() * 2;
        return fail(
            NAME,
            &format!("--seconds must be at least {least}: no certificate would change"),
        );
    }
    match measure(&given) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => fail(NAME, &problem),
    }
}

fn measure(given: &RotationArgs) -> Result<(), String> {
    let broken = |error: io::Error| error.to_string();
    let binary = Programs::respool(given.respool.as_deref())?;
    let server = ServerProcess::start::<&str>(&ServerChoice::Found.binary()?, &[]);
    let server = server.map_err(broken)?;
    let dir = tempfile::tempdir().map_err(broken)?;
    let mut rotating = Rotating {
        ca: TestCa::new(dir.path(), "lab").map_err(broken)?,
        dir: dir.path().to_owned(),
        made: 0,
    };
    rotating.swap_link().map_err(broken)?;
    let config = TlsPeer::trusting(&rotating.ca.file).config();
    let config = config.map_err(broken)?;
    let proxy = start(&binary, &server, given.threads, &rotating.current()).map_err(broken)?;
    let stop = experiment::stop_flag()?;
    let found = Mutex::new(ClientResults::default());
    let mut session = TlsClient::open(proxy.address(), "localhost", Arc::clone(&config));
    let session = session.as_mut().map_err(|error| error.to_string())?;
    let mut established = Established::default();
    let failed = |error: io::Error| format!("the established session: {error}");
    let alone_until = Instant::now() + ALONE;
    ask_until(session, alone_until, &stop, &mut established.alone).map_err(failed)?;
    let began = Instant::now();
    let length = Duration::from_secs_f64(given.seconds);
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (config, found, stop) = (&config, &found, &stop);
            let address = proxy.address();
            scope.spawn(move || {
                let dues = (0..).map(|turn| {
                    let nth = f64::from(turn * CLIENTS + client);
                    Duration::from_secs_f64(nth / f64::from(given.rate))
                });
                for due in dues.take_while(|due| *due < length) {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let due = began + due;
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                    let outcome = connect(address, config);
                    let mut found = found.lock().expect("no client panics");
                    match outcome {
                        Ok(certificate) => {
                            found.ms.push(due.elapsed().as_secs_f64() * 1e3);
                            found.certificates.insert(certificate);
                        }
                        Err(error) => found.failures.push(error.to_string()),
                    }
                }
            });
        }
        let ms = &mut established.beside;
        let asking = scope.spawn(|| ask_until(session, began + length, &stop, ms));
        rotate(&mut rotating, &proxy, began + length, &stop)?;
        let asked = asking.join().expect("the session does not panic");
        if let Err(error) = asked {
            let mut found = found.lock().expect("no client panics");
            found.failures.push(failed(error));
        }
        Ok(())
    })
    .map_err(broken)?;
    let found = found.into_inner().map_err(|_| "a client has panicked")?;
    report(given, &rotating, (found, established), began.elapsed())
}

/// Asks a PING at fixed times.
fn ask_until(
    session: &mut TlsClient,
    end: Instant,
    stop: &AtomicBool,
    ms: &mut Vec<f64>,
) -> io::Result<()> {
    let goes_on = |due| due < end && !stop.load(Ordering::Relaxed);
    let ping = || session.try_call("PING").map(drop);
    ask_at_fixed_times(ASK_EVERY, goes_on, ping, ms)
}

/// Starts respool with TLS, and with the files in this directory.
fn start(binary: &Path, server: &ServerProcess, threads: u32, files: &Path) -> io::Result<Proxy> {
    let file = |name: &str| files.join(name).display().to_string();
    Proxy::start_with(binary, |port| {
        arguments([
            ("--tls-listen", format!("127.0.0.1:{port}")),
            ("--tls-cert", file("tls.crt")),
            ("--tls-key", file("tls.key")),
            ("--backend", format!("redis://{}", server.address())),
            ("--threads", threads.to_string()),
        ])
    })
}

/// Replaces the certificate again and again. The last one has time to be seen.
fn rotate(
    rotating: &mut Rotating,
    proxy: &Proxy,
    end: Instant,
    stop: &AtomicBool,
) -> io::Result<()> {
    let mut due = Instant::now() + EVERY / 2;
    while due + EVERY < end {
        while Instant::now() < due {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(50));
        }
        if rotating.made % 2 == 1 {
            rotating.swap_link()?;
        } else {
            rotating.rename_files()?;
            proxy.hang_up();
        }
        due += EVERY;
    }
    Ok(())
}

/// Connects, asks, and leaves. Returns the certificate of respool.
fn connect(address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<Vec<u8>> {
    let mut client = TlsClient::open(address, "localhost", Arc::clone(config))?;
    client.try_call("PING")?;
    let certificate = client.server_certificate().map(<[u8]>::to_vec);
    certificate.ok_or_else(|| io::Error::other("respool has shown no certificate"))
}

fn report(
    given: &RotationArgs,
    rotating: &Rotating,
    (mut found, mut established): (ClientResults, Established),
    took: Duration,
) -> Result<(), String> {
    for ms in [
        &mut found.ms,
        &mut established.alone,
        &mut established.beside,
    ] {
        ms.sort_by(f64::total_cmp);
    }
    let at = |part| quantile(&found.ms, part);
    let (alone, beside) = (&established.alone, &established.beside);
    let (made, seen) = (rotating.made as usize, found.certificates.len());
    super::say(&format!(
        "Handshakes while certificates change: {} a second for {:.0} s\n\n\
         handshakes    {}\nfailed        {}\ncertificates  {made}\nseen          {seen}\n\
         ms, with PING p50 {:.1}, p99 {:.1}, most {:.1}\n\n\
         PING of a session that was there before, ms\n\
         alone         p50 {:.2}, p99 {:.2}\nbeside them   p50 {:.2}, p99 {:.2}\n",
        given.rate,
        took.as_secs_f64(),
        found.ms.len(),
        found.failures.len(),
        at(0.5),
        at(0.99),
        at(1.0),
        quantile(alone, 0.5),
        quantile(alone, 0.99),
        quantile(beside, 0.5),
        quantile(beside, 0.99),
    ));
    if let Some(first) = found.failures.first() {
        let count = found.failures.len();
        return Err(format!("{count} clients have failed; the first: {first}"));
    }
    match seen == made {
        true => Ok(()),
        false => Err(format!(
            "{made} certificates were made, and {seen} were seen"
        )),
    }
}

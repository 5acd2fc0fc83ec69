//! What a test talks to: a real server, or a respool before it.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::thread;
use std::time::{Duration, Instant};

use respool_lab::servers::{self, Flavour, Proxy, Server};

use super::client::Client;
use super::coalescing::counter;

/// How a test wants its respool and its server.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// For `respool serve`, beside the listener and the server's address.
    pub(crate) respool: Vec<String>,
    /// For the server.
    pub(crate) server: Vec<String>,
    /// The server's password, which respool asks of its clients in turn.
    pub(crate) password: Option<&'static str>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            respool: vec!["--threads=1".into()],
            server: Vec::new(),
            password: None,
        }
    }
}

impl Options {
    /// Options of `respool serve`, the later ones counting.
    pub(crate) fn with(args: &[&str]) -> Options {
        let mut options = Options::default();
        options
            .respool
            .extend(args.iter().map(|&arg| arg.to_owned()));
        options
    }

    pub(crate) fn password(mut self, password: &'static str) -> Options {
        self.password = Some(password);
        self
    }
}

/// A server, and perhaps a respool before it.
pub(crate) struct Target {
    pub(crate) name: String,
    /// As the server says it: 7.0 is (7, 0).
    pub(crate) version: (u32, u32),
    pub(crate) server: Server,
    pub(crate) proxy: Option<Proxy>,
    /// Where clients connect.
    address: SocketAddr,
}

impl Target {
    /// The server alone.
    pub(crate) fn direct(binary: &Path, options: &Options) -> Target {
        let mut args = options.server.clone();
        if let Some(password) = options.password {
            args.extend(["--requirepass".into(), password.into()]);
        }
        let server = Server::start(binary, &args).unwrap_or_else(|error| panic!("{error}"));
        let said = servers::version(binary).unwrap_or_else(|error| panic!("{error}"));
        let mut numbers = said.split([' ', '.']).filter_map(|word| word.parse().ok());
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let address = server.address();
        Target {
            name: said,
            version,
            server,
            proxy: None,
            address,
        }
    }

    /// A respool before the server.
    pub(crate) fn proxied(binary: &Path, options: &Options) -> Target {
        let target = Target::direct(binary, options);
        let address = target.server.address();
        target.behind(address, options)
    }

    /// A respool before an address that leads to this server by some other way.
    pub(crate) fn behind(mut self, address: SocketAddr, options: &Options) -> Target {
        let mut args = options.respool.clone();
        match options.password {
            None => args.push(format!("--backend=redis://{address}")),
            Some(password) => {
                args.push(format!("--backend=redis://:{password}@{address}"));
                args.push(format!("--password={password}"));
            }
        }
        let proxy = Proxy::start(&respool(), &args).unwrap_or_else(|error| panic!("{error}"));
        self.name = format!("respool {} before {}", options.respool.join(" "), self.name);
        self.address = proxy.address();
        self.proxy = Some(proxy);
        self
    }

    pub(crate) fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().expect("the test asked for a respool")
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address())
    }

    /// A client past respool, to see what the server holds.
    pub(crate) fn direct_client(&self) -> Client {
        Client::connect(self.server.address())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let Some(proxy) = &self.proxy else {
            if thread::panicking() {
                eprintln!("on {}", self.name);
            }
            return;
        };
        let log = proxy.log();
        let tail: Vec<&str> = log.lines().rev().take(30).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        if thread::panicking() {
            let state = if proxy.is_running() {
                "running"
            } else {
                "ENDED"
            };
            eprintln!(
                "on {}; respool is {state}, its log:\n{}",
                self.name,
                tail.join("\n")
            );
        } else {
            // Whatever else a test looks at, this holds in each: nothing that clients or servers do ends respool.
            assert!(
                !log.contains("panicked at"),
                "{} panicked:\n{}",
                self.name,
                tail.join("\n")
            );
        }
    }
}

pub(crate) fn respool() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_respool"))
}

/// The server that tests use which need only one.
pub(crate) fn any_server() -> PathBuf {
    servers::find(Flavour::Redis70).unwrap_or_else(|reason| panic!("{reason}"))
}

/// A respool before one server.
pub(crate) fn proxied(options: &Options) -> Target {
    let binary = any_server();
    Target::proxied(&binary, options)
}

/// Every server at hand. Those that are not are named once, with the reason, past the test runner's capture.
pub(crate) fn installed() -> Vec<PathBuf> {
    static SAID: Once = Once::new();
    let all = Flavour::ALL.map(|flavour| (flavour, servers::find(flavour)));
    SAID.call_once(|| {
        for (flavour, found) in &all {
            match found {
                Ok(binary) if *flavour == Flavour::Redis70 => {
                    let version =
                        servers::version(binary).unwrap_or_else(|error| error.to_string());
                    say(&format!("redis-server of this system is {version}"));
                }
                Ok(_) => {}
                Err(reason) => servers::leave_out("servers", reason),
            }
        }
    });
    any_server();
    all.into_iter()
        .filter_map(|(_, found)| found.ok())
        .collect()
}

/// Runs the body directly and through respool, on every server at hand.
pub(crate) fn on_every_target(options: &Options, body: impl Fn(&Target)) {
    for binary in installed() {
        body(&Target::direct(&binary, options));
        body(&Target::proxied(&binary, options));
    }
}

/// Runs the body through respool, on every server at hand.
pub(crate) fn before_every_server(options: &Options, body: impl Fn(&mut Target)) {
    for binary in installed() {
        body(&mut Target::proxied(&binary, options));
    }
}

/// To the terminal, also from a test that passes.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Waits until it holds; panics with the text when it does not in time.
#[track_caller]
pub(crate) fn wait_until(claim: &str, limit: Duration, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {limit:?}: {claim}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Measures time without that in which the machine was not there: what a test promises to happen within a time is a promise of
/// respool's, not of whoever else uses the machine.
///
/// A thread does nothing but sleep. As much as it wakes too late, everybody was late who had something to do meanwhile.
pub(crate) struct Watch {
    shared: Arc<WatchShared>,
    begun: Instant,
}

#[derive(Default)]
struct WatchShared {
    is_over: AtomicBool,
    /// When it last woke, behind the beginning.
    woke_us: AtomicU64,
    /// Of all its naps, the time by which they were too long.
    late_us: AtomicU64,
}

impl Watch {
    /// How long a nap is, and what it takes at the most to wake from one where nobody else runs.
    const NAP: Duration = Duration::from_millis(6);

    pub(crate) fn start() -> Watch {
        let (shared, begun) = (Arc::new(WatchShared::default()), Instant::now());
        let watched = Arc::clone(&shared);
        thread::spawn(move || {
            while !watched.is_over.load(Ordering::SeqCst) {
                let asleep = Instant::now();
                thread::sleep(Watch::NAP - Duration::from_millis(1));
                let late = asleep.elapsed().saturating_sub(Watch::NAP);
                let late_us = late.as_micros() as u64;
                watched.late_us.fetch_add(late_us, Ordering::SeqCst);
                let woke_us = begun.elapsed().as_micros() as u64;
                watched.woke_us.store(woke_us, Ordering::SeqCst);
            }
        });
        Watch { shared, begun }
    }

    /// The time since it was started.
    pub(crate) fn elapsed(&self) -> Duration {
        let late = self.shared.late_us.load(Ordering::SeqCst);
        let woke = Duration::from_micros(self.shared.woke_us.load(Ordering::SeqCst));
        let elapsed = self.begun.elapsed();
        // By how much the nap is too long that it takes.
        let overdue = elapsed.saturating_sub(woke + Watch::NAP);
        elapsed.saturating_sub(Duration::from_micros(late) + overdue)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
    }
}

/// Connections to respool of which each worker has one, in the order of the workers.
pub(crate) fn one_of_each_worker(address: SocketAddr) -> Vec<Client> {
    let mut all = BTreeMap::new();
    // The kernel deals them out. Of so many each has some.
    for _ in 0..400 {
        let mut client = Client::connect(address);
        let workers = counter(&mut client, "workers") as usize;
        all.entry(counter(&mut client, "worker")).or_insert(client);
        if all.len() == workers {
            return all.into_values().collect();
        }
    }
    panic!("a worker gets no connection: {:?} do", all.keys())
}

/// A small source of numbers whose seed a failing test prints.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        // Neighbouring seeds begin far apart, and zero is none.
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }
}

/// The seed of this run: RESPOOL_TEST_SEED, or the clock's.
pub(crate) fn seed() -> u64 {
    let given = std::env::var("RESPOOL_TEST_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |now| now.as_nanos() as u64 >> 10)
    })
}

#[test]
fn a_watch_goes_on_while_somebody_waits_and_stands_still_while_nobody_runs() {
    let watch = Watch::start();
    thread::sleep(Duration::from_millis(300));
    let asleep = watch.elapsed();
    // What is taken off is what the machine has taken, and on one that is overrun it is most of it.
    let real = watch.begun.elapsed();
    let late = Duration::from_micros(watch.shared.late_us.load(Ordering::SeqCst));
    assert!(asleep <= real, "{asleep:?} of {real:?}");
    assert!(asleep + late + 4 * Watch::NAP >= Duration::from_millis(300));
    // Nobody runs: as if its thread had slept through half a second.
    let late_us = 500_000;
    watch.shared.late_us.fetch_add(late_us, Ordering::SeqCst);
    let behind = watch.elapsed();
    assert!(behind < asleep, "{behind:?} behind {asleep:?}");
}

//! The clients: writers and readers at a pace through the proxy, and the probe that asks the
//! candidates directly.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use respool_testkit::client::{Reply, RespClient};
use respool_testkit::random::Random;
use respool_testkit::scene::WATCHED;
use respool_testkit::time::clock_ns;

use super::FailoverSettings;
use crate::schedule::Schedule;

/// How long a client waits for a reply: longer than any proxy delays one.
const PATIENCE: Duration = Duration::from_secs(8);
/// The pause of a client whose connection was refused.
const NOT_LET_IN: Duration = Duration::from_millis(20);
/// How often an idle client looks whether the round is over.
const LOOK_UP: Duration = Duration::from_millis(20);
/// Time between two requests of the probe.
const PROBE: Duration = Duration::from_millis(1);
/// How long the probe waits for a candidate. A candidate that takes over may be slow; a dead one
/// refuses at once.
const PROBE_PATIENCE: Duration = Duration::from_millis(500);

/// A key that clients write to or read.
#[derive(Clone, Debug)]
pub struct LoadKey {
    /// Its name.
    pub name: String,
    /// Whether it is a list for writes. Otherwise it is a string to read, with its own name as its
    /// value.
    pub is_written: bool,
    /// The group of servers that has it: 0 is the failing one.
    pub group: usize,
}

/// One request and its result.
#[derive(Clone, Debug)]
pub struct LoggedRequest {
    /// Index of its key.
    pub key: usize,
    /// The number that it appended; `None`: a read.
    pub written: Option<u64>,
    /// When it was due.
    pub due_ns: u64,
    /// When its reply came, or when it was given up.
    pub end_ns: u64,
    /// Its result.
    pub outcome: RequestOutcome,
}

impl LoggedRequest {
    /// Whether it is a read without the right value.
    pub fn is_failed_read(&self) -> bool {
        self.written.is_none() && self.outcome != RequestOutcome::Done
    }
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// The reply was as expected.
    Done,
    /// The reply was an error or empty, or there was none.
    Failed {
        /// The first word of the error; `timeout`, `closed`, `nil`.
        kind: String,
        /// The whole text.
        text: String,
    },
    /// The reply was one that no server gives.
    Wrong(String),
}

/// The kind of an error: its code. respool's several codes for requests that did not run are one
/// kind.
fn kind_of(text: &str) -> &str {
    match text.split_once(' ') {
        Some((_, rest)) if rest.starts_with("respool: the command was not executed") => "NOTSENT",
        Some((code, _)) => code,
        None => text,
    }
}

/// Whether errors of this kind say that the command was not executed.
pub fn is_not_executed(kind: &str) -> bool {
    const WORDS: [&str; 10] = [
        "NOTSENT",
        "MOVED",
        "ASK",
        "TRYAGAIN",
        "CLUSTERDOWN",
        "CROSSSLOT",
        "READONLY",
        "LOADING",
        "MASTERDOWN",
        "NOREPLICAS",
    ];
    WORDS.contains(&kind)
}

/// All clients of a round.
#[derive(Debug)]
pub struct FailoverLoad<'a> {
    /// The proxy's address.
    pub address: SocketAddr,
    /// Keys to write and keys to read.
    pub keys: &'a [LoadKey],
    /// Number and pace of the clients.
    pub settings: &'a FailoverSettings,
    /// When the first request is due.
    pub start_ns: u64,
    /// Once set, clients send nothing more.
    pub over: AtomicBool,
}

impl FailoverLoad<'_> {
    /// Starts the clients. Each returns its requests.
    pub fn begin<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
    ) -> Vec<ScopedJoinHandle<'scope, Vec<LoggedRequest>>> {
        let FailoverSettings {
            writers, readers, ..
        } = *self.settings;
        let all = writers + readers;
        (0..all)
            .map(|number| {
                // A writer has keys of its own, so a list is in the order of its writer.
                let own = |(place, key): (usize, &LoadKey)| match (number < writers, key.is_written)
                {
                    (true, true) => (place % writers == number).then_some(place),
                    (false, false) => Some(place),
                    _ => None,
                };
                let keys: Vec<usize> = self.keys.iter().enumerate().filter_map(own).collect();
                let each = self.settings.rate / all as f64;
                let offset = 1e9 / each * number as f64 / all as f64;
                let client = FailoverClient {
                    load: self,
                    keys,
                    is_writer: number < writers,
                    schedule: Schedule::new(self.start_ns + offset as u64, each),
                    random: Random::new(number as u64),
                    connection: None,
                    last: 0,
                };
                scope.spawn(move || client.run())
            })
            .collect()
    }
}

/// One connection with one request in flight.
struct FailoverClient<'a> {
    load: &'a FailoverLoad<'a>,
    keys: Vec<usize>,
    is_writer: bool,
    schedule: Schedule,
    random: Random,
    connection: Option<RespClient>,
    /// The last number that it wrote.
    last: u64,
}

impl FailoverClient<'_> {
    fn run(mut self) -> Vec<LoggedRequest> {
        let mut asked = Vec::new();
        if self.keys.is_empty() {
            return asked;
        }
        while !self.load.over.load(Ordering::Relaxed) {
            let now = clock_ns();
            match self.schedule.take(now) {
                Some(due_ns) => asked.push(self.ask(due_ns)),
                None => {
                    let left = self.schedule.due_ns().saturating_sub(now);
                    thread::sleep(Duration::from_nanos(left).min(LOOK_UP));
                }
            }
        }
        asked
    }

    fn ask(&mut self, due_ns: u64) -> LoggedRequest {
        let key = self.keys[self.random.below(self.keys.len() as u64) as usize];
        let name = &self.load.keys[key].name;
        let reply = if self.is_writer {
            self.last += 1;
            exchange(
                &mut self.connection,
                self.load.address,
                &["RPUSH", name, &self.last.to_string()],
            )
        } else {
            exchange(&mut self.connection, self.load.address, &["GET", name])
        };
        let end_ns = clock_ns();
        let outcome = match reply {
            Ok(Reply::Integer(1..)) if self.is_writer => RequestOutcome::Done,
            Ok(Reply::Bulk(value)) if !self.is_writer && value == name.as_bytes() => {
                RequestOutcome::Done
            }
            Ok(Reply::Error(text)) => {
                let kind = kind_of(&text).to_owned();
                RequestOutcome::Failed { kind, text }
            }
            Ok(Reply::Null) if !self.is_writer => failed("nil", "there was no value"),
            Ok(other) => RequestOutcome::Wrong(format!("{name}: {other:?}")),
            Err(error) => {
                self.connection = None;
                match error.kind() {
                    io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                        failed("timeout", &error.to_string())
                    }
                    io::ErrorKind::ConnectionRefused => {
                        thread::sleep(NOT_LET_IN);
                        failed("closed", &error.to_string())
                    }
                    _ => failed("closed", &error.to_string()),
                }
            }
        };
        LoggedRequest {
            key,
            written: self.is_writer.then_some(self.last),
            due_ns,
            end_ns,
            outcome,
        }
    }
}

fn failed(kind: &str, text: &str) -> RequestOutcome {
    RequestOutcome::Failed {
        kind: kind.to_owned(),
        text: text.to_owned(),
    }
}

fn exchange(
    connection: &mut Option<RespClient>,
    address: SocketAddr,
    args: &[&str],
) -> io::Result<Reply> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(RespClient::open(address, PATIENCE)?),
    };
    connection.ask(args)
}

/// Writes every key once: a string gets its own name, a list a zero.
///
/// # Errors
/// When a write is refused.
pub fn write_first(address: SocketAddr, keys: &[LoadKey]) -> io::Result<()> {
    let mut connection = RespClient::open(address, PATIENCE)?;
    for key in keys {
        match key.is_written {
            true => connection.ask_ok(&["RPUSH", &key.name, "0"])?,
            false => connection.ask_ok(&["SET", &key.name, &key.name])?,
        };
    }
    Ok(())
}

/// Asks all candidates by turns until one of them takes a write, or the round is over. Returns when
/// one did.
pub fn probe(candidates: &[SocketAddr], key: &str, over: &AtomicBool) -> Option<u64> {
    let is_taken = |reply: &Reply| *reply == Reply::ok();
    ask_until(candidates, &["SET", key, "probe"], is_taken, over)
}

/// Asks all Sentinels by turns until one of them names a candidate, or the round is over. Returns
/// when one did.
pub fn named(
    sentinels: &[SocketAddr],
    candidates: &[SocketAddr],
    over: &AtomicBool,
) -> Option<u64> {
    let is_candidate = |reply: &Reply| {
        let Reply::Array(words) = reply else {
            return false;
        };
        let port = words.get(1).and_then(Reply::text);
        let mut ports = candidates
            .iter()
            .map(|candidate| candidate.port().to_string());
        ports.any(|candidate| port == Some(candidate.as_bytes()))
    };
    let args = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", WATCHED];
    ask_until(sentinels, &args, is_candidate, over)
}

/// Asks all addresses by turns until one gives the expected reply, or the round is over. Without
/// addresses it returns at once.
fn ask_until(
    asked: &[SocketAddr],
    args: &[&str],
    is_it: impl Fn(&Reply) -> bool,
    over: &AtomicBool,
) -> Option<u64> {
    let mut connections: Vec<Option<RespClient>> = asked.iter().map(|_| None).collect();
    while !asked.is_empty() && !over.load(Ordering::Relaxed) {
        for (address, connection) in asked.iter().zip(&mut connections) {
            if connection.is_none() {
                *connection = RespClient::open(*address, PROBE_PATIENCE).ok();
            }
            let Some(open) = connection else { continue };
            match open.ask(args) {
                Ok(reply) if is_it(&reply) => return Some(clock_ns()),
                Ok(_) => {}
                Err(_) => *connection = None,
            }
        }
        thread::sleep(PROBE);
    }
    None
}

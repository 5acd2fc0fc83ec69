//! Concurrent clients write and read a few keys, and what they were answered is checked: there must be an order
//! in which one server could have given these answers ([`register`]).
//!
//! Everything that may leave as one is there: reads of the same key by many clients at once, some of them twice in
//! one write, plain writes between them, reads that nobody answers with a value because there is none or because
//! it is no string. The answer to a read of the wrong type is always an error, and to one of nothing always nil:
//! a single other one is a contradiction.

pub mod register;

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::differ::random::Random;
use crate::load::clock_ns;
use crate::reply::ReplyScanner;
use crate::tape::write_bulk;

use register::{Operation, UNWRITTEN};

/// What is asked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Of the first round; the next one has the next.
    pub seed: u64,
    /// Connections, each with a thread of its own; every second one speaks RESP3.
    pub clients: usize,
    /// Most requests that a client sends in one write.
    pub pipeline: usize,
    /// Keys that are written and read. The fewer, the more of what is asked at one moment is about the same one.
    pub keys: usize,
    /// Keys that hold no string, as many that do not exist, and one in how many reads is of these.
    pub odd_keys: usize,
    /// See `odd_keys`.
    pub one_odd_in: usize,
    /// Requests in all.
    pub requests: u64,
    /// Time between two moments at which all connections to the server are cut.
    pub cuts: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            seed: 1,
            clients: 16,
            pipeline: 20,
            keys: 24,
            odd_keys: 8,
            one_odd_in: 64,
            requests: 500_000,
            cuts: None,
        }
    }
}

/// Requests of a round: as many as are held in memory and checked together.
const ROUND: u64 = 250_000;
/// Contradictions that are told.
const TOLD_MAX: usize = 10;
/// How long a client waits for a reply.
const PATIENCE: Duration = Duration::from_secs(30);
const WRONG_TYPE: &[u8] = b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Requests that were answered, by what they asked.
    pub answered: BTreeMap<&'static str, u64>,
    /// Errors that say that the connection to the server was lost.
    pub failed: u64,
    /// What no server could have answered.
    pub contradictions: Vec<String>,
}

impl Report {
    fn add(&mut self, other: Report) {
        for (asked, count) in other.answered {
            *self.answered.entry(asked).or_default() += count;
        }
        self.failed += other.failed;
        self.contradictions.extend(other.contradictions);
        self.contradictions.truncate(TOLD_MAX);
    }

    /// Requests that were answered.
    pub fn requests(&self) -> u64 {
        self.answered.values().sum()
    }
}

/// Asks at `address`, of which `server` is the only server, and is emptied first.
///
/// # Errors
/// When a connection cannot be made or ends, or no reply comes.
pub fn run(
    settings: &Settings,
    address: SocketAddr,
    server: SocketAddr,
    tell: &mut dyn FnMut(&str),
) -> Result<Report, String> {
    let mut direct = Connection::open(server).map_err(|error| format!("{server}: {error}"))?;
    let mut before = request(&[b"FLUSHALL"]);
    for key in 0..settings.odd_keys {
        before.extend(request(&[b"RPUSH", &odd_key("list", key), b"element"]));
    }
    direct
        .exchange(&before, 1 + settings.odd_keys)
        .map_err(|error| format!("{server}: {error}"))?;
    let mut report = Report::default();
    let mut round = 0;
    while report.requests() + report.failed < settings.requests && report.contradictions.is_empty()
    {
        let left = settings.requests - report.requests() - report.failed;
        report.add(run_round(
            settings,
            address,
            &mut direct,
            round,
            left.min(ROUND),
        )?);
        round += 1;
        tell(&format!(
            "{} requests answered, {} not",
            report.requests(),
            report.failed
        ));
    }
    Ok(report)
}

fn run_round(
    settings: &Settings,
    address: SocketAddr,
    direct: &mut Connection,
    round: u64,
    requests: u64,
) -> Result<Report, String> {
    let each = requests.div_ceil(settings.clients as u64);
    let over = AtomicBool::new(false);
    let (asked, cut) = thread::scope(|scope| {
        let clients: Vec<_> = (0..settings.clients as u64)
            .map(|number| {
                let client = Client {
                    settings,
                    number,
                    round,
                    random: Random::new((settings.seed + round) << 16 | number),
                    values: 0,
                    asked: Asked::default(),
                };
                scope.spawn(move || client.run(address, each))
            })
            .collect();
        let cutter = scope.spawn(|| cut(settings.cuts, direct, &over));
        let join = |client: thread::ScopedJoinHandle<'_, Result<Asked, String>>| {
            client.join().map_err(|_| "a client panicked".to_owned())?
        };
        let asked: Result<Vec<Asked>, String> = clients.into_iter().map(join).collect();
        over.store(true, Ordering::Relaxed);
        (asked, cutter.join())
    });
    cut.map_err(|_| "the cutter panicked".to_owned())??;
    let mut report = Report::default();
    // Of each key what each client did to it, in the order in which it asked.
    let mut by_key: HashMap<usize, Vec<Vec<Operation>>> = HashMap::new();
    for (client, asked) in asked?.into_iter().enumerate() {
        report.add(asked.report);
        for (key, operation) in asked.operations {
            let of_key = by_key.entry(key).or_default();
            of_key.resize(settings.clients, Vec::new());
            of_key[client].push(operation);
        }
    }
    for (key, clients) in by_key {
        let checked = register::check(&clients.concat());
        if let Err(why) = checked.and_then(|()| register::check_order(&clients)) {
            let why = format!("round {round}, key {key}: {why}");
            report.contradictions.push(why);
        }
    }
    report.contradictions.truncate(TOLD_MAX);
    Ok(report)
}

/// Cuts all connections of the server but ours, now and then.
fn cut(every: Option<Duration>, direct: &mut Connection, over: &AtomicBool) -> Result<(), String> {
    let Some(every) = every else {
        return Ok(());
    };
    let kill = request(&[b"CLIENT", b"KILL", b"TYPE", b"normal", b"SKIPME", b"yes"]);
    while !over.load(Ordering::Relaxed) {
        thread::sleep(every);
        direct
            .exchange(&kill, 1)
            .map_err(|error| format!("CLIENT KILL: {error}"))?;
    }
    Ok(())
}

/// What one client asked in a round, and was answered.
#[derive(Default)]
struct Asked {
    operations: Vec<(usize, Operation)>,
    report: Report,
}

/// One request of a client, until it is answered.
enum Ask {
    Write {
        key: usize,
        value: u64,
        kind: &'static str,
    },
    Read {
        key: usize,
        kind: &'static str,
    },
    ReadTwo {
        keys: [usize; 2],
    },
    WrongType,
    Missing,
}

/// What the requests of one write are: where GETs stand between other requests, few may leave together.
#[derive(Clone, Copy)]
enum Of {
    Everything,
    Gets,
    Sets,
}

/// Each as often as it stands here.
const WRITES: [Of; 6] = [
    Of::Everything,
    Of::Everything,
    Of::Gets,
    Of::Gets,
    Of::Gets,
    Of::Sets,
];

struct Client<'a> {
    settings: &'a Settings,
    number: u64,
    round: u64,
    random: Random,
    values: u64,
    asked: Asked,
}

impl Client<'_> {
    fn run(mut self, address: SocketAddr, requests: u64) -> Result<Asked, String> {
        let lost = |error: std::io::Error| format!("client {}: {error}", self.number);
        let mut connection = Connection::open(address).map_err(lost)?;
        if self.number % 2 == 1 {
            let hello = request(&[b"HELLO", b"3"]);
            let replies = connection.exchange(&hello, 1).map_err(lost)?;
            if replies[0].1.first() != Some(&b'%') {
                let said = String::from_utf8_lossy(&replies[0].1);
                return Err(format!("HELLO 3 was answered with {said}"));
            }
        }
        let mut done = 0;
        while done < requests {
            let count = 1 + self.random.below(self.settings.pipeline);
            let mut bytes = Vec::new();
            let of = *self.random.pick(&WRITES);
            let asks: Vec<Ask> = (0..count).map(|_| self.ask(of, &mut bytes)).collect();
            let start = clock_ns();
            let lost = |error: std::io::Error| format!("client {}: {error}", self.number);
            let replies = connection.exchange(&bytes, count).map_err(lost)?;
            for (ask, (end, reply)) in asks.into_iter().zip(replies) {
                self.take(ask, start, end, &reply);
            }
            done += count as u64;
        }
        Ok(self.asked)
    }

    fn ask(&mut self, of: Of, out: &mut Vec<u8>) -> Ask {
        let key = self.random.below(self.settings.keys);
        let name = register_key(self.round, key);
        if self.random.one_in(self.settings.one_odd_in) {
            let odd = self.random.below(self.settings.odd_keys);
            let (kind, ask) = match self.random.one_in(2) {
                true => ("list", Ask::WrongType),
                false => ("none", Ask::Missing),
            };
            out.extend(request(&[b"GET", &odd_key(kind, odd)]));
            return ask;
        }
        let chosen = match of {
            Of::Everything => self.random.below(16),
            Of::Sets => 0,
            Of::Gets => 7,
        };
        match chosen {
            0..=4 => {
                self.values += 1;
                let value = (self.number + 1) << 40 | self.values;
                let text = value.to_string();
                let plain: [&[u8]; 3] = [b"SET", &name, text.as_bytes()];
                let kind = if self.random.one_in(8) {
                    out.extend(request(&[plain.as_slice(), &[b"EX", b"1000"]].concat()));
                    "SET with options"
                } else {
                    out.extend(request(&plain));
                    "SET"
                };
                Ask::Write { key, value, kind }
            }
            5 => {
                out.extend(request(&[b"GETRANGE", &name, b"0", b"-1"]));
                let kind = "GETRANGE";
                Ask::Read { key, kind }
            }
            6 => {
                let other = self.random.below(self.settings.keys);
                out.extend(request(&[b"MGET", &name, &register_key(self.round, other)]));
                let keys = [key, other];
                Ask::ReadTwo { keys }
            }
            _ => {
                out.extend(request(&[b"GET", &name]));
                let kind = "GET";
                Ask::Read { key, kind }
            }
        }
    }

    fn take(&mut self, ask: Ask, start: u64, end: u64, reply: &[u8]) {
        let lost = self.settings.cuts.is_some()
            && (reply.starts_with(b"-NOTSENT ") || reply.starts_with(b"-UNKNOWN "));
        if lost {
            self.asked.report.failed += 1;
            if let (Ask::Write { key, value, .. }, false) = (ask, reply.starts_with(b"-NOTSENT ")) {
                let end = u64::MAX;
                self.note(
                    key,
                    Operation {
                        start,
                        end,
                        value,
                        writes: true,
                    },
                );
            }
            return;
        }
        let kind = match ask {
            Ask::Write { key, value, kind } if reply == b"+OK\r\n" => {
                self.note(
                    key,
                    Operation {
                        start,
                        end,
                        value,
                        writes: true,
                    },
                );
                kind
            }
            Ask::Read { key, kind } if let Some((value, b"")) = value_of(reply) => {
                self.note(
                    key,
                    Operation {
                        start,
                        end,
                        value,
                        writes: false,
                    },
                );
                kind
            }
            Ask::ReadTwo { keys: [one, other] }
                if let Some((first, rest)) = reply.strip_prefix(b"*2\r\n").and_then(value_of)
                    && let Some((second, b"")) = value_of(rest) =>
            {
                for (key, value) in [(one, first), (other, second)] {
                    self.note(
                        key,
                        Operation {
                            start,
                            end,
                            value,
                            writes: false,
                        },
                    );
                }
                "MGET"
            }
            Ask::WrongType if reply == WRONG_TYPE => "GET of a list",
            Ask::Missing if reply == b"$-1\r\n" || reply == b"_\r\n" => "GET of nothing",
            Ask::Write { kind, .. } | Ask::Read { kind, .. } => return self.wrong(kind, reply),
            Ask::ReadTwo { .. } => return self.wrong("MGET", reply),
            Ask::WrongType => return self.wrong("GET of a list", reply),
            Ask::Missing => return self.wrong("GET of nothing", reply),
        };
        *self.asked.report.answered.entry(kind).or_default() += 1;
    }

    fn note(&mut self, key: usize, operation: Operation) {
        self.asked.operations.push((key, operation));
    }

    fn wrong(&mut self, kind: &'static str, reply: &[u8]) {
        *self.asked.report.answered.entry(kind).or_default() += 1;
        let contradictions = &mut self.asked.report.contradictions;
        if contradictions.len() < TOLD_MAX {
            let shown = String::from_utf8_lossy(&reply[..reply.len().min(200)]).into_owned();
            contradictions.push(format!("{kind} was answered with {shown:?}"));
        }
    }
}

/// The value that a reply begins with, and what follows it. A range of nothing is empty.
fn value_of(reply: &[u8]) -> Option<(u64, &[u8])> {
    for nothing in [b"$-1\r\n".as_slice(), b"_\r\n", b"$0\r\n\r\n"] {
        if let Some(rest) = reply.strip_prefix(nothing) {
            return Some((UNWRITTEN, rest));
        }
    }
    let text = std::str::from_utf8(reply).ok()?;
    let (length, rest) = text.strip_prefix('$')?.split_once("\r\n")?;
    let (value, rest) = rest.split_at_checked(length.parse().ok()?)?;
    Some((value.parse().ok()?, rest.strip_prefix("\r\n")?.as_bytes()))
}

fn register_key(round: u64, key: usize) -> Vec<u8> {
    format!("register:{round}:{key}").into_bytes()
}

fn odd_key(kind: &str, key: usize) -> Vec<u8> {
    format!("{kind}:{key}").into_bytes()
}

fn request(args: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        write_bulk(&mut out, arg);
    }
    out
}

/// A connection that waits for what it asked.
struct Connection {
    stream: TcpStream,
    scanner: ReplyScanner,
}

impl Connection {
    fn open(address: SocketAddr) -> std::io::Result<Connection> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let scanner = ReplyScanner::default();
        Ok(Connection { stream, scanner })
    }

    /// Sends requests; returns their replies, each with the time at which it was there.
    fn exchange(&mut self, bytes: &[u8], count: usize) -> std::io::Result<Vec<(u64, Vec<u8>)>> {
        self.stream.write_all(bytes)?;
        let mut replies = Vec::with_capacity(count);
        let mut reply = Vec::new();
        let mut buffer = [0; 16 << 10];
        while replies.len() < count {
            let length = self.stream.read(&mut buffer)?;
            let now = clock_ns();
            if length == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            let mut rest = &buffer[..length];
            while !rest.is_empty() {
                let malformed = |_| std::io::Error::other("a reply that is none");
                let end = self.scanner.feed(rest).map_err(malformed)?;
                let (own, behind) = rest.split_at(end.unwrap_or(rest.len()));
                reply.extend_from_slice(own);
                rest = behind;
                if end.is_some() {
                    replies.push((now, std::mem::take(&mut reply)));
                }
            }
        }
        if replies.len() > count || !reply.is_empty() {
            return Err(std::io::Error::other("more replies than requests"));
        }
        Ok(replies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_from_both_versions_of_the_protocol() {
        assert_eq!(value_of(b"$2\r\n17\r\n"), Some((17, &b""[..])));
        assert_eq!(
            value_of(b"$-1\r\n$1\r\n5\r\n"),
            Some((0, &b"$1\r\n5\r\n"[..]))
        );
        assert_eq!(value_of(b"_\r\n"), Some((0, &b""[..])));
        assert_eq!(value_of(b"$0\r\n\r\n"), Some((0, &b""[..])));
        for other in [
            &b"+OK\r\n"[..],
            b"$1\r\nx\r\n",
            b"$3\r\n17\r\n",
            b"-ERR\r\n",
            b"",
        ] {
            assert_eq!(value_of(other), None);
        }
    }
}

//! Concurrent clients write and read a few keys, and what they were answered is checked: there must be an order
//! in which one server could have given these answers ([`register`]).
//!
//! Everything that may leave as one is there: reads of the same key by many clients at once, some of them twice in
//! one write, plain writes between them, reads that nobody answers with a value because there is none or because
//! it is no string. The answer to a read of the wrong type is always an error, and to one of nothing always nil:
//! a single other one is a contradiction.

pub mod register;
pub mod trouble;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::differ::random::Random;
use crate::load::clock_ns;
use crate::reply::ReplyScanner;
use crate::tape::write_bulk;

use register::{Contradiction, Operation, UNWRITTEN};

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
    /// Whether a request may be answered with what became of it, since a connection or a server is lost.
    pub may_fail: bool,
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
            may_fail: false,
        }
    }
}

/// Requests of a round: as many as are held in memory and checked together.
const ROUND: u64 = 250_000;
/// Contradictions that are told.
const TOLD_MAX: usize = 10;
/// Lines that tell what was done with the values of a contradiction.
const OF_STORY: usize = 40;
/// How long a client waits for a reply.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long clients ask before the trouble begins and when it is over.
const AROUND: Duration = Duration::from_millis(500);
/// Requests that each client was answered when the trouble is over, however slow the machine.
const ANSWERED_EACH: u64 = 320;
/// How long a client thinks while there is trouble: what it asks meanwhile is held in memory, and who causes the trouble
/// needs the cores, too.
const THOUGHT: Duration = Duration::from_millis(2);
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
    /// Keys of which an heir did not have what had been acknowledged last: lost by the servers.
    pub lost: u64,
}

/// A server is gone, and the one that takes its place has what it has of it.
#[derive(Clone, Debug, Default)]
pub struct Inherited {
    /// A moment at which the one no longer answered, and the other one did not yet: nanoseconds of [`clock_ns`].
    pub at: u64,
    /// What the heir had then of each of the keys.
    pub values: BTreeMap<usize, u64>,
}

impl Report {
    fn add(&mut self, other: Report) {
        for (asked, count) in other.answered {
            *self.answered.entry(asked).or_default() += count;
        }
        self.failed += other.failed;
        self.lost += other.lost;
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
    prepare(settings, &mut direct).map_err(|error| format!("{server}: {error}"))?;
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

/// Asks at `address`, which is emptied first, for as long as `trouble` takes with the servers behind it. It returns who has
/// inherited what; the keys that have none are checked as those of a server that never fails.
///
/// # Errors
/// When a connection cannot be made or ends, no reply comes, or the trouble could not be caused.
pub fn run_through(
    settings: &Settings,
    address: SocketAddr,
    trouble: impl FnOnce() -> Result<Vec<Inherited>, String>,
) -> Result<Report, String> {
    let prepared = Connection::open(address).and_then(|mut first| prepare(settings, &mut first));
    prepared.map_err(|error| format!("{address}: {error}"))?;
    let over = AtomicBool::new(false);
    let (asked, inherited) = thread::scope(|scope| {
        let clients = Client::all(settings, 0).map(|client| {
            let until = Until::Over(&over);
            scope.spawn(move || client.run(address, until))
        });
        let clients: Vec<_> = clients.collect();
        thread::sleep(AROUND);
        // Should it panic, the clients have to end all the same.
        let troubled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(trouble));
        thread::sleep(AROUND);
        over.store(true, Ordering::Relaxed);
        let asked: Result<Vec<Asked>, String> = clients.into_iter().map(join).collect();
        (asked, troubled)
    });
    let inherited = inherited.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    Ok(judge(settings, 0, asked?, &inherited))
}

/// Empties whatever is there, and writes the keys that hold no string.
fn prepare(settings: &Settings, connection: &mut Connection) -> std::io::Result<()> {
    let mut before = request(&[b"FLUSHALL"]);
    for key in 0..settings.odd_keys {
        before.extend(request(&[b"RPUSH", &odd_key("list", key), b"element"]));
    }
    connection
        .exchange(&before, 1 + settings.odd_keys)
        .map(drop)
}

fn join(client: thread::ScopedJoinHandle<'_, Result<Asked, String>>) -> Result<Asked, String> {
    client.join().map_err(|_| "a client panicked".to_owned())?
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
        let clients = Client::all(settings, round)
            .map(|client| scope.spawn(move || client.run(address, Until::Asked(each))));
        let clients: Vec<_> = clients.collect();
        let cutter = scope.spawn(|| cut(settings.cuts, direct, &over));
        let asked: Result<Vec<Asked>, String> = clients.into_iter().map(join).collect();
        over.store(true, Ordering::Relaxed);
        (asked, cutter.join())
    });
    cut.map_err(|_| "the cutter panicked".to_owned())??;
    Ok(judge(settings, round, asked?, &[]))
}

/// Looks for contradictions in all that was asked in a round.
fn judge(settings: &Settings, round: u64, asked: Vec<Asked>, inherited: &[Inherited]) -> Report {
    let mut report = Report::default();
    // Of each key what each client did to it, in the order in which it asked.
    let mut by_key: HashMap<usize, Vec<Vec<Operation>>> = HashMap::new();
    let mut unsent = Vec::new();
    for (client, asked) in asked.into_iter().enumerate() {
        report.add(asked.report);
        unsent.extend(asked.unsent.into_iter().map(|one| (client, one)));
        for (key, operation) in asked.operations {
            let of_key = by_key.entry(key).or_default();
            of_key.resize(settings.clients, Vec::new());
            of_key[client].push(operation);
        }
    }
    for (key, clients) in by_key {
        let mut heirs = inherited.iter();
        let heir = heirs.find_map(|heir| heir.values.get(&key).map(|value| (heir.at, *value)));
        let checked = match heir {
            None => check_whole(&clients),
            Some((at, value)) => {
                report.lost += u64::from(is_lost(&clients, at, value));
                check_handed_on(&clients, at, value)
            }
        };
        if let Err(why) = checked {
            let story = story(&clients, &unsent, why.values(), heir);
            let why = format!("round {round}, key {key}: {why}{story}");
            report.contradictions.push(why);
        }
    }
    report.contradictions.truncate(TOLD_MAX);
    report
}

/// Who wrote and read these values, and when: a line each, in milliseconds since the first of them.
fn story(
    clients: &[Vec<Operation>],
    unsent: &[(usize, Operation)],
    values: Vec<u64>,
    heir: Option<(u64, u64)>,
) -> String {
    let answered = clients.iter().enumerate();
    let answered = answered.flat_map(|(client, all)| all.iter().map(move |one| (client, *one, "")));
    let unsent = unsent
        .iter()
        .map(|(client, one)| (*client, *one, " NOTSENT"));
    let is_told = |(_, one, _): &(usize, Operation, &str)| {
        values.contains(&one.value) && one.value != UNWRITTEN
    };
    let mut told: Vec<_> = answered.chain(unsent).filter(is_told).collect();
    told.sort_by_key(|(_, one, _)| one.start);
    let first = told.first().map_or(0, |(_, one, _)| one.start);
    let ms = |time: u64| (time as f64 - first as f64) / 1e6;
    let mut story = String::new();
    if let Some((at, value)) = heir {
        let _ = write!(story, "\n  the heir had {value} at {:.3} ms", ms(at));
    }
    for (client, one, fate) in told.iter().take(OF_STORY) {
        let did = if one.writes { "wrote" } else { "read" };
        let end = match one.end {
            u64::MAX => "UNKNOWN".to_owned(),
            end => format!("{:.3} ms{fate}", ms(end)),
        };
        let _ = write!(
            story,
            "\n  client {client} {did} {} from {:.3} to {end}",
            one.value,
            ms(one.start)
        );
    }
    story
}

fn check_whole(clients: &[Vec<Operation>]) -> Result<(), Contradiction> {
    register::check(&clients.concat())?;
    register::check_order(clients)
}

/// Two histories, one behind the other: that of the server that is gone, and that of its heir, which begins with what it had.
/// What was acknowledged and not handed on is missing in the second one, and nothing else may be.
fn check_handed_on(clients: &[Vec<Operation>], at: u64, value: u64) -> Result<(), Contradiction> {
    let [before, mut behind] = divide(clients, at, value);
    check_whole(&before)?;
    // What the heir has, somebody had begun to write.
    let mut begun = clients
        .iter()
        .flatten()
        .filter(|one| one.writes && one.start <= at);
    if value != UNWRITTEN && !begun.any(|one| one.value == value) {
        return Err(Contradiction::FromNowhere(value));
    }
    if value != UNWRITTEN {
        let (start, end, writes) = (at, at, true);
        behind.push(vec![Operation {
            start,
            end,
            value,
            writes,
        }]);
    }
    check_whole(&behind)
}

/// What was done on the server that is gone, and what on its heir, which had `value` at this moment.
///
/// An answer that came behind that moment may be of the first all the same: it waited for one to an earlier request of
/// its client. Such a write was the first's if somebody had read it by then or the heir has it, such a read if the
/// second could not have answered so.
fn divide(clients: &[Vec<Operation>], at: u64, value: u64) -> [Vec<Vec<Operation>>; 2] {
    let all = || clients.iter().flatten();
    let read = all().filter(|one| !one.writes && one.end <= at);
    let mut seen: HashSet<u64> = read.map(|one| one.value).collect();
    seen.insert(value);
    let is_firsts_write =
        |one: &Operation| one.end <= at || one.start <= at && seen.contains(&one.value);
    let seconds = all().filter(|one| one.writes && !is_firsts_write(one));
    let mut answers: HashSet<u64> = seconds.map(|one| one.value).collect();
    answers.insert(value);
    let is_firsts = |one: &Operation| match one.writes {
        true => is_firsts_write(one),
        false => one.end <= at || one.start <= at && !answers.contains(&one.value),
    };
    let of = |first: bool| {
        let part = |client: &Vec<Operation>| {
            let its = client.iter().filter(|one| is_firsts(one) == first);
            let latest = if first { at } else { u64::MAX };
            let done = |one: &Operation| Operation {
                end: one.end.min(latest),
                ..*one
            };
            its.map(done).collect()
        };
        clients.iter().map(part).collect()
    };
    [of(true), of(false)]
}

/// Whether the heir lacks something that was acknowledged: with what it had read at that moment, there is no order.
fn is_lost(clients: &[Vec<Operation>], at: u64, value: u64) -> bool {
    let [before, _] = divide(clients, at, value);
    let mut before = before.concat();
    let (start, end, writes) = (at, at, false);
    before.push(Operation {
        start,
        end,
        value,
        writes,
    });
    register::check(&before).is_err()
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
    /// Writes that, so it was said, were not executed.
    unsent: Vec<Operation>,
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

/// How long a client goes on.
#[derive(Clone, Copy)]
enum Until<'a> {
    /// Until it has asked so much.
    Asked(u64),
    /// Until this is set, and it was answered often enough to show something.
    Over(&'a AtomicBool),
}

impl<'a> Client<'a> {
    /// All clients of a round.
    fn all(settings: &'a Settings, round: u64) -> impl Iterator<Item = Client<'a>> {
        (0..settings.clients as u64).map(move |number| Client {
            settings,
            number,
            round,
            random: Random::new((settings.seed + round) << 16 | number),
            values: 0,
            asked: Asked::default(),
        })
    }

    fn run(mut self, address: SocketAddr, until: Until<'_>) -> Result<Asked, String> {
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
        loop {
            match until {
                Until::Asked(requests) if done >= requests => break,
                Until::Over(over)
                    if over.load(Ordering::Relaxed)
                        && self.asked.report.requests() >= ANSWERED_EACH =>
                {
                    break;
                }
                Until::Asked(_) => {}
                Until::Over(_) => thread::sleep(THOUGHT),
            }
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
        let lost = (self.settings.cuts.is_some() || self.settings.may_fail)
            && (is_unsent(reply) || reply.starts_with(b"-UNKNOWN "));
        if lost {
            self.asked.report.failed += 1;
            if let Ask::Write { key, value, .. } = ask {
                let is_unsent = is_unsent(reply);
                let write = Operation {
                    start,
                    end: if is_unsent { end } else { u64::MAX },
                    value,
                    writes: true,
                };
                match is_unsent {
                    true => self.asked.unsent.push(write),
                    false => self.note(key, write),
                }
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

/// The name of a key that is written and read.
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

/// Whether respool says that the request was not executed.
fn is_unsent(reply: &[u8]) -> bool {
    const CODES: [&[u8]; 3] = [
        b"-NOTSENT ",
        b"-LOADING respool: the command was not executed; ",
        b"-TRYAGAIN respool: the command was not executed; ",
    ];
    CODES.iter().any(|code| reply.starts_with(code))
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

    fn did(writes: bool, value: u64, start: u64, end: u64) -> Operation {
        Operation {
            start,
            end,
            value,
            writes,
        }
    }

    #[test]
    fn what_was_not_handed_on_may_be_missing_and_is_counted() {
        let mut client = vec![did(true, 1, 10, 20), did(true, 2, 30, 40)];
        // The heir is there from 100 on, and had 1.
        assert!(is_lost(&[client.clone()], 100, 1));
        client.push(did(false, 1, 110, 120));
        assert_eq!(check_handed_on(&[client.clone()], 100, 1), Ok(()));
        assert!(!is_lost(&[client], 100, 2));
    }

    #[test]
    fn nothing_else_may_be_missing_and_nothing_comes_back() {
        let before = [did(true, 1, 10, 20), did(true, 2, 30, 40)];
        let found = |heir: u64, behind: &[Operation]| {
            check_handed_on(&[[&before, behind].concat()], 100, heir).is_err()
        };
        // It had 2; then it has 1, or nothing. It had 1; then 2 was written again.
        assert!(found(2, &[did(false, 1, 110, 120)]));
        assert!(found(2, &[did(false, UNWRITTEN, 110, 120)]));
        assert!(found(
            1,
            &[did(false, 1, 110, 120), did(false, 2, 130, 140)]
        ));
        // Nobody had begun to write it.
        assert!(found(3, &[]));
        // What it has acknowledged itself is not missing any more.
        let behind = [did(true, 5, 110, 120), did(false, 2, 130, 140)];
        assert!(found(2, &behind));
        assert!(!found(2, &behind[..1]));
    }

    #[test]
    fn an_answer_that_had_to_wait_for_an_earlier_one_may_be_of_the_server_that_is_gone() {
        let before = [did(true, 1, 10, 20), did(true, 2, 30, 40)];
        let found = |held: &[Operation]| {
            check_handed_on(&[before.to_vec(), held.to_vec()], 100, 1).is_err()
        };
        // What was read there, and what was written there and read by others.
        assert!(!found(&[did(false, 2, 35, 150)]));
        assert!(!found(&[did(true, 3, 35, 150), did(false, 3, 35, 150)]));
        let other = [
            before.to_vec(),
            vec![did(true, 3, 45, 150)],
            vec![did(false, 3, 50, 60)],
        ];
        assert_eq!(check_handed_on(&other, 100, 1), Ok(()));
        // It was overwritten before they asked, or asked of the heir.
        assert!(found(&[did(true, 3, 50, 60), did(false, 2, 70, 150)]));
        assert!(found(&[did(false, 2, 101, 150)]));
        // What the heir had not got does not come back.
        let mut again = other.to_vec();
        again.push(vec![did(false, 3, 110, 120)]);
        assert!(check_handed_on(&again, 100, 1).is_err());
    }

    #[test]
    fn of_what_nobody_answered_either_may_be_so() {
        let open = did(true, 3, 50, u64::MAX);
        let before = [did(true, 1, 10, 20), open];
        for (heir, read) in [(1, 1), (3, 3)] {
            let client = [&before[..], &[did(false, read, 110, 120)]].concat();
            assert_eq!(check_handed_on(&[client], 100, heir), Ok(()));
        }
        let client = [&before[..], &[did(false, 1, 110, 120)]].concat();
        assert!(check_handed_on(&[client], 100, 3).is_err());
    }
}

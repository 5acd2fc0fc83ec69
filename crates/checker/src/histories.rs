//! Concurrent clients write and read a few keys, and their replies are checked: there must be an
//! order in which one server could have given them ([`register`]).
//!
//! The load has all that coalescing may join: reads of one key by many clients at once, some of
//! them twice in one write, and plain writes between them. It also has reads of missing keys and of
//! keys that hold no string. A read of the wrong type must give an error, and a read of a missing
//! key a null: any other reply is a contradiction.

pub mod register;
pub mod trouble;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use respool_testkit::client::{self, RespClient};
use respool_testkit::random::Random;
use respool_testkit::time::clock_ns;

use register::{Contradiction, Operation, UNWRITTEN};

/// The load, and the faults that it may meet.
#[derive(Clone, Debug)]
pub struct HistorySettings {
    /// Seed of the first round; the next round has the next seed.
    pub seed: u64,
    /// Connections, each with a thread of its own; every second one speaks RESP3.
    pub clients: usize,
    /// Most requests that a client sends in one write.
    pub pipeline: usize,
    /// Keys that are written and read. With fewer keys, more concurrent requests share one.
    pub keys: usize,
    /// Keys that hold no string, and as many missing keys.
    pub odd_keys: usize,
    /// One in so many reads is of an odd key.
    pub one_odd_in: usize,
    /// Requests in all.
    pub requests: u64,
    /// Time between two cuts of all connections to the server; `None`: no cuts.
    pub cuts: Option<Duration>,
    /// Whether a request may fail, because a connection or a server is lost.
    pub may_fail: bool,
}

impl Default for HistorySettings {
    fn default() -> HistorySettings {
        HistorySettings {
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

/// Requests of a round: they are held in memory and checked together.
const ROUND: u64 = 250_000;
/// Contradictions in a report.
const TOLD_MAX: usize = 10;
/// Lines that show the requests around a contradiction.
const OF_STORY: usize = 40;
/// How long a client waits for a reply.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long clients run before the trouble begins and after it has ended.
const AROUND: Duration = Duration::from_millis(500);
/// Requests that each client gets answered after the trouble, however slow the machine is.
const ANSWERED_EACH: u64 = 320;
/// The pause of a client during trouble. Its requests are held in memory, and the trouble needs the
/// cores, too.
const THOUGHT: Duration = Duration::from_millis(2);
const WRONG_TYPE: &[u8] = b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";

/// The result.
#[derive(Clone, Debug, Default)]
pub struct HistoryReport {
    /// Answered requests by kind.
    pub answered: BTreeMap<&'static str, u64>,
    /// Errors that say that the connection to the server was lost.
    pub failed: u64,
    /// Replies that no server could have given.
    pub contradictions: Vec<String>,
    /// Keys whose last acknowledged write the new primary did not have: the servers lost it.
    pub lost: u64,
}

/// The data that a new primary took over from a failed one.
#[derive(Clone, Debug, Default)]
pub struct Inherited {
    /// A moment at which the failed primary no longer answered and the new one did not yet:
    /// nanoseconds of [`clock_ns`].
    pub at: u64,
    /// The value of each key at the new primary at that moment.
    pub values: BTreeMap<usize, u64>,
}

impl HistoryReport {
    fn add(&mut self, other: HistoryReport) {
        for (asked, count) in other.answered {
            *self.answered.entry(asked).or_default() += count;
        }
        self.failed += other.failed;
        self.lost += other.lost;
        self.contradictions.extend(other.contradictions);
        self.contradictions.truncate(TOLD_MAX);
    }

    /// Answered requests.
    pub fn requests(&self) -> u64 {
        self.answered.values().sum()
    }
}

/// Runs at `address`. `server` is the only server behind it, and is emptied first.
///
/// # Errors
/// When a connection cannot be made or ends, or no reply comes.
pub fn run(
    settings: &HistorySettings,
    address: SocketAddr,
    server: SocketAddr,
    tell: &mut dyn FnMut(&str),
) -> Result<HistoryReport, String> {
    let mut direct = RespClient::open(server, PATIENCE).map_err(|error| error.to_string())?;
    prepare(settings, &mut direct).map_err(|error| format!("{server}: {error}"))?;
    let mut report = HistoryReport::default();
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

/// Runs at `address`, which is emptied first, as long as `trouble` takes with the servers behind
/// it. `trouble` returns the data that new primaries took over. All other keys are checked as those
/// of a server that never fails.
///
/// # Errors
/// When a connection cannot be made or ends, no reply comes, or the trouble could not be caused.
pub fn run_through(
    settings: &HistorySettings,
    address: SocketAddr,
    trouble: impl FnOnce() -> Result<Vec<Inherited>, String>,
) -> Result<HistoryReport, String> {
    let prepared =
        RespClient::open(address, PATIENCE).and_then(|mut first| prepare(settings, &mut first));
    prepared.map_err(|error| format!("{address}: {error}"))?;
    let over = AtomicBool::new(false);
    let (asked, inherited) = thread::scope(|scope| {
        let clients = HistoryClient::all(settings, 0).map(|client| {
            let until = Until::Over(&over);
            scope.spawn(move || client.run(address, until))
        });
        let clients: Vec<_> = clients.collect();
        thread::sleep(AROUND);
        // The clients must end, also when it panics.
        let troubled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(trouble));
        thread::sleep(AROUND);
        over.store(true, Ordering::Relaxed);
        let asked: Result<Vec<ClientHistory>, String> = clients.into_iter().map(join).collect();
        (asked, troubled)
    });
    let inherited = inherited.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    Ok(judge(settings, 0, asked?, &inherited))
}

/// Empties the servers and writes the keys that hold no string.
fn prepare(settings: &HistorySettings, connection: &mut RespClient) -> io::Result<()> {
    let mut before = request(&[b"FLUSHALL"]);
    for key in 0..settings.odd_keys {
        before.extend(request(&[b"RPUSH", &odd_key("list", key), b"element"]));
    }
    exchange(connection, &before, 1 + settings.odd_keys).map(drop)
}

fn join(
    client: thread::ScopedJoinHandle<'_, Result<ClientHistory, String>>,
) -> Result<ClientHistory, String> {
    client.join().map_err(|_| "a client panicked".to_owned())?
}

fn run_round(
    settings: &HistorySettings,
    address: SocketAddr,
    direct: &mut RespClient,
    round: u64,
    requests: u64,
) -> Result<HistoryReport, String> {
    let each = requests.div_ceil(settings.clients as u64);
    let over = AtomicBool::new(false);
    let (asked, cut) = thread::scope(|scope| {
        let clients = HistoryClient::all(settings, round)
            .map(|client| scope.spawn(move || client.run(address, Until::Asked(each))));
        let clients: Vec<_> = clients.collect();
        let cutter = scope.spawn(|| cut(settings.cuts, direct, &over));
        let asked: Result<Vec<ClientHistory>, String> = clients.into_iter().map(join).collect();
        over.store(true, Ordering::Relaxed);
        (asked, cutter.join())
    });
    cut.map_err(|_| "the cutter panicked".to_owned())??;
    Ok(judge(settings, round, asked?, &[]))
}

/// Looks for contradictions in the requests of a round.
fn judge(
    settings: &HistorySettings,
    round: u64,
    asked: Vec<ClientHistory>,
    inherited: &[Inherited],
) -> HistoryReport {
    let mut report = HistoryReport::default();
    // For each key, the operations of each client in its order.
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
        let mut inherited = inherited.iter();
        let handed_on =
            inherited.find_map(|one| one.values.get(&key).map(|value| (one.at, *value)));
        let checked = match handed_on {
            None => check_whole(&clients),
            Some((at, value)) => {
                report.lost += u64::from(is_lost(&clients, at, value));
                check_handed_on(&clients, at, value)
            }
        };
        if let Err(why) = checked {
            let story = story(&clients, &unsent, why.values(), handed_on);
            let why = format!("round {round}, key {key}: {why}{story}");
            report.contradictions.push(why);
        }
    }
    report.contradictions.truncate(TOLD_MAX);
    report
}

/// The operations with these values: a line each, with milliseconds since the first of them.
fn story(
    clients: &[Vec<Operation>],
    unsent: &[(usize, Operation)],
    values: Vec<u64>,
    handed_on: Option<(u64, u64)>,
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
    if let Some((at, value)) = handed_on {
        let _ = write!(story, "\n  the new primary had {value} at {:.3} ms", ms(at));
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

/// Two histories in sequence: that of the failed primary, and that of the new one, which begins
/// with the data it took over. Acknowledged writes that were not replicated may be missing in the
/// second one, and nothing else.
fn check_handed_on(clients: &[Vec<Operation>], at: u64, value: u64) -> Result<(), Contradiction> {
    let [before, mut behind] = divide(clients, at, value);
    check_whole(&before)?;
    // A client must have begun to write the value of the new primary.
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

/// Splits the operations between the failed primary and the new one, which had `value` at this
/// moment.
///
/// A reply that came later may still be from the failed primary: it waited for the reply to an
/// earlier request of its client. Such a write belongs to the failed primary if a client had read
/// it by then, or if the new one has it. Such a read belongs there if the new primary could not
/// have given its value.
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

/// Whether the new primary lacks an acknowledged write: a read of its value at that moment leaves
/// no order.
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

/// Cuts all connections of the server but this one, now and then.
fn cut(every: Option<Duration>, direct: &mut RespClient, over: &AtomicBool) -> Result<(), String> {
    let Some(every) = every else {
        return Ok(());
    };
    let kill = request(&[b"CLIENT", b"KILL", b"TYPE", b"normal", b"SKIPME", b"yes"]);
    while !over.load(Ordering::Relaxed) {
        thread::sleep(every);
        exchange(direct, &kill, 1).map_err(|error| format!("CLIENT KILL: {error}"))?;
    }
    Ok(())
}

/// The requests of one client in a round, with their replies.
#[derive(Default)]
struct ClientHistory {
    operations: Vec<(usize, Operation)>,
    /// Writes whose errors say that they did not run.
    unsent: Vec<Operation>,
    report: HistoryReport,
}

/// One request of a client.
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

/// The mix of requests in one write. GETs between other requests leave little to fuse.
#[derive(Clone, Copy)]
enum Of {
    Everything,
    Gets,
    Sets,
}

/// Each mix as often as it stands here.
const WRITES: [Of; 6] = [
    Of::Everything,
    Of::Everything,
    Of::Gets,
    Of::Gets,
    Of::Gets,
    Of::Sets,
];

struct HistoryClient<'a> {
    settings: &'a HistorySettings,
    number: u64,
    round: u64,
    random: Random,
    values: u64,
    asked: ClientHistory,
}

/// When a client ends.
#[derive(Clone, Copy)]
enum Until<'a> {
    /// After so many requests.
    Asked(u64),
    /// When this is set and it has got enough replies to show something.
    Over(&'a AtomicBool),
}

impl<'a> HistoryClient<'a> {
    /// All clients of a round.
    fn all(settings: &'a HistorySettings, round: u64) -> impl Iterator<Item = HistoryClient<'a>> {
        (0..settings.clients as u64).map(move |number| HistoryClient {
            settings,
            number,
            round,
            random: Random::new((settings.seed + round) << 16 | number),
            values: 0,
            asked: ClientHistory::default(),
        })
    }

    fn run(mut self, address: SocketAddr, until: Until<'_>) -> Result<ClientHistory, String> {
        let lost = |error: io::Error| format!("client {}: {error}", self.number);
        let mut connection = RespClient::open(address, PATIENCE).map_err(lost)?;
        if self.number % 2 == 1 {
            let hello = request(&[b"HELLO", b"3"]);
            let replies = exchange(&mut connection, &hello, 1).map_err(lost)?;
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
            let lost = |error: io::Error| format!("client {}: {error}", self.number);
            let replies = exchange(&mut connection, &bytes, count).map_err(lost)?;
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

/// The value at the beginning of a reply, and the bytes behind it. An empty range gives none.
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
    client::request(args)
}

/// Sends requests. Returns their replies, each with the time at which it was read.
fn exchange(
    client: &mut RespClient,
    bytes: &[u8],
    count: usize,
) -> io::Result<Vec<(u64, Vec<u8>)>> {
    client.try_send(bytes)?;
    let replies: Vec<_> = (0..count)
        .map(|_| client.try_reply_bytes().map(|reply| (clock_ns(), reply)))
        .collect::<io::Result<_>>()?;
    match client.has_unread() {
        true => Err(io::Error::other("more replies than requests")),
        false => Ok(replies),
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

    /// A write that was not replicated may be missing, and is counted.
    #[test]
    fn unreplicated_write_may_be_missing_and_is_counted() {
        let mut client = vec![did(true, 1, 10, 20), did(true, 2, 30, 40)];
        // The new primary serves from 100 on, and had 1.
        assert!(is_lost(&[client.clone()], 100, 1));
        client.push(did(false, 1, 110, 120));
        assert_eq!(check_handed_on(&[client.clone()], 100, 1), Ok(()));
        assert!(!is_lost(&[client], 100, 2));
    }

    /// A replicated write may not be missing, and a lost one may not come back.
    #[test]
    fn replicated_write_may_not_be_missing() {
        let before = [did(true, 1, 10, 20), did(true, 2, 30, 40)];
        let found = |value: u64, behind: &[Operation]| {
            check_handed_on(&[[&before, behind].concat()], 100, value).is_err()
        };
        // It had 2, and later 1 or nothing. It had 1, and later 2 was written again.
        assert!(found(2, &[did(false, 1, 110, 120)]));
        assert!(found(2, &[did(false, UNWRITTEN, 110, 120)]));
        assert!(found(
            1,
            &[did(false, 1, 110, 120), did(false, 2, 130, 140)]
        ));
        // No client had begun to write it.
        assert!(found(3, &[]));
        // A write that the new primary has acknowledged is not missing.
        let behind = [did(true, 5, 110, 120), did(false, 2, 130, 140)];
        assert!(found(2, &behind));
        assert!(!found(2, &behind[..1]));
    }

    /// A reply that had to wait for an earlier one may come from the server that is gone.
    #[test]
    fn delayed_reply_may_come_from_the_lost_server() {
        let before = [did(true, 1, 10, 20), did(true, 2, 30, 40)];
        let found = |held: &[Operation]| {
            check_handed_on(&[before.to_vec(), held.to_vec()], 100, 1).is_err()
        };
        // A read at the failed primary, and a write there that others have read.
        assert!(!found(&[did(false, 2, 35, 150)]));
        assert!(!found(&[did(true, 3, 35, 150), did(false, 3, 35, 150)]));
        let other = [
            before.to_vec(),
            vec![did(true, 3, 45, 150)],
            vec![did(false, 3, 50, 60)],
        ];
        assert_eq!(check_handed_on(&other, 100, 1), Ok(()));
        // It was overwritten before they asked, or they asked the new primary.
        assert!(found(&[did(true, 3, 50, 60), did(false, 2, 70, 150)]));
        assert!(found(&[did(false, 2, 101, 150)]));
        // A value that the new primary did not have does not come back.
        let mut again = other.to_vec();
        again.push(vec![did(false, 3, 110, 120)]);
        assert!(check_handed_on(&again, 100, 1).is_err());
    }

    /// A write without a reply may have run or not.
    #[test]
    fn unanswered_write_may_have_run_or_not() {
        let open = did(true, 3, 50, u64::MAX);
        let before = [did(true, 1, 10, 20), open];
        for (value, read) in [(1, 1), (3, 3)] {
            let client = [&before[..], &[did(false, read, 110, 120)]].concat();
            assert_eq!(check_handed_on(&[client], 100, value), Ok(()));
        }
        let client = [&before[..], &[did(false, 1, 110, 120)]].concat();
        assert!(check_handed_on(&[client], 100, 3).is_err());
    }
}

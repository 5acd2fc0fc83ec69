//! The scenarios of the measurements without a socket: `speed.rs` measures their time,
//! `instructions.rs` counts their instructions, and `tests/measured.rs` checks that their requests
//! get the right replies.
//!
//! A scenario is a round that can be repeated for ever: the same bytes come in, and the same bytes
//! leave. Pieces come from `respool-protocol`. Turns drive the engine by its public surface alone.

#![allow(dead_code, reason = "no program uses all of it")]

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;

use respool_engine::settings::Aim;
use respool_engine::{Action, Engine, LinkId, SessionId, Time};
use respool_protocol::{commands, encode, fan, reply, request, slot};

#[path = "../../tests/engine/world/mod.rs"]
mod world;

/// A part of a round that is counted by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The whole round.
    Whole,
    /// From the bytes of clients to the bytes of the link: scan, route, batch.
    Requests,
    /// From the bytes of the link to the bytes of clients.
    Replies,
}

/// The function that runs the counted part, and no other code: callgrind collects only inside it.
pub(crate) const COUNTED: &str = "*scenarios::counted*";

#[inline(never)]
fn counted(what: &mut dyn FnMut()) {
    what();
}

/// Runs a part of a round, inside `counted` if this part is to be counted.
#[inline]
fn part(part: Part, to_count: Part, mut what: impl FnMut()) {
    // As a `dyn` function it is called in both cases and inlined in none. So there is one copy of
    // it, as in the program that ships, and the functions that it calls are inlined as there.
    let what: &mut dyn FnMut() = &mut what;
    let what = black_box(what);
    if part == to_count {
        counted(what)
    } else {
        what()
    }
}

/// One scenario.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Requests, replies, names or keys of a round.
    pub(crate) per_round: u32,
    /// Number of rounds that a count needs.
    pub(crate) rounds: u32,
    pub(crate) parts: &'static [Part],
    /// Prepares the scenario with this part to be counted. Returns the function that runs a round.
    pub(crate) prepare: Box<dyn Fn(Part) -> Box<dyn FnMut()> + Send + Sync>,
}

/// All scenarios.
pub(crate) fn all() -> Vec<Scenario> {
    let mut all = vec![
        scan_of_requests("request scan: GET, 1 in a buffer", Verb::Get, 1),
        scan_of_requests("request scan: GET, 20 in a buffer", Verb::Get, 20),
        scan_of_requests("request scan: SET, 1 in a buffer", Verb::Set, 1),
        scan_of_requests("request scan: SET, 20 in a buffer", Verb::Set, 20),
        scan_of_replies("reply scan: value, 1 in a buffer", Verb::Get, 1),
        scan_of_replies("reply scan: value, 20 in a buffer", Verb::Get, 20),
        scan_of_replies("reply scan: OK, 20 in a buffer", Verb::Set, 20),
        look_up_of_names("command by its name"),
        hash_of_keys("slot of a key"),
        fan_out("fan: MGET of 100 keys over 3 servers"),
    ];
    all.extend(TURNS.map(turns));
    all
}

const TURNS: [Turn; 17] = [
    Turn::of("turn: 1 client, 1 GET", 1, 1, Verb::Get),
    Turn::of("turn: 50 clients, 1 GET each", 50, 1, Verb::Get),
    Turn::of("turn: 50 clients, 20 GET each", 50, 20, Verb::Get),
    Turn::of(
        "turn: the same, keys of other lengths",
        50,
        20,
        Verb::GetOfAnyLength,
    ),
    Turn::of("turn: 50 clients, 20 SET each", 50, 20, Verb::Set),
    Turn::of("no wait: 1 client, 1 GET", 1, 1, Verb::Get).without_wait(),
    Turn::of("no wait: 50 clients, 1 GET each", 50, 1, Verb::Get).without_wait(),
    Turn::of("joined: 1 client, 1 GET", 1, 1, Verb::Get).joined(),
    Turn::of("joined: 50 clients, 1 GET each", 50, 1, Verb::Get).joined(),
    Turn::of("joined: 50 clients, 20 GET each", 50, 20, Verb::Get).joined(),
    Turn::of("joined: the same, of 700 keys", 50, 20, Verb::GetOf700).joined(),
    Turn::of("joined: 50 clients, 20 SET each", 50, 20, Verb::Set).joined(),
    Turn::of("hot keys: 50 clients, 1 GET each", 50, 1, Verb::Get).with_hot_keys(),
    Turn::of("hot keys: 50 clients, 20 GET each", 50, 20, Verb::Get).with_hot_keys(),
    Turn::of("3 servers: 50 clients, 1 GET each", 50, 1, Verb::Get).among_three(),
    Turn::of("3 servers: 50 clients, 20 GET each", 50, 20, Verb::Get).among_three(),
    Turn::of("3 servers: 50 clients, 20 SET each", 50, 20, Verb::Set).among_three(),
];

// --- pieces ---

fn scan_of_requests(name: &'static str, verb: Verb, count: u32) -> Scenario {
    Scenario {
        name,
        per_round: count,
        rounds: 20_000 / count,
        parts: &[Part::Whole],
        prepare: Box::new(move |to_count| {
            let buffer = verb.requests(0, count);
            let mut scanner = request::RequestScanner::default();
            assert_eq!(scan_requests(&mut scanner, &buffer), count);
            Box::new(move || {
                part(Part::Whole, to_count, || {
                    scan_requests(&mut scanner, black_box(&buffer));
                });
            })
        }),
    }
}

fn scan_requests(scanner: &mut request::RequestScanner, buffer: &[u8]) -> u32 {
    let (mut at, mut count) = (0, 0);
    while let Ok(request::Found::Request { len }) = scanner.scan(&buffer[at..], true) {
        black_box(scanner.spans());
        at += len;
        count += 1;
    }
    count
}

fn scan_of_replies(name: &'static str, verb: Verb, count: u32) -> Scenario {
    Scenario {
        name,
        per_round: count,
        rounds: 20_000 / count,
        parts: &[Part::Whole],
        prepare: Box::new(move |to_count| {
            let buffer = verb.replies(0, count);
            let mut scanner = reply::ReplyScanner::default();
            assert_eq!(scan_replies(&mut scanner, &buffer), count);
            Box::new(move || {
                part(Part::Whole, to_count, || {
                    scan_replies(&mut scanner, black_box(&buffer));
                });
            })
        }),
    }
}

fn scan_replies(scanner: &mut reply::ReplyScanner, buffer: &[u8]) -> u32 {
    let (mut at, mut count) = (0, 0);
    while at < buffer.len()
        && let Ok(reply::Scanned::Whole(len)) = scanner.scan(&buffer[at..])
    {
        black_box(scanner.kind());
        at += len;
        count += 1;
    }
    count
}

/// The most frequent commands in both cases, a name that is long for the table, and an unknown one.
const NAMES: [&str; 10] = [
    "GET",
    "get",
    "SET",
    "MGET",
    "INCR",
    "expire",
    "HGETALL",
    "ZADD",
    "SUBSCRIBE",
    "GETTER",
];

fn look_up_of_names(name: &'static str) -> Scenario {
    Scenario {
        name,
        per_round: NAMES.len() as u32,
        rounds: 2_000,
        parts: &[Part::Whole],
        prepare: Box::new(|to_count| {
            assert_eq!(look_up(&NAMES), NAMES.len() as u32 - 1);
            Box::new(move || {
                part(Part::Whole, to_count, || {
                    black_box(look_up(black_box(&NAMES)));
                });
            })
        }),
    }
}

fn look_up(names: &[&str]) -> u32 {
    let found = |name: &&str| u32::from(commands::lookup(name.as_bytes()).is_some());
    names.iter().map(found).sum()
}

const KEYS: u32 = 20;

fn hash_of_keys(name: &'static str) -> Scenario {
    Scenario {
        name,
        per_round: KEYS,
        rounds: 1_000,
        parts: &[Part::Whole],
        prepare: Box::new(|to_count| {
            let keys: Vec<String> = (0..KEYS).map(|number| key(number, 12)).collect();
            Box::new(move || {
                part(Part::Whole, to_count, || {
                    black_box(hash_keys(black_box(&keys)));
                });
            })
        }),
    }
}

fn hash_keys(keys: &[String]) -> u32 {
    let hash = |key: &String| u32::from(slot::hash_slot(key.as_bytes()));
    keys.iter().map(hash).sum()
}

const FANNED_KEYS: u32 = 100;
const FANNED_SERVERS: usize = 3;

/// The cost of several servers: the way of a key to its part of the request, and the way of its
/// value back. The owner's lookup costs next to nothing here, and is counted by itself.
fn fan_out(name: &'static str) -> Scenario {
    Scenario {
        name,
        per_round: FANNED_KEYS,
        rounds: 200,
        parts: &[Part::Requests, Part::Replies],
        prepare: Box::new(|to_count| {
            let keys: Vec<String> = (0..FANNED_KEYS).map(|number| key(number, 12)).collect();
            let mut words = vec![b"MGET".as_slice()];
            words.extend(keys.iter().map(String::as_bytes));
            let mut request = Vec::new();
            encode::request(&mut request, &words);
            let mut expected = Vec::new();
            encode::array(&mut expected, keys.len());
            for key in &keys {
                encode::bulk(&mut expected, value_of(key.as_bytes()));
            }

            let mut scanner = request::RequestScanner::default();
            let found = scanner.scan(&request, true);
            assert!(matches!(found, Ok(request::Found::Request { .. })));
            let mget = commands::id::MGET;
            let mut split = fan::Split::default();
            assert_eq!(
                split.divide(mget, &request, scanner.spans(), server_of),
                Ok(fan::Divided::Shares)
            );
            let replies: Vec<Vec<u8>> = split
                .shares()
                .map(|share| replies_to(share.request))
                .collect();
            let replies: [Vec<u8>; FANNED_SERVERS] =
                replies.try_into().expect("keys of every server");
            let mut merger = fan::Merger::default();
            let mut out = Vec::new();
            Box::new(move || {
                part(Part::Requests, to_count, || {
                    let spans = black_box(scanner.spans());
                    let divided = split.divide(mget, black_box(&request), spans, server_of);
                    assert_eq!(divided, Ok(fan::Divided::Shares));
                });
                part(Part::Replies, to_count, || {
                    let parts = replies.each_ref().map(|reply| fan::Part {
                        server: "127.0.0.1:6379",
                        reply: black_box(reply),
                    });
                    out.clear();
                    let merged = merger.merge(mget, split.order(), &parts, &mut out);
                    assert_eq!(merged, fan::Merged::Whole);
                });
                assert_eq!(out, expected);
            })
        }),
    }
}

fn server_of(key: &[u8]) -> u16 {
    let last = key.last().copied().unwrap_or_default();
    u16::from(last) % FANNED_SERVERS as u16
}

// --- whole turns ---

/// Every client sends its requests in one turn, and all replies come in another.
#[derive(Clone, Copy)]
struct Turn {
    name: &'static str,
    clients: u32,
    /// Number of requests of each client.
    depth: u32,
    verb: Verb,
    /// Whether requests are fused and equal reads collapsed, as by default.
    joins: bool,
    aim: Aim,
    /// Number of servers among which keys are divided by slots.
    servers: u16,
    /// One request in so many is sampled for hot keys; 0: none.
    hot_keys_sample: u32,
}

impl Turn {
    const fn of(name: &'static str, clients: u32, depth: u32, verb: Verb) -> Turn {
        Turn {
            name,
            clients,
            depth,
            verb,
            joins: false,
            aim: Aim::ServerCpu,
            servers: 1,
            hot_keys_sample: 0,
        }
    }

    const fn among_three(self) -> Turn {
        Turn { servers: 3, ..self }
    }

    /// The same turn under a flush rule without a wait: `latency`, or `balanced` with room.
    const fn without_wait(self) -> Turn {
        Turn {
            aim: Aim::Latency,
            ..self
        }
    }

    const fn joined(self) -> Turn {
        Turn {
            joins: true,
            ..self
        }
    }

    /// The joined turn, with the sample of hot keys that the documentation shows.
    const fn with_hot_keys(self) -> Turn {
        Turn {
            hot_keys_sample: 100,
            ..self.joined()
        }
    }
}

fn turns(turn: Turn) -> Scenario {
    let per_round = turn.clients * turn.depth;
    Scenario {
        name: turn.name,
        per_round,
        rounds: (100_000 / per_round).min(20_000),
        parts: &[Part::Requests, Part::Replies],
        prepare: Box::new(move |to_count| {
            let mut crowd = Crowd::new(turn, to_count);
            crowd.round_looked_at();
            Box::new(move || crowd.round())
        }),
    }
}

/// The time from request to reply, and from the reply to the next request. Both are less than the
/// longest wait of a batch, as on one machine.
const SERVED_IN_US: u64 = 100;
const ASKED_AGAIN_IN_US: u64 = 50;

/// Clients of one worker, its engine, and its server.
struct Crowd {
    engine: Engine,
    now: Time,
    clients: Vec<Client>,
    server: Server,
    /// Links that the engine writes.
    writing: Vec<LinkId>,
    /// Bytes of the replies of a round, and how many of them are still to come.
    replies: usize,
    owed: usize,
    /// Output of the clients, in rounds that are checked.
    got: Option<HashMap<SessionId, Vec<u8>>>,
    to_count: Part,
}

struct Client {
    session: SessionId,
    requests: Vec<u8>,
    replies: Vec<u8>,
}

impl Crowd {
    fn new(turn: Turn, to_count: Part) -> Crowd {
        let Turn {
            clients,
            depth,
            verb,
            joins,
            aim,
            servers,
            hot_keys_sample,
            ..
        } = turn;
        let mut settings = world::pool_of(servers);
        settings.flush.fuse = joins;
        settings.flush.collapse = joins;
        settings.flush.aim = aim;
        settings.hot_keys_sample = hot_keys_sample;
        let mut engine = Engine::new(Arc::new(settings), world::worker(0, 1), Time(0));
        let links: Vec<LinkId> = (0..servers)
            .map(|_| match engine.poll_action() {
                Some(Action::Connect { link, .. }) => link,
                _ => panic!("an engine connects to its servers first"),
            })
            .collect();
        let clients = (0..clients).map(|client| Client {
            session: engine.handle_accept(world::peer(1), 0),
            requests: verb.requests(client * depth, depth),
            replies: verb.replies(client * depth, depth),
        });
        let clients: Vec<Client> = clients.collect();
        let mut crowd = Crowd {
            engine,
            now: Time(0),
            replies: clients.iter().map(|client| client.replies.len()).sum(),
            clients,
            server: Server::default(),
            writing: Vec::new(),
            owed: 0,
            got: None,
            to_count,
        };
        crowd.engine.begin_turn(crowd.now);
        for link in links {
            crowd.engine.handle_link_up(link);
        }
        end_turn(&mut crowd.engine, &mut crowd.writing);
        crowd.write(Part::Requests);
        // The handshake.
        crowd.answer();
        crowd
    }

    fn round(&mut self) {
        self.owed = self.replies;
        self.now.0 += ASKED_AGAIN_IN_US;
        self.ask();
        while self.owed > 0 {
            if self.server.asked.is_empty() {
                // The flush rule holds a batch.
                let due = self.engine.deadline();
                self.now = due.expect("a batch that waits has a deadline");
            } else {
                self.now.0 += SERVED_IN_US;
            }
            self.answer();
        }
    }

    /// Runs a round and checks that every client got its replies.
    fn round_looked_at(&mut self) {
        self.got = Some(HashMap::new());
        self.round();
        let got = self.got.take().expect("it was put there");
        for client in &self.clients {
            let (got, expected) = (&got[&client.session], &client.replies);
            assert_eq!(
                got.escape_ascii().to_string(),
                expected.escape_ascii().to_string()
            );
        }
    }

    fn ask(&mut self) {
        part(Part::Requests, self.to_count, || {
            self.engine.begin_turn(self.now);
            for client in &self.clients {
                self.engine
                    .handle_session_bytes(client.session, &client.requests);
            }
            end_turn(&mut self.engine, &mut self.writing);
        });
        self.write(Part::Requests);
    }

    fn answer(&mut self) {
        part(Part::Replies, self.to_count, || {
            self.engine.begin_turn(self.now);
            for (link, known) in self.server.asked.drain(..) {
                let (_, replies) = &self.server.known[known];
                self.engine.handle_link_bytes(link, replies);
            }
            end_turn(&mut self.engine, &mut self.writing);
        });
        self.write(Part::Replies);
    }

    /// Writes sockets as a driver does at the end of a turn. They take all bytes.
    fn write(&mut self, of: Part) {
        for link in &self.writing {
            self.server.take(*link, self.engine.link_output(*link));
        }
        part(of, self.to_count, || {
            for link in self.writing.drain(..) {
                let count = self.engine.link_output(link).len();
                self.engine.handle_link_written(link, count);
            }
            while let Some(session) = self.engine.poll_session() {
                let bytes = self.engine.session_output(session);
                let count = bytes.len();
                if let Some(got) = &mut self.got {
                    got.entry(session).or_default().extend(bytes);
                }
                self.engine.handle_session_written(session, count);
                let owed = self.owed.checked_sub(count);
                self.owed = owed.expect("each client gets as many bytes as it expects");
            }
            while self.engine.poll_action().is_some() {}
            while self.engine.poll_event().is_some() {}
        });
    }
}

fn end_turn(engine: &mut Engine, writing: &mut Vec<LinkId>) {
    engine.end_turn();
    while let Some(link) = engine.poll_link() {
        writing.push(link);
    }
}

/// A server that answers any requests. It answers known bytes with the same bytes as before.
#[derive(Default)]
struct Server {
    /// Bytes that came in one write, and the replies to them.
    known: Vec<(Vec<u8>, Vec<u8>)>,
    /// Writes since the last turn, each by its place in `known`.
    asked: Vec<(LinkId, usize)>,
}

/// Number of writes that are remembered.
const KNOWN_MAX: usize = 64;

impl Server {
    fn take(&mut self, link: LinkId, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let known = self.known.iter().position(|(asked, _)| asked == bytes);
        let known = known.unwrap_or_else(|| {
            if self.known.len() >= KNOWN_MAX && self.asked.is_empty() {
                self.known.clear();
            }
            self.known.push((bytes.to_vec(), replies_to(bytes)));
            self.known.len() - 1
        });
        self.asked.push((link, known));
    }
}

fn replies_to(requests: &[u8]) -> Vec<u8> {
    let mut scanner = request::RequestScanner::default();
    let (mut at, mut out) = (0, Vec::new());
    while at < requests.len() {
        let Ok(request::Found::Request { len }) = scanner.scan(&requests[at..], true) else {
            panic!("a link gets whole requests");
        };
        let request = &requests[at..at + len];
        let args: Vec<&[u8]> = scanner.spans().iter().map(|arg| arg.of(request)).collect();
        match args[0].to_ascii_uppercase().as_slice() {
            b"HELLO" => out.extend(world::HELLO.as_bytes()),
            b"GET" => encode::bulk(&mut out, value_of(args[1])),
            b"MGET" => {
                encode::array(&mut out, args.len() - 1);
                for key in &args[1..] {
                    encode::bulk(&mut out, value_of(key));
                }
            }
            b"SET" | b"MSET" => encode::status(&mut out, "OK"),
            other => panic!("this server does not know {}", other.escape_ascii()),
        }
        at += len;
    }
    out
}

// --- what is asked ---

#[derive(Clone, Copy)]
enum Verb {
    Get,
    /// GETs of 700 keys in all.
    GetOf700,
    /// GETs of keys of four to thirty-five bytes.
    GetOfAnyLength,
    Set,
}

impl Verb {
    /// Requests with values as long as those of `respool-lab eight`.
    fn requests(self, first: u32, count: u32) -> Vec<u8> {
        let mut out = Vec::new();
        for key in self.keys(first, count) {
            match self {
                Verb::Get | Verb::GetOf700 | Verb::GetOfAnyLength => {
                    encode::request(&mut out, &[b"GET", key.as_bytes()]);
                }
                Verb::Set => {
                    let value = value_of(key.as_bytes());
                    encode::request(&mut out, &[b"SET", key.as_bytes(), value]);
                }
            }
        }
        out
    }

    fn replies(self, first: u32, count: u32) -> Vec<u8> {
        let mut out = Vec::new();
        for key in self.keys(first, count) {
            match self {
                Verb::Get | Verb::GetOf700 | Verb::GetOfAnyLength => {
                    encode::bulk(&mut out, value_of(key.as_bytes()))
                }
                Verb::Set => encode::status(&mut out, "OK"),
            }
        }
        out
    }

    /// The keys of the requests, all different if there are enough.
    fn keys(self, first: u32, count: u32) -> impl Iterator<Item = String> {
        let keys = match self {
            Verb::Get | Verb::GetOfAnyLength | Verb::Set => u32::MAX,
            Verb::GetOf700 => 700,
        };
        let width = move |number: u32| match self {
            Verb::GetOfAnyLength => number.wrapping_mul(2_654_435_761) >> 27,
            Verb::Get | Verb::GetOf700 | Verb::Set => 12,
        };
        (first..first + count).map(move |number| key(number % keys, width(number)))
    }
}

fn key(number: u32, width: u32) -> String {
    format!("key:{number:0width$}", width = width as usize)
}

/// The value of a key: its last two bytes.
fn value_of(key: &[u8]) -> &[u8] {
    &key[key.len() - 2..]
}

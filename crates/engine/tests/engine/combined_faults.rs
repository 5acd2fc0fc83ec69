//! All faults at once, in pools of one server and of several: slow clients, clients that leave,
//! lost and stuck links, silent servers, servers that refuse connections, large values, refusals,
//! deadlines, and options that change. Every client gets its own replies, whole and in order, or an
//! error that tells the fate of its request. Its writes are executed in order and once. No client
//! waits for ever, no bound is passed, and no memory stays held.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::world::{World, requests};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use respool_engine::{Action, Counters, LinkId, SessionId};
use respool_protocol::encode::{self, Version};
use respool_protocol::reply::{ReplyScanner, Scanned};

const CLIENTS: usize = 6;
/// A longer request is a large one, in storms with large requests.
const HELD_BYTES: usize = 1_500;
/// Bytes that one read of a client brings.
const ASKED_BYTES: usize = 600;
/// Bytes that one read of a link brings.
const READ_BYTES: usize = 80_000;
/// Longer than any storm.
const LONG_MS: u32 = 600_000;
const REFUSED: &str = "-OOM no\r\n";
/// The reply to DBSIZE.
const SIZE: i64 = 7;
/// The beginning of the error to a scattered request whose replies are too large together.
const TOO_LARGE: &str = "-ERR respool: the replies of the servers are together larger than ";
/// The beginning of the error to a scattered request of which not all servers executed their part.
const IN_PART: &str = "-UNKNOWN respool: a part of the command ";
/// Bytes of an element of a reply besides a constant value, at most.
const ELEMENT_BYTES: usize = 64;
/// Entries of a link that one read of a client may add at most, and as many that the draining of
/// another link may add.
const ENTRIES_AT_ONCE: usize = 2 * ASKED_BYTES / 15;

/// The constant value of a key that no client writes: a short one, a long one, a list, or none.
fn constant(key: &str) -> Option<String> {
    let number: usize = key[1..].parse().expect("a key is a letter and a number");
    match &key[..1] {
        "k" => Some(format!("{key}:{}", "x".repeat(number * number * 40))),
        "B" => Some(format!("{key}:{}", "y".repeat(90_000 + number))),
        _ => None,
    }
}

/// A server, with any number of connections.
#[derive(Default)]
struct Server {
    /// Keys with one writer each. Their values only grow.
    written: HashMap<String, u64>,
    executed: u64,
    /// Whether it refuses an MGET or MSET now and then.
    refuses: bool,
    /// Whether it is silent for now.
    is_silent: bool,
    connects: Connects,
}

/// The results of attempts to connect to a server.
#[derive(Clone, Copy, Debug, Default)]
enum Connects {
    #[default]
    Yes,
    Refused,
    /// No result.
    Unanswered,
}

impl Server {
    fn get(&self, key: &str, says: &mut Vec<u8>) {
        let value = constant(key).or_else(|| self.written.get(key).map(u64::to_string));
        match value {
            _ if key.starts_with('l') => says.extend_from_slice(b"-WRONGTYPE no\r\n"),
            Some(value) => encode::bulk(says, value.as_bytes()),
            None => encode::null(says, Version::Resp2),
        }
    }

    fn execute(&mut self, args: &[&str], says: &mut Vec<u8>) {
        self.executed += 1;
        let is_refused = self.refuses && self.executed.is_multiple_of(4);
        match args {
            ["MGET" | "MSET", ..] if is_refused => says.extend_from_slice(REFUSED.as_bytes()),
            ["MGET", keys @ ..] => {
                encode::array(says, keys.len());
                for key in keys {
                    match key.starts_with('l') {
                        true => encode::null(says, Version::Resp2),
                        false => self.get(key, says),
                    }
                }
            }
            ["MSET" | "SET", pairs @ ..] => {
                for pair in pairs.chunks(2) {
                    let value = pair[1].parse().expect("clients write numbers");
                    let before = self.written.insert(pair[0].to_owned(), value);
                    assert!(before < Some(value), "{pair:?} after {before:?}");
                }
                says.extend_from_slice(b"+OK\r\n");
            }
            ["GET", key] => self.get(key, says),
            ["EXISTS", keys @ ..] => {
                let found = keys.iter().filter(|key| constant(key).is_some());
                encode::integer(says, found.count() as i64);
            }
            ["DEL", ..] => encode::integer(says, 0),
            ["DBSIZE"] => encode::integer(says, SIZE),
            ["STRLEN", key] => {
                encode::integer(says, constant(key).map_or(0, |value| value.len() as i64));
            }
            // Without a list of commands the table counts.
            ["COMMAND", ..] => says.extend_from_slice(b"-ERR no\r\n"),
            ["CONFIG", ..] => says.extend_from_slice(b"-ERR Unknown option\r\n"),
            ["HELLO", ..] => says.extend_from_slice(crate::world::HELLO.as_bytes()),
            // The more requests it has executed, the more CPU it has used.
            ["INFO", "cpu"] => {
                let seconds = self.executed as f64 / 1_000.0;
                let text = format!("used_cpu_sys:{seconds:.6}\r\nused_cpu_user:1.0\r\n");
                encode::bulk(says, text.as_bytes());
            }
            // A check of a server whose link for one session is silent.
            ["PING"] => says.extend_from_slice(b"+PONG\r\n"),
            other => panic!("the server got {other:?}"),
        }
    }
}

/// The server's end of a link.
#[derive(Default)]
struct Connection {
    /// The place of its server.
    server: usize,
    says: Vec<u8>,
    is_unread: bool,
    /// Requests that wait: the server is silent, or its output is not read.
    waiting: VecDeque<Vec<String>>,
    /// The commands since MULTI.
    queued: Option<Vec<Vec<String>>>,
    /// Number of bytes that have left, and the ends of the replies that have not left whole.
    said: usize,
    ends: VecDeque<usize>,
}

impl Connection {
    fn to(server: usize) -> Connection {
        Connection {
            server,
            ..Connection::default()
        }
    }

    fn execute(&mut self, server: &mut Server, args: Vec<String>) {
        match (args[0].as_str(), &mut self.queued) {
            ("MULTI", None) => {
                self.queued = Some(Vec::new());
                self.says.extend_from_slice(b"+OK\r\n");
            }
            ("EXEC", Some(queued)) => {
                encode::array(&mut self.says, queued.len());
                for args in std::mem::take(queued) {
                    let args: Vec<&str> = args.iter().map(String::as_str).collect();
                    server.execute(&args, &mut self.says);
                }
                self.queued = None;
            }
            (_, Some(queued)) => {
                queued.push(args);
                self.says.extend_from_slice(b"+QUEUED\r\n");
            }
            (_, None) => {
                let args: Vec<&str> = args.iter().map(String::as_str).collect();
                server.execute(&args, &mut self.says);
            }
        }
        self.ends.push_back(self.said + self.says.len());
    }

    fn say(&mut self, count: usize) -> Vec<u8> {
        self.said += count;
        while self.ends.front().is_some_and(|end| *end <= self.said) {
            self.ends.pop_front();
        }
        self.says.drain(..count).collect()
    }
}

struct Client {
    session: SessionId,
    number: usize,
    is_open: bool,
    /// The client has ended, and the engine has seen that.
    has_ended: bool,
    was_seen_to_end: bool,
    is_unread: bool,
    /// Whether its session was closed once all its requests were answered.
    was_let_go: bool,
    /// The fate of one of its writes is unknown. If that write stays on a draining link, the
    /// session is closed, since its next request would overtake the write.
    is_in_doubt: bool,
    asked: VecDeque<String>,
    /// The bytes of these requests that it has not sent yet.
    unsent: Vec<u8>,
    got: Vec<u8>,
    /// The last value that the client wrote.
    wrote: u64,
    /// Keys of the client, which no other client writes.
    own: HashMap<String, Own>,
    /// The last value that the client read of each key.
    read: HashMap<String, u64>,
}

/// The values that an own key of a client may have.
#[derive(Debug, Default)]
struct Own {
    /// The last acknowledged value (0: none), and later ones that may have been written.
    acknowledged: u64,
    maybe: HashSet<u64>,
}

impl Own {
    fn may_hold(&self, value: u64) -> bool {
        value == self.acknowledged || self.maybe.contains(&value)
    }
}

/// The own keys of a client: several, so that they belong to different servers.
fn own_keys(number: usize) -> impl Iterator<Item = String> {
    ["u", "v", "w"]
        .into_iter()
        .map(move |letter| format!("{letter}{number}"))
}

fn is_own(key: &str) -> bool {
    key.starts_with(['u', 'v', 'w'])
}

impl Client {
    fn new(session: SessionId, number: usize) -> Client {
        Client {
            session,
            number,
            is_open: true,
            has_ended: false,
            was_seen_to_end: false,
            is_unread: false,
            was_let_go: false,
            is_in_doubt: false,
            asked: VecDeque::new(),
            unsent: Vec::new(),
            got: Vec::new(),
            wrote: 0,
            own: own_keys(number).map(|key| (key, Own::default())).collect(),
            read: HashMap::new(),
        }
    }

    /// Generates a request from two numbers. `all`: the own keys of all clients.
    fn ask(&mut self, kind: u8, key: usize, all: &[String], storm: &Storm) {
        let own = |at: usize| {
            own_keys(self.number)
                .nth(at % 3)
                .expect("a client has three keys")
        };
        let mut value = || {
            self.wrote += 1;
            match storm.has_large_requests && key.is_multiple_of(5) {
                true => format!("{:0>width$}", self.wrote, width = HELD_BYTES + key),
                false => self.wrote.to_string(),
            }
        };
        let of_others = &all[key % all.len()];
        let small = |at: usize| format!("k{}", (key + at) % 8);
        let request = match kind {
            0 | 1 => format!("SET {} {}", own(key), value()),
            2 => format!("GET {}", own(key)),
            3 => format!("GET {of_others}"),
            4 if storm.has_odd_keys => format!("GET l{}", key % 2),
            5 if storm.has_odd_keys => format!("GET n{}", key % 2),
            6 => format!("STRLEN {}", small(0)),
            7 if storm.has_large_values => format!("GET B{}", key % 3),
            14 => format!("MSET {} {} {} {}", own(key), value(), own(key + 1), value()),
            15 => {
                let [one, other] = [own(key), own(key + 1)];
                format!(
                    "MSET {one} {} {other} {} {one} {}",
                    value(),
                    value(),
                    value()
                )
            }
            16 => format!("MGET {} {} {of_others} {0}", small(0), small(3)),
            17 if storm.has_odd_keys => format!("MGET l0 {} n1 {}", small(0), own(key)),
            18 if storm.has_large_values => format!("MGET B0 B1 {} B{}", own(key), key % 3),
            19 => format!("EXISTS {} n0 {} n1 {0}", small(0), small(1)),
            20 => "DEL n0 n1 n2".to_owned(),
            21 => "DBSIZE".to_owned(),
            22 => {
                let (key, value) = (own(key), self.wrote + 1);
                self.wrote = value;
                let get = format!("GET {key}");
                let set = format!("SET {key} {value}");
                self.unsent.extend(requests(&["MULTI", &set, &get, "EXEC"]));
                let expected = ["MULTI", "QUEUED", "QUEUED"].map(str::to_owned);
                self.asked.extend(expected);
                self.asked.push_back(format!("EXEC {key} {value}"));
                return;
            }
            _ => format!("GET {}", small(0)),
        };
        self.unsent.extend(requests(&[&request]));
        self.asked.push_back(request);
    }

    /// Takes the reply to its oldest request.
    fn take(&mut self, reply: &str, storm: &Storm) -> Result<(), String> {
        let short = &reply[..reply.len().min(80)];
        let Some(request) = self.asked.pop_front() else {
            return Err(format!("client {} got {short:?} for nothing", self.number));
        };
        let wrong = Err(format!(
            "client {} asked {request} and got {short:?}, of {:?}",
            self.number, self.own
        ));
        let (is_unknown, is_unsent) =
            (reply.starts_with("-UNKNOWN"), reply.starts_with("-NOTSENT"));
        self.is_in_doubt |= is_unknown;
        let is_in_part = storm.refuses && storm.servers > 1 && reply.starts_with(IN_PART);
        if (is_unknown || is_unsent)
            && !is_in_part
            && !storm.loses_links
            && storm.request_ms == LONG_MS
        {
            return wrong;
        }
        let words: Vec<&str> = request.split(' ').collect();
        let is_refused = storm.refuses && words.len() > 2 && reply.starts_with("-OOM ");
        let right = match words[..] {
            // The engine may need the owner before all keys of a large request have come.
            ["MSET", ..]
                if storm.servers > 1 && reply.starts_with("-ERR respool: 'mset' is larger") =>
            {
                request.len() > HELD_BYTES
            }
            ["SET" | "MSET" | "EXEC", ref pairs @ ..] => {
                let done = match words[0] {
                    "EXEC" => {
                        let value = words[2].trim_start_matches('0');
                        format!("*2\r\n+OK\r\n${}\r\n{value}\r\n", value.len())
                    }
                    _ => "+OK\r\n".to_owned(),
                };
                for pair in pairs.chunks(2) {
                    let value = pair[1].parse().expect("clients write numbers");
                    let own = self
                        .own
                        .get_mut(pair[0])
                        .expect("a client writes its own keys");
                    if reply == done {
                        own.acknowledged = value;
                        own.maybe.clear();
                    } else if is_unknown {
                        own.maybe.insert(value);
                    }
                }
                let is_refused = is_refused && words[0] == "MSET";
                reply == done || is_unknown || is_unsent || is_refused
            }
            _ if is_unknown || is_unsent => true,
            // The replies of several servers have no room in memory.
            ["MGET", ref keys @ ..] if storm.servers > 1 && reply.starts_with(TOO_LARGE) => {
                let len = |key: &&str| constant(key).map_or(0, |value| value.len()) + ELEMENT_BYTES;
                keys.iter().map(len).sum::<usize>() > storm.hard_bytes as usize
            }
            ["MGET", ref keys @ ..] => {
                let elements = elements(reply);
                is_refused
                    || elements.len() == keys.len()
                        && keys.iter().zip(elements).all(|(key, element)| {
                            match key.starts_with('l') {
                                true => element == "$-1\r\n",
                                false => self.takes_value(key, element),
                            }
                        })
            }
            ["GET", key] => self.takes_value(key, reply),
            ["DBSIZE"] => reply == format!(":{}\r\n", SIZE * i64::from(storm.servers)),
            ["MULTI"] => reply == "+OK\r\n",
            ["QUEUED"] => reply == "+QUEUED\r\n",
            _ => {
                let mut expected = Vec::new();
                Server::default().execute(&words, &mut expected);
                reply.as_bytes() == expected
            }
        };
        if right { Ok(()) } else { wrong }
    }

    /// Whether a key may have had this value when it was read.
    fn takes_value(&mut self, key: &str, reply: &str) -> bool {
        if !is_own(key) {
            let mut expected = Vec::new();
            Server::default().get(key, &mut expected);
            return reply.as_bytes() == expected;
        }
        let value = match reply.split("\r\n").nth(1).map(str::parse) {
            _ if reply == "$-1\r\n" => 0,
            Some(Ok(value)) if reply.starts_with('$') => value,
            _ => return false,
        };
        let before = self.read.insert(key.to_owned(), value);
        before <= Some(value) && self.own.get(key).is_none_or(|own| own.may_hold(value))
    }
}

/// The elements of an array.
fn elements(reply: &str) -> Vec<&str> {
    let mut elements = Vec::new();
    let Some((_, mut rest)) = reply.split_once("\r\n").filter(|_| reply.starts_with('*')) else {
        return elements;
    };
    while let Ok(Scanned::Whole(len)) = ReplyScanner::default().scan(rest.as_bytes()) {
        elements.push(&rest[..len]);
        rest = &rest[len..];
    }
    elements
}

/// The troubles of one storm.
#[derive(Clone, Copy, Debug)]
struct Storm {
    servers: u16,
    /// Whether one of the servers has the keys of a prefix.
    has_parts: bool,
    loses_links: bool,
    has_large_values: bool,
    has_odd_keys: bool,
    refuses: bool,
    /// Whether some requests are large.
    has_large_requests: bool,
    /// Bounds of the unanswered requests on a link.
    unanswered_requests_max: u32,
    unanswered_bytes_max: u32,
    /// Bounds of the output of a session.
    soft_bytes: u32,
    hard_bytes: u32,
    request_ms: u32,
    fuse: bool,
    collapse: bool,
    keys_max: u32,
}

fn storm() -> impl Strategy<Value = Storm> {
    let bools = prop::array::uniform6(any::<bool>());
    // Not both at once: a request that was given up on a draining link may run after a later
    // request of its client on the next link. A request before a large one may do so, too: the
    // large one has a link of its own.
    let narrow = (500..4_500_u32, 20_000..320_000_u32, Just(LONG_MS));
    let hasty = (Just(30_000_000), Just(40_000_000), Just(400));
    let limits = prop_oneof![2 => narrow, 1 => hasty];
    let levels = (
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.8),
        2..8_u32,
    );
    let room = prop_oneof![Just((65_536, 4 << 20)), (4..60_u32, 500..20_000_u32)];
    (bools, limits, levels, room, 1..=3_u16).prop_map(|(bools, limits, levels, room, servers)| {
        let [
            loses_links,
            has_large_values,
            has_odd_keys,
            refuses,
            has_large_requests,
            has_parts,
        ] = bools;
        Storm {
            servers,
            has_parts: has_parts && servers > 1,
            has_large_requests: has_large_requests && limits.2 == LONG_MS,
            unanswered_requests_max: room.0,
            unanswered_bytes_max: room.1,
            loses_links,
            has_large_values,
            has_odd_keys,
            refuses,
            soft_bytes: limits.0,
            hard_bytes: limits.1,
            request_ms: limits.2,
            fuse: levels.0,
            collapse: levels.1,
            keys_max: levels.2,
        }
    })
}

/// A step of a storm. Its numbers are taken modulo the number of clients, links and so on.
#[derive(Clone, Debug)]
enum Step {
    /// Clients send several requests each.
    Ask(Vec<(usize, Vec<(u8, u8)>)>),
    /// A client takes no output any more, or all again.
    Turn(usize),
    /// A client ends its side.
    End(usize),
    /// A client leaves, and another one comes.
    Leave(usize),
    Lose(usize),
    /// A server becomes silent, or answers again.
    Silence(usize),
    /// The result of attempts to connect to a server changes.
    Connects(usize, Connects),
    /// A link's socket takes only so many bytes more, or any number again.
    Stick(usize, Option<usize>),
    /// An option of respool is set.
    Switch(String),
    Wait(u32),
    /// Servers send their output, all of it or so many bytes on each connection.
    Say(Option<usize>),
}

fn step() -> impl Strategy<Value = Step> {
    let asked = prop::collection::vec((0..24_u8, any::<u8>()), 1..6);
    let connects = prop_oneof![
        2 => Just(Connects::Yes),
        1 => Just(Connects::Refused),
        1 => Just(Connects::Unanswered),
    ];
    let sticks = (0..3_usize, prop::option::of(0..400_usize));
    let says = prop_oneof![Just(None), (1..100_000_usize).prop_map(Some)];
    prop_oneof![
        5 => prop::collection::vec((0..CLIENTS, asked), 1..7).prop_map(Step::Ask),
        1 => (0..CLIENTS).prop_map(Step::Turn),
        1 => (0..CLIENTS).prop_map(Step::End),
        2 => (0..CLIENTS).prop_map(Step::Leave),
        1 => (0..8_usize).prop_map(Step::Lose),
        1 => (0..3_usize).prop_map(Step::Silence),
        1 => (0..3_usize, connects).prop_map(|(server, connects)| Step::Connects(server, connects)),
        1 => sticks.prop_map(|(at, room)| Step::Stick(at, room)),
        1 => switch().prop_map(Step::Switch),
        1 => (1..1_500_u32).prop_map(Step::Wait),
        4 => says.prop_map(Step::Say),
    ]
}

fn switch() -> impl Strategy<Value = String> {
    let aims = prop::sample::select(vec![
        "flush-rule balanced",
        "flush-rule latency",
        "flush-rule server-cpu",
        "listener.flush-rule balanced",
        "listener.flush-rule pool",
    ]);
    let names = prop::sample::select(vec![
        "fuse",
        "collapse",
        "listener.fuse",
        "listener.collapse",
    ]);
    let levels = (names, prop::bool::weighted(0.7)).prop_map(|(name, is_on)| {
        let value = if is_on { "yes" } else { "no" };
        format!("{name} {value}")
    });
    let delays = prop::sample::select(vec![1, 200, 5_000]);
    prop_oneof![
        3 => levels,
        1 => aims.prop_map(str::to_owned),
        1 => delays.prop_map(|us| format!("max-delay-us {us}")),
        1 => (2..8_u32).prop_map(|keys| format!("fused-keys-max {keys}")),
    ]
}

struct Play {
    storm: Storm,
    world: World,
    servers: Vec<Server>,
    /// The connections, in the order in which they came up.
    links: Vec<(LinkId, Connection)>,
    clients: Vec<Client>,
    /// The session that sets options.
    admin: SessionId,
}

impl Play {
    fn new(storm: Storm) -> Play {
        let mut settings = match storm.has_parts {
            true => crate::world::parted(storm.servers - 1),
            false => crate::world::pool_of(storm.servers),
        };
        if storm.has_large_requests {
            settings.limits.request_held_bytes_max = HELD_BYTES as u32;
        }
        settings.limits.link_unanswered_requests_max = storm.unanswered_requests_max;
        settings.limits.link_unanswered_bytes_max = storm.unanswered_bytes_max;
        settings.flush.fuse = storm.fuse;
        settings.flush.collapse = storm.collapse;
        settings.flush.fused_keys_max = storm.keys_max;
        settings.limits.session_output_soft_bytes = storm.soft_bytes;
        settings.limits.session_output_hard_bytes = storm.hard_bytes;
        // No session is closed for slowness, so a test finds a session that waits for ever.
        settings.limits.session_stall_ms = LONG_MS;
        settings.limits.head_of_line_stall_ms = LONG_MS;
        settings.timeouts.link_stall_ms = LONG_MS;
        settings.timeouts.request_ms = storm.request_ms;
        let mut world = World::new(settings);
        world.wait_ms(1_100);
        let clients = (0..CLIENTS)
            .map(|number| Client::new(world.accept(), number))
            .collect();
        let links = world.all_shared.clone().into_iter().enumerate();
        let server = || Server {
            refuses: storm.refuses,
            ..Server::default()
        };
        Play {
            storm,
            admin: world.accept(),
            links: links.map(|(at, link)| (link, Connection::to(at))).collect(),
            world,
            servers: (0..storm.servers).map(|_| server()).collect(),
            clients,
        }
    }

    fn play(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Ask(all) => self.ask(all),
            Step::Turn(client) => {
                let Client {
                    session, is_open, ..
                } = self.clients[client];
                if is_open && self.world.slow.insert(session) {
                } else if is_open {
                    self.world.takes(session);
                }
            }
            Step::End(client) => self.clients[client].has_ended = true,
            Step::Leave(client) => {
                let client = &mut self.clients[client];
                let session = client.session;
                *client = Client::new(self.world.accept(), client.number + CLIENTS);
                self.world.slow.remove(&session);
                self.world
                    .turn(|engine| engine.handle_session_lost(session));
            }
            Step::Lose(at) if self.storm.loses_links && at < self.links.len() => {
                let (link, _) = self.links.remove(at);
                self.world.lose(link);
            }
            Step::Stick(at, room) if at < self.links.len() => {
                let (link, _) = self.links[at];
                match room {
                    Some(room) => self.world.room.insert(link, room),
                    None => self.world.room.remove(&link),
                };
                self.world.turn(|_| {});
            }
            Step::Silence(server) if server < self.servers.len() => {
                let server = &mut self.servers[server];
                server.is_silent = !server.is_silent;
            }
            Step::Connects(server, connects)
                if self.storm.loses_links && server < self.servers.len() =>
            {
                self.servers[server].connects = connects;
            }
            Step::Lose(_) | Step::Stick(..) | Step::Silence(_) | Step::Connects(..) => {}
            Step::Switch(option) => {
                let request = format!("CONFIG SET respool.{option}");
                self.world.asks(self.admin, &[&request]);
            }
            Step::Wait(ms) => self.world.wait_ms(ms),
            Step::Say(most) => self.say(most),
        }
        self.send();
        self.look()
    }

    fn ask(&mut self, all: Vec<(usize, Vec<(u8, u8)>)>) {
        let keys: Vec<String> = self
            .clients
            .iter()
            .flat_map(|client| own_keys(client.number))
            .collect();
        for (client, asked) in all {
            let client = &mut self.clients[client];
            if !client.is_open || client.has_ended {
                continue;
            }
            for (kind, key) in asked {
                client.ask(kind, usize::from(key), &keys, &self.storm);
            }
        }
        for _ in 0..3 {
            self.send();
        }
    }

    /// Clients send their bytes as far as they are read, and then their ends.
    fn send(&mut self) {
        let mut sent = Vec::new();
        for client in self.clients.iter_mut().filter(|client| client.is_open) {
            if client.is_unread || client.was_seen_to_end {
                continue;
            }
            let count = client.unsent.len().min(ASKED_BYTES);
            let bytes: Vec<u8> = client.unsent.drain(..count).collect();
            client.was_seen_to_end = client.has_ended && client.unsent.is_empty();
            sent.push((client.session, bytes, client.was_seen_to_end));
        }
        self.world.turn(|engine| {
            for (session, bytes, ends) in &sent {
                if !bytes.is_empty() {
                    engine.handle_session_bytes(*session, bytes);
                }
                if *ends {
                    engine.handle_session_end(*session);
                }
            }
        });
        self.act();
    }

    fn say(&mut self, most: Option<usize>) {
        let links: Vec<LinkId> = self.links.iter().map(|(link, _)| *link).collect();
        for link in links {
            let mut left = most.unwrap_or(usize::MAX);
            while let Some(bytes) = self.some_of(link, left) {
                left -= bytes.len();
                self.world.says(link, bytes);
                self.act();
            }
        }
    }

    /// The next bytes of a link, if it is up and read.
    fn some_of(&mut self, link: LinkId, most: usize) -> Option<Vec<u8>> {
        let (_, connection) = self.links.iter_mut().find(|(other, _)| *other == link)?;
        let count = connection.says.len().min(most).min(READ_BYTES);
        let is_silent = self.servers[connection.server].is_silent;
        let is_read = !connection.is_unread && !is_silent && count > 0;
        is_read.then(|| connection.say(count))
    }

    /// Executes the engine's actions.
    fn act(&mut self) {
        loop {
            for action in std::mem::take(&mut self.world.actions) {
                match action {
                    Action::CloseLink(link) => self.links.retain(|(other, _)| *other != link),
                    Action::ReadLink(link, is_read) => {
                        for (_, connection) in self.links.iter_mut().filter(|(own, _)| *own == link)
                        {
                            connection.is_unread = !is_read;
                        }
                    }
                    Action::ReadSession(session, is_read) => {
                        let its = self.clients.iter_mut().filter(|own| own.session == session);
                        its.for_each(|client| client.is_unread = !is_read);
                    }
                    Action::CloseSession {
                        session,
                        after_output,
                        ..
                    } => {
                        self.world.slow.remove(&session);
                        let is_its = |client: &&mut Client| client.session == session;
                        for client in self.clients.iter_mut().filter(is_its) {
                            client.is_open = false;
                            client.was_let_go = after_output;
                        }
                    }
                    _ => {}
                }
            }
            let connecting = self.world.connecting();
            if connecting.is_empty() {
                return;
            }
            for link in connecting {
                let server = self.world.server_of(link);
                match self.servers[server].connects {
                    Connects::Yes => {
                        self.links.push((link, Connection::to(server)));
                        self.world.up(link);
                    }
                    Connects::Refused => self.world.lose(link),
                    Connects::Unanswered => {}
                }
            }
        }
    }

    /// Passes output on to servers and clients, and checks it.
    fn look(&mut self) -> Result<(), String> {
        self.act();
        // A waiting session is read on, and all its requests may then come at once. A transaction
        // is one entry and up to four commands.
        let sent = self.clients.iter().map(|client| 4 * client.asked.len());
        let at_once = ENTRIES_AT_ONCE + sent.max().unwrap_or(0);
        for (link, connection) in &mut self.links {
            connection.waiting.extend(self.world.asked(*link));
            let server = &mut self.servers[connection.server];
            while !server.is_silent
                && !connection.is_unread
                && let Some(args) = connection.waiting.pop_front()
            {
                connection.execute(server, args);
            }
            let unanswered = connection.ends.len() + connection.waiting.len();
            if unanswered > self.storm.unanswered_requests_max as usize + at_once {
                return Err(format!("{unanswered} requests are not answered on a link"));
            }
        }
        for client in &mut self.clients {
            client
                .got
                .extend_from_slice(self.world.got(client.session).as_bytes());
            let got = std::mem::take(&mut client.got);
            let mut scanner = ReplyScanner::default();
            let mut at = 0;
            while at < got.len() {
                match scanner.scan(&got[at..]) {
                    Ok(Scanned::Whole(len)) => {
                        client.take(&String::from_utf8_lossy(&got[at..at + len]), &self.storm)?;
                        at += len;
                    }
                    Ok(Scanned::Fragment) => break,
                    Err(error) => {
                        return Err(format!("client {} got no reply: {error}", client.number));
                    }
                }
            }
            client.got = got[at..].to_vec();
            if client.was_let_go && !client.asked.is_empty() && !client.is_in_doubt {
                let (number, asked) = (client.number, &client.asked);
                return Err(format!("client {number} was let go and is owed {asked:?}"));
            }
        }
        let is_right = |line: &str| {
            let right = ["+OK", "-UNKNOWN ", "-NOTSENT "];
            right.iter().any(|right| line.starts_with(right))
        };
        let switched = self.world.got(self.admin);
        if let Some(wrong) = switched.lines().find(|line| !is_right(line)) {
            return Err(format!("session after a switch got {wrong}"));
        }
        Ok(())
    }

    /// Ends the storm: all clients take their output, and all requests are answered.
    fn settle(&mut self) -> Result<(), String> {
        self.world.room.clear();
        for server in &mut self.servers {
            server.is_silent = false;
            server.connects = Connects::Yes;
        }
        for client in &self.clients {
            if client.is_open && self.world.slow.contains(&client.session) {
                self.world.takes(client.session);
            }
        }
        for _ in 0..400 {
            self.play(Step::Say(None))?;
            self.play(Step::Wait(50))?;
            if !self.is_settled() {
                continue;
            }
            let open = self.clients.iter().filter(|client| client.is_open);
            for (key, own) in open.flat_map(|client| &client.own) {
                let owner = &self.servers[self.world.owner_of(key)];
                let held = owner.written.get(key).copied();
                if !own.may_hold(held.unwrap_or(0)) {
                    return Err(format!("{key} holds {held:?}, not {own:?}"));
                }
            }
            return Ok(());
        }
        let held = self.world.engine.counters().held_bytes;
        let waits = |client: &&Client| client.is_open && !client.asked.is_empty();
        let waiting = self.clients.iter().filter(waits);
        let waiting: Vec<_> = waiting
            .map(|client| (client.number, &client.asked))
            .collect();
        Err(format!(
            "{held} bytes are held, and clients wait for ever: {waiting:?}"
        ))
    }

    /// Whether all clients have their replies, ended sessions are closed, and nothing is held.
    fn is_settled(&self) -> bool {
        let is_done =
            |client: &Client| !client.is_open || client.asked.is_empty() && !client.has_ended;
        self.clients.iter().all(is_done) && self.world.engine.counters().held_bytes == 0
    }
}

/// Plays a storm. Returns the engine's counters if every client got its own replies.
fn weather(storm: Storm, steps: Vec<Step>) -> Result<Counters, String> {
    let mut play = Play::new(storm);
    for step in steps {
        play.play(step)?;
    }
    play.settle()?;
    Ok(play.world.engine.counters())
}

proptest! {
    /// Every client gets its own replies, whole and in order, also if others fail.
    #[test]
    fn clients_get_own_replies_whole_in_every_storm(
        storm in storm(), steps in prop::collection::vec(step(), 1..200),
    ) {
        let outcome = weather(storm, steps);
        prop_assert!(outcome.is_ok(), "{:?}", outcome);
    }
}

/// A test of the test: it could see no fault if no request were fused, collapsed or sent again.
#[test]
fn storms_fuse_collapse_and_retry_much() {
    let mut runner = TestRunner::deterministic();
    let all_steps = prop::collection::vec(step(), 1..200);
    let storms = (storm(), all_steps);
    let mut all = Counters::default();
    for _ in 0..200 {
        let tree = storms
            .new_tree(&mut runner)
            .expect("the strategy has no filter");
        let (storm, steps) = tree.current();
        let counted = weather(storm, steps);
        all.add(&counted.unwrap_or_else(|problem| panic!("{problem}")));
    }
    let joined = [
        all.fused_gets,
        all.fused_sets,
        all.reads_collapsed,
        all.joined_requests_resent,
        all.reads_sent_again,
        all.late_replies,
    ];
    assert!(joined.iter().all(|count| *count > 10), "{joined:?}");
}

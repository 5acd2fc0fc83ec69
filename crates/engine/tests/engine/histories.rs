//! Whole histories in virtual time: many clients, servers that remember the requests that they
//! executed, and links that break at any byte. All bytes are cut at random. Each history comes from
//! a seed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::world::{
    HELLO, Owners, World, peer, place_of, request, requests, settings, take_requests, worker,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use respool_engine::settings::{PoolKind, Settings};
use respool_engine::{Action, Counters, Engine, LinkId, SessionId, Time, WorkerId};
use respool_protocol::encode;
use respool_protocol::reply::{self, Scanned};

/// The words of the error to a request if the server was too slow to answer whether it is allowed.
const NOT_TOLD: &[u8] = b" did not say whether this user may run the command";

/// Whether an answer is the error to a request of unknown rights.
fn is_not_told(answer: &[u8]) -> bool {
    let has_words = answer.windows(NOT_TOLD.len()).any(|text| text == NOT_TOLD);
    has_words && answer.starts_with(b"-NOTSENT respool: the command was not executed; ")
}

/// The beginning of the error to a scattered request of which not all servers executed their part.
const IN_PART: &[u8] =
    b"-UNKNOWN respool: a part of the command was executed, or may have been; NOPERM ";

/// The reply that a client expects in one place.
#[derive(Debug, PartialEq, Eq)]
enum Expected {
    /// This reply, also if servers fail.
    Here(Vec<u8>),
    /// The server's echo of this key, or an error with the fate of the request.
    Server(String),
    /// The same for a blocking command. If its link is lost, its client is closed.
    Waits(String),
    /// The same for a command that changes nothing and may run twice.
    Read(String),
    /// The same for a key that all clients read, so that the number of its runs is not checked.
    Common(String),
    /// The server's OK to a SET of this key, or an error with the fate of the request.
    Set(String),
    /// The result of a block: the echo of each of these keys, or one error for all, or nil if keys
    /// were watched and their link was lost.
    Block { keys: Vec<String>, watched: bool },
    /// The result for all these keys, which may belong to several servers, or one error for all.
    Many {
        command: &'static str,
        keys: Vec<String>,
    },
    /// The page of a SCAN with this cursor, and the next cursor.
    Page(String),
    /// OK, or an error.
    Watch,
    /// OK, or the error that the server has not answered whether it is allowed.
    Allowed,
}

struct Client {
    id: SessionId,
    name: usize,
    asked: usize,
    expected: Vec<Expected>,
    to_send: Vec<u8>,
    got: Vec<u8>,
    open: bool,
}

impl Client {
    /// The cursor after the last SCAN that was answered.
    fn next_page(&self) -> String {
        let answers = answers(&self.got);
        let pages = answers.iter().zip(&self.expected).rev();
        let found = pages.filter(|(_, expected)| matches!(expected, Expected::Page(_)));
        let mut next = found.filter_map(|(answer, _)| page(answer));
        next.next().map_or("0".to_owned(), |(next, _)| next)
    }
}

/// A connection to a server.
#[derive(Default)]
struct Connection {
    /// The place of its server.
    server: usize,
    read: Vec<u8>,
    to_send: Vec<u8>,
    /// The keys of the commands since MULTI.
    queued: Option<Vec<String>>,
}

struct History {
    engine: Engine,
    now: u64,
    random: u64,
    clients: Vec<Client>,
    connections: HashMap<LinkId, Connection>,
    owners: Owners,
    /// Whether each server is down.
    down: Vec<bool>,
    connecting: Vec<(LinkId, usize)>,
    /// The keys of all requests that were executed, in that order.
    executed: Vec<String>,
    /// Number of a hundred links that survive a step.
    link_luck: u64,
}

impl History {
    fn new(seed: u64, clients: usize, settings: Settings) -> Self {
        let worker = WorkerId {
            seed,
            ..worker(0, 1)
        };
        let owners = Owners::of(&settings);
        let servers = match &settings.pools[0].kind {
            PoolKind::Sharded { shards, .. } => shards.len(),
            PoolKind::Single(_) => 1,
            other => unreachable!("these tests have no {other:?}"),
        };
        let mut history = History {
            owners,
            down: vec![false; servers],
            engine: Engine::new(Arc::new(settings), worker, Time(0)),
            now: 0,
            random: seed | 1,
            clients: Vec::new(),
            connections: HashMap::new(),
            connecting: Vec::new(),
            executed: Vec::new(),
            link_luck: 100,
        };
        history.engine.begin_turn(Time(0));
        for name in 0..clients {
            let id = history.engine.handle_accept(peer(1000 + name as u16), 0);
            history.clients.push(Client {
                id,
                name,
                asked: 0,
                expected: Vec::new(),
                to_send: Vec::new(),
                got: Vec::new(),
                open: true,
            });
        }
        history.end_turn();
        history
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % below.max(1)
    }

    /// A client sends some requests.
    fn ask(&mut self, client: usize) {
        for _ in 0..=self.random(6) {
            let kind = self.random(23);
            let owners = &self.owners;
            let cursor = match kind {
                19 => self.clients[client].next_page(),
                _ => String::new(),
            };
            let Client {
                name,
                asked,
                expected,
                to_send,
                ..
            } = &mut self.clients[client];
            let key = format!("c{name}:{asked}");
            *asked += 1;
            match kind {
                20.. => {
                    let key = format!("common{}", kind % 2);
                    encode::request(to_send, &["GET", &key]);
                    expected.push(Expected::Common(key));
                }
                0 => {
                    encode::request(to_send, &["CLIENT", "UNPAUSE"]);
                    expected.push(Expected::Allowed);
                }
                1 => {
                    encode::request(to_send, &["CLIENT", "SETNAME", &key]);
                    expected.push(Expected::Here(b"+OK\r\n".to_vec()));
                    encode::request(to_send, &["CLIENT", "GETNAME"]);
                    let mut reply = Vec::new();
                    encode::bulk(&mut reply, key.as_bytes());
                    expected.push(Expected::Here(reply));
                }
                2 => {
                    to_send.extend_from_slice(format!("INCR {key}\r\n").as_bytes());
                    expected.push(Expected::Server(key));
                }
                10 | 11 => {
                    let watched = kind == 11;
                    if watched {
                        let watched = owners.key_at(owners.owner_of(&key), "w");
                        encode::request(to_send, &["WATCH", &watched]);
                        expected.push(Expected::Watch);
                    }
                    encode::request(to_send, &["MULTI"]);
                    expected.push(Expected::Here(b"+OK\r\n".to_vec()));
                    let server = owners.owner_of(&key);
                    let names = (0..3).map(|nth| owners.key_at(server, &format!("{key}:{nth}.")));
                    let keys: Vec<String> = names.collect();
                    for key in &keys {
                        encode::request(to_send, &["INCR", key]);
                        expected.push(Expected::Here(b"+QUEUED\r\n".to_vec()));
                    }
                    encode::request(to_send, &["EXEC"]);
                    expected.push(Expected::Block { keys, watched });
                }
                12 => {
                    encode::request(to_send, &["BLPOP", &key, "0"]);
                    expected.push(Expected::Waits(key));
                }
                13 => {
                    // The reply is dropped, wherever it comes from, and later replies keep their
                    // places.
                    encode::request(to_send, &["CLIENT", "REPLY", "SKIP"]);
                    encode::request(to_send, &["GET", &key]);
                    encode::request(to_send, &["CLIENT", "UNPAUSE"]);
                    expected.push(Expected::Allowed);
                }
                14 => {
                    encode::request(to_send, &["MULTI"]);
                    encode::request(to_send, &["INCR", &key]);
                    encode::request(to_send, &["DISCARD"]);
                    for reply in ["+OK\r\n", "+QUEUED\r\n", "+OK\r\n"] {
                        expected.push(Expected::Here(reply.into()));
                    }
                }
                15..=18 => {
                    let command = ["MGET", "MSET", "DEL", "EXISTS"][kind as usize - 15];
                    let mut keys: Vec<String> = (0..4).map(|nth| format!("{key}:{nth}")).collect();
                    if command == "MGET" {
                        keys.push(keys[0].clone());
                    }
                    let mut words = vec![command];
                    for key in &keys {
                        words.push(key);
                        words.extend((command == "MSET").then_some("v"));
                    }
                    encode::request(to_send, &words);
                    expected.push(Expected::Many { command, keys });
                }
                19 => {
                    encode::request(to_send, &["SCAN", &cursor]);
                    expected.push(Expected::Page(cursor));
                }
                6..=8 => {
                    encode::request(to_send, &["SET", &key, "v"]);
                    expected.push(Expected::Set(key));
                }
                3..=5 => {
                    encode::request(to_send, &["GET", &key]);
                    expected.push(Expected::Read(key));
                }
                _ => {
                    encode::request(to_send, &["INCR", &key]);
                    expected.push(Expected::Server(key));
                }
            }
        }
    }

    /// Runs a turn in which a random part of all bytes under way arrives.
    fn turn(&mut self) {
        // Mostly microseconds, and now and then long enough for a link to count as stable.
        self.now += match self.random(8) {
            0 => self.random(600_000),
            _ => 1 + self.random(300),
        };
        self.engine.begin_turn(Time(self.now));
        if self.engine.is_tick_due() {
            self.engine.begin_tick(None);
        }
        for server in 0..self.down.len() {
            let is_down = self.down[server];
            // A server is down for some turns, while others work on.
            let falls = is_down || self.random(200) >= self.link_luck + 98;
            self.down[server] = falls && self.link_luck < 100 && self.random(8) > 0;
        }
        for (link, server) in std::mem::take(&mut self.connecting) {
            if self.random(100) < self.link_luck && !self.down[server] {
                let connection = Connection {
                    server,
                    ..Connection::default()
                };
                self.connections.insert(link, connection);
                self.engine.handle_link_up(link);
            } else {
                self.engine.handle_link_lost(link, "refused");
            }
        }
        for client in 0..self.clients.len() {
            let part = self.random(self.clients[client].to_send.len() as u64 + 1) as usize;
            if part > 0 && self.clients[client].open {
                let bytes: Vec<u8> = self.clients[client].to_send.drain(..part).collect();
                self.engine
                    .handle_session_bytes(self.clients[client].id, &bytes);
            }
        }
        let links: Vec<LinkId> = self.connections.keys().copied().collect();
        for link in links {
            let is_down = self.down[self.connections[&link].server];
            if self.random(100) >= self.link_luck || is_down {
                self.connections.remove(&link);
                self.engine.handle_link_lost(link, "reset");
                continue;
            }
            let waiting = self.connections[&link].to_send.len() as u64;
            let part = self.random(waiting + 1) as usize;
            if part > 0
                && let Some(connection) = self.connections.get_mut(&link)
            {
                let bytes: Vec<u8> = connection.to_send.drain(..part).collect();
                self.engine.handle_link_bytes(link, &bytes);
            }
        }
        self.end_turn();
    }

    fn end_turn(&mut self) {
        self.engine.end_turn();
        let mut again = Vec::new();
        while let Some(link) = self.engine.poll_link() {
            let output = self.engine.link_output(link).to_vec();
            let part = 1 + self.random(output.len() as u64) as usize;
            if let Some(connection) = self.connections.get_mut(&link)
                && !output.is_empty()
            {
                connection.read.extend_from_slice(&output[..part]);
                self.engine.handle_link_written(link, part);
                again.push((link, part < output.len()));
            }
        }
        // The rest follows, as a driver writes when the socket has room again, or the link breaks
        // first.
        for (link, more) in again {
            if more && self.random(100) < self.link_luck {
                let output = self.engine.link_output(link).to_vec();
                if let Some(connection) = self.connections.get_mut(&link) {
                    connection.read.extend_from_slice(&output);
                    self.engine.handle_link_written(link, output.len());
                }
            } else if more && self.connections.remove(&link).is_some() {
                self.engine.handle_link_lost(link, "reset in mid-write");
            }
        }
        while let Some(session) = self.engine.poll_session() {
            let output = self.engine.session_output(session).to_vec();
            if let Some(client) = self.clients.iter_mut().find(|client| client.id == session) {
                client.got.extend_from_slice(&output);
            }
            self.engine.handle_session_written(session, output.len());
        }
        while let Some(action) = self.engine.poll_action() {
            match action {
                Action::Connect { link, to } => self.connecting.push((link, place_of(&to))),
                Action::CloseLink(link) => {
                    self.connections.remove(&link);
                    self.connecting.retain(|(other, _)| *other != link);
                }
                Action::CloseSession { session, .. } => {
                    if let Some(client) =
                        self.clients.iter_mut().find(|client| client.id == session)
                    {
                        client.open = false;
                    }
                }
                Action::EndLink(_) => unreachable!("no client leaves"),
                Action::ReadLink(..) | Action::ReadSession(..) | Action::ForgetPool(_) => {}
                Action::Ask { .. } | Action::Answer { .. } => {
                    unreachable!("a single worker has no queries for others")
                }
            }
        }
        while self.engine.poll_event().is_some() {}
        self.serve();
    }

    /// The servers execute all whole requests that they have.
    fn serve(&mut self) {
        for connection in self.connections.values_mut() {
            for args in take_requests(&mut connection.read) {
                match args[0].as_str() {
                    "HELLO" => connection.to_send.extend_from_slice(HELLO.as_bytes()),
                    // A check of a server whose link for one session is silent.
                    "PING" => connection.to_send.extend_from_slice(b"+PONG\r\n"),
                    // Without a list of commands the table counts.
                    "CLIENT" => connection.to_send.extend_from_slice(b"+OK\r\n"),
                    "COMMAND" => connection.to_send.extend_from_slice(b"-ERR no\r\n"),
                    "MULTI" => {
                        assert!(connection.queued.is_none(), "a block inside a block");
                        connection.queued = Some(Vec::new());
                        connection.to_send.extend_from_slice(b"+OK\r\n");
                    }
                    "EXEC" => {
                        let keys = connection.queued.take().expect("EXEC ends a block");
                        encode::array(&mut connection.to_send, keys.len());
                        for key in keys {
                            encode::bulk(&mut connection.to_send, key.as_bytes());
                            self.executed.push(key);
                        }
                    }
                    "DISCARD" => {
                        connection.queued = None;
                        connection.to_send.extend_from_slice(b"+OK\r\n");
                    }
                    "WATCH" | "UNWATCH" => connection.to_send.extend_from_slice(b"+OK\r\n"),
                    "INCR" if connection.queued.is_some() => {
                        connection
                            .queued
                            .as_mut()
                            .expect("asked")
                            .push(args[1].clone());
                        connection.to_send.extend_from_slice(b"+QUEUED\r\n");
                    }
                    "SET" => {
                        assert!(
                            connection.queued.is_none(),
                            "another session's request inside a block"
                        );
                        self.executed.push(args[1].clone());
                        connection.to_send.extend_from_slice(b"+OK\r\n");
                    }
                    // Some MSETs are refused. None of their keys is set then.
                    "MSET" if is_odd(&args[1]) => {
                        connection.to_send.extend_from_slice(b"-NOPERM no\r\n");
                    }
                    "MSET" => {
                        let (pairs, _) = args[1..].as_chunks::<2>();
                        self.executed
                            .extend(pairs.iter().map(|[key, _]| key.clone()));
                        connection.to_send.extend_from_slice(b"+OK\r\n");
                    }
                    "MGET" if is_odd(&args[args.len() - 1]) => {
                        connection.to_send.extend_from_slice(b"-NOPERM no\r\n");
                    }
                    "MGET" => {
                        encode::array(&mut connection.to_send, args.len() - 1);
                        for key in &args[1..] {
                            self.executed.push(key.clone());
                            if is_odd(key) {
                                connection.to_send.extend_from_slice(b"$-1\r\n");
                            } else {
                                encode::bulk(&mut connection.to_send, key.as_bytes());
                            }
                        }
                    }
                    "DEL" | "EXISTS" => {
                        self.executed.extend_from_slice(&args[1..]);
                        encode::integer(&mut connection.to_send, args.len() as i64 - 1);
                    }
                    "SCAN" => {
                        let at: usize = args[1].parse().expect("a cursor of this server");
                        encode::array(&mut connection.to_send, 2);
                        let next = ((at + 1) % PAGES).to_string();
                        encode::bulk(&mut connection.to_send, next.as_bytes());
                        encode::array(&mut connection.to_send, 1);
                        let name = page_of(connection.server, at);
                        encode::bulk(&mut connection.to_send, name.as_bytes());
                    }
                    "INCR" | "GET" | "BLPOP" => {
                        assert!(
                            connection.queued.is_none(),
                            "another session's request inside a block"
                        );
                        self.executed.push(args[1].clone());
                        encode::bulk(&mut connection.to_send, args[1].as_bytes());
                    }
                    other => panic!("the server got {other}"),
                }
            }
        }
    }

    /// Lets all requests end, without further losses.
    fn settle(&mut self) {
        self.link_luck = 100;
        for _ in 0..20_000 {
            if self.clients.iter().all(|client| {
                !client.open
                    || client.to_send.is_empty()
                        && answers(&client.got).len() == client.expected.len()
            }) {
                return;
            }
            self.turn();
        }
        panic!("clients still wait after 20,000 turns");
    }
}

/// The replies in a client's bytes.
fn answers(bytes: &[u8]) -> Vec<&[u8]> {
    let mut scanner = reply::ReplyScanner::default();
    let mut rest = bytes;
    let mut found = Vec::new();
    while !rest.is_empty() {
        match scanner
            .scan(rest)
            .expect("a client gets replies and nothing else")
        {
            Scanned::Whole(len) => {
                found.push(&rest[..len]);
                rest = &rest[len..];
            }
            Scanned::Fragment => break,
        }
    }
    found
}

/// Number of pages of a SCAN at each server.
const PAGES: usize = 3;

fn page_of(server: usize, at: usize) -> String {
    format!("server {server}, page {at}")
}

/// The next cursor and the page in a reply to SCAN.
fn page(reply: &[u8]) -> Option<(String, String)> {
    let text = String::from_utf8_lossy(reply);
    let lines: Vec<&str> = text.split("\r\n").collect();
    match lines[..] {
        ["*2", _, cursor, "*1", _, found, ""] => Some((cursor.to_owned(), found.to_owned())),
        _ => None,
    }
}

/// Whether a key is one of the eighth that servers treat in another way.
fn is_odd(key: &str) -> bool {
    key.bytes().map(u32::from).sum::<u32>() % 8 == 0
}

/// The places at which a server executed the requests of one client.
#[derive(Clone, Default)]
struct Order {
    changed_at: usize,
    reads_before: Vec<usize>,
}

impl Order {
    /// Takes the places at which the next request ran. Returns whether they come after those that
    /// it must follow.
    fn takes(&mut self, runs: &[usize], is_read: bool) -> bool {
        let (Some(first), Some(last)) = (runs.iter().min(), runs.iter().max()) else {
            return true;
        };
        // The client sees the last run of a read that ran more than once.
        let seen_at = if is_read { last } else { first };
        let is_right = *seen_at >= self.changed_at
            && (is_read || self.reads_before.iter().all(|read| read < first));
        match is_read {
            true => self.reads_before.push(*last),
            false => self.changed_at = *last,
        }
        is_right
    }
}

/// The kind of a history.
#[derive(Clone, Debug)]
struct Setting {
    seed: u64,
    clients: usize,
    servers: u16,
    /// Number of a hundred links that survive a step.
    luck: u64,
    turns: usize,
    fuse: bool,
    collapse: bool,
    /// Whether requests wait for a server that is away.
    hold: bool,
}

fn setting() -> impl Strategy<Value = Setting> {
    let numbers = (
        any::<u64>(),
        1..12_usize,
        1..=3_u16,
        80..=100_u64,
        1..120_usize,
    );
    (numbers, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |((seed, clients, servers, luck, turns), fuse, collapse, hold)| Setting {
            seed,
            clients,
            servers,
            luck,
            turns,
            fuse,
            collapse,
            hold,
        },
    )
}

/// Checks that every client gets its own replies in order, and errors that tell the truth. Returns
/// the engine's counters.
fn run(setting: &Setting) -> Result<Counters, TestCaseError> {
    let Setting {
        seed,
        clients,
        servers,
        luck,
        turns,
        fuse,
        collapse,
        hold,
    } = *setting;
    let mut settings = crate::world::pool_of(servers);
    settings.flush.fuse = fuse;
    settings.flush.collapse = collapse;
    settings.timeouts.outage_hold_ms = if hold { 300 } else { 0 };
    let mut history = History::new(seed, clients, settings);
    history.link_luck = luck;
    for _ in 0..turns {
        // One client alone, or several in one turn.
        for _ in 0..=history.random(4) {
            let client = history.random(clients as u64) as usize;
            history.ask(client);
        }
        history.turn();
    }
    history.settle();
    let mut seen = HashSet::new();
    let mut pages: HashMap<String, (String, String)> = HashMap::new();
    let mut runs_of: HashMap<&String, Vec<usize>> = HashMap::new();
    for (at, key) in history.executed.iter().enumerate() {
        runs_of.entry(key).or_default().push(at);
    }
    let ran = |key: &String| runs_of.get(key).cloned().unwrap_or_default();
    for client in &history.clients {
        let answers = answers(&client.got);
        if client.open {
            prop_assert_eq!(answers.len(), client.expected.len());
        } else {
            // The last request waited on a link that was lost.
            let last = client.expected.get(answers.len());
            prop_assert!(matches!(last, Some(Expected::Waits(_))), "{:?}", last);
        }
        // The places at which each server executed this client's requests so far.
        let mut orders: Vec<Order> = vec![Order::default(); servers.into()];
        for (answer, expected) in answers.iter().zip(&client.expected) {
            let (key, is_read, is_set) = match expected {
                Expected::Here(reply) => {
                    prop_assert_eq!(answer, reply);
                    continue;
                }
                Expected::Common(key) => {
                    let mut echo = Vec::new();
                    encode::bulk(&mut echo, key.as_bytes());
                    let is_lost =
                        answer.starts_with(b"-NOTSENT ") || answer.starts_with(b"-UNKNOWN ");
                    prop_assert!(*answer == echo || is_lost, "{} got {:?}", key, answer);
                    continue;
                }
                Expected::Allowed => {
                    prop_assert!(*answer == b"+OK\r\n" || is_not_told(answer));
                    continue;
                }
                Expected::Page(cursor) => {
                    if let Some(found) = page(answer) {
                        let before = pages.insert(cursor.clone(), found.clone());
                        prop_assert!(before.is_none_or(|before| before == found));
                    } else {
                        prop_assert!(
                            answer.starts_with(b"-NOTSENT ") || answer.starts_with(b"-UNKNOWN ")
                        );
                    }
                    continue;
                }
                Expected::Many { command, keys } => {
                    let reads = matches!(*command, "MGET" | "EXISTS");
                    let is_refused =
                        answer.starts_with(b"-NOPERM ") && matches!(*command, "MGET" | "MSET");
                    let is_unsent = answer.starts_with(b"-NOTSENT ");
                    let is_unknown = answer.starts_with(b"-UNKNOWN ");
                    let names: HashSet<&String> = keys.iter().collect();
                    for key in &names {
                        let runs: Vec<usize> = ran(key);
                        let asked = keys.iter().filter(|other| other == key).count();
                        // A lost read is sent once more.
                        prop_assert!(
                            runs.len() <= if reads { 2 * asked } else { asked },
                            "{} ran at {:?}",
                            key,
                            runs
                        );
                        if (is_unsent || is_refused) && !(reads && servers > 1) {
                            prop_assert!(
                                runs.is_empty(),
                                "{} ran, and its client got an error that it did not",
                                key
                            );
                        } else if !is_unknown && !is_unsent && !is_refused {
                            prop_assert!(!runs.is_empty());
                        }
                    }
                    let mut whole = Vec::new();
                    match *command {
                        "MGET" => {
                            encode::array(&mut whole, keys.len());
                            for key in keys {
                                match is_odd(key) {
                                    true => whole.extend_from_slice(b"$-1\r\n"),
                                    false => encode::bulk(&mut whole, key.as_bytes()),
                                }
                            }
                        }
                        "MSET" => whole.extend_from_slice(b"+OK\r\n"),
                        _ => encode::integer(&mut whole, keys.len() as i64),
                    }
                    prop_assert!(
                        *answer == whole || is_unsent || is_unknown || is_refused,
                        "{:?} got {:?}",
                        keys,
                        answer
                    );
                    for (at, order) in orders.iter_mut().enumerate() {
                        let its = names
                            .iter()
                            .filter(|key| history.owners.owner_of(key) == at);
                        let runs: Vec<usize> = its.flat_map(|key| ran(key)).collect();
                        if !reads || *answer == whole {
                            prop_assert!(order.takes(&runs, reads), "{:?} ran at {:?}", keys, runs);
                        }
                    }
                    continue;
                }
                Expected::Watch => {
                    prop_assert!(*answer == b"+OK\r\n" || answer[0] == b'-');
                    continue;
                }
                Expected::Block { keys, watched } => {
                    let at: Vec<usize> = keys.iter().flat_map(&ran).collect();
                    let whole =
                        at.len() == keys.len() && at.windows(2).all(|two| two[0] + 1 == two[1]);
                    prop_assert!(at.is_empty() || whole, "{:?} ran at {:?}", keys, at);
                    let mut echo = Vec::new();
                    encode::array(&mut echo, keys.len());
                    keys.iter()
                        .for_each(|key| encode::bulk(&mut echo, key.as_bytes()));
                    if answer.starts_with(b"-NOTSENT ") || *answer == b"*-1\r\n" && *watched {
                        prop_assert!(
                            at.is_empty(),
                            "{:?} ran, and its client got an error that they did not",
                            keys
                        );
                    } else if !answer.starts_with(b"-UNKNOWN ") {
                        prop_assert_eq!(*answer, &echo[..]);
                        prop_assert!(whole);
                    }
                    let order = &mut orders[history.owners.owner_of(&keys[0])];
                    prop_assert!(order.takes(&at, false), "{:?} ran at {:?}", keys, at);
                    continue;
                }
                Expected::Server(key) | Expected::Waits(key) => (key, false, false),
                Expected::Read(key) => (key, true, false),
                Expected::Set(key) => (key, false, true),
            };
            prop_assert!(seen.insert(key.clone()));
            let runs: Vec<usize> = ran(key);
            // A lost read is sent once more. A fused read is sent again by itself, and may be lost
            // once more.
            let runs_max = if is_read {
                2 + 2 * usize::from(fuse)
            } else {
                1
            };
            prop_assert!(runs.len() <= runs_max, "{} ran at {:?}", key, runs);
            if answer.starts_with(b"-NOTSENT ") {
                prop_assert!(
                    runs.is_empty(),
                    "{} ran, and its client got an error that it did not",
                    key
                );
            } else if !answer.starts_with(b"-UNKNOWN ") {
                let mut echo = Vec::new();
                if is_set {
                    echo.extend_from_slice(b"+OK\r\n");
                } else {
                    encode::bulk(&mut echo, key.as_bytes());
                }
                prop_assert_eq!(*answer, &echo[..]);
                prop_assert!(!runs.is_empty());
            }
            if is_read && answer[0] == b'-' {
                // The client has not got the result.
                continue;
            }
            // Requests of a session run at a server in the order asked, as far as changes are
            // visible.
            let order = &mut orders[history.owners.owner_of(key)];
            prop_assert!(
                order.takes(&runs, is_read),
                "{} ran at {:?}, not in the order asked",
                key,
                runs
            );
        }
        if luck == 100 {
            let expected = [&b"-NOPERM no"[..], b"-NOPERM respool: server:", IN_PART];
            let is_expected = |answer: &&[u8]| {
                is_not_told(answer) || expected.iter().any(|text| answer.starts_with(text))
            };
            let failed = |answer: &&[u8]| answer[0] == b'-' && !is_expected(answer);
            prop_assert!(
                !answers.iter().any(failed),
                "a request failed though no link broke"
            );
        }
    }
    let counted = history.engine.counters();
    // A walk by cursors meets every page of every server, and ends.
    let all = (0..servers.into()).flat_map(|server| (0..PAGES).map(move |at| page_of(server, at)));
    let mut cursor = "0".to_owned();
    for expected in all {
        let Some((next, found)) = pages.get(&cursor) else {
            return Ok(counted);
        };
        prop_assert_eq!(found, &expected);
        cursor.clone_from(next);
    }
    prop_assert_eq!(cursor, "0");
    Ok(counted)
}

proptest! {
    /// No reply is dropped, doubled, out of order or another client's. No request runs twice, and
    /// none runs although its client got an error that it did not.
    #[test]
    fn clients_get_own_replies_in_order_and_true_failures(setting in setting()) {
        run(&setting)?;
    }
}

/// A test of the test: it could see no fault if no request were fused, collapsed or sent again.
#[test]
fn histories_fuse_collapse_and_retry_much() {
    let mut runner = TestRunner::deterministic();
    let mut all = Counters::default();
    for _ in 0..400 {
        let tree = setting()
            .new_tree(&mut runner)
            .expect("the strategy has no filter");
        all.add(&run(&tree.current()).expect("every client gets its own"));
    }
    let joined = [
        all.fused_gets,
        all.fused_sets,
        all.reads_collapsed,
        all.joined_requests_resent,
        all.reads_sent_again,
    ];
    assert!(joined.iter().all(|count| *count > 10), "{joined:?}");
}

/// The reply to a request that was given up is dropped, and no other session gets it.
#[test]
fn late_reply_is_dropped_and_the_link_lives_on() {
    let limit_ms = settings().timeouts.request_ms;
    let mut world = World::new(settings());
    let link = world.shared;
    let [first, second] = [world.accept(), world.accept()];
    world.asks(first, &["INCR slow"]);
    let whole = request(&["INCR", "slow"]);
    assert_eq!(
        world.sent(link).as_bytes(),
        whole,
        "the request leaves whole"
    );
    // Longer than the deadline of a request, and shorter than the stall of a link.
    world.turn_at(world.now.plus_ms(limit_ms + 100), |_| {});
    let error = world.got(first);
    let expected = "-UNKNOWN respool: the command was sent and may have been executed";
    assert!(error.starts_with(expected), "{error}");
    world.asks(second, &["INCR next"]);
    assert_eq!(world.sent(link), "", "held: the first is still in flight");
    // The late reply comes now.
    world.turn_at(world.now, |engine| {
        engine.handle_link_bytes(link, b"$4\r\nslow\r\n");
    });
    assert_eq!(world.engine.counters().late_replies, 1);
    assert_eq!(world.got(first), "", "dropped");
    world.says(link, "$4\r\nnext\r\n");
    assert_eq!(world.got(second), "$4\r\nnext\r\n");
    assert_eq!(world.engine.counters().links_lost, 0, "the link lives on");
}

/// A reply without a request is not taken for the answer to a request that has not left yet.
#[test]
fn unexpected_reply_ends_the_link_and_reaches_no_client() {
    let mut world = World::new(settings());
    let (link, session) = (world.shared, world.accept());
    world.turn(|engine| {
        engine.handle_session_bytes(session, &request(&["INCR", "k"]));
        engine.handle_link_bytes(link, b"+OK\r\n");
    });
    assert!(!world.got(session).starts_with("+OK"));
    assert_eq!(world.engine.counters().links_lost, 1);
    assert_eq!(world.closed_links(), [link]);
}

/// A test of the test server: the requests that it reads do not depend on where the bytes are cut.
#[test]
fn split_request_is_executed_once_it_is_whole() {
    let bytes = requests(&["SET a 1", "GET b"]);
    for cut in 0..=bytes.len() {
        let mut sent = bytes[..cut].to_vec();
        let mut taken = take_requests(&mut sent);
        sent.extend_from_slice(&bytes[cut..]);
        taken.extend(take_requests(&mut sent));
        assert_eq!(taken, [&["SET", "a", "1"][..], &["GET", "b"]]);
        assert!(sent.is_empty());
    }
}

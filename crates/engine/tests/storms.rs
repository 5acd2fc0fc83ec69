//! Slow clients, clients that leave, links that are lost or stuck, large values, refusals, deadlines and levels that are switched, all at
//! once: every client gets its own answers, whole and in order, or is told what became of a request; what it writes is written in
//! its order, once; nobody waits for ever, and nothing stays held.

mod world;

use std::collections::{HashMap, HashSet, VecDeque};

use proptest::prelude::*;
use respool_engine::{Action, LinkId, SessionId};
use respool_protocol::encode::{self, Version};
use respool_protocol::reply::{Scanned, Scanner};
use world::{World, requests, settings};

const CLIENTS: usize = 6;
/// What sockets bring at once.
const READ_BYTES: usize = 80_000;
/// Longer than all that happens.
const LONG_MS: u32 = 600_000;
const REFUSED: &str = "-OOM no\r\n";

/// What a key holds that nobody writes: little, much, a list, nothing.
fn constant(key: &str) -> Option<String> {
    let number: usize = key[1..].parse().expect("a key is a letter and a number");
    match &key[..1] {
        "k" => Some(format!("{key}:{}", "x".repeat(number * number * 40))),
        "B" => Some(format!("{key}:{}", "y".repeat(90_000 + number))),
        _ => None,
    }
}

/// The server, behind however many connections.
#[derive(Default)]
struct Server {
    /// `w` and the number of who alone writes it, always more than before.
    written: HashMap<String, u64>,
    executed: u64,
    /// Refuses an MGET or MSET now and then.
    refuses: bool,
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
                    let value = pair[1].parse().expect("they write numbers");
                    let before = self.written.insert(pair[0].to_owned(), value);
                    assert!(before < Some(value), "{pair:?} behind {before:?}");
                }
                says.extend_from_slice(b"+OK\r\n");
            }
            ["GET", key] => self.get(key, says),
            ["STRLEN", key] => {
                encode::integer(says, constant(key).map_or(0, |value| value.len() as i64));
            }
            ["CONFIG", ..] => says.extend_from_slice(b"-ERR Unknown option\r\n"),
            ["HELLO", ..] => says.extend_from_slice(world::HELLO.as_bytes()),
            other => panic!("the server got {other:?}"),
        }
    }
}

/// The server's end of a link.
#[derive(Default)]
struct Connection {
    says: Vec<u8>,
    is_unread: bool,
}

struct Client {
    session: SessionId,
    number: usize,
    is_open: bool,
    /// It sends nothing any more.
    has_ended: bool,
    /// Its session was closed when it had been answered everything.
    was_let_go: bool,
    asked: VecDeque<String>,
    got: Vec<u8>,
    /// The last value that it wrote, the last one that was acknowledged, and those behind it that may have been written.
    wrote: u64,
    acknowledged: u64,
    maybe: HashSet<u64>,
    /// What it read last of each key.
    read: HashMap<String, u64>,
}

impl Client {
    fn new(session: SessionId, number: usize) -> Client {
        Client {
            session,
            number,
            is_open: true,
            has_ended: false,
            was_let_go: false,
            asked: VecDeque::new(),
            got: Vec::new(),
            wrote: 0,
            acknowledged: 0,
            maybe: HashSet::new(),
            read: HashMap::new(),
        }
    }

    fn own_key(&self) -> String {
        format!("w{}", self.number)
    }

    /// Whether its key may hold this; 0: nothing.
    fn may_hold(&self, value: u64) -> bool {
        value == self.acknowledged || self.maybe.contains(&value)
    }

    /// Takes the reply to its oldest request.
    fn take(&mut self, reply: &str, storm: &Storm) -> Result<(), String> {
        let short = &reply[..reply.len().min(80)];
        let Some(request) = self.asked.pop_front() else {
            return Err(format!("client {} got {short:?} for nothing", self.number));
        };
        let wrong = Err(format!(
            "client {} asked {request} and got {short:?}, acknowledged {}, perhaps {:?}",
            self.number, self.acknowledged, self.maybe
        ));
        let (is_unknown, is_unsent) =
            (reply.starts_with("-UNKNOWN"), reply.starts_with("-NOTSENT"));
        if (is_unknown || is_unsent) && !storm.loses_links && storm.request_ms == LONG_MS {
            return wrong;
        }
        let words: Vec<&str> = request.split(' ').collect();
        let right = match words[..] {
            ["SET", _, value] => {
                let value = value.parse().expect("it writes numbers");
                if reply == "+OK\r\n" {
                    self.acknowledged = value;
                    self.maybe.clear();
                } else if is_unknown {
                    self.maybe.insert(value);
                }
                reply == "+OK\r\n" || is_unknown || is_unsent
            }
            _ if is_unknown || is_unsent => true,
            ["GET", key] if key.starts_with('w') => {
                let value = match reply.split("\r\n").nth(1).map(str::parse) {
                    _ if reply == "$-1\r\n" => 0,
                    Some(Ok(value)) if reply.starts_with('$') => value,
                    _ => return wrong,
                };
                let before = self.read.insert(key.to_owned(), value);
                let is_own = key == self.own_key();
                before <= Some(value) && (!is_own || self.may_hold(value))
            }
            [command, key] => {
                let mut expected = Vec::new();
                Server::default().execute(&[command, key], &mut expected);
                reply.as_bytes() == expected
            }
            _ => unreachable!("it asks nothing else"),
        };
        if right { Ok(()) } else { wrong }
    }
}

/// What is hard this time.
#[derive(Clone, Copy, Debug)]
struct Storm {
    loses_links: bool,
    has_large_values: bool,
    has_odd_keys: bool,
    refuses: bool,
    /// Bounds of what a session may be owed.
    soft_bytes: u32,
    hard_bytes: u32,
    request_ms: u32,
    fuse: bool,
    collapse: bool,
    keys_max: u32,
}

fn storm() -> impl Strategy<Value = Storm> {
    let bools = prop::array::uniform4(any::<bool>());
    // Not both at once: what was given up on a link that a slow client holds up may be executed behind what its own client
    // asks on the next one.
    let narrow = (500..4_500_u32, 20_000..320_000_u32, Just(LONG_MS));
    let hasty = (Just(30_000_000), Just(40_000_000), Just(400));
    let limits = prop_oneof![2 => narrow, 1 => hasty];
    let levels = (
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.8),
        2..8_u32,
    );
    (bools, limits, levels).prop_map(|(bools, limits, levels)| {
        let [loses_links, has_large_values, has_odd_keys, refuses] = bools;
        Storm {
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

/// What happens next, by numbers that mean something else each time.
#[derive(Clone, Debug)]
enum Step {
    /// Clients ask, each for several things.
    Ask(Vec<(usize, Vec<(u8, u8)>)>),
    /// A client takes nothing any more, or takes everything again.
    Turn(usize),
    /// A client sends no more.
    End(usize),
    /// A client leaves, and another one comes.
    Leave(usize),
    Lose(usize),
    /// A link's socket takes only so many bytes more, or everything again.
    Stick(usize, Option<usize>),
    /// Somebody switches something of ours.
    Switch(String),
    Wait(u32),
    /// The server says what it has to say, all of it or so much on each connection.
    Say(Option<usize>),
}

fn step() -> impl Strategy<Value = Step> {
    let asked = prop::collection::vec((0..14_u8, 0..8_u8), 1..6);
    let sticks = (0..3_usize, prop::option::of(0..400_usize));
    let says = prop_oneof![Just(None), (1..100_000_usize).prop_map(Some)];
    prop_oneof![
        5 => prop::collection::vec((0..CLIENTS, asked), 1..7).prop_map(Step::Ask),
        1 => (0..CLIENTS).prop_map(Step::Turn),
        1 => (0..CLIENTS).prop_map(Step::End),
        2 => (0..CLIENTS).prop_map(Step::Leave),
        1 => (0..8_usize).prop_map(Step::Lose),
        1 => sticks.prop_map(|(at, room)| Step::Stick(at, room)),
        1 => switch().prop_map(Step::Switch),
        1 => (1..1_500_u32).prop_map(Step::Wait),
        4 => says.prop_map(Step::Say),
    ]
}

fn switch() -> impl Strategy<Value = String> {
    let names = prop::sample::select(vec![
        "hold",
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
        1 => delays.prop_map(|us| format!("max-delay-us {us}")),
        1 => (2..8_u32).prop_map(|keys| format!("fused-keys-max {keys}")),
    ]
}

struct Play {
    storm: Storm,
    world: World,
    server: Server,
    /// In the order in which they came.
    links: Vec<(LinkId, Connection)>,
    clients: Vec<Client>,
    /// Who switches.
    admin: SessionId,
}

impl Play {
    fn new(storm: Storm) -> Play {
        let mut settings = settings();
        settings.flush.fuse = storm.fuse;
        settings.flush.collapse = storm.collapse;
        settings.flush.fused_keys_max = storm.keys_max;
        settings.limits.session_output_soft_bytes = storm.soft_bytes;
        settings.limits.session_output_hard_bytes = storm.hard_bytes;
        // Nobody is given up for being slow: whoever waits for ever is found.
        settings.limits.session_stall_ms = LONG_MS;
        settings.limits.stranger_stall_ms = LONG_MS;
        settings.timeouts.link_stall_ms = LONG_MS;
        settings.timeouts.request_ms = storm.request_ms;
        let mut world = World::new(settings);
        world.wait_ms(1_100);
        let clients = (0..CLIENTS)
            .map(|number| Client::new(world.accept(), number))
            .collect();
        Play {
            storm,
            admin: world.accept(),
            links: vec![(world.shared, Connection::default())],
            world,
            server: Server {
                refuses: storm.refuses,
                ..Server::default()
            },
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
            Step::End(client) => {
                let client = &mut self.clients[client];
                client.has_ended = true;
                let session = client.session;
                self.world.turn(|engine| engine.handle_session_end(session));
            }
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
            Step::Lose(_) | Step::Stick(..) => {}
            Step::Switch(what) => {
                let request = format!("CONFIG SET respool.{what}");
                self.world.asks(self.admin, &[&request]);
            }
            Step::Wait(ms) => self.world.wait_ms(ms),
            Step::Say(most) => self.say(most),
        }
        self.look()
    }

    fn ask(&mut self, all: Vec<(usize, Vec<(u8, u8)>)>) {
        let keys: Vec<String> = self.clients.iter().map(Client::own_key).collect();
        let mut sent = Vec::new();
        for (client, asked) in all {
            let client = &mut self.clients[client];
            if !client.is_open || client.has_ended {
                continue;
            }
            for (what, key) in asked {
                let request = match what {
                    0 | 1 => {
                        client.wrote += 1;
                        format!("SET {} {}", client.own_key(), client.wrote)
                    }
                    2 => format!("GET {}", client.own_key()),
                    3 => format!("GET {}", keys[usize::from(key) % CLIENTS]),
                    4 if self.storm.has_odd_keys => format!("GET l{}", key % 2),
                    5 if self.storm.has_odd_keys => format!("GET n{}", key % 2),
                    6 => format!("STRLEN k{key}"),
                    7 if self.storm.has_large_values => format!("GET B{}", key % 3),
                    _ => format!("GET k{key}"),
                };
                sent.push((client.session, requests(&[&request])));
                client.asked.push_back(request);
            }
        }
        self.world.turn(|engine| {
            for (session, bytes) in &sent {
                engine.handle_session_bytes(*session, bytes);
            }
        });
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

    /// The next bytes that a link brings, if it is there and read.
    fn some_of(&mut self, link: LinkId, most: usize) -> Option<Vec<u8>> {
        let (_, connection) = self.links.iter_mut().find(|(other, _)| *other == link)?;
        let count = connection.says.len().min(most).min(READ_BYTES);
        let is_read = !connection.is_unread && count > 0;
        is_read.then(|| connection.says.drain(..count).collect())
    }

    /// Does what the engine wants done.
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
                    Action::CloseSession { session, gently } => {
                        self.world.slow.remove(&session);
                        let is_its = |client: &&mut Client| client.session == session;
                        for client in self.clients.iter_mut().filter(is_its) {
                            client.is_open = false;
                            client.was_let_go = gently;
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
                self.links.push((link, Connection::default()));
                self.world.up(link);
            }
        }
    }

    /// Sees what has come to the server, and what to the clients.
    fn look(&mut self) -> Result<(), String> {
        self.act();
        for (link, connection) in &mut self.links {
            for args in self.world.asked(*link) {
                let args: Vec<&str> = args.iter().map(String::as_str).collect();
                self.server.execute(&args, &mut connection.says);
            }
        }
        for client in &mut self.clients {
            client
                .got
                .extend_from_slice(self.world.got(client.session).as_bytes());
            let got = std::mem::take(&mut client.got);
            let mut scanner = Scanner::default();
            let mut at = 0;
            while at < got.len() {
                match scanner.scan(&got[at..]) {
                    Ok(Scanned::Whole(len)) => {
                        client.take(&String::from_utf8_lossy(&got[at..at + len]), &self.storm)?;
                        at += len;
                    }
                    Ok(Scanned::Part) => break,
                    Err(error) => {
                        return Err(format!("client {} got no reply: {error}", client.number));
                    }
                }
            }
            client.got = got[at..].to_vec();
            if client.was_let_go && !client.asked.is_empty() {
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
            return Err(format!("who switched got {wrong}"));
        }
        Ok(())
    }

    /// The storm is over: everybody takes what is owed, and everything is answered.
    fn settle(&mut self) -> Result<(), String> {
        self.world.room.clear();
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
            for client in self.clients.iter().filter(|client| client.is_open) {
                let held = self.server.written.get(&client.own_key()).copied();
                if !client.may_hold(held.unwrap_or(0)) {
                    let own = (client.acknowledged, &client.maybe);
                    return Err(format!("{} holds {held:?}, not {own:?}", client.own_key()));
                }
            }
            return Ok(());
        }
        let held = self.world.engine.counters().held_bytes;
        Err(format!("somebody waits for ever, or {held} bytes are held"))
    }

    /// Everybody was answered, who has ended was let go, and nothing is held.
    fn is_settled(&self) -> bool {
        let is_done =
            |client: &Client| !client.is_open || client.asked.is_empty() && !client.has_ended;
        self.clients.iter().all(is_done) && self.world.engine.counters().held_bytes == 0
    }
}

proptest! {
    #[test]
    fn every_client_gets_its_own_answers_whole_whatever_happens_to_others(
        storm in storm(), steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut play = Play::new(storm);
        let mut outcome = Ok(());
        for step in steps {
            outcome = outcome.and_then(|()| play.play(step));
        }
        let outcome = outcome.and_then(|()| play.settle());
        prop_assert!(outcome.is_ok(), "{:?}", outcome);
    }
}

//! Slow clients, lost links, large values and refusals, all at once: every client gets its own answers, whole and in order, or
//! is told what became of a request; nobody waits for ever, and nothing stays held.

mod world;

use std::collections::{HashMap, HashSet, VecDeque};

use proptest::prelude::*;
use respool_engine::{Action, LinkId, SessionId};
use respool_protocol::encode::{self, Version};
use respool_protocol::reply::{Scanned, Scanner};
use world::{World, requests, settings};

const CLIENTS: usize = 6;
/// What sockets bring at once.
const READ_BYTES: usize = 30_000;
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
    /// `w` and the number of who alone writes it.
    written: HashMap<String, String>,
    executed: u64,
    /// Refuses an MGET or MSET now and then.
    refuses: bool,
}

impl Server {
    fn get(&self, key: &str, says: &mut Vec<u8>) {
        let value = constant(key).or_else(|| self.written.get(key).cloned());
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
                    self.written.insert(pair[0].to_owned(), pair[1].to_owned());
                }
                says.extend_from_slice(b"+OK\r\n");
            }
            ["GET", key] => self.get(key, says),
            ["STRLEN", key] => {
                encode::integer(says, constant(key).map_or(0, |value| value.len() as i64));
            }
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
    asked: VecDeque<String>,
    got: Vec<u8>,
    /// The last value that it wrote, the last one that was acknowledged, and those behind it that may have been written.
    wrote: u64,
    acknowledged: u64,
    maybe: HashSet<u64>,
}

impl Client {
    fn own_key(&self) -> String {
        format!("w{}", self.number)
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
        if (is_unknown || is_unsent) && !storm.loses_links {
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
                reply == "+OK\r\n" || is_unknown || is_unsent || storm.refuses && reply == REFUSED
            }
            _ if is_unknown || is_unsent => true,
            ["GET", key] if key.starts_with('w') => {
                let value = reply
                    .split("\r\n")
                    .nth(1)
                    .and_then(|value| value.parse().ok());
                let is_own = key == self.own_key();
                match value {
                    None => reply == "$-1\r\n" && !(is_own && self.acknowledged > 0),
                    Some(value) => {
                        !is_own || value == self.acknowledged || self.maybe.contains(&value)
                    }
                }
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
    fuse: bool,
    collapse: bool,
    keys_max: u32,
}

fn storm() -> impl Strategy<Value = Storm> {
    let bools = prop::array::uniform4(any::<bool>());
    let levels = (
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.8),
        2..8_u32,
    );
    (bools, 500..4_500_u32, 20_000..320_000_u32, levels).prop_map(
        |(
            [loses_links, has_large_values, has_odd_keys, refuses],
            soft_bytes,
            hard_bytes,
            levels,
        )| Storm {
            loses_links,
            has_large_values,
            has_odd_keys,
            refuses,
            soft_bytes,
            hard_bytes,
            fuse: levels.0,
            collapse: levels.1,
            keys_max: levels.2,
        },
    )
}

/// What happens next, by numbers that mean something else each time.
#[derive(Clone, Debug)]
enum Step {
    /// Clients ask, each for several things.
    Ask(Vec<(usize, Vec<(u8, u8)>)>),
    /// A client takes nothing any more, or takes everything again.
    Turn(usize),
    Lose(usize),
    Wait(u32),
    /// The server says what it has to say, all of it or so much on each connection.
    Say(Option<usize>),
}

fn step() -> impl Strategy<Value = Step> {
    let asked = prop::collection::vec((0..14_u8, 0..8_u8), 1..6);
    let says = prop_oneof![Just(None), (1..100_000_usize).prop_map(Some)];
    prop_oneof![
        5 => prop::collection::vec((0..CLIENTS, asked), 1..7).prop_map(Step::Ask),
        1 => (0..CLIENTS).prop_map(Step::Turn),
        1 => (0..8_usize).prop_map(Step::Lose),
        1 => (1..1_500_u32).prop_map(Step::Wait),
        4 => says.prop_map(Step::Say),
    ]
}

struct Play {
    storm: Storm,
    world: World,
    server: Server,
    /// In the order in which they came.
    links: Vec<(LinkId, Connection)>,
    clients: Vec<Client>,
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
        let long_ms = 600_000;
        settings.limits.session_stall_ms = long_ms;
        settings.limits.stranger_stall_ms = long_ms;
        settings.timeouts.link_stall_ms = long_ms;
        settings.timeouts.request_ms = long_ms;
        let mut world = World::new(settings);
        world.wait_ms(1_100);
        let clients = (0..CLIENTS)
            .map(|number| Client {
                session: world.accept(),
                number,
                is_open: true,
                asked: VecDeque::new(),
                got: Vec::new(),
                wrote: 0,
                acknowledged: 0,
                maybe: HashSet::new(),
            })
            .collect();
        Play {
            storm,
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
            Step::Lose(at) if self.storm.loses_links && at < self.links.len() => {
                let (link, _) = self.links.remove(at);
                self.world.lose(link);
            }
            Step::Lose(_) => {}
            Step::Wait(ms) => self.world.wait_ms(ms),
            Step::Say(most) => self.say(most),
        }
        self.look()
    }

    fn ask(&mut self, all: Vec<(usize, Vec<(u8, u8)>)>) {
        let mut sent = Vec::new();
        for (client, asked) in all {
            let client = &mut self.clients[client];
            if !client.is_open {
                continue;
            }
            for (what, key) in asked {
                let request = match what {
                    0 | 1 => {
                        client.wrote += 1;
                        format!("SET {} {}", client.own_key(), client.wrote)
                    }
                    2 => format!("GET {}", client.own_key()),
                    3 => format!("GET w{}", usize::from(key) % CLIENTS),
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
                    Action::CloseSession { session, .. } => {
                        self.world.slow.remove(&session);
                        for client in &mut self.clients {
                            client.is_open &= client.session != session;
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
        }
        Ok(())
    }

    /// The storm is over: everybody takes what is owed, and everything is answered.
    fn settle(&mut self) -> Result<(), String> {
        for client in &self.clients {
            if client.is_open && self.world.slow.contains(&client.session) {
                self.world.takes(client.session);
            }
        }
        for _ in 0..400 {
            self.play(Step::Say(None))?;
            self.play(Step::Wait(50))?;
            let is_answered = |client: &Client| !client.is_open || client.asked.is_empty();
            if self.clients.iter().all(is_answered) {
                return match self.world.engine.counters().held_bytes {
                    0 => Ok(()),
                    held => Err(format!("{held} bytes are held in the end")),
                };
            }
        }
        Err("somebody waits for ever".to_owned())
    }
}

proptest! {
    #[test]
    fn every_client_gets_its_own_answers_whole_whatever_happens_to_others(
        storm in storm(), steps in prop::collection::vec(step(), 1..150),
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

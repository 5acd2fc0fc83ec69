//! Whatever leaves together: every client sees one server that executed its requests one by one, in the order in
//! which it asked them, each at some moment between asking and answer. Where reads that are the same are sent once,
//! a client sees what it reads of one key in that order, and every read behind all that it wrote before.

mod world;

use std::collections::HashMap;

use proptest::prelude::*;
use respool_engine::SessionId;
use respool_protocol::encode::{self, Version};
use respool_protocol::reply::{Scanned, Scanner};
use world::{World, requests};

/// What a key holds. `None`: nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Held {
    Text(String),
    List(Vec<String>),
}

/// A server that remembers what it held at any time.
#[derive(Default)]
struct Server {
    keys: HashMap<String, Option<Held>>,
    /// After each execution: all keys.
    past: Vec<HashMap<String, Option<Held>>>,
    /// Of writes, by their unique values: what they were executed as.
    writes: HashMap<String, usize>,
    says: Vec<u8>,
    /// Answers an MGET or MSET by an error now and then.
    refuses: bool,
    /// Somebody else writes there, too.
    has_strangers: bool,
}

const WRONGTYPE: &[u8] = b"-WRONGTYPE no\r\n";

/// What a server says to a read.
fn answer(keys: &HashMap<String, Option<Held>>, command: &str, key: &str) -> Vec<u8> {
    let mut reply = Vec::new();
    match (command, keys.get(key).and_then(Option::as_ref)) {
        ("GET", None) => encode::null(&mut reply, Version::Resp2),
        ("GET", Some(Held::Text(text))) => encode::bulk(&mut reply, text.as_bytes()),
        ("STRLEN", None) | ("LLEN", None) => encode::integer(&mut reply, 0),
        ("STRLEN", Some(Held::Text(text))) => encode::integer(&mut reply, text.len() as i64),
        ("LLEN", Some(Held::List(list))) => encode::integer(&mut reply, list.len() as i64),
        _ => reply.extend_from_slice(WRONGTYPE),
    }
    reply
}

impl Server {
    fn take(&mut self, requests: &[Vec<String>]) {
        for args in requests {
            self.execute(&args.iter().map(String::as_str).collect::<Vec<_>>());
            self.past.push(self.keys.clone());
            if self.has_strangers {
                let now = self.past.len();
                let held = Held::Text(format!("stranger's {now}"));
                self.keys.insert(format!("k{}", now % 3), Some(held));
                self.past.push(self.keys.clone());
            }
        }
    }

    fn execute(&mut self, args: &[&str]) {
        let refused = self.refuses && self.past.len().is_multiple_of(3);
        let now = self.past.len();
        match args {
            ["MGET" | "MSET", ..] if refused => self.says.extend_from_slice(b"-OOM no\r\n"),
            ["MGET", keys @ ..] => {
                encode::array(&mut self.says, keys.len());
                for key in keys {
                    let reply = answer(&self.keys, "GET", key);
                    let reply = match &reply[..] {
                        WRONGTYPE => b"$-1\r\n",
                        reply => reply,
                    };
                    self.says.extend_from_slice(reply);
                }
            }
            ["SET", key, value] | ["MSET", key, value] => self.set(now, key, value),
            ["MSET", pairs @ ..] => {
                for pair in pairs.chunks(2) {
                    self.set(now, pair[0], pair[1]);
                }
                self.says
                    .truncate(self.says.len() - (pairs.len() / 2 - 1) * 5);
            }
            ["LPUSH", key, value] => {
                let list = self.keys.entry((*key).to_owned()).or_default();
                self.writes.insert((*value).to_owned(), now);
                match list.get_or_insert_with(|| Held::List(Vec::new())) {
                    Held::List(list) => {
                        list.push((*value).to_owned());
                        let len = list.len() as i64;
                        encode::integer(&mut self.says, len);
                    }
                    Held::Text(_) => self.says.extend_from_slice(WRONGTYPE),
                }
            }
            ["DEL", key, unique] => {
                self.keys.insert((*key).to_owned(), None);
                self.writes.insert((*unique).to_owned(), now);
                encode::integer(&mut self.says, 1);
            }
            [command, key] => {
                let reply = answer(&self.keys, command, key);
                self.says.extend_from_slice(&reply);
            }
            other => panic!("the server got {other:?}"),
        }
    }

    fn set(&mut self, now: usize, key: &str, value: &str) {
        let before = self.writes.insert(value.to_owned(), now);
        assert_eq!(before, None, "a write runs once");
        let held = Held::Text(value.to_owned());
        self.keys.insert(key.to_owned(), Some(held));
        self.says.extend_from_slice(b"+OK\r\n");
    }
}

struct Client {
    session: SessionId,
    /// What it asked, and how much the server had executed by then.
    asked: Vec<(String, usize)>,
    got: Vec<u8>,
    /// Where each answer ends, and how much the server had executed by then.
    answers: Vec<(usize, usize)>,
}

impl Client {
    fn take(&mut self, bytes: &str, executed: usize) {
        self.got.extend_from_slice(bytes.as_bytes());
        let mut at = self.answers.last().map_or(0, |(end, _)| *end);
        while let Ok(Scanned::Whole(len)) = Scanner::default().scan(&self.got[at..]) {
            at += len;
            self.answers.push((at, executed));
        }
    }

    /// Finds for each answer the earliest moment at which the server, asked then, would have given it.
    fn check(&self, server: &Server, collapse: bool) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.answers.len(), self.asked.len());
        let (mut before, mut from) = (0, 0);
        let mut wrote = 0;
        let mut of_key: HashMap<&str, usize> = HashMap::new();
        for ((request, asked), (to, answered)) in self.asked.iter().zip(&self.answers) {
            let answer_got = &self.got[from..*to];
            from = *to;
            let words: Vec<&str> = request.split(' ').collect();
            let earliest = match words[..] {
                [_, key] if collapse => wrote.max(of_key.get(key).copied().unwrap_or_default()),
                _ => before,
            };
            let earliest = earliest.max(*asked);
            let found = match words[..] {
                [_, _, unique] => {
                    let at = server.writes[unique];
                    prop_assert!(
                        (earliest..*answered).contains(&at),
                        "{} ran at {}",
                        request,
                        at
                    );
                    at
                }
                [command, key] => {
                    let fits = |at: &usize| {
                        let keys = match at {
                            0 => &HashMap::new(),
                            at => &server.past[at - 1],
                        };
                        answer(keys, command, key) == answer_got
                    };
                    let found = (earliest..=*answered).find(fits);
                    prop_assert!(
                        found.is_some(),
                        "{} was never {:?} between {} and {}",
                        request,
                        String::from_utf8_lossy(answer_got),
                        earliest,
                        answered
                    );
                    found.unwrap_or_default()
                }
                _ => unreachable!("two words or three"),
            };
            before = before.max(found);
            of_key.insert(words[1], found);
            if words.len() == 3 {
                wrote = found;
            }
        }
        Ok(())
    }
}

/// What happens in one turn.
#[derive(Clone, Debug)]
enum Step {
    /// Several clients ask.
    Ask(Vec<(usize, Vec<(u8, u8)>)>),
    /// So many bytes come from the server.
    Say(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let asked = prop::collection::vec((0..12_u8, 0..4_u8), 1..6);
    prop_oneof![
        2 => prop::collection::vec((0..6_usize, asked), 1..6).prop_map(Step::Ask),
        1 => (1..200_usize).prop_map(Step::Say),
    ]
}

proptest! {
    #[test]
    fn all_see_one_server_that_executes_one_request_after_the_other(
        steps in prop::collection::vec(step(), 1..40), fuse: bool, collapse: bool, refuses: bool,
        has_strangers: bool, keys_max in 2..8_u32,
    ) {
        let mut settings = world::settings();
        settings.flush.fuse = fuse;
        settings.flush.fused_keys_max = keys_max;
        settings.flush.collapse = collapse;
        let mut world = World::new(settings);
        if fuse {
            world.see_rights();
        }
        let mut server = Server { refuses, has_strangers, ..Server::default() };
        let mut clients: Vec<Client> = (0..6)
            .map(|_| Client {
                session: world.accept(),
                asked: Vec::new(),
                got: Vec::new(),
                answers: Vec::new(),
            })
            .collect();
        world.sent(world.shared);
        let mut unique = 0;
        let rest = std::iter::repeat_n(Step::Say(usize::MAX), 60);
        for step in steps.into_iter().chain(rest) {
            match step {
                Step::Ask(all) => {
                    let mut sent = Vec::new();
                    for (client, asked) in all {
                        let client = &mut clients[client];
                        let texts: Vec<String> = asked
                            .into_iter()
                            .map(|(what, key)| {
                                unique += 1;
                                match what {
                                    0..5 => format!("GET k{key}"),
                                    5 | 6 => format!("STRLEN k{key}"),
                                    7 => format!("LLEN k{key}"),
                                    8 | 9 => format!("SET k{key} {unique:0>width$}", width = 1 + unique % 5),
                                    10 => format!("LPUSH k{key} {unique}"),
                                    _ => format!("DEL k{key} {unique}"),
                                }
                            })
                            .collect();
                        let executed = server.past.len();
                        client.asked.extend(texts.iter().map(|text| (text.clone(), executed)));
                        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                        sent.push((client.session, requests(&texts)));
                    }
                    world.turn(|engine| {
                        for (session, bytes) in &sent {
                            engine.handle_session_bytes(*session, bytes);
                        }
                    });
                }
                Step::Say(count) => {
                    let count = count.min(server.says.len());
                    let bytes: Vec<u8> = server.says.drain(..count).collect();
                    world.says(world.shared, bytes);
                }
            }
            let asked = world.asked(world.shared);
            for client in &mut clients {
                let got = world.got(client.session);
                client.take(&got, server.past.len());
            }
            server.take(&asked);
        }
        for client in &clients {
            client.check(&server, collapse)?;
        }
    }
}

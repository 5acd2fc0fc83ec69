//! Whatever leaves together: every client sees one server that executed its requests one by one, in the order in
//! which it asked them, each at some moment between asking and answer. Where reads that are the same are sent once,
//! a client sees what it reads of one key in that order, and every read behind all that it wrote before. Of several servers
//! all that is true of each: what a client asked of it, be it a part of a request, is executed in that order.

mod world;

use std::collections::HashMap;
use std::ops::RangeInclusive;

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

const REFUSED: &[u8] = b"-OOM no\r\n";
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
            ["MGET" | "MSET", ..] if refused => self.says.extend_from_slice(REFUSED),
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
            ["DEL", pairs @ ..] => {
                for pair in pairs.chunks(2) {
                    self.keys.insert(pair[0].to_owned(), None);
                    self.writes.insert(pair[1].to_owned(), now);
                }
                encode::integer(&mut self.says, pairs.len() as i64);
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
    /// What it asked, and how much each server had executed by then.
    asked: Vec<(Asked, Vec<usize>)>,
    got: Vec<u8>,
    /// Where each answer ends, and how much each server had executed by then.
    answers: Vec<(usize, Vec<usize>)>,
}

/// A command with its keys, and with what is written to each: values that are written once.
struct Asked {
    command: &'static str,
    keys: Vec<String>,
    uniques: Vec<String>,
}

impl Asked {
    fn text(&self) -> String {
        let mut words = vec![self.command];
        for (at, key) in self.keys.iter().enumerate() {
            words.push(key);
            words.extend(self.uniques.get(at).map(String::as_str));
        }
        words.join(" ")
    }

    /// What a server must have said to give this answer. An answer is divided as its request was.
    fn parts(&self, answer: &[u8]) -> Option<Vec<Vec<u8>>> {
        match self.command {
            "MGET" => {
                let head = format!("*{}\r\n", self.keys.len());
                let mut rest = answer.strip_prefix(head.as_bytes())?;
                let mut parts = Vec::new();
                while let Ok(Scanned::Whole(len)) = Scanner::default().scan(rest) {
                    parts.push(rest[..len].to_vec());
                    rest = &rest[len..];
                }
                (parts.len() == self.keys.len() && rest.is_empty()).then_some(parts)
            }
            _ => Some(vec![answer.to_vec(); self.keys.len()]),
        }
    }
}

/// What a client knows of a server.
#[derive(Clone, Default)]
struct Known {
    /// When what it asked last was executed, and when what it wrote last was.
    before: usize,
    wrote: usize,
}

impl Client {
    fn take(&mut self, bytes: &str, executed: &[usize]) {
        self.got.extend_from_slice(bytes.as_bytes());
        let mut at = self.answers.last().map_or(0, |(end, _)| *end);
        while let Ok(Scanned::Whole(len)) = Scanner::default().scan(&self.got[at..]) {
            at += len;
            self.answers.push((at, executed.to_vec()));
        }
    }

    /// Finds for each answer the earliest moment at which the server, asked then, would have given it.
    fn check(
        &self,
        world: &World,
        servers: &[Server],
        collapse: bool,
    ) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.answers.len(), self.asked.len());
        let mut known = vec![Known::default(); servers.len()];
        let mut from = 0;
        let mut of_key: HashMap<&str, usize> = HashMap::new();
        for ((request, asked), (to, answered)) in self.asked.iter().zip(&self.answers) {
            let answer_got = &self.got[from..*to];
            from = *to;
            for (at, server) in servers.iter().enumerate() {
                let its: Vec<usize> = (0..request.keys.len())
                    .filter(|nth| world.owner_of(&request.keys[*nth]) == at)
                    .collect();
                if its.is_empty() {
                    continue;
                }
                let known = &mut known[at];
                let reads = request.uniques.is_empty();
                let read = its
                    .iter()
                    .filter_map(|nth| of_key.get(request.keys[*nth].as_str()));
                let earliest = match reads && collapse {
                    true => read.copied().fold(known.wrote, usize::max),
                    false => known.before,
                };
                let span = earliest.max(asked[at])..=answered[at];
                let found = match self.find(request, &its, answer_got, server, span.clone()) {
                    Ok(Some(found)) => found,
                    // It was refused.
                    Ok(None) => continue,
                    Err(why) => {
                        let got = String::from_utf8_lossy(answer_got);
                        let text = request.text();
                        prop_assert!(false, "{text} got {got:?}, between {span:?}: {why}");
                        continue;
                    }
                };
                known.before = known.before.max(found);
                for nth in its {
                    of_key.insert(&request.keys[nth], found);
                }
                if !reads {
                    known.wrote = found;
                }
            }
        }
        Ok(())
    }

    /// When a server executed its part, those of the keys that are its own. `None`: not at all.
    fn find(
        &self,
        request: &Asked,
        its: &[usize],
        answer_got: &[u8],
        server: &Server,
        mut span: RangeInclusive<usize>,
    ) -> Result<Option<usize>, String> {
        let several = matches!(request.command, "MGET" | "MSET");
        let refused = several && server.refuses && names_refusal(answer_got);
        if !request.uniques.is_empty() {
            let uniques = its.iter().map(|nth| &request.uniques[*nth]);
            let ran: Vec<_> = uniques.map(|unique| server.writes.get(unique)).collect();
            let is_partial = answer_got.starts_with(b"-UNKNOWN respool: a part of the command ");
            return match ran[..] {
                [None, ..] if refused && ran.iter().all(Option::is_none) => Ok(None),
                [Some(at), ..] if span.contains(at) && at < span.end() => {
                    let is_told = match request.command {
                        _ if refused => is_partial,
                        "DEL" => {
                            answer_got == format!(":{}\r\n", 2 * request.keys.len()).as_bytes()
                        }
                        "LPUSH" => answer_got == WRONGTYPE || answer_got[0] == b':',
                        _ => answer_got == b"+OK\r\n",
                    };
                    match is_told && ran.iter().all(|other| *other == Some(at)) {
                        true => Ok(Some(*at)),
                        false => Err(format!("it ran at {ran:?}")),
                    }
                }
                _ => Err(format!("it ran at {ran:?}")),
            };
        }
        if refused {
            return Ok(None);
        }
        let parts = request.parts(answer_got).ok_or("its answer is another's")?;
        let command = match request.command {
            "MGET" => "GET",
            single => single,
        };
        let fits = |at: &usize| {
            let keys = match at {
                0 => &HashMap::new(),
                at => &server.past[at - 1],
            };
            its.iter().all(
                |nth| match &answer(keys, command, &request.keys[*nth])[..] {
                    WRONGTYPE if request.command == "MGET" => parts[*nth] == b"$-1\r\n",
                    answer => parts[*nth] == answer,
                },
            )
        };
        span.find(fits)
            .map(Some)
            .ok_or("it was never so".to_owned())
    }
}

/// Whether an error says that a server refused something, whatever else it says.
fn names_refusal(answer: &[u8]) -> bool {
    answer[0] == b'-' && String::from_utf8_lossy(answer).contains("OOM ")
}

/// What is asked of which keys, by numbers.
type What = (u8, Vec<u8>);

/// What happens in one turn.
#[derive(Clone, Debug)]
enum Step {
    /// Several clients ask: something of some keys.
    Ask(Vec<(usize, Vec<What>)>),
    /// So many bytes come from a server.
    Say(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let keys = prop::collection::vec(0..4_u8, 1..5);
    let asked = prop::collection::vec((0..15_u8, keys), 1..6);
    prop_oneof![
        2 => prop::collection::vec((0..6_usize, asked), 1..6).prop_map(Step::Ask),
        1 => (0..3_usize, 1..200_usize).prop_map(|(server, count)| Step::Say(server, count)),
    ]
}

/// What a step means here. Of every key it has, `uniques` counts what is written.
fn asked(world: &World, what: u8, keys: &[u8], uniques: &mut usize) -> Asked {
    let command = match what {
        0..5 => "GET",
        5 | 6 => "STRLEN",
        7 => "LLEN",
        8 | 9 => "SET",
        10 => "LPUSH",
        11 => "DEL",
        12 | 13 => "MGET",
        _ => "MSET",
    };
    let count = if what < 11 { 1 } else { keys.len() };
    let keys: Vec<String> = keys[..count].iter().map(|key| format!("k{key}")).collect();
    let writes = matches!(command, "SET" | "LPUSH" | "DEL" | "MSET");
    let written = keys.iter().filter(|_| writes).map(|key| {
        *uniques += 1;
        let unique = format!("{uniques:0>width$}", width = 1 + *uniques % 5);
        match command {
            // It goes where the key goes, and is not there.
            "DEL" => world.key_at(world.owner_of(key), &format!("{unique}.")),
            _ => unique,
        }
    });
    let uniques = written.collect();
    Asked {
        command,
        keys,
        uniques,
    }
}

proptest! {
    #[test]
    fn all_see_one_server_that_executes_one_request_after_the_other(
        steps in prop::collection::vec(step(), 1..40), count in 1..=3_u16, fuse: bool, collapse: bool, refuses: bool,
        has_strangers: bool, keys_max in 2..8_u32, has_parts: bool,
    ) {
        let mut settings = match has_parts && count > 1 {
            true => world::parted(count - 1),
            false => world::pool_of(count),
        };
        settings.flush.fuse = fuse;
        settings.flush.fused_keys_max = keys_max;
        settings.flush.collapse = collapse;
        let mut world = World::new(settings);
        if fuse {
            world.see_rights();
        }
        let server = || Server { refuses, has_strangers, ..Server::default() };
        let mut servers: Vec<Server> = (0..count).map(|_| server()).collect();
        let links = world.all_shared.clone();
        let mut clients: Vec<Client> = (0..6)
            .map(|_| Client {
                session: world.accept(),
                asked: Vec::new(),
                got: Vec::new(),
                answers: Vec::new(),
            })
            .collect();
        for link in &links {
            world.sent(*link);
        }
        let mut uniques = 0;
        let rest = (0..60 * links.len()).map(|nth| Step::Say(nth, usize::MAX));
        for step in steps.into_iter().chain(rest) {
            let executed: Vec<usize> = servers.iter().map(|server| server.past.len()).collect();
            match step {
                Step::Ask(all) => {
                    let mut sent = Vec::new();
                    for (client, all) in all {
                        let client = &mut clients[client];
                        for (what, keys) in all {
                            let asked = asked(&world, what, &keys, &mut uniques);
                            sent.push((client.session, requests(&[&asked.text()])));
                            client.asked.push((asked, executed.clone()));
                        }
                    }
                    world.turn(|engine| {
                        for (session, bytes) in &sent {
                            engine.handle_session_bytes(*session, bytes);
                        }
                    });
                }
                Step::Say(server, count) => {
                    let server = server % links.len();
                    let says = &mut servers[server].says;
                    let count = count.min(says.len());
                    let bytes: Vec<u8> = says.drain(..count).collect();
                    world.says(links[server], bytes);
                }
            }
            for client in &mut clients {
                let got = world.got(client.session);
                client.take(&got, &executed);
            }
            for (server, link) in servers.iter_mut().zip(&links) {
                server.take(&world.asked(*link));
            }
        }
        for client in &clients {
            client.check(&world, &servers, collapse)?;
        }
    }
}

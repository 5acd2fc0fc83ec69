//! The order of requests, in any batches. Every client sees a server that executes requests one by
//! one, in the client's order, each at a moment between request and reply.
//!
//! With collapsed reads, a client sees its reads of one key in order, and every read after its
//! earlier writes. With several servers, this holds for each server and for the parts of requests.
//! If servers refuse for a while and requests are sent again, it holds for each key, except between
//! two reads of it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;

use crate::world::{Owners, World, requests};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use respool_engine::settings::Settings;
use respool_engine::{Counters, SessionId, TICK_MS};
use respool_protocol::encode::{self, Version};
use respool_protocol::reply::{ReplyScanner, Scanned};
use respool_protocol::slot::hash_slot;

/// The value of a key. `None`: there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Held {
    Text(String),
    List(Vec<String>),
}

/// A server that remembers all its states.
#[derive(Default)]
struct Server {
    keys: HashMap<String, Option<Held>>,
    /// All keys, after each execution.
    past: Vec<HashMap<String, Option<Held>>>,
    /// The commands that wrote each value. Values are unique.
    writes: HashMap<String, usize>,
    /// Values in an MSET whose fate is unknown.
    doubted: HashSet<String>,
    says: Vec<u8>,
    refuses: Refuses,
    /// Number of requests.
    asked: usize,
    /// Whether another client writes there, too.
    has_strangers: bool,
    lies: Lies,
    /// Number of values that were read.
    reads: usize,
}

/// A false value in place of the first, second ... value that is read: a test of the tests.
#[derive(Clone, Copy, Debug, Default)]
enum Lies {
    #[default]
    Never,
    /// The value of the key after one execution.
    Old(usize),
    /// The value of another key.
    OfAnother(usize),
}

/// The errors of a server.
#[derive(Clone, Debug, Default)]
enum Refuses {
    #[default]
    Nothing,
    /// To some MGETs and MSETs.
    Joined,
    /// To some MSETs, which may or may not have run.
    InDoubt,
    /// To this many of ten requests, of any kind, for a while.
    ForAWhile { seed: u64, of_ten: u64 },
}

impl Refuses {
    fn by(&self) -> &'static [u8] {
        match self {
            Refuses::ForAWhile { .. } => b"-LOADING not yet\r\n",
            Refuses::InDoubt => b"-ERR perhaps\r\n",
            _ => b"-OOM no\r\n",
        }
    }

    /// Whether a reply to this command may be such an error.
    fn is_told(&self, command: &str, answer: &[u8]) -> bool {
        let may = match self {
            Refuses::Nothing => false,
            Refuses::Joined => matches!(command, "MGET" | "MSET"),
            // A single SET may have been fused.
            Refuses::InDoubt => matches!(command, "SET" | "MSET"),
            Refuses::ForAWhile { .. } => true,
        };
        let word = match self {
            Refuses::ForAWhile { .. } => "LOADING ",
            Refuses::InDoubt => "perhaps",
            _ => "OOM ",
        };
        may && answer[0] == b'-' && String::from_utf8_lossy(answer).contains(word)
    }
}

/// The first byte of a value that is set with options, which make the number of arguments odd.
const WITH_OPTION: char = '!';

/// The key of [`Lies::OfAnother`].
const ANOTHER: &str = "k1";

const WRONGTYPE: &[u8] = b"-WRONGTYPE no\r\n";

/// The reply to a read.
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
    fn take(&mut self, requests: &[Vec<String>], owners: &Owners) {
        for args in requests {
            if let Some(said) = owners.said(args) {
                self.says.extend_from_slice(said.as_bytes());
                continue;
            }
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
        let now = self.past.len();
        let is_joined = matches!(args[0], "MGET" | "MSET");
        let refused = match &self.refuses {
            Refuses::Nothing => false,
            Refuses::Joined => is_joined && now.is_multiple_of(3),
            Refuses::InDoubt => args[0] == "MSET" && now.is_multiple_of(3),
            // By chance, since a regular pattern of errors could hit the same request for ever.
            Refuses::ForAWhile { seed, of_ten } => hash(&(seed, self.asked)) % 10 < *of_ten,
        };
        self.asked += 1;
        if args[0].ends_with("SET") {
            self.take_values(&args[1..]);
        }
        let in_doubt = refused && matches!(self.refuses, Refuses::InDoubt);
        if in_doubt {
            let values = args[2..].iter().step_by(2);
            self.doubted.extend(values.map(|value| (*value).to_owned()));
        }
        match args {
            ["MSET", pairs @ ..] if in_doubt && now.is_multiple_of(2) => {
                let says = self.says.len();
                for pair in pairs.chunks(2) {
                    self.set(now, pair[0], pair[1]);
                }
                self.says.truncate(says);
                self.says.extend_from_slice(self.refuses.by());
            }
            _ if refused => self.says.extend_from_slice(self.refuses.by()),
            ["MGET", keys @ ..] => {
                encode::array(&mut self.says, keys.len());
                for key in keys {
                    let reply = self.read("GET", key);
                    let reply = match &reply[..] {
                        WRONGTYPE => b"$-1\r\n",
                        reply => reply,
                    };
                    self.says.extend_from_slice(reply);
                }
            }
            ["SET", key, value, ..] | ["MSET", key, value] => self.set(now, key, value),
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
                let reply = self.read(command, key);
                self.says.extend_from_slice(&reply);
            }
            other => panic!("the server got {other:?}"),
        }
    }

    fn read(&mut self, command: &str, key: &str) -> Vec<u8> {
        self.reads += 1;
        match self.lies {
            Lies::Old(at) if at == self.reads => answer(&self.past[0], command, key),
            Lies::OfAnother(at) if at == self.reads => answer(&self.keys, command, ANOTHER),
            _ => answer(&self.keys, command, key),
        }
    }

    /// Checks the pairs of a SET or MSET. A value with options comes with them, by itself. A value
    /// whose fate is unknown does not come again.
    fn take_values(&self, args: &[&str]) {
        let is_plain = args.len().is_multiple_of(2);
        for pair in args.chunks_exact(2).filter(|_| is_plain) {
            let has_option = pair[1].starts_with(WITH_OPTION);
            assert!(!has_option, "{pair:?} has lost its options");
        }
        for value in args.iter().skip(1).step_by(2) {
            let is_doubted = self.doubted.contains(*value);
            assert!(!is_doubted, "{value} is sent again, and may have run");
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
    /// The requests of the client, each with the number of executions of each server at that time.
    asked: Vec<(Asked, Vec<usize>)>,
    got: Vec<u8>,
    /// The end of each reply, and the number of executions of each server at that time.
    answers: Vec<(usize, Vec<usize>)>,
}

/// A command with its keys, and with the values to write. Each value is written once.
struct Asked {
    command: &'static str,
    keys: Vec<String>,
    uniques: Vec<String>,
    /// The option of a SET.
    option: Option<&'static str>,
}

impl Asked {
    fn text(&self) -> String {
        let mut words = vec![self.command];
        for (at, key) in self.keys.iter().enumerate() {
            words.push(key);
            words.extend(self.uniques.get(at).map(String::as_str));
        }
        words.extend(self.option);
        words.join(" ")
    }

    /// The replies of the servers that make this reply. A reply is divided as its request was.
    fn parts(&self, answer: &[u8]) -> Option<Vec<Vec<u8>>> {
        match self.command {
            "MGET" => {
                let head = format!("*{}\r\n", self.keys.len());
                let mut rest = answer.strip_prefix(head.as_bytes())?;
                let mut parts = Vec::new();
                while let Ok(Scanned::Whole(len)) = ReplyScanner::default().scan(rest) {
                    parts.push(rest[..len].to_vec());
                    rest = &rest[len..];
                }
                (parts.len() == self.keys.len() && rest.is_empty()).then_some(parts)
            }
            _ => Some(vec![answer.to_vec(); self.keys.len()]),
        }
    }
}

/// The last moments of a client at a server.
#[derive(Clone, Default)]
struct Known {
    /// When its last request was executed, and since when its last write is visible.
    before: usize,
    wrote: usize,
}

impl Client {
    fn take(&mut self, bytes: &str, executed: &[usize]) {
        self.got.extend_from_slice(bytes.as_bytes());
        let mut at = self.answers.last().map_or(0, |(end, _)| *end);
        while let Ok(Scanned::Whole(len)) = ReplyScanner::default().scan(&self.got[at..]) {
            at += len;
            self.answers.push((at, executed.to_vec()));
        }
    }

    /// Finds for each reply the earliest moment at which the server would have given it.
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
        let mut write_of_key: HashMap<&str, usize> = HashMap::new();
        for (place, ((request, asked), (to, answered))) in
            self.asked.iter().zip(&self.answers).enumerate()
        {
            let answer_got = &self.got[from..*to];
            from = *to;
            for (at, server) in servers.iter().enumerate() {
                let parts = parts(world, &request.keys, at);
                let known = &mut known[at];
                let reads = request.uniques.is_empty();
                let before = known.clone();
                for its in parts {
                    let keys = its.iter().map(|nth| request.keys[*nth].as_str());
                    let same = keys.clone().filter_map(|key| of_key.get(key)).copied();
                    let written = keys
                        .clone()
                        .filter_map(|key| write_of_key.get(key))
                        .copied();
                    let earliest = match server.refuses {
                        Refuses::ForAWhile { .. } if reads => written.fold(0, usize::max),
                        Refuses::ForAWhile { .. } => same.fold(0, usize::max),
                        _ if reads && collapse => same.fold(before.wrote, usize::max),
                        _ if reads => before.before.max(before.wrote),
                        _ => before.before,
                    };
                    let span = earliest.max(asked[at])..=answered[at];
                    let found = match self.find(request, &its, answer_got, server, span.clone()) {
                        Ok(Some(found)) => found,
                        // The request was refused. Refusals for a while reach a client only where a
                        // retry would overtake another request.
                        Ok(None) => {
                            let may = !matches!(server.refuses, Refuses::ForAWhile { .. })
                                || self.is_overtaken(place);
                            prop_assert!(may, "{} was refused", request.text());
                            continue;
                        }
                        Err(why) => {
                            let got = String::from_utf8_lossy(answer_got);
                            let text = request.text();
                            prop_assert!(false, "{text} got {got:?}, between {span:?}: {why}");
                            continue;
                        }
                    };
                    known.before = known.before.max(found);
                    // The next execution sees this write. Requests in the same execution do not.
                    let seen_from = found + 1;
                    if !reads {
                        known.wrote = known.wrote.max(seen_from);
                    }
                    of_key.extend(keys.clone().map(|key| (key, found)));
                    if !reads {
                        write_of_key.extend(keys.map(|key| (key, seen_from)));
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a later request must not run before this one: they have a key in common, and not
    /// both only read.
    fn is_overtaken(&self, place: usize) -> bool {
        let (request, behind) = (&self.asked[place].0, &self.asked[place + 1..]);
        behind.iter().any(|(other, _)| {
            let both_read = request.uniques.is_empty() && other.uniques.is_empty();
            !both_read && other.keys.iter().any(|key| request.keys.contains(key))
        })
    }

    /// The execution in which a server executed a part with these keys. `None`: none.
    fn find(
        &self,
        request: &Asked,
        its: &[usize],
        answer_got: &[u8],
        server: &Server,
        mut span: RangeInclusive<usize>,
    ) -> Result<Option<usize>, String> {
        let refused = server.refuses.is_told(request.command, answer_got);
        if !request.uniques.is_empty() {
            let uniques = its.iter().map(|nth| &request.uniques[*nth]);
            let ran: Vec<_> = uniques.map(|unique| server.writes.get(unique)).collect();
            let is_partial = answer_got.starts_with(b"-UNKNOWN respool: a part of the command ");
            return match ran[..] {
                [None, ..] if refused && ran.iter().all(Option::is_none) => Ok(None),
                [Some(at), ..] if refused && matches!(server.refuses, Refuses::InDoubt) => {
                    let is_right = span.contains(at) && at < span.end();
                    match is_right && ran.iter().all(|other| *other == Some(at)) {
                        true => Ok(Some(*at)),
                        false => Err(format!("it ran at {ran:?}")),
                    }
                }
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

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The keys of each part of a request for a server, by their places.
fn parts(world: &World, keys: &[String], server: usize) -> Vec<Vec<usize>> {
    let mut parts: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
    for (nth, key) in keys.iter().enumerate() {
        if world.owner_of(key) == server {
            let slot = if world.owners.has_slots() {
                hash_slot(key.as_bytes())
            } else {
                0
            };
            parts.entry(slot).or_default().push(nth);
        }
    }
    parts.into_values().collect()
}

/// A command and its keys, as numbers.
type RequestKind = (u8, Vec<u8>);

/// A step of one turn.
#[derive(Clone, Debug)]
enum Step {
    /// Several clients send requests.
    Ask(Vec<(usize, Vec<RequestKind>)>),
    /// A server sends this many bytes.
    Say(usize, usize),
    Wait,
}

fn step() -> impl Strategy<Value = Step> {
    let keys = prop::collection::vec(0..4_u8, 1..5);
    let asked = prop::collection::vec((0..16_u8, keys), 1..6);
    prop_oneof![
        4 => prop::collection::vec((0..6_usize, asked), 1..6).prop_map(Step::Ask),
        2 => (0..3_usize, 1..200_usize).prop_map(|(server, count)| Step::Say(server, count)),
        1 => Just(Step::Wait),
    ]
}

fn refuses() -> impl Strategy<Value = Refuses> {
    prop_oneof![
        Just(Refuses::Nothing),
        Just(Refuses::Joined),
        Just(Refuses::InDoubt)
    ]
}

fn refuses_for_a_while() -> impl Strategy<Value = Refuses> {
    (any::<u64>(), 1..6_u64).prop_map(|(seed, of_ten)| Refuses::ForAWhile { seed, of_ten })
}

/// One of four keys. On a Cluster they are two pairs, each of one slot.
fn key(world: &World, number: u8) -> String {
    match world.owners.has_slots() {
        true => format!("{{k{}}}{number}", number / 2),
        false => format!("k{number}"),
    }
}

/// The request that a step stands for. `uniques` counts the values written.
fn asked(world: &World, kind: u8, keys: &[u8], uniques: &mut usize) -> Asked {
    let command = match kind {
        0..5 => "GET",
        5 | 6 => "STRLEN",
        7 => "LLEN",
        8 | 9 | 15 => "SET",
        10 => "LPUSH",
        11 => "DEL",
        12 | 13 => "MGET",
        _ => "MSET",
    };
    let count = match kind {
        11..=14 => keys.len(),
        _ => 1,
    };
    let option = (kind > 14).then_some("KEEPTTL");
    let keys: Vec<String> = keys[..count].iter().map(|nth| key(world, *nth)).collect();
    let writes = matches!(command, "SET" | "LPUSH" | "DEL" | "MSET");
    let written = keys.iter().filter(|_| writes).map(|key| {
        *uniques += 1;
        let unique = format!("{uniques:0>width$}", width = 1 + *uniques % 5);
        match command {
            // A key of the same slot that does not exist.
            "DEL" if world.owners.has_slots() => format!("{}{unique}.", &key[..4]),
            "DEL" => world.key_at(world.owner_of(key), &format!("{unique}.")),
            _ if option.is_some() => format!("{WITH_OPTION}{unique}"),
            _ => unique,
        }
    });
    let uniques = written.collect();
    Asked {
        command,
        keys,
        uniques,
        option,
    }
}

/// The kind of servers, and the coalescing of requests.
#[derive(Clone, Debug)]
struct Setting {
    servers: u16,
    refuses: Refuses,
    has_strangers: bool,
    fuse: bool,
    fused_keys_max: u32,
    collapse: bool,
    lies: Lies,
}

fn setting(refuses: impl Strategy<Value = Refuses>) -> impl Strategy<Value = Setting> {
    let joins = (any::<bool>(), 2..8_u32, any::<bool>());
    (1..=3_u16, refuses, any::<bool>(), joins).prop_map(
        |(servers, refuses, has_strangers, (fuse, fused_keys_max, collapse))| Setting {
            servers,
            refuses,
            has_strangers,
            fuse,
            fused_keys_max,
            collapse,
            lies: Lies::Never,
        },
    )
}

/// Six clients send these requests and get right replies. Returns the engine's counters.
fn run(
    setting: &Setting,
    mut settings: Settings,
    steps: Vec<Step>,
) -> Result<Counters, TestCaseError> {
    settings.flush.fuse = setting.fuse;
    settings.flush.fused_keys_max = setting.fused_keys_max;
    settings.flush.collapse = setting.collapse;
    // No request reaches its deadline.
    settings.timeouts.request_ms = 3_600_000;
    let mut world = World::new(settings);
    let links = world.all_shared.clone();
    let mut servers: Vec<Server> = (0..setting.servers)
        .map(|_| Server {
            refuses: setting.refuses.clone(),
            has_strangers: setting.has_strangers,
            lies: setting.lies,
            ..Server::default()
        })
        .collect();
    // The nodes of a Cluster are asked for the topology first.
    for (server, link) in servers.iter_mut().zip(&links) {
        server.take(&world.asked(*link), &world.owners);
        world.says(*link, std::mem::take(&mut server.says));
    }
    if setting.fuse {
        world.see_rights();
    }
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
    // A refused request is sent again a little later.
    let (rounds, pause) = match setting.refuses {
        Refuses::ForAWhile { .. } => (600, Some(Step::Wait)),
        _ => (60, None),
    };
    let rest = (0..rounds).flat_map(|_| {
        let say = (0..links.len()).map(|server| Step::Say(server, usize::MAX));
        say.chain(pause.clone())
    });
    let count = steps.len();
    for (number, step) in steps.into_iter().chain(rest).enumerate() {
        let is_over = number >= count;
        let executed: Vec<usize> = servers.iter().map(|server| server.past.len()).collect();
        match step {
            Step::Ask(all) => {
                let mut sent = Vec::new();
                for (client, all) in all {
                    let client = &mut clients[client];
                    for (kind, keys) in all {
                        let asked = asked(&world, kind, &keys, &mut uniques);
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
            Step::Wait => world.wait_ms(TICK_MS),
        }
        for client in &mut clients {
            let got = world.got(client.session);
            client.take(&got, &executed);
        }
        for (server, link) in servers.iter_mut().zip(&links) {
            server.take(&world.asked(*link), &world.owners);
        }
        // A server that is slow accepts no other connection.
        for link in world.connecting() {
            world.lose(link);
        }
        let is_answered = |client: &Client| client.answers.len() == client.asked.len();
        if is_over && clients.iter().all(is_answered) {
            break;
        }
    }
    for client in &clients {
        client.check(&world, &servers, setting.collapse)?;
    }
    Ok(world.engine.counters())
}

/// Settings with several servers, or with one more for the keys of a prefix.
fn pool(setting: &Setting, has_parts: bool) -> Settings {
    match has_parts && setting.servers > 1 {
        true => crate::world::parted(setting.servers - 1),
        false => crate::world::pool_of(setting.servers),
    }
}

proptest! {
    /// Clients see servers that execute one request after the other, in the order of each client.
    #[test]
    fn clients_see_one_server_that_runs_requests_in_turn(
        steps in prop::collection::vec(step(), 1..40), setting in setting(refuses()), has_parts: bool,
    ) {
        let settings = pool(&setting, has_parts);
        run(&setting, settings, steps)?;
    }

    /// Clients of a Cluster see such servers, too. Requests that leave together are of one slot.
    #[test]
    fn clients_see_one_cluster(steps in prop::collection::vec(step(), 1..40), setting in setting(refuses())) {
        run(&setting, crate::world::cluster(setting.servers), steps)?;
    }

    /// This order holds for each key even if nodes of a Cluster refuse requests for a while. Other
    /// servers have no errors that prove that a request did not run.
    #[test]
    fn clients_see_each_key_in_order_through_refusals(
        steps in prop::collection::vec(step(), 1..40), setting in setting(refuses_for_a_while()),
    ) {
        run(&setting, crate::world::cluster(setting.servers), steps)?;
    }
}

/// The engine's counters over many runs, the same each time.
fn counted(
    setting: impl Strategy<Value = Setting>,
    settings: impl Fn(&Setting) -> Settings,
) -> Counters {
    let mut runner = TestRunner::deterministic();
    let asked = (prop::collection::vec(step(), 1..40), setting);
    let mut all = Counters::default();
    for _ in 0..100 {
        let tree = asked
            .new_tree(&mut runner)
            .expect("the strategy has no filter");
        let (steps, setting) = tree.current();
        let counted = run(&setting, settings(&setting), steps).expect("all replies are right");
        all.add(&counted);
    }
    all
}

/// A test of the tests: they could see no fault if no request were fused, collapsed or sent again.
#[test]
fn order_tests_fuse_collapse_and_retry_much() {
    let of_pools = counted(setting(refuses()), |setting| pool(setting, false));
    let of_parts = counted(setting(refuses()), |setting| pool(setting, true));
    let cluster = |setting: &Setting| crate::world::cluster(setting.servers);
    let of_clusters = counted(setting(refuses()), cluster);
    let refused = counted(setting(refuses_for_a_while()), cluster);
    for all in [of_pools, of_parts, of_clusters, refused] {
        let joined = [
            all.fused_gets,
            all.fused_sets,
            all.reads_collapsed,
            all.joined_requests_resent,
        ];
        assert!(joined.iter().all(|count| *count > 10), "{joined:?}");
    }
    assert!(refused.requests_deferred > 10);
}

/// Numbers of commands in [`asked`].
const GET: u8 = 0;
const SET: u8 = 8;

/// The result of a check where a server lies. Two turns that set both keys come before these steps.
fn found(lies: Lies, collapse: bool, asked: &[(usize, &[(u8, u8)])]) -> Result<(), TestCaseError> {
    let setting = Setting {
        servers: 1,
        refuses: Refuses::Nothing,
        has_strangers: false,
        fuse: true,
        fused_keys_max: 7,
        collapse,
        lies,
    };
    let requests = |all: &[(u8, u8)]| -> Vec<RequestKind> {
        all.iter().map(|(kind, key)| (*kind, vec![*key])).collect()
    };
    let ask = |all: &[(usize, &[(u8, u8)])]| {
        Step::Ask(
            all.iter()
                .map(|(client, all)| (*client, requests(all)))
                .collect(),
        )
    };
    let say = || Step::Say(0, usize::MAX);
    let steps = vec![
        ask(&[(0, &[(SET, 0)])]),
        say(),
        ask(&[(0, &[(SET, 1)])]),
        say(),
        ask(asked),
        say(),
    ];
    run(&setting, crate::world::settings(), steps).map(|_| ())
}

/// A test of the tests: a value that is too old, or of another key, is found.
#[test]
fn old_or_foreign_values_are_found() {
    // Two other sessions read the key in one MGET while it is set.
    let after_a_write: &[(usize, &[(u8, u8)])] = &[(0, &[(SET, 0), (GET, 0)]), (1, &[(GET, 1)])];
    let twice: &[(usize, &[(u8, u8)])] = &[(0, &[(SET, 0)]), (1, &[(GET, 0), (GET, 0)])];
    for collapse in [false, true] {
        for asked in [after_a_write, twice] {
            found(Lies::Never, collapse, asked).expect("the reply is right");
            found(Lies::OfAnother(1), collapse, asked).expect_err("it is of another key");
        }
        found(Lies::Old(1), collapse, after_a_write).expect_err("it was written before");
        let alone = found(Lies::Old(1), collapse, twice);
        alone.expect("the read may have run before the write");
    }
    // Collapsed, the two reads are one.
    found(Lies::Old(2), false, twice).expect_err("the first that it read was newer");
}

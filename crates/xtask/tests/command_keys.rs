//! The command table against real servers: they find keys where it says, and block when it says.

#![allow(clippy::unwrap_used, reason = "a test may stop at a surprise")]

use std::collections::HashMap;

use respool_protocol::commands::{self, Command, KeyFlags};
use respool_testkit::client::{self, Reply, RespClient};
use respool_testkit::random::{self, Random};
use respool_testkit::servers::{Flavour, ServerProcess, find, leave_out};

/// A request: its arguments.
type CommandLine = Vec<Vec<u8>>;

/// Requests with keys in every way there is. `""` is an empty argument.
const LINES: &[&str] = &[
    "GET k",
    "SET k v GET",
    "MGET a b c",
    "MSET a 1 b 2",
    "MSETNX a 1 b 2",
    "MSETEX 2 a 1 b 2 EX 9",
    "MSETEX 1 a 1",
    "DEL a b",
    "LCS a b",
    "BLPOP a b 0",
    "BLMOVE a b LEFT RIGHT 0",
    "BLMPOP 0 2 a b LEFT",
    "BZMPOP 0 1 a MIN",
    "LMPOP 2 a b LEFT COUNT 3",
    "ZMPOP 1 a MIN",
    "SINTERCARD 2 a b LIMIT 5",
    "RENAME a b",
    "BITOP AND d a b",
    "OBJECT ENCODING k",
    "MEMORY USAGE k SAMPLES 5",
    "XGROUP CREATE k g 0",
    "XINFO STREAM k FULL",
    "EVAL s 0",
    "EVAL s 0 a",
    "EVAL s 2 a b c",
    "EVALSHA_RO s 1 a",
    "FCALL f 1 a",
    "FCALL_RO f 0",
    "ZUNION 2 a b WEIGHTS 1 2",
    "ZUNIONSTORE d 2 a b WEIGHTS 1 2",
    "ZDIFFSTORE d 1 a",
    "ZRANGESTORE d a 0 1",
    "SINTERSTORE d a b",
    "PFMERGE d a b",
    "PFMERGE d",
    "PFCOUNT a b",
    "XREAD STREAMS a b 0 0",
    "XREAD COUNT 1 BLOCK 5 STREAMS a 0",
    "XREADGROUP GROUP streams c STREAMS streams >",
    "XREADGROUP GROUP g c NOACK STREAMS a b > >",
    "SORT k",
    "SORT k BY store GET # STORE a STORE b",
    "SORT k LIMIT 0 1 ALPHA STORE d",
    "SORT_RO k BY a GET store",
    "GEORADIUS k 0 0 1 m COUNT 1 STORE d",
    "GEORADIUS k 0 0 1 m",
    "GEORADIUSBYMEMBER k x 1 m STOREDIST d",
    "GEORADIUSBYMEMBER k x 1 m",
    "GEOSEARCHSTORE d k FROMMEMBER x BYRADIUS 1 m",
    "MIGRATE h 1 k 0 1",
    "MIGRATE h 1 k 0 1 COPY AUTH keys",
    "MIGRATE h 1 \"\" 0 1 AUTH2 a keys KEYS a b",
    "RESTORE k 0 x",
    "COPY a b DB 1",
    "SMOVE a b m",
    "HSET k f v",
    "HGETEX k EX 1 FIELDS 1 f",
    "ZADD k 1 m",
    "WATCH a b",
    "SSUBSCRIBE a b",
    "SPUBLISH c m",
    "CLUSTERSCAN 0",
    "VADD k VALUES 1 1 e",
    "VSIM k ELE e",
    "PING",
    "CONFIG GET a",
    "CLIENT NOSUCH",
];

/// The words of mutated lines: all that may confuse a parser. There is no `01` and no `1.5`:
/// COMMAND GETKEYS reads a number of keys leniently (as 1), and the command itself then refuses it.
const WORDS: &[&str] = &[
    "a",
    "b",
    "k",
    "0",
    "1",
    "2",
    "3",
    "-1",
    "9223372036854775807",
    "\"\"",
    "STREAMS",
    "streams",
    "STORE",
    "STOREDIST",
    "KEYS",
    "AUTH",
    "AUTH2",
    "COPY",
    "BY",
    "GET",
    "LIMIT",
    "COUNT",
    "BLOCK",
    "GROUP",
    "NOACK",
    "WEIGHTS",
    "STORE\0x",
    "KEYS\0",
    "streams\0k",
    "STREAM",
];

/// Keys counted twice, left out or invented, or a request called good that the server calls wrong,
/// cannot pass: each server says for itself where it sees keys.
#[test]
fn servers_find_keys_where_the_table_does() {
    let seed = random::seed();
    let mut random = Random::new(seed);
    let mut compared = 0;
    for (flavour, server) in servers(&[Flavour::Redis70, Flavour::Redis82, Flavour::Valkey91]) {
        let mut link = RespClient::connect(server.address());
        let mut known = HashMap::new();
        let mut requests: Vec<CommandLine> = LINES.iter().map(|line| words(line)).collect();
        // Every command with every small number of arguments ...
        for id in commands::all() {
            let name: Vec<&str> = id.get().name.split('|').collect();
            for argc in name.len()..name.len() + 6 {
                let mut request = words(&name.join(" "));
                request.resize_with(argc, || word(&mut random));
                requests.push(request);
            }
        }
        // ... and valid requests made invalid, or valid in another way.
        for _ in 0..2_000 {
            let mut request = words(LINES[random.below(LINES.len())]);
            for _ in 0..=random.below(3) {
                let at = 1 + random.below(request.len());
                match random.below(3) {
                    0 => request.insert(at, word(&mut random)),
                    1 if at < request.len() => drop(request.remove(at)),
                    _ if at < request.len() => request[at] = word(&mut random),
                    _ => {}
                }
            }
            requests.push(request);
        }
        for request in requests {
            let Some(id) = commands::resolve(request.len(), |at| request[at].as_slice()) else {
                continue;
            };
            let known = *known
                .entry(id)
                .or_insert_with(|| known_alike(&mut link, id.get()));
            if !known || told_in_two_ways(&request) {
                continue;
            }
            let theirs = told_by_server(&mut link, &request);
            assert_eq!(
                told_by_table(&request),
                theirs,
                "table and {} about {} (RESPOOL_TEST_SEED={seed})",
                flavour.name(),
                shown(&request)
            );
            compared += 1;
        }
    }
    assert!(compared > 3_000, "compared {compared} requests");
}

/// A request that passes and makes the server wait cannot pass: it would stop all sessions on the
/// link.
#[test]
fn servers_wait_only_when_the_table_says_so() {
    // The plain ones occur several times, so that the server does not refuse every request.
    const OPTIONS: &[&str] = &[
        "BLOCK 0",
        "BLOCK 0",
        "BLOCK 0",
        "block 0",
        "BLOCK\0x 0",
        "COUNT 1",
        "COUNT 1",
        "COUNT 1",
        "COUNT BLOCK",
        "NOACK",
        "GROUP g c",
        "GROUP BLOCK 0",
        "GROUP STREAMS BLOCK",
        "STREAMS s $",
        "STREAMS BLOCK $",
        "STREAMS s BLOCK 0 $",
        "CLAIM 0",
        "NEWER",
        "BLOCK",
        "BLOCK -1",
    ];
    let seed = random::seed();
    let mut random = Random::new(seed);
    for (flavour, server) in servers(&[
        Flavour::Redis62,
        Flavour::Redis70,
        Flavour::Redis82,
        Flavour::Valkey91,
    ]) {
        let mut watcher = RespClient::connect(server.address());
        for stream in ["s", "BLOCK", "0"] {
            watcher.call_args(&words(&format!("XGROUP CREATE {stream} g $ MKSTREAM")));
        }
        let (mut waited, mut answered) = (0, 0);
        for nth in 0..1_000 {
            let (name, end) = if nth % 2 == 0 {
                ("XREAD", ["STREAMS s $", "STREAMS BLOCK $"])
            } else {
                ("XREADGROUP GROUP g c", ["STREAMS s >", "STREAMS BLOCK >"])
            };
            let mut options: Vec<&str> = Vec::new();
            options.resize_with(random.below(4), || OPTIONS[random.below(OPTIONS.len())]);
            options.push(end[random.below(2)]);
            let request = words(&format!("{name} {}", options.join(" ")));
            let asks = commands::asks_to_block(request.len(), |at| request[at].as_slice());
            let mut link = RespClient::connect(server.address());
            link.send(&client::request(&request));
            if waits(&mut link, &mut watcher) {
                waited += 1;
                let shown = shown(&request);
                assert!(
                    asks,
                    "{} waits for {shown} (RESPOOL_TEST_SEED={seed})",
                    flavour.name()
                );
            } else {
                answered += 1;
            }
        }
        assert!(
            waited > 20 && answered > 20,
            "{waited} waited, {answered} answered"
        );
    }
}

/// The installed servers of these versions.
fn servers(flavours: &[Flavour]) -> Vec<(Flavour, ServerProcess)> {
    let mut running = Vec::new();
    for &flavour in flavours {
        match find(flavour) {
            Ok(binary) => {
                running.push((flavour, ServerProcess::start::<&str>(&binary, &[]).unwrap()))
            }
            Err(reason) => leave_out("servers", reason),
        }
    }
    assert!(
        !running.is_empty(),
        "no server is installed, so nothing was compared"
    );
    running
}

/// Requests on which servers contradict each other, or a server its own key specs. All of them are
/// refused when they run, or mean the same.
fn told_in_two_ways(request: &[Vec<u8>]) -> bool {
    let is = |at: usize, words: &[&str]| {
        let arg = request.get(at).map(Vec::as_slice).unwrap_or_default();
        // Servers end a word at a zero byte.
        let word = arg.split(|&byte| byte == 0).next().unwrap_or_default();
        words
            .iter()
            .any(|known| known.as_bytes().eq_ignore_ascii_case(word))
    };
    let stores = (5..request.len())
        .filter(|&at| is(at, &["STORE", "STOREDIST"]))
        .count();
    // With several STORE, the last one counts, but Redis names them all.
    is(0, &["GEORADIUS", "GEORADIUSBYMEMBER"]) && stores > 1
        // STORE in place of the unit.
        || is(0, &["GEORADIUS"]) && is(5, &["STORE", "STOREDIST"])
        // STREAMS in a place that leaves no room for GROUP.
        || is(0, &["XREADGROUP"]) && (1..4).any(|at| is(at, &["STREAMS"]))
}

/// The keys of a request, by the table or by a server.
#[derive(Debug, PartialEq)]
enum Keys {
    /// The keys themselves, sorted.
    Are(Vec<String>),
    /// There are none: the request has no keys, or it is invalid and will be refused.
    None,
}

fn told_by_table(request: &[Vec<u8>]) -> Keys {
    let argc = request.len();
    let arg = |at: usize| request[at].as_slice();
    let command = commands::resolve(argc, arg)
        .expect("the command was found before")
        .get();
    let mut found = Vec::new();
    let result = command.keys(argc, arg, |key, flags| {
        // Servers also route by arguments that are no keys, but do not call them keys.
        if !flags.has(KeyFlags::NOT_KEY) {
            found.push(request[key].escape_ascii().to_string());
        }
    });
    found.sort();
    match result {
        Ok(()) if command.arity_ok(argc) && !found.is_empty() => Keys::Are(found),
        _ => Keys::None,
    }
}

fn told_by_server(link: &mut RespClient, request: &[Vec<u8>]) -> Keys {
    let mut question = words("COMMAND GETKEYS");
    question.extend_from_slice(request);
    match link.call_args(&question) {
        Reply::Error(_) => Keys::None,
        Reply::Array(keys) if keys.is_empty() => Keys::None,
        Reply::Array(keys) => {
            let keys = keys
                .iter()
                .map(|key| key.text().expect("a key").escape_ascii().to_string());
            let mut keys: Vec<String> = keys.collect();
            keys.sort();
            Keys::Are(keys)
        }
        other => panic!("{other:?} to COMMAND GETKEYS"),
    }
}

/// Whether the server has this command with the arguments that the newest ones take.
fn known_alike(link: &mut RespClient, command: &Command) -> bool {
    let Reply::Array(found) = link.call_args(&["COMMAND", "INFO", command.name]) else {
        panic!("no list from COMMAND INFO {}", command.name);
    };
    match &found[..] {
        [Reply::Array(fields)] => fields[1] == Reply::Integer(i64::from(command.arity)),
        _ => false,
    }
}

/// Whether the server blocks this link, as another link sees it. Ends the wait.
fn waits(link: &mut RespClient, watcher: &mut RespClient) -> bool {
    link.stream().set_nonblocking(true).unwrap();
    loop {
        match link.some_bytes() {
            Ok(bytes) => {
                assert!(!bytes.is_empty(), "the server hung up");
                return false;
            }
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
        let info = watcher.call_args(&["INFO", "clients"]);
        let info = String::from_utf8_lossy(info.text().unwrap()).into_owned();
        if !info.contains("\r\nblocked_clients:0\r\n") {
            let list = watcher.call_args(&["CLIENT", "LIST"]);
            let list = String::from_utf8_lossy(list.text().unwrap()).into_owned();
            let blocked = list
                .lines()
                .find(|line| line.contains(" flags=b "))
                .expect("one is blocked");
            let id = blocked
                .split(' ')
                .next()
                .and_then(|id| id.strip_prefix("id="))
                .expect("CLIENT LIST names an id");
            watcher.call_args(&["CLIENT", "UNBLOCK", id]);
            return true;
        }
    }
}

/// The arguments of a line.
fn words(line: &str) -> CommandLine {
    line.split(' ')
        .map(|word| {
            if word == "\"\"" {
                Vec::new()
            } else {
                word.into()
            }
        })
        .collect()
}

fn shown(request: &[Vec<u8>]) -> String {
    let shown: Vec<String> = request
        .iter()
        .map(|arg| format!("\"{}\"", arg.escape_ascii()))
        .collect();
    shown.join(" ")
}

fn word(random: &mut Random) -> Vec<u8> {
    words(random.pick::<&str>(WORDS)).remove(0)
}

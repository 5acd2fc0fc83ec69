//! Prefixes that respool takes off: servers see short keys, and no client can tell.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use respool_testkit::client::{Reply, RespClient, request, words};
use respool_testkit::servers::{Flavour, Proxy, ServerProcess, any_server, find, installed};
use respool_testkit::time::wait_until;
use tempfile::TempDir;

use crate::target::respool;

const SOON: Duration = Duration::from_secs(10);

/// `u:` and `g:` are taken off, `n:` is not. Those of `g:` are divided among two.
struct PrefixPools {
    rest: ServerProcess,
    users: ServerProcess,
    groups: [ServerProcess; 2],
    named: ServerProcess,
    proxy: Proxy,
    _folder: TempDir,
}

impl Drop for PrefixPools {
    fn drop(&mut self) {
        let log = self.proxy.log();
        if thread::panicking() {
            eprintln!("its log:\n{log}");
        } else {
            assert!(!log.contains("panicked at"), "{log}");
        }
    }
}

impl PrefixPools {
    fn start(binary: &Path, args: &[&str]) -> PrefixPools {
        let start =
            || ServerProcess::start(binary, &[""; 0]).unwrap_or_else(|error| panic!("{error}"));
        let [rest, users, named] = std::array::from_fn(|_| start());
        let groups: [ServerProcess; 2] = std::array::from_fn(|_| start());
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let file = folder.path().join("respool.toml");
        let proxy = Proxy::start_with(&respool(), |port| {
            let text = format!(
                "[pool.all]\nlisten = '127.0.0.1:{port}'\nbackend = 'redis://{}'\n\
                 [pool.all.prefixes]\n\
                 'u:' = {{ backend = 'redis://{}', strip = true }}\n\
                 'g:' = {{ backend = 'redis-sharded://{},{}', strip = true }}\n\
                 'n:' = 'redis://{}'\n",
                rest.address(),
                users.address(),
                groups[0].address(),
                groups[1].address(),
                named.address()
            );
            std::fs::write(&file, text).unwrap_or_else(|error| panic!("{error}"));
            let own = ["--config".to_owned(), file.display().to_string()];
            let args = args.iter().map(|&arg| arg.to_owned());
            own.into_iter().chain(args).collect()
        });
        PrefixPools {
            rest,
            users,
            groups,
            named,
            proxy: proxy.unwrap_or_else(|error| panic!("{error}")),
            _folder: folder,
        }
    }

    fn client(&self) -> RespClient {
        RespClient::connect(self.proxy.address())
    }

    /// The names of the keys at the server of `u:`.
    fn users(&self) -> BTreeSet<String> {
        keys_at(&self.users)
    }
}

fn keys_at(server: &ServerProcess) -> BTreeSet<String> {
    names(&RespClient::connect(server.address()).call("KEYS *"))
}

fn names(list: &Reply) -> BTreeSet<String> {
    let (Reply::Array(names) | Reply::Set(names)) = list else {
        panic!("no list of keys: {list:?}");
    };
    let name = |name: &Reply| match name {
        Reply::Bulk(name) => String::from_utf8_lossy(name).into_owned(),
        other => panic!("no name: {other:?}"),
    };
    let all: BTreeSet<String> = names.iter().map(name).collect();
    assert_eq!(all.len(), names.len(), "a key is there twice");
    all
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// All keys that SCAN finds, however many calls that takes.
fn scanned(client: &mut RespClient, options: &str) -> BTreeSet<String> {
    let (mut cursor, mut all) = ("0".to_owned(), BTreeSet::new());
    loop {
        let Reply::Array(reply) = client.call(&format!("SCAN {cursor}{options}")) else {
            panic!("SCAN{options}");
        };
        all.extend(names(&reply[1]));
        let Reply::Bulk(next) = &reply[0] else {
            panic!("no cursor");
        };
        cursor = String::from_utf8_lossy(next).into_owned();
        if cursor == "0" {
            return all;
        }
    }
}

#[track_caller]
fn is_refused(answer: &Reply, beginning: &str) {
    let text = answer.error().unwrap_or_else(|| panic!("{answer:?}"));
    assert!(text.starts_with(beginning), "{text}");
}

/// Every request goes to a server directly and through respool, with prefixed keys both times.
/// Requests whose replies have no fixed order, or are made up by the server, are left out.
const SCRIPT: &[&str] = &[
    "SET u:s 1",
    "GET u:s",
    "SET u:s 2 GET",
    "SETEX u:x 1000 v",
    "GETSET u:s 3",
    "GETRANGE u:s 0 -1",
    "SETRANGE u:s 2 abc",
    "INCR u:n",
    "INCRBYFLOAT u:n 1.5",
    "APPEND u:s x",
    "STRLEN u:s",
    "GETEX u:s PERSIST",
    "SET u: empty",
    "GET u:",
    "SET u:u:s nested",
    "GET u:u:s",
    "MSET u:a 1 u:b 2 u:a 3",
    "MGET u:a u:b u:none u:a",
    "MSETNX u:a 1 u:c 2",
    "LCS u:a u:s",
    "EXISTS u:a u:b u:none u:a",
    "TOUCH u:a u:none",
    "TYPE u:a",
    "RENAME u:b u:c",
    "RENAMENX u:c u:a",
    "COPY u:c u:d",
    "OBJECT ENCODING u:c",
    "OBJECT REFCOUNT u:c",
    "OBJECT ENCODING u:none",
    "EXPIRE u:c 1000",
    "EXPIREAT u:c 33177117420",
    "PERSIST u:c",
    "TTL u:c",
    "DUMP u:c",
    "GETDEL u:c",
    "DEL u:d u:none",
    "UNLINK u:a",
    "RPUSH u:l a b c d e f",
    "LRANGE u:l 0 -1",
    "LMOVE u:l u:l2 LEFT RIGHT",
    "RPOPLPUSH u:l u:l2",
    "LPOS u:l c",
    "LINSERT u:l BEFORE c x",
    "LMPOP 2 u:none u:l LEFT COUNT 2",
    "LMPOP 1 u:none LEFT",
    "BLPOP u:none u:l 1",
    "BRPOP u:l 1",
    "BLMOVE u:l2 u:l LEFT RIGHT 1",
    "BRPOPLPUSH u:l u:l2 1",
    "BLMPOP 1 2 u:none u:l2 RIGHT COUNT 5",
    "BLPOP u:none 0.01",
    "RPUSH u:l 3 1 2",
    "SORT u:l",
    "SORT u:l BY nosort GET #",
    "SORT u:l DESC STORE u:sorted",
    "SORT_RO u:sorted ALPHA",
    "LRANGE u:sorted 0 -1",
    "SADD u:set a b c",
    "SADD u:set2 b c d",
    "SMOVE u:set u:set2 a",
    "SINTERSTORE u:set3 u:set u:set2",
    "SUNIONSTORE u:set3 u:set u:set2 u:none",
    "SDIFFSTORE u:set4 u:set2 u:set",
    "SCARD u:set3",
    "SISMEMBER u:set3 a",
    "SINTERCARD 2 u:set u:set2",
    "HSET u:h f 1 g 2",
    "HGETALL u:h",
    "HINCRBY u:h f 5",
    "HMGET u:h f none",
    "ZADD u:z 1 a 2 b 3 c",
    "ZADD u:z2 1 a 5 d",
    "ZUNIONSTORE u:z3 2 u:z u:z2 WEIGHTS 2 3",
    "ZINTERSTORE u:z4 2 u:z u:z2",
    "ZDIFFSTORE u:z4 2 u:z u:z2",
    "ZRANGESTORE u:z4 u:z 0 1",
    "ZRANGE u:z3 0 -1 WITHSCORES",
    "ZUNION 2 u:z u:z2 WITHSCORES",
    "ZDIFF 2 u:z u:z2",
    "ZINTERCARD 2 u:z u:z2",
    "ZMPOP 2 u:none u:z MIN COUNT 1",
    "BZPOPMIN u:none u:z 1",
    "BZPOPMAX u:z3 u:z 1",
    "BZMPOP 1 1 u:z3 MAX COUNT 9",
    "BZPOPMIN u:none 0.01",
    "ZMPOP 1 u:none MIN",
    "GEOADD u:geo 13.361389 38.115556 Palermo 15.087269 37.502669 Catania",
    "GEOSEARCHSTORE u:geo2 u:geo FROMLONLAT 15 37 BYRADIUS 200 km",
    "GEORADIUS u:geo 15 37 200 km STORE u:geo3",
    "ZCARD u:geo3",
    "PFADD u:hll a b c",
    "PFADD u:hll2 c d",
    "PFCOUNT u:hll u:hll2",
    "PFMERGE u:hll3 u:hll u:hll2",
    "PFMERGE u:hll4",
    "PFCOUNT u:hll3",
    "SETBIT u:bits 7 1",
    "BITOP NOT u:bits2 u:bits",
    "BITOP OR u:bits3 u:bits u:bits2",
    "BITCOUNT u:bits3",
    "BITFIELD u:bits SET u8 0 255",
    "XADD u:st 1-1 f v",
    "XADD u:st 2-1 f v",
    "XADD u:st2 1-1 g w",
    "XREAD STREAMS u:st u:st2 0 0",
    "XREAD COUNT 1 STREAMS u:st u:none 0 0",
    "XREAD STREAMS u:none 0",
    "XREAD BLOCK 10 STREAMS u:st u:st2 1-1 5-0",
    "XREAD BLOCK 10 STREAMS u:none $",
    "XGROUP CREATE u:st g 0",
    "XGROUP CREATE u:st2 g 0",
    "XREADGROUP GROUP g c STREAMS u:st u:st2 > >",
    "XREADGROUP GROUP g c BLOCK 10 STREAMS u:st >",
    "XACK u:st g 1-1",
    "XLEN u:st",
    "XINFO GROUPS u:st2",
    "XPENDING u:st g",
    "XSETID u:st 9-9",
    "EVAL return{KEYS[1],ARGV[1]} 0 u:x",
    "EVAL return{redis.call([[get]],KEYS[1]),ARGV[1]} 1 u:s u:x",
    "KEYS u:none*",
    "KEYS u:geo",
    "KEYS u:u:*",
    "RPUSH u:s x",
    "LPOP u:s",
    "SELECT 1",
    "SET u:db 1",
    "MOVE u:db 2",
    "EXISTS u:db",
    "COPY u:db u:db DB 3",
    "SELECT 2",
    "GET u:db",
    "SELECT 0",
    "ECHO u:s",
];

/// In the version of the protocol that is given; wrapped or not. Returns all replies.
fn play(client: &mut RespClient, version: u8, way: SendingWay) -> Vec<(String, Reply)> {
    if version == 3 {
        client.call("HELLO 3");
    }
    client.call("FLUSHALL");
    // Of all servers, and refused in a transaction.
    let is_of_all = |text: &&str| text.starts_with("KEYS");
    let script: Vec<&str> = match way {
        SendingWay::Transactions => SCRIPT
            .iter()
            .copied()
            .filter(|text| !is_of_all(text))
            .collect(),
        _ => SCRIPT.to_vec(),
    };
    let replies = match way {
        SendingWay::OneByOne => script.iter().map(|text| client.call(text)).collect(),
        SendingWay::Pipelined => {
            let bytes: Vec<_> = script.iter().map(|text| words(text)).collect();
            client.exchange(bytes.concat(), script.len())
        }
        SendingWay::Inline => {
            let asked = script.iter().map(|text| {
                client.send(format!("{text}\r\n").as_bytes());
                client.reply()
            });
            asked.collect()
        }
        SendingWay::Transactions => script
            .chunks(7)
            .flat_map(|texts| {
                client.call("MULTI");
                let queued: Vec<Reply> = texts.iter().map(|text| client.call(text)).collect();
                match client.call("EXEC") {
                    Reply::Array(executed) => executed,
                    // One of them the server does not have.
                    other => queued.iter().map(|_| other.clone()).collect(),
                }
            })
            .collect(),
    };
    let asked = script.iter().map(|&text| text.to_owned());
    asked.zip(replies).collect()
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum SendingWay {
    OneByOne,
    Pipelined,
    Inline,
    /// Several at a time.
    Transactions,
}

/// A reply that names a key without its prefix, or another key, cannot pass. A command on another
/// key cannot pass, either.
#[test]
fn no_client_can_tell_keys_without_their_prefix_from_whole_ones() {
    for binary in installed() {
        let direct =
            ServerProcess::start(&binary, &[""; 0]).unwrap_or_else(|error| panic!("{error}"));
        let parts = PrefixPools::start(&binary, &["--threads=1"]);
        for version in [2, 3] {
            for way in [
                SendingWay::OneByOne,
                SendingWay::Pipelined,
                SendingWay::Inline,
                SendingWay::Transactions,
            ] {
                let expected = play(&mut RespClient::connect(direct.address()), version, way);
                let found = play(&mut parts.client(), version, way);
                let mut named = 0;
                for ((asked, expected), (_, found)) in expected.iter().zip(&found) {
                    // Which arguments that was asked with the server tells as it saw them.
                    let unknown = |reply: &Reply| {
                        let text = reply.error();
                        text.is_some_and(|text| text.starts_with("ERR unknown command"))
                    };
                    if unknown(expected) && unknown(found) {
                        continue;
                    }
                    assert_eq!(found, expected, "RESP{version} {way:?}: {asked}");
                    named += usize::from(format!("{expected:?}").contains("\"u:"));
                }
                assert!(named > 5, "{named} replies name keys");
                // The servers hold the same data under other names.
                let mut here = RespClient::connect(direct.address());
                let mut there = RespClient::connect(parts.users.address());
                let keys = keys_at(&direct);
                assert_eq!(
                    keys,
                    parts.users().iter().map(|key| format!("u:{key}")).collect()
                );
                for key in keys {
                    let kind = here.call_args(&["TYPE", &key]);
                    assert_eq!(there.call_args(&["TYPE", &key[2..]]), kind, "{key}");
                    let mut held = [(&mut here, &key[..]), (&mut there, &key[2..])];
                    let held = held.each_mut().map(|(server, key)| match &kind {
                        // Their order is each server's own.
                        Reply::Simple(kind) if kind == "set" => {
                            server.call_args(&["SORT", key, "ALPHA"])
                        }
                        // When its groups were read last is in it, too.
                        Reply::Simple(kind) if kind == "stream" => {
                            server.call_args(&["XRANGE", key, "-", "+"])
                        }
                        _ => server.call_args(&["DUMP", key]),
                    });
                    assert_eq!(held[0], held[1], "{key}");
                }
            }
        }
        for server in [
            &parts.rest,
            &parts.named,
            &parts.groups[0],
            &parts.groups[1],
        ] {
            assert_eq!(keys_at(server), set(&[]), "all data belonged to one part");
        }
    }
}

/// Servers see keys without prefix. Replies that are merged from several servers have whole keys.
#[test]
fn servers_see_short_keys_and_clients_whole_ones() {
    let parts = PrefixPools::start(&any_server(), &["--threads=3"]);
    let mut clients: Vec<RespClient> = (0..20).map(|_| parts.client()).collect();
    let keys = |of: usize| {
        ["u:", "n:", "g:a", "g:b", "", "u:u:", "u"].map(|beginning| format!("{beginning}{of}"))
    };
    for (of, client) in clients.iter_mut().enumerate() {
        let all = keys(of).map(|key| format!("{key} {key}")).join(" ");
        assert_eq!(client.call(&format!("MSET {all}")), Reply::ok());
    }
    for (of, client) in clients.iter_mut().enumerate() {
        let of = (of + 7) % 20;
        let expected = keys(of).map(Reply::bulk).to_vec();
        let all = keys(of).join(" ");
        // The GETs come at once, so that respool may fuse those of one server. An MGET of all keys
        // follows.
        let single = keys(of).map(|key| words(&format!("GET {key}")));
        let asked = [single.concat(), words(&format!("MGET {all}"))].concat();
        let mut found = client.exchange(asked, 8);
        assert_eq!(found.pop(), Some(Reply::Array(expected.clone())));
        assert_eq!(found, expected);
        assert_eq!(
            client.call(&format!("EXISTS {all} u:none")),
            Reply::Integer(7)
        );
    }
    let seen = parts.users();
    assert!(
        seen.contains("3") && seen.contains("u:3") && seen.len() == 40,
        "{seen:?}"
    );
    assert!(keys_at(&parts.named).contains("n:3"));
    assert!(keys_at(&parts.rest).contains("3") && keys_at(&parts.rest).contains("u3"));
    let groups = parts.groups.each_ref().map(keys_at);
    assert!(groups.iter().all(|keys| !keys.is_empty()), "{groups:?}");
    assert!(
        groups.concat_keys().iter().all(|key| !key.contains(':')),
        "{groups:?}"
    );
    let client = &mut clients[0];
    assert_eq!(client.call("DBSIZE"), Reply::Integer(140));
    for way in [SendingWay::OneByOne, SendingWay::Pipelined] {
        let all = keys(usize::from(way == SendingWay::Pipelined)).join(" ");
        assert_eq!(client.call(&format!("DEL {all} u:none")), Reply::Integer(7));
    }
    assert_eq!(client.call("DBSIZE"), Reply::Integer(126));
    is_refused(&client.call("RENAME u:3 n:3"), "CROSSSLOT");
    is_refused(&client.call("SINTERSTORE u:3 3"), "CROSSSLOT");
    // The owner of a key follows from the name that its servers see.
    let beside = Proxy::start(
        &respool(),
        &[format!(
            "--backend=redis-sharded://{},{}",
            parts.groups[0].address(),
            parts.groups[1].address()
        )],
    );
    let beside = beside.unwrap_or_else(|error| panic!("{error}"));
    let mut beside = RespClient::connect(beside.address());
    for of in 2..20 {
        assert_eq!(
            beside.call(&format!("GET a{of}")),
            Reply::bulk(format!("g:a{of}"))
        );
    }
}

trait ConcatKeys {
    fn concat_keys(&self) -> BTreeSet<String>;
}

impl ConcatKeys for [BTreeSet<String>; 2] {
    fn concat_keys(&self) -> BTreeSet<String> {
        self[0].union(&self[1]).cloned().collect()
    }
}

/// A pattern finds the keys that it would find with their prefix.
#[test]
fn patterns_match_whole_keys() {
    for binary in installed() {
        let direct =
            ServerProcess::start(&binary, &[""; 0]).unwrap_or_else(|error| panic!("{error}"));
        let parts = PrefixPools::start(&binary, &["--threads=1"]);
        let (mut here, mut there) = (RespClient::connect(direct.address()), parts.client());
        let keys = [
            "u:", "u:1", "u:12", "u:u:1", "u:vip", "u:*", "u:[x]", "u:a:vip", "g:1", "g:12",
            "g:vip", "n:1", "n:vip", "1", "vip", "u", "u1", "g", ":vip", "[x]",
        ];
        for key in keys {
            let kind = if key.contains("vip") { "SADD" } else { "SET" };
            let asked = format!("{kind} {key} 1");
            assert_eq!(here.call(&asked), there.call(&asked), "{key}");
        }
        let patterns = [
            "*",
            "**",
            "u:*",
            "u:**",
            "u*",
            "?:*",
            "?*",
            "*1",
            "u:1*",
            "u:?",
            "[ug]:*",
            "[^u]:*",
            "*:vip",
            "*:*:vip",
            "*vip",
            "*:",
            "*u:*1",
            "u:\\*",
            "u:[[]x]",
            "u:[",
            "u:",
            "g:*",
            "n:*",
            "none*",
            "u",
            "?",
            "*:[a-v]*",
            "",
            "\\u\\:1",
            "*[0-9]",
            "u:*u:*",
            "[a-z][:-:]1?",
            "*\\:vip",
            "u:]",
            "*:*:*:*",
        ];
        for version in [2, 3] {
            let hello = format!("HELLO {version}");
            here.call(&hello);
            there.call(&hello);
            for pattern in patterns {
                let keys = ["KEYS", pattern];
                let expected = names(&here.call_args(&keys));
                let shown = format!("RESP{version}: {pattern}");
                assert_eq!(names(&there.call_args(&keys)), expected, "KEYS {shown}");
                if pattern.is_empty() {
                    continue;
                }
                for options in ["", " COUNT 3", " TYPE set"] {
                    let options = format!(" MATCH {pattern}{options}");
                    let expected = scanned(&mut here, &options);
                    let found = scanned(&mut there, &options);
                    assert_eq!(found, expected, "SCAN {shown}{options}");
                }
                // The last MATCH counts.
                let options = format!(" match none* count 2 MATCH {pattern}");
                assert_eq!(scanned(&mut there, &options), expected, "SCAN {options}");
            }
            assert_eq!(scanned(&mut there, ""), scanned(&mut here, ""));
            // Each server decides which names match this class.
            let keys = [&b"KEYS"[..], b"u:[a-\xff]*"];
            assert_eq!(
                names(&there.call_args(&keys)),
                names(&here.call_args(&keys))
            );
        }
        for _ in 0..20 {
            let Reply::Bulk(name) = there.call("RANDOMKEY") else {
                panic!("the server has keys");
            };
            let name = String::from_utf8_lossy(&name).into_owned();
            assert!(keys.contains(&name.as_str()), "{name}");
        }
    }
}

/// A transaction and its watched keys are about keys without prefix.
#[test]
fn transactions_and_watch_use_the_short_keys() {
    for binary in installed() {
        let parts = PrefixPools::start(&binary, &["--threads=1"]);
        let (mut client, mut other) = (parts.client(), parts.client());
        assert_eq!(client.call("WATCH u:w"), Reply::ok());
        assert_eq!(other.call("SET u:w 1"), Reply::ok());
        assert_eq!(client.call("MULTI"), Reply::ok());
        assert_eq!(client.call("SET u:a 1"), Reply::Simple("QUEUED".into()));
        assert_eq!(
            client.call("EXEC"),
            Reply::Null,
            "the watched key has changed"
        );
        assert_eq!(client.call("WATCH u:w"), Reply::ok());
        // Another key, which the server would see if the prefix were left on, or taken off twice.
        assert_eq!(other.call("SET u:u:w 1"), Reply::ok());
        assert_eq!(other.call("SET w 1"), Reply::ok());
        let asked = [
            "MULTI",
            "GET u:w",
            "RPUSH u:l a b",
            "BRPOP u:l 0",
            "BLPOP u:l 0",
            "EXEC",
        ];
        let asked = asked.map(words).concat();
        let Some(Reply::Array(executed)) = client.exchange(asked, 6).pop() else {
            panic!("no client changed the watched key");
        };
        let popped = |value: Reply| Reply::Array(vec![Reply::bulk("u:l"), value]);
        assert_eq!(
            executed,
            [
                Reply::bulk("1"),
                Reply::Integer(2),
                popped(Reply::bulk("b")),
                popped(Reply::bulk("a")),
            ]
        );
        is_refused(
            &{
                client.call("MULTI");
                client.call("SET u:a 1");
                client.call("SET n:a 1")
            },
            "CROSSSLOT",
        );
        is_refused(&client.call("EXEC"), "EXECABORT");
        // About the session, and wrong, in between.
        let asked = [
            "MULTI",
            "CLIENT GETNAME",
            "INCR u:n",
            "INCR u:l2",
            "RPUSH u:n x",
            "EXEC",
        ];
        let replies = client.exchange(asked.map(words).concat(), 6);
        let Some(Reply::Array(executed)) = replies.last() else {
            panic!("{replies:?}");
        };
        assert_eq!(executed[1], Reply::Integer(1));
        is_refused(&executed[3], "WRONGTYPE");
        assert_eq!(client.call("MULTI"), Reply::ok());
        assert_eq!(client.call("GET u:n"), Reply::Simple("QUEUED".into()));
        is_refused(&client.call("WATCH u:n"), "ERR ");
        client.call("DISCARD");
        assert_eq!(parts.users(), set(&["w", "u:w", "n", "l2"]));
    }
}

/// The reply to a blocking command names the key with its prefix.
#[test]
fn blocked_client_gets_the_whole_key() {
    for binary in installed() {
        let parts = PrefixPools::start(&binary, &["--threads=1"]);
        let mut other = parts.client();
        for version in [2, 3] {
            let waits = [
                (
                    "BLPOP u:q1 u:q 0",
                    "RPUSH u:q x",
                    Reply::Array(vec![Reply::bulk("u:q"), Reply::bulk("x")]),
                ),
                (
                    "BLMPOP 0 2 u:q1 u:q LEFT",
                    "RPUSH u:q x",
                    Reply::Array(vec![
                        Reply::bulk("u:q"),
                        Reply::Array(vec![Reply::bulk("x")]),
                    ]),
                ),
                (
                    "BLMOVE u:q u:to LEFT LEFT 0",
                    "RPUSH u:q x",
                    Reply::bulk("x"),
                ),
            ];
            for (wait, push, expected) in waits {
                let has_it = RespClient::connect(parts.users.address()).call("BLMPOP");
                let is_missing = |text: &str| text.starts_with("ERR unknown command");
                if wait.starts_with("BLMPOP") && has_it.error().is_some_and(is_missing) {
                    continue;
                }
                let mut client = parts.client();
                client.call(&format!("HELLO {version}"));
                client.send(&words(wait));
                wait_until("the client is blocked", SOON, || {
                    let info = RespClient::connect(parts.users.address()).call("INFO clients");
                    format!("{info:?}").contains("blocked_clients:1")
                });
                // The client waits for none of these.
                assert_eq!(other.call("RPUSH q no"), Reply::Integer(1));
                assert_eq!(other.call("RPUSH u:u:q no"), Reply::Integer(1));
                assert!(client.is_quiet(Duration::from_millis(30)));
                assert_eq!(other.call(push), Reply::Integer(1));
                assert_eq!(client.reply(), expected, "{wait}");
                assert_eq!(
                    other.call("DEL q u:u:q u:to"),
                    Reply::Integer(2 + i64::from(wait.starts_with("BLMOVE")))
                );
            }
            let mut client = parts.client();
            client.call(&format!("HELLO {version}"));
            client.send(&words("XREAD BLOCK 0 STREAMS u:st $"));
            wait_until("the client is blocked", SOON, || {
                let info = RespClient::connect(parts.users.address()).call("INFO clients");
                format!("{info:?}").contains("blocked_clients:1")
            });
            assert_eq!(
                other.call(&format!("XADD u:st {version}-1 f v")),
                Reply::bulk(format!("{version}-1"))
            );
            let entry = Reply::Array(vec![
                Reply::bulk(format!("{version}-1")),
                Reply::Array(vec![Reply::bulk("f"), Reply::bulk("v")]),
            ]);
            let pair = vec![Reply::bulk("u:st"), Reply::Array(vec![entry])];
            let expected = match version {
                2 => Reply::Array(vec![Reply::Array(pair)]),
                _ => Reply::Map(pair),
            };
            assert_eq!(client.reply(), expected);
        }
    }
}

/// A request that is too large to be held goes to the key without prefix.
#[test]
fn streamed_request_goes_to_the_short_key() {
    let parts = PrefixPools::start(&any_server(), &["--threads=1"]);
    let mut client = parts.client();
    let large = "x".repeat(5 << 20);
    let asked = [
        request(&["SET", "u:large", &large]),
        request(&["RPUSH", "u:list", "a", &large, "b"]),
        request(&["MSET", "u:m1", "1", "u:m2", &large]),
        request(&["SET", "n:large", &large]),
        request(&["SET", "u:small", "1"]),
    ];
    let expected = [
        Reply::ok(),
        Reply::Integer(3),
        Reply::ok(),
        Reply::ok(),
        Reply::ok(),
    ];
    assert_eq!(client.exchange(asked.concat(), 5), expected);
    assert_eq!(parts.users(), set(&["large", "list", "m1", "m2", "small"]));
    assert_eq!(keys_at(&parts.named), set(&["n:large"]));
    assert!(client.call("GET u:large") == Reply::bulk(&large));
    assert_eq!(
        client.call("STRLEN u:m2"),
        Reply::Integer(large.len() as i64)
    );
    // The second key comes behind a large value: the request is held whole.
    let late = request(&["MSET", "u:m3", &large, "u:m4", "1"]);
    assert_eq!(client.exchange(late, 1), [Reply::ok()]);
    assert_eq!(client.call("EXISTS u:m3 u:m4"), Reply::Integer(2));
    // A reply with its key is held whole.
    assert_eq!(client.call("LPOP u:list"), Reply::bulk("a"));
    let popped = client.call("BLPOP u:list 0");
    assert!(popped == Reply::Array(vec![Reply::bulk("u:list"), Reply::bulk(&large)]));
    // More keys than respool holds.
    let many: Vec<String> = (0..200_000).map(|n| format!("u:none:{n}")).collect();
    let mut blpop = vec!["BLPOP"];
    blpop.extend(many.iter().map(String::as_str));
    blpop.extend(["u:list", "0"]);
    let answer = client.exchange(request(&blpop), 1).remove(0);
    match answer.error() {
        Some(_) => assert_eq!(client.call("LLEN u:list"), Reply::Integer(1)),
        None => assert_eq!(
            answer,
            Reply::Array(vec![Reply::bulk("u:list"), Reply::bulk("b")])
        ),
    }
}

/// A command that cannot work without the prefix is refused and not done to another key.
#[test]
fn command_without_safe_prefix_is_refused() {
    let parts = PrefixPools::start(&any_server(), &["--threads=1"]);
    let mut client = parts.client();
    let mut direct = RespClient::connect(parts.users.address());
    for key in ["k", "u:k", "w_1"] {
        assert_eq!(direct.call(&format!("RPUSH {key} 1")), Reply::Integer(1));
    }
    for (asked, told) in [
        ("SORT u:k BY u:w_*", "ERR respool: BY and GET of SORT"),
        ("SORT u:k GET w_*", "ERR respool: BY and GET of SORT"),
        (
            "MIGRATE 127.0.0.1 1 u:k 0 100",
            "ERR respool: MIGRATE is refused",
        ),
        (
            "OBJECT NEW u:k",
            "ERR respool: the keys of this command cannot be found",
        ),
        (
            "EVAL return 5 u:k",
            "ERR respool: the keys of this command cannot be found",
        ),
        (
            "ZUNION 2 u:k",
            "ERR respool: the keys of this command cannot be found",
        ),
        // In the words of the server, to which it is no more than the name of the command.
        ("XREAD STREAMS", "ERR wrong number of arguments for 'xread'"),
        ("BLPOP u:k", "ERR wrong number of arguments for 'blpop'"),
        ("eval u:k", "ERR wrong number of arguments for 'eval'"),
        (
            "MSETEX 5 u:k 1",
            "ERR respool: the keys of this command cannot be found",
        ),
        (
            "SCAN 0 MATCH u:* NEWER 1",
            "ERR respool: with `strip`, SCAN takes only MATCH",
        ),
        (
            "SCAN 0 MATCH",
            "ERR respool: with `strip`, SCAN takes only MATCH",
        ),
        ("NOSUCH u:k", "ERR unknown command"),
        (
            "CLIENT TRACKING ON BCAST PREFIX u:",
            "ERR respool: PREFIX of CLIENT TRACKING",
        ),
    ] {
        // A SCAN begins at the server that sees everything.
        let asked = asked.replace("SCAN 0", "SCAN 1");
        is_refused(&client.call(&asked), told);
        client.call("MULTI");
        assert!(client.call(&asked).error().is_some(), "{asked}");
        is_refused(&client.call("EXEC"), "EXECABORT");
    }
    let unclear = client.call_args(&[&b"KEYS"[..], b"[a-\xff]*"]);
    is_refused(&unclear, "ERR respool: this pattern cannot be translated");
    let long = format!("*:[{}]", "a".repeat(1_000));
    is_refused(
        &client.call(&format!("KEYS {long}")),
        "ERR respool: this pattern cannot be translated",
    );
    // To a server a word ends at its first zero byte.
    let hidden = client.call_args(&[&b"SORT"[..], b"u:k", b"ALPHA", b"GET\0", b"w_*"]);
    is_refused(&hidden, "ERR respool: BY and GET of SORT");
    let large = format!("w_*{}", "x".repeat(2 << 20));
    is_refused(
        &client.call(&format!("SORT u:k BY {large}")),
        "ERR respool: BY and GET of SORT",
    );
    // The server's own words where there is nothing that could be a key.
    is_refused(
        &client.call("GET"),
        "ERR wrong number of arguments for 'get' command",
    );
    is_refused(
        &client.call("GET u:k u:k"),
        "ERR wrong number of arguments for 'get' command",
    );
    is_refused(
        &client.call("OBJECT ENCODING"),
        "ERR wrong number of arguments",
    );
    assert_eq!(parts.users(), set(&["k", "u:k", "w_1"]));
    for key in ["k", "u:k", "w_1"] {
        assert_eq!(
            direct.call(&format!("LRANGE {key} 0 -1")),
            Reply::Array(vec![Reply::bulk("1")])
        );
    }
    assert_eq!(keys_at(&parts.rest), set(&[]));
}

/// Reads that were lost with their connection are asked again, by the keys that their server knows.
#[test]
fn restarted_server_gets_short_keys_again() {
    let mut parts = PrefixPools::start(&any_server(), &["--threads=3", "--reconnect-max-ms=50"]);
    let fill = |server: &ServerProcess| {
        let mut direct = RespClient::connect(server.address());
        // Keys that would be found with the prefix left on, or taken off twice.
        for key in ["u:k", "k:k"] {
            assert_eq!(direct.call(&format!("SET {key} wrong")), Reply::ok());
        }
        assert_eq!(direct.call("XADD st 1-1 f v"), Reply::bulk("1-1"));
        assert_eq!(direct.call("XADD u:st 1-1 f wrong"), Reply::bulk("1-1"));
        for of in 0..50 {
            assert_eq!(direct.call(&format!("SET k{of} {of}")), Reply::ok());
            assert_eq!(direct.call(&format!("SET u:k{of} wrong")), Reply::ok());
        }
    };
    fill(&parts.users);
    let ended = AtomicBool::new(false);
    let address = parts.proxy.address();
    let binary = any_server();
    assert!(find(Flavour::Redis70).is_ok_and(|its| its == binary));
    thread::scope(|scope| {
        let readers: Vec<_> = (0..12)
            .map(|reader| {
                let ended = &ended;
                scope.spawn(move || {
                    let mut client = RespClient::connect(address);
                    let (mut right, mut failed) = (0_u64, 0_u64);
                    let mut of = reader;
                    while !ended.load(Ordering::SeqCst) {
                        let keys: Vec<usize> = (0..10).map(|step| (of + step) % 50).collect();
                        of += 3;
                        let single = keys.iter().map(|key| words(&format!("GET u:k{key}")));
                        let all: Vec<_> = keys.iter().map(|key| format!("u:k{key}")).collect();
                        let several = words(&format!("MGET {} k", all.join(" ")));
                        let stream = words("XREAD STREAMS u:st 0");
                        let asked = single.chain([stream, several]).collect::<Vec<_>>();
                        let mut replies = client.exchange(asked.concat(), 12);
                        let several = replies.pop().expect("the last request has a reply");
                        match replies.pop().expect("the request before it has a reply") {
                            Reply::Error(_) | Reply::Null => failed += 1,
                            found => assert_eq!(found, stream_of("u:st", "v")),
                        }
                        for (key, value) in keys.iter().zip(&replies) {
                            match value {
                                Reply::Error(_) | Reply::Null => failed += 1,
                                value => {
                                    assert_eq!(*value, Reply::bulk(key.to_string()));
                                    right += 1;
                                }
                            }
                        }
                        if let Reply::Array(values) = several {
                            for (key, value) in keys.iter().zip(&values) {
                                let its = Reply::bulk(key.to_string());
                                assert!(*value == its || *value == Reply::Null, "{value:?}");
                            }
                        }
                    }
                    (right, failed)
                })
            })
            .collect();
        for _ in 0..3 {
            // Requests of a lost connection that was up for a second are retried.
            thread::sleep(Duration::from_millis(1_200));
            parts.users.kill9();
            parts
                .users
                .restart()
                .unwrap_or_else(|error| panic!("{error}"));
            fill(&parts.users);
        }
        thread::sleep(Duration::from_millis(300));
        ended.store(true, Ordering::SeqCst);
        let Reply::Bulk(info) = RespClient::connect(address).call("INFO respool") else {
            panic!("INFO is a text");
        };
        let info = String::from_utf8_lossy(&info).into_owned();
        let again = info
            .lines()
            .find_map(|line| line.strip_prefix("respool_reads_sent_again:"));
        assert!(again.is_some_and(|count| count != "0"), "{info}");
        for reader in readers {
            let (right, _) = reader
                .join()
                .unwrap_or_else(|_| panic!("a reader was told something wrong"));
            assert!(right > 100, "{right}");
        }
    });
}

/// The reply of XREAD for a stream of one entry.
fn stream_of(key: &str, value: &str) -> Reply {
    let bulks = |texts: [&str; 2]| Reply::Array(texts.map(Reply::bulk).to_vec());
    let entry = Reply::Array(vec![Reply::bulk("1-1"), bulks(["f", value])]);
    let stream = vec![Reply::bulk(key), Reply::Array(vec![entry])];
    Reply::Array(vec![Reply::Array(stream)])
}

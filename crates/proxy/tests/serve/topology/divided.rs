//! Test bodies for servers among which keys are divided, by any rule.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use respool_testkit::client::{Reply, RespClient, is_not_executed, pipelined, texts, words};
use respool_testkit::random::{Random, seed};
use respool_testkit::servers::{Process, Proxy, ServerProcess};
use respool_testkit::time::{Watch, wait_until};

/// Sends the same random requests to all servers behind an address and to a single one of the same
/// kind, and compares the replies. Returns the number of keys at the end.
pub(crate) fn answers_like_one_server(binary: &Path, address: SocketAddr) -> Reply {
    let model = ServerProcess::start(binary, &[""; 0]).unwrap_or_else(|error| panic!("{error}"));
    let seed = seed();
    let mut random = Random::new(seed);
    let mut one = RespClient::connect(address);
    let mut other = RespClient::connect(model.address());
    for round in 0..150 {
        let count = 1 + random.below(40) as usize;
        let requests: Vec<u8> = (0..count).flat_map(|_| some_request(&mut random)).collect();
        let got = one.exchange(requests.clone(), count);
        let got: Vec<Reply> = got.iter().map(without_server).collect();
        let expected = other.exchange(requests.clone(), count);
        assert_eq!(
            got,
            expected,
            "round {round}, RESPOOL_TEST_SEED={seed}: {}",
            String::from_utf8_lossy(&requests)
        );
    }
    // Requests that need all keys at one server have them by hash tags, in both protocols.
    for round in 0..40 {
        if round == 20 {
            for client in [&mut one, &mut other] {
                assert!(client.call("HELLO 3").error().is_none());
            }
        }
        let asked: Vec<String> = (0..20).flat_map(|_| some_of_one_tag(&mut random)).collect();
        let requests: Vec<u8> = asked.iter().flat_map(|asked| words(asked)).collect();
        let got = one.exchange(requests.clone(), asked.len());
        let expected = other.exchange(requests, asked.len());
        for ((asked, got), expected) in asked.iter().zip(&got).zip(&expected) {
            let got = without_server(got);
            assert_eq!(
                got, *expected,
                "tagged round {round}, RESPOOL_TEST_SEED={seed}: {asked}"
            );
        }
    }
    other.call("DBSIZE")
}

/// Redis's text.
pub(crate) const CROSSED: &str = "CROSSSLOT Keys in request don't hash to the same slot";

/// Functions that write and functions that only read, at servers behind an address, each of which
/// has one of these keys. `at` gives the server of a key.
pub(crate) fn functions_are_called_where_their_keys_are(
    address: SocketAddr,
    keys: &[String],
    at: impl Fn(usize) -> SocketAddr,
) {
    let library = "#!lua name=lib\n\
        redis.register_function('put', function(keys, args) redis.call('SET', keys[1], args[1]) return keys end)\n\
        redis.register_function{function_name='look', flags={'no-writes'}, \
            callback=function(keys) return redis.call('GET', keys[1]) end}";
    let mut client = RespClient::connect(address);
    let loaded = client.call_args(&["FUNCTION", "LOAD", library]);
    if loaded
        .error()
        .is_some_and(|error| error.contains("unknown command"))
    {
        // Redis 6.2 has no functions.
        return;
    }
    assert_eq!(loaded, Reply::bulk("lib"));
    for (server, key) in keys.iter().enumerate() {
        let (tagged, value) = (format!("{{{key}}}more"), format!("of:{key}"));
        let put = client.call(&format!("FCALL put 2 {key} {tagged} {value}"));
        assert_eq!(texts(&put), [key.as_str(), &tagged]);
        // A Cluster's node has no other slots, and no other server has the key.
        let there = RespClient::connect(at(server)).call(&format!("GET {key}"));
        assert_eq!(there, Reply::bulk(&value));
        for look in ["FCALL look", "FCALL_RO look"] {
            let looked = client.call(&format!("{look} 1 {key}"));
            assert_eq!(looked, Reply::bulk(&value), "{look}");
        }
        let block = format!("MULTI;FCALL put 1 {key} in:{key};FCALL_RO look 1 {key};EXEC");
        let replies = pipelined(&mut client, &block);
        let put = Reply::Array(vec![Reply::bulk(key)]);
        let executed = vec![put, Reply::bulk(format!("in:{key}"))];
        assert_eq!(replies[3], Reply::Array(executed), "{replies:?}");
    }
    let [a, b, ..] = keys else {
        panic!("several servers")
    };
    for apart in [
        format!("FCALL put 2 {a} {b} x"),
        format!("FCALL_RO look 2 {a} {b}"),
    ] {
        assert_eq!(client.call(&apart).error(), Some(CROSSED), "{apart}");
        let replies = pipelined(&mut client, &format!("MULTI;{apart};EXEC"));
        assert_eq!(replies[1].error(), Some(CROSSED), "{replies:?}");
        let aborted = replies[2].error().unwrap_or_default();
        assert!(aborted.starts_with("EXECABORT "), "{replies:?}");
    }
    // Keys of another server than the transaction's first one, or than the watched one.
    for (block, at) in [
        (format!("MULTI;FCALL put 1 {a} x;FCALL put 1 {b} x;EXEC"), 2),
        (format!("MULTI;SET {a} x;FCALL_RO look 1 {b};EXEC"), 2),
        (format!("WATCH {a};MULTI;FCALL put 1 {b} x;EXEC"), 2),
    ] {
        let replies = pipelined(&mut client, &block);
        let foreign = replies[at].error().unwrap_or_default();
        assert!(foreign.starts_with("CROSSSLOT respool: "), "{replies:?}");
        let aborted = replies[3].error().unwrap_or_default();
        assert!(aborted.starts_with("EXECABORT "), "{replies:?}");
    }
    for key in [a, b] {
        let value = client.call(&format!("GET {key}"));
        assert_eq!(
            value,
            Reply::bulk(format!("in:{key}")),
            "nothing was executed"
        );
    }
}

/// Options to give up silent servers soon.
pub(crate) const GIVES_UP_SOON: [&str; 6] = [
    "--threads=1",
    "--request-timeout-ms=1500",
    "--link-stall-ms=4s",
    "--connect-timeout-ms=1s",
    "--reconnect-max-ms=100",
    "--outage-hold-ms=0",
];

/// Three servers, each with one of these keys. The last one is stopped: its kernel accepts for it
/// all bytes.
pub(crate) fn a_silent_server_fails_its_own_keys_alone(
    proxy: &Proxy,
    keys: &[String],
    silent: &Process,
) {
    const DEADLINE: Duration = Duration::from_millis(1_500);
    const SOON: Duration = Duration::from_secs(10);
    let connect = || RespClient::connect(proxy.address());
    let [a, b, lost] = keys else {
        panic!("three servers")
    };
    let name = silent.address().to_string();
    let asked = [
        format!("GET {lost}"),
        format!("SET {lost} x"),
        format!("MGET {a} {lost} {b}"),
    ];
    let fails = |asked: &str, reply: &Reply, code: &str| {
        let text = reply.error().unwrap_or_default();
        let is_told = text.starts_with(code) && text.contains(&name);
        assert!(is_told, "{asked}: {reply:?}");
    };
    let mut other = connect();
    // Requests at the other servers, with the time for all of them: they must not wait for the
    // stopped one.
    let mut others_are_answered = || {
        let watch = Watch::start();
        let replies = pipelined(&mut other, &format!("GET {a};SET {b} {b};MGET {a} {b}"));
        let took = watch.elapsed();
        let both = Reply::Array(vec![Reply::bulk(a), Reply::bulk(b)]);
        assert_eq!(replies, [Reply::bulk(a), Reply::ok(), both]);
        assert!(took < DEADLINE / 3, "{took:?}");
    };
    // respool does not retry requests of a link that was up for less than a second.
    thread::sleep(Duration::from_millis(1_100));
    silent.stop();
    let mut clients: Vec<RespClient> = asked.iter().map(|_| connect()).collect();
    let watch = Watch::start();
    for (client, asked) in clients.iter_mut().zip(&asked) {
        client.send(&words(asked));
    }
    while watch.elapsed() < DEADLINE / 2 {
        others_are_answered();
    }
    for (client, asked) in clients.iter_mut().zip(&asked) {
        fails(asked, &client.reply(), "UNKNOWN respool: ");
    }
    let took = watch.elapsed();
    assert!(took < 2 * DEADLINE, "{took:?}");
    let given_up = "it sent nothing for 4000 ms";
    wait_until("respool gives up the silent server", SOON, || {
        others_are_answered();
        proxy.log().contains(given_up)
    });
    // An attempt to connect is waited for, and then no other one.
    let mut client = connect();
    wait_until("requests to the silent server fail", SOON, || {
        let reply = client.call(&asked[1]);
        reply.error().is_some_and(is_not_executed)
    });
    for _ in 0..10 {
        for asked in &asked {
            let watch = Watch::start();
            let reply = client.call(asked);
            let took = watch.elapsed();
            fails(asked, &reply, "LOADING respool: ");
            assert!(took < DEADLINE / 3, "{asked}: {took:?}");
        }
        others_are_answered();
        thread::sleep(Duration::from_millis(50));
    }
    silent.cont();
    wait_until("keys of the resumed server are served", SOON, || {
        client.call(&format!("SET {lost} again")) == Reply::ok()
    });
    let all = ["MGET", a, lost, b].join(" ");
    assert_eq!(texts(&client.call(&all)), [a, "again", b]);
    others_are_answered();
}

/// Of a part that failed respool names the server; one server does not.
fn without_server(value: &Reply) -> Reply {
    match value.error() {
        Some(error) if error.contains(" respool: 127.0.0.1:") => {
            let (code, rest) = error.split_once(" respool: ").unwrap_or_default();
            let (_, rest) = rest.split_once(": ").unwrap_or_default();
            Reply::Error(format!("{code} {rest}"))
        }
        _ => value.clone(),
    }
}

/// Each of many clients writes keys of its own and reads them.
pub(crate) fn many_clients_get_their_own_answers(address: SocketAddr) {
    let seed = seed();
    std::thread::scope(|scope| {
        for number in 0..16 {
            scope.spawn(move || {
                let mut client = RespClient::connect(address);
                let mut random = Random::new(seed.wrapping_add(number));
                let mut model: HashMap<String, String> = HashMap::new();
                for _ in 0..60 {
                    let (mut requests, mut expected) = (Vec::new(), Vec::new());
                    for _ in 0..30 {
                        let key = format!("{number}:{}", random.below(20));
                        let other = format!("{number}:{}", random.below(20));
                        let held = |key: &str| model.get(key).map_or(Reply::Null, Reply::bulk);
                        match random.below(3) {
                            0 => {
                                requests.extend(words(&format!("MGET {key} {other}")));
                                expected.push(Reply::Array(vec![held(&key), held(&other)]));
                            }
                            1 => {
                                requests.extend(words(&format!("GET {key}")));
                                expected.push(held(&key));
                            }
                            _ => {
                                let value = random.below(1_000_000).to_string();
                                requests.extend(words(&format!("SET {key} {value}")));
                                model.insert(key, value);
                                expected.push(Reply::ok());
                            }
                        }
                    }
                    let got = client.exchange(requests, 30);
                    assert_eq!(got, expected, "RESPOOL_TEST_SEED={seed}");
                }
            });
        }
    });
}

/// Random requests of one client for few keys.
/// Requests, or a transaction of several, about keys of one tag.
fn some_of_one_tag(random: &mut Random) -> Vec<String> {
    let tag = random.below(6);
    let first = match random.below(8) {
        0 => vec!["MULTI".to_owned()],
        1 => {
            let watched = format!("WATCH {{t{tag}}}s {{t{tag}}}h");
            vec![watched, tagged_request(random, tag), "MULTI".to_owned()]
        }
        _ => return vec![tagged_request(random, tag)],
    };
    let queued = 1 + random.below(4);
    let queued: Vec<String> = (0..queued).map(|_| tagged_request(random, tag)).collect();
    let end = ["EXEC", "EXEC", "EXEC", "DISCARD"][random.below(4) as usize];
    [first, queued, vec![end.to_owned()]].concat()
}

/// A request for a string, hash, set, sorted set, list or stream; sometimes for a key of another
/// type.
fn tagged_request(random: &mut Random, tag: u64) -> String {
    let number = random.below(50);
    let is_other = random.below(12) == 0;
    let kinds = ["s", "h", "u", "z", "l", "x"];
    let other = kinds[random.below(6) as usize];
    let key = |kind: &str| match is_other {
        true => format!("{{t{tag}}}{other}"),
        false => format!("{{t{tag}}}{kind}"),
    };
    let (s, h, u, z, l, x) = (key("s"), key("h"), key("u"), key("z"), key("l"), key("x"));
    let field = number % 5;
    match random.below(40) {
        0 => format!("SET {s} {number}"),
        1 => format!("SET {s} {number} NX GET"),
        2 => format!("APPEND {s} {number}"),
        3 => format!("GETRANGE {s} 1 -2"),
        4 => format!("INCRBY {s} {number}"),
        5 => format!("GETDEL {s}"),
        6 => format!("MGET {s} {h} {s}"),
        7 => format!("RENAME {s} {s}2"),
        8 => format!("TYPE {x}"),
        9 => format!("HSET {h} f{field} {number} g{field} x"),
        10 => format!("HGETALL {h}"),
        11 => format!("HINCRBY {h} f{field} {number}"),
        12 => format!("HMGET {h} f{field} none"),
        13 => format!("HDEL {h} f{field}"),
        14 => format!("SADD {u} {number} 1 2"),
        15 => format!("SMEMBERS {u}"),
        16 => format!("SISMEMBER {u} {number}"),
        17 => format!("SMOVE {u} {u}2 {field}"),
        18 => format!("SINTER {u} {u}2"),
        19 => format!("SUNIONSTORE {u}3 {u} {u}2"),
        20 => format!("ZADD {z} {number} m{field}"),
        21 => format!("ZRANGE {z} 0 -1 WITHSCORES"),
        22 => format!("ZINCRBY {z} 1.5 m{field}"),
        23 => format!("ZUNIONSTORE {z}2 2 {z} {z}2"),
        24 => format!("ZSCORE {z} m{field}"),
        25 => format!("ZPOPMIN {z}"),
        26 => format!("RPUSH {l} {number} {field}"),
        27 => format!("LMOVE {l} {l}2 LEFT RIGHT"),
        28 => format!("BLPOP {l} {l}2 0.01"),
        29 => format!("BLMOVE {l}2 {l} LEFT LEFT 0.01"),
        30 => format!("LRANGE {l} 0 -1"),
        31 => format!("SORT {l} DESC LIMIT 0 3"),
        32 => format!("XADD {x} {number}-1 f {number}"),
        33 => format!("XRANGE {x} - + COUNT 3"),
        34 => format!("XREAD COUNT 2 STREAMS {x} {x}2 {field} 0"),
        35 => format!("XREAD BLOCK 5 STREAMS {x} 40"),
        36 => format!("XDEL {x} {number}-1"),
        37 => {
            let script = "return{redis.call('INCR',KEYS[1]),redis.call('HGETALL',KEYS[2])}";
            format!("EVAL {script} 2 {s} {h}")
        }
        38 => {
            format!("EVAL return{{KEYS[1],ARGV[1],redis.call('DEL',KEYS[2])}} 2 {s} {l} {number}")
        }
        _ => format!("DEL {s} {h} {u} {z} {l} {x}"),
    }
}

fn some_request(random: &mut Random) -> Vec<u8> {
    let mut key = || format!("k{}", random.below(30));
    let (one, two, three) = (key(), key(), key());
    let number = random.below(1_000);
    words(&match random.below(16) {
        0..3 => format!("SET {one} {number}"),
        3..6 => format!("GET {one}"),
        6 => format!("INCR {one}"),
        7 => format!("APPEND {one} {number}"),
        8 => format!("MGET {one} {two} {three} {one}"),
        9 => format!("MSET {one} {number} {two} b {one} c"),
        10 => format!("DEL {one} {two} {one}"),
        11 => format!("EXISTS {one} {two} {three} {one}"),
        12 => format!("RPUSH {one} {number}"),
        13 => format!("LRANGE {one} 0 -1"),
        14 => format!("UNLINK {one} {two}"),
        _ => format!("TOUCH {one} {two} {three}"),
    })
}

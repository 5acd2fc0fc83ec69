//! Error texts of scripts and functions: each request runs once, its client gets the text, and
//! respool takes no action.
//!
//! A script counts its runs by INCR before it returns the text, so a second run shows in the count.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use respool_protocol::slot::hash_slot;
use respool_testkit::client::{Reply, RespClient, counter, request, words};
use respool_testkit::servers::{Proxy, ServerProcess, any_server};
use respool_testkit::time::wait_until;
use respool_testkit::topologies::{
    self, ClusterSettings, Node, Sentinels, SentinelsSettings, Watched,
};

use crate::target::{Options, before_every_server, respool};
use crate::topology::cluster::{Served, primaries, some_server_of, with_every_server};
use crate::topology::replicas::wait_for_replicas;
use crate::topology::sentinel;

const SOON: Duration = Duration::from_secs(20);
/// A shared link that brings no byte for so long may get a successor, which is one connection more.
const STUCK: Duration = Duration::from_millis(50);

/// Checks of the login take connections of their own, at any time.
const NO_CHECKS: &str = "--login-check-ms=0";

/// A script with the count as its key, and the text as its first argument.
const SCRIPT: &str = "redis.call('INCR', KEYS[1]) return redis.error_reply(ARGV[1])";

/// How a client has code run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ScriptWay {
    Reply,
    Table,
    Pcall,
    Thrown,
    Sha,
    Function,
    Block,
    BlockOfFunctions,
    Large,
    Watching,
    Pipeline,
    Resp3,
}

const WAYS: [ScriptWay; 12] = [
    ScriptWay::Reply,
    ScriptWay::Table,
    ScriptWay::Pcall,
    ScriptWay::Thrown,
    ScriptWay::Sha,
    ScriptWay::Function,
    ScriptWay::Block,
    ScriptWay::BlockOfFunctions,
    ScriptWay::Large,
    ScriptWay::Watching,
    ScriptWay::Pipeline,
    ScriptWay::Resp3,
];

const LIBRARY: &str = "#!lua name=words\n\
    redis.register_function('say', function(keys, args) \
    redis.call('INCR', keys[1]) return redis.error_reply(args[1]) end)";

impl ScriptWay {
    /// Has the text said once, for this key. `None`: the server cannot do it.
    fn say(self, address: SocketAddr, key: &str, text: &str) -> Option<Reply> {
        let client = &mut RespClient::connect(address);
        let eval = |script: &str| request(&["EVAL", script, "1", key, text]);
        let fcall = || request(&["FCALL", "say", "1", key, text]);
        let ask = |client: &mut RespClient, bytes| client.exchange(bytes, 1).remove(0);
        let reply = match self {
            ScriptWay::Reply => ask(client, eval(SCRIPT)),
            ScriptWay::Table => ask(
                client,
                eval("redis.call('INCR', KEYS[1]) return {err=ARGV[1]}"),
            ),
            ScriptWay::Pcall => {
                let script = "redis.call('INCR', KEYS[1]) local told = redis.pcall('GET') \
                    told.err = ARGV[1] return told";
                ask(client, eval(script))
            }
            ScriptWay::Thrown => {
                let script = "redis.call('INCR', KEYS[1]) error({err=ARGV[1]})";
                ask(client, eval(script))
            }
            ScriptWay::Sha => {
                let Reply::Bulk(digest) = client.call_args(&["SCRIPT", "LOAD", SCRIPT]) else {
                    panic!("a digest")
                };
                let digest = String::from_utf8(digest).expect("hexadecimal");
                client.call_args(&["EVALSHA", &digest, "1", key, text])
            }
            ScriptWay::Function => ask(client, fcall()),
            ScriptWay::Block | ScriptWay::BlockOfFunctions => {
                let asked = match self {
                    ScriptWay::Block => eval(SCRIPT),
                    _ => fcall(),
                };
                let block = [words("MULTI"), asked, words("EXEC")].concat();
                match client.exchange(block, 3).remove(2) {
                    Reply::Array(mut all) => all.remove(0),
                    // Before 7.0 there are no functions.
                    Reply::Error(_) if self == ScriptWay::BlockOfFunctions => return None,
                    other => panic!("{self:?}: {other:?}"),
                }
            }
            ScriptWay::Large => {
                let long = "x".repeat(600_000);
                ask(client, request(&["EVAL", SCRIPT, "1", key, text, &long]))
            }
            ScriptWay::Watching => {
                let other = format!("WATCH {{{key}}}other");
                let bytes = [words(&other), eval(SCRIPT), words("UNWATCH")].concat();
                let mut replies = client.exchange(bytes, 3);
                assert_eq!([&replies[0], &replies[2]], [&Reply::ok(), &Reply::ok()]);
                replies.remove(1)
            }
            ScriptWay::Pipeline => {
                let get = words(&format!("GET {{{key}}}other"));
                let bytes = [get.clone(), eval(SCRIPT), get].concat();
                let mut replies = client.exchange(bytes, 3);
                assert_eq!([&replies[0], &replies[2]], [&Reply::Null, &Reply::Null]);
                replies.remove(1)
            }
            ScriptWay::Resp3 => {
                client.call("HELLO 3");
                ask(client, eval(SCRIPT))
            }
        };
        let is_unknown = reply.error().is_some_and(|error| {
            error.contains("unknown command") || error.contains("Function not")
        });
        (!is_unknown).then_some(reply)
    }
}

/// Texts that a script may return as if its server had: about this key, which is at `own`. No
/// connection may be made to `evil`.
fn all_texts(key: &str, own: SocketAddr, other: SocketAddr, evil: SocketAddr) -> Vec<String> {
    let slot = hash_slot(key.as_bytes());
    let mut texts: Vec<String> = [
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "CLUSTERDOWN The cluster is down",
        "CLUSTERDOWN Hash slot not served",
        "LOADING Redis is loading the dataset in memory",
        "LOADING Valkey is loading the dataset in memory",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "READONLY You can't write against a read only replica.",
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
        "NOSCRIPT No matching script. Please use EVAL.",
        "EXECABORT Transaction discarded because of previous errors.",
        "NOAUTH Authentication required.",
        "NOPERM this user has no permissions to run the 'eval' command",
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        "MISCONF Redis is configured to save RDB snapshots",
        "NOTSENT respool: the command was not executed",
        "moved 1 127.0.0.1:1",
        "MOVED nowhere",
    ]
    .map(str::to_owned)
    .to_vec();
    for word in ["MOVED", "ASK"] {
        for place in [own, other, evil] {
            texts.push(format!("{word} {slot} {place}"));
            texts.push(format!("{word} {} {place} and more", slot ^ 1));
        }
    }
    texts
}

/// Every way to say every text, through a respool: see the module.
fn scripts_steer_nothing(address: SocketAddr, own: SocketAddr, other: SocketAddr) {
    let evil = TcpListener::bind("127.0.0.1:0").expect("a free port");
    evil.set_nonblocking(true)
        .expect("the listener can be nonblocking");
    let at = evil.local_addr().expect("the listener is bound");
    let key = "count";
    let mut watcher = RespClient::connect(address);
    watcher.call_args(&["FUNCTION", "LOAD", LIBRARY]);
    // Links of each kind are there.
    for way in WAYS {
        way.say(address, key, "ERR warm");
    }
    watcher.call(&format!("DEL {key}"));
    let events = |watcher: &mut RespClient| {
        ["redirected_moved", "redirected_ask", "requests_deferred"]
            .map(|name| counter(watcher, name))
    };
    let before = events(&mut watcher);
    let mut count = 0;
    for way in WAYS {
        // New code opens its link in advance. Known code may leave that link unused.
        let new = format!("return '{way:?}'");
        watcher.call_args(&["EVAL", &new, "1", key]);
        let (count_before, ups) = (count, counter(&mut watcher, "links_connected"));
        let (mut slow, mut told_of, mut opened_by) = (0, 0, Vec::new());
        for text in all_texts(key, own, other, at) {
            let asked = Instant::now();
            let Some(reply) = way.say(address, key, &text) else {
                continue;
            };
            count += 1;
            let told = reply.error().unwrap_or_default();
            // Some servers name the script in a thrown error.
            let is_its = told == text || way == ScriptWay::Thrown && told.contains(&text[..5]);
            // Before 7.0 a thrown table is no text.
            let is_its = is_its || way == ScriptWay::Thrown && told.starts_with("ERR");
            assert!(is_its, "{way:?} {text}: {reply:?}");
            // A GET may be answered by a replica, which lags.
            let counted = watcher.call(&format!("INCRBY {key} 0"));
            assert_eq!(counted, Reply::Integer(count as i64), "{way:?} {text}");
            slow += u64::from(asked.elapsed() >= STUCK);
            let opened = counter(&mut watcher, "links_connected") - ups;
            if opened > told_of {
                opened_by.push((opened - told_of, text));
                told_of = opened;
            }
        }
        let more = counter(&mut watcher, "links_connected") - ups;
        // A session that watches and a large request have a link of their own.
        let max = match way {
            ScriptWay::Watching | ScriptWay::Large => count - count_before,
            _ => 0,
        };
        assert!(
            more <= max + slow,
            "{way:?}: {more} connections, {slow} slow: {opened_by:?}"
        );
    }
    assert!(count > 200, "{count} scripts");
    assert_eq!(events(&mut watcher), before);
    let accepted = evil.accept().map(|(_, from)| from);
    assert!(accepted.is_err(), "a client connected: {accepted:?}");
}

#[test]
fn script_words_steer_nothing_before_a_plain_server() {
    before_every_server(&Options::with(&[NO_CHECKS]), |target| {
        let own = target.server.address();
        scripts_steer_nothing(target.address(), own, own);
    });
}

#[test]
fn script_words_steer_nothing_before_shards() {
    let servers: Vec<ServerProcess> = (0..2)
        .map(|_| {
            ServerProcess::start(&any_server(), &[""; 0]).unwrap_or_else(|error| panic!("{error}"))
        })
        .collect();
    let addresses: Vec<SocketAddr> = servers.iter().map(|server| server.address()).collect();
    let backend = format!("--backend={}", topologies::sharded_url(&addresses));
    let proxy = Proxy::start(&respool(), &[&backend[..], "--threads=1", NO_CHECKS])
        .unwrap_or_else(|error| panic!("{error}"));
    scripts_steer_nothing(proxy.address(), addresses[0], addresses[1]);
}

fn before_a_cluster(binary: &Path, settings: ClusterSettings, query: &str) {
    let replicas = settings.primaries * settings.replicas;
    let served = Served::start_with(binary, settings, &["--threads=1", NO_CHECKS], query);
    served.whole();
    // The links to replicas are there: a node names its replicas later than its slots.
    wait_for_replicas(&served.proxy, replicas);
    let owner = served.owner("count");
    let address = |node: usize| served.cluster.node(node).address();
    let other = address((owner + 1) % 3);
    scripts_steer_nothing(served.proxy.address(), address(owner), other);
}

#[test]
fn script_words_steer_nothing_before_a_cluster() {
    with_every_server(|binary| before_a_cluster(binary, primaries(), ""));
}

#[test]
fn script_words_steer_nothing_where_replicas_are_read() {
    let binary = some_server_of(|_| true);
    let settings = ClusterSettings::default();
    before_a_cluster(&binary, settings, "?reads=prefer-replica");
}

#[test]
fn script_words_steer_nothing_before_sentinels() {
    let binary = sentinel::some_server(5);
    let sentinels = Sentinels::start(&binary, &SentinelsSettings::default())
        .unwrap_or_else(|error| panic!("{error}"));
    let names: Vec<&str> = sentinels.all_watched().iter().map(Watched::name).collect();
    let url = topologies::sentinel_url(&sentinels.addresses(), names[0]);
    let backend = format!("--backend={url}");
    let proxy = Proxy::start(&respool(), &[&backend[..], "--threads=1", NO_CHECKS])
        .unwrap_or_else(|error| panic!("{error}"));
    let mut client = RespClient::connect(proxy.address());
    wait_until("the primary is known", SOON, || {
        client.call("SET k v") == Reply::ok()
    });
    let servers = sentinels.watched(0).servers();
    let address = |node: &Node| node.address();
    let primary = sentinels
        .primary(0)
        .unwrap_or_else(|error| panic!("{error}"));
    let other = address(&servers[(primary + 1) % servers.len()]);
    scripts_steer_nothing(proxy.address(), address(&servers[primary]), other);
}

/// While the slot of a counter moves back and forth, each honest script runs once, and none fails.
#[test]
fn honest_scripts_go_on_while_their_slot_moves() {
    with_every_server(|binary| {
        let served = Served::start(binary, primaries(), &["--threads=1"]);
        served.whole();
        let key = "honest";
        let mut client = served.client();
        client.call_args(&[
            "FUNCTION",
            "LOAD",
            "#!lua name=honest\nredis.register_function('count', function(keys) return redis.call('INCR', keys[1]) end)",
        ]);
        let script = "return redis.call('INCR', KEYS[1])";
        let Reply::Bulk(digest) = client.call_args(&["SCRIPT", "LOAD", script]) else {
            panic!("a digest")
        };
        let digest = String::from_utf8(digest).expect("hexadecimal");
        let mut count = 0;
        for turn in 0..6 {
            let owner = served.owner(key);
            served.move_key(key, (owner + 1) % 3);
            let ways: [&[&str]; 3] = [
                &["EVAL", script, "1", key],
                &["EVALSHA", &digest, "1", key],
                &["FCALL", "count", "1", key],
            ];
            // Another way is the first each time: the others find the slot healed.
            for way in 0..3 {
                let asked = ways[(turn + way) % 3];
                let reply = client.call_args(asked);
                let is_unknown = |text: &str| text.contains("unknown command");
                if reply.error().is_some_and(is_unknown) {
                    continue;
                }
                count += 1;
                assert_eq!(reply, Reply::Integer(count), "{asked:?}");
            }
        }
    });
}

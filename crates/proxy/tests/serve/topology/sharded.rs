//! Plain servers among which keys are divided: to a client they are one server.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use respool_protocol::commands::{Answer, CommandId, KeyFlags, Spread, all, id};
use respool_testkit::client::{Reply, RespClient, pipelined, request, text, texts, words};
use respool_testkit::counting::{AllowedFailures, counted};
use respool_testkit::servers::{self, Flavour, Proxy, ServerProcess, any_server, installed};
use respool_testkit::time::{Watch, wait_until};

use crate::target::respool;
use crate::topology::divided;

const SOON: Duration = Duration::from_secs(10);

/// Three servers behind a respool.
struct ThreeShards {
    servers: Vec<ServerProcess>,
    proxy: Proxy,
}

impl Drop for ThreeShards {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("its log:\n{}", self.proxy.log());
        }
    }
}

impl ThreeShards {
    fn start(args: &[&str]) -> ThreeShards {
        ThreeShards::of(&any_server(), "", args)
    }

    /// `parameters` is the part of the URL behind the servers.
    fn of(binary: &std::path::Path, parameters: &str, args: &[&str]) -> ThreeShards {
        ThreeShards::made_of(binary, &[], parameters, args)
    }

    /// `server_args`: for every server.
    fn made_of(
        binary: &std::path::Path,
        server_args: &[&str],
        parameters: &str,
        args: &[&str],
    ) -> ThreeShards {
        let start =
            |_| ServerProcess::start(binary, server_args).unwrap_or_else(|error| panic!("{error}"));
        let servers: Vec<ServerProcess> = (0..3).map(start).collect();
        let hosts: Vec<_> = servers
            .iter()
            .map(|server| server.address().to_string())
            .collect();
        let mut all = vec![format!(
            "--backend=redis-sharded://{}{parameters}",
            hosts.join(",")
        )];
        all.extend(args.iter().map(|&arg| arg.to_owned()));
        let proxy = Proxy::start(&respool(), &all).unwrap_or_else(|error| panic!("{error}"));
        ThreeShards { servers, proxy }
    }

    fn address(&self) -> SocketAddr {
        self.proxy.address()
    }

    fn client(&self) -> RespClient {
        RespClient::connect(self.address())
    }

    fn keys_of(&self, server: usize) -> BTreeSet<String> {
        let keys = RespClient::connect(self.servers[server].address()).call("KEYS *");
        texts(&keys).into_iter().collect()
    }

    /// One key of each server, set to its own name.
    fn a_key_each(&self) -> Vec<String> {
        let mut client = self.client();
        for key in 0..64 {
            assert_eq!(
                client.call(&format!("SET key:{key} key:{key}")),
                Reply::ok()
            );
        }
        let first = |server| {
            let keys = self.keys_of(server);
            keys.into_iter().next().expect("64 keys are on all servers")
        };
        (0..3).map(first).collect()
    }
}

/// One client gets the replies of one server, in order.
#[test]
fn shards_answer_one_client_as_one_server() {
    for binary in installed() {
        for args in [
            &["--threads=1"][..],
            &["--threads=2", "--fuse=false", "--collapse=false"],
        ] {
            let shards = ThreeShards::of(&binary, "", args);
            let keys = divided::answers_like_one_server(&binary, shards.address());
            let all: usize = (0..3).map(|server| shards.keys_of(server).len()).sum();
            assert_eq!(Reply::Integer(all as i64), keys);
            assert!((0..3).all(|server| !shards.keys_of(server).is_empty()));
        }
    }
}

/// The server, of three, of the keys `0`, `1`, ... to `49` by predixy's rule with crc16, computed
/// apart from all code under test.
const PLACES: &str = "22000011111201201201012020120121021021102121101010";

#[test]
fn keys_are_where_the_rule_of_the_url_puts_them() {
    let by_crc16: fn(usize) -> usize = |tag| {
        let place = PLACES.as_bytes()[tag];
        usize::from(place - b'0')
    };
    let by_atol: fn(usize) -> usize = |tag| tag % 3;
    for (hash, place) in [("crc16", by_crc16), ("atol", by_atol)] {
        let parameters = format!("/0?like=predixy&hash={hash}&hash-tag=%7B%7D");
        let shards = ThreeShards::of(&any_server(), &parameters, &[]);
        let mut client = shards.client();
        let mut expected = vec![BTreeSet::new(); 3];
        for number in 0..200 {
            let tag = number / 4;
            let key = format!("{{{tag}}}:{number}");
            assert_eq!(client.call(&format!("SET {key} 1")), Reply::ok());
            expected[place(tag)].insert(key);
        }
        for (server, keys) in expected.into_iter().enumerate() {
            assert_eq!(shards.keys_of(server), keys, "{hash}");
        }
    }
}

/// DBSIZE, KEYS, SCAN and FLUSHALL cover the keys of all servers.
#[test]
fn keyspace_commands_cover_all_shards() {
    let shards = ThreeShards::start(&[]);
    let mut client = shards.client();
    let keys: BTreeSet<String> = (0..500).map(|key| format!("key:{key}")).collect();
    for key in &keys {
        assert_eq!(client.call(&format!("SET {key} 1")), Reply::ok());
    }
    assert_eq!(client.call("DBSIZE"), Reply::Integer(500));
    assert_eq!(
        texts(&client.call("KEYS *"))
            .into_iter()
            .collect::<BTreeSet<_>>(),
        keys
    );
    assert!(keys.contains(&text(&client.call("RANDOMKEY"))));
    let (mut seen, mut cursor) = (Vec::new(), "0".to_owned());
    loop {
        let Reply::Array(answer) = client.call(&format!("SCAN {cursor} COUNT 40")) else {
            panic!("SCAN answers with two elements");
        };
        seen.extend(texts(&answer[1]));
        cursor = text(&answer[0]);
        assert!(cursor.parse::<u64>().is_ok_and(|cursor| cursor < 1 << 53));
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), keys);
    assert_eq!(
        client.call("SCAN 18446744073709551615").error(),
        Some("ERR invalid cursor")
    );
    assert_eq!(client.call("FLUSHALL"), Reply::ok());
    assert!((0..3).all(|server| shards.keys_of(server).is_empty()));
}

/// A module's command goes where the servers say that its keys are, or is refused.
#[test]
fn module_command_goes_where_its_keys_are() {
    let binary = match servers::find(Flavour::Redis82) {
        Ok(binary) => binary,
        Err(reason) => return servers::leave_out("servers", reason),
    };
    let module = binary.with_file_name("falkordb.so");
    let module = module.to_str().expect("the path is text");
    let shards = ThreeShards::made_of(&binary, &["--loadmodule", module], "", &["--threads=1"]);
    let keys = shards.a_key_each();
    let [a, b, _] = &keys[..] else {
        panic!("three servers")
    };
    let mut client = shards.client();
    assert_eq!(client.call("FLUSHALL"), Reply::ok());
    for key in &keys {
        let made = client.call(&format!("GRAPH.QUERY {key} CREATE(n{{of:'{key}'}})"));
        assert!(made.error().is_none(), "{made:?}");
    }
    for (server, key) in keys.iter().enumerate() {
        assert!(shards.keys_of(server).contains(key), "{key}");
        let read = client.call(&format!("GRAPH.QUERY {key} MATCH(n)RETURN(n.of)"));
        assert!(format!("{read:?}").contains(key), "{read:?}");
    }
    let crossed = "CROSSSLOT Keys in request don't hash to the same slot";
    let copied = client.call(&format!("GRAPH.COPY {a} {b}"));
    assert_eq!(copied.error(), Some(crossed));
    // Without keys, one server would answer for its own keys alone.
    let listed = client.call("GRAPH.LIST");
    let refused = listed.error().unwrap_or_default();
    assert!(refused.contains("names no keys"), "{listed:?}");

    let query = format!("GRAPH.QUERY {a} RETURN(1)");
    let replies = pipelined(&mut client, &format!("MULTI;{query};GET {a};EXEC"));
    let Reply::Array(executed) = &replies[3] else {
        panic!("{replies:?}");
    };
    assert!(matches!(executed[0], Reply::Array(_)), "{executed:?}");
    let replies = pipelined(&mut client, &format!("MULTI;GET {b};{query};EXEC"));
    let foreign = replies[2].error().unwrap_or_default();
    assert!(foreign.starts_with("CROSSSLOT respool: "), "{replies:?}");
}

/// A request that must run as one runs where its keys are, or is refused.
#[test]
fn atomic_request_runs_where_its_keys_are_or_fails() {
    let shards = ThreeShards::start(&[]);
    let keys = shards.a_key_each();
    let [a, b, _] = &keys[..] else {
        panic!("three servers")
    };
    let mut client = shards.client();
    let crossed = "CROSSSLOT Keys in request don't hash to the same slot";
    for apart in [
        format!("SINTER {a} {b}"),
        format!("RENAME {a} {b}"),
        format!("MSETNX {a} 1 {b} 2"),
    ] {
        assert_eq!(client.call(&apart).error(), Some(crossed), "{apart}");
    }
    assert_eq!(client.call("MSETNX {t}a 1 {t}b 2"), Reply::Integer(1));
    assert_eq!(
        client.call("EVAL return{KEYS[1],KEYS[2]} 2 {t}a {t}b"),
        Reply::Array(vec![Reply::bulk("{t}a"), Reply::bulk("{t}b")])
    );

    // A transaction is its first key's server's.
    let queued = || Reply::Simple("QUEUED".into());
    let exec = "MULTI;INCR {t}a;SET {t}b 3;GET {t}b;EXEC";
    let replies = pipelined(&mut client, exec);
    assert_eq!(replies[1..4], [queued(), queued(), queued()]);
    assert_eq!(
        replies[4],
        Reply::Array(vec![Reply::Integer(2), Reply::ok(), Reply::bulk("3")])
    );
    let divided = format!("MULTI;MGET {a} {b};EXEC");
    let replies = pipelined(&mut client, &divided);
    assert_eq!(replies[1].error(), Some(crossed));
    let foreign = format!("MULTI;SET {a} x;SET {b} x;EXEC;GET {a}");
    let replies = pipelined(&mut client, &foreign);
    assert_eq!(replies[1], queued());
    assert!(
        replies[2]
            .error()
            .is_some_and(|error| error.starts_with("CROSSSLOT respool: ")),
        "{:?}",
        replies[2]
    );
    assert!(
        replies[3]
            .error()
            .is_some_and(|error| error.starts_with("EXECABORT ")),
        "{:?}",
        replies[3]
    );
    assert_eq!(replies[4], Reply::bulk(a), "nothing was executed");

    // Another client has changed the watched key.
    assert_eq!(client.call(&format!("WATCH {a}")), Reply::ok());
    assert!(
        client
            .call(&format!("GET {b}"))
            .error()
            .is_some_and(|error| error.starts_with("CROSSSLOT respool: "))
    );
    assert_eq!(shards.client().call(&format!("SET {a} y")), Reply::ok());
    let replies = pipelined(&mut client, &format!("MULTI;SET {a} z;EXEC"));
    assert_eq!(replies[2], Reply::Null);
    assert_eq!(
        client.call(&format!("GET {b}")),
        Reply::bulk(b),
        "nothing is watched any more"
    );

    // A command for all servers cannot run at one of them alone.
    for all in ["FLUSHALL", "DBSIZE", "SCAN 0", "KEYS *"] {
        let replies = format!("MULTI;SET {{t}}a 1;{all};EXEC");
        let replies = pipelined(&mut client, &replies);
        assert!(
            replies[2]
                .error()
                .is_some_and(|error| error.starts_with("ERR respool: ")),
            "{all}: {:?}",
            replies[2]
        );
        assert!(
            replies[3]
                .error()
                .is_some_and(|error| error.starts_with("EXECABORT ")),
            "{all}"
        );
    }
    // In Redis's words, and the transaction goes on.
    let replies = format!("MULTI;SET {a} {a};WATCH {b};EXEC");
    let replies = pipelined(&mut client, &replies);
    assert_eq!(
        replies[2].error(),
        Some("ERR WATCH inside MULTI is not allowed")
    );
    assert_eq!(replies[3], Reply::Array(vec![Reply::ok()]));
    let reply = client.call("SCAN");
    assert!(
        reply
            .error()
            .is_some_and(|error| error.contains("wrong number of arguments")),
        "{reply:?}"
    );
    assert_eq!(client.call("CLIENT TRACKING OFF"), Reply::ok());
    // PUBLISH in a transaction is refused, too, unless the first server runs it.
    let published: Vec<bool> = keys
        .iter()
        .map(|key| {
            let replies = format!("MULTI;GET {key};PUBLISH news x;EXEC");
            let replies = pipelined(&mut client, &replies);
            replies[3].error().is_none()
        })
        .collect();
    assert_eq!(published, [true, false, false]);

    for one_servers in [
        "BGSAVE",
        "LASTSAVE",
        "ROLE",
        "DEBUG JMAP",
        "MONITOR",
        "CLIENT TRACKING ON REDIRECT 1",
    ] {
        let reply = client.call(one_servers);
        let refused = reply
            .error()
            .is_some_and(|error| error.starts_with("ERR respool: "));
        assert!(refused, "{one_servers}: {reply:?}");
    }
    assert_eq!(client.call("PING"), Reply::Simple("PONG".into()));
    // respool itself answers commands about the client, as ever.
    assert_eq!(client.call("CLIENT SETNAME me"), Reply::ok());
    assert_eq!(client.call("CLIENT GETNAME"), Reply::bulk("me"));
    for server in &shards.servers {
        let list = text(&RespClient::connect(server.address()).call("CLIENT LIST"));
        assert!(!list.contains("name=me"), "{list}");
    }
}

/// Functions run where their keys are, or are refused.
#[test]
fn shards_call_functions_where_their_keys_are() {
    for binary in installed() {
        let shards = ThreeShards::of(&binary, "", &["--threads=1"]);
        let keys = shards.a_key_each();
        divided::functions_are_called_where_their_keys_are(shards.address(), &keys, |at| {
            shards.servers[at].address()
        });
    }
}

/// BLPOP waits at the shard of its key, and SUBSCRIBE where messages are published.
#[test]
fn blocking_and_subscribing_use_the_right_shard() {
    let shards = ThreeShards::start(&["--threads=2"]);
    let keys = shards.a_key_each();
    let mut other = shards.client();
    for key in &keys {
        let mut waiting = shards.client();
        waiting.send(&words(&format!("BLPOP list:{{{key}}} 10")));
        let list = format!("list:{{{key}}}");
        assert_eq!(other.call(&format!("RPUSH {list} x")), Reply::Integer(1));
        assert_eq!(
            waiting.reply(),
            Reply::Array(vec![Reply::bulk(&list), Reply::bulk("x")])
        );
        assert_eq!(waiting.call(&format!("GET {key}")), Reply::bulk(key));
    }
    let mut listening = shards.client();
    listening.send(&words("SUBSCRIBE news"));
    listening.reply();
    for key in &keys {
        // Wherever the session has turned before.
        assert_eq!(other.call(&format!("GET {key}")), Reply::bulk(key));
        assert_eq!(
            other.call(&format!("PUBLISH news {key}")),
            Reply::Integer(1)
        );
        assert_eq!(texts(&listening.reply())[2], *key);
    }
}

#[test]
fn a_value_of_any_size_goes_to_its_server() {
    let shards = ThreeShards::start(&[]);
    let keys = shards.a_key_each();
    let mut client = shards.client();
    let value = |key: &str| key.repeat(200_000);
    for key in &keys {
        let set = request(&["SET", key, &value(key)]);
        assert_eq!(client.exchange(set, 1), [Reply::ok()]);
    }
    for (server, key) in keys.iter().enumerate() {
        let mut direct = RespClient::connect(shards.servers[server].address());
        assert_eq!(direct.call(&format!("GET {key}")), Reply::bulk(value(key)));
    }
    let values = keys.iter().map(|key| Reply::bulk(value(key))).collect();
    assert_eq!(
        client.call(&format!("MGET {}", keys.join(" "))),
        Reply::Array(values)
    );
    // A request whose one server is known in time goes there.
    let script = request(&["EVAL", "return#ARGV[1]", "1", &keys[2], &value("")]);
    assert_eq!(client.exchange(script, 1), [Reply::Integer(0)]);
    let long = "x".repeat(600_000);
    let script = request(&["EVAL", "return#ARGV[1]", "1", &keys[2], &long]);
    assert_eq!(client.exchange(script, 1), [Reply::Integer(600_000)]);
    assert_eq!(
        client.exchange(request(&["PUBLISH", "news", &long]), 1),
        [Reply::Integer(0)]
    );
    // A request with keys of several servers is divided, as large as it is.
    let huge: Vec<String> = keys
        .iter()
        .flat_map(|key| [key.clone(), value(key)])
        .collect();
    assert_eq!(client.call("FLUSHALL"), Reply::ok());
    let set = client.call_args(&[vec!["MSET".to_owned()], huge].concat());
    assert_eq!(set, Reply::ok());
    for key in &keys {
        let len = value(key).len() as i64;
        assert_eq!(client.call(&format!("STRLEN {key}")), Reply::Integer(len));
    }
    // The replies of all servers together may be larger than a client's unread output.
    let again = |key: &String| Reply::bulk(value(key));
    let names: Vec<String> = keys.iter().cycle().take(90).cloned().collect();
    let found = client.call_args(&[vec!["MGET".to_owned()], names.clone()].concat());
    assert!(found == Reply::Array(names.iter().map(again).collect()));
    let many: Vec<String> = (0..10_000)
        .map(|at| format!("user:{at:06}:profile:settings:v2"))
        .collect();
    let found = client.call_args(&[vec!["MGET".to_owned()], many.clone()].concat());
    assert_eq!(found, Reply::Array(vec![Reply::Null; many.len()]));
    let deleted = client.call_args(&[vec!["DEL".to_owned()], many, keys].concat());
    assert_eq!(deleted, Reply::Integer(3));
}

/// A server that is gone fails its own keys alone.
#[test]
fn gone_shard_fails_its_own_keys_alone() {
    let mut shards = ThreeShards::start(&["--reconnect-max-ms=100"]);
    let keys = shards.a_key_each();
    let [a, b, gone] = &keys[..] else {
        panic!("three servers")
    };
    let mut client = shards.client();
    let name = shards.servers[2].address().to_string();
    shards.servers[2].kill9();
    let fails = |reply: &Reply| reply.error().is_some_and(|error| error.contains(&name));
    wait_until("keys of the lost server fail", SOON, || {
        fails(&client.call(&format!("GET {gone}")))
    });
    for _ in 0..5 {
        let requests = [
            format!("GET {a}"),
            format!("GET {gone}"),
            format!("MGET {a} {b}"),
            format!("MGET {a} {gone}"),
            format!("SET {b} {b}"),
            format!("MSET {a} {a} {gone} x"),
            "DBSIZE".to_owned(),
        ];
        let replies = client.exchange(requests.iter().flat_map(|text| words(text)).collect(), 7);
        assert_eq!(replies[0], Reply::bulk(a));
        assert_eq!(
            replies[2],
            Reply::Array(vec![Reply::bulk(a), Reply::bulk(b)])
        );
        assert_eq!(replies[4], Reply::ok());
        for failed in [1, 3, 5, 6] {
            assert!(
                fails(&replies[failed]),
                "{}: {:?}",
                requests[failed],
                replies[failed]
            );
        }
    }
    shards.servers[2]
        .restart()
        .unwrap_or_else(|error| panic!("{error}"));
    wait_until("keys of the restarted server are served", SOON, || {
        client.call(&format!("SET {gone} again")) == Reply::ok()
    });
    assert_eq!(
        client.call(&format!("MGET {a} {gone}")),
        Reply::Array(vec![Reply::bulk(a), Reply::bulk("again")])
    );
}

/// A silent server fails its own keys alone, and at once when it is given up.
#[test]
fn silent_shard_fails_its_own_keys_alone() {
    let shards = ThreeShards::start(&divided::GIVES_UP_SOON);
    let keys = shards.a_key_each();
    divided::a_silent_server_fails_its_own_keys_alone(&shards.proxy, &keys, &shards.servers[2]);
}

/// All servers restart in turn, and no write is lost or doubled.
#[test]
fn rolling_restart_of_shards_loses_no_write() {
    for binary in installed() {
        // The server writes to its file before it acknowledges.
        let durable = ["--appendonly", "yes", "--appendfsync", "always"];
        let args = ["--threads=3", "--reconnect-max-ms=100"];
        let mut shards = ThreeShards::made_of(&binary, &durable, "", &args);
        let address = shards.address();
        let errors = counted(address, &mut shards, AllowedFailures::Cuts, |shards| {
            for server in &mut shards.servers {
                server.restart().unwrap_or_else(|error| panic!("{error}"));
                std::thread::sleep(Duration::from_millis(400));
            }
        });
        assert!(!errors.is_empty(), "no client got an error");
    }
}

/// A part that may have run makes the whole request unknown.
#[test]
fn unknown_part_makes_the_request_unknown() {
    let shards = ThreeShards::start(&["--request-timeout-ms=300", "--threads=1"]);
    let keys = shards.a_key_each();
    let mut client = shards.client();
    client.set_read_timeout(Duration::from_secs(10));
    shards.servers[1].stop();
    let set = format!("MSET {} 1 {} 1", keys[0], keys[1]);
    let (written, read) = (
        client.call(&set),
        client.call(&format!("MGET {}", keys.join(" "))),
    );
    shards.servers[1].cont();
    for reply in [written, read] {
        let text = reply.error().unwrap_or_default().to_owned();
        let name = shards.servers[1].address().to_string();
        assert!(
            text.starts_with("UNKNOWN respool: ") && text.contains(&name),
            "{text}"
        );
    }
    // The late replies are dropped.
    wait_until("both keys are set", SOON, || {
        let values = client.call(&format!("MGET {} {}", keys[0], keys[1]));
        values == Reply::Array(vec![Reply::bulk("1"), Reply::bulk("1")])
    });
}

#[test]
fn many_clients_at_once_get_their_own_answers() {
    let shards = ThreeShards::start(&["--threads=2"]);
    divided::many_clients_get_their_own_answers(shards.address());
}

/// A request that is retried goes to the server of its key.
#[test]
fn retried_request_goes_to_its_own_shard() {
    let shards = ThreeShards::start(&[
        "--threads=1",
        "--flush-rule=server-cpu",
        "--max-delay-us=20000",
    ]);
    let keys = shards.a_key_each();
    let [a, b, _] = &keys[..] else {
        panic!("three servers")
    };
    let missing = (0..1_000)
        .map(|number| format!("none:{number}"))
        .find(|name| {
            let set = shards.client().call(&format!("SET {name} x"));
            let there = shards.keys_of(0).contains(name);
            shards.client().call(&format!("DEL {name}"));
            set == Reply::ok() && there
        })
        .expect("some keys are the first server's");
    let mut client = shards.client();
    // Reads leave together once respool has seen that the user may send MGET.
    for key in keys.iter().cycle().take(9) {
        let reads = words(&format!("GET {key}")).repeat(3);
        assert_eq!(client.exchange(reads, 3), vec![Reply::bulk(key); 3]);
    }
    shards.servers[0].stop();
    let reads = format!("GET {missing};GET {a};GET {b};GET {b};STRLEN {b}");
    client.send(&reads.split(';').flat_map(words).collect::<Vec<u8>>());
    // The other server has answered by then.
    std::thread::sleep(Duration::from_millis(200));
    shards.servers[0].cont();
    let replies = client.replies(5);
    let length = Reply::Integer(b.len() as i64);
    assert_eq!(
        replies,
        [
            Reply::Null,
            Reply::bulk(a),
            Reply::bulk(b),
            Reply::bulk(b),
            length
        ]
    );
}

/// SUBSCRIBE inside a transaction listens where messages are published.
#[test]
fn subscribe_in_a_transaction_uses_the_publishing_shard() {
    let shards = ThreeShards::start(&[]);
    let keys = shards.a_key_each();
    for key in &keys {
        let mut client = shards.client();
        let exec = format!("MULTI;SET {key} {key};SUBSCRIBE news;EXEC");
        let replies = pipelined(&mut client, &exec);
        assert!(
            matches!(&replies[3], Reply::Array(all) if all.len() == 2),
            "{replies:?}"
        );
        let mut other = shards.client();
        assert_eq!(other.call(&format!("GET {key}")), Reply::bulk(key));
        assert_eq!(other.call("PUBLISH news hi"), Reply::Integer(1));
        assert_eq!(texts(&client.reply())[2], "hi");
        drop(client);
        // The next PUBLISH must not count this subscriber.
        let without_subscribers = Reply::Array(vec![Reply::bulk("news"), Reply::Integer(0)]);
        wait_until(
            "the client's subscription ends",
            Duration::from_secs(10),
            || other.call("PUBSUB NUMSUB news") == without_subscribers,
        );
    }
}

/// Subscribers get a script's message only if the script runs at the first server.
#[test]
fn scripts_publish_to_subscribers_at_the_first_shard() {
    let shards = ThreeShards::start(&[]);
    let mut listener = shards.client();
    listener.call("SUBSCRIBE news");
    let mut client = shards.client();
    for (server, key) in shards.a_key_each().iter().enumerate() {
        let script = "return redis.call('PUBLISH','news',KEYS[1])";
        let heard = client.call_args(&["EVAL", script, "1", key]);
        assert_eq!(heard, Reply::Integer((server == 0).into()), "{server}");
        if server == 0 {
            assert_eq!(texts(&listener.reply())[2], *key);
        }
    }
    // A request for all servers is held whole.
    let huge = format!("return 1 --{}", "-".repeat(300_000));
    let name = text(&client.call_args(&["SCRIPT", "LOAD", &huge]));
    for key in shards.a_key_each() {
        let said = client.call(&format!("EVALSHA {name} 1 {key}"));
        assert_eq!(said, Reply::Integer(1));
    }
}

#[test]
fn scripts_are_known_everywhere_until_they_are_flushed() {
    let mut shards = ThreeShards::start(&[]);
    let keys = shards.a_key_each();
    let mut client = shards.client();
    let name = text(&client.call("SCRIPT LOAD return{KEYS[1]}"));
    for key in &keys {
        let call = format!("EVALSHA {name} 1 {key}");
        assert_eq!(client.call(&call), Reply::Array(vec![Reply::bulk(key)]));
    }
    assert_eq!(
        client.call(&format!("SCRIPT EXISTS {name}")),
        Reply::Array(vec![Reply::Integer(1)])
    );
    // respool sends the script along to a server that has forgotten it.
    shards.servers[1].kill9();
    shards.servers[1]
        .restart()
        .unwrap_or_else(|error| panic!("{error}"));
    let again = format!("EVALSHA {name} 1 {}", keys[1]);
    wait_until("the restarted server knows the script again", SOON, || {
        client.call(&again) == Reply::Array(vec![Reply::bulk(&keys[1])])
    });
    assert_eq!(client.call("SCRIPT FLUSH"), Reply::ok());
    for key in &keys {
        let reply = client.call(&format!("EVALSHA {name} 1 {key}"));
        assert!(
            reply
                .error()
                .is_some_and(|error| error.starts_with("NOSCRIPT ")),
            "{reply:?}"
        );
    }
}

/// A request without keys is answered though the first server is gone.
#[test]
fn keyless_request_survives_a_gone_first_shard() {
    let shards = ThreeShards::start(&["--reconnect-max-ms=100", "--threads=1"]);
    let keys = shards.a_key_each();
    let mut before = shards.client();
    shards.servers[0].kill9();
    wait_until("respool has seen the loss of the server", SOON, || {
        before.call(&format!("GET {}", keys[0])).error().is_some()
    });
    for client in [&mut before, &mut shards.client()] {
        assert_eq!(client.call("PING"), Reply::Simple("PONG".into()));
        assert_eq!(client.call("ECHO hi"), Reply::bulk("hi"));
        assert!(matches!(client.call("TIME"), Reply::Array(_)));
        assert!(matches!(client.call("HELLO 2"), Reply::Array(_)));
        assert_eq!(client.call("SELECT 0"), Reply::ok());
        assert_eq!(client.call("EVAL return(7) 0"), Reply::Integer(7));
        assert_eq!(
            client.call(&format!("GET {}", keys[1])),
            Reply::bulk(&keys[1])
        );
    }
}

/// A slow reader is not closed for replies that came before their turn.
#[test]
fn slow_reader_is_not_closed_for_early_replies() {
    let shards = ThreeShards::start(&[]);
    let keys = shards.a_key_each();
    let mut client = shards.client();
    client.set_read_timeout(Duration::from_secs(20));
    let large = "x".repeat(4 << 20);
    assert_eq!(
        client.exchange(request(&["SET", &keys[1], &large]), 1),
        [Reply::ok()]
    );
    assert_eq!(
        client.exchange(request(&["SET", &keys[2], &large]), 1),
        [Reply::ok()]
    );
    // More early replies than a session may have: first all of one server, then of two by turns.
    shards.servers[0].stop();
    let mut reads = words(&format!("GET {}", keys[0]));
    let both: Vec<u8> = [&keys[1], &keys[2]]
        .map(|key| words(&format!("GET {key}")))
        .concat();
    reads.extend(both.repeat(16));
    client.send(&reads);
    std::thread::sleep(Duration::from_millis(500));
    let mut other = shards.client();
    let length = other.call(&format!("STRLEN {}", keys[1]));
    assert_eq!(length, Reply::Integer(4 << 20));
    shards.servers[0].cont();
    assert_eq!(client.reply(), Reply::bulk(&keys[0]));
    for _ in 0..32 {
        assert!(client.reply() == Reply::bulk(&large));
    }
    assert_eq!(
        client.call(&format!("GET {}", keys[0])),
        Reply::bulk(&keys[0])
    );
}

/// Behind a link that a slow client holds, no request overtakes an earlier one.
#[test]
fn draining_link_keeps_the_request_order() {
    let shards = ThreeShards::start(&[
        "--threads=1",
        "--session-output-soft-bytes=65536",
        "--session-output-hard-bytes=1048576",
    ]);
    let keys = shards.a_key_each();
    let [b, a, _] = &keys[..] else {
        panic!("three servers")
    };
    let captured = || {
        let info = text(&shards.client().call("INFO respool"));
        let count = info
            .split_once("links_drained:")
            .and_then(|(_, rest)| rest.lines().next());
        count
            .and_then(|count| count.parse::<u64>().ok())
            .unwrap_or_else(|| panic!("{info}"))
    };
    let mut client = shards.client();
    let name = format!("large:{{{a}}}");
    let large = request(&["SET", &name, &"x".repeat(1 << 20)]);
    for round in 0..3 {
        assert_eq!(client.exchange(large.clone(), 1), [Reply::ok()]);
        let before = captured();
        // One client does not read. Another one has long scripts on the same link, then a write.
        let mut slow = shards.client();
        slow.send(&words(&format!("GET {name}")).repeat(30));
        let script = "local t=redis.call('TIME') local s=t[1]*1000000+t[2] \
            repeat t=redis.call('TIME') until t[1]*1000000+t[2]-s>20000 return 1";
        // So long that the server reads them one by one.
        let eval = request(&["EVAL", script, "1", a, &"x".repeat(20_000)]);
        let mut busy: Vec<u8> = eval.repeat(20);
        busy.extend(words(&format!("SET {a} new")));
        client.send(&busy);
        wait_until("the link is captured", SOON, || captured() > before);
        client.send(&words(&format!("GET {b}")));
        client.send(&words(&format!("SET {a} newer:{round}")));
        client.send(&words(&format!("MGET {b} {a}")));
        let reader = std::thread::spawn(move || slow.replies(30).len());
        let replies = client.replies(20 + 4);
        assert_eq!(replies[20], Reply::ok());
        assert_eq!(replies[21], Reply::bulk(b));
        assert_eq!(replies[22], Reply::ok());
        let last = Reply::bulk(format!("newer:{round}"));
        assert_eq!(
            replies[23],
            Reply::Array(vec![Reply::bulk(b), last.clone()])
        );
        assert_eq!(client.call(&format!("GET {a}")), last);
        assert_eq!(reader.join().ok(), Some(30));
    }
}

/// The error of a write of which a part is refused says that the rest was done.
#[test]
fn partly_refused_write_names_the_executed_part() {
    let shards = ThreeShards::start(&[]);
    let keys = shards.a_key_each();
    let mut full = RespClient::connect(shards.servers[1].address());
    assert_eq!(full.call("CONFIG SET maxmemory 1"), Reply::ok());
    let mut client = shards.client();
    let reply = client.call(&format!("MSET {} 1 {} 1", keys[0], keys[1]));
    let error = reply.error().unwrap_or_default();
    assert!(
        error.starts_with("UNKNOWN respool: ") && error.contains("OOM"),
        "{error}"
    );
    assert_eq!(client.call(&format!("GET {}", keys[0])), Reply::bulk("1"));
    // A CONFIG SET that all servers refused has no effect.
    for server in &shards.servers {
        assert_eq!(
            RespClient::connect(server.address()).call("CONFIG SET maxmemory 1"),
            Reply::ok()
        );
    }
    let reply = client.call(&format!("MSET {} 2 {} 2", keys[0], keys[1]));
    assert!(
        reply.error().is_some_and(|error| error.starts_with("OOM ")),
        "{reply:?}"
    );
    assert_eq!(client.call(&format!("GET {}", keys[0])), Reply::bulk("1"));
}

/// Parts of replies that come before their turn stay within a bound.
#[test]
fn early_parts_are_bounded_in_memory() {
    let shards = ThreeShards::start(&["--threads=1"]);
    let keys = shards.a_key_each();
    let mut client = shards.client();
    client.set_read_timeout(Duration::from_secs(20));
    let large = "x".repeat(4 << 20);
    assert_eq!(
        client.exchange(request(&["SET", &keys[1], &large]), 1),
        [Reply::ok()]
    );
    shards.servers[0].stop();
    client.send(&words(&format!("MGET {} {}", keys[0], keys[1])).repeat(60));
    std::thread::sleep(Duration::from_millis(1_000));
    let held = shards.proxy.rss();
    shards.servers[0].cont();
    let expected = Reply::Array(vec![Reply::bulk(&keys[0]), Reply::bulk(&large)]);
    for _ in 0..60 {
        assert!(client.reply() == expected);
    }
    assert!(
        held < 100 << 20,
        "{held} bytes for 240 MB that come too early"
    );
}

/// A merged reply above the bound is an error, and its session stays.
#[test]
fn oversized_merged_reply_is_an_error_and_no_close() {
    let shards = ThreeShards::start(&[
        "--threads=1",
        "--session-output-hard-bytes=4MiB",
        "--worker-memory-bytes-max=32MiB",
    ]);
    let keys = shards.a_key_each();
    let all = format!("MGET {}", keys.join(" "));
    let mut client = shards.client();
    client.set_read_timeout(SOON);
    let held = "x".repeat(1 << 20);
    for (size, fits) in [(1, true), (2, false)] {
        let value = held.repeat(size);
        for key in &keys {
            let set = request(&["SET", key, &value]);
            assert_eq!(client.exchange(set, 1), [Reply::ok()]);
        }
        for _ in 0..10 {
            let replies = pipelined(&mut client, &format!("PING;{all};ECHO behind"));
            let expected = Reply::Array(vec![Reply::bulk(&value); 3]);
            let text = replies[1].error().unwrap_or_default();
            assert_eq!(replies[1] == expected, fits, "{size} MiB: {text}");
            assert_eq!(text.contains("worker-memory-bytes-max"), !fits, "{text}");
            assert_eq!(replies[2], Reply::bulk("behind"));
        }
    }
    let info = text(&shards.client().call("INFO respool"));
    let held = info
        .lines()
        .find_map(|line| line.strip_prefix("respool_held_bytes:"));
    let held: usize = held.and_then(|held| held.parse().ok()).expect("a number");
    assert!(held < 1 << 20, "{held} bytes are held");
}

/// Database and protocol of a session hold at every server.
#[test]
fn session_state_holds_at_every_shard() {
    let shards = ThreeShards::start(&["--threads=1"]);
    let keys = shards.a_key_each();
    let mut client = shards.client();
    assert_eq!(client.call("SELECT 1"), Reply::ok());
    for (server, key) in keys.iter().enumerate() {
        assert_eq!(
            client.call(&format!("HSET {key} f 1")),
            Reply::Integer(1),
            "not the string of database 0"
        );
        let mut direct = RespClient::connect(shards.servers[server].address());
        assert_eq!(
            direct.call(&format!("TYPE {key}")),
            Reply::Simple("string".into())
        );
    }
    assert_eq!(client.call("DBSIZE"), Reply::Integer(3));
    assert!(matches!(client.call("HELLO 3"), Reply::Map(_)));
    for key in &keys {
        let all = client.call(&format!("HGETALL {key}"));
        assert_eq!(all, Reply::Map(vec![Reply::bulk("f"), Reply::bulk("1")]));
    }
    client.send(&words("CLIENT REPLY OFF"));
    client.send(&words(&format!("MGET {}", keys.join(" "))));
    client.send(&words(&format!("DEL {}", keys.join(" "))));
    assert_eq!(client.call("CLIENT REPLY ON"), Reply::ok());
    assert_eq!(client.call("DBSIZE"), Reply::Integer(0));
    assert!(matches!(client.call("RESET"), Reply::Simple(_)));
    assert_eq!(
        client.call(&format!("GET {}", keys[2])),
        Reply::bulk(&keys[2])
    );
}

/// The value of a field of INFO, as far as it is a number.
fn number_in(info: &str, field: &str) -> u64 {
    let lines = info.lines().map(str::trim_end);
    let mut found = lines.filter_map(|line| line.strip_prefix(field));
    let rest = found
        .next()
        .unwrap_or_else(|| panic!("no {field} in {info}"));
    let end = rest.find(|c: char| !c.is_ascii_digit());
    rest[..end.unwrap_or(rest.len())]
        .parse()
        .unwrap_or_default()
}

#[test]
fn info_is_that_of_all_servers_together_and_of_each() {
    for binary in installed() {
        let mut shards = ThreeShards::of(&binary, "", &["--threads=1"]);
        shards.a_key_each();
        let mut client = shards.client();
        let mut direct: Vec<RespClient> = shards
            .servers
            .iter()
            .map(|server| RespClient::connect(server.address()))
            .collect();
        for (server, one) in direct.iter_mut().enumerate() {
            for _ in 0..=server * 10 {
                one.call("GET nothing");
            }
        }
        let each: Vec<String> = direct
            .iter_mut()
            .map(|one| text(&one.call("INFO everything")))
            .collect();
        let sum = |field| each.iter().map(|info| number_in(info, field)).sum::<u64>();
        let info = text(&client.call("INFO"));
        for field in [
            "db0:keys=",
            "connected_clients:",
            "maxclients:",
            "keyspace_misses:",
            "evicted_keys:",
        ] {
            assert_eq!(number_in(&info, field), sum(field), "{field}");
        }
        assert_eq!(number_in(&info, "db0:keys="), 64);
        let port = u64::from(shards.servers[0].address().port());
        assert_eq!(number_in(&info, "tcp_port:"), port);
        assert!(info.contains("respool_version:"), "{info}");
        assert!(!info.contains("# Servers"), "{info}");
        let stats = text(&client.call("INFO commandstats"));
        let calls = number_in(&stats, "cmdstat_get:calls=");
        assert_eq!(calls, 1 + 11 + 21);
        let usec = number_in(&stats, "cmdstat_get:calls=33,usec=");
        assert!(stats.contains(&format!("usec_per_call={:.2}", usec as f64 / 33.0)));

        // A line for each server, in any section, and alone if no other one is requested.
        client.call("HELLO 3");
        let Reply::Other('=', servers) = client.call("INFO servers") else {
            panic!("in RESP3 it is verbatim")
        };
        let servers = String::from_utf8_lossy(&servers).into_owned();
        let servers = servers.strip_prefix("txt:").unwrap_or(&servers);
        client.call("HELLO 2");
        assert_eq!(servers.lines().count(), 4, "{servers}");
        let everything = text(&client.call("INFO everything"));
        for (at, server) in shards.servers.iter().enumerate() {
            let keys = shards.keys_of(at).len();
            let line = format!(
                "server{at}:address={},role=master,link=up,",
                server.address()
            );
            for info in [servers, &everything] {
                let found = info.lines().find(|shown| shown.starts_with(&line));
                let found = found.unwrap_or_else(|| panic!("no {line} in {info}"));
                assert!(found.ends_with(&format!(",keys={keys}")), "{found}");
            }
        }
        assert!(everything.contains("# Respool"));
        assert!(text(&client.call("INFO respool")).starts_with("# Respool"));

        // Each server counts its own commands, and respool its own.
        assert!(
            pipelined(&mut client, "MULTI;INFO;EXEC")[1]
                .error()
                .is_some()
        );
        let gone = shards.servers.remove(1);
        let address = gone.address().to_string();
        drop(gone);
        wait_until("INFO names the lost server", SOON, || {
            let reply = client.call("INFO");
            reply.error().is_some_and(|error| error.contains(&address))
        });
        assert!(text(&client.call("INFO respool")).starts_with("# Respool"));
    }
}

#[test]
fn figures_are_those_of_all_servers_together() {
    for binary in installed() {
        let shards = ThreeShards::of(&binary, "", &["--threads=1"]);
        let mut client = shards.client();
        shards.a_key_each();
        for hello in ["HELLO 2", "HELLO 3"] {
            client.call(hello);
            let stats = client.call("MEMORY STATS");
            assert_eq!(
                stats.get("keys.count"),
                Some(&Reply::Integer(64)),
                "{stats:?}"
            );
            let per_key = stats.get("keys.bytes-per-key");
            let number = |name: &str| match stats.get(name) {
                Some(Reply::Integer(number)) => *number,
                other => panic!("{name}: {other:?}"),
            };
            let net = number("total.allocated") - number("startup.allocated");
            assert_eq!(per_key, Some(&Reply::Integer(net / 64)));
            let histogram = client.call("LATENCY HISTOGRAM set");
            // Redis 6.2 has none.
            if histogram
                .error()
                .is_some_and(|text| text.to_lowercase().contains("unknown subcommand"))
            {
                continue;
            }
            let of_set = histogram
                .get("set")
                .unwrap_or_else(|| panic!("{histogram:?}"));
            assert_eq!(of_set.get("calls"), Some(&Reply::Integer(64)));
            let Some(Reply::Array(pairs) | Reply::Map(pairs)) = of_set.get("histogram_usec") else {
                panic!("{of_set:?}")
            };
            assert_eq!(
                pairs.last(),
                Some(&Reply::Integer(64)),
                "all requests together took no longer"
            );
        }
    }
}

/// SCRIPT KILL does not wait behind the script, and its client need not know where it runs.
#[test]
fn script_kill_finds_the_shard_of_the_script() {
    for binary in installed() {
        let shards = ThreeShards::of(&binary, "", &["--threads=1"]);
        for server in &shards.servers {
            RespClient::connect(server.address()).call("CONFIG SET lua-time-limit 20");
        }
        let keys = shards.a_key_each();
        let mut killer = shards.client();
        let none = killer.call("SCRIPT KILL");
        assert!(
            none.error()
                .is_some_and(|error| error.starts_with("NOTBUSY respool: ")),
            "{none:?}"
        );
        for key in &keys {
            let mut caught = shards.client();
            caught.send(&request(&["EVAL", "while true do end", "1", key]));
            wait_until("the script is ended", SOON, || {
                killer.call("SCRIPT KILL") == Reply::ok()
            });
            let reply = caught.reply();
            assert!(reply.error().is_some(), "{reply:?}");
            // The keys are unchanged, and the links work again.
            assert_eq!(killer.call(&format!("GET {key}")), Reply::bulk(key));
        }
        let function =
            "#!lua name=l\nredis.register_function('f', function() while true do end end)";
        if killer
            .call_args(&["FUNCTION", "LOAD", function])
            .error()
            .is_some()
        {
            continue;
        }
        for key in &keys {
            let mut caught = shards.client();
            caught.send(&request(&["FCALL", "f", "1", key]));
            let is_seen =
                |stats: &Reply| matches!(stats.get("running_script"), Some(Reply::Array(_)));
            wait_until("the function is seen", SOON, || {
                is_seen(&killer.call("FUNCTION STATS"))
            });
            assert_eq!(killer.call("FUNCTION KILL"), Reply::ok());
            assert!(caught.reply().error().is_some());
            assert!(!is_seen(&killer.call("FUNCTION STATS")));
        }
    }
}

/// A server answers no client before its script has run for a while. SCRIPT KILL waits for it.
#[test]
fn script_kill_waits_until_its_server_answers() {
    let shards = ThreeShards::of(
        &any_server(),
        "",
        &["--threads=1", "--connect-timeout-ms=300"],
    );
    for server in &shards.servers {
        RespClient::connect(server.address()).call("CONFIG SET lua-time-limit 1500");
    }
    let keys = shards.a_key_each();
    let (mut caught, mut killer) = (shards.client(), shards.client());
    assert_eq!(
        caught.call(&format!("GET {}", keys[0])),
        Reply::bulk(&keys[0])
    );
    caught.send(&request(&["EVAL", "while true do end", "1", &keys[0]]));
    thread::sleep(Duration::from_millis(200));
    assert_eq!(killer.call("SCRIPT KILL"), Reply::ok());
    assert!(caught.reply().error().is_some());
}

/// SCRIPT KILL is answered at the deadline though a server is frozen.
/// An open link to a silent server does not extend the wait. A late reply of that server is
/// dropped.
#[test]
fn script_kill_ends_at_the_deadline_with_a_frozen_shard() {
    let shards = ThreeShards::start(&["--threads=1", "--request-timeout-ms=300"]);
    let mut client = shards.client();
    client.set_read_timeout(Duration::from_secs(5));
    let is_over = |reply: &Reply| reply.error().is_some_and(|text| text.contains("NOTBUSY"));
    assert!(is_over(&client.call("SCRIPT KILL")));
    shards.servers[1].stop();
    let reply = client.call("SCRIPT KILL");
    let pong = client.call("PING");
    shards.servers[1].cont();
    let text = reply.error().unwrap_or_default().to_owned();
    let name = shards.servers[1].address().to_string();
    assert!(
        text.starts_with("UNKNOWN respool: ") && text.contains(&name) && text.contains("300 ms"),
        "{text}"
    );
    assert_eq!(pong, Reply::Simple("PONG".into()));
    wait_until("the server is asked again", SOON, || {
        is_over(&client.call("SCRIPT KILL"))
    });
    assert_eq!(client.call("PING"), Reply::Simple("PONG".into()));
}

/// A command may have fewer keys than the table allows. It goes to the server of its keys. Without
/// keys, it does not end its session.
#[test]
fn optional_keys_may_be_left_out() {
    for binary in installed() {
        let shards = ThreeShards::of(&binary, "", &["--threads=1"]);
        let keys = shards.a_key_each();
        let mut client = shards.client();
        for (server, key) in keys.iter().enumerate() {
            client.call(&format!("DEL {key}"));
            assert_eq!(client.call(&format!("PFMERGE {key}")), Reply::ok());
            assert!(shards.keys_of(server).contains(key), "{key}");
        }
        assert!(client.call("VADD").error().is_some());
        assert_eq!(client.call("PING"), Reply::Simple("PONG".into()));
    }
}

/// Each command goes to the servers that the table names: their own counters show it.
#[test]
fn every_command_goes_where_the_table_says() {
    for binary in installed() {
        let shards = ThreeShards::of(&binary, "", &["--threads=1"]);
        let keys = shards.a_key_each();
        let mut direct: Vec<RespClient> = shards
            .servers
            .iter()
            .map(|server| RespClient::connect(server.address()))
            .collect();
        let told = |direct: &mut [RespClient], name: &str| -> Vec<u64> {
            let times = direct.iter_mut().map(|one| times_told(one, name));
            times.collect()
        };
        let mut compared = 0;
        for id in all() {
            let (name, spread) = (id.get().name, id.get().fan_out.spread);
            // Any plain server says that it is no node of a Cluster.
            let is_passed_on = id.get().answer == Answer::Server && !id.get().dangerous;
            let spread = match name.starts_with("cluster|") && is_passed_on {
                true => Spread::Node,
                false => spread,
            };
            let mut is_known = |name| {
                direct[0].call(&format!("COMMAND INFO {name}")) != Reply::Array(vec![Reply::Null])
            };
            // Redis 6.2 describes no subcommands.
            let container = name.split('|').next().unwrap_or_default();
            if !is_known(name) && (is_known("config|get") || !is_known(container)) {
                continue;
            }
            compared += 1;
            let mut before = told(&mut direct, name);
            for (owner, key) in keys.iter().enumerate() {
                let request = some_request_of(id, key, &keys);
                let reply = shards.client().call(&request);
                let after = told(&mut direct, name);
                // INFO itself counts, and CONFIG RESETSTAT restarts all counters.
                let own = u64::from(id == id::INFO);
                let asked: Vec<usize> = (0..3)
                    .filter(|&server| after[server] != before[server] + own)
                    .collect();
                before = after;
                let said = |text: &str| reply.error().is_some_and(|error| error.contains(text));
                if said("nknown subcommand") && name.contains('|') {
                    break;
                }
                let refused = said("ERR respool: ");
                let has_key = names_a_key(id, &request);
                let as_said = match spread {
                    Spread::Owner | Spread::Node if id.get().answer == Answer::Session => !refused,
                    Spread::Owner if has_key => asked == [owner],
                    Spread::Owner
                    | Spread::Any
                    | Spread::Default
                    | Spread::Channels
                    | Spread::Node => asked == [0],
                    Spread::Owners | Spread::All => asked == [0, 1, 2],
                    Spread::Sequence => asked.len() == 1,
                    Spread::Local => !refused,
                    // The server reports the mistake in the request.
                    Spread::Off if said("ERR syntax error") || said("not in import mode") => {
                        asked == [0]
                    }
                    Spread::Off | Spread::Refused => refused && asked.is_empty(),
                };
                assert!(
                    as_said,
                    "{request}, {spread:?}: {asked:?} were asked; {reply:?}"
                );
                if !has_key {
                    break;
                }
            }
        }
        assert!(compared > 200, "{compared}");
    }
}

/// How often a server got this command, refused ones included. For a container without a subcommand
/// of its own it counts the error alone.
fn times_told(server: &mut RespClient, name: &str) -> u64 {
    let info = text(&server.call("INFO everything"));
    let container = name.split('|').next().unwrap_or_default();
    let number = |line: &str, field: &str| {
        let (_, rest) = line.split_once(field)?;
        rest.split(',').next()?.trim_end().parse::<u64>().ok()
    };
    let of_name = |line: &&str| {
        // Redis 6.2 counts no subcommands.
        let names = [format!("cmdstat_{name}:"), format!("cmdstat_{container}:")];
        names.iter().any(|name| line.starts_with(name.as_str()))
    };
    let counted = info
        .lines()
        .filter(of_name)
        .flat_map(|line| [number(line, "calls="), number(line, "rejected_calls=")]);
    let counted: u64 = counted.flatten().sum();
    let failed = info
        .lines()
        .find_map(|line| number(line, "total_error_replies:"));
    counted + failed.unwrap_or(0)
}

fn names_a_key(id: CommandId, request: &str) -> bool {
    let words: Vec<&[u8]> = request.split(' ').map(str::as_bytes).collect();
    let mut owned = false;
    let _ = id.get().keys(
        words.len(),
        |at| words[at],
        |_, flags| owned |= !flags.has(KeyFlags::NOT_KEY),
    );
    owned
}

/// A request with a valid number of arguments that names `key`; a divided one names a key of each
/// server.
fn some_request_of(id: CommandId, key: &str, keys: &[String]) -> String {
    let command = id.get();
    let name = command.name.replace('|', " ");
    match command.name {
        "mset" => format!("MSET {0} 1 {1} 1 {2} 1", keys[0], keys[1], keys[2]),
        "msetex" => format!("MSETEX 3 {0} 1 {1} 1 {2} 1", keys[0], keys[1], keys[2]),
        _ if command.fan_out.spread == Spread::Owners => format!("{name} {}", keys.join(" ")),
        "xread" => format!("XREAD STREAMS {key} 0"),
        "xreadgroup" => format!("XREADGROUP GROUP g c STREAMS {key} 0"),
        "migrate" => format!("MIGRATE 127.0.0.1 1 {key} 0 1"),
        // Their last or first argument is a timeout in seconds.
        "blpop" | "brpop" | "bzpopmin" | "bzpopmax" => format!("{name} {key} 0.01"),
        "brpoplpush" => format!("{name} {key} {key} 0.01"),
        "blmove" => format!("{name} {key} {key} LEFT LEFT 0.01"),
        "blmpop" => format!("{name} 0.01 1 {key} LEFT"),
        "bzmpop" => format!("{name} 0.01 1 {key} MIN"),
        // No server has an append-only file.
        "waitaof" => "WAITAOF 0 1 1".to_owned(),
        _ => {
            let mut words: Vec<String> = name.split(' ').map(str::to_owned).collect();
            words.resize(
                usize::from(command.arity.unsigned_abs()).max(words.len()),
                "1".to_owned(),
            );
            // Where keys are is seen once there is something.
            let mut places = Vec::new();
            let bytes: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
            let _ = command.keys(bytes.len(), |at| bytes[at], |at, _| places.push(at));
            for at in places {
                words[at] = key.to_owned();
            }
            words.join(" ")
        }
    }
}

/// A deleted user loses its links. Once it is created again, it does not wait for their back-off.
#[test]
fn recreated_user_is_served_at_once() {
    let pauses = ["--reconnect-min-ms=2s", "--reconnect-max-ms=2s"];
    let shards = ThreeShards::start(&[&["--threads=1"], &pauses[..]].concat());
    let mut admin = shards.client();
    let keys = shards.a_key_each();
    for _ in 0..3 {
        assert_eq!(
            admin.call("ACL SETUSER ann on >secret ~* +@all"),
            Reply::ok()
        );
        let mut ann = shards.client();
        assert_eq!(ann.call("AUTH ann secret"), Reply::ok());
        for key in &keys {
            assert_eq!(ann.call(&format!("SET {key} v")), Reply::ok());
        }
        assert_eq!(admin.call("ACL DELUSER ann"), Reply::Integer(1));
    }
}

/// Clients bring the password, and the links of the URL's user are all refused. One absent server
/// locks no client out.
#[test]
fn absent_shard_does_not_lock_clients_out() {
    let args = [
        "--threads=1",
        "--request-timeout-ms=1000",
        "--link-stall-ms=1500",
        "--connect-timeout-ms=500",
    ];
    let log_in = |shards: &ThreeShards| {
        let mut client = shards.client();
        assert_eq!(client.call("AUTH secret"), Reply::ok());
        client
    };
    for away in [0, 2] {
        for freezes in [true, false] {
            let secret = ["--requirepass", "secret"];
            let shards = ThreeShards::made_of(&any_server(), &secret, "", &args);
            let mut there = log_in(&shards);
            let keys: Vec<String> = (0..64).map(|key| format!("key:{key}")).collect();
            for key in &keys {
                assert_eq!(there.call(&format!("SET {key} 1")), Reply::ok());
            }
            let nothing_runs = there.call("SCRIPT KILL");
            let text = nothing_runs.error().unwrap_or_default();
            assert!(text.contains("NOTBUSY"), "{nothing_runs:?}");
            let server = &shards.servers[away];
            let lost = keys.iter().find(|key| {
                let mut client = RespClient::connect(server.address());
                assert_eq!(client.call("AUTH secret"), Reply::ok());
                client.call(&format!("EXISTS {key}")) == Reply::Integer(1)
            });
            let lost = lost.expect("64 keys are on all servers");
            match freezes {
                true => server.stop(),
                false => server.kill9(),
            }
            // The first client detects the lost server.
            let mut first = shards.client();
            first.send(&words("AUTH secret"));
            let failed = there.call(&format!("GET {lost}"));
            assert!(failed.error().is_some(), "{failed:?}");
            first.reply();
            // The last request of the session went to the lost server.
            assert_eq!(there.call("AUTH secret"), Reply::ok());
            let watch = Watch::start();
            for _ in 0..30 {
                let begun = watch.elapsed();
                let mut new = log_in(&shards);
                assert_eq!(new.call("PING"), Reply::Simple("PONG".into()));
                let mut other = shards.client();
                let greeted = other.call("HELLO 3 AUTH default secret");
                assert!(greeted.error().is_none(), "{greeted:?}");
                for asked in ["PING", "TIME", "AUTH secret", "COMMAND COUNT"] {
                    let said = there.call(asked);
                    assert!(said.error().is_none(), "{asked}: {said:?}");
                }
                let took = watch.elapsed().saturating_sub(begun);
                assert!(took < Duration::from_millis(500), "{took:?}");
                thread::sleep(Duration::from_millis(100));
            }
            server.cont();
        }
    }
}

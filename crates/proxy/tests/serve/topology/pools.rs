//! Two pools in one process: a client reaches the pool of its listener, and cannot see the other
//! one.

use std::net::SocketAddr;
use std::time::Duration;

use respool_testkit::client::{Reply, RespClient, words};
use respool_testkit::servers::{Proxy, ServerProcess, any_server};
use respool_testkit::time::wait_until;

use crate::admin::runtime_config::coalesced;
use crate::target::respool;

const SOON: Duration = Duration::from_secs(10);

/// More than workers, so that each has some of either pool.
const CLIENTS: usize = 24;

/// One server with a password, and two with none among which keys are divided, behind one respool.
struct TwoPools {
    alone: ServerProcess,
    shards: [ServerProcess; 2],
    proxy: Proxy,
    /// Where clients reach the shards.
    beside: SocketAddr,
}

impl Drop for TwoPools {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("its log:\n{}", self.proxy.log());
        }
    }
}

impl TwoPools {
    fn start(threads: usize) -> TwoPools {
        let start = |args: &[&str]| {
            ServerProcess::start(&any_server(), args).unwrap_or_else(|error| panic!("{error}"))
        };
        let alone = start(&["--requirepass", "of-the-one"]);
        let shards = [start(&[]), start(&[])];
        let urls = (
            format!("redis://:of-the-one@{}", alone.address()),
            format!(
                "redis-sharded://{},{}",
                shards[0].address(),
                shards[1].address()
            ),
        );
        let proxy = Proxy::start_with(&respool(), |port| {
            vec![
                format!("--threads={threads}"),
                "--reconnect-max-ms=100".into(),
                format!("--pool=one=127.0.0.1:{port}={}", urls.0),
                format!("--pool=many=127.0.0.1:0={}", urls.1),
            ]
        });
        let proxy = proxy.unwrap_or_else(|error| panic!("{error}"));
        TwoPools {
            alone,
            shards,
            beside: second_listener(&proxy, "many"),
            proxy,
        }
    }

    /// Runs a test with one worker and with three.
    fn with_one_worker_and_with_three(body: impl Fn(&mut TwoPools)) {
        for threads in [1, 3] {
            body(&mut TwoPools::start(threads));
        }
    }

    fn one(&self) -> RespClient {
        RespClient::connect(self.proxy.address())
    }

    fn many(&self) -> RespClient {
        RespClient::connect(self.beside)
    }
}

/// Where clients reach the pool of that name, the second one.
fn second_listener(proxy: &Proxy, pool: &str) -> SocketAddr {
    let mut found = None;
    wait_until("the log names the second listener", SOON, || {
        let log = proxy.log();
        let rest = log.split_once(&format!(" {pool}="));
        let address = rest.and_then(|(_, rest)| rest.split('=').next());
        found = address.and_then(|address| address.parse().ok());
        found.is_some()
    });
    found.expect("the log named the listener")
}

fn info(client: &mut RespClient) -> String {
    let Reply::Bulk(text) = client.call("INFO respool") else {
        panic!("INFO is a text");
    };
    String::from_utf8_lossy(&text).into_owned()
}

fn lines(client: &mut RespClient, request: &str) -> Vec<String> {
    let Reply::Bulk(text) = client.call(request) else {
        panic!("{request}: no text");
    };
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines().map(str::to_owned).collect()
}

fn id(client: &mut RespClient) -> i64 {
    match client.call("CLIENT ID") {
        Reply::Integer(id) => id,
        other => panic!("{other:?}"),
    }
}

/// Keys of one pool are never seen through the other one.
#[test]
fn pools_never_show_each_others_keys() {
    TwoPools::with_one_worker_and_with_three(|pools| {
        let mut ones: Vec<RespClient> = (0..CLIENTS).map(|_| pools.one()).collect();
        let mut manies: Vec<RespClient> = (0..CLIENTS).map(|_| pools.many()).collect();
        // The same keys, in batches that both pools have open at the same time.
        for round in 0..20 {
            for (of, clients) in [("one", &mut ones), ("many", &mut manies)] {
                for (index, client) in clients.iter_mut().enumerate() {
                    let key = format!("key:{index}");
                    let asked = format!("SET {key} {of}:{round}");
                    client.send(&[words(&asked), words(&format!("GET {key}"))].concat());
                }
            }
            for (of, clients) in [("one", &mut ones), ("many", &mut manies)] {
                let expected = [Reply::ok(), Reply::bulk(format!("{of}:{round}"))];
                for client in clients.iter_mut() {
                    assert_eq!(client.replies(2), expected);
                }
            }
        }
        let (one, many) = (&mut ones[0], &mut manies[0]);
        let count = Reply::Integer(CLIENTS as i64);
        assert_eq!(one.call("SET only:one 1"), Reply::ok());
        assert_eq!(many.call("GET only:one"), Reply::Null);
        assert_eq!(many.call("DBSIZE"), count);
        let mut direct = RespClient::connect(pools.alone.address());
        assert_eq!(direct.call("AUTH of-the-one"), Reply::ok());
        assert_eq!(direct.call("GET key:3"), Reply::bulk("one:19"));
        let shards = pools
            .shards
            .iter()
            .map(|shard| RespClient::connect(shard.address()));
        let values = shards.map(|mut shard| shard.call("GET key:3"));
        let values: Vec<Reply> = values.filter(|value| *value != Reply::Null).collect();
        assert_eq!(values, [Reply::bulk("many:19")]);

        // The same holds for published messages, ...
        let mut listener = pools.one();
        listener.call("SUBSCRIBE news");
        assert_eq!(many.call("PUBLISH news no"), Reply::Integer(0));
        assert_eq!(one.call("PUBLISH news yes"), Reply::Integer(1));
        let message = ["message", "news", "yes"].map(Reply::bulk).to_vec();
        assert_eq!(listener.reply(), Reply::Array(message));

        // ... a script, although respool reloads scripts that a server has lost, ...
        let sha = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
        assert_eq!(
            one.call_args(&["SCRIPT", "LOAD", "return 1"]),
            Reply::bulk(sha)
        );
        let answer = many.call(&format!("EVALSHA {sha} 1 key:1"));
        assert!(
            answer
                .error()
                .is_some_and(|text| text.starts_with("NOSCRIPT")),
            "{answer:?}"
        );
        assert_eq!(many.call("SCRIPT FLUSH"), Reply::ok());
        assert_eq!(direct.call("SCRIPT FLUSH"), Reply::ok());
        assert_eq!(one.call(&format!("EVALSHA {sha} 0")), Reply::Integer(1));

        // ... and commands for all keys.
        assert_eq!(many.call("DEL key:1"), Reply::Integer(1));
        assert_eq!(one.call("GET key:1"), Reply::bulk("one:19"));
        for shard in &pools.shards {
            RespClient::connect(shard.address()).call("FLUSHALL");
        }
        assert_eq!(many.call("DBSIZE"), Reply::Integer(0));
        assert_eq!(one.call("DBSIZE"), Reply::Integer(CLIENTS as i64 + 1));
    });
}

/// CONFIG SET in one pool leaves the other one as it was.
#[test]
fn config_set_changes_its_own_pool_alone() {
    TwoPools::with_one_worker_and_with_three(|pools| {
        let option = |client: &mut RespClient, name: &str| match client
            .call(&format!("CONFIG GET {name}"))
            .get(name)
        {
            Some(Reply::Bulk(value)) => String::from_utf8_lossy(value).into_owned(),
            other => panic!("{name}: {other:?}"),
        };
        // Many clients, so that each worker gets requests.
        let mut ones: Vec<RespClient> = (0..CLIENTS).map(|_| pools.one()).collect();
        let mut manies: Vec<RespClient> = (0..CLIENTS).map(|_| pools.many()).collect();
        for name in ["respool.fuse", "respool.collapse", "respool.listener.fuse"] {
            let set = ones[0].call(&format!("CONFIG SET {name} no"));
            assert_eq!(set, Reply::ok(), "{name}");
            for client in &mut ones {
                assert_eq!(option(client, name), "no", "{name}");
            }
            for client in &mut manies {
                assert_eq!(option(client, name), "yes", "{name}");
            }
        }
        let set = manies[0].call("CONFIG SET respool.max-delay-us 777");
        assert_eq!(set, Reply::ok());
        for client in &mut ones {
            assert_eq!(option(client, "respool.max-delay-us"), "200");
        }
        for client in &mut manies {
            assert_eq!(option(client, "respool.max-delay-us"), "777");
        }
    });
}

#[test]
fn a_server_that_is_gone_leaves_the_other_pool_untouched() {
    TwoPools::with_one_worker_and_with_three(|pools| {
        let mut manies: Vec<RespClient> = (0..CLIENTS).map(|_| pools.many()).collect();
        let mut one = pools.one();
        assert_eq!(one.call("SET k 1"), Reply::ok());
        // A frozen server comes first: its waiting clients delay none behind the other listener.
        pools.alone.stop();
        one.send(&words("GET k"));
        for client in &mut manies {
            client.set_read_timeout(Duration::from_secs(5));
            assert_eq!(client.call("SET k 2"), Reply::ok());
        }
        // A pause is confirmed when everything before it is answered: in its pool.
        assert_eq!(manies[0].call("CLIENT PAUSE 1"), Reply::ok());
        pools.alone.kill9();
        pools.alone.cont();
        assert!(
            one.reply().error().is_some(),
            "the server of the pool is gone"
        );
        let name = pools.alone.address().to_string();
        for client in &mut manies {
            let asked = ["SET k 2", "GET k", "DBSIZE", "MGET k l"].map(words);
            let replies = client.exchange(asked.concat(), 4);
            let both = Reply::Array(vec![Reply::bulk("2"), Reply::Null]);
            assert_eq!(
                replies,
                [Reply::ok(), Reply::bulk("2"), Reply::Integer(1), both]
            );
        }
        let mut late = pools.one();
        wait_until("the error names the lost server", SOON, || {
            let answer = late.call("GET k");
            answer.error().is_some_and(|error| error.contains(&name))
        });
        pools
            .alone
            .restart()
            .unwrap_or_else(|error| panic!("{error}"));
        wait_until("keys of the restarted server are served", SOON, || {
            late.call("SET k 3") == Reply::ok()
        });
        assert_eq!(manies[0].call("GET k"), Reply::bulk("2"));
    });
}

#[test]
fn a_client_sees_and_reaches_the_clients_of_its_own_pool_alone() {
    TwoPools::with_one_worker_and_with_three(|pools| {
        let mut ones: Vec<RespClient> = (0..CLIENTS).map(|_| pools.one()).collect();
        let mut manies: Vec<RespClient> = (0..CLIENTS).map(|_| pools.many()).collect();
        let ids: Vec<i64> = ones.iter_mut().map(id).collect();
        manies.iter_mut().for_each(|client| {
            id(client);
        });
        let (one, many) = (&mut ones[0], &mut manies[0]);
        assert_eq!(lines(one, "CLIENT LIST").len(), CLIENTS);
        assert_eq!(lines(many, "CLIENT LIST").len(), CLIENTS);
        let port = format!(" laddr={} ", pools.beside);
        let all_there = lines(many, "CLIENT LIST")
            .iter()
            .all(|line| line.contains(&port));
        assert!(all_there, "a stranger is listed");
        assert!(lines(many, &format!("CLIENT LIST ID {}", ids[1])).is_empty());

        // The server of one pool grants the right. The right holds for that pool alone.
        let killed = many.call(&format!("CLIENT KILL ID {}", ids[1]));
        assert_eq!(killed, Reply::Integer(0));
        let killed = many.call("CLIENT KILL TYPE normal SKIPME yes");
        assert_eq!(killed, Reply::Integer(CLIENTS as i64 - 1));
        for client in &mut ones {
            assert_eq!(client.call("PING"), Reply::Simple("PONG".into()));
        }

        // Clients of the other pool get no invalidations, either.
        let mut tracker = pools.one();
        let many_id = id(&mut manies[0]);
        let answer = tracker.call(&format!("CLIENT TRACKING ON REDIRECT {many_id}"));
        assert!(
            answer.error().is_some_and(|text| text.contains("redirect")),
            "{answer:?}"
        );
        let answer = tracker.call(&format!("CLIENT TRACKING ON REDIRECT {}", ids[1]));
        assert_eq!(answer, Reply::ok());

        // A blocked client of the other pool stays blocked.
        let mut waiter = pools.one();
        let waiting = id(&mut waiter);
        waiter.send(&words("BLPOP nothing 0"));
        wait_until("the client is blocked", SOON, || {
            let all = lines(&mut ones[0], &format!("CLIENT LIST ID {waiting}"));
            all.iter().any(|line| line.contains(" cmd=blpop "))
        });
        let many = &mut manies[0];
        let unblocked = many.call(&format!("CLIENT UNBLOCK {waiting}"));
        assert_eq!(unblocked, Reply::Integer(0));
        assert!(waiter.is_quiet(Duration::from_millis(50)));
        wait_until(
            "a client of the same pool unblocks the client",
            SOON,
            || ones[0].call(&format!("CLIENT UNBLOCK {waiting}")) == Reply::Integer(1),
        );
        assert_eq!(waiter.reply(), Reply::Null);

        // A pause holds the clients of one pool, and its end ends no other.
        assert_eq!(ones[0].call("CLIENT PAUSE 3600000 WRITE"), Reply::ok());
        let mut many = pools.many();
        assert_eq!(many.call("SET k 1"), Reply::ok());
        assert_eq!(many.call("MSET k 1 l 2 m 3"), Reply::ok());
        ones[1].send(&words("SET k 1"));
        assert_eq!(many.call("CLIENT PAUSE 3600000 WRITE"), Reply::ok());
        assert_eq!(many.call("CLIENT UNPAUSE"), Reply::ok());
        assert_eq!(many.call("SET k 2"), Reply::ok());
        assert!(
            ones[1].is_quiet(Duration::from_millis(50)),
            "the client is paused"
        );
        assert_eq!(ones[0].call("CLIENT UNPAUSE"), Reply::ok());
        assert_eq!(ones[1].reply(), Reply::ok());
    });
}

/// Options that the file sets for one pool hold there alone.
#[test]
fn file_options_of_a_pool_hold_there_alone() {
    let server =
        ServerProcess::start(&any_server(), &[""; 0]).unwrap_or_else(|error| panic!("{error}"));
    let beside =
        ServerProcess::start(&any_server(), &[""; 0]).unwrap_or_else(|error| panic!("{error}"));
    let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let file = folder.path().join("respool.toml");
    let proxy = Proxy::start_with(&respool(), |port| {
        let text = format!(
            "threads = 3\nmax-delay-us = 300\n[pool.own]\nlisten = '127.0.0.1:{port}'\nbackend = 'redis://{}'\nflush-rule = 'latency'\n\
             max-delay-us = 500\nfuse = false\nfused-keys-max = 7\ncollapse = false\n\
             [pool.own.prefixes]\n'b:' = 'redis://{}'\n\
             [pool.other]\nlisten = '127.0.0.1:0'\nbackend = 'redis://{}'\n",
            server.address(),
            beside.address(),
            server.address(),
        );
        std::fs::write(&file, text).unwrap_or_else(|error| panic!("{error}"));
        vec!["--config".into(), file.display().to_string()]
    });
    let proxy = proxy.unwrap_or_else(|error| panic!("{error}"));
    let address = second_listener(&proxy, "other");
    let [mut own, mut other] = [proxy.address(), address].map(RespClient::connect);
    let shown = |client: &mut RespClient| {
        let reply = client.call("CONFIG GET respool.*");
        let names = [
            "flush-rule",
            "max-delay-us",
            "fuse",
            "fused-keys-max",
            "collapse",
        ];
        names.map(|name| reply.get(&format!("respool.{name}")).cloned())
    };
    let values = |values: [&str; 5]| values.map(|value| Some(Reply::bulk(value)));
    assert_eq!(shown(&mut own), values(["latency", "500", "no", "7", "no"]));
    assert_eq!(
        shown(&mut other),
        values(["balanced", "300", "yes", "128", "yes"])
    );

    own.call("MSET a 1 b 2 b:a 3 b:b 4");
    own.call("RPUSH l 1");
    for _ in 0..20 {
        assert_eq!(coalesced(&mut own), (0, 0), "here and in its part");
    }
    wait_until("the other pool joins and collapses requests", SOON, || {
        let (gets, reads) = coalesced(&mut other);
        gets > 0 && reads > 0
    });
}

/// The reference explains every field of INFO.
#[test]
fn every_info_field_is_documented() {
    let pools = TwoPools::start(1);
    let (mut one, mut many) = (pools.one(), pools.many());
    assert_eq!(one.call("PING"), Reply::Simple("PONG".into()));
    assert_eq!(many.call("SET k 1"), Reply::ok());
    let page = include_str!("../../../../../docs/reference/info.md");
    let info = info(&mut many);
    let fields = info.lines().filter_map(|line| line.split_once(':'));
    let mut names = Vec::new();
    for (name, value) in fields {
        match name.trim_end_matches(|last: char| last.is_ascii_digit()) {
            of @ ("respool_link_" | "respool_server_") => {
                names.push(format!("{of}0"));
                let inner = value.split(',').filter_map(|field| field.split_once('='));
                names.extend(inner.map(|(name, _)| name.to_owned()));
            }
            _ => names.push(name.to_owned()),
        }
    }
    let unsaid = |name: &&String| !page.contains(&format!("`{name}`"));
    let unsaid: Vec<_> = names.iter().filter(unsaid).collect();
    assert!(unsaid.is_empty(), "{unsaid:?}");
    assert!(names.iter().any(|name| name == "sessions"), "{info}");
}

/// INFO shows a client the servers and links of its own pool, and none of the other one; the log
/// has both.
#[test]
fn the_log_and_info_name_the_pool_of_each_server() {
    let pools = TwoPools::start(1);
    let (mut one, mut many) = (pools.one(), pools.many());
    assert_eq!(one.call("PING"), Reply::Simple("PONG".into()));
    assert_eq!(many.call("SET k 1"), Reply::ok());
    let mut sides = [
        (&mut one, "one", "many", &pools.alone, &pools.shards[0]),
        (&mut many, "many", "one", &pools.shards[0], &pools.alone),
    ];
    for (client, own, other, its, others) in &mut sides {
        for command in ["INFO respool", "INFO", "INFO everything"] {
            let Reply::Bulk(info) = client.call(command) else {
                panic!("{command} is a text")
            };
            let info = String::from_utf8(info).expect("INFO is ASCII");
            let link = format!("server={},pool={own},db=0", its.address());
            assert!(info.contains(&link), "{link}: {info}");
            for hidden in [format!("pool={other}"), others.address().to_string()] {
                assert!(!info.contains(&hidden), "{hidden}: {info}");
            }
            let servers = if *own == "one" { 1 } else { 2 };
            let count = format!("respool_servers:{servers}\r\n");
            assert!(info.contains(&count), "{count}: {info}");
        }
    }
    for (client, port) in [(&mut one, pools.proxy.address()), (&mut many, pools.beside)] {
        let port = format!("respool_tcp_port:{}\r\n", port.port());
        assert!(info(client).contains(&port), "{port}");
    }
    let log = pools.proxy.log();
    let ready = log.lines().find(|line| line.contains(" ready "));
    let ready = ready.unwrap_or_else(|| panic!("{log}"));
    let (alone, listen) = (pools.alone.address(), pools.proxy.address());
    assert!(
        ready.contains(&format!(
            "one={listen}=redis://{alone}/0 many={}=",
            pools.beside
        )),
        "{ready}"
    );
    assert!(
        ready.contains(&format!("listen={listen},{} ", pools.beside)),
        "{ready}"
    );
    // The line is written a moment after the event.
    let up = format!("link up worker=0 server={alone} pool=\"one\"");
    wait_until("the log shows the new link", SOON, || {
        pools.proxy.log().contains(&up)
    });
    let log = pools.proxy.log();
    assert!(!log.contains("of-the-one"), "{log}");
}

/// Keys are at the server that their prefix names, and to a client all servers are one.
#[test]
fn prefixes_route_keys_to_their_servers() {
    let start =
        || ServerProcess::start(&any_server(), &[""; 0]).unwrap_or_else(|error| panic!("{error}"));
    let servers: [ServerProcess; 4] = std::array::from_fn(|_| start());
    let [rest, sessions, pages @ ..] = &servers;
    let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let file = folder.path().join("respool.toml");
    let proxy = Proxy::start_with(&respool(), |port| {
        let text = format!(
            "threads = 3\nreconnect-max-ms = 100\n[pool.all]\nlisten = '127.0.0.1:{port}'\n\
             backend = 'redis://{}'\n[pool.all.prefixes]\n's:' = 'redis://{}'\n\
             's:page:' = 'redis-sharded://{},{}'\n",
            rest.address(),
            sessions.address(),
            pages[0].address(),
            pages[1].address()
        );
        std::fs::write(&file, text).unwrap_or_else(|error| panic!("{error}"));
        vec!["--config".into(), file.display().to_string()]
    });
    let proxy = proxy.unwrap_or_else(|error| panic!("{error}"));
    let connect = || RespClient::connect(proxy.address());
    let mut clients: Vec<RespClient> = (0..CLIENTS).map(|_| connect()).collect();
    let keys = |of: usize| {
        ["", "s", "s:", "s:1", "s:page", "s:page:", "other:"].map(|word| format!("{word}:{of}"))
    };
    for (of, client) in clients.iter_mut().enumerate() {
        let asked = keys(of).map(|key| [format!("SET {key} {key}"), format!("GET {key}")]);
        let asked: Vec<u8> = asked
            .iter()
            .flatten()
            .flat_map(|text| words(text))
            .collect();
        let expected = keys(of).map(|key| [Reply::ok(), Reply::bulk(key)]);
        assert_eq!(client.exchange(asked, 14), expected.concat());
        let all = format!("MGET {}", keys(of).join(" "));
        assert_eq!(
            client.call(&all),
            Reply::Array(keys(of).map(Reply::bulk).to_vec())
        );
    }
    let held = servers.each_ref().map(|server| {
        let Reply::Array(keys) = RespClient::connect(server.address()).call("KEYS *") else {
            panic!("KEYS is an array");
        };
        keys.len()
    });
    // The keys of `s:page` and of `s:page:`, with the number behind the colon.
    let of_pages = 2 * CLIENTS;
    let of_rest = (0..CLIENTS)
        .flat_map(keys)
        .filter(|key| !key.starts_with("s:"))
        .count();
    assert_eq!(
        [held[0], held[2] + held[3]],
        [of_rest, of_pages],
        "{held:?}"
    );
    assert_eq!(held.iter().sum::<usize>(), 7 * CLIENTS);
    assert!(held[2] > 0 && held[3] > 0, "{held:?}");
    let client = &mut clients[0];
    assert_eq!(client.call("DBSIZE"), Reply::Integer(7 * CLIENTS as i64));
    let across = client.call("SINTERSTORE s:1 other:1 s:page:1");
    assert!(
        across
            .error()
            .is_some_and(|text| text.starts_with("CROSSSLOT")),
        "{across:?}"
    );

    sessions.kill9();
    let name = sessions.address().to_string();
    wait_until("keys of the lost server fail", SOON, || {
        let answer = client.call("GET s:1:0");
        answer.error().is_some_and(|error| error.contains(&name))
    });
    for client in &mut clients {
        assert_eq!(client.call("SET other:x 1"), Reply::ok());
        assert_eq!(client.call("SET s:page:x 1"), Reply::ok());
    }
}

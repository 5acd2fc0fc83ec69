//! A script without end. Its server answers all other connections with BUSY, and respool does, too.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use respool_testkit::client::{Reply, RespClient, counter, request};
use respool_testkit::servers::{Proxy, ServerProcess};
use respool_testkit::time::wait_until;
use respool_testkit::topologies::{Sentinels, SentinelsSettings};

use crate::target::{Options, before_every_server, respool};
use crate::topology::cluster::{self, primaries, with_every_server};
use crate::topology::sentinel;

/// The time in which an expected event comes, on a busy machine.
const SOON: Duration = Duration::from_secs(10);

/// A request that waits for its deadline would fail the test by the patience of its client.
const ARGS: [&str; 2] = ["--threads=1", "--request-timeout-ms=60000"];

/// The server says BUSY after so many milliseconds of a script.
const LIMIT: &str = "CONFIG SET lua-time-limit 100";

const LOOP: [&str; 4] = ["EVAL", "while true do end", "1", "{a}"];

/// Requests for the key `{a}`, or without a key that another server could have. The last reply of
/// each is BUSY.
const KEYED: &[&[&str]] = &[
    &["GET {a}"],
    &["SET {a} 2"],
    &["MGET {a} {a}b"],
    &["MSET {a} 1 {a}b 2"],
    &["EVAL return 1 {a}"],
    &["FCALL f 1 {a}"],
    &["BLPOP {a}list 1"],
    &["XREAD BLOCK 100 STREAMS {a}stream 0"],
    &["WATCH {a}", "MULTI", "SET {a} 3", "EXEC"],
    &["MULTI", "GET {a}", "EXEC"],
    &["HELLO 3", "GET {a}"],
];

/// Requests of a pool with one server.
const OTHERS: &[&[&str]] = &[
    &["SUBSCRIBE channel"],
    &["PSUBSCRIBE channel*"],
    &["PUBLISH channel text"],
    &["PING"],
    &["DBSIZE"],
    &["SCAN 0"],
    &["INFO server"],
    &["SELECT 1", "GET {a}"],
    &["HELLO 3", "CLIENT TRACKING ON", "GET {a}"],
];

/// The last reply to these.
fn last_reply(client: &mut RespClient, requests: &[&str]) -> Reply {
    let replies = requests.iter().map(|one| match *one {
        "EVAL return 1 {a}" => client.call_args(&["EVAL", "return 1", "1", "{a}"]),
        one => client.call(one),
    });
    replies.last().expect("each case has a request")
}

fn is_busy(reply: &Reply) -> bool {
    // A transaction is aborted by its requests, which were refused so.
    let words = ["BUSY ", "EXECABORT "];
    reply
        .error()
        .is_some_and(|error| words.iter().any(|word| error.starts_with(word)))
}

/// Whether a server owes a reply on a link that sessions share.
fn owes_reply(client: &mut RespClient) -> bool {
    let info = client.call("INFO respool");
    let text = String::from_utf8_lossy(info.text().expect("INFO is a text"));
    let mut links = text
        .lines()
        .filter(|line| line.starts_with("respool_link_"));
    links.any(|line| line.contains("role=shared,state=up,in_flight=1"))
}

/// Older and new sessions get the server's replies, and the script can be ended.
fn others_get_busy(
    (address, servers): (SocketAddr, &[SocketAddr]),
    looping: &[&str],
    kill: &str,
    cases: &[&[&str]],
) {
    let mut killer = RespClient::connect(address);
    assert_eq!(killer.call("SET {a} 1"), Reply::ok());
    let older = cases.iter().map(|_| {
        let mut client = RespClient::connect(address);
        assert_eq!(client.call("GET {a}"), Reply::bulk("1"));
        client
    });
    let mut older: Vec<RespClient> = older.collect();
    let mut caught = RespClient::connect(address);
    caught.send(&request(looping));
    // The script has a link of its own. So its order among other requests is that of their arrival
    // at the server.
    wait_until("the script is at the server", SOON, || {
        owes_reply(&mut killer) && owes_reply(&mut killer)
    });
    // The server does not answer before it is busy, and the request only reads.
    let mut behind = RespClient::connect(address);
    behind.send(&request(&["GET", "{a}"]));
    wait_until("the server is busy", SOON, || {
        let mut all = servers.iter();
        all.any(|server| is_busy(&RespClient::connect(*server).call("GET {a}")))
    });
    let reply = behind.reply();
    assert!(is_busy(&reply), "{reply:?}");
    for (case, older) in cases.iter().zip(&mut older) {
        for client in [older, &mut RespClient::connect(address)] {
            if case[0].starts_with("FCALL") && !looping[0].starts_with("FCALL") {
                // A server before 7.0 does not know it.
                continue;
            }
            let reply = last_reply(client, case);
            assert!(is_busy(&reply), "{case:?}: {reply:?}");
        }
    }
    assert_eq!(killer.call(kill), Reply::ok());
    let reply = caught.reply();
    assert!(reply.error().is_some(), "{reply:?}");
    // The session of the script and the others go on.
    for client in [&mut caught, &mut killer, &mut older[0]] {
        assert_eq!(client.call("GET {a}"), Reply::bulk("1"));
    }
}

/// Before a plain server, others get BUSY beside a script and beside a function.
#[test]
fn looping_script_of_a_plain_server_leaves_others_busy() {
    let cases = [KEYED, OTHERS].concat();
    before_every_server(&Options::with(&ARGS), |target| {
        target.direct_client().call(LIMIT);
        let servers = [target.server.address()];
        let address = (target.address(), &servers[..]);
        others_get_busy(address, &LOOP, "SCRIPT KILL", &cases);
        assert!(counter(&mut target.client(), "silent_links_replaced") >= 1);
        let library =
            "#!lua name=l\nredis.register_function('f', function() while true do end end)";
        let loaded = target.client().call_args(&["FUNCTION", "LOAD", library]);
        if loaded.error().is_none() {
            let looping = ["FCALL", "f", "1", "{a}"];
            others_get_busy(address, &looping, "FUNCTION KILL", &cases);
        }
    });
}

/// A script that has written cannot be killed: SHUTDOWN NOSAVE ends it with its server. SHUTDOWN
/// gets a link even if all are taken. respool closes its client, as the server does.
#[test]
fn looping_script_that_has_written_is_ended_by_shutdown() {
    let bounds = [
        "--pinned-links-max=1",
        "--links-max=2",
        "--streaming-links-max=1",
        "--refuse-commands=none",
    ];
    before_every_server(&Options::with(&[&ARGS[..], &bounds].concat()), |target| {
        target.direct_client().call(LIMIT);
        let mut operator = target.client();
        let mut waiter = target.client();
        waiter.send(&request(&["BLPOP", "nothing", "0"]));
        let mut elsewhere = target.client();
        elsewhere.call("SELECT 1");
        elsewhere.call("GET {a}");
        let mut caught = target.client();
        let script = "redis.call('SET', KEYS[1], 1) while true do end";
        caught.send(&request(&["EVAL", script, "1", "{a}"]));
        wait_until("the server is busy", SOON, || {
            is_busy(&target.direct_client().call("GET {a}"))
        });
        let kept = operator.call("SCRIPT KILL");
        let text = kept.error().unwrap_or_default();
        assert!(text.starts_with("UNKILLABLE "), "{kept:?}");
        operator.send(&request(&["SHUTDOWN", "NOSAVE"]));
        operator.expect_closed();
    });
}

/// A script that is slow and not yet too slow delays others, which then get their replies.
#[test]
fn slow_script_below_the_limit_delays_others() {
    before_every_server(&Options::with(&ARGS), |target| {
        let mut client = target.client();
        assert_eq!(client.call("SET {a} 1"), Reply::ok());
        let mut caught = target.client();
        // Some tenths of a second; the server says BUSY after five seconds.
        let body = "local n = 0 for i = 1, 30000000 do n = n + 1 end return 1";
        caught.send(&request(&["EVAL", body, "1", "{a}"]));
        for client in [&mut client, &mut target.client()] {
            assert_eq!(client.call("GET {a}"), Reply::bulk("1"));
        }
        assert_eq!(caught.reply(), Reply::Integer(1));
    });
}

fn sharded(binary: &Path) -> (Vec<ServerProcess>, Proxy) {
    let start =
        |_| ServerProcess::start(binary, &[""; 0]).unwrap_or_else(|error| panic!("{error}"));
    let servers: Vec<ServerProcess> = (0..2).map(start).collect();
    let hosts: Vec<String> = servers
        .iter()
        .map(|one| one.address().to_string())
        .collect();
    let mut args = vec![format!("--backend=redis-sharded://{}", hosts.join(","))];
    args.extend(ARGS.map(String::from));
    let proxy = Proxy::start(&respool(), &args).unwrap_or_else(|error| panic!("{error}"));
    (servers, proxy)
}

/// Before several servers and before a Cluster, requests for keys of the busy server get BUSY,
/// others their replies.
#[test]
fn looping_script_of_one_of_several_servers_leaves_others_busy() {
    with_every_server(|binary| {
        let (servers, proxy) = sharded(binary);
        let servers: Vec<SocketAddr> = servers.iter().map(|server| server.address()).collect();
        for server in &servers {
            RespClient::connect(*server).call(LIMIT);
        }
        others_get_busy((proxy.address(), &servers), &LOOP, "SCRIPT KILL", KEYED);
        let served = cluster::Served::start(binary, primaries(), &ARGS);
        let nodes = served.cluster.addresses();
        for node in &nodes {
            RespClient::connect(*node).call(LIMIT);
        }
        others_get_busy(
            (served.proxy.address(), &nodes),
            &LOOP,
            "SCRIPT KILL",
            KEYED,
        );
    });
}

/// Before a primary that Sentinels watch, others get BUSY.
#[test]
fn looping_script_of_a_watched_primary_leaves_others_busy() {
    let settings = SentinelsSettings {
        watched: 1,
        ..SentinelsSettings::default()
    };
    let binary = sentinel::some_server(7);
    let sentinels = Sentinels::start(&binary, &settings).unwrap_or_else(|error| panic!("{error}"));
    let proxy = sentinel::proxy_before(&sentinels, &settings, &ARGS);
    let primary = [sentinels.watched(0).server(0).address()];
    RespClient::connect(primary[0]).call(LIMIT);
    let cases = [KEYED, OTHERS].concat();
    others_get_busy((proxy.address(), &primary), &LOOP, "SCRIPT KILL", &cases);
}

//! The slow log: which requests it has, with their arguments and times, on each way of a reply.
//! Other reports of RESPOOL: the rights to them, and hot keys.

use std::sync::Arc;

use respool_engine::limits::SLOW_PER_TURN_MAX;
use respool_engine::settings::{Settings, SlowLogSettings};
use respool_engine::{NewSettings, SessionId};

use crate::coalescing::ask_at_once;
use crate::script_words::{nodes_of, slot};
use crate::world::{World, cluster, settings, sharded, without_lanes};

/// The threshold of these tests, milliseconds.
const SLOW_MS: u32 = 100;

fn logging(mut settings: Settings, len_max: u32) -> Settings {
    settings.slow_log = SlowLogSettings {
        slower_than_us: Some(SLOW_MS * 1_000),
        len_max,
    };
    settings
}

/// An entry of the slow log, as RESPOOL SLOWLOG GET shows it.
#[derive(Debug, PartialEq, Eq)]
struct Logged {
    args: String,
    client: String,
    name: String,
    server: String,
    /// The whole time, the time in respool, and the time at the server, milliseconds.
    ms: [u32; 3],
}

/// The reply to a request of RESPOOL. The server allows it.
fn report(world: &mut World, line: &str) -> String {
    let admin = world.accept();
    let first = world.all_shared[0];
    world.sent(first);
    world.asks(admin, &[line]);
    let asked = world.asked(first);
    world.says(first, ":0\r\n".repeat(asked.len()));
    let got = world.got(admin);
    assert_ne!(got, "", "{line} waits, and the server was asked {asked:?}");
    world.turn(|engine| engine.handle_session_lost(admin));
    got
}

/// The whole slow log, the newest entry first.
fn log(world: &mut World) -> Vec<Logged> {
    let reply = report(world, "RESPOOL SLOWLOG GET -1");
    let mut lines = reply.split("\r\n");
    let number = |line: Option<&str>| -> usize {
        let line = line.expect("the reply goes on");
        line[1..].parse().unwrap_or_else(|_| panic!("{reply}"))
    };
    let mut entries = Vec::new();
    for _ in 0..number(lines.next()) {
        assert_eq!(lines.next(), Some("*10"), "{reply}");
        let ints = |count: usize, lines: &mut std::str::Split<'_, &str>| -> Vec<usize> {
            (0..count).map(|_| number(lines.next())).collect()
        };
        let head = ints(3, &mut lines);
        let argc = number(lines.next());
        let mut texts = (0..argc + 4).map(|_| {
            lines.next();
            lines.next().expect("a text").to_owned()
        });
        let args: Vec<String> = texts.by_ref().take(argc).collect();
        let texts: Vec<String> = texts.collect();
        let parts = ints(2, &mut lines);
        let ms = [head[2], parts[0], parts[1]].map(|us| (us / 1_000) as u32);
        let [client, name, _, server] = <[String; 4]>::try_from(texts).expect("four texts");
        entries.push(Logged {
            args: args.join(" "),
            client,
            name,
            server,
            ms,
        });
    }
    entries
}

fn logged_args(world: &mut World) -> Vec<String> {
    log(world).into_iter().map(|entry| entry.args).collect()
}

/// An entry has the client, the server, and the two parts of the time.
#[test]
fn slow_request_has_its_client_server_and_times() {
    let mut world = World::new(logging(settings(), 10));
    let session = world.accept();
    world.may_ask(session, &["CLIENT SETNAME reader"]);
    world.asks(session, &["CLIENT SETNAME reader", "GET k"]);
    world.wait_ms(SLOW_MS);
    world.says(world.shared, "$1\r\nv\r\n");
    let [entry] = &log(&mut world)[..] else {
        panic!("one request was slow");
    };
    assert_eq!(
        (entry.args.as_str(), entry.name.as_str()),
        ("GET k", "reader")
    );
    assert!(
        !entry.client.is_empty() && !entry.server.is_empty(),
        "{entry:?}"
    );
    let [all, waiting, server] = entry.ms;
    assert!((SLOW_MS..SLOW_MS + 5).contains(&all), "{entry:?}");
    assert_eq!((waiting, server), (0, all));
}

/// A request that waits for its link is slow by respool, not by the server.
#[test]
fn time_before_the_departure_is_that_of_respool() {
    let mut settings = logging(settings(), 10);
    settings.timeouts.outage_hold_ms = 1_000;
    let mut world = World::new(settings);
    let session = world.accept();
    world.lose(world.shared);
    world.asks(session, &["GET k"]);
    world.wait_ms(2 * SLOW_MS);
    for link in world.connecting() {
        world.up(link);
    }
    world.says(world.shared, "$1\r\nv\r\n");
    assert!(world.got(session).ends_with("v\r\n"));
    let [entry] = &log(&mut world)[..] else {
        panic!("one request was slow");
    };
    assert!(
        entry.ms[1] >= 2 * SLOW_MS && entry.ms[2] < SLOW_MS,
        "{entry:?}"
    );
}

/// A request is logged from the threshold on. -1 switches the log off, and a reload changes it.
#[test]
fn threshold_decides_and_a_reload_changes_it() {
    let mut settings = logging(settings(), 10);
    let mut world = World::new(settings.clone());
    let session = world.accept();
    let ask = |world: &mut World, key: &str, ms| {
        world.asks(session, &[&format!("GET {key}")]);
        world.wait_ms(ms);
        world.says(world.shared, "$1\r\nv\r\n");
    };
    ask(&mut world, "quick", SLOW_MS - 50);
    ask(&mut world, "slow", SLOW_MS);
    assert_eq!(logged_args(&mut world), ["GET slow"]);
    for (slower_than_us, key) in [(None, "off"), (Some(0), "every")] {
        settings.slow_log.slower_than_us = slower_than_us;
        let new = NewSettings {
            settings: Arc::new(settings.clone()),
            at: world.now,
            ports: Default::default(),
            drain_ms: 0,
        };
        world.turn(|engine| engine.handle_settings(new));
        ask(&mut world, key, if key == "off" { 10 * SLOW_MS } else { 0 });
    }
    let args = logged_args(&mut world);
    assert!(args.contains(&"GET every".to_owned()), "{args:?}");
    assert!(!args.contains(&"GET off".to_owned()), "{args:?}");
}

/// Of a run the first request is logged, and a turn logs a bounded number of requests.
#[test]
fn runs_and_turns_are_bounded() {
    let mut world = World::new(logging(settings(), 100));
    let sessions: Vec<SessionId> = (0..40).map(|_| world.accept()).collect();
    let run = ["GET a", "GET b", "GET c", "INCR n", "GET d"];
    world.asks(sessions[0], &run);
    world.wait_ms(SLOW_MS);
    world.says(
        world.shared,
        ["$1\r\nv\r\n"; 3].concat() + ":1\r\n$1\r\nv\r\n",
    );
    assert_eq!(logged_args(&mut world), ["GET d", "INCR n", "GET a"]);
    assert_eq!(report(&mut world, "RESPOOL SLOWLOG RESET"), "+OK\r\n");
    for session in &sessions {
        world.asks(*session, &["GET k"]);
    }
    world.wait_ms(SLOW_MS);
    world.says(world.shared, "$1\r\nv\r\n".repeat(sessions.len()));
    let len = report(&mut world, "RESPOOL SLOWLOG LEN");
    assert_eq!(len, format!(":{SLOW_PER_TURN_MAX}\r\n"));
}

/// The log keeps the newest requests.
#[test]
fn log_keeps_the_newest() {
    let mut world = World::new(logging(settings(), 2));
    let session = world.accept();
    for key in ["a", "b", "c"] {
        world.asks(session, &[&format!("GET {key}")]);
        world.wait_ms(SLOW_MS);
        world.says(world.shared, "$1\r\nv\r\n");
    }
    assert_eq!(logged_args(&mut world), ["GET c", "GET b"]);
}

/// On each way of a reply a slow request is logged once, with its own arguments.
#[test]
fn every_way_of_a_reply_logs_once() {
    for (asked, reply, expected) in [
        (&["GET k"][..], "-ERR no\r\n", "GET k"),
        (&["INFO server"], "$1\r\nx\r\n", "INFO server"),
        (&["GET a", "GET b"], "*2\r\n$1\r\nv\r\n$1\r\nv\r\n", "GET a"),
        (&["SET a 1", "SET b 2"], "+OK\r\n", "SET a 1"),
        (
            &["CONFIG SET requirepass secret"],
            "+OK\r\n",
            "CONFIG SET (redacted)",
        ),
    ] {
        let mut settings = logging(without_lanes(settings()), 10);
        settings.flush.fuse = true;
        settings.flush.collapse = true;
        let mut world = World::new(settings);
        world.see_rights();
        let sessions: Vec<SessionId> = asked.iter().map(|_| world.accept()).collect();
        let each = sessions.iter().zip(asked);
        let all: Vec<_> = each
            .map(|(session, one)| (*session, std::slice::from_ref(one)))
            .collect();
        ask_at_once(&mut world, &all);
        // The server may be asked about a right first.
        let mut sent = Vec::new();
        for _ in 0..3 {
            let asked = world.asked(world.shared);
            world.wait_ms(if asked.is_empty() { 0 } else { SLOW_MS });
            world.says(world.shared, reply.repeat(asked.len()));
            sent.extend(asked);
        }
        assert_eq!(logged_args(&mut world), [expected], "{sent:?}");
    }
}

/// Equal reads that leave as one are logged once.
#[test]
fn collapsed_read_is_logged_once() {
    let mut settings = logging(settings(), 10);
    settings.flush.collapse = true;
    let mut world = World::new(settings);
    let (one, other) = (world.accept(), world.accept());
    ask_at_once(&mut world, &[(one, &["GET k"]), (other, &["GET k"])]);
    assert_eq!(world.asked(world.shared).len(), 1, "they leave as one");
    world.wait_ms(SLOW_MS);
    world.says(world.shared, "$1\r\nv\r\n");
    assert_eq!(world.got(other), "$1\r\nv\r\n");
    assert_eq!(logged_args(&mut world), ["GET k"]);
}

/// A blocking command that waits is not slow.
#[test]
fn blocking_command_is_not_logged() {
    let mut world = World::new(logging(settings(), 10));
    let session = world.accept();
    world.asks(session, &["BLPOP k 0"]);
    let link = world.connect();
    world.wait_ms(SLOW_MS);
    world.says(link, "*2\r\n$1\r\nk\r\n$1\r\nv\r\n");
    assert!(world.got(session).ends_with("v\r\n"));
    assert_eq!(logged_args(&mut world), [""; 0]);
}

/// A request to several servers, and one past its deadline, are logged by name.
#[test]
fn requests_without_their_bytes_are_logged_by_name() {
    let mut settings = logging(sharded(2), 10);
    settings.timeouts.request_ms = 1_000;
    let mut world = World::new(settings);
    let session = world.accept();
    let keys = [world.key_at(0, "a"), world.key_at(1, "b")];
    world.asks(session, &[&format!("MGET {} {}", keys[0], keys[1])]);
    world.wait_ms(SLOW_MS);
    for link in world.all_shared.clone() {
        world.says(link, "*1\r\n$1\r\nv\r\n");
    }
    world.asks(session, &[&format!("GET {}", keys[1])]);
    world.wait_ms(1_100);
    assert!(world.got(session).contains("-UNKNOWN"));
    let entries = log(&mut world);
    let shown: Vec<_> = entries
        .iter()
        .map(|entry| (entry.args.as_str(), entry.server.is_empty()))
        .collect();
    assert_eq!(shown, [("get", false), ("mget", true)]);
}

/// RESPOOL needs the right to a command of the server, and RESET to a stronger one.
#[test]
fn reports_follow_the_rights_of_the_server() {
    for (line, right) in [
        ("RESPOOL SLOWLOG LEN", "SLOWLOG LEN"),
        ("RESPOOL LATENCY HISTOGRAM", "SLOWLOG LEN"),
        ("RESPOOL HELP", "SLOWLOG LEN"),
        ("RESPOOL HOTKEYS GET", "SLOWLOG LEN"),
        ("RESPOOL SLOWLOG RESET", "LATENCY RESET respool"),
        ("RESPOOL HOTKEYS RESET", "LATENCY RESET respool"),
    ] {
        let mut world = World::new(settings());
        let session = world.accept();
        world.asks(session, &[line]);
        assert_eq!(world.got(session), "", "{line} waits for the server");
        let asked: Vec<String> = world
            .asked(world.shared)
            .iter()
            .map(|args| args.join(" "))
            .collect();
        assert_eq!(asked, [right], "{line}");
        world.says(world.shared, "-NOPERM no\r\n");
        assert_eq!(world.got(session), "-NOPERM no\r\n", "{line}");
    }
}

/// The keys of joined requests count one by one, and those of a pool are seen by its clients.
#[test]
fn sampled_keys_are_those_that_clients_asked_for() {
    let mut settings = settings();
    settings.hot_keys_sample = 1;
    settings.flush.fuse = true;
    settings.flush.collapse = true;
    let mut world = World::new(settings);
    world.see_rights();
    assert_eq!(report(&mut world, "RESPOOL HOTKEYS RESET"), "+OK\r\n");
    let [one, other] = [world.accept(), world.accept()];
    ask_at_once(
        &mut world,
        &[(one, &["GET a", "GET b"]), (other, &["GET a", "GET a"])],
    );
    assert_eq!(world.asked(world.shared).len(), 1, "they leave as one");
    world.says(world.shared, "*2\r\n$1\r\nv\r\n$1\r\nw\r\n");
    let keys = report(&mut world, "RESPOOL HOTKEYS GET COUNT 1").replace("\r\n", " ");
    assert!(
        keys.starts_with("*1 *10 $3 key $1 a $2 db :0 $3 qps :"),
        "{keys}"
    );
    assert!(keys.ends_with(" $8 requests :3 $5 error :0 "), "{keys}");
}

/// The sampled requests for the hottest key, where every request is sampled.
fn hottest(world: &mut World) -> String {
    let keys = report(world, "RESPOOL HOTKEYS GET COUNT 1").replace("\r\n", " ");
    let from_count = keys.split(" requests ").nth(1).expect("a key has counted");
    from_count.to_owned()
}

/// A key counts once for each request, although the request leaves again because its MGET was
/// refused.
#[test]
fn key_of_a_refused_mget_counts_once() {
    let mut settings = settings();
    settings.hot_keys_sample = 1;
    settings.flush.fuse = true;
    let mut world = World::new(settings);
    world.see_rights();
    assert_eq!(report(&mut world, "RESPOOL HOTKEYS RESET"), "+OK\r\n");
    let [one, other] = [world.accept(), world.accept()];
    ask_at_once(&mut world, &[(one, &["GET a"]), (other, &["GET b"])]);
    assert!(world.sent(world.shared).contains("MGET"));
    world.says(world.shared, "-NOPERM no\r\n");
    assert_eq!(world.asked(world.shared).len(), 2, "each leaves alone");
    world.says(world.shared, "$-1\r\n$-1\r\n");
    world.asks(one, &["GET b"]);
    world.wait_ms(1);
    assert!(world.sent(world.shared).contains("GET"));
    world.says(world.shared, "$-1\r\n");
    assert_eq!(hottest(&mut world), ":2 $5 error :0 ");
}

/// A key counts once for each request, although the request leaves again because its link was lost:
/// before the request was written, or after that.
#[test]
fn key_of_a_request_on_a_lost_link_counts_once() {
    for has_room in [true, false] {
        let mut settings = settings();
        settings.hot_keys_sample = 1;
        let mut world = World::new(settings);
        let session = world.accept();
        assert_eq!(report(&mut world, "RESPOOL HOTKEYS RESET"), "+OK\r\n");
        world.wait_ms(1_100);
        if !has_room {
            world.room.insert(world.shared, 10);
        }
        world.asks(session, &["GET a"]);
        world.lose(world.shared);
        world.room.clear();
        world.connect();
        assert!(world.sent(world.shared).contains("GET"), "{has_room}");
        world.says(world.shared, "$-1\r\n");
        assert_eq!(world.got(session), "$-1\r\n");
        assert_eq!(hottest(&mut world), ":1 $5 error :0 ", "{has_room}");
    }
}

/// A key counts once for each request, although the request leaves again because its slot has
/// moved.
#[test]
fn key_of_a_redirected_request_counts_once() {
    let mut settings = cluster(2);
    settings.hot_keys_sample = 1;
    let mut world = nodes_of(settings);
    let [first, second] = world.all_shared[..] else {
        panic!("two nodes");
    };
    let (session, key) = (world.accept(), world.key_at(0, "k"));
    assert_eq!(report(&mut world, "RESPOOL HOTKEYS RESET"), "+OK\r\n");
    world.asks(session, &[&format!("GET {key}")]);
    world.sent(second);
    world.says(first, format!("-MOVED {} server:2\r\n", slot(&key)));
    assert!(world.sent(second).contains("GET"));
    world.says(second, "$-1\r\n");
    assert_eq!(world.got(session), "$-1\r\n");
    assert_eq!(hottest(&mut world), ":1 $5 error :0 ");
}

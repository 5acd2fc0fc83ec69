//! The times of requests by command, where a reply takes a slow path: each request of a session
//! counts once, from the time it was read to the time of its reply.

use std::collections::BTreeMap;

use respool_engine::LatencyReport;
use respool_engine::settings::Settings;

use crate::coalescing::{all_levels, ask_at_once};
use crate::script_words::{asked, slot, two_nodes};
use crate::world::{World, settings, sharded};

/// The requests that count, by command, and the times of each.
struct Counted {
    report: LatencyReport,
    /// Requests of earlier calls, by command and bucket of the whole time.
    before: BTreeMap<(&'static str, u64), u64>,
}

/// Whether a bucket has this time. A bucket is at most 1/32 longer than its shortest time.
fn has_ms(longest_us: u64, ms: u64) -> bool {
    let shortest_us = ms * 1_000;
    (shortest_us..=shortest_us * 33 / 32).contains(&longest_us)
}

impl Counted {
    /// Requests that `world` has answered so far are left out.
    fn from(world: &mut World) -> Counted {
        let mut counted = Counted {
            report: LatencyReport::default(),
            before: BTreeMap::new(),
        };
        counted.take(world);
        counted
    }

    /// The requests since the last call: the command of each, and the longest time of its bucket,
    /// microseconds.
    fn take(&mut self, world: &mut World) -> Vec<(&'static str, u64)> {
        world.engine.report_latency(&mut self.report);
        let mut taken = Vec::new();
        for (command, times) in self.report.commands() {
            for (longest_us, count) in times.total().buckets() {
                let before = self.before.entry((command, longest_us)).or_default();
                taken.extend((*before..count).map(|_| (command, longest_us)));
                *before = count;
            }
        }
        taken
    }

    /// Checks that these requests have counted since the last call: the command and the
    /// milliseconds of each.
    #[track_caller]
    fn are(&mut self, world: &mut World, expected: &[(&str, u64)]) {
        let taken = self.take(world);
        let is_it = |((command, longest_us), (name, ms)): (&(&str, u64), &(&str, u64))| {
            command == name && has_ms(*longest_us, *ms)
        };
        let all_are = taken.iter().zip(expected).all(is_it);
        assert!(
            all_are && taken.len() == expected.len(),
            "{taken:?} us, not {expected:?} ms"
        );
    }

    /// Checks that one request has counted since the last call, all of it as time at the server.
    #[track_caller]
    fn is_at_server(&mut self, world: &mut World, (command, ms): (&str, u64)) {
        self.are(world, &[(command, ms)]);
        let (_, times) = self
            .report
            .commands()
            .find(|(name, _)| *name == command)
            .expect("it was measured");
        assert!(times.server().buckets().any(|(us, _)| has_ms(us, ms)));
        assert_eq!(times.waiting().count(), times.waiting().count_up_to_us(0));
    }
}

/// Settings with a request timeout of a second.
fn impatient() -> Settings {
    let mut settings = settings();
    settings.timeouts.request_ms = 1_000;
    settings
}

/// An error, and a reply in pieces, count like a simple reply.
#[test]
fn replies_on_slow_paths_count_once() {
    for (request, command, replies) in [
        ("GET k", "get", &["$1\r\nv\r\n"][..]),
        ("GET k", "get", &["-ERR no\r\n"]),
        ("GET k", "get", &["$1\r\n", "v\r\n"]),
        ("GET k", "get", &["-ERR", " no\r\n"]),
    ] {
        let mut world = World::new(settings());
        let mut counted = Counted::from(&mut world);
        let session = world.accept();
        world.asks(session, &[request]);
        replies
            .iter()
            .for_each(|reply| world.says(world.shared, reply));
        assert_ne!(world.got(session), "");
        counted.are(&mut world, &[(command, replies.len() as u64)]);
    }
}

/// A large request counts for its own command, from the reading of its last bytes.
#[test]
fn streamed_request_counts_for_its_command() {
    let mut world = World::new(settings());
    let mut counted = Counted::from(&mut world);
    let session = world.accept();
    world.asks(session, &["GET k"]);
    world.says(world.shared, "$1\r\nv\r\n");
    world.sends(session, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$600000\r\n");
    world.sends(session, &[b'x'; 300_000]);
    let own = world.connect();
    world.sends(session, &[b'x'; 300_000]);
    world.sends(session, b"\r\n");
    world.wait_ms(50);
    world.says(own, "+OK\r\n");
    assert!(world.got(session).ends_with("+OK\r\n"));
    counted.are(&mut world, &[("get", 1), ("set", 51)]);
}

/// A reply that comes after the request's deadline counts for no command.
#[test]
fn late_reply_does_not_count() {
    let mut world = World::new(impatient());
    let mut counted = Counted::from(&mut world);
    let [slow, other] = [world.accept(), world.accept()];
    world.asks(slow, &["GET k"]);
    world.wait_ms(900);
    world.asks(other, &["SET k v"]);
    world.wait_ms(200);
    assert!(world.got(slow).starts_with("-UNKNOWN "));
    world.says(world.shared, "$1\r\nv\r\n+OK\r\n");
    assert_eq!(world.engine.counters().late_replies, 1);
    counted.are(&mut world, &[("set", 201)]);
}

/// The time of a request that waits for its session's earlier replies begins when they have come.
#[test]
fn wait_for_earlier_replies_does_not_count() {
    let mut world = World::new(settings());
    let mut counted = Counted::from(&mut world);
    let session = world.accept();
    world.asks(session, &["BLPOP q 0", "GET k"]);
    let own = world.connect();
    world.wait_ms(100);
    assert_eq!(world.sent(world.shared), "");
    world.says(own, "*2\r\n$1\r\nq\r\n$1\r\nv\r\n");
    world.turn(|_| {});
    assert!(world.sent(world.shared).contains("GET"));
    world.wait_ms(50);
    world.says(world.shared, "$1\r\nv\r\n");
    counted.are(&mut world, &[("blpop", 103), ("get", 51)]);
}

/// A read with an early reply is sent again. It has counted with the early reply.
#[test]
fn read_with_an_early_reply_counts_once() {
    let mut world = all_levels();
    let mut counted = Counted::from(&mut world);
    let [a, b] = [world.accept(), world.accept()];
    ask_at_once(
        &mut world,
        &[(a, &["GET k"]), (b, &["STRLEN s", "GET nil", "GET k"])],
    );
    let sent = world.asked(world.shared);
    assert!(
        sent.contains(&["MGET", "k", "nil"].map(str::to_owned).to_vec()),
        "{sent:?}"
    );
    world.says(world.shared, ":1\r\n*2\r\n$1\r\n1\r\n$-1\r\n");
    assert_eq!(world.asked(world.shared).len(), 2, "both GETs of b again");
    world.says(world.shared, "$-1\r\n$1\r\n2\r\n");
    assert_eq!(world.got(b), ":1\r\n$-1\r\n$1\r\n2\r\n");
    counted.are(
        &mut world,
        &[("get", 1), ("get", 1), ("get", 2), ("other", 1)],
    );
}

/// WAIT that asks several servers one after the other counts once, with its whole time.
#[test]
fn wait_at_several_servers_counts_once() {
    let mut world = World::new(sharded(2));
    let mut counted = Counted::from(&mut world);
    let session = world.accept();
    world.asks(session, &["WAIT 1 5000"]);
    for _ in 0..2 {
        let own = world.connect();
        world.wait_ms(100);
        assert!(world.sent(own).contains("WAIT"));
        world.says(own, ":0\r\n:1\r\n");
        world.turn(|_| {});
    }
    assert_eq!(world.got(session), ":1\r\n");
    counted.is_at_server(&mut world, ("wait", 206));
}

/// A blocking command that is polled counts once, with its whole time.
#[test]
fn polled_command_counts_once() {
    let (mut world, waits) = World::with_polled_commands();
    let mut counted = Counted::from(&mut world);
    world.asks(waits, &["BLPOP q 10"]);
    for nil in [true, true, false] {
        assert!(world.sent(world.shared).contains("BLPOP"));
        let result = if nil {
            "*-1"
        } else {
            "*2\r\n$1\r\nq\r\n$1\r\nv"
        };
        let said = format!("+OK\r\n+QUEUED\r\n*1\r\n{result}\r\n");
        world.says(world.shared, said);
        world.wait_ms(150);
    }
    assert_eq!(world.got(waits), "*2\r\n$1\r\nq\r\n$1\r\nv\r\n");
    counted.is_at_server(&mut world, ("blpop", 303));
}

/// A request whose reply respool held back, to have it proven, counts when its client gets it.
#[test]
fn reply_without_a_proof_counts() {
    let (mut world, [first, _], key, session) = two_nodes();
    let mut counted = Counted::from(&mut world);
    let moved = format!("-MOVED {} server:2\r\n", slot(&key));
    world.asks(session, &[&format!("EVAL body 1 {key}")]);
    world.says(first, &moved);
    counted.are(&mut world, &[]);
    let twin = format!("EVAL return 0 1 {key}");
    assert!(asked(&mut world, first).contains(&twin));
    world.says(first, ":0\r\n");
    assert_eq!(world.got(session), moved, "the script wrote it");
    counted.is_at_server(&mut world, ("eval", 2));
}

/// A transaction counts once, as its EXEC, even if the server refuses its MULTI.
#[test]
fn transaction_counts_once() {
    for (replies, reply) in [
        ("+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n", "*1\r\n+OK\r\n"),
        (
            "-NOPERM no\r\n+OK\r\n-ERR EXEC without MULTI\r\n",
            "-UNKNOWN ",
        ),
    ] {
        let mut world = World::new(settings());
        let session = world.accept();
        world.opens_transactions(session);
        let mut counted = Counted::from(&mut world);
        world.asks(session, &["MULTI", "SET k v", "EXEC"]);
        world.says(world.shared, replies);
        assert!(world.got(session).contains(reply));
        counted.are(&mut world, &[("exec", 1)]);
    }
}

/// A request for several servers counts once, with its last share. If a share fails, the request
/// fails in respool, and counts nowhere.
#[test]
fn request_for_several_servers_counts_once() {
    for lost in [&[][..], &[1], &[0], &[0, 1]] {
        let mut world = World::new(sharded(2));
        let mut counted = Counted::from(&mut world);
        let links = [0, 1].map(|at| world.all_shared[at]);
        let [k, l] = [0, 1].map(|at| world.key_at(at, "k"));
        let session = world.accept();
        world.asks(session, &[&format!("DEL {k} {l}")]);
        for (at, link) in links.into_iter().enumerate() {
            counted.are(&mut world, &[]);
            match lost.contains(&at) {
                true => world.lose(link),
                false => world.says(link, ":1\r\n"),
            }
        }
        if lost.is_empty() {
            assert_eq!(world.got(session), ":2\r\n");
            counted.is_at_server(&mut world, ("del", 2));
        } else {
            assert!(world.got(session).starts_with("-UNKNOWN "));
            counted.are(&mut world, &[]);
        }
    }
}

/// A request that CLIENT PAUSE holds begins anew when the pause ends.
#[test]
fn time_in_a_pause_does_not_count() {
    let mut world = World::new(settings());
    let [admin, session] = [world.accept(), world.accept()];
    world.may_ask(admin, &["CLIENT PAUSE x"]);
    let mut counted = Counted::from(&mut world);
    world.asks(admin, &["CLIENT PAUSE 200 ALL"]);
    world.asks(session, &["GET k"]);
    world.wait_ms(100);
    assert!(!world.sent(world.shared).contains("GET"));
    world.wait_ms(150);
    assert!(world.sent(world.shared).contains("GET"));
    world.says(world.shared, "$1\r\nv\r\n");
    let taken = counted.take(&mut world);
    let [("get", longest_us)] = taken[..] else {
        panic!("one request: {taken:?}");
    };
    assert!(longest_us < 100_000, "{longest_us} us");
}

//! Error replies by command: each error that a client gets counts once, under its request's
//! command and outcome.

use respool_engine::LatencyReport;
use respool_engine::settings::Settings;
use respool_protocol::commands::id;

use crate::coalescing::{all_levels, ask_at_once};
use crate::script_words::{slot, two_nodes};
use crate::world::{World, settings, sharded};

/// The error replies that have counted since the last call, such as `get replied 2`.
struct Errors {
    report: LatencyReport,
    before: Vec<String>,
}

impl Errors {
    /// Errors that `world` has counted so far are left out.
    fn from(world: &mut World) -> Errors {
        let mut errors = Errors {
            report: LatencyReport::default(),
            before: Vec::new(),
        };
        errors.before = errors.all(world);
        errors
    }

    fn all(&mut self, world: &mut World) -> Vec<String> {
        world.engine.report_latency(&mut self.report);
        let shown = self.report.errors().map(|(kind, count)| {
            assert_eq!(kind.pool, 0);
            format!("{} {} {count}", kind.command, kind.outcome.name())
        });
        shown.collect()
    }

    /// Checks the sums of the error replies that were not there when this began.
    #[track_caller]
    fn are(&mut self, world: &mut World, expected: &[&str]) {
        let before = self.before.clone();
        let mut now = self.all(world);
        now.retain(|shown| !before.contains(shown));
        assert_eq!(now, expected);
    }
}

fn impatient() -> Settings {
    let mut settings = settings();
    settings.timeouts.request_ms = 1_000;
    settings
}

/// Errors of a server count under the command of each request, whole or in pieces. Other replies
/// do not count, even if the rest of a large one begins like an error.
#[test]
fn errors_of_a_server_count_by_command() {
    let mut world = World::new(settings());
    let mut errors = Errors::from(&mut world);
    let session = world.accept();
    let requests = ["GET k", "GET k", "HSET k f v", "GET k", "STRLEN k"];
    world.asks(session, &requests);
    world.says(
        world.shared,
        "-WRONGTYPE no\r\n$1\r\n-\r\n-OOM no\r\n$-1\r\n-ERR no\r\n",
    );
    errors.are(
        &mut world,
        &["get replied 1", "hset replied 1", "other replied 1"],
    );
    world.asks(session, &["GET k"]);
    world.says(world.shared, "-WRONG");
    world.says(world.shared, "TYPE no\r\n");
    errors.are(
        &mut world,
        &["get replied 2", "hset replied 1", "other replied 1"],
    );
    world.asks(session, &["GET k"]);
    world.says(world.shared, format!("$200000\r\n{}", "v".repeat(100_000)));
    world.says(world.shared, format!("{}\r\n", "-".repeat(100_000)));
    errors.are(
        &mut world,
        &["get replied 2", "hset replied 1", "other replied 1"],
    );
    world.may_ask(session, &["CLIENT REPLY x"]);
    world.asks(session, &["CLIENT REPLY OFF", "GET k"]);
    world.says(world.shared, "-WRONGTYPE no\r\n");
    assert_eq!(world.got(session), "");
    // respool refuses the question of `may_ask` itself.
    errors.are(
        &mut world,
        &[
            "get replied 3",
            "hset replied 1",
            "other replied 1",
            "other refused 1",
        ],
    );
}

/// The error of a session that is gone counts for no command.
#[test]
fn error_for_a_closed_session_does_not_count() {
    let mut world = World::new(settings());
    let mut errors = Errors::from(&mut world);
    let session = world.accept();
    world.asks(session, &["GET k"]);
    world.turn(|engine| engine.handle_session_lost(session));
    world.says(world.shared, "-WRONGTYPE no\r\n");
    errors.are(&mut world, &[]);
}

/// Requests that left joined count one by one.
#[test]
fn error_of_joined_requests_counts_for_each() {
    let mut world = all_levels();
    let mut errors = Errors::from(&mut world);
    let [a, b] = [world.accept(), world.accept()];
    ask_at_once(
        &mut world,
        &[(a, &["SET k v", "SET l v"]), (b, &["SET m v"])],
    );
    assert!(world.sent(world.shared).contains("MSET"));
    // It does not say that nothing was executed, so no SET is sent again.
    world.says(world.shared, "-ERR perhaps\r\n");
    errors.are(&mut world, &["set replied 3"]);
    let equal = ["HGET h f"; 2];
    ask_at_once(&mut world, &[(a, &equal), (b, &equal)]);
    assert_eq!(world.asked(world.shared).len(), 1);
    world.says(world.shared, "-WRONGTYPE no\r\n");
    errors.are(&mut world, &["hget replied 4", "set replied 3"]);
}

/// GETs that left joined and find nothing are sent again. Only the error of that counts.
#[test]
fn error_behind_a_joined_get_counts_once() {
    let mut world = all_levels();
    let mut errors = Errors::from(&mut world);
    let [a, b] = [world.accept(), world.accept()];
    ask_at_once(&mut world, &[(a, &["GET k"]), (b, &["GET hash"])]);
    assert!(world.sent(world.shared).contains("MGET"));
    world.says(world.shared, "*2\r\n$1\r\nv\r\n$-1\r\n");
    errors.are(&mut world, &[]);
    world.says(world.shared, "-WRONGTYPE no\r\n");
    assert_eq!(world.got(b), "-WRONGTYPE no\r\n");
    errors.are(&mut world, &["get replied 1"]);
}

/// A request for several servers counts once, under its own command, however many shares fail.
#[test]
fn error_of_several_shares_counts_once() {
    for (replies, outcome) in [
        ([Some(":1\r\n"), Some(":1\r\n")], None),
        ([Some("-OOM no\r\n"), Some("-OOM no\r\n")], Some("replied")),
        ([Some(":1\r\n"), Some("-OOM no\r\n")], Some("unknown")),
        ([Some(":1\r\n"), None], Some("unknown")),
        ([None, None], Some("unknown")),
    ] {
        let mut world = World::new(sharded(2));
        let mut errors = Errors::from(&mut world);
        let links = [0, 1].map(|at| world.all_shared[at]);
        let [k, l] = [0, 1].map(|at| world.key_at(at, "k"));
        let session = world.accept();
        world.asks(session, &[&format!("DEL {k} {l}")]);
        for (link, reply) in links.into_iter().zip(replies) {
            match reply {
                Some(reply) => world.says(link, reply),
                None => world.lose(link),
            }
        }
        let expected = outcome.map(|outcome| format!("del {outcome} 1"));
        let expected: Vec<&str> = expected.as_deref().into_iter().collect();
        errors.are(&mut world, &expected);
    }
}

/// Requests that respool refuses count under their command, and queued ones once.
#[test]
fn refused_requests_count_by_command() {
    let mut settings = settings();
    settings.refused.extend([id::HSET, id::LPUSH]);
    let mut world = World::new(settings);
    let session = world.accept();
    world.opens_transactions(session);
    let mut errors = Errors::from(&mut world);
    world.asks(session, &["HSET k f v", "LPUSH k v", "HSET k f v", "EXEC"]);
    errors.are(
        &mut world,
        &["exec refused 1", "hset refused 2", "lpush refused 1"],
    );
    world.asks(session, &["MULTI", "HSET k f v", "EXEC"]);
    assert!(world.got(session).contains("-EXECABORT "));
    errors.are(
        &mut world,
        &["exec refused 2", "hset refused 3", "lpush refused 1"],
    );
    // Bytes that break the protocol are no command.
    world.sends(session, b"*1\r\n$x\r\n");
    errors.are(
        &mut world,
        &[
            "exec refused 2",
            "hset refused 3",
            "lpush refused 1",
            "other refused 1",
        ],
    );
}

/// An error among the results of EXEC is no error of EXEC. Other pieces of its reply that respool
/// puts together are none either.
#[test]
fn error_within_exec_does_not_count() {
    let mut world = World::new(settings());
    let session = world.accept();
    world.opens_transactions(session);
    world.may_ask(session, &["CLIENT ID"]);
    let mut errors = Errors::from(&mut world);
    let block = ["MULTI", "SET k v", "CLIENT ID", "HGET k f", "EXEC"];
    world.asks(session, &block);
    world.says(
        world.shared,
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n-WRONGTYPE no\r\n",
    );
    let (got, sent) = (world.got(session), world.sent(world.shared));
    assert!(got.contains("\r\n-WRONGTYPE no\r\n"), "{got} {sent}");
    errors.are(&mut world, &[]);
    world.asks(session, &["MULTI", "SET k v", "EXEC"]);
    world.says(
        world.shared,
        "+OK\r\n-OOM no\r\n-EXECABORT Transaction discarded\r\n",
    );
    errors.are(&mut world, &["exec replied 1"]);
}

/// Requests that fail count as not sent, or as unknown.
#[test]
fn failed_requests_count_by_outcome() {
    let mut world = World::new(impatient());
    let mut errors = Errors::from(&mut world);
    let [a, b] = [world.accept(), world.accept()];
    world.asks(a, &["GET k"]);
    world.wait_ms(1_200);
    assert!(world.got(a).starts_with("-UNKNOWN "));
    world.says(world.shared, "-WRONGTYPE too late\r\n");
    errors.are(&mut world, &["get unknown 1"]);
    world.asks(a, &["INCR k"]);
    world.lose(world.shared);
    assert!(world.got(a).starts_with("-UNKNOWN "));
    world.asks(b, &["SET k v"]);
    world.wait_ms(1_200);
    assert!(world.got(b).starts_with("-"), "it has failed");
    errors.are(
        &mut world,
        &["get unknown 1", "incr unknown 1", "set not_sent 1"],
    );
}

/// A large request that fails on its way counts under its command, and not under that of the
/// request before it.
#[test]
fn large_request_that_fails_counts() {
    let mut world = World::new(settings());
    let mut errors = Errors::from(&mut world);
    let session = world.accept();
    world.asks(session, &["GET k"]);
    world.says(world.shared, "$1\r\nv\r\n");
    world.sends(session, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$600000\r\n");
    world.sends(session, &[b'x'; 300_000]);
    let own = world.connect();
    world.lose(own);
    world.wait_ms(100);
    assert!(world.got(session).contains("-NOTSENT "));
    errors.are(&mut world, &["set not_sent 1"]);
}

/// A polled command counts once: its error at the server, or its end by CLIENT UNBLOCK.
#[test]
fn polled_command_counts_its_error() {
    let (mut world, waits) = World::with_polled_commands();
    let mut errors = Errors::from(&mut world);
    world.asks(waits, &["BLPOP q 10"]);
    for result in ["*-1", "-WRONGTYPE no"] {
        assert!(world.sent(world.shared).contains("BLPOP"));
        let said = format!("+OK\r\n+QUEUED\r\n*1\r\n{result}\r\n");
        world.says(world.shared, said);
        world.wait_ms(150);
    }
    assert_eq!(world.got(waits), "-WRONGTYPE no\r\n");
    errors.are(&mut world, &["blpop replied 1"]);
}

/// A redirect that respool follows does not count. One that reaches the client does.
#[test]
fn redirect_counts_if_the_client_gets_it() {
    let (mut world, [first, second], key, session) = two_nodes();
    let mut errors = Errors::from(&mut world);
    let moved = format!("-MOVED {} server:2\r\n", slot(&key));
    world.asks(session, &[&format!("GET {key}")]);
    world.says(first, &moved);
    world.turn(|_| {});
    assert!(world.sent(second).contains(&key));
    world.says(second, "$1\r\nv\r\n");
    assert_eq!(world.got(session), "$1\r\nv\r\n");
    errors.are(&mut world, &[]);
    // The script wrote it.
    let (mut world, [first, _], key, session) = two_nodes();
    let mut errors = Errors::from(&mut world);
    world.asks(session, &[&format!("EVAL body 1 {key}")]);
    world.says(first, &moved);
    errors.are(&mut world, &[]);
    world.says(first, ":0\r\n");
    assert_eq!(world.got(session), moved);
    errors.are(&mut world, &["eval replied 1"]);
}

//! Requests that wait for a link of another session: each has a deadline, and each holder must use
//! its link.

use respool_engine::settings::Settings;
use respool_engine::{CloseReason, Event, Fate, LinkId, SessionId};

use crate::world::{World, requests, settings, sharded};

/// Settings with a request timeout of a second.
fn impatient() -> Settings {
    let mut settings = settings();
    settings.timeouts.request_ms = 1_000;
    settings.limits.streaming_links_max = 1;
    settings.limits.pinned_links_max = 1;
    settings
}

/// A WAIT without a link gets an error at its own timeout: no server was asked for a number.
#[test]
fn wait_without_a_link_is_not_sent() {
    for (asked, is_late) in [
        ("WAIT 1 200", false),
        ("WAITAOF 0 1 200", false),
        ("WAIT 1 0", true),
    ] {
        let mut world = World::new(impatient());
        let [holds, waits] = [world.accept(), world.accept()];
        world.asks(holds, &["BLPOP q 0"]);
        let own = world.connect();
        world.turn(|_| {});
        assert!(world.sent(own).contains("BLPOP"));
        world.asks(waits, &[asked]);
        world.wait_ms(150);
        assert_eq!(world.got(waits), "");
        world.wait_ms(if is_late { 1_000 } else { 100 });
        let got = world.got(waits);
        assert!(
            got.starts_with("-NOTSENT ") && got.contains("pinned-links-max"),
            "{got}"
        );
        assert!(!world.sent(world.shared).contains("WAIT"));
    }
}

/// The beginning of a SET of 600,000 bytes.
fn beginning(key: &str) -> Vec<u8> {
    beginning_of(key, 600_000)
}

/// The first 300,000 bytes of a SET of `bytes` bytes.
fn beginning_of(key: &str, bytes: usize) -> Vec<u8> {
    let head = format!("*3\r\n$3\r\nSET\r\n$1\r\n{key}\r\n${bytes}\r\n");
    [head.as_bytes(), &[b'x'; 300_000]].concat()
}

/// A session uploads, on a streaming link that is up.
fn uploads(world: &mut World, key: &str) -> (SessionId, LinkId) {
    let session = world.accept();
    world.sends(session, &beginning(key));
    (session, world.connect())
}

/// Sends bytes of an upload for a while, as fast as `bytes_per_s`.
fn goes_on(world: &mut World, (session, link): (SessionId, LinkId), bytes_per_s: usize, ms: usize) {
    for _ in 0..ms / 50 {
        world.sends(session, &vec![b'x'; bytes_per_s / 20]);
        world.sent(link);
        world.wait_ms(50);
    }
}

fn bounds_told(world: &World) -> Vec<&'static str> {
    let told = |event: &Event| match event {
        Event::BoundReached { name, .. } => Some(*name),
        _ => None,
    };
    world.events.iter().filter_map(told).collect()
}

/// A fast upload keeps its link; a large request that waits for one fails at its deadline, unsent.
#[test]
fn large_request_that_finds_no_link_fails_at_its_deadline() {
    let mut world = World::new(impatient());
    let fast = world.accept();
    world.sends(fast, &beginning_of("a", 10_000_000));
    let link = world.connect();
    let waiting = world.accept();
    world.sends(waiting, &beginning("b"));
    assert!(world.connecting().is_empty());
    goes_on(&mut world, (fast, link), 5_000_000, 1_100);
    let got = world.got(waiting);
    assert!(got.starts_with("-NOTSENT"), "{got}");
    assert!(got.contains("streaming-links-max"), "{got}");
    assert_eq!(bounds_told(&world), ["streaming-links-max"]);
    assert_eq!(world.engine.counters().streaming_links_full, 1);
    // The rest of the request is dropped, and later requests are answered.
    world.sends(
        waiting,
        &[&[b'x'; 300_000][..], b"\r\n", &requests(&["GET k"])].concat(),
    );
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&["GET k"]));
    world.sends(
        fast,
        &[&vec![b'x'; 9_700_000 - 5_500_000][..], b"\r\n"].concat(),
    );
    world.says(link, "+OK\r\n");
    assert_eq!(world.got(fast), "+OK\r\n");
}

/// The client of a slow upload gets an error and is closed, and the server drops its part of the
/// request.
#[test]
fn slow_upload_loses_its_link_once_another_request_waits() {
    let mut settings = impatient();
    settings.timeouts.request_ms = 10_000;
    let mut world = World::new(settings);
    let (slow, link) = uploads(&mut world, "a");
    world.wait_ms(3_000);
    assert!(
        world.closed_links().is_empty(),
        "an upload without a waiting request may be slow"
    );
    let waiting = world.accept();
    world.sends(waiting, &beginning("b"));
    for _ in 0..10 {
        world.sends(slow, b"x");
        world.wait_ms(100);
    }
    world.wait_ms(100);
    assert_eq!(world.closed_links(), [link]);
    let got = world.got(slow);
    assert!(got.starts_with("-NOTSENT"), "{got}");
    assert!(got.contains("streaming-links-max"), "{got}");
    assert_eq!(world.closed_sessions(), [slow]);
    assert_eq!(world.engine.counters().slow_uploads_ended, 1);
    let link = world.connect();
    world.sends(waiting, &[&[b'x'; 300_000][..], b"\r\n"].concat());
    world.says(link, "+OK\r\n");
    assert_eq!(world.got(waiting), "+OK\r\n");
}

/// An upload of a moderate rate loses its link to a waiting request after a time.
#[test]
fn upload_of_moderate_rate_loses_its_link_after_its_time() {
    let mut settings = impatient();
    settings.timeouts.request_ms = 10_000;
    let mut world = World::new(settings);
    let moderate = world.accept();
    world.sends(moderate, &beginning_of("a", 100_000_000));
    let link = world.connect();
    goes_on(&mut world, (moderate, link), 200_000, 10_000);
    let waiting = world.accept();
    world.sends(waiting, &beginning("b"));
    goes_on(&mut world, (moderate, link), 200_000, 4_900);
    assert!(world.closed_links().is_empty());
    goes_on(&mut world, (moderate, link), 200_000, 200);
    assert_eq!(world.closed_links(), [link]);
    assert!(world.got(moderate).starts_with("-NOTSENT"));
    let link = world.connect();
    world.sends(waiting, &[&[b'x'; 300_000][..], b"\r\n"].concat());
    world.says(link, "+OK\r\n");
    assert_eq!(world.got(waiting), "+OK\r\n");
}

/// A session that comes just when a link is given back does not overtake one that waits for it.
#[test]
fn newcomer_takes_no_link_that_a_session_waits_for() {
    let mut world = World::new(impatient());
    let [first, waiting, newcomer] = [(); 3].map(|()| world.accept());
    world.asks(first, &["WATCH a"]);
    let link = world.connect();
    world.says(link, "+OK\r\n");
    world.asks(waiting, &["WATCH b"]);
    world.asks(first, &["UNWATCH"]);
    world.sent(link);
    world.turn(|engine| {
        engine.handle_link_bytes(link, b"+OK\r\n");
        engine.handle_session_bytes(newcomer, &requests(&["WATCH c"]));
    });
    assert_eq!(world.asked(link), [["WATCH", "b"]]);
    world.wait_ms(50);
    assert!(world.asked(link).is_empty());
}

/// SCRIPT KILL goes to all servers at once. It waits for emergency links, so uploads do not wait
/// for it.
#[test]
fn upload_overtakes_a_command_that_waits_for_emergency_links() {
    let mut settings = sharded(3);
    settings.timeouts.request_ms = 1_000;
    // Fewer streaming links than servers.
    settings.limits.streaming_links_max = 2;
    let mut world = World::new(settings);
    let operators: Vec<_> = (0..3).map(|_| world.accept()).collect();
    for operator in &operators {
        world.asks(*operator, &["SCRIPT KILL"]);
    }
    assert_eq!(world.got(operators[2]), "", "the request waits");
    let links = world.connecting();
    assert_eq!(links.len(), 6, "two to each server");
    links.iter().for_each(|link| world.up(*link));
    let uploader = world.accept();
    world.sends(uploader, &beginning("a"));
    assert_eq!(world.connecting().len(), 1);
    for _ in 0..2 {
        for link in &links {
            if world.sent(*link).as_bytes() == requests(&["SCRIPT KILL"]) {
                world.says(*link, "+OK\r\n");
            }
        }
        world.wait_ms(50);
    }
    for operator in operators {
        assert_eq!(world.got(operator), "+OK\r\n");
    }
}

/// A subscriber that takes no output waits for a link, too.
#[test]
fn deaf_session_keeps_no_link_from_the_next_one() {
    let mut world = World::new(impatient());
    let [first, deaf, waiting] = [(); 3].map(|()| world.accept());
    world.asks(deaf, &["HELLO 3"]);
    world.connect();
    world.asks(deaf, &["SUBSCRIBE news"]);
    let hub = world.connect();
    world.says(hub, ">3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
    world.asks(first, &["WATCH a"]);
    let link = world.connect();
    world.says(link, "+OK\r\n");
    world.asks(deaf, &["BLPOP q 0"]);
    world.asks(waiting, &["WATCH b"]);
    let text = "x".repeat(2_000_000);
    let message = format!(">3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$2000000\r\n{text}\r\n");
    world.slow.insert(deaf);
    world.says(hub, message);
    world.asks(first, &["UNWATCH"]);
    world.sent(link);
    world.says(link, "+OK\r\n");
    assert_eq!(world.asked(link), [["WATCH", "b"]]);
}

/// Idle links of other sessions do not raise the bound of streaming links.
#[test]
fn spare_links_count_as_streaming_links_do() {
    let mut settings = impatient();
    settings.limits.pinned_links_max = 10;
    let mut world = World::new(settings);
    let mut own = Vec::new();
    for _ in 0..3 {
        let watches = world.accept();
        world.asks(watches, &["WATCH k"]);
        let link = world.connect();
        world.says(link, "+OK\r\n");
        own.push((watches, link));
    }
    for (watches, link) in own {
        world.asks(watches, &["UNWATCH"]);
        world.says(link, "+OK\r\n");
        assert_eq!(world.got(watches), "+OK\r\n+OK\r\n");
    }
    let all: Vec<_> = (0..3).map(|_| world.accept()).collect();
    for session in &all {
        world.sends(*session, &beginning("a"));
    }
    world.wait_ms(100);
    assert_eq!(bounds_told(&world), ["streaming-links-max"]);
    assert_eq!(world.engine.counters().streaming_links_full, 2);
}

/// BLPOP may hold its link for ever, so other requests that need one fail at their deadline.
#[test]
fn request_without_a_pinned_link_fails_at_its_deadline() {
    for asked in [
        "WATCH k",
        "BLPOP k 0",
        "MONITOR",
        "CLIENT TRACKING ON BCAST",
    ] {
        let mut world = World::new(impatient());
        let first = world.accept();
        world.asks(first, &["BLPOP a 0"]);
        world.connect();
        let other = world.accept();
        if asked.starts_with("CLIENT") {
            world.asks(other, &["HELLO 3"]);
            world.connect();
            world.got(other);
        }
        world.asks(other, &[asked]);
        world.wait_ms(900);
        assert_eq!(world.got(other), "", "{asked}");
        world.wait_ms(150);
        let got = world.got(other);
        assert!(got.starts_with("-NOTSENT"), "{asked}: {got}");
        assert!(got.contains("pinned-links-max"), "{asked}: {got}");
        assert_eq!(bounds_told(&world), ["pinned-links-max"]);
    }
}

/// Waits in BLPOP now and then do not restart the time of a WATCH.
#[test]
fn busy_watch_gives_its_link_up_at_an_idle_moment() {
    let mut settings = impatient();
    settings.timeouts.request_ms = 10_000;
    let mut world = World::new(settings);
    let holder = world.accept();
    world.asks(holder, &["WATCH k"]);
    let own = world.connect();
    world.says(own, "+OK\r\n");
    let other = world.accept();
    world.asks(other, &["WATCH k"]);
    for _ in 0..2 {
        world.wait_ms(1_300);
        world.asks(holder, &["BLPOP none 0.1"]);
        world.wait_ms(100);
        world.says(own, "*-1\r\n");
    }
    assert!(world.closed_links().is_empty());
    world.wait_ms(300);
    assert_eq!(world.closed_links(), [own]);
}

/// A session that watches and sends nothing loses its link to a waiting session. Its EXEC answers
/// nil.
#[test]
fn idle_watch_gives_its_link_up_once_another_session_waits() {
    let mut settings = impatient();
    settings.timeouts.request_ms = 10_000;
    let mut world = World::new(settings);
    let idle = world.accept();
    world.asks(idle, &["WATCH k"]);
    let own = world.connect();
    world.says(own, "+OK\r\n");
    world.got(idle);
    world.wait_ms(20_000);
    assert!(world.closed_links().is_empty(), "no session waits");
    let other = world.accept();
    world.asks(other, &["WATCH k"]);
    world.wait_ms(2_900);
    assert!(world.closed_links().is_empty());
    world.wait_ms(200);
    assert_eq!(world.closed_links(), [own]);
    let own = world.connect();
    world.says(own, "+OK\r\n");
    assert_eq!(world.got(other), "+OK\r\n");
    world.asks(idle, &["MULTI", "SET k v", "EXEC"]);
    // First the server is asked for its commands, then whether this user may open transactions.
    for said in ["-NOPERM no\r\n", "+OK\r\n*0\r\n"] {
        if !world.sent(world.shared).is_empty() {
            world.says(world.shared, said);
        }
    }
    let got = world.got(idle);
    assert!(got.ends_with("*-1\r\n"), "{got}");
    assert_eq!(world.engine.counters().watches_ended, 1);
}

/// SCRIPT KILL must not wait for links of other sessions, in a pool of one server or of several.
#[test]
fn script_kill_needs_no_link_of_other_sessions() {
    for mut settings in [settings(), sharded(2)] {
        settings.limits.streaming_links_max = 2;
        settings.limits.pinned_links_max = 1;
        let mut world = World::new(settings);
        let holder = world.accept();
        world.asks(holder, &["BLPOP a 0"]);
        world.connect();
        for key in ["a", "b"] {
            let session = world.accept();
            world.sends(session, &beginning(key));
            world.connect();
        }
        let servers = world.all_shared.len();
        let mut links = Vec::new();
        for round in 0..3 {
            let operators: Vec<_> = (0..3).map(|_| world.accept()).collect();
            for operator in &operators {
                world.asks(*operator, &["SCRIPT KILL"]);
            }
            // The links of the first round serve the next ones, too.
            for link in world.connecting() {
                assert_eq!(round, 0);
                world.up(link);
                links.push(link);
            }
            assert_eq!(links.len(), 2 * servers, "two to each server");
            let (mut answered, mut most) = (0, 0);
            loop {
                let asked: Vec<_> = links
                    .iter()
                    .copied()
                    .filter(|link| world.sent(*link).as_bytes() == requests(&["SCRIPT KILL"]))
                    .collect();
                if asked.is_empty() {
                    break;
                }
                most = most.max(asked.len());
                answered += asked.len();
                for link in asked {
                    world.says(link, "+OK\r\n");
                }
            }
            assert_eq!(most, 2 * servers);
            assert_eq!(
                answered,
                3 * servers,
                "the third command waited for its turn"
            );
            for operator in operators {
                assert_eq!(world.got(operator), "+OK\r\n");
            }
        }
        assert!(world.closed_links().is_empty());
        for _ in 0..12 {
            world.wait_ms(1_000);
        }
        let closed = world.closed_links();
        assert!(links.iter().all(|link| closed.contains(link)), "{closed:?}");
    }
}

/// On a full link other requests wait until their deadline, and not until the link is given up.
#[test]
fn request_that_finds_its_link_full_fails_at_its_deadline() {
    for mut settings in [settings(), sharded(2)] {
        settings.timeouts.request_ms = 1_000;
        settings.timeouts.link_stall_ms = 60_000;
        settings.limits.link_unanswered_requests_max = 2;
        let mut world = World::new(settings);
        let key = world.key_at(0, "k");
        let (get, llen) = (format!("GET {key}"), format!("LLEN {key}"));
        let first: Vec<_> = (0..2).map(|_| world.accept()).collect();
        let waiting = world.accept();
        for session in &first {
            world.asks(*session, &[&llen]);
        }
        world.sent(world.shared);
        world.asks(waiting, &[&get]);
        world.wait_ms(600);
        assert_eq!(world.got(waiting), "");
        world.wait_ms(600);
        let got = world.got(waiting);
        assert!(got.starts_with("-NOTSENT"), "{got}");
        for session in &first {
            assert!(world.got(*session).starts_with("-UNKNOWN"));
        }
        assert!(!world.sent(world.shared).contains("GET"));
        world.says(world.shared, ":0\r\n:0\r\n");
        world.asks(waiting, &[&get]);
        assert_eq!(world.sent(world.shared).as_bytes(), requests(&[&get]));
        world.says(world.shared, "$1\r\nv\r\n");
        assert_eq!(world.got(waiting), "$1\r\nv\r\n");
    }
}

/// A session waits in BLPOP on the only pinned link. The server allows transactions, and respool
/// knows it.
fn take_the_only_link(world: &mut World, blocks: SessionId) {
    let session = world.accept();
    world.asks(session, &["MULTI"]);
    world.allows_transactions(world.shared);
    world.turn(|engine| engine.handle_session_lost(session));
    world.asks(blocks, &["BLPOP idle 0"]);
    world.connect();
}

/// At the bound of pinned links the server answers a blocking command by polls.
#[test]
fn blocking_command_beyond_the_bound_is_polled() {
    let mut world = World::new(impatient());
    let [blocks, first, second] = [0; 3].map(|_| world.accept());
    take_the_only_link(&mut world, blocks);
    world.asks(first, &["BLPOP ready 0", "GET k"]);
    world.asks(second, &["BRPOP none 1"]);
    let polls = |request: &str| requests(&["MULTI", request, "EXEC"]);
    let nil = "+OK\r\n+QUEUED\r\n*1\r\n*-1\r\n";
    let element = "*2\r\n$5\r\nready\r\n$1\r\nx\r\n";
    world.turn(|_| {});
    let sent = [polls("BLPOP ready 0"), polls("BRPOP none 1")].concat();
    assert_eq!(world.sent(world.shared).as_bytes(), sent);
    for _ in 0..3 {
        world.says(world.shared, nil.repeat(2));
        assert_eq!([first, second].map(|session| world.got(session)), ["", ""]);
        world.wait_ms(150);
        assert_eq!(world.sent(world.shared).as_bytes(), sent);
    }
    let found = format!("+OK\r\n+QUEUED\r\n*1\r\n{element}");
    world.says(world.shared, format!("{found}{nil}"));
    assert_eq!(world.got(first), element);
    world.turn(|_| {});
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&["GET k"]));
    world.says(world.shared, "$1\r\nv\r\n");
    assert_eq!(world.got(first), "$1\r\nv\r\n");
    for _ in 0..8 {
        world.wait_ms(100);
        if !world.sent(world.shared).is_empty() {
            world.says(world.shared, nil);
        }
    }
    assert_eq!(
        world.got(second),
        "*-1\r\n",
        "its timeout of a second is over"
    );
    assert_eq!(world.engine.counters().held_bytes, 0);
    assert!(bounds_told(&world).contains(&"pinned-links-max"));
}

/// Requests wait for a server that was lost.
fn holding() -> Settings {
    let mut settings = impatient();
    settings.timeouts.outage_hold_ms = 2_000;
    settings
}

/// When the link of a poll is lost, the server may have removed an element.
#[test]
fn session_that_polls_is_closed_with_its_link() {
    let mut world = World::new(impatient());
    let [blocks, polls] = [0; 2].map(|_| world.accept());
    take_the_only_link(&mut world, blocks);
    world.asks(polls, &["BLPOP ready 0"]);
    world.turn(|_| {});
    assert!(world.sent(world.shared).contains("BLPOP"));
    world.lose(world.shared);
    world.turn(|_| {});
    let text = "connection to server:1 lost: gone".into();
    let fate = Fate::Unknown;
    let lost = CloseReason::ServerLost { text, fate };
    assert_eq!(world.close_reason(polls), Some(lost));
    assert_eq!(world.got(polls), "");
    assert_eq!(world.engine.counters().held_bytes, 0);
}

/// A session polls. Its server is lost between two polls, and refuses connections for `ms`.
fn refused_between_polls(ms: u32) -> (World, SessionId) {
    let mut world = World::new(holding());
    let [blocks, polls] = [0; 2].map(|_| world.accept());
    take_the_only_link(&mut world, blocks);
    world.asks(polls, &["BLPOP ready 0"]);
    assert!(world.sent(world.shared).contains("BLPOP"));
    world.says(world.shared, "+OK\r\n+QUEUED\r\n*1\r\n*-1\r\n");
    world.lose(world.shared);
    for _ in 0..ms / 100 {
        for link in world.connecting() {
            world.lose(link);
        }
        world.wait_ms(100);
    }
    (world, polls)
}

/// A poll that has not left when its link is lost waits for the server, and is sent once.
#[test]
fn poll_that_has_not_left_waits_for_the_server() {
    let (mut world, polls) = refused_between_polls(500);
    assert!(!world.closed_sessions().contains(&polls));
    world.connect();
    world.wait_ms(150);
    let poll = requests(&["MULTI", "BLPOP ready 0", "EXEC"]);
    assert_eq!(world.sent(world.shared).as_bytes(), poll);
    let element = "*2\r\n$5\r\nready\r\n$1\r\ne\r\n";
    world.says(world.shared, format!("+OK\r\n+QUEUED\r\n*1\r\n{element}"));
    assert_eq!(world.got(polls), element);
}

/// When the outage lasts, a session that polls is closed, and no poll is sent later.
#[test]
fn session_that_polls_is_closed_when_the_outage_lasts() {
    let (mut world, polls) = refused_between_polls(3_000);
    let text = "no connection to server:1: gone".into();
    let fate = Fate::NotSent;
    let lost = CloseReason::ServerLost { text, fate };
    assert_eq!(world.close_reason(polls), Some(lost));
    assert_eq!(world.engine.counters().held_bytes, 0);
    for link in world.connecting() {
        world.up(link);
        world.wait_ms(150);
        assert!(!world.sent(link).contains("BLPOP"));
    }
}

/// A blocking command that was sent may have been executed: its session is closed, and a caller in
/// the same process is told so.
#[test]
fn session_that_waits_at_a_lost_server_is_closed_with_its_fate() {
    let mut world = World::new(holding());
    let session = world.accept();
    world.asks(session, &["BLPOP list 0"]);
    let link = world.connect();
    assert!(world.sent(link).contains("BLPOP"));
    world.lose(link);
    let text = "connection to server:1 lost: gone".into();
    let fate = Fate::Unknown;
    let lost = CloseReason::ServerLost { text, fate };
    assert_eq!(world.close_reason(session), Some(lost));
    assert_eq!(world.got(session), "");
}

/// Each poll of XREAD would begin after the entries that came before it.
#[test]
fn read_behind_the_last_entry_is_not_polled() {
    let mut world = World::new(impatient());
    let [blocks, reads] = [0; 2].map(|_| world.accept());
    take_the_only_link(&mut world, blocks);
    world.asks(reads, &["XREAD BLOCK 0 STREAMS s $"]);
    world.wait_ms(1_100);
    assert_eq!(world.sent(world.shared), "");
    assert!(world.got(reads).starts_with("-NOTSENT"));
}

/// SHUTDOWN must not wait for the script that it is meant to end. Its client is closed, as by the
/// server.
#[test]
fn shutdown_finds_a_link_though_all_are_taken() {
    let mut world = World::new(impatient());
    let first = world.accept();
    world.asks(first, &["BLPOP a 0"]);
    world.connect();
    let busy = world.accept();
    world.asks(busy, &["EVAL loop 0"]);
    world.connect();
    let operator = world.accept();
    world.asks(operator, &["SHUTDOWN NOSAVE"]);
    let link = world.connect();
    assert_eq!(world.sent(link).as_bytes(), requests(&["SHUTDOWN NOSAVE"]));
    world.lose(link);
    assert_eq!(world.got(operator), "");
    assert_eq!(world.closed_sessions(), [operator]);
}

/// The error of a server that refuses SHUTDOWN reaches the client.
#[test]
fn shutdown_that_is_refused_closes_no_session() {
    let mut world = World::new(impatient());
    let operator = world.accept();
    world.asks(operator, &["SHUTDOWN"]);
    let link = world.connect();
    world.says(link, "-ERR Errors trying to SHUTDOWN. Check logs.\r\n");
    assert!(world.got(operator).starts_with("-ERR Errors"));
    assert!(world.closed_sessions().is_empty());
}

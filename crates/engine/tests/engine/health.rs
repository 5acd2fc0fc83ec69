//! Servers that are away: attempts to connect, requests that wait, and INFO.

use std::collections::HashSet;

use crate::world::{World, pool_of, settings, worker};
use respool_engine::{LinkId, SessionId, WorkerId};

/// A world with links to two databases of its only server, both up for long, and a session on each.
fn two_links() -> (World, [LinkId; 2], [SessionId; 2]) {
    let mut world = World::new(settings());
    let sessions = [world.accept(), world.accept()];
    world.may_ask(sessions[1], &["SELECT respool"]);
    world.asks(sessions[1], &["SELECT 5"]);
    let other = world.connect();
    world.wait_ms(1_500);
    assert_eq!(world.got(sessions[1]), "+OK\r\n");
    let links = [world.shared, other];
    (world, links, sessions)
}

/// All links of a server are lost, and it refuses every connection.
fn dies(world: &mut World, links: [LinkId; 2]) {
    links.into_iter().for_each(|link| world.lose(link));
    let tried = world.connecting();
    assert_eq!(tried.len(), 2, "links that were stable are tried at once");
    tried.into_iter().for_each(|link| world.lose(link));
}

/// Waits until links are tried again. Returns them.
fn next_tried(world: &mut World) -> Vec<LinkId> {
    loop {
        world.wait_ms(50);
        let tried = world.connecting();
        if !tried.is_empty() {
            return tried;
        }
    }
}

/// respool's section of INFO. The server allows INFO if it is asked.
fn info(world: &mut World, session: SessionId) -> String {
    world.asks(session, &["INFO respool"]);
    if !world.sent(world.shared).is_empty() {
        world.says(world.shared, "+OK\r\n");
    }
    world.got(session)
}

/// The line of INFO about a server.
fn line(world: &mut World, session: SessionId, index: usize) -> String {
    let info = info(world, session);
    let name = format!("respool_server_{index}:");
    let line = info.lines().find_map(|line| line.strip_prefix(&name));
    line.unwrap_or_else(|| panic!("{name} in {info}"))
        .to_owned()
}

fn has(line: &str, fields: &[&str]) {
    for field in fields {
        let found = line.split(',').any(|one| one == *field);
        assert!(found, "{field} in {line}");
    }
}

/// One link at a time tries a server that is away. Requests for all its links fail at once.
#[test]
fn one_link_tries_an_away_server_and_others_fail_at_once() {
    let (mut world, links, sessions) = two_links();
    dies(&mut world, links);
    let mut attempts = 0;
    for _ in 0..200 {
        world.wait_ms(50);
        let tried = world.connecting();
        assert!(tried.len() <= 1, "one link tries: {tried:?}");
        attempts += tried.len();
        for session in sessions {
            world.asks(session, &["GET k"]);
        }
        tried.into_iter().for_each(|link| world.lose(link));
        for session in sessions {
            let got = world.got(session);
            assert!(got.starts_with("-NOTSENT "), "{got}");
            assert!(got.contains("gone"), "{got}");
        }
    }
    // Ten seconds have pauses of 20, 40 ... 2,000 ms, each at least half as long.
    assert!((5..=18).contains(&attempts), "{attempts}");
    // A request that needs a link of another kind causes no attempt.
    for request in ["SELECT 7", "BLPOP k 0", "GET k", "HELLO 3"] {
        let third = world.accept();
        world.asks(third, &[request]);
        world.turn(|_| {});
        world.turn(|_| {});
        let told = world.got(third);
        let closes = matches!(request, "HELLO 3" | "BLPOP k 0");
        assert_eq!(told.starts_with("-NOTSENT "), !closes, "{request}: {told}");
        assert_eq!(world.closed_sessions().contains(&third), closes);
        assert!(world.connecting().is_empty(), "{request} knocks");
    }
}

/// When one link of a server is up again, all its other links connect at once.
#[test]
fn links_reconnect_at_once_when_one_is_up_again() {
    let (mut world, links, sessions) = two_links();
    dies(&mut world, links);
    let mut tried = next_tried(&mut world);
    assert_eq!(tried.len(), 1);
    // A few more failures, so that the other link has a long pause.
    for _ in 0..8 {
        tried.into_iter().for_each(|link| world.lose(link));
        tried = next_tried(&mut world);
    }
    let first = tried[0];
    world.up(first);
    let other = world.connect();
    assert!(links.contains(&first) && links.contains(&other) && first != other);
    for session in sessions {
        world.asks(session, &["GET k"]);
    }
    for link in links {
        world.wait_ms(50);
        assert!(world.sent(link).contains("GET"));
        world.says(link, "$1\r\nv\r\n");
    }
    assert_eq!(
        sessions.map(|session| world.got(session)),
        ["$1\r\nv\r\n"; 2]
    );
}

/// Loses these links and every attempt at them until the pauses do not double any more. Returns the
/// pauses then, milliseconds.
fn rests_ms(world: &mut World, links: &[LinkId]) -> Vec<u64> {
    // 20 ms, doubled seven times, are more than the longest pause of 2,000 ms.
    const DOUBLED: usize = 8;
    world.wait_ms(1_500);
    links.iter().for_each(|link| world.lose(*link));
    let mut failures = vec![0; links.len()];
    let mut rest_since = vec![None; links.len()];
    let mut rests_ms = vec![None; links.len()];
    while rests_ms.contains(&None) {
        for link in world.connecting() {
            let at = links.iter().position(|its| *its == link);
            let at = at.expect("the engine has no other links");
            if let Some(since) = rest_since[at] {
                rests_ms[at].get_or_insert(world.now.since_ms(since));
            }
            failures[at] += 1;
            if failures[at] > DOUBLED {
                rest_since[at] = Some(world.now);
            }
            world.lose(link);
        }
        world.wait_ms(50);
    }
    rests_ms.into_iter().flatten().collect()
}

/// Each pause with jitter is between half and the whole of the longest one, by ticks of 50 ms. Few
/// are equal.
fn are_spread(rests_ms: &[u64]) {
    for rest_ms in rests_ms {
        assert!((1_000..=2_000 + 100).contains(rest_ms), "{rests_ms:?}");
    }
    let different: HashSet<&u64> = rests_ms.iter().collect();
    assert!(different.len() >= rests_ms.len() / 3, "{rests_ms:?}");
}

/// Workers that lose a server at the same time do not try it at the same times.
#[test]
fn workers_spread_their_attempts_to_connect() {
    let rest_ms = |seed| {
        let worker = WorkerId {
            seed,
            ..worker(0, 12)
        };
        let mut world = World::new_among(worker, settings());
        let link = world.shared;
        rests_ms(&mut world, &[link])[0]
    };
    let seeds = (1..=12_u64).map(|worker| worker.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    are_spread(&seeds.map(rest_ms).collect::<Vec<_>>());
}

/// A worker that loses several servers at the same time does not try them at the same times.
#[test]
fn attempts_to_several_lost_servers_are_spread() {
    let mut world = World::new(pool_of(12));
    let links = world.all_shared.clone();
    are_spread(&rests_ms(&mut world, &links));
}

/// No request waits for a slow attempt to connect to a server that was away before. The kernel of a
/// dead machine does not answer. That of a stopped process accepts the connection.
#[test]
fn slow_attempt_holds_no_request_of_an_away_server() {
    for accepts in [false, true] {
        let (mut world, links, sessions) = two_links();
        dies(&mut world, links);
        let tried = next_tried(&mut world);
        let probe = tried[0];
        let mine = sessions[links
            .iter()
            .position(|link| *link == probe)
            .expect("the probe is a link of a session")];
        world.asks(mine, &["GET soon"]);
        assert_eq!(world.got(mine), "", "the server may be back");
        world.wait_ms(100);
        if accepts {
            world.turn(|engine| engine.handle_link_up(probe));
        }
        world.wait_ms(50);
        let got = world.got(mine);
        assert!(got.starts_with("-NOTSENT "), "{got}");
        world.asks(mine, &["GET later"]);
        let got = world.got(mine);
        assert!(got.starts_with("-NOTSENT "), "{got}");
        // The server answers after all.
        if !accepts {
            world.turn(|engine| engine.handle_link_up(probe));
        }
        let hello = world.sent(probe);
        assert!(
            !hello.contains("GET"),
            "a failed request is not sent: {hello}"
        );
        let selects = if hello.contains("SELECT") {
            "+OK\r\n"
        } else {
            ""
        };
        world.says(probe, [crate::world::HELLO, selects].concat());
        world.asks(mine, &["GET now"]);
        assert!(world.sent(probe).contains("now"));
        world.says(probe, "$1\r\nv\r\n");
        assert_eq!(world.got(mine), "$1\r\nv\r\n");
    }
}

/// While one link of a server is up, a link that cannot connect does not make the server count as
/// away.
#[test]
fn failing_link_beside_one_that_is_up_fails_alone() {
    let (mut world, [first, other], sessions) = two_links();
    world.lose(other);
    let tried = world.connecting();
    assert_eq!(tried, [other]);
    world.lose(other);
    let third = world.accept();
    world.may_ask(third, &["SELECT respool"]);
    world.asks(third, &["SELECT 7"]);
    let third_link = world.connect();
    assert!(![first, other].contains(&third_link));
    assert_eq!(world.got(third), "+OK\r\n");
    world.asks(sessions[0], &["GET k"]);
    assert!(world.sent(first).contains("GET"));
}

/// INFO counts the failures of each server, in all and in a row. An answer clears those in a row.
#[test]
fn info_counts_failures_in_all_and_in_a_row() {
    let mut world = World::new(pool_of(2));
    let session = world.accept();
    world.wait_ms(1_500);
    let second = world.all_shared[1];
    let line_0 = "address=server:1,pool=default,role=primary,state=up,links=1,failures=0,failures_total=0,lost_total=0,last_failure_ms_ago=-1,login=accepted,\
                  wait_us=200,wait_reason=flush-rule,waits_for=flush-rule,utilization=-1,occupancy=0.00";
    assert_eq!(line(&mut world, session, 0), line_0);
    world.lose(second);
    world.connecting();
    for _ in 0..3 {
        world.lose(second);
        while world.connecting().is_empty() {
            world.wait_ms(50);
        }
    }
    let away = line(&mut world, session, 1);
    let counted = ["failures=3", "failures_total=3", "lost_total=1"];
    has(&away, &[&counted[..], &["state=connecting"]].concat());
    assert_eq!(world.engine.counters().servers_down, 1);
    world.lose(second);
    let away = line(&mut world, session, 1);
    has(&away, &["state=backoff", "failures=4"]);
    while world.connecting().is_empty() {
        world.wait_ms(50);
    }
    world.up(second);
    let up = line(&mut world, session, 1);
    has(
        &up,
        &["state=up", "failures=0", "failures_total=4", "lost_total=1"],
    );
    assert!(!up.contains("ago=-1"), "{up}");
    assert_eq!(line(&mut world, session, 0), line_0);
    assert_eq!(world.engine.counters().servers_down, 0);
}

/// INFO shows a bounded number of servers, those in trouble first.
#[test]
fn info_shows_a_bounded_number_of_servers() {
    let mut settings = pool_of(300);
    settings.limits.links_max = 300;
    let mut world = World::new(settings);
    let session = world.accept();
    let away = world.all_shared[299];
    world.lose(away);
    let info = info(&mut world, session);
    assert!(info.contains("respool_servers:300\r\n"), "{info}");
    let lines: Vec<_> = info
        .lines()
        .filter(|line| line.starts_with("respool_server_"))
        .collect();
    assert_eq!(lines.len(), respool_engine::limits::SERVERS_SHOWN_MAX);
    assert!(lines[0].contains("address=server:300"), "{}", lines[0]);
}

/// The old connection of a link that was given up ends in the same turn. That does not end the next
/// connection.
#[test]
fn late_end_of_an_old_connection_is_ignored() {
    let mut world = World::new(settings());
    let (link, session) = (world.shared, world.accept());
    world.wait_ms(1_100);
    world.asks(session, &["INCR k"]);
    world.turn(|engine| {
        engine.handle_link_bytes(link, b"?\r\n");
        engine.handle_link_lost(link, "reset");
    });
    assert!(world.got(session).starts_with("-UNKNOWN "));
    assert_eq!(world.engine.counters().links_lost, 1);
    assert_eq!(world.connecting(), [link], "at once");
    world.up(link);
    world.asks(session, &["INCR k"]);
    world.says(link, ":1\r\n");
    assert_eq!(world.got(session), ":1\r\n");
}

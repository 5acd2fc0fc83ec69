//! Servers that are away: who tries them, who waits, and what INFO says.

mod world;

use std::collections::HashSet;

use respool_engine::{LinkId, SessionId, Worker};
use world::{World, pool_of, settings, worker};

/// A world with links of two databases to its only server, both up for long, and a session on each.
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
    assert_eq!(tried.len(), 2, "what was good is tried at once");
    tried.into_iter().for_each(|link| world.lose(link));
}

/// Waits until links are tried again.
fn next_tried(world: &mut World) -> Vec<LinkId> {
    loop {
        world.wait_ms(50);
        let tried = world.connecting();
        if !tried.is_empty() {
            return tried;
        }
    }
}

/// Our section, of which the first server has nothing against it that it is read.
fn info(world: &mut World, session: SessionId) -> String {
    world.asks(session, &["INFO respool"]);
    if !world.sent(world.shared).is_empty() {
        world.says(world.shared, "+OK\r\n");
    }
    world.got(session)
}

/// The line about a server.
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

#[test]
fn one_link_tries_a_server_that_is_away_and_all_others_fail_at_once() {
    let (mut world, links, sessions) = two_links();
    dies(&mut world, links);
    let mut attempts = 0;
    for _ in 0..200 {
        world.wait_ms(50);
        let tried = world.connecting();
        assert!(tried.len() <= 1, "one of them tries: {tried:?}");
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
    // Ten seconds: of pauses of 20, 40, ... 2,000 ms, each at least half as long.
    assert!((5..=18).contains(&attempts), "{attempts}");
    // Who needs a link of another kind does not knock for itself.
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

#[test]
fn when_one_link_is_up_again_all_others_connect_at_once() {
    let (mut world, links, sessions) = two_links();
    dies(&mut world, links);
    let mut tried = next_tried(&mut world);
    assert_eq!(tried.len(), 1);
    // A few failures more, so that it would be long before the other one's time came.
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

/// Loses these links, and every attempt at them until pauses are no longer doubled. Returns how long each one rests then, milliseconds.
fn rests_ms(world: &mut World, links: &[LinkId]) -> Vec<u64> {
    // 20 ms, seven times doubled, are more than the 2,000 ms at the most.
    const DOUBLED: usize = 8;
    world.wait_ms(1_500);
    links.iter().for_each(|link| world.lose(*link));
    let mut failures = vec![0; links.len()];
    let mut rest_since = vec![None; links.len()];
    let mut rests_ms = vec![None; links.len()];
    while rests_ms.contains(&None) {
        for link in world.connecting() {
            let at = links.iter().position(|its| *its == link);
            let at = at.expect("there are no others");
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

/// Of pauses with jitter, each is between half and the whole of the longest one, as looked at every 50 ms, and few are the same.
fn are_spread(rests_ms: &[u64]) {
    for rest_ms in rests_ms {
        assert!((1_000..=2_000 + 100).contains(rest_ms), "{rests_ms:?}");
    }
    let different: HashSet<&u64> = rests_ms.iter().collect();
    assert!(different.len() >= rests_ms.len() / 3, "{rests_ms:?}");
}

#[test]
fn workers_that_lose_a_server_at_once_do_not_knock_at_once() {
    let rest_ms = |seed| {
        let worker = Worker {
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

#[test]
fn nor_does_one_worker_at_all_servers_that_it_has_lost_at_once() {
    let mut world = World::new(pool_of(12));
    let links = world.all_shared.clone();
    are_spread(&rests_ms(&mut world, &links));
}

/// The kernel of a machine that is gone says nothing; that of a process that is stopped accepts for it.
#[test]
fn nobody_waits_for_an_attempt_that_takes_its_time_when_the_server_was_away_before() {
    for accepts in [false, true] {
        let (mut world, links, sessions) = two_links();
        dies(&mut world, links);
        let tried = next_tried(&mut world);
        let probe = tried[0];
        let mine = sessions[links
            .iter()
            .position(|link| *link == probe)
            .expect("one of them")];
        world.asks(mine, &["GET soon"]);
        assert_eq!(world.got(mine), "", "it may well be there again");
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
        // It answers after all.
        if !accepts {
            world.turn(|engine| engine.handle_link_up(probe));
        }
        let hello = world.sent(probe);
        assert!(
            !hello.contains("GET"),
            "what was refused is not sent: {hello}"
        );
        let selects = if hello.contains("SELECT") {
            "+OK\r\n"
        } else {
            ""
        };
        world.says(probe, [world::HELLO, selects].concat());
        world.asks(mine, &["GET now"]);
        assert!(world.sent(probe).contains("now"));
        world.says(probe, "$1\r\nv\r\n");
        assert_eq!(world.got(mine), "$1\r\nv\r\n");
    }
}

#[test]
fn while_a_link_is_up_one_that_cannot_be_had_is_its_own_trouble() {
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

#[test]
fn info_counts_the_failures_of_each_server_and_forgets_those_in_a_row_when_it_answers() {
    let mut world = World::new(pool_of(2));
    let session = world.accept();
    world.wait_ms(1_500);
    let second = world.all_shared[1];
    let line_0 = "address=server:1,pool=default,role=primary,state=up,links=1,failures=0,failures_total=0,lost_total=0,last_failure_ms_ago=-1,login=accepted";
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
    assert_eq!(world.engine.counters().servers_away, 1);
    world.lose(second);
    let away = line(&mut world, session, 1);
    has(&away, &["state=resting", "failures=4"]);
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
    assert_eq!(world.engine.counters().servers_away, 0);
}

#[test]
fn of_very_many_servers_info_shows_a_bounded_number_and_those_in_trouble() {
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

/// Its old connection ends in the turn in which it is given up: that says nothing of the next one.
#[test]
fn a_link_that_was_given_up_is_not_lost_once_more_with_its_old_connection() {
    let mut world = World::new(settings());
    let (link, session) = (world.shared, world.accept());
    world.wait_ms(1_100);
    world.asks(session, &["INCR k"]);
    world.turn(|engine| {
        engine.handle_link_bytes(link, b"?\r\n");
        engine.handle_link_lost(link, "reset");
    });
    assert!(world.got(session).starts_with("-UNKNOWN "));
    assert_eq!(world.engine.counters().link_downs, 1);
    assert_eq!(world.connecting(), [link], "at once");
    world.up(link);
    world.asks(session, &["INCR k"]);
    world.says(link, ":1\r\n");
    assert_eq!(world.got(session), ":1\r\n");
}

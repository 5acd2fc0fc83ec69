//! Requests that a server refuses for a while, each rule in a history of its own.

use crate::world::{World, requests};
use respool_engine::settings::Settings;
use respool_engine::{Action, SessionId, Time};

const LOADING: &str = "-LOADING not yet\r\n";

/// A world whose Cluster nodes have named the owners of all slots.
fn nodes_of(settings: Settings) -> World {
    let mut world = World::new(settings);
    for link in world.all_shared.clone() {
        for args in world.asked(link) {
            let said = world.owners.said(&args).expect("a topology question");
            world.says(link, said);
        }
    }
    world
}

/// The refused read of two sessions is sent again for the second one, even if the first one has
/// reached its deadline.
#[test]
fn collapsed_read_is_retried_for_its_second_session() {
    let mut settings = crate::world::cluster(1);
    settings.timeouts.request_ms = 500;
    settings.flush.collapse = true;
    settings.flush.max_delay_us = 1_000_000;
    let mut world = nodes_of(settings);
    let link = world.shared;
    let [busy, first, second] = [(); 3].map(|()| world.accept());
    world.asks(busy, &["GET other"]);
    world.sent(link);
    let asked = requests(&["GET k"]);
    let asks = |session| {
        let asked = asked.clone();
        move |engine: &mut respool_engine::Engine| engine.handle_session_bytes(session, &asked)
    };
    world.turn_at(Time(0).plus_ms(100), asks(first));
    world.turn_at(Time(0).plus_ms(300), asks(second));
    world.says(link, "$-1\r\n");
    assert_eq!(
        world.sent(link).as_bytes(),
        asked,
        "one GET for both sessions"
    );
    world.turn_at(Time(0).plus_ms(610), |_| {});
    assert!(world.got(first).starts_with("-UNKNOWN "));
    world.says(link, LOADING);
    world.turn_at(Time(0).plus_ms(700), |_| {});
    assert_eq!(world.got(second), "");
    assert_eq!(world.sent(link).as_bytes(), asked);
    world.says(link, "$1\r\nv\r\n");
    assert_eq!(world.got(second), "$1\r\nv\r\n");
}

/// Thousands of deferred requests are sent again without a look at each in every turn, which would
/// take time from other servers' sessions.
#[test]
fn thousands_of_deferred_requests_cost_no_turn() {
    const MANY: u64 = 3_000;
    let mut settings = crate::world::cluster(1);
    settings.flush.fuse = false;
    let mut world = nodes_of(settings);
    let link = world.shared;
    let sessions: Vec<_> = (0..MANY).map(|_| world.accept()).collect();
    let get = |number: usize| requests(&[&format!("GET k{number}")]);
    world.turn(|engine| {
        for (number, session) in sessions.iter().enumerate() {
            engine.handle_session_bytes(*session, &get(number));
        }
    });
    assert_eq!(world.asked(link).len(), sessions.len());
    world.says(link, LOADING.repeat(sessions.len()));
    let looked_at = world.now;
    assert_eq!(world.engine.deadline(), None, "no deferred request is due");
    world.turn(|_| {});
    let next = Time(looked_at.0 + MANY);
    assert_eq!(world.engine.deadline(), Some(next));
    world.turn_at(next, |_| {});
    assert_eq!(world.engine.deadline(), None);
    world.wait_ms(100);
    assert_eq!(world.asked(link).len(), sessions.len());
    world.says(link, "$1\r\nv\r\n".repeat(sessions.len()));
    for session in sessions {
        assert_eq!(world.got(session), "$1\r\nv\r\n");
    }
}

/// A refused request is not sent again after a later one of its session has run. A refusal before
/// that does not change it.
#[test]
fn refused_request_is_not_retried_after_an_overtaker() {
    let mut settings = crate::world::cluster(2);
    settings.flush.fuse = false;
    settings.timeouts.request_ms = 500;
    let mut world = nodes_of(settings);
    let [first, second] = world.all_shared[..] else {
        panic!("two nodes")
    };
    let session = world.accept();
    let [here, there] = [0, 1].map(|node| world.key_at(node, "k"));
    world.asks(
        session,
        &[&format!("SET {here} 0"), &format!("SET {there} 0")],
    );
    world.says(first, LOADING);
    world.wait_ms(600);
    let told = world.got(session);
    assert!(
        told.starts_with(LOADING) && told.contains("-UNKNOWN "),
        "{told}"
    );
    world.says(second, "+OK\r\n");
    // A refusal starts a refresh, so the node is asked for the topology.
    for args in world.asked(first) {
        if let Some(said) = world.owners.said(&args) {
            world.says(first, said);
        }
    }
    let both = [1, 2].map(|value| format!("SET {here} {value}"));
    world.asks(session, &both.each_ref().map(String::as_str));
    world.turn(|_| {});
    assert_eq!(world.asked(first).len(), 2);
    world.says(first, [LOADING, "+OK\r\n"].concat());
    world.wait_ms(200);
    assert_eq!(world.got(session), [LOADING, "+OK\r\n"].concat());
    assert!(!world.sent(first).contains("SET"));
}

/// A redirected request is sent at once, while thousands wait for another node that loads its data.
#[test]
fn redirect_is_followed_at_once_beside_thousands_waiting() {
    let mut settings = crate::world::cluster(2);
    settings.flush.fuse = false;
    let mut world = nodes_of(settings);
    let [first, second] = world.all_shared[..] else {
        panic!("two nodes")
    };
    let sessions: Vec<_> = (0..3_000).map(|_| world.accept()).collect();
    let here = requests(&[&format!("GET {}", world.key_at(0, "k"))]);
    world.turn(|engine| {
        for session in &sessions {
            engine.handle_session_bytes(*session, &here);
        }
    });
    world.says(first, LOADING.repeat(sessions.len()));
    let other = world.accept();
    let there = world.key_at(1, "k");
    let get = format!("GET {there}");
    world.asks(other, &[&get]);
    world.sent(first);
    let slot = respool_protocol::slot::hash_slot(there.as_bytes());
    world.says(second, format!("-MOVED {slot} server:1\r\n"));
    assert_eq!(world.sent(first).as_bytes(), requests(&[&get]));
}

/// A node finds keys in a subcommand that the table lacks, and redirects it. It is sent to the new
/// node before later requests of its session.
#[test]
fn moved_unknown_subcommand_precedes_later_requests() {
    let mut world = nodes_of(crate::world::cluster(2));
    let [first, second] = world.all_shared[..] else {
        panic!("two nodes")
    };
    let session = world.accept();
    let there = world.key_at(1, "k");
    let (asked, behind) = (format!("OBJECT NOSUCH {there}"), format!("DEL {there}"));
    world.asks(session, &[&asked, &behind]);
    assert_eq!(world.sent(first).as_bytes(), requests(&[&asked]));
    assert_eq!(world.sent(second), "");
    let slot = respool_protocol::slot::hash_slot(there.as_bytes());
    world.says(first, format!("-MOVED {slot} server:2\r\n"));
    assert_eq!(world.sent(second).as_bytes(), requests(&[&asked]));
    // After a second redirect it waits for the next tick.
    world.says(second, format!("-MOVED {slot} server:1\r\n"));
    assert!(!world.sent(first).contains("NOSUCH"));
    world.wait_ms(100);
    assert_eq!(world.sent(first).matches("NOSUCH").count(), 1);
    world.says(first, "-ERR Unknown subcommand\r\n");
    world.turn(|_| {});
    assert_eq!(world.got(session), "-ERR Unknown subcommand\r\n");
    let sent = [first, second].map(|link| world.sent(link)).concat();
    assert_eq!(sent.matches("DEL").count(), 1, "{sent}");
}

/// While no node has named the owners, a seed that loads its data is waited for, also while its
/// link is lost.
#[test]
fn refused_request_waits_for_its_seed_to_return() {
    let mut world = World::new(crate::world::cluster(1));
    let seed = world.shared;
    let session = world.accept();
    world.asks(session, &["SET k 1"]);
    // The seed does not name the owners, either.
    let mut is_refused = false;
    while !is_refused {
        for args in world.asked(seed) {
            is_refused |= args[0] == "SET";
            world.says(seed, LOADING);
        }
    }
    world.lose(seed);
    world.wait_ms(500);
    assert_eq!(world.got(session), "");
    while world.connecting().is_empty() {
        world.wait_ms(50);
    }
    world.up(seed);
    let mut sets = 0;
    for _ in 0..10 {
        for args in world.asked(seed) {
            sets += usize::from(args[0] == "SET");
            let said = match &*args[0] {
                "SET" => "+OK\r\n".to_owned(),
                _ => world.owners.said(&args).expect("a topology question"),
            };
            world.says(seed, said);
        }
        world.wait_ms(50);
    }
    assert_eq!(sets, 1);
    assert_eq!(world.got(session), "+OK\r\n");
}

const LARGE: usize = 30_000;

fn large() -> String {
    format!("${LARGE}\r\n{}\r\n", "x".repeat(LARGE))
}

/// Two nodes, and sessions that hold at most two large replies before their place.
fn two_nodes() -> World {
    let mut settings = crate::world::cluster(2);
    settings.limits.session_output_soft_bytes = 20_000;
    settings.limits.session_output_hard_bytes = 70_000;
    nodes_of(settings)
}

/// A session sends a small request to the first node, and then this many for large values of one of
/// the nodes. Returns the first request.
fn asks_for_large(world: &mut World, of: usize, count: usize) -> (SessionId, String) {
    let session = world.accept();
    let small = format!("GET {}", world.key_at(0, "small"));
    world.asks(session, &[&small]);
    for number in 0..count {
        let key = world.key_at(of, &format!("large{number}:"));
        world.asks(session, &[&format!("GET {key}")]);
    }
    for link in world.all_shared.clone() {
        world.sent(link);
    }
    (session, small)
}

/// A refused request is sent again once the replies after it have come, however large they are.
/// Before its refusal a link with too many early bytes is not read, after it the link is.
#[test]
fn refused_request_is_retried_after_large_replies() {
    for (of, stopped) in [(0, 0), (1, 1)] {
        let mut world = two_nodes();
        let (session, small) = asks_for_large(&mut world, of, 2);
        let [first, node] = [world.all_shared[0], world.all_shared[of]];
        let reply_of_other = if of == 0 { "" } else { &large() };
        world.says(node, reply_of_other);
        let reads = |world: &World, reads: bool| {
            let is_it = |action: &&Action| matches!(action, Action::ReadLink(link, its) if *link == node && *its == reads);
            world.actions.iter().filter(is_it).count()
        };
        assert_eq!(reads(&world, false), stopped);
        world.says(first, LOADING);
        assert_eq!(reads(&world, true), stopped);
        world.says(node, large().repeat(if of == 0 { 2 } else { 1 }));
        world.wait_ms(100);
        assert_eq!(world.sent(first).as_bytes(), requests(&[&small]));
        world.says(first, "$1\r\nv\r\n");
        let expected = ["$1\r\nv\r\n", &large().repeat(2)].concat();
        assert_eq!(world.got(session), expected);
        assert_eq!(reads(&world, false), stopped);
    }
}

/// If more bytes are behind a refused request than may be held, its client gets the node's error,
/// and then the rest.
#[test]
fn refused_request_with_too_much_behind_it_fails() {
    let mut world = two_nodes();
    let (session, _) = asks_for_large(&mut world, 0, 4);
    let link = world.shared;
    world.says(link, LOADING);
    for _ in 0..4 {
        world.says(link, large());
    }
    world.wait_ms(100);
    assert_eq!(world.got(session), [LOADING, &large().repeat(4)].concat());
    assert!(world.closed_sessions().is_empty());
    assert_eq!(world.engine.counters().held_bytes, 0);
}

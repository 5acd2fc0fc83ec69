//! Requests that a server refuses for a while, each rule in a history of its own.

mod world;

use respool_engine::settings::Settings;
use respool_engine::{Action, SessionId, Time};
use world::{World, requests};

const LOADING: &str = "-LOADING not yet\r\n";

/// Nodes of a Cluster that have said which there are.
fn nodes_of(settings: Settings) -> World {
    let mut world = World::new(settings);
    for link in world.all_shared.clone() {
        for args in world.asked(link) {
            let said = world.owners.said(&args).expect("who owns what");
            world.says(link, said);
        }
    }
    world
}

/// Its request stands for both; nobody waits for its answer any more.
#[test]
fn what_two_asked_is_asked_again_for_the_second_though_the_first_has_been_told_of_its_deadline() {
    let mut settings = world::cluster(1);
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
    assert_eq!(world.sent(link).as_bytes(), asked, "one for both");
    world.turn_at(Time(0).plus_ms(610), |_| {});
    assert!(world.got(first).starts_with("-UNKNOWN "));
    world.says(link, LOADING);
    world.turn_at(Time(0).plus_ms(700), |_| {});
    assert_eq!(world.got(second), "");
    assert_eq!(world.sent(link).as_bytes(), asked);
    world.says(link, "$1\r\nv\r\n");
    assert_eq!(world.got(second), "$1\r\nv\r\n");
}

/// To look at each of them in every turn would take the time of those who ask of other servers.
#[test]
fn whoever_waits_among_thousands_is_asked_for_again_without_being_looked_at_in_every_turn() {
    const MANY: u64 = 3_000;
    let mut settings = world::cluster(1);
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
    assert_eq!(world.engine.deadline(), None, "none of them is due");
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

/// What happened while somebody else's refusal was waited for is not what happens now.
#[test]
fn what_was_refused_is_not_asked_behind_what_overtook_it_though_another_was_given_back_before() {
    let mut settings = world::cluster(2);
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
    // Who owns what: a node that refuses makes us ask.
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

/// They wait for a node that loads its data; what another one says of its slots does not wait with them.
#[test]
fn who_is_sent_elsewhere_goes_there_at_once_though_thousands_wait() {
    let mut settings = world::cluster(2);
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

/// A subcommand that the table does not have: its node sees keys where we see none.
#[test]
fn who_is_sent_elsewhere_for_keys_that_only_the_node_sees_goes_there_in_front_of_what_is_behind_it()
{
    let mut world = nodes_of(world::cluster(2));
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
    // Sent to and fro, it is in no hurry.
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

/// Where no node has said yet who owns what, a seed that loads its data is waited for as any node is, also while its link is lost.
#[test]
fn what_a_seed_has_refused_for_a_while_waits_for_it_to_come_back() {
    let mut world = World::new(world::cluster(1));
    let seed = world.shared;
    let session = world.accept();
    world.asks(session, &["SET k 1"]);
    // It does not say either who owns what.
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
                _ => world.owners.said(&args).expect("who owns what"),
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

/// Two nodes, and sessions that are brought two large replies at the most before their turn.
fn two_nodes() -> World {
    let mut settings = world::cluster(2);
    settings.limits.session_output_soft_bytes = 20_000;
    settings.limits.session_output_hard_bytes = 70_000;
    nodes_of(settings)
}

/// A session asks for something small of the first node, and behind it for so many large values of that or the other one. Returns the
/// first request.
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

/// Before it is refused, a link that brings too much too early is not read; behind that it is.
#[test]
fn what_was_refused_is_asked_again_when_that_behind_it_has_come_however_much_it_is() {
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

/// Then its client is told what the node had said, and gets the rest.
#[test]
fn what_was_refused_is_not_asked_again_where_more_is_behind_it_than_may_be_held() {
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

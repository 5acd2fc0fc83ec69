//! A server bounds the output that it holds for a connection, so a link must not be owed more, for
//! all its sessions.

use crate::world::{HELLO, World, settings};
use respool_engine::settings::Settings;
use respool_engine::{Event, LinkId, SessionId};

const MIB: usize = 1 << 20;
const QUESTIONS: [&str; 2] = [
    "CONFIG GET client-output-buffer-limit",
    "CONFIG GET maxmemory*",
];

fn asking() -> Settings {
    let mut settings = settings();
    settings.asks_output_limits = true;
    // No session moves to a link apart, so that all requests are on one link.
    settings.limits.links_max = 1;
    settings
}

fn options(pairs: &[(&str, &str)]) -> String {
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let pairs: String = pairs
        .iter()
        .map(|(name, value)| bulk(name) + &bulk(value))
        .collect();
    format!("*{}\r\n{pairs}", pairs.matches('$').count())
}

/// A worker whose server has given its limits.
fn world_with(settings: Settings, normal: &str, clients: &str) -> World {
    let mut world = World::unconnected(crate::world::worker(0, 1), settings);
    let link = world.shared;
    answer_handshake(&mut world, link, normal, clients);
    world
}

fn answer_handshake(world: &mut World, link: LinkId, normal: &str, clients: &str) {
    world.sent(link);
    world.turn(|engine| engine.handle_link_up(link));
    let asked: Vec<String> = world.asked(link).iter().map(|one| one.join(" ")).collect();
    assert_eq!(asked[1..], QUESTIONS);
    let output = options(&[("client-output-buffer-limit", normal)]);
    let memory = options(&[("maxmemory", "1000"), ("maxmemory-clients", clients)]);
    world.says(link, [HELLO, &output, &memory].concat());
}

fn readers(world: &mut World, count: usize) -> Vec<SessionId> {
    (0..count).map(|_| world.accept()).collect()
}

/// The server answers all requests, each with this many bytes, in two reads. Returns the number of
/// requests, and their number between two moments at which no reply was owed.
fn answers(world: &mut World, link: LinkId, bytes: usize) -> (usize, usize) {
    let reply = format!("${bytes}\r\n{}\r\n", "v".repeat(bytes));
    let (beginning, rest) = reply.split_at(reply.len() / 2);
    let (mut answered, mut owed, mut since_nothing, mut most) = (0, 0, 0, 0);
    loop {
        let asked = world.asked(link).len();
        since_nothing = if owed == 0 {
            asked
        } else {
            since_nothing + asked
        };
        most = most.max(since_nothing);
        owed += asked;
        if owed == 0 {
            return (answered, most);
        }
        world.says(link, beginning);
        world.says(link, rest);
        (answered, owed) = (answered + 1, owed - 1);
        // A batch waits for a turn.
        world.turn(|_| {});
    }
}

/// However many clients send at once, the link is owed at most half of the limit, and every client
/// gets its reply. Replies count until none is owed: Valkey 9.1 counts them so.
#[test]
fn burst_of_large_reads_stays_below_the_limit() {
    for (limit, most) in [("normal 33554432 0 0", 16), ("normal 0 268435456 9", 128)] {
        let mut world = world_with(asking(), limit, "0");
        let link = world.shared;
        let readers = readers(&mut world, 200);
        for round in 0..3 {
            world.turn(|engine| {
                for reader in &readers {
                    let request = crate::world::requests(&["GET large"]);
                    engine.handle_session_bytes(*reader, &request);
                }
            });
            let (answered, owed) = answers(&mut world, link, MIB);
            assert_eq!(answered, readers.len(), "{limit}, round {round}");
            assert!(owed <= most, "{limit}, round {round}: {owed}");
            for reader in &readers {
                assert_eq!(world.got(*reader).len(), MIB + 12);
            }
        }
        let counters = world.engine.counters();
        assert!(counters.output_limit_waits > 0);
        assert_eq!(counters.failed_not_sent + counters.failed_unknown, 0);
    }
}

/// Clients that come while others wait for room wait behind them. So none waits for ever.
#[test]
fn later_sessions_do_not_overtake_those_that_wait_for_room() {
    let mut world = world_with(asking(), "normal 33554432 0 0", "0");
    let link = world.shared;
    let reader = world.accept();
    world.asks(reader, &["GET large"]);
    assert_eq!(answers(&mut world, link, 4 * MIB), (1, 1));
    let reply = format!("${}\r\n{}\r\n", 4 * MIB, "v".repeat(4 * MIB));
    let (beginning, rest) = reply.split_at(reply.len() / 2);
    let (mut asked, mut sent, mut owed) = (0, Vec::new(), 0);
    let mut sessions = Vec::new();
    for round in 0..40 {
        // Two clients come in each turn in which a reply ends.
        let newcomers = readers(&mut world, 2);
        let first = asked;
        asked += newcomers.len();
        let ask = |engine: &mut respool_engine::Engine| {
            for (session, number) in newcomers.iter().zip(first..) {
                let request = crate::world::requests(&[&format!("GET k{number}")]);
                engine.handle_session_bytes(*session, &request);
            }
        };
        match owed {
            0 => world.turn(ask),
            _ => {
                world.says(link, beginning);
                world.turn(|engine| {
                    engine.handle_link_bytes(link, rest.as_bytes());
                    ask(engine);
                });
                owed -= 1;
            }
        }
        sessions.extend(newcomers);
        world.turn(|_| {});
        for args in world.asked(link) {
            owed += 1;
            sent.push(args[1].clone());
        }
        assert!(owed <= 4, "{owed} in round {round}");
    }
    let expected: Vec<String> = (0..sent.len()).map(|number| format!("k{number}")).collect();
    assert_eq!(sent, expected);
    assert!(sent.len() > 20);
}

/// A session that closes or takes no output while it waits for room takes no place from the others.
#[test]
fn session_that_cannot_ask_keeps_no_place() {
    let reply = format!("${}\r\n{}\r\n", 16 * MIB, "v".repeat(16 * MIB));
    let (beginning, rest) = reply.split_at(reply.len() / 2);
    for case in [
        "closes before",
        "closes when it is woken",
        "takes no output",
    ] {
        let mut world = world_with(asking(), "normal 33554432 0 0", "0");
        let link = world.shared;
        let sessions = readers(&mut world, 4);
        world.asks(sessions[0], &["GET large"]);
        assert_eq!(world.asked(link).len(), 1);
        world.says(link, beginning);
        // The link has room for one reply.
        let first = match case {
            "takes no output" => sessions[0],
            _ => sessions[1],
        };
        world.asks(first, &["GET first"]);
        world.asks(sessions[2], &["GET second"]);
        world.asks(sessions[3], &["GET third"]);
        assert_eq!(world.asked(link).len(), 0);
        world.turn(|engine| {
            if case == "closes before" {
                engine.handle_session_lost(first);
            }
            engine.handle_link_bytes(link, rest.as_bytes());
            if case == "closes when it is woken" {
                engine.handle_session_lost(first);
            }
        });
        for key in ["second", "third"] {
            assert_eq!(world.asked(link), [["GET", key]], "{case}");
            world.says(link, beginning);
            world.says(link, rest);
        }
    }
}

/// A pipeline in one read is cut where the link has no room.
#[test]
fn pipeline_passes_the_bound_only_until_its_replies_are_known() {
    let mut world = world_with(asking(), "normal 33554432 0 0", "0");
    let link = world.shared;
    let reader = world.accept();
    world.asks(reader, &["GET large"]);
    assert_eq!(answers(&mut world, link, 4 * MIB), (1, 1));
    world.got(reader);
    world.asks(reader, &["GET large"; 100]);
    let (answered, owed) = answers(&mut world, link, 4 * MIB);
    assert!(answered == 100 && owed <= 4, "{answered}, {owed} at a time");
    assert_eq!(world.got(reader).len(), 100 * (4 * MIB + 12));
}

/// Small replies widen the bound within some round trips.
#[test]
fn small_replies_are_soon_not_held_back() {
    let mut world = world_with(asking(), "normal 33554432 0 0", "0");
    let link = world.shared;
    let sessions = readers(&mut world, 500);
    let mut rounds = 0;
    loop {
        world.turn(|engine| {
            for session in &sessions {
                engine.handle_session_bytes(*session, &crate::world::requests(&["INCR n"]));
            }
        });
        let mut trips = 0;
        let mut answered = 0;
        while answered < sessions.len() {
            // A batch waits for a turn.
            world.turn(|_| {});
            let asked = world.asked(link).len();
            assert!(asked > 0);
            world.says(link, ":1\r\n".repeat(asked));
            answered += asked;
            trips += 1;
        }
        rounds += 1;
        if trips == 1 {
            break;
        }
        assert!(rounds < 10);
    }
}

/// A server without limits, or one that does not give them, changes nothing.
#[test]
fn server_without_limits_holds_nothing_back() {
    let refused = "-NOPERM no\r\n".repeat(2);
    let none = [
        options(&[(
            "client-output-buffer-limit",
            "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60",
        )]),
        options(&[("maxmemory", "0"), ("maxmemory-clients", "0")]),
    ]
    .concat();
    for said in [refused, none, "+OK\r\n".repeat(2)] {
        let mut world = World::unconnected(crate::world::worker(0, 1), asking());
        let link = world.shared;
        world.turn(|engine| engine.handle_link_up(link));
        world.sent(link);
        world.says(link, [HELLO, &said].concat());
        let readers = readers(&mut world, 200);
        for _ in 0..2 {
            world.turn(|engine| {
                for reader in &readers {
                    engine.handle_session_bytes(*reader, &crate::world::requests(&["GET large"]));
                }
            });
            assert_eq!(answers(&mut world, link, MIB), (200, 200));
        }
        assert_eq!(world.engine.counters().output_limit_waits, 0);
    }
}

/// A server that refuses CONFIG GET is asked again after a minute, and one that answers on each
/// connection.
#[test]
fn server_is_asked_when_it_is_connected() {
    let mut world = world_with(asking(), "normal 33554432 0 0", "0");
    let link = world.shared;
    world.wait_ms(2_000);
    world.lose(link);
    assert_eq!(world.connecting(), [link]);
    world.turn(|engine| engine.handle_link_up(link));
    assert_eq!(world.asked(link).len(), 3);
    world.says(link, [HELLO, &"-NOPERM no\r\n".repeat(2)].concat());
    world.wait_ms(2_000);
    world.lose(link);
    assert_eq!(world.connecting(), [link]);
    world.turn(|engine| engine.handle_link_up(link));
    assert_eq!(world.asked(link).len(), 1);
    world.says(link, HELLO);
    world.wait_ms(60_000);
    world.lose(link);
    assert_eq!(world.connecting(), [link]);
    answer_handshake(&mut world, link, "normal 0 0 0", "0");
}

/// CONFIG SET changes a limit while the link stays: it counts after a minute.
#[test]
fn limits_that_change_are_asked_for_again() {
    let mut world = world_with(asking(), "normal 33554432 0 0", "0");
    let link = world.shared;
    let readers = readers(&mut world, 40);
    let ask = |world: &mut World| {
        world.turn(|engine| {
            for reader in &readers {
                engine.handle_session_bytes(*reader, &crate::world::requests(&["GET large"]));
            }
        });
        answers(world, link, MIB).1
    };
    let owed = ask(&mut world);
    assert!(owed < 20, "{owed}");
    world.wait_ms(60_000);
    let asked: Vec<String> = world.asked(link).iter().map(|one| one.join(" ")).collect();
    assert_eq!(asked, QUESTIONS);
    let none = [
        options(&[("client-output-buffer-limit", "normal 0 0 0")]),
        options(&[("maxmemory", "0"), ("maxmemory-clients", "0")]),
    ];
    world.says(link, none.concat());
    assert_eq!(ask(&mut world), 40);
    // The server has a limit again.
    world.wait_ms(60_000);
    assert_eq!(world.asked(link).len(), 2);
    world.says(
        link,
        options(&[("client-output-buffer-limit", "normal 33554432 0 0")]),
    );
    world.says(
        link,
        options(&[("maxmemory", "0"), ("maxmemory-clients", "0")]),
    );
    ask(&mut world);
    let owed = ask(&mut world);
    assert!(owed < 20, "{owed}");
}

/// The log names a low limit, and a link that was perhaps lost at one.
#[test]
fn low_limit_and_links_lost_at_it_are_reported() {
    let mut world = world_with(asking(), "normal 33554432 0 0", "10%");
    let told = |event: &Event| match event {
        Event::BoundReached { name, effect } => Some(format!("{name}: {effect}")),
        Event::LinkDown { reason, .. } => Some(reason.clone()),
        _ => None,
    };
    let told_all = |world: &mut World| -> Vec<String> {
        std::mem::take(&mut world.events)
            .iter()
            .filter_map(told)
            .collect()
    };
    let low = told_all(&mut world);
    assert!(
        low[0].starts_with("maxmemory-clients: the server server:1 "),
        "{low:?}"
    );
    let mut world = world_with(asking(), "normal 33554432 0 0", "0");
    let link = world.shared;
    let low = told_all(&mut world);
    assert!(
        low[0].starts_with("client-output-buffer-limit: "),
        "{low:?}"
    );
    // Without large replies in flight the limit is no likely cause.
    let session = world.accept();
    world.asks(session, &["INCR n"]);
    world.lose(link);
    assert_eq!(told_all(&mut world), ["gone"]);
    world.wait_ms(2_000);
    assert_eq!(world.connecting(), [link]);
    answer_handshake(&mut world, link, "normal 33554432 0 0", "0");
    assert_eq!(told_all(&mut world), [""; 0]);
    world.asks(session, &["GET large"]);
    answers(&mut world, link, 8 * MIB);
    world.asks(session, &["GET large"; 2]);
    world.lose(link);
    let lost = told_all(&mut world);
    assert!(
        lost[0].contains("perhaps the server closed it at its client-output-buffer-limit"),
        "{lost:?}"
    );
}

/// Replies that come whole in one read count, too: the link gets no more requests than their
/// replies fit.
#[test]
fn whole_replies_count() {
    let mut world = world_with(asking(), "normal 33554432 0 0", "0");
    let sessions = readers(&mut world, 500);
    let reply = format!("$60000\r\n{}\r\n", "v".repeat(60_000));
    let mut most = 0;
    for _ in 0..60 {
        for (number, session) in sessions.iter().enumerate() {
            world.asks(*session, &[&format!("GETRANGE k{number} 0 -1")]);
        }
        world.wait_ms(1);
        let mut owed = 0;
        loop {
            owed += world.asked(world.shared).len();
            most = owed.max(most);
            if owed == 0 {
                break;
            }
            world.says(world.shared, &reply);
            owed -= 1;
        }
        for session in &sessions {
            world.got(*session);
        }
    }
    assert!(
        most > 0 && most * reply.len() <= 33_554_432 / 2,
        "{most} replies"
    );
}

/// The log says once that a server refuses CONFIG GET, and which option ends the question.
#[test]
fn refused_questions_are_told_once() {
    let told = |world: &mut World| -> Vec<String> {
        let texts = std::mem::take(&mut world.events)
            .into_iter()
            .filter_map(|event| match event {
                Event::Topology { text, .. } => Some(text),
                _ => None,
            });
        texts.collect()
    };
    for worker in [0, 1] {
        let mut world = World::unconnected(crate::world::worker(worker, 2), asking());
        let link = world.shared;
        for round in 0..2 {
            world.turn(|engine| engine.handle_link_up(link));
            world.says(link, [HELLO, &"-NOPERM no\r\n".repeat(2)].concat());
            let told = told(&mut world);
            let is_told = (worker, round) == (0, 0);
            assert_eq!(told.len(), usize::from(is_told), "{told:?}");
            if is_told {
                assert!(
                    told[0].starts_with("server:1 does not tell its "),
                    "{told:?}"
                );
                assert!(told[0].contains("NOPERM no"), "{told:?}");
                assert!(told[0].contains("server-output-limits=false"), "{told:?}");
            }
            world.wait_ms(61_000);
            world.lose(link);
            world.connecting();
        }
    }
}

/// A proxy that closes the connection at CONFIG is not asked again, and the link comes up without
/// it.
#[test]
fn server_that_closes_at_the_questions_is_not_asked_again() {
    let mut world = World::unconnected(crate::world::worker(0, 1), asking());
    let link = world.shared;
    world.turn(|engine| engine.handle_link_up(link));
    world.says(link, HELLO);
    assert_eq!(world.asked(link).len(), 3);
    world.lose(link);
    let again = loop {
        world.wait_ms(50);
        if let Some(link) = world.connecting().pop() {
            break link;
        }
    };
    world.turn(|engine| engine.handle_link_up(again));
    world.says(again, HELLO);
    let asked: Vec<String> = world.asked(again).iter().map(|one| one.join(" ")).collect();
    assert!(
        asked.iter().all(|one| !one.starts_with("CONFIG")),
        "{asked:?}"
    );
    let session = world.accept();
    world.asks(session, &["GET a"]);
    world.wait_ms(1);
    world.says(again, "$1\r\nv\r\n");
    assert_eq!(world.got(session), "$1\r\nv\r\n");
}

/// A server, or a proxy before it, answers HELLO and not CONFIG GET. That costs the first
/// connection the connect timeout, and no other one: the server is not asked again for a minute.
#[test]
fn silence_at_the_questions_costs_one_attempt() {
    let settings = asking();
    let connect_ms = settings.timeouts.connect_ms;
    let mut world = World::unconnected(crate::world::worker(0, 1), settings);
    let session = world.accept();
    world.asks(session, &["GET a"]);
    let mut silences = 0;
    let mut attempts = vec![world.shared];
    let mut waited_ms = 0;
    let link = loop {
        for link in attempts {
            world.sent(link);
            world.turn(|engine| engine.handle_link_up(link));
            world.says(link, HELLO);
            silences += world
                .asked(link)
                .iter()
                .filter(|one| one[0] == "CONFIG")
                .count()
                / 2;
        }
        let up = |event: &Event| matches!(event, Event::LinkUp { .. });
        if world.events.iter().any(up) {
            break world.shared;
        }
        world.wait_ms(50);
        waited_ms += 50;
        assert!(waited_ms < 3 * connect_ms, "the link never comes up");
        attempts = world.connecting();
    };
    assert_eq!(silences, 1);
    assert!(waited_ms <= connect_ms + 500, "{waited_ms} ms");
    world.got(session);
    world.asks(session, &["GET a"]);
    world.wait_ms(1);
    world.says(link, "$1\r\nv\r\n");
    assert!(world.got(session).ends_with("$1\r\nv\r\n"));
    // A later connection is not delayed.
    for _ in 0..5 {
        world.wait_ms(2_000);
        world.sent(link);
        world.lose(link);
        assert_eq!(world.connecting(), [link]);
        world.turn(|engine| engine.handle_link_up(link));
        assert_eq!(world.asked(link).len(), 1);
        world.says(link, HELLO);
        world.asks(session, &["GET a"]);
        assert_eq!(world.asked(link).len(), 1, "the link is up");
        world.says(link, "$1\r\nv\r\n");
    }
    // After a minute it is asked again, which costs no more.
    world.wait_ms(60_000);
    world.lose(link);
    world.connecting();
    world.turn(|engine| engine.handle_link_up(link));
    assert_eq!(world.asked(link).len(), 3);
    world.says(link, HELLO);
    world.wait_ms(connect_ms + 500);
    assert_eq!(world.connecting(), [link]);
    world.turn(|engine| engine.handle_link_up(link));
    assert_eq!(world.asked(link).len(), 1);
}

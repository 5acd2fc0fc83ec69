//! A hub's link in virtual time: silence, messages too large, bursts, and servers that say what was not asked.

use std::collections::HashMap;
use std::sync::Arc;

use respool_engine::limits::Limits;
use respool_engine::settings::{
    Address, PoolKind, PoolSettings, ServerSettings, Settings, Timeouts,
};
use respool_engine::{Action, Directory, Engine, LinkId, Peer, SessionId, TICK_MS, Time, Worker};
use respool_protocol::encode;

const HELLO: &[u8] = b"*2\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n";

struct World {
    engine: Engine,
    now: u64,
    /// What sessions and links were sent.
    got: HashMap<SessionId, Vec<u8>>,
    asked: HashMap<LinkId, Vec<u8>>,
    /// Links that are to be connected.
    connecting: Vec<LinkId>,
    closed_links: Vec<LinkId>,
    closed: Vec<SessionId>,
    /// The most that was held at the end of a turn.
    held_most: u64,
}

impl World {
    fn new(settings: Settings) -> World {
        let server = ServerSettings {
            address: Address::Tcp {
                host: "server".into(),
                port: 1,
            },
            credentials: None,
            db: 0,
        };
        let settings = Settings {
            pools: vec![PoolSettings {
                name: "d".into(),
                kind: PoolKind::Single(server),
            }],
            ..settings
        };
        let worker = Worker {
            index: 0,
            count: 1,
            seed: 7,
            process_id: 1,
            tcp_port: 0,
            started_at: 0,
        };
        let engine = Engine::new(Arc::new(settings), worker, Time(0))
            .with_directory(Arc::new(Directory::default()));
        let mut world = World {
            engine,
            now: 0,
            got: HashMap::new(),
            asked: HashMap::new(),
            connecting: Vec::new(),
            closed_links: Vec::new(),
            closed: Vec::new(),
            held_most: 0,
        };
        world.engine.begin_turn(Time(0));
        world.end();
        let shared = world.connecting.remove(0);
        world.up(shared);
        world
    }

    fn end(&mut self) {
        self.engine.end_turn();
        self.held_most = self.held_most.max(self.engine.counters().held_bytes);
        while let Some(link) = self.engine.poll_link() {
            let bytes = self.engine.link_output(link).to_vec();
            self.engine.handle_link_written(link, bytes.len());
            self.asked.entry(link).or_default().extend(bytes);
        }
        while let Some(session) = self.engine.poll_session() {
            let bytes = self.engine.session_output(session).to_vec();
            self.engine.handle_session_written(session, bytes.len());
            self.got.entry(session).or_default().extend(bytes);
        }
        while let Some(action) = self.engine.poll_action() {
            match action {
                Action::Connect { link, .. } => self.connecting.push(link),
                Action::CloseLink(link) => self.closed_links.push(link),
                Action::CloseSession { session, .. } => self.closed.push(session),
                Action::ReadLink(..) | Action::ReadSession(..) => {}
                Action::Ask { .. } | Action::Answer { .. } => {
                    unreachable!("a single worker asks nobody")
                }
            }
        }
        while self.engine.poll_event().is_some() {}
    }

    /// A turn in which this happens.
    fn turn(&mut self, happens: impl FnOnce(&mut Engine)) {
        self.now += 100;
        self.engine.begin_turn(Time(self.now));
        happens(&mut self.engine);
        self.end();
    }

    /// Nothing happens for a while.
    fn wait_ms(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(u64::from(TICK_MS)) {
            self.now += u64::from(TICK_MS) * 1000;
            self.turn(|_| {});
        }
    }

    fn up(&mut self, link: LinkId) {
        self.turn(|engine| engine.handle_link_up(link));
        self.asked.remove(&link);
        self.says(link, HELLO);
    }

    fn says(&mut self, link: LinkId, bytes: &[u8]) {
        self.turn(|engine| engine.handle_link_bytes(link, bytes));
    }

    fn asks(&mut self, session: SessionId, args: &[&str]) {
        let mut bytes = Vec::new();
        encode::request(&mut bytes, args);
        self.turn(|engine| engine.handle_session_bytes(session, &bytes));
    }

    fn accept(&mut self) -> SessionId {
        let mut session = None;
        self.turn(|engine| session = Some(engine.handle_accept(Peer::Unix, 0)));
        session.expect("it was accepted in that turn")
    }

    /// A session that subscribes to a channel, and the hub's link, on which it has been confirmed.
    fn subscriber(&mut self, channel: &str) -> (SessionId, LinkId) {
        let session = self.accept();
        self.asks(session, &["SUBSCRIBE", channel]);
        let link = self.connecting.pop().expect("the hub wants a link");
        self.up(link);
        self.says(link, &confirmed(channel));
        let expected = [b"*", &confirmed(channel)[1..]].concat();
        assert_eq!(self.got.remove(&session), Some(expected));
        (session, link)
    }

    fn took(&mut self, session: SessionId) -> String {
        let bytes = self.got.remove(&session).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn was_asked(&mut self, link: LinkId) -> String {
        let bytes = self.asked.remove(&link).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

fn confirmed(channel: &str) -> Vec<u8> {
    let len = channel.len();
    format!(">3\r\n$9\r\nsubscribe\r\n${len}\r\n{channel}\r\n:1\r\n").into_bytes()
}

fn message(channel: &str, text: &str) -> Vec<u8> {
    let (len, text_len) = (channel.len(), text.len());
    format!(">3\r\n$7\r\nmessage\r\n${len}\r\n{channel}\r\n${text_len}\r\n{text}\r\n").into_bytes()
}

#[test]
fn a_server_that_is_only_listened_to_is_asked_for_a_sign_of_life() {
    let settings = Settings {
        timeouts: Timeouts {
            link_stall_ms: 2_000,
            ..Timeouts::default()
        },
        ..Settings::default()
    };
    let mut world = World::new(settings);
    let (session, link) = world.subscriber("a");
    world.was_asked(link);
    world.wait_ms(1_200);
    assert_eq!(world.was_asked(link), "*1\r\n$4\r\nPING\r\n");
    world.says(link, b"+PONG\r\n");
    world.wait_ms(1_200);
    assert_eq!(world.was_asked(link), "*1\r\n$4\r\nPING\r\n");
    // No answer: the connection is given up, and another one asked for the same.
    world.wait_ms(2_200);
    assert!(world.closed_links.contains(&link));
    let again = world.connecting.pop().expect("it is connected again");
    world.up(again);
    world.turn(|_| {});
    assert_eq!(
        world.was_asked(again),
        "*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\na\r\n"
    );
    world.says(again, &[confirmed("a"), message("a", "m")].concat());
    assert_eq!(
        world.took(session),
        "*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nm\r\n"
    );
    assert!(world.closed.is_empty());
}

#[test]
fn a_message_larger_than_any_output_ends_its_subscribers_and_no_others() {
    let settings = Settings {
        limits: Limits {
            session_output_hard_bytes: 64 << 10,
            ..Limits::default()
        },
        ..Settings::default()
    };
    let mut world = World::new(settings);
    let (large, link) = world.subscriber("large");
    let other = world.accept();
    world.asks(other, &["SUBSCRIBE", "other"]);
    world.turn(|_| {});
    world.says(link, &confirmed("other"));
    world.took(other);
    let bytes = [
        message("large", &"x".repeat(200 << 10)),
        message("other", "m"),
    ]
    .concat();
    for part in bytes.chunks(16 << 10) {
        world.says(link, part);
    }
    assert_eq!(world.closed, [large]);
    assert_eq!(
        world.took(other),
        "*3\r\n$7\r\nmessage\r\n$5\r\nother\r\n$1\r\nm\r\n"
    );
    assert!(world.closed_links.is_empty(), "the link is not to blame");
}

#[test]
fn a_burst_to_many_is_handed_out_in_parts_and_arrives_whole() {
    let mut world = World::new(Settings::default());
    let (first, link) = world.subscriber("a");
    let mut all = vec![first];
    for _ in 0..1_000 {
        let session = world.accept();
        world.asks(session, &["SUBSCRIBE", "a"]);
        all.push(session);
    }
    world.turn(|_| {});
    // Each came in a turn of its own.
    world.says(link, &b"+PONG\r\n".repeat(1_000));
    all.iter().for_each(|session| drop(world.took(*session)));
    let burst: Vec<u8> = (0..2_000)
        .flat_map(|number| message("a", &format!("{number:0100}")))
        .collect();
    assert!(burst.len() < 512 << 10);
    world.held_most = 0;
    world.says(link, &burst);
    while world.engine.deadline() == Some(Time(world.now)) {
        world.turn(|_| {});
    }
    let expected = String::from_utf8_lossy(&burst).replace(">3\r\n", "*3\r\n");
    for session in all {
        assert_eq!(world.took(session), expected);
    }
    let much = burst.len() as u64 * 1_001;
    assert!(world.held_most < 20 << 20, "{} of {much}", world.held_most);
}

#[test]
fn what_was_not_asked_ends_the_link_and_everything_is_asked_again() {
    for unasked in [
        confirmed("b"),
        confirmed("a"),
        b"+PONG\r\n".to_vec(),
        b":1\r\n".to_vec(),
    ] {
        let mut world = World::new(Settings::default());
        let (session, link) = world.subscriber("a");
        world.wait_ms(2_000);
        // What stands behind it is not believed.
        world.says(link, &[unasked, message("a", "m")].concat());
        assert!(world.closed_links.contains(&link));
        assert_eq!(world.took(session), "");
        let again = world.connecting.pop().expect("it is connected again");
        world.up(again);
        world.turn(|_| {});
        world.says(again, &[confirmed("a"), message("a", "m")].concat());
        assert!(world.took(session).ends_with("$1\r\nm\r\n"));
    }
}

#[test]
fn the_link_of_a_hub_that_nobody_needs_is_closed_and_had_again() {
    let mut world = World::new(Settings::default());
    let (session, link) = world.subscriber("a");
    world.was_asked(link);
    world.asks(session, &["UNSUBSCRIBE"]);
    world.turn(|_| {});
    assert_eq!(
        world.was_asked(link),
        "*2\r\n$11\r\nUNSUBSCRIBE\r\n$1\r\na\r\n"
    );
    assert_eq!(
        world.took(session),
        "",
        "not before the server has confirmed it"
    );
    world.says(link, b">3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:0\r\n");
    assert_eq!(
        world.took(session),
        "*3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:0\r\n"
    );
    world.wait_ms(9_000);
    assert!(world.closed_links.is_empty());
    world.wait_ms(2_000);
    assert_eq!(world.closed_links, [link]);
    let (_, other) = world.subscriber("b");
    assert_ne!(other, link);
}

#[test]
fn who_is_gone_before_its_confirmation_leaves_nothing_behind() {
    let mut world = World::new(Settings::default());
    let (_, link) = world.subscriber("a");
    let session = world.accept();
    world.asks(session, &["SUBSCRIBE", "b", "a"]);
    world.turn(|engine| engine.handle_session_lost(session));
    world.was_asked(link);
    world.says(link, &confirmed("b"));
    world.turn(|_| {});
    assert_eq!(world.engine.counters().subscriptions, 1);
    world.says(link, b">3\r\n$11\r\nunsubscribe\r\n$1\r\nb\r\n:1\r\n");
    world.says(link, &message("b", "m"));
    assert!(world.closed_links.is_empty());
    assert_eq!(world.engine.counters().messages_out, 0);
}

#[test]
fn who_says_good_bye_gets_no_more_messages() {
    let mut world = World::new(Settings::default());
    let (session, link) = world.subscriber("a");
    world.turn(|engine| {
        engine.handle_link_bytes(link, &message("a", "1"));
        engine.handle_session_bytes(session, b"QUIT\r\n");
        engine.handle_link_bytes(link, &message("a", "2"));
    });
    assert_eq!(
        world.took(session),
        "*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\n1\r\n+OK\r\n"
    );
    assert_eq!(world.closed, [session]);
}

#[test]
fn who_takes_nothing_is_closed_in_the_middle_of_a_burst_and_the_others_are_not() {
    let settings = Settings {
        limits: Limits {
            session_output_hard_bytes: 64 << 10,
            ..Limits::default()
        },
        ..Settings::default()
    };
    let mut world = World::new(settings);
    let (slow, link) = world.subscriber("a");
    let mut others = Vec::new();
    for _ in 0..3 {
        let session = world.accept();
        world.asks(session, &["SUBSCRIBE", "a"]);
        world.says(link, b"+PONG\r\n");
        world.took(session);
        others.push(session);
    }
    let text = "x".repeat(1_000);
    for _ in 0..200 {
        // Whoever is written to takes everything, but for one.
        world.engine.begin_turn(Time(world.now));
        world.engine.handle_link_bytes(link, &message("a", &text));
        world.engine.end_turn();
        while let Some(session) = world.engine.poll_session() {
            let len = world.engine.session_output(session).len();
            if session != slow {
                world.engine.handle_session_written(session, len);
                *world.got.entry(session).or_default() = vec![0; len];
            }
        }
    }
    world.turn(|_| {});
    assert_eq!(world.closed, [slow]);
    assert_eq!(world.engine.counters().subscriptions, 3);
    world.says(link, &message("a", "last"));
    for session in others {
        assert!(world.took(session).ends_with("\r\nlast\r\n"));
    }
}

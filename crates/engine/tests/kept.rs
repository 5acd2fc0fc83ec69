//! When a part of the answers waits for the rest, where several servers were asked at once: nobody waits longer than
//! `max_delay`, who asks for one thing never waits, and what may take long is not waited for.

mod world;

use std::collections::VecDeque;

use proptest::prelude::*;
use respool_engine::limits::KEPT_BYTES_MAX;
use respool_engine::{LinkId, SessionId, Time};
use world::{World, request};

const MAX_DELAY_US: u32 = 200;
const SERVERS: u16 = 3;
/// After so long nobody is expected who was answered before.
const FORGOTTEN_US: u64 = 100_000;

fn world(hold: bool) -> (World, Vec<LinkId>, Vec<String>) {
    let mut settings = world::sharded(SERVERS);
    settings.flush.hold = hold;
    settings.flush.max_delay_us = MAX_DELAY_US;
    let world = World::new(settings);
    let keys = (0..SERVERS.into())
        .map(|at| world.key_at(at, "k"))
        .collect();
    let links = world.all_shared.clone();
    (world, links, keys)
}

fn says_at(world: &mut World, us: u64, link: LinkId, reply: &str) {
    let now = Time(world.now.0 + us);
    world.turn_at(now, |engine| {
        engine.handle_link_bytes(link, reply.as_bytes())
    });
}

/// Asks for something of two servers, of which the second answers so much later. What is written when the first answer comes, then until
/// the second does, and with that.
fn asks_two(world: &mut World, session: SessionId, both: &[&str; 2], later_us: u64) -> [String; 3] {
    let links = world.all_shared.clone();
    world.asks(session, both);
    world.wait_ms(1);
    says_at(world, 50, links[0], "$1\r\na\r\n");
    let at_once = world.got(session);
    let due = Time(world.now.0 + later_us);
    while let Some(next) = world.engine.deadline().filter(|next| *next < due) {
        world.turn_at(next, |_| {});
    }
    let meanwhile = world.got(session);
    says_at(world, due.0 - world.now.0, links[1], "$1\r\nb\r\n");
    [at_once, meanwhile, world.got(session)]
}

const A: &str = "$1\r\na\r\n";
const B: &str = "$1\r\nb\r\n";

#[test]
fn what_was_asked_at_once_is_written_at_once() {
    let (mut world, _, keys) = world(true);
    let session = world.accept();
    let both = [0, 1].map(|at| format!("GET {}", keys[at]));
    for _ in 0..10 {
        let [at_once, meanwhile, rest] = asks_two(
            &mut world,
            session,
            &both.each_ref().map(String::as_str),
            100,
        );
        assert_eq!([at_once, meanwhile], ["", ""]);
        assert_eq!(rest, [A, B].concat());
    }
}

#[test]
fn where_nothing_is_held_back_no_answer_is() {
    let (mut world, _, keys) = world(false);
    let session = world.accept();
    let both = [0, 1].map(|at| format!("GET {}", keys[at]));
    let got = asks_two(
        &mut world,
        session,
        &both.each_ref().map(String::as_str),
        100,
    );
    assert_eq!(got, [A, "", B]);
}

#[test]
fn what_may_take_long_is_not_waited_for() {
    let (mut world, links, keys) = world(true);
    let session = world.accept();
    let both = [0, 1].map(|at| format!("GET {}", keys[at]));
    // It has no key, so any server may execute it, and it does not go the short way.
    for mixed in [["PING", &both[1]], [&both[0], "PING"]] {
        world.asks(session, &mixed);
        world.wait_ms(1);
        let (first, second) = match mixed[0] {
            "PING" => (links[0], links[1]),
            _ => (links[0], links[0]),
        };
        says_at(&mut world, 50, first, A);
        assert_eq!(world.got(session), A, "{mixed:?}");
        says_at(&mut world, 50, second, B);
        assert_eq!(world.got(session), B, "{mixed:?}");
    }
    // From then on it is as any other.
    let got = asks_two(
        &mut world,
        session,
        &both.each_ref().map(String::as_str),
        100,
    );
    assert_eq!(got, [String::new(), String::new(), [A, B].concat()]);
}

#[test]
fn waits_in_vain_become_rare() {
    let (mut world, _, keys) = world(true);
    let session = world.accept();
    let both = [0, 1].map(|at| format!("GET {}", keys[at]));
    let mut waits = 0;
    for _ in 0..2_000 {
        let [at_once, meanwhile, rest] = asks_two(
            &mut world,
            session,
            &both.each_ref().map(String::as_str),
            5_000,
        );
        assert_eq!([at_once.as_str(), &meanwhile].concat(), A);
        assert_eq!(rest, B);
        waits += u32::from(at_once.is_empty());
    }
    assert!((1..=12).contains(&waits), "{waits} waits in vain");
}

#[test]
fn a_wait_that_pays_ends_the_doubt() {
    let (mut world, _, keys) = world(true);
    let session = world.accept();
    let both = [0, 1].map(|at| format!("GET {}", keys[at]));
    let both = both.each_ref().map(String::as_str);
    // After each wait in vain so many answers are written at once; after one that pays, it begins anew.
    let mut skipped = Vec::new();
    for later_us in [5_000, 5_000, 100, 5_000] {
        let mut at_once = 0;
        while !asks_two(&mut world, session, &both, later_us)[0].is_empty() {
            at_once += 1;
            assert!(at_once < 100, "it waits no more: {skipped:?}");
        }
        skipped.push(at_once);
    }
    assert_eq!(skipped, [0, 1, 3, 0]);
    let got = asks_two(&mut world, session, &both, 100);
    assert_eq!(got[0], A, "that was in vain again");
    let got = asks_two(&mut world, session, &both, 100);
    assert_eq!(got, [String::new(), String::new(), [A, B].concat()]);
}

#[test]
fn what_is_large_is_written_at_once() {
    let (mut world, links, keys) = world(true);
    let session = world.accept();
    let [first, second] = [0, 1].map(|at| format!("GET {}", keys[at]));
    let value = |len: usize| format!("${len}\r\n{}\r\n", "x".repeat(len));
    // One large answer is; small ones are when they are as large together.
    for (large, many) in [(value(KEPT_BYTES_MAX), 1), (value(KEPT_BYTES_MAX / 4), 4)] {
        let mut asked = vec![first.as_str(); many];
        asked.push(&second);
        world.asks(session, &asked);
        world.wait_ms(1);
        for before in 0..many {
            assert_eq!(world.got(session), "", "{before} of {many}");
            says_at(&mut world, 1, links[0], &large);
        }
        assert_eq!(world.got(session), large.repeat(many));
        says_at(&mut world, 1, links[1], B);
        assert_eq!(world.got(session), B);
    }
}

/// What happens, so many microseconds after what happened before it.
#[derive(Clone, Debug)]
enum Step {
    /// A client asks for something of each of these servers.
    Ask(usize, Vec<usize>),
    /// A server answers so many of the requests that it was sent.
    Answer(usize, usize),
}

fn step(clients: usize) -> impl Strategy<Value = (u64, Step)> {
    let gap = prop_oneof![Just(0_u64), 1..30_u64, 1..500_u64];
    let servers = prop::collection::vec(0..usize::from(SERVERS), 1..6);
    let what = prop_oneof![
        3 => (0..clients, servers).prop_map(|(client, servers)| Step::Ask(client, servers)),
        3 => (0..usize::from(SERVERS), 1..20_usize).prop_map(|(server, count)| Step::Answer(server, count)),
    ];
    (gap, what)
}

/// An answer that a client is owed.
struct Owed {
    name: String,
    /// Since when it and everything in front of it has been there.
    since: Option<Time>,
    has_come: bool,
    /// It was asked for alone.
    is_alone: bool,
}

struct Play {
    world: World,
    keys: Vec<String>,
    asked: usize,
    clients: Vec<(SessionId, VecDeque<Owed>)>,
    /// By server: the names of what it was asked.
    unanswered: Vec<VecDeque<String>>,
    /// What was asked and not yet seen at a server, and since when.
    unsent: Vec<(String, Time)>,
    /// The longest that an answer waited, one that was asked for alone, and a request, microseconds.
    longest_us: u64,
    longest_alone_us: u64,
    longest_unsent_us: u64,
}

impl Play {
    fn new(clients: usize) -> Play {
        let (mut world, _, keys) = world(true);
        let clients = (0..clients).map(|_| (world.accept(), VecDeque::new()));
        Play {
            clients: clients.collect(),
            world,
            keys,
            asked: 0,
            unanswered: vec![VecDeque::new(); SERVERS.into()],
            unsent: Vec::new(),
            longest_us: 0,
            longest_alone_us: 0,
            longest_unsent_us: 0,
        }
    }

    fn pass(&mut self, us: u64) {
        let then = Time(self.world.now.0 + us);
        while let Some(due) = self.world.engine.deadline().filter(|due| *due <= then) {
            self.world.turn_at(due.max(self.world.now), |_| {});
            self.look();
        }
        self.world.turn_at(then, |_| {});
        self.look();
    }

    fn play(&mut self, (gap_us, step): (u64, Step)) {
        self.pass(gap_us);
        let now = self.world.now;
        match step {
            Step::Ask(client, servers) => {
                let (session, owed) = &mut self.clients[client];
                let is_alone = servers.len() == 1 && owed.is_empty();
                owed.iter_mut().for_each(|owed| owed.is_alone = false);
                let mut bytes = Vec::new();
                for server in servers {
                    let name = format!("<{}>", self.asked);
                    self.asked += 1;
                    bytes.extend(request(&["SET", &self.keys[server], &name]));
                    self.unsent.push((name.clone(), now));
                    owed.push_back(Owed {
                        name,
                        since: None,
                        has_come: false,
                        is_alone,
                    });
                }
                let session = *session;
                self.world
                    .turn_at(now, |engine| engine.handle_session_bytes(session, &bytes));
            }
            Step::Answer(server, count) => {
                let unanswered = &mut self.unanswered[server];
                let count = count.min(unanswered.len());
                let names: Vec<String> = unanswered.drain(..count).collect();
                let mut bytes = String::new();
                for name in names {
                    bytes += &format!("+{name}\r\n");
                    let mut all = self.clients.iter_mut().flat_map(|(_, owed)| owed);
                    let owed = all.find(|owed| owed.name == name);
                    owed.expect("it is owed until it is answered").has_come = true;
                }
                for (_, owed) in &mut self.clients {
                    let in_turn = owed.iter_mut().take_while(|owed| owed.has_come);
                    in_turn.for_each(|owed| owed.since = owed.since.or(Some(now)));
                }
                let link = self.world.all_shared[server];
                self.world.turn_at(now, |engine| {
                    engine.handle_link_bytes(link, bytes.as_bytes())
                });
            }
        }
        self.look();
    }

    /// Everything is answered.
    fn settle(&mut self) {
        for server in (0..SERVERS.into()).cycle().take(60) {
            self.play((u64::from(MAX_DELAY_US), Step::Answer(server, usize::MAX)));
        }
    }

    fn is_settled(&self) -> bool {
        self.unsent.is_empty() && self.clients.iter().all(|(_, owed)| owed.is_empty())
    }

    fn look(&mut self) {
        for (server, link) in self.world.all_shared.clone().into_iter().enumerate() {
            let names = self
                .world
                .asked(link)
                .into_iter()
                .map(|args| args[2].clone());
            for name in names {
                let its = self.unsent.iter().position(|(unsent, _)| *unsent == name);
                let (name, since) = self.unsent.swap_remove(its.expect("it was asked"));
                let us = self.world.now.0 - since.0;
                self.longest_unsent_us = self.longest_unsent_us.max(us);
                self.unanswered[server].push_back(name);
            }
        }
        for (session, owed) in &mut self.clients {
            for got in self.world.got(*session).split_terminator("\r\n") {
                let its = owed.pop_front().expect("nothing comes that is not owed");
                assert_eq!(
                    got,
                    format!("+{}", its.name),
                    "answers come in the order asked"
                );
                let since = its.since.expect("what is got has come");
                let us = self.world.now.0 - since.0;
                self.longest_us = self.longest_us.max(us);
                if its.is_alone {
                    self.longest_alone_us = self.longest_alone_us.max(us);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn no_answer_waits_for_the_rest_longer_than_max_delay_and_a_lone_one_never(
        steps in prop::collection::vec(step(4), 1..150),
    ) {
        let mut play = Play::new(4);
        for step in steps {
            play.play(step);
        }
        play.settle();
        prop_assert!(play.is_settled());
        prop_assert!(play.longest_us <= u64::from(MAX_DELAY_US), "{} µs", play.longest_us);
        prop_assert_eq!(play.longest_alone_us, 0);
        prop_assert!(play.longest_unsent_us <= u64::from(MAX_DELAY_US), "{} µs", play.longest_unsent_us);
    }

    #[test]
    fn who_is_alone_before_several_servers_never_waits(
        crowd in prop::collection::vec(step(4), 0..60), steps in prop::collection::vec(step(1), 1..60),
    ) {
        let mut play = Play::new(4);
        for step in crowd {
            play.play(step);
        }
        play.settle();
        play.pass(FORGOTTEN_US);
        play.longest_unsent_us = 0;
        for (gap_us, step) in steps {
            // What it asks for while it is not answered waits for the reply, as long as that may take.
            if matches!(step, Step::Answer(..)) || play.clients[0].1.is_empty() {
                play.play((gap_us, step));
            }
        }
        play.settle();
        prop_assert!(play.is_settled());
        prop_assert_eq!(play.longest_unsent_us, 0);
    }
}

/// A test of the test: a wait is seen.
#[test]
fn a_wait_is_seen() {
    let mut play = Play::new(1);
    play.play((0, Step::Ask(0, vec![0, 1])));
    play.play((10, Step::Answer(0, 1)));
    play.pass(1_000);
    assert_eq!(play.longest_us, u64::from(MAX_DELAY_US));
}

//! Replies that wait for the rest, where requests went to several servers at once. No reply waits
//! longer than `max_delay`, a single request never has its reply held, and replies do not wait for
//! a slow request.

use std::collections::VecDeque;

use crate::world::{World, request};
use proptest::prelude::*;
use respool_engine::limits::KEPT_BYTES_MAX;
use respool_engine::settings::Aim;
use respool_engine::{LinkId, SessionId, Time};

const MAX_DELAY_US: u32 = 200;
const SERVERS: u16 = 3;
/// A client is not expected any more once it has been silent for this long.
const FORGOTTEN_US: u64 = 100_000;

fn world(aim: Aim) -> (World, Vec<LinkId>, Vec<String>) {
    let mut settings = crate::world::sharded(SERVERS);
    settings.flush.aim = aim;
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

/// Sends requests to two servers, of which the second replies `later_us` later. Returns the output
/// at the first reply, between the two, and at the second.
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

/// Replies to requests that were sent at once to two servers are written at once.
#[test]
fn replies_of_one_batch_of_requests_are_written_at_once() {
    let (mut world, _, keys) = world(Aim::ServerCpu);
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

/// A flush rule that holds no batch holds no reply, either.
#[test]
fn rules_without_batching_hold_no_reply() {
    // A balanced rule holds no batch while server and worker have room.
    for aim in [Aim::Latency, Aim::Balanced] {
        let (mut world, _, keys) = world(aim);
        let session = world.accept();
        let both = [0, 1].map(|at| format!("GET {}", keys[at]));
        let got = asks_two(
            &mut world,
            session,
            &both.each_ref().map(String::as_str),
            100,
        );
        assert_eq!(got, [A, "", B], "{aim:?}");
    }
}

/// Replies do not wait for a request that may take long.
#[test]
fn replies_do_not_wait_for_a_slow_request() {
    let (mut world, links, keys) = world(Aim::ServerCpu);
    let session = world.accept();
    let both = [0, 1].map(|at| format!("GET {}", keys[at]));
    // PING has no key, so any server may execute it, and it takes the slow path.
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
    // The next requests are corked as before.
    let got = asks_two(
        &mut world,
        session,
        &both.each_ref().map(String::as_str),
        100,
    );
    assert_eq!(got, [String::new(), String::new(), [A, B].concat()]);
}

/// Waits for a reply that does not come in time become rare.
#[test]
fn waits_in_vain_become_rare() {
    let (mut world, _, keys) = world(Aim::ServerCpu);
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

/// A wait that pays ends the pause after waits in vain.
#[test]
fn wait_that_pays_ends_the_pause() {
    let (mut world, _, keys) = world(Aim::ServerCpu);
    let session = world.accept();
    let both = [0, 1].map(|at| format!("GET {}", keys[at]));
    let both = both.each_ref().map(String::as_str);
    // The number of replies that are written at once after each wait in vain. A wait that pays
    // resets it.
    let mut skipped = Vec::new();
    for later_us in [5_000, 5_000, 100, 5_000] {
        let mut at_once = 0;
        while !asks_two(&mut world, session, &both, later_us)[0].is_empty() {
            at_once += 1;
            assert!(at_once < 100, "no wait is tried any more: {skipped:?}");
        }
        skipped.push(at_once);
    }
    assert_eq!(skipped, [0, 1, 3, 0]);
    let got = asks_two(&mut world, session, &both, 100);
    assert_eq!(got[0], A, "one more wait in vain came before");
    let got = asks_two(&mut world, session, &both, 100);
    assert_eq!(got, [String::new(), String::new(), [A, B].concat()]);
}

/// Large replies are written at once, as are small ones that are as large together.
#[test]
fn large_replies_are_written_at_once() {
    let (mut world, links, keys) = world(Aim::ServerCpu);
    let session = world.accept();
    let [first, second] = [0, 1].map(|at| format!("GET {}", keys[at]));
    let value = |len: usize| format!("${len}\r\n{}\r\n", "x".repeat(len));
    // One reply of this size is large. Four small ones are, if they are as large together.
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

/// A step, this many microseconds after the one before.
#[derive(Clone, Debug)]
enum Step {
    /// A client sends a request to each of these servers.
    Ask(usize, Vec<usize>),
    /// A server answers this many of its requests.
    Answer(usize, usize),
}

fn step(clients: usize) -> impl Strategy<Value = (u64, Step)> {
    let gap = prop_oneof![Just(0_u64), 1..30_u64, 1..500_u64];
    let servers = prop::collection::vec(0..usize::from(SERVERS), 1..6);
    let step = prop_oneof![
        3 => (0..clients, servers).prop_map(|(client, servers)| Step::Ask(client, servers)),
        3 => (0..usize::from(SERVERS), 1..20_usize).prop_map(|(server, count)| Step::Answer(server, count)),
    ];
    (gap, step)
}

/// A reply that a client has not got.
struct Owed {
    name: String,
    /// Since when this reply and all before it have been there.
    since: Option<Time>,
    has_come: bool,
    /// Whether its request was sent alone.
    is_alone: bool,
}

struct Play {
    world: World,
    keys: Vec<String>,
    asked: usize,
    clients: Vec<(SessionId, VecDeque<Owed>)>,
    /// Requests without a reply, by server.
    unanswered: Vec<VecDeque<String>>,
    /// Requests that no server has got, and their times.
    unsent: Vec<(String, Time)>,
    /// The longest waits of a reply, of a reply to a single request, and of a request,
    /// microseconds.
    longest_us: u64,
    longest_alone_us: u64,
    longest_unsent_us: u64,
}

impl Play {
    fn new(clients: usize) -> Play {
        let (mut world, _, keys) = world(Aim::ServerCpu);
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
                    owed.expect("a request in flight has a reply to come")
                        .has_come = true;
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

    /// Has all requests answered.
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
                let (name, since) = self.unsent.swap_remove(its.expect("the server was asked"));
                let us = self.world.now.0 - since.0;
                self.longest_unsent_us = self.longest_unsent_us.max(us);
                self.unanswered[server].push_back(name);
            }
        }
        for (session, owed) in &mut self.clients {
            for got in self.world.got(*session).split_terminator("\r\n") {
                let reply = owed.pop_front().expect("each reply has a request");
                assert_eq!(
                    got,
                    format!("+{}", reply.name),
                    "answers come in the order asked"
                );
                let since = reply.since.expect("the reply has come");
                let us = self.world.now.0 - since.0;
                self.longest_us = self.longest_us.max(us);
                if reply.is_alone {
                    self.longest_alone_us = self.longest_alone_us.max(us);
                }
            }
        }
    }
}

proptest! {
    /// A reply waits for the rest of its batch no longer than `max_delay`, and a lone one never.
    #[test]
    fn reply_waits_for_others_at_most_max_delay(
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

    /// A client that is alone before several servers never waits for a batch.
    #[test]
    fn lone_client_of_several_servers_never_waits(
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
            // A request that is sent before the reply waits for that reply, however long it takes.
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

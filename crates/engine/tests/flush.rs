//! When a batch leaves, whatever clients ask and servers answer at whatever time: nobody waits longer than `max_delay`,
//! no more waits than a server reads at once, who is alone never waits, and where nothing is held back nobody does.

mod world;

use proptest::prelude::*;
use respool_engine::limits::{BATCH_BYTES_MAX, JOINED_BATCH_BYTES_MAX};
use respool_engine::{Origin, SessionId, Time};
use respool_protocol::encode;
use world::{World, request, requests};

const MAX_DELAY_US: u32 = 200;
/// After so long nobody is expected who was answered before.
const FORGOTTEN_US: u64 = 100_000;

/// What happens, so many microseconds after what happened before it.
#[derive(Clone, Debug)]
enum Step {
    /// A client asks for so many things in one write, of keys with so many bytes besides their names.
    Ask(usize, u8, usize, usize),
    /// The server answers so many of the requests that it was sent.
    Answer(usize),
}

fn step(clients: usize) -> impl Strategy<Value = (u64, Step)> {
    let gap = prop_oneof![Just(0_u64), 1..30_u64, 1..500_u64];
    let bytes = prop_oneof![3 => Just(0), 1 => 0..9_000_usize];
    let asked = (0..clients, 0..4_u8, 1..6_usize, bytes);
    let what = prop_oneof![
        3 => asked.prop_map(|(client, verb, count, bytes)| Step::Ask(client, verb, count, bytes)),
        2 => (1..30_usize).prop_map(Step::Answer),
    ];
    (gap, what)
}

/// Somebody who asks, and what became of the last that was asked.
struct Client {
    session: SessionId,
    /// Replies that have not come.
    owed: usize,
}

/// A request that was asked and not yet seen at the server.
struct Waiting {
    name: String,
    since: Time,
    bytes: usize,
    /// It may leave together with others.
    is_movable: bool,
}

struct Play {
    world: World,
    clients: Vec<Client>,
    /// A client asks for more before it was answered.
    is_impatient: bool,
    asked: usize,
    waiting: Vec<Waiting>,
    /// The longest that a request waited since this was last set to nothing, microseconds.
    longest_us: u64,
    /// At the end of a turn, so much waited as has to leave whatever is in flight.
    is_overfull: bool,
    joins: bool,
    /// Replies of the server that were not sent yet, one for each request.
    replies: Vec<Vec<u8>>,
}

impl Play {
    fn new(hold: bool, joins: bool, clients: usize) -> Play {
        let mut settings = world::settings();
        settings.flush.hold = hold;
        settings.flush.max_delay_us = MAX_DELAY_US;
        settings.flush.fuse = joins;
        settings.flush.collapse = joins;
        let mut world = World::new(settings);
        world.see_rights();
        let clients = (0..clients)
            .map(|_| Client {
                session: world.accept(),
                owed: 0,
            })
            .collect();
        Play {
            world,
            clients,
            // Who has asked for something that is joined is not read before it is answered: that is no wait for others.
            is_impatient: !joins,
            asked: 0,
            waiting: Vec::new(),
            longest_us: 0,
            is_overfull: false,
            joins,
            replies: Vec::new(),
        }
    }

    /// Lets the time pass, with every turn that is due on the way.
    fn pass(&mut self, us: u64) {
        let then = Time(self.world.now.0 + us);
        while let Some(due) = self.world.engine.deadline().filter(|due| *due <= then) {
            self.world.turn_at(due.max(self.world.now), |_| {});
            self.look();
            let next = self.world.engine.deadline();
            assert!(next.is_none_or(|next| next > due), "it is due once");
        }
        self.world.turn_at(then, |_| {});
        self.look();
    }

    fn play(&mut self, (gap_us, step): (u64, Step)) {
        self.pass(gap_us);
        let now = self.world.now;
        match step {
            Step::Ask(client, verb, count, key_bytes) => {
                let client = &mut self.clients[client];
                if client.owed > 0 && !self.is_impatient {
                    return;
                }
                let mut bytes = Vec::new();
                for _ in 0..count {
                    let name = format!("<{}>{}", self.asked, "k".repeat(key_bytes));
                    self.asked += 1;
                    client.owed += 1;
                    let args: &[&str] = match verb {
                        0 => &["SET", &name, "v"],
                        1 => &["INCR", &name],
                        2 => &["STRLEN", &name],
                        _ => &["GET", &name],
                    };
                    let asked = request(args);
                    bytes.extend_from_slice(&asked);
                    self.waiting.push(Waiting {
                        name,
                        since: now,
                        bytes: asked.len(),
                        is_movable: verb != 1,
                    });
                }
                let session = client.session;
                let ask = |engine: &mut respool_engine::Engine| {
                    engine.handle_session_bytes(session, &bytes);
                };
                self.world.turn_at(now, ask);
            }
            Step::Answer(count) => {
                let count = count.min(self.replies.len());
                let bytes: Vec<u8> = self.replies.drain(..count).flatten().collect();
                let link = self.world.shared;
                self.world
                    .turn_at(now, |engine| engine.handle_link_bytes(link, &bytes));
            }
        }
        self.look();
    }

    /// Sees what has come to the server, and what to the clients.
    fn look(&mut self) {
        let requests = self.world.asked(self.world.shared);
        let now = self.world.now;
        let longest_us = &mut self.longest_us;
        self.waiting.retain(|waiting| {
            let is_there = requests.iter().any(|args| args.contains(&waiting.name));
            if is_there {
                *longest_us = (*longest_us).max(now.0 - waiting.since.0);
            }
            !is_there
        });
        let bytes: usize = self.waiting.iter().map(|waiting| waiting.bytes).sum();
        let movable = self.waiting.iter().filter(|waiting| waiting.is_movable);
        let bytes_max = match self.joins && movable.count() * 2 > self.waiting.len() {
            true => JOINED_BATCH_BYTES_MAX,
            false => BATCH_BYTES_MAX,
        };
        self.is_overfull |= bytes >= bytes_max;
        for args in requests {
            let mut reply = Vec::new();
            match args[0].as_str() {
                "MGET" => {
                    encode::array(&mut reply, args.len() - 1);
                    (1..args.len()).for_each(|_| encode::bulk(&mut reply, b"v"));
                }
                "GET" => encode::bulk(&mut reply, b"v"),
                "MSET" | "SET" => reply.extend_from_slice(b"+OK\r\n"),
                _ => encode::integer(&mut reply, 1),
            }
            self.replies.push(reply);
        }
        for client in &mut self.clients {
            let got = self.world.got(client.session);
            client.owed -= got.matches(['$', '+', ':']).count();
        }
    }

    /// Everything is answered.
    fn settle(&mut self) {
        for _ in 0..100 {
            self.play((u64::from(MAX_DELAY_US), Step::Answer(usize::MAX)));
        }
    }

    fn is_settled(&self) -> bool {
        self.waiting.is_empty() && self.clients.iter().all(|client| client.owed == 0)
    }
}

proptest! {
    #[test]
    fn nobody_waits_longer_than_max_delay(
        steps in prop::collection::vec(step(6), 1..120), hold: bool, joins: bool,
    ) {
        let mut play = Play::new(hold, joins, 6);
        for step in steps {
            play.play(step);
        }
        play.settle();
        prop_assert!(play.is_settled());
        let longest = if hold { MAX_DELAY_US } else { 0 };
        prop_assert!(play.longest_us <= u64::from(longest), "{} µs", play.longest_us);
    }

    /// Of what may leave joined it is twice as much, for it becomes half.
    #[test]
    fn no_more_waits_than_a_server_reads_at_once(
        steps in prop::collection::vec(step(6), 1..120), joins: bool,
    ) {
        let mut play = Play::new(true, joins, 6);
        for step in steps {
            play.play(step);
        }
        prop_assert!(!play.is_overfull);
    }

    #[test]
    fn who_is_alone_never_waits(
        crowd in prop::collection::vec(step(6), 0..60), steps in prop::collection::vec(step(1), 1..60), joins: bool,
    ) {
        let mut play = Play::new(true, joins, 6);
        for step in crowd {
            play.play(step);
        }
        play.settle();
        play.pass(FORGOTTEN_US);
        prop_assert!(play.is_settled());
        // What it asks for while it is not answered waits for the reply, as long as that may take.
        play.is_impatient = false;
        play.longest_us = 0;
        for step in steps {
            play.play(step);
        }
        play.settle();
        prop_assert!(play.is_settled());
        prop_assert_eq!(play.longest_us, 0);
    }
}

/// A test of the test: what waits as long as it may is seen to.
#[test]
fn a_wait_is_seen() {
    let mut play = Play::new(true, true, 2);
    play.play((0, Step::Ask(0, 3, 1, 0)));
    play.play((10, Step::Ask(1, 3, 1, 0)));
    assert_eq!(play.longest_us, 0);
    play.pass(1_000);
    assert_eq!(play.longest_us, u64::from(MAX_DELAY_US));
}

/// As much as that has to wait: what leaves at once is never too much.
#[test]
fn a_batch_waits_until_it_is_as_much_as_a_server_reads_at_once_and_leaves_then() {
    for (verb, joins, bytes_max) in [
        (1, false, BATCH_BYTES_MAX),
        (1, true, BATCH_BYTES_MAX),
        (3, false, BATCH_BYTES_MAX),
        (3, true, JOINED_BATCH_BYTES_MAX),
    ] {
        let waiting = |missing: usize| {
            let mut play = Play::new(true, joins, 3);
            play.play((0, Step::Ask(0, 1, 1, 0)));
            play.play((1, Step::Ask(1, verb, 1, 8_000)));
            let first = play.waiting[0].bytes;
            // A key of four digits and one of five have heads that are as long but for that.
            let name = if verb == 1 { "INCR" } else { "GET" };
            let head = request(&[name, &"k".repeat(10_000)]).len() - 10_000;
            let rest = bytes_max - first - missing;
            let name_bytes = "<2>".len();
            let digits = if rest - head < 10_000 { 1 } else { 0 };
            play.play((1, Step::Ask(2, verb, 1, rest - head + digits - name_bytes)));
            assert!(!play.is_overfull);
            play.waiting.len()
        };
        assert_eq!(waiting(1), 2, "{verb}, {joins}");
        assert_eq!(waiting(0), 0, "{verb}, {joins}");
    }
}

#[test]
fn who_comes_by_a_listener_that_holds_nothing_waits_for_nobody_and_takes_others_along() {
    let mut settings = world::settings();
    settings.flush.max_delay_us = 50_000;
    let mut world = World::new(settings);
    let from = |listener| Origin {
        listener,
        ..Origin::from(world::peer(1))
    };
    let [one, two] = [0, 1].map(|listener| world.engine.handle_accept(from(listener), 0));
    world.asks(two, &["CONFIG SET respool.listener.hold no"]);
    world.says(world.shared, "-ERR Unknown option\r\n");
    assert_eq!(world.got(two), "+OK\r\n");
    world.sent(world.shared);

    world.asks(one, &["INCR a"]);
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&["INCR a"]));
    world.asks(one, &["INCR b"]);
    assert_eq!(
        world.sent(world.shared),
        "",
        "what is in flight is waited for"
    );
    world.asks(two, &["INCR c"]);
    let both = requests(&["INCR b", "INCR c"]);
    assert_eq!(world.sent(world.shared).as_bytes(), both);
    world.asks(one, &["INCR d"]);
    assert_eq!(
        world.sent(world.shared),
        "",
        "who comes by the other one waits"
    );
}

/// An option of all gathering is set at run time, whatever the server has under that name.
fn set(world: &mut World, option: &str) {
    let admin = world.accept();
    world.asks(admin, &[&format!("CONFIG SET respool.{option}")]);
    let mut told = String::new();
    while told.is_empty() {
        for link in world.all_shared.clone() {
            if !world.sent(link).is_empty() {
                world.says(link, "-ERR Unknown option\r\n");
            }
        }
        world.turn(|_| {});
        told = world.got(admin);
    }
    assert_eq!(told, "+OK\r\n", "{option}");
}

/// One server, and several of two kinds, with keys of the first of them.
fn worlds(max_delay_us: u32) -> impl Iterator<Item = (World, [String; 4])> {
    let kinds = [world::settings(), world::sharded(2), world::cluster(2)];
    kinds.into_iter().map(move |mut settings| {
        settings.flush.max_delay_us = max_delay_us;
        settings.flush.fuse = true;
        let mut world = World::new(settings);
        for link in world.all_shared.clone() {
            for args in world.asked(link) {
                let said = world.owners.said(&args).expect("who owns what");
                world.says(link, said);
            }
        }
        // On a Cluster of one slot, where they leave together at once.
        let tag = world.key_at(0, "t");
        let keys = ["a", "b", "c", "d"].map(|key| match world.owners.has_slots() {
            true => format!("{{{tag}}}{key}"),
            false => world.key_at(0, key),
        });
        (world, keys)
    })
}

/// Two ask one behind the other, and the first has no answer yet: the turns in which the second one's request does not leave.
fn turns_waited(world: &mut World, keys: &[String; 4]) -> usize {
    const MANY: usize = 50;
    let [one, other] = [(); 2].map(|()| world.accept());
    let link = world.shared;
    world.asks(one, &[&format!("INCR {}", keys[0])]);
    assert!(!world.sent(link).is_empty(), "nothing is in flight");
    world.asks(other, &[&format!("INCR {}", keys[1])]);
    let mut turns = 0;
    while world.sent(link).is_empty() && turns < MANY {
        world.turn(|_| {});
        turns += 1;
    }
    world.says(link, ":1\r\n:1\r\n");
    assert_eq!([one, other].map(|client| world.got(client)), [":1\r\n"; 2]);
    turns
}

#[test]
fn hold_and_max_delay_set_at_run_time_are_how_long_is_waited_at_most() {
    for (mut world, keys) in worlds(20_000) {
        // A turn is a millisecond.
        assert_eq!(turns_waited(&mut world, &keys), 20);
        set(&mut world, "max-delay-us 3000");
        assert_eq!(turns_waited(&mut world, &keys), 3);
        set(&mut world, "hold no");
        assert_eq!(turns_waited(&mut world, &keys), 0);
        set(&mut world, "hold yes");
        assert_eq!(turns_waited(&mut world, &keys), 3);
    }
}

#[test]
fn fused_keys_max_set_at_run_time_is_how_many_keys_an_mget_has_at_most() {
    for (mut world, keys) in worlds(0) {
        world.see_rights();
        let link = world.shared;
        let clients = [(); 4].map(|()| world.accept());
        let mgets = |world: &mut World| {
            let mut lens: Vec<usize> = Vec::new();
            world.turn(|engine| {
                for (client, key) in clients.iter().zip(&keys) {
                    engine.handle_session_bytes(*client, &requests(&[&format!("GET {key}")]));
                }
            });
            for asked in world.asked(link) {
                assert_eq!(asked[0], "MGET", "{asked:?}");
                lens.push(asked.len() - 1);
                let values = "$1\r\nv\r\n".repeat(asked.len() - 1);
                world.says(link, format!("*{}\r\n{values}", asked.len() - 1));
            }
            lens
        };
        assert_eq!(mgets(&mut world), [4], "{keys:?}");
        set(&mut world, "fused-keys-max 2");
        assert_eq!(mgets(&mut world), [2, 2]);
    }
}

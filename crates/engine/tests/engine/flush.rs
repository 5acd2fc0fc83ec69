//! The times at which batches leave, for any behaviour of clients and servers. No request waits
//! longer than `max-delay-us`. No more bytes wait than a server reads at once. A lone client never
//! waits, and without a flush rule that holds batches no client waits.

use crate::world::{World, request, requests};
use proptest::prelude::*;
use respool_engine::limits::{BATCH_BYTES_MAX, JOINED_BATCH_BYTES_MAX};
use respool_engine::settings::Aim;
use respool_engine::{Origin, SessionId, Time, Usage};
use respool_protocol::encode;

const MAX_DELAY_US: u32 = 200;
/// A client is not expected any more once it has been silent for this long.
const FORGOTTEN_US: u64 = 100_000;

/// A step, this many microseconds after the one before.
#[derive(Clone, Debug)]
enum Step {
    /// A client sends requests in one write: client, verb, number of requests, padding of each key.
    Ask(usize, u8, usize, usize),
    /// The server answers this many of its requests.
    Answer(usize),
}

fn step(clients: usize) -> impl Strategy<Value = (u64, Step)> {
    let gap = prop_oneof![Just(0_u64), 1..30_u64, 1..500_u64];
    let bytes = prop_oneof![3 => Just(0), 1 => 0..9_000_usize];
    let asked = (0..clients, 0..4_u8, 1..6_usize, bytes);
    let step = prop_oneof![
        3 => asked.prop_map(|(client, verb, count, bytes)| Step::Ask(client, verb, count, bytes)),
        2 => (1..30_usize).prop_map(Step::Answer),
    ];
    (gap, step)
}

/// A client, and the state of its requests.
struct Client {
    session: SessionId,
    /// Number of replies that have not come.
    owed: usize,
}

/// A request that has not reached the server.
struct Waiting {
    name: String,
    since: Time,
    bytes: usize,
    /// Whether it may be moved in its batch.
    is_movable: bool,
}

struct Play {
    world: World,
    clients: Vec<Client>,
    /// Whether clients send more requests before they get a reply.
    is_impatient: bool,
    asked: usize,
    waiting: Vec<Waiting>,
    /// The longest wait of a request since this was reset, microseconds.
    longest_us: u64,
    /// Whether more bytes waited at the end of a turn than may wait.
    is_overfull: bool,
    joins: bool,
    /// Replies that the server has not sent yet, one for each request.
    replies: Vec<Vec<u8>>,
}

impl Play {
    fn new(aim: Aim, joins: bool, clients: usize) -> Play {
        let mut settings = crate::world::settings();
        settings.flush.aim = aim;
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
        let mut play = Play {
            world,
            clients,
            // A session with a fused request is not read before the reply. That is no wait of the
            // flush rule.
            is_impatient: !joins,
            asked: 0,
            waiting: Vec::new(),
            longest_us: 0,
            is_overfull: false,
            joins,
            replies: Vec::new(),
        };
        if aim == Aim::Balanced {
            play.keep_busy();
        }
        play
    }

    /// Runs two seconds in which server and worker have no room, so that batches wait.
    fn keep_busy(&mut self) {
        for at in 0..4_000 {
            self.play((500, Step::Ask(at % self.clients.len(), 1, 1, 0)));
            self.play((0, Step::Answer(usize::MAX)));
        }
        self.settle();
        assert!(self.is_settled());
        assert!(self.longest_us <= u64::from(MAX_DELAY_US));
    }

    /// Runs a turn of a worker without room.
    fn turn_at(&mut self, now: Time) {
        self.world.usage = Some(Usage {
            ran_us: now.0,
            waited_us: 0,
        });
        self.world.turn_at(now, |_| {});
        self.look();
    }

    /// Lets time pass, with each turn that is due meanwhile.
    fn pass(&mut self, us: u64) {
        let then = Time(self.world.now.0 + us);
        while let Some(due) = self.world.engine.deadline().filter(|due| *due <= then) {
            self.turn_at(due.max(self.world.now));
            let next = self.world.engine.deadline();
            assert!(next.is_none_or(|next| next > due), "a known deadline");
        }
        self.turn_at(then);
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

    /// Passes requests and replies on, and checks them.
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
                "INFO" => {
                    // The server has been busy since its start.
                    let cpu_s = now.0 as f64 / 1e6;
                    let text = format!("used_cpu_sys:{cpu_s}\r\nused_cpu_user:0.0\r\n");
                    encode::bulk(&mut reply, text.as_bytes());
                }
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

    /// Has all requests answered.
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
    /// No request is held longer than `max-delay-us`, for any behaviour of clients and servers.
    #[test]
    fn no_request_waits_longer_than_max_delay(
        steps in prop::collection::vec(step(6), 1..120),
        aim in prop::sample::select(&Aim::ALL[..]),
        joins: bool,
    ) {
        let mut play = Play::new(aim, joins, 6);
        for step in steps {
            play.play(step);
        }
        play.settle();
        prop_assert!(play.is_settled());
        let longest = if aim == Aim::Latency { 0 } else { MAX_DELAY_US };
        prop_assert!(play.longest_us <= u64::from(longest), "{} µs", play.longest_us);
    }

    /// Twice as many bytes may wait if they can be fused, since fusing halves them.
    #[test]
    fn no_more_waits_than_a_server_reads_at_once(
        steps in prop::collection::vec(step(6), 1..120), joins: bool,
    ) {
        let mut play = Play::new(Aim::ServerCpu, joins, 6);
        for step in steps {
            play.play(step);
        }
        prop_assert!(!play.is_overfull);
    }

    /// A client that is alone never waits for a batch.
    #[test]
    fn lone_client_never_waits(
        crowd in prop::collection::vec(step(6), 0..60), steps in prop::collection::vec(step(1), 1..60), joins: bool,
    ) {
        let mut play = Play::new(Aim::ServerCpu, joins, 6);
        for step in crowd {
            play.play(step);
        }
        play.settle();
        play.pass(FORGOTTEN_US);
        prop_assert!(play.is_settled());
        // A request that is sent before the reply waits for that reply, however long it takes.
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

/// A test of the test: the longest wait is seen, also with a balanced rule before a busy server.
#[test]
fn a_wait_is_seen() {
    for aim in [Aim::ServerCpu, Aim::Balanced] {
        let mut play = Play::new(aim, true, 2);
        play.pass(FORGOTTEN_US);
        play.longest_us = 0;
        play.play((0, Step::Ask(0, 3, 1, 0)));
        play.play((10, Step::Ask(1, 3, 1, 0)));
        assert_eq!(play.longest_us, 0);
        play.pass(1_000);
        assert_eq!(play.longest_us, u64::from(MAX_DELAY_US), "{aim:?}");
    }
}

/// A batch of just the size that a server reads at once leaves. One byte less waits.
#[test]
fn batch_leaves_at_the_size_that_a_server_reads_at_once() {
    for (verb, joins, bytes_max) in [
        (1, false, BATCH_BYTES_MAX),
        (1, true, BATCH_BYTES_MAX),
        (3, false, BATCH_BYTES_MAX),
        (3, true, JOINED_BATCH_BYTES_MAX),
    ] {
        let waiting = |missing: usize| {
            let mut play = Play::new(Aim::ServerCpu, joins, 3);
            play.play((0, Step::Ask(0, 1, 1, 0)));
            play.play((1, Step::Ask(1, verb, 1, 8_000)));
            let first = play.waiting[0].bytes;
            // The heads of keys with four and five digits differ by one byte.
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

/// A session of a listener that holds no batch does not wait, and the requests of other listeners
/// in the batch leave with it.
#[test]
fn session_of_a_latency_listener_takes_others_along() {
    let mut settings = crate::world::settings();
    settings.flush.max_delay_us = 50_000;
    let mut world = World::new(settings);
    let from = |listener| Origin {
        listener,
        ..Origin::from(crate::world::peer(1))
    };
    let [one, two] = [0, 1].map(|listener| world.engine.handle_accept(from(listener), 0));
    world.asks(two, &["CONFIG SET respool.listener.flush-rule latency"]);
    world.says(world.shared, "-ERR Unknown option\r\n");
    assert_eq!(world.got(two), "+OK\r\n");
    world.sent(world.shared);

    world.asks(one, &["INCR a"]);
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&["INCR a"]));
    world.asks(one, &["INCR b"]);
    assert_eq!(
        world.sent(world.shared),
        "",
        "b waits for the batch in flight"
    );
    world.asks(two, &["INCR c"]);
    let both = requests(&["INCR b", "INCR c"]);
    assert_eq!(world.sent(world.shared).as_bytes(), both);
    world.asks(one, &["INCR d"]);
    assert_eq!(
        world.sent(world.shared),
        "",
        "d waits, as its listener batches"
    );
}

/// Sets an option of respool at run time. The server has no option of that name.
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

/// Worlds with one server, with several, and with a Cluster, each with keys of the first server.
fn worlds(max_delay_us: u32) -> impl Iterator<Item = (World, [String; 4])> {
    let kinds = [
        crate::world::settings(),
        crate::world::sharded(2),
        crate::world::cluster(2),
    ];
    kinds.into_iter().map(move |mut settings| {
        settings.flush.max_delay_us = max_delay_us;
        settings.flush.fuse = true;
        let mut world = World::new(settings);
        for link in world.all_shared.clone() {
            for args in world.asked(link) {
                let said = world.owners.said(&args).expect("a topology question");
                world.says(link, said);
            }
        }
        // Keys of one slot, so that they leave together on a Cluster, too.
        let tag = world.key_at(0, "t");
        let keys = ["a", "b", "c", "d"].map(|key| match world.owners.has_slots() {
            true => format!("{{{tag}}}{key}"),
            false => world.key_at(0, key),
        });
        (world, keys)
    })
}

/// Two clients send one request each, one after the other, without a reply. Returns the turns for
/// which the second one waits.
fn turns_waited(world: &mut World, keys: &[String; 4]) -> usize {
    const MANY: usize = 50;
    let [one, other] = [(); 2].map(|()| world.accept());
    let link = world.shared;
    world.asks(one, &[&format!("INCR {}", keys[0])]);
    assert!(!world.sent(link).is_empty(), "no request is in flight");
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

/// A flush rule and max-delay-us that are set at run time bound the wait from then on.
#[test]
fn flush_rule_and_max_delay_apply_when_set_at_run_time() {
    for (mut world, keys) in worlds(20_000) {
        // A turn takes a millisecond.
        assert_eq!(turns_waited(&mut world, &keys), 20);
        set(&mut world, "max-delay-us 3000");
        assert_eq!(turns_waited(&mut world, &keys), 3);
        set(&mut world, "flush-rule latency");
        assert_eq!(turns_waited(&mut world, &keys), 0);
        set(&mut world, "flush-rule server-cpu");
        assert_eq!(turns_waited(&mut world, &keys), 3);
    }
}

/// fused-keys-max that is set at run time bounds the keys of an MGET from then on.
#[test]
fn fused_keys_max_applies_when_set_at_run_time() {
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

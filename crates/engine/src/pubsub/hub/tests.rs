use std::collections::HashMap;

use super::*;

fn key(index: u32) -> Key {
    Key {
        index,
        generation: 1,
    }
}

fn hub() -> (Hub, Arc<Directory>) {
    let directory = Arc::new(Directory::default());
    let mut hub = Hub::new((0, ServerId(0)), 0, directory.clone(), Time(0));
    hub.handle_up(HOME);
    (hub, directory)
}

impl Hub {
    /// Who gets the messages of a channel that come on this line.
    pub(crate) fn members(&self, line: u16, channel: Key) -> &[Key] {
        let channel = self.channels.get(channel);
        let channel = channel.filter(|channel| channel.line == line);
        channel.map_or(&[], |channel| &channel.members)
    }
}

/// A session by itself.
struct One {
    key: Key,
    subscriber: Subscriber,
}

impl One {
    fn new(index: u32) -> One {
        One {
            key: key(index),
            subscriber: Subscriber::new(HubId(0)),
        }
    }

    fn subscribe(&mut self, hub: &mut Hub, kind: Kind, names: &[&str]) -> Outcome {
        let names = names.iter().map(|name| name.as_bytes());
        let who = (self.key, 0);
        hub.subscribe(
            who,
            &mut self.subscriber,
            (kind, HOME),
            names,
            Version::Resp2,
            Time(0),
        )
    }

    fn unsubscribe(&mut self, hub: &mut Hub, kind: Kind, names: &[&str]) -> Outcome {
        let names = names.iter().map(|name| name.as_bytes());
        let who = (self.key, 0);
        hub.unsubscribe(
            who,
            &mut self.subscriber,
            kind,
            names,
            Version::Resp2,
            Time(0),
        )
    }

    /// The reply to its request, which must be the next one that is done.
    fn done(&mut self, hub: &mut Hub) -> String {
        let done = hub.poll_done(HOME).expect("its request is done");
        assert_eq!(done.session, self.key);
        let reply = hub.settle(done, &mut self.subscriber, Version::Resp2);
        text(reply.expect("all of it is done"))
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .expect("the test's names are text")
        .replace("\r\n", " ")
}

fn reply(outcome: Outcome) -> String {
    match outcome {
        Outcome::Reply(bytes) => text(bytes),
        Outcome::Waits => panic!("it waits"),
    }
}

/// What the server is asked now.
fn asked(hub: &mut Hub) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(ask) = hub.poll_ask(HOME) {
        let mut bytes = Vec::new();
        hub.write_ask(HOME, &ask, &mut bytes);
        let words = text(bytes);
        let words = words.split(' ').skip(2).step_by(2).collect::<Vec<_>>();
        all.push(words.join(" "));
    }
    all
}

const SUBSCRIBED_A: &str = "*3 $9 subscribe $1 a :1 ";

#[test]
fn the_server_is_asked_once_for_a_channel_and_told_when_the_last_one_has_left() {
    let (mut hub, directory) = hub();
    let (mut one, mut two) = (One::new(1), One::new(2));
    assert_eq!(
        one.subscribe(&mut hub, Kind::Channel, &["a"]),
        Outcome::Waits
    );
    assert_eq!(asked(&mut hub), ["SUBSCRIBE a"]);
    assert!(hub.poll_done(HOME).is_none());
    // Asked for already: a sign of life behind it is enough.
    assert_eq!(
        two.subscribe(&mut hub, Kind::Channel, &["a"]),
        Outcome::Waits
    );
    assert_eq!(asked(&mut hub), ["PING"]);
    assert_eq!(
        hub.handle_confirmed(HOME, (Kind::Channel, true), b"a"),
        Ok(())
    );
    assert_eq!(one.done(&mut hub), SUBSCRIBED_A);
    assert!(hub.poll_done(HOME).is_none());
    assert_eq!(hub.handle_pong(HOME), Ok(()));
    assert_eq!(two.done(&mut hub), SUBSCRIBED_A);
    let channel = hub.channel(Kind::Channel, b"a").expect("it is claimed");
    assert_eq!(hub.members(HOME, channel), [key(1), key(2)]);
    assert_eq!(directory.receivers(0, Kind::Channel, b"a"), 1);

    assert_eq!(
        one.unsubscribe(&mut hub, Kind::Channel, &["a"]),
        Outcome::Waits
    );
    assert_eq!(asked(&mut hub), ["PING"]);
    assert_eq!(hub.handle_pong(HOME), Ok(()));
    assert_eq!(one.done(&mut hub), "*3 $11 unsubscribe $1 a :0 ");
    assert!(directory.is_empty());
    two.subscriber.waits = 0;
    hub.forget(two.key, &mut two.subscriber);
    assert_eq!(asked(&mut hub), ["UNSUBSCRIBE a"]);
    assert_eq!(directory.receivers(0, Kind::Channel, b"a"), -1);
    assert_eq!(
        hub.handle_confirmed(HOME, (Kind::Channel, false), b"a"),
        Ok(())
    );
    assert!(hub.lines[0].is_unused() && directory.is_empty());
    assert_eq!(hub.claims(), 0);
}

#[test]
fn who_subscribes_while_the_server_is_being_told_to_stop_is_subscribed_in_the_end() {
    let (mut hub, _) = hub();
    let (mut one, mut two) = (One::new(1), One::new(2));
    one.subscribe(&mut hub, Kind::Shard, &["a"]);
    asked(&mut hub);
    hub.handle_confirmed(HOME, (Kind::Shard, true), b"a")
        .expect("asked");
    one.done(&mut hub);
    assert_eq!(one.unsubscribe(&mut hub, Kind::Shard, &[]), Outcome::Waits);
    assert_eq!(two.subscribe(&mut hub, Kind::Shard, &["a"]), Outcome::Waits);
    assert_eq!(asked(&mut hub), ["SUNSUBSCRIBE a", "SSUBSCRIBE a"]);
    hub.handle_confirmed(HOME, (Kind::Shard, false), b"a")
        .expect("asked");
    assert_eq!(one.done(&mut hub), "*3 $12 sunsubscribe $1 a :0 ");
    assert!(hub.poll_done(HOME).is_none());
    hub.handle_confirmed(HOME, (Kind::Shard, true), b"a")
        .expect("asked");
    assert_eq!(two.done(&mut hub), "*3 $10 ssubscribe $1 a :1 ");
    let channel = hub.channel(Kind::Shard, b"a").expect("it is claimed");
    assert_eq!(hub.members(HOME, channel), [key(2)]);
}

#[test]
fn counts_are_the_sessions_own_and_channels_and_patterns_share_one() {
    let (mut hub, _) = hub();
    let mut one = One::new(1);
    one.subscribe(&mut hub, Kind::Channel, &["a", "b", "a"]);
    assert_eq!(asked(&mut hub), ["SUBSCRIBE a", "SUBSCRIBE b"]);
    hub.handle_confirmed(HOME, (Kind::Channel, true), b"a")
        .expect("asked");
    hub.handle_confirmed(HOME, (Kind::Channel, true), b"b")
        .expect("asked");
    assert_eq!(
        one.done(&mut hub),
        "*3 $9 subscribe $1 a :1 *3 $9 subscribe $1 b :2 *3 $9 subscribe $1 a :2 "
    );
    one.subscribe(&mut hub, Kind::Pattern, &["a"]);
    asked(&mut hub);
    hub.handle_confirmed(HOME, (Kind::Pattern, true), b"a")
        .expect("asked");
    assert_eq!(one.done(&mut hub), "*3 $10 psubscribe $1 a :3 ");
    one.subscribe(&mut hub, Kind::Shard, &["a"]);
    asked(&mut hub);
    hub.handle_confirmed(HOME, (Kind::Shard, true), b"a")
        .expect("asked");
    assert_eq!(one.done(&mut hub), "*3 $10 ssubscribe $1 a :1 ");
    assert_eq!(one.subscriber.counts(), [2, 1, 1]);
    // What it has already, and what it never had.
    let again = one.subscribe(&mut hub, Kind::Channel, &["b"]);
    assert_eq!(reply(again), "*3 $9 subscribe $1 b :3 ");
    let never = one.unsubscribe(&mut hub, Kind::Channel, &["z"]);
    assert_eq!(reply(never), "*3 $11 unsubscribe $1 z :3 ");
    assert!(!hub.lines[0].has_asks());
    assert_eq!(
        one.unsubscribe(&mut hub, Kind::Channel, &[]),
        Outcome::Waits
    );
    assert_eq!(asked(&mut hub), ["UNSUBSCRIBE a", "UNSUBSCRIBE b"]);
    hub.handle_confirmed(HOME, (Kind::Channel, false), b"a")
        .expect("asked");
    hub.handle_confirmed(HOME, (Kind::Channel, false), b"b")
        .expect("asked");
    assert_eq!(
        one.done(&mut hub),
        "*3 $11 unsubscribe $1 a :2 *3 $11 unsubscribe $1 b :1 "
    );
    let none = one.unsubscribe(&mut hub, Kind::Channel, &[]);
    assert_eq!(reply(none), "*3 $11 unsubscribe $-1 :1 ");
    hub.forget(one.key, &mut one.subscriber);
    assert_eq!(one.subscriber.counts(), [0, 0, 0]);
    assert_eq!((one.subscriber.held_bytes(), hub.claims()), (0, 0));
}

#[test]
fn an_error_of_the_server_is_the_reply_and_leaves_nothing_subscribed() {
    let (mut hub, directory) = hub();
    let (mut one, mut two) = (One::new(1), One::new(2));
    one.subscribe(&mut hub, Kind::Channel, &["a", "no"]);
    two.subscribe(&mut hub, Kind::Channel, &["no"]);
    assert_eq!(asked(&mut hub), ["SUBSCRIBE a", "SUBSCRIBE no"]);
    hub.handle_confirmed(HOME, (Kind::Channel, true), b"a")
        .expect("asked");
    assert_eq!(hub.handle_refused(HOME, b"-NOPERM\r\n"), Ok(vec![]));
    assert_eq!(one.done(&mut hub), "-NOPERM ");
    assert_eq!(two.done(&mut hub), "-NOPERM ");
    assert!(!one.subscriber.listens() && !two.subscriber.listens());
    assert_eq!(asked(&mut hub), ["UNSUBSCRIBE a"]);
    hub.handle_confirmed(HOME, (Kind::Channel, false), b"a")
        .expect("asked");
    assert!(hub.lines[0].is_unused() && directory.is_empty());
    // The next one asks anew.
    one.subscribe(&mut hub, Kind::Channel, &["no"]);
    assert_eq!(asked(&mut hub), ["SUBSCRIBE no"]);
    hub.handle_confirmed(HOME, (Kind::Channel, true), b"no")
        .expect("asked");
    assert_eq!(one.done(&mut hub), "*3 $9 subscribe $2 no :1 ");
}

#[test]
fn a_new_connection_is_asked_for_everything_and_members_notice_nothing() {
    let (mut hub, directory) = hub();
    let (mut one, mut two, mut late) = (One::new(1), One::new(2), One::new(3));
    for who in [&mut one, &mut two] {
        who.subscribe(&mut hub, Kind::Channel, &["a"]);
        asked(&mut hub);
        if who.key == key(1) {
            hub.handle_confirmed(HOME, (Kind::Channel, true), b"a")
                .expect("asked");
        } else {
            hub.handle_pong(HOME).expect("asked");
        }
        who.done(&mut hub);
    }
    late.subscribe(&mut hub, Kind::Pattern, &["p*"]);
    two.unsubscribe(&mut hub, Kind::Channel, &["a"]);
    asked(&mut hub);
    assert_eq!(directory.receivers(0, Kind::Channel, b"a"), 1);
    hub.handle_down(HOME);
    assert!(directory.is_empty());
    assert_eq!(two.done(&mut hub), "*3 $11 unsubscribe $1 a :0 ");
    assert!(hub.poll_done(HOME).is_none());
    // With no connection, to leave takes no time.
    two.subscribe(&mut hub, Kind::Channel, &["b"]);
    assert!(hub.poll_done(HOME).is_none() && asked(&mut hub).is_empty());
    hub.forget(two.key, &mut two.subscriber);
    hub.handle_up(HOME);
    let mut again = asked(&mut hub);
    again.sort();
    assert_eq!(again, ["PSUBSCRIBE p*", "SUBSCRIBE a"]);
    hub.handle_confirmed(HOME, (Kind::Channel, true), b"a")
        .expect("asked");
    hub.handle_confirmed(HOME, (Kind::Pattern, true), b"p*")
        .expect("asked");
    assert_eq!(late.done(&mut hub), "*3 $10 psubscribe $2 p* :1 ");
    // The server may not want to any more: who was a member must not believe that it still is.
    hub.handle_down(HOME);
    hub.handle_up(HOME);
    asked(&mut hub);
    assert_eq!(hub.handle_refused(HOME, b"-NOPERM\r\n"), Ok(vec![key(1)]));
}

/// A name of 10,000 bytes is held once, however many sessions listen and whichever table has it.
#[test]
fn channel_name_is_stored_once() {
    let (mut hub, directory) = hub();
    let long = "x".repeat(10_000);
    let mut sessions = [One::new(1), One::new(2), One::new(3)];
    for one in &mut sessions {
        one.subscribe(&mut hub, Kind::Channel, &[&long]);
    }
    asked(&mut hub);
    hub.handle_confirmed(HOME, (Kind::Channel, true), long.as_bytes())
        .expect("asked");
    for one in &mut sessions {
        one.done(&mut hub);
    }
    assert_eq!(hub.held_bytes(), 10_000 + CHANNEL_BYTES);
    let key = hub.channel(Kind::Channel, long.as_bytes());
    let channel = key.and_then(|key| hub.channels.get(key));
    let name = &channel.expect("it is claimed").name;
    // The channel, the table of names and the directory share it.
    assert_eq!(Arc::strong_count(name), 3);
    for one in &mut sessions {
        assert_eq!(one.subscriber.held_bytes(), CLAIM_BYTES);
        assert_eq!(one.subscriber.named_bytes(), 10_000);
        hub.forget(one.key, &mut one.subscriber);
    }
    asked(&mut hub);
    hub.handle_confirmed(HOME, (Kind::Channel, false), long.as_bytes())
        .expect("asked");
    assert!(directory.is_empty());
    assert_eq!(hub.held_bytes(), 0);
}

/// A session leaves a channel before the server was asked for it. The server is not asked, and the
/// channel is forgotten.
#[test]
fn channel_left_before_it_was_asked_for_is_not_asked_for() {
    let (mut hub, _) = hub();
    let (mut one, mut two) = (One::new(1), One::new(2));
    assert_eq!(
        one.subscribe(&mut hub, Kind::Channel, &["a", "b"]),
        Outcome::Waits
    );
    hub.forget(one.key, &mut one.subscriber);
    assert_eq!(
        two.subscribe(&mut hub, Kind::Channel, &["b"]),
        Outcome::Waits
    );
    let expected = [
        "PING",
        "SUBSCRIBE b",
        "PING",
        "UNSUBSCRIBE b",
        "SUBSCRIBE b",
    ];
    assert_eq!(asked(&mut hub), expected);
    assert!(
        hub.channel(Kind::Channel, b"a").is_none(),
        "it is forgotten"
    );
    assert_eq!(hub.handle_pong(HOME), Ok(()));
    assert_eq!(
        hub.handle_confirmed(HOME, (Kind::Channel, true), b"b"),
        Ok(())
    );
    assert_eq!(hub.handle_pong(HOME), Ok(()));
    assert_eq!(
        hub.handle_confirmed(HOME, (Kind::Channel, false), b"b"),
        Ok(())
    );
    assert!(hub.poll_done(HOME).is_none());
    assert_eq!(
        hub.handle_confirmed(HOME, (Kind::Channel, true), b"b"),
        Ok(())
    );
    assert_eq!(two.done(&mut hub), "*3 $9 subscribe $1 b :1 ");
}

#[test]
fn who_has_waited_too_long_is_told_and_holds_nothing() {
    let (mut hub, _) = hub();
    let mut one = One::new(1);
    one.subscribe(&mut hub, Kind::Channel, &["a"]);
    asked(&mut hub);
    assert!(hub.poll_late(Time(999_000), 1000).is_none());
    let (_, done) = hub
        .poll_late(Time(1_000_000), 1000)
        .expect("its time is over");
    let reply = hub.fail(done, &mut one.subscriber, || b"-late".to_vec());
    assert_eq!(reply.as_deref(), Some(&b"-late"[..]));
    assert_eq!((one.subscriber.held_bytes(), hub.claims()), (0, 0));
    assert_eq!(asked(&mut hub), ["UNSUBSCRIBE a"]);
    assert!(hub.poll_done(HOME).is_none());
}

#[test]
fn what_nobody_asked_is_known_for_it() {
    let (mut hub, _) = hub();
    let mut one = One::new(1);
    assert_eq!(hub.handle_pong(HOME), Err(Unasked));
    assert_eq!(hub.handle_refused(HOME, b"-ERR\r\n"), Err(Unasked));
    one.subscribe(&mut hub, Kind::Channel, &["a"]);
    asked(&mut hub);
    assert_eq!(
        hub.handle_confirmed(HOME, (Kind::Channel, false), b"a"),
        Err(Unasked)
    );
    assert_eq!(
        hub.handle_confirmed(HOME, (Kind::Pattern, true), b"a"),
        Err(Unasked)
    );
    assert_eq!(
        hub.handle_confirmed(HOME, (Kind::Channel, true), b"b"),
        Err(Unasked)
    );
    assert_eq!(hub.handle_pong(HOME), Err(Unasked));
    assert_eq!(
        hub.handle_confirmed(HOME, (Kind::Channel, true), b"a"),
        Ok(())
    );
}

#[test]
fn a_push_says_for_whom_it_is_as_soon_as_that_has_come() {
    let message = b">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$5\r\nhel\r\n\r\n";
    let (kind, name) = (Kind::Channel, b"a".as_slice());
    for cut in 0..message.len() {
        let expected = (cut >= 24).then_some(Push::Message { kind, name });
        assert_eq!(Push::read(&message[..cut]), expected, "{cut} bytes");
    }
    let read = |frame: &'static [u8]| Push::read(frame).expect("it is whole");
    assert_eq!(
        read(b">4\r\n$8\r\npmessage\r\n$2\r\np*\r\n$2\r\npq\r\n$1\r\nx\r\n"),
        Push::Message {
            kind: Kind::Pattern,
            name: b"p*"
        }
    );
    assert_eq!(
        read(b">3\r\n$12\r\nsunsubscribe\r\n$0\r\n\r\n:0\r\n"),
        Push::Confirmed {
            kind: Kind::Shard,
            on: false,
            name: b""
        }
    );
    assert_eq!(
        read(b">3\r\n$11\r\nunsubscribe\r\n_\r\n:0\r\n"),
        Push::Other
    );
    assert_eq!(read(b">2\r\n$10\r\ninvalidate\r\n_\r\n"), Push::Other);
}

/// Against a server that does what it is asked, in order, but late; with messages in between and
/// connections that break: what a session is told is what happened to it.
#[test]
fn whatever_happens_a_subscriber_gets_what_is_published_between_its_confirmations_and_nothing_else()
{
    for seed in 1..=300u64 {
        history(seed);
    }
}

/// What the server writes.
enum Says {
    Confirmed(Kind, bool, String),
    Pong,
    Message(Kind, String),
}

fn history(seed: u64) {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = move |bound: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 11) % bound
    };
    let names = ["a", "b", "c"];
    let directory = Arc::new(Directory::default());
    let mut hub = Hub::new((0, ServerId(0)), 0, directory.clone(), Time(0));
    let mut sessions: Vec<One> = (0..5).map(One::new).collect();
    // What each session believes, by its confirmations.
    let mut believes: HashMap<(usize, Kind, String), bool> = HashMap::new();
    let mut waiting: HashMap<usize, (Kind, bool, Vec<String>)> = HashMap::new();
    let mut connected = false;
    let mut server: HashMap<(Kind, String), bool> = HashMap::new();
    let mut stream: VecDeque<Says> = VecDeque::new();
    let steps = 400;
    for step in 0..steps + 50 {
        let ending = step >= steps;
        match if ending { 9 } else { below(10) } {
            0..=3 => {
                let who = below(sessions.len() as u64) as usize;
                if waiting.contains_key(&who) {
                    continue;
                }
                let kind = Kind::ALL[below(3) as usize];
                let on = below(2) == 0;
                let count = if on { 1 + below(2) } else { below(3) };
                let asks: Vec<&str> = (0..count).map(|_| names[below(3) as usize]).collect();
                let outcome = if on {
                    sessions[who].subscribe(&mut hub, kind, &asks)
                } else {
                    sessions[who].unsubscribe(&mut hub, kind, &asks)
                };
                let asks: Vec<String> = if asks.is_empty() {
                    names.iter().map(ToString::to_string).collect()
                } else {
                    asks.iter().map(ToString::to_string).collect()
                };
                match outcome {
                    Outcome::Waits => {
                        waiting.insert(who, (kind, on, asks));
                    }
                    Outcome::Reply(_) => {
                        for name in asks {
                            believes.insert((who, kind, name), on);
                        }
                    }
                }
            }
            4 => {
                // A client goes, and another takes its place.
                let who = below(sessions.len() as u64) as usize;
                let One { key, subscriber } = &mut sessions[who];
                hub.forget(*key, subscriber);
                waiting.remove(&who);
                believes.retain(|(whose, _, _), _| *whose != who);
            }
            5 if below(8) == 0 => {
                if connected {
                    hub.handle_down(HOME);
                    server.clear();
                    stream.clear();
                } else {
                    hub.handle_up(HOME);
                }
                connected = !connected;
            }
            6 => {
                let (kind, name) = (Kind::ALL[below(3) as usize], names[below(3) as usize]);
                if server.get(&(kind, name.to_owned())) == Some(&true) {
                    stream.push_back(Says::Message(kind, name.to_owned()));
                }
            }
            7..=8 => {
                while let Some(ask) = hub.poll_ask(HOME) {
                    assert!(connected, "seed {seed}: asked without a connection");
                    match ask {
                        Ask::Ping => stream.push_back(Says::Pong),
                        Ask::Abandon { .. } => panic!("nothing moves"),
                        Ask::Subscribe { channel, on, .. } => {
                            let channel = hub.channels.get(channel).expect("it stays");
                            let name = text(channel.name.to_vec());
                            server.insert((channel.kind, name.clone()), on);
                            stream.push_back(Says::Confirmed(channel.kind, on, name));
                        }
                    }
                }
            }
            _ => match stream.pop_front() {
                None => {}
                Some(Says::Pong) => hub.handle_pong(HOME).expect("it was asked"),
                Some(Says::Confirmed(kind, on, name)) => hub
                    .handle_confirmed(HOME, (kind, on), name.as_bytes())
                    .expect("it was asked"),
                Some(Says::Message(kind, name)) => {
                    let channel = hub.channel(kind, name.as_bytes());
                    for (who, session) in sessions.iter().enumerate() {
                        let members = channel.map_or(&[][..], |channel| hub.members(HOME, channel));
                        let gets = members.iter().filter(|member| **member == session.key);
                        let gets = gets.count();
                        let expected = believes.get(&(who, kind, name.clone())) == Some(&true);
                        assert_eq!(gets, usize::from(expected), "seed {seed}, step {step}");
                    }
                }
            },
        }
        while let Some(done) = hub.poll_done(HOME) {
            let who = done.session.index as usize;
            hub.settle(done, &mut sessions[who].subscriber, Version::Resp3);
            let (kind, on, names) = waiting.remove(&who).expect("it waited");
            for name in names {
                believes.insert((who, kind, name), on);
            }
        }
        for (who, session) in sessions.iter().enumerate() {
            if !waiting.contains_key(&who) {
                let listens = believes
                    .iter()
                    .filter(|((whose, _, _), on)| *whose == who && **on);
                let counts: usize = session.subscriber.counts().iter().sum();
                assert_eq!(counts, listens.count(), "seed {seed}, step {step}");
            }
        }
    }
    // Everybody goes: nothing is left.
    for One { key, subscriber } in &mut sessions {
        hub.forget(*key, subscriber);
    }
    if connected {
        while let Some(ask) = hub.poll_ask(HOME) {
            if let Ask::Subscribe { channel, on, .. } = ask {
                let channel = hub.channels.get(channel).expect("it stays");
                let name = text(channel.name.to_vec());
                stream.push_back(Says::Confirmed(channel.kind, on, name));
            } else {
                stream.push_back(Says::Pong);
            }
        }
        while let Some(says) = stream.pop_front() {
            match says {
                Says::Pong => hub.handle_pong(HOME).expect("it was asked"),
                Says::Confirmed(kind, on, name) => hub
                    .handle_confirmed(HOME, (kind, on), name.as_bytes())
                    .expect("it was asked"),
                Says::Message(..) => {}
            }
        }
    }
    assert!(hub.lines[0].is_unused(), "seed {seed}");
    assert_eq!(hub.claims(), 0, "seed {seed}");
    assert!(directory.is_empty(), "seed {seed}");
}

/// Against nodes whose slots move, that send the hub from one to the other, put it off, and lose
/// connections: nobody gets what it has not asked for, or twice; and once they come to rest
/// everybody has all, at the owner.
#[test]
fn a_sharded_channel_follows_its_slot_and_its_subscribers_do_not_notice() {
    for seed in 1..=400u64 {
        Nodes::new(seed).history();
    }
}

const SHARDED: [&str; 3] = ["a", "b", "c"];

/// What a node of a Cluster writes.
#[derive(Debug)]
enum Said {
    Subscribed(usize),
    Dropped(usize),
    /// This channel's slot is that node's.
    Moved(usize, usize),
    TryAgain,
    Pong,
    Message(usize),
}

#[derive(Default)]
struct OneNode {
    sends: [bool; 3],
    asked: VecDeque<(bool, Option<usize>)>,
    said: VecDeque<Said>,
}

struct Nodes {
    seed: u64,
    random: u64,
    hub: Hub,
    directory: Arc<Directory>,
    sessions: Vec<One>,
    waiting: HashMap<usize, (bool, Vec<usize>)>,
    believes: HashMap<(usize, usize), bool>,
    /// Whose each channel is, and whose we take it to be.
    owner: [usize; 3],
    table: [usize; 3],
    has_moved: bool,
    nodes: Vec<OneNode>,
    calm: bool,
    delivered: usize,
}

impl Nodes {
    fn new(seed: u64) -> Nodes {
        let directory = Arc::new(Directory::default());
        Nodes {
            seed,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            hub: Hub::new((0, ServerId(9)), 0, directory.clone(), Time(0)),
            directory,
            sessions: (0..4).map(One::new).collect(),
            waiting: HashMap::new(),
            believes: HashMap::new(),
            owner: [0, 1, 2],
            table: [0, 0, 0],
            has_moved: false,
            nodes: (0..3).map(|_| OneNode::default()).collect(),
            calm: false,
            delivered: 0,
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as usize % bound
    }

    /// What the hub holds, counted anew.
    fn check_held(&self) {
        let bytes = |(_, channel): (Key, &Channel)| channel.name.len() + CHANNEL_BYTES;
        let recount: usize = self.hub.channels.iter().map(bytes).sum();
        assert_eq!(self.hub.bytes, recount, "seed {}", self.seed);
        let claims: usize = self.sessions.iter().map(|one| one.subscriber.claims).sum();
        assert_eq!(self.hub.claims, claims, "seed {}", self.seed);
    }

    fn history(mut self) {
        for _ in 0..600 {
            match self.below(16) {
                0..=2 => self.ask(),
                3 => self.leave_for_good(),
                4 => self.move_slot(),
                5 => self.cut_or_connect(),
                6 => {
                    let name = self.below(3);
                    self.publish(name);
                }
                7 => self.hub.end_delay(),
                8..=10 => {
                    let node = self.below(3);
                    self.execute(node);
                }
                _ => {
                    let node = self.below(3);
                    self.read(node);
                }
            }
            self.end_turn();
            self.check_held();
        }
        self.come_to_rest();
        assert!(
            self.waiting.is_empty(),
            "seed {}: {:?}",
            self.seed,
            self.waiting
        );
        for name in 0..3 {
            let expects = (0..4).filter(|who| self.believes.get(&(*who, name)) == Some(&true));
            let expects = expects.count();
            self.delivered = 0;
            self.publish(name);
            self.come_to_rest();
            assert_eq!(
                self.delivered, expects,
                "seed {}, channel {name}",
                self.seed
            );
        }
        for who in 0..self.sessions.len() {
            let One { key, subscriber } = &mut self.sessions[who];
            self.hub.forget(*key, subscriber);
        }
        self.believes.clear();
        self.come_to_rest();
        let is_unused = self.hub.lines.iter().all(Line::is_unused);
        assert!(is_unused && self.hub.claims() == 0, "seed {}", self.seed);
        assert_eq!(self.hub.channels.len(), 0, "seed {}", self.seed);
        assert!(self.directory.is_empty(), "seed {}", self.seed);
        assert!(
            self.nodes.iter().all(|node| node.sends == [false; 3]),
            "seed {}",
            self.seed
        );
    }

    fn ask(&mut self) {
        let who = self.below(4);
        if self.waiting.contains_key(&who) {
            return;
        }
        let on = self.below(2) == 0;
        let name = self.below(3);
        let all = !on && self.below(2) == 0;
        let line = self.hub.line_to(ServerId(self.table[name] as u16), Time(0));
        let names = (!all).then_some(SHARDED[name].as_bytes());
        let One { key, subscriber } = &mut self.sessions[who];
        let whose = (*key, 0);
        let (version, now) = (Version::Resp2, Time(0));
        let outcome = match on {
            true => {
                let of = (Kind::Shard, line);
                self.hub
                    .subscribe(whose, subscriber, of, names.into_iter(), version, now)
            }
            false => {
                let of = Kind::Shard;
                self.hub
                    .unsubscribe(whose, subscriber, of, names.into_iter(), version, now)
            }
        };
        let names = if all { vec![0, 1, 2] } else { vec![name] };
        match outcome {
            Outcome::Waits => {
                self.waiting.insert(who, (on, names));
            }
            Outcome::Reply(_) => {
                self.believes
                    .extend(names.iter().map(|name| ((who, *name), on)));
            }
        }
    }

    fn leave_for_good(&mut self) {
        let who = self.below(4);
        let One { key, subscriber } = &mut self.sessions[who];
        self.hub.forget(*key, subscriber);
        self.waiting.remove(&who);
        self.believes.retain(|(whose, _), _| *whose != who);
    }

    fn move_slot(&mut self) {
        let (name, to) = (self.below(3), self.below(3));
        let from = std::mem::replace(&mut self.owner[name], to);
        if from != to && std::mem::take(&mut self.nodes[from].sends[name]) {
            self.nodes[from].said.push_back(Said::Dropped(name));
        }
        if self.below(3) == 0 {
            // The nodes were asked.
            self.has_moved |= std::mem::replace(&mut self.table[name], to) != to;
        }
    }

    fn cut_or_connect(&mut self) {
        let node = self.below(3);
        let Some(line) = self.line_of(node) else {
            return;
        };
        if self.hub.line(line).connected && self.below(6) == 0 {
            self.hub.handle_down(line);
            self.nodes[node] = OneNode::default();
        } else if !self.hub.line(line).connected {
            self.connect(line);
        }
    }

    fn connect(&mut self, line: u16) {
        self.hub.line(line).link = key(line.into());
        self.hub.handle_up(line);
    }

    fn line_of(&self, node: usize) -> Option<u16> {
        let mut lines = (0..).zip(&self.hub.lines).skip(1);
        let found = lines.find(|(_, line)| line.server == ServerId(node as u16));
        found.map(|(at, _)| at)
    }

    fn publish(&mut self, name: usize) {
        let node = &mut self.nodes[self.owner[name]];
        if node.sends[name] {
            node.said.push_back(Said::Message(name));
        }
    }

    /// A node does the next thing that it was asked.
    fn execute(&mut self, node: usize) {
        let puts_off = !self.calm && self.below(8) == 0;
        let Some((on, name)) = self.nodes[node].asked.pop_front() else {
            return;
        };
        let owner = self.owner;
        let node_state = &mut self.nodes[node];
        let mut say = |said| node_state.said.push_back(said);
        match (on, name) {
            (_, None) => say(Said::Pong),
            (true, Some(_)) if puts_off => say(Said::TryAgain),
            (true, Some(name)) if owner[name] != node => say(Said::Moved(name, owner[name])),
            (true, Some(name)) => {
                say(Said::Subscribed(name));
                node_state.sends[name] = true;
            }
            // What it says to that, if it is not the owner any more, is heard by nobody.
            (false, Some(name)) if owner[name] != node => say(Said::Pong),
            (false, Some(name)) => {
                say(Said::Dropped(name));
                say(Said::Pong);
                node_state.sends[name] = false;
            }
        }
    }

    /// The next thing that a node said is read.
    fn read(&mut self, node: usize) {
        let Some(line) = self.line_of(node) else {
            return;
        };
        let Some(said) = self.nodes[node].said.pop_front() else {
            return;
        };
        match said {
            Said::Subscribed(name) => self
                .hub
                .handle_confirmed(line, (Kind::Shard, true), SHARDED[name].as_bytes())
                .expect("it was asked"),
            Said::Dropped(name) => self.hub.handle_dropped(line, SHARDED[name].as_bytes()),
            Said::Moved(name, to) => {
                self.has_moved |= std::mem::replace(&mut self.table[name], to) != to;
                self.hub.handle_put_off(line, None).expect("it was asked");
            }
            Said::TryAgain => self.hub.handle_put_off(line, None).expect("it was asked"),
            Said::Pong => self.hub.handle_pong(line).expect("it was asked"),
            Said::Message(name) => {
                let channel = self.hub.channel(Kind::Shard, SHARDED[name].as_bytes());
                let members = channel.map_or(&[][..], |channel| self.hub.members(line, channel));
                for (who, session) in self.sessions.iter().enumerate() {
                    let gets = members.iter().filter(|key| **key == session.key).count();
                    let believes = self.believes.get(&(who, name)) == Some(&true);
                    let expected = usize::from(believes && !members.is_empty());
                    assert_eq!(gets, expected, "seed {}", self.seed);
                }
                self.delivered += members.len();
            }
        }
    }

    fn end_turn(&mut self) {
        if std::mem::take(&mut self.has_moved) || self.hub.is_stalled() {
            let table = self.table;
            let owner = |slot| {
                let of = |name: &&str| hash_slot(name.as_bytes()) == slot;
                let name = SHARDED.iter().position(of).expect("one of them");
                ServerId(table[name] as u16)
            };
            for (channel, owner) in self.hub.strays(owner) {
                let line = self.hub.line_to(owner, Time(0));
                self.hub.move_to(channel, line);
            }
            self.hub.ask_again();
        }
        for line in 0..self.hub.lines.len() as u16 {
            let server = self.hub.line(line).server;
            while let Some(ask) = self.hub.poll_ask(line) {
                let mut bytes = Vec::new();
                self.hub.write_ask(line, &ask, &mut bytes);
                let text = text(bytes);
                let name = SHARDED
                    .iter()
                    .position(|name| text.contains(&format!("$1 {name} ")));
                let on = text.contains("SSUBSCRIBE");
                self.nodes[usize::from(server.0)]
                    .asked
                    .push_back((on, name));
            }
            while let Some(done) = self.hub.poll_done(line) {
                let who = done.session.index as usize;
                let subscriber = &mut self.sessions[who].subscriber;
                if self.hub.settle(done, subscriber, Version::Resp3).is_some() {
                    let (on, names) = self.waiting.remove(&who).expect("it waited");
                    self.believes
                        .extend(names.iter().map(|name| ((who, *name), on)));
                }
            }
        }
        for (who, session) in self.sessions.iter().enumerate() {
            if !self.waiting.contains_key(&who) {
                let of = |((whose, _), on): &(&(usize, usize), &bool)| *whose == who && **on;
                let believes = self.believes.iter().filter(of).count();
                assert_eq!(
                    session.subscriber.counts()[2],
                    believes,
                    "seed {}",
                    self.seed
                );
            }
        }
    }

    /// Slots stay where they are, and everybody is heard.
    fn come_to_rest(&mut self) {
        self.calm = true;
        for _ in 0..100 {
            for node in 0..3 {
                if let Some(line) = self.line_of(node)
                    && !self.hub.line(line).connected
                {
                    self.connect(line);
                }
                while !self.nodes[node].asked.is_empty() {
                    self.execute(node);
                }
                while !self.nodes[node].said.is_empty() {
                    self.read(node);
                }
            }
            self.hub.end_delay();
            self.end_turn();
        }
    }
}

/// A session that asks again for what it has takes no further claim: the bound counts claims.
#[test]
fn member_that_asks_again_has_one_claim() {
    let (mut hub, _) = hub();
    let mut one = One::new(1);
    one.subscribe(&mut hub, Kind::Channel, &["a"]);
    asked(&mut hub);
    let confirmed = hub.handle_confirmed(HOME, (Kind::Channel, true), b"a");
    confirmed.expect("asked");
    one.done(&mut hub);
    one.subscribe(&mut hub, Kind::Channel, &["a", "a", "b", "b"]);
    assert_eq!(hub.claims(), 2);
    hub.forget(one.key, &mut one.subscriber);
    assert_eq!(hub.claims(), 0);
}

/// A channel moves to another line while its old line is still told to stop. A session asks for it
/// again.
#[test]
fn channel_that_moves_with_its_first_claim_stays() {
    let (mut hub, _) = hub();
    let mut one = One::new(1);
    one.subscribe(&mut hub, Kind::Shard, &["a"]);
    asked(&mut hub);
    let confirmed = hub.handle_confirmed(HOME, (Kind::Shard, true), b"a");
    confirmed.expect("asked");
    one.done(&mut hub);
    // The confirmation of this is on its way when the slot has moved.
    hub.forget(one.key, &mut one.subscriber);
    assert_eq!(asked(&mut hub), ["SUNSUBSCRIBE a"]);
    let other = hub.line_to(ServerId(1), Time(0));
    let mut two = One::new(2);
    let names = ["a"].iter().map(|name| name.as_bytes());
    let version = Version::Resp2;
    let at = (Kind::Shard, other);
    let outcome = hub.subscribe(
        (two.key, 0),
        &mut two.subscriber,
        at,
        names,
        version,
        Time(0),
    );
    assert_eq!(outcome, Outcome::Waits);
    assert_eq!(hub.claims(), 1);
    let channel = hub.channel(Kind::Shard, b"a").expect("it is claimed");
    assert_eq!(hub.channels.get(channel).map(|its| its.line), Some(other));
    hub.forget(two.key, &mut two.subscriber);
    assert_eq!(hub.claims(), 0);
}

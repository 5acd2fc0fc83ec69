use std::collections::HashMap;

use super::*;
use crate::base::handle::session;

fn hub() -> (Hub, Arc<SubscriberCounts>) {
    let subscriber_counts = Arc::new(SubscriberCounts::default());
    let mut hub = Hub::new((0, ServerId(0)), 0, subscriber_counts.clone(), Time(0));
    hub.handle_up(HOME);
    (hub, subscriber_counts)
}

impl Hub {
    /// The members of a channel that get its messages from this line.
    pub(crate) fn members(&self, line: u16, channel: ChannelId) -> &[SessionId] {
        let channel = self.channels.get(channel);
        let channel = channel.filter(|channel| channel.line == line);
        channel.map_or(&[], |channel| &channel.members)
    }
}

/// A session and its subscriptions.
struct TestSession {
    id: SessionId,
    subscriber: Subscriber,
}

impl TestSession {
    fn new(index: u32) -> TestSession {
        TestSession {
            id: session(index),
            subscriber: Subscriber::new(HubId(0)),
        }
    }

    fn subscribe(&mut self, hub: &mut Hub, kind: ChannelKind, names: &[&str]) -> HubOutcome {
        let names = names.iter().map(|name| name.as_bytes());
        let place = (self.id, 0);
        hub.subscribe(
            place,
            &mut self.subscriber,
            (kind, HOME),
            names,
            Version::Resp2,
            Time(0),
        )
    }

    fn unsubscribe(&mut self, hub: &mut Hub, kind: ChannelKind, names: &[&str]) -> HubOutcome {
        let names = names.iter().map(|name| name.as_bytes());
        let place = (self.id, 0);
        hub.unsubscribe(
            place,
            &mut self.subscriber,
            kind,
            names,
            Version::Resp2,
            Time(0),
        )
    }

    /// Settles its request, which must be the next one that is done. Returns the reply.
    fn done(&mut self, hub: &mut Hub) -> String {
        let done = hub.poll_done(HOME).expect("the request is done");
        assert_eq!(done.session, self.id);
        let reply = hub.settle(done, &mut self.subscriber, Version::Resp2);
        text(reply.expect("the request is done on all lines"))
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .expect("the test's names are text")
        .replace("\r\n", " ")
}

fn reply(outcome: HubOutcome) -> String {
    match outcome {
        HubOutcome::Reply(bytes) => text(bytes),
        HubOutcome::Waits => panic!("the request waits"),
    }
}

/// Sends the hub's requests, and returns them.
fn sent(hub: &mut Hub) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(request) = hub.poll_request(HOME) {
        let mut bytes = Vec::new();
        hub.write_request(HOME, &request, &mut bytes);
        let words = text(bytes);
        let words = words.split(' ').skip(2).step_by(2).collect::<Vec<_>>();
        all.push(words.join(" "));
    }
    all
}

const SUBSCRIBED_A: &str = "*3 $9 subscribe $1 a :1 ";

/// The hub asks the server once for a channel, and unsubscribes when the last session has left.
#[test]
fn channel_is_subscribed_once_and_left_with_the_last_session() {
    let (mut hub, subscriber_counts) = hub();
    let (mut one, mut two) = (TestSession::new(1), TestSession::new(2));
    assert_eq!(
        one.subscribe(&mut hub, ChannelKind::Channel, &["a"]),
        HubOutcome::Waits
    );
    assert_eq!(sent(&mut hub), ["SUBSCRIBE a"]);
    assert!(hub.poll_done(HOME).is_none());
    // The channel is asked for already, so a PING behind that is enough.
    assert_eq!(
        two.subscribe(&mut hub, ChannelKind::Channel, &["a"]),
        HubOutcome::Waits
    );
    assert_eq!(sent(&mut hub), ["PING"]);
    assert_eq!(
        hub.handle_confirmed(HOME, (ChannelKind::Channel, true), b"a"),
        Ok(())
    );
    assert_eq!(one.done(&mut hub), SUBSCRIBED_A);
    assert!(hub.poll_done(HOME).is_none());
    assert_eq!(hub.handle_pong(HOME), Ok(()));
    assert_eq!(two.done(&mut hub), SUBSCRIBED_A);
    let channel = hub
        .channel(ChannelKind::Channel, b"a")
        .expect("the channel is claimed");
    assert_eq!(hub.members(HOME, channel), [session(1), session(2)]);
    assert_eq!(
        subscriber_counts.receivers(0, ChannelKind::Channel, b"a"),
        1
    );

    assert_eq!(
        one.unsubscribe(&mut hub, ChannelKind::Channel, &["a"]),
        HubOutcome::Waits
    );
    assert_eq!(sent(&mut hub), ["PING"]);
    assert_eq!(hub.handle_pong(HOME), Ok(()));
    assert_eq!(one.done(&mut hub), "*3 $11 unsubscribe $1 a :0 ");
    assert!(subscriber_counts.is_empty());
    two.subscriber.waits = 0;
    hub.forget(two.id, &mut two.subscriber);
    assert_eq!(sent(&mut hub), ["UNSUBSCRIBE a"]);
    assert_eq!(
        subscriber_counts.receivers(0, ChannelKind::Channel, b"a"),
        -1
    );
    assert_eq!(
        hub.handle_confirmed(HOME, (ChannelKind::Channel, false), b"a"),
        Ok(())
    );
    assert!(hub.lines[0].is_unused() && subscriber_counts.is_empty());
    assert_eq!(hub.claims(), 0);
}

/// A session that subscribes while the hub unsubscribes is subscribed in the end.
#[test]
fn subscribe_during_unsubscribe_subscribes_again() {
    let (mut hub, _) = hub();
    let (mut one, mut two) = (TestSession::new(1), TestSession::new(2));
    one.subscribe(&mut hub, ChannelKind::Shard, &["a"]);
    sent(&mut hub);
    hub.handle_confirmed(HOME, (ChannelKind::Shard, true), b"a")
        .expect("the hub asked");
    one.done(&mut hub);
    assert_eq!(
        one.unsubscribe(&mut hub, ChannelKind::Shard, &[]),
        HubOutcome::Waits
    );
    assert_eq!(
        two.subscribe(&mut hub, ChannelKind::Shard, &["a"]),
        HubOutcome::Waits
    );
    assert_eq!(sent(&mut hub), ["SUNSUBSCRIBE a", "SSUBSCRIBE a"]);
    hub.handle_confirmed(HOME, (ChannelKind::Shard, false), b"a")
        .expect("the hub asked");
    assert_eq!(one.done(&mut hub), "*3 $12 sunsubscribe $1 a :0 ");
    assert!(hub.poll_done(HOME).is_none());
    hub.handle_confirmed(HOME, (ChannelKind::Shard, true), b"a")
        .expect("the hub asked");
    assert_eq!(two.done(&mut hub), "*3 $10 ssubscribe $1 a :1 ");
    let channel = hub
        .channel(ChannelKind::Shard, b"a")
        .expect("the channel is claimed");
    assert_eq!(hub.members(HOME, channel), [session(2)]);
}

/// The count in a confirmation is the session's own. Channels and patterns share one count.
#[test]
fn counts_are_per_session_and_join_channels_and_patterns() {
    let (mut hub, _) = hub();
    let mut one = TestSession::new(1);
    one.subscribe(&mut hub, ChannelKind::Channel, &["a", "b", "a"]);
    assert_eq!(sent(&mut hub), ["SUBSCRIBE a", "SUBSCRIBE b"]);
    hub.handle_confirmed(HOME, (ChannelKind::Channel, true), b"a")
        .expect("the hub asked");
    hub.handle_confirmed(HOME, (ChannelKind::Channel, true), b"b")
        .expect("the hub asked");
    assert_eq!(
        one.done(&mut hub),
        "*3 $9 subscribe $1 a :1 *3 $9 subscribe $1 b :2 *3 $9 subscribe $1 a :2 "
    );
    one.subscribe(&mut hub, ChannelKind::Pattern, &["a"]);
    sent(&mut hub);
    hub.handle_confirmed(HOME, (ChannelKind::Pattern, true), b"a")
        .expect("the hub asked");
    assert_eq!(one.done(&mut hub), "*3 $10 psubscribe $1 a :3 ");
    one.subscribe(&mut hub, ChannelKind::Shard, &["a"]);
    sent(&mut hub);
    hub.handle_confirmed(HOME, (ChannelKind::Shard, true), b"a")
        .expect("the hub asked");
    assert_eq!(one.done(&mut hub), "*3 $10 ssubscribe $1 a :1 ");
    assert_eq!(one.subscriber.counts(), [2, 1, 1]);
    // A channel that it has already, and one that it never had.
    let again = one.subscribe(&mut hub, ChannelKind::Channel, &["b"]);
    assert_eq!(reply(again), "*3 $9 subscribe $1 b :3 ");
    let never = one.unsubscribe(&mut hub, ChannelKind::Channel, &["z"]);
    assert_eq!(reply(never), "*3 $11 unsubscribe $1 z :3 ");
    assert!(!hub.lines[0].has_requests());
    assert_eq!(
        one.unsubscribe(&mut hub, ChannelKind::Channel, &[]),
        HubOutcome::Waits
    );
    assert_eq!(sent(&mut hub), ["UNSUBSCRIBE a", "UNSUBSCRIBE b"]);
    hub.handle_confirmed(HOME, (ChannelKind::Channel, false), b"a")
        .expect("the hub asked");
    hub.handle_confirmed(HOME, (ChannelKind::Channel, false), b"b")
        .expect("the hub asked");
    assert_eq!(
        one.done(&mut hub),
        "*3 $11 unsubscribe $1 a :2 *3 $11 unsubscribe $1 b :1 "
    );
    let none = one.unsubscribe(&mut hub, ChannelKind::Channel, &[]);
    assert_eq!(reply(none), "*3 $11 unsubscribe $-1 :1 ");
    hub.forget(one.id, &mut one.subscriber);
    assert_eq!(one.subscriber.counts(), [0, 0, 0]);
    assert_eq!((one.subscriber.held_bytes(), hub.claims()), (0, 0));
}

/// An error of the server is the reply to each session that waits, and none is subscribed.
#[test]
fn server_error_is_the_reply_and_subscribes_nothing() {
    let (mut hub, subscriber_counts) = hub();
    let (mut one, mut two) = (TestSession::new(1), TestSession::new(2));
    one.subscribe(&mut hub, ChannelKind::Channel, &["a", "no"]);
    two.subscribe(&mut hub, ChannelKind::Channel, &["no"]);
    assert_eq!(sent(&mut hub), ["SUBSCRIBE a", "SUBSCRIBE no"]);
    hub.handle_confirmed(HOME, (ChannelKind::Channel, true), b"a")
        .expect("the hub asked");
    assert_eq!(hub.handle_refused(HOME, b"-NOPERM\r\n"), Ok(vec![]));
    assert_eq!(one.done(&mut hub), "-NOPERM ");
    assert_eq!(two.done(&mut hub), "-NOPERM ");
    assert!(!one.subscriber.listens() && !two.subscriber.listens());
    assert_eq!(sent(&mut hub), ["UNSUBSCRIBE a"]);
    hub.handle_confirmed(HOME, (ChannelKind::Channel, false), b"a")
        .expect("the hub asked");
    assert!(hub.lines[0].is_unused() && subscriber_counts.is_empty());
    // The next session asks anew.
    one.subscribe(&mut hub, ChannelKind::Channel, &["no"]);
    assert_eq!(sent(&mut hub), ["SUBSCRIBE no"]);
    hub.handle_confirmed(HOME, (ChannelKind::Channel, true), b"no")
        .expect("the hub asked");
    assert_eq!(one.done(&mut hub), "*3 $9 subscribe $2 no :1 ");
}

/// A new connection is asked for all claimed channels, and members notice nothing.
#[test]
fn new_connection_subscribes_again_without_notice() {
    let (mut hub, subscriber_counts) = hub();
    let (mut one, mut two, mut late) = (
        TestSession::new(1),
        TestSession::new(2),
        TestSession::new(3),
    );
    for member in [&mut one, &mut two] {
        member.subscribe(&mut hub, ChannelKind::Channel, &["a"]);
        sent(&mut hub);
        if member.id == session(1) {
            hub.handle_confirmed(HOME, (ChannelKind::Channel, true), b"a")
                .expect("the hub asked");
        } else {
            hub.handle_pong(HOME).expect("the hub asked");
        }
        member.done(&mut hub);
    }
    late.subscribe(&mut hub, ChannelKind::Pattern, &["p*"]);
    two.unsubscribe(&mut hub, ChannelKind::Channel, &["a"]);
    sent(&mut hub);
    assert_eq!(
        subscriber_counts.receivers(0, ChannelKind::Channel, b"a"),
        1
    );
    hub.handle_down(HOME);
    assert!(subscriber_counts.is_empty());
    assert_eq!(two.done(&mut hub), "*3 $11 unsubscribe $1 a :0 ");
    assert!(hub.poll_done(HOME).is_none());
    // Without a connection, a request to leave is done at once.
    two.subscribe(&mut hub, ChannelKind::Channel, &["b"]);
    assert!(hub.poll_done(HOME).is_none() && sent(&mut hub).is_empty());
    hub.forget(two.id, &mut two.subscriber);
    hub.handle_up(HOME);
    let mut again = sent(&mut hub);
    again.sort();
    assert_eq!(again, ["PSUBSCRIBE p*", "SUBSCRIBE a"]);
    hub.handle_confirmed(HOME, (ChannelKind::Channel, true), b"a")
        .expect("the hub asked");
    hub.handle_confirmed(HOME, (ChannelKind::Pattern, true), b"p*")
        .expect("the hub asked");
    assert_eq!(late.done(&mut hub), "*3 $10 psubscribe $2 p* :1 ");
    // The server may refuse the channel now. Then a member must not believe that it still is one.
    hub.handle_down(HOME);
    hub.handle_up(HOME);
    sent(&mut hub);
    assert_eq!(
        hub.handle_refused(HOME, b"-NOPERM\r\n"),
        Ok(vec![session(1)])
    );
}

/// A name of 10,000 bytes is stored once for all sessions and tables.
#[test]
fn channel_name_is_stored_once() {
    let (mut hub, subscriber_counts) = hub();
    let long = "x".repeat(10_000);
    let mut sessions = [
        TestSession::new(1),
        TestSession::new(2),
        TestSession::new(3),
    ];
    for one in &mut sessions {
        one.subscribe(&mut hub, ChannelKind::Channel, &[&long]);
    }
    sent(&mut hub);
    hub.handle_confirmed(HOME, (ChannelKind::Channel, true), long.as_bytes())
        .expect("the hub asked");
    for one in &mut sessions {
        one.done(&mut hub);
    }
    assert_eq!(hub.held_bytes(), 10_000 + CHANNEL_BYTES);
    let id = hub.channel(ChannelKind::Channel, long.as_bytes());
    let channel = id.and_then(|id| hub.channels.get(id));
    let name = &channel.expect("the channel is claimed").name;
    // The channel, the table of names and the subscriber counts share it.
    assert_eq!(Arc::strong_count(name), 3);
    for one in &mut sessions {
        assert_eq!(one.subscriber.held_bytes(), CLAIM_BYTES);
        assert_eq!(one.subscriber.named_bytes(), 10_000);
        hub.forget(one.id, &mut one.subscriber);
    }
    sent(&mut hub);
    hub.handle_confirmed(HOME, (ChannelKind::Channel, false), long.as_bytes())
        .expect("the hub asked");
    assert!(subscriber_counts.is_empty());
    assert_eq!(hub.held_bytes(), 0);
}

/// A session leaves a channel before the server was asked for it. The server is not asked, and the
/// channel is forgotten.
#[test]
fn subscribe_is_not_sent_for_a_channel_left_before() {
    let (mut hub, _) = hub();
    let (mut one, mut two) = (TestSession::new(1), TestSession::new(2));
    assert_eq!(
        one.subscribe(&mut hub, ChannelKind::Channel, &["a", "b"]),
        HubOutcome::Waits
    );
    hub.forget(one.id, &mut one.subscriber);
    assert_eq!(
        two.subscribe(&mut hub, ChannelKind::Channel, &["b"]),
        HubOutcome::Waits
    );
    let expected = [
        "PING",
        "SUBSCRIBE b",
        "PING",
        "UNSUBSCRIBE b",
        "SUBSCRIBE b",
    ];
    assert_eq!(sent(&mut hub), expected);
    assert!(
        hub.channel(ChannelKind::Channel, b"a").is_none(),
        "the channel is forgotten"
    );
    assert_eq!(hub.handle_pong(HOME), Ok(()));
    assert_eq!(
        hub.handle_confirmed(HOME, (ChannelKind::Channel, true), b"b"),
        Ok(())
    );
    assert_eq!(hub.handle_pong(HOME), Ok(()));
    assert_eq!(
        hub.handle_confirmed(HOME, (ChannelKind::Channel, false), b"b"),
        Ok(())
    );
    assert!(hub.poll_done(HOME).is_none());
    assert_eq!(
        hub.handle_confirmed(HOME, (ChannelKind::Channel, true), b"b"),
        Ok(())
    );
    assert_eq!(two.done(&mut hub), "*3 $9 subscribe $1 b :1 ");
}

/// A request that has waited too long gets an error, and its claims end.
#[test]
fn late_subscribe_fails_and_holds_nothing() {
    let (mut hub, _) = hub();
    let mut one = TestSession::new(1);
    one.subscribe(&mut hub, ChannelKind::Channel, &["a"]);
    sent(&mut hub);
    assert!(hub.poll_late(Time(999_000), 1000).is_none());
    let (_, done) = hub
        .poll_late(Time(1_000_000), 1000)
        .expect("the request is late");
    let reply = hub.fail(done, &mut one.subscriber, || b"-late".to_vec());
    assert_eq!(reply.as_deref(), Some(&b"-late"[..]));
    assert_eq!((one.subscriber.held_bytes(), hub.claims()), (0, 0));
    assert_eq!(sent(&mut hub), ["UNSUBSCRIBE a"]);
    assert!(hub.poll_done(HOME).is_none());
}

/// A reply or confirmation without a request is an error.
#[test]
fn unexpected_reply_is_an_error() {
    let (mut hub, _) = hub();
    let mut one = TestSession::new(1);
    assert_eq!(hub.handle_pong(HOME), Err(UnaskedReply));
    assert_eq!(hub.handle_refused(HOME, b"-ERR\r\n"), Err(UnaskedReply));
    one.subscribe(&mut hub, ChannelKind::Channel, &["a"]);
    sent(&mut hub);
    assert_eq!(
        hub.handle_confirmed(HOME, (ChannelKind::Channel, false), b"a"),
        Err(UnaskedReply)
    );
    assert_eq!(
        hub.handle_confirmed(HOME, (ChannelKind::Pattern, true), b"a"),
        Err(UnaskedReply)
    );
    assert_eq!(
        hub.handle_confirmed(HOME, (ChannelKind::Channel, true), b"b"),
        Err(UnaskedReply)
    );
    assert_eq!(hub.handle_pong(HOME), Err(UnaskedReply));
    assert_eq!(
        hub.handle_confirmed(HOME, (ChannelKind::Channel, true), b"a"),
        Ok(())
    );
}

/// A push is read as soon as its kind and channel have come.
#[test]
fn push_is_read_as_soon_as_its_channel_has_come() {
    let message = b">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$5\r\nhel\r\n\r\n";
    let (kind, name) = (ChannelKind::Channel, b"a".as_slice());
    for cut in 0..message.len() {
        let expected = (cut >= 24).then_some(Push::Message { kind, name });
        assert_eq!(Push::read(&message[..cut]), expected, "{cut} bytes");
    }
    let read = |frame: &'static [u8]| Push::read(frame).expect("the push is whole");
    assert_eq!(
        read(b">4\r\n$8\r\npmessage\r\n$2\r\np*\r\n$2\r\npq\r\n$1\r\nx\r\n"),
        Push::Message {
            kind: ChannelKind::Pattern,
            name: b"p*"
        }
    );
    assert_eq!(
        read(b">3\r\n$12\r\nsunsubscribe\r\n$0\r\n\r\n:0\r\n"),
        Push::Confirmed {
            kind: ChannelKind::Shard,
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

/// A server executes its requests in order, but late. Messages come in between, and connections
/// break. Each session gets the messages between its confirmations and no others.
#[test]
fn messages_between_confirmations_come_and_no_others() {
    for seed in 1..=300u64 {
        history(seed);
    }
}

/// A reply or push of the server.
enum ServerPush {
    Confirmed(ChannelKind, bool, String),
    Pong,
    Message(ChannelKind, String),
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
    let subscriber_counts = Arc::new(SubscriberCounts::default());
    let mut hub = Hub::new((0, ServerId(0)), 0, subscriber_counts.clone(), Time(0));
    let mut sessions: Vec<TestSession> = (0..5).map(TestSession::new).collect();
    // The subscriptions of each session by its confirmations.
    let mut believes: HashMap<(usize, ChannelKind, String), bool> = HashMap::new();
    let mut waiting: HashMap<usize, (ChannelKind, bool, Vec<String>)> = HashMap::new();
    let mut connected = false;
    let mut server: HashMap<(ChannelKind, String), bool> = HashMap::new();
    let mut stream: VecDeque<ServerPush> = VecDeque::new();
    let steps = 400;
    for step in 0..steps + 50 {
        let ending = step >= steps;
        match if ending { 9 } else { below(10) } {
            0..=3 => {
                let index = below(sessions.len() as u64) as usize;
                if waiting.contains_key(&index) {
                    continue;
                }
                let kind = ChannelKind::ALL[below(3) as usize];
                let on = below(2) == 0;
                let count = if on { 1 + below(2) } else { below(3) };
                let asks: Vec<&str> = (0..count).map(|_| names[below(3) as usize]).collect();
                let outcome = if on {
                    sessions[index].subscribe(&mut hub, kind, &asks)
                } else {
                    sessions[index].unsubscribe(&mut hub, kind, &asks)
                };
                let asks: Vec<String> = if asks.is_empty() {
                    names.iter().map(ToString::to_string).collect()
                } else {
                    asks.iter().map(ToString::to_string).collect()
                };
                match outcome {
                    HubOutcome::Waits => {
                        waiting.insert(index, (kind, on, asks));
                    }
                    HubOutcome::Reply(_) => {
                        for name in asks {
                            believes.insert((index, kind, name), on);
                        }
                    }
                }
            }
            4 => {
                // A client closes, and another takes its place.
                let index = below(sessions.len() as u64) as usize;
                let TestSession { id, subscriber } = &mut sessions[index];
                hub.forget(*id, subscriber);
                waiting.remove(&index);
                believes.retain(|(other, _, _), _| *other != index);
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
                let (kind, name) = (
                    ChannelKind::ALL[below(3) as usize],
                    names[below(3) as usize],
                );
                if server.get(&(kind, name.to_owned())) == Some(&true) {
                    stream.push_back(ServerPush::Message(kind, name.to_owned()));
                }
            }
            7..=8 => {
                while let Some(request) = hub.poll_request(HOME) {
                    assert!(connected, "seed {seed}: asked without a connection");
                    match request {
                        HubRequest::Ping => stream.push_back(ServerPush::Pong),
                        HubRequest::Abandon { .. } => panic!("no channel moves in this test"),
                        HubRequest::Subscribe { channel, on, .. } => {
                            let channel = hub.channels.get(channel).expect("the channel stays");
                            let name = text(channel.name.to_vec());
                            server.insert((channel.kind, name.clone()), on);
                            stream.push_back(ServerPush::Confirmed(channel.kind, on, name));
                        }
                    }
                }
            }
            _ => match stream.pop_front() {
                None => {}
                Some(ServerPush::Pong) => hub.handle_pong(HOME).expect("the hub asked for it"),
                Some(ServerPush::Confirmed(kind, on, name)) => hub
                    .handle_confirmed(HOME, (kind, on), name.as_bytes())
                    .expect("the hub asked for it"),
                Some(ServerPush::Message(kind, name)) => {
                    let channel = hub.channel(kind, name.as_bytes());
                    for (index, session) in sessions.iter().enumerate() {
                        let members = channel.map_or(&[][..], |channel| hub.members(HOME, channel));
                        let gets = members.iter().filter(|member| **member == session.id);
                        let gets = gets.count();
                        let expected = believes.get(&(index, kind, name.clone())) == Some(&true);
                        assert_eq!(gets, usize::from(expected), "seed {seed}, step {step}");
                    }
                }
            },
        }
        while let Some(done) = hub.poll_done(HOME) {
            let index = done.session.index as usize;
            hub.settle(done, &mut sessions[index].subscriber, Version::Resp3);
            let (kind, on, names) = waiting.remove(&index).expect("the session waited");
            for name in names {
                believes.insert((index, kind, name), on);
            }
        }
        for (index, session) in sessions.iter().enumerate() {
            if !waiting.contains_key(&index) {
                let listens = believes
                    .iter()
                    .filter(|((other, _, _), on)| *other == index && **on);
                let counts: usize = session.subscriber.counts().iter().sum();
                assert_eq!(counts, listens.count(), "seed {seed}, step {step}");
            }
        }
    }
    // All sessions close: nothing is left.
    for TestSession { id, subscriber } in &mut sessions {
        hub.forget(*id, subscriber);
    }
    if connected {
        while let Some(request) = hub.poll_request(HOME) {
            if let HubRequest::Subscribe { channel, on, .. } = request {
                let channel = hub.channels.get(channel).expect("the channel stays");
                let name = text(channel.name.to_vec());
                stream.push_back(ServerPush::Confirmed(channel.kind, on, name));
            } else {
                stream.push_back(ServerPush::Pong);
            }
        }
        while let Some(says) = stream.pop_front() {
            match says {
                ServerPush::Pong => hub.handle_pong(HOME).expect("the hub asked for it"),
                ServerPush::Confirmed(kind, on, name) => hub
                    .handle_confirmed(HOME, (kind, on), name.as_bytes())
                    .expect("the hub asked for it"),
                ServerPush::Message(..) => {}
            }
        }
    }
    assert!(hub.lines[0].is_unused(), "seed {seed}");
    assert_eq!(hub.claims(), 0, "seed {seed}");
    assert!(subscriber_counts.is_empty(), "seed {seed}");
}

/// Slots move between nodes, nodes redirect the hub and refuse for now, and connections break. No
/// session gets a message that it did not ask for, or one twice. When all is at rest, each session
/// gets every message of its channels from their owners.
#[test]
fn sharded_channel_follows_its_slot_without_notice() {
    for seed in 1..=400u64 {
        Nodes::new(seed).history();
    }
}

const SHARDED: [&str; 3] = ["a", "b", "c"];

/// A reply or push of a node of a Cluster.
#[derive(Debug)]
enum NodeOutput {
    Subscribed(usize),
    Dropped(usize),
    /// The slot of this channel belongs to that node.
    Moved(usize, usize),
    TryAgain,
    Pong,
    Message(usize),
}

#[derive(Default)]
struct OneNode {
    sends: [bool; 3],
    requests: VecDeque<(bool, Option<usize>)>,
    output: VecDeque<NodeOutput>,
}

struct Nodes {
    seed: u64,
    random: u64,
    hub: Hub,
    subscriber_counts: Arc<SubscriberCounts>,
    sessions: Vec<TestSession>,
    waiting: HashMap<usize, (bool, Vec<usize>)>,
    believes: HashMap<(usize, usize), bool>,
    /// The owner of each channel.
    owner: [usize; 3],
    /// The owner of each channel by the hub's topology.
    table: [usize; 3],
    has_moved: bool,
    nodes: Vec<OneNode>,
    calm: bool,
    delivered: usize,
}

impl Nodes {
    fn new(seed: u64) -> Nodes {
        let subscriber_counts = Arc::new(SubscriberCounts::default());
        Nodes {
            seed,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            hub: Hub::new((0, ServerId(9)), 0, subscriber_counts.clone(), Time(0)),
            subscriber_counts,
            sessions: (0..4).map(TestSession::new).collect(),
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

    /// Checks the hub's bytes and claims against a new count.
    fn check_held(&self) {
        let bytes = |(_, channel): (ChannelId, &Channel)| channel.name.len() + CHANNEL_BYTES;
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
            let expects = (0..4).filter(|index| self.believes.get(&(*index, name)) == Some(&true));
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
        for index in 0..self.sessions.len() {
            let TestSession { id, subscriber } = &mut self.sessions[index];
            self.hub.forget(*id, subscriber);
        }
        self.believes.clear();
        self.come_to_rest();
        let is_unused = self.hub.lines.iter().all(HubLine::is_unused);
        assert!(is_unused && self.hub.claims() == 0, "seed {}", self.seed);
        assert_eq!(self.hub.channels.len(), 0, "seed {}", self.seed);
        assert!(self.subscriber_counts.is_empty(), "seed {}", self.seed);
        assert!(
            self.nodes.iter().all(|node| node.sends == [false; 3]),
            "seed {}",
            self.seed
        );
    }

    fn ask(&mut self) {
        let index = self.below(4);
        if self.waiting.contains_key(&index) {
            return;
        }
        let on = self.below(2) == 0;
        let name = self.below(3);
        let all = !on && self.below(2) == 0;
        let line = self.hub.line_to(ServerId(self.table[name] as u16), Time(0));
        let names = (!all).then_some(SHARDED[name].as_bytes());
        let TestSession { id, subscriber } = &mut self.sessions[index];
        let place = (*id, 0);
        let (version, now) = (Version::Resp2, Time(0));
        let outcome = match on {
            true => {
                let of = (ChannelKind::Shard, line);
                self.hub
                    .subscribe(place, subscriber, of, names.into_iter(), version, now)
            }
            false => {
                let of = ChannelKind::Shard;
                self.hub
                    .unsubscribe(place, subscriber, of, names.into_iter(), version, now)
            }
        };
        let names = if all { vec![0, 1, 2] } else { vec![name] };
        match outcome {
            HubOutcome::Waits => {
                self.waiting.insert(index, (on, names));
            }
            HubOutcome::Reply(_) => {
                self.believes
                    .extend(names.iter().map(|name| ((index, *name), on)));
            }
        }
    }

    fn leave_for_good(&mut self) {
        let index = self.below(4);
        let TestSession { id, subscriber } = &mut self.sessions[index];
        self.hub.forget(*id, subscriber);
        self.waiting.remove(&index);
        self.believes.retain(|(other, _), _| *other != index);
    }

    fn move_slot(&mut self) {
        let (name, to) = (self.below(3), self.below(3));
        let from = std::mem::replace(&mut self.owner[name], to);
        if from != to && std::mem::take(&mut self.nodes[from].sends[name]) {
            self.nodes[from].output.push_back(NodeOutput::Dropped(name));
        }
        if self.below(3) == 0 {
            // A refresh of the topology found the new owner.
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
        self.hub.line(line).link = LinkId {
            index: line.into(),
            generation: 1,
        };
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
            node.output.push_back(NodeOutput::Message(name));
        }
    }

    /// A node executes its next request.
    fn execute(&mut self, node: usize) {
        let refuses_for_now = !self.calm && self.below(8) == 0;
        let Some((on, name)) = self.nodes[node].requests.pop_front() else {
            return;
        };
        let owner = self.owner;
        let node_state = &mut self.nodes[node];
        let mut say = |output| node_state.output.push_back(output);
        match (on, name) {
            (_, None) => say(NodeOutput::Pong),
            (true, Some(_)) if refuses_for_now => say(NodeOutput::TryAgain),
            (true, Some(name)) if owner[name] != node => say(NodeOutput::Moved(name, owner[name])),
            (true, Some(name)) => {
                say(NodeOutput::Subscribed(name));
                node_state.sends[name] = true;
            }
            // A node that is not the owner any more answers the PING alone.
            (false, Some(name)) if owner[name] != node => say(NodeOutput::Pong),
            (false, Some(name)) => {
                say(NodeOutput::Dropped(name));
                say(NodeOutput::Pong);
                node_state.sends[name] = false;
            }
        }
    }

    /// Reads the next reply or push of a node.
    fn read(&mut self, node: usize) {
        let Some(line) = self.line_of(node) else {
            return;
        };
        let Some(output) = self.nodes[node].output.pop_front() else {
            return;
        };
        match output {
            NodeOutput::Subscribed(name) => self
                .hub
                .handle_confirmed(line, (ChannelKind::Shard, true), SHARDED[name].as_bytes())
                .expect("the hub asked for it"),
            NodeOutput::Dropped(name) => self.hub.handle_dropped(line, SHARDED[name].as_bytes()),
            NodeOutput::Moved(name, to) => {
                self.has_moved |= std::mem::replace(&mut self.table[name], to) != to;
                self.hub
                    .handle_deferred(line, None)
                    .expect("the hub asked for it");
            }
            NodeOutput::TryAgain => self
                .hub
                .handle_deferred(line, None)
                .expect("the hub asked for it"),
            NodeOutput::Pong => self.hub.handle_pong(line).expect("the hub asked for it"),
            NodeOutput::Message(name) => {
                let channel = self
                    .hub
                    .channel(ChannelKind::Shard, SHARDED[name].as_bytes());
                let members = channel.map_or(&[][..], |channel| self.hub.members(line, channel));
                for (index, session) in self.sessions.iter().enumerate() {
                    let gets = members.iter().filter(|id| **id == session.id).count();
                    let believes = self.believes.get(&(index, name)) == Some(&true);
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
                let name = SHARDED.iter().position(of).expect("a name of the test");
                ServerId(table[name] as u16)
            };
            for (channel, owner) in self.hub.channels_on_wrong_line(owner) {
                let line = self.hub.line_to(owner, Time(0));
                self.hub.move_to(channel, line);
            }
            self.hub.ask_again();
        }
        for line in 0..self.hub.lines.len() as u16 {
            let server = self.hub.line(line).server;
            while let Some(request) = self.hub.poll_request(line) {
                let mut bytes = Vec::new();
                self.hub.write_request(line, &request, &mut bytes);
                let text = text(bytes);
                let name = SHARDED
                    .iter()
                    .position(|name| text.contains(&format!("$1 {name} ")));
                let on = text.contains("SSUBSCRIBE");
                self.nodes[usize::from(server.0)]
                    .requests
                    .push_back((on, name));
            }
            while let Some(done) = self.hub.poll_done(line) {
                let index = done.session.index as usize;
                let subscriber = &mut self.sessions[index].subscriber;
                if self.hub.settle(done, subscriber, Version::Resp3).is_some() {
                    let (on, names) = self.waiting.remove(&index).expect("the session waited");
                    self.believes
                        .extend(names.iter().map(|name| ((index, *name), on)));
                }
            }
        }
        for (index, session) in self.sessions.iter().enumerate() {
            if !self.waiting.contains_key(&index) {
                let of = |((other, _), on): &(&(usize, usize), &bool)| *other == index && **on;
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

    /// Lets all requests finish while no slot moves and no node refuses.
    fn come_to_rest(&mut self) {
        self.calm = true;
        for _ in 0..100 {
            for node in 0..3 {
                if let Some(line) = self.line_of(node)
                    && !self.hub.line(line).connected
                {
                    self.connect(line);
                }
                while !self.nodes[node].requests.is_empty() {
                    self.execute(node);
                }
                while !self.nodes[node].output.is_empty() {
                    self.read(node);
                }
            }
            self.hub.end_delay();
            self.end_turn();
        }
    }
}

/// A session that asks again for its channels makes no second claim: the bound counts claims.
#[test]
fn member_that_asks_again_has_one_claim() {
    let (mut hub, _) = hub();
    let mut one = TestSession::new(1);
    one.subscribe(&mut hub, ChannelKind::Channel, &["a"]);
    sent(&mut hub);
    let confirmed = hub.handle_confirmed(HOME, (ChannelKind::Channel, true), b"a");
    confirmed.expect("the hub asked");
    one.done(&mut hub);
    one.subscribe(&mut hub, ChannelKind::Channel, &["a", "a", "b", "b"]);
    assert_eq!(hub.claims(), 2);
    hub.forget(one.id, &mut one.subscriber);
    assert_eq!(hub.claims(), 0);
}

/// A channel moves to another line while the old line is still unsubscribing. A session asks for it
/// again.
#[test]
fn channel_that_moves_with_its_first_claim_stays() {
    let (mut hub, _) = hub();
    let mut one = TestSession::new(1);
    one.subscribe(&mut hub, ChannelKind::Shard, &["a"]);
    sent(&mut hub);
    let confirmed = hub.handle_confirmed(HOME, (ChannelKind::Shard, true), b"a");
    confirmed.expect("the hub asked");
    one.done(&mut hub);
    // The slot moves while the confirmation of this is on its way.
    hub.forget(one.id, &mut one.subscriber);
    assert_eq!(sent(&mut hub), ["SUNSUBSCRIBE a"]);
    let other = hub.line_to(ServerId(1), Time(0));
    let mut two = TestSession::new(2);
    let names = ["a"].iter().map(|name| name.as_bytes());
    let version = Version::Resp2;
    let at = (ChannelKind::Shard, other);
    let outcome = hub.subscribe(
        (two.id, 0),
        &mut two.subscriber,
        at,
        names,
        version,
        Time(0),
    );
    assert_eq!(outcome, HubOutcome::Waits);
    assert_eq!(hub.claims(), 1);
    let channel = hub
        .channel(ChannelKind::Shard, b"a")
        .expect("the channel is claimed");
    assert_eq!(
        hub.channels.get(channel).map(|channel| channel.line),
        Some(other)
    );
    hub.forget(two.id, &mut two.subscriber);
    assert_eq!(hub.claims(), 0);
}

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use respool_protocol::encode::Version;

use crate::pubsub::subscriber_counts::SubscriberCounts;

use super::super::{ChannelKind, Hub, HubId, HubLine, HubOutcome, HubRequest, Subscriber};
use super::*;

const NODES: usize = 6;
const SESSIONS: usize = 4;
/// Patterns that match everything, notifications alone, and published messages alone.
const PATTERNS: [&str; 3] = ["*", "__key*", "news*"];

/// A reply or push of a node on its line.
#[derive(Clone, Debug)]
enum NodeOutput {
    Confirmed(usize, bool),
    Refused,
    Pong,
    /// A message with its own number, for the subscribers of a pattern.
    Message {
        pattern: usize,
        number: u32,
        is_event: bool,
    },
}

#[derive(Default)]
struct Node {
    requests: VecDeque<(Option<(usize, bool)>, u32)>,
    output: VecDeque<NodeOutput>,
    sends: HashSet<usize>,
    /// The primary of which it is a replica.
    follows: Option<usize>,
    refuses: bool,
}

struct TestSession {
    id: SessionId,
    subscriber: Subscriber,
    waits: Option<(bool, Vec<usize>)>,
    believes: HashSet<usize>,
    got: HashMap<(usize, u32), usize>,
}

/// Nodes that pass published messages on and replace each other, and a hub in front of them.
struct Scene {
    hub: Hub,
    nodes: Vec<Node>,
    sessions: Vec<TestSession>,
    /// The owners of keys that the hub was told, or will be told.
    owners: Vec<usize>,
    number: u32,
    random: u64,
}

impl Scene {
    fn new(seed: u64) -> Scene {
        let subscriber_counts = Arc::new(SubscriberCounts::default());
        let mut hub = Hub::new((0, ServerId(0)), 0, subscriber_counts, Time(0));
        hub.handle_up(HOME);
        let session = |index: usize| TestSession {
            id: SessionId {
                index: index as u32,
                generation: 1,
            },
            subscriber: Subscriber::new(HubId(0)),
            waits: None,
            believes: HashSet::new(),
            got: HashMap::new(),
        };
        let node = |index: usize| Node {
            follows: (index >= 3).then(|| index - 3),
            ..Node::default()
        };
        let mut scene = Scene {
            hub,
            nodes: (0..NODES).map(node).collect(),
            sessions: (0..SESSIONS).map(session).collect(),
            owners: vec![0, 1, 2],
            number: 0,
            random: seed | 1,
        };
        scene.follow();
        scene
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 20) as usize % bound
    }

    fn follow(&mut self) {
        let owner = |at: &usize| KeyOwner {
            server: ServerId(*at as u16),
            removed_prefix: Arc::default(),
        };
        let owners = self.owners.iter().map(owner).collect();
        self.hub.follow_owners(owners, Time(0));
        self.hub.ask_again();
    }

    fn node_of(&mut self, line: u16) -> usize {
        usize::from(self.hub.line(line).server.0)
    }

    fn line_count(&self) -> u16 {
        self.hub.lines.len() as u16
    }

    /// Sends the hub's requests of this turn to the nodes.
    fn end_turn(&mut self) {
        if self.hub.is_unsettled() {
            self.follow();
        }
        if self.hub.is_stalled() {
            self.hub.ask_again();
        }
        for line in 0..self.line_count() {
            let node = self.node_of(line);
            while let Some(request) = self.hub.poll_request(line) {
                let mut bytes = Vec::new();
                self.hub.write_request(line, &request, &mut bytes);
                let change = match request {
                    HubRequest::Subscribe { on, .. } => {
                        let text = String::from_utf8(bytes).expect("text");
                        let is_it = |name: &&str| text.contains(&format!("\r\n{name}\r\n"));
                        let name = PATTERNS.iter().position(is_it);
                        Some((name.expect("a name of the test"), on))
                    }
                    HubRequest::Ping | HubRequest::Abandon { .. } => None,
                };
                self.nodes[node].requests.push_back((change, line.into()));
            }
            self.settle(line);
        }
    }

    fn settle(&mut self, line: u16) {
        while let Some(done) = self.hub.poll_done(line) {
            let one = &mut self.sessions[done.session.index as usize];
            let reply = self.hub.settle(done, &mut one.subscriber, Version::Resp2);
            if let Some(reply) = reply {
                let (on, names) = one.waits.take().expect("the session waits");
                if reply[0] != b'-' {
                    for name in names {
                        match on {
                            true => one.believes.insert(name),
                            false => one.believes.remove(&name),
                        };
                    }
                }
            }
        }
    }

    fn ask(&mut self, session: usize, on: bool, names: Vec<usize>) {
        let one = &mut self.sessions[session];
        if one.waits.is_some() {
            return;
        }
        let texts = names.iter().map(|name| PATTERNS[*name].as_bytes());
        let (place, version) = ((one.id, 0), Version::Resp2);
        let outcome = match on {
            true => {
                let at = (ChannelKind::Pattern, HOME);
                self.hub
                    .subscribe(place, &mut one.subscriber, at, texts, version, Time(0))
            }
            false => {
                let kind = ChannelKind::Pattern;
                self.hub
                    .unsubscribe(place, &mut one.subscriber, kind, texts, version, Time(0))
            }
        };
        one.waits = Some((on, names));
        if outcome != HubOutcome::Waits {
            let (on, names) = one.waits.take().expect("it was just set");
            for name in names {
                match on {
                    true => one.believes.insert(name),
                    false => one.believes.remove(&name),
                };
            }
        }
    }

    /// A node executes its next request.
    fn execute(&mut self, node: usize) {
        let Some((change, _)) = self.nodes[node].requests.pop_front() else {
            return;
        };
        let node = &mut self.nodes[node];
        match change {
            None => node.output.push_back(NodeOutput::Pong),
            Some((_, true)) if node.refuses => node.output.push_back(NodeOutput::Refused),
            Some((name, on)) => {
                match on {
                    true => node.sends.insert(name),
                    false => node.sends.remove(&name),
                };
                node.output.push_back(NodeOutput::Confirmed(name, on));
            }
        }
    }

    fn say(&mut self, node: usize, number: u32, is_event: bool) {
        let node = &mut self.nodes[node];
        let of: &[usize] = if is_event { &[0, 1] } else { &[0, 2] };
        for pattern in of
            .iter()
            .copied()
            .filter(|pattern| node.sends.contains(pattern))
        {
            node.output.push_back(NodeOutput::Message {
                pattern,
                number,
                is_event,
            });
        }
    }

    /// A key changes: its primary and the replicas of that send a notification.
    fn event(&mut self, primary: usize) -> u32 {
        self.number += 1;
        let is_notified = |at: &usize| *at == primary || self.nodes[*at].follows == Some(primary);
        for node in (0..NODES).filter(is_notified).collect::<Vec<_>>() {
            self.say(node, self.number, true);
        }
        self.number
    }

    /// Publishes a message: every node sends it.
    fn publish(&mut self) -> u32 {
        self.number += 1;
        for node in 0..NODES {
            self.say(node, self.number, false);
        }
        self.number
    }

    fn connected_nodes(&self) -> Vec<usize> {
        let has_line = |node: &usize| self.line_of(*node).is_some();
        (0..NODES).filter(has_line).collect()
    }

    fn line_of(&self, node: usize) -> Option<u16> {
        let mut lines = 0..self.line_count();
        let is_of_node = |line: &u16| {
            let line = &self.hub.lines[usize::from(*line)];
            usize::from(line.server.0) == node && line.connected
        };
        lines.find(is_of_node)
    }

    fn read(&mut self, node: usize) {
        let Some(line) = self.line_of(node) else {
            return;
        };
        let Some(output) = self.nodes[node].output.pop_front() else {
            return;
        };
        match output {
            NodeOutput::Confirmed(name, on) => {
                let name = PATTERNS[name].as_bytes();
                let confirmed = self
                    .hub
                    .handle_confirmed(line, (ChannelKind::Pattern, on), name);
                confirmed.expect("the hub asked for it");
            }
            NodeOutput::Refused => {
                let refused = self.hub.handle_refused(line, b"-NOPERM\r\n");
                for gone in refused.expect("the hub asked for it") {
                    let one = &mut self.sessions[gone.index as usize];
                    self.hub.forget(gone, &mut one.subscriber);
                    one.waits = None;
                    one.believes.clear();
                }
            }
            NodeOutput::Pong => self.hub.handle_pong(line).expect("the hub asked for it"),
            NodeOutput::Message {
                pattern,
                number,
                is_event,
            } => {
                let name = PATTERNS[pattern].as_bytes();
                let receivers = self
                    .hub
                    .receivers(line, (ChannelKind::Pattern, name), || is_event);
                for receiver in receivers {
                    let one = &mut self.sessions[receiver.index as usize];
                    let times = one.got.entry((pattern, number)).or_default();
                    *times += 1;
                    assert_eq!(*times, 1, "message {number} came twice");
                }
            }
        }
        self.settle(line);
    }

    fn lose(&mut self, line: u16) {
        self.hub.handle_down(line);
        self.begin_anew(line);
        self.settle(line);
    }

    /// A new connection to the node of a line, which knows nothing of an earlier one.
    fn connect(&mut self, line: u16) {
        self.begin_anew(line);
        self.hub.handle_up(line);
    }

    fn begin_anew(&mut self, line: u16) {
        let node = self.node_of(line);
        let node = &mut self.nodes[node];
        node.requests.clear();
        node.output.clear();
        node.sends.clear();
    }

    /// Answers all requests and reads all replies.
    fn come_to_rest(&mut self) {
        for _ in 0..20 {
            for line in 0..self.line_count() {
                let state = &self.hub.lines[usize::from(line)];
                if !state.connected && !state.is_unused() {
                    self.connect(line);
                }
            }
            self.end_turn();
            for node in self.connected_nodes() {
                while !self.nodes[node].requests.is_empty() {
                    self.execute(node);
                }
                while !self.nodes[node].output.is_empty() {
                    self.read(node);
                }
            }
            self.hub.end_delay();
        }
    }

    /// Checks that each session with a confirmed subscription gets a new message once.
    fn assert_heard(&mut self, seed: u64) {
        let mut numbers = vec![(self.publish(), false)];
        for owner in self.owners.clone() {
            numbers.push((self.event(owner), true));
        }
        self.come_to_rest();
        for one in &self.sessions {
            assert!(one.waits.is_none(), "seed {seed}: a request waits for ever");
            for (number, is_event) in &numbers {
                for (name, pattern) in PATTERNS.iter().enumerate() {
                    let is_matched = if *is_event { name < 2 } else { name != 1 };
                    let expected = is_matched && one.believes.contains(&name);
                    let got = one.got.contains_key(&(name, *number));
                    assert_eq!(got, expected, "seed {seed}: message {number} by {pattern}");
                }
            }
        }
    }
}

impl Scene {
    fn step(&mut self) {
        let node = self.below(NODES);
        match self.below(16) {
            0 | 1 => {
                let (session, on) = (self.below(SESSIONS), self.below(3) > 0);
                let names = (0..PATTERNS.len()).filter(|_| self.random.rotate_left(9) & 1 == 0);
                let names: Vec<usize> = names.collect();
                let names = if names.is_empty() {
                    vec![node % 3]
                } else {
                    names
                };
                self.ask(session, on, names);
            }
            2 => {
                self.publish();
            }
            3 | 4 => {
                if self.nodes[node].follows.is_none() {
                    self.event(node);
                }
            }
            // A replica takes over, and the hub learns of it later. Node 0 stays a primary.
            5 => {
                if let Some(old) = self.nodes[node].follows.filter(|old| *old != 0) {
                    self.nodes[node].follows = None;
                    self.nodes[old].follows = Some(node);
                }
            }
            6 => {
                let is_owner = |at: &usize| self.nodes[*at].follows.is_none();
                let owners: Vec<usize> = (0..NODES).filter(is_owner).collect();
                if owners != self.owners {
                    self.owners = owners;
                    self.follow();
                }
            }
            7 => {
                let line = self.below(self.line_count().into()) as u16;
                if self.hub.line(line).connected && self.below(6) == 0 {
                    self.lose(line);
                }
            }
            8 => {
                let line = self.below(self.line_count().into()) as u16;
                let state = &self.hub.lines[usize::from(line)];
                if !state.connected && !state.is_unused() {
                    self.connect(line);
                }
            }
            9 | 10 => self.end_turn(),
            11 | 12 => self.execute(node),
            _ => self.read(node),
        }
    }
}

/// No message comes twice while owners change and links are lost. Afterwards each session gets the
/// notifications of all owners, and each published message, once.
#[test]
fn notifications_of_all_owners_come_once() {
    for seed in 1..400 {
        let mut scene = Scene::new(seed * 0x9e37_79b9);
        for _ in 0..600 {
            scene.step();
        }
        let is_owner = |at: &usize| scene.nodes[*at].follows.is_none();
        scene.owners = (0..NODES).filter(is_owner).collect();
        scene.follow();
        scene.come_to_rest();
        scene.assert_heard(seed);
        for session in 0..SESSIONS {
            scene.ask(session, false, vec![0, 1, 2]);
        }
        scene.come_to_rest();
        let is_gone = |line: &HubLine| line.is_unused();
        assert!(scene.hub.lines.iter().all(is_gone), "seed {seed}");
        assert_eq!((scene.hub.held_bytes(), scene.hub.claims()), (0, 0));
        assert!(!scene.hub.has_roots());
    }
}

/// If one owner refuses a pattern, the session gets its error and is subscribed nowhere.
#[test]
fn refusal_of_one_owner_is_the_reply() {
    let mut scene = Scene::new(1);
    scene.nodes[2].refuses = true;
    scene.ask(0, true, vec![1]);
    scene.ask(1, true, vec![2]);
    scene.come_to_rest();
    assert!(scene.sessions[0].waits.is_none());
    assert!(scene.sessions[0].believes.is_empty());
    assert!(!scene.sessions[0].subscriber.listens());
    assert_eq!(scene.sessions[1].believes, HashSet::from([2]));
    assert!(scene.nodes.iter().all(|node| !node.sends.contains(&1)));
    scene.nodes[2].refuses = false;
    scene.ask(0, true, vec![1]);
    scene.come_to_rest();
    scene.assert_heard(0);
}

/// A session waits until every owner has confirmed, even if the link of one comes up later.
#[test]
fn confirmation_waits_for_every_owner() {
    let mut scene = Scene::new(1);
    scene.ask(0, true, vec![0]);
    scene.end_turn();
    scene.execute(0);
    scene.read(0);
    assert!(scene.sessions[0].waits.is_some());
    for line in 1..scene.line_count() {
        assert!(scene.sessions[0].waits.is_some());
        scene.connect(line);
        scene.end_turn();
        let node = scene.node_of(line);
        scene.execute(node);
        scene.read(node);
    }
    assert_eq!(scene.sessions[0].believes, HashSet::from([0]));
    scene.assert_heard(0);
}

/// An owner that cannot be reached is replaced. The session that waits for it then gets its reply.
#[test]
fn session_waits_for_the_heir_of_a_lost_owner() {
    let mut scene = Scene::new(1);
    scene.ask(0, true, vec![1]);
    scene.end_turn();
    for line in 0..scene.line_count() {
        if scene.node_of(line) != 2 && line != HOME {
            scene.connect(line);
        }
    }
    scene.end_turn();
    for node in 0..2 {
        while !scene.nodes[node].requests.is_empty() {
            scene.execute(node);
        }
        while !scene.nodes[node].output.is_empty() {
            scene.read(node);
        }
    }
    assert!(scene.sessions[0].waits.is_some());
    (scene.nodes[5].follows, scene.nodes[2].follows) = (None, Some(5));
    scene.owners = vec![0, 1, 5];
    scene.follow();
    scene.come_to_rest();
    scene.assert_heard(0);
}

/// A new subscription looks at its own branches alone, so its cost does not grow with their number.
#[test]
fn subscribing_looks_at_its_own_branches_alone() {
    let mut scene = Scene::new(1);
    for line in 0..scene.line_count() {
        scene.hub.handle_up(line);
    }
    let mut looked_at = Vec::new();
    for number in 0..200 {
        let name = format!("__keyspace@0__:k{number}");
        let session = SessionId {
            index: number,
            generation: 1,
        };
        let mut subscriber = Subscriber::new(HubId(0));
        let outcome = scene.hub.subscribe(
            (session, 0),
            &mut subscriber,
            (ChannelKind::Channel, HOME),
            std::iter::once(name.as_bytes()),
            Version::Resp2,
            Time(0),
        );
        assert_eq!(outcome, HubOutcome::Waits);
        let root = scene.hub.channel(ChannelKind::Channel, name.as_bytes());
        let unsettled = scene.hub.take_unsettled();
        assert_eq!(unsettled, Vec::from_iter(root));
        looked_at.extend(unsettled);
    }
    // A new owner concerns all roots.
    scene.hub.unsettle();
    assert_eq!(scene.hub.take_unsettled().len(), looked_at.len());
}

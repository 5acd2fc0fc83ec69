//! Answers and messages of real Sentinels are read as their servers were set up. They are in
//! `sentinel/`, whose README describes their format.

use std::collections::{BTreeMap, BTreeSet};

use respool_protocol::sentinel::{
    AnswerError, CHANNELS, Endpoint, FailoverEvent, InstanceHealth, Kind, Message, Primary,
    Progress, Replica, ReportedRole, SURVEY_ANSWERS, SentinelPeer, Survey, read_address, read_id,
};

/// The answers and messages of each version.
const FILES: [&str; 4] = [
    include_str!("sentinel/redis-6.2.txt"),
    include_str!("sentinel/redis-7.0.txt"),
    include_str!("sentinel/redis-8.2.txt"),
    include_str!("sentinel/valkey-9.1.txt"),
];

/// Number of answers to each command in every file.
const COUNTS: [(&str, usize); 16] = [
    ("masters", 12),
    ("master", 25),
    ("address", 25),
    ("sentinels", 19),
    ("replicas", 19),
    ("id", 25),
    ("role", 12),
    ("unknown", 6),
    ("nowhere", 2),
    ("error", 10),
    ("lost-master", 2),
    ("lost-address", 2),
    ("lost-sentinels", 2),
    ("lost-replicas", 2),
    ("switches", 4),
    ("surveys", 25),
];

/// The setup of servers and Sentinels, and the answers about it. Servers are named by their ports.
#[derive(Default)]
struct SentinelSituation {
    name: String,
    /// Host of all servers and Sentinels.
    host: String,
    primaries: BTreeMap<String, PrimarySetup>,
    replicas: BTreeMap<(String, u16), InstanceHealth>,
    sentinels: BTreeMap<(String, u16), InstanceHealth>,
    /// The promoted server of a failover.
    new: Option<u16>,
    /// The old primary of a failover.
    old: Option<u16>,
    /// A switch in the messages: name, old and new primary.
    switch: Option<(String, u16, u16)>,
    /// The promoted server in the messages.
    promoted: Option<u16>,
    /// Name of the primary that was asked about.
    about: String,
    /// Commands with their answers.
    answers: Vec<(String, Vec<u8>)>,
    messages: Vec<Vec<u8>>,
}

/// The setup of a primary.
#[derive(Clone, Copy)]
struct PrimarySetup {
    port: u16,
    quorum: u64,
    epoch: u64,
    health: InstanceHealth,
}

impl SentinelSituation {
    fn at(&self, port: u16) -> Endpoint {
        let host = self.host.clone();
        Endpoint { host, port }
    }

    /// Number of replicas or Sentinels of this name.
    fn count(of: &BTreeMap<(String, u16), InstanceHealth>, name: &str) -> u64 {
        of.keys().filter(|(of, _)| of == name).count() as u64
    }

    fn answers(&self, command: &str) -> Vec<&[u8]> {
        let answers = self.answers.iter().filter(|(of, _)| of == command);
        answers.map(|(_, answer)| &answer[..]).collect()
    }

    fn check_primary(&self, primary: &Primary) {
        let (name, situation) = (&primary.name, &self.name);
        if let (Some(new), Some(old)) = (self.new, self.old) {
            // The Sentinel that leads the failover watches the old primary until the end.
            let port = if primary.is_failing_over { old } else { new };
            assert_eq!(primary.endpoint, Some(self.at(port)), "{situation}");
            assert!(primary.config_epoch > 0);
            return;
        }
        let setup = self.primaries[name];
        assert_eq!(primary.endpoint, Some(self.at(setup.port)), "{situation}");
        assert_eq!(primary.health, setup.health, "{situation}: {name}");
        assert_eq!(primary.config_epoch, setup.epoch, "{situation}: {name}");
        assert_eq!(primary.quorum, setup.quorum, "{situation}: {name}");
        if *name == self.about {
            let (replicas, sentinels) = (&self.replicas, &self.sentinels);
            assert_eq!(primary.replicas, SentinelSituation::count(replicas, name));
            assert_eq!(
                primary.other_sentinels,
                SentinelSituation::count(sentinels, name)
            );
        }
    }

    fn check_replicas(&self, replicas: &[Replica]) {
        let primary = self.at(self.primaries[&self.about].port);
        let mut found = BTreeMap::new();
        for replica in replicas {
            let endpoint = replica.endpoint.as_ref().expect("an endpoint");
            assert_eq!(endpoint.host, self.host);
            let is_down = replica.health >= InstanceHealth::Suspected;
            assert_eq!(replica.is_usable(), !is_down, "{}: {replica:?}", self.name);
            if !is_down {
                assert_eq!(replica.of.as_ref(), Some(&primary), "{}", self.name);
                let is_new = self.about != "m0";
                assert!(replica.offset_bytes > 0 || is_new, "{replica:?}");
            }
            // The third server has another priority.
            let priority = if endpoint.port == 17202 { 7 } else { 100 };
            assert!(is_down || replica.priority == priority, "{replica:?}");
            found.insert((self.about.clone(), endpoint.port), replica.health);
        }
        assert_eq!(found, self.replicas, "{}", self.name);
    }

    fn check_peers(&self, peers: &[SentinelPeer]) {
        let mut found = BTreeMap::new();
        for peer in peers {
            let endpoint = peer.endpoint.as_ref().expect("an endpoint");
            assert_eq!(endpoint.host, self.host);
            assert_eq!(peer.id.as_ref().map(String::len), Some(40));
            found.insert((self.about.clone(), endpoint.port), peer.health);
        }
        assert_eq!(found, self.sentinels, "{}", self.name);
    }

    fn check_role(&self, role: &ReportedRole) {
        match role {
            ReportedRole::Primary {
                offset_bytes,
                replicas,
            } => {
                assert!(self.name.starts_with("ROLE of a primary"), "{}", self.name);
                let found: Vec<u16> = replicas.iter().map(|(at, _)| at.port).collect();
                let expected: Vec<u16> = self.replicas.keys().map(|(_, port)| *port).collect();
                assert_eq!(found, expected);
                for (endpoint, offset) in replicas {
                    assert_eq!(endpoint.host, "127.0.0.1");
                    assert!(*offset > 0 && offset <= offset_bytes);
                }
            }
            ReportedRole::Replica {
                of,
                progress,
                offset_bytes,
            } => {
                let primary = self.primaries.values().next().expect("a primary");
                assert_eq!(of.as_ref(), Some(&self.at(primary.port)));
                let follows = !self.name.ends_with("has died");
                let expected = if follows {
                    Progress::Following
                } else {
                    Progress::Unlinked
                };
                assert_eq!(*progress, expected, "{}", self.name);
                assert_eq!(offset_bytes.is_some(), follows, "{}", self.name);
            }
            ReportedRole::Sentinel { names } => {
                assert_eq!(self.name, "ROLE of a Sentinel");
                let names: BTreeSet<_> = names.iter().collect();
                assert!(names.into_iter().eq(self.primaries.keys()));
            }
        }
    }

    /// The answers of this Sentinel as surveys: one for RESP2, and one for RESP3 if it was asked in
    /// both.
    fn surveys(&self) -> Vec<Survey> {
        let commands = ["master", "address", "sentinels", "replicas", "id"];
        let answers = commands.map(|command| self.answers(command));
        let count = answers[0].len();
        let survey = |which: usize| {
            let parts: [&[u8]; SURVEY_ANSWERS] = std::array::from_fn(|part| {
                // During a failover there are no lists.
                answers[part].get(which).copied().unwrap_or(b"*0\r\n")
            });
            Survey::read(parts).unwrap_or_else(|error| panic!("{}: {error}", self.name))
        };
        (0..count).map(survey).collect()
    }

    /// The events that were published in one protocol version.
    fn events(&self, version: u8) -> Vec<FailoverEvent> {
        let mut events = Vec::new();
        for message in self.messages.iter().filter(|it| it[0] == version) {
            match Message::read(message).unwrap_or_else(|error| panic!("{}: {error}", self.name)) {
                Message::Event(event) => events.push(event),
                Message::Other => assert!(message.windows(8).any(|word| word == b"pmessage")),
                Message::Subscribed { .. } | Message::Pong => {}
            }
        }
        events
    }
}

fn situations(file: &str) -> Vec<SentinelSituation> {
    let mut situations: Vec<SentinelSituation> = Vec::new();
    for line in file
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let (word, rest) = line.split_once(' ').expect(line);
        if word == "==" {
            situations.push(SentinelSituation {
                name: rest.to_owned(),
                host: "127.0.0.1".to_owned(),
                ..SentinelSituation::default()
            });
            continue;
        }
        let situation = situations.last_mut().expect("a name comes first");
        let words: Vec<&str> = rest.split(' ').collect();
        let port = |at: usize| words[at].parse::<u16>().expect(line);
        let number = |at: usize| {
            let word = words.get(at).copied().unwrap_or_default();
            word.parse().unwrap_or_default()
        };
        let is_down = words.last() == Some(&"down");
        let health = |down| {
            if is_down {
                down
            } else {
                InstanceHealth::Online
            }
        };
        match word {
            "host" => situation.host = rest.to_owned(),
            "primary" => {
                let setup = PrimarySetup {
                    port: port(1),
                    quorum: number(2),
                    epoch: number(3),
                    health: health(InstanceHealth::Failed),
                };
                situation.primaries.insert(words[0].to_owned(), setup);
            }
            "replica" | "sentinel" => {
                let of = match word {
                    "replica" => &mut situation.replicas,
                    _ => &mut situation.sentinels,
                };
                of.insert(
                    (words[0].to_owned(), port(1)),
                    health(InstanceHealth::Suspected),
                );
            }
            "new" => situation.new = Some(port(1)),
            "old" => situation.old = Some(port(1)),
            "switch" => situation.switch = Some((words[0].to_owned(), port(1), port(2))),
            "promoted" => situation.promoted = Some(port(1)),
            "about" => situation.about = rest.to_owned(),
            "message" => situation.messages.push(bytes(rest)),
            command => situation.answers.push((command.to_owned(), bytes(rest))),
        }
    }
    situations
}

fn bytes(escaped: &str) -> Vec<u8> {
    let text = escaped.replace("\\r", "\r").replace("\\n", "\n");
    assert!(!text.contains('\\'), "{escaped}");
    text.into_bytes()
}

/// Addresses and health are read as the servers were set up, from each command, version and
/// protocol.
#[test]
fn every_answer_is_read_as_it_was_set_up() {
    for file in FILES {
        let mut counted = BTreeMap::<&str, usize>::new();
        let situations = situations(file);
        for situation in &situations {
            let situation_name = &situation.name;
            for (command, answer) in &situation.answers {
                *counted.entry(command).or_default() += 1;
                match command.as_str() {
                    "masters" => {
                        let primaries = Primary::read_all(answer).expect(situation_name);
                        // The primaries come in any order.
                        let names: BTreeSet<_> = primaries.iter().map(|one| &one.name).collect();
                        assert!(names.into_iter().eq(situation.primaries.keys()));
                        assert_eq!(primaries.len(), situation.primaries.len());
                        for primary in &primaries {
                            situation.check_primary(primary);
                        }
                    }
                    "master" => {
                        let primary = Primary::read(answer).expect(situation_name);
                        assert_eq!(primary.name, situation.about);
                        situation.check_primary(&primary);
                    }
                    "address" => {
                        let primary = situation.primaries.get(&situation.about);
                        let port = situation.new.or(primary.map(|primary| primary.port));
                        let expected = situation.at(port.expect("a primary"));
                        assert_eq!(read_address(answer), Ok(expected), "{situation_name}");
                    }
                    "sentinels" => situation
                        .check_peers(&SentinelPeer::read_all(answer).expect(situation_name)),
                    "replicas" => {
                        situation.check_replicas(&Replica::read_all(answer).expect(situation_name))
                    }
                    "id" => assert_eq!(read_id(answer).expect(situation_name).len(), 40),
                    "role" => {
                        situation.check_role(&ReportedRole::read(answer).expect(situation_name))
                    }
                    "unknown" => {
                        assert_eq!(Primary::read(answer), Err(AnswerError::UnknownName));
                        assert_eq!(
                            SentinelPeer::read_all(answer),
                            Err(AnswerError::UnknownName)
                        );
                    }
                    "lost-master" => {
                        let primary = Primary::read(answer).expect(situation_name);
                        assert_eq!((&*primary.name, primary.endpoint), ("lost", None));
                        assert_eq!(primary.health, InstanceHealth::Disconnected);
                    }
                    "lost-address" => assert_eq!(read_address(answer), Err(AnswerError::NotKnown)),
                    "lost-sentinels" => {
                        let peers = SentinelPeer::read_all(answer).expect(situation_name);
                        assert!(matches!(&peers[..], [SentinelPeer { endpoint: None, .. }]));
                    }
                    "lost-replicas" => {
                        let replicas = Replica::read_all(answer).expect(situation_name);
                        assert!(matches!(
                            &replicas[..],
                            [Replica {
                                endpoint: None,
                                of: None,
                                ..
                            }]
                        ));
                    }
                    "nowhere" => assert_eq!(read_address(answer), Err(AnswerError::UnknownName)),
                    "error" => {
                        let refused = |error| matches!(error, AnswerError::Refused(_));
                        assert!(
                            Primary::read_all(answer).is_err_and(refused),
                            "{situation_name}"
                        );
                        assert!(
                            Message::read(answer).is_err_and(refused),
                            "{situation_name}"
                        );
                    }
                    other => panic!("no test reads {other}"),
                }
            }
            *counted.entry("surveys").or_default() += situation.surveys().len();
            *counted.entry("switches").or_default() += usize::from(situation.switch.is_some());
        }
        assert_eq!(counted, BTreeMap::from(COUNTS));
    }
}

/// Both protocol versions get the same messages. A failover has the order to promote, the promotion
/// and the switch, in this order.
#[test]
fn messages_report_the_failovers_that_happened() {
    let (mut promotions, mut orders) = (0, 0);
    for file in FILES {
        for situation in situations(file) {
            let events = situation.events(b'*');
            assert_eq!(events, situation.events(b'>'), "{}", situation.name);
            let switches = |event: &FailoverEvent| matches!(event, FailoverEvent::Switched { .. });
            let Some((name, from, to)) = &situation.switch else {
                assert!(!events.iter().any(switches), "{}", situation.name);
                continue;
            };
            let switch = FailoverEvent::Switched {
                name: name.clone(),
                from: Some(situation.at(*from)),
                to: Some(situation.at(*to)),
            };
            let at = |wanted: &FailoverEvent| events.iter().position(|event| event == wanted);
            assert!(at(&switch).is_some(), "{events:?}");
            if let Some(promoted) = situation.promoted {
                let promotion = FailoverEvent::Promoted {
                    name: name.clone(),
                    to: Some(situation.at(promoted)),
                };
                let before = at(&promotion).expect("this Sentinel led the failover");
                assert!(Some(before) < at(&switch), "{events:?}");
                // Some subscribers did not subscribe to this channel.
                let order = FailoverEvent::Promoting {
                    name: name.clone(),
                    to: Some(situation.at(promoted)),
                };
                if let Some(order) = at(&order) {
                    assert!(events[order..].contains(&promotion), "{events:?}");
                    orders += 1;
                }
                promotions += 1;
            }
        }
    }
    assert_eq!(promotions, 3 * FILES.len());
    assert_eq!(orders, FILES.len());
}

/// Each kind of event is published by every version, for the right server and name.
#[test]
fn each_kind_of_event_is_published() {
    for file in FILES {
        let situations = situations(file);
        let events = |name: &str| {
            let situation = situations.iter().find(|situation| situation.name == name);
            situation.expect(name).events(b'*')
        };
        // Whether an event concerns the instance of this kind and name at this port.
        let is_about = |event: &FailoverEvent, kind, name: &str, port| match event {
            FailoverEvent::Down { instance, .. }
            | FailoverEvent::Up { instance, .. }
            | FailoverEvent::Rebooted { instance } => {
                instance.kind == kind
                    && instance.name == name
                    && instance.endpoint.as_ref().is_some_and(|at| at.port == port)
            }
            _ => false,
        };
        let agreed = |event: &FailoverEvent| match event {
            FailoverEvent::Down { is_agreed, .. } => Some((true, *is_agreed)),
            FailoverEvent::Up { is_agreed, .. } => Some((false, *is_agreed)),
            _ => None,
        };

        let went = events("a primary without replicas goes down");
        assert!(
            went.iter()
                .all(|it| is_about(it, Kind::Primary, "m1", 17203))
        );
        let went: Vec<_> = went.iter().map(agreed).collect();
        assert_eq!(went, [Some((true, false)), Some((true, true))]);
        let came = events("it comes back");
        let came: Vec<_> = came.iter().filter_map(agreed).collect();
        assert_eq!(came, [(false, false), (false, true)]);

        let met = events("Sentinels meet");
        let name = |name: &str| FailoverEvent::Sentinels {
            name: name.to_owned(),
        };
        assert_eq!(met.iter().filter(|it| **it == name("m0")).count(), 2);
        assert_eq!(met.iter().filter(|it| **it == name("m1")).count(), 2);

        let died = events("a primary and a Sentinel die");
        let down = |kind, port| {
            died.iter()
                .any(|it| is_about(it, kind, "m0", port) && agreed(it) == Some((true, false)))
        };
        assert!(down(Kind::Primary, 17202) && down(Kind::Sentinel, 17212));
        assert!(died.contains(&FailoverEvent::Replicas {
            name: "m0".to_owned()
        }));

        let back = events("the old primary comes back");
        let up = |it: &FailoverEvent| {
            is_about(it, Kind::Replica, "m0", 17202) && agreed(it) == Some((false, false))
        };
        assert!(back.iter().any(up), "{back:?}");

        let m2 = FailoverEvent::Names {
            name: "m2".to_owned(),
        };
        assert_eq!(
            events("a name comes and goes"),
            [m2.clone(), m2.clone(), m2]
        );
        let rebooted = |it: &FailoverEvent| matches!(it, FailoverEvent::Rebooted { .. });
        let mut all = situations
            .iter()
            .flat_map(|situation| situation.events(b'*'));
        assert!(all.any(|it| rebooted(&it)));
    }
}

/// Each channel is confirmed, the last one with the number of all channels, and a PING is answered.
#[test]
fn subscription_is_confirmed_channel_by_channel() {
    for file in FILES {
        let situations = situations(file);
        let find = |name: &str| situations.iter().find(|situation| situation.name == name);
        let begun = find("a subscription begins").expect("every file has it");
        for version in [b'*', b'>'] {
            let counts: Vec<u64> = begun
                .messages
                .iter()
                .filter(|message| message[0] == version)
                .map(|message| match Message::read(message) {
                    Ok(Message::Subscribed { channels }) => channels,
                    other => panic!("{other:?}"),
                })
                .collect();
            let expected: Vec<u64> = (1..=CHANNELS.len() as u64).collect();
            assert_eq!(counts, expected);
        }
        let asked = find("PING of a subscriber").expect("every file has it");
        let read: Vec<_> = asked.messages.iter().map(|it| Message::read(it)).collect();
        assert_eq!(read, [Ok(Message::Pong), Ok(Message::Pong)]);
    }
}

/// The Sentinel that leads a failover still watches the old primary.
#[test]
fn leading_sentinel_watches_the_old_primary() {
    for file in FILES {
        let situations = situations(file);
        let leading = situations
            .iter()
            .find(|it| it.name.starts_with("a failover waits"));
        for survey in leading.expect("every file has it").surveys() {
            assert!(survey.primary.is_failing_over);
            assert_ne!(survey.primary.endpoint, Some(survey.address));
        }
    }
}

/// A real answer that is cut or changed anywhere is another valid answer or an error, and never a
/// panic.
#[test]
fn damaged_answer_is_an_error_or_a_valid_answer() {
    let wrong_bytes = b"\0\r\n :-*%$_0129@,>?\xff";
    let mut refused = 0;
    for file in FILES {
        for situation in situations(file) {
            let answers = situation.answers.iter().map(|(_, answer)| answer);
            // In each answer some bytes are changed, in every answer other ones.
            for (turn, answer) in answers.chain(&situation.messages).enumerate() {
                let step = 1 + answer.len() / 60;
                for at in (turn % step..answer.len()).step_by(step) {
                    let mut damaged = answer.clone();
                    damaged[at] = wrong_bytes[(at + turn) % wrong_bytes.len()];
                    for bytes in [&damaged, &answer[..at]] {
                        let errors = [
                            Primary::read(bytes).err(),
                            Primary::read_all(bytes).err(),
                            Replica::read_all(bytes).err(),
                            SentinelPeer::read_all(bytes).err(),
                            read_address(bytes).err(),
                            read_id(bytes).err(),
                            ReportedRole::read(bytes).err(),
                            Message::read(bytes).err(),
                        ];
                        for error in errors.into_iter().flatten() {
                            refused += 1;
                            assert!(!error.to_string().is_empty());
                        }
                    }
                }
            }
        }
    }
    assert!(refused > 100_000, "{refused}");
}

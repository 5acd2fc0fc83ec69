//! Answers of real servers are read as their Clusters were set up. They are in `cluster/`, whose
//! README describes their format.

use std::collections::BTreeMap;

use respool_protocol::cluster::{
    ClusterNode, Info, NodeHealth, NodeRole, Redirect, Refusal, View, ViewError,
};
use respool_protocol::slot::SLOTS;

/// The answers of each version, and the numbers of SLOTS, SHARDS, NODES and INFO among them.
const FILES: [(&str, [usize; 4]); 4] = [
    (include_str!("cluster/redis-6.2.txt"), [7, 0, 13, 9]),
    (include_str!("cluster/redis-7.0.txt"), [11, 12, 14, 9]),
    (include_str!("cluster/redis-8.2.txt"), [11, 11, 13, 9]),
    (include_str!("cluster/valkey-9.1.txt"), [11, 11, 13, 9]),
];

type ViewReader = fn(&[u8], &str) -> Result<View, ViewError>;

/// The setup of a Cluster, and the answers of its nodes. Nodes are named by their ports.
#[derive(Default)]
struct ClusterSituation {
    name: String,
    /// Host of the node that answered.
    asked: String,
    nodes: BTreeMap<u16, (NodeRole, NodeHealth)>,
    /// The primary of each replica.
    primaries: BTreeMap<u16, u16>,
    /// The owner of each slot.
    owners: Vec<Option<u16>>,
    hostnames: BTreeMap<u16, String>,
    zones: BTreeMap<u16, String>,
    tls_ports: BTreeMap<u16, u16>,
    /// Subcommands with their answers.
    answers: Vec<(String, Vec<u8>)>,
    errors: Vec<Vec<u8>>,
}

impl ClusterSituation {
    fn port(&self, node: &ClusterNode) -> u16 {
        let endpoint = node.endpoint.as_ref().expect("every node has an endpoint");
        let prefers_names = self.name == "preferred endpoint: hostname";
        let host = match self.hostnames.get(&endpoint.port) {
            Some(hostname) if prefers_names => hostname,
            _ => &self.asked,
        };
        assert_eq!(&endpoint.host, host, "{}", self.name);
        endpoint.port
    }

    fn check(&self, command: &str, view: &View) {
        let name = &self.name;
        let of = |index: u16| self.port(&view.nodes()[usize::from(index)]);
        let owners: Vec<_> = (0..SLOTS).map(|slot| view.owner(slot).map(of)).collect();
        assert_eq!(owners, self.owners, "{command}: {name}");

        // SLOTS has only owners of slots and their replicas.
        let is_listed = |port: &u16| {
            let primary = self.primaries.get(port).unwrap_or(port);
            command != "slots" || self.owners.contains(&Some(*primary))
        };
        let mut ports: Vec<u16> = view.nodes().iter().map(|node| self.port(node)).collect();
        ports.sort_unstable();
        let listed: Vec<u16> = self.nodes.keys().copied().filter(is_listed).collect();
        assert_eq!(ports, listed, "{command}: {name}");

        for (index, node) in (0..).zip(view.nodes()) {
            let port = self.port(node);
            let (role, health) = self.nodes[&port];
            assert_eq!(node.id.len(), 40);
            assert_eq!(view.find(&node.id), Some(index));
            let endpoint = node.endpoint.as_ref().expect("every node has an endpoint");
            assert_eq!(view.find_at(&endpoint.host, port), Some(index));
            assert_eq!(node.health, health, "{command}: {name}: {port}");
            match (node.role, role) {
                (NodeRole::Replica { of: Some(primary) }, NodeRole::Replica { .. }) => {
                    assert_eq!(of(primary), self.primaries[&port], "{command}: {name}");
                    assert!(view.replicas_of(primary).any(|replica| replica == index));
                }
                (found, role) => assert_eq!(found, role, "{command}: {name}: {port}"),
            }
            // SLOTS leaves out the host name if it is the endpoint.
            let is_listed = command != "slots" || endpoint.host == self.asked;
            let hostname = self.hostnames.get(&port).filter(|_| is_listed);
            assert_eq!(node.hostname.as_ref(), hostname, "{command}: {name}");
            let zone = self.zones.get(&port).filter(|_| command != "nodes");
            assert_eq!(node.zone.as_ref(), zone, "{command}: {name}: {port}");
            let tls_port = self.tls_ports.get(&port).filter(|_| command == "shards");
            assert_eq!(node.tls_port.as_ref(), tls_port, "{command}: {name}");
            assert_eq!(node.epoch.is_some(), command == "nodes");
            assert_eq!(node.offset_bytes.is_some(), command == "shards");
            if let Some(hostname) = &node.hostname {
                assert_eq!(view.find_at(hostname, port), Some(index));
            }
        }
        assert_eq!(view.myself().is_some(), command == "nodes");
    }
}

fn situations(file: &str) -> Vec<ClusterSituation> {
    let mut situations: Vec<ClusterSituation> = Vec::new();
    for line in file
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let (word, rest) = line.split_once(' ').expect(line);
        if word == "==" {
            situations.push(ClusterSituation {
                name: rest.to_owned(),
                owners: vec![None; usize::from(SLOTS)],
                ..ClusterSituation::default()
            });
            continue;
        }
        let situation = situations.last_mut().expect("a name comes first");
        let words: Vec<&str> = rest.split(' ').collect();
        let port = |text: &str| text.parse::<u16>().expect(line);
        match word {
            "asked" => situation.asked = rest.to_owned(),
            "node" => {
                let role = match words[1..] {
                    ["replica", primary, ..] => {
                        situation.primaries.insert(port(words[0]), port(primary));
                        NodeRole::Replica { of: None }
                    }
                    ["joining"] => NodeRole::Unknown,
                    _ => NodeRole::Primary,
                };
                let health = match words.last() {
                    Some(&"suspected") => NodeHealth::Suspected,
                    Some(&"failed") => NodeHealth::Failed,
                    Some(&"joining") => NodeHealth::Joining,
                    _ => NodeHealth::Online,
                };
                situation.nodes.insert(port(words[0]), (role, health));
            }
            "owner" => {
                let (first, last) = words[0].split_once('-').expect(line);
                for slot in port(first)..=port(last) {
                    situation.owners[usize::from(slot)] = Some(port(words[1]));
                }
            }
            "hostname" => drop(
                situation
                    .hostnames
                    .insert(port(words[0]), words[1].to_owned()),
            ),
            "zone" => drop(situation.zones.insert(port(words[0]), words[1].to_owned())),
            "tls" => drop(situation.tls_ports.insert(port(words[0]), port(words[1]))),
            "error" => situation.errors.push(bytes(rest)),
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

fn reader(command: &str) -> ViewReader {
    match command {
        "slots" => View::from_slots,
        "shards" => View::from_shards,
        "nodes" => View::from_nodes,
        _ => panic!("no reader for {command}"),
    }
}

/// Nodes and slot owners are read as the Cluster was set up, from each command, version and
/// protocol.
#[test]
fn every_answer_is_read_as_the_cluster_was_set_up() {
    for (file, counts) in FILES {
        let mut counted = BTreeMap::<String, usize>::new();
        for situation in situations(file) {
            for (command, answer) in &situation.answers {
                *counted.entry(command.clone()).or_default() += 1;
                if command == "info" {
                    let info = Info::read(answer).expect(&situation.name);
                    let owned = situation.owners.iter().flatten().count();
                    assert_eq!(usize::from(info.slots_assigned), owned);
                    assert_eq!(info.ok, owned == usize::from(SLOTS), "{}", situation.name);
                    assert!(info.my_epoch <= info.current_epoch);
                } else {
                    let view = reader(command)(answer, &situation.asked);
                    let view = view.unwrap_or_else(|error| panic!("{}: {error}", situation.name));
                    situation.check(command, &view);
                }
            }
        }
        let counted = ["slots", "shards", "nodes", "info"]
            .map(|command| counted.get(command).copied().unwrap_or_default());
        assert_eq!(counted, counts);
    }
}

/// Every error of a real server is recognised, and every redirect names a node.
#[test]
fn every_error_of_a_real_server_is_recognised() {
    let mut counted = BTreeMap::new();
    for (file, _) in FILES {
        for error in situations(file)
            .iter()
            .flat_map(|situation| &situation.errors)
        {
            let error = &error[1..];
            let refusal = Refusal::of(error).expect("an error of a Cluster");
            *counted.entry(format!("{refusal:?}")).or_insert(0) += 1;
            let redirect = Redirect::read(error);
            match refusal {
                Refusal::Moved | Refusal::Ask => {
                    let redirect = redirect.expect("a redirect");
                    assert_eq!(redirect.ask, refusal == Refusal::Ask);
                    assert!([5061, 8420, 9842, 12182].contains(&redirect.slot));
                    let hosts = [None, Some("127.0.0.1"), Some("::1"), Some("one.example")];
                    assert!(hosts.contains(&redirect.host));
                    assert_eq!(redirect.port / 1000, 17);
                }
                _ => assert_eq!(redirect, None),
            }
        }
    }
    let counted: Vec<_> = counted.into_iter().collect();
    let expected = [
        ("Ask", 5),
        ("ClusterDown", 4),
        ("Moved", 34),
        ("TryAgain", 3),
    ];
    let expected = expected.map(|(refusal, count)| (refusal.to_owned(), count));
    assert_eq!(counted, expected);
}

/// A real answer that is cut or changed anywhere is another valid view or an error, and never a
/// panic.
#[test]
fn damaged_answer_is_an_error_or_a_valid_view() {
    let wrong_bytes = b"\0\r\n :-*%$_0129@,[?\xff";
    let mut refused = 0;
    for (file, _) in FILES {
        for situation in situations(file) {
            // Short answers are enough, and more of their bytes can be changed.
            let short = |(_, answer): &&(String, Vec<u8>)| answer.len() < 1_000;
            for (command, answer) in situation.answers.iter().filter(short) {
                for at in (0..answer.len()).step_by(5) {
                    let mut damaged = answer.clone();
                    damaged[at] = wrong_bytes[at % wrong_bytes.len()];
                    for bytes in [&damaged, &answer[..at]] {
                        let read = match command.as_str() {
                            "info" => Info::read(bytes).map(|_| None),
                            _ => reader(command)(bytes, &situation.asked).map(Some),
                        };
                        match read {
                            Ok(view) => assert!(view.is_none_or(|view| is_valid(&view))),
                            Err(error) => {
                                refused += 1;
                                assert!(!error.to_string().is_empty());
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(refused > 2_000, "{refused}");
}

/// Whether every index has a node, and every endpoint a host and a port.
fn is_valid(view: &View) -> bool {
    let exists = |index: u16| usize::from(index) < view.nodes().len();
    view.ranges()
        .all(|(range, owner)| range.end() < &SLOTS && exists(owner))
        && view
            .nodes()
            .iter()
            .all(|node| match (&node.endpoint, node.role) {
                (Some(at), _) if at.port == 0 || at.host.is_empty() => false,
                (_, NodeRole::Replica { of: Some(primary) }) => exists(primary),
                _ => true,
            })
}

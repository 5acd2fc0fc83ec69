//! The one node that respool shows to clients of a Cluster, compared with the nodes behind it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use respool_protocol::slot::{SLOTS, hash_slot};
use respool_testkit::client::{Reply, RespClient, one_of_each_worker, pipelined, request, text};

use crate::topology::cluster::{Served, primaries, with_every_server};

/// Keys with a hash tag, and keys that only look so.
const TAGGED: [&str; 14] = [
    "",
    "key",
    "{}",
    "{a}",
    "{a}key",
    "key{a}",
    "k{a}y",
    "{a}{b}",
    "{}{b}",
    "{a",
    "a}",
    "}{a}",
    "{{a}}",
    "a\r\n{b c}\0",
];

/// CLUSTER KEYSLOT gives the slot that the nodes give.
#[test]
fn cluster_keyslot_equals_the_nodes() {
    with_every_server(|binary| {
        let served = Served::start(binary, primaries(), &["--threads=1"]);
        let mut client = served.client();
        let mut node = RespClient::connect(served.cluster.node(1).address());
        for key in TAGGED {
            let asked = ["CLUSTER", "KEYSLOT", key];
            let own = node.call_args(&asked);
            assert_eq!(client.call_args(&asked), own, "{key:?}");
            let slot = hash_slot(key.as_bytes());
            assert_eq!(own, Reply::Integer(slot.into()), "{key:?}");
        }
        for (key, slot) in [("123456789", 12_739), ("foo", 12_182), ("{foo}bar", 12_182)] {
            let said = client.call(&format!("CLUSTER KEYSLOT {key}"));
            assert_eq!(said, Reply::Integer(slot));
        }
        for asked in ["CLUSTER KEYSLOT", "CLUSTER KEYSLOT a b"] {
            for reply in [client.call(asked), node.call(asked)] {
                assert!(reply.error().is_some(), "{asked}: {reply:?}");
            }
        }
    });
}

/// Clients that ask INFO before they ask for the nodes, and clients that ask for the nodes, get the
/// same answer.
#[test]
fn info_hello_and_cluster_show_the_same() {
    with_every_server(|binary| {
        for (shows, is_node) in [("node", true), ("server", false)] {
            let shows = format!("--cluster-shows={shows}");
            let served = Served::start(binary, primaries(), &["--threads=1", &shows]);
            let mut client = served.client();
            let info = text(&client.call("INFO"));
            assert_eq!(info.contains("cluster_enabled:1"), is_node, "{info}");
            assert_eq!(info.contains("_mode:cluster"), is_node, "{info}");
            assert_eq!(info.contains("_mode:standalone"), !is_node, "{info}");
            let slots = client.call("CLUSTER SLOTS");
            assert_eq!(slots.error().is_none(), is_node, "{slots:?}");
            let hello = format!("{:?}", client.call("HELLO 2"));
            assert_eq!(hello.contains("standalone"), !is_node, "{hello}");
            assert_eq!(client.call("SET key value"), Reply::ok());
        }
    });
}

/// The one node that clients see has the same id in every reply of every worker.
#[test]
fn facade_node_has_one_id_everywhere() {
    with_every_server(|binary| {
        let served = Served::start(binary, primaries(), &["--threads=3"]);
        let mut names = BTreeSet::new();
        for mut client in one_of_each_worker(served.proxy.address()) {
            for hello in ["PING", "HELLO 3"] {
                assert!(client.call(hello).error().is_none());
                names.insert(text(&client.call("CLUSTER MYID")));
                let nodes = match client.call("CLUSTER NODES") {
                    Reply::Bulk(nodes) | Reply::Other(_, nodes) => nodes,
                    other => panic!("{other:?}"),
                };
                let nodes = String::from_utf8(nodes).expect("text");
                let nodes = nodes.trim_start_matches("txt:");
                let [line] = nodes.lines().collect::<Vec<_>>()[..] else {
                    panic!("one node: {nodes}")
                };
                let (name, rest) = line.split_once(' ').expect("words");
                assert!(rest.contains(" myself,master - "), "{line}");
                names.insert(name.to_owned());
                let slots = client.call("CLUSTER SLOTS");
                let [range] = items(&slots) else {
                    panic!("one range: {slots:?}")
                };
                let [first, last, node] = items(range) else {
                    panic!("one node: {slots:?}")
                };
                assert_eq!([first, last], [&Reply::Integer(0), &Reply::Integer(16_383)]);
                names.insert(text(&items(node)[2]));
                let shards = client.call("CLUSTER SHARDS");
                let nodes = items(&shards)[0].get("nodes").expect("a shard has nodes");
                names.insert(text(items(nodes)[0].get("id").expect("a node has a name")));
            }
        }
        let names: Vec<String> = names.into_iter().collect();
        let [name] = &names[..] else {
            panic!("one name: {names:?}")
        };
        // The id has the form of a node id, and is not the id of any real node.
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        assert!(name.len() == 40 && name.bytes().all(is_hex), "{name}");
        let mut client = served.client();
        for node in 0..3 {
            let id = served.cluster.id(node);
            assert_ne!(id, name);
            let replicas = client.call(&format!("CLUSTER REPLICAS {id}"));
            let unknown = format!("ERR Unknown node {id}");
            assert_eq!(replicas.error(), Some(&unknown[..]));
        }
        let none = Reply::Array(Vec::new());
        assert_eq!(client.call(&format!("CLUSTER REPLICAS {name}")), none);
    });
}

pub(crate) fn items(value: &Reply) -> &[Reply] {
    match value {
        Reply::Array(items) | Reply::Set(items) => items,
        other => panic!("no list: {other:?}"),
    }
}

/// CLUSTER GETKEYSINSLOT and COUNTKEYSINSLOT show the keys of the slot's owner.
#[test]
fn getkeysinslot_lists_the_owners_keys() {
    with_every_server(|binary| {
        let served = Served::start(binary, primaries(), &["--threads=1"]);
        let mut client = served.client();
        let mut nodes: Vec<RespClient> = served
            .cluster
            .nodes()
            .iter()
            .map(|node| RespClient::connect(node.address()))
            .collect();
        for (tag, count) in [("a", 5), ("b", 3), ("c", 12), ("none", 0)] {
            for key in 0..count {
                assert_eq!(client.call(&format!("SET {{{tag}}}{key} 1")), Reply::ok());
            }
            let slot = hash_slot(tag.as_bytes());
            let owner = served.owner(tag);
            let asked = format!("CLUSTER COUNTKEYSINSLOT {slot}");
            assert_eq!(client.call(&asked), Reply::Integer(count));
            assert_eq!(nodes[owner].call(&asked), Reply::Integer(count));
            for some in [0, 4, 100] {
                let asked = format!("CLUSTER GETKEYSINSLOT {slot} {some}");
                let keys = settled(&mut client, &mut nodes[owner], &asked);
                assert_eq!(items(&keys).len(), count.min(some) as usize, "{asked}");
            }
            // In order with the requests beside it.
            let among = format!("SET {{{tag}}}0 2;{asked};GET {{{tag}}}0;DEL {{{tag}}}0;{asked}");
            let replies = pipelined(&mut client, &among);
            assert_eq!(replies[1], Reply::Integer(count.max(1)), "{among}");
            assert_eq!(replies[4], Reply::Integer((count - 1).max(0)), "{among}");
        }
        for asked in [
            format!("CLUSTER COUNTKEYSINSLOT {SLOTS}"),
            "CLUSTER COUNTKEYSINSLOT -1".to_owned(),
            "CLUSTER COUNTKEYSINSLOT".to_owned(),
            "CLUSTER GETKEYSINSLOT 1 -1".to_owned(),
            "CLUSTER GETKEYSINSLOT 1".to_owned(),
        ] {
            let own = nodes[0].call(&asked);
            assert!(own.error().is_some(), "{asked}: {own:?}");
            let said = client.call(&asked);
            assert!(
                said.error().is_some(),
                "{asked}: {said:?}, and a node {own:?}"
            );
        }
    });
}

/// The reply of `client`, which must be that of `node`. Redis 8 and Valkey list the keys of a slot
/// in another order after a rehash of its table, so the node is asked before and after.
fn settled(client: &mut RespClient, node: &mut RespClient, asked: &str) -> Reply {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let before = node.call(asked);
        let reply = client.call(asked);
        if before == node.call(asked) {
            assert_eq!(reply, before, "{asked}");
            return reply;
        }
        assert!(
            Instant::now() < deadline,
            "{asked}: the order keeps changing"
        );
    }
}

/// ASKING and READONLY change nothing for a client that sees one node.
#[test]
fn asking_and_readonly_change_nothing() {
    with_every_server(|binary| {
        let served = Served::start(binary, primaries(), &["--threads=1"]);
        let mut client = served.client();
        for key in ["a", "b", "c", "d"] {
            for word in ["ASKING", "READONLY", "READWRITE"] {
                let asked = format!("{word};SET {key} {word};GET {key};{word};GET {key}");
                let value = Reply::bulk(word);
                let expected = [Reply::ok(), Reply::ok(), value.clone(), Reply::ok(), value];
                assert_eq!(pipelined(&mut client, &asked), expected, "{asked}");
            }
            for word in ["ASKING x", "READONLY x"] {
                let mut node = RespClient::connect(served.cluster.node(0).address());
                assert_eq!(client.call(word), node.call(word));
            }
        }
        // No node ever got this command: other clients' requests there are still refused.
        let key =
            crate::topology::cluster::key_in(|slot| served.cluster.share(1).contains(&slot), 0);
        let mut node = RespClient::connect(served.cluster.node(0).address());
        let refused = node.exchange(request(&["GET", &key]), 1).remove(0);
        assert!(
            refused
                .error()
                .is_some_and(|text| text.starts_with("MOVED "))
        );
    });
}

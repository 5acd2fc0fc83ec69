//! A slot without owner: its requests fail at once, as at a node, and other clients notice nothing.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use respool_protocol::slot::{SLOTS, hash_slot};
use respool_testkit::client::{Reply, RespClient, pipelined, text};
use respool_testkit::time::wait_until;
use respool_testkit::topologies::ClusterSettings;

use crate::pubsub::sharded_channels::some_server_with_them;
use crate::topology::cluster::{SOON, Served, key_in, primaries, some_server, with_every_server};

const TOLD: &str = "CLUSTERDOWN Hash slot not served";

/// Less than a request may take by far.
const AT_ONCE: Duration = Duration::from_secs(3);

fn start(binary: &Path) -> Served {
    let settings = ClusterSettings {
        args: vec!["--cluster-require-full-coverage".into(), "no".into()],
        ..primaries()
    };
    Served::start(binary, settings, &["--threads=1"])
}

/// These nodes give a slot up. Earlier messages of one of them may still be on their way to
/// another.
fn give_up(served: &Served, nodes: &[usize], slot: u16) {
    let assigned = format!("cluster_slots_assigned:{}", SLOTS - 1);
    let has_given_up = |node: usize| {
        let mut node = RespClient::connect(served.cluster.node(node).address());
        text(&node.call("CLUSTER INFO")).contains(&assigned)
    };
    wait_until("no node owns the slot", SOON, || {
        for node in nodes {
            let order = ["CLUSTER", "DELSLOTS", &slot.to_string()];
            // The node may have given up the slot before, so an error is ignored.
            let _ = served.cluster.node(*node).ask(&order);
        }
        thread::sleep(Duration::from_millis(300));
        nodes.iter().all(|node| has_given_up(*node))
    });
}

fn take(served: &Served, node: usize, slot: u16) {
    let order = ["CLUSTER", "ADDSLOTS", &slot.to_string()];
    let taken = served.cluster.node(node).ask_ok(&order);
    taken.unwrap_or_else(|error| panic!("{error}"));
}

fn is_told(reply: &Reply) -> bool {
    reply.error() == Some(TOLD)
}

/// A request for a slot without owner fails at once, and the requests behind it go on.
#[test]
fn request_for_an_uncovered_slot_fails_at_once() {
    with_every_server(|binary| {
        let served = start(binary);
        let lost = key_in(|slot| served.cluster.share(1).contains(&slot), 0);
        let [here, there] = [0, 2].map(|node| {
            let share = served.cluster.share(node);
            key_in(|slot| share.contains(&slot), 0)
        });
        let slot = hash_slot(lost.as_bytes());
        let mut client = served.client();
        for key in [&lost, &here, &there] {
            assert_eq!(client.call(&format!("SET {key} {key}")), Reply::ok());
        }
        give_up(&served, &[1, 0, 2], slot);
        let values = |keys: &[&String]| Reply::Array(keys.iter().map(Reply::bulk).collect());
        for turn in 0..3 {
            let began = Instant::now();
            let requests = format!(
                "GET {lost};SET {here} {here};GET {there};INCR {lost};MGET {here} {there};MGET {here} {lost};\
                MULTI;GET {lost};EXEC;GET {lost};GET {lost};SET {lost} 1;EVAL return(1) 1 {lost};GET {here}"
            );
            let replies = pipelined(&mut client, &requests);
            for told in [0, 3, 8, 9, 10, 11, 12] {
                assert!(is_told(&replies[told]), "{turn}, {told}: {replies:?}");
            }
            // For a divided request the text names the node.
            let part = replies[5].error().unwrap_or_default();
            assert!(part.ends_with(": Hash slot not served"), "{part}");
            assert_eq!(replies[1], Reply::ok());
            assert_eq!(replies[2], Reply::bulk(&there));
            assert_eq!(replies[4], values(&[&here, &there]));
            assert_eq!(replies[13], Reply::bulk(&here));
            assert!(is_told(&client.call(&format!("BLPOP {lost} 0"))));
            let divided = client.call(&format!("DEL nobody:{turn} {lost}"));
            let said = divided.error().unwrap_or_default();
            assert!(said.ends_with(": Hash slot not served"), "{divided:?}");
            assert!(began.elapsed() < AT_ONCE, "{turn}: {:?}", began.elapsed());
        }
        let mut other = served.client();
        assert!(is_told(&other.call(&format!("GET {lost}"))));
        nodes_are_shown_without(&mut client, slot);
        // Another node takes the slot.
        take(&served, 2, slot);
        wait_until("the slot is served again", SOON, || {
            client.call(&format!("SET {lost} again")) == Reply::ok()
        });
        let healed = client.call(&format!("MGET {here} {lost}"));
        assert_eq!(healed, values(&[&here, &"again".to_owned()]));
        wait_until("CLUSTER INFO shows all slots", SOON, || {
            let info = text(&client.call("CLUSTER INFO"));
            info.contains(&format!("cluster_slots_ok:{SLOTS}"))
        });
    });
}

/// CLUSTER INFO, SLOTS and NODES, as a node says it of which none needs an owner of every slot.
fn nodes_are_shown_without(client: &mut RespClient, slot: u16) {
    let info = text(&client.call("CLUSTER INFO"));
    for field in [
        "cluster_state:ok".to_owned(),
        format!("cluster_slots_assigned:{}", SLOTS - 1),
        format!("cluster_slots_ok:{}", SLOTS - 1),
        "cluster_slots_fail:0".to_owned(),
    ] {
        assert!(info.contains(&format!("{field}\r\n")), "{info}");
    }
    let ranges = [(0, slot - 1), (slot + 1, SLOTS - 1)];
    let shown = |(first, last)| format!("{first}-{last}");
    let nodes = text(&client.call("CLUSTER NODES"));
    let expected = format!("connected {}\n", ranges.map(shown).join(" "));
    assert!(nodes.ends_with(&expected), "{nodes}");
    let Reply::Array(slots) = client.call("CLUSTER SLOTS") else {
        panic!("a list of ranges")
    };
    assert_eq!(slots.len(), 2);
    for (shown, (first, last)) in slots.iter().zip(ranges) {
        let Reply::Array(shown) = shown else {
            panic!("{shown:?}")
        };
        let bounds = [first, last].map(|slot| Reply::Integer(slot.into()));
        assert_eq!(shown[..2], bounds);
    }
}

/// A node that has given up a slot is believed, though the others still name it.
#[test]
fn node_that_gave_up_a_slot_is_believed() {
    let served = start(&some_server());
    let lost = key_in(|slot| served.cluster.share(1).contains(&slot), 0);
    let slot = hash_slot(lost.as_bytes());
    let mut client = served.client();
    assert_eq!(client.call(&format!("SET {lost} x")), Reply::ok());
    give_up(&served, &[1], slot);
    for _ in 0..20 {
        let began = Instant::now();
        assert!(is_told(&client.call(&format!("GET {lost}"))));
        assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    }
    nodes_are_shown_without(&mut client, slot);
    take(&served, 1, slot);
    wait_until("the slot is served again", SOON, || {
        client.call(&format!("GET {lost}")) == Reply::bulk("x")
    });
}

/// SSUBSCRIBE for a slot without owner is an error. Existing subscriptions stay.
#[test]
fn channel_of_an_uncovered_slot_is_refused() {
    let served = start(&some_server_with_them());
    let name = key_in(|slot| served.cluster.share(1).contains(&slot), 0);
    let slot = hash_slot(name.as_bytes());
    let subscribed = |client: &mut RespClient| client.call(&format!("SSUBSCRIBE {name}"));
    let (mut member, mut late) = (served.client(), served.client());
    assert!(subscribed(&mut member).error().is_none());
    give_up(&served, &[1, 0, 2], slot);
    for _ in 0..3 {
        let began = Instant::now();
        let reply = subscribed(&mut late);
        assert!(is_told(&reply), "{reply:?}");
        assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    }
    assert!(is_told(&late.call(&format!("SPUBLISH {name} lost"))));
    take(&served, 2, slot);
    wait_until("the slot is served again", SOON, || {
        late.call(&format!("SPUBLISH {name} heard")) == Reply::Integer(1)
    });
    let heard = ["smessage", &name, "heard"].map(Reply::bulk);
    assert_eq!(member.reply(), Reply::Array(heard.to_vec()));
    assert!(subscribed(&mut late).error().is_none());
}

//! Nodes that name addresses of another network, and the addresses at which respool reaches them.

use crate::world::World;
use respool_engine::address_map::{AddressMap, MapEntry};
use respool_engine::{LinkId, SessionId};
use respool_protocol::slot::hash_slot;

/// Two nodes that call their host `inner`, the key of the first one, and a session.
fn mapped(entries: &[&str]) -> (World, [LinkId; 2], String, SessionId) {
    let mut settings = crate::world::cluster(2);
    settings.timeouts.request_ms = 2_000;
    let entries = entries.iter().map(|text| MapEntry::parse(text));
    let entries = entries.collect::<Result<_, _>>().expect("entries");
    settings.pools[0].address_map = AddressMap::new(entries).expect("a map");
    let mut world = World::new(settings);
    for link in world.all_shared.clone() {
        answer_topology(&mut world, link);
    }
    let [first, second] = world.all_shared[..] else {
        panic!("two nodes")
    };
    let key = world.key_at(0, "k");
    let session = world.accept();
    (world, [first, second], key, session)
}

/// Answers the questions to a node about the topology. Returns the other requests.
fn answer_topology(world: &mut World, link: LinkId) -> Vec<String> {
    let mut others = Vec::new();
    for args in world.asked(link) {
        match world.owners.said(&args) {
            Some(said) => {
                let said = said.replace("$6\r\nserver\r\n", "$5\r\ninner\r\n");
                world.says(link, said);
            }
            None => others.push(args.join(" ")),
        }
    }
    others
}

/// Nodes are known by their configured addresses, although they announce others. Redirects to the
/// announced addresses lead to the configured ones.
#[test]
fn nodes_and_redirects_are_found_where_the_map_says() {
    let (mut world, [first, second], key, session) = mapped(&["inner=server"]);
    let slot = hash_slot(key.as_bytes());
    let get = format!("GET {key}");
    for redirect in ["MOVED", "ASK"] {
        world.asks(session, &[&get]);
        let asked = answer_topology(&mut world, first);
        assert_eq!(asked, [get.as_str()]);
        world.says(first, format!("-{redirect} {slot} inner:2\r\n"));
        world.wait_ms(50);
        let asked = answer_topology(&mut world, second);
        assert!(asked.contains(&get), "{redirect}: {asked:?}");
        let asking = if redirect == "ASK" { "+OK\r\n" } else { "" };
        world.says(second, format!("{asking}$1\r\nv\r\n"));
        assert_eq!(world.got(session), "$1\r\nv\r\n", "{redirect}");
        assert!(world.connecting().is_empty());
        if redirect == "MOVED" {
            // The slot moves back.
            world.asks(session, &[&get]);
            answer_topology(&mut world, second);
            world.says(second, format!("-MOVED {slot} inner:1\r\n"));
            world.wait_ms(50);
            answer_topology(&mut world, first);
            world.says(first, "$1\r\nv\r\n");
            world.got(session);
        }
    }
}

/// The map makes no address known: a node has to name it in a topology answer first.
#[test]
fn mapped_address_that_no_node_has_named_is_not_connected() {
    let (mut world, [first, _], key, session) = mapped(&["inner=server", "late:9=server:3"]);
    let slot = hash_slot(key.as_bytes());
    let get = format!("GET {key}");
    world.asks(session, &[&get]);
    answer_topology(&mut world, first);
    world.says(first, format!("-ASK {slot} late:9\r\n"));
    world.wait_ms(50);
    assert!(world.connecting().is_empty());
    let asked = answer_topology(&mut world, first);
    // The request is sent again meanwhile.
    assert_eq!(asked, ["CLUSTER SHARDS", "CLUSTER NODES", get.as_str()]);
    let line = format!("{:040} late:9@19 master - 0 0 1 connected\n", 9);
    world.says(
        first,
        format!(
            "-ERR unknown subcommand\r\n${}\r\n{line}\r\n-ASK {slot} late:9\r\n",
            line.len()
        ),
    );
    for _ in 0..10 {
        if answer_topology(&mut world, first).contains(&get) {
            world.says(first, format!("-ASK {slot} late:9\r\n"));
        }
        world.wait_ms(50);
    }
    let [link] = world.connecting()[..] else {
        panic!("the node is known, and reached where the map says")
    };
    assert_eq!(world.server_of(link), 2);
}

//! Keyspace notifications of several servers in virtual time: the servers of a subscription, its
//! messages, and the requests that wait for it.

use crate::world::{World, request};
use respool_engine::limits::BRANCH_WAIT_MS;
use respool_engine::settings::{Address, LostSubscriptions, PoolKind};
use respool_engine::{LinkId, SessionId};

const PATTERN: &str = "__key*";
const SUBSCRIBE: &str = "*2\r\n$10\r\nPSUBSCRIBE\r\n$6\r\n__key*\r\n";
const CONFIRMED: &str = ">3\r\n$10\r\npsubscribe\r\n$6\r\n__key*\r\n:1\r\n";
const IN_RESP2: &str = "*3\r\n$10\r\npsubscribe\r\n$6\r\n__key*\r\n:1\r\n";

fn message(channel: &str, text: &str) -> String {
    let (len, text_len) = (channel.len(), text.len());
    format!(
        ">4\r\n$8\r\npmessage\r\n$6\r\n{PATTERN}\r\n${len}\r\n{channel}\r\n${text_len}\r\n{text}\r\n"
    )
}

/// A session that subscribes to the pattern, and the hub's links to the three servers in their
/// order. Nodes of a Cluster name the owners of slots.
fn subscriber(world: &mut World) -> (SessionId, Vec<LinkId>) {
    let session = world.accept();
    world.asks(session, &[&format!("PSUBSCRIBE {PATTERN}")]);
    answer_nodes(world);
    let mut hub = Vec::new();
    for _ in 0..3 {
        world.turn(|_| {});
        hub.extend(world.connecting());
        answer_nodes(world);
    }
    hub.sort_by_key(|link| world.server_of(*link));
    let servers: Vec<usize> = hub.iter().map(|link| world.server_of(*link)).collect();
    assert_eq!(servers, [0, 1, 2]);
    for link in &hub {
        assert_eq!(world.got(session), "", "a server has not confirmed");
        world.up(*link);
        world.turn(|_| {});
        assert_eq!(world.sent(*link), SUBSCRIBE);
        world.says(*link, CONFIRMED);
    }
    assert_eq!(world.got(session), IN_RESP2);
    (session, hub)
}

/// The nodes answer questions about the topology, and get no others.
fn answer_nodes(world: &mut World) {
    for _ in 0..3 {
        world.wait_ms(50);
        for link in world.all_shared.clone() {
            for args in world.asked(link) {
                if let Some(said) = world.owners.said(&args) {
                    world.says(link, said);
                }
            }
        }
    }
}

/// A session gets the notifications of all servers, and ordinary messages of the first alone.
#[test]
fn notifications_of_all_servers_reach_a_session() {
    for settings in [crate::world::sharded(3), crate::world::cluster(3)] {
        let mut world = World::new(settings);
        let (session, hub) = subscriber(&mut world);
        for (number, link) in hub.iter().enumerate() {
            let event = message(&format!("__keyspace@0__:{number}"), "set");
            let published = message("__keyboard", "all");
            world.says(*link, [&event[..], &published].concat());
            let expected = match number {
                0 => [event, published].concat(),
                _ => event,
            };
            assert_eq!(world.got(session), expected.replace('>', "*"));
        }
        world.asks(session, &["PUNSUBSCRIBE"]);
        let leaves = SUBSCRIBE.replace("$10\r\nPSUB", "$12\r\nPUNSUB");
        for link in &hub {
            world.turn(|_| {});
            assert_eq!(world.sent(*link), leaves);
        }
        let left = CONFIRMED
            .replace("$10\r\npsub", "$12\r\npunsub")
            .replace(":1", ":0");
        for link in hub.iter().rev() {
            assert_eq!(world.got(session), "");
            world.says(*link, &left);
        }
        assert_eq!(world.got(session), left.replace('>', "*"));
    }
}

/// An ordinary pattern or channel is subscribed to at the first server alone.
#[test]
fn ordinary_pattern_is_at_one_server() {
    let mut world = World::new(crate::world::sharded(3));
    let session = world.accept();
    world.asks(
        session,
        &["PSUBSCRIBE __keyboard* news.*", "SUBSCRIBE __keyspace"],
    );
    let link = world.connect();
    assert_eq!(world.server_of(link), 0);
    world.wait_ms(200);
    assert!(world.connecting().is_empty());
}

/// A server that two subpools have in common gets one subscription.
#[test]
fn server_of_two_parts_is_listened_to_once() {
    for has_own in [false, true] {
        let mut settings = crate::world::parted(1);
        let PoolKind::ByPrefix { subpools } = &mut settings.pools[0].kind else {
            panic!("a pool of subpools");
        };
        if let PoolKind::Single(server) = &mut subpools[1].kind
            && let Address::Tcp { port, .. } = &mut server.address
            && !has_own
        {
            *port = 1;
        }
        let mut world = World::new(settings);
        let session = world.accept();
        world.asks(session, &[&format!("PSUBSCRIBE {PATTERN}")]);
        assert_eq!(world.connecting().len(), 1 + usize::from(has_own));
    }
}

/// If the link to one owner is lost, the session may have missed notifications: it is closed.
#[test]
fn session_is_closed_with_the_link_of_one_owner() {
    let mut settings = crate::world::sharded(3);
    settings.lost_subscriptions = LostSubscriptions::Close;
    let mut world = World::new(settings);
    let (session, hub) = subscriber(&mut world);
    let other = world.accept();
    world.asks(other, &["SUBSCRIBE news"]);
    world.lose(hub[2]);
    assert_eq!(world.closed_sessions(), [session]);
}

/// If one server refuses the subscription, the session gets its error, and the subscriptions at the
/// others are removed.
#[test]
fn refusal_of_one_server_is_the_reply() {
    let mut world = World::new(crate::world::sharded(3));
    let session = world.accept();
    world.asks(session, &[&format!("PSUBSCRIBE {PATTERN}")]);
    let hub = world.connecting();
    for link in &hub {
        world.up(*link);
        world.turn(|_| {});
        world.sent(*link);
        let said = match world.server_of(*link) {
            1 => "-NOPERM no channel\r\n",
            _ => CONFIRMED,
        };
        world.says(*link, said);
    }
    assert_eq!(world.got(session), "-NOPERM no channel\r\n");
    world.turn(|_| {});
    for link in &hub {
        let is_refused = world.server_of(*link) == 1;
        assert_eq!(world.sent(*link).contains("PUNSUBSCRIBE"), !is_refused);
    }
    assert_eq!(world.engine.counters().subscriptions, 0);
}

/// Requests to a slot's new owner wait until its notifications are subscribed to, for a short time
/// at most.
#[test]
fn requests_wait_for_the_notifications_of_a_new_owner() {
    for confirms in [true, false] {
        let mut world = World::new(crate::world::cluster(3));
        let (session, _) = subscriber(&mut world);
        // A fourth node gets the slots of the second one.
        let mut links = Vec::new();
        while links.is_empty() {
            world.wait_ms(50);
            for link in world.all_shared.clone() {
                for args in world.asked(link) {
                    let said = world.owners.said(&args).unwrap_or_default();
                    world.says(link, said.replace("server\r\n:2\r\n", "server\r\n:4\r\n"));
                }
            }
            links.extend(world.connecting());
        }
        let [shared, hub] = links[..] else {
            panic!("a link for requests and one for notifications: {links:?}");
        };
        assert_eq!([world.server_of(shared), world.server_of(hub)], [3, 3]);
        let (asking, key) = (world.accept(), world.key_at(1, "moved"));
        let set = format!("SET {key} 1");
        world.asks(asking, &[&set]);
        world.up(shared);
        world.turn(|_| {});
        assert_eq!(world.sent(shared), "", "its notification would be lost");
        world.up(hub);
        world.turn(|_| {});
        assert_eq!(world.sent(hub), SUBSCRIBE);
        match confirms {
            true => world.says(hub, CONFIRMED),
            false => world.wait_ms(BRANCH_WAIT_MS as u32),
        }
        world.turn(|_| {});
        let sent = world.sent(shared);
        let expected = request(&set.split(' ').collect::<Vec<_>>());
        assert!(sent.as_bytes().starts_with(&expected), "{confirms}: {sent}");
        if confirms {
            let event = message(&format!("__keyspace@0__:{key}"), "set");
            world.says(hub, &event);
            assert_eq!(world.got(session), event.replace('>', "*"));
        }
    }
}

/// A notification that is larger than any output closes its subscribers, although its server knows
/// their pattern by another name. Sessions whose pattern does not match stay.
#[test]
fn too_large_notification_ends_its_subscribers() {
    let mut settings = crate::world::parted(1);
    settings.limits.session_output_hard_bytes = 64 << 10;
    let PoolKind::ByPrefix { subpools } = &mut settings.pools[0].kind else {
        panic!("a pool of subpools");
    };
    subpools[1].strip = true;
    let mut world = World::new(settings);
    let patterns = ["__keyspace@*__:k1?", "__keyspace@*__:k1other*"];
    let sessions = patterns.map(|pattern| {
        let session = world.accept();
        world.asks(session, &[&format!("PSUBSCRIBE {pattern}")]);
        session
    });
    let mut last = None;
    for link in world.connecting() {
        world.up(link);
        world.turn(|_| {});
        let asked = world.asked(link);
        let names: Vec<String> = asked
            .iter()
            .filter_map(|args| args.get(1).cloned())
            .collect();
        assert_eq!(names.len(), 2, "{asked:?}");
        for name in &names {
            let len = name.len();
            world.says(
                link,
                format!(">3\r\n$10\r\npsubscribe\r\n${len}\r\n{name}\r\n:1\r\n"),
            );
        }
        if world.server_of(link) == 1 {
            last = Some((link, names));
        }
    }
    let (link, names) = last.expect("the last server has a subscription");
    assert_ne!(names, patterns, "the server does not see the prefix");
    let payload = "x".repeat(200 << 10);
    for name in &names {
        let (len, payload_len) = (name.len(), payload.len());
        let push = format!(
            ">4\r\n$8\r\npmessage\r\n${len}\r\n{name}\r\n$16\r\n__keyspace@0__:a\r\n\
             ${payload_len}\r\n{payload}\r\n"
        );
        for fragment in push.as_bytes().chunks(16 << 10) {
            world.says(link, fragment);
        }
    }
    assert_eq!(world.closed_sessions(), sessions[..1]);
    assert!(world.closed_links().is_empty(), "the link is not to blame");
}

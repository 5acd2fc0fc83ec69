//! CLIENT TRACKING, mostly in a pool of several servers: the link of a read, and the time of an
//! invalidation.

use crate::world::{World, cluster, requests, settings, sharded};
use respool_engine::settings::Settings;
use respool_engine::{LinkId, SessionId};

const ALL: &str = ">2\r\n$10\r\ninvalidate\r\n_\r\n";

/// The invalidation of one key.
fn invalidation(key: &str) -> String {
    format!(
        ">2\r\n$10\r\ninvalidate\r\n*1\r\n${}\r\n{key}\r\n",
        key.len()
    )
}

fn bulk(value: &str) -> String {
    format!("${}\r\n{value}\r\n", value.len())
}

/// A world, a session in RESP3 that tracks with the options `words`, its link, and the link's
/// server.
fn tracking(settings: Settings, words: &str) -> (World, SessionId, LinkId, usize) {
    let mut world = World::new(settings);
    let session = resp3(&mut world);
    world.asks(session, &[words]);
    let own = world.connect();
    assert_eq!(world.sent(own).as_bytes(), requests(&[words]));
    world.says(own, "+OK\r\n");
    assert_eq!(world.got(session), "+OK\r\n");
    let server = world.server_of(own);
    (world, session, own, server)
}

fn resp3(world: &mut World) -> SessionId {
    let session = world.accept();
    world.asks(session, &["HELLO 3"]);
    for link in world.connecting() {
        world.up(link);
        world.all_shared.push(link);
    }
    assert!(world.got(session).starts_with('%'));
    for link in world.all_shared.clone() {
        world.sent(link);
    }
    session
}

/// The session reads its first key at the other server. Returns its link there, which is up then.
fn read_elsewhere(world: &mut World, session: SessionId, at: usize) -> (LinkId, String) {
    let key = world.key_at(at, "k");
    world.asks(session, &[&format!("GET {key}")]);
    let link = world.connect();
    assert_eq!(world.server_of(link), at);
    let tracked = requests(&["CLIENT TRACKING ON", &format!("GET {key}")]);
    assert_eq!(world.sent(link).as_bytes(), tracked);
    world.says(link, format!("+OK\r\n{}", bulk("v")));
    assert_eq!(world.got(session), bulk("v"));
    (link, key)
}

/// Answers all requests of respool's own on other links.
fn allow_all(world: &mut World, own: LinkId) {
    let mut links = world.all_shared.clone();
    for _ in 0..5 {
        for link in world.connecting() {
            world.up(link);
            links.push(link);
        }
        for link in links.iter().filter(|link| **link != own) {
            world.allows_transactions(*link);
        }
    }
}

/// A read and the CLIENT TRACKING before it are on one link, which no other session has.
#[test]
fn each_server_tracks_on_the_link_of_the_read() {
    let (mut world, session, own, server) = tracking(sharded(2), "CLIENT TRACKING ON");
    let key = world.key_at(server, "k");
    world.asks(session, &[&format!("GET {key}")]);
    assert_eq!(
        world.sent(own).as_bytes(),
        requests(&[&format!("GET {key}")])
    );
    world.says(own, [bulk("v"), invalidation(&key)].concat());
    assert_eq!(world.got(session), [bulk("v"), invalidation(&key)].concat());
    let (other, key) = read_elsewhere(&mut world, session, 1 - server);
    world.says(other, invalidation(&key));
    assert_eq!(world.got(session), invalidation(&key));
    for link in world.all_shared.clone() {
        assert_eq!(world.sent(link), "");
    }
}

/// An invalidation follows a reply that waits for its place. If the old value came last, the client
/// would keep it for ever.
#[test]
fn invalidation_follows_a_reply_that_came_before_its_turn() {
    let (mut world, session, own, server) = tracking(sharded(2), "CLIENT TRACKING ON");
    let (other, late) = read_elsewhere(&mut world, session, 1 - server);
    let first = world.key_at(server, "k");
    let pair = [format!("GET {first}"), format!("GET {late}")];
    world.asks(session, &[&pair[0], &pair[1]]);
    world.says(other, [bulk("old"), invalidation(&late)].concat());
    assert_eq!(world.got(session), "");
    world.says(own, bulk("v"));
    assert_eq!(
        world.got(session),
        [bulk("v"), bulk("old"), invalidation(&late)].concat()
    );
    world.asks(session, &[&format!("MGET {first} {late}")]);
    world.says(
        other,
        ["*1\r\n", &bulk("old"), &invalidation(&late)].concat(),
    );
    assert_eq!(world.got(session), "");
    world.says(own, ["*1\r\n", &bulk("v")].concat());
    let array = ["*2\r\n", &bulk("v"), &bulk("old")].concat();
    assert_eq!(world.got(session), [array, invalidation(&late)].concat());
    // An invalidation that concerns no waiting reply does not wait.
    world.asks(session, &[&pair[0]]);
    world.says(other, invalidation(&late));
    assert_eq!(world.got(session), invalidation(&late));
    assert_eq!(world.engine.counters().held_bytes, 0);
}

/// HELLO 2 is answered before the server reads it. RESP2 has no pushes.
#[test]
fn no_push_follows_the_answer_to_hello_2() {
    let (mut world, session, own, _) = tracking(settings(), "CLIENT TRACKING ON");
    world.asks(session, &["HELLO 2"]);
    let answered = world.got(session);
    world.says(own, invalidation("k"));
    world.says(own, crate::world::HELLO);
    let told = [answered, world.got(session)].concat();
    assert!(told.starts_with('*'), "{told:?}");
    assert!(!told.contains("invalidate"), "{told:?}");
}

/// A session that waits in a blocking command gets invalidations meanwhile.
#[test]
fn invalidation_does_not_wait_for_a_session_that_blocks() {
    let (mut world, session, own, server) = tracking(sharded(2), "CLIENT TRACKING ON");
    let (other, key) = read_elsewhere(&mut world, session, 1 - server);
    let list = world.key_at(server, "l");
    world.asks(session, &[&format!("BLPOP {list} 0")]);
    assert!(world.sent(own).contains("BLPOP"));
    world.says(other, invalidation(&key));
    assert_eq!(world.got(session), invalidation(&key));
    world.says(own, "*2\r\n$1\r\nl\r\n$1\r\nx\r\n");
    assert_eq!(world.got(session), "*2\r\n$1\r\nl\r\n$1\r\nx\r\n");
}

/// A session that loses a tracking link is closed: the server's record of its keys is lost, so the
/// client has to start again.
#[test]
fn session_that_loses_a_tracking_link_is_closed() {
    let (mut world, session, own, server) = tracking(sharded(2), "CLIENT TRACKING ON");
    let (other, _) = read_elsewhere(&mut world, session, 1 - server);
    world.lose(other);
    assert_eq!(world.closed_sessions(), [session]);
    assert_eq!(world.closed_links(), [own]);
    assert_eq!(world.engine.counters().held_bytes, 0);
}

/// A session stays open if a tracking link never came up: no key was read on that link.
#[test]
fn server_that_was_never_reached_closes_no_session() {
    let (mut world, session, own, server) = tracking(sharded(2), "CLIENT TRACKING ON");
    let key = world.key_at(1 - server, "k");
    world.asks(session, &[&format!("GET {key}")]);
    let [other] = world.connecting()[..] else {
        panic!("one link is to be connected");
    };
    world.lose(other);
    assert!(world.got(session).starts_with("-NOTSENT"));
    let key = world.key_at(server, "k");
    world.asks(session, &[&format!("GET {key}")]);
    world.says(own, bulk("v"));
    assert_eq!(world.got(session), bulk("v"));
}

/// A read that is held while its server is away is tracked when the server is back.
#[test]
fn read_that_is_held_in_an_outage_is_tracked() {
    let mut settings = sharded(2);
    settings.timeouts.outage_hold_ms = 2_000;
    let (mut world, session, _, at) = tracking(settings, "CLIENT TRACKING ON");
    let key = world.key_at(1 - at, "k");
    world.asks(session, &[&format!("GET {key}")]);
    let [link] = world.connecting()[..] else {
        panic!("one link is to be connected");
    };
    world.lose(link);
    assert_eq!(world.got(session), "");
    world.wait_ms(200);
    let link = world.connect();
    let tracked = requests(&["CLIENT TRACKING ON", &format!("GET {key}")]);
    assert_eq!(world.sent(link).as_bytes(), tracked);
}

/// Libraries take an error as final, and connect again after a close.
#[test]
fn session_that_cannot_begin_to_track_is_closed() {
    let mut world = World::new(sharded(2));
    let session = resp3(&mut world);
    world.asks(session, &["CLIENT TRACKING ON"]);
    let [own] = world.connecting()[..] else {
        panic!("one link is to be connected");
    };
    world.lose(own);
    assert_eq!(world.got(session), "");
    assert_eq!(world.closed_sessions(), [session]);
}

/// With BCAST a session gets the invalidations of all servers.
#[test]
fn broadcast_session_gets_invalidations_of_all_servers() {
    let mut world = World::new(sharded(3));
    let session = resp3(&mut world);
    let words = "CLIENT TRACKING ON BCAST PREFIX k";
    world.asks(session, &[words]);
    let links = world.connecting();
    assert_eq!(links.len(), 3);
    for link in &links {
        world.up(*link);
        assert_eq!(world.sent(*link).as_bytes(), requests(&[words]));
    }
    for link in &links {
        assert_eq!(world.got(session), "");
        world.says(*link, "+OK\r\n");
    }
    assert_eq!(world.got(session), "+OK\r\n");
    for link in &links {
        world.says(*link, invalidation("k"));
        assert_eq!(world.got(session), invalidation("k"));
    }
}

/// If one server refuses CLIENT TRACKING, the session does not track at the others, either.
#[test]
fn session_refused_by_one_server_does_not_track() {
    let mut world = World::new(sharded(2));
    let session = resp3(&mut world);
    world.asks(session, &["CLIENT TRACKING ON BCAST"]);
    let links = world.connecting();
    for link in &links {
        world.up(*link);
        world.sent(*link);
    }
    world.says(links[0], "+OK\r\n");
    world.says(links[1], "-NOPERM no\r\n");
    let told = world.got(session);
    assert!(
        told.starts_with("-NOPERM ") || told.contains(" no\r\n"),
        "{told}"
    );
    assert_eq!(world.closed_links().len(), 2);
    assert!(world.closed_sessions().is_empty());
    let key = world.key_at(0, "k");
    world.asks(session, &[&format!("GET {key}")]);
    for link in world.connecting() {
        world.up(link);
    }
    assert!(world.closed_sessions().is_empty());
}

/// A later server may deny the user CLIENT TRACKING.
#[test]
fn server_that_refuses_to_track_later_ends_the_session() {
    let (mut world, session, _, server) = tracking(sharded(2), "CLIENT TRACKING ON");
    let key = world.key_at(1 - server, "k");
    world.asks(session, &[&format!("GET {key}")]);
    let other = world.connect();
    world.says(other, "-NOPERM no\r\n");
    assert_eq!(world.closed_sessions(), [session]);
}

/// CLIENT CACHING goes in front of the next request to the same server, and counts for that request
/// alone.
#[test]
fn client_caching_stands_in_front_of_the_next_read() {
    let (mut world, session, own, server) = tracking(sharded(2), "CLIENT TRACKING ON OPTIN");
    let (key, else_where) = (world.key_at(server, "k"), world.key_at(1 - server, "k"));
    let get = |key: &str| format!("GET {key}");
    let yes = "CLIENT CACHING YES";
    world.asks(session, &[yes, &get(&key), &get(&key)]);
    assert_eq!(
        world.sent(own).as_bytes(),
        requests(&[yes, &get(&key), &get(&key)])
    );
    world.says(own, ["+OK\r\n", &bulk("v").repeat(2)].concat());
    assert_eq!(
        world.got(session),
        ["+OK\r\n", &bulk("v").repeat(2)].concat()
    );
    world.asks(session, &[yes, &get(&else_where)]);
    let other = world.connect();
    let asked = requests(&["CLIENT TRACKING ON OPTIN", yes, &get(&else_where)]);
    assert_eq!(world.sent(other).as_bytes(), asked);
    world.says(other, ["+OK\r\n+OK\r\n", &bulk("v")].concat());
    assert_eq!(world.got(session), ["+OK\r\n", &bulk("v")].concat());
    let mget = format!("MGET {key} {else_where}");
    world.asks(session, &[yes, &mget]);
    for link in [own, other] {
        assert!(world.sent(link).as_bytes().starts_with(&requests(&[yes])));
        world.says(link, ["+OK\r\n*1\r\n", &bulk("v")].concat());
    }
    assert!(world.got(session).starts_with("+OK\r\n*2\r\n"));
    world.asks(session, &["CLIENT CACHING NO"]);
    assert!(world.got(session).contains("OPTOUT mode"));
}

/// CLIENT CACHING before MULTI counts for the transaction.
#[test]
fn client_caching_stands_in_front_of_a_transaction() {
    let (mut world, session, own, server) = tracking(sharded(2), "CLIENT TRACKING ON OPTIN");
    let get = format!("GET {}", world.key_at(server, "k"));
    let yes = "CLIENT CACHING YES";
    world.asks(session, &[yes, "MULTI", &get, "EXEC"]);
    allow_all(&mut world, own);
    assert_eq!(
        world.sent(own).as_bytes(),
        requests(&[yes, "MULTI", &get, "EXEC"])
    );
}

/// A session that has switched tracking off uses the shared link again.
#[test]
fn session_after_tracking_uses_the_shared_link() {
    let (mut world, session, own, server) = tracking(sharded(2), "CLIENT TRACKING ON");
    let (other, _) = read_elsewhere(&mut world, session, 1 - server);
    world.asks(session, &["CLIENT TRACKING OFF"]);
    assert_eq!(world.got(session), "+OK\r\n");
    let mut closed = world.closed_links();
    closed.sort_by_key(|link| link.index());
    assert_eq!(closed, [own, other]);
    let key = world.key_at(server, "k");
    world.asks(session, &[&format!("GET {key}")]);
    world
        .connecting()
        .into_iter()
        .for_each(|link| world.up(link));
    assert_eq!(world.engine.counters().dedicated_links_given, 2);
}

/// REDIRECT is refused in a pool of several servers.
#[test]
fn tracking_redirect_is_refused_at_several_servers() {
    let mut world = World::new(sharded(2));
    let session = resp3(&mut world);
    world.asks(session, &["CLIENT TRACKING ON REDIRECT 1"]);
    assert!(
        world
            .got(session)
            .starts_with("-ERR respool: CLIENT TRACKING with REDIRECT")
    );
}

/// At the bound the session gets an error, and keeps its links.
#[test]
fn session_that_needs_a_link_too_many_waits_to_its_deadline() {
    let mut settings = sharded(2);
    settings.limits.pinned_links_max = 1;
    settings.timeouts.request_ms = 200;
    let (mut world, session, own, server) = tracking(settings, "CLIENT TRACKING ON");
    let (key, elsewhere) = (world.key_at(server, "k"), world.key_at(1 - server, "k"));
    world.asks(session, &[&format!("GET {elsewhere}")]);
    world.wait_ms(400);
    assert!(world.got(session).contains("pinned-links-max"));
    world.asks(session, &[&format!("GET {key}")]);
    world.says(own, bulk("v"));
    assert_eq!(world.got(session), bulk("v"));
}

/// A session that selects another database gets other links. The tracked keys of the old database
/// are lost with its links.
#[test]
fn session_in_another_database_has_other_links() {
    let (mut world, session, own, server) = tracking(sharded(2), "CLIENT TRACKING ON");
    world.asks(session, &["SELECT 3"]);
    allow_all(&mut world, own);
    assert_eq!(world.got(session), "+OK\r\n");
    let get = format!("GET {}", world.key_at(server, "k"));
    world.asks(session, &[&get]);
    assert_eq!(world.closed_links(), [own]);
    assert_eq!(world.got(session), ALL);
    let own = world.connect();
    assert_eq!(
        world.sent(own).as_bytes(),
        requests(&["CLIENT TRACKING ON", &get])
    );
}

/// respool checks a quiet tracking link, and closes the session if the server is silent. A server
/// that is cut off would leave stale values in the client's cache.
#[test]
fn quiet_link_is_asked_and_a_silent_server_ends_the_session() {
    let mut settings = sharded(2);
    settings.timeouts.link_stall_ms = 1_000;
    let (mut world, session, own, _) = tracking(settings, "CLIENT TRACKING ON");
    world.wait_ms(600);
    assert_eq!(world.sent(own).as_bytes(), requests(&["PING"]));
    world.says(own, "+PONG\r\n");
    assert_eq!(world.got(session), "");
    world.wait_ms(2_500);
    assert_eq!(world.closed_sessions(), [session]);
}

/// A large request of a session that tracks passes through its link. The link is not asked while
/// the client pauses: the question would become a part of the value.
#[test]
fn large_request_on_a_tracking_link_is_not_mixed_with_a_ping() {
    let mut settings = sharded(2);
    settings.limits.request_held_bytes_max = 64;
    let (mut world, session, own, server) = tracking(settings, "CLIENT TRACKING ON");
    let key = world.key_at(server, "k");
    let head = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n$1000\r\n", key.len());
    let (first, rest) = ("a".repeat(500), "b".repeat(500));
    world.sends(session, format!("{head}{first}").as_bytes());
    assert_eq!(world.sent(own), format!("{head}{first}"));
    world.wait_ms(3_000);
    assert_eq!(world.sent(own), "");
    world.sends(session, format!("{rest}\r\n").as_bytes());
    assert_eq!(world.sent(own), format!("{rest}\r\n"));
    world.says(own, "+OK\r\n");
    assert_eq!(world.got(session), "+OK\r\n");
}

/// When a slot moves, the client gets an invalidation of all keys: the former owner sends none for
/// the keys of the slot.
#[test]
fn session_forgets_all_keys_when_a_slot_moves() {
    let mut world = World::new(cluster(2));
    world.know_owners();
    let session = resp3(&mut world);
    world.asks(session, &["CLIENT TRACKING ON"]);
    let own = world.connect();
    world.says(own, "+OK\r\n");
    world.got(session);
    world.sent(own);
    let server = world.server_of(own);
    let key = world.key_at(server, "k");
    world.asks(session, &[&format!("GET {key}"), &format!("GET {key}")]);
    let slot = respool_protocol::slot::hash_slot(key.as_bytes());
    let port = 2 - server;
    world.says(
        own,
        [
            &bulk("old"),
            &format!("-MOVED {slot} server:{port}\r\n")[..],
        ]
        .concat(),
    );
    assert_eq!(world.got(session), bulk("old"));
    let other = world.connect();
    assert_eq!(
        world.sent(other).as_bytes(),
        requests(&["CLIENT TRACKING ON", &format!("GET {key}")])
    );
    world.wait_ms(100);
    assert_eq!(world.got(session), ALL, "at once");
    world.says(other, ["+OK\r\n", &bulk("new")].concat());
    assert_eq!(
        world.got(session),
        [&bulk("new"), ALL].concat(),
        "once more after the reply in flight"
    );
    world.wait_ms(100);
    assert_eq!(world.got(session), "");
}

/// A redirect before the first topology answer does not mean a moved slot.
#[test]
fn tracking_begins_once_the_nodes_of_a_cluster_are_known() {
    let mut world = World::new(cluster(2));
    let session = resp3(&mut world);
    let key = world.key_at(1, "k");
    world.asks(session, &["CLIENT TRACKING ON", &format!("GET {key}")]);
    assert_eq!(world.connecting(), [], "the owner of the key is not known");
    assert_eq!(world.got(session), "");
    world.know_owners();
    let own = world.connect();
    world.says(own, "+OK\r\n");
    assert_eq!(world.got(session), "+OK\r\n");
    let other = world.connect();
    assert_eq!(world.server_of(other), 1);
    world.says(other, format!("+OK\r\n{}", bulk("v")));
    world.wait_ms(100);
    assert_eq!(world.got(session), bulk("v"), "no key is invalidated");
}

/// A reply of respool's own follows earlier invalidations: a library takes it as a sign that all of
/// them have come.
#[test]
fn local_reply_follows_earlier_invalidations() {
    for settings in [settings(), sharded(2)] {
        let (mut world, session, own, _) = tracking(settings, "CLIENT TRACKING ON");
        world.asks(session, &["CLIENT ID"]);
        allow_all(&mut world, own);
        assert_eq!(world.got(session), "");
        assert_eq!(world.sent(own).as_bytes(), requests(&["PING"]));
        world.says(own, [&invalidation("k"), "+PONG\r\n"].concat());
        assert_eq!(world.got(session), [&invalidation("k"), ":1\r\n"].concat());
    }
}

/// NO-TOUCH is on at each server, and ends with OFF.
#[test]
fn no_touch_holds_at_each_server_of_a_session() {
    let mut world = World::new(sharded(2));
    let session = resp3(&mut world);
    world.asks(session, &["CLIENT NO-TOUCH ON"]);
    know_commands(&mut world);
    let own = world.connect();
    let server = world.server_of(own);
    assert_eq!(
        world.sent(own).as_bytes(),
        requests(&["CLIENT NO-TOUCH ON"])
    );
    world.says(own, "+OK\r\n");
    assert_eq!(world.got(session), "+OK\r\n");
    let key = world.key_at(server, "k");
    world.asks(session, &[&format!("GET {key}")]);
    assert_eq!(
        world.sent(own).as_bytes(),
        requests(&[&format!("GET {key}")])
    );
    world.says(own, bulk("v"));
    assert_eq!(world.got(session), bulk("v"));
    let other = read_untouched(&mut world, session, 1 - server);
    world.asks(session, &["CLIENT NO-TOUCH OFF"]);
    world.allows_transactions(own);
    world.allows_transactions(other);
    know_commands(&mut world);
    assert_eq!(world.got(session), "+OK\r\n");
    let mut closed = world.closed_links();
    closed.sort_by_key(|link| link.index());
    assert_eq!(closed, [own, other]);
}

/// The servers give no lists of commands.
fn know_commands(world: &mut World) {
    for link in world.all_shared.clone() {
        world.allows_transactions(link);
    }
}

/// The session reads at a server where NO-TOUCH alone is on.
fn read_untouched(world: &mut World, session: SessionId, at: usize) -> LinkId {
    let get = format!("GET {}", world.key_at(at, "k"));
    world.asks(session, &[&get]);
    let link = world.connect();
    assert_eq!(
        world.sent(link).as_bytes(),
        requests(&["CLIENT NO-TOUCH ON", &get])
    );
    world.says(link, format!("+OK\r\n{}", bulk("v")));
    assert_eq!(world.got(session), bulk("v"));
    link
}

/// The session keeps its links while one of the two options is on.
#[test]
fn no_touch_and_tracking_end_apart() {
    let (mut world, session, own, server) = tracking(sharded(2), "CLIENT TRACKING ON");
    world.asks(session, &["CLIENT NO-TOUCH ON"]);
    know_commands(&mut world);
    assert_eq!(
        world.sent(own).as_bytes(),
        requests(&["CLIENT NO-TOUCH ON"])
    );
    world.says(own, "+OK\r\n");
    assert_eq!(world.got(session), "+OK\r\n");
    world.asks(session, &["CLIENT TRACKING OFF"]);
    assert_eq!(world.got(session), "+OK\r\n");
    assert_eq!(
        world.sent(own).as_bytes(),
        requests(&["CLIENT TRACKING OFF"])
    );
    world.says(own, "+OK\r\n");
    assert!(world.closed_links().is_empty());
    read_untouched(&mut world, session, 1 - server);
    world.lose(own);
    assert_eq!(world.closed_sessions(), [session]);
    assert!(!world.got(session).contains("invalidate"));
}

/// Redis before 7.2 does not know the command.
#[test]
fn no_touch_that_a_server_refuses_leaves_nothing() {
    let mut world = World::new(sharded(2));
    let session = resp3(&mut world);
    world.asks(session, &["CLIENT NO-TOUCH ON"]);
    know_commands(&mut world);
    let own = world.connect();
    world.says(own, "-ERR unknown subcommand\r\n");
    assert_eq!(world.got(session), "-ERR unknown subcommand\r\n");
    assert_eq!(world.closed_links(), [own]);
    world.asks(session, &["CLIENT NO-TOUCH OFF"]);
    assert!(world.connecting().is_empty(), "a shared link carries it");
    assert!(world.closed_sessions().is_empty());
}

/// The session keeps its links, since the server does not know OFF either.
#[test]
fn no_touch_that_a_server_refuses_leaves_a_session_that_tracks() {
    let (mut world, session, own, server) = tracking(sharded(2), "CLIENT TRACKING ON");
    world.asks(session, &["CLIENT NO-TOUCH ON"]);
    know_commands(&mut world);
    let unknown = "-ERR unknown subcommand\r\n";
    for word in ["ON", "OFF"] {
        let asked = requests(&[&format!("CLIENT NO-TOUCH {word}")]);
        assert_eq!(world.sent(own).as_bytes(), asked);
        world.says(own, unknown);
    }
    assert_eq!(world.got(session), unknown);
    assert!(world.closed_sessions().is_empty());
    let get = format!("GET {}", world.key_at(server, "k"));
    world.asks(session, &[&get]);
    assert_eq!(world.sent(own).as_bytes(), requests(&[&get]));
}

/// CLIENT NO-TOUCH in a transaction is refused in a pool of several servers.
#[test]
fn no_touch_in_a_transaction_of_several_is_refused() {
    let mut world = World::new(sharded(2));
    let session = resp3(&mut world);
    world.asks(session, &["MULTI", "CLIENT NO-TOUCH ON"]);
    know_commands(&mut world);
    let told = world.got(session);
    assert!(
        told.contains("'client no-touch'") && told.contains("MULTI"),
        "{told}"
    );
}

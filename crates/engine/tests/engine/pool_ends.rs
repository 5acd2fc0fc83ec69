//! A reload that adds pools, ends them, or gives them other servers.

use std::sync::Arc;

use respool_engine::settings::{
    Address, LostSubscriptions, PoolKind, PoolSettings, ServerSettings, Settings,
};
use respool_engine::{
    Action, AdminQuery, LatencyReport, LinkId, NewSettings, PoolPlaces, SessionId, Time, WorkerId,
    WorkerQuery,
};
use respool_protocol::commands;

use crate::world::{
    Owners, World, cluster, parted, peer, request, requests, settings, sharded, without_lanes,
    worker,
};

/// How long sessions with state at the old server go on, milliseconds.
const DRAIN_MS: u32 = 5_000;
/// How long requests wait for a server that is away, milliseconds.
const HOLD_MS: u32 = 2_000;

fn server(port: u16) -> ServerSettings {
    let host = "server".to_owned();
    ServerSettings::at(Address::Tcp { host, port })
}

fn pool(name: &str, port: u16) -> PoolSettings {
    PoolSettings {
        name: name.to_owned(),
        kind: PoolKind::Single(server(port)),
        ..settings().pools[0].clone()
    }
}

/// An engine that takes one configuration after another.
struct Reloaded {
    world: World,
    settings: Settings,
    places: PoolPlaces,
    drain_ms: u32,
}

impl Reloaded {
    fn new(settings: Settings) -> Reloaded {
        Reloaded::new_among(worker(0, 1), settings)
    }

    fn new_among(worker: WorkerId, mut settings: Settings) -> Reloaded {
        settings.timeouts.outage_hold_ms = HOLD_MS;
        Reloaded {
            places: PoolPlaces::new(&settings.pools),
            world: World::new_among(worker, settings.clone()),
            settings,
            drain_ms: DRAIN_MS,
        }
    }

    /// A reload gives the engine these pools.
    fn takes(&mut self, pools: Vec<PoolSettings>) {
        self.takes_at(self.world.now, pools);
    }

    /// A reload that was made at this time gives the engine these pools.
    fn takes_at(&mut self, at: Time, pools: Vec<PoolSettings>) {
        self.places = self.places.renew(&pools).expect("there is room");
        self.settings.pools = self.places.pools().to_vec();
        let new = NewSettings {
            settings: Arc::new(self.settings.clone()),
            at,
            ports: Default::default(),
            drain_ms: self.drain_ms,
        };
        self.world.turn(|engine| engine.handle_settings(new));
    }

    /// A client connects to this pool of the configuration.
    fn accepts(&mut self, pool: usize) -> SessionId {
        let place = self.places.of_config()[pool];
        self.world.engine.handle_accept(peer(1), place.into())
    }
}

/// The link to the new server, which is to be connected beside others.
fn new_link(world: &mut World) -> LinkId {
    let links = world.connecting();
    let new = links.into_iter().find(|link| world.server_of(*link) == 1);
    new.expect("the new server is connected")
}

/// A drain timeout of zero, for a quick stop, cuts no request off at a reload.
#[test]
fn request_in_flight_is_answered_without_a_drain_timeout() {
    let mut reloaded = Reloaded::new(settings());
    reloaded.drain_ms = 0;
    let session = reloaded.accepts(0);
    let old = reloaded.world.shared;
    reloaded.world.asks(session, &["SET k 1"]);
    reloaded.takes(vec![pool("default", 2)]);
    let world = &mut reloaded.world;
    let new = world.connect();
    world.wait_ms(300);
    assert!(world.sent(old).contains("SET"));
    world.says(old, "+OK\r\n");
    assert_eq!(world.got(session), "+OK\r\n");
    world.asks(session, &["GET k"]);
    assert!(world.sent(new).contains("GET"));
}

/// A new pool connects at once and serves clients. The pools that stay keep their links.
#[test]
fn added_pool_serves() {
    let mut reloaded = Reloaded::new(settings());
    let old = reloaded.accepts(0);
    let [first, second] = [pool("default", 1), pool("new", 2)];
    reloaded.takes(vec![first, second]);
    let link = reloaded.world.connect();
    let new = reloaded.accepts(1);
    let world = &mut reloaded.world;
    for (session, link) in [(old, world.shared), (new, link)] {
        world.asks(session, &["GET k"]);
        assert!(!world.sent(link).is_empty());
        world.says(link, "$1\r\nv\r\n");
        assert_eq!(world.got(session), "$1\r\nv\r\n");
    }
    assert_eq!(world.closed_links(), []);
}

/// A session moves when its requests are answered: the new server gets no request before that. The
/// session keeps its database. Then the links of the old server close.
#[test]
fn session_moves_behind_its_replies() {
    let mut reloaded = Reloaded::new(settings());
    let (busy, idle) = (reloaded.accepts(0), reloaded.accepts(0));
    let world = &mut reloaded.world;
    world.may_ask(busy, &["SELECT none"]);
    world.asks(busy, &["SELECT 3"]);
    let old = world.connect();
    assert_eq!(world.got(busy), "+OK\r\n");
    world.asks(busy, &["SET k 1"]);
    assert!(world.sent(old).contains("SET"));
    reloaded.takes(vec![pool("default", 2)]);
    let world = &mut reloaded.world;
    let new = world.connect();
    world.wait_ms(50);
    world.asks(busy, &["SET k 2"]);
    world.wait_ms(100);
    assert_eq!(world.sent(old), "");
    assert_eq!(world.sent(new), "");
    world.asks(idle, &["GET k"]);
    assert!(world.sent(new).contains("GET"), "an idle session has moved");
    world.says(new, "$-1\r\n");
    assert_eq!(world.got(idle), "$-1\r\n");
    world.says(old, "+OK\r\n");
    assert_eq!(world.got(busy), "+OK\r\n");
    let in_database = world.connect();
    assert!(world.sent(in_database).contains("SET"));
    world.says(in_database, "+OK\r\n");
    assert_eq!(world.got(busy), "+OK\r\n");
    world.wait_ms(100);
    let mut closed = world.closed_links();
    closed.sort_unstable_by_key(|link| format!("{link:?}"));
    let mut links = vec![world.shared, old];
    links.sort_unstable_by_key(|link| format!("{link:?}"));
    assert_eq!(closed, links);
    assert_eq!(world.closed_sessions(), []);
    let is_forgotten = |action: &Action| matches!(action, Action::ForgetPool(0));
    let last = world.actions.iter().position(is_forgotten);
    assert_eq!(
        last,
        Some(world.actions.len() - 1),
        "the driver forgets the pool behind its last link"
    );
}

/// The old server serves until the new one answers, or until requests would not wait any longer.
#[test]
fn old_server_serves_until_the_new_one_answers() {
    for answers in [true, false] {
        let mut reloaded = Reloaded::new(settings());
        let session = reloaded.accepts(0);
        reloaded.takes(vec![pool("default", 2)]);
        let world = &mut reloaded.world;
        let [new] = world.connecting()[..] else {
            panic!("one link is to be connected");
        };
        world.wait_ms(HOLD_MS / 2);
        world.asks(session, &["GET k"]);
        assert!(world.sent(world.shared).contains("GET"));
        world.says(world.shared, "$1\r\nv\r\n");
        assert_eq!(world.got(session), "$1\r\nv\r\n");
        match answers {
            true => world.up(new),
            false => world.wait_ms(HOLD_MS / 2),
        }
        world.wait_ms(100);
        world.asks(session, &["GET k"]);
        assert_eq!(world.sent(world.shared), "");
        assert_eq!(world.sent(new).contains("GET"), answers);
    }
}

/// A transaction ends where it began. Its session moves behind EXEC.
#[test]
fn transaction_ends_at_the_old_server() {
    let mut reloaded = Reloaded::new(settings());
    let session = reloaded.accepts(0);
    let world = &mut reloaded.world;
    world.opens_transactions(session);
    world.sent(world.shared);
    world.asks(session, &["MULTI", "SET k v"]);
    assert_eq!(world.got(session), "+OK\r\n+QUEUED\r\n");
    reloaded.takes(vec![pool("default", 2)]);
    let world = &mut reloaded.world;
    let new = world.connect();
    world.wait_ms(200);
    world.asks(session, &["EXEC"]);
    let old = world.shared;
    assert!(world.sent(old).contains("EXEC"));
    world.says(old, "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    assert_eq!(world.got(session), "*1\r\n+OK\r\n");
    world.wait_ms(100);
    world.asks(session, &["GET k"]);
    assert!(world.sent(new).contains("GET"));
}

/// A session that ends a state at the old server moves behind it at once, also if it has sent its
/// next request already. So a session that goes from one transaction to the next moves, too.
#[test]
fn session_moves_as_soon_as_it_ends_its_state() {
    let large = format!("SET k {}", "x".repeat(300_000));
    // The requests before and after the reload, the replies of the old server, and the outcome.
    let cases = [
        ("MULTI", "EXEC", "+OK\r\n*0\r\n", "*0\r\n"),
        ("MULTI", "DISCARD", "", "+OK\r\n"),
        ("WATCH k", "UNWATCH", "+OK\r\n", "+OK\r\n"),
        ("PING", &large, "+OK\r\n", "+OK\r\n"),
    ];
    for (begins, ends, said, outcome) in cases {
        let mut reloaded = Reloaded::new(settings());
        let session = reloaded.accepts(0);
        let world = &mut reloaded.world;
        world.opens_transactions(session);
        world.asks(session, &[begins]);
        let own = world.connecting();
        let link = own.first().copied().unwrap_or(world.shared);
        own.into_iter().for_each(|link| world.up(link));
        if begins != "MULTI" {
            world.says(link, "+OK\r\n");
        }
        world.sent(world.shared);
        world.got(session);
        reloaded.takes(vec![pool("default", 2)]);
        let world = &mut reloaded.world;
        let new = world.connect();
        world.wait_ms(100);
        let large_begins = requests(&[&large]).len() / 2;
        match ends == large {
            true => {
                world.sends(session, &requests(&[&large])[..large_begins]);
                let streams = world.connect();
                world.wait_ms(100);
                let rest = &requests(&[&large])[large_begins..];
                world.sends(session, &[rest, &requests(&["GET k"])].concat());
                world.says(streams, said);
            }
            false => {
                world.asks(session, &[ends, "GET k"]);
                world.says(link, said);
            }
        }
        assert_eq!(world.got(session), outcome, "{begins}");
        let sent = world.sent(world.shared);
        assert!(!sent.contains("GET"), "{begins}: {sent}");
        assert!(world.sent(new).contains("GET"), "{begins}");
        world.says(new, "$-1\r\n");
        assert_eq!(world.got(session), "$-1\r\n", "{begins}");
    }
}

/// A session that ends a transaction without an EXEC at the server moves behind that at once.
#[test]
fn session_moves_behind_a_transaction_that_is_not_sent() {
    let cases = [
        ("SET k v", "DISCARD", "+OK\r\n"),
        ("SET k v", "RESET", "+RESET\r\n"),
        ("APPEND k v", "EXEC", "-EXECABORT"),
        ("SET k v", "EXEC x", "-EXECABORT"),
    ];
    for (queued, ends, outcome) in cases {
        let mut refusing = settings();
        refusing.refused.extend(commands::lookup(b"append"));
        let mut reloaded = Reloaded::new(refusing);
        let session = reloaded.accepts(0);
        let world = &mut reloaded.world;
        world.opens_transactions(session);
        world.asks(session, &["MULTI", queued]);
        world.got(session);
        reloaded.takes(vec![pool("default", 2)]);
        let world = &mut reloaded.world;
        let new = world.connect();
        world.wait_ms(100);
        world.sent(world.shared);
        world.asks(session, &[ends, "GET k"]);
        let got = world.got(session);
        assert!(got.starts_with(outcome), "{ends}: {got}");
        assert_eq!(world.sent(world.shared), "", "{ends}");
        assert!(world.sent(new).contains("GET"), "{ends}");
    }
}

/// A session moves at once behind the rest of a large request that was refused.
#[test]
fn session_moves_behind_a_refused_large_request() {
    let mut refusing = settings();
    refusing.refused.extend(commands::lookup(b"append"));
    let mut reloaded = Reloaded::new(refusing);
    let session = reloaded.accepts(0);
    let large = requests(&[&format!("APPEND k {}", "x".repeat(300_000))]);
    let (begins, ends) = large.split_at(large.len() / 2);
    let world = &mut reloaded.world;
    world.sends(session, begins);
    assert!(world.got(session).contains("refuse-commands"));
    reloaded.takes(vec![pool("default", 2)]);
    let world = &mut reloaded.world;
    let new = world.connect();
    world.wait_ms(100);
    world.sends(session, &[ends, &requests(&["GET k"])].concat());
    assert_eq!(world.sent(world.shared), "");
    assert!(world.sent(new).contains("GET"));
}

/// A session moves at once behind a reply that respool puts together: the result of an EXEC with a
/// request that respool answers.
#[test]
fn session_moves_behind_a_composite_reply() {
    let mut reloaded = Reloaded::new(settings());
    let session = reloaded.accepts(0);
    let world = &mut reloaded.world;
    world.opens_transactions(session);
    world.may_ask(session, &["CLIENT LIST x"]);
    world.asks(session, &["MULTI", "SET k v", "CLIENT LIST"]);
    assert!(world.got(session).ends_with("+QUEUED\r\n+QUEUED\r\n"));
    reloaded.takes(vec![pool("default", 2)]);
    let world = &mut reloaded.world;
    let new = world.connect();
    world.wait_ms(100);
    let old = world.shared;
    world.sent(old);
    world.asks(session, &["EXEC", "GET k"]);
    assert!(world.sent(old).contains("EXEC"));
    world.says(old, "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    let got = world.got(session);
    assert!(got.starts_with("*2\r\n+OK\r\n$"), "{got}");
    world.turn(|_| {});
    assert_eq!(world.sent(old), "");
    assert!(world.sent(new).contains("GET"));
}

/// A session that does not end its transaction in time is closed, with the reason.
#[test]
fn session_with_an_open_transaction_closes_at_the_bound() {
    let mut reloaded = Reloaded::new(settings());
    let session = reloaded.accepts(0);
    reloaded.world.opens_transactions(session);
    reloaded.world.asks(session, &["MULTI"]);
    reloaded.takes(vec![pool("default", 2)]);
    let world = &mut reloaded.world;
    world.connect();
    world.wait_ms(DRAIN_MS - 200);
    assert_eq!(world.closed_sessions(), []);
    world.wait_ms(400);
    assert_eq!(world.closed_sessions(), [session]);
    let events = format!("{:?}", world.events);
    assert!(events.contains("drain-timeout-ms"), "{events}");
}

/// The line of a hub that is to be connected: the server accepts its handshake. Returns the
/// requests on it.
fn line_up(world: &mut World, server: usize) -> (LinkId, String) {
    let links = world.connecting();
    let mut lines = links.into_iter().rev();
    let line = lines.find(|link| world.server_of(*link) == server);
    let line = line.expect("the hub connects to the server");
    world.turn(|engine| engine.handle_link_up(line));
    world.sent(line);
    world.says(line, crate::world::HELLO);
    (line, world.sent(line))
}

/// The confirmation of a subscription, as a push.
fn confirmed(verb: &str, channel: &str) -> String {
    format!(
        ">3\r\n${}\r\n{verb}\r\n${}\r\n{channel}\r\n:1\r\n",
        verb.len(),
        channel.len()
    )
}

/// A message on a channel, as a push. A client in RESP2 gets it with `*` in front.
fn message(kind: &str, channel: &str) -> String {
    format!(
        ">3\r\n${}\r\n{kind}\r\n${}\r\n{channel}\r\n$2\r\nhi\r\n",
        kind.len(),
        channel.len()
    )
}

/// A subscriber is closed: it would miss the messages at the new server.
#[test]
fn subscriber_of_the_old_server_is_closed() {
    let mut settings = settings();
    settings.lost_subscriptions = LostSubscriptions::Close;
    let mut reloaded = Reloaded::new(settings);
    let session = reloaded.accepts(0);
    let world = &mut reloaded.world;
    world.asks(session, &["SUBSCRIBE c"]);
    let (line, _) = line_up(world, 0);
    world.says(line, confirmed("subscribe", "c"));
    assert!(world.got(session).contains("subscribe"));
    reloaded.takes(vec![pool("default", 2)]);
    let world = &mut reloaded.world;
    world.connect();
    world.wait_ms(100);
    assert_eq!(world.closed_sessions(), [session]);
}

/// If subscriptions outlast the loss of a server, they outlast the end of a pool: respool
/// subscribes at the new server, and does not tell the client. It hears the old server until the
/// new one has confirmed. PUBLISH counts the subscribers at the new server.
#[test]
fn kept_subscriber_moves_with_its_channels() {
    let mut reloaded = Reloaded::new(settings());
    let (session, other) = (reloaded.accepts(0), reloaded.accepts(0));
    let world = &mut reloaded.world;
    world.asks(session, &["SUBSCRIBE c"]);
    let (old, _) = line_up(world, 0);
    world.says(old, confirmed("subscribe", "c"));
    assert!(world.got(session).contains("subscribe"));
    world.asks(other, &["SUBSCRIBE c"]);
    world.says(old, "+PONG\r\n");
    assert!(world.got(other).contains("subscribe"));
    reloaded.takes(vec![pool("default", 2)]);
    let world = &mut reloaded.world;
    let new = new_link(world);
    world.up(new);
    world.wait_ms(100);
    let (line, sent) = line_up(world, 1);
    assert!(sent.contains("SUBSCRIBE"), "{sent}");
    let of_client = message("message", "c").replace('>', "*");
    world.says(old, message("message", "c"));
    for id in [session, other] {
        assert_eq!(world.got(id), of_client, "the old server is heard");
    }
    world.says(line, confirmed("subscribe", "c"));
    assert!(world.sent(old).contains("UNSUBSCRIBE"));
    world.says(line, message("message", "c"));
    for id in [session, other] {
        assert_eq!(world.got(id), of_client);
    }
    let publisher = reloaded.accepts(0);
    let world = &mut reloaded.world;
    world.asks(publisher, &["PUBLISH c m"]);
    world.says(new, ":1\r\n");
    assert_eq!(world.got(publisher), ":2\r\n");
    world.asks(session, &["UNSUBSCRIBE c", "GET k"]);
    world.says(line, "+PONG\r\n");
    assert!(world.got(session).contains("unsubscribe"));
    assert!(world.sent(new).contains("GET"), "the session has moved");
    assert_eq!(world.closed_sessions(), []);
}

/// Subscribers of a server that is away move, too. The new server may refuse a channel: then its
/// subscribers are closed.
#[test]
fn kept_subscriber_moves_away_from_a_lost_server() {
    for is_refused in [false, true] {
        let mut reloaded = Reloaded::new(settings());
        let session = reloaded.accepts(0);
        let world = &mut reloaded.world;
        world.asks(session, &["SUBSCRIBE c"]);
        let (old, _) = line_up(world, 0);
        world.says(old, confirmed("subscribe", "c"));
        world.got(session);
        world.lose(world.shared);
        world.lose(old);
        reloaded.takes(vec![pool("default", 2)]);
        let world = &mut reloaded.world;
        world.lose(world.shared);
        let (line, sent) = line_up(world, 1);
        assert!(sent.contains("SUBSCRIBE"), "{sent}");
        if is_refused {
            world.says(line, "-NOPERM no\r\n");
            assert_eq!(world.closed_sessions(), [session]);
            continue;
        }
        world.says(line, confirmed("subscribe", "c"));
        world.says(line, message("message", "c"));
        assert_eq!(
            world.got(session),
            message("message", "c").replace('>', "*")
        );
        assert_eq!(world.closed_sessions(), []);
    }
}

/// A sharded channel goes to the owner of its slot in a Cluster, and from there to a single server.
#[test]
fn kept_sharded_channel_follows_the_kind_of_its_pool() {
    let mut reloaded = Reloaded::new(settings());
    let session = reloaded.accepts(0);
    let nodes = cluster(2);
    let owners = Owners::of(&nodes);
    let channel = owners.key_at(1, "c");
    let world = &mut reloaded.world;
    world.asks(session, &[&format!("SSUBSCRIBE {channel}")]);
    world.allows_transactions(world.shared);
    let (old, _) = line_up(world, 0);
    world.says(old, confirmed("ssubscribe", &channel));
    assert!(world.got(session).contains("ssubscribe"));
    reloaded.takes(vec![PoolSettings {
        kind: nodes.pools[0].kind.clone(),
        ..pool("default", 1)
    }]);
    let world = &mut reloaded.world;
    let links = world.connecting();
    for link in &links {
        world.up(*link);
    }
    for _ in 0..20 {
        world.wait_ms(50);
        for link in &links {
            for args in world.asked(*link) {
                if let Some(said) = owners.said(&args) {
                    world.says(*link, said);
                }
            }
        }
    }
    let of_client = message("smessage", &channel).replace('>', "*");
    let (at_owner, sent) = line_up(world, 1);
    assert!(sent.contains("SSUBSCRIBE"), "{sent}");
    world.says(at_owner, confirmed("ssubscribe", &channel));
    world.says(at_owner, message("smessage", &channel));
    assert_eq!(world.got(session), of_client);
    reloaded.takes(vec![pool("default", 3)]);
    let world = &mut reloaded.world;
    world.connect();
    world.wait_ms(100);
    let (last, sent) = line_up(world, 2);
    assert!(sent.contains("SSUBSCRIBE"), "{sent}");
    world.says(last, confirmed("ssubscribe", &channel));
    world.says(last, message("smessage", &channel));
    assert_eq!(world.got(session), of_client);
    assert_eq!(world.closed_sessions(), []);
}

/// The nodes of a Cluster name the owners of all slots.
fn name_owners(world: &mut World, links: &[LinkId], owners: &Owners) {
    for _ in 0..20 {
        world.wait_ms(50);
        for link in links {
            for args in world.asked(*link) {
                if let Some(said) = owners.said(&args) {
                    world.says(*link, said);
                }
            }
        }
    }
}

/// A session in RESP3 subscribes to `c` and watches a key.
fn subscribes_and_watches(world: &mut World, session: SessionId, key: &str) {
    let up = |world: &mut World| {
        let links = world.connecting();
        for link in &links {
            world.up(*link);
        }
        links
    };
    world.asks(session, &["HELLO 3"]);
    up(world);
    world.asks(session, &["SUBSCRIBE c"]);
    let mut lines = up(world).into_iter();
    let line = lines.find(|link| world.sent(*link).contains("SUBSCRIBE"));
    let line = line.expect("the hub subscribes");
    world.says(line, confirmed("subscribe", "c"));
    assert!(world.got(session).contains("subscribe"));
    world.asks(session, &[&format!("WATCH {key}")]);
    let mut own = up(world).into_iter();
    let own = own.find(|link| world.sent(*link).contains("WATCH"));
    world.says(own.expect("the session has a link"), "+OK\r\n");
    assert_eq!(world.got(session), "+OK\r\n");
}

/// A session whose WATCH keeps it in its old pool subscribes where its hub is by now: the hub has
/// moved from a Cluster to a single server, or from there to a Cluster.
#[test]
fn session_with_watch_subscribes_in_the_pool_of_its_hub() {
    let nodes = cluster(2);
    let owners = Owners::of(&nodes);
    let key = owners.key_at(1, "k");
    let channel = format!("x{{{key}}}");
    for from_cluster in [true, false] {
        let (first, second, place) = match from_cluster {
            true => (nodes.clone(), pool("default", 3), 2),
            false => {
                let kind = nodes.pools[0].kind.clone();
                (
                    settings(),
                    PoolSettings {
                        kind,
                        ..pool("default", 1)
                    },
                    1,
                )
            }
        };
        let mut reloaded = Reloaded::new(first);
        if from_cluster {
            let links = reloaded.world.all_shared.clone();
            name_owners(&mut reloaded.world, &links, &owners);
        }
        let session = reloaded.accepts(0);
        subscribes_and_watches(&mut reloaded.world, session, &key);
        reloaded.takes(vec![second]);
        let world = &mut reloaded.world;
        let links = world.connecting();
        for link in &links {
            world.up(*link);
        }
        if !from_cluster {
            name_owners(world, &links, &owners);
        }
        world.wait_ms(100);
        let mut lines = world.connecting().into_iter();
        let home = lines.next().expect("the hub has moved");
        world.up(home);
        assert!(world.sent(home).contains("SUBSCRIBE"));
        world.says(home, confirmed("subscribe", "c"));
        world.asks(session, &[&format!("SSUBSCRIBE {channel}")]);
        // respool asks a server for the right to the command.
        let shared = [world.all_shared.clone(), links].concat();
        for link in shared.iter().copied().cycle().take(5 * shared.len()) {
            for args in world.asked(link) {
                let said = match (args[0].as_str(), owners.said(&args)) {
                    ("EXEC", _) => "*0\r\n".to_owned(),
                    (_, said) => said.unwrap_or("+OK\r\n".to_owned()),
                };
                world.says(link, said);
            }
        }
        let line = world.connecting().first().copied().unwrap_or(home);
        assert_eq!((line == home, world.server_of(line)), (from_cluster, place));
        if line != home {
            world.up(line);
        }
        let sent = world.sent(line);
        assert!(sent.contains("SSUBSCRIBE"), "{sent}");
        world.says(line, confirmed("ssubscribe", &channel));
        assert!(world.got(session).contains("ssubscribe"));
        world.asks(session, &[&format!("SUNSUBSCRIBE {channel}")]);
        assert!(world.sent(line).contains("SUNSUBSCRIBE"));
        assert_eq!(world.closed_sessions(), []);
    }
}

/// The sessions of a removed pool get their replies and are closed. Then its links close, and INFO
/// does not show its server.
#[test]
fn sessions_of_a_removed_pool_get_their_replies() {
    let mut two = settings();
    two.pools.push(pool("old", 2));
    let mut reloaded = Reloaded::new(two);
    let (busy, idle, other) = (
        reloaded.accepts(1),
        reloaded.accepts(1),
        reloaded.accepts(0),
    );
    let world = &mut reloaded.world;
    let old = world.all_shared[1];
    world.asks(busy, &["INCR k"]);
    world.sent(old);
    reloaded.takes(vec![pool("default", 1)]);
    let world = &mut reloaded.world;
    assert_eq!(world.closed_sessions(), [idle]);
    world.says(old, ":1\r\n");
    assert_eq!(world.got(busy), ":1\r\n");
    assert_eq!(world.closed_sessions(), [idle, busy]);
    world.wait_ms(100);
    assert_eq!(world.closed_links(), [old]);
    world.asks(other, &["GET k"]);
    assert!(world.sent(world.shared).contains("GET"));
    // The client of a handshake that ends now finds no pool.
    let late = world.engine.handle_accept(peer(2), 1);
    world.wait_ms(50);
    assert!(world.closed_sessions().contains(&late));
}

/// The servers of a pool may become several, with prefixes, and one again. Keys go to their owners.
#[test]
fn pool_gets_several_servers_and_prefixes() {
    let mut reloaded = Reloaded::new(settings());
    let session = reloaded.accepts(0);
    let kinds = [
        sharded(2).pools[0].kind.clone(),
        parted(1).pools[0].kind.clone(),
        PoolKind::Single(server(3)),
    ];
    let mut old = reloaded.world.all_shared.clone();
    for kind in kinds {
        reloaded.takes(vec![PoolSettings {
            kind: kind.clone(),
            ..pool("default", 1)
        }]);
        let world = &mut reloaded.world;
        let new = world.connecting();
        for link in &new {
            world.up(*link);
        }
        world.wait_ms(100);
        let mut asked = 0;
        for key in ["k1a", "k2", "x", "y", "z", "k1b"] {
            world.asks(session, &[&format!("GET {key}")]);
            for link in &new {
                if world.sent(*link).contains("GET") {
                    asked |= 1 << world.server_of(*link);
                    world.says(*link, "$-1\r\n");
                }
            }
            assert_eq!(world.got(session), "$-1\r\n", "{key} at {kind:?}");
        }
        assert_eq!(asked, if new.len() == 2 { 0b11 } else { 0b100 });
        world.wait_ms(100);
        for link in old {
            assert!(world.closed_links().contains(&link), "{link:?} of {kind:?}");
        }
        old = new;
    }
    let is_close = |action: &Action| matches!(action, Action::CloseSession { .. });
    assert!(!reloaded.world.actions.iter().any(is_close));
}

/// A second reload may come before the sessions have left the first pool: they move to the last.
#[test]
fn sessions_follow_the_last_of_several_reloads() {
    let mut reloaded = Reloaded::new(settings());
    let session = reloaded.accepts(0);
    reloaded.world.asks(session, &["GET k"]);
    reloaded.takes(vec![pool("default", 2)]);
    reloaded.world.connect();
    reloaded.takes(vec![pool("default", 3)]);
    let world = &mut reloaded.world;
    let last = world.connect();
    world.says(world.shared, "$-1\r\n");
    world.wait_ms(100);
    assert_eq!(world.got(session), "$-1\r\n");
    world.asks(session, &["GET k"]);
    assert!(world.sent(last).contains("GET"));
}

/// A new client is served by the old server, too, until the new one answers.
#[test]
fn new_client_waits_for_no_server_that_is_away() {
    let mut reloaded = Reloaded::new(settings());
    let first = reloaded.accepts(0);
    reloaded.takes(vec![pool("default", 2)]);
    let second = reloaded.accepts(0);
    let world = &mut reloaded.world;
    for session in [first, second] {
        world.asks(session, &["GET k"]);
        assert!(world.sent(world.shared).contains("GET"));
        world.says(world.shared, "$-1\r\n");
        assert_eq!(world.got(session), "$-1\r\n");
    }
    let new = world.connect();
    world.wait_ms(100);
    for session in [first, second] {
        world.asks(session, &["GET k"]);
        assert!(world.sent(new).contains("GET"));
        world.says(new, "$-1\r\n");
    }
}

/// Requests that no link has sent go to the new server, in the order in which they were asked, and
/// in front of those that the session still holds. Their old server is away.
#[test]
fn unsent_requests_go_to_the_new_server_in_order() {
    let mut reloaded = Reloaded::new(settings());
    let session = reloaded.accepts(0);
    let world = &mut reloaded.world;
    world.lose(world.shared);
    world.connecting();
    world.asks(session, &["SET k 1", "PUBLISH c m", "SET k 2"]);
    world.sends(session, b"*2\r\n$3\r\nGET\r\n$1\r\n");
    world.lose(world.shared);
    assert_eq!(world.got(session), "", "the requests wait");
    reloaded.takes(vec![pool("default", 2)]);
    let world = &mut reloaded.world;
    let new = new_link(world);
    world.sends(session, b"k\r\n");
    world.up(new);
    let asked = requests(&["SET k 1", "PUBLISH c m", "SET k 2", "GET k"]);
    assert_eq!(world.sent(new).into_bytes(), asked);
    world.says(new, "+OK\r\n:0\r\n+OK\r\n$1\r\n2\r\n");
    assert_eq!(world.got(session), "+OK\r\n:0\r\n+OK\r\n$1\r\n2\r\n");
    assert_eq!(world.sent(world.shared), "");
    assert_eq!(world.engine.counters().failed_not_sent, 0);
}

/// A request that its session reads again counts once, in all tables.
#[test]
fn request_read_again_counts_once() {
    let mut reloaded = Reloaded::new(settings());
    let session = reloaded.accepts(0);
    let world = &mut reloaded.world;
    world.lose(world.shared);
    world.connecting();
    world.asks(session, &["SET k 1", "PUBLISH c m", "GET k"]);
    world.lose(world.shared);
    let counted = |world: &World| world.engine.counters().requests;
    assert_eq!(counted(world), 3);
    reloaded.takes(vec![pool("default", 2)]);
    let world = &mut reloaded.world;
    assert_eq!(counted(world), 3, "the session has read its requests again");
    let new = new_link(world);
    world.asks(session, &["GET behind"]);
    world.up(new);
    assert_eq!(counted(world), 4, "only the last request is new");
    world.says(new, "+OK\r\n:0\r\n-ERR no\r\n$-1\r\n");
    assert_eq!(world.got(session), "+OK\r\n:0\r\n-ERR no\r\n$-1\r\n");
    world.asks(session, &["GET later"]);
    assert_eq!(counted(world), 5);
    let mut report = LatencyReport::default();
    world.engine.report_latency(&mut report);
    let errors: Vec<u64> = report.errors().map(|(_, count)| count).collect();
    assert_eq!(errors, [1]);
    let counts = report.commands().map(|(command, times)| {
        let count: u64 = times.total().buckets().map(|(_, count)| count).sum();
        (command, count)
    });
    let counts: Vec<_> = counts.filter(|(_, count)| *count > 0).collect();
    assert_eq!(counts, [("get", 2), ("publish", 1), ("set", 1)]);
}

/// CLIENT REPLY OFF or SKIP does not silence an unsent request that the client sent in front of it.
/// That request ends with its lost server, and later replies stay in their places.
#[test]
fn unsent_request_in_front_of_client_reply_gets_its_reply() {
    for mode in ["SKIP", "OFF"] {
        let mut reloaded = Reloaded::new(settings());
        let session = reloaded.accepts(0);
        let world = &mut reloaded.world;
        world.may_ask(session, &["CLIENT REPLY x"]);
        world.lose(world.shared);
        world.connecting();
        world.asks(session, &["GET a", &format!("CLIENT REPLY {mode}")]);
        world.lose(world.shared);
        assert_eq!(world.got(session), "", "the request waits");
        reloaded.takes(vec![pool("default", 2)]);
        let world = &mut reloaded.world;
        let new = new_link(world);
        world.up(new);
        world.asks(session, &["INCR b", "INCR c"]);
        world.wait_ms(HOLD_MS + 100);
        let got = world.got(session);
        assert!(got.starts_with("-NOTSENT"), "{mode}: {got}");
        let asked = requests(&["INCR b", "INCR c"]);
        assert_eq!(world.sent(new).into_bytes(), asked, "{mode}");
        world.says(new, ":1\r\n:2\r\n");
        let replies = if mode == "SKIP" { ":2\r\n" } else { "" };
        assert_eq!(world.got(session), replies, "{mode}");
    }
}

/// Unsent requests keep the deadline of the time when they were read.
#[test]
fn unsent_request_keeps_its_deadline_at_the_new_server() {
    let mut timed = settings();
    timed.timeouts.request_ms = 1_500;
    let mut reloaded = Reloaded::new(timed);
    let session = reloaded.accepts(0);
    let world = &mut reloaded.world;
    world.lose(world.shared);
    world.connecting();
    world.asks(session, &["SET k 1"]);
    world.lose(world.shared);
    world.wait_ms(1_000);
    world.lose(world.shared);
    reloaded.takes(vec![pool("default", 2)]);
    let world = &mut reloaded.world;
    world.wait_ms(300);
    assert_eq!(world.got(session), "");
    world.wait_ms(300);
    let got = world.got(session);
    assert!(
        got.starts_with("-NOTSENT") && got.contains("server:2"),
        "{got}"
    );
}

/// A read that may have been sent stays with its lost server, and ends by the rule for it. A later
/// request that was not sent waits for that, and then goes to the new server. The count of requests
/// does not fall meanwhile: a scrape would take that for a restart.
#[test]
fn unsent_request_waits_for_one_that_may_have_been_sent() {
    let mut reloaded = Reloaded::new(settings());
    let session = reloaded.accepts(0);
    let world = &mut reloaded.world;
    world.wait_ms(1_100);
    world.asks(session, &["GET k"]);
    assert!(world.sent(world.shared).contains("GET"));
    world.lose(world.shared);
    world.asks(session, &["SET k 1"]);
    world.lose(world.shared);
    world.connecting();
    reloaded.takes(vec![pool("default", 2)]);
    let world = &mut reloaded.world;
    let new = new_link(world);
    world.up(new);
    world.wait_ms(500);
    assert_eq!(world.sent(new), "", "the read is not answered");
    assert_eq!(world.engine.counters().requests, 2);
    world.wait_ms(HOLD_MS);
    let got = world.got(session);
    assert!(got.starts_with("-UNKNOWN"), "{got}");
    assert_eq!(world.sent(new).into_bytes(), requests(&["SET k 1"]));
    world.says(new, "+OK\r\n");
    assert_eq!(world.got(session), "+OK\r\n");
    assert_eq!(world.engine.counters().requests, 2);
}

/// The old server is lost while its sessions move: a request that it has got ends by the rule of a
/// lost server, and one that respool has not written whole goes to the new server.
#[test]
fn unwritten_request_moves_when_the_old_server_is_lost() {
    for hold_ms in [HOLD_MS, 0] {
        let mut reloaded = Reloaded::new(settings());
        reloaded.settings.timeouts.outage_hold_ms = hold_ms;
        let (written, unwritten) = (reloaded.accepts(0), reloaded.accepts(0));
        let world = &mut reloaded.world;
        let old = world.shared;
        world.asks(written, &["SET k 1"]);
        world.room.insert(old, 10);
        world.asks(unwritten, &["SET k 2"]);
        reloaded.takes(vec![pool("default", 2)]);
        let world = &mut reloaded.world;
        let new = world.connect();
        world.wait_ms(100);
        assert_eq!(world.sent(new), "", "the old server has not answered");
        world.lose(old);
        world.wait_ms(100);
        let got = world.got(written);
        assert!(got.starts_with("-UNKNOWN"), "{hold_ms}: {got}");
        assert_eq!(world.sent(new).into_bytes(), requests(&["SET k 2"]));
        world.says(new, "+OK\r\n");
        assert_eq!(world.got(unwritten), "+OK\r\n");
    }
}

/// An unsent request with an answered one behind it ends with its lost server: at the new one it
/// would be executed behind that.
#[test]
fn request_before_an_answered_one_ends_with_its_server() {
    let mut reloaded = Reloaded::new(sharded(2));
    let session = reloaded.accepts(0);
    let world = &mut reloaded.world;
    let [first, second] = [0, 1].map(|at| format!("SET {} 1", world.key_at(at, "k")));
    let [lost, up] = world.all_shared[..] else {
        panic!("each server has a link");
    };
    world.lose(lost);
    world.asks(session, &[&first, &second, &first]);
    assert!(world.sent(up).contains("SET"));
    world.says(up, "+OK\r\n");
    reloaded.takes(vec![pool("default", 3)]);
    let world = &mut reloaded.world;
    let mut links = world.connecting().into_iter();
    let new = links.find(|link| world.server_of(*link) == 2);
    let new = new.expect("the new server is connected");
    world.up(new);
    world.wait_ms(100);
    assert_eq!(world.sent(new), "");
    world.wait_ms(HOLD_MS);
    let got = world.got(session);
    assert!(
        got.starts_with("-NOTSENT") && got.ends_with("+OK\r\n"),
        "{got}"
    );
    assert_eq!(world.sent(new).into_bytes(), requests(&[&first]));
    world.says(new, "+OK\r\n");
    assert_eq!(world.got(session), "+OK\r\n");
}

/// An unsent transaction ends with its lost server. Then its session moves.
#[test]
fn unsent_transaction_ends_with_its_lost_server() {
    let mut reloaded = Reloaded::new(settings());
    let session = reloaded.accepts(0);
    let world = &mut reloaded.world;
    world.opens_transactions(session);
    world.asks(session, &["MULTI", "SET k v"]);
    assert_eq!(world.got(session), "+OK\r\n+QUEUED\r\n");
    world.lose(world.shared);
    world.connecting();
    world.asks(session, &["EXEC"]);
    world.lose(world.shared);
    reloaded.takes(vec![pool("default", 2)]);
    let world = &mut reloaded.world;
    let new = new_link(world);
    world.up(new);
    world.wait_ms(HOLD_MS + 100);
    assert_eq!(world.sent(new), "");
    let got = world.got(session);
    assert!(got.starts_with("-NOTSENT"), "{got}");
    world.asks(session, &["GET k"]);
    assert!(world.sent(new).contains("GET"));
}

/// The old server refuses its link, which was lost and connects again. Returns the link to the new
/// server, which is not up yet.
fn refuse_old_links(world: &mut World) -> LinkId {
    let new = world.connecting()[0];
    world.lose(world.shared);
    let old = world.connecting()[0];
    assert_eq!(world.server_of(old), 0);
    world.turn(|engine| engine.handle_link_up(old));
    world.says(old, "-WRONGPASS no\r\n");
    new
}

/// An old server that refuses the old password answers no client with that: its sessions wait for
/// the new one. Until then it serves.
#[test]
fn old_server_that_refuses_links_is_left_at_once() {
    let mut reloaded = Reloaded::new(settings());
    let session = reloaded.accepts(0);
    // A link that lasted connects again at once.
    reloaded.world.wait_ms(1_100);
    reloaded.takes(vec![pool("default", 2)]);
    let world = &mut reloaded.world;
    let new = refuse_old_links(world);
    let newcomer = reloaded.accepts(0);
    let world = &mut reloaded.world;
    for id in [session, newcomer] {
        world.asks(id, &["GET k"]);
        assert_eq!(world.got(id), "");
    }
    world.up(new);
    for _ in [session, newcomer] {
        world.says(new, "$1\r\nv\r\n");
    }
    for id in [session, newcomer] {
        assert_eq!(world.got(id), "$1\r\nv\r\n");
    }
}

/// A pool without a link that is up is left as soon as it ends.
#[test]
fn pool_without_links_is_left_at_once() {
    let mut reloaded = Reloaded::new(settings());
    let session = reloaded.accepts(0);
    let world = &mut reloaded.world;
    world.lose(world.shared);
    reloaded.takes(vec![pool("default", 2)]);
    let world = &mut reloaded.world;
    world.asks(session, &["GET k"]);
    let new = new_link(world);
    world.up(new);
    world.says(new, "$1\r\nv\r\n");
    assert_eq!(world.got(session), "$1\r\nv\r\n");
}

/// A session that has not left a lost server yet, because many others leave first, gets no error
/// for a request that it sends meanwhile.
#[test]
fn request_sent_before_the_session_leaves_gets_no_error() {
    let mut reloaded = Reloaded::new(settings());
    let sessions: Vec<SessionId> = (0..2_000).map(|_| reloaded.accepts(0)).collect();
    let world = &mut reloaded.world;
    world.lose(world.shared);
    world.wait_ms(HOLD_MS + 200);
    world.lose(world.shared);
    world.asks(sessions[1_999], &["GET k"]);
    assert!(world.got(sessions[1_999]).starts_with("-NOTSENT"));
    reloaded.takes(vec![pool("default", 2)]);
    let world = &mut reloaded.world;
    world.asks(sessions[1_999], &["GET k"]);
    assert_eq!(world.got(sessions[1_999]), "");
    let new = new_link(world);
    world.up(new);
    assert_eq!(world.sent(new).into_bytes(), requests(&["GET k"]));
}

/// A failed attempt to connect to the new server is no reason to leave the old one, also while the
/// old link connects again.
#[test]
fn failed_attempt_at_the_new_server_keeps_the_old_one() {
    let mut reloaded = Reloaded::new(settings());
    let session = reloaded.accepts(0);
    reloaded.world.wait_ms(1_100);
    reloaded.takes(vec![pool("default", 2)]);
    let world = &mut reloaded.world;
    let new = world.connecting()[0];
    world.lose(world.shared);
    world.lose(new);
    let old = world.connect();
    assert_eq!(world.server_of(old), 0);
    world.asks(session, &["GET k"]);
    assert!(world.sent(old).contains("GET"));
}

/// A server that waits for clients to bring the password is left when the new one answers.
#[test]
fn server_that_wants_passwords_of_clients_serves_on() {
    let mut reloaded = Reloaded::new(settings());
    let world = &mut reloaded.world;
    world.wait_ms(1_100);
    world.lose(world.shared);
    let old = world.connecting()[0];
    world.turn(|engine| engine.handle_link_up(old));
    world.says(
        old,
        "-NOAUTH HELLO must be called with the client already authenticated\r\n",
    );
    reloaded.takes(vec![pool("default", 2)]);
    let world = &mut reloaded.world;
    let new = new_link(world);
    world.lose(new);
    let session = reloaded.accepts(0);
    let world = &mut reloaded.world;
    world.asks(session, &["AUTH secret"]);
    let links = world.connecting();
    assert!(
        links.iter().all(|link| world.server_of(*link) == 0),
        "{links:?}"
    );
}

/// A subscriber's link does not keep sessions at an old server that refuses shared links.
#[test]
fn subscriber_does_not_keep_sessions_at_a_refusing_server() {
    let mut reloaded = Reloaded::new(settings());
    let (session, subscriber) = (reloaded.accepts(0), reloaded.accepts(0));
    let world = &mut reloaded.world;
    world.asks(subscriber, &["SUBSCRIBE news"]);
    let line = world.connect();
    world.says(line, ">3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
    assert!(world.got(subscriber).contains("news"));
    world.wait_ms(1_100);
    reloaded.takes(vec![pool("default", 2)]);
    let world = &mut reloaded.world;
    let new = refuse_old_links(world);
    world.asks(session, &["GET k"]);
    assert_eq!(world.got(session), "");
    world.up(new);
    assert!(world.sent(new).contains("GET"));
}

/// A worker without sessions keeps the old server, too, until the new one answers.
#[test]
fn worker_without_sessions_keeps_the_old_server() {
    let mut reloaded = Reloaded::new(settings());
    reloaded.takes(vec![pool("default", 2)]);
    reloaded.world.wait_ms(200);
    assert_eq!(reloaded.world.closed_links(), []);
    let session = reloaded.accepts(0);
    let world = &mut reloaded.world;
    world.asks(session, &["GET k"]);
    assert!(world.sent(world.shared).contains("GET"));
    world.says(world.shared, "$-1\r\n");
    let new = world.connect();
    world.wait_ms(100);
    world.asks(session, &["GET k"]);
    assert!(world.sent(new).contains("GET"));
}

/// Each shard of the new pool has to answer before sessions move. Once they may move, they do not
/// go back to the old server, even if the new one is lost.
#[test]
fn sessions_move_once_and_to_a_whole_pool() {
    let mut reloaded = Reloaded::new(settings());
    let session = reloaded.accepts(0);
    let shards = sharded(2);
    reloaded.takes(vec![PoolSettings {
        kind: shards.pools[0].kind.clone(),
        ..pool("default", 1)
    }]);
    let world = &mut reloaded.world;
    let links = world.connecting();
    world.up(links[0]);
    world.wait_ms(100);
    world.asks(session, &["GET k"]);
    assert!(world.sent(world.shared).contains("GET"), "a shard is away");
    world.says(world.shared, "$-1\r\n");
    world.up(links[1]);
    world.wait_ms(100);
    world.lose(links[0]);
    world.lose(links[1]);
    let newcomer = reloaded.accepts(0);
    let world = &mut reloaded.world;
    for session in [session, newcomer] {
        world.asks(session, &["GET k"]);
        assert_eq!(world.sent(world.shared), "");
    }
}

/// Between two reloads in a row, new clients are served by the newest server that answers.
#[test]
fn newest_predecessor_serves() {
    let mut reloaded = Reloaded::new(settings());
    let bound = reloaded.accepts(0);
    reloaded.world.opens_transactions(bound);
    reloaded.world.asks(bound, &["MULTI"]);
    reloaded.takes(vec![pool("default", 2)]);
    let second = reloaded.world.connect();
    reloaded.world.wait_ms(100);
    reloaded.takes(vec![pool("default", 3)]);
    let newcomer = reloaded.accepts(0);
    let world = &mut reloaded.world;
    world.asks(newcomer, &["GET k"]);
    assert!(world.sent(second).contains("GET"));
}

/// A session in a database that a Cluster does not have is closed.
#[test]
fn session_in_another_database_does_not_enter_a_cluster() {
    let mut reloaded = Reloaded::new(settings());
    let session = reloaded.accepts(0);
    let world = &mut reloaded.world;
    world.may_ask(session, &["SELECT none"]);
    world.asks(session, &["SELECT 3"]);
    world.connect();
    assert_eq!(world.got(session), "+OK\r\n");
    reloaded.takes(vec![PoolSettings {
        kind: cluster(2).pools[0].kind.clone(),
        ..pool("default", 1)
    }]);
    reloaded.world.wait_ms(HOLD_MS + 100);
    assert_eq!(reloaded.world.closed_sessions(), [session]);
}

/// A session moves to a Cluster when the owners of its slots are known. respool asks the nodes
/// nothing more after all sessions have left.
#[test]
fn sessions_enter_and_leave_a_cluster() {
    let mut reloaded = Reloaded::new(settings());
    let session = reloaded.accepts(0);
    let nodes = cluster(2);
    reloaded.takes(vec![PoolSettings {
        kind: nodes.pools[0].kind.clone(),
        ..pool("default", 1)
    }]);
    let world = &mut reloaded.world;
    let links = world.connecting();
    assert_eq!(links.len(), 2);
    for link in &links {
        world.up(*link);
    }
    world.asks(session, &["GET k"]);
    assert!(
        world.sent(world.shared).contains("GET"),
        "no owner is known"
    );
    world.says(world.shared, "$-1\r\n");
    assert_eq!(world.got(session), "$-1\r\n");
    let owners = Owners::of(&nodes);
    for _ in 0..20 {
        world.wait_ms(50);
        for link in &links {
            for args in world.asked(*link) {
                if let Some(said) = owners.said(&args) {
                    world.says(*link, said);
                }
            }
        }
    }
    for at in 0..2 {
        world.asks(session, &[&format!("GET {}", owners.key_at(at, "k"))]);
        let link = links.iter().find(|link| world.server_of(**link) == at);
        let link = *link.expect("each node has a link");
        assert!(world.sent(link).contains("GET"));
        world.says(link, "$-1\r\n");
        assert_eq!(world.got(session), "$-1\r\n");
    }
    reloaded.takes(vec![pool("default", 3)]);
    let world = &mut reloaded.world;
    world.connect();
    // A node may owe an answer about the topology.
    world.wait_ms(2_000);
    for link in links {
        assert!(world.closed_links().contains(&link));
    }
    world.wait_ms(10_000);
    assert_eq!(world.connecting(), [], "the nodes are left alone");
}

/// CLIENT PAUSE goes on in the new pool.
#[test]
fn pause_goes_on_in_the_new_pool() {
    let mut reloaded = Reloaded::new(settings());
    let session = reloaded.accepts(0);
    reloaded.world.may_ask(session, &["CLIENT PAUSE none"]);
    reloaded
        .world
        .asks(session, &["CLIENT PAUSE 1000 ALL", "GET k"]);
    assert_eq!(reloaded.world.got(session), "+OK\r\n");
    reloaded.takes(vec![pool("default", 2)]);
    let world = &mut reloaded.world;
    let new = world.connect();
    world.wait_ms(500);
    assert_eq!(world.sent(new), "");
    world.wait_ms(600);
    assert!(world.sent(new).contains("GET"));
}

/// An option that a client sets while a reload reaches the workers is set in every worker: the
/// order in which a worker gets the two does not matter, also if the reload ends the pool.
#[test]
fn later_change_of_an_option_holds_for_the_successor() {
    for settings_first in [true, false] {
        let mut reloaded = Reloaded::new_among(worker(0, 2), settings());
        let made = reloaded.world.now;
        let set = move |world: &mut World| {
            let query = WorkerQuery::Admin(AdminQuery::Set {
                at: (made.plus_ms(1), 1),
                pool: 0,
                listener: 0,
                values: vec![(1, 777)],
            });
            world.turn(|engine| engine.handle_question(1, 7, query));
        };
        if !settings_first {
            set(&mut reloaded.world);
        }
        reloaded.takes_at(made, vec![pool("default", 2)]);
        if settings_first {
            set(&mut reloaded.world);
        }
        let new = reloaded.world.connect();
        let session = reloaded.accepts(0);
        reloaded.world.wait_ms(100);
        let world = &mut reloaded.world;
        world.asks(session, &["CONFIG GET respool.max-delay-us"]);
        world.says(new, "*0\r\n");
        let got = world.got(session);
        assert!(got.contains("\r\n777\r\n"), "{settings_first}: {got}");
    }
}

/// A script that a client shows after a reload, and before its session moves, is loaded again on
/// the next link of the old server. If that server is away, the new one gets it.
#[test]
fn script_shown_between_reload_and_move_is_loaded_again() {
    for is_away in [false, true] {
        let mut reloaded = Reloaded::new(without_lanes(settings()));
        let session = reloaded.accepts(0);
        reloaded.takes(vec![pool("default", 2)]);
        let world = &mut reloaded.world;
        let new = world.connecting()[0];
        world.sends(session, &request(&["EVAL", "return 1", "1", "k"]));
        world.says(world.shared, ":1\r\n");
        assert_eq!(world.got(session), ":1\r\n");
        world.wait_ms(1_500);
        world.sent(world.shared);
        world.lose(world.shared);
        let sha = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
        let by_name = request(&["EVALSHA", sha, "1", "k"]);
        world.sends(session, &by_name);
        let attempt = world.connecting()[0];
        let link = match is_away {
            false => attempt,
            true => {
                world.lose(attempt);
                new
            }
        };
        world.up(link);
        let shows = request(&["SCRIPT", "LOAD", "return 1"]);
        assert_eq!(world.sent(link).into_bytes(), [shows, by_name].concat());
    }
}

//! One engine in virtual time, driven by its public surface. Its sockets take all bytes at once,
//! unless a test says otherwise.

#![allow(dead_code, reason = "no file of tests uses all of it")]

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use respool_engine::settings::{
    Address, Aim, LostSubscriptions, PoolKind, PoolSettings, PrefixPool, Reads, ServerDownError,
    ServerSettings, Settings,
};
use respool_engine::{
    Action, CloseReason, Engine, Event, LinkId, Peer, SessionId, SubscriberCounts, TICK_MS, Time,
    Usage, WorkerId,
};
use respool_protocol::encode;
use respool_protocol::hashing::{Placement, PredixyHash};
use respool_protocol::request::{Found, RequestScanner, Span};
use respool_protocol::slot::{SLOTS, hash_slot};

/// A server's reply to the HELLO of a link.
pub(crate) const HELLO: &str = "*2\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n";

/// The settings with too few links for links apart: each request goes on the shared link.
pub(crate) fn without_lanes(mut settings: Settings) -> Settings {
    settings.limits.links_max = settings.limits.links_max.min(3);
    settings
}

/// Settings with one server, without coalescing, and else with defaults.
pub(crate) fn settings() -> Settings {
    let server = ServerSettings::at(Address::Tcp {
        host: "server".to_owned(),
        port: 1,
    });
    let pool = PoolSettings::new("default", PoolKind::Single(server));
    let mut settings = Settings {
        pools: vec![pool],
        ..Settings::default()
    };
    // The wait of a batch does not depend on the load here; flush_waits.rs tests that.
    settings.flush.aim = Aim::ServerCpu;
    settings.flush.fuse = false;
    settings.flush.collapse = false;
    // A link for checks would be one more to connect.
    settings.timeouts.login_check_ms = 0;
    // Requests fail at once here; outage.rs has them wait.
    settings.timeouts.outage_hold_ms = 0;
    // Pauses grow for long enough to be seen.
    settings.timeouts.reconnect_max_ms = 2_000;
    settings.lost_subscriptions = LostSubscriptions::Keep;
    // All requests that were not executed get the same code here; outage.rs has the others.
    settings.server_down_error = ServerDownError::NotSent;
    settings
}

/// Settings with this many servers, among which keys are divided by their slots.
pub(crate) fn sharded(servers: u16) -> Settings {
    let mut settings = settings();
    let shards = (1..=servers).map(|port| {
        ServerSettings::at(Address::Tcp {
            host: "server".to_owned(),
            port,
        })
    });
    let placement = Placement::predixy(PredixyHash::Crc16, None, servers.into());
    settings.pools[0].kind = PoolKind::Sharded {
        shards: shards.collect(),
        placement: placement.expect("a pool has servers"),
    };
    settings
}

/// Settings with the nodes of a Cluster, each with its share of the slots ([`Owners::said`]).
pub(crate) fn cluster(nodes: u16) -> Settings {
    let mut settings = settings();
    let seeds = (1..=nodes).map(|port| {
        ServerSettings::at(Address::Tcp {
            host: "server".to_owned(),
            port,
        })
    });
    settings.pools[0].kind = PoolKind::Cluster {
        seeds: seeds.collect(),
    };
    settings
}

/// Settings with this many servers: one, or several with keys divided by slots.
pub(crate) fn pool_of(servers: u16) -> Settings {
    match servers {
        1 => settings(),
        several => sharded(several),
    }
}

/// The prefix of the keys that the last server of [`parted`] has.
pub(crate) const OF_THE_LAST: &str = "k1";

/// Settings with this many servers, and one more for the keys that begin with [`OF_THE_LAST`].
pub(crate) fn parted(servers: u16) -> Settings {
    let mut settings = pool_of(servers);
    let first = settings.pools[0].kind.clone();
    let last = ServerSettings::at(Address::Tcp {
        host: "server".to_owned(),
        port: servers + 1,
    });
    let subpool = |prefix: &str, kind| PrefixPool {
        prefix: prefix.into(),
        strip: false,
        kind,
        reads: Reads::default(),
    };
    let subpools = vec![
        subpool("", first),
        subpool(OF_THE_LAST, PoolKind::Single(last)),
    ];
    settings.pools[0].kind = PoolKind::ByPrefix { subpools };
    settings
}

/// The id of a worker among `count`.
pub(crate) fn worker(index: usize, count: usize) -> WorkerId {
    WorkerId {
        index,
        count,
        seed: 7,
        process_id: 1,
        ports: Default::default(),
        started_at: 0,
    }
}

/// The address of a client with this port.
pub(crate) fn peer(port: u16) -> Peer {
    Peer::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
}

pub(crate) fn request<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode::request(&mut bytes, args);
    bytes
}

/// The bytes of requests, each given as words.
pub(crate) fn requests(all: &[&str]) -> Vec<u8> {
    all.iter()
        .flat_map(|words| request(&words.split(' ').collect::<Vec<_>>()))
        .collect()
}

/// Takes all whole requests out of bytes for a server, each as its arguments. Leaves the beginning
/// of the next one.
pub(crate) fn take_requests(sent: &mut Vec<u8>) -> Vec<Vec<String>> {
    let (mut requests, mut at) = (Vec::new(), 0);
    let mut scanner = RequestScanner::default();
    loop {
        let rest = &sent[at..];
        match scanner.scan(rest, true) {
            Ok(Found::Request { len }) => {
                let arg = |span: &Span| text(span.of(rest).to_vec());
                requests.push(scanner.spans().iter().map(arg).collect());
                at += len;
            }
            Ok(Found::More) => break,
            other => panic!("the engine sends arrays of arguments, not {other:?}"),
        }
    }
    sent.drain(..at);
    requests
}

/// The owners of keys, each by its place in the pool.
pub(crate) struct Owners {
    by: By,
    /// The server for the keys that begin with [`OF_THE_LAST`], if there is one.
    last: Option<usize>,
}

enum By {
    One,
    Placement(Placement),
    /// The servers are this many nodes of a Cluster.
    Slots(u16),
}

impl Owners {
    pub(crate) fn of(settings: &Settings) -> Owners {
        let (kind, has_last) = match &settings.pools[0].kind {
            PoolKind::ByPrefix { subpools } => (&subpools[0].kind, true),
            kind => (kind, false),
        };
        let (by, count) = match kind {
            PoolKind::Sharded { placement, shards } => {
                (By::Placement(placement.clone()), shards.len())
            }
            PoolKind::Single(_) => (By::One, 1),
            PoolKind::Cluster { seeds } => (By::Slots(seeds.len() as u16), seeds.len()),
            other => unreachable!("these tests have no {other:?}"),
        };
        let last = has_last.then_some(count);
        Owners { by, last }
    }

    /// Whether a request is divided by slots instead of servers.
    pub(crate) fn has_slots(&self) -> bool {
        matches!(self.by, By::Slots(_))
    }

    /// The reply of a Cluster's node to a question about the topology.
    pub(crate) fn said(&self, args: &[String]) -> Option<String> {
        let By::Slots(nodes) = self.by else {
            return None;
        };
        let slots = (0..nodes).map(|node| {
            let (first, last) = (share(node, nodes), share(node + 1, nodes) - 1);
            let (port, id) = (node + 1, format!("{node:040}"));
            format!("*3\r\n:{first}\r\n:{last}\r\n*3\r\n$6\r\nserver\r\n:{port}\r\n$40\r\n{id}\r\n")
        });
        let info = "cluster_state:ok\r\ncluster_slots_assigned:16384\r\ncluster_current_epoch:1\r\ncluster_my_epoch:1\r\n";
        match &args.join(" ")[..] {
            "CLUSTER SLOTS" => Some(format!("*{nodes}\r\n{}", slots.collect::<String>())),
            "CLUSTER INFO" => Some(format!("${}\r\n{info}\r\n", info.len())),
            _ => None,
        }
    }

    pub(crate) fn owner_of(&self, key: &str) -> usize {
        if let Some(last) = self.last.filter(|_| key.starts_with(OF_THE_LAST)) {
            return last;
        }
        match &self.by {
            By::One => 0,
            By::Placement(placement) => placement.server_of(key.as_bytes(), || 0),
            By::Slots(nodes) => {
                let ends = (1..*nodes).map(|node| share(node, *nodes));
                let slot = hash_slot(key.as_bytes());
                ends.filter(|end| *end <= slot).count()
            }
        }
    }

    /// A key of this server that begins with `beginning`, after the prefix of the last server if it
    /// is that one.
    pub(crate) fn key_at(&self, server: usize, beginning: &str) -> String {
        let first = match self.last == Some(server) {
            true => OF_THE_LAST,
            false => "",
        };
        let mut names = (0..).map(|number| format!("{first}{beginning}{number}"));
        let is_its = |name: &String| self.owner_of(name) == server;
        names.find(is_its).expect("each server owns keys")
    }
}

/// The first slot of a node.
fn share(node: u16, nodes: u16) -> u16 {
    (u32::from(SLOTS) * u32::from(node) / u32::from(nodes)) as u16
}

/// An engine, and its outputs.
pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) now: Time,
    /// The shared link to the first server.
    pub(crate) shared: LinkId,
    /// The shared links to all servers, in their order.
    pub(crate) all_shared: Vec<LinkId>,
    /// All actions but connects.
    pub(crate) actions: Vec<Action>,
    /// All events.
    pub(crate) events: Vec<Event>,
    /// The most bytes that were held at the end of a turn.
    pub(crate) held_most: u64,
    /// Clients that take no output.
    pub(crate) slow: HashSet<SessionId>,
    /// The usage that the driver reports in each tick.
    pub(crate) usage: Option<Usage>,
    /// Number of bytes that the sockets of some links still take, until the connection is lost.
    pub(crate) room: HashMap<LinkId, usize>,
    alone: bool,
    pub(crate) owners: Owners,
    /// The server that each link goes to, by its place in the pool.
    servers: HashMap<LinkId, usize>,
    connecting: Vec<LinkId>,
    /// Links with something to write.
    unwritten: Vec<LinkId>,
    got: HashMap<SessionId, Vec<u8>>,
    sent: HashMap<LinkId, Vec<u8>>,
}

impl World {
    /// The only worker, with its links up.
    pub(crate) fn new(settings: Settings) -> World {
        World::new_among(worker(0, 1), settings)
    }

    /// A worker, with its links up.
    pub(crate) fn new_among(worker: WorkerId, settings: Settings) -> World {
        let mut world = World::unconnected(worker, settings);
        for link in world.all_shared.clone() {
            world.up(link);
        }
        world
    }

    /// A worker whose links are not connected yet.
    pub(crate) fn unconnected(worker: WorkerId, settings: Settings) -> World {
        World::beside(Arc::default(), worker, settings)
    }

    /// A worker that shares subscriber counts with other workers. Its links are not connected yet.
    pub(crate) fn beside(
        directory: Arc<SubscriberCounts>,
        worker: WorkerId,
        settings: Settings,
    ) -> World {
        let owners = Owners::of(&settings);
        let engine = Engine::new(Arc::new(settings), worker.clone(), Time(0));
        let mut engine = engine.with_directory(directory);
        engine.begin_turn(Time(0));
        engine.end_turn();
        let (mut all_shared, mut servers) = (Vec::new(), HashMap::new());
        while let Some(Action::Connect { link, to }) = engine.poll_action() {
            all_shared.push(link);
            servers.insert(link, place_of(&to));
        }
        let [shared, ..] = all_shared[..] else {
            panic!("an engine connects to its servers first");
        };
        World {
            engine,
            now: Time(0),
            shared,
            all_shared,
            actions: Vec::new(),
            events: Vec::new(),
            held_most: 0,
            slow: HashSet::new(),
            usage: None,
            room: HashMap::new(),
            alone: worker.count == 1,
            owners,
            servers,
            connecting: Vec::new(),
            unwritten: Vec::new(),
            got: HashMap::new(),
            sent: HashMap::new(),
        }
    }

    /// Runs a turn, a millisecond after the last one, with these events.
    pub(crate) fn turn(&mut self, happens: impl FnOnce(&mut Engine)) {
        self.turn_at(self.now.plus_ms(1), happens);
    }

    pub(crate) fn turn_at(&mut self, now: Time, happens: impl FnOnce(&mut Engine)) {
        self.now = now;
        self.engine.begin_turn(now);
        if self.engine.is_tick_due() {
            self.engine.begin_tick(self.usage);
        }
        happens(&mut self.engine);
        self.engine.end_turn();
        self.held_most = self.held_most.max(self.engine.counters().held_bytes);
        let mut unwritten = std::mem::take(&mut self.unwritten);
        while let Some(link) = self.engine.poll_link() {
            if !unwritten.contains(&link) {
                unwritten.push(link);
            }
        }
        unwritten.retain(|link| !self.write_link(*link));
        self.unwritten = unwritten;
        while let Some(session) = self.engine.poll_session() {
            match self.slow.contains(&session) {
                true => self.engine.handle_session_full(session),
                false => self.take_output(session),
            }
        }
        while let Some(action) = self.engine.poll_action() {
            match action {
                Action::Connect { link, to } => {
                    self.servers.insert(link, place_of(&to));
                    self.connecting.push(link);
                }
                Action::Ask { .. } | Action::Answer { .. } if self.alone => {
                    unreachable!("a single worker has no queries for others")
                }
                other => {
                    if let Action::CloseLink(link) = other {
                        self.room.remove(&link);
                    }
                    self.actions.push(other);
                }
            }
        }
        while let Some(event) = self.engine.poll_event() {
            self.events.push(event);
        }
    }

    /// Writes as many bytes of a link as its socket has room for. Returns whether it took all.
    fn write_link(&mut self, link: LinkId) -> bool {
        let bytes = self.engine.link_output(link);
        let mut everything = bytes.len();
        let room = self.room.get_mut(&link).unwrap_or(&mut everything);
        let taken = &bytes[..bytes.len().min(*room)];
        *room -= taken.len();
        let (count, is_all) = (taken.len(), taken.len() == bytes.len());
        self.sent.entry(link).or_default().extend(taken);
        self.engine.handle_link_written(link, count);
        is_all
    }

    fn take_output(&mut self, session: SessionId) {
        let bytes = self.engine.session_output(session).to_vec();
        self.engine.handle_session_written(session, bytes.len());
        self.got.entry(session).or_default().extend(bytes);
    }

    /// A slow client takes all its output, and is slow no more.
    pub(crate) fn takes(&mut self, session: SessionId) {
        self.slow.remove(&session);
        self.engine.begin_turn(self.now);
        self.take_output(session);
        self.turn(|_| {});
    }

    /// The nodes of a Cluster answer the questions about the owners of slots.
    pub(crate) fn know_owners(&mut self) {
        for _ in 0..40 {
            self.wait_ms(50);
            for link in self.all_shared.clone() {
                for args in self.asked(link) {
                    if let Some(said) = self.owners.said(&args) {
                        self.says(link, said);
                    }
                }
            }
        }
    }

    /// Lets time pass with nothing but ticks.
    pub(crate) fn wait_ms(&mut self, ms: u32) {
        for _ in 0..ms.div_ceil(TICK_MS) {
            self.turn_at(self.now.plus_ms(TICK_MS), |_| {});
        }
    }

    pub(crate) fn accept(&mut self) -> SessionId {
        self.engine.handle_accept(peer(1), 0)
    }

    /// Runs a turn in which a client sends these bytes.
    pub(crate) fn sends(&mut self, session: SessionId, bytes: &[u8]) {
        self.turn(|engine| engine.handle_session_bytes(session, bytes));
    }

    /// Runs a turn in which a client sends these requests, given as words.
    pub(crate) fn asks(&mut self, session: SessionId, all: &[&str]) {
        self.sends(session, &requests(all));
    }

    /// The server allows these commands when it is asked; the answers count for a second.
    pub(crate) fn may_ask(&mut self, session: SessionId, all: &[&str]) {
        for one in all {
            self.asks(session, &[one]);
            self.says(self.shared, "+OK\r\n");
        }
        self.got(session);
        self.sent(self.shared);
    }

    /// Runs a turn in which a server sends these bytes.
    pub(crate) fn says(&mut self, link: LinkId, bytes: impl AsRef<[u8]>) {
        self.turn(|engine| engine.handle_link_bytes(link, bytes.as_ref()));
    }

    /// A link is connected, and the server accepts its handshake.
    pub(crate) fn up(&mut self, link: LinkId) {
        self.turn(|engine| engine.handle_link_up(link));
        let selects = self.sent(link).contains("SELECT");
        self.says(link, [HELLO, if selects { "+OK\r\n" } else { "" }].concat());
    }

    /// A link's connection is lost, or cannot be made.
    pub(crate) fn lose(&mut self, link: LinkId) {
        self.room.remove(&link);
        self.turn(|engine| engine.handle_link_lost(link, "gone"));
    }

    /// Connects the one link that waits for it.
    pub(crate) fn connect(&mut self) -> LinkId {
        let [link] = self.connecting()[..] else {
            panic!("one link is to be connected");
        };
        self.up(link);
        link
    }

    /// The two links that replace an unread one: the shared one, and one for requests that are sent
    /// again.
    pub(crate) fn replacing(&mut self) -> [LinkId; 2] {
        let [shared, own] = self.connecting()[..] else {
            panic!("two links are to be connected");
        };
        [shared, own]
    }

    /// Every server shows that GETs and SETs may be fused.
    pub(crate) fn see_rights(&mut self) {
        let session = self.accept();
        for (at, link) in self.all_shared.clone().into_iter().enumerate() {
            let key = self.key_at(at, "tried");
            let asked = [
                (format!("GET {key}"), "$1\r\nv\r\n"),
                (format!("SET {key} v"), "+OK\r\n"),
            ];
            for (request, reply) in asked {
                let both = [request.as_str(); 2];
                self.asks(session, &both);
                assert_eq!(self.sent(link).as_bytes(), requests(&both));
                self.says(link, reply.repeat(2));
                assert_eq!(self.got(session), reply.repeat(2));
            }
        }
        self.turn(|engine| engine.handle_session_lost(session));
    }

    /// A world with one pinned link, which is taken, and a session in it: respool polls the
    /// session's blocking commands.
    pub(crate) fn with_polled_commands() -> (World, SessionId) {
        let mut settings = settings();
        settings.limits.pinned_links_max = 1;
        let mut world = World::new(settings);
        let [holds, waits] = [world.accept(), world.accept()];
        world.opens_transactions(waits);
        world.asks(holds, &["BLPOP q 0"]);
        world.connect();
        (world, waits)
    }

    /// A session executes its first transaction: the server says that its user may open them.
    pub(crate) fn opens_transactions(&mut self, session: SessionId) {
        self.asks(session, &["MULTI", "SET k v", "EXEC"]);
        for said in [
            "-NOPERM no\r\n",
            "+OK\r\n*0\r\n",
            "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n",
        ] {
            if !self.sent(self.shared).is_empty() {
                self.says(self.shared, said);
            }
        }
        assert!(self.got(session).ends_with("*1\r\n+OK\r\n"));
    }

    /// A server answers the questions before its first transaction: its commands, and whether the
    /// user may open a transaction.
    pub(crate) fn allows_transactions(&mut self, link: LinkId) {
        for _ in 0..5 {
            for args in self.asked(link) {
                let said = match args[0].as_str() {
                    "COMMAND" => "-NOPERM no\r\n",
                    "EXEC" => "*0\r\n",
                    _ => "+OK\r\n",
                };
                self.says(link, said);
            }
        }
    }

    /// The owner of a key, see [`Owners`].
    pub(crate) fn owner_of(&self, key: &str) -> usize {
        self.owners.owner_of(key)
    }

    pub(crate) fn key_at(&self, server: usize, beginning: &str) -> String {
        self.owners.key_at(server, beginning)
    }

    /// The server that a link goes to, by its place in the pool.
    pub(crate) fn server_of(&self, link: LinkId) -> usize {
        self.servers[&link]
    }

    /// Links that were to be connected since the last call.
    pub(crate) fn connecting(&mut self) -> Vec<LinkId> {
        std::mem::take(&mut self.connecting)
    }

    /// Output of a client since the last call.
    pub(crate) fn got(&mut self, session: SessionId) -> String {
        text(self.got.remove(&session).unwrap_or_default())
    }

    /// Bytes for a server on a link since the last call.
    pub(crate) fn sent(&mut self, link: LinkId) -> String {
        text(self.sent.remove(&link).unwrap_or_default())
    }

    /// Whole requests for a server on a link since the last call.
    pub(crate) fn asked(&mut self, link: LinkId) -> Vec<Vec<String>> {
        take_requests(self.sent.entry(link).or_default())
    }

    /// Whether the driver was last told to read a link.
    pub(crate) fn is_read(&self, link: LinkId) -> bool {
        let switched = self.actions.iter().rev().find_map(|action| match action {
            Action::ReadLink(id, on) if *id == link => Some(*on),
            _ => None,
        });
        switched.unwrap_or(true)
    }

    pub(crate) fn closed_links(&self) -> Vec<LinkId> {
        let closed = |action: &Action| match action {
            Action::CloseLink(link) => Some(*link),
            _ => None,
        };
        self.actions.iter().filter_map(closed).collect()
    }

    /// Why the engine has closed a session. `None`: it is open, or there is no reason.
    pub(crate) fn close_reason(&self, of: SessionId) -> Option<CloseReason> {
        let mut actions = self.actions.iter();
        actions.find_map(|action| match action {
            Action::CloseSession {
                session, reason, ..
            } if *session == of => reason.clone(),
            _ => None,
        })
    }

    pub(crate) fn closed_sessions(&self) -> Vec<SessionId> {
        let closed = |action: &Action| match action {
            Action::CloseSession { session, .. } => Some(*session),
            _ => None,
        };
        self.actions.iter().filter_map(closed).collect()
    }
}

/// The place of a server, by its port: ports begin at 1.
pub(crate) fn place_of(address: &Address) -> usize {
    match address {
        Address::Tcp { port, .. } => usize::from(*port) - 1,
        Address::Unix(path) => unreachable!("no server listens at {path:?}"),
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("these tests speak text")
}

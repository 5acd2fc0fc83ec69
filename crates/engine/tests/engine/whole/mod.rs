//! Whole sessions before servers with right and wrong replies, at extreme limits. A stream of
//! choices decides every step: that of a seed in the test `extremes`, that of a fuzzer in the
//! target `sessions`.
//!
//! [`run`] drives one engine by its public surface and panics where the engine breaks a rule:
//! - each client gets RESP, at most one reply for a request, in the order of its requests;
//! - each server gets whole requests;
//! - no bound is passed at the end of a turn, and no turn asks for another one at once for ever;
//! - when all sessions are closed, nothing is held for them.

#![allow(dead_code, reason = "the test and the fuzz target each use a part")]

mod choices;
mod clients;
mod pools;
mod servers;

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use respool_engine::limits::{
    EMERGENCY_LINKS_PER_SERVER, LINKS_PER_SERVER, LOGIN_PROBES_PER_SERVER,
    TAKEOVER_LINKS_PER_SERVER,
};
use respool_engine::settings::{Address, Settings};
use respool_engine::{
    Action, AdminQuery, ClientLines, Engine, Peer, SessionId, TargetQuery, Time, WorkerId,
    WorkerQuery, WorkerReply,
};

pub(crate) use choices::Choices;
use clients::Client;
pub(crate) use pools::Kind;
use servers::{Connection, Servers};

/// Number of clients that are connected at once, at most.
const CLIENTS_MAX: usize = 6;
/// Number of turns that the engine may ask for at once, one after the other.
const TURNS_AT_ONCE_MAX: usize = 1_000;
/// Bytes that one turn may add for each session before the engine checks its bounds: one read of a
/// link, and as many bytes for the replies made of it.
const TURN_BYTES: u64 = 2 * (256 << 10);

/// Runs a history of this many steps.
pub(crate) fn run(mut choices: Choices<'_>, kind: Option<Kind>, steps: usize, is_shown: bool) {
    let kind = kind.unwrap_or_else(|| choices.of(&Kind::ALL));
    let settings = Arc::new(pools::settings(&mut choices, kind));
    let has_nodes = format!("{:?}", settings.pools[0].kind).contains("Cluster {");
    let servers = Servers::new(&mut choices, has_nodes);
    if is_shown {
        println!("{settings:#?}");
    }
    let worker = WorkerId {
        index: 0,
        count: 1 + choices.below(2),
        seed: 7,
        process_id: 1,
        ports: Default::default(),
        started_at: 0,
    };
    let mut whole = Whole {
        choices,
        engine: Engine::new(settings.clone(), worker, Time(0)),
        settings,
        now: Time(0),
        clients: Vec::new(),
        servers,
        unwritten: Vec::new(),
        questions: Vec::new(),
        addresses: HashSet::new(),
        is_shown,
    };
    whole.turn(|_| {});
    for _ in 0..steps {
        if whole.choices.has_ended() {
            break;
        }
        whole.step();
    }
    whole.end();
}

struct Whole<'a> {
    choices: Choices<'a>,
    engine: Engine,
    settings: Arc<Settings>,
    now: Time,
    clients: Vec<Client>,
    servers: Servers,
    /// Sessions whose client has not taken all output.
    unwritten: Vec<SessionId>,
    /// Queries to the other worker.
    questions: Vec<(u64, WorkerQuery)>,
    /// Addresses to which the engine has connected.
    addresses: HashSet<Address>,
    /// Whether each step is printed.
    is_shown: bool,
}

impl Whole<'_> {
    fn step(&mut self) {
        match self.choices.below(24) {
            0 if self.clients.len() < CLIENTS_MAX => self.accept(),
            _ if self.clients.is_empty() => self.accept(),
            1..=6 => self.client_sends(),
            7..=12 => self.server_speaks(),
            13 if self.choices.one_in(6) => self.lose_link(),
            14 if self.choices.one_in(6) => self.lose_client(),
            15 => {
                let ms = self.choices.of(&[1, 50, 60, 500, 3_000, 31_000]);
                self.now = self.now.plus_ms(ms);
                self.turn(|_| {});
            }
            16 => self.client_takes(),
            17 => self.workers_talk(),
            18 if self.choices.one_in(8) => self.servers.change_owners(&mut self.choices),
            19 if self.choices.one_in(64) => self.turn(Engine::handle_drain),
            20 if !self.clients.is_empty() => {
                let at = self.choices.below(self.clients.len());
                self.clients[at].is_slow = self.choices.one_in(2);
            }
            _ => self.connect(),
        }
    }

    /// Runs a turn, and those that the engine asks for at once.
    fn turn(&mut self, happens: impl FnOnce(&mut Engine)) {
        self.turn_at(self.now.plus_ms(1), happens);
        for _ in 0..TURNS_AT_ONCE_MAX {
            if self.engine.deadline().is_none_or(|at| at > self.now) {
                return;
            }
            self.turn_at(self.now + 10, |_| {});
        }
        panic!("the engine asks for turns at once for ever");
    }

    fn show(&self, label: &str, id: impl std::fmt::Debug, bytes: &[u8]) {
        if self.is_shown {
            let shown = bytes[..bytes.len().min(300)].escape_ascii();
            println!(
                "{:>9} us {label} {id:?}: {} bytes {shown}",
                self.now.0,
                bytes.len()
            );
        }
    }

    fn turn_at(&mut self, now: Time, happens: impl FnOnce(&mut Engine)) {
        self.now = now;
        self.engine.begin_turn(now);
        if self.engine.is_tick_due() {
            self.engine.begin_tick(None);
        }
        happens(&mut self.engine);
        self.engine.end_turn();
        self.check_bounds();
        while let Some(link) = self.engine.poll_link() {
            let output = self.engine.link_output(link);
            let len = output.len();
            self.show("server gets", link, output);
            if let Some(at) = self.servers.position(link) {
                self.servers.connections[at].take(output);
            }
            if len > 0 {
                self.engine.handle_link_written(link, len);
            }
        }
        while let Some(session) = self.engine.poll_session() {
            self.write_session(session);
        }
        while let Some(action) = self.engine.poll_action() {
            self.act(action);
        }
        while let Some(session) = self.engine.poll_session() {
            self.write_session(session);
        }
        while let Some(event) = self.engine.poll_event() {
            self.show("event", event, b"");
        }
    }

    fn act(&mut self, action: Action) {
        self.show("action", &action, b"");
        match action {
            Action::Connect { link, to } => {
                assert_eq!(
                    self.servers.position(link),
                    None,
                    "a link has two connections"
                );
                self.servers.connections.push(Connection::new(link, &to));
                self.addresses.insert(to);
            }
            Action::CloseLink(link) => {
                let all = &mut self.servers.connections;
                all.retain(|connection| connection.link != link);
            }
            Action::EndLink(link) => {
                if let Some(at) = self.servers.position(link) {
                    self.servers.connections[at].has_ended = true;
                }
            }
            Action::ReadLink(link, is_read) => {
                if let Some(at) = self.servers.position(link) {
                    self.servers.connections[at].is_read = is_read;
                }
            }
            Action::CloseSession { session, .. } => {
                self.clients.retain(|client| client.session != session);
                self.unwritten.retain(|unwritten| *unwritten != session);
            }
            Action::ReadSession(session, is_read) => {
                if let Some(client) = self.client_mut(session) {
                    client.is_read = is_read;
                }
            }
            Action::Ask { ticket, question } => self.questions.push((ticket, question)),
            Action::Answer { .. } | Action::ForgetPool(_) => {}
        }
    }

    fn client_mut(&mut self, session: SessionId) -> Option<&mut Client> {
        let mut all = self.clients.iter_mut();
        all.find(|client| client.session == session)
    }

    /// A client's socket takes all output. That of a slow one takes none for now.
    fn write_session(&mut self, session: SessionId) {
        let slow = self
            .client_mut(session)
            .is_some_and(|client| client.is_slow);
        if slow {
            if !self.unwritten.contains(&session) {
                self.unwritten.push(session);
            }
        } else {
            self.take_output(session, usize::MAX);
        }
    }

    fn take_output(&mut self, session: SessionId, most: usize) {
        let output = self.engine.session_output(session);
        let bytes = output[..output.len().min(most)].to_vec();
        self.show("client gets", session, &bytes);
        if let Some(client) = self.client_mut(session) {
            client.take(&bytes);
        }
        if !bytes.is_empty() {
            self.engine.handle_session_written(session, bytes.len());
        }
    }

    fn client_takes(&mut self) {
        if self.unwritten.is_empty() {
            return;
        }
        let at = self.choices.below(self.unwritten.len());
        let session = self.unwritten[at];
        let len = self.engine.session_output(session).len();
        let count = self.choices.piece_of(len);
        self.engine.begin_turn(self.now);
        self.take_output(session, count);
        if count == len {
            self.unwritten.retain(|unwritten| *unwritten != session);
        }
        self.turn(|_| {});
    }

    fn accept(&mut self) {
        let peer = Peer::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1));
        let session = self.engine.handle_accept(peer, 0);
        self.clients.push(Client::new(session));
        self.turn(|_| {});
    }

    fn client_sends(&mut self) {
        let at = self.choices.below(self.clients.len());
        let client = &mut self.clients[at];
        if client.is_read {
            let session = client.session;
            let bytes = client.send(&mut self.choices);
            self.show("client sends", session, &bytes);
            self.turn(|engine| engine.handle_session_bytes(session, &bytes));
        }
    }

    fn server_speaks(&mut self) {
        let all = self.servers.connections.iter().enumerate();
        let able = |(_, connection): &(usize, &Connection)| connection.is_up && connection.is_read;
        let able: Vec<usize> = all.filter(able).map(|(at, _)| at).collect();
        if able.is_empty() {
            return self.connect();
        }
        let at = self.choices.of(&able);
        if self.servers.connections[at].says.is_empty() {
            match self.choices.below(12) {
                0 => self.servers.speak(at, &mut self.choices),
                _ => {
                    for _ in 0..=self.choices.below(6) {
                        self.servers.answer(at, &mut self.choices);
                    }
                }
            }
        }
        self.server_says(at);
    }

    /// The engine reads a piece of a server's output.
    fn server_says(&mut self, at: usize) {
        let connection = &mut self.servers.connections[at];
        let count = self.choices.piece_of(connection.says.len()).min(256 << 10);
        if count > 0 {
            let link = connection.link;
            let bytes: Vec<u8> = connection.says.drain(..count).collect();
            self.show("server says", link, &bytes);
            self.turn(|engine| engine.handle_link_bytes(link, &bytes));
        }
    }

    /// A link is connected, and mostly answered at once, or fails to connect.
    fn connect(&mut self) {
        let mut all = self.servers.connections.iter();
        let Some(at) = all.position(|connection| !connection.is_up) else {
            return self.turn(|_| {});
        };
        let link = self.servers.connections[at].link;
        if self.choices.one_in(8) {
            self.servers.connections.remove(at);
            return self.turn(|engine| engine.handle_link_lost(link, "refused"));
        }
        self.servers.connections[at].is_up = true;
        self.turn(|engine| engine.handle_link_up(link));
        if !self.choices.one_in(6)
            && let Some(at) = self.servers.position(link)
        {
            for _ in 0..3 {
                self.servers.answer(at, &mut self.choices);
            }
            self.server_says(at);
        }
    }

    fn lose_link(&mut self) {
        if !self.servers.connections.is_empty() {
            let at = self.choices.below(self.servers.connections.len());
            let link = self.servers.connections.remove(at).link;
            self.show("link lost", link, b"");
            self.turn(|engine| engine.handle_link_lost(link, "gone"));
        }
    }

    fn lose_client(&mut self) {
        let at = self.choices.below(self.clients.len());
        let client = &self.clients[at];
        let (session, is_read) = (client.session, client.is_read);
        match self.choices.below(3) {
            0 if is_read => self.turn(|engine| engine.handle_session_end(session)),
            1 if !is_read => self.turn(|engine| engine.handle_session_hangup(session)),
            _ => {
                self.clients.swap_remove(at);
                self.unwritten.retain(|unwritten| *unwritten != session);
                self.turn(|engine| engine.handle_session_lost(session));
            }
        }
    }

    /// The other worker answers, or sends a query.
    fn workers_talk(&mut self) {
        if self.settings.limits.sessions_max == 0 {
            return;
        }
        if let Some((ticket, question)) = self.questions.pop() {
            let answer = match question {
                WorkerQuery::Admin(AdminQuery::List(_)) => {
                    WorkerReply::Lines(ClientLines::default())
                }
                _ => WorkerReply::Count(self.choices.below(2) as u64),
            };
            return self.turn(|engine| engine.handle_answer(ticket, answer));
        }
        let until = self.now.plus_ms(100);
        let pool = 0;
        let question = match self.choices.below(4) {
            0 => WorkerQuery::Admin(AdminQuery::Pause {
                pool,
                until,
                all: self.choices.one_in(2),
            }),
            1 => WorkerQuery::Admin(AdminQuery::Unpause { pool }),
            2 => WorkerQuery::Target(TargetQuery::Find { to: 1, pool }),
            _ => WorkerQuery::Target(TargetQuery::Push {
                to: 1,
                push: b">2\r\n$10\r\ninvalidate\r\n_\r\n".to_vec(),
            }),
        };
        self.turn(|engine| engine.handle_question(1, 77, question));
    }

    fn check_bounds(&self) {
        let (limits, counters) = (&self.settings.limits, self.engine.counters());
        let servers = self.addresses.len() + 2;
        let beside =
            LOGIN_PROBES_PER_SERVER + EMERGENCY_LINKS_PER_SERVER + TAKEOVER_LINKS_PER_SERVER;
        let beside = servers * beside;
        let links = (limits.links_max as usize).max(LINKS_PER_SERVER * servers);
        let most = links + limits.pinned_links_max as usize + beside;
        assert!(
            counters.links <= most as u64,
            "{} of {most} links",
            counters.links
        );
        let (most, count) = (limits.worker_subscriptions_max, counters.subscriptions);
        assert!(count <= most.into(), "{count} subscriptions of {most}");
        let most = limits.worker_memory_bytes_max;
        let held = counters.held_bytes;
        assert!(held <= most + most / 8, "{held} bytes held of {most}");
        let each = 3 * u64::from(limits.session_output_hard_bytes)
            + u64::from(limits.request_held_bytes_max)
            + u64::from(limits.transaction_bytes_max)
            + TURN_BYTES;
        let most = each * (self.clients.len() as u64 + 1);
        assert!(
            held <= most,
            "{held} bytes held for {} clients",
            self.clients.len()
        );
    }

    /// All sessions end, and the engine must hold nothing for them.
    fn end(mut self) {
        self.servers.heal();
        while let Some(client) = self.clients.pop() {
            self.turn(|engine| engine.handle_session_lost(client.session));
        }
        let counters = self.engine.counters();
        assert_eq!(counters.sessions, 0, "sessions");
        assert_eq!(counters.held_bytes, 0, "bytes held for no session");
        assert_eq!(counters.subscriptions, 0, "subscriptions of no session");
    }
}

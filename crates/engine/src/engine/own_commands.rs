//! Commands that respool answers itself: the answers, and their effects on several components.

use std::borrow::Cow;

use respool_protocol::commands::{CommandId, id};
use respool_protocol::encode::{self, Version};
use respool_protocol::number;

use crate::base::counters::Counters;
use crate::base::error_text::unknown_subcommand_before_7;
use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::local::LocalCompletion;
use crate::data_plane::completion::pinned::PinnedCompletion;
use crate::data_plane::completion::pubsub::ChannelKind;
use crate::data_plane::hello::HelloArgs;
use crate::data_plane::ingress::{Blocked, Dispatched, OK, Request};
use crate::data_plane::link::{Link, LinkKind, LinkState};
use crate::data_plane::session::{Flags, Pins, Session};
use crate::engine::Engine;
use crate::local::info::{InfoFacts, adds_our_section, asks_for_us_alone, own_section};

/// The outcome of a session's change to another database or version of the protocol.
enum DatabaseChange {
    Done,
    Wait,
    /// With the error reply.
    Failed(Vec<u8>),
    /// No server can be reached; with the error reply.
    Away(Vec<u8>),
}

/// A single server's error to a database that it does not have.
const NO_DB: &[u8] = b"ERR DB index is out of range";
/// The error of a Cluster's node to any database but the first one.
const OF_NODE: &[u8] = b"-ERR SELECT is not allowed in cluster mode";

impl Engine {
    /// Answers a request whose command the table gives to us.
    pub(crate) fn answer_locally(
        &mut self,
        session_id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        match request.id {
            // In a subscription PING has its own reply; within a transaction it goes to the server.
            id::PING if self.plane.is_restricted(session_id) => {
                self.pubsub
                    .pong_in_subscription(&mut self.plane, session_id, request)
            }
            id::PING => self
                .plane
                .dispatch_on_link(session_id, request.bytes, true, None),
            id::QUIT => {
                self.plane.answer_reply(session_id, b"+OK\r\n");
                self.plane.close_when_answered(session_id);
                Dispatched::Done
            }
            id::SELECT => self.select(session_id, request),
            id::AUTH => self.auth(session_id, request),
            id::HELLO => self.hello(session_id, request),
            id::RESET => self.reset(session_id),
            id::INFO => self.info(session_id, request),
            id::CLIENT_ID => self.answer_in_order(session_id, |out, session| {
                encode::integer(out, session.id as i64);
            }),
            id::CLIENT_GETNAME => {
                self.answer_in_order(session_id, |out, session| match &session.rare {
                    Some(rare) if !rare.name.is_empty() => encode::bulk(out, &rare.name),
                    _ => encode::null(out, session.version),
                })
            }
            id::CLIENT_SETNAME => {
                match self
                    .local
                    .client_setname(&mut self.plane, session_id, request)
                {
                    Ok(()) => self.answer_in_order(session_id, |out, _| out.extend_from_slice(OK)),
                    Err(placed) => placed,
                }
            }
            id::CLIENT_SETINFO => self.local.set_info(&mut self.plane, session_id, request),
            id::MULTI | id::EXEC | id::DISCARD | id::WATCH | id::UNWATCH => {
                self.answer_transaction(session_id, request)
            }
            id::SUBSCRIBE
            | id::UNSUBSCRIBE
            | id::PSUBSCRIBE
            | id::PUNSUBSCRIBE
            | id::SSUBSCRIBE
            | id::SUNSUBSCRIBE => {
                let (kind, adds) = subscription_of(request.id);
                self.change_subscriptions(session_id, request, kind, adds)
            }
            id::MONITOR => self.pinned.monitor(&mut self.plane, session_id, request),
            id::CLIENT_GETREDIR | id::CLIENT_TRACKINGINFO => self.plane.dispatch_on_link(
                session_id,
                request.bytes,
                false,
                Some(Completion::Pinned(PinnedCompletion::NameTold)),
            ),
            id::CLIENT_REPLY => self
                .local
                .client_reply(&mut self.plane, session_id, request),
            id::CLIENT_TRACKING => self.client_tracking(session_id, request),
            id::CLIENT_NO_TOUCH | id::CLIENT_IMPORT_SOURCE => self.switch(session_id, request),
            id::READONLY | id::READWRITE | id::ASKING => {
                self.local
                    .answer_reading_mode(&mut self.plane, session_id, request)
            }
            // respool makes no use of a client's capabilities, such as redirects.
            id::CLIENT_CAPA => self.plane.answer_reply(session_id, OK),
            // The subcommand is unknown. Newer servers have refused it before.
            id::CLIENT => self.plane.answer_error(
                session_id,
                &unknown_subcommand_before_7(request.arg(0), request.arg(1)),
            ),
            id::CLIENT_INFO
            | id::CLIENT_LIST
            | id::CLIENT_KILL
            | id::CLIENT_PAUSE
            | id::CLIENT_UNPAUSE
            | id::CLIENT_UNBLOCK
            | id::CLIENT_NO_EVICT => self.answer_clients(session_id, request),
            _ => {
                let text = format!("ERR respool: '{}' is not supported", request.command.name);
                self.plane.answer_error(session_id, text.as_bytes())
            }
        }
    }

    /// Answers a request behind all bytes that the server has sent to the session before. A client
    /// that tracks keys takes any reply as a sign that it has got all invalidations until then.
    fn answer_in_order(
        &mut self,
        id: SessionId,
        write: impl FnOnce(&mut Vec<u8>, &Session),
    ) -> Dispatched {
        let Some(session) = self.plane.sessions.get(id) else {
            return Dispatched::Done;
        };
        let is_told = session.pins.any(Pins::TRACKING) && session.version == Version::Resp3;
        let is_up = self.plane.links.get(session.link).is_some_and(Link::is_up);
        if !is_told || !is_up || session.flags.any(Flags::STEPS) {
            return self.plane.answer_with(id, write);
        }
        let (mut answer, mut ping) = (Vec::new(), Vec::new());
        write(&mut answer, session);
        encode::request(&mut ping, &["PING"]);
        self.plane
            .dispatch_on_link(id, &ping, true, Some(Completion::Instead(answer)))
    }

    fn select(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        let Some(index) = number::parse(request.arg(1)) else {
            return self
                .plane
                .answer_error(id, b"ERR value is not an integer or out of range");
        };
        if i32::try_from(index).is_err() {
            let text = b"ERR value is out of range, value must between -2147483648 and 2147483647";
            return self.plane.answer_error(id, text);
        }
        let Ok(db) = u32::try_from(index) else {
            return self.plane.answer_error(id, NO_DB);
        };
        let Some(session) = self.plane.sessions.get(id) else {
            return Dispatched::Done;
        };
        let version = session.version;
        if session.pins.bind() {
            let placed = self.plane.dispatch_on_link(
                id,
                request.bytes,
                false,
                Some(Completion::Local(LocalCompletion::Select(db))),
            );
            self.plane.hold_until_caught_up(id);
            return placed;
        }
        match self.move_to(id, version, db) {
            DatabaseChange::Done => self.plane.answer_reply(id, OK),
            DatabaseChange::Wait => Dispatched::Wait,
            DatabaseChange::Failed(reply) | DatabaseChange::Away(reply) => {
                let reply = self.refusal_of_database(id, &reply).into_owned();
                self.plane.answer_reply(id, &reply)
            }
        }
    }

    /// The reply to a SELECT as the session may see it: a single server does not mention a Cluster.
    pub(crate) fn refusal_of_database<'a>(&self, id: SessionId, reply: &'a [u8]) -> Cow<'a, [u8]> {
        if !reply.starts_with(OF_NODE) || !self.plane.hides_nodes(id) {
            return reply.into();
        }
        let mut refusal = Vec::new();
        encode::error(&mut refusal, NO_DB);
        refusal.into()
    }

    /// Gives a session another database or protocol version. That is another link, which has to
    /// prove that its server agrees.
    fn move_to(&mut self, id: SessionId, version: Version, db: u32) -> DatabaseChange {
        let Some(session) = self.plane.sessions.get(id) else {
            return DatabaseChange::Done;
        };
        if (session.version, session.db) == (version, db) {
            return DatabaseChange::Done;
        }
        let pinned = session.pins.bind();
        if let Some(node) = self
            .plane
            .pools
            .node_among(session.pool.into())
            .filter(|_| !pinned)
        {
            // The node with the fewest databases decides whether the index is valid.
            self.plane.switch_server(id, node);
        }
        if self.plane.hold_until_caught_up(id) {
            return DatabaseChange::Wait;
        }
        let Some(session) = self.plane.sessions.get(id) else {
            return DatabaseChange::Done;
        };
        let kind = self.plane.shared_kind_of(session);
        if pinned {
            // The pinned link changes with its session.
            let mut request = Vec::new();
            encode::request(&mut request, &["HELLO", &version.number().to_string()]);
            return match self.plane.ask_for_ourselves(id, &request, Completion::Pass) {
                Ok(link) => {
                    if let Some(link) = self.plane.links.get_mut(link) {
                        link.kind.version = version;
                    }
                    if let Some(session) = self.plane.sessions.get_mut(id) {
                        session.version = version;
                    }
                    DatabaseChange::Done
                }
                Err(Blocked::Wait) => DatabaseChange::Wait,
                Err(Blocked::Refused(reply)) => DatabaseChange::Failed(reply),
            };
        }
        let kind = LinkKind {
            version,
            db,
            ..kind
        };
        let link = match self.plane.shared_link_for(id, kind) {
            Ok(link) => link,
            Err(Blocked::Wait) => return DatabaseChange::Wait,
            Err(Blocked::Refused(reply)) => return DatabaseChange::Failed(reply),
        };
        let Some(state) = self.plane.links.get(link) else {
            return DatabaseChange::Wait;
        };
        match &state.state {
            LinkState::Up => {
                self.plane.attach(id, link);
                if let Some(session) = self.plane.sessions.get_mut(id) {
                    session.version = version;
                    session.db = db;
                }
                return DatabaseChange::Done;
            }
            LinkState::Backoff { .. } => {
                // A server's refusal of our SELECT or HELLO is its reply to the client's.
                let refusal = state.refusal.as_deref().filter(|text| {
                    [
                        b"ERR DB index".as_slice(),
                        b"ERR SELECT",
                        b"NOPROTO",
                        b"NOAUTH",
                    ]
                    .iter()
                    .any(|start| text.starts_with(start))
                });
                return match refusal {
                    Some(text) => {
                        let mut reply = Vec::new();
                        encode::error(&mut reply, text);
                        DatabaseChange::Failed(reply)
                    }
                    None => {
                        let reply = self.plane.no_link_reply(link, self.plane.away_error(id));
                        match state.refusal.is_some() {
                            true => DatabaseChange::Failed(reply),
                            false => DatabaseChange::Away(reply),
                        }
                    }
                };
            }
            LinkState::Down
            | LinkState::Lost
            | LinkState::Retrying { .. }
            | LinkState::Connecting { .. }
            | LinkState::Greeting { .. } => {}
        }
        match self.plane.wait_until_up(id, link) {
            Ok(()) => DatabaseChange::Wait,
            Err(reply) => DatabaseChange::Away(reply),
        }
    }

    fn hello(&mut self, session_id: SessionId, request: &Request<'_>) -> Dispatched {
        let Some(session) = self.plane.sessions.get(session_id) else {
            return Dispatched::Done;
        };
        let hello = match HelloArgs::read(request) {
            Ok(hello) => hello,
            Err(text) => return self.plane.answer_error(session_id, &text),
        };
        let (db, version) = (session.db, hello.version.unwrap_or(session.version));
        if let Some((user, password)) = hello.credentials
            && self.plane.settings.users.is_empty()
        {
            let rest = (version, hello.without_credentials());
            return self.log_in(session_id, (Some(user), password), Some(rest));
        }
        if let Some((user, password)) = hello.credentials
            && let Err(placed) =
                self.access
                    .authenticate(&mut self.plane, session_id, user, password)
        {
            return placed;
        }
        if let Some(placed) = self.local.refuse_without_login(&mut self.plane, session_id) {
            return placed;
        }
        match self.move_to(session_id, version, db) {
            DatabaseChange::Done => self.pubsub.restrict(&mut self.plane, session_id),
            DatabaseChange::Wait => return Dispatched::Wait,
            DatabaseChange::Failed(reply) => return self.plane.answer_reply(session_id, &reply),
            DatabaseChange::Away(_) => {
                return self.plane.close_greeting(session_id);
            }
        }
        self.local.greet(&mut self.plane, session_id, hello.name)
    }

    /// RESET: the session becomes as a new one.
    pub(crate) fn reset(&mut self, id: SessionId) -> Dispatched {
        let Some(server) = self.plane.sessions.get(id).map(|session| session.server) else {
            return Dispatched::Done;
        };
        if self.plane.hold_until_caught_up(id) {
            return Dispatched::Wait;
        }
        self.pubsub.leave_all(&mut self.plane, id);
        self.pinned.set_redirect(&mut self.plane, id, None);
        let first = self.plane.first_link(server);
        let link = self.plane.shared_link(first).unwrap_or(LinkId::NONE);
        self.transactions.end_transaction(&mut self.plane, id);
        let own = self.plane.reset_modes(id);
        self.pinned.drop_tracker(&mut self.plane, id);
        self.plane.attach(id, link);
        if let Some(own) = own {
            if let Some(link) = self.plane.links.get_mut(own) {
                link.tainted = true;
            }
            self.pinned.give_back(&mut self.plane, own);
        }
        self.plane.reset_identity(id, first);
        self.plane.answer_reply(id, b"+RESET\r\n")
    }

    /// INFO: the server's sections and respool's; only respool's if the client asks for no other.
    fn info(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        if asks_for_us_alone(request) {
            if let Some(placed) = self.local.refused_by_right(&mut self.plane, id, request) {
                return placed;
            }
            let text = self.our_section(id);
            return self.plane.answer_with(id, |out, session| {
                encode::verbatim(out, session.version, &text)
            });
        }
        let ours = adds_our_section(request);
        let looks_into = ours || self.plane.has_nodes(id);
        let completion = looks_into.then_some(Completion::Local(LocalCompletion::Info { ours }));
        self.plane
            .dispatch_on_link(id, request.bytes, true, completion)
    }

    /// respool's section of INFO for a session: counters of the whole process, and the servers and
    /// links of the session's own pool.
    pub(crate) fn our_section(&self, id: SessionId) -> String {
        let pool = self.plane.pool_of_session(id);
        let is_shown = |server| self.plane.pool_of(server).whole == pool;
        let (servers, server_lines) = self.discovery.server_lines(&self.plane, is_shown);
        own_section(&InfoFacts {
            process_id: self.plane.worker.process_id,
            tcp_port: self.plane.tcp_port_of(id),
            uptime_s: self.plane.now.0 / 1_000_000,
            worker: self.plane.worker.index,
            workers: self.plane.worker.count,
            utilization: self.plane.worker_utilization(),
            counters: self.workers_now(),
            servers,
            server_lines,
            link_lines: self.plane.link_lines(pool),
        })
    }

    /// Counters of the whole process: the last reports of the other workers, and this worker as of
    /// now.
    fn workers_now(&self) -> Counters {
        let mut sum = self.plane.other_workers;
        sum.add(&self.counters());
        sum
    }
}

/// The kind of names in a command of subscribers, and whether the session subscribes to them.
fn subscription_of(id: CommandId) -> (ChannelKind, bool) {
    match id {
        id::PSUBSCRIBE | id::PUNSUBSCRIBE => (ChannelKind::Pattern, id == id::PSUBSCRIBE),
        id::SSUBSCRIBE | id::SUNSUBSCRIBE => (ChannelKind::Shard, id == id::SSUBSCRIBE),
        _ => (ChannelKind::Channel, id == id::SUBSCRIBE),
    }
}

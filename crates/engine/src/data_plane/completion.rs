//! Completions: the use of replies that are not simply passed on to their session.
//!
//! The reply to nearly every entry of a ledger is just passed on. Any other entry carries a mark,
//! and its completion is in a second queue of its link, in the same order. So the hot path tests
//! one bit, and the ledger stays small. A completion gets its reply whole, if
//! [`Completion::needs_whole`] says so.

use respool_protocol::cluster::Refusal;
use respool_protocol::commands::Names;
use respool_protocol::encode;
use respool_protocol::sentinel::SURVEY_ANSWERS;
use respool_protocol::value::Value;

use crate::access::auth::Login;
use crate::access::login_check::LoginCheck;
use crate::admin::runtime_config::PendingControl;
use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::DataPlane;
use crate::data_plane::ledger::Entry;
use crate::data_plane::scripts::is_refusal;
use crate::data_plane::sent_request::{ASKING, as_asked};
use crate::data_plane::session::Pins;
use crate::data_plane::slow_readers::CODE_LANE;
use crate::engine::Engine;
use crate::local::catalog::Subject;
use crate::local::cluster_facade::{self, as_standalone};
use crate::local::scripts::ScriptEffect;
use crate::pinned::ConnectionSwitch;
use crate::pinned::polling::ExecPreamble;
use crate::pinned::tracking_redirect::TrackingRedirect;
use crate::pinned::wait_command::WaitCommand;
use crate::pubsub::hub::ChannelKind;
use crate::transaction::Exec;

/// The use of the reply to an entry. No session gets the replies to respool's *own* requests.
#[derive(Debug)]
pub(crate) enum Completion {
    /// The reply is passed on, unless the session wants no replies.
    Pass,
    /// The entry's bytes are several requests. The first `before` replies are dropped, and the
    /// session gets the last one.
    Block {
        before: u32,
        /// How many of the `before` replies have come.
        came: u32,
        exec: Option<Box<Exec>>,
        /// Whether the first reply is to MULTI. If it is an error, the requests after it were no
        /// block.
        opens: bool,
        /// The first of these replies that redirects the request, or asks to try later.
        refusal: Option<Vec<u8>>,
        /// Whether the session watches keys for this block.
        watched: bool,
        /// Whether one of the requests runs code, or loads a script.
        code: bool,
    },
    /// ASKING is in front, and its reply is dropped. `then`: the completion of the next reply.
    Asking { then: Option<Box<Completion>> },
    /// Own: asks a Sentinel about the primary of this number, with five requests. `answers`: the
    /// replies so far.
    Survey { primary: u16, answers: Vec<Vec<u8>> },
    /// Own: asks a node of a Cluster for the owners of slots, with two requests. `listed`: the
    /// first reply.
    Owners {
        ticket: u32,
        listed: Option<Vec<u8>>,
    },
    /// Own: asks a server from which sessions read for its identity and its state, with two
    /// requests. `first`: the first reply.
    Look { first: Option<Vec<u8>> },
    /// Own: MULTI and EXEC, to see whether the server accepts them. The value is the reply to
    /// MULTI.
    Probe(Option<Vec<u8>>),
    /// UNWATCH, on the session's own link. The session gets `instead`, whatever the server replies.
    Unwatch { instead: Option<Vec<u8>> },
    /// INFO. `ours`: whether respool's own section is added.
    Info { ours: bool },
    /// CONFIG GET of a Cluster's node, for a client that sees a plain server.
    AsPlainServer,
    /// ROLE of one node, for a client that sees a single node.
    RoleOfNode,
    /// Switches a connection state. The session keeps a link of its own while it is on. `had`:
    /// whether the session had such a link before.
    Switch {
        switch: ConnectionSwitch,
        had: bool,
        /// The session that gets the messages, if it is another one.
        redirect: Option<TrackingRedirect>,
    },
    /// CLIENT GETREDIR, CLIENT TRACKINGINFO: the server names respool's link, and the client
    /// expects the session that it named.
    NameTold,
    /// PING in place of a request that respool answers itself. The session gets this answer after
    /// all that its server has sent before.
    Instead(Vec<u8>),
    /// Own: CLIENT TRACKING or CLIENT CACHING for a session that tracks at several servers.
    Track,
    /// SELECT of a session with a link of its own.
    Select(u32),
    /// Own: asks whether the server accepts the configured login.
    Check(Box<LoginCheck>),
    /// AUTH, alone or in a HELLO.
    Login(Box<Login>),
    /// EVAL, SCRIPT LOAD: the request contains a script.
    Script,
    /// Own: SCRIPT LOAD in front of a request that names the script of this number.
    Load(u32),
    /// EVALSHA whose script respool knows.
    Evalsha,
    /// SCRIPT FLUSH: if the server accepts it, scripts are not sent along any more.
    FlushScripts,
    /// A large request that runs code. Its reply is always passed on. `shown`: the body of the
    /// script that it contains, at most [`crate::base::limits::SCRIPT_BYTES_MAX`].
    Code { shown: Option<Box<[u8]>> },
    /// SHUTDOWN: a server that obeys closes the connection, and then its session is closed too.
    Shutdown,
    /// Own: asks the server whether it really refused the request of this session with this number.
    Proof {
        session: SessionId,
        seq: u32,
        proof: ProofStep,
    },
    /// Own: asks the server for its role.
    Role,
    /// Own: asks a server for its limits, see [`crate::data_plane::reply_limit`].
    Limits,
    /// Own: asks a server how busy it is, see [`crate::data_plane::flush_rule`].
    Cpu,
    /// Own: asks a node for all nodes, because it named an unknown one, with two requests.
    /// `shards`: the first reply.
    Nodes { shards: Option<Vec<u8>> },
    /// WAIT and WAITAOF.
    Wait(Box<WaitCommand>),
    /// Own: CLIENT UNBLOCK of this link, because respool ends.
    Dismissal { of: LinkId },
    /// CLIENT UNBLOCK of a link: the reply answers the query of worker `to` with this ticket.
    Unblock { to: usize, ticket: u64 },
    /// Own: a request of a hub.
    Ask,
    /// Own: a hub leaves a channel, and a PING follows. `said`: the server has replied to the first
    /// request.
    Leave { said: bool },
    /// PUBLISH, SPUBLISH: the server's count lacks this many receivers.
    Receivers(i64),
    /// PUBSUB NUMSUB, SHARDNUMSUB: the server's count of each channel lacks subscribers of respool.
    Subscribers(ChannelKind),
    /// CONFIG SET or GET of respool's own options.
    Control(Box<PendingControl>),
    /// SCAN of server `number`, and then of server `next`. `sifted_by`: a pattern for the keys that
    /// the server returns.
    Scan {
        number: u16,
        next: Option<u16>,
        sifted_by: Option<Box<[u8]>>,
    },
    /// The reply names keys without the prefix that respool removes for its server.
    Named(Names),
    /// A scattered request: this is the part of this number.
    Part { index: u16, effect: ScriptEffect },
    /// A blocking command that must not wait, see [`crate::pinned::polling`].
    Poll(ExecPreamble),
    /// Own: COMMAND, or COMMAND INFO about a command that respool does not know.
    Learn(Subject),
}

/// How a refusal is proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProofStep {
    /// The server refuses a twin: a request with the same keys and no effect.
    Twin,
    /// The server replies that it does not have the script.
    NoScript,
}

impl Completion {
    /// The completion of several requests: the session gets the last reply, and the `before`
    /// replies in front are dropped.
    pub(crate) fn behind(before: u32) -> Completion {
        Completion::Block {
            before,
            came: 0,
            exec: None,
            opens: false,
            refusal: None,
            watched: false,
            code: false,
        }
    }

    /// Whether its request may name scripts that respool knows.
    pub(crate) fn names_scripts(&self) -> bool {
        matches!(
            self,
            Completion::Evalsha | Completion::Block { code: true, .. }
        )
    }

    /// Whether the server forgets all scripts when it executes the request.
    pub(crate) fn flushes_scripts(&self) -> bool {
        match self {
            Completion::FlushScripts => true,
            Completion::Part { effect, .. } => *effect == ScriptEffect::Flush,
            Completion::Block { exec, .. } => exec.as_deref().is_some_and(Exec::flushes_scripts),
            _ => false,
        }
    }

    /// Whether the entry is a request of a session as the client sent it.
    pub(crate) fn is_of_request(&self) -> bool {
        matches!(
            self,
            Completion::Pass
                | Completion::Block { .. }
                | Completion::Script
                | Completion::Evalsha
                | Completion::FlushScripts
                | Completion::Part { .. }
                | Completion::Receivers(_)
                | Completion::Named(_)
        )
    }

    /// Prepares an entry that was not written whole to be sent from its beginning on a new
    /// connection. Replies that have come to parts of it are dropped. Returns whether it may be
    /// sent again. Requests without MULTI may not, since the server may have executed some of them.
    /// `has_no_session`: the entry is respool's own, or was given up.
    pub(crate) fn begin_again(&mut self, has_no_session: bool) -> bool {
        match self {
            Completion::Learn(_)
            | Completion::Ask
            | Completion::Dismissal { .. }
            | Completion::Unblock { .. } => {}
            // Requests after it rely on it.
            Completion::Track => {}
            Completion::Probe(first)
            | Completion::Owners { listed: first, .. }
            | Completion::Look { first }
            | Completion::Nodes { shards: first } => {
                *first = None;
            }
            Completion::Survey { answers, .. } => answers.clear(),
            Completion::Leave { said } => *said = false,
            // Other own requests, and requests that were given up, are not sent again.
            _ if has_no_session => return false,
            Completion::Block { opens: false, .. } => return false,
            Completion::Block { came, refusal, .. } => {
                *came = 0;
                *refusal = None;
            }
            Completion::Wait(waiting) => waiting.begin_again(),
            Completion::Poll(before) => *before = ExecPreamble::default(),
            _ => {}
        }
        true
    }

    /// The completion of the same read when it is sent once more. `None`: such a read is not sent
    /// again.
    pub(crate) fn read_again(&self) -> Option<Completion> {
        match *self {
            Completion::Part { index, .. } => Some(Completion::Part {
                index,
                effect: ScriptEffect::None,
            }),
            Completion::Named(names) => Some(Completion::Named(names)),
            _ => None,
        }
    }

    /// The completion of the same request on a second link, whose reply goes to the session in
    /// place of the first link's reply. `None`: the second reply would be of no use.
    pub(crate) fn on_successor(&self) -> Option<Completion> {
        match *self {
            Completion::Pass => Some(Completion::Pass),
            Completion::Script => Some(Completion::Script),
            Completion::Evalsha => Some(Completion::Evalsha),
            Completion::Info { ours } => Some(Completion::Info { ours }),
            Completion::Block {
                before,
                exec: None,
                opens: true,
                watched: false,
                code,
                ..
            } => Some(Completion::Block {
                before,
                came: 0,
                exec: None,
                opens: true,
                refusal: None,
                watched: false,
                code,
            }),
            _ => self.read_again(),
        }
    }

    /// Whether its reply may change the user or the protocol version of the link and of its
    /// session.
    pub(crate) fn changes_identity(&self) -> bool {
        match self {
            Completion::Block { exec, .. } => exec.as_deref().is_some_and(Exec::changes_identity),
            Completion::Login(_) => true,
            _ => false,
        }
    }

    /// Whether the next reply must be whole before it can be used.
    pub(crate) fn needs_whole(&self) -> bool {
        match self {
            Completion::Pass
            | Completion::Script
            | Completion::Code { .. }
            | Completion::Shutdown => false,
            Completion::Block {
                before, came, exec, ..
            } => came < before || exec.is_some(),
            _ => true,
        }
    }
}

/// The reply to a block whose MULTI the server refused.
const NOT_OPENED: &[u8] =
    b"-UNKNOWN respool: the commands were sent and may have been executed, but not as a \
    transaction: the server refused its MULTI\r\n";

/// Whether an error answers a request to leave a sharded channel, and not the PING after it.
fn answers_leaving(said: bool, reply: &[u8]) -> bool {
    let refusal = reply.strip_prefix(b"-").map(Refusal::of);
    matches!(refusal, Some(Some(Refusal::Moved | Refusal::ClusterDown)))
        || refusal.is_some() && !said
}

/// Replies with a completion.
impl Engine {
    /// Completes the front entry with its reply. `cut`: the beginning of the reply was delivered
    /// before, and this is the rest.
    pub(crate) fn complete(&mut self, id: LinkId, reply: &[u8], cut: bool) {
        let Some(link) = self.plane.links.get_mut(id) else {
            return;
        };
        let Some(entry) = link.first_in_flight() else {
            return;
        };
        let is_in_front = match link.duties.front_mut() {
            Some(Completion::Login(login)) => login.is_answered_by(reply),
            Some(Completion::Check(check)) => check.is_answered_by(reply),
            Some(Completion::Poll(before)) => before.takes(reply),
            _ => false,
        };
        if is_in_front {
            return;
        }
        match link.duties.front_mut() {
            Some(Completion::Block {
                before,
                came,
                opens,
                ..
            }) if *came < *before => {
                *came += 1;
                let failed = *opens && *came == 1 && reply.starts_with(b"-");
                if failed {
                    // The server executes the requests after it one by one, so they are no
                    // transaction.
                    link.duties[0] = Completion::behind(*before - 1);
                    link.ledger[0].session = SessionId::NONE;
                    self.local.doubt_rights(&mut self.plane, id);
                    return self.pass_on(entry, NOT_OPENED);
                }
                return;
            }
            Some(
                Completion::Probe(first)
                | Completion::Owners { listed: first, .. }
                | Completion::Look { first }
                | Completion::Nodes { shards: first },
            ) if first.is_none() => {
                *first = Some(reply.to_vec());
                return;
            }
            Some(Completion::Survey { answers, .. }) if answers.len() + 1 < SURVEY_ANSWERS => {
                answers.push(reply.to_vec());
                return;
            }
            Some(Completion::Asking { then }) => {
                let then = then.take();
                link.duties[0] = then.map_or(Completion::Pass, |then| *then);
                // From now on the entry has the bytes of the session's request alone.
                link.shorten_front(ASKING.len());
                return;
            }
            Some(Completion::Wait(waiting)) if waiting.is_in_front() => {
                waiting.take_in_front(reply);
                return;
            }
            Some(Completion::Leave { said }) if answers_leaving(*said, reply) => {
                *said = true;
                return;
            }
            _ => {}
        }
        let request = match link.duties.front() {
            Some(
                Completion::Evalsha
                | Completion::Script
                | Completion::Block { code: true, .. }
                | Completion::Part {
                    effect: ScriptEffect::Load,
                    ..
                },
            ) => as_asked(link.first_bytes()).to_vec(),
            _ => Vec::new(),
        };
        // The rest of a large reply is no error.
        let reply_or_rest = if cut { b"".as_slice() } else { reply };
        if link.kind.lane == CODE_LANE {
            self.plane.note_code_answered(id, reply_or_rest);
        }
        let Some(link) = self.plane.links.get_mut(id) else {
            return;
        };
        link.pop_answered(entry);
        let Some(duty) = link.duties.pop_front() else {
            unreachable!("a marked entry has a completion");
        };
        self.plane.counters.link_replies += 1;
        match duty {
            Completion::Learn(about) => self.local.learn(&mut self.plane, id, about, reply),
            Completion::Owners { ticket, listed } => {
                self.take_owners(id, ticket, &listed.unwrap_or_default(), reply);
            }
            Completion::Look { first } => {
                self.discovery
                    .take_look(&mut self.plane, id, &first.unwrap_or_default(), reply)
            }
            Completion::Survey {
                primary,
                mut answers,
            } => {
                answers.push(reply.to_vec());
                self.take_survey(id, primary, &answers);
            }
            Completion::Asking { .. } => {
                unreachable!("the completion after ASKING has taken its place")
            }
            Completion::Probe(opened) => self.settle_probe(id, opened.unwrap_or_default(), reply),
            Completion::Unblock { to, ticket } => self.unblocked((to, ticket), reply),
            Completion::Load(number) => self.local.settle_load(&mut self.plane, id, number, reply),
            Completion::Script => {
                self.settle_script(id, entry.session, &request, reply_or_rest);
                self.pass_on(entry, reply);
            }
            Completion::Code { shown } => {
                if let Some(body) = shown.filter(|_| !is_refusal(reply_or_rest)) {
                    self.settle_shown(id, entry.session, &body);
                }
                self.pass_on(entry, reply);
            }
            _ if cut => self.pass_on(entry, reply),
            Completion::Dismissal { of } => self.pinned.dismissed(&mut self.plane, of, reply),
            Completion::Pass | Completion::Shutdown => self.pass_on(entry, reply),
            Completion::Scan {
                number,
                next,
                sifted_by,
            } => {
                let reply = self.scatter.named_by(
                    &self.plane,
                    id,
                    Names::Second,
                    sifted_by.as_deref(),
                    reply,
                );
                let reply = self
                    .scatter
                    .scanned(&self.plane, id, (number, next), &reply);
                self.pass_on(entry, &reply);
            }
            Completion::Named(names) => {
                let reply = self.scatter.named_by(&self.plane, id, names, None, reply);
                self.pass_on(entry, &reply);
            }
            Completion::Part { index, effect } => {
                match effect {
                    ScriptEffect::None => {}
                    ScriptEffect::Load => self.settle_script(id, entry.session, &request, reply),
                    ScriptEffect::Flush => self.local.settle_flush(&mut self.plane, id, reply),
                }
                self.take_share_of(entry, index, reply);
            }
            Completion::Proof {
                session,
                seq,
                proof,
            } => self.settle_proof(id, (session, seq), proof, reply),
            Completion::Role => self.take_role(id, reply),
            Completion::Limits => self.plane.take_limit_answer(id, reply),
            Completion::Cpu => self.plane.take_cpu(id, reply),
            Completion::Nodes { shards } => self.take_nodes(id, &shards.unwrap_or_default(), reply),
            Completion::Poll(before) => self.settle_poll(entry, before, reply),
            Completion::Wait(waiting) => self.settle_wait(id, entry, *waiting, reply),
            Completion::Control(control) => self.settle_control(entry, *control, reply),
            Completion::Ask => self.settle_ask(id, reply),
            Completion::Leave { .. } => self.settle_left(id),
            Completion::Receivers(_) | Completion::Subscribers(_) => {
                let server = self.plane.links.get(id).map(|link| link.kind.server);
                let reply = match server.map(|server| self.plane.pool_of(server).whole) {
                    Some(pool) => self.pubsub.recount(pool, &duty, reply),
                    None => reply.to_vec(),
                };
                self.pass_on(entry, &reply);
            }
            Completion::Block { exec, code, .. } => {
                let is_lost = code && !cut && self.settle_code(id, entry.session, &request, reply);
                self.settle_block(id, entry, exec, reply, cut);
                if is_lost {
                    self.local
                        .close_for_lost_scripts(&mut self.plane, id, entry.session);
                }
            }
            Completion::Unwatch { instead } => {
                if reply.starts_with(b"-") {
                    // The server still watches the keys.
                    let owner = self.plane.owner_of(id, entry);
                    self.plane.taint_own_link(owner);
                    if instead.is_none()
                        && let Some(session) = self.plane.sessions.get_mut(owner)
                    {
                        session.pins.add(Pins::WATCH);
                    }
                }
                self.pass_on(entry, instead.as_deref().unwrap_or(reply));
            }
            Completion::Info { ours } => {
                let reply = self.with_our_section(entry.session, ours, reply);
                self.pass_on(entry, &reply);
            }
            Completion::AsPlainServer => {
                self.pass_on(entry, &cluster_facade::config_of_plain_server(reply))
            }
            Completion::RoleOfNode => {
                self.pass_on(entry, &cluster_facade::role_of_single_node(reply))
            }
            Completion::Switch {
                switch,
                had,
                redirect,
            } => {
                let owner = self.plane.owner_of(id, entry);
                self.pass_on(entry, reply);
                self.pinned
                    .settle_switch(&mut self.plane, owner, (switch, had), redirect, reply);
            }
            Completion::NameTold => {
                let owner = self.plane.owner_of(id, entry);
                self.pass_on(entry, &self.pinned.name_told(&self.plane, owner, reply));
            }
            Completion::Instead(answer) => self.pass_on(entry, &answer),
            Completion::Track => self.pinned.settle_track(&mut self.plane, id, reply),
            Completion::Select(db) => self.settle_select(id, entry, db, reply),
            Completion::Check(check) => {
                self.access.settle_check(&mut self.plane, id, *check, reply)
            }
            Completion::Login(login) => {
                self.settle_login(id, entry, *login);
                self.access.pump_logins(&mut self.plane, id);
            }
            Completion::FlushScripts => {
                self.local.settle_flush(&mut self.plane, id, reply);
                self.pass_on(entry, reply);
            }
            Completion::Evalsha => self.settle_evalsha(id, entry, &request, reply),
        }
    }

    fn settle_block(
        &mut self,
        link: LinkId,
        entry: Entry,
        exec: Option<Box<Exec>>,
        reply: &[u8],
        cut: bool,
    ) {
        if exec.as_deref().is_some_and(Exec::flushes_scripts) {
            self.local.settle_flush(&mut self.plane, link, reply);
        }
        match exec {
            Some(exec) if !cut => self.settle_exec(link, entry, *exec, reply),
            _ => self.pass_on(entry, reply),
        }
    }

    /// Delivers a reply to the session of the entry, if the session wants replies.
    pub(crate) fn pass_on(&mut self, entry: Entry, reply: &[u8]) {
        if entry.duty && self.fail_share(entry, reply) {
            return;
        }
        self.plane.deliver_to(entry, reply);
    }

    fn settle_select(&mut self, id: LinkId, entry: Entry, db: u32, reply: &[u8]) {
        if reply.starts_with(b"+")
            && let Some(link) = self.plane.links.get_mut(id)
        {
            link.kind.db = db;
            let owner = self.plane.owner_of(id, entry);
            if let Some(session) = self.plane.sessions.get_mut(owner) {
                session.db = db;
            }
        }
        self.pass_on(entry, &self.refusal_of_database(entry.session, reply));
    }

    /// The server's reply to INFO, with respool's section if `ours`.
    pub(crate) fn with_our_section(&self, session: SessionId, ours: bool, reply: &[u8]) -> Vec<u8> {
        let Some(Value::Bulk(text)) = Value::read(reply) else {
            return reply.to_vec();
        };
        let mut text = String::from_utf8_lossy(&text).into_owned();
        if self.plane.hides_nodes(session) {
            text = as_standalone(&text);
        }
        if ours {
            text.push_str("\r\n");
            text.push_str(&self.our_section(session));
        }
        let mut out = Vec::with_capacity(text.len() + 32);
        let version = self
            .plane
            .sessions
            .get(session)
            .map_or(encode::Version::Resp2, |session| session.version);
        encode::verbatim(&mut out, version, &text);
        out
    }
}

impl DataPlane {
    /// Delivers a reply to the session of an entry that is no share of a scattered request, if the
    /// session wants replies.
    pub(crate) fn deliver_to(&mut self, entry: Entry, reply: &[u8]) {
        if entry.session != SessionId::NONE {
            let reply = if entry.silent { &[] } else { reply };
            self.deliver(entry.session, entry.seq, 1, reply);
        }
    }

    /// The session that a reply concerns: the session of the request. If the request was given up,
    /// it is the session that has the link for itself: the server has changed the link's state.
    pub(crate) fn owner_of(&self, link: LinkId, entry: Entry) -> SessionId {
        if entry.session != SessionId::NONE {
            return entry.session;
        }
        let link = self.links.get(link);
        link.map_or(SessionId::NONE, |link| link.role.session())
    }
}

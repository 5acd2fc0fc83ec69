//! Duties: what becomes of replies that are not simply passed on to the session that asked.
//!
//! The reply to nearly every entry of a ledger is just passed on. Any other entry carries a mark,
//! and its duty is in a second queue of its link, in the same order. So the hot path tests one bit,
//! and the ledger stays small. A duty gets its reply whole, if [`Duty::needs_whole`] says so.

use respool_protocol::cluster::Refusal;
use respool_protocol::commands::Names;
use respool_protocol::encode;
use respool_protocol::sentinel::SURVEY_ANSWERS;
use respool_protocol::value::Value;

use crate::auth::Login;
use crate::control::Control;
use crate::elsewhere::{ASKING, as_asked};
use crate::engine::Engine;
use crate::entry::Entry;
use crate::login_check::Check;
use crate::node::{self, as_standalone};
use crate::pinned::Switch;
use crate::polling::Before;
use crate::redirect::Redirect;
use crate::scripts::{Effect, is_refusal};
use crate::session::Pins;
use crate::slots::Key;
use crate::slow_readers::CODE_LANE;
use crate::subscriptions::Kind;
use crate::transaction::Exec;
use crate::unknown::Subject;
use crate::wait::Waiting;

/// What becomes of the reply to an entry. No session gets the replies to respool's *own* requests.
#[derive(Debug)]
pub(crate) enum Duty {
    /// It is passed on, unless the session wants no replies.
    Pass,
    /// The entry's bytes are several requests. The first `before` replies are dropped, and the
    /// session gets the last one.
    Block {
        before: u32,
        /// How many of those have come.
        came: u32,
        exec: Option<Box<Exec>>,
        /// The first of these replies is to MULTI. If it is an error, the rest was no block.
        opens: bool,
        /// The first of these replies that names another node, or asks to try later.
        refusal: Option<Vec<u8>>,
        /// Keys are watched for it.
        watched: bool,
        /// One of its requests runs code, or loads a script.
        code: bool,
    },
    /// ASKING is in front, and its reply is dropped. `then`: the duty of the next reply.
    Asking { then: Option<Box<Duty>> },
    /// Own: asks a Sentinel about the primary of this number, with five requests. `answers`: the
    /// replies so far.
    Survey { primary: u16, answers: Vec<Vec<u8>> },
    /// Own: asks a node of a Cluster for the owners of slots, with two requests. `listed`: the
    /// first reply.
    Owners {
        ticket: u32,
        listed: Option<Vec<u8>>,
    },
    /// Own: asks a server that is read for its identity and its state, with two requests. `who`:
    /// the first reply.
    Look { who: Option<Vec<u8>> },
    /// Own: MULTI and EXEC, to see whether the server takes them. The value is the reply to MULTI.
    Probe(Option<Vec<u8>>),
    /// UNWATCH, on the session's own link. The session gets this, whatever the server says.
    Unwatch { instead: Option<Vec<u8>> },
    /// INFO: whether our own section is added.
    Info { ours: bool },
    /// CONFIG GET of a Cluster's node, for a client that sees a plain server.
    AsPlainServer,
    /// ROLE of one node, for a client that sees a single node.
    RoleOfNode,
    /// The session keeps a link of its own as long as this is on, and `had` one for it before.
    Switch {
        switch: Switch,
        had: bool,
        /// Another session gets the messages.
        redirect: Option<Redirect>,
    },
    /// CLIENT GETREDIR, CLIENT TRACKINGINFO: the server names our link, and the client expects the
    /// session that it named.
    NameTold,
    /// PING in place of a request that respool answers itself: the session gets this answer behind
    /// all that its server has sent before.
    Instead(Vec<u8>),
    /// Own: CLIENT TRACKING or CLIENT CACHING for a session that tracks at several servers.
    Track,
    /// SELECT of a session with a link of its own.
    Select(u32),
    /// Own: asks whether the server accepts the configured login.
    Check(Box<Check>),
    /// AUTH, alone or in a HELLO.
    Login(Box<Login>),
    /// EVAL, SCRIPT LOAD: it shows a script.
    Script,
    /// Own: SCRIPT LOAD in front of a request that names the script of this number.
    Load(u32),
    /// EVALSHA whose script we know.
    Evalsha,
    /// SCRIPT FLUSH: if the server agrees, no script is sent along any more.
    FlushScripts,
    /// A large request that runs code: its reply is passed on, whatever it says. `shown`: the body
    /// of the script that it shows, at most [`crate::limits::SCRIPT_BYTES_MAX`].
    Code { shown: Option<Box<[u8]>> },
    /// SHUTDOWN: a server that does it closes the connection, and so is its session closed.
    Shutdown,
    /// Own: asks the server whether it really refused the request of this session with this number.
    Proof {
        session: Key,
        seq: u32,
        proof: Proof,
    },
    /// Own: asks the server for its role.
    Role,
    /// Own: asks a server for its limits, see [`crate::reply_room`].
    Limits,
    /// Own: asks a node for all nodes, because it named an unknown one, with two requests.
    /// `shards`: the first reply.
    Nodes { shards: Option<Vec<u8>> },
    /// WAIT and WAITAOF.
    Wait(Box<Waiting>),
    /// Own: CLIENT UNBLOCK of this link of ours, because respool ends.
    Dismissal { of: Key },
    /// CLIENT UNBLOCK of a link of ours: an answer to that worker's question of that ticket.
    Unblock { to: usize, ticket: u64 },
    /// Own: a request of a hub.
    Ask,
    /// Own: a hub leaves a channel, with a PING behind. `said`: the server has replied to the first
    /// request.
    Leave { said: bool },
    /// PUBLISH, SPUBLISH: the server counted this many too few.
    Receivers(i64),
    /// PUBSUB NUMSUB, SHARDNUMSUB: the server counted too few for each channel.
    Subscribers(Kind),
    /// CONFIG SET or GET of something of ours.
    Control(Box<Control>),
    /// SCAN of server `number`, and of server `next` behind it. `sifted_by`: a pattern for the keys
    /// that the server returns.
    Scan {
        number: u16,
        next: Option<u16>,
        sifted_by: Option<Box<[u8]>>,
    },
    /// It names keys, without the prefix that their server does not see.
    Named(Names),
    /// Several servers were asked; this is the part of that number.
    Part { index: u16, effect: Effect },
    /// A blocking command that must not wait, see [`crate::polling`].
    Poll(Before),
    /// Own: COMMAND, or COMMAND INFO about a command that we do not know.
    Learn(Subject),
}

/// How a refusal is proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// The server refuses a request with the same keys that does nothing.
    Twin,
    /// The server says that it does not have the script.
    NoScript,
}

impl Duty {
    /// Of several replies the session gets the last one; the `before` replies in front are dropped.
    pub(crate) fn behind(before: u32) -> Duty {
        Duty::Block {
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
        matches!(self, Duty::Evalsha | Duty::Block { code: true, .. })
    }

    /// Whether the server forgets all scripts when it executes the request.
    pub(crate) fn flushes_scripts(&self) -> bool {
        match self {
            Duty::FlushScripts => true,
            Duty::Part { effect, .. } => *effect == Effect::Flush,
            Duty::Block { exec, .. } => exec.as_deref().is_some_and(Exec::flushes_scripts),
            _ => false,
        }
    }

    /// Whether the entry is a request of a session as the client sent it.
    pub(crate) fn is_of_request(&self) -> bool {
        matches!(
            self,
            Duty::Pass
                | Duty::Block { .. }
                | Duty::Script
                | Duty::Evalsha
                | Duty::FlushScripts
                | Duty::Part { .. }
                | Duty::Receivers(_)
                | Duty::Named(_)
        )
    }

    /// An entry that was not written whole is to be sent from its beginning on a new connection.
    /// Replies that have come to parts of it are forgotten. Returns whether it may be sent again.
    /// Requests without MULTI may not, since the server may have executed some of them. `nobodys`:
    /// the entry names no session, since it is our own, or was given up.
    pub(crate) fn begin_again(&mut self, nobodys: bool) -> bool {
        match self {
            Duty::Learn(_) | Duty::Ask | Duty::Dismissal { .. } | Duty::Unblock { .. } => {}
            // Requests behind it rely on it.
            Duty::Track => {}
            Duty::Probe(told)
            | Duty::Owners { listed: told, .. }
            | Duty::Look { who: told }
            | Duty::Nodes { shards: told } => {
                *told = None;
            }
            Duty::Survey { answers, .. } => answers.clear(),
            Duty::Leave { said } => *said = false,
            // Other own requests, and requests that were given up, are not sent again.
            _ if nobodys => return false,
            Duty::Block { opens: false, .. } => return false,
            Duty::Block { came, refusal, .. } => {
                *came = 0;
                *refusal = None;
            }
            Duty::Wait(waiting) => waiting.begin_again(),
            Duty::Poll(before) => *before = Before::default(),
            _ => {}
        }
        true
    }

    /// The duty of the same read when it is sent once more. `None`: such a read is not sent again.
    pub(crate) fn read_again(&self) -> Option<Duty> {
        match *self {
            Duty::Part { index, .. } => Some(Duty::Part {
                index,
                effect: Effect::None,
            }),
            Duty::Named(names) => Some(Duty::Named(names)),
            _ => None,
        }
    }

    /// The duty of the same request on a second link, whose reply goes to the session in place of
    /// the reply on the first link. `None`: the second reply would not do.
    pub(crate) fn on_successor(&self) -> Option<Duty> {
        match *self {
            Duty::Pass => Some(Duty::Pass),
            Duty::Script => Some(Duty::Script),
            Duty::Evalsha => Some(Duty::Evalsha),
            Duty::Info { ours } => Some(Duty::Info { ours }),
            Duty::Block {
                before,
                exec: None,
                opens: true,
                watched: false,
                code,
                ..
            } => Some(Duty::Block {
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
            Duty::Block { exec, .. } => exec.as_deref().is_some_and(Exec::changes_identity),
            Duty::Login(_) => true,
            _ => false,
        }
    }

    /// Whether the next reply must be whole before anything can be done with it.
    pub(crate) fn needs_whole(&self) -> bool {
        match self {
            Duty::Pass | Duty::Script | Duty::Code { .. } | Duty::Shutdown => false,
            Duty::Block {
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

/// Whether an error answers a request to leave a sharded channel, and not the PING behind it.
fn answers_leaving(said: bool, reply: &[u8]) -> bool {
    let refusal = reply.strip_prefix(b"-").map(Refusal::of);
    matches!(refusal, Some(Some(Refusal::Moved | Refusal::ClusterDown)))
        || refusal.is_some() && !said
}

/// Replies with a duty.
impl Engine {
    /// A reply to the entry in front, which has a duty. `cut`: the beginning of the reply was
    /// delivered before, and this is the rest.
    pub(crate) fn settle(&mut self, key: Key, reply: &[u8], cut: bool) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        let Some(entry) = link.first_in_flight() else {
            return;
        };
        let is_in_front = match link.duties.front_mut() {
            Some(Duty::Login(login)) => login.is_answered_by(reply),
            Some(Duty::Check(check)) => check.is_answered_by(reply),
            Some(Duty::Poll(before)) => before.takes(reply),
            _ => false,
        };
        if is_in_front {
            return;
        }
        match link.duties.front_mut() {
            Some(Duty::Block {
                before,
                came,
                opens,
                ..
            }) if *came < *before => {
                *came += 1;
                let failed = *opens && *came == 1 && reply.starts_with(b"-");
                if failed {
                    // The server executes the requests behind it one by one, so they are no
                    // transaction.
                    link.duties[0] = Duty::behind(*before - 1);
                    link.ledger[0].session = Key::NOBODY;
                    self.doubt_rights(key);
                    return self.pass_on(entry, NOT_OPENED);
                }
                return;
            }
            Some(
                Duty::Probe(first)
                | Duty::Owners { listed: first, .. }
                | Duty::Look { who: first }
                | Duty::Nodes { shards: first },
            ) if first.is_none() => {
                *first = Some(reply.to_vec());
                return;
            }
            Some(Duty::Survey { answers, .. }) if answers.len() + 1 < SURVEY_ANSWERS => {
                answers.push(reply.to_vec());
                return;
            }
            Some(Duty::Asking { then }) => {
                let then = then.take();
                link.duties[0] = then.map_or(Duty::Pass, |then| *then);
                // From now on the entry has the bytes of the session's request alone.
                link.shorten_front(ASKING.len());
                return;
            }
            Some(Duty::Wait(waiting)) if waiting.is_in_front() => {
                waiting.take_in_front(reply);
                return;
            }
            Some(Duty::Leave { said }) if answers_leaving(*said, reply) => {
                *said = true;
                return;
            }
            _ => {}
        }
        let request = match link.duties.front() {
            Some(
                Duty::Evalsha
                | Duty::Script
                | Duty::Block { code: true, .. }
                | Duty::Part {
                    effect: Effect::Load,
                    ..
                },
            ) => as_asked(link.first_bytes()).to_vec(),
            _ => Vec::new(),
        };
        // The rest of a large reply is no error.
        let reply_or_rest = if cut { b"".as_slice() } else { reply };
        if link.key.lane == CODE_LANE {
            self.note_code_answered(key, reply_or_rest);
        }
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        link.pop_answered(entry);
        let Some(duty) = link.duties.pop_front() else {
            unreachable!("an entry that says so has a duty");
        };
        self.counters.link_replies += 1;
        match duty {
            Duty::Learn(about) => self.learn(key, about, reply),
            Duty::Owners { ticket, listed } => {
                self.take_owners(key, ticket, &listed.unwrap_or_default(), reply);
            }
            Duty::Look { who } => self.take_look(key, &who.unwrap_or_default(), reply),
            Duty::Survey {
                primary,
                mut answers,
            } => {
                answers.push(reply.to_vec());
                self.take_survey(key, primary, &answers);
            }
            Duty::Asking { .. } => unreachable!("what is behind ASKING takes its place"),
            Duty::Probe(opened) => self.settle_probe(key, opened.unwrap_or_default(), reply),
            Duty::Unblock { to, ticket } => self.unblocked((to, ticket), reply),
            Duty::Load(number) => self.settle_load(key, number, reply),
            Duty::Script => {
                self.settle_script(key, entry.session, &request, reply_or_rest);
                self.pass_on(entry, reply);
            }
            Duty::Code { shown } => {
                if let Some(body) = shown.filter(|_| !is_refusal(reply_or_rest)) {
                    self.settle_shown(key, entry.session, &body);
                }
                self.pass_on(entry, reply);
            }
            _ if cut => self.pass_on(entry, reply),
            Duty::Dismissal { of } => self.dismissed(of, reply),
            Duty::Pass | Duty::Shutdown => self.pass_on(entry, reply),
            Duty::Scan {
                number,
                next,
                sifted_by,
            } => {
                let reply = self.named_by(key, Names::Second, sifted_by.as_deref(), reply);
                let reply = self.scanned(key, (number, next), &reply);
                self.pass_on(entry, &reply);
            }
            Duty::Named(names) => {
                let reply = self.named_by(key, names, None, reply);
                self.pass_on(entry, &reply);
            }
            Duty::Part { index, effect } => {
                match effect {
                    Effect::None => {}
                    Effect::Load => self.settle_script(key, entry.session, &request, reply),
                    Effect::Flush => self.settle_flush(key, reply),
                }
                self.take_part_of(entry, index, reply);
            }
            Duty::Proof {
                session,
                seq,
                proof,
            } => self.settle_proof(key, (session, seq), proof, reply),
            Duty::Role => self.take_role(key, reply),
            Duty::Limits => self.take_limit_answer(key, reply),
            Duty::Nodes { shards } => self.take_nodes(key, &shards.unwrap_or_default(), reply),
            Duty::Poll(before) => self.settle_poll(entry, before, reply),
            Duty::Wait(waiting) => self.settle_wait(key, entry, *waiting, reply),
            Duty::Control(control) => self.settle_control(entry, *control, reply),
            Duty::Ask => self.settle_ask(key, reply),
            Duty::Leave { .. } => self.settle_left(key),
            Duty::Receivers(_) | Duty::Subscribers(_) => {
                let server = self.links.get(key).map(|link| link.key.server);
                let reply = match server.map(|server| self.pool_of(server).whole) {
                    Some(pool) => self.recount(pool, &duty, reply),
                    None => reply.to_vec(),
                };
                self.pass_on(entry, &reply);
            }
            Duty::Block { exec, code, .. } => {
                let is_lost = code && !cut && self.settle_code(key, entry.session, &request, reply);
                self.settle_block(key, entry, exec, reply, cut);
                if is_lost {
                    self.close_for_lost_scripts(key, entry.session);
                }
            }
            Duty::Unwatch { instead } => {
                if reply.starts_with(b"-") {
                    // The server still watches the keys.
                    let owner = self.owner_of(key, entry);
                    self.taint_own_link(owner);
                    if instead.is_none()
                        && let Some(session) = self.sessions.get_mut(owner)
                    {
                        session.pins.add(Pins::WATCH);
                    }
                }
                self.pass_on(entry, instead.as_deref().unwrap_or(reply));
            }
            Duty::Info { ours } => {
                let reply = self.with_our_section(entry.session, ours, reply);
                self.pass_on(entry, &reply);
            }
            Duty::AsPlainServer => self.pass_on(entry, &node::config_of_plain_server(reply)),
            Duty::RoleOfNode => self.pass_on(entry, &node::role_of_single_node(reply)),
            Duty::Switch {
                switch,
                had,
                redirect,
            } => {
                let owner = self.owner_of(key, entry);
                self.pass_on(entry, reply);
                self.settle_switch(owner, (switch, had), redirect, reply);
            }
            Duty::NameTold => {
                let owner = self.owner_of(key, entry);
                self.pass_on(entry, &self.name_told(owner, reply));
            }
            Duty::Instead(answer) => self.pass_on(entry, &answer),
            Duty::Track => self.settle_track(key, reply),
            Duty::Select(db) => self.settle_select(key, entry, db, reply),
            Duty::Check(check) => self.settle_check(key, *check, reply),
            Duty::Login(login) => {
                self.settle_login(key, entry, *login);
                self.pump_logins(key);
            }
            Duty::FlushScripts => {
                self.settle_flush(key, reply);
                self.pass_on(entry, reply);
            }
            Duty::Evalsha => self.settle_evalsha(key, entry, &request, reply),
        }
    }

    fn settle_block(
        &mut self,
        link: Key,
        entry: Entry,
        exec: Option<Box<Exec>>,
        reply: &[u8],
        cut: bool,
    ) {
        if exec.as_deref().is_some_and(Exec::flushes_scripts) {
            self.settle_flush(link, reply);
        }
        match exec {
            Some(exec) if !cut => self.settle_exec(link, entry, *exec, reply),
            _ => self.pass_on(entry, reply),
        }
    }

    /// A reply goes to the session that asked, if that wants any.
    pub(crate) fn pass_on(&mut self, entry: Entry, reply: &[u8]) {
        if entry.duty && self.fail_part(entry, reply) {
            return;
        }
        if entry.session != Key::NOBODY {
            let reply = if entry.silent { &[] } else { reply };
            self.deliver(entry.session, entry.seq, 1, reply);
        }
    }

    /// The session that a reply concerns: the session that asked. If that request was given up, it
    /// is the session that has the link for itself, since the server has changed the state of that
    /// link.
    pub(crate) fn owner_of(&self, link: Key, entry: Entry) -> Key {
        if entry.session != Key::NOBODY {
            return entry.session;
        }
        let link = self.links.get(link);
        link.map_or(Key::NOBODY, |link| link.role.captor())
    }

    fn settle_select(&mut self, key: Key, entry: Entry, db: u32, reply: &[u8]) {
        if reply.starts_with(b"+")
            && let Some(link) = self.links.get_mut(key)
        {
            link.key.db = db;
            let owner = self.owner_of(key, entry);
            if let Some(session) = self.sessions.get_mut(owner) {
                session.db = db;
            }
        }
        self.pass_on(entry, &self.refusal_of_database(entry.session, reply));
    }

    /// INFO as the server says it, and perhaps a section of ours.
    pub(crate) fn with_our_section(&self, session: Key, ours: bool, reply: &[u8]) -> Vec<u8> {
        let Some(Value::Bulk(text)) = Value::read(reply) else {
            return reply.to_vec();
        };
        let mut text = String::from_utf8_lossy(&text).into_owned();
        if self.hides_nodes(session) {
            text = as_standalone(&text);
        }
        if ours {
            text.push_str("\r\n");
            text.push_str(&self.our_section(session));
        }
        let mut out = Vec::with_capacity(text.len() + 32);
        let version = self
            .sessions
            .get(session)
            .map_or(encode::Version::Resp2, |session| session.version);
        encode::verbatim(&mut out, version, &text);
        out
    }
}

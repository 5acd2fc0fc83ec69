//! Transactions: MULTI to EXEC is queued here and sent as one block, so it needs no link of its
//! own.
//!
//! ```text
//!   client:   MULTI   SET a 1   INCR b   EXEC
//!   we say:    OK     QUEUED    QUEUED          then the reply of the server's EXEC
//!   server:  [ MULTI  SET a 1   INCR b   EXEC ]          one entry of the ledger, one fate
//! ```
//!
//! What Redis says while it queues, we say: unknown commands, wrong numbers of arguments, and that
//! EXEC then refuses. The block is one request to the ledger: if it was not written whole, its EXEC
//! was not, and the server has executed nothing of it.

use std::collections::{HashSet, VecDeque};

use respool_protocol::commands::{Answer, CommandId, Flags as CommandFlags, Names, id};
use respool_protocol::encode;
use respool_protocol::number;
use respool_protocol::reply::{self, Scanned};

use crate::auth::{CONFIGURED, auth_asked, credentials};
use crate::belief;
use crate::buffer::shrink;
use crate::clients::request_may_write;
use crate::duty::Duty;
use crate::elsewhere::id_of;
use crate::engine::Engine;
use crate::entry::Entry;
use crate::here::Hello;
use crate::login_probe::{Claim, Gate};
use crate::pinned::Switch;
use crate::pool::Group;
use crate::quick_code::may_hold_up;
use crate::redirect::{Redirect, redirect_asked};
use crate::requests::{Blocked, Kept, Placed, Request, bound_reply};
use crate::scripts::{Name, names_in};
use crate::session::{Flags, Pins};
use crate::settings::Credentials;
use crate::slots::Key;
use crate::steps::{Step, Within};

/// What a session has queued since MULTI.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    /// MULTI as the client wrote it: its server may call it by another name.
    opening: Vec<u8>,
    /// As they were sent, one behind the other.
    requests: Vec<u8>,
    pub(crate) count: u32,
    /// Some of them may write.
    pub(crate) writes: bool,
    /// Some of them run code, load scripts, or may hold up their connection.
    runs_code: bool,
    /// Scripts that they name.
    scripts: Vec<Name>,
    /// Bytes that all this holds.
    held: usize,
    /// Something was refused: EXEC will be, too.
    aborted: bool,
    /// What its keys belong to.
    group: Option<Group>,
    /// Something in it leaves a trace on its connection: that is to be the session's own, and
    /// nobody's thereafter.
    taints: bool,
    /// Those whose results are not simply the server's, by their places.
    ours: Vec<(u32, Ours)>,
}

/// A request in a transaction whose result is not simply the server's.
#[derive(Debug)]
enum Ours {
    /// SELECT: the session goes there.
    Select(u32),
    /// About the session: not in the block, and executed here when the server has executed that.
    Here(Kept),
    /// The same for HELLO, which is in the block as well: what follows it comes in that version.
    Hello(Kept),
    /// AUTH, alone or in a HELLO: the server executes what follows it as that user, on a link of
    /// the session's own, which is closed thereafter. The rest of the HELLO is executed here.
    Login {
        login: Credentials,
        hello: Option<Kept>,
        claim: Claim,
    },
    /// The session keeps a link of its own as long as this is on, and `had` one for it before.
    Switch {
        switch: Switch,
        had: bool,
        redirect: Option<Redirect>,
    },
    /// The server knows our link, the client the session that it named.
    NameTold,
    /// The server counts connections; this is the request, and the first name in it.
    Counted(CommandId, Vec<u8>),
    /// It names keys, see [`Duty::Named`].
    Named(Names),
    /// SCRIPT FLUSH, see [`Duty::FlushScripts`].
    FlushScripts,
    /// The same for everybody: not in the block.
    Said(&'static [u8]),
}

impl Ours {
    /// Whether the server executes it, too.
    fn in_block(&self) -> bool {
        !matches!(self, Ours::Here(_) | Ours::Said(_))
    }

    /// What the session needs a link of its own for, for the server to execute this.
    fn pins(&self) -> Option<Pins> {
        match self {
            Ours::Switch { switch, .. } if switch.on => Some(switch.pins),
            _ => None,
        }
    }

    /// Whether what it does to its connection could not be undone for certain: that is to be the
    /// session's own, and nobody's thereafter. Behind EXEC a server may refuse what would undo it.
    fn leaves_trace(&self) -> bool {
        self.changes_identity() || matches!(self, Ours::Select(_))
    }

    /// See [`Duty::changes_identity`].
    fn changes_identity(&self) -> bool {
        matches!(self, Ours::Hello(_) | Ours::Login { .. })
    }

    /// Whether it changes or shows the session: then it is executed between what was asked before
    /// and what is asked next.
    fn is_about_session(&self) -> bool {
        !matches!(
            self,
            Ours::Counted(..) | Ours::Said(_) | Ours::Named(_) | Ours::FlushScripts
        )
    }

    fn held_bytes(&self) -> usize {
        let own = match self {
            Ours::Here(request) | Ours::Hello(request) => request.bytes.len(),
            Ours::Login { login, hello, .. } => {
                let name = login.user.as_ref().map_or(0, String::len);
                let rest = hello.as_ref().map_or(0, |rest| rest.bytes.len());
                name + login.password.len() + rest
            }
            Ours::Counted(_, name) => name.len(),
            Ours::Select(_)
            | Ours::Switch { .. }
            | Ours::NameTold
            | Ours::Named(_)
            | Ours::FlushScripts
            | Ours::Said(_) => 0,
        };
        size_of::<(u32, Ours)>() + own
    }
}

/// What the result of a block is to be combined with.
#[derive(Debug)]
pub(crate) struct Exec {
    /// Requests that the client queued.
    count: u32,
    ours: Vec<(u32, Ours)>,
}

impl Exec {
    /// See [`Duty::changes_identity`].
    pub(crate) fn changes_identity(&self) -> bool {
        self.ours.iter().any(|(_, ours)| ours.changes_identity())
    }

    /// Whether the block flushes the scripts of its server.
    pub(crate) fn flushes_scripts(&self) -> bool {
        let mut ours = self.ours.iter();
        ours.any(|(_, ours)| matches!(ours, Ours::FlushScripts))
    }
}

/// How many of them are not in the block.
fn left_out(ours: &[(u32, Ours)]) -> u32 {
    ours.iter().filter(|(_, ours)| !ours.in_block()).count() as u32
}

impl Transaction {
    pub(crate) fn held_bytes(&self) -> usize {
        self.held
    }

    /// The same with the room behind it.
    pub(crate) fn memory_bytes(&self) -> usize {
        let room = |capacity: usize, len: usize| capacity - len;
        self.held
            + room(self.requests.capacity(), self.requests.len())
            + room(self.ours.capacity(), self.ours.len()) * size_of::<(u32, Ours)>()
    }
}

impl Engine {
    /// The requests that begin, guard and end transactions.
    pub(crate) fn answer_transaction(&mut self, key: Key, request: &Request<'_>) -> Placed {
        let in_multi = self.is_in_multi(key);
        match request.id {
            id::MULTI if in_multi => {
                self.refuse_nested(key, request, "MULTI calls can not be nested")
            }
            id::MULTI => {
                if !self.know_opening(key, request.bytes) {
                    return Placed::Wait;
                }
                if let Some(refusal) = self.refusal_to_open(key) {
                    return self.answer_reply(key, &refusal);
                }
                if let Some(session) = self.sessions.get_mut(key) {
                    session.flags |= Flags::IN_MULTI | Flags::HAS_QUEUED;
                    session.rare().transaction = Some(Transaction {
                        opening: request.bytes.to_vec(),
                        held: request.bytes.len(),
                        ..Transaction::default()
                    });
                    self.held_bytes += request.bytes.len();
                }
                self.answer_reply(key, b"+OK\r\n")
            }
            id::WATCH if in_multi => {
                self.refuse_nested(key, request, "WATCH inside MULTI is not allowed")
            }
            id::WATCH => match self.pin(key, Pins::WATCH) {
                Ok(()) => {
                    if let Some(session) = self.sessions.get_mut(key) {
                        session.flags |= Flags::HAS_QUEUED;
                    }
                    self.place_on_link(key, request.bytes, false, None)
                }
                Err(blocked) => self.blocked(key, blocked),
            },
            id::UNWATCH => {
                self.forget_lost_watch(key);
                match self.watches(key) {
                    true => self.unwatch(key, request.bytes, None),
                    false => self.place_on_link(key, request.bytes, false, None),
                }
            }
            id::DISCARD if !in_multi => self.answer_error(key, b"ERR DISCARD without MULTI"),
            id::DISCARD => self.leave_transaction(key, b"+OK\r\n"),
            _ if !in_multi => self.answer_error(key, b"ERR EXEC without MULTI"),
            _ => self.exec(key, request.bytes),
        }
    }

    pub(crate) fn is_in_multi(&self, key: Key) -> bool {
        self.sessions
            .get(key)
            .is_some_and(|session| session.flags.any(Flags::IN_MULTI))
    }

    /// MULTI or WATCH inside MULTI: newer servers abort the transaction for it.
    fn refuse_nested(&mut self, key: Key, request: &Request<'_>, text: &str) -> Placed {
        if self.speaks_of_commands_in_transactions(key) {
            let text = format!(
                "ERR Command '{}' not allowed inside a transaction",
                request.command.name
            );
            return self.refuse_queued(key, text.as_bytes());
        }
        self.answer_error(key, format!("ERR {text}").as_bytes())
    }

    /// Valkey 9 names the command, and refuses MULTI and WATCH like all others; Redis does neither.
    fn speaks_of_commands_in_transactions(&self, key: Key) -> bool {
        let release = self.release_of(key);
        release.is_some_and(|(server, (major, _))| server == "valkey" && major >= 9)
    }

    /// Ends the watch that a session has at the server, and says `instead` or what the server does.
    fn unwatch(&mut self, key: Key, request: &[u8], instead: Option<&[u8]>) -> Placed {
        let instead = instead.map(<[u8]>::to_vec);
        let placed = self.place_on_link(key, request, false, Some(Duty::Unwatch { instead }));
        if placed == Placed::Done {
            self.unpin(key, Pins::WATCH);
        }
        placed
    }

    fn watches(&self, key: Key) -> bool {
        let session = self.sessions.get(key);
        session.is_some_and(|session| session.pins.any(Pins::WATCH))
    }

    fn has_lost_watch(&self, key: Key) -> bool {
        let session = self.sessions.get(key);
        let rare = session.and_then(|session| session.rare.as_ref());
        rare.is_some_and(|rare| rare.watch_lost)
    }

    fn forget_lost_watch(&mut self, key: Key) {
        if let Some(session) = self.sessions.get_mut(key)
            && let Some(rare) = &mut session.rare
        {
            rare.watch_lost = false;
        }
    }

    /// A transaction ends without having been sent; its client gets this reply.
    pub(crate) fn leave_transaction(&mut self, key: Key, reply: &[u8]) -> Placed {
        let mut unwatch = Vec::new();
        encode::request(&mut unwatch, &["UNWATCH"]);
        let placed = match self.watches(key) {
            true => self.unwatch(key, &unwatch, Some(reply)),
            false => self.answer_reply(key, reply),
        };
        if placed == Placed::Done {
            self.forget_lost_watch(key);
            self.end_transaction(key);
        }
        placed
    }

    /// What a session has queued is sent, or will never be.
    pub(crate) fn end_transaction(&mut self, key: Key) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        session.flags.remove(Flags::IN_MULTI);
        // Its transaction is gone, so EXEC cannot be asked again by itself.
        session.burst.count_as_many();
        let rare = session.rare.as_mut();
        if let Some(transaction) = rare.and_then(|rare| rare.transaction.take()) {
            self.held_bytes -= transaction.held_bytes();
        }
    }

    /// A request that is refused while a transaction is queued makes its EXEC fail.
    pub(crate) fn refuse_queued(&mut self, key: Key, text: &[u8]) -> Placed {
        self.abort_transaction(key);
        self.answer_error(key, text)
    }

    /// An EXEC that is wrong in itself ends its transaction.
    pub(crate) fn refuse_exec(&mut self, key: Key, text: &[u8]) -> Placed {
        let why = text.strip_prefix(b"ERR ").unwrap_or(text);
        let mut reply = Vec::new();
        encode::error(
            &mut reply,
            &[b"EXECABORT Transaction discarded because of: ", why].concat(),
        );
        self.leave_transaction(key, &reply)
    }

    pub(crate) fn abort_transaction(&mut self, key: Key) {
        if let Some(transaction) = self.transaction_of(key) {
            transaction.aborted = true;
        }
    }

    /// What the keys belong to that a session has queued since MULTI, if it has queued any.
    pub(crate) fn queued_group(&self, key: Key) -> Option<Group> {
        let rare = self
            .sessions
            .get(key)
            .and_then(|session| session.rare.as_ref());
        let transaction = rare.and_then(|rare| rare.transaction.as_ref());
        transaction.and_then(|transaction| transaction.group)
    }

    /// From now on that is what its keys belong to.
    pub(crate) fn bind_transaction(&mut self, key: Key, group: Group) {
        if let Some(transaction) = self.transaction_of(key) {
            transaction.group = Some(group);
        }
    }

    fn transaction_of(&mut self, key: Key) -> Option<&mut Transaction> {
        self.sessions
            .get_mut(key)?
            .rare
            .as_mut()?
            .transaction
            .as_mut()
    }

    /// A request of a session that is in MULTI, and is none of those that end it.
    pub(crate) fn queue(&mut self, key: Key, request: &Request<'_>) -> Placed {
        let command = request.command;
        if command.flags.has(CommandFlags::NO_MULTI) && !self.is_allowed_in_multi(key, request) {
            let text = if self.speaks_of_commands_in_transactions(key) {
                format!(
                    "ERR Command '{}' not allowed inside a transaction",
                    command.name
                )
            } else {
                String::from("ERR Command not allowed inside a transaction")
            };
            return self.refuse_queued(key, text.as_bytes());
        }
        let ours = match (command.answer, request.id) {
            (_, id::SELECT) => number::parse(request.arg(1))
                .and_then(|db| u32::try_from(db).ok())
                .map(Ours::Select),
            (_, id::AUTH) => return self.queue_auth(key, request),
            (_, id::HELLO) => return self.queue_hello(key, request),
            (_, id::PUBLISH | id::SPUBLISH | id::PUBSUB_NUMSUB | id::PUBSUB_SHARDNUMSUB) => {
                let name = request.args().nth(1).unwrap_or_default();
                Some(Ours::Counted(request.id, name.to_vec()))
            }
            (_, id::MONITOR) => Some(Ours::Said(NO_MONITOR)),
            (_, id::SSUBSCRIBE) => Some(Ours::Said(NO_SSUBSCRIBE)),
            (_, id::CLIENT_GETREDIR | id::CLIENT_TRACKINGINFO) => Some(Ours::NameTold),
            // Behind a SUBSCRIBE it is answered as to a subscriber.
            (_, id::PING) if self.has_steps(key) => Some(Ours::Here(request.keep())),
            (_, id::CLIENT_TRACKING) if let Some((at, to)) = redirect_asked(request) => {
                return self.track_for(key, request, at, to);
            }
            (_, id::CLIENT_TRACKING | id::CLIENT_NO_TOUCH | id::CLIENT_IMPORT_SOURCE) => {
                return self.queue_switch(key, Switch::of(request), None, request.bytes);
            }
            (_, id::SCRIPT_FLUSH) => Some(Ours::FlushScripts),
            (_, id::INFO | id::UNWATCH) => None,
            (Answer::Session | Answer::Pinned, _) => return self.queue_here(key, request),
            _ => self.names_at(key, command).map(Ours::Named),
        };
        if let Some(transaction) = self.transaction_of(key) {
            transaction.writes |= request_may_write(request);
        }
        self.enqueue(key, request.bytes, ours)
    }

    fn queue_auth(&mut self, key: Key, request: &Request<'_>) -> Placed {
        // Of users of our own the server knows nothing.
        let theirs = self.settings.users.is_empty();
        match auth_asked(request).filter(|_| theirs) {
            Some(whom) => self.queue_login(key, request, whom, request.bytes, None),
            None => self.queue_here(key, request),
        }
    }

    /// The server is asked for what is to hold for what follows, and not for the name: it would be
    /// our link's.
    fn queue_hello(&mut self, key: Key, request: &Request<'_>) -> Placed {
        let Ok(hello) = Hello::read(request) else {
            return self.queue_here(key, request);
        };
        let Some(version) = hello.version else {
            return self.queue_here(key, request);
        };
        let mut asked = Vec::new();
        let version = version.number().to_string();
        match hello.credentials {
            Some((name, password)) if self.settings.users.is_empty() => {
                let words = [b"HELLO", version.as_bytes(), b"AUTH", name, password];
                encode::request(&mut asked, &words);
                let rest = Some(hello.without_credentials());
                self.queue_login(key, request, (Some(name), password), &asked, rest)
            }
            Some((name, password)) if self.own_user(name, password).is_none() => {
                self.queue_here(key, request)
            }
            _ => {
                encode::request(&mut asked, &["HELLO", &version]);
                self.enqueue(key, &asked, Some(Ours::Hello(request.keep())))
            }
        }
    }

    /// `asked`: as the server is to be; `hello`: what is left of a HELLO then.
    fn queue_login(
        &mut self,
        key: Key,
        request: &Request<'_>,
        (name, password): (Option<&[u8]>, &[u8]),
        asked: &[u8],
        hello: Option<Kept>,
    ) -> Placed {
        let Some(login) = credentials(name, password) else {
            return self.queue_here(key, request);
        };
        // It counts when it is queued: EXEC asks about all of them at once.
        let claim = match self.server_login_gate(key, &login) {
            Gate::Open(claim) => claim,
            Gate::Wait => return Placed::Wait,
            Gate::Shut => {
                self.abort_transaction(key);
                return self.refuse_untried(key);
            }
        };
        self.end_login_turn(key);
        self.enqueue(
            key,
            asked,
            Some(Ours::Login {
                login,
                hello,
                claim,
            }),
        )
    }

    fn queue_here(&mut self, key: Key, request: &Request<'_>) -> Placed {
        self.enqueue(key, request.bytes, Some(Ours::Here(request.keep())))
    }

    /// `bytes`: as the server is to be asked.
    pub(crate) fn queue_switch(
        &mut self,
        key: Key,
        switch: Switch,
        redirect: Option<Redirect>,
        bytes: &[u8],
    ) -> Placed {
        let had = self.has_switched_on(key, switch.pins);
        let ours = Ours::Switch {
            switch,
            had,
            redirect,
        };
        self.enqueue(key, bytes, Some(ours))
    }

    fn enqueue(&mut self, key: Key, bytes: &[u8], ours: Option<Ours>) -> Placed {
        let max = self.settings.limits.transaction_bytes_max as usize;
        let is_short = self.memory.is_above_bound(self.held_bytes + bytes.len());
        let Some(transaction) = self.transaction_of(key) else {
            unreachable!("a session in MULTI has a transaction");
        };
        let before = transaction.held_bytes();
        if before + bytes.len() > max {
            let text = b"ERR respool: the transaction is larger than transaction-bytes-max";
            return self.refuse_queued(key, text);
        }
        if transaction.aborted {
            // It will never be sent: nothing more of it is kept.
            return self.answer_reply(key, b"+QUEUED\r\n");
        }
        if is_short {
            // It will never be sent.
            transaction.aborted = true;
            let names = std::mem::take(&mut transaction.scripts).len();
            let requests = std::mem::take(&mut transaction.requests).len();
            let freed = requests + names * size_of::<Name>();
            transaction.held -= freed;
            self.held_bytes -= freed;
            self.weigh(key);
            return self.answer_reply(key, &bound_reply("worker-memory-bytes-max"));
        }
        let mut held = ours.as_ref().map_or(0, Ours::held_bytes);
        let room = transaction.requests.capacity();
        if ours.as_ref().is_none_or(Ours::in_block) {
            transaction.requests.extend_from_slice(bytes);
            let id = id_of(bytes);
            if belief::runs_code(id)
                || id.is_some_and(|id| id == id::SCRIPT_LOAD || may_hold_up(id))
            {
                transaction.runs_code = true;
                let names = names_in(bytes);
                held += names.len() * size_of::<Name>();
                transaction.scripts.extend(names);
            }
            shrink(&mut transaction.requests);
            held += bytes.len();
        }
        transaction
            .ours
            .extend(ours.map(|ours| (transaction.count, ours)));
        transaction.count += 1;
        transaction.held += held;
        let has_grown = transaction.requests.capacity() != room;
        self.held_bytes += held;
        if has_grown {
            self.weigh(key);
        }
        self.answer_reply(key, b"+QUEUED\r\n")
    }

    /// Whether something of a transaction is executed here.
    fn has_steps(&mut self, key: Key) -> bool {
        self.transaction_of(key).is_some_and(|transaction| {
            let mut ours = transaction.ours.iter();
            ours.any(|(_, ours)| matches!(ours, Ours::Here(_)))
        })
    }

    /// The same for a command that the table does not have, and the server does.
    /// `taints`: it may do anything with its connection.
    pub(crate) fn queue_unknown(&mut self, key: Key, bytes: &[u8], taints: bool) -> Placed {
        if let Some(transaction) = self.transaction_of(key) {
            // What exactly it does is not known.
            transaction.writes = true;
            transaction.taints |= taints;
        }
        self.enqueue(key, bytes, None)
    }

    /// What one server's flags forbid and the one behind us allows.
    fn is_allowed_in_multi(&self, key: Key, request: &Request<'_>) -> bool {
        request.id == id::CLIENT_REPLY && !self.speaks_of_commands_in_transactions(key)
    }

    fn exec(&mut self, key: Key, closing: &[u8]) -> Placed {
        let Some(transaction) = self.transaction_of(key) else {
            unreachable!("a session in MULTI has a transaction");
        };
        if transaction.aborted {
            let text = b"-EXECABORT Transaction discarded because of previous errors.\r\n";
            return self.leave_transaction(key, text);
        }
        let ours = || transaction.ours.iter().map(|(_, ours)| ours);
        let about_session = ours().any(Ours::is_about_session);
        let taints = transaction.taints || ours().any(Ours::leaves_trace);
        let pins = ours().filter_map(Ours::pins);
        let pins: Vec<Pins> = pins.chain(taints.then_some(Pins::ONCE)).collect();
        if self.has_lost_watch(key) {
            let version = self.sessions.get(key).map(|session| session.version);
            let mut nil = Vec::new();
            encode::null_array(&mut nil, version.unwrap_or_default());
            return self.leave_transaction(key, &nil);
        }
        if about_session && self.hold_until_caught_up(key) {
            return Placed::Wait;
        }
        if let Some(reply) = self.refusal_of_redirects(key, pins.is_empty()) {
            return self.leave_transaction(key, &reply);
        }
        self.turn_to_queued(key);
        for pins in pins {
            match self.pin(key, pins) {
                Ok(()) => {}
                Err(Blocked::Wait) => return Placed::Wait,
                Err(Blocked::Refused(reply)) => return self.leave_transaction(key, &reply),
            }
        }
        if taints {
            self.taint_own_link(key);
        }
        let code = self
            .transaction_of(key)
            .filter(|transaction| transaction.runs_code)
            .map(|transaction| transaction.requests.clone());
        match code {
            Some(code) => self.place_any_code(key, &code, |engine| {
                engine.send_block(key, closing, about_session)
            }),
            None => self.send_block(key, closing, about_session),
        }
    }

    /// EXEC: the block goes to the server.
    fn send_block(&mut self, key: Key, closing: &[u8], about_session: bool) -> Placed {
        let scripts = self
            .transaction_of(key)
            .map(|transaction| transaction.scripts.clone());
        let mut scripts = scripts.unwrap_or_default();
        // A block may name one script a thousand times.
        scripts.sort_unstable();
        scripts.dedup();
        match self.load_scripts(key, &scripts) {
            Ok(_) => {}
            Err(Blocked::Wait) => return Placed::Wait,
            Err(Blocked::Refused(reply)) => return self.leave_transaction(key, &reply),
        }
        let (block, duty) = self.block_of(key, closing);
        match self.place_with(key, &block, false, duty) {
            Ok(placed) => {
                self.end_transaction(key);
                self.counters.transactions += 1;
                self.unpin(key, Pins::WATCH.with(Pins::ONCE));
                if about_session {
                    // What becomes of the session will be known when the result is.
                    self.hold_until_caught_up(key);
                }
                placed
            }
            Err(Duty::Block { exec, .. }) => {
                // It has to wait, and is built again then.
                if let (Some(exec), Some(transaction)) = (exec, self.transaction_of(key)) {
                    transaction.ours = exec.ours;
                }
                Placed::Wait
            }
            Err(_) => unreachable!("the duty given back is the one that was given"),
        }
    }

    /// To how many other sessions than this one a transaction redirects already.
    pub(crate) fn redirects_queued(&mut self, key: Key, but: u64) -> usize {
        let Some(transaction) = self.transaction_of(key) else {
            return 0;
        };
        let redirects = transaction.ours.iter().filter_map(|(_, ours)| match ours {
            Ours::Switch { redirect, .. } => redirect.as_ref(),
            _ => None,
        });
        let others: HashSet<u64> = redirects
            .map(|one| one.to)
            .filter(|to| *to != but)
            .collect();
        others.len()
    }

    /// What an EXEC is told whose CLIENT TRACKING redirects, if it cannot be executed now.
    fn refusal_of_redirects(&self, key: Key, needs_none: bool) -> Option<Vec<u8>> {
        let session = self.sessions.get(key)?;
        let transaction = session.rare.as_ref()?.transaction.as_ref()?;
        let redirect = |(_, ours): &(u32, Ours)| match ours {
            Ours::Switch { redirect, .. } => redirect.clone(),
            _ => None,
        };
        let mut redirects = transaction.ours.iter().filter_map(redirect).peekable();
        redirects.peek()?;
        if redirects.any(|redirect| self.has_lost(&redirect)) {
            return Some(LOST_REDIRECT.to_vec());
        }
        // Who holds one of the links that have a bound must not wait for another: others may do the
        // same.
        let full = !self.may_have_own_link(key);
        (full && !needs_none && session.pins.is_empty()).then(|| bound_reply("pinned-links-max"))
    }

    /// What a session has queued, as it goes to the server; and what becomes of the result.
    fn block_of(&mut self, key: Key, closing: &[u8]) -> (Vec<u8>, Duty) {
        let Some(session) = self.sessions.get_mut(key) else {
            unreachable!("it is the session's own request");
        };
        let watched = session.pins.any(Pins::WATCH);
        let rare = session.rare.as_mut();
        let Some(transaction) = rare.and_then(|rare| rare.transaction.as_mut()) else {
            unreachable!("a session in MULTI has a transaction");
        };
        let (count, ours) = (transaction.count, std::mem::take(&mut transaction.ours));
        let mut block = Vec::with_capacity(transaction.held_bytes() + 64);
        block.extend_from_slice(&transaction.opening);
        block.extend_from_slice(&transaction.requests);
        block.extend_from_slice(closing);
        let in_block = count - left_out(&ours);
        let exec = (!ours.is_empty()).then(|| Box::new(Exec { count, ours }));
        let duty = Duty::Block {
            before: 1 + in_block,
            came: 0,
            exec,
            opens: true,
            refusal: None,
            watched,
            code: transaction.runs_code,
        };
        (block, duty)
    }

    /// The result of a block in which some requests were ours.
    pub(crate) fn settle_exec(&mut self, link: Key, entry: Entry, exec: Exec, result: &[u8]) {
        let key = self.owner_of(link, entry);
        let expected = exec.count - left_out(&exec.ours);
        let elements = match elements_of(result) {
            Some(elements) if elements.len() == expected as usize => elements,
            // An error, or nil; nothing was executed.
            _ => {
                for (_, ours) in exec.ours {
                    if let Ours::Switch { switch, had, .. } = ours {
                        self.settle_switch(key, (switch, had), None, b"");
                    }
                }
                return self.pass_on(entry, result);
            }
        };
        let woven = self.weave(link, key, exec, elements);
        let given_up = entry.session == Key::NOBODY;
        let db = woven.within.db;
        if !woven.steps.is_empty() && !given_up {
            self.begin_steps(key, woven.steps, (entry.silent, entry.at_ms));
        }
        let session = self.sessions.get_mut(key);
        if let Some(session) = session.filter(|session| session.db != db)
            && let Some(link) = self.links.get_mut(link)
        {
            // The link is the session's own.
            session.db = db;
            link.key.db = db;
        }
        self.pass_on(entry, &woven.first);
    }

    /// Puts what the server has executed and what is ours into the order in which it was queued.
    fn weave(&mut self, link: Key, key: Key, exec: Exec, elements: Vec<&[u8]>) -> Woven {
        let session = self.sessions.get(key);
        let pool = session.map(|session| session.pool);
        let mut woven = Woven {
            first: Vec::new(),
            steps: VecDeque::new(),
            within: Within {
                count: exec.count,
                db: session.map_or(0, |session| session.db),
                user: session.map_or(CONFIGURED, |session| session.user),
            },
        };
        encode::array(&mut woven.first, exec.count as usize);
        let mut ours = exec.ours.into_iter().peekable();
        let mut elements = elements.into_iter();
        for index in 0..exec.count {
            let own = ours.next_if(|(place, _)| *place == index);
            let own = own.map(|(_, own)| own);
            let element = match own.as_ref().is_none_or(Ours::in_block) {
                true => elements.next().unwrap_or_default(),
                false => b"",
            };
            match own {
                None | Some(Ours::FlushScripts) => woven.say(element),
                Some(Ours::Switch {
                    switch,
                    had,
                    redirect,
                }) => {
                    self.settle_switch(key, (switch, had), redirect, element);
                    woven.say(element);
                }
                Some(Ours::Named(names)) => woven.say(&self.named_by(link, names, None, element)),
                Some(Ours::NameTold) => woven.say(&self.name_told(key, element)),
                Some(Ours::Select(selected)) => {
                    if element.starts_with(b"+") {
                        woven.within.db = selected;
                    }
                    woven.say(element);
                }
                Some(Ours::Here(request) | Ours::Hello(request)) => woven.ask(request),
                Some(Ours::Login {
                    ref hello, claim, ..
                }) if !agrees(hello.is_some(), element) => {
                    self.login_was_wrong(key, claim);
                    woven.say(element);
                }
                Some(Ours::Login {
                    login,
                    hello,
                    claim,
                }) => {
                    self.login_was_right(claim);
                    // Not before it has proved right: who may name users is anybody.
                    let Some(user) = self.place_of_login(key, login) else {
                        self.close_for(key, String::from("LOGINS_MAX: it is a user too many"));
                        return woven;
                    };
                    self.become_user(key, link, (user, woven.within.db));
                    woven.within.user = user;
                    match hello {
                        Some(rest) => woven.ask(rest),
                        None => woven.say(element),
                    }
                }
                Some(Ours::Counted(id, name)) => match self.count_duty(key, id, &name).zip(pool) {
                    Some((duty, pool)) => woven.say(&self.recount(pool, &duty, element)),
                    None => woven.say(element),
                },
                Some(Ours::Said(reply)) => woven.say(reply),
            }
        }
        woven
    }
}

/// The reply to an EXEC, put together.
struct Woven {
    /// What is known of it, up to the first step.
    first: Vec<u8>,
    steps: VecDeque<Step>,
    /// What the session is behind what was put together so far.
    within: Within,
}

impl Woven {
    fn say(&mut self, bytes: &[u8]) {
        match self.steps.back_mut() {
            Some(Step::Reply(last)) => last.extend_from_slice(bytes),
            Some(Step::Request { .. }) => self.steps.push_back(Step::Reply(bytes.to_vec())),
            None => self.first.extend_from_slice(bytes),
        }
    }

    fn ask(&mut self, request: Kept) {
        let within = Some(self.within);
        self.steps.push_back(Step::Request { request, within });
    }
}

/// As Redis says it when it executes what was queued (`monitorCommand`, `ssubscribeCommand`).
const NO_SSUBSCRIBE: &[u8] = b"-ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client\r\n";
/// The connection that was to stand for the client that is named.
const LOST_REDIRECT: &[u8] = b"-NOTSENT respool: the command was not executed; the connection that stood for the client to redirect to was lost\r\n";
const NO_MONITOR: &[u8] = b"-ERR MONITOR isn't allowed for DENY BLOCKING client\r\n";

/// Whether that is the reply to an AUTH, or to a HELLO with one, that was right.
fn agrees(in_hello: bool, element: &[u8]) -> bool {
    match in_hello {
        true => matches!(element.first(), Some(b'*' | b'%')),
        false => element == b"+OK\r\n",
    }
}

/// The elements of an array, each with its bytes. `None` if it is none: a message in it is none of
/// them, and was sent because one did not come.
pub(crate) fn elements_of(array: &[u8]) -> Option<Vec<&[u8]>> {
    let header = array.windows(2).position(|end| end == b"\r\n")?;
    let (b'*', count) = array
        .split_first()
        .map(|(kind, _)| (*kind, &array[1..header]))?
    else {
        return None;
    };
    let count = usize::try_from(number::parse(count)?).ok()?;
    let mut rest = &array[header + 2..];
    let mut elements = Vec::new();
    for _ in 0..count {
        let Ok(Scanned::Whole(len)) = reply::Scanner::default().scan(rest) else {
            return None;
        };
        if rest[0] == b'>' {
            return None;
        }
        elements.push(&rest[..len]);
        rest = &rest[len..];
    }
    rest.is_empty().then_some(elements)
}

#[cfg(test)]
mod tests {
    use super::elements_of;

    #[test]
    fn an_array_is_cut_into_its_elements_and_nothing_else_is() {
        let array = b"*3\r\n:1\r\n*2\r\n$1\r\na\r\n+b\r\n$-1\r\n";
        let elements: [&[u8]; 3] = [b":1\r\n", b"*2\r\n$1\r\na\r\n+b\r\n", b"$-1\r\n"];
        assert_eq!(elements_of(array).as_deref(), Some(&elements[..]));
        assert_eq!(elements_of(b"*0\r\n"), Some(vec![]));
        for other in [
            &b"*-1\r\n"[..],
            b"*1\r\n>1\r\n:1\r\n",
            b"_\r\n",
            b"-EXECABORT x\r\n",
            b"*2\r\n:1\r\n",
            b"*1\r\n:1\r\n:2\r\n",
            b"",
        ] {
            assert_eq!(elements_of(other), None);
        }
    }
}

//! Transactions: respool queues MULTI to EXEC and sends them as one block, so a transaction needs
//! no link of its own.
//!
//! ```text
//!   client:   MULTI   SET a 1   INCR b   EXEC
//!   respool:   OK     QUEUED    QUEUED          then the reply of the server's EXEC
//!   server:  [ MULTI  SET a 1   INCR b   EXEC ]          one entry of the ledger, one fate
//! ```
//!
//! While it queues, respool answers as Redis does. It refuses unknown commands and wrong numbers of
//! arguments, and then refuses EXEC. The block is one request in the ledger. If the block was not
//! written whole, its EXEC was not written, and the server has executed nothing of it.

use std::collections::{HashSet, VecDeque};

use respool_protocol::commands::{Answer, Flags as CommandFlags, id};
use respool_protocol::reply::{self, Scanned};
use respool_protocol::{encode, number};

use crate::access::auth::{auth_asked, credentials};
use crate::access::login_probe::LoginGate;
use crate::base::buffer::shrink;
use crate::base::handle::{CONFIGURED, LinkId, SessionId};
use crate::base::session_map::SessionMap;
use crate::data_plane::DataPlane;
use crate::data_plane::charges::{Charge, ChargeKind};
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::pinned::ConnectionSwitch;
use crate::data_plane::completion::pinned::TrackingRedirect;
use crate::data_plane::completion::transaction::TransactionCompletion;
use crate::data_plane::completion::transaction::{Exec, LocalResult};
use crate::data_plane::composite::{CompositeReply, ReplyStep};
use crate::data_plane::ingress::{Blocked, DeferredCheck, Dispatched, Request, bound_reply};
use crate::data_plane::ledger::Entry;
use crate::data_plane::pause::request_may_write;
use crate::data_plane::quick_code::CodeLane;
use crate::data_plane::quick_code::may_hold_up;
use crate::data_plane::scripts::{ScriptHash, names_in};
use crate::data_plane::sent_request::id_of;
use crate::data_plane::session::{Flags, OpenTransaction, Pins};
use crate::engine::Engine;
use crate::local::HelloArgs;
use crate::pinned::tracking_redirect::redirect_asked;
use crate::redirect::refusals;
use crate::routing::pool::Group;

/// Transactions: requests between MULTI and EXEC.
#[derive(Default)]
pub(crate) struct Transactions {
    /// The requests of open transactions.
    queued: SessionMap<Transaction>,
}

/// The requests that a session has queued since MULTI.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    /// MULTI as the client wrote it: the server may have renamed the command.
    opening: Vec<u8>,
    /// The bytes of the queued requests, one behind the other.
    requests: Vec<u8>,
    /// A queued request runs code, loads a script, or may hold up its connection.
    runs_code: bool,
    /// The scripts that the queued requests name.
    scripts: Vec<ScriptHash>,
    /// Bytes that the transaction holds.
    held: usize,
    /// A request leaves a trace on its connection. So the session needs its own link, which nothing
    /// uses afterwards.
    taints: bool,
    /// Requests whose results respool makes or changes, with their places.
    local_results: Vec<(u32, LocalResult)>,
}

/// The number of requests that are not in the block.
fn left_out(local_results: &[(u32, LocalResult)]) -> u32 {
    let left_out = local_results
        .iter()
        .filter(|(_, result)| !result.in_block());
    left_out.count() as u32
}

impl Transaction {
    /// Its memory: the held bytes and the unused room of its buffers.
    fn charge(&self) -> Charge {
        let room = |capacity: usize, len: usize| capacity - len;
        let memory = self.held
            + room(self.requests.capacity(), self.requests.len())
            + room(self.local_results.capacity(), self.local_results.len())
                * size_of::<(u32, LocalResult)>();
        Charge {
            counted: self.held,
            memory,
        }
    }
}

impl Engine {
    /// Answers MULTI, WATCH, UNWATCH, DISCARD and EXEC.
    pub(crate) fn answer_transaction(
        &mut self,
        session_id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        let in_multi = self.transactions.is_in_multi(&self.plane, session_id);
        match request.id {
            id::MULTI if in_multi => {
                self.refuse_nested(session_id, request, "MULTI calls can not be nested")
            }
            id::MULTI => {
                if !self.know_opening(session_id, request.bytes) {
                    return Dispatched::Wait;
                }
                if let Some(refusal) = self.local.refusal_to_open(&self.plane, session_id) {
                    return self.plane.answer_reply(session_id, &refusal);
                }
                self.transactions
                    .begin_transaction(&mut self.plane, session_id, request.bytes);
                self.plane.answer_reply(session_id, b"+OK\r\n")
            }
            id::WATCH if in_multi => {
                self.refuse_nested(session_id, request, "WATCH inside MULTI is not allowed")
            }
            id::WATCH => match self.pinned.pin(&mut self.plane, session_id, Pins::WATCH) {
                Ok(()) => {
                    if let Some(session) = self.plane.sessions.get_mut(session_id) {
                        session.flags |= Flags::HAS_QUEUED;
                    }
                    self.dispatch_on_link(session_id, request.bytes, false, None)
                }
                Err(blocked) => self.plane.blocked(session_id, blocked),
            },
            id::UNWATCH => {
                self.transactions
                    .forget_lost_watch(&mut self.plane, session_id);
                match self.transactions.watches(&self.plane, session_id) {
                    true => self.unwatch(session_id, request.bytes, None),
                    false => self.dispatch_on_link(session_id, request.bytes, false, None),
                }
            }
            id::DISCARD if !in_multi => self.answer_error(session_id, b"ERR DISCARD without MULTI"),
            id::DISCARD => self.leave_transaction(session_id, b"+OK\r\n"),
            _ if !in_multi => self.answer_error(session_id, b"ERR EXEC without MULTI"),
            _ => self.exec(session_id, request.bytes),
        }
    }

    /// Refuses MULTI or WATCH inside MULTI. Newer servers abort the transaction for it.
    fn refuse_nested(&mut self, id: SessionId, request: &Request<'_>, text: &str) -> Dispatched {
        if self
            .transactions
            .speaks_of_commands_in_transactions(&self.plane, id)
        {
            let text = format!(
                "ERR Command '{}' not allowed inside a transaction",
                request.command.name
            );
            return self.refuse_queued(id, text.as_bytes());
        }
        self.answer_error(id, format!("ERR {text}").as_bytes())
    }

    /// Ends the watch that a session has at the server. The client gets `instead`, or the server's
    /// reply.
    fn unwatch(&mut self, id: SessionId, request: &[u8], instead: Option<&[u8]>) -> Dispatched {
        let instead = instead.map(<[u8]>::to_vec);
        let placed = self.dispatch_on_link(
            id,
            request,
            false,
            Some(Completion::Transaction(TransactionCompletion::Unwatch {
                instead,
            })),
        );
        if placed == Dispatched::Done {
            self.pinned.unpin(&mut self.plane, id, Pins::WATCH);
        }
        placed
    }

    /// Ends a transaction that was not sent. The client gets this reply.
    pub(crate) fn leave_transaction(&mut self, id: SessionId, reply: &[u8]) -> Dispatched {
        let mut unwatch = Vec::new();
        encode::request(&mut unwatch, &["UNWATCH"]);
        let placed = match self.transactions.watches(&self.plane, id) {
            true => self.unwatch(id, &unwatch, Some(reply)),
            false => self.plane.answer_reply(id, reply),
        };
        if placed == Dispatched::Done {
            self.transactions.forget_lost_watch(&mut self.plane, id);
            self.transactions.end_transaction(&mut self.plane, id);
        }
        placed
    }

    /// Refuses a request. If the session is in MULTI, its EXEC will fail.
    pub(crate) fn refuse_queued(&mut self, id: SessionId, text: &[u8]) -> Dispatched {
        self.plane.abort_transaction(id);
        self.answer_error(id, text)
    }

    /// Refuses a malformed EXEC, which ends its transaction.
    pub(crate) fn refuse_exec(&mut self, id: SessionId, text: &[u8]) -> Dispatched {
        let why = text.strip_prefix(b"ERR ").unwrap_or(text);
        let mut reply = Vec::new();
        encode::error(
            &mut reply,
            &[b"EXECABORT Transaction discarded because of: ", why].concat(),
        );
        self.leave_transaction(id, &reply)
    }

    /// Queues a request of a session in MULTI. The requests that end a transaction do not come
    /// here.
    pub(crate) fn queue(&mut self, session_id: SessionId, request: &Request<'_>) -> Dispatched {
        let command = request.command;
        if command.flags.has(CommandFlags::NO_MULTI)
            && !self
                .transactions
                .is_allowed_in_multi(&self.plane, session_id, request)
        {
            let text = if self
                .transactions
                .speaks_of_commands_in_transactions(&self.plane, session_id)
            {
                format!(
                    "ERR Command '{}' not allowed inside a transaction",
                    command.name
                )
            } else {
                String::from("ERR Command not allowed inside a transaction")
            };
            return self.refuse_queued(session_id, text.as_bytes());
        }
        let local_result = match (command.answer, request.id) {
            (_, id::SELECT) => number::parse(request.arg(1))
                .and_then(|db| u32::try_from(db).ok())
                .map(LocalResult::Select),
            (_, id::AUTH) => return self.queue_auth(session_id, request),
            (_, id::HELLO) => return self.queue_hello(session_id, request),
            (_, id::PUBLISH | id::SPUBLISH | id::PUBSUB_NUMSUB | id::PUBSUB_SHARDNUMSUB) => {
                let name = request.args().nth(1).unwrap_or_default();
                Some(LocalResult::Counted(request.id, name.to_vec()))
            }
            (_, id::MONITOR) => Some(LocalResult::Constant(NO_MONITOR)),
            (_, id::SSUBSCRIBE) => Some(LocalResult::Constant(NO_SSUBSCRIBE)),
            (_, id::CLIENT_GETREDIR | id::CLIENT_TRACKINGINFO) => Some(LocalResult::RedirectName),
            // After a SUBSCRIBE in the same transaction, PING is answered as to a subscriber.
            (_, id::PING) if self.transactions.has_steps(session_id) => {
                Some(LocalResult::Local(request.keep()))
            }
            (_, id::CLIENT_TRACKING) if let Some((at, to)) = redirect_asked(request) => {
                return self.track_for(session_id, request, at, to);
            }
            (_, id::CLIENT_TRACKING | id::CLIENT_NO_TOUCH | id::CLIENT_IMPORT_SOURCE) => {
                return self.queue_switch(
                    session_id,
                    ConnectionSwitch::of(request),
                    None,
                    request.bytes,
                );
            }
            (_, id::SCRIPT_FLUSH) => Some(LocalResult::FlushScripts),
            (_, id::INFO | id::UNWATCH) => None,
            (Answer::Session | Answer::Pinned, _) => return self.queue_local(session_id, request),
            _ => self
                .scatter
                .names_at(&self.plane, session_id, command)
                .map(LocalResult::Named),
        };
        if let Some(transaction) = self.plane.transaction_of(session_id) {
            transaction.writes |= request_may_write(request);
        }
        self.enqueue(session_id, request.bytes, local_result)
    }

    /// Queues AUTH.
    fn queue_auth(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        // The server does not know the users that respool configures.
        let has_server_users = self.plane.settings.users.is_empty();
        match auth_asked(request).filter(|_| has_server_users) {
            Some(login) => self.queue_login(id, request, login, request.bytes, None),
            None => self.queue_local(id, request),
        }
    }

    /// Queues HELLO. The block has it with version and credentials, which hold for the requests
    /// behind it. The name stays out: at the server it would be the link's.
    fn queue_hello(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        let Ok(hello) = HelloArgs::read(request) else {
            return self.queue_local(id, request);
        };
        let Some(version) = hello.version else {
            return self.queue_local(id, request);
        };
        let mut asked = Vec::new();
        let version = version.number().to_string();
        match hello.credentials {
            Some((name, password)) if self.plane.settings.users.is_empty() => {
                let words = [b"HELLO", version.as_bytes(), b"AUTH", name, password];
                encode::request(&mut asked, &words);
                let rest = Some(hello.without_credentials());
                self.queue_login(id, request, (Some(name), password), &asked, rest)
            }
            Some((name, password)) if self.plane.own_user(name, password).is_none() => {
                self.queue_local(id, request)
            }
            _ => {
                encode::request(&mut asked, &["HELLO", &version]);
                self.enqueue(id, &asked, Some(LocalResult::Hello(request.keep())))
            }
        }
    }

    /// Queues a login. `asked`: the bytes for the server. `hello`: the rest of a HELLO, without the
    /// credentials.
    fn queue_login(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
        (name, password): (Option<&[u8]>, &[u8]),
        asked: &[u8],
        hello: Option<DeferredCheck>,
    ) -> Dispatched {
        let Some(login) = credentials(name, password) else {
            return self.queue_local(id, request);
        };
        // The login attempt counts when it is queued: EXEC tries all of them at once.
        let claim = match self.server_login_gate(id, &login) {
            LoginGate::Open(claim) => claim,
            LoginGate::Wait => return Dispatched::Wait,
            LoginGate::Shut => {
                self.plane.abort_transaction(id);
                return self.access.refuse_untried(&mut self.plane, id);
            }
        };
        self.access.end_login_turn(id);
        self.enqueue(
            id,
            asked,
            Some(LocalResult::Login {
                login,
                hello,
                claim,
            }),
        )
    }

    /// Queues a request about the session, which respool answers after the block.
    fn queue_local(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        self.enqueue(id, request.bytes, Some(LocalResult::Local(request.keep())))
    }

    /// Queues a switch such as CLIENT TRACKING. `bytes`: the request for the server.
    pub(crate) fn queue_switch(
        &mut self,
        id: SessionId,
        switch: ConnectionSwitch,
        redirect: Option<TrackingRedirect>,
        bytes: &[u8],
    ) -> Dispatched {
        let had = self.pinned.has_switched_on(&self.plane, id, switch.pins);
        let local_result = LocalResult::Switch {
            switch,
            had,
            redirect,
        };
        self.enqueue(id, bytes, Some(local_result))
    }

    /// Adds a request to the transaction and answers QUEUED. `bytes`: the request for the server.
    fn enqueue(
        &mut self,
        session_id: SessionId,
        bytes: &[u8],
        local_result: Option<LocalResult>,
    ) -> Dispatched {
        let max = self.plane.settings.limits.transaction_bytes_max as usize;
        let is_short = self
            .plane
            .memory
            .is_above_bound(self.plane.held_bytes + bytes.len());
        let transaction = self.transactions.queued.get_mut(session_id);
        let facts = self.plane.transaction_of(session_id);
        let (Some(transaction), Some(facts)) = (transaction, facts) else {
            unreachable!("a session in MULTI has a transaction");
        };
        if transaction.held + bytes.len() > max {
            let text = b"ERR respool: the transaction is larger than transaction-bytes-max";
            return self.refuse_queued(session_id, text);
        }
        if facts.aborted {
            // An aborted transaction is never sent, so nothing more of it is kept.
            return self.plane.answer_reply(session_id, b"+QUEUED\r\n");
        }
        if is_short {
            // There is no memory for the request: the transaction will never be sent.
            facts.aborted = true;
            let names = std::mem::take(&mut transaction.scripts).len();
            let requests = std::mem::take(&mut transaction.requests).len();
            let freed = requests + names * size_of::<ScriptHash>();
            transaction.held -= freed;
            let charge = transaction.charge();
            self.plane
                .charge(session_id, ChargeKind::Transaction, charge);
            self.plane.weigh(session_id);
            return self
                .plane
                .answer_reply(session_id, &bound_reply("worker-memory-bytes-max"));
        }
        let mut held = local_result.as_ref().map_or(0, LocalResult::held_bytes);
        let room = transaction.requests.capacity();
        if local_result.as_ref().is_none_or(LocalResult::in_block) {
            transaction.requests.extend_from_slice(bytes);
            let id = id_of(bytes);
            if refusals::runs_code(id)
                || id.is_some_and(|id| id == id::SCRIPT_LOAD || may_hold_up(id))
            {
                transaction.runs_code = true;
                let names = names_in(bytes);
                held += names.len() * size_of::<ScriptHash>();
                transaction.scripts.extend(names);
            }
            shrink(&mut transaction.requests);
            held += bytes.len();
        }
        transaction
            .local_results
            .extend(local_result.map(|local_result| (facts.count, local_result)));
        facts.count += 1;
        transaction.held += held;
        let has_grown = transaction.requests.capacity() != room;
        let charge = transaction.charge();
        self.plane
            .charge(session_id, ChargeKind::Transaction, charge);
        if has_grown {
            self.plane.weigh(session_id);
        }
        self.plane.answer_reply(session_id, b"+QUEUED\r\n")
    }

    /// Queues a command that the server has and the table does not. `taints`: it may change its
    /// connection in any way.
    pub(crate) fn queue_unknown(
        &mut self,
        id: SessionId,
        bytes: &[u8],
        taints: bool,
    ) -> Dispatched {
        if let Some(facts) = self.plane.transaction_of(id) {
            // The table does not say what the command does.
            facts.writes = true;
        }
        if let Some(transaction) = self.transactions.queued.get_mut(id) {
            transaction.taints |= taints;
        }
        self.enqueue(id, bytes, None)
    }

    /// Handles EXEC: pins the session if the block needs it, and sends the block.
    fn exec(&mut self, id: SessionId, closing: &[u8]) -> Dispatched {
        let is_aborted = |facts: &mut OpenTransaction| facts.aborted;
        if self.plane.transaction_of(id).is_some_and(is_aborted) {
            let text = b"-EXECABORT Transaction discarded because of previous errors.\r\n";
            return self.leave_transaction(id, text);
        }
        let Some(transaction) = self.transactions.queued.get(id) else {
            unreachable!("a session in MULTI has a transaction");
        };
        let local_results = || transaction.local_results.iter().map(|(_, result)| result);
        let about_session = local_results().any(LocalResult::is_about_session);
        let taints = transaction.taints || local_results().any(LocalResult::leaves_trace);
        let pins = local_results().filter_map(LocalResult::pins);
        let pins: Vec<Pins> = pins.chain(taints.then_some(Pins::ONCE)).collect();
        if self.transactions.has_lost_watch(&self.plane, id) {
            let version = self.plane.sessions.get(id).map(|session| session.version);
            let mut nil = Vec::new();
            encode::null_array(&mut nil, version.unwrap_or_default());
            return self.leave_transaction(id, &nil);
        }
        if about_session && self.plane.hold_until_caught_up(id) {
            return Dispatched::Wait;
        }
        if let Some(reply) = self.refusal_of_redirects(id, pins.is_empty()) {
            return self.leave_transaction(id, &reply);
        }
        if let Some(group) = self.transactions.queued_group(&self.plane, id) {
            self.plane.switch_to_group(id, group);
        }
        for pins in pins {
            match self.pinned.pin(&mut self.plane, id, pins) {
                Ok(()) => {}
                Err(Blocked::Wait) => return Dispatched::Wait,
                Err(Blocked::Refused(reply)) => return self.leave_transaction(id, &reply),
            }
        }
        if taints {
            self.plane.taint_own_link(id);
        }
        let code = self
            .transactions
            .queued
            .get(id)
            .filter(|transaction| transaction.runs_code)
            .map(|transaction| transaction.requests.clone());
        let lane = code.map_or(CodeLane::Common, |code| {
            self.plane.enter_code_lane_with(id, &code)
        });
        if lane == CodeLane::Waits {
            return Dispatched::Wait;
        }
        let placed = self.send_block(id, closing, about_session);
        self.plane.leave_code_lane(id, lane);
        placed
    }

    /// Sends the block of an EXEC to the server.
    fn send_block(&mut self, id: SessionId, closing: &[u8], about_session: bool) -> Dispatched {
        let scripts = self
            .transactions
            .queued
            .get(id)
            .map(|transaction| transaction.scripts.clone());
        let mut scripts = scripts.unwrap_or_default();
        // A block may name one script a thousand times.
        scripts.sort_unstable();
        scripts.dedup();
        match self.load_scripts(id, &scripts) {
            Ok(_) => {}
            Err(Blocked::Wait) => return Dispatched::Wait,
            Err(Blocked::Refused(reply)) => return self.leave_transaction(id, &reply),
        }
        let (block, duty) = self.transactions.block_of(&self.plane, id, closing);
        match self.dispatch_with(id, &block, false, duty) {
            Ok(placed) => {
                self.transactions.end_transaction(&mut self.plane, id);
                self.plane.counters.transactions += 1;
                self.pinned
                    .unpin(&mut self.plane, id, Pins::WATCH.with(Pins::ONCE));
                if about_session {
                    // The result decides about the session's state, so later requests wait for it.
                    self.plane.hold_until_caught_up(id);
                }
                placed
            }
            Err(Completion::Block { exec, .. }) => {
                // The block has to wait. It is built again for the next attempt.
                if let (Some(exec), Some(transaction)) =
                    (exec, self.transactions.queued.get_mut(id))
                {
                    transaction.local_results = exec.local_results;
                }
                Dispatched::Wait
            }
            Err(_) => unreachable!("the completion that comes back is the block's"),
        }
    }

    /// The refusal of an EXEC with CLIENT TRACKING REDIRECT in it, if it cannot be executed now.
    fn refusal_of_redirects(&self, id: SessionId, needs_none: bool) -> Option<Vec<u8>> {
        let session = self.plane.sessions.get(id)?;
        let transaction = self.transactions.queued.get(id)?;
        let redirect = |(_, local_result): &(u32, LocalResult)| match local_result {
            LocalResult::Switch { redirect, .. } => redirect.clone(),
            _ => None,
        };
        let mut redirects = transaction
            .local_results
            .iter()
            .filter_map(redirect)
            .peekable();
        redirects.peek()?;
        if redirects.any(|redirect| self.pinned.has_lost(&self.plane, &redirect)) {
            return Some(LOST_REDIRECT.to_vec());
        }
        // A session that holds one of the bounded links must not wait for a second one: another
        // session may do the same, and both would wait.
        let full = !self.pinned.may_have_own_link(&self.plane, id);
        (full && !needs_none && session.pins.is_empty()).then(|| bound_reply("pinned-links-max"))
    }

    /// Completes the result of a block with the results that respool makes or changes.
    pub(crate) fn settle_exec(&mut self, link: LinkId, entry: Entry, exec: Exec, result: &[u8]) {
        let id = self.plane.owner_of(link, entry);
        let expected = exec.count - left_out(&exec.local_results);
        let elements = match elements_of(result) {
            Some(elements) if elements.len() == expected as usize => elements,
            // An error or nil: nothing was executed.
            _ => {
                for (_, local_result) in exec.local_results {
                    if let LocalResult::Switch { switch, had, .. } = local_result {
                        self.pinned
                            .settle_switch(&mut self.plane, id, (switch, had), None, b"");
                    }
                }
                return self.pass_on(entry, result);
            }
        };
        let exec_reply = self.merge_results(link, id, exec, elements);
        let given_up = entry.session == SessionId::NONE;
        let db = exec_reply.within.db;
        if !exec_reply.steps.is_empty() && !given_up {
            self.plane
                .begin_steps(id, exec_reply.steps, (entry.silent, entry.at_ms));
        }
        let session = self.plane.sessions.get_mut(id);
        if let Some(session) = session.filter(|session| session.db != db)
            && let Some(link) = self.plane.links.get_mut(link)
        {
            // The link is the session's own.
            session.db = db;
            link.kind.db = db;
        }
        self.pass_on(entry, &exec_reply.first);
    }

    /// Puts the server's results and those of respool into the order in which the requests were
    /// queued.
    fn merge_results(
        &mut self,
        link: LinkId,
        session_id: SessionId,
        exec: Exec,
        elements: Vec<&[u8]>,
    ) -> ExecReply {
        let session = self.plane.sessions.get(session_id);
        let pool = session.map(|session| session.pool);
        let mut exec_reply = ExecReply {
            first: Vec::new(),
            steps: VecDeque::new(),
            within: CompositeReply {
                count: exec.count,
                db: session.map_or(0, |session| session.db),
                user: session.map_or(CONFIGURED, |session| session.user),
            },
        };
        encode::array(&mut exec_reply.first, exec.count as usize);
        let mut local_results = exec.local_results.into_iter().peekable();
        let mut elements = elements.into_iter();
        for index in 0..exec.count {
            let own = local_results.next_if(|(place, _)| *place == index);
            let own = own.map(|(_, own)| own);
            let element = match own.as_ref().is_none_or(LocalResult::in_block) {
                true => elements.next().unwrap_or_default(),
                false => b"",
            };
            match own {
                None | Some(LocalResult::FlushScripts) => exec_reply.say(element),
                Some(LocalResult::Switch {
                    switch,
                    had,
                    redirect,
                }) => {
                    self.pinned.settle_switch(
                        &mut self.plane,
                        session_id,
                        (switch, had),
                        redirect,
                        element,
                    );
                    exec_reply.say(element);
                }
                Some(LocalResult::Named(names)) => {
                    exec_reply.say(
                        &self
                            .scatter
                            .named_by(&self.plane, link, names, None, element),
                    )
                }
                Some(LocalResult::RedirectName) => {
                    exec_reply.say(&self.pinned.name_told(&self.plane, session_id, element))
                }
                Some(LocalResult::Select(selected)) => {
                    if element.starts_with(b"+") {
                        exec_reply.within.db = selected;
                    }
                    exec_reply.say(element);
                }
                Some(LocalResult::Local(request) | LocalResult::Hello(request)) => {
                    exec_reply.ask(request)
                }
                Some(LocalResult::Login {
                    ref hello, claim, ..
                }) if !agrees(hello.is_some(), element) => {
                    self.login_was_wrong(session_id, claim);
                    exec_reply.say(element);
                }
                Some(LocalResult::Login {
                    login,
                    hello,
                    claim,
                }) => {
                    self.login_was_right(claim);
                    // A user gets a place only after the right password: any client may name any
                    // user.
                    let Some(user) = self.place_of_login(session_id, login) else {
                        self.plane.close_for(
                            session_id,
                            String::from("LOGINS_MAX: clients of this worker use too many users"),
                        );
                        return exec_reply;
                    };
                    self.become_user(session_id, link, (user, exec_reply.within.db));
                    exec_reply.within.user = user;
                    match hello {
                        Some(rest) => exec_reply.ask(rest),
                        None => exec_reply.say(element),
                    }
                }
                Some(LocalResult::Counted(id, name)) => {
                    match self
                        .pubsub
                        .count_duty(&self.plane, session_id, id, &name)
                        .zip(pool)
                    {
                        Some((duty, pool)) => {
                            exec_reply.say(&self.pubsub.recount(pool, &duty, element))
                        }
                        None => exec_reply.say(element),
                    }
                }
                Some(LocalResult::Constant(reply)) => exec_reply.say(reply),
            }
        }
        exec_reply
    }
}

/// The reply to an EXEC while it is put together.
struct ExecReply {
    /// The bytes up to the first step.
    first: Vec<u8>,
    steps: VecDeque<ReplyStep>,
    /// The state of the session after the results so far.
    within: CompositeReply,
}

impl ExecReply {
    /// Appends bytes that are known.
    fn say(&mut self, bytes: &[u8]) {
        match self.steps.back_mut() {
            Some(ReplyStep::Reply(last)) => last.extend_from_slice(bytes),
            Some(ReplyStep::Request { .. }) => {
                self.steps.push_back(ReplyStep::Reply(bytes.to_vec()))
            }
            None => self.first.extend_from_slice(bytes),
        }
    }

    /// Appends a request that respool answers, in the present state of the session.
    fn ask(&mut self, request: DeferredCheck) {
        let within = Some(self.within);
        self.steps.push_back(ReplyStep::Request { request, within });
    }
}

/// The errors that Redis returns when it executes a queued request (`ssubscribeCommand`,
/// `monitorCommand`).
const NO_SSUBSCRIBE: &[u8] = b"-ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client\r\n";
/// The stand-in for the client that CLIENT TRACKING REDIRECT names was lost.
const LOST_REDIRECT: &[u8] = b"-NOTSENT respool: the command was not executed; \
    the connection that stood for the client to redirect to was lost\r\n";
const NO_MONITOR: &[u8] = b"-ERR MONITOR isn't allowed for DENY BLOCKING client\r\n";

/// Whether this is the reply to a successful AUTH, or to a HELLO with a successful one.
fn agrees(in_hello: bool, element: &[u8]) -> bool {
    match in_hello {
        true => matches!(element.first(), Some(b'*' | b'%')),
        false => element == b"+OK\r\n",
    }
}

/// The elements of an array, each with its bytes. `None`: the bytes are no whole array, or a push
/// message stands in it, as servers send it in place of a missing result.
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

impl Transactions {
    /// The reply to UNWATCH. The session gets `instead`, if there is such a reply.
    pub(crate) fn settle_unwatch(
        &self,
        plane: &mut DataPlane,
        link: LinkId,
        entry: Entry,
        instead: Option<Vec<u8>>,
        reply: &[u8],
    ) {
        if reply.starts_with(b"-") {
            // The server still watches the keys.
            let owner = plane.owner_of(link, entry);
            plane.taint_own_link(owner);
            if instead.is_none()
                && let Some(session) = plane.sessions.get_mut(owner)
            {
                session.pins.add(Pins::WATCH);
            }
        }
        plane.deliver_to(entry, instead.as_deref().unwrap_or(reply));
    }

    pub(crate) fn is_in_multi(&self, plane: &DataPlane, id: SessionId) -> bool {
        plane
            .sessions
            .get(id)
            .is_some_and(|session| session.flags.any(Flags::IN_MULTI))
    }

    /// Whether the server's errors in a transaction name the command. Valkey 9 names it, and MULTI
    /// and WATCH inside MULTI abort the transaction. Redis does neither.
    fn speaks_of_commands_in_transactions(&self, plane: &DataPlane, id: SessionId) -> bool {
        let release = plane.release_of(id);
        release.is_some_and(|(server, (major, _))| server == "valkey" && major >= 9)
    }

    pub(crate) fn watches(&self, plane: &DataPlane, id: SessionId) -> bool {
        let session = plane.sessions.get(id);
        session.is_some_and(|session| session.pins.any(Pins::WATCH))
    }

    /// Whether a session's watch is lost: EXEC answers nil.
    fn has_lost_watch(&self, plane: &DataPlane, id: SessionId) -> bool {
        let session = plane.sessions.get(id);
        let rare = session.and_then(|session| session.rare.as_ref());
        rare.is_some_and(|rare| rare.watch_lost)
    }

    fn forget_lost_watch(&mut self, plane: &mut DataPlane, id: SessionId) {
        if let Some(session) = plane.sessions.get_mut(id)
            && let Some(rare) = &mut session.rare
        {
            rare.watch_lost = false;
        }
    }

    /// Drops the state of a session that is closed.
    pub(crate) fn forget_session(&mut self, id: SessionId) {
        self.queued.remove(id);
    }

    /// Memory of the table by session, bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.queued.table_bytes()
    }

    /// Opens a transaction with MULTI, as the client wrote it.
    fn begin_transaction(&mut self, plane: &mut DataPlane, id: SessionId, opening: &[u8]) {
        let Some(session) = plane.sessions.get_mut(id) else {
            return;
        };
        session.flags |= Flags::IN_MULTI | Flags::HAS_QUEUED;
        session.rare().transaction = Some(OpenTransaction::default());
        let transaction = Transaction {
            opening: opening.to_vec(),
            held: opening.len(),
            ..Transaction::default()
        };
        plane.charge(id, ChargeKind::Transaction, transaction.charge());
        self.queued.insert(id, transaction);
    }

    /// Ends a transaction that was sent, or never will be.
    pub(crate) fn end_transaction(&mut self, plane: &mut DataPlane, id: SessionId) {
        let Some(session) = plane.sessions.get_mut(id) else {
            return;
        };
        session.flags.remove(Flags::IN_MULTI);
        // The transaction is gone, so a repeated EXEC would not repeat it.
        session.burst.count_as_many();
        if let Some(rare) = &mut session.rare {
            rare.transaction = None;
        }
        self.queued.remove(id);
        plane.charge(id, ChargeKind::Transaction, Charge::default());
    }

    /// The owner of the keys that a session has queued since MULTI, if it has queued any.
    pub(crate) fn queued_group(&self, plane: &DataPlane, id: SessionId) -> Option<Group> {
        let rare = plane
            .sessions
            .get(id)
            .and_then(|session| session.rare.as_ref());
        let transaction = rare.and_then(|rare| rare.transaction.as_ref());
        transaction.and_then(|transaction| transaction.group)
    }

    /// Notes the owner of a transaction's keys.
    pub(crate) fn bind_transaction(&mut self, plane: &mut DataPlane, id: SessionId, group: Group) {
        if let Some(transaction) = plane.transaction_of(id) {
            transaction.group = Some(group);
        }
    }

    /// Whether respool answers a request of the transaction.
    fn has_steps(&self, id: SessionId) -> bool {
        self.queued.get(id).is_some_and(|transaction| {
            let mut local_results = transaction.local_results.iter();
            local_results.any(|(_, result)| matches!(result, LocalResult::Local(_)))
        })
    }

    /// Whether the server allows a request in MULTI that the table forbids there.
    fn is_allowed_in_multi(
        &self,
        plane: &DataPlane,
        session_id: SessionId,
        request: &Request<'_>,
    ) -> bool {
        request.id == id::CLIENT_REPLY
            && !self.speaks_of_commands_in_transactions(plane, session_id)
    }

    /// The number of sessions to which a queued transaction redirects tracking messages, without
    /// the session `but`.
    pub(crate) fn redirects_queued(&self, id: SessionId, but: u64) -> usize {
        let Some(transaction) = self.queued.get(id) else {
            return 0;
        };
        let redirects = transaction
            .local_results
            .iter()
            .filter_map(|(_, local_result)| match local_result {
                LocalResult::Switch { redirect, .. } => redirect.as_ref(),
                _ => None,
            });
        let others: HashSet<u64> = redirects
            .map(|one| one.to)
            .filter(|to| *to != but)
            .collect();
        others.len()
    }

    /// The block of a session for the server, and the completion of its result.
    fn block_of(
        &mut self,
        plane: &DataPlane,
        id: SessionId,
        closing: &[u8],
    ) -> (Vec<u8>, Completion) {
        let Some(session) = plane.sessions.get(id) else {
            unreachable!("the session that sent EXEC is open");
        };
        let watched = session.pins.any(Pins::WATCH);
        let facts = session.rare.as_deref();
        let facts = facts.and_then(|rare| rare.transaction.as_ref());
        let (Some(transaction), Some(facts)) = (self.queued.get_mut(id), facts) else {
            unreachable!("a session in MULTI has a transaction");
        };
        let count = facts.count;
        let local_results = std::mem::take(&mut transaction.local_results);
        let mut block = Vec::with_capacity(transaction.held + 64);
        block.extend_from_slice(&transaction.opening);
        block.extend_from_slice(&transaction.requests);
        block.extend_from_slice(closing);
        let in_block = count - left_out(&local_results);
        let exec = (!local_results.is_empty()).then(|| {
            Box::new(Exec {
                count,
                local_results,
            })
        });
        let duty = Completion::Block {
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
}

#[cfg(test)]
mod tests {
    use super::elements_of;

    /// An array splits into its elements. Other values and arrays that are cut off do not.
    #[test]
    fn array_splits_into_elements_and_other_values_do_not() {
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

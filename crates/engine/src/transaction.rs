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

use respool_protocol::commands::{Answer, CommandFlags, Names, id};
use respool_protocol::{encode, number};

use crate::base::buffer::shrink;
use crate::base::handle::{LinkId, SessionId};
use crate::base::session_map::SessionMap;
use crate::data_plane::DataPlane;
use crate::data_plane::charges::{Charge, ChargeKind};
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::pinned::{TrackingRedirect, is_connection_switch};
use crate::data_plane::completion::transaction::{Exec, LocalResult};
use crate::data_plane::composite::{CompositeReply, ReplyStep};
use crate::data_plane::ingress::{Dispatched, KeptRequest, Request, bound_reply};
use crate::data_plane::ledger::Entry;
use crate::data_plane::open_transaction::OpenTransaction;
use crate::data_plane::quick_code::may_hold_up;
use crate::data_plane::reply_elements::elements_of;
use crate::data_plane::scripts::{ScriptHash, names_in};
use crate::data_plane::sent_request::{id_of, runs_code};
use crate::data_plane::session::{Flags, Pins};

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
    /// The requirements of its EXEC.
    fn plan(&self) -> ExecPlan {
        let local_results = || self.local_results.iter().map(|(_, result)| result);
        let taints = self.taints || local_results().any(LocalResult::leaves_trace);
        let pins = local_results().filter_map(LocalResult::pins);
        ExecPlan {
            about_session: local_results().any(LocalResult::is_about_session),
            taints,
            pins: pins.chain(taints.then_some(Pins::ONCE)).collect(),
        }
    }

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

/// How a request of a session in MULTI is queued.
pub(crate) enum Queueing {
    /// It is refused, and EXEC will be refused, too.
    Refused(String),
    /// It is an AUTH: a login is checked first.
    Auth,
    /// It is a HELLO, which may have a login.
    Hello,
    /// It is CLIENT TRACKING or its like, which needs a link of the session's own.
    Switch,
    /// It is about the session. respool answers it after the block.
    Local,
    /// It is in the block, unless its result is a constant.
    InBlock(Option<LocalResult>),
}

/// The requirements of EXEC before its block can leave.
pub(crate) struct ExecPlan {
    /// The transaction changes or shows the session: see [`LocalResult::is_about_session`].
    pub(crate) about_session: bool,
    /// Nothing uses the session's link after the block.
    pub(crate) taints: bool,
    /// The reasons for a link of the session's own.
    pub(crate) pins: Vec<Pins>,
}

/// The reply to an EXEC while it is put together.
pub(crate) struct ExecReply<'a> {
    /// The bytes up to the first step.
    pub(crate) first: Vec<u8>,
    pub(crate) steps: VecDeque<ReplyStep>,
    /// The state of the session after the results so far.
    pub(crate) within: CompositeReply,
    /// The place of the next result.
    place: u32,
    local_results: std::iter::Peekable<std::vec::IntoIter<(u32, LocalResult)>>,
    /// The server's results that are left.
    elements: std::vec::IntoIter<&'a [u8]>,
}

impl<'a> ExecReply<'a> {
    /// Begins the reply to a transaction whose block returned `result`. `within`: the state of the
    /// session before it. Gives the transaction back if the server has not executed it.
    pub(crate) fn begin(
        exec: Exec,
        result: &'a [u8],
        (db, user): (u32, u16),
    ) -> Result<ExecReply<'a>, Exec> {
        let expected = exec.count - left_out(&exec.local_results);
        let elements = match elements_of(result) {
            Some(elements) if elements.len() == expected as usize => elements,
            // An error or nil: nothing was executed.
            _ => return Err(exec),
        };
        let Exec {
            count,
            local_results,
        } = exec;
        let mut first = Vec::new();
        encode::array(&mut first, count as usize);
        Ok(ExecReply {
            first,
            steps: VecDeque::new(),
            within: CompositeReply { count, db, user },
            place: 0,
            local_results: local_results.into_iter().peekable(),
            elements: elements.into_iter(),
        })
    }

    /// Appends the results in the order in which the requests were queued, up to one that another
    /// component makes or changes. Returns that one, with the server's result.
    pub(crate) fn next_result(&mut self) -> Option<(LocalResult, &'a [u8])> {
        while self.place < self.within.count {
            let place = self.place;
            self.place += 1;
            let own = self.local_results.next_if(|(of, _)| *of == place);
            let own = own.map(|(_, own)| own);
            let element = match own.as_ref().is_none_or(LocalResult::in_block) {
                true => self.elements.next().unwrap_or_default(),
                false => b"",
            };
            match own {
                None | Some(LocalResult::FlushScripts) => self.say(element),
                Some(LocalResult::Select(selected)) => {
                    if element.starts_with(b"+") {
                        self.within.db = selected;
                    }
                    self.say(element);
                }
                Some(LocalResult::Local(request) | LocalResult::Hello(request)) => {
                    self.ask(request)
                }
                Some(LocalResult::Constant(reply)) => self.say(reply),
                Some(
                    own @ (LocalResult::Login { .. }
                    | LocalResult::Switch { .. }
                    | LocalResult::RedirectName
                    | LocalResult::Counted(..)
                    | LocalResult::Named(_)),
                ) => return Some((own, element)),
            }
        }
        None
    }

    /// Appends bytes that are known.
    pub(crate) fn say(&mut self, bytes: &[u8]) {
        match self.steps.back_mut() {
            Some(ReplyStep::Reply(last)) => last.extend_from_slice(bytes),
            Some(ReplyStep::Request { .. }) => {
                self.steps.push_back(ReplyStep::Reply(bytes.to_vec()))
            }
            None => self.first.extend_from_slice(bytes),
        }
    }

    /// Appends a request that respool answers, in the present state of the session.
    pub(crate) fn ask(&mut self, request: KeptRequest) {
        let within = Some(self.within);
        self.steps.push_back(ReplyStep::Request { request, within });
    }
}

/// The errors that Redis returns when it executes a queued request (`ssubscribeCommand`,
/// `monitorCommand`).
const NO_SSUBSCRIBE: &[u8] = b"-ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client\r\n";
const NO_MONITOR: &[u8] = b"-ERR MONITOR isn't allowed for DENY BLOCKING client\r\n";

/// Whether this is the reply to a successful AUTH, or to a HELLO with a successful one.
pub(crate) fn agrees(in_hello: bool, element: &[u8]) -> bool {
    match in_hello {
        true => matches!(element.first(), Some(b'*' | b'%')),
        false => element == b"+OK\r\n",
    }
}

impl Transactions {
    /// Refuses MULTI or WATCH inside MULTI. Newer servers abort the transaction for it.
    pub(crate) fn refuse_nested(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
        text: &str,
    ) -> Dispatched {
        if self.speaks_of_commands_in_transactions(plane, id) {
            let text = format!(
                "ERR Command '{}' not allowed inside a transaction",
                request.command.name
            );
            return plane.refuse_queued(id, text.as_bytes());
        }
        plane.answer_error(id, format!("ERR {text}").as_bytes())
    }

    /// How a request of a session in MULTI is queued. The requests that end a transaction do not
    /// come here. `names`: which keys its reply names, if the server sees them without a prefix.
    pub(crate) fn queueing(
        &self,
        plane: &mut DataPlane,
        session_id: SessionId,
        request: &Request<'_>,
        names: Option<Names>,
    ) -> Queueing {
        let command = request.command;
        if command.flags.has(CommandFlags::NO_MULTI)
            && !self.is_allowed_in_multi(plane, session_id, request)
        {
            let speaks_of_it = self.speaks_of_commands_in_transactions(plane, session_id);
            return Queueing::Refused(match speaks_of_it {
                true => format!(
                    "ERR Command '{}' not allowed inside a transaction",
                    command.name
                ),
                false => String::from("ERR Command not allowed inside a transaction"),
            });
        }
        let local_result = match (command.answer, request.id) {
            (_, id::SELECT) => number::parse(request.arg(1))
                .and_then(|db| u32::try_from(db).ok())
                .map(LocalResult::Select),
            (_, id::AUTH) => return Queueing::Auth,
            (_, id::HELLO) => return Queueing::Hello,
            (_, id::PUBLISH | id::SPUBLISH | id::PUBSUB_NUMSUB | id::PUBSUB_SHARDNUMSUB) => {
                let name = request.args().nth(1).unwrap_or_default();
                Some(LocalResult::Counted(request.id, name.to_vec()))
            }
            (_, id::MONITOR) => Some(LocalResult::Constant(NO_MONITOR)),
            (_, id::SSUBSCRIBE) => Some(LocalResult::Constant(NO_SSUBSCRIBE)),
            (_, id::CLIENT_GETREDIR | id::CLIENT_TRACKINGINFO) => Some(LocalResult::RedirectName),
            // After a SUBSCRIBE in the same transaction, PING is answered as to a subscriber.
            (_, id::PING) if self.has_steps(session_id) => Some(LocalResult::Local(request.keep())),
            (_, id) if is_connection_switch(id) => return Queueing::Switch,
            (_, id::SCRIPT_FLUSH) => Some(LocalResult::FlushScripts),
            (_, id::INFO | id::UNWATCH) => None,
            (Answer::Session | Answer::Pinned, _) => return Queueing::Local,
            _ => names.map(LocalResult::Named),
        };
        Queueing::InBlock(local_result)
    }

    /// Queues a request about the session, which respool answers after the block.
    pub(crate) fn queue_local(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        let local_result = LocalResult::Local(request.keep());
        self.enqueue(plane, id, request.bytes, Some(local_result))
    }

    /// Adds a request to the transaction and answers QUEUED. `bytes`: the request for the server.
    pub(crate) fn enqueue(
        &mut self,
        plane: &mut DataPlane,
        session_id: SessionId,
        bytes: &[u8],
        local_result: Option<LocalResult>,
    ) -> Dispatched {
        let max = plane.settings.limits.transaction_bytes_max as usize;
        let is_short = plane.memory.is_above_bound(plane.held_bytes + bytes.len());
        let transaction = self.queued.get_mut(session_id);
        let facts = plane.transaction_of(session_id);
        let (Some(transaction), Some(facts)) = (transaction, facts) else {
            unreachable!("a session in MULTI has a transaction");
        };
        if transaction.held + bytes.len() > max {
            let text = b"ERR respool: the transaction is larger than transaction-bytes-max";
            return plane.refuse_queued(session_id, text);
        }
        if facts.aborted {
            // An aborted transaction is never sent, so nothing more of it is kept.
            return plane.answer_reply(session_id, b"+QUEUED\r\n");
        }
        if is_short {
            // There is no memory for the request: the transaction will never be sent.
            facts.aborted = true;
            let names = std::mem::take(&mut transaction.scripts).len();
            let requests = std::mem::take(&mut transaction.requests).len();
            let freed = requests + names * size_of::<ScriptHash>();
            transaction.held -= freed;
            let charge = transaction.charge();
            plane.charge(session_id, ChargeKind::Transaction, charge);
            plane.weigh(session_id);
            return plane.answer_reply(session_id, &bound_reply("worker-memory-bytes-max"));
        }
        let mut held = local_result.as_ref().map_or(0, LocalResult::held_bytes);
        let room = transaction.requests.capacity();
        if local_result.as_ref().is_none_or(LocalResult::in_block) {
            transaction.requests.extend_from_slice(bytes);
            let id = id_of(bytes);
            if runs_code(id) || id.is_some_and(|id| id == id::SCRIPT_LOAD || may_hold_up(id)) {
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
        plane.charge(session_id, ChargeKind::Transaction, charge);
        if has_grown {
            plane.weigh(session_id);
        }
        plane.answer_reply(session_id, b"+QUEUED\r\n")
    }

    /// Queues a command that the server has and the table does not. `taints`: it may change its
    /// connection in any way.
    pub(crate) fn queue_unknown(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        bytes: &[u8],
        taints: bool,
    ) -> Dispatched {
        // The table lacks the command, so it may write.
        plane.note_queued_write(id);
        if let Some(transaction) = self.queued.get_mut(id) {
            transaction.taints |= taints;
        }
        self.enqueue(plane, id, bytes, None)
    }

    /// The requirements of a session's EXEC. The error is the reply to an EXEC that fails: it ends
    /// the transaction.
    pub(crate) fn plan(&self, plane: &mut DataPlane, id: SessionId) -> Result<ExecPlan, Vec<u8>> {
        let is_aborted = |facts: &mut OpenTransaction| facts.aborted;
        if plane.transaction_of(id).is_some_and(is_aborted) {
            let text = b"-EXECABORT Transaction discarded because of previous errors.\r\n";
            return Err(text.to_vec());
        }
        if plane.has_lost_watch(id) {
            let version = plane.sessions.get(id).map(|session| session.version);
            let mut nil = Vec::new();
            encode::null_array(&mut nil, version.unwrap_or_default());
            return Err(nil);
        }
        match self.queued.get(id) {
            Some(transaction) => Ok(transaction.plan()),
            None => unreachable!("a session in MULTI has a transaction"),
        }
    }

    /// The requests of a transaction, if some of them run code.
    pub(crate) fn queued_code(&self, id: SessionId) -> Option<Vec<u8>> {
        let transaction = self.queued.get(id)?;
        transaction.runs_code.then(|| transaction.requests.clone())
    }

    /// The scripts that a transaction names, each once.
    pub(crate) fn queued_scripts(&self, id: SessionId) -> Vec<ScriptHash> {
        let scripts = self
            .queued
            .get(id)
            .map(|transaction| transaction.scripts.clone());
        let mut scripts = scripts.unwrap_or_default();
        // A block may name one script a thousand times.
        scripts.sort_unstable();
        scripts.dedup();
        scripts
    }

    /// The targets to which a queued transaction redirects tracking messages.
    pub(crate) fn queued_redirects(&self, id: SessionId) -> Vec<TrackingRedirect> {
        let results = self
            .queued
            .get(id)
            .map(|transaction| &transaction.local_results);
        let redirect = |(_, result): &(u32, LocalResult)| match result {
            LocalResult::Switch { redirect, .. } => redirect.clone(),
            _ => None,
        };
        results.into_iter().flatten().filter_map(redirect).collect()
    }

    /// The block has to wait: takes back the results that went into it. It is built again for the
    /// next attempt.
    pub(crate) fn take_back(&mut self, id: SessionId, exec: Exec) {
        if let Some(transaction) = self.queued.get_mut(id) {
            transaction.local_results = exec.local_results;
        }
    }

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

    /// Whether the server's errors in a transaction name the command. Valkey 9 names it, and MULTI
    /// and WATCH inside MULTI abort the transaction. Redis does neither.
    fn speaks_of_commands_in_transactions(&self, plane: &DataPlane, id: SessionId) -> bool {
        let release = plane.server_version_of(id);
        release.is_some_and(|(server, (major, _))| server == "valkey" && major >= 9)
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
    pub(crate) fn begin_transaction(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        opening: &[u8],
    ) {
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
    pub(crate) fn block_of(
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
    use super::*;

    /// No user has this number; the reply only keeps it.
    const USER: u16 = 7;

    fn ping() -> KeptRequest {
        KeptRequest {
            id: id::PING,
            bytes: b"*1\r\n$4\r\nPING\r\n".to_vec(),
        }
    }

    /// The results stand in the order of the requests, whether they are the server's or respool's.
    /// Results of other components are asked for at their places.
    #[test]
    fn results_stand_in_the_order_of_their_requests() {
        let local_results = vec![
            (1, LocalResult::Constant(b":7\r\n")),
            (2, LocalResult::Select(3)),
            (3, LocalResult::RedirectName),
        ];
        let exec = Exec {
            count: 5,
            local_results,
        };
        let result = b"*4\r\n+a\r\n+OK\r\n:9\r\n+e\r\n";
        let Ok(mut reply) = ExecReply::begin(exec, result, (0, USER)) else {
            panic!("the block was executed");
        };
        let (own, element) = reply.next_result().expect("a result of another component");
        assert!(matches!(own, LocalResult::RedirectName));
        assert_eq!(element, b":9\r\n");
        assert_eq!(reply.first, b"*5\r\n+a\r\n:7\r\n+OK\r\n");
        assert_eq!((reply.within.db, reply.within.user), (3, USER));
        reply.say(b":5\r\n");
        assert!(reply.next_result().is_none());
        assert_eq!(reply.first, b"*5\r\n+a\r\n:7\r\n+OK\r\n:5\r\n+e\r\n");
        assert!(reply.steps.is_empty());
    }

    /// A request that respool answers after the block cuts the reply into steps.
    #[test]
    fn local_request_cuts_the_reply_into_steps() {
        let exec = Exec {
            count: 3,
            local_results: vec![(1, LocalResult::Local(ping()))],
        };
        let result = b"*2\r\n+a\r\n+c\r\n";
        let Ok(mut reply) = ExecReply::begin(exec, result, (0, USER)) else {
            panic!("the block was executed");
        };
        assert!(reply.next_result().is_none());
        assert_eq!(reply.first, b"*3\r\n+a\r\n");
        let steps: Vec<_> = reply.steps.into_iter().collect();
        let [
            ReplyStep::Request { request, within },
            ReplyStep::Reply(rest),
        ] = &steps[..]
        else {
            panic!("{steps:?}");
        };
        assert_eq!(request.id, id::PING);
        assert!(within.is_some_and(|within| within.count == 3));
        assert_eq!(rest, b"+c\r\n");
    }

    /// A transaction that the server did not execute is given back.
    #[test]
    fn transaction_that_was_not_executed_is_given_back() {
        for result in [&b"*-1\r\n"[..], b"-EXECABORT x\r\n", b"*1\r\n+a\r\n"] {
            let exec = Exec {
                count: 2,
                local_results: Vec::new(),
            };
            let exec = ExecReply::begin(exec, result, (0, USER)).err();
            assert_eq!(exec.map(|exec| exec.count), Some(2));
        }
    }

    /// SELECT taints the link, and a request about the session makes the session wait.
    #[test]
    fn exec_needs_a_link_of_its_own_for_traces() {
        let plan = |result: Option<LocalResult>| {
            let transaction = Transaction {
                local_results: result.map(|result| (0, result)).into_iter().collect(),
                ..Transaction::default()
            };
            let plan = transaction.plan();
            (plan.about_session, plan.taints, !plan.pins.is_empty())
        };
        assert_eq!(plan(None), (false, false, false));
        let constant = LocalResult::Constant(b"+x\r\n");
        assert_eq!(plan(Some(constant)), (false, false, false));
        assert_eq!(plan(Some(LocalResult::Local(ping()))), (true, false, false));
        assert_eq!(plan(Some(LocalResult::Select(1))), (true, true, true));
        assert_eq!(plan(Some(LocalResult::Hello(ping()))), (true, true, true));
    }
}

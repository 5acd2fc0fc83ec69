//! Requests that are queued between MULTI and EXEC.

use respool_protocol::commands::{Answer, CommandFlags, Names, id};
use respool_protocol::number;

use crate::base::buffer::shrink;
use crate::base::handle::SessionId;
use crate::data_plane::DataPlane;
use crate::data_plane::charges::ChargeKind;
use crate::data_plane::completion::pinned::is_connection_switch;
use crate::data_plane::completion::transaction::LocalResult;
use crate::data_plane::ingress::{Dispatched, Request, bound_reply};
use crate::data_plane::quick_code::may_hold_up;
use crate::data_plane::scripts::{ScriptHash, names_in};
use crate::data_plane::sent_request::{id_of, runs_code};
use crate::transaction::Transactions;

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

/// The errors that Redis returns when it executes a queued request (`ssubscribeCommand`,
/// `monitorCommand`).
const NO_SSUBSCRIBE: &[u8] = b"-ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client\r\n";
const NO_MONITOR: &[u8] = b"-ERR MONITOR isn't allowed for DENY BLOCKING client\r\n";

impl Transactions {
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
}

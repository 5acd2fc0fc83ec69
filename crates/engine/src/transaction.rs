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

pub(crate) mod exec;
pub(crate) mod queue;

use respool_protocol::commands::{CommandId, id};
use respool_protocol::encode;

use crate::base::handle::{LinkId, SessionId};
use crate::base::session_map::SessionMap;
use crate::base::time::Stamp;
use crate::data_plane::DataPlane;
use crate::data_plane::charges::{Charge, ChargeKind};
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::transaction::{LocalResult, TransactionCompletion};
use crate::data_plane::ingress::{Blocked, Dispatched, Request};
use crate::data_plane::ledger::Entry;
use crate::data_plane::open_transaction::OpenTransaction;
use crate::data_plane::scripts::ScriptHash;
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
    /// Requests with results that respool makes or changes, and their places.
    local_results: Vec<(u32, LocalResult)>,
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

impl Transactions {
    /// Answers WATCH, UNWATCH and DISCARD, and a MULTI or EXEC that is out of place.
    pub(crate) fn answer(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        let in_multi = plane.is_in_multi(id);
        match request.id {
            id::MULTI => refuse_nested(plane, id, request, "MULTI calls can not be nested"),
            id::WATCH if in_multi => {
                refuse_nested(plane, id, request, "WATCH inside MULTI is not allowed")
            }
            id::WATCH => match plane.pin(id, Pins::WATCH) {
                Ok(()) => {
                    if let Some(session) = plane.sessions.get_mut(id) {
                        session.has_queued = true;
                    }
                    plane.dispatch_on_link(id, request.bytes, false, None)
                }
                Err(blocked) => plane.blocked(id, blocked),
            },
            id::UNWATCH => {
                plane.forget_lost_watch(id);
                match plane.watches(id) {
                    true => unwatch(plane, id, request.bytes, None),
                    false => plane.dispatch_on_link(id, request.bytes, false, None),
                }
            }
            id::DISCARD if in_multi => self.leave_transaction(plane, id, b"+OK\r\n"),
            id::DISCARD => plane.answer_error(id, b"ERR DISCARD without MULTI"),
            _ => plane.answer_error(id, b"ERR EXEC without MULTI"),
        }
    }

    /// Answers a request that is past its deadline and was not sent. An EXEC ends its transaction.
    pub(crate) fn expire(
        &mut self,
        plane: &mut DataPlane,
        session: SessionId,
        command: Option<CommandId>,
        read_at: Stamp,
    ) -> Dispatched {
        match plane.expire_request(session, command, read_at) {
            Some(reply) => self.leave_transaction(plane, session, &reply),
            None => Dispatched::Done,
        }
    }

    /// Ends a transaction that was not sent. The client gets this reply.
    pub(crate) fn leave_transaction(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        reply: &[u8],
    ) -> Dispatched {
        let dispatched = match plane.watches(id) {
            true => {
                let mut request = Vec::new();
                encode::request(&mut request, &["UNWATCH"]);
                unwatch(plane, id, &request, Some(reply))
            }
            false => plane.answer_reply(id, reply),
        };
        if dispatched == Dispatched::Done {
            plane.forget_lost_watch(id);
            self.end_transaction(plane, id);
        }
        dispatched
    }

    /// An EXEC cannot go on. If it is refused, its transaction ends.
    pub(crate) fn leave_blocked(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        blocked: Blocked,
    ) -> Dispatched {
        match blocked {
            Blocked::Wait => Dispatched::Wait,
            Blocked::Refused(reply) => self.leave_transaction(plane, id, &reply),
        }
    }

    /// Refuses a malformed EXEC, which ends its transaction.
    pub(crate) fn refuse_exec(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        text: &[u8],
    ) -> Dispatched {
        let why = text.strip_prefix(b"ERR ").unwrap_or(text);
        let mut reply = Vec::new();
        encode::error(
            &mut reply,
            &[b"EXECABORT Transaction discarded because of: ", why].concat(),
        );
        self.leave_transaction(plane, id, &reply)
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

    /// Drops the state of a session that is closed.
    pub(crate) fn forget_session(&mut self, id: SessionId) {
        self.queued.remove(id);
    }

    /// Memory of the table by session, bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.queued.table_bytes()
    }

    /// Opens a transaction with MULTI, as the client wrote it, and answers it.
    pub(crate) fn begin_transaction(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        opening: &[u8],
    ) -> Dispatched {
        let Some(session) = plane.sessions.get_mut(id) else {
            return Dispatched::Done;
        };
        session.state |= Flags::IN_MULTI;
        session.has_queued = true;
        session.rare().transaction.open = Some(OpenTransaction::default());
        let transaction = Transaction {
            opening: opening.to_vec(),
            held: opening.len(),
            ..Transaction::default()
        };
        plane.charge(id, ChargeKind::Transaction, transaction.charge());
        self.queued.insert(id, transaction);
        plane.answer_reply(id, b"+OK\r\n")
    }

    /// Ends a transaction that was sent, or never will be.
    pub(crate) fn end_transaction(&mut self, plane: &mut DataPlane, id: SessionId) {
        let Some(session) = plane.sessions.get_mut(id) else {
            return;
        };
        session.state.remove(Flags::IN_MULTI);
        // The transaction is gone, so a repeated EXEC would not repeat it.
        session.burst.count_as_many();
        if let Some(rare) = &mut session.rare {
            rare.transaction.open = None;
        }
        self.queued.remove(id);
        plane.charge(id, ChargeKind::Transaction, Charge::default());
        plane.hold_to_leave_pool(id);
    }
}

/// Refuses MULTI or WATCH inside MULTI. Newer servers abort the transaction for it.
fn refuse_nested(
    plane: &mut DataPlane,
    id: SessionId,
    request: &Request<'_>,
    text: &str,
) -> Dispatched {
    if speaks_of_commands(plane, id) {
        return plane.refuse_queued(id, not_in_multi(request).as_bytes());
    }
    plane.answer_error(id, format!("ERR {text}").as_bytes())
}

/// The error of newer servers for a command that no transaction may have.
fn not_in_multi(request: &Request<'_>) -> String {
    let name = request.command.name;
    format!("ERR Command '{name}' not allowed inside a transaction")
}

/// Ends the watch that a session has at the server. The client gets `instead`, or the server's
/// reply.
fn unwatch(
    plane: &mut DataPlane,
    id: SessionId,
    request: &[u8],
    instead: Option<&[u8]>,
) -> Dispatched {
    let instead = instead.map(<[u8]>::to_vec);
    let completion = TransactionCompletion::Unwatch { instead };
    let completion = Some(Completion::Transaction(completion));
    let dispatched = plane.dispatch_on_link(id, request, false, completion);
    if dispatched == Dispatched::Done {
        plane.unpin(id, Pins::WATCH);
    }
    dispatched
}

/// Whether the server's errors in a transaction name the command. Valkey 9 names it, and MULTI
/// and WATCH inside MULTI abort the transaction. Redis does neither.
fn speaks_of_commands(plane: &DataPlane, id: SessionId) -> bool {
    let release = plane.server_version_of(id);
    release.is_some_and(|(server, (major, _))| server == "valkey" && major >= 9)
}

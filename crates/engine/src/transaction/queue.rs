//! Requests that are queued between MULTI and EXEC.

use respool_protocol::commands::{Answer, CommandFlags, Names, id};
use respool_protocol::{encode, number};

use crate::base::buffer::shrink;
use crate::base::handle::SessionId;
use crate::base::settings::Credentials;
use crate::data_plane::DataPlane;
use crate::data_plane::charges::ChargeKind;
use crate::data_plane::completion::access::LoginClaim;
use crate::data_plane::completion::pinned::{
    ConnectionSwitch, TrackingRedirect, is_connection_switch, redirect_asked,
};
use crate::data_plane::completion::transaction::LocalResult;
use crate::data_plane::hello::HelloArgs;
use crate::data_plane::ingress::{Dispatched, KeptRequest, Request, bound_reply};
use crate::data_plane::logins::{auth_args, credentials};
use crate::data_plane::pause::request_may_write;
use crate::data_plane::quick_code::may_hold_up;
use crate::data_plane::scripts::{ScriptHash, names_in};
use crate::data_plane::sent_request::{id_of, runs_code};
use crate::transaction::{Transactions, not_in_multi, speaks_of_commands};

/// The outcome of a request of a session in MULTI.
pub(crate) enum Queued {
    /// It is queued or refused.
    Done(Dispatched),
    /// It logs in. The attempt counts when it is queued: EXEC tries all of them at once.
    Login(QueuedLogin),
    /// It is CLIENT TRACKING with REDIRECT, so its target has to be found first: the argument that
    /// names the target, and the id of the target.
    Redirect { at: usize, to: u64 },
}

/// A login that is to be queued.
pub(crate) struct QueuedLogin {
    /// The name and the password that the client has sent.
    pub(crate) login: Credentials,
    /// The bytes for the server.
    request: Vec<u8>,
    /// The rest of a HELLO, without the credentials.
    hello: Option<KeptRequest>,
}

/// The treatment of a request of a session in MULTI.
#[derive(Debug)]
enum Queueing {
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

impl Queueing {
    /// The treatment of a request. The requests that end a transaction do not come here. `names`:
    /// which keys its reply names, if the server sees them without a prefix. `has_steps`: respool
    /// answers an earlier request of the transaction.
    fn of(
        request: &Request<'_>,
        names: Option<Names>,
        has_steps: impl FnOnce() -> bool,
    ) -> Queueing {
        let local_result = match (request.command.answer, request.id) {
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
            (_, id::PING) if has_steps() => Some(LocalResult::Local(request.keep())),
            (_, id) if is_connection_switch(id) => return Queueing::Switch,
            (_, id::SCRIPT_FLUSH) => Some(LocalResult::FlushScripts),
            (_, id::INFO | id::UNWATCH) => None,
            (Answer::Session | Answer::Pinned, _) => return Queueing::Local,
            _ => names.map(LocalResult::Named),
        };
        Queueing::InBlock(local_result)
    }
}

/// The errors that Redis returns when it executes a queued request (`ssubscribeCommand`,
/// `monitorCommand`).
const NO_SSUBSCRIBE: &[u8] = b"-ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client\r\n";
const NO_MONITOR: &[u8] = b"-ERR MONITOR isn't allowed for DENY BLOCKING client\r\n";

/// The error for a request that no transaction may have.
fn refusal_in_multi(plane: &DataPlane, id: SessionId, request: &Request<'_>) -> Option<String> {
    if !request.command.flags.has(CommandFlags::NO_MULTI) {
        return None;
    }
    match speaks_of_commands(plane, id) {
        true => Some(not_in_multi(request)),
        // These servers allow it, though the table does not.
        false if request.id == id::CLIENT_REPLY => None,
        false => Some(String::from("ERR Command not allowed inside a transaction")),
    }
}

impl Transactions {
    /// Queues a request of a session in MULTI.
    pub(crate) fn queue(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> Queued {
        if let Some(text) = refusal_in_multi(plane, id, request) {
            return Queued::Done(plane.refuse_queued(id, text.as_bytes()));
        }
        let names = plane.names_at(id, request.command);
        match Queueing::of(request, names, || self.has_steps(id)) {
            Queueing::Auth => self.queue_auth(plane, id, request),
            Queueing::Hello => self.queue_hello(plane, id, request),
            Queueing::Switch => match redirect_asked(request) {
                Some((at, to)) if request.id == id::CLIENT_TRACKING => Queued::Redirect { at, to },
                _ => {
                    let switch = ConnectionSwitch::of(request);
                    Queued::Done(self.queue_switch(plane, id, switch, None, request.bytes))
                }
            },
            Queueing::Local => Queued::Done(self.queue_local(plane, id, request)),
            Queueing::InBlock(local_result) => {
                if request_may_write(request) {
                    plane.note_queued_write(id);
                }
                Queued::Done(self.enqueue(plane, id, request.bytes, local_result))
            }
        }
    }

    /// Queues AUTH.
    fn queue_auth(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> Queued {
        // The server does not know the users that respool configures.
        let has_server_users = plane.settings.users.is_empty();
        let login = auth_args(request).filter(|_| has_server_users);
        match login.and_then(|(name, password)| credentials(name, password)) {
            Some(login) => Queued::Login(QueuedLogin {
                login,
                request: request.bytes.to_vec(),
                hello: None,
            }),
            None => Queued::Done(self.queue_local(plane, id, request)),
        }
    }

    /// Queues HELLO. The block has it with version and credentials, which hold for the requests
    /// behind it. The name stays out: at the server it would be the link's.
    fn queue_hello(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> Queued {
        let Ok(hello) = HelloArgs::read(request) else {
            return Queued::Done(self.queue_local(plane, id, request));
        };
        let Some(version) = hello.version else {
            return Queued::Done(self.queue_local(plane, id, request));
        };
        let mut bytes = Vec::new();
        let version = version.number().to_string();
        match hello.credentials {
            Some((name, password)) if plane.settings.users.is_empty() => {
                let Some(login) = credentials(Some(name), password) else {
                    return Queued::Done(self.queue_local(plane, id, request));
                };
                let words = [b"HELLO", version.as_bytes(), b"AUTH", name, password];
                encode::request(&mut bytes, &words);
                let hello = Some(hello.without_credentials());
                Queued::Login(QueuedLogin {
                    login,
                    request: bytes,
                    hello,
                })
            }
            Some((name, password)) if plane.own_user(name, password).is_none() => {
                Queued::Done(self.queue_local(plane, id, request))
            }
            _ => {
                encode::request(&mut bytes, &["HELLO", &version]);
                let local_result = LocalResult::Hello(request.keep());
                Queued::Done(self.enqueue(plane, id, &bytes, Some(local_result)))
            }
        }
    }

    /// Queues a login after its attempt has been counted.
    pub(crate) fn queue_login(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        queued: QueuedLogin,
        claim: LoginClaim,
    ) -> Dispatched {
        let QueuedLogin {
            login,
            request,
            hello,
        } = queued;
        let local_result = LocalResult::Login {
            login,
            hello,
            claim,
        };
        self.enqueue(plane, id, &request, Some(local_result))
    }

    /// Queues a switch such as CLIENT TRACKING. `bytes`: the request for the server.
    pub(crate) fn queue_switch(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        switch: ConnectionSwitch,
        redirect: Option<TrackingRedirect>,
        bytes: &[u8],
    ) -> Dispatched {
        let had = plane.has_pins(id, switch.pins);
        let local_result = LocalResult::Switch {
            switch,
            had,
            redirect,
        };
        self.enqueue(plane, id, bytes, Some(local_result))
    }

    /// Queues a request about the session, which respool answers after the block.
    fn queue_local(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        let local_result = LocalResult::Local(request.keep());
        self.enqueue(plane, id, request.bytes, Some(local_result))
    }

    /// Adds a request to the transaction and answers QUEUED. `bytes`: the request for the server.
    fn enqueue(
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
}

#[cfg(test)]
mod tests {
    use respool_protocol::request::RequestScanner;

    use super::*;
    use crate::data_plane::test_plane::request_of;

    fn queueing(words: &[&str], has_steps: bool) -> String {
        let (kept, mut scanner) = (request_of(&words.join(" ")), RequestScanner::default());
        let request = kept.read(&mut scanner);
        let queueing = Queueing::of(&request, None, || has_steps);
        let text = format!("{queueing:?}");
        let end = text.find([' ', '{', '[']).unwrap_or(text.len());
        text[..end].to_owned()
    }

    /// The server executes a request, unless it is about the session or needs a check first.
    #[test]
    fn request_is_queued_by_its_command() {
        for (words, expected) in [
            (&["SET", "a", "1"][..], "InBlock(None)"),
            (&["UNWATCH"], "InBlock(None)"),
            (&["PING"], "InBlock(None)"),
            (&["SELECT", "3"], "InBlock(Some(Select(3)))"),
            (&["SELECT", "-1"], "InBlock(None)"),
            (&["SCRIPT", "FLUSH"], "InBlock(Some(FlushScripts))"),
            (&["CLIENT", "GETREDIR"], "InBlock(Some(RedirectName))"),
            (&["CLIENT", "ID"], "Local"),
            (&["SUBSCRIBE", "a"], "Local"),
            (&["AUTH", "a"], "Auth"),
            (&["HELLO", "3"], "Hello"),
            (&["CLIENT", "TRACKING", "ON"], "Switch"),
        ] {
            assert_eq!(queueing(words, false), expected, "{words:?}");
        }
        // A PING behind a SUBSCRIBE is answered as to a subscriber.
        assert_eq!(queueing(&["PING"], true), "InBlock(Some(Local(KeptRequest");
    }
}

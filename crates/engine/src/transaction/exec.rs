//! EXEC: the block for the server, and the reply to the client.

use std::collections::{HashSet, VecDeque};

use respool_protocol::commands::{CommandId, Names};
use respool_protocol::encode;

use crate::base::handle::{LinkId, SessionId};
use crate::base::settings::Credentials;
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::access::LoginClaim;
use crate::data_plane::completion::pinned::{ConnectionSwitch, TrackingRedirect};
use crate::data_plane::completion::transaction::{Exec, LocalResult};
use crate::data_plane::composite::{ReplyStep, WithinExec};
use crate::data_plane::ingress::{Blocked, Dispatched, KeptRequest};
use crate::data_plane::ledger::Entry;
use crate::data_plane::open_transaction::OpenTransaction;
use crate::data_plane::quick_code::CodeLane;
use crate::data_plane::reply_elements::elements_of;
use crate::data_plane::scripts::ScriptHash;
use crate::data_plane::session::Pins;
use crate::transaction::{Transaction, Transactions};

/// The requirements of EXEC before its block can leave.
struct ExecPlan {
    /// The transaction changes or shows the session: see [`LocalResult::is_about_session`].
    about_session: bool,
    /// Nothing uses the session's link after the block.
    taints: bool,
    /// The targets to which it redirects tracking messages.
    redirects: Vec<TrackingRedirect>,
    /// The reasons for a link of the session's own.
    pins: Vec<Pins>,
}

/// A result of a transaction that another component makes or changes, see [`LocalResult`].
pub(crate) enum OthersResult {
    /// A switch such as CLIENT TRACKING, and whether the session had a link for it before.
    Switch((ConnectionSwitch, bool), Option<TrackingRedirect>),
    /// The result names keys.
    Named(Names),
    /// The result names a connection.
    RedirectName,
    /// The result counts connections. The command, and the first name in its arguments.
    Counted(CommandId, Vec<u8>),
    /// AUTH, alone or in a HELLO.
    Login {
        login: Credentials,
        hello: Option<KeptRequest>,
        claim: LoginClaim,
    },
}

/// The reply to an EXEC while it is put together.
pub(crate) struct ExecReply<'a> {
    /// The bytes up to the first step.
    first: Vec<u8>,
    /// The rest of the reply.
    steps: VecDeque<ReplyStep>,
    /// The state of the session after the results so far.
    pub(crate) within: WithinExec,
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
            within: WithinExec { count, db, user },
            place: 0,
            local_results: local_results.into_iter().peekable(),
            elements: elements.into_iter(),
        })
    }

    /// Appends the results in the order in which the requests were queued, up to one that another
    /// component makes or changes. Returns that one, with the server's result.
    pub(crate) fn next_result(&mut self) -> Option<(OthersResult, &'a [u8])> {
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
                Some(LocalResult::Login {
                    login,
                    hello,
                    claim,
                }) => {
                    let login = OthersResult::Login {
                        login,
                        hello,
                        claim,
                    };
                    return Some((login, element));
                }
                Some(LocalResult::Switch {
                    switch,
                    had,
                    redirect,
                }) => return Some((OthersResult::Switch((switch, had), redirect), element)),
                Some(LocalResult::RedirectName) => {
                    return Some((OthersResult::RedirectName, element));
                }
                Some(LocalResult::Counted(command, name)) => {
                    return Some((OthersResult::Counted(command, name), element));
                }
                Some(LocalResult::Named(names)) => {
                    return Some((OthersResult::Named(names), element));
                }
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

    /// The session is this user for the results behind. Appends the reply of its login. `hello`:
    /// the rest of a HELLO, which respool answers.
    pub(crate) fn log_in(&mut self, user: u16, hello: Option<KeptRequest>, element: &[u8]) {
        self.within.user = user;
        match hello {
            Some(rest) => self.ask(rest),
            None => self.say(element),
        }
    }

    /// Delivers the reply, and begins its steps.
    pub(crate) fn finish(
        self,
        plane: &mut DataPlane,
        (id, link): (SessionId, LinkId),
        entry: Entry,
    ) {
        let given_up = entry.session == SessionId::NONE;
        if !self.steps.is_empty() && !given_up {
            plane.begin_steps(id, self.steps, (entry.is_silent(), entry.read_at));
        }
        let db = self.within.db;
        let session = plane.sessions.get_mut(id);
        if let Some(session) = session.filter(|session| session.db != db)
            && let Some(link) = plane.links.get_mut(link)
        {
            // The link is the session's own.
            session.db = db;
            link.kind.db = db;
        }
        plane.answer_or_fail(entry, &self.first);
    }

    /// Appends a request that respool answers, in the present state of the session.
    fn ask(&mut self, request: KeptRequest) {
        let within = Some(self.within);
        self.steps.push_back(ReplyStep::Request { request, within });
    }
}

/// The number of requests that are not in the block.
fn left_out(local_results: &[(u32, LocalResult)]) -> u32 {
    let left_out = local_results
        .iter()
        .filter(|(_, result)| !result.in_block());
    left_out.count() as u32
}

/// Whether this is the reply to a successful AUTH, or to a HELLO with a successful one.
pub(crate) fn agrees(in_hello: bool, element: &[u8]) -> bool {
    match in_hello {
        true => matches!(element.first(), Some(b'*' | b'%')),
        false => element == b"+OK\r\n",
    }
}

impl Transaction {
    /// The requirements of its EXEC.
    fn plan(&self) -> ExecPlan {
        let local_results = || self.local_results.iter().map(|(_, result)| result);
        let taints = self.taints || local_results().any(LocalResult::leaves_trace);
        let pins = local_results().filter_map(LocalResult::pins);
        let redirect = LocalResult::redirect;
        ExecPlan {
            about_session: local_results().any(LocalResult::is_about_session),
            taints,
            pins: pins.chain(taints.then_some(Pins::ONCE)).collect(),
            redirects: local_results().filter_map(redirect).cloned().collect(),
        }
    }
}

impl Transactions {
    /// Handles EXEC: gives the session the link that the block needs, and sends the block.
    /// `refusal`: the reply if the redirects in it cannot be executed now. `true`: the block needs
    /// no link of the session's own. `load`: has the server load scripts in front of the block.
    pub(crate) fn exec(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        closing: &[u8],
        refusal: impl FnOnce(&DataPlane, &[TrackingRedirect], bool) -> Option<Vec<u8>>,
        load: impl FnOnce(&mut DataPlane, &[ScriptHash]) -> Result<(), Blocked>,
    ) -> Dispatched {
        let plan = match self.plan(plane, id) {
            Ok(plan) => plan,
            Err(blocked) => return self.leave_blocked(plane, id, blocked),
        };
        if let Some(reply) = refusal(plane, &plan.redirects, plan.pins.is_empty()) {
            return self.leave_transaction(plane, id, &reply);
        }
        let lane = match self.take_link(plane, id, &plan) {
            Ok(lane) => lane,
            Err(blocked) => return self.leave_blocked(plane, id, blocked),
        };
        let dispatched = match load(plane, &self.queued_scripts(id)) {
            Ok(()) => self.send_block(plane, id, closing, plan.about_session),
            Err(blocked) => self.leave_blocked(plane, id, blocked),
        };
        plane.leave_code_lane(id, lane);
        dispatched
    }

    /// The requirements of a session's EXEC. The reply of a refused EXEC ends the transaction.
    fn plan(&self, plane: &mut DataPlane, id: SessionId) -> Result<ExecPlan, Blocked> {
        let is_aborted = |facts: &mut OpenTransaction| facts.aborted;
        if plane.transaction_of(id).is_some_and(is_aborted) {
            let text = b"-EXECABORT Transaction discarded because of previous errors.\r\n";
            return Err(Blocked::Refused(text.to_vec()));
        }
        if plane.has_lost_watch(id) {
            let version = plane.sessions.get(id).map(|session| session.version);
            let mut nil = Vec::new();
            encode::null_array(&mut nil, version.unwrap_or_default());
            return Err(Blocked::Refused(nil));
        }
        let Some(transaction) = self.queued.get(id) else {
            unreachable!("a session in MULTI has a transaction");
        };
        let plan = transaction.plan();
        if plan.about_session && plane.hold_until_caught_up(id) {
            return Err(Blocked::Wait);
        }
        Ok(plan)
    }

    /// Gives a session the link that its block needs. Returns the lane of its code.
    fn take_link(
        &self,
        plane: &mut DataPlane,
        id: SessionId,
        plan: &ExecPlan,
    ) -> Result<CodeLane, Blocked> {
        if let Some(group) = plane.queued_group(id) {
            plane.switch_to_group(id, group);
        }
        for pins in &plan.pins {
            plane.pin(id, *pins)?;
        }
        if plan.taints {
            plane.taint_own_link(id);
        }
        let code = self.queued.get(id);
        let code = code.filter(|transaction| transaction.runs_code);
        let lane = code.map_or(CodeLane::Common, |transaction| {
            plane.enter_code_lane_with(id, &transaction.requests)
        });
        match lane {
            CodeLane::Waits => Err(Blocked::Wait),
            lane => Ok(lane),
        }
    }

    /// Sends the block of an EXEC to the server. If it has to wait, the transaction stays.
    fn send_block(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        closing: &[u8],
        about_session: bool,
    ) -> Dispatched {
        let (block, completion) = self.block_of(plane, id, closing);
        match plane.dispatch_with(id, &block, false, completion) {
            Ok(dispatched) => {
                self.end_transaction(plane, id);
                plane.counters.transactions += 1;
                plane.unpin(id, Pins::WATCH.with(Pins::ONCE));
                if about_session {
                    // The result decides about the session's state, so later requests wait for it.
                    plane.hold_until_caught_up(id);
                }
                dispatched
            }
            Err(Completion::Block { exec, .. }) => {
                if let (Some(exec), Some(transaction)) = (exec, self.queued.get_mut(id)) {
                    // The block is built again for the next attempt.
                    transaction.local_results = exec.local_results;
                }
                Dispatched::Wait
            }
            Err(_) => unreachable!("the completion that comes back is the block's"),
        }
    }

    /// The scripts that a transaction names, each once.
    fn queued_scripts(&self, id: SessionId) -> Vec<ScriptHash> {
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

    /// The number of sessions to which a queued transaction redirects tracking messages, without
    /// the session `but`.
    pub(crate) fn redirects_queued(&self, id: SessionId, but: u64) -> usize {
        let Some(transaction) = self.queued.get(id) else {
            return 0;
        };
        let results = transaction.local_results.iter();
        let redirects = results.filter_map(|(_, result)| result.redirect());
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
        let facts = facts.and_then(|rare| rare.transaction.open.as_ref());
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
        let completion = Completion::Block {
            before: 1 + in_block,
            came: 0,
            exec,
            opens: true,
            refusal: None,
            watched,
            code: transaction.runs_code,
        };
        (block, completion)
    }
}

#[cfg(test)]
mod tests {
    use respool_protocol::commands::id;

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
        assert!(matches!(own, OthersResult::RedirectName));
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

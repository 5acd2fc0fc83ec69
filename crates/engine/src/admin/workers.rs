//! Queries of a session to all workers, and their answers.
//!
//! The session takes its place in the order of replies when it asks, and goes on. Each worker
//! answers, the asking one too. With the last answer the reply goes to that place. If a worker does
//! not answer within [`QUESTION_MS`], the session gets an error.
//!
//! ```text
//!   session    ask           handle_answer x count  ->  reply at its place
//!                | Action::Ask        ^ Action::Answer
//!                v                    |
//!   every worker: handle_question, at once or, for a pause, when it has settled
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use respool_protocol::encode;

use crate::admin::query_places::{QueryClass, QueryPlaces};
use crate::admin::{Admin, clients, listing, reports};
use crate::base::coarse_times::CoarseReport;
use crate::base::error::{self, Cause, Fate};
use crate::base::handle::SessionId;
use crate::base::limits::{QUESTION_MS, QUESTIONS_MAX, REPORTS_MAX, SETTINGS_PER_SESSION_MAX};
use crate::base::time::{Stamp, Time};
use crate::data_plane::DataPlane;
use crate::data_plane::actions::Action;
use crate::data_plane::composite::ReplyStep;
use crate::data_plane::hot_keys::HotKeysReport;
use crate::data_plane::ingress::{Blocked, Dispatched, OK, excess_reply};
use crate::data_plane::ledger::{CommandMark, Entry};
use crate::data_plane::link::Link;
use crate::data_plane::session_state::Holds;
use crate::data_plane::slow_log::SlowRequest;
use crate::data_plane::tracking::TargetNews;
use crate::data_plane::worker_query::{
    AdminQuery, ClientLines, ReplyForm, WorkerQuery, WorkerReply,
};

impl WorkerQuery {
    /// The class of the places in which this query counts.
    fn class(&self) -> QueryClass {
        match self {
            WorkerQuery::Admin(AdminQuery::List(_)) => QueryClass::List,
            WorkerQuery::Admin(AdminQuery::SlowLog { .. } | AdminQuery::HotKeys { .. }) => {
                QueryClass::Report
            }
            WorkerQuery::Admin(AdminQuery::Pause { .. }) => QueryClass::Pause,
            WorkerQuery::Admin(AdminQuery::Set { .. }) => QueryClass::Setting,
            WorkerQuery::Unblock { .. } => QueryClass::Unblock,
            WorkerQuery::Admin(
                AdminQuery::Kill(_)
                | AdminQuery::Unpause { .. }
                | AdminQuery::Latency
                | AdminQuery::SlowLogLen { .. }
                | AdminQuery::ClearSlowLog { .. }
                | AdminQuery::ClearHotKeys { .. },
            )
            | WorkerQuery::Target(_)
            | WorkerQuery::Script(_) => QueryClass::Quick,
        }
    }
}

/// A query that some workers have not answered.
#[derive(Debug)]
pub(crate) struct PendingQuery {
    ticket: u64,
    session: SessionId,
    /// Its place in the order of the session's replies.
    seq: u32,
    at: Time,
    class: QueryClass,
    form: ReplyForm,
    /// Workers that have not answered.
    missing: usize,
    /// Lines of the workers that have answered.
    lines: Vec<ClientLines>,
    sum: u64,
    /// Times of the workers that have answered.
    latency: CoarseReport,
    /// Slow requests of the workers that have answered.
    slow: Vec<Arc<SlowRequest>>,
    /// Keys of the workers that have answered.
    keys: Vec<HotKeysReport>,
    /// Whether the session gets no reply.
    silent: bool,
    /// The error if no session was found. The user that the filter names may not exist at all.
    not_found: Option<Vec<u8>>,
}

/// The queries of one worker's sessions.
#[derive(Debug, Default)]
pub(crate) struct PendingQueries {
    /// Queries that some workers have not answered, oldest first.
    open: VecDeque<PendingQuery>,
    /// Queries under way and waiting sessions, by class.
    places: QueryPlaces,
}

impl PendingQueries {
    /// Number of queries of a session that are under way.
    fn of_session(&self, id: SessionId) -> usize {
        let is_of = |query: &&PendingQuery| query.session == id;
        self.open.iter().filter(is_of).count()
    }

    /// Takes the answer of one worker. Returns the query if it was the last answer.
    fn take_answer(&mut self, ticket: u64, answer: WorkerReply) -> Option<PendingQuery> {
        // Without a query the answer is late: the client has got an error.
        let index = self.open.iter().position(|query| query.ticket == ticket)?;
        let query = &mut self.open[index];
        match answer {
            WorkerReply::Lines(lines) => query.lines.push(lines),
            WorkerReply::Count(count) => query.sum += count,
            WorkerReply::Latency(report) => query.latency.add(&report),
            WorkerReply::SlowLog(requests) => query.slow.extend(requests),
            WorkerReply::HotKeys(reports) => query.keys.extend(reports),
        }
        query.missing -= 1;
        if query.missing > 0 {
            return None;
        }
        let query = self.open.remove(index)?;
        self.places.end(query.class);
        Some(query)
    }

    /// Bytes of answers to queries that other workers have not answered.
    fn held_bytes(&self) -> usize {
        let lines = self.open.iter().flat_map(|query| &query.lines);
        lines.map(ClientLines::memory_bytes).sum()
    }
}

/// A pause that waits for requests that passed before it.
#[derive(Debug)]
pub(crate) struct SettlingPause {
    /// The pool of the pause.
    pool: u16,
    /// The worker of the session that asked.
    to: usize,
    ticket: u64,
    /// When it began.
    since: Stamp,
}

/// A query that this worker has to answer like all others: pass it to `Engine::handle_question`.
#[derive(Debug)]
#[must_use]
pub(crate) struct OwnQuestion {
    pub(crate) ticket: u64,
    pub(crate) question: WorkerQuery,
}

impl Admin {
    /// Answers a query. `None`: the answer comes later.
    pub(crate) fn handle_query(
        &mut self,
        plane: &mut DataPlane,
        (from, ticket): (usize, u64),
        query: AdminQuery,
    ) -> Option<WorkerReply> {
        match query {
            AdminQuery::List(filter) => {
                return Some(WorkerReply::Lines(clients::list_clients(plane, &filter)));
            }
            AdminQuery::Kill(filter) => {
                return Some(WorkerReply::Count(self.kill_clients(plane, &filter)));
            }
            AdminQuery::Pause { pool, until, all } => {
                self.begin_pause(plane, pool, until, all);
                self.settling_pauses.push(SettlingPause {
                    pool,
                    to: from,
                    ticket,
                    since: plane.now_stamp,
                });
                return None;
            }
            AdminQuery::Unpause { pool } => self.end_pause(plane, pool),
            AdminQuery::Latency => {
                return Some(WorkerReply::Latency(plane.latency.coarse_report()));
            }
            AdminQuery::SlowLog { pool, count } => {
                let newest = plane
                    .slow_log
                    .newest(|of| plane.known_pool(of) == pool, count);
                return Some(WorkerReply::SlowLog(newest));
            }
            AdminQuery::SlowLogLen { pool } => {
                let count = plane.slow_log.count_of(|of| plane.known_pool(of) == pool);
                return Some(WorkerReply::Count(count as u64));
            }
            AdminQuery::ClearSlowLog { pool } => plane.clear_slow_log(pool),
            AdminQuery::HotKeys { pool } => {
                let is_of_pool = |other| plane.known_pool(other) == pool;
                return Some(WorkerReply::HotKeys(
                    plane.hot_keys.reports(is_of_pool, plane.now),
                ));
            }
            AdminQuery::ClearHotKeys { pool } => plane.clear_hot_keys(pool),
            AdminQuery::Set {
                at,
                pool,
                listener,
                values,
            } => self.set_dials(plane, at, (pool, listener), &values),
        }
        Some(WorkerReply::Count(0))
    }

    /// Answers a query of the worker `to`.
    pub(crate) fn answer(
        &mut self,
        plane: &mut DataPlane,
        (to, ticket): (usize, u64),
        answer: WorkerReply,
    ) {
        if to == plane.worker.index {
            self.handle_answer(plane, ticket, answer);
        } else {
            plane.push_action(Action::Answer { to, ticket, answer });
        }
    }

    /// Handles the answer of one worker to a query of this worker. After the last one, the session
    /// gets its reply, or its request goes on.
    pub(crate) fn handle_answer(
        &mut self,
        plane: &mut DataPlane,
        ticket: u64,
        answer: WorkerReply,
    ) {
        if let Some(query) = self.queries.take_answer(ticket, answer) {
            append_reply(plane, query);
            self.next_questions(plane);
        }
    }

    /// Handles the server's reply to CLIENT UNBLOCK, which is the answer to a query.
    pub(super) fn unblocked(
        &mut self,
        plane: &mut DataPlane,
        asked_by: (usize, u64),
        reply: &[u8],
    ) {
        let count = u64::from(reply == b":1\r\n");
        self.answer(plane, asked_by, WorkerReply::Count(count));
    }

    /// Asks all workers for a session. The reply takes the next place in its order. `Err`: the
    /// session waits, or is refused.
    pub(crate) fn ask(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        question: WorkerQuery,
        form: ReplyForm,
        not_found: Option<Vec<u8>>,
    ) -> Result<OwnQuestion, Dispatched> {
        if self.queries.of_session(id) > 0 && plane.hold_until_caught_up(id) {
            return Err(Dispatched::Wait);
        }
        let class = question.class();
        let places = self.places_of(plane, class);
        let has_waited = plane.deadline_of(id).is_some();
        if !self.queries.places.may_ask(class, has_waited, places) {
            return Err(self.wait_to_ask(plane, id, class, has_waited));
        }
        plane.set_deadline(id, None);
        let Some(session) = plane.sessions.get_mut(id) else {
            return Err(Dispatched::Done);
        };
        let seq = session.take_seq();
        let silent = session.state.is_silent();
        plane.counters.requests_answered_locally += 1;
        Ok(self.ask_for(plane, id, (seq, silent), question, form, not_found))
    }

    /// Holds a session until the class of its query has a place, or until its deadline.
    fn wait_to_ask(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        class: QueryClass,
        has_waited: bool,
    ) -> Dispatched {
        if plane.is_past_deadline(id) {
            plane.set_deadline(id, None);
            return plane.blocked(
                id,
                Blocked::Refused(excess_reply(
                    "too many CLIENT commands wait in this worker: try again",
                )),
            );
        }
        plane.begin_to_wait_until(id, Some(plane.now.plus_ms(QUESTION_MS)));
        self.queries.places.wait(class, id, has_waited);
        if let Some(session) = plane.sessions.get_mut(id)
            && session.is_caught_up()
        {
            // No reply is outstanding that would end this hold.
            session.state.release(Holds::CATCH_UP);
        }
        plane.hold(id, Holds::ROOM);
        Dispatched::Wait
    }

    /// Asks all workers for a request that has its place. `None`: the session asks too much at
    /// once.
    pub(crate) fn ask_in_place(
        &mut self,
        plane: &mut DataPlane,
        entry: Entry,
        question: WorkerQuery,
        form: ReplyForm,
    ) -> Option<OwnQuestion> {
        let has_room = self.queries.of_session(entry.session) < SETTINGS_PER_SESSION_MAX;
        let place = (entry.seq, entry.is_silent());
        has_room.then(|| self.ask_for(plane, entry.session, place, question, form, None))
    }

    fn ask_for(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        (seq, silent): (u32, bool),
        question: WorkerQuery,
        form: ReplyForm,
        not_found: Option<Vec<u8>>,
    ) -> OwnQuestion {
        let ticket = self.send_to_other_workers(plane, &question);
        let class = question.class();
        self.queries.places.begin(class);
        self.queries.open.push_back(PendingQuery {
            ticket,
            session: id,
            seq,
            at: plane.now,
            class,
            form,
            missing: plane.worker.count,
            lines: Vec::new(),
            sum: 0,
            latency: CoarseReport::default(),
            slow: Vec::new(),
            keys: Vec::new(),
            silent,
            not_found,
        });
        OwnQuestion { ticket, question }
    }

    /// Sends a query to the other workers without a session that waits. This worker has to answer
    /// it, too.
    pub(crate) fn send_to_all_workers(
        &mut self,
        plane: &mut DataPlane,
        question: WorkerQuery,
    ) -> OwnQuestion {
        let ticket = self.send_to_other_workers(plane, &question);
        OwnQuestion { ticket, question }
    }

    /// Answers the pauses without an unanswered earlier request. `oldest_deferred`: when the
    /// oldest deferred request of a pool was read.
    pub(crate) fn settle_pauses(
        &mut self,
        plane: &mut DataPlane,
        oldest_deferred: impl Fn(&DataPlane, u16) -> Option<Stamp>,
    ) {
        let mut index = 0;
        while let Some(pool) = self.settling_pauses.get(index).map(|pause| pause.pool) {
            let deferred = oldest_deferred(plane, pool);
            match self.settle_pause(plane, index, deferred) {
                Some(asked_by) => self.answer(plane, asked_by, WorkerReply::Count(0)),
                None => index += 1,
            }
        }
    }

    /// Ends a pause's wait if all earlier requests are answered. `deferred`: when the oldest
    /// deferred request of its pool was read. Returns the worker and the ticket to answer.
    fn settle_pause(
        &mut self,
        plane: &DataPlane,
        index: usize,
        deferred: Option<Stamp>,
    ) -> Option<(usize, u64)> {
        let pause = self.settling_pauses.get(index)?;
        // The whole ledger is searched, since a request that was moved or sent again stands behind
        // younger ones. Links with a blocking command or a tunnel are left out: these may wait for
        // ever, and a paused server does not wait for them, either.
        //
        // No request was read after this turn, so an age is a difference of stamps, and the oldest
        // request has the greatest one.
        let now = plane.now_stamp;
        let of_pool =
            |link: &Link| plane.known_pool(plane.pool_of(link.kind.server).parent) == pause.pool;
        let links = plane.links.iter().map(|(_, link)| link);
        let oldest = links
            .filter(|link| !link.waits && link.tunnel.is_none() && of_pool(link))
            .flat_map(|link| link.ledger.iter().map(|entry| entry.read_at))
            .chain(deferred)
            .max_by_key(|read_at| now.ticks_since(*read_at));
        if oldest.is_some_and(|at| now.ticks_since(at) >= now.ticks_since(pause.since)) {
            return None;
        }
        let pause = self.settling_pauses.remove(index);
        Some((pause.to, pause.ticket))
    }
}

/// Delivers the reply that the answers make. A request with a redirect goes on instead: it is known
/// now whether some worker has its target.
fn append_reply(plane: &mut DataPlane, query: PendingQuery) {
    let Some(session) = plane.sessions.get_mut(query.session) else {
        return;
    };
    let mut reply = Vec::new();
    match query.form {
        _ if query.not_found.is_some()
            && query.lines.iter().all(ClientLines::is_empty)
            && query.sum == 0 =>
        {
            if !query.silent {
                encode::error(&mut reply, &query.not_found.unwrap_or_default());
            }
        }
        ReplyForm::Target { to, request } => {
            let is_here = query.sum > 0;
            session.rare().target.found = Some(TargetNews { to, is_here });
            let steps = [ReplyStep::request(request)].into();
            plane.begin_steps(query.session, steps, (query.silent, query.at.stamp()));
        }
        _ if query.silent => {}
        ReplyForm::Lines(named) => {
            listing::reply(&mut reply, session.version, &query.lines, named);
            // Freed before the reply is copied to the session's output.
            drop(query.lines);
        }
        ReplyForm::Latency(names) => {
            reports::append_histograms(&mut reply, session.version, &query.latency, &names);
        }
        ReplyForm::SlowLog(count) => reports::append_slow_log(&mut reply, query.slow, count),
        ReplyForm::HotKeys(count) => {
            reports::append_hot_keys(&mut reply, session.version, &query.keys, count);
        }
        ReplyForm::Sum => encode::integer(&mut reply, query.sum as i64),
        ReplyForm::AnyKilled if query.sum == 0 => encode::error(&mut reply, b"ERR No such client"),
        ReplyForm::AnyKilled | ReplyForm::Ok => reply.extend_from_slice(OK),
    }
    plane.note_if_own_error(query.session, CommandMark::OTHER, &reply);
    plane.deliver(query.session, query.seq, 1, &reply);
}

/// Average bytes of a session's line in a list of clients, at most.
const LISTED_BYTES: u64 = 1 << 10;

/// The lists of clients under way at once take at most this fraction of the worker's memory bound.
/// One list is always allowed.
const LISTS_DIVISOR: u64 = 32;

impl Admin {
    /// Sends a query to the other workers without a session that waits. Returns the ticket.
    pub(crate) fn send_to_other_workers(
        &mut self,
        plane: &mut DataPlane,
        question: &WorkerQuery,
    ) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        if plane.worker.count > 1 {
            let question = question.clone();
            plane.push_action(Action::Ask { ticket, question });
        }
        ticket
    }

    /// Bytes of answers to queries that other workers have not answered.
    pub(crate) fn answers_bytes(&self) -> usize {
        self.queries.held_bytes()
    }

    /// Number of lists of clients that may be under way at once. Together they take a small part of
    /// the memory bound. They begin in the order of their requests.
    pub(crate) fn lists_max(&self, plane: &DataPlane) -> usize {
        let sessions = plane.sessions.len() as u64 + self.other_workers.sessions;
        let bytes = (sessions * LISTED_BYTES).max(1);
        let most = plane.settings.limits.worker_memory_bytes_max / LISTS_DIVISOR / bytes;
        usize::try_from(most).unwrap_or(QUESTIONS_MAX).max(1)
    }

    /// Number of queries of a class that may be under way.
    fn places_of(&self, plane: &DataPlane, class: QueryClass) -> usize {
        match class {
            QueryClass::List if plane.worker.count > 1 => self.lists_max(plane),
            QueryClass::Report => REPORTS_MAX,
            _ => QUESTIONS_MAX,
        }
    }

    /// A query has its reply: releases sessions that wait to ask.
    fn next_questions(&mut self, plane: &mut DataPlane) {
        if self.queries.places.is_calm() {
            return;
        }
        let lists = self.places_of(plane, QueryClass::List);
        let next = self.queries.places.next(lists);
        self.release_askers(plane, next);
    }

    /// Releases sessions that have waited too long to ask: they are refused.
    fn end_waits_to_ask(&mut self, plane: &mut DataPlane) {
        if self.queries.places.is_calm() {
            return;
        }
        let mut waiting = std::mem::take(&mut self.queries.places);
        let is_over = |id| plane.sessions.get(id).is_none() || plane.is_past_deadline(id);
        let over = waiting.take_over(is_over);
        self.queries.places = waiting;
        self.release_askers(plane, over);
    }

    /// Releases sessions so that they continue in this order: the session released last continues
    /// first.
    fn release_askers(&mut self, plane: &mut DataPlane, sessions: Vec<SessionId>) {
        for id in sessions.into_iter().rev() {
            plane.release(id, Holds::ROOM);
        }
    }

    /// Answers queries with an error when a worker has not answered in time.
    pub(crate) fn tick_questions(&mut self, plane: &mut DataPlane) {
        let now = plane.now;
        let over = |query: &PendingQuery| now.since_ms(query.at) >= u64::from(QUESTION_MS);
        while self.queries.open.front().is_some_and(over)
            && let Some(query) = self.queries.open.pop_front()
        {
            self.queries.places.end(query.class);
            self.settling_pauses
                .retain(|pause| pause.to != plane.worker.index || pause.ticket != query.ticket);
            let mut reply = Vec::new();
            let cause = Cause::Workers {
                limit_ms: QUESTION_MS,
            };
            if !query.silent {
                error::append_reply(&mut reply, Fate::Unknown, cause);
            }
            // Within a transaction the command could not be queued.
            plane.abort_transaction(query.session);
            plane.note_if_own_error(query.session, CommandMark::OTHER, &reply);
            plane.deliver(query.session, query.seq, 1, &reply);
        }
        self.end_waits_to_ask(plane);
        self.next_questions(plane);
    }
}

#[cfg(test)]
mod tests {
    use respool_protocol::request::RequestScanner;

    use super::*;
    use crate::base::time::STAMP_TICK_US;
    use crate::data_plane::test_plane::{plane_with_link, replies_of, request_of, session_of};

    /// Asks for a session. This worker answers at once, and others do not.
    fn ask(admin: &mut Admin, plane: &mut DataPlane, id: SessionId, line: &str) {
        let kept = request_of(line);
        let mut scanner = RequestScanner::default();
        let request = kept.read(&mut scanner);
        let Ok(own) = admin.answer_clients(plane, id, &request) else {
            return;
        };
        let WorkerQuery::Admin(query) = own.question else {
            panic!("{line} is not answered by this component alone");
        };
        let asked_by = (plane.worker.index, own.ticket);
        if let Some(answer) = admin.handle_query(plane, asked_by, query) {
            admin.answer(plane, asked_by, answer);
        }
    }

    /// With one worker, its own answer is the reply.
    #[test]
    fn only_worker_answers_its_own_queries() {
        for (line, reply) in [
            ("CLIENT KILL ID 99", ":0\r\n"),
            ("CLIENT KILL 1.2.3.4:5", "-ERR No such client\r\n"),
            ("CLIENT UNPAUSE", "+OK\r\n"),
            (
                "CLIENT PAUSE soon",
                "-ERR timeout is not an integer or out of range\r\n",
            ),
            (
                "CLIENT PAUSE 1 SOME",
                "-ERR CLIENT PAUSE mode must be WRITE or ALL\r\n",
            ),
        ] {
            let (mut plane, _) = plane_with_link();
            let (id, mut admin) = (session_of(&mut plane), Admin::default());
            ask(&mut admin, &mut plane, id, line);
            assert_eq!(replies_of(&plane, id), reply, "{line}");
        }
    }

    /// The reply waits for the last worker. A second answer of a worker is late.
    #[test]
    fn reply_waits_for_all_workers() {
        let (mut plane, _) = plane_with_link();
        plane.worker.count = 2;
        let (id, mut admin) = (session_of(&mut plane), Admin::default());
        ask(&mut admin, &mut plane, id, "CLIENT KILL ID 99");
        assert_eq!(replies_of(&plane, id), "");
        let Some(Action::Ask { ticket, .. }) = plane.turn.actions.pop_back() else {
            panic!("the other worker is asked");
        };
        admin.handle_answer(&mut plane, ticket, WorkerReply::Count(3));
        assert_eq!(replies_of(&plane, id), ":3\r\n");
        admin.handle_answer(&mut plane, ticket, WorkerReply::Count(3));
        assert_eq!(replies_of(&plane, id), ":3\r\n");
    }

    /// A pause waits for requests that were read before it, and for no later ones, even if the
    /// stamps wrap meanwhile.
    #[test]
    fn pause_waits_for_earlier_requests_alone() {
        let wrap = (u64::from(u32::MAX) + 1) * STAMP_TICK_US;
        for begin in [0, wrap - 2_000_000] {
            let at = |ms| Time(begin).plus_ms(ms);
            let (mut plane, link) = plane_with_link();
            let (id, mut admin) = (session_of(&mut plane), Admin::default());
            let read_at = |plane: &mut DataPlane, ms, seq| {
                plane.begin_turn(at(ms));
                let entry = Entry::of(id, seq, plane.now_stamp);
                let ledger = &mut plane.links.get_mut(link).expect("a link").ledger;
                ledger.push(entry, b"");
                ledger.flush(entry.read_at);
                entry
            };
            let earlier = read_at(&mut plane, 0, 0);
            plane.begin_turn(at(1_000));
            ask(&mut admin, &mut plane, id, "CLIENT PAUSE 60000 ALL");
            let later = read_at(&mut plane, 1_500, 1);
            for ms in [1_500, 3_000] {
                plane.begin_turn(at(ms));
                assert_eq!(admin.settle_pause(&plane, 0, None), None, "at {ms} ms");
                let deferred = Some(later.read_at);
                assert_eq!(admin.settle_pause(&plane, 0, deferred), None);
            }
            let ledger = &mut plane.links.get_mut(link).expect("a link").ledger;
            ledger.pop_answered(earlier);
            assert_eq!(admin.settle_pause(&plane, 0, Some(earlier.read_at)), None);
            let settled = admin.settle_pause(&plane, 0, Some(later.read_at));
            assert!(settled.is_some());
        }
    }

    /// Another worker gets its answer by an action.
    #[test]
    fn other_worker_gets_its_answer() {
        let (mut plane, _) = plane_with_link();
        let mut admin = Admin::default();
        admin.answer(&mut plane, (1, 7), WorkerReply::Count(1));
        let answered = plane.turn.actions.pop_back();
        assert!(matches!(
            answered,
            Some(Action::Answer {
                to: 1,
                ticket: 7,
                answer: WorkerReply::Count(1),
            })
        ));
    }
}

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

use respool_protocol::encode;

use crate::admin::lanes::{QueryLane, QueryLanes};
use crate::admin::{Admin, listing};
use crate::base::error::{self, Cause, Fate};
use crate::base::handle::SessionId;
use crate::base::limits::{QUESTION_MS, QUESTIONS_MAX, SETTINGS_PER_SESSION_MAX};
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::actions::Action;
use crate::data_plane::composite::ReplyStep;
use crate::data_plane::ingress::{Blocked, Dispatched, OK, bound_reply};
use crate::data_plane::ledger::Entry;
use crate::data_plane::session_state::Holds;
use crate::data_plane::worker_query::{ClientLines, ReplyForm, WorkerQuery, WorkerReply};
use crate::engine::Engine;
use crate::pinned::tracking_redirect::TargetNews;

impl WorkerQuery {
    /// The lane in which a session waits to ask this query.
    fn lane(&self) -> QueryLane {
        match self {
            WorkerQuery::List(_) => QueryLane::List,
            WorkerQuery::Pause { .. } => QueryLane::Pause,
            WorkerQuery::Unblock { .. } => QueryLane::Unblock,
            WorkerQuery::Set { .. } => QueryLane::Setting,
            _ => QueryLane::Quick,
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
    lane: QueryLane,
    form: ReplyForm,
    /// Workers that have not answered.
    missing: usize,
    /// Lines of the workers that have answered.
    lines: Vec<ClientLines>,
    sum: u64,
    /// Whether the session gets no reply.
    silent: bool,
    /// The error if no session was found. The user that the filter names may not exist at all.
    doubt: Option<Vec<u8>>,
}

/// The queries of one worker's sessions.
#[derive(Debug, Default)]
pub(crate) struct PendingQueries {
    /// Queries that some workers have not answered, oldest first.
    open: VecDeque<PendingQuery>,
    /// Queries under way and waiting sessions, by lane.
    lanes: QueryLanes,
}

impl PendingQueries {
    /// Number of queries of a session that are under way.
    fn of_session(&self, id: SessionId) -> usize {
        let is_of = |asked: &&PendingQuery| asked.session == id;
        self.open.iter().filter(is_of).count()
    }

    /// Bytes of answers to queries that other workers have not answered.
    fn held_bytes(&self) -> usize {
        let lines = self.open.iter().flat_map(|asked| &asked.lines);
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
    /// When it began, [`Time::stamp_ms`].
    since_ms: u32,
}

impl Engine {
    /// A session of another worker asks. The answer is an [`Action::Answer`], in this turn or a
    /// later one.
    pub fn handle_question(&mut self, from: usize, ticket: u64, question: WorkerQuery) {
        let answer = match question {
            WorkerQuery::List(filter) => WorkerReply::Lines(self.list_clients(&filter)),
            WorkerQuery::Kill(filter) => WorkerReply::Count(self.kill_clients(&filter)),
            WorkerQuery::Pause { pool, until, all } => {
                self.admin.begin_pause(&mut self.plane, pool, until, all);
                self.admin.settling_pauses.push(SettlingPause {
                    pool,
                    to: from,
                    ticket,
                    since_ms: self.plane.now.stamp_ms(),
                });
                return;
            }
            WorkerQuery::Unpause { pool } => {
                self.admin.end_pause(&mut self.plane, pool);
                WorkerReply::Count(0)
            }
            WorkerQuery::Target { to, pool } => {
                WorkerReply::Count(self.pinned.become_target(&mut self.plane, to, pool).into())
            }
            WorkerQuery::Tell { to, push } => {
                self.pinned.tell_target(&mut self.plane, to, &push);
                WorkerReply::Count(0)
            }
            WorkerQuery::TargetGone { to } => {
                self.pinned.target_gone(&mut self.plane, to);
                WorkerReply::Count(0)
            }
            WorkerQuery::Set {
                at,
                pool,
                listener,
                values,
            } => {
                self.admin
                    .set_dials(&mut self.plane, at, (pool, listener), &values);
                WorkerReply::Count(0)
            }
            WorkerQuery::ForgetScripts { pool } => {
                self.local.scripts.forget(pool);
                WorkerReply::Count(0)
            }
            WorkerQuery::ShowScript {
                pool,
                body,
                shown_by,
            } => {
                self.local.scripts.learn(pool, body, &shown_by);
                WorkerReply::Count(0)
            }
            // Only the server knows whether the session waits.
            WorkerQuery::Unblock { id, pool, how }
                if self.unblock((id, pool), how, (from, ticket)) =>
            {
                return;
            }
            WorkerQuery::Unblock { .. } => WorkerReply::Count(0),
        };
        self.give_answer(from, ticket, answer);
    }

    /// The answer of one worker to a query of this worker.
    pub fn handle_answer(&mut self, ticket: u64, answer: WorkerReply) {
        let Some(index) = self
            .admin
            .queries
            .open
            .iter()
            .position(|asked| asked.ticket == ticket)
        else {
            // The answer is late: the client has got an error.
            return;
        };
        let asked = &mut self.admin.queries.open[index];
        match answer {
            WorkerReply::Lines(lines) => asked.lines.push(lines),
            WorkerReply::Count(count) => asked.sum += count,
        }
        asked.missing -= 1;
        if asked.missing == 0
            && let Some(asked) = self.admin.queries.open.remove(index)
        {
            self.admin.queries.lanes.end(asked.lane);
            self.reply_to(asked);
            self.admin.next_questions(&mut self.plane);
        }
    }

    /// Asks all workers for a session. The reply takes the next place in its order.
    pub(crate) fn ask(
        &mut self,
        id: SessionId,
        question: WorkerQuery,
        form: ReplyForm,
        doubt: Option<Vec<u8>>,
    ) -> Dispatched {
        if self.admin.queries.of_session(id) > 0 && self.plane.hold_until_caught_up(id) {
            return Dispatched::Wait;
        }
        let lane = question.lane();
        let places = self.admin.places_of(&self.plane, lane);
        let has_waited = self.plane.deadline_of(id).is_some();
        if !self.admin.queries.lanes.may_ask(lane, has_waited, places) {
            return self.wait_to_ask(id, lane, has_waited);
        }
        self.plane.set_gives_up_at(id, None);
        let Some(session) = self.plane.sessions.get_mut(id) else {
            return Dispatched::Done;
        };
        let seq = session.take_seq();
        let silent = session.flags.is_silent();
        self.plane.counters.requests_answered_locally += 1;
        self.ask_for(id, (seq, silent), question, form, doubt);
        Dispatched::Done
    }

    /// Holds a session until its lane has a place, or until its deadline.
    fn wait_to_ask(&mut self, id: SessionId, lane: QueryLane, has_waited: bool) -> Dispatched {
        if self.plane.is_past_deadline(id) {
            self.plane.set_gives_up_at(id, None);
            return self
                .plane
                .blocked(id, Blocked::Refused(bound_reply("questions_max")));
        }
        self.pinned
            .begin_to_wait_for(&mut self.plane, id, QUESTION_MS);
        self.admin.queries.lanes.wait(lane, id, has_waited);
        if let Some(session) = self.plane.sessions.get_mut(id)
            && session.is_caught_up()
        {
            // No reply is outstanding that would end this hold.
            session.flags.release(Holds::DRAIN);
        }
        self.plane.hold(id, Holds::ROOM);
        Dispatched::Wait
    }

    /// Asks all workers for a request that has its place. Returns whether it was asked. If not, the
    /// client gets an error.
    pub(crate) fn ask_in_place(
        &mut self,
        entry: Entry,
        question: WorkerQuery,
        form: ReplyForm,
    ) -> bool {
        let has_room = self.admin.queries.of_session(entry.session) < SETTINGS_PER_SESSION_MAX;
        if has_room {
            let place = (entry.seq, entry.silent);
            self.ask_for(entry.session, place, question, form, None);
        } else {
            self.pass_on(entry, &bound_reply("settings_per_session_max"));
        }
        has_room
    }

    fn ask_for(
        &mut self,
        id: SessionId,
        (seq, silent): (u32, bool),
        question: WorkerQuery,
        form: ReplyForm,
        doubt: Option<Vec<u8>>,
    ) {
        let ticket = self.admin.next_ticket;
        self.admin.next_ticket += 1;
        let lane = question.lane();
        self.admin.queries.lanes.begin(lane);
        self.admin.queries.open.push_back(PendingQuery {
            ticket,
            session: id,
            seq,
            at: self.plane.now,
            lane,
            form,
            missing: self.plane.worker.count,
            lines: Vec::new(),
            sum: 0,
            silent,
            doubt,
        });
        if self.plane.worker.count > 1 {
            self.plane.push_action(Action::Ask {
                ticket,
                question: question.clone(),
            });
        }
        self.handle_question(self.plane.worker.index, ticket, question);
    }

    /// Sends a query to all workers, this one too. No session waits for the answers.
    pub(crate) fn tell_all(&mut self, question: WorkerQuery) {
        let ticket = self.admin.tell_others(&mut self.plane, &question);
        self.handle_question(self.plane.worker.index, ticket, question);
    }

    pub(crate) fn give_answer(&mut self, to: usize, ticket: u64, answer: WorkerReply) {
        if to == self.plane.worker.index {
            self.handle_answer(ticket, answer);
        } else {
            self.plane
                .push_action(Action::Answer { to, ticket, answer });
        }
    }

    fn reply_to(&mut self, asked: PendingQuery) {
        let Some(session) = self.plane.sessions.get(asked.session) else {
            return;
        };
        let mut reply = Vec::new();
        match asked.form {
            _ if asked.doubt.is_some()
                && asked.lines.iter().all(ClientLines::is_empty)
                && asked.sum == 0 =>
            {
                if !asked.silent {
                    encode::error(&mut reply, &asked.doubt.unwrap_or_default());
                }
            }
            ReplyForm::Target { to, request } => {
                let is_here = asked.sum > 0;
                if let Some(session) = self.plane.sessions.get_mut(asked.session) {
                    session.rare().redirect_found = Some(TargetNews { to, is_here });
                }
                let steps = [ReplyStep::request(request)].into();
                self.plane
                    .begin_steps(asked.session, steps, (asked.silent, asked.at.stamp_ms()));
            }
            _ if asked.silent => {}
            ReplyForm::Lines(named) => {
                listing::reply(&mut reply, session.version, &asked.lines, named);
                // Freed before the reply is copied to the session's output.
                drop(asked.lines);
            }
            ReplyForm::Sum => encode::integer(&mut reply, asked.sum as i64),
            ReplyForm::AnyKilled if asked.sum == 0 => {
                encode::error(&mut reply, b"ERR No such client")
            }
            ReplyForm::AnyKilled | ReplyForm::Ok => reply.extend_from_slice(OK),
        }
        self.plane.deliver(asked.session, asked.seq, 1, &reply);
    }

    /// Answers the pauses whose earlier requests are all answered.
    pub(crate) fn settle_pauses(&mut self) {
        if self.admin.settling_pauses.is_empty() {
            return;
        }
        // The whole ledger is searched, since a request that was moved or sent again stands behind
        // younger ones. Links with a blocking command or a tunnel are left out: these may wait for
        // ever, and a paused server does not wait for them, either.
        let (links, servers, pools) = (&self.plane.links, &self.plane.servers, &self.plane.pools);
        let now = self.plane.now.stamp_ms();
        let sessions = &self.plane.sessions;
        let deferring = [&self.redirects.now, &self.redirects.sessions];
        let oldest = |pool: u16| {
            let delayed = deferring.into_iter().flatten().filter_map(|id| {
                let session = sessions.get(*id).filter(|session| session.pool == pool)?;
                session.rare.as_deref()?.deferred.oldest_at_ms()
            });
            links
                .iter()
                .filter(|(_, link)| !link.waits && link.tunnel.is_none())
                .filter(|(_, link)| {
                    let part = servers[usize::from(link.kind.server.0)].pool;
                    pools[usize::from(part)].whole == pool
                })
                .flat_map(|(_, link)| link.ledger.iter().map(|entry| entry.at_ms))
                .chain(delayed)
                .min_by_key(|at_ms| at_ms.wrapping_sub(now) as i32)
        };
        let settled = |pause: &mut SettlingPause| {
            oldest(pause.pool).is_none_or(|at| at.wrapping_sub(pause.since_ms) as i32 > 0)
        };
        let settled: Vec<SettlingPause> =
            self.admin.settling_pauses.extract_if(.., settled).collect();
        for pause in settled {
            self.give_answer(pause.to, pause.ticket, WorkerReply::Count(0));
        }
    }
}

/// Average bytes of a session's line in a list of clients, at most.
const LISTED_BYTES: u64 = 1 << 10;

/// The lists of clients under way at once take at most this fraction of the worker's memory bound.
/// One list is always allowed.
const LISTS_SHARE: u64 = 32;

impl Admin {
    /// Sends a query to the other workers without a session that waits. Returns the ticket.
    pub(crate) fn tell_others(&mut self, plane: &mut DataPlane, question: &WorkerQuery) -> u64 {
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
        let sessions = plane.sessions.len() as u64 + plane.other_workers.sessions;
        let bytes = (sessions * LISTED_BYTES).max(1);
        let most = plane.settings.limits.worker_memory_bytes_max / LISTS_SHARE / bytes;
        usize::try_from(most).unwrap_or(QUESTIONS_MAX).max(1)
    }

    /// Number of queries of a lane that may be under way.
    fn places_of(&self, plane: &DataPlane, lane: QueryLane) -> usize {
        match lane {
            QueryLane::List if plane.worker.count > 1 => self.lists_max(plane),
            _ => QUESTIONS_MAX,
        }
    }

    /// A query has its reply: releases sessions that wait to ask.
    fn next_questions(&mut self, plane: &mut DataPlane) {
        if self.queries.lanes.is_calm() {
            return;
        }
        let lists = self.places_of(plane, QueryLane::List);
        let next = self.queries.lanes.next(lists);
        self.release_askers(plane, next);
    }

    /// Releases sessions that have waited too long to ask: they are refused.
    fn end_waits_to_ask(&mut self, plane: &mut DataPlane) {
        if self.queries.lanes.is_calm() {
            return;
        }
        let mut lanes = std::mem::take(&mut self.queries.lanes);
        let is_over = |id| plane.sessions.get(id).is_none() || plane.is_past_deadline(id);
        let over = lanes.take_over(is_over);
        self.queries.lanes = lanes;
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
        let over = |asked: &PendingQuery| now.since_ms(asked.at) >= u64::from(QUESTION_MS);
        while self.queries.open.front().is_some_and(over)
            && let Some(asked) = self.queries.open.pop_front()
        {
            self.queries.lanes.end(asked.lane);
            self.settling_pauses
                .retain(|pause| pause.to != plane.worker.index || pause.ticket != asked.ticket);
            let mut reply = Vec::new();
            let cause = Cause::Workers {
                limit_ms: QUESTION_MS,
            };
            if !asked.silent {
                error::append_reply(&mut reply, Fate::Unknown, cause);
            }
            // Within a transaction the command could not be queued.
            plane.abort_transaction(asked.session);
            plane.deliver(asked.session, asked.seq, 1, &reply);
        }
        self.end_waits_to_ask(plane);
        self.next_questions(plane);
    }
}

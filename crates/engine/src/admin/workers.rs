//! All workers seen as one: questions that a session puts to every worker, and their answers.
//!
//! The session takes its place in the order of replies when it asks, and goes on. Each worker, this
//! one too, gives its part; when the last part has come the reply goes to that place. A worker that
//! gives none within [`QUESTION_MS`] leaves the session with an error, not without an answer.
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

use crate::clients::{Filter, Unblock};
use crate::engine::{Action, Engine};
use crate::entry::Entry;
use crate::failure::{self, Cause, Fate};
use crate::here::OK;
use crate::lanes::{Lane, Lanes};
use crate::limits::{QUESTION_MS, QUESTIONS_MAX, SETTINGS_PER_SESSION_MAX};
use crate::listing::{self, Lines};
use crate::redirect::Found;
use crate::requests::{Blocked, Kept, Placed, bound_reply};
use crate::scripts::ShownBy;
use crate::session::Flags;
use crate::slots::Key;
use crate::steps::Step;
use crate::time::Time;

/// What is asked of every worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// The sessions that pass, each as a line of CLIENT LIST.
    List(Box<Filter>),
    /// To close the sessions that pass; how many they were.
    Kill(Box<Filter>),
    /// To hold back what CLIENT PAUSE names. Answered when nothing that was let through before is
    /// still on its way.
    Pause {
        /// Of the sessions of which pool.
        pool: u16,
        /// The end, by the clock that all workers share.
        until: Time,
        /// Everything, not only what may write.
        all: bool,
    },
    /// To end that.
    Unpause {
        /// In which pool.
        pool: u16,
    },
    /// To end the wait of a session in a command that blocks; whether it was in one.
    Unblock {
        /// Which session.
        id: u64,
        /// If it is one of this pool.
        pool: u16,
        /// How its command is answered.
        how: Unblock,
    },
    /// Whether a session is here, to which others redirect what they track.
    Target {
        /// Which session.
        to: u64,
        /// If it is one of this pool.
        pool: u16,
    },
    /// To tell that session what the server had to say.
    Tell {
        /// Which session.
        to: u64,
        /// In RESP3.
        push: Vec<u8>,
    },
    /// That session is gone.
    TargetGone {
        /// Which session.
        to: u64,
    },
    /// To set options of ours, by their place among all and their values.
    Set {
        /// When, and by a session of which worker.
        at: (Time, usize),
        /// In which pool.
        pool: u16,
        /// For which listener.
        listener: u16,
        /// Which, and to what.
        values: Vec<(usize, u32)>,
    },
    /// To forget the scripts that were seen. No session waits for the answer.
    ForgetScripts {
        /// In which pool.
        pool: u16,
    },
    /// To remember a script. No session waits for the answer.
    ShowScript {
        /// In which pool.
        pool: u16,
        /// The script.
        body: Arc<[u8]>,
        /// The users that have shown it.
        shown_by: ShownBy,
    },
}

impl Question {
    /// Among which others it waits for its turn.
    fn lane(&self) -> Lane {
        match self {
            Question::List(_) => Lane::List,
            Question::Pause { .. } => Lane::Pause,
            Question::Unblock { .. } => Lane::Unblock,
            Question::Set { .. } => Lane::Setting,
            _ => Lane::Quick,
        }
    }
}

/// One worker's part of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Lines of sessions.
    Lines(Lines),
    /// How many.
    Count(u64),
}

/// How the answers become a reply.
#[derive(Debug)]
pub(crate) enum Form {
    /// The lines: in the order of these ids, or of their own.
    Lines(Option<Vec<u64>>),
    /// The sum.
    Sum,
    /// OK if the sum is not 0, as the old form of CLIENT KILL has it.
    AnyKilled,
    /// OK.
    Ok,
    /// The request goes on, now that it is known whether the session is there to which it
    /// redirects.
    Target { to: u64, request: Kept },
}

/// A question that is not answered by every worker yet.
#[derive(Debug)]
pub(crate) struct Asked {
    ticket: u64,
    session: Key,
    /// Its place in the order of the session's replies.
    seq: u32,
    at: Time,
    lane: Lane,
    form: Form,
    /// Workers that have not answered.
    missing: usize,
    /// Lines of the workers that have answered.
    lines: Vec<Lines>,
    sum: u64,
    /// The session wants no reply.
    silent: bool,
    /// The error that it gets if nobody was found: what was named may not be there at all.
    doubt: Option<Vec<u8>>,
}

/// Questions of one worker's sessions.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    /// Those that are not answered by every worker yet, oldest first.
    open: VecDeque<Asked>,
    /// How full the lanes are, and the sessions that wait.
    lanes: Lanes,
}

impl Questions {
    /// Questions of one session that are under way.
    fn of_session(&self, key: Key) -> usize {
        let its = |asked: &&Asked| asked.session == key;
        self.open.iter().filter(its).count()
    }

    /// Bytes of answers that wait for others.
    fn held_bytes(&self) -> usize {
        let lines = self.open.iter().flat_map(|asked| &asked.lines);
        lines.map(Lines::memory_bytes).sum()
    }
}

/// A pause that waits for what was let through before it.
#[derive(Debug)]
pub(crate) struct Settling {
    /// Whose links.
    pool: u16,
    /// Who asked.
    to: usize,
    ticket: u64,
    /// When it began, [`Time::stamp_ms`].
    since_ms: u32,
}

impl Engine {
    /// Another worker's session asks. The answer is an [`Action::Answer`], in this turn or a later
    /// one.
    pub fn handle_question(&mut self, from: usize, ticket: u64, question: Question) {
        let answer = match question {
            Question::List(filter) => Answer::Lines(self.list_clients(&filter)),
            Question::Kill(filter) => Answer::Count(self.kill_clients(&filter)),
            Question::Pause { pool, until, all } => {
                self.begin_pause(pool, until, all);
                self.settling.push(Settling {
                    pool,
                    to: from,
                    ticket,
                    since_ms: self.now.stamp_ms(),
                });
                return;
            }
            Question::Unpause { pool } => {
                self.end_pause(pool);
                Answer::Count(0)
            }
            Question::Target { to, pool } => Answer::Count(self.become_target(to, pool).into()),
            Question::Tell { to, push } => {
                self.tell_target(to, &push);
                Answer::Count(0)
            }
            Question::TargetGone { to } => {
                self.target_gone(to);
                Answer::Count(0)
            }
            Question::Set {
                at,
                pool,
                listener,
                values,
            } => {
                self.set_dials(at, (pool, listener), &values);
                Answer::Count(0)
            }
            Question::ForgetScripts { pool } => {
                self.scripts.forget(pool);
                Answer::Count(0)
            }
            Question::ShowScript {
                pool,
                body,
                shown_by,
            } => {
                self.scripts.learn(pool, body, &shown_by);
                Answer::Count(0)
            }
            // Whether it was in one, only the server can tell.
            Question::Unblock { id, pool, how }
                if self.unblock((id, pool), how, (from, ticket)) =>
            {
                return;
            }
            Question::Unblock { .. } => Answer::Count(0),
        };
        self.give_answer(from, ticket, answer);
    }

    /// A worker's part of the answer to a question of ours.
    pub fn handle_answer(&mut self, ticket: u64, answer: Answer) {
        let Some(index) = self
            .asked
            .open
            .iter()
            .position(|asked| asked.ticket == ticket)
        else {
            // It came too late: the client has its error.
            return;
        };
        let asked = &mut self.asked.open[index];
        match answer {
            Answer::Lines(lines) => asked.lines.push(lines),
            Answer::Count(count) => asked.sum += count,
        }
        asked.missing -= 1;
        if asked.missing == 0
            && let Some(asked) = self.asked.open.remove(index)
        {
            self.asked.lanes.end(asked.lane);
            self.reply_to(asked);
            self.next_questions();
        }
    }

    /// A session asks all workers. It gets its reply in this place of its order.
    pub(crate) fn ask(
        &mut self,
        key: Key,
        question: Question,
        form: Form,
        doubt: Option<Vec<u8>>,
    ) -> Placed {
        if self.asked.of_session(key) > 0 && self.hold_until_caught_up(key) {
            return Placed::Wait;
        }
        let lane = question.lane();
        let places = self.places_of(lane);
        let has_waited = self.deadline_of(key).is_some();
        if !self.asked.lanes.may_ask(lane, has_waited, places) {
            return self.wait_to_ask(key, lane, has_waited);
        }
        self.set_gives_up_at(key, None);
        let Some(session) = self.sessions.get_mut(key) else {
            return Placed::Done;
        };
        let seq = session.take_seq();
        let silent = session.flags.any(Flags::SILENT | Flags::SILENT_ONCE);
        self.counters.requests_answered_here += 1;
        self.ask_for(key, (seq, silent), question, form, doubt);
        Placed::Done
    }

    /// A session waits until its lane has a place, or until its deadline.
    fn wait_to_ask(&mut self, key: Key, lane: Lane, has_waited: bool) -> Placed {
        if self.is_past_deadline(key) {
            self.set_gives_up_at(key, None);
            return self.blocked(key, Blocked::Refused(bound_reply("questions_max")));
        }
        self.begin_to_wait_for(key, QUESTION_MS);
        self.asked.lanes.wait(lane, key, has_waited);
        if let Some(session) = self.sessions.get_mut(key)
            && session.is_caught_up()
        {
            // Nothing that is answered would end this hold.
            session.flags.remove(Flags::HOLD_DRAIN);
        }
        self.hold(key, Flags::HOLD_ROOM);
        Placed::Wait
    }

    /// The same for a request that has its place. Returns whether they are asked; if not, its
    /// client is told.
    pub(crate) fn ask_in_place(&mut self, entry: Entry, question: Question, form: Form) -> bool {
        let has_room = self.asked.of_session(entry.session) < SETTINGS_PER_SESSION_MAX;
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
        key: Key,
        (seq, silent): (u32, bool),
        question: Question,
        form: Form,
        doubt: Option<Vec<u8>>,
    ) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let lane = question.lane();
        self.asked.lanes.begin(lane);
        self.asked.open.push_back(Asked {
            ticket,
            session: key,
            seq,
            at: self.now,
            lane,
            form,
            missing: self.worker.count,
            lines: Vec::new(),
            sum: 0,
            silent,
            doubt,
        });
        if self.worker.count > 1 {
            self.act(Action::Ask {
                ticket,
                question: question.clone(),
            });
        }
        self.handle_question(self.worker.index, ticket, question);
    }

    /// Tells the other workers something; their answers are not waited for. Returns the ticket.
    pub(crate) fn tell_others(&mut self, question: &Question) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        if self.worker.count > 1 {
            let question = question.clone();
            self.act(Action::Ask { ticket, question });
        }
        ticket
    }

    /// The same for all workers.
    pub(crate) fn tell_all(&mut self, question: Question) {
        let ticket = self.tell_others(&question);
        self.handle_question(self.worker.index, ticket, question);
    }

    pub(crate) fn give_answer(&mut self, to: usize, ticket: u64, answer: Answer) {
        if to == self.worker.index {
            self.handle_answer(ticket, answer);
        } else {
            self.act(Action::Answer { to, ticket, answer });
        }
    }

    /// Bytes of answers that wait for others.
    pub(crate) fn answers_bytes(&self) -> usize {
        self.asked.held_bytes()
    }

    /// How many lists of clients may be under way at once: together they are a small part of the
    /// bound. They begin in the order of their requests.
    fn lists_max(&self) -> usize {
        let sessions = self.sessions.len() as u64 + self.fleet.sessions;
        let bytes = (sessions * LISTED_BYTES).max(1);
        let most = self.settings.limits.worker_memory_bytes_max / LISTS_SHARE / bytes;
        usize::try_from(most).unwrap_or(QUESTIONS_MAX).max(1)
    }

    /// How many questions of a kind may be under way.
    fn places_of(&self, lane: Lane) -> usize {
        match lane {
            Lane::List if self.worker.count > 1 => self.lists_max(),
            _ => QUESTIONS_MAX,
        }
    }

    /// A question has its reply: sessions that wait ask theirs.
    fn next_questions(&mut self) {
        if self.asked.lanes.is_calm() {
            return;
        }
        let lists = self.places_of(Lane::List);
        let next = self.asked.lanes.next(lists);
        self.release_askers(next);
    }

    /// Time has passed: sessions that have waited for too long to ask are refused.
    fn end_waits_to_ask(&mut self) {
        if self.asked.lanes.is_calm() {
            return;
        }
        let mut lanes = std::mem::take(&mut self.asked.lanes);
        let is_over = |key| self.sessions.get(key).is_none() || self.is_past_deadline(key);
        let over = lanes.take_over(is_over);
        self.asked.lanes = lanes;
        self.release_askers(over);
    }

    /// The first of those that are resumed is the last one that is released.
    fn release_askers(&mut self, sessions: Vec<Key>) {
        for key in sessions.into_iter().rev() {
            self.release(key, Flags::HOLD_ROOM);
        }
    }

    fn reply_to(&mut self, asked: Asked) {
        let Some(session) = self.sessions.get(asked.session) else {
            return;
        };
        let mut reply = Vec::new();
        match asked.form {
            _ if asked.doubt.is_some()
                && asked.lines.iter().all(Lines::is_empty)
                && asked.sum == 0 =>
            {
                if !asked.silent {
                    encode::error(&mut reply, &asked.doubt.unwrap_or_default());
                }
            }
            Form::Target { to, request } => {
                let is_here = asked.sum > 0;
                if let Some(session) = self.sessions.get_mut(asked.session) {
                    session.rare().redirect_found = Some(Found { to, is_here });
                }
                let steps = [Step::request(request)].into();
                self.begin_steps(asked.session, steps, (asked.silent, asked.at.stamp_ms()));
            }
            _ if asked.silent => {}
            Form::Lines(named) => {
                listing::reply(&mut reply, session.version, &asked.lines, named);
                // Before the reply is copied to the session's output.
                drop(asked.lines);
            }
            Form::Sum => encode::integer(&mut reply, asked.sum as i64),
            Form::AnyKilled if asked.sum == 0 => encode::error(&mut reply, b"ERR No such client"),
            Form::AnyKilled | Form::Ok => reply.extend_from_slice(OK),
        }
        self.deliver(asked.session, asked.seq, 1, &reply);
    }

    /// Answers the pauses for which nothing that came before them is on its way any more.
    pub(crate) fn settle_pauses(&mut self) {
        if self.settling.is_empty() {
            return;
        }
        // What was moved in its batch, or is asked again, stands behind what is younger. What waits
        // for something at the server may wait for ever, and is not waited for: a server that is
        // paused itself does not, either.
        let (links, servers, pools) = (&self.links, &self.servers, &self.pools);
        let now = self.now.stamp_ms();
        let sessions = &self.sessions;
        let put_off = [&self.put_off_now, &self.put_off_sessions];
        let oldest = |pool: u16| {
            let delayed = put_off.into_iter().flatten().filter_map(|key| {
                let session = sessions.get(*key).filter(|session| session.pool == pool)?;
                session.rare.as_deref()?.delayed.oldest_at_ms()
            });
            links
                .iter()
                .filter(|(_, link)| !link.waits && link.tunnel.is_none())
                .filter(|(_, link)| {
                    let part = servers[usize::from(link.key.server.0)].pool;
                    pools[usize::from(part)].whole == pool
                })
                .flat_map(|(_, link)| link.ledger.iter().map(|entry| entry.at_ms))
                .chain(delayed)
                .min_by_key(|at_ms| at_ms.wrapping_sub(now) as i32)
        };
        let settled = |pause: &mut Settling| {
            oldest(pause.pool).is_none_or(|at| at.wrapping_sub(pause.since_ms) as i32 > 0)
        };
        let settled: Vec<Settling> = self.settling.extract_if(.., settled).collect();
        for pause in settled {
            self.give_answer(pause.to, pause.ticket, Answer::Count(0));
        }
    }

    /// Gives up on workers that do not answer.
    pub(crate) fn tick_questions(&mut self) {
        let now = self.now;
        let over = |asked: &Asked| now.since_ms(asked.at) >= u64::from(QUESTION_MS);
        while self.asked.open.front().is_some_and(over)
            && let Some(asked) = self.asked.open.pop_front()
        {
            self.asked.lanes.end(asked.lane);
            self.settling
                .retain(|pause| pause.to != self.worker.index || pause.ticket != asked.ticket);
            let mut reply = Vec::new();
            let cause = Cause::Workers {
                limit_ms: QUESTION_MS,
            };
            if !asked.silent {
                failure::append_reply(&mut reply, Fate::Unknown, cause);
            }
            // If it was to be queued.
            self.abort_transaction(asked.session);
            self.deliver(asked.session, asked.seq, 1, &reply);
        }
        self.end_waits_to_ask();
        self.next_questions();
    }
}

/// What a session's line takes in a list of clients, on average at most.
const LISTED_BYTES: u64 = 1 << 10;

/// Lists of clients under way at once take one part of so many of the bound, or are one.
const LISTS_SHARE: u64 = 32;

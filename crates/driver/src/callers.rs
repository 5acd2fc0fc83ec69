//! Sessions of callers in the same process: sessions without sockets.
//!
//! ```text
//!   caller ── bytes ──► its pipe ── the queue of the worker ──► the engine's session
//!   caller ◄── bytes ── its pipe ◄───── end of the turn ─────── the engine's session
//! ```
//!
//! A caller writes requests into its pipe and lists the pipe in the queue of its worker. It wakes
//! the worker only if that sleeps. In its turn the worker takes all listed pipes. At the end of the
//! turn it copies replies into pipes, and wakes all callers of the turn by few system calls:
//! callers that were taken in the same turn sleep on the same [`Gate`].
//!
//! A pipe is bounded in both directions, as a socket is. A caller that finds no room waits. A
//! worker that finds no room leaves the replies in the engine, which has bounds of its own for
//! them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use respool_engine::{CloseReason, Engine, Fate, Peer, SessionId};
use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::Timespec;

use crate::forks;
use crate::helm::{Helm, TakenBack};
use crate::lock;
use crate::mailbox::Mailbox;
use crate::worker::WorkerLoop;

/// The most bytes that a caller has written and its worker has not taken, for each pipe.
const INPUT_BYTES_MAX: usize = 64 << 10;
/// The most bytes that a worker has delivered and the caller has not read, for each pipe.
const OUTPUT_BYTES_MAX: usize = 256 << 10;
/// Room of a pipe that an idle caller keeps, bytes.
const IDLE_BYTES_MAX: usize = 16 << 10;
/// The most callers that wait for a place among the sessions of a worker.
const WAITING_MAX: usize = 1 << 20;
/// A worker stands aside after this many turns with one caller each.
const LONE_TURNS: u32 = 64;
/// The number of gates of a worker. Callers of that many turns wait apart from each other.
const GATES: usize = 8;

/// The end of a caller's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallerEnd {
    /// Why the session ended.
    pub reason: EndReason,
    /// Whether the requests without a reply may have been executed; `None`: each request has its
    /// reply, which the caller may have to read still.
    pub fate: Option<Fate>,
}

/// Why a caller's session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The caller has withdrawn its requests.
    Withdrawn,
    /// The session was closed after its last reply (QUIT), or as [`CallerSession::closed_for`]
    /// says.
    Closed,
    /// A request waited at a server that was lost or cannot be reached, as
    /// [`CallerSession::closed_for`] says.
    ServerLost,
    /// There are `sessions_max` sessions, and as many callers wait for a place among them as may.
    SessionsMax,
    /// The worker has ended.
    WorkerEnded,
    /// The process was forked since the start of the worker, which does not exist in the child.
    Forked,
}

/// A word on which the callers of a turn sleep.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Gate {
    /// Changes when callers are woken.
    word: AtomicU32,
}

impl Gate {
    /// Sleeps until the word is another one than `seen`, or until the deadline. It may also return
    /// earlier.
    fn sleep(&self, seen: u32, deadline: Option<Instant>) {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        // A time beyond the range of the kernel is none.
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        // Any outcome is a reason to look again: a change of the word, a signal, the deadline.
        let _ = futex::wait(&self.word, futex::Flags::PRIVATE, seen, timeout.as_ref());
    }

    fn wake_all(&self) {
        self.word.fetch_add(1, Ordering::Release);
        let _: Result<usize, Errno> =
            futex::wake(&self.word, futex::Flags::PRIVATE, i32::MAX as u32);
    }
}

/// The queue of a worker: pipes with something for it.
#[derive(Debug)]
pub(crate) struct CallerQueue {
    listed: Mutex<Listed>,
    /// Whether the worker sleeps or is about to. A caller that clears it wakes the worker.
    asleep: AtomicBool,
    /// The number of turns in which pipes were taken.
    turns: AtomicU32,
    gates: [Gate; GATES],
    /// The number of callers that wait for the worker.
    waiting: AtomicUsize,
    /// The number of sessions that begin when another one ends, and may have its place.
    without_place: AtomicUsize,
    /// The number of sessions that no caller uses.
    unused: AtomicUsize,
    /// The place of a worker that stands aside.
    helm: Helm,
    /// Wakes the host of a hosted worker that rests.
    host: Mutex<Option<Waker>>,
    /// Its eventfd wakes a worker with a thread.
    mailbox: Arc<Mailbox>,
    /// The number of forks when the worker was made.
    forks: u32,
}

#[derive(Debug, Default)]
struct Listed {
    pipes: Vec<Arc<Pipe>>,
    /// Whether the worker has ended. Then it takes no pipe any more.
    has_ended: bool,
}

impl CallerQueue {
    pub(crate) fn new(mailbox: Arc<Mailbox>) -> CallerQueue {
        forks::start_counting();
        CallerQueue {
            forks: forks::forks(),
            listed: Mutex::default(),
            asleep: AtomicBool::new(false),
            turns: AtomicU32::new(0),
            gates: Default::default(),
            waiting: AtomicUsize::new(0),
            without_place: AtomicUsize::new(0),
            unused: AtomicUsize::new(0),
            helm: Helm::default(),
            host: Mutex::default(),
            mailbox,
        }
    }

    /// Whether the worker is in another process.
    fn is_forked(&self) -> bool {
        self.forks != forks::forks()
    }

    /// Lists a pipe. Returns whether the worker will take it.
    fn list(&self, pipe: &Arc<Pipe>) -> bool {
        let mut listed = lock(&self.listed);
        if listed.has_ended {
            return false;
        }
        listed.pipes.push(pipe.clone());
        drop(listed);
        // The worker sets it before it looks at the list for the last time.
        if self.asleep.load(Ordering::Acquire) && self.asleep.swap(false, Ordering::AcqRel) {
            self.wake_worker();
        }
        true
    }

    #[cfg(test)]
    pub(crate) fn helm(&self) -> &Helm {
        &self.helm
    }

    /// Lets callers lead: see [`Helm::stand_aside`].
    pub(crate) fn stand_aside(&self, worker: Box<WorkerLoop>) -> Option<TakenBack> {
        self.helm.stand_aside(worker, || self.needs_worker())
    }

    /// Whether callers need a turn that they do not take themselves.
    fn needs_worker(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0 || !lock(&self.listed).pipes.is_empty()
    }

    /// Changes how the caller of a pipe waits. Returns how it waited.
    fn change_waits(&self, state: &mut PipeState, waits: CallerWait) -> CallerWait {
        let waited = std::mem::replace(&mut state.waits, waits);
        match (waited.is_waiting(), state.waits.is_waiting()) {
            (false, true) => {
                self.waiting.fetch_add(1, Ordering::SeqCst);
            }
            (true, false) => {
                self.waiting.fetch_sub(1, Ordering::SeqCst);
            }
            _ => {}
        }
        waited
    }

    /// The session of a pipe is not unused any more.
    fn note_used(&self, state: &mut PipeState) {
        if std::mem::take(&mut state.is_unused) {
            self.unused.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Sets the waker of the worker's host.
    pub(crate) fn set_host(&self, waker: &Waker) {
        let mut host = lock(&self.host);
        match &mut *host {
            Some(host) => host.clone_from(waker),
            None => *host = Some(waker.clone()),
        }
    }

    /// Wakes a worker that sleeps.
    fn wake_worker(&self) {
        match &*lock(&self.host) {
            Some(host) => host.wake_by_ref(),
            None => self.mailbox.wake(),
        }
    }

    /// Wakes a caller that waited so.
    fn wake(&self, waited: CallerWait) {
        match waited {
            CallerWait::No => {}
            CallerWait::Asleep(gate) => self.gates[gate].wake_all(),
            CallerWait::Task(waker) => waker.wake(),
        }
    }

    /// The gate for callers that are taken in the next turn.
    fn next_gate(&self) -> usize {
        self.turns.load(Ordering::Relaxed) as usize % GATES
    }
}

/// The bytes of one session, between its caller and its worker.
#[derive(Debug)]
struct Pipe {
    queue: Arc<CallerQueue>,
    /// The number of forks when the pipe was made.
    forks: u32,
    state: Mutex<PipeState>,
}

#[derive(Debug, Default)]
struct PipeState {
    /// Bytes that the worker has not taken.
    input: Vec<u8>,
    /// Bytes that the caller has not read.
    output: Vec<u8>,
    /// Whether the pipe is in the queue.
    is_listed: bool,
    /// Whether no caller uses the session.
    is_unused: bool,
    /// Whether the session begins when another one has ended.
    waits_for_place: bool,
    /// The caller's wish for the end of the session.
    wish: Option<Wish>,
    /// How the caller waits.
    waits: CallerWait,
    /// Whether the caller of the last write waits next, and may lead.
    will_wait: bool,
    /// Whether the last write found too little room.
    wants_room: bool,
    /// Whether the worker has more output than there was room for.
    has_more: bool,
    /// Whether the caller has made room since then.
    wants_more: bool,
    /// The session of the engine, once it has begun.
    session: Option<SessionId>,
    end: Option<CallerEnd>,
    /// The rule, the bound or the loss for which the engine has closed the session.
    closed_for: Option<Box<str>>,
}

/// A wish of a caller for the end of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// Take the requests back, and tell their fate.
    Withdraw,
    /// The caller is gone, and its replies are dropped.
    Leave,
}

/// How a caller waits for its pipe.
#[derive(Debug, Default)]
enum CallerWait {
    #[default]
    No,
    /// It sleeps on the gate with this index.
    Asleep(usize),
    /// Its task is woken.
    Task(Waker),
}

impl CallerWait {
    fn is_waiting(&self) -> bool {
        !matches!(self, CallerWait::No)
    }
}

impl Pipe {
    /// Lists the pipe, unless it is listed. The lock ends first.
    fn list(self: &Arc<Self>, mut state: MutexGuard<'_, PipeState>) {
        if state.end.is_some() || std::mem::replace(&mut state.is_listed, true) {
            return;
        }
        drop(state);
        if !self.queue.list(self) {
            self.end_without_worker();
        }
    }

    /// The worker has ended before it took the pipe.
    fn end_without_worker(&self) {
        let mut state = lock(&self.state);
        let end = state.end_of_worker();
        state.end.get_or_insert(end);
        let waits = self.queue.change_waits(&mut state, CallerWait::No);
        drop(state);
        self.queue.wake(waits);
    }
}

/// The session of one caller. Dropping it ends the input of the session: requests that were
/// written are executed, and their replies are dropped.
///
/// The methods may be called from any thread. Only one caller may wait at a time.
#[derive(Debug)]
pub struct CallerSession(Arc<Pipe>);

impl CallerSession {
    /// Writes bytes of requests, in the protocol of Redis, as far as there is room. Returns the
    /// number of bytes that were taken. If it is less than all, wait and write the rest. A session
    /// that has ended takes none.
    pub fn write(&self, bytes: &[u8]) -> usize {
        let count = self.write_as(false, bytes);
        self.0.queue.helm.call_back();
        count
    }

    /// As [`CallerSession::write`], for a caller that calls [`CallerSession::wait`] next. The bytes
    /// may stay where they are until then.
    pub fn write_before_wait(&self, bytes: &[u8]) -> usize {
        self.write_as(true, bytes)
    }

    fn write_as(&self, will_wait: bool, bytes: &[u8]) -> usize {
        if self.is_forked() {
            return 0;
        }
        let mut state = lock(&self.0.state);
        if state.end.is_some() {
            return 0;
        }
        let room = INPUT_BYTES_MAX.saturating_sub(state.input.len());
        let count = bytes.len().min(room);
        state.wants_room = count < bytes.len();
        if count > 0 {
            state.will_wait = will_wait;
            state.input.extend_from_slice(&bytes[..count]);
            self.0.list(state);
        }
        count
    }

    /// Appends the bytes of replies that have come to `bytes`. Returns whether there were any.
    pub fn read(&self, bytes: &mut Vec<u8>) -> bool {
        if self.is_forked() {
            return false;
        }
        let mut state = lock(&self.0.state);
        if state.output.is_empty() {
            return false;
        }
        if bytes.is_empty() {
            std::mem::swap(bytes, &mut state.output);
        } else {
            bytes.append(&mut state.output);
        }
        if state.output.capacity() > IDLE_BYTES_MAX {
            state.output = Vec::new();
        }
        if std::mem::take(&mut state.has_more) {
            state.wants_more = true;
            self.0.list(state);
        }
        true
    }

    /// The end of the session, if it has ended. The last bytes can still be read.
    pub fn end(&self) -> Option<CallerEnd> {
        if self.is_forked() {
            let is_new = self.0.forks != self.0.queue.forks;
            let fate = if is_new { Fate::NotSent } else { Fate::Unknown };
            return Some(CallerEnd {
                reason: EndReason::Forked,
                fate: Some(fate),
            });
        }
        lock(&self.0.state).end
    }

    /// The rule, the bound or the loss for which the session was closed, if there is one.
    pub fn closed_for(&self) -> Option<Box<str>> {
        match self.is_forked() {
            true => None,
            false => lock(&self.0.state).closed_for.clone(),
        }
    }

    /// Whether the worker is in another process: this one is a fork of it. Then no lock is taken.
    fn is_forked(&self) -> bool {
        self.0.queue.is_forked()
    }

    /// Blocks until there is something to read, room to write or an end, or until the deadline.
    /// Returns `false` at the deadline.
    ///
    /// A lone caller takes the worker's turns meanwhile.
    pub fn wait(&self, deadline: Option<Instant>) -> bool {
        if self.is_forked() {
            return true;
        }
        let (pipe, queue) = (&self.0, &self.0.queue);
        let is_ready = || lock(&pipe.state).is_ready();
        if queue.helm.is_free() {
            queue.helm.lead(deadline, is_ready);
            if queue.needs_worker() {
                queue.helm.call_back();
            }
        }
        loop {
            let mut state = lock(&pipe.state);
            if state.is_ready() {
                let former = queue.change_waits(&mut state, CallerWait::No);
                drop(state);
                drop(former);
                return true;
            }
            let gate = match state.waits {
                CallerWait::Asleep(gate) => gate,
                _ => queue.next_gate(),
            };
            let former = queue.change_waits(&mut state, CallerWait::Asleep(gate));
            // The worker changes the word after it has found `Asleep` under the lock.
            let seen = queue.gates[gate].word.load(Ordering::Acquire);
            // The end of a waker may run code of the caller.
            drop(state);
            drop(former);
            if deadline.is_some_and(|at| Instant::now() >= at) {
                let mut state = lock(&pipe.state);
                queue.change_waits(&mut state, CallerWait::No);
                return state.is_ready();
            }
            queue.helm.call_back();
            queue.gates[gate].sleep(seen, deadline);
        }
    }

    /// As [`CallerSession::wait`], for a task: the task is woken when it is to poll again. Its
    /// waker must not wait for another call.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_forked() {
            return Poll::Ready(());
        }
        let waker = context.waker().clone();
        let mut state = lock(&self.0.state);
        let is_ready = state.is_ready();
        let waits = match is_ready {
            true => CallerWait::No,
            false => CallerWait::Task(waker),
        };
        let former = self.0.queue.change_waits(&mut state, waits);
        // The end of a waker may run code of the caller.
        drop(state);
        drop(former);
        if !is_ready {
            self.0.queue.helm.call_back();
        }
        match is_ready {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Lays the session down for a caller that takes it by [`CallerSession::take_up`]. Each of its
    /// requests has its reply. Returns `false` if the session has ended, or ends because another
    /// one waits for its place.
    pub fn lay_down(&self) -> bool {
        if self.is_forked() {
            return false;
        }
        let mut state = lock(&self.0.state);
        if state.end.is_some() {
            return false;
        }
        if !std::mem::replace(&mut state.is_unused, true) {
            self.0.queue.unused.fetch_add(1, Ordering::SeqCst);
        }
        drop(state);
        // A worker that has seen no unused session has counted the waiting one before.
        let is_wanted = self.0.queue.without_place.load(Ordering::SeqCst) > 0;
        if is_wanted {
            self.leave();
        }
        !is_wanted
    }

    /// Takes a session that was laid down. Returns whether it has not ended.
    pub fn take_up(&self) -> bool {
        if self.is_forked() {
            return false;
        }
        let mut state = lock(&self.0.state);
        self.0.queue.note_used(&mut state);
        state.end.is_none() && state.wish.is_none()
    }

    /// Ends the input of the session, as the end of a connection does: requests that were written
    /// are executed, and their replies are dropped. A caller that waits is woken.
    pub fn leave(&self) {
        if self.is_forked() {
            return;
        }
        let mut state = lock(&self.0.state);
        // A withdrawal stays one.
        state.wish.get_or_insert(Wish::Leave);
        self.0.queue.note_used(&mut state);
        let waited = self.0.queue.change_waits(&mut state, CallerWait::No);
        self.0.list(state);
        self.0.queue.wake(waited);
        self.0.queue.helm.call_back();
    }

    /// Takes back the requests that have no reply. The session ends, and [`CallerSession::end`]
    /// then tells whether they may have been executed. Wait for the end.
    pub fn withdraw(&self) {
        if self.is_forked() {
            return;
        }
        let mut state = lock(&self.0.state);
        state.wish.get_or_insert(Wish::Withdraw);
        self.0.list(state);
        self.0.queue.helm.call_back();
    }
}

impl Drop for CallerSession {
    fn drop(&mut self) {
        self.leave();
    }
}

impl PipeState {
    /// The end of a pipe with which a worker does nothing more.
    fn end_of_worker(&self) -> CallerEnd {
        let fate = match self.session {
            Some(_) => Fate::Unknown,
            None => Fate::NotSent,
        };
        CallerEnd {
            reason: EndReason::WorkerEnded,
            fate: Some(fate),
        }
    }

    /// Whether the caller has something to do. A withdrawal waits for its end alone.
    fn is_ready(&self) -> bool {
        let is_open =
            || !self.output.is_empty() || self.wants_room && self.input.len() < INPUT_BYTES_MAX;
        match self.wish {
            _ if self.end.is_some() => true,
            None => is_open(),
            Some(Wish::Withdraw) => false,
            Some(Wish::Leave) => true,
        }
    }
}

/// Opens sessions for callers in this process.
#[derive(Clone, Debug)]
pub struct CallerSessions(pub(crate) Vec<Arc<CallerQueue>>);

impl CallerSessions {
    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.0.len()
    }

    /// Whether the workers are in another process: this one is a fork of it. Then each session has
    /// ended.
    pub fn are_forked(&self) -> bool {
        self.0.iter().any(|queue| queue.is_forked())
    }

    /// Opens a session in the worker with this index, modulo the number of workers. The session
    /// belongs to the first pool. It begins with its first byte, so a refusal comes later.
    pub fn open(&self, worker: usize) -> CallerSession {
        let queue = self.0[worker % self.0.len()].clone();
        CallerSession(Arc::new(Pipe {
            queue,
            forks: forks::forks(),
            state: Mutex::default(),
        }))
    }
}

/// The worker's side: its sessions of callers.
#[derive(Debug)]
pub(crate) struct Callers {
    queue: Arc<CallerQueue>,
    /// By the index of the session's id.
    sessions: Vec<Option<CallerEntry>>,
    /// Pipes that were taken out of the queue and not looked at yet.
    taken: VecDeque<Arc<Pipe>>,
    /// Pipes whose sessions begin when other ones have ended.
    without_place: VecDeque<Arc<Pipe>>,
    /// Whether a session has ended since these pipes were looked at.
    has_freed_place: bool,
    /// An empty list for the queue.
    spare_list: Vec<Arc<Pipe>>,
    /// The bytes of the pipe that is looked at.
    input: Vec<u8>,
    /// The gates of callers that this turn wakes.
    gates: [bool; GATES],
    /// The tasks that this turn wakes.
    tasks: Vec<Waker>,
    /// The number of tasks that the last turn has woken.
    woken_tasks: usize,
    /// Whether a drain has begun. Then no session begins.
    is_draining: bool,
    /// Whether callers have filled the last turn. Then sockets have this one.
    has_filled: bool,
    /// The number of turns in a row that had one caller each. Turns without a caller do not count.
    lone_turns: u32,
}

#[derive(Debug)]
struct CallerEntry {
    id: SessionId,
    pipe: Arc<Pipe>,
    /// Whether the engine takes input of the session.
    is_read: bool,
}

/// The count of the sessions of all workers, and its bound.
#[derive(Clone, Copy)]
pub(crate) struct SessionCount<'a> {
    pub(crate) count: &'a AtomicUsize,
    pub(crate) max: usize,
}

impl Callers {
    pub(crate) fn new(queue: Arc<CallerQueue>) -> Callers {
        Callers {
            queue,
            sessions: Vec::new(),
            taken: VecDeque::new(),
            without_place: VecDeque::new(),
            has_freed_place: false,
            spare_list: Vec::new(),
            input: Vec::new(),
            gates: [false; GATES],
            tasks: Vec::new(),
            woken_tasks: 0,
            is_draining: false,
            has_filled: false,
            lone_turns: 0,
        }
    }

    pub(crate) fn queue(&self) -> &Arc<CallerQueue> {
        &self.queue
    }

    /// Whether callers come one by one, and none of them waits.
    pub(crate) fn serve_lone_callers(&self) -> bool {
        self.lone_turns >= LONE_TURNS && !self.queue.needs_worker()
    }

    /// The number of tasks that the last turn has woken.
    pub(crate) fn woken_tasks(&self) -> usize {
        self.woken_tasks
    }

    /// Whether there are pipes for the next turn that are not in the queue.
    pub(crate) fn has_taken(&self) -> bool {
        !self.taken.is_empty() || self.has_freed_place && !self.without_place.is_empty()
    }

    /// The callers of the last turns do not count as lone any more.
    pub(crate) fn forget_lone_callers(&mut self) {
        self.lone_turns = 0;
    }

    /// Whether no caller waits for the worker, so that the worker may sleep. Then the next caller
    /// wakes it. Call [`Callers::note_awake`] after the sleep.
    pub(crate) fn may_sleep(&self) -> bool {
        if self.has_taken() {
            return false;
        }
        self.queue.asleep.store(true, Ordering::Release);
        let may_sleep = lock(&self.queue.listed).pipes.is_empty();
        if !may_sleep {
            self.note_awake();
        }
        may_sleep
    }

    /// The worker is awake: callers need not wake it.
    pub(crate) fn note_awake(&self) {
        self.queue.asleep.store(false, Ordering::Relaxed);
    }

    /// Takes what callers have written and wished, until the engine's turn is full. Returns the
    /// number of bytes. Callers that have filled a turn take nothing in the next one.
    ///
    /// Sessions begin first, at the beginning of a turn: all sessions that ended have lost their
    /// sockets and pipes. The index of a session that ends in this turn may still have one.
    pub(crate) fn take(&mut self, engine: &mut Engine, sessions: SessionCount<'_>) -> usize {
        self.take_list(engine, sessions);
        if std::mem::take(&mut self.has_filled) {
            return 0;
        }
        let mut bytes = 0;
        while let Some(pipe) = self.taken.pop_front() {
            bytes += self.take_pipe(engine, &pipe, sessions);
            if bytes >= engine.links_bytes_read_max() || engine.turn_is_full() {
                self.has_filled = true;
                break;
            }
        }
        bytes
    }

    /// Takes the pipes that are listed out of the queue. Sessions end and begin.
    fn take_list(&mut self, engine: &mut Engine, sessions: SessionCount<'_>) {
        std::mem::swap(&mut lock(&self.queue.listed).pipes, &mut self.spare_list);
        if !self.spare_list.is_empty() {
            self.queue.turns.fetch_add(1, Ordering::Relaxed);
            let mut listed = std::mem::take(&mut self.spare_list);
            let is_lone = listed.len() == 1
                && self.queue.waiting.load(Ordering::Relaxed) <= 1
                && lock(&listed[0].state).will_wait;
            self.lone_turns = if is_lone { self.lone_turns + 1 } else { 0 };
            // A caller that has left frees its place, if its requests are answered, for those that
            // begin.
            for pipe in &listed {
                self.leave(engine, pipe, sessions);
            }
            self.begin_waiting(engine, sessions);
            for pipe in &listed {
                self.begin(engine, pipe, sessions);
            }
            self.taken.extend(listed.drain(..));
            self.spare_list = listed;
        } else {
            self.begin_waiting(engine, sessions);
        }
    }

    /// Begins the sessions that have waited for a place, as far as there is one.
    fn begin_waiting(&mut self, engine: &mut Engine, sessions: SessionCount<'_>) {
        self.has_freed_place = false;
        for _ in 0..self.without_place.len() {
            if !self.is_draining && sessions.count.load(Ordering::Relaxed) >= sessions.max {
                break;
            }
            if let Some(pipe) = self.without_place.pop_front() {
                lock(&pipe.state).waits_for_place = false;
                self.begin(engine, &pipe, sessions);
                self.taken.push_back(pipe);
            }
        }
        let count = self.without_place.len();
        self.queue.without_place.store(count, Ordering::SeqCst);
    }

    fn take_pipe(
        &mut self,
        engine: &mut Engine,
        pipe: &Arc<Pipe>,
        sessions: SessionCount<'_>,
    ) -> usize {
        let mut state = lock(&pipe.state);
        state.is_listed = false;
        if state.end.is_some() {
            return 0;
        }
        match state.wish {
            Some(Wish::Withdraw) => {
                drop(state);
                self.withdraw(engine, pipe, EndReason::Withdrawn, sessions);
                return 0;
            }
            Some(Wish::Leave) | None => {}
        }
        // The engine may have closed it in this turn. Then its input stays, and was not sent.
        let Some(id) = state.session.filter(|id| engine.has_session(*id)) else {
            return 0;
        };
        let leaves = state.wish == Some(Wish::Leave);
        let wants_more = std::mem::take(&mut state.wants_more);
        let entry = self.sessions.get(id.index()).and_then(Option::as_ref);
        // A caller that has left waits for no room. The engine gets its last bytes at once.
        if leaves || entry.is_some_and(|entry| entry.is_read) {
            std::mem::swap(&mut self.input, &mut state.input);
            if state.wants_room {
                self.wake(&mut state);
            }
        }
        drop(state);
        let count = self.input.len();
        if count > 0 {
            engine.handle_session_bytes(id, &self.input);
            self.input.clear();
            if self.input.capacity() > IDLE_BYTES_MAX {
                self.input = Vec::new();
            }
        }
        if wants_more {
            self.deliver(engine, id);
        }
        if leaves {
            self.end_input(engine, id, sessions);
        }
        count
    }

    /// The caller has left. Its requests are executed, as those of a closed connection are, and
    /// their replies are dropped.
    fn end_input(&mut self, engine: &mut Engine, id: SessionId, sessions: SessionCount<'_>) {
        // The engine may hold replies for which the pipe had no room.
        self.deliver(engine, id);
        engine.handle_session_end(id);
        if !engine.has_session(id) {
            self.remove(id, sessions);
        }
    }

    /// Ends the input of a caller that has left, if it has written nothing more.
    fn leave(&mut self, engine: &mut Engine, pipe: &Arc<Pipe>, sessions: SessionCount<'_>) {
        let mut state = lock(&pipe.state);
        if state.wish != Some(Wish::Leave) || !state.input.is_empty() || state.end.is_some() {
            return;
        }
        state.end = Some(CallerEnd {
            reason: EndReason::Withdrawn,
            fate: None,
        });
        let session = state.session;
        drop(state);
        if let Some(id) = session {
            self.end_input(engine, id, sessions);
        }
    }

    /// Begins the session of a pipe that has its first bytes.
    fn begin(&mut self, engine: &mut Engine, pipe: &Arc<Pipe>, sessions: SessionCount<'_>) {
        let mut state = lock(&pipe.state);
        let is_new = state.session.is_none() && state.end.is_none();
        if !is_new || state.input.is_empty() || state.wish == Some(Wish::Withdraw) {
            return;
        }
        if self.is_draining {
            return self.refuse(&mut state, EndReason::WorkerEnded);
        }
        if sessions.count.fetch_add(1, Ordering::Relaxed) >= sessions.max {
            sessions.count.fetch_sub(1, Ordering::Relaxed);
            return self.wait_for_place(engine, pipe, state, sessions);
        }
        let id = engine.handle_accept(Peer::Caller, 0);
        state.session = Some(id);
        drop(state);
        // A session for a pool that has ended is closed at once, and the next one has its index.
        let former = self.sessions.get(id.index()).and_then(Option::as_ref);
        if let Some(former) = former.map(|entry| entry.id) {
            self.close(former, false, None, sessions);
        }
        if self.sessions.len() <= id.index() {
            self.sessions.resize_with(id.index() + 1, || None);
        }
        self.sessions[id.index()] = Some(CallerEntry {
            id,
            pipe: pipe.clone(),
            is_read: true,
        });
    }

    /// Has a session begin when another one has ended.
    fn wait_for_place(
        &mut self,
        engine: &mut Engine,
        pipe: &Arc<Pipe>,
        mut state: MutexGuard<'_, PipeState>,
        sessions: SessionCount<'_>,
    ) {
        if self.without_place.len() >= WAITING_MAX {
            return self.refuse(&mut state, EndReason::SessionsMax);
        }
        if std::mem::replace(&mut state.waits_for_place, true) {
            return;
        }
        drop(state);
        if self.without_place.len() == self.without_place.capacity() {
            // Callers that have withdrawn their requests wait no longer.
            self.without_place
                .retain(|pipe| lock(&pipe.state).end.is_none());
        }
        self.without_place.push_back(pipe.clone());
        let count = self.without_place.len();
        self.queue.without_place.store(count, Ordering::SeqCst);
        // A caller that lays its session down behind this look ends it.
        if self.queue.unused.load(Ordering::SeqCst) > 0 {
            self.end_unused(engine, sessions);
        }
    }

    /// Ends a session that no caller uses.
    fn end_unused(&mut self, engine: &mut Engine, sessions: SessionCount<'_>) {
        let unused = self.sessions.iter().flatten().find_map(|entry| {
            let mut state = lock(&entry.pipe.state);
            let is_unused = state.is_unused && state.input.is_empty();
            is_unused.then(|| {
                self.queue.note_used(&mut state);
                let (reason, fate) = (EndReason::Closed, None);
                state.end.get_or_insert(CallerEnd { reason, fate });
                entry.id
            })
        });
        if let Some(id) = unused {
            self.end_input(engine, id, sessions);
        }
    }

    /// Refuses a session that has not begun.
    fn refuse(&mut self, state: &mut PipeState, reason: EndReason) {
        let fate = Some(Fate::NotSent);
        self.end(state, CallerEnd { reason, fate });
    }

    /// Takes all that callers have written, also beyond the bound of a turn. Then no session
    /// begins any more.
    pub(crate) fn drain(&mut self, engine: &mut Engine, sessions: SessionCount<'_>) {
        self.take_list(engine, sessions);
        while let Some(pipe) = self.taken.pop_front() {
            self.take_pipe(engine, &pipe, sessions);
        }
        self.is_draining = true;
        self.begin_waiting(engine, sessions);
    }

    fn remove(&mut self, id: SessionId, sessions: SessionCount<'_>) -> Option<Arc<Pipe>> {
        let slot = self.sessions.get_mut(id.index())?;
        let entry = slot.take_if(|entry| entry.id == id)?;
        sessions.count.fetch_sub(1, Ordering::Relaxed);
        self.has_freed_place = true;
        Some(entry.pipe)
    }

    /// Ends a session that its caller has withdrawn, and tells the caller the truth.
    fn withdraw(
        &mut self,
        engine: &mut Engine,
        pipe: &Arc<Pipe>,
        reason: EndReason,
        sessions: SessionCount<'_>,
    ) {
        let id = lock(&pipe.state).session;
        let mut fate = None;
        if let Some(id) = id {
            // The caller gets each reply that has come, and a fate for the other requests.
            self.deliver_within(engine, id, usize::MAX);
            fate = engine.withdraw(id);
            self.remove(id, sessions);
        }
        let mut state = lock(&pipe.state);
        let has_input = !state.input.is_empty();
        state.input = Vec::new();
        let fate = fate.or(has_input.then_some(Fate::NotSent));
        self.end(&mut state, CallerEnd { reason, fate });
    }

    /// Copies output of a session to its pipe, as far as there is room. It does nothing if the
    /// session is not that of a caller.
    pub(crate) fn deliver(&mut self, engine: &mut Engine, id: SessionId) {
        self.deliver_within(engine, id, OUTPUT_BYTES_MAX);
    }

    fn deliver_within(&mut self, engine: &mut Engine, id: SessionId, max: usize) {
        let Some(Some(entry)) = self.sessions.get(id.index()) else {
            return;
        };
        let output = engine.session_output(id);
        if entry.id != id || output.is_empty() {
            return;
        }
        let pipe = entry.pipe.clone();
        let mut state = lock(&pipe.state);
        let all = output.len();
        let count = if state.wish == Some(Wish::Leave) {
            state.output = Vec::new();
            all
        } else {
            let count = all.min(max.saturating_sub(state.output.len()));
            state.output.extend_from_slice(&output[..count]);
            count
        };
        state.has_more = count < all;
        self.wake(&mut state);
        drop(state);
        if count > 0 {
            engine.handle_session_written(id, count);
        }
        if count < all {
            engine.handle_session_full(id);
        }
    }

    /// The engine takes input of a session again, or no more for now.
    pub(crate) fn set_reading(&mut self, id: SessionId, on: bool) {
        let Some(Some(entry)) = self.sessions.get_mut(id.index()) else {
            return;
        };
        if entry.id != id {
            return;
        }
        entry.is_read = on;
        let mut state = lock(&entry.pipe.state);
        if on && !state.input.is_empty() && !std::mem::replace(&mut state.is_listed, true) {
            self.taken.push_back(entry.pipe.clone());
        }
    }

    /// The engine has closed a session. `has_replied`: each of its requests has its reply.
    pub(crate) fn close(
        &mut self,
        id: SessionId,
        has_replied: bool,
        reason: Option<CloseReason>,
        sessions: SessionCount<'_>,
    ) {
        let Some(pipe) = self.remove(id, sessions) else {
            return;
        };
        let mut state = lock(&pipe.state);
        let has_input = !state.input.is_empty();
        let fate = match has_replied {
            true => has_input.then_some(Fate::NotSent),
            false => Some(Fate::Unknown),
        };
        let (reason, fate, text) = match reason {
            Some(CloseReason::ServerLost { text, fate }) => {
                (EndReason::ServerLost, Some(fate), Some(text))
            }
            Some(CloseReason::Rule(text)) => (EndReason::Closed, fate, Some(text)),
            None => (EndReason::Closed, fate, None),
        };
        state.closed_for = text;
        self.end(&mut state, CallerEnd { reason, fate });
    }

    /// The worker ends. All sessions of callers end with it.
    pub(crate) fn end_all(&mut self, engine: &mut Engine, sessions: SessionCount<'_>) {
        let open = self.sessions.iter().flatten();
        let open: Vec<Arc<Pipe>> = open.map(|entry| entry.pipe.clone()).collect();
        for pipe in open {
            self.withdraw(engine, &pipe, EndReason::WorkerEnded, sessions);
        }
        self.wake_all();
    }

    fn end(&mut self, state: &mut PipeState, end: CallerEnd) {
        state.end.get_or_insert(end);
        self.wake(state);
    }

    /// Notes that the end of the turn wakes the caller.
    fn wake(&mut self, state: &mut PipeState) {
        match self.queue.change_waits(state, CallerWait::No) {
            CallerWait::No => {}
            CallerWait::Asleep(gate) => self.gates[gate] = true,
            CallerWait::Task(waker) => self.tasks.push(waker),
        }
    }

    /// Wakes the callers of the turn.
    pub(crate) fn wake_all(&mut self) {
        for (gate, wakes) in self.queue.gates.iter().zip(&mut self.gates) {
            if std::mem::take(wakes) {
                gate.wake_all();
            }
        }
        self.woken_tasks = self.tasks.len();
        for task in self.tasks.drain(..) {
            task.wake();
        }
    }
}

/// A worker that panics leaves no caller waiting.
impl Drop for Callers {
    fn drop(&mut self) {
        let listed = std::mem::replace(
            &mut *lock(&self.queue.listed),
            Listed {
                pipes: Vec::new(),
                has_ended: true,
            },
        );
        let unseen = listed.pipes.into_iter().chain(self.taken.drain(..));
        let unseen = unseen.chain(self.without_place.drain(..));
        let unseen: Vec<Arc<Pipe>> = unseen.collect();
        let begun = std::mem::take(&mut self.sessions);
        let begun: Vec<Arc<Pipe>> = begun
            .into_iter()
            .flatten()
            .map(|entry| entry.pipe)
            .collect();
        for pipe in begun.into_iter().chain(unseen) {
            let mut state = lock(&pipe.state);
            let end = state.end_of_worker();
            self.end(&mut state, end);
        }
        self.wake_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use respool_engine::settings::{Address, PoolKind, PoolSettings, ServerSettings, Settings};
    use respool_engine::{Time, WorkerId};
    use std::time::Duration;

    /// A worker's side without a worker: a test takes the turns.
    struct Side {
        callers: Callers,
        engine: Engine,
        count: AtomicUsize,
        sessions: CallerSessions,
    }

    impl Side {
        fn new() -> Side {
            let id = WorkerId {
                index: 0,
                count: 1,
                seed: 1,
                process_id: 1,
                ports: Default::default(),
                started_at: 0,
            };
            let mailbox = Arc::new(Mailbox::new().expect("an eventfd"));
            let queue = Arc::new(CallerQueue::new(mailbox));
            Side {
                callers: Callers::new(queue.clone()),
                engine: Engine::new(Arc::new(settings()), id, Time(0)),
                count: AtomicUsize::new(0),
                sessions: CallerSessions(vec![queue]),
            }
        }

        fn drain(&mut self) {
            let (count, max) = (&self.count, 100);
            let sessions = SessionCount { count, max };
            self.callers.drain(&mut self.engine, sessions);
        }

        /// Takes a turn. Returns the number of bytes that callers had written.
        fn turn(&mut self) -> usize {
            let (count, max) = (&self.count, 100);
            let sessions = SessionCount { count, max };
            let bytes = self.callers.take(&mut self.engine, sessions);
            self.engine.end_turn();
            while let Some(id) = self.engine.poll_session() {
                self.callers.deliver(&mut self.engine, id);
            }
            self.callers.wake_all();
            bytes
        }
    }

    fn settings() -> Settings {
        let server = ServerSettings::at(Address::Tcp {
            host: "server".to_owned(),
            port: 1,
        });
        Settings {
            pools: vec![PoolSettings::new("default", PoolKind::Single(server))],
            ..Settings::default()
        }
    }

    const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

    /// Requests that the worker has not taken are surely not sent.
    #[test]
    fn withdrawn_input_was_not_sent() {
        let mut side = Side::new();
        let session = side.sessions.open(0);
        session.write(PING);
        session.withdraw();
        assert_eq!(side.turn(), 0);
        let end = session.end().expect("it has ended");
        assert_eq!(end.reason, EndReason::Withdrawn);
        assert_eq!(end.fate, Some(Fate::NotSent));
        assert_eq!(side.count.load(Ordering::Relaxed), 0);
    }

    /// Callers that wrote before a drain are taken, also if that is more than a turn takes.
    #[test]
    fn drain_takes_all_that_was_written() {
        let mut side = Side::new();
        let sessions: Vec<_> = (0..3).map(|_| side.sessions.open(0)).collect();
        for session in &sessions {
            session.write(PING);
        }
        side.callers.has_filled = true;
        side.drain();
        assert_eq!(side.engine.counters().sessions, 3);
        for session in sessions {
            assert!(lock(&session.0.state).input.is_empty());
        }
    }

    #[test]
    fn drain_begins_no_session() {
        let mut side = Side::new();
        side.drain();
        let session = side.sessions.open(0);
        session.write(PING);
        assert_eq!(side.turn(), 0);
        let end = session.end().expect("it has ended");
        assert_eq!(end.reason, EndReason::WorkerEnded);
        assert_eq!(end.fate, Some(Fate::NotSent));
    }

    /// Input of a session that the engine does not read stays in the pipe.
    #[test]
    fn unread_session_keeps_its_input() {
        let mut side = Side::new();
        let session = side.sessions.open(0);
        session.write(PING);
        assert_eq!(side.turn(), PING.len());
        let id = lock(&session.0.state).session.expect("it has begun");
        side.callers.set_reading(id, false);
        session.write(PING);
        assert_eq!(side.turn(), 0);
        side.callers.set_reading(id, true);
        assert!(!side.callers.may_sleep());
        assert_eq!(side.turn(), PING.len());
        assert!(side.callers.may_sleep());
    }

    /// The caller that lists the first pipe wakes a sleeping worker; an awake one is not woken.
    #[test]
    fn only_a_sleeping_worker_is_woken() {
        let mut side = Side::new();
        let (session, other) = (side.sessions.open(0), side.sessions.open(0));
        let wakes = |side: &Side| {
            let mut count = [0; 8];
            match rustix::io::read(&*side.sessions.0[0].mailbox, &mut count) {
                Ok(_) => u64::from_ne_bytes(count),
                Err(_) => 0,
            }
        };
        session.write(PING);
        assert_eq!(wakes(&side), 0);
        side.turn();
        assert!(side.callers.may_sleep());
        session.write(PING);
        other.write(PING);
        assert_eq!(wakes(&side), 1);
        side.callers.note_awake();
        assert_eq!(side.turn(), 2 * PING.len());
    }

    /// A caller that leaves frees its place, also before its session has begun.
    #[test]
    fn caller_that_leaves_frees_its_place() {
        let mut side = Side::new();
        let (begun, unseen) = (side.sessions.open(0), side.sessions.open(0));
        begun.write(b"*1\r\n");
        side.turn();
        assert_eq!(side.count.load(Ordering::Relaxed), 1);
        drop(begun);
        drop(unseen);
        side.turn();
        assert_eq!(side.count.load(Ordering::Relaxed), 0);
        assert_eq!(side.engine.counters().sessions, 0);
    }

    /// The requests of a caller that leaves keep their session until they are answered.
    #[test]
    fn caller_that_leaves_keeps_its_place_for_its_requests() {
        let mut side = Side::new();
        let (sent, unsent) = (side.sessions.open(0), side.sessions.open(0));
        sent.write(PING);
        side.turn();
        unsent.write(PING);
        drop(sent);
        drop(unsent);
        side.turn();
        assert_eq!(side.count.load(Ordering::Relaxed), 2);
        assert_eq!(side.engine.counters().sessions, 2);
    }

    #[test]
    fn wait_ends_at_its_deadline() {
        let side = Side::new();
        let session = side.sessions.open(0);
        let begun = Instant::now();
        let limit = Duration::from_millis(20);
        assert!(!session.wait(Some(begun + limit)));
        assert!(begun.elapsed() >= limit);
    }
}

//! One worker: a thread, an epoll, an engine.
//!
//! A turn waits once, reads every ready socket once, lets the engine decide, and writes every dirty
//! socket once. Sockets are closed after all events of the turn are handled, and new clients are
//! accepted after that. So no event refers to a socket that was closed and whose index is in use
//! again.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use respool_engine::settings::{Address, Settings};
use respool_engine::{
    Action, Counters, Engine, Event, LinkId, LocalAddress, Origin, Peer, SessionId,
    SubscriberCounts, TICK_MS, Time, WorkerId,
};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventFlags};
use rustix::io::Errno;
use rustix::net::{self, SocketAddrAny, SocketFlags};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};

use crate::allocator::Allocator;
use crate::byte_stream::{ByteStream, ReadOutcome};
use crate::listen::Listener;
use crate::look_ups::{HostPort, LookUpResult, LookUpState, LookUps, Waiter};
use crate::mailbox::{Mailbox, WorkerOrder};
use crate::refusals::Refusals;
use crate::round_robin::RoundRobin;
use crate::sockets::{self, ConnectStage, LinkSocket, SessionSocket, Socket, Token};
use crate::usage::Meter;
use crate::{Notice, Notify, Resolve, StartError, kernel_error};

/// State that all workers share.
pub(crate) struct SharedState {
    /// Start of the workers; zero of the engines' time.
    pub(crate) started: Instant,
    /// Number of sessions of all workers.
    pub(crate) sessions: AtomicUsize,
    /// Look-ups of host names.
    pub(crate) look_ups: Mutex<LookUps<(usize, LinkId)>>,
    /// The resolver of host names.
    pub(crate) resolve: Resolve,
    /// The last report of each worker.
    pub(crate) reports: Vec<Mutex<Counters>>,
    /// The mailbox of each worker.
    pub(crate) mailboxes: Vec<Arc<Mailbox>>,
    /// Subscriber counts of all workers.
    pub(crate) directory: Arc<SubscriberCounts>,
    /// Handler of notices.
    pub(crate) notify: Notify,
}

impl SharedState {
    /// Sends the result of a look-up to its waiters. Returns the name to look up next.
    fn end_look_up(&self, name: &HostPort, result: &LookUpResult) -> Option<HostPort> {
        let (waiters, next) = lock(&self.look_ups).handle_result(name, result, Instant::now());
        for waiter in waiters {
            let (worker, link) = waiter.link;
            self.mailboxes[worker].send(WorkerOrder::Resolved {
                link,
                attempt: waiter.attempt,
                addresses: result.clone(),
            });
        }
        next
    }
}

/// Body of a resolver thread: looks up one name after another, until no queued name may start.
fn resolve(shared: &SharedState, first: HostPort) {
    let mut next = Some(first);
    while let Some(name) = next {
        let result = (shared.resolve)(&name.0, name.1).map_err(|error| error.to_string());
        next = shared.end_look_up(&name, &result);
    }
}

fn lock(look_ups: &Mutex<LookUps<(usize, LinkId)>>) -> MutexGuard<'_, LookUps<(usize, LinkId)>> {
    look_ups.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn read_report(report: &Mutex<Counters>) -> Counters {
    *report.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Most bytes read from a client in one turn, so that each client gets a fair share.
const SESSION_READ_BYTES: usize = 64 << 10;
/// Most bytes read from a server in one turn.
const LINK_READ_BYTES: usize = 256 << 10;
/// Most events taken from the kernel in one turn.
const EVENTS_MAX: usize = 1024;
/// Most reads of one session at the start of a drain. A client that keeps sending must not delay
/// the drain.
const DRAIN_READS_MAX: usize = 1024;
/// Most clients accepted from one listening socket in one turn.
const ACCEPTS_MAX: usize = 128;
/// Period of a worker's housekeeping, equal to that of the tick.
const HOUSEKEEP_EVERY: Duration = Duration::from_millis(50);
/// Period in which a worker reports its counters.
const REPORT_EVERY: Duration = Duration::from_millis(100);
/// Pause of accepting after the machine had no file descriptor or memory for another client.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long the input of a closed session is discarded. If a socket with unread input is closed,
/// the kernel resets the connection, and the client may lose its last replies.
const LINGER: Duration = Duration::from_secs(1);
/// Most lingering sessions. Beyond it a session is closed at once.
const LINGERING_MAX: usize = 1024;

const MAX_CLIENTS_REPLY: &[u8] = b"-ERR max number of clients reached\r\n";

pub(crate) struct WorkerLoop {
    id: WorkerId,
    settings: Arc<Settings>,
    engine: Engine,
    epoll: OwnedFd,
    /// Timer that fires every [`TICK_MS`]. With it most waits need no timeout.
    tick: OwnedFd,
    /// Timer that fires when a held batch must leave. A timeout of the wait would arm a kernel
    /// timer in every wait, and `epoll_wait` has a resolution of milliseconds.
    alarm: OwnedFd,
    /// Time for which `alarm` is set.
    alarm_at: Option<Time>,
    mailbox: Arc<Mailbox>,
    shared: Arc<SharedState>,
    listeners: Vec<Listener>,
    /// Indexes of listeners with waiting clients in this turn.
    ready_listeners: Vec<usize>,
    /// End of the pause of accepting; `None`: no pause.
    accept_again_at: Option<Instant>,
    refusals: Refusals,
    /// Spare file descriptor, closed for a moment when descriptors run out, to refuse a client.
    reserve: Option<OwnedFd>,
    /// Sockets of the sessions, by the index of their id.
    sessions: Vec<Option<SessionSocket>>,
    /// Connections of the links, by the index of their id.
    links: Vec<Option<LinkSocket>>,
    /// Number of connection attempts so far.
    attempts: u64,
    /// Sockets of closed sessions whose input is discarded, each until its time.
    lingering: VecDeque<(Instant, ByteStream)>,
    /// Read buffer of all sockets.
    buffer: Vec<u8>,
    /// The socket at which the last full turn stopped.
    round_robin: RoundRobin,
    /// Bytes read since the engine last measured its links.
    read_bytes: usize,
    /// Trims the heap of the process.
    allocator: Allocator,
    /// Time of the next housekeeping.
    housekeep_at: Instant,
    /// Time of the next report.
    report_at: Instant,
    /// Whether a drain has begun.
    draining: bool,
}

enum TurnOutcome {
    /// Another turn follows.
    Continue,
    /// The worker ends.
    End,
}

impl WorkerLoop {
    pub(crate) fn new(
        id: WorkerId,
        settings: Arc<Settings>,
        listeners: Vec<Listener>,
        mailbox: Arc<Mailbox>,
        shared: Arc<SharedState>,
    ) -> Result<Self, StartError> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(kernel_error("epoll_create1"))?;
        let watch = |fd: &dyn AsFd, token: Token| {
            epoll::add(&epoll, fd.as_fd(), token.pack(), EventFlags::IN)
                .map_err(kernel_error("epoll_ctl"))
        };
        watch(&&*mailbox, Token::Mailbox)?;
        let tick = timer().map_err(kernel_error("timerfd_create"))?;
        let every = Duration::from_millis(TICK_MS.into());
        set_timer(&tick, every, every).map_err(kernel_error("timerfd_settime"))?;
        watch(&tick, Token::Tick)?;
        let alarm = timer().map_err(kernel_error("timerfd_create"))?;
        watch(&alarm, Token::Alarm)?;
        let worker = WorkerLoop {
            id,
            allocator: Allocator::new(settings.limits.worker_memory_bytes_max),
            engine: Engine::new(settings.clone(), id, Time(0))
                .with_directory(shared.directory.clone()),
            settings,
            epoll,
            tick,
            alarm,
            alarm_at: None,
            mailbox,
            listeners,
            ready_listeners: Vec::new(),
            accept_again_at: None,
            refusals: Refusals::default(),
            reserve: reserve(),
            sessions: Vec::new(),
            links: Vec::new(),
            attempts: 0,
            lingering: VecDeque::new(),
            buffer: vec![0; LINK_READ_BYTES],
            round_robin: RoundRobin::default(),
            read_bytes: 0,
            housekeep_at: shared.started,
            report_at: shared.started,
            draining: false,
            shared,
        };
        for index in 0..worker.listeners.len() {
            worker
                .watch_listener(index)
                .map_err(kernel_error("epoll_ctl"))?;
        }
        Ok(worker)
    }

    /// Runs until an order to end or an error. Returns the number of sessions that were still open.
    pub(crate) fn run(mut self) -> usize {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let mut meter = Meter::of_this_thread();
        loop {
            match self.turn(&mut events, &mut meter) {
                Ok(TurnOutcome::Continue) => {}
                Ok(TurnOutcome::End) => break,
                Err(error) => {
                    self.notify(Notice::WorkerFailed {
                        worker: self.id.index,
                        reason: error.to_string(),
                    });
                    break;
                }
            }
        }
        let cut = self.sessions.iter().flatten().count();
        self.shared.sessions.fetch_sub(cut, Ordering::Relaxed);
        cut
    }

    fn turn(
        &mut self,
        events: &mut Vec<epoll::Event>,
        meter: &mut Meter,
    ) -> io::Result<TurnOutcome> {
        self.wait(events)?;
        let now = self.now();
        self.engine.begin_turn(now);
        if self.engine.is_tick_due() {
            self.engine.begin_tick(Some(meter.usage()));
        }
        let mut orders = Vec::new();
        self.round_robin.rotate(events, |event| event.data.u64());
        for event in events.drain(..) {
            // The fields are copied because the struct is packed.
            let (data, flags) = (event.data, event.flags);
            match Token::unpack(data) {
                // A socket that stays ready is read in the next turn.
                Token::Session(_) | Token::Link(_) if self.is_turn_full() => {
                    self.round_robin.note_skipped(data.u64());
                }
                Token::Session(index) => {
                    self.session_event(index, flags);
                }
                Token::Link(index) => self.link_event(index, flags),
                Token::Listener(index) => self.ready_listeners.push(index),
                Token::Mailbox => orders = self.mailbox.take(),
                Token::Tick => clear_timer(&self.tick),
                Token::Alarm => {
                    clear_timer(&self.alarm);
                    self.alarm_at = None;
                }
            }
        }
        for order in orders {
            match order {
                WorkerOrder::Stop => return Ok(TurnOutcome::End),
                WorkerOrder::Drain => self.drain(),
                WorkerOrder::Resolved {
                    link,
                    attempt,
                    addresses,
                } => self.resolved(link, attempt, addresses),
                WorkerOrder::Password(new) => {
                    self.engine.handle_password(new.source, &new.password)
                }
                WorkerOrder::Question {
                    from,
                    ticket,
                    question,
                } => self.engine.handle_question(from, ticket, question),
                WorkerOrder::Answer { ticket, answer } => self.engine.handle_answer(ticket, answer),
            }
        }
        self.finish_turn();
        self.accept_clients();
        self.housekeep();
        let done =
            self.draining && self.engine.counters().sessions == 0 && self.lingering.is_empty();
        Ok(if done {
            TurnOutcome::End
        } else {
            TurnOutcome::Continue
        })
    }

    /// Whether the bounds of this turn for input or memory are reached. Then it reads no more
    /// sockets.
    fn is_turn_full(&self) -> bool {
        self.read_bytes >= self.engine.links_bytes_read_max() || self.engine.turn_is_full()
    }

    /// Ends the engine's turn, writes its output (links first), performs its actions, and passes on
    /// its events.
    fn finish_turn(&mut self) {
        if self.read_bytes >= self.engine.links_bytes_read_max() {
            self.read_bytes = 0;
            self.engine.measure_links();
            self.allocator
                .trim_if_due(self.engine.memory_bytes_of_all());
        }
        self.engine.end_turn();
        while let Some(link) = self.engine.poll_link() {
            self.write_link(link);
        }
        while let Some(session) = self.engine.poll_session() {
            self.write_session(session);
        }
        while let Some(action) = self.engine.poll_action() {
            self.perform(action);
        }
        // An action may have produced replies: a connect that failed at once fails its requests.
        while let Some(session) = self.engine.poll_session() {
            self.write_session(session);
        }
        while let Some(event) = self.engine.poll_event() {
            let worker = self.id.index;
            self.notify(match event {
                Event::LinkUp {
                    server,
                    pool,
                    identity,
                } => Notice::LinkUp {
                    worker,
                    server,
                    pool,
                    version: identity,
                },
                Event::LinkDown {
                    server,
                    pool,
                    reason,
                } => Notice::LinkDown {
                    worker,
                    server,
                    pool,
                    reason,
                },
                Event::SessionClosed { peer, reason } => Notice::SessionClosed {
                    worker,
                    peer,
                    reason,
                },
                Event::Topology { pool, text } => Notice::Topology { worker, pool, text },
                Event::BoundReached { name, effect } => Notice::BoundReached {
                    worker,
                    name,
                    effect,
                },
                Event::LoginsRefused { from, count } => Notice::LoginsRefused { from, count },
                Event::PasswordRefused { source } => Notice::PasswordRefused { source },
                Event::OptionsSet {
                    peer,
                    pool,
                    listener,
                    options,
                } => Notice::OptionsSet {
                    peer,
                    pool,
                    listener,
                    options,
                },
            });
        }
    }

    fn now(&self) -> Time {
        Time(self.shared.started.elapsed().as_micros() as u64)
    }

    fn notify(&self, notice: Notice) {
        (self.shared.notify)(notice);
    }

    fn wait(&mut self, events: &mut Vec<epoll::Event>) -> io::Result<()> {
        let now = self.now();
        let due = self.engine.deadline();
        let poll = due.is_some_and(|due| due <= now);
        if let Some(due) = due
            && !poll
            && self.alarm_at != Some(due)
        {
            // The timer is set once for a batch, however often the worker wakes until then. If the
            // batch leaves earlier, the timer costs at worst an empty turn.
            set_timer(
                &self.alarm,
                Duration::from_micros(due.since_us(now)),
                Duration::ZERO,
            )?;
            self.alarm_at = Some(due);
        }
        let at_once = timespec(Duration::ZERO);
        let timeout = poll.then_some(&at_once);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), timeout) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Sessions.
impl WorkerLoop {
    /// Handles an event of a session's socket. Returns whether more input may be waiting.
    fn session_event(&mut self, index: usize, flags: EventFlags) -> bool {
        let Some(Some(session)) = self.sessions.get(index) else {
            return false;
        };
        let id = session.id;
        if flags.contains(EventFlags::OUT) {
            self.write_session(id);
        }
        let Some(Some(session)) = self.sessions.get_mut(index) else {
            return false;
        };
        if !session.socket.is_watched_for(EventFlags::IN) {
            if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
                self.engine.handle_session_lost(id);
            } else if flags.contains(EventFlags::RDHUP) {
                // The hang-up is reported once. If the engine does not close the session, later
                // reads reach the end of its input.
                let unwatched = session.socket.watch(&self.epoll, EventFlags::RDHUP, false);
                match unwatched {
                    Ok(()) => self.engine.handle_session_hangup(id),
                    Err(_) => self.engine.handle_session_lost(id),
                }
            }
            return false;
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            let buffer = &mut self.buffer[..SESSION_READ_BYTES];
            match session.socket.stream.read(buffer) {
                Ok(ReadOutcome::End) => self.engine.handle_session_end(id),
                Ok(ReadOutcome::Bytes(count)) => {
                    self.read_bytes += count;
                    self.engine.handle_session_bytes(id, &self.buffer[..count]);
                    return count == SESSION_READ_BYTES;
                }
                Ok(ReadOutcome::Nothing) => {}
                Err(_) => self.engine.handle_session_lost(id),
            }
        }
        false
    }

    fn write_session(&mut self, id: SessionId) {
        let Some(Some(session)) = self.sessions.get_mut(id.index()) else {
            return;
        };
        let output = self.engine.session_output(id);
        if output.is_empty() {
            return;
        }
        let all = output.len();
        let Ok(count) = session.socket.stream.write(output) else {
            return self.engine.handle_session_lost(id);
        };
        if session
            .socket
            .watch(&self.epoll, EventFlags::OUT, count < all)
            .is_err()
        {
            return self.engine.handle_session_lost(id);
        }
        if count > 0 {
            self.engine.handle_session_written(id, count);
        }
        if count < all {
            self.engine.handle_session_full(id);
        }
    }

    fn close_session(&mut self, id: SessionId, after_output: bool) {
        let Some(slot) = self.sessions.get_mut(id.index()) else {
            return;
        };
        let Some(session) = slot.take_if(|session| session.id == id) else {
            return;
        };
        self.shared.sessions.fetch_sub(1, Ordering::Relaxed);
        let stream = session.socket.stream;
        if !after_output || stream.shutdown_write().is_err() {
            return;
        }
        if !stream.discard(&mut self.buffer)
            && self.lingering.len() < LINGERING_MAX
            && epoll::delete(&self.epoll, &stream).is_ok()
        {
            self.lingering.push_back((Instant::now() + LINGER, stream));
        }
    }

    fn accept_clients(&mut self) {
        for index in std::mem::take(&mut self.ready_listeners) {
            for _ in 0..ACCEPTS_MAX {
                let Some(listener) = self.listeners.get(index) else {
                    break;
                };
                match net::acceptfrom_with(
                    &listener.socket,
                    SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
                ) {
                    Ok((fd, address)) => {
                        self.accepted(ByteStream::new(fd), address, index);
                    }
                    Err(Errno::AGAIN) => break,
                    // The client is already gone, or a signal interrupted the call.
                    Err(Errno::CONNABORTED | Errno::INTR | Errno::PROTO) => {}
                    Err(Errno::MFILE | Errno::NFILE) => {
                        self.refuse_for_descriptors(index);
                        break;
                    }
                    Err(error) => {
                        self.pause_accepting("accept", &error.to_string());
                        break;
                    }
                }
            }
        }
    }

    fn accepted(&mut self, stream: ByteStream, address: Option<SocketAddrAny>, listener: usize) {
        let peer = address
            .and_then(|address| address.try_into().ok())
            .map_or(Peer::Unix, Peer::Tcp);
        let max = self.settings.limits.sessions_max as usize;
        if self.shared.sessions.fetch_add(1, Ordering::Relaxed) >= max {
            self.shared.sessions.fetch_sub(1, Ordering::Relaxed);
            let _ = stream.write(MAX_CLIENTS_REPLY);
            let detail = format!("{max} clients are connected; {peer} was refused");
            return self.accept_failed("sessions-max", detail);
        }
        if matches!(peer, Peer::Tcp(_)) && sockets::prepare_tcp(&stream).is_err() {
            // The client is already gone.
            self.shared.sessions.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let index = listener as u16;
        let listener = &self.listeners[listener];
        let origin = Origin {
            peer,
            local: match &listener.path {
                Some(path) => LocalAddress::Unix(path.clone()),
                None => net::getsockname(&stream)
                    .ok()
                    .and_then(|address| address.try_into().ok())
                    .map_or(LocalAddress::Unknown, LocalAddress::Tcp),
            },
            fd: stream.as_fd().as_raw_fd(),
            listener: index,
        };
        let id = self.engine.handle_accept(origin, listener.pool);
        let token = Token::Session(id.index());
        match Socket::new(&self.epoll, stream, token, EventFlags::IN) {
            Ok(socket) => {
                if self.sessions.len() <= id.index() {
                    self.sessions.resize_with(id.index() + 1, || None);
                }
                debug_assert!(
                    self.sessions[id.index()].is_none(),
                    "the index was freed before it is used again"
                );
                self.sessions[id.index()] = Some(SessionSocket { id, socket });
            }
            Err(error) => {
                self.shared.sessions.fetch_sub(1, Ordering::Relaxed);
                self.engine.handle_session_lost(id);
                self.accept_failed("epoll", format!("{peer} cannot be added: {error}"));
            }
        }
    }

    /// No file descriptor is left. The reserve is closed to accept and refuse one client. The other
    /// clients wait in the kernel's queue.
    fn refuse_for_descriptors(&mut self, listener: usize) {
        self.reserve = None;
        if let Some(listener) = self.listeners.get(listener)
            && let Ok(client) = net::accept_with(
                &listener.socket,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            )
        {
            let _ = ByteStream::new(client).write(MAX_CLIENTS_REPLY);
        }
        self.reserve = reserve();
        self.pause_accepting(
            "file descriptors",
            "none is left; raise the limit (ulimit -n) or lower sessions-max",
        );
    }

    fn pause_accepting(&mut self, reason: &'static str, detail: &str) {
        self.accept_failed(reason, detail.to_owned());
        for listener in &self.listeners {
            // It fails for a listener that is not in epoll, which is as good.
            let _ = epoll::delete(&self.epoll, &listener.socket);
        }
        self.accept_again_at = Some(Instant::now() + ACCEPT_PAUSE);
    }

    /// Counts a client that could not be accepted.
    fn accept_failed(&mut self, reason: &'static str, detail: String) {
        self.refusals.note(reason, detail);
        self.notify_refusals();
    }

    fn notify_refusals(&mut self) {
        for refused in self.refusals.take(Instant::now()) {
            self.notify(Notice::AcceptFailed {
                worker: self.id.index,
                reason: refused.reason,
                detail: refused.detail,
                clients: refused.clients,
            });
        }
    }

    fn watch_listener(&self, index: usize) -> io::Result<()> {
        // If workers share one queue, EXCLUSIVE wakes one of them instead of all.
        let flags = EventFlags::IN | EventFlags::EXCLUSIVE;
        Ok(epoll::add(
            &self.epoll,
            &self.listeners[index].socket,
            Token::Listener(index).pack(),
            flags,
        )?)
    }
}

/// Links.
impl WorkerLoop {
    fn link_event(&mut self, index: usize, flags: EventFlags) {
        let Some(Some(link)) = self.links.get_mut(index) else {
            return;
        };
        let id = link.id;
        match &mut link.stage {
            ConnectStage::Resolving => {}
            ConnectStage::Connecting(socket) => match net::sockopt::socket_error(&socket.stream) {
                Ok(Ok(())) if flags.contains(EventFlags::OUT) => {
                    if sockets::is_own_peer(&socket.stream) {
                        // No process listens, and the kernel chose the server's port for our end.
                        self.try_next_address(id, "no process listens there");
                    } else {
                        self.link_connected(id);
                    }
                }
                Ok(Ok(())) => {}
                Ok(Err(error)) | Err(error) => self.try_next_address(id, &describe(error)),
            },
            ConnectStage::Up(_) => {
                if flags.contains(EventFlags::OUT) {
                    self.write_link(id);
                }
                let Some(Some(LinkSocket {
                    stage: ConnectStage::Up(socket),
                    ..
                })) = self.links.get(index)
                else {
                    return;
                };
                let readable = flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR);
                if !readable
                    || !socket.is_watched_for(EventFlags::IN)
                        && !flags.intersects(EventFlags::HUP | EventFlags::ERR)
                {
                    return;
                }
                match socket.stream.read(&mut self.buffer[..LINK_READ_BYTES]) {
                    Ok(ReadOutcome::End) => self.link_lost(id, "the server closed it"),
                    Ok(ReadOutcome::Bytes(count)) => {
                        self.read_bytes += count;
                        self.engine.handle_link_bytes(id, &self.buffer[..count]);
                    }
                    Ok(ReadOutcome::Nothing) => {}
                    Err(error) => self.link_lost(id, &describe(error)),
                }
            }
        }
    }

    fn write_link(&mut self, id: LinkId) {
        let Some(Some(link)) = self.links.get_mut(id.index()) else {
            return;
        };
        let ConnectStage::Up(socket) = &mut link.stage else {
            return;
        };
        let output = self.engine.link_output(id);
        if link.id != id || output.is_empty() {
            return;
        }
        let all = output.len();
        let count = match socket.stream.write(output) {
            Ok(count) => count,
            Err(error) => return self.link_lost(id, &describe(error)),
        };
        if let Err(error) = socket.watch(&self.epoll, EventFlags::OUT, count < all) {
            return self.link_lost(id, &describe(error));
        }
        if count > 0 {
            self.engine.handle_link_written(id, count);
        }
    }

    /// Closes the socket of a link, then reports the loss to the engine.
    fn link_lost(&mut self, id: LinkId, reason: &str) {
        if let Some(slot) = self.links.get_mut(id.index()) {
            *slot = None;
        }
        self.engine.handle_link_lost(id, reason);
    }

    fn connect(&mut self, id: LinkId, to: Address) {
        self.attempts += 1;
        let attempt = self.attempts;
        let link = LinkSocket {
            id,
            attempt,
            stage: ConnectStage::Resolving,
            untried: Vec::new(),
        };
        if self.links.len() <= id.index() {
            self.links.resize_with(id.index() + 1, || None);
        }
        self.links[id.index()] = Some(link);
        match &to {
            Address::Unix(path) => {
                let connected = sockets::connect_unix(path);
                self.connecting(id, connected);
            }
            Address::Tcp { host, port } => match sockets::ip_address(&to) {
                Some(address) => {
                    let connected = sockets::connect_tcp(address);
                    self.connecting(id, connected);
                }
                None => self.look_up(id, attempt, (host.clone(), *port)),
            },
        }
    }

    /// Requests a look-up of a host name. The system's resolver blocks, so it runs on a thread of
    /// its own.
    fn look_up(&mut self, link: LinkId, attempt: u64, name: HostPort) {
        let (worker, pool) = (self.id.index, self.engine.pool_of_link(link));
        let waiter = Waiter {
            link: (worker, link),
            attempt,
        };
        let state = lock(&self.shared.look_ups).request(&name, pool, waiter, Instant::now());
        let since = match state {
            LookUpState::Known(addresses) => return self.resolved(link, attempt, Ok(addresses)),
            LookUpState::Wait(since) | LookUpState::Start(since) => since,
        };
        let since = since.saturating_duration_since(self.shared.started);
        let since = Time(since.as_micros() as u64);
        self.engine.handle_link_resolving(link, since);
        if !matches!(state, LookUpState::Start(_)) {
            return;
        }
        let (shared, first) = (self.shared.clone(), name.clone());
        let resolver = std::thread::Builder::new().name("resolver".to_owned());
        if let Err(error) = resolver.spawn(move || resolve(&shared, first)) {
            let result = Err(format!("no thread can be started: {error}"));
            let mut next = Some(name);
            while let Some(name) = next {
                next = self.shared.end_look_up(&name, &result);
            }
        }
    }

    fn resolved(
        &mut self,
        id: LinkId,
        attempt: u64,
        addresses: Result<Vec<std::net::SocketAddr>, String>,
    ) {
        let Some(Some(link)) = self.links.get_mut(id.index()) else {
            return;
        };
        if link.attempt != attempt {
            return;
        }
        self.engine.handle_link_resolved(id);
        match addresses {
            Err(error) => self.link_lost(id, &format!("its name cannot be looked up: {error}")),
            Ok(mut addresses) => {
                // Each attempt begins with another address, because the first one may never answer.
                let first = attempt as usize % addresses.len().max(1);
                addresses.rotate_left(first);
                addresses.reverse();
                link.untried = addresses;
                self.try_next_address(id, "its name has no address");
            }
        }
    }

    /// Tries the next address of a name. Without one the link is lost, for the reason of the last
    /// address.
    fn try_next_address(&mut self, id: LinkId, reason: &str) {
        let Some(Some(link)) = self.links.get_mut(id.index()) else {
            return;
        };
        match link.untried.pop() {
            Some(address) => {
                link.stage = ConnectStage::Resolving;
                let connected = sockets::connect_tcp(address);
                self.connecting(id, connected);
            }
            None => self.link_lost(id, reason),
        }
    }

    fn connecting(&mut self, id: LinkId, connected: rustix::io::Result<ByteStream>) {
        let token = Token::Link(id.index());
        let watched =
            connected.and_then(|stream| Socket::new(&self.epoll, stream, token, EventFlags::OUT));
        match watched {
            Ok(socket) => {
                if let Some(Some(link)) = self.links.get_mut(id.index()) {
                    link.stage = ConnectStage::Connecting(socket);
                }
            }
            Err(error) => self.try_next_address(id, &describe(error)),
        }
    }

    fn link_connected(&mut self, id: LinkId) {
        let Some(Some(link)) = self.links.get_mut(id.index()) else {
            return;
        };
        let ConnectStage::Connecting(mut socket) =
            std::mem::replace(&mut link.stage, ConnectStage::Resolving)
        else {
            return;
        };
        let watched = socket
            .watch(&self.epoll, EventFlags::IN, true)
            .and_then(|()| socket.watch(&self.epoll, EventFlags::OUT, false));
        link.stage = ConnectStage::Up(socket);
        match watched {
            Ok(()) => self.engine.handle_link_up(id),
            Err(error) => self.link_lost(id, &describe(error)),
        }
    }
}

/// Actions of the engine, drain, housekeeping.
impl WorkerLoop {
    fn perform(&mut self, action: Action) {
        match action {
            Action::Connect { link, to } => self.connect(link, to),
            Action::CloseLink(id) => {
                if let Some(slot) = self.links.get_mut(id.index())
                    && slot.as_ref().is_some_and(|link| link.id == id)
                {
                    *slot = None;
                }
            }
            Action::EndLink(id) => {
                if let Some(Some(link)) = self.links.get_mut(id.index())
                    && link.id == id
                    && let Some(socket) = link.socket()
                    && let Err(error) = socket.stream.shutdown_write()
                {
                    self.link_lost(id, &describe(error));
                }
            }
            Action::ReadLink(id, on) => {
                let Some(Some(link)) = self.links.get_mut(id.index()) else {
                    return;
                };
                if link.id == id
                    && let Some(socket) = link.socket()
                    && let Err(error) = socket.watch(&self.epoll, EventFlags::IN, on)
                {
                    self.link_lost(id, &describe(error));
                }
            }
            Action::CloseSession {
                session,
                after_output,
            } => self.close_session(session, after_output),
            Action::Ask { ticket, question } => {
                for (index, mailbox) in self.shared.mailboxes.iter().enumerate() {
                    if index != self.id.index {
                        mailbox.send(WorkerOrder::Question {
                            from: self.id.index,
                            ticket,
                            question: question.clone(),
                        });
                    }
                }
            }
            Action::Answer { to, ticket, answer } => {
                self.shared.mailboxes[to].send(WorkerOrder::Answer { ticket, answer });
            }
            Action::ReadSession(id, on) => {
                let Some(Some(session)) = self.sessions.get_mut(id.index()) else {
                    return;
                };
                if session.id == id && session.socket.watch_input(&self.epoll, on).is_err() {
                    self.engine.handle_session_lost(id);
                }
            }
        }
    }

    fn drain(&mut self) {
        if std::mem::replace(&mut self.draining, true) {
            return;
        }
        // Sockets that this turn closed must be closed before new clients get their indexes.
        self.finish_turn();
        // The kernel has already completed the connections of clients in the queue.
        self.ready_listeners = (0..self.listeners.len()).collect();
        self.accept_clients();
        for listener in self.listeners.drain(..) {
            // Other workers may hold the same socket, so closing ours would not remove it from
            // epoll.
            let _ = epoll::delete(&self.epoll, &listener.socket);
        }
        // Requests that have arrived are still executed. Sessions whose input is held are not read.
        for index in 0..self.sessions.len() {
            for _ in 0..DRAIN_READS_MAX {
                if !self.session_event(index, EventFlags::IN) {
                    break;
                }
            }
        }
        self.engine.handle_drain();
    }

    fn housekeep(&mut self) {
        let now = Instant::now();
        if now < self.housekeep_at {
            return;
        }
        self.housekeep_at = now + HOUSEKEEP_EVERY;
        self.notify_refusals();
        self.allocator
            .trim_if_due(self.engine.memory_bytes_of_all());
        if self.accept_again_at.is_some_and(|at| now >= at) {
            self.accept_again_at = None;
            for index in 0..self.listeners.len() {
                if let Err(error) = self.watch_listener(index) {
                    self.pause_accepting("accept", &error.to_string());
                    break;
                }
            }
        }
        for _ in 0..self.lingering.len() {
            let Some((until, stream)) = self.lingering.pop_front() else {
                break;
            };
            if now < until && !stream.discard(&mut self.buffer) {
                self.lingering.push_back((until, stream));
            }
        }
        if now >= self.report_at {
            self.report_at = now + REPORT_EVERY;
            self.report();
        }
    }

    fn report(&mut self) {
        let mut others = Counters::default();
        for (index, report) in self.shared.reports.iter().enumerate() {
            if index == self.id.index {
                *report.lock().unwrap_or_else(PoisonError::into_inner) = self.engine.counters();
            } else {
                others.add(&read_report(report));
            }
        }
        self.engine.handle_workers(others);
    }
}

fn timer() -> io::Result<OwnedFd> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    Ok(rustix::time::timerfd_create(
        TimerfdClockId::Monotonic,
        flags,
    )?)
}

fn set_timer(timer: &OwnedFd, first: Duration, every: Duration) -> io::Result<()> {
    let times = Itimerspec {
        it_interval: timespec(every),
        it_value: timespec(first),
    };
    rustix::time::timerfd_settime(timer, TimerfdTimerFlags::empty(), &times)?;
    Ok(())
}

/// Reads a timer that has fired: it stays readable until then.
fn clear_timer(timer: &OwnedFd) {
    let mut count = [0; 8];
    let _ = rustix::io::read(timer, &mut count);
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: duration.as_secs() as i64,
        tv_nsec: duration.subsec_nanos().into(),
    }
}

fn reserve() -> Option<OwnedFd> {
    std::fs::File::open("/dev/null").ok().map(OwnedFd::from)
}

/// The system's text of an error: `Connection refused (os error 111)`.
fn describe(error: Errno) -> String {
    io::Error::from(error).to_string()
}

//! One worker: a thread, an epoll, an engine.
//!
//! A turn waits once, reads every ready socket once, lets the engine decide, and writes the dirty
//! sockets. Sockets are closed after all events of the turn are handled, and new clients are
//! accepted after that. So no event refers to a socket that was closed and whose index is in use
//! again.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use respool_engine::settings::{Address, Settings};
use respool_engine::{
    Action, CloseReason, Counters, DriverCounts, Engine, Event, LatencyReport, LinkId,
    LocalAddress, Origin, Peer, PoolPlaces, SessionId, SubscriberCounts, TICK_MS, Time, WorkerId,
    WorkerReport,
};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventFlags};
use rustix::io::Errno;
use rustix::net::{self, SocketAddrAny, SocketFlags};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};

use crate::allocator::Allocator;
use crate::byte_stream::{ByteStream, ReadOutcome};
use crate::callers::{CallerQueue, Callers, SessionCount};
use crate::handshakes::{ClientHandshake, Handshakes};
use crate::listen::{BACKLOG, Listener};
use crate::look_ups::{HostPort, LookUpResult, LookUpState, LookUps, Waiter};
use crate::mailbox::{KeptListener, Mailbox, NewPassword, WorkerOrder, WorkerReload};
use crate::refusals::Refusals;
use crate::reload::ListeningAddresses;
use crate::round_robin::RoundRobin;
use crate::sockets::{self, ConnectStage, LinkSocket, SessionSocket, Socket, Token};
use crate::tls::failure::{HandshakeRefusal, StreamError};
use crate::tls::{ServerTls, TlsBuffers, TlsMemory, TlsStream};
use crate::usage::Meter;
use crate::{Notice, Notify, Resolve, StartError, handshakes, kernel_error, lock};

/// State that all workers share.
pub(crate) struct SharedState {
    /// Start of the workers; zero of the engines' time.
    pub(crate) started: Instant,
    /// The addresses on which the workers listen.
    pub(crate) listening: Mutex<ListeningAddresses>,
    /// The places of the pools in every engine.
    pub(crate) pools: Mutex<PoolPlaces>,
    /// Number of sessions of all workers.
    pub(crate) sessions: AtomicUsize,
    /// Look-ups of host names.
    pub(crate) look_ups: Mutex<LookUps<(usize, LinkId)>>,
    /// The resolver of host names.
    pub(crate) resolve: Resolve,
    /// The last report of each worker.
    pub(crate) reports: Vec<Mutex<Counters>>,
    /// The last report of each worker on its servers; empty if nothing reads them.
    pub(crate) server_reports: Vec<Mutex<WorkerReport>>,
    /// The times of requests of each worker, from its last report; empty if nothing reads them.
    pub(crate) latencies: Vec<Mutex<LatencyReport>>,
    /// The mailbox of each worker.
    pub(crate) mailboxes: Vec<Arc<Mailbox>>,
    /// The queue of each worker for callers in this process; empty if there are none.
    pub(crate) callers: Vec<Arc<CallerQueue>>,
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

pub(crate) fn read_report<R: Clone>(report: &Mutex<R>) -> R {
    lock(report).clone()
}

/// Most bytes read from a client in one turn, so that each client gets a fair share.
const SESSION_READ_BYTES: usize = 64 << 10;
/// Most bytes read from a server in one turn.
const LINK_READ_BYTES: usize = 256 << 10;
/// Most events taken from the kernel in one turn.
const EVENTS_MAX: usize = 1024;
/// Most events taken from the kernel in a turn that a caller takes: see [`crate::helm`].
const LED_EVENTS_MAX: usize = 16;
/// Most reads of one session at the start of a drain. A client that keeps sending must not delay
/// the drain.
const DRAIN_READS_MAX: usize = 1024;
/// Most reads of one session of a removed pool. Sessions of other pools wait meanwhile.
const REMOVED_READS_MAX: usize = 4;
/// Most clients accepted from one listening socket in one turn.
const ACCEPTS_MAX: usize = 128;
/// Most clients accepted from one listening socket with TLS in one turn. Such a client costs more.
const TLS_ACCEPTS_MAX: usize = 16;
/// Most time that a turn gives to handshakes of clients, so that many handshakes delay no session
/// for long. The last step of a handshake in a turn may end later.
const HANDSHAKE_TURN: Duration = Duration::from_micros(500);
/// Period of a worker's housekeeping, equal to that of the tick.
const HOUSEKEEP_EVERY: Duration = Duration::from_millis(50);
/// Period in which a worker reports its counters.
const REPORT_EVERY: Duration = Duration::from_millis(100);
/// Period in which a worker reports on its servers.
const REPORT_SERVERS_EVERY: Duration = Duration::from_millis(500);
/// Period in which a worker reports the times of its requests.
const REPORT_LATENCY_EVERY: Duration = Duration::from_secs(1);
/// Pause of accepting after the machine had no file descriptor or memory for another client.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long the input of a closed session is discarded. If a socket with unread input is closed,
/// the kernel resets the connection, and the client may lose its last replies.
const LINGER: Duration = Duration::from_secs(1);
/// Most lingering sessions. Beyond it a session is closed at once.
const LINGERING_MAX: usize = 1024;

/// Transport of the links of a pool.
enum PoolTransport {
    Plain,
    Tls(ServerTls),
    /// The pool has ended, or its place was left empty. No link connects: without the TLS of its
    /// pool it would send its password in clear text.
    Ended,
}

impl PoolTransport {
    /// TLS for a new link, `None` for a plain one. `Err`: it must not connect.
    fn tls_of(transport: Option<&PoolTransport>) -> Result<Option<&ServerTls>, &'static str> {
        match transport {
            Some(PoolTransport::Plain) => Ok(None),
            Some(PoolTransport::Tls(tls)) => Ok(Some(tls)),
            Some(PoolTransport::Ended) | None => Err("the pool has ended"),
        }
    }

    /// Whether the TLS of a pool becomes another one.
    fn is_replaced_by(&self, new: &PoolTransport) -> bool {
        match (self, new) {
            (PoolTransport::Tls(old), PoolTransport::Tls(new)) => !old.is_same(new),
            _ => false,
        }
    }
}

impl From<Option<ServerTls>> for PoolTransport {
    fn from(tls: Option<ServerTls>) -> PoolTransport {
        tls.map_or(PoolTransport::Plain, PoolTransport::Tls)
    }
}

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
    /// The listeners by their indices; `None`: a reload has removed it.
    listeners: Vec<Option<Listener>>,
    /// Indexes of listeners with waiting clients in this turn.
    ready_listeners: Vec<usize>,
    /// End of the pause of accepting; `None`: no pause.
    accept_again_at: Option<Instant>,
    /// Whether listeners with TLS are not watched, because of the bound of handshakes.
    tls_paused: bool,
    refusals: Refusals,
    /// Spare file descriptor, closed for a moment when descriptors run out, to refuse a client.
    reserve: Option<OwnedFd>,
    /// Sockets of the sessions, by the index of their id.
    sessions: Vec<Option<SessionSocket>>,
    /// Sessions of callers in this process; `None`: there can be none.
    callers: Option<Callers>,
    /// Connections of the links, by the index of their id.
    links: Vec<Option<LinkSocket>>,
    /// Number of connection attempts so far.
    attempts: u64,
    /// Sockets of closed sessions. Their input is discarded, each until its time.
    lingering: VecDeque<(Instant, ByteStream)>,
    /// Read buffer of all sockets.
    buffer: Vec<u8>,
    /// Transport of the links of each pool, by the pool's index.
    transports: Vec<PoolTransport>,
    /// Handshakes of clients that are no sessions yet.
    handshakes: Handshakes,
    /// Buffers of all connections with TLS.
    tls_buffers: TlsBuffers,
    /// Memory of all connections with TLS.
    tls_memory: TlsMemory,
    /// Counts of clients with TLS, and of clients without a session, for the engine's counters.
    counts: DriverCounts,
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
    /// Time of the next report on the servers.
    report_servers_at: Instant,
    /// Buffers of the last report on the servers but one.
    spare_report: WorkerReport,
    /// Time of the next report of the times of requests.
    report_latency_at: Instant,
    /// Whether a drain has begun.
    draining: bool,
}

/// The buffers and the meter of a thread that takes turns.
pub(crate) struct TurnTools {
    events: Vec<epoll::Event>,
    /// The number of events in the last turn.
    event_count: usize,
    /// Measures the worker's thread. `None`: another thread takes the turns.
    meter: Option<Meter>,
}

impl TurnTools {
    fn of_worker() -> TurnTools {
        TurnTools::new(EVENTS_MAX, Some(Meter::of_this_thread()))
    }

    pub(crate) fn of_caller() -> TurnTools {
        TurnTools::new(LED_EVENTS_MAX, None)
    }

    fn new(events_max: usize, meter: Option<Meter>) -> TurnTools {
        TurnTools {
            events: Vec::with_capacity(events_max),
            event_count: 0,
            meter,
        }
    }
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
        pool_tls: Vec<Option<ServerTls>>,
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
        // At the start every place has a pool. Those behind the last item of the list are plain.
        let mut transports: Vec<PoolTransport> = pool_tls.into_iter().map(Into::into).collect();
        let count = transports.len().max(settings.pools.len());
        transports.resize_with(count, || PoolTransport::Plain);
        let worker = WorkerLoop {
            id: id.clone(),
            allocator: Allocator::new(settings.limits.worker_memory_bytes_max),
            engine: Engine::new(settings.clone(), id.clone(), Time(0))
                .with_directory(shared.directory.clone()),
            settings,
            epoll,
            tick,
            alarm,
            alarm_at: None,
            mailbox,
            listeners: listeners.into_iter().map(Some).collect(),
            ready_listeners: Vec::new(),
            accept_again_at: None,
            tls_paused: false,
            refusals: Refusals::default(),
            reserve: reserve(),
            sessions: Vec::new(),
            callers: shared.callers.get(id.index).cloned().map(Callers::new),
            links: Vec::new(),
            attempts: 0,
            lingering: VecDeque::new(),
            buffer: vec![0; LINK_READ_BYTES],
            transports,
            handshakes: Handshakes::default(),
            tls_buffers: TlsBuffers::default(),
            tls_memory: TlsMemory::default(),
            counts: DriverCounts::default(),
            round_robin: RoundRobin::default(),
            read_bytes: 0,
            housekeep_at: shared.started,
            report_at: shared.started,
            report_servers_at: shared.started,
            spare_report: WorkerReport::default(),
            report_latency_at: shared.started,
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
    pub(crate) fn run(self) -> usize {
        let mut worker = Box::new(self);
        let mut tools = TurnTools::of_worker();
        let mut until = None;
        while worker.take_turn(&mut tools, until) {
            until = None;
            let Some(queue) = worker.queue_of_lone_callers() else {
                continue;
            };
            let notify = worker.shared.notify.clone();
            let index = worker.id.index;
            let Some(back) = queue.stand_aside(worker) else {
                let reason = "a caller has panicked in a turn".to_owned();
                notify(Notice::WorkerFailed {
                    worker: index,
                    reason,
                });
                return 0;
            };
            worker = back.worker;
            if back.has_ended {
                break;
            }
            if back.was_led {
                // One turn serves the sockets, without a wait. Then the worker may stand aside.
                until = Some(Instant::now());
            } else if let Some(callers) = &mut worker.callers {
                callers.forget_lone_callers();
            }
        }
        worker.end()
    }

    /// Takes a turn. It waits for an event, but not longer than `until`. Returns whether another
    /// turn follows.
    pub(crate) fn take_turn(&mut self, tools: &mut TurnTools, until: Option<Instant>) -> bool {
        match self.turn(tools, until) {
            Ok(TurnOutcome::Continue) => true,
            Ok(TurnOutcome::End) => false,
            Err(error) => {
                self.notify(Notice::WorkerFailed {
                    worker: self.id.index,
                    reason: error.to_string(),
                });
                false
            }
        }
    }

    /// Takes a turn in the host's thread: see [`crate::hosted`]. Returns the number of events;
    /// `None`: it was the last turn.
    pub(crate) fn take_hosted_turn(&mut self) -> Option<usize> {
        // Events are not `Send`, so a worker that may change its thread does not keep them.
        let mut tools = TurnTools::of_caller();
        let goes_on = self.take_turn(&mut tools, Some(Instant::now()));
        goes_on.then_some(tools.event_count)
    }

    /// The number of tasks of callers that the last turn has woken.
    pub(crate) fn woken_tasks(&self) -> usize {
        self.callers.as_ref().map_or(0, Callers::woken_tasks)
    }

    /// Whether the worker has nothing to do until the next event or the next request of a caller.
    /// Then callers wake the host.
    pub(crate) fn may_rest(&self) -> bool {
        let due = self.engine.deadline();
        // The last wait has set the alarm, unless the batch has come in that turn.
        due.is_none_or(|due| self.alarm_at == Some(due))
            && self.callers.as_ref().is_none_or(Callers::may_sleep)
    }

    pub(crate) fn caller_queue(&self) -> Option<&Arc<CallerQueue>> {
        self.callers.as_ref().map(Callers::queue)
    }

    pub(crate) fn epoll(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The queue of callers, if the worker may stand aside for them: see [`crate::helm`].
    fn queue_of_lone_callers(&self) -> Option<Arc<CallerQueue>> {
        let callers = self.callers.as_ref()?;
        let may_stand_aside = callers.serve_lone_callers()
            && self.listeners.is_empty()
            && !self.draining
            && !self.is_busy();
        may_stand_aside.then(|| callers.queue().clone())
    }

    /// Whether the loop has something to do before the next event.
    pub(crate) fn is_busy(&self) -> bool {
        self.engine.deadline().is_some() || self.callers.as_ref().is_some_and(Callers::has_taken)
    }

    /// Ends the sessions. Returns the number of those with sockets.
    pub(crate) fn end(mut self) -> usize {
        if let Some(callers) = &mut self.callers {
            callers.end_all(
                &mut self.engine,
                session_count(&self.shared, &self.settings),
            );
        }
        let cut = self.sessions.iter().flatten().count();
        let counted = cut + self.handshakes.len();
        self.shared.sessions.fetch_sub(counted, Ordering::Relaxed);
        cut
    }

    fn turn(&mut self, tools: &mut TurnTools, until: Option<Instant>) -> io::Result<TurnOutcome> {
        let events = &mut tools.events;
        self.wait(events, until)?;
        tools.event_count = events.len();
        let now = self.now();
        self.engine.begin_turn(now);
        if self.engine.is_tick_due() {
            self.engine
                .begin_tick(tools.meter.as_mut().map(Meter::usage));
        }
        if let Some(callers) = &mut self.callers {
            let sessions = session_count(&self.shared, &self.settings);
            self.read_bytes += callers.take(&mut self.engine, sessions);
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
                Token::Handshake(index) => self.handshakes.note_ready(index),
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
                WorkerOrder::Reload(reload) => self.reload(*reload),
                WorkerOrder::ReloadReport(report) => self.engine.handle_reload_report(report),
                WorkerOrder::Resolved {
                    link,
                    attempt,
                    addresses,
                } => self.resolved(link, attempt, addresses),
                WorkerOrder::Password(new) => {
                    self.engine.handle_password(new.source, &new.password)
                }
                WorkerOrder::RenewLogins(source) => self.engine.handle_login_renewal(source),
                WorkerOrder::Question {
                    from,
                    ticket,
                    question,
                } => self.engine.handle_question(from, ticket, question),
                WorkerOrder::Answer { ticket, answer } => self.engine.handle_answer(ticket, answer),
                WorkerOrder::ListenerTls(tls) => {
                    let listeners = self.listeners.iter_mut().flatten();
                    for old in listeners.filter_map(|listener| listener.tls.as_mut()) {
                        old.clone_from(&tls);
                    }
                }
                WorkerOrder::PoolTls { pool, tls } => {
                    if let Some(PoolTransport::Tls(old)) = self.transports.get_mut(pool) {
                        *old = tls;
                        self.engine.handle_new_tls(pool);
                    }
                }
            }
        }
        self.finish_turn();
        self.accept_clients();
        self.shake_hands();
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
        // An action may produce replies: a connect that fails at once fails its requests. And the
        // last reply of a session may close it. No action is left for the next turn: a new session
        // must not get the index of one that still has a socket.
        loop {
            while let Some(session) = self.engine.poll_session() {
                self.write_session(session);
            }
            let Some(action) = self.engine.poll_action() else {
                break;
            };
            self.perform(action);
        }
        if let Some(callers) = &mut self.callers {
            callers.wake_all();
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
                Event::LoginWithdrawn {
                    server,
                    pool,
                    reason,
                } => Notice::LoginWithdrawn {
                    worker,
                    server,
                    pool,
                    reason,
                },
                Event::LoginAccepted { server, pool } => Notice::LoginAccepted {
                    worker,
                    server,
                    pool,
                },
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
                    old_names,
                } => Notice::OptionsSet {
                    peer,
                    pool,
                    listener,
                    options,
                    old_names,
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

    /// Waits for events, but not longer than `until`.
    fn wait(&mut self, events: &mut Vec<epoll::Event>, until: Option<Instant>) -> io::Result<()> {
        let now = self.now();
        let due = self.engine.deadline();
        let has_callers = |callers: &Callers| !callers.may_sleep();
        let poll =
            due.is_some_and(|due| due <= now) || self.callers.as_ref().is_some_and(has_callers);
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
        let timeout = match until {
            _ if poll => Some(Duration::ZERO),
            Some(until) => Some(until.saturating_duration_since(Instant::now())),
            None => None,
        };
        let timeout = timeout.map(timespec);
        let events = rustix::buffer::spare_capacity(events);
        let waited = epoll::wait(&self.epoll, events, timeout.as_ref());
        if let Some(callers) = &self.callers {
            callers.note_awake();
        }
        match waited {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Sessions.
impl WorkerLoop {
    /// Handles an event of a session's socket. Returns whether more input may be waiting. It is
    /// inlined for the reason in [`crate::byte_stream`].
    #[inline(always)]
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
            let read = session
                .socket
                .read(&self.epoll, buffer, &mut self.tls_buffers);
            match read {
                Ok(ReadOutcome::End) => self.engine.handle_session_end(id),
                Ok(ReadOutcome::Bytes(count)) => {
                    self.read_bytes += count;
                    self.engine.handle_session_bytes(id, &self.buffer[..count]);
                    return true;
                }
                Ok(ReadOutcome::Last(count)) => {
                    self.read_bytes += count;
                    self.engine.handle_session_bytes(id, &self.buffer[..count]);
                    self.engine.handle_session_end(id);
                }
                Ok(ReadOutcome::Nothing) => {}
                Err(_) => self.engine.handle_session_lost(id),
            }
        }
        false
    }

    fn write_session(&mut self, id: SessionId) {
        let Some(Some(session)) = self.sessions.get_mut(id.index()) else {
            if let Some(callers) = &mut self.callers {
                callers.deliver(&mut self.engine, id);
            }
            return;
        };
        debug_assert_eq!(session.id, id, "no session began while the socket was open");
        let output = self.engine.session_output(id);
        if output.is_empty() && !session.socket.stream.wants_write() {
            return;
        }
        let all = output.len();
        let written = session
            .socket
            .write(&self.epoll, output, &mut self.tls_buffers);
        let Ok(count) = written else {
            return self.engine.handle_session_lost(id);
        };
        if count > 0 {
            self.engine.handle_session_written(id, count);
        }
        if count < all {
            self.engine.handle_session_full(id);
        }
    }

    fn close_session(&mut self, id: SessionId, after_output: bool, reason: Option<CloseReason>) {
        let slot = self.sessions.get_mut(id.index());
        let Some(session) = slot.and_then(|slot| slot.take_if(|session| session.id == id)) else {
            if let Some(callers) = &mut self.callers {
                let sessions = session_count(&self.shared, &self.settings);
                callers.close(id, after_output, reason, sessions);
            }
            return;
        };
        self.shared.sessions.fetch_sub(1, Ordering::Relaxed);
        let stream = session.socket.stream;
        self.counts.sessions -= u64::from(stream.has_tls());
        if after_output {
            self.close_gently(stream);
        }
    }

    /// Ends our direction of a connection, and discards input for a while. If a socket with unread
    /// input is closed at once, its peer may lose the last bytes.
    fn close_gently(&mut self, mut stream: ByteStream) {
        if stream.shutdown_write().is_ok()
            && !stream.discard(&mut self.buffer)
            && self.lingering.len() < LINGERING_MAX
            && epoll::delete(&self.epoll, &stream).is_ok()
        {
            self.lingering.push_back((Instant::now() + LINGER, stream));
        }
    }

    fn accept_clients(&mut self) -> usize {
        let mut accepted = 0;
        for index in std::mem::take(&mut self.ready_listeners) {
            let has_tls = self.has_tls(index);
            for _ in 0..if has_tls {
                TLS_ACCEPTS_MAX
            } else {
                ACCEPTS_MAX
            } {
                let Some(Some(listener)) = self.listeners.get(index) else {
                    break;
                };
                if has_tls && self.handshakes.is_full() {
                    self.pause_tls_listeners();
                    break;
                }
                match net::acceptfrom_with(
                    &listener.socket,
                    SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
                ) {
                    Ok((fd, address)) => {
                        accepted += 1;
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
        accepted
    }

    fn has_tls(&self, listener: usize) -> bool {
        let listener = self.listeners.get(listener).and_then(Option::as_ref);
        listener.is_some_and(|listener| listener.tls.is_some())
    }

    fn accepted(
        &mut self,
        mut stream: ByteStream,
        address: Option<SocketAddrAny>,
        listener: usize,
    ) {
        let peer = address
            .and_then(|address| address.try_into().ok())
            .map_or(Peer::Unix, Peer::Tcp);
        let max = self.settings.limits.sessions_max as usize;
        if self.shared.sessions.fetch_add(1, Ordering::Relaxed) >= max {
            self.shared.sessions.fetch_sub(1, Ordering::Relaxed);
            if !self.has_tls(listener) {
                let _ = stream.write(MAX_CLIENTS_REPLY, &mut self.tls_buffers);
            }
            self.counts.refused_full += 1;
            let detail = format!("{max} clients are connected; {peer} was refused");
            return self.accept_failed("sessions-max", detail);
        }
        if matches!(peer, Peer::Tcp(_)) && sockets::prepare_tcp(&stream).is_err() {
            // The client is already gone.
            self.shared.sessions.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let index = listener as u16;
        let Some(Some(listener)) = self.listeners.get(listener) else {
            self.shared.sessions.fetch_sub(1, Ordering::Relaxed);
            return;
        };
        let origin = Origin {
            peer,
            local: match &listener.path {
                Some(path) => LocalAddress::Unix(path.clone()),
                None => net::getsockname(&stream)
                    .ok()
                    .and_then(|address| address.try_into().ok())
                    .map_or(LocalAddress::Unknown, |address| match listener.tls {
                        Some(_) => LocalAddress::Tls(address),
                        None => LocalAddress::Tcp(address),
                    }),
            },
            fd: stream.as_fd().as_raw_fd(),
            listener: index,
        };
        let pool = listener.pool;
        let tls = listener.tls.clone();
        match tls {
            None => {
                let id = self.engine.handle_accept(origin, pool);
                let token = Token::Session(id.index());
                let socket = Socket::new(&self.epoll, stream, token, EventFlags::IN);
                self.add_session(id, peer, socket);
            }
            Some(tls) => {
                let tls = TlsStream::to_client(&tls, &self.tls_memory);
                let token = Token::Handshake(self.handshakes.free_index());
                let begun = tls.and_then(|tls| {
                    stream.set_tls(tls);
                    Ok(Socket::new(&self.epoll, stream, token, EventFlags::IN)?)
                });
                match begun {
                    Ok(socket) => self.handshakes.begin(socket, origin, pool, Instant::now()),
                    Err(error) => {
                        self.shared.sessions.fetch_sub(1, Ordering::Relaxed);
                        let error = error.of_client();
                        self.accept_failed("tls", format!("{peer} cannot be added: {error}"));
                    }
                }
            }
        }
    }

    /// Adds the socket of a session that the engine has accepted.
    fn add_session(&mut self, id: SessionId, peer: Peer, socket: rustix::io::Result<Socket>) {
        match socket {
            Ok(socket) => {
                if self.sessions.len() <= id.index() {
                    self.sessions.resize_with(id.index() + 1, || None);
                }
                debug_assert!(
                    self.sessions[id.index()].is_none(),
                    "the index was freed before it is used again"
                );
                self.counts.sessions += u64::from(socket.stream.has_tls());
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
    fn refuse_for_descriptors(&mut self, index: usize) {
        self.reserve = None;
        if let Some(Some(listener)) = self.listeners.get(index)
            && let Ok(client) = net::accept_with(
                &listener.socket,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            )
        {
            self.counts.refused_descriptors += 1;
            if listener.tls.is_none() {
                let mut client = ByteStream::new(client);
                let _ = client.write(MAX_CLIENTS_REPLY, &mut self.tls_buffers);
            }
        }
        self.reserve = reserve();
        self.pause_accepting(
            "file descriptors",
            "none is left; raise the limit (ulimit -n) or lower sessions-max",
        );
    }

    fn pause_accepting(&mut self, reason: &'static str, detail: &str) {
        self.accept_failed(reason, detail.to_owned());
        for listener in self.listeners.iter().flatten() {
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

    /// Watches a listener. During a pause of accepting, its end watches all listeners.
    fn watch_unless_paused(&mut self, index: usize) {
        if self.accept_again_at.is_some() || self.tls_paused && self.has_tls(index) {
            return;
        }
        if let Err(error) = self.watch_listener(index) {
            self.pause_accepting("accept", &error.to_string());
        }
    }

    fn watch_listener(&self, index: usize) -> io::Result<()> {
        let Some(Some(listener)) = self.listeners.get(index) else {
            return Ok(());
        };
        // If workers share one queue, EXCLUSIVE wakes one of them instead of all.
        let flags = EventFlags::IN | EventFlags::EXCLUSIVE;
        Ok(epoll::add(
            &self.epoll,
            &listener.socket,
            Token::Listener(index).pack(),
            flags,
        )?)
    }
}

/// Handshakes of clients.
impl WorkerLoop {
    /// Continues the handshakes of clients that have sent something. Sessions go first: this comes
    /// at the end of a turn, and takes a bounded time of it. Handshakes that are left out stay
    /// ready.
    fn shake_hands(&mut self) {
        let Some(first) = self.handshakes.next_ready() else {
            return;
        };
        let end = Instant::now() + HANDSHAKE_TURN;
        let mut next = Some(first);
        let mut is_new = false;
        while let Some(index) = next {
            is_new |= self.shake_hand(index);
            next = self
                .handshakes
                .next_ready()
                .filter(|_| Instant::now() < end);
        }
        self.handshakes.end_turn();
        if is_new {
            // The first requests of new sessions leave now, not after the next wait.
            self.finish_turn();
        }
        self.resume_tls_listeners();
    }

    /// Continues a handshake. Returns whether it has ended with a session that sent something.
    fn shake_hand(&mut self, index: usize) -> bool {
        let Some(handshake) = self.handshakes.get(index) else {
            return false;
        };
        let buffer = &mut self.buffer[..SESSION_READ_BYTES];
        let socket = &mut handshake.socket;
        // If the kernel had no room for the reply, the event may be about room. Reading is
        // harmless.
        let read = socket
            .write(&self.epoll, &[], &mut self.tls_buffers)
            .and_then(|_| socket.read(&self.epoll, buffer, &mut self.tls_buffers));
        match read {
            Err(error) => {
                self.end_handshake(index, error.refusal(), &error.of_client());
                false
            }
            Ok(outcome) if !socket.stream.is_handshaking() => self.admit(index, outcome),
            Ok(ReadOutcome::End | ReadOutcome::Last(_)) => {
                self.end_handshake(
                    index,
                    HandshakeRefusal::Closed,
                    "the client closed the connection",
                );
                false
            }
            Ok(ReadOutcome::Nothing | ReadOutcome::Bytes(_)) => {
                handshake.is_begun = true;
                false
            }
        }
    }

    /// Makes a session of a client after its handshake. Returns whether it has sent something.
    fn admit(&mut self, index: usize, outcome: ReadOutcome) -> bool {
        let Some(handshake) = self.handshakes.remove(index) else {
            return false;
        };
        self.counts.handshakes += 1;
        let ClientHandshake {
            mut socket,
            origin,
            pool,
            ..
        } = handshake;
        let peer = origin.peer;
        let id = self.engine.handle_accept(origin, pool);
        let passed = socket.pass_to(&self.epoll, Token::Session(id.index()));
        self.add_session(id, peer, passed.map(|()| socket));
        let (count, is_last) = match outcome {
            ReadOutcome::Nothing => return false,
            ReadOutcome::Bytes(count) => (count, false),
            ReadOutcome::Last(count) => (count, true),
            ReadOutcome::End => (0, true),
        };
        self.read_bytes += count;
        self.engine.handle_session_bytes(id, &self.buffer[..count]);
        if is_last {
            self.engine.handle_session_end(id);
        }
        true
    }

    /// Ends a handshake without a session.
    fn end_handshake(&mut self, index: usize, refusal: HandshakeRefusal, error: &str) {
        let Some(handshake) = self.handshakes.remove(index) else {
            return;
        };
        self.shared.sessions.fetch_sub(1, Ordering::Relaxed);
        // A check of the port by a load balancer is no failed handshake.
        if refusal != HandshakeRefusal::Closed || handshake.is_begun {
            self.counts.handshakes_failed += 1;
            if let HandshakeRefusal::ClientCertificate(refusal) = refusal {
                refusal.count(&mut self.counts);
            }
            let detail = format!("{}: {error}", handshake.origin.peer);
            self.accept_failed(refusal.text(), detail);
            // The client may have sent requests already, and shall read the alert all the same.
            self.close_gently(handshake.socket.stream);
        }
    }

    fn end_late_handshakes(&mut self, now: Instant) {
        for index in self.handshakes.late(now) {
            let error = format!("no handshake in {} s", handshakes::WAIT.as_secs());
            self.end_handshake(index, HandshakeRefusal::Deadline, &error);
        }
    }

    /// Leaves clients in the kernel's queues while as many handshakes go on as may.
    fn pause_tls_listeners(&mut self) {
        if !std::mem::replace(&mut self.tls_paused, true) {
            for listener in self
                .listeners
                .iter()
                .flatten()
                .filter(|listener| listener.tls.is_some())
            {
                // It fails for a listener that is not in epoll, which is as good.
                let _ = epoll::delete(&self.epoll, &listener.socket);
            }
        }
    }

    fn resume_tls_listeners(&mut self) {
        if !self.tls_paused || self.handshakes.is_full() {
            return;
        }
        self.tls_paused = false;
        // At the end of a pause of all listeners, these are watched with the others.
        if self.accept_again_at.is_none() {
            for index in 0..self.listeners.len() {
                if self.has_tls(index)
                    && let Err(error) = self.watch_listener(index)
                {
                    return self.pause_accepting("accept", &error.to_string());
                }
            }
        }
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
            ConnectStage::Handshaking(_) => self.continue_handshake(id),
            ConnectStage::Up(_) => {
                if flags.contains(EventFlags::OUT) {
                    self.write_link(id);
                }
                let Some(Some(LinkSocket {
                    stage: ConnectStage::Up(socket),
                    ..
                })) = self.links.get_mut(index)
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
                let buffer = &mut self.buffer[..LINK_READ_BYTES];
                let read = socket.read(&self.epoll, buffer, &mut self.tls_buffers);
                self.link_read(id, read);
            }
        }
    }

    /// Handles the outcome of a read of a link that is up.
    fn link_read(&mut self, id: LinkId, read: Result<ReadOutcome, StreamError>) {
        match read {
            Ok(ReadOutcome::End) => self.link_lost(id, "the server closed it"),
            Ok(ReadOutcome::Bytes(count)) => {
                self.read_bytes += count;
                self.engine.handle_link_bytes(id, &self.buffer[..count]);
            }
            Ok(ReadOutcome::Last(count)) => {
                self.read_bytes += count;
                self.engine.handle_link_bytes(id, &self.buffer[..count]);
                // The bytes may have made the engine give the link up, or its index to another one.
                let link = self.links.get(id.index());
                if link.is_some_and(|link| link.as_ref().is_some_and(|link| link.id == id)) {
                    self.link_lost(id, "the server closed it");
                }
            }
            Ok(ReadOutcome::Nothing) => {}
            Err(error) => self.link_lost(id, &error.of_server()),
        }
    }

    /// Continues the handshake with a server. If it fails, the server may have another address.
    fn continue_handshake(&mut self, id: LinkId) {
        let Some(Some(link)) = self.links.get_mut(id.index()) else {
            return;
        };
        let ConnectStage::Handshaking(socket) = &mut link.stage else {
            return;
        };
        let buffer = &mut self.buffer[..LINK_READ_BYTES];
        let read = socket
            .write(&self.epoll, &[], &mut self.tls_buffers)
            .and_then(|_| socket.read(&self.epoll, buffer, &mut self.tls_buffers));
        match read {
            Err(error) => {
                self.try_next_address(id, &format!("TLS handshake failed: {}", error.of_server()))
            }
            Ok(outcome) if !socket.stream.is_handshaking() => {
                let stage = std::mem::replace(&mut link.stage, ConnectStage::Resolving);
                if let ConnectStage::Handshaking(socket) = stage {
                    link.stage = ConnectStage::Up(socket);
                    self.engine.handle_link_up(id);
                    self.link_read(id, Ok(outcome));
                }
            }
            Ok(ReadOutcome::End | ReadOutcome::Last(_)) => self.try_next_address(
                id,
                "TLS handshake failed: the server closed the connection; it may not speak TLS at \
                 this address",
            ),
            Ok(ReadOutcome::Nothing | ReadOutcome::Bytes(_)) => {}
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
        if link.id != id || output.is_empty() && !socket.stream.wants_write() {
            return;
        }
        let written = socket.write(&self.epoll, output, &mut self.tls_buffers);
        let count = match written {
            Ok(count) => count,
            Err(error) => return self.link_lost(id, &error.of_server()),
        };
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
            to: to.clone(),
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
        let pool = usize::from(self.engine.pool_of_link(id));
        let tls = match PoolTransport::tls_of(self.transports.get(pool)) {
            Ok(Some(tls)) => TlsStream::to_server(tls, &link.to, &self.tls_memory).map(Some),
            Ok(None) => Ok(None),
            Err(reason) => Err(reason.into()),
        };
        let tls = match tls {
            Ok(tls) => tls,
            Err(reason) => return self.link_lost(id, &reason),
        };
        let shakes_hands = tls.is_some();
        if let Some(tls) = tls {
            socket.stream.set_tls(tls);
        }
        let begun = socket.begin(&self.epoll);
        match (begun, shakes_hands) {
            (Ok(()), false) => {
                link.stage = ConnectStage::Up(socket);
                self.engine.handle_link_up(id);
            }
            (Ok(()), true) => link.stage = ConnectStage::Handshaking(socket),
            (Err(error), _) => self.link_lost(id, &error.of_server()),
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
                    && let Err(error) = socket.shutdown_write(&self.epoll)
                {
                    self.link_lost(id, &error.of_server());
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
                reason,
            } => self.close_session(session, after_output, reason),
            Action::ForgetPool(pool) => {
                if let Some(transport) = self.transports.get_mut(usize::from(pool)) {
                    *transport = PoolTransport::Ended;
                }
            }
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
                    if let Some(callers) = &mut self.callers {
                        callers.set_reading(id, on);
                    }
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
        if let Some(callers) = &mut self.callers {
            // Callers that wrote before the order came are in the queue by now.
            callers.drain(
                &mut self.engine,
                session_count(&self.shared, &self.settings),
            );
            self.finish_turn();
        }
        // The kernel has already completed the connections of clients in the queue.
        self.ready_listeners = (0..self.listeners.len()).collect();
        self.accept_clients();
        for listener in self.listeners.drain(..).flatten() {
            // Other workers may hold the same socket, so closing ours would not remove it from
            // epoll.
            let _ = epoll::delete(&self.epoll, &listener.socket);
        }
        // A client in its handshake has sent no request.
        self.shared
            .sessions
            .fetch_sub(self.handshakes.len(), Ordering::Relaxed);
        self.handshakes = Handshakes::default();
        // Requests that have arrived are still executed. Sessions with held input are not read.
        self.read_out(0..self.sessions.len(), DRAIN_READS_MAX);
        self.engine.handle_drain();
    }

    /// Reads the bytes that clients have sent, before their sessions end. `reads_max` bounds the
    /// reads of each session.
    fn read_out(&mut self, sessions: impl Iterator<Item = usize>, reads_max: usize) {
        for index in sessions {
            for _ in 0..reads_max {
                if !self.session_event(index, EventFlags::IN) {
                    break;
                }
            }
        }
    }

    /// Takes other settings and listeners. Sessions of listeners that end stay.
    fn reload(&mut self, reload: WorkerReload) {
        // Sockets that this turn closed must be closed before new clients get their indexes.
        self.finish_turn();
        // The kernel has already completed the connections of clients in the queue. A turn takes
        // some of them; here, none may be left.
        for _ in 0..BACKLOG as usize / TLS_ACCEPTS_MAX {
            self.ready_listeners.extend(&reload.removed);
            if self.accept_clients() == 0 {
                break;
            }
        }
        for index in reload.removed {
            let listener = self.listeners.get_mut(index).and_then(Option::take);
            if let Some(listener) = listener {
                // Other workers may hold the same socket, so closing ours would not remove it from
                // epoll.
                let _ = epoll::delete(&self.epoll, &listener.socket);
            }
        }
        for KeptListener { index, pool, tls } in reload.kept {
            let Some(Some(listener)) = self.listeners.get_mut(index) else {
                continue;
            };
            listener.pool = pool;
            let is_other = listener.tls.is_some() != tls.is_some();
            listener.tls = tls;
            if is_other {
                // Listeners with and without TLS have pauses of their own. It fails for a listener
                // that is not in epoll, which is as good.
                let _ = epoll::delete(&self.epoll, &listener.socket);
                self.watch_unless_paused(index);
            }
        }
        // Links of a pool that ends keep its TLS, until the last of them is closed.
        for (place, tls) in reload.pool_tls {
            if self.transports.len() <= place {
                self.transports
                    .resize_with(place + 1, || PoolTransport::Ended);
            }
            let old = std::mem::replace(&mut self.transports[place], tls.into());
            if old.is_replaced_by(&self.transports[place]) {
                self.engine.handle_new_tls(place);
            }
        }
        for NewPassword { source, password } in &reload.passwords {
            self.engine.handle_password(*source, password);
        }
        self.settings = reload.settings.settings.clone();
        self.allocator
            .set_bound(self.settings.limits.worker_memory_bytes_max);
        // Requests of a removed pool that have arrived are still executed.
        let ended = self.engine.sessions_of_removed_pools(&self.settings);
        self.read_out(ended.into_iter().map(SessionId::index), REMOVED_READS_MAX);
        self.engine.handle_settings(reload.settings);
        self.engine.handle_reload_report(reload.report);
        // A worker that drains accepts no clients.
        let added = reload.added.into_iter().filter(|_| !self.draining);
        for (index, listener) in added.collect::<Vec<_>>() {
            if self.listeners.len() <= index {
                self.listeners.resize_with(index + 1, || None);
            }
            self.listeners[index] = Some(listener);
            self.watch_unless_paused(index);
        }
        // The control thread may have stopped waiting.
        let _ = reload.done.send(());
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
                if self.tls_paused && self.has_tls(index) {
                    continue;
                }
                if let Err(error) = self.watch_listener(index) {
                    self.pause_accepting("accept", &error.to_string());
                    break;
                }
            }
        }
        self.end_late_handshakes(now);
        self.resume_tls_listeners();
        for _ in 0..self.lingering.len() {
            let Some((until, mut stream)) = self.lingering.pop_front() else {
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
        if now >= self.report_servers_at {
            self.report_servers_at = now + REPORT_SERVERS_EVERY;
            self.report_servers();
        }
        if now >= self.report_latency_at {
            self.report_latency(now);
        }
    }

    /// Reports the times of requests. While another thread reads the last report, the next
    /// housekeeping tries again: a worker does not wait.
    fn report_latency(&mut self, now: Instant) {
        let Some(published) = self.shared.latencies.get(self.id.index) else {
            return;
        };
        let mut report = match published.try_lock() {
            Ok(report) => report,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        self.engine.report_latency(&mut report);
        self.report_latency_at = now + REPORT_LATENCY_EVERY;
    }

    fn report(&mut self) {
        self.engine.handle_driver_counts(DriverCounts {
            handshaking: self.handshakes.len() as u64,
            memory_bytes: self.tls_memory.bytes() as u64,
            ..self.counts
        });
        let mut others = Counters::default();
        for (index, report) in self.shared.reports.iter().enumerate() {
            if index == self.id.index {
                *lock(report) = self.engine.counters();
            } else {
                others.add(&read_report(report));
            }
        }
        self.engine.handle_workers(others);
    }

    /// Publishes the report on the servers, if something reads it. While it is being read, the
    /// reader keeps the last one.
    fn report_servers(&mut self) {
        let Some(published) = self.shared.server_reports.get(self.id.index) else {
            return;
        };
        self.engine.report(&mut self.spare_report);
        if let Ok(mut published) = published.try_lock() {
            std::mem::swap(&mut *published, &mut self.spare_report);
        }
    }
}

/// The count of sessions of all workers, with its bound.
fn session_count<'a>(shared: &'a SharedState, settings: &Settings) -> SessionCount<'a> {
    SessionCount {
        count: &shared.sessions,
        max: settings.limits.sessions_max as usize,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A link of a pool that has ended, or that is unknown, does not connect. It is not plain.
    #[test]
    fn link_of_an_ended_pool_does_not_connect() {
        for transport in [Some(&PoolTransport::Ended), None] {
            assert!(PoolTransport::tls_of(transport).is_err());
        }
        let plain = PoolTransport::from(None);
        assert!(matches!(PoolTransport::tls_of(Some(&plain)), Ok(None)));
    }
}

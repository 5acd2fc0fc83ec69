//! One worker: a thread, an epoll, an engine.
//!
//! A turn waits once, reads every ready socket once, lets the engine decide, writes every dirty
//! socket once. What the engine closes is closed after all events of the turn were handled, and new
//! clients are accepted after that: so no event is ever about a socket that took another's place.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use respool_engine::settings::{Address, Settings};
use respool_engine::{
    Action, Counters, Directory, Engine, Event, LinkId, Local, Origin, Peer, SessionId, TICK_MS,
    Time, Worker as WorkerId,
};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventFlags};
use rustix::io::Errno;
use rustix::net::{self, SendFlags, Shutdown, SocketAddrAny, SocketFlags};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};

use crate::allocator::Allocator;
use crate::left_out::LeftOut;
use crate::listen::Listener;
use crate::mailbox::{Mailbox, Order};
use crate::names::{Answer, Asked, Caller, LookUps, Name};
use crate::refusals::Refusals;
use crate::sockets::{self, LinkSocket, SessionSocket, Socket, Stage, Token};
use crate::{Notice, Notify, Resolve, StartError, of_call};

/// What workers share.
pub(crate) struct Shared {
    pub(crate) started: Instant,
    /// Sessions of all workers.
    pub(crate) sessions: AtomicUsize,
    /// Look-ups of host names.
    pub(crate) look_ups: Mutex<LookUps<(usize, LinkId)>>,
    /// How they are looked up.
    pub(crate) resolve: Resolve,
    /// What each worker last reported.
    pub(crate) reports: Vec<Mutex<Counters>>,
    /// How to reach each worker.
    pub(crate) mailboxes: Vec<Arc<Mailbox>>,
    /// Subscribers of all workers.
    pub(crate) directory: Arc<Directory>,
    pub(crate) notify: Notify,
}

impl Shared {
    /// Tells everybody who asked for a name; returns the name to look up next.
    fn end_look_up(&self, name: &Name, answer: &Answer) -> Option<Name> {
        let (callers, next) = lock(&self.look_ups).end(name, answer, Instant::now());
        for caller in callers {
            let (worker, link) = caller.link;
            self.mailboxes[worker].send(Order::Resolved {
                link,
                attempt: caller.attempt,
                addresses: answer.clone(),
            });
        }
        next
    }
}

/// Looks names up, one behind the other, until none waits for a place.
fn resolve(shared: &Shared, first: Name) {
    let mut next = Some(first);
    while let Some(name) = next {
        let answer = (shared.resolve)(&name.0, name.1).map_err(|error| error.to_string());
        next = shared.end_look_up(&name, &answer);
    }
}

fn lock(look_ups: &Mutex<LookUps<(usize, LinkId)>>) -> MutexGuard<'_, LookUps<(usize, LinkId)>> {
    look_ups.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn read_report(report: &Mutex<Counters>) -> Counters {
    *report.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Most bytes read from a client in one turn: a fair share.
const SESSION_READ_BYTES: usize = 64 << 10;
/// Most bytes read from a server in one turn.
const LINK_READ_BYTES: usize = 256 << 10;
/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 1024;
/// Reads of one session when a drain begins: who keeps sending must not keep us.
const DRAIN_READS_MAX: usize = 1024;
/// Reads for nothing of one session that was closed, at one time.
const DISCARDS_MAX: usize = 16;
/// Clients accepted from one socket in one turn.
const ACCEPTS_MAX: usize = 128;
/// How often a worker looks after what is not urgent; it ticks as often.
const HOUSEKEEP_EVERY: Duration = Duration::from_millis(50);
/// How often a worker reports its counters.
const REPORT_EVERY: Duration = Duration::from_millis(100);
/// How long accepting pauses when the machine has no file descriptor or memory for another client.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a closed session is read, for nothing, so that the last replies reach its client:
/// closing a socket with unread bytes would make the kernel throw them away.
const LINGER: Duration = Duration::from_secs(1);
/// Sessions that may linger at once; beyond, they are closed at once.
const LINGERING_MAX: usize = 1024;

const TOO_MANY: &[u8] = b"-ERR max number of clients reached\r\n";

pub(crate) struct Worker {
    id: WorkerId,
    settings: Arc<Settings>,
    engine: Engine,
    epoll: OwnedFd,
    /// Rings every [`TICK_MS`]. Most waits are then without a timeout, and arm no timer of their
    /// own.
    tick: OwnedFd,
    /// Rings when a held batch must leave: a timeout of the wait would be armed and disarmed by
    /// every wait, and `epoll_wait` counts in milliseconds.
    alarm: OwnedFd,
    alarm_at: Option<Time>,
    mailbox: Arc<Mailbox>,
    shared: Arc<Shared>,
    listeners: Vec<Listener>,
    /// Listeners with somebody waiting.
    ready_listeners: Vec<usize>,
    accept_again_at: Option<Instant>,
    refusals: Refusals,
    /// Given up for a moment when file descriptors run out, so that a client can be told.
    reserve: Option<OwnedFd>,
    sessions: Vec<Option<SessionSocket>>,
    links: Vec<Option<LinkSocket>>,
    attempts: u64,
    lingering: VecDeque<(Instant, OwnedFd)>,
    buffer: Vec<u8>,
    /// Where the turn before stopped, if it was full.
    left_out: LeftOut,
    /// Bytes read since the engine measured its links.
    read_bytes: usize,
    /// Gives back free memory of the process.
    allocator: Allocator,
    housekeep_at: Instant,
    report_at: Instant,
    draining: bool,
}

enum Turn {
    Next,
    Ended,
}

impl Worker {
    pub(crate) fn new(
        id: WorkerId,
        settings: Arc<Settings>,
        listeners: Vec<Listener>,
        mailbox: Arc<Mailbox>,
        shared: Arc<Shared>,
    ) -> Result<Self, StartError> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(of_call("epoll_create1"))?;
        let watch = |fd: &dyn AsFd, token: Token| {
            epoll::add(&epoll, fd.as_fd(), token.pack(), EventFlags::IN)
                .map_err(of_call("epoll_ctl"))
        };
        watch(&&*mailbox, Token::Mailbox)?;
        let tick = timer().map_err(of_call("timerfd_create"))?;
        let every = Duration::from_millis(TICK_MS.into());
        set_timer(&tick, every, every).map_err(of_call("timerfd_settime"))?;
        watch(&tick, Token::Tick)?;
        let alarm = timer().map_err(of_call("timerfd_create"))?;
        watch(&alarm, Token::Alarm)?;
        let worker = Worker {
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
            left_out: LeftOut::default(),
            read_bytes: 0,
            housekeep_at: shared.started,
            report_at: shared.started,
            draining: false,
            shared,
        };
        for index in 0..worker.listeners.len() {
            worker.watch_listener(index).map_err(of_call("epoll_ctl"))?;
        }
        Ok(worker)
    }

    /// Works until it is told to end; returns the number of sessions that were cut.
    pub(crate) fn run(mut self) -> usize {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            match self.turn(&mut events) {
                Ok(Turn::Next) => {}
                Ok(Turn::Ended) => break,
                Err(error) => {
                    self.say(Notice::WorkerFailed {
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

    fn turn(&mut self, events: &mut Vec<epoll::Event>) -> io::Result<Turn> {
        self.wait(events)?;
        let now = self.now();
        self.engine.begin_turn(now);
        let mut orders = Vec::new();
        self.left_out
            .bring_forward(events, |event| event.data.u64());
        for event in events.drain(..) {
            // Copied out: the struct is packed.
            let (data, flags) = (event.data, event.flags);
            match Token::unpack(data) {
                // What is ready still is read in the next turn.
                Token::Session(_) | Token::Link(_) if self.turn_is_full() => {
                    self.left_out.note(data.u64());
                }
                Token::Session(index) => {
                    self.session_event(index, flags);
                }
                Token::Link(index) => self.link_event(index, flags),
                Token::Listener(index) => self.ready_listeners.push(index),
                Token::Mailbox => orders = self.mailbox.take(),
                Token::Tick => silence(&self.tick),
                Token::Alarm => {
                    silence(&self.alarm);
                    self.alarm_at = None;
                }
            }
        }
        for order in orders {
            match order {
                Order::Stop => return Ok(Turn::Ended),
                Order::Drain => self.drain(),
                Order::Resolved {
                    link,
                    attempt,
                    addresses,
                } => self.resolved(link, attempt, addresses),
                Order::Password(new) => self.engine.handle_password(new.source, &new.password),
                Order::Question {
                    from,
                    ticket,
                    question,
                } => self.engine.handle_question(from, ticket, question),
                Order::Answer { ticket, answer } => self.engine.handle_answer(ticket, answer),
            }
        }
        self.finish_turn();
        self.accept_clients();
        self.housekeep();
        let done =
            self.draining && self.engine.counters().sessions == 0 && self.lingering.is_empty();
        Ok(if done { Turn::Ended } else { Turn::Next })
    }

    /// Whether this turn has read or grown as much as it may. Its output is written first then.
    fn turn_is_full(&self) -> bool {
        self.read_bytes >= self.engine.links_bytes_read_max() || self.engine.turn_is_full()
    }

    /// The engine decides; what leaves is written, links first; what is to be done is done.
    fn finish_turn(&mut self) {
        if self.read_bytes >= self.engine.links_bytes_read_max() {
            self.read_bytes = 0;
            self.engine.measure_links();
            self.allocator.settle(self.engine.memory_bytes_of_all());
        }
        self.engine.end_turn();
        while let Some(link) = self.engine.poll_link() {
            self.write_link(link);
        }
        while let Some(session) = self.engine.poll_session() {
            self.write_session(session);
        }
        while let Some(action) = self.engine.poll_action() {
            self.act(action);
        }
        // A connection that failed at once has answered some already.
        while let Some(session) = self.engine.poll_session() {
            self.write_session(session);
        }
        while let Some(event) = self.engine.poll_event() {
            let worker = self.id.index;
            self.say(match event {
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

    fn say(&self, notice: Notice) {
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
            // Set once for a batch, however often the worker wakes until then. One that is not
            // needed any more costs at worst a turn with nothing to do.
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
impl Worker {
    /// Whether there may be more to read.
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
                // Said once: whoever is not closed for it is read to that point later.
                let quiet = session.socket.watch(&self.epoll, EventFlags::RDHUP, false);
                match quiet {
                    Ok(()) => self.engine.handle_session_hangup(id),
                    Err(_) => self.engine.handle_session_lost(id),
                }
            }
            return false;
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            let buffer = &mut self.buffer[..SESSION_READ_BYTES];
            match rustix::io::read(&session.socket.fd, buffer) {
                Ok(0) => self.engine.handle_session_end(id),
                Ok(count) => {
                    self.read_bytes += count;
                    self.engine.handle_session_bytes(id, &self.buffer[..count]);
                    return count == SESSION_READ_BYTES;
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
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
        let (all, sent) = (
            output.len(),
            net::send(&session.socket.fd, output, SendFlags::NOSIGNAL),
        );
        let count = match sent {
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(_) => return self.engine.handle_session_lost(id),
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

    fn close_session(&mut self, id: SessionId, gently: bool) {
        let Some(slot) = self.sessions.get_mut(id.index()) else {
            return;
        };
        let Some(session) = slot.take_if(|session| session.id == id) else {
            return;
        };
        self.shared.sessions.fetch_sub(1, Ordering::Relaxed);
        if !gently || net::shutdown(&session.socket.fd, Shutdown::Write).is_err() {
            return;
        }
        if !self.discard(&session.socket.fd)
            && self.lingering.len() < LINGERING_MAX
            && epoll::delete(&self.epoll, &session.socket.fd).is_ok()
        {
            self.lingering
                .push_back((Instant::now() + LINGER, session.socket.fd));
        }
    }

    /// Reads for nothing; whether the client has closed, too.
    fn discard(&mut self, fd: &OwnedFd) -> bool {
        for _ in 0..DISCARDS_MAX {
            match rustix::io::read(fd, &mut self.buffer[..]) {
                Ok(0) => return true,
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return error != Errno::AGAIN,
            }
        }
        false
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
                    Ok((fd, address)) => self.accepted(fd, address, index),
                    Err(Errno::AGAIN) => break,
                    // The client is gone already, or a signal came.
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

    fn accepted(&mut self, fd: OwnedFd, address: Option<SocketAddrAny>, listener: usize) {
        let peer = address
            .and_then(|address| address.try_into().ok())
            .map_or(Peer::Unix, Peer::Tcp);
        let max = self.settings.limits.sessions_max as usize;
        if self.shared.sessions.fetch_add(1, Ordering::Relaxed) >= max {
            self.shared.sessions.fetch_sub(1, Ordering::Relaxed);
            let _ = net::send(&fd, TOO_MANY, SendFlags::NOSIGNAL);
            let detail = format!("{max} clients are connected; {peer} was refused");
            return self.accept_failed("sessions-max", detail);
        }
        if matches!(peer, Peer::Tcp(_)) && sockets::prepare_tcp(&fd).is_err() {
            // It is gone already.
            self.shared.sessions.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let index = listener as u16;
        let listener = &self.listeners[listener];
        let origin = Origin {
            peer,
            local: match &listener.path {
                Some(path) => Local::Unix(path.clone()),
                None => net::getsockname(&fd)
                    .ok()
                    .and_then(|address| address.try_into().ok())
                    .map_or(Local::Unknown, Local::Tcp),
            },
            fd: fd.as_raw_fd(),
            listener: index,
        };
        let id = self.engine.handle_accept(origin, listener.pool);
        match Socket::new(&self.epoll, fd, Token::Session(id.index()), EventFlags::IN) {
            Ok(socket) => {
                if self.sessions.len() <= id.index() {
                    self.sessions.resize_with(id.index() + 1, || None);
                }
                debug_assert!(
                    self.sessions[id.index()].is_none(),
                    "the place was given up before it was taken"
                );
                self.sessions[id.index()] = Some(SessionSocket { id, socket });
            }
            Err(error) => {
                self.shared.sessions.fetch_sub(1, Ordering::Relaxed);
                self.engine.handle_session_lost(id);
                self.accept_failed("epoll", format!("{peer} cannot be watched: {error}"));
            }
        }
    }

    /// No file descriptor is left. Giving up the one in reserve lets us tell one client and get rid
    /// of it; the others wait in the kernel's queue.
    fn refuse_for_descriptors(&mut self, listener: usize) {
        self.reserve = None;
        if let Some(listener) = self.listeners.get(listener)
            && let Ok(client) = net::accept_with(
                &listener.socket,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            )
        {
            let _ = net::send(&client, TOO_MANY, SendFlags::NOSIGNAL);
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
            // One that is not watched is as good as one that is not any more.
            let _ = epoll::delete(&self.epoll, &listener.socket);
        }
        self.accept_again_at = Some(Instant::now() + ACCEPT_PAUSE);
    }

    /// A client could not be accepted.
    fn accept_failed(&mut self, reason: &'static str, detail: String) {
        self.refusals.note(reason, detail);
        self.tell_refusals();
    }

    fn tell_refusals(&mut self) {
        for refused in self.refusals.take(Instant::now()) {
            self.say(Notice::AcceptFailed {
                worker: self.id.index,
                reason: refused.reason,
                detail: refused.detail,
                clients: refused.clients,
            });
        }
    }

    fn watch_listener(&self, index: usize) -> io::Result<()> {
        // Where workers share one queue, one of them is woken, not all.
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
impl Worker {
    fn link_event(&mut self, index: usize, flags: EventFlags) {
        let Some(Some(link)) = self.links.get_mut(index) else {
            return;
        };
        let id = link.id;
        match &mut link.stage {
            Stage::Resolving => {}
            Stage::Connecting(socket) => match net::sockopt::socket_error(&socket.fd) {
                Ok(Ok(())) if flags.contains(EventFlags::OUT) => {
                    if sockets::is_own_peer(&socket.fd) {
                        // Nobody listens, and the kernel chose the server's port for our end.
                        self.try_next_address(id, "nobody listens there");
                    } else {
                        self.link_connected(id);
                    }
                }
                Ok(Ok(())) => {}
                Ok(Err(error)) | Err(error) => self.try_next_address(id, &describe(error)),
            },
            Stage::Up(_) => {
                if flags.contains(EventFlags::OUT) {
                    self.write_link(id);
                }
                let Some(Some(LinkSocket {
                    stage: Stage::Up(socket),
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
                match rustix::io::read(&socket.fd, &mut self.buffer[..LINK_READ_BYTES]) {
                    Ok(0) => self.link_lost(id, "the server closed it"),
                    Ok(count) => {
                        self.read_bytes += count;
                        self.engine.handle_link_bytes(id, &self.buffer[..count]);
                    }
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(error) => self.link_lost(id, &describe(error)),
                }
            }
        }
    }

    fn write_link(&mut self, id: LinkId) {
        let Some(Some(link)) = self.links.get_mut(id.index()) else {
            return;
        };
        let Stage::Up(socket) = &mut link.stage else {
            return;
        };
        let output = self.engine.link_output(id);
        if link.id != id || output.is_empty() {
            return;
        }
        let (all, sent) = (
            output.len(),
            net::send(&socket.fd, output, SendFlags::NOSIGNAL),
        );
        let count = match sent {
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(error) => return self.link_lost(id, &describe(error)),
        };
        if let Err(error) = socket.watch(&self.epoll, EventFlags::OUT, count < all) {
            return self.link_lost(id, &describe(error));
        }
        if count > 0 {
            self.engine.handle_link_written(id, count);
        }
    }

    /// The socket is gone before the engine knows.
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
            stage: Stage::Resolving,
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
            Address::Tcp { host, port } => match sockets::literal(&to) {
                Some(address) => {
                    let connected = sockets::connect_tcp(address);
                    self.connecting(id, connected);
                }
                None => self.look_up(id, attempt, (host.clone(), *port)),
            },
        }
    }

    /// The resolver of the system blocks: it gets a thread of its own.
    fn look_up(&mut self, link: LinkId, attempt: u64, name: Name) {
        let (worker, pool) = (self.id.index, self.engine.pool_of_link(link));
        let caller = Caller {
            link: (worker, link),
            attempt,
        };
        let asked = lock(&self.shared.look_ups).ask(&name, pool, caller, Instant::now());
        let since = match asked {
            Asked::Known(addresses) => return self.resolved(link, attempt, Ok(addresses)),
            Asked::Wait(since) | Asked::Start(since) => since,
        };
        let since = since.saturating_duration_since(self.shared.started);
        let since = Time(since.as_micros() as u64);
        self.engine.handle_link_resolving(link, since);
        if !matches!(asked, Asked::Start(_)) {
            return;
        }
        let (shared, first) = (self.shared.clone(), name.clone());
        let resolver = std::thread::Builder::new().name("resolver".to_owned());
        if let Err(error) = resolver.spawn(move || resolve(&shared, first)) {
            let answer = Err(format!("no thread can be started: {error}"));
            let mut next = Some(name);
            while let Some(name) = next {
                next = self.shared.end_look_up(&name, &answer);
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
                // Each attempt begins with another one: the first may be one that never answers.
                let first = attempt as usize % addresses.len().max(1);
                addresses.rotate_left(first);
                addresses.reverse();
                link.untried = addresses;
                self.try_next_address(id, "its name has no address");
            }
        }
    }

    /// Goes on with the next address of a name, or gives up for the reason that the last one gave.
    fn try_next_address(&mut self, id: LinkId, reason: &str) {
        let Some(Some(link)) = self.links.get_mut(id.index()) else {
            return;
        };
        match link.untried.pop() {
            Some(address) => {
                link.stage = Stage::Resolving;
                let connected = sockets::connect_tcp(address);
                self.connecting(id, connected);
            }
            None => self.link_lost(id, reason),
        }
    }

    fn connecting(&mut self, id: LinkId, connected: rustix::io::Result<OwnedFd>) {
        let watched = connected
            .and_then(|fd| Socket::new(&self.epoll, fd, Token::Link(id.index()), EventFlags::OUT));
        match watched {
            Ok(socket) => {
                if let Some(Some(link)) = self.links.get_mut(id.index()) {
                    link.stage = Stage::Connecting(socket);
                }
            }
            Err(error) => self.try_next_address(id, &describe(error)),
        }
    }

    fn link_connected(&mut self, id: LinkId) {
        let Some(Some(link)) = self.links.get_mut(id.index()) else {
            return;
        };
        let Stage::Connecting(mut socket) = std::mem::replace(&mut link.stage, Stage::Resolving)
        else {
            return;
        };
        let watched = socket
            .watch(&self.epoll, EventFlags::IN, true)
            .and_then(|()| socket.watch(&self.epoll, EventFlags::OUT, false));
        link.stage = Stage::Up(socket);
        match watched {
            Ok(()) => self.engine.handle_link_up(id),
            Err(error) => self.link_lost(id, &describe(error)),
        }
    }
}

/// The rest.
impl Worker {
    fn act(&mut self, action: Action) {
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
                    && let Err(error) = net::shutdown(&socket.fd, Shutdown::Write)
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
            Action::CloseSession { session, gently } => self.close_session(session, gently),
            Action::Ask { ticket, question } => {
                for (index, mailbox) in self.shared.mailboxes.iter().enumerate() {
                    if index != self.id.index {
                        mailbox.send(Order::Question {
                            from: self.id.index,
                            ticket,
                            question: question.clone(),
                        });
                    }
                }
            }
            Action::Answer { to, ticket, answer } => {
                self.shared.mailboxes[to].send(Order::Answer { ticket, answer });
            }
            Action::ReadSession(id, on) => {
                let Some(Some(session)) = self.sessions.get_mut(id.index()) else {
                    return;
                };
                if session.id == id && session.socket.read(&self.epoll, on).is_err() {
                    self.engine.handle_session_lost(id);
                }
            }
        }
    }

    fn drain(&mut self) {
        if std::mem::replace(&mut self.draining, true) {
            return;
        }
        // What this turn closed must be closed before its places are given to others.
        self.finish_turn();
        // Who is in the queue already was promised a connection.
        self.ready_listeners = (0..self.listeners.len()).collect();
        self.accept_clients();
        for listener in self.listeners.drain(..) {
            // Other workers may hold the same socket: closing ours does not end its watch.
            let _ = epoll::delete(&self.epoll, &listener.socket);
        }
        // What has arrived is asked; what has not is not. A session that is being held is not read.
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
        self.tell_refusals();
        self.allocator.settle(self.engine.memory_bytes_of_all());
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
            let Some((until, fd)) = self.lingering.pop_front() else {
                break;
            };
            if now < until && !self.discard(&fd) {
                self.lingering.push_back((until, fd));
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
        self.engine.handle_fleet(others);
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

/// A timer that has rung is readable until it is read.
fn silence(timer: &OwnedFd) {
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

/// An error as people know it: `Connection refused (os error 111)`.
fn describe(error: Errno) -> String {
    io::Error::from(error).to_string()
}

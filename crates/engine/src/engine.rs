//! The engine of one worker: what comes in, what goes out, and one turn.
//!
//! The caller owns sockets and clock. In every turn it calls, in this order:
//! 1. [`Engine::begin_turn`] with the time, which never runs back;
//! 2. `handle_*` for everything that happened;
//! 3. [`Engine::end_turn`], which decides what leaves;
//! 4. [`Engine::poll_link`] and [`Engine::poll_session`] until they are empty, writing what
//!    [`Engine::link_output`] and [`Engine::session_output`] show and reporting what was taken;
//!    links first, so that servers work while clients are being answered;
//! 5. [`Engine::poll_action`] and [`Engine::poll_event`] until they are empty;
//! 6. then it waits for events: until [`Engine::deadline`] at the most, and for [`TICK_MS`] at the
//!    most.
//!
//! Requests are taken in `requests`, answered without a server in `here`, replies handed out in
//! `replies`, and what goes wrong with links is settled in `trouble`.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use respool_protocol::commands::{self, Coalesce, Retry};
use respool_protocol::encode::Version;
use respool_protocol::fan::{Merger, Split};
use respool_protocol::request::Scanner;

use crate::arrivals::Arrivals;
use crate::auth::{CONFIGURED, Logins};
use crate::bounds::Bounds;
use crate::buffer::{Spare, shrink};
use crate::burst::Burst;
use crate::clients::Pause;
use crate::coalesce::{Asking, Coalescing, Move, Run};
use crate::control::Levels;
use crate::counters::Counters;
use crate::directory::Directory;
use crate::entry::{Class, Entry};
use crate::fleet::{Answer, Question, Questions, Settling};
use crate::greeting::{Greeting, Identity};
use crate::holders::Holders;
use crate::keeping::Keeping;
use crate::limits::unanswered_bytes_max;
use crate::link::{Decision, Link, LinkKey, Role, State, Streaming, Why};
use crate::login_probe::LoginProbes;
use crate::memory::Memory;
use crate::parking::Piece;
use crate::polling::Polling;
use crate::pool::{Pool, Pools, Server, ServerId};
use crate::quick_code::{QuickCode, may_hold_up};
use crate::requests::{Alike, may_wait};
use crate::resume::Resume;
use crate::returns::Expected;
use crate::scripts::Scripts;
use crate::session::{Flags, Origin, Pins, Session};
use crate::settings::{Address, AwayError, PasswordSource, Settings};
use crate::slots::{Key, Slots};
use crate::slow_readers::{EVERYBODYS, SlowReaders};
use crate::subscriptions::Hub;
use crate::time::Time;
use crate::tracking::Trackers;
use crate::unknown::Learned;
use crate::untaken::Untaken;
use crate::waiters::Waiters;

/// A session, as driver and engine call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId(pub(crate) Key);

/// A link, as driver and engine call it. It keeps its name when it is connected anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkId(pub(crate) Key);

impl SessionId {
    /// Small, and reused once the session is gone: good for a table.
    pub fn index(self) -> usize {
        self.0.index as usize
    }
}

impl LinkId {
    /// Small, and reused once the link is gone: good for a table.
    pub fn index(self) -> usize {
        self.0.index as usize
    }
}

/// What the driver has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect, then call [`Engine::handle_link_up`] or [`Engine::handle_link_lost`].
    Connect {
        /// For this link.
        link: LinkId,
        /// To this address.
        to: Address,
    },
    /// Close the link's socket, connected or not. The engine knows already.
    CloseLink(LinkId),
    /// Nothing more will be written on the link: say so to the server, and go on reading.
    EndLink(LinkId),
    /// Read the link's socket, or leave it alone until told otherwise.
    ReadLink(LinkId, bool),
    /// Close the session's socket. The engine has forgotten it already.
    CloseSession {
        /// Whose.
        session: SessionId,
        /// Let what was written reach the client first. Otherwise cut it off.
        gently: bool,
    },
    /// Read the session's socket, or leave it alone until told otherwise.
    ReadSession(SessionId, bool),
    /// Put this to every other worker, by [`Engine::handle_question`] there.
    Ask {
        /// Ours, to come back with the answers.
        ticket: u64,
        /// What is to be known or done.
        question: Question,
    },
    /// Give this to the worker that asked, by [`Engine::handle_answer`] there.
    Answer {
        /// Who asked: [`Worker::index`].
        to: usize,
        /// Theirs.
        ticket: u64,
        /// This worker's part.
        answer: Answer,
    },
}

/// What an operator wants to know, once per event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A link is in use.
    LinkUp {
        /// The server's address.
        server: String,
        /// Its pool's name.
        pool: String,
        /// What it is, with its version.
        identity: String,
    },
    /// A link was lost, or an attempt to connect failed.
    LinkDown {
        /// The server's address.
        server: String,
        /// Its pool's name.
        pool: String,
        /// Why.
        reason: String,
    },
    /// We closed a session because it broke a rule or a bound.
    SessionClosed {
        /// Its client's address.
        peer: String,
        /// Which.
        reason: String,
    },
    /// What a pool's servers say of who owns what has changed, or cannot be had.
    Topology {
        /// The pool's name.
        pool: String,
        /// What has.
        text: String,
    },
    /// Requests wait, or are refused, because a bound is reached. A bound of ours is told once a
    /// minute, and one of a server when the server tells it.
    BoundReached {
        /// The option that sets it: ours, or the server's.
        name: &'static str,
        /// What becomes of these requests.
        effect: String,
    },
    /// Logins of clients were refused. Told of each address once a minute.
    LoginsRefused {
        /// The address, or the network of an IPv6 address.
        from: String,
        /// How many, since this was last told.
        count: u64,
    },
    /// A server refuses a password that has a source: the source may have another one by now. Told
    /// of each refusal.
    PasswordRefused {
        /// Where the password comes from.
        source: PasswordSource,
    },
    /// A client has set options of ours.
    OptionsSet {
        /// The client's address.
        peer: String,
        /// The pool that they are for, by name.
        pool: String,
        /// By which listener the client came: those of a listener are for that one.
        listener: String,
        /// Each with its value.
        options: String,
    },
}

/// Who this engine is among its like.
#[derive(Clone, Copy, Debug)]
pub struct Worker {
    /// From 0.
    pub index: usize,
    /// How many there are.
    pub count: usize,
    /// Makes the jitter of this engine differ from that of others, and a test repeatable.
    pub seed: u64,
    /// Of the process; for INFO.
    pub process_id: u32,
    /// Where clients reach us, 0 if only by sockets in the file system; for INFO.
    pub tcp_port: u16,
    /// Seconds since 1970 at the engine's time 0; for INFO.
    pub started_at: u64,
}

/// One worker's engine. See the module's text for how to drive it.
pub struct Engine {
    pub(crate) settings: Arc<Settings>,
    pub(crate) worker: Worker,
    pub(crate) now: Time,
    /// The same as ledgers keep it.
    pub(crate) now_ms: u32,
    /// When the requests that are being placed were read, [`Time::stamp_ms`]. It differs from
    /// `now_ms` while requests that have waited are placed.
    pub(crate) asked_ms: u32,
    pub(crate) arrivals: Arrivals,
    pub(crate) pools: Pools,
    pub(crate) servers: Vec<Server>,
    pub(crate) sessions: Slots<Session>,
    pub(crate) links: Slots<Link>,
    /// The shared link of each kind.
    pub(crate) shared: HashMap<LinkKey, Key>,
    /// Large requests that wait for a link of their own.
    pub(crate) streaming_waiters: Waiters,
    /// Links that one session each has for itself, how many there are, and who waits for one.
    pub(crate) spares: HashMap<LinkKey, Vec<Key>>,
    pub(crate) pinned_links: u32,
    pub(crate) pinned_waiters: Waiters,
    /// Commands that have emergency links, and wait for one.
    pub(crate) urgent_waiters: VecDeque<Key>,
    /// Links with sessions that were woken for room and have not asked.
    pub(crate) reply_turns: Vec<Key>,
    /// When each bound was told last.
    pub(crate) bounds: Bounds,
    /// Sessions that hold what others wait for.
    pub(crate) holders: Holders,
    /// Sessions that ask for large replies or take them slowly.
    pub(crate) slow_readers: SlowReaders,
    pub(crate) quick_code: QuickCode,
    pub(crate) polling: Polling,
    /// Users that clients have named.
    pub(crate) logins: Logins,
    pub(crate) login_probes: LoginProbes,
    /// Of each command, if any request for it with the right number of arguments goes to a server,
    /// what it is to its batch.
    pub(crate) straight: Box<[Option<Class>]>,
    pub(crate) alike: Alike,
    /// Scripts that were seen, and what servers said of commands that the table does not have.
    pub(crate) scripts: Scripts,
    pub(crate) learned: Learned,
    /// What of each listener leaves together; of those behind the end: everything.
    pub(crate) levels: Vec<Levels>,
    /// When an option of ours was set, by its number and that of the pool or listener.
    pub(crate) set_at: HashMap<(usize, u16), (Time, usize)>,
    /// Sessions that are told what others track, by their ids.
    pub(crate) targets: HashMap<u64, Key>,
    /// Sessions that track at several servers.
    pub(crate) trackers: Trackers,
    /// The number of the batch that leaves, and where it is put into order.
    pub(crate) batch: u32,
    pub(crate) coalescing: Coalescing,
    /// Where a request is divided among servers.
    pub(crate) split: Split,
    /// Where the answers to that become one.
    pub(crate) merger: Merger,
    /// The subscriptions, and the excess over what servers count, which all workers share.
    pub(crate) hubs: Vec<Hub>,
    pub(crate) directory: Arc<Directory>,
    /// Where a message is put into the other version of the protocol.
    pub(crate) message: Vec<u8>,
    /// Where those are listed who get it.
    pub(crate) members: Vec<Key>,
    /// Bytes of messages handed out in this turn.
    pub(crate) fanned_out: usize,
    pub(crate) spare: Spare,
    /// Scanners that nobody uses.
    #[expect(
        clippy::vec_box,
        reason = "they move between here and sessions, as one word"
    )]
    pub(crate) scanners: Vec<Box<Scanner>>,
    /// Where a reply of ours is written before it takes its place.
    pub(crate) scratch: Vec<u8>,
    /// Links with an open batch, or with bytes that may leave.
    pub(crate) open_links: Vec<Key>,
    flushed_links: Vec<Key>,
    /// Sessions with something to write.
    pub(crate) dirty: Vec<Key>,
    /// Sessions of which something is asked again, and of which links, until all that they asked is
    /// answered.
    pub(crate) askers: HashMap<Key, Vec<Asking>>,
    /// Sessions of which a part of the answers waits for the rest, and until when at the most, the
    /// first one in front.
    pub(crate) kept: VecDeque<(Time, Key)>,
    /// Sessions that the link whose bytes are taken has brought more than may wait for its turn.
    pub(crate) early: Vec<Key>,
    /// Of the replies that are just being read, those that one session gets at once though it asked
    /// other servers in between.
    pub(crate) pieces: Vec<Piece>,
    /// Sessions that may be brought more than they take, and the links that bring it.
    pub(crate) slow: Vec<(Key, Key)>,
    /// Sessions that have put something off in this turn, and those that still wait. These are not
    /// looked at before then, and whether they would have been.
    pub(crate) put_off_now: Vec<Key>,
    pub(crate) put_off_sessions: Vec<Key>,
    pub(crate) put_off_at: Time,
    pub(crate) put_off_missed: bool,
    /// How often something has happened that those may wait for.
    pub(crate) put_off_stirs: u32,
    /// Servers of which the read that is being taken said that slots are another one's.
    pub(crate) lost_slots: Vec<ServerId>,
    /// What was told last of who owns what, of each pool.
    pub(crate) told_of_topology: HashMap<usize, String>,
    /// Sessions whose reason to wait has gone.
    pub(crate) resume: Resume,
    pub(crate) untaken: Untaken,
    /// Sessions whose reading may have to be switched.
    reading: Vec<Key>,
    actions: VecDeque<Action>,
    pub(crate) events: VecDeque<Event>,
    /// When the earliest held batch must leave.
    flush_at: Option<Time>,
    tick_at: Time,
    /// Where a tick lists the links.
    pub(crate) ticking: Vec<Key>,
    /// Links that were to be connected though their server is away.
    pub(crate) untried: Vec<Key>,
    /// Bytes held for sessions, and what that takes in memory.
    pub(crate) held_bytes: usize,
    pub(crate) memory: Memory,
    pub(crate) next_session: u64,
    pub(crate) counters: Counters,
    /// The sum over the other workers, as of a moment ago.
    pub(crate) fleet: Counters,
    pub(crate) random: u64,
    pub(crate) draining: bool,
    /// Questions of our sessions that are not answered by every worker yet, oldest first.
    pub(crate) asked: Questions,
    pub(crate) next_ticket: u64,
    /// CLIENT PAUSE: what it holds back and until when, and who waits for its end.
    pub(crate) pauses: Vec<Pause>,
    pub(crate) paused: Vec<Key>,
    /// Pauses that are answered once what had been let through before them is.
    pub(crate) settling: Vec<Settling>,
}

/// The buffer for waiting bytes of a session doubles up to this size. Beyond it, the buffer grows
/// by the bytes that come.
const HELD_BYTES_DOUBLED: usize = 16 << 10;

/// How often a turn must be taken though nothing happens: the precision of every deadline in
/// milliseconds.
pub const TICK_MS: u32 = 50;

fn class(id: commands::CommandId) -> Class {
    match (id.get().coalesce, id.get().retry) {
        (Coalesce::Get, _) => Class::Get,
        (Coalesce::Set, _) => Class::Set,
        (Coalesce::Collapse, _) => Class::Pure,
        (_, retry) => Class::of(retry == Retry::Read),
    }
}

/// The commands that the table lets go straight, except those that the configuration refuses, and
/// those that may hold up their connection.
fn straight(settings: &Settings) -> Box<[Option<Class>]> {
    commands::all()
        .map(|id| {
            let is_straight =
                id.get().goes_straight() && !may_hold_up(id) && !settings.refused.contains(&id);
            is_straight.then(|| class(id))
        })
        .collect()
}

/// Getters.
impl Engine {
    /// What this worker counted.
    pub fn counters(&self) -> Counters {
        let mut counters = Counters {
            sessions: self.sessions.len() as u64,
            links: self.links.len() as u64,
            servers_away: self.servers_away(),
            subscriptions: self.subscriptions() as u64,
            ..self.counters
        };
        self.count_held(&mut counters);
        counters
    }

    /// When the next turn must be taken though nothing happens, if that is sooner than the next
    /// tick.
    pub fn deadline(&self) -> Option<Time> {
        if !self.resume.is_empty() || !self.untried.is_empty() || self.has_put_off() {
            return Some(self.now);
        }
        let pause_ends = self.pauses.iter().map(|pause| pause.until).min();
        let kept_until = self.kept.front().map(|(until, _)| *until);
        let ask_at = match self.put_off_now.is_empty() {
            true => self.put_off_missed.then_some(self.put_off_at),
            false => Some(self.now),
        };
        let all = [self.flush_at, kept_until, pause_ends, ask_at];
        all.into_iter().flatten().min()
    }

    /// The bytes that this session is to be sent.
    pub fn session_output(&self, session: SessionId) -> &[u8] {
        self.sessions
            .get(session.0)
            .map_or(&[], |session| session.out.pending())
    }

    /// The bytes that may be written to this link.
    pub fn link_output(&self, link: LinkId) -> &[u8] {
        self.links.get(link.0).map_or(&[], Link::pending)
    }

    pub(crate) fn server(&self, id: ServerId) -> &Server {
        &self.servers[id.0 as usize]
    }

    pub(crate) fn label(&self, link: Key) -> &str {
        self.links
            .get(link)
            .map_or("", |link| &self.server(link.key.server).label)
    }
}

/// Events in.
impl Engine {
    /// An engine that at once connects to each pool's servers.
    pub fn new(mut settings: Arc<Settings>, worker: Worker, now: Time) -> Self {
        let most = unanswered_bytes_max(&settings.limits);
        if settings.limits.link_unanswered_bytes_max > most {
            Arc::make_mut(&mut settings)
                .limits
                .link_unanswered_bytes_max = most;
        }
        let (pools, servers) = Pools::build(&settings.pools, &settings.flush);
        let mut engine = Engine {
            pools,
            servers,
            now,
            now_ms: now.stamp_ms(),
            asked_ms: now.stamp_ms(),
            arrivals: Arrivals::default(),
            sessions: Slots::new(),
            links: Slots::new(),
            shared: HashMap::new(),
            streaming_waiters: Waiters::default(),
            spares: HashMap::new(),
            pinned_links: 0,
            pinned_waiters: Waiters::default(),
            urgent_waiters: VecDeque::new(),
            reply_turns: Vec::new(),
            bounds: Bounds::default(),
            holders: Holders::default(),
            slow_readers: SlowReaders::default(),
            quick_code: QuickCode::default(),
            polling: Polling::default(),
            logins: Logins::default(),
            login_probes: LoginProbes::default(),
            straight: straight(&settings),
            alike: Alike::default(),
            scripts: Scripts::default(),
            learned: Learned::default(),
            levels: Vec::new(),
            set_at: HashMap::new(),
            targets: HashMap::new(),
            trackers: Trackers::default(),
            batch: 0,
            coalescing: Coalescing::default(),
            split: Split::default(),
            merger: Merger::default(),
            hubs: Vec::new(),
            directory: Arc::default(),
            message: Vec::new(),
            members: Vec::new(),
            fanned_out: 0,
            spare: Spare::default(),
            scanners: Vec::new(),
            scratch: Vec::new(),
            open_links: Vec::new(),
            flushed_links: Vec::new(),
            dirty: Vec::new(),
            askers: HashMap::new(),
            kept: VecDeque::new(),
            early: Vec::new(),
            pieces: Vec::new(),
            slow: Vec::new(),
            put_off_now: Vec::new(),
            put_off_sessions: Vec::new(),
            put_off_at: Time(0),
            put_off_missed: false,
            put_off_stirs: 0,
            lost_slots: Vec::new(),
            told_of_topology: HashMap::new(),
            resume: Resume::default(),
            untaken: Untaken::default(),
            reading: Vec::new(),
            actions: VecDeque::new(),
            events: VecDeque::new(),
            flush_at: None,
            tick_at: now,
            ticking: Vec::new(),
            untried: Vec::new(),
            held_bytes: 0,
            memory: Memory::new(settings.limits.worker_memory_bytes_max),
            next_session: worker.index as u64 + 1,
            counters: Counters::default(),
            fleet: Counters::default(),
            random: worker.seed | 1,
            draining: false,
            asked: Questions::default(),
            next_ticket: 0,
            pauses: Vec::new(),
            paused: Vec::new(),
            settling: Vec::new(),
            settings,
            worker,
        };
        for index in 0..engine.servers.len() {
            let key = engine.first_link(ServerId(index as u16));
            if let Some(link) = engine.shared_link(key) {
                engine.connect(link);
            }
        }
        for pool in 0..engine.pools.len() {
            engine.meet_sentinels(pool);
        }
        engine
    }

    /// Makes an engine count subscribers together with others: right after [`Engine::new`].
    pub fn with_directory(mut self, directory: Arc<Directory>) -> Self {
        debug_assert!(self.hubs.is_empty(), "nobody subscribes yet");
        self.directory = directory;
        self
    }

    /// A turn starts. Time never runs back.
    pub fn begin_turn(&mut self, now: Time) {
        debug_assert!(now >= self.now, "time runs back");
        self.now = now;
        self.now_ms = now.stamp_ms();
        self.asked_ms = self.now_ms;
        self.memory.begin_turn(self.held_bytes);
        self.take_put_off();
    }

    /// A client has connected; its requests go to the pool of that index.
    pub fn handle_accept(&mut self, from: impl Into<Origin>, pool: usize) -> SessionId {
        let from = from.into();
        let server = self.first_up(pool);
        let key = self.first_link(server);
        let link = self.shared_link(key).unwrap_or(Key::NOBODY);
        let mut flags = Flags::default();
        if self.must_authenticate(pool) {
            flags |= Flags::UNAUTHENTICATED;
        }
        if self.pools[pool].is_routed() {
            flags |= Flags::ROUTED;
        }
        if self.pools.strips(pool) {
            flags |= Flags::STRIPS;
        }
        let session = Session {
            flags,
            version: Version::Resp2,
            pins: Pins::default(),
            batch: 0,
            behind: Move::default(),
            block: 0,
            sets: Run::default(),
            reads_in_order: false,
            burst: Burst::default(),
            link: Key::NOBODY,
            next_seq: 0,
            head_seq: 0,
            out: Default::default(),
            held: Vec::new(),
            partial: None,
            answered_at: Time(0),
            gap_us: u32::MAX,
            expected: Expected::NOT,
            keeping: Keeping::NONE,
            db: key.db,
            pool: pool as u16,
            server,
            listener: from.listener,
            user: CONFIGURED,
            lane: EVERYBODYS,
            id: self.next_session,
            peer: from.peer,
            local: from.local,
            fd: from.fd,
            asked: None,
            bytes_in: 0,
            bytes_out: 0,
            accepted_at: self.now,
            active_at: self.now,
            took_at: self.now,
            rare: None,
        };
        self.next_session += self.worker.count as u64;
        self.counters.sessions_total += 1;
        let session = self.sessions.insert(session);
        self.reset_reading(session);
        self.ride(session, link);
        self.check_newcomer(session);
        SessionId(session)
    }

    /// A client sent bytes.
    pub fn handle_session_bytes(&mut self, session: SessionId, bytes: &[u8]) {
        let key = session.0;
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        session.active_at = self.now;
        session.bytes_in += bytes.len() as u64;
        self.counters.session_bytes_in += bytes.len() as u64;
        if session.flags.any(Flags::CLOSING | Flags::ENDED) {
            return;
        }
        if session.held.is_empty() {
            if session.is_caught_up() {
                session.burst.begin(session.next_seq, bytes.len());
                self.note_return(key);
            }
            let used = self.take_requests(key, bytes);
            self.hold_back(key, &bytes[used..]);
        } else {
            session.burst.extend(bytes.len());
            self.hold_back(key, bytes);
            self.take_held(key);
        }
    }

    /// A session's socket took `count` bytes of its output.
    pub fn handle_session_written(&mut self, session: SessionId, count: usize) {
        let key = session.0;
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        session.out.take(count, &mut self.spare);
        session.took_at = self.now;
        session.active_at = self.now;
        session.bytes_out += count as u64;
        self.held_bytes -= count;
        self.counters.session_bytes_out += count as u64;
        if session.flags.any(Flags::HOLD_OUTPUT)
            && session.out.len() <= self.settings.limits.session_output_soft_bytes as usize / 2
            && self.unpause_captured(key)
        {
            self.release(key, Flags::HOLD_OUTPUT);
        }
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        if session.out.is_empty() {
            if session.flags.any(Flags::HOLD_MEMORY) {
                self.release(key, Flags::HOLD_MEMORY);
            }
            self.finish_if_done(key);
        }
    }

    /// A session's socket took less than all of its output, or nothing.
    pub fn handle_session_full(&mut self, session: SessionId) {
        self.settle_output(session.0);
    }

    /// A client sends no more. What it asked is answered, then it is closed.
    pub fn handle_session_end(&mut self, session: SessionId) {
        let key = session.0;
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        session.flags |= Flags::ENDED;
        if self.is_to_wait(key) {
            return self.close(key, false);
        }
        if self.waits_at_server(key) {
            return self.end_wait(key);
        }
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        if session.flags.any(Flags::STREAMING | Flags::SWALLOWING) {
            self.forget_large(key);
        }
        self.end_paused(key);
        self.reading_changed(key);
        self.finish_if_done(key);
    }

    /// A client whose socket is not read sends no more. What it sent until then has not been read,
    /// and may be much.
    pub fn handle_session_hangup(&mut self, session: SessionId) {
        let key = session.0;
        if self.is_to_wait(key) || self.sessions.get(key).is_some_and(Session::is_finished) {
            return self.close(key, false);
        }
        if self.waits_at_server(key) {
            return self.end_wait(key);
        }
        self.end_paused(key);
    }

    /// Whether a session waits for a link, to wait at the server: nobody should get any more what
    /// comes there.
    fn is_to_wait(&self, key: Key) -> bool {
        self.sessions.get(key).is_some_and(|session| {
            let is_held = session.flags.any(Flags::HOLD_ROOM);
            is_held && session.asked.is_some_and(may_wait)
                || self.polling.holds(key)
                || session
                    .rare
                    .as_deref()
                    .is_some_and(|rare| rare.delayed.waits())
        })
    }

    /// Whether what a session has in flight may wait for something at the server.
    pub(crate) fn waits_at_server(&self, key: Key) -> bool {
        let link = self.sessions.get(key).map(|session| session.link);
        link.and_then(|link| self.links.get(link))
            .is_some_and(|link| link.waits || link.tunnel.is_some())
    }

    /// A client is gone.
    pub fn handle_session_lost(&mut self, session: SessionId) {
        self.close(session.0, false);
    }

    /// The name of a link's server is looked up since then, and the link waits for that.
    pub fn handle_link_resolving(&mut self, link: LinkId, since: Time) {
        if let Some(link) = self.links.get(link.0) {
            let server = usize::from(link.key.server.0);
            self.servers[server].health.begin_look_up(since);
        }
    }

    /// That look-up has ended, whatever it has found.
    pub fn handle_link_resolved(&mut self, link: LinkId) {
        if let Some(link) = self.links.get(link.0) {
            let server = usize::from(link.key.server.0);
            self.servers[server].health.end_look_up();
        }
    }

    /// The index of the pool that a link belongs to, in [`Settings::pools`].
    pub fn pool_of_link(&self, link: LinkId) -> u16 {
        let link = self.links.get(link.0);
        link.map_or(0, |link| self.pool_of(link.key.server).whole)
    }

    /// A link's socket is connected.
    pub fn handle_link_up(&mut self, link: LinkId) {
        let Some(server) = self.links.get(link.0).map(|link| link.key.server) else {
            return;
        };
        let pool = self.pool_of(server);
        let server = &self.servers[server.0 as usize];
        let configured = server.settings.credentials.as_ref();
        // Else a Cluster's replica sends its readers to the primary.
        let to_node = pool.cluster().is_some();
        let reads_only = server.replica_of.is_some() && to_node;
        let link_of = self.links.get(link.0);
        let asks_for_limits = link_of.is_some_and(|link| self.asks_for_limits(link));
        if let Some(link) = self.links.get_mut(link.0) {
            let credentials = match link.key.user {
                CONFIGURED => configured,
                user => self.logins.get(user),
            };
            let greeting = match link.role {
                Role::Probe => Greeting::of_probe(),
                _ => {
                    let others = self.logins.beside(link.key.user, link.key.db, configured);
                    Greeting::new(link.key, (credentials, others), reads_only, to_node)
                }
            };
            let greeting = match asks_for_limits {
                true => greeting.with_limits(),
                false => greeting,
            };
            link.greet(greeting, self.now);
        }
        self.flushed_links.push(link.0);
    }

    /// A link's socket took `count` bytes of its output.
    pub fn handle_link_written(&mut self, link: LinkId, count: usize) {
        let Some(state) = self.links.get_mut(link.0) else {
            return;
        };
        state.written(count);
        if state.streaming != Streaming::No {
            state.progress = self.now;
        }
        self.counters.link_bytes_out += count as u64;
        if !state.takes || !state.waiters.is_empty() {
            self.end_sending(link.0);
            self.reopen(link.0);
        }
    }

    /// The other workers together, as of a moment ago: INFO adds them to this one.
    pub fn handle_fleet(&mut self, fleet: Counters) {
        self.fleet = fleet;
    }

    /// No client may ask anything new. What has come is answered; every session closes when it is.
    pub fn handle_drain(&mut self) {
        self.draining = true;
        for key in self.sessions.keys() {
            self.handle_session_end(SessionId(key));
        }
    }

    /// Everything that was ready has been handled: decides what leaves.
    pub fn end_turn(&mut self) {
        self.end_pauses();
        self.slow_down_all();
        self.fail_untried();
        self.refresh_clusters();
        if self.somebody_waits() {
            self.ask_put_off();
        }
        self.resume_sessions();
        if self.now >= self.tick_at {
            self.tick_at = self.now.plus_ms(TICK_MS);
            self.tick();
            self.resume_sessions();
        }
        self.settle_pauses();
        if self.owes_invalidations() {
            self.tell_invalidations();
        }
        self.ask_hubs();
        self.open_links_with_scripts();
        self.tell_scripts();
        if !self.kept.is_empty() {
            self.end_keeping();
        }
        self.flush();
        self.relieve_memory();
        self.switch_reading();
    }
}

/// Actions out.
impl Engine {
    /// The next link with something to write.
    pub fn poll_link(&mut self) -> Option<LinkId> {
        self.flushed_links.pop().map(LinkId)
    }

    /// The next session with something to write.
    pub fn poll_session(&mut self) -> Option<SessionId> {
        while let Some(key) = self.dirty.pop() {
            if let Some(session) = self.sessions.get_mut(key) {
                session.flags.remove(Flags::LISTED);
                return Some(SessionId(key));
            }
        }
        None
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The next thing to tell.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

/// Sessions.
impl Engine {
    /// Keeps bytes of a session that cannot be taken now.
    fn hold_back(&mut self, key: Key, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        if session.flags.any(Flags::CLOSING) {
            return;
        }
        if session.held.capacity() == 0 {
            session.held = self.spare.take();
        }
        if session.held.len() + bytes.len() > HELD_BYTES_DOUBLED {
            session.held.reserve_exact(bytes.len());
        }
        session.held.extend_from_slice(bytes);
        self.held_bytes += bytes.len();
        if session.flags.any(Flags::HOLD) {
            let len = session.held.len();
            self.reading.push(key);
            self.note_arrival(key, self.now_ms, len);
        }
        self.weigh(key);
    }

    /// Takes requests from what a session holds.
    fn take_held(&mut self, key: Key) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        let mut held = std::mem::take(&mut session.held);
        if session.is_caught_up() {
            self.note_return(key);
        }
        let used = self.take_waiting(key, &held);
        self.held_bytes -= held.len();
        match self.sessions.get_mut(key) {
            Some(session) if used < held.len() && !session.flags.any(Flags::CLOSING) => {
                held.drain(..used);
                shrink(&mut held);
                self.held_bytes += held.len();
                let (len, is_held) = (held.len(), session.flags.any(Flags::HOLD));
                session.held = held;
                if used > 0 {
                    self.memory.restart(key);
                }
                if is_held {
                    self.note_arrival(key, self.now_ms, len);
                }
            }
            _ => self.spare.give(held),
        }
        self.weigh(key);
    }

    /// The session has a reason to wait.
    pub(crate) fn hold(&mut self, key: Key, reason: Flags) {
        if let Some(session) = self.sessions.get_mut(key) {
            if reason == Flags::HOLD_OUTPUT && !session.flags.any(reason) {
                self.untaken.note(key);
            }
            session.flags |= reason;
            self.reading.push(key);
            if reason.any(Flags::HOLD_BY_CLIENT) {
                self.arrivals.forget(key);
            }
        }
    }

    /// The session waits until a link wakes those who wait at it.
    pub(crate) fn wait_at(&mut self, key: Key, link: Key) {
        if let Some(link) = self.links.get_mut(link) {
            link.waiters.push(key);
        }
        self.hold(key, Flags::HOLD_LINK);
    }

    /// The same at a link that is not up; it is connected first. Returns the error for the session
    /// if the server is known to be away, see [`Engine::untried_reply`].
    pub(crate) fn wait_until_up(&mut self, key: Key, link: Key) -> Result<(), Vec<u8>> {
        let resting = |link: &Link| matches!(link.state, State::Down | State::Resting { .. });
        if self.links.get(link).is_some_and(resting) {
            self.connect(link);
        }
        if let Some(reply) = self.untried_reply(link, self.away_error(key)) {
            return Err(reply);
        }
        self.wait_at(key, link);
        Ok(())
    }

    /// The error for a request on a link that was not tried, because its server is known to be
    /// away. A wait for the link would end with the turn. Two links that have to make room for each
    /// other would be waited for in turn, for ever.
    pub(crate) fn untried_reply(&self, link: Key, away: AwayError) -> Option<Vec<u8>> {
        let is_untried = |link: &Link| link.untried;
        let untried = self.links.get(link).is_some_and(is_untried);
        untried.then(|| self.no_link_reply(link, away))
    }

    /// What comes next waits until everything that the session asked is answered; whether it has
    /// to.
    pub(crate) fn hold_until_caught_up(&mut self, key: Key) -> bool {
        let behind = |session: &Session| !session.is_caught_up();
        let holds = self.sessions.get(key).is_some_and(behind);
        if holds {
            self.hold(key, Flags::HOLD_DRAIN);
        }
        holds
    }

    /// A reason to wait has gone; without another one the session continues.
    pub(crate) fn release(&mut self, key: Key, reason: Flags) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        session.flags.remove(reason);
        if !session.flags.any(Flags::HOLD | Flags::RESUMING) {
            session.flags |= Flags::RESUMING;
            self.resume.push(key);
        }
    }

    /// The next session that continues. If there is none, places on links may be given on.
    fn next_to_resume(&mut self) -> Option<Key> {
        let next = self.resume.pop();
        if next.is_some() || self.reply_turns.is_empty() {
            return next;
        }
        self.give_turns_on();
        self.resume.pop()
    }

    /// Sessions whose last reason to wait has gone continue. One continues in any case. If memory
    /// grows much, the others continue in the next turn: their replies need room until they are
    /// written.
    fn resume_sessions(&mut self) {
        self.resume.begin();
        while let Some(key) = self.next_to_resume() {
            let Some(session) = self.sessions.get_mut(key) else {
                continue;
            };
            session.flags.remove(Flags::RESUMING);
            self.change_lane(key);
            let Some(session) = self.sessions.get_mut(key) else {
                continue;
            };
            if session.flags.any(Flags::STEPS) {
                self.take_steps(key);
            }
            let has_more =
                |session: &Session| !session.held.is_empty() && !session.flags.any(Flags::STEPS);
            if self.sessions.get(key).is_some_and(has_more) {
                self.take_held(key);
            }
            self.reading.push(key);
            self.finish_if_done(key);
            if self.turn_is_full() {
                self.resume.leave_over();
                break;
            }
        }
    }

    pub(crate) fn reading_changed(&mut self, key: Key) {
        self.reading.push(key);
    }

    /// Tells the driver which sessions to read, once per turn: most reasons to wait come and go
    /// within one.
    fn switch_reading(&mut self) {
        while let Some(key) = self.reading.pop() {
            let Some(session) = self.sessions.get_mut(key) else {
                continue;
            };
            let read = session.wants_reading(&self.settings.limits, self.now);
            if read == session.flags.any(Flags::UNREAD) {
                if read {
                    session.flags.remove(Flags::UNREAD);
                } else {
                    session.flags |= Flags::UNREAD;
                }
                self.actions
                    .push_back(Action::ReadSession(SessionId(key), read));
            }
        }
    }

    /// The session has something to write.
    pub(crate) fn mark_dirty(dirty: &mut Vec<Key>, key: Key, session: &mut Session) {
        if !session.flags.any(Flags::LISTED) {
            session.flags |= Flags::LISTED;
            dirty.push(key);
        }
    }

    /// The session gets what it is owed, and no more is taken from it.
    pub(crate) fn close_when_answered(&mut self, key: Key) {
        if let Some(session) = self.sessions.get_mut(key) {
            session.flags |= Flags::CLOSING;
            self.held_bytes -= session.held.len();
            session.held = Vec::new();
            self.reading.push(key);
            // Without replies, no write will end it.
            self.resume.push(key);
        }
    }

    pub(crate) fn finish_if_done(&mut self, key: Key) {
        if self.sessions.get(key).is_some_and(Session::is_finished) {
            self.close(key, true);
        }
    }

    /// We close a session for something it did, or did not do.
    pub(crate) fn close_for(&mut self, key: Key, reason: String) {
        if let Some(session) = self.sessions.get(key) {
            let peer = session.peer.to_string();
            self.counters.sessions_closed_by_us += 1;
            self.events.push_back(Event::SessionClosed { peer, reason });
            self.close(key, false);
        }
    }

    /// Forgets a session. Replies it is still owed will be dropped when they come.
    pub(crate) fn close(&mut self, key: Key, gently: bool) {
        let Some(mut session) = self.sessions.remove(key) else {
            return;
        };
        self.askers.remove(&key);
        self.memory.forget(key);
        self.slow_readers.forget(session.id);
        self.held_bytes -= self.polling.forget(key);
        self.held_bytes -= session.held_bytes();
        session.out.take(session.out.len(), &mut self.spare);
        match session.flags.any(Flags::ROUTED) {
            true => self.pools[usize::from(session.pool)].came(session.expected),
            false => self.came(session.link, session.expected),
        }
        if self.links.get(session.link).is_some() {
            self.leave(session.link);
            if self
                .links
                .get(session.link)
                .is_some_and(|link| link.role == Role::Pinned { by: key })
            {
                // The server's side of it knows things about somebody who is gone.
                if let Some(link) = self.links.get_mut(session.link) {
                    link.tainted = true;
                }
                self.give_back(session.link);
            }
        }
        if let Some(tracker) = session.rare.as_mut().and_then(|rare| rare.tracker.take()) {
            self.trackers.remove(key);
            tracker.links().for_each(|link| self.give_back(link));
        }
        if let Some(mut scanner) = session.partial.take() {
            // Half a request of this session is no business of the next one.
            scanner.reset();
            self.scanners.push(scanner);
        }
        if let Some(large) = session.rare.as_mut().and_then(|rare| rare.large.take()) {
            // Half a request of ours is in there: nothing else may follow it.
            if let Some(link) = large.link {
                self.abandon(link);
            }
        }
        self.forget_redirects(&session);
        if let Some(subscriber) = session.rare.and_then(|rare| rare.subscriber) {
            self.forget_subscriber(key, subscriber);
        }
        self.unpause_captured(key);
        self.actions.push_back(Action::CloseSession {
            session: SessionId(key),
            gently,
        });
    }

    /// Makes a session ride on another link. Only while nothing of it is in flight: what it asked
    /// on the old one would be overtaken.
    pub(crate) fn ride(&mut self, key: Key, link: Key) {
        let caught_up = |session: &Session| session.is_caught_up();
        debug_assert!(self.sessions.get(key).is_none_or(caught_up));
        self.ride_anew(key, link);
    }

    /// The same where all that is not answered has left its link.
    pub(crate) fn ride_anew(&mut self, key: Key, link: Key) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        let old = std::mem::replace(&mut session.link, link);
        let expected = std::mem::replace(&mut session.expected, Expected::NOT);
        session.gap_us = u32::MAX;
        match session.flags.any(Flags::ROUTED) {
            true => self.pools[usize::from(session.pool)].came(expected),
            false => self.came(old, expected),
        }
        self.leave(old);
        if let Some(link) = self.links.get_mut(link) {
            link.riders += 1;
        }
    }

    /// A session that was expected on a link is not any more.
    fn came(&mut self, link: Key, expected: Expected) {
        if let Some(link) = self.links.get_mut(link) {
            link.returns.came(expected);
        }
    }

    pub(crate) fn leave(&mut self, link: Key) {
        if let Some(link) = self.links.get_mut(link) {
            link.riders -= 1;
            link.unused_since = self.now;
        }
    }
}

/// Links.
impl Engine {
    /// The link that a new session of a server rides on.
    pub(crate) fn first_link(&self, server: ServerId) -> LinkKey {
        LinkKey {
            server,
            version: Version::Resp2,
            db: self.server(server).settings.db,
            user: CONFIGURED,
            lane: EVERYBODYS,
        }
    }

    /// The shared link of a kind; made, not yet connected, if there is none. `None` at `links_max`.
    pub(crate) fn shared_link(&mut self, key: LinkKey) -> Option<Key> {
        let key = self.kind_with_room(key);
        if let Some(link) = self.shared.get(&key) {
            return Some(*link);
        }
        let link = self.add_link(key, Role::Shared)?;
        self.shared.insert(key, link);
        Some(link)
    }

    pub(crate) fn add_link(&mut self, key: LinkKey, role: Role) -> Option<Key> {
        if role.is_bounded_by_links_max() && !self.make_room_for_link() {
            return None;
        }
        Some(self.insert_link(key, role))
    }

    /// The same, whatever `links_max` says.
    pub(crate) fn insert_link(&mut self, key: LinkKey, role: Role) -> Key {
        let max_delay_us = self.pool_of(key.server).flush.max_delay_us;
        let mut link = Link::new(key, role, max_delay_us, self.now);
        let pool = self.pool_of(key.server);
        link.heeds = role != Role::Probe
            && (pool.cluster().is_some() || pool.watch.is_some() && role != Role::Sentinel);
        self.pinned_links += u32::from(role.is_one_sessions());
        link.reply_room
            .bound_ledger(self.settings.limits.link_ledger_max);
        let link = self.links.insert(link);
        self.limit_link(link);
        link
    }

    /// Starts connecting a link that is not.
    pub(crate) fn connect(&mut self, key: Key) {
        if self.waits_for_attempt(key) {
            return;
        }
        let paused = self.is_link_paused(key);
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        link.state = State::Connecting { since: self.now };
        link.attempted_at = self.now;
        link.untried = false;
        link.is_late = false;
        link.admit(link.may_take(), paused);
        let id = link.key.server;
        let server = &self.servers[usize::from(id.0)];
        if server.unknown {
            // Whoever is asked where it is connects it.
            return;
        }
        let to = server.settings.address.clone();
        self.servers[usize::from(id.0)].health.end_look_up();
        if !self.may_try(key, id) {
            let reason = self.server(id).health.reason.clone();
            if let Some(link) = self.links.get_mut(key) {
                link.untried = true;
                link.reason = reason;
                self.untried.push(key);
            }
            return;
        }
        self.actions.push_back(Action::Connect {
            link: LinkId(key),
            to,
        });
    }

    /// Closes a link that owes nothing, and forgets it.
    pub(crate) fn close_link(&mut self, key: Key) {
        self.act(Action::CloseLink(LinkId(key)));
        self.remove_link(key);
    }

    /// Forgets a link that owes nothing and has no connection left.
    pub(crate) fn remove_link(&mut self, key: Key) {
        if let Some(link) = self.links.remove(key) {
            self.learned.leave_questions(key);
            if self.shared.get(&link.key) == Some(&key) {
                self.shared.remove(&link.key);
            }
            if link.role == Role::Spare
                && let Some(spares) = self.spares.get_mut(&link.key)
            {
                spares.retain(|spare| *spare != key);
            }
            for waiter in link.waiters {
                self.release(waiter, Flags::HOLD_LINK);
            }
            self.next_streaming();
            if link.role.is_one_sessions() {
                self.pinned_links -= 1;
                self.next_pinned();
            }
        }
    }

    pub(crate) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    /// Whether the driver has not closed the connection yet that we have given up.
    pub(crate) fn is_to_close(&self, link: LinkId) -> bool {
        self.actions.contains(&Action::CloseLink(link))
    }

    pub(crate) fn tell(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// The link has bytes for the flush rule to decide on.
    pub(crate) fn list_link(&mut self, key: Key) {
        if let Some(link) = self.links.get_mut(key)
            && !link.listed
        {
            link.listed = true;
            link.begin_batch(self.now);
            self.open_links.push(key);
        }
    }

    /// Applies the flush rule to every open batch.
    fn flush(&mut self) {
        self.flush_at = None;
        let some_hurry = self.levels.iter().any(|levels| !levels.hold);
        let mut at = 0;
        while at < self.open_links.len() {
            let key = self.open_links[at];
            let Some(link) = self.links.get_mut(key) else {
                self.open_links.swap_remove(at);
                continue;
            };
            // What is gathered while there is no connection leaves when there is one.
            if !link.is_up() || !link.has_open_batch() {
                link.listed = false;
                self.open_links.swap_remove(at);
                continue;
            }
            let pool = usize::from(self.servers[usize::from(link.key.server.0)].pool);
            let soon = match link.in_flight() {
                0 => {
                    let whole = usize::from(self.pools[pool].whole);
                    self.pools.soon_by_server(whole, self.now)
                }
                _ => None,
            };
            let rule = &self.pools[pool].flush;
            let hurries = |entry: &Entry| {
                let session = self.sessions.get(entry.session);
                session.is_some_and(|session| !Levels::of(&self.levels, session.listener).hold)
            };
            let decision = match link.decide(rule, self.now, soon) {
                // A batch leaves as a whole.
                Decision::HoldUntil(_) if some_hurry && link.open_entries().any(hurries) => {
                    Decision::Flush(Why::Idle)
                }
                decision => decision,
            };
            match decision {
                Decision::HoldUntil(due) => {
                    self.flush_at = Some(self.flush_at.map_or(due, |earliest| earliest.min(due)));
                    at += 1;
                }
                Decision::Flush(why) => {
                    let counters = &mut self.counters;
                    counters.batches += 1;
                    counters.batch_requests.note(link.gathered());
                    match why {
                        Why::Idle => counters.flushed_idle += 1,
                        Why::Full => counters.flushed_full += 1,
                        Why::Late => counters.flushed_late += 1,
                    }
                    let link = if link.movable > 1 && link.role.is_manys() {
                        self.coalesce(key);
                        self.links.get_mut(key)
                    } else {
                        Some(link)
                    };
                    if let Some(link) = link {
                        link.flush(self.now);
                        link.listed = false;
                    }
                    self.open_links.swap_remove(at);
                    self.flushed_links.push(key);
                }
            }
        }
    }

    /// What the configuration calls a server's pool.
    pub(crate) fn pool_name(&self, server: ServerId) -> &str {
        let whole = self.pool_of(server).whole;
        let pool = self.settings.pools.get(usize::from(whole));
        pool.map_or("", |pool| pool.name.as_str())
    }

    /// The pool of a server, or the part of one.
    pub(crate) fn pool_of(&self, server: ServerId) -> &Pool {
        &self.pools[usize::from(self.server(server).pool)]
    }

    /// The link has bytes of a large request to write.
    pub(crate) fn write_link(&mut self, key: Key) {
        if self.flushed_links.last() != Some(&key) {
            self.flushed_links.push(key);
        }
    }

    /// What the server of a session says of itself, if that is known.
    pub(crate) fn identity(&self, server: ServerId) -> Option<&Identity> {
        let of_server = |link: &&Link| link.key.server == server;
        self.links
            .iter()
            .map(|(_, link)| link)
            .filter(of_server)
            .find_map(|link| link.identity.as_ref())
    }
}

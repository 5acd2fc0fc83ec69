//! Turns that a caller takes itself.
//!
//! A lone caller that meets the worker's thread waits for the scheduler twice: until the worker
//! runs, and until it runs itself again. So a worker whose last turns had one caller each stands
//! aside: it lays its loop down here. The next caller takes it up, and takes turns until its own
//! reply is there. It calls the worker back if others wait by then.
//!
//! A worker that stands aside looks after its sockets once a tick. If no caller has led since the
//! last one, it stays. A worker with listeners never stands aside.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

use respool_engine::TICK_MS;
use rustix::thread::futex;
use rustix::time::Timespec;

use crate::worker::{TurnTools, WorkerLoop};

/// The worker has its loop.
const STEERED: u32 = 0;
/// The worker stands aside.
const ASIDE: u32 = 1;

/// The place where a worker lays its loop down.
#[derive(Default)]
pub(crate) struct Helm {
    /// [`STEERED`] or [`ASIDE`]. A worker that stands aside sleeps on it.
    word: AtomicU32,
    /// `None` while the worker has it.
    laid_down: Mutex<Option<LaidDown>>,
    /// The number of times that a caller has led.
    led: AtomicU32,
}

/// A worker's loop without its thread.
struct LaidDown {
    worker: Box<WorkerLoop>,
    /// Whether a turn was the last one.
    has_ended: bool,
}

/// A loop that a worker has taken back.
pub(crate) struct TakenBack {
    pub(crate) worker: Box<WorkerLoop>,
    /// Whether a turn of a caller was the last one.
    pub(crate) has_ended: bool,
    /// Whether callers have led meanwhile.
    pub(crate) was_led: bool,
}

impl Helm {
    /// Whether the worker stands aside, so that a caller may lead.
    pub(crate) fn is_free(&self) -> bool {
        // A caller lists its pipe before it asks; a worker asks for listed pipes after it has
        // stood aside. So one of them sees the other.
        fence(Ordering::SeqCst);
        self.word.load(Ordering::Relaxed) == ASIDE
    }

    /// Calls the worker back if it stands aside.
    pub(crate) fn call_back(&self) {
        if self.is_free() && self.word.swap(STEERED, Ordering::AcqRel) == ASIDE {
            let _ = futex::wake(&self.word, futex::Flags::PRIVATE, 1);
        }
    }

    /// Lays the loop down for at most a tick, unless `is_wanted` then. `None`: a caller has
    /// panicked in a turn.
    pub(crate) fn stand_aside(
        &self,
        worker: Box<WorkerLoop>,
        is_wanted: impl FnOnce() -> bool,
    ) -> Option<TakenBack> {
        let led = self.led.load(Ordering::Relaxed);
        let has_ended = false;
        *self.laid_down.lock().ok()? = Some(LaidDown { worker, has_ended });
        self.word.store(ASIDE, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !is_wanted() {
            let tick = Timespec::try_from(Duration::from_millis(TICK_MS.into())).ok();
            // Any outcome is a reason to look again.
            let _ = futex::wait(&self.word, futex::Flags::PRIVATE, ASIDE, tick.as_ref());
        }
        self.word.store(STEERED, Ordering::Relaxed);
        // It waits for a caller that leads.
        let LaidDown { worker, has_ended } = self.laid_down.lock().ok()?.take()?;
        let was_led = self.led.load(Ordering::Relaxed) != led;
        Some(TakenBack {
            worker,
            has_ended,
            was_led,
        })
    }

    /// Takes turns until `is_done`, or until the deadline. Returns whether it has taken any. It
    /// takes none if the worker or another caller has the loop.
    pub(crate) fn lead(&self, deadline: Option<Instant>, is_done: impl Fn() -> bool) -> bool {
        let Ok(mut laid_down) = self.laid_down.try_lock() else {
            return false;
        };
        let Some(laid_down) = laid_down.as_mut() else {
            return false;
        };
        self.led.fetch_add(1, Ordering::Relaxed);
        let mut tools = TurnTools::of_caller();
        while !laid_down.has_ended {
            laid_down.has_ended = !laid_down.worker.take_turn(&mut tools, deadline);
            if is_done() || deadline.is_some_and(|at| Instant::now() >= at) {
                break;
            }
        }
        true
    }
}

impl fmt::Debug for Helm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_free = self.is_free();
        f.debug_struct("Helm")
            .field("is_free", &is_free)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::task::{Context, Waker};
    use std::thread;

    use respool_engine::settings::{Address, PoolKind, PoolSettings, ServerSettings, Settings};
    use respool_testkit::servers::{ServerProcess, any_server};
    use respool_testkit::time::wait_until;

    use crate::callers::CallerQueue;
    use crate::{CallerSession, EndReason, Running, Setup, start};

    const SOON: Duration = Duration::from_secs(20);

    /// A worker for callers before a server.
    struct World {
        running: Running,
        server: ServerProcess,
    }

    impl World {
        fn new() -> World {
            let server = ServerProcess::start::<&str>(&any_server(), &[]).expect("it starts");
            let (host, port) = (server.address().ip().to_string(), server.address().port());
            let at = ServerSettings::at(Address::Tcp { host, port });
            let settings = Settings {
                pools: vec![PoolSettings::new("default", PoolKind::Single(at))],
                ..Settings::default()
            };
            let setup = Setup {
                listeners: Vec::new(),
                pool_tls: Vec::new(),
                socket_access: Default::default(),
                workers: 1,
                settings: Arc::new(settings),
                reports_servers: false,
                serves_callers: true,
            };
            let running = start(setup, Arc::new(|_| {})).expect("the worker starts");
            World { running, server }
        }

        fn open(&self) -> CallerSession {
            self.running.callers().expect("there are callers").open(0)
        }

        fn queue(&self) -> Arc<CallerQueue> {
            self.running.callers().expect("there are callers").0[0].clone()
        }

        /// Calls alone until the worker stands aside.
        fn stand_aside(&self, session: &CallerSession) {
            let since = Instant::now();
            while !self.queue().helm().is_free() {
                call(session);
                assert!(since.elapsed() < SOON, "the worker does not stand aside");
            }
        }
    }

    fn call(session: &CallerSession) {
        assert_eq!(session.write_before_wait(b"*1\r\n$4\r\nPING\r\n"), 14);
        read(session);
    }

    fn read(session: &CallerSession) {
        let mut reply = Vec::new();
        while reply.len() < 7 {
            assert!(session.wait(Some(Instant::now() + SOON)), "no reply");
            session.read(&mut reply);
        }
        assert_eq!(reply, b"+PONG\r\n");
    }

    /// A lone caller takes the turns of its calls itself.
    #[test]
    fn lone_caller_leads() {
        let world = World::new();
        let session = world.open();
        world.stand_aside(&session);
        let led = world.queue().helm().led.load(Ordering::Relaxed);
        for _ in 0..100 {
            call(&session);
        }
        assert!(world.queue().helm().led.load(Ordering::Relaxed) > led + 50);
    }

    /// Callers that come while one leads get their replies, and so does the next lone one.
    #[test]
    fn callers_come_beside_a_lone_one() {
        let world = World::new();
        let session = world.open();
        for _ in 0..20 {
            world.stand_aside(&session);
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        let own = world.open();
                        for _ in 0..50 {
                            call(&own);
                        }
                    });
                }
                for _ in 0..50 {
                    call(&session);
                }
            });
        }
    }

    /// A request without a wait behind it, and a task, call the worker back.
    #[test]
    fn callers_that_do_not_lead_are_served() {
        let world = World::new();
        let (session, other) = (world.open(), world.open());
        for _ in 0..5 {
            world.stand_aside(&session);
            other.write(b"*1\r\n$4\r\nPING\r\n");
            assert!(!world.queue().helm().is_free());
            let mut context = Context::from_waker(Waker::noop());
            let _ = other.poll(&mut context);
            read(&other);
            world.stand_aside(&session);
            other.write_before_wait(b"*1\r\n$4\r\nPING\r\n");
            let _ = other.poll(&mut context);
            read(&other);
        }
    }

    /// The deadline of a caller that leads is its own.
    #[test]
    fn caller_that_leads_keeps_its_deadline() {
        let world = World::new();
        let session = world.open();
        world.stand_aside(&session);
        world.server.stop();
        session.write_before_wait(b"*1\r\n$4\r\nPING\r\n");
        let begun = Instant::now();
        let limit = Duration::from_millis(30);
        assert!(!session.wait(Some(begun + limit)));
        assert!(begun.elapsed() >= limit);
        world.server.cont();
        read(&session);
    }

    /// A worker ends also while it stands aside, and while a caller leads.
    #[test]
    fn worker_ends_beside_a_caller_that_leads() {
        for leads in [false, true] {
            let world = World::new();
            let session = world.open();
            world.stand_aside(&session);
            let queue = world.queue();
            let World { running, server } = world;
            if leads {
                server.stop();
                session.write_before_wait(b"*1\r\n$4\r\nPING\r\n");
            }
            thread::scope(|scope| {
                let caller = scope.spawn(|| leads && session.wait(Some(Instant::now() + SOON)));
                if leads {
                    wait_until("the caller leads", SOON, || {
                        queue.helm().laid_down.try_lock().is_err()
                    });
                }
                running.drain();
                running.join(Duration::from_millis(200));
                assert_eq!(caller.join().expect("no panic"), leads);
            });
            if leads {
                let end = session.end().expect("the session has ended");
                assert_eq!(end.reason, EndReason::WorkerEnded);
            }
        }
    }
}

//! Turns that a caller takes itself.
//!
//! A call waits for the scheduler twice: until the worker's thread runs, and then until the
//! caller's thread runs again. So a worker that had one caller in each of its last turns stands
//! aside: it puts its loop here and sleeps. The next caller *leads*: it locks the loop and takes
//! turns until its own reply is there. It calls the worker back if others wait by then.
//!
//! A worker that stands aside takes its loop back once a tick, also from a caller that leads. It
//! stands aside again if callers have led since the last tick and none waits. A worker with
//! listeners never stands aside.

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

/// The place of a worker's loop while the worker stands aside.
///
/// Callers of a crowd read the word at every wait, so it has a cache line without their counters.
#[derive(Default)]
#[repr(align(64))]
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

    /// Leaves the loop to callers for at most a tick, unless `is_wanted` then. `None`: a caller has
    /// panicked in a turn.
    pub(crate) fn stand_aside(
        &self,
        worker: Box<WorkerLoop>,
        is_wanted: impl FnOnce() -> bool,
    ) -> Option<TakenBack> {
        let led = self.led.load(Ordering::Relaxed);
        let has_ended = false;
        // Without a lock the loop ends here, and with it the sessions of its callers.
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
        let laid_down = match self.laid_down.lock() {
            Ok(mut laid_down) => laid_down.take(),
            // The loop ends, and with it the sessions of its callers.
            Err(poisoned) => {
                let broken = poisoned.into_inner().take();
                drop(broken);
                None
            }
        };
        let LaidDown { worker, has_ended } = laid_down?;
        let was_led = self.led.load(Ordering::Relaxed) != led;
        Some(TakenBack {
            worker,
            has_ended,
            was_led,
        })
    }

    /// Takes turns until `is_done`, until the deadline, or until the worker wants its loop back. It
    /// takes none if the worker or another caller has the loop.
    pub(crate) fn lead(&self, deadline: Option<Instant>, is_done: impl Fn() -> bool) {
        let Ok(mut laid_down) = self.laid_down.try_lock() else {
            return;
        };
        let Some(LaidDown { worker, has_ended }) = laid_down.as_mut() else {
            return;
        };
        self.led.fetch_add(1, Ordering::Relaxed);
        let mut tools = TurnTools::of_caller();
        // Only a turn brings the reply, so it is not there in the middle of one.
        while !*has_ended
            && !is_done()
            && self.word.load(Ordering::Relaxed) == ASIDE
            && deadline.is_none_or(|at| Instant::now() < at)
        {
            *has_ended = !worker.take_turn(&mut tools, deadline);
        }
        let is_busy = *has_ended || worker.is_busy();
        drop(laid_down);
        if is_busy {
            self.call_back();
        }
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
        let led = || world.queue().helm().led.load(Ordering::Relaxed);
        let (goal, since) = (led() + 1_000, Instant::now());
        while led() < goal {
            call(&session);
            assert!(since.elapsed() < SOON, "callers do not lead");
        }
    }

    /// A caller with a long wait does not lead for long.
    #[test]
    fn worker_takes_its_loop_back_from_a_long_wait() {
        let world = World::new();
        let (session, other) = (world.open(), world.open());
        world.stand_aside(&session);
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let blpop = b"*3\r\n$5\r\nBLPOP\r\n$4\r\nlist\r\n$1\r\n0\r\n";
                session.write_before_wait(blpop);
                session.wait(Some(Instant::now() + SOON))
            });
            wait_until("the worker has its loop", SOON, || {
                let queue = world.queue();
                let is_laid_down = queue.helm().laid_down.try_lock();
                is_laid_down.is_ok_and(|laid_down| laid_down.is_none())
                    && queue.helm().led.load(Ordering::Relaxed) > 0
            });
            call(&other);
            let rpush = b"*3\r\n$5\r\nRPUSH\r\n$4\r\nlist\r\n$1\r\nx\r\n";
            other.write(rpush);
            assert!(waits.join().expect("no panic"));
        });
    }

    /// A waker that panics when it is woken.
    struct Panics;

    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker of a caller panics, for this test");
        }
    }

    /// A panic in a turn of a caller ends all sessions, so that no caller waits for ever.
    #[test]
    fn panic_of_a_caller_that_leads_ends_all_sessions() {
        let world = World::new();
        let (session, task, other) = (world.open(), world.open(), world.open());
        call(&other);
        let outcome = thread::scope(|scope| {
            let leads = scope.spawn(|| {
                // The task counts as waiting, so the worker would not stand aside beside it.
                world.stand_aside(&session);
                let queue = world.queue();
                let waker = Waker::from(Arc::new(Panics));
                let mut context = Context::from_waker(&waker);
                let mut laid_down = queue.helm().laid_down.lock().expect("not poisoned");
                task.write_before_wait(b"*1\r\n$4\r\nPING\r\n");
                let _ = task.poll(&mut context);
                let laid_down = laid_down.as_mut().expect("the worker stands aside");
                let mut tools = TurnTools::of_caller();
                for _ in 0..100 {
                    laid_down.worker.take_turn(&mut tools, None);
                }
            });
            leads.join()
        });
        assert!(outcome.is_err(), "the waker has panicked in a turn");
        other.write(b"*1\r\n$4\r\nPING\r\n");
        assert!(other.wait(Some(Instant::now() + SOON)));
        let end = other.end().expect("the session has ended");
        assert_eq!(end.reason, EndReason::WorkerEnded);
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

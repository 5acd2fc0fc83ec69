//! Sessions of callers in the child of a fork.

// Only a fork makes a child with the memory of this process.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use respool_driver::{CallerEnd, CallerSession, EndReason, Setup, start};
use respool_engine::Fate;
use respool_engine::settings::{Address, PoolKind, PoolSettings, ServerSettings, Settings};
use respool_testkit::servers::{ServerProcess, any_server};

unsafe extern "C" {
    fn fork() -> c_int;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn _exit(status: c_int) -> !;
    fn alarm(seconds: u32) -> u32;
}

const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// Runs `child` in the child of a fork, for at most 10 seconds. Returns the sum of its exit code
/// and signal.
fn in_child(child: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the child calls `child`, which takes no lock that another thread may have, and ends
    // without running anything of the parent.
    unsafe {
        match fork() {
            0 => {
                alarm(10);
                _exit(child());
            }
            pid => {
                let mut status = 0;
                assert_eq!(waitpid(pid, &mut status, 0), pid);
                status
            }
        }
    }
}

fn ping(session: &CallerSession) {
    session.write(PING);
    let mut reply = Vec::new();
    while reply.len() < 7 {
        if !session.read(&mut reply) {
            assert!(session.wait(Some(Instant::now() + Duration::from_secs(20))));
        }
    }
}

fn forked(fate: Fate) -> Option<CallerEnd> {
    Some(CallerEnd {
        reason: EndReason::Forked,
        fate: Some(fate),
    })
}

/// A child has no worker. The calls of its callers fail at once, whichever locks other threads had
/// at the fork.
#[test]
fn calls_in_a_child_fail_at_once() {
    let server = ServerProcess::start::<&str>(&any_server(), &[]).expect("the server starts");
    let at = ServerSettings::at(Address::Tcp {
        host: server.address().ip().to_string(),
        port: server.address().port(),
    });
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
    let callers = running.callers().expect("there are callers");
    let until = Instant::now() + Duration::from_secs(2);
    thread::scope(|scope| {
        // They have locks of their pipes and of the queue most of the time.
        for _ in 0..3 {
            scope.spawn(|| {
                let own = callers.open(0);
                while Instant::now() < until {
                    ping(&own);
                }
            });
        }
        let session = callers.open(0);
        ping(&session);
        let mut forks = 0;
        while Instant::now() < until {
            let status = in_child(|| {
                let new = callers.open(0);
                let checks = [
                    callers.are_forked(),
                    session.end() == forked(Fate::Unknown),
                    new.end() == forked(Fate::NotSent),
                    session.write(PING) == 0 && new.write(PING) == 0,
                    session.wait(None) && new.wait(None),
                    !session.read(&mut Vec::new()),
                    !session.lay_down() && !session.take_up(),
                ];
                session.withdraw();
                drop(new);
                checks
                    .iter()
                    .position(|passed| !passed)
                    .map_or(0, |at| at as c_int + 1)
            });
            assert_eq!(status, 0, "the child fails at check {}", status >> 8);
            forks += 1;
        }
        assert!(forks > 20, "{forks} forks");
        // The parent goes on.
        assert!(!callers.are_forked());
        ping(&session);
    });
    running.join(Duration::ZERO);
}

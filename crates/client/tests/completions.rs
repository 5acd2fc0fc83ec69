//! Calls whose outcomes are taken in batches, before a real server.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use respool_client::{CallError, Client, Completions};
use respool_testkit::servers::{ServerProcess, any_server};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const SOON: Duration = Duration::from_secs(20);

type Outcomes = BTreeMap<u64, Result<Vec<u8>, CallError>>;

fn server() -> ServerProcess {
    ServerProcess::start::<&str>(&any_server(), &[]).expect("the server starts")
}

fn client(server: &ServerProcess) -> Client {
    Client::open(&format!("redis://{}", server.address())).expect("the client starts")
}

/// Takes this many outcomes, each with a token of its own.
fn taken(completions: &Completions, count: usize) -> Outcomes {
    let (mut outcomes, mut batch) = (Outcomes::new(), Vec::new());
    let deadline = Instant::now() + SOON;
    while outcomes.len() < count {
        assert!(completions.wait(Some(deadline)), "{outcomes:?}");
        completions.take(&mut batch);
        for (token, outcome) in batch.drain(..) {
            assert!(outcomes.insert(token, outcome).is_none(), "token {token}");
        }
    }
    outcomes
}

fn is_readable(completions: &Completions) -> bool {
    let descriptor = completions.as_fd();
    let now = Timespec::default();
    poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&now)).expect("poll") == 1
}

#[test]
fn each_token_gets_its_own_outcome() {
    let server = server();
    let completions = client(&server).completions().expect("an eventfd");
    for round in 0..20_u64 {
        for token in 0..300 {
            let number = format!("{}", round * 1_000 + token);
            completions.ask(&["ECHO", &number], token).expect("begun");
        }
        assert_eq!(completions.len(), 300);
        for (token, outcome) in taken(&completions, 300) {
            let number = format!("{}", round * 1_000 + token);
            let reply = format!("${}\r\n{number}\r\n", number.len());
            assert_eq!(outcome.expect("a reply"), reply.into_bytes());
        }
        assert!(completions.is_empty());
    }
}

/// Threads ask while another thread takes.
#[test]
fn threads_ask_beside_the_thread_that_takes() {
    let server = server();
    let completions = client(&server).completions().expect("an eventfd");
    let outcomes = thread::scope(|scope| {
        for thread in 0..4_u64 {
            let completions = &completions;
            scope.spawn(move || {
                for call in 0..500 {
                    let token = thread * 1_000 + call;
                    let key = format!("key-{token}");
                    completions
                        .ask(&["APPEND", &key, "x"], token)
                        .expect("begun");
                }
            });
        }
        taken(&completions, 2_000)
    });
    for outcome in outcomes.into_values() {
        assert_eq!(outcome.expect("a reply"), b":1\r\n");
    }
}

/// The descriptor is readable from an outcome on until the outcomes are taken.
#[test]
fn descriptor_is_readable_while_outcomes_wait() {
    let server = server();
    let completions = client(&server).completions().expect("an eventfd");
    assert!(!is_readable(&completions));
    completions.ask(&["PING"], 7).expect("begun");
    assert!(completions.wait(Some(Instant::now() + SOON)));
    assert!(is_readable(&completions));
    assert_eq!(taken(&completions, 1)[&7], Ok(b"+PONG\r\n".to_vec()));
    assert!(!is_readable(&completions));
    assert!(!completions.wait(Some(Instant::now())));
}

/// A request that has not left is surely not executed; one at the server may be.
#[test]
fn withdrawn_call_tells_its_fate() {
    let server = server();
    let client = client(&server);
    client.call(&["PING"]).expect("the link is up");
    let completions = client.completions().expect("an eventfd");
    server.stop();
    completions.ask(&["INCR", "n"], 1).expect("begun");
    // The request is at the server, or on its way there, once the worker has taken a turn.
    thread::sleep(Duration::from_millis(100));
    completions.withdraw(1);
    completions.withdraw(2);
    let outcome = taken(&completions, 1).remove(&1).expect("its outcome");
    assert!(matches!(outcome, Err(CallError::Unknown(_))), "{outcome:?}");
    server.cont();
    // The session of the withdrawn call is not used again.
    completions.ask(&["ECHO", "next"], 1).expect("begun");
    assert_eq!(taken(&completions, 1)[&1], Ok(b"$4\r\nnext\r\n".to_vec()));
}

/// A mistake of the caller begins no call.
#[test]
fn wrong_requests_and_tokens_are_refused() {
    let server = server();
    let completions = client(&server).completions().expect("an eventfd");
    let invalid = |outcome| assert!(matches!(outcome, Err(CallError::Invalid(_))), "{outcome:?}");
    invalid(completions.ask(&["SUBSCRIBE", "c"], 1));
    invalid(completions.ask::<&str>(&[], 1));
    for request in [
        &b""[..],
        b"PING\r\n",
        b"*0\r\n",
        b"*1\r\n$4\r\nPING",
        b"*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPING\r\n",
        b"*2\r\n$6\r\nSELECT\r\n$1\r\n1\r\n",
        b"*1\r\n$99999999999999999999\r\nPING\r\n",
        b"*-1\r\n",
    ] {
        invalid(completions.ask_encoded(request.to_vec(), 1));
    }
    assert!(completions.is_empty());
    completions
        .ask_encoded(b"*1\r\n$4\r\nPING\r\n".to_vec(), 1)
        .expect("begun");
    invalid(completions.ask(&["PING"], 1));
    assert_eq!(taken(&completions, 1)[&1], Ok(b"+PONG\r\n".to_vec()));
}

/// A request that is larger than the room of its session is sent as room comes.
#[test]
fn large_requests_and_replies_pass() {
    let server = server();
    let completions = client(&server).completions().expect("an eventfd");
    let value = vec![b'v'; 8 << 20];
    completions
        .ask(&[b"SET", &b"k"[..], &value], 1)
        .expect("begun");
    assert_eq!(taken(&completions, 1)[&1], Ok(b"+OK\r\n".to_vec()));
    completions.ask(&["GET", "k"], 2).expect("begun");
    let reply = taken(&completions, 1).remove(&2).expect("its outcome");
    let reply = reply.expect("a reply");
    assert!(reply.starts_with(b"$8388608\r\nvvv") && reply.len() == value.len() + 12);
}

/// Requests of completions that are dropped are taken back, and the client goes on.
#[test]
fn dropped_completions_leave_the_client_usable() {
    let server = server();
    let client = client(&server);
    let completions = client.completions().expect("an eventfd");
    for token in 0..100 {
        completions.ask(&["INCR", "n"], token).expect("begun");
    }
    drop(completions);
    assert_eq!(client.call(&["ECHO", "on"]).unwrap(), b"$2\r\non\r\n");
}

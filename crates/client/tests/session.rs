//! Sessions of a client before a real server.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use respool_client::{CallError, Client, OrderedSession};
use respool_engine::settings::{Address, PoolKind, PoolSettings, ServerSettings, Settings};
use respool_testkit::servers::{ServerProcess, any_server};
use respool_testkit::tasks::block_on;
use respool_testkit::time::wait_until;

const SOON: Duration = Duration::from_secs(20);

fn server() -> ServerProcess {
    ServerProcess::start::<&str>(&any_server(), &[]).expect("the server starts")
}

fn client_with(server: &ServerProcess, change: impl FnOnce(&mut Settings)) -> Client {
    let (host, port) = (server.address().ip().to_string(), server.address().port());
    let at = ServerSettings::at(Address::Tcp { host, port });
    let mut settings = Settings {
        pools: vec![PoolSettings::new("default", PoolKind::Single(at))],
        ..Settings::default()
    };
    change(&mut settings);
    Client::start(Arc::new(settings), Vec::new(), Arc::new(|_| {})).expect("the client starts")
}

fn client(server: &ServerProcess) -> Client {
    client_with(server, |_| {})
}

/// The reply, which must come soon.
fn received(session: &mut OrderedSession) -> Result<Vec<u8>, CallError> {
    let reply = session.receive_within(SOON)?;
    Ok(reply.expect("a reply comes soon"))
}

/// Requests that do not wait for each other run in their order, and so do their replies come.
#[test]
fn requests_stay_in_order_without_waiting() {
    let server = server();
    let mut session = client(&server).session();
    for number in 0..1_000_u32 {
        session
            .send(&["APPEND", "log", &format!("{number},")])
            .unwrap();
        session.send(&["GET", "log"]).unwrap();
        session.send(&["LPUSH", "log", "x"]).unwrap();
    }
    let mut log = String::new();
    for number in 0..1_000_u32 {
        log.push_str(&format!("{number},"));
        let length = format!(":{}\r\n", log.len());
        assert_eq!(session.receive().unwrap(), length.as_bytes());
        let value = format!("${}\r\n{log}\r\n", log.len());
        assert_eq!(session.receive().unwrap(), value.as_bytes());
        let error = session.receive().unwrap_err();
        assert!(matches!(&error, CallError::Server(text) if text.starts_with("WRONGTYPE")));
    }
}

/// A transaction that watches a key fails when another caller changes it.
#[test]
fn watched_keys_end_a_transaction() {
    let server = server();
    let client = client(&server);
    let mut session = client.session();
    for changes in [true, false] {
        assert_eq!(session.call(&["WATCH", "k"]).unwrap(), b"+OK\r\n");
        if changes {
            client.call(&["SET", "k", "other"]).unwrap();
        }
        assert_eq!(session.call(&["MULTI"]).unwrap(), b"+OK\r\n");
        assert_eq!(session.call(&["SET", "k", "own"]).unwrap(), b"+QUEUED\r\n");
        let expected: &[u8] = if changes {
            b"*-1\r\n"
        } else {
            b"*1\r\n+OK\r\n"
        };
        assert_eq!(session.call(&["EXEC"]).unwrap(), expected);
    }
    assert_eq!(client.call(&["GET", "k"]).unwrap(), b"$3\r\nown\r\n");
}

/// A session waits for a list, and other callers go on.
#[test]
fn blocking_command_waits_alone() {
    let server = server();
    let client = client(&server);
    let mut session = client.session();
    session.send(&["BLPOP", "list", "0"]).unwrap();
    assert_eq!(session.receive_within(Duration::from_millis(50)), Ok(None));
    for _ in 0..50 {
        client.call(&["INCR", "others"]).unwrap();
    }
    client.call(&["RPUSH", "list", "item"]).unwrap();
    let item = b"*2\r\n$4\r\nlist\r\n$4\r\nitem\r\n";
    assert_eq!(received(&mut session).unwrap(), item);
}

/// Messages are received between replies, in both protocols.
#[test]
fn messages_come_to_their_subscriber() {
    let server = server();
    let client = client(&server);
    for (protocol, kind) in [("2", '*'), ("3", '>')] {
        let mut session = client.session();
        session.call(&["HELLO", protocol]).unwrap();
        let confirmed = session.call(&["SUBSCRIBE", "news"]).unwrap();
        assert_eq!(
            confirmed,
            format!("{kind}3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n").as_bytes()
        );
        for number in 0..3 {
            client
                .call(&["PUBLISH", "news", &number.to_string()])
                .unwrap();
            let message = format!("{kind}3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$1\r\n{number}\r\n");
            assert_eq!(received(&mut session).unwrap(), message.as_bytes());
        }
    }
}

/// More bytes than a session holds are sent and received without a reader beside the sender.
#[test]
fn sender_keeps_replies_that_come_meanwhile() {
    let server = server();
    let mut session = client(&server).session();
    let value = "v".repeat(200_000);
    session.call(&["SET", "large", &value]).unwrap();
    for _ in 0..100 {
        session.send(&["GET", "large"]).unwrap();
        session.send(&["SET", "large", &value]).unwrap();
    }
    let expected = format!("${}\r\n{value}\r\n", value.len());
    for _ in 0..100 {
        assert!(received(&mut session).unwrap() == expected.as_bytes());
        assert_eq!(received(&mut session).unwrap(), b"+OK\r\n");
    }
}

/// A session that is dropped has sent its requests, and its server loses the client.
#[test]
fn dropped_session_has_sent_its_requests() {
    let server = server();
    let client = client(&server);
    let mut session = client.session();
    session.send(&["SELECT", "3"]).unwrap();
    session.send(&["SET", "k", "v"]).unwrap();
    session.send(&["SUBSCRIBE", "news"]).unwrap();
    drop(session);
    let mut other = client.session();
    other.call(&["SELECT", "3"]).unwrap();
    wait_until("the request has run", SOON, || {
        other.call(&["GET", "k"]) == Ok(b"$1\r\nv\r\n".to_vec())
    });
    wait_until("the subscription ends", SOON, || {
        client.call(&["PUBLISH", "news", "x"]) == Ok(b":0\r\n".to_vec())
    });
}

/// Requests that were sent are executed also if the client ends at once.
#[test]
fn last_session_has_sent_its_requests() {
    let server = server();
    for number in 0..30 {
        let mut session = client(&server).session();
        session
            .send(&["RPUSH", "list", &number.to_string()])
            .unwrap();
        drop(session);
    }
    let length = client(&server).call(&["LLEN", "list"]);
    assert_eq!(length.unwrap(), b":30\r\n");
}

/// Withdrawn requests have replies or the error that tells their fate.
#[test]
fn withdrawal_tells_the_truth() {
    let server = server();
    let client = client_with(&server, |settings| {
        settings.timeouts.outage_hold_ms = 60_000;
        settings.timeouts.request_ms = 0;
        settings.timeouts.link_stall_ms = 60_000;
    });
    let mut session = client.session();
    session.call(&["SET", "k", "v"]).unwrap();
    session.withdraw();
    let error = session.receive().unwrap_err();
    assert!(matches!(error, CallError::NotSent(_)), "{error:?}");

    let mut session = client.session();
    session.call(&["PING"]).unwrap();
    server.stop();
    session.send(&["INCR", "k2"]).unwrap();
    assert_eq!(session.receive_within(Duration::from_millis(100)), Ok(None));
    session.withdraw();
    let error = session.receive().unwrap_err();
    assert!(matches!(error, CallError::Unknown(_)), "{error:?}");
    server.cont();
    assert_eq!(client.call(&["GET", "k"]).unwrap(), b"$1\r\nv\r\n");
}

/// A reply that has come before the withdrawal is received: its request was executed.
#[test]
fn replies_before_a_withdrawal_are_received() {
    let server = server();
    let client = client_with(&server, |settings| {
        settings.timeouts.outage_hold_ms = 60_000;
        settings.timeouts.request_ms = 0;
    });
    let mut session = client.session();
    session.send(&["INCR", "a"]).unwrap();
    wait_until("the request has run", SOON, || {
        client.call(&["GET", "a"]) == Ok(b"$1\r\n1\r\n".to_vec())
    });
    server.kill9();
    wait_until("the server is away", SOON, || {
        let quick = client.within(Duration::from_millis(50));
        quick.call(&["PING"]).is_err()
    });
    session.send(&["INCR", "b"]).unwrap();
    session.withdraw();
    assert_eq!(session.receive().unwrap(), b":1\r\n");
    let error = session.receive().unwrap_err();
    assert!(matches!(error, CallError::NotSent(_)), "{error:?}");
}

/// The number of sessions that the engine has.
fn sessions(client: &Client) -> usize {
    let info = client.call(&["INFO", "respool"]).expect("INFO is answered");
    let info = String::from_utf8(info).expect("INFO is a text");
    let mut lines = info.lines();
    let count = lines.find_map(|line| line.strip_prefix("respool_sessions:"));
    let count = count.and_then(|count| count.parse().ok());
    count.expect("INFO has the number of sessions")
}

/// A session that is dropped with replies of any size ends.
#[test]
fn session_with_unread_replies_ends() {
    let server = server();
    let client = client(&server);
    let value = "v".repeat(8_000_000);
    client.call(&["SET", "large", &value]).unwrap();
    for reads in [false, true] {
        let mut session = client.session();
        session.send(&["GET", "large"]).unwrap();
        session.send(&["INCR", "behind"]).unwrap();
        // The pipe is full by then.
        thread::sleep(Duration::from_millis(200));
        if reads {
            let _: Result<_, CallError> = session.receive_within(Duration::ZERO);
        }
        drop(session);
        wait_until("the session ends", SOON, || sessions(&client) == 1);
    }
    assert_eq!(client.call(&["GET", "behind"]).unwrap(), b"$1\r\n2\r\n");
}

/// A session may take the place of a call that has ended.
#[test]
fn unused_sessions_of_calls_are_taken() {
    let server = server();
    let client = client_with(&server, |settings| settings.limits.sessions_max = 1);
    client.call(&["PING"]).unwrap();
    let mut session = client.session();
    session.call(&["SELECT", "1"]).unwrap();
    let limited = client.within(Duration::from_millis(50));
    let error = limited.call(&["PING"]).unwrap_err();
    assert!(matches!(error, CallError::NotSent(_)), "{error:?}");
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.call(&["PING"]));
        thread::sleep(Duration::from_millis(20));
        drop(session);
        assert_eq!(waits.join().unwrap().unwrap(), b"+PONG\r\n");
    });
}

/// A session takes the place of one that calls have left unused.
#[test]
fn session_takes_the_place_of_an_unused_one() {
    let server = server();
    let client = client_with(&server, |settings| settings.limits.sessions_max = 1);
    let mut session = client.session();
    client.call(&["PING"]).unwrap();
    session.call(&["SELECT", "1"]).unwrap();
}

/// A request that comes after the end of its session was not executed.
#[test]
fn request_after_the_end_is_not_sent() {
    let server = server();
    let client = client_with(&server, |settings| settings.timeouts.session_idle_ms = 100);
    let mut session = client.session();
    session.call(&["PING"]).unwrap();
    client.call(&["PING"]).unwrap();
    thread::sleep(Duration::from_millis(1_500));
    let error = session.call(&["INCR", "k"]).unwrap_err();
    assert!(matches!(error, CallError::NotSent(_)), "{error:?}");
    client
        .call(&["PING"])
        .expect("a call takes no session that has ended");
}

/// The error of a session that was closed for a rule names the rule.
#[test]
fn closed_session_says_why() {
    let server = server();
    let client = client_with(&server, |settings| settings.timeouts.session_idle_ms = 100);
    let mut session = client.session();
    session.call(&["PING"]).unwrap();
    thread::sleep(Duration::from_millis(1_500));
    let error = session.call(&["PING"]).unwrap_err();
    let CallError::NotSent(text) = &error else {
        panic!("{error:?}");
    };
    assert!(text.contains("session-idle-ms: idle for 100 ms"), "{text}");
}

/// A blocking command that finds no server was not sent, and its error names the failure.
#[test]
fn blocking_command_without_a_server_is_not_sent() {
    let server = server();
    let address = server.address();
    let client = client(&server);
    drop(server);
    let error = client.call(&["BLPOP", "list", "1"]).unwrap_err();
    let CallError::NotSent(text) = &error else {
        panic!("{error:?}");
    };
    let cause = format!("no connection to {address}: Connection refused");
    assert!(text.contains(&cause), "{text}");
}

/// A session that the server's rules have closed takes no more requests, and says so.
#[test]
fn session_is_over_after_quit() {
    let server = server();
    let mut session = client(&server).session();
    assert_eq!(session.call(&["QUIT"]).unwrap(), b"+OK\r\n");
    let error = session.receive().unwrap_err();
    assert!(matches!(error, CallError::NotSent(_)), "{error:?}");
    let error = session.send(&["SET", "k", "v"]).unwrap_err();
    assert!(matches!(error, CallError::NotSent(_)), "{error:?}");
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A task that sends more than the session holds waits without blocking its thread.
#[test]
fn task_sends_more_than_the_session_holds() {
    let server = server();
    let client = client(&server);
    let mut session = client.session();
    let value = "v".repeat(3 << 20);
    block_on(async {
        for _ in 0..5 {
            session.send_async(&["SET", "k", &value]).await.unwrap();
            session.send_async(&["STRLEN", "k"]).await.unwrap();
        }
        for _ in 0..5 {
            for expected in ["+OK\r\n", ":3145728\r\n"] {
                let reply = poll_fn(|context| session.poll_receive(context)).await;
                assert_eq!(reply.unwrap(), expected.as_bytes());
            }
        }
    });
}

/// The rest of a request cannot be sent later, so its session ends.
#[test]
fn future_dropped_in_the_middle_of_a_request_ends_the_session() {
    let server = server();
    let client = client(&server);
    let mut session = client.session();
    session.call(&["PING"]).unwrap();
    server.stop();
    let value = "v".repeat(64 << 20);
    let mut context = Context::from_waker(Waker::noop());
    let request = ["SET", "k", &value];
    let mut sending = Box::pin(session.send_async(&request));
    for _ in 0..50 {
        assert!(sending.as_mut().poll(&mut context).is_pending());
        thread::sleep(Duration::from_millis(2));
    }
    drop(sending);
    server.cont();
    let error = session.call(&["PING"]).unwrap_err();
    assert!(matches!(error, CallError::NotSent(_)), "{error:?}");
    assert_eq!(client.call(&["GET", "k"]).unwrap(), b"$-1\r\n");
}

/// A task is woken for each message.
#[test]
fn task_is_woken_for_messages() {
    let server = server();
    let client = client(&server);
    let mut session = client.session();
    session.call(&["SUBSCRIBE", "news"]).unwrap();
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut context = Context::from_waker(&waker);
    for _ in 0..20 {
        assert!(session.poll_receive(&mut context).is_pending());
        client.call(&["PUBLISH", "news", "x"]).unwrap();
        let since = Instant::now();
        loop {
            match session.poll_receive(&mut context) {
                Poll::Ready(message) => {
                    assert!(message.unwrap().ends_with(b"$1\r\nx\r\n"));
                    break;
                }
                Poll::Pending => thread::park_timeout(SOON),
            }
            assert!(since.elapsed() < SOON, "no message has come");
        }
    }
}

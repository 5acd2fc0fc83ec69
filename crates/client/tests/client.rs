//! A client before a real server.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use respool_client::{CallError, Client};
use respool_engine::settings::{Address, PoolKind, PoolSettings, ServerSettings, Settings};
use respool_testkit::servers::{ServerProcess, any_server};
use respool_testkit::tasks::block_on;

const PATIENCE: Duration = Duration::from_secs(20);

fn server() -> ServerProcess {
    ServerProcess::start::<&str>(&any_server(), &[]).expect("the server starts")
}

fn settings_for(server: SocketAddr) -> Settings {
    let server = ServerSettings::at(Address::Tcp {
        host: server.ip().to_string(),
        port: server.port(),
    });
    Settings {
        pools: vec![PoolSettings::new("default", PoolKind::Single(server))],
        ..Settings::default()
    }
}

fn client_with(settings: Settings) -> Client {
    Client::start(Arc::new(settings), Vec::new(), Arc::new(|_| {})).expect("the client starts")
}

fn client(server: &ServerProcess) -> Client {
    client_with(settings_for(server.address()))
}

/// Settings under which requests wait for a server without an end.
fn patient(server: &ServerProcess) -> Settings {
    let mut settings = settings_for(server.address());
    settings.timeouts.outage_hold_ms = 60_000;
    settings.timeouts.request_ms = 0;
    settings.timeouts.link_stall_ms = 60_000;
    settings
}

#[test]
fn each_thread_gets_its_own_replies() {
    let server = server();
    let client = client(&server);
    thread::scope(|scope| {
        for index in 0..100 {
            let client = client.clone();
            scope.spawn(move || {
                let key = format!("counter-{index}");
                for count in 1..=50 {
                    let reply = client.call(&["INCR", &key]).expect("a reply");
                    assert_eq!(reply, format!(":{count}\r\n").into_bytes());
                }
            });
        }
    });
}

/// Calls one after the other use one session. Calls at the same time have one each.
#[test]
fn sessions_are_used_again() {
    let server = server();
    let client = client(&server);
    for _ in 0..50 {
        client.call(&["PING"]).expect("a reply");
    }
    let list = client.call(&["CLIENT", "LIST"]).expect("a reply");
    let list = String::from_utf8_lossy(&list).into_owned();
    assert_eq!(list.matches("addr=caller ").count(), 1, "{list}");
}

#[test]
fn errors_tell_the_outcome() {
    let server = server();
    let client = client(&server);
    client.call(&["SET", "text", "a"]).expect("a reply");
    let error = client.call(&["INCR", "text"]).expect_err("no number");
    let CallError::Server(text) = error else {
        panic!("{error:?}");
    };
    assert!(text.starts_with("ERR value is not an integer"), "{text}");
    let error = client.call(&["NOSUCH", "x"]).expect_err("no command");
    // The text is that of the server, with its space at the end.
    assert!(error.to_string().ends_with("'x' "), "{error:?}");
    for args in [
        &["SELECT", "1"][..],
        &["MULTI"],
        &["SUBSCRIBE", "c"],
        &["AUTH", "p"],
        &[],
    ] {
        let error = client.call(args).expect_err("refused");
        assert!(
            matches!(error, CallError::Invalid(_)),
            "{args:?}: {error:?}"
        );
    }
    assert_eq!(
        client.call(&["ECHO", "on"]).expect("a reply"),
        b"$2\r\non\r\n"
    );
}

/// A call that is out of time says whether its request may have been executed.
#[test]
fn call_out_of_time_tells_the_truth() {
    let mut server = server();
    let client = client_with(patient(&server));
    client.call(&["SET", "sent", "1"]).expect("a reply");
    let limited = client.within(Duration::from_millis(100));
    assert_eq!(
        limited.call(&["GET", "sent"]).expect("a reply"),
        b"$1\r\n1\r\n"
    );
    server.stop();
    let error = limited.call(&["INCR", "sent"]).expect_err("no reply");
    assert!(matches!(error, CallError::Unknown(_)), "{error:?}");
    server.cont();
    server.kill9();
    let begun = Instant::now();
    let error = loop {
        // Until the loss is noticed, a request may be written to the dead connection.
        let error = limited.call(&["INCR", "unsent"]).expect_err("no reply");
        if matches!(error, CallError::NotSent(_)) {
            break error;
        }
        assert!(begun.elapsed() < PATIENCE, "{error:?}");
    };
    assert!(error.to_string().contains("was not executed"), "{error}");
    server.restart().expect("the server starts again");
    assert_eq!(
        client.call(&["EXISTS", "unsent"]).expect("a reply"),
        b":0\r\n"
    );
}

/// A caller that stops waiting gets the truth, and a call that needs no wait is not asked for one.
#[test]
fn call_of_a_stopped_caller_tells_the_truth() {
    let server = server();
    let client = client_with(patient(&server));
    let incr = b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n".to_vec();
    let reply = client.call_encoded_while(incr.clone(), None, || true);
    assert_eq!(reply.expect("a reply"), b":1\r\n");
    server.stop();
    let mut looks = 0;
    let goes_on = || {
        looks += 1;
        looks < 3
    };
    let error = client.call_encoded_while(incr.clone(), None, goes_on);
    let error = error.expect_err("no reply");
    assert!(matches!(error, CallError::Unknown(_)), "{error:?}");
    assert_eq!(looks, 3);
    // The limit holds too.
    let limit = Some(Duration::from_millis(20));
    let error = client.call_encoded_while(incr, limit, || true);
    assert!(error.is_err());
    server.cont();
}

#[test]
fn future_ends_with_the_reply() {
    let server = server();
    let client = client(&server);
    for count in 1..=200 {
        let reply = block_on(client.ask(&["INCR", "k"])).expect("a reply");
        assert_eq!(reply, format!(":{count}\r\n").into_bytes());
    }
    let error = block_on(client.ask(&["WATCH", "k"])).expect_err("refused");
    assert!(matches!(error, CallError::Invalid(_)), "{error:?}");
}

/// The request of a dropped future that has not left is never executed.
#[test]
fn dropped_future_takes_its_request_back() {
    let mut server = server();
    let client = client_with(patient(&server));
    client.call(&["PING"]).expect("a reply");
    server.kill9();
    let limited = client.within(Duration::from_millis(50));
    let begun = Instant::now();
    while !matches!(limited.call(&["INCR", "probe"]), Err(CallError::NotSent(_))) {
        assert!(begun.elapsed() < PATIENCE, "the loss is not noticed");
    }
    let mut future = Box::pin(client.ask(&["INCR", "dropped"]));
    let mut context = Context::from_waker(Waker::noop());
    assert!(future.as_mut().poll(&mut context).is_pending());
    drop(future);
    let kept = thread::spawn({
        let client = client.clone();
        move || client.call(&["INCR", "kept"])
    });
    thread::sleep(Duration::from_millis(50));
    server.restart().expect("the server starts again");
    assert_eq!(kept.join().expect("it ends").expect("a reply"), b":1\r\n");
    assert_eq!(
        client.call(&["EXISTS", "dropped"]).expect("a reply"),
        b":0\r\n"
    );
}

/// A call that waits at the server holds up no other one.
#[test]
fn waiting_call_holds_up_no_other() {
    let server = server();
    let client = client(&server);
    let waiter = thread::spawn({
        let client = client.clone();
        move || client.call(&["BLPOP", "list", "0"])
    });
    let begun = Instant::now();
    loop {
        let info = client.call(&["INFO", "clients"]).expect("a reply");
        if String::from_utf8_lossy(&info).contains("blocked_clients:1") {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "BLPOP has not begun");
    }
    client.call(&["RPUSH", "list", "x"]).expect("a reply");
    let popped = waiter.join().expect("it ends").expect("a reply");
    assert_eq!(popped, b"*2\r\n$4\r\nlist\r\n$1\r\nx\r\n");
}

#[test]
fn large_value_is_read_back() {
    let server = server();
    let client = client(&server);
    let value: Vec<u8> = (0..3_000_000u32).map(|at| (at % 253) as u8).collect();
    client
        .call(&[&b"SET"[..], b"large", &value])
        .expect("a reply");
    let reply = client.call(&["GET", "large"]).expect("a reply");
    assert_eq!(
        &reply[reply.len() - value.len() - 2..reply.len() - 2],
        &value[..]
    );
}

/// The end of the last client ends its connections and its thread.
#[test]
fn last_client_ends_its_connections() {
    let server = server();
    let observer = client(&server);
    let count = || {
        let reply = observer.call(&["INFO", "clients"]).expect("a reply");
        let text = String::from_utf8_lossy(&reply).into_owned();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("connected_clients:"));
        line.and_then(|count| count.parse::<u64>().ok())
            .expect("INFO has the field")
    };
    let before = count();
    let client = client_with(settings_for(server.address()));
    client.call(&["PING"]).expect("a reply");
    assert!(count() > before);
    drop(client);
    let begun = Instant::now();
    while count() > before {
        assert!(begun.elapsed() < PATIENCE, "connections stay");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Calls beyond `sessions-max` wait for others to end, in threads and in tasks.
#[test]
fn calls_wait_for_a_free_session() {
    let server = server();
    let mut settings = settings_for(server.address());
    settings.limits.sessions_max = 4;
    let client = client_with(settings);
    thread::scope(|scope| {
        for _ in 0..50 {
            let client = client.clone();
            scope.spawn(move || {
                for _ in 0..20 {
                    client.call(&["INCR", "n"]).expect("a reply");
                }
            });
        }
    });
    let tasks: Vec<_> = (0..100).map(|_| client.ask(&["INCR", "n"])).collect();
    for task in tasks {
        block_on(task).expect("a reply");
    }
    assert_eq!(client.call(&["GET", "n"]).unwrap(), b"$4\r\n1100\r\n");
}

/// A call whose session is closed for its idle time in that moment takes another one.
#[test]
fn idle_sessions_fail_no_call() {
    let server = server();
    let mut settings = settings_for(server.address());
    settings.timeouts.session_idle_ms = 1;
    let client = client_with(settings);
    let deadline = Instant::now() + Duration::from_secs(3);
    let calls = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|| {
                while Instant::now() < deadline {
                    client.call(&["INCR", "n"]).expect("a reply");
                    let count = calls.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(Duration::from_micros(count % 50 * 100));
                }
            });
        }
    });
    let count = calls.into_inner().to_string();
    let reply = client.call(&["GET", "n"]).unwrap();
    assert_eq!(
        reply,
        format!("${}\r\n{count}\r\n", count.len()).into_bytes()
    );
}

//! Sessions of callers in the same process, before a real server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use respool_driver::{CallerEnd, CallerSession, EndReason, ListenAddress, Running, Setup, start};
use respool_engine::Fate;
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

/// One worker for callers, with a listener for clients.
fn start_worker(settings: Settings) -> Running {
    let setup = Setup {
        listeners: vec![ListenAddress {
            address: Address::Tcp {
                host: "127.0.0.1".to_owned(),
                port: 0,
            },
            pool: 0,
            tls: None,
        }],
        pool_tls: Vec::new(),
        socket_access: Default::default(),
        workers: 1,
        settings: Arc::new(settings),
        reports_servers: false,
        serves_callers: true,
    };
    start(setup, Arc::new(|_| {})).expect("the worker starts")
}

/// Starts a worker for at most this many sessions.
fn start_worker_for(sessions_max: u32, server: &ServerProcess) -> Running {
    let mut settings = settings_for(server.address());
    settings.limits.sessions_max = sessions_max;
    start_worker(settings)
}

fn open(running: &Running) -> CallerSession {
    running.callers().expect("there may be callers").open(0)
}

fn request(args: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        bytes.extend_from_slice(arg);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Writes a request, and reads until the reply has this length.
fn ask(session: &CallerSession, args: &[&[u8]], reply_len: usize) -> Vec<u8> {
    exchange(session, &request(args), reply_len)
}

/// Reads until there are this many bytes of replies.
fn read(session: &CallerSession, reply_len: usize) -> Vec<u8> {
    exchange(session, b"", reply_len)
}

fn exchange(session: &CallerSession, requests: &[u8], reply_len: usize) -> Vec<u8> {
    let deadline = Some(Instant::now() + PATIENCE);
    let mut reply = Vec::new();
    let mut rest = requests;
    while reply.len() < reply_len {
        rest = &rest[session.write(rest)..];
        if !session.read(&mut reply) {
            assert_eq!(session.end(), None);
            assert!(session.wait(deadline), "{} bytes of the reply", reply.len());
        }
    }
    assert_eq!(
        reply.len(),
        reply_len,
        "{:?}",
        String::from_utf8_lossy(&reply)
    );
    reply
}

/// Waits for the end of a session.
fn end_of(session: &CallerSession) -> CallerEnd {
    let deadline = Some(Instant::now() + PATIENCE);
    loop {
        if let Some(end) = session.end() {
            return end;
        }
        session.read(&mut Vec::new());
        assert!(session.wait(deadline), "the session has not ended");
    }
}

fn wait_until(event: &str, mut has_happened: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !has_happened() {
        assert!(begun.elapsed() < PATIENCE, "not in time: {event}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn withdrawn(fate: Option<Fate>) -> CallerEnd {
    CallerEnd {
        reason: EndReason::Withdrawn,
        fate,
    }
}

/// Each of many callers gets its own replies in order, and few batches carry them.
#[test]
fn many_callers_get_their_own_replies() {
    const CALLERS: usize = 50;
    const REQUESTS: usize = 200;
    let server = server();
    let running = start_worker(settings_for(server.address()));
    thread::scope(|scope| {
        for index in 0..CALLERS {
            let session = open(&running);
            scope.spawn(move || {
                let key = format!("counter-{index}");
                for count in 1..=REQUESTS {
                    let reply = format!(":{count}\r\n");
                    let got = ask(&session, &[b"INCR", key.as_bytes()], reply.len());
                    assert_eq!(String::from_utf8_lossy(&got), reply);
                }
            });
        }
    });
    wait_until("the report has all requests", || {
        let counters = &running.counters()[0];
        counters.requests == (CALLERS * REQUESTS) as u64 && counters.sessions == 0
    });
    let batches = running.counters()[0].batches;
    assert!(
        batches < (CALLERS * REQUESTS / 2) as u64,
        "{batches} batches"
    );
    assert_eq!(running.join(Duration::ZERO), 0);
}

/// A value that is larger than a pipe passes in both directions.
#[test]
fn large_values_pass_in_both_directions() {
    let server = server();
    let running = start_worker(settings_for(server.address()));
    let (session, other) = (open(&running), open(&running));
    let value: Vec<u8> = (0..5_000_000u32).map(|at| (at % 251) as u8).collect();
    assert_eq!(ask(&session, &[b"SET", b"large", &value], 5), b"+OK\r\n");
    let head = format!("${}\r\n", value.len());
    let reply = ask(&session, &[b"GET", b"large"], head.len() + value.len() + 2);
    assert!(reply[head.len()..].starts_with(&value));
    assert_eq!(ask(&other, &[b"PING"], 7), b"+PONG\r\n");
    // A caller that reads nothing delays no other one.
    assert_eq!(session.write(&request(&[b"GET", b"large"])), 24);
    for _ in 0..100 {
        assert_eq!(ask(&other, &[b"PING"], 7), b"+PONG\r\n");
    }
    running.join(Duration::ZERO);
}

#[test]
fn withdrawn_requests_have_their_fate() {
    let mut server = server();
    let mut settings = settings_for(server.address());
    settings.timeouts.outage_hold_ms = 60_000;
    settings.timeouts.request_ms = 0;
    settings.timeouts.link_stall_ms = 60_000;
    let running = start_worker(settings);
    let idle = open(&running);
    idle.withdraw();
    assert_eq!(end_of(&idle), withdrawn(None));
    let sent = open(&running);
    assert_eq!(ask(&sent, &[b"PING"], 7), b"+PONG\r\n");
    server.stop();
    wait_until("the server stands still", || server.is_frozen());
    sent.write(&request(&[b"INCR", b"k"]));
    assert!(!sent.wait(Some(Instant::now() + Duration::from_millis(50))));
    sent.withdraw();
    assert_eq!(end_of(&sent), withdrawn(Some(Fate::Unknown)));
    server.cont();
    server.kill9();
    let held = open(&running);
    wait_until("the link is down", || running.counters()[0].links_lost > 0);
    held.write(&request(&[b"INCR", b"l"]));
    assert!(!held.wait(Some(Instant::now() + Duration::from_millis(50))));
    held.withdraw();
    assert_eq!(end_of(&held), withdrawn(Some(Fate::NotSent)));
    server.restart().expect("the server starts again");
    let last = open(&running);
    assert_eq!(ask(&last, &[b"EXISTS", b"l"], 4), b":0\r\n");
    running.join(Duration::ZERO);
}

/// A caller beyond `sessions_max` waits for the place of another one.
#[test]
fn callers_wait_for_a_place() {
    let server = server();
    let running = start_worker_for(2, &server);
    let (first, second) = (open(&running), open(&running));
    for session in [&first, &second] {
        assert_eq!(ask(session, &[b"PING"], 7), b"+PONG\r\n");
    }
    let (third, fourth, gives_up) = (open(&running), open(&running), open(&running));
    for session in [&third, &fourth, &gives_up] {
        session.write(&request(&[b"INCR", b"n"]));
        assert!(!session.wait(Some(Instant::now() + Duration::from_millis(30))));
        // More bytes do not make it wait twice.
        session.write(&request(&[b"INCR", b"n"]));
    }
    gives_up.withdraw();
    assert_eq!(end_of(&gives_up), withdrawn(Some(Fate::NotSent)));
    drop(first);
    assert_eq!(read(&third, 8), b":1\r\n:2\r\n");
    drop(third);
    assert_eq!(read(&fourth, 8), b":3\r\n:4\r\n");
    running.join(Duration::ZERO);
}

/// A session that no caller uses ends if another one waits for its place.
#[test]
fn unused_session_gives_its_place() {
    let server = server();
    let running = start_worker_for(1, &server);
    // It is laid down before another one waits.
    let (first, second) = (open(&running), open(&running));
    assert_eq!(ask(&first, &[b"PING"], 7), b"+PONG\r\n");
    assert!(first.lay_down());
    assert_eq!(ask(&second, &[b"PING"], 7), b"+PONG\r\n");
    assert!(!first.take_up(), "it has ended");
    // A session that was taken up keeps its place.
    assert!(second.lay_down());
    assert!(second.take_up());
    let third = open(&running);
    third.write(&request(&[b"PING"]));
    assert!(!third.wait(Some(Instant::now() + Duration::from_millis(30))));
    assert_eq!(ask(&second, &[b"ECHO", b"on"], 8), b"$2\r\non\r\n");
    // It is laid down while another one waits.
    assert!(!second.lay_down());
    assert_eq!(read(&third, 7), b"+PONG\r\n");
    running.join(Duration::ZERO);
}

/// Callers that wait for a place at the end of the worker were not served, and are told so.
#[test]
fn end_refuses_callers_without_a_place() {
    let server = server();
    let running = start_worker_for(1, &server);
    let (first, second) = (open(&running), open(&running));
    assert_eq!(ask(&first, &[b"PING"], 7), b"+PONG\r\n");
    second.write(&request(&[b"PING"]));
    assert!(!second.wait(Some(Instant::now() + Duration::from_millis(30))));
    running.drain();
    let end = end_of(&second);
    assert_eq!(end.reason, EndReason::WorkerEnded);
    assert_eq!(end.fate, Some(Fate::NotSent));
    running.join(Duration::ZERO);
}

/// A session that its own command ends has all its replies. CLIENT KILL ends it without them.
#[test]
fn engine_may_end_a_session() {
    let server = server();
    let running = start_worker(settings_for(server.address()));
    let session = open(&running);
    session.write(&request(&[b"QUIT"]));
    let mut reply = Vec::new();
    wait_until("QUIT is answered", || session.read(&mut reply));
    assert_eq!(reply, b"+OK\r\n");
    let closed = CallerEnd {
        reason: EndReason::Closed,
        fate: None,
    };
    assert_eq!(end_of(&session), closed);
    assert_eq!(session.write(b"late"), 0, "an ended session takes nothing");
    let waiting = open(&running);
    let id = ask(&waiting, &[b"CLIENT", b"ID"], 4);
    waiting.write(&request(&[b"BLPOP", b"nothing", b"0"]));
    let killer = open(&running);
    let id = String::from_utf8_lossy(&id[1..2]).into_owned();
    wait_until("the blocked caller is killed", || {
        let killed = ask(&killer, &[b"CLIENT", b"KILL", b"ID", id.as_bytes()], 4);
        killed == b":1\r\n"
    });
    assert_eq!(end_of(&waiting).reason, EndReason::Closed);
    assert_eq!(end_of(&waiting).fate, Some(Fate::Unknown));
    running.join(Duration::ZERO);
}

/// A worker that ends leaves no caller waiting, and tells the truth about its request.
#[test]
fn end_of_the_worker_ends_its_callers() {
    let server = server();
    let running = start_worker(settings_for(server.address()));
    let (blocked, idle) = (open(&running), open(&running));
    let callers = running.callers().expect("there may be callers");
    assert_eq!(ask(&idle, &[b"PING"], 7), b"+PONG\r\n");
    blocked.write(&request(&[b"BLPOP", b"nothing", b"0"]));
    wait_until("BLPOP has begun", || running.counters()[0].requests == 2);
    let waiter = thread::spawn(move || end_of(&blocked));
    running.join(Duration::ZERO);
    let ended = |fate| CallerEnd {
        reason: EndReason::WorkerEnded,
        fate,
    };
    assert_eq!(waiter.join().expect("it ends"), ended(Some(Fate::Unknown)));
    assert_eq!(end_of(&idle), ended(None));
    let late = callers.open(0);
    late.write(&request(&[b"PING"]));
    assert_eq!(end_of(&late), ended(Some(Fate::NotSent)));
}

/// A drain answers the requests that have come, and takes no new caller.
#[test]
fn drain_answers_callers() {
    let server = server();
    let running = start_worker(settings_for(server.address()));
    let session = open(&running);
    assert_eq!(ask(&session, &[b"SET", b"k", b"v"], 5), b"+OK\r\n");
    session.write(&request(&[b"GET", b"k"]));
    running.drain();
    let mut reply = Vec::new();
    while session.end().is_none() {
        session.read(&mut reply);
        assert!(session.wait(Some(Instant::now() + PATIENCE)));
    }
    session.read(&mut reply);
    assert_eq!(reply, b"$1\r\nv\r\n");
    let late = open(&running);
    late.write(&request(&[b"PING"]));
    assert_eq!(end_of(&late).fate, Some(Fate::NotSent));
    assert_eq!(running.join(PATIENCE), 0);
}

#[test]
fn task_is_woken() {
    let server = server();
    let running = start_worker(settings_for(server.address()));
    let session = open(&running);
    let mut reply = Vec::new();
    for _ in 0..100 {
        session.write(&request(&[b"PING"]));
        block_on(std::future::poll_fn(|context| session.poll(context)));
        assert!(session.read(&mut reply));
        assert_eq!(std::mem::take(&mut reply), b"+PONG\r\n");
    }
    running.join(Duration::ZERO);
}

/// Callers and clients with sockets that come and go in one worker get their own replies.
#[test]
fn callers_and_clients_keep_apart() {
    use std::io::{Read, Write};
    let server = server();
    let running = start_worker(settings_for(server.address()));
    let [Address::Tcp { port, .. }] = &running.addresses()[..] else {
        panic!("one listener");
    };
    let port = *port;
    thread::scope(|scope| {
        for index in 0..4 {
            let callers = running.callers().expect("there may be callers");
            scope.spawn(move || {
                for round in 0..100 {
                    let session = callers.open(0);
                    let word = format!("caller-{index}-{round:03}");
                    let got = ask(&session, &[b"ECHO", word.as_bytes()], word.len() + 7);
                    assert!(String::from_utf8_lossy(&got).contains(&word), "{got:?}");
                }
            });
            scope.spawn(move || {
                for round in 0..100 {
                    let mut client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
                    let word = format!("client-{index}-{round:03}");
                    client
                        .write_all(&request(&[b"ECHO", word.as_bytes()]))
                        .unwrap();
                    let mut got = vec![0; word.len() + 7];
                    client.read_exact(&mut got).unwrap();
                    assert!(String::from_utf8_lossy(&got).contains(&word), "{got:?}");
                }
            });
        }
    });
    running.join(Duration::ZERO);
}

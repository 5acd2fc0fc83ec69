//! Sessions as streams of bytes, before a real server.

use std::io::ErrorKind;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use respool_client::{CallError, Client, SessionStream};
use respool_testkit::servers::{ServerProcess, any_server};

const SOON: Duration = Duration::from_secs(20);

fn server() -> ServerProcess {
    ServerProcess::start::<&str>(&any_server(), &[]).expect("the server starts")
}

fn client(server: &ServerProcess) -> Client {
    Client::open(&format!("redis://{}", server.address())).expect("the client starts")
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + SOON)
}

/// Reads exactly these bytes.
fn expect(stream: &SessionStream, expected: &[u8]) {
    let mut bytes = vec![0; expected.len()];
    let mut count = 0;
    while count < bytes.len() {
        let read = stream.read(&mut bytes[count..], soon()).expect("bytes");
        assert_ne!(read, 0, "the stream has ended: {:?}", stream.outcome());
        count += read;
    }
    assert_eq!(
        String::from_utf8_lossy(&bytes),
        String::from_utf8_lossy(expected)
    );
}

#[test]
fn stream_is_a_connection() {
    let server = server();
    let client = client(&server);
    let stream = client.stream();
    stream
        .write_all(b"PING\r\nSELECT 3\r\nSET k db3\r\n", soon())
        .unwrap();
    expect(&stream, b"+PONG\r\n+OK\r\n+OK\r\n");
    stream
        .write_all(b"MULTI\r\nGET k\r\nEXEC\r\n", soon())
        .unwrap();
    expect(&stream, b"+OK\r\n+QUEUED\r\n*1\r\n$3\r\ndb3\r\n");
    // The database of the stream is not that of calls.
    assert_eq!(client.call(&["GET", "k"]).unwrap(), b"$-1\r\n");
}

/// A pipeline whose replies are read at its end passes, as on a connection to a server.
#[test]
fn pipeline_is_written_before_its_replies_are_read() {
    let server = server();
    let client = client(&server);
    let value = vec![b'v'; 10_000];
    client.call(&[b"SET", &b"k"[..], &value]).unwrap();
    let stream = client.stream();
    const COUNT: usize = 3_000;
    stream
        .write_all(&b"GET k\r\n".repeat(COUNT), soon())
        .unwrap();
    let mut reply = b"$10000\r\n".to_vec();
    reply.extend_from_slice(&value);
    reply.extend_from_slice(b"\r\n");
    for _ in 0..COUNT {
        expect(&stream, &reply);
    }
}

#[test]
fn read_ends_at_its_deadline_and_goes_on() {
    let server = server();
    let client = client(&server);
    let stream = client.stream();
    stream.write_all(b"BLPOP list 0\r\n", soon()).unwrap();
    let begun = Instant::now();
    let limit = Duration::from_millis(30);
    let error = stream.read(&mut [0; 9], Some(begun + limit)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(begun.elapsed() >= limit);
    assert!(!stream.is_readable());
    client.call(&["RPUSH", "list", "x"]).unwrap();
    expect(&stream, b"*2\r\n$4\r\nlist\r\n$1\r\nx\r\n");
}

/// A subscriber writes in one thread while another one reads, and closing wakes the reader.
#[test]
fn one_thread_writes_while_another_reads() {
    let server = server();
    let client = client(&server);
    let stream = client.stream();
    stream.write_all(b"SUBSCRIBE a\r\n", soon()).unwrap();
    expect(&stream, b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n");
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            expect(&stream, b"*3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n");
            expect(&stream, b"*3\r\n$7\r\nmessage\r\n$1\r\nb\r\n$2\r\nhi\r\n");
            stream.read(&mut [0; 9], soon())
        });
        thread::sleep(Duration::from_millis(20));
        stream.write_all(b"SUBSCRIBE b\r\n", soon()).unwrap();
        let deadline = Instant::now() + SOON;
        while client.call(&["PUBLISH", "b", "hi"]).unwrap() != b":1\r\n" {
            assert!(Instant::now() < deadline, "there is no subscriber");
        }
        thread::sleep(Duration::from_millis(20));
        stream.close();
        assert_eq!(reader.join().unwrap().expect("the end"), 0);
    });
    let error = stream.write_all(b"PING\r\n", soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    assert_eq!(stream.read(&mut [0; 9], soon()).unwrap(), 0);
}

/// Requests of a stream that is closed are executed, as those of a closed connection.
#[test]
fn closed_stream_has_sent_its_requests() {
    let server = server();
    let client = client(&server);
    let stream = client.stream();
    stream.write_all(b"SET k v\r\n", soon()).unwrap();
    drop(stream);
    let deadline = Instant::now() + SOON;
    while client.call(&["GET", "k"]).unwrap() != b"$1\r\nv\r\n" {
        assert!(Instant::now() < deadline, "the request was not executed");
    }
}

/// A withdrawn stream tells the fate of its requests.
#[test]
fn withdrawn_stream_tells_the_fate() {
    let server = server();
    let client = client(&server);
    let stream = client.stream();
    stream.write_all(b"SET k v\r\n", soon()).unwrap();
    expect(&stream, b"+OK\r\n");
    assert_eq!(stream.outcome(), None);
    server.stop();
    stream.write_all(b"INCR n\r\n", soon()).unwrap();
    thread::sleep(Duration::from_millis(100));
    stream.withdraw();
    assert_eq!(stream.read(&mut [0; 9], soon()).unwrap(), 0);
    let outcome = stream.outcome();
    assert!(
        matches!(outcome, Some(CallError::Unknown(_))),
        "{outcome:?}"
    );
    server.cont();
}

/// A request whose reply was not read was executed.
#[test]
fn unread_reply_is_no_request_that_was_not_sent() {
    let server = server();
    let client = client(&server);
    let stream = client.stream();
    stream.write_all(b"INCR n\r\n", soon()).unwrap();
    assert_eq!(stream.read(&mut [], soon()).unwrap(), 0, "a reply has come");
    stream.withdraw();
    let deadline = soon().unwrap();
    while stream.outcome().is_none() {
        assert!(Instant::now() < deadline, "it has not ended");
    }
    let outcome = stream.outcome();
    assert!(
        matches!(outcome, Some(CallError::Unknown(_))),
        "{outcome:?}"
    );
    expect(&stream, b":1\r\n");
    let outcome = stream.outcome();
    assert!(
        matches!(outcome, Some(CallError::NotSent(_))),
        "{outcome:?}"
    );
}

/// A thread that a waker unparks.
struct Unparks(thread::Thread);

impl Wake for Unparks {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn task_reads_a_stream() {
    let server = server();
    let stream = client(&server).stream();
    stream.write_all(b"ECHO task\r\n", soon()).unwrap();
    let waker = Waker::from(Arc::new(Unparks(thread::current())));
    let mut context = Context::from_waker(&waker);
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4]);
    let deadline = Instant::now() + SOON;
    while bytes.len() < 10 {
        match stream.poll_read(&mut context, &mut buffer) {
            Poll::Ready(count) => bytes.extend_from_slice(&buffer[..count]),
            Poll::Pending => thread::park_timeout(SOON),
        }
        assert!(Instant::now() < deadline, "the task is not woken");
    }
    assert_eq!(bytes, b"$4\r\ntask\r\n");
}

/// A read behind a write that found too little room waits for bytes alone.
#[test]
fn read_behind_a_short_write_waits_for_bytes() {
    let server = server();
    let client = client(&server);
    let stream = client.stream();
    let value = "v".repeat(1 << 20);
    let request = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1048576\r\n{value}\r\n");
    let mut written = stream.try_write(request.as_bytes()).unwrap();
    assert!(written < request.len());
    // Now there is room, and no reply.
    thread::sleep(Duration::from_millis(100));
    let context = &mut Context::from_waker(Waker::noop());
    assert!(stream.poll_read(context, &mut [0; 16]).is_pending());
    let end = Instant::now() + Duration::from_millis(100);
    let error = stream.read(&mut [0; 16], Some(end)).expect_err("no byte");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    while written < request.len() {
        let count = stream.write(&request.as_bytes()[written..], soon());
        let count = count.expect("room");
        assert_ne!(count, 0);
        written += count;
    }
    expect(&stream, b"+OK\r\n");
}

/// Calls in RESP3 get the types of RESP3. Sessions of one caller begin in RESP2, as connections do.
#[test]
fn calls_choose_their_protocol() {
    let server = server();
    let client = Client::options()
        .resp3(true)
        .open(&format!("redis://{}", server.address()))
        .unwrap();
    client.call(&["HSET", "h", "f", "v"]).unwrap();
    for _ in 0..3 {
        let reply = client.call(&["HGETALL", "h"]).unwrap();
        assert_eq!(reply, b"%1\r\n$1\r\nf\r\n$1\r\nv\r\n");
        assert_eq!(client.call(&["GET", "none"]).unwrap(), b"_\r\n");
    }
    let completions = client.completions().unwrap();
    for token in 0..50 {
        completions.ask(&["HGETALL", "h"], token).unwrap();
    }
    let mut outcomes = Vec::new();
    while outcomes.len() < 50 {
        assert!(completions.wait(soon()));
        completions.take(&mut outcomes);
    }
    for (_, outcome) in outcomes {
        assert_eq!(outcome.unwrap(), b"%1\r\n$1\r\nf\r\n$1\r\nv\r\n");
    }
    let reply = client.session().call(&["HGETALL", "h"]).unwrap();
    assert_eq!(reply, b"*2\r\n$1\r\nf\r\n$1\r\nv\r\n");
    let stream = client.stream();
    stream.write_all(b"GET none\r\n", soon()).unwrap();
    expect(&stream, b"$-1\r\n");
}

#[test]
fn encoded_calls_are_calls() {
    let server = server();
    let client = client(&server);
    let ping = b"*1\r\n$4\r\nPING\r\n".to_vec();
    assert_eq!(
        client.call_encoded(ping.clone(), None).unwrap(),
        b"+PONG\r\n"
    );
    let error = client.call_encoded(ping[..8].to_vec(), None).unwrap_err();
    assert!(matches!(error, CallError::Invalid(_)), "{error:?}");
    server.stop();
    let begun = Instant::now();
    let incr = b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n".to_vec();
    let error = client
        .call_encoded(incr, Some(Duration::from_millis(30)))
        .unwrap_err();
    assert!(matches!(error, CallError::Unknown(_)), "{error:?}");
    assert!(begun.elapsed() >= Duration::from_millis(30));
    server.cont();
}

/// A caller that is asked from time to time ends its wait, and its request is taken back.
#[test]
fn asked_caller_ends_its_wait() {
    let server = server();
    let client = client(&server);
    let blpop = b"*3\r\n$5\r\nBLPOP\r\n$4\r\nlist\r\n$1\r\n0\r\n".to_vec();
    let mut asked = 0;
    let error = client.call_encoded_while(blpop.clone(), None, || {
        asked += 1;
        asked < 3
    });
    assert!(matches!(error, Err(CallError::Unknown(_))), "{error:?}");
    assert_eq!(asked, 3);
    let limit = Some(Duration::from_millis(100));
    let error = client.call_encoded_while(blpop, limit, || true);
    assert!(matches!(error, Err(CallError::Unknown(_))), "{error:?}");
    // Nothing waits for the list any more.
    client.call(&["RPUSH", "list", "element"]).unwrap();
    assert_eq!(client.call(&["LLEN", "list"]).unwrap(), b":1\r\n");
}

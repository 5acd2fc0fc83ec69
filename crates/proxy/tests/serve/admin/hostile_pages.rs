//! Clients of `metrics-listen` that are slow, silent, or too many.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use respool_testkit::client::Reply;

use super::metrics::{connect, get, pages_of, wait_for_status, with_pages};

/// More than any limit of time for a request or for a reader.
const ENOUGH: Duration = Duration::from_secs(40);

/// How long respool leaves a connection open on which a byte of a request comes now and then.
fn slow_request(mut stream: TcpStream) -> Duration {
    let began = Instant::now();
    let pause = Duration::from_millis(250);
    stream.set_read_timeout(Some(pause)).expect("a socket");
    while began.elapsed() < ENOUGH {
        let is_sent = stream.write_all(b"G").is_ok();
        let is_closed = match stream.read(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        };
        if is_closed || !is_sent {
            break;
        }
    }
    began.elapsed()
}

/// A request that comes a byte at a time is ended after 5 s, and a reader that takes nothing after
/// 10 s. Neither delays another client.
#[test]
fn slow_clients_of_the_pages_are_ended() {
    let target = with_pages(&[]);
    let pages = pages_of(target.proxy());
    wait_for_status(pages, 200);
    // The thread of the last probe has closed its descriptors by then.
    thread::sleep(Duration::from_millis(500));
    let fds = target.proxy().fds();
    let began = Instant::now();
    let slow = connect(pages);
    let slow = thread::spawn(move || slow_request(slow));
    let mut unread = connect(pages);
    // The answers are more than the buffers of both sockets hold.
    let many = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n".repeat(2_000);
    unread.write_all(many.as_bytes()).expect("it is sent");
    // Both are accepted long before two seconds have passed.
    while began.elapsed() < Duration::from_secs(2) || target.proxy().fds() > fds {
        assert_eq!(get(pages, "/live").status, 200);
        assert!(began.elapsed() < ENOUGH, "both connections are closed");
        thread::sleep(Duration::from_millis(200));
    }
    let reader_s = began.elapsed().as_secs_f64();
    assert!((9.0..30.0).contains(&reader_s), "{reader_s}");
    let request_s = slow.join().expect("no panic").as_secs_f64();
    assert!((4.0..20.0).contains(&request_s), "{request_s}");
}

/// A request line of 1 MB is refused before it has come whole.
#[test]
fn long_request_line_is_refused() {
    let target = with_pages(&[]);
    let pages = pages_of(target.proxy());
    let before = target.proxy().rss_peak();
    let mut stream = connect(pages);
    let line = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(1 << 20));
    // The connection may end while the line is sent.
    let _ = stream.write_all(line.as_bytes());
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
        _ => {}
    }
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.split(' ').nth(1).unwrap_or("none");
    assert!(["431", "414", "none"].contains(&status), "{answer}");
    assert_eq!(get(pages, "/live").status, 200);
    let grown = target.proxy().rss_peak() - before;
    assert!(grown < 2 << 20, "{grown} bytes for a line that is refused");
}

/// Crowds at the pages neither slow down requests for long nor take descriptors and memory beyond
/// the bounds.
#[test]
fn crowd_at_the_pages_does_not_hurt_requests() {
    let target = with_pages(&[]);
    let pages = pages_of(target.proxy());
    wait_for_status(pages, 200);
    let mut client = target.client();
    assert_eq!(client.call("SET key value"), Reply::ok());
    let (fds, memory) = (target.proxy().fds(), target.proxy().rss_peak());
    let crowd = thread::spawn(move || crowd_at(pages));
    let mut most_fds = 0;
    let mut rounds = 0;
    while !crowd.is_finished() || rounds < 1_000 {
        assert_eq!(client.call("GET key"), Reply::bulk("value"));
        rounds += 1;
        if rounds % 50 == 0 {
            most_fds = target.proxy().fds().max(most_fds);
        }
    }
    let crowd = crowd.join().expect("no panic");
    assert!(most_fds > fds, "the crowd came");
    assert!(most_fds < fds + 70, "{most_fds} descriptors");
    let grown = target.proxy().rss_peak() - memory;
    assert!(grown < 48 << 20, "{grown} bytes for 16 connections");
    assert_eq!(get(pages, "/ready").status, 200);
    drop(crowd);
}

/// 1,000 connections: silent ones, half requests, readers that take nothing, and long lines.
fn crowd_at(pages: SocketAddr) -> Vec<TcpStream> {
    let page = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n".repeat(200);
    let long = format!("GET /{}", "x".repeat(64 << 10));
    let texts = ["", "GET /metrics HT", &page, &long];
    let texts = texts.into_iter().cycle().take(1_000);
    texts
        .map(|text| {
            let mut stream = connect(pages);
            // The connection may be closed already, for a newer one.
            let _ = stream.write_all(text.as_bytes());
            stream
        })
        .collect()
}

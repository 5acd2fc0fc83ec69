//! Values from empty to the largest that Redis takes: cut through, whole, in order, in bounded
//! memory.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use respool_testkit::client::{Reply, RespClient, is_not_executed, request, words};

use crate::target::{Options, Target, on_every_target, proxied};

const MIB: usize = 1 << 20;

/// Bound for respool's resident memory while a value of any size passes.
const RESIDENT_BYTES_MAX: u64 = 96 << 20;

/// A block of a large value: its number, then a pattern that belongs to the number.
fn block(number: usize) -> Vec<u8> {
    // Made once: a client that made its expected bytes while reading would be a slow reader.
    static PATTERN: LazyLock<Vec<u8>> =
        LazyLock::new(|| (0..2 * MIB).map(|at| (at / 7) as u8).collect());
    let mut bytes = PATTERN[7 * number..][..MIB].to_vec();
    bytes[..8].copy_from_slice(&(number as u64).to_be_bytes());
    bytes
}

/// Lets one test of this file run at a time. Each moves hundreds of megabytes, and two of them at
/// once fill both cores, so that requests beside them wait for the machine and not for respool.
fn alone() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A client that works all the while on the same worker, and how often it got its right reply.
struct Bystander {
    count: AtomicU64,
    ended: AtomicBool,
}

impl Bystander {
    /// Runs the body beside the bystander. Returns how many of the bystander's requests were
    /// answered.
    fn beside(target: &Target, body: impl FnOnce(&Bystander)) -> u64 {
        let bystander = Bystander {
            count: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut client = target.client();
                let mut number = 0_u64;
                while !bystander.ended.load(Ordering::SeqCst) {
                    number += 1;
                    assert_eq!(client.call(&format!("SET bystander {number}")), Reply::ok());
                    assert_eq!(
                        client.call("GET bystander"),
                        Reply::bulk(number.to_string())
                    );
                    bystander.count.fetch_add(1, Ordering::SeqCst);
                    thread::sleep(Duration::from_micros(200));
                }
            });
            let result =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(&bystander)));
            bystander.ended.store(true, Ordering::SeqCst);
            if let Err(panic) = result {
                std::panic::resume_unwind(panic);
            }
        });
        bystander.count.load(Ordering::SeqCst)
    }

    /// Waits until the bystander got this many more replies.
    fn goes_on(&self, replies: u64, meanwhile: &str) {
        let goal = self.count.load(Ordering::SeqCst) + replies;
        respool_testkit::time::wait_until(
            &format!("other clients get replies while {meanwhile}"),
            Duration::from_secs(10),
            || self.count.load(Ordering::SeqCst) >= goal,
        );
    }
}

/// A value of 512 MiB is cut through in bounded memory while other clients go on.
#[test]
fn value_of_512_mib_passes_in_bounded_memory() {
    let _alone = alone();
    // A busy machine reads half a gigabyte no faster than it does.
    let target = proxied(&Options::with(&[
        "--session-stall-ms=60s",
        "--head-of-line-stall-ms=60s",
    ]));
    let blocks = 512;
    let beside = Bystander::beside(&target, |bystander| {
        let mut client = target.client();
        client.send(format!("*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n${}\r\n", blocks * MIB).as_bytes());
        for number in 0..blocks {
            if number == blocks / 2 {
                bystander.goes_on(20, "half of a large request has been sent");
            }
            client.send(&block(number));
        }
        client.send(b"\r\n");
        assert_eq!(client.reply(), Reply::ok());
        assert_eq!(
            client.call("STRLEN big"),
            Reply::Integer((blocks * MIB) as i64)
        );

        client.send(&words("GET big"));
        client.send(&words("PING"));
        let header = format!("${}\r\n", blocks * MIB);
        assert_eq!(client.bytes(header.len()).unwrap(), header.as_bytes());
        for number in 0..blocks {
            assert!(
                client.bytes(MIB).unwrap() == block(number),
                "block {number} differs"
            );
        }
        assert_eq!(client.bytes(2).unwrap(), b"\r\n");
        assert_eq!(client.reply(), Reply::Simple("PONG".into()));
    });
    assert!(beside > 40);
    let proxy = target.proxy();
    let peak = proxy.rss_peak();
    assert!(peak < RESIDENT_BYTES_MAX, "respool held {} MiB", peak >> 20);
}

#[test]
fn values_of_every_size_keep_their_place_between_small_ones() {
    let _alone = alone();
    on_every_target(&Options::default(), |target| {
        let mut client = target.client();
        let kib = 1 << 10;
        let sizes = [
            0,
            1,
            2,
            1_000,
            16 * kib - 40,
            16 * kib,
            64 * kib - 1,
            64 * kib,
            64 * kib + 1,
            256 * kib - 40,
            256 * kib - 1,
            256 * kib,
            256 * kib + 1,
            MIB,
            5 * MIB + 3,
        ];
        for size in sizes {
            let value: Vec<u8> = (0..size).map(|at| (at * 31 / 17) as u8).collect();
            let mut bytes = Vec::new();
            let mut expected = Vec::new();
            let mut ask = |args: &[&[u8]], reply: Reply| {
                bytes.extend(request(args));
                expected.push(reply);
            };
            ask(&[b"SET", b"key", b"before"], Reply::ok());
            ask(&[b"SET", b"key", &value], Reply::ok());
            ask(&[b"GET", b"key"], Reply::bulk(&value));
            ask(&[b"STRLEN", b"key"], Reply::Integer(size as i64));
            ask(&[b"GETSET", b"key", b"after"], Reply::bulk(&value));
            ask(&[b"GET", b"key"], Reply::bulk("after"));
            ask(&[b"ECHO", &value], Reply::bulk(&value));
            ask(
                &[b"MSET", b"a", &value, b"b", b"small", b"c", &value],
                Reply::ok(),
            );
            let held = [
                Reply::bulk(&value),
                Reply::bulk("small"),
                Reply::bulk(&value),
            ];
            ask(&[b"MGET", b"a", b"b", b"c"], Reply::Array(held.to_vec()));
            ask(&[b"DEL", b"a", b"b", b"c", b"key"], Reply::Integer(4));
            ask(&[b"EXISTS", b"a", b"key"], Reply::Integer(0));
            let replies = client.exchange(bytes, expected.len());
            for (at, (reply, expected)) in replies.iter().zip(&expected).enumerate() {
                assert!(
                    reply == expected,
                    "size {size}, reply {at}: {reply:?}, not {expected:?}"
                );
            }
        }
    });
}

#[test]
fn a_request_of_very_many_arguments_is_answered_as_any_other() {
    let _alone = alone();
    on_every_target(&Options::default(), |target| {
        let mut client = target.client();
        for count in [1_000, 30_000, 300_000] {
            let mut args = vec![b"MSET".to_vec()];
            for number in 0..count {
                args.push(format!("key:{number}").into_bytes());
                args.push(number.to_string().into_bytes());
            }
            let mut bytes = request(&args);
            bytes.extend(words("GET key:999"));
            bytes.extend(words("DBSIZE"));
            bytes.extend(words("FLUSHDB"));
            let replies = client.exchange(bytes, 4);
            assert_eq!(replies[0], Reply::ok(), "{count} keys");
            assert_eq!(replies[1], Reply::bulk("999"));
            assert_eq!(replies[2], Reply::Integer(count as i64));
        }
    });
}

/// A client that takes a byte of a large reply now and then, while another one must go on.
fn slow_reader(size: usize) -> (Target, Result<(), std::io::Error>) {
    let target = proxied(&Options::default());
    let value: Vec<u8> = (0..size).map(|at| (at / 3) as u8).collect();
    let set = target
        .direct_client()
        .call_args(&[b"SET", b"big".as_slice(), &value]);
    assert_eq!(set, Reply::ok());
    let mut result = Ok(());
    Bystander::beside(&target, |bystander| {
        let mut slow = target.client();
        slow.send(&words("GET big"));
        slow.send(&words("EXISTS big"));
        let mut got = Vec::new();
        for _ in 0..5 {
            thread::sleep(Duration::from_millis(200));
            bystander.goes_on(100, "a large reply is not read");
            got.extend(slow.bytes(1).unwrap_or_default());
        }
        let expected = [format!("${size}\r\n").as_bytes(), &value, b"\r\n:1\r\n"].concat();
        result = slow.bytes(expected.len() - got.len()).map(|rest| {
            got.extend(rest);
            assert!(got == expected, "the reply is the value");
        });
    });
    (target, result)
}

/// A slow reader of a large value gets it whole and delays no other client.
#[test]
fn slow_reader_of_a_large_value_delays_no_client() {
    let _alone = alone();
    let size = 20 * MIB;
    let (target, result) = slow_reader(size);
    result.expect("respool holds the value until the client reads it");
    let proxy = target.proxy();
    let peak = proxy.rss_peak();
    assert!(peak < RESIDENT_BYTES_MAX, "respool held {} MiB", peak >> 20);
}

/// A slow reader of more bytes than respool may hold delays no other client.
#[test]
fn slow_reader_beyond_the_buffer_delays_no_client() {
    let _alone = alone();
    let size = 200 * MIB;
    let (target, result) = slow_reader(size);
    let proxy = target.proxy();
    if let Err(error) = result {
        // Other clients behind it had waited long enough: it was closed, and the log gives the
        // reason.
        assert!(proxy.log().contains("stall-ms"), "{error}: {}", proxy.log());
    }
    let peak = proxy.rss_peak();
    assert!(peak < RESIDENT_BYTES_MAX, "respool held {} MiB", peak >> 20);
}

/// The server closes the link that owes more than it may; others go on at once with the next one.
#[test]
fn link_closed_for_its_output_fails_nothing_unsent() {
    let _alone = alone();
    let target = proxied(&Options::default());
    let mut direct = target.direct_client();
    let bound = b"normal 8388608 8388608 1".as_slice();
    let set = [
        b"CONFIG",
        b"SET".as_slice(),
        b"client-output-buffer-limit",
        bound,
    ];
    assert_eq!(direct.call_args(&set), Reply::ok());
    let value = vec![b'v'; 4 * MIB];
    assert_eq!(
        direct.call_args(&[b"SET", b"big".as_slice(), &value]),
        Reply::ok()
    );
    let mut polite = target.client();
    // The link has answered: its server is well.
    assert_eq!(polite.call("INCR polite"), Reply::Integer(1));
    for _ in 0..6 {
        let mut greedy = target.client();
        greedy.send(&words("GET big").repeat(20));
        for _ in 0..100 {
            let reply = polite.call("INCR polite");
            // Requests in flight on the link may have run.
            let is_unsent = reply.error().is_some_and(is_not_executed);
            assert!(!is_unsent, "{:?}", reply.error());
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The time that others wait counts over all slow clients, though their writes cannot be retried.
#[test]
fn clients_that_read_nothing_hold_up_no_writers() {
    let _alone = alone();
    let target = proxied(&Options::with(&[
        "--head-of-line-stall-ms=100",
        "--request-timeout-ms=4s",
    ]));
    let value = vec![b'v'; 3 * MIB];
    let set = target
        .direct_client()
        .call_args(&[b"SET", b"big".as_slice(), &value]);
    assert_eq!(set, Reply::ok());
    let asked = [words("GET big"), words("INCR slow")].concat().repeat(20);
    Bystander::beside(&target, |bystander| {
        let mut slow = Vec::new();
        for _ in 0..3 {
            for _ in 0..8 {
                let mut client = target.client();
                client.send(&asked);
                slow.push(client);
            }
            bystander.goes_on(50, "clients read nothing");
        }
    });
}

/// A request that arrives slowly runs whole and delays no other client.
#[test]
fn slow_sender_of_a_large_request_delays_no_client() {
    let _alone = alone();
    let target = proxied(&Options::default());
    for size in [100_000, 8 * MIB] {
        let value: Vec<u8> = (0..size).map(|at| (at / 5) as u8).collect();
        let bytes = request(&[b"SET", b"slow".as_slice(), &value]);
        Bystander::beside(&target, |bystander| {
            let mut slow = target.client();
            for part in bytes.chunks(bytes.len().div_ceil(10)) {
                slow.send(part);
                bystander.goes_on(30, "a request comes slowly");
            }
            assert_eq!(slow.reply(), Reply::ok());
            assert!(slow.call("GET slow") == Reply::Bulk(value));
        });
    }
}

#[test]
fn many_large_values_at_once_pass_in_bounded_memory() {
    let _alone = alone();
    // The test is about memory: on a busy machine all of them together may take long.
    let target = proxied(&Options::with(&[
        "--request-timeout-ms=120s",
        "--connect-timeout-ms=60s",
    ]));
    let (clients, size) = (40, 10 * MIB);
    thread::scope(|scope| {
        for number in 0..clients {
            let target = &target;
            scope.spawn(move || {
                let mut client = target.client();
                client.set_read_timeout(Duration::from_secs(120));
                let value: Vec<u8> = (0..size).map(|at| (at / 11 + number * 7) as u8).collect();
                let key = format!("big:{number}");
                for _ in 0..2 {
                    let set = client.send_aside(request(&[b"SET", key.as_bytes(), &value]));
                    assert_eq!(client.reply(), Reply::ok());
                    set.join().expect("no panic").expect("all is sent");
                    let got = client.call(&format!("GET {key}"));
                    assert!(
                        got == Reply::bulk(&value),
                        "{key} differs: {:?}",
                        got.error()
                    );
                }
            });
        }
    });
    let proxy = target.proxy();
    // 400 MiB are on their way at once; the part of each that is held is bounded.
    let peak = proxy.rss_peak();
    assert!(
        peak < 2 * RESIDENT_BYTES_MAX,
        "respool held {} MiB",
        peak >> 20
    );
}

#[test]
fn a_large_request_that_is_never_finished_is_never_executed() {
    let _alone = alone();
    let target = proxied(&Options::default());
    let value = vec![b'x'; 4 * MIB];
    let bytes = request(&[b"SET", b"unfinished".as_slice(), &value]);
    for cut in [300_000, MIB, 4 * MIB, bytes.len() - 1] {
        let mut client = target.client();
        client.send(&bytes[..cut]);
        thread::sleep(Duration::from_millis(20));
        if cut % 2 == 0 {
            client.reset()
        } else {
            drop(client)
        }
        let mut other = target.client();
        assert_eq!(
            other.call("EXISTS unfinished"),
            Reply::Integer(0),
            "cut at {cut}"
        );
        // The way of large requests is free again, and clean.
        assert_eq!(
            other.call_args(&[b"SET", b"finished".as_slice(), &value]),
            Reply::ok()
        );
        assert_eq!(
            other.call("STRLEN finished"),
            Reply::Integer(4 * MIB as i64)
        );
    }
    thread::sleep(Duration::from_millis(100));
    assert_eq!(
        RespClient::connect(target.server.address()).call("EXISTS unfinished"),
        Reply::Integer(0)
    );
}

//! Workers on real sockets allocate no memory in the steady state: every allocation is counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use respool_driver::{ListenAddress, Setup, start};
use respool_engine::settings::{Address, PoolKind, PoolSettings, ServerSettings, Settings};
use respool_protocol::request::{Found, RequestScanner};

struct CountingAllocator;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes unchanged to the system's allocator. The counter allocates nothing.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

const CLIENTS: usize = 20;
const PIPELINE: usize = 20;

/// The requests of the clients, and the settings that coalesce them.
struct ClientLoad {
    name: &'static str,
    /// Whether neighbouring GETs and SETs leave as MGET and MSET.
    fuse: bool,
    /// Whether equal GETs become one.
    collapse: bool,
    /// Makes a client's request for a key.
    request: fn(key: usize) -> Vec<u8>,
    /// The reply to every request.
    reply: &'static [u8],
    /// Number of different keys. All clients use them in the same order.
    keys: usize,
}

fn get(key: usize) -> Vec<u8> {
    format!("*2\r\n$3\r\nGET\r\n$7\r\nkey:{key:03}\r\n").into_bytes()
}

fn set(key: usize) -> Vec<u8> {
    format!("*3\r\n$3\r\nSET\r\n$7\r\nkey:{key:03}\r\n$5\r\nvalue\r\n").into_bytes()
}

const LOADS: [ClientLoad; 4] = [
    ClientLoad {
        name: "uncoalesced",
        fuse: false,
        collapse: false,
        request: get,
        reply: VALUE,
        keys: 1,
    },
    ClientLoad {
        name: "fused GETs",
        fuse: true,
        collapse: true,
        request: get,
        reply: VALUE,
        keys: CLIENTS * PIPELINE,
    },
    ClientLoad {
        name: "fused SETs",
        fuse: true,
        collapse: true,
        request: set,
        reply: OK,
        keys: CLIENTS * PIPELINE,
    },
    ClientLoad {
        name: "equal GETs",
        fuse: true,
        collapse: true,
        request: get,
        reply: VALUE,
        keys: PIPELINE,
    },
];

const VALUE: &[u8] = b"$5\r\nvalue\r\n";
const OK: &[u8] = b"+OK\r\n";

/// A server that answers each complete request from fixed memory.
fn serve(listener: &TcpListener) {
    for link in listener.incoming() {
        let mut link = link.expect("a link");
        std::thread::spawn(move || {
            let mut bytes = [0; 65536];
            let handshake = link.read(&mut bytes).expect("the handshake");
            assert!(bytes[..handshake].starts_with(b"*4\r\n$5\r\nHELLO\r\n"));
            link.write_all(b"*2\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n")
                .expect("the handshake is answered");
            let mut scanner = RequestScanner::default();
            let mut replies = [0; 65536];
            let mut len = 0;
            while let Ok(count @ 1..) = link.read(&mut bytes[len..]) {
                len += count;
                let (mut at, mut room) = (0, &mut replies[..]);
                while let Ok(Found::Request { len }) = scanner.scan(&bytes[at..len], true) {
                    let spans = scanner.spans();
                    answer(spans[0].of(&bytes[at..]), spans.len() - 1, &mut room);
                    at += len;
                }
                let left = room.len();
                link.write_all(&replies[..replies.len() - left])
                    .expect("replies leave");
                // The scanner keeps its position in the incomplete request.
                bytes.copy_within(at..len, 0);
                len -= at;
            }
        });
    }
}

/// Writes the reply to a request with this command name and number of arguments.
fn answer(name: &[u8], args: usize, room: &mut &mut [u8]) {
    let mut write = |bytes: &[u8]| room.write_all(bytes).expect("replies are small");
    match name {
        b"GET" => write(VALUE),
        b"SET" | b"MSET" => write(OK),
        b"MGET" => {
            write!(room, "*{args}\r\n").expect("replies are small");
            (0..args).for_each(|_| room.write_all(VALUE).expect("replies are small"));
        }
        // The server's CPU time: a tenth of the time since the start, so it is never busy.
        b"INFO" => {
            let cpu_s = BEGAN.elapsed().as_secs_f64() / 10.0;
            const TEXT: usize = 2 * "used_cpu_user:0123.456789\r\n".len() - 1;
            write!(
                room,
                "${TEXT}\r\nused_cpu_user:{cpu_s:011.6}\r\nused_cpu_sys:0000.000000\r\n\r\n"
            )
            .expect("replies are small");
        }
        other => panic!("unexpected command {}", other.escape_ascii()),
    }
}

/// One round: each client sends its pipeline in two halves, cut inside a request, then all replies
/// are read.
fn round(clients: &mut [TcpStream], requests: &[Vec<u8>], replies: &mut [u8], reply: &[u8]) {
    for is_first in [true, false] {
        for (client, requests) in clients.iter_mut().zip(requests) {
            let (first, second) = requests.split_at(requests.len() / 2 + 5);
            let half = if is_first { first } else { second };
            client.write_all(half).expect("requests leave");
        }
    }
    for client in clients.iter_mut() {
        client.read_exact(replies).expect("replies come");
        assert!(
            replies.chunks(reply.len()).all(|got| got == reply),
            "every reply is right"
        );
    }
}

/// No request costs an allocation once the buffers have grown.
#[test]
fn no_request_allocates_in_the_steady_state() {
    for load in &LOADS {
        check_allocations(load);
    }
}

fn settings_of(server: ServerSettings) -> Settings {
    let pool = PoolSettings::new("default", PoolKind::Single(server));
    Settings {
        pools: vec![pool],
        ..Settings::default()
    }
}

fn check_allocations(load: &ClientLoad) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("its address").port();
    std::thread::spawn(move || serve(&listener));
    let local = |port| Address::Tcp {
        host: "127.0.0.1".to_owned(),
        port,
    };
    let server = ServerSettings::at(local(port));
    let mut settings = settings_of(server);
    // The checks of the login allocate memory, and so does the log of slow requests.
    settings.timeouts.login_check_ms = 0;
    settings.slow_log.slower_than_us = None;
    settings.flush.fuse = load.fuse;
    settings.flush.collapse = load.collapse;
    let setup = Setup {
        listeners: vec![ListenAddress {
            address: local(0),
            pool: 0,
            tls: None,
        }],
        pool_tls: Vec::new(),
        socket_access: Default::default(),
        workers: 1,
        settings: Arc::new(settings),
        reports_servers: false,
        serves_callers: false,
    };
    let running = start(setup, Arc::new(|_| {})).expect("a worker starts");
    let Address::Tcp { port, .. } = running.addresses()[0] else {
        panic!("the listener is on TCP")
    };
    let mut clients: Vec<TcpStream> = (0..CLIENTS)
        .map(|_| {
            let client = TcpStream::connect(("127.0.0.1", port)).expect("a client connects");
            client.set_nodelay(true).expect("a socket option");
            client
                .set_read_timeout(Some(Duration::from_secs(10)))
                .expect("a socket option");
            client
        })
        .collect();
    let of_client = |client: usize| -> Vec<u8> {
        let keys = (0..PIPELINE).map(|at| (client * PIPELINE + at) % load.keys);
        keys.flat_map(load.request).collect()
    };
    let requests: Vec<Vec<u8>> = (0..CLIENTS).map(of_client).collect();
    let mut replies = vec![0; load.reply.len() * PIPELINE];
    let mut round = || round(&mut clients, &requests, &mut replies, load.reply);
    // The buffers grow to the size that this load needs.
    for _ in 0..300 {
        round();
    }
    let rounds = 200;
    // A batch that is larger than any before may still grow a buffer. On a busy machine this goes
    // on for a while. An allocation per request would show in each of three runs, so the best run
    // counts.
    let allocations = (0..3).map(|_| {
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        (0..rounds).for_each(|_| round());
        ALLOCATIONS.load(Ordering::SeqCst) - before
    });
    let allocations = allocations.min().unwrap_or_default();
    let requests = rounds * CLIENTS * PIPELINE;
    assert!(
        allocations < 20,
        "{}: {allocations} allocations for {requests} requests",
        load.name
    );
    // Workers report their counters every 100 ms.
    std::thread::sleep(Duration::from_millis(300));
    let counters = &running.counters()[0];
    let fused = counters.fused_gets + counters.fused_sets;
    assert_eq!(fused > 0, load.fuse, "{}", load.name);
    let equal = load.collapse && load.keys < CLIENTS * PIPELINE;
    assert_eq!(counters.reads_collapsed > 0, equal, "{}", load.name);
    running.drain();
    drop(clients);
    assert_eq!(
        running.join(Duration::from_secs(5)),
        0,
        "no session was cut"
    );
}

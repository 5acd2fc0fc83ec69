//! The steady state allocates nothing: counted, in real workers on real sockets.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use respool_driver::{Setup, start};
use respool_engine::settings::{Address, PoolKind, PoolSettings, ServerSettings, Settings};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator as it came; counting touches no memory of its own.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
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
static ALLOCATOR: Counting = Counting;

const REQUEST: &[u8] = b"*2\r\n$3\r\nGET\r\n$7\r\nkey:001\r\n";
const REPLY: &[u8; 11] = b"$5\r\nvalue\r\n";
const CLIENTS: usize = 20;
const PIPELINE: usize = 20;

/// Answers as many requests as bytes have come, from fixed memory.
fn serve(listener: &TcpListener) {
    for link in listener.incoming() {
        let mut link = link.expect("a link");
        std::thread::spawn(move || {
            let mut bytes = [0; 65536];
            let greeting = link.read(&mut bytes).expect("the greeting");
            assert!(bytes[..greeting].starts_with(b"*4\r\n$5\r\nHELLO\r\n"));
            link.write_all(b"*2\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n")
                .expect("the greeting is answered");
            let (mut read, mut answered) = (0, 0);
            while let Ok(count @ 1..) = link.read(&mut bytes) {
                read += count;
                while answered < read / REQUEST.len() {
                    let due = (read / REQUEST.len() - answered).min(bytes.len() / REPLY.len());
                    for reply in bytes.as_chunks_mut().0.iter_mut().take(due) {
                        *reply = *REPLY;
                    }
                    link.write_all(&bytes[..due * REPLY.len()])
                        .expect("a reply leaves");
                    answered += due;
                }
            }
        });
    }
}

/// One round: every client sends its pipeline, in two halves cut inside a request; then all replies are read.
fn round(clients: &mut [TcpStream], requests: &[u8], replies: &mut [u8]) {
    let (first, second) = requests.split_at(requests.len() / 2 + 5);
    for half in [first, second] {
        for client in clients.iter_mut() {
            client.write_all(half).expect("requests leave");
        }
    }
    for client in clients.iter_mut() {
        client.read_exact(replies).expect("replies come");
        assert!(
            replies.as_chunks().0.iter().all(|reply| reply == REPLY),
            "every reply is right"
        );
    }
}

/// A request that costs an allocation cannot pass.
#[test]
fn no_request_allocates_in_the_steady_state() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("its address").port();
    std::thread::spawn(move || serve(&listener));
    let local = |port| Address::Tcp {
        host: "127.0.0.1".to_owned(),
        port,
    };
    let server = ServerSettings {
        address: local(port),
        credentials: None,
        db: 0,
    };
    let pools = vec![PoolSettings {
        name: "default".to_owned(),
        kind: PoolKind::Single(server),
    }];
    let setup = Setup {
        listeners: vec![(local(0), 0)],
        workers: 1,
        settings: Arc::new(Settings {
            pools,
            ..Settings::default()
        }),
    };
    let running = start(setup, Arc::new(|_| {})).expect("a worker starts");
    let Address::Tcp { port, .. } = running.addresses()[0] else {
        panic!("it listens on TCP")
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
    let requests = REQUEST.repeat(PIPELINE);
    let mut replies = vec![0; REPLY.len() * PIPELINE];
    // Buffers grow to what this load needs, once.
    for _ in 0..300 {
        round(&mut clients, &requests, &mut replies);
    }
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    let rounds = 200;
    for _ in 0..rounds {
        round(&mut clients, &requests, &mut replies);
    }
    let allocations = ALLOCATIONS.load(Ordering::SeqCst) - before;
    let requests = rounds * CLIENTS * PIPELINE;
    // A buffer may still grow once when a batch comes together that is larger than any before.
    assert!(
        allocations < 20,
        "{allocations} allocations for {requests} requests"
    );
    running.drain();
    drop(clients);
    assert_eq!(
        running.join(Duration::from_secs(5)),
        0,
        "no session was cut"
    );
}

//! Host names of servers are looked up at every attempt to connect.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use respool_driver::{ListenAddress, Resolve, Running, Setup, start_with};
use respool_engine::settings::{Address, PoolKind, PoolSettings, ServerSettings, Settings};

const PATIENCE: Duration = Duration::from_secs(20);

/// A server that answers the handshake, and replies to every other request with its name.
struct NamedServer {
    address: SocketAddr,
    /// The connections of the server; `None` once it has ended.
    links: Arc<Mutex<Option<Vec<TcpStream>>>>,
    /// Whether it refuses writes with READONLY.
    is_replica: Arc<AtomicBool>,
}

impl NamedServer {
    fn start(name: &'static str) -> NamedServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("the listener has an address");
        let links = Arc::new(Mutex::new(Some(Vec::new())));
        let kept = Arc::clone(&links);
        let is_replica = Arc::new(AtomicBool::new(false));
        let refuses_writes = Arc::clone(&is_replica);
        thread::spawn(move || {
            for link in listener.incoming() {
                let link = link.expect("a link");
                let Some(all) = &mut *kept.lock().expect("no holder panics") else {
                    return;
                };
                all.push(link.try_clone().expect("a descriptor"));
                let refuses_writes = Arc::clone(&refuses_writes);
                thread::spawn(move || serve(link, name, &refuses_writes));
            }
        });
        NamedServer {
            address,
            links,
            is_replica,
        }
    }

    /// Closes its connections and its listening socket.
    fn end(&self) {
        let links = self.links.lock().expect("no holder panics").take();
        for link in links.into_iter().flatten() {
            let _ = link.shutdown(Shutdown::Both);
        }
        // This connection wakes the accepting thread, which then ends.
        let _ = TcpStream::connect(self.address);
        let is_gone = || TcpStream::connect(self.address).is_err();
        wait_until("the port is closed", is_gone);
    }
}

fn serve(mut link: TcpStream, name: &str, is_replica: &AtomicBool) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = link.read(&mut bytes) {
        let request = &bytes[..count];
        let has = |word: &[u8]| request.windows(word.len()).any(|other| other == word);
        let reply = if has(b"HELLO") {
            "*2\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n".to_owned()
        } else if has(b"SET") && is_replica.load(Ordering::SeqCst) {
            "-READONLY You can't write against a read only replica.\r\n".to_owned()
        } else {
            format!("+{name}\r\n")
        };
        if link.write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}

fn wait_until(event: &str, has_happened: impl FnMut() -> bool) {
    let begun = Instant::now();
    let mut has_happened = has_happened;
    while !has_happened() {
        assert!(begun.elapsed() < PATIENCE, "not in time: {event}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A resolver of one host name.
#[derive(Default)]
struct Resolver {
    /// The addresses of the name; `None`: there is no such name.
    addresses: Mutex<Option<Vec<SocketAddr>>>,
    /// Number of look-ups.
    look_ups: AtomicUsize,
}

impl Resolver {
    fn set(&self, addresses: &[SocketAddr]) {
        *self.addresses.lock().expect("no holder panics") = Some(addresses.to_vec());
    }

    fn look_up(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        assert_eq!((host, port), ("cache.example", 6379));
        self.look_ups.fetch_add(1, Ordering::SeqCst);
        let addresses = self.addresses.lock().expect("no holder panics").clone();
        addresses.ok_or_else(|| io::Error::other("no such name"))
    }
}

/// Starts a worker whose server has that host name, and connects a client.
fn start_worker(resolver: &Arc<Resolver>) -> (Running, TcpStream) {
    let address = |host: &str, port| Address::Tcp {
        host: host.to_owned(),
        port,
    };
    let server = ServerSettings::at(address("cache.example", 6379));
    let settings = Settings {
        pools: vec![PoolSettings::new("default", PoolKind::Single(server))],
        ..Settings::default()
    };
    let setup = Setup {
        listeners: vec![ListenAddress {
            address: address("127.0.0.1", 0),
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
    let resolver = Arc::clone(resolver);
    let resolve = Arc::new(move |host: &str, port| resolver.look_up(host, port));
    let running = start_with(setup, Arc::new(|_| {}), resolve).expect("the workers start");
    let Address::Tcp { port, .. } = running.addresses()[0] else {
        unreachable!("the listener is on TCP");
    };
    let client = TcpStream::connect(("127.0.0.1", port)).expect("the listener accepts");
    let limit = client.set_read_timeout(Some(PATIENCE));
    limit.expect("a limit");
    (running, client)
}

fn get(client: &mut TcpStream) -> String {
    ask(client, b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n")
}

fn set(client: &mut TcpStream) -> String {
    ask(client, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n")
}

fn ask(client: &mut TcpStream, request: &[u8]) -> String {
    client.write_all(request).expect("the worker reads");
    let mut reply = Vec::new();
    while !reply.ends_with(b"\r\n") {
        let mut bytes = [0; 512];
        let count = client.read(&mut bytes).expect("a reply");
        assert!(count > 0, "the session lives");
        reply.extend_from_slice(&bytes[..count]);
    }
    String::from_utf8(reply).expect("text")
}

/// After a name gets another address, the next connection goes there, and sessions go on.
#[test]
fn changed_address_is_used_by_the_next_connection() {
    let (first, second) = (NamedServer::start("first"), NamedServer::start("second"));
    let resolver = Arc::new(Resolver::default());
    let (running, mut client) = start_worker(&resolver);
    wait_until("the error says that there is no such name", || {
        let reply = get(&mut client);
        assert!(reply.starts_with("-LOADING respool: "), "{reply}");
        reply.contains("its name cannot be looked up: no such name")
    });
    resolver.set(&[first.address]);
    wait_until("the first server answers", || {
        get(&mut client) == "+first\r\n"
    });
    // A link that is up stays.
    let look_ups = resolver.look_ups.load(Ordering::SeqCst);
    resolver.set(&[second.address]);
    assert_eq!(get(&mut client), "+first\r\n");
    assert_eq!(resolver.look_ups.load(Ordering::SeqCst), look_ups);
    first.end();
    wait_until("the second server answers", || {
        let reply = get(&mut client);
        assert!(
            reply.starts_with("-LOADING respool: ") || reply == "+second\r\n",
            "{reply}"
        );
        reply == "+second\r\n"
    });
    assert!(resolver.look_ups.load(Ordering::SeqCst) > look_ups);
    drop(client);
    running.drain();
    assert_eq!(running.join(PATIENCE), 0);
    second.end();
}

/// If a name has several addresses, one that answers is used.
#[test]
fn host_with_dead_addresses_is_still_reached() {
    let [gone, live, also_gone] = ["gone", "live", "also gone"].map(NamedServer::start);
    gone.end();
    also_gone.end();
    let resolver = Arc::new(Resolver::default());
    resolver.set(&[live.address, gone.address, also_gone.address]);
    let (running, mut client) = start_worker(&resolver);
    // The first attempt begins with the second address, and still reaches the live one.
    assert_eq!(get(&mut client), "+live\r\n");
    assert_eq!(resolver.look_ups.load(Ordering::SeqCst), 1);
    drop(client);
    running.drain();
    assert_eq!(running.join(PATIENCE), 0);
    live.end();
}

/// A server that refuses writes is connected anew, and its name is looked up again. So a name that
/// moves to the new primary is followed, although the old primary goes on as a replica.
#[test]
fn readonly_server_has_its_name_looked_up_again() {
    let (first, second) = (NamedServer::start("first"), NamedServer::start("second"));
    let resolver = Arc::new(Resolver::default());
    resolver.set(&[first.address]);
    let (running, mut client) = start_worker(&resolver);
    assert_eq!(set(&mut client), "+first\r\n");
    first.is_replica.store(true, Ordering::SeqCst);
    // The name may move after the first refusal.
    assert!(set(&mut client).starts_with("-READONLY "));
    resolver.set(&[second.address]);
    wait_until("writes reach the second server", || {
        let reply = set(&mut client);
        assert!(
            reply.starts_with("-READONLY ") || reply == "+second\r\n",
            "no other error is seen: {reply}"
        );
        reply == "+second\r\n"
    });
    assert_eq!(get(&mut client), "+second\r\n");
    drop(client);
    running.drain();
    assert_eq!(running.join(PATIENCE), 0);
    first.end();
    second.end();
}

/// Settings with one pool for each list of hosts: a plain server for one host, a Cluster for
/// several seeds.
fn pools_of(hosts: &[Vec<String>]) -> Settings {
    let server = |host: &String| {
        ServerSettings::at(Address::Tcp {
            host: host.clone(),
            port: 6379,
        })
    };
    let pools = hosts.iter().enumerate().map(|(index, hosts)| {
        PoolSettings::new(
            format!("pool-{index}"),
            match &hosts[..] {
                [host] => PoolKind::Single(server(host)),
                seeds => PoolKind::Cluster {
                    seeds: seeds.iter().map(server).collect(),
                },
            },
        )
    });
    Settings {
        pools: pools.collect(),
        ..Settings::default()
    }
}

/// Starts workers with these pools, and connects a client to each pool.
fn start_pools(settings: Settings, resolve: Resolve, workers: usize) -> (Running, Vec<TcpStream>) {
    let listeners = (0..settings.pools.len()).map(|pool| {
        let (host, port) = ("127.0.0.1".to_owned(), 0);
        ListenAddress {
            address: Address::Tcp { host, port },
            pool,
            tls: None,
        }
    });
    let setup = Setup {
        listeners: listeners.collect(),
        pool_tls: Vec::new(),
        socket_access: Default::default(),
        workers,
        settings: Arc::new(settings),
        reports_servers: false,
        serves_callers: false,
    };
    let running = start_with(setup, Arc::new(|_| {}), resolve).expect("the workers start");
    let clients = running.addresses().into_iter().map(|address| {
        let Address::Tcp { port, .. } = address else {
            unreachable!("the listener is on TCP");
        };
        let client = TcpStream::connect(("127.0.0.1", port)).expect("the listener accepts");
        client.set_read_timeout(Some(PATIENCE)).expect("a limit");
        client
    });
    let clients = clients.collect();
    (running, clients)
}

/// Hanging look-ups of one pool do not delay the look-ups of another pool.
#[test]
fn hanging_names_of_one_pool_leave_another_alone() {
    let server = NamedServer::start("live");
    let (address, look_ups) = (server.address, Arc::new(AtomicUsize::new(0)));
    let hanging = Arc::clone(&look_ups);
    let resolve: Resolve = Arc::new(move |host: &str, _| {
        if host == "live.example" {
            return Ok(vec![address]);
        }
        hanging.fetch_add(1, Ordering::SeqCst);
        thread::sleep(2 * PATIENCE);
        Err(io::Error::other("no such name"))
    });
    let hang = (0..40).map(|number| format!("hangs-{number}.example"));
    let settings = pools_of(&[hang.collect(), vec!["live.example".to_owned()]]);
    let (running, mut clients) = start_pools(settings, resolve, 2);
    let reply = get(&mut clients[0]);
    assert!(reply.starts_with("-LOADING respool: "), "{reply}");
    wait_until("several look-ups of the first pool hang", || {
        look_ups.load(Ordering::SeqCst) >= 5
    });
    assert_eq!(get(&mut clients[1]), "+live\r\n");
    assert!(look_ups.load(Ordering::SeqCst) <= 10, "threads are bounded");
    drop(clients);
    running.drain();
    assert_eq!(running.join(PATIENCE), 0);
    server.end();
}

/// All workers and attempts share one look-up of a name. The error of a request says how long the
/// look-up takes.
#[test]
fn slow_look_up_is_shared_and_reported() {
    let look_ups = Arc::new(AtomicUsize::new(0));
    let (counted, server) = (Arc::clone(&look_ups), NamedServer::start("live"));
    let (address, may_end) = (server.address, Arc::new(AtomicBool::new(false)));
    let ends = Arc::clone(&may_end);
    let resolve: Resolve = Arc::new(move |_: &str, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        while !ends.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(5));
        }
        Ok(vec![address])
    });
    let mut settings = pools_of(&[vec!["slow.example".to_owned()]]);
    settings.timeouts.connect_ms = 300;
    let (running, mut clients) = start_pools(settings, resolve, 3);
    let client = &mut clients[0];
    let reply = get(client);
    let reason = "looking up slow.example has taken more than 300 ms\r\n";
    assert!(reply.ends_with(reason), "{reply}");
    wait_until("another attempt waits for the look-up", || {
        let reply = get(client);
        assert!(
            reply.contains("looking up slow.example has taken "),
            "{reply}"
        );
        !reply.ends_with(reason)
    });
    assert_eq!(look_ups.load(Ordering::SeqCst), 1);
    may_end.store(true, Ordering::SeqCst);
    wait_until("the server answers", || get(client) == "+live\r\n");
    assert_eq!(look_ups.load(Ordering::SeqCst), 1, "its result is used");
    drop(clients);
    running.drain();
    assert_eq!(running.join(PATIENCE), 0);
    server.end();
}

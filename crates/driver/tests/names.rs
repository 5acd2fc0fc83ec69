//! Host names of servers: looked up at every attempt to connect, and what they say then counts.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use respool_driver::{Resolve, Running, Setup, start_with};
use respool_engine::settings::{
    Address, PoolKind, PoolSettings, Reads, ServerSettings, Settings, Shows,
};

const SOON: Duration = Duration::from_secs(20);

/// A server that greets, and says its name to whatever it is asked.
struct Named {
    address: SocketAddr,
    links: Arc<Mutex<Option<Vec<TcpStream>>>>,
    /// It takes no writes.
    is_replica: Arc<AtomicBool>,
}

impl Named {
    fn start(name: &'static str) -> Named {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let links = Arc::new(Mutex::new(Some(Vec::new())));
        let kept = Arc::clone(&links);
        let is_replica = Arc::new(AtomicBool::new(false));
        let is_its = Arc::clone(&is_replica);
        thread::spawn(move || {
            for link in listener.incoming() {
                let link = link.expect("a link");
                let Some(all) = &mut *kept.lock().expect("no holder panics") else {
                    return;
                };
                all.push(link.try_clone().expect("a descriptor"));
                let is_its = Arc::clone(&is_its);
                thread::spawn(move || serve(link, name, &is_its));
            }
        });
        Named {
            address,
            links,
            is_replica,
        }
    }

    /// It is gone, and nobody listens where it was.
    fn end(&self) {
        let links = self.links.lock().expect("no holder panics").take();
        for link in links.into_iter().flatten() {
            let _ = link.shutdown(Shutdown::Both);
        }
        // Whoever accepts notices it so.
        let _ = TcpStream::connect(self.address);
        let is_gone = || TcpStream::connect(self.address).is_err();
        wait_until("nobody listens", is_gone);
    }
}

fn serve(mut link: TcpStream, name: &str, is_replica: &AtomicBool) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = link.read(&mut bytes) {
        let asked = &bytes[..count];
        let has = |word: &[u8]| asked.windows(word.len()).any(|other| other == word);
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

fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    let mut is_so = is_so;
    while !is_so() {
        assert!(begun.elapsed() < SOON, "not in time: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// What the name of the server says, and how often it was asked.
#[derive(Default)]
struct Names {
    said: Mutex<Option<Vec<SocketAddr>>>,
    asked: AtomicUsize,
}

impl Names {
    fn say(&self, addresses: &[SocketAddr]) {
        *self.said.lock().expect("no holder panics") = Some(addresses.to_vec());
    }

    fn look_up(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        assert_eq!((host, port), ("cache.example", 6379));
        self.asked.fetch_add(1, Ordering::SeqCst);
        let said = self.said.lock().expect("no holder panics").clone();
        said.ok_or_else(|| io::Error::other("no such name"))
    }
}

/// A worker before that name, and a client of it.
fn before(names: &Arc<Names>) -> (Running, TcpStream) {
    let address = |host: &str, port| Address::Tcp {
        host: host.to_owned(),
        port,
    };
    let server = ServerSettings {
        address: address("cache.example", 6379),
        credentials: None,
        db: 0,
    };
    let settings = Settings {
        pools: vec![PoolSettings {
            name: "default".to_owned(),
            kind: PoolKind::Single(server),
            reads: Reads::default(),
            flush: None,
            announce: None,
            shows: Shows::default(),
            address_map: Default::default(),
        }],
        ..Settings::default()
    };
    let setup = Setup {
        listeners: vec![(address("127.0.0.1", 0), 0)],
        socket_access: Default::default(),
        workers: 1,
        settings: Arc::new(settings),
    };
    let names = Arc::clone(names);
    let resolve = Arc::new(move |host: &str, port| names.look_up(host, port));
    let running = start_with(setup, Arc::new(|_| {}), resolve).expect("it starts");
    let Address::Tcp { port, .. } = running.addresses()[0] else {
        unreachable!("it listens on TCP");
    };
    let client = TcpStream::connect(("127.0.0.1", port)).expect("it accepts");
    let limit = client.set_read_timeout(Some(SOON));
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

#[test]
fn when_a_name_says_another_address_the_next_connection_goes_there_and_sessions_go_on() {
    let (first, second) = (Named::start("first"), Named::start("second"));
    let names = Arc::new(Names::default());
    let (running, mut client) = before(&names);
    wait_until("it is told that there is no such name", || {
        let reply = get(&mut client);
        assert!(reply.starts_with("-LOADING respool: "), "{reply}");
        reply.contains("its name cannot be looked up: no such name")
    });
    names.say(&[first.address]);
    wait_until("the first one is reached", || {
        get(&mut client) == "+first\r\n"
    });
    // What is connected stays.
    let asked = names.asked.load(Ordering::SeqCst);
    names.say(&[second.address]);
    assert_eq!(get(&mut client), "+first\r\n");
    assert_eq!(names.asked.load(Ordering::SeqCst), asked);
    first.end();
    wait_until("the second one is reached", || {
        let reply = get(&mut client);
        assert!(
            reply.starts_with("-LOADING respool: ") || reply == "+second\r\n",
            "{reply}"
        );
        reply == "+second\r\n"
    });
    assert!(names.asked.load(Ordering::SeqCst) > asked);
    drop(client);
    running.drain();
    assert_eq!(running.join(SOON), 0);
    second.end();
}

#[test]
fn of_several_addresses_of_a_name_one_that_answers_is_used() {
    let [gone, there, also_gone] = ["gone", "there", "also gone"].map(Named::start);
    gone.end();
    also_gone.end();
    let names = Arc::new(Names::default());
    names.say(&[there.address, gone.address, also_gone.address]);
    let (running, mut client) = before(&names);
    // The first attempt begins with the second address, and comes to the one that is there all the same.
    assert_eq!(get(&mut client), "+there\r\n");
    assert_eq!(names.asked.load(Ordering::SeqCst), 1);
    drop(client);
    running.drain();
    assert_eq!(running.join(SOON), 0);
    there.end();
}

/// As names of primaries do that others keep: the name follows, and the old primary lives on as a replica.
#[test]
fn when_a_server_takes_no_writes_any_more_its_name_is_looked_up_again() {
    let (first, second) = (Named::start("first"), Named::start("second"));
    let names = Arc::new(Names::default());
    names.say(&[first.address]);
    let (running, mut client) = before(&names);
    assert_eq!(set(&mut client), "+first\r\n");
    first.is_replica.store(true, Ordering::SeqCst);
    // The name may follow later than the first refusal.
    assert!(set(&mut client).starts_with("-READONLY "));
    names.say(&[second.address]);
    wait_until("writes come to the second one", || {
        let reply = set(&mut client);
        assert!(
            reply.starts_with("-READONLY ") || reply == "+second\r\n",
            "nothing else happens meanwhile: {reply}"
        );
        reply == "+second\r\n"
    });
    assert_eq!(get(&mut client), "+second\r\n");
    drop(client);
    running.drain();
    assert_eq!(running.join(SOON), 0);
    first.end();
    second.end();
}

/// Settings of pools that have one server each.
fn pools_of(hosts: &[Vec<String>]) -> Settings {
    let server = |host: &String| ServerSettings {
        address: Address::Tcp {
            host: host.clone(),
            port: 6379,
        },
        credentials: None,
        db: 0,
    };
    let pools = hosts.iter().enumerate().map(|(index, hosts)| PoolSettings {
        name: format!("pool-{index}"),
        kind: match &hosts[..] {
            [host] => PoolKind::Single(server(host)),
            seeds => PoolKind::Cluster {
                seeds: seeds.iter().map(server).collect(),
            },
        },
        reads: Reads::default(),
        flush: None,
        announce: None,
        shows: Shows::default(),
        address_map: Default::default(),
    });
    Settings {
        pools: pools.collect(),
        ..Settings::default()
    }
}

/// Workers before those pools, and a client of each pool.
fn before_pools(settings: Settings, resolve: Resolve, workers: usize) -> (Running, Vec<TcpStream>) {
    let listeners = (0..settings.pools.len()).map(|pool| {
        let (host, port) = ("127.0.0.1".to_owned(), 0);
        (Address::Tcp { host, port }, pool)
    });
    let setup = Setup {
        listeners: listeners.collect(),
        socket_access: Default::default(),
        workers,
        settings: Arc::new(settings),
    };
    let running = start_with(setup, Arc::new(|_| {}), resolve).expect("it starts");
    let clients = running.addresses().into_iter().map(|address| {
        let Address::Tcp { port, .. } = address else {
            unreachable!("it listens on TCP");
        };
        let client = TcpStream::connect(("127.0.0.1", port)).expect("it accepts");
        client.set_read_timeout(Some(SOON)).expect("a limit");
        client
    });
    let clients = clients.collect();
    (running, clients)
}

/// A pool whose names hang in the resolver takes no place from the names of another pool.
#[test]
fn hanging_names_of_one_pool_leave_another_alone() {
    let server = Named::start("there");
    let (address, asked) = (server.address, Arc::new(AtomicUsize::new(0)));
    let hanging = Arc::clone(&asked);
    let resolve: Resolve = Arc::new(move |host: &str, _| {
        if host == "there.example" {
            return Ok(vec![address]);
        }
        hanging.fetch_add(1, Ordering::SeqCst);
        thread::sleep(2 * SOON);
        Err(io::Error::other("no such name"))
    });
    let hang = (0..40).map(|number| format!("hangs-{number}.example"));
    let settings = pools_of(&[hang.collect(), vec!["there.example".to_owned()]]);
    let (running, mut clients) = before_pools(settings, resolve, 2);
    let reply = get(&mut clients[0]);
    assert!(reply.starts_with("-LOADING respool: "), "{reply}");
    wait_until("every place that it may have is taken", || {
        asked.load(Ordering::SeqCst) >= 5
    });
    assert_eq!(get(&mut clients[1]), "+there\r\n");
    assert!(asked.load(Ordering::SeqCst) <= 10, "threads are bounded");
    drop(clients);
    running.drain();
    assert_eq!(running.join(SOON), 0);
    server.end();
}

/// All workers and attempts share one look-up of a name, and the error of a request says that it takes its time.
#[test]
fn slow_look_up_is_shared_and_told() {
    let asked = Arc::new(AtomicUsize::new(0));
    let (counted, server) = (Arc::clone(&asked), Named::start("there"));
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
    let (running, mut clients) = before_pools(settings, resolve, 3);
    let client = &mut clients[0];
    let reply = get(client);
    let why = "looking up slow.example has taken more than 300 ms\r\n";
    assert!(reply.ends_with(why), "{reply}");
    wait_until("an attempt is under way", || {
        let reply = get(client);
        assert!(
            reply.contains("looking up slow.example has taken "),
            "{reply}"
        );
        !reply.ends_with(why)
    });
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    may_end.store(true, Ordering::SeqCst);
    wait_until("the server is reached", || get(client) == "+there\r\n");
    assert_eq!(asked.load(Ordering::SeqCst), 1, "its result is used");
    drop(clients);
    running.drain();
    assert_eq!(running.join(SOON), 0);
    server.end();
}

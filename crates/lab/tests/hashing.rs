//! Where twemproxy puts keys, for every hash function and distribution, and where we put them.
//!
//! `nutcracker` runs before servers that answer every GET with their own number, so its replies
//! tell where it sent each key. With `RESPOOL_WRITE_VECTORS=1` these become the vectors of the
//! protocol's own tests, which need no twemproxy.

#![allow(clippy::unwrap_used, reason = "a test may stop at a surprise")]

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use respool_protocol::hashing::{Distribution, Hash, HashTag, Placement, TwemproxyNode};
use respool_testkit::random;
use respool_testkit::servers::{ReservedPort, find_program, leave_out};

/// Every hash function with every distribution by key, on lists of servers of all kinds.
#[test]
fn twemproxy_and_we_choose_the_same_server() {
    let Some(nutcracker) = Nutcracker::find() else {
        return;
    };
    let mut random = SeededKeys::seeded();
    let mut vectors = String::from(VECTORS_HEAD);
    let mut keys = interesting_keys();
    keys.resize_with(VECTOR_KEYS, || random.key());
    for key in &keys {
        let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(vectors, "key {hex}").unwrap();
    }
    keys.resize_with(VECTOR_KEYS + KEYS, || random.key());

    let mut pools = Vec::new();
    for hash in Hash::ALL {
        for distribution in [Distribution::Ketama, Distribution::Modula] {
            pools.push((hash, distribution));
        }
    }
    let (lists, _ports) = lists();
    for list in &lists {
        vectors.push_str(&list.as_vectors());
        let peer = nutcracker.start(std::slice::from_ref(list), &pools);
        for (pool, &(hash, distribution)) in pools.iter().enumerate() {
            let owners = peer.owners(pool, &keys);
            list.compare(hash, distribution, &keys, &owners);
            let owners = owners[..VECTOR_KEYS].iter();
            let digits: String = owners.map(|&owner| digit(owner)).collect();
            writeln!(vectors, "{} {} {digits}", hash.name(), distribution.name()).unwrap();
        }
    }

    if std::env::var_os("RESPOOL_WRITE_VECTORS").is_some() {
        assert_eq!(lists.len(), LISTS, "a list was left out");
        fs::write(VECTORS, vectors).unwrap();
    }
}

/// The number of points for a weight, and the order of names, on random lists.
#[test]
fn random_lists_of_servers_are_spread_alike() {
    let Some(nutcracker) = Nutcracker::find() else {
        return;
    };
    let mut random = SeededKeys::seeded();
    let pools = [
        (Hash::Fnv1aWide, Distribution::Ketama),
        (Hash::Murmur, Distribution::Modula),
    ];
    for _ in 0..RANDOM_ROUNDS {
        let lists: Vec<ServerList> = (0..RANDOM_LISTS).map(|list| random.list(list)).collect();
        let peer = nutcracker.start(&lists, &pools);
        for (index, list) in lists.iter().enumerate() {
            let keys: Vec<Vec<u8>> = (0..KEYS).map(|_| random.key()).collect();
            for (pool, &(hash, distribution)) in pools.iter().enumerate() {
                let owners = peer.owners(index * pools.len() + pool, &keys);
                list.compare(hash, distribution, &keys, &owners);
            }
        }
    }
}

/// Each request may go to any server: keys and weights do not count.
#[test]
fn random_of_twemproxy_ignores_keys_and_weights() {
    let Some(nutcracker) = Nutcracker::find() else {
        return;
    };
    let list = ServerList::new("random", None, ["0:1 a", "1:1000 b", "2:1 c"]);
    let pools = [(Hash::Fnv1aWide, Distribution::Random)];
    let peer = nutcracker.start(std::slice::from_ref(&list), &pools);
    let mut counts = [0; 3];
    for owner in peer.owners(0, &vec![b"key".to_vec(); 6_000]) {
        counts[owner] += 1;
    }
    // 2,000 each, within nine standard deviations.
    assert!(
        counts.iter().all(|count| (1_670..2_330).contains(count)),
        "{counts:?}"
    );
}

/// Keys of a server that twemproxy has ejected go where they would go if it were not in the list.
#[test]
fn an_ejected_server_is_as_one_that_is_not_listed() {
    let Some(nutcracker) = Nutcracker::find() else {
        return;
    };
    let mut random = SeededKeys::seeded();
    let lines = ["0:3 delta", "1:1 gamma", "2:7 beta", "3:2 alphabet"];
    let pools = [Distribution::Ketama, Distribution::Modula].map(|d| (Hash::Murmur, d));
    for dead in 0..lines.len() {
        let mut all = ServerList::new("all", None, lines);
        all.dead = Some(dead);
        let mut live = ServerList::new("live", None, lines);
        live.lines.remove(dead);
        let peer = nutcracker.start(std::slice::from_ref(&all), &pools);
        let keys: Vec<Vec<u8>> = (0..KEYS).map(|_| random.key()).collect();
        for (pool, &(hash, distribution)) in pools.iter().enumerate() {
            // The first key of the dead server ejects it.
            assert!(peer.replies(pool, &keys).contains(&None));
            let owners = peer.owners(pool, &keys).into_iter();
            let owners: Vec<usize> = owners.map(|n| n - usize::from(n > dead)).collect();
            live.compare(hash, distribution, &keys, &owners);
        }
    }
}

/// A list of servers as in twemproxy's configuration, with the hash tag of its pools.
struct ServerList {
    name: String,
    tag: Option<&'static str>,
    lines: Vec<String>,
    /// An unreachable server, which twemproxy ejects when it notices.
    dead: Option<usize>,
}

impl ServerList {
    /// From lines without the folder of their sockets.
    fn new<L: AsRef<str>>(
        name: &str,
        tag: Option<&'static str>,
        lines: impl IntoIterator<Item = L>,
    ) -> ServerList {
        let lines = lines.into_iter();
        ServerList {
            name: name.to_owned(),
            tag,
            lines: lines
                .map(|line| format!("{FOLDER}{}", line.as_ref()))
                .collect(),
            dead: None,
        }
    }

    fn nodes(&self) -> Vec<TwemproxyNode> {
        let lines = self.lines.iter();
        lines
            .map(|line| TwemproxyNode::parse(line).unwrap())
            .collect()
    }

    fn compare(&self, hash: Hash, distribution: Distribution, keys: &[Vec<u8>], theirs: &[usize]) {
        let tag = self.tag.map(|tag| HashTag::named(tag).unwrap());
        let placement = Placement::twemproxy(hash, distribution, tag, &self.nodes()).unwrap();
        for (key, &theirs) in keys.iter().zip(theirs) {
            let ours = placement.server_of(key, || unreachable!("the key decides"));
            assert_eq!(
                ours,
                theirs,
                "{hash:?}, {distribution:?}, key \"{}\", tag {:?}, servers {:#?}",
                key.escape_ascii(),
                self.tag,
                self.lines
            );
        }
    }

    fn as_vectors(&self) -> String {
        let mut text = format!("\nlist {} {}\n", self.tag.unwrap_or("-"), self.name);
        for line in &self.lines {
            writeln!(text, "server {line}").unwrap();
        }
        text
    }
}

/// The lists for every hash function, with the ports that some of them name.
fn lists() -> (Vec<ServerList>, Vec<ReservedPort>) {
    let mut lists = vec![
        ServerList::new("one server", None, ["0:7 alone"]),
        ServerList::new(
            "names in no order",
            None,
            ["0:1 gamma", "1:1 beta", "2:1 alphabet", "3:1 Beta"],
        ),
        ServerList::new(
            "weights, braces",
            Some("{}"),
            ["0:1 a", "1:5 b", "2:2 c", "3:10 d"],
        ),
        ServerList::new(
            "weights far apart, twice the same character",
            Some("$$"),
            ["0:100000 heavy", "1:1 light", "2:30000 medium"],
        ),
        ServerList::new(
            "shares of the points that floats of 32 bits round below a whole number",
            None,
            ["0:1 a", "1:2 b", "2:4 c", "3:6 d", "4:12 e"],
        ),
        ServerList::new(
            "names of which two have the same point, 2608162388",
            None,
            ["0:1 node1174", "1:1 node601"],
        ),
        ServerList::new(
            "paths as names",
            Some("<>"),
            ["delta:1", "b:3", "a:1", "omega:1"],
        ),
        ServerList::new(
            "long names",
            None,
            [('n', 40), ('m', 200), ('l', 200), ('k', 269)].map(|(letter, length)| {
                format!("{letter}:2 {}", letter.to_string().repeat(length))
            }),
        ),
        ServerList::new(
            "many servers",
            None,
            (0..20).map(|server| format!("{server}:1 node{server}")),
        ),
    ];

    // Addresses as names need ports.
    let ports: Vec<ReservedPort> = (0..5).map(|_| ReservedPort::new().unwrap()).collect();
    let address = |port| format!("127.0.0.1:{port}:1");
    lists.push(ServerList {
        name: "addresses as names".to_owned(),
        tag: None,
        lines: ports[..3].iter().map(|port| address(port.port)).collect(),
        dead: None,
    });
    if let Err(error) = TcpListener::bind((Ipv4Addr::LOCALHOST, KETAMA_PORT)) {
        let port = format!("port-{KETAMA_PORT}");
        leave_out(&port, format!("port {KETAMA_PORT} is taken: {error}"));
        return (lists, ports);
    }
    lists.push(ServerList {
        name: "an address with libmemcached's port".to_owned(),
        tag: None,
        lines: [ports[3].port, KETAMA_PORT, ports[4].port]
            .map(address)
            .to_vec(),
        dead: None,
    });
    (lists, ports)
}

/// Keys on which implementations differ: the empty key, tags of all shapes, signs, bytes from 0x80
/// on, and every length around the block sizes of the functions.
fn interesting_keys() -> Vec<Vec<u8>> {
    let texts = [
        "",
        "{}",
        "{a}",
        "x{a}y",
        "{}a{b}",
        "{a",
        "a}",
        "}{a}",
        "{{a}}",
        "$a$b",
        "$$a$",
        "a$b",
        "$",
        "<a>b",
        "<>a<b>",
        "+1",
        "-1",
        "user:1000",
        "a b",
        "\r\n",
        "\0",
    ];
    let mut keys: Vec<Vec<u8>> = texts.iter().map(|key| key.as_bytes().to_vec()).collect();
    for length in (1..=17_u32).chain(54..=66).chain([119, 120, 128, 1_000]) {
        keys.push((0..length).map(|at| (at * 37) as u8 ^ 0xa5).collect());
    }
    keys
}

/// The program, with the lock to run it alone: each run takes hundreds of descriptors.
struct Nutcracker {
    binary: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

impl Nutcracker {
    fn find() -> Option<Nutcracker> {
        static ALONE: Mutex<()> = Mutex::new(());
        match find_program("nutcracker") {
            Ok(binary) => Some(Nutcracker {
                binary,
                _alone: ALONE.lock().unwrap_or_else(PoisonError::into_inner),
            }),
            Err(reason) => {
                leave_out("nutcracker", reason);
                None
            }
        }
    }

    /// Starts it with a pool for each list and each of `pools`, numbered list by list.
    fn start(&self, lists: &[ServerList], pools: &[(Hash, Distribution)]) -> RunningNutcracker {
        let dir = tempfile::Builder::new()
            .prefix("respool-")
            .tempdir()
            .unwrap();
        let mut servers = Vec::new();
        let mut configuration = String::new();
        let mut pool = 0;
        for list in lists {
            for (number, node) in list.nodes().into_iter().enumerate() {
                if list.dead != Some(number) {
                    servers.push(Numbered::start(number, &node.address, dir.path()));
                }
            }
            for (hash, distribution) in pools {
                let (hash, distribution) = (hash.name(), distribution.name());
                writeln!(
                    configuration,
                    "pool{pool}: \n  listen: {FOLDER}pool{pool}\n  redis: true\n  \
                     hash: {hash}\n  distribution: {distribution}"
                )
                .unwrap();
                if let Some(tag) = list.tag {
                    writeln!(configuration, "  hash_tag: \"{tag}\"").unwrap();
                }
                if list.dead.is_some() {
                    configuration.push_str(EJECTING);
                }
                configuration.push_str("  servers:\n");
                for line in &list.lines {
                    writeln!(configuration, "    - {line}").unwrap();
                }
                pool += 1;
            }
        }
        fs::write(dir.path().join("nutcracker.yml"), &configuration).unwrap();

        // twemproxy always has a statistics port. The test does not use it.
        let statistics = ReservedPort::new().unwrap();
        let log = File::create(dir.path().join("log")).unwrap();
        let child = Command::new(&self.binary)
            .current_dir(dir.path())
            .args(["--conf-file", "nutcracker.yml", "--stats-addr", "127.0.0.1"])
            .args(["--stats-port", &statistics.port.to_string()])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut peer = RunningNutcracker {
            child,
            _servers: servers,
            dir,
            _statistics: statistics,
        };
        let deadline = Instant::now() + LIMIT;
        while (0..pool).any(|pool| peer.connect(pool).is_none()) {
            let ended = peer.child.try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "nutcracker does not start ({ended:?}): {}\n{configuration}",
                fs::read_to_string(peer.dir.path().join("log")).unwrap()
            );
            thread::sleep(Duration::from_millis(2));
        }
        peer
    }
}

/// A running `nutcracker` with its servers, ended when dropped.
struct RunningNutcracker {
    child: Child,
    // Dropped before the folder of their sockets.
    _servers: Vec<Numbered>,
    dir: tempfile::TempDir,
    _statistics: ReservedPort,
}

impl RunningNutcracker {
    /// The server that a pool sends each key to.
    fn owners(&self, pool: usize, keys: &[Vec<u8>]) -> Vec<usize> {
        let replies = self.replies(pool, keys).into_iter();
        let owners: Option<Vec<usize>> = replies.collect();
        owners.expect("twemproxy reaches every server")
    }

    /// The servers' replies, which are their numbers; `None` where twemproxy answered with an
    /// error.
    fn replies(&self, pool: usize, keys: &[Vec<u8>]) -> Vec<Option<usize>> {
        let stream = self.connect(pool).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut lines = BufReader::new(&stream).lines();
        let mut replies = Vec::with_capacity(keys.len());
        // Few enough at a time that no reply must be read while we write.
        for keys in keys.chunks(100) {
            let mut requests = Vec::new();
            for key in keys {
                write!(requests, "*2\r\n$3\r\nGET\r\n${}\r\n", key.len()).unwrap();
                requests.extend_from_slice(key);
                requests.extend_from_slice(b"\r\n");
            }
            (&stream).write_all(&requests).unwrap();
            for _ in keys {
                let line = lines.next().expect("a reply to every request").unwrap();
                let number = line.strip_prefix(':').map(|number| number.parse().unwrap());
                assert!(number.is_some() || line.starts_with('-'), "{line:?}");
                replies.push(number);
            }
        }
        replies
    }

    fn connect(&self, pool: usize) -> Option<UnixStream> {
        UnixStream::connect(self.dir.path().join(format!("pool{pool}"))).ok()
    }
}

impl Drop for RunningNutcracker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server that answers every request with its number, closed when dropped.
struct Numbered {
    is_over: Arc<AtomicBool>,
    /// Connects once to wake it; returns whether that succeeded.
    wake: Box<dyn Fn() -> bool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Numbered {
    fn start(number: usize, address: &str, dir: &Path) -> Numbered {
        if let Some(name) = address.strip_prefix(FOLDER) {
            let path = dir.join(name);
            let listener = UnixListener::bind(&path).unwrap();
            let wake = move || UnixStream::connect(&path).is_ok();
            return Numbered::serve(number, move || listener.accept().unwrap().0, wake);
        }
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let wake = move || TcpStream::connect(address).is_ok();
        Numbered::serve(number, move || listener.accept().unwrap().0, wake)
    }

    fn serve<S: Read + Write + Send + 'static>(
        number: usize,
        accept: impl Fn() -> S + Send + 'static,
        wake: impl Fn() -> bool + 'static,
    ) -> Numbered {
        let is_over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&is_over);
        let listening = move || {
            loop {
                let connection = accept();
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                // Ends when the peer closes it.
                start_thread(move || answer(BufReader::new(connection), number));
            }
        };
        Numbered {
            is_over,
            wake: Box::new(wake),
            thread: Some(start_thread(listening)),
        }
    }
}

impl Drop for Numbered {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if (self.wake)() {
            let _ = self.thread.take().map(thread::JoinHandle::join);
        }
    }
}

fn start_thread(work: impl FnOnce() + Send + 'static) -> thread::JoinHandle<()> {
    // There are hundreds of threads, and none does much.
    let builder = thread::Builder::new().stack_size(128 * 1024);
    builder.spawn(work).unwrap()
}

/// Answers the requests of one connection, until it ends.
fn answer<S: Read + Write>(mut connection: BufReader<S>, number: usize) {
    let reply = format!(":{number}\r\n");
    let mut replies = Vec::new();
    while skip_request(&mut connection).is_some() {
        replies.extend_from_slice(reply.as_bytes());
        if connection.buffer().is_empty() {
            if connection.get_mut().write_all(&replies).is_err() {
                return;
            }
            replies.clear();
        }
    }
}

/// Reads one request, an array of bulk strings; `None` at the end of the connection.
fn skip_request(connection: &mut impl BufRead) -> Option<()> {
    for _ in 0..number(connection, b'*')? {
        let length = number(connection, b'$')?;
        let mut bulk = vec![0; length + 2];
        connection.read_exact(&mut bulk).ok()?;
    }
    Some(())
}

fn number(connection: &mut impl BufRead, kind: u8) -> Option<usize> {
    let mut line = Vec::new();
    connection.read_until(b'\n', &mut line).ok()?;
    let digits = line.strip_prefix(&[kind])?.strip_suffix(b"\r\n")?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Keys and lists from a seed that is printed.
struct SeededKeys(random::Random);

impl SeededKeys {
    fn seeded() -> SeededKeys {
        let seed = random::seed();
        eprintln!("RESPOOL_TEST_SEED={seed}");
        SeededKeys(random::Random::new(seed))
    }

    fn below(&mut self, end: u32) -> u32 {
        self.0.below(end)
    }

    /// A key like those of applications, or any bytes, sometimes with a tag in it.
    fn key(&mut self) -> Vec<u8> {
        let mut key = match self.below(4) {
            0 => self.below(1_000_000).to_string().into_bytes(),
            1 => format!("user:{}:name", self.below(1_000_000)).into_bytes(),
            2 => self.bytes(24),
            _ => self.bytes(300),
        };
        if self.below(3) == 0 {
            let (open, close) = [(b'{', b'}'), (b'$', b'$'), (b'<', b'>')][self.below(3) as usize];
            for mark in [open, close] {
                let at = self.below(key.len() as u32 + 1) as usize;
                key.insert(at, mark);
            }
        }
        key
    }

    fn bytes(&mut self, end: u32) -> Vec<u8> {
        let length = self.below(end);
        (0..length).map(|_| self.below(256) as u8).collect()
    }

    /// Some servers with random names and weights. The sockets of each list have names of their
    /// own.
    fn list(&mut self, list: u32) -> ServerList {
        let weights = [1, 2, 10, 1_000][self.below(4) as usize];
        let lines = (0..2 + self.below(15)).map(|server| {
            let weight = 1 + self.below(weights);
            let length = 1 + self.below(30);
            let letter = |_| b"abcXYZ019-._:/"[self.below(14) as usize] as char;
            let name: String = (0..length).map(letter).collect();
            // The number keeps names apart.
            format!("{list}-{server}:{weight} {name}{server}")
        });
        let lines: Vec<String> = lines.collect();
        ServerList::new("random", None, lines)
    }
}

fn digit(number: usize) -> char {
    char::from_digit(number as u32, 36).unwrap()
}

/// The folder that `nutcracker` runs in, by a name of its own: so the vectors contain no path of
/// this machine.
const FOLDER: &str = "/proc/self/cwd/";
const VECTORS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../protocol/tests/hashing/twemproxy.txt"
);
const VECTORS_HEAD: &str = "\
# The servers to which twemproxy 0.5.0 (Debian's nutcracker) sends keys, recorded from twemproxy
# itself by `RESPOOL_WRITE_VECTORS=1 cargo test -p respool-lab --test hashing`.
#
# key HEX                        A key.
# list TAG NAME                  A list of servers, the hash tag of its pool or -, and its special feature.
# server LINE                    A server of that list, as in twemproxy's configuration.
# HASH DISTRIBUTION DIGITS       The server of each key, in the order of the keys: its place in the list, base 36.
";
/// The number of lists when none is left out.
const LISTS: usize = 11;
const EJECTING: &str = "  auto_eject_hosts: true
  server_failure_limit: 1
  server_retry_timeout: 600000
";
const VECTOR_KEYS: usize = 200;
const KEYS: usize = 3_000;
const RANDOM_ROUNDS: usize = 3;
const RANDOM_LISTS: u32 = 8;
/// The port that twemproxy leaves out of a name.
const KETAMA_PORT: u16 = 11_211;
const LIMIT: Duration = Duration::from_secs(20);

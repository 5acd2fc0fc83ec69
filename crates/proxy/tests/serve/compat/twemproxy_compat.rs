//! From twemproxy to respool and back: over the same servers, by the same names, weights and rule,
//! each finds the keys that the other has written.

use std::fmt::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use respool_testkit::client::{Reply, RespClient, request, text, words};
use respool_testkit::servers::{self, Proxy, ReservedPort, ServerProcess, any_server};
use respool_testkit::time::wait_until;

use crate::target::respool;

/// The time in which an expected event comes, on a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// Where a server listens beside its port, in its folder.
const SOCKET: &str = "redis.sock";

/// Keys that each of the two writes.
const KEYS: usize = 2_000;

/// A pool's rule for the owner of a key. An option that twemproxy lacks is none for respool, too.
struct HashRule {
    hash: &'static str,
    distribution: &'static str,
    tag: Option<&'static str>,
    weights: [u32; 3],
    names: Option<[&'static str; 3]>,
    /// By their sockets in the file system.
    sockets: bool,
}

const RULES: [HashRule; 7] = [
    HashRule {
        hash: "fnv1a_64",
        distribution: "ketama",
        tag: None,
        weights: [1, 1, 1],
        names: None,
        sockets: false,
    },
    HashRule {
        hash: "fnv1a_64",
        distribution: "ketama",
        tag: Some("{}"),
        weights: [1, 5, 2],
        names: Some(["gamma", "alpha", "Beta"]),
        sockets: false,
    },
    HashRule {
        hash: "murmur",
        distribution: "ketama",
        tag: Some("$$"),
        weights: [3, 1, 1],
        names: None,
        sockets: false,
    },
    HashRule {
        hash: "md5",
        distribution: "modula",
        tag: None,
        weights: [2, 1, 4],
        names: Some(["c", "a", "b"]),
        sockets: false,
    },
    HashRule {
        hash: "crc32a",
        distribution: "modula",
        tag: Some("{}"),
        weights: [1, 1, 1],
        names: None,
        sockets: false,
    },
    HashRule {
        hash: "fnv1a_64",
        distribution: "ketama",
        tag: None,
        weights: [1, 4, 1],
        names: None,
        sockets: true,
    },
    HashRule {
        hash: "murmur",
        distribution: "ketama",
        tag: Some("{}"),
        weights: [1, 1, 1],
        names: Some(["gamma", "alpha", "Beta"]),
        sockets: true,
    },
];

impl HashRule {
    /// The name of a server in both configurations.
    fn address_of(&self, server: &ServerProcess) -> String {
        match self.sockets {
            true => server.dir().join(SOCKET).display().to_string(),
            false => server.address().to_string(),
        }
    }

    fn twemproxy(&self, port: u16, servers: &[ServerProcess]) -> String {
        let (hash, distribution) = (self.hash, self.distribution);
        let mut text = format!(
            "pool:\n  listen: 127.0.0.1:{port}\n  redis: true\n  hash: {hash}\n  distribution: {distribution}\n"
        );
        if let Some(tag) = self.tag {
            let _ = writeln!(text, "  hash_tag: \"{tag}\"");
        }
        text.push_str("  servers:\n");
        for (place, server) in servers.iter().enumerate() {
            let _ = write!(
                text,
                "   - {}:{}",
                self.address_of(server),
                self.weights[place]
            );
            if let Some(names) = self.names {
                let _ = write!(text, " {}", names[place]);
            }
            text.push('\n');
        }
        text
    }

    fn url(&self, servers: &[ServerProcess]) -> String {
        let server = |(server, weight): (&ServerProcess, &u32)| {
            let address = self.address_of(server).replace('/', "%2F");
            format!("{address}:{weight}")
        };
        let servers: Vec<String> = servers.iter().zip(&self.weights).map(server).collect();
        let tag = self.tag.unwrap_or_default();
        let tag: String = tag.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let names = self
            .names
            .map(|names| format!("&names={}", names.join(",")));
        format!(
            "redis-sharded://{}?hash={}&distribution={}&hash-tag={tag}{}",
            servers.join(","),
            self.hash,
            self.distribution,
            names.unwrap_or_default()
        )
    }
}

/// A running `nutcracker`.
struct Twemproxy {
    child: Child,
    port: ReservedPort,
    /// The folder of its configuration.
    _folder: tempfile::TempDir,
}

impl Drop for Twemproxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Twemproxy {
    fn start(binary: &Path, configuration: impl Fn(u16) -> String) -> Twemproxy {
        let folder = tempfile::tempdir().expect("a folder");
        let [port, statistics] = [(); 2].map(|()| ReservedPort::new().expect("a free port"));
        let file = folder.path().join("nutcracker.yml");
        std::fs::write(&file, configuration(port.port)).expect("a file");
        let log = std::fs::File::create(folder.path().join("log")).expect("a file");
        let child = Command::new(binary)
            .arg("--conf-file")
            .arg(&file)
            .args(["--stats-addr", "127.0.0.1", "--stats-port"])
            .arg(statistics.port.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{error}"));
        let twemproxy = Twemproxy {
            child,
            port,
            _folder: folder,
        };
        wait_until("twemproxy listens", SOON, || {
            TcpStream::connect(twemproxy.address()).is_ok()
        });
        twemproxy
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port.port))
    }
}

/// Many keys, a third of them with one tag or the other, of which some are empty.
fn keys(of: &str) -> Vec<String> {
    let key = |number: usize| match number % 6 {
        0 => format!("{of}:{{user:{}}}:{number}", number / 12),
        1 => format!("${}${of}{number}", number / 24),
        2 => format!("{of}{{}}{number}"),
        3 => format!("{number:08x}:{of}"),
        _ => format!("{of}:{number}"),
    };
    (0..KEYS).map(key).collect()
}

/// Asks for all of it, some at a time.
fn all(client: &mut RespClient, requests: &[Vec<u8>]) -> Vec<Reply> {
    let some = requests.chunks(100);
    some.flat_map(|some| client.exchange(some.concat(), some.len()))
        .collect()
}

fn write(address: SocketAddr, keys: &[String], suffix: &str) {
    let mut client = RespClient::connect(address);
    let set = |key: &String| request(&["SET", key, &format!("{key}{suffix}")]);
    let replies = all(&mut client, &keys.iter().map(set).collect::<Vec<_>>());
    assert_eq!(replies, vec![Reply::ok(); keys.len()]);
}

fn is_read(address: SocketAddr, keys: &[String], suffix: &str) {
    let mut client = RespClient::connect(address);
    let get = |key: &String| request(&["GET", key]);
    let replies = all(&mut client, &keys.iter().map(get).collect::<Vec<_>>());
    for (key, reply) in keys.iter().zip(replies) {
        assert_eq!(reply, Reply::bulk(format!("{key}{suffix}")), "{key}");
    }
    for some in keys.chunks(50) {
        let get = [&["MGET".to_owned()], some].concat();
        let values = some.iter().map(|key| Reply::bulk(format!("{key}{suffix}")));
        assert_eq!(client.call_args(&get), Reply::Array(values.collect()));
    }
}

/// respool reads keys that twemproxy has written, and twemproxy reads keys of respool.
#[test]
fn twemproxy_and_respool_read_each_others_keys() {
    let nutcracker = match servers::find_program("nutcracker") {
        Ok(nutcracker) => nutcracker,
        Err(reason) => return servers::leave_out("nutcracker", reason),
    };
    for rule in &RULES {
        let start = |_| ServerProcess::start(&any_server(), &["--unixsocket", SOCKET]);
        let servers: Vec<ServerProcess> = (0..3)
            .map(start)
            .collect::<Result<_, _>>()
            .unwrap_or_else(|error| panic!("{error}"));
        let theirs = Twemproxy::start(&nutcracker, |port| rule.twemproxy(port, &servers));
        let url = rule.url(&servers);
        eprintln!("{url}");
        let ours = Proxy::start(&respool(), &[format!("--backend={url}")]);
        let ours = ours.unwrap_or_else(|error| panic!("{error}"));

        let [first, second] = [keys("first"), keys("second")];
        write(theirs.address(), &first, "");
        is_read(ours.address(), &first, "");
        write(ours.address(), &second, "");
        is_read(theirs.address(), &second, "");
        // Each proxy reads the other's overwritten values, and no key is at two servers.
        write(ours.address(), &first, "again");
        is_read(theirs.address(), &first, "again");
        write(theirs.address(), &second, "again");
        is_read(ours.address(), &second, "again");
        let held: Vec<i64> = servers
            .iter()
            .map(
                |server| match RespClient::connect(server.address()).call("DBSIZE") {
                    Reply::Integer(keys) => keys,
                    other => panic!("{other:?}"),
                },
            )
            .collect();
        assert_eq!(held.iter().sum::<i64>(), 2 * KEYS as i64, "{held:?}");
        assert!(held.iter().all(|keys| *keys > 100), "{held:?}");
        // Of weights that are far apart the heaviest has most.
        let heaviest = rule.weights.iter().max();
        if rule
            .weights
            .iter()
            .filter(|weight| Some(*weight) == heaviest)
            .count()
            == 1
        {
            let most = (0..3).max_by_key(|place| held[*place]);
            let heaviest = (0..3).max_by_key(|place| rule.weights[*place]);
            assert_eq!(most, heaviest, "{held:?}");
        }

        // A key that one deletes is gone for the other.
        let deleted = [&["DEL".to_owned()], &first[..40]].concat();
        let mut client = RespClient::connect(ours.address());
        assert_eq!(client.call_args(&deleted), Reply::Integer(40));
        let mut client = RespClient::connect(theirs.address());
        assert_eq!(client.call_args(&deleted), Reply::Integer(0));
        client.send(&words(&format!("GET {}", first[40])));
        assert_eq!(text(&client.reply()), format!("{}again", first[40]));
    }
}

//! Whole topologies of real servers, started for one test or one experiment and gone with it.
//!
//! A [`Cluster`] of primaries and replicas, [`Sentinels`] over what they watch, plain [`Shards`]. All are made of
//! [`Node`]s, which can be asked, killed, frozen and restarted one by one. What waits here waits for what the nodes
//! say of themselves and of each other, never for a time; after a bound it fails and says what was still missing.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Deref;
use std::path::Path;
use std::time::{Duration, Instant};

use respool_protocol::encode;
use respool_protocol::value::Value;

use crate::reply::ReplyScanner;
use crate::servers::{Process, Server};

mod cluster;
mod sentinels;

pub use cluster::{Cluster, ClusterSettings, Seen};
pub use sentinels::{Sentinels, SentinelsSettings, Watched};

/// One process of a topology: killed and reaped when dropped, as every [`Process`].
#[derive(Debug)]
pub struct Node {
    server: Server,
    password: Option<String>,
}

impl Node {
    fn new(server: Server, password: Option<&str>) -> Node {
        let password = password.map(str::to_owned);
        Node { server, password }
    }

    /// Whether it runs and is not frozen, so that there is sense in asking it.
    pub fn is_answering(&self) -> bool {
        self.is_running() && !self.is_frozen()
    }

    /// A connection to it, past the password if it has one.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn connect(&self) -> io::Result<Connection> {
        let mut connection = Connection::open(self.address(), ASK_LIMIT)?;
        if let Some(password) = &self.password {
            connection.order(&["AUTH", password])?;
        }
        Ok(connection)
    }

    /// Its reply to one request on a connection made for it, an error reply too.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn ask<A: AsRef<[u8]>>(&self, args: &[A]) -> io::Result<Value> {
        self.connect()?.ask(args)
    }

    /// As [`Node::ask`], for what must not be refused.
    ///
    /// # Errors
    /// When it does not answer, or answers with an error.
    pub fn order<A: AsRef<[u8]>>(&self, args: &[A]) -> io::Result<Value> {
        self.connect()?.order(args)
    }

    /// A field of a section of INFO, such as `role` of `replication`.
    ///
    /// # Errors
    /// When it does not answer or has no such field.
    pub fn info(&self, section: &str, field: &str) -> io::Result<String> {
        let info = text(&self.order(&["INFO", section])?)?;
        let found = field_of(&info, field);
        found.map(str::to_owned).ok_or_else(|| {
            io::Error::other(format!("{}: INFO has no {field}: {info}", self.address()))
        })
    }

    /// Starts it again on the same port, without its keys; kills it first if it runs.
    ///
    /// # Errors
    /// When it does not start.
    pub fn restart(&mut self) -> io::Result<()> {
        self.server.restart()
    }
}

impl Deref for Node {
    type Target = Process;
    fn deref(&self) -> &Process {
        &self.server
    }
}

/// One connection, on which one thing is asked at a time.
#[derive(Debug)]
pub struct Connection {
    address: SocketAddr,
    stream: TcpStream,
}

impl Connection {
    /// One to whoever listens there, on which nothing takes longer than `limit`.
    ///
    /// # Errors
    /// When nobody accepts.
    pub fn open(address: SocketAddr, limit: Duration) -> io::Result<Connection> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
        let stream = TcpStream::connect_timeout(&address, limit).map_err(named)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(limit))?;
        Ok(Connection { address, stream })
    }

    /// The reply to one request, an error reply too.
    ///
    /// # Errors
    /// When none comes; the connection is of no use after that.
    pub fn ask<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Value> {
        let result = self.exchange(args);
        result.map_err(|error| self.about(args, error.kind(), &error.to_string()))
    }

    /// As [`Connection::ask`], for what must not be refused.
    ///
    /// # Errors
    /// When no reply comes, or an error.
    pub fn order<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Value> {
        match self.ask(args)? {
            Value::Error(error) => {
                let error = String::from_utf8_lossy(&error);
                Err(self.about(args, io::ErrorKind::Other, &error))
            }
            reply => Ok(reply),
        }
    }

    fn exchange<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Value> {
        let mut request = Vec::new();
        encode::request(&mut request, args);
        self.stream.write_all(&request)?;
        let mut scanner = ReplyScanner::default();
        let mut reply = Vec::new();
        let mut buffer = [0; 16 << 10];
        loop {
            let length = self.stream.read(&mut buffer)?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let read = &buffer[..length];
            reply.extend_from_slice(read);
            let end = scanner.feed(read);
            if end.map_err(|_| io::Error::other("no reply"))?.is_some() {
                // What stands behind the reply, were there anything, would make it unreadable, too.
                return Value::read(&reply).ok_or_else(|| io::Error::other("not one reply"));
            }
        }
    }

    /// What went wrong, with whom and with what.
    fn about<A: AsRef<[u8]>>(&self, args: &[A], kind: io::ErrorKind, what: &str) -> io::Error {
        let mut request = String::new();
        for arg in args.iter().take(WORDS_SHOWN) {
            request.push_str(&arg.as_ref().escape_ascii().to_string());
            request.push(' ');
        }
        io::Error::new(kind, format!("{}: {request}: {what}", self.address))
    }
}

/// Servers that know nothing of each other.
#[derive(Debug)]
pub struct Shards {
    nodes: Vec<Node>,
}

impl Shards {
    /// So many of one binary, each with these arguments.
    ///
    /// # Errors
    /// When one does not start.
    pub fn start<A: AsRef<OsStr>>(binary: &Path, count: usize, args: &[A]) -> io::Result<Shards> {
        let start = |_| Ok(Node::new(Server::start(binary, args)?, None));
        let nodes = (0..count).map(start).collect::<io::Result<_>>()?;
        Ok(Shards { nodes })
    }

    /// All of them, also those that have been killed.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// One of them.
    pub fn node(&self, node: usize) -> &Node {
        &self.nodes[node]
    }

    /// One of them, to restart it.
    pub fn node_mut(&mut self, node: usize) -> &mut Node {
        &mut self.nodes[node]
    }

    /// Where they listen.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        addresses(&self.nodes)
    }
}

/// How respool is told of plain servers among which it divides the keys. One alone needs no dividing.
pub fn sharded_url(servers: &[SocketAddr]) -> String {
    match servers {
        [one] => format!("redis://{one}"),
        several => format!("redis-sharded://{}", listed(several)),
    }
}

/// How respool is told of a Cluster, by some of its nodes.
pub fn cluster_url(nodes: &[SocketAddr]) -> String {
    format!("redis-cluster://{}", listed(nodes))
}

/// How respool is told of a primary by who watches it.
pub fn sentinel_url(sentinels: &[SocketAddr], name: &str) -> String {
    format!("redis-sentinel://{}/{name}", listed(sentinels))
}

fn listed(addresses: &[SocketAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    texts.join(",")
}

/// Longer than any of our questions takes on a busy machine, MIGRATE's own bound included.
const ASK_LIMIT: Duration = Duration::from_secs(10);
/// Enough to recognise a request by.
const WORDS_SHOWN: usize = 4;
/// Within which a topology has formed, or never will.
const FORM_LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

fn addresses(nodes: &[Node]) -> Vec<SocketAddr> {
    nodes.iter().map(|node| node.address()).collect()
}

/// Looks again and again, and returns what is found; when nothing is in time, what was missing last.
fn wait_until<T>(limit: Duration, mut look: impl FnMut() -> Result<T, String>) -> io::Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        match look() {
            Ok(found) => return Ok(found),
            Err(missing) if Instant::now() > deadline => {
                let text = format!("not within {limit:?}: {missing}");
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            Err(_) => std::thread::sleep(POLL),
        }
    }
}

/// None of these has ended; if one has, the text carries its log.
fn check_running(nodes: &[Node]) -> io::Result<()> {
    match nodes.iter().find(|node| !node.is_running()) {
        None => Ok(()),
        Some(node) => Err(io::Error::other(format!(
            "{} has ended; its log:\n{}",
            node.address(),
            node.log()
        ))),
    }
}

/// The text of a reply that has one.
fn text(reply: &Value) -> io::Result<String> {
    let text = reply
        .text()
        .map(|text| String::from_utf8_lossy(text).into_owned());
    text.ok_or_else(|| io::Error::other(format!("a text was expected: {reply:?}")))
}

/// The value of `field` in lines of `field:value`.
fn field_of<'a>(lines: &'a str, field: &str) -> Option<&'a str> {
    lines
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
}

/// Of a replica: whether it follows this primary, has what it had, and hears what comes now.
fn check_replica(replica: &Node, primary: SocketAddr) -> Result<(), String> {
    let info = replica.order(&["INFO", "replication"]);
    let info = info.and_then(|info| text(&info));
    let info = info.map_err(|error| error.to_string())?;
    let own = replica.address();
    let field = |name| field_of(&info, name).unwrap_or_default();
    match (field("master_port"), field("master_link_status")) {
        (port, _) if port != primary.port().to_string() => {
            Err(format!("{own} does not follow {primary}: {info}"))
        }
        (_, "up") => Ok(()),
        (_, status) => Err(format!("{own}: its primary {primary} is {status}")),
    }
}

/// No file is written, and a replica need not wait until others have come. Since 7.0 that is a delay of five seconds.
const REPLICATION: [&str; 4] = [
    "--repl-diskless-sync",
    "yes",
    "--repl-diskless-sync-delay",
    "0",
];

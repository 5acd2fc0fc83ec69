//! Topologies of real servers, started for one test or experiment and ended with it.
//!
//! There are a [`TestCluster`] of primaries and replicas, [`Sentinels`] with the primaries that
//! they watch, and plain [`Shards`]. All consist of [`Node`]s, which a test can query, kill, freeze
//! and restart one by one. Functions that wait look at the reports of the nodes, and never wait for
//! a fixed time. After a bound they fail and name the missing condition.

use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::certificates::CertificateFiles;
use crate::client::{Reply, RespClient};
use crate::servers::{Process, ReservedPort, ServerProcess};

mod cluster;
mod sentinels;

pub use cluster::{ClusterSettings, Seen, TestCluster};
pub use sentinels::{Sentinels, SentinelsSettings, Watched};

/// One process of a topology, killed and reaped when dropped.
#[derive(Debug)]
pub struct Node {
    server: ServerProcess,
    password: Option<String>,
    /// The port of its clients with TLS, reserved as long as this lives.
    tls_port: Option<ReservedPort>,
}

/// The TLS of servers: they have a port with TLS beside the plain one.
#[derive(Clone, Debug)]
pub struct TestTls {
    /// The certificate of the servers.
    pub identity: CertificateFiles,
    /// The CA of their peers.
    pub ca: PathBuf,
    /// Whether clients need a certificate.
    pub asks_clients: bool,
}

impl TestTls {
    /// Reserves a port, and the arguments by which a server has TLS there.
    ///
    /// # Errors
    /// When no port is free.
    pub fn listen(&self) -> io::Result<(ReservedPort, Vec<String>)> {
        let port = ReservedPort::new()?;
        let number = port.port.to_string();
        let path = |path: &Path| path.display().to_string();
        let asks = if self.asks_clients { "yes" } else { "no" };
        let args = [
            ("--tls-port", number),
            ("--tls-cert-file", path(&self.identity.cert)),
            ("--tls-key-file", path(&self.identity.key)),
            ("--tls-ca-cert-file", path(&self.ca)),
            ("--tls-auth-clients", asks.to_owned()),
        ];
        let args = args
            .into_iter()
            .flat_map(|(name, value)| [name.to_owned(), value]);
        Ok((port, args.collect()))
    }
}

impl Node {
    fn new(server: ServerProcess, password: Option<&str>) -> Node {
        Node {
            server,
            password: password.map(str::to_owned),
            tls_port: None,
        }
    }

    /// Where clients with TLS connect.
    pub fn tls_address(&self) -> Option<SocketAddr> {
        let port = self.tls_port.as_ref()?.port;
        Some(SocketAddr::new(self.address().ip(), port))
    }

    /// Whether it runs and is not frozen, so that it can answer.
    pub fn is_answering(&self) -> bool {
        self.is_running() && !self.is_frozen()
    }

    /// A connection to it, logged in if it has a password.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn connect(&self) -> io::Result<RespClient> {
        let mut client = RespClient::open(self.address(), ASK_LIMIT)?;
        if let Some(password) = &self.password {
            client.ask_ok(&["AUTH", password])?;
        }
        Ok(client)
    }

    /// Its reply to one request on a new connection; error replies count.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn ask<A: AsRef<[u8]>>(&self, args: &[A]) -> io::Result<Reply> {
        self.connect()?.ask(args)
    }

    /// As [`Node::ask`], but an error reply is an error.
    ///
    /// # Errors
    /// When it does not answer, or answers with an error.
    pub fn ask_ok<A: AsRef<[u8]>>(&self, args: &[A]) -> io::Result<Reply> {
        self.connect()?.ask_ok(args)
    }

    /// A field of a section of INFO, such as `role` of `replication`.
    ///
    /// # Errors
    /// When it does not answer or has no such field.
    pub fn info(&self, section: &str, field: &str) -> io::Result<String> {
        let info = text(&self.ask_ok(&["INFO", section])?)?;
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

/// Independent servers.
#[derive(Debug)]
pub struct Shards {
    nodes: Vec<Node>,
}

impl Shards {
    /// Starts so many servers of one binary, each with these arguments.
    ///
    /// # Errors
    /// When one does not start.
    pub fn start<A: AsRef<OsStr>>(binary: &Path, count: usize, args: &[A]) -> io::Result<Shards> {
        let start = |_| Ok(Node::new(ServerProcess::start(binary, args)?, None));
        let nodes = (0..count).map(start).collect::<io::Result<_>>()?;
        Ok(Shards { nodes })
    }

    /// All servers, killed ones as well.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// One server.
    pub fn node(&self, node: usize) -> &Node {
        &self.nodes[node]
    }

    /// One server, to restart it.
    pub fn node_mut(&mut self, node: usize) -> &mut Node {
        &mut self.nodes[node]
    }

    /// Where they listen.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        addresses(&self.nodes)
    }
}

/// respool's URL for plain servers. One server alone needs no sharding.
pub fn sharded_url(servers: &[SocketAddr]) -> String {
    match servers {
        [one] => format!("redis://{one}"),
        several => format!("redis-sharded://{}", listed(several)),
    }
}

/// respool's URL for a Cluster, with these seed nodes.
pub fn cluster_url(nodes: &[SocketAddr]) -> String {
    format!("redis-cluster://{}", listed(nodes))
}

/// respool's URL for a primary that these Sentinels watch under this name.
pub fn sentinel_url(sentinels: &[SocketAddr], name: &str) -> String {
    format!("redis-sentinel://{}/{name}", listed(sentinels))
}

fn listed(addresses: &[SocketAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    texts.join(",")
}

/// Longer than any query takes on a busy machine, MIGRATE with its own bound included.
const ASK_LIMIT: Duration = Duration::from_secs(10);
/// The time in which a topology has formed, or never will.
const FORM_LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

fn addresses(nodes: &[Node]) -> Vec<SocketAddr> {
    nodes.iter().map(|node| node.address()).collect()
}

/// Polls until `look` succeeds. After `limit`, the error has the last missing condition.
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

/// Checks that all of these run. The error has the log of one that has ended.
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

/// The text of a reply.
fn text(reply: &Reply) -> io::Result<String> {
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

/// Checks that a replica follows this primary, has its data, and is connected.
fn check_replica(replica: &Node, primary: SocketAddr) -> Result<(), String> {
    let info = replica.ask_ok(&["INFO", "replication"]);
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

/// Replication without a file, and without the five seconds that 7.0 and newer wait for more
/// replicas.
const REPLICATION: [&str; 4] = [
    "--repl-diskless-sync",
    "yes",
    "--repl-diskless-sync-delay",
    "0",
];

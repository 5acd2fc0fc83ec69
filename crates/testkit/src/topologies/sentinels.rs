//! Real Sentinels with the primaries that they watch.

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use crate::client::Reply;

use super::{FORM_LIMIT, Node, REPLICATION, check_replica, check_running, text, wait_until};
use crate::servers::ServerProcess;

/// The settings of [`Sentinels`].
#[derive(Clone, Debug)]
pub struct SentinelsSettings {
    /// The number of Sentinels.
    pub sentinels: usize,
    /// How many of them must agree that a primary has failed.
    pub quorum: usize,
    /// How many primaries they watch: `m0`, `m1`, …
    pub watched: usize,
    /// Replicas of each primary.
    pub replicas: usize,
    /// The silence after which a Sentinel takes a server for failed. It is more than a second:
    /// Redis 6.2 waits one second before its first query of a new primary, and would count that as
    /// silence.
    pub down_after: Duration,
    /// The time in which a failover succeeds or is tried again.
    pub failover_timeout: Duration,
    /// The password of the servers, for clients, Sentinels and replicas.
    pub password: Option<String>,
    /// The password of the Sentinels, for clients and other Sentinels.
    pub sentinel_password: Option<String>,
    /// More arguments for every server.
    pub args: Vec<String>,
}

impl Default for SentinelsSettings {
    /// Three Sentinels with a quorum of two, over two primaries with a replica each.
    fn default() -> SentinelsSettings {
        SentinelsSettings {
            sentinels: 3,
            quorum: 2,
            watched: 2,
            replicas: 1,
            down_after: Duration::from_millis(1500),
            failover_timeout: Duration::from_secs(5),
            password: None,
            sentinel_password: None,
            args: Vec::new(),
        }
    }
}

/// Sentinels that know each other, the primaries and their replicas.
#[derive(Debug)]
pub struct Sentinels {
    sentinels: Vec<Node>,
    watched: Vec<Watched>,
}

/// A primary and its replicas, under one name.
#[derive(Debug)]
pub struct Watched {
    name: String,
    servers: Vec<Node>,
}

impl Watched {
    /// The name that the Sentinels use.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The servers; the first one began as primary.
    pub fn servers(&self) -> &[Node] {
        &self.servers
    }

    /// One server.
    pub fn server(&self, server: usize) -> &Node {
        &self.servers[server]
    }

    /// One server, to restart it. It comes back as it was first started, without later commands.
    pub fn server_mut(&mut self, server: usize) -> &mut Node {
        &mut self.servers[server]
    }

    fn start(name: String, binary: &Path, settings: &SentinelsSettings) -> io::Result<Watched> {
        let mut servers: Vec<Node> = Vec::new();
        let password = settings.password.as_deref();
        for _ in 0..=settings.replicas {
            let mut args: Vec<String> = REPLICATION.iter().map(|arg| (*arg).to_owned()).collect();
            if let Some(primary) = servers.first() {
                let address = primary.address();
                args.extend(["--replicaof".to_owned(), address.ip().to_string()]);
                args.push(address.port().to_string());
            }
            for name in ["--requirepass", "--masterauth"] {
                args.extend(
                    password
                        .into_iter()
                        .flat_map(|word| [name.to_owned(), word.to_owned()]),
                );
            }
            args.extend(settings.args.iter().cloned());
            servers.push(Node::new(ServerProcess::start(binary, &args)?, password));
        }
        Ok(Watched { name, servers })
    }
}

impl Sentinels {
    /// Starts servers and Sentinels. Returns when every Sentinel knows every replica and every
    /// other Sentinel.
    ///
    /// # Errors
    /// When one does not start, or they do not find each other.
    pub fn start(binary: &Path, settings: &SentinelsSettings) -> io::Result<Sentinels> {
        let mut watched = Vec::new();
        for number in 0..settings.watched {
            watched.push(Watched::start(format!("m{number}"), binary, settings)?);
        }
        // A Sentinel asks a primary for its replicas at once, and then only after ten seconds.
        for Watched { servers, .. } in &watched {
            let primary = servers[0].address();
            let check = |replica| check_replica(replica, primary);
            wait_until(FORM_LIMIT, || servers[1..].iter().try_for_each(check))?;
        }
        let mut started = Sentinels {
            sentinels: Vec::new(),
            watched,
        };
        let configuration = started.configuration(settings);
        for _ in 0..settings.sentinels {
            let server = ServerProcess::start_sentinel(binary, &configuration)?;
            let sentinel = Node::new(server, settings.sentinel_password.as_deref());
            hurry(&sentinel)?;
            started.sentinels.push(sentinel);
        }
        started.wait_until_whole(FORM_LIMIT)?;
        // The check below skips a process that has ended.
        check_running(&started.sentinels)?;
        for watched in &started.watched {
            check_running(&watched.servers)?;
        }
        Ok(started)
    }

    /// All Sentinels, killed ones as well.
    pub fn sentinels(&self) -> &[Node] {
        &self.sentinels
    }

    /// One Sentinel.
    pub fn sentinel(&self, sentinel: usize) -> &Node {
        &self.sentinels[sentinel]
    }

    /// Restarts a Sentinel; kills it first if it runs. It keeps its knowledge.
    ///
    /// # Errors
    /// When it does not start.
    pub fn restart_sentinel(&mut self, sentinel: usize) -> io::Result<()> {
        self.sentinels[sentinel].restart()?;
        hurry(&self.sentinels[sentinel])
    }

    /// Where the Sentinels listen.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        super::addresses(&self.sentinels)
    }

    /// All watched primaries with their replicas.
    pub fn all_watched(&self) -> &[Watched] {
        &self.watched
    }

    /// One primary with its replicas.
    pub fn watched(&self, watched: usize) -> &Watched {
        &self.watched[watched]
    }

    /// One primary with its replicas, to restart a server.
    pub fn watched_mut(&mut self, watched: usize) -> &mut Watched {
        &mut self.watched[watched]
    }

    /// The address of the primary, as a Sentinel names it.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn named_by(&self, sentinel: usize, watched: usize) -> io::Result<SocketAddr> {
        let name = &self.watched[watched].name;
        let sentinel = &self.sentinels[sentinel];
        let reply = sentinel.ask_ok(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name])?;
        let address = match &reply {
            Reply::Array(words) => match &words[..] {
                [ip, port] => format!("{}:{}", text(ip)?, text(port)?).parse().ok(),
                _ => None,
            },
            _ => None,
        };
        address.ok_or_else(|| io::Error::other(format!("no address: {reply:?}")))
    }

    /// The server that says it is the primary and that all answering Sentinels name.
    ///
    /// # Errors
    /// When they do not agree, or one does not answer.
    pub fn primary(&self, watched: usize) -> io::Result<usize> {
        let mut named = None;
        for sentinel in 0..self.sentinels.len() {
            if !self.sentinels[sentinel].is_answering() {
                continue;
            }
            let address = self.named_by(sentinel, watched)?;
            if *named.get_or_insert(address) != address {
                return Err(io::Error::other("the Sentinels do not agree"));
            }
        }
        let address = named.ok_or_else(|| io::Error::other("no Sentinel answers"))?;
        let servers = &self.watched[watched].servers;
        let server = servers
            .iter()
            .position(|server| server.address() == address);
        let server = server.ok_or_else(|| io::Error::other(format!("{address} is a stranger")))?;
        match servers[server].info("replication", "role")?.as_str() {
            "master" => Ok(server),
            role => Err(io::Error::other(format!("{address} is a {role}"))),
        }
    }

    /// Has one Sentinel begin a failover from a running primary.
    ///
    /// # Errors
    /// When it refuses.
    pub fn begin_failover(&self, sentinel: usize, watched: usize) -> io::Result<()> {
        let args = ["SENTINEL", "FAILOVER", &self.watched[watched].name];
        self.sentinels[sentinel].ask_ok(&args).map(drop)
    }

    /// Returns when another server than this one is the primary, by [`Sentinels::primary`]. Returns
    /// its index.
    ///
    /// # Errors
    /// When that takes too long. The text names the missing condition.
    pub fn wait_for_other_primary(
        &self,
        watched: usize,
        than: usize,
        limit: Duration,
    ) -> io::Result<usize> {
        wait_until(limit, || match self.primary(watched) {
            Ok(primary) if primary != than => Ok(primary),
            Ok(_) => Err(format!("server {than} is still the primary")),
            Err(error) => Err(error.to_string()),
        })
    }

    /// Returns when every answering Sentinel sees all servers and all answering Sentinels as
    /// healthy, and each replica among them has its primary's data.
    ///
    /// # Errors
    /// When that takes too long. The text names the missing condition.
    pub fn wait_until_whole(&self, limit: Duration) -> io::Result<()> {
        wait_until(limit, || {
            (0..self.watched.len()).try_for_each(|watched| self.check_whole(watched))
        })
    }

    fn check_whole(&self, watched: usize) -> Result<(), String> {
        let primary = self.primary(watched).map_err(|error| error.to_string())?;
        let Watched { name, servers } = &self.watched[watched];
        let primary = servers[primary].address();
        let answering = |node: &&Node| node.is_answering();
        let mut replicas: Vec<&Node> = servers.iter().filter(answering).collect();
        replicas.retain(|replica| replica.address() != primary);
        for replica in &replicas {
            check_replica(replica, primary)?;
        }
        let sentinels: Vec<&Node> = self.sentinels.iter().filter(answering).collect();
        for sentinel in &sentinels {
            let own = sentinel.address();
            let known = listed(sentinel, "SENTINELS", name)?;
            let others = sentinels.iter().map(|other| other.address());
            for other in others.filter(|&other| other != own) {
                check_listed(own, other, &known, None)?;
            }
            let known = listed(sentinel, "REPLICAS", name)?;
            for replica in &replicas {
                check_listed(own, replica.address(), &known, Some(primary))?;
            }
        }
        Ok(())
    }

    fn configuration(&self, settings: &SentinelsSettings) -> String {
        let mut lines = String::new();
        for Watched { name, servers } in &self.watched {
            let address = servers[0].address();
            let (ip, port, quorum) = (address.ip(), address.port(), settings.quorum);
            let down_ms = settings.down_after.as_millis();
            let failover_ms = settings.failover_timeout.as_millis();
            let _ = writeln!(lines, "sentinel monitor {name} {ip} {port} {quorum}");
            let _ = writeln!(lines, "sentinel down-after-milliseconds {name} {down_ms}");
            let _ = writeln!(lines, "sentinel failover-timeout {name} {failover_ms}");
            if let Some(password) = &settings.password {
                let _ = writeln!(lines, "sentinel auth-pass {name} {password}");
            }
        }
        if let Some(password) = &settings.sentinel_password {
            let _ = writeln!(
                lines,
                "requirepass {password}\nsentinel sentinel-pass {password}"
            );
        }
        lines
    }
}

/// Makes a Sentinel query and publish more often. By default the others hear after two seconds, and
/// a restarted server becomes a replica after twenty. Redis 6.2 refuses and takes that long.
fn hurry(sentinel: &Node) -> io::Result<()> {
    let periods = [
        ("INFO-PERIOD", "500"),
        ("PING-PERIOD", "250"),
        ("PUBLISH-PERIOD", "500"),
    ];
    for (period, ms) in periods {
        sentinel.ask(&["SENTINEL", "DEBUG", period, ms])?;
    }
    Ok(())
}

/// A Sentinel's list of the replicas or of the other Sentinels of a primary.
fn listed(sentinel: &Node, list: &str, name: &str) -> Result<Vec<Reply>, String> {
    match sentinel.ask_ok(&["SENTINEL", list, name]) {
        Ok(Reply::Array(listed)) => Ok(listed),
        Ok(other) => Err(format!("SENTINEL {list} gives {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Checks that one of the listed servers has this address and no fault, and, if it is a replica,
/// follows this primary.
fn check_listed(
    own: SocketAddr,
    address: SocketAddr,
    listed: &[Reply],
    primary: Option<SocketAddr>,
) -> Result<(), String> {
    let field = |entry: &Reply, key| text(entry.get(key)?).ok();
    let port = Some(address.port().to_string());
    let Some(entry) = listed.iter().find(|entry| field(entry, "port") == port) else {
        return Err(format!("{own} does not know {address}"));
    };
    let flags = field(entry, "flags").unwrap_or_default();
    // Another Sentinel may still have a flag from the last query about a failed primary.
    let is_there = !flags
        .split(',')
        .any(|flag| ["s_down", "o_down", "disconnected"].contains(&flag));
    let is_followed = primary.is_none_or(|primary| {
        field(entry, "master-link-status").as_deref() == Some("ok")
            && field(entry, "master-port") == Some(primary.port().to_string())
    });
    match is_there && is_followed {
        true => Ok(()),
        false => Err(format!(
            "{own} sees {address} as {flags}, or with an old primary or state"
        )),
    }
}

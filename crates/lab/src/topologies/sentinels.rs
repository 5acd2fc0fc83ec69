//! Sentinels of our own, and what they watch.

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use respool_protocol::value::Value;

use super::{FORM_LIMIT, Node, REPLICATION, check_replica, check_running, text, wait_until};
use crate::servers::Server;

/// What [`Sentinels`] are made of.
#[derive(Clone, Debug)]
pub struct SentinelsSettings {
    /// How many Sentinels.
    pub sentinels: usize,
    /// How many of them must agree that a primary is gone.
    pub quorum: usize,
    /// How many primaries they watch: `m0`, `m1`, …
    pub watched: usize,
    /// Replicas of each.
    pub replicas: usize,
    /// After so long a silence a Sentinel thinks that a server is gone. More than a second: Redis 6.2 lets one go by
    /// before it asks a new primary for the first time, and would take that for a silence.
    pub down_after: Duration,
    /// Within which a failover is done or tried again.
    pub failover_timeout: Duration,
    /// What clients, Sentinels and replicas must say to the servers.
    pub password: Option<String>,
    /// What clients and other Sentinels must say to a Sentinel.
    pub sentinel_password: Option<String>,
    /// More arguments for every server.
    pub args: Vec<String>,
}

impl Default for SentinelsSettings {
    /// Three, of which two must agree, over two primaries with a replica each.
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

/// Sentinels that know all of each other and of what they watch.
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
    /// What the Sentinels call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// First the one that began as primary.
    pub fn servers(&self) -> &[Node] {
        &self.servers
    }

    /// One of them.
    pub fn server(&self, server: usize) -> &Node {
        &self.servers[server]
    }

    /// One of them, to restart it. What it was told before it ended it does not know: it comes back as it was started.
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
            servers.push(Node::new(Server::start(binary, &args)?, password));
        }
        Ok(Watched { name, servers })
    }
}

impl Sentinels {
    /// Starts the servers and the Sentinels, and returns when every Sentinel knows every replica and every other Sentinel.
    ///
    /// # Errors
    /// When one does not start, or they do not find each other.
    pub fn start(binary: &Path, settings: &SentinelsSettings) -> io::Result<Sentinels> {
        let mut watched = Vec::new();
        for number in 0..settings.watched {
            watched.push(Watched::start(format!("m{number}"), binary, settings)?);
        }
        // A Sentinel asks a primary for its replicas at once, and then not again for ten seconds.
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
            let server = Server::start_sentinel(binary, &configuration)?;
            let sentinel = Node::new(server, settings.sentinel_password.as_deref());
            hurry(&sentinel)?;
            started.sentinels.push(sentinel);
        }
        started.wait_until_whole(FORM_LIMIT)?;
        // One that is gone is not asked whether all is well.
        check_running(&started.sentinels)?;
        for watched in &started.watched {
            check_running(&watched.servers)?;
        }
        Ok(started)
    }

    /// All Sentinels, also those that have been killed.
    pub fn sentinels(&self) -> &[Node] {
        &self.sentinels
    }

    /// One Sentinel.
    pub fn sentinel(&self, sentinel: usize) -> &Node {
        &self.sentinels[sentinel]
    }

    /// Starts a Sentinel again; kills it first if it runs. It knows what it knew.
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

    /// What they watch.
    pub fn all_watched(&self) -> &[Watched] {
        &self.watched
    }

    /// One of what they watch.
    pub fn watched(&self, watched: usize) -> &Watched {
        &self.watched[watched]
    }

    /// One of what they watch, to restart a server of it.
    pub fn watched_mut(&mut self, watched: usize) -> &mut Watched {
        &mut self.watched[watched]
    }

    /// Where a Sentinel says that the primary is.
    ///
    /// # Errors
    /// When it does not say.
    pub fn named_by(&self, sentinel: usize, watched: usize) -> io::Result<SocketAddr> {
        let name = &self.watched[watched].name;
        let sentinel = &self.sentinels[sentinel];
        let reply = sentinel.order(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name])?;
        let address = match &reply {
            Value::List(words) => match &words[..] {
                [ip, port] => format!("{}:{}", text(ip)?, text(port)?).parse().ok(),
                _ => None,
            },
            _ => None,
        };
        address.ok_or_else(|| io::Error::other(format!("no address: {reply:?}")))
    }

    /// Which server is the primary: it says so, and all Sentinels that answer name it.
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

    /// Has one Sentinel begin a failover, though the primary runs.
    ///
    /// # Errors
    /// When it refuses.
    pub fn begin_failover(&self, sentinel: usize, watched: usize) -> io::Result<()> {
        let args = ["SENTINEL", "FAILOVER", &self.watched[watched].name];
        self.sentinels[sentinel].order(&args).map(drop)
    }

    /// Returns when another server than this one is the primary, as [`Sentinels::primary`] has it. Returns which.
    ///
    /// # Errors
    /// When it does not come to that in time; the text says what was missing.
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

    /// Returns when every Sentinel that answers knows all servers and all Sentinels that answer and finds them in order,
    /// and every replica among them has what its primary has.
    ///
    /// # Errors
    /// When it does not come to that in time; the text says what was missing.
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

/// Has a Sentinel look and tell more often than it does by itself: else the others hear of it after two seconds, and
/// what comes back after an end is a replica again after twenty. Redis 6.2 refuses and takes that long.
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

/// What a Sentinel knows of the replicas or the other Sentinels of a primary.
fn listed(sentinel: &Node, what: &str, name: &str) -> Result<Vec<Value>, String> {
    match sentinel.order(&["SENTINEL", what, name]) {
        Ok(Value::List(listed)) => Ok(listed),
        Ok(other) => Err(format!("SENTINEL {what} gives {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

/// That one of those listed has this address, and nothing is wrong with it; if it is a replica, that it is this primary's.
fn check_listed(
    own: SocketAddr,
    address: SocketAddr,
    listed: &[Value],
    primary: Option<SocketAddr>,
) -> Result<(), String> {
    let field = |entry: &Value, key| text(entry.field(key)?).ok();
    let port = Some(address.port().to_string());
    let Some(entry) = listed.iter().find(|entry| field(entry, "port") == port) else {
        return Err(format!("{own} does not know {address}"));
    };
    let flags = field(entry, "flags").unwrap_or_default();
    // Another Sentinel may still be marked by what it said when it was last asked about a primary that was down.
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
            "{own} sees {address} as {flags}, or not as what it is yet"
        )),
    }
}

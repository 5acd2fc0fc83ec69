//! Starts the measured processes: the server, respool, other proxies, the floor.
//!
//! All of them start before the first measurement and stay until the last, so that rounds can
//! alternate between them. An experiment may replace a process before each measurement. Targets
//! without load use next to nothing meanwhile.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use respool_testkit::client::{Reply, RespClient};
use respool_testkit::servers::{self, Flavour, Process, Proxy, Ready, ReservedPort, ServerProcess};
use respool_testkit::topologies::{
    ClusterSettings, Node, Shards, TestCluster, cluster_url, sharded_url,
};
use serde::{Deserialize, Serialize};

use crate::case::{Behind, LoadTarget, TlsBy, Way};
use crate::cpu;
use crate::tls::{LabCertificates, haproxy_configuration, stunnel_configuration};

/// The server behind all targets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum ServerChoice {
    /// `redis-server` or `valkey-server` from PATH, started and ended by the lab.
    #[default]
    Found,
    /// This binary, started and ended by the lab.
    Binary {
        /// Its path.
        path: PathBuf,
    },
    /// A running server. Its keys `key:…` are overwritten.
    Running {
        /// HOST:PORT
        address: SocketAddr,
        /// The process whose CPU counts.
        pid: u32,
    },
}

/// Facts about a process of the run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProcessFacts {
    /// Its name in tables.
    pub name: String,
    /// The version that it reports.
    pub version: String,
    /// Its command line.
    pub command: String,
    /// The address that it listens on.
    pub address: String,
    /// Its process id.
    pub pid: u32,
    /// Its threads once it ran, waiting ones included.
    pub threads: usize,
    /// The configuration that the lab wrote for it.
    pub configuration: Option<String>,
}

/// The server behind a target, or all servers of the pool behind it.
#[derive(Debug)]
pub struct TargetServers {
    /// Facts about it.
    pub facts: ProcessFacts,
    /// The kind of pool.
    pub behind: Behind,
    /// Its servers, at least one.
    pub servers: Vec<Listening>,
    /// The port with TLS of the one server, if it has one.
    tls: Option<ReservedPort>,
    _held: Option<OwnedServers>,
}

/// A process and its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listening {
    /// Its address.
    pub address: SocketAddr,
    /// Its process id.
    pub pid: u32,
}

/// Servers that end with a backend.
#[derive(Debug)]
#[expect(dead_code, reason = "held for its drop")]
enum OwnedServers {
    One(ServerProcess),
    Shards(Shards),
    Cluster(TestCluster),
}

/// All servers and pools of a run.
#[derive(Debug)]
pub struct Backends(Vec<TargetServers>);

/// A running target.
#[derive(Debug)]
pub struct RunningTarget {
    /// The target.
    pub target: LoadTarget,
    /// Its address.
    pub address: SocketAddr,
    /// The CA of its certificate; `None`: it is reached without TLS.
    pub ca: Option<PathBuf>,
    /// The process between generator and server; `None` for the server itself.
    pub pid: Option<u32>,
    /// Facts about it; `None` for the server itself.
    pub facts: Option<ProcessFacts>,
    _process: Option<HeldChild>,
}

/// The programs of targets.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The lab itself: it is also the floor and the load generator.
    pub lab: PathBuf,
    /// respool, or why it is missing.
    pub respool: Result<PathBuf, String>,
    /// Size of the values in replies of the floor.
    pub value_bytes: usize,
    /// The certificates of targets with TLS, if there are such targets.
    pub certificates: Option<Arc<LabCertificates>>,
}

/// A child that is killed and reaped when dropped.
#[derive(Debug)]
pub(crate) enum HeldChild {
    Process(Process),
    Proxy(Proxy),
    /// With a port that stays reserved as long.
    WithPort(
        Process,
        #[expect(dead_code, reason = "held for its drop")] ReservedPort,
    ),
}

impl Deref for HeldChild {
    type Target = Process;
    fn deref(&self) -> &Process {
        match self {
            HeldChild::Process(process) | HeldChild::WithPort(process, _) => process,
            HeldChild::Proxy(proxy) => proxy,
        }
    }
}

impl Programs {
    /// Finds the running lab, and respool: as named, or next to the lab, or from PATH. Makes the
    /// certificates if a target needs them.
    ///
    /// # Errors
    /// When the lab cannot find its own path, or the certificates cannot be made.
    pub fn find<'a>(
        respool: Option<&Path>,
        value_bytes: usize,
        mut targets: impl Iterator<Item = &'a LoadTarget>,
    ) -> Result<Programs, String> {
        let lab = running_lab()?;
        let respool = find_respool(respool, &lab);
        let certificates = match targets.any(LoadTarget::has_tls) {
            true => {
                let made = LabCertificates::make();
                Some(Arc::new(
                    made.map_err(|error| format!("certificates: {error}"))?,
                ))
            }
            false => None,
        };
        Ok(Programs {
            lab,
            respool,
            value_bytes,
            certificates,
        })
    }
}

fn running_lab() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| format!("the lab cannot find its own path: {error}"))
}

/// The respool that is named, or next to this lab, or in PATH.
fn find_respool(named: Option<&Path>, lab: &Path) -> Result<PathBuf, String> {
    let beside = lab.with_file_name("respool");
    match named {
        Some(path) if path.is_file() => Ok(path.to_owned()),
        Some(path) => Err(format!("--respool {}: there is no such file", path.display())),
        None if beside.is_file() => Ok(beside),
        None => servers::find_program("respool").map_err(|_| {
            "respool is not next to respool-lab and not in PATH: build it (cargo build --release), \
             or name it (--respool PATH), or measure without it (--no-respool; cluster: --ways envoy)"
                .to_owned()
        }),
    }
}

impl Programs {
    /// The respool that is named, or next to the running lab, or in PATH.
    ///
    /// # Errors
    /// When there is none. One line says what to do.
    pub fn respool(named: Option<&Path>) -> Result<PathBuf, String> {
        find_respool(named, &running_lab()?)
    }

    /// Checks that respool knows the kind of pool behind a target.
    ///
    /// # Errors
    /// One line with respool's words.
    pub fn check(&self, target: &LoadTarget) -> Result<(), String> {
        let LoadTarget::Pool {
            way: way @ (Way::Sharded | Way::Cluster),
            ..
        } = target
        else {
            return Ok(());
        };
        let respool = self.respool.as_ref()?;
        // No server is contacted: any address will do, except respool's default listener.
        let ports = 7000..7000 + target.servers();
        let servers: Vec<_> = ports
            .map(|port| SocketAddr::from(([127, 0, 0, 1], port)))
            .collect();
        let checked = check(respool, &["--backend", &url(target.behind(), &servers)]);
        checked.map(drop).map_err(|problem| {
            format!(
                "{target}: {problem}; to measure without it, leave {} out of --ways",
                way.name()
            )
        })
    }
}

impl TargetServers {
    /// Starts the server, or looks at the running one.
    ///
    /// # Errors
    /// One line that names the missing program and the way to get it.
    pub fn start(
        choice: &ServerChoice,
        certificates: Option<&LabCertificates>,
    ) -> Result<TargetServers, String> {
        if let ServerChoice::Running { address, pid } = choice {
            return TargetServers::of_running(*address, *pid);
        }
        let binary = choice.binary()?;
        let version = servers::version(&binary).map_err(|error| error.to_string())?;
        let tls = certificates.map(|_| ReservedPort::new()).transpose();
        let tls = tls.map_err(|error| error.to_string())?;
        let options = match (certificates, &tls) {
            (Some(certificates), Some(tls)) => certificates.server_options(tls.port),
            _ => Vec::new(),
        };
        let server = ServerProcess::start(&binary, &options).map_err(|error| error.to_string())?;
        let (address, pid) = (server.address(), server.pid());
        let facts = ProcessFacts {
            name: "server".to_owned(),
            version,
            command: format!(
                "{} --port {} --save '' --appendonly no {}",
                binary.display(),
                address.port(),
                options.join(" ")
            )
            .trim_end()
            .to_owned(),
            address: address.to_string(),
            pid,
            threads: cpu::threads(pid),
            configuration: None,
        };
        Ok(TargetServers {
            facts,
            behind: Behind::Server,
            servers: vec![Listening { address, pid }],
            tls,
            _held: Some(OwnedServers::One(server)),
        })
    }

    /// Starts a pool of several servers: independent ones, or a Cluster.
    ///
    /// # Errors
    /// One line that names the missing program and the way to get it.
    fn start_pool(behind: Behind, choice: &ServerChoice) -> Result<TargetServers, String> {
        let binary = choice.binary()?;
        let version = servers::version(&binary).map_err(|error| error.to_string())?;
        let failed = |error: io::Error| format!("{behind}: {error}");
        let held = match behind {
            Behind::Server => return TargetServers::start(choice, None),
            Behind::Shards(count) => {
                Shards::start::<&str>(&binary, count.into(), &[]).map(OwnedServers::Shards)
            }
            Behind::Cluster(count) => {
                let settings = ClusterSettings {
                    primaries: count.into(),
                    replicas: 0,
                    // Under load on few cores a node may be silent for long, and none of them is
                    // meant to fail.
                    node_timeout: CALM,
                    // A single node cannot learn its own address from another one.
                    args: ["--cluster-announce-ip", "127.0.0.1"]
                        .map(str::to_owned)
                        .to_vec(),
                    ..ClusterSettings::default()
                };
                TestCluster::start(&binary, settings).map(OwnedServers::Cluster)
            }
        };
        let held = held.map_err(failed)?;
        let nodes: &[Node] = match &held {
            OwnedServers::One(_) => &[],
            OwnedServers::Shards(shards) => shards.nodes(),
            OwnedServers::Cluster(cluster) => cluster.nodes(),
        };
        let servers: Vec<Listening> = nodes
            .iter()
            .map(|node| Listening {
                address: node.address(),
                pid: node.pid(),
            })
            .collect();
        let addresses: Vec<String> = servers
            .iter()
            .map(|server| server.address.to_string())
            .collect();
        let first = nodes
            .first()
            .ok_or_else(|| format!("{behind}: no server"))?;
        let facts = ProcessFacts {
            name: behind.to_string(),
            version,
            command: first.command_line(),
            address: addresses.join(","),
            pid: first.pid(),
            threads: cpu::threads(first.pid()),
            configuration: None,
        };
        Ok(TargetServers {
            facts,
            behind,
            servers,
            tls: None,
            _held: Some(held),
        })
    }

    /// The address of its first server.
    pub fn address(&self) -> SocketAddr {
        self.servers[0].address
    }

    /// The address with TLS of its one server.
    fn tls_address(&self) -> Result<SocketAddr, String> {
        let port = self.tls.as_ref().map(|tls| tls.port);
        let port =
            port.ok_or("the server was started without TLS: name a binary (--server PATH)")?;
        Ok(SocketAddr::new(self.address().ip(), port))
    }

    /// respool's URL for it.
    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.servers.iter().map(|server| server.address).collect();
        url(self.behind, &addresses)
    }

    fn of_running(address: SocketAddr, pid: u32) -> Result<TargetServers, String> {
        let failed = |error: io::Error| format!("the server at {address}: {error}");
        cpu::read(pid).map_err(failed)?;
        let info = Inspector::connect(address).and_then(|mut inspector| inspector.info("server"));
        let info = info.map_err(failed)?;
        let field = |name: &str| info_field(&info, name).map(str::to_owned);
        let version = match (field("valkey_version"), field("redis_version")) {
            (Some(version), _) => format!("valkey {version}"),
            (None, Some(version)) => format!("redis {version}"),
            (None, None) => "unknown".to_owned(),
        };
        if field("process_id").is_some_and(|id| id != pid.to_string()) {
            return Err(format!(
                "the server at {address} is process {}, not {pid}",
                field("process_id").unwrap_or_default()
            ));
        }
        let facts = ProcessFacts {
            name: "server".to_owned(),
            version,
            command: "started outside the lab".to_owned(),
            address: address.to_string(),
            pid,
            threads: cpu::threads(pid),
            configuration: None,
        };
        Ok(TargetServers {
            facts,
            behind: Behind::Server,
            servers: vec![Listening { address, pid }],
            tls: None,
            _held: None,
        })
    }
}

impl ServerChoice {
    /// The binary of its servers.
    ///
    /// # Errors
    /// When there is none, or a running server is named. The text says what to do.
    pub(crate) fn binary(&self) -> Result<PathBuf, String> {
        match self {
            ServerChoice::Running { .. } => {
                Err("a pool's servers are the lab's own: name a binary (--server PATH)".to_owned())
            }
            ServerChoice::Binary { path } => Ok(path.clone()),
            ServerChoice::Found => servers::find(Flavour::Redis70)
                .or_else(|missing| servers::find_program("valkey-server").map_err(|_| missing)),
        }
    }
}

impl Backends {
    /// Starts the direct server, and all other servers and pools behind these targets.
    ///
    /// # Errors
    /// As [`TargetServers::start`].
    pub fn start<'a>(
        choice: &ServerChoice,
        targets: impl Iterator<Item = &'a LoadTarget>,
        certificates: Option<&LabCertificates>,
    ) -> Result<Backends, String> {
        let mut backends = Backends(vec![TargetServers::start(choice, certificates)?]);
        for target in targets {
            let behind = target.behind();
            if backends.0.iter().all(|other| other.behind != behind) {
                backends.0.push(TargetServers::start_pool(behind, choice)?);
            }
        }
        Ok(backends)
    }

    /// The backend of a target that was there at the start.
    pub fn of(&self, target: &LoadTarget) -> &TargetServers {
        let behind = target.behind();
        let found = self.0.iter().find(|backend| backend.behind == behind);
        found.expect("everything behind a target was started")
    }

    /// Facts about the direct server and each pool.
    pub fn facts(&self) -> (ProcessFacts, Vec<ProcessFacts>) {
        let mut facts = self.0.iter().map(|backend| backend.facts.clone());
        let server = facts.next().expect("the server was started");
        (server, facts.collect())
    }
}

/// respool's URL for these servers.
fn url(behind: Behind, servers: &[SocketAddr]) -> String {
    match behind {
        Behind::Server | Behind::Shards(_) => sharded_url(servers),
        Behind::Cluster(_) => cluster_url(servers),
    }
}

/// Longer than any silence of a measured Cluster node.
const CALM: Duration = Duration::from_secs(60);

impl RunningTarget {
    /// Starts a target before the server.
    ///
    /// # Errors
    /// One line that names the missing program and the way to get it.
    pub fn start(
        target: &LoadTarget,
        server: &TargetServers,
        programs: &Programs,
    ) -> Result<RunningTarget, String> {
        let failed = |error: io::Error| format!("{target}: {error}");
        let (held, version, configuration) = match target {
            LoadTarget::Direct => {
                return Ok(RunningTarget {
                    target: target.clone(),
                    address: server.address(),
                    ca: None,
                    pid: None,
                    facts: None,
                    _process: None,
                });
            }
            LoadTarget::Tls { by } => return RunningTarget::start_tls(*by, server, programs),
            LoadTarget::Other { address, pid, .. } => {
                let address = crate::flags::address(address)?;
                let _ = cpu::read(*pid).map_err(failed)?;
                let facts = ProcessFacts {
                    name: target.name(),
                    version: "unknown".to_owned(),
                    command: "started outside the lab".to_owned(),
                    address: address.to_string(),
                    pid: *pid,
                    threads: cpu::threads(*pid),
                    configuration: None,
                };
                return Ok(RunningTarget {
                    target: target.clone(),
                    address,
                    ca: None,
                    pid: Some(*pid),
                    facts: Some(facts),
                    _process: None,
                });
            }
            LoadTarget::Respool { threads }
            | LoadTarget::Variant { threads, .. }
            | LoadTarget::Base { threads, .. }
            | LoadTarget::Pool {
                way: Way::Sharded | Way::Cluster,
                threads,
                ..
            } => {
                let (binary, options) = match target {
                    LoadTarget::Base { binary, .. } => (binary.clone(), &[][..]),
                    LoadTarget::Variant { options, .. } => {
                        (programs.respool.clone()?, &options[..])
                    }
                    _ => (programs.respool.clone()?, &[][..]),
                };
                let backend = server.url();
                let threads = threads.to_string();
                let mut args = vec!["--backend", &backend, "--threads", &threads];
                args.extend(options.iter().map(String::as_str));
                if !options.is_empty() {
                    check(&binary, &args).map_err(|problem| format!("{target}: {problem}"))?;
                }
                let proxy = Proxy::start(&binary, &args).map_err(failed)?;
                (
                    HeldChild::Proxy(proxy),
                    first_line(&binary, "--version"),
                    None,
                )
            }
            LoadTarget::Twemproxy => {
                let binary = servers::find_program("nutcracker")?;
                // It always has a statistics port, which is not used.
                let statistics = ReservedPort::new().map_err(failed)?;
                let process = with_configuration("nutcracker.yml", &mut |port, file| {
                    let mut command = Command::new(&binary);
                    command.arg("--conf-file").arg(file);
                    command.args(["--stats-addr", "127.0.0.1", "--stats-port"]);
                    command.arg(statistics.port.to_string());
                    (command, twemproxy_configuration(port, server.address()))
                });
                let (process, text) = process.map_err(failed)?;
                let version = first_line(&binary, "--version");
                (
                    HeldChild::WithPort(process, statistics),
                    version,
                    Some(text),
                )
            }
            LoadTarget::Envoy
            | LoadTarget::Pool {
                way: Way::Envoy, ..
            } => {
                let binary = servers::find_program("envoy")?;
                let addresses: Vec<_> = server.servers.iter().map(|one| one.address).collect();
                let is_cluster = matches!(server.behind, Behind::Cluster(_));
                let process = start_envoy(&binary, is_cluster, &addresses);
                let (process, text) = process.map_err(failed)?;
                (
                    HeldChild::Process(process),
                    first_line(&binary, "--version"),
                    Some(text),
                )
            }
            LoadTarget::Floor => {
                let process = Process::start(Ready::Listen, &mut |port, _dir| {
                    let mut command = Command::new(&programs.lab);
                    command.args(["floor", "--child", "--listen", &format!("127.0.0.1:{port}")]);
                    command.args(["--value-bytes", &programs.value_bytes.to_string()]);
                    command
                });
                let version = format!("respool-lab {}", env!("CARGO_PKG_VERSION"));
                (HeldChild::Process(process.map_err(failed)?), version, None)
            }
        };
        if target.has_server() {
            wait_until_served(held.address()).map_err(failed)?;
        }
        Ok(RunningTarget::of(target, held, version, configuration))
    }

    fn of(
        target: &LoadTarget,
        held: HeldChild,
        version: String,
        configuration: Option<String>,
    ) -> RunningTarget {
        let (address, pid) = (held.address(), held.pid());
        let facts = ProcessFacts {
            name: target.to_string(),
            version,
            command: held.command_line(),
            address: address.to_string(),
            pid,
            threads: cpu::threads(pid),
            configuration,
        };
        RunningTarget {
            target: target.clone(),
            address,
            ca: None,
            pid: Some(pid),
            facts: Some(facts),
            _process: Some(held),
        }
    }

    /// Starts a target with TLS before the server. The server itself has it already.
    fn start_tls(
        by: TlsBy,
        server: &TargetServers,
        programs: &Programs,
    ) -> Result<RunningTarget, String> {
        let target = LoadTarget::Tls { by };
        let failed = |error: io::Error| format!("{target}: {error}");
        let certificates = programs.certificates.as_ref();
        let certificates = certificates.ok_or_else(|| format!("{target}: no certificates"))?;
        let plain = server.address();
        let (held, version, configuration) = match by {
            TlsBy::Server => {
                return Ok(RunningTarget {
                    address: server.tls_address()?,
                    target,
                    ca: Some(certificates.ca.clone()),
                    pid: None,
                    facts: None,
                    _process: None,
                });
            }
            TlsBy::Respool => {
                let binary = programs.respool.clone()?;
                let proxy = Proxy::start_with(&binary, |port| {
                    let mut args = vec!["--backend".to_owned(), server.url()];
                    args.extend(["--threads".to_owned(), "1".to_owned()]);
                    args.extend(certificates.respool_options(port));
                    args
                });
                let version = first_line(&binary, "--version");
                (HeldChild::Proxy(proxy.map_err(failed)?), version, None)
            }
            TlsBy::Haproxy => {
                let binary = servers::find_program("haproxy")?;
                let process = with_configuration("haproxy.cfg", &mut |port, file| {
                    let mut command = Command::new(&binary);
                    command.arg("-db").arg("-f").arg(file);
                    let text = haproxy_configuration(port, plain, &certificates.bundle);
                    (command, text)
                });
                let (process, text) = process.map_err(failed)?;
                let version = first_line(&binary, "-v");
                (HeldChild::Process(process), version, Some(text))
            }
            TlsBy::Stunnel => {
                let binary = servers::find_program("stunnel")?;
                let process = with_configuration("stunnel.conf", &mut |port, file| {
                    let mut command = Command::new(&binary);
                    command.arg(file);
                    let text = stunnel_configuration(port, plain, &certificates.bundle);
                    (command, text)
                });
                let (process, text) = process.map_err(failed)?;
                let version = first_line(&binary, "-version");
                (HeldChild::Process(process), version, Some(text))
            }
        };
        Ok(RunningTarget {
            ca: Some(certificates.ca.clone()),
            ..RunningTarget::of(&target, held, version, configuration)
        })
    }
}

/// Has respool check its options; it reports an unknown or wrong one in a line.
pub(crate) fn check(binary: &Path, args: &[&str]) -> Result<String, String> {
    let output = Command::new(binary)
        .args(["check", "--print"])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{}: {error}", binary.display()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let said = said.lines().find(|line| !line.trim().is_empty());
    Err(format!(
        "{} does not take {:?}: {}",
        binary.display(),
        args.join(" "),
        said.unwrap_or("it does not say why")
    ))
}

/// Reads INFO of a server.
pub struct Inspector(RespClient);

/// Counters of a server since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Commands executed, without INFO: the lab sends it, and so does respool, to learn how busy
    /// the server is.
    pub commands: u64,
    /// Keys looked up by reading commands, found or not. An MGET counts each of its keys.
    pub key_reads: u64,
}

impl Inspector {
    /// Connects without a password.
    ///
    /// # Errors
    /// When the connection is refused.
    pub fn connect(address: SocketAddr) -> io::Result<Inspector> {
        RespClient::open(address, Duration::from_secs(5)).map(Inspector)
    }

    /// A section of `INFO`.
    ///
    /// # Errors
    /// When it does not answer with one.
    pub fn info(&mut self, section: &str) -> io::Result<String> {
        match self.0.ask_ok(&["INFO", section])? {
            Reply::Bulk(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
            other => Err(io::Error::other(format!(
                "INFO was answered with {other:?}"
            ))),
        }
    }

    /// The counters now.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn tally(&mut self) -> io::Result<Tally> {
        // One reply has both counters, so no other INFO can come between them. A command counts at
        // its end, so both counters leave this INFO out.
        let info = self.info("all")?;
        let missing = |name: &str| io::Error::other(format!("INFO has no {name}"));
        let number = |name: &str| -> io::Result<u64> {
            let number = info_field(&info, name).and_then(|number| number.parse().ok());
            number.ok_or_else(|| missing(name))
        };
        // The line is missing before the first INFO.
        let infos = info_field(&info, "cmdstat_info").map_or(Ok(0), |counts| {
            let calls = counts
                .split(',')
                .find_map(|count| count.strip_prefix("calls="));
            let calls = calls.and_then(|calls| calls.parse().ok());
            calls.ok_or_else(|| missing("calls of cmdstat_info"))
        })?;
        Ok(Tally {
            commands: number("total_commands_processed")?.saturating_sub(infos),
            key_reads: number("keyspace_hits")? + number("keyspace_misses")?,
        })
    }
}

fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

/// A proxy may accept before it can reach its server, so it counts as started with an answered GET.
pub(crate) fn wait_until_served(address: SocketAddr) -> io::Result<()> {
    let ask = || -> io::Result<()> {
        match RespClient::open(address, Duration::from_secs(1))?.ask_ok(&["GET", "lab:ready"])? {
            Reply::Null => Ok(()),
            other => Err(io::Error::other(format!("GET was answered with {other:?}"))),
        }
    };
    let mut attempt = 0;
    loop {
        match ask() {
            Ok(()) => return Ok(()),
            Err(error) if attempt == 100 => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
        attempt += 1;
    }
}

/// Starts a process with a configuration file that is written first. Returns its text, too.
fn with_configuration(
    name: &str,
    make: &mut dyn FnMut(u16, &Path) -> (Command, String),
) -> io::Result<(Process, String)> {
    let mut written = Ok(String::new());
    let process = Process::start(Ready::Listen, &mut |port, dir| {
        let file = dir.join(name);
        let (command, text) = make(port, &file);
        written = fs::write(&file, &text).map(|()| text);
        command
    });
    let text = written?;
    Ok((process?, text))
}

/// Defaults, one server, and a link that is open before the first request, as respool has it.
fn twemproxy_configuration(port: u16, server: SocketAddr) -> String {
    format!(
        "lab:\n  listen: 127.0.0.1:{port}\n  redis: true\n  hash: fnv1a_64\n  distribution: ketama\n  \
         auto_eject_hosts: false\n  preconnect: true\n  servers:\n   - {server}:1\n"
    )
}

/// Envoy with one worker, and its configuration.
///
/// # Errors
/// When it does not start.
pub(crate) fn start_envoy(
    binary: &Path,
    is_cluster: bool,
    servers: &[SocketAddr],
) -> io::Result<(Process, String)> {
    with_configuration("envoy.yaml", &mut |port, file| {
        let mut command = Command::new(binary);
        command.arg("--config-path").arg(file);
        command.args(["--concurrency", "1", "--disable-hot-restart"]);
        command.args(["--log-level", "warning"]);
        (command, envoy_configuration(port, is_cluster, servers))
    })
}

/// Defaults with one server, or with seed nodes of a Cluster, whose redirects it then follows; no
/// administration port.
fn envoy_configuration(port: u16, is_cluster: bool, servers: &[SocketAddr]) -> String {
    let (kind, redirects) = match is_cluster {
        true => (
            "lb_policy: CLUSTER_PROVIDED
    cluster_type:
      name: envoy.clusters.redis
      typed_config:
        \"@type\": type.googleapis.com/envoy.extensions.clusters.redis.v3.RedisClusterConfig",
            ", enable_redirection: true",
        ),
        false => ("type: STATIC", ""),
    };
    let endpoints: Vec<String> = servers
        .iter()
        .map(|address| {
            let (host, port) = (address.ip(), address.port());
            format!(
                "        - endpoint: {{ address: {{ socket_address: {{ address: {host}, port_value: {port} }} }} }}"
            )
        })
        .collect();
    let endpoints = endpoints.join("\n");
    format!(
        "static_resources:
  listeners:
  - name: clients
    address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.redis_proxy
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProxy
          stat_prefix: lab
          settings: {{ op_timeout: 5s{redirects} }}
          prefix_routes: {{ catch_all_route: {{ cluster: server }} }}
  clusters:
  - name: server
    {kind}
    connect_timeout: 2s
    load_assignment:
      cluster_name: server
      endpoints:
      - lb_endpoints:
{endpoints}
"
    )
}

/// The first line with text of a program's version output, on either stream.
pub fn first_line(program: &Path, argument: &str) -> String {
    let output = Command::new(program)
        .arg(argument)
        .stdin(Stdio::null())
        .output();
    let Ok(output) = output else {
        return "unknown".to_owned();
    };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    // Some programs repeat the path that started them.
    let line = line
        .unwrap_or("unknown")
        .replace(&program.display().to_string(), "");
    line.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_info_is_found_by_its_whole_name() {
        let info = "# Server\r\nredis_version:7.0.15\r\nredis_version_x:1\r\n";
        assert_eq!(info_field(info, "redis_version"), Some("7.0.15"));
        assert_eq!(info_field(info, "redis"), None);
    }

    #[test]
    fn a_running_server_is_recognised_and_a_wrong_pid_refused() {
        let own = TargetServers::start(&ServerChoice::Found, None).unwrap();
        let choice = |pid| ServerChoice::Running {
            address: own.address(),
            pid,
        };
        let found = TargetServers::start(&choice(own.servers[0].pid), None).unwrap();
        assert_eq!(found.facts.version, own.facts.version);
        let problem = TargetServers::start(&choice(std::process::id()), None).unwrap_err();
        assert!(problem.contains("not"), "{problem}");
    }

    #[test]
    fn a_tally_has_every_command_and_key_but_no_info() {
        let own = TargetServers::start(&ServerChoice::Found, None).unwrap();
        let mut inspector = Inspector::connect(own.address()).unwrap();
        let before = inspector.tally().unwrap();
        assert_eq!(inspector.tally().unwrap(), before, "asking does not count");
        let mut other = Inspector::connect(own.address()).unwrap();
        other.info("cpu").unwrap();
        assert_eq!(inspector.tally().unwrap(), before, "the INFO of another");
        let mut client = RespClient::connect(own.address());
        for request in ["SET a 1", "GET a", "MGET a b a"] {
            client.call(request);
        }
        let after = inspector.tally().unwrap();
        assert_eq!(after.commands - before.commands, 3);
        assert_eq!(after.key_reads - before.key_reads, 4);
    }
}

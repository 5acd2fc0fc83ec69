//! The configuration: from the values of all layers to the settings of the engine.
//!
//! ```text
//!   RawConfig ──resolve──► Resolved ──build, secrets──► pools, users
//!   (raw.rs)               values and places   │
//!                                              └─checks, relations──► Config, or every Problem
//! ```
//!
//! [`Config::resolve`] reads the passwords from their files and commands, and has no other effect.
//! The program starts only with a configuration without problems.

mod build;
mod checks;
mod exposure;
mod plan;
mod printed;
mod relations;
mod resolve;
mod secrets;
mod tls;

use std::path::PathBuf;
use std::time::SystemTime;

use respool_driver::{ListenAddress, SocketAccess};
use respool_engine::address_map::AddressMap;
use respool_engine::limits::Limits;
use respool_engine::settings::{
    Address, Announced, Credentials, FlushRule, PoolKind, PoolSettings, PrefixPool, ServerSettings,
    Settings, Shows, User,
};

use crate::address::ListenAt;
use crate::backend::{BackendServers, BackendUrl};
use crate::options::{LogFormat, LogLevel, Threads};
use crate::passwords::RenewablePasswords;
use crate::problem::{ConfigPlace, Problem};
use crate::raw::RawConfig;
use crate::tls_files::TlsFiles;

pub use plan::{PROGRAMS, Plan};
pub use resolve::Resolved;

/// A configuration without problems.
#[derive(Debug, PartialEq, Eq)]
pub struct Config {
    /// The pools, at least one.
    pub pools: Vec<PoolConfig>,
    /// The number of workers.
    pub workers: usize,
    /// The settings of the engine, without pools: [`Config::settings`] adds them.
    settings: Settings,
    /// The passwords of servers and users that may change, with their origins.
    pub renewable_passwords: RenewablePasswords,
    /// The files with certificates and keys.
    pub tls_files: TlsFiles,
    /// Mode, owner and group of sockets in the file system.
    pub socket_access: SocketAccess,
    /// The address of the pages about the process, if there are any.
    pub metrics_listen: Option<Address>,
    /// The path of the socket for `respool reload`.
    pub control_socket: Option<PathBuf>,
    /// How long a stop waits for replies.
    pub drain_timeout: std::time::Duration,
    /// The format of log lines.
    pub log_format: LogFormat,
    /// The level of the least severe log lines.
    pub log_level: LogLevel,
    /// Warnings about options that work, but probably not as the operator means them.
    pub warnings: Vec<String>,
}

/// A pool: its servers and its listeners.
#[derive(Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Its name; `None` for the one pool of the options `listen` and `backend`.
    pub name: Option<String>,
    /// The listeners, at least one.
    pub listen: Vec<ListenAt>,
    /// The servers.
    pub backend: Backend,
    /// Its own flush rule, if its table in the file has one.
    pub(crate) flush: Option<FlushRule>,
    /// The address of respool in replies about a Cluster; `None`: that of the listener.
    pub(crate) announce: Option<Announced>,
    /// The appearance of a Cluster to clients.
    pub(crate) shows: Shows,
    /// The map from addresses that servers name to addresses that respool reaches.
    pub(crate) address_map: AddressMap,
    /// Whether respool is ready only while a server of the pool answers.
    pub is_required: bool,
    /// The servers of keys with a certain prefix.
    pub prefixes: Vec<SubpoolConfig>,
}

/// The servers of keys with one prefix.
#[derive(Debug, PartialEq, Eq)]
pub struct SubpoolConfig {
    /// The prefix of the keys.
    pub prefix: String,
    /// The servers of these keys.
    pub url: BackendUrl,
    /// Whether these servers see the keys without the prefix.
    pub strip: bool,
}

/// The servers of a pool.
#[derive(Debug, PartialEq, Eq)]
pub enum Backend {
    /// Servers that run already.
    Server(Box<BackendUrl>),
    /// A server that respool starts and stops.
    Spawn(Plan),
}

/// A configuration that cannot be used.
pub struct WrongConfig {
    /// Every problem, in the order of the layers.
    pub problems: Vec<Problem>,
    /// The values that are right. `None`: those of the file are unknown.
    pub resolved: Option<Box<Resolved>>,
}

impl Config {
    /// Keeps valid certificates in use in place of new ones that are not valid now. Returns a text
    /// for each. Warnings about the new ones do not hold then.
    pub fn keep_valid_certificates(&mut self, in_use: &TlsFiles) -> Vec<String> {
        let now = SystemTime::now();
        let of_new = self.tls_files.warnings(now);
        let kept = self.tls_files.keep_valid(in_use);
        let of_kept = self.tls_files.warnings(now);
        let holds = |text: &String| !of_new.contains(text) || of_kept.contains(text);
        self.warnings.retain(holds);
        kept
    }

    /// Checks the values of all layers and makes a configuration of them. Returns the values with
    /// their places, too, for `check --print` and for reloads.
    ///
    /// # Errors
    /// Returns every problem, in the order of the layers.
    pub fn resolve(raw: RawConfig) -> Result<(Config, Resolved), Vec<Problem>> {
        Config::resolve_first(raw, |resolved, problems, _| {
            resolved.check_control_socket(problems);
        })
    }

    /// The same for `respool check`, which also finds sockets that cannot be made. A start finds
    /// these when it makes them: another attempt may succeed.
    ///
    /// # Errors
    /// As [`Config::resolve`].
    pub fn check(raw: RawConfig) -> Result<(Config, Resolved), Vec<Problem>> {
        Config::resolve_first(raw, |resolved, problems, warnings| {
            resolved.check_control_socket(problems);
            resolved.check_socket_files(problems, warnings);
        })
    }

    fn resolve_first(
        raw: RawConfig,
        check_more: impl FnOnce(&Resolved, &mut Vec<Problem>, &mut Vec<String>),
    ) -> Result<(Config, Resolved), Vec<Problem>> {
        let no_passwords = RenewablePasswords::default();
        match Config::resolve_with(raw, &no_passwords, check_more) {
            Ok((config, resolved, of_files)) if of_files.is_empty() => Ok((config, resolved)),
            Ok((.., of_files)) => Err(of_files),
            Err(wrong) => Err(wrong.problems),
        }
    }

    /// The same for a reload. Passwords from files and commands keep their numbers. The control
    /// socket is open already. The problems of files with certificates are not among the errors,
    /// so that a reload can name them beside those of its next steps.
    ///
    /// # Errors
    /// As [`Config::resolve`], with the values that are right.
    pub fn resolve_again(
        raw: RawConfig,
        before: &RenewablePasswords,
    ) -> Result<(Config, Resolved, Vec<Problem>), WrongConfig> {
        Config::resolve_with(raw, before, |_, _, _| {})
    }

    fn resolve_with(
        mut raw: RawConfig,
        before: &RenewablePasswords,
        check_more: impl FnOnce(&Resolved, &mut Vec<Problem>, &mut Vec<String>),
    ) -> Result<(Config, Resolved, Vec<Problem>), WrongConfig> {
        let mut warnings = std::mem::take(&mut raw.warnings);
        let is_file_unknown = raw.is_file_unknown;
        let (resolved, mut problems) = Resolved::from_raw(raw);
        let mut passwords = before.again();
        let pools = resolved.pools(&mut passwords, &mut problems);
        let users = resolved.users(&mut passwords, &mut problems);
        resolved.check_listeners(&pools, &mut problems);
        resolved.check_metrics(&pools, &mut problems);
        resolved.check_maps(&pools, &mut problems);
        resolved.check_announced(&pools, &mut problems);
        resolved.check_relations(&mut problems);
        resolved.check_links(&pools, &mut problems);
        check_more(&resolved, &mut problems, &mut warnings);
        let (tls_files, of_files) = resolved.tls(&pools, &mut problems);
        if !problems.is_empty() {
            problems.extend(of_files);
            let resolved = (!is_file_unknown).then(|| Box::new(resolved));
            return Err(WrongConfig { problems, resolved });
        }
        warnings.extend(resolved.readable_secrets(&passwords, &tls_files));
        warnings.extend(tls_files.warnings(SystemTime::now()));
        warnings.extend(resolved.unused_map());
        warnings.extend(resolved.exposure(&pools, users.is_empty()));
        let values = &resolved.values;
        let config = Config {
            pools,
            workers: match values.threads {
                Threads::Exactly(count) => count,
                // If the system cannot say how many cores there are, one worker always works.
                Threads::Auto => std::thread::available_parallelism().map_or(1, usize::from),
            },
            settings: Settings {
                limits: values.limits.clone(),
                timeouts: values.timeouts.clone(),
                flush: values.flush.clone(),
                users,
                pools: Vec::new(),
                pinned_links_full: values.pinned_links_full,
                server_down_error: values.server_down_error,
                lost_subscriptions: values.lost_subscriptions,
                refused: values.refused.iter().copied().collect(),
                passes_debug_object: values.passes_debug_object,
                asks_output_limits: values.asks_output_limits,
                asks_server_cpu: values.metrics_listen.is_some(),
                slow_log: values.slow_log.clone(),
                hot_keys_sample: values.hot_keys_sample,
            },
            renewable_passwords: passwords,
            tls_files,
            socket_access: SocketAccess {
                mode: Some(values.socket_mode),
                owner: values.socket_owner.as_ref().map(|owner| owner.id),
                group: values.socket_group.as_ref().map(|group| group.id),
            },
            metrics_listen: values.metrics_listen.clone(),
            control_socket: values.control_socket.clone(),
            drain_timeout: std::time::Duration::from_millis(values.drain_timeout_ms.into()),
            log_format: values.log_format,
            log_level: values.log_level,
            warnings,
        };
        Ok((config, resolved, of_files))
    }

    /// The path of the control socket that all layers name, even if other options are wrong.
    ///
    /// # Errors
    /// Returns the problems if there is no path.
    pub fn control_socket(raw: RawConfig) -> Result<PathBuf, Vec<Problem>> {
        const NAME: &str = "control-socket";
        let is_file_unknown = raw.is_file_unknown;
        let (resolved, mut problems) = Resolved::from_raw(raw);
        resolved.values.control_socket.ok_or_else(|| {
            // The file may name the socket, or the value that is given is wrong.
            if is_file_unknown || problems.iter().any(|problem| problem.is_of(NAME)) {
                return problems;
            }
            let what = "is not set, so there is no way to reach the process: name the socket by \
                        --control-socket PATH, or name the file of `respool serve` by --config; \
                        without a socket, SIGHUP reloads";
            let place = &ConfigPlace::Default;
            problems.push(Problem::of_option(NAME, place, what));
            problems
        })
    }

    /// Takes over the number of workers, which `threads = auto` may count anew: a reload cannot
    /// change it.
    pub fn keep_fixed(&mut self, of: &Config) {
        self.workers = of.workers;
    }

    /// The users that may connect.
    pub fn users(&self) -> &[User] {
        &self.settings.users
    }

    /// The bounds of the engine.
    pub fn limits(&self) -> &Limits {
        &self.settings.limits
    }

    /// Every listener, with its TLS and the index of its pool.
    pub fn listeners(&self) -> Vec<ListenAddress> {
        let tls = self.tls_files.of_listeners();
        let pools = self.pools.iter().enumerate();
        let listeners = pools.flat_map(|(pool, settings)| {
            let tls = &tls;
            settings.listen.iter().map(move |at| ListenAddress {
                address: at.address.clone(),
                pool,
                tls: tls.clone().filter(|_| at.tls),
            })
        });
        listeners.collect()
    }

    /// The number of servers that all pools name, with those of their prefixes.
    pub fn servers(&self) -> usize {
        let of_pool = |pool: &PoolConfig| {
            let parts = pool.prefixes.iter().map(|part| part.url.addresses().len());
            let own = match &pool.backend {
                Backend::Server(url) => url.addresses().len(),
                Backend::Spawn(_) => 1,
            };
            own + parts.sum::<usize>()
        };
        self.pools.iter().map(of_pool).sum()
    }

    /// The settings of the engine. `servers` has the URL of each pool.
    pub fn settings(&self, servers: &[BackendUrl]) -> Settings {
        let mut settings = self.settings.clone();
        let pools = self.pools.iter().zip(servers);
        settings.pools = pools.map(|(pool, server)| pool.settings(server)).collect();
        settings
    }

    /// A summary in one line.
    pub fn summary(&self) -> String {
        let pools: Vec<_> = self.pools.iter().map(PoolConfig::summary).collect();
        let workers = match self.workers {
            1 => "1 worker".into(),
            count => format!("{count} workers"),
        };
        let access = match self.settings.users.len() {
            0 => "no password".into(),
            1 => "1 user".into(),
            count => format!("{count} users"),
        };
        format!("{}; {workers}; {access}", pools.join("; "))
    }
}

impl PoolConfig {
    /// Its name in INFO, in the log and in the metrics.
    pub fn shown_name(&self) -> String {
        self.name.clone().unwrap_or_else(|| "default".into())
    }

    /// The settings of the pool, whose servers are at `server`.
    fn settings(&self, server: &BackendUrl) -> PoolSettings {
        let mut kind = PoolConfig::kind(server);
        if !self.prefixes.is_empty() {
            let named = self.prefixes.iter();
            let named = named.map(|part| (part.prefix.as_str(), part.strip, &part.url));
            let all = [("", false, server)].into_iter().chain(named);
            let subpools = all.map(|(prefix, strip, url)| PrefixPool {
                prefix: prefix.into(),
                strip,
                kind: PoolConfig::kind(url),
                reads: url.reads.clone(),
            });
            kind = PoolKind::ByPrefix {
                subpools: subpools.collect(),
            };
        }
        PoolSettings {
            name: self.shown_name(),
            kind,
            tls: server.tls,
            reads: server.reads.clone(),
            flush: self.flush.clone(),
            announce: self.announce.clone(),
            shows: self.shows,
            address_map: self.address_map.clone(),
        }
    }

    /// The kind of pool that a URL names, with its servers and their login.
    fn kind(server: &BackendUrl) -> PoolKind {
        let credentials = server.password.clone().map(|password| Credentials {
            user: server.user.clone(),
            password,
            source: server.source,
        });
        let one = |address| ServerSettings {
            address,
            credentials: credentials.clone(),
            db: server.db,
        };
        match &server.servers {
            BackendServers::Single(address) => PoolKind::Single(one(address.clone())),
            BackendServers::Sharded(shards) => shards.pool(one),
            BackendServers::Sentinel(sentinels) => sentinels.pool(one),
            BackendServers::Cluster(seeds) => PoolKind::Cluster {
                seeds: seeds.iter().cloned().map(one).collect(),
            },
        }
    }

    fn summary(&self) -> String {
        let listen: Vec<_> = self.listen.iter().map(ListenAt::to_string).collect();
        let backend = match &self.backend {
            Backend::Server(url) => url.to_string(),
            Backend::Spawn(plan) => format!("a server of respool's own ({plan})"),
        };
        let listen = listen.join(", ");
        match &self.name {
            None => format!("listen {listen}; backend {backend}"),
            Some(name) => {
                let mut text = format!("pool {name}: listen {listen}, backend {backend}");
                for part in &self.prefixes {
                    let stripped = if part.strip { " (stripped)" } else { "" };
                    text.push_str(&format!(", `{}` at {}{stripped}", part.prefix, part.url));
                }
                text
            }
        }
    }
}

#[cfg(test)]
mod tests;

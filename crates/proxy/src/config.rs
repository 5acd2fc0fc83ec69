//! The configuration: from the values of all layers to the settings of the engine.
//!
//! ```text
//!   RawConfig ──resolve──► Resolved ──build, secrets──► pools, users
//!   (raw.rs)               values and places   │
//!                                              └─checks, relations──► Config, or every Problem
//! ```
//!
//! [`Config::build`] reads the files with passwords and has no other effect. [`crate::serve`] uses
//! only a configuration without problems.

mod build;
mod checks;
mod printed;
mod relations;
mod resolve;
mod secrets;

use respool_driver::SocketAccess;
use respool_engine::address_map::AddressMap;
use respool_engine::limits::Limits;
use respool_engine::settings::{
    Address, Announced, Credentials, FlushRule, PoolKind, PoolSettings, PrefixPool, ServerSettings,
    Settings, Shows,
};

use crate::backend::{BackendServers, BackendUrl};
use crate::descriptors::Room;
use crate::options::{LogFormat, LogLevel, Threads};
use crate::passwords::PasswordFiles;
use crate::problem::Problem;
use crate::raw::RawConfig;
use crate::spawn::Plan;

pub(crate) use resolve::Resolved;

/// A configuration without problems.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// The pools, at least one.
    pub(crate) pools: Vec<PoolConfig>,
    /// The number of workers.
    pub(crate) workers: usize,
    /// The settings of the engine, without pools: [`Config::settings`] adds them.
    settings: Settings,
    /// The files with the passwords of servers and users.
    pub(crate) password_files: PasswordFiles,
    /// Mode, owner and group of sockets in the file system.
    pub(crate) socket_access: SocketAccess,
    /// How long a stop waits for replies.
    pub(crate) drain_timeout: std::time::Duration,
    /// The format of log lines.
    pub(crate) log_format: LogFormat,
    /// The level of the least severe log lines.
    pub(crate) log_level: LogLevel,
    /// Warnings about options that work, but probably not as the operator means them.
    pub(crate) warnings: Vec<String>,
}

/// A pool: its servers and its listeners.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PoolConfig {
    /// Its name; `None` for the one pool of the options `listen` and `backend`.
    pub(crate) name: Option<String>,
    /// The listeners, at least one.
    pub(crate) listen: Vec<Address>,
    /// The servers.
    pub(crate) backend: Backend,
    /// Its own flush rule, if its table in the file has one.
    pub(crate) flush: Option<FlushRule>,
    /// The address of respool in replies about a Cluster; `None`: that of the listener.
    pub(crate) announce: Option<Announced>,
    /// How a Cluster appears to clients.
    pub(crate) shows: Shows,
    /// The map from addresses that servers name to addresses that respool reaches.
    pub(crate) address_map: AddressMap,
    /// The servers of keys with a certain prefix.
    pub(crate) prefixes: Vec<PartConfig>,
}

/// The servers of keys with one prefix.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PartConfig {
    /// The prefix of the keys.
    pub(crate) prefix: String,
    /// The servers of these keys.
    pub(crate) url: BackendUrl,
    /// Whether these servers see the keys without the prefix.
    pub(crate) strip: bool,
}

/// The servers of a pool.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// Servers that run already.
    Server(Box<BackendUrl>),
    /// A server that respool starts and stops.
    Spawn(Plan),
}

impl Config {
    /// Checks the values of all layers and makes a configuration of them.
    ///
    /// # Errors
    /// Returns every problem, in the order of the layers.
    pub(crate) fn build(raw: RawConfig) -> Result<Config, Vec<Problem>> {
        Config::resolve(raw).map(|(config, _)| config)
    }

    /// The same, with the values and their places for `check --print`.
    ///
    /// # Errors
    /// As [`Config::build`].
    pub(crate) fn resolve(mut raw: RawConfig) -> Result<(Config, Resolved), Vec<Problem>> {
        let mut warnings = std::mem::take(&mut raw.warnings);
        let (resolved, mut problems) = Resolved::from_raw(raw);
        let mut files = PasswordFiles::default();
        let pools = resolved.pools(&mut files, &mut problems);
        let users = resolved.users(&mut files, &mut problems);
        resolved.check_listeners(&pools, &mut problems);
        resolved.check_maps(&pools, &mut problems);
        resolved.check_announced(&pools, &mut problems);
        resolved.check_relations(&mut problems);
        resolved.check_links(&pools, &mut problems);
        if !problems.is_empty() {
            return Err(problems);
        }
        warnings.extend(resolved.readable_secrets(&files));
        warnings.extend(resolved.unused_map());
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
                away_error: values.away_error,
                lost_subscriptions: values.lost_subscriptions,
                refused: values.refused.iter().copied().collect(),
                passes_debug_object: values.passes_debug_object,
                asks_output_limits: values.asks_output_limits,
            },
            password_files: files,
            socket_access: SocketAccess {
                mode: Some(values.socket_mode),
                owner: values.socket_owner.as_ref().map(|owner| owner.id),
                group: values.socket_group.as_ref().map(|group| group.id),
            },
            drain_timeout: std::time::Duration::from_millis(values.drain_timeout_ms.into()),
            log_format: values.log_format,
            log_level: values.log_level,
            warnings,
        };
        Ok((config, resolved))
    }

    /// The bounds of the engine.
    pub(crate) fn limits(&self) -> &Limits {
        &self.settings.limits
    }

    /// Whether clients may connect without a password.
    pub(crate) fn is_open(&self) -> bool {
        self.settings.users.is_empty()
    }

    /// Every listener with the index of its pool.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = (&Address, usize)> {
        let pools = self.pools.iter().enumerate();
        pools.flat_map(|(index, pool)| pool.listen.iter().map(move |address| (address, index)))
    }

    /// The number of servers that all pools name, with those of their prefixes.
    pub(crate) fn servers(&self) -> usize {
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

    /// The settings of the engine. `servers` has the URL of each pool, and `room` the bounds for
    /// which there are file descriptors.
    pub(crate) fn settings(&self, servers: &[BackendUrl], room: Room) -> Settings {
        let mut settings = self.settings.clone();
        settings.limits.sessions_max = room.sessions_max;
        settings.limits.pinned_links_max = room.pinned_links_max;
        let pools = self.pools.iter().zip(servers);
        settings.pools = pools.map(|(pool, server)| pool.settings(server)).collect();
        settings
    }

    /// A summary in one line.
    pub(crate) fn summary(&self) -> String {
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
    /// The settings of the pool, whose servers are at `server`.
    fn settings(&self, server: &BackendUrl) -> PoolSettings {
        let mut kind = PoolConfig::kind(server);
        if !self.prefixes.is_empty() {
            let named = self.prefixes.iter();
            let named = named.map(|part| (part.prefix.as_str(), part.strip, &part.url));
            let all = [("", false, server)].into_iter().chain(named);
            let parts = all.map(|(prefix, strip, url)| PrefixPool {
                prefix: prefix.into(),
                strip,
                kind: PoolConfig::kind(url),
                reads: url.reads.clone(),
            });
            kind = PoolKind::ByPrefix {
                parts: parts.collect(),
            };
        }
        PoolSettings {
            name: self.name.clone().unwrap_or_else(|| "default".into()),
            kind,
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
        let listen: Vec<_> = self.listen.iter().map(Address::to_string).collect();
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

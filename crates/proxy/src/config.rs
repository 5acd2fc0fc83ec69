//! From what was given to what is run: one whole, checked configuration, or every reason why not.

use std::collections::BTreeMap;
use std::path::Path;

use respool_driver::SocketAccess;
use respool_engine::address_map::AddressMap;
use respool_engine::limits::Limits;
use respool_engine::settings::{
    Address, Announced, Credentials, FlushRule, Part, PasswordSource, PoolKind, PoolSettings,
    ServerSettings, Settings, Shows, User,
};
use respool_protocol::cluster::Endpoint;
use respool_protocol::hashing::SERVERS_MAX;

use crate::address::{BackendUrl, Named, PASSWORD_FILE};
use crate::descriptors::Room;
use crate::options::{Kind, LogFormat, LogLevel, OPTIONS, Opt, Threads, Topic, Values, find};
use crate::passwords::{PasswordFiles, readable_by_others};
use crate::pools::{NamedPool, OF_ONE, POOLS_MAX, PREFIXES_MAX, PoolOption, Prefix, about};
use crate::problem::{Place, Problem};
use crate::raw::RawConfig;
use crate::spawn::Plan;

/// A configuration that holds together.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// At least one.
    pub(crate) pools: Vec<PoolConfig>,
    /// Threads.
    pub(crate) workers: usize,
    /// What the engine is told; its pools are filled in once their servers' addresses are known.
    settings: Settings,
    /// The files that hold the passwords of servers and users.
    pub(crate) password_files: PasswordFiles,
    /// Mode, owner and group of sockets in the file system.
    pub(crate) socket_access: SocketAccess,
    /// How long a stop waits.
    pub(crate) drain_timeout: std::time::Duration,
    /// How log lines look.
    pub(crate) log_format: LogFormat,
    /// Which are written.
    pub(crate) log_level: LogLevel,
    /// What works, and is still not as its operator means it.
    pub(crate) warnings: Vec<String>,
}

/// What is behind us, and where clients reach it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PoolConfig {
    /// `None`: the only one, by the options `listen` and `backend`.
    pub(crate) name: Option<String>,
    /// Where clients reach it; at least one.
    pub(crate) listen: Vec<Address>,
    /// Its servers.
    pub(crate) backend: Backend,
    /// When its batches leave, if it says anything of that itself.
    pub(crate) flush: Option<FlushRule>,
    /// Where clients reach it, if they are to be told.
    pub(crate) announce: Option<Announced>,
    /// How a Cluster shows itself.
    pub(crate) shows: Shows,
    /// Where servers are that others name.
    pub(crate) address_map: AddressMap,
    /// Where the keys are that begin in these ways.
    pub(crate) prefixes: Vec<PartConfig>,
}

/// Where keys are that begin in one way.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PartConfig {
    pub(crate) prefix: String,
    pub(crate) url: BackendUrl,
    /// Its servers see them without that.
    pub(crate) strip: bool,
}

/// The server behind us.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// Somebody else's.
    Server(Box<BackendUrl>),
    /// One that we start and stop.
    Spawn(Plan),
}

/// The values of all layers, each with the place that it comes from.
pub(crate) struct Resolved {
    values: Values,
    places: BTreeMap<&'static str, Place>,
}

impl Config {
    /// Makes sense of what was given.
    ///
    /// # Errors
    /// Everything that is wrong, in the order of the layers.
    pub(crate) fn build(raw: RawConfig) -> Result<Config, Vec<Problem>> {
        Config::resolve(raw).map(|(config, _)| config)
    }

    /// The same, with what is needed to print it.
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
                // Where the system cannot say, one worker is what always works.
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

    /// The bounds.
    pub(crate) fn limits(&self) -> &Limits {
        &self.settings.limits
    }

    /// Whether anybody may connect without a password.
    pub(crate) fn is_open(&self) -> bool {
        self.settings.users.is_empty()
    }

    /// Every listener with the index of its pool.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = (&Address, usize)> {
        let pools = self.pools.iter().enumerate();
        pools.flat_map(|(index, pool)| pool.listen.iter().map(move |address| (address, index)))
    }

    /// Servers that the pools name, with those of their prefixes.
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

    /// The settings of the engine: a server for each pool, and bounds for which there is room.
    pub(crate) fn settings(&self, servers: &[BackendUrl], room: Room) -> Settings {
        let mut settings = self.settings.clone();
        settings.limits.sessions_max = room.sessions_max;
        settings.limits.pinned_links_max = room.pinned_links_max;
        let pools = self.pools.iter().zip(servers);
        settings.pools = pools.map(|(pool, server)| pool.settings(server)).collect();
        settings
    }

    /// The whole in one line.
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
    /// What the engine is told, once it is known where its servers are.
    fn settings(&self, server: &BackendUrl) -> PoolSettings {
        let mut kind = PoolConfig::kind(server);
        if !self.prefixes.is_empty() {
            let named = self.prefixes.iter();
            let named = named.map(|part| (part.prefix.as_str(), part.strip, &part.url));
            let all = [("", false, server)].into_iter().chain(named);
            let parts = all.map(|(prefix, strip, url)| Part {
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
            Named::One(address) => PoolKind::Single(one(address.clone())),
            Named::Sharded(shards) => shards.pool(one),
            Named::Watched(watched) => watched.pool(one),
            Named::Cluster(seeds) => PoolKind::Cluster {
                seeds: seeds.iter().cloned().map(one).collect(),
            },
        }
    }

    fn summary(&self) -> String {
        let listen: Vec<_> = self.listen.iter().map(Address::to_string).collect();
        let backend = match &self.backend {
            Backend::Server(url) => url.to_string(),
            Backend::Spawn(plan) => format!("a server of our own ({plan})"),
        };
        let listen = listen.join(", ");
        match &self.name {
            None => format!("listen {listen}; backend {backend}"),
            Some(name) => {
                let mut text = format!("pool {name}: listen {listen}, backend {backend}");
                for part in &self.prefixes {
                    let taken_off = if part.strip { " (taken off)" } else { "" };
                    text.push_str(&format!(", `{}` at {}{taken_off}", part.prefix, part.url));
                }
                text
            }
        }
    }
}

impl Resolved {
    fn from_raw(mut raw: RawConfig) -> (Resolved, Vec<Problem>) {
        let mut problems = std::mem::take(&mut raw.problems);
        let mut resolved = Resolved {
            values: Values::default(),
            places: BTreeMap::new(),
        };
        // Every layer is read, so that a wrong value is told even where a later layer replaces it.
        raw.given.sort_by_key(|given| given.place.layer());
        for given in raw.given {
            if let Kind::List { clear, .. } = given.option.kind {
                clear(&mut resolved.values);
                if given.texts.is_empty() && given.option.name == "listen" {
                    let what = "is empty: clients need at least one address";
                    problems.push(Problem::of_option("listen", &given.place, what));
                }
            }
            for (text, place) in &given.texts {
                if let Err(what) = given.option.set(&mut resolved.values, text) {
                    problems.push(Problem::of_option(given.option.name, place, what));
                } else if given.option.name == "pool" {
                    let pool = resolved.values.pools.last_mut();
                    pool.into_iter().for_each(|pool| pool.set_place(place));
                }
            }
            if given.option.name == "pool" && given.texts.is_empty() {
                let tables = raw.pools.drain(..);
                let pools = tables.map(|table| NamedPool::read(table, &mut problems));
                resolved.values.pools.extend(pools);
            }
            resolved.places.insert(given.option.name, given.place);
        }
        (resolved, problems)
    }

    fn place(&self, name: &str) -> &Place {
        self.places.get(name).unwrap_or(&Place::Default)
    }

    /// What is behind us: the pools that have names, or the one of `listen` and `backend`. Every
    /// named one is whole unless there is a problem.
    fn pools(&self, files: &mut PasswordFiles, problems: &mut Vec<Problem>) -> Vec<PoolConfig> {
        if !self.has_named_pools() {
            return vec![PoolConfig {
                name: None,
                listen: self.values.listen.clone(),
                backend: self.backend(files, problems),
                flush: None,
                announce: self.values.announce.clone(),
                shows: self.values.shows,
                address_map: self.address_map(None, problems),
                prefixes: Vec::new(),
            }];
        }
        for name in OF_ONE {
            let is_off = name == "spawn" && !self.values.spawn;
            if self.places.contains_key(name) && !is_off {
                let what = "excludes `pool`, and each pool has its own: leave one of them away";
                problems.push(Problem::of_option(name, self.place(name), what));
            }
        }
        let pools = &self.values.pools;
        if pools.len() > POOLS_MAX {
            let what = format!("there are {}, and {POOLS_MAX} are the most", pools.len());
            problems.push(Problem::of_option("pool", self.place("pool"), what));
        }
        let mut named = Vec::with_capacity(pools.len());
        for (index, pool) in pools.iter().enumerate() {
            let (name, place) = (pool.name.as_str(), &pool.place);
            if pools[..index].iter().any(|other| other.name == name) {
                let what = "there is a pool of this name already: choose another";
                problems.push(about(Some(name), "", place, what));
            }
            let Some((url, place)) = &pool.backend else {
                continue;
            };
            check_parts(pool, url, problems);
            let mut wrong = |what: String| problems.push(about(Some(name), "backend", place, what));
            if let Some(user) = url.user.as_ref().filter(|_| !url.has_password()) {
                wrong(format!(
                    "names the user `{user}` and no password: write it behind a colon, or give \
                     `password-file`"
                ));
            }
            let url = with_passwords(url, PASSWORD_FILE, files, &mut wrong);
            named.push(PoolConfig {
                name: Some(name.to_owned()),
                listen: pool
                    .listen
                    .iter()
                    .map(|(address, _)| address.clone())
                    .collect(),
                backend: Backend::Server(Box::new(url)),
                flush: self.rule_of(pool),
                announce: self.values_of(pool).announce,
                shows: self.values_of(pool).shows,
                address_map: self.address_map(Some(pool), problems),
                prefixes: {
                    let prefixes = pool.prefixes.iter();
                    let part = |part: &Prefix<BackendUrl>| PartConfig {
                        prefix: part.prefix.clone(),
                        url: with_passwords(&part.url, PASSWORD_FILE, files, &mut |what| {
                            let what = format!("`{}`: {what}", part.prefix);
                            problems.push(about(Some(name), "prefixes", &part.place, what));
                        }),
                        strip: part.strip,
                    };
                    prefixes.map(part).collect()
                },
            });
        }
        named
    }

    /// Whether what a pool says of itself counts: no later layer has said the same for all pools.
    fn counts(&self, own: &PoolOption) -> bool {
        self.place(own.option.name).layer() <= own.place.layer()
    }

    /// When the batches of a pool leave, if it says anything of that itself.
    fn rule_of(&self, pool: &NamedPool) -> Option<FlushRule> {
        let mut own = pool.options.iter().filter(|own| self.counts(own));
        let says = own.any(|own| own.option.topic == Topic::Batching);
        says.then(|| self.values_of(pool).flush)
    }

    /// What holds for a pool: what counts of its own, and else what is said of all.
    fn values_of(&self, pool: &NamedPool) -> Values {
        let mut values = self.values.clone();
        let mut cleared: Vec<&str> = Vec::new();
        for own in pool.options.iter().filter(|own| self.counts(own)) {
            // A pool's own list replaces that of all.
            if let Kind::List { clear, .. } = own.option.kind
                && !cleared.contains(&own.option.name)
            {
                clear(&mut values);
                cleared.push(own.option.name);
            }
            let read = own.option.set(&mut values, &own.text);
            read.expect("what cannot be read was left out");
        }
        values
    }

    /// Where servers are that those of a pool name.
    fn address_map(&self, pool: Option<&NamedPool>, problems: &mut Vec<Problem>) -> AddressMap {
        let values = pool.map_or_else(|| self.values.clone(), |pool| self.values_of(pool));
        AddressMap::new(values.address_map).unwrap_or_else(|error| {
            self.tell_of_map(pool, error.to_string(), problems);
            AddressMap::default()
        })
    }

    /// A mistake in the address map of a pool. One in the map of all pools is told once.
    fn tell_of_map(&self, pool: Option<&NamedPool>, what: String, problems: &mut Vec<Problem>) {
        const NAME: &str = "address-map";
        let mut own = pool.iter().flat_map(|pool| &pool.options);
        let own = own.find(|own| own.option.name == NAME && self.counts(own));
        let (name, place) = match (own, pool) {
            (Some(own), Some(pool)) => (Some(pool.name.as_str()), &own.place),
            _ => (None, self.place(NAME)),
        };
        let problem = about(name, NAME, place, what);
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }

    /// No entry of an address map leads to a listener.
    fn check_maps(&self, pools: &[PoolConfig], problems: &mut Vec<Problem>) {
        let listen = self.listeners();
        for pool in pools {
            let mut named = self.values.pools.iter();
            let named = named.find(|named| Some(&named.name) == pool.name.as_ref());
            for entry in pool.address_map.entries() {
                let Some(Endpoint { host, port }) = entry.only_address() else {
                    continue;
                };
                let to = Address::Tcp { host, port };
                let mut listeners = listen.iter().map(|(_, address, _)| *address);
                if let Some(listener) = listeners.find(|address| reaches(address, &to)) {
                    let what = format!(
                        "`{entry}` leads to {listener}, where respool listens: it would speak to itself; \
                         write the address of the node on the right, or choose another port for `listen`"
                    );
                    self.tell_of_map(named, what, problems);
                }
            }
        }
    }

    /// A warning if there is a map, and the servers of no pool name addresses.
    fn unused_map(&self) -> Option<String> {
        let values = &self.values;
        let names_others =
            |url: &BackendUrl| matches!(url.servers, Named::Cluster(_) | Named::Watched(_));
        let is_used = match self.has_named_pools() {
            false => names_others(&values.backend),
            true => values.pools.iter().any(|pool| {
                let backend = pool.backend.iter().map(|(url, _)| url);
                let prefixes = pool.prefixes.iter().map(|part| &part.url);
                backend.chain(prefixes).any(names_others)
            }),
        };
        (!values.address_map.is_empty() && !is_used).then(|| {
            "--address-map has no effect: only the nodes of a Cluster (redis-cluster://) and \
             Sentinels (redis-sentinel://) name addresses"
                .into()
        })
    }

    fn has_named_pools(&self) -> bool {
        self.places.contains_key("pool")
    }

    /// The server behind us: of `backend` and `spawn`, the later layer's.
    fn backend(&self, files: &mut PasswordFiles, problems: &mut Vec<Problem>) -> Backend {
        let values = &self.values;
        let (url_layer, spawn_layer) = (self.place("backend").layer(), self.place("spawn").layer());
        if values.spawn && url_layer == spawn_layer {
            let what = "excludes `backend`: leave one of them away";
            problems.push(Problem::of_option("spawn", self.place("spawn"), what));
        }
        if values.spawn && spawn_layer >= url_layer {
            return Backend::Spawn(Plan {
                program: values.spawn_program.clone(),
                memory_bytes: values.spawn_memory_bytes,
            });
        }
        for name in ["spawn-program", "spawn-memory-bytes"] {
            if self.places.contains_key(name) && !values.spawn {
                let what = "means nothing without `spawn`: add it, or leave this away";
                problems.push(Problem::of_option(name, self.place(name), what));
            }
        }
        let mut url = values.backend.clone();
        let in_url = url.has_password().then_some("backend");
        let literal = values.backend_password.as_ref();
        let literal = literal.map(|_| "backend-password");
        let file = values.backend_password_file.as_ref();
        let file = file.map(|_| "backend-password-file");
        match self.latest(&[in_url, literal, file], problems) {
            None | Some("backend") => {}
            Some("backend-password") => {
                url.password.clone_from(&values.backend_password);
                url.password_file = None;
            }
            Some(_) => {
                url.password = None;
                url.password_file.clone_from(&values.backend_password_file);
            }
        }
        if let Some(user) = url.user.as_ref().filter(|_| !url.has_password()) {
            let what = format!(
                "names the user `{user}` and no password: write it behind a colon, or give \
                 `backend-password`"
            );
            problems.push(Problem::of_option("backend", self.place("backend"), what));
        }
        let by_option = file.filter(|_| url.password_file == values.backend_password_file);
        let (name, option) = match by_option {
            Some(name) => (name, "--backend-password-file"),
            None => ("backend", PASSWORD_FILE),
        };
        let mut wrong = |what| problems.push(Problem::of_option(name, self.place(name), what));
        Backend::Server(Box::new(with_passwords(&url, option, files, &mut wrong)))
    }

    /// Who may connect: the user `default`, if there is a password, and the named ones.
    fn users(&self, files: &mut PasswordFiles, problems: &mut Vec<Problem>) -> Vec<User> {
        let values = &self.values;
        let literal = values.password.as_ref().map(|_| "password");
        let file = values.password_file.as_ref().map(|_| "password-file");
        let password = match self.latest(&[literal, file], problems) {
            None => None,
            Some("password") => values.password.clone().map(|password| (password, None)),
            Some(name) => {
                let path = values.password_file.as_deref();
                let read = path.and_then(|path| self.read_secret(name, path, files, problems));
                read.map(|(password, source)| (password, Some(source)))
            }
        };
        let default = password.map(|(password, source)| User {
            name: "default".into(),
            password,
            source,
        });
        let mut users: Vec<User> = Vec::new();
        for user in default.iter().chain(&values.users) {
            if users.iter().any(|other| other.name == user.name) {
                let what = match user.name.as_str() {
                    "default" => "`default` is who `password` means: give one of them, once".into(),
                    name => format!("`{name}` is given twice"),
                };
                problems.push(Problem::of_option("user", self.place("user"), what));
            } else {
                users.push(user.clone());
            }
        }
        users
    }

    /// Of options that say the same thing, the one of the latest layer. Two of one layer are a
    /// problem.
    fn latest(
        &self,
        given: &[Option<&'static str>],
        problems: &mut Vec<Problem>,
    ) -> Option<&'static str> {
        let mut latest: Option<&'static str> = None;
        for name in given.iter().flatten() {
            let Some(other) = latest else {
                latest = Some(name);
                continue;
            };
            let (layer, other_layer) = (self.place(name).layer(), self.place(other).layer());
            if layer == other_layer {
                let what = match other {
                    "backend" => "`backend` has a password already: leave one away".into(),
                    other => format!("excludes `{other}`: leave one of them away"),
                };
                problems.push(Problem::of_option(name, self.place(name), what));
            } else if layer > other_layer {
                latest = Some(name);
            }
        }
        latest
    }

    /// The password in a file that an option names, and the number of that file.
    fn read_secret(
        &self,
        name: &str,
        path: &Path,
        files: &mut PasswordFiles,
        problems: &mut Vec<Problem>,
    ) -> Option<(String, PasswordSource)> {
        let secret = files.read(&format!("--{name}"), path);
        secret
            .map_err(|what| problems.push(Problem::of_option(name, self.place(name), what)))
            .ok()
    }

    /// Warnings about files that hold a password and that other users of the machine may read.
    fn readable_secrets(&self, files: &PasswordFiles) -> Vec<String> {
        let config = self.file_with_secrets();
        let config = config.and_then(|path| readable_by_others(Path::new(&path)));
        let config = config.map(|warning| format!("--config: {warning}"));
        files.warnings().chain(config).collect()
    }

    /// The configuration file, if a password stands in it.
    fn file_with_secrets(&self) -> Option<String> {
        let values = &self.values;
        let has_password = |url: &BackendUrl| url.password.is_some();
        let path = |place: &Place| match place {
            Place::File { path, .. } => Some(path.clone()),
            _ => None,
        };
        let of_all = [
            ("password", values.password.is_some()),
            ("backend-password", values.backend_password.is_some()),
            ("user", !values.users.is_empty()),
            ("backend", has_password(&values.backend)),
        ];
        let of_all = of_all.into_iter().filter(|(_, is_secret)| *is_secret);
        let of_all = of_all.filter_map(|(name, _)| path(self.place(name)));
        let of_pools = values.pools.iter().filter(|pool| {
            let backend = pool.backend.iter().map(|(url, _)| url);
            let prefixes = pool.prefixes.iter().map(|part| &part.url);
            backend.chain(prefixes).any(has_password)
        });
        let mut all = of_all.chain(of_pools.filter_map(|pool| path(&pool.place)));
        all.next()
    }

    /// Every listener with the name of its pool and its place.
    fn listeners(&self) -> Vec<(Option<&str>, &Address, &Place)> {
        let values = &self.values;
        if !self.has_named_pools() {
            let place = self.place("listen");
            let listen = values.listen.iter();
            return listen.map(|address| (None, address, place)).collect();
        }
        let mut listeners = Vec::new();
        for pool in &values.pools {
            let its = pool.listen.iter();
            listeners
                .extend(its.map(|(address, place)| (Some(pool.name.as_str()), address, place)));
        }
        listeners
    }

    fn check_listeners(&self, pools: &[PoolConfig], problems: &mut Vec<Problem>) {
        let listen = self.listeners();
        for (index, &(pool, address, place)) in listen.iter().enumerate() {
            let mut problem = |what: String| problems.push(about(pool, "listen", place, what));
            let any_port = matches!(address, Address::Tcp { port: 0, .. });
            let same = listen[..index]
                .iter()
                .find(|(_, other, _)| *other == address);
            match same {
                _ if any_port => {}
                Some((Some(other), ..)) if Some(*other) != pool => problem(format!(
                    "`{address}` leads to the pool `{other}` already: choose another"
                )),
                Some(_) => problem(format!(
                    "`{address}` is given twice: leave one of them away"
                )),
                None => {}
            }
            for server in servers(pools) {
                if reaches(address, server) {
                    problem(format!(
                        "`{address}` is where the backend {server} is: respool would speak to itself; \
                         choose another port or another backend"
                    ));
                }
            }
        }
    }

    /// Behind one address and port is one pool.
    fn check_announced(&self, pools: &[PoolConfig], problems: &mut Vec<Problem>) {
        for (index, pool) in pools.iter().enumerate() {
            let Some(announced) = pool.announce.as_ref().filter(|at| at.port.is_some()) else {
                continue;
            };
            let mut before = pools[..index].iter();
            let same = before.find(|other| other.announce.as_ref() == Some(announced));
            let Some(other) = same.and_then(|other| other.name.as_deref()) else {
                continue;
            };
            let mut tables = self.values.pools.iter();
            let table = tables.find(|table| Some(&table.name) == pool.name.as_ref());
            let mut own = table.into_iter().flat_map(|table| &table.options);
            let own = own.find(|own| own.option.name == "announce" && self.counts(own));
            let (name, place) = match own {
                Some(own) => (pool.name.as_deref(), &own.place),
                None => (None, self.place("announce")),
            };
            let what = format!(
                "`{announced}` leads to the pool `{other}` already: leave the port away, or give each pool its own in the file"
            );
            let problem = about(name, "announce", place, what);
            // A mistake in the map of all pools is told once.
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
    }

    /// Each server has a link of each version of the protocol, at least, and each Sentinel that is
    /// listened to has one.
    fn check_links(&self, pools: &[PoolConfig], problems: &mut Vec<Problem>) {
        let (needed, links) = (
            backends(pools).map(BackendUrl::links_min).sum::<usize>(),
            self.values.limits.links_max,
        );
        if (links as usize) < needed {
            let what = format!(
                "must be at least {needed}, two for each server and one for each Sentinel: raise it"
            );
            problems.push(Problem::of_option(
                "links-max",
                self.place("links-max"),
                what,
            ));
        }
    }

    /// What bounds must be to each other. `low` above `high` is always a slip, never a choice.
    fn check_relations(&self, problems: &mut Vec<Problem>) {
        let values = &self.values;
        let (limits, timeouts) = (&values.limits, &values.timeouts);
        let mut ordered = |low: (&str, u64), high: (&str, u64), strict: bool, why: &str| {
            if low.1 > high.1 || (strict && low.1 == high.1) {
                let low = (self.describe(low.0), self.place(low.0));
                problems.push(self.disordered(low, high.0, strict, why));
            }
        };
        let memory = ("worker-memory-bytes-max", limits.worker_memory_bytes_max);
        let output_hard = (
            "session-output-hard-bytes",
            limits.session_output_hard_bytes.into(),
        );
        let held = (
            "request-held-bytes-max",
            limits.request_held_bytes_max.into(),
        );
        ordered(
            (
                "session-output-soft-bytes",
                limits.session_output_soft_bytes.into(),
            ),
            output_hard,
            true,
            "reading stops at the first, and the session is closed at the second",
        );
        ordered(
            output_hard,
            memory,
            false,
            "one session's output must fit into a worker",
        );
        ordered(held, memory, false, "one request must fit into a worker");
        ordered(
            held,
            (
                "link-unanswered-bytes-max",
                limits.link_unanswered_bytes_max.into(),
            ),
            false,
            "a request that was held must fit into what its link may owe the server",
        );
        ordered(
            ("streaming-links-max", limits.streaming_links_max.into()),
            ("links-max", limits.links_max.into()),
            true,
            "at least one link must be left for requests that are not large",
        );
        ordered(
            ("stranger-stall-ms", limits.stranger_stall_ms.into()),
            ("session-stall-ms", limits.session_stall_ms.into()),
            false,
            "strangers do not wait longer for a client than it may wait itself",
        );
        ordered(
            ("reconnect-min-ms", timeouts.reconnect_min_ms.into()),
            ("reconnect-max-ms", timeouts.reconnect_max_ms.into()),
            false,
            "the pause grows from the first to the second",
        );
        self.check_waits(problems);
    }

    /// A request must not wait longer than it may take, in any pool.
    fn check_waits(&self, problems: &mut Vec<Problem>) {
        let mut check = |rule: &FlushRule, low: (String, &Place)| {
            if rule.outwaits(&self.values.timeouts) {
                let why = "a held request would time out before it is sent";
                problems.push(self.disordered(low, "request-timeout-ms", true, why));
            }
        };
        const NAME: &str = "max-delay-us";
        let of_all = &self.values.flush;
        let waits = |rule: &FlushRule| (rule.hold, rule.max_delay_us);
        let differs = |rule: &FlushRule| waits(rule) != waits(of_all);
        // `None`: as all.
        let pools = self.values.pools.iter();
        let rules = || pools.clone().map(|pool| self.rule_of(pool).filter(differs));
        if !self.has_named_pools() || rules().any(|rule| rule.is_none()) {
            check(of_all, (self.describe(NAME), self.place(NAME)));
        }
        for (pool, rule) in pools.clone().zip(rules()) {
            let Some(rule) = rule else { continue };
            let mut own = pool.options.iter();
            let own = own.find(|own| own.option.name == NAME && self.counts(own));
            let place = own.map_or(self.place(NAME), |own| &own.place);
            let name = format!("pool.{}.{NAME}", pool.name);
            check(
                &rule,
                (format!("`{name}` = {} ({place})", rule.max_delay_us), place),
            );
        }
    }

    /// `low`, with its place, must be below the option `high`, or at most that, and is not.
    fn disordered(&self, low: (String, &Place), high: &str, strict: bool, why: &str) -> Problem {
        let relation = if strict { "below" } else { "at most" };
        let (low_text, low_place) = low;
        // The problem is where the later of the two was said.
        let low_is_later = low_place.layer() >= self.place(high).layer();
        let place = if low_is_later {
            low_place
        } else {
            self.place(high)
        };
        let text = format!(
            "{low_text} must be {relation} {}: {why}; lower the first or raise the second",
            self.describe(high)
        );
        Problem::at(place.clone(), text)
    }

    /// `name = value (place)`.
    fn describe(&self, name: &str) -> String {
        let option = find(name).expect("relations name options of the table");
        let texts = option.get(&mut self.values.clone());
        format!(
            "`{name}` = {} ({})",
            option.in_file(&texts),
            self.place(name)
        )
    }

    /// The whole as a file that says the same, each line with the place that it comes from.
    /// Passwords are left out.
    pub(crate) fn to_toml(&self) -> String {
        let mut values = self.values.clone();
        let mut lines = String::from(
            "# The configuration in effect; behind each value, where it comes from.\n\
             # Passwords are not shown.\n",
        );
        for option in OPTIONS {
            if option.name == "pool" && self.has_named_pools() {
                continue;
            }
            lines.push_str(&self.line(option, &mut values));
            lines.push('\n');
        }
        if self.has_named_pools() {
            for pool in &self.values.pools {
                lines.push_str(&pool.to_toml(|own| self.counts(own)));
            }
        }
        lines
    }

    fn line(&self, option: &Opt, values: &mut Values) -> String {
        let (name, place) = (option.name, self.place(option.name));
        let texts = option.get(values);
        if texts.is_empty() {
            return format!("# {name} is not set");
        }
        if option.secret {
            return format!("# {name} = \"********\"  # {place}");
        }
        // Of the two that exclude each other, the overruled one would make the file wrong.
        let overruled = match name {
            name if OF_ONE.contains(&name) && self.has_named_pools() => true,
            "backend" => values.spawn && self.place("spawn").layer() >= place.layer(),
            "spawn" => values.spawn && self.place("backend").layer() > place.layer(),
            "spawn-program" | "spawn-memory-bytes" => {
                !values.spawn || self.place("backend").layer() > self.place("spawn").layer()
            }
            _ => false,
        };
        let line = format!("{name} = {}  # {place}", option.in_file(&texts));
        if overruled {
            format!("# {line}, not in use")
        } else {
            line
        }
    }
}

/// The same URL with the passwords of the files that it names. `option`: the parameter that names
/// the file for its servers.
fn with_passwords(
    url: &BackendUrl,
    option: &str,
    files: &mut PasswordFiles,
    wrong: &mut dyn FnMut(String),
) -> BackendUrl {
    let mut url = url.clone();
    if let Some(path) = &url.password_file {
        match files.read(option, path) {
            Ok((password, source)) => {
                url.password = Some(password);
                url.source = Some(source);
            }
            Err(what) => wrong(what),
        }
    }
    if let Named::Watched(watched) = &mut url.servers
        && let Some(path) = &watched.password_file
    {
        match files.read("sentinel-password-file", path) {
            Ok(read) => watched.set_password(read),
            Err(what) => wrong(what),
        }
    }
    url
}

/// What must be true of the backends among which keys are divided by how they begin.
fn check_parts(pool: &NamedPool, url: &BackendUrl, problems: &mut Vec<Problem>) {
    let name = Some(pool.name.as_str());
    if pool.prefixes.len() > PREFIXES_MAX {
        let what = format!(
            "has {} prefixes, and {PREFIXES_MAX} are the most",
            pool.prefixes.len()
        );
        problems.push(about(name, "", &pool.place, what));
    }
    let mut seen = keepers(url);
    for Prefix {
        prefix,
        url: part,
        place,
        ..
    } in &pool.prefixes
    {
        let mut problem = |what: String| {
            let what = format!("`{prefix}`: {what}");
            problems.push(about(name, "prefixes", place, what));
        };
        if prefix.is_empty() {
            problem("is how every key begins: `backend` is for those without another".into());
        }
        if part.db != url.db {
            problem(format!(
                "must start in the database {}, as `backend` does",
                url.db
            ));
        }
        if let Some(user) = part.user.as_ref().filter(|_| !part.has_password()) {
            problem(format!(
                "names the user `{user}` and no password: write it behind a colon, or give \
                 `password-file`"
            ));
        }
        for keeper in keepers(part) {
            if seen.contains(&keeper) {
                let (address, name) = keeper;
                let what = match name {
                    Some(name) => format!("the primary `{name}` of {address}"),
                    None => address.to_string(),
                };
                problem(format!(
                    "{what} is in this pool already: its keys would count twice"
                ));
            }
            seen.push(keeper);
        }
    }
    if seen.len() > SERVERS_MAX && !pool.prefixes.is_empty() {
        let what = format!("has {} servers, and {SERVERS_MAX} are the most", seen.len());
        problems.push(about(name, "", &pool.place, what));
    }
}

/// Who keeps what is behind a URL, as far as that says it: one Sentinel may know of several
/// primaries, by their names.
fn keepers(url: &BackendUrl) -> Vec<(&Address, Option<&str>)> {
    match &url.servers {
        Named::Watched(watched) => {
            let names = || watched.primaries().map(Some);
            let all = watched.addresses();
            all.flat_map(|address| names().map(move |name| (address, name)))
                .collect()
        }
        _ => {
            let all = url.addresses().into_iter();
            all.map(|address| (address, None)).collect()
        }
    }
}

/// Where the servers of all pools are, but for one that we start.
fn servers(pools: &[PoolConfig]) -> impl Iterator<Item = &Address> {
    backends(pools).flat_map(BackendUrl::addresses)
}

/// What is behind all pools, but for a server that we start.
fn backends(pools: &[PoolConfig]) -> impl Iterator<Item = &BackendUrl> {
    pools.iter().flat_map(|pool| {
        let prefixes = pool.prefixes.iter().map(|part| &part.url);
        let backend = match &pool.backend {
            Backend::Server(url) => Some(&**url),
            Backend::Spawn(_) => None,
        };
        backend.into_iter().chain(prefixes)
    })
}

/// Whether who connects to `server` arrives at `listener`.
fn reaches(listener: &Address, server: &Address) -> bool {
    match (listener, server) {
        (
            Address::Tcp { host, port },
            Address::Tcp {
                host: to,
                port: to_port,
            },
        ) => {
            let is_local =
                |host: &str| ["localhost", "::1"].contains(&host) || host.starts_with("127.");
            let is_any = ["0.0.0.0", "::", "localhost"].contains(&host.as_str());
            port == to_port && (host == to || (is_any && is_local(to)))
        }
        (Address::Unix(path), Address::Unix(to)) => path == to,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::io::Write;

    use proptest::prelude::*;
    use respool_engine::settings::ReadPolicy;

    use super::*;
    use crate::arguments::{self, Command};

    const ROOM: Room = Room {
        sessions_max: 7,
        pinned_links_max: 5,
    };

    /// What a configuration of these layers comes to.
    fn resolve(
        file: &str,
        environment: &[(&str, &str)],
        arguments: &[&str],
    ) -> Result<(Config, Resolved), Vec<String>> {
        let arguments = ["serve"].iter().chain(arguments).map(OsString::from);
        let Ok(Command::Serve(told)) = arguments::parse(arguments) else {
            panic!("not `serve`");
        };
        let mut raw = told.into_raw(|name| {
            let found = environment.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| value.into())
        });
        raw.add_toml("r.toml", file);
        Config::resolve(raw)
            .map_err(|problems| problems.iter().map(Problem::to_string).collect::<Vec<_>>())
    }

    fn good(file: &str, environment: &[(&str, &str)], arguments: &[&str]) -> Config {
        match resolve(file, environment, arguments) {
            Ok((config, _)) => config,
            Err(problems) => panic!("{problems:?}"),
        }
    }

    fn file_with(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn a_later_layer_overrules_an_earlier_one() {
        let variable = [("RESPOOL_PASSWORD", "of-the-environment")];
        let password = |config: Config| config.settings.users[0].password.clone();
        assert_eq!(good("", &[], &[]).settings.limits, Limits::default());
        assert_eq!(good("threads = 3", &[], &[]).workers, 3);
        assert_eq!(good("threads = 3", &[], &["--threads", "4"]).workers, 4);
        assert!(good("hold = false", &[], &["--hold"]).settings.flush.hold);
        for (text, value) in [("yes", true), ("no", false), ("false", false)] {
            let argument = format!("--hold={text}");
            assert_eq!(
                good("", &[], &[&argument]).settings.flush.hold,
                value,
                "{text}"
            );
        }
        assert_eq!(
            password(good("password = 'of-the-file'", &[], &[])),
            "of-the-file"
        );
        assert_eq!(
            password(good("password = 'of-the-file'", &variable, &[])),
            "of-the-environment"
        );
        assert_eq!(
            password(good("", &variable, &["--password", "of-the-line"])),
            "of-the-line"
        );
        assert_eq!(
            good("", &[], &["--threads", "1", "--threads", "2"]).workers,
            2
        );
        let lists = good("listen = [':1', ':2']", &[], &["--listen", ":3"]);
        assert_eq!(lists.summary().split(';').next(), Some("listen 0.0.0.0:3"));
    }

    #[test]
    fn of_a_backend_and_a_server_of_our_own_the_later_layer_decides() {
        let spawns = |config: Config| matches!(config.pools[0].backend, Backend::Spawn(_));
        assert!(!spawns(good("", &[], &[])));
        assert!(spawns(good("", &[], &["--spawn"])));
        assert!(spawns(good("backend = 'redis://h'", &[], &["--spawn"])));
        assert!(!spawns(good(
            "spawn = true",
            &[],
            &["--backend", "redis://h"]
        )));
        assert!(!spawns(good("spawn = true", &[], &["--spawn=false"])));
    }

    #[test]
    fn passwords_come_from_where_the_latest_layer_says() {
        let file = file_with("of the file\r\n");
        let path = file.path().to_str().unwrap();
        let users = good("", &[], &["--password-file", path, "--user", "alice:a:b"])
            .settings
            .users;
        let shown: Vec<_> = users
            .iter()
            .map(|user| (&*user.name, &*user.password))
            .collect();
        assert_eq!(shown, [("default", "of the file"), ("alice", "a:b")]);

        let variable = [("RESPOOL_BACKEND_PASSWORD", "of-the-environment")];
        let password = |config: Config| match &config.pools[0].backend {
            Backend::Server(url) => (url.user.clone(), url.password.clone()),
            Backend::Spawn(_) => panic!("not asked for"),
        };
        let who = |user: Option<&str>, password: &str| {
            (user.map(str::to_owned), Some(password.to_owned()))
        };
        let url = "backend = 'redis://u:of-the-url@h'";
        assert_eq!(password(good(url, &[], &[])), who(Some("u"), "of-the-url"));
        assert_eq!(
            password(good(url, &variable, &[])),
            who(Some("u"), "of-the-environment")
        );
        assert_eq!(
            password(good("", &variable, &["--backend", "redis://:of-the-url@h"])),
            who(None, "of-the-url")
        );
        assert_eq!(
            password(good(url, &variable, &["--backend-password-file", path])),
            who(Some("u"), "of the file")
        );
    }

    #[test]
    fn every_problem_is_told_with_its_place_and_what_to_do() {
        let (empty, binary) = (file_with("\n"), tempfile::NamedTempFile::new().unwrap());
        std::fs::write(binary.path(), [0xff]).unwrap();
        let (empty, binary) = (
            empty.path().to_str().unwrap(),
            binary.path().to_str().unwrap(),
        );
        for (file, arguments, problem) in [
            ("", vec!["--threads", "0"], "--threads: must be `auto` or"),
            (
                "threads = 0",
                vec!["--threads", "1"],
                "r.toml:1:11: threads: must be `auto` or",
            ),
            (
                "",
                vec!["--threads"],
                "--threads: needs a value: --threads N|auto",
            ),
            (
                "",
                vec!["--tread", "2"],
                "unknown option `--tread`: did you mean `--threads`?",
            ),
            ("", vec!["-x"], "unknown option `-x`"),
            (
                "threads = true",
                vec![],
                "r.toml:1:11: threads: must be `auto` or a number from 1 to 1024, such as threads = 1",
            ),
            (
                "",
                vec!["--backend", "redis://:SECRET,@h1:1,h2:2"],
                "--backend: names several servers: write redis-sharded:// to divide the keys among them,",
            ),
            (
                "",
                vec!["--listen", "127.0.0.1:1,127.0.0.1:2"],
                "--listen: holds a comma: each listener is given by itself",
            ),
            (
                "",
                vec!["--fuse", "no"],
                "--fuse: its value stands behind an equals sign: --fuse=no",
            ),
            (
                "",
                vec!["--fuse=off"],
                "--fuse: must be `true` or `false`, or `yes` or `no`",
            ),
            (
                "",
                vec!["redis://:SECRET@h"],
                "unexpected `redis://...`: a server is given by --backend URL",
            ),
            (
                "",
                vec!["--config", "redis://:SECRET@h"],
                "unexpected `redis://...`: a server is given by --backend URL",
            ),
            (
                "",
                vec![":SECRET@h:1"],
                "unexpected `...@h:1`: a configuration file is given by --config",
            ),
            (
                "",
                vec!["--config", ":SECRET@h:1"],
                "...@h:1: cannot be read: ",
            ),
            (
                "",
                vec!["--refuse-commands", "redis://:SECRET@h"],
                "--refuse-commands: no command is called `redis://...`",
            ),
            (
                "",
                vec!["r.toml"],
                "unexpected `r.toml`: a configuration file is given by --config",
            ),
            (
                "",
                vec!["--config", "/nonexistent"],
                "/nonexistent: cannot be read: ",
            ),
            (
                "",
                vec!["--listen", ":1", "--listen", ":1"],
                "--listen: `0.0.0.0:1` is given twice",
            ),
            ("listen = []", vec![], "r.toml:1:1: listen: is empty"),
            (
                "listen = ':1'",
                vec!["--backend", "redis://localhost:1"],
                "r.toml:1:1: listen: `0.0.0.0:1` is where the backend localhost:1 is",
            ),
            (
                "",
                vec!["--backend", "unix:///a", "--listen", "unix:/a"],
                "--listen: `unix:/a` is where the backend unix:/a is",
            ),
            (
                "",
                vec!["--spawn", "--backend", "redis://h"],
                "--spawn: excludes `backend`",
            ),
            (
                "spawn-program = 'a'",
                vec![],
                "r.toml:1:1: spawn-program: means nothing without `spawn`",
            ),
            (
                "",
                vec!["--backend", "redis://u@h"],
                "--backend: names the user `u` and no password",
            ),
            (
                "password = 'a'\npassword-file = 'b'",
                vec![],
                "r.toml:2:1: password-file: excludes `password`: leave one of them away",
            ),
            (
                "backend = 'redis://:a@h'\nbackend-password = 'b'",
                vec![],
                "r.toml:2:1: backend-password: `backend` has a password already",
            ),
            (
                "",
                vec!["--password-file", "/nonexistent"],
                "--password-file: `/nonexistent` cannot be read",
            ),
            (
                "",
                vec!["--password-file", empty],
                &format!("--password-file: `{empty}` is empty"),
            ),
            (
                "",
                vec!["--password-file", binary],
                &format!("--password-file: `{binary}` is not UTF-8"),
            ),
            (
                "",
                vec!["--user", "a:1", "--user", "a:2"],
                "--user: `a` is given twice",
            ),
            (
                "password = 'a'",
                vec!["--user", "default:b"],
                "--user: `default` is who `password` means",
            ),
            (
                "session-output-soft-bytes = '32MiB'",
                vec![],
                "r.toml:1:1: `session-output-soft-bytes` = 33554432 (r.toml:1:1) must be below \
                 `session-output-hard-bytes` = 33554432 (default): reading stops at the first",
            ),
            (
                "",
                vec!["--worker-memory-bytes-max", "16MiB"],
                "`session-output-hard-bytes` = 33554432 (default) must be at most \
                 `worker-memory-bytes-max` = 16777216 (command line): one session's output",
            ),
            (
                "session-output-hard-bytes = '2MiB'\nworker-memory-bytes-max = '4MiB'",
                vec![
                    "--request-held-bytes-max",
                    "8MiB",
                    "--link-unanswered-bytes-max",
                    "8MiB",
                ],
                "`request-held-bytes-max` = 8388608 (command line) must be at most \
                 `worker-memory-bytes-max` = 4194304 (r.toml:2:1): one request must fit",
            ),
            (
                "request-held-bytes-max = '8MiB'",
                vec![],
                "r.toml:1:1: `request-held-bytes-max` = 8388608 (r.toml:1:1) must be at most \
                 `link-unanswered-bytes-max` = 4194304 (default): a request that was held",
            ),
            (
                "links-max = 16",
                vec![],
                "r.toml:1:1: `streaming-links-max` = 16 (default) must be below `links-max` = 16",
            ),
            (
                "stranger-stall-ms = '11s'",
                vec![],
                "r.toml:1:1: `stranger-stall-ms` = 11000 (r.toml:1:1) must be at most \
                 `session-stall-ms` = 10000 (default): strangers",
            ),
            (
                "reconnect-min-ms = '3s'",
                vec![],
                "r.toml:1:1: `reconnect-min-ms` = 3000 (r.toml:1:1) must be at most \
                 `reconnect-max-ms` = 2000 (default): the pause grows",
            ),
            (
                "request-timeout-ms = 1",
                vec!["--max-delay-us", "1000"],
                "`max-delay-us` = 1000 (command line) must be below `request-timeout-ms` = 1 \
                 (r.toml:1:1)",
            ),
            (
                &format!("request-timeout-ms = 1\n{TWO_POOLS}max-delay-us = '1ms'"),
                vec![],
                "r.toml:9:1: `pool.pages.max-delay-us` = 1000 (r.toml:9:1) must be below \
                 `request-timeout-ms` = 1 (r.toml:1:1): a held request",
            ),
            (
                &format!("hold = false\nmax-delay-us = 1000\n{TWO_POOLS}hold = true"),
                vec!["--request-timeout-ms=1"],
                "`pool.pages.max-delay-us` = 1000 (r.toml:2:1) must be below `request-timeout-ms` = 1 (command line)",
            ),
            (
                &format!("max-delay-us = 1000\n{TWO_POOLS}max-delay-us = 500"),
                vec!["--request-timeout-ms=1"],
                "`max-delay-us` = 1000 (r.toml:1:1) must be below `request-timeout-ms` = 1 (command line)",
            ),
            (
                &format!("max-delay-us = 1000\n{TWO_POOLS}fuse = false"),
                vec!["--request-timeout-ms=1"],
                "`max-delay-us` = 1000 (r.toml:1:1) must be below",
            ),
            (
                &format!("{TWO_POOLS}fused-keys-max = 1"),
                vec![],
                "r.toml:8:1: pool.pages.fused-keys-max: must be from 2 to 1000",
            ),
        ] {
            let problems = resolve(file, &[], &arguments).err().expect(problem);
            assert_eq!(problems.len(), 1, "{problem}: {problems:?}");
            assert!(
                problems[0].starts_with(problem),
                "{problem}: {}",
                problems[0]
            );
            let lower = problems[0].to_lowercase();
            assert!(!lower.contains("secret"), "{}", problems[0]);
        }
    }

    #[test]
    fn all_problems_are_told_at_once() {
        let file = "sesions-max = 1\nthreads = 0\nhold = 'x'\nlinks-max = 2";
        let problems = resolve(file, &[], &["--listen", "x", "y"]).err().unwrap();
        assert_eq!(problems.len(), 6, "{problems:?}");
    }

    #[test]
    fn what_a_wrong_layer_says_of_a_secret_is_never_repeated() {
        let file = "password = ''\nuser = ['SECRET', 'a:SECRET', 'a:SECRET']";
        let arguments = [
            "--backend",
            "redis://:SECRET/x@h",
            "--backend-password",
            "SECRET",
        ];
        for problem in resolve(file, &[], &arguments).err().unwrap() {
            assert!(!problem.contains("SECRET"), "{problem}");
        }
    }

    #[test]
    fn a_printed_configuration_is_a_file_that_says_the_same_but_for_passwords() {
        let file = "listen = [':1', 'unix:/a\\\\b']\nthreads = 3\nspawn = true\nhold = false";
        let arguments = [
            "--backend",
            "redis://h/2",
            "--session-idle-ms",
            "1h",
            "--user",
            "a:SECRET",
        ];
        let (config, resolved) = resolve(file, &[], &arguments).ok().unwrap();
        let printed = resolved.to_toml();
        assert!(printed.contains("threads = 3  # r.toml:2:1\n"), "{printed}");
        assert!(
            printed.contains("session-idle-ms = 3600000  # command line\n"),
            "{printed}"
        );
        assert!(!printed.contains("SECRET") && !format!("{config:?}").contains("SECRET"));
        let again = good(&printed, &[], &["--user", "a:SECRET"]);
        assert_eq!(again, config);
    }

    const TWO_POOLS: &str = "threads = 3\n\
                             [pool.sessions]\nbackend = 'redis://u:SECRET@h:1/2'\nlisten = ':1'\n\
                             [pool.pages]\nlisten = [':2', 'unix:/a']\n\
                             backend = 'redis-sharded://h:2,h:3'\n";

    #[test]
    fn pools_are_said_alike_by_the_file_and_the_command_line_and_each_has_its_own() {
        let by_file = good(TWO_POOLS, &[], &[]);
        let arguments = [
            "--pool",
            "sessions=:1=redis://u:SECRET@h:1/2",
            "--pool=pages=:2,unix:/a=redis-sharded://h:2,h:3",
            "--threads=3",
        ];
        assert_eq!(by_file, good("", &[], &arguments));
        let summary = by_file.summary();
        assert_eq!(
            summary,
            "pool sessions: listen 0.0.0.0:1, backend redis://u@h:1/2; pool pages: listen 0.0.0.0:2, \
             unix:/a, backend redis-sharded://h:2,h:3/0?hash=murmur&distribution=ketama\
             &hash-tag=%7B%7D; 3 workers; no password"
        );
        let listeners: Vec<_> = by_file
            .listeners()
            .map(|(address, pool)| format!("{address} {pool}"))
            .collect();
        assert_eq!(listeners, ["0.0.0.0:1 0", "0.0.0.0:2 1", "unix:/a 1"]);

        let urls = by_file.pools.iter().map(|pool| match &pool.backend {
            Backend::Server(url) => (**url).clone(),
            Backend::Spawn(_) => panic!("not asked for"),
        });
        let settings = by_file.settings(&urls.collect::<Vec<_>>(), ROOM);
        let [sessions, pages] = &settings.pools[..] else {
            panic!("{settings:?}");
        };
        assert_eq!((&*sessions.name, &*pages.name), ("sessions", "pages"));
        let PoolKind::Single(server) = &sessions.kind else {
            panic!("{sessions:?}");
        };
        assert_eq!(
            (server.db, &*server.credentials.as_ref().unwrap().password),
            (2, "SECRET")
        );
        let PoolKind::Sharded { shards, .. } = &pages.kind else {
            panic!("{pages:?}");
        };
        assert!(
            shards.iter().all(|shard| shard.credentials.is_none()),
            "{shards:?}"
        );
        // A list that is given again replaces the earlier one.
        let replaced = good(TWO_POOLS, &[], &["--pool", "c=:3=redis://h"]);
        assert_eq!(replaced.pools.len(), 1);
        assert!(replaced.summary().starts_with("pool c: "));
    }

    #[test]
    fn printed_pools_are_tables_that_say_the_same_but_for_passwords() {
        let (config, resolved) = resolve(TWO_POOLS, &[], &["--spawn=false"]).ok().unwrap();
        let printed = resolved.to_toml();
        assert!(!printed.contains("SECRET"), "{printed}");
        for line in [
            "# listen = [\"127.0.0.1:6380\"]  # default, not in use\n",
            "[pool.pages]  # r.toml:5:7\n",
            "listen = [\"0.0.0.0:2\", \"unix:/a\"]  # r.toml:6:11\n",
            "backend = \"redis://u@h:1/2\"  # r.toml:3:11\n",
        ] {
            assert!(printed.contains(line), "{line}: {printed}");
        }
        // Without its password the user is not whole.
        assert_eq!(good(&printed.replace("u@", "u:SECRET@"), &[], &[]), config);
    }

    #[test]
    fn what_a_pool_says_of_itself_counts_there_and_is_printed_there() {
        let file = format!(
            "max-delay-us = 300\ncollapse = false\n{TWO_POOLS}hold = false\nmax-delay-us = '1ms'\nfuse = false\n\
             fused-keys-max = 7\ncollapse = true\n[pool.pages.prefixes]\na = 'redis://h:4'\n"
        );
        let rule = |config: &Config, pool: usize| {
            let urls = config.pools.iter().map(|pool| match &pool.backend {
                Backend::Server(url) => (**url).clone(),
                Backend::Spawn(_) => panic!("not asked for"),
            });
            let settings = config.settings(&urls.collect::<Vec<_>>(), ROOM);
            settings.pools[pool].flush.clone().unwrap_or(settings.flush)
        };
        let (config, resolved) = resolve(&file, &[], &[]).ok().unwrap();
        let for_all = FlushRule {
            max_delay_us: 300,
            collapse: false,
            ..FlushRule::default()
        };
        let own = FlushRule {
            hold: false,
            max_delay_us: 1_000,
            fuse: false,
            fused_keys_max: 7,
            collapse: true,
        };
        assert_eq!((rule(&config, 0), rule(&config, 1)), (for_all, own.clone()));
        let printed = resolved.to_toml().replace("u@", "u:SECRET@");
        for line in [
            "max-delay-us = 300  # r.toml:1:1\n",
            "hold = false  # r.toml:10:1\nmax-delay-us = \"1ms\"  # r.toml:11:1\nfuse = false  # r.toml:12:1\n",
        ] {
            assert!(printed.contains(line), "{line}: {printed}");
        }
        assert_eq!(good(&printed, &[], &[]), config, "{printed}");

        // The command line speaks of all pools, and later.
        let arguments = ["--fuse", "--max-delay-us=400"];
        let (config, resolved) = resolve(&file, &[], &arguments).ok().unwrap();
        let overruled = FlushRule {
            fuse: true,
            max_delay_us: 400,
            ..own
        };
        assert_eq!(rule(&config, 1), overruled);
        let printed = resolved.to_toml().replace("u@", "u:SECRET@");
        let line = "# fuse = false  # r.toml:12:1, not in use\n";
        assert!(printed.contains(line), "{printed}");
        assert_eq!(good(&printed, &[], &[]), config, "{printed}");
    }

    #[test]
    fn each_pool_is_announced_where_it_says_and_no_two_at_one_place() {
        let announced = |file: &str, arguments: &[&str]| -> Vec<Option<String>> {
            let pools = good(file, &[], arguments).pools;
            let pools = pools.iter();
            pools
                .map(|pool| pool.announce.as_ref().map(Announced::to_string))
                .collect()
        };
        let texts = |texts: &[&str]| -> Vec<Option<String>> {
            texts.iter().map(|&text| Some(text.to_owned())).collect()
        };
        assert_eq!(announced("", &[]), [None]);
        assert_eq!(announced("announce = 'h:1'", &[]), texts(&["h:1"]));
        let own = format!("announce = 'h'\n{TWO_POOLS}announce = '[::1]:1'\n");
        assert_eq!(announced(&own, &[]), texts(&["h", "[::1]:1"]));
        assert_eq!(announced(&own, &["--announce=i"]), texts(&["i", "i"]));
        // It is no rule for batches.
        assert!(
            good(&own, &[], &[])
                .pools
                .iter()
                .all(|pool| pool.flush.is_none())
        );

        let twice = TWO_POOLS.replace("[pool.pages]", "announce = 'h:1'\n[pool.pages]");
        let twice = format!("{twice}announce = 'h:1'\n");
        let told = |file: &str, arguments: &[&str]| resolve(file, &[], arguments).err().unwrap();
        let what = "`h:1` leads to the pool `sessions` already: leave the port away, or give each pool its own in the file";
        assert_eq!(
            told(&twice, &[]),
            [format!("r.toml:9:1: pool.pages.announce: {what}")]
        );
        let third = [
            "--pool=sessions=:1=redis://h",
            "--pool=b=:2=redis://h",
            "--pool=c=:3=redis://h",
        ];
        let arguments = [&third[..], &["--announce=h:1"]].concat();
        assert_eq!(told("", &arguments), [format!("--announce: {what}")]);
        assert_eq!(
            told("announce = ':1'", &[]),
            ["r.toml:1:12: announce: needs a host: write HOST or HOST:PORT"]
        );
    }

    #[test]
    fn everything_that_is_wrong_with_pools_is_told_at_once_each_with_its_place() {
        let file = "listen = ':9'\n\
                    [pool.a]\nlisten = ':1'\nbackend = 'redis://u@h'\n\
                    [pool.b]\nlisten = [':1', ':2', ':2', 'x']\n\
                    [pool.c]\nbackend = 'redis://127.0.0.1:2'\n\
                    [pool.'d.e']\nlisten = ':0'\nbackend = 'SECRET'\n";
        let told = resolve(file, &[("RESPOOL_BACKEND_PASSWORD", "SECRET")], &[]);
        let told = told.err().unwrap();
        let expected = [
            "r.toml:5:7: pool.b: has no `backend`: write one below",
            "r.toml:6:29: pool.b.listen: needs a port",
            "r.toml:7:7: pool.c: has no `listen`: write one below",
            "r.toml:9:7: pool: a pool's name has from 1 to 64 letters",
            "r.toml:11:11: pool.d.e.backend: needs a scheme",
            "r.toml:1:1: listen: excludes `pool`, and each pool has its own",
            "RESPOOL_BACKEND_PASSWORD: excludes `pool`",
            "r.toml:4:11: pool.a.backend: names the user `u` and no password",
            "r.toml:6:11: pool.b.listen: `0.0.0.0:1` leads to the pool `a` already",
            "r.toml:6:17: pool.b.listen: `0.0.0.0:2` is where the backend 127.0.0.1:2 is",
            "r.toml:6:23: pool.b.listen: `0.0.0.0:2` is given twice",
        ];
        for expected in expected {
            let found = told.iter().filter(|line| line.starts_with(expected));
            assert_eq!(found.count(), 1, "{expected}: {told:#?}");
        }
        // The second `:2` is where the backend is, too.
        assert_eq!(told.len(), expected.len() + 1, "{told:#?}");
        assert!(
            !told.iter().any(|line| line.contains("SECRET")),
            "{told:#?}"
        );

        let arguments = ["--pool=a=:1=redis://h", "--pool=a=:2=redis://h", "--spawn"];
        let told = resolve("", &[], &arguments).err().unwrap();
        assert_eq!(told.len(), 2, "{told:#?}");
        assert!(told[0].starts_with("--spawn: excludes `pool`"), "{told:#?}");
        assert!(
            told[1].starts_with("--pool: `a`: there is a pool of this name"),
            "{told:#?}"
        );
        let many: Vec<_> = (0..=POOLS_MAX)
            .map(|n| format!("--pool=p{n}=:0=redis://h"))
            .collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let told = resolve("", &[], &[&many[..], &["--links-max=9999"]].concat());
        assert!(told.err().unwrap()[0].starts_with("--pool: there are 257, and 256 are the most"));
        // Each server has a link of each version of the protocol.
        let told = resolve(
            TWO_POOLS,
            &[],
            &["--links-max=5", "--streaming-links-max=1"],
        );
        assert!(told.err().unwrap()[0].starts_with("--links-max: must be at least 6"));
        // Of Sentinels it is the primaries that have them, however many keep watch.
        let names: Vec<String> = (0..200).map(|name| format!("n{name}")).collect();
        let backend = format!("--backend=redis-sentinel://a,b,c/{}", names.join(","));
        let told = resolve("", &[], &[&backend]).err().unwrap();
        assert!(
            told[0].starts_with("links-max: must be at least 403"),
            "{told:?}"
        );
    }

    const PREFIXES: &str = "[pool.all]\nlisten = ':1'\nbackend = 'redis://u:SECRET@h:1/2'\n\
                            [pool.all.prefixes]\n'page:' = 'redis-sharded://h:2,h:3/2'\n\
                            'a \"b' = { backend = 'redis://h:4/2', strip = true }\n\
                            c = { backend = 'redis-cluster://h:5,h:6/2?reads=nearest', strip = true }\n\
                            d = { backend = 'redis-sentinel://h:7/m,n/2?hash=crc16', strip = false }\n\
                            e = 'redis-sentinel://h:7/o/2'\n";

    #[test]
    fn keys_of_a_pool_may_have_backends_of_any_kind_by_how_they_begin() {
        let (config, resolved) = resolve(PREFIXES, &[], &[]).ok().unwrap();
        let summary = "pool all: listen 0.0.0.0:1, backend redis://u@h:1/2, `page:` at redis-sharded://h:2,h:3/2";
        assert!(
            config.summary().starts_with(summary),
            "{}",
            config.summary()
        );
        let printed = resolved.to_toml().replace("u@", "u:SECRET@");
        assert_eq!(good(&printed, &[], &[]), config, "{printed}");
        let Backend::Server(url) = &config.pools[0].backend else {
            panic!("not asked for");
        };
        let settings = config.settings(std::slice::from_ref(url), ROOM);
        let PoolKind::ByPrefix { parts } = &settings.pools[0].kind else {
            panic!("{settings:?}");
        };
        let shown: Vec<_> = parts
            .iter()
            .map(|part| {
                let prefix = String::from_utf8_lossy(&part.prefix).into_owned();
                let (kind, count) = match &part.kind {
                    PoolKind::Single(_) => ("single", 1),
                    PoolKind::Sharded { shards, .. } => ("sharded", shards.len()),
                    PoolKind::Cluster { seeds } => ("cluster", seeds.len()),
                    PoolKind::Watched { primaries, .. } => ("watched", primaries.len()),
                    PoolKind::ByPrefix { .. } => ("parts", 0),
                };
                (prefix, part.strip, kind, count, part.reads.policy)
            })
            .collect();
        let owners = ReadPolicy::Primary;
        let expected = [
            ("", false, "single", 1, owners),
            ("page:", false, "sharded", 2, owners),
            ("a \"b", true, "single", 1, owners),
            ("c", true, "cluster", 2, ReadPolicy::Nearest),
            ("d", false, "watched", 2, owners),
            ("e", false, "watched", 1, owners),
        ];
        let expected = expected.map(|(prefix, strip, kind, count, reads)| {
            (prefix.to_owned(), strip, kind, count, reads)
        });
        assert_eq!(shown, expected);

        let wrong = "[pool.all]\nlisten = ':1'\nbackend = 'redis-cluster://h:1/2'\n\
                     [pool.all.prefixes]\n'' = 'redis://h:2/2'\na = 'redis://h:2/2'\nb = 'redis://h:3'\n\
                     c = 'redis-cluster://h:2/2'\nd = 'redis://127.0.0.1:1/2'\ne = 'SECRET'\nf = 'redis://u@h/2'\n\
                     g = 'redis-sentinel://h:5,h:6/m,n/2'\nh = 'redis-sentinel://h:6/o,n/2'\n\
                     i = 'redis-cluster://h:7/2?zone=SECRET'\n";
        let told = resolve(wrong, &[], &[]).err().unwrap();
        let expected = [
            "r.toml:10:5: pool.all.prefixes: `e`: needs a scheme",
            "r.toml:14:5: pool.all.prefixes: `i`: zone, zones, weights",
            "r.toml:5:6: pool.all.prefixes: ``: is how every key begins",
            "r.toml:6:5: pool.all.prefixes: `a`: h:2 is in this pool already",
            "r.toml:7:5: pool.all.prefixes: `b`: must start in the database 2",
            "r.toml:8:5: pool.all.prefixes: `c`: h:2 is in this pool already",
            "r.toml:11:5: pool.all.prefixes: `f`: names the user `u` and no password",
            "r.toml:13:5: pool.all.prefixes: `h`: the primary `n` of h:6 is in this pool already",
            "r.toml:2:10: pool.all.listen: `0.0.0.0:1` is where the backend 127.0.0.1:1 is",
        ];
        for (told, expected) in told.iter().zip(expected) {
            assert!(told.starts_with(expected), "{expected}: {told}");
        }
        assert_eq!(told.len(), expected.len(), "{told:#?}");
        let many: String = (0..=PREFIXES_MAX)
            .map(|n| format!("p{n} = 'redis://h{n}'\n"))
            .collect();
        let file =
            format!("[pool.a]\nlisten = ':1'\nbackend = 'redis://h'\n[pool.a.prefixes]\n{many}");
        let told = resolve(&file, &[], &["--links-max=999"]).err().unwrap();
        assert!(
            told[0].starts_with("r.toml:1:7: pool.a: has 65 prefixes"),
            "{told:?}"
        );
        let [a, b] = [0, 2_100].map(|from| {
            let hosts: Vec<_> = (from..from + 2_100).map(|n| format!("h{n}")).collect();
            hosts.join(",") + "?distribution=modula"
        });
        let file = format!(
            "[pool.a]\nlisten = ':1'\nbackend = 'redis-sharded://{a}'\n\
             [pool.a.prefixes]\nb = 'redis-sharded://{b}'\n"
        );
        let told = resolve(&file, &[], &["--links-max=9999"]).err().unwrap();
        assert_eq!(
            told,
            ["r.toml:1:7: pool.a: has 4200 servers, and 4096 are the most"]
        );
    }

    /// A pool's own map replaces that of all. Each mistake is told with its place.
    #[test]
    fn address_map_is_a_pools_own_or_that_of_all() {
        let pools = "[pool.a]\nlisten = ':1'\nbackend = 'redis-cluster://h'\n\
                     [pool.b]\nlisten = ':2'\nbackend = 'redis-cluster://g'\n";
        let maps = |config: Config| -> Vec<String> {
            let servers = config.pools.iter().map(|pool| match &pool.backend {
                Backend::Server(url) => (**url).clone(),
                Backend::Spawn(_) => panic!("not asked for"),
            });
            let settings = config.settings(&servers.collect::<Vec<_>>(), ROOM);
            let shown = |map: &AddressMap| {
                let entries = map.entries().iter().map(ToString::to_string);
                entries.collect::<Vec<_>>().join(" ")
            };
            let pools = settings.pools.iter();
            pools.map(|pool| shown(&pool.address_map)).collect()
        };
        let own =
            format!("address-map = ['x=y']\n{pools}address-map = ['A:1=b:2', '[::1]:7-8=c:9']\n");
        let expected = ["x=y", "a:1=b:2 [::1]:7-8=c:9"];
        assert_eq!(maps(good(&own, &[], &[])), expected);
        let (_, resolved) = resolve(&own, &[], &[]).unwrap();
        let (printed, _) = resolve(&resolved.to_toml(), &[], &[]).unwrap();
        assert_eq!(maps(printed), expected);
        let line = ["--address-map=p=q,r=s", "--address-map=t=u"];
        assert_eq!(maps(good(&own, &[], &line)), ["p=q r=s t=u"; 2]);
        for (text, expected) in [
            (
                "address-map = ['a=b', 'c']",
                "r.toml:1:23: address-map: must be NAMED=REACHED",
            ),
            (
                "address-map = ['a:1=b', 'A:1=c']",
                "r.toml:1:1: address-map: `a:1` stands on the left of two",
            ),
            (
                "address-map = ['a=b', 'b=a']",
                "r.toml:1:1: address-map: `a` leads back to itself",
            ),
        ] {
            let told = resolve(&format!("{text}\n{pools}"), &[], &[]);
            let told = told.err().expect(text);
            assert_eq!(told.len(), 1, "{told:?}");
            assert!(told[0].starts_with(expected), "{told:?}");
        }
        for (text, expected) in [
            ("'a=b', 'a=c'", "r.toml:7:1: pool.b.address-map: `a` stands"),
            ("'a='", "r.toml:7:1: pool.b.address-map: needs a host"),
            ("", "r.toml:7:1: pool.b.address-map: is empty"),
        ] {
            let told = resolve(&format!("{pools}address-map = [{text}]\n"), &[], &[]);
            let told = told.err().expect(text);
            assert!(told[0].starts_with(expected), "{told:?}");
        }
        for (map, listener) in [
            ("a:7=127.0.0.1:7", "127.0.0.1:7"),
            ("a=[::1]:7", "0.0.0.0:7"),
            ("a:7=LOCALHOST", "0.0.0.0:7"),
            ("a=here:7", "here:7"),
        ] {
            let given = [
                format!("--address-map={map}"),
                format!("--listen={listener}"),
            ];
            let cluster = [
                "--backend=redis-cluster://h",
                given[0].as_str(),
                given[1].as_str(),
            ];
            let told = resolve("", &[], &cluster).err().expect(map);
            let expected = format!("leads to {listener}, where respool listens");
            assert!(told[0].starts_with("--address-map: "), "{told:?}");
            assert!(told[0].contains(&expected) && told.len() == 1, "{told:?}");
        }
        // The named nodes decide whether one of them is the listener.
        for map in [
            "a=127.0.0.1",
            "a:1-9=127.0.0.1:1-9",
            "a=127.0.0.1:8",
            "a=b:7",
        ] {
            let given = [
                format!("--address-map={map}"),
                "--listen=0.0.0.0:7".to_owned(),
            ];
            good(
                "",
                &[],
                &["--backend=redis-cluster://h", &given[0], &given[1]],
            );
        }
        let of_pool = format!("{pools}address-map = ['x=127.0.0.1:1']\n");
        let told = resolve(&of_pool, &[], &[]).err().unwrap();
        assert!(
            told[0]
                .starts_with("r.toml:7:1: pool.b.address-map: `x=127.0.0.1:1` leads to 0.0.0.0:1"),
            "{told:?}"
        );
        let unused = good("", &[], &["--address-map=a=b"]).warnings;
        assert!(
            unused[0].starts_with("--address-map has no effect"),
            "{unused:?}"
        );
    }

    /// Values of one option that some configuration may have, each with what it needs beside it.
    fn samples(option: &'static Opt) -> BoxedStrategy<Vec<String>> {
        let one = |text: &str| Just(vec![text.to_owned()]).boxed();
        match &option.kind {
            Kind::Switch(_) => any::<bool>()
                .prop_map(|value| vec![value.to_string()])
                .boxed(),
            Kind::Number(number) => prop_oneof![
                (number.min..=number.max).prop_map(|value| vec![value.to_string()]),
                Just(vec![option.example.to_owned()]),
            ]
            .boxed(),
            Kind::Text { .. } => one(option.example),
            Kind::List { .. } => {
                let twice = match option.name {
                    "listen" => vec![":1".to_owned(), "unix:/a b".to_owned()],
                    "pool" => vec!["a=:1=redis://h".to_owned(), "b=:2,:3=redis://h".to_owned()],
                    "address-map" => vec!["a:1=b:2".to_owned(), "c*=d*,[::1]=e".to_owned()],
                    _ => vec!["a:\"1\"".to_owned(), "b:'\\2".to_owned()],
                };
                prop_oneof![one(option.example), Just(twice)].boxed()
            }
        }
    }

    proptest! {
        /// What the command line can say, the file can say, and it comes to the same.
        #[test]
        fn the_file_and_the_command_line_say_the_same(
            given in prop::sample::subsequence(OPTIONS.iter().collect::<Vec<_>>(), 1..6)
                .prop_flat_map(|options| {
                    options
                        .into_iter()
                        .map(|option| samples(option).prop_map(|texts| (option.name, texts)))
                        .collect::<Vec<_>>()
                })
        ) {
            let (mut file, mut arguments) = (String::new(), Vec::new());
            for (name, texts) in &given {
                let option = find(name).unwrap();
                file.push_str(&format!("{name} = {}\n", option.in_file(texts)));
                arguments.extend(texts.iter().map(|text| format!("--{name}={text}")));
            }
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            match (resolve(&file, &[], &[]), resolve("", &[], &arguments)) {
                (Ok((by_file, _)), Ok((by_arguments, _))) => prop_assert_eq!(by_file, by_arguments),
                (Err(by_file), Err(by_arguments)) => {
                    prop_assert_eq!(by_file.len(), by_arguments.len());
                }
                (by_file, by_arguments) => prop_assert!(
                    false, "{:?} {:?}", by_file.map(|c| c.0), by_arguments.map(|c| c.0)
                ),
            }
        }
    }

    #[test]
    fn every_option_of_the_command_line_can_be_given_in_the_file() {
        let secret = file_with("a secret");
        let path = secret.path().to_str().unwrap();
        for option in OPTIONS {
            let text = if option.name.ends_with("password-file") {
                path
            } else {
                option.example
            };
            let beside: &[&str] =
                if option.topic == crate::options::Topic::Spawn && option.name != "spawn" {
                    &["--spawn"]
                } else {
                    &[]
                };
            let file = format!("{} = {}", option.name, option.in_file(&[text.to_owned()]));
            let argument = format!("--{}={text}", option.name);
            let by_file = good(&file, &[], beside);
            let by_argument = good("", &[], &[beside, &[argument.as_str()]].concat());
            assert_eq!(by_file, by_argument, "{}", option.name);
            assert_ne!(
                by_file,
                good("", &[], &[]),
                "{}: the example is the default",
                option.name
            );
        }
    }
}

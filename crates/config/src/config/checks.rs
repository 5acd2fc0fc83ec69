//! Checks of the pools: listeners, servers, address maps and links.

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use respool_engine::settings::Address;
use respool_protocol::cluster::Endpoint;
use respool_protocol::hashing::SERVERS_MAX;

use super::resolve::Resolved;
use super::{Backend, PoolConfig};
use crate::account::Account;
use crate::backend::{BackendServers, BackendUrl};
use crate::pools::{NamedPool, PREFIXES_MAX, PrefixRule, pool_problem};
use crate::problem::{ConfigPlace, Problem};

impl Resolved {
    /// Checks that no entry of an address map leads to a listener.
    pub(super) fn check_maps(&self, pools: &[PoolConfig], problems: &mut Vec<Problem>) {
        let listen = self.listeners();
        for pool in pools {
            let mut named = self.values.pools.iter();
            let named = named.find(|named| Some(&named.name) == pool.name.as_ref());
            for entry in pool.address_map.entries() {
                let Some(Endpoint { host, port }) = entry.only_address() else {
                    continue;
                };
                let to = Address::Tcp { host, port };
                let mut listeners = listen.iter().map(|(_, at, _)| &at.address);
                if let Some(listener) = listeners.find(|address| reaches(address, &to)) {
                    let what = format!(
                        "`{entry}` leads to {listener}, where respool listens: it would connect to \
                         itself; write the address of the node on the right, or choose another \
                         port for `listen`"
                    );
                    self.add_map_problem(named, what, problems);
                }
            }
        }
    }

    /// A warning if there is an address map, but no servers that name addresses.
    pub(super) fn unused_map(&self) -> Option<String> {
        let values = &self.values;
        let names_others = |url: &BackendUrl| {
            matches!(
                url.servers,
                BackendServers::Cluster(_) | BackendServers::Sentinel(_)
            )
        };
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

    /// The address of each listener, once.
    pub fn listener_addresses(&self) -> Vec<Address> {
        let mut addresses: Vec<Address> = Vec::new();
        for (_, at, _) in self.listeners() {
            if !addresses.contains(&at.address) {
                addresses.push(at.address);
            }
        }
        addresses
    }

    /// The problems of listeners, each at the place of its address. `problem_of`: the problem of an
    /// address, if it has one.
    pub fn problems_of_listeners(
        &self,
        problem_of: impl Fn(&Address) -> Option<String>,
    ) -> Vec<Problem> {
        let listen = self.listeners();
        let problems = listen.iter().filter_map(|(pool, at, place)| {
            let what = problem_of(&at.address)?;
            Some(pool_problem(*pool, at.option(), place, what))
        });
        problems.collect()
    }

    /// Checks that each address is one listener, and that no server is at a listener.
    pub(super) fn check_listeners(&self, pools: &[PoolConfig], problems: &mut Vec<Problem>) {
        let listen = self.listeners();
        for (index, (pool, at, place)) in listen.iter().enumerate() {
            let (pool, address) = (*pool, &at.address);
            let mut problem =
                |what: String| problems.push(pool_problem(pool, at.option(), place, what));
            let any_port = matches!(address, Address::Tcp { port: 0, .. });
            let same = listen[..index]
                .iter()
                .find(|(_, other, _)| other.address == *address);
            match same {
                _ if any_port => {}
                Some((Some(other), ..)) if Some(*other) != pool => problem(format!(
                    "`{address}` leads to the pool `{other}` already: choose another"
                )),
                Some(_) => problem(format!("`{address}` is given twice: remove one of them")),
                None => {}
            }
            for server in servers(pools) {
                if reaches(address, server) {
                    problem(format!(
                        "`{address}` is the address of the backend {server}: respool would connect \
                         to itself; choose another port or another backend"
                    ));
                }
            }
        }
    }

    /// Checks that the pages about the process have an address of their own.
    pub(super) fn check_metrics(&self, pools: &[PoolConfig], problems: &mut Vec<Problem>) {
        const NAME: &str = "metrics-listen";
        let Some(address) = &self.values.metrics_listen else {
            return;
        };
        let mut problem =
            |what: String| problems.push(Problem::of_option(NAME, self.place(NAME), what));
        let any_port = matches!(address, Address::Tcp { port: 0, .. });
        let listeners = self.listeners();
        if !any_port && listeners.iter().any(|(_, at, _)| at.address == *address) {
            problem(format!(
                "`{address}` is a listener for clients already: choose another port"
            ));
        }
        if let Some(server) = servers(pools).find(|server| reaches(address, server)) {
            problem(format!(
                "`{address}` is the address of the backend {server}: choose another port"
            ));
        }
    }

    /// Checks that the control socket can be made. Its directory may be made at the start, as
    /// systemd makes those in /run.
    pub(crate) fn check_control_socket(&self, problems: &mut Vec<Problem>) {
        const NAME: &str = "control-socket";
        let Some(path) = &self.values.control_socket else {
            return;
        };
        let mut problem =
            |what: String| problems.push(Problem::of_option(NAME, self.place(NAME), what));
        let Some(directory) = path.parent() else {
            return problem("`/` is a directory: name a file in one".into());
        };
        let listeners = self.listeners();
        let is_same =
            |listener: &Address| matches!(listener, Address::Unix(other) if other == path);
        if listeners.iter().any(|(_, at, _)| is_same(&at.address)) {
            return problem(format!(
                "`{}` is a listener for clients already: choose another path",
                path.display()
            ));
        }
        let directory = match directory.as_os_str().is_empty() {
            true => Path::new("."),
            false => directory,
        };
        if std::fs::metadata(directory).is_ok_and(|meta| !meta.is_dir()) {
            return problem(format!(
                "`{}` is no directory: choose another path",
                directory.display()
            ));
        }
        let meta = std::fs::symlink_metadata(path);
        if meta.is_ok_and(|meta| !meta.file_type().is_socket()) {
            problem(format!(
                "`{}` exists and is no socket: remove it, or choose another path",
                path.display()
            ));
        }
    }

    /// The same for a control socket that a reload would change, and its directory.
    pub fn check_new_control_socket(&self, problems: &mut Vec<Problem>) {
        const NAME: &str = "control-socket";
        self.check_control_socket(problems);
        if let Some(path) = &self.values.control_socket {
            let option = (None, NAME, self.place(NAME));
            check_socket_file(option, path, problems, &mut Vec::new());
        }
    }

    /// Finds sockets in the file system that this process could not make. Creates no file.
    pub(super) fn check_socket_files(
        &self,
        problems: &mut Vec<Problem>,
        warnings: &mut Vec<String>,
    ) {
        let listeners = self.listeners();
        let listeners = listeners.iter().filter_map(|(pool, at, place)| {
            let option = (*pool, at.option(), *place);
            Some((option, path_of(&at.address)?))
        });
        let pages = self.values.metrics_listen.as_ref().and_then(path_of);
        let control = self.values.control_socket.as_deref();
        let of_process = [("metrics-listen", pages), ("control-socket", control)];
        let of_process = of_process.into_iter().filter_map(|(name, path)| {
            let option = (None, name, self.place(name));
            Some((option, path?))
        });
        let mut is_used = false;
        for (option, path) in listeners.chain(of_process) {
            is_used |= option.1 != "control-socket";
            check_socket_file(option, path, problems, warnings);
        }
        if is_used {
            self.check_socket_owner(problems);
        }
    }

    /// Checks that this process may give its sockets to the configured owner and group.
    fn check_socket_owner(&self, problems: &mut Vec<Problem>) {
        if may_change_owners() {
            return;
        }
        let values = &self.values;
        let mut problem = |name, account: &Account, what: &str| {
            let what = format!(
                "`{}` {what}: run respool (and `respool check`) as that user or as root, or leave \
                 this out",
                account.name
            );
            problems.push(Problem::of_option(name, self.place(name), what));
        };
        let user = rustix::process::geteuid().as_raw();
        if let Some(owner) = values
            .socket_owner
            .as_ref()
            .filter(|owner| owner.id != user)
        {
            let what = "is not the user of this process, and only root may give a socket away";
            problem("socket-owner", owner, what);
        }
        let own = rustix::process::getegid().as_raw();
        let groups = rustix::process::getgroups().unwrap_or_default();
        let is_own = |id| id == own || groups.iter().any(|group| group.as_raw() == id);
        if let Some(group) = values
            .socket_group
            .as_ref()
            .filter(|group| !is_own(group.id))
        {
            let what = "has not the user of this process among its members, and only root may give \
                        a socket to such a group";
            problem("socket-group", group, what);
        }
    }

    /// Checks that an announced address with a port leads to one pool.
    pub(super) fn check_announced(&self, pools: &[PoolConfig], problems: &mut Vec<Problem>) {
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
                "`{announced}` leads to the pool `{other}` already: leave the port out, or give each \
                 pool its own in the file"
            );
            let problem = pool_problem(name, "announce", place, what);
            // A problem of the option for all pools is added once.
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
    }

    /// A problem of the servers of a pool, at the place of their URL. `prefix`: of their keys.
    pub fn problem_of_servers(
        &self,
        pool: &PoolConfig,
        prefix: Option<&str>,
        what: String,
    ) -> Problem {
        let mut named = self.values.pools.iter();
        let Some(named) = named.find(|named| Some(&named.name) == pool.name.as_ref()) else {
            return Problem::of_option("backend", self.place("backend"), what);
        };
        let name = Some(named.name.as_str());
        let mut parts = named.prefixes.iter();
        match parts.find(|part| Some(part.prefix.as_str()) == prefix) {
            Some(part) => {
                let what = format!("`{}`: {what}", part.prefix);
                pool_problem(name, "prefixes", &part.place, what)
            }
            None => {
                let place = named.backend.as_ref().map(|(_, place)| place);
                pool_problem(name, "backend", place.unwrap_or(&named.place), what)
            }
        }
    }

    /// Checks that there are links for all servers. Each server needs one for each version of the
    /// protocol, and each Sentinel that respool subscribes to needs one.
    pub(super) fn check_links(&self, pools: &[PoolConfig], problems: &mut Vec<Problem>) {
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
}

/// Checks the prefixes of a pool, whose other keys are at `url`.
pub(super) fn check_subpools(pool: &NamedPool, url: &BackendUrl, problems: &mut Vec<Problem>) {
    let name = Some(pool.name.as_str());
    if pool.prefixes.len() > PREFIXES_MAX {
        let what = format!(
            "has {} prefixes, and {PREFIXES_MAX} are the most",
            pool.prefixes.len()
        );
        problems.push(pool_problem(name, "", &pool.place, what));
    }
    let mut seen = members(url);
    for PrefixRule {
        prefix,
        url: part,
        place,
        ..
    } in &pool.prefixes
    {
        let mut problem = |what: String| {
            let what = format!("`{prefix}`: {what}");
            problems.push(pool_problem(name, "prefixes", place, what));
        };
        if prefix.is_empty() {
            problem(
                "is a prefix of every key: `backend` is for keys without another prefix".into(),
            );
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
                 `password-file` or `password-command`"
            ));
        }
        for member in members(part) {
            if seen.contains(&member) {
                let (address, name) = member;
                let what = match name {
                    Some(name) => format!("the primary `{name}` of {address}"),
                    None => address.to_string(),
                };
                problem(format!(
                    "{what} is in this pool already: its keys would count twice"
                ));
            }
            seen.push(member);
        }
    }
    if seen.len() > SERVERS_MAX && !pool.prefixes.is_empty() {
        let what = format!("has {} servers, and {SERVERS_MAX} are the most", seen.len());
        problems.push(pool_problem(name, "", &pool.place, what));
    }
}

/// The servers of a URL, to find duplicates. A primary is an address of a Sentinel and a name,
/// since one Sentinel may monitor several primaries.
fn members(url: &BackendUrl) -> Vec<(&Address, Option<&str>)> {
    match &url.servers {
        BackendServers::Sentinel(sentinels) => {
            let names = || sentinels.primaries().map(Some);
            let all = sentinels.addresses();
            all.flat_map(|address| names().map(move |name| (address, name)))
                .collect()
        }
        _ => {
            let all = url.addresses().into_iter();
            all.map(|address| (address, None)).collect()
        }
    }
}

/// The addresses of the servers of all pools, except a server of `--spawn`.
fn servers(pools: &[PoolConfig]) -> impl Iterator<Item = &Address> {
    backends(pools).flat_map(BackendUrl::addresses)
}

/// The URLs of all pools and their prefixes, except a server of `--spawn`.
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

/// The path of a socket in the file system.
fn path_of(address: &Address) -> Option<&Path> {
    match address {
        Address::Unix(path) => Some(path),
        Address::Tcp { .. } => None,
    }
}

/// Checks that this process could make a socket at `path`: the value of an option of a pool, or for
/// all pools, with its place. A missing directory in /run is a warning: systemd makes it at the
/// start.
fn check_socket_file(
    (pool, name, place): (Option<&str>, &'static str, &ConfigPlace),
    path: &Path,
    problems: &mut Vec<Problem>,
    warnings: &mut Vec<String>,
) {
    let checked = respool_driver::check_socket_directory(path);
    let Err(error) = checked.and_then(|()| respool_driver::check_socket_path(path)) else {
        return;
    };
    let shown = path.display();
    let is_made_at_start = path.starts_with("/run") || path.starts_with("/var/run");
    let remedy = match error.kind() {
        ErrorKind::NotFound if is_made_at_start => {
            let what = format!(
                "the directory of `{shown}` does not exist here: it must be made before the start, \
                 as RuntimeDirectory= of a systemd unit does"
            );
            warnings.push(pool_problem(pool, name, place, what).to_string());
            return;
        }
        ErrorKind::NotFound => "make its directory first, or choose another path",
        ErrorKind::AlreadyExists => "remove it, or choose another path",
        ErrorKind::PermissionDenied => {
            "the user that respool runs as must be allowed to write the directory, and \
             `respool check` is to be run as that user"
        }
        _ => "choose another path",
    };
    // The control socket may have a problem already.
    let is_told = |problem: &Problem| name == "control-socket" && problem.is_of(name);
    if !problems.iter().any(is_told) {
        let what = format!("no socket can be made at `{shown}`: {error}; {remedy}");
        problems.push(pool_problem(pool, name, place, what));
    }
}

/// Whether this process may give files to other users: it has the capability CAP_CHOWN, the first
/// bit of the capabilities in effect.
fn may_change_owners() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let effective = lines.find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    effective.map_or_else(
        || rustix::process::geteuid().is_root(),
        |bits| bits & 1 != 0,
    )
}

/// Whether a connection to `server` arrives at `listener`.
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

//! Checks the options about TLS, and reads the certificates.

use respool_driver::tls::ClientAuth;

use super::resolve::Resolved;
use super::{Backend, PoolConfig};
use crate::backend::BackendUrl;
use crate::options::{Values, find};
use crate::pools::{NamedPool, pool_problem};
use crate::problem::{ConfigPlace, Problem};
use crate::tls_files::{IdentityFiles, ListenerTlsFiles, ServerTlsFiles, TlsFiles};

/// The options about certificates of listeners. They need a listener with TLS.
const LISTENER_OPTIONS: [&str; 5] = [
    "tls-cert",
    "tls-key",
    "tls-ca",
    "tls-client-auth",
    "tls-min-version",
];

/// The options about certificates of servers. They need a server that is reached over TLS.
const SERVER_OPTIONS: [&str; 5] = [
    "server-tls-ca",
    "server-tls-cert",
    "server-tls-key",
    "server-tls-name",
    "server-tls-verify",
];

impl Resolved {
    /// The certificates of listeners and of the connections to servers, and the problems of their
    /// files. `problems` gets those of the options alone.
    pub(super) fn tls(
        &self,
        pools: &[PoolConfig],
        problems: &mut Vec<Problem>,
    ) -> (TlsFiles, Vec<Problem>) {
        let (mut files, mut of_files) = (TlsFiles::default(), Vec::new());
        self.add_listener_tls((&mut files, &mut of_files), problems);
        self.add_server_tls(pools, (&mut files, &mut of_files), problems);
        (files, of_files)
    }

    fn add_listener_tls(
        &self,
        (files, of_files): (&mut TlsFiles, &mut Vec<Problem>),
        problems: &mut Vec<Problem>,
    ) {
        let values = &self.values;
        // The value of a wrong option is unknown, so problems that follow from it would be false.
        let is_wrong = |names: &[&str]| {
            let mut names = names.iter();
            names.any(|name| problems.iter().any(|problem| problem.is_of_any_pool(name)))
        };
        let has_tls = self.listeners().iter().any(|(_, at, _)| at.tls);
        let (has_wrong_listener, has_wrong_pair, has_wrong_auth) = (
            is_wrong(&["tls-listen", "pool"]),
            is_wrong(&["tls-cert", "tls-key"]),
            is_wrong(&["tls-ca", "tls-client-auth"]),
        );
        let mut wrong = |name: &str, what: &str| {
            problems.push(Problem::of_option(name, self.place(name), what));
        };
        if !has_tls && !has_wrong_listener {
            for name in LISTENER_OPTIONS {
                if self.is_changed(name) {
                    wrong(
                        name,
                        "means nothing without `tls-listen`: add it, or remove this",
                    );
                }
            }
            return;
        }
        let (certs, keys) = (values.tls_certs.len(), values.tls_keys.len());
        let are_pairs = certs == keys && certs > 0 && !has_wrong_pair;
        if certs != keys && !has_wrong_pair {
            let what = format!(
                "there are {certs} `tls-cert` and {keys} `tls-key`: give each certificate its key, \
                 in the same order"
            );
            wrong(if certs > keys { "tls-cert" } else { "tls-key" }, &what);
        }
        match (values.tls_client_auth, &values.tls_ca) {
            _ if has_wrong_auth => {}
            (ClientAuth::Off, Some(_)) => wrong(
                "tls-ca",
                "clients are not asked for a certificate: set `tls-client-auth` to `required` or \
                 `optional`, or remove `tls-ca`",
            ),
            (ClientAuth::Optional | ClientAuth::Required, None) => wrong(
                "tls-client-auth",
                "`tls-ca` is missing: name the file with the CA of the clients",
            ),
            _ => {}
        }
        if (certs, keys) == (0, 0) && !has_wrong_pair {
            self.add_certificate_problem(problems);
        }
        let pairs = values.tls_certs.iter().zip(&values.tls_keys);
        let pairs = pairs.filter(|_| are_pairs);
        let identities = pairs.map(|(certificate, key)| IdentityFiles {
            certificate: certificate.clone(),
            key: key.clone(),
        });
        let set = ListenerTlsFiles {
            identities: identities.collect(),
            client_ca: values.tls_ca.clone(),
            // The file of the CA is read even if the options contradict each other.
            client_auth: match (&values.tls_ca, values.tls_client_auth) {
                (None, _) => ClientAuth::Off,
                (Some(_), ClientAuth::Off) => ClientAuth::Required,
                (Some(_), auth) => auth,
            },
            min_version: values.tls_min_version,
        };
        for problem in files.add_listeners(set).err().into_iter().flatten() {
            let (name, what) = (problem.option, problem.what);
            // Without pairs that belong together, all certificates are missing.
            if are_pairs || name == "tls-ca" {
                of_files.push(Problem::of_option(name, self.place(name), what).of_moment());
            }
        }
    }

    /// The problem that listeners with TLS have no certificate, at the first of them.
    fn add_certificate_problem(&self, problems: &mut Vec<Problem>) {
        let listeners = self.listeners();
        let first = listeners.iter().find(|(_, at, _)| at.tls);
        let what = "a listener with TLS needs a certificate: name its file by `tls-cert` and the \
                    file with its private key by `tls-key`";
        match (first, self.places.get("tls-listen")) {
            (Some((pool, at, place)), _) => {
                problems.push(pool_problem(*pool, at.option(), place, what));
            }
            // The address is wrong.
            (None, Some(place)) => problems.push(Problem::of_option("tls-listen", place, what)),
            (None, None) => {}
        }
    }

    fn add_server_tls(
        &self,
        pools: &[PoolConfig],
        (files, of_files): (&mut TlsFiles, &mut Vec<Problem>),
        problems: &mut Vec<Problem>,
    ) {
        // If one of these options is wrong, the URL of the servers is unknown.
        let is_wrong = |problem: &Problem| {
            let mut names = ["backend", "prefixes", "pool"].iter();
            names.any(|name| problem.is_of_any_pool(name))
        };
        let is_of_pair = |problem: &Problem| {
            let mut names = ["server-tls-cert", "server-tls-key"].iter();
            names.any(|name| problem.is_of_any_pool(name))
        };
        let mut is_used = problems.iter().any(is_wrong);
        for (index, pool) in pools.iter().enumerate() {
            let mut named = self.values.pools.iter();
            let table = named.find(|named| Some(&named.name) == pool.name.as_ref());
            let with_tls = urls(pool).filter(|url| url.tls).count();
            if with_tls == 0 {
                self.refuse_unused(table, problems);
                continue;
            }
            is_used = true;
            if with_tls < urls(pool).count() {
                let what = "some servers of this pool are reached over TLS and others are not: \
                            write rediss for all of them or for none, or make two pools";
                let place = table.map_or_else(|| self.place("backend"), |table| &table.place);
                problems.push(pool_problem(pool.name.as_deref(), "prefixes", place, what));
            }
            let values = match table {
                Some(table) => self.values_of(table),
                None => self.values.clone(),
            };
            let (set, wrong) = server_files(&values);
            for (option, what) in wrong {
                // If the other option of a pair has a problem, it may be set: it is not missing.
                let is_pair = ["server-tls-cert", "server-tls-key"].contains(&option);
                let mut of_other = problems.iter().filter(|_| is_pair);
                if of_other.any(is_of_pair) {
                    continue;
                }
                let problem = self.server_problem(table, option, what.into());
                add_once(problem, problems);
            }
            for problem in files.add_pool(set, index).err().into_iter().flatten() {
                let problem = self.server_problem(table, problem.option, problem.what);
                add_once(problem.of_moment(), of_files);
            }
        }
        for name in SERVER_OPTIONS {
            if !is_used && self.is_changed(name) {
                problems.push(Problem::of_option(name, self.place(name), UNUSED));
            }
        }
    }

    /// Drops values of all pools that contradict a pool's own options about the check of
    /// certificates.
    pub(super) fn settle_server_tls(&self, pool: &NamedPool, values: &mut Values) {
        let own = |name: &str| {
            let mut own = pool.options.iter().filter(|own| self.counts(own));
            own.find(|own| own.option.name == name)
        };
        let (ca, name) = (own("server-tls-ca"), own("server-tls-name"));
        match own("server-tls-verify") {
            Some(_) if !values.server_tls_verify => {
                if ca.is_none() {
                    values.server_tls_ca = None;
                }
                if name.is_none() {
                    values.server_tls_name = None;
                }
            }
            Some(_) => {}
            // A CA or a name means that certificates are checked.
            None => {
                let layer = self.place("server-tls-verify").layer();
                let mut given = ca.into_iter().chain(name);
                values.server_tls_verify |= given.any(|own| own.place.layer() >= layer);
            }
        }
    }

    /// Whether a layer gives an option another value than its default. The printed configuration
    /// has defaults, too.
    fn is_changed(&self, name: &str) -> bool {
        let option = find(name).expect("a name of the table");
        let value = option.get(&mut self.values.clone());
        self.places.contains_key(name) && value != option.get(&mut Values::default())
    }

    /// Refuses options of a pool whose servers are reached without TLS.
    fn refuse_unused(&self, table: Option<&NamedPool>, problems: &mut Vec<Problem>) {
        for own in table.into_iter().flat_map(|table| &table.options) {
            if SERVER_OPTIONS.contains(&own.option.name) {
                let name = table.map(|table| table.name.as_str());
                problems.push(pool_problem(name, own.option.name, &own.place, UNUSED));
            }
        }
    }

    /// A problem of an option of a pool, or of the option for all pools.
    fn server_problem(
        &self,
        table: Option<&NamedPool>,
        option: &'static str,
        what: String,
    ) -> Problem {
        let mut own = table.into_iter().flat_map(|table| &table.options);
        let own = own.find(|own| own.option.name == option && self.counts(own));
        let (name, place) = match own {
            Some(own) => (table.map(|table| table.name.as_str()), &own.place),
            None => (None, self.place(option)),
        };
        // Without a place the option is not given: the URL asks for the CAs of the system.
        let (option, place) = match place {
            ConfigPlace::Default if name.is_none() => ("backend", self.place("backend")),
            place => (option, place),
        };
        pool_problem(name, option, place, what)
    }
}

/// Adds a problem. One of an option for all pools is added once.
fn add_once(problem: Problem, problems: &mut Vec<Problem>) {
    if !problems.contains(&problem) {
        problems.push(problem);
    }
}

const UNUSED: &str = "means nothing without TLS to the servers: write rediss in place of redis in \
                      the URL, or remove this";

/// The files for the servers of a pool with these values, and the options that contradict each
/// other.
fn server_files(values: &Values) -> (ServerTlsFiles, Vec<(&'static str, &'static str)>) {
    let mut wrong = Vec::new();
    let identity = match (&values.server_tls_cert, &values.server_tls_key) {
        (Some(certificate), Some(key)) => Some(IdentityFiles {
            certificate: certificate.clone(),
            key: key.clone(),
        }),
        (None, None) => None,
        (Some(_), None) => {
            let what = "has no key: name the file with its private key by `server-tls-key`";
            wrong.push(("server-tls-cert", what));
            None
        }
        (None, Some(_)) => {
            let what = "has no certificate: name its file by `server-tls-cert`";
            wrong.push(("server-tls-key", what));
            None
        }
    };
    let verify = values.server_tls_verify;
    if !verify && values.server_tls_ca.is_some() {
        let what = "no certificate is checked, since `server-tls-verify` is false: remove one of \
                    them";
        wrong.push(("server-tls-ca", what));
    }
    if !verify && values.server_tls_name.is_some() {
        let what = "no name is checked, since `server-tls-verify` is false: remove one of them";
        wrong.push(("server-tls-name", what));
    }
    let set = ServerTlsFiles {
        ca: values.server_tls_ca.clone(),
        identity,
        name: values.server_tls_name.clone(),
        verify,
    };
    (set, wrong)
}

/// The URLs of a pool and its prefixes, except a server of `--spawn`.
pub(super) fn urls(pool: &PoolConfig) -> impl Iterator<Item = &BackendUrl> {
    let backend = match &pool.backend {
        Backend::Server(url) => Some(&**url),
        Backend::Spawn(_) => None,
    };
    let prefixes = pool.prefixes.iter().map(|part| &part.url);
    backend.into_iter().chain(prefixes)
}

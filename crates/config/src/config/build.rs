//! Makes the pools of the values.

use respool_engine::address_map::AddressMap;

use super::checks::check_subpools;
use super::resolve::Resolved;
use super::secrets::with_passwords;
use super::{Backend, Plan, PoolConfig, SubpoolConfig};
use crate::backend::BackendUrl;
use crate::passwords::{PasswordOrigin, RenewablePasswords};
use crate::pools::{NamedPool, POOLS_MAX, PrefixRule, UNNAMED_POOL_OPTIONS, pool_problem};
use crate::problem::Problem;

impl Resolved {
    /// The named pools, or the one pool of `listen` and `backend`. A named pool without a backend
    /// is left out; it is a problem already.
    pub(super) fn pools(
        &self,
        passwords: &mut RenewablePasswords,
        problems: &mut Vec<Problem>,
    ) -> Vec<PoolConfig> {
        if !self.has_named_pools() {
            return vec![PoolConfig {
                name: None,
                listen: self.unnamed_listeners(),
                backend: self.backend(passwords, problems),
                flush: None,
                announce: self.values.announce.clone(),
                shows: self.values.shows,
                address_map: self.address_map(None, problems),
                is_required: self.values.ready_requires_server,
                prefixes: Vec::new(),
            }];
        }
        for name in UNNAMED_POOL_OPTIONS {
            let is_off = name == "spawn" && !self.values.spawn;
            if self.places.contains_key(name) && !is_off {
                let what = "excludes `pool`, and each pool has its own: remove one of them";
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
                problems.push(pool_problem(Some(name), "", place, what));
            }
            let Some((url, place)) = &pool.backend else {
                continue;
            };
            check_subpools(pool, url, problems);
            let mut wrong =
                |what: String| problems.push(pool_problem(Some(name), "backend", place, what));
            if let Some(user) = url.user.as_ref().filter(|_| !url.has_password()) {
                wrong(format!(
                    "names the user `{user}` and no password: write it behind a colon, or give \
                     `password-file` or `password-command`"
                ));
            }
            let url = with_passwords(url, None, passwords, &mut |what| {
                problems.push(pool_problem(Some(name), "backend", place, what).of_moment());
            });
            named.push(PoolConfig {
                name: Some(name.to_owned()),
                listen: pool.listen.iter().map(|(at, _)| at.clone()).collect(),
                backend: Backend::Server(Box::new(url)),
                flush: self.rule_of(pool),
                announce: self.values_of(pool).announce,
                shows: self.values_of(pool).shows,
                address_map: self.address_map(Some(pool), problems),
                is_required: self.values_of(pool).ready_requires_server,
                prefixes: {
                    let prefixes = pool.prefixes.iter();
                    let part = |part: &PrefixRule<BackendUrl>| SubpoolConfig {
                        prefix: part.prefix.clone(),
                        url: with_passwords(&part.url, None, passwords, &mut |what| {
                            let what = format!("`{}`: {what}", part.prefix);
                            let problem = pool_problem(Some(name), "prefixes", &part.place, what);
                            problems.push(problem.of_moment());
                        }),
                        strip: part.strip,
                    };
                    prefixes.map(part).collect()
                },
            });
        }
        named
    }

    /// The address map of a pool, or of the one pool without a name.
    pub(super) fn address_map(
        &self,
        pool: Option<&NamedPool>,
        problems: &mut Vec<Problem>,
    ) -> AddressMap {
        let values = pool.map_or_else(|| self.values.clone(), |pool| self.values_of(pool));
        AddressMap::new(values.address_map).unwrap_or_else(|error| {
            self.add_map_problem(pool, error.to_string(), problems);
            AddressMap::default()
        })
    }

    /// Adds a problem of the address map of a pool. A problem of the map of all pools is added
    /// once.
    pub(super) fn add_map_problem(
        &self,
        pool: Option<&NamedPool>,
        what: String,
        problems: &mut Vec<Problem>,
    ) {
        const NAME: &str = "address-map";
        let mut own = pool.iter().flat_map(|pool| &pool.options);
        let own = own.find(|own| own.option.name == NAME && self.counts(own));
        let (name, place) = match (own, pool) {
            (Some(own), Some(pool)) => (Some(pool.name.as_str()), &own.place),
            _ => (None, self.place(NAME)),
        };
        let problem = pool_problem(name, NAME, place, what);
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }

    /// The servers of the one pool: of `backend` and `spawn`, the option of the later layer.
    pub(super) fn backend(
        &self,
        passwords: &mut RenewablePasswords,
        problems: &mut Vec<Problem>,
    ) -> Backend {
        let values = &self.values;
        let (url_layer, spawn_layer) = (self.place("backend").layer(), self.place("spawn").layer());
        if values.spawn && url_layer == spawn_layer {
            let what = "excludes `backend`: remove one of them";
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
                let what = "means nothing without `spawn`: add it, or remove this";
                problems.push(Problem::of_option(name, self.place(name), what));
            }
        }
        let mut url = values.backend.clone();
        let in_url = url.has_password().then_some("backend");
        let literal = values.backend_password.as_ref();
        let literal = literal.map(|_| "backend-password");
        let file = values.backend_password_file.clone();
        let file = file.map(PasswordOrigin::File);
        let command = values.backend_password_command.clone();
        let command = command.map(PasswordOrigin::Command);
        let given = [
            in_url,
            literal,
            file.as_ref().map(|_| "backend-password-file"),
            command.as_ref().map(|_| "backend-password-command"),
        ];
        let mut by_option = None;
        match self.latest(&given, problems) {
            None | Some("backend") => {}
            Some("backend-password") => {
                url.password.clone_from(&values.backend_password);
                url.origin = None;
            }
            Some(name) => {
                url.password = None;
                url.origin = match name {
                    "backend-password-file" => file,
                    _ => command,
                };
                by_option = Some(name);
            }
        }
        if let Some(user) = url.user.as_ref().filter(|_| !url.has_password()) {
            let what = format!(
                "names the user `{user}` and no password: write it behind a colon, or give \
                 `backend-password`"
            );
            problems.push(Problem::of_option("backend", self.place("backend"), what));
        }
        let name = by_option.unwrap_or("backend");
        let option = by_option.map(|name| format!("--{name}"));
        let mut wrong = |what| {
            problems.push(Problem::of_option(name, self.place(name), what).of_moment());
        };
        let url = with_passwords(&url, option.as_deref(), passwords, &mut wrong);
        Backend::Server(Box::new(url))
    }
}

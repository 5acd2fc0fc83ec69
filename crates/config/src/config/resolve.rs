//! Merges the layers: defaults, file, environment and command line.

use std::collections::BTreeMap;

use respool_engine::settings::FlushRule;

use crate::address::ListenAt;
use crate::options::{OptionKind, Topic, Values};
use crate::pools::{NamedPool, PoolOption};
use crate::problem::{ConfigPlace, Problem};
use crate::raw::RawConfig;

/// The values of all options, each from its latest layer.
pub struct Resolved {
    /// The values; defaults where no layer has one.
    pub(super) values: Values,
    /// The place of each option that a layer gives.
    pub(super) places: BTreeMap<&'static str, ConfigPlace>,
    /// Whether there is a file, and it has only blanks.
    pub is_file_empty: bool,
}

impl Resolved {
    /// Parses the values of every layer, and keeps those of the latest.
    pub(super) fn from_raw(mut raw: RawConfig) -> (Resolved, Vec<Problem>) {
        let mut problems = std::mem::take(&mut raw.problems);
        let mut resolved = Resolved {
            values: Values::default(),
            places: BTreeMap::new(),
            is_file_empty: raw.is_file_empty,
        };
        // Parse every layer, so that a wrong value is a problem even if a later layer replaces it.
        raw.given.sort_by_key(|given| given.place.layer());
        for given in raw.given {
            if let OptionKind::List { clear, .. } = given.option.kind {
                clear(&mut resolved.values);
                if given.texts.is_empty() && given.option.name == "listen" {
                    let what = "is empty: clients need at least one address";
                    problems.push(Problem::of_option("listen", &given.place, what));
                }
            }
            for (text, place) in &given.texts {
                if let Err(what) = given.option.set(&mut resolved.values, text) {
                    problems.push(Problem::of_option(given.name, place, what));
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

    /// The values of the options for all pools.
    pub fn values_of_all(&self) -> Values {
        self.values.clone()
    }

    /// The values for the pool of that name; those of all pools if there is none.
    pub fn values_of_pool(&self, name: &str) -> Values {
        let pool = self.values.pools.iter().find(|pool| pool.name == name);
        pool.map_or_else(|| self.values.clone(), |pool| self.values_of(pool))
    }

    /// The place of an option in the latest layer that gives it.
    pub(super) fn place(&self, name: &str) -> &ConfigPlace {
        self.places.get(name).unwrap_or(&ConfigPlace::Default)
    }

    /// The place of the first of these options that is given: in the table of a pool, or for all
    /// pools. The empty name is the table itself.
    pub fn place_of_any(&self, pool: Option<&str>, names: &[&str]) -> ConfigPlace {
        let mut pools = self.values.pools.iter();
        let table = pool.and_then(|name| pools.find(|pool| pool.name == name));
        let of_name = |name: &&str| {
            let own = table.and_then(|table| match *name {
                "" => Some(&table.place),
                "listen" => table.listen.first().map(|(_, place)| place),
                "backend" => table.backend.as_ref().map(|(_, place)| place),
                name => {
                    let mut own = table.options.iter();
                    let own = own.find(|own| own.option.name == name && self.counts(own));
                    own.map(|own| &own.place)
                }
            });
            own.or_else(|| self.places.get(name)).cloned()
        };
        names
            .iter()
            .find_map(of_name)
            .unwrap_or(ConfigPlace::Default)
    }

    /// Whether a layer gives the option `pool`.
    pub(super) fn has_named_pools(&self) -> bool {
        self.places.contains_key("pool")
    }

    /// Whether a pool's own option is in effect: no later layer sets the option for all pools.
    pub(super) fn counts(&self, own: &PoolOption) -> bool {
        self.place(own.option.name).layer() <= own.place.layer()
    }

    /// The flush rule of a pool, if an option of its own is in effect for it.
    pub(super) fn rule_of(&self, pool: &NamedPool) -> Option<FlushRule> {
        let mut own = pool.options.iter().filter(|own| self.counts(own));
        let says = own.any(|own| own.option.topic == Topic::Batching);
        says.then(|| self.values_of(pool).flush)
    }

    /// The values for a pool: its own options where they are in effect, and else those of all
    /// pools.
    pub(super) fn values_of(&self, pool: &NamedPool) -> Values {
        let mut values = self.values.clone();
        let mut cleared: Vec<&str> = Vec::new();
        for own in pool.options.iter().filter(|own| self.counts(own)) {
            // A pool's own list replaces that of all pools.
            if let OptionKind::List { clear, .. } = own.option.kind
                && !cleared.contains(&own.option.name)
            {
                clear(&mut values);
                cleared.push(own.option.name);
            }
            let read = own.option.set(&mut values, &own.text);
            read.expect("NamedPool::read keeps only options that parse");
        }
        self.settle_server_tls(pool, &mut values);
        values
    }

    /// Of options that exclude each other, the one of the latest layer. Two of one layer are a
    /// problem.
    pub(super) fn latest(
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
                    "backend" => "`backend` has a password already: remove one".into(),
                    other => format!("excludes `{other}`: remove one of them"),
                };
                problems.push(Problem::of_option(name, self.place(name), what));
            } else if layer > other_layer {
                latest = Some(name);
            }
        }
        latest
    }

    /// Every listener, with the name of its pool and its place.
    pub(super) fn listeners(&self) -> Vec<(Option<&str>, ListenAt, &ConfigPlace)> {
        if !self.has_named_pools() {
            let listen = self.unnamed_listeners().into_iter();
            let with_place = |at: ListenAt| {
                let place = self.place(at.option());
                (None, at, place)
            };
            return listen.map(with_place).collect();
        }
        let mut listeners = Vec::new();
        for pool in &self.values.pools {
            let its = pool.listen.iter();
            listeners.extend(its.map(|(at, place)| (Some(pool.name.as_str()), at.clone(), place)));
        }
        listeners
    }

    /// The listeners of the one pool without a name.
    pub(super) fn unnamed_listeners(&self) -> Vec<ListenAt> {
        let values = &self.values;
        let at = |tls| {
            move |address: &_| ListenAt {
                address: Clone::clone(address),
                tls,
            }
        };
        let plain = values.listen.iter().filter(|_| !self.is_tls_only());
        let tls = values.tls_listen.iter().map(at(true));
        plain.map(at(false)).chain(tls).collect()
    }

    /// Whether `tls-listen` takes the place of the default of `listen`.
    pub(super) fn is_tls_only(&self) -> bool {
        !self.values.tls_listen.is_empty() && !self.places.contains_key("listen")
    }
}

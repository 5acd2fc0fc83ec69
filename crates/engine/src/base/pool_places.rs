//! The places of pools and subpools in the engine of each worker, over all reloads.
//!
//! ```text
//!   start    a  b  │ subpools of b
//!   reload   a  b ended  │ its subpools │  b with other servers  │ its subpools
//!               └──────── successor ───────►
//! ```
//!
//! Sessions, links and tables name a pool by its place. So no place is given twice, and a pool
//! whose servers have changed is another pool.

use std::fmt;

use crate::base::limits::SERVERS_EVER_MAX;
use crate::base::settings::{PoolKind, PoolSettings};

/// The places of all pools since the start, those that have ended included.
#[derive(Clone, Debug)]
pub struct PoolPlaces {
    /// The pools and subpools by their places.
    pools: Vec<PoolSettings>,
    /// The place of each pool of the configuration.
    of_config: Vec<u16>,
    /// The servers that all these pools name.
    servers: usize,
}

/// There is no place for the pools of a new configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoPlaceLeft;

impl fmt::Display for NoPlaceLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the pools since the start have named {SERVERS_EVER_MAX} servers, the most that a \
             process can have: restart respool to change its pools"
        )
    }
}

impl PoolPlaces {
    /// The places at the start, when all pools are new.
    pub fn new(pools: &[PoolSettings]) -> PoolPlaces {
        let mut places = PoolPlaces {
            pools: Vec::new(),
            of_config: Vec::new(),
            servers: 0,
        };
        places.add(pools.to_vec());
        places.of_config = (0..pools.len() as u16).collect();
        places
    }

    /// The places with another configuration. A pool with the same name and the same servers keeps
    /// its place. Another pool of that name is the successor of the old one.
    ///
    /// # Errors
    /// When pools have had too many places or servers since the start.
    pub fn renew(&self, pools: &[PoolSettings]) -> Result<PoolPlaces, NoPlaceLeft> {
        let mut new = self.clone();
        let mut added: Vec<PoolSettings> = Vec::new();
        let mut successors = vec![None; self.pools.len()];
        new.of_config.clear();
        for pool in pools {
            let known = self.of_config.iter().copied();
            let mut known = known.filter(|place| self.pools[usize::from(*place)].name == pool.name);
            let former = known.next();
            let same = former.filter(|place| self.pools[usize::from(*place)].has_servers_of(pool));
            new.of_config.push(match same {
                Some(place) => {
                    new.pools[usize::from(place)] = pool.clone();
                    place
                }
                None => {
                    let place = (self.pools.len() + added.len()) as u16;
                    if let Some(former) = former {
                        successors[usize::from(former)] = Some(place);
                    }
                    added.push(pool.clone());
                    place
                }
            });
        }
        for place in &self.of_config {
            if !new.of_config.contains(place) {
                let successor = successors[usize::from(*place)];
                new.pools[usize::from(*place)].kind = PoolKind::Ended { successor };
            }
        }
        let is_new = !added.is_empty();
        new.add(added);
        match is_new && new.servers > SERVERS_EVER_MAX {
            true => Err(NoPlaceLeft),
            false => Ok(new),
        }
    }

    /// Adds pools, and places for their subpools behind them.
    fn add(&mut self, pools: Vec<PoolSettings>) {
        let mut subpools = Vec::new();
        for pool in &pools {
            self.servers += pool.kind.servers_named();
            if let PoolKind::ByPrefix { subpools: its } = &pool.kind {
                let place = PoolSettings {
                    kind: PoolKind::Subpool,
                    ..pool.clone()
                };
                subpools.resize(subpools.len() + its.len(), place);
            }
        }
        self.pools.extend(pools);
        self.pools.append(&mut subpools);
    }

    /// The pools and subpools by their places, for [`Settings::pools`](crate::settings::Settings).
    pub fn pools(&self) -> &[PoolSettings] {
        &self.pools
    }

    /// The place of each pool of the configuration, in its order.
    pub fn of_config(&self) -> &[u16] {
        &self.of_config
    }

    /// The place of the predecessor of the pool at this place.
    pub fn predecessor(&self, place: u16) -> Option<u16> {
        let is_its = |pool: &PoolSettings| matches!(pool.kind, PoolKind::Ended { successor } if successor == Some(place));
        let found = self.pools.iter().position(is_its);
        found.map(|place| place as u16)
    }

    /// The place of the pool that sessions of the pool at this place belong to now. `None`: that
    /// pool was removed.
    pub fn in_effect(&self, place: u16) -> Option<u16> {
        in_effect(&self.pools, place)
    }
}

/// The place of the last successor of a pool; its own place if it has not ended. `None`: the last
/// successor was removed.
pub(crate) fn in_effect(pools: &[PoolSettings], place: u16) -> Option<u16> {
    let mut place = place;
    while let Some(PoolKind::Ended { successor }) =
        pools.get(usize::from(place)).map(|pool| &pool.kind)
    {
        // A successor stands behind its predecessor, so this ends.
        place = (*successor).filter(|successor| *successor > place)?;
    }
    Some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::base::settings::{
        Address, Credentials, FlushRule, PasswordSource, PrefixPool, Reads, ServerSettings,
    };

    fn server(port: u16) -> ServerSettings {
        let host = "server".to_owned();
        ServerSettings::at(Address::Tcp { host, port })
    }

    fn pool(name: &str, port: u16) -> PoolSettings {
        PoolSettings::new(name, PoolKind::Single(server(port)))
    }

    fn with_prefix(name: &str, port: u16) -> PoolSettings {
        let subpool = |prefix: &str| PrefixPool {
            prefix: prefix.into(),
            strip: false,
            kind: PoolKind::Single(server(port)),
            reads: Reads::default(),
        };
        let subpools = vec![subpool(""), subpool("a:")];
        PoolSettings {
            kind: PoolKind::ByPrefix { subpools },
            ..pool(name, port)
        }
    }

    /// A pool with the same servers keeps its place in any order of the configuration. Other
    /// servers are another pool behind all others, and no place is given twice.
    #[test]
    fn pool_with_other_servers_gets_a_new_place() {
        let start = PoolPlaces::new(&[pool("a", 1), with_prefix("b", 2), pool("c", 3)]);
        assert_eq!(start.of_config(), [0, 1, 2]);
        assert_eq!(start.pools().len(), 5);
        let moved = start.renew(&[pool("c", 4), with_prefix("b", 5), pool("a", 1)]);
        let moved = moved.expect("there is room");
        assert_eq!(moved.of_config(), [5, 6, 0]);
        assert_eq!(moved.pools().len(), 9);
        let now = |places: &PoolPlaces| {
            let all = (0..5).map(|place| places.in_effect(place));
            all.collect::<Vec<_>>()
        };
        assert_eq!(now(&moved), [Some(0), Some(6), Some(5), Some(3), Some(4)]);
        let removed = moved.renew(&[pool("c", 3), pool("d", 1)]);
        let removed = removed.expect("there is room");
        assert_eq!(removed.of_config(), [9, 10]);
        assert_eq!(now(&removed)[..3], [None, None, Some(9)]);
        let again = removed.renew(&[pool("c", 3), pool("a", 1)]);
        let again = again.expect("there is room");
        assert_eq!(again.of_config(), [9, 11]);
        assert_eq!(again.in_effect(0), None, "a removed pool does not return");
    }

    /// A new password of a file or command is no other pool. Another password of the URL is.
    #[test]
    fn renewable_password_keeps_the_place() {
        let with = |password: &str, source| {
            let credentials = Some(Credentials {
                user: None,
                password: password.to_owned(),
                source,
            });
            PoolSettings {
                kind: PoolKind::Single(ServerSettings {
                    credentials,
                    ..server(1)
                }),
                ..pool("a", 1)
            }
        };
        let source = Some(PasswordSource(1));
        for (source, place) in [(source, 0), (None, 1)] {
            let start = PoolPlaces::new(&[with("old", source)]);
            let renewed = start.renew(&[with("new", source)]).expect("there is room");
            assert_eq!(renewed.of_config(), [place]);
        }
    }

    /// The servers since the start are bounded. At the bound, pools that stay may still change.
    #[test]
    fn servers_since_the_start_are_bounded() {
        let wide = |port| PoolSettings {
            kind: PoolKind::Cluster {
                seeds: vec![server(port); SERVERS_EVER_MAX / 4],
            },
            ..pool("a", port)
        };
        let mut places = PoolPlaces::new(&[wide(0)]);
        for port in 1..4 {
            places = places.renew(&[wide(port)]).expect("there is room");
        }
        let error = places.renew(&[wide(4)]).expect_err("it is the bound");
        assert!(error.to_string().contains("restart respool"));
        let kept = PoolSettings {
            flush: Some(FlushRule::default()),
            ..wide(3)
        };
        let kept = places.renew(&[kept]).expect("no server is new");
        assert!(kept.pools()[3].flush.is_some());
    }
}

//! Error replies by the names of pools: an engine knows pools by their places.

use std::collections::BTreeMap;

use respool_engine::{ErrorKind, ErrorOutcome, PoolPlaces};

/// The number of error replies, by the name of the pool, the command and the outcome.
pub type ErrorsByName = BTreeMap<(String, &'static str, ErrorOutcome), u64>;

/// Adds up the error replies of all places that a pool of the configuration has had.
pub(crate) fn errors_by_name(
    counted: impl Iterator<Item = (ErrorKind, u64)>,
    pools: &PoolPlaces,
) -> ErrorsByName {
    let name_of = |place: u16| pools.pools().get(usize::from(place)).map(|pool| &pool.name);
    let known: Vec<&String> = pools
        .of_config()
        .iter()
        .filter_map(|at| name_of(*at))
        .collect();
    let mut errors = ErrorsByName::new();
    for (kind, count) in counted {
        if let Some(name) = name_of(kind.pool).filter(|name| known.contains(name)) {
            let key = (name.clone(), kind.command, kind.outcome);
            *errors.entry(key).or_default() += count;
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use respool_engine::settings::{Address, PoolKind, PoolSettings, ServerSettings};

    use super::*;

    fn pool(name: &str, port: u16) -> PoolSettings {
        let host = "server".to_owned();
        PoolSettings::new(
            name,
            PoolKind::Single(ServerSettings::at(Address::Tcp { host, port })),
        )
    }

    /// The count of a pool goes on when its servers change, and when it comes back. A removed pool
    /// is left out meanwhile.
    #[test]
    fn count_of_a_pool_goes_on_over_reloads() {
        let error = |pool| ErrorKind {
            pool,
            command: "get",
            outcome: ErrorOutcome::Replied,
        };
        // The places of `a` are 0, 2 and 3, and that of `b` is 1.
        let counts = [1, 10, 100, 1_000];
        let shown = |places: &PoolPlaces| -> Vec<(String, u64)> {
            let errors = counts.into_iter().zip(0..);
            let errors = errors.map(|(count, pool)| (error(pool), count));
            let by_name = errors_by_name(errors, places).into_iter();
            by_name.map(|((name, _, _), count)| (name, count)).collect()
        };
        let start = PoolPlaces::new(&[pool("a", 1), pool("b", 2)]);
        assert_eq!(shown(&start), [("a".into(), 1), ("b".into(), 10)]);
        let moved = start.renew(&[pool("a", 3), pool("b", 2)]).expect("room");
        assert_eq!(shown(&moved), [("a".into(), 101), ("b".into(), 10)]);
        let removed = moved.renew(&[pool("b", 2)]).expect("room");
        assert_eq!(shown(&removed), [("b".into(), 10)]);
        let back = removed.renew(&[pool("a", 1), pool("b", 2)]).expect("room");
        assert_eq!(shown(&back), [("a".into(), 1_101), ("b".into(), 10)]);
    }
}

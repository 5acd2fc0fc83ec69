//! The values that clients have set by CONFIG SET. A reload overwrites them, and says so.

use std::collections::BTreeMap;

use respool_config::config::Resolved;
use respool_config::options::{find, switch};

/// The most values that are remembered. There are eight options for each pool and listener.
const VALUES_MAX: usize = 4_096;

/// The prefix of the names of options in CONFIG SET.
const OURS: &str = "respool.";
/// The prefix of the names of options of one listener, behind [`OURS`].
const OF_LISTENER: &str = "listener.";

/// The values that are set, each for a pool or for a listener.
#[derive(Debug, Default)]
pub(super) struct SetValues(BTreeMap<SetKey, String>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SetKey {
    pool: String,
    /// `None`: the value is of the whole pool.
    listener: Option<String>,
    /// The name of the option, without `respool.`.
    option: String,
}

impl SetValues {
    /// Notes the values of one CONFIG SET: `respool.fuse=no respool.listener.fuse=no`.
    pub(super) fn note(&mut self, pool: &str, listener: &str, options: &str) {
        let pairs = options.split(' ').filter_map(|pair| pair.split_once('='));
        for (name, value) in pairs {
            let option = name.strip_prefix(OURS).unwrap_or(name);
            let key = SetKey {
                pool: pool.to_owned(),
                listener: option.starts_with(OF_LISTENER).then(|| listener.to_owned()),
                option: option.to_owned(),
            };
            if self.0.len() < VALUES_MAX || self.0.contains_key(&key) {
                self.0.insert(key, value.to_owned());
            }
        }
    }

    /// The values that this configuration overwrites, a line each.
    pub(super) fn overwritten(&self, new: &Resolved) -> Vec<String> {
        let mut lines = Vec::new();
        for (key, value) in &self.0 {
            let configured = configured(key, new);
            if configured == *value {
                continue;
            }
            let at = match &key.listener {
                Some(listener) => format!("listener {listener}"),
                None => format!("pool {}", key.pool),
            };
            let name = &key.option;
            lines.push(format!(
                "{OURS}{name} of {at}: {value}, which CONFIG SET has set, becomes {configured}"
            ));
        }
        lines
    }

    /// Forgets all values: they are overwritten.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// The value that the configuration has for the option, as CONFIG SET writes it.
fn configured(key: &SetKey, new: &Resolved) -> String {
    match key.option.strip_prefix(OF_LISTENER) {
        // The configuration has no values for one listener.
        Some("flush-rule") => return "pool".into(),
        Some(_) => return "yes".into(),
        None => {}
    }
    let Some(option) = find(&key.option) else {
        return String::new();
    };
    let texts = option.get(&mut new.values_of_pool(&key.pool));
    let text = texts.into_iter().next().unwrap_or_default();
    match switch(&text) {
        Some(true) => "yes".into(),
        Some(false) => "no".into(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use respool_config::config::Config;
    use respool_config::passwords::RenewablePasswords;
    use respool_config::raw::RawConfig;

    /// Only a value that differs from the configured one is overwritten.
    #[test]
    fn overwritten_values_are_named() {
        let mut raw = RawConfig::default();
        raw.add_toml("respool.toml", "max-delay-us = 300\n");
        let resolved = Config::resolve_again(raw, &RenewablePasswords::default());
        let (_, resolved, _) = resolved.unwrap_or_else(|wrong| panic!("{:?}", wrong.problems));
        let mut values = SetValues::default();
        values.note(
            "default",
            "127.0.0.1:1",
            "respool.max-delay-us=300 respool.fuse=no respool.collapse=yes",
        );
        values.note(
            "default",
            "127.0.0.1:1",
            "respool.fuse=yes respool.flush-rule=latency",
        );
        values.note("default", "127.0.0.1:1", "respool.listener.fuse=no");
        assert_eq!(
            values.overwritten(&resolved),
            [
                "respool.flush-rule of pool default: latency, which CONFIG SET has set, becomes \
                 balanced",
                "respool.listener.fuse of listener 127.0.0.1:1: no, which CONFIG SET has set, \
                 becomes yes",
            ]
        );
        values.clear();
        assert_eq!(values.overwritten(&resolved), [""; 0]);
    }
}

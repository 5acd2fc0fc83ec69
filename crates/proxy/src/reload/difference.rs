//! The differences between two configurations, by options, users and pools.

use std::fmt;

use respool_config::address::ListenAt;
use respool_config::config::{Backend, PoolConfig, Resolved, SubpoolConfig};
use respool_config::options::{AtReload, OPTIONS, Opt, Values, find};
use respool_config::passwords::RenewablesInEffect;
use respool_config::pools::UNNAMED_POOL_OPTIONS;
use respool_config::problem::{ConfigPlace, Problem};
use respool_engine::settings::User;

use super::Loaded;

/// Options that [`differences`] compares by their effect: as users, or as part of a pool.
const BY_EFFECT: [&str; 3] = ["pool", "password", "user"];

/// One difference. It shows no password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConfigDifference {
    /// The option, the user or the pool.
    subject: String,
    change: Change,
    /// The effect of a reload on it.
    at_reload: AtReload,
    /// Its place before and after.
    places: Places,
}

/// The places of one value in both configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Places {
    old: ConfigPlace,
    new: ConfigPlace,
}

impl Places {
    /// The places of the first of these options that is given, in a pool or for all pools.
    fn of(both: (&Resolved, &Resolved), pool: Option<&str>, names: &[&str]) -> Places {
        Places {
            old: both.0.place_of_any(pool, names),
            new: both.1.place_of_any(pool, names),
        }
    }
}

impl ConfigDifference {
    /// The problem of a difference that only a start can apply, at the place of the new value.
    pub(super) fn restart_problem(&self) -> Option<Problem> {
        if self.at_reload == AtReload::Applies {
            return None;
        }
        let before = match (&self.places.old, &self.places.new) {
            (old @ ConfigPlace::File { .. }, ConfigPlace::Default) => format!(" (before: {old})"),
            _ => String::new(),
        };
        let text = format!("{self}{before}: needs a restart; undo it to reload the other changes");
        Some(Problem::at(self.places.new.clone(), text))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    Added,
    Removed,
    NewPassword,
    NewCertificates,
    /// From one value to another, as the file has them.
    Value(String, String),
}

impl fmt::Display for ConfigDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = &self.subject;
        match &self.change {
            Change::Added => write!(f, "{subject}: added"),
            Change::Removed => write!(f, "{subject}: removed"),
            Change::NewPassword => write!(f, "{subject}: a new password"),
            Change::NewCertificates => write!(f, "{subject}: there are new certificates"),
            Change::Value(from, to) => write!(f, "{subject}: {from} becomes {to}"),
        }
    }
}

/// All differences between the configuration in effect and a new one. `in_effect`: passwords and
/// certificates, which may have been read since the configuration was.
pub(super) fn differences(
    old: &Loaded,
    new: &Loaded,
    in_effect: &RenewablesInEffect,
) -> Vec<ConfigDifference> {
    let mut found = Vec::new();
    let (mut old_values, mut new_values) =
        (old.resolved.values_of_all(), new.resolved.values_of_all());
    let is_compared = |option: &&Opt| {
        !BY_EFFECT.contains(&option.name) && !UNNAMED_POOL_OPTIONS.contains(&option.name)
    };
    let both = (&old.resolved, &new.resolved);
    for option in OPTIONS.iter().filter(is_compared) {
        let places = Places::of(both, None, &[option.name]);
        let values = (&mut old_values, &mut new_values);
        found.extend(of_option("", option, values, places));
    }
    of_users(old, new, &mut found);
    of_pools(old, new, &mut found);
    let passwords = &new.config.renewable_passwords;
    let passwords = passwords.changes_since(&in_effect.passwords).into_iter();
    let passwords = passwords.map(|subject| (subject, Change::NewPassword));
    let certificates = new.config.tls_files.changes_since(&in_effect.tls);
    let certificates = certificates.into_iter();
    let certificates = certificates.map(|subject| (subject, Change::NewCertificates));
    for (subject, change) in passwords.chain(certificates) {
        found.push(ConfigDifference {
            subject,
            change,
            at_reload: AtReload::Applies,
            // The values of the options are the same.
            places: Places::of(both, None, &[]),
        });
    }
    found
}

/// The difference of one option, if there is one. `pool`: the prefix of its name.
fn of_option(
    pool: &str,
    option: &Opt,
    (old, new): (&mut Values, &mut Values),
    places: Places,
) -> Option<ConfigDifference> {
    let (from, to) = (option.get(old), option.get(new));
    if from == to {
        return None;
    }
    let shown = |texts: &[String]| match texts {
        [] => "nothing".to_owned(),
        _ if option.secret => "a secret".to_owned(),
        texts => option.in_file(texts),
    };
    Some(ConfigDifference {
        subject: format!("{pool}{}", option.name),
        change: Change::Value(shown(&from), shown(&to)),
        at_reload: option.at_reload,
        places,
    })
}

/// The differences of the users of clients. The first user, and the end of the last one, change
/// whether the server knows the users of sessions: that needs a restart.
fn of_users(old: &Loaded, new: &Loaded, found: &mut Vec<ConfigDifference>) {
    let both = (&old.resolved, &new.resolved);
    let (old, new) = (old.config.users(), new.config.users());
    let at_reload = match old.is_empty() == new.is_empty() {
        true => AtReload::Applies,
        false => AtReload::Restart,
    };
    let mut add = |user: &User, change| {
        found.push(ConfigDifference {
            subject: format!("user {}", user.name),
            change,
            at_reload,
            places: match &*user.name {
                "default" => Places::of(both, None, &["password", "password-file"]),
                _ => Places::of(both, None, &["user"]),
            },
        });
    };
    let same = |users: &[User], user: &User| {
        users
            .iter()
            .find(|other| other.name == user.name)
            .map(|other| other.password.clone())
    };
    for user in old.iter().filter(|user| same(new, user).is_none()) {
        add(user, Change::Removed);
    }
    for user in new {
        match same(old, user) {
            None => add(user, Change::Added),
            Some(password) if password != user.password => add(user, Change::NewPassword),
            Some(_) => {}
        }
    }
}

fn of_pools(old: &Loaded, new: &Loaded, found: &mut Vec<ConfigDifference>) {
    let of_name = |pools: &'_ [PoolConfig], name: &Option<String>| {
        pools.iter().position(|pool| pool.name == *name)
    };
    let (old_pools, new_pools) = (&old.config.pools, &new.config.pools);
    let both = (&old.resolved, &new.resolved);
    let whole = |pool: &PoolConfig, change| {
        let subject = match &pool.name {
            Some(name) => format!("pool.{name}"),
            None => "the pool of `listen` and `backend`".to_owned(),
        };
        ConfigDifference {
            subject,
            change,
            at_reload: match &pool.backend {
                Backend::Server(_) => AtReload::Applies,
                // The private server starts and ends with respool.
                Backend::Spawn(_) => AtReload::Restart,
            },
            places: Places::of(both, pool.name.as_deref(), &["", "spawn"]),
        }
    };
    for pool in old_pools {
        if of_name(new_pools, &pool.name).is_none() {
            found.push(whole(pool, Change::Removed));
        }
    }
    for pool in new_pools {
        let Some(before) = of_name(old_pools, &pool.name).map(|index| &old_pools[index]) else {
            found.push(whole(pool, Change::Added));
            continue;
        };
        let prefix = match &pool.name {
            Some(name) => format!("pool.{name}."),
            None => String::new(),
        };
        of_pool(&prefix, (before, pool), both, found);
        let Some(name) = &pool.name else { continue };
        let (mut old_values, mut new_values) = (
            old.resolved.values_of_pool(name),
            new.resolved.values_of_pool(name),
        );
        let (mut old_all, mut new_all) =
            (old.resolved.values_of_all(), new.resolved.values_of_all());
        for option in OPTIONS.iter().filter(|option| option.per_pool) {
            let places = Places::of(both, Some(name), &[option.name]);
            let values = (&mut old_values, &mut new_values);
            let own = of_option(&prefix, option, values, places.clone());
            let of_all = of_option(&prefix, option, (&mut old_all, &mut new_all), places);
            // A difference of all pools is listed already.
            found.extend(own.filter(|own| Some(own) != of_all.as_ref()));
        }
    }
}

/// The differences of listeners and servers of a pool. `prefix`: of the names of its options.
fn of_pool(
    prefix: &str,
    (old, new): (&PoolConfig, &PoolConfig),
    both: (&Resolved, &Resolved),
    found: &mut Vec<ConfigDifference>,
) {
    let mut add = |name: &str, change, at_reload| {
        let names: &[&str] = match name {
            "backend" => &["spawn", name],
            name => &[name],
        };
        found.push(ConfigDifference {
            subject: format!("{prefix}{name}"),
            change,
            at_reload,
            places: Places::of(both, new.name.as_deref(), names),
        });
    };
    let at_reload = |name: &str| find(name).map_or(AtReload::Restart, |option| option.at_reload);
    let (mut from, mut to) = (old.listen.clone(), new.listen.clone());
    from.sort();
    to.sort();
    if from != to {
        add(
            "listen",
            Change::Value(list(&old.listen), list(&new.listen)),
            at_reload("listen"),
        );
    }
    match (&old.backend, &new.backend) {
        (Backend::Server(old), Backend::Server(new)) => {
            let (before, after) = (
                old.without_renewable_passwords(),
                new.without_renewable_passwords(),
            );
            let (from, to) = (before.to_string(), after.to_string());
            if from != to {
                add("backend", Change::Value(from, to), at_reload("backend"));
            } else if before != after {
                add("backend", Change::NewPassword, at_reload("backend"));
            }
        }
        (old, new) if old != new => {
            let shown = |backend: &Backend| match backend {
                Backend::Server(url) => url.to_string(),
                Backend::Spawn(plan) => format!("a server of respool's own ({plan})"),
            };
            // The private server starts and ends with respool.
            let change = Change::Value(shown(old), shown(new));
            add("backend", change, AtReload::Restart);
        }
        _ => {}
    }
    let known = |parts: &[SubpoolConfig]| -> Vec<_> {
        let part = |part: &SubpoolConfig| {
            let url = part.url.without_renewable_passwords();
            (part.prefix.clone(), part.strip, url)
        };
        parts.iter().map(part).collect()
    };
    let (from, to) = (known(&old.prefixes), known(&new.prefixes));
    if from != to {
        let shown = |parts: &[(String, bool, respool_config::backend::BackendUrl)]| {
            let part = |(prefix, strip, url): &(String, bool, _)| {
                let stripped = if *strip { " (stripped)" } else { "" };
                format!("`{prefix}` at {url}{stripped}")
            };
            let parts: Vec<String> = parts.iter().map(part).collect();
            format!("[{}]", parts.join(", "))
        };
        let (from, to) = (shown(&from), shown(&to));
        let change = match from == to {
            true => Change::NewPassword,
            false => Change::Value(from, to),
        };
        add("prefixes", change, AtReload::Applies);
    }
}

fn list(addresses: &[ListenAt]) -> String {
    let addresses: Vec<String> = addresses.iter().map(ListenAt::to_string).collect();
    format!("[{}]", addresses.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use respool_config::config::Config;
    use respool_config::passwords::RenewablePasswords;
    use respool_config::raw::RawConfig;

    fn loaded(file: &str) -> Loaded {
        let mut raw = RawConfig::default();
        raw.add_toml("respool.toml", file);
        let (config, resolved, _) = Config::resolve_again(raw, &RenewablePasswords::default())
            .unwrap_or_else(|wrong| panic!("{:?}", wrong.problems));
        Loaded { config, resolved }
    }

    fn between(old: &str, new: &str) -> Vec<(String, AtReload)> {
        let found = differences(&loaded(old), &loaded(new), &RenewablesInEffect::default());
        let shown = found
            .iter()
            .map(|difference| (difference.to_string(), difference.at_reload));
        shown.collect()
    }

    /// A difference names the option and both values, and says whether it can be applied.
    #[test]
    fn difference_names_the_option_and_its_values() {
        use AtReload::{Applies, Restart};
        for (old, new, text, at_reload) in [
            (
                "",
                "max-delay-us = 300",
                "max-delay-us: 200 becomes 300",
                Applies,
            ),
            ("", "fuse = false", "fuse: true becomes false", Applies),
            (
                "threads = 1",
                "threads = 2",
                "threads: 1 becomes 2",
                Restart,
            ),
            (
                "listen = ['127.0.0.1:1']",
                "listen = ['127.0.0.1:1', '127.0.0.1:2']",
                "listen: [127.0.0.1:1] becomes [127.0.0.1:1, 127.0.0.1:2]",
                Applies,
            ),
            (
                "backend = 'redis://a'",
                "backend = 'redis://b'",
                "backend: redis://a:6379/0 becomes redis://b:6379/0",
                Applies,
            ),
            (
                "backend = 'redis://u:SECRET1@a'",
                "backend = 'redis://u:SECRET2@a'",
                "backend: a new password",
                Applies,
            ),
            (
                "password = 'SECRET1'",
                "password = 'SECRET2'",
                "user default: a new password",
                Applies,
            ),
            (
                "user = ['a:SECRET1']",
                "user = ['a:SECRET1', 'b:SECRET2']",
                "user b: added",
                Applies,
            ),
            (
                "user = ['a:1', 'b:2']",
                "user = ['b:2']",
                "user a: removed",
                Applies,
            ),
            ("", "password = 'SECRET'", "user default: added", Restart),
            ("password = 'SECRET'", "", "user default: removed", Restart),
        ] {
            assert_eq!(
                between(old, new),
                [(text.to_owned(), at_reload)],
                "{old} to {new}"
            );
        }
    }

    /// The order of pools, comments and the places of values are no difference.
    #[test]
    fn pools_are_compared_by_name() {
        let a = "[pool.a]\nlisten = '127.0.0.1:1'\nbackend = 'redis://a'\n";
        let b = "[pool.b]\nlisten = '127.0.0.1:2'\nbackend = 'redis://b'\n";
        assert_eq!(
            between(&format!("{a}{b}"), &format!("# a comment\n{b}{a}")),
            []
        );
        assert_eq!(
            between(a, &format!("{a}{b}")),
            [("pool.b: added".to_owned(), AtReload::Applies)]
        );
        assert_eq!(
            between(&format!("{a}{b}"), b),
            [("pool.a: removed".to_owned(), AtReload::Applies)]
        );
        assert_eq!(
            between(a, &format!("{a}max-delay-us = 300\n")),
            [(
                "pool.a.max-delay-us: 200 becomes 300".to_owned(),
                AtReload::Applies
            )]
        );
        assert_eq!(
            between(a, &format!("max-delay-us = 300\n{a}")),
            [(
                "max-delay-us: 200 becomes 300".to_owned(),
                AtReload::Applies
            )]
        );
    }

    /// Options without an example of a difference: it is the default, or needs other options or
    /// files. [`each_option_makes_a_difference`] leaves these out, and no others.
    const WITHOUT_EXAMPLE: &[&str] = &[
        "pool",
        "spawn-program",
        "spawn-memory-bytes",
        "tls-listen",
        "tls-cert",
        "tls-key",
        "tls-ca",
        "tls-client-auth",
        "tls-min-version",
        "server-tls-ca",
        "server-tls-cert",
        "server-tls-key",
        "server-tls-name",
        "server-tls-verify",
        "password-file",
        "backend-password-file",
        "backend-password-command",
    ];

    /// An option that differs is either applied or named: none is ignored. So the example of each
    /// option is a difference.
    #[test]
    fn each_option_makes_a_difference() {
        let old = loaded("");
        let mut left_out = Vec::new();
        for option in OPTIONS {
            let mut values = old.resolved.values_of_all();
            if option.get(&mut values) == [option.example] || option.name == "pool" {
                left_out.push(option.name);
                continue;
            }
            let file = format!("{} = {}\n", option.name, option.example_in_file());
            let mut raw = RawConfig::default();
            raw.add_toml("respool.toml", &file);
            // Options that need others, or files, are not good alone.
            let Ok((config, resolved, _)) =
                Config::resolve_again(raw, &RenewablePasswords::default())
            else {
                left_out.push(option.name);
                continue;
            };
            let found = differences(
                &old,
                &Loaded { config, resolved },
                &RenewablesInEffect::default(),
            );
            assert!(!found.is_empty(), "{file}");
        }
        assert_eq!(left_out, WITHOUT_EXAMPLE);
    }
}

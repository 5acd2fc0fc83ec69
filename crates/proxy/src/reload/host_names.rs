//! The look-up of host names before a reload: a pool whose servers cannot be found would begin an
//! outage, and a resolver that hangs at the name of a listener would hold the reload up.
//!
//! Only names of pools that the reload adds or changes are looked up, and those of new listeners. A
//! pool that stays keeps its links, and a resolver that is away for a moment must not keep other
//! changes from it.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use respool_config::backend::BackendUrl;
use respool_config::config::{Backend, Config, PoolConfig};
use respool_config::problem::{ConfigPlace, Problem};
use respool_engine::settings::Address;

use super::{Loaded, lock};
use crate::remedy::thread_remedy;

/// How long a reload waits for the addresses of all names together.
pub(super) const LOOK_UPS_WAIT: Duration = Duration::from_secs(5);

/// The most look-ups at once in this process. Each has a thread, which ends when the system's
/// resolver does. So those of a reload that has given up count as well.
const LOOK_UPS_MAX: usize = 16;

/// The look-ups that run now.
static LOOK_UPS: AtomicUsize = AtomicUsize::new(0);

/// The result of a look-up: `Err` says why there is no address.
type FoundName = Result<(), String>;

/// The way in which names are looked up.
#[derive(Clone, Copy)]
struct Resolver {
    /// Looks up one name. The system's resolver may block.
    look_up: fn(&str) -> FoundName,
    /// How long to wait for all names together.
    wait: Duration,
    /// Number of look-ups that run now.
    running: &'static AtomicUsize,
}

/// One of the look-ups that may run at once, until it is dropped.
struct LookUpSeat(&'static AtomicUsize);

impl LookUpSeat {
    /// `None`: as many look-ups as may be run already.
    fn take(running: &'static AtomicUsize) -> Option<LookUpSeat> {
        let more = |count| (count < LOOK_UPS_MAX).then_some(count + 1);
        let taken = running.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        taken.is_ok().then(|| LookUpSeat(running))
    }
}

impl Drop for LookUpSeat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The outcome of the look-ups of a reload.
#[derive(Debug, Default)]
pub(super) struct CheckedNames {
    /// Servers that cannot be found, and listeners without an address.
    pub(super) problems: Vec<Problem>,
    /// Seed nodes and Sentinels without an address, beside others that have one.
    pub(super) warnings: Vec<String>,
    /// The listeners that cannot be bound, since their names have no address.
    unfound: Vec<Address>,
}

impl CheckedNames {
    /// Whether a bind of this address may look up its name: the resolver has just answered.
    pub(super) fn may_be_bound(&self, address: &Address) -> bool {
        !self.unfound.contains(address)
    }
}

/// Looks up the host names of pools and listeners that differ from those in effect.
pub(super) fn check_names(current: &Loaded, new: &Loaded) -> CheckedNames {
    let resolver = Resolver {
        look_up,
        wait: LOOK_UPS_WAIT,
        running: &LOOK_UPS,
    };
    match names_without_address(current, new, resolver) {
        Ok(names) => CheckedNames {
            warnings: names.warnings.iter().map(Problem::to_string).collect(),
            problems: names.problems,
            unfound: names.listeners,
        },
        Err(refused) => CheckedNames {
            problems: vec![Problem::at(ConfigPlace::Default, refused)],
            warnings: Vec::new(),
            unfound: new_listeners(&current.config, &new.config),
        },
    }
}

/// The names without an address.
#[derive(Debug, Default)]
struct NamesWithoutAddress {
    /// Those without which servers of a pool cannot be found, and those of listeners.
    problems: Vec<Problem>,
    /// Those of seed nodes and Sentinels beside others that have an address.
    warnings: Vec<Problem>,
    /// The listeners among them.
    listeners: Vec<Address>,
}

/// `Err`: no name was looked up, for this reason.
fn names_without_address(
    current: &Loaded,
    new: &Loaded,
    resolver: Resolver,
) -> Result<NamesWithoutAddress, String> {
    let changed: Vec<_> = changed_pools(&current.config.pools, &new.config.pools).collect();
    let named = || {
        let of_pool = |pool| urls(pool).map(move |(prefix, url)| (pool, prefix, url));
        changed.iter().copied().flat_map(of_pool)
    };
    let listeners = new_listeners(&current.config, &new.config);
    let of_servers = named().flat_map(|(.., url)| url.addresses());
    let names = of_servers.chain(&listeners).filter_map(host_name);
    let found = look_up_all(names, resolver)?;
    let problem_of = |name: &str| {
        let reason = match found.get(name) {
            Some(Ok(())) => return None,
            Some(Err(reason)) => reason.clone(),
            None => format!("no answer within {} s", resolver.wait.as_secs()),
        };
        Some(format!(
            "no address of `{name}` is found now: {reason}; check the name and the resolver, or \
             give an IP address"
        ))
    };
    let mut without = NamesWithoutAddress::default();
    for (pool, prefix, url) in named() {
        let has_address = |address: &&Address| {
            host_name(address).is_none_or(|name| matches!(found.get(name), Some(Ok(()))))
        };
        let addresses = url.addresses();
        let is_enough = url.names_entry_points() && addresses.iter().any(has_address);
        let list = match is_enough {
            true => &mut without.warnings,
            false => &mut without.problems,
        };
        for name in addresses.into_iter().filter_map(host_name) {
            let Some(what) = problem_of(name) else {
                continue;
            };
            let problem = new.resolved.problem_of_servers(pool, prefix, what);
            if !list.contains(&problem) {
                list.push(problem);
            }
        }
    }
    let of_listener = |address: &Address| {
        let is_new = listeners.contains(address);
        host_name(address).filter(|_| is_new).and_then(problem_of)
    };
    let unfound = listeners.iter();
    let unfound = unfound.filter(|address| of_listener(address).is_some());
    without.listeners = unfound.cloned().collect();
    for problem in new.resolved.problems_of_listeners(of_listener) {
        if !without.problems.contains(&problem) {
            without.problems.push(problem);
        }
    }
    Ok(without)
}

/// The addresses on which respool does not listen yet.
fn new_listeners(old: &Config, new: &Config) -> Vec<Address> {
    let of = |config: &Config| config.listeners().into_iter().map(|one| one.address);
    let old: Vec<Address> = of(old).collect();
    of(new).filter(|address| !old.contains(address)).collect()
}

/// The pools that are new, or have other servers than the pool of the same name.
fn changed_pools<'a>(
    old: &'a [PoolConfig],
    new: &'a [PoolConfig],
) -> impl Iterator<Item = &'a PoolConfig> {
    let servers = |pool: &PoolConfig| -> Vec<_> {
        let urls = urls(pool);
        urls.map(|(prefix, url)| (prefix.map(str::to_owned), url.without_renewable_passwords()))
            .collect()
    };
    new.iter().filter(move |pool| {
        let mut old = old.iter();
        let same = old.find(|other| other.name == pool.name);
        same.is_none_or(|same| servers(same) != servers(pool))
    })
}

/// The URLs of a pool, each with its prefix; `None`: of the other keys.
fn urls(pool: &PoolConfig) -> impl Iterator<Item = (Option<&str>, &BackendUrl)> {
    let backend = match &pool.backend {
        Backend::Server(url) => Some((None, &**url)),
        Backend::Spawn(_) => None,
    };
    let prefixes = pool.prefixes.iter();
    let prefixes = prefixes.map(|part| (Some(part.prefix.as_str()), &part.url));
    backend.into_iter().chain(prefixes)
}

/// The name in an address that has to be looked up.
fn host_name(address: &Address) -> Option<&str> {
    match address {
        Address::Tcp { host, .. } if host.parse::<IpAddr>().is_err() => Some(host),
        _ => None,
    }
}

fn look_up(name: &str) -> FoundName {
    let addresses = (name, 0).to_socket_addrs().map(|mut found| found.next());
    let none = || io::Error::other("the resolver knows none");
    match addresses.and_then(|first| first.ok_or_else(none)) {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// The results of the look-ups that end in time. `Err`: look-ups of earlier reloads still run, so
/// none could begin.
fn look_up_all<'a>(
    names: impl Iterator<Item = &'a str>,
    resolver: Resolver,
) -> Result<BTreeMap<String, FoundName>, String> {
    let mut waiting: Vec<String> = names.map(str::to_owned).collect();
    waiting.sort();
    waiting.dedup();
    let (count, deadline) = (waiting.len(), Instant::now() + resolver.wait);
    let seats: Vec<LookUpSeat> = (0..count)
        .map_while(|_| LookUpSeat::take(resolver.running))
        .collect();
    if count > 0 && seats.is_empty() {
        return Err(format!(
            "host names cannot be looked up now: {LOOK_UPS_MAX} look-ups of earlier reloads have \
             not ended, the most at once; check the resolver, and reload again"
        ));
    }
    let waiting = Arc::new(Mutex::new(waiting));
    let (send, results) = mpsc::channel();
    let mut found = BTreeMap::new();
    for seat in seats {
        let (of_thread, send) = (waiting.clone(), send.clone());
        let thread = thread::Builder::new().name("look-up".into());
        let spawned = thread.spawn(move || {
            // The seat is free before the reload sees that the thread has ended.
            let (send, _seat) = (send, seat);
            // The lock ends with each call, so that threads look up side by side.
            let next = || lock(&of_thread).pop();
            while let Some(name) = next() {
                let result = (resolver.look_up)(&name);
                if send.send((name, result)).is_err() {
                    return;
                }
            }
        });
        let Err(error) = spawned else { continue };
        let reason = format!("no thread can be started: {error}{}", thread_remedy(&error));
        if let Some(name) = lock(&waiting).pop() {
            found.insert(name, Err(reason));
        }
    }
    drop(send);
    // Until all threads have ended, so that the next reload finds their seats free.
    let left = || deadline.saturating_duration_since(Instant::now());
    while let Ok((name, result)) = results.recv_timeout(left()) {
        found.insert(name, result);
    }
    // Threads that hang take no more names.
    lock(&waiting).clear();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use respool_config::config::Config;
    use respool_config::passwords::RenewablePasswords;
    use respool_config::raw::RawConfig;

    fn loaded(file: &str) -> Loaded {
        let mut raw = RawConfig::default();
        raw.add_toml("r.toml", file);
        let (config, resolved, _) = Config::resolve_again(raw, &RenewablePasswords::default())
            .unwrap_or_else(|wrong| panic!("{:?}", wrong.problems));
        Loaded { config, resolved }
    }

    /// Names that begin with `no` have no address, and names that begin with `slow` hang.
    fn resolver(name: &str) -> FoundName {
        if name.starts_with("slow") {
            thread::sleep(Duration::from_secs(30));
        }
        match name.starts_with("no") {
            true => Err("unknown".into()),
            false => Ok(()),
        }
    }

    /// The problems of a reload, in a process with `running` look-ups.
    fn problems_with(
        running: &'static AtomicUsize,
        old: &str,
        new: &str,
    ) -> Result<Vec<String>, String> {
        let resolver = Resolver {
            look_up: resolver,
            wait: Duration::from_secs(1),
            running,
        };
        let found = names_without_address(&loaded(old), &loaded(new), resolver)?;
        let problems = found.problems.iter().map(Problem::to_string);
        let warnings = found.warnings.iter();
        Ok(problems
            .chain(warnings.map(|warning| format!("warning: {warning}")))
            .collect())
    }

    fn problems(old: &str, new: &str) -> Vec<String> {
        let running = Box::leak(Box::new(AtomicUsize::new(0)));
        problems_with(running, old, new).unwrap_or_else(|refused| panic!("{refused}"))
    }

    /// A name without an address is a problem at its place, in every kind of URL. Names of pools
    /// that stay are not looked up.
    #[test]
    fn name_without_an_address_is_a_problem_at_its_place() {
        let pool =
            |name: &str, rest: &str| format!("[pool.{name}]\nlisten = '127.0.0.1:1'\n{rest}\n");
        let stays = pool("stays", "backend = 'redis://no.stays'\nfuse = false");
        let other = stays.replace("false", "true");
        let prefixes = "backend = 'redis://10.0.0.1'\n[pool.a.prefixes]\np = 'redis://no.prefix'";
        for (old, new, expected) in [
            (String::new(), "backend = 'redis://a'".into(), vec![]),
            (
                String::new(),
                "backend = 'redis://no.host'".into(),
                vec!["r.toml:1:1: backend: no address of `no.host` is found now: unknown; "],
            ),
            (stays.clone(), other, vec![]),
            (
                stays.clone(),
                stays.replace(":1'", ":2'") + &pool("a", prefixes),
                vec!["r.toml:9:5: pool.a.prefixes: `p`: no address of `no.prefix` is found now"],
            ),
            (
                String::new(),
                pool("a", "backend = 'redis-sentinel://no.b,no.a/main'"),
                vec![
                    "r.toml:3:11: pool.a.backend: no address of `no.b`",
                    "r.toml:3:11: pool.a.backend: no address of `no.a`",
                ],
            ),
            (
                String::new(),
                pool("a", "backend = 'redis-sentinel://no.b,c,no.a/main'"),
                vec![
                    "warning: r.toml:3:11: pool.a.backend: no address of `no.b`",
                    "warning: r.toml:3:11: pool.a.backend: no address of `no.a`",
                ],
            ),
            (
                String::new(),
                "backend = 'redis-cluster://no.a,10.0.0.1'".into(),
                vec!["warning: r.toml:1:1: backend: no address of `no.a` is found now: unknown"],
            ),
            (
                String::new(),
                "backend = 'redis-cluster://no.a'".into(),
                vec!["r.toml:1:1: backend: no address of `no.a`"],
            ),
            (
                String::new(),
                "backend = 'redis-sharded://a,no.b'".into(),
                vec!["r.toml:1:1: backend: no address of `no.b`"],
            ),
        ] {
            let told = problems(&old, &new);
            let is_told = told.len() == expected.len();
            let mut both = told.iter().zip(&expected);
            assert!(
                is_told && both.all(|(told, expected)| told.starts_with(expected)),
                "{told:?}, not {expected:?}"
            );
        }
    }

    /// A name of a listener without an address is a problem at its place. Names of listeners that
    /// stay are not looked up, and names that hang have the same bound.
    #[test]
    fn name_of_a_listener_has_the_same_bound() {
        let config = |listen: &str| format!("listen = [{listen}]\nbackend = 'redis://10.0.0.1'");
        let stays = "'no.stays:1', '127.0.0.1:1'";
        for (listen, expected) in [
            (stays.to_owned(), vec![]),
            (format!("{stays}, 'is.new:1', 'unix:/run/no'"), vec![]),
            (
                format!("{stays}, 'no.new:1'"),
                vec!["r.toml:1:1: listen: no address of `no.new` is found now: unknown; "],
            ),
            (
                format!("'slow:1', {stays}, 'slow:2'"),
                vec![
                    "r.toml:1:1: listen: no address of `slow` is found now: no answer within 1 s; \
                     check the name and the resolver, or give an IP address",
                ],
            ),
        ] {
            let began = Instant::now();
            let told = problems(&config(stays), &config(&listen));
            assert!(began.elapsed() < Duration::from_secs(20));
            assert_eq!(told.len(), expected.len(), "{told:?}");
            for (told, expected) in told.iter().zip(expected) {
                assert!(told.starts_with(expected), "{told}");
            }
        }
        let two = "[pool.a]\nlisten = '127.0.0.1:1'\nbackend = 'redis://10.0.0.1'\n\
                   [pool.b]\nlisten = 'no.b:1'\nbackend = 'redis://10.0.0.2'";
        let told = problems("backend = 'redis://10.0.0.1'", two);
        let expected = "r.toml:5:10: pool.b.listen: no address of `no.b` is found now: unknown";
        assert!(
            matches!(&told[..], [one] if one.starts_with(expected)),
            "{told:?}"
        );
    }

    /// Names that hang do not keep the reload waiting beyond its bound, and are problems.
    #[test]
    fn names_that_hang_are_problems_after_the_bound() {
        let hosts: Vec<String> = (0..LOOK_UPS_MAX - 1)
            .map(|nth| format!("slow{nth}"))
            .collect();
        let url = format!("backend = 'redis-cluster://{},no.host'", hosts.join(","));
        let began = Instant::now();
        let told = problems("", &url);
        assert!(began.elapsed() < Duration::from_secs(20));
        assert_eq!(told.len(), LOOK_UPS_MAX, "{told:?}");
        let late = told
            .iter()
            .filter(|told| told.contains("no answer within 1 s"));
        assert_eq!(late.count(), LOOK_UPS_MAX - 1);
    }

    /// Look-ups that hang count against the bound of later reloads, which are refused at once.
    /// Look-ups that have ended do not.
    #[test]
    fn hanging_look_ups_bound_those_of_later_reloads() {
        static RUNNING: AtomicUsize = AtomicUsize::new(0);
        let hosts = |kind: &str, count: usize| {
            let hosts: Vec<String> = (0..count).map(|nth| format!("{kind}{nth}")).collect();
            format!("backend = 'redis-cluster://{}'", hosts.join(","))
        };
        let all = hosts("fast", LOOK_UPS_MAX);
        for _ in 0..3 {
            assert_eq!(problems_with(&RUNNING, "", &all), Ok(Vec::new()));
            assert_eq!(RUNNING.load(Ordering::Acquire), 0);
        }
        let hanging = hosts("slow", LOOK_UPS_MAX - 1);
        assert!(problems_with(&RUNNING, "", &hanging).is_ok());
        assert_eq!(problems_with(&RUNNING, "", &all), Ok(Vec::new()));
        assert!(problems_with(&RUNNING, "", &hosts("slow", 1)).is_ok());
        let began = Instant::now();
        let refused = problems_with(&RUNNING, "", &all).expect_err("no look-up can begin");
        assert!(refused.contains("cannot be looked up now"), "{refused}");
        assert!(began.elapsed() < Duration::from_secs(1));
        let addresses = "backend = 'redis://10.0.0.1'";
        assert_eq!(problems_with(&RUNNING, "", addresses), Ok(Vec::new()));
        assert_eq!(RUNNING.load(Ordering::Acquire), LOOK_UPS_MAX);
    }
}

//! Tests of configurations with several pools, with prefixes and with address maps.

use respool_engine::settings::{Aim, ReadPolicy};

use super::*;
use crate::pools::{POOLS_MAX, PREFIXES_MAX};

pub(super) const TWO_POOLS: &str = "threads = 3\n\
                         [pool.sessions]\nbackend = 'redis://u:SECRET@h:1/2'\nlisten = ':1'\n\
                         [pool.pages]\nlisten = [':2', 'unix:/a']\n\
                         backend = 'redis-sharded://h:2,h:3'\n";

/// The file and the command line make the same pools. Each pool has its own listeners and servers.
#[test]
fn pools_are_the_same_from_file_and_command_line() {
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
        .iter()
        .map(|listener| format!("{} {}", listener.address, listener.pool))
        .collect();
    assert_eq!(listeners, ["0.0.0.0:1 0", "0.0.0.0:2 1", "unix:/a 1"]);

    let urls = by_file.pools.iter().map(|pool| match &pool.backend {
        Backend::Server(url) => (**url).clone(),
        Backend::Spawn(_) => panic!("not asked for"),
    });
    let settings = by_file.settings(&urls.collect::<Vec<_>>());
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
    // The list of a later layer replaces the earlier one.
    let replaced = good(TWO_POOLS, &[], &["--pool", "c=:3=redis://h"]);
    assert_eq!(replaced.pools.len(), 1);
    assert!(replaced.summary().starts_with("pool c: "));
}

/// Printed pools are tables that make the same pools, without passwords.
#[test]
fn printed_pools_parse_as_themselves() {
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
    // A user needs a password.
    assert_eq!(good(&printed.replace("u@", "u:SECRET@"), &[], &[]), config);
}

/// A pool's own options hold for that pool, and are printed in its table.
#[test]
fn options_of_a_pool_hold_for_that_pool() {
    let file = format!(
        "max-delay-us = 300\ncollapse = false\n{TWO_POOLS}flush-rule = 'latency'\nmax-delay-us = '1ms'\nfuse = false\n\
         fused-keys-max = 7\ncollapse = true\n[pool.pages.prefixes]\na = 'redis://h:4'\n"
    );
    let rule = |config: &Config, pool: usize| {
        let urls = config.pools.iter().map(|pool| match &pool.backend {
            Backend::Server(url) => (**url).clone(),
            Backend::Spawn(_) => panic!("not asked for"),
        });
        let settings = config.settings(&urls.collect::<Vec<_>>());
        settings.pools[pool].flush.clone().unwrap_or(settings.flush)
    };
    let (config, resolved) = resolve(&file, &[], &[]).ok().unwrap();
    let for_all = FlushRule {
        max_delay_us: 300,
        collapse: false,
        ..FlushRule::default()
    };
    let own = FlushRule {
        aim: Aim::Latency,
        max_delay_us: 1_000,
        fuse: false,
        fused_keys_max: 7,
        collapse: true,
    };
    assert_eq!((rule(&config, 0), rule(&config, 1)), (for_all, own.clone()));
    let printed = resolved.to_toml().replace("u@", "u:SECRET@");
    for line in [
        "max-delay-us = 300  # r.toml:1:1\n",
        "flush-rule = \"latency\"  # r.toml:10:1\nmax-delay-us = \"1ms\"  # r.toml:11:1\nfuse = false  # r.toml:12:1\n",
    ] {
        assert!(printed.contains(line), "{line}: {printed}");
    }
    assert_eq!(good(&printed, &[], &[]), config, "{printed}");

    // The command line sets options of all pools, in a later layer.
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

/// Each pool announces its own address. No two pools announce the same one.
#[test]
fn pools_announce_their_own_addresses() {
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
    // It makes no flush rule of the pool.
    assert!(
        good(&own, &[], &[])
            .pools
            .iter()
            .all(|pool| pool.flush.is_none())
    );

    let twice = TWO_POOLS.replace("[pool.pages]", "announce = 'h:1'\n[pool.pages]");
    let twice = format!("{twice}announce = 'h:1'\n");
    let told = |file: &str, arguments: &[&str]| resolve(file, &[], arguments).err().unwrap();
    let what = "`h:1` leads to the pool `sessions` already: leave the port out, or give each pool its own in the file";
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
fn all_problems_of_pools_are_reported_at_once() {
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
        "r.toml:6:17: pool.b.listen: `0.0.0.0:2` is the address of the backend 127.0.0.1:2",
        "r.toml:6:23: pool.b.listen: `0.0.0.0:2` is given twice",
    ];
    for expected in expected {
        let found = told.iter().filter(|line| line.starts_with(expected));
        assert_eq!(found.count(), 1, "{expected}: {told:#?}");
    }
    // The second `:2` is the address of the backend, too.
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
    // Each server needs a link of each version of the protocol.
    let told = resolve(
        TWO_POOLS,
        &[],
        &["--links-max=5", "--streaming-links-max=1"],
    );
    assert!(told.err().unwrap()[0].starts_with("--links-max: must be at least 6"));
    // With Sentinels, the primaries need links, and the number of Sentinels does not count.
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

/// Each prefix may have servers of any kind. A mistake in one is a problem with its place.
#[test]
fn prefixes_have_backends_of_any_kind() {
    let (config, resolved) = resolve(PREFIXES, &[], &[]).ok().unwrap();
    let summary =
        "pool all: listen 0.0.0.0:1, backend redis://u@h:1/2, `page:` at redis-sharded://h:2,h:3/2";
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
    let settings = config.settings(std::slice::from_ref(url));
    let PoolKind::ByPrefix { subpools } = &settings.pools[0].kind else {
        panic!("{settings:?}");
    };
    let shown: Vec<_> = subpools
        .iter()
        .map(|subpool| {
            let prefix = String::from_utf8_lossy(&subpool.prefix).into_owned();
            let (kind, count) = match &subpool.kind {
                PoolKind::Single(_) => ("single", 1),
                PoolKind::Sharded { shards, .. } => ("sharded", shards.len()),
                PoolKind::Cluster { seeds } => ("cluster", seeds.len()),
                PoolKind::Watched { primaries, .. } => ("watched", primaries.len()),
                PoolKind::ByPrefix { .. } | PoolKind::Subpool | PoolKind::Ended { .. } => {
                    ("none", 0)
                }
            };
            (prefix, subpool.strip, kind, count, subpool.reads.policy)
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
    let expected = expected
        .map(|(prefix, strip, kind, count, reads)| (prefix.to_owned(), strip, kind, count, reads));
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
        "r.toml:5:6: pool.all.prefixes: ``: is a prefix of every key",
        "r.toml:6:5: pool.all.prefixes: `a`: h:2 is in this pool already",
        "r.toml:7:5: pool.all.prefixes: `b`: must start in the database 2",
        "r.toml:8:5: pool.all.prefixes: `c`: h:2 is in this pool already",
        "r.toml:11:5: pool.all.prefixes: `f`: names the user `u` and no password",
        "r.toml:13:5: pool.all.prefixes: `h`: the primary `n` of h:6 is in this pool already",
        "r.toml:2:10: pool.all.listen: `0.0.0.0:1` is the address of the backend 127.0.0.1:1",
    ];
    for (told, expected) in told.iter().zip(expected) {
        assert!(told.starts_with(expected), "{expected}: {told}");
    }
    assert_eq!(told.len(), expected.len(), "{told:#?}");
    let many: String = (0..=PREFIXES_MAX)
        .map(|n| format!("p{n} = 'redis://h{n}'\n"))
        .collect();
    let file = format!("[pool.a]\nlisten = ':1'\nbackend = 'redis://h'\n[pool.a.prefixes]\n{many}");
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

/// Two pools in front of Clusters, for address maps.
const CLUSTERS: &str = "[pool.a]\nlisten = ':1'\nbackend = 'redis-cluster://h'\n\
                 [pool.b]\nlisten = ':2'\nbackend = 'redis-cluster://g'\n";

/// A pool's own map replaces that of all pools. Each mistake is a problem with its place.
#[test]
fn address_map_of_a_pool_replaces_that_of_all() {
    let maps = |config: Config| -> Vec<String> {
        let servers = config.pools.iter().map(|pool| match &pool.backend {
            Backend::Server(url) => (**url).clone(),
            Backend::Spawn(_) => panic!("not asked for"),
        });
        let settings = config.settings(&servers.collect::<Vec<_>>());
        let shown = |map: &AddressMap| {
            let entries = map.entries().iter().map(ToString::to_string);
            entries.collect::<Vec<_>>().join(" ")
        };
        let pools = settings.pools.iter();
        pools.map(|pool| shown(&pool.address_map)).collect()
    };
    let own =
        format!("address-map = ['x=y']\n{CLUSTERS}address-map = ['A:1=b:2', '[::1]:7-8=c:9']\n");
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
        let told = resolve(&format!("{text}\n{CLUSTERS}"), &[], &[]);
        let told = told.err().expect(text);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with(expected), "{told:?}");
    }
    for (text, expected) in [
        ("'a=b', 'a=c'", "r.toml:7:1: pool.b.address-map: `a` stands"),
        ("'a='", "r.toml:7:1: pool.b.address-map: needs a host"),
        ("", "r.toml:7:1: pool.b.address-map: is empty"),
    ] {
        let told = resolve(&format!("{CLUSTERS}address-map = [{text}]\n"), &[], &[]);
        let told = told.err().expect(text);
        assert!(told[0].starts_with(expected), "{told:?}");
    }
    let unused = good("", &[], &["--address-map=a=b"]).warnings;
    assert!(
        unused[0].starts_with("--address-map has no effect"),
        "{unused:?}"
    );
}

/// An entry of an address map must not lead to a listener.
#[test]
fn address_map_must_not_lead_to_a_listener() {
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
    // These entries lead to several addresses, or to one without a listener.
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
    let of_pool = format!("{CLUSTERS}address-map = ['x=127.0.0.1:1']\n");
    let told = resolve(&of_pool, &[], &[]).err().unwrap();
    assert!(
        told[0].starts_with("r.toml:7:1: pool.b.address-map: `x=127.0.0.1:1` leads to 0.0.0.0:1"),
        "{told:?}"
    );
}

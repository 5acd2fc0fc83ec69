//! `respool-lab servers`

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use super::{fail, read};
use crate::differ;
use crate::failover::Kind;
use crate::flags::Flag;
use crate::servers::{self, Flavour};
use crate::topologies::{
    Cluster, ClusterSettings, Sentinels, SentinelsSettings, Shards, cluster_url, sentinel_url,
    sharded_url,
};

const NAME: &str = "servers";
const ABOUT: &str = "\
respool-lab servers: several servers as respool can stand before them, for whoever wants to try or to test that.

Starts them on free ports, waits until they are what they should be, and writes two lines: how respool is told of
them (its --backend), and where those listen that were named in it. When standard input ends, so do they.

Usage: respool-lab servers [OPTIONS]
Example: respool-lab servers --kind cluster --server valkey-9.1";

struct Settings {
    kind: Kind,
    flavour: Flavour,
    args: Vec<String>,
}

const FLAGS: [&Flag<Settings>; 3] = [
    &Flag {
        name: "kind",
        value: Some("KIND"),
        help: "cluster, three primaries with a replica each; sentinel, a primary and a replica that three Sentinels \
               watch; sharded, two plain servers [cluster].",
        set: |settings, value| {
            let kind = Kind::ALL.into_iter().find(|kind| kind.name() == value);
            settings.kind = kind.ok_or("cluster, sentinel or sharded is expected")?;
            Ok(())
        },
    },
    &Flag {
        name: "server",
        value: Some("NAME"),
        help: "redis-6.2, redis-7.0, redis-8.2 or valkey-9.1 [redis-7.0].",
        set: |settings, value| {
            settings.flavour = differ::flavour(value)?;
            Ok(())
        },
    },
    &Flag {
        name: "server-arg",
        value: Some("ARG"),
        help: "One more argument for every server; may be repeated.",
        set: |settings, value| {
            settings.args.push(value.to_owned());
            Ok(())
        },
    },
];

/// After so long a silence a server is replaced: not while a client keeps it busy with a script.
const SILENCE: Duration = Duration::from_secs(15);
/// Plain servers of a sharded pool.
const SHARDS: usize = 2;

/// Runs it.
pub fn run(args: &[OsString]) -> ExitCode {
    let mut settings = Settings {
        kind: Kind::Cluster,
        flavour: Flavour::Redis70,
        args: Vec::new(),
    };
    if let Err(code) = read(NAME, ABOUT, &FLAGS, args, &mut settings) {
        return code;
    }
    match serve(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => fail(NAME, &problem),
    }
}

fn serve(settings: Settings) -> Result<(), String> {
    let binary = servers::find(settings.flavour)?;
    let args = settings.args;
    match settings.kind {
        Kind::Cluster => {
            let settings = ClusterSettings {
                node_timeout: SILENCE,
                args,
                ..ClusterSettings::default()
            };
            let cluster = Cluster::start(&binary, settings).map_err(|error| error.to_string())?;
            hold(cluster_url, &cluster.addresses());
        }
        Kind::Sentinel => {
            let settings = SentinelsSettings {
                watched: 1,
                down_after: SILENCE,
                args,
                ..SentinelsSettings::default()
            };
            let started = Sentinels::start(&binary, &settings);
            let sentinels = started.map_err(|error| error.to_string())?;
            let name = sentinels.watched(0).name();
            hold(|some| sentinel_url(some, name), &sentinels.addresses());
        }
        Kind::Sharded => {
            let started = Shards::start(&binary, SHARDS, &args);
            let shards = started.map_err(|error| error.to_string())?;
            hold(named, &shards.addresses());
        }
    }
    Ok(())
}

/// By names, keys are where they were at the last start, whatever ports are free.
fn named(addresses: &[SocketAddr]) -> String {
    let names: Vec<String> = (0..addresses.len())
        .map(|place| format!("s{place}"))
        .collect();
    format!("{}?names={}", sharded_url(addresses), names.join(","))
}

/// Says where they are, and returns when nobody needs them any more.
fn hold(url: impl Fn(&[SocketAddr]) -> String, addresses: &[SocketAddr]) {
    let listed: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    super::say(&format!("{}\n{}\n", url(addresses), listed.join(",")));
    let _ = std::io::stdout().flush();
    let mut ignored = [0; 1 << 10];
    while let Ok(1..) = std::io::stdin().read(&mut ignored) {}
}

//! `respool-lab servers`

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use respool_checker::differ;
use respool_testkit::scene::TopologyKind;
use respool_testkit::servers::{self, Flavour};
use respool_testkit::topologies::{
    ClusterSettings, Sentinels, SentinelsSettings, Shards, TestCluster, cluster_url, sentinel_url,
    sharded_url,
};

use super::{fail, read};
use crate::flags::kind;

const NAME: &str = "servers";
const ABOUT: &str = "\
respool-lab servers: several servers as respool can stand before them, to try or to test respool with them.

Starts them on free ports, waits until their topology is complete, and writes two lines: the
--backend of respool for them, and the addresses of the servers named in it. When standard input ends, so do they.

Usage: respool-lab servers [OPTIONS]
Example: respool-lab servers --kind cluster --server valkey-9.1";

#[derive(Args)]
struct ServersArgs {
    /// cluster, three primaries with a replica each; sentinel, a primary and a replica that three
    /// Sentinels watch; sharded, two plain servers.
    #[arg(long, value_parser = kind, default_value = "cluster")]
    kind: TopologyKind,
    /// redis-6.2, redis-7.0, redis-8.2 or valkey-9.1.
    #[arg(long, value_name = "NAME", value_parser = differ::flavour, default_value = "redis-7.0")]
    server: Flavour,
    /// One more argument for every server; may be repeated.
    #[arg(long = "server-arg", value_name = "ARG", allow_hyphen_values = true)]
    args: Vec<String>,
}

/// The silence after which a server is replaced: longer than a client's script keeps it busy.
const SILENCE: Duration = Duration::from_secs(15);
/// Plain servers of a sharded pool.
const SHARDS: usize = 2;

/// Runs it.
pub fn run(args: &[OsString]) -> ExitCode {
    let settings: ServersArgs = match read(NAME, ABOUT, args) {
        Ok(settings) => settings,
        Err(code) => return code,
    };
    match serve(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => fail(NAME, &problem),
    }
}

fn serve(settings: ServersArgs) -> Result<(), String> {
    let binary = servers::find(settings.server)?;
    let args = settings.args;
    match settings.kind {
        TopologyKind::Cluster => {
            let settings = ClusterSettings {
                node_timeout: SILENCE,
                args,
                ..ClusterSettings::default()
            };
            let cluster =
                TestCluster::start(&binary, settings).map_err(|error| error.to_string())?;
            hold(cluster_url, &cluster.addresses());
        }
        TopologyKind::Sentinel => {
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
        TopologyKind::Sharded => {
            let started = Shards::start(&binary, SHARDS, &args);
            let shards = started.map_err(|error| error.to_string())?;
            hold(named, &shards.addresses());
        }
    }
    Ok(())
}

/// Names for the servers. With them, keys belong to the same servers after each start, on any
/// ports.
fn named(addresses: &[SocketAddr]) -> String {
    let names: Vec<String> = (0..addresses.len())
        .map(|place| format!("s{place}"))
        .collect();
    format!("{}?names={}", sharded_url(addresses), names.join(","))
}

/// Prints their addresses. Returns when standard input ends.
fn hold(url: impl Fn(&[SocketAddr]) -> String, addresses: &[SocketAddr]) {
    let listed: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    super::say(&format!("{}\n{}\n", url(addresses), listed.join(",")));
    let _ = std::io::stdout().flush();
    let mut ignored = [0; 1 << 10];
    while let Ok(1..) = std::io::stdin().read(&mut ignored) {}
}

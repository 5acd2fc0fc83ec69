//! `respool-lab idle`

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::TcpStream;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use respool_testkit::tls_client::{TlsClient, TlsPeer};

use super::{fail, read};
use crate::case::LoadTarget;
use crate::cpu::{self, ProcessMemory};
use crate::figure;
use crate::load;
use crate::machine::{self, Machine};
use crate::options::{PlaceArgs, RunOptions, peer};
use crate::targets::{ProcessFacts, Programs, RunningTarget, TargetServers};

const NAME: &str = "idle";
const ABOUT: &str = "\
respool-lab idle: the memory that a proxy needs for a connected client without requests.

Opens connections through the proxy, each of which asks one PING to prove that it is served and then
does nothing, and reads the proxy's memory before and after (/proc/PID/smaps_rollup). A hundred connections
come first and do not count: they make the proxy touch code and tables that every later one shares.
The kernel's memory for a socket is not the proxy's and not in the figure.

Usage: respool-lab idle [OPTIONS]
Example: respool-lab idle --connections 4000 --peer twemproxy";

#[derive(Args)]
struct IdleArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Measure without respool.
    #[arg(long)]
    no_respool: bool,
    /// Another proxy: twemproxy, envoy, respool-tls, haproxy-tls, stunnel-tls, or
    /// NAME=HOST:PORT,PID for one that already runs before the same server. May be given several
    /// times.
    #[arg(long = "peer", value_name = "PEER", value_parser = peer)]
    peers: Vec<LoadTarget>,
}

/// A connection without requests.
#[expect(dead_code, reason = "held for its drop")]
enum IdleClient {
    Plain(TcpStream),
    Tls(Box<TlsClient>),
}

/// Connections that come first and do not count.
const FIRST: usize = 100;
/// The time in which a proxy settles once all connections are open.
const SETTLE: Duration = Duration::from_millis(500);

/// The result of one target.
#[derive(Debug, Serialize)]
struct IdleResult {
    target: String,
    facts: ProcessFacts,
    connections: usize,
    before: ProcessMemory,
    after: ProcessMemory,
    rss_bytes_per_connection: f64,
    pss_bytes_per_connection: f64,
}

#[derive(Debug, Serialize)]
struct IdleReport {
    format: u32,
    experiment: &'static str,
    started: String,
    machine: Machine,
    server: ProcessFacts,
    found: Vec<IdleResult>,
}

/// Runs it.
pub fn run(args: &[OsString]) -> ExitCode {
    let mut options = RunOptions {
        connections: vec![4000],
        threads: vec![1],
        ..RunOptions::default()
    };
    let given: IdleArgs = match read(NAME, ABOUT, args) {
        Ok(given) => given,
        Err(code) => return code,
    };
    given.place.apply(&mut options);
    options.is_without_respool = given.no_respool;
    let added = options.add_peers(given.peers);
    let report = match added.and_then(|()| measure(&options)) {
        Ok(report) => report,
        Err(problem) => return fail(NAME, &problem),
    };
    print!("{}", text(&report));
    match options.out.as_deref().map(|folder| write(&report, folder)) {
        Some(Err(problem)) => fail(NAME, &problem),
        _ => ExitCode::SUCCESS,
    }
}

fn measure(options: &RunOptions) -> Result<IdleReport, String> {
    let most = options.connections.iter().max().copied().unwrap_or(0);
    load::allow_descriptors(most + FIRST + 1000)?;
    let programs = Programs::find(
        options.respool.as_deref(),
        options.value_bytes,
        options.peers.iter(),
    )?;
    let started = machine::utc(machine::now());
    let machine = Machine::look();
    let server = TargetServers::start(&options.server, programs.certificates.as_deref())?;
    let mut targets: Vec<LoadTarget> = Vec::new();
    if !options.is_without_respool {
        targets.extend(
            options
                .threads
                .iter()
                .map(|&threads| LoadTarget::Respool { threads }),
        );
    }
    targets.extend(options.peers.iter().cloned());
    if targets.is_empty() {
        return Err("nothing to measure: no respool and no --peer".to_owned());
    }
    let mut found = Vec::new();
    for target in &targets {
        for &connections in &options.connections {
            // A new process each time, as processes seldom give memory back.
            let running = RunningTarget::start(target, &server, &programs)?;
            found.push(measure_one(&running, connections)?);
        }
    }
    Ok(IdleReport {
        format: 1,
        experiment: NAME,
        started,
        machine,
        server: server.facts,
        found,
    })
}

fn measure_one(running: &RunningTarget, connections: usize) -> Result<IdleResult, String> {
    let target = running.target.to_string();
    let pid = running
        .pid
        .ok_or_else(|| format!("{target} has no process of its own"))?;
    let tls = running.ca.as_ref().map(|ca| TlsPeer::trusting(ca).config());
    let tls = tls.transpose().map_err(|error| error.to_string())?;
    let connect = || -> io::Result<IdleClient> {
        let Some(config) = &tls else {
            return load::open_and_ping(running.address).map(IdleClient::Plain);
        };
        let mut client = TlsClient::open(running.address, "localhost", Arc::clone(config))?;
        client.try_call("PING")?;
        Ok(IdleClient::Tls(Box::new(client)))
    };
    let open = |count: usize| -> Result<Vec<IdleClient>, String> {
        let one = |place| {
            connect().map_err(|error| format!("{target}: connection {place} of {count}: {error}"))
        };
        (1..=count).map(one).collect()
    };
    let memory = || {
        std::thread::sleep(SETTLE);
        cpu::read_memory(pid).map_err(|error| format!("{target}: {error}"))
    };
    let _first = open(FIRST)?;
    let before = memory()?;
    let _idle = open(connections)?;
    let after = memory()?;
    let each = |before: u64, after: u64| (after as f64 - before as f64) / connections as f64;
    Ok(IdleResult {
        target,
        facts: running
            .facts
            .clone()
            .ok_or("a target that is a process has facts")?,
        connections,
        before,
        after,
        rss_bytes_per_connection: each(before.rss_bytes, after.rss_bytes),
        pss_bytes_per_connection: each(before.pss_bytes, after.pss_bytes),
    })
}

fn text(report: &IdleReport) -> String {
    let mut text = format!(
        "Memory per idle connection\n{} · {} · {}\n\n{:<20} {:>11} {:>12} {:>12} {:>14} {:>14}\n",
        report.started,
        report.machine.cpu,
        report.server.version,
        "target",
        "connections",
        "before KiB",
        "after KiB",
        "RSS bytes each",
        "PSS bytes each"
    );
    for found in &report.found {
        text.push_str(&format!(
            "{:<20} {:>11} {:>12} {:>12} {:>14} {:>14}\n",
            found.target,
            figure::count(found.connections as f64),
            figure::count(found.before.rss_bytes as f64 / 1024.0),
            figure::count(found.after.rss_bytes as f64 / 1024.0),
            figure::count(found.rss_bytes_per_connection),
            figure::count(found.pss_bytes_per_connection)
        ));
    }
    text
}

fn write(report: &IdleReport, folder: &Path) -> Result<(), String> {
    let json = serde_json::to_string_pretty(report).map_err(|error| error.to_string())?;
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(folder.join("idle.json"), json))
        .map_err(|error| format!("{}: {error}", folder.display()))
}

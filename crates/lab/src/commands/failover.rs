//! `respool-lab failover`

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use respool_checker::differ;
use respool_testkit::scene::{By, TopologyKind};
use respool_testkit::servers::Flavour;

use super::experiment::{failed, new_folder, show, stop_flag, style};
use super::{fail, read};
use crate::failover::{self, ABOUT, FailoverSettings, NAME, READS, TITLE, Through, page};
use crate::flags::{WIDTH, kind, positive, seconds, threads, wrap};
use crate::run::command_line;

#[derive(Args)]
struct FailoverArgs {
    /// The servers behind the proxy: cluster, three primaries with a replica each; sentinel, a
    /// primary and a replica that three Sentinels watch; sharded, three plain servers, of which one
    /// comes back empty.
    #[arg(long, value_parser = kind, default_value = "cluster")]
    kind: TopologyKind,
    /// How the server goes: SIGKILL; SIGSTOP, its connections stay and nothing answers; or CLUSTER
    /// FAILOVER or SENTINEL FAILOVER, while it runs.
    #[arg(long, value_name = "kill|freeze|command", value_parser = by, default_value = "kill")]
    by: By,
    /// The proxy; Envoy, to compare with, before a Cluster alone.
    #[arg(long, value_name = "respool|envoy", value_parser = through, default_value = "respool")]
    through: Through,
    /// The primaries of a Cluster answer for their own slots while no node has those of the failed
    /// one (cluster-require-full-coverage no). Without it no keys are served until a candidate is
    /// there.
    #[arg(long)]
    partial: bool,
    /// How often, each time with new servers.
    #[arg(long, value_name = "N", value_parser = positive::<u32>, default_value_t = 3)]
    rounds: u32,
    /// Requests a second that are due, over all clients.
    #[arg(long, value_name = "N", value_parser = positive::<f64>, default_value = "2000")]
    rate: f64,
    /// Connections that write, one request at a time.
    #[arg(long, value_name = "N", value_parser = positive::<usize>, default_value_t = 8)]
    writers: usize,
    /// Connections that read.
    #[arg(long, value_name = "N", value_parser = positive::<usize>, default_value_t = 8)]
    readers: usize,
    /// Keys that are written, and as many that are read.
    #[arg(long, value_name = "N", value_parser = positive::<usize>, default_value_t = 240)]
    keys: usize,
    /// Seconds of load before the failure.
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "1")]
    before: f64,
    /// Seconds of load behind it: more than the servers need.
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "6")]
    after: f64,
    /// Seconds after which a plain server comes back.
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "1")]
    down: f64,
    /// The silence after which other nodes or Sentinels take a server for failed, milliseconds.
    #[arg(long, value_name = "MS", value_parser = positive::<u64>, default_value_t = 1500)]
    silence: u64,
    /// Where respool reads: primary, replica, prefer-primary, prefer-replica or nearest. With the
    /// last three a read that fails fails the run.
    #[arg(long, value_name = "POLICY", value_parser = reads, default_value = READS[0])]
    reads: String,
    /// Workers of respool.
    #[arg(long, value_name = "N", value_parser = threads, default_value_t = 1)]
    threads: u16,
    /// redis-6.2, redis-7.0, redis-8.2 or valkey-9.1.
    #[arg(long, value_name = "NAME", value_parser = differ::flavour, default_value = "redis-7.0")]
    server: Flavour,
    /// The proxy's binary [next to respool-lab, or in PATH].
    #[arg(long, value_name = "PATH")]
    respool: Option<PathBuf>,
    /// One more argument for respool serve; may be repeated.
    #[arg(long = "respool-arg", value_name = "ARG", allow_hyphen_values = true)]
    respool_args: Vec<String>,
    /// Where the files go [a new folder in lab-out].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl FailoverArgs {
    fn settings(&self) -> FailoverSettings {
        FailoverSettings {
            kind: self.kind,
            by: self.by,
            through: self.through,
            is_partial: self.partial,
            rounds: self.rounds,
            rate: self.rate,
            writers: self.writers,
            readers: self.readers,
            keys: self.keys,
            before_s: self.before,
            after_s: self.after,
            down_s: self.down,
            silence: Duration::from_millis(self.silence),
            reads: self.reads.clone(),
            threads: self.threads,
            respool_args: self.respool_args.clone(),
            flavour: self.server.name().to_owned(),
        }
    }
}

fn by(value: &str) -> Result<By, &'static str> {
    let by = By::ALL.into_iter().find(|by| by.name() == value);
    by.ok_or("kill, freeze or command is expected")
}

fn through(value: &str) -> Result<Through, &'static str> {
    let mut all = [Through::Respool, Through::Envoy].into_iter();
    let through = all.find(|through| through.name() == value);
    through.ok_or("respool or envoy is expected")
}

fn reads(value: &str) -> Result<String, String> {
    match READS.contains(&value) {
        true => Ok(value.to_owned()),
        false => Err(format!("one of {} is expected", READS.join(", "))),
    }
}

/// Runs it.
pub fn run(args: &[OsString]) -> ExitCode {
    let arguments: FailoverArgs = match read(NAME, &about(), args) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match measured(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => fail(NAME, &problem),
    }
}

fn measured(arguments: &FailoverArgs) -> Result<(), String> {
    let stop = stop_flag()?;
    let respool = arguments.respool.as_deref();
    let report = failover::run(&arguments.settings(), respool, command_line(), &stop)?;
    let folder = arguments.out.clone();
    let folder = folder.unwrap_or_else(|| new_folder(NAME, &report.started));
    show(page::text(&report, style()), &folder, report.write(&folder))?;
    failed(&report.failures).map_or(Ok(()), Err)
}

fn about() -> String {
    let ends = "\
For each round: the first and the last error, how long no write was acknowledged, when the candidate took a write directly and when \
the proxy had one acknowledged, errors by their first word, and which writes are in the servers at the end. A picture of each shows times \
and errors over time. Exits with 1 when a reply was wrong, when a write was executed twice or though its client was told that it \
was not, when a Cluster lost an acknowledged one by a command, and when a read failed that a replica could answer; not for errors of writes, and not for a bar that was missed.";
    let [about, ends] = [ABOUT, ends].map(|text| wrap(text, WIDTH).join("\n"));
    format!(
        "respool-lab failover: {TITLE}\n\n{about}\n\n{ends}\n\nUsage: respool-lab failover [OPTIONS]\nExamples:\n  \
         respool-lab failover\n  respool-lab failover --by command --rounds 5\n  \
         respool-lab failover --partial --through envoy\n  \
         respool-lab failover --kind sharded --down 0.5 --after 3"
    )
}

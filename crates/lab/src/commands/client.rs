//! `respool-lab client`

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use respool_testkit::servers::ServerProcess;

use super::{fail, read, say};
use crate::clients::peers::{self, ClientLibrary, PeerPrograms};
use crate::clients::{self, CaseResult, ClientCase, ClientVerb, ClientsReport, PeerReport};
use crate::flags::positive;
use crate::targets::ServerChoice;

const NAME: &str = "client";
const ABOUT: &str = "\
respool-lab client: respool as a library beside other client libraries.

Each library runs the same loop in a process of its own before the same server. The rounds are
interleaved, and every round runs every library once. A ratio is the median of the ratios within a
round to the library that it is compared with. A library that is not installed is named.

The libraries for Java are in a jar that `make java-peers` builds. Only Java 21 and later has
virtual threads.

Usage: respool-lab client [OPTIONS]
Example: respool-lab client --callers 1,200 --verbs get,set --rounds 5 --json clients.json
         respool-lab client --only Java --java /usr/lib/jvm/NAME/bin/java";

#[derive(Args)]
struct ClientArgs {
    /// Threads or tasks, each with one request at a time.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = positive::<u32>,
          default_values_t = [1, 8, 50, 200, 1_000])]
    callers: Vec<u32>,
    /// The requests.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum,
          default_values_t = [ClientVerb::Get, ClientVerb::Set, ClientVerb::Mget, ClientVerb::Mset, ClientVerb::Large])]
    verbs: Vec<ClientVerb>,
    /// Rounds.
    #[arg(long, value_name = "N", value_parser = positive::<u32>, default_value_t = 5)]
    rounds: u32,
    /// The measured time of a round, seconds.
    #[arg(long, value_name = "S", default_value_t = 1.5)]
    seconds: f64,
    /// Only libraries whose names have one of these words.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    only: Vec<String>,
    #[command(flatten)]
    programs: PeerPrograms,
    /// One round of 0.3 seconds with 1 and 50 callers, GET alone.
    #[arg(long)]
    quick: bool,
    /// Writes all figures to a file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl ClientArgs {
    fn cases(&self) -> Vec<ClientCase> {
        let (callers, verbs, seconds) = match self.quick {
            true => (&[1, 50][..], &[ClientVerb::Get][..], 0.3),
            false => (&self.callers[..], &self.verbs[..], self.seconds),
        };
        let of_verb = |verb: &ClientVerb| {
            let verb = *verb;
            callers.iter().map(move |callers| ClientCase {
                callers: *callers as usize,
                verb,
                seconds,
            })
        };
        verbs.iter().flat_map(of_verb).collect()
    }

    fn rounds(&self) -> u32 {
        if self.quick { 1 } else { self.rounds }
    }
}

/// Runs it.
pub fn run(args: &[OsString]) -> ExitCode {
    let given: ClientArgs = match read(NAME, ABOUT, args) {
        Ok(given) => given,
        Err(code) => return code,
    };
    match measure(&given) {
        Ok(report) if report.failures.is_empty() => ExitCode::SUCCESS,
        Ok(report) => fail(NAME, &report.failures.join("\n")),
        Err(problem) => fail(NAME, &problem),
    }
}

/// Runs the loop of a library: a process of `respool-lab client`.
pub fn load(args: &[OsString]) -> ExitCode {
    super::end_with_parent();
    let words: Vec<String> = args
        .iter()
        .map(|arg| arg.to_string_lossy().into_owned())
        .collect();
    match clients::load::run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => fail("client-load", &problem),
    }
}

fn measure(given: &ClientArgs) -> Result<ClientsReport, String> {
    let mut report = ClientsReport::default();
    let peers = installed(given, &mut report)?;
    let server = ServerProcess::start::<&str>(&ServerChoice::Found.binary()?, &[]);
    let server = server.map_err(|error| error.to_string())?;
    let url = format!("redis://{}", server.address());
    for case in given.cases() {
        let mut result = CaseResult {
            case,
            peers: peers.iter().map(empty).collect(),
        };
        for round in 0..given.rounds() as usize {
            for nth in 0..peers.len() {
                // Each library is the first one in some round.
                let at = (nth + round) % peers.len();
                let outcome = clients::run_once(&peers[at], &url, case, server.pid());
                let outcome = outcome.map_err(|problem| {
                    let (callers, verb) = (case.callers, case.verb.name());
                    report
                        .failures
                        .push(format!("{callers} callers, {verb}: {problem}"));
                });
                result.peers[at].rounds.push(outcome.ok());
            }
        }
        let table = result.table();
        say(&format!("{}\n{}\n", table.caption, table.text()));
        report.cases.push(result);
    }
    let bars = clients::bars::table(&report).filter(|_| !given.quick);
    if let Some(bars) = bars {
        say(&format!("{}\n{}\n", bars.caption, bars.text()));
    }
    for missing in &report.missing {
        say(&format!("missing: {missing}\n"));
    }
    if let Some(file) = &given.json {
        let text = serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?;
        std::fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(report)
}

fn empty(peer: &ClientLibrary) -> PeerReport {
    PeerReport {
        peer: peer.name.to_owned(),
        base: peer.base.to_owned(),
        rounds: Vec::new(),
    }
}

/// The libraries that can run here. The report names the others.
fn installed(given: &ClientArgs, report: &mut ClientsReport) -> Result<Vec<ClientLibrary>, String> {
    let mut peers = peers::all(&given.programs)?;
    let is_named = |peer: &ClientLibrary| given.only.iter().any(|word| peer.name.contains(word));
    peers.retain(|peer| given.only.is_empty() || is_named(peer));
    peers.retain(|peer| match clients::probe(peer) {
        Ok(()) => true,
        Err(reason) => {
            report.missing.push(format!("{}: {reason}", peer.name));
            false
        }
    });
    match peers.is_empty() {
        true => Err(format!("no library can run: {}", report.missing.join("; "))),
        false => Ok(peers),
    }
}

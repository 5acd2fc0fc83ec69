//! Client libraries beside each other: the same loop in each, as a process of its own.
//!
//! A round runs every peer once, in an order that turns. A peer opens its connections, warms up,
//! and says `ready`. Then the lab reads the CPU of the peer and of the server, and the peer runs
//! for the time of the case. Ratios are those within a round, so the machine's load cancels out.

pub mod bars;
pub mod load;
pub mod peers;

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::cpu;
use crate::figure::{self, quantile};
use crate::table::{Table, heads};
use peers::ClientLibrary;

/// The requests of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ClientVerb {
    /// GET of 64 bytes.
    Get,
    /// SET of 64 bytes.
    Set,
    /// MGET of 100 keys of 64 bytes.
    Mget,
    /// MSET of 100 keys of 64 bytes.
    Mset,
    /// GET of 16 KiB.
    Large,
}

impl ClientVerb {
    /// The verb's name on command lines and in files.
    pub fn name(self) -> &'static str {
        match self {
            ClientVerb::Get => "get",
            ClientVerb::Set => "set",
            ClientVerb::Mget => "mget",
            ClientVerb::Mset => "mset",
            ClientVerb::Large => "large",
        }
    }

    /// The bytes of a value.
    pub fn value_bytes(self) -> usize {
        match self {
            ClientVerb::Large => 16 << 10,
            _ => 64,
        }
    }
}

/// A case. It is the same for all peers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientCase {
    /// Threads or tasks, each with one request at a time.
    pub callers: usize,
    /// The requests of the callers.
    pub verb: ClientVerb,
    /// The measured time of a round, seconds.
    pub seconds: f64,
}

/// The line with which a peer ends.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LoopResult {
    /// Answered requests.
    pub requests: u64,
    /// Requests that failed.
    pub errors: u64,
    /// The time from the first request to the last reply, seconds.
    pub seconds: f64,
    /// Median time of a request, microseconds.
    pub p50_us: f64,
    /// The time that 1 in 100 requests exceeds, microseconds.
    pub p99_us: f64,
}

/// One run of a peer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PeerRound {
    /// Requests a second.
    pub per_s: f64,
    /// Median time of a request, microseconds.
    pub p50_us: f64,
    /// The time that 1 in 100 requests exceeds, microseconds.
    pub p99_us: f64,
    /// CPU time of the peer's process for each request, microseconds.
    pub client_us: f64,
    /// CPU time of the server for each request, microseconds.
    pub server_us: f64,
}

/// The rounds of a peer in a case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PeerReport {
    /// The name of the peer.
    pub peer: String,
    /// The name of the peer with which this peer is compared.
    pub base: String,
    /// The result of each round; `None`: the round failed.
    pub rounds: Vec<Option<PeerRound>>,
}

/// The peers in a case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CaseResult {
    /// The case.
    pub case: ClientCase,
    /// The results of the peers that ran.
    pub peers: Vec<PeerReport>,
}

/// The result of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClientsReport {
    /// The result of each case.
    pub cases: Vec<CaseResult>,
    /// Peers that did not run, with the reason.
    pub missing: Vec<String>,
    /// Errors of the rounds that failed.
    pub failures: Vec<String>,
}

/// Runs a peer once.
///
/// # Errors
/// The peer does not start, ends early, or one of its requests fails. The text names the peer.
pub fn run_once(
    peer: &ClientLibrary,
    url: &str,
    case: ClientCase,
    server: u32,
) -> Result<PeerRound, String> {
    let failed = |error: io::Error| format!("{}: {error}", peer.name);
    let mut process = LoadProcess::start(peer.command(url, case)).map_err(failed)?;
    process.wait_for("ready").map_err(failed)?;
    let pid = process.child.id();
    let before = (
        cpu::read(pid).map_err(failed)?,
        cpu::read(server).map_err(failed)?,
    );
    process.say("go").map_err(failed)?;
    let line = process.line().map_err(failed)?;
    // The peer waits to be killed, so the CPU times of its threads can still be read.
    let after = (
        cpu::read(pid).map_err(failed)?,
        cpu::read(server).map_err(failed)?,
    );
    let result: LoopResult =
        serde_json::from_str(&line).map_err(|error| format!("{}: {error}: {line}", peer.name))?;
    if result.errors > 0 || result.requests == 0 {
        let LoopResult {
            errors, requests, ..
        } = result;
        return Err(format!(
            "{}: {errors} errors, {requests} replies",
            peer.name
        ));
    }
    let us = |used: cpu::CpuUsage| used.us_per_request(result.requests).unwrap_or(f64::NAN);
    Ok(PeerRound {
        per_s: result.requests as f64 / result.seconds,
        p50_us: result.p50_us,
        p99_us: result.p99_us,
        client_us: us(after.0.since(&before.0)),
        server_us: us(after.1.since(&before.1)),
    })
}

/// Whether a peer can run here. `Err`: the reason why not.
///
/// # Errors
/// The error output of the peer.
pub fn probe(peer: &ClientLibrary) -> Result<(), String> {
    let mut command = peer.probe()?;
    let program = command.get_program().to_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{}: {error}", program.display()))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            Err(said
                .lines()
                .last()
                .unwrap_or("it ends with an error")
                .to_owned())
        }
    }
}

/// A peer's process. It is killed when dropped.
struct LoadProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl LoadProcess {
    fn start(mut command: Command) -> io::Result<LoadProcess> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take();
        let (Some(input), Some(output)) = (input, output) else {
            return Err(io::Error::other("its pipes are missing"));
        };
        let output = BufReader::new(output);
        Ok(LoadProcess {
            child,
            input,
            output,
        })
    }

    fn say(&mut self, word: &str) -> io::Result<()> {
        writeln!(self.input, "{word}")
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.output.read_line(&mut line)? {
            0 => Err(io::Error::other("it has ended early")),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    fn wait_for(&mut self, word: &str) -> io::Result<()> {
        let line = self.line()?;
        match line == word {
            true => Ok(()),
            false => Err(io::Error::other(format!("it says {line:?}, not {word:?}"))),
        }
    }
}

impl Drop for LoadProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl CaseResult {
    fn rounds_of(&self, name: &str) -> Option<&[Option<PeerRound>]> {
        let peer = self.peers.iter().find(|peer| peer.peer == name)?;
        Some(&peer.rounds)
    }

    /// The median over the rounds of the ratio of a figure of a peer to that of another one.
    pub fn ratio(&self, peer: &str, base: &str, figure: fn(&PeerRound) -> f64) -> Option<f64> {
        let rounds = self.rounds_of(peer)?.iter().zip(self.rounds_of(base)?);
        let ratios =
            rounds.filter_map(|(one, other)| Some(figure(one.as_ref()?) / figure(other.as_ref()?)));
        median(ratios)
    }

    /// Its table.
    pub fn table(&self) -> Table {
        let case = self.case;
        let rows = self.peers.iter().map(|peer| {
            let of =
                |figure: fn(&PeerRound) -> f64| median(peer.rounds.iter().flatten().map(figure));
            let ratio = |figure| match peer.peer == peer.base {
                true => String::new(),
                false => self
                    .ratio(&peer.peer, &peer.base, figure)
                    .map_or(String::new(), figure::fine),
            };
            let fine = |value: Option<f64>| value.map_or("failed".to_owned(), figure::fine);
            vec![
                peer.peer.clone(),
                of(|round| round.per_s).map_or("failed".to_owned(), figure::count),
                ratio(|round| round.per_s),
                fine(of(|round| round.p50_us)),
                fine(of(|round| round.p99_us)),
                ratio(|round| round.p50_us),
                fine(of(|round| round.client_us)),
                ratio(|round| round.client_us),
                fine(of(|round| round.server_us)),
                ratio(|round| round.server_us),
            ]
        });
        Table {
            caption: format!("{} callers, {}", case.callers, case.verb.name()),
            groups: Vec::new(),
            head: heads(&[
                "client",
                "requests/s",
                "/ base",
                "p50 µs",
                "p99 µs",
                "/ base",
                "client CPU µs",
                "/ base",
                "server CPU µs",
                "/ base",
            ]),
            rows: rows.collect(),
            words: 1,
            together: 0,
        }
    }
}

fn median(figures: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = figures.filter(|figure| figure.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    (!sorted.is_empty()).then(|| quantile(&sorted, 0.5))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(per_s: f64) -> Option<PeerRound> {
        Some(PeerRound {
            per_s,
            p50_us: 1.0,
            p99_us: 2.0,
            client_us: 3.0,
            server_us: 4.0,
        })
    }

    /// A ratio is the median of those within a round, and a failed round has none.
    #[test]
    fn ratios_are_those_within_a_round() {
        let peer = |name: &str, rounds| PeerReport {
            peer: name.to_owned(),
            base: "slow".to_owned(),
            rounds,
        };
        let case = ClientCase {
            callers: 1,
            verb: ClientVerb::Get,
            seconds: 1.0,
        };
        let slow = peer("slow", vec![round(10.0), round(1.0), round(100.0), None]);
        let fast = peer(
            "fast",
            vec![round(20.0), round(3.0), round(400.0), round(9.0)],
        );
        let result = CaseResult {
            case,
            peers: vec![slow, fast],
        };
        assert_eq!(result.ratio("fast", "slow", |round| round.per_s), Some(3.0));
        assert_eq!(result.ratio("fast", "none", |round| round.per_s), None);
        assert_eq!(result.table().rows[1][2], figure::fine(3.0));
        assert_eq!(result.table().rows[0][2], "");
    }
}

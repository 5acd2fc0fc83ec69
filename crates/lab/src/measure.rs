//! One measurement: a workload against a running target, by one of the generators.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use respool_testkit::children;
use respool_testkit::servers;
use respool_testkit::time::clock_ns;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::case::{LoadGenerator, LoadTarget, Verb, Workload};
use crate::counters::CounterTotals;
use crate::cpu::{self, CpuUsage, MachineReading, Reading};
use crate::load::{Latency, LoadEvent, LoadResult};
use crate::report::{RateSample, Round};
use crate::tape::{TapeRecipe, TapeValues};
use crate::targets::{Inspector, Programs, RunningTarget, Tally, TargetServers};

/// How to measure, for all cases of a run.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// The program that makes the load.
    pub generator: LoadGenerator,
    /// Threads that make it.
    pub generator_threads: usize,
    /// Seconds before the window.
    pub warmup_s: f64,
    /// Seconds of the window.
    pub seconds: f64,
    /// Different keys.
    pub keys: u32,
    /// Chosen by Zipf's law with this exponent; `None`: evenly.
    pub zipf: Option<f64>,
    /// Size of each value.
    pub value_bytes: usize,
    /// Requests a second; `None`: closed loop.
    pub rate: Option<f64>,
    /// When the run began, by [`clock_ns`].
    pub origin_ns: u64,
}

impl Manner {
    /// The requests for such a target under such a workload.
    pub fn recipe(&self, workload: Workload, target: &LoadTarget) -> TapeRecipe {
        TapeRecipe {
            verb: workload.verb,
            pipeline: workload.pipeline,
            keys: self.keys,
            zipf: self.zipf,
            value_bytes: self.value_bytes,
            values: match target {
                LoadTarget::Floor => TapeValues::Filler,
                _ => TapeValues::OfKey,
            },
        }
    }
}

/// Measures once, with all keys written.
///
/// # Errors
/// One line: the failure, or that `stop` was set meanwhile.
pub fn measure(
    workload: Workload,
    target: &RunningTarget,
    server: &TargetServers,
    programs: &Programs,
    manner: &Manner,
    stop: &AtomicBool,
) -> Result<Round, String> {
    let recipe = manner.recipe(workload, &target.target);
    let has_server = target.target.has_server();
    let behind = if has_server { &server.servers[..] } else { &[] };
    let watched = WatchedProcesses {
        servers: behind.iter().map(|server| server.pid).collect(),
        proxy: target.pid,
        inspectors: behind
            .iter()
            .filter_map(|server| Inspector::connect(server.address).ok())
            .collect(),
        counts: if target.target.is_respool() {
            Inspector::connect(target.address).ok()
        } else {
            None
        },
    };
    match manner.generator {
        LoadGenerator::Own => by_own(&recipe, workload, target, programs, manner, watched, stop),
        LoadGenerator::RedisBenchmark => {
            by_redis_benchmark(workload, target, manner, watched, stop)
        }
    }
}

/// Cores that other processes on the machine used, and cores that the hypervisor took, between two
/// readings.
fn others(
    start: Option<(u64, MachineReading)>,
    end: Option<(u64, MachineReading)>,
    ours: f64,
) -> (Option<f64>, Option<f64>) {
    let (Some((start_ns, start)), Some((end_ns, end))) = (start, end) else {
        return (None, None);
    };
    let seconds = end_ns.saturating_sub(start_ns).max(1) as f64 / 1e9;
    let busy = (end.busy_s - start.busy_s) / seconds;
    // Ticks against nanoseconds may give slightly less than zero.
    (
        Some((busy - ours).max(0.0)),
        Some((end.stolen_s - start.stolen_s) / seconds),
    )
}

fn look_at_machine() -> Option<(u64, MachineReading)> {
    Some((clock_ns(), cpu::read_machine().ok()?))
}

/// The processes whose CPU is read, and the servers that are asked for their counters.
struct WatchedProcesses {
    /// All servers count as one; empty without a server.
    servers: Vec<u32>,
    proxy: Option<u32>,
    /// One for each server that could be reached.
    inspectors: Vec<Inspector>,
    /// Reads the counters of a respool.
    counts: Option<Inspector>,
}

impl WatchedProcesses {
    /// The counters of the servers now; `None`: one of them did not answer.
    fn tally(&mut self) -> Option<Tally> {
        if self.servers.is_empty() || self.inspectors.len() < self.servers.len() {
            return None;
        }
        let mut sum = Tally::default();
        for inspector in &mut self.inspectors {
            let tally = inspector.tally().ok()?;
            sum.commands += tally.commands;
            sum.key_reads += tally.key_reads;
        }
        Some(sum)
    }

    /// respool's counters now. Workers publish all their counters at once, ten times a second. So
    /// counts of the same requests fit together, though they are late by up to that time.
    fn counters(&mut self) -> Option<CounterTotals> {
        let info = self.counts.as_mut()?.info("respool").ok()?;
        Some(CounterTotals::read(&info))
    }

    /// Commands that the servers have executed so far, and the time of that answer.
    fn commands(&mut self) -> Option<(u64, u64)> {
        let tally = self.tally()?;
        Some((clock_ns(), tally.commands))
    }
}

fn commands_per_s(start: Option<(u64, u64)>, end: Option<(u64, u64)>) -> Option<f64> {
    let ((start_ns, start), (end_ns, end)) = (start?, end?);
    let seconds = end_ns.checked_sub(start_ns).filter(|&ns| ns > 0)? as f64 / 1e9;
    Some(end.saturating_sub(start) as f64 / seconds)
}

/// respool's counters between two readings.
fn grown(start: Option<CounterTotals>, end: Option<CounterTotals>) -> Option<CounterTotals> {
    Some(end?.since(&start?))
}

/// The server's counters between two readings.
fn since(start: Option<Tally>, end: Option<Tally>) -> Option<Tally> {
    let (start, end) = (start?, end?);
    Some(Tally {
        commands: end.commands.checked_sub(start.commands)?,
        key_reads: end.key_reads.checked_sub(start.key_reads)?,
    })
}

fn by_own(
    recipe: &TapeRecipe,
    workload: Workload,
    target: &RunningTarget,
    programs: &Programs,
    manner: &Manner,
    mut watched: WatchedProcesses,
    stop: &AtomicBool,
) -> Result<Round, String> {
    let mut command = Command::new(&programs.lab);
    command.args(["load", "--child", "--progress"]);
    command.args(["--target", &target.address.to_string()]);
    match recipe.verb {
        Verb::Get => command.arg("--get"),
        Verb::Set => command.arg("--set"),
        Verb::Multi => command.arg("--multi"),
        Verb::Mget(keys) => command.args(["--mget", &keys.to_string()]),
        Verb::Mset(keys) => command.args(["--mset", &keys.to_string()]),
    };
    command.args([
        "--values",
        if recipe.values == TapeValues::Filler {
            "filler"
        } else {
            "key"
        },
    ]);
    let rate = manner.rate.map(|rate| rate.to_string());
    let zipf = manner.zipf.map(|theta| theta.to_string());
    let ca = target.ca.as_ref().map(|file| file.display().to_string());
    let servers = watched.servers.iter().map(|pid| ("server", pid));
    for (name, pid) in servers.chain(watched.proxy.iter().map(|pid| ("proxy", pid))) {
        command.args(["--watch", &format!("{name}={pid}")]);
    }
    for (flag, value) in [
        ("--connections", Some(workload.connections.to_string())),
        ("--pipeline", Some(workload.pipeline.to_string())),
        ("--keys", Some(manner.keys.to_string())),
        ("--value-bytes", Some(manner.value_bytes.to_string())),
        ("--warmup", Some(manner.warmup_s.to_string())),
        ("--seconds", Some(manner.seconds.to_string())),
        ("--threads", Some(manner.generator_threads.to_string())),
        ("--rate", rate),
        ("--tls-ca", ca),
        ("--zipf", zipf),
    ] {
        if let Some(value) = value {
            command.args([flag, &value]);
        }
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let before = watched.tally();
    let child = children::spawn(command).map_err(|error| format!("the generator: {error}"))?;
    let mut child = Reaped(child);
    let stdout = child.0.stdout.take().ok_or("the generator has no output")?;
    let mut sampler = Sampler::new(&watched, child.0.id(), manner.origin_ns);
    let mut commands = (None, None);
    let mut machine = (None, None);
    let mut counters = (None, None);
    let mut result: Option<LoadResult> = None;
    for line in BufReader::new(stdout).lines() {
        let line = line.map_err(|error| format!("the generator: {error}"))?;
        if stop.load(Ordering::Relaxed) {
            return Err(STOPPED.to_owned());
        }
        match serde_json::from_str(&line) {
            Ok(LoadEvent::Start { at_ns }) => {
                commands.0 = watched.commands();
                machine.0 = look_at_machine();
                counters.0 = watched.counters();
                sampler.start(at_ns);
            }
            Ok(LoadEvent::Progress { at_ns, requests }) => sampler.sample(at_ns, requests),
            Ok(LoadEvent::End { .. }) => {
                machine.1 = look_at_machine();
                counters.1 = watched.counters();
                commands.1 = watched.commands();
            }
            Ok(LoadEvent::Result(last)) => result = Some(*last),
            Err(error) => return Err(format!("the generator said {line:?}: {error}")),
        }
    }
    let complaint = child.complaint();
    let status = child
        .0
        .wait()
        .map_err(|error| format!("the generator: {error}"))?;
    let Some(result) = result else {
        return Err(if complaint.is_empty() {
            format!("the generator ended with {status}")
        } else {
            complaint
        });
    };
    let counted = since(before, watched.tally());
    let usage = |name: &str| {
        let found = result.usage.iter().find(|(n, _)| n == name);
        found.map(|(_, usage)| usage.clone())
    };
    let ours: f64 = result.usage.iter().map(|(_, usage)| usage.used_s).sum();
    let (others, stolen) = others(machine.0, machine.1, ours / result.seconds);
    Ok(Round {
        number: 0,
        others,
        stolen,
        start_s: sampler.start_s,
        seconds: result.seconds,
        requests: result.requests,
        requests_per_s: result.requests as f64 / result.seconds,
        rate: result.rate,
        wrong: result.wrong,
        first_wrong: result.first_wrong.clone(),
        unfinished: result.unfinished,
        stalled: result.stalled,
        latency: result.latency.clone(),
        server: usage("server"),
        proxy: usage("proxy"),
        generator: usage("generator").ok_or("the generator does not report its own CPU")?,
        server_commands_per_s: commands_per_s(commands.0, commands.1),
        answered: Some(result.answered),
        server_commands: counted.map(|tally| tally.commands),
        server_key_reads: counted.map(|tally| tally.key_reads),
        counters: grown(counters.0, counters.1),
        samples: sampler.samples,
    })
}

/// The result of a run that was told to stop.
pub const STOPPED: &str = "stopped";

/// A child that does not outlive its measurement.
struct Reaped(Child);

impl Reaped {
    /// Its standard error, once it has ended: a line or two.
    fn complaint(&mut self) -> String {
        let mut text = String::new();
        if let Some(stderr) = &mut self.0.stderr {
            let _ = stderr.take(64 << 10).read_to_string(&mut text);
        }
        text.trim().to_owned()
    }
}

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads the CPU of all processes each time the generator reports progress.
struct Sampler {
    pids: [Vec<u32>; 3],
    origin_ns: u64,
    start_s: f64,
    last_requests: (u64, u64),
    last_cpu: (u64, [Option<Reading>; 3]),
    samples: Vec<RateSample>,
}

impl Sampler {
    fn new(watched: &WatchedProcesses, generator: u32, origin_ns: u64) -> Sampler {
        Sampler {
            pids: [
                watched.servers.clone(),
                watched.proxy.into_iter().collect(),
                vec![generator],
            ],
            origin_ns,
            start_s: 0.0,
            last_requests: (0, 0),
            last_cpu: (0, [const { None }; 3]),
            samples: Vec::new(),
        }
    }

    fn start(&mut self, at_ns: u64) {
        self.start_s = at_ns.saturating_sub(self.origin_ns) as f64 / 1e9;
        self.last_requests = (at_ns, 0);
        self.last_cpu = self.read();
    }

    fn read(&self) -> (u64, [Option<Reading>; 3]) {
        let read = |place: usize| cpu::read_all(&self.pids[place]).ok();
        (clock_ns(), [0, 1, 2].map(read))
    }

    /// Requests go by the generator's clock and CPU by ours: each over its own stretch of time.
    fn sample(&mut self, at_ns: u64, requests: u64) {
        let (now_ns, now) = self.read();
        let seconds = |from: u64, to: u64| to.saturating_sub(from).max(1) as f64 / 1e9;
        let cpu_s = seconds(self.last_cpu.0, now_ns);
        let cores = |place: usize| {
            let usage = now[place].as_ref()?.since(self.last_cpu.1[place].as_ref()?);
            Some(usage.used_s / cpu_s)
        };
        let new = requests.saturating_sub(self.last_requests.1);
        self.samples.push(RateSample {
            at_s: at_ns.saturating_sub(self.origin_ns) as f64 / 1e9,
            requests_per_s: new as f64 / seconds(self.last_requests.0, at_ns),
            server: cores(0),
            proxy: cores(1),
            generator: cores(2),
        });
        self.last_requests = (at_ns, requests);
        self.last_cpu = (now_ns, now);
    }
}

/// `redis-benchmark` runs for a number of requests, not for a time, so a short run before finds the
/// number. Its CPU is read after its end and before it is reaped: exact, but with the cost of its
/// connections.
fn by_redis_benchmark(
    workload: Workload,
    target: &RunningTarget,
    manner: &Manner,
    mut watched: WatchedProcesses,
    stop: &AtomicBool,
) -> Result<Round, String> {
    let Workload {
        verb,
        pipeline,
        connections,
        rate: _,
    } = workload;
    let least = (50 * pipeline as u64).max(connections as u64 * pipeline as u64);
    let count = least.max(2_000 * pipeline as u64 / u64::from(verb.keys()));
    let trial = run_benchmark(workload, target, manner, count, &mut watched, stop)?;
    let count = |seconds: f64| ((trial.requests_per_s * seconds) as u64).max(count);
    let _warmup = run_benchmark(
        workload,
        target,
        manner,
        count(manner.warmup_s),
        &mut watched,
        stop,
    )?;
    let mut round = run_benchmark(
        workload,
        target,
        manner,
        count(manner.seconds),
        &mut watched,
        stop,
    )?;
    if round.requests_per_s == 0.0 {
        return Err(format!("redis-benchmark said nothing of {verb}"));
    }
    round.latency.count = round.requests;
    Ok(round)
}

fn run_benchmark(
    workload: Workload,
    target: &RunningTarget,
    manner: &Manner,
    count: u64,
    watched: &mut WatchedProcesses,
    stop: &AtomicBool,
) -> Result<Round, String> {
    let program = servers::find_program("redis-benchmark")?;
    let broken = |error: std::io::Error| format!("redis-benchmark: {error}");
    let mut command = Command::new(program);
    for (flag, value) in [
        ("-h", target.address.ip().to_string()),
        ("-p", target.address.port().to_string()),
        ("-c", workload.connections.to_string()),
        ("-P", workload.pipeline.to_string()),
        ("-r", manner.keys.to_string()),
        ("-d", manner.value_bytes.to_string()),
        ("-n", count.to_string()),
    ] {
        command.args([flag, &value]);
    }
    if let Some(ca) = &target.ca {
        command.arg("--tls").arg("--cacert").arg(ca);
    }
    if manner.generator_threads > 1 {
        command.args(["--threads", &manner.generator_threads.to_string()]);
    }
    match workload.verb {
        // It has no test of that name. In a given command it replaces each of these words by a
        // random number.
        Verb::Mget(keys) => {
            command.arg("MGET");
            command.args((0..keys).map(|_| "key:__rand_int__"));
        }
        verb => {
            command.args(["-t", &verb.to_string().to_lowercase()]);
        }
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let servers = watched.servers.clone();
    let proxies: Vec<u32> = watched.proxy.into_iter().collect();
    let read = |pids: &[u32]| match pids {
        [] => Ok(None),
        pids => cpu::read_all(pids).map(Some),
    };
    let server = read(&servers).map_err(broken)?;
    let proxy = read(&proxies).map_err(broken)?;
    let commands = watched.commands();
    let counters = watched.counters();
    let machine = look_at_machine();
    let start_ns = clock_ns();
    let mut child = Reaped(children::spawn(command).map_err(broken)?);
    let pid = child.0.id();
    let mut sampler = Sampler::new(watched, pid, manner.origin_ns);
    sampler.start(start_ns);
    let mut output = child
        .0
        .stdout
        .take()
        .ok_or("redis-benchmark has no output")?;
    // It writes a line four times a second. A thread reads them, as it is silent for ever when it
    // cannot connect.
    let (sender, pieces) = std::sync::mpsc::channel::<Vec<u8>>();
    let reader = std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = output.read(&mut buffer) {
            if sender.send(buffer[..length].to_vec()).is_err() {
                return;
            }
        }
    });
    let mut text = String::new();
    let mut heard = Instant::now();
    let mut requests = 0.0;
    loop {
        match pieces.recv_timeout(Duration::from_millis(100)) {
            Ok(piece) => {
                heard = Instant::now();
                let piece = String::from_utf8_lossy(&piece).into_owned();
                if let Some(rate) = current_rate(&piece) {
                    let at_ns = clock_ns();
                    requests += rate * (at_ns - sampler.last_requests.0) as f64 / 1e9;
                    sampler.sample(at_ns, requests as u64);
                }
                text.push_str(&piece);
            }
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                if stop.load(Ordering::Relaxed) {
                    return Err(STOPPED.to_owned());
                }
                if heard.elapsed() > Duration::from_secs(10) {
                    return Err("redis-benchmark has said nothing for ten seconds".to_owned());
                }
            }
        }
    }
    let _ = reader.join();
    // It has ended but is not reaped: its counters are still there.
    let child_pid = Pid::from_child(&child.0);
    waitid(
        WaitId::Pid(child_pid),
        WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
    )
    .map_err(|error| format!("redis-benchmark: {error}"))?;
    let end_ns = clock_ns();
    let generator = cpu::read(pid).map_err(broken)?.since(&Reading::default());
    let end_machine = look_at_machine();
    let since = |pids: &[u32], before: Option<&Reading>| -> Option<CpuUsage> {
        Some(cpu::read_all(pids).ok()?.since(before?))
    };
    let (server, proxy) = (
        since(&servers, server.as_ref()),
        since(&proxies, proxy.as_ref()),
    );
    if sampler.samples.is_empty() {
        // It ended before its first line.
        sampler.sample(end_ns, count);
    }
    let end_commands = watched.commands();
    let status = child.0.wait().map_err(broken)?;
    let (requests_per_s, latency) = parse_benchmark(&text);
    if !status.success() {
        return Err(format!(
            "redis-benchmark ended with {status}: {}",
            text.trim()
        ));
    }
    let seconds = (end_ns - start_ns) as f64 / 1e9;
    let ours = [server.as_ref(), proxy.as_ref(), Some(&generator)];
    let ours: f64 = ours.into_iter().flatten().map(|usage| usage.used_s).sum();
    let (others, stolen) = others(machine, end_machine, ours / seconds);
    Ok(Round {
        number: 0,
        others,
        stolen,
        start_s: sampler.start_s,
        seconds,
        requests: count,
        requests_per_s: requests_per_s.unwrap_or(0.0),
        rate: None,
        wrong: 0,
        first_wrong: None,
        unfinished: 0,
        stalled: 0,
        latency,
        server,
        proxy,
        generator,
        server_commands_per_s: commands_per_s(commands, end_commands),
        // It sends commands of its own before the first request, so its requests cannot be
        // compared.
        answered: None,
        server_commands: None,
        server_key_reads: None,
        counters: grown(counters, watched.counters()),
        samples: sampler.samples,
    })
}

/// The last `rps=` in a piece of its progress output.
fn current_rate(piece: &str) -> Option<f64> {
    let rest = piece.rsplit_once(": rps=")?.1;
    // A piece may end anywhere.
    let rate = rest.split_once(' ')?.0.parse::<f64>().ok()?;
    (rate.is_finite() && rate > 0.0).then_some(rate)
}

/// Throughput, and the percentiles of [`Latency::LADDER`]: for each the first reported percentile
/// that is not below it.
fn parse_benchmark(text: &str) -> (Option<f64>, Latency) {
    let mut told: Vec<(f64, f64)> = Vec::new();
    let mut rate = None;
    let mut is_distribution = false;
    for line in text.split(['\r', '\n']).map(str::trim) {
        if line.starts_with("Latency by percentile") {
            is_distribution = true;
        } else if line.starts_with("Cumulative distribution") {
            is_distribution = false;
        } else if let Some(rest) = line.strip_prefix("throughput summary: ") {
            rate = rest
                .split(' ')
                .next()
                .and_then(|number| number.parse().ok());
        } else if is_distribution
            && let Some((percent, rest)) = line.split_once("% <= ")
            && let (Ok(percent), Some(Ok(ms))) = (
                percent.parse::<f64>(),
                rest.split(' ').next().map(str::parse::<f64>),
            )
        {
            told.push((percent, ms * 1e3));
        }
    }
    let percentiles = Latency::LADDER
        .iter()
        .filter_map(|&percent| {
            // 1 and 10 percent come before its first percentile after the minimum.
            let found = told.iter().find(|(p, _)| *p >= percent)?;
            (percent >= 25.0).then_some((percent, found.1))
        })
        .collect();
    (
        rate,
        Latency {
            count: 0,
            mean_us: None,
            percentiles,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_redis_benchmark_are_understood() {
        let text = " \rGET: rps=61754.0 (overall: 61509.9) avg_msec=0.536 (overall: 0.536)\r   \r\
            ====== GET ======\n  200000 requests completed in 3.19 seconds\n\n\
            Latency by percentile distribution:\n0.000% <= 0.159 milliseconds (cumulative count 2)\n\
            50.000% <= 0.527 milliseconds (cumulative count 102961)\n\
            99.219% <= 0.927 milliseconds (cumulative count 198489)\n\
            99.902% <= 1.375 milliseconds (cumulative count 199810)\n\
            100.000% <= 2.551 milliseconds (cumulative count 200000)\n\n\
            Cumulative distribution of latencies:\n99.9% <= 9.9 milliseconds (cumulative count 1)\n\n\
            Summary:\n  throughput summary: 62696.61 requests per second\n";
        let (rate, latency) = parse_benchmark(text);
        assert_eq!(rate, Some(62696.61));
        let near = |percent: f64, us: f64| {
            let found = latency.at(percent).unwrap();
            assert!((found - us).abs() < 1e-6, "p{percent} is {found}");
        };
        near(50.0, 527.0);
        near(99.0, 927.0);
        near(99.9, 1375.0);
        near(100.0, 2551.0);
        assert_eq!(latency.at(1.0), None);
        assert_eq!(current_rate(text), Some(61754.0));
        assert_eq!(current_rate("GET: rps=0.0 (overall: -nan)"), None);
        assert_eq!(current_rate("MGET key:__rand_int__: rps=61"), None, "cut");
        assert_eq!(parse_benchmark("nothing").0, None);
    }

    #[test]
    fn commands_a_second_count_between_two_samples() {
        let rate = commands_per_s(Some((1_000_000_000, 10)), Some((3_000_000_000, 2_010)));
        assert_eq!(rate, Some(1000.0));
        assert_eq!(commands_per_s(None, Some((1, 1))), None);
        assert_eq!(commands_per_s(Some((1, 1)), Some((1, 1))), None);
    }
}

//! `respool-lab histories`

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use respool_checker::differ;
use respool_checker::histories::trouble::{self, Trouble};
use respool_checker::histories::{self, HistoryReport, HistorySettings};
use respool_testkit::client::{Reply, RespClient};
use respool_testkit::scene::TopologyKind;
use respool_testkit::servers::{self, Flavour, Proxy, ServerProcess};

use super::{fail, read, say};
use crate::flags::{duration, kind, positive};
use crate::targets::{Inspector, Programs};

const NAME: &str = "histories";
/// How long respool may take for its counters.
const PATIENCE: Duration = Duration::from_secs(10);
const ABOUT: &str = "\
respool-lab histories: concurrent clients write and read a few keys through respool, and their
replies are checked, key by key: there must be an order in which one server could have given these answers
(linearizability). Some keys hold no string and some do not exist; every answer to those must say so.

Several servers (--kind) may be in trouble meanwhile (--trouble). Where a primary is killed or freezes, its replica is read
before it takes over: writes that it lacks are lost by the servers, and counted; no other write may be missing or come twice.

Exits with 1 when there is no such order, or an answer was wrong; and when nothing was fused, or no reads were joined, though
respool was not told to do without: then the run has shown nothing.

Usage: respool-lab histories [OPTIONS]
Example: respool-lab histories --requests 10000000 --server valkey-9.1 --respool-arg --threads=3";

#[derive(Args)]
struct HistoriesArgs {
    /// Seed of the first round; the next round has the next seed.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Requests in all.
    #[arg(long, value_name = "N", value_parser = positive::<u64>, default_value_t = 500_000)]
    requests: u64,
    /// Connections. Every second one speaks RESP3.
    #[arg(long, value_name = "N", value_parser = positive::<usize>, default_value_t = 16)]
    clients: usize,
    /// Most requests that a client sends in one write.
    #[arg(long, value_name = "N", value_parser = positive::<usize>, default_value_t = 20)]
    pipeline: usize,
    /// Keys that are written and read.
    #[arg(long, value_name = "N", value_parser = positive::<usize>, default_value_t = 24)]
    keys: usize,
    /// Cut all connections of the server so often, in seconds [never]. Lost requests do not count
    /// as answered.
    #[arg(long, value_name = "S", value_parser = duration)]
    cut_every: Option<Duration>,
    /// Several servers instead of one: cluster, three primaries with a replica each; sentinel, a
    /// primary and a replica that three Sentinels watch; sharded, three plain servers. Clients ask
    /// for as long as the trouble takes.
    #[arg(long, value_parser = kind)]
    kind: Option<TopologyKind>,
    /// The trouble of the servers: nothing; cuts, of connections; kill or freeze, of a primary; and
    /// for a Cluster, moves of slots, members that join and leave, failovers by command, restarts
    /// of all in turn.
    #[arg(long, value_name = "TROUBLE", value_parser = trouble_of, default_value = "nothing")]
    trouble: Trouble,
    /// redis-6.2, redis-7.0, redis-8.2 or valkey-9.1.
    #[arg(long, value_name = "NAME", value_parser = differ::flavour, default_value = "redis-7.0")]
    server: Flavour,
    /// The respool to test [the one next to respool-lab, or from PATH].
    #[arg(long, value_name = "PATH")]
    respool: Option<PathBuf>,
    /// One more argument for respool serve; may be repeated.
    #[arg(long = "respool-arg", value_name = "ARG", allow_hyphen_values = true)]
    respool_args: Vec<String>,
    /// Ask the server itself: a test of the tester.
    #[arg(long = "direct")]
    is_direct: bool,
}

impl HistoriesArgs {
    fn settings(&self) -> HistorySettings {
        HistorySettings {
            seed: self.seed,
            requests: self.requests,
            clients: self.clients,
            pipeline: self.pipeline,
            keys: self.keys,
            cuts: self.cut_every,
            ..HistorySettings::default()
        }
    }
}

fn trouble_of(value: &str) -> Result<Trouble, &'static str> {
    let mut all = Trouble::ALL.into_iter();
    let trouble = all.find(|trouble| trouble.name() == value);
    trouble.ok_or("there is no such trouble; see --help")
}

/// Runs it.
pub fn run(args: &[OsString]) -> ExitCode {
    let arguments: HistoriesArgs = match read(NAME, ABOUT, args) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match ask(&arguments) {
        Ok(report) if report.contradictions.is_empty() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(problem) => fail(NAME, &problem),
    }
}

fn ask(arguments: &HistoriesArgs) -> Result<HistoryReport, String> {
    let binary = servers::find(arguments.server)?;
    let version = servers::version(&binary).map_err(|error| error.to_string())?;
    let mut tell = |text: &str| say(&format!("{text}\n"));
    tell(&format!("{version}: seed {}", arguments.seed));
    let (report, proxy) = match arguments.kind {
        Some(kind) => ask_several(arguments, kind, &binary)?,
        None => ask_one(arguments, &binary, &mut tell)?,
    };
    for (asked, count) in &report.answered {
        tell(&format!("{asked:<18} {count:>12}"));
    }
    if let Some((proxy, _)) = &proxy {
        let mut inspector =
            Inspector::connect(proxy.address()).map_err(|error| error.to_string())?;
        let info = inspector
            .info("respool")
            .map_err(|error| error.to_string())?;
        let shown = [
            "requests",
            "link_requests",
            "batches",
            "fused_",
            "reads_collapsed",
            "joined_requests_resent",
        ];
        for line in info.lines() {
            let name = line.strip_prefix("respool_").unwrap_or_default();
            if shown.iter().any(|one| name.starts_with(one)) {
                tell(line);
            }
        }
    }
    if report.failed > 0 {
        tell(&format!("{:<18} {:>12}", "failed", report.failed));
    }
    if report.lost > 0 {
        tell(&format!("{} keys lost by the servers", report.lost));
    }
    for contradiction in &report.contradictions {
        tell(&format!("CONTRADICTION: {contradiction}"));
    }
    if report.contradictions.is_empty() {
        tell("no contradiction");
        if let Some((_, shown)) = &proxy {
            shown.enough(arguments, report.requests())?;
        }
    }
    Ok(report)
}

/// The proof that a run must give: replies to fused and collapsed requests equal those to single
/// ones.
#[derive(Clone, Copy, Debug)]
struct Shown {
    /// respool's settings.
    fuses: bool,
    collapses: bool,
    fused_gets: u64,
    fused_sets: u64,
    collapsed: u64,
}

/// A run with fewer requests, or fewer at once, need not fuse any. With more keys, reads need not
/// be equal.
const REQUESTS_MIN: u64 = 1_000;
const AT_ONCE_MIN: usize = 16;
const KEYS_MAX: usize = 64;

impl Shown {
    fn by(respool: SocketAddr) -> io::Result<Shown> {
        let mut connection = RespClient::open(respool, PATIENCE)?;
        let mut is_on = |name: &str| -> io::Result<bool> {
            let said = connection.ask_ok(&["CONFIG", "GET", name])?;
            Ok(said.get(name).and_then(Reply::text) == Some(b"yes"))
        };
        let (fuses, collapses) = (is_on("respool.fuse")?, is_on("respool.collapse")?);
        let info = Inspector::connect(respool)?.info("respool")?;
        let count = |name: &str| {
            let mut lines = info.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.and_then(|value| value.parse().ok()).unwrap_or(0)
        };
        Ok(Shown {
            fuses,
            collapses,
            fused_gets: count("respool_fused_gets"),
            fused_sets: count("respool_fused_sets"),
            collapsed: count("respool_reads_collapsed"),
        })
    }

    fn enough(&self, arguments: &HistoriesArgs, requests: u64) -> Result<(), String> {
        let at_once = arguments.clients.saturating_mul(arguments.pipeline);
        if requests < REQUESTS_MIN || at_once < AT_ONCE_MIN {
            return Ok(());
        }
        // Two requests of a batch are rarely for one slot there.
        let fuses = self.fuses && arguments.kind != Some(TopologyKind::Cluster);
        let collapses = self.collapses && arguments.keys <= KEYS_MAX;
        for (is_on, count, problem, option) in [
            (fuses, self.fused_gets, "no GETs were fused", "fuse"),
            (fuses, self.fused_sets, "no SETs were fused", "fuse"),
            (
                collapses,
                self.collapsed,
                "no reads were joined",
                "collapse",
            ),
        ] {
            if is_on && count == 0 {
                return Err(format!(
                    "{problem}, of {requests} requests: the run shows nothing about that. If that is meant, say --respool-arg --{option}=false"
                ));
            }
        }
        Ok(())
    }
}

fn ask_one(
    arguments: &HistoriesArgs,
    binary: &Path,
    tell: &mut dyn FnMut(&str),
) -> Result<(HistoryReport, Option<(Proxy, Shown)>), String> {
    let server = ServerProcess::start::<&str>(binary, &[]).map_err(|error| error.to_string())?;
    let proxy = match arguments.is_direct {
        true => None,
        false => Some(proxy(arguments, &format!("redis://{}", server.address()))?),
    };
    let address = proxy
        .as_ref()
        .map_or(server.address(), |proxy| proxy.address());
    let report = histories::run(&arguments.settings(), address, server.address(), tell)?;
    // While respool can still ask its server whether the user may read INFO.
    let proxy = match proxy {
        None => None,
        Some(proxy) => Some(with_shown(proxy)?),
    };
    Ok((report, proxy))
}

fn ask_several(
    arguments: &HistoriesArgs,
    kind: TopologyKind,
    binary: &Path,
) -> Result<(HistoryReport, Option<(Proxy, Shown)>), String> {
    let trouble = arguments.trouble;
    if arguments.is_direct || arguments.cut_every.is_some() || !trouble.suits(kind) {
        let (trouble, kind) = (trouble.name(), kind.name());
        return Err(format!(
            "--trouble {trouble}, --direct or --cut-every does not go with --kind {kind}"
        ));
    }
    let mut scene = trouble::scene(kind, binary).map_err(|error| error.to_string())?;
    let proxy = proxy(arguments, &scene.url())?;
    let settings = HistorySettings {
        may_fail: trouble.may_fail(),
        ..arguments.settings()
    };
    let happen = || {
        trouble
            .happen(&settings, &mut scene)
            .map_err(|error| error.to_string())
    };
    let report = histories::run_through(&settings, proxy.address(), happen)?;
    Ok((report, Some(with_shown(proxy)?)))
}

fn with_shown(proxy: Proxy) -> Result<(Proxy, Shown), String> {
    let shown = Shown::by(proxy.address()).map_err(|error| error.to_string())?;
    Ok((proxy, shown))
}

fn proxy(arguments: &HistoriesArgs, url: &str) -> Result<Proxy, String> {
    let respool = Programs::respool(arguments.respool.as_deref())?;
    let mut args = vec![format!("--backend={url}")];
    args.extend(arguments.respool_args.iter().cloned());
    Proxy::start(&respool, &args).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments() -> HistoriesArgs {
        let given = crate::flags::parse("", &[]);
        given.unwrap().expect("no help is asked for")
    }

    const MUCH: Shown = Shown {
        fuses: true,
        collapses: true,
        fused_gets: 1,
        fused_sets: 1,
        collapsed: 1,
    };

    /// A run in which nothing was joined fails, unless respool does not coalesce.
    #[test]
    fn run_without_coalescing_fails_unless_it_is_off() {
        let arguments = arguments();
        let problem = |shown: Shown| shown.enough(&arguments, REQUESTS_MIN).err();
        assert_eq!(problem(MUCH), None);
        let no_gets = Shown {
            fused_gets: 0,
            ..MUCH
        };
        let no_sets = Shown {
            fused_sets: 0,
            ..MUCH
        };
        let no_reads = Shown {
            collapsed: 0,
            ..MUCH
        };
        for (shown, said) in [
            (no_gets, "no GETs were fused, of 1000 requests"),
            (no_sets, "no SETs were fused, of 1000 requests"),
            (no_reads, "no reads were joined, of 1000 requests"),
        ] {
            let problem = problem(shown).expect(said);
            assert!(problem.starts_with(said), "{problem}");
            let without = Shown {
                fuses: false,
                collapses: false,
                ..shown
            };
            without
                .enough(&arguments, REQUESTS_MIN)
                .expect("it was told to");
        }
        let problem = problem(Shown {
            fuses: false,
            ..no_reads
        })
        .expect("reads are to be joined");
        assert!(problem.ends_with("--collapse=false"), "{problem}");
    }

    /// Where requests need not meet each other, a run without coalescing passes.
    #[test]
    fn run_with_too_few_requests_need_not_coalesce() {
        let none = Shown {
            fused_gets: 0,
            fused_sets: 0,
            collapsed: 0,
            ..MUCH
        };
        none.enough(&arguments(), REQUESTS_MIN - 1)
            .expect("they are few");
        let mut lone = arguments();
        lone.clients = 1;
        lone.pipeline = 1;
        none.enough(&lone, REQUESTS_MIN).expect("it is alone");
        let mut many = arguments();
        many.keys = KEYS_MAX + 1;
        let unjoined = Shown {
            collapsed: 0,
            ..MUCH
        };
        unjoined
            .enough(&many, REQUESTS_MIN)
            .expect("there are many keys");
        let cluster = HistoriesArgs {
            kind: Some(TopologyKind::Cluster),
            ..arguments()
        };
        let unfused = Shown {
            collapsed: 1,
            ..none
        };
        unfused
            .enough(&cluster, REQUESTS_MIN)
            .expect("of several slots");
        none.enough(&cluster, REQUESTS_MIN).expect_err("of one key");
    }
}

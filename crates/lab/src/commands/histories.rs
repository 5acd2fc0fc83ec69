//! `respool-lab histories`

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use super::{fail, read, say};
use crate::differ;
use crate::failover::Kind;
use crate::flags::{Flag, positive, seconds};
use crate::histories::trouble::{self, Trouble};
use crate::histories::{self, Report, Settings};
use crate::servers::{self, Flavour, Proxy, Server};
use crate::targets::{Inspector, Programs};

const NAME: &str = "histories";
const ABOUT: &str = "\
respool-lab histories: concurrent clients write and read a few keys through respool, and what they were
answered is checked, key by key: there must be an order in which one server could have given these answers
(linearizability). Some keys hold no string and some do not exist; every answer to those must say so.

Several servers (--kind) may be in trouble meanwhile (--trouble). Where a primary is killed or freezes, its replica is read
before it takes over: what it has not got is lost by the servers, and counted; nothing else may be missing or come twice.

Exits with 1 when there is no such order, or an answer was wrong.

Usage: respool-lab histories [OPTIONS]
Example: respool-lab histories --requests 10000000 --server valkey-9.1 --respool-arg --threads=3";

struct Arguments {
    settings: Settings,
    kind: Option<Kind>,
    trouble: Trouble,
    flavour: Flavour,
    respool: Option<PathBuf>,
    respool_args: Vec<String>,
    is_direct: bool,
}

const FLAGS: [&Flag<Arguments>; 12] = [
    &Flag {
        name: "seed",
        value: Some("N"),
        help: "Of the first round; the next one has the next [1].",
        set: |arguments, value| {
            arguments.settings.seed = value.parse().map_err(|_| "a whole number is expected")?;
            Ok(())
        },
    },
    &Flag {
        name: "requests",
        value: Some("N"),
        help: "Requests in all [500000].",
        set: |arguments, value| positive(value).map(|n| arguments.settings.requests = n),
    },
    &Flag {
        name: "clients",
        value: Some("N"),
        help: "Connections [16]. Every second one speaks RESP3.",
        set: |arguments, value| positive(value).map(|n| arguments.settings.clients = n),
    },
    &Flag {
        name: "pipeline",
        value: Some("N"),
        help: "Most requests that a client sends in one write [20].",
        set: |arguments, value| positive(value).map(|n| arguments.settings.pipeline = n),
    },
    &Flag {
        name: "keys",
        value: Some("N"),
        help: "Keys that are written and read [24].",
        set: |arguments, value| positive(value).map(|n| arguments.settings.keys = n),
    },
    &Flag {
        name: "cut-every",
        value: Some("S"),
        help: "Cut all connections of the server so often, in seconds [never]. What was lost is not counted as answered.",
        set: |arguments, value| {
            arguments.settings.cuts = Some(Duration::from_secs_f64(seconds(value)?));
            Ok(())
        },
    },
    &Flag {
        name: "kind",
        value: Some("KIND"),
        help: "Several servers instead of one: cluster, three primaries with a replica each; sentinel, a primary and a replica \
               that three Sentinels watch; sharded, three plain servers. Clients ask for as long as the trouble takes.",
        set: |arguments, value| {
            let kind = Kind::ALL.into_iter().find(|kind| kind.name() == value);
            arguments.kind = Some(kind.ok_or("cluster, sentinel or sharded is expected")?);
            Ok(())
        },
    },
    &Flag {
        name: "trouble",
        value: Some("WHAT"),
        help: "What happens to them [nothing]: cuts, of connections; kill or freeze, of a primary; and, to a Cluster, moves \
               of slots, members that join and leave, failovers by command, restarts of all in turn.",
        set: |arguments, value| {
            let trouble = Trouble::ALL
                .into_iter()
                .find(|trouble| trouble.name() == value);
            arguments.trouble = trouble.ok_or("there is no such trouble; see --help")?;
            Ok(())
        },
    },
    &Flag {
        name: "server",
        value: Some("NAME"),
        help: "redis-6.2, redis-7.0, redis-8.2 or valkey-9.1 [redis-7.0].",
        set: |arguments, value| {
            arguments.flavour = differ::flavour(value)?;
            Ok(())
        },
    },
    &Flag {
        name: "respool",
        value: Some("PATH"),
        help: "The respool to test [the one next to respool-lab, or from PATH].",
        set: |arguments, value| {
            arguments.respool = Some(value.into());
            Ok(())
        },
    },
    &Flag {
        name: "respool-arg",
        value: Some("ARG"),
        help: "One more argument for respool serve; may be repeated.",
        set: |arguments, value| {
            arguments.respool_args.push(value.to_owned());
            Ok(())
        },
    },
    &Flag {
        name: "direct",
        value: None,
        help: "Ask the server itself: a test of the tester.",
        set: |arguments, _| {
            arguments.is_direct = true;
            Ok(())
        },
    },
];

/// Runs it.
pub fn run(args: &[OsString]) -> ExitCode {
    let mut arguments = Arguments {
        settings: Settings::default(),
        kind: None,
        trouble: Trouble::Nothing,
        flavour: Flavour::Redis70,
        respool: None,
        respool_args: Vec::new(),
        is_direct: false,
    };
    if let Err(code) = read(NAME, ABOUT, &FLAGS, args, &mut arguments) {
        return code;
    }
    match ask(&arguments) {
        Ok(report) if report.contradictions.is_empty() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(problem) => fail(NAME, &problem),
    }
}

fn ask(arguments: &Arguments) -> Result<Report, String> {
    let binary = servers::find(arguments.flavour)?;
    let version = servers::version(&binary).map_err(|error| error.to_string())?;
    let mut tell = |text: &str| say(&format!("{text}\n"));
    tell(&format!("{version}: seed {}", arguments.settings.seed));
    let (report, proxy) = match arguments.kind {
        Some(kind) => ask_several(arguments, kind, &binary)?,
        None => ask_one(arguments, &binary, &mut tell)?,
    };
    for (asked, count) in &report.answered {
        tell(&format!("{asked:<18} {count:>12}"));
    }
    if let Some(proxy) = &proxy {
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
            "collapsed",
            "asked_again",
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
    }
    Ok(report)
}

fn ask_one(
    arguments: &Arguments,
    binary: &Path,
    tell: &mut dyn FnMut(&str),
) -> Result<(Report, Option<Proxy>), String> {
    let server = Server::start::<&str>(binary, &[]).map_err(|error| error.to_string())?;
    let proxy = match arguments.is_direct {
        true => None,
        false => Some(proxy(arguments, &format!("redis://{}", server.address()))?),
    };
    let address = proxy
        .as_ref()
        .map_or(server.address(), |proxy| proxy.address());
    let report = histories::run(&arguments.settings, address, server.address(), tell)?;
    Ok((report, proxy))
}

fn ask_several(
    arguments: &Arguments,
    kind: Kind,
    binary: &Path,
) -> Result<(Report, Option<Proxy>), String> {
    let trouble = arguments.trouble;
    if arguments.is_direct || arguments.settings.cuts.is_some() || !trouble.suits(kind) {
        let (trouble, kind) = (trouble.name(), kind.name());
        return Err(format!(
            "--trouble {trouble}, --direct or --cut-every does not go with --kind {kind}"
        ));
    }
    let mut scene = trouble::scene(kind, binary).map_err(|error| error.to_string())?;
    let proxy = proxy(arguments, &scene.url())?;
    let settings = Settings {
        may_fail: trouble.may_fail(),
        ..arguments.settings.clone()
    };
    let happen = || {
        trouble
            .happen(&settings, &mut scene)
            .map_err(|error| error.to_string())
    };
    let report = histories::run_through(&settings, proxy.address(), happen)?;
    Ok((report, Some(proxy)))
}

fn proxy(arguments: &Arguments, url: &str) -> Result<Proxy, String> {
    let respool = Programs::find(arguments.respool.as_deref(), 0)?.respool?;
    let mut args = vec![format!("--backend={url}")];
    args.extend(arguments.respool_args.iter().cloned());
    Proxy::start(&respool, &args).map_err(|error| error.to_string())
}

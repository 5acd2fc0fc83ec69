//! `respool-lab histories`

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use super::{fail, read, say};
use crate::differ;
use crate::flags::{Flag, positive, seconds};
use crate::histories::{self, Report, Settings};
use crate::servers::{self, Flavour, Proxy, Server};
use crate::targets::{Inspector, Programs};

const NAME: &str = "histories";
const ABOUT: &str = "\
respool-lab histories: concurrent clients write and read a few keys through respool, and what they were
answered is checked, key by key: there must be an order in which one server could have given these answers
(linearizability). Some keys hold no string and some do not exist; every answer to those must say so.

Exits with 1 when there is no such order, or an answer was wrong.

Usage: respool-lab histories [OPTIONS]
Example: respool-lab histories --requests 10000000 --server valkey-9.1 --respool-arg --threads=3";

struct Arguments {
    settings: Settings,
    flavour: Flavour,
    respool: Option<PathBuf>,
    respool_args: Vec<String>,
    is_direct: bool,
}

const FLAGS: [&Flag<Arguments>; 10] = [
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
    let server = Server::start::<&str>(&binary, &[]).map_err(|error| error.to_string())?;
    let proxy = match arguments.is_direct {
        true => None,
        false => {
            let respool = Programs::find(arguments.respool.as_deref(), 0)?.respool?;
            let mut args = vec![format!("--backend=redis://{}", server.address())];
            args.extend(arguments.respool_args.iter().cloned());
            Some(Proxy::start(&respool, &args).map_err(|error| error.to_string())?)
        }
    };
    let address = proxy
        .as_ref()
        .map_or(server.address(), |proxy| proxy.address());
    let mut tell = |text: &str| say(&format!("{text}\n"));
    tell(&format!("{version}: seed {}", arguments.settings.seed));
    let report = histories::run(&arguments.settings, address, server.address(), &mut tell)?;
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
    for contradiction in &report.contradictions {
        tell(&format!("CONTRADICTION: {contradiction}"));
    }
    if report.contradictions.is_empty() {
        tell("no contradiction");
    }
    Ok(report)
}

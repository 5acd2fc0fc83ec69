//! `respool-lab histories`

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use respool_protocol::value::Value;

use super::{fail, read, say};
use crate::differ;
use crate::failover::Kind;
use crate::flags::{Flag, positive, seconds};
use crate::histories::trouble::{self, Trouble};
use crate::histories::{self, Report, Settings};
use crate::servers::{self, Flavour, Proxy, Server};
use crate::targets::{Inspector, Programs};
use crate::topologies::Connection;

const NAME: &str = "histories";
/// How long respool may take to say what it has done.
const PATIENCE: Duration = Duration::from_secs(10);
const ABOUT: &str = "\
respool-lab histories: concurrent clients write and read a few keys through respool, and what they were
answered is checked, key by key: there must be an order in which one server could have given these answers
(linearizability). Some keys hold no string and some do not exist; every answer to those must say so.

Several servers (--kind) may be in trouble meanwhile (--trouble). Where a primary is killed or freezes, its replica is read
before it takes over: what it has not got is lost by the servers, and counted; nothing else may be missing or come twice.

Exits with 1 when there is no such order, or an answer was wrong; and when nothing was fused, or no reads were joined, though
respool was not told to do without: then the run has shown nothing.

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

impl Default for Arguments {
    fn default() -> Arguments {
        Arguments {
            settings: Settings::default(),
            kind: None,
            trouble: Trouble::Nothing,
            flavour: Flavour::Redis70,
            respool: None,
            respool_args: Vec::new(),
            is_direct: false,
        }
    }
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
    let mut arguments = Arguments::default();
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
        if let Some((_, shown)) = &proxy {
            shown.enough(arguments, report.requests())?;
        }
    }
    Ok(report)
}

/// What a run was to show: that requests which leave together are answered as if each had gone by itself.
#[derive(Clone, Copy, Debug)]
struct Shown {
    /// What respool says that it does.
    fuses: bool,
    collapses: bool,
    fused_gets: u64,
    fused_sets: u64,
    collapsed: u64,
}

/// Fewer requests, or fewer of them at one moment, need not meet each other; nor need those of more keys be for the same.
const REQUESTS_MIN: u64 = 1_000;
const AT_ONCE_MIN: usize = 16;
const KEYS_MAX: usize = 64;

impl Shown {
    fn by(respool: SocketAddr) -> io::Result<Shown> {
        let mut connection = Connection::open(respool, PATIENCE)?;
        let mut is_on = |name: &str| -> io::Result<bool> {
            let said = connection.order(&["CONFIG", "GET", name])?;
            Ok(said.field(name).and_then(Value::text) == Some(b"yes"))
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
            collapsed: count("respool_collapsed"),
        })
    }

    fn enough(&self, arguments: &Arguments, requests: u64) -> Result<(), String> {
        let settings = &arguments.settings;
        let at_once = settings.clients.saturating_mul(settings.pipeline);
        if requests < REQUESTS_MIN || at_once < AT_ONCE_MIN {
            return Ok(());
        }
        // Two requests of a batch are rarely of one slot there.
        let fuses = self.fuses && arguments.kind != Some(Kind::Cluster);
        let collapses = self.collapses && settings.keys <= KEYS_MAX;
        for (is_on, count, what, option) in [
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
                    "{what}, of {requests} requests: nothing was shown of that. Is it meant, say --respool-arg --{option}=false"
                ));
            }
        }
        Ok(())
    }
}

fn ask_one(
    arguments: &Arguments,
    binary: &Path,
    tell: &mut dyn FnMut(&str),
) -> Result<(Report, Option<(Proxy, Shown)>), String> {
    let server = Server::start::<&str>(binary, &[]).map_err(|error| error.to_string())?;
    let proxy = match arguments.is_direct {
        true => None,
        false => Some(proxy(arguments, &format!("redis://{}", server.address()))?),
    };
    let address = proxy
        .as_ref()
        .map_or(server.address(), |proxy| proxy.address());
    let report = histories::run(&arguments.settings, address, server.address(), tell)?;
    // As long as there is a server that it can ask whether we may know.
    let proxy = match proxy {
        None => None,
        Some(proxy) => Some(with_shown(proxy)?),
    };
    Ok((report, proxy))
}

fn ask_several(
    arguments: &Arguments,
    kind: Kind,
    binary: &Path,
) -> Result<(Report, Option<(Proxy, Shown)>), String> {
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
    Ok((report, Some(with_shown(proxy)?)))
}

fn with_shown(proxy: Proxy) -> Result<(Proxy, Shown), String> {
    let shown = Shown::by(proxy.address()).map_err(|error| error.to_string())?;
    Ok((proxy, shown))
}

fn proxy(arguments: &Arguments, url: &str) -> Result<Proxy, String> {
    let respool = Programs::find(arguments.respool.as_deref(), 0)?.respool?;
    let mut args = vec![format!("--backend={url}")];
    args.extend(arguments.respool_args.iter().cloned());
    Proxy::start(&respool, &args).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MUCH: Shown = Shown {
        fuses: true,
        collapses: true,
        fused_gets: 1,
        fused_sets: 1,
        collapsed: 1,
    };

    #[test]
    fn a_run_in_which_nothing_was_joined_fails_unless_respool_does_without() {
        let arguments = Arguments::default();
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

    #[test]
    fn where_requests_need_not_meet_each_other_nothing_is_asked_of_a_run() {
        let none = Shown {
            fused_gets: 0,
            fused_sets: 0,
            collapsed: 0,
            ..MUCH
        };
        none.enough(&Arguments::default(), REQUESTS_MIN - 1)
            .expect("they are few");
        let mut lone = Arguments::default();
        lone.settings.clients = 1;
        lone.settings.pipeline = 1;
        none.enough(&lone, REQUESTS_MIN).expect("it is alone");
        let mut many = Arguments::default();
        many.settings.keys = KEYS_MAX + 1;
        let unjoined = Shown {
            collapsed: 0,
            ..MUCH
        };
        unjoined
            .enough(&many, REQUESTS_MIN)
            .expect("there are many keys");
        let cluster = Arguments {
            kind: Some(Kind::Cluster),
            ..Arguments::default()
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

//! `respool-lab differ`

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use super::{fail, read, say};
use crate::differ::{self, Report, Settings};
use crate::flags::{Flag, positive, seconds};
use crate::servers::{self, Flavour};
use crate::targets::Programs;

const NAME: &str = "differ";
const ABOUT: &str = "\
respool-lab differ: asks a server directly, and a second, equal one through respool, the same random
requests over several connections. Every reply must be the same, and so must be what the two servers hold
in the end. What is forgiven, and why, stands in a table in crates/lab/src/differ/compare.rs.

A case that differs is cut down to a short script, which is printed; --replay runs it again. In a script,
what one connection writes in a round leaves in one write; a round ends when all its replies have come.
Exits with 1 when anything differed.

Usage: respool-lab differ [OPTIONS]
Example: respool-lab differ --server valkey-9.1 --seed 7 --cases 500 --respool-arg --threads=3";

struct Arguments {
    settings: Settings,
    flavours: Vec<Flavour>,
    respool: Option<PathBuf>,
    replay: Option<PathBuf>,
    checks_itself: bool,
}

const FLAGS: [&Flag<Arguments>; 16] = [
    &Flag {
        name: "seed",
        value: Some("N"),
        help: "Of the first case; the next one has the next [1].",
        set: |arguments, value| {
            arguments.settings.seed = value.parse().map_err(|_| "a whole number is expected")?;
            Ok(())
        },
    },
    &Flag {
        name: "cases",
        value: Some("N"),
        help: "Cases, each from an empty server, for each server [100].",
        set: |arguments, value| positive(value).map(|n| arguments.settings.cases = n),
    },
    &Flag {
        name: "seconds",
        value: Some("S"),
        help: "Begin no case after so long, for each server [no limit].",
        set: |arguments, value| {
            arguments.settings.time_max = Some(Duration::from_secs_f64(seconds(value)?));
            Ok(())
        },
    },
    &Flag {
        name: "steps",
        value: Some("N"),
        help: "Requests of a case, about [60].",
        set: |arguments, value| positive(value).map(|n| arguments.settings.steps = n),
    },
    &Flag {
        name: "connections",
        value: Some("N"),
        help: "Connections of a case [4].",
        set: |arguments, value| positive(value).map(|n| arguments.settings.connections = n),
    },
    &Flag {
        name: "classes",
        value: Some("A,B,…"),
        help: "Only these classes of requests; `--classes ?` names them [all].",
        set: |arguments, value| {
            arguments.settings.classes = names(value)?;
            Ok(())
        },
    },
    &Flag {
        name: "without",
        value: Some("A,B,…"),
        help: "All but these classes of requests.",
        set: |arguments, value| {
            arguments.settings.without = names(value)?;
            Ok(())
        },
    },
    &Flag {
        name: "omit",
        value: Some("A,B,…"),
        help: "Never ask these commands: CLIENT LIST,READONLY. What is known need not be found again.",
        set: |arguments, value| {
            let omitted = names(&value.to_uppercase())?;
            arguments.settings.omitted.extend(omitted);
            Ok(())
        },
    },
    &Flag {
        name: "server",
        value: Some("NAME"),
        help: "redis-6.2, redis-7.0, redis-8.2, valkey-9.1, or all that are installed: all [redis-7.0].",
        set: |arguments, value| {
            arguments.flavours = match value {
                "all" => Flavour::ALL
                    .into_iter()
                    .filter(|flavour| servers::find(*flavour).is_ok())
                    .collect(),
                name => vec![differ::flavour(name)?],
            };
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
            arguments.settings.respool_args.push(value.to_owned());
            Ok(())
        },
    },
    &Flag {
        name: "strip",
        value: None,
        help: "Give all keys a prefix, on both sides, that respool takes off before its server sees them.",
        set: |arguments, _| {
            arguments.settings.strips = true;
            Ok(())
        },
    },
    &Flag {
        name: "patience",
        value: Some("S"),
        help: "How long a reply may take [5].",
        set: |arguments, value| {
            arguments.settings.patience = Duration::from_secs_f64(seconds(value)?);
            Ok(())
        },
    },
    &Flag {
        name: "refusals",
        value: None,
        help: "Count what respool refuses in its own words instead of taking it for a difference; the case ends there.",
        set: |arguments, _| {
            arguments.settings.accepts_refusals = true;
            Ok(())
        },
    },
    &Flag {
        name: "replay",
        value: Some("FILE"),
        help: "Run this script instead of random ones.",
        set: |arguments, value| {
            arguments.replay = Some(value.into());
            Ok(())
        },
    },
    &Flag {
        name: "self-check",
        value: None,
        help: "Test the tester: without respool nothing may differ, and planted differences must be found.",
        set: |arguments, _| {
            arguments.checks_itself = true;
            Ok(())
        },
    },
];

fn names(value: &str) -> Result<Vec<String>, String> {
    match value {
        "?" => Err(format!("the classes are {}", differ::classes())),
        names => Ok(names
            .split(',')
            .map(|name| name.trim().to_owned())
            .collect()),
    }
}

/// Runs it.
pub fn run(args: &[OsString]) -> ExitCode {
    let mut arguments = Arguments {
        settings: Settings::default(),
        flavours: vec![Flavour::Redis70],
        respool: None,
        replay: None,
        checks_itself: false,
    };
    if let Err(code) = read(NAME, ABOUT, &FLAGS, args, &mut arguments) {
        return code;
    }
    match run_all(&mut arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => fail(NAME, &problem),
    }
}

/// Whether nothing differed on any server.
fn run_all(arguments: &mut Arguments) -> Result<bool, String> {
    let settings = &mut arguments.settings;
    if !arguments.checks_itself {
        settings.respool = Programs::find(arguments.respool.as_deref(), 0)?.respool?;
    }
    let script = match &arguments.replay {
        Some(path) => {
            let text = std::fs::read_to_string(path);
            Some(text.map_err(|error| format!("--replay {}: {error}", path.display()))?)
        }
        None => None,
    };
    let mut is_clean = true;
    for flavour in &arguments.flavours {
        settings.flavour = *flavour;
        let version =
            servers::version(&servers::find(*flavour)?).map_err(|error| error.to_string())?;
        let mut tell = |text: &str| say(&format!("{text}\n"));
        tell(&format!("{version}: seed {}", settings.seed));
        if arguments.checks_itself {
            differ::self_check(settings, &mut tell)?;
            continue;
        }
        let report: Report = match &script {
            Some(script) => differ::replay(settings, script)?,
            None => differ::run(settings, &mut tell)?,
        };
        is_clean &= report.is_clean();
        say(&report.text());
    }
    Ok(is_clean)
}

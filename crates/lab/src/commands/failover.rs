//! `respool-lab failover`

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use super::experiment::{failed, new_folder, show, stop_flag, style};
use super::{fail, read};
use crate::differ;
use crate::experiment::command_line;
use crate::failover::{self, ABOUT, By, Kind, NAME, READS, Settings, TITLE, Through, page};
use crate::flags::{Flag, WIDTH, positive, seconds, wrap};

struct Arguments {
    settings: Settings,
    respool: Option<PathBuf>,
    out: Option<PathBuf>,
}

const FLAGS: [&Flag<Arguments>; 19] = [
    &Flag {
        name: "kind",
        value: Some("KIND"),
        help: "What stands behind the proxy [cluster]: cluster, three primaries with a replica each; sentinel, a primary and a \
               replica that three Sentinels watch; sharded, three plain servers, of which one comes back empty.",
        set: |arguments, value| {
            let kind = Kind::ALL.into_iter().find(|kind| kind.name() == value);
            arguments.settings.kind = kind.ok_or("cluster, sentinel or sharded is expected")?;
            Ok(())
        },
    },
    &Flag {
        name: "by",
        value: Some("kill|freeze|command"),
        help: "How the server goes [kill]: SIGKILL; SIGSTOP, its connections stay and nobody answers; or CLUSTER FAILOVER or \
               SENTINEL FAILOVER, while it runs.",
        set: |arguments, value| {
            let by = By::ALL.into_iter().find(|by| by.name() == value);
            arguments.settings.by = by.ok_or("kill, freeze or command is expected")?;
            Ok(())
        },
    },
    &Flag {
        name: "through",
        value: Some("respool|envoy"),
        help: "What clients ask through [respool]; Envoy, to compare with, before a Cluster alone.",
        set: |arguments, value| {
            let mut all = [Through::Respool, Through::Envoy].into_iter();
            let through = all.find(|through| through.name() == value);
            arguments.settings.through = through.ok_or("respool or envoy is expected")?;
            Ok(())
        },
    },
    &Flag {
        name: "partial",
        value: None,
        help: "The primaries of a Cluster answer for their own slots while nobody has those of the one that failed \
               (cluster-require-full-coverage no). Without it nobody's keys are served until an heir is there.",
        set: |arguments, _| {
            arguments.settings.is_partial = true;
            Ok(())
        },
    },
    &Flag {
        name: "rounds",
        value: Some("N"),
        help: "How often, each time with new servers [3].",
        set: |arguments, value| positive(value).map(|n| arguments.settings.rounds = n),
    },
    &Flag {
        name: "rate",
        value: Some("N"),
        help: "Requests a second that are due, over all clients [2000].",
        set: |arguments, value| positive(value).map(|n| arguments.settings.rate = n),
    },
    &Flag {
        name: "writers",
        value: Some("N"),
        help: "Connections that write, one request at a time [8].",
        set: |arguments, value| positive(value).map(|n| arguments.settings.writers = n),
    },
    &Flag {
        name: "readers",
        value: Some("N"),
        help: "Connections that read [8].",
        set: |arguments, value| positive(value).map(|n| arguments.settings.readers = n),
    },
    &Flag {
        name: "keys",
        value: Some("N"),
        help: "Keys that are written, and as many that are read [240].",
        set: |arguments, value| positive(value).map(|n| arguments.settings.keys = n),
    },
    &Flag {
        name: "before",
        value: Some("S"),
        help: "Seconds of load before the moment [1].",
        set: |arguments, value| seconds(value).map(|s| arguments.settings.before_s = s),
    },
    &Flag {
        name: "after",
        value: Some("S"),
        help: "Seconds of load behind it: more than the servers need [6].",
        set: |arguments, value| seconds(value).map(|s| arguments.settings.after_s = s),
    },
    &Flag {
        name: "down",
        value: Some("S"),
        help: "Seconds after which a plain server comes back [1].",
        set: |arguments, value| seconds(value).map(|s| arguments.settings.down_s = s),
    },
    &Flag {
        name: "silence",
        value: Some("MS"),
        help: "After so long a silence nodes or Sentinels think that a server has failed [1500].",
        set: |arguments, value| {
            let ms = positive(value)?;
            arguments.settings.silence = Duration::from_millis(ms);
            Ok(())
        },
    },
    &Flag {
        name: "reads",
        value: Some("POLICY"),
        help: "Where respool reads [primary]: primary, replica, prefer-primary, prefer-replica or nearest. With the last three a read that \
               fails fails the run.",
        set: |arguments, value| {
            let policy = READS.into_iter().find(|policy| *policy == value);
            let policy =
                policy.ok_or_else(|| format!("one of {} is expected", READS.join(", ")))?;
            policy.clone_into(&mut arguments.settings.reads);
            Ok(())
        },
    },
    &Flag {
        name: "threads",
        value: Some("N"),
        help: "Workers of respool [1].",
        set: |arguments, value| {
            let number = positive::<u32>(value)?;
            arguments.settings.threads = number.try_into().map_err(|_| "too many")?;
            Ok(())
        },
    },
    &Flag {
        name: "server",
        value: Some("NAME"),
        help: "redis-6.2, redis-7.0, redis-8.2 or valkey-9.1 [redis-7.0].",
        set: |arguments, value| {
            let flavour = differ::flavour(value)?;
            arguments.settings.flavour = flavour.name().to_owned();
            Ok(())
        },
    },
    &Flag {
        name: "respool",
        value: Some("PATH"),
        help: "The proxy's binary [next to respool-lab, or in PATH].",
        set: |arguments, value| {
            arguments.respool = Some(PathBuf::from(value));
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
        name: "out",
        value: Some("DIR"),
        help: "Where the files go [a new folder in lab-out].",
        set: |arguments, value| {
            arguments.out = Some(PathBuf::from(value));
            Ok(())
        },
    },
];

/// Runs it.
pub fn run(args: &[OsString]) -> ExitCode {
    let mut arguments = Arguments {
        settings: Settings::default(),
        respool: None,
        out: None,
    };
    if let Err(code) = read(NAME, &about(), &FLAGS, args, &mut arguments) {
        return code;
    }
    match measured(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => fail(NAME, &problem),
    }
}

fn measured(arguments: &Arguments) -> Result<(), String> {
    let stop = stop_flag()?;
    let respool = arguments.respool.as_deref();
    let report = failover::run(&arguments.settings, respool, command_line(), &stop)?;
    let folder = arguments.out.clone();
    let folder = folder.unwrap_or_else(|| new_folder(NAME, &report.started));
    show(page::text(&report, style()), &folder, report.write(&folder))?;
    failed(&report.failures).map_or(Ok(()), Err)
}

fn about() -> String {
    let ends = "\
For each round: the first and the last error, how long no write was acknowledged, when the heir took a write directly and when \
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

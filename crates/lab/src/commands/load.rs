//! `respool-lab load`

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;

use super::{end_with_parent, fail, read};
use crate::case::Verb;
use crate::experiment::theta;
use crate::flags::{Flag, positive, seconds, value_bytes};
use crate::load::{self, Event, Load};
use crate::tape::{Recipe, Values};

const NAME: &str = "load";
const ABOUT: &str = "\
respool-lab load: puts load on a server or proxy and prints what came of it as JSON.

Every reply is checked: GET must bring the value that belongs to its key (--preload writes them all).
Exits with 1 when one was wrong, or when a connection was left without its reply.

Closed loop, unless there is a --rate: each connection sends --pipeline requests, waits for all replies,
sends the next. With --rate requests are due at fixed times, and the time of each counts from when it
was due, so that queueing shows.

Usage: respool-lab load --target HOST:PORT [OPTIONS]
Example: respool-lab load --target 127.0.0.1:6379 --preload --get --pipeline 20 --seconds 5";

struct Settings {
    target: Option<SocketAddr>,
    load: Load,
    is_preloaded: bool,
    tells_progress: bool,
    is_child: bool,
}

const FLAGS: [&Flag<Settings>; 21] = [
    &Flag {
        name: "target",
        value: Some("HOST:PORT"),
        help: "Whom to ask.",
        set: |settings, value| {
            settings.target = Some(address(value)?);
            Ok(())
        },
    },
    &Flag {
        name: "get",
        value: None,
        help: "Ask GET (the default).",
        set: |settings, _| {
            settings.load.recipe.verb = Verb::Get;
            Ok(())
        },
    },
    &Flag {
        name: "set",
        value: None,
        help: "Ask SET.",
        set: |settings, _| {
            settings.load.recipe.verb = Verb::Set;
            Ok(())
        },
    },
    &Flag {
        name: "multi",
        value: None,
        help: "Ask MULTI, SET, GET, EXEC; the four count as one request.",
        set: |settings, _| {
            settings.load.recipe.verb = Verb::Multi;
            Ok(())
        },
    },
    &Flag {
        name: "mget",
        value: Some("N"),
        help: "Ask MGET of so many different keys.",
        set: |settings, value| positive(value).map(|n| settings.load.recipe.verb = Verb::Mget(n)),
    },
    &Flag {
        name: "mset",
        value: Some("N"),
        help: "Ask MSET of so many different keys.",
        set: |settings, value| positive(value).map(|n| settings.load.recipe.verb = Verb::Mset(n)),
    },
    &Flag {
        name: "connections",
        value: Some("N"),
        help: "Connections that ask [50].",
        set: |settings, value| positive(value).map(|n| settings.load.connections = n),
    },
    &Flag {
        name: "idle",
        value: Some("N"),
        help: "Further connections that are open and do nothing [0].",
        set: |settings, value| {
            settings.load.idle = value.parse().map_err(|_| "a whole number is expected")?;
            Ok(())
        },
    },
    &Flag {
        name: "pipeline",
        value: Some("N"),
        help: "Requests that a connection sends at once [1].",
        set: |settings, value| positive(value).map(|n| settings.load.recipe.pipeline = n),
    },
    &Flag {
        name: "keys",
        value: Some("N"),
        help: "Different keys, chosen evenly [3000].",
        set: |settings, value| positive(value).map(|n| settings.load.recipe.keys = n),
    },
    &Flag {
        name: "zipf",
        value: Some("THETA"),
        help: "Keys chosen by Zipf's law with this exponent: the first one most often.",
        set: |settings, value| theta(value).map(|theta| settings.load.recipe.zipf = Some(theta)),
    },
    &Flag {
        name: "value-bytes",
        value: Some("N"),
        help: "Size of each value [2].",
        set: |settings, value| value_bytes(value).map(|n| settings.load.recipe.value_bytes = n),
    },
    &Flag {
        name: "values",
        value: Some("key|filler"),
        help: "The value of a key: made from the key (the default), so that a reply that belongs to\n\
               another request shows; or the same for all, as the floor answers.",
        set: |settings, value| {
            settings.load.recipe.values = match value {
                "key" => Values::OfKey,
                "filler" => Values::Filler,
                _ => return Err("key or filler is expected".to_owned()),
            };
            Ok(())
        },
    },
    &Flag {
        name: "seconds",
        value: Some("S"),
        help: "Length of the measured window [5].",
        set: |settings, value| seconds(value).map(|s| settings.load.seconds = s),
    },
    &Flag {
        name: "warmup",
        value: Some("S"),
        help: "Seconds of the same load before it [0.5].",
        set: |settings, value| seconds(value).map(|s| settings.load.warmup_s = s),
    },
    &Flag {
        name: "rate",
        value: Some("N"),
        help: "Open loop: so many requests a second over all connections.",
        set: |settings, value| positive::<f64>(value).map(|n| settings.load.rate = Some(n)),
    },
    &Flag {
        name: "threads",
        value: Some("N"),
        help: "Threads that ask [1].",
        set: |settings, value| positive(value).map(|n| settings.load.threads = n),
    },
    &Flag {
        name: "preload",
        value: None,
        help: "First write every key, through the target.",
        set: |settings, _| {
            settings.is_preloaded = true;
            Ok(())
        },
    },
    &Flag {
        name: "watch",
        value: Some("NAME=PID"),
        help: "Also say what CPU this process used in the window. May be given several times; those of\n\
               one name are added up.",
        set: |settings, value| {
            let (name, pid) = value.split_once('=').ok_or("NAME=PID is expected")?;
            let pid = positive(pid)?;
            let watched = &mut settings.load.watch;
            match watched.iter_mut().find(|(other, _)| other == name) {
                Some((_, pids)) => pids.push(pid),
                None => watched.push((name.to_owned(), vec![pid])),
            }
            Ok(())
        },
    },
    &Flag {
        name: "progress",
        value: None,
        help: "Tell ten times a second how far it is, one JSON object a line.",
        set: |settings, _| {
            settings.tells_progress = true;
            Ok(())
        },
    },
    &Flag {
        name: "child",
        value: None,
        help: "End when the process that started it ends.",
        set: |settings, _| {
            settings.is_child = true;
            Ok(())
        },
    },
];

/// Runs it.
pub fn run(args: &[OsString]) -> ExitCode {
    let mut settings = Settings {
        target: None,
        load: Load {
            target: SocketAddr::from(([127, 0, 0, 1], 0)),
            recipe: Recipe {
                verb: Verb::Get,
                pipeline: 1,
                keys: 3000,
                zipf: None,
                value_bytes: 2,
                values: Values::OfKey,
            },
            connections: 50,
            idle: 0,
            threads: 1,
            warmup_s: 0.5,
            seconds: 5.0,
            rate: None,
            watch: Vec::new(),
        },
        is_preloaded: false,
        tells_progress: false,
        is_child: false,
    };
    if let Err(code) = read(NAME, ABOUT, &FLAGS, args, &mut settings) {
        return code;
    }
    let Some(target) = settings.target else {
        return fail(NAME, "whom? --target HOST:PORT");
    };
    settings.load.target = target;
    if settings.is_child {
        end_with_parent();
    }
    if settings.is_preloaded
        && let Err(problem) = load::preload(target, &settings.load.recipe)
    {
        return fail(NAME, &problem);
    }
    let result = load::run(&settings.load, &mut |event| {
        if settings.tells_progress {
            print_json(&event, false);
        }
    });
    match result {
        Err(problem) => fail(NAME, &problem),
        Ok(result) => {
            let is_good = result.wrong == 0 && result.stalled == 0;
            let event = Event::Result(Box::new(result));
            print_json(&event, !settings.tells_progress);
            if is_good {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

/// HOST:PORT, the host a name or an address.
///
/// # Errors
/// When it is not, or the name is not known.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let mut found = text
        .to_socket_addrs()
        .map_err(|error| format!("HOST:PORT: {error}"))?;
    found
        .next()
        .ok_or_else(|| "no address of that name".to_owned())
}

fn print_json(event: &Event, is_pretty: bool) {
    let text = if is_pretty {
        serde_json::to_string_pretty(event)
    } else {
        serde_json::to_string(event)
    };
    let text = text.expect("an event has only keys that are strings");
    // Whoever read it is gone: nothing to tell any more, the exit code still stands.
    let _ = writeln!(io::stdout().lock(), "{text}");
}

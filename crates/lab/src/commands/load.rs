//! `respool-lab load`

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use respool_testkit::tls_client::TlsPeer;

use super::{end_with_parent, fail, read};
use crate::case::Verb;
use crate::flags::{address, positive, seconds, value_bytes};
use crate::load::{self, LoadEvent, LoadSettings};
use crate::options::theta;
use crate::tape::{TapeRecipe, TapeValues};

const NAME: &str = "load";
const ABOUT: &str = "\
respool-lab load: puts load on a server or proxy and prints the result as JSON.

Every reply is checked: GET must bring the value that belongs to its key (--preload writes them all).
Exits with 1 when one was wrong, or when a connection was left without its reply.

Closed loop, unless there is a --rate: each connection sends --pipeline requests, waits for all replies,
sends the next. With --rate requests are due at fixed times, and the time of each counts from when it
was due, so that queueing shows.

Usage: respool-lab load --target HOST:PORT [OPTIONS]
Example: respool-lab load --target 127.0.0.1:6379 --preload --get --pipeline 20 --seconds 5";

#[derive(Args)]
struct LoadCommandArgs {
    /// The server or proxy to load.
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    target: SocketAddr,
    /// Connect over TLS, and trust this CA. The certificate must name the address.
    #[arg(long, value_name = "FILE", conflicts_with = "idle")]
    tls_ca: Option<PathBuf>,
    #[command(flatten)]
    verb: VerbArgs,
    /// Connections that send requests.
    #[arg(long, value_name = "N", value_parser = positive::<usize>, default_value_t = 50)]
    connections: usize,
    /// Further connections that stay idle.
    #[arg(long, value_name = "N", default_value_t = 0)]
    idle: usize,
    /// Requests that a connection sends at once.
    #[arg(long, value_name = "N", value_parser = positive::<usize>, default_value_t = 1)]
    pipeline: usize,
    /// Different keys, chosen evenly.
    #[arg(long, value_name = "N", value_parser = positive::<u32>, default_value_t = 3000)]
    keys: u32,
    /// Keys chosen by Zipf's law with this exponent: the first one most often.
    #[arg(long, value_name = "THETA", value_parser = theta)]
    zipf: Option<f64>,
    /// Size of each value.
    #[arg(long, value_name = "N", value_parser = value_bytes, default_value_t = 2)]
    value_bytes: usize,
    /// The value of a key: made from the key, so that a reply that belongs to another request
    /// shows; or the same for all, as the floor answers.
    #[arg(long, value_name = "key|filler", value_parser = values, default_value = "key")]
    values: TapeValues,
    /// Length of the measured window.
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "5")]
    seconds: f64,
    /// Seconds of the same load before it.
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "0.5")]
    warmup: f64,
    /// Open loop: so many requests a second over all connections.
    #[arg(long, value_name = "N", value_parser = positive::<f64>)]
    rate: Option<f64>,
    /// Threads that send requests.
    #[arg(long, value_name = "N", value_parser = positive::<usize>, default_value_t = 1)]
    threads: usize,
    /// First write every key, through the target.
    #[arg(long = "preload")]
    is_preloaded: bool,
    /// Also report the CPU of this process in the window. May be repeated; processes of one name
    /// are added up.
    #[arg(long, value_name = "NAME=PID", value_parser = watched)]
    watch: Vec<(String, u32)>,
    /// Report progress ten times a second, one JSON object a line.
    #[arg(long = "progress")]
    tells_progress: bool,
    /// End when the process that started it ends.
    #[arg(long = "child")]
    is_child: bool,
}

/// The command; the last of these counts.
#[derive(Args)]
struct VerbArgs {
    /// Send GET (the default).
    #[arg(long, overrides_with_all = ["set", "multi", "mget", "mset"])]
    get: bool,
    /// Send SET.
    #[arg(long, overrides_with_all = ["get", "multi", "mget", "mset"])]
    set: bool,
    /// Send MULTI, SET, GET, EXEC; the four count as one request.
    #[arg(long, overrides_with_all = ["get", "set", "mget", "mset"])]
    multi: bool,
    /// Send MGET of so many different keys.
    #[arg(long, value_name = "N", value_parser = positive::<u32>,
          overrides_with_all = ["get", "set", "multi", "mset"])]
    mget: Option<u32>,
    /// Send MSET of so many different keys.
    #[arg(long, value_name = "N", value_parser = positive::<u32>,
          overrides_with_all = ["get", "set", "multi", "mget"])]
    mset: Option<u32>,
}

impl VerbArgs {
    fn verb(&self) -> Verb {
        match (self.set, self.multi, self.mget, self.mset) {
            (true, ..) => Verb::Set,
            (_, true, ..) => Verb::Multi,
            (.., Some(keys), _) => Verb::Mget(keys),
            (.., Some(keys)) => Verb::Mset(keys),
            _ => Verb::Get,
        }
    }
}

impl LoadCommandArgs {
    fn load(&self) -> Result<LoadSettings, String> {
        let config = |file: &PathBuf| {
            let config = TlsPeer::trusting(file).config();
            config.map_err(|error| format!("{}: {error}", file.display()))
        };
        let tls = self.tls_ca.as_ref().map(config).transpose()?;
        let mut watch: Vec<(String, Vec<u32>)> = Vec::new();
        for (name, pid) in &self.watch {
            match watch.iter_mut().find(|(other, _)| other == name) {
                Some((_, pids)) => pids.push(*pid),
                None => watch.push((name.clone(), vec![*pid])),
            }
        }
        Ok(LoadSettings {
            target: self.target,
            tls,
            recipe: TapeRecipe {
                verb: self.verb.verb(),
                pipeline: self.pipeline,
                keys: self.keys,
                zipf: self.zipf,
                value_bytes: self.value_bytes,
                values: self.values,
            },
            connections: self.connections,
            idle: self.idle,
            threads: self.threads,
            warmup_s: self.warmup,
            seconds: self.seconds,
            rate: self.rate,
            watch,
        })
    }
}

fn values(value: &str) -> Result<TapeValues, &'static str> {
    match value {
        "key" => Ok(TapeValues::OfKey),
        "filler" => Ok(TapeValues::Filler),
        _ => Err("key or filler is expected"),
    }
}

fn watched(value: &str) -> Result<(String, u32), String> {
    let (name, pid) = value.split_once('=').ok_or("NAME=PID is expected")?;
    Ok((name.to_owned(), positive(pid)?))
}

/// Runs it.
pub fn run(args: &[OsString]) -> ExitCode {
    let settings: LoadCommandArgs = match read(NAME, ABOUT, args) {
        Ok(settings) => settings,
        Err(code) => return code,
    };
    let load = match settings.load() {
        Ok(load) => load,
        Err(problem) => return fail(NAME, &problem),
    };
    if settings.is_child {
        end_with_parent();
    }
    if settings.is_preloaded
        && let Err(problem) = load::preload(load.target, load.tls.as_ref(), &load.recipe)
    {
        return fail(NAME, &problem);
    }
    let result = load::run(&load, &mut |event| {
        if settings.tells_progress {
            print_json(&event, false);
        }
    });
    match result {
        Err(problem) => fail(NAME, &problem),
        Ok(result) => {
            let is_good = result.wrong == 0 && result.stalled == 0;
            let event = LoadEvent::Result(Box::new(result));
            print_json(&event, !settings.tells_progress);
            if is_good {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

fn print_json(event: &LoadEvent, is_pretty: bool) {
    let text = if is_pretty {
        serde_json::to_string_pretty(event)
    } else {
        serde_json::to_string(event)
    };
    let text = text.expect("an event has only keys that are strings");
    // A reader that has left is no failure: the exit code still stands.
    let _ = writeln!(io::stdout().lock(), "{text}");
}

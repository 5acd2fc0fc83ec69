//! `respool-lab cluster`

use std::ffi::OsString;
use std::process::ExitCode;

use super::{experiment, fail, read};
use crate::case::{Verb, Way};
use crate::cluster::{CLUSTER, SERVERS_MAX};
use crate::experiment::{FLAGS, MINUTES, Options};
use crate::flags::{Flag, WIDTH, list, wrap};

/// Options of the experiments that mean the same here.
const NAMES: [&str; 12] = [
    "seconds",
    "warmup",
    "rounds",
    "pipeline",
    "connections",
    "threads",
    "keys",
    "value-bytes",
    "generator-threads",
    "server",
    "respool",
    "out",
];

const OWN: [&Flag<Options>; 5] = [
    &Flag {
        name: "ways",
        value: Some("LIST"),
        help: "Of sharded (respool before plain servers), cluster (respool before a Cluster) and envoy (Envoy before \
               the same Cluster) [all].",
        set: |options, value| {
            options.ways.clear();
            for word in value.split(',').map(str::trim) {
                let way = Way::ALL.into_iter().find(|way| way.name() == word);
                let way = way.ok_or(format!("{word:?} is none of sharded, cluster and envoy"))?;
                if !options.ways.contains(&way) {
                    options.ways.push(way);
                }
            }
            Ok(())
        },
    },
    &Flag {
        name: "servers",
        value: Some("LIST"),
        help: "How many servers are behind each, several numbers with commas [1,3,6]. Ratios are to 1.",
        set: |options, value| {
            let numbers: Vec<u32> = list(value)?;
            let number = |n: u32| u16::try_from(n).ok().filter(|&n| n <= SERVERS_MAX);
            let numbers: Option<Vec<u16>> = numbers.into_iter().map(number).collect();
            options.servers = numbers.ok_or(format!("{SERVERS_MAX} servers at most"))?;
            Ok(())
        },
    },
    &Flag {
        name: "verbs",
        value: Some("LIST"),
        help: "Of set, get, mget and mset [all].",
        set: |options, value| {
            options.verbs.clear();
            for word in value.split(',').map(str::trim) {
                options.verbs.push(match word {
                    "set" => Verb::Set,
                    "get" => Verb::Get,
                    "mget" => Verb::Mget(100),
                    "mset" => Verb::Mset(100),
                    other => return Err(format!("{other:?} is none of set, get, mget and mset")),
                });
            }
            Ok(())
        },
    },
    &Flag {
        name: "no-direct",
        value: None,
        help: "Do not ask one server directly beside them.",
        set: |options, _| {
            options.is_without_direct = true;
            Ok(())
        },
    },
    &MINUTES,
];

/// Runs it.
pub fn run(args: &[OsString]) -> ExitCode {
    let mut options = Options::default();
    (CLUSTER.adapt)(&mut options);
    let shared = FLAGS.into_iter().filter(|flag| NAMES.contains(&flag.name));
    let flags: Vec<&Flag<Options>> = OWN.into_iter().chain(shared).collect();
    if let Err(code) = read(CLUSTER.name, &about(&options), &flags, args, &mut options) {
        return code;
    }
    match experiment::measured(&CLUSTER, &options) {
        Ok(_) => ExitCode::SUCCESS,
        Err(problem) => fail(CLUSTER.name, &problem),
    }
}

fn about(options: &Options) -> String {
    let ends = format!(
        "For each way and number of servers: throughput, the time of a request, and the CPU per request of the proxy, of all servers \
         together and of the generator; what it is to one server, to Envoy, and to one server asked directly; and the bars \
         that were set for three servers. Every reply is checked. All {} cases take turns, round by round; tables show \
         medians. The Clusters have no replicas, and nothing fails in them: for that there is respool-lab failover. Exits \
         with 1 when a reply was wrong or missing.",
        options.cases().len()
    );
    let [about, ends] = [CLUSTER.about, &ends].map(|text| wrap(text, WIDTH).join("\n"));
    format!(
        "respool-lab cluster: {}\n\n{about}\n\n{ends}\n\nUsage: respool-lab cluster [OPTIONS]\nExamples:\n  \
         respool-lab cluster\n  respool-lab cluster --ways sharded --servers 1,3 --minutes 2\n  \
         respool-lab cluster --connections 1 --pipeline 1 --verbs mget",
        CLUSTER.title
    )
}

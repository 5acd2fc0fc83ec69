//! `respool-lab cluster`

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;

use super::{experiment, fail, read};
use crate::case::{Verb, Way};
use crate::cluster::{CLUSTER, SERVERS_MAX};
use crate::flags::{ValueList, WIDTH, list, positive, wrap};
use crate::options::{LoadArgs, PlaceArgs, RunOptions, TimeArgs, put};

#[derive(Args)]
struct ClusterArgs {
    /// Of sharded (respool before plain servers), cluster (respool before a Cluster) and envoy
    /// (Envoy before the same Cluster) [all].
    #[arg(long, value_name = "LIST", value_parser = ways)]
    ways: Option<ValueList<Way>>,
    /// How many servers are behind each, several numbers with commas [1,3,6]. Ratios are to 1.
    #[arg(long, value_name = "LIST", value_parser = server_counts)]
    servers: Option<ValueList<u16>>,
    /// Of set, get, mget and mset [all].
    #[arg(long, value_name = "LIST", value_parser = verbs)]
    verbs: Option<ValueList<Verb>>,
    /// Do not ask one server directly beside them.
    #[arg(long)]
    no_direct: bool,
    /// About so long in all, windows as long as that allows [10].
    #[arg(long, value_name = "N", value_parser = positive::<f64>)]
    minutes: Option<f64>,
    #[command(flatten)]
    time: TimeArgs,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    place: PlaceArgs,
}

impl ClusterArgs {
    fn apply(self, options: &mut RunOptions) {
        put(self.ways, &mut options.ways);
        put(self.servers, &mut options.servers);
        put(self.verbs, &mut options.verbs);
        options.is_without_direct = self.no_direct;
        put(
            self.minutes.map(|minutes| Some(minutes * 60.0)),
            &mut options.budget_s,
        );
        self.time.apply(options);
        self.load.apply(options);
        self.place.apply(options);
    }
}

fn ways(value: &str) -> Result<ValueList<Way>, String> {
    let mut ways = Vec::new();
    for word in value.split(',').map(str::trim) {
        let way = Way::ALL.into_iter().find(|way| way.name() == word);
        let way = way.ok_or(format!("{word:?} is none of sharded, cluster and envoy"))?;
        if !ways.contains(&way) {
            ways.push(way);
        }
    }
    Ok(ways)
}

fn server_counts(value: &str) -> Result<ValueList<u16>, String> {
    let numbers: Vec<u32> = list(value)?;
    let number = |n: u32| u16::try_from(n).ok().filter(|&n| n <= SERVERS_MAX);
    let numbers: Option<Vec<u16>> = numbers.into_iter().map(number).collect();
    numbers.ok_or(format!("{SERVERS_MAX} servers at most"))
}

fn verbs(value: &str) -> Result<ValueList<Verb>, String> {
    let verb = |word: &str| match word.trim() {
        "set" => Ok(Verb::Set),
        "get" => Ok(Verb::Get),
        "mget" => Ok(Verb::Mget(100)),
        "mset" => Ok(Verb::Mset(100)),
        other => Err(format!("{other:?} is none of set, get, mget and mset")),
    };
    value.split(',').map(verb).collect()
}

/// Runs it.
pub fn run(args: &[OsString]) -> ExitCode {
    let mut options = RunOptions::default();
    (CLUSTER.adapt)(&mut options);
    let given: ClusterArgs = match read(CLUSTER.name, &about(&options), args) {
        Ok(given) => given,
        Err(code) => return code,
    };
    given.apply(&mut options);
    match experiment::measured(&CLUSTER, &options) {
        Ok(_) => ExitCode::SUCCESS,
        Err(problem) => fail(CLUSTER.name, &problem),
    }
}

fn about(options: &RunOptions) -> String {
    let ends = format!(
        "For each way and number of servers: throughput, the time of a request, and the CPU per request of the proxy, of all servers \
         together and of the generator; the ratios to one server, to Envoy, and to one server asked directly; and the bars \
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

//! `respool-lab`: one line for each command.

use std::ffi::OsString;
use std::process::ExitCode;

use respool_lab::commands;
use respool_lab::experiment::{CONNECTIONS, EIGHT, LONE, MGET, SKEW};
use respool_lab::tls::TLS;

const HELP: &str = "\
respool-lab: measures respool beside the direct server, beside other proxies and beside the cost
of the kernel alone. Everything runs on this machine, in processes that the lab starts and ends.

Experiments (each prints its tables; with --out most write report.html, report.json, rounds.csv):
  eight        SET and GET, one by one and pipelined, direct and proxied
  lone         One connection, one request at a time: the cost of a hop
  connections  CPU per request at 50 and at 1,000 connections
  mget         The cost of a key in an MGET of 1 to 10,000 keys
  skew         GETs of skewed keys: how many commands of the server joining saves
  window       Gain and cost of the flush rules: time and CPU of a request over the load
  tls          The cost of TLS to clients, beside the server's own and two other proxies
  cluster      The cost of dividing requests among several servers, beside Envoy
  failover     Errors and delays of clients until another server has replaced a failed one
  client       respool as a library, beside other client libraries
  idle         Memory per idle connection
  rotation     Whether a client fails or waits while certificates change
  reload       Whether a request fails or waits while the configuration changes
  scrape       How long a scrape of the metrics takes
  against      Whether this build of respool costs more CPU per request than another one

Tools:
  ratios       The results of respool in several runs, in one table
  load         Puts load on a server or proxy and prints the result as JSON
  servers      A Cluster, a primary with its Sentinels, or plain servers, to put a respool before
  floor        An echo server: the cost of the kernel alone for a proxy
  histories    Concurrent clients through respool: could one server have given these answers?
  differ       The same random requests directly and through respool: every reply must be the same

respool-lab COMMAND --help tells more. To begin with: respool-lab eight --quick";

fn main() -> ExitCode {
    let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let command = if args.is_empty() {
        OsString::from("help")
    } else {
        args.remove(0)
    };
    match command.to_str().unwrap_or_default() {
        "eight" => commands::experiment::run(&EIGHT, &args),
        "lone" => commands::experiment::run(&LONE, &args),
        "connections" => commands::experiment::run(&CONNECTIONS, &args),
        "mget" => commands::experiment::run(&MGET, &args),
        "skew" => commands::experiment::run(&SKEW, &args),
        "window" => commands::window::run(&args),
        "tls" => commands::experiment::run(&TLS, &args),
        "cluster" => commands::cluster::run(&args),
        "failover" => commands::failover::run(&args),
        "client" => commands::client::run(&args),
        "client-load" => commands::client::load(&args),
        "idle" => commands::idle::run(&args),
        "rotation" => commands::rotation::run(&args),
        "reload" => commands::reload::run(&args),
        "scrape" => commands::scrape::run(&args),
        "against" => commands::against::run(&args),
        "ratios" => commands::ratios::run(&args),
        "load" => commands::load::run(&args),
        "servers" => commands::servers::run(&args),
        "floor" => commands::floor::run(&args),
        "histories" => commands::histories::run(&args),
        "differ" => commands::differ::run(&args),
        "help" | "--help" | "-h" => {
            commands::say(HELP);
            ExitCode::SUCCESS
        }
        "--version" | "-V" => {
            commands::say(concat!("respool-lab ", env!("CARGO_PKG_VERSION"), "\n"));
            ExitCode::SUCCESS
        }
        other => {
            eprintln!("respool-lab: there is no command {other:?}; see respool-lab help");
            ExitCode::FAILURE
        }
    }
}

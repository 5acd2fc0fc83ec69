//! Experiments: which cases, and in which order.
//!
//! An [`Experiment`] is a small description: a name, a question, the default options, and the order
//! of its measurements. [`crate::run`] runs all of them the same way.

use crate::case::{Case, Verb};
use crate::options::{RunOptions, levels};

/// A question and the options that answer it.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// The command that runs it.
    pub name: &'static str,
    /// The headline of its report.
    pub title: &'static str,
    /// Its question, for the report and for `--help`.
    pub about: &'static str,
    /// The differences from [`RunOptions::default`].
    pub adapt: fn(&mut RunOptions),
    /// The order of the cases over so many rounds: [`in_turn`], unless another one is needed.
    pub plan: fn(&[Case], u32) -> RunPlan,
    /// Whether each measurement gets a new proxy on cores of its own. Otherwise all share one, on
    /// any cores.
    pub is_isolated: bool,
}

/// The order of measurements: round number and index of the case.
pub type RunPlan = Vec<(u32, usize)>;

/// The first experiment of the project: does a proxy have to make requests slower?
pub const EIGHT: Experiment = Experiment {
    name: "eight",
    title: "Eight cases: SET and GET, one by one and pipelined, direct and proxied",
    about: "\
Does something that stands between clients and a Redis have to make it slower? 50 connections, 3,000 keys and values
of 2 bytes; SET and GET; one request at a time (P1) and 20 at once (P20); asked directly and through a proxy
with one thread. Then the pipelined cases again through a proxy with three threads. A Redis that is asked one request
at a time spends most of its CPU in system calls; a proxy that gathers the requests of all clients takes that from
it, at the price of its own.",
    adapt: |_| {},
    plan: in_turn,
    is_isolated: false,
};

/// The cost of a hop for a lone client.
pub const LONE: Experiment = Experiment {
    name: "lone",
    title: "A lone caller: one connection, one request at a time",
    about: "\
What does a hop cost a lone caller? One connection, one request at a time: there is nothing to gather, so each
request pays for two more system calls and one more wake-up on its way there, and as many on its way back. The
median is the figure to look at.",
    adapt: |options| {
        options.connections = vec![1];
        options.pipelines = vec![1];
        options.threads = vec![1];
    },
    plan: in_turn,
    is_isolated: false,
};

/// Whether many connections make each request more expensive.
pub const CONNECTIONS: Experiment = Experiment {
    name: "connections",
    title: "Many connections: CPU per request at 50 and at 1,000",
    about: "\
Does a request become dearer when more clients are connected? One request at a time on each connection, 50
connections and 1,000. The figure to look at is the CPU per request of the proxy, at 1,000 against at 50: an event loop
that works per turn where it should work per event shows here.",
    adapt: |options| {
        options.connections = vec![50, 1000];
        options.pipelines = vec![1];
        options.threads = vec![1];
        options.verbs = vec![Verb::Get];
    },
    plan: in_turn,
    is_isolated: false,
};

/// The cost of a key in an MGET of so many.
pub const MGET: Experiment = Experiment {
    name: "mget",
    title: "The decay of MGET: 1 to 10,000 keys in a request",
    about: "\
How does MGET decay with the number of its keys? One connection, one request at a time, from 1 key to 10,000, all
different, of 20,000 keys with values of 4 bytes. A request has a fixed cost, for system calls and wake-ups, and one
for each key: the more keys share the fixed one, the less a key costs, until it hardly matters any more. That is the sweet
spot: the fewest keys at which the server's CPU per key is within 10 % of its least. More of them only make a request
take longer, and all other clients wait for it.",
    adapt: |options| {
        options.connections = vec![1];
        options.pipelines = vec![1];
        options.threads = vec![1];
        options.keys = 20_000;
        options.value_bytes = 4;
        options.verbs = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000]
            .map(Verb::Mget)
            .to_vec();
    },
    plan: in_turn,
    is_isolated: false,
};

/// The saving by joining equal reads, when clients read some keys far more often than others.
pub const SKEW: Experiment = Experiment {
    name: "skew",
    title: "Skewed keys: GETs by Zipf's law, and how many of them reach the server",
    about: "\
How much does it save to ask a server once when several clients want the same value at the same moment? 1,000,000 keys with values of
4 bytes; GETs by Zipf's law with the exponent 0.99, where the first key alone is one request in fifteen; 200 connections,
20 requests at once on each. The server counts the commands that it executes and the keys that it looks up for
them; clients count their requests. The difference was saved: commands by joining requests in any way (identical reads,
or several keys in one MGET), look-ups by joining identical reads alone. To tell the two apart each is measured by itself,
beside both together and none.",
    adapt: |options| {
        options.is_without_respool = true;
        options.variants = levels().collect();
        options.connections = vec![200];
        options.pipelines = vec![20];
        options.threads = vec![1];
        options.keys = 1_000_000;
        options.value_bytes = 4;
        options.verbs = vec![Verb::Get];
        options.zipf = Some(0.99);
    },
    plan: in_turn,
    is_isolated: false,
};

/// Round by round, with each case once in each.
pub fn in_turn(cases: &[Case], rounds: u32) -> RunPlan {
    let round = |number| {
        order(cases, number)
            .into_iter()
            .map(move |place| (number, place))
    };
    (1..=rounds).flat_map(round).collect()
}

/// The indexes of all cases in the order of a round. Workloads are in the order of the tables. All
/// targets of one workload stand together, as they are compared with each other. Every round begins
/// with the next target, so that no target always follows the same other one.
fn order(cases: &[Case], round: u32) -> Vec<usize> {
    let mut order = Vec::with_capacity(cases.len());
    for (place, case) in cases.iter().enumerate() {
        let is_same = |other: &Case| other.workload == case.workload;
        if cases[..place].iter().any(is_same) {
            continue;
        }
        let mut same: Vec<usize> = (place..cases.len())
            .filter(|&p| is_same(&cases[p]))
            .collect();
        let shift = (round as usize - 1) % same.len();
        same.rotate_left(shift);
        order.extend(same);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Workload;
    use crate::options::tests::options;

    /// Every round has every case once, and begins with another target.
    #[test]
    fn rounds_rotate_the_targets() {
        let options = options(&EIGHT, &["--all"]).unwrap();
        let cases = options.cases();
        let mut firsts = Vec::new();
        for round in 1..=5 {
            let order = order(&cases, round);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..cases.len()));
            // All targets of a workload follow each other, those with three threads as well.
            let mut workloads: Vec<Workload> = order.iter().map(|&p| cases[p].workload).collect();
            workloads.dedup();
            assert_eq!(workloads.len(), 4);
            firsts.push(order[0]);
        }
        assert_eq!(firsts, [0, 1, 2, 3, 4]);
    }
}

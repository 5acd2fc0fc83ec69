//! Ratios between client libraries with a bound that was set before they were measured.

use super::peers::{
    GLIDE_JAVA, GLIDE_TASKS, GLIDE_THREADS, JEDIS, LETTUCE, OURS_JAVA, OURS_JAVA_VIRTUAL,
    OURS_PYTHON_TASKS, OURS_PYTHON_THREADS, OURS_TASK, OURS_THREADS, REDIS_PY_TASKS,
    REDIS_PY_THREADS, REDIS_RS_MULTIPLEXED, REDIS_RS_THREADS,
};
use super::{CaseResult, ClientVerb, ClientsReport, PeerRound};
use crate::figure;
use crate::table::{Table, heads};

/// A ratio within a round, and its bound.
struct ClientBar {
    peer: &'static str,
    base: &'static str,
    callers: usize,
    figure: PeerFigure,
    bound: BarBound,
}

#[derive(Clone, Copy)]
enum PeerFigure {
    PerS,
    P50,
    ClientCpu,
    ServerCpu,
}

#[derive(Clone, Copy)]
enum BarBound {
    Least(f64),
    Most(f64),
}

use BarBound::{Least, Most};
use PeerFigure::{ClientCpu, P50, PerS, ServerCpu};

const fn bar(
    peer: &'static str,
    base: &'static str,
    callers: usize,
    figure: PeerFigure,
    bound: BarBound,
) -> ClientBar {
    ClientBar {
        peer,
        base,
        callers,
        figure,
        bound,
    }
}

/// For GET and SET.
const BARS: &[ClientBar] = &[
    bar(OURS_TASK, REDIS_RS_MULTIPLEXED, 200, PerS, Least(1.4)),
    bar(OURS_TASK, REDIS_RS_MULTIPLEXED, 200, ClientCpu, Most(0.75)),
    bar(OURS_TASK, REDIS_RS_MULTIPLEXED, 200, ServerCpu, Most(0.6)),
    bar(OURS_TASK, REDIS_RS_MULTIPLEXED, 1, P50, Most(1.3)),
    bar(OURS_THREADS, REDIS_RS_THREADS, 200, PerS, Least(3.0)),
    bar(OURS_THREADS, REDIS_RS_THREADS, 1, P50, Most(1.15)),
    bar(OURS_PYTHON_THREADS, REDIS_PY_THREADS, 50, PerS, Least(4.0)),
    bar(OURS_PYTHON_THREADS, GLIDE_THREADS, 50, PerS, Least(2.0)),
    bar(
        OURS_PYTHON_THREADS,
        REDIS_PY_THREADS,
        50,
        ClientCpu,
        Most(0.3),
    ),
    bar(OURS_PYTHON_THREADS, REDIS_PY_THREADS, 1, P50, Most(1.0)),
    bar(OURS_PYTHON_TASKS, REDIS_PY_TASKS, 200, PerS, Least(5.0)),
    bar(OURS_PYTHON_TASKS, GLIDE_TASKS, 200, PerS, Least(2.0)),
    bar(
        OURS_PYTHON_TASKS,
        REDIS_PY_TASKS,
        200,
        ClientCpu,
        Most(0.25),
    ),
    bar(OURS_JAVA, JEDIS, 200, PerS, Least(4.0)),
    bar(OURS_JAVA, LETTUCE, 200, PerS, Least(2.5)),
    bar(OURS_JAVA, GLIDE_JAVA, 200, PerS, Least(2.5)),
    bar(OURS_JAVA, JEDIS, 200, ClientCpu, Most(0.45)),
    bar(OURS_JAVA, JEDIS, 200, ServerCpu, Most(0.1)),
    bar(OURS_JAVA, LETTUCE, 200, ServerCpu, Most(0.35)),
    bar(OURS_JAVA, JEDIS, 1, P50, Most(1.15)),
    bar(OURS_JAVA_VIRTUAL, JEDIS, 200, PerS, Least(8.0)),
    bar(OURS_JAVA_VIRTUAL, JEDIS, 200, ClientCpu, Most(0.15)),
];

impl ClientBar {
    /// The ratio in a case, with a note if it misses the bound; `None`: the case lacks a figure.
    fn found(&self, result: &CaseResult) -> Option<String> {
        if result.case.callers != self.callers {
            return None;
        }
        let of: fn(&PeerRound) -> f64 = match self.figure {
            PerS => |round| round.per_s,
            P50 => |round| round.p50_us,
            ClientCpu => |round| round.client_us,
            ServerCpu => |round| round.server_us,
        };
        let ratio = result.ratio(self.peer, self.base, of)?;
        let is_kept = match self.bound {
            Least(least) => ratio >= least,
            Most(most) => ratio <= most,
        };
        let note = if is_kept { "" } else { " missed" };
        Some(figure::fine(ratio) + note)
    }

    fn row(&self, report: &ClientsReport) -> Option<Vec<String>> {
        let found = |verb| {
            let of_verb = |result: &&CaseResult| result.case.verb == verb;
            let mut cases = report.cases.iter().filter(of_verb);
            cases.find_map(|result| self.found(result))
        };
        let (get, set) = (found(ClientVerb::Get), found(ClientVerb::Set));
        if get.is_none() && set.is_none() {
            return None;
        }
        let figure = match self.figure {
            PerS => "requests/s",
            P50 => "p50",
            ClientCpu => "client CPU",
            ServerCpu => "server CPU",
        };
        let bound = match self.bound {
            Least(least) => format!("≥ {least}"),
            Most(most) => format!("≤ {most}"),
        };
        let callers = self.callers.to_string();
        let mut row: Vec<String> = [self.peer, self.base, figure].map(str::to_owned).into();
        row.extend([
            callers,
            bound,
            get.unwrap_or_default(),
            set.unwrap_or_default(),
        ]);
        Some(row)
    }
}

/// The bars whose cases and libraries have run; `None`: there are none.
pub fn table(report: &ClientsReport) -> Option<Table> {
    let rows: Vec<_> = BARS.iter().filter_map(|bar| bar.row(report)).collect();
    (!rows.is_empty()).then(|| Table {
        caption: "Ratios within a round, and their bars".to_owned(),
        groups: Vec::new(),
        head: heads(&["client", "to", "figure", "callers", "bar", "get", "set"]),
        rows,
        words: 3,
        together: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::{ClientCase, PeerReport};

    fn case(callers: usize, verb: ClientVerb, peers: &[(&str, f64)]) -> CaseResult {
        let report = |&(peer, figure): &(&str, f64)| PeerReport {
            peer: peer.to_owned(),
            base: JEDIS.to_owned(),
            rounds: vec![Some(PeerRound {
                per_s: figure,
                p50_us: figure,
                p99_us: figure,
                client_us: figure,
                server_us: figure,
            })],
        };
        CaseResult {
            case: ClientCase {
                callers,
                verb,
                seconds: 1.0,
            },
            peers: peers.iter().map(report).collect(),
        }
    }

    /// A bar is shown if its case and both libraries have run, and says if it is missed.
    #[test]
    fn missed_bar_is_marked() {
        let report = ClientsReport {
            cases: vec![
                case(200, ClientVerb::Get, &[(OURS_JAVA, 5.0), (JEDIS, 1.0)]),
                case(200, ClientVerb::Set, &[(OURS_JAVA, 3.0), (JEDIS, 1.0)]),
                case(1, ClientVerb::Set, &[(OURS_JAVA, 1.15), (JEDIS, 1.0)]),
                case(50, ClientVerb::Get, &[(OURS_JAVA, 9.0), (JEDIS, 1.0)]),
            ],
            ..ClientsReport::default()
        };
        let rows = table(&report).expect("bars have run").rows;
        let found: Vec<String> = rows.iter().map(|row| row[2..].join("|")).collect();
        assert_eq!(
            found,
            [
                "requests/s|200|≥ 4|5.00|3.00 missed",
                "client CPU|200|≤ 0.45|5.00 missed|3.00 missed",
                "server CPU|200|≤ 0.1|5.00 missed|3.00 missed",
                "p50|1|≤ 1.15||1.15",
            ]
        );
        assert!(table(&ClientsReport::default()).is_none());
    }
}

//! How the cost of MGET falls with the number of keys: the figures of a report by that number, the
//! line that fits them, and the number above which more keys do not pay.

use crate::case::{LoadTarget, Verb};
use crate::report::{CaseReport, Report};

/// The MGETs of one target, by increasing number of keys.
#[derive(Clone, Debug)]
pub struct Decay {
    /// The target.
    pub target: LoadTarget,
    /// The number of connections.
    pub connections: usize,
    /// Requests at once on each.
    pub pipeline: usize,
    /// One point for each number of keys.
    pub points: Vec<DecayPoint>,
}

/// The figures of one number of keys, medians over the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecayPoint {
    /// Keys of a request.
    pub keys: u32,
    /// Median time of a request.
    pub p50_us: Option<f64>,
    /// Requests a second.
    pub requests_per_s: f64,
    /// CPU of the server for each key.
    pub server_us_per_key: Option<f64>,
    /// CPU of the proxy for each key.
    pub proxy_us_per_key: Option<f64>,
}

/// A straight line `a + b * x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostLine {
    /// The cost of a request without its keys.
    pub a: f64,
    /// The cost of each key.
    pub b: f64,
    /// Coefficient of determination: 1 when every point lies on the line, 0 when the mean says as
    /// much.
    pub r2: f64,
}

/// At the sweet spot, the server's CPU per key is at most this factor above its least.
pub const NEAR: f64 = 1.1;

/// The MGETs of a report by target and number of connections. Empty without MGET.
pub fn of(report: &Report) -> Vec<Decay> {
    let mut found: Vec<Decay> = Vec::new();
    if !report.options.ways.is_empty() {
        // Another experiment has one number of keys alone.
        return found;
    }
    for case in &report.cases {
        let workload = case.case.workload;
        let (Verb::Mget(_), Some(point)) = (workload.verb, point(case)) else {
            continue;
        };
        let is_same = |decay: &&mut Decay| {
            decay.target == case.case.target
                && decay.connections == workload.connections
                && decay.pipeline == workload.pipeline
        };
        match found.iter_mut().find(is_same) {
            Some(decay) => decay.points.push(point),
            None => found.push(Decay {
                target: case.case.target.clone(),
                connections: workload.connections,
                pipeline: workload.pipeline,
                points: vec![point],
            }),
        }
    }
    for decay in &mut found {
        decay.points.sort_by_key(|point| point.keys);
    }
    found
}

fn point(case: &CaseReport) -> Option<DecayPoint> {
    let summary = case.summary.as_ref()?;
    let keys = case.case.workload.verb.keys();
    let per_key = |us: Option<crate::report::FigureSpread>| Some(us?.median / f64::from(keys));
    Some(DecayPoint {
        keys,
        p50_us: summary.p50_us.map(|spread| spread.median),
        requests_per_s: summary.requests_per_s.median,
        server_us_per_key: per_key(summary.server.as_ref().and_then(|cost| cost.us_per_request)),
        proxy_us_per_key: per_key(summary.proxy.as_ref().and_then(|cost| cost.us_per_request)),
    })
}

impl Decay {
    /// Target and connections in one line: `respool × 1`.
    pub fn name(&self) -> String {
        match self.pipeline {
            1 => format!("{} × {}", self.target, self.connections),
            pipeline => format!("{} P{pipeline} × {}", self.target, self.connections),
        }
    }

    /// The line through the median times over the number of keys, by least squares of the errors in
    /// microseconds.
    pub fn line(&self) -> Option<CostLine> {
        fit(&self.times(), |_| 1.0)
    }

    /// The same by least squares of the relative errors: a microsecond at one key weighs as much as
    /// a millisecond at ten thousand, which would decide alone otherwise.
    pub fn relative_line(&self) -> Option<CostLine> {
        fit(&self.times(), |us| us.powi(-2))
    }

    fn times(&self) -> Vec<(f64, f64)> {
        let times = self.points.iter();
        times
            .filter_map(|point| Some((f64::from(point.keys), point.p50_us?)))
            .collect()
    }

    /// The least CPU of the server per key.
    pub fn least_server_us_per_key(&self) -> Option<f64> {
        let each = self.points.iter().filter_map(|p| p.server_us_per_key);
        each.min_by(f64::total_cmp)
    }

    /// The fewest keys at which the server's CPU per key is within 10 % of its least.
    pub fn sweet_spot(&self) -> Option<&DecayPoint> {
        let most = self.least_server_us_per_key()? * NEAR;
        let is_near = |point: &&DecayPoint| point.server_us_per_key.is_some_and(|us| us <= most);
        self.points.iter().find(is_near)
    }
}

/// Weighted least squares of `a + b * x`, in closed form from the means and the squares around them
/// (NIST/SEMATECH e-Handbook of Statistical Methods, sections 4.1.4.1 and 4.1.4.3). `None` below
/// three points: any line fits two.
fn fit(points: &[(f64, f64)], weight: fn(f64) -> f64) -> Option<CostLine> {
    if points.len() < 3 {
        return None;
    }
    let sum = |term: &dyn Fn(f64, f64) -> f64| -> f64 {
        points.iter().map(|&(x, y)| weight(y) * term(x, y)).sum()
    };
    let all = sum(&|_, _| 1.0);
    let (x_mean, y_mean) = (sum(&|x, _| x) / all, sum(&|_, y| y) / all);
    let b = sum(&|x, y| (x - x_mean) * (y - y_mean)) / sum(&|x, _| (x - x_mean).powi(2));
    let a = y_mean - b * x_mean;
    let missed = sum(&|x, y| (y - a - b * x).powi(2));
    let r2 = 1.0 - missed / sum(&|_, y| (y - y_mean).powi(2));
    let line = CostLine { a, b, r2 };
    // Points at one place have no line, and points at one height have nothing to explain.
    [a, b, r2]
        .iter()
        .all(|figure| figure.is_finite())
        .then_some(line)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::case::{Case, Workload};
    use crate::report::Summary;
    use crate::report::tests::{example, round};

    /// A report of MGET whose server takes 10 µs a request and 0.5 µs a key.
    pub(crate) fn example_of_mget() -> Report {
        let mut report = example();
        report.cases.clear();
        report.options.connections = vec![1];
        for keys in [1, 10, 100, 1000] {
            for target in [LoadTarget::Direct, LoadTarget::Respool { threads: 1 }] {
                let us = 10.0 + 0.5 * f64::from(keys);
                let mut round = round(1, &target, (5e5 / us) as u64);
                round.latency.percentiles = vec![(50.0, us + 7.0)];
                let case = Case {
                    workload: Workload {
                        verb: Verb::Mget(keys),
                        pipeline: 1,
                        connections: 1,
                        rate: None,
                    },
                    target,
                };
                let rounds = vec![round];
                report.cases.push(CaseReport {
                    id: case.id(),
                    summary: Summary::of(&rounds),
                    case,
                    rounds,
                });
            }
        }
        report
    }

    /// Line, points and sweet spot are those of the report.
    #[test]
    fn decay_is_computed_from_the_report() {
        let found = of(&example_of_mget());
        assert_eq!(found.len(), 2);
        let direct = &found[0];
        assert_eq!(
            (direct.name().as_str(), direct.points.len()),
            ("direct × 1", 4)
        );
        for line in [direct.line().unwrap(), direct.relative_line().unwrap()] {
            let is_near = |found: f64, wanted: f64| (found - wanted).abs() < 1e-6;
            assert!(
                is_near(line.a, 17.0) && is_near(line.b, 0.5) && is_near(line.r2, 1.0),
                "{line:?}"
            );
        }
        // 10.5 µs a key, 1.5, 0.6 and 0.51: the third is a fifth above the least.
        assert_eq!(direct.sweet_spot().unwrap().keys, 1000);
        assert_eq!(direct.points[0].proxy_us_per_key, None);
        assert!(found[1].points[0].proxy_us_per_key.is_some());
        assert!(of(&example()).is_empty());
    }

    #[test]
    fn the_sweet_spot_is_the_fewest_keys_and_not_the_cheapest() {
        let mut decay = of(&example_of_mget()).remove(0);
        for (point, us) in decay.points.iter_mut().zip([2.0, 0.54, 0.5, 0.7]) {
            point.server_us_per_key = Some(us);
        }
        assert_eq!(decay.sweet_spot().unwrap().keys, 10);
        assert_eq!(decay.least_server_us_per_key(), Some(0.5));
        for point in &mut decay.points {
            point.server_us_per_key = None;
        }
        assert_eq!(decay.sweet_spot(), None);
    }

    #[test]
    fn least_squares_are_those_of_the_book() {
        // By hand: means 2 and 3; b = (2 + 0 + 1) / 2, a = 3 - 1.5 * 2; errors -0.5, 1, -0.5 … of a
        // sum of squares of 6.
        let points = [(1.0, 1.0), (2.0, 4.0), (3.0, 4.0)];
        let line = fit(&points, |_| 1.0).unwrap();
        assert!(
            (line.b - 1.5).abs() < 1e-12 && line.a.abs() < 1e-12,
            "{line:?}"
        );
        assert!((line.r2 - 0.75).abs() < 1e-12, "{line:?}");
        // A weight of 0 removes the point.
        let heavy = fit(&[(1.0, 1.0), (2.0, 9.0), (3.0, 3.0)], |y| {
            if y > 8.0 { 1e-12 } else { 1.0 }
        });
        assert!((heavy.unwrap().b - 1.0).abs() < 1e-6);
        assert_eq!(fit(&points[..2], |_| 1.0), None);
        assert_eq!(fit(&[(1.0, 2.0); 3], |_| 1.0), None);
    }
}

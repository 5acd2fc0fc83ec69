//! The tables on the terminal: those of the original experiment, with percentiles and costs added.
//!
//! The original had columns of CPU used, user and system in cores, and throughput, for server and
//! proxy each. All of them are here. Throughput and times have a table before the one of CPU, so
//! that both fit a terminal.

use crate::case::{Case, LoadTarget, Workload};
use crate::cluster;
use crate::counters::CounterTotals;
use crate::decay;
use crate::figure;
use crate::flags::{WIDTH, wrap};
use crate::report::{CaseReport, Cost, FigureSpread, Report, Round};
use crate::tls;
use crate::window;

/// The output of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A file.
    Plain,
    /// A terminal that shows bold text.
    Terminal,
}

impl Style {
    /// The codes that begin and end bold text.
    pub fn bold(self) -> (&'static str, &'static str) {
        match self {
            Style::Plain => ("", ""),
            Style::Terminal => ("\x1b[1m", "\x1b[0m"),
        }
    }
}

/// A table as rows of cells; the head has one cell for each column.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Its title.
    pub caption: String,
    /// Heads over several columns: the text and the number of columns.
    pub groups: Vec<(String, usize)>,
    /// Names of the columns.
    pub head: Vec<String>,
    /// Cells; an empty one has no figure.
    pub rows: Vec<Vec<String>>,
    /// The number of columns, from the left, with left-aligned text.
    pub words: usize,
    /// The number of columns, from the left, that are equal in rows of one group.
    pub together: usize,
}

/// Throughput and times of every case.
pub fn throughput(report: &Report) -> Table {
    let rows = report.cases.iter().map(|case| {
        let mut row = name(case);
        let ratios = report.ratios(case);
        let summary = case.summary.as_ref();
        let rate = summary.map(|summary| summary.requests_per_s);
        let us =
            |spread: Option<FigureSpread>| spread.map_or(String::new(), |s| figure::fine(s.median));
        row.push(rate.map_or("failed".to_owned(), |rate| figure::count(rate.median)));
        row.push(rate.map_or(String::new(), |rate| figure::percent(rate.relative())));
        row.push(fine(ratios.throughput_to_direct));
        row.push(us(summary.and_then(|summary| summary.p50_us)));
        row.push(us(summary.and_then(|summary| summary.p99_us)));
        row.push(us(summary.and_then(|summary| summary.p999_us)));
        row.push(fine(ratios.p50_to_direct));
        let commands = summary.and_then(|summary| summary.server_commands_per_s);
        row.push(commands.map_or(String::new(), |spread| figure::count(spread.median)));
        let others = summary.and_then(|summary| summary.others);
        row.push(others.map_or(String::new(), |spread| format!("{:.2}", spread.median)));
        row
    });
    Table {
        caption: format!("Throughput and latency, {}", basis(report)),
        groups: Vec::new(),
        head: heads(&[
            "case",
            "conns",
            "target",
            "threads",
            "requests/s",
            "spread",
            "÷ direct",
            "p50 µs",
            "p99 µs",
            "p99.9 µs",
            "p50 ÷ direct",
            "server cmds/s",
            "others",
        ]),
        rows: rows.collect(),
        words: 3,
        together: 2,
    }
}

/// The basis of each figure: `median of 5 rounds of 2.0 s`.
pub fn basis(report: &Report) -> String {
    let seconds = report.options.seconds();
    match report.options.rounds() {
        1 => format!("one round of {seconds:.1} s"),
        rounds => format!("median of {rounds} rounds of {seconds:.1} s"),
    }
}

/// CPU of every process in every case.
pub fn cpu(report: &Report) -> Table {
    let rows = report.cases.iter().map(|case| {
        let mut row = name(case);
        let ratios = report.ratios(case);
        let summary = case.summary.as_ref();
        row.extend(cost(summary.and_then(|summary| summary.server.as_ref())));
        row.push(fine(ratios.server_cpu_to_direct));
        row.extend(cost(summary.and_then(|summary| summary.proxy.as_ref())));
        row.push(fine(ratios.proxy_cpu_to_floor));
        row.extend(cost(summary.map(|summary| &summary.generator)));
        row
    });
    Table {
        caption: format!(
            "CPU in cores, and microseconds of CPU per request, {}",
            basis(report)
        ),
        groups: vec![
            (String::new(), 4),
            ("server".to_owned(), 5),
            ("proxy".to_owned(), 5),
            ("generator".to_owned(), 4),
        ],
        head: heads(&[
            "case",
            "conns",
            "target",
            "threads",
            "used",
            "user",
            "sys",
            "µs/req",
            "÷ direct",
            "used",
            "user",
            "sys",
            "µs/req",
            "÷ floor",
            "used",
            "user",
            "sys",
            "µs/req",
        ]),
        rows: rows.collect(),
        words: 3,
        together: 2,
    }
}

/// CPU per request over the number of connections; `None` with one number alone.
pub fn growth(report: &Report) -> Option<Table> {
    let fewest = report.options.connections.iter().min()?;
    let rows = report
        .cases
        .iter()
        .filter(|case| case.case.workload.connections != *fewest);
    let rows: Vec<Vec<String>> = rows
        .map(|case| {
            let mut row = name(case);
            row.push(fine(report.ratios(case).cpu_to_fewest));
            row
        })
        .collect();
    (!rows.is_empty()).then(|| Table {
        caption: format!("CPU per request of the proxy, or of the server asked directly, to the same at {fewest} connections"),
        groups: Vec::new(),
        head: heads(&["case", "conns", "target", "threads", "ratio"]),
        rows,
        words: 3,
        together: 2,
    })
}

/// respool's ratios to the direct server and to the floor in several runs: a row for every workload
/// of each.
pub fn ratios(reports: &[Report]) -> Table {
    let two_digits =
        |ratio: Option<f64>| ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
    let rows = reports.iter().flat_map(|report| {
        let generator = report.generator.rsplit_once(' ');
        let generator = generator.map_or(report.generator.as_str(), |(name, _version)| name);
        report.workloads().into_iter().map(move |workload| {
            // Of several numbers of workers, the first.
            let is_it = |case: &&CaseReport| {
                case.case.workload == workload
                    && matches!(case.case.target, LoadTarget::Respool { .. })
            };
            let respool = report.cases.iter().find(is_it);
            let ratios = respool.map(|case| report.ratios(case)).unwrap_or_default();
            let mut row = vec![report.server.version.clone(), generator.to_owned()];
            row.extend(load(workload));
            row.extend(
                [
                    ratios.throughput_to_direct,
                    ratios.p50_to_direct,
                    ratios.server_cpu_to_direct,
                    ratios.proxy_cpu_to_floor,
                ]
                .map(two_digits),
            );
            row.push(respool.map_or(0, |case| case.rounds.len()).to_string());
            row
        })
    });
    Table {
        head: heads(&[
            "server",
            "generator",
            "case",
            "conns",
            "requests/s ÷",
            "p50 ÷",
            "server CPU ÷",
            "proxy CPU ÷ floor",
            "rounds",
        ]),
        rows: rows.collect(),
        words: 3,
        ..Table::default()
    }
}

/// This build of respool against another one; `None` in other experiments.
pub fn against(report: &Report) -> Option<Table> {
    let allow = report.options.allow_percent;
    let rows: Vec<Vec<String>> = report
        .comparisons
        .iter()
        .flat_map(|comparison| {
            let workload = comparison.workload;
            let [proxy, user, server] = [
                ("proxy", &comparison.proxy),
                ("proxy, user", &comparison.proxy_user),
                ("server", &comparison.server),
            ]
            .map(|(what, ratio)| {
                let part = |part: Option<f64>| part.map_or(String::new(), |p| format!("{p:.3}"));
                vec![
                    format!("{} P{}", workload.verb, workload.pipeline),
                    workload.connections.to_string(),
                    what.to_owned(),
                    comparison.threads.to_string(),
                    fine(ratio.new_us),
                    fine(ratio.base_us),
                    part(ratio.median),
                    part(ratio.interval.map(|(low, _)| low)),
                    part(ratio.interval.map(|(_, high)| high)),
                    ratio.quadruples.to_string(),
                    String::new(),
                ]
            });
            let mut rows = [proxy, user, server];
            rows[0][10] = comparison.verdict.in_words(allow);
            rows
        })
        .collect();
    (!rows.is_empty()).then(|| Table {
        caption: "CPU per request of this build ÷ of the base: the median of the quadruples, and its 95 % interval"
            .to_owned(),
        groups: Vec::new(),
        head: heads(&[
            "case", "conns", "CPU of", "threads", "µs/req", "base's", "ratio", "from", "to", "quads",
            "verdict",
        ]),
        rows,
        words: 3,
        together: 2,
    })
}

/// The text below the second table of [`decay()`].
pub const FITTED: &str = "\
Fitted to the p50 by least squares (NIST/SEMATECH e-Handbook of Statistical Methods, 4.1.4.1 and 4.1.4.3): of the \
microseconds that the line misses, which the largest counts decide almost alone, and of the parts of the p50 that it \
misses (weighted by 1 / p50²), where all counts weigh the same. Sweet spot: the fewest keys at which the server's CPU per \
key is within 10 % of its least. Fitted %: the requests a second of one key by the second line.";

/// MGET over the number of keys, and the line that fits it; empty without MGET.
pub fn decay(report: &Report) -> Vec<Table> {
    let decays = decay::of(report);
    if decays.is_empty() {
        return Vec::new();
    }
    let figures = decays.iter().flat_map(|decay| {
        let one = decay.points.iter().find(|point| point.keys == 1);
        let least = decay.least_server_us_per_key();
        let fitted = decay.relative_line();
        decay.points.iter().map(move |point| {
            let keys = f64::from(point.keys);
            let part_of_one = one.map(|one| point.requests_per_s / one.requests_per_s);
            vec![
                decay.name(),
                figure::count(keys),
                format!("{:.2}", keys.log10()),
                fine(point.p50_us),
                figure::count(point.requests_per_s),
                part_of_one.map_or(String::new(), |part| format!("{:.1}", part * 100.0)),
                fitted.map_or(String::new(), |line| {
                    format!(
                        "{:.1}",
                        100.0 * (line.a + line.b) / (line.a + line.b * keys)
                    )
                }),
                figure::count(point.requests_per_s * keys),
                exact(point.server_us_per_key),
                fine(
                    point
                        .server_us_per_key
                        .zip(least)
                        .map(|(us, least)| us / least),
                ),
                exact(point.proxy_us_per_key),
            ]
        })
    });
    let lines = decays.iter().map(|decay| {
        let mut row = vec![decay.name()];
        for line in [decay.line(), decay.relative_line()] {
            row.push(fine(line.map(|line| line.a)));
            row.push(exact(line.map(|line| line.b)));
            row.push(line.map_or(String::new(), |line| format!("{:.5}", line.r2)));
        }
        let spot = decay.sweet_spot();
        row.push(spot.map_or(String::new(), |spot| figure::count(f64::from(spot.keys))));
        row.push(exact(spot.and_then(|spot| spot.server_us_per_key)));
        row.push(exact(decay.least_server_us_per_key()));
        row.push(fine(spot.and_then(|spot| spot.p50_us)));
        row
    });
    vec![
        Table {
            caption: format!(
                "Decay of MGET over the number of its keys, {}",
                basis(report)
            ),
            groups: Vec::new(),
            head: heads(&[
                "target × conns",
                "keys",
                "log10",
                "p50 µs",
                "requests/s",
                "% of one key",
                "fitted %",
                "keys/s",
                "server µs/key",
                "÷ least",
                "proxy µs/key",
            ]),
            rows: figures.collect(),
            words: 1,
            together: 1,
        },
        Table {
            caption: "Time of a request as a + b · keys, and the sweet spot".to_owned(),
            groups: vec![
                (String::new(), 1),
                ("of µs".to_owned(), 3),
                ("of parts".to_owned(), 3),
                ("sweet spot".to_owned(), 4),
            ],
            head: heads(&[
                "target × conns",
                "a µs",
                "b µs/key",
                "R²",
                "a µs",
                "b µs/key",
                "R²",
                "keys",
                "server µs/key",
                "least",
                "p50 µs",
            ]),
            rows: lines.collect(),
            words: 1,
            together: 0,
        },
    ]
}

/// Requests of clients against the commands of the server; `None` for evenly chosen keys.
pub fn saved(report: &Report) -> Option<Table> {
    report.options.zipf?;
    let rows = report.cases.iter().map(|case| {
        let verb = case.case.workload.verb;
        let median = |figure: &dyn Fn(&Round) -> Option<f64>| {
            FigureSpread::of(case.rounds.iter().filter_map(figure))
        };
        let count = |figure: &dyn Fn(&Round) -> Option<u64>| {
            let spread = median(&|round| Some(figure(round)? as f64));
            spread.map_or(String::new(), |spread| figure::count(spread.median))
        };
        let part = |spread: Option<FigureSpread>| {
            spread.map_or(String::new(), |spread| {
                format!("{:.2}", spread.median * 100.0)
            })
        };
        let range = |spread: Option<FigureSpread>| {
            spread.map_or(String::new(), |spread| {
                format!("{:.2} to {:.2}", spread.min * 100.0, spread.max * 100.0)
            })
        };
        let commands = median(&|round| round.saved_commands(verb));
        let key_reads = median(&|round| round.saved_key_reads(verb));
        let mut row = name(case);
        row.push(count(&|round| round.answered));
        row.push(count(&|round| round.server_commands));
        row.push(part(commands));
        row.push(range(commands));
        row.push(count(&|round| round.server_key_reads));
        row.push(part(key_reads));
        row.push(range(key_reads));
        row
    });
    Some(Table {
        caption: format!(
            "Requests by clients against commands and key look-ups of the server, warm-up included, {}",
            basis(report)
        ),
        groups: Vec::new(),
        head: heads(&[
            "case",
            "conns",
            "target",
            "threads",
            "requests",
            "server cmds",
            "saved %",
            "in rounds",
            "look-ups",
            "saved %",
            "in rounds",
        ]),
        rows: rows.collect(),
        words: 3,
        together: 2,
    })
}

/// The flush rules, load by load; `None` in other experiments.
pub fn window(report: &Report) -> Option<Table> {
    let percent = |part: Option<f64>| part.map_or(String::new(), |p| format!("{:.1}", p * 100.0));
    let row = |found: &window::WindowResult<'_>| {
        let Case { workload, target } = found.case;
        let load = match workload.rate {
            Some(rate) => format!("{}/s", figure::count(rate.into())),
            None => "closed loop".to_owned(),
        };
        let threads = target.threads();
        let mut row = vec![
            format!("{} P{}", workload.verb, workload.pipeline),
            workload.connections.to_string(),
            load,
            target.name(),
            threads.map_or(String::new(), |threads| threads.to_string()),
            figure::count(found.requests_per_s),
            percent(found.part_of_due),
            fine(found.batch),
        ];
        row.extend(found.us.map(fine));
        row.extend(found.to_latency.map(fine));
        row.extend(found.cpu_us.map(fine));
        row
    };
    let rows: Vec<Vec<String>> = window::of(report).iter().map(row).collect();
    (!rows.is_empty()).then(|| Table {
        caption: format!("The flush rules, {}", basis(report)),
        groups: vec![
            (String::new(), 8),
            ("time, µs".to_owned(), 2),
            ("÷ latency".to_owned(), 2),
            ("CPU, µs/req".to_owned(), 2),
        ],
        head: heads(&[
            "case",
            "conns",
            "load",
            "target",
            "threads",
            "requests/s",
            "% of due",
            "batch",
            "p50",
            "p99",
            "p50",
            "p99",
            "server",
            "proxy",
        ]),
        rows,
        words: 4,
        together: 3,
    })
}

/// The bounds over three servers, or those for TLS; `None` without such targets.
pub fn bars(report: &Report) -> Option<Table> {
    let (of_pools, of_tls) = (cluster::bars(report), tls::bars(report));
    let subject = match of_pools.is_empty() {
        true => "TLS to clients",
        false => "Over 3 servers",
    };
    let rows: Vec<Vec<String>> = of_pools
        .into_iter()
        .chain(of_tls)
        .map(|bar| {
            let [what, connections] = load(bar.case.workload);
            let kept = bar
                .is_kept()
                .map_or("", |kept| if kept { "kept" } else { "missed" });
            vec![
                what,
                connections,
                bar.case.target.to_string(),
                bar.figure.to_owned(),
                exact(bar.found),
                bar.most.map_or(String::new(), |most| most.to_string()),
                kept.to_owned(),
            ]
        })
        .collect();
    (!rows.is_empty()).then(|| Table {
        caption: format!("{subject}, {}", basis(report)),
        head: heads(&[
            "case", "conns", "target", "figure", "found", "at most", "bar",
        ]),
        rows,
        words: 4,
        together: 2,
        ..Table::default()
    })
}

/// One server and several, beside the direct server; `None` without pools.
pub fn pools(report: &Report) -> Option<Table> {
    let pooled = cluster::of(report);
    let rows = report.cases.iter().map(|case| {
        let found = pooled.iter().find(|found| found.case.id == case.id);
        let summary = case.summary.as_ref();
        let ratios = report.ratios(case);
        let us =
            |cost: Option<&Cost>| fine(cost.and_then(|cost| Some(cost.us_per_request?.median)));
        let rate = summary.map(|summary| summary.requests_per_s);
        let mut row = name(case);
        row.push(rate.map_or("failed".to_owned(), |rate| figure::count(rate.median)));
        row.push(fine(ratios.throughput_to_direct));
        row.push(fine(
            summary.and_then(|summary| Some(summary.p50_us?.median)),
        ));
        row.push(fine(ratios.p50_to_direct));
        row.push(us(summary.and_then(|summary| summary.proxy.as_ref())));
        row.push(fine(found.and_then(|found| found.proxy_to_one)));
        row.push(fine(found.and_then(|found| found.proxy_to_plain)));
        row.push(fine(found.and_then(|found| found.proxy_to_envoy)));
        row.push(exact(found.and_then(|found| found.proxy_us_per_key)));
        row.push(us(summary.and_then(|summary| summary.server.as_ref())));
        row.push(fine(ratios.server_cpu_to_direct));
        row.push(exact(found.and_then(|found| found.server_us_per_key)));
        row.push(us(summary.map(|summary| &summary.generator)));
        row
    });
    (!pooled.is_empty()).then(|| Table {
        caption: format!(
            "One server and several, CPU in microseconds, {}; own: the same way's over 1 server, plain: sharded-1's",
            basis(report)
        ),
        groups: vec![
            (String::new(), 8),
            ("proxy".to_owned(), 5),
            ("all servers".to_owned(), 3),
            ("generator".to_owned(), 1),
        ],
        head: heads(&[
            "case",
            "conns",
            "target",
            "threads",
            "requests/s",
            "÷ direct",
            "p50 µs",
            "÷ direct",
            "µs/req",
            "÷ own",
            "÷ plain",
            "÷ Envoy",
            "µs/key",
            "µs/req",
            "÷ direct",
            "µs/key",
            "µs/request",
        ]),
        rows: rows.collect(),
        words: 3,
        together: 2,
    })
}

/// The counters of every respool; `None` without one.
pub fn counted(report: &Report) -> Option<Table> {
    let is_counted = |case: &&CaseReport| case.rounds.iter().any(|round| round.counters.is_some());
    let rows: Vec<Vec<String>> = report
        .cases
        .iter()
        .filter(is_counted)
        .map(|case| {
            let median = |figure: &dyn Fn(&CounterTotals) -> Option<f64>| {
                let rounds = case.rounds.iter();
                let figures = rounds.filter_map(|round| figure(round.counters.as_ref()?));
                Some(FigureSpread::of(figures)?.median)
            };
            let part = |figure: &dyn Fn(&CounterTotals) -> Option<f64>| {
                median(figure).map_or(String::new(), |part| format!("{:.1}", part * 100.0))
            };
            let mut row = name(case);
            row.push(fine(median(&CounterTotals::mean_batch)));
            for percent in [50.0, 99.0] {
                row.push(fine(median(&|counters| counters.batch_at(percent))));
            }
            for reason in ["idle", "full", "late"] {
                row.push(part(&|counters| counters.left_because(reason)));
            }
            for what in ["fused", "collapsed", "asked_again"] {
                row.push(part(&|counters| counters.part_that_was(what)));
            }
            row.push(part(&CounterTotals::part_saved));
            row
        })
        .collect();
    (!rows.is_empty()).then(|| Table {
        caption: "Counters of respool: requests in a batch, why batches left, and the fate of their requests; saved: commands that the server did not get"
            .to_owned(),
        groups: vec![
            (String::new(), 4),
            ("requests in a batch".to_owned(), 3),
            ("% of batches".to_owned(), 3),
            ("% of requests".to_owned(), 4),
        ],
        head: heads(&[
            "case", "conns", "target", "threads", "mean", "p50 ≤", "p99 ≤", "idle", "full", "late", "fused", "collapsed", "again",
            "saved",
        ]),
        rows,
        words: 3,
        together: 2,
    })
}

/// Every table of a report.
pub fn all(report: &Report) -> Vec<Table> {
    let mut tables: Vec<Table> = window(report).into_iter().collect();
    tables.extend(bars(report));
    tables.extend(pools(report));
    tables.extend([throughput(report), cpu(report)]);
    tables.extend(counted(report));
    tables.extend(growth(report));
    tables.extend(against(report));
    tables.extend(decay(report));
    tables.extend(saved(report));
    tables
}

/// All tables and failures as text.
pub fn text(report: &Report, style: Style) -> String {
    let mut text = String::new();
    let (bold, plain) = style.bold();
    text.push_str(&format!("{bold}{}{plain}\n", report.title));
    text.push_str(&format!(
        "{} · {} · {} cores · {} · generator: {}\n",
        report.started,
        report.machine.cpu,
        report.machine.cores,
        report.server.version,
        report.generator
    ));
    for table in all(report) {
        text.push_str(&format!("\n{bold}{}{plain}\n", table.caption));
        text.push_str(&table.text());
    }
    text.push_str(
        "\nSpread: least to largest round, as a part of the median. ÷: the median of the ratios within each round.\n\
         Others: cores that all other programs on the machine used meanwhile.\n",
    );
    if !decay::of(report).is_empty() {
        for line in wrap(FITTED, WIDTH) {
            text.push_str(&line);
            text.push('\n');
        }
    }
    for failure in &report.failures {
        text.push_str(&format!("\n{bold}FAILED{plain} {failure}"));
    }
    if !report.failures.is_empty() {
        text.push('\n');
    }
    text
}

impl Table {
    /// Aligned columns, two blanks apart, with an empty line between groups of rows.
    pub fn text(&self) -> String {
        let columns = self.head.len();
        let width = |column: usize| {
            let cells = self
                .rows
                .iter()
                .chain([&self.head])
                .map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        let mut from = 0;
        for (name, span) in &self.groups {
            let room: usize = widths[from..from + span]
                .iter()
                .map(|width| width + 2)
                .sum();
            if name.is_empty() {
                text.push_str(&" ".repeat(room));
            } else {
                // Two blanks, as before each column, then a line over all its columns.
                let dashes = room.saturating_sub(2 + name.chars().count() + 1);
                text.push_str(&format!("  {name} {}", "─".repeat(dashes)));
            }
            from += span;
        }
        if !self.groups.is_empty() {
            // Columns begin with their gap here, and without it in later lines.
            text = format!("{}\n", text.strip_prefix("  ").unwrap_or(&text));
        }
        let mut last: Option<&[String]> = None;
        for row in std::iter::once(&self.head).chain(&self.rows) {
            if last.is_some_and(|last| *last != row[..self.together]) {
                text.push('\n');
            }
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let blanks = " ".repeat(widths[column] - cell.chars().count());
                let gap = if column == 0 { "" } else { "  " };
                if column < self.words {
                    line.push_str(&format!("{gap}{cell}{blanks}"));
                } else {
                    line.push_str(&format!("{gap}{blanks}{cell}"));
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
            last = (!std::ptr::eq(row, &self.head)).then_some(&row[..self.together]);
        }
        text
    }
}

/// Names of columns.
pub(crate) fn heads(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn name(case: &CaseReport) -> Vec<String> {
    let Case { workload, target } = &case.case;
    let threads = target.threads();
    let [what, connections] = load(*workload);
    vec![
        what,
        connections,
        target.name(),
        threads.map_or(String::new(), |threads| threads.to_string()),
    ]
}

fn load(workload: Workload) -> [String; 2] {
    let rate = workload.rate;
    let rate = rate.map_or(String::new(), |rate| {
        format!(" {}/s", figure::count(rate.into()))
    });
    [
        format!("{} P{}{rate}", workload.verb, workload.pipeline),
        workload.connections.to_string(),
    ]
}

fn cost(cost: Option<&Cost>) -> [String; 4] {
    let median = |spread: Option<FigureSpread>| spread.map(|spread| spread.median);
    let cores = |figure: Option<f64>| figure.map_or(String::new(), |figure| format!("{figure:.2}"));
    [
        cores(cost.map(|cost| cost.used.median)),
        cores(cost.and_then(|cost| median(cost.user))),
        cores(cost.and_then(|cost| median(cost.system))),
        fine(cost.and_then(|cost| median(cost.us_per_request))),
    ]
}

/// For figures far below a microsecond: CPU of one key of many.
fn exact(figure: Option<f64>) -> String {
    figure.map_or(String::new(), |figure| format!("{figure:.3}"))
}

fn fine(figure: Option<f64>) -> String {
    figure.map_or(String::new(), figure::fine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::example;

    #[test]
    fn the_text_has_every_case_and_fits_a_terminal() {
        let report = example();
        let text = text(&report, Style::Plain);
        assert!(
            text.lines().all(|line| line.chars().count() <= 160),
            "{text}"
        );
        for word in [
            "requests/s",
            "p99.9 µs",
            "÷ direct",
            "÷ floor",
            "generator ─",
            "100,000",
            "failed",
        ] {
            assert!(text.contains(word), "{word} is not in\n{text}");
        }
        assert!(text.contains("FAILED GET P20: <lost>"));
        assert_eq!(
            text.lines()
                .filter(|line| line.contains("respool  "))
                .count(),
            5,
            "twice in both tables of times and CPU, and the counters of the measured one: {text}"
        );
        let counted = counted(&report).unwrap();
        assert_eq!(
            counted.rows[0].join(" "),
            "GET P1 50 respool 1 20.0   50.0 0.0 50.0  50.0  "
        );
    }

    #[test]
    fn the_rules_are_compared_load_by_load() {
        let report = crate::window::tests::example_of_window();
        let table = window(&report).unwrap();
        let row = |place: usize| table.rows[place].join(" | ");
        assert_eq!(table.rows.len(), 3 * 5);
        assert_eq!(
            row(8),
            "GET P1 | 50 | 10,000/s | server-cpu | 1 | 10,000 | 100.0 | 8.00 | 800 | 800 | 2.00 | 2.00 | 50.0 | 60.0"
        );
        assert_eq!(
            row(10),
            "GET P1 | 50 | closed loop | direct |  | 60,000 |  |  | 200 | 200 | 0.50 | 0.50 | 8.33 | "
        );
        let text = text(&report, Style::Plain);
        assert!(
            text.lines().all(|line| line.chars().count() <= 160),
            "{text}"
        );
        assert!(window(&example()).is_none());
    }

    /// Pools stand beside the direct server, with the bars before them.
    #[test]
    fn pool_table_shows_the_direct_server_and_bars() {
        let report = crate::cluster::tests::example_of_cluster();
        let table = pools(&report).unwrap();
        assert_eq!(table.rows.len(), 2 * (1 + 3 * 2));
        assert_eq!(
            table.rows[4].join(" | "),
            "GET P20 | 50 | cluster-3 | 1 | 100,000 | 1.00 | 300 | 3.00 | 7.20 | 1.20 | 1.20 | 0.12 |  | 5.00 | 1.00 |  | \
             4.00"
        );
        assert!(
            table.rows[0]
                .join(" | ")
                .starts_with("GET P20 | 50 | direct |  | 100,000")
        );
        let found = bars(&report).unwrap();
        assert_eq!(
            found.rows[8].join(" | "),
            "MGET 100 P20 | 50 | sharded-3 | p50 ÷ direct MGET's | 3.000 | 1.5 | missed"
        );
        let text = text(&report, Style::Plain);
        assert!(
            text.lines().all(|line| line.chars().count() <= 160),
            "{text}"
        );
        assert!(!text.contains("Decay of MGET"), "{text}");
        assert!(pools(&example()).is_none() && bars(&example()).is_none());
    }

    /// The table of MGET has the columns of the original experiment, and the fitted lines.
    #[test]
    fn mget_table_has_the_columns_of_the_original() {
        let report = crate::decay::tests::example_of_mget();
        let [figures, lines]: [Table; 2] = decay(&report).try_into().unwrap();
        let row = |table: &Table, place: usize| table.rows[place].join(" | ");
        assert_eq!(figures.rows.len(), 8);
        assert_eq!(
            row(&figures, 0),
            "direct × 1 | 1 | 0.00 | 17.5 | 47,619 | 100.0 | 100.0 | 47,619 | 10.500 | 20.6 | "
        );
        assert!(
            row(&figures, 2)
                .starts_with("direct × 1 | 100 | 2.00 | 67.0 | 8,333 | 17.5 | 26.1 | 833,3")
        );
        assert_eq!(
            row(&lines, 0),
            "direct × 1 | 17.0 | 0.500 | 1.00000 | 17.0 | 0.500 | 1.00000 | 1,000 | 0.510 | 0.510 | 517"
        );
        let text = text(&report, Style::Plain);
        assert!(
            text.lines().all(|line| line.chars().count() <= 160),
            "{text}"
        );
        assert!(text.contains("sweet spot ─"), "{text}");
    }

    /// With skewed keys, the table shows the requests that were saved.
    #[test]
    fn skew_table_shows_saved_requests() {
        let mut report = example();
        assert!(saved(&report).is_none());
        report.options.zipf = Some(0.99);
        let table = saved(&report).unwrap();
        assert_eq!(
            table.rows[0][4..].join(" | "),
            "200,000 | 50,000 | 75.00 | 75.00 to 75.00 | 100,000 | 50.00 | 50.00 to 50.00"
        );
        // No server stands behind the floor.
        assert_eq!(table.rows[2][4..].join(" | "), "200,000 |  |  |  |  |  | ");
    }

    #[test]
    fn all_lines_of_a_table_with_every_cell_are_as_long() {
        let mut report = example();
        report.cases.truncate(2);
        let text = throughput(&report).text();
        let lengths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
        // The direct server has every ratio, and the head is as wide as its cells.
        assert_eq!(lengths[0], lengths[1], "{text}");
        assert_eq!(lengths[0], lengths[2], "{text}");
    }
}

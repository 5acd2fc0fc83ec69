//! The report as one page: tables, charts, unfair conditions, and the command that repeats the run.
//! The page loads nothing and runs nothing.

use std::fmt::Write;

use crate::case::{Case, LoadGenerator, LoadTarget, Way, Workload};
use crate::chart::{self, CostRow, Curve, StepLine, Stretch, TimeChart, TimeRow, escape};
use crate::cluster;
use crate::decay::{self, Decay, DecayPoint};
use crate::figure;
use crate::options::SETTLE_S;
use crate::report::{CaseReport, Cost, Report, Round};
use crate::table::{self, Table};
use crate::targets::ProcessFacts;
use crate::window::{self, WindowResult};

/// The whole page.
pub fn page(report: &Report) -> String {
    let mut page = String::new();
    head(&mut page, report);
    windows(&mut page, report);
    pools(&mut page, report);
    compare(&mut page, report);
    decays(&mut page, report);
    tables(&mut page, report);
    overview(&mut page, report);
    each_case(&mut page, report);
    fairness(&mut page, report);
    reproduce(&mut page, report);
    frame(&format!("{}: {}", report.experiment, report.title), &page)
}

/// A page around a body.
pub(crate) fn frame(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>respool-lab {}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n\
         {body}</main>\n</body>\n</html>\n",
        escape(title)
    )
}

/// The question, and the facts behind the figures.
pub(crate) fn header(
    page: &mut String,
    experiment: &str,
    title: &str,
    about: &str,
    facts: &[(&str, String)],
) {
    let _ = write!(
        page,
        "<header><p class=\"kicker\">respool-lab {}</p><h1>{}</h1><p class=\"lede\">{}</p><dl class=\"facts\">",
        escape(experiment),
        escape(title),
        escape(about)
    );
    for (name, value) in facts {
        let _ = write!(page, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(value));
    }
    page.push_str("</dl></header>\n");
}

/// The failures, if there are any.
pub(crate) fn failures(page: &mut String, failures: &[String]) {
    if failures.is_empty() {
        return;
    }
    page.push_str("<section class=\"failed\"><h2>This run failed</h2><ul>");
    for failure in failures {
        let _ = write!(page, "<li>{}</li>", escape(failure));
    }
    page.push_str("</ul></section>\n");
}

fn head(page: &mut String, report: &Report) {
    let machine = &report.machine;
    let options = &report.options;
    let rate = match (options.rate, &options.rates[..]) {
        (Some(rate), _) => format!("open loop, {} requests/s due", figure::count(rate)),
        (None, []) => "closed loop".to_owned(),
        (None, rates) => {
            let counts = rates.iter().map(|&rate| figure::count(rate.into()));
            let rates: Vec<String> = counts.collect();
            format!(
                "open loop at {} requests/s, and closed loop",
                rates.join(" · ")
            )
        }
    };
    let virtual_machine = if machine.is_virtual {
        ", virtual machine"
    } else {
        ""
    };
    let facts = [
        (
            "When",
            format!("{}, {:.0} s in all", report.started, report.took_s),
        ),
        (
            "Machine",
            format!(
                "{}, {} cores{virtual_machine}, Linux {}",
                machine.cpu, machine.cores, machine.kernel
            ),
        ),
        ("Server", report.server.version.clone()),
        (
            "Each figure",
            format!("{}, all cases in turn", table::basis(report)),
        ),
        ("Load", format!("{}, {rate}", report.generator)),
    ];
    header(
        page,
        &report.experiment,
        &report.title,
        &report.about,
        &facts,
    );
    failures(page, &report.failures);
}

/// Targets side by side, one card for each workload.
fn compare(page: &mut String, report: &Report) {
    page.push_str(
        "<section><h2>Side by side</h2><p>The cost of a request in each process, and its time. ",
    );
    page.push_str("The server's share shrinks when a proxy hands it many requests at once.</p>");
    legend(page, &["server", "proxy", "generator"]);
    page.push_str("<div class=\"cards\">");
    for workload in report.workloads() {
        let cases = || {
            report
                .cases
                .iter()
                .filter(move |case| case.case.workload == workload)
        };
        let cost_rows: Vec<CostRow> = cases().map(cost_row).collect();
        let time_rows: Vec<TimeRow> = cases().map(time_row).collect();
        let title = workload_title(workload);
        let _ = write!(
            page,
            "<figure><figcaption>{}</figcaption><div class=\"scroll\">{}</div><div class=\"scroll\">{}</div></figure>",
            escape(&title),
            chart::costs(
                &format!("{title}: CPU per request of each process by target"),
                &cost_rows
            ),
            chart::times(&format!("{title}: time of a request by target"), &time_rows)
        );
    }
    page.push_str(
        "</div><p class=\"hint\">Times: circle p50, diamond p99, bar p99.9.</p></section>\n",
    );
}

fn cost_row(case: &CaseReport) -> CostRow {
    let summary = case.summary.as_ref();
    let part = |cost: Option<&Cost>| Some(cost?.us_per_request?.median);
    let parts = [
        part(summary.and_then(|summary| summary.server.as_ref())),
        part(summary.and_then(|summary| summary.proxy.as_ref())),
        part(summary.map(|summary| &summary.generator)),
    ];
    let note = summary.map_or("failed".to_owned(), |summary| {
        format!("{}/s", figure::short(summary.requests_per_s.median))
    });
    CostRow {
        name: case.case.target.to_string(),
        parts,
        note,
    }
}

fn time_row(case: &CaseReport) -> TimeRow {
    let summary = case.summary.as_ref();
    let us = [
        summary.and_then(|summary| summary.p50_us),
        summary.and_then(|summary| summary.p99_us),
        summary.and_then(|summary| summary.p999_us),
    ];
    TimeRow {
        name: case.case.target.to_string(),
        us: us.map(|spread| Some(spread?.median)),
    }
}

/// MGET over the number of keys: the time of a request, and the server's cost of a key.
fn decays(page: &mut String, report: &Report) {
    let decays = decay::of(report);
    if decays.is_empty() {
        return;
    }
    page.push_str(
        "<section><h2>Over the number of keys</h2><p>Both axes are logarithmic. Thin and dotted: the line a + b · keys that \
         fits best, of parts, as in the table below.</p><div class=\"cards\">",
    );
    let charts: [(&str, &str, CurveFigure, bool); 2] = [
        (
            "Median time of a request",
            "time",
            |point| point.p50_us,
            true,
        ),
        (
            "CPU of the server per key",
            "CPU time",
            |point| point.server_us_per_key,
            false,
        ),
    ];
    for (title, unit, figure, is_fitted) in charts {
        let curves: Vec<Curve> = (0..decays.len())
            .map(|place| curve(&decays, place, figure, is_fitted))
            .collect();
        let _ = write!(
            page,
            "<figure><figcaption>{title}</figcaption><div class=\"scroll\">{}</div></figure>",
            chart::curves(title, ("keys of a request", unit), &curves)
        );
    }
    let _ = writeln!(
        page,
        "</div><p class=\"hint\">{}</p></section>",
        escape(table::FITTED)
    );
}

/// The figures of the flush rules in the charts: title, unit, and the figure.
const RULE_PANELS: [(&str, &str, RuleFigure); 4] = [
    ("p50", "time", |found| found.us[0]),
    ("p99", "time", |found| found.us[1]),
    ("CPU of the server per request", "CPU time", |found| {
        found.cpu_us[0]
    }),
    ("CPU of the proxy per request", "CPU time", |found| {
        found.cpu_us[1]
    }),
];

/// The connections that sent requests at each rate.
fn callers_of(report: &Report) -> impl Iterator<Item = Workload> {
    let workloads = report.workloads().into_iter();
    workloads.filter(|workload| workload.rate.is_none())
}

fn rule_chart(
    found: &[WindowResult<'_>],
    callers: Workload,
    (what, unit, figure): &(&str, &str, RuleFigure),
) -> String {
    let curves = rule_curves(found, callers, *figure);
    let label = format!("{}: {what} over the rate", workload_title(callers));
    chart::curves(&label, ("requests/s due", unit), &curves)
}

/// The flush rules over the rate as one picture, in the report of that experiment.
pub(crate) fn picture(report: &Report) -> Option<String> {
    let found = window::of(report);
    let callers: Vec<Workload> = callers_of(report).collect();
    let curves = rule_curves(&found, *callers.first()?, RULE_PANELS[0].2).len();
    let panel = |callers, panel: &(&str, &str, RuleFigure)| {
        let title = format!("{}: {}", workload_title(callers), panel.0);
        (title, rule_chart(&found, callers, panel))
    };
    let panel = &panel;
    let of_callers = |callers| RULE_PANELS.iter().map(move |its| panel(callers, its));
    let charts: Vec<(String, String)> = callers.iter().copied().flat_map(of_callers).collect();
    let label = "time and CPU of a request over the rate, by flush rule";
    (!found.is_empty()).then(|| chart::board(label, STYLE, &charts, curves))
}

/// The flush rules over the rate: a panel per figure for each number of connections.
fn windows(page: &mut String, report: &Report) {
    let found = window::of(report);
    if found.is_empty() {
        return;
    }
    page.push_str(
        "<section><h2>Over the load</h2><p>Open loop: from left to right the requests per second that are due. Both axes are \
         logarithmic. The closed loop is in the table below: there each target sets its own rate.</p>",
    );
    for callers in callers_of(report) {
        let title = workload_title(callers);
        let _ = write!(
            page,
            "<figure><figcaption>{}</figcaption><div class=\"cards\">",
            escape(&title)
        );
        for panel in &RULE_PANELS {
            let _ = write!(
                page,
                "<div><p class=\"sum\">{}</p><div class=\"scroll\">{}</div></div>",
                panel.0,
                rule_chart(&found, callers, panel)
            );
        }
        page.push_str("</div></figure>");
    }
    page.push_str("</section>\n");
}

/// A curve over the rates for each target with the figure. A target keeps its colour.
fn rule_curves(found: &[WindowResult<'_>], callers: Workload, figure: RuleFigure) -> Vec<Curve> {
    const CLASSES: [&str; 5] = ["load0", "load1", "load2", "load3", "other"];
    let mut curves: Vec<Curve> = Vec::new();
    for outcome in found {
        let Case { workload, target } = outcome.case;
        if callers
            != (Workload {
                rate: None,
                ..*workload
            })
        {
            continue;
        }
        let name = target.to_string();
        let place = curves.iter().position(|curve| curve.name == name);
        let place = place.unwrap_or(curves.len());
        if place == curves.len() {
            curves.push(Curve {
                name,
                class: CLASSES[place % CLASSES.len()],
                dash: place / CLASSES.len(),
                points: Vec::new(),
                fitted: None,
            });
        }
        let value = figure(outcome).filter(|&us| us > 0.0);
        let point = workload.rate.map(f64::from).zip(value);
        curves[place].points.extend(point);
    }
    curves.retain(|curve| !curve.points.is_empty());
    for curve in &mut curves {
        curve.points.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    curves
}

/// Every way over its numbers of servers: a panel for each figure of each workload.
fn pools(page: &mut String, report: &Report) {
    if cluster::of(report).is_empty() {
        return;
    }
    page.push_str(
        "<section><h2>Over several servers</h2><p>From left to right the servers behind the proxy. The server asked directly is one. \
         CPU of the servers is of all of them together.</p><p class=\"legend\">",
    );
    let ways = &report.options.ways;
    let drawn: Vec<(&str, Option<Way>)> = std::iter::once(("direct", None))
        .chain(ways.iter().map(|way| (way.name(), Some(*way))))
        .collect();
    for (place, (name, _)) in drawn.iter().enumerate() {
        let _ = write!(page, "<span><i class=\"load{place}\"></i>{name}</span>");
    }
    page.push_str("</p>");
    let counts = &report.options.servers;
    let names: Vec<String> = counts.iter().map(u16::to_string).collect();
    let figures: [(&str, PoolFigure); 4] = [
        ("CPU of the proxy, µs per request", |case| {
            Some(
                case.summary
                    .as_ref()?
                    .proxy
                    .as_ref()?
                    .us_per_request?
                    .median,
            )
        }),
        ("CPU of the servers, µs per request", |case| {
            Some(
                case.summary
                    .as_ref()?
                    .server
                    .as_ref()?
                    .us_per_request?
                    .median,
            )
        }),
        ("Requests a second", |case| {
            Some(case.summary.as_ref()?.requests_per_s.median)
        }),
        ("Median time of a request, µs", |case| {
            Some(case.summary.as_ref()?.p50_us?.median)
        }),
    ];
    for workload in report.workloads() {
        let title = workload_title(workload);
        let direct = report.find(workload, &LoadTarget::Direct);
        let _ = write!(
            page,
            "<figure class=\"wide\"><figcaption>{}</figcaption><div class=\"panels\">",
            escape(&title)
        );
        for (what, figure) in figures {
            let value = |way: Option<Way>, servers: u16| match way {
                Some(way) => figure(cluster::find(report, workload, way, servers)?.case),
                None => figure(direct.filter(|_| servers == 1)?),
            };
            let lines: Vec<StepLine> = drawn
                .iter()
                .enumerate()
                .map(|(place, &(name, way))| StepLine {
                    name: name.to_owned(),
                    class: format!("load{place}"),
                    values: counts.iter().map(|&servers| value(way, servers)).collect(),
                })
                .collect();
            let label = format!("{title}: {what} by servers");
            let _ = write!(
                page,
                "<div><p class=\"sum\">{what}</p>{}</div>",
                chart::steps(&label, &names, &lines)
            );
        }
        page.push_str("</div></figure>");
    }
    page.push_str("</section>\n");
}

type PoolFigure = fn(&CaseReport) -> Option<f64>;
type RuleFigure = fn(&WindowResult<'_>) -> Option<f64>;
type CurveFigure = fn(&DecayPoint) -> Option<f64>;

fn curve(decays: &[Decay], place: usize, figure: CurveFigure, is_fitted: bool) -> Curve {
    let class = |decay: &Decay| match decay.target {
        LoadTarget::Direct => "server",
        LoadTarget::Respool { .. } | LoadTarget::Variant { .. } => "proxy",
        _ => "other",
    };
    let decay = &decays[place];
    let before = decays[..place].iter();
    let points = decay.points.iter();
    let line = decay.relative_line().filter(|_| is_fitted);
    Curve {
        name: decay.name(),
        class: class(decay),
        dash: before.filter(|other| class(other) == class(decay)).count(),
        points: points
            .filter_map(|point| Some((f64::from(point.keys), figure(point)?)))
            .collect(),
        fitted: line.map(|line| (line.a, line.b)),
    }
}

fn tables(page: &mut String, report: &Report) {
    page.push_str("<section><h2>Figures</h2>");
    for table in table::all(report) {
        write_table(page, &table);
    }
    page.push_str(
        "<p class=\"hint\">Spread: from the least to the largest round, as a part of the median. ÷ direct and ÷ floor: to the server asked \
         directly and to the lab's echo server under the same workload, the median of the ratios within each round. \
         Others: cores that all other programs on the machine used meanwhile. Cores: 1.00 is one core fully \
         used. User and system are split by where the kernel found the process at its ticks, a few percent off over a \
         second; the total is counted in nanoseconds. Server cmds/s: the count of the server itself.</p></section>\n",
    );
}

/// A table of the page.
pub(crate) fn write_table(page: &mut String, table: &Table) {
    let _ = write!(
        page,
        "<div class=\"scroll\"><table><caption>{}</caption><thead>",
        escape(&table.caption)
    );
    if !table.groups.is_empty() {
        page.push_str("<tr>");
        for (name, span) in &table.groups {
            let _ = write!(
                page,
                "<th class=\"group {name}\" colspan=\"{span}\">{name}</th>"
            );
        }
        page.push_str("</tr>");
    }
    let cells = |row: &[String], tag: &str, class: &str| {
        row.iter()
            .enumerate()
            .fold(format!("<tr{class}>"), |mut line, (column, cell)| {
                let class = if column < table.words {
                    " class=\"word\""
                } else {
                    ""
                };
                let _ = write!(line, "<{tag}{class}>{}</{tag}>", escape(cell));
                line
            })
    };
    let _ = write!(page, "{}</tr></thead><tbody>", cells(&table.head, "th", ""));
    let together = |row: &Vec<String>| row[..table.together].to_vec();
    let mut last = table.rows.first().map(together);
    for row in &table.rows {
        let this = Some(together(row));
        let class = if last == this { "" } else { " class=\"next\"" };
        last = this;
        let _ = write!(page, "{}</tr>", cells(row, "td", class));
    }
    page.push_str("</tbody></table></div>\n");
}

/// The picture of the original experiment: one bump for each case.
fn overview(page: &mut String, report: &Report) {
    page.push_str(
        "<section><h2>The run over time</h2><p>CPU of each process by the left axis, throughput by the right one. \
         One bump a case, in the order in which they ran; between two bumps a case is warmed up.</p>",
    );
    legend(page, &["server", "proxy", "generator", "rate"]);
    for number in 1..=report.options.rounds() {
        let mut ran: Vec<(usize, &Round)> = Vec::new();
        for (place, case) in report.cases.iter().enumerate() {
            ran.extend(
                case.rounds
                    .iter()
                    .filter(|round| round.number == number)
                    .map(|round| (place, round)),
            );
        }
        ran.sort_by(|a, b| a.1.start_s.total_cmp(&b.1.start_s));
        let (Some(first), Some(last)) = (ran.first(), ran.last()) else {
            continue;
        };
        let stretches = ran.iter().map(|(place, round)| Stretch {
            name: format!(
                "{}. {}: {}",
                place + 1,
                report.cases[*place].case,
                round_text(round)
            ),
            mark: (place + 1).to_string(),
            start_s: round.start_s,
            samples: &round.samples,
        });
        let samples = || ran.iter().flat_map(|(_, round)| &round.samples);
        let chart = TimeChart {
            label: format!(
                "Round {number}: CPU of server, proxy and generator, and throughput, over time"
            ),
            width: 1100.0,
            height: 380.0,
            span_s: (first.1.start_s, last.1.start_s + last.1.seconds),
            zero_s: 0.0,
            cores: samples().map(most_cores).fold(0.0, f64::max),
            requests_per_s: samples()
                .map(|sample| sample.requests_per_s)
                .fold(0.0, f64::max),
            stretches: stretches.collect(),
        };
        let svg = chart.svg();
        if number == 1 {
            let _ = write!(
                page,
                "<figure class=\"wide\"><div class=\"scroll\">{svg}</div></figure><ol class=\"cases\">"
            );
            for case in &report.cases {
                let _ = write!(page, "<li>{}</li>", escape(&case.case.to_string()));
            }
            page.push_str("</ol>");
        } else {
            let _ = write!(
                page,
                "<details><summary>Round {number}</summary><div class=\"scroll\">{svg}</div></details>"
            );
        }
    }
    page.push_str("</section>\n");
}

fn most_cores(sample: &crate::report::RateSample) -> f64 {
    [sample.server, sample.proxy, sample.generator]
        .into_iter()
        .flatten()
        .fold(0.0, f64::max)
}

fn each_case(page: &mut String, report: &Report) {
    page.push_str(
        "<section><h2>Each case</h2><p>The round with the median throughput. Charts of the same workload share \
         their axes.</p>",
    );
    legend(page, &["server", "proxy", "generator", "rate"]);
    page.push_str("<div class=\"cards\">");
    for (place, case) in report.cases.iter().enumerate() {
        let title = format!("{}. {}", place + 1, case.case);
        let Some(round) = median_round(case) else {
            let _ = write!(
                page,
                "<figure><figcaption>{}</figcaption><p>failed</p></figure>",
                escape(&title)
            );
            continue;
        };
        let samples = || {
            let same = report
                .cases
                .iter()
                .filter(|other| other.case.workload == case.case.workload);
            same.filter_map(median_round)
                .flat_map(|round| &round.samples)
        };
        let chart = TimeChart {
            label: format!("{title}: CPU and throughput over time"),
            width: 460.0,
            height: 230.0,
            span_s: (round.start_s, round.start_s + round.seconds),
            zero_s: round.start_s,
            cores: samples().map(most_cores).fold(0.0, f64::max),
            requests_per_s: samples()
                .map(|sample| sample.requests_per_s)
                .fold(0.0, f64::max),
            stretches: vec![Stretch {
                name: title.clone(),
                mark: String::new(),
                start_s: round.start_s,
                samples: &round.samples,
            }],
        };
        let _ = write!(
            page,
            "<figure id=\"{}\"><figcaption>{}</figcaption><div class=\"scroll\">{}</div><p class=\"sum\">{}</p></figure>",
            escape(&case.id),
            escape(&title),
            chart.svg(),
            escape(&round_text(round))
        );
    }
    page.push_str("</div></section>\n");
}

fn median_round(case: &CaseReport) -> Option<&Round> {
    let mut rounds: Vec<&Round> = case.rounds.iter().collect();
    rounds.sort_by(|a, b| a.requests_per_s.total_cmp(&b.requests_per_s));
    rounds.get(rounds.len().saturating_sub(1) / 2).copied()
}

fn round_text(round: &Round) -> String {
    let mut parts = vec![format!(
        "{} requests/s",
        figure::count(round.requests_per_s)
    )];
    for percent in [50.0, 99.0, 99.9] {
        if let Some(us) = round.latency.at(percent) {
            parts.push(format!("p{percent} {}", figure::time(us)));
        }
    }
    let usages = [
        ("server", round.server.as_ref()),
        ("proxy", round.proxy.as_ref()),
        ("generator", Some(&round.generator)),
    ];
    for (name, usage) in usages {
        if let Some(us) = usage.and_then(|usage| usage.us_per_request(round.requests)) {
            parts.push(format!("{name} {} µs", figure::fine(us)));
        }
    }
    parts.join(" · ")
}

/// The section about conclusions that this run does not allow.
fn fairness(page: &mut String, report: &Report) {
    page.push_str("<section><h2>Unfair conclusions</h2><ul>");
    for sentence in sentences(report) {
        let _ = write!(page, "<li>{}</li>", escape(&sentence));
    }
    page.push_str("</ul></section>\n");
}

fn sentences(report: &Report) -> Vec<String> {
    let options = &report.options;
    let machine = &report.machine;
    let has =
        |wanted: fn(&LoadTarget) -> bool| report.cases.iter().any(|case| wanted(&case.case.target));
    let mut said = vec![
        format!(
            "Server, proxy and generator share {} cores. Where their CPU adds up to that, throughput shows the program that \
             leaves most to the others, not the program that is fastest alone. CPU per request carries over to other machines better.",
            machine.cores
        ),
        "Everything runs over the loopback of one machine: a real network adds its own time to both hops, and its \
         interrupts cost CPU that does not show here."
            .to_owned(),
        match options.zipf {
            None => format!(
                "{} keys chosen evenly and values of {} bytes, one command at a time: real traffic is larger, uneven and mixed.",
                figure::count(f64::from(options.keys)),
                options.value_bytes
            ),
            Some(theta) => format!(
                "{} keys chosen by Zipf's law with the exponent {theta} and values of {} bytes: real traffic is larger and \
                 mixed, its skew changes over time, and requests for one key come in bursts or all from one client.",
                figure::count(f64::from(options.keys)),
                options.value_bytes
            ),
        },
    ];
    match (options.rate, options.generator) {
        (Some(rate), _) => said.push(format!(
            "The load is due at {} requests/s, also when replies are late. Where a target cannot keep up, its times grow with \
             the length of the run and say only that.",
            figure::count(rate)
        )),
        (None, _) => said.push(
            "Each connection waits for its replies before it asks again, so a slower target is asked less. Times are those of \
             these callers, not those of callers at a fixed rate (--open-loop)."
                .to_owned(),
        ),
    }
    if !options.rates.is_empty() {
        said.push(
            "In open loop requests are due at equal distances. Real requests come in bursts, which fill batches and queues. \
             Where a target cannot keep up with a rate, its times grow with the length of the window and say only that."
                .to_owned(),
        );
    }
    let warmup_s = options.warmup_s();
    let is_respool = |case: &CaseReport| case.case.target.is_respool();
    if warmup_s < SETTLE_S && report.cases.iter().any(is_respool) {
        said.push(format!(
            "The same load ran for only {warmup_s} s before each window. respool's balanced flush rule settles within \
             {} s, so some of its figures are of an earlier wait.",
            SETTLE_S
        ));
    }
    match options.generator {
        LoadGenerator::Own => said.push(
            "The load generator comes from the makers of respool. --generator redis-benchmark repeats the run with \
             Redis's own, which takes more CPU from the others."
                .to_owned(),
        ),
        LoadGenerator::RedisBenchmark => said.push(
            "redis-benchmark does not check the values it gets, tells times only at a few percentiles, and its CPU \
             includes connecting. It draws the keys of an MGET one by one, so that some of them may be the same."
                .to_owned(),
        ),
    }
    if has(|target| {
        matches!(
            target,
            LoadTarget::Twemproxy
                | LoadTarget::Envoy
                | LoadTarget::Other { .. }
                | LoadTarget::Pool {
                    way: Way::Envoy,
                    ..
                }
        )
    }) {
        said.push(
            "Peers run with one worker and, beyond the configuration below, their defaults. They were \
             not tuned, and Envoy does much that is not needed here: statistics, filters, routing."
                .to_owned(),
        );
    }
    if let Some(most) = options.servers.iter().max() {
        said.push(format!(
            "Up to {most} servers share the cores with everything else: the purpose of several servers, more throughput, cannot \
             show here, and CPU per request can. Every server that is asked costs a system call and a wake-up more, which many \
             requests at once share and a lone one does not. Those that are not asked run on and cost next to nothing."
        ));
    }
    if options.has_floor {
        said.push(
            "The floor is no proxy: it finds no ends of requests, knows no command and talks to no server. It shows the \
             cost of receiving and sending alone for one process that answers 50 or so clients with two system calls each."
                .to_owned(),
        );
    }
    let most = options.threads.iter().copied().max().unwrap_or(1);
    if has(LoadTarget::is_respool) && usize::from(most) + 2 > machine.cores {
        said.push(format!(
            "With {most} threads there are more busy threads than the {} cores: the gain by several threads does not show \
             on this machine.",
            machine.cores
        ));
    }
    if machine.is_virtual {
        said.push(
            "This is a virtual machine: its neighbours take time that no counter here shows. The spread of the rounds \
             bounds the meaning of a difference."
                .to_owned(),
        );
    }
    if let Some(most) = options.stolen_cores_max {
        let rounds = report.cases.iter().flat_map(|case| &case.rounds);
        let left = rounds.filter(|round| round.stolen.is_some_and(|cores| cores > most));
        said.push(format!(
            "A measurement from which the hypervisor took more than {most} cores was made again, up to twice: {} were, and {} of \
             those that count lost more than that all the same.",
            report.repeated,
            left.count()
        ));
    }
    if machine.load_before > 0.3 {
        said.push(format!(
            "The machine was not at rest: in the minute before, {:.1} processes wanted to run.",
            machine.load_before
        ));
    }
    let others = report
        .cases
        .iter()
        .filter_map(|case| Some(case.summary.as_ref()?.others?.median));
    let others = others.fold(0.0, f64::max);
    if others > 0.1 {
        said.push(format!(
            "Other processes ran meanwhile: in the most disturbed case they used {others:.1} of the {} cores. Throughput \
             and times suffer from that, and CPU per request moves, too: processes that are pushed onto one core wake each \
             other more cheaply. Ratios within a round move least.",
            machine.cores
        ));
    }
    if options.seconds() < 2.0 {
        said.push(format!(
            "Windows of {:.1} s are short: p99.9 rests on few requests, and the split of CPU into user and system is rough.",
            options.seconds()
        ));
    }
    said
}

fn reproduce(page: &mut String, report: &Report) {
    let _ = write!(
        page,
        "<section><h2>Again, on your machine</h2><pre>{}</pre><p>Next to this page: <code>report.json</code> with every \
         round and every sample, <code>rounds.csv</code> with a line a round, <code>table.txt</code>.</p>",
        escape(&report.command.join(" "))
    );
    let servers = std::iter::once(&report.server).chain(&report.pools);
    for facts in servers.chain(&report.targets) {
        write_facts(page, facts);
    }
    let machine = &report.machine;
    let _ = writeln!(
        page,
        "<p class=\"hint\">{}, {} GiB of memory, {}. Load before the run {:.2}.</p></section>",
        escape(&machine.system),
        machine.memory_bytes >> 30,
        escape(&machine.kernel),
        machine.load_before
    );
}

fn write_facts(page: &mut String, facts: &ProcessFacts) {
    let _ = write!(
        page,
        "<details><summary>{}: {}</summary><pre>{}</pre><p class=\"hint\">{} threads, those that only wait included.</p>",
        escape(&facts.name),
        escape(&facts.version),
        escape(&facts.command),
        facts.threads
    );
    if let Some(text) = &facts.configuration {
        let _ = write!(page, "<pre>{}</pre>", escape(text));
    }
    page.push_str("</details>\n");
}

fn legend(page: &mut String, names: &[&str]) {
    page.push_str("<p class=\"legend\">");
    for name in names {
        let word = if *name == "rate" { "requests/s" } else { name };
        let _ = write!(page, "<span><i class=\"{name}\"></i>{word}</span>");
    }
    page.push_str("</p>");
}

fn workload_title(workload: Workload) -> String {
    let Workload {
        verb,
        pipeline,
        connections,
        rate,
    } = workload;
    let clients = if connections == 1 {
        "1 connection".to_owned()
    } else {
        format!("{connections} connections")
    };
    let load = rate.map_or(String::new(), |rate| {
        format!(", {} requests/s due", figure::count(rate.into()))
    });
    match pipeline {
        1 => format!("{verb}, one at a time, {clients}{load}"),
        _ => format!("{verb}, {pipeline} at once, {clients}{load}"),
    }
}

/// The colours of the processes are those of Okabe and Ito, which people with any colour vision can
/// tell apart.
const STYLE: &str = "
:root{color-scheme:light dark;--ground:#fff;--raised:#f6f7f8;--ink:#1b1f24;--soft:#5a636e;--rule:#d9dee3;--grid:#e8ebee;
--server:#0072b2;--proxy:#d55e00;--generator:#009e73;--rate:#c9ced6;--rate-edge:#8d96a3;--bad:#b3261e;
--load0:#1b1f24;--load1:#56b4e9;--load2:#cc79a7;--load3:#a05a00}
@media (prefers-color-scheme:dark){:root{--ground:#14171a;--raised:#1d2126;--ink:#e8eaed;--soft:#a3adb8;--rule:#343b43;
--grid:#272d33;--server:#56b4e9;--proxy:#ff9447;--generator:#3cc99b;--rate:#3a424c;--rate-edge:#7b8794;--bad:#ff8a80;
--load0:#e8eaed;--load1:#56b4e9;--load2:#e39cc4;--load3:#e69f00}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.55 system-ui,sans-serif}
main{max-width:1180px;margin:0 auto;padding:2rem 1rem 4rem}
h1{font-size:1.7rem;line-height:1.25;margin:.2rem 0 .8rem;text-wrap:balance}
h2{font-size:1.25rem;margin:3rem 0 .5rem}
p,li{max-width:75ch}
.kicker{margin:0;color:var(--soft);font-size:.9rem}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(220px,1fr));gap:.8rem 1.5rem;margin:1.5rem 0 0}
.facts dt{color:var(--soft);font-size:.85rem}.facts dd{margin:0}
.failed{border-left:4px solid var(--bad);padding:.1rem 1rem;background:var(--raised);margin-top:2rem}
.failed h2{margin:.8rem 0 .3rem;color:var(--bad)}
.scroll{overflow-x:auto}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:1rem}
figure{margin:0;background:var(--raised);border-radius:8px;padding:.8rem 1rem;min-width:0}
figure.wide{padding:.8rem}
figcaption{font-weight:600;margin-bottom:.4rem}
.cards svg{max-width:100%;min-width:320px;height:auto;display:block}
.wide svg,details svg{max-width:100%;min-width:860px;height:auto;display:block}
.sum,.hint{color:var(--soft);font-size:.88rem}.sum{margin:.3rem 0 0}
.legend{display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;margin:.6rem 0;font-size:.9rem}
.legend i{display:inline-block;width:1.1em;height:.75em;border-radius:2px;margin-right:.45em}
i.server{background:var(--server)}i.proxy{background:var(--proxy)}i.generator{background:var(--generator)}
i.load0{background:var(--load0)}i.load1{background:var(--load1)}i.load2{background:var(--load2)}
i.load3{background:var(--load3)}.panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,320px),1fr));gap:.6rem}
.panels svg{width:100%;min-width:0;height:auto;display:block}section>figure{margin-top:1rem}
i.rate{background:var(--rate);border-top:2px solid var(--rate-edge)}
ol.cases{columns:3 240px;font-size:.9rem;color:var(--soft);margin:.8rem 0}
table{border-collapse:collapse;font-size:.86rem;font-variant-numeric:tabular-nums;white-space:nowrap;margin:1rem 0}
caption{text-align:left;font-weight:600;padding-bottom:.4rem}
th,td{padding:.28rem .6rem;text-align:right;border-bottom:1px solid var(--grid)}
th{color:var(--soft);font-weight:600;border-color:var(--rule)}
th.word,td.word{text-align:left}
tr.next td{border-top:2px solid var(--rule)}
th.group{text-align:center;border-bottom:2px solid var(--rule)}
th.server{border-color:var(--server)}th.proxy{border-color:var(--proxy)}th.generator{border-color:var(--generator)}
pre{background:var(--raised);padding:.8rem 1rem;border-radius:8px;overflow-x:auto;font-size:.85rem}
summary{cursor:pointer;padding:.25rem 0}
svg text{fill:var(--ink);font:12px system-ui,sans-serif;font-variant-numeric:tabular-nums}
svg .tick,svg .axis{fill:var(--soft)}svg .note{fill:var(--soft)}svg .mark{font-weight:600}
svg .end{text-anchor:end}svg .middle{text-anchor:middle}
svg .grid{stroke:var(--grid)}svg .base{stroke:var(--soft)}
svg .rate{fill:var(--rate);fill-opacity:.75;stroke:var(--rate-edge);stroke-width:1}
svg .line{fill:none;stroke-width:2;stroke-linejoin:round}
svg .line.other{stroke:var(--soft)}svg .bar.other{fill:var(--soft)}
svg .line.fitted{stroke-width:1;stroke-dasharray:1 3}
svg .line.server{stroke:var(--server)}svg .line.proxy{stroke:var(--proxy)}svg .line.generator{stroke:var(--generator)}
svg .bar.server{fill:var(--server)}svg .bar.proxy{fill:var(--proxy)}svg .bar.generator{fill:var(--generator)}
svg .line.load0{stroke:var(--load0)}svg .line.load1{stroke:var(--load1)}svg .line.load2{stroke:var(--load2)}
svg .line.load3{stroke:var(--load3)}svg .bar.load0{fill:var(--load0)}svg .bar.load1{fill:var(--load1)}
svg .bar.load2{fill:var(--load2)}svg .bar.load3{fill:var(--load3)}
svg .ground{fill:var(--ground)}svg .range{stroke:var(--soft);stroke-width:2}svg .dot{fill:var(--ink)}
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::example;

    #[test]
    fn the_page_stands_alone_and_lets_nothing_through() {
        let page = page(&example());
        for foreign in [
            "http://", "https://", "<script", "url(", "@import", "<link", "<img",
        ] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        assert!(page.contains("Eight &amp; more") && page.contains("&lt;lost&gt;"));
        assert!(page.contains("redis-server --port 1 &lt;&amp;&gt;"));
        assert!(!page.contains("<lost>") && !page.contains("NaN"));
    }

    #[test]
    fn every_case_has_its_chart_and_every_round_its_overview() {
        let report = example();
        let page = page(&report);
        for case in &report.cases {
            let id = format!("<figure id=\"{}\">", case.id);
            assert_eq!(page.contains(&id), case.summary.is_some(), "{id}");
        }
        // Two workloads with two charts each, five cases with rounds; the overview has the rounds
        // of the options.
        let overviews = report.cases[0].rounds.len();
        assert_eq!(page.matches("<svg ").count(), 2 * 2 + 5 + overviews);
        for tag in ["section", "figure", "table", "details", "div", "svg"] {
            assert_eq!(
                page.matches(&format!("<{tag}")).count(),
                page.matches(&format!("</{tag}>")).count(),
                "{tag}"
            );
        }
    }

    #[test]
    fn a_report_of_mget_has_its_curves_and_both_tables() {
        let report = crate::decay::tests::example_of_mget();
        let page = page(&report);
        for part in [
            "Over the number of keys",
            "<figcaption>CPU of the server per key</figcaption>",
            "direct × 1: 1,000 keys of a request, 517 µs",
            "Decay of MGET",
            "Sweet spot",
        ] {
            assert!(page.contains(part), "{part}");
        }
        // Two targets in two charts; only times have fitted lines.
        assert_eq!(page.matches("<path class=\"line fitted").count(), 2);
        assert!(!page.contains("NaN") && !page.contains("inf\""));
        assert_eq!(
            page.matches("<svg ").count(),
            page.matches("</svg>").count()
        );
    }

    #[test]
    fn picture_has_a_panel_for_each_figure() {
        assert_eq!(picture(&example()), None);
        let picture = picture(&crate::window::tests::example_of_window()).expect("a picture");
        assert!(picture.starts_with("<svg xmlns="));
        assert_eq!(picture.matches("<svg ").count(), 1 + RULE_PANELS.len());
        assert_eq!(
            picture.matches("<svg ").count(),
            picture.matches("</svg>").count()
        );
        for part in ["connections: p99</text>", "fill:var(--ground)", "balanced"] {
            assert!(picture.contains(part), "{part}");
        }
        assert!(!picture.contains("NaN") && !picture.contains("inf\""));
    }

    #[test]
    fn a_report_of_rules_has_a_curve_for_each_target() {
        let mut report = crate::window::tests::example_of_window();
        let whole = page(&report);
        for part in [
            "Over the load",
            "<figcaption>GET, one at a time, 50 connections</figcaption>",
            "<p class=\"sum\">CPU of the proxy per request</p>",
            "<title>balanced: 2,000 requests/s due, 600 µs</title>",
            "<title>predixy: 10,000 requests/s due, 60 µs</title>",
            "open loop at 2,000 · 10,000 requests/s, and closed loop",
            "0.05 cores was made again, up to twice: 4 were, and 1 of those that count",
        ] {
            assert!(whole.contains(part), "{part}");
        }
        // Each curve has a line and a mark in the legend, in four panels. The direct server has no
        // curve in the panel of the proxy.
        let lines = |class: &str| {
            whole
                .matches(&format!("<path class=\"line {class}\""))
                .count()
        };
        assert_eq!((lines("load0"), lines("load1"), lines("other")), (6, 8, 8));
        assert!(!whole.contains("60,000 requests/s due"), "the closed loop");
        assert!(!whole.contains("NaN") && !whole.contains("inf\""));
        assert!(!whole.contains("of an earlier wait"));
        report.options.warmup_s = Some(0.5);
        assert!(page(&report).contains("for only 0.5 s before each window"));
    }

    #[test]
    fn a_report_of_pools_has_every_figure_over_the_servers() {
        let report = crate::cluster::tests::example_of_cluster();
        let page = page(&report);
        for part in [
            "Over several servers",
            "<title>cluster, 3: 7.2</title>",
            "<title>direct, 1: 5</title>",
            "Up to 3 servers share the cores",
            "They were not tuned",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert!(!page.contains("<title>direct, 3"));
        // Three ways in four panels of two workloads.
        assert_eq!(page.matches("<path class=\"line load2\"").count(), 4 * 2);
        assert!(!page.contains("NaN") && !page.contains("inf\""));
    }

    /// The page names the unfair conditions of this run.
    #[test]
    fn unfair_conditions_follow_from_the_run() {
        let mut report = example();
        let said = |report: &Report| sentences(report).join("\n");
        assert!(!said(&report).contains("Envoy") && said(&report).contains("makers of respool"));
        report.options.generator = LoadGenerator::RedisBenchmark;
        report.options.rate = Some(1000.0);
        report.cases[0].case.target = LoadTarget::Envoy;
        assert!(said(&report).contains("Envoy") && said(&report).contains("1,000 requests/s"));
        assert!(!said(&report).contains("makers of respool"));
    }
}

//! The output of a failover run: tables, a picture of each round, and files.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{
    ABOUT, ADDED_MS_MAX, BUCKET_MS, By, FailoverReport, FailoverRound, NAME, READS, TITLE,
    TopologyKind,
};
use crate::chart::{self, Moment, Timeline, escape};
use crate::figure;
use crate::flags::{WIDTH, wrap};
use crate::html;
use crate::report::FigureSpread;
use crate::table::{Style, Table, heads};

/// The word for a bar that is kept, missed, or unknown.
fn verdict(kept: Option<bool>) -> &'static str {
    match kept {
        Some(true) => "kept",
        Some(false) => "missed",
        None => "never healed",
    }
}

fn ms(ms: Option<f64>) -> String {
    ms.map_or(String::new(), |ms| figure::count(ms.round()))
}

/// A row for each round, and one of medians.
pub fn rounds(report: &FailoverReport) -> Table {
    let times: [fn(&FailoverRound) -> Option<f64>; 8] = [
        |round| round.first_error_ms,
        |round| round.last_error_ms,
        |round| round.longest_gap_ms,
        |round| round.others_gap_ms,
        |round| round.direct_ms,
        |round| round.named_ms,
        |round| round.through_ms,
        FailoverRound::added_ms,
    ];
    let mut rows: Vec<Vec<String>> = report
        .rounds
        .iter()
        .map(|round| {
            let mut row = vec![
                round.number.to_string(),
                figure::count(round.requests as f64),
                figure::count(errors(round) as f64),
                figure::count(round.failed_reads as f64),
            ];
            row.extend(times.iter().map(|time| ms(time(round))));
            row.push(verdict(round.is_kept()).to_owned());
            for count in [round.acknowledged, round.lost, round.doubled, round.belied] {
                row.push(figure::count(count as f64));
            }
            row
        })
        .collect();
    if report.rounds.len() > 1 {
        let median = |time: &fn(&FailoverRound) -> Option<f64>| {
            let spread = FigureSpread::of(report.rounds.iter().filter_map(time));
            ms(spread.map(|spread| spread.median))
        };
        let mut row = vec!["median".to_owned()];
        row.resize(4, String::new());
        row.extend(times.iter().map(median));
        row.push(verdict(report.is_kept()).to_owned());
        row.resize(rows[0].len(), String::new());
        rows.push(row);
    }
    Table {
        caption: format!(
            "Milliseconds from the moment on; added: through - direct, {ADDED_MS_MAX} at most"
        ),
        groups: vec![
            (String::new(), 2),
            ("errors".to_owned(), 4),
            ("longest without a write".to_owned(), 2),
            ("first write".to_owned(), 5),
            ("writes".to_owned(), 4),
        ],
        head: heads(&[
            "round",
            "requests",
            "all",
            "reads",
            "first",
            "last",
            "failed",
            "others",
            "direct",
            "named",
            "through",
            "added",
            "bar",
            "acknowledged",
            "lost",
            "twice",
            "belied",
        ]),
        rows,
        words: 1,
        together: 0,
    }
}

fn errors(round: &FailoverRound) -> u64 {
    let of = round.errors.iter();
    of.flat_map(|count| count.failed.iter().chain(&count.others))
        .sum()
}

/// Errors by kind. No rows without errors.
pub fn kinds(report: &FailoverReport) -> Table {
    let rows = report.rounds.iter().flat_map(|round| {
        round.errors.iter().map(|count| {
            let mut first: String = count.first.chars().take(FIRST_CHARS_MAX).collect();
            if first.len() < count.first.len() {
                first.push('…');
            }
            let mut row = vec![round.number.to_string(), count.kind.clone(), first];
            for number in count.failed.iter().chain(&count.others) {
                row.push(figure::count(*number as f64));
            }
            row
        })
    });
    Table {
        caption: "Errors after the moment, by their first word and by whose keys they are about"
            .to_owned(),
        groups: vec![
            (String::new(), 3),
            ("failed".to_owned(), 2),
            ("others".to_owned(), 2),
        ],
        head: heads(&[
            "round",
            "kind",
            "the first",
            "writes",
            "reads",
            "writes",
            "reads",
        ]),
        rows: rows.collect(),
        words: 3,
        together: 1,
    }
}

/// As much of an error as a table has room for.
const FIRST_CHARS_MAX: usize = 100;

/// The settings of the run in a line.
fn manner(report: &FailoverReport) -> String {
    let settings = &report.settings;
    let how = match (settings.kind, settings.by) {
        (TopologyKind::Cluster, By::Kill) => "a primary of a Cluster is killed".to_owned(),
        (TopologyKind::Cluster, By::Freeze) => "a primary of a Cluster freezes".to_owned(),
        (TopologyKind::Cluster, By::Command) => "CLUSTER FAILOVER".to_owned(),
        (TopologyKind::Sentinel, By::Kill) => "a primary that Sentinels watch is killed".to_owned(),
        (TopologyKind::Sentinel, By::Freeze) => "a primary that Sentinels watch freezes".to_owned(),
        (TopologyKind::Sentinel, By::Command) => "SENTINEL FAILOVER".to_owned(),
        (TopologyKind::Sharded, _) => format!(
            "a plain server is killed and comes back after {} s without its data",
            settings.down_s
        ),
    };
    let silence = match (settings.kind, settings.by) {
        (TopologyKind::Cluster | TopologyKind::Sentinel, By::Kill | By::Freeze) => {
            format!(", missed after {} ms", settings.silence.as_millis())
        }
        _ => String::new(),
    };
    let partial = match settings.is_partial {
        true => ", without full coverage",
        false => "",
    };
    let reads = match settings.reads == READS[0] {
        true => String::new(),
        false => format!(" of {}", settings.reads),
    };
    format!(
        "through {}: {how}{silence}{partial}; {} writers, {} readers{}, {} requests/s due",
        settings.through.name(),
        settings.writers,
        settings.readers,
        reads,
        figure::count(settings.rate)
    )
}

/// How to read the figures.
const READ: &str = "\
Failed: keys of the server that fails, others: of the other ones. Direct: when a candidate took the write of a probe that asks it every \
millisecond, named: when a Sentinel named it, through: when the proxy had a write to the same server's keys acknowledged, the first after \
direct that is there in the end. Acknowledged writes that no server has any more were lost by the servers, which replicate after \
they have answered, or, under Sentinels, went to a primary that was none any more; twice: executed more than once; belied: executed \
though the client was told that they were not.";

/// Tables and failures as text.
pub fn text(report: &FailoverReport, style: Style) -> String {
    let (bold, plain) = style.bold();
    let mut text = format!(
        "{bold}{TITLE}{plain}\n{} · {} · {} cores · {} · {}\n{}\n",
        report.started,
        report.machine.cpu,
        report.machine.cores,
        report.server,
        report.proxy,
        manner(report)
    );
    for table in [rounds(report), kinds(report)] {
        if !table.rows.is_empty() {
            let _ = write!(text, "\n{bold}{}{plain}\n{}", table.caption, table.text());
        }
    }
    let _ = write!(text, "\n{}\n", wrap(READ, WIDTH).join("\n"));
    for failure in &report.failures {
        let _ = writeln!(text, "\n{bold}FAILED{plain} {failure}");
    }
    text
}

/// The report as one page.
pub fn page(report: &FailoverReport) -> String {
    let machine = &report.machine;
    let mut body = String::new();
    html::header(
        &mut body,
        NAME,
        TITLE,
        ABOUT,
        &[
            (
                "When",
                format!("{}, {:.0} s in all", report.started, report.took_s),
            ),
            (
                "Machine",
                format!(
                    "{}, {} cores, Linux {}",
                    machine.cpu, machine.cores, machine.kernel
                ),
            ),
            (
                "Servers and proxy",
                format!("{}, {}", report.server, report.proxy),
            ),
            ("What happens", manner(report)),
        ],
    );
    html::failures(&mut body, &report.failures);
    body.push_str(
        "<section><h2>Over time</h2><p>Above: how long a request took that was due at that moment, from then on, by a logarithmic \
         axis; the line is the median, dots are the longest. Below: how many of them ended in an error.</p><p class=\"legend\">\
         <span><i class=\"proxy\"></i>keys of the server that fails</span>\
         <span><i class=\"server\"></i>keys of the others</span>",
    );
    for (place, name) in ERRORS.iter().enumerate() {
        let _ = write!(
            body,
            "<span><i class=\"load{}\"></i>{name}</span>",
            place + 1
        );
    }
    body.push_str("</p>");
    for round in &report.rounds {
        let title = format!("Round {}", round.number);
        let _ = write!(
            body,
            "<figure class=\"wide\" id=\"round-{}\"><figcaption>{title}</figcaption><div class=\"scroll\">{}</div></figure>",
            round.number,
            picture(round, &title)
        );
    }
    body.push_str("</section>\n<section><h2>Figures</h2>");
    for table in [rounds(report), kinds(report)] {
        if !table.rows.is_empty() {
            html::write_table(&mut body, &table);
        }
    }
    let _ = writeln!(body, "<p class=\"hint\">{}</p></section>", escape(READ));
    let _ = writeln!(
        body,
        "<section><h2>Again, on your machine</h2><pre>{}</pre><p>Next to this page: <code>report.json</code> with all of it, \
         <code>rounds.csv</code> with a line a round, <code>timeline.csv</code> with a line for every {BUCKET_MS} ms, \
         <code>table.txt</code>.</p><p>The proxy was started so: </p><pre>{}</pre></section>",
        escape(&report.command.join(" ")),
        escape(&report.proxy_command)
    );
    html::frame(&format!("{NAME}: {TITLE}"), &body)
}

/// Kinds of errors in a bucket.
const ERRORS: [&str; 3] = ["NOTSENT", "UNKNOWN", "other errors"];

fn picture(round: &FailoverRound, title: &str) -> String {
    let moments: Vec<Moment> = round
        .timeline
        .iter()
        .map(|bucket| Moment {
            at_s: bucket.at_ms / 1e3,
            p50_us: bucket.p50_us,
            max_us: bucket.max_us,
            errors: bucket.errors,
        })
        .collect();
    let mut marks = vec![(0.0, "moment".to_owned())];
    let named = [
        (round.direct_ms, "direct"),
        (round.named_ms, "named"),
        (round.through_ms, "through"),
    ];
    for (ms, name) in named {
        marks.extend(ms.map(|ms| (ms / 1e3, name.to_owned())));
    }
    chart::timeline(&Timeline {
        label: format!("{title}: time of requests and errors over time"),
        step_s: BUCKET_MS / 1e3,
        moments,
        error_names: ERRORS,
        marks,
    })
}

/// A line for each round. An empty field has no figure.
pub fn rounds_csv(report: &FailoverReport) -> String {
    let mut text = String::from(
        "experiment,kind,by,through,reads,round,requests,errors,failed_reads,notsent,unknown,other_errors,errors_of_others_keys,first_error_ms,\
         last_error_ms,longest_gap_ms,others_gap_ms,direct_ms,named_ms,through_ms,added_ms,acknowledged,lost,twice,belied\n",
    );
    let settings = &report.settings;
    for round in &report.rounds {
        let kind = |kind: &str| -> u64 {
            let of = round.errors.iter().filter(|count| count.kind == kind);
            of.flat_map(|count| count.failed.iter().chain(&count.others))
                .sum()
        };
        let all = errors(round);
        let (notsent, unknown) = (kind("NOTSENT"), kind("UNKNOWN"));
        let others: u64 = round.errors.iter().flat_map(|count| count.others).sum();
        let mut fields = vec![
            NAME.to_owned(),
            settings.kind.name().to_owned(),
            settings.by.name().to_owned(),
            settings.through.name().to_owned(),
            settings.reads.clone(),
        ];
        let counts = [
            u64::from(round.number),
            round.requests,
            all,
            round.failed_reads,
            notsent,
            unknown,
            all - notsent - unknown,
            others,
        ];
        fields.extend(counts.map(|count| count.to_string()));
        let times = [
            round.first_error_ms,
            round.last_error_ms,
            round.longest_gap_ms,
            round.others_gap_ms,
            round.direct_ms,
            round.named_ms,
            round.through_ms,
            round.added_ms(),
        ];
        fields.extend(times.map(number));
        let counts = [round.acknowledged, round.lost, round.doubled, round.belied];
        fields.extend(counts.map(|count| count.to_string()));
        text.push_str(&fields.join(","));
        text.push('\n');
    }
    text
}

/// A line for each bucket of each round.
pub fn timeline_csv(report: &FailoverReport) -> String {
    let mut text = String::from(
        "round,at_ms,done_failed,p50_us_failed,max_us_failed,done_others,p50_us_others,max_us_others,notsent,unknown,\
         other_errors\n",
    );
    for round in &report.rounds {
        for bucket in &round.timeline {
            let mut fields = vec![round.number.to_string(), number(Some(bucket.at_ms))];
            for place in 0..2 {
                fields.push(bucket.done[place].to_string());
                fields.push(number(bucket.p50_us[place]));
                fields.push(number(bucket.max_us[place]));
            }
            fields.extend(bucket.errors.map(|count| count.to_string()));
            text.push_str(&fields.join(","));
            text.push('\n');
        }
    }
    text
}

fn number(figure: Option<f64>) -> String {
    figure.map_or(String::new(), |figure| format!("{figure:.1}"))
}

impl FailoverReport {
    /// Writes all files into a folder, which it creates. Returns their paths.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn write(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        fs::create_dir_all(folder)?;
        let files = [
            ("report.html", page(self)),
            ("report.json", serde_json::to_string(self)?),
            ("rounds.csv", rounds_csv(self)),
            ("timeline.csv", timeline_csv(self)),
            ("table.txt", text(self, Style::Plain)),
        ];
        let mut paths = Vec::new();
        for (name, text) in files {
            let path = folder.join(name);
            fs::write(&path, text)?;
            paths.push(path);
        }
        Ok(paths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failover::tests::example;

    /// Page and text have every round, and the page escapes its quotations.
    #[test]
    fn failover_page_has_every_round_and_escapes_text() {
        let report = example();
        let page = page(&report);
        for part in [
            "id=\"round-2\"",
            "respool &lt;0&gt;",
            ">through</text>",
            "<title>0.05 s: 2 NOTSENT</title>",
            "keys of the others: median 1 ms, longest 1 ms",
            "missed after 1500 ms",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
        assert!(!page.contains("NaN") && !page.contains("inf\""));
        for tag in ["svg", "rect", "title", "table", "figure", "section", "p"] {
            let opened = page.matches(&format!("<{tag} ")).count()
                + page.matches(&format!("<{tag}>")).count();
            assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
        let text = text(&report, Style::Plain);
        assert!(
            text.lines().all(|line| line.chars().count() <= 160),
            "{text}"
        );
        let table = rounds(&report);
        assert_eq!(
            table.rows[2].join(" | "),
            "median |  |  |  | 51 | 71 | 680 | 500 | 400 | 430 | 630 | 230 | missed |  |  |  | "
        );
        assert_eq!(kinds(&report).rows.len(), 2 * 2);
    }

    #[test]
    fn both_files_of_figures_have_as_many_fields_as_names() {
        let report = example();
        for csv in [rounds_csv(&report), timeline_csv(&report)] {
            let fields = |line: &str| line.split(',').count();
            let names = csv.lines().next().map(fields);
            assert!(csv.lines().all(|line| Some(fields(line)) == names), "{csv}");
        }
        let csv = rounds_csv(&report);
        let line = csv.lines().nth(1).unwrap_or_default();
        assert!(
            line.starts_with(
                "failover,cluster,kill,respool,primary,1,12,3,2,2,0,1,1,51.0,71.0,680.0"
            ),
            "{line}"
        );
    }
}

//! The alert rules and the board in packaging/ ask for metrics and labels that a page has.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use respool_testkit::certificates::TestCa;
use respool_testkit::client::{Reply, RespClient};
use respool_testkit::servers::{
    Proxy, ReservedPort, ServerProcess, any_server, find_program, leave_out,
};

use super::metrics::{get, pages_of, parse, value_of};
use crate::target::respool;

const SOON: Duration = Duration::from_secs(30);

/// Labels that Prometheus adds.
const OF_PROMETHEUS: [&str; 2] = ["instance", "job"];

fn packaged(name: &str) -> String {
    let path = path_of(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn path_of(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../packaging")
        .join(name)
}

/// A query, and the labels that texts about its results name.
#[derive(Debug, Default)]
struct PackagedQuery {
    text: String,
    shown_labels: Vec<String>,
}

/// The words between `{{ $labels.` or `{{`, and `}}`.
fn templated(line: &str) -> Vec<String> {
    let inner = line
        .split("{{")
        .skip(1)
        .filter_map(|rest| rest.split("}}").next());
    let words = inner.map(|word| word.trim().trim_start_matches("$labels.").to_owned());
    words.filter(|word| word != "$value").collect()
}

/// The queries of the alert rules. An expression is one line, or the lines behind `|`.
fn queries_of_rules(text: &str) -> Vec<PackagedQuery> {
    let mut queries: Vec<PackagedQuery> = Vec::new();
    let mut is_inside = false;
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("expr:") {
            queries.push(PackagedQuery::default());
            is_inside = rest.trim() == "|";
            queries.last_mut().expect("one").text = rest.trim_matches([' ', '|']).to_owned();
        } else if line.starts_with("for:") {
            is_inside = false;
        } else if let Some(query) = queries.last_mut() {
            match is_inside {
                true => query.text.push_str(line),
                false => query.shown_labels.extend(templated(line)),
            }
        }
    }
    assert_eq!(queries.len(), text.matches("- alert:").count());
    queries
}

/// The queries of the board: `"expr"`, and the `"legendFormat"` behind it.
fn queries_of_board(text: &str) -> Vec<PackagedQuery> {
    let value = |line: &str, key: &str| {
        let rest = line.trim().strip_prefix(key)?.trim_end_matches(',');
        let text = rest.trim().strip_prefix('"')?.strip_suffix('"')?;
        Some(text.replace("\\\"", "\""))
    };
    let mut queries: Vec<PackagedQuery> = Vec::new();
    for line in text.lines() {
        if let Some(text) = value(line, "\"expr\":") {
            queries.push(PackagedQuery {
                text,
                ..PackagedQuery::default()
            });
        } else if let Some(legend) = value(line, "\"legendFormat\":") {
            let query = queries.last_mut().expect("the legend of a query");
            query.shown_labels = templated(&legend);
        }
    }
    assert_eq!(queries.len(), text.matches("\"expr\"").count());
    queries
}

/// A metric of a query with its conditions: label, operator, value.
type Selected = (String, Vec<(String, String, String)>);

/// A query in its parts.
#[derive(Debug, Default, PartialEq)]
struct QueryParts {
    selected: Vec<Selected>,
    /// The labels of each `by` and `on`.
    lists: Vec<(String, Vec<String>)>,
}

/// Takes a query apart. Functions stand before a bracket or `by`, and other words are metrics.
fn parts_of(query: &str) -> QueryParts {
    const OPERATORS: [&str; 4] = ["and", "or", "unless", "bool"];
    let mut parts = QueryParts::default();
    let mut rest = query.trim_start();
    let until = |text: &str, end: char| -> (String, usize) {
        let at = text
            .find(end)
            .unwrap_or_else(|| panic!("{end} is not in {text}"));
        (text[..at].to_owned(), at + 1)
    };
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let mut taken = first.len_utf8();
        if first == '[' {
            taken = until(rest, ']').1;
        } else if first.is_ascii_digit() {
            taken = rest
                .find(|c: char| !is_word(c) && c != '.')
                .unwrap_or(rest.len());
        } else if is_word(first) {
            let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let (word, behind) = rest.split_at(length);
            taken = rest.len() - behind.trim_start().len();
            let behind = behind.trim_start();
            if ["by", "on"].contains(&word) {
                let (list, end) = until(behind.strip_prefix('(').expect("a list"), ')');
                let list = list.split(',').map(|label| label.trim().to_owned());
                parts.lists.push((word.to_owned(), list.collect()));
                taken += 1 + end;
            } else if let Some(conditions) = behind.strip_prefix('{') {
                let (conditions, end) = until(conditions, '}');
                parts
                    .selected
                    .push((word.to_owned(), conditions_of(&conditions)));
                taken += 1 + end;
            } else if !behind.starts_with('(')
                && !behind.starts_with("by ")
                && !OPERATORS.contains(&word)
            {
                parts.selected.push((word.to_owned(), vec![]));
            }
        }
        rest = rest[taken..].trim_start();
    }
    parts
}

/// `a="b",c!~"d,e"`.
fn conditions_of(text: &str) -> Vec<(String, String, String)> {
    let mut all = Vec::new();
    let mut quoted = text.split('"');
    while let (Some(label), Some(value)) = (quoted.next(), quoted.next()) {
        let label = label.trim_matches([',', ' ']);
        let at = label.find(['=', '!']).expect("an operator");
        let (label, operator) = label.split_at(at);
        all.push((label.to_owned(), operator.to_owned(), value.to_owned()));
    }
    all
}

/// For each metric of a page: for each label its values.
type PageLabels = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// The names in a query that are not on the page.
fn missing(query: &PackagedQuery, page: &PageLabels) -> Vec<String> {
    let parts = parts_of(&query.text);
    let mut missing = Vec::new();
    let has = |metric: &str, label: &str| {
        OF_PROMETHEUS.contains(&label)
            || page
                .get(metric)
                .is_some_and(|labels| labels.contains_key(label))
    };
    let of_page = parts.selected.iter().filter(|(metric, _)| metric != "up");
    for (metric, conditions) in of_page.clone() {
        if !page.contains_key(metric) {
            missing.push(format!("the metric {metric}"));
            continue;
        }
        for (label, operator, value) in conditions {
            if !has(metric, label) {
                missing.push(format!("the label {label} of {metric}"));
            } else if operator == "=" && !OF_PROMETHEUS.contains(&label.as_str()) {
                let values = &page[metric][label];
                if !values.contains(value) {
                    missing.push(format!("{metric}{{{label}={value}}}, only {values:?}"));
                }
            }
        }
        for label in parts.lists.iter().flat_map(|(_, labels)| labels) {
            if !has(metric, label) {
                missing.push(format!("the label {label} of {metric}"));
            }
        }
    }
    // The results have the labels of the outermost list, or those of the first metric.
    let outermost = parts.lists.iter().find(|(word, _)| word == "by");
    for label in &query.shown_labels {
        let is_shown = match (outermost, of_page.clone().next()) {
            (Some((_, labels)), _) => labels.contains(label),
            (None, Some((metric, _))) => has(metric, label),
            (None, None) => OF_PROMETHEUS.contains(&label.as_str()),
        };
        if !is_shown {
            missing.push(format!("the label {label} of the results"));
        }
    }
    missing
}

/// A respool with every kind of series: it has a certificate, more servers than have names, and
/// servers that are down.
fn page_with_every_series() -> PageLabels {
    const SHARDS: usize = 260;
    let folder = tempfile::tempdir().expect("a directory");
    let ca = TestCa::new(folder.path(), "clients-trust-this").expect("a CA");
    let identity = ca.sign("listener", &["localhost"]).expect("a certificate");
    let server = ServerProcess::start::<&str>(&any_server(), &[]).expect("a server");
    let (tls, shards) = (ReservedPort::new(), ReservedPort::new());
    let (tls, shards) = (tls.expect("a port"), shards.expect("a port"));
    // No server is at these addresses.
    let dead = (0..SHARDS).map(|nth| format!("127.0.{}.{}:1", 1 + nth / 200, 1 + nth % 200));
    let dead: Vec<String> = dead.collect();
    let file = folder.path().join("respool.toml");
    let proxy = Proxy::start_with(&respool(), |port| {
        let text = format!(
            "threads = 1\nlinks-max = 1000\nmetrics-listen = '127.0.0.1:0'\ntls-cert = ['{}']\ntls-key = ['{}']\n\
             [pool.main]\nlisten = '127.0.0.1:{port}'\ntls-listen = '127.0.0.1:{}'\n\
             backend = 'redis://{}'\n\
             [pool.shards]\nlisten = '127.0.0.1:{}'\nbackend = 'redis-sharded://{}'\n",
            identity.cert.display(),
            identity.key.display(),
            tls.port,
            server.address(),
            shards.port,
            dead.join(",")
        );
        fs::write(&file, text).expect("the file can be written");
        vec!["--config".into(), file.display().to_string()]
    });
    let proxy = proxy.unwrap_or_else(|error| panic!("{error}"));
    let pages = pages_of(&proxy);
    let mut client = RespClient::connect(proxy.address());
    assert_eq!(client.call("SET key value"), Reply::ok());
    assert!(client.call("INCR key").error().is_some());
    let began = Instant::now();
    let samples = loop {
        let samples = parse(&get(pages, "/metrics").body);
        let has = |name: &str| samples.iter().any(|(its, _, _)| its == name);
        // Times and errors of requests come once a second, CPU time of servers after an answer.
        let last = [
            "respool_request_duration_seconds_bucket",
            "respool_request_errors_total",
            "respool_server_cpu_seconds_total",
        ];
        if last.into_iter().all(has) {
            break samples;
        }
        assert!(began.elapsed() < SOON, "{samples:?}");
        thread::sleep(Duration::from_millis(100));
    };
    let down = |pool| {
        let labels = [("pool", pool), ("role", "primary")];
        value_of(&samples, "respool_pool_servers_down", &labels)
    };
    assert_eq!((down("main"), down("shards")), (0.0, SHARDS as f64));
    let other = [("pool", "shards"), ("server", "other")];
    assert_eq!(value_of(&samples, "respool_server_up", &other), 0.0);
    let mut page = PageLabels::new();
    for (name, labels, _) in samples {
        let known = page.entry(name).or_default();
        for (label, value) in labels {
            known.entry(label).or_default().insert(value);
        }
    }
    page
}

/// Each metric and each label that the alert rules and the board name is on a page of respool.
#[test]
fn packaged_queries_name_metrics_of_the_page() {
    let page = page_with_every_series();
    let rules = queries_of_rules(&packaged("prometheus/respool.rules.yml"));
    let board = queries_of_board(&packaged("grafana/respool.json"));
    assert!(
        packaged("grafana/respool.json").contains("label_values(respool_build_info, instance)")
    );
    assert!(page.contains_key("respool_build_info"));
    for query in rules.iter().chain(&board) {
        let missing = missing(query, &page);
        assert!(missing.is_empty(), "{query:?}: the page lacks {missing:?}");
    }
    // The test sees each missing name.
    for (text, shown, lacks) in [
        (
            "sum by (pool) (rate(respool_no_such_total[5m])) > 1",
            "pool",
            "the metric",
        ),
        (
            "sum by (no_such) (respool_server_up) > 0.5e3",
            "no_such",
            "the label no_such",
        ),
        (
            "respool_server_up{no_such!=\"x\"}",
            "pool",
            "the label no_such",
        ),
        (
            "respool_server_up == 0 and on (pool, no_such) respool_pool_ready",
            "pool",
            "no_such",
        ),
        ("respool_server_info{role=\"no_such\"}", "pool", "no_such"),
        (
            "sum by (pool) (respool_server_up)",
            "server",
            "of the results",
        ),
        ("respool_pool_ready", "server", "of the results"),
    ] {
        let query = PackagedQuery {
            text: text.into(),
            shown_labels: vec![shown.into()],
        };
        let missing = missing(&query, &page).join(" ");
        assert!(missing.contains(lacks), "{text}: {missing}");
    }
}

/// promtool accepts the alert rules and their tests: each alert fires and is silent as it should.
#[test]
fn promtool_accepts_the_rules() {
    let program = match find_program("promtool") {
        Ok(program) => program,
        Err(missing) => return leave_out("prometheus", missing),
    };
    for (words, file) in [
        (["check", "rules"], "prometheus/respool.rules.yml"),
        (["test", "rules"], "prometheus/respool.rules.test.yml"),
    ] {
        let mut command = Command::new(&program);
        command.args(words).arg(path_of(file));
        let output = command.output().expect("promtool runs");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(output.status.success(), "{file}: {said}");
    }
}

/// Each alert has a test at which it fires, and one at which it is silent.
#[test]
fn each_alert_has_tests() {
    let tests = packaged("prometheus/respool.rules.test.yml");
    let rules = packaged("prometheus/respool.rules.yml");
    let alerts = rules.lines().filter_map(|line| {
        let (_, name) = line.split_once("- alert: ")?;
        Some(name)
    });
    for alert in alerts {
        let of_alert = tests.split("- alertname: ").filter(|test| {
            let mut lines = test.lines();
            lines.next() == Some(alert)
        });
        let (mut fires, mut is_silent) = (false, false);
        for test in of_alert {
            is_silent |= test.contains("exp_alerts: []");
            fires |= test.contains("exp_labels:");
        }
        assert!(fires && is_silent, "{alert}: {fires}, {is_silent}");
    }
}

//! Each fact that INFO and `/metrics` both have is the same in both.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use respool_proxy::reference::{self, MetricText};
use respool_testkit::client::{Reply, RespClient, pipelined};

use super::metrics::{Labels, get, pages_of, parse, value_of, with_pages};

const SOON: Duration = Duration::from_secs(20);

/// Facts that both have in forms that cannot be compared: INFO has shares of time since a moment of
/// its own, the page has seconds since the start.
const SHARES: [&str; 2] = ["respool_worker_utilization", "utilization"];

/// Facts that only servers in other pools have.
const ELSEWHERE: [&str; 2] = ["slots", "latency_us"];

/// Counters that stay at 0 in this test: they need another pool, TLS, a fault, or a limit.
#[rustfmt::skip]
const UNMOVED: [&str; 49] = [
    "respool_blocking_polls", "respool_clients_refused_descriptors",
    "respool_clients_refused_full", "respool_collapsing_stops", "respool_failed_not_sent",
    "respool_failed_unknown", "respool_flushed_full", "respool_flushed_late",
    "respool_get_fusing_stops", "respool_late_replies", "respool_links_closed_for_room",
    "respool_links_drained", "respool_links_full", "respool_links_lost", "respool_logins_refused",
    "respool_memory_incomplete_bytes", "respool_memory_output_bytes", "respool_memory_queued_bytes",
    "respool_memory_tls_bytes", "respool_memory_unauthenticated_bytes",
    "respool_output_limit_waits", "respool_pinned_links_full", "respool_reads_sent_again",
    "respool_redirected_ask", "respool_redirected_moved", "respool_requests_deferred",
    "respool_requests_timed_out", "respool_scripts_reloaded", "respool_servers_down",
    "respool_sessions_closed_by_us", "respool_sessions_closed_unauthenticated",
    "respool_set_fusing_stops", "respool_silent_links_replaced", "respool_slot_fusing_stops",
    "respool_slow_uploads_ended", "respool_streamed_requests", "respool_streaming_links_full",
    "respool_tls_certificates_expired", "respool_tls_certificates_missing",
    "respool_tls_certificates_not_yet_valid", "respool_tls_certificates_of_other_usage",
    "respool_tls_certificates_of_unknown_ca", "respool_tls_certificates_refused_otherwise",
    "respool_tls_handshakes", "respool_tls_handshakes_failed", "respool_tls_handshaking",
    "respool_tls_sessions", "respool_topology_refreshes", "respool_watches_ended",
];

/// The samples of a page, and the fields of INFO.
struct BothTexts {
    samples: Vec<(String, Labels, f64)>,
    info: BTreeMap<String, String>,
    /// The fields of the only server.
    server: BTreeMap<String, String>,
}

impl BothTexts {
    /// A page with the INFO before it or behind it.
    fn read(pages: std::net::SocketAddr, client: &mut RespClient, info_first: bool) -> BothTexts {
        let mut page = None;
        if !info_first {
            page = Some(get(pages, "/metrics").body);
        }
        let info = client.call("INFO respool");
        let info = String::from_utf8_lossy(info.text().expect("INFO is text")).into_owned();
        let page = page.unwrap_or_else(|| get(pages, "/metrics").body);
        let pair = |line: &str| line.split_once(':').map(|(a, b)| (a.into(), b.into()));
        let info: BTreeMap<String, String> = info.lines().filter_map(pair).collect();
        let pair = |field: &str| field.split_once('=').map(|(a, b)| (a.into(), b.into()));
        let server = info["respool_server_0"].split(',').filter_map(pair);
        BothTexts {
            server: server.collect(),
            samples: parse(&page),
            info,
        }
    }

    /// The difference of a counter between the two, or nothing.
    fn counter(&self, name: &str, labels: &[(&str, &str)], field: &str) -> Result<f64, String> {
        let said = self.info.get(field).expect("the field is in INFO");
        let sample = |suffix: &str, labels: &[(&str, &str)]| {
            value_of(&self.samples, &format!("{name}{suffix}"), labels)
        };
        let Ok(number) = said.parse::<f64>() else {
            return self.sizes(said, sample);
        };
        match sample("", labels) {
            shown if shown == number => Ok(number),
            shown => Err(format!("{name}{labels:?} {shown}, {field}:{said}")),
        }
    }

    /// The same for a histogram: `1=5,2=0,...,more=0,sum=9`.
    fn sizes(
        &self,
        said: &str,
        sample: impl Fn(&str, &[(&str, &str)]) -> f64,
    ) -> Result<f64, String> {
        let mut count = 0.0;
        for bucket in said.split(',') {
            let (name, number) = bucket.split_once('=').expect("a bucket");
            let number: f64 = number.parse().expect("a number");
            let (shown, expected) = match name {
                "sum" => (sample("_sum", &[]), number),
                _ => {
                    count += number;
                    let le = if name == "more" { "+Inf" } else { name };
                    (sample("_bucket", &[("le", le)]), count)
                }
            };
            if shown != expected {
                return Err(format!("{name}: {shown}, {said}"));
            }
        }
        match sample("_count", &[]) {
            shown if shown == count => Ok(count),
            shown => Err(format!("count: {shown}, {said}")),
        }
    }

    /// The difference of another field of a family, or nothing.
    fn field(&self, metric: &MetricText, field: &str) -> Result<(), String> {
        let name = metric.name.as_str();
        let of_server = [
            ("pool", "default"),
            ("server", self.server["address"].as_str()),
        ];
        let shown = |labels: &[(&str, &str)]| value_of(&self.samples, name, labels);
        let is_there = self.samples.iter().any(|(its, _, _)| its == name);
        let number = |of: &BTreeMap<String, String>| -> f64 {
            of[field].parse().unwrap_or_else(|_| panic!("{field}"))
        };
        let text = |of: &BTreeMap<String, String>| of[field].clone();
        let (is_same, said) = match field {
            "respool_version" => (
                shown(&[("version", &self.info[field])]) == 1.0,
                text(&self.info),
            ),
            "respool_uptime_in_seconds" => {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                let since = now.expect("a clock").as_secs_f64() - shown(&[]);
                ((since - number(&self.info)).abs() < 3.0, text(&self.info))
            }
            // There was no reload.
            "respool_config_reload_at" => {
                (!is_there && number(&self.info) <= 0.0, text(&self.info))
            }
            "respool_servers" => (
                self.samples
                    .iter()
                    .filter(|(its, _, _)| its == name)
                    .count() as f64
                    == number(&self.info),
                text(&self.info),
            ),
            "address" | "pool" => (shown(&of_server) == 1.0, text(&self.server)),
            "role" => {
                let labels = [of_server[0], of_server[1], ("role", &self.server[field])];
                (
                    value_of(&self.samples, "respool_server_info", &labels) == 1.0,
                    text(&self.server),
                )
            }
            "state" => {
                let labels = [of_server[0], of_server[1], ("state", &self.server[field])];
                (
                    value_of(&self.samples, "respool_server_info", &labels) == 1.0,
                    text(&self.server),
                )
            }
            "links" | "failures_total" | "lost_total" => (
                shown(&of_server) == number(&self.server),
                text(&self.server),
            ),
            "login" => (
                shown(&of_server) == f64::from(u8::from(self.server[field] == "withdrawn")),
                text(&self.server),
            ),
            "wait_us" => (
                (shown(&of_server) * 1e6 - number(&self.server)).abs() < 0.5,
                text(&self.server),
            ),
            _ if ELSEWHERE.contains(&field) => {
                (!is_there && !self.server.contains_key(field), String::new())
            }
            _ if SHARES.contains(&field) => (true, String::new()),
            _ if self.info.contains_key(field) => {
                (shown(&[]) == number(&self.info), text(&self.info))
            }
            _ => panic!("{name} has the field {field}: compare it here"),
        };
        is_same
            .then_some(())
            .ok_or_else(|| format!("{name}, {field}:{said}"))
    }
}

/// Each row of the table with a field of INFO has the value that INFO has, while nothing happens.
/// Histograms have cumulative buckets.
#[test]
fn every_figure_of_info_is_on_the_page() {
    let target = with_pages(&["--refuse-commands=flushall"]);
    let pages = pages_of(target.proxy());
    let mut clients: Vec<RespClient> = (0..3).map(|_| target.client()).collect();
    for client in &mut clients {
        for depth in [1, 2, 7, 60] {
            pipelined(client, &vec!["SET key value"; depth].join(";"));
            pipelined(client, &vec!["GET key;GET other"; depth].join(";"));
        }
        client.call("FLUSHALL");
        client.call("NOSUCHCOMMAND");
        client.call("MULTI");
        client.call("INCR number");
        client.call("EXEC");
        client.call("WATCH key");
        client.call("BLPOP nothing 0.1");
    }
    let mut listener = target.client();
    listener.send(b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nc\r\n");
    listener.reply();
    assert_eq!(clients[0].call("PUBLISH c hello"), Reply::Integer(1));
    listener.reply();
    // Counters are published ten times a second, reports twice.
    let metrics = reference::metrics();
    let began = Instant::now();
    let (mut same, mut different) = (BTreeMap::new(), BTreeMap::new());
    let mut info_first = false;
    loop {
        thread::sleep(Duration::from_millis(300));
        let texts = BothTexts::read(pages, &mut clients[1], info_first);
        info_first = !info_first;
        for metric in &metrics {
            for (label, field) in &metric.counters {
                let labels: Vec<_> = label.iter().copied().collect();
                match texts.counter(&metric.name, &labels, field) {
                    Ok(value) => drop(same.insert(field.clone(), value)),
                    Err(difference) => drop(different.insert(field.clone(), difference)),
                }
            }
            let counters: Vec<&String> = metric.counters.iter().map(|(_, field)| field).collect();
            for field in metric.info.iter().filter(|field| !counters.contains(field)) {
                let key = format!("{} {field}", metric.name);
                match texts.field(metric, field) {
                    Ok(()) => drop(same.insert(key, 0.0)),
                    Err(difference) => drop(different.insert(key, difference)),
                }
            }
        }
        // A figure that changes all the time is the same at one of several moments.
        different.retain(|field, _| !same.contains_key(field));
        if different.is_empty() {
            break;
        }
        assert!(began.elapsed() < SOON, "{different:#?}");
    }
    // A row without a figure compares nothing.
    let counters = metrics.iter().flat_map(|metric| &metric.counters);
    let counters: BTreeSet<&str> = counters.map(|(_, field)| field.as_str()).collect();
    let at_0: BTreeSet<&str> = counters
        .iter()
        .copied()
        .filter(|field| same[*field] == 0.0)
        .collect();
    let unmoved = BTreeSet::from(UNMOVED);
    assert!(at_0.is_subset(&unmoved), "{:?}", &at_0 - &unmoved);
    assert!(unmoved.is_subset(&counters), "{:?}", &unmoved - &counters);
}

//! The text of `/metrics`: the families of the table with the figures of a snapshot.

use std::collections::HashMap;
use std::fmt;
use std::time::SystemTime;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeLabelSet, MetricEncoder, prometheus_text, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::{Registry, Unit};
use respool_engine::{Counted, LatencyHistogram, Sizes};

use super::snapshot::{MetricsSnapshot, ServerTotals};
use super::table::{FAMILIES, MetricFamily, MetricKind, MetricSource};

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Prometheus 0.0.4.
    Text,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The value of the header `Content-Type`.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Format::Text => prometheus_text::CONTENT_TYPE,
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// The format that the header `Accept` prefers. Without a preference it is [`Format::Text`],
    /// which every reader knows.
    pub(crate) fn preferred(accept: &str) -> Format {
        let quality = |names: &[&str]| {
            let ranges = accept.split(',').filter_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                let name = parts.next()?;
                let weight = parts.find_map(|part| part.strip_prefix("q="));
                let weight: f32 = weight.map_or(Ok(1.0), str::parse).ok()?;
                let is_named = names.iter().any(|known| known.eq_ignore_ascii_case(name));
                is_named.then_some(weight)
            });
            ranges.fold(0.0, f32::max)
        };
        let open_metrics = quality(&["application/openmetrics-text"]);
        match open_metrics > quality(&["text/plain", "text/*"]) {
            true => Format::OpenMetrics,
            false => Format::Text,
        }
    }
}

/// The text of `/metrics`.
///
/// # Errors
/// Never: a `String` takes every text.
pub(crate) fn encode(snapshot: MetricsSnapshot, format: Format) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(snapshot));
    let mut out = String::new();
    match format {
        Format::Text => prometheus_text::encode(&mut out, &registry)?,
        Format::OpenMetrics => text::encode(&mut out, &registry)?,
    }
    Ok(out)
}

impl Collector for MetricsSnapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counters: HashMap<&str, Counted> = self.counters.each().collect();
        for family in FAMILIES {
            let unit = match family.unit {
                "bytes" => Some(Unit::Bytes),
                "seconds" => Some(Unit::Seconds),
                _ => None,
            };
            let metric_type = match family.kind {
                MetricKind::Counter => MetricType::Counter,
                MetricKind::Gauge => MetricType::Gauge,
                MetricKind::Histogram => MetricType::Histogram,
                MetricKind::Info => MetricType::Info,
            };
            let help = family.text();
            let metric =
                encoder.encode_descriptor(family.name, help, unit.as_ref(), metric_type)?;
            self.encode_family(family, &counters, metric)?;
        }
        Ok(())
    }
}

impl MetricsSnapshot {
    fn encode_family(
        &self,
        family: &MetricFamily,
        counters: &HashMap<&str, Counted>,
        mut metric: MetricEncoder<'_>,
    ) -> fmt::Result {
        let mut samples = Samples {
            metric: &mut metric,
            kind: family.kind,
        };
        match &family.source {
            MetricSource::Counter(name) => samples.counted(counters.get(name), &NO_LABELS),
            MetricSource::Counters { label, of } => {
                for (value, name) in *of {
                    samples.counted(counters.get(name), &[(*label, *value)])?;
                }
                Ok(())
            }
            MetricSource::Build => samples.facts(&[("version", env!("CARGO_PKG_VERSION"))]),
            MetricSource::Process(figure) => samples.figure(figure(&self.process), &NO_LABELS),
            MetricSource::Reload(figure) => samples.figure(figure(&self.reload), &NO_LABELS),
            MetricSource::Certificates => self.encode_expiries(&mut samples),
            MetricSource::RenewalFailures { label, of } => {
                for (value, figure) in *of {
                    samples.count(&figure(&self.renewal_failures), &[(*label, *value)])?;
                }
                Ok(())
            }
            MetricSource::Workers => samples.figure(Some(self.workers.len() as f64), &NO_LABELS),
            MetricSource::Worker(figure) => {
                for (index, worker) in self.workers.iter().enumerate() {
                    samples.figure(figure(worker), &[("worker", index)])?;
                }
                Ok(())
            }
            MetricSource::Command(of) => {
                for (command, times) in self.times.commands() {
                    samples.times(&of(times), &[("command", command)])?;
                }
                Ok(())
            }
            MetricSource::Errors => {
                for ((pool, command, outcome), count) in &self.errors {
                    let pool = ("pool", pool.as_str());
                    let labels = [pool, ("command", command), ("outcome", outcome.name())];
                    samples.count(count, &labels)?;
                }
                Ok(())
            }
            MetricSource::PoolReady => {
                for pool in &self.pools {
                    let figure = if pool.is_ready { 1.0 } else { 0.0 };
                    samples.figure(Some(figure), &[("pool", pool.name.as_str())])?;
                }
                Ok(())
            }
            MetricSource::PoolServersDown => {
                for pool in &self.pools {
                    for (role, count) in pool.down {
                        let labels = [("pool", pool.name.as_str()), ("role", role)];
                        samples.figure(Some(count as f64), &labels)?;
                    }
                }
                Ok(())
            }
            MetricSource::Server(figure) => {
                for (pool, server, totals) in self.servers_by_name() {
                    let labels = [("pool", pool), ("server", server)];
                    samples.figure(figure(totals), &labels)?;
                }
                Ok(())
            }
            MetricSource::ServerState => {
                for (pool, server, totals) in self.servers_by_name() {
                    if !totals.state.is_empty() {
                        let of = [("pool", pool), ("server", server)];
                        let facts = [("role", totals.role), ("state", totals.state)];
                        samples.facts(&[of[0], of[1], facts[0], facts[1]])?;
                    }
                }
                Ok(())
            }
            MetricSource::ServerCpu => {
                for (pool, server, totals) in self.servers_by_name() {
                    let Some(cpu) = totals.cpu else { continue };
                    for (mode, seconds) in [("user", cpu.user_s), ("system", cpu.system_s)] {
                        let labels = [("pool", pool), ("server", server), ("mode", mode)];
                        samples.figure(Some(seconds), &labels)?;
                    }
                }
                Ok(())
            }
        }
    }

    /// The expiry of each certificate.
    fn encode_expiries(&self, samples: &mut Samples<'_, '_>) -> fmt::Result {
        for expiry in &self.certificates {
            let since_1970 = expiry.at.duration_since(SystemTime::UNIX_EPOCH);
            let seconds = since_1970.unwrap_or_default().as_secs_f64();
            let file = expiry.path.display().to_string();
            let labels = [("option", expiry.option), ("file", file.as_str())];
            samples.figure(Some(seconds), &labels)?;
        }
        Ok(())
    }

    /// The servers with the names of their pools.
    fn servers_by_name(&self) -> impl Iterator<Item = (&str, &str, &ServerTotals)> {
        let servers = self.servers.iter();
        servers.filter_map(|((pool, server), totals)| {
            let pool = self.pools.get(*pool)?;
            Some((pool.name.as_str(), server.as_str(), totals))
        })
    }
}

const NO_LABELS: [(&str, &str); 0] = [];

/// The longest times of the buckets of times, microseconds.
const TIMES_US: [u64; 16] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000,
];

/// Writes the samples of one family.
struct Samples<'e, 'm> {
    metric: &'e mut MetricEncoder<'m>,
    kind: MetricKind,
}

impl Samples<'_, '_> {
    /// A counter of the engine.
    fn counted<S: EncodeLabelSet>(&mut self, counted: Option<&Counted>, labels: &S) -> fmt::Result {
        match (counted, self.kind) {
            (Some(Counted::Number(number)), MetricKind::Gauge) => {
                self.metric.encode_family(labels)?.encode_gauge(number)
            }
            (Some(Counted::Number(number)), _) => self.count(number, labels),
            (Some(Counted::Sizes(sizes)), _) => self.sizes(sizes, labels),
            (None, _) => Ok(()),
        }
    }

    /// Another figure, if it is known.
    fn figure<S: EncodeLabelSet>(&mut self, figure: Option<f64>, labels: &S) -> fmt::Result {
        match (figure, self.kind) {
            (None, _) => Ok(()),
            (Some(figure), MetricKind::Counter) => self.count(&figure, labels),
            (Some(figure), _) => self.metric.encode_family(labels)?.encode_gauge(&figure),
        }
    }

    fn count<S: EncodeLabelSet>(
        &mut self,
        value: &impl EncodeCounterValue,
        labels: &S,
    ) -> fmt::Result {
        let exemplar = None::<&Exemplar<[(&str, &str); 0], f64>>;
        let mut metric = self.metric.encode_family(labels)?;
        metric.encode_counter(value, exemplar)
    }

    fn sizes<S: EncodeLabelSet>(&mut self, sizes: &Sizes, labels: &S) -> fmt::Result {
        let buckets: Vec<(f64, u64)> = sizes
            .buckets()
            .map(|(largest, count)| (largest.map_or(f64::INFINITY, |size| size as f64), count))
            .collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let exemplars = None::<&HashMap<usize, Exemplar<[(&str, &str); 0], f64>>>;
        let mut metric = self.metric.encode_family(labels)?;
        metric.encode_histogram(sizes.sum() as f64, count, &buckets, exemplars)
    }

    /// Times in seconds.
    fn times<S: EncodeLabelSet>(&mut self, times: &LatencyHistogram, labels: &S) -> fmt::Result {
        let bounds = TIMES_US.iter().map(|us| *us as f64 / 1e6);
        let bounds = bounds.chain([f64::INFINITY]);
        let mut buckets: Vec<(f64, u64)> = bounds.map(|bound| (bound, 0)).collect();
        for (longest_us, count) in times.buckets() {
            let at = TIMES_US.partition_point(|us| *us < longest_us);
            buckets[at].1 += count;
        }
        let exemplars = None::<&HashMap<usize, Exemplar<[(&str, &str); 0], f64>>>;
        let mut metric = self.metric.encode_family(labels)?;
        metric.encode_histogram(
            times.sum_us() as f64 / 1e6,
            times.count(),
            &buckets,
            exemplars,
        )
    }

    fn facts<S: EncodeLabelSet>(&mut self, labels: &S) -> fmt::Result {
        self.metric.encode_info(labels)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use respool_engine::{Counters, ErrorOutcome, ServerReport, WorkerReport};

    use super::super::process::ProcessFigures;
    use super::super::server_tallies::ServerTallies;
    use super::super::snapshot::SERVERS_NAMED_MAX;
    use super::*;

    fn snapshot(servers: usize) -> MetricsSnapshot {
        let servers = (0..servers).map(|nth| ServerReport {
            address: format!("10.0.{}.{}:6379", nth / 256, nth % 256),
            role: "primary",
            state: "up",
            slots: Some(1),
            cpu: Some(Default::default()),
            latency_us: Some(250),
            ..ServerReport::default()
        });
        let report = WorkerReport {
            servers: servers.collect(),
            pools: vec![Vec::new()],
            ..WorkerReport::default()
        };
        let counters = Counters {
            requests: 7,
            failed_unknown: 2,
            ..Counters::default()
        };
        let pools = ["a \"pool\"".to_owned()];
        let process = ProcessFigures::default();
        let mut tallies = ServerTallies::default();
        let reports = [report];
        let mut page =
            MetricsSnapshot::new(process, &pools, vec![counters], &reports, &mut tallies);
        let error = (pools[0].clone(), "get", ErrorOutcome::NotSent);
        page.errors.insert(error, 3);
        page
    }

    /// Each family of the table is in both formats, with its type.
    #[test]
    fn both_formats_have_every_family() {
        for format in [Format::Text, Format::OpenMetrics] {
            let page = encode(snapshot(1), format).unwrap();
            for family in FAMILIES {
                let full = family.full_name();
                let type_name = match (format, family.kind) {
                    (Format::OpenMetrics, MetricKind::Counter) => full.trim_end_matches("_total"),
                    (Format::OpenMetrics, MetricKind::Info) => full.trim_end_matches("_info"),
                    _ => &full,
                };
                let line = format!("\n# TYPE {type_name} ");
                assert!(format!("\n{page}").contains(&line), "{format:?}: {line}");
            }
            assert!(page.contains("\nrespool_requests_total 7\n"), "{page}");
            let labelled = "\nrespool_requests_failed_total{outcome=\"unknown\"} 2\n";
            assert!(page.contains(labelled), "{page}");
            let server = "{pool=\"a \\\"pool\\\"\",server=\"10.0.0.0:6379\"} 1";
            assert!(
                page.contains(&format!("\nrespool_server_up{server}")),
                "{page}"
            );
            let errors = "{pool=\"a \\\"pool\\\"\",command=\"get\",outcome=\"not_sent\"} 3";
            assert!(
                page.contains(&format!("\nrespool_request_errors_total{errors}\n")),
                "{page}"
            );
            assert_eq!(page.ends_with("\n# EOF\n"), format == Format::OpenMetrics);
        }
    }

    #[test]
    fn accept_chooses_the_format() {
        let prometheus = "application/openmetrics-text;version=1.0.0,\
            application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,\
            */*;q=0.1";
        for (accept, format) in [
            ("", Format::Text),
            ("*/*", Format::Text),
            ("text/plain", Format::Text),
            ("text/html, text/*;q=0.9", Format::Text),
            ("application/openmetrics-text", Format::OpenMetrics),
            (prometheus, Format::OpenMetrics),
            (
                "application/openmetrics-text;q=0.3, text/plain",
                Format::Text,
            ),
            ("application/openmetrics-text;q=x", Format::Text),
            ("application/openmetrics-text;q=0", Format::Text),
        ] {
            assert_eq!(Format::preferred(accept), format, "{accept}");
        }
    }

    /// Prints the time and the size of a page about the most servers. Speed is not asserted.
    #[test]
    fn page_about_the_most_servers_has_a_bounded_size() {
        let full = snapshot(SERVERS_NAMED_MAX + 100);
        let began = Instant::now();
        let page = encode(full, Format::Text).unwrap();
        let (bytes, ms) = (page.len(), began.elapsed().as_secs_f64() * 1e3);
        println!("{bytes} bytes about {SERVERS_NAMED_MAX} servers in {ms:.2} ms");
        assert!(bytes < 2 << 20, "{bytes}");
        let series = page
            .lines()
            .filter(|line| line.starts_with("respool_server_up{"));
        assert_eq!(series.count(), SERVERS_NAMED_MAX + 1);
    }
}

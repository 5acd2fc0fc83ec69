//! respool's own counters, read from its section of INFO.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The totals that a report keeps, by the names that reports have. An older build may have fewer.
const KEPT: [&str; 12] = [
    "link_requests",
    "batches",
    "batch_requests",
    "flushed_idle",
    "flushed_full",
    "flushed_late",
    "fused_batches",
    "fused_gets",
    "fused_sets",
    "collapsed",
    "commands_saved",
    "asked_again",
];

/// Counters that INFO names otherwise than reports do: the name in INFO without `respool_`, then
/// the name in reports. An older build has the reports' names.
const RENAMED: [(&str, &str); 2] = [
    ("reads_collapsed", "collapsed"),
    ("joined_requests_resent", "asked_again"),
];

/// Totals by name. A counter with parts (`batch_requests:1=5,2=0`) has one entry for each:
/// `batch_requests.1`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CounterTotals(BTreeMap<String, u64>);

impl CounterTotals {
    /// Reads a section of INFO.
    pub fn read(info: &str) -> CounterTotals {
        let mut found = BTreeMap::new();
        for line in info.lines() {
            let Some((name, value)) = line
                .strip_prefix("respool_")
                .and_then(|line| line.split_once(':'))
                .map(|(name, value)| (kept_name(name), value))
                .filter(|(name, _)| KEPT.contains(name))
            else {
                continue;
            };
            if let Ok(number) = value.parse() {
                found.insert(name.to_owned(), number);
                continue;
            }
            let parts = value.split(',').filter_map(|part| part.split_once('='));
            found.extend(
                parts.filter_map(|(part, n)| Some((format!("{name}.{part}"), n.parse().ok()?))),
            );
        }
        CounterTotals(found)
    }

    /// The difference from an earlier reading.
    pub fn since(&self, earlier: &CounterTotals) -> CounterTotals {
        let grown = self.0.iter().filter_map(|(name, now)| {
            let before = earlier.0.get(name)?;
            Some((name.clone(), now.checked_sub(*before)?))
        });
        CounterTotals(grown.collect())
    }

    /// One total; `None`: this build does not have it.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    /// Mean number of requests in one write to a server.
    pub fn mean_batch(&self) -> Option<f64> {
        part(self.get("link_requests"), self.get("batches"))
    }

    /// The number of client requests that so many percent of the batches do not exceed: a power of
    /// two. `None`: it is above the largest bucket.
    pub fn batch_at(&self, percent: f64) -> Option<f64> {
        let sizes = self.0.iter().filter_map(|(name, count)| {
            let most = name.strip_prefix("batch_requests.")?;
            (most != "sum").then(|| (most.parse().unwrap_or(u64::MAX), *count))
        });
        let mut sizes: Vec<(u64, u64)> = sizes.collect();
        sizes.sort_unstable();
        let all: u64 = sizes.iter().map(|(_, count)| count).sum();
        let mut left = (all as f64 * percent / 100.0).ceil().max(1.0) as u64;
        for (most, count) in sizes {
            if left <= count {
                return (most != u64::MAX).then_some(most as f64);
            }
            left -= count;
        }
        None
    }

    /// The share of requests that cost the server no command, of those that would have without
    /// respool.
    pub fn part_saved(&self) -> Option<f64> {
        let net = self
            .get("commands_saved")?
            .saturating_sub(self.get("asked_again")?);
        part(Some(net), self.get("link_requests"))
    }

    /// The share of batches that left for a reason: `idle`, `full` or `late`.
    pub fn left_because(&self, reason: &str) -> Option<f64> {
        part(self.get(&format!("flushed_{reason}")), self.get("batches"))
    }

    /// The share of requests that were `fused`, `collapsed`, or `asked_again`.
    pub fn part_that_was(&self, what: &str) -> Option<f64> {
        let count = match what {
            "fused" => self.get("fused_gets")? + self.get("fused_sets")?,
            name => self.get(name)?,
        };
        part(Some(count), self.get("link_requests"))
    }
}

/// The name that reports have for a counter of INFO.
fn kept_name(name: &str) -> &str {
    let renamed = RENAMED.iter().find(|(shown, _)| *shown == name);
    renamed.map_or(name, |(_, kept)| kept)
}

fn part(of: Option<u64>, all: Option<u64>) -> Option<f64> {
    let (of, all) = (of?, all?);
    (all > 0).then(|| of as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Totals are told from gauges and descriptions, and parts are kept apart.
    #[test]
    fn counters_tell_totals_from_gauges() {
        let before = CounterTotals::read(
            "# Respool\r\nrespool_version:0.1.0\r\nrespool_sessions:3\r\nrespool_link_requests:10\r\nrespool_batches:5\r\n\
             respool_flushed_late:1\r\nrespool_batch_requests:1=4,2=1,sum=6\r\nrespool_link_0:server=s,db=0,in_flight=0\r\n",
        );
        assert_eq!(before.get("sessions"), None);
        assert_eq!(before.get("batch_requests.2"), Some(1));
        assert_eq!(before.0.len(), 6);
        let after = CounterTotals::read(
            "respool_link_requests:110\r\nrespool_batches:15\r\nrespool_flushed_late:5\r\nrespool_reads_collapsed:7\r\n\
             respool_batch_requests:1=4,2=9,sum=22\r\n",
        );
        let grown = after.since(&before);
        assert_eq!(grown.mean_batch(), Some(10.0));
        assert_eq!(grown.left_because("late"), Some(0.4));
        assert_eq!(grown.left_because("full"), None);
        assert_eq!(grown.get("batch_requests.2"), Some(8));
        assert_eq!(
            grown.part_that_was("collapsed"),
            None,
            "there was no such counter before"
        );
        assert_eq!(after.part_that_was("collapsed"), Some(7.0 / 110.0));
        assert_eq!(after.since(&after).mean_batch(), None);
    }

    /// The distribution of batches is read from the largest of each bucket.
    #[test]
    fn batch_distribution_is_read_from_its_buckets() {
        let counted = CounterTotals::read(
            "respool_link_requests:400\r\nrespool_commands_saved:210\r\nrespool_joined_requests_resent:10\r\n\
             respool_batch_requests:1=50,2=0,4=30,8=19,16=0,more=1,sum=400\r\n",
        );
        let at = [1.0, 50.0, 51.0, 80.0, 99.0].map(|percent| counted.batch_at(percent));
        assert_eq!(at, [1.0, 1.0, 4.0, 4.0, 8.0].map(Some));
        assert_eq!(counted.batch_at(100.0), None, "more than are told apart");
        assert_eq!(counted.part_saved(), Some(0.5));
        assert_eq!(CounterTotals::default().batch_at(50.0), None);
        assert_eq!(CounterTotals::default().part_saved(), None);
    }
}

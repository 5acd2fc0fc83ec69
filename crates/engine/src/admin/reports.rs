//! The replies to RESPOOL: times of requests by command, the slow log, and hot keys. Each has the
//! form of the server's reply to LATENCY HISTOGRAM, SLOWLOG GET or Valkey's HOTKEYS GET, with more
//! fields at the end.

use std::cmp::Reverse;
use std::sync::Arc;

use respool_protocol::encode::{self, Version};

use crate::base::coarse_times::{CoarseHistogram, CoarseReport};
use crate::base::limits::HOT_KEYS_MAX;
use crate::data_plane::hot_keys::{HotKeysReport, merged};
use crate::data_plane::slow_log::SlowRequest;

/// Appends the reply to LATENCY HISTOGRAM. `names`: the commands that were asked for; empty for
/// all. The name of a container stands for its subcommands, too.
pub(crate) fn append_histograms(
    out: &mut Vec<u8>,
    version: Version,
    report: &CoarseReport,
    names: &[Vec<u8>],
) {
    let is_asked = |name: &str| {
        let container = name.split('|').next().unwrap_or(name);
        let is = |wanted: &Vec<u8>| {
            wanted.eq_ignore_ascii_case(name.as_bytes())
                || wanted.eq_ignore_ascii_case(container.as_bytes())
        };
        names.is_empty() || names.iter().any(is)
    };
    let shown: Vec<_> = report
        .commands()
        .filter(|(name, _)| is_asked(name))
        .collect();
    encode::map(out, version, shown.len());
    for (name, times) in shown {
        encode::bulk(out, name.as_bytes());
        encode::map(out, version, 4);
        encode::bulk(out, b"calls");
        encode::integer(out, times.total.count() as i64);
        for (field, histogram) in [
            (&b"histogram_usec"[..], &times.total),
            (b"waiting_usec", &times.waiting),
            (b"server_usec", &times.server),
        ] {
            encode::bulk(out, field);
            append_buckets(out, version, histogram);
        }
    }
}

/// Appends the longest time of each bucket with requests, and the number of requests up to it.
fn append_buckets(out: &mut Vec<u8>, version: Version, histogram: &CoarseHistogram) {
    let mut up_to = 0;
    let buckets: Vec<(u64, u64)> = histogram
        .buckets()
        .map(|(us, count)| {
            up_to += count;
            (us, up_to)
        })
        .collect();
    encode::map(out, version, buckets.len());
    for (us, count) in buckets {
        encode::integer(out, us as i64);
        encode::integer(out, count as i64);
    }
}

/// Appends the reply to SLOWLOG GET: the newest `count` of these requests.
pub(crate) fn append_slow_log(
    out: &mut Vec<u8>,
    mut requests: Vec<Arc<SlowRequest>>,
    count: usize,
) {
    requests.sort_by_key(|request| Reverse((request.at, request.id)));
    requests.truncate(count);
    encode::array(out, requests.len());
    for request in &requests {
        encode::array(out, 10);
        encode::integer(out, request.id as i64);
        encode::integer(out, request.unix_s as i64);
        encode::integer(out, (request.waiting_us + request.server_us) as i64);
        encode::array(out, request.args.len());
        for arg in &request.args {
            encode::bulk(out, arg);
        }
        encode::bulk(out, request.client.as_bytes());
        encode::bulk(out, &request.client_name);
        encode::bulk(out, request.user.as_bytes());
        encode::bulk(out, request.server.as_bytes());
        encode::integer(out, request.waiting_us as i64);
        encode::integer(out, request.server_us as i64);
    }
}

/// Appends the reply to HOTKEYS GET: the `count` keys that are asked for most.
pub(crate) fn append_hot_keys(
    out: &mut Vec<u8>,
    version: Version,
    reports: &[HotKeysReport],
    count: usize,
) {
    let keys = merged(reports);
    let shown = &keys[..keys.len().min(count).min(HOT_KEYS_MAX)];
    encode::array(out, shown.len());
    for (key, figures) in shown {
        encode::map(out, version, 5);
        encode::bulk(out, b"key");
        encode::bulk(out, &key.key);
        for (field, value) in [
            (&b"db"[..], u64::from(key.db)),
            (b"qps", figures.per_second),
            (b"requests", figures.count),
            (b"error", figures.error),
        ] {
            encode::bulk(out, field);
            encode::integer(out, value as i64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::latency::CommandTimes;
    use crate::base::time::Time;

    fn report() -> CoarseReport {
        let mut report = CoarseReport::default();
        for (name, ticks) in [("get", 1), ("get", 100), ("config|get", 3)] {
            let mut times = CommandTimes::default();
            times.note_at_once(ticks, 2);
            report.add(&CoarseReport::from_iter([(name, &times)]));
        }
        report
    }

    fn histograms(version: Version, names: &[&str]) -> String {
        let names: Vec<Vec<u8>> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
        let mut out = Vec::new();
        append_histograms(&mut out, version, &report(), &names);
        String::from_utf8_lossy(&out).replace("\r\n", " ")
    }

    /// Counts add up over the buckets, and empty buckets are left out.
    #[test]
    fn histograms_have_the_form_of_the_server() {
        assert_eq!(
            histograms(Version::Resp3, &["get"]),
            "%1 $3 get %4 $5 calls :4 $14 histogram_usec %2 :8 :2 :1024 :4 $12 waiting_usec %1 \
             :8 :4 $11 server_usec %2 :8 :2 :1024 :4 "
        );
        assert!(histograms(Version::Resp2, &["get"]).starts_with("*2 $3 get *8 $5 calls :4 "));
    }

    /// A container stands for its subcommands. Unknown names are left out.
    #[test]
    fn names_choose_commands() {
        for (names, count) in [
            (&[][..], 2),
            (&["CONFIG"], 1),
            (&["config|get"], 1),
            (&["GET", "nothing"], 1),
            (&["nothing"], 0),
        ] {
            let shown = histograms(Version::Resp3, names);
            assert!(
                shown.starts_with(&format!("%{count} ")),
                "{names:?}: {shown}"
            );
        }
    }

    /// The newest requests of all workers come first.
    #[test]
    fn slow_log_shows_the_newest_first() {
        let request = |id, ms| {
            Arc::new(SlowRequest {
                id,
                at: Time(0).plus_ms(ms),
                unix_s: 7,
                waiting_us: 3,
                server_us: 4,
                args: vec![b"GET".to_vec()],
                pool: 0,
                client: String::from("c"),
                client_name: b"n".to_vec(),
                user: String::from("u"),
                server: String::from("s"),
            })
        };
        let mut out = Vec::new();
        append_slow_log(
            &mut out,
            vec![request(1, 1), request(2, 3), request(3, 2)],
            2,
        );
        let entry = |id| format!("*10 :{id} :7 :7 *1 $3 GET $1 c $1 n $1 u $1 s :3 :4 ");
        assert_eq!(
            String::from_utf8_lossy(&out).replace("\r\n", " "),
            format!("*2 {}{}", entry(2), entry(3))
        );
    }
}

//! Merges the statistics of several servers: replies that are maps of numbers, or nested maps.

use std::collections::{BTreeSet, HashMap};

use super::merge::{List, Part, bulk, integer};
use crate::{encode, number};

/// Names and values as encoded in a reply.
type Pairs<'a> = Vec<(&'a [u8], &'a [u8])>;

/// A name with its values, each with the index of its server.
type NamedValues<'a> = (&'a [u8], Vec<(usize, &'a [u8])>);

/// MEMORY STATS: numbers are added, and values that derive from sums are computed from them. Other
/// values are the first server's. `Err` has the index of a part that is not such a reply.
pub(super) fn memory_stats(parts: &[Part<'_>], out: &mut Vec<u8>) -> Result<(), usize> {
    let kind = parts[0].reply[0];
    let replies = parts.iter().map(|part| part.reply).enumerate().collect();
    merge_map(&group_by_name(&replies, kind)?, kind, out)
}

fn merge_map(all: &[NamedValues<'_>], kind: u8, out: &mut Vec<u8>) -> Result<(), usize> {
    let mut sums = HashMap::new();
    for (name, values) in all {
        let numbers: Option<Vec<i64>> = values.iter().map(|(_, value)| integer(value)).collect();
        if let (Some(numbers), Some(name)) = (numbers, bulk(name, b'$')) {
            sums.insert(
                name,
                numbers
                    .iter()
                    .fold(0i64, |sum, one| sum.saturating_add(*one)),
            );
        }
    }
    let sum = |name: &str| sums.get(name.as_bytes()).copied();
    open(out, kind, all.len());
    for (name, values) in all {
        out.extend_from_slice(name);
        let name = bulk(name, b'$').unwrap_or_default();
        let first = values.first().map_or(&b"_\r\n"[..], |(_, value)| value);
        match first[0] {
            b':' => match (derived_value(name, sum), sums.get(name)) {
                (Some(derived), _) => encode::integer(out, derived as i64),
                (None, Some(sum)) => encode::integer(out, *sum),
                (None, None) => out.extend_from_slice(first),
            },
            b'*' | b'%' => merge_map(&group_by_name(values, kind)?, kind, out)?,
            _ => match derived_value(name, sum) {
                Some(derived) if first[0] == b',' => {
                    out.extend_from_slice(format!(",{derived}\r\n").as_bytes());
                }
                Some(derived) => encode::bulk(out, derived.to_string().as_bytes()),
                None => out.extend_from_slice(first),
            },
        }
    }
    Ok(())
}

/// A value that derives from sums, by the formulas of the servers (`getMemoryOverheadData`).
fn derived_value(name: &[u8], sum: impl Fn(&str) -> Option<i64>) -> Option<f64> {
    let sum = |name: &str| sum(name).map(|sum| sum as f64);
    let net = || Some(sum("total.allocated")? - sum("startup.allocated")?);
    let (over, under) = match name {
        b"keys.bytes-per-key" => (net()?, sum("keys.count")?),
        b"dataset.percentage" => (sum("dataset.bytes")? * 100.0, net()?),
        b"peak.percentage" => (sum("total.allocated")? * 100.0, sum("peak.allocated")?),
        b"allocator-fragmentation.ratio" => {
            let allocated = sum("allocator.allocated")?;
            (allocated + sum("allocator-fragmentation.bytes")?, allocated)
        }
        b"allocator-rss.ratio" => (sum("allocator.resident")?, sum("allocator.active")?),
        b"rss-overhead.ratio" => {
            let resident = sum("allocator.resident")?;
            (resident + sum("rss-overhead.bytes")?, resident)
        }
        b"fragmentation" => {
            let allocated = sum("total.allocated")?;
            (allocated + sum("fragmentation.bytes")?, allocated)
        }
        _ => return None,
    };
    Some(if under > 0.0 { over / under } else { 0.0 })
}

/// LATENCY HISTOGRAM: for each command the calls of all servers, and for each bound the calls up to
/// it.
pub(super) fn latency_histogram(parts: &[Part<'_>], out: &mut Vec<u8>) -> Result<(), usize> {
    let kind = parts[0].reply[0];
    let replies = parts.iter().map(|part| part.reply).enumerate().collect();
    let commands = group_by_name(&replies, kind)?;
    open(out, kind, commands.len());
    for (name, values) in commands {
        let mut calls = 0i64;
        let mut bounds = BTreeSet::new();
        let mut of_each = Vec::new();
        for (at, value) in values {
            let inner = pairs(value, kind).ok_or(at)?;
            let find = |wanted: &[u8]| {
                let found = inner
                    .iter()
                    .find(|(name, _)| bulk(name, b'$') == Some(wanted));
                found.map(|(_, value)| *value)
            };
            let its = find(b"calls").and_then(integer).ok_or(at)?;
            calls = calls.saturating_add(its);
            let buckets = find(b"histogram_usec").and_then(|map| pairs(map, kind));
            let buckets = buckets.ok_or(at)?.into_iter();
            let buckets = buckets.map(|(bound, count)| Some((integer(bound)?, integer(count)?)));
            let buckets: Vec<_> = buckets.collect::<Option<_>>().ok_or(at)?;
            bounds.extend(buckets.iter().map(|(bound, _)| *bound));
            of_each.push(buckets);
        }
        out.extend_from_slice(name);
        open(out, kind, 2);
        encode::bulk(out, b"calls");
        encode::integer(out, calls);
        encode::bulk(out, b"histogram_usec");
        open(out, kind, bounds.len());
        for bound in bounds {
            // A server lists only bounds at which its count grows. Up to the next bound the count
            // stays.
            let count_up_to = |buckets: &Vec<(i64, i64)>| {
                let below = buckets.iter().filter(|(its, _)| *its <= bound);
                below.map(|(_, count)| *count).max().unwrap_or(0)
            };
            let count = of_each.iter().map(count_up_to).fold(0, i64::saturating_add);
            encode::integer(out, bound);
            encode::integer(out, count);
        }
    }
    Ok(())
}

/// Groups the values of several maps by name, in the order of first occurrence.
fn group_by_name<'a>(
    maps: &Vec<(usize, &'a [u8])>,
    kind: u8,
) -> Result<Vec<NamedValues<'a>>, usize> {
    let mut all: Vec<NamedValues<'a>> = Vec::new();
    let mut places = HashMap::new();
    for (at, map) in maps {
        for (name, value) in pairs(map, kind).ok_or(*at)? {
            let place = *places.entry(name).or_insert_with(|| {
                all.push((name, Vec::new()));
                all.len() - 1
            });
            all[place].1.push((*at, value));
        }
    }
    Ok(all)
}

/// The pairs of a map. In RESP2 a map is an array of names and values.
fn pairs(reply: &[u8], kind: u8) -> Option<Pairs<'_>> {
    let list = List::of(reply).filter(|list| list.kind == kind && list.values.is_multiple_of(2))?;
    let mut elements = list.elements();
    let mut pairs = Vec::new();
    while let Some(name) = elements.next() {
        pairs.push((name, elements.next()?));
    }
    Some(pairs)
}

fn open(out: &mut Vec<u8>, kind: u8, pairs: usize) {
    out.push(kind);
    let count = if kind == b'%' { pairs } else { pairs * 2 };
    number::append(out, count as i64);
    out.extend_from_slice(b"\r\n");
}

//! Several servers' figures as one: replies that are maps of numbers, and of such maps.

use std::collections::{BTreeSet, HashMap};

use super::merge::{List, Part, bulk, integer};
use crate::{encode, number};

/// Names and values, as they stand in a reply.
type Pairs<'a> = Vec<(&'a [u8], &'a [u8])>;

/// What stands under a name: of each server that has it, which one that is, and the value.
type Named<'a> = (&'a [u8], Vec<(usize, &'a [u8])>);

/// MEMORY STATS: sums, and what follows from sums is made of them. Of anything else the first server's; `Err`: the part
/// that is no such reply.
pub(super) fn memory(parts: &[Part<'_>], out: &mut Vec<u8>) -> Result<(), usize> {
    let kind = parts[0].reply[0];
    let replies = parts.iter().map(|part| part.reply).enumerate().collect();
    sums(&named(&replies, kind)?, kind, out)
}

fn sums(all: &[Named<'_>], kind: u8, out: &mut Vec<u8>) -> Result<(), usize> {
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
            b':' => match (share(name, sum), sums.get(name)) {
                (Some(share), _) => encode::integer(out, share as i64),
                (None, Some(sum)) => encode::integer(out, *sum),
                (None, None) => out.extend_from_slice(first),
            },
            b'*' | b'%' => self::sums(&named(values, kind)?, kind, out)?,
            _ => match share(name, sum) {
                Some(share) if first[0] == b',' => {
                    out.extend_from_slice(format!(",{share}\r\n").as_bytes());
                }
                Some(share) => encode::bulk(out, share.to_string().as_bytes()),
                None => out.extend_from_slice(first),
            },
        }
    }
    Ok(())
}

/// What is a share of something else, by the sums: the formulas are those of the servers (`getMemoryOverheadData`).
fn share(name: &[u8], sum: impl Fn(&str) -> Option<i64>) -> Option<f64> {
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

/// LATENCY HISTOGRAM: of each command the calls of all, and how many of them took no longer than each bound.
pub(super) fn histogram(parts: &[Part<'_>], out: &mut Vec<u8>) -> Result<(), usize> {
    let kind = parts[0].reply[0];
    let replies = parts.iter().map(|part| part.reply).enumerate().collect();
    let commands = named(&replies, kind)?;
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
            // A server names only bounds where its count grows: below the next one it is that of the last.
            let until = |buckets: &Vec<(i64, i64)>| {
                let below = buckets.iter().filter(|(its, _)| *its <= bound);
                below.map(|(_, count)| *count).max().unwrap_or(0)
            };
            let count = of_each.iter().map(until).fold(0, i64::saturating_add);
            encode::integer(out, bound);
            encode::integer(out, count);
        }
    }
    Ok(())
}

/// Every name once, in the order in which they occur first.
fn named<'a>(maps: &Vec<(usize, &'a [u8])>, kind: u8) -> Result<Vec<Named<'a>>, usize> {
    let mut all: Vec<Named<'a>> = Vec::new();
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

/// The pairs of a map, which in RESP2 is an array of twice as many.
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

//! Merges the texts of several servers: INFO, and reports.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, reason = "it reads bytes of a server")
)]

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::encode;

/// The text of one server.
pub(super) struct Text<'a> {
    pub(super) server: &'a str,
    pub(super) text: &'a [u8],
}

/// The INFO sections that a client of several servers asks for. One of them is our own: `servers`,
/// with a line for each server.
///
/// This line needs values of other sections. If the client did not ask for them, respool asks the
/// servers for these sections and does not show them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sections {
    /// Whether the section `servers` is shown.
    servers: bool,
    /// The sections that the servers are asked for.
    rest: ServerSections,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ServerSections {
    /// The sections that the client asked for; all are shown.
    #[default]
    Shown,
    /// The default sections; none is shown.
    Hidden,
    /// The sections that the client asked for, and those of [`NEEDED`]. A bit for each of
    /// [`NEEDED`] that is not shown.
    More(u8),
}

/// Sections with values for the line of a server.
const NEEDED: [&str; 5] = ["replication", "memory", "clients", "stats", "keyspace"];
const _: () = assert!(NEEDED.len() <= 8, "one bit each");

impl Sections {
    /// Reads the arguments of INFO.
    pub fn asked<'a>(arguments: impl Iterator<Item = &'a [u8]>) -> Sections {
        let (mut ours, mut everything, mut group, mut others) = (false, false, false, 0);
        let mut hidden = (1 << NEEDED.len()) - 1;
        for argument in arguments {
            let is = |word: &str| argument.eq_ignore_ascii_case(word.as_bytes());
            ours |= is("servers");
            everything |= is("everything");
            group |= is("everything") || is("all") || is("default");
            others += usize::from(!is("servers") && !is("respool"));
            if let Some(at) = NEEDED.iter().position(|word| is(word)) {
                hidden &= !(1 << at);
            }
        }
        Sections {
            servers: ours || everything,
            rest: match others {
                _ if !ours || group => ServerSections::Shown,
                0 => ServerSections::Hidden,
                _ => ServerSections::More(hidden),
            },
        }
    }

    /// Appends the request for the servers.
    pub fn request<'a>(&self, arguments: impl Iterator<Item = &'a [u8]>, out: &mut Vec<u8>) {
        let mut words: Vec<&[u8]> = vec![b"INFO"];
        match self.rest {
            ServerSections::Shown => words.extend(arguments.filter(|word| !is_servers(word))),
            ServerSections::Hidden => {}
            ServerSections::More(hidden) => {
                words.extend(arguments.filter(|word| !is_servers(word)));
                let more = NEEDED.iter().enumerate();
                let more = more.filter(|(at, _)| hidden & 1 << at != 0);
                words.extend(more.map(|(_, word)| word.as_bytes()));
            }
        }
        encode::request(out, &words);
    }

    fn shows(&self, heading: &[u8]) -> bool {
        match self.rest {
            ServerSections::Shown => true,
            ServerSections::Hidden => false,
            ServerSections::More(hidden) => {
                let name = heading.strip_prefix(b"# ").unwrap_or(heading);
                let is_name = |word: &&str| name.eq_ignore_ascii_case(word.as_bytes());
                let at = NEEDED.iter().position(is_name);
                at.is_none_or(|at| hidden & 1 << at == 0)
            }
        }
    }
}

fn is_servers(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"servers")
}

/// A field of a section with the values of all servers.
struct InfoField<'a> {
    name: &'a [u8],
    /// The values of the servers that have the field, in the order of the servers.
    values: Vec<&'a [u8]>,
}

/// A section: its heading, and its fields in the order of their first occurrence.
struct InfoSection<'a> {
    heading: &'a [u8],
    fields: Vec<InfoField<'a>>,
}

/// The rule that merges the values of a field. If a value is not a number, the first server's value
/// counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldRule {
    /// The first server's value, for example a version or a run id.
    First,
    /// The sum.
    Sum,
    /// The largest value.
    Most,
    /// The smallest value.
    Least,
    /// The sum, or 0 if one value is 0, which means unbounded.
    Bound,
    /// The first value that is not `ok`.
    Status,
    /// Named numbers, `calls=1,usec=5`; each name is merged by itself.
    Each(Fold),
    /// The merged value of the field without `_human`, with a unit.
    Human,
    /// A ratio of merged fields: the first over the second, from which the third is subtracted.
    Ratio(&'static str, &'static str, &'static str),
    /// As `Ratio`, in percent.
    Percent(&'static str, &'static str, &'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fold {
    Sum,
    Most,
}

impl FieldRule {
    fn of(heading: &[u8], name: &[u8]) -> FieldRule {
        let known = RULES.iter().find(|(known, _)| known.as_bytes() == name);
        if let Some((_, way)) = known {
            return *way;
        }
        match heading.strip_prefix(b"# ").unwrap_or(heading) {
            _ if name.ends_with(b"_human") => FieldRule::Human,
            b"Clients" | b"Memory" | b"Stats" | b"CPU" => FieldRule::Sum,
            b"Commandstats" | b"Errorstats" | b"Keyspace" | b"Keysizes" | b"Threads" => {
                FieldRule::Each(Fold::Sum)
            }
            b"Latencystats" => FieldRule::Each(Fold::Most),
            _ => FieldRule::First,
        }
    }
}

/// Fields with another rule than the other fields of their section.
const RULES: [(&str, FieldRule); 56] = [
    ("active_defrag_running", FieldRule::Most),
    (
        "allocator_frag_ratio",
        FieldRule::Ratio("allocator_active", "allocator_allocated", ""),
    ),
    (
        "allocator_rss_ratio",
        FieldRule::Ratio("allocator_resident", "allocator_active", ""),
    ),
    ("aof_base_size", FieldRule::Sum),
    ("aof_buffer_length", FieldRule::Sum),
    ("aof_current_size", FieldRule::Sum),
    ("aof_delayed_fsync", FieldRule::Sum),
    ("aof_last_bgrewrite_status", FieldRule::Status),
    ("aof_last_write_status", FieldRule::Status),
    ("aof_pending_bio_fsync", FieldRule::Sum),
    ("aof_rewrite_in_progress", FieldRule::Most),
    ("aof_rewrite_scheduled", FieldRule::Most),
    ("aof_rewrites", FieldRule::Sum),
    ("async_loading", FieldRule::Most),
    ("client_biggest_input_buf", FieldRule::Most),
    ("client_longest_output_list", FieldRule::Most),
    ("client_recent_max_input_buffer", FieldRule::Most),
    ("client_recent_max_output_buffer", FieldRule::Most),
    ("connected_slaves", FieldRule::Sum),
    ("current_active_defrag_time", FieldRule::Most),
    ("current_eviction_exceeded_time", FieldRule::Most),
    ("current_save_keys_processed", FieldRule::Sum),
    ("current_save_keys_total", FieldRule::Sum),
    ("engines_total_memory_overhead", FieldRule::Sum),
    ("engines_total_used_memory", FieldRule::Sum),
    (
        "expired_keys_with_volatile_items_stale_perc",
        FieldRule::Most,
    ),
    ("expired_stale_perc", FieldRule::Most),
    ("instantaneous_eventloop_duration_usec", FieldRule::Most),
    ("latest_fork_usec", FieldRule::Most),
    ("loading", FieldRule::Most),
    ("maxmemory", FieldRule::Bound),
    (
        "mem_fragmentation_ratio",
        FieldRule::Ratio("used_memory_rss", "used_memory", ""),
    ),
    ("module_fork_in_progress", FieldRule::Most),
    // Functions and libraries are loaded on all servers.
    ("number_of_functions", FieldRule::Most),
    ("number_of_libraries", FieldRule::Most),
    ("paused_timeout_milliseconds", FieldRule::Most),
    ("rdb_bgsave_in_progress", FieldRule::Most),
    ("rdb_changes_since_last_save", FieldRule::Sum),
    ("rdb_last_bgsave_status", FieldRule::Status),
    ("rdb_last_load_keys_expired", FieldRule::Sum),
    ("rdb_last_load_keys_loaded", FieldRule::Sum),
    ("rdb_last_save_time", FieldRule::Least),
    ("rdb_saves", FieldRule::Sum),
    (
        "rss_overhead_ratio",
        FieldRule::Ratio("used_memory_rss", "allocator_resident", ""),
    ),
    ("slot_migration_fork_in_progress", FieldRule::Most),
    // Servers may share a machine.
    ("total_system_memory", FieldRule::First),
    ("total_system_memory_human", FieldRule::First),
    (
        "used_memory_dataset_perc",
        FieldRule::Percent("used_memory_dataset", "used_memory", "used_memory_startup"),
    ),
    (
        "used_memory_peak_perc",
        FieldRule::Percent("used_memory", "used_memory_peak", ""),
    ),
    ("used_memory_peak_time", FieldRule::Most),
    // Fields of a Cluster node.
    ("cluster_connections", FieldRule::Sum),
    ("cluster_enabled", FieldRule::First),
    // Fields that are not numbers in sections of numbers, or that occur several times.
    ("module", FieldRule::First),
    ("mem_allocator", FieldRule::First),
    ("maxmemory_policy", FieldRule::First),
    ("paused_reason", FieldRule::First),
];

/// Merges INFO of several servers into INFO of one: numbers are mostly added, other values are the
/// first server's.
///
/// ```text
///   # Servers
///   server0:address=127.0.0.1:6380,role=master,link=up,used_memory=1048576,...,keys=2
///   server1:address=127.0.0.1:6381,role=master,link=up,used_memory=2097152,...,keys=5
///
///   # Memory
///   used_memory:3145728
///   used_memory_human:3.00M
///   maxmemory_policy:noeviction
/// ```
///
/// A field without a rule of its own follows the rule of its section. So fields of newer servers
/// are merged, too.
pub(super) fn merge(texts: &[Text<'_>], asked: Sections) -> Vec<u8> {
    let sections = read(texts);
    let mut out = Vec::new();
    if asked.servers {
        out.extend_from_slice(b"# Servers\r\n");
        for (at, text) in texts.iter().enumerate() {
            out.extend_from_slice(line_of(at, text).as_bytes());
        }
    }
    let shown = |section: &&InfoSection<'_>| asked.shows(section.heading);
    for section in sections.iter().filter(shown) {
        if !out.is_empty() {
            out.extend_from_slice(b"\r\n");
        }
        if !section.heading.is_empty() {
            out.extend_from_slice(section.heading);
            out.extend_from_slice(b"\r\n");
        }
        for field in &section.fields {
            out.extend_from_slice(field.name);
            if let Some(value) = section.value(field) {
                out.push(b':');
                out.extend_from_slice(&value);
            }
            out.extend_from_slice(b"\r\n");
        }
    }
    out
}

fn read<'a>(texts: &[Text<'a>]) -> Vec<InfoSection<'a>> {
    let mut sections: Vec<InfoSection<'_>> = Vec::new();
    // A name may occur several times, like `module`. The nth field of one server is merged with the
    // nth of the others.
    let mut places = HashMap::new();
    let mut known = HashMap::new();
    for Text { text, .. } in texts {
        let mut section = None;
        let mut heading: &[u8] = b"";
        let mut seen = HashMap::new();
        for line in lines(text) {
            if line.starts_with(b"#") {
                (heading, section) = (line, None);
            }
            let section = *section.get_or_insert_with(|| {
                *known.entry(heading).or_insert_with(|| {
                    sections.push(InfoSection {
                        heading,
                        fields: Vec::new(),
                    });
                    sections.len() - 1
                })
            });
            if line.starts_with(b"#") {
                continue;
            }
            let (name, value) = split(line, b':');
            let nth: &mut u32 = seen.entry((section, name)).or_default();
            let Some(InfoSection { fields, .. }) = sections.get_mut(section) else {
                continue;
            };
            let place = match places.entry((section, name, *nth)) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(new) => {
                    fields.push(InfoField {
                        name,
                        values: Vec::new(),
                    });
                    *new.insert(fields.len() - 1)
                }
            };
            if let Some(field) = fields.get_mut(place) {
                field.values.extend(value);
            }
            *nth += 1;
        }
    }
    sections
}

impl InfoSection<'_> {
    /// The merged value of a field; `None` if the field is a name without a value.
    fn value(&self, field: &InfoField<'_>) -> Option<Vec<u8>> {
        let values = &field.values;
        let first = || values.first().map(|first| first.to_vec());
        let one = |number: Option<Decimal>| number.map(|number| number.text());
        match FieldRule::of(self.heading, field.name) {
            FieldRule::First => None,
            FieldRule::Sum => one(Decimal::fold(values, Decimal::plus)),
            FieldRule::Most => one(Decimal::fold(values, Decimal::max)),
            FieldRule::Least => one(Decimal::fold(values, Decimal::min)),
            FieldRule::Bound => match values.contains(&&b"0"[..]) {
                true => Some(b"0".to_vec()),
                false => one(Decimal::fold(values, Decimal::plus)),
            },
            FieldRule::Status => values
                .iter()
                .find(|value| **value != b"ok")
                .map(|one| one.to_vec()),
            FieldRule::Each(fold) => each(values, fold),
            FieldRule::Human => {
                let of = field.name.strip_suffix(b"_human").unwrap_or(field.name);
                self.number(of).map(|bytes| human(bytes).into_bytes())
            }
            FieldRule::Ratio(over, under, less) => {
                let ratio = self.ratio(over, under, less);
                ratio.map(|ratio| format!("{ratio:.2}").into_bytes())
            }
            FieldRule::Percent(over, under, less) => {
                let ratio = self.ratio(over, under, less);
                ratio.map(|ratio| format!("{:.2}%", ratio * 100.0).into_bytes())
            }
        }
        .or_else(first)
    }

    /// The merged value of another field, if it is a sum.
    fn number(&self, name: &[u8]) -> Option<f64> {
        let field = self.fields.iter().find(|field| field.name == name)?;
        match FieldRule::of(self.heading, name) {
            FieldRule::Sum | FieldRule::Bound => {
                Decimal::read(&self.value(field)?).map(Decimal::float)
            }
            _ => None,
        }
    }

    fn ratio(&self, over: &str, under: &str, less: &str) -> Option<f64> {
        let less = match less {
            "" => 0.0,
            less => self.number(less.as_bytes())?,
        };
        let under = self.number(under.as_bytes())? - less;
        (under > 0.0).then_some(self.number(over.as_bytes())? / under)
    }
}

/// Merges values like `calls=1,usec=5,usec_per_call=5.00`.
fn each(values: &[&[u8]], fold: Fold) -> Option<Vec<u8>> {
    let mut names: Vec<&[u8]> = Vec::new();
    let mut of_name: HashMap<&[u8], Vec<&[u8]>> = HashMap::new();
    // `avg_ttl` is a mean over `expires`, so its sum is weighted.
    let (mut ttl, mut expires) = (0.0, 0.0);
    for value in values {
        let pairs = || {
            value
                .split(|&byte| byte == b',')
                .map(|pair| split(pair, b'='))
        };
        let number = |wanted: &[u8]| {
            let found = pairs().find(|(name, _)| *name == wanted);
            found
                .and_then(|(_, value)| Decimal::read(value?))
                .map(Decimal::float)
        };
        for (name, value) in pairs() {
            let held = of_name.entry(name).or_insert_with(|| {
                names.push(name);
                Vec::new()
            });
            held.push(value?);
        }
        let its = number(b"expires").unwrap_or_default();
        ttl += number(b"avg_ttl").unwrap_or_default() * its;
        expires += its;
    }
    // Names that are sizes are sorted by size.
    if names.iter().all(|name| size(name).is_some()) {
        names.sort_by_key(|name| size(name));
    }
    let joined = |name: &[u8]| {
        let way = match fold {
            Fold::Sum => Decimal::plus,
            Fold::Most => Decimal::max,
        };
        Decimal::fold(of_name.get(name)?, way)
    };
    let mut out = Vec::new();
    for name in &names {
        let value = match *name {
            b"usec_per_call" => {
                let (usec, calls) = (joined(b"usec")?.float(), joined(b"calls")?.float());
                let mean = if calls > 0.0 { usec / calls } else { 0.0 };
                format!("{mean:.2}").into_bytes()
            }
            b"avg_ttl" => {
                let mean = if expires > 0.0 { ttl / expires } else { 0.0 };
                format!("{mean:.0}").into_bytes()
            }
            name => match joined(name) {
                Some(number) => number.text(),
                None => of_name.get(name)?.first()?.to_vec(),
            },
        };
        if !out.is_empty() {
            out.push(b',');
        }
        out.extend_from_slice(name);
        out.push(b'=');
        out.extend_from_slice(&value);
    }
    Some(out)
}

/// The number of a size like `16K`.
fn size(name: &[u8]) -> Option<u64> {
    let (digits, unit) = match name.split_last()? {
        (b'K', digits) => (digits, 10),
        (b'M', digits) => (digits, 20),
        (b'G', digits) => (digits, 30),
        (b'T', digits) => (digits, 40),
        _ => (name, 0),
    };
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    number.checked_mul(1 << unit)
}

/// The line of a server in the section `servers`. The server has answered, so its link is up.
fn line_of(at: usize, Text { server, text }: &Text<'_>) -> String {
    let field = |wanted: &[u8]| {
        let found = lines(text).map(|line| split(line, b':'));
        let mut found = found.filter(|(name, _)| *name == wanted);
        let value = found.next().and_then(|(_, value)| value).unwrap_or(b"");
        String::from_utf8_lossy(value).into_owned()
    };
    let keys: u64 = lines(text)
        .filter(|line| line.starts_with(b"db"))
        .filter_map(|line| split(line, b':').1?.strip_prefix(b"keys="))
        .filter_map(|rest| {
            std::str::from_utf8(split(rest, b',').0)
                .ok()?
                .parse::<u64>()
                .ok()
        })
        .fold(0, u64::saturating_add);
    format!(
        "server{at}:address={server},role={},link=up,used_memory={},connected_clients={},ops_per_sec={},keys={keys}\r\n",
        field(b"role"),
        field(b"used_memory"),
        field(b"connected_clients"),
        field(b"instantaneous_ops_per_sec"),
    )
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = text.split(|&byte| byte == b'\n');
    let lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    lines.filter(|line| !line.is_empty())
}

/// Splits a line at a byte; `None` if it does not have this byte.
fn split(line: &[u8], at: u8) -> (&[u8], Option<&[u8]>) {
    let mut parts = line.splitn(2, |&byte| byte == at);
    (parts.next().unwrap_or_default(), parts.next())
}

/// A number with a fixed number of decimals, so that sums are exact.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Decimal {
    units: i128,
    decimals: u32,
}

/// Most digits before and after the decimal point.
const DIGITS_MAX: usize = 20;
const DECIMALS_MAX: usize = 9;

impl Decimal {
    fn read(text: &[u8]) -> Option<Decimal> {
        let (whole, behind) = split(text, b'.');
        let digits = whole.strip_prefix(b"-").unwrap_or(whole);
        let behind = behind.unwrap_or_default();
        let are_digits = |digits: &[u8]| digits.iter().all(u8::is_ascii_digit);
        if digits.is_empty()
            || digits.len() > DIGITS_MAX
            || behind.len() > DECIMALS_MAX
            || !are_digits(digits)
            || !are_digits(behind)
        {
            return None;
        }
        let all = digits.iter().chain(behind);
        let units = all.fold(0, |units: i128, digit| {
            units * 10 + i128::from(digit - b'0')
        });
        Some(Decimal {
            units: if whole.len() > digits.len() {
                -units
            } else {
                units
            },
            decimals: behind.len() as u32,
        })
    }

    /// Folds several numbers into one; `None` if a text is not a number.
    fn fold(texts: &[&[u8]], fold: fn(i128, i128) -> i128) -> Option<Decimal> {
        let numbers: Option<Vec<Decimal>> = texts.iter().map(|text| Decimal::read(text)).collect();
        let numbers = numbers?;
        let decimals = numbers.iter().map(|number| number.decimals).max()?;
        let same = numbers
            .iter()
            .map(|number| number.units * 10i128.pow(decimals - number.decimals));
        let units = same.reduce(fold)?;
        Some(Decimal { units, decimals })
    }

    fn plus(one: i128, other: i128) -> i128 {
        one.saturating_add(other)
    }

    fn max(one: i128, other: i128) -> i128 {
        one.max(other)
    }

    fn min(one: i128, other: i128) -> i128 {
        one.min(other)
    }

    fn float(self) -> f64 {
        self.units as f64 / 10f64.powi(self.decimals as i32)
    }

    fn text(self) -> Vec<u8> {
        let (sign, units) = (
            if self.units < 0 { "-" } else { "" },
            self.units.unsigned_abs(),
        );
        let point = 10u128.pow(self.decimals);
        let (whole, behind) = (units / point, units % point);
        match self.decimals as usize {
            0 => format!("{sign}{whole}").into_bytes(),
            decimals => format!("{sign}{whole}.{behind:0decimals$}").into_bytes(),
        }
    }
}

/// Redis's `bytesToHuman`.
fn human(bytes: f64) -> String {
    let mut size = bytes;
    for unit in ["B", "K", "M", "G", "T"] {
        if size < 1024.0 {
            return match unit {
                "B" => format!("{size:.0}B"),
                unit => format!("{size:.2}{unit}"),
            };
        }
        size /= 1024.0;
    }
    format!("{size:.2}P")
}

/// The texts of all servers, each under the name of its server.
pub(super) fn headed(texts: &[Text<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    for Text { server, text } in texts {
        if !out.is_empty() {
            out.push(b'\n');
        }
        out.extend_from_slice(format!("# {server}\n").as_bytes());
        out.extend_from_slice(text);
        if !text.ends_with(b"\n") {
            out.push(b'\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `INFO everything` as real servers wrote it.
    const REAL: [(&str, &str); 4] = [
        ("redis 6.2", include_str!("../../data/info-redis-6.2.txt")),
        ("redis 7.0", include_str!("../../data/info-redis-7.0.txt")),
        ("redis 8.2", include_str!("../../data/info-redis-8.2.txt")),
        ("valkey 9.1", include_str!("../../data/info-valkey-9.1.txt")),
    ];

    fn asked(words: &str) -> Sections {
        Sections::asked(words.split_whitespace().map(str::as_bytes))
    }

    /// The merged text; `|` stands for the end of a line.
    fn merged(words: &str, texts: &[&str]) -> String {
        let texts: Vec<String> = texts
            .iter()
            .map(|text| text.replace(['|', '\n'], "\r\n"))
            .collect();
        let names: Vec<String> = (0..texts.len()).map(|at| format!("h:{at}")).collect();
        let named = names.iter().zip(&texts);
        let texts: Vec<Text<'_>> = named
            .map(|(server, text)| Text {
                server,
                text: text.as_bytes(),
            })
            .collect();
        let text = String::from_utf8(merge(&texts, asked(words))).unwrap();
        text.replace("\r\n", "|")
    }

    fn field<'a>(text: &'a str, name: &str) -> &'a str {
        let lines = text.split(['|', '\n']);
        let mut found = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        found
            .next()
            .unwrap_or_else(|| panic!("no {name} in {text}"))
    }

    /// If a server is merged with itself, counts are multiplied, and other fields stay.
    #[test]
    fn counts_are_added_and_other_fields_are_the_first_servers() {
        for (server, text) in REAL {
            let thrice = merged("", &[text, text, text]);
            let names = |text: &str| -> Vec<String> {
                let lines = text.split(['|', '\n']).filter(|line| !line.is_empty());
                lines
                    .map(|line| line.split(':').next().unwrap_or_default().to_owned())
                    .collect()
            };
            // Each line is there once, in its order.
            assert_eq!(names(&thrice), names(text), "{server}");
            for name in [
                "connected_clients",
                "maxclients",
                "used_memory",
                "used_memory_rss",
                "used_memory_dataset",
                "mem_clients_normal",
                "total_commands_processed",
                "total_net_input_bytes",
                "keyspace_hits",
                "keyspace_misses",
                "total_error_replies",
                "instantaneous_ops_per_sec",
                "rdb_changes_since_last_save",
            ] {
                let one: u64 = field(text, name).parse().unwrap();
                let all: u64 = field(&thrice, name).parse().unwrap();
                assert_eq!(all, 3 * one, "{server}: {name}");
            }
            for name in [
                "redis_version",
                "redis_mode",
                "server_mode",
                "run_id",
                "tcp_port",
                "process_id",
                "uptime_in_seconds",
                "hz",
                "os",
                "maxmemory",
                "maxmemory_policy",
                "total_system_memory",
                "total_system_memory_human",
                "used_memory_peak_time",
                "role",
                "master_replid",
                "repl_backlog_size",
                "cluster_enabled",
                "loading",
                "rdb_last_save_time",
                "rdb_last_bgsave_status",
                "aof_enabled",
                "latest_fork_usec",
                "expired_stale_perc",
                "mem_allocator",
                "number_of_functions",
                "client_recent_max_input_buffer",
                "latency_percentiles_usec_set",
                "listener0",
                "module",
                "paused_reason",
            ] {
                // Some servers do not have all fields.
                if text.contains(&format!("\n{name}:")) {
                    assert_eq!(field(&thrice, name), field(text, name), "{server}: {name}");
                }
            }
            // Counts of a database are added, its mean TTL stays.
            let (one, all) = (field(text, "db0"), field(&thrice, "db0"));
            assert!(one.starts_with("keys=46,expires=5,avg_ttl=99"), "{one}");
            let ttl = one.split(',').nth(2).unwrap();
            assert!(
                all.starts_with(&format!("keys=138,expires=15,{ttl}")),
                "{all}"
            );
            let (one, all) = (field(text, "cmdstat_set"), field(&thrice, "cmdstat_set"));
            assert!(one.starts_with("calls=46,usec="), "{one}");
            assert!(all.starts_with("calls=138,usec="), "{all}");
            // The mean time of a call stays, too.
            assert_eq!(all.split(',').nth(2), one.split(',').nth(2), "{server}");
            assert_eq!(field(&thrice, "errorstat_WRONGTYPE"), "count=3");
        }
    }

    /// Servers of different versions are merged, as during an upgrade.
    #[test]
    fn servers_of_different_versions_are_merged() {
        let texts = REAL.map(|(_, text)| text);
        let all = merged("everything", &texts);
        let sum: u64 = texts
            .iter()
            .map(|text| field(text, "used_memory").parse::<u64>().unwrap())
            .sum();
        assert_eq!(field(&all, "used_memory"), sum.to_string());
        assert_eq!(field(&all, "used_memory_human"), human(sum as f64));
        assert_eq!(field(&all, "redis_version"), "6.2.14");
        assert_eq!(
            field(&all, "valkey_version"),
            field(texts[3], "valkey_version")
        );
        assert!(field(&all, "db0").starts_with("keys=184,expires=20,avg_ttl=99"));
        // Each server has its line in the section `servers`.
        assert!(all.starts_with("# Servers|server0:address=h:0,role=master,link=up,used_memory="));
        for (at, text) in texts.iter().enumerate() {
            let expected = format!(
                "address=h:{at},role=master,link=up,used_memory={},connected_clients=1,ops_per_sec={},keys=47",
                field(text, "used_memory"),
                field(text, "instantaneous_ops_per_sec")
            );
            assert_eq!(field(&all, &format!("server{at}")), expected);
        }
    }

    /// Each rule gives the right value for two servers.
    #[test]
    fn each_rule_merges_two_values() {
        for (heading, one, other, expected) in [
            ("Memory", "maxmemory:100", "maxmemory:50", "maxmemory:150"),
            ("Memory", "maxmemory:100", "maxmemory:0", "maxmemory:0"),
            (
                "Memory",
                "used_memory:1048576|used_memory_human:1.00M",
                "used_memory:524288|used_memory_human:512.00K",
                "used_memory:1572864|used_memory_human:1.50M",
            ),
            (
                "Memory",
                "used_memory:10|used_memory_rss:10|mem_fragmentation_ratio:1.00",
                "used_memory:30|used_memory_rss:90|mem_fragmentation_ratio:3.00",
                "used_memory:40|used_memory_rss:100|mem_fragmentation_ratio:2.50",
            ),
            (
                "Memory",
                "used_memory:20|used_memory_startup:10|used_memory_dataset:5|used_memory_dataset_perc:50.00%",
                "used_memory:40|used_memory_startup:10|used_memory_dataset:25|used_memory_dataset_perc:83.33%",
                "used_memory:60|used_memory_startup:20|used_memory_dataset:30|used_memory_dataset_perc:75.00%",
            ),
            ("Persistence", "loading:0", "loading:1", "loading:1"),
            (
                "Persistence",
                "rdb_last_bgsave_status:ok|rdb_last_save_time:9",
                "rdb_last_bgsave_status:err|rdb_last_save_time:5",
                "rdb_last_bgsave_status:err|rdb_last_save_time:5",
            ),
            (
                "Stats",
                "instantaneous_input_kbps:0.80",
                "instantaneous_input_kbps:1.25",
                "instantaneous_input_kbps:2.05",
            ),
            (
                "Stats",
                "latest_fork_usec:5",
                "latest_fork_usec:3",
                "latest_fork_usec:5",
            ),
            ("Stats", "newer:1", "newer:2", "newer:3"),
            ("Newer", "newer:1", "newer:2", "newer:1"),
            (
                "CPU",
                "used_cpu_sys:0.010391",
                "used_cpu_sys:1.1",
                "used_cpu_sys:1.110391",
            ),
            (
                "Replication",
                "role:master|connected_slaves:1",
                "role:slave|connected_slaves:2",
                "role:master|connected_slaves:3",
            ),
            (
                "Commandstats",
                "cmdstat_get:calls=2,usec=10,usec_per_call=5.00,failed_calls=1",
                "cmdstat_get:calls=1,usec=2,usec_per_call=2.00,failed_calls=0",
                "cmdstat_get:calls=3,usec=12,usec_per_call=4.00,failed_calls=1",
            ),
            (
                "Keyspace",
                "db0:keys=3,expires=1,avg_ttl=1000",
                "db0:keys=5,expires=3,avg_ttl=200|db2:keys=1,expires=0,avg_ttl=0",
                "db0:keys=8,expires=4,avg_ttl=400|db2:keys=1,expires=0,avg_ttl=0",
            ),
            (
                "Latencystats",
                "latency_percentiles_usec_get:p50=1.003,p99.9=4.015",
                "latency_percentiles_usec_get:p50=2.007,p99.9=3.007",
                "latency_percentiles_usec_get:p50=2.007,p99.9=4.015",
            ),
            (
                "Keysizes",
                "db0_distrib_strings_sizes:1=14,4=1,1K=2",
                "db0_distrib_strings_sizes:2=1,4=1",
                "db0_distrib_strings_sizes:1=14,2=1,4=2,1K=2",
            ),
            (
                "Modules",
                "module:name=a|module:name=b",
                "module:name=a",
                "module:name=a|module:name=b",
            ),
        ] {
            assert_merged(heading, [one, other], expected);
        }
    }

    /// If a value is not a number, the first server's value counts.
    #[test]
    fn value_that_is_not_a_number_is_the_first_servers() {
        for (heading, one, other, expected) in [
            ("Stats", "x:1", "x:many", "x:1"),
            (
                "Stats",
                "x:99999999999999999999999",
                "x:1",
                "x:99999999999999999999999",
            ),
            ("Keyspace", "db0:keys=1,odd", "db0:keys=1", "db0:keys=1,odd"),
            ("Stats", "x", "x", "x"),
        ] {
            assert_merged(heading, [one, other], expected);
        }
    }

    fn assert_merged(heading: &str, fields: [&str; 2], expected: &str) {
        let text = |fields: &str| format!("# {heading}|{fields}|");
        let all = merged("", &fields.map(text).each_ref().map(String::as_str));
        assert_eq!(all, text(expected));
    }

    /// The section `servers` is shown only to clients that ask for it. Sections that only it needs
    /// are hidden.
    #[test]
    fn servers_section_is_shown_on_request() {
        let request = |words: &str| {
            let mut out = Vec::new();
            let arguments = words.split_whitespace().map(str::as_bytes);
            asked(words).request(arguments, &mut out);
            let words = out.split(|&byte| byte == b'\n').skip(2).step_by(2);
            let words: Vec<_> = words
                .map(|word| String::from_utf8_lossy(word.trim_ascii()))
                .collect();
            words.join(" ")
        };
        let shown = |words: &str| {
            let text = "# Server|x:1||# Memory|used_memory:7||# Keyspace|db0:keys=2|db1:keys=1|";
            let all = merged(words, &[text, text]);
            let headings = all.split('|').filter_map(|line| line.strip_prefix("# "));
            headings.collect::<Vec<_>>().join(" ")
        };
        for (words, sent, seen) in [
            ("", "INFO", "Server Memory Keyspace"),
            ("memory", "INFO memory", "Server Memory Keyspace"),
            (
                "everything",
                "INFO everything",
                "Servers Server Memory Keyspace",
            ),
            ("SERVERS", "INFO", "Servers"),
            ("servers respool", "INFO", "Servers"),
            (
                "default servers",
                "INFO default",
                "Servers Server Memory Keyspace",
            ),
            (
                "server servers keyspace",
                "INFO server keyspace replication memory clients stats",
                "Servers Server Keyspace",
            ),
        ] {
            assert_eq!(request(words), sent, "{words}");
            assert_eq!(shown(words), seen, "{words}");
        }
        assert_eq!(
            merged(
                "servers",
                &["# Memory|used_memory:7|# Keyspace|db0:keys=2|db1:keys=1,x=1|"]
            ),
            "# Servers|server0:address=h:0,role=,link=up,used_memory=7,connected_clients=,ops_per_sec=,keys=3|"
        );
    }
}

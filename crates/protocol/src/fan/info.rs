//! Several servers' texts as one.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, reason = "it reads bytes of a server")
)]

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::encode;

/// What one server told.
pub(super) struct Text<'a> {
    pub(super) server: &'a str,
    pub(super) text: &'a [u8],
}

/// Which sections of INFO a client of several servers wants, one of them ours: `servers`, a line
/// for each server.
///
/// That line is made of what stands in other sections. Where the client did not ask for those, the
/// servers are asked for them all the same, and they are not shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sections {
    /// A line for each server is shown.
    servers: bool,
    /// What the servers are asked for.
    rest: Rest,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Rest {
    /// What the client asked for.
    #[default]
    Shown,
    /// What they show by default, and nothing of it is shown.
    Hidden,
    /// What the client asked for, and the sections of [`NEEDED`], of which those with a bit are not
    /// shown.
    More(u8),
}

/// Sections of which the line of a server is made.
const NEEDED: [&str; 5] = ["replication", "memory", "clients", "stats", "keyspace"];
const _: () = assert!(NEEDED.len() <= 8, "one bit each");

impl Sections {
    /// By the arguments behind INFO.
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
                _ if !ours || group => Rest::Shown,
                0 => Rest::Hidden,
                _ => Rest::More(hidden),
            },
        }
    }

    /// Appends what the servers are asked.
    pub fn request<'a>(&self, arguments: impl Iterator<Item = &'a [u8]>, out: &mut Vec<u8>) {
        let mut words: Vec<&[u8]> = vec![b"INFO"];
        match self.rest {
            Rest::Shown => words.extend(arguments.filter(|word| !is_servers(word))),
            Rest::Hidden => {}
            Rest::More(hidden) => {
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
            Rest::Shown => true,
            Rest::Hidden => false,
            Rest::More(hidden) => {
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

/// A field of a section as one or more servers have it.
struct Field<'a> {
    name: &'a [u8],
    /// Of each server that has it, in the order of the servers.
    values: Vec<&'a [u8]>,
}

/// A section: its heading, and its fields in the order in which they occur first.
struct Section<'a> {
    heading: &'a [u8],
    fields: Vec<Field<'a>>,
}

/// What becomes of the values of a field. What is no number is always the first server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It says who or what one server is: the first one's.
    First,
    Sum,
    /// The largest: of what cannot be added, the worst.
    Most,
    Least,
    /// The sum, unless one has no bound.
    Bound,
    /// The first that is not `ok`.
    Status,
    /// Numbers with names, `calls=1,usec=5`: each for itself.
    Each(Fold),
    /// Another field, to be read by people.
    Human,
    /// By what two others have become: one over the other, less the third.
    Ratio(&'static str, &'static str, &'static str),
    /// The same in percent.
    Percent(&'static str, &'static str, &'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fold {
    Sum,
    Most,
}

impl Way {
    fn of(heading: &[u8], name: &[u8]) -> Way {
        let known = ALONE.iter().find(|(known, _)| known.as_bytes() == name);
        if let Some((_, way)) = known {
            return *way;
        }
        match heading.strip_prefix(b"# ").unwrap_or(heading) {
            _ if name.ends_with(b"_human") => Way::Human,
            b"Clients" | b"Memory" | b"Stats" | b"CPU" => Way::Sum,
            b"Commandstats" | b"Errorstats" | b"Keyspace" | b"Keysizes" | b"Threads" => {
                Way::Each(Fold::Sum)
            }
            b"Latencystats" => Way::Each(Fold::Most),
            _ => Way::First,
        }
    }
}

/// Fields that are not as the others of their section.
const ALONE: [(&str, Way); 56] = [
    ("active_defrag_running", Way::Most),
    (
        "allocator_frag_ratio",
        Way::Ratio("allocator_active", "allocator_allocated", ""),
    ),
    (
        "allocator_rss_ratio",
        Way::Ratio("allocator_resident", "allocator_active", ""),
    ),
    ("aof_base_size", Way::Sum),
    ("aof_buffer_length", Way::Sum),
    ("aof_current_size", Way::Sum),
    ("aof_delayed_fsync", Way::Sum),
    ("aof_last_bgrewrite_status", Way::Status),
    ("aof_last_write_status", Way::Status),
    ("aof_pending_bio_fsync", Way::Sum),
    ("aof_rewrite_in_progress", Way::Most),
    ("aof_rewrite_scheduled", Way::Most),
    ("aof_rewrites", Way::Sum),
    ("async_loading", Way::Most),
    ("client_biggest_input_buf", Way::Most),
    ("client_longest_output_list", Way::Most),
    ("client_recent_max_input_buffer", Way::Most),
    ("client_recent_max_output_buffer", Way::Most),
    ("connected_slaves", Way::Sum),
    ("current_active_defrag_time", Way::Most),
    ("current_eviction_exceeded_time", Way::Most),
    ("current_save_keys_processed", Way::Sum),
    ("current_save_keys_total", Way::Sum),
    ("engines_total_memory_overhead", Way::Sum),
    ("engines_total_used_memory", Way::Sum),
    ("expired_keys_with_volatile_items_stale_perc", Way::Most),
    ("expired_stale_perc", Way::Most),
    ("instantaneous_eventloop_duration_usec", Way::Most),
    ("latest_fork_usec", Way::Most),
    ("loading", Way::Most),
    ("maxmemory", Way::Bound),
    (
        "mem_fragmentation_ratio",
        Way::Ratio("used_memory_rss", "used_memory", ""),
    ),
    ("module_fork_in_progress", Way::Most),
    // They are loaded everywhere.
    ("number_of_functions", Way::Most),
    ("number_of_libraries", Way::Most),
    ("paused_timeout_milliseconds", Way::Most),
    ("rdb_bgsave_in_progress", Way::Most),
    ("rdb_changes_since_last_save", Way::Sum),
    ("rdb_last_bgsave_status", Way::Status),
    ("rdb_last_load_keys_expired", Way::Sum),
    ("rdb_last_load_keys_loaded", Way::Sum),
    ("rdb_last_save_time", Way::Least),
    ("rdb_saves", Way::Sum),
    (
        "rss_overhead_ratio",
        Way::Ratio("used_memory_rss", "allocator_resident", ""),
    ),
    ("slot_migration_fork_in_progress", Way::Most),
    // Of the machine, which several may share.
    ("total_system_memory", Way::First),
    ("total_system_memory_human", Way::First),
    (
        "used_memory_dataset_perc",
        Way::Percent("used_memory_dataset", "used_memory", "used_memory_startup"),
    ),
    (
        "used_memory_peak_perc",
        Way::Percent("used_memory", "used_memory_peak", ""),
    ),
    ("used_memory_peak_time", Way::Most),
    // Of a Cluster's node.
    ("cluster_connections", Way::Sum),
    ("cluster_enabled", Way::First),
    // Of each of several modules, and of each thread.
    ("module", Way::First),
    ("mem_allocator", Way::First),
    ("maxmemory_policy", Way::First),
    ("paused_reason", Way::First),
];

/// INFO of several servers as that of one: what can be added is, and what one server is, the first
/// one is.
///
/// ```text
///   # Servers
///   server0:address=127.0.0.1:6380,role=master,link=up,used_memory=1048576,connected_clients=4,ops_per_sec=12,keys=2
///   server1:address=127.0.0.1:6381,role=master,link=up,used_memory=2097152,connected_clients=4,ops_per_sec=9,keys=5
///
///   # Memory
///   used_memory:3145728
///   used_memory_human:3.00M
///   maxmemory_policy:noeviction
/// ```
///
/// A field that is in none of our lists, since a server is newer than they are, is as the others of
/// its section.
pub(super) fn merge(texts: &[Text<'_>], asked: Sections) -> Vec<u8> {
    let sections = read(texts);
    let mut out = Vec::new();
    if asked.servers {
        out.extend_from_slice(b"# Servers\r\n");
        for (at, text) in texts.iter().enumerate() {
            out.extend_from_slice(line_of(at, text).as_bytes());
        }
    }
    let shown = |section: &&Section<'_>| asked.shows(section.heading);
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

fn read<'a>(texts: &[Text<'a>]) -> Vec<Section<'a>> {
    let mut sections: Vec<Section<'_>> = Vec::new();
    // A name may occur several times, like `module`: the nth of one server is that of the others.
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
                    sections.push(Section {
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
            let Some(Section { fields, .. }) = sections.get_mut(section) else {
                continue;
            };
            let place = match places.entry((section, name, *nth)) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(new) => {
                    fields.push(Field {
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

impl Section<'_> {
    /// What several servers' values are together; `None`: the field is a name alone.
    fn value(&self, field: &Field<'_>) -> Option<Vec<u8>> {
        let values = &field.values;
        let first = || values.first().map(|first| first.to_vec());
        let one = |number: Option<Number>| number.map(|number| number.text());
        match Way::of(self.heading, field.name) {
            Way::First => None,
            Way::Sum => one(Number::fold(values, Number::plus)),
            Way::Most => one(Number::fold(values, Number::max)),
            Way::Least => one(Number::fold(values, Number::min)),
            Way::Bound => match values.contains(&&b"0"[..]) {
                true => Some(b"0".to_vec()),
                false => one(Number::fold(values, Number::plus)),
            },
            Way::Status => values
                .iter()
                .find(|value| **value != b"ok")
                .map(|one| one.to_vec()),
            Way::Each(fold) => each(values, fold),
            Way::Human => {
                let of = field.name.strip_suffix(b"_human").unwrap_or(field.name);
                self.number(of).map(|bytes| human(bytes).into_bytes())
            }
            Way::Ratio(over, under, less) => {
                let ratio = self.ratio(over, under, less);
                ratio.map(|ratio| format!("{ratio:.2}").into_bytes())
            }
            Way::Percent(over, under, less) => {
                let ratio = self.ratio(over, under, less);
                ratio.map(|ratio| format!("{:.2}%", ratio * 100.0).into_bytes())
            }
        }
        .or_else(first)
    }

    /// What the values of another field are together.
    fn number(&self, name: &[u8]) -> Option<f64> {
        let field = self.fields.iter().find(|field| field.name == name)?;
        match Way::of(self.heading, name) {
            Way::Sum | Way::Bound => Number::read(&self.value(field)?).map(Number::float),
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

/// `calls=1,usec=5,usec_per_call=5.00` of several servers.
fn each(values: &[&[u8]], fold: Fold) -> Option<Vec<u8>> {
    let mut names: Vec<&[u8]> = Vec::new();
    let mut of_name: HashMap<&[u8], Vec<&[u8]>> = HashMap::new();
    // What is not added but shared out: over the sum of the other.
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
                .and_then(|(_, value)| Number::read(value?))
                .map(Number::float)
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
    // Sizes stand in their order.
    if names.iter().all(|name| size(name).is_some()) {
        names.sort_by_key(|name| size(name));
    }
    let joined = |name: &[u8]| {
        let way = match fold {
            Fold::Sum => Number::plus,
            Fold::Most => Number::max,
        };
        Number::fold(of_name.get(name)?, way)
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

/// What `16K` counts.
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

/// The line that says what a server is at this moment. That it has answered it is known by.
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

/// What is in front of a byte, and what is behind it.
fn split(line: &[u8], at: u8) -> (&[u8], Option<&[u8]>) {
    let mut parts = line.splitn(2, |&byte| byte == at);
    (parts.next().unwrap_or_default(), parts.next())
}

/// A number with a fixed number of decimals, so that sums are exact.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Number {
    units: i128,
    decimals: u32,
}

/// Digits of a number, and of what is behind its point.
const DIGITS_MAX: usize = 20;
const DECIMALS_MAX: usize = 9;

impl Number {
    fn read(text: &[u8]) -> Option<Number> {
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
        Some(Number {
            units: if whole.len() > digits.len() {
                -units
            } else {
                units
            },
            decimals: behind.len() as u32,
        })
    }

    /// All of them as one; `None` if one is no number.
    fn fold(texts: &[&[u8]], fold: fn(i128, i128) -> i128) -> Option<Number> {
        let numbers: Option<Vec<Number>> = texts.iter().map(|text| Number::read(text)).collect();
        let numbers = numbers?;
        let decimals = numbers.iter().map(|number| number.decimals).max()?;
        let same = numbers
            .iter()
            .map(|number| number.units * 10i128.pow(decimals - number.decimals));
        let units = same.reduce(fold)?;
        Some(Number { units, decimals })
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

/// Each server's text under its name.
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

    /// `|` stands for the end of a line.
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

    /// Each field as it comes back when a server is merged with itself, three times.
    #[test]
    fn what_can_be_added_is_and_everything_else_is_the_first_ones() {
        for (server, text) in REAL {
            let thrice = merged("", &[text, text, text]);
            let names = |text: &str| -> Vec<String> {
                let lines = text.split(['|', '\n']).filter(|line| !line.is_empty());
                lines
                    .map(|line| line.split(':').next().unwrap_or_default().to_owned())
                    .collect()
            };
            // No line is lost, none comes twice, and they keep their order.
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
                // Not each server has each.
                if text.contains(&format!("\n{name}:")) {
                    assert_eq!(field(&thrice, name), field(text, name), "{server}: {name}");
                }
            }
            // Within one database: what it counts is added, what it says of each key stays.
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
            // The time of each stays, too.
            assert_eq!(all.split(',').nth(2), one.split(',').nth(2), "{server}");
            assert_eq!(field(&thrice, "errorstat_WRONGTYPE"), "count=3");
        }
    }

    /// A pool whose servers are of different versions, as while they are renewed.
    #[test]
    fn servers_of_different_versions_are_one() {
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
        // Each server says what it is, too.
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

    #[test]
    fn each_value_is_made_of_those_of_all() {
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
            // What is no number, or none that we know, is the first one's.
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
            let text = |fields: &str| format!("# {heading}|{fields}|");
            let all = merged("", &[&text(one), &text(other)]);
            assert_eq!(all, text(expected));
        }
    }

    #[test]
    fn a_line_for_each_server_is_shown_to_who_asks_for_it() {
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

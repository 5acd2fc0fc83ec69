//! What was given, before anybody makes sense of it: layer by layer, with places.
//!
//! Reading a layer does nothing but read. Every problem is kept, so that one run shows them all.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use toml_edit::{Document, Item, Value};

use crate::options::{Kind, OPTIONS, Opt, Values, find};
use crate::plain::{is_plain, plain_toml};
use crate::pools::{OF_ONE, PoolOption, PoolTable, Prefix};
use crate::problem::{Place, Problem, did_you_mean, shown};

/// One option as it was given in one layer.
#[derive(Debug)]
pub(crate) struct Given {
    /// Which.
    pub(crate) option: &'static Opt,
    /// Where.
    pub(crate) place: Place,
    /// Each text with its own place; a list may have any number, everything else has one.
    pub(crate) texts: Vec<(String, Place)>,
}

/// Everything that was given.
#[derive(Debug, Default)]
pub(crate) struct RawConfig {
    /// In no order.
    pub(crate) given: Vec<Given>,
    /// What the file has of the option `pool` in tables; that option is among `given`, then.
    pub(crate) pools: Vec<PoolTable>,
    /// What could not even be read.
    pub(crate) problems: Vec<Problem>,
    /// What is no problem, and still not as its operator means it.
    pub(crate) warnings: Vec<String>,
}

/// Bytes of a configuration file. At it, the file is refused: a device may never end.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// How long a file that is a pipe may be without a byte.
const PIPE_SECONDS_MAX: i64 = 5;

/// Variables that are warned of one by one; the rest is counted.
const WARNINGS_MAX: usize = 16;

impl RawConfig {
    /// Adds one option of the command line. Of an option that has one value the last one counts, so
    /// that what a script gives can be overruled behind it.
    pub(crate) fn add_argument(&mut self, option: &'static Opt, text: String) {
        let place = Place::Arguments;
        let mut earlier = self
            .given
            .iter_mut()
            .filter(|given| given.place == Place::Arguments);
        let text = (text, place.clone());
        match earlier.find(|given| given.option.name == option.name) {
            Some(given) if matches!(option.kind, Kind::List { .. }) => given.texts.push(text),
            Some(given) => given.texts = vec![text],
            None => self.given.push(Given {
                option,
                place,
                texts: vec![text],
            }),
        }
    }

    /// Adds what the environment says.
    pub(crate) fn add_environment(&mut self, get: impl Fn(&str) -> Option<OsString>) {
        for option in OPTIONS {
            let Some(variable) = option.variable else {
                continue;
            };
            let Some(text) = get(variable) else { continue };
            let place = Place::Environment(variable);
            match text.into_string() {
                Ok(text) => {
                    let texts = vec![(text, place.clone())];
                    self.given.push(Given {
                        option,
                        place,
                        texts,
                    });
                }
                Err(_) => {
                    self.problems
                        .push(Problem::of_option(option.name, &place, "is not UTF-8"));
                }
            }
        }
    }

    /// Warns of variables that look like ours and are not read.
    pub(crate) fn warn_of_variables(&mut self, names: impl Iterator<Item = OsString>) {
        let names = names.filter_map(|name| name.into_string().ok());
        let mut names: Vec<String> = names.collect();
        names.sort();
        let in_kubernetes = names.iter().any(|name| name == "KUBERNETES_SERVICE_HOST");
        let is_read = |name: &str| OPTIONS.iter().any(|option| option.variable == Some(name));
        let mut unread = Vec::new();
        for name in &names {
            let Some(rest) = name.strip_prefix("RESPOOL_") else {
                continue;
            };
            // Kubernetes sets these for a service that is called `respool`; the others belong to
            // the tests of the project.
            let of_kubernetes = in_kubernetes
                && ["SERVICE_", "PORT"]
                    .iter()
                    .any(|start| rest.starts_with(start));
            if !is_read(name) && !of_kubernetes && !rest.starts_with("TEST") {
                unread.push(unread_variable(name, rest));
            }
        }
        let more = unread.len().saturating_sub(WARNINGS_MAX);
        unread.truncate(WARNINGS_MAX);
        self.warnings.extend(unread);
        if more > 0 {
            let text = format!("{more} more variables that begin with RESPOOL_ are not read");
            self.warnings.push(text);
        }
    }

    /// Adds the file at `path`.
    pub(crate) fn add_file(&mut self, path: &str) {
        match read_file(Path::new(path), FILE_BYTES_MAX).map(String::from_utf8) {
            Ok(Ok(text)) => self.add_toml(path, &text),
            Ok(Err(_)) => {
                let text = format!(
                    "{}: is not UTF-8: a configuration file is TOML",
                    shown(path)
                );
                self.problems.push(Problem::at(Place::Default, text));
            }
            Err(error) => {
                let text = format!("{}: cannot be read: {error}", shown(path));
                self.problems.push(Problem::at(Place::Default, text));
            }
        }
    }

    /// Adds the text of a file.
    pub(crate) fn add_toml(&mut self, path: &str, text: &str) {
        let place = |span: Option<std::ops::Range<usize>>| {
            let (line, column) = position(text, span.map_or(0, |span| span.start));
            Place::File {
                path: path.into(),
                line,
                column,
            }
        };
        let document = match Document::parse(text) {
            Ok(document) => document,
            Err(error) => {
                let message = error.message();
                let hint = match message.contains("unquoted key") {
                    true => {
                        ": a prefix, or another key with more than letters, digits, - and _, stands in quotes"
                    }
                    false => "",
                };
                let what = format!("is not TOML: {message}{hint}");
                self.problems.push(Problem::at(place(error.span()), what));
                return;
            }
        };
        let table = document.as_table();
        for (name, item) in table {
            let key = place(table.key(name).and_then(|key| key.span()));
            let Some(option) = find(name) else {
                self.problems.push(Problem::at(key, unknown(name, item)));
                continue;
            };
            if name == "pool" && item.is_array_of_tables() {
                let what = "a pool has its name in single brackets: [pool.NAME]";
                self.problems.push(Problem::of_option(name, &key, what));
                continue;
            }
            let elements = item.as_array().map(toml_edit::Array::len);
            let elements = elements.or(item.as_table_like().map(|table| table.len()));
            if name == "pool" && elements == Some(0) {
                let what = "is empty: a pool is a table, [pool.NAME]";
                self.problems.push(Problem::of_option(name, &key, what));
            }
            if let Some(tables) = item.as_table_like().filter(|_| name == "pool") {
                let place_of = |name: &str| place(tables.key(name).and_then(|key| key.span()));
                for (name, item) in tables.iter() {
                    self.add_pool(name, place_of(name), item, &place);
                }
                self.given.push(Given {
                    option,
                    place: key,
                    texts: Vec::new(),
                });
                continue;
            }
            match texts(option, item) {
                Ok(texts) => {
                    let texts = texts.into_iter().map(|(text, span)| (text, place(span)));
                    let texts = texts.collect();
                    self.given.push(Given {
                        option,
                        place: key,
                        texts,
                    });
                }
                Err((span, what)) => {
                    self.problems
                        .push(Problem::of_option(name, &place(span), what));
                }
            }
        }
    }

    /// Adds `[pool.NAME]`; `place_at`: where a part of the file is.
    fn add_pool(
        &mut self,
        name: &str,
        place: Place,
        item: &Item,
        place_at: &impl Fn(Span) -> Place,
    ) {
        let Some(table) = item.as_table_like() else {
            let what = format!("must be a table: [pool.{name}], and its keys below");
            self.problems
                .push(Problem::of_option("pool", &place_at(item.span()), what));
            return;
        };
        let mut pool = PoolTable {
            name: name.into(),
            place,
            listen: None,
            backend: None,
            options: Vec::new(),
            prefixes: Vec::new(),
        };
        for (part, item) in table.iter() {
            if let Some(option) = find(part).filter(|option| option.per_pool) {
                let place = place_at(table.key(part).and_then(|key| key.span()));
                match texts(option, item) {
                    Ok(texts) if texts.is_empty() => {
                        let part = format!("pool.{name}.{part}");
                        let what = "is empty: write an entry, or leave it away";
                        self.problems.push(Problem::of_option(&part, &place, what));
                    }
                    Ok(texts) => {
                        pool.options
                            .extend(texts.into_iter().map(|(text, _)| PoolOption {
                                option,
                                text,
                                place: place.clone(),
                            }))
                    }
                    Err((span, what)) => {
                        let part = format!("pool.{name}.{part}");
                        self.problems
                            .push(Problem::of_option(&part, &place_at(span), what));
                    }
                }
                continue;
            }
            let kept = match part {
                "listen" => &mut pool.listen,
                "backend" => &mut pool.backend,
                "prefixes" => {
                    let Some(prefixes) = item.as_table_like() else {
                        let what = format!("must be a table: [pool.{name}.prefixes]");
                        self.problems.push(Problem::of_option(
                            "pool",
                            &place_at(item.span()),
                            what,
                        ));
                        continue;
                    };
                    for (prefix, item) in prefixes.iter() {
                        let place = place_at(item.span());
                        match part_of(item) {
                            Ok((url, strip)) => pool.prefixes.push(Prefix {
                                prefix: prefix.to_owned(),
                                url,
                                strip,
                                place,
                            }),
                            Err(what) => {
                                let part = format!("pool.{name}.prefixes");
                                let what = format!("`{prefix}`: {what}");
                                self.problems.push(Problem::of_option(&part, &place, what));
                            }
                        }
                    }
                    continue;
                }
                _ => {
                    let place = place_at(table.key(part).and_then(|key| key.span()));
                    self.problems
                        .push(Problem::at(place, unknown_in_pool(name, part)));
                    continue;
                }
            };
            let option = find(part).expect("a pool has these options for itself");
            let part = format!("pool.{name}.{part}");
            let mut problem = |span: Span, what: String| {
                self.problems
                    .push(Problem::of_option(&part, &place_at(span), what));
                Vec::new()
            };
            *kept = Some(match texts(option, item) {
                Ok(texts) if texts.is_empty() => {
                    let what = "is empty: clients need at least one address";
                    problem(item.span(), what.into())
                }
                Ok(texts) => {
                    let texts = texts.into_iter();
                    texts.map(|(text, span)| (text, place_at(span))).collect()
                }
                Err((span, what)) => problem(span, what),
            });
        }
        self.pools.push(pool);
    }
}

/// What stands behind a prefix: the URL, or a table of it and whether its servers see keys without
/// the prefix.
fn part_of(item: &Item) -> Result<(String, bool), String> {
    const SHAPE: &str = "must be a string, such as \"redis://10.0.0.8\", or \
                         { backend = \"redis://10.0.0.8\", strip = true }";
    if let Some(url) = item.as_str() {
        return Ok((url.to_owned(), false));
    }
    let table = item.as_table_like().ok_or(SHAPE)?;
    let known = ["backend", "strip"];
    if let Some((key, _)) = table.iter().find(|(key, _)| !known.contains(key)) {
        return Err(format!(
            "unknown key `{key}`: its table may have `backend` and `strip`, and a prefix with a dot stands in quotes"
        ));
    }
    let url = table.get("backend").and_then(Item::as_str).ok_or(SHAPE)?;
    let strip = match table.get("strip") {
        Some(strip) => strip.as_bool().ok_or("`strip` must be true or false")?,
        None => false,
    };
    Ok((url.to_owned(), strip))
}

type Span = Option<std::ops::Range<usize>>;

/// The texts of one key's value, as the command line would give them.
fn texts(option: &Opt, item: &Item) -> Result<Vec<(String, Span)>, (Span, String)> {
    let wrong = |item_span: Span, kind: &str, example: String| {
        Err((
            item_span,
            format!("must be {kind}, such as {} = {example}", option.name),
        ))
    };
    let value = item.as_value();
    let one = |text: String| Ok(vec![(text, item.span())]);
    match (&option.kind, value) {
        (Kind::Switch(_), Some(Value::Boolean(value))) => one(value.value().to_string()),
        (Kind::Switch(_), _) => wrong(item.span(), "true or false", option.example_in_file()),
        (Kind::Number(_), Some(Value::Integer(value))) => one(value.value().to_string()),
        (Kind::Number(_) | Kind::Text { .. }, Some(Value::String(value))) => {
            one(value.value().clone())
        }
        (
            Kind::Text {
                or_number: true, ..
            },
            Some(Value::Integer(value)),
        ) => one(value.value().to_string()),
        (Kind::Number(_), _) => wrong(item.span(), "a whole number", option.example_in_file()),
        // Its own words say which.
        (
            Kind::Text {
                set,
                or_number: true,
                ..
            },
            _,
        ) => {
            let what = set(&mut Values::default(), "").err();
            let what = what.unwrap_or_else(|| "must be a whole number or a string".into());
            let example = option.example_in_file();
            Err((
                item.span(),
                format!("{what}, such as {} = {example}", option.name),
            ))
        }
        (Kind::Text { .. }, _) => wrong(item.span(), "a string", option.example_in_file()),
        // One listener needs no brackets.
        (Kind::List { .. }, Some(Value::String(value))) => one(value.value().clone()),
        (Kind::List { .. }, Some(Value::Array(array))) => {
            let mut texts = Vec::with_capacity(array.len());
            for element in array {
                match element {
                    Value::String(text) => texts.push((text.value().clone(), element.span())),
                    _ => {
                        let example = option.example_in_file();
                        return wrong(element.span(), "an array of strings", example);
                    }
                }
            }
            Ok(texts)
        }
        (Kind::List { .. }, _) => {
            wrong(item.span(), "an array of strings", option.example_in_file())
        }
    }
}

/// The content of a file of at most `bytes_max` bytes. The file may be a pipe, which is waited for,
/// but not for ever.
pub(crate) fn read_file(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let is_pipe = file.metadata()?.file_type().is_fifo();
    let (mut bytes, mut part) = (Vec::new(), [0; 16 << 10]);
    loop {
        if is_pipe {
            wait_for_bytes(&file)?;
        }
        match (&file).read(&mut part) {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if bytes.len() as u64 > bytes_max {
            return Err(io::Error::other(format!(
                "it has more than {bytes_max} bytes"
            )));
        }
    }
}

/// Waits until a pipe has bytes, or its writer is gone.
fn wait_for_bytes(pipe: &File) -> io::Result<()> {
    let limit = Timespec {
        tv_sec: PIPE_SECONDS_MAX,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(pipe, PollFlags::IN)];
    match poll(&mut fds, Some(&limit)) {
        Ok(0) => Err(io::Error::other(format!(
            "it is a pipe, and nothing was written to it for {PIPE_SECONDS_MAX} seconds"
        ))),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What to do about a variable that is not read.
fn unread_variable(name: &str, rest: &str) -> String {
    let name = name.escape_debug();
    let meant = did_you_mean(rest, OPTIONS.iter().map(|option| option.name));
    let meant = meant.and_then(find);
    match meant.map(|option| (option.name, option.variable)) {
        Some((_, Some(variable))) => {
            format!("the environment variable {name} is not read: did you mean {variable}?")
        }
        Some((option, None)) => format!(
            "the environment variable {name} is not read: say --{option} on the command line, or \
             `{option}` in the file"
        ),
        None => {
            let read = OPTIONS.iter().filter_map(|option| option.variable);
            let read = read.collect::<Vec<_>>().join(", ");
            format!("the environment variable {name} is not read; those that are: {read}")
        }
    }
}

fn unknown(name: &str, item: &Item) -> String {
    if item.is_table_like() || item.is_array_of_tables() {
        let inner = item.as_table_like().and_then(|table| {
            table
                .iter()
                .map(|(key, _)| key)
                .find(|key| find(key).is_some())
        });
        return match inner {
            Some(key) => {
                format!(
                    "only pools are sections, [pool.NAME]: write `{key}` above, without [{name}]"
                )
            }
            None => format!("unknown section [{name}]: only pools are sections, [pool.NAME]"),
        };
    }
    match did_you_mean(name, OPTIONS.iter().map(|option| option.name)) {
        Some(meant) => format!("unknown key `{name}`: did you mean `{meant}`?"),
        None => {
            format!("unknown key `{name}`: `respool serve --help` lists all that a file may have")
        }
    }
}

fn unknown_in_pool(pool: &str, key: &str) -> String {
    let own = OPTIONS.iter().filter(|option| option.per_pool);
    let own: Vec<&str> = own.map(|option| option.name).collect();
    let known = ["listen", "backend", "prefixes"].into_iter();
    match did_you_mean(key, known.chain(own.iter().copied())) {
        _ if OF_ONE.contains(&key) => {
            format!(
                "`{key}` is not for pools: one has `listen` and `backend`, with the password in its URL"
            )
        }
        _ if find(key).is_some() => {
            format!(
                "`{key}` is for all pools: write it above the first of them, outside of [pool.{pool}]"
            )
        }
        Some(meant) => format!("unknown key `{key}` in [pool.{pool}]: did you mean `{meant}`?"),
        None => format!(
            "unknown key `{key}` in [pool.{pool}]: it may have `listen`, `backend`, `prefixes`, `{}`",
            own.join("`, `")
        ),
    }
}

/// Line and column, from 1, of the byte at `offset`.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    (line, before[line_start..].chars().count() + 1)
}

impl Opt {
    /// The example as the file takes it.
    pub(crate) fn example_in_file(&self) -> String {
        self.in_file(&[self.example.to_owned()])
    }

    /// Texts as the file takes them.
    pub(crate) fn in_file(&self, texts: &[String]) -> String {
        let quoted = |text: &String| match is_plain(text) {
            true => Value::from(text.as_str()).to_string(),
            false => plain_toml(text),
        };
        let bare = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match (&self.kind, texts) {
            (Kind::List { .. }, texts) => {
                format!(
                    "[{}]",
                    texts.iter().map(quoted).collect::<Vec<_>>().join(", ")
                )
            }
            (Kind::Switch(_), [text]) => text.clone(),
            (
                Kind::Number(_)
                | Kind::Text {
                    or_number: true, ..
                },
                [text],
            ) if bare(text) => text.clone(),
            (_, texts) => texts.iter().map(quoted).collect(),
        }
    }
}

/// A name is given once in the table.
impl PartialEq for Opt {
    fn eq(&self, other: &Opt) -> bool {
        self.name == other.name
    }
}

impl Eq for Opt {}

impl std::fmt::Debug for Opt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Vec<(&'static str, Vec<String>)>, Vec<String>) {
        let mut raw = RawConfig::default();
        raw.add_toml("r.toml", text);
        let given = raw.given.into_iter().map(|given| {
            let texts = given.texts.into_iter().map(|(text, _)| text).collect();
            (given.option.name, texts)
        });
        (
            given.collect(),
            raw.problems.iter().map(Problem::to_string).collect(),
        )
    }

    #[test]
    fn every_type_of_value_is_read_as_the_command_line_would_give_it() {
        let (given, problems) = read(
            "listen = [\":1\", \"unix:/a\"]\nbackend = \"redis://h\"\nthreads = 2\nhold = false\n\
             max-delay-us = 1_000\nrequest-timeout-ms = \"2s\"\nuser = \"a:b\"\n",
        );
        assert_eq!(problems, Vec::<String>::new());
        let expected: Vec<(&str, Vec<String>)> = [
            ("listen", [":1", "unix:/a"].as_slice()),
            ("backend", &["redis://h"]),
            ("threads", &["2"]),
            ("hold", &["false"]),
            ("max-delay-us", &["1000"]),
            ("request-timeout-ms", &["2s"]),
            ("user", &["a:b"]),
        ]
        .iter()
        .map(|(name, texts)| (*name, texts.iter().map(|text| (*text).to_owned()).collect()))
        .collect();
        assert_eq!(given, expected);
    }

    #[test]
    fn what_a_file_may_not_have_is_refused_with_its_place_and_what_was_meant() {
        for (text, problem) in [
            (
                "\n\n  sesions-max = 1",
                "r.toml:3:3: unknown key `sesions-max`: did you mean `sessions-max`?",
            ),
            (
                "max_delay_us = 1",
                "r.toml:1:1: unknown key `max_delay_us`: did you mean `max-delay-us`?",
            ),
            (
                "tls-cert = 1",
                "r.toml:1:1: unknown key `tls-cert`: `respool serve --help` lists all that a file \
                 may have",
            ),
            (
                "[limits]\nsessions-max = 1",
                "r.toml:1:2: only pools are sections, [pool.NAME]: write `sessions-max` above, \
                 without [limits]",
            ),
            (
                "[tls]\na = 1",
                "r.toml:1:2: unknown section [tls]: only pools are sections, [pool.NAME]",
            ),
            (
                "[[tls]]\na = 1",
                "r.toml:1:3: unknown section [tls]: only pools are sections, [pool.NAME]",
            ),
            (
                "threads = 1\nthreads = 2",
                "r.toml:2:1: is not TOML: duplicate key",
            ),
            (
                "[pool.a]\nlisten = ':1'\n[pool.a]",
                "r.toml:3:7: is not TOML: duplicate key",
            ),
            (
                "pool = []",
                "r.toml:1:1: pool: is empty: a pool is a table, [pool.NAME]",
            ),
            (
                "[pool]",
                "r.toml:1:2: pool: is empty: a pool is a table, [pool.NAME]",
            ),
            (
                "[pool]\na = 'redis://h'",
                "r.toml:2:5: pool: must be a table: [pool.a], and its keys below",
            ),
            (
                "[[pool]]\nname = 'a'",
                "r.toml:1:3: pool: a pool has its name in single brackets: [pool.NAME]",
            ),
            (
                "[pool.a]\nlisten = 6380",
                "r.toml:2:10: pool.a.listen: must be an array of strings",
            ),
            (
                "[pool.a]\nlisten = []",
                "r.toml:2:10: pool.a.listen: is empty: clients need",
            ),
            (
                "[pool.a]\n\n  bakcend = 'redis://h'",
                "r.toml:3:3: unknown key `bakcend` in [pool.a]: did you mean `backend`?",
            ),
            (
                "[pool.a]\nweight = 1",
                "r.toml:2:1: unknown key `weight` in [pool.a]: it may have `listen`, `backend`, `prefixes`, `announce`, `cluster-shows`, `address-map`, \
                 `hold`, \
                 `max-delay-us`, `fuse`, `fused-keys-max`, `collapse`",
            ),
            (
                "[pool.a]\nfused = true",
                "r.toml:2:1: unknown key `fused` in [pool.a]: did you mean `fuse`?",
            ),
            (
                "[pool.a]\nfuse = 'no'",
                "r.toml:2:8: pool.a.fuse: must be true or false, such as fuse = false",
            ),
            (
                "[pool.a]\nmax-delay-us = true",
                "r.toml:2:16: pool.a.max-delay-us: must be a whole number, such as max-delay-us = 500",
            ),
            (
                "[pool.a]\nprefixes = 'b:'",
                "r.toml:2:12: pool: must be a table: [pool.a.prefixes]",
            ),
            (
                "[pool.a.prefixes]\nb = 6379",
                "r.toml:2:5: pool.a.prefixes: `b`: must be a string",
            ),
            (
                "[pool.a.prefixes]\nb: = 'redis://h'",
                "r.toml:2:2: is not TOML: invalid unquoted key, expected letters, numbers, `-`, `_`: a prefix, or another key with more than \
                 letters, digits, - and _, stands in quotes",
            ),
            (
                "[pool.a.prefixes]\nb.c = 'redis://h'",
                "r.toml:2:1: pool.a.prefixes: `b`: unknown key `c`: its table may have `backend` and `strip`, and a prefix with a dot stands in quotes",
            ),
            (
                "[pool.a.prefixes]\nb = { strip = true }",
                "r.toml:2:5: pool.a.prefixes: `b`: must be a string",
            ),
            (
                "[pool.a.prefixes]\nb = { backend = 'redis://h', strip = 1 }",
                "r.toml:2:5: pool.a.prefixes: `b`: `strip` must be true or false",
            ),
            (
                "[pool.a.prefixes]\nb = { backend = 'redis://h', stripe = true }",
                "r.toml:2:5: pool.a.prefixes: `b`: unknown key `stripe`: its table may have `backend` and `strip`, and a prefix with a dot stands in quotes",
            ),
            (
                "[pool.a]\nthreads = 1",
                "r.toml:2:1: `threads` is for all pools: write it above the first of them, \
                 outside of [pool.a]",
            ),
            (
                "[pool.a]\nbackend-password = 'b'",
                "r.toml:2:1: `backend-password` is not for pools: one has `listen` and `backend`, \
                 with the password in its URL",
            ),
            ("threads = ", "r.toml:1:11: is not TOML: "),
            ("é = 1", "r.toml:1:1: is not TOML: "),
            (
                "hold = 1",
                "r.toml:1:8: hold: must be true or false, such as hold = false",
            ),
            (
                "sessions-max = true",
                "r.toml:1:16: sessions-max: must be a whole number, such as sessions-max = 50000",
            ),
            (
                "backend = 6379",
                "r.toml:1:11: backend: must be a string, such as backend = \
                 \"redis://10.0.0.7:6379/0\"",
            ),
            (
                "listen = 6379",
                "r.toml:1:10: listen: must be an array of strings, such as listen = \
                 [\"0.0.0.0:6380\"]",
            ),
            (
                "listen = [\":1\", 2]",
                "r.toml:1:17: listen: must be an array of strings, such as listen = \
                 [\"0.0.0.0:6380\"]",
            ),
        ] {
            let (given, problems) = read(text);
            assert_eq!(problems.len(), 1, "{text}: {problems:?}");
            assert!(problems[0].starts_with(problem), "{text}: {}", problems[0]);
            let read = given.iter().any(|(_, texts)| !texts.is_empty());
            assert!(!read, "{text}: {given:?}");
        }
    }

    #[test]
    fn columns_count_characters() {
        assert_eq!(position("é = ä\nßx", 0), (1, 1));
        assert_eq!(position("é = ä\nßx", 5), (1, 5));
        assert_eq!(position("é = ä\nßx", 10), (2, 2));
        assert_eq!(position("", 7), (1, 1));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let mut raw = RawConfig::default();
        raw.add_file("/nonexistent/respool.toml");
        let problem = raw.problems[0].to_string();
        assert!(
            problem.starts_with("/nonexistent/respool.toml: cannot be read: "),
            "{problem}"
        );
    }
}

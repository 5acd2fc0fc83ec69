//! Reads the options of the TOML file.

use toml_edit::{Document, Item, Value};

use super::{Given, RawConfig};
use crate::options::{
    OPTIONS, Opt, OptionKind, Values, both_names, find, find_by_any_name, renamed_notice,
    switch_values, value_by_name,
};
use crate::pools::{PoolOption, PoolTable, PrefixRule, UNNAMED_POOL_OPTIONS};
use crate::problem::{ConfigPlace, Problem, did_you_mean};

impl RawConfig {
    /// Adds the text of a file.
    pub fn add_toml(&mut self, path: &str, text: &str) {
        let place = |span: Option<std::ops::Range<usize>>| {
            let (line, column) = position(text, span.map_or(0, |span| span.start));
            ConfigPlace::File {
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
                        ": a key with more than letters, digits, - and _, such as a prefix, stands in \
                         quotes"
                    }
                    false => "",
                };
                let what = format!("is not TOML: {message}{hint}");
                self.problems.push(Problem::at(place(error.span()), what));
                self.is_file_unknown = true;
                return;
            }
        };
        let table = document.as_table();
        for (name, item) in table {
            let key = place(table.key(name).and_then(|key| key.span()));
            let Some((option, name)) = find_by_any_name(name) else {
                self.problems.push(Problem::at(key, unknown(name, item)));
                continue;
            };
            self.check_name(option, name, &key);
            if name == "pool" && item.is_array_of_tables() {
                let what = "the table of a pool has single brackets: [pool.NAME]";
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
                    name,
                    place: key,
                    texts: Vec::new(),
                });
                continue;
            }
            match texts((option, name), item) {
                Ok(texts) => {
                    let texts = texts.into_iter().map(|(text, span)| (text, place(span)));
                    let texts = texts.collect();
                    self.given.push(Given {
                        option,
                        name,
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

    /// Adds `[pool.NAME]`. `place_at` makes the place of a span of the file.
    fn add_pool(
        &mut self,
        name: &str,
        place: ConfigPlace,
        item: &Item,
        place_at: &impl Fn(ByteSpan) -> ConfigPlace,
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
            tls_listen: None,
            backend: None,
            options: Vec::new(),
            prefixes: Vec::new(),
        };
        for (part, item) in table.iter() {
            let key = || place_at(table.key(part).and_then(|key| key.span()));
            match part {
                "listen" => pool.listen = Some(self.pool_texts(name, part, item, place_at)),
                "tls-listen" => pool.tls_listen = Some(self.pool_texts(name, part, item, place_at)),
                "backend" => pool.backend = Some(self.pool_texts(name, part, item, place_at)),
                "prefixes" => self.add_prefixes(&mut pool, item, place_at),
                _ => match find_by_any_name(part).filter(|(option, _)| option.per_pool) {
                    Some(named) => {
                        self.check_name_in_pool(&pool, named, &key());
                        let own = self.pool_options(name, named, item, (key(), place_at));
                        pool.options.extend(own);
                    }
                    None => self
                        .problems
                        .push(Problem::at(key(), unknown_in_pool(name, part))),
                },
            }
        }
        self.pools.push(pool);
    }

    /// The texts of `listen`, `tls-listen` or `backend` of a pool; none after a problem.
    fn pool_texts(
        &mut self,
        pool: &str,
        part: &str,
        item: &Item,
        place_at: &impl Fn(ByteSpan) -> ConfigPlace,
    ) -> Vec<(String, ConfigPlace)> {
        let option = find(part).expect("parts of a pool are options");
        let (span, what) = match texts((option, part), item) {
            Ok(texts) if texts.is_empty() => {
                let what = "is empty: clients need at least one address";
                (item.span(), what.to_owned())
            }
            Ok(texts) => {
                let texts = texts.into_iter();
                return texts.map(|(text, span)| (text, place_at(span))).collect();
            }
            Err(wrong) => wrong,
        };
        let part = format!("pool.{pool}.{part}");
        self.problems
            .push(Problem::of_option(&part, &place_at(span), what));
        Vec::new()
    }

    /// Warns of an old name in the table of a pool. An old and a new name are a problem.
    fn check_name_in_pool(
        &mut self,
        pool: &PoolTable,
        (option, name): (&'static Opt, &'static str),
        place: &ConfigPlace,
    ) {
        let old = option.old_name().map(|renamed| renamed.old);
        let Some(old) = old else { return };
        let path = format!("pool.{}.{name}", pool.name);
        if pool.options.iter().any(|own| own.option == option) {
            let what = both_names(option, old);
            self.problems.push(Problem::of_option(&path, place, what));
        } else if name == old {
            let warning = Problem::of_option(&path, place, renamed_notice(option, old));
            self.warnings.push(warning.to_string());
        }
    }

    /// The texts of an option of a pool. Its key is at `key`. There are none after a problem.
    fn pool_options(
        &mut self,
        pool: &str,
        (option, name): (&'static Opt, &'static str),
        item: &Item,
        (key, place_at): (ConfigPlace, &impl Fn(ByteSpan) -> ConfigPlace),
    ) -> Vec<PoolOption> {
        let (place, what) = match texts((option, name), item) {
            Ok(texts) if texts.is_empty() => {
                let what = "is empty: write an entry, or remove it";
                (key, what.to_owned())
            }
            Ok(texts) => {
                let own = |(text, _)| PoolOption {
                    option,
                    text,
                    place: key.clone(),
                };
                return texts.into_iter().map(own).collect();
            }
            Err((span, what)) => (place_at(span), what),
        };
        let part = format!("pool.{pool}.{name}");
        self.problems.push(Problem::of_option(&part, &place, what));
        Vec::new()
    }

    /// Adds `[pool.NAME.prefixes]`.
    fn add_prefixes(
        &mut self,
        pool: &mut PoolTable,
        item: &Item,
        place_at: &impl Fn(ByteSpan) -> ConfigPlace,
    ) {
        let Some(prefixes) = item.as_table_like() else {
            let what = format!("must be a table: [pool.{}.prefixes]", pool.name);
            self.problems
                .push(Problem::of_option("pool", &place_at(item.span()), what));
            return;
        };
        for (prefix, item) in prefixes.iter() {
            let place = place_at(item.span());
            match prefix_value(item) {
                Ok((url, strip)) => pool.prefixes.push(PrefixRule {
                    prefix: prefix.to_owned(),
                    url,
                    strip,
                    place,
                }),
                Err(what) => {
                    let part = format!("pool.{}.prefixes", pool.name);
                    let what = format!("`{prefix}`: {what}");
                    self.problems.push(Problem::of_option(&part, &place, what));
                }
            }
        }
    }
}

/// Parses the value of a prefix: a URL, or a table with the URL and `strip`.
fn prefix_value(item: &Item) -> Result<(String, bool), String> {
    const SHAPE: &str = "must be a string, such as \"redis://10.0.0.8\", or \
                         { backend = \"redis://10.0.0.8\", strip = true }";
    if let Some(url) = item.as_str() {
        return Ok((url.to_owned(), false));
    }
    let table = item.as_table_like().ok_or(SHAPE)?;
    let known = ["backend", "strip"];
    if let Some((key, _)) = table.iter().find(|(key, _)| !known.contains(key)) {
        return Err(format!(
            "unknown key `{key}`: the table of a prefix may have `backend` and `strip`, and a prefix \
             with a dot stands in quotes"
        ));
    }
    let url = table.get("backend").and_then(Item::as_str).ok_or(SHAPE)?;
    let strip = match table.get("strip") {
        Some(strip) => strip.as_bool().ok_or("`strip` must be true or false")?,
        None => false,
    };
    Ok((url.to_owned(), strip))
}

type ByteSpan = Option<std::ops::Range<usize>>;

/// The texts of the value of an option, as the command line would give them under its new name.
fn texts(
    (option, name): (&Opt, &str),
    item: &Item,
) -> Result<Vec<(String, ByteSpan)>, (ByteSpan, String)> {
    let wrong = |item_span: ByteSpan, kind: &str, example: String| {
        Err((
            item_span,
            format!("must be {kind}, such as {name} = {example}"),
        ))
    };
    let value = item.as_value();
    let one = |text: String| Ok(vec![(text, item.span())]);
    if switch_values(name).is_some() {
        return match value {
            Some(Value::Boolean(value)) => value_by_name(name, value.value().to_string())
                .map(|text| vec![(text, item.span())])
                .map_err(|what| (item.span(), what.to_owned())),
            _ => wrong(item.span(), "true or false", "false".into()),
        };
    }
    match (&option.kind, value) {
        (OptionKind::Switch(_), Some(Value::Boolean(value))) => one(value.value().to_string()),
        (OptionKind::Switch(_), _) => wrong(item.span(), "true or false", option.example_in_file()),
        (OptionKind::Number(_), Some(Value::Integer(value))) => one(value.value().to_string()),
        (OptionKind::Number(_) | OptionKind::Text { .. }, Some(Value::String(value))) => {
            one(value.value().clone())
        }
        (
            OptionKind::Text {
                or_number: true, ..
            },
            Some(Value::Integer(value)),
        ) => one(value.value().to_string()),
        (OptionKind::Number(_), _) => {
            wrong(item.span(), "a whole number", option.example_in_file())
        }
        // The parser of the option says which words it takes.
        (
            OptionKind::Text {
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
        (OptionKind::Text { .. }, _) => wrong(item.span(), "a string", option.example_in_file()),
        // A list of one element needs no brackets.
        (OptionKind::List { .. }, Some(Value::String(value))) => one(value.value().clone()),
        (OptionKind::List { .. }, Some(Value::Array(array))) => {
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
        (OptionKind::List { .. }, _) => {
            wrong(item.span(), "an array of strings", option.example_in_file())
        }
    }
}

/// The problem of an unknown key or section of the file.
fn unknown(name: &str, item: &Item) -> String {
    if item.is_table_like() || item.is_array_of_tables() {
        let inner = item.as_table_like().and_then(|table| {
            table
                .iter()
                .map(|(key, _)| key)
                .find(|key| find_by_any_name(key).is_some())
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
            format!("unknown key `{name}`: `respool serve --help` lists all keys")
        }
    }
}

/// The problem of a key that the table of a pool may not have.
fn unknown_in_pool(pool: &str, key: &str) -> String {
    let own = OPTIONS.iter().filter(|option| option.per_pool);
    let own: Vec<&str> = own.map(|option| option.name).collect();
    let known = ["listen", "tls-listen", "backend", "prefixes"].into_iter();
    match did_you_mean(key, known.chain(own.iter().copied())) {
        _ if UNNAMED_POOL_OPTIONS.contains(&key) => {
            format!(
                "`{key}` is not for pools: a pool has `listen` and `backend`, with the password in \
                 its URL"
            )
        }
        _ if find_by_any_name(key).is_some() => {
            format!(
                "`{key}` is for all pools: write it above the first pool, outside of [pool.{pool}]"
            )
        }
        Some(meant) => format!("unknown key `{key}` in [pool.{pool}]: did you mean `{meant}`?"),
        None => format!(
            "unknown key `{key}` in [pool.{pool}]: a pool may have `listen`, `tls-listen`, `backend`, \
             `prefixes`, `{}`",
            own.join("`, `")
        ),
    }
}

/// Line and column of the byte at `offset`, both from 1.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    (line, before[line_start..].chars().count() + 1)
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
    fn values_of_the_file_become_texts_of_the_command_line() {
        let (given, problems) = read(
            "listen = [\":1\", \"unix:/a\"]\nbackend = \"redis://h\"\nthreads = 2\nfuse = false\n\
             max-delay-us = 1_000\nrequest-timeout-ms = \"2s\"\nuser = \"a:b\"\n",
        );
        assert_eq!(problems, Vec::<String>::new());
        let expected: Vec<(&str, Vec<String>)> = [
            ("listen", [":1", "unix:/a"].as_slice()),
            ("backend", &["redis://h"]),
            ("threads", &["2"]),
            ("fuse", &["false"]),
            ("max-delay-us", &["1000"]),
            ("request-timeout-ms", &["2s"]),
            ("user", &["a:b"]),
        ]
        .iter()
        .map(|(name, texts)| (*name, texts.iter().map(|text| (*text).to_owned()).collect()))
        .collect();
        assert_eq!(given, expected);
    }

    /// A mistake in the file is a problem with its place and a remedy.
    #[test]
    fn mistake_in_the_file_has_a_place_and_a_remedy() {
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
                "quux = 1",
                "r.toml:1:1: unknown key `quux`: `respool serve --help` lists all keys",
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
                "r.toml:1:3: pool: the table of a pool has single brackets: [pool.NAME]",
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
                "r.toml:2:1: unknown key `weight` in [pool.a]: a pool may have `listen`, `tls-listen`, \
                 `backend`, `prefixes`, `announce`, `cluster-shows`, `address-map`, \
                 `ready-requires-server`, `server-tls-ca`, `server-tls-cert`, `server-tls-key`, \
                 `server-tls-name`, `server-tls-verify`, `flush-rule`, \
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
                "r.toml:2:2: is not TOML: invalid unquoted key, expected letters, numbers, `-`, \
                 `_`: a key with more than letters, digits, - and _, such as a prefix, stands in quotes",
            ),
            (
                "[pool.a.prefixes]\nb.c = 'redis://h'",
                "r.toml:2:1: pool.a.prefixes: `b`: unknown key `c`: the table of a prefix may \
                 have `backend` and `strip`, and a prefix with a dot stands in quotes",
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
                "r.toml:2:5: pool.a.prefixes: `b`: unknown key `stripe`: the table of a \
                 prefix may have `backend` and `strip`, and a prefix with a dot stands in quotes",
            ),
            (
                "[pool.a]\nthreads = 1",
                "r.toml:2:1: `threads` is for all pools: write it above the first pool, \
                 outside of [pool.a]",
            ),
            (
                "[pool.a]\nbackend-password = 'b'",
                "r.toml:2:1: `backend-password` is not for pools: a pool has `listen` and `backend`, \
                 with the password in its URL",
            ),
            ("threads = ", "r.toml:1:11: is not TOML: "),
            ("é = 1", "r.toml:1:1: is not TOML: "),
            (
                "fuse = 1",
                "r.toml:1:8: fuse: must be true or false, such as fuse = false",
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
}

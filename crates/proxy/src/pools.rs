//! Several pools in one process, as the file and the command line name them:
//!
//! ```text
//!   [pool.pages]                              --pool pages=127.0.0.1:6381=redis://10.0.0.8
//!   listen = ["127.0.0.1:6381"]
//!   backend = "redis://10.0.0.8"
//! ```

use std::fmt;

use respool_engine::settings::Address;

use crate::address::{BackendUrl, parse_backend, parse_listener};
use crate::options::{Opt, Values};
use crate::plain::{is_plain, plain_toml};
use crate::problem::{Place, Problem};

/// Bytes of a pool's name: it stands in every line of the log and of INFO that is about the pool.
pub(crate) const POOL_NAME_BYTES_MAX: usize = 64;

/// The most pools: each has links of its own in every worker.
pub(crate) const POOLS_MAX: usize = 256;

/// The most ways in which the keys of one pool may begin: each has servers of its own.
pub(crate) const PREFIXES_MAX: usize = 64;

/// The options of the form with one pool: where pools have names, each has its own.
pub(crate) const OF_ONE: [&str; 7] = [
    "listen",
    "backend",
    "spawn",
    "spawn-program",
    "spawn-memory-bytes",
    "backend-password",
    "backend-password-file",
];

/// One pool, each part with the place where it was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedPool {
    pub(crate) name: String,
    pub(crate) place: Place,
    /// Where clients reach it.
    pub(crate) listen: Vec<(Address, Place)>,
    /// Its servers; `None` only where a problem says why.
    pub(crate) backend: Option<(BackendUrl, Place)>,
    /// What it has other than all pools; each can be read.
    pub(crate) options: Vec<PoolOption>,
    /// How some keys begin, and the servers that those are at.
    pub(crate) prefixes: Vec<Prefix<BackendUrl>>,
}

/// One of the options that a pool may have for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolOption {
    pub(crate) option: &'static Opt,
    pub(crate) text: String,
    pub(crate) place: Place,
}

/// How some keys begin, and where those are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prefix<U> {
    pub(crate) prefix: String,
    pub(crate) url: U,
    /// Those servers see the keys without it.
    pub(crate) strip: bool,
    pub(crate) place: Place,
}

/// One pool as a table of the file has it. A part is `None` if it is missing, and empty if it is
/// wrong and that was told.
#[derive(Debug)]
pub(crate) struct PoolTable {
    pub(crate) name: String,
    pub(crate) place: Place,
    pub(crate) listen: Option<Vec<(String, Place)>>,
    pub(crate) backend: Option<Vec<(String, Place)>>,
    pub(crate) options: Vec<PoolOption>,
    pub(crate) prefixes: Vec<Prefix<String>>,
}

impl NamedPool {
    /// Reads `NAME=LISTEN,LISTEN=URL`. What is wrong is told without repeating it: the URL may hold
    /// a password.
    pub(crate) fn parse(text: &str) -> Result<NamedPool, String> {
        let parts = text.split_once('=');
        let parts = parts.and_then(|(name, rest)| Some((name, rest.split_once('=')?)));
        let Some((name, (listen, url))) = parts else {
            return Err("must be NAME=LISTEN=URL, such as pages=:6381=redis://10.0.0.8".into());
        };
        check_name(name)?;
        let wrong = |what: String| format!("`{name}`: {what}");
        let listen = listen.split(',').map(|text| {
            let address = parse_listener(text).map_err(wrong)?;
            Ok((address, Place::Default))
        });
        Ok(NamedPool {
            name: name.into(),
            place: Place::Default,
            listen: listen.collect::<Result<_, String>>()?,
            backend: Some((parse_backend(url).map_err(wrong)?, Place::Default)),
            options: Vec::new(),
            prefixes: Vec::new(),
        })
    }

    /// All of it was said there.
    pub(crate) fn set_place(&mut self, place: &Place) {
        let listen = self.listen.iter_mut().map(|(_, place)| place);
        let backend = self.backend.iter_mut().map(|(_, place)| place);
        for part in listen.chain(backend).chain([&mut self.place]) {
            *part = place.clone();
        }
    }

    /// Makes sense of a table, as far as it has any.
    pub(crate) fn read(table: PoolTable, problems: &mut Vec<Problem>) -> NamedPool {
        let PoolTable { name, place, .. } = table;
        if let Err(what) = check_name(&name) {
            problems.push(Problem::of_option("pool", &place, what));
        }
        let mut part = |part: &str, texts: Option<Vec<(String, Place)>>, example: &str| {
            if texts.is_none() {
                let what = format!("has no `{part}`: write one below, such as {part} = {example}");
                problems.push(about(Some(&name), "", &place, what));
            }
            texts.unwrap_or_default()
        };
        let listen = part("listen", table.listen, "[\"127.0.0.1:6381\"]");
        let backend = part("backend", table.backend, "\"redis://10.0.0.8\"");
        let mut wrong = |part: &str, place: &Place, what: String| {
            problems.push(about(Some(&name), part, place, what));
        };
        let listen = listen.into_iter().filter_map(|(text, place)| {
            let address = parse_listener(&text).map_err(|what| wrong("listen", &place, what));
            address.ok().map(|address| (address, place))
        });
        let listen = listen.collect();
        let backend = backend.into_iter().find_map(|(text, place)| {
            let url = parse_backend(&text).map_err(|what| wrong("backend", &place, what));
            url.ok().map(|url| (url, place))
        });
        let mut options = table.options;
        options.retain(
            |PoolOption {
                 option,
                 text,
                 place,
             }| {
                let read = option.set(&mut Values::default(), text);
                read.map_err(|what| wrong(option.name, place, what)).is_ok()
            },
        );
        let prefixes = table.prefixes.into_iter().filter_map(|part| {
            let Prefix {
                prefix,
                url,
                strip,
                place,
            } = part;
            let what = |what: String| wrong("prefixes", &place, format!("`{prefix}`: {what}"));
            let url = parse_backend(&url).map_err(what).ok()?;
            Some(Prefix {
                prefix,
                url,
                strip,
                place,
            })
        });
        NamedPool {
            prefixes: prefixes.collect(),
            options,
            name,
            place,
            listen,
            backend,
        }
    }
}

impl NamedPool {
    /// A table that says the same, each line with the place that it comes from, without the
    /// password; `counts`: what of its own is in use.
    pub(crate) fn to_toml(&self, counts: impl Fn(&PoolOption) -> bool) -> String {
        let quoted = |text: String| match is_plain(&text) {
            true => toml_edit::Value::from(text).to_string(),
            false => plain_toml(&text),
        };
        let mut lines = format!("\n[pool.{}]  # {}\n", self.name, self.place);
        let place = self.listen.first().map_or(&self.place, |(_, place)| place);
        let listen: Vec<_> = self
            .listen
            .iter()
            .map(|(at, _)| quoted(at.to_string()))
            .collect();
        lines.push_str(&format!("listen = [{}]  # {place}\n", listen.join(", ")));
        if let Some((url, place)) = &self.backend {
            lines.push_str(&format!(
                "backend = {}  # {place}\n",
                quoted(url.to_string())
            ));
        }
        // The texts of a list stand one behind the other.
        for of_one in self.options.chunk_by(|one, next| one.option == next.option) {
            let own = &of_one[0];
            let texts: Vec<String> = of_one.iter().map(|own| own.text.clone()).collect();
            let value = own.option.in_file(&texts);
            let line = format!("{} = {value}  # {}", own.option.name, own.place);
            lines.push_str(&match counts(own) {
                true => format!("{line}\n"),
                false => format!("# {line}, not in use\n"),
            });
        }
        for (index, part) in self.prefixes.iter().enumerate() {
            if index == 0 {
                lines.push_str(&format!("\n[pool.{}.prefixes]\n", self.name));
            }
            let (prefix, url, place) = (
                match is_plain(&part.prefix) {
                    true => toml_edit::Key::new(&part.prefix).to_string(),
                    false => plain_toml(&part.prefix),
                },
                quoted(part.url.to_string()),
                &part.place,
            );
            lines.push_str(&match part.strip {
                false => format!("{prefix} = {url}  # {place}\n"),
                true => format!("{prefix} = {{ backend = {url}, strip = true }}  # {place}\n"),
            });
        }
        lines
    }
}

/// As the command line takes it, without the password; it has no words for prefixes.
impl fmt::Display for NamedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listen: Vec<_> = self.listen.iter().map(|(at, _)| at.to_string()).collect();
        write!(f, "{}={}=", self.name, listen.join(","))?;
        match &self.backend {
            Some((url, _)) => write!(f, "{url}"),
            None => Ok(()),
        }
    }
}

/// Something about a part of a pool, or of the one pool that has no name; no part: about the whole.
pub(crate) fn about(
    pool: Option<&str>,
    part: &str,
    place: &Place,
    what: impl fmt::Display,
) -> Problem {
    match (pool, part) {
        (None, part) => Problem::of_option(part, place, what),
        (Some(pool), _) if *place == Place::Arguments => {
            Problem::of_option("pool", place, format!("`{pool}`: {what}"))
        }
        (Some(pool), "") => Problem::of_option(&format!("pool.{pool}"), place, what),
        (Some(pool), part) => Problem::of_option(&format!("pool.{pool}.{part}"), place, what),
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if name.is_empty() || name.len() > POOL_NAME_BYTES_MAX || !name.bytes().all(is_plain) {
        return Err(format!(
            "a pool's name has from 1 to {POOL_NAME_BYTES_MAX} letters, digits, `-` and `_`"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_shown_as_it_is_read_but_for_its_password() {
        for text in [
            "pages=0.0.0.0:6381=redis://10.0.0.8:6379/0",
            "a-1_B=127.0.0.1:1,unix:/run/a.sock=redis-sharded://h:1,h:2/0?hash=murmur\
             &distribution=ketama&hash-tag=%7B%7D",
            "c=[::1]:1=redis-cluster://h:1,h:2/0",
        ] {
            let pool = NamedPool::parse(text).expect(text);
            assert_eq!(pool.to_string(), text);
        }
        let pool = NamedPool::parse("a=:1=redis://u:SECRET@h").unwrap();
        assert_eq!(pool.to_string(), "a=0.0.0.0:1=redis://u@h:6379/0");
        assert!(!format!("{pool:?}").contains("SECRET"), "{pool:?}");
    }

    #[test]
    fn what_is_no_pool_is_told_why_without_its_text() {
        let long = "a".repeat(65) + "=:1=redis://h";
        for (text, error) in [
            ("SECRET", "must be NAME=LISTEN=URL"),
            ("redis://:SECRET@h", "must be NAME=LISTEN=URL"),
            ("a=SECRET", "must be NAME=LISTEN=URL"),
            ("=:1=redis://h", "a pool's name has"),
            ("a b=:1=redis://h", "a pool's name has"),
            ("a.b=:1=redis://h", "a pool's name has"),
            (long.as_str(), "a pool's name has"),
            ("a==redis://h", "`a`: needs a port"),
            ("a=redis://:SECRET@h=:1", "`a`: a listener is HOST:PORT"),
            ("a=:1,=redis://h", "`a`: needs a port"),
            ("a=:1=SECRET", "`a`: needs a scheme"),
            ("a=:1=redis://SECRET:x", "`a`: the port must be"),
        ] {
            let told = NamedPool::parse(text).expect_err(text);
            assert!(told.starts_with(error), "{text}: {told}");
            assert!(!told.contains("SECRET"), "{told}");
        }
    }
}

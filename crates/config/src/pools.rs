//! Several pools in one process, as the file and the command line have them:
//!
//! ```text
//!   [pool.pages]                              --pool pages=127.0.0.1:6381=redis://10.0.0.8
//!   listen = ["127.0.0.1:6381"]
//!   backend = "redis://10.0.0.8"
//! ```

use std::fmt;

use crate::address::{ListenAt, parse_listener};
use crate::backend::{BackendUrl, parse_backend};
use crate::options::{Opt, Values};
use crate::plain::{is_plain, plain_toml};
use crate::problem::{ConfigPlace, Problem};

/// The most bytes of a pool's name, which every line of the log and of INFO about the pool has.
pub(crate) const POOL_NAME_BYTES_MAX: usize = 64;

/// The most pools. Each has links of its own in every worker.
pub(crate) const POOLS_MAX: usize = 256;

/// The most prefixes of a pool. Each has servers of its own.
pub(crate) const PREFIXES_MAX: usize = 64;

/// The options for the one pool without a name. They exclude named pools.
pub const UNNAMED_POOL_OPTIONS: [&str; 9] = [
    "listen",
    "tls-listen",
    "backend",
    "spawn",
    "spawn-program",
    "spawn-memory-bytes",
    "backend-password",
    "backend-password-file",
    "backend-password-command",
];

/// A named pool; each part has its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedPool {
    pub(crate) name: String,
    pub(crate) place: ConfigPlace,
    /// The listeners.
    pub(crate) listen: Vec<(ListenAt, ConfigPlace)>,
    /// The servers; `None` if a problem says why.
    pub(crate) backend: Option<(BackendUrl, ConfigPlace)>,
    /// Its own values of options. Each text parses.
    pub(crate) options: Vec<PoolOption>,
    /// The prefixes of keys with servers of their own.
    pub(crate) prefixes: Vec<PrefixRule<BackendUrl>>,
}

/// A pool's own value of an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolOption {
    pub(crate) option: &'static Opt,
    pub(crate) text: String,
    pub(crate) place: ConfigPlace,
}

/// A prefix of keys, and their servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PrefixRule<U> {
    pub(crate) prefix: String,
    pub(crate) url: U,
    /// Whether these servers see the keys without the prefix.
    pub(crate) strip: bool,
    pub(crate) place: ConfigPlace,
}

/// The table of a pool in the file. A part is `None` if it is missing. It is empty if it is wrong,
/// which is a problem already.
#[derive(Debug)]
pub struct PoolTable {
    pub(crate) name: String,
    pub(crate) place: ConfigPlace,
    pub(crate) listen: Option<Vec<(String, ConfigPlace)>>,
    pub(crate) tls_listen: Option<Vec<(String, ConfigPlace)>>,
    pub(crate) backend: Option<Vec<(String, ConfigPlace)>>,
    pub(crate) options: Vec<PoolOption>,
    pub(crate) prefixes: Vec<PrefixRule<String>>,
}

impl NamedPool {
    /// Parses `NAME=LISTEN,LISTEN=URL`. The error does not repeat the text, since the URL may have
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
            let listener = ListenAt::parse(text).map_err(wrong)?;
            Ok((listener, ConfigPlace::Default))
        });
        Ok(NamedPool {
            name: name.into(),
            place: ConfigPlace::Default,
            listen: listen.collect::<Result<_, String>>()?,
            backend: Some((parse_backend(url).map_err(wrong)?, ConfigPlace::Default)),
            options: Vec::new(),
            prefixes: Vec::new(),
        })
    }

    /// Gives every part this place.
    pub(crate) fn set_place(&mut self, place: &ConfigPlace) {
        let listen = self.listen.iter_mut().map(|(_, place)| place);
        let backend = self.backend.iter_mut().map(|(_, place)| place);
        for part in listen.chain(backend).chain([&mut self.place]) {
            *part = place.clone();
        }
    }

    /// Parses a table. Wrong parts are left out, and are problems.
    pub(crate) fn read(table: PoolTable, problems: &mut Vec<Problem>) -> NamedPool {
        let PoolTable { name, place, .. } = table;
        if let Err(what) = check_name(&name) {
            problems.push(Problem::of_option("pool", &place, what));
        }
        let mut part = |part: &str, texts: Option<Vec<(String, ConfigPlace)>>, example: &str| {
            if texts.is_none() {
                let what = format!("has no `{part}`: write one below, such as {part} = {example}");
                problems.push(pool_problem(Some(&name), "", &place, what));
            }
            texts.unwrap_or_default()
        };
        // One of the two kinds of listeners is enough.
        let listen = match table.tls_listen {
            Some(_) => table.listen.unwrap_or_default(),
            None => part("listen", table.listen, "[\"127.0.0.1:6381\"]"),
        };
        let plain = listen.into_iter().map(|given| (given, false));
        let tls = table.tls_listen.into_iter().flatten();
        let listen = plain.chain(tls.map(|given| (given, true)));
        let backend = part("backend", table.backend, "\"redis://10.0.0.8\"");
        let mut wrong = |part: &str, place: &ConfigPlace, what: String| {
            problems.push(pool_problem(Some(&name), part, place, what));
        };
        let listen = listen.filter_map(|((text, place), tls)| {
            let part = if tls { "tls-listen" } else { "listen" };
            let address = parse_listener(&text).map_err(|what| wrong(part, &place, what));
            address
                .ok()
                .map(|address| (ListenAt { address, tls }, place))
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
            let PrefixRule {
                prefix,
                url,
                strip,
                place,
            } = part;
            let what = |what: String| wrong("prefixes", &place, format!("`{prefix}`: {what}"));
            let url = parse_backend(&url).map_err(what).ok()?;
            Some(PrefixRule {
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
    /// A table that makes the same pool, without its password. Each line has a comment with its
    /// place. `counts` says whether an option of the pool is in effect.
    pub(crate) fn to_toml(&self, counts: impl Fn(&PoolOption) -> bool) -> String {
        let quoted = |text: String| match is_plain(&text) {
            true => toml_edit::Value::from(text).to_string(),
            false => plain_toml(&text),
        };
        let mut lines = format!("\n[pool.{}]  # {}\n", self.name, self.place);
        for name in ["listen", "tls-listen"] {
            let mut its = self.listen.iter().filter(|(at, _)| at.option() == name);
            let Some((_, place)) = its.clone().next() else {
                continue;
            };
            let listen: Vec<_> = its
                .by_ref()
                .map(|(at, _)| quoted(at.address.to_string()))
                .collect();
            lines.push_str(&format!("{name} = [{}]  # {place}\n", listen.join(", ")));
        }
        if let Some((url, place)) = &self.backend {
            lines.push_str(&format!(
                "backend = {}  # {place}\n",
                quoted(url.to_string())
            ));
        }
        // The texts of a list are neighbours.
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

/// The pool as the command line takes it, without the password and without prefixes.
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

/// A problem of a part of a pool. Without a part, it is about the whole pool; without a pool, about
/// an option.
pub(crate) fn pool_problem(
    pool: Option<&str>,
    part: &str,
    place: &ConfigPlace,
    what: impl fmt::Display,
) -> Problem {
    match (pool, part) {
        (None, part) => Problem::of_option(part, place, what),
        (Some(pool), _) if *place == ConfigPlace::Arguments => {
            Problem::of_option("pool", place, format!("`{pool}`: {what}"))
        }
        (Some(pool), "") => Problem::of_option(&format!("pool.{pool}"), place, what),
        (Some(pool), part) => Problem::of_option(&format!("pool.{pool}.{part}"), place, what),
    }
}

/// Checks the name of a pool.
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
    fn shown_pool_parses_as_itself_without_password() {
        for text in [
            "pages=0.0.0.0:6381=redis://10.0.0.8:6379/0",
            "a-1_B=127.0.0.1:1,unix:/run/a.sock=redis-sharded://h:1,h:2/0?hash=murmur\
             &distribution=ketama&hash-tag=%7B%7D",
            "c=[::1]:1=redis-cluster://h:1,h:2/0",
            "d=[::1]:1,tls:0.0.0.0:2=rediss-cluster://h:1,h:2/0",
        ] {
            let pool = NamedPool::parse(text).expect(text);
            assert_eq!(pool.to_string(), text);
        }
        let pool = NamedPool::parse("a=:1=redis://u:SECRET@h").unwrap();
        assert_eq!(pool.to_string(), "a=0.0.0.0:1=redis://u@h:6379/0");
        assert!(!format!("{pool:?}").contains("SECRET"), "{pool:?}");
    }

    #[test]
    fn wrong_pool_is_an_error_without_its_text() {
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

//! The data of a server at the end.

use std::collections::BTreeMap;
use std::io;

use super::side::Control;
use respool_testkit::frame::Frame;
use respool_testkit::words;

/// All that requests may have changed, by database and key.
#[derive(Clone, Debug, Default)]
pub(crate) struct DataState {
    keys: BTreeMap<(usize, Vec<u8>), KeyState>,
    /// Functions and the digest of all data.
    others: BTreeMap<&'static str, Frame>,
}

#[derive(Clone, Debug)]
struct KeyState {
    /// Type, encoding and content.
    is: Vec<Frame>,
    /// Its expiry: a time in ms, or the time left until then.
    expires_ms: i64,
}

/// The two sides run one after the other, on a machine that may be busy.
const EXPIRES_TOLERANCE_MS: i64 = 60_000;
/// Integers from here on are times in ms.
const TIME_MIN_MS: i64 = 1_000_000_000_000;

impl DataState {
    /// Reads all of it. Names of keys are without the prefix, which they may have or have lost.
    ///
    /// # Errors
    /// When the server does not answer.
    pub(crate) fn read(server: &mut Control, prefix: &[u8]) -> io::Result<DataState> {
        let mut state = DataState::default();
        let info = server.call(&["INFO", "keyspace"])?;
        let info = String::from_utf8_lossy(info.text().unwrap_or_default()).into_owned();
        let databases = info
            .lines()
            .filter_map(|line| line.strip_prefix("db")?.split_once(':')?.0.parse().ok());
        for db in databases {
            state.read_database(server, db, prefix)?;
        }
        server.call(&["SELECT", "0"])?;
        // The digest, where DEBUG is allowed; otherwise both sides give the same error. It covers
        // the names of keys, so it is left out with a prefix.
        if prefix.is_empty() {
            let digest = server.call(&["DEBUG", "DIGEST"])?;
            state.others.insert("DEBUG DIGEST", digest);
        }
        let functions = server.call(&["FUNCTION", "LIST", "WITHCODE"])?;
        state.others.insert("FUNCTION LIST", sorted(&functions));
        Ok(state)
    }

    fn read_database(&mut self, server: &mut Control, db: usize, prefix: &[u8]) -> io::Result<()> {
        server.call(&["SELECT", &db.to_string()])?;
        let names: Vec<Vec<u8>> = match server.call(&["KEYS", "*"])? {
            Frame::List(_, Some(keys)) => keys
                .iter()
                .filter_map(|key| key.text().map(<[u8]>::to_vec))
                .collect(),
            other => return Err(io::Error::other(format!("KEYS was answered with {other}"))),
        };
        let ask = |words: &[&str], key: &Vec<u8>, behind: &[&str]| -> Vec<Vec<u8>> {
            let bytes = |words: &[&str]| {
                words
                    .iter()
                    .map(|word| word.as_bytes().to_vec())
                    .collect::<Vec<_>>()
            };
            [bytes(words), vec![key.clone()], bytes(behind)].concat()
        };
        let about: Vec<_> = names
            .iter()
            .flat_map(|key| {
                [
                    ask(&["TYPE"], key, &[]),
                    ask(&["OBJECT", "ENCODING"], key, &[]),
                    ask(&["PEXPIRETIME"], key, &[]),
                    ask(&["PTTL"], key, &[]),
                ]
            })
            .collect();
        let about = server.call_all(&about)?;
        let content: Vec<_> = names
            .iter()
            .zip(about.chunks(4))
            .flat_map(|(key, about)| {
                let read = match about[0].text().unwrap_or_default() {
                    b"string" => ask(&["GET"], key, &[]),
                    b"list" => ask(&["LRANGE"], key, &["0", "-1"]),
                    b"set" => ask(&["SMEMBERS"], key, &[]),
                    b"hash" => ask(&["HGETALL"], key, &[]),
                    b"zset" => ask(&["ZRANGE"], key, &["0", "-1", "WITHSCORES"]),
                    b"stream" => ask(&["XINFO", "STREAM"], key, &["FULL", "COUNT", "0"]),
                    _ => ask(&["TYPE"], key, &[]),
                };
                [read, ask(&["DUMP"], key, &[])]
            })
            .collect();
        let content = server.call_all(&content)?;
        for ((name, about), content) in names
            .into_iter()
            .zip(about.chunks(4))
            .zip(content.chunks(2))
        {
            let kind = about[0].text().unwrap_or_default();
            let content_of = match kind {
                b"set" => sorted(&content[0]),
                b"hash" => sorted_pairs(&content[0]),
                b"stream" => without_times(&content[0]),
                _ => content[0].clone(),
            };
            let mut is = vec![about[0].clone(), about[1].clone(), content_of];
            // DUMP writes a hash table in the order of its seed, and a stream with the times of its
            // consumers.
            if about[1].text() != Some(b"hashtable") && kind != b"stream" {
                is.push(content[1].clone());
            }
            // Servers before 7.0 give the time left, not the time of expiry.
            let expires = if about[2].is_error() {
                &about[3]
            } else {
                &about[2]
            };
            let expires_ms = expires.integer().unwrap_or(0);
            let name = name
                .strip_prefix(prefix)
                .map_or(name.clone(), <[u8]>::to_vec);
            self.keys.insert((db, name), KeyState { is, expires_ms });
        }
        Ok(())
    }

    /// The first difference: its subject, and the value of each server.
    pub(crate) fn difference(&self, other: &DataState) -> Option<(String, String, String)> {
        let names: std::collections::BTreeSet<_> =
            self.keys.keys().chain(other.keys.keys()).collect();
        for name in names {
            let (one, two) = (self.keys.get(name), other.keys.get(name));
            let is_same = match (one, two) {
                (Some(one), Some(two)) => {
                    let distance = one
                        .expires_ms
                        .saturating_sub(two.expires_ms)
                        .saturating_abs();
                    let same_end = (one.expires_ms < 0) == (two.expires_ms < 0)
                        && distance <= EXPIRES_TOLERANCE_MS;
                    one.is == two.is && same_end
                }
                _ => false,
            };
            if !is_same {
                let show = |key: Option<&KeyState>| match key {
                    None => "not there".to_owned(),
                    Some(key) => {
                        let is: Vec<String> = key.is.iter().map(Frame::to_string).collect();
                        format!("{}, expires {}", is.join(" "), key.expires_ms)
                    }
                };
                let about = format!("key {} of database {}", words::show(&name.1), name.0);
                return Some((about, show(one), show(two)));
            }
        }
        self.others.iter().find_map(|(name, one)| {
            let two = other.others.get(name)?;
            (one != two).then(|| ((*name).to_owned(), one.to_string(), two.to_string()))
        })
    }
}

/// The same values in a fixed order.
pub(crate) fn sorted(frame: &Frame) -> Frame {
    match frame {
        Frame::List(kind, Some(items)) => {
            let mut items = items.clone();
            items.sort();
            Frame::List(*kind, Some(items))
        }
        other => other.clone(),
    }
}

/// The same pairs in a fixed order.
pub(crate) fn sorted_pairs(frame: &Frame) -> Frame {
    match frame {
        Frame::List(kind, Some(items)) => {
            let mut pairs: Vec<&[Frame]> = items.chunks(2).collect();
            pairs.sort();
            Frame::List(*kind, Some(pairs.concat()))
        }
        other => other.clone(),
    }
}

/// The values with every time, in ms, replaced by the same one.
pub(crate) fn without_times(frame: &Frame) -> Frame {
    match frame {
        Frame::List(kind, Some(items)) => {
            Frame::List(*kind, Some(items.iter().map(without_times).collect()))
        }
        time if time.integer().is_some_and(|number| number >= TIME_MIN_MS) => {
            Frame::Line(b':', b"a time".to_vec())
        }
        other => other.clone(),
    }
}

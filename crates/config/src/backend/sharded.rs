//! The URL of plain servers that share the keys:
//!
//! ```text
//!   redis-sharded://HOST:PORT[:WEIGHT],HOST:PORT[:WEIGHT]/DB
//!                   ?names=A,B&hash=H&distribution=D&hash-tag=%7B%7D
//! ```
//!
//! The path of a socket may stand in place of `HOST:PORT`, with `/` written as `%2F`.

use std::fmt;
use std::num::NonZeroU32;

use respool_engine::settings::{Address, PoolKind, ServerSettings};
use respool_protocol::hashing::{
    Distribution, Hash, HashTag, Hashing, Placement, PredixyHash, TwemproxyNode,
};

use super::percent::{percent_decode, percent_encode};
use crate::address::{parse_server, unix_path};

/// The servers, and the function from keys to servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardedServers {
    shards: Vec<Shard>,
    hashing: Hashing,
    placement: Placement,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Shard {
    address: Address,
    weight: NonZeroU32,
    /// Its name for the hash ring; `None`: the name that twemproxy would give it.
    name: Option<String>,
}

impl ShardedServers {
    /// Parses the list of servers and their parameters.
    pub(crate) fn parse<'a>(
        hosts: &str,
        parameters: impl Iterator<Item = (&'a str, String)>,
    ) -> Result<ShardedServers, String> {
        let shards: Result<Vec<_>, _> = hosts.split(',').map(Shard::parse).collect();
        let shards = shards?;
        if shards.len() < 2 {
            return Err(
                "needs two servers at least: redis-sharded://HOST:PORT,HOST:PORT; for one server, \
                 write redis://"
                    .into(),
            );
        }
        ShardedServers::of(shards, parameters)
    }

    /// Servers with these names. Their addresses are not known yet.
    pub(crate) fn named<'a>(
        names: &[String],
        parameters: impl Iterator<Item = (&'a str, String)>,
    ) -> Result<ShardedServers, String> {
        let shard = |name: &String| Shard {
            address: Address::Tcp {
                host: name.clone(),
                port: 0,
            },
            weight: NonZeroU32::MIN,
            name: Some(name.clone()),
        };
        ShardedServers::of(names.iter().map(shard).collect(), parameters)
    }

    /// Parses the parameters for these servers.
    fn of<'a>(
        mut shards: Vec<Shard>,
        parameters: impl Iterator<Item = (&'a str, String)>,
    ) -> Result<ShardedServers, String> {
        let (mut like, mut hash, mut distribution, mut has_names) = (None, None, None, false);
        let mut tag = Some(HashTag::BRACES);
        for (name, value) in parameters {
            match name {
                "names" => {
                    give_names(&mut shards, &value)?;
                    has_names = true;
                }
                "like" => like = Some(value),
                "hash" => hash = Some(value),
                "distribution" => distribution = Some(value),
                "hash-tag" if value.is_empty() => tag = None,
                "hash-tag" => {
                    let named = HashTag::named(&value);
                    tag = Some(
                        named.ok_or("hash-tag is two characters, such as %7B%7D, or nothing")?,
                    );
                }
                _ => {
                    return Err(
                        "the parameters after `?` are db, password-file, password-command, names, \
                         like, hash, distribution and hash-tag"
                            .into(),
                    );
                }
            }
        }
        let distribution = distribution.as_deref();
        let hashing = match like.as_deref().unwrap_or("twemproxy") {
            "twemproxy" => Hashing::Twemproxy {
                hash: one_of(
                    "hash",
                    hash.as_deref(),
                    Hash::Murmur,
                    Hash::named,
                    &Hash::ALL.map(Hash::name),
                )?,
                distribution: one_of(
                    "distribution",
                    distribution,
                    Distribution::Ketama,
                    Distribution::named,
                    &Distribution::ALL.map(Distribution::name),
                )?,
                tag,
            },
            "predixy" if has_names => {
                return Err(
                    "like predixy, the order of the servers counts: leave names out".into(),
                );
            }
            "predixy" if distribution.is_none_or(|name| name == "modula") => Hashing::Predixy {
                hash: one_of(
                    "hash",
                    hash.as_deref(),
                    PredixyHash::Crc16,
                    PredixyHash::named,
                    &PredixyHash::ALL.map(PredixyHash::name),
                )?,
                tag,
            },
            "predixy" => return Err("like predixy, the only distribution is modula".into()),
            _ => return Err("like is twemproxy or predixy".into()),
        };
        let nodes: Vec<_> = shards.iter().map(Shard::node).collect();
        let placement = hashing
            .placement(&nodes)
            .map_err(|error| error.to_string())?;
        Ok(ShardedServers {
            shards,
            hashing,
            placement,
        })
    }

    /// The function from keys to servers, which are numbered by their places.
    pub(crate) fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The addresses of the servers.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.shards.iter().map(|shard| &shard.address)
    }

    /// The settings for the engine. `server` makes those of the server at an address.
    pub(crate) fn pool(&self, server: impl Fn(Address) -> ServerSettings) -> PoolKind {
        PoolKind::Sharded {
            shards: self
                .shards
                .iter()
                .map(|shard| server(shard.address.clone()))
                .collect(),
            placement: self.placement.clone(),
        }
    }
}

fn give_names(shards: &mut [Shard], names: &str) -> Result<(), String> {
    let names: Vec<&str> = names.split(',').collect();
    if names.len() != shards.len() || names.contains(&"") {
        return Err("names has one name for each server, with commas between them".into());
    }
    for (shard, name) in shards.iter_mut().zip(names) {
        shard.name = Some(name.to_owned());
    }
    Ok(())
}

/// The value of that name, or `otherwise` without a name.
fn one_of<T>(
    parameter: &str,
    name: Option<&str>,
    otherwise: T,
    named: impl Fn(&str) -> Option<T>,
    all: &[&str],
) -> Result<T, String> {
    let value = name.map_or(Some(otherwise), named);
    value.ok_or_else(|| format!("{parameter} is one of {}", all.join(", ")))
}

impl Shard {
    /// The server as a line of twemproxy's configuration names it.
    fn node(&self) -> TwemproxyNode {
        let address = match &self.address {
            Address::Unix(path) => path.display().to_string(),
            tcp => tcp.to_string(),
        };
        match &self.name {
            Some(name) => TwemproxyNode::named(&address, self.weight, name),
            None => TwemproxyNode::unnamed(&address, self.weight),
        }
    }

    /// `HOST[:PORT[:WEIGHT]]` or `%2FPATH[:WEIGHT]`.
    fn parse(text: &str) -> Result<Shard, String> {
        let is_path = text
            .get(..3)
            .is_some_and(|begin| begin.eq_ignore_ascii_case("%2F"));
        // Colons in the brackets of an IPv6 address do not count.
        let from = text.rfind(']').map_or(0, |at| at + 1);
        let weight_at = text[from..].match_indices(':').nth(usize::from(!is_path));
        let (server, weight) = match weight_at {
            None => (text, NonZeroU32::MIN),
            Some((at, _)) => {
                let weight = text[from + at + 1..].parse();
                (
                    &text[..from + at],
                    weight.map_err(|_| "a server's weight must be a number from 1 on")?,
                )
            }
        };
        let address = match is_path {
            true => Address::Unix(unix_path(percent_decode(server)?.into())?),
            false => parse_server(server)?,
        };
        Ok(Shard {
            address,
            weight,
            name: None,
        })
    }
}

impl ShardedServers {
    /// The parameters that parse as these servers, with values that are not encoded.
    pub(crate) fn parameters(&self) -> Vec<(&'static str, String)> {
        let mut parameters = Vec::new();
        if self.shards.iter().any(|shard| shard.name.is_some()) {
            let name = |shard: &Shard| shard.name.clone().unwrap_or_default();
            let names: Vec<_> = self.shards.iter().map(name).collect();
            parameters.push(("names", names.join(",")));
        }
        let tag = match self.hashing {
            Hashing::Twemproxy {
                hash,
                distribution,
                tag,
            } => {
                parameters.push(("hash", hash.name().to_owned()));
                parameters.push(("distribution", distribution.name().to_owned()));
                tag
            }
            Hashing::Predixy { hash, tag } => {
                parameters.push(("like", "predixy".to_owned()));
                parameters.push(("hash", hash.name().to_owned()));
                tag
            }
        };
        parameters.push((
            "hash-tag",
            tag.map_or(String::new(), |tag| tag.characters().into_iter().collect()),
        ));
        parameters
    }
}

/// The list of servers, as the URL has it.
impl fmt::Display for ShardedServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, shard) in self.shards.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let address = match &shard.address {
                Address::Unix(path) => percent_encode(&path.to_string_lossy(), b"-._~"),
                tcp => tcp.to_string(),
            };
            match shard.weight {
                NonZeroU32::MIN => write!(f, "{comma}{address}")?,
                weight => write!(f, "{comma}{address}:{weight}")?,
            }
        }
        Ok(())
    }
}

//! Primaries that Sentinels watch, as the URL of a backend says it:
//! `redis-sentinel://HOST:PORT,HOST:PORT/NAME,NAME/DB?sentinel-user=U&sentinel-password=P`, and what is said of sharded servers where
//! there are several names.

use std::fmt;

use respool_engine::settings::{Address, Credentials, PoolKind, ServerSettings};
use respool_protocol::sentinel::{NAME_BYTES_MAX, SENTINELS_MAX};

use crate::address::{SENTINEL_PORT, parse_server_at};
use crate::sharded::Shards;

/// The Sentinels, and what they are asked for.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Watched {
    sentinels: Vec<Address>,
    user: Option<String>,
    password: Option<String>,
    primaries: Vec<String>,
    /// Of several primaries, which of them owns a key.
    shards: Option<Shards>,
}

impl Watched {
    /// Reads the list of Sentinels, the names of primaries, and the parameters that are about them.
    pub(crate) fn parse<'a>(
        hosts: &str,
        names: &str,
        parameters: impl Iterator<Item = (&'a str, String)>,
    ) -> Result<Watched, String> {
        let server = |text| parse_server_at(text, SENTINEL_PORT);
        let sentinels: Result<Vec<_>, _> = hosts.split(',').map(server).collect();
        let sentinels = sentinels?;
        if sentinels.len() > SENTINELS_MAX {
            return Err(format!("names more than {SENTINELS_MAX} Sentinels"));
        }
        let primaries: Vec<String> = names.split(',').map(str::to_owned).collect();
        for name in &primaries {
            if name.is_empty() {
                return Err(
                    "needs what the Sentinels call the primary: redis-sentinel://HOST:PORT/NAME"
                        .into(),
                );
            }
            if name.len() > NAME_BYTES_MAX || name.contains(' ') {
                return Err(format!(
                    "a name of a primary has at most {NAME_BYTES_MAX} bytes, and no spaces"
                ));
            }
        }
        let (mut user, mut password) = (None, None);
        let mut others = Vec::new();
        for (name, value) in parameters {
            match name {
                "sentinel-user" => user = Some(value),
                "sentinel-password" => password = Some(value),
                "like" | "hash" | "distribution" | "hash-tag" if primaries.len() > 1 => {
                    others.push((name, value));
                }
                _ if primaries.len() > 1 => {
                    return Err(
                        "the parameters after `?` are db, sentinel-user, sentinel-password, like, hash, \
                         distribution and hash-tag"
                            .into(),
                    );
                }
                _ => {
                    return Err(
                        "the parameters after `?` are db, sentinel-user and sentinel-password"
                            .into(),
                    );
                }
            }
        }
        if user.is_some() && password.is_none() {
            return Err("has a sentinel-user without a sentinel-password".into());
        }
        let shards = match primaries.len() {
            1 => None,
            _ => Some(Shards::named(&primaries, others.into_iter())?),
        };
        Ok(Watched {
            sentinels,
            user,
            password,
            primaries,
            shards,
        })
    }

    /// Where the Sentinels are.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.sentinels.iter()
    }

    /// What the engine is told; `server`: how to reach a primary at this address.
    pub(crate) fn pool(&self, server: impl Fn(Address) -> ServerSettings) -> PoolKind {
        let credentials = self.password.clone().map(|password| Credentials {
            user: self.user.clone(),
            password,
        });
        let sentinel = |address: &Address| ServerSettings {
            address: address.clone(),
            credentials: credentials.clone(),
            db: 0,
        };
        let nowhere = Address::Tcp {
            host: self.primaries.join(","),
            port: 0,
        };
        PoolKind::Watched {
            sentinels: self.sentinels.iter().map(sentinel).collect(),
            primaries: self.primaries.clone(),
            template: server(nowhere),
            placement: self
                .shards
                .as_ref()
                .map(|shards| shards.placement().clone()),
        }
    }

    /// In the order in which they are read, with the values as they are; but for the password.
    pub(crate) fn parameters(&self) -> Vec<(&'static str, String)> {
        let user = self.user.clone().map(|user| ("sentinel-user", user));
        let hashing = self.shards.as_ref().map(Shards::parameters);
        let hashing = hashing.into_iter().flatten();
        let hashing = hashing.filter(|(name, _)| *name != "names");
        user.into_iter().chain(hashing).collect()
    }
}

/// The Sentinels and the names, as the URL has them.
impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sentinels: Vec<_> = self.sentinels.iter().map(Address::to_string).collect();
        write!(f, "{}/{}", sentinels.join(","), self.primaries.join(","))
    }
}

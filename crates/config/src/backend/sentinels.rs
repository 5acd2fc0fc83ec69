//! The URL of primaries that Sentinels monitor:
//!
//! ```text
//!   redis-sentinel://HOST:PORT,HOST:PORT/NAME,NAME/DB?sentinel-user=U&sentinel-password=P
//! ```
//!
//! With several names, it has the parameters of `redis-sharded://`, too.

use std::fmt;

use respool_engine::limits::SENTINELS_WATCHED_MAX;
use respool_engine::settings::{Address, Credentials, PasswordSource, PoolKind, ServerSettings};
use respool_protocol::sentinel::{NAME_BYTES_MAX, SENTINELS_MAX};

use super::OriginNames;
use super::percent::percent_encode;
use super::reads::PARAMETERS;
use super::sharded::ShardedServers;
use crate::address::{SENTINEL_PORT, parse_server_at};
use crate::passwords::PasswordOrigin;

/// The parameters for the origin of the Sentinels' password.
pub(crate) const SENTINEL_ORIGINS: OriginNames = OriginNames {
    file: "sentinel-password-file",
    command: "sentinel-password-command",
};

fn two_passwords() -> String {
    "has two of sentinel-password, sentinel-password-file and sentinel-password-command: remove one \
     of them"
        .into()
}

/// The Sentinels, and the primaries that they monitor.
#[derive(Clone, PartialEq, Eq)]
pub struct SentinelServers {
    sentinels: Vec<Address>,
    user: Option<String>,
    password: Option<String>,
    /// The origin of that password, if the URL names one.
    pub(crate) origin: Option<PasswordOrigin>,
    source: Option<PasswordSource>,
    primaries: Vec<String>,
    /// The function from keys to primaries, if there are several.
    shards: Option<ShardedServers>,
}

impl SentinelServers {
    /// Forgets the password if it comes from a file or command.
    pub(crate) fn forget_renewable_password(&mut self) {
        if self.source.is_some() {
            self.password = None;
        }
    }

    /// See [`BackendUrl::links_min`](crate::backend::BackendUrl::links_min).
    pub(crate) fn links_min(&self) -> usize {
        2 * self.primaries.len() + self.sentinels.len().min(SENTINELS_WATCHED_MAX)
    }

    /// Parses the list of Sentinels, the names of primaries, and their parameters.
    pub(crate) fn parse<'a>(
        hosts: &str,
        names: &str,
        parameters: impl Iterator<Item = (&'a str, String)>,
    ) -> Result<SentinelServers, String> {
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
                    "needs the name of the primary at the Sentinels: redis-sentinel://HOST:PORT/NAME"
                        .into(),
                );
            }
            if name.len() > NAME_BYTES_MAX || name.contains(' ') {
                return Err(format!(
                    "a name of a primary has at most {NAME_BYTES_MAX} bytes, and no spaces"
                ));
            }
        }
        let (mut user, mut password, mut origin) = (None, None, None);
        let mut others = Vec::new();
        for (name, value) in parameters {
            if let Some(named) = SENTINEL_ORIGINS.parse(name, &value) {
                let before = origin.replace(named?);
                if before.is_some_and(|before| SENTINEL_ORIGINS.name_of(&before) != name) {
                    return Err(two_passwords());
                }
                continue;
            }
            match name {
                "sentinel-user" => user = Some(value),
                "sentinel-password" => password = Some(value),
                "like" | "hash" | "distribution" | "hash-tag" if primaries.len() > 1 => {
                    others.push((name, value));
                }
                _ if primaries.len() > 1 => {
                    return Err(format!(
                        "the parameters after `?` are db, password-file, sentinel-user, \
                         sentinel-password, sentinel-password-file, sentinel-password-command, \
                         password-command, like, hash, distribution, hash-tag, {PARAMETERS}"
                    ));
                }
                _ => {
                    return Err(format!(
                        "the parameters after `?` are db, password-file, sentinel-user, \
                         sentinel-password, sentinel-password-file, sentinel-password-command, \
                         password-command, {PARAMETERS}"
                    ));
                }
            }
        }
        match (&password, &origin) {
            (None, None) if user.is_some() => {
                return Err("has a sentinel-user without a sentinel-password".into());
            }
            (Some(_), Some(_)) => {
                return Err(two_passwords());
            }
            _ => {}
        }
        let shards = match primaries.len() {
            1 => None,
            _ => Some(ShardedServers::named(&primaries, others.into_iter())?),
        };
        Ok(SentinelServers {
            sentinels,
            user,
            password,
            origin,
            source: None,
            primaries,
            shards,
        })
    }

    /// The addresses of the Sentinels.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.sentinels.iter()
    }

    /// Keeps the password of the Sentinels and the number of its origin.
    pub(crate) fn set_password(&mut self, (password, source): (String, PasswordSource)) {
        self.password = Some(password);
        self.source = Some(source);
    }

    /// The names of the primaries at the Sentinels.
    pub(crate) fn primaries(&self) -> impl Iterator<Item = &str> {
        self.primaries.iter().map(String::as_str)
    }

    /// The settings for the engine. `server` makes those of the primary at an address.
    pub(crate) fn pool(&self, server: impl Fn(Address) -> ServerSettings) -> PoolKind {
        let credentials = self.password.clone().map(|password| Credentials {
            user: self.user.clone(),
            password,
            source: self.source,
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

    /// The parameters that parse as these Sentinels, without the password. Values are not encoded.
    pub(crate) fn parameters(&self) -> Vec<(&'static str, String)> {
        let user = self.user.clone().map(|user| ("sentinel-user", user));
        let hashing = self.shards.as_ref().map(ShardedServers::parameters);
        let hashing = hashing.into_iter().flatten();
        let hashing = hashing.filter(|(name, _)| *name != "names");
        let origin = self.origin.as_ref();
        let origin = origin.map(|origin| SENTINEL_ORIGINS.parameter(origin));
        user.into_iter().chain(origin).chain(hashing).collect()
    }
}

/// The Sentinels and the names of primaries, as the URL has them.
impl fmt::Display for SentinelServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sentinels: Vec<_> = self.sentinels.iter().map(Address::to_string).collect();
        let names = self.primaries.iter();
        let names: Vec<_> = names.map(|name| percent_encode(name, b"-._~:")).collect();
        write!(f, "{}/{}", sentinels.join(","), names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(
        hosts: &str,
        names: &str,
        parameters: &[(&str, &str)],
    ) -> Result<SentinelServers, String> {
        let parameters = parameters
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()));
        SentinelServers::parse(hosts, names, parameters)
    }

    fn template(address: Address) -> ServerSettings {
        let credentials = Some(Credentials {
            user: None,
            password: "of-servers".to_owned(),
            source: None,
        });
        ServerSettings {
            address,
            credentials,
            db: 3,
        }
    }

    #[test]
    fn sentinels_have_their_own_password_and_no_database() {
        let password = ("sentinel-password", "p");
        for (parameters, user) in [
            (&[password][..], None),
            (&[("sentinel-user", "u"), password], Some("u")),
        ] {
            let servers = parse("h,[::1]:7", "m", parameters).expect("a good URL");
            let PoolKind::Watched {
                sentinels,
                primaries,
                template,
                placement,
            } = servers.pool(template)
            else {
                panic!("other servers")
            };
            assert_eq!(sentinels.len(), 2);
            for sentinel in sentinels {
                let own = sentinel.credentials.expect("a password");
                assert_eq!(
                    (own.user.as_deref(), own.password.as_str(), sentinel.db),
                    (user, "p", 0)
                );
            }
            assert_eq!(primaries, ["m"]);
            assert!(placement.is_none());
            let own = template.credentials.expect("a password");
            assert_eq!((own.password.as_str(), template.db), ("of-servers", 3));
        }
        let PoolKind::Watched { sentinels, .. } =
            parse("h", "m", &[]).expect("a good URL").pool(template)
        else {
            panic!("other servers")
        };
        assert!(
            sentinels[0].credentials.is_none(),
            "the password of the servers is not theirs"
        );
    }

    /// The names decide, so keys stay with their primary when its address changes.
    #[test]
    fn keys_are_divided_by_the_names_of_primaries() {
        let placement = |hosts: &str| {
            let servers = parse(hosts, "m,n,o", &[("hash", "murmur")]).expect("a good URL");
            let PoolKind::Watched { placement, .. } = servers.pool(template) else {
                panic!("other servers")
            };
            let placement = placement.expect("several primaries");
            let owner = |key: i32| placement.server_of(key.to_string().as_bytes(), || 0);
            (0..300).map(owner).collect::<Vec<_>>()
        };
        let owners = placement("h:1");
        assert_eq!(owners, placement("i:2,j:3"));
        assert!((0..3).all(|server| owners.contains(&server)));
    }

    #[test]
    fn errors_do_not_repeat_the_url() {
        let long = "SECRET".repeat(NAME_BYTES_MAX);
        let many = vec!["SECRET"; SENTINELS_MAX + 1].join(",");
        for (hosts, names, parameters, error) in [
            ("h", "", &[][..], "name of the primary"),
            ("h", "m,,n", &[], "name of the primary"),
            ("h", "SECRET m", &[], "no spaces"),
            ("h", long.as_str(), &[], "at most 255 bytes"),
            (many.as_str(), "m", &[], "more than 128"),
            ("h:SECRET", "m", &[], "from 1 to 65535"),
            ("h", "m,m", &[], "two servers have the name"),
            (
                "h",
                "m",
                &[("sentinel-user", "SECRET")],
                "without a sentinel-password",
            ),
            (
                "h",
                "m",
                &[("hash", "SECRET")],
                "sentinel-password-command, password-command, reads,",
            ),
            (
                "h",
                "m",
                &[("SECRET", "SECRET")],
                "sentinel-password-command, password-command, reads,",
            ),
            ("h", "m,n", &[("SECRET", "SECRET")], "like, hash"),
            ("h", "m,n", &[("names", "SECRET")], "like, hash"),
            ("h", "m,n", &[("hash", "SECRET")], "hash is one of"),
        ] {
            let Err(told) = parse(hosts, names, parameters) else {
                panic!("{names} is taken: {error}")
            };
            assert!(told.contains(error), "{told}");
            assert!(!told.contains("SECRET"), "{told}");
        }
    }

    #[test]
    fn password_is_not_shown() {
        let parameters = [("sentinel-user", "u"), ("sentinel-password", "SECRET")];
        let servers = parse("h:1,i", "m", &parameters).expect("a good URL");
        assert_eq!(servers.to_string(), "h:1,i:26379/m");
        assert_eq!(servers.parameters(), [("sentinel-user", "u".to_owned())]);
    }
}

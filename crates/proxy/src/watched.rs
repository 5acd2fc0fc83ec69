//! Primaries that Sentinels watch, as the URL of a backend says it:
//! `redis-sentinel://HOST:PORT,HOST:PORT/NAME,NAME/DB?sentinel-user=U&sentinel-password=P`, and what is said of sharded servers where
//! there are several names.

use std::fmt;
use std::path::PathBuf;

use respool_engine::limits::SENTINELS_WATCHED_MAX;
use respool_engine::settings::{Address, Credentials, PasswordSource, PoolKind, ServerSettings};
use respool_protocol::sentinel::{NAME_BYTES_MAX, SENTINELS_MAX};

use crate::address::{SENTINEL_PORT, parse_server_at, percent_encode};
use crate::options::parse_path;
use crate::reads::PARAMETERS;
use crate::sharded::Shards;

/// The Sentinels, and what they are asked for.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Watched {
    sentinels: Vec<Address>,
    user: Option<String>,
    password: Option<String>,
    /// The file that has that password instead.
    pub(crate) password_file: Option<PathBuf>,
    source: Option<PasswordSource>,
    primaries: Vec<String>,
    /// Of several primaries, which of them owns a key.
    shards: Option<Shards>,
}

impl Watched {
    /// See [`BackendUrl::links_min`](crate::address::BackendUrl::links_min).
    pub(crate) fn links_min(&self) -> usize {
        2 * self.primaries.len() + self.sentinels.len().min(SENTINELS_WATCHED_MAX)
    }

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
        let (mut user, mut password, mut password_file) = (None, None, None);
        let mut others = Vec::new();
        for (name, value) in parameters {
            match name {
                "sentinel-user" => user = Some(value),
                "sentinel-password" => password = Some(value),
                "sentinel-password-file" => password_file = Some(parse_path(&value)?),
                "like" | "hash" | "distribution" | "hash-tag" if primaries.len() > 1 => {
                    others.push((name, value));
                }
                _ if primaries.len() > 1 => {
                    return Err(format!(
                        "the parameters after `?` are db, password-file, sentinel-user, \
                         sentinel-password, sentinel-password-file, like, hash, distribution, \
                         hash-tag, {PARAMETERS}"
                    ));
                }
                _ => {
                    return Err(format!(
                        "the parameters after `?` are db, password-file, sentinel-user, \
                         sentinel-password, sentinel-password-file, {PARAMETERS}"
                    ));
                }
            }
        }
        match (&password, &password_file) {
            (None, None) if user.is_some() => {
                return Err("has a sentinel-user without a sentinel-password".into());
            }
            (Some(_), Some(_)) => {
                return Err(
                    "has a sentinel-password and a sentinel-password-file: leave one of them away"
                        .into(),
                );
            }
            _ => {}
        }
        let shards = match primaries.len() {
            1 => None,
            _ => Some(Shards::named(&primaries, others.into_iter())?),
        };
        Ok(Watched {
            sentinels,
            user,
            password,
            password_file,
            source: None,
            primaries,
            shards,
        })
    }

    /// Where the Sentinels are.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.sentinels.iter()
    }

    /// The file with the password of the Sentinels was read, and has this number.
    pub(crate) fn set_password(&mut self, (password, source): (String, PasswordSource)) {
        self.password = Some(password);
        self.source = Some(source);
    }

    /// What they call the primaries.
    pub(crate) fn primaries(&self) -> impl Iterator<Item = &str> {
        self.primaries.iter().map(String::as_str)
    }

    /// What the engine is told; `server`: how to reach a primary at this address.
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

    /// In the order in which they are read, with the values as they are; but for the password.
    pub(crate) fn parameters(&self) -> Vec<(&'static str, String)> {
        let user = self.user.clone().map(|user| ("sentinel-user", user));
        let hashing = self.shards.as_ref().map(Shards::parameters);
        let hashing = hashing.into_iter().flatten();
        let hashing = hashing.filter(|(name, _)| *name != "names");
        let file = self.password_file.as_ref().map(|path| {
            let path = path.to_string_lossy().into_owned();
            ("sentinel-password-file", path)
        });
        user.into_iter().chain(file).chain(hashing).collect()
    }
}

/// The Sentinels and the names, as the URL has them.
impl fmt::Display for Watched {
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

    fn parse(hosts: &str, names: &str, parameters: &[(&str, &str)]) -> Result<Watched, String> {
        let parameters = parameters
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()));
        Watched::parse(hosts, names, parameters)
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
            let watched = parse("h,[::1]:7", "m", parameters).expect("it is one");
            let PoolKind::Watched {
                sentinels,
                primaries,
                template,
                placement,
            } = watched.pool(template)
            else {
                panic!("it is watched")
            };
            assert_eq!(sentinels.len(), 2);
            for sentinel in sentinels {
                let own = sentinel.credentials.expect("it has a password");
                assert_eq!(
                    (own.user.as_deref(), own.password.as_str(), sentinel.db),
                    (user, "p", 0)
                );
            }
            assert_eq!(primaries, ["m"]);
            assert!(placement.is_none());
            let own = template.credentials.expect("it has a password");
            assert_eq!((own.password.as_str(), template.db), ("of-servers", 3));
        }
        let PoolKind::Watched { sentinels, .. } =
            parse("h", "m", &[]).expect("it is one").pool(template)
        else {
            panic!("it is watched")
        };
        assert!(
            sentinels[0].credentials.is_none(),
            "the servers' is not theirs"
        );
    }

    /// The names decide, so wherever the primaries are, keys stay with theirs.
    #[test]
    fn of_several_primaries_the_names_say_which_has_a_key() {
        let placement = |hosts: &str| {
            let watched = parse(hosts, "m,n,o", &[("hash", "murmur")]).expect("it is one");
            let PoolKind::Watched { placement, .. } = watched.pool(template) else {
                panic!("it is watched")
            };
            let placement = placement.expect("there are several");
            let owner = |key: i32| placement.server_of(key.to_string().as_bytes(), || 0);
            (0..300).map(owner).collect::<Vec<_>>()
        };
        let owners = placement("h:1");
        assert_eq!(owners, placement("i:2,j:3"));
        assert!((0..3).all(|server| owners.contains(&server)));
    }

    #[test]
    fn what_is_wrong_is_told_without_what_was_given() {
        let long = "SECRET".repeat(NAME_BYTES_MAX);
        let many = vec!["SECRET"; SENTINELS_MAX + 1].join(",");
        for (hosts, names, parameters, error) in [
            ("h", "", &[][..], "call the primary"),
            ("h", "m,,n", &[], "call the primary"),
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
                "sentinel-user, sentinel-password, sentinel-password-file, reads,",
            ),
            (
                "h",
                "m",
                &[("SECRET", "SECRET")],
                "sentinel-user, sentinel-password, sentinel-password-file, reads,",
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
    fn the_password_is_not_shown() {
        let parameters = [("sentinel-user", "u"), ("sentinel-password", "SECRET")];
        let watched = parse("h:1,i", "m", &parameters).expect("it is one");
        assert_eq!(watched.to_string(), "h:1,i:26379/m");
        assert_eq!(watched.parameters(), [("sentinel-user", "u".to_owned())]);
    }
}

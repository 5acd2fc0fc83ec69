//! The URL of the servers of a pool: `redis://HOST:PORT`, `unix:/path`, `redis-cluster://...`. With
//! `rediss` in place of `redis`, respool reaches them over TLS.
//!
//! An error never repeats the URL: a URL that does not parse may have a password in a wrong place.

mod percent;
mod reads;
mod sentinels;
mod sharded;

use respool_engine::settings::{Address, PasswordSource, Reads};
use std::fmt;

use crate::address::{REDIS_PORT, parse_server, unix_path};
use crate::options::parse_path;
use crate::password_command::PasswordCommand;
use crate::passwords::PasswordOrigin;
use percent::{percent_decode, percent_encode};
use reads::PARAMETERS;
pub(crate) use sentinels::SENTINEL_ORIGINS;
use sentinels::SentinelServers;
use sharded::ShardedServers;

const ONLY_DB: &str = "the parameters after `?` are db, password-file and password-command";

/// The parameters of every URL for the origin of the password.
pub(crate) const ORIGINS: OriginNames = OriginNames {
    file: "password-file",
    command: "password-command",
};

/// The highest database number: Redis reads it as a signed 32-bit integer.
const DB_MAX: u32 = i32::MAX as u32;

/// The names of two parameters for the origin of a password.
pub(crate) struct OriginNames {
    file: &'static str,
    command: &'static str,
}

impl OriginNames {
    /// Parses a parameter. `None`: it has another name.
    fn parse(&self, name: &str, value: &str) -> Option<Result<PasswordOrigin, String>> {
        match name {
            _ if name == self.file => Some(parse_path(value).map(PasswordOrigin::File)),
            _ if name == self.command => {
                let command = PasswordCommand::parse(value);
                let named = |what: String| format!("the parameter {name} {what}");
                Some(command.map(PasswordOrigin::Command).map_err(named))
            }
            _ => None,
        }
    }

    pub(crate) fn name_of(&self, origin: &PasswordOrigin) -> &'static str {
        match origin {
            PasswordOrigin::File(_) => self.file,
            PasswordOrigin::Command(_) => self.command,
        }
    }

    /// The parameter that parses as this origin. Its value is not encoded.
    fn parameter(&self, origin: &PasswordOrigin) -> (&'static str, String) {
        let value = match origin {
            PasswordOrigin::File(path) => path.to_string_lossy().into_owned(),
            PasswordOrigin::Command(command) => command.to_string(),
        };
        (self.name_of(origin), value)
    }
}

/// The servers that a URL names.
#[derive(Clone, PartialEq, Eq)]
pub enum BackendServers {
    /// One server at this address.
    Single(Address),
    /// Several servers that share the keys.
    Sharded(ShardedServers),
    /// The seed nodes of a Cluster.
    Cluster(Vec<Address>),
    /// Primaries that Sentinels monitor.
    Sentinel(SentinelServers),
}

/// The URL of a pool's servers.
#[derive(Clone, PartialEq, Eq)]
pub struct BackendUrl {
    /// The servers, with their addresses.
    pub servers: BackendServers,
    /// Whether respool reaches them over TLS.
    pub tls: bool,
    /// The user for AUTH; `None`: the default user.
    pub user: Option<String>,
    /// The password for AUTH, in clear text.
    pub password: Option<String>,
    /// The origin of the password, if the URL names one.
    pub origin: Option<PasswordOrigin>,
    /// The number of that origin among all of them, once it was read.
    pub source: Option<PasswordSource>,
    /// The database in which a session starts.
    pub db: u32,
    /// Which servers of a primary and its replicas read keys.
    pub reads: Reads,
}

impl Default for BackendUrl {
    fn default() -> Self {
        let address = Address::Tcp {
            host: "127.0.0.1".into(),
            port: REDIS_PORT,
        };
        BackendUrl {
            servers: BackendServers::Single(address),
            tls: false,
            user: None,
            password: None,
            origin: None,
            source: None,
            db: 0,
            reads: Reads::default(),
        }
    }
}

/// The URL without its password, as logs, `check` and `--print` show it.
impl fmt::Display for BackendUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = match &self.user {
            Some(user) => format!("{}@", percent_encode(user, b"-._~")),
            None => String::new(),
        };
        let redis = if self.tls { "rediss" } else { "redis" };
        let mut parameters = Vec::new();
        parameters.extend(self.origin.as_ref().map(|origin| ORIGINS.parameter(origin)));
        match &self.servers {
            BackendServers::Single(Address::Unix(path)) => {
                let path = percent_encode(&path.to_string_lossy(), b"-._~/");
                write!(f, "unix://{user}{path}")?;
                parameters.insert(0, ("db", self.db.to_string()));
            }
            BackendServers::Single(address) => write!(f, "{redis}://{user}{address}/{}", self.db)?,
            BackendServers::Cluster(seeds) => {
                let seeds: Vec<_> = seeds.iter().map(Address::to_string).collect();
                write!(f, "{redis}-cluster://{user}{}/{}", seeds.join(","), self.db)?;
                parameters.extend(reads::parameters(&self.reads));
            }
            BackendServers::Sharded(shards) => {
                write!(f, "{redis}-sharded://{user}{shards}/{}", self.db)?;
                parameters.extend(shards.parameters());
            }
            BackendServers::Sentinel(sentinels) => {
                write!(f, "{redis}-sentinel://{user}{sentinels}/{}", self.db)?;
                parameters.extend(sentinels.parameters());
                parameters.extend(reads::parameters(&self.reads));
            }
        }
        write_parameters(f, parameters)
    }
}

fn write_parameters(
    f: &mut fmt::Formatter<'_>,
    parameters: Vec<(&'static str, String)>,
) -> fmt::Result {
    let mut before = '?';
    for (name, value) in parameters {
        let value = percent_encode(&value, b"-._~:,/");
        write!(f, "{before}{name}={value}")?;
        before = '&';
    }
    Ok(())
}

impl fmt::Debug for BackendUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BackendUrl")
            .field(&self.to_string())
            .finish()
    }
}

impl BackendUrl {
    /// The same URL without the passwords of files and commands: they change by themselves.
    pub fn without_renewable_passwords(&self) -> BackendUrl {
        let mut url = self.clone();
        if url.source.is_some() {
            url.password = None;
        }
        if let BackendServers::Sentinel(sentinels) = &mut url.servers {
            sentinels.forget_renewable_password();
        }
        url
    }

    /// The addresses that the URL names.
    pub fn addresses(&self) -> Vec<&Address> {
        match &self.servers {
            BackendServers::Single(address) => vec![address],
            BackendServers::Sharded(shards) => shards.addresses().collect(),
            BackendServers::Cluster(seeds) => seeds.iter().collect(),
            BackendServers::Sentinel(sentinels) => sentinels.addresses().collect(),
        }
    }

    /// Whether its addresses are those of seed nodes or Sentinels: any one of them names the
    /// servers.
    pub fn names_entry_points(&self) -> bool {
        match self.servers {
            BackendServers::Single(_) | BackendServers::Sharded(_) => false,
            BackendServers::Cluster(_) | BackendServers::Sentinel(_) => true,
        }
    }

    /// Whether it has a password for the servers, or names the origin of one.
    pub(crate) fn has_password(&self) -> bool {
        self.password.is_some() || self.origin.is_some()
    }

    /// The fewest links that a worker needs to reach all of its servers.
    pub(crate) fn links_min(&self) -> usize {
        match &self.servers {
            BackendServers::Sentinel(sentinels) => sentinels.links_min(),
            _ => 2 * self.addresses().len(),
        }
    }
}

/// The scheme of a URL.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scheme {
    /// `redis://` and `valkey://`.
    Single,
    Unix,
    Sharded,
    Cluster,
    Sentinel,
}

impl Scheme {
    /// The scheme, and whether it means TLS.
    fn parse(text: &str) -> Result<(Scheme, bool), String> {
        match text {
            "redis" | "valkey" => Ok((Scheme::Single, false)),
            "rediss" | "valkeys" => Ok((Scheme::Single, true)),
            "unix" => Ok((Scheme::Unix, false)),
            "redis-sharded" => Ok((Scheme::Sharded, false)),
            "rediss-sharded" => Ok((Scheme::Sharded, true)),
            "redis-cluster" => Ok((Scheme::Cluster, false)),
            "rediss-cluster" => Ok((Scheme::Cluster, true)),
            "redis-sentinel" => Ok((Scheme::Sentinel, false)),
            "rediss-sentinel" => Ok((Scheme::Sentinel, true)),
            _ => Err(
                "the scheme must be redis://, valkey://, unix://, redis-sharded://, redis-cluster:// \
                 or redis-sentinel://; for TLS, rediss://, valkeys://, rediss-sharded://, \
                 rediss-cluster:// or rediss-sentinel://"
                    .into(),
            ),
        }
    }

    /// Whether its servers may have replicas, so that the parameters of [`reads`] have a meaning.
    fn has_replicas(self) -> bool {
        matches!(self, Scheme::Cluster | Scheme::Sentinel)
    }
}

/// The parts of `SCHEME://[USER[:PASSWORD]@]HOST[/PATH][?PARAMETERS]`. Only user and password are
/// decoded.
struct UrlParts<'a> {
    scheme: Scheme,
    tls: bool,
    user: Option<String>,
    password: Option<String>,
    host: &'a str,
    /// The path with its first slash; or empty.
    path: &'a str,
    parameters: &'a str,
}

impl<'a> UrlParts<'a> {
    fn split(text: &'a str) -> Result<UrlParts<'a>, String> {
        let (scheme, rest) = match text.split_once(':') {
            Some((scheme, rest)) if rest.starts_with("//") => (scheme, &rest[2..]),
            Some(("unix", path)) => ("unix", path),
            _ => return Err("needs a scheme: write redis://HOST:PORT or unix:///path".into()),
        };
        let (scheme, tls) = Scheme::parse(scheme)?;
        if rest.contains('#') {
            return Err(
                "`#` has no meaning here: in a user name or password write it as %23".into(),
            );
        }
        let (rest, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        if path.contains('@') || parameters.contains('@') {
            return Err(
                "`@` after the first `/` or `?`: in a user name or password write / as %2F, ? \
                 as %3F and @ as %40"
                    .into(),
            );
        }
        let (login, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        if login.contains('@') {
            return Err("two `@`: in a user name or password write @ as %40".into());
        }
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let decoded = |text| percent_decode(text).map(|text| Some(text).filter(|t| !t.is_empty()));
        Ok(UrlParts {
            scheme,
            tls,
            user: decoded(user)?,
            password: decoded(password)?,
            host,
            path,
            parameters,
        })
    }

    /// The names of primaries and the database in the path.
    fn names_and_db(&self) -> Result<(&'a str, Option<u32>), String> {
        if self.scheme == Scheme::Unix {
            return Ok(("", None));
        }
        // The first `/` ends the hosts.
        let lacks_host = self.host.is_empty() || self.host.ends_with(',');
        if self.scheme == Scheme::Sharded && lacks_host && self.path.len() > 1 {
            return Err("in the path of a socket write / as %2F: \
                 redis-sharded://%2Frun%2Fredis.sock,HOST:PORT"
                .into());
        }
        let path = self.path.strip_prefix('/').unwrap_or(self.path);
        let (names, db) = match self.scheme {
            Scheme::Sentinel => path.split_once('/').unwrap_or((path, "")),
            _ => ("", path),
        };
        match db {
            "" => Ok((names, None)),
            db => Ok((names, Some(parse_db(db)?))),
        }
    }

    /// The server of `unix://`.
    fn socket(&self) -> Result<BackendServers, String> {
        if !self.host.is_empty() {
            return Err("a unix URL has no host: write unix:///path, with three slashes".into());
        }
        let path = unix_path(percent_decode(self.path)?.into())?;
        Ok(BackendServers::Single(Address::Unix(path)))
    }

    /// The server of `redis://`.
    fn server(&self) -> Result<BackendServers, String> {
        if self.host.contains(',') {
            return Err(
                "names several servers: write redis-sharded:// to divide the keys among them, \
                 redis-cluster:// for nodes of a Cluster, or redis-sentinel:// for Sentinels"
                    .into(),
            );
        }
        parse_server(self.host).map(BackendServers::Single)
    }

    /// The seed nodes of `redis-cluster://`.
    fn seeds(&self) -> Result<BackendServers, String> {
        let seeds = self.host.split(',').map(parse_server);
        seeds.collect::<Result<_, _>>().map(BackendServers::Cluster)
    }
}

/// The parameters of a URL.
struct Parameters<'a> {
    db: Option<u32>,
    origin: Option<PasswordOrigin>,
    reads: Reads,
    /// Decoded parameters for [`ShardedServers`] or [`SentinelServers`].
    others: Vec<(&'a str, String)>,
    /// The name of each parameter but `db`.
    names: Vec<&'a str>,
}

impl<'a> Parameters<'a> {
    /// Parses the text behind `?`. `db` is the database in the path.
    fn parse(text: &'a str, scheme: Scheme, db: Option<u32>) -> Result<Parameters<'a>, String> {
        let mut parameters = Parameters {
            db,
            origin: None,
            reads: Reads::default(),
            others: Vec::new(),
            names: Vec::new(),
        };
        for parameter in text.split('&').filter(|parameter| !parameter.is_empty()) {
            let Some((name, value)) = parameter.split_once('=') else {
                return Err("each parameter after `?` is NAME=VALUE, such as db=0".into());
            };
            parameters.take(name, value, scheme)?;
        }
        reads::check(&parameters.reads)?;
        Ok(parameters)
    }

    fn take(&mut self, name: &'a str, value: &str, scheme: Scheme) -> Result<(), String> {
        if name == "db" {
            if self.db.is_some() {
                return Err("names the database twice".into());
            }
            self.db = Some(parse_db(value)?);
            return Ok(());
        }
        self.names.push(name);
        let value = percent_decode(value)?;
        if let Some(origin) = ORIGINS.parse(name, &value) {
            let before = self.origin.replace(origin?);
            return match before {
                // Two of one name are found later.
                Some(before) if ORIGINS.name_of(&before) != name => Err(format!(
                    "has a {} and a {}: remove one of them",
                    ORIGINS.file, ORIGINS.command
                )),
                _ => Ok(()),
            };
        }
        if scheme.has_replicas()
            && let Some(taken) = reads::take(&mut self.reads, name, &value)
        {
            return taken;
        }
        match scheme {
            Scheme::Sharded | Scheme::Sentinel => {
                self.others.push((name, value));
                Ok(())
            }
            Scheme::Cluster => Err(format!(
                "the parameters after `?` are db, password-file, password-command, {PARAMETERS}"
            )),
            Scheme::Single | Scheme::Unix => Err(ONLY_DB.into()),
        }
    }

    /// Refuses a name that is given twice. The error repeats the name, so the caller must have
    /// checked first that each name is one of a parameter.
    fn check_names(mut self) -> Result<(), String> {
        self.names.sort_unstable();
        match self.names.windows(2).find(|two| two[0] == two[1]) {
            Some(two) => Err(format!("the parameter {} is given twice", two[0])),
            None => Ok(()),
        }
    }
}

/// Parses the URL of a pool's servers; see [`Scheme`].
pub(crate) fn parse_backend(text: &str) -> Result<BackendUrl, String> {
    let url = UrlParts::split(text)?;
    let (names, db) = url.names_and_db()?;
    let servers = match url.scheme {
        Scheme::Single => Some(url.server()?),
        Scheme::Unix => Some(url.socket()?),
        Scheme::Cluster => Some(url.seeds()?),
        // Their lists of servers have parameters, which follow.
        Scheme::Sharded | Scheme::Sentinel => None,
    };
    let mut parameters = Parameters::parse(url.parameters, url.scheme, db)?;
    if let Some(origin) = parameters
        .origin
        .as_ref()
        .filter(|_| url.password.is_some())
    {
        let name = ORIGINS.name_of(origin);
        return Err(format!("has a password and a {name}: remove one of them"));
    }
    let others = std::mem::take(&mut parameters.others).into_iter();
    let servers = match servers {
        Some(servers) => servers,
        None if url.scheme == Scheme::Sharded => {
            BackendServers::Sharded(ShardedServers::parse(url.host, others)?)
        }
        None => BackendServers::Sentinel(SentinelServers::parse(
            url.host,
            &percent_decode(names)?,
            others,
        )?),
    };
    let backend = BackendUrl {
        servers,
        tls: url.tls,
        user: url.user,
        password: url.password,
        origin: parameters.origin.take(),
        source: None,
        db: parameters.db.unwrap_or(0),
        reads: std::mem::take(&mut parameters.reads),
    };
    parameters.check_names()?;
    let has_socket = |at: &&Address| matches!(at, Address::Unix(_));
    if backend.tls && backend.addresses().iter().any(has_socket) {
        return Err(
            "names a socket in the file system, and TLS is for HOST:PORT: write redis-sharded://"
                .into(),
        );
    }
    Ok(backend)
}

fn parse_db(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(db) if db <= DB_MAX => Ok(db),
        _ => Err("the database must be a number, such as 0".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp {
            host: host.into(),
            port,
        }
    }

    #[test]
    fn backend_url_is_parsed_in_all_its_parts() {
        let url = |address, user: Option<&str>, password: Option<&str>, db| BackendUrl {
            servers: BackendServers::Single(address),
            tls: false,
            user: user.map(str::to_owned),
            password: password.map(str::to_owned),
            origin: None,
            source: None,
            db,
            reads: Reads::default(),
        };
        let socket = || Address::Unix("/run/r s.sock".into());
        let file = parse_backend("redis://u@h:1?password-file=/run/a%20b&db=3").unwrap();
        assert_eq!(file.origin, Some(PasswordOrigin::File("/run/a b".into())));
        assert_eq!(file.to_string(), "redis://u@h:1/3?password-file=/run/a%20b");
        let command = parse_backend("redis://u@h:1?password-command=/bin/token%20-x").unwrap();
        let shown = "redis://u@h:1/0?password-command=/bin/token%20-x";
        assert_eq!(command.to_string(), shown);
        assert_eq!(parse_backend(shown).unwrap(), command);
        for (text, backend) in [
            ("redis://host", url(tcp("host", 6379), None, None, 0)),
            ("redis://host/", url(tcp("host", 6379), None, None, 0)),
            ("valkey://host:1/15", url(tcp("host", 1), None, None, 15)),
            ("redis://host:1?db=15", url(tcp("host", 1), None, None, 15)),
            ("redis://[::1]", url(tcp("::1", 6379), None, None, 0)),
            ("redis://[::1]:7/2", url(tcp("::1", 7), None, None, 2)),
            (
                "redis://:p%40ss@h:1",
                url(tcp("h", 1), None, Some("p@ss"), 0),
            ),
            (
                "redis://u:p:q@h:1",
                url(tcp("h", 1), Some("u"), Some("p:q"), 0),
            ),
            ("redis://%C3%A9@h:1", url(tcp("h", 1), Some("é"), None, 0)),
            ("unix:///run/r%20s.sock", url(socket(), None, None, 0)),
            ("unix:/run/r%20s.sock?db=3", url(socket(), None, None, 3)),
            (
                "unix://u:p@/run/r%20s.sock?db=3",
                url(socket(), Some("u"), Some("p"), 3),
            ),
        ] {
            assert_eq!(parse_backend(text), Ok(backend), "{text}");
        }
    }

    #[test]
    fn cluster_and_sentinel_urls_have_several_hosts() {
        let backend =
            |text: &str| parse_backend(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let cluster = backend("redis-cluster://u:p@h,[::1]:7,i:8/0");
        let seeds = vec![tcp("h", 6379), tcp("::1", 7), tcp("i", 8)];
        assert!(
            cluster.servers == BackendServers::Cluster(seeds),
            "{cluster}"
        );
        assert_eq!(cluster.user.as_deref(), Some("u"));
        assert_eq!(cluster.password.as_deref(), Some("p"));
        for (text, db) in [
            ("redis-sentinel://u:p@h,[::1]:7,i:8/m", 0),
            ("redis-sentinel://u:p@h,[::1]:7,i:8/m/", 0),
            ("redis-sentinel://u:p@h,[::1]:7,i:8/m/3", 3),
            ("redis-sentinel://u:p@h,[::1]:7,i:8/m,n/3?hash=murmur", 3),
            (
                "redis-sentinel://u:p@h,[::1]:7,i:8/m?db=3&sentinel-user=s&sentinel-password=q",
                3,
            ),
        ] {
            let watched = backend(text);
            let seeds = [tcp("h", 26_379), tcp("::1", 7), tcp("i", 8)];
            assert_eq!(
                watched.addresses(),
                seeds.iter().collect::<Vec<_>>(),
                "{text}"
            );
            assert_eq!(watched.db, db, "{text}");
            // User and password are those of the servers, not of the Sentinels.
            assert_eq!(watched.user.as_deref(), Some("u"), "{text}");
            assert_eq!(watched.password.as_deref(), Some("p"), "{text}");
        }
    }

    /// The error names the right form and repeats nothing of the URL.
    #[test]
    fn wrong_backend_url_is_an_error_without_its_secret() {
        for (text, error) in [
            ("SECRET:6379", "needs a scheme"),
            ("redisss://:SECRET@host", "for TLS, rediss://"),
            ("rediss://:SECRET@host:0", "from 1 to 65535"),
            (
                "rediss-sharded://:SECRET@h:1,%2Frun%2Fa.sock",
                "TLS is for HOST:PORT",
            ),
            ("http://:SECRET@host", "the scheme must be"),
            ("redis://:SECRET#1@host", "%23"),
            ("redis://:SECRET/1@host", "%2F"),
            ("redis://:SECRET?1@host", "%3F"),
            ("redis://:SECRET@1@host", "%40"),
            ("redis://:SECRET%1g@host", "two hexadecimal digits"),
            ("redis://:SECRET%ff@host", "not UTF-8"),
            ("redis://:SECRET%00@host", "a zero byte"),
            ("redis://:SECRET@", "needs a host"),
            ("redis://host:SECRET", "from 1 to 65535"),
            ("redis://host:0", "from 1 to 65535"),
            ("redis://::1:6379", "in brackets"),
            ("redis://host/SECRET", "the database must be a number"),
            ("redis://host/2147483648", "the database must be a number"),
            ("redis://host/1?db=1", "the database twice"),
            (
                "redis://host?SECRET=1",
                "are db, password-file and password-command",
            ),
            ("redis-cluster://host?SECRET", "NAME=VALUE"),
            ("unix://host/run/r.sock", "three slashes"),
            ("unix:", "needs the path"),
            ("redis-sharded://h:1", "two servers at least"),
            ("redis-sharded://h:1,", "needs a host"),
            ("redis-sharded://h:1:0,h:2", "weight must be"),
            ("redis-sharded://%2Fa.sock:0,h:2", "weight must be"),
            ("redis-sharded://%2F,h:2", "needs the path"),
            ("redis-sharded:///run/a.sock,/run/b.sock", "as %2F"),
            ("redis-sharded://h:1,/run/b.sock", "as %2F"),
            ("redis-sharded://h:1,h:1", "two servers have the name"),
            ("redis-sharded://h:1,h:2?SECRET=1", "the parameters after"),
            (
                "redis-sharded://h:1,h:2?names=SECRET",
                "one name for each server",
            ),
            (
                "redis-sharded://h:1,h:2?hash=SECRET",
                "hash is one of one_at_a_time",
            ),
            (
                "redis-sharded://h:1,h:2?distribution=SECRET",
                "one of ketama",
            ),
            (
                "redis-sharded://h:1,h:2?like=SECRET",
                "twemproxy or predixy",
            ),
            (
                "redis-sharded://h:1,h:2?like=predixy&hash=murmur",
                "one of atol",
            ),
            (
                "redis-sharded://h:1,h:2?like=predixy&distribution=ketama",
                "modula",
            ),
            ("redis-sharded://h:1,h:2:3?like=predixy", "has no weights"),
            (
                "redis-sharded://h:1,h:2?like=predixy&names=a,b",
                "leave names out",
            ),
            (
                "redis-sharded://h:1,h:2,h:1?like=predixy",
                "'h:1' stands there twice",
            ),
            ("redis-sharded://h:1,h:2?hash-tag=SECRET", "two characters"),
            ("redis-cluster://:SECRET@", "needs a host"),
            ("redis-cluster://h:1,", "needs a host"),
            ("redis-cluster://h:1,h:SECRET", "from 1 to 65535"),
            (
                "redis-cluster://h:1?SECRET=1",
                "db, password-file, password-command, reads,",
            ),
            (
                "redis-cluster://h:1?reads=SECRET",
                "reads is one of primary, ",
            ),
            (
                "redis-cluster://h:1?zone=SECRET",
                "say which, such as reads=",
            ),
            (
                "redis-cluster://h:1?reads=nearest&zone=",
                "a zone has a name",
            ),
            (
                "redis-cluster://h:1?reads=nearest&zone=a:SECRET",
                "no colon",
            ),
            (
                "redis-cluster://h:1?reads=nearest&zones=10.:SECRET",
                "zone=NAME gives that of respool",
            ),
            (
                "redis-cluster://h:1?reads=nearest&zone=a&zones=SECRET",
                "prefixes of hosts",
            ),
            (
                "redis-cluster://h:1?reads=replica&weights=h:1",
                "HOST:PORT:WEIGHT",
            ),
            (
                "redis-cluster://h:1?reads=replica&weights=h:1:SECRET",
                "from 0 to 65535",
            ),
            (
                "redis-cluster://h:1?reads=replica&own-writes=SECRET",
                "all, or asked",
            ),
            (
                "redis-cluster://h:1?reads=replica&own-writes-ms=SECRET",
                "a number up to",
            ),
            (
                "redis-sharded://h:1,h:2?reads=replica",
                "the parameters after",
            ),
            (
                "redis-cluster://h:1?reads=nearest&own-writes=all&reads=replica",
                "the parameter reads is given twice",
            ),
            (
                "redis-sharded://h:1,h:2?names=a,b&names=c,d",
                "the parameter names is given twice",
            ),
            (
                "redis-sentinel://h:1/m?sentinel-password=SECRET&sentinel-user=u&sentinel-password=SECRET",
                "the parameter sentinel-password is given twice",
            ),
            (
                "redis-sentinel://h:1/m?SECRET=1&SECRET=1",
                "the parameters after",
            ),
            ("redis://h:1?db=1&db=1", "the database twice"),
            ("unix:///s?db=1&db=1", "the database twice"),
            ("redis://:p@h?password-file=/f", "remove one of them"),
            ("redis://h?password-file=", "must be a path"),
            ("redis://:p@h?password-command=/c", "remove one of them"),
            (
                "redis://h?password-command=/c&password-file=/f",
                "has a password-file and a password-command",
            ),
            (
                "redis://h?password-command=/c&password-command=/d",
                "password-command is given twice",
            ),
            ("redis://h?password-command=SECRET", "the absolute path"),
            (
                "redis://h?password-file=/f&password-file=/g",
                "password-file is given twice",
            ),
            (
                "redis-sentinel://h/m?sentinel-password=p&sentinel-password-file=/f",
                "remove one of them",
            ),
            (
                "redis://h:1?reads=replica",
                "are db, password-file and password-command",
            ),
            ("redis-cluster://h:1/SECRET", "the database must be"),
            ("redis-sentinel://:SECRET@", "needs a host"),
            ("redis-sentinel://h:1,/m", "needs a host"),
            ("redis-sentinel://h:SECRET/m", "from 1 to 65535"),
            (
                "redis-sentinel://h:1/m,n,m?like=predixy",
                "'m' stands there twice",
            ),
            (
                "redis-sentinel://:SECRET@h:1",
                "the name of the primary at the Sentinels",
            ),
            (
                "redis-sentinel://:SECRET@h:1/m,",
                "the name of the primary at the Sentinels",
            ),
            ("redis-sentinel://h:1/m/SECRET", "the database must be"),
            ("redis-sentinel://h:1/m/1?db=1", "the database twice"),
            ("redis-sentinel://h:1/m%00SECRET", "a zero byte"),
            ("redis-sentinel://h:1/SECRET@m", "`@` after the first"),
            (
                "redis-sentinel://h:1/m?sentinel-password=%SECRET",
                "two hexadecimal digits",
            ),
        ] {
            let told = parse_backend(text).expect_err(text);
            assert!(told.contains(error), "{text}: {told}");
            assert!(!told.contains("SECRET"), "{told}");
        }
    }

    #[test]
    fn shown_backend_url_parses_as_itself_without_password() {
        for text in [
            "redis://u%40x:p@h:1/2",
            "unix://u%2F:p@/run/r%20s%3F.sock?db=3",
            "redis://:p@[::1]:1",
            "redis-sharded://u:p@h:1,[::1]:2:3/4?names=a,b&hash=murmur&distribution=modula&hash-tag=%24%24",
            "redis-sharded://h:1,h:2?like=predixy&hash-tag=",
            "redis-sharded://%2Frun%2Fa%5D%2C.sock:3,%2frun%2fb.sock,h:1",
            "redis-cluster://u%40x:p@h:1,[::1]:2/0",
            "redis-cluster://u%40x:p@h:1/0?reads=nearest&zone=a&zones=10.1.:a,10.:b&weights=h:1:3,[::1]:2:0&own-writes=all\
             &own-writes-ms=0",
            "redis-sentinel://u%40x:p@h:1/m/0?reads=prefer-primary",
            "redis-sentinel://u%40x:p@h:1,[::1]:2/m/3",
            "redis-sentinel://h/m%25%2F%3F%40%23%C3%A9",
            "redis-sentinel://h:1/m,n/4?hash=murmur&distribution=modula&hash-tag=%24%24",
            "redis-sentinel://h:1/m,n?like=predixy",
            "rediss://u%40x:p@h:1/2",
            "valkeys://h",
            "rediss-sharded://h:1,h:2/4?names=a,b",
            "rediss-cluster://h:1,[::1]:2/0?reads=nearest",
            "rediss-sentinel://h:1,[::1]:2/m/3",
        ] {
            let mut backend = parse_backend(text).expect(text);
            backend.password = None;
            assert_eq!(
                parse_backend(&backend.to_string()),
                Ok(backend.clone()),
                "{backend}"
            );
            assert_eq!(
                backend.tls,
                text.split("://")
                    .next()
                    .is_some_and(|scheme| { scheme.starts_with("rediss") || scheme == "valkeys" })
            );
            assert!(!format!("{backend:?}").contains("p@"), "{backend:?}");
        }
    }
}

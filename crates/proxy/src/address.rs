//! How listeners and the server behind us are written: `HOST:PORT`, `unix:/path`, `redis://...`.
//!
//! The texts of the errors never repeat what they were given: a URL that does not parse may hold a
//! password in the wrong place.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

use respool_engine::settings::{Address, Announced, PasswordSource, Reads};

use crate::options::parse_path;
use crate::reads::{self, PARAMETERS};
use crate::sharded::Shards;
use crate::watched::Watched;

const ONLY_DB: &str = "the parameters after `?` are db and password-file";

/// The parameter of every URL that names the file with the password.
pub(crate) const PASSWORD_FILE: &str = "password-file";

/// What Redis listens on unless told otherwise.
const REDIS_PORT: u16 = 6379;
/// The same of Sentinels.
pub(crate) const SENTINEL_PORT: u16 = 26_379;

/// Bytes of a socket's path: `sun_path` of the kernel's `sockaddr_un`, without its final zero.
pub(crate) const UNIX_PATH_BYTES_MAX: usize = 107;

/// The highest database number: Redis reads it as a signed 32-bit integer.
const DB_MAX: u32 = i32::MAX as u32;

/// Which servers a URL names.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Named {
    /// One, and where it listens.
    One(Address),
    /// Several, among which keys are divided.
    Sharded(Shards),
    /// Nodes of a Cluster, which know the others.
    Cluster(Vec<Address>),
    /// Those that Sentinels watch.
    Watched(Watched),
}

/// What is behind us, as its URL says it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct BackendUrl {
    /// Where it is.
    pub(crate) servers: Named,
    /// Who we are to it.
    pub(crate) user: Option<String>,
    /// Clear text.
    pub(crate) password: Option<String>,
    /// The file that has the password instead.
    pub(crate) password_file: Option<PathBuf>,
    /// The number of that file among all that hold passwords, once it was read.
    pub(crate) source: Option<PasswordSource>,
    /// The database that a session starts in.
    pub(crate) db: u32,
    /// Where keys are read.
    pub(crate) reads: Reads,
}

impl Default for BackendUrl {
    fn default() -> Self {
        let address = Address::Tcp {
            host: "127.0.0.1".into(),
            port: REDIS_PORT,
        };
        BackendUrl {
            servers: Named::One(address),
            user: None,
            password: None,
            password_file: None,
            source: None,
            db: 0,
            reads: Reads::default(),
        }
    }
}

// Without the password: this is what logs, `check` and `--print` show.
impl fmt::Display for BackendUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = match &self.user {
            Some(user) => format!("{}@", percent_encode(user, b"-._~")),
            None => String::new(),
        };
        let mut parameters = Vec::new();
        if let Some(path) = &self.password_file {
            parameters.push((PASSWORD_FILE, path.to_string_lossy().into_owned()));
        }
        match &self.servers {
            Named::One(Address::Unix(path)) => {
                let path = percent_encode(&path.to_string_lossy(), b"-._~/");
                write!(f, "unix://{user}{path}")?;
                parameters.insert(0, ("db", self.db.to_string()));
            }
            Named::One(address) => write!(f, "redis://{user}{address}/{}", self.db)?,
            Named::Cluster(seeds) => {
                let seeds: Vec<_> = seeds.iter().map(Address::to_string).collect();
                write!(f, "redis-cluster://{user}{}/{}", seeds.join(","), self.db)?;
                parameters.extend(reads::parameters(&self.reads));
            }
            Named::Sharded(shards) => {
                write!(f, "redis-sharded://{user}{shards}/{}", self.db)?;
                parameters.extend(shards.parameters());
            }
            Named::Watched(watched) => {
                write!(f, "redis-sentinel://{user}{watched}/{}", self.db)?;
                parameters.extend(watched.parameters());
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

/// Reads `HOST:PORT`, `[::1]:6380`, `:6380` or `unix:/path`.
pub(crate) fn parse_listener(text: &str) -> Result<Address, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        // `unix:///path` is how the backend is written; the same path is meant.
        let path = path.strip_prefix("//").unwrap_or(path);
        return unix_path(path.into()).map(Address::Unix);
    }
    if text.contains("://") {
        return Err("a listener is HOST:PORT or unix:/path, without a scheme".into());
    }
    if text.contains(',') {
        return Err("holds a comma: each listener is given by itself".into());
    }
    let (host, port) = match text.rsplit_once(':') {
        Some(parts) => parts,
        None if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => {
            return Err(
                "is only a port: write :PORT for every address of this machine, or \
                        127.0.0.1:PORT for this machine alone"
                    .into(),
            );
        }
        None => return Err("needs a port: write HOST:PORT or unix:/path".into()),
    };
    let host = if host.is_empty() {
        "0.0.0.0".into()
    } else {
        parse_host(host)?
    };
    let port = port
        .parse()
        .map_err(|_| "the port must be a number from 0 to 65535")?;
    Ok(Address::Tcp { host, port })
}

/// `HOST[:PORT]`.
pub(crate) fn parse_announced(text: &str) -> Result<Announced, String> {
    if text.contains("://") || text.starts_with("unix:") {
        return Err("must be HOST or HOST:PORT, without a scheme".into());
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("is only a port: write HOST:PORT".into());
    }
    if text.contains(',') {
        return Err("holds a comma: one address stands for all listeners".into());
    }
    let (host, port) = host_and_port(text)?;
    if host.is_empty() {
        return Err("needs a host: write HOST or HOST:PORT".into());
    }
    let host = parse_host(host)?;
    if host.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified()) {
        return Err(
            "is no address that clients can connect to: write the one that they use".into(),
        );
    }
    Ok(Announced { host, port })
}

impl BackendUrl {
    /// Where its servers listen.
    pub(crate) fn addresses(&self) -> Vec<&Address> {
        match &self.servers {
            Named::One(address) => vec![address],
            Named::Sharded(shards) => shards.addresses().collect(),
            Named::Cluster(seeds) => seeds.iter().collect(),
            Named::Watched(watched) => watched.addresses().collect(),
        }
    }

    /// Whether it has a login to the servers, by a password or by a file.
    pub(crate) fn has_password(&self) -> bool {
        self.password.is_some() || self.password_file.is_some()
    }

    /// Without so many links not all of it can be used.
    pub(crate) fn links_min(&self) -> usize {
        match &self.servers {
            Named::Watched(watched) => watched.links_min(),
            _ => 2 * self.addresses().len(),
        }
    }
}

/// Reads `redis://[user:pass@]host[:port][/db]`, `unix://[user:pass@]/path[?db=N]`, or the URL of [`Shards`].
pub(crate) fn parse_backend(text: &str) -> Result<BackendUrl, String> {
    let (scheme, rest) = match text.split_once(':') {
        Some((scheme, rest)) if rest.starts_with("//") => (scheme, &rest[2..]),
        Some(("unix", path)) => ("unix", path),
        _ => return Err("needs a scheme: write redis://HOST:PORT or unix:///path".into()),
    };
    match scheme {
        "redis" | "valkey" | "unix" | "redis-sharded" | "redis-cluster" | "redis-sentinel" => {}
        "rediss" | "valkeys" => {
            return Err(
                "TLS to the server is not supported: use redis:// or unix:// on a network \
                        that you trust, or a TLS tunnel in front of the server"
                    .into(),
            );
        }
        _ => {
            return Err(
                "the scheme must be redis://, valkey://, unix://, redis-sharded://, redis-cluster:// or \
                 redis-sentinel://"
                    .into(),
            );
        }
    }
    if rest.contains('#') {
        return Err("`#` has no meaning here: in a user name or password write it as %23".into());
    }
    let (rest, parameters) = match rest.split_once('?') {
        Some((rest, parameters)) => (rest, parameters),
        None => (rest, ""),
    };
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
    let (who, host) = match authority.rsplit_once('@') {
        Some((who, host)) => (Some(who), host),
        None => (None, authority),
    };
    let (user, password) = match who {
        None => ("", ""),
        Some(who) if who.contains('@') => {
            return Err("two `@`: in a user name or password write @ as %40".into());
        }
        Some(who) => who.split_once(':').unwrap_or((who, "")),
    };
    let decoded = |text| percent_decode(text).map(|text| Some(text).filter(|t| !t.is_empty()));
    let (user, password) = (decoded(user)?, decoded(password)?);

    let mut db = None;
    let mut names = "";
    let one = if scheme == "unix" {
        if !host.is_empty() {
            return Err("a unix URL has no host: write unix:///path, with three slashes".into());
        }
        let path = unix_path(percent_decode(path)?.into())?;
        Some(Named::One(Address::Unix(path)))
    } else {
        // The hosts end at the first `/`.
        let lacks_host = host.is_empty() || host.ends_with(',');
        if scheme == "redis-sharded" && lacks_host && path.len() > 1 {
            return Err(
                "in the path of a socket write / as %2F: redis-sharded://%2Frun%2Fredis.sock,HOST:PORT"
                    .into(),
            );
        }
        let path = path.strip_prefix('/').unwrap_or(path);
        let number = match scheme {
            "redis-sentinel" => {
                let (list, number) = path.split_once('/').unwrap_or((path, ""));
                names = list;
                number
            }
            _ => path,
        };
        match number {
            "" => {}
            number => db = Some(parse_db(number)?),
        }
        match scheme {
            "redis-sharded" | "redis-sentinel" => None,
            "redis-cluster" => {
                let seeds: Result<_, _> = host.split(',').map(parse_server).collect();
                Some(Named::Cluster(seeds?))
            }
            _ if host.contains(',') => {
                return Err(
                    "names several servers: write redis-sharded:// to divide the keys among them, \
                     redis-cluster:// for nodes of a Cluster, or redis-sentinel:// for Sentinels"
                        .into(),
                );
            }
            _ => Some(Named::One(parse_server(host)?)),
        }
    };
    let has_replicas = matches!(scheme, "redis-cluster" | "redis-sentinel");
    let mut reads = Reads::default();
    let mut password_file = None;
    let (mut given, mut others) = (Vec::new(), Vec::new());
    for parameter in parameters
        .split('&')
        .filter(|parameter| !parameter.is_empty())
    {
        match parameter.split_once('=') {
            Some(("db", _)) if db.is_some() => return Err("names the database twice".into()),
            Some(("db", number)) => db = Some(parse_db(number)?),
            Some((PASSWORD_FILE, value)) => {
                given.push(PASSWORD_FILE);
                password_file = Some(parse_path(&percent_decode(value)?)?);
            }
            Some((name, value)) => {
                given.push(name);
                let value = percent_decode(value)?;
                let taken = match has_replicas {
                    true => reads::take(&mut reads, name, &value),
                    false => None,
                };
                match taken {
                    Some(taken) => taken?,
                    None if one.is_none() => others.push((name, value)),
                    None if has_replicas => {
                        return Err(format!(
                            "the parameters after `?` are db, password-file, {PARAMETERS}"
                        ));
                    }
                    None => return Err(ONLY_DB.into()),
                }
            }
            None => {
                return Err("each parameter after `?` is NAME=VALUE, such as db=0".into());
            }
        }
    }
    reads::check(&reads)?;
    if password.is_some() && password_file.is_some() {
        return Err("has a password and a password-file: leave one of them away".into());
    }
    let servers = match one {
        Some(named) => named,
        None if scheme == "redis-sentinel" => {
            let names = percent_decode(names)?;
            Named::Watched(Watched::parse(host, &names, others.into_iter())?)
        }
        None => Named::Sharded(Shards::parse(host, others.into_iter())?),
    };
    // By now all are known names, and so nobody's secret.
    given.sort_unstable();
    if let Some(two) = given.windows(2).find(|two| two[0] == two[1]) {
        return Err(format!("the parameter {} is given twice", two[0]));
    }
    Ok(BackendUrl {
        servers,
        user,
        password,
        password_file,
        source: None,
        db: db.unwrap_or(0),
        reads,
    })
}

pub(crate) fn parse_server(text: &str) -> Result<Address, String> {
    parse_server_at(text, REDIS_PORT)
}

/// The same; `otherwise` is the port if none is said.
pub(crate) fn parse_server_at(text: &str, otherwise: u16) -> Result<Address, String> {
    let (host, port) = host_and_port(text)?;
    if host.is_empty() {
        return Err("needs a host: write redis://HOST:PORT".into());
    }
    Ok(Address::Tcp {
        host: parse_host(host)?,
        port: port.unwrap_or(otherwise),
    })
}

/// The host, not looked at, and the port, if there is one.
fn host_and_port(text: &str) -> Result<(&str, Option<u16>), String> {
    match text.rsplit_once(':') {
        // The colons of `[::1]` are no port's.
        Some((_, port)) if port.ends_with(']') => Ok((text, None)),
        None => Ok((text, None)),
        Some((host, port)) => match port.parse() {
            Ok(port) if port > 0 => Ok((host, Some(port))),
            _ => Err("the port must be a number from 1 to 65535".into()),
        },
    }
}

fn parse_host(text: &str) -> Result<String, String> {
    if let Some(inner) = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
    {
        return match inner.parse::<Ipv6Addr>() {
            Ok(address) => Ok(address.to_string()),
            Err(_) => Err("what stands in [ ] must be an IPv6 address".into()),
        };
    }
    if text.contains(':') {
        return Err("an IPv6 address stands in brackets: [::1]:PORT".into());
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if !text.bytes().all(allowed) {
        return Err("a host name has only letters, digits, `-`, `_` and `.`".into());
    }
    Ok(text.into())
}

fn parse_db(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(db) if db <= DB_MAX => Ok(db),
        _ => Err("the database must be a number, such as 0".into()),
    }
}

pub(crate) fn unix_path(path: PathBuf) -> Result<PathBuf, String> {
    let bytes = path.as_os_str().len();
    if bytes == 0 || path == Path::new("/") {
        return Err("needs the path of a socket: unix:/run/respool.sock".into());
    }
    if bytes > UNIX_PATH_BYTES_MAX {
        return Err(format!(
            "the path has {bytes} bytes, and the kernel takes {UNIX_PATH_BYTES_MAX} at the most: \
             use a shorter one"
        ));
    }
    Ok(path)
}

pub(crate) fn percent_decode(text: &str) -> Result<String, String> {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != b'%' {
            decoded.push(bytes[at]);
            at += 1;
            continue;
        }
        match (digit(bytes.get(at + 1)), digit(bytes.get(at + 2))) {
            (Some(high), Some(low)) => decoded.push((high * 16 + low) as u8),
            _ => return Err("after `%` come two hexadecimal digits; % itself is %25".into()),
        }
        at += 3;
    }
    match String::from_utf8(decoded) {
        Ok(text) if text.contains('\0') => Err("holds a zero byte".into()),
        Ok(text) => Ok(text),
        Err(_) => Err("is not UTF-8 once its %XX are decoded".into()),
    }
}

pub(crate) fn percent_encode(text: &str, plain: &[u8]) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || plain.contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
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
    fn every_way_to_write_a_listener_is_understood() {
        for (text, address) in [
            ("127.0.0.1:6380", tcp("127.0.0.1", 6380)),
            ("localhost:0", tcp("localhost", 0)),
            (":6380", tcp("0.0.0.0", 6380)),
            ("[::1]:6380", tcp("::1", 6380)),
            ("[::]:6380", tcp("::", 6380)),
            ("unix:/run/r.sock", Address::Unix("/run/r.sock".into())),
            ("unix:///run/r.sock", Address::Unix("/run/r.sock".into())),
            ("unix:r.sock", Address::Unix("r.sock".into())),
        ] {
            assert_eq!(parse_listener(text), Ok(address), "{text}");
        }
    }

    #[test]
    fn a_listener_that_is_none_is_told_what_to_write() {
        let long = format!("unix:/{}", "x".repeat(UNIX_PATH_BYTES_MAX));
        for (text, error) in [
            ("6380", "is only a port"),
            ("", "needs a port"),
            ("localhost", "needs a port"),
            ("::1:6380", "in brackets"),
            ("[::1]", "brackets"),
            ("[nonsense]:1", "must be an IPv6 address"),
            ("a b:1", "a host name has only"),
            ("host:65536", "from 0 to 65535"),
            ("host:", "from 0 to 65535"),
            ("redis://host:1", "without a scheme"),
            ("unix:", "needs the path of a socket"),
            (long.as_str(), "has 108 bytes"),
        ] {
            let told = parse_listener(text).expect_err(text);
            assert!(told.contains(error), "{text}: {told}");
        }
    }

    #[test]
    fn what_is_announced_is_a_host_that_can_be_reached_with_or_without_a_port() {
        for (text, host, port) in [
            ("cache.example", "cache.example", None),
            ("cache.example:7000", "cache.example", Some(7000)),
            ("203.0.113.7", "203.0.113.7", None),
            ("[2001:db8::7]", "2001:db8::7", None),
            ("[2001:db8::7]:7000", "2001:db8::7", Some(7000)),
        ] {
            let host = host.to_owned();
            let announced = parse_announced(text).expect(text);
            assert_eq!(announced, Announced { host, port }, "{text}");
            assert_eq!(announced.to_string(), text);
        }
        for (text, error) in [
            ("", "needs a host"),
            (":7000", "needs a host"),
            ("7000", "is only a port"),
            ("host:0", "from 1 to 65535"),
            ("host:", "from 1 to 65535"),
            ("2001:db8::7", "in brackets"),
            ("[host]", "must be an IPv6 address"),
            ("a b", "a host name has only"),
            ("a:1,b:2", "holds a comma"),
            ("redis://host:1", "without a scheme"),
            ("unix:/a", "without a scheme"),
            ("0.0.0.0:7000", "is no address that clients"),
            ("[::]", "is no address that clients"),
        ] {
            let told = parse_announced(text).expect_err(text);
            assert!(told.contains(error), "{text}: {told}");
        }
    }

    #[test]
    fn every_part_of_a_backend_url_is_understood() {
        let url = |address, user: Option<&str>, password: Option<&str>, db| BackendUrl {
            servers: Named::One(address),
            user: user.map(str::to_owned),
            password: password.map(str::to_owned),
            password_file: None,
            source: None,
            db,
            reads: Reads::default(),
        };
        let socket = || Address::Unix("/run/r s.sock".into());
        let file = parse_backend("redis://u@h:1?password-file=/run/a%20b&db=3").unwrap();
        assert_eq!(file.password_file.as_deref(), Some(Path::new("/run/a b")));
        assert_eq!(file.to_string(), "redis://u@h:1/3?password-file=/run/a%20b");
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
    fn the_nodes_of_a_cluster_and_who_watches_a_primary_are_lists() {
        let backend =
            |text: &str| parse_backend(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let cluster = backend("redis-cluster://u:p@h,[::1]:7,i:8/0");
        let seeds = vec![tcp("h", 6379), tcp("::1", 7), tcp("i", 8)];
        assert!(cluster.servers == Named::Cluster(seeds), "{cluster}");
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
            // They are the servers'.
            assert_eq!(watched.user.as_deref(), Some("u"), "{text}");
            assert_eq!(watched.password.as_deref(), Some("p"), "{text}");
        }
    }

    #[test]
    fn a_backend_url_that_is_none_is_told_what_to_write_and_keeps_its_secret() {
        for (text, error) in [
            ("SECRET:6379", "needs a scheme"),
            (
                "rediss://:SECRET@host",
                "TLS to the server is not supported",
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
            ("redis://host?SECRET=1", "are db and password-file"),
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
            ("redis-cluster://h:1?SECRET=1", "db, password-file, reads,"),
            (
                "redis-cluster://h:1?reads=SECRET",
                "reads is one of primary, ",
            ),
            ("redis-cluster://h:1?zone=SECRET", "say which, as by reads="),
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
                "zone=NAME says where we are",
            ),
            (
                "redis-cluster://h:1?reads=nearest&zone=a&zones=SECRET",
                "how hosts begin",
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
            ("redis://:p@h?password-file=/f", "leave one of them away"),
            ("redis://h?password-file=", "must be a path"),
            (
                "redis://h?password-file=/f&password-file=/g",
                "password-file is given twice",
            ),
            (
                "redis-sentinel://h/m?sentinel-password=p&sentinel-password-file=/f",
                "leave one of them away",
            ),
            ("redis://h:1?reads=replica", "are db and password-file"),
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
                "what the Sentinels call the primary",
            ),
            (
                "redis-sentinel://:SECRET@h:1/m,",
                "what the Sentinels call the primary",
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
    fn a_shown_backend_reads_as_itself_without_its_password() {
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
        ] {
            let mut backend = parse_backend(text).expect(text);
            backend.password = None;
            assert_eq!(
                parse_backend(&backend.to_string()),
                Ok(backend.clone()),
                "{backend}"
            );
            assert!(!format!("{backend:?}").contains("p@"), "{backend:?}");
        }
    }
}

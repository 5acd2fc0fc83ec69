//! Addresses of listeners and servers: `HOST:PORT`, `unix:/path`, names in certificates.
//!
//! An error never repeats the address: the text may be a URL with a password.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

use respool_engine::settings::{Address, Announced};

/// The default port of Redis and Valkey.
pub(crate) const REDIS_PORT: u16 = 6379;
/// The default port of Sentinels.
pub(crate) const SENTINEL_PORT: u16 = 26_379;

/// Bytes of a socket's path: `sun_path` of the kernel's `sockaddr_un`, without the final zero.
pub const UNIX_PATH_BYTES_MAX: usize = 107;

/// In front of an address on which clients use TLS.
pub(crate) const TLS_PREFIX: &str = "tls:";

/// An address on which respool listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListenAt {
    /// The address.
    pub address: Address,
    /// Whether clients use TLS there.
    pub tls: bool,
}

impl ListenAt {
    /// Parses a listener, or `tls:` and a listener.
    pub(crate) fn parse(text: &str) -> Result<ListenAt, String> {
        let (tls, text) = match text.strip_prefix(TLS_PREFIX) {
            Some(address) => (true, address),
            None => (false, text),
        };
        let address = parse_listener(text)?;
        Ok(ListenAt { address, tls })
    }

    /// The option that adds such a listener.
    pub(crate) fn option(&self) -> &'static str {
        match self.tls {
            true => "tls-listen",
            false => "listen",
        }
    }
}

/// The listener as `--pool` takes it.
impl fmt::Display for ListenAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = if self.tls { TLS_PREFIX } else { "" };
        write!(f, "{prefix}{}", self.address)
    }
}

/// Parses a listener: `HOST:PORT`, `[::1]:6380`, `:6380` or `unix:/path`.
pub(crate) fn parse_listener(text: &str) -> Result<Address, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        // The URL of a backend has three slashes. Accept that for listeners, too.
        let path = path.strip_prefix("//").unwrap_or(path);
        return unix_path(path.into()).map(Address::Unix);
    }
    if text.starts_with(TLS_PREFIX) {
        return Err("`tls:` stands only in --pool: write the address in `tls-listen`".into());
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

/// Parses an address that clients are told: `HOST[:PORT]`.
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
            "is no address that clients can connect to: write the address that they use".into(),
        );
    }
    Ok(Announced { host, port })
}

/// Parses a name that a certificate may have: a host name or an IP address.
pub(crate) fn parse_tls_name(text: &str) -> Result<String, String> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(ip.to_string());
    }
    match parse_host(text)? {
        host if host.is_empty() => Err("is empty: write a host name or an IP address".into()),
        host => Ok(host),
    }
}

/// Parses the address of a server: `HOST[:PORT]`.
pub(crate) fn parse_server(text: &str) -> Result<Address, String> {
    parse_server_at(text, REDIS_PORT)
}

/// The same, with another default port.
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

/// The host, which is not checked, and the port, if there is one.
fn host_and_port(text: &str) -> Result<(&str, Option<u16>), String> {
    match text.rsplit_once(':') {
        // The colons of `[::1]` begin no port.
        Some((_, port)) if port.ends_with(']') => Ok((text, None)),
        None => Ok((text, None)),
        Some((host, port)) => match port.parse() {
            Ok(port) if port > 0 => Ok((host, Some(port))),
            _ => Err("the port must be a number from 1 to 65535".into()),
        },
    }
}

/// Checks a host name or an IP address. An IPv6 address loses its brackets.
fn parse_host(text: &str) -> Result<String, String> {
    if let Some(inner) = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
    {
        return match inner.parse::<Ipv6Addr>() {
            Ok(address) => Ok(address.to_string()),
            Err(_) => Err("the text in [ ] must be an IPv6 address".into()),
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

/// Checks the path of a socket.
pub(crate) fn unix_path(path: PathBuf) -> Result<PathBuf, String> {
    if path.as_os_str().is_empty() || path == Path::new("/") {
        return Err("needs the path of a socket: unix:/run/respool.sock".into());
    }
    check_unix_path_len(&path)?;
    Ok(path)
}

/// Checks that the kernel takes the path as the address of a socket.
pub(crate) fn check_unix_path_len(path: &Path) -> Result<(), String> {
    let bytes = path.as_os_str().len();
    if bytes > UNIX_PATH_BYTES_MAX {
        return Err(format!(
            "the path has {bytes} bytes, and the kernel takes {UNIX_PATH_BYTES_MAX} at the most: \
             use a shorter one"
        ));
    }
    Ok(())
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
    fn listener_is_parsed_in_all_its_forms() {
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

    /// The error names the right form.
    #[test]
    fn wrong_listener_is_an_error() {
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
            ("tls:host:1", "in `tls-listen`"),
            ("unix:", "needs the path of a socket"),
            (long.as_str(), "has 108 bytes"),
        ] {
            let told = parse_listener(text).expect_err(text);
            assert!(told.contains(error), "{text}: {told}");
        }
    }

    #[test]
    fn listener_of_a_pool_may_have_tls() {
        for (text, address, tls) in [
            ("host:1", tcp("host", 1), false),
            ("tls:host:1", tcp("host", 1), true),
            ("tls:[::1]:1", tcp("::1", 1), true),
            ("tls:unix:/a", Address::Unix("/a".into()), true),
        ] {
            let listener = ListenAt::parse(text).expect(text);
            assert_eq!(listener, ListenAt { address, tls }, "{text}");
            assert_eq!(listener.to_string(), text);
        }
        assert!(ListenAt::parse("tls:tls:host:1").is_err());
    }

    #[test]
    fn name_in_a_certificate_is_a_host_or_an_ip_address() {
        for (text, name) in [
            ("redis.example", "redis.example"),
            ("10.0.0.1", "10.0.0.1"),
            ("::1", "::1"),
            ("[::1]", "::1"),
        ] {
            assert_eq!(parse_tls_name(text).as_deref(), Ok(name), "{text}");
        }
        for text in ["", "a b", "redis://host", "host:6379"] {
            assert!(parse_tls_name(text).is_err(), "{text}");
        }
    }

    #[test]
    fn announced_address_is_a_host_with_or_without_port() {
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
}

//! The target of a test: a real server, or a respool before it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;

use respool_testkit::client::RespClient;
use respool_testkit::servers::{self, Proxy, ServerProcess, any_server, installed};

/// How a test wants its respool and its server.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// For `respool serve`, beside the listener and the server's address.
    pub(crate) respool: Vec<String>,
    /// For the server.
    pub(crate) server: Vec<String>,
    /// The server's password, which respool asks of its clients in turn.
    pub(crate) password: Option<&'static str>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            respool: vec!["--threads=1".into()],
            server: Vec::new(),
            password: None,
        }
    }
}

impl Options {
    /// Options of `respool serve`, the later ones counting.
    pub(crate) fn with(args: &[&str]) -> Options {
        let mut options = Options::default();
        options
            .respool
            .extend(args.iter().map(|&arg| arg.to_owned()));
        options
    }

    pub(crate) fn password(mut self, password: &'static str) -> Options {
        self.password = Some(password);
        self
    }
}

/// A server, and perhaps a respool before it.
pub(crate) struct Target {
    pub(crate) name: String,
    /// As the server says it: 7.0 is (7, 0).
    pub(crate) version: (u32, u32),
    pub(crate) server: ServerProcess,
    pub(crate) proxy: Option<Proxy>,
    /// Where clients connect.
    address: SocketAddr,
}

impl Target {
    /// The server alone.
    pub(crate) fn direct(binary: &Path, options: &Options) -> Target {
        let mut args = options.server.clone();
        if let Some(password) = options.password {
            args.extend(["--requirepass".into(), password.into()]);
        }
        let server = ServerProcess::start(binary, &args).unwrap_or_else(|error| panic!("{error}"));
        let said = servers::version(binary).unwrap_or_else(|error| panic!("{error}"));
        let mut numbers = said.split([' ', '.']).filter_map(|word| word.parse().ok());
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let address = server.address();
        Target {
            name: said,
            version,
            server,
            proxy: None,
            address,
        }
    }

    /// A respool before the server.
    pub(crate) fn proxied(binary: &Path, options: &Options) -> Target {
        let target = Target::direct(binary, options);
        let address = target.server.address();
        target.behind(address, options)
    }

    /// A respool before an address that leads to this server by some other way.
    pub(crate) fn behind(mut self, address: SocketAddr, options: &Options) -> Target {
        let mut args = options.respool.clone();
        match options.password {
            None => args.push(format!("--backend=redis://{address}")),
            Some(password) => {
                args.push(format!("--backend=redis://:{password}@{address}"));
                args.push(format!("--password={password}"));
            }
        }
        let proxy = Proxy::start(&respool(), &args).unwrap_or_else(|error| panic!("{error}"));
        self.name = format!("respool {} before {}", options.respool.join(" "), self.name);
        self.address = proxy.address();
        self.proxy = Some(proxy);
        self
    }

    pub(crate) fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().expect("the test asked for a respool")
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn client(&self) -> RespClient {
        RespClient::connect(self.address())
    }

    /// A client connected directly to the server, to see its data.
    pub(crate) fn direct_client(&self) -> RespClient {
        RespClient::connect(self.server.address())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let Some(proxy) = &self.proxy else {
            if thread::panicking() {
                eprintln!("on {}", self.name);
            }
            return;
        };
        let log = proxy.log();
        let tail: Vec<&str> = log.lines().rev().take(30).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        if thread::panicking() {
            let state = if proxy.is_running() {
                "running"
            } else {
                "ENDED"
            };
            eprintln!(
                "on {}; respool is {state}, its log:\n{}",
                self.name,
                tail.join("\n")
            );
        } else {
            // This holds in every test: clients and servers do not end respool.
            assert!(
                !log.contains("panicked at"),
                "{} panicked:\n{}",
                self.name,
                tail.join("\n")
            );
        }
    }
}

pub(crate) fn respool() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_respool"))
}

/// A respool before one server.
pub(crate) fn proxied(options: &Options) -> Target {
    let binary = any_server();
    Target::proxied(&binary, options)
}

/// Runs the body directly and through respool, on every server at hand.
pub(crate) fn on_every_target(options: &Options, body: impl Fn(&Target)) {
    for binary in installed() {
        body(&Target::direct(&binary, options));
        body(&Target::proxied(&binary, options));
    }
}

/// Runs the body through respool, on every server at hand.
pub(crate) fn before_every_server(options: &Options, body: impl Fn(&mut Target)) {
    for binary in installed() {
        body(&mut Target::proxied(&binary, options));
    }
}

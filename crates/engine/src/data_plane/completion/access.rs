//! Replies of servers to logins.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use crate::base::settings::Credentials;
use crate::data_plane::ingress::KeptRequest;
use crate::data_plane::session::Peer;

/// The completion of a client's login, or of respool's own login.
#[derive(Debug)]
pub(crate) enum AccessCompletion {
    /// Own: asks whether the server accepts the configured login.
    Check(Box<LoginCheck>),
    /// Own: the configured login, on a link that is up.
    Renewal(Box<LoginCheck>),
    /// AUTH, alone or in a HELLO.
    Login(Box<Login>),
}

impl AccessCompletion {
    /// Takes a reply that is not the last one. Returns whether the reply was such a one.
    pub(crate) fn take_early(&mut self, reply: &[u8]) -> bool {
        match self {
            AccessCompletion::Check(check) | AccessCompletion::Renewal(check) => {
                check.is_answered_by(reply)
            }
            AccessCompletion::Login(login) => login.is_answered_by(reply),
        }
    }
}

/// The two requests of a check, and the first reply.
#[derive(Debug)]
pub(crate) struct LoginCheck {
    /// The first request is AUTH; else it is RESET.
    pub(crate) has_credentials: bool,
    /// The reply to the first request.
    pub(crate) first: Option<Vec<u8>>,
}

impl LoginCheck {
    /// Whether this reply answers the first request, so that the reply to HELLO is still to come.
    pub(crate) fn is_answered_by(&mut self, reply: &[u8]) -> bool {
        let is_hellos = !matches!(reply.first(), Some(b'+' | b'-'))
            || self.has_credentials && reply.starts_with(b"-NOAUTH");
        let is_first = self.first.is_none() && !is_hellos;
        if is_first {
            self.first = Some(reply.to_vec());
        }
        is_first
    }
}

/// An AUTH that waits for the answer of the server, and the request that it is part of.
#[derive(Debug)]
pub(crate) struct Login {
    /// The user that the session becomes if the server agrees. The credentials get an entry in
    /// [`crate::data_plane::logins::Logins`] only then.
    pub(crate) credentials: Credentials,
    /// The rest of a HELLO. It is answered when the server has agreed.
    pub(crate) hello: Option<KeptRequest>,
    /// The server's reply to the AUTH.
    pub(crate) auth_reply: Option<Vec<u8>>,
    /// The charge of this login on its client's address.
    pub(crate) claim: LoginClaim,
}

impl Login {
    /// Whether the AUTH is part of a HELLO.
    pub(crate) fn is_of_hello(&self) -> bool {
        self.hello.is_some()
    }

    /// Whether this is the reply to the AUTH, so that the reply to the HELLO after it is still to
    /// come. Redis 7.2 and newer does not answer an AUTH that fails while earlier replies wait for
    /// output (`addAuthErrReply`). Then the first reply is that to HELLO, which no server that
    /// knows HELLO refuses.
    pub(crate) fn is_answered_by(&mut self, reply: &[u8]) -> bool {
        let is_auths = self.auth_reply.is_none()
            && matches!(reply.first(), Some(b'+' | b'-'))
            // On a probing link HELLO may be refused.
            && !reply.starts_with(b"-NOAUTH");
        if is_auths {
            self.auth_reply = Some(reply.to_vec());
        }
        is_auths
    }
}

/// A login that is being tried, and whether its address is charged for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoginClaim {
    pub(crate) source: Source,
    pub(crate) is_charged: bool,
}

impl LoginClaim {
    /// The claim of a login that does not wait.
    pub(crate) fn free(peer: Peer) -> LoginClaim {
        LoginClaim {
            source: Source::of(peer),
            is_charged: false,
        }
    }
}

/// Clients that share one score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// An IPv4 address, or the /64 network of an IPv6 address: one host may use all of it.
    Address(IpAddr),
    /// All sockets of the file system, and the callers in the same process.
    Socket,
}

impl Source {
    pub(crate) fn of(peer: Peer) -> Source {
        let Peer::Tcp(address) = peer else {
            return Source::Socket;
        };
        Source::Address(match address.ip().to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
            address => address,
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Address(IpAddr::V4(address)) => address.fmt(f),
            Source::Address(IpAddr::V6(network)) => write!(f, "{network}/64"),
            Source::Socket => f.write_str("unix"),
        }
    }
}

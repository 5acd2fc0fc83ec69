//! The sockets of one worker, and what epoll watches each of them for.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use respool_engine::settings::Address;
use respool_engine::{LinkId, SessionId};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

/// What an event is about, packed into the 64 bits that epoll keeps for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Tick,
    Alarm,
    Mailbox,
    Listener(usize),
    Session(usize),
    Link(usize),
}

impl Token {
    pub(crate) fn pack(self) -> EventData {
        let (kind, index) = match self {
            Token::Mailbox => (0, 0),
            Token::Tick => (4, 0),
            Token::Alarm => (5, 0),
            Token::Listener(index) => (1, index),
            Token::Session(index) => (2, index),
            Token::Link(index) => (3, index),
        };
        EventData::new_u64(kind << 32 | index as u64)
    }

    pub(crate) fn unpack(data: EventData) -> Self {
        let index = (data.u64() & 0xffff_ffff) as usize;
        match data.u64() >> 32 {
            0 => Token::Mailbox,
            1 => Token::Listener(index),
            2 => Token::Session(index),
            3 => Token::Link(index),
            4 => Token::Tick,
            _ => Token::Alarm,
        }
    }
}

/// A connected socket that epoll watches.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) fd: OwnedFd,
    token: Token,
    watched: EventFlags,
}

impl Socket {
    /// Starts to watch `fd`.
    pub(crate) fn new(
        epoll: &OwnedFd,
        fd: OwnedFd,
        token: Token,
        watched: EventFlags,
    ) -> io::Result<Self> {
        epoll::add(epoll, &fd, token.pack(), watched)?;
        Ok(Socket { fd, token, watched })
    }

    /// Watches for one thing, or no more. A system call only when that changes.
    pub(crate) fn watch(&mut self, epoll: &OwnedFd, what: EventFlags, on: bool) -> io::Result<()> {
        let mut watched = self.watched;
        watched.set(what, on);
        self.change(epoll, watched)
    }

    /// Reads the socket, or leaves it alone and only looks out for its peer's going away.
    pub(crate) fn read(&mut self, epoll: &OwnedFd, on: bool) -> io::Result<()> {
        let mut watched = self.watched;
        watched.set(EventFlags::IN, on);
        watched.set(EventFlags::RDHUP, !on);
        self.change(epoll, watched)
    }

    fn change(&mut self, epoll: &OwnedFd, watched: EventFlags) -> io::Result<()> {
        if watched != self.watched {
            epoll::modify(epoll, &self.fd, self.token.pack(), watched)?;
            self.watched = watched;
        }
        Ok(())
    }

    pub(crate) fn is_watched_for(&self, what: EventFlags) -> bool {
        self.watched.contains(what)
    }
}

/// A session's socket.
#[derive(Debug)]
pub(crate) struct SessionSocket {
    pub(crate) id: SessionId,
    pub(crate) socket: Socket,
}

/// A link on its way up, or up.
#[derive(Debug)]
pub(crate) struct LinkSocket {
    pub(crate) id: LinkId,
    /// Which of the link's connections this is.
    pub(crate) attempt: u64,
    pub(crate) stage: Stage,
    /// Addresses of the server's name that were not tried yet.
    pub(crate) untried: Vec<SocketAddr>,
}

#[derive(Debug)]
pub(crate) enum Stage {
    /// Its name is being looked up.
    Resolving,
    /// The kernel is connecting it.
    Connecting(Socket),
    Up(Socket),
}

impl LinkSocket {
    pub(crate) fn socket(&mut self) -> Option<&mut Socket> {
        match &mut self.stage {
            Stage::Resolving => None,
            Stage::Connecting(socket) | Stage::Up(socket) => Some(socket),
        }
    }
}

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// How long a peer may be silent before the kernel asks whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// How long a server may leave unacknowledged what was written to it before the kernel gives the connection up, milliseconds.
const UNACKNOWLEDGED_MS: u32 = 30_000;

/// Starts to connect; the socket becomes writable when it is, or has failed.
pub(crate) fn connect_tcp(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = net::socket_with(family, SocketType::STREAM, FLAGS, None)?;
    prepare_tcp(&socket)?;
    sockopt::set_tcp_user_timeout(&socket, UNACKNOWLEDGED_MS)?;
    in_progress(net::connect(&socket, &address))?;
    Ok(socket)
}

/// The same for a socket in the file system.
pub(crate) fn connect_unix(path: &std::path::Path) -> io::Result<OwnedFd> {
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    in_progress(net::connect(&socket, &SocketAddrUnix::new(path)?))?;
    Ok(socket)
}

fn in_progress(connected: io::Result<()>) -> io::Result<()> {
    match connected {
        Err(io::Errno::INPROGRESS) => Ok(()),
        other => other,
    }
}

/// A batch is a packet already: nothing is won by waiting for more.
pub(crate) fn prepare_tcp(socket: impl AsFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, KEEPALIVE)
}

/// Whether a connected socket is connected to itself: TCP allows it.
pub(crate) fn is_own_peer(socket: &OwnedFd) -> bool {
    match (net::getsockname(socket), net::getpeername(socket)) {
        (Ok(own), Ok(Some(peer))) => {
            let tcp = |address| SocketAddr::try_from(address).ok();
            tcp(own).is_some_and(|own| tcp(peer) == Some(own))
        }
        _ => false,
    }
}

/// The address of a server as the kernel wants it, if it needs no look-up.
pub(crate) fn literal(address: &Address) -> Option<SocketAddr> {
    match address {
        Address::Tcp { host, port } => host.parse().ok().map(|ip| SocketAddr::new(ip, *port)),
        Address::Unix(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use rustix::net::sockopt;

    use super::{Token, connect_tcp, prepare_tcp};

    #[test]
    fn a_peer_that_has_gone_silently_is_noticed_by_the_kernel() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to_server = connect_tcp(listener.local_addr().unwrap()).unwrap();
        assert_eq!(sockopt::tcp_user_timeout(&to_server).unwrap(), 30_000);
        let (of_client, _) = listener.accept().unwrap();
        prepare_tcp(&of_client).unwrap();
        for socket in [&to_server, &of_client.into()] {
            assert!(sockopt::socket_keepalive(socket).unwrap());
            let idle = sockopt::tcp_keepidle(socket).unwrap();
            assert_eq!(idle, Duration::from_secs(60));
            assert!(sockopt::tcp_nodelay(socket).unwrap());
        }
    }

    #[test]
    fn a_token_survives_its_packing() {
        for token in [
            Token::Tick,
            Token::Alarm,
            Token::Mailbox,
            Token::Listener(3),
            Token::Session(0),
            Token::Session(0xffff_fffe),
            Token::Link(70_000),
        ] {
            assert_eq!(Token::unpack(token.pack()), token);
        }
    }
}

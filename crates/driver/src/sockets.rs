//! The sockets of one worker and the events that epoll reports for them.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use respool_engine::settings::Address;
use respool_engine::{LinkId, SessionId};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::byte_stream::{ByteStream, ReadOutcome};
use crate::tls::TlsBuffers;
use crate::tls::failure::StreamError;

/// The source of an event, packed into the 64 bits of user data that epoll keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// The timer of the engine's tick.
    Tick,
    /// The timer of the next held batch.
    Alarm,
    /// The worker's mailbox.
    Mailbox,
    /// Index of a listening socket.
    Listener(usize),
    /// Index of a session's socket.
    Session(usize),
    /// Index of a link's socket.
    Link(usize),
    /// Index of a client's handshake.
    Handshake(usize),
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
            Token::Handshake(index) => (6, index),
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
            5 => Token::Alarm,
            _ => Token::Handshake(index),
        }
    }
}

/// A connection and the events that epoll watches for on it.
#[derive(Debug)]
pub(crate) struct Socket {
    /// The bytes of the connection.
    pub(crate) stream: ByteStream,
    /// The source that epoll names in its events.
    token: Token,
    /// The events that epoll watches for.
    watched: EventFlags,
}

impl Socket {
    /// Adds a connection to epoll.
    pub(crate) fn new(
        epoll: &OwnedFd,
        stream: ByteStream,
        token: Token,
        watched: EventFlags,
    ) -> io::Result<Self> {
        epoll::add(epoll, &stream, token.pack(), watched)?;
        Ok(Socket {
            stream,
            token,
            watched,
        })
    }

    /// Begins the use of a connected socket: the handshake, if it has TLS. From now on epoll
    /// watches for input.
    pub(crate) fn begin(&mut self, epoll: &OwnedFd) -> Result<(), StreamError> {
        self.stream.begin_handshake()?;
        self.watch(epoll, EventFlags::IN, true)?;
        self.watch(epoll, EventFlags::OUT, self.stream.wants_write())?;
        Ok(())
    }

    /// Makes epoll name another source in the events of the connection, and watch for input.
    pub(crate) fn pass_to(&mut self, epoll: &OwnedFd, token: Token) -> io::Result<()> {
        let mut watched = EventFlags::IN;
        watched.set(EventFlags::OUT, self.stream.wants_write());
        epoll::modify(epoll, &self.stream, token.pack(), watched)?;
        self.token = token;
        self.watched = watched;
        Ok(())
    }

    /// Reads once. If reading makes TLS send something for which the kernel has no room, epoll
    /// watches for room.
    #[inline(always)]
    pub(crate) fn read(
        &mut self,
        epoll: &OwnedFd,
        buffer: &mut [u8],
        buffers: &mut TlsBuffers,
    ) -> Result<ReadOutcome, StreamError> {
        let outcome = self.stream.read(buffer, buffers)?;
        if self.stream.wants_write() {
            self.watch(epoll, EventFlags::OUT, true)?;
        }
        Ok(outcome)
    }

    /// Writes output, and watches for room if some of it, or bytes of TLS, are left. See
    /// [`ByteStream::write`].
    #[inline(always)]
    pub(crate) fn write(
        &mut self,
        epoll: &OwnedFd,
        output: &[u8],
        buffers: &mut TlsBuffers,
    ) -> Result<usize, StreamError> {
        let count = self.stream.write(output, buffers)?;
        let is_left = count < output.len() || self.stream.wants_write();
        self.watch(epoll, EventFlags::OUT, is_left)?;
        Ok(count)
    }

    /// Ends our direction: see [`ByteStream::shutdown_write`]. If TLS has no room for its last
    /// record, epoll watches for room.
    pub(crate) fn shutdown_write(&mut self, epoll: &OwnedFd) -> Result<(), StreamError> {
        self.stream.shutdown_write()?;
        if self.stream.wants_write() {
            self.watch(epoll, EventFlags::OUT, true)?;
        }
        Ok(())
    }

    /// Watches for these events, or stops watching for them. It makes a system call only for a
    /// change.
    pub(crate) fn watch(
        &mut self,
        epoll: &OwnedFd,
        events: EventFlags,
        on: bool,
    ) -> io::Result<()> {
        let mut watched = self.watched;
        watched.set(events, on);
        self.change(epoll, watched)
    }

    /// Watches for input if `on`; otherwise only for the hang-up of the peer.
    pub(crate) fn watch_input(&mut self, epoll: &OwnedFd, on: bool) -> io::Result<()> {
        let mut watched = self.watched;
        watched.set(EventFlags::IN, on);
        watched.set(EventFlags::RDHUP, !on);
        self.change(epoll, watched)
    }

    fn change(&mut self, epoll: &OwnedFd, watched: EventFlags) -> io::Result<()> {
        if watched != self.watched {
            epoll::modify(epoll, &self.stream, self.token.pack(), watched)?;
            self.watched = watched;
        }
        Ok(())
    }

    pub(crate) fn is_watched_for(&self, events: EventFlags) -> bool {
        self.watched.contains(events)
    }
}

/// A session's socket.
#[derive(Debug)]
pub(crate) struct SessionSocket {
    pub(crate) id: SessionId,
    pub(crate) socket: Socket,
}

/// The connection of a link.
#[derive(Debug)]
pub(crate) struct LinkSocket {
    pub(crate) id: LinkId,
    /// Number of this connection attempt, unique within the worker.
    pub(crate) attempt: u64,
    pub(crate) stage: ConnectStage,
    /// The address that the engine named. Its host is the name of the server.
    pub(crate) to: Address,
    /// Addresses of the server's host name that were not tried yet; the last one is next.
    pub(crate) untried: Vec<SocketAddr>,
}

#[derive(Debug)]
pub(crate) enum ConnectStage {
    /// The resolver looks up the host name.
    Resolving,
    /// The kernel connects the socket.
    Connecting(Socket),
    /// The socket is connected, and TLS shakes hands.
    Handshaking(Socket),
    /// The socket is connected, and its bytes are the engine's.
    Up(Socket),
}

impl LinkSocket {
    pub(crate) fn socket(&mut self) -> Option<&mut Socket> {
        match &mut self.stage {
            ConnectStage::Resolving => None,
            ConnectStage::Connecting(socket)
            | ConnectStage::Handshaking(socket)
            | ConnectStage::Up(socket) => Some(socket),
        }
    }
}

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Silence of a peer after which the kernel sends a keepalive probe.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Longest time that bytes to a server stay unacknowledged before the kernel drops the connection,
/// milliseconds.
const UNACKNOWLEDGED_MS: u32 = 30_000;

/// Starts to connect. The socket becomes writable when it is connected or has failed.
pub(crate) fn connect_tcp(address: SocketAddr) -> io::Result<ByteStream> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = net::socket_with(family, SocketType::STREAM, FLAGS, None)?;
    prepare_tcp(&socket)?;
    sockopt::set_tcp_user_timeout(&socket, UNACKNOWLEDGED_MS)?;
    in_progress(net::connect(&socket, &address))?;
    Ok(ByteStream::new(socket))
}

/// As [`connect_tcp`], for a Unix socket.
pub(crate) fn connect_unix(path: &std::path::Path) -> io::Result<ByteStream> {
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    in_progress(net::connect(&socket, &SocketAddrUnix::new(path)?))?;
    Ok(ByteStream::new(socket))
}

fn in_progress(connected: io::Result<()>) -> io::Result<()> {
    match connected {
        Err(io::Errno::INPROGRESS) => Ok(()),
        other => other,
    }
}

/// Sets the options of a TCP socket. A batch leaves in one write, so Nagle's algorithm would only
/// delay it.
pub(crate) fn prepare_tcp(socket: impl AsFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, KEEPALIVE)
}

/// Whether a connected socket is connected to itself. TCP allows this.
pub(crate) fn is_own_peer(socket: impl AsFd) -> bool {
    match (net::getsockname(&socket), net::getpeername(&socket)) {
        (Ok(own), Ok(Some(peer))) => {
            let tcp = |address| SocketAddr::try_from(address).ok();
            tcp(own).is_some_and(|own| tcp(peer) == Some(own))
        }
        _ => false,
    }
}

/// The socket address of a server, if its host is an IP address and needs no look-up.
pub(crate) fn ip_address(address: &Address) -> Option<SocketAddr> {
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

    use super::{ByteStream, Token, connect_tcp, prepare_tcp};

    /// The kernel detects a peer that is gone without closing: the socket options for this are set.
    #[test]
    fn silent_peer_is_detected_by_the_kernel() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to_server = connect_tcp(listener.local_addr().unwrap()).unwrap();
        assert_eq!(sockopt::tcp_user_timeout(&to_server).unwrap(), 30_000);
        let (of_client, _) = listener.accept().unwrap();
        prepare_tcp(&of_client).unwrap();
        for socket in [&to_server, &ByteStream::new(of_client.into())] {
            assert!(sockopt::socket_keepalive(socket).unwrap());
            let idle = sockopt::tcp_keepidle(socket).unwrap();
            assert_eq!(idle, Duration::from_secs(60));
            assert!(sockopt::tcp_nodelay(socket).unwrap());
        }
    }

    /// Unpacking a packed token gives the same token.
    #[test]
    fn token_survives_packing() {
        for token in [
            Token::Tick,
            Token::Alarm,
            Token::Mailbox,
            Token::Listener(3),
            Token::Session(0),
            Token::Session(0xffff_fffe),
            Token::Link(70_000),
            Token::Handshake(1_023),
        ] {
            assert_eq!(Token::unpack(token.pack()), token);
        }
    }
}

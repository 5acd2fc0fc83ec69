//! The bytes of a connection to a client or a server.
//!
//! Every read, write and half-close of a connection is a method of [`ByteStream`]. TLS would stand
//! here, between the socket and the engine; `docs/design/driver.md` says how.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{self, Errno};
use rustix::net::{self, SendFlags, Shutdown};

/// Most reads in one call of [`ByteStream::discard`].
const DISCARDS_MAX: usize = 16;

/// A non-blocking socket, used for its bytes only. Dropping it closes the socket.
#[derive(Debug)]
pub(crate) struct ByteStream {
    fd: OwnedFd,
}

/// The result of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    /// So many bytes are at the start of the buffer; at least one.
    Bytes(usize),
    /// No byte has arrived since the last read.
    Nothing,
    /// The peer has closed its direction. No byte follows.
    End,
}

impl ByteStream {
    pub(crate) fn new(fd: OwnedFd) -> ByteStream {
        ByteStream { fd }
    }

    /// Reads once.
    #[inline]
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<ReadOutcome> {
        match io::read(&self.fd, buffer) {
            Ok(0) => Ok(ReadOutcome::End),
            Ok(count) => Ok(ReadOutcome::Bytes(count)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(ReadOutcome::Nothing),
            Err(error) => Err(error),
        }
    }

    /// Writes once. Returns the number of bytes that the kernel took, zero if it has no room.
    #[inline]
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match net::send(&self.fd, bytes, SendFlags::NOSIGNAL) {
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            sent => sent,
        }
    }

    /// Ends our direction: the peer reads the end of the stream behind the bytes written so far.
    pub(crate) fn shutdown_write(&self) -> io::Result<()> {
        net::shutdown(&self.fd, Shutdown::Write)
    }

    /// Reads and discards input. Returns whether the peer has closed, too.
    pub(crate) fn discard(&self, buffer: &mut [u8]) -> bool {
        for _ in 0..DISCARDS_MAX {
            match io::read(&self.fd, &mut *buffer) {
                Ok(0) => return true,
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return error != Errno::AGAIN,
            }
        }
        false
    }
}

/// For the calls that are not about bytes: epoll, socket options, addresses.
impl AsFd for ByteStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::{ByteStream, ReadOutcome};

    fn pair() -> [ByteStream; 2] {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, other) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        [ByteStream::new(one), ByteStream::new(other)]
    }

    /// An empty socket, bytes and the end of the stream are three outcomes of a read.
    #[test]
    fn read_tells_bytes_from_nothing_and_end() {
        let [ours, peer] = pair();
        let mut buffer = [0; 16];
        assert_eq!(ours.read(&mut buffer), Ok(ReadOutcome::Nothing));
        assert_eq!(peer.write(b"PING"), Ok(4));
        assert_eq!(ours.read(&mut buffer), Ok(ReadOutcome::Bytes(4)));
        assert_eq!(&buffer[..4], b"PING");
        peer.shutdown_write().unwrap();
        assert_eq!(ours.read(&mut buffer), Ok(ReadOutcome::End));
    }

    /// A full socket takes no byte and is no error. A closed peer is one, without a signal.
    #[test]
    fn write_to_full_socket_takes_nothing() {
        let [ours, peer] = pair();
        let bytes = [0; 64 << 10];
        while ours.write(&bytes).unwrap() > 0 {}
        assert_eq!(ours.write(&bytes), Ok(0));
        drop(peer);
        assert!(ours.write(&bytes).is_err());
    }

    /// Discarded input counts as closed only at its end.
    #[test]
    fn discard_reports_the_end_of_input() {
        let [ours, peer] = pair();
        let mut buffer = [0; 16];
        peer.write(&[0; 20]).unwrap();
        assert!(!ours.discard(&mut buffer));
        assert_eq!(ours.read(&mut buffer), Ok(ReadOutcome::Nothing));
        drop(peer);
        assert!(ours.discard(&mut buffer));
    }
}

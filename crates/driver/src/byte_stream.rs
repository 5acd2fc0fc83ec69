//! The bytes of a connection to a client or a server.
//!
//! Every read, write and half-close of a connection is a method of [`ByteStream`]. With TLS, these
//! bytes are the plaintext; a [`TlsStream`] stands between them and the socket.
//!
//! The path of a plain read and write is inlined into the worker's turn, and the code of TLS is
//! not. As functions of their own, `read` and `write` of this module and of
//! [`Socket`](crate::sockets::Socket) took some 4 % more CPU per request of the whole process, with
//! 50 clients that send one request at a time: their code is on other pages than the turn's.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{self, Errno};
use rustix::net::{self, SendFlags, Shutdown};

use crate::tls::failure::StreamError;
use crate::tls::{TlsBuffers, TlsStream};

/// Most reads in one call of [`ByteStream::discard`].
const DISCARDS_MAX: usize = 16;

/// A non-blocking socket, used for its bytes only. Dropping it closes the socket.
#[derive(Debug)]
pub(crate) struct ByteStream {
    fd: OwnedFd,
    /// TLS of the connection; `None`: its bytes are plain.
    tls: Option<Box<TlsStream>>,
}

/// The result of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    /// So many bytes are at the start of the buffer; at least one.
    Bytes(usize),
    /// As `Bytes`, and no byte follows. A peer with TLS ends its direction by a record.
    Last(usize),
    /// No byte has arrived since the last read.
    Nothing,
    /// The peer has closed its direction. No byte follows.
    End,
}

impl ByteStream {
    pub(crate) fn new(fd: OwnedFd) -> ByteStream {
        ByteStream { fd, tls: None }
    }

    /// Puts TLS on a connection that has no byte yet. A connection to a server begins the handshake
    /// with [`ByteStream::begin_handshake`].
    pub(crate) fn set_tls(&mut self, tls: TlsStream) {
        self.tls = Some(Box::new(tls));
    }

    pub(crate) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether a handshake has to end before the connection carries bytes.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Whether bytes that are no output wait for room in the kernel, or records with output.
    #[inline(always)]
    pub(crate) fn wants_write(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Sends the first bytes of a handshake with a server.
    pub(crate) fn begin_handshake(&mut self) -> Result<(), StreamError> {
        match &mut self.tls {
            Some(tls) => tls.begin(&self.fd),
            None => Ok(()),
        }
    }

    /// Reads once.
    #[inline(always)]
    pub(crate) fn read(
        &mut self,
        buffer: &mut [u8],
        buffers: &mut TlsBuffers,
    ) -> Result<ReadOutcome, StreamError> {
        if let Some(tls) = &mut self.tls {
            return tls.read(&self.fd, buffer, buffers);
        }
        match io::read(&self.fd, buffer) {
            Ok(0) => Ok(ReadOutcome::End),
            Ok(count) => Ok(ReadOutcome::Bytes(count)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(ReadOutcome::Nothing),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes output from its first byte on that no call has returned as written. Returns the
    /// number of bytes that the kernel took, zero if it has no room. With TLS, bytes that did not
    /// leave may be in a record already, so the next call has to begin with the same bytes.
    #[inline(always)]
    pub(crate) fn write(
        &mut self,
        bytes: &[u8],
        buffers: &mut TlsBuffers,
    ) -> Result<usize, StreamError> {
        if let Some(tls) = &mut self.tls {
            return tls.write(&self.fd, bytes, buffers);
        }
        match net::send(&self.fd, bytes, SendFlags::NOSIGNAL) {
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            sent => Ok(sent?),
        }
    }

    /// Ends our direction: the peer reads the end of the stream behind the bytes written so far.
    pub(crate) fn shutdown_write(&mut self) -> Result<(), StreamError> {
        match &mut self.tls {
            Some(tls) => tls.shutdown_write(&self.fd),
            None => Ok(net::shutdown(&self.fd, Shutdown::Write)?),
        }
    }

    /// Reads and discards input, and sends the rest of the end of our direction. Returns whether
    /// the peer has closed, too.
    pub(crate) fn discard(&mut self, buffer: &mut [u8]) -> bool {
        if let Some(tls) = &mut self.tls
            && tls.flush(&self.fd).is_err()
        {
            return true;
        }
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
    use std::time::{Duration, Instant};

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::{ByteStream, ReadOutcome};
    use crate::tls::TlsBuffers;

    fn pair() -> [ByteStream; 2] {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, other) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        [ByteStream::new(one), ByteStream::new(other)]
    }

    /// An empty socket, bytes and the end of the stream are three outcomes of a read.
    #[test]
    fn read_tells_bytes_from_nothing_and_end() {
        let [mut ours, mut peer] = pair();
        let mut tls = TlsBuffers::default();
        let mut buffer = [0; 16];
        assert_eq!(
            ours.read(&mut buffer, &mut tls).unwrap(),
            ReadOutcome::Nothing
        );
        assert_eq!(peer.write(b"PING", &mut tls).unwrap(), 4);
        assert_eq!(
            ours.read(&mut buffer, &mut tls).unwrap(),
            ReadOutcome::Bytes(4)
        );
        assert_eq!(&buffer[..4], b"PING");
        peer.shutdown_write().unwrap();
        assert_eq!(ours.read(&mut buffer, &mut tls).unwrap(), ReadOutcome::End);
    }

    /// A full socket takes no byte and is no error. A closed peer is one, without a signal.
    #[test]
    fn write_to_full_socket_takes_nothing() {
        let [mut ours, peer] = pair();
        let mut tls = TlsBuffers::default();
        let bytes = [0; 64 << 10];
        while ours.write(&bytes, &mut tls).unwrap() > 0 {}
        assert_eq!(ours.write(&bytes, &mut tls).unwrap(), 0);
        drop(peer);
        // A process that another test is starting has all descriptors until it runs its program.
        let end = Instant::now() + Duration::from_secs(10);
        while ours.write(&bytes, &mut tls).is_ok() {
            assert!(Instant::now() < end, "the peer has closed");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Discarded input counts as closed only at its end.
    #[test]
    fn discard_reports_the_end_of_input() {
        let [mut ours, mut peer] = pair();
        let mut tls = TlsBuffers::default();
        let mut buffer = [0; 16];
        peer.write(&[0; 20], &mut tls).unwrap();
        assert!(!ours.discard(&mut buffer));
        assert_eq!(
            ours.read(&mut buffer, &mut tls).unwrap(),
            ReadOutcome::Nothing
        );
        drop(peer);
        assert!(ours.discard(&mut buffer));
    }
}

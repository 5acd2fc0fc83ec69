//! TLS of connections to clients and to servers.
//!
//! A `TlsStream` stands between the socket and the engine's bytes. rustls owns no buffer here:
//! all streams of a worker share `TlsBuffers`, and a stream keeps only unfinished records.
//!
//! ```text
//!   read    socket -> TlsBuffers::incoming -> plaintext in the worker's read buffer
//!                     `-> TlsStream::incoming: the beginning of a record, until the rest comes
//!   write   engine's output -> TlsBuffers::outgoing -> socket
//!                              `-> TlsStream::outgoing: records that the kernel had no room for
//! ```
//!
//! One read opens all records that have come whole, so plaintext never waits inside a stream, and
//! epoll's view of the socket stays the truth. A write seals records until the kernel is full. The
//! bytes of a record count as written when its last byte has left. So the engine's output still
//! holds the bytes of every record that is not out, and `TlsStream::sealed` says how many those
//! are.
//!
//! rustls marks places in a fragmented handshake message that has not come whole. So each call of
//! `process_tls_records` gets exactly the bytes that the one before left, also where only a write
//! is wanted.

mod certificate;
pub(crate) mod failure;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use respool_engine::settings::Address;
use rustix::io::{self, Errno};
use rustix::net::{self, SendFlags, Shutdown};
use rustls::Error;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};

pub use settings::{
    CertificateFacts, ClientAuth, ListenerTls, ListenerTlsSettings, MinVersion, Roots, ServerTls,
    ServerTlsSettings, SystemCas, TlsFault, TlsIdentity, TlsInput, TlsProblem,
};

use crate::byte_stream::ReadOutcome;
use crate::tls::failure::StreamError;

/// Most plaintext in a record, by the standard.
const RECORD_BYTES: usize = 16 << 10;

/// Most records that are sealed before the kernel takes them. It bounds the ciphertext that a
/// stream keeps for a slow peer.
const SEALED_RECORDS_MAX: usize = 8;

/// Room for the header, the padding and the tag of a record, and for a key update in front of it.
const RECORD_EXTRA_BYTES: usize = 512;

/// Memory of an idle stream: its state in rustls, keys included. `respool-lab idle` measures it.
/// The test `idle_session_with_tls_holds_little_memory` bounds the part that Rust code allocates;
/// keys are in the memory of aws-lc.
const IDLE_BYTES: usize = 5 << 10;

/// Buffers that all TLS streams of a worker share. They take no memory before the first use.
#[derive(Debug, Default)]
pub(crate) struct TlsBuffers {
    /// Ciphertext from a socket.
    incoming: Vec<u8>,
    /// Records that have just been sealed.
    outgoing: Vec<u8>,
}

impl TlsBuffers {
    /// The first `count` bytes of the buffer for ciphertext from a socket.
    fn incoming(&mut self, count: usize) -> &mut [u8] {
        if self.incoming.len() < count {
            self.incoming.resize(count, 0);
        }
        &mut self.incoming[..count]
    }
}

/// Memory of all TLS streams of a worker, in bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct TlsMemory(Arc<AtomicUsize>);

impl TlsMemory {
    pub(crate) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The part of a worker's [`TlsMemory`] that one stream holds. Dropping it gives the part back.
#[derive(Debug)]
struct MemoryShare {
    all: TlsMemory,
    own: usize,
}

impl MemoryShare {
    fn set(&mut self, own: usize) {
        if own != self.own {
            // Only the worker's thread writes. A wrapped sum is right again after the last drop.
            self.all
                .0
                .fetch_add(own.wrapping_sub(self.own), Ordering::Relaxed);
            self.own = own;
        }
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Our side of a connection.
enum TlsSide {
    /// Of a connection to a server.
    Client(UnbufferedClientConnection),
    /// Of a connection from a client.
    Server(UnbufferedServerConnection),
}

/// A record on its way to the socket.
#[derive(Clone, Copy, Debug)]
struct SealedRecord {
    /// Bytes of the record that the kernel has not taken.
    left: usize,
    /// Bytes of the engine's output in it; 0 for a record of the protocol itself.
    plain: usize,
}

/// Our half of the close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TlsEnding {
    /// The stream takes output.
    No,
    /// `close_notify`, or an alert, is the last record. When it has left, the socket's direction is
    /// shut.
    AfterRecords,
    /// The socket's direction is shut.
    Done,
}

/// The TLS state of a connection.
pub(crate) struct TlsStream {
    side: TlsSide,
    /// Bytes from the peer that are no whole record or message.
    incoming: Vec<u8>,
    /// Ciphertext that the kernel has not taken.
    outgoing: Vec<u8>,
    /// The records of `outgoing`, the first one perhaps sent in part.
    records: VecDeque<SealedRecord>,
    /// Bytes of the engine's output in `records`.
    sealed: usize,
    /// Whether the peer has sent `close_notify`, or an error. Bytes behind it are not read.
    peer_has_closed: bool,
    ending: TlsEnding,
    memory: MemoryShare,
}

impl std::fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsStream")
            .field("incoming", &self.incoming.len())
            .field("outgoing", &self.outgoing.len())
            .field("sealed", &self.sealed)
            .finish_non_exhaustive()
    }
}

/// The demand of the connection after a step.
enum NextStep {
    /// Another step: there may be more to open or to send.
    Again,
    /// More bytes from the peer.
    Input,
    /// Nothing: the peer has sent `close_notify`.
    PeerClosed,
}

impl TlsStream {
    /// A stream to a client, for a socket of this listener.
    pub(crate) fn to_client(tls: &ListenerTls, memory: &TlsMemory) -> Result<Self, StreamError> {
        let connection = UnbufferedServerConnection::new(tls.config.clone())?;
        Ok(TlsStream::new(TlsSide::Server(connection), memory))
    }

    /// A stream to the server at this address.
    ///
    /// # Errors
    /// When there is no name for the server's certificate. The text says so.
    pub(crate) fn to_server(
        tls: &ServerTls,
        address: &Address,
        memory: &TlsMemory,
    ) -> Result<Self, String> {
        let name = tls.name_of(address)?;
        let connection = UnbufferedClientConnection::new(tls.config.clone(), name);
        let connection = connection.map_err(|error| StreamError::from(error).of_server())?;
        Ok(TlsStream::new(TlsSide::Client(connection), memory))
    }

    fn new(side: TlsSide, memory: &TlsMemory) -> Self {
        let mut stream = TlsStream {
            side,
            incoming: Vec::new(),
            outgoing: Vec::new(),
            records: VecDeque::new(),
            sealed: 0,
            peer_has_closed: false,
            ending: TlsEnding::No,
            memory: MemoryShare {
                all: memory.clone(),
                own: 0,
            },
        };
        stream.weigh();
        stream
    }

    /// Whether the handshake goes on.
    pub(crate) fn is_handshaking(&self) -> bool {
        match &self.side {
            TlsSide::Client(connection) => connection.is_handshaking(),
            TlsSide::Server(connection) => connection.is_handshaking(),
        }
    }

    /// Whether records wait for room in the kernel.
    pub(crate) fn wants_write(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Begins the handshake of a connection to a server.
    pub(crate) fn begin(&mut self, fd: &OwnedFd) -> Result<(), StreamError> {
        self.open(&mut [], &mut [])?;
        self.flush(fd)?;
        Ok(())
    }

    /// Reads once. The plaintext is at the start of `plain`.
    pub(crate) fn read(
        &mut self,
        fd: &OwnedFd,
        plain: &mut [u8],
        buffers: &mut TlsBuffers,
    ) -> Result<ReadOutcome, StreamError> {
        if self.peer_has_closed {
            return Ok(ReadOutcome::End);
        }
        // A record grows when it is sealed, so the plaintext of these bytes fits `plain`.
        let buffer = buffers.incoming(plain.len());
        let kept = self.incoming.len();
        if kept >= buffer.len() {
            return Err(StreamError::from(Error::PeerSentOversizedRecord));
        }
        buffer[..kept].copy_from_slice(&self.incoming);
        let count = match io::read(fd, &mut buffer[kept..]) {
            // A peer may close without close_notify. The requests and replies of the protocol have
            // lengths, so a cut one is seen.
            Ok(0) => return Ok(ReadOutcome::End),
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(ReadOutcome::Nothing),
            Err(error) => return Err(error.into()),
        };
        let (opened, used) = match self.open(&mut buffer[..kept + count], plain) {
            Ok(opened) => opened,
            Err(error) => {
                // The peer gets an alert that names the defect, if there is room.
                let _ = self.flush(fd);
                return Err(error);
            }
        };
        keep(&mut self.incoming, &buffer[used..kept + count]);
        // Records with output are in front only if epoll watches for room already.
        if self.sealed == 0 {
            match self.flush(fd) {
                // The peer has closed behind the bytes that are read, and gets no ticket and no
                // new keys. The next read comes to the end.
                Err(StreamError::System(_)) if !self.is_handshaking() => {}
                flushed => {
                    flushed?;
                }
            }
        }
        self.weigh();
        Ok(match (opened, self.peer_has_closed) {
            (0, false) => ReadOutcome::Nothing,
            (0, true) => ReadOutcome::End,
            (count, false) => ReadOutcome::Bytes(count),
            (count, true) => ReadOutcome::Last(count),
        })
    }

    /// Writes output, of which the first [`TlsStream::sealed`] bytes are in records already.
    /// Returns the number of bytes in records that have left.
    pub(crate) fn write(
        &mut self,
        fd: &OwnedFd,
        output: &[u8],
        buffers: &mut TlsBuffers,
    ) -> Result<usize, StreamError> {
        debug_assert!(self.sealed <= output.len(), "sealed output stays in place");
        let mut written = self.flush(fd)?;
        if self.ending != TlsEnding::No && written + self.sealed < output.len() {
            return Err(Errno::PIPE.into());
        }
        while self.outgoing.is_empty() && written < output.len() {
            let sealed = self.seal(&output[written..], &mut buffers.outgoing)?;
            let sent = send(fd, &buffers.outgoing[..sealed])?;
            written += self.note_sent(sent);
            keep(&mut self.outgoing, &buffers.outgoing[sent..sealed]);
        }
        self.weigh();
        Ok(written)
    }

    /// Ends our direction, behind the output written so far.
    pub(crate) fn shutdown_write(&mut self, fd: &OwnedFd) -> Result<(), StreamError> {
        if self.ending == TlsEnding::No {
            self.ending = TlsEnding::AfterRecords;
            self.close_notify();
        }
        self.flush(fd)?;
        Ok(())
    }

    /// Sends records that wait. Returns the number of bytes of output in those that have left.
    pub(crate) fn flush(&mut self, fd: &OwnedFd) -> Result<usize, StreamError> {
        let mut written = 0;
        if !self.outgoing.is_empty() {
            let sent = send(fd, &self.outgoing)?;
            written = self.note_sent(sent);
            self.outgoing.drain(..sent);
            if self.outgoing.is_empty() {
                self.outgoing = Vec::new();
                self.weigh();
            }
        }
        if self.ending == TlsEnding::AfterRecords && self.outgoing.is_empty() {
            self.ending = TlsEnding::Done;
            net::shutdown(fd, Shutdown::Write)?;
        }
        Ok(written)
    }

    /// Opens the records at the start of `bytes`, and queues the replies of the protocol. Returns
    /// the length of the plaintext and the number of bytes that need not be kept.
    fn open(&mut self, bytes: &mut [u8], plain: &mut [u8]) -> Result<(usize, usize), StreamError> {
        let (mut opened, mut used) = (0, 0);
        loop {
            let (bytes, plain) = (&mut bytes[used..], &mut plain[opened..]);
            let mut control = Vec::new();
            let (discard, step) = match &mut self.side {
                TlsSide::Client(connection) => {
                    open_next(connection.process_tls_records(bytes), plain, &mut control)
                }
                TlsSide::Server(connection) => {
                    open_next(connection.process_tls_records(bytes), plain, &mut control)
                }
            };
            used += discard;
            self.queue(&control);
            match step {
                Ok((count, NextStep::Again)) => opened += count,
                Ok((_, NextStep::Input)) => return Ok((opened, used)),
                Ok((_, NextStep::PeerClosed)) => {
                    self.peer_has_closed = true;
                    return Ok((opened, used + bytes.len() - discard));
                }
                Err(error) => {
                    self.queue_alert();
                    // The places that rustls marked belong to bytes that are not kept, so it is not
                    // called again. The alert is the last record.
                    self.peer_has_closed = true;
                    self.ending = TlsEnding::AfterRecords;
                    return Err(error);
                }
            }
        }
    }

    /// Queues the alert that rustls made for an error, if it made one.
    fn queue_alert(&mut self) {
        let mut control = Vec::new();
        // rustls hands out a queued record before it looks at input, so one step needs no input.
        // Without a queued record it would look for the input that it knows.
        match &mut self.side {
            TlsSide::Client(connection) if connection.wants_write() => {
                let status = connection.process_tls_records(&mut []);
                let _ = open_next(status, &mut [], &mut control);
            }
            TlsSide::Server(connection) if connection.wants_write() => {
                let status = connection.process_tls_records(&mut []);
                let _ = open_next(status, &mut [], &mut control);
            }
            _ => {}
        }
        self.queue(&control);
    }

    /// Queues a record of the protocol.
    fn queue(&mut self, control: &[u8]) {
        if !control.is_empty() {
            self.outgoing.extend_from_slice(control);
            let left = control.len();
            self.records.push_back(SealedRecord { left, plain: 0 });
        }
    }

    /// Seals the beginning of `output` into records, with as much in each as fits. Returns the
    /// length of the records.
    fn seal(&mut self, output: &[u8], records: &mut Vec<u8>) -> Result<usize, StreamError> {
        let (mut sealed, mut taken) = (0, 0);
        while taken < output.len() && self.records.len() < SEALED_RECORDS_MAX {
            let plain = (output.len() - taken).min(RECORD_BYTES);
            let part = &output[taken..taken + plain];
            if records.len() < sealed + plain + RECORD_EXTRA_BYTES {
                records.resize(sealed + plain + RECORD_EXTRA_BYTES, 0);
            }
            let room = &mut records[sealed..];
            let bytes = &mut self.incoming[..];
            let step = match &mut self.side {
                TlsSide::Client(connection) => {
                    seal_next(connection.process_tls_records(bytes), Some(part), room)
                }
                TlsSide::Server(connection) => {
                    seal_next(connection.process_tls_records(bytes), Some(part), room)
                }
            };
            match step? {
                Sealed::Output(left) => {
                    self.records.push_back(SealedRecord { left, plain });
                    self.sealed += plain;
                    sealed += left;
                    taken += plain;
                }
                Sealed::Control(0) => {}
                Sealed::Control(left) => {
                    self.records.push_back(SealedRecord { left, plain: 0 });
                    sealed += left;
                }
                Sealed::NoRoom(required) => records.resize(sealed + required, 0),
            }
        }
        Ok(sealed)
    }

    /// Queues `close_notify`. Without keys there is nothing to send.
    fn close_notify(&mut self) {
        let mut room = [0; RECORD_EXTRA_BYTES];
        loop {
            let bytes = &mut self.incoming[..];
            let step = match &mut self.side {
                TlsSide::Client(connection) => {
                    seal_next(connection.process_tls_records(bytes), None, &mut room)
                }
                TlsSide::Server(connection) => {
                    seal_next(connection.process_tls_records(bytes), None, &mut room)
                }
            };
            match step {
                Ok(Sealed::Output(count)) => return self.queue(&room[..count]),
                Ok(Sealed::Control(count)) => self.queue(&room[..count]),
                Ok(Sealed::NoRoom(_)) | Err(_) => return,
            }
        }
    }

    /// The kernel took `count` bytes of the records. Returns the number of bytes of output in the
    /// records that have left.
    fn note_sent(&mut self, mut count: usize) -> usize {
        let mut written = 0;
        while let Some(record) = self.records.front_mut() {
            let taken = count.min(record.left);
            record.left -= taken;
            count -= taken;
            if record.left > 0 {
                break;
            }
            written += record.plain;
            self.records.pop_front();
        }
        debug_assert_eq!(count, 0, "each byte is of a record");
        self.sealed -= written;
        written
    }

    fn weigh(&mut self) {
        let buffers = self.incoming.capacity() + self.outgoing.capacity();
        self.memory.set(IDLE_BYTES + buffers);
    }
}

/// Replaces the bytes that a stream keeps. Without any, it keeps no memory.
fn keep(kept: &mut Vec<u8>, bytes: &[u8]) {
    if bytes.is_empty() {
        *kept = Vec::new();
    } else {
        kept.clear();
        kept.extend_from_slice(bytes);
    }
}

/// Sends once. Returns the number of bytes that the kernel took, zero if it has no room.
fn send(fd: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    match net::send(fd, bytes, SendFlags::NOSIGNAL) {
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        sent => sent,
    }
}

/// The result of a step: the bytes of input that are done, and the plaintext with the next demand.
type OpenStep = (usize, Result<(usize, NextStep), StreamError>);

/// Takes one step of a connection that has input: opens a record into `plain`, or appends a record
/// of the protocol to `control`.
fn open_next<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    plain: &mut [u8],
    control: &mut Vec<u8>,
) -> OpenStep {
    let mut discard = status.discard;
    let step = match status.state {
        Err(error) => Err(error.into()),
        Ok(ConnectionState::ReadTraffic(mut traffic)) => {
            let mut opened = 0;
            let mut failure = None;
            while let Some(record) = traffic.next_record() {
                match record {
                    Ok(record) => {
                        discard += record.discard;
                        let Some(room) = plain.get_mut(opened..opened + record.payload.len())
                        else {
                            failure = Some(Error::PeerSentOversizedRecord);
                            break;
                        };
                        room.copy_from_slice(record.payload);
                        opened += record.payload.len();
                    }
                    Err(error) => {
                        failure = Some(error);
                        break;
                    }
                }
            }
            match failure {
                None => Ok((opened, NextStep::Again)),
                Some(error) => Err(error.into()),
            }
        }
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            encode(&mut |room| data.encode(room), control).map(|()| (0, NextStep::Again))
        }
        Ok(ConnectionState::TransmitTlsData(data)) => {
            data.done();
            Ok((0, NextStep::Again))
        }
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok((0, NextStep::PeerClosed)),
        Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => {
            Ok((0, NextStep::Input))
        }
        // Early data is never allowed, and rustls has no other state today.
        Ok(_) => Err(Error::General("a state without a handler".to_owned()).into()),
    };
    (discard, step)
}

/// Appends a record of the protocol to `control`.
fn encode(
    encode: &mut dyn FnMut(&mut [u8]) -> Result<usize, EncodeError>,
    control: &mut Vec<u8>,
) -> Result<(), StreamError> {
    let start = control.len();
    let required = match encode(&mut []) {
        Ok(_) => return Ok(()),
        Err(EncodeError::InsufficientSize(error)) => error.required_size,
        Err(EncodeError::AlreadyEncoded) => return Ok(()),
    };
    control.resize(start + required, 0);
    match encode(&mut control[start..]) {
        Ok(count) => {
            control.truncate(start + count);
            Ok(())
        }
        Err(error) => Err(Error::General(error.to_string()).into()),
    }
}

/// The result of a step of a connection that has output.
enum Sealed {
    /// The record of the output has so many bytes.
    Output(usize),
    /// A record of the protocol came first, of so many bytes. The output is not sealed yet.
    Control(usize),
    /// The record needs so much room.
    NoRoom(usize),
}

/// Takes one step of a connection that has output: seals `output`, or `close_notify` for `None`, at
/// the start of `room`.
fn seal_next<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    output: Option<&[u8]>,
    room: &mut [u8],
) -> Result<Sealed, StreamError> {
    debug_assert_eq!(status.discard, 0, "the kept bytes are no whole message");
    match status.state? {
        ConnectionState::WriteTraffic(mut traffic) => {
            let sealed = match output {
                Some(output) => traffic.encrypt(output, room),
                None => traffic.queue_close_notify(room),
            };
            match sealed {
                Ok(count) => Ok(Sealed::Output(count)),
                Err(EncryptError::InsufficientSize(error)) => {
                    Ok(Sealed::NoRoom(error.required_size))
                }
                Err(EncryptError::EncryptExhausted) => Err(Error::EncryptError.into()),
            }
        }
        ConnectionState::EncodeTlsData(mut data) => match data.encode(room) {
            Ok(count) => Ok(Sealed::Control(count)),
            Err(EncodeError::InsufficientSize(error)) => Ok(Sealed::NoRoom(error.required_size)),
            Err(EncodeError::AlreadyEncoded) => Ok(Sealed::Control(0)),
        },
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Ok(Sealed::Control(0))
        }
        ConnectionState::PeerClosed => Ok(Sealed::Control(0)),
        _ => Err(Error::HandshakeNotComplete.into()),
    }
}

//! Sessions as streams of bytes.

use std::io::{self, ErrorKind};
use std::ptr;
use std::sync::Arc;

use respool_client::{CallError, SessionStream};

use crate::bytes::{RespoolBytes, RespoolOutcome, deadline, give, slice};
use crate::client::RespoolClient;
use crate::fence::{SharedClient, caught};

/// A session as a stream of bytes in the protocol of Redis, in place of a socket of a client
/// library. One thread may write while another reads.
pub struct RespoolStream(pub(crate) SessionStream);

/// Nothing has come, or there was no room, within the time.
pub const RESPOOL_STREAM_TIMED_OUT: isize = -1;
/// The session has ended: see respool_stream_outcome.
pub const RESPOOL_STREAM_ENDED: isize = -2;
/// Over 512 MiB of replies wait to be read.
pub const RESPOOL_STREAM_FULL: isize = -3;
/// A pointer or a length is wrong.
pub const RESPOOL_STREAM_INVALID: isize = -4;

pub(crate) fn open(shared: &Arc<SharedClient>) -> Result<RespoolStream, CallError> {
    shared.with_client(|client| Ok(RespoolStream(client.stream())))
}

/// Opens a session. It is in the database of the URL, and its server has authenticated the client.
/// Returns NULL if the client is NULL or has failed.
///
/// # Safety
/// `client` is NULL or was opened and not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn respool_stream_open(client: *const RespoolClient) -> *mut RespoolStream {
    // SAFETY: the caller promises that it is null or valid.
    let opened = unsafe { client.as_ref() }.and_then(|client| open(&client.0).ok());
    opened.map_or(ptr::null_mut(), |stream| Box::into_raw(Box::new(stream)))
}

/// Writes all bytes. It blocks while the session has no room; replies that come meanwhile are kept.
/// A negative time has no end. Returns zero, or one of the codes above. After an error a part of
/// the bytes may have been written.
///
/// # Safety
/// `stream` is NULL or was opened and not closed. `data` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn respool_stream_write(
    stream: *const RespoolStream,
    data: *const u8,
    len: usize,
    ms: i64,
) -> isize {
    // SAFETY: the caller promises that it is null or valid.
    let stream = unsafe { stream.as_ref() };
    // SAFETY: the caller promises the bytes.
    let (Some(stream), Ok(data)) = (stream, unsafe { slice(data, len) }) else {
        return RESPOOL_STREAM_INVALID;
    };
    stream.write(data, ms)
}

/// Reads bytes of replies, at most `len`. It blocks until there are some, or for a time. A negative
/// time has no end. Returns their number, or one of the codes above. Zero: the stream was closed,
/// or `len` is zero.
///
/// # Safety
/// `stream` is NULL or was opened and not closed. `buffer` has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn respool_stream_read(
    stream: *const RespoolStream,
    buffer: *mut u8,
    len: usize,
    ms: i64,
) -> isize {
    // SAFETY: the caller promises that it is null or valid.
    let Some(stream) = (unsafe { stream.as_ref() }) else {
        return RESPOOL_STREAM_INVALID;
    };
    if len == 0 {
        return 0;
    }
    if buffer.is_null() || isize::try_from(len).is_err() {
        return RESPOOL_STREAM_INVALID;
    }
    // SAFETY: zeros are valid bytes, and the caller promises room for `len` of them.
    unsafe { buffer.write_bytes(0, len) };
    // SAFETY: it is not null, the length is in range, and its bytes were written above.
    let buffer = unsafe { std::slice::from_raw_parts_mut(buffer, len) };
    stream.read(buffer, ms)
}

/// Whether a read would not block.
///
/// # Safety
/// `stream` is NULL or was opened and not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn respool_stream_is_readable(stream: *const RespoolStream) -> bool {
    // SAFETY: the caller promises that it is null or valid.
    let stream = unsafe { stream.as_ref() };
    stream.is_some_and(|stream| caught(|| stream.0.is_readable()).unwrap_or(true))
}

/// The outcome of requests without a reply, once the session has ended: RESPOOL_OUTCOME_NOT_SENT if
/// none of them was executed, and RESPOOL_OUTCOME_UNKNOWN otherwise. `text` gets the reason. While
/// the session goes on it is RESPOOL_OUTCOME_REPLY. `text` may be NULL.
///
/// # Safety
/// `stream` is NULL or was opened and not closed. `text` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn respool_stream_outcome(
    stream: *const RespoolStream,
    text: *mut RespoolBytes,
) -> RespoolOutcome {
    // SAFETY: the caller promises that it is null or valid.
    let outcome = match unsafe { stream.as_ref() } {
        Some(stream) => stream.outcome().map_or(Ok(Vec::new()), Err),
        None => Err(CallError::Invalid("the stream is NULL".into())),
    };
    // SAFETY: the caller promises that it is null or valid.
    unsafe { give(outcome, text) }
}

/// Ends a stream: a thread that reads returns. Requests that were written are executed, as those of
/// a closed connection are.
///
/// # Safety
/// `stream` is NULL or was opened and not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn respool_stream_end(stream: *const RespoolStream) {
    // SAFETY: the caller promises that it is null or valid.
    if let Some(stream) = unsafe { stream.as_ref() } {
        caught(|| stream.0.close());
    }
}

/// Closes a stream, and frees it. No function of it may be under way. It does nothing to a NULL
/// pointer.
///
/// # Safety
/// `stream` is NULL or was opened and not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn respool_stream_close(stream: *mut RespoolStream) {
    if !stream.is_null() {
        // SAFETY: it comes from `respool_stream_open`, and the caller promises that it is closed
        // once.
        let stream = unsafe { Box::from_raw(stream) };
        caught(|| drop(stream));
    }
}

impl RespoolStream {
    pub(crate) fn write(&self, data: &[u8], ms: i64) -> isize {
        let written = caught(|| self.0.write_all(data, deadline(ms)));
        match written {
            Some(Ok(())) => 0,
            Some(Err(error)) => code(&error),
            None => RESPOOL_STREAM_ENDED,
        }
    }

    pub(crate) fn read(&self, buffer: &mut [u8], ms: i64) -> isize {
        match caught(|| self.0.read(buffer, deadline(ms))) {
            Some(Ok(count)) => count as isize,
            Some(Err(error)) => code(&error),
            None => RESPOOL_STREAM_ENDED,
        }
    }

    pub(crate) fn outcome(&self) -> Option<CallError> {
        caught(|| self.0.outcome())
            .unwrap_or_else(|| Some(CallError::Unknown("the session has failed".into())))
    }
}

pub(crate) fn code(error: &io::Error) -> isize {
    match error.kind() {
        ErrorKind::TimedOut => RESPOOL_STREAM_TIMED_OUT,
        ErrorKind::QuotaExceeded => RESPOOL_STREAM_FULL,
        _ => RESPOOL_STREAM_ENDED,
    }
}

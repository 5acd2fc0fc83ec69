//! Bytes and outcomes as C has them.

use std::mem::ManuallyDrop;
use std::ptr;
use std::time::{Duration, Instant};

use respool_client::CallError;

/// The outcome of a call.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RespoolOutcome {
    /// The reply has come.
    Reply = 0,
    /// The server has answered with an error. The bytes are its text, without the dash in front.
    Server = 1,
    /// The request was surely not executed. The bytes say why.
    NotSent = 2,
    /// The request was sent, and may have been executed. The bytes say why no reply has come.
    Unknown = 3,
    /// The arguments are wrong, or the client does not send such a request. The bytes say why.
    Invalid = 4,
}

/// Bytes that the library has allocated. respool_bytes_free frees them.
#[repr(C)]
pub struct RespoolBytes {
    /// NULL if there are none.
    pub data: *mut u8,
    /// Number of bytes.
    pub len: usize,
    /// For respool_bytes_free.
    pub capacity: usize,
}

impl RespoolBytes {
    pub(crate) const NONE: RespoolBytes = RespoolBytes {
        data: ptr::null_mut(),
        len: 0,
        capacity: 0,
    };

    fn new(bytes: Vec<u8>) -> RespoolBytes {
        if bytes.capacity() == 0 {
            return RespoolBytes::NONE;
        }
        let mut bytes = ManuallyDrop::new(bytes);
        RespoolBytes {
            data: bytes.as_mut_ptr(),
            len: bytes.len(),
            capacity: bytes.capacity(),
        }
    }
}

/// Frees bytes that the library has allocated, and clears the structure. It does nothing to a NULL
/// pointer and to a cleared structure.
///
/// # Safety
/// `bytes` is NULL or points to a structure that the library has filled, or that is all zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn respool_bytes_free(bytes: *mut RespoolBytes) {
    // SAFETY: the caller promises that a pointer which is not null is valid.
    let Some(bytes) = (unsafe { bytes.as_mut() }) else {
        return;
    };
    let bytes = std::mem::replace(bytes, RespoolBytes::NONE);
    if !bytes.data.is_null() {
        // SAFETY: the three parts are those of a vector that `RespoolBytes::new` took apart. The
        // structure was cleared above, so nothing frees them again.
        drop(unsafe { Vec::from_raw_parts(bytes.data, bytes.len, bytes.capacity) });
    }
}

/// Writes an outcome where C wants it.
///
/// # Safety
/// `place` is null or valid for a write.
pub(crate) unsafe fn give(
    outcome: Result<Vec<u8>, CallError>,
    place: *mut RespoolBytes,
) -> RespoolOutcome {
    let (code, bytes) = parts(outcome);
    // SAFETY: the caller promises it.
    unsafe { put(bytes, place) };
    code
}

/// Writes bytes where C wants them. Without a place they are dropped.
///
/// # Safety
/// `place` is null or valid for a write.
pub(crate) unsafe fn put(bytes: Vec<u8>, place: *mut RespoolBytes) {
    if !place.is_null() {
        // SAFETY: it is not null, and the caller promises that it is valid for a write.
        unsafe { place.write(RespoolBytes::new(bytes)) };
    }
}

pub(crate) fn owned(outcome: Result<Vec<u8>, CallError>) -> (RespoolOutcome, RespoolBytes) {
    let (code, bytes) = parts(outcome);
    (code, RespoolBytes::new(bytes))
}

fn parts(outcome: Result<Vec<u8>, CallError>) -> (RespoolOutcome, Vec<u8>) {
    match outcome {
        Ok(reply) => (RespoolOutcome::Reply, reply),
        Err(CallError::Server(text)) => (RespoolOutcome::Server, text.into_bytes()),
        Err(CallError::NotSent(text)) => (RespoolOutcome::NotSent, text.into_bytes()),
        Err(CallError::Unknown(text)) => (RespoolOutcome::Unknown, text.into_bytes()),
        Err(CallError::Invalid(text)) => (RespoolOutcome::Invalid, text.into_bytes()),
        // A later kind is no promise that the request was not executed.
        Err(other) => (RespoolOutcome::Unknown, other.to_string().into_bytes()),
    }
}

/// The bytes that C gives.
///
/// # Errors
/// The pointer is null although there are bytes, or the length is that of no object.
///
/// # Safety
/// A pointer that is not null is valid for `len` bytes while the slice is used.
pub(crate) unsafe fn slice<'a>(data: *const u8, len: usize) -> Result<&'a [u8], CallError> {
    if len == 0 {
        return Ok(&[]);
    }
    if data.is_null() || isize::try_from(len).is_err() {
        let text = format!("a pointer to {len} bytes is NULL, or the length is wrong");
        return Err(CallError::Invalid(text));
    }
    // SAFETY: it is not null, the length is in range, and the caller promises the rest.
    Ok(unsafe { std::slice::from_raw_parts(data, len) })
}

/// The arguments of a request.
///
/// # Errors
/// See [`slice`]; and without an argument.
///
/// # Safety
/// `args` and `lens` are null or have `count` items. See [`slice`] for each pair.
pub(crate) unsafe fn arguments<'a>(
    args: *const *const u8,
    lens: *const usize,
    count: usize,
) -> Result<Vec<&'a [u8]>, CallError> {
    let text = match count {
        0 => "a request has at least one argument, the command",
        _ if args.is_null() || lens.is_null() => "the arguments or their lengths are NULL",
        _ if count > isize::MAX as usize / size_of::<usize>() => "the number of arguments is wrong",
        _ => {
            return (0..count)
                // SAFETY: both have `count` items, as the caller promises, and the caller promises
                // each pair.
                .map(|at| unsafe { slice(*args.add(at), *lens.add(at)) })
                .collect();
        }
    };
    Err(CallError::Invalid(text.into()))
}

/// A limit in milliseconds. Zero is none.
pub(crate) fn limit(ms: u32) -> Option<Duration> {
    (ms > 0).then(|| Duration::from_millis(ms.into()))
}

/// The end of a time in milliseconds. A negative one has no end.
pub(crate) fn deadline(ms: i64) -> Option<Instant> {
    let limit = Duration::from_millis(ms.try_into().ok()?);
    // A limit beyond the range of the clock is none.
    Instant::now().checked_add(limit)
}

//! Clients and their calls.

use std::ffi::{CStr, c_char};
use std::ptr;
use std::sync::Arc;

use respool_client::{CallError, Client};

use crate::bytes::{RespoolBytes, RespoolOutcome, arguments, give, limit, put, slice};
use crate::fence::{SharedClient, caught};

/// A client. Its functions may be called from any thread.
pub struct RespoolClient(pub(crate) Arc<SharedClient>);

/// An option of a client: its name in the configuration of respool, and its value as in
/// `respool serve --NAME VALUE`. Both are UTF-8. The name `resp3` is one of this library: with the
/// value `yes` the replies of calls are in RESP3.
#[repr(C)]
pub struct RespoolOption {
    /// The name.
    pub name: *const c_char,
    /// The value.
    pub value: *const c_char,
}

/// Opens a client of the servers that a URL names, such as redis://127.0.0.1:6379. Calls may begin
/// before its connections are up. Servers that cannot be reached are no error: calls fail until
/// they can.
///
/// Returns NULL if the URL or an option is wrong, or the system refuses a thread. Then `error` has
/// the text, a line for each problem. `options` may be NULL if `count` is zero, and `error` always.
///
/// # Safety
/// Each pointer is NULL or valid. The texts end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn respool_open(
    url: *const c_char,
    options: *const RespoolOption,
    count: usize,
    error: *mut RespoolBytes,
) -> *mut RespoolClient {
    let opened = caught(|| {
        // SAFETY: the caller promises a text.
        let url = unsafe { text(url) }?;
        let mut texts = Vec::new();
        if count > 0 && options.is_null() {
            return Err("the options are NULL".to_owned());
        }
        for at in 0..count {
            // SAFETY: it is not null, and the caller promises `count` options.
            let option = unsafe { &*options.add(at) };
            // SAFETY: the caller promises texts.
            texts.push(unsafe { (text(option.name)?, text(option.value)?) });
        }
        open(url, &texts)
    });
    let message = match opened {
        Some(Ok(client)) => return Box::into_raw(Box::new(RespoolClient(client))),
        Some(Err(message)) => message,
        None => "the client has failed while it was opened".into(),
    };
    // SAFETY: the caller promises that it is null or valid.
    unsafe { put(message.into_bytes(), error) };
    ptr::null_mut()
}

/// Opens a client with these options.
pub(crate) fn open(url: &str, texts: &[(&str, &str)]) -> Result<Arc<SharedClient>, String> {
    let mut options = Client::options();
    for (name, value) in texts {
        options = match (*name, *value) {
            ("resp3", "yes") => options.resp3(true),
            ("resp3", "no") => options.resp3(false),
            ("resp3", value) => return Err(format!("resp3: yes or no, and not '{value}'")),
            (name, value) => options.set(name, value),
        };
    }
    let client = options.open(url).map_err(|error| error.to_string())?;
    Ok(Arc::new(SharedClient::new(client)))
}

/// # Safety
/// `text` is null or ends with a zero byte.
unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, String> {
    if text.is_null() {
        return Err("the URL, or the name or value of an option is NULL".into());
    }
    // SAFETY: it is not null, and the caller promises its end.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .map_err(|_| "the URL, or the name or value of an option is not UTF-8".into())
}

/// Sends a request and blocks until its reply has come. `lens` has the lengths of the arguments,
/// which may contain any bytes. `limit_ms`: the time after which the call fails; zero: no limit. If
/// the request was sent by then, its outcome is unknown; otherwise it is not sent. `reply` gets the
/// reply in the protocol of Redis, or the text of an error.
///
/// Commands that change their connection, such as SELECT, MULTI or SUBSCRIBE, are refused as
/// RESPOOL_OUTCOME_INVALID: a stream takes them.
///
/// # Safety
/// `client` is NULL or was opened and not closed. `args` and `lens` have `count` items. `reply` is
/// NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn respool_call(
    client: *const RespoolClient,
    args: *const *const u8,
    lens: *const usize,
    count: usize,
    limit_ms: u32,
    reply: *mut RespoolBytes,
) -> RespoolOutcome {
    // SAFETY: the caller promises that it is null or valid.
    let outcome = unsafe { shared(client) }.and_then(|shared| {
        // SAFETY: the caller promises the arguments.
        let args = unsafe { arguments(args, lens, count) }?;
        shared.with_client(|client| match limit(limit_ms) {
            Some(limit) => client.within(limit).call(&args),
            None => client.call(&args),
        })
    });
    // SAFETY: the caller promises that it is null or valid.
    unsafe { give(outcome, reply) }
}

/// As respool_call, for a request that the caller has encoded: one array of bulk strings.
///
/// # Safety
/// See respool_call. `request` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn respool_call_encoded(
    client: *const RespoolClient,
    request: *const u8,
    len: usize,
    limit_ms: u32,
    reply: *mut RespoolBytes,
) -> RespoolOutcome {
    // SAFETY: the caller promises that it is null or valid.
    let outcome = unsafe { shared(client) }.and_then(|shared| {
        // SAFETY: the caller promises the request.
        let request = unsafe { slice(request, len) }?.to_vec();
        shared.with_client(|client| client.call_encoded(request, limit(limit_ms)))
    });
    // SAFETY: the caller promises that it is null or valid.
    unsafe { give(outcome, reply) }
}

/// Closes a client. No function of the client itself may be under way. Its completions and streams
/// stay usable until they are closed; the last of them ends the connections, which takes up to a
/// second while requests wait for their servers. It does nothing to a NULL pointer.
///
/// # Safety
/// `client` is NULL or was opened and not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn respool_close(client: *mut RespoolClient) {
    if !client.is_null() {
        // SAFETY: it comes from `respool_open`, and the caller promises that it is closed once.
        let client = unsafe { Box::from_raw(client) };
        client.0.close();
    }
}

/// # Safety
/// `client` is null or valid.
pub(crate) unsafe fn shared<'a>(
    client: *const RespoolClient,
) -> Result<&'a SharedClient, CallError> {
    // SAFETY: the caller promises that it is null or valid.
    let client = unsafe { client.as_ref() };
    let client = client.ok_or_else(|| CallError::Invalid("the client is NULL".into()))?;
    Ok(&client.0)
}

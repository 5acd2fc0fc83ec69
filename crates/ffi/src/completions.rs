//! Many calls at the same time.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use respool_client::{CallError, Completions};

use crate::bytes::{RespoolBytes, RespoolOutcome, arguments, deadline, give, owned, put, slice};
use crate::client::RespoolClient;
use crate::fence::{SharedClient, caught};

/// Calls that are under way at the same time. One thread or event loop takes their outcomes in
/// batches. Its functions may be called from any thread.
pub struct RespoolCompletions {
    pub(crate) calls: Completions,
    /// Outcomes that were taken from `calls`, and had no room in the array of the caller.
    rest: Mutex<VecDeque<Outcome>>,
    shared: Arc<SharedClient>,
}

pub(crate) type Outcome = (u64, Result<Vec<u8>, CallError>);

/// The outcome of a call.
#[repr(C)]
pub struct RespoolCompletion {
    /// The token of the call.
    pub token: u64,
    /// The outcome.
    pub outcome: RespoolOutcome,
    /// The reply or the text of the error. respool_bytes_free frees it.
    pub reply: RespoolBytes,
}

impl RespoolCompletions {
    pub(crate) fn open(shared: &Arc<SharedClient>) -> Result<RespoolCompletions, CallError> {
        let calls = shared.with_client(|client| {
            let calls = client.completions();
            calls.map_err(|error| CallError::NotSent(error.to_string()))
        })?;
        Ok(RespoolCompletions {
            calls,
            rest: Mutex::default(),
            shared: shared.clone(),
        })
    }

    pub(crate) fn ask_encoded(&self, request: Vec<u8>, token: u64) -> Result<(), CallError> {
        let ask = || self.calls.ask_encoded(request, token);
        self.shared.fenced(ask)
    }

    /// Takes outcomes as long as `take` has room for them: it gives back an outcome without room.
    pub(crate) fn take(&self, mut take: impl FnMut(Outcome) -> Option<Outcome>) {
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        if rest.is_empty() {
            let mut outcomes = Vec::new();
            // The client has failed if this panics, and no outcome comes any more.
            let _ = self.shared.fenced(|| {
                self.calls.take(&mut outcomes);
                Ok(())
            });
            rest.extend(outcomes);
        }
        while let Some(outcome) = rest.pop_front() {
            if let Some(outcome) = take(outcome) {
                rest.push_front(outcome);
                return;
            }
        }
    }

    pub(crate) fn wait(&self, ms: i64) -> bool {
        let rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        let is_empty = rest.is_empty();
        drop(rest);
        !is_empty || self.calls.wait(deadline(ms))
    }
}

/// Opens a place for many calls. Returns NULL if the system refuses a descriptor; then `error` has
/// the text. `error` may be NULL.
///
/// # Safety
/// `client` is NULL or was opened and not closed. `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn respool_completions_open(
    client: *const RespoolClient,
    error: *mut RespoolBytes,
) -> *mut RespoolCompletions {
    // SAFETY: the caller promises that it is null or valid.
    let client = unsafe { client.as_ref() };
    let opened = match client {
        Some(client) => RespoolCompletions::open(&client.0),
        None => Err(CallError::Invalid("the client is NULL".into())),
    };
    match opened {
        Ok(completions) => Box::into_raw(Box::new(completions)),
        Err(problem) => {
            // SAFETY: the caller promises that it is null or valid.
            unsafe { put(problem.to_string().into_bytes(), error) };
            ptr::null_mut()
        }
    }
}

/// Begins a call. Its outcome comes with the token, which no call that is under way may have.
/// Returns RESPOOL_OUTCOME_REPLY if it has begun. Otherwise nothing was sent, no outcome comes, and
/// `error` has the text. `error` may be NULL.
///
/// # Safety
/// `completions` is NULL or was opened and not closed. See respool_call for the rest.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn respool_completions_ask(
    completions: *const RespoolCompletions,
    args: *const *const u8,
    lens: *const usize,
    count: usize,
    token: u64,
    error: *mut RespoolBytes,
) -> RespoolOutcome {
    // SAFETY: the caller promises that it is null or valid.
    let begun = unsafe { of(completions) }.and_then(|completions| {
        // SAFETY: the caller promises the arguments.
        let args = unsafe { arguments(args, lens, count) }?;
        completions
            .shared
            .fenced(|| completions.calls.ask(&args, token))
    });
    // SAFETY: the caller promises that it is null or valid.
    unsafe { give(begun.map(|()| Vec::new()), error) }
}

/// As respool_completions_ask, for a request that the caller has encoded: one array of bulk
/// strings.
///
/// # Safety
/// See respool_completions_ask. `request` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn respool_completions_ask_encoded(
    completions: *const RespoolCompletions,
    request: *const u8,
    len: usize,
    token: u64,
    error: *mut RespoolBytes,
) -> RespoolOutcome {
    // SAFETY: the caller promises that it is null or valid.
    let begun = unsafe { of(completions) }.and_then(|completions| {
        // SAFETY: the caller promises the request.
        let request = unsafe { slice(request, len) }?.to_vec();
        completions.ask_encoded(request, token)
    });
    // SAFETY: the caller promises that it is null or valid.
    unsafe { give(begun.map(|()| Vec::new()), error) }
}

/// Takes the request of a call back if it has not left. The outcome comes as any other, and tells
/// the fate of the request. A limit of time is a timer of the caller that calls this.
///
/// # Safety
/// `completions` is NULL or was opened and not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn respool_completions_withdraw(
    completions: *const RespoolCompletions,
    token: u64,
) {
    // SAFETY: the caller promises that it is null or valid.
    if let Ok(completions) = unsafe { of(completions) } {
        caught(|| completions.calls.withdraw(token));
    }
}

/// Blocks until there may be outcomes to take, or for a time. A negative time has no end. Returns
/// false at the end of the time.
///
/// # Safety
/// `completions` is NULL or was opened and not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn respool_completions_wait(
    completions: *const RespoolCompletions,
    ms: i64,
) -> bool {
    // SAFETY: the caller promises that it is null or valid.
    match unsafe { of(completions) } {
        Ok(completions) => caught(|| completions.wait(ms)).unwrap_or(true),
        Err(_) => false,
    }
}

/// Takes outcomes that are there, at most `max`. It does not block. Returns their number. If it is
/// `max`, there may be more: take again, the descriptor may not be readable for them.
///
/// # Safety
/// `completions` is NULL or was opened and not closed. `out` has room for `max` outcomes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn respool_completions_take(
    completions: *const RespoolCompletions,
    out: *mut RespoolCompletion,
    max: usize,
) -> usize {
    // SAFETY: the caller promises that it is null or valid.
    let Ok(completions) = (unsafe { of(completions) }) else {
        return 0;
    };
    if out.is_null() || max == 0 {
        return 0;
    }
    let mut count = 0;
    completions.take(|(token, outcome)| {
        if count == max {
            return Some((token, outcome));
        }
        let (outcome, reply) = owned(outcome);
        let completion = RespoolCompletion {
            token,
            outcome,
            reply,
        };
        // SAFETY: it is not null, and the caller promises room for `max` of them.
        unsafe { out.add(count).write(completion) };
        count += 1;
        None
    });
    count
}

/// A descriptor that is readable while there may be outcomes to take, for an event loop.
/// respool_completions_take clears it. It belongs to the completions. Returns -1 for a NULL
/// pointer.
///
/// # Safety
/// `completions` is NULL or was opened and not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn respool_completions_fd(completions: *const RespoolCompletions) -> i32 {
    // SAFETY: the caller promises that it is null or valid.
    let completions = unsafe { of(completions) };
    completions.map_or(-1, |completions| completions.calls.as_fd().as_raw_fd())
}

/// Closes completions. No function of them may be under way. Requests that have not left are taken
/// back. It does nothing to a NULL pointer.
///
/// # Safety
/// `completions` is NULL or was opened and not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn respool_completions_close(completions: *mut RespoolCompletions) {
    if !completions.is_null() {
        // SAFETY: it comes from `respool_completions_open`, and the caller promises that it is
        // closed once.
        let completions = unsafe { Box::from_raw(completions) };
        caught(|| drop(completions));
    }
}

/// # Safety
/// `completions` is null or valid.
unsafe fn of<'a>(
    completions: *const RespoolCompletions,
) -> Result<&'a RespoolCompletions, CallError> {
    // SAFETY: the caller promises that it is null or valid.
    let completions = unsafe { completions.as_ref() };
    completions.ok_or_else(|| CallError::Invalid("the completions are NULL".into()))
}

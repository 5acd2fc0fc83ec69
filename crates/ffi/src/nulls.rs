//! Null pointers and wrong lengths get an error.

use std::ptr::{dangling, null, null_mut};

use crate::bytes::{RespoolBytes, RespoolOutcome, respool_bytes_free};
use crate::client::{respool_call, respool_call_encoded, respool_close, respool_open};
use crate::completions::*;
use crate::stream::*;

fn text(bytes: &mut RespoolBytes) -> String {
    assert!(!bytes.data.is_null());
    // SAFETY: the library has filled it.
    let text = unsafe { std::slice::from_raw_parts(bytes.data, bytes.len) }.to_vec();
    // SAFETY: as above.
    unsafe { respool_bytes_free(bytes) };
    assert!(bytes.data.is_null());
    String::from_utf8(text).expect("a text")
}

#[test]
fn null_objects_are_errors() {
    let mut error = RespoolBytes::NONE;
    // SAFETY: each function takes null pointers.
    unsafe {
        assert!(respool_open(null(), null(), 0, &mut error).is_null());
        assert!(text(&mut error).contains("NULL"));
        assert!(respool_open(c"redis://h".as_ptr(), null(), 1, &mut error).is_null());
        assert!(text(&mut error).contains("NULL"));
        assert!(respool_open(null(), null(), 0, null_mut()).is_null());
        let outcome = respool_call(null(), null(), null(), 0, 0, &mut error);
        assert_eq!(outcome, RespoolOutcome::Invalid);
        assert!(text(&mut error).contains("NULL"));
        assert!(respool_completions_open(null(), &mut error).is_null());
        assert!(text(&mut error).contains("NULL"));
        let outcome = respool_completions_ask(null(), null(), null(), 0, 0, null_mut());
        assert_eq!(outcome, RespoolOutcome::Invalid);
        assert!(!respool_completions_wait(null(), -1));
        assert_eq!(respool_completions_take(null(), null_mut(), 9), 0);
        assert_eq!(respool_completions_fd(null()), -1);
        respool_completions_withdraw(null(), 0);
        assert!(respool_stream_open(null()).is_null());
        let code = respool_stream_read(null(), null_mut(), 9, -1);
        assert_eq!(code, RESPOOL_STREAM_INVALID);
        let code = respool_stream_write(null(), null(), 9, -1);
        assert_eq!(code, RESPOOL_STREAM_INVALID);
        assert!(!respool_stream_is_readable(null()));
        let outcome = respool_stream_outcome(null(), null_mut());
        assert_eq!(outcome, RespoolOutcome::Invalid);
        respool_stream_end(null());
        respool_stream_close(null_mut());
        respool_completions_close(null_mut());
        respool_close(null_mut());
        respool_bytes_free(null_mut());
    }
}

#[test]
fn wrong_arguments_are_errors() {
    let mut reply = RespoolBytes::NONE;
    // SAFETY: the client is open; no pointer is read whose length is wrong.
    unsafe {
        let client = respool_open(c"redis://127.0.0.1:1".as_ptr(), null(), 0, null_mut());
        assert!(!client.is_null());
        let mut is_refused = |args: *const *const u8, lens: *const usize, count: usize| {
            let outcome = respool_call(client, args, lens, count, 0, &mut reply);
            assert_eq!(outcome, RespoolOutcome::Invalid, "{}", text(&mut reply));
            respool_bytes_free(&mut reply);
        };
        is_refused(null(), null(), 0);
        is_refused(null(), null(), 1);
        is_refused(&null(), null(), 1);
        is_refused(&null(), &4, 1);
        is_refused(&dangling(), &usize::MAX, 1);
        is_refused(&dangling(), &0, usize::MAX);
        let outcome = respool_call_encoded(client, null(), 7, 0, null_mut());
        assert_eq!(outcome, RespoolOutcome::Invalid);
        let outcome = respool_call_encoded(client, b"PING\r\n".as_ptr(), 6, 0, null_mut());
        assert_eq!(outcome, RespoolOutcome::Invalid);
        respool_close(client);
    }
}

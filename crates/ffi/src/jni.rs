//! The native methods of the Java class `io.respool.Native`.
//!
//! A handle is a pointer in a `long`. Java opens it, uses it while the object that has it is
//! reachable, and frees it once. Requests come encoded. An outcome is one array of bytes: a reply
//! or an error reply in the protocol of Redis, or a text behind one of the letters `N` (not sent),
//! `U` (unknown) and `I` (invalid), with which no reply begins.
//!
//! No function throws, except that Java has no memory for an array.

use std::ptr;
use std::sync::{Arc, PoisonError, RwLock};

use jni_sys::{
    JNIEnv, JNINativeInterface__1_1, jboolean, jbyteArray, jclass, jint, jintArray, jlong,
    jlongArray, jobjectArray, jsize,
};
use respool_client::CallError;

use crate::bytes::limit;
use crate::client::{self, RespoolClient};
use crate::completions::{Outcome, RespoolCompletions};
use crate::fence::caught;
use crate::ready::ReadyStreams;
use crate::stream::{self, RESPOOL_STREAM_ENDED, RESPOOL_STREAM_INVALID, RespoolStream};

/// A batch ends with the outcome that reaches this number of bytes.
const BATCH_BYTES: usize = 1 << 20;
/// The most bytes of one read of a stream.
const READ_BYTES_MAX: usize = 16 << 10;

// --- values that Java gives and takes ---

/// The functions of the virtual machine for the thread that has called.
#[derive(Clone, Copy)]
struct Env(*mut JNIEnv);

impl Env {
    fn functions(&self) -> &JNINativeInterface__1_1 {
        // SAFETY: the virtual machine gives a valid pointer to its table with each call, and an
        // `Env` does not outlive the call.
        unsafe { &(**self.0).v1_1 }
    }

    fn len(&self, array: jbyteArray) -> jsize {
        match array.is_null() {
            true => 0,
            // SAFETY: it is an array, as the class says, and not null.
            false => unsafe { (self.functions().GetArrayLength)(self.0, array) },
        }
    }

    /// Copies bytes out of an array, if the range is in it.
    fn bytes(&self, array: jbyteArray, at: jint, len: jint) -> Option<Vec<u8>> {
        let end = at.checked_add(len)?;
        if at < 0 || len < 0 || end > self.len(array) {
            return None;
        }
        let mut bytes = vec![0; len as usize];
        if len > 0 {
            let data = bytes.as_mut_ptr().cast();
            // SAFETY: the range is in the array, and the vector has `len` bytes.
            unsafe { (self.functions().GetByteArrayRegion)(self.0, array, at, len, data) };
        }
        Some(bytes)
    }

    fn whole(&self, array: jbyteArray) -> Vec<u8> {
        self.bytes(array, 0, self.len(array)).unwrap_or_default()
    }

    fn text(&self, array: jbyteArray) -> String {
        String::from_utf8_lossy(&self.whole(array)).into_owned()
    }

    /// Copies bytes into an array. The range is in it.
    fn set(&self, array: jbyteArray, at: jint, bytes: &[u8]) {
        let len = bytes.len() as jsize;
        // SAFETY: `array` is one of bytes. A range outside of it would throw and copy nothing.
        unsafe {
            (self.functions().SetByteArrayRegion)(self.0, array, at, len, bytes.as_ptr().cast());
        }
    }

    /// A new array, or null with an `OutOfMemoryError` that Java throws.
    fn array(&self, bytes: &[u8]) -> jbyteArray {
        let array = self.room(bytes.len());
        if !array.is_null() {
            self.set(array, 0, bytes);
        }
        array
    }

    fn room(&self, len: usize) -> jbyteArray {
        // SAFETY: the length is in range: see `encoded`.
        unsafe { (self.functions().NewByteArray)(self.0, len as jsize) }
    }

    fn outcome(&self, outcome: Result<Vec<u8>, CallError>) -> jbyteArray {
        self.array(&encoded(outcome))
    }

    /// Sets an item of an array of objects, unless Java has no memory for it.
    fn set_item(&self, array: jobjectArray, at: jsize, bytes: &[u8]) {
        let item = self.array(bytes);
        if !item.is_null() && at < self.len(array) {
            // SAFETY: the array has such an item, and the object is an array of bytes.
            unsafe { (self.functions().SetObjectArrayElement)(self.0, array, at, item) };
        }
    }

    /// Whether the thread was interrupted, as the class tells it. The status of the thread stays.
    fn is_interrupted(&self, class: jclass) -> bool {
        let functions = self.functions();
        // SAFETY: the class is that of these native methods, which has a static method of this
        // name without arguments. An exception would be pending, and is cleared.
        unsafe {
            let name = c"isInterrupted".as_ptr();
            let method = (functions.GetStaticMethodID)(self.0, class, name, c"()Z".as_ptr());
            let is_interrupted =
                !method.is_null() && (functions.CallStaticBooleanMethod)(self.0, class, method);
            (functions.ExceptionClear)(self.0);
            is_interrupted
        }
    }
}

/// An outcome as one array of bytes. Java has no longer ones.
fn encoded(outcome: Result<Vec<u8>, CallError>) -> Vec<u8> {
    let (letter, text) = match outcome {
        Ok(reply) if reply.len() <= jsize::MAX as usize - 8 => return reply,
        Ok(reply) => {
            let text = format!(
                "Java has no array for the {} bytes of the reply",
                reply.len()
            );
            ('U', text)
        }
        Err(CallError::Server(text)) => return format!("-{text}\r\n").into_bytes(),
        Err(CallError::NotSent(text)) => ('N', text),
        Err(CallError::Unknown(text)) => ('U', text),
        Err(CallError::Invalid(text)) => ('I', text),
        Err(other) => ('U', other.to_string()),
    };
    format!("{letter}{text}").into_bytes()
}

fn closed() -> CallError {
    CallError::NotSent("the client was closed".into())
}

/// Gives an object to Java.
fn handle<T>(object: T) -> jlong {
    Box::into_raw(Box::new(object)) as jlong
}

/// An object that Java closes while other threads may use it. The last of them drops it.
struct Shell<T>(RwLock<Option<Arc<T>>>);

impl<T> Shell<T> {
    fn new(object: T) -> Shell<T> {
        Shell(RwLock::new(Some(Arc::new(object))))
    }

    fn get(&self) -> Option<Arc<T>> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn close(&self) -> Option<Arc<T>> {
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

/// # Safety
/// See [`object`], for a shell.
unsafe fn inside<T: 'static>(handle: jlong) -> Option<Arc<T>> {
    // SAFETY: the caller promises it.
    let shell: Option<&Shell<T>> = unsafe { object(handle) };
    shell.and_then(Shell::get)
}

/// # Safety
/// `handle` is zero, or comes from [`handle`] with this type and was not freed.
unsafe fn object<'a, T>(handle: jlong) -> Option<&'a T> {
    // SAFETY: the caller promises it.
    unsafe { (handle as *const T).as_ref() }
}

/// # Safety
/// See [`object`]. Nothing uses the object any more.
unsafe fn free<T>(handle: jlong) {
    if handle != 0 {
        // SAFETY: it comes from `handle`, and the caller promises that it is freed once.
        let object = unsafe { Box::from_raw(handle as *mut T) };
        caught(|| drop(object));
    }
}

// --- clients ---

/// `long open(byte[] url, byte[][] namesAndValues, byte[][] error)`
///
/// # Safety
/// The virtual machine calls it.
#[unsafe(no_mangle)]
unsafe extern "system" fn Java_io_respool_Native_open(
    env: *mut JNIEnv,
    _class: jclass,
    url: jbyteArray,
    names_and_values: jobjectArray,
    error: jobjectArray,
) -> jlong {
    let env = Env(env);
    let count = env.len(names_and_values);
    let texts: Vec<String> = (0..count)
        .map(|at| {
            // SAFETY: the array of arrays has such an item.
            let item =
                unsafe { (env.functions().GetObjectArrayElement)(env.0, names_and_values, at) };
            env.text(item)
        })
        .collect();
    let pairs = texts.chunks_exact(2);
    let pairs: Vec<(&str, &str)> = pairs.map(|pair| (&*pair[0], &*pair[1])).collect();
    let opened = caught(|| client::open(&env.text(url), &pairs));
    let text = match opened {
        Some(Ok(client)) => return handle(RespoolClient(client)),
        Some(Err(text)) => text,
        None => "the client has failed while it was opened".into(),
    };
    env.set_item(error, 0, text.as_bytes());
    0
}

/// `byte[] call(long client, byte[] request, int limitMs)`
///
/// # Safety
/// The virtual machine calls it, with a handle of `open`.
#[unsafe(no_mangle)]
unsafe extern "system" fn Java_io_respool_Native_call(
    env: *mut JNIEnv,
    class: jclass,
    client: jlong,
    request: jbyteArray,
    limit_ms: jint,
) -> jbyteArray {
    let env = Env(env);
    // SAFETY: see above.
    let client: Option<&RespoolClient> = unsafe { object(client) };
    let outcome = client.ok_or_else(closed).and_then(|client| {
        let request = env.whole(request);
        let limit = limit(limit_ms.max(0) as u32);
        client.0.with_client(|client| {
            client.call_encoded_while(request, limit, || !env.is_interrupted(class))
        })
    });
    env.outcome(outcome)
}

/// `void close(long client)`: calls fail from now on.
///
/// # Safety
/// The virtual machine calls it, with a handle of `open`.
#[unsafe(no_mangle)]
unsafe extern "system" fn Java_io_respool_Native_close(
    _env: *mut JNIEnv,
    _class: jclass,
    client: jlong,
) {
    // SAFETY: see above.
    let client: Option<&RespoolClient> = unsafe { object(client) };
    if let Some(client) = client {
        client.0.close();
    }
}

/// `void free(long client)`
///
/// # Safety
/// The virtual machine calls it, with a handle of `open` that nothing uses.
#[unsafe(no_mangle)]
unsafe extern "system" fn Java_io_respool_Native_free(
    _env: *mut JNIEnv,
    _class: jclass,
    client: jlong,
) {
    // SAFETY: see above.
    unsafe {
        let client_of: Option<&RespoolClient> = object(client);
        if let Some(client) = client_of {
            client.0.close();
        }
        free::<RespoolClient>(client);
    }
}

// --- completions ---

/// `long openCompletions(long client)`: zero if the client was closed.
///
/// # Safety
/// The virtual machine calls it, with a handle of `open`.
#[unsafe(no_mangle)]
unsafe extern "system" fn Java_io_respool_Native_openCompletions(
    _env: *mut JNIEnv,
    _class: jclass,
    client: jlong,
) -> jlong {
    // SAFETY: see above.
    let client: Option<&RespoolClient> = unsafe { object(client) };
    let opened = client.map(|client| RespoolCompletions::open(&client.0));
    opened
        .and_then(Result::ok)
        .map_or(0, |object| handle(Shell::new(object)))
}

/// `byte[] ask(long completions, byte[] request, long token)`: null if the call has begun.
///
/// # Safety
/// The virtual machine calls it, with a handle of `openCompletions`.
#[unsafe(no_mangle)]
unsafe extern "system" fn Java_io_respool_Native_ask(
    env: *mut JNIEnv,
    _class: jclass,
    completions: jlong,
    request: jbyteArray,
    token: jlong,
) -> jbyteArray {
    let env = Env(env);
    // SAFETY: see above.
    let completions: Option<Arc<RespoolCompletions>> = unsafe { inside(completions) };
    let begun = completions.ok_or_else(closed).and_then(|completions| {
        let request = env.whole(request);
        completions.ask_encoded(request, token as u64)
    });
    match begun {
        Ok(()) => ptr::null_mut(),
        Err(error) => env.outcome(Err(error)),
    }
}

/// `void withdraw(long completions, long token)`
///
/// # Safety
/// The virtual machine calls it, with a handle of `openCompletions`.
#[unsafe(no_mangle)]
unsafe extern "system" fn Java_io_respool_Native_withdraw(
    _env: *mut JNIEnv,
    _class: jclass,
    completions: jlong,
    token: jlong,
) {
    // SAFETY: see above.
    let completions: Option<Arc<RespoolCompletions>> = unsafe { inside(completions) };
    if let Some(completions) = completions {
        caught(|| completions.calls.withdraw(token as u64));
    }
}

/// `byte[] take(long completions, long[] tokens, int[] ends)`: blocks until there are outcomes, and
/// returns them one behind the other. `ends` has a place more than `tokens`, for their number.
///
/// # Safety
/// The virtual machine calls it, with a handle of `openCompletions`.
#[unsafe(no_mangle)]
unsafe extern "system" fn Java_io_respool_Native_take(
    env: *mut JNIEnv,
    _class: jclass,
    completions: jlong,
    tokens: jlongArray,
    ends: jintArray,
) -> jbyteArray {
    let env = Env(env);
    // SAFETY: see above.
    let completions: Option<Arc<RespoolCompletions>> = unsafe { inside(completions) };
    let max = env.len(tokens);
    let (Some(completions), true) = (completions, max > 0 && env.len(ends) == max + 1) else {
        return ptr::null_mut();
    };
    let mut batch = Batch::default();
    while batch.tokens.is_empty() {
        caught(|| completions.wait(-1));
        completions.take(|outcome| batch.add(outcome, max as usize));
    }
    let mut array = env.room(batch.len);
    if array.is_null() {
        // The threads that wait must get an outcome. Their requests were sent.
        batch.drop_replies();
        // SAFETY: it clears the error of the array above.
        unsafe { (env.functions().ExceptionClear)(env.0) };
        array = env.room(batch.len);
    }
    let mut at = 0;
    if array.is_null() {
        // Java gives each of them an outcome that it has already.
        // SAFETY: it clears the error of the array above.
        unsafe { (env.functions().ExceptionClear)(env.0) };
    } else {
        for (reply, end) in batch.replies.iter().zip(&batch.ends) {
            env.set(array, at, reply);
            at = *end;
        }
    }
    let count = batch.tokens.len() as jsize;
    // SAFETY: both arrays have room, as was checked above, and the vectors have `count` items.
    unsafe {
        (env.functions().SetLongArrayRegion)(env.0, tokens, 0, count, batch.tokens.as_ptr());
        (env.functions().SetIntArrayRegion)(env.0, ends, 0, count, batch.ends.as_ptr());
        (env.functions().SetIntArrayRegion)(env.0, ends, max, 1, &count);
    }
    array
}

/// Outcomes for one array of Java.
#[derive(Default)]
struct Batch {
    tokens: Vec<jlong>,
    replies: Vec<Vec<u8>>,
    /// Where each reply ends.
    ends: Vec<jint>,
    len: usize,
}

impl Batch {
    /// Adds an outcome, or gives it back if there is no room.
    fn add(&mut self, (token, outcome): Outcome, max: usize) -> Option<Outcome> {
        let len = outcome.as_ref().map_or(0, Vec::len);
        let is_full = self.tokens.len() == max || self.len >= BATCH_BYTES;
        // A large reply has an array of its own: together they may be longer than Java allows.
        if is_full || (!self.tokens.is_empty() && len >= BATCH_BYTES) {
            return Some((token, outcome));
        }
        let reply = encoded(outcome);
        self.len += reply.len();
        self.tokens.push(token as jlong);
        self.ends.push(self.len as jint);
        self.replies.push(reply);
        None
    }

    fn drop_replies(&mut self) {
        let text = "the heap of Java has no room for the reply";
        self.len = 0;
        for (reply, end) in self.replies.iter_mut().zip(&mut self.ends) {
            *reply = encoded(Err(CallError::Unknown(text.into())));
            self.len += reply.len();
            *end = self.len as jint;
        }
    }
}

/// `void closeCompletions(long completions)`: calls fail from now on.
///
/// # Safety
/// The virtual machine calls it, with a handle of `openCompletions`.
#[unsafe(no_mangle)]
unsafe extern "system" fn Java_io_respool_Native_closeCompletions(
    _env: *mut JNIEnv,
    _class: jclass,
    completions: jlong,
) {
    // SAFETY: see above.
    let completions: Option<&Shell<RespoolCompletions>> = unsafe { object(completions) };
    if let Some(completions) = completions.and_then(Shell::close) {
        caught(|| drop(completions));
    }
}

/// `void freeCompletions(long completions)`
///
/// # Safety
/// The virtual machine calls it, with a handle of `openCompletions` that nothing uses.
#[unsafe(no_mangle)]
unsafe extern "system" fn Java_io_respool_Native_freeCompletions(
    _env: *mut JNIEnv,
    _class: jclass,
    completions: jlong,
) {
    // SAFETY: see above.
    unsafe { free::<Shell<RespoolCompletions>>(completions) };
}

// --- streams ---

/// `long openStream(long client)`: zero if the client was closed.
///
/// # Safety
/// The virtual machine calls it, with a handle of `open`.
#[unsafe(no_mangle)]
unsafe extern "system" fn Java_io_respool_Native_openStream(
    _env: *mut JNIEnv,
    _class: jclass,
    client: jlong,
) -> jlong {
    // SAFETY: see above.
    let client: Option<&RespoolClient> = unsafe { object(client) };
    let opened = client.map(|client| stream::open(&client.0));
    opened
        .and_then(Result::ok)
        .map_or(0, |object| handle(Shell::new(object)))
}

/// `int write(long stream, byte[] data, int at, int length)`: all of it, or a negative code.
///
/// # Safety
/// The virtual machine calls it, with a handle of `openStream`.
#[unsafe(no_mangle)]
unsafe extern "system" fn Java_io_respool_Native_write(
    env: *mut JNIEnv,
    _class: jclass,
    stream: jlong,
    data: jbyteArray,
    at: jint,
    len: jint,
) -> jint {
    // SAFETY: see above.
    let stream: Option<Arc<RespoolStream>> = unsafe { inside(stream) };
    match (stream, Env(env).bytes(data, at, len)) {
        (Some(stream), Some(data)) => stream.write(&data, -1) as jint,
        _ => RESPOOL_STREAM_INVALID as jint,
    }
}

/// `int tryWrite(long stream, byte[] data, int at, int length)`: as far as there is room.
///
/// # Safety
/// The virtual machine calls it, with a handle of `openStream`.
#[unsafe(no_mangle)]
unsafe extern "system" fn Java_io_respool_Native_tryWrite(
    env: *mut JNIEnv,
    _class: jclass,
    stream: jlong,
    data: jbyteArray,
    at: jint,
    len: jint,
) -> jint {
    // SAFETY: see above.
    let stream: Option<Arc<RespoolStream>> = unsafe { inside(stream) };
    let (Some(stream), Some(data)) = (stream, Env(env).bytes(data, at, len)) else {
        return RESPOOL_STREAM_INVALID as jint;
    };
    match caught(|| stream.0.try_write(&data)) {
        Some(Ok(count)) => count as jint,
        Some(Err(error)) => stream::code(&error) as jint,
        None => RESPOOL_STREAM_ENDED as jint,
    }
}

/// `int read(long stream, byte[] buffer, int at, int length, int ms)`: blocks for a time; a
/// negative one has no end.
///
/// # Safety
/// The virtual machine calls it, with a handle of `openStream`.
#[unsafe(no_mangle)]
unsafe extern "system" fn Java_io_respool_Native_read(
    env: *mut JNIEnv,
    _class: jclass,
    stream: jlong,
    buffer: jbyteArray,
    at: jint,
    len: jint,
    ms: jint,
) -> jint {
    // SAFETY: see above.
    let stream: Option<Arc<RespoolStream>> = unsafe { inside(stream) };
    let read = |bytes: &mut [u8]| Some(stream?.read(bytes, ms.into()));
    read_into(Env(env), buffer, at, len, read)
}

/// `int readReady(long stream, long ready, long token, byte[] buffer, int at, int length)`: as far
/// as there are bytes. If there are none, the token is listed in `ready` once there are.
///
/// # Safety
/// The virtual machine calls it, with handles of `openStream` and `openReady`.
#[unsafe(no_mangle)]
unsafe extern "system" fn Java_io_respool_Native_readReady(
    env: *mut JNIEnv,
    _class: jclass,
    stream: jlong,
    ready: jlong,
    token: jlong,
    buffer: jbyteArray,
    at: jint,
    len: jint,
) -> jint {
    // SAFETY: see above.
    let (stream, ready): (Option<Arc<RespoolStream>>, Option<&Arc<ReadyStreams>>) =
        unsafe { (inside(stream), object(ready)) };
    let read = |bytes: &mut [u8]| Some(ready?.read(&*stream?, token as u64, bytes));
    read_into(Env(env), buffer, at, len, read)
}

/// Reads into an array of Java.
fn read_into(
    env: Env,
    buffer: jbyteArray,
    at: jint,
    len: jint,
    read: impl FnOnce(&mut [u8]) -> Option<isize>,
) -> jint {
    let end = at.checked_add(len);
    if at < 0 || len <= 0 || end.is_none_or(|end| end > env.len(buffer)) {
        return RESPOOL_STREAM_INVALID as jint;
    }
    let mut bytes = [0; READ_BYTES_MAX];
    let bytes = &mut bytes[..READ_BYTES_MAX.min(len as usize)];
    let count = read(bytes).unwrap_or(RESPOOL_STREAM_INVALID);
    if count > 0 {
        env.set(buffer, at, &bytes[..count as usize]);
    }
    count as jint
}

/// `boolean isReadable(long stream)`
///
/// # Safety
/// The virtual machine calls it, with a handle of `openStream`.
#[unsafe(no_mangle)]
unsafe extern "system" fn Java_io_respool_Native_isReadable(
    _env: *mut JNIEnv,
    _class: jclass,
    stream: jlong,
) -> jboolean {
    // SAFETY: see above.
    let stream: Option<Arc<RespoolStream>> = unsafe { inside(stream) };
    stream.is_some_and(|stream| caught(|| stream.0.is_readable()).unwrap_or(true))
}

/// `byte[] outcome(long stream)`: null while the session goes on.
///
/// # Safety
/// The virtual machine calls it, with a handle of `openStream`.
#[unsafe(no_mangle)]
unsafe extern "system" fn Java_io_respool_Native_outcome(
    env: *mut JNIEnv,
    _class: jclass,
    stream: jlong,
) -> jbyteArray {
    // SAFETY: see above.
    let stream: Option<Arc<RespoolStream>> = unsafe { inside(stream) };
    let outcome = stream.map_or_else(|| Some(closed()), |stream| stream.outcome());
    match outcome {
        Some(error) => Env(env).outcome(Err(error)),
        None => ptr::null_mut(),
    }
}

/// `void closeStream(long stream)`: a thread that reads returns. Requests that were written are
/// executed.
///
/// # Safety
/// The virtual machine calls it, with a handle of `openStream`.
#[unsafe(no_mangle)]
unsafe extern "system" fn Java_io_respool_Native_closeStream(
    _env: *mut JNIEnv,
    _class: jclass,
    stream: jlong,
) {
    // SAFETY: see above.
    let stream: Option<&Shell<RespoolStream>> = unsafe { object(stream) };
    if let Some(stream) = stream.and_then(Shell::close) {
        caught(|| stream.0.close());
        caught(|| drop(stream));
    }
}

/// `void freeStream(long stream)`
///
/// # Safety
/// The virtual machine calls it, with a handle of `openStream` that nothing uses.
#[unsafe(no_mangle)]
unsafe extern "system" fn Java_io_respool_Native_freeStream(
    _env: *mut JNIEnv,
    _class: jclass,
    stream: jlong,
) {
    // SAFETY: see above.
    unsafe { free::<Shell<RespoolStream>>(stream) };
}

// --- streams to read from ---

/// `long openReady()`
///
/// # Safety
/// The virtual machine calls it.
#[unsafe(no_mangle)]
unsafe extern "system" fn Java_io_respool_Native_openReady(
    _env: *mut JNIEnv,
    _class: jclass,
) -> jlong {
    handle(Arc::new(ReadyStreams::default()))
}

/// `int takeReady(long ready, long[] tokens)`: blocks until there are tokens; zero once it was
/// closed.
///
/// # Safety
/// The virtual machine calls it, with a handle of `openReady`.
#[unsafe(no_mangle)]
unsafe extern "system" fn Java_io_respool_Native_takeReady(
    env: *mut JNIEnv,
    _class: jclass,
    ready: jlong,
    tokens: jlongArray,
) -> jint {
    let env = Env(env);
    // SAFETY: see above.
    let ready: Option<&Arc<ReadyStreams>> = unsafe { object(ready) };
    let max = env.len(tokens);
    let taken = ready.map_or(Vec::new(), |ready| ready.take(max as usize));
    let taken: Vec<jlong> = taken.into_iter().map(|token| token as jlong).collect();
    let count = taken.len() as jsize;
    if count > 0 {
        // SAFETY: the array has room for `max` tokens, and at most so many were taken.
        unsafe { (env.functions().SetLongArrayRegion)(env.0, tokens, 0, count, taken.as_ptr()) };
    }
    count
}

/// `void closeReady(long ready)`: the thread that takes returns.
///
/// # Safety
/// The virtual machine calls it, with a handle of `openReady`.
#[unsafe(no_mangle)]
unsafe extern "system" fn Java_io_respool_Native_closeReady(
    _env: *mut JNIEnv,
    _class: jclass,
    ready: jlong,
) {
    // SAFETY: see above.
    let ready: Option<&Arc<ReadyStreams>> = unsafe { object(ready) };
    if let Some(ready) = ready {
        ready.close();
    }
}

/// `void freeReady(long ready)`
///
/// # Safety
/// The virtual machine calls it, with a handle of `openReady` that nothing uses.
#[unsafe(no_mangle)]
unsafe extern "system" fn Java_io_respool_Native_freeReady(
    _env: *mut JNIEnv,
    _class: jclass,
    ready: jlong,
) {
    // SAFETY: see above.
    unsafe { free::<Arc<ReadyStreams>>(ready) };
}

//! HTTP/1.1 for the pages: `hyper`, driven by hand.
//!
//! One thread accepts, and each connection has a thread of its own that waits by `poll`. So a slow
//! reader, or a large `/metrics`, delays no `/ready`. There are at most [`CONNECTIONS_MAX`]: a new
//! one takes the place of the oldest.

use std::cell::Cell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Future, ready};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};
use tracing::warn;

/// Most connections. One more closes the oldest.
pub(crate) const CONNECTIONS_MAX: usize = 16;
/// Most threads of connections: those of closed connections may not have ended yet.
const THREADS_MAX: usize = 2 * CONNECTIONS_MAX;
/// Most bytes of a request's head.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Most header lines of a request.
const HEADERS_MAX: usize = 64;
/// The time in which a request has to come whole.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// The time in which a reader has to take some bytes of a page.
const WRITE_TIME: Duration = Duration::from_secs(10);
/// The time for which a connection without a request is kept.
const IDLE_TIME: Duration = Duration::from_secs(120);
/// Bytes of one read.
const READ_BYTES: usize = 4 << 10;
/// Pause after a client could not be accepted, or its thread not be started.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Least time between two log lines about clients that were not served.
const SAY_EVERY: Duration = Duration::from_secs(60);
/// Pause until a thread of a closed connection may have ended.
const THREAD_PAUSE: Duration = Duration::from_millis(1);
/// The stack of a connection's thread. A page is built on the heap.
const STACK_BYTES: usize = 512 << 10;

/// A page, or an error.
pub(crate) type Page = Response<Full<Bytes>>;

/// Makes the page of a request.
pub(crate) trait Pages: Send + Sync + 'static {
    /// The page for this request.
    fn page(&self, request: &Request<()>) -> Page;
}

/// Accepts clients of `listener` for ever.
pub(crate) fn serve(listener: &OwnedFd, pages: &Arc<impl Pages>) {
    let open = Arc::new(Mutex::new(Connections::default()));
    let mut said_at: Option<Instant> = None;
    loop {
        // Without thread or descriptor a client is dropped or waits; it may come again.
        let Err(error) = accept_one(listener, pages, &open) else {
            continue;
        };
        if said_at.is_none_or(|at| at.elapsed() >= SAY_EVERY) {
            said_at = Some(Instant::now());
            warn!(
                %error,
                "a client of metrics-listen was not served: lower sessions-max, or raise the \
                 limits of open files and of threads"
            );
        }
        thread::sleep(ACCEPT_PAUSE);
    }
}

/// Waits for a client, accepts it and starts its thread.
fn accept_one(
    listener: &OwnedFd,
    pages: &Arc<impl Pages>,
    open: &Arc<Mutex<Connections>>,
) -> io::Result<()> {
    wait_for(listener, PollFlags::IN, None)?;
    match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(socket) => start(socket, pages, open),
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Starts the thread of a connection, and closes the oldest one if there are too many.
fn start(
    socket: OwnedFd,
    pages: &Arc<impl Pages>,
    open: &Arc<Mutex<Connections>>,
) -> io::Result<()> {
    let place = loop {
        match Connections::admit(open, &socket)? {
            Some(place) => break place,
            // Threads of closed connections are about to end.
            None => thread::sleep(THREAD_PAUSE),
        }
    };
    let pages = pages.clone();
    let thread = thread::Builder::new()
        .name("metrics-client".into())
        .stack_size(STACK_BYTES);
    thread.spawn(move || {
        serve_one(socket, &*pages);
        drop(place);
    })?;
    Ok(())
}

/// The open connections, the oldest first.
#[derive(Debug, Default)]
struct Connections {
    /// Their numbers, and a second descriptor of each to close it with.
    open: VecDeque<(u64, OwnedFd)>,
    /// The number of the next connection.
    next: u64,
    /// Threads that have not ended.
    threads: usize,
}

impl Connections {
    /// Admits a connection; `None`: there are too many threads. If there are too many connections,
    /// the oldest one is closed.
    fn admit(open: &Arc<Mutex<Connections>>, socket: &OwnedFd) -> io::Result<Option<Place>> {
        let mut all = lock(open);
        if all.threads >= THREADS_MAX {
            return Ok(None);
        }
        if all.open.len() >= CONNECTIONS_MAX
            && let Some((_, oldest)) = all.open.pop_front()
        {
            // Its thread sees the end. If it is closed already, nothing is left to do.
            let _ = shutdown(oldest, Shutdown::Both);
        }
        let number = all.next;
        all.next += 1;
        all.open.push_back((number, socket.try_clone()?));
        all.threads += 1;
        Ok(Some(Place {
            open: open.clone(),
            number,
        }))
    }
}

/// A connection's place among the others; free again on drop.
struct Place {
    open: Arc<Mutex<Connections>>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = lock(&self.open);
        all.threads -= 1;
        all.open.retain(|(number, _)| *number != self.number);
    }
}

fn lock(open: &Mutex<Connections>) -> MutexGuard<'_, Connections> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until `socket` is ready for these events. Without a limit, for ever.
fn wait_for(socket: &impl AsFd, events: PollFlags, limit: Option<Duration>) -> io::Result<bool> {
    let limit = limit.map(|limit| Timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: limit.subsec_nanos().into(),
    });
    match poll(&mut [PollFd::new(socket, events)], limit.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Serves one connection until its end, or until it is too slow.
fn serve_one(socket: OwnedFd, pages: &impl Pages) {
    let waits = Rc::new(Waits::default());
    let socket = Rc::new(socket);
    let stream = Stream {
        socket: socket.clone(),
        waits: waits.clone(),
    };
    let service = service_fn(|request: Request<hyper::body::Incoming>| {
        waits.request_since.set(None);
        let (head, _body) = request.into_parts();
        ready(Ok::<_, Infallible>(
            pages.page(&Request::from_parts(head, ())),
        ))
    });
    let connection = http1::Builder::new()
        // A client that sends nothing more still gets its page.
        .half_close(true)
        .max_headers(HEADERS_MAX)
        .max_header_size(HEAD_BYTES_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(stream, service);
    let mut connection = pin!(connection);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let mut context = Context::from_waker(&waker);
    loop {
        woken.0.store(false, Ordering::Relaxed);
        waits.begin();
        // An error ends the connection: the client has gone, or has sent no HTTP. In the second
        // case hyper has answered.
        if connection.as_mut().poll(&mut context).is_ready() {
            return;
        }
        if woken.0.load(Ordering::Relaxed) {
            continue;
        }
        let Some(left) = waits.left(Instant::now()) else {
            return;
        };
        match wait_for(&*socket, waits.events(), Some(left)) {
            Ok(true) => {}
            // The time is over, or the socket fails.
            Ok(false) | Err(_) => return,
        }
    }
}

/// Set when a connection asks to be polled again.
#[derive(Debug, Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The events for which a connection waits, with the beginning of each wait.
#[derive(Debug)]
struct Waits {
    /// The last read found nothing.
    reads: Cell<bool>,
    /// The last write found no room.
    writes: Cell<bool>,
    /// When the first byte of a request came that is not whole yet.
    request_since: Cell<Option<Instant>>,
    /// When the socket last took bytes, or the connection began.
    written_at: Cell<Instant>,
}

impl Default for Waits {
    fn default() -> Waits {
        Waits {
            reads: Cell::new(false),
            writes: Cell::new(false),
            request_since: Cell::new(None),
            written_at: Cell::new(Instant::now()),
        }
    }
}

impl Waits {
    fn begin(&self) {
        self.reads.set(false);
        self.writes.set(false);
    }

    fn events(&self) -> PollFlags {
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, self.reads.get());
        events.set(PollFlags::OUT, self.writes.get());
        events
    }

    /// The time for which the connection may still wait; `None`: it is over.
    fn left(&self, now: Instant) -> Option<Duration> {
        let end = match self.request_since.get() {
            _ if self.writes.get() => self.written_at.get() + WRITE_TIME,
            Some(since) => since + REQUEST_TIME,
            None => self.written_at.get() + IDLE_TIME,
        };
        end.checked_duration_since(now)
            .filter(|left| !left.is_zero())
    }
}

/// The socket of a connection, as hyper reads and writes it.
struct Stream {
    socket: Rc<OwnedFd>,
    waits: Rc<Waits>,
}

impl Read for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = [0; READ_BYTES];
        let room = buffer.remaining().min(READ_BYTES);
        loop {
            match rustix::io::read(&*self.socket, &mut bytes[..room]) {
                Ok(count) => {
                    buffer.put_slice(&bytes[..count]);
                    let since = &self.waits.request_since;
                    if count > 0 && since.get().is_none() {
                        since.set(Some(Instant::now()));
                    }
                    return Poll::Ready(Ok(()));
                }
                Err(Errno::AGAIN) => {
                    self.waits.reads.set(true);
                    return Poll::Pending;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }
}

impl Write for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let flags = rustix::net::SendFlags::NOSIGNAL;
        loop {
            match rustix::net::send(&*self.socket, bytes, flags) {
                Ok(count) => {
                    self.waits.written_at.set(Instant::now());
                    return Poll::Ready(Ok(count));
                }
                Err(Errno::AGAIN) => {
                    self.waits.writes.set(true);
                    return Poll::Pending;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match shutdown(&*self.socket, Shutdown::Write) {
            // The client has closed already.
            Ok(()) | Err(Errno::NOTCONN) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }
}

//! A session as a stream of bytes, in place of a socket.

use std::io::ErrorKind;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyBrokenPipeError, PyOSError, PyTimeoutError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use respool_client::{ReadyList, SessionStream};

use crate::client::{PythonClient, seconds};
use crate::errors;
use crate::fork::{self, OfProcess};
use crate::ready_streams::PythonReadyStreams;

/// How long a read or a write waits before it looks for signals.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);
/// The most bytes of one read.
const READ_BYTES_MAX: usize = 64 << 10;

/// A session as a stream of bytes.
#[pyclass(frozen, name = "Stream", module = "respool._respool")]
pub(crate) struct PythonStream(OfProcess<SessionStream>);

#[pymethods]
impl PythonStream {
    #[new]
    fn new(py: Python<'_>, client: &PythonClient) -> PyResult<PythonStream> {
        let stream = client.opened(py)?.stream();
        Ok(PythonStream(OfProcess::new(stream)))
    }

    /// Writes all bytes. `limit`: seconds.
    fn write(
        &self,
        py: Python<'_>,
        bytes: &Bound<'_, PyBytes>,
        limit: Option<f64>,
    ) -> PyResult<()> {
        let stream = self.stream()?;
        let mut rest = bytes.as_bytes();
        let deadline = deadline(limit);
        while !rest.is_empty() {
            let (until, is_last) = match fork::is_main_thread() {
                true => until_signals(deadline),
                false => (deadline, true),
            };
            match py.detach(|| stream.write(rest, until)) {
                Err(error) if error.kind() == ErrorKind::TimedOut && !is_last => {
                    py.check_signals()?;
                }
                Err(error) => return Err(raise(&error)),
                Ok(written) => rest = &rest[written..],
            }
        }
        Ok(())
    }

    /// Writes bytes as far as there is room. Returns their number.
    fn try_write(&self, bytes: &[u8]) -> PyResult<usize> {
        self.stream()?
            .try_write(bytes)
            .map_err(|error| raise(&error))
    }

    /// Reads at most so many bytes. None: the stream has ended. `limit`: seconds.
    fn read<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        limit: Option<f64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let stream = self.stream()?;
        let deadline = deadline(limit);
        let mut buffer = vec![0; count.min(READ_BYTES_MAX)];
        let read = loop {
            let (until, is_last) = match fork::is_main_thread() {
                true => until_signals(deadline),
                false => (deadline, true),
            };
            match py.detach(|| stream.read(&mut buffer, until)) {
                Err(error) if error.kind() == ErrorKind::TimedOut && !is_last => {
                    py.check_signals()?;
                }
                Err(error) => return Err(raise(&error)),
                Ok(read) => break read,
            }
        };
        Ok(PyBytes::new(py, &buffer[..read]))
    }

    /// Reads the bytes that have come, for a task. `None`: nothing; the stream is listed in `ready`
    /// when there is something.
    fn poll_read<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        ready: &PythonReadyStreams,
        number: u64,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let stream = self.stream()?;
        let waker = Waker::from(Arc::new(StreamWaker(ready.list(), number)));
        let mut buffer = vec![0; count.min(READ_BYTES_MAX)];
        match stream.poll_read(&mut Context::from_waker(&waker), &mut buffer) {
            Poll::Ready(read) => Ok(Some(PyBytes::new(py, &buffer[..read]))),
            Poll::Pending => Ok(None),
        }
    }

    /// Has the stream listed in `ready` when a read would not block, which may be at once.
    fn watch(&self, ready: &PythonReadyStreams, number: u64) -> PyResult<()> {
        let stream = self.stream()?;
        let waker = Waker::from(Arc::new(StreamWaker(ready.list(), number)));
        // A read of no byte takes none.
        if stream
            .poll_read(&mut Context::from_waker(&waker), &mut [])
            .is_ready()
        {
            ready.list().add(number);
        }
        Ok(())
    }

    /// Waits until a read would not block. Returns whether it would not. `limit`: seconds.
    fn wait_readable(&self, py: Python<'_>, limit: Option<f64>) -> PyResult<bool> {
        let stream = self.stream()?;
        let deadline = deadline(limit);
        loop {
            if stream.is_readable() {
                return Ok(true);
            }
            let (until, is_last) = match fork::is_main_thread() {
                true => until_signals(deadline),
                false => (deadline, true),
            };
            // A read of no byte waits for one.
            let outcome = py.detach(|| stream.read(&mut [], until));
            match outcome {
                Ok(_) => return Ok(true),
                Err(_) if is_last => return Ok(false),
                Err(_) => py.check_signals()?,
            }
        }
    }

    /// Whether a read would not block.
    fn is_readable(&self) -> PyResult<bool> {
        Ok(self.stream()?.is_readable())
    }

    /// Closes the stream. Requests that were written are executed.
    fn close(&self) {
        if let Some(stream) = self.0.get() {
            stream.close();
        }
    }

    /// Takes back the requests that have not left, and ends the session.
    fn withdraw(&self) {
        if let Some(stream) = self.0.get() {
            stream.withdraw();
        }
    }

    /// The exception for requests without a reply, once the session has ended.
    fn outcome<'py>(
        &self,
        py: Python<'py>,
        timed_out: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.0.get().and_then(SessionStream::outcome) {
            Some(error) => errors::of_call(py, &error, timed_out).map(Some),
            None => Ok(None),
        }
    }
}

impl PythonStream {
    fn stream(&self) -> PyResult<&SessionStream> {
        let stream = self.0.get();
        stream.ok_or_else(|| PyBrokenPipeError::new_err("the process was forked"))
    }
}

/// Lists a stream as ready.
struct StreamWaker(Arc<ReadyList>, u64);

impl Wake for StreamWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.add(self.1);
    }
}

fn deadline(limit: Option<f64>) -> Option<Instant> {
    let limit = limit.and_then(seconds)?;
    Instant::now().checked_add(limit)
}

/// The end of a wait that has to look for signals, and whether it is the deadline.
fn until_signals(deadline: Option<Instant>) -> (Option<Instant>, bool) {
    let soon = Instant::now() + SIGNAL_INTERVAL;
    match deadline {
        Some(deadline) if deadline <= soon => (Some(deadline), true),
        _ => (Some(soon), false),
    }
}

fn raise(error: &std::io::Error) -> PyErr {
    match error.kind() {
        ErrorKind::TimedOut => PyTimeoutError::new_err("timed out"),
        ErrorKind::BrokenPipe => PyBrokenPipeError::new_err("the session has ended"),
        _ => PyOSError::new_err(error.to_string()),
    }
}

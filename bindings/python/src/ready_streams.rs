//! Tells an event loop which streams have bytes.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};

/// The streams of an event loop that have bytes.
#[pyclass(frozen, name = "ReadyStreams", module = "respool._respool")]
pub(crate) struct PythonReadyStreams(Arc<ReadyList>);

/// The list to which the wakers of streams add.
#[derive(Debug)]
pub(crate) struct ReadyList {
    numbers: Mutex<Vec<u64>>,
    /// Readable while there are numbers.
    event: OwnedFd,
}

#[pymethods]
impl PythonReadyStreams {
    #[new]
    fn new() -> PyResult<PythonReadyStreams> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = event.map_err(|error| PyOSError::new_err(error.to_string()))?;
        let numbers = Mutex::default();
        Ok(PythonReadyStreams(Arc::new(ReadyList { numbers, event })))
    }

    /// The descriptor that is readable while there are streams to look at.
    fn fileno(&self) -> i32 {
        self.0.event.as_raw_fd()
    }

    /// Takes the numbers of the streams that have bytes.
    fn take(&self) -> Vec<u64> {
        // The event is cleared first: a stream that is listed behind this sets it again.
        let _ = rustix::io::read(&self.0.event, &mut [0; 8]);
        std::mem::take(&mut *self.0.lock())
    }
}

impl PythonReadyStreams {
    pub(crate) fn list(&self) -> Arc<ReadyList> {
        self.0.clone()
    }
}

impl ReadyList {
    /// Lists the stream with this number.
    pub(crate) fn add(&self, number: u64) {
        let mut numbers = self.lock();
        numbers.push(number);
        let is_first = numbers.len() == 1;
        drop(numbers);
        if is_first {
            // It fails only at a count that is never reached, and then the event is readable.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u64>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

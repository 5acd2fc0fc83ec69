//! Tells an event loop which streams have bytes.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};

/// The streams of an event loop that have bytes.
#[pyclass(frozen, name = "Bell", module = "respool._respool")]
pub(crate) struct PythonBell(Arc<Rope>);

/// What the wakers of streams pull.
#[derive(Debug)]
pub(crate) struct Rope {
    numbers: Mutex<Vec<u64>>,
    /// Readable while there are numbers.
    event: OwnedFd,
}

#[pymethods]
impl PythonBell {
    #[new]
    fn new() -> PyResult<PythonBell> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = event.map_err(|error| PyOSError::new_err(error.to_string()))?;
        let numbers = Mutex::default();
        Ok(PythonBell(Arc::new(Rope { numbers, event })))
    }

    /// The descriptor that is readable while there are streams to look at.
    fn fileno(&self) -> i32 {
        self.0.event.as_raw_fd()
    }

    /// Takes the numbers of the streams that have bytes.
    fn take(&self) -> Vec<u64> {
        // The event is cleared first: a stream that rings behind this sets it again.
        let _ = rustix::io::read(&self.0.event, &mut [0; 8]);
        std::mem::take(&mut *self.0.lock())
    }
}

impl PythonBell {
    pub(crate) fn rope(&self) -> Arc<Rope> {
        self.0.clone()
    }
}

impl Rope {
    /// Rings for the stream with this number.
    pub(crate) fn pull(&self, number: u64) {
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

//! Tells an event loop which streams have bytes.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use respool_client::ReadyList;

/// The streams of an event loop that have bytes.
#[pyclass(frozen, name = "ReadyStreams", module = "respool._respool")]
pub(crate) struct PythonReadyStreams(Arc<ReadyList>);

#[pymethods]
impl PythonReadyStreams {
    #[new]
    fn new() -> PyResult<PythonReadyStreams> {
        let list = ReadyList::new();
        let list = list.map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(PythonReadyStreams(Arc::new(list)))
    }

    /// The descriptor that is readable while there are streams to look at.
    fn fileno(&self) -> i32 {
        self.0.as_fd().as_raw_fd()
    }

    /// Takes the numbers of the streams that have bytes.
    fn take(&self) -> Vec<u64> {
        self.0.take()
    }
}

impl PythonReadyStreams {
    pub(crate) fn list(&self) -> Arc<ReadyList> {
        self.0.clone()
    }
}

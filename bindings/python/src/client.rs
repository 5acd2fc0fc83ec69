//! A client for threads.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use respool_client::{CallError, Client, OpenError};

use crate::codec::{Handling, PythonCodec};
use crate::fork::{self, OfProcess};
use crate::{errors, reply};

/// A client that opens at its first call. It opens again after [`PythonClient::close`], and in the
/// child of a fork.
#[pyclass(frozen, name = "Client", module = "respool._respool")]
pub(crate) struct PythonClient {
    url: String,
    options: Vec<(String, String)>,
    resp3: bool,
    /// It is locked only with the lock of the interpreter, so no fork finds it locked.
    client: Mutex<Option<OfProcess<Client>>>,
}

#[pymethods]
impl PythonClient {
    /// Checks the URL and the options.
    #[new]
    fn new(
        py: Python<'_>,
        url: String,
        options: Vec<(String, String)>,
        resp3: bool,
    ) -> PyResult<PythonClient> {
        let client = PythonClient {
            url,
            options,
            resp3,
            client: Mutex::new(None),
        };
        let checked = client.options().check(&client.url);
        match checked {
            Ok(()) => Ok(client),
            Err(error) => Err(errors::raise_open(py, &error)),
        }
    }

    /// Calls a command and waits for its reply without the lock of the interpreter. Returns
    /// `NotImplemented` if the command needs a connection. `limit`: seconds. `raw`: the reply is
    /// not decoded.
    fn call<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        codec: &PythonCodec,
        limit: Option<f64>,
        raw: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let request = codec.encode(args)?;
        let limit = match request.handling {
            Handling::Connection => return Ok(py.NotImplemented().into_bound(py)),
            Handling::Waits => None,
            Handling::Call => limit.and_then(seconds),
        };
        let client = self.opened(py)?;
        let begun = limit.map(|_| Instant::now());
        let mut signal = Ok(());
        let outcome = py.detach(|| {
            let go_on = || {
                signal = Python::attach(|py| py.check_signals());
                signal.is_ok()
            };
            // The last clone of a client ends it, which takes a moment.
            let client = client;
            match fork::is_main_thread() {
                true => client.call_encoded_while(request.bytes, limit, go_on),
                false => client.call_encoded(request.bytes, limit),
            }
        });
        signal?;
        match outcome {
            Ok(reply) => reply::read(py, &reply, codec, raw),
            Err(CallError::Invalid(_)) => Ok(py.NotImplemented().into_bound(py)),
            Err(error) => {
                let timed_out = match (begun, limit) {
                    (Some(begun), Some(limit)) => begun.elapsed() >= limit,
                    _ => false,
                };
                Err(errors::raise_call(py, &error, timed_out))
            }
        }
    }

    /// Ends the client when its last call has ended. Requests that wait have a second.
    fn close(&self, py: Python<'_>) {
        let client = self.lock().take().and_then(|mut client| client.take());
        if fork::is_leaving() {
            // A thread that lets go of the interpreter now does not get it back.
            return std::mem::forget(client);
        }
        py.detach(|| drop(client));
    }
}

impl PythonClient {
    /// The client. It is opened if it is not.
    pub(crate) fn opened(&self, py: Python<'_>) -> PyResult<Client> {
        let mut client = self.lock();
        if let Some(client) = client.as_ref().and_then(OfProcess::get) {
            return Ok(client.clone());
        }
        let opened = self.options().open(&self.url);
        let opened = opened.map_err(|error: OpenError| errors::raise_open(py, &error))?;
        *client = Some(OfProcess::new(opened.clone()));
        Ok(opened)
    }

    fn options(&self) -> respool_client::ClientOptions {
        let mut options = Client::options().resp3(self.resp3);
        for (name, value) in &self.options {
            options = options.set(name, value);
        }
        options
    }

    fn lock(&self) -> MutexGuard<'_, Option<OfProcess<Client>>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PythonClient {
    fn drop(&mut self) {
        if fork::is_leaving() {
            return;
        }
        let client = self.lock().take().and_then(|mut client| client.take());
        // Its end takes a moment, and the interpreter may be collecting garbage.
        if client.is_some() {
            std::thread::spawn(|| drop(client));
        }
    }
}

/// The time of so many seconds; `None`: no limit.
pub(crate) fn seconds(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds.max(0.0)).ok()
}

//! The calls of one event loop.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use respool_client::{CallError, Completions};

use crate::client::{PythonClient, seconds};
use crate::codec::{Handling, PythonCodec};
use crate::fork::OfProcess;
use crate::{errors, reply};

/// The calls of one event loop. Its descriptor wakes the loop once for a batch of replies.
///
/// All methods are called by the thread of the loop.
#[pyclass(frozen, weakref, name = "LoopCalls", module = "respool._respool")]
pub(crate) struct PythonLoopCalls {
    completions: OfProcess<Completions>,
    /// Has [`PythonLoopCalls::expire`] called in so many seconds.
    arm: Py<PyAny>,
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    next_token: u64,
    calls: HashMap<u64, PendingFuture>,
    deadlines: BTreeSet<(Instant, u64)>,
    /// When the loop calls `expire` next.
    armed: Option<Instant>,
}

struct PendingFuture {
    future: Py<PyAny>,
    codec: Py<PythonCodec>,
    raw: bool,
    deadline: Option<Instant>,
}

#[pymethods]
impl PythonLoopCalls {
    #[new]
    fn new(py: Python<'_>, client: &PythonClient, arm: Py<PyAny>) -> PyResult<PythonLoopCalls> {
        let completions = client.opened(py)?.completions();
        let completions = completions.map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(PythonLoopCalls {
            completions: OfProcess::new(completions),
            arm,
            pending: Mutex::default(),
        })
    }

    /// The descriptor that is readable while there are replies.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.completions()?.as_fd().as_raw_fd())
    }

    /// Begins a call, whose outcome the future gets. Returns its token; `None`: the command needs a
    /// connection. `limit`: seconds. `raw`: the reply is not decoded.
    fn ask(
        &self,
        py: Python<'_>,
        future: Py<PyAny>,
        args: &Bound<'_, PyTuple>,
        codec: &Bound<'_, PythonCodec>,
        limit: Option<f64>,
        raw: bool,
    ) -> PyResult<Option<u64>> {
        let request = codec.get().encode(args)?;
        let deadline = match request.handling {
            Handling::Connection => return Ok(None),
            Handling::Waits => None,
            Handling::Call => limit
                .and_then(seconds)
                .and_then(|limit| Instant::now().checked_add(limit)),
        };
        let token = self.add(PendingFuture {
            future,
            codec: codec.clone().unbind(),
            raw,
            deadline,
        });
        match self.completions()?.ask_encoded(request.bytes, token) {
            Ok(()) => {}
            Err(error) => {
                self.lock().remove(token);
                return match error {
                    CallError::Invalid(_) => Ok(None),
                    error => Err(errors::raise_call(py, &error, false)),
                };
            }
        }
        match deadline {
            Some(deadline) => self.arm_for(py, deadline).map(|()| Some(token)),
            None => Ok(Some(token)),
        }
    }

    /// Takes a request back if it has not left. Its outcome is dropped.
    fn withdraw(&self, token: u64) {
        let is_pending = self.lock().calls.contains_key(&token);
        if let (true, Some(completions)) = (is_pending, self.completions.get()) {
            completions.withdraw(token);
        }
    }

    /// Gives the futures their outcomes.
    fn drain(&self, py: Python<'_>) {
        let Some(completions) = self.completions.get() else {
            return;
        };
        let mut outcomes = Vec::new();
        completions.take(&mut outcomes);
        for (token, outcome) in outcomes {
            // The lock is not held while code of Python runs.
            let call = self.lock().remove(token);
            if let Some(call) = call {
                call.end(py, outcome);
            }
        }
    }

    /// Takes back the requests whose time has passed.
    fn expire(&self, py: Python<'_>) -> PyResult<()> {
        let now = Instant::now();
        let Some(completions) = self.completions.get() else {
            return Ok(());
        };
        let mut pending = self.lock();
        pending.armed = None;
        let mut late = Vec::new();
        while let Some((at, token)) = pending.deadlines.first().copied() {
            if at > now {
                break;
            }
            pending.deadlines.pop_first();
            late.push(token);
        }
        let next = pending.deadlines.first().map(|(at, _)| *at);
        drop(pending);
        for token in late {
            completions.withdraw(token);
        }
        match next {
            Some(next) => self.arm_for(py, next),
            None => Ok(()),
        }
    }

    /// Fails all calls. This is for the child of a fork.
    fn fail(&self, py: Python<'_>, text: &str) {
        let calls = std::mem::take(&mut self.lock().calls);
        for call in calls.into_values() {
            call.end(py, Err(CallError::Unknown(text.to_owned())));
        }
    }

    /// The number of calls without an outcome.
    fn __len__(&self) -> usize {
        self.lock().calls.len()
    }
}

impl PythonLoopCalls {
    fn completions(&self) -> PyResult<&Completions> {
        let completions = self.completions.get();
        completions.ok_or_else(|| PyOSError::new_err("the process was forked"))
    }

    fn add(&self, call: PendingFuture) -> u64 {
        let mut pending = self.lock();
        let token = pending.next_token;
        pending.next_token += 1;
        if let Some(deadline) = call.deadline {
            pending.deadlines.insert((deadline, token));
        }
        pending.calls.insert(token, call);
        token
    }

    /// Has `expire` called at a deadline, unless it is called earlier.
    fn arm_for(&self, py: Python<'_>, deadline: Instant) -> PyResult<()> {
        let mut pending = self.lock();
        if pending.armed.is_some_and(|armed| armed <= deadline) {
            return Ok(());
        }
        pending.armed = Some(deadline);
        drop(pending);
        let left = deadline.saturating_duration_since(Instant::now());
        self.arm.bind(py).call1((left.as_secs_f64(),)).map(drop)
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    fn remove(&mut self, token: u64) -> Option<PendingFuture> {
        let call = self.calls.remove(&token)?;
        if let Some(deadline) = call.deadline {
            self.deadlines.remove(&(deadline, token));
        }
        Some(call)
    }
}

impl PendingFuture {
    /// Gives the future its outcome. A future that cannot take it, such as that of a loop that has
    /// been closed, does not keep others from theirs.
    fn end(self, py: Python<'_>, outcome: Result<Vec<u8>, CallError>) {
        if let Err(error) = self.set(py, outcome) {
            error.write_unraisable(py, Some(self.future.bind(py)));
        }
    }

    fn set(&self, py: Python<'_>, outcome: Result<Vec<u8>, CallError>) -> PyResult<()> {
        let future = self.future.bind(py);
        // A cancelled one is done.
        if future.call_method0("done")?.is_truthy()? {
            return Ok(());
        }
        let value = match outcome {
            Ok(reply) => reply::read(py, &reply, self.codec.get(), self.raw),
            Err(error) => {
                let timed_out = self.deadline.is_some_and(|at| Instant::now() >= at);
                errors::of_call(py, &error, timed_out)
                    .and_then(|error| Err(PyErr::from_value(error)))
            }
        };
        match value {
            Ok(value) => future.call_method1("set_result", (value,))?,
            Err(error) => future.call_method1("set_exception", (error.into_value(py),))?,
        };
        Ok(())
    }
}

//! Python exceptions of failed calls. Their classes are in `respool._errors`.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;
use respool_client::{CallError, OpenError};

/// Functions of `respool._errors` that make exceptions.
struct Makers {
    not_sent: Py<PyAny>,
    unknown: Py<PyAny>,
    server: Py<PyAny>,
    invalid: Py<PyAny>,
}

static MAKERS: PyOnceLock<Makers> = PyOnceLock::new();

fn makers(py: Python<'_>) -> PyResult<&Makers> {
    MAKERS.get_or_try_init(py, || {
        let module = py.import("respool._errors")?;
        let get = |name: &str| module.getattr(name).map(Bound::unbind);
        Ok(Makers {
            not_sent: get("not_sent")?,
            unknown: get("unknown")?,
            server: get("server_error")?,
            invalid: get("invalid")?,
        })
    })
}

/// The exception that redis-py has for an error of the server.
pub(crate) fn of_server<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyAny>> {
    makers(py)?
        .server
        .bind(py)
        .call1((PyString::new(py, text),))
}

/// The exception of a failed call. `timed_out`: the caller's limit has passed.
pub(crate) fn of_call<'py>(
    py: Python<'py>,
    error: &CallError,
    timed_out: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let makers = makers(py)?;
    match error {
        CallError::NotSent(text) => makers.not_sent.bind(py).call1((text, timed_out)),
        CallError::Unknown(text) => makers.unknown.bind(py).call1((text, timed_out)),
        CallError::Server(text) => of_server(py, text),
        error => makers.invalid.bind(py).call1((error.to_string(),)),
    }
}

/// As [`of_call`], to raise it.
pub(crate) fn raise_call(py: Python<'_>, error: &CallError, timed_out: bool) -> PyErr {
    match of_call(py, error, timed_out) {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// The exception of a client that cannot be opened.
pub(crate) fn raise_open(py: Python<'_>, error: &OpenError) -> PyErr {
    let text = match error {
        OpenError::Invalid(problems) => problems.join("\n"),
        error => {
            let not_sent = CallError::NotSent(error.to_string());
            return raise_call(py, &not_sent, false);
        }
    };
    pyo3::exceptions::PyValueError::new_err(text)
}

//! Turns a reply into Python objects, as the parsers of redis-py do.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString};

use crate::codec::PythonCodec;
use crate::errors;

/// The deepest nesting of a reply.
const DEPTH_MAX: usize = 512;

/// Reads one whole reply. `raw`: text is not decoded. An error is raised. Errors within the reply
/// are exceptions that are not raised.
pub(crate) fn read<'py>(
    py: Python<'py>,
    reply: &[u8],
    codec: &PythonCodec,
    raw: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let mut reader = Reader {
        py,
        rest: reply,
        codec,
        decodes: codec.decodes && !raw,
    };
    let value = reader.value(0)?;
    match reply.first() {
        Some(b'-' | b'!') => Err(PyErr::from_value(value)),
        _ => Ok(value),
    }
}

struct Reader<'a, 'py> {
    py: Python<'py>,
    rest: &'a [u8],
    codec: &'a PythonCodec,
    decodes: bool,
}

impl<'a, 'py> Reader<'a, 'py> {
    fn value(&mut self, depth: usize) -> PyResult<Bound<'py, PyAny>> {
        if depth > DEPTH_MAX {
            return Err(self.broken("it is nested too deeply"));
        }
        let (kind, line) = self.line()?;
        let py = self.py;
        match kind {
            b'$' if line.starts_with(b"-") => Ok(py.None().into_bound(py)),
            b'$' => {
                let text = self.bulk(line)?;
                self.text(text)
            }
            b'=' => {
                let text = self.bulk(line)?;
                // In front of it is its kind: `txt:`.
                self.text(text.get(4..).unwrap_or_default())
            }
            b'+' => self.text(line),
            b':' | b'(' => self.integer(line),
            b'*' if line.starts_with(b"-") => Ok(py.None().into_bound(py)),
            b'*' | b'~' | b'>' => self.list(line, depth),
            b'%' => self.map(line, depth),
            b'_' => Ok(py.None().into_bound(py)),
            b',' => Ok(PyFloat::new(py, self.double(line)?).into_any()),
            b'#' => Ok(PyBool::new(py, line == b"t").to_owned().into_any()),
            b'-' => errors::of_server(py, &String::from_utf8_lossy(line)),
            b'!' => {
                let text = self.bulk(line)?;
                errors::of_server(py, &String::from_utf8_lossy(text))
            }
            b'|' => {
                // Attributes say something about the value behind them. redis-py has no use for it.
                self.map(line, depth)?;
                self.value(depth + 1)
            }
            _ => Err(self.broken("it has an unknown type")),
        }
    }

    /// Takes a line: its first byte and the rest.
    fn line(&mut self) -> PyResult<(u8, &'a [u8])> {
        let end = self.rest.iter().position(|byte| *byte == b'\r');
        match end.map(|end| self.rest.split_at(end)) {
            Some(([kind, line @ ..], [b'\r', b'\n', rest @ ..])) => {
                self.rest = rest;
                Ok((*kind, line))
            }
            _ => Err(self.broken("a line does not end")),
        }
    }

    fn number<N: std::str::FromStr>(&self, line: &[u8]) -> PyResult<N> {
        let number = std::str::from_utf8(line).ok();
        let number = number.and_then(|line| line.parse().ok());
        number.ok_or_else(|| self.broken("it has a wrong number"))
    }

    fn bulk(&mut self, line: &[u8]) -> PyResult<&'a [u8]> {
        let len: usize = self.number(line)?;
        match self.rest.split_at_checked(len) {
            Some((text, [b'\r', b'\n', rest @ ..])) => {
                self.rest = rest;
                Ok(text)
            }
            _ => Err(self.broken("a string does not end")),
        }
    }

    fn text(&self, text: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        if !self.decodes {
            return Ok(PyBytes::new(py, text).into_any());
        }
        if self.codec.is_utf8
            && let Ok(text) = std::str::from_utf8(text)
        {
            return Ok(PyString::new(py, text).into_any());
        }
        let arguments = (&self.codec.encoding, &self.codec.errors);
        PyBytes::new(py, text).call_method1("decode", arguments)
    }

    fn integer(&self, line: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(small) = self.number::<i64>(line) {
            return Ok(PyInt::new(self.py, small).into_any());
        }
        let digits = PyString::new(self.py, &String::from_utf8_lossy(line));
        self.py.get_type::<PyInt>().call1((digits,))
    }

    fn double(&self, line: &[u8]) -> PyResult<f64> {
        match line {
            b"inf" => Ok(f64::INFINITY),
            b"-inf" => Ok(f64::NEG_INFINITY),
            b"nan" | b"-nan" => Ok(f64::NAN),
            line => self.number(line),
        }
    }

    fn list(&mut self, line: &[u8], depth: usize) -> PyResult<Bound<'py, PyAny>> {
        let list = PyList::empty(self.py);
        for _ in 0..self.number::<usize>(line)? {
            list.append(self.value(depth + 1)?)?;
        }
        Ok(list.into_any())
    }

    fn map(&mut self, line: &[u8], depth: usize) -> PyResult<Bound<'py, PyAny>> {
        let map = PyDict::new(self.py);
        for _ in 0..self.number::<usize>(line)? {
            let key = self.value(depth + 1)?;
            map.set_item(key, self.value(depth + 1)?)?;
        }
        Ok(map.into_any())
    }

    fn broken(&self, problem: &str) -> PyErr {
        PyValueError::new_err(format!("the reply is not RESP: {problem}"))
    }
}

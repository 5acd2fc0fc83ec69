//! How the values of a command become bytes.

use std::ops::Range;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyString, PyTuple};
use respool_protocol::commands::{self, Answer, Condition, id};

/// The encoding of one client of redis-py.
#[pyclass(frozen, name = "Codec", module = "respool._respool")]
pub(crate) struct PythonCodec {
    /// The method `encode` of redis-py's `Encoder`, for all values but the usual ones.
    encode: Py<PyAny>,
    pub(crate) encoding: String,
    pub(crate) errors: String,
    /// Whether the encoding is UTF-8, strictly.
    pub(crate) is_utf8: bool,
    /// Whether replies are decoded.
    pub(crate) decodes: bool,
}

#[pymethods]
impl PythonCodec {
    #[new]
    fn new(encode: Py<PyAny>, encoding: String, errors: String, decodes: bool) -> PythonCodec {
        let name = encoding.to_ascii_lowercase().replace('_', "-");
        PythonCodec {
            encode,
            is_utf8: matches!(&*name, "utf-8" | "utf8") && errors == "strict",
            encoding,
            errors,
            decodes,
        }
    }
}

/// The special treatment of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handling {
    /// Nothing: it is a call.
    Call,
    /// It may wait at the server, so only its own limit ends it.
    Waits,
    /// It reads or changes its connection, so it needs one.
    Connection,
}

/// An encoded request.
pub(crate) struct Encoded {
    pub(crate) bytes: Vec<u8>,
    pub(crate) handling: Handling,
}

impl PythonCodec {
    /// Encodes a command as redis-py does: the first argument may be several words.
    pub(crate) fn encode(&self, args: &Bound<'_, PyTuple>) -> PyResult<Encoded> {
        let mut request = Request::default();
        let first = args.get_item(0)?;
        let rest = args.len() - 1;
        if let Ok(name) = first.cast::<PyString>() {
            request.begin(name.to_cow()?.as_bytes(), rest);
        } else {
            request.begin(first.cast::<PyBytes>()?.as_bytes(), rest);
        }
        for arg in args.iter().skip(1) {
            self.put(&mut request, &arg)?;
        }
        Ok(request.end())
    }

    fn put(&self, request: &mut Request, arg: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Ok(bytes) = arg.cast::<PyBytes>() {
            request.put(bytes.as_bytes());
            return Ok(());
        }
        if let Ok(text) = arg.cast::<PyString>()
            && self.is_utf8
        {
            request.put(text.to_cow()?.as_bytes());
            return Ok(());
        }
        // A bool is no int here: redis-py refuses it.
        if let Ok(int) = arg.cast_exact::<PyInt>()
            && let Ok(value) = int.extract::<i64>()
        {
            request.put(value.to_string().as_bytes());
            return Ok(());
        }
        let encoded = self.encode.bind(arg.py()).call1((arg,))?;
        if let Ok(bytes) = encoded.cast::<PyBytes>() {
            request.put(bytes.as_bytes());
            return Ok(());
        }
        // A bytearray or a memoryview.
        let bytes = arg.py().get_type::<PyBytes>().call1((encoded,))?;
        request.put(bytes.cast::<PyBytes>()?.as_bytes());
        Ok(())
    }
}

/// A request that is being encoded.
#[derive(Default)]
struct Request {
    bytes: Vec<u8>,
    /// Where the arguments are in `bytes`.
    places: Vec<Range<usize>>,
}

impl Request {
    fn begin(&mut self, name: &[u8], rest: usize) {
        let mut words = name
            .split(|byte| byte.is_ascii_whitespace())
            .filter(|word| !word.is_empty());
        let count = words.clone().count();
        self.places.reserve(count + rest);
        self.head(b'*', count + rest);
        words.by_ref().for_each(|word| self.put(word));
    }

    fn put(&mut self, arg: &[u8]) {
        self.head(b'$', arg.len());
        let from = self.bytes.len();
        self.bytes.extend_from_slice(arg);
        self.places.push(from..self.bytes.len());
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn head(&mut self, kind: u8, number: usize) {
        self.bytes.push(kind);
        match u8::try_from(number) {
            Ok(digit @ 0..=9) => self.bytes.push(b'0' + digit),
            _ => self.bytes.extend_from_slice(number.to_string().as_bytes()),
        }
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn end(self) -> Encoded {
        let handling = match self.places.is_empty() {
            true => Handling::Call,
            false => self.handling(),
        };
        Encoded {
            bytes: self.bytes,
            handling,
        }
    }

    fn handling(&self) -> Handling {
        let arg = |at: usize| &self.bytes[self.places[at].clone()];
        // HIMPORT keeps fields at its connection, and the table does not have it.
        if commands::lookup(arg(0)) == Some(id::CLIENT) || commands::is_word(arg(0), b"himport") {
            return Handling::Connection;
        }
        let found = commands::resolve(self.places.len(), arg);
        match found.map(|found| found.get().answer) {
            Some(Answer::Alone) => Handling::Waits,
            Some(Answer::Conditional(Condition::Block)) => {
                let blocks = (1..self.places.len()).any(|at| commands::is_word(arg(at), b"block"));
                match blocks {
                    true => Handling::Waits,
                    false => Handling::Call,
                }
            }
            _ => Handling::Call,
        }
    }
}

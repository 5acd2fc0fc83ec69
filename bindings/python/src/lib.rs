//! The native half of the Python package `respool`: `respool._respool`.
//!
//! The Python half (`python/respool`) has the classes of redis-py. This half encodes requests,
//! calls the client without the lock of the interpreter, and turns replies into Python objects.
//!
//! | class | purpose |
//! |---|---|
//! | `Client` | a client that opens at its first call, and again after a fork |
//! | `Codec` | how values become bytes and bytes become values |
//! | `LoopCalls` | the calls of one event loop |
//! | `Stream` | a session as a stream of bytes |
//! | `ReadyStreams` | tells an event loop which streams have bytes |

mod client;
mod codec;
mod errors;
mod fork;
mod loop_calls;
mod ready_streams;
mod reply;
mod stream;

use pyo3::prelude::*;

/// The classes and functions that the Python half uses.
#[pymodule]
mod _respool {
    #[pymodule_export]
    use crate::client::PythonClient;
    #[pymodule_export]
    use crate::codec::PythonCodec;
    #[pymodule_export]
    use crate::fork::{forked, leaving};
    #[pymodule_export]
    use crate::loop_calls::PythonLoopCalls;
    #[pymodule_export]
    use crate::ready_streams::PythonReadyStreams;
    #[pymodule_export]
    use crate::stream::PythonStream;
}

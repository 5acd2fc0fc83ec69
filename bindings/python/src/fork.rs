//! Forks, and the end of the interpreter.
//!
//! A child has the memory of its parent and one of its threads. So nothing of a client may be
//! touched in a child: the worker is gone, and another thread may have held a lock. A value that
//! was made before the fork is kept for ever.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pyo3::prelude::*;

/// The number of forks that led to this process.
static GENERATION: AtomicU64 = AtomicU64::new(0);
static IS_LEAVING: AtomicBool = AtomicBool::new(false);

/// The generation of this process.
pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// Whether the interpreter ends.
pub(crate) fn is_leaving() -> bool {
    IS_LEAVING.load(Ordering::Relaxed)
}

/// Tells that this process is the child of a fork.
#[pyfunction]
pub(crate) fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Tells that the interpreter ends.
#[pyfunction]
pub(crate) fn leaving() {
    IS_LEAVING.store(true, Ordering::Relaxed);
}

/// A value that only the process that made it may use or drop.
#[derive(Debug)]
pub(crate) struct OfProcess<T> {
    /// `None` while it is dropped.
    value: Option<T>,
    generation: u64,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> OfProcess<T> {
        OfProcess {
            value: Some(value),
            generation: generation(),
        }
    }

    /// The value; `None` in a child of its process.
    pub(crate) fn get(&self) -> Option<&T> {
        match self.generation == generation() {
            true => self.value.as_ref(),
            false => None,
        }
    }

    /// Takes the value out; `None` in a child of its process.
    pub(crate) fn take(&mut self) -> Option<T> {
        let value = self.value.take();
        if self.generation == generation() {
            return value;
        }
        std::mem::forget(value);
        None
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        // At the end of the process nothing has to be put in order.
        if self.generation != generation() || is_leaving() {
            std::mem::forget(self.value.take());
        }
    }
}

/// Whether this thread is the first one of the process. Python runs handlers of signals there.
pub(crate) fn is_main_thread() -> bool {
    thread_local! {
        /// The answer, and the generation for which it holds.
        static ANSWER: Cell<Option<(u64, bool)>> = const { Cell::new(None) };
    }
    let now = generation();
    match ANSWER.get() {
        Some((generation, answer)) if generation == now => answer,
        _ => {
            let answer = rustix::thread::gettid() == rustix::process::getpid();
            ANSWER.set(Some((now, answer)));
            answer
        }
    }
}

//! A list that wakes an event loop once for a batch.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

use rustix::event::{EventfdFlags, eventfd};

use crate::lock;

/// Numbers of calls or streams with something to take. Wakers add to it from any thread, and one
/// thread takes all. Its descriptor is readable while there are numbers.
#[derive(Debug)]
pub struct ReadyList {
    numbers: Mutex<Vec<u64>>,
    event: OwnedFd,
}

impl ReadyList {
    /// An empty list.
    ///
    /// # Errors
    /// The system refuses an eventfd.
    pub fn new() -> io::Result<ReadyList> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let numbers = Mutex::default();
        Ok(ReadyList { numbers, event })
    }

    /// Adds a number. It may be there already.
    pub fn add(&self, number: u64) {
        let mut numbers = lock(&self.numbers);
        numbers.push(number);
        let is_first = numbers.len() == 1;
        drop(numbers);
        if is_first {
            // It fails only at a count that is never reached, and then the event is readable.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// Takes the numbers that were added since the last time.
    pub fn take(&self) -> Vec<u64> {
        // The event is cleared first: a number that is added behind this sets it again.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        std::mem::take(&mut *lock(&self.numbers))
    }
}

impl AsFd for ReadyList {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

//! Forks of the process.
//!
//! A child has the memory of its parent and none of its threads. A worker does not exist there, and
//! a lock that another thread had at the fork is never free again. So a caller asks for the number
//! of forks before it takes a lock.

use std::ffi::c_int;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of forks between the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);
static COUNTS: Once = Once::new();

extern "C" fn count() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The number of forks between the first process and this one, from [`start_counting`] on.
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Has forks of this process counted.
pub(crate) fn start_counting() {
    COUNTS.call_once(|| {
        #[allow(unsafe_code)]
        // SAFETY: the declaration is that of POSIX. The handler lives as long as the program, and
        // does what a handler of a child may do: it changes an atomic number.
        unsafe {
            unsafe extern "C" {
                fn pthread_atfork(
                    prepare: Option<extern "C" fn()>,
                    parent: Option<extern "C" fn()>,
                    child: Option<extern "C" fn()>,
                ) -> c_int;
            }
            // It fails for want of memory alone.
            let _ = pthread_atfork(None, None, Some(count));
        }
    });
}

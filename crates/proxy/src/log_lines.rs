//! The queue of log lines for standard error, which may be read slowly or not at all.
//!
//! Only the thread that writes to standard error waits for it. Lines wait in a queue that is
//! bounded in bytes. A full queue drops its oldest lines and counts them, so that the last lines
//! before an end are kept.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::mem::take;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use respool_config::plain::plain_line;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing::warn;
use tracing_subscriber::fmt::MakeWriter;

/// The most bytes of waiting lines. At it, the oldest lines are dropped and counted.
const QUEUE_BYTES_MAX: usize = 1 << 20;

/// The longest wait at the end of the process while standard error takes no byte.
const STALLED_MAX: Duration = Duration::from_secs(1);

/// The longest wait at the end of the process for a slow standard error.
const FINISH_MAX: Duration = Duration::from_secs(5);

/// The lines that were lost since the start of the process.
static LINES_LOST: AtomicU64 = AtomicU64::new(0);

/// The lines that were lost since the start of the process, because standard error was read too
/// slowly or refused them.
pub(crate) fn lines_lost() -> u64 {
    LINES_LOST.load(Ordering::Relaxed)
}

/// Called by the writing thread between lines. Returns when to call it next, at the latest.
pub(crate) type Tick = Box<dyn Fn(Instant) -> Option<Instant> + Send>;

/// A handle to the queue of lines. Clones share the queue.
#[derive(Clone, Default)]
pub(crate) struct LogLines(Arc<SharedQueue>);

#[derive(Default)]
struct SharedQueue {
    queue: Mutex<Queue>,
    /// Signalled when the queue gets a line.
    filled: Condvar,
    /// Signalled when a line was written or dropped.
    written: Condvar,
}

#[derive(Default)]
struct Queue {
    lines: VecDeque<Vec<u8>>,
    /// Bytes of the lines.
    bytes: usize,
    /// Lines that a full queue dropped and that are not yet reported.
    dropped: u64,
    /// Lines that standard error refused and that are not yet reported.
    refused: u64,
    /// The error of the last one.
    refusal: Option<Errno>,
    /// Whether the thread is writing a line.
    is_writing: bool,
    /// Bytes written since the start.
    bytes_written: u64,
}

impl Queue {
    fn push(&mut self, line: &[u8]) {
        while self.bytes + line.len() > QUEUE_BYTES_MAX {
            let Some(oldest) = self.lines.pop_front() else {
                self.drop_line();
                return;
            };
            self.bytes -= oldest.len();
            self.drop_line();
        }
        self.bytes += line.len();
        self.lines.push_back(line.to_vec());
    }

    fn drop_line(&mut self) {
        self.dropped += 1;
        LINES_LOST.fetch_add(1, Ordering::Relaxed);
    }

    fn pop(&mut self) -> Option<Vec<u8>> {
        let line = self.lines.pop_front()?;
        self.bytes -= line.len();
        Some(line)
    }
}

impl LogLines {
    /// Starts the thread that writes the lines.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn start(&self, tick: Tick) -> io::Result<()> {
        let lines = self.clone();
        thread::Builder::new()
            .name("log".into())
            .spawn(move || lines.write_for_ever(&tick))?;
        Ok(())
    }

    /// Waits until every line is written, or until standard error takes no more; see
    /// [`STALLED_MAX`] and [`FINISH_MAX`].
    pub(crate) fn finish(&self) {
        let begun = Instant::now();
        let mut queue = self.lock();
        let mut progress = (queue.bytes_written, begun);
        while !queue.lines.is_empty() || queue.is_writing {
            let (waited, _) = self
                .0
                .written
                .wait_timeout(queue, STALLED_MAX / 10)
                .unwrap_or_else(PoisonError::into_inner);
            queue = waited;
            if queue.bytes_written != progress.0 {
                progress = (queue.bytes_written, Instant::now());
            }
            if progress.1.elapsed() >= STALLED_MAX || begun.elapsed() >= FINISH_MAX {
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_for_ever(&self, tick: &Tick) {
        loop {
            let due = tick(Instant::now());
            let mut queue = self.lock();
            if queue.lines.is_empty() {
                let wait = due.map(|due| due.saturating_duration_since(Instant::now()));
                queue = match wait {
                    None => {
                        let woken = self.0.filled.wait(queue);
                        woken.unwrap_or_else(PoisonError::into_inner)
                    }
                    Some(wait) => {
                        let woken = self.0.filled.wait_timeout(queue, wait);
                        woken.unwrap_or_else(PoisonError::into_inner).0
                    }
                };
            }
            let Some(line) = queue.pop() else { continue };
            queue.is_writing = true;
            drop(queue);
            let written = self.write(&line);
            let mut queue = self.lock();
            queue.is_writing = false;
            if let Err(error) = written {
                queue.refused += 1;
                queue.refusal = Some(error);
                LINES_LOST.fetch_add(1, Ordering::Relaxed);
                drop(queue);
            } else {
                let (dropped, refused) = (take(&mut queue.dropped), take(&mut queue.refused));
                let refusal = queue.refusal.take();
                drop(queue);
                say_lost(dropped, refused, refusal);
            }
            self.0.written.notify_all();
        }
    }

    /// `Err`: standard error did not take all of it.
    fn write(&self, mut line: &[u8]) -> Result<(), Errno> {
        let errors = io::stderr();
        while !line.is_empty() {
            // Without the lock of `Stderr`, which another thread may hold in its panic.
            match rustix::io::write(errors.as_fd(), line) {
                Ok(count) => {
                    line = &line[count.min(line.len())..];
                    self.lock().bytes_written += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    // Another process has made standard error non-blocking.
                    let mut fds = [PollFd::new(&errors, PollFlags::OUT)];
                    let second = Timespec {
                        tv_sec: 1,
                        tv_nsec: 0,
                    };
                    let _ = poll(&mut fds, Some(&second));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Logs how many lines were lost since the last such line, and why.
fn say_lost(dropped: u64, refused: u64, refusal: Option<Errno>) {
    if dropped > 0 {
        warn!(
            count = dropped,
            "log lines were dropped: standard error was read too slowly"
        );
    }
    if let Some(error) = refusal {
        let error = io::Error::from(error);
        warn!(
            count = refused,
            "log lines were dropped: standard error took none: {error}"
        );
    }
}

/// The formatter writes each line in one piece.
impl Write for &LogLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.lock().push(&plain_line(line));
        self.0.filled.notify_one();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogLines {
    type Writer = &'a LogLines;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full queue drops the oldest lines, counts them, and keeps the newest.
    #[test]
    fn full_queue_drops_the_oldest_lines() {
        let mut queue = Queue::default();
        let line = vec![b'x'; QUEUE_BYTES_MAX / 4];
        for number in 0..10u8 {
            let mut line = line.clone();
            line[0] = number;
            queue.push(&line);
            assert!(queue.bytes <= QUEUE_BYTES_MAX);
        }
        assert_eq!(queue.dropped, 6);
        let kept: Vec<u8> = queue.lines.iter().map(|line| line[0]).collect();
        assert_eq!(kept, [6, 7, 8, 9]);
        while queue.pop().is_some() {}
        assert_eq!(queue.bytes, 0);
    }

    /// A line that is longer than the queue is dropped, too.
    #[test]
    fn line_longer_than_the_queue_is_dropped() {
        let mut queue = Queue::default();
        queue.push(&vec![b'x'; QUEUE_BYTES_MAX + 1]);
        assert_eq!((queue.dropped, queue.bytes), (1, 0));
    }

    /// The end of the process does not wait for a standard error that takes nothing.
    #[test]
    fn finish_gives_up_when_nothing_is_taken() {
        let lines = LogLines::default();
        lines.finish();
        (&lines).write_all(b"never written\n").unwrap();
        let begun = Instant::now();
        lines.finish();
        assert!(begun.elapsed() >= STALLED_MAX);
    }
}

//! A progress line on the terminal. Silent without a terminal.

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

/// A bar on standard error.
pub struct ProgressBar {
    is_shown: bool,
    begun: Instant,
    done: usize,
    total: usize,
}

impl ProgressBar {
    /// A bar for so many steps of about equal length.
    pub fn new(total: usize) -> ProgressBar {
        ProgressBar {
            is_shown: io::stderr().is_terminal(),
            begun: Instant::now(),
            done: 0,
            total,
        }
    }

    /// Shows the next step.
    pub fn begin(&self, what: &str) {
        if !self.is_shown {
            return;
        }
        let left = match self.done {
            0 => String::new(),
            done => {
                let each = self.begun.elapsed().as_secs_f64() / done as f64;
                let seconds = (each * (self.total - done) as f64).ceil() as u64;
                format!(", {}:{:02} left", seconds / 60, seconds % 60)
            }
        };
        let bar = bar(self.done, self.total, 24);
        let mut stderr = io::stderr().lock();
        let _ = write!(
            stderr,
            "\r\x1b[2K{bar} {}/{}{left}  {what}",
            self.done, self.total
        );
        let _ = stderr.flush();
    }

    /// Ends a step.
    pub fn end_step(&mut self) {
        self.done = (self.done + 1).min(self.total);
    }
}

impl Drop for ProgressBar {
    fn drop(&mut self) {
        if self.is_shown {
            let _ = write!(io::stderr().lock(), "\r\x1b[2K");
        }
    }
}

fn bar(done: usize, total: usize, width: usize) -> String {
    let full = done * width / total.max(1);
    format!("[{}{}]", "█".repeat(full), "·".repeat(width - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_is_empty_at_first_and_full_at_last() {
        assert_eq!(bar(0, 3, 6), "[······]");
        assert_eq!(bar(1, 3, 6), "[██····]");
        assert_eq!(bar(3, 3, 6), "[██████]");
        assert_eq!(bar(0, 0, 6), "[······]");
    }
}

//! A progress line on the terminal. Silent without a terminal.

use std::fmt::Write;

use indicatif::{FormattedDuration, ProgressBar, ProgressFinish, ProgressState, ProgressStyle};

/// A bar on standard error for so many steps of about equal length.
pub fn bar(steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("[{bar:24}] {pos}/{len}{left}  {msg}")
        .expect("the template is legal")
        .progress_chars("█·")
        .with_key("left", |state: &ProgressState, out: &mut dyn Write| {
            // Without a whole step there is nothing to go by.
            if state.pos() > 0 {
                let _ = write!(out, ", {} left", FormattedDuration(state.eta()));
            }
        });
    ProgressBar::new(steps as u64)
        .with_style(style)
        .with_finish(ProgressFinish::AndClear)
}

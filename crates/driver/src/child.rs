//! A child process that cannot outlive us.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Starts `command` as a child that the kernel kills with SIGKILL when **the calling thread** ends,
/// in any way. So call it from the main thread: its end is the end of the process.
///
/// # Errors
/// As [`Command::spawn`].
pub fn spawn_tied(command: &mut Command) -> io::Result<Child> {
    let parent = getpid();
    let tie = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // If the parent ended before that call, no signal comes. A changed parent id shows it.
        if getppid() != Some(parent) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe code may run, because another thread may
    // have held any lock at the fork. `tie` makes two system calls, allocates nothing and takes no
    // lock. Its errors are made from an error number and from a kind, so they allocate nothing
    // either.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(tie)
    };
    command.spawn()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// The kernel kills a tied child when the thread that started it ends.
    #[test]
    fn tied_child_dies_with_its_thread() {
        let (end, ended) = mpsc::channel::<()>();
        let starter = thread::spawn(move || {
            let child = spawn_tied(Command::new("sleep").arg("600"));
            let mut child = child.expect("sleep starts");
            let status_before = child.try_wait().expect("our child");
            ended.recv().expect_err("the sender was dropped");
            (child, status_before)
        });
        drop(end);
        let (mut child, status_before) = starter.join().expect("the thread ends");
        assert_eq!(status_before, None, "the child lives while its thread does");
        let status = child.wait().expect("our child");
        assert_eq!(status.signal(), Some(Signal::KILL.as_raw()));
    }

    /// A command that does not exist is an error of the spawn.
    #[test]
    fn missing_command_is_an_error() {
        let error = spawn_tied(&mut Command::new("/nonexistent/server")).expect_err("no such file");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}

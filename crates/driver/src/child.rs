//! A child process that cannot outlive us.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Starts `command` such that the kernel kills it, by SIGKILL, when **the thread that calls this**
/// ends, in whatever way: so call it from the main thread, whose end is the process's.
///
/// # Errors
/// As [`Command::spawn`].
pub fn spawn_tied(command: &mut Command) -> io::Result<Child> {
    let parent = getpid();
    let tie = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // Had the parent ended before that call, no signal would ever come: who adopted us tells.
        if getppid() != Some(parent) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(())
    };
    // SAFETY: between fork and exec only what is async-signal-safe may run, since another thread may
    // have held any lock at the fork. `tie` makes two system calls, and neither it nor its errors
    // (made from an error number, and from a kind) allocate or take a lock.
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

    #[test]
    fn a_tied_child_is_killed_when_the_thread_that_started_it_ends() {
        let (end, ended) = mpsc::channel::<()>();
        let starter = thread::spawn(move || {
            let child = spawn_tied(Command::new("sleep").arg("600"));
            let mut child = child.expect("sleep starts");
            let while_we_live = child.try_wait().expect("our child");
            ended.recv().expect_err("the sender was dropped");
            (child, while_we_live)
        });
        drop(end);
        let (mut child, while_we_live) = starter.join().expect("the thread ends");
        assert_eq!(while_we_live, None, "lives as long as its thread");
        let status = child.wait().expect("our child");
        assert_eq!(status.signal(), Some(Signal::KILL.as_raw()));
    }

    #[test]
    fn a_command_that_does_not_exist_is_an_error_of_spawn() {
        let error = spawn_tied(&mut Command::new("/nonexistent/server")).expect_err("no such file");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}

//! A command that prints a password: a token of a cloud, or a secret of a vault.
//!
//! Its output is the password, and on a second line, if it wants, the lifetime of the password in
//! seconds. There is no shell: the words of the command are separated by spaces, and the first one
//! is an absolute path.

use std::fmt;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use respool_driver::spawn_tied;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::options::parse_secret;
use crate::plain::plain;

/// The time that a command may take. Then it is killed, with the processes of its group.
pub(crate) const COMMAND_TIME_MAX: Duration = Duration::from_secs(10);

/// The most bytes that a command may print. One that prints more has failed.
const OUTPUT_BYTES_MAX: usize = 64 << 10;

/// The bytes of a command's error output that a message shows. The rest is read and dropped.
const ERROR_BYTES_MAX: usize = 256;

/// The longest lifetime that a command may name: ten years.
const LIFETIME_SECONDS_MAX: u64 = 10 * 365 * 86_400;

/// The pause between two looks at a command that has closed its output and still runs.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A command that prints a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PasswordCommand {
    /// Its program and its arguments.
    words: Vec<String>,
}

/// The output of a command.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PrintedPassword {
    pub(crate) password: String,
    /// The time after which the password expires; `None`: the command names none.
    pub(crate) lifetime: Option<Duration>,
}

// A password never reaches a log by way of a debug format.
impl fmt::Debug for PrintedPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lifetime.fmt(f)
    }
}

impl fmt::Display for PasswordCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words.join(" "))
    }
}

impl PasswordCommand {
    /// Parses the words of a command.
    ///
    /// # Errors
    /// When it names no program by an absolute path.
    pub(crate) fn parse(text: &str) -> Result<PasswordCommand, String> {
        if text.contains('\0') {
            return Err("has a NUL character, which no argument can have".into());
        }
        let words = text.split(' ').filter(|word| !word.is_empty());
        let words: Vec<String> = words.map(str::to_owned).collect();
        match words.first() {
            Some(program) if program.starts_with('/') => Ok(PasswordCommand { words }),
            _ => Err(
                "must begin with the absolute path of a program: /usr/local/bin/token --name x; \
                 there is no shell, so write a script for more than words between spaces"
                    .into(),
            ),
        }
    }

    /// Its program, for the log. Arguments are left out.
    pub(crate) fn program(&self) -> &str {
        &self.words[0]
    }

    /// Runs the command and returns its output. Blocks for [`COMMAND_TIME_MAX`] at the most.
    /// The command ends with the calling thread.
    ///
    /// # Errors
    /// When it cannot be run, fails, takes too long, or prints no password.
    pub(crate) fn run(&self) -> Result<PrintedPassword, String> {
        self.run_for(COMMAND_TIME_MAX)
    }

    fn run_for(&self, time_max: Duration) -> Result<PrintedPassword, String> {
        let shown = self.program();
        let mut command = Command::new(shown);
        command
            .args(&self.words[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = spawn_tied(&mut command)
            .map_err(|error| format!("`{shown}` cannot be started: {error}"))?;
        let ended = wait_for(&mut child, Instant::now() + time_max);
        if ended.is_err() {
            // It has not ended, or one of its children keeps its output open.
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
            let _ = child.wait();
        }
        let (output, errors) = ended.map_err(|error| match error {
            OutputError::Late => format!("`{shown}` did not end within {time_max:?}: killed"),
            OutputError::Long => {
                format!("`{shown}` prints more than {OUTPUT_BYTES_MAX} bytes: killed")
            }
            OutputError::Broken(error) => format!("`{shown}` cannot be read: {error}"),
        })?;
        let status = child
            .wait()
            .map_err(|error| format!("`{shown}` cannot be waited for: {error}"))?;
        if !status.success() {
            let errors = String::from_utf8_lossy(&errors);
            let wrote = match errors.trim() {
                "" => "it wrote no error".into(),
                text => format!("it wrote: {}", plain(text)),
            };
            return Err(format!("`{shown}` failed with {status}: {wrote}"));
        }
        read_printed(&output).map_err(|what| format!("`{shown}` {what}"))
    }
}

/// The reason why a command has no output.
#[derive(Debug)]
enum OutputError {
    /// Its time is over.
    Late,
    /// It prints too much.
    Long,
    /// A system call failed.
    Broken(io::Error),
}

/// Reads the output of a child until it has ended. Returns it, and the beginning of its error
/// output.
fn wait_for(child: &mut Child, deadline: Instant) -> Result<(Vec<u8>, Vec<u8>), OutputError> {
    let mut out = child.stdout.take().map(|pipe| (pipe, Vec::new()));
    let mut err = child.stderr.take().map(|pipe| (pipe, Vec::new()));
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    while out.is_some() || err.is_some() {
        let fds = [
            out.as_ref().map(|(pipe, _)| pipe.as_fd()),
            err.as_ref().map(|(pipe, _)| pipe.as_fd()),
        ];
        let [out_ready, err_ready] = wait_for_bytes(fds, deadline)?;
        if out_ready && let Some((pipe, bytes)) = &mut out {
            let is_over = read_part(pipe, bytes)?;
            if bytes.len() > OUTPUT_BYTES_MAX {
                return Err(OutputError::Long);
            }
            if is_over {
                output = out.take().map(|(_, bytes)| bytes).unwrap_or_default();
            }
        }
        if err_ready && let Some((pipe, bytes)) = &mut err {
            let is_over = read_part(pipe, bytes)?;
            bytes.truncate(ERROR_BYTES_MAX);
            if is_over {
                errors = err.take().map(|(_, bytes)| bytes).unwrap_or_default();
            }
        }
    }
    while child.try_wait().map_err(OutputError::Broken)?.is_none() {
        if Instant::now() >= deadline {
            return Err(OutputError::Late);
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok((output, errors))
}

/// Waits until one of these pipes can be read. Returns which ones.
fn wait_for_bytes(
    pipes: [Option<BorrowedFd<'_>>; 2],
    deadline: Instant,
) -> Result<[bool; 2], OutputError> {
    let rest = deadline.saturating_duration_since(Instant::now());
    if rest.is_zero() {
        return Err(OutputError::Late);
    }
    let limit = Timespec {
        tv_sec: rest.as_secs() as i64,
        tv_nsec: rest.subsec_nanos().into(),
    };
    let open = pipes.iter().flatten();
    let mut fds: Vec<PollFd<'_>> = open.map(|pipe| PollFd::new(pipe, PollFlags::IN)).collect();
    match poll(&mut fds, Some(&limit)) {
        Ok(0) => return Err(OutputError::Late),
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(OutputError::Broken(error.into())),
    }
    let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
    Ok(pipes.map(|pipe| pipe.is_some() && ready.next() == Some(true)))
}

/// Appends the bytes that a pipe has. Returns whether they were the last.
fn read_part(pipe: &mut impl Read, bytes: &mut Vec<u8>) -> Result<bool, OutputError> {
    let mut part = [0; 4 << 10];
    match pipe.read(&mut part) {
        Ok(count) => {
            bytes.extend_from_slice(&part[..count]);
            Ok(count == 0)
        }
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(error) => Err(OutputError::Broken(error)),
    }
}

/// The password and its lifetime in the output of a command.
fn read_printed(output: &[u8]) -> Result<PrintedPassword, String> {
    let text = std::str::from_utf8(output).map_err(|_| "prints bytes that are not UTF-8")?;
    let mut lines = text
        .lines()
        .map(|line| line.strip_suffix('\r').unwrap_or(line));
    let password = parse_secret(lines.next().unwrap_or_default())
        .map_err(|_| "prints no password: its first line is empty")?;
    let lifetime = match lines.next().map(str::trim).filter(|line| !line.is_empty()) {
        None => None,
        Some(line) => match line.parse() {
            Ok(seconds) if (1..=LIFETIME_SECONDS_MAX).contains(&seconds) => {
                Some(Duration::from_secs(seconds))
            }
            _ => {
                return Err(format!(
                    "prints a second line that is no lifetime: whole seconds, from 1 to \
                     {LIFETIME_SECONDS_MAX}"
                ));
            }
        },
    };
    if lines.any(|line| !line.trim().is_empty()) {
        return Err("prints more than two lines: the password and its lifetime".into());
    }
    Ok(PrintedPassword { password, lifetime })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command that runs this shell script.
    fn script(body: &str) -> (tempfile::NamedTempFile, PasswordCommand) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), body).unwrap();
        let text = format!("/bin/sh {}", file.path().display());
        let command = PasswordCommand::parse(&text).unwrap();
        (file, command)
    }

    #[test]
    fn command_is_words_behind_an_absolute_path() {
        let command = PasswordCommand::parse(" /bin/echo  a b").unwrap();
        assert_eq!(command.to_string(), "/bin/echo a b");
        assert_eq!(command.run().unwrap().password, "a b");
        for wrong in ["", " ", "echo a", "./echo", "/bin/echo a\0b"] {
            assert!(PasswordCommand::parse(wrong).is_err(), "{wrong}");
        }
    }

    /// The first line is the password, the second its lifetime in seconds.
    #[test]
    fn output_is_a_password_and_a_lifetime() {
        let lifetime = |seconds| Some(Duration::from_secs(seconds));
        for (output, password, expected) in [
            ("a", "a", None),
            ("a b \n", "a b ", None),
            ("a\r\n900\r\n", "a", lifetime(900)),
            ("a\n 1 \n\n", "a", lifetime(1)),
            ("a\n\n", "a", None),
        ] {
            let printed = read_printed(output.as_bytes()).unwrap();
            assert_eq!(
                (printed.password.as_str(), printed.lifetime),
                (password, expected)
            );
        }
        for (output, error) in [
            ("", "prints no password"),
            ("\n900\n", "prints no password"),
            ("SECRET\n0", "no lifetime"),
            ("SECRET\n-1", "no lifetime"),
            ("SECRET\n99999999999", "no lifetime"),
            ("SECRET\nSECRET", "no lifetime"),
            ("SECRET\n1\nSECRET", "more than two lines"),
        ] {
            let told = read_printed(output.as_bytes()).unwrap_err();
            assert!(told.contains(error), "{told}");
            assert!(!told.contains("SECRET"), "{told}");
        }
        assert!(read_printed(b"\xff").unwrap_err().contains("UTF-8"));
    }

    /// A command that fails says so by its status and its error output.
    #[test]
    fn failed_command_names_its_error() {
        for (body, error) in [
            (
                "echo SECRET; echo 'no\tnet' >&2; exit 3",
                "exit status: 3: it wrote: no\\tnet",
            ),
            ("exit 1", "exit status: 1: it wrote no error"),
            ("kill -9 $$", "signal: 9"),
            ("yes SECRET", "prints more than 65536 bytes"),
        ] {
            let (_file, command) = script(body);
            let told = command.run().unwrap_err();
            assert!(told.contains(error), "{told}");
            assert!(!told.contains("SECRET"), "{told}");
        }
        let nothing = PasswordCommand::parse("/nonexistent/token").unwrap();
        let told = nothing.run().unwrap_err();
        assert!(
            told.contains("`/nonexistent/token` cannot be started"),
            "{told}"
        );
    }

    /// A command is killed when its time is over, with its children. It may close its output first,
    /// or leave a child behind that keeps the output open.
    #[test]
    fn slow_command_is_killed_with_its_children() {
        for body in [
            "sleep 600",
            "exec >&- 2>&-; sleep 600",
            "sleep 600 & echo a",
            "while :; do echo e >&2; done",
        ] {
            let (_file, command) = script(body);
            let begun = Instant::now();
            let told = command.run_for(Duration::from_millis(300)).unwrap_err();
            assert!(told.contains("did not end within 300ms: killed"), "{told}");
            assert!(begun.elapsed() < Duration::from_secs(60), "{body}");
        }
    }

    /// Error output does not stop a command that prints much of it.
    #[test]
    fn long_error_output_is_read_and_dropped() {
        let (_file, command) = script("head -c 1000000 /dev/zero >&2; echo a; echo 60");
        let printed = command.run().unwrap();
        assert_eq!(printed.password, "a");
        assert_eq!(printed.lifetime, Some(Duration::from_secs(60)));
    }
}

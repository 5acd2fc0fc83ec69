//! Files that hold passwords: read at the start, and again while respool runs.
//!
//! ```text
//!   a server refuses a password ──► read its file ──► new password ──► all workers
//!   SIGHUP ───────────────────────► read all files    no password ───► the old one stays
//! ```
//!
//! A thread of its own reads the files: a file system may be slow, and no client waits for it.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use respool_driver::Passwords;
use respool_engine::settings::PasswordSource;
use tracing::{info, warn};

use crate::options::parse_secret;
use crate::plain::plain;
use crate::raw::read_file;

/// The most bytes of a password file. A longer one is refused: a device may never end.
const SECRET_BYTES_MAX: u64 = 64 << 10;

/// The pause between two rounds of reading. Servers may refuse a password more often.
const PAUSE: Duration = Duration::from_millis(100);

/// The files with passwords, each once. The index of a file is its [`PasswordSource`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PasswordFiles(Vec<PasswordFile>);

/// A file with a password.
#[derive(Clone, PartialEq, Eq)]
struct PasswordFile {
    path: PathBuf,
    /// The option that names it, for warnings.
    option: String,
    /// The password that was read last.
    password: String,
    /// Whether it is a pipe, which can be read once.
    is_pipe: bool,
    /// Why the last attempt to read it failed, as the log has it.
    trouble: Option<String>,
}

impl fmt::Debug for PasswordFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())
    }
}

impl PasswordFiles {
    /// Reads the file that an option names. A file that was read before is not read again.
    ///
    /// # Errors
    /// Returns why the file has no password.
    pub(crate) fn read(
        &mut self,
        option: &str,
        path: &Path,
    ) -> Result<(String, PasswordSource), String> {
        let known = self.0.iter().position(|file| file.path == path);
        let index = match known {
            Some(index) => index,
            None => {
                let meta = std::fs::metadata(path);
                let is_pipe = meta.is_ok_and(|meta| meta.file_type().is_fifo());
                self.0.push(PasswordFile {
                    password: read_password(path)?,
                    path: path.to_owned(),
                    option: option.to_owned(),
                    is_pipe,
                    trouble: None,
                });
                self.0.len() - 1
            }
        };
        let source = PasswordSource(index as u16);
        Ok((self.0[index].password.clone(), source))
    }

    /// Warnings about files that other users of the machine may read.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = String> {
        self.0.iter().filter_map(|file| {
            let warning = readable_by_others(&file.path)?;
            Some(format!("{}: {warning}", file.option))
        })
    }
}

/// A handle to the thread that reads the files again. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rereader {
    shared: Arc<(Mutex<Wanted>, Condvar)>,
    has_files: bool,
}

/// The files to read again.
#[derive(Debug, Default)]
struct Wanted {
    files: BTreeSet<usize>,
    /// Whether a signal asks for all files.
    by_signal: bool,
    /// Whether to log it, too, if no password has changed.
    is_logged: bool,
}

impl Rereader {
    /// A handle for these files. Without a file, SIGHUP has no effect.
    pub(crate) fn new(files: &PasswordFiles) -> Rereader {
        Rereader {
            has_files: !files.0.is_empty(),
            ..Rereader::default()
        }
    }

    /// Whether there are files to read again.
    pub(crate) fn has_files(&self) -> bool {
        self.has_files
    }

    /// Asks for this file to be read, since a server refuses its password. Returns at once.
    pub(crate) fn ask(&self, source: PasswordSource) {
        self.wanted().files.insert(source.0.into());
        self.shared.1.notify_one();
    }

    /// Asks for all files to be read, after a signal. With `is_logged`, the log says it, too, if no
    /// password has changed.
    pub(crate) fn ask_all(&self, is_logged: bool) {
        let mut wanted = self.wanted();
        wanted.by_signal = true;
        wanted.is_logged |= is_logged;
        drop(wanted);
        self.shared.1.notify_one();
    }

    /// Starts the thread, which sends each new password to `passwords`.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn start(&self, files: &PasswordFiles, passwords: Passwords) -> io::Result<()> {
        if !self.has_files {
            return Ok(());
        }
        let (rereader, mut files) = (self.clone(), files.clone());
        let thread = thread::Builder::new().name("passwords".into());
        thread.spawn(move || {
            loop {
                let wanted = rereader.wait();
                let tell = |source, password: &str| passwords.tell(source, password);
                read_again(&mut files, &wanted, tell);
                thread::sleep(PAUSE);
            }
        })?;
        Ok(())
    }

    /// Waits until files are wanted, and takes them.
    fn wait(&self) -> Wanted {
        let is_idle = |wanted: &mut Wanted| wanted.files.is_empty() && !wanted.by_signal;
        let woken = self.shared.1.wait_while(self.wanted(), is_idle);
        std::mem::take(&mut *woken.unwrap_or_else(PoisonError::into_inner))
    }

    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        // Every change is one step, so the state is whole even after a panic.
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the wanted files, passes each new password to `tell`, and logs the results.
fn read_again(
    files: &mut PasswordFiles,
    wanted: &Wanted,
    mut tell: impl FnMut(PasswordSource, &str),
) {
    let mut is_quiet = true;
    for (index, file) in files.0.iter_mut().enumerate() {
        let is_wanted = wanted.by_signal || wanted.files.contains(&index);
        if !is_wanted || file.is_pipe {
            continue;
        }
        let shown = file.path.display().to_string();
        let shown = &*plain(&shown);
        match read_password(&file.path) {
            Ok(password) if password == file.password => file.trouble = None,
            Ok(password) => {
                file.trouble = None;
                file.password = password;
                tell(PasswordSource(index as u16), &file.password);
                is_quiet = false;
                info!(
                    file = shown,
                    "the password file has a new password: new connections use it, and those that \
                     are up stay"
                );
                if let Some(warning) = readable_by_others(&file.path) {
                    warn!("{}: {}", file.option, plain(&warning));
                }
            }
            Err(what) => {
                let is_news = file.trouble.as_ref() != Some(&what);
                is_quiet = false;
                if is_news || wanted.is_logged {
                    warn!(
                        "{}: {}; the password from before stays",
                        file.option,
                        plain(&what)
                    );
                }
                file.trouble = Some(what);
            }
        }
    }
    if is_quiet && wanted.is_logged {
        info!(
            signal = "SIGHUP",
            "the password files were read again, and no password has changed; respool reads other \
             options at the start only"
        );
    }
}

/// The password in a file, without its line end.
fn read_password(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let bytes = read_file(path, SECRET_BYTES_MAX)
        .map_err(|error| format!("`{shown}` cannot be read: {error}"))?;
    let text = String::from_utf8(bytes).map_err(|_| format!("`{shown}` is not UTF-8"))?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    parse_secret(text.strip_suffix('\r').unwrap_or(text))
        .map_err(|_| format!("`{shown}` is empty: it must hold a password"))
}

/// A warning if other users of the machine may read or write a file, and the remedy.
pub(crate) fn readable_by_others(path: &Path) -> Option<String> {
    let file = std::fs::metadata(path).ok().filter(|file| file.is_file())?;
    let mode = file.mode() & 0o7777;
    // If the file is another user's, respool may need its group to read it.
    let is_ours = file.uid() == rustix::process::geteuid().as_raw();
    let (group, others) = (is_ours && mode & 0o060 != 0, mode & 0o006 != 0);
    let readers = match (group, others) {
        (false, false) => return None,
        (true, false) => "its group",
        (false, true) => "every user",
        (true, true) => "its group and every user",
    };
    let path = path.display();
    let remedy = match is_ours {
        true => format!("say `chmod 600 {path}`"),
        // The group must come first, or respool could not read the file any more.
        false => format!(
            "say `chgrp GROUP {path}` and then `chmod 640 {path}`, with a group of respool's user"
        ),
    };
    Some(format!(
        "`{path}` holds a password and has the mode {mode:04o}: {readers} may read or change it; \
         {remedy}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_signal() -> Wanted {
        Wanted {
            by_signal: true,
            ..Wanted::default()
        }
    }

    /// The new passwords of a round of reading.
    fn new_passwords(files: &mut PasswordFiles, wanted: &Wanted) -> Vec<(u16, String)> {
        let mut new_passwords = Vec::new();
        read_again(files, wanted, |source, password| {
            new_passwords.push((source.0, password.to_owned()));
        });
        new_passwords
    }

    /// A file that is replaced by rename behind a symbolic link is read again. An empty or missing
    /// file leaves the password as it was.
    #[test]
    fn each_new_password_is_passed_on_once() {
        let directory = tempfile::tempdir().unwrap();
        let (a, b) = (directory.path().join("a"), directory.path().join("b"));
        let target = directory.path().join("1");
        std::fs::write(&target, "one\n").unwrap();
        std::os::unix::fs::symlink(&target, &a).unwrap();
        std::fs::write(&b, "other").unwrap();
        let mut files = PasswordFiles::default();
        let one = files.read("x", &a).unwrap();
        assert_eq!(one, ("one".to_owned(), PasswordSource(0)));
        assert_eq!(files.read("y", &b).unwrap().1, PasswordSource(1));
        assert_eq!(files.read("z", &a).unwrap(), one);
        assert!(!format!("{files:?}").contains("one"));
        assert_eq!(new_passwords(&mut files, &by_signal()), []);

        let next = directory.path().join("2");
        std::fs::write(&next, "two\r\n").unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&next, &link).unwrap();
        std::fs::rename(&link, &a).unwrap();
        std::fs::write(&b, "").unwrap();
        let only = |source| Wanted {
            files: [source].into(),
            ..Wanted::default()
        };
        assert_eq!(new_passwords(&mut files, &only(1)), []);
        assert_eq!(new_passwords(&mut files, &only(0)), [(0, "two".to_owned())]);
        assert_eq!(new_passwords(&mut files, &by_signal()), []);
        std::fs::write(&next, "one").unwrap();
        std::fs::remove_file(&b).unwrap();
        assert_eq!(
            new_passwords(&mut files, &by_signal()),
            [(0, "one".to_owned())]
        );
        std::fs::write(&b, "other").unwrap();
        assert_eq!(new_passwords(&mut files, &by_signal()), []);
    }

    /// Several requests for one file are one read.
    #[test]
    fn requests_to_read_are_joined() {
        let rereader = Rereader::default();
        for source in [3, 1, 3] {
            rereader.ask(PasswordSource(source));
        }
        assert_eq!(rereader.wait().files, [1, 3].into());
        rereader.ask_all(true);
        rereader.ask_all(false);
        let wanted = rereader.wait();
        assert!(wanted.by_signal && wanted.is_logged && wanted.files.is_empty());
    }
}

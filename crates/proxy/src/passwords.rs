//! Files that hold passwords: read at the start, and again while respool runs.
//!
//! ```text
//!   a server refuses a password ──► its file is read again ──► a new password ──► all workers
//!   SIGHUP ───────────────────────► all files are                  none ──► the old one stays
//! ```
//!
//! A thread of its own reads them: a file system may take long, and no client waits for it.

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

/// Bytes of a password file. At it, the file is refused: a device may never end.
const SECRET_BYTES_MAX: u64 = 64 << 10;

/// The pause between two rounds of reading. Servers may refuse a password more often than that.
const PAUSE: Duration = Duration::from_millis(100);

/// The files that hold passwords, each once. The index of a file is its [`PasswordSource`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PasswordFiles(Vec<PasswordFile>);

/// A file that holds a password.
#[derive(Clone, PartialEq, Eq)]
struct PasswordFile {
    path: PathBuf,
    /// The option that names it, as warnings show it.
    option: String,
    password: String,
    /// It is a pipe, and gives its password once.
    is_pipe: bool,
    /// Why it could not be read again, as the log has it.
    trouble: Option<String>,
}

impl fmt::Debug for PasswordFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())
    }
}

impl PasswordFiles {
    /// Reads a file that an option names. One that was read before keeps its source.
    ///
    /// # Errors
    /// Why the file gives no password.
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

/// By which the files are read again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rereader {
    shared: Arc<(Mutex<Wanted>, Condvar)>,
    has_files: bool,
}

/// The files that are to be read again.
#[derive(Debug, Default)]
struct Wanted {
    files: BTreeSet<usize>,
    /// A signal asks for all of them.
    by_signal: bool,
    /// The log is to say it, too, if nothing has changed.
    is_told: bool,
}

impl Rereader {
    /// Without a file, there is nothing to read, and SIGHUP has no effect.
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

    /// A server refuses the password of this file. Returns at once.
    pub(crate) fn ask(&self, source: PasswordSource) {
        self.wanted().files.insert(source.0.into());
        self.shared.1.notify_one();
    }

    /// A signal asks for all files. `is_told`: the log says it, too, if nothing has changed.
    pub(crate) fn ask_all(&self, is_told: bool) {
        let mut wanted = self.wanted();
        wanted.by_signal = true;
        wanted.is_told |= is_told;
        drop(wanted);
        self.shared.1.notify_one();
    }

    /// Starts the thread that reads, which sends each new password to `passwords`.
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

    fn wait(&self) -> Wanted {
        let is_idle = |wanted: &mut Wanted| wanted.files.is_empty() && !wanted.by_signal;
        let woken = self.shared.1.wait_while(self.wanted(), is_idle);
        std::mem::take(&mut *woken.unwrap_or_else(PoisonError::into_inner))
    }

    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        // Every change is a single step.
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the files that are wanted, sends new passwords on, and logs them.
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
                if is_news || wanted.is_told {
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
    if is_quiet && wanted.is_told {
        info!(
            signal = "SIGHUP",
            "the password files were read again, and no password has changed; other options are \
             read at the start only"
        );
    }
}

/// The password in a file, without the end of its line.
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
    // Where the file is another user's, respool may need its group to read it.
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
        // Without its group first, respool could not read it any more.
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

    /// The passwords that a round of reading found.
    fn told(files: &mut PasswordFiles, wanted: &Wanted) -> Vec<(u16, String)> {
        let mut told = Vec::new();
        read_again(files, wanted, |source, password| {
            told.push((source.0, password.to_owned()));
        });
        told
    }

    /// A file that is replaced by rename, behind a symbolic link, is read anew. One that is empty or
    /// gone leaves the password as it was.
    #[test]
    fn files_are_read_again_and_told_once_for_each_change() {
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
        assert_eq!(told(&mut files, &by_signal()), []);

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
        assert_eq!(told(&mut files, &only(1)), []);
        assert_eq!(told(&mut files, &only(0)), [(0, "two".to_owned())]);
        assert_eq!(told(&mut files, &by_signal()), []);
        std::fs::write(&next, "one").unwrap();
        std::fs::remove_file(&b).unwrap();
        assert_eq!(told(&mut files, &by_signal()), [(0, "one".to_owned())]);
        std::fs::write(&b, "other").unwrap();
        assert_eq!(told(&mut files, &by_signal()), []);
    }

    /// However often it is asked for, the thread finds it once.
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
        assert!(wanted.by_signal && wanted.is_told && wanted.files.is_empty());
    }
}

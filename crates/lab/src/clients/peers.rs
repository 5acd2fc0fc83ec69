//! The client libraries.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::ClientCase;

/// The loop of the libraries for Python.
const PYTHON_LOOP: &str = include_str!("load.py");

/// A client library, and its way of waiting.
#[derive(Clone, Debug)]
pub struct ClientLibrary {
    /// Its name in tables.
    pub name: &'static str,
    /// The name of the peer with which it is compared.
    pub base: &'static str,
    /// The word for the loop.
    word: &'static str,
    program: Program,
}

#[derive(Clone, Debug)]
enum Program {
    /// This program.
    Lab(PathBuf),
    /// The loop for Python, by this interpreter.
    Python(PathBuf),
}

/// All libraries.
///
/// # Errors
/// The path of this program is unknown.
pub fn all(python: &Path) -> Result<Vec<ClientLibrary>, String> {
    let lab = std::env::current_exe().map_err(|error| format!("its own path: {error}"))?;
    let rust = |name, base, word| ClientLibrary {
        name,
        base,
        word,
        program: Program::Lab(lab.clone()),
    };
    let python = |name, base, word| ClientLibrary {
        name,
        base,
        word,
        program: Program::Python(python.to_owned()),
    };
    const MULTIPLEXED: &str = "Rust: redis-rs, multiplexed";
    const THREADS: &str = "Rust: redis-rs, threads with a connection each";
    const POOL: &str = "Python: redis-py, threads, pool of 50";
    const TASKS: &str = "Python: redis-py, asyncio, pool of 50";
    Ok(vec![
        rust(MULTIPLEXED, MULTIPLEXED, "redis-rs-multiplexed"),
        rust("Rust: respool, task of tokio", MULTIPLEXED, "respool-task"),
        rust(
            "Rust: respool, tasks and its thread",
            MULTIPLEXED,
            "respool-thread",
        ),
        rust(THREADS, THREADS, "redis-rs-threads"),
        rust("Rust: respool, threads", THREADS, "respool-threads"),
        python(POOL, POOL, "redis-py-threads"),
        python("Python: respool, threads", POOL, "respool-threads"),
        python("Python: GLIDE sync, threads", POOL, "glide-threads"),
        python(TASKS, TASKS, "redis-py-tasks"),
        python("Python: respool, asyncio", TASKS, "respool-tasks"),
        python("Python: GLIDE, asyncio", TASKS, "glide-tasks"),
    ])
}

impl ClientLibrary {
    /// Its process for a case.
    pub fn command(&self, url: &str, case: ClientCase) -> Command {
        let mut command = self.start();
        command.args([
            self.word,
            url,
            &case.callers.to_string(),
            case.verb.name(),
            &case.verb.value_bytes().to_string(),
            &case.seconds.to_string(),
        ]);
        command
    }

    /// A process that fails if the library is missing.
    pub fn probe(&self) -> Command {
        let mut command = self.start();
        command.args([self.word, "probe"]);
        command
    }

    fn start(&self) -> Command {
        match &self.program {
            Program::Lab(path) => {
                let mut command = Command::new(path);
                command.arg("client-load");
                command
            }
            Program::Python(path) => {
                let mut command = Command::new(path);
                command.args(["-c", PYTHON_LOOP]);
                command
            }
        }
    }
}

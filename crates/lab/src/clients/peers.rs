//! The client libraries.

use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use super::ClientCase;

/// The loop of the libraries for Python.
const PYTHON_LOOP: &str = include_str!("load.py");

/// Names of the libraries.
pub(super) const REDIS_RS_MULTIPLEXED: &str = "Rust: redis-rs, multiplexed";
pub(super) const OURS_TASK: &str = "Rust: respool, task of tokio";
pub(super) const OURS_TASKS_AND_THREAD: &str = "Rust: respool, tasks and its thread";
pub(super) const REDIS_RS_THREADS: &str = "Rust: redis-rs, threads with a connection each";
pub(super) const OURS_THREADS: &str = "Rust: respool, threads";
pub(super) const REDIS_PY_THREADS: &str = "Python: redis-py, threads, pool of 50";
pub(super) const OURS_PYTHON_THREADS: &str = "Python: respool, threads";
pub(super) const GLIDE_THREADS: &str = "Python: GLIDE sync, threads";
pub(super) const REDIS_PY_TASKS: &str = "Python: redis-py, asyncio, pool of 50";
pub(super) const OURS_PYTHON_TASKS: &str = "Python: respool, asyncio";
pub(super) const GLIDE_TASKS: &str = "Python: GLIDE, asyncio";
pub(super) const JEDIS: &str = "Java: Jedis, pool of 50";
pub(super) const JEDIS_200: &str = "Java: Jedis, pool of 200";
pub(super) const OURS_JAVA: &str = "Java: respool, threads";
pub(super) const OURS_JAVA_VIRTUAL: &str = "Java: respool, virtual threads";
pub(super) const LETTUCE: &str = "Java: Lettuce, one connection";
pub(super) const GLIDE_JAVA: &str = "Java: GLIDE";

/// The programs that run the libraries.
#[derive(Args, Clone, Debug)]
pub struct PeerPrograms {
    /// The interpreter of the libraries for Python.
    #[arg(long, value_name = "PATH", default_value = "python3")]
    pub python: PathBuf,
    /// The virtual machine of the libraries for Java.
    #[arg(long, value_name = "PATH", default_value = "java")]
    pub java: PathBuf,
    /// The jar of the libraries for Java. `make java-peers` builds it.
    #[arg(
        long,
        value_name = "JAR",
        default_value = "target/java-peers/java-peers.jar"
    )]
    pub java_peers: PathBuf,
}

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
    /// The jar with the loop for Java, by this virtual machine.
    Java { java: PathBuf, jar: PathBuf },
}

/// All libraries.
///
/// # Errors
/// The path of this program is unknown.
pub fn all(programs: &PeerPrograms) -> Result<Vec<ClientLibrary>, String> {
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
        program: Program::Python(programs.python.clone()),
    };
    let java = |name, base, word| ClientLibrary {
        name,
        base,
        word,
        program: Program::Java {
            java: programs.java.clone(),
            jar: programs.java_peers.clone(),
        },
    };
    Ok(vec![
        rust(
            REDIS_RS_MULTIPLEXED,
            REDIS_RS_MULTIPLEXED,
            "redis-rs-multiplexed",
        ),
        rust(OURS_TASK, REDIS_RS_MULTIPLEXED, "respool-task"),
        rust(
            OURS_TASKS_AND_THREAD,
            REDIS_RS_MULTIPLEXED,
            "respool-thread",
        ),
        rust(REDIS_RS_THREADS, REDIS_RS_THREADS, "redis-rs-threads"),
        rust(OURS_THREADS, REDIS_RS_THREADS, "respool-threads"),
        python(REDIS_PY_THREADS, REDIS_PY_THREADS, "redis-py-threads"),
        python(OURS_PYTHON_THREADS, REDIS_PY_THREADS, "respool-threads"),
        python(GLIDE_THREADS, REDIS_PY_THREADS, "glide-threads"),
        python(REDIS_PY_TASKS, REDIS_PY_TASKS, "redis-py-tasks"),
        python(OURS_PYTHON_TASKS, REDIS_PY_TASKS, "respool-tasks"),
        python(GLIDE_TASKS, REDIS_PY_TASKS, "glide-tasks"),
        java(JEDIS, JEDIS, "jedis-threads"),
        java(JEDIS_200, JEDIS, "jedis-200-threads"),
        java(OURS_JAVA, JEDIS, "respool-threads"),
        java(OURS_JAVA_VIRTUAL, JEDIS, "respool-virtual"),
        java(LETTUCE, JEDIS, "lettuce-threads"),
        java(GLIDE_JAVA, JEDIS, "glide-threads"),
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
    ///
    /// # Errors
    /// The loop of its language is missing.
    pub fn probe(&self) -> Result<Command, String> {
        if let Program::Java { jar, .. } = &self.program
            && !jar.exists()
        {
            let jar = jar.display();
            return Err(format!("there is no {jar}; `make java-peers` builds it"));
        }
        let mut command = self.start();
        command.args([self.word, "probe"]);
        Ok(command)
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
            Program::Java { java, jar } => {
                let mut command = Command::new(java);
                command.arg("-jar").arg(jar);
                command
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::probe;

    /// Libraries without their jar or virtual machine are named as missing, with the reason.
    #[test]
    fn java_library_without_its_jar_is_missing() {
        let programs = |jar: PathBuf| PeerPrograms {
            python: "no-such-python".into(),
            java: "no-such-java".into(),
            java_peers: jar,
        };
        let problem = |jar: PathBuf| {
            let peers = all(&programs(jar)).expect("its own path is known");
            let peer = peers.into_iter().find(|peer| peer.name == OURS_JAVA);
            probe(&peer.expect("it is in the list")).expect_err("it cannot run")
        };
        let built = std::env::current_exe().expect("its own path is known");
        assert!(problem("no-such.jar".into()).contains("no-such.jar; `make java-peers` builds it"));
        assert!(problem(built).contains("no-such-java: "));
    }
}

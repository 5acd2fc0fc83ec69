//! The example in C, before a real server.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use respool_testkit::servers::{ServerProcess, any_server};

/// The folder of the library: Cargo builds it beside the test programs.
fn libraries() -> PathBuf {
    let program = std::env::current_exe().expect("the test has a program");
    program.parent().expect("it is in a folder").to_owned()
}

fn compiled(folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = folder.join("client");
    let libraries = libraries();
    let output = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g"])
        .arg(source.join("examples/client.c"))
        .arg("-I")
        .arg(source.join("include"))
        .arg("-L")
        .arg(&libraries)
        .arg("-lrespool")
        .arg(format!("-Wl,-rpath,{}", libraries.display()))
        .arg("-o")
        .arg(&program)
        .output()
        .expect("there is a C compiler");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    program
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn example_in_c_has_all_its_replies() {
    let server = ServerProcess::start::<&str>(&any_server(), &[]).expect("the server starts");
    let folder = tempfile::tempdir().expect("a folder");
    let program = compiled(folder.path());
    let url = format!("redis://{}", server.address());
    let output = Command::new(&program).arg(url).output().expect("it runs");
    let text = text_of(&output);
    assert!(output.status.success(), "{text}");
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    assert_eq!(lines[0], "SET: reply: +OK");
    assert!(lines[1].starts_with("INCR: server: ERR value is not an integer"));
    assert!(lines[2].starts_with("SELECT: invalid: SELECT changes its connection"));
    assert_eq!(lines[3], "many calls: 1000 replies, sum of tokens 499500");
    assert_eq!(lines[4], "session: as expected");

    let output = Command::new(&program)
        .arg("http://x")
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text_of(&output).starts_with("open: invalid: backend"),
        "{output:?}"
    );
    let output = Command::new(&program).output().expect("it runs");
    assert!(text_of(&output).contains("is NULL"), "{output:?}");
}

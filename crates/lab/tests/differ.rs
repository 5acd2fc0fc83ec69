//! `respool-lab differ --replay` runs a script and names the line that it cannot read.

use std::path::Path;
use std::process::{Command, Output};

use respool_testkit::servers;

const LAB: &str = env!("CARGO_BIN_EXE_respool-lab");

fn lab(args: &[&str]) -> Output {
    Command::new(LAB)
        .args(args)
        .output()
        .expect("the lab starts")
}

/// A script can be replayed. An invalid one is named with its line.
#[test]
fn script_is_replayed_or_its_bad_line_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("script");
    let path = file.to_str().expect("a plain path");
    let respool = Path::new(LAB).with_file_name("respool");
    std::fs::write(&file, "connections 1\nround\n0 raw odd\n").expect("written");
    let output = lab(&["differ", "--replay", path, "--respool", LAB]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("line 3"),
        "{said}"
    );
    if !respool.is_file() {
        let missing = format!("{} is not built", respool.display());
        return servers::leave_out("respool", missing);
    }
    std::fs::write(
        &file,
        "connections 2\nround\n0 SET k \"a b\"\n0 cut 5\n1 PING\nround\n1 GET k\n",
    )
    .expect("written");
    let output = lab(&["differ", "--replay", path]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("no difference"),
        "{said}"
    );
}

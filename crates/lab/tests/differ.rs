//! The differential tester is itself tested: it finds nothing where there is nothing, and everything that is planted.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use respool_lab::differ::{self, Settings};
use respool_lab::servers::{self, Flavour};

const LAB: &str = env!("CARGO_BIN_EXE_respool-lab");

/// The seed of this run: RESPOOL_TEST_SEED, or the clock's.
fn seed() -> u64 {
    let given = std::env::var("RESPOOL_TEST_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |now| now.as_secs() % 1_000_000)
    })
}

fn settings(flavour: Flavour) -> Settings {
    let seed = seed();
    eprintln!("{}: RESPOOL_TEST_SEED={seed}", flavour.name());
    Settings {
        seed,
        flavour,
        // Where many tests share few cores, a reply may take its time; none is ever waited for that does come.
        patience: Duration::from_secs(20),
        ..Settings::default()
    }
}

#[test]
fn two_servers_with_nothing_between_never_differ() {
    for flavour in Flavour::ALL {
        if let Err(reason) = servers::find(flavour) {
            servers::leave_out("servers", reason);
            continue;
        }
        let settings = Settings {
            cases: 6,
            time_max: Some(Duration::from_secs(3)),
            ..settings(flavour)
        };
        differ::check_bare(&settings, &mut |line| eprintln!("{line}"))
            .unwrap_or_else(|problem| panic!("{problem}"));
    }
}

#[test]
fn a_swapped_dropped_duplicated_altered_or_misrouted_reply_cannot_pass() {
    let settings = settings(Flavour::Redis70);
    differ::check_planted(&settings, &mut |line| eprintln!("{line}"))
        .unwrap_or_else(|problem| panic!("{problem}"));
}

fn lab(args: &[&str]) -> Output {
    Command::new(LAB)
        .args(args)
        .output()
        .expect("the lab starts")
}

#[test]
fn a_script_can_be_replayed_and_a_bad_one_is_named_with_its_line() {
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

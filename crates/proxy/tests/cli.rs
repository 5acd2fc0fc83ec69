//! The binary as a user or a supervisor meets it: its output, where it goes, and its exit code.

// A surprise fails the test, and the panic names the place.
#![allow(clippy::unwrap_used)]

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const RESPOOL: &str = env!("CARGO_BIN_EXE_respool");

/// How long anything may take before a test says that it does not happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// The program without the variables of the test run itself, such as RESPOOL_VENV: they would be
/// settings of it, or a warning.
fn respool() -> Command {
    let mut command = Command::new(RESPOOL);
    for (name, _) in env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"RESPOOL") {
            command.env_remove(name);
        }
    }
    command
}

fn run(arguments: &[&str]) -> Output {
    let mut command = respool();
    command.args(arguments);
    command.output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("respool writes UTF-8")
}

/// Exit code, standard output, standard error.
fn said(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = run(arguments);
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn help_and_version_are_for_standard_output_and_succeed() {
    for arguments in [
        &["--help"][..],
        &["-h"],
        &["help", "serve"],
        &["serve", "--help"],
        &["check", "-h"],
    ] {
        let (code, out, err) = said(arguments);
        assert_eq!((code, err.as_str()), (Some(0), ""), "{arguments:?}");
        assert!(out.contains("Usage: respool "), "{arguments:?}: {out}");
    }
    let (code, out, _) = said(&["--version"]);
    assert_eq!(code, Some(0));
    assert_eq!(out, format!("respool {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = respool();
    let output = command
        .args(["serve", "--help"])
        .stdout(writer)
        .stderr(Stdio::piped());
    let output = output.spawn().unwrap().wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), text(&output.stderr)),
        (Some(0), String::new())
    );
}

#[test]
fn a_wrong_command_line_is_one_clear_line_each_and_exit_code_2() {
    for (arguments, errors) in [
        (&[][..], &["error: a command is missing"][..]),
        (
            &["sevre"],
            &["error: unknown command `sevre`: did you mean `serve`?"],
        ),
        (
            &["serve", "--backend", "redisss://:SECRET@h", "--thread", "2"],
            &[
                "error: unknown option `--thread`: did you mean `--threads`?",
                "error: --backend: the scheme must be redis://",
            ],
        ),
        (
            &["serve", "--config", "/nonexistent"],
            &["error: /nonexistent: cannot be read"],
        ),
        (
            &["redis://:SECRET@h"],
            &["error: unknown command `redis://...`"],
        ),
        (
            &["check", "redis://:SECRET@h"],
            &["error: unexpected `redis://...`: a server is given by --backend URL"],
        ),
        (
            &["check", "--fuse", "no"],
            &["error: --fuse: its value stands behind an equals sign: --fuse=no"],
        ),
        (
            &["check", "--print=redis://:SECRET@h"],
            &["error: unexpected argument for option '--print': \"redis://..."],
        ),
        (
            &["serve", "--redis://:SECRET@h"],
            &["error: unknown option `--redis://...`"],
        ),
        (
            &["check", "/nonexistent", "user:SECRET@h"],
            &[
                "error: a second file, `...@h`",
                "error: /nonexistent: cannot be read",
            ],
        ),
    ] {
        let (code, out, err) = said(arguments);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{arguments:?}");
        let lines: Vec<_> = err.lines().collect();
        assert_eq!(lines.len(), errors.len(), "{err}");
        for (line, error) in lines.iter().zip(errors) {
            assert!(line.starts_with(error), "{line}");
        }
        assert!(!err.contains("SECRET"), "{err}");
    }
}

/// `check` warns of an old name of an option, and uses its value.
#[test]
fn check_warns_of_an_old_option_name() {
    let (code, out, err) = said(&["check", "--print", "--stranger-stall-ms=1s"]);
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(
        err,
        "warning: --stranger-stall-ms: the option has a new name, `head-of-line-stall-ms`; \
         the old one works until the next version\n"
    );
    assert!(
        out.contains("head-of-line-stall-ms = 1000  # command line\n"),
        "{out}"
    );
}

#[test]
fn check_tells_every_problem_of_a_file_and_starts_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (good, bad) = (
        directory.path().join("good.toml"),
        directory.path().join("bad.toml"),
    );
    fs::write(
        &good,
        "listen = ['127.0.0.1:1234']\nbackend = 'redis://:SECRET@127.0.0.1:1/2'\nthreads = 3\n",
    )
    .unwrap();
    // A password stands in it.
    fs::set_permissions(&good, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&bad, "threads = 0\n  max_delay_us = 1\nlinks-max = 'x'\n").unwrap();

    let (code, out, err) = said(&["check", good.to_str().unwrap()]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let summary =
        "good: listen 127.0.0.1:1234; backend redis://127.0.0.1:1/2; 3 workers; no password\n";
    assert_eq!(out, summary);

    let (code, out, err) = said(&["check", "--print", good.to_str().unwrap()]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(
        out.contains("threads = 3  # ") && out.contains("good.toml:3:1\n"),
        "{out}"
    );
    assert!(
        out.contains("flush-rule = \"balanced\"  # default\n") && !out.contains("SECRET"),
        "{out}"
    );

    let bad = bad.to_str().unwrap();
    let (code, _, err) = said(&["check", bad]);
    assert_eq!(code, Some(2));
    let places: Vec<_> = err
        .lines()
        .map(|line| line.replace(bad, "bad.toml"))
        .collect();
    assert_eq!(places.len(), 3, "{err}");
    for place in [
        "bad.toml:1:11: threads: ",
        "bad.toml:2:3: unknown key",
        "bad.toml:3:13: links-max",
    ] {
        assert!(
            places
                .iter()
                .any(|line| line.starts_with(&format!("error: {place}"))),
            "{err}"
        );
    }
}

/// A warning is no error: the exit code stays 0. A listener of this machine alone has none.
#[test]
fn check_warns_of_listeners_that_others_reach() {
    let open = "every client that reaches 0.0.0.0:1 may use the server";
    let plain = "clients of 0.0.0.0:1 use no TLS";
    for (arguments, warnings) in [
        (&["--listen", "127.0.0.1:1"][..], &[][..]),
        (&["--listen", ":1"], &[open, plain]),
        (&["--listen", ":1", "--password", "p"], &[plain]),
        (
            &["--backend", "rediss://h", "--server-tls-verify=no"],
            &["certificates of the servers are not checked"],
        ),
        (&["--backend", "redis://:SECRET@127.0.0.1"], &[]),
        (&["--backend", "rediss://:SECRET@10.0.0.1"], &[]),
        (&["--backend", "redis://10.0.0.1"], &[]),
        (
            &["--backend", "redis://:SECRET@10.0.0.1"],
            &["the password for 10.0.0.1:6379 is sent without TLS"],
        ),
        (
            &[
                "--backend",
                "redis-cluster://127.0.0.1,h",
                "--backend-password=SECRET",
            ],
            &["the password for h:6379 is sent without TLS"],
        ),
        (&["--metrics-listen", "127.0.0.1:1"], &[]),
        (&["--metrics-listen", "unix:a"], &[]),
        (
            &["--metrics-listen", ":1"],
            &["every machine that reaches 0.0.0.0:1 can read the metrics"],
        ),
    ] {
        let (code, out, err) = said(&[&["check"], arguments].concat());
        assert_eq!(code, Some(0), "{err}");
        assert!(out.starts_with("good: "), "{out}");
        let lines: Vec<_> = err.lines().collect();
        assert_eq!(lines.len(), warnings.len(), "{err}");
        for (line, warning) in lines.iter().zip(warnings) {
            assert!(line.starts_with(&format!("warning: {warning}")), "{line}");
            assert!(!line.contains("SECRET"), "{line}");
        }
    }
}

/// A socket in the file system without a password has a warning, unless its mode or a directory
/// above it keeps other users out.
#[test]
fn check_warns_of_sockets_for_every_user() {
    let private = tempfile::tempdir().unwrap();
    let inner = private.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let socket = inner.join("respool.sock").display().to_string();
    let listen = format!("unix:{socket}");
    let chmod = |path: &std::path::Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    chmod(&inner, 0o755);
    let warning = format!("warning: every user of this machine may use the server by {listen}: ");
    let warns = |more: &[&str]| {
        let (code, _, err) = said(&[&["check", "--listen", &listen], more].concat());
        assert_eq!(code, Some(0), "{err}");
        assert!(err.is_empty() || err.starts_with(&warning), "{err}");
        !err.is_empty()
    };
    chmod(private.path(), 0o700);
    assert!(!warns(&[]), "the directory is for its user alone");
    chmod(private.path(), 0o755);
    assert!(warns(&[]));
    assert!(!warns(&["--socket-mode", "0660"]));
    assert!(!warns(&["--password", "p"]));
}

/// Sockets in the file system that cannot be made are problems at their places, and no file is
/// made. Only a directory in /run may be missing.
#[test]
fn check_finds_sockets_that_cannot_be_made() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (file, missing) = (path("respool.toml"), path("missing"));
    let config = |socket: &str, listen: &str, metrics: &str, control: &str| {
        format!(
            "control-socket = '{control}'\nmetrics-listen = 'unix:{metrics}'\n\
             [pool.a]\nlisten = [\n  '127.0.0.1:1',\n  'unix:{listen}',\n]\n\
             tls-listen = 'unix:{socket}'\nbackend = 'redis://h'\n"
        )
    };
    let new = [path("a"), path("b"), path("c"), path("d")];
    // No socket in it is for every user.
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let plain = |text: String| text.replace("tls-listen = 'unix:", "# 'unix:");
    fs::write(&file, plain(config(&new[0], &new[1], &new[2], &new[3]))).unwrap();
    let (code, _, errors) = said(&["check", &file]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(new.iter().all(|path| !fs::exists(path).unwrap()));

    let at = |name: &str| format!("{missing}/{name}");
    fs::write(&file, config(&at("t"), &at("l"), &at("m"), &at("c"))).unwrap();
    let (code, _, errors) = said(&["check", &file]);
    assert_eq!(code, Some(2), "{errors}");
    for (place, socket) in [
        ("6:3: pool.a.listen", "l"),
        ("8:14: pool.a.tls-listen", "t"),
        ("2:1: metrics-listen", "m"),
        ("1:1: control-socket", "c"),
    ] {
        let problem = format!(
            "error: {file}:{place}: no socket can be made at `{}`: No such file or directory",
            at(socket)
        );
        assert!(errors.contains(&problem), "{problem}: {errors}");
    }
    assert!(!fs::exists(&missing).unwrap());

    let in_run = "/run/respool-of-no-test/c";
    let text = plain(config(&new[0], &new[1], &format!("{file}/m"), in_run));
    fs::write(&file, text).unwrap();
    let (code, _, errors) = said(&["check", &file]);
    assert_eq!(code, Some(2), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    let problem =
        format!("2:1: metrics-listen: no socket can be made at `{file}/m`: Not a directory");
    assert!(errors.contains(&problem), "{errors}");
    fs::write(&file, plain(config(&new[0], &new[1], &new[2], in_run))).unwrap();
    let (code, _, errors) = said(&["check", &file]);
    assert_eq!(code, Some(0), "{errors}");
    let warning = format!(
        "warning: {file}:1:1: control-socket: the directory of `{in_run}` does not exist here"
    );
    assert!(errors.starts_with(&warning), "{errors}");
}

/// A path with another file, or in a file system without room for files, takes no socket.
#[test]
fn check_finds_paths_that_take_no_socket() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().display().to_string();
    let file = format!("{folder}/a.toml");
    fs::write(&file, "").unwrap();
    let left = format!("{folder}/left.sock");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    for (path, problem) in [
        (file.as_str(), Some("exists and is not a socket; remove it")),
        (&folder, Some("exists and is not a socket; remove it")),
        (
            "/proc/x.sock",
            Some("no socket can be made at `/proc/x.sock`"),
        ),
        (&left, None),
    ] {
        let (code, _, err) = said(&["check", "--listen", &format!("unix:{path}")]);
        let expected = problem.map_or(Some(0), |_| Some(2));
        assert_eq!(code, expected, "{path}: {err}");
        assert!(err.contains(problem.unwrap_or_default()), "{path}: {err}");
    }
}

/// A user without rights is told that it cannot give its socket away, by the check and by the
/// start, and that it cannot write the directory of the control socket.
#[test]
fn errors_of_sockets_name_the_cause() {
    let directory = tempfile::tempdir().unwrap();
    let closed = tempfile::tempdir().unwrap();
    for (path, mode) in [(directory.path(), 0o777), (closed.path(), 0o555)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let program = directory.path().join("respool");
    fs::copy(RESPOOL, &program).unwrap();
    let said = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.env_clear().args(arguments);
        if rustix::process::geteuid().is_root() {
            command.uid(65_534).gid(65_534);
        }
        let output = command.output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let listen = format!("unix:{}/l.sock", directory.path().display());
    let owner = ["--listen", &listen, "--socket-owner", "root"];
    let (code, err) = said(&[&["check"][..], &owner].concat());
    assert_eq!(code, Some(2), "{err}");
    assert!(
        err.contains("--socket-owner: `root` is not the user"),
        "{err}"
    );
    let group = ["--listen", &listen, "--socket-group", "0"];
    let (code, err) = said(&[&["check"][..], &group].concat());
    assert_eq!(code, Some(2), "{err}");
    assert!(
        err.contains("--socket-group: `0` has not the user"),
        "{err}"
    );
    let (code, err) = said(&[&["serve"][..], &owner].concat());
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("only root may give a socket"), "{err}");
    let control = format!("{}/c.sock", closed.path().display());
    let (code, err) = said(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--control-socket",
        &control,
    ]);
    assert_eq!(code, Some(1), "{err}");
    assert!(
        err.contains("must be allowed to write the directory"),
        "{err}"
    );
    assert!(!err.contains("seccomp"), "{err}");
}

#[test]
fn check_shows_every_pool_with_its_problems() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pools.toml");
    let file = path.to_str().unwrap();
    let pools = "[pool.a]\nlisten = '127.0.0.1:1'\nbackend = 'redis://:SECRET@h:1'\n\
                 [pool.b]\nlisten = ['127.0.0.1:2', 'unix:/b']\nbackend = 'redis-cluster://h:2'\n";
    // Without the warnings about a socket for all and about a password without TLS.
    let own = pools.replace("@h:1", "@127.0.0.1:3");
    let content = format!("threads = 3\nsocket-mode = '0600'\n{own}");
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let (code, out, err) = said(&["check", file]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let summary = "good: pool a: listen 127.0.0.1:1, backend redis://127.0.0.1:3/0; pool b: listen \
                   127.0.0.1:2, unix:/b, backend redis-cluster://h:2/0; 3 workers; no password\n";
    assert_eq!(out, summary);
    // The printed file has the same settings.
    let (code, printed, _) = said(&["check", "--print", file]);
    assert_eq!(code, Some(0));
    assert!(
        printed.contains("\n[pool.b]  # ") && !printed.contains("SECRET"),
        "{printed}"
    );
    fs::write(&path, printed).unwrap();
    assert_eq!(
        said(&["check", file]),
        (Some(0), summary.into(), String::new())
    );

    fs::write(
        &path,
        pools.replace(":2'", ":1'").replace("redis-", "rdeis-"),
    )
    .unwrap();
    let (code, out, err) = said(&["check", file, "--backend", "redis://h"]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    let mut lines: Vec<_> = err.lines().map(|line| line.replace(file, "f")).collect();
    lines.sort();
    for (line, start) in lines.iter().zip([
        "error: --backend: excludes `pool`",
        "error: f:5:11: pool.b.listen: `127.0.0.1:1` leads to the pool `a` already",
        "error: f:6:11: pool.b.backend: the scheme must be",
    ]) {
        assert!(line.starts_with(start), "{line}");
    }
    assert_eq!(lines.len(), 3, "{err}");
}

#[test]
fn a_password_may_come_from_the_environment() {
    let mut command = respool();
    let output = command
        .arg("check")
        .env("RESPOOL_PASSWORD", "SECRET")
        .output()
        .unwrap();
    let out = text(&output.stdout);
    assert!(
        out.ends_with("; 1 user\n") && !out.contains("SECRET"),
        "{out}"
    );
}

/// A private server that cannot start gives one clear line and exit code 1.
#[test]
fn spawn_failure_is_one_line_and_exit_code_1() {
    for (arguments, error) in [
        (
            &["--spawn"][..],
            "--spawn: PATH has no redis-server and no valkey-server: install one",
        ),
        (
            &["--spawn", "--spawn-program", "no-such"],
            "there is no program `no-such`",
        ),
        (
            &["--spawn", "--spawn-program", "/bin/false"],
            "/bin/false ended at once (exit status: 1)",
        ),
    ] {
        let mut command = respool();
        let output = command
            .arg("serve")
            .args(arguments)
            .env("PATH", "/nonexistent")
            .output();
        let output = output.unwrap();
        let err = text(&output.stderr);
        assert_eq!(
            (output.status.code(), err.lines().count()),
            (Some(1), 1),
            "{err}"
        );
        assert!(err.contains(error), "{err}");
    }
}

#[test]
fn an_address_in_use_is_one_clear_line_and_exit_code_1() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for threads in ["1", "2"] {
        let arguments = ["serve", "--listen", &address, "--threads", threads];
        let (code, _, err) = said(&arguments);
        assert_eq!((code, err.lines().count()), (Some(1), 1), "{err}");
        let told = err.contains(&address) && err.contains("choose another by --listen");
        assert!(told, "{err}");
    }
}

/// A start names every address that cannot be bound, each with its place.
#[test]
fn every_address_that_cannot_be_bound_is_named() {
    let taken = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [first, second, third] = taken.each_ref().map(|taken| taken.local_addr().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("respool.toml");
    let listen = format!("threads = 2\nlisten = ['{first}', '127.0.0.1:0', '{second}']\n");
    fs::write(&file, listen).unwrap();
    let file = file.display().to_string();
    let named = |address| format!("cannot start: {file}:2:1: listen: cannot listen on {address}: ");
    let (first, second) = (named(first), named(second));
    let metrics = format!("--metrics-listen={third}");
    let of_metrics = format!("cannot start: --metrics-listen: cannot listen on {third}: ");
    let control = format!("--control-socket={}/missing/c", folder.path().display());
    let of_control = "cannot start: --control-socket: cannot listen on the control socket ";
    for (more, expected) in [
        (&[][..], vec![&first[..], &second]),
        (
            &[metrics.as_str(), control.as_str()],
            vec![&first, &second, &of_metrics, of_control],
        ),
    ] {
        let arguments = [&["serve", "--config", &file], more].concat();
        let (code, _, err) = said(&arguments);
        assert_eq!(code, Some(1), "{err}");
        assert_eq!(err.lines().count(), expected.len(), "{err}");
        for (line, text) in err.lines().zip(expected) {
            assert!(line.contains(text), "{text}: {err}");
        }
    }
}

/// A server of `--spawn` serves, and SIGTERM ends it together with respool.
#[test]
fn spawned_server_serves_and_ends_with_sigterm() {
    let mut respool = Serving::spawning(&[]);
    let server = respool.server_pid();
    let mut client = respool.connect();
    assert_eq!(ask(&mut client, "SET k v"), "+OK\r\n");
    assert_eq!(ask(&mut client, "GET k"), "$1\r\n");
    assert!(is_alive(server));
    respool.signal(Signal::TERM);
    let (status, log) = respool.end();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("\"message\":\"stopped\""), "{log}");
    assert!(!is_alive(server), "{log}");
    assert_eq!(respool.leftovers(), Vec::<PathBuf>::new());
}

/// A server of `--spawn` ends when SIGKILL ends respool.
#[test]
fn spawned_server_ends_with_a_killed_respool() {
    let mut respool = Serving::spawning(&[]);
    let server = respool.server_pid();
    assert!(is_alive(server));
    respool.signal(Signal::KILL);
    respool.end();
    wait_until("the server is gone", || !is_alive(server));
}

/// When the server of `--spawn` dies, respool ends and gives the reason.
#[test]
fn spawned_server_that_dies_ends_respool() {
    let mut respool = Serving::spawning(&[]);
    signal(respool.server_pid(), Signal::KILL);
    let (status, log) = respool.end();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(
        log.contains("the server that respool started has ended"),
        "{log}"
    );
    assert_eq!(respool.leftovers(), Vec::<PathBuf>::new());
}

/// Ctrl-C reaches respool and not the server of `--spawn`.
#[test]
fn ctrl_c_reaches_respool_alone() {
    // A terminal signals its whole foreground process group.
    let mut respool = Serving::spawning(&[]);
    let server = respool.server_pid();
    let mut client = respool.connect();
    assert_eq!(ask(&mut client, "PING"), "+PONG\r\n");
    let group = Pid::from_raw(respool.child.id() as i32).unwrap();
    rustix::process::kill_process_group(group, Signal::INT).unwrap();
    let (status, log) = respool.end();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(
        !log.contains("the server that respool started has ended"),
        "{log}"
    );
    assert!(!is_alive(server));
}

/// A request without a reply ends at the drain timeout.
#[test]
fn drain_timeout_cuts_requests_without_answer() {
    let mut respool = Serving::spawning(&["--drain-timeout-ms", "300"]);
    let mut client = respool.connect();
    assert_eq!(ask(&mut client, "SET k v"), "+OK\r\n");
    let _frozen = Frozen::new(respool.server_pid());
    client.write_all(b"GET k\r\n").unwrap();
    // The request must have arrived: an answer that we give ourselves, behind it, shows nothing; so
    // another session's does.
    let mut other = respool.connect();
    assert_eq!(ask(&mut other, "CLIENT GETNAME"), "$-1\r\n");
    drop(other);
    respool.signal(Signal::TERM);
    let (status, log) = respool.end();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("\"sessions\":1"), "{log}");
}

/// A second signal ends respool at once.
#[test]
fn second_signal_ends_respool_at_once() {
    let mut respool = Serving::spawning(&["--drain-timeout-ms", "1h"]);
    let server = respool.server_pid();
    let mut client = respool.connect();
    assert_eq!(ask(&mut client, "SET k v"), "+OK\r\n");
    let _frozen = Frozen::new(server);
    client.write_all(b"GET k\r\n").unwrap();
    let mut other = respool.connect();
    assert_eq!(ask(&mut other, "CLIENT GETNAME"), "$-1\r\n");
    drop(other);
    respool.signal(Signal::TERM);
    respool.wait_for("\"message\":\"stopping");
    respool.signal(Signal::INT);
    let (status, log) = respool.end();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("stopped at once"), "{log}");
    assert!(!is_alive(server));
    assert_eq!(respool.leftovers(), Vec::<PathBuf>::new());
}

/// respool goes on when the reader of its log has gone.
#[test]
fn closed_log_reader_does_not_end_respool() {
    let mut respool = Serving::spawning(&[]);
    // The only reader.
    respool.stderr = None;
    assert_eq!(ask(&mut respool.connect(), "SET k v"), "+OK\r\n");
    respool.signal(Signal::TERM);
    let (status, _) = respool.end();
    assert_eq!(status.code(), Some(0));
}

/// respool starts although its backend is unreachable, and drains cleanly.
#[test]
fn unreachable_backend_allows_start_and_clean_drain() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let backend = format!("redis://{}", free.local_addr().unwrap());
    drop(free);
    let mut respool = Serving::start(&["--backend", &backend]);
    let answer = ask(&mut respool.connect(), "GET k");
    assert!(answer.starts_with('-'), "{answer}");
    respool.signal(Signal::INT);
    let (status, log) = respool.end();
    assert_eq!(status.code(), Some(0), "{log}");
}

/// respool raises the limit of open files. If it cannot, the log says how many sessions fit.
#[test]
fn open_file_limit_is_raised_or_logged() {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 200; exec \"$0\" \"$@\"", RESPOOL]);
    let mut respool = Serving::start_by(shell, &["--backend", "redis://127.0.0.1:1"]);
    let limits = fs::read_to_string(format!("/proc/{}/limits", respool.child.id())).unwrap();
    let open_files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    let soft: u64 = open_files
        .split_whitespace()
        .nth(3)
        .unwrap()
        .parse()
        .unwrap();
    respool.signal(Signal::TERM);
    let (_, log) = respool.end();
    // Only a privileged process may go beyond the hard limit, which the shell lowered too.
    let told = log.contains("open files are limited to 200: ") && log.contains("\"sessions_max\":");
    assert!(soft > 10_000 || told, "{soft}: {log}");
}

/// Control characters of a configuration are escaped wherever it is quoted: they could steer a
/// terminal or end a line.
#[test]
fn control_characters_of_a_configuration_are_spelt_out() {
    const STEERS: &str = "\u{1b}[2J\r\nerror: forged\u{7f}\u{9b}\u{202e}\tx";
    let is_plain = |said: &str, about: &str| {
        let steers = |letter: char| letter != '\n' && (letter.is_control() || letter == '\u{202e}');
        assert!(!said.contains(steers), "{about}: {said:?}");
        assert!(!said.lines().any(|line| line.starts_with("error: forged")));
    };
    let directory = tempfile::tempdir().unwrap();
    let inside = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let escaped: String = STEERS
        .chars()
        .map(|letter| format!("\\U{:08x}", u32::from(letter)))
        .collect();
    let file = inside("strange.toml");
    for lines in [
        format!("\"{escaped}\" = 1"),
        format!("threads = \"{escaped}\""),
        format!("listen = [\"{escaped}\"]"),
        format!("backend = \"{escaped}\""),
        format!("[pool.\"{escaped}\"]\nlisten = [\":1\"]\nbackend = \"redis://h\""),
        format!("[pool.a]\nlisten = [\":1\"]\nbackend = \"redis://h\"\n\"{escaped}\" = 1"),
        format!("refuse-commands = [\"{escaped}\"]"),
        format!("spawn = true\nspawn-program = \"{escaped}\""),
        format!("password-file = \"{escaped}\""),
        format!("a = {STEERS}"),
    ] {
        fs::write(&file, lines.as_bytes()).unwrap();
        for command in [&["check", &file][..], &["check", "--print", &file]] {
            let (_, out, err) = said(command);
            assert!(!out.is_empty() || !err.is_empty(), "{lines}");
            is_plain(&out, &lines);
            is_plain(&err, &lines);
        }
    }
    // The file's own name, in an error and behind each value.
    let named = inside("a\u{1b}[2J\nerror: forged");
    for content in ["threads = 2\n", "threads = 0\n"] {
        fs::write(&named, content).unwrap();
        let (_, out, err) = said(&["check", "--print", &named]);
        is_plain(&out, content);
        is_plain(&err, content);
    }
    for arguments in [
        &[STEERS][..],
        &["check", STEERS],
        &["check", "--listen", STEERS],
        &["check", &format!("--{STEERS}")],
        &["check", "--threads", STEERS],
        &["check", "--listen", &format!("unix:/{STEERS}")],
        &["serve", "--listen", &format!("unix:/nonexistent/{STEERS}")],
        &[
            "serve",
            "--log-format",
            "json",
            "--listen",
            &format!("unix:/nonexistent/{STEERS}"),
        ],
        &["serve", "--spawn", "--spawn-program", STEERS],
    ] {
        let (_, out, err) = said(arguments);
        assert!(!out.is_empty() || !err.is_empty(), "{arguments:?}");
        is_plain(&out, arguments[0]);
        is_plain(&err, arguments[0]);
    }
    for (name, value) in [
        ("RESPOOL_LISTEN", STEERS),
        ("RESPOOL_BACKEND", STEERS),
        (&*format!("RESPOOL_{STEERS}"), "x"),
    ] {
        let mut command = respool();
        let output = command.arg("check").env(name, value).output().unwrap();
        is_plain(&text(&output.stderr), name);
        is_plain(&text(&output.stdout), name);
    }
}

/// A variable that looks like an option is named, with the right spelling, and the option that it
/// most likely means.
#[test]
fn unread_variable_is_a_warning() {
    let check = |variables: &[(&str, &str)]| {
        let mut command = respool();
        command.args(["check", "--listen", "127.0.0.1:0"]);
        command.envs(variables.iter().copied());
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        text(&output.stderr)
    };
    let said = check(&[
        ("RESPOOL_THREADS", "9"),
        ("RESPOOL_PASSWROD", "SECRET"),
        ("RESPOOL_QQQQ", "x"),
        ("RESPOOL_STRANGER_STALL_MS", "1"),
        ("RESPOOL_HOLD", "no"),
    ]);
    for part in [
        "RESPOOL_STRANGER_STALL_MS is not read: say --head-of-line-stall-ms",
        "RESPOOL_HOLD is not read: say --flush-rule",
        "warning: the environment variable RESPOOL_THREADS is not read: say --threads",
        "warning: the environment variable RESPOOL_PASSWROD is not read: did you mean RESPOOL_PASSWORD?",
        "warning: the environment variable RESPOOL_QQQQ is not read; those that are: RESPOOL_PASSWORD",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("SECRET"), "{said}");
    let of_service = [
        ("RESPOOL_SERVICE_HOST", "10.0.0.1"),
        ("RESPOOL_PORT", "tcp://10.0.0.1:1"),
    ];
    assert_eq!(check(&of_service).lines().count(), 2);
    let in_kubernetes = [&of_service[..], &[("KUBERNETES_SERVICE_HOST", "10.0.0.2")]].concat();
    assert_eq!(check(&in_kubernetes), "");
    let mut command = respool();
    command.env("RESPOOL_THREADS", "9");
    let mut respool = Serving::start_by(command, &["--backend", "redis://127.0.0.1:1"]);
    assert!(
        respool.log.contains("RESPOOL_THREADS is not read"),
        "{}",
        respool.log
    );
    respool.signal(Signal::TERM);
    respool.end();
}

/// A password file that other users may read is named, with its mode and the command that mends it.
#[test]
fn readable_password_file_is_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("secret");
    fs::write(&secret, "a-long-one\n").unwrap();
    let config = directory.path().join("respool.toml");
    fs::write(&config, "password = 'a-long-one'\n").unwrap();
    let plain = directory.path().join("plain.toml");
    fs::write(&plain, "threads = 1\n").unwrap();
    for (mode, readers) in [
        (0o644, Some("its group and every user")),
        (0o640, Some("its group")),
        (0o604, Some("every user")),
        (0o600, None),
        (0o400, None),
    ] {
        for (option, path) in [
            ("--password-file", &secret),
            ("--backend-password-file", &secret),
            ("--config", &config),
        ] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            let path = path.to_str().unwrap();
            let (code, _, err) = said(&["check", option, path]);
            assert_eq!(code, Some(0), "{err}");
            let warning = readers.map(|readers| {
                format!(
                    "warning: {option}: `{path}` holds a password and has the mode {mode:04o}: \
                     {readers} may read or change it; say `chmod 600 {path}`\n"
                )
            });
            assert_eq!(err, warning.unwrap_or_default());
        }
    }
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).unwrap();
    let (_, _, err) = said(&["check", "--config", plain.to_str().unwrap()]);
    assert_eq!(err, "", "the file holds no password");
}

/// A file that never ends is refused, and does not fill the memory of the machine.
#[test]
fn endless_file_is_refused() {
    for (option, most) in [
        ("--config", "67108864"),
        ("--password-file", "65536"),
        ("--backend-password-file", "65536"),
    ] {
        let (code, _, err) = said(&["check", option, "/dev/zero"]);
        let told = format!("cannot be read: it has more than {most} bytes");
        assert!(code == Some(2) && err.contains(&told), "{err}");
    }
}

/// A start that fails by a file or command which may be right at the next try has the exit code 1.
/// With a mistake that stays, the code is 2.
#[test]
fn failure_that_may_pass_has_exit_code_1() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (command, missing, file) = (path("token"), path("missing"), path("respool.toml"));
    fs::write(&command, "#!/bin/sh\nexit 1\n").unwrap();
    fs::set_permissions(&command, fs::Permissions::from_mode(0o700)).unwrap();
    let in_pool = "[pool.a]\nlisten = ['127.0.0.1:0']\nbackend";
    let of_prefix = format!("redis://i?password-command={command}");
    for wrong in [
        format!("backend-password-command = '{command}'"),
        format!("backend-password-file = '{missing}'"),
        format!("password-file = '{missing}'"),
        format!("{in_pool} = 'redis://h?password-file={missing}'"),
        format!("{in_pool} = 'redis://h'\nprefixes = {{ b = \'{of_prefix}\' }}"),
        format!("tls-listen = '127.0.0.1:0'\ntls-cert = '{missing}'\ntls-key = '{missing}'"),
        format!("backend = 'rediss://h'\nserver-tls-ca = '{missing}'"),
    ] {
        fs::write(&file, &wrong).unwrap();
        let (code, _, errors) = said(&["serve", "--config", &file]);
        assert_eq!(code, Some(1), "{wrong}: {errors}");
        assert!(errors.starts_with("error: "), "{errors}");
        let (code, _, errors) = said(&["serve", "--threads", "0", "--config", &file]);
        assert_eq!(code, Some(2), "{wrong}: {errors}");
        let (code, _, errors) = said(&["check", &file]);
        assert_eq!(code, Some(2), "{wrong}: {errors}");
    }
    let (_, help, _) = said(&["serve", "--help"]);
    assert!(help.contains("exits with 2 if"), "{help}");
}

/// A start that fails by its configuration logs JSON if a layer asks for it.
#[test]
fn wrong_configuration_is_logged_as_json() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("respool.toml");
    let file = file.to_str().unwrap();
    let missing = directory.path().join("missing").display().to_string();
    fs::write(file, "log-format = 'json'\nthreads = 0\nfuze = 1\n").unwrap();
    let json = ["--log-format", "json"];
    for (more, errors) in [
        (&["--config", file][..], &["threads: ", "fuze"][..]),
        (
            &["--config", &missing, json[0], json[1]],
            &["cannot be read"],
        ),
        (&[json[0], json[1], "--fuze"], &["--fuze"]),
    ] {
        let (code, out, err) = said(&[&["serve"], more].concat());
        assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
        assert_eq!(err.lines().count(), errors.len(), "{err}");
        for line in err.lines() {
            let begin = line.starts_with("{\"timestamp\":\"") && line.ends_with('}');
            let is_error = line.contains("\"level\":\"ERROR\"");
            assert!(
                begin && is_error && line.contains("\"cannot start: "),
                "{line}"
            );
        }
        assert!(errors.iter().all(|error| err.contains(error)), "{err}");
    }
    // The command line overrules the file, and without its file the format is not known.
    let (_, _, err) = said(&["serve", "--config", file, json[0], "text"]);
    assert!(err.starts_with("error: "), "{err}");
    let (_, _, err) = said(&["serve", "--config", &missing]);
    assert!(err.starts_with("error: "), "{err}");
}

/// A pipe that nothing is written to is an error in time, and one that is written to is read whole.
#[test]
fn pipe_as_a_file_is_waited_for_but_not_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let (code, _, err) = said(&["check", "--password-file", pipe.to_str().unwrap()]);
    let told = err.contains("nothing was written to it for 5 seconds");
    assert!(code == Some(2) && told, "{err}");
    let script =
        "(echo threads; sleep 0.3; echo = 3) | tr '\\n' ' ' | \"$0\" check --config /dev/stdin";
    let output = Command::new("sh")
        .args(["-c", script, RESPOOL])
        .output()
        .unwrap();
    assert!(text(&output.stdout).contains("3 workers"), "{output:?}");
}

/// A client without any right cannot fill the disk: each kind of line has a rate, and left-out
/// lines are counted.
#[test]
fn log_flood_is_bounded_and_counted() {
    let mut respool = Serving::start(&["--backend", "redis://127.0.0.1:1"]);
    let clients = 300;
    for _ in 0..clients {
        let mut client = respool.connect();
        client.write_all(b"POST / HTTP/1.1\r\n\r\n").unwrap();
        // respool closes the connection without an answer.
        let mut nothing = Vec::new();
        let _ = client.read_to_end(&mut nothing);
    }
    respool.signal(Signal::TERM);
    let (_, log) = respool.end();
    let closed = log
        .lines()
        .filter(|line| line.contains("session closed\",\"worker"));
    assert_eq!(closed.count(), 5, "{log}");
    let left_out = log
        .lines()
        .find(|line| line.contains("lines like these were left out"));
    let left_out = left_out.unwrap_or_else(|| panic!("{log}"));
    assert_eq!(field(left_out, "line"), "session closed");
    assert_eq!(field(left_out, "count"), (clients - 5).to_string());
}

/// Lines that standard error refuses are counted, and the log names the reason once it can be
/// written again.
#[test]
fn refused_log_lines_are_counted_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let (path, pages) = (directory.path().join("log"), directory.path().join("pages"));
    let log = fs::File::create(&path).unwrap();
    let pages_at = format!("unix:{}", pages.display());
    let mut command = respool();
    command
        .stderr(log)
        .args(["serve", "--listen", "127.0.0.1:0"]);
    command.args([
        "--backend",
        "redis://127.0.0.1:1",
        "--metrics-listen",
        &pages_at,
    ]);
    let mut child = command.spawn().unwrap();
    let has = |part: &str| fs::read_to_string(&path).unwrap().contains(part);
    wait_until("respool is ready", || has("ready"));
    let pid = Pid::from_child(&child);
    let limit = |current| {
        let limit = rustix::process::Rlimit {
            current,
            maximum: None,
        };
        rustix::process::prlimit(Some(pid), rustix::process::Resource::Fsize, limit).unwrap();
    };
    let lost = || {
        let mut stream = UnixStream::connect(&pages).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        let mut lines = page.lines();
        let count = lines.find_map(|line| line.strip_prefix("respool_log_lines_lost_total "));
        count.unwrap_or_else(|| panic!("{page}")).to_owned()
    };
    assert_eq!(lost(), "0.0");
    limit(Some(1));
    signal(child.id(), Signal::USR1);
    wait_until("the lost line is counted", || lost() != "0.0");
    limit(None);
    signal(child.id(), Signal::USR2);
    wait_until("the log names the reason", || {
        has("standard error took none: File too large")
    });
    assert!(!has("read too slowly"));
    signal(child.id(), Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Fills the pipe that `writer` leads to, for as long as it can be written.
fn fill(mut writer: io::PipeWriter) {
    let written = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&written);
    std::thread::spawn(move || {
        while writer.write_all(b"x").is_ok() {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let mut last = usize::MAX;
    wait_until("the pipe is full", || {
        std::thread::sleep(Duration::from_millis(50));
        std::mem::replace(&mut last, written.load(Ordering::Relaxed)) == last
    });
}

/// A standard error that is not read keeps respool from nothing: it serves, and it ends by SIGTERM.
#[test]
fn blocked_log_does_not_delay_the_end() {
    let (mut respool, writer) = Serving::piped(&["--backend", "redis://127.0.0.1:1"]);
    fill(writer);
    for _ in 0..3 {
        respool.signal(Signal::HUP);
        let answer = ask(&mut respool.connect(), "GET k");
        assert!(answer.starts_with('-'), "{answer}");
        assert_eq!(ask(&mut respool.connect(), "CLIENT GETNAME"), "$-1\r\n");
    }
    respool.signal(Signal::TERM);
    let status = respool.status();
    assert_eq!(status.code(), Some(0));
}

/// The second SIGTERM ends respool at once though standard error is not read.
#[test]
fn blocked_log_does_not_hide_the_second_signal() {
    let (mut respool, writer) = Serving::piped(&["--spawn", "--drain-timeout-ms", "1h"]);
    let server = respool.server_pid();
    let mut client = respool.connect();
    assert_eq!(ask(&mut client, "SET k v"), "+OK\r\n");
    let _frozen = Frozen::new(server);
    client.write_all(b"GET k\r\n").unwrap();
    let mut other = respool.connect();
    assert_eq!(ask(&mut other, "CLIENT GETNAME"), "$-1\r\n");
    fill(writer);
    respool.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(700));
    respool.signal(Signal::TERM);
    assert_eq!(respool.status().code(), Some(1));
}

/// Lines that could not be written come out when standard error is read again before the end.
#[test]
fn last_lines_come_out_when_the_log_is_read() {
    let (mut respool, writer) = Serving::piped(&["--backend", "redis://127.0.0.1:1"]);
    fill(writer);
    respool.signal(Signal::USR1);
    respool.signal(Signal::TERM);
    let mut stderr = respool.stderr.take().unwrap();
    let log = std::thread::spawn(move || {
        let mut log = Vec::new();
        let mut part = [0; 4096];
        // The pipe has another writer, so it does not end with respool.
        while !String::from_utf8_lossy(&log).contains("\"stopped\"") {
            let count = stderr.read(&mut part).unwrap();
            log.extend(part[..count].iter().filter(|byte| **byte != b'x'));
        }
        String::from_utf8_lossy(&log).into_owned()
    });
    assert_eq!(respool.status().code(), Some(0));
    let log = log.join().unwrap();
    assert!(log.contains("the signal has no effect"), "{log}");
    assert!(log.contains("\"stopping"), "{log}");
}

/// `respool check` reads certificates and runs password commands, and its help says so.
#[test]
fn check_reads_the_files_that_its_help_names() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (program, file) = (path("token"), path("respool.toml"));
    fs::write(&program, "#!/bin/sh\ntouch \"$0-ran\"\necho token\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let missing = path("missing.crt");
    let config = format!(
        "backend-password-command = '{program}'\ntls-listen = '127.0.0.1:1'\n\
         tls-cert = '{missing}'\ntls-key = '{missing}'\n"
    );
    fs::write(&file, config).unwrap();
    let (code, _, errors) = said(&["check", &file]);
    assert_eq!(code, Some(2), "{errors}");
    assert!(
        errors.contains(&format!("`{missing}` cannot be read")),
        "{errors}"
    );
    assert!(fs::exists(path("token-ran")).unwrap());
    let (_, help, _) = said(&["help", "check"]);
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for done in [
        "the files with passwords, certificates and keys",
        "runs the password commands",
    ] {
        assert!(help.contains(done), "{help}");
    }
}

/// A file that cannot be read, or is no TOML, names no control socket: the one error is the true
/// one. A socket of the command line is asked all the same.
#[test]
fn reload_by_a_broken_file_has_one_error() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("respool.toml");
    let file = file.to_str().unwrap();
    for (content, error) in [
        (None, "cannot be read: No such file"),
        (Some("fuse = \n"), "respool.toml:1:"),
    ] {
        if let Some(content) = content {
            fs::write(file, content).unwrap();
        }
        let (code, out, errors) = said(&["reload", "--config", file]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{errors}");
        assert!(errors.contains(error), "{errors}");
        assert_eq!(errors.matches("error: ").count(), 1, "{errors}");
        let socket = "--control-socket=/nonexistent/control.sock";
        let (code, _, errors) = said(&["reload", "--config", file, socket]);
        assert_eq!(code, Some(1), "{errors}");
    }
}

/// `respool reload` names the file that the process has read. Another file is refused with a
/// remedy, and nothing is reloaded.
#[test]
fn reload_refuses_a_file_that_the_process_does_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (file, candidate, socket) = (path("own.toml"), path("cand.toml"), path("control.sock"));
    let content = format!("control-socket = '{socket}'\nbackend = 'redis://127.0.0.1:1'\n");
    fs::write(&file, &content).unwrap();
    fs::write(&candidate, format!("{content}thread = 1\n")).unwrap();
    let mut served = Serving::start(&["--config", &file]);
    let again = |arguments: &[&str]| said(&[&["reload"], arguments].concat());
    wait_until("respool takes reloads", || again(&[&file]).0 == Some(0));
    let (_, out, _) = again(&["--check", &file]);
    assert!(out.contains("nothing has changed"), "{out}");
    assert!(
        out.ends_with(&format!("the process has read {file}\n")),
        "{out}"
    );

    fs::write(&file, format!("{content}max-delay-us = 500\n")).unwrap();
    for arguments in [&["--check", &candidate][..], &[&candidate]] {
        let (code, out, err) = again(arguments);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
        let told = format!(
            "error: {candidate}: this process reads {file}, and never another file: `respool check \
             {candidate}` checks a candidate, and --control-socket PATH without a file reloads a \
             process that sees its file at another path; nothing was reloaded\n"
        );
        assert_eq!(err, told);
    }
    let link = path("link.toml");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let (code, out, err) = again(&["--check", &link]);
    assert_eq!(code, Some(0), "{err}");
    let told = format!("\nnot applied: the process has only checked {file}\n");
    assert!(
        out.contains("max-delay-us: ") && out.ends_with(&told),
        "{out}"
    );
    let (code, out, err) = again(&["--control-socket", &socket]);
    assert_eq!(code, Some(0), "{err}");
    let told = format!("\napplied: the process has read {file}\n");
    assert!(
        out.contains("max-delay-us: ") && out.ends_with(&told),
        "{out}"
    );
    served.signal(Signal::TERM);
    served.end();
}

/// An empty file may be the configuration from the start, and then a reload takes it. A process
/// without a file refuses each file.
#[test]
fn reload_takes_an_empty_file_that_was_empty() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (file, socket) = (path("own.toml"), path("control.sock"));
    fs::write(&file, "\n").unwrap();
    let own = [
        "--control-socket",
        &socket,
        "--backend",
        "redis://127.0.0.1:1",
    ];
    let again = |arguments: &[&str]| said(&[&["reload", own[0], own[1]], arguments].concat());
    for (more, refused) in [(&["--config", &file][..], false), (&[], true)] {
        let mut served = Serving::start(&[&own[..], more].concat());
        wait_until("respool takes reloads", || again(&[]).0 == Some(0));
        fs::write(&file, "").unwrap();
        let (code, out, err) = again(&[&file]);
        let told = format!("error: {file}: this process reads no configuration file: ");
        match refused {
            false => assert!(
                code == Some(0) && out.contains("nothing has changed"),
                "{err}"
            ),
            true => assert!(code == Some(2) && err.starts_with(&told), "{err}"),
        }
        served.signal(Signal::TERM);
        served.end();
    }
}

/// A path that is no socket is no process that is away.
#[test]
fn reload_names_a_path_that_is_no_socket() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let (code, _, err) = said(&["reload", "--control-socket", path]);
    assert_eq!(code, Some(1));
    assert_eq!(
        err,
        format!("error: {path}: is no socket: name the control socket of respool\n")
    );
    let missing = "/nonexistent/control.sock";
    let (_, _, err) = said(&["reload", "--control-socket", missing]);
    assert!(
        err.contains("no respool with this control socket runs"),
        "{err}"
    );
}

/// A command line with a word too many asks no process, even if it names a socket.
#[test]
fn reload_refuses_words_that_it_does_not_know() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("respool.toml");
    let file = file.to_str().unwrap();
    fs::write(file, "control-socket = '/nonexistent/control.sock'\n").unwrap();
    let (code, _, errors) = said(&["reload", file]);
    assert_eq!(code, Some(1), "{errors}");
    for (extra, problem) in [
        ("more", "a second file, `more`"),
        ("--now", "unknown option `--now`"),
        ("--config=more", "a second file, `more`"),
    ] {
        let (code, out, errors) = said(&["reload", file, extra]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{errors}");
        assert!(errors.starts_with(&format!("error: {problem}")), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
}

/// SIGHUP and signals without meaning leave respool and its clients alone, and the log says so.
#[test]
fn signal_without_meaning_ends_nothing() {
    let mut respool = Serving::spawning(&[]);
    let mut client = respool.connect();
    assert_eq!(ask(&mut client, "SET k v"), "+OK\r\n");
    respool.signal(Signal::HUP);
    respool.wait_for("\"message\":\"reload: nothing has changed");
    for (signal, name) in [
        (Signal::USR1, "SIGUSR1"),
        (Signal::USR2, "SIGUSR2"),
        (Signal::ALARM, "SIGALRM"),
        (Signal::VTALARM, "SIGVTALRM"),
        (Signal::PROF, "SIGPROF"),
        (Signal::IO, "SIGIO"),
    ] {
        respool.signal(signal);
        respool.wait_for(&format!("\"signal\":\"{name}\""));
        assert_eq!(ask(&mut client, "APPEND k v").chars().next(), Some(':'));
    }
    respool.signal(Signal::XFSZ);
    respool.signal(Signal::PIPE);
    assert_eq!(ask(&mut client, "STRLEN k"), ":7\r\n");
    respool.signal(Signal::TERM);
    let (status, log) = respool.end();
    assert_eq!(status.code(), Some(0), "{log}");
}

/// SIGQUIT drains as SIGTERM does, and a storm of SIGHUP fills no log.
#[test]
fn sigquit_drains_and_sighup_storms_are_bounded() {
    let mut respool = Serving::start(&["--backend", "redis://127.0.0.1:1"]);
    for _ in 0..300 {
        respool.signal(Signal::HUP);
        std::thread::sleep(Duration::from_micros(200));
    }
    respool.signal(Signal::QUIT);
    let (status, log) = respool.end();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("\"signal\":\"SIGQUIT\""), "{log}");
    let noted = log
        .lines()
        .filter(|line| line.contains("reload: nothing has changed"));
    assert!((1..=5).contains(&noted.count()), "{log}");
    assert!(log.contains("lines like these were left out"), "{log}");
}

/// A rolling restart: the process that ends leaves the socket that its successor has made.
#[test]
fn unix_socket_of_the_successor_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("respool.sock");
    let listen = format!("unix:{}", path.display());
    let arguments = ["--listen", &listen, "--drain-timeout-ms", "1h", "--spawn"];
    let mut first = Serving::start(&arguments);
    let server = first.server_pid();
    let mut client = first.connect();
    assert_eq!(ask(&mut client, "SET k v"), "+OK\r\n");
    let frozen = Frozen::new(server);
    client.write_all(b"GET k\r\n").unwrap();
    let mut other = first.connect();
    assert_eq!(ask(&mut other, "CLIENT GETNAME"), "$-1\r\n");
    drop(other);
    first.signal(Signal::TERM);
    first.wait_for("\"message\":\"stopping");
    wait_until("the first respool no longer accepts connections", || {
        UnixStream::connect(&path).is_err()
    });
    let mut second = Serving::start(&arguments);
    drop(frozen);
    let (status, log) = first.end();
    assert_eq!(status.code(), Some(0), "{log}");
    let reached = UnixStream::connect(&path);
    assert!(reached.is_ok(), "{reached:?}");
    drop(reached);
    second.signal(Signal::TERM);
    second.end();
    assert!(!path.exists(), "the last one removes its own");
}

/// By default every user may connect, with any umask. The option restricts this.
#[test]
fn unix_socket_lets_other_users_connect() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("respool.sock");
    let listen = format!("unix:{}", path.display());
    let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
    let backend = ["--backend", "redis://127.0.0.1:1", "--listen", &listen];
    for (args, expected) in [(&[][..], 0o777), (&["--socket-mode", "0660"], 0o660)] {
        let mut respool = Serving::start(&[&backend[..], args].concat());
        assert_eq!(mode(), expected, "{args:?}");
        respool.signal(Signal::TERM);
        respool.end();
    }
}

/// A `respool serve` that has said that it is ready.
struct Serving {
    child: Child,
    /// `None` once no reader is left.
    stderr: Option<BufReader<io::PipeReader>>,
    /// The bytes of the log that were read.
    log: String,
    address: String,
    /// TMPDIR of the process.
    directory: tempfile::TempDir,
    ended: bool,
}

impl Serving {
    fn spawning(arguments: &[&str]) -> Serving {
        Serving::start(&[&["--spawn"], arguments].concat())
    }

    fn start(arguments: &[&str]) -> Serving {
        Serving::start_by(respool(), arguments)
    }

    fn start_by(command: Command, arguments: &[&str]) -> Serving {
        Serving::start_piped(command, arguments).0
    }

    /// The same, with a writing end of the pipe that its log goes to.
    fn piped(arguments: &[&str]) -> (Serving, io::PipeWriter) {
        Serving::start_piped(respool(), arguments)
    }

    fn start_piped(mut command: Command, arguments: &[&str]) -> (Serving, io::PipeWriter) {
        let (reader, writer) = io::pipe().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let fixed = [
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--log-format",
            "json",
            "--threads",
            "1",
        ];
        command
            .args(fixed)
            .args(arguments)
            .env("TMPDIR", directory.path());
        command.process_group(0).stderr(writer.try_clone().unwrap());
        let child = command.spawn().unwrap();
        drop(command);
        let stderr = Some(BufReader::new(reader));
        let (log, address, ended) = (String::new(), String::new(), false);
        let mut serving = Serving {
            child,
            stderr,
            log,
            address,
            directory,
            ended,
        };
        let ready = serving.wait_for("\"message\":\"ready\"");
        serving.address = field(&ready, "listen").split(',').next().unwrap().into();
        (serving, writer)
    }

    /// Waits for its end, without its log.
    fn status(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("respool has ended", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        self.ended = true;
        status.unwrap()
    }

    /// Reads the log up to the line that has `part`.
    fn wait_for(&mut self, part: &str) -> String {
        loop {
            let mut line = String::new();
            let stderr = self.stderr.as_mut().expect("still read");
            let bytes = stderr.read_line(&mut line).unwrap();
            assert_ne!(bytes, 0, "no line with {part}: {}", self.log);
            self.log.push_str(&line);
            if line.contains(part) {
                return line;
            }
        }
    }

    fn connect(&self) -> TcpStream {
        let client = TcpStream::connect(&self.address).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client
    }

    fn server_pid(&self) -> u32 {
        let line = self
            .log
            .lines()
            .find(|line| line.contains("\"server started\""));
        field(line.expect("respool started a server"), "pid")
            .parse()
            .unwrap()
    }

    fn signal(&self, signal: Signal) {
        self::signal(self.child.id(), signal);
    }

    /// Waits for its end; how it ended, and its whole log.
    fn end(&mut self) -> (ExitStatus, &str) {
        let status = self.status();
        if let Some(stderr) = &mut self.stderr {
            stderr.read_to_string(&mut self.log).unwrap();
        }
        (status, &self.log)
    }

    /// The files that it left in its TMPDIR.
    fn leftovers(&self) -> Vec<PathBuf> {
        fs::read_dir(self.directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A process that does not run until this is dropped.
struct Frozen(u32);

impl Frozen {
    fn new(pid: u32) -> Frozen {
        signal(pid, Signal::STOP);
        Frozen(pid)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // The process may have been killed meanwhile.
        let _ = kill_process(Pid::from_raw(self.0 as i32).unwrap(), Signal::CONT);
    }
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// Alive, and not merely waiting to be collected.
fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

/// Sends an inline request, and reads the first line of the answer.
fn ask(client: &mut TcpStream, request: &str) -> String {
    client
        .write_all(format!("{request}\r\n").as_bytes())
        .unwrap();
    let mut line = String::new();
    BufReader::new(client).read_line(&mut line).unwrap();
    line
}

/// The value of a field of a JSON line, of any type.
fn field(line: &str, name: &str) -> String {
    let (_, rest) = line.split_once(&format!("\"{name}\":")).expect(line);
    rest.trim_start_matches('"')
        .split(['"', ',', '}'])
        .next()
        .unwrap()
        .into()
}

fn wait_until(claim: &str, mut happened: impl FnMut() -> bool) {
    let started = Instant::now();
    while !happened() {
        assert!(
            started.elapsed() < PATIENCE,
            "not within {PATIENCE:?}: {claim}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

//! Tests of configurations: layers, problems, passwords, printing.

mod pools;
mod tls;

use std::io::Write;

use proptest::prelude::*;

use self::pools::TWO_POOLS;
use super::*;
use crate::options::{
    OPTIONS, Opt, OptionKind, RENAMED, Topic, find, find_by_any_name, renamed_notice,
    switch_values, value_by_name,
};

/// The configuration of these layers, or its problems.
fn resolve(
    file: &str,
    environment: &[(&str, &str)],
    arguments: &[&str],
) -> Result<(Config, Resolved), Vec<String>> {
    let mut raw = RawConfig::default();
    add_arguments(&mut raw, arguments);
    raw.add_environment(|name| {
        let found = environment.iter().find(|(variable, _)| *variable == name);
        found.map(|(_, value)| value.into())
    });
    raw.add_toml("r.toml", file);
    Config::resolve(raw)
        .map_err(|problems| problems.iter().map(Problem::to_string).collect::<Vec<_>>())
}

/// Adds arguments of a command line that has no fault of its own: `--name value`, `--name=value`,
/// or the bare name of a switch.
fn add_arguments(raw: &mut RawConfig, arguments: &[&str]) {
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let word = word.strip_prefix("--").expect("the name of an option");
        let (name, text) = match word.split_once('=') {
            Some((name, text)) => (name, Some(text)),
            None => (word, None),
        };
        let (option, name) = find_by_any_name(name).expect("a known option");
        let is_switch =
            matches!(option.kind, OptionKind::Switch(_)) || switch_values(name).is_some();
        let bare = || match is_switch {
            true => "true",
            false => words.next().expect("a value"),
        };
        let text = text.unwrap_or_else(bare).to_owned();
        let text = value_by_name(name, text).expect("a value of the old name");
        raw.add_argument(option, name, text);
    }
}

fn good(file: &str, environment: &[(&str, &str)], arguments: &[&str]) -> Config {
    match resolve(file, environment, arguments) {
        Ok((config, _)) => config,
        Err(problems) => panic!("{problems:?}"),
    }
}

fn file_with(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// The command line overrules the environment, and that overrules the file. Of one layer the last
/// value counts.
#[test]
fn later_layer_overrules_earlier_one() {
    let variable = [("RESPOOL_PASSWORD", "of-the-environment")];
    let password = |config: Config| config.settings.users[0].password.clone();
    assert_eq!(good("", &[], &[]).settings.limits, Limits::default());
    assert_eq!(good("threads = 3", &[], &[]).workers, 3);
    assert_eq!(good("threads = 3", &[], &["--threads", "4"]).workers, 4);
    assert!(good("fuse = false", &[], &["--fuse"]).settings.flush.fuse);
    for (text, value) in [("yes", true), ("no", false), ("false", false)] {
        let argument = format!("--fuse={text}");
        assert_eq!(
            good("", &[], &[&argument]).settings.flush.fuse,
            value,
            "{text}"
        );
    }
    assert_eq!(
        password(good("password = 'of-the-file'", &[], &[])),
        "of-the-file"
    );
    assert_eq!(
        password(good("password = 'of-the-file'", &variable, &[])),
        "of-the-environment"
    );
    assert_eq!(
        password(good("", &variable, &["--password", "of-the-line"])),
        "of-the-line"
    );
    assert_eq!(
        good("", &[], &["--threads", "1", "--threads", "2"]).workers,
        2
    );
    let lists = good("listen = [':1', ':2']", &[], &["--listen", ":3"]);
    assert_eq!(lists.summary().split(';').next(), Some("listen 0.0.0.0:3"));
}

#[test]
fn later_layer_decides_between_backend_and_spawn() {
    let spawns = |config: Config| matches!(config.pools[0].backend, Backend::Spawn(_));
    assert!(!spawns(good("", &[], &[])));
    assert!(spawns(good("", &[], &["--spawn"])));
    assert!(spawns(good("backend = 'redis://h'", &[], &["--spawn"])));
    assert!(!spawns(good(
        "spawn = true",
        &[],
        &["--backend", "redis://h"]
    )));
    assert!(!spawns(good("spawn = true", &[], &["--spawn=false"])));
}

#[test]
fn passwords_come_from_the_latest_layer() {
    let file = file_with("of the file\r\n");
    let path = file.path().to_str().unwrap();
    let users = good("", &[], &["--password-file", path, "--user", "alice:a:b"])
        .settings
        .users;
    let shown: Vec<_> = users
        .iter()
        .map(|user| (&*user.name, &*user.password))
        .collect();
    assert_eq!(shown, [("default", "of the file"), ("alice", "a:b")]);

    let variable = [("RESPOOL_BACKEND_PASSWORD", "of-the-environment")];
    let password = |config: Config| match &config.pools[0].backend {
        Backend::Server(url) => (url.user.clone(), url.password.clone()),
        Backend::Spawn(_) => panic!("not asked for"),
    };
    let who =
        |user: Option<&str>, password: &str| (user.map(str::to_owned), Some(password.to_owned()));
    let url = "backend = 'redis://u:of-the-url@h'";
    assert_eq!(password(good(url, &[], &[])), who(Some("u"), "of-the-url"));
    assert_eq!(
        password(good(url, &variable, &[])),
        who(Some("u"), "of-the-environment")
    );
    assert_eq!(
        password(good("", &variable, &["--backend", "redis://:of-the-url@h"])),
        who(None, "of-the-url")
    );
    assert_eq!(
        password(good(url, &variable, &["--backend-password-file", path])),
        who(Some("u"), "of the file")
    );
    let command = format!("/bin/cat {path}");
    assert_eq!(
        password(good(
            url,
            &variable,
            &["--backend-password-command", &command]
        )),
        who(Some("u"), "of the file")
    );
    let in_url = format!("redis://u@h?password-command=/bin/cat%20{path}");
    assert_eq!(
        password(good("", &[], &["--backend", &in_url])),
        who(Some("u"), "of the file")
    );
}

/// Checks that these layers have one problem, which starts so and repeats no secret.
fn assert_problem(file: &str, arguments: &[&str], problem: &str) {
    let problems = resolve(file, &[], arguments).err().expect(problem);
    assert_eq!(problems.len(), 1, "{problem}: {problems:?}");
    assert!(
        problems[0].starts_with(problem),
        "{problem}: {}",
        problems[0]
    );
    let lower = problems[0].to_lowercase();
    assert!(!lower.contains("secret"), "{}", problems[0]);
}

/// A wrong argument or value is a problem with its place and a remedy.
#[test]
fn wrong_argument_is_a_problem() {
    for (file, arguments, problem) in [
        ("", vec!["--threads", "0"], "--threads: must be `auto` or"),
        (
            "threads = 0",
            vec!["--threads", "1"],
            "r.toml:1:11: threads: must be `auto` or",
        ),
        (
            "threads = true",
            vec![],
            "r.toml:1:11: threads: must be `auto` or a number from 1 to 1024, such as threads = 1",
        ),
        (
            "",
            vec!["--fuse=off"],
            "--fuse: must be `true` or `false`, or `yes` or `no`",
        ),
        (
            "",
            vec!["--refuse-commands", "redis://:SECRET@h"],
            "--refuse-commands: no command is called `redis://...`",
        ),
        (
            &format!("{TWO_POOLS}fused-keys-max = 1"),
            vec![],
            "r.toml:8:1: pool.pages.fused-keys-max: must be from 2 to 1000",
        ),
    ] {
        assert_problem(file, &arguments, problem);
    }
}

/// An old switch takes the values of a switch in a file, and excludes the new name.
#[test]
fn wrong_value_of_an_old_switch_is_a_problem() {
    for (file, arguments, problem) in [
        (
            "hold = 'no'",
            vec![],
            "r.toml:1:8: hold: must be true or false, such as hold = false",
        ),
        (
            &format!("{TWO_POOLS}hold = 1"),
            vec![],
            "r.toml:8:8: pool.pages.hold: must be true or false, such as hold = false",
        ),
        (
            &format!("{TWO_POOLS}hold = true\nflush-rule = 'latency'"),
            vec![],
            "r.toml:9:1: pool.pages.flush-rule: `hold` is the old name of `flush-rule`, and both",
        ),
    ] {
        assert_problem(file, &arguments, problem);
    }
}

/// A listener, a backend or a server of `--spawn` that cannot work is a problem.
#[test]
fn wrong_listener_or_backend_is_a_problem() {
    for (file, arguments, problem) in [
        (
            "",
            vec!["--backend", "redis://:SECRET,@h1:1,h2:2"],
            "--backend: names several servers: write redis-sharded:// to divide the keys among them,",
        ),
        (
            "",
            vec!["--listen", "127.0.0.1:1,127.0.0.1:2"],
            "--listen: holds a comma: each listener is given by itself",
        ),
        (
            "",
            vec!["--listen", ":1", "--listen", ":1"],
            "--listen: `0.0.0.0:1` is given twice",
        ),
        ("listen = []", vec![], "r.toml:1:1: listen: is empty"),
        (
            "metrics-listen = 'tls:127.0.0.1:1'",
            vec![],
            "r.toml:1:18: metrics-listen: the pages have no TLS: write the address without `tls:`",
        ),
        (
            "listen = ':1'",
            vec!["--backend", "redis://localhost:1"],
            "r.toml:1:1: listen: `0.0.0.0:1` is the address of the backend localhost:1",
        ),
        (
            "",
            vec!["--backend", "unix:///a", "--listen", "unix:/a"],
            "--listen: `unix:/a` is the address of the backend unix:/a",
        ),
        (
            "",
            vec!["--spawn", "--backend", "redis://h"],
            "--spawn: excludes `backend`",
        ),
        (
            "spawn-program = 'a'",
            vec![],
            "r.toml:1:1: spawn-program: means nothing without `spawn`",
        ),
    ] {
        assert_problem(file, &arguments, problem);
    }
}

/// A missing, doubled or unreadable password or user is a problem.
#[test]
fn wrong_password_or_user_is_a_problem() {
    let (empty, binary) = (file_with("\n"), tempfile::NamedTempFile::new().unwrap());
    std::fs::write(binary.path(), [0xff]).unwrap();
    let readable = file_with("a");
    let two_origins = format!(
        "backend-password-file = '{}'\nbackend-password-command = '/c'",
        readable.path().display()
    );
    let (empty, binary) = (
        empty.path().to_str().unwrap(),
        binary.path().to_str().unwrap(),
    );
    for (file, arguments, problem) in [
        (
            "",
            vec!["--backend", "redis://u@h"],
            "--backend: names the user `u` and no password",
        ),
        (
            "password = 'a'\npassword-file = 'b'",
            vec![],
            "r.toml:2:1: password-file: excludes `password`: remove one of them",
        ),
        (
            "backend = 'redis://:a@h'\nbackend-password = 'b'",
            vec![],
            "r.toml:2:1: backend-password: `backend` has a password already",
        ),
        (
            "",
            vec!["--password-file", "/nonexistent"],
            "--password-file: `/nonexistent` cannot be read",
        ),
        (
            "",
            vec!["--password-file", empty],
            &format!("--password-file: `{empty}` is empty"),
        ),
        (
            "",
            vec!["--password-file", binary],
            &format!("--password-file: `{binary}` is not UTF-8"),
        ),
        (
            "",
            vec!["--backend-password-command", "token"],
            "--backend-password-command: must begin with the absolute path of a program",
        ),
        (
            "",
            vec!["--backend-password-command", "/bin/false"],
            "--backend-password-command: `/bin/false` failed with exit status: 1",
        ),
        (
            "",
            vec!["--backend", "redis://h?password-command=/bin/false"],
            "--backend: `/bin/false` failed with exit status: 1",
        ),
        (
            two_origins.as_str(),
            vec![],
            "r.toml:2:1: backend-password-command: excludes `backend-password-file`",
        ),
        (
            "",
            vec!["--user", "a:1", "--user", "a:2"],
            "--user: `a` is given twice",
        ),
        (
            "password = 'a'",
            vec!["--user", "default:b"],
            "--user: `default` is the user of `password`",
        ),
    ] {
        assert_problem(file, &arguments, problem);
    }
}

/// Bounds that contradict each other are a problem, which names both with their places.
#[test]
fn wrong_relation_of_bounds_is_a_problem() {
    for (file, arguments, problem) in [
        (
            "session-output-soft-bytes = '32MiB'",
            vec![],
            "r.toml:1:1: `session-output-soft-bytes` = 33554432 (r.toml:1:1) must be below \
             `session-output-hard-bytes` = 33554432 (default): reading stops at the first",
        ),
        (
            "",
            vec!["--worker-memory-bytes-max", "16MiB"],
            "`session-output-hard-bytes` = 33554432 (default) must be at most \
             `worker-memory-bytes-max` = 16777216 (command line): the output of one session",
        ),
        (
            "session-output-hard-bytes = '2MiB'\nworker-memory-bytes-max = '4MiB'",
            vec![
                "--request-held-bytes-max",
                "8MiB",
                "--link-unanswered-bytes-max",
                "8MiB",
            ],
            "`request-held-bytes-max` = 8388608 (command line) must be at most \
             `worker-memory-bytes-max` = 4194304 (r.toml:2:1): one request must fit",
        ),
        (
            "request-held-bytes-max = '8MiB'",
            vec![],
            "r.toml:1:1: `request-held-bytes-max` = 8388608 (r.toml:1:1) must be at most \
             `link-unanswered-bytes-max` = 4194304 (default): a held request",
        ),
        (
            "links-max = 16",
            vec![],
            "r.toml:1:1: `streaming-links-max` = 16 (default) must be below `links-max` = 16",
        ),
        (
            "head-of-line-stall-ms = '11s'",
            vec![],
            "r.toml:1:1: `head-of-line-stall-ms` = 11000 (r.toml:1:1) must be at most \
             `session-stall-ms` = 10000 (default): other sessions",
        ),
        (
            "reconnect-min-ms = '3s'",
            vec![],
            "r.toml:1:1: `reconnect-min-ms` = 3000 (r.toml:1:1) must be at most \
             `reconnect-max-ms` = 250 (default): the pause grows",
        ),
        (
            "request-timeout-ms = 1",
            vec!["--max-delay-us", "1000"],
            "`max-delay-us` = 1000 (command line) must be below `request-timeout-ms` = 1 \
             (r.toml:1:1)",
        ),
        (
            &format!("request-timeout-ms = 1\n{TWO_POOLS}max-delay-us = '1ms'"),
            vec![],
            "r.toml:9:1: `pool.pages.max-delay-us` = 1000 (r.toml:9:1) must be below \
             `request-timeout-ms` = 1 (r.toml:1:1): a waiting request",
        ),
        (
            &format!(
                "flush-rule = 'latency'\nmax-delay-us = 1000\n{TWO_POOLS}flush-rule = 'balanced'"
            ),
            vec!["--request-timeout-ms=1"],
            "`pool.pages.max-delay-us` = 1000 (r.toml:2:1) must be below `request-timeout-ms` = 1 (command line)",
        ),
        (
            &format!("max-delay-us = 1000\n{TWO_POOLS}max-delay-us = 500"),
            vec!["--request-timeout-ms=1"],
            "`max-delay-us` = 1000 (r.toml:1:1) must be below `request-timeout-ms` = 1 (command line)",
        ),
        (
            &format!("max-delay-us = 1000\n{TWO_POOLS}fuse = false"),
            vec!["--request-timeout-ms=1"],
            "`max-delay-us` = 1000 (r.toml:1:1) must be below",
        ),
    ] {
        assert_problem(file, &arguments, problem);
    }
}

#[test]
fn all_problems_are_reported_at_once() {
    let file = "sesions-max = 1\nthreads = 0\nfuse = 'x'\nlinks-max = 2";
    let problems = resolve(file, &[], &["--listen", "x"]).err().unwrap();
    assert_eq!(problems.len(), 5, "{problems:?}");
}

/// An old name says the same as the new one. A warning names the place and the new name.
#[test]
fn old_option_name_works_with_a_warning() {
    for renamed in &RENAMED {
        let (old, option) = (renamed.old, find(renamed.new).expect(renamed.new));
        assert!(find(old).is_none(), "{old} is in use");
        // The example of an option that was a switch is its value for `false`.
        let words = renamed.switch_values;
        assert!(words.is_none_or(|[for_false, _]| for_false == option.example));
        let is_old_switch = |name: &str| words.is_some() && name == old;
        let in_file = |name: &str| match is_old_switch(name) {
            true => "false".to_owned(),
            false => option.in_file(&[option.example.to_owned()]),
        };
        let on_line = |name: &str| match is_old_switch(name) {
            true => "false",
            false => option.example,
        };
        let file = |name: &str| good(&format!("{name} = {}", in_file(name)), &[], &[]);
        let line = |name: &str| good("", &[], &[&format!("--{name}={}", on_line(name))]);
        let what = format!("{old}: {}", renamed_notice(option, old));
        for (mut by_old, by_new, place) in [
            (file(old), file(option.name), "r.toml:1:1: "),
            (line(old), line(option.name), "--"),
        ] {
            assert_eq!(by_old.warnings, [format!("{place}{what}")]);
            by_old.warnings.clear();
            assert_eq!(by_old, by_new, "{old}");
        }
    }
}

/// `hold` was a switch: each of its values says the same as a value of `flush-rule`, in each place.
#[test]
fn hold_works_with_each_value_in_each_place() {
    let notice = "hold: the option has a new name, `flush-rule`, with `server-cpu` in place of \
                  `true` and `latency` in place of `false`; the old one works until the next version";
    for (file, arguments, new, place) in [
        ("", &["--hold"][..], "flush-rule = 'server-cpu'", "--"),
        ("", &["--hold=yes"], "flush-rule = 'server-cpu'", "--"),
        ("", &["--hold=no"], "flush-rule = 'latency'", "--"),
        (
            "hold = true",
            &[],
            "flush-rule = 'server-cpu'",
            "r.toml:1:1: ",
        ),
        (
            "hold = false",
            &[],
            "flush-rule = 'latency'",
            "r.toml:1:1: ",
        ),
    ] {
        let (by_old, by_new) = (good(file, &[], arguments), good(new, &[], &[]));
        assert_eq!(
            by_old.settings.flush, by_new.settings.flush,
            "{file} {arguments:?}"
        );
        assert_eq!(by_old.warnings, [format!("{place}{notice}")]);
    }
    for (old, new) in [("true", "server-cpu"), ("false", "latency")] {
        let by_old = good(&format!("{TWO_POOLS}hold = {old}"), &[], &[]);
        let by_new = good(&format!("{TWO_POOLS}flush-rule = '{new}'"), &[], &[]);
        assert_eq!(by_old.pools, by_new.pools, "{old}");
        let notice = format!("r.toml:8:1: pool.pages.{notice}");
        assert_eq!(by_old.warnings[0], notice);
    }
}

/// An old and a new name in one layer are one problem. A later layer overrules an earlier one.
#[test]
fn old_and_new_option_name_exclude_each_other() {
    let what = "`session-depth-max` is the old name of `session-pipeline-max`, and both are \
                given: remove `session-depth-max`";
    let (old, new) = ("session-depth-max", "session-pipeline-max");
    for (file, arguments, problem) in [
        (
            format!("{old} = 1\n{new} = 2"),
            vec![],
            format!("r.toml:2:1: {new}: {what}"),
        ),
        (
            format!("{new} = 2\n{old} = 1"),
            vec![],
            format!("r.toml:2:1: {old}: {what}"),
        ),
        (
            String::new(),
            vec!["--session-depth-max=1", "--session-pipeline-max=2"],
            format!("--{new}: {what}"),
        ),
        (
            String::new(),
            vec![
                "--session-pipeline-max=2",
                "--session-depth-max=1",
                "--session-depth-max=1",
            ],
            format!("--{old}: {what}"),
        ),
    ] {
        let told = resolve(&file, &[], &arguments).err().expect("a problem");
        assert_eq!(told, [problem]);
    }
    let overruled = good(&format!("{old} = 1"), &[], &["--session-pipeline-max=2"]);
    assert_eq!(overruled.limits().session_pipeline_max, 2);
    assert_eq!(overruled.warnings.len(), 1);
}

/// Where the file cannot be read, is no TOML, or has a wrong path, it is not known whether it names
/// a control socket: there is one problem, the true one. Other problems do not hide that there is
/// no socket.
#[test]
fn missing_control_socket_is_a_problem_of_a_whole_file() {
    let told = |raw: RawConfig| -> Vec<String> {
        let problems = Config::control_socket(raw).expect_err("no file here names a socket");
        problems.iter().map(Problem::to_string).collect()
    };
    let of_file = |file: &str| {
        let mut raw = RawConfig::default();
        raw.add_toml("r.toml", file);
        told(raw)
    };
    for (file, place) in [
        ("control-socket = 'a", "r.toml:1:"),
        ("control-socket = 3", "r.toml:1:18: control-socket: must be"),
        ("control-socket = ''", "r.toml:1:18: control-socket: "),
        ("", "control-socket: is not set"),
    ] {
        let told = of_file(file);
        assert!(told.len() == 1 && told[0].starts_with(place), "{told:?}");
    }
    let mut raw = RawConfig::default();
    raw.add_file("/nonexistent/respool.toml");
    let missing = told(raw);
    assert!(
        missing.len() == 1 && missing[0].contains("cannot be read"),
        "{missing:?}"
    );
    let both = of_file("fuse = 3");
    assert!(
        both.len() == 2 && both[1].contains("is not set"),
        "{both:?}"
    );
}

/// A wrong value is a problem of the name that was given.
#[test]
fn problem_names_the_option_as_it_was_given() {
    for (file, arguments, problem) in [
        (
            "session-depth-max = 0",
            vec![],
            "r.toml:1:21: session-depth-max: must be",
        ),
        (
            "",
            vec!["--session-depth-max=0"],
            "--session-depth-max: must be",
        ),
    ] {
        let told = resolve(file, &[], &arguments).err().expect(problem);
        assert!(told[0].starts_with(problem) && told.len() == 1, "{told:?}");
    }
}

#[test]
fn problems_never_repeat_a_secret() {
    let file = "password = ''\nuser = ['SECRET', 'a:SECRET', 'a:SECRET']";
    let arguments = [
        "--backend",
        "redis://:SECRET/x@h",
        "--backend-password",
        "SECRET",
    ];
    for problem in resolve(file, &[], &arguments).err().unwrap() {
        assert!(!problem.contains("SECRET"), "{problem}");
    }
}

/// The printed configuration is a file that makes the same configuration, without passwords.
#[test]
fn printed_configuration_parses_as_itself() {
    let file = "listen = [':1', 'unix:/a\\\\b']\nthreads = 3\nspawn = true\nfuse = false";
    let arguments = [
        "--backend",
        "redis://h/2",
        "--session-idle-ms",
        "1h",
        "--user",
        "a:SECRET",
    ];
    let (config, resolved) = resolve(file, &[], &arguments).ok().unwrap();
    let printed = resolved.to_toml();
    assert!(printed.contains("threads = 3  # r.toml:2:1\n"), "{printed}");
    assert!(
        printed.contains("session-idle-ms = 3600000  # command line\n"),
        "{printed}"
    );
    assert!(!printed.contains("SECRET") && !format!("{config:?}").contains("SECRET"));
    let again = good(&printed, &[], &["--user", "a:SECRET"]);
    assert_eq!(again, config);
}

/// The printed configuration marks a password that a later layer gives in another form.
#[test]
fn printed_configuration_marks_overruled_passwords() {
    let printed = |file: &str, environment: &[(&str, &str)], arguments: &[&str]| {
        let (_, resolved) = resolve(file, environment, arguments).ok().unwrap();
        resolved.to_toml()
    };
    let secret = file_with("SECRET");
    let path = secret.path().display().to_string();
    let file = format!("password-file = '{path}'\nbackend-password-file = '{path}'\n");
    let variables = [
        ("RESPOOL_PASSWORD", "SECRET"),
        ("RESPOOL_BACKEND_PASSWORD", "SECRET"),
    ];
    let in_use = printed(&file, &[], &[]);
    let overruled = printed(&file, &variables, &[]);
    for (name, place) in [("password-file", "1:1"), ("backend-password-file", "2:1")] {
        let line = format!("{name} = '{path}'  # r.toml:{place}");
        let line = line.replace('\'', "\"");
        let plain = |text: &str| text.lines().any(|other| other == line);
        let marked = format!("# {line}, not in use");
        assert!(plain(&in_use), "{in_use}");
        assert!(!plain(&overruled), "{overruled}");
        assert!(
            overruled.lines().any(|other| other == marked),
            "{overruled}"
        );
        let literal = format!("# {} = \"********\"  # ", name.trim_end_matches("-file"));
        let mut literals = overruled
            .lines()
            .filter(|other| other.starts_with(&literal));
        assert!(
            literals.all(|other| !other.ends_with("not in use")),
            "{overruled}"
        );
    }
    let argument = format!("--password-file={path}");
    let overruled = printed("", &variables[..1], &[&argument]);
    let mut lines = overruled.lines();
    let literal = lines.find(|line| line.starts_with("# password = "));
    assert!(
        literal.is_some_and(|line| line.ends_with(", not in use")),
        "{overruled}"
    );
}

/// Valid values of one option.
fn samples(option: &'static Opt) -> BoxedStrategy<Vec<String>> {
    let one = |text: &str| Just(vec![text.to_owned()]).boxed();
    match &option.kind {
        OptionKind::Switch(_) => any::<bool>()
            .prop_map(|value| vec![value.to_string()])
            .boxed(),
        OptionKind::Number(number) => prop_oneof![
            (number.min..=number.max).prop_map(|value| vec![value.to_string()]),
            Just(vec![option.example.to_owned()]),
        ]
        .boxed(),
        OptionKind::Text { .. } => one(option.example),
        OptionKind::List { .. } => {
            let twice = match option.name {
                "listen" => vec![":1".to_owned(), "unix:/a b".to_owned()],
                "tls-listen" => vec![":4".to_owned(), "unix:/c d".to_owned()],
                "pool" => vec!["a=:1=redis://h".to_owned(), "b=:2,:3=redis://h".to_owned()],
                "address-map" => vec!["a:1=b:2".to_owned(), "c*=d*,[::1]=e".to_owned()],
                _ => vec!["a:\"1\"".to_owned(), "b:'\\2".to_owned()],
            };
            prop_oneof![one(option.example), Just(twice)].boxed()
        }
    }
}

proptest! {
    /// The same options in the file and on the command line make the same configuration.
    #[test]
    fn file_and_command_line_mean_the_same(
        given in prop::sample::subsequence(OPTIONS.iter().collect::<Vec<_>>(), 1..6)
            .prop_flat_map(|options| {
                options
                    .into_iter()
                    .map(|option| samples(option).prop_map(|texts| (option.name, texts)))
                    .collect::<Vec<_>>()
            })
    ) {
        let (mut file, mut arguments) = (String::new(), Vec::new());
        for (name, texts) in &given {
            let option = find(name).unwrap();
            file.push_str(&format!("{name} = {}\n", option.in_file(texts)));
            arguments.extend(texts.iter().map(|text| format!("--{name}={text}")));
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        match (resolve(&file, &[], &[]), resolve("", &[], &arguments)) {
            (Ok((by_file, _)), Ok((by_arguments, _))) => prop_assert_eq!(by_file, by_arguments),
            (Err(by_file), Err(by_arguments)) => {
                prop_assert_eq!(by_file.len(), by_arguments.len());
            }
            (by_file, by_arguments) => prop_assert!(
                false, "{:?} {:?}", by_file.map(|c| c.0), by_arguments.map(|c| c.0)
            ),
        }
    }
}

#[test]
fn every_option_works_in_the_file() {
    let secret = file_with("a secret");
    let path = secret.path().to_str().unwrap();
    let command = format!("/bin/cat {path}");
    let folder = tempfile::tempdir().unwrap();
    let control = folder.path().join("control.sock").display().to_string();
    // Options of TLS need others beside them, and files: `tls::every_option_works_in_the_file`.
    let options = OPTIONS.iter().filter(|option| option.topic != Topic::Tls);
    for option in options {
        let text = match option.name {
            "password-file" | "backend-password-file" => path,
            "backend-password-command" => command.as_str(),
            "control-socket" => control.as_str(),
            _ => option.example,
        };
        let beside: &[&str] = if option.topic == Topic::Spawn && option.name != "spawn" {
            &["--spawn"]
        } else {
            &[]
        };
        let file = format!("{} = {}", option.name, option.in_file(&[text.to_owned()]));
        let argument = format!("--{}={text}", option.name);
        let by_file = good(&file, &[], beside);
        let by_argument = good("", &[], &[beside, &[argument.as_str()]].concat());
        assert_eq!(by_file, by_argument, "{}", option.name);
        assert_ne!(
            by_file,
            good("", &[], &[]),
            "{}: the example is the default",
            option.name
        );
    }
}

/// A reload has the workers of the start, even if `threads = auto` counts others by then.
#[test]
fn reload_keeps_the_number_of_workers() {
    let mut before = good("threads = 'auto'", &[], &[]);
    before.workers += 1;
    let mut after = good("threads = 'auto'", &[], &[]);
    after.keep_fixed(&before);
    assert_eq!(after.workers, before.workers);
}

/// A control socket that cannot be made is a problem before the start.
#[test]
fn control_socket_that_cannot_be_made_is_a_problem() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("file"), "").unwrap();
    let socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
    for (name, problem) in [
        ("file/socket".to_owned(), "is no directory"),
        ("file".to_owned(), "is no socket"),
        ("x".repeat(108), "at the most"),
    ] {
        let Err(problems) = resolve("", &[], &["--control-socket", &path(&name)]) else {
            panic!("{name}");
        };
        assert!(problems[0].contains(problem), "{name}: {problems:?}");
    }
    for name in ["new", "socket", "missing/socket"] {
        good("", &[], &["--control-socket", &path(name)]);
    }
    drop(socket);
    let both = path("both");
    let listen = format!("unix://{both}");
    for (args, problem) in [
        (
            ["--control-socket", &both, "--listen", &listen],
            "is a listener for clients already",
        ),
        (
            ["--control-socket", "/", "--listen", "127.0.0.1:0"],
            "is a directory",
        ),
    ] {
        let Err(problems) = resolve("", &[], &args) else {
            panic!("{args:?}");
        };
        assert!(problems[0].contains(problem), "{args:?}: {problems:?}");
    }
}

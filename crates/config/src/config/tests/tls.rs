//! TLS in the configuration.

use std::path::Path;
use std::time::{Duration, SystemTime};

use respool_testkit::certificates::{CertificateFiles, TestCa, Validity};

use super::*;

/// A CA, two certificates and an expired one.
struct Files {
    ca: TestCa,
    one: CertificateFiles,
    other: CertificateFiles,
    expired: CertificateFiles,
    dir: tempfile::TempDir,
}

impl Files {
    fn new() -> Files {
        let dir = tempfile::tempdir().unwrap();
        let ca = TestCa::new(dir.path(), "own").unwrap();
        Files {
            one: ca.sign("one", &["localhost"]).unwrap(),
            other: ca.sign("other", &["other.example"]).unwrap(),
            expired: ca
                .sign_for("expired", &["localhost"], Validity::Past)
                .unwrap(),
            ca,
            dir,
        }
    }

    /// The text with the paths of the files.
    fn fill(&self, text: &str) -> String {
        let paths = [
            ("CA", &self.ca.file),
            ("CERT", &self.one.cert),
            ("KEY", &self.one.key),
            ("OTHER", &self.other.cert),
            ("THIRD", &self.other.key),
            ("EXPIRED", &self.expired.cert),
            ("OLD", &self.expired.key),
        ];
        let mut text = text.to_owned();
        for (name, path) in paths {
            text = text.replace(&format!("{{{name}}}"), &path.display().to_string());
        }
        text
    }

    /// The configuration of this file. Each line has one option.
    fn good(&self, file: &str) -> Config {
        good(&self.fill(file), &[], &[])
    }
}

const LISTENER: &str = "tls-listen = '127.0.0.1:1'\ntls-cert = '{CERT}'\ntls-key = '{KEY}'\n";

/// `tls-listen` takes the place of the default listener, and stands beside a given one.
#[test]
fn tls_listener_stands_alone_or_beside_a_plain_one() {
    let files = Files::new();
    let listeners = |file: &str| {
        let config = files.good(&format!("{file}{LISTENER}"));
        let listeners = config.listeners();
        let with_tls = listeners.iter().map(|listener| listener.tls.is_some());
        (config.summary(), with_tls.collect::<Vec<_>>())
    };
    let (summary, with_tls) = listeners("");
    assert!(summary.starts_with("listen tls:127.0.0.1:1;"), "{summary}");
    assert_eq!(with_tls, [true]);
    let (summary, with_tls) = listeners("listen = '127.0.0.1:2'\n");
    let both = "listen 127.0.0.1:2, tls:127.0.0.1:1;";
    assert!(summary.starts_with(both), "{summary}");
    assert_eq!(with_tls, [false, true]);
}

/// The printed configuration makes the same one, with pools and without.
#[test]
fn printed_tls_configuration_is_the_same() {
    let files = Files::new();
    let pools = "tls-cert = ['{CERT}', '{OTHER}']\ntls-key = ['{KEY}', '{THIRD}']\n\
                 tls-ca = '{CA}'\ntls-client-auth = 'required'\n\
                 [pool.a]\ntls-listen = '127.0.0.1:1'\nbackend = 'rediss://h'\n\
                 server-tls-ca = '{CA}'\nserver-tls-name = 'a.example'\n\
                 [pool.b]\nlisten = '127.0.0.1:2'\ntls-listen = '127.0.0.1:3'\n\
                 backend = 'redis://h:2'\n";
    for file in [LISTENER, pools] {
        let file = files.fill(file);
        let Ok((config, resolved)) = resolve(&file, &[], &[]) else {
            panic!("{file}")
        };
        let printed = resolved.to_toml();
        let again = good(&printed, &[], &[]);
        assert_eq!(again, config, "{printed}");
    }
    let config = files.good(pools);
    let of_pools = config.tls_files.of_pools(2);
    assert!(of_pools[0].is_some() && of_pools[1].is_none());
    let settings = config.settings(&[url("rediss://h"), url("redis://h:2")]);
    let tls: Vec<bool> = settings.pools.iter().map(|pool| pool.tls).collect();
    assert_eq!(tls, [true, false]);
}

fn url(text: &str) -> BackendUrl {
    crate::backend::parse_backend(text).unwrap()
}

/// Checks that the file has one problem, which contains the texts `place` and `what`.
fn assert_one_problem(files: &Files, file: &str, place: &str, what: &str) {
    let text = files.fill(file);
    let problems = resolve(&text, &[], &[]).err().unwrap_or_default();
    let [problem] = &problems[..] else {
        panic!("{file}: {problems:?}")
    };
    assert!(problem.contains(place), "{file}: {problem}");
    assert!(problem.contains(what), "{file}: {problem}");
    assert!(!problem.contains("PRIVATE KEY"), "{problem}");
}

/// Each mistake has one problem at its option. It names the file, and says what to do.
#[test]
fn wrong_tls_of_listeners_is_a_problem() {
    let files = Files::new();
    let missing = files.dir.path().join("missing");
    let missing = missing.display();
    for (file, place, what) in [
        (
            "tls-listen = '127.0.0.1:1'".to_owned(),
            "1:1: tls-listen: ",
            "needs a certificate: name its file by `tls-cert`",
        ),
        (
            "[pool.a]\nbackend = 'redis://h'\ntls-listen = ['127.0.0.1:1']".into(),
            "3:15: pool.a.tls-listen: ",
            "needs a certificate",
        ),
        (
            "tls-cert = '{CERT}'\n".into(),
            "1:1: tls-cert: ",
            "means nothing without `tls-listen`",
        ),
        (
            format!("{LISTENER}tls-client-auth = 'optional'"),
            "4:1: tls-client-auth: ",
            "`tls-ca` is missing",
        ),
        (
            format!("{LISTENER}tls-ca = '{{CA}}'"),
            "4:1: tls-ca: ",
            "set `tls-client-auth` to",
        ),
        (
            format!("{LISTENER}tls-ca = '{{CA}}'\ntls-client-auth = 'maybe'"),
            "5:19: tls-client-auth: ",
            "must be",
        ),
        (
            format!("{LISTENER}tls-ca = ''\ntls-client-auth = 'required'"),
            "4:10: tls-ca: ",
            "",
        ),
        (LISTENER.replace("{KEY}", ""), "3:11: tls-key: ", ""),
        (
            format!("{LISTENER}tls-min-version = '1.1'"),
            "4:19: tls-min-version: ",
            "must be `1.2` or `1.3`",
        ),
        (
            LISTENER.replace("'{KEY}'", "['{KEY}', '{THIRD}']"),
            "3:1: tls-key: ",
            "there are 1 `tls-cert` and 2 `tls-key`",
        ),
        (
            LISTENER.replace("{KEY}", "{THIRD}"),
            "3:1: tls-key: ",
            "does not match",
        ),
        (
            LISTENER.replace("{CERT}", "{KEY}"),
            "2:1: tls-cert: ",
            "certificate",
        ),
        (
            LISTENER.replace("{CERT}", &missing.to_string()),
            "2:1: tls-cert: ",
            "cannot be read: No such file",
        ),
    ] {
        assert_one_problem(&files, &file, place, what);
    }
}

/// A pool's own options about the check of certificates win over those of all pools.
#[test]
fn own_check_of_certificates_wins_over_that_of_all_pools() {
    let files = Files::new();
    let of_pool = |all: &str, own: &str, arguments: &[&str]| {
        let file = format!(
            "{all}\n[pool.a]\nlisten = '127.0.0.1:1'\nbackend = 'rediss://h'\n{own}\n\
             [pool.b]\nlisten = '127.0.0.1:2'\nbackend = 'redis://h:2'\n"
        );
        let (_, resolved) = resolve(&files.fill(&file), &[], arguments).ok()?;
        let values = resolved.values_of_pool("a");
        Some((
            values.server_tls_verify,
            values.server_tls_ca.is_some(),
            values.server_tls_name,
        ))
    };
    let (ca, name, off) = (
        "server-tls-ca = '{CA}'",
        "server-tls-name = 'b.example'",
        "server-tls-verify = false",
    );
    let both = format!("{ca}\n{name}");
    let named = Some("b.example".to_owned());
    assert_eq!(of_pool(&both, off, &[]), Some((false, false, None)));
    assert_eq!(of_pool(off, ca, &[]), Some((true, true, None)));
    assert_eq!(of_pool(off, name, &[]), Some((true, false, named.clone())));
    assert_eq!(of_pool(off, "", &[]), Some((false, false, None)));
    let on = format!("server-tls-verify = true\n{ca}");
    assert_eq!(of_pool(off, &on, &[]), Some((true, true, None)));
    // Both options in one place are wrong. An option of a later layer is not ignored.
    assert_eq!(of_pool("", &format!("{off}\n{ca}"), &[]), None);
    assert_eq!(of_pool("", ca, &["--server-tls-verify=false"]), None);
}

/// Each mistake in a TLS option of servers is one problem.
#[test]
fn wrong_tls_of_servers_is_a_problem() {
    let files = Files::new();
    for (file, place, what) in [
        (
            "server-tls-ca = '{CA}'".into(),
            "1:1: server-tls-ca: ",
            "write rediss in place of redis",
        ),
        (
            "backend = 'rediss://h'\nserver-tls-cert = '{CERT}'".into(),
            "2:1: server-tls-cert: ",
            "has no key",
        ),
        (
            "backend = 'rediss://h'\nserver-tls-key = '{KEY}'".into(),
            "2:1: server-tls-key: ",
            "has no certificate",
        ),
        (
            "backend = 'rediss://h'\nserver-tls-verify = false\nserver-tls-ca = '{CA}'".into(),
            "3:1: server-tls-ca: ",
            "no certificate is checked",
        ),
        (
            "[pool.a]\nlisten = '127.0.0.1:1'\nbackend = 'redis://h'\nserver-tls-name = 'b'".into(),
            "4:1: pool.a.server-tls-name: ",
            "means nothing without TLS",
        ),
        (
            "server-tls-ca = '{CA}'\n[pool.a]\nlisten = '127.0.0.1:1'\nbackend = 'rediss://h'\n\
             [pool.a.prefixes]\n'b:' = 'redis://i'"
                .into(),
            "2:7: pool.a.prefixes: ",
            "or make two pools",
        ),
        (
            "listen = '127.0.0.1:1'\n".to_owned() + LISTENER,
            "2:1: tls-listen: ",
            "`127.0.0.1:1` is given twice",
        ),
    ] {
        assert_one_problem(&files, &file, place, what);
    }
}

/// Checks that the file has these problems, each with its place and words, and no other.
fn assert_problems(files: &Files, file: &str, expected: &[&str]) {
    let text = files.fill(file);
    let problems = resolve(&text, &[], &[]).err().unwrap_or_default();
    assert_eq!(problems.len(), expected.len(), "{file}: {problems:#?}");
    for part in expected {
        let is_told = |problem: &String| problem.starts_with(part);
        assert!(problems.iter().any(is_told), "{part}: {problems:#?}");
    }
}

/// Mistakes in several TLS options are told at once, with those in the contents of their files.
#[test]
fn several_mistakes_of_tls_are_told_at_once() {
    let files = Files::new();
    for (file, expected) in [
        (
            "tls-listen = '127.0.0.1:1'\ntls-cert = ['{EXPIRED}', '{CERT}']\n\
             tls-key = ['{KEY}', '/nonexistent']\ntls-ca = '{KEY}'\n\
             tls-client-auth = 'optional'\nbackend = 'rediss://h'\nserver-tls-ca = '{KEY}'\n\
             server-tls-cert = '{OTHER}'\nserver-tls-key = '{KEY}'",
            &[
                "r.toml:3:1: tls-key: `/nonexistent` cannot be read",
                "r.toml:3:1: tls-key: ",
                "r.toml:4:1: tls-ca: ",
                "r.toml:7:1: server-tls-ca: ",
                "r.toml:9:1: server-tls-key: ",
            ][..],
        ),
        (
            "tls-listen = '127.0.0.1:1'\ntls-client-auth = 'optional'",
            &[
                "r.toml:1:1: tls-listen: a listener with TLS needs a certificate",
                "r.toml:2:1: tls-client-auth: `tls-ca` is missing",
            ],
        ),
        (
            "tls-listen = '127.0.0.1:1'\ntls-cert = '{CERT}'\ntls-ca = '{KEY}'",
            &[
                "r.toml:2:1: tls-cert: there are 1 `tls-cert` and 0 `tls-key`",
                "r.toml:3:1: tls-ca: clients are not asked for a certificate",
                "r.toml:3:1: tls-ca: `",
            ],
        ),
        (
            "backend = 'rediss://h'\nserver-tls-verify = false\nserver-tls-ca = '{CA}'\n\
             server-tls-name = 'a'\nserver-tls-key = '{KEY}'",
            &[
                "r.toml:3:1: server-tls-ca: no certificate is checked",
                "r.toml:4:1: server-tls-name: no name is checked",
                "r.toml:5:1: server-tls-key: has no certificate",
            ],
        ),
    ] {
        assert_problems(&files, file, expected);
    }
}

/// A wrong listener or backend does not make the TLS options beside it problems, too.
#[test]
fn wrong_value_has_no_second_problem() {
    let files = Files::new();
    let pairs = "tls-cert = '{CERT}'\ntls-key = '{KEY}'\n";
    for (file, problem) in [
        (
            format!("{pairs}tls-listen = '127.0.0.1'"),
            "r.toml:3:14: tls-listen: ",
        ),
        (
            format!("{pairs}[pool.a]\nbackend = 'redis://h'\ntls-listen = '127.0.0.1'"),
            "r.toml:5:14: pool.a.tls-listen: ",
        ),
        (
            format!("{pairs}[pool.a]\nbackend = 'h'\ntls-listen = '127.0.0.1:1'"),
            "r.toml:4:11: pool.a.backend: ",
        ),
        (
            "server-tls-ca = '{CA}'\nbackend = 'rediss://h:x'".into(),
            "r.toml:2:11: backend: ",
        ),
        (
            "server-tls-ca = '{CA}'\n[pool.a]\nlisten = ':1'\nbackend = 'rediss://h:x'".into(),
            "r.toml:4:11: pool.a.backend: ",
        ),
        (
            "backend = 'rediss://h'\nserver-tls-cert = ''\nserver-tls-key = '{KEY}'\n\
             server-tls-ca = '{CA}'"
                .into(),
            "r.toml:2:19: server-tls-cert: ",
        ),
    ] {
        assert_problems(&files, &file, &[problem]);
    }
    let missing = format!("tls-listen = '127.0.0.1'\ntls-ca = '{}'", "{CA}");
    let expected = [
        "r.toml:1:14: tls-listen: ",
        "r.toml:1:1: tls-listen: a listener with TLS needs a certificate",
        "r.toml:2:1: tls-ca: clients are not asked",
    ];
    assert_problems(&files, &missing, &expected);
}

/// Every file that cannot be read is a problem of its own.
#[test]
fn each_missing_file_is_a_problem() {
    let file = "tls-listen = '127.0.0.1:1'\ntls-cert = '/nonexistent/a'\n\
                tls-key = '/nonexistent/b'\nbackend = 'rediss://h'\n\
                server-tls-ca = '/nonexistent/c'\n";
    let problems = resolve(file, &[], &[]).err().unwrap_or_default();
    assert_eq!(problems.len(), 3, "{problems:?}");
    for (problem, path) in problems.iter().zip(["a", "b", "c"]) {
        let path = Path::new("/nonexistent").join(path);
        assert!(problem.contains(&*path.to_string_lossy()), "{problem}");
    }
}

/// Each option means the same in the file and on the command line, and is no default.
#[test]
fn every_option_works_in_the_file() {
    let files = Files::new();
    let listener = [
        "--tls-listen=127.0.0.1:1",
        "--tls-cert={CERT}",
        "--tls-key={KEY}",
    ];
    let [listen, cert, key] = listener;
    let ca = "--tls-ca={CA}";
    let (required, server) = ("--tls-client-auth=required", "--backend=rediss://h");
    let server_ca = "--server-tls-ca={CA}";
    let (server_cert, server_key) = ("--server-tls-cert={CERT}", "--server-tls-key={KEY}");
    for (name, text, beside) in [
        ("tls-listen", "127.0.0.1:1", &[cert, key][..]),
        ("tls-cert", "{CERT}", &[listen, key]),
        ("tls-key", "{KEY}", &[listen, cert]),
        ("tls-ca", "{CA}", &[listen, cert, key, required]),
        ("tls-client-auth", "required", &[listen, cert, key, ca]),
        ("tls-min-version", "1.3", &listener),
        ("server-tls-ca", "{CA}", &[server]),
        (
            "server-tls-cert",
            "{CERT}",
            &[server, server_ca, server_key],
        ),
        ("server-tls-key", "{KEY}", &[server, server_ca, server_cert]),
        ("server-tls-name", "a.example", &[server, server_ca]),
        ("server-tls-verify", "false", &[server]),
    ] {
        let (option, text) = (find(name).unwrap(), files.fill(text));
        let beside: Vec<String> = beside.iter().map(|text| files.fill(text)).collect();
        let beside: Vec<&str> = beside.iter().map(String::as_str).collect();
        let file = format!("{name} = {}", option.in_file(std::slice::from_ref(&text)));
        let argument = format!("--{name}={text}");
        let by_file = good(&file, &[], &beside);
        let by_argument = good("", &[], &[&beside[..], &[&argument]].concat());
        assert_eq!(by_file, by_argument, "{name}");
        // Without it, the others mean something else or nothing.
        if let Ok((without, _)) = resolve("", &[], &beside) {
            assert_ne!(by_file, without, "{name}");
        }
    }
    let tls = OPTIONS.iter().filter(|option| option.topic == Topic::Tls);
    assert_eq!(tls.count(), 11, "a new option belongs into the list above");
}

/// A certificate that expires soon is a warning that names its option, its file and the time left.
#[test]
fn certificate_that_expires_soon_is_a_warning() {
    const DAY: Duration = Duration::from_secs(24 * 3_600);
    let files = Files::new();
    let config = files.good(&format!(
        "{LISTENER}backend = 'rediss://localhost'\nserver-tls-cert = '{{OTHER}}'\n\
         server-tls-key = '{{THIRD}}'\nserver-tls-ca = '{{CA}}'\n"
    ));
    let tls = &config.tls_files;
    let expiries = tls.expiries();
    let named: Vec<_> = expiries.iter().map(|one| (one.option, &one.path)).collect();
    let expected = [
        ("tls-cert", &files.one.cert),
        ("server-tls-cert", &files.other.cert),
        ("server-tls-ca", &files.ca.file),
    ];
    assert_eq!(named, expected);
    let end = expiries[0].at;
    assert_eq!(tls.warnings(SystemTime::now()), [""; 0]);
    assert_eq!(tls.warnings(end - DAY * 15), [""; 0]);
    // That of rcgen.
    let time = "at 4096-01-01T00:00:00Z";
    for (before, left) in [
        (DAY * 14 - Duration::from_secs(1), "13 days"),
        (DAY, "1 day"),
        (DAY - Duration::from_secs(1), "23 hours"),
        (Duration::from_secs(3_599), "59 minutes"),
    ] {
        let warnings = tls.warnings(end - before);
        let path = files.one.cert.display();
        let text = format!(
            "--tls-cert: `{path}` (localhost) expires in {left}, {time}: replace it before"
        );
        assert!(warnings.contains(&text), "{warnings:?}, not {text}");
        let path = files.ca.file.display();
        let text = format!(
            "--server-tls-ca: `{path}` has a CA that expires in {left}, {time}: replace it before"
        );
        assert!(warnings.contains(&text), "{warnings:?}, not {text}");
        assert_eq!(warnings.len(), 3);
    }
    let late = tls.warnings(end + DAY);
    assert_eq!(late.len(), 3, "{late:?}");
    for (warning, words) in late.iter().zip([
        "(localhost) has expired at 4096-01-01T00:00:00Z: replace it, as clients refuse it",
        "(other.example) has expired at 4096-01-01T00:00:00Z: replace it, as servers refuse it",
        "has a CA that has expired at 4096-01-01T00:00:00Z",
    ]) {
        assert!(warning.contains(words), "{warning}");
    }
}

/// A certificate that has expired or is not valid yet is a warning, and no problem. So is one that
/// most clients refuse, as the certificate of a listener.
#[test]
fn certificate_that_peers_refuse_is_a_warning() {
    let files = Files::new();
    let sign =
        |name: &str, hosts: &[&str], validity| files.ca.sign_for(name, hosts, validity).unwrap();
    let early = sign("early", &["localhost"], Validity::Future);
    let nameless = sign("nameless", &[], Validity::Now);
    let client = files.ca.sign_for_clients("client", &["localhost"]).unwrap();
    let text = |one: &CertificateFiles| {
        let listener = LISTENER
            .replace("{CERT}", &one.cert.display().to_string())
            .replace("{KEY}", &one.key.display().to_string());
        let (cert, key) = (one.cert.display(), one.key.display());
        format!(
            "{listener}backend = 'rediss://localhost'\nserver-tls-ca = '{{CA}}'\n\
             server-tls-cert = '{cert}'\nserver-tls-key = '{key}'\n"
        )
    };
    for (one, expected) in [
        (
            &files.expired,
            &[
                "(localhost) has expired at 2001-01-01T00:00:00Z: replace it, as clients refuse it",
                "(localhost) has expired at 2001-01-01T00:00:00Z: replace it, as servers refuse it",
            ][..],
        ),
        (
            &early,
            &[
                "(localhost) is not valid before 2090-01-01T00:00:00Z: clients refuse it until \
                 then; is the clock right?",
                "(localhost) is not valid before 2090-01-01T00:00:00Z: servers refuse it until \
                 then; is the clock right?",
            ],
        ),
        (
            &nameless,
            &[" names no host: it has no subjectAltName, and most clients refuse it"],
        ),
        (
            &client,
            &[
                "(localhost) is not for servers: its extendedKeyUsage lacks serverAuth, and most \
               clients refuse it",
            ],
        ),
        (&files.one, &[]),
    ] {
        let found = files.good(&text(one)).warnings;
        let found: Vec<&String> = found
            .iter()
            .filter(|text| text.contains("tls-cert"))
            .collect();
        assert_eq!(found.len(), expected.len(), "{found:?}");
        let path = one.cert.display();
        for (warning, (words, option)) in found
            .iter()
            .zip(expected.iter().zip(["tls-cert", "server-tls-cert"]))
        {
            let begin = format!("--{option}: `{path}`");
            assert!(warning.starts_with(&begin), "{warning}");
            assert!(warning.ends_with(words), "{warning}, not {words}");
        }
    }
}

/// An expired CA of clients or servers is trusted, with a warning.
#[test]
fn expired_ca_is_a_warning() {
    let files = Files::new();
    let old = TestCa::new_for(files.dir.path(), "old", Validity::Past).unwrap();
    let path = old.file.display();
    let config = files.good(&format!(
        "{LISTENER}tls-ca = '{path}'\ntls-client-auth = 'required'\n\
         backend = 'rediss://localhost'\nserver-tls-ca = '{path}'\n"
    ));
    let warnings = config.tls_files.warnings(SystemTime::now());
    for option in ["tls-ca", "server-tls-ca"] {
        let time = "2001-01-01T00:00:00Z";
        let text = format!("--{option}: `{path}` has a CA that has expired at {time}: ");
        let mut warnings = warnings.iter();
        assert!(warnings.any(|one| one.starts_with(&text)), "{option}");
    }
    assert_eq!(warnings.len(), 2, "{warnings:?}");
}

//! The cost of TLS to clients: respool, the server's own TLS, and two proxies that only do TLS.
//!
//! `redis-benchmark` makes the load of the main table. At a fixed rate the lab's own generator
//! makes it, so respool gets as many requests at once with TLS as without. All certificates are of
//! one test CA.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use respool_testkit::certificates::{CertificateFiles, TestCa};
use tempfile::TempDir;

use crate::bar::Bar;
use crate::case::{Case, LoadGenerator, LoadTarget, TlsBy, Verb, Workload};
use crate::experiment::{Experiment, in_turn};
use crate::report::{CaseReport, Report, Round, paired};

/// SET and GET over TLS and without.
pub const TLS: Experiment = Experiment {
    name: "tls",
    title: "TLS to clients: its cost in respool, in the server, and in proxies that only do TLS",
    about: "\
What does TLS cost, and where? SET and GET of 50 clients, one at a time and 20 at once: to the server and to respool without
TLS, to both over TLS, and over TLS to HAProxy and stunnel, which pass the plain bytes on. Every proxy has one worker, but stunnel
has a thread for each client. Load and replies are those of redis-benchmark, which pays for TLS, too: where it is the slowest
part, the others wait for it, and batches are small. With --generator own --open-loop RATE all targets get equally many requests.",
    adapt: |options| {
        options.generator = LoadGenerator::RedisBenchmark;
        options.threads = vec![1];
        options.peers = TlsBy::ALL.map(|by| LoadTarget::Tls { by }).to_vec();
        options.budget_s = Some(900.0);
    },
    plan: in_turn,
    is_isolated: false,
};

/// CPU of respool per request, relative to respool without TLS: one request at a time.
const TO_PLAIN_MAX: f64 = 1.25;
/// CPU of respool per request, relative to respool without TLS: many requests at once.
const TO_PLAIN_PIPELINED_MAX: f64 = 1.35;
/// CPU of the server per request, relative to the server with TLS of its own: one at a time.
const SERVER_TO_OWN_TLS_MAX: f64 = 0.3;
/// CPU of respool per request, relative to a proxy that only does TLS.
const TO_PEER_MAX: f64 = 0.7;

/// The certificates of a run. Dropping them removes the files.
#[derive(Debug)]
pub struct LabCertificates {
    /// The file of the CA.
    pub ca: PathBuf,
    /// The certificate of all targets with TLS.
    pub identity: CertificateFiles,
    /// The certificate and its key in one file.
    pub bundle: PathBuf,
    _dir: TempDir,
}

impl LabCertificates {
    /// Makes a CA and a certificate for `localhost` and 127.0.0.1.
    ///
    /// # Errors
    /// When they cannot be made or written.
    pub fn make() -> io::Result<LabCertificates> {
        let dir = tempfile::tempdir()?;
        let ca = TestCa::new(dir.path(), "lab")?;
        let identity = ca.sign("target", &["localhost", "127.0.0.1"])?;
        let bundle = dir.path().join("bundle.pem");
        let text = fs::read_to_string(&identity.cert)? + &fs::read_to_string(&identity.key)?;
        fs::write(&bundle, text)?;
        Ok(LabCertificates {
            ca: ca.file,
            identity,
            bundle,
            _dir: dir,
        })
    }

    /// The options of a server that listens with TLS, too.
    pub(crate) fn server_options(&self, port: u16) -> Vec<String> {
        let path = |path: &Path| path.display().to_string();
        arguments([
            ("--tls-port", port.to_string()),
            ("--tls-cert-file", path(&self.identity.cert)),
            ("--tls-key-file", path(&self.identity.key)),
            ("--tls-ca-cert-file", path(&self.ca)),
            ("--tls-auth-clients", "no".to_owned()),
        ])
    }

    /// The options of a respool that listens with TLS alone.
    pub(crate) fn respool_options(&self, port: u16) -> Vec<String> {
        let path = |path: &Path| path.display().to_string();
        arguments([
            ("--tls-listen", format!("127.0.0.1:{port}")),
            ("--tls-cert", path(&self.identity.cert)),
            ("--tls-key", path(&self.identity.key)),
        ])
    }
}

/// The options with their values, as arguments of a command line.
pub(crate) fn arguments<const N: usize>(options: [(&str, String); N]) -> Vec<String> {
    let options = options.into_iter();
    options
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect()
}

/// HAProxy with one thread: TLS to clients, plain bytes to the server.
pub(crate) fn haproxy_configuration(port: u16, server: SocketAddr, bundle: &Path) -> String {
    format!(
        "global\n  nbthread 1\n  maxconn 8000\n\
         defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n\
         listen lab\n  bind 127.0.0.1:{port} ssl crt {}\n  server redis {server}\n",
        bundle.display()
    )
}

/// stunnel in the foreground: TLS to clients, plain bytes to the server.
pub(crate) fn stunnel_configuration(port: u16, server: SocketAddr, bundle: &Path) -> String {
    format!(
        "foreground = yes\npid =\nsocket = l:TCP_NODELAY=1\nsocket = r:TCP_NODELAY=1\n\
         [lab]\naccept = 127.0.0.1:{port}\nconnect = {server}\ncert = {}\n",
        bundle.display()
    )
}

/// The bounds for TLS, with the measured figures. Empty for another experiment.
pub fn bars(report: &Report) -> Vec<Bar> {
    let target = LoadTarget::Tls { by: TlsBy::Respool };
    let is_respools = |case: &&CaseReport| case.case.target == target;
    let cases = report.cases.iter().filter(is_respools);
    cases.flat_map(|case| bars_of(report, case)).collect()
}

fn bars_of(report: &Report, case: &CaseReport) -> Vec<Bar> {
    let workload @ Workload { pipeline, verb, .. } = case.case.workload;
    if !matches!(verb, Verb::Set | Verb::Get) {
        return Vec::new();
    }
    let to = |target: LoadTarget, figure: &dyn Fn(&Round) -> Option<f64>| {
        paired(case, report.find(workload, &target), figure)
    };
    let by = |by| LoadTarget::Tls { by };
    let to_plain_max = match pipeline {
        1 => TO_PLAIN_MAX,
        _ => TO_PLAIN_PIPELINED_MAX,
    };
    let server_max = (pipeline == 1).then_some(SERVER_TO_OWN_TLS_MAX);
    let found = [
        (
            "proxy CPU ÷ without TLS",
            Some(to_plain_max),
            to(LoadTarget::Respool { threads: 1 }, &Round::proxy_us),
        ),
        (
            "server CPU ÷ with TLS of its own",
            server_max,
            to(by(TlsBy::Server), &Round::server_us),
        ),
        (
            "proxy CPU ÷ HAProxy's",
            Some(TO_PEER_MAX),
            to(by(TlsBy::Haproxy), &Round::proxy_us),
        ),
        (
            "proxy CPU ÷ stunnel's",
            Some(TO_PEER_MAX),
            to(by(TlsBy::Stunnel), &Round::proxy_us),
        ),
    ];
    let bar = |(figure, most, found)| Bar {
        case: Case::clone(&case.case),
        figure,
        most,
        found,
    };
    found.into_iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::RunOptions;
    use crate::report::tests::{example, round};

    /// Every target is measured with every workload, and a bar compares within a round.
    #[test]
    fn tls_is_compared_within_a_round() {
        let mut report = example();
        let mut options = RunOptions::default();
        (TLS.adapt)(&mut options);
        options.verbs = vec![Verb::Get];
        let cases = options.cases();
        assert_eq!(cases.len(), 2 * (2 + 4));
        report.cases = cases
            .into_iter()
            .map(|case| {
                let rounds = (1..=3).map(|number| {
                    let mut round = round(number, &case.target, 100_000);
                    let slow = if number == 2 { 3.0 } else { 1.0 };
                    let dearer = match case.target {
                        LoadTarget::Tls { by: TlsBy::Respool } => 1.3,
                        LoadTarget::Tls { by: TlsBy::Haproxy } => 2.6,
                        _ => 1.0,
                    };
                    for usage in [&mut round.proxy, &mut round.server].into_iter().flatten() {
                        usage.used_s *= slow * dearer;
                    }
                    round
                });
                CaseReport::of(case.clone(), rounds.collect())
            })
            .collect();
        report.options = options;
        let found: Vec<_> = bars(&report)
            .into_iter()
            .map(|bar| (bar.case.workload.pipeline, bar.figure, bar.is_kept()))
            .collect();
        let expected = [1, 20].into_iter().flat_map(|pipeline| {
            [
                ("proxy CPU ÷ without TLS", Some(pipeline > 1)),
                (
                    "server CPU ÷ with TLS of its own",
                    (pipeline == 1).then_some(false),
                ),
                ("proxy CPU ÷ HAProxy's", Some(true)),
                ("proxy CPU ÷ stunnel's", Some(false)),
            ]
            .map(|(figure, kept)| (pipeline, figure, kept))
        });
        assert_eq!(found, expected.collect::<Vec<_>>());
        assert!(bars(&example()).is_empty());
    }
}

//! The pages of `metrics-listen`: `/metrics`, `/live` and `/ready`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use respool_testkit::client::{Reply, RespClient};
use respool_testkit::servers::{Proxy, ReservedPort, ServerProcess, any_server};
use respool_testkit::time::wait_until;

use crate::target::{Options, Target, proxied, respool};

const SOON: Duration = Duration::from_secs(20);

/// A response: the status, the head, and the body.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

/// Where the pages are, by the line `ready` of the log.
pub(crate) fn pages_of(proxy: &Proxy) -> SocketAddr {
    let began = Instant::now();
    loop {
        let log = proxy.log();
        let named = log.split_once("metrics=");
        let address = named.and_then(|(_, rest)| rest.split_ascii_whitespace().next());
        // The line is written after the listeners accept.
        if let Some(address) = address.filter(|_| log.contains(" pid=")) {
            return address.parse().expect("an address");
        }
        assert!(began.elapsed() < SOON, "the log names the pages: {log}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Sends `text` and reads one response. Its body ends by the length in its head.
fn exchange(stream: &mut (impl Read + Write), text: &str) -> Page {
    stream.write_all(text.as_bytes()).expect("the head is sent");
    let mut bytes = Vec::new();
    let head_bytes = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).expect("a head"), 1, "{bytes:?}");
        bytes.push(byte[0]);
    };
    let head = String::from_utf8(bytes).expect("a head is text");
    assert_eq!(head.len(), head_bytes);
    let status = head.split(' ').nth(1).expect("a status");
    let mut lines = head.lines();
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.to_owned())
    });
    let length: usize = length.map_or(0, |length| length.parse().expect("a length"));
    let mut body = vec![0; if text.starts_with("HEAD") { 0 } else { length }];
    stream.read_exact(&mut body).expect("the whole body");
    Page {
        status: status.parse().expect("a status"),
        head: head.to_ascii_lowercase(),
        body: String::from_utf8(body).expect("a body is text"),
    }
}

pub(super) fn connect(pages: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(pages).expect("the pages are there");
    stream.set_read_timeout(Some(SOON)).expect("a socket");
    stream
}

pub(crate) fn get(pages: SocketAddr, path: &str) -> Page {
    let text = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    exchange(&mut connect(pages), &text)
}

/// Waits until `/ready` has this status.
pub(super) fn wait_for_status(pages: SocketAddr, status: u16) -> Page {
    let began = Instant::now();
    loop {
        let page = get(pages, "/ready");
        if page.status == status {
            return page;
        }
        assert!(began.elapsed() < SOON, "{page:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// A label set: names with values.
pub(super) type Labels = BTreeMap<String, String>;

/// Reads a text of format 0.0.4 strictly: each sample belongs to the family of the last TYPE, each
/// family and each series is there once, and each number can be read.
pub(super) fn parse(text: &str) -> Vec<(String, Labels, f64)> {
    let (mut families, mut series) = (BTreeSet::new(), BTreeSet::new());
    let (mut family, mut kind) = (String::new(), String::new());
    let (mut samples, mut help) = (Vec::new(), String::new());
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, text) = rest.split_once(' ').expect("a help");
            assert!(!text.trim().is_empty(), "{line}");
            help = name.to_owned();
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, its_kind) = rest.split_once(' ').expect("a type");
            assert_eq!(help, name, "HELP comes first");
            assert!(families.insert(name.to_owned()), "{name} is there twice");
            (family, kind) = (name.to_owned(), its_kind.to_owned());
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            continue;
        }
        assert!(!line.starts_with('#') && !line.is_empty(), "{line}");
        let (name, value) = line.rsplit_once(' ').expect("a value");
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
        assert!(series.insert(name.to_owned()), "{name} is there twice");
        let (name, labels) = match name.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}').expect("a bracket")),
            None => (name, ""),
        };
        let suffix = name
            .strip_prefix(&family)
            .unwrap_or_else(|| panic!("{line}"));
        match kind.as_str() {
            "histogram" => assert!(["_bucket", "_sum", "_count"].contains(&suffix), "{line}"),
            "counter" | "gauge" => assert_eq!(suffix, "", "{line}"),
            _ => panic!("{kind}"),
        }
        samples.push((name.to_owned(), labels_of(labels), value));
    }
    samples
}

/// `a="b",c="d"`. No value of these tests has a quote or a comma.
fn labels_of(text: &str) -> Labels {
    let pairs = text.split(',').filter(|pair| !pair.is_empty());
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').expect("a label");
        let value = value
            .strip_prefix('"')
            .and_then(|value| value.strip_suffix('"'));
        (name.to_owned(), value.expect("quotes").to_owned())
    };
    pairs.map(pair).collect()
}

pub(super) fn value_of(
    samples: &[(String, Labels, f64)],
    name: &str,
    labels: &[(&str, &str)],
) -> f64 {
    let has = |of: &Labels| {
        labels
            .iter()
            .all(|(name, value)| of.get(*name).is_some_and(|its| its == value))
    };
    let mut found = samples.iter().filter(|(its, of, _)| its == name && has(of));
    let (_, _, value) = found.next().unwrap_or_else(|| panic!("{name} {labels:?}"));
    assert!(found.next().is_none(), "{name} {labels:?} is there twice");
    *value
}

pub(super) fn with_pages(args: &[&str]) -> Target {
    let mut all = vec!["--metrics-listen", "127.0.0.1:0"];
    all.extend(args);
    proxied(&Options::with(&all))
}

/// The counters of INFO and of `/metrics` are equal while nothing happens, in both formats. Keys
/// and clients' addresses are in neither.
#[test]
fn metrics_agree_with_info() {
    let target = with_pages(&["--threads=2"]);
    let pages = pages_of(target.proxy());
    let mut clients: Vec<_> = (0..4).map(|_| target.client()).collect();
    for client in &mut clients {
        assert_eq!(client.call("SET secretkey value"), Reply::ok());
        client.call("GET secretkey");
        client.call("NOSUCHCOMMAND");
    }
    // Workers report twice a second.
    thread::sleep(Duration::from_millis(1_200));
    let page = get(pages, "/metrics");
    assert_eq!(page.status, 200);
    assert!(
        page.head
            .contains("content-type: text/plain; version=0.0.4"),
        "{}",
        page.head
    );
    let samples = parse(&page.body);
    let Reply::Bulk(info) = clients[0].call("INFO respool") else {
        panic!("INFO is a text");
    };
    let info = String::from_utf8(info).expect("text");
    let field = |name: &str| -> f64 {
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name}:")));
        line.and_then(|text| text.parse().ok())
            .unwrap_or_else(|| panic!("{name}: {info}"))
    };
    for (metric, name) in [
        ("respool_sessions", "respool_sessions"),
        ("respool_sessions_accepted_total", "respool_sessions_total"),
        ("respool_link_requests_total", "respool_link_requests"),
        ("respool_links", "respool_links"),
        ("respool_workers", "respool_workers"),
    ] {
        assert_eq!(value_of(&samples, metric, &[]), field(name), "{metric}");
    }
    assert_eq!(
        value_of(
            &samples,
            "respool_requests_failed_total",
            &[("outcome", "unknown")]
        ),
        field("respool_failed_unknown")
    );
    // The counters of INFO are from before it came.
    assert_eq!(
        value_of(&samples, "respool_requests_total", &[]),
        field("respool_requests")
    );
    let server = target.server.address().to_string();
    let labels = [("pool", "default"), ("server", server.as_str())];
    assert_eq!(value_of(&samples, "respool_server_up", &labels), 1.0);
    // One shared link for each worker. Login probes are in `respool_links` alone, as in INFO.
    assert_eq!(value_of(&samples, "respool_server_links", &labels), 2.0);
    for mode in ["user", "system"] {
        let of = [labels[0], labels[1], ("mode", mode)];
        let cpu_s = value_of(&samples, "respool_server_cpu_seconds_total", &of);
        assert!((0.0..60.0).contains(&cpu_s), "{mode}: {cpu_s}");
    }
    let primary = [labels[0], labels[1], ("role", "primary"), ("state", "up")];
    assert_eq!(value_of(&samples, "respool_server_info", &primary), 1.0);
    assert_eq!(value_of(&samples, "respool_pool_ready", &labels[..1]), 1.0);
    let sessions: f64 = ["0", "1"]
        .iter()
        .map(|worker| value_of(&samples, "respool_worker_sessions", &[("worker", worker)]))
        .sum();
    assert_eq!(sessions, 4.0);
    assert!(value_of(&samples, "process_resident_memory_bytes", &[]) > 1e6);
    assert!(value_of(&samples, "process_open_fds", &[]) > 10.0);
    assert!(!page.body.contains("secretkey"), "no keys");
    let local = clients[0].stream().local_addr().expect("a socket");
    assert!(
        !page.body.contains(&local.to_string()),
        "no clients' addresses"
    );

    let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    let text = format!("GET /metrics HTTP/1.1\r\nHost: a\r\n{accept}\r\n\r\n");
    let open_metrics = exchange(&mut connect(pages), &text);
    assert!(
        open_metrics
            .head
            .contains("content-type: application/openmetrics-text")
    );
    assert!(
        open_metrics.body.ends_with("# EOF\n"),
        "{}",
        open_metrics.body
    );
}

/// Each answered request is in the three histograms of its command, with its time in seconds.
#[test]
fn times_of_requests_are_shown_by_command() {
    let target = with_pages(&[]);
    let pages = pages_of(target.proxy());
    let mut client = target.client();
    let began = Instant::now();
    for _ in 0..7 {
        assert_eq!(client.call("SET key value"), Reply::ok());
    }
    client.call("BLPOP queue 0.2");
    // It has no name in the metrics.
    client.call("STRLEN key");
    let took_s = began.elapsed().as_secs_f64();
    let families = ["request_duration", "request_wait", "server_duration"];
    let figure = |samples: &[_], family: &str, of: &str, labels: &[(&str, &str)]| {
        value_of(samples, &format!("respool_{family}_seconds_{of}"), labels)
    };
    let samples = loop {
        let samples = parse(&get(pages, "/metrics").body);
        let has = |command: &str| {
            let is_it = |(_, labels, _): &(String, Labels, f64)| {
                labels.get("command").is_some_and(|found| found == command)
            };
            samples.iter().any(is_it)
        };
        // A worker publishes them once a second.
        if ["set", "blpop", "other"].into_iter().all(has) {
            break samples;
        }
        assert!(began.elapsed() < SOON, "{samples:?}");
        thread::sleep(Duration::from_millis(50));
    };
    for (command, count) in [("set", 7.0), ("blpop", 1.0)] {
        for family in families {
            let command = ("command", command);
            assert_eq!(figure(&samples, family, "count", &[command]), count);
            let all = [command, ("le", "+Inf")];
            assert_eq!(figure(&samples, family, "bucket", &all), count);
        }
    }
    let sums = families.map(|family| figure(&samples, family, "sum", &[("command", "blpop")]));
    // A sum is exact to 1.6 %.
    let [whole, waiting, server] = sums;
    assert!(whole > 0.19 && whole < 1.02 * took_s, "{sums:?}");
    assert!(
        server > 0.19 && (whole - waiting - server).abs() < 0.05 * whole,
        "{sums:?}"
    );
    for (le, count) in [("0.1", 0.0), ("10", 1.0)] {
        let labels = [("command", "blpop"), ("le", le)];
        assert_eq!(
            figure(&samples, families[2], "bucket", &labels),
            count,
            "{le}"
        );
    }
}

/// `/ready` fails while the server is down, and names the pool. `/live` does not.
#[test]
fn readiness_follows_the_server() {
    let target = with_pages(&[]);
    let pages = pages_of(target.proxy());
    wait_for_status(pages, 200);
    target.server.kill9();
    let page = wait_for_status(pages, 503);
    let address = target.server.address();
    let refused = format!("pool default: no server can be used: {address}: Connection refused");
    assert!(page.body.starts_with(&refused), "{}", page.body);
    assert_eq!(get(pages, "/live").status, 200);
    let samples = parse(&get(pages, "/metrics").body);
    assert_eq!(
        value_of(&samples, "respool_pool_ready", &[("pool", "default")]),
        0.0
    );
    let mut target = target;
    target.server.restart().expect("the port is free");
    wait_for_status(pages, 200);
}

/// A server that asks clients for a password counts as one that answers, while it is there. It does
/// not count if it refuses the password that the configuration has.
#[test]
fn server_with_passwords_of_clients_is_ready() {
    let server = ServerProcess::start(&any_server(), &["--requirepass", "secret"]);
    let mut server = server.expect("a server");
    let start = |login: &str| {
        let backend = format!("--backend=redis://{login}{}", server.address());
        let args = ["--threads=1", "--metrics-listen=127.0.0.1:0", &backend];
        Proxy::start(&respool(), &args).expect("respool starts")
    };
    let proxy = start("");
    let wrong = start(":wrong@");
    let pages = pages_of(&proxy);
    wait_for_status(pages, 200);
    let mut client = RespClient::connect(proxy.address());
    assert_eq!(client.call("AUTH secret"), Reply::ok());
    assert_eq!(client.call("SET key value"), Reply::ok());
    let refused = format!(
        "pool default: no server can be used: {}: ",
        server.address()
    );
    wait_until("the reason is that of the server", SOON, || {
        let page = get(pages_of(&wrong), "/ready");
        page.body.starts_with(&refused) && page.body.contains("WRONGPASS")
    });
    // The server stays: so does this.
    thread::sleep(Duration::from_millis(1_200));
    assert_eq!(get(pages_of(&wrong), "/ready").status, 503);
    assert_eq!(get(pages, "/ready").status, 200);
    server.kill9();
    wait_for_status(pages, 503);
    server.restart().expect("the port is free");
    wait_for_status(pages, 200);
}

/// A server that withdraws the configured login keeps old links up, and refuses new clients. So
/// respool is not ready, and the figures name the server. Without clients respool finds out, too,
/// that the server accepts the login again.
#[test]
fn withdrawn_login_is_not_ready() {
    let server = ServerProcess::start::<&str>(&any_server(), &[]).expect("a server");
    let mut direct = RespClient::connect(server.address());
    let set = "ACL SETUSER app on >first ~* &* +@all";
    assert_eq!(direct.call(set), Reply::ok());
    let backend = format!("--backend=redis://app:first@{}", server.address());
    let args = ["--threads=2", "--metrics-listen=127.0.0.1:0", &backend];
    let proxy = Proxy::start(&respool(), &args).expect("respool starts");
    let pages = pages_of(&proxy);
    let mut old = RespClient::connect(proxy.address());
    assert_eq!(old.call("SET key value"), Reply::ok());
    let address = server.address().to_string();
    let figures = |expected: [f64; 3]| {
        let samples = parse(&get(pages, "/metrics").body);
        let of_server = [("pool", "default"), ("server", address.as_str())];
        let found = [
            value_of(&samples, "respool_pool_ready", &of_server[..1]),
            value_of(&samples, "respool_server_up", &of_server),
            value_of(&samples, "respool_server_login_withdrawn", &of_server),
        ];
        assert_eq!(found, expected);
    };
    wait_for_status(pages, 200);
    figures([1.0, 1.0, 0.0]);
    // A check has to be good after the session came, or the session is closed, too.
    thread::sleep(Duration::from_millis(1_200));
    let change = "ACL SETUSER app <first >second";
    assert_eq!(direct.call(change), Reply::ok());
    let page = wait_for_status(pages, 503);
    let reason = "does not accept the configured login any more";
    assert_eq!(page.body, format!("pool default: {address} {reason}\n"));
    figures([0.0, 1.0, 1.0]);
    assert_eq!(old.call("GET key"), Reply::bulk("value"));
    drop(old);
    thread::sleep(Duration::from_millis(1_500));
    assert_eq!(get(pages, "/ready").status, 503);
    assert_eq!(direct.call("ACL SETUSER app >first"), Reply::ok());
    wait_for_status(pages, 200);
    figures([1.0, 1.0, 0.0]);
}

/// Where the server of a prefix is down, `/ready` names the prefix: the other servers answer.
#[test]
fn readiness_names_the_prefix_without_a_server() {
    let server = ServerProcess::start::<&str>(&any_server(), &[]).expect("a server");
    let down = ReservedPort::new().expect("a free port");
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("respool.toml");
    let proxy = Proxy::start_with(&respool(), |port| {
        let text = format!(
            "threads = 1\nmetrics-listen = '127.0.0.1:0'\n[pool.two]\nlisten = '127.0.0.1:{port}'\n\
             backend = 'redis://{}'\n[pool.two.prefixes]\n'sess:' = 'redis://127.0.0.1:{}'\n",
            server.address(),
            down.port,
        );
        std::fs::write(&file, text).expect("a new directory can be changed");
        vec!["--config".into(), file.display().to_string()]
    });
    let proxy = proxy.expect("respool starts");
    let page = wait_for_status(pages_of(&proxy), 503);
    let reason = format!(
        "pool two: no server can be used for keys with the prefix `sess:`: 127.0.0.1:{}: \
         Connection refused (os error 111)\n",
        down.port
    );
    wait_until("only the prefix is named", SOON, || {
        get(pages_of(&proxy), "/ready").body == reason
    });
    assert!(
        page.body.contains("for keys with the prefix `sess:`"),
        "{}",
        page.body
    );
}

/// A pool that is not required keeps respool ready while it has no server.
#[test]
fn pool_that_is_not_required_does_not_count() {
    let mut target = with_pages(&["--ready-requires-server=false"]);
    let pages = pages_of(target.proxy());
    target.server.kill9();
    thread::sleep(Duration::from_millis(1_200));
    let samples = parse(&get(pages, "/metrics").body);
    assert_eq!(
        value_of(&samples, "respool_pool_ready", &[("pool", "default")]),
        0.0
    );
    assert_eq!(get(pages, "/ready").status, 200);
    target.server.restart().expect("the port is free");
}

/// During a drain respool is alive and not ready.
#[test]
fn drain_is_not_ready() {
    let target = with_pages(&[]);
    let pages = pages_of(target.proxy());
    wait_for_status(pages, 200);
    let mut client = target.client();
    assert_eq!(client.call("SET key value"), Reply::ok());
    target.server.stop();
    client.send(b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n");
    thread::sleep(Duration::from_millis(200));
    target.proxy().ask_to_end();
    let page = wait_for_status(pages, 503);
    assert!(page.body.starts_with("respool is stopping\n"), "{page:?}");
    assert_eq!(get(pages, "/live").status, 200);
    target.server.cont();
    assert_eq!(client.reply(), Reply::bulk("value"));
}

/// The pages know GET and HEAD on three paths. A connection carries any number of requests.
#[test]
fn pages_follow_http() {
    let target = with_pages(&[]);
    let pages = pages_of(target.proxy());
    let mut stream = connect(pages);
    for (text, status) in [
        ("GET /live HTTP/1.1\r\nHost: a\r\n\r\n", 200),
        ("HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n", 200),
        ("GET /live?verbose=1 HTTP/1.1\r\nHost: a\r\n\r\n", 200),
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 404),
        ("GET /metrics/x HTTP/1.1\r\nHost: a\r\n\r\n", 404),
        ("DELETE /ready HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (
            "POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
            405,
        ),
        ("GET /live HTTP/1.1\r\nHost: a\r\n\r\n", 200),
    ] {
        let page = exchange(&mut stream, text);
        assert_eq!(page.status, status, "{text}: {page:?}");
        assert_eq!(
            page.head.contains("allow: get, head"),
            status == 405,
            "{text}"
        );
    }
    let long = "x".repeat(9 << 10);
    for (text, status) in [
        ("nonsense\r\n\r\n".to_owned(), 400),
        (
            format!("GET /live HTTP/1.1\r\nHost: a\r\nLong: {long}\r\n\r\n"),
            431,
        ),
    ] {
        let page = exchange(&mut connect(pages), &text);
        assert_eq!(page.status, status, "{page:?}");
    }
    assert_eq!(get(pages, "/live").status, 200);
}

/// Clients that send half a request leave room for others: the oldest is closed.
#[test]
fn silent_clients_leave_room_for_others() {
    let target = with_pages(&[]);
    let pages = pages_of(target.proxy());
    let fds = target.proxy().fds();
    let mut silent: Vec<TcpStream> = (0..100).map(|_| connect(pages)).collect();
    for stream in &mut silent {
        // The oldest are closed already.
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n");
    }
    assert_eq!(get(pages, "/live").status, 200);
    assert_eq!(get(pages, "/metrics").status, 200);
    assert!(
        target.proxy().fds() < fds + 70,
        "the connections are bounded"
    );
    drop(silent);
    let began = Instant::now();
    while target.proxy().fds() > fds {
        assert!(began.elapsed() < SOON, "the descriptors are given back");
        thread::sleep(Duration::from_millis(50));
    }
}

/// The pages may be behind a socket in the file system, which goes at the end.
#[test]
fn pages_may_be_behind_a_unix_socket() {
    let server = ServerProcess::start::<&str>(&any_server(), &[]);
    let server = server.expect("a server");
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pages.sock");
    let args = [
        format!("--backend=redis://{}", server.address()),
        format!("--metrics-listen=unix:{}", path.display()),
    ];
    let mut proxy = Proxy::start(&respool(), &args).expect("respool starts");
    let mut stream = UnixStream::connect(&path).expect("the socket is there");
    let page = exchange(&mut stream, "GET /live HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((page.status, page.body.as_str()), (200, "live\n"));
    proxy.terminate().expect("respool ends");
    assert!(!path.exists());
}

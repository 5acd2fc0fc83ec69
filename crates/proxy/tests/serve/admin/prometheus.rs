//! A real Prometheus scrapes `/metrics`, and promtool checks it.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use respool_testkit::client::Reply;
use respool_testkit::servers::{Process, Ready, find_program, leave_out};

use super::metrics::{get, pages_of, with_pages};

const SOON: Duration = Duration::from_secs(30);

/// The value of a query that has one result. `None`: it has no result yet.
fn ask(prometheus: SocketAddr, query: &str) -> Option<f64> {
    let mut stream = TcpStream::connect(prometheus).expect("Prometheus listens");
    stream.set_read_timeout(Some(SOON)).expect("a socket");
    let head = format!("GET /api/v1/query?query={query} HTTP/1.0\r\nHost: a\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("it is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (_, values) = answer.split_once("\"value\":[")?;
    assert!(!values.contains("\"value\""), "one result: {answer}");
    // `TIME,"VALUE"]`
    let value = values.split('"').nth(1).expect("a value");
    Some(value.parse().unwrap_or_else(|_| panic!("{answer}")))
}

/// Asks until the query has this value.
fn wait_for(prometheus: &Process, query: &str, value: f64) {
    let began = Instant::now();
    loop {
        let found = ask(prometheus.address(), query);
        if found == Some(value) {
            return;
        }
        let log = prometheus.log();
        assert!(began.elapsed() < SOON, "{query}: {found:?}; {log}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// Prometheus takes the page in the format that it prefers, and its queries have the figures.
#[test]
fn prometheus_scrapes_the_metrics() {
    let program = match find_program("prometheus") {
        Ok(program) => program,
        Err(missing) => return leave_out("prometheus", missing),
    };
    let mut target = with_pages(&[]);
    let pages = pages_of(target.proxy());
    let prometheus = Process::start(Ready::Listen, &mut |port, directory| {
        let config = directory.join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 1s}}\n\
             scrape_configs:\n\
             - job_name: respool\n  \
               static_configs: [{{targets: [\"{pages}\"]}}]\n"
        );
        fs::write(&config, text).expect("a file");
        let mut command = Command::new(&program);
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", directory.display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"));
        command
    });
    let prometheus = prometheus.expect("Prometheus starts");
    wait_for(&prometheus, "up", 1.0);
    let mut client = target.client();
    for _ in 0..7 {
        assert_eq!(client.call("SET key value"), Reply::ok());
    }
    // The test waits for the start of respool by a request that respool itself answers.
    let query = "respool_requests_total-respool_requests_answered_locally_total";
    wait_for(&prometheus, query, 7.0);
    wait_for(&prometheus, "respool_sessions", 1.0);
    wait_for(&prometheus, "respool_pool_ready", 1.0);
    target.server.kill9();
    wait_for(&prometheus, "respool_pool_ready", 0.0);
    target.server.restart().expect("the port is free");
    wait_for(&prometheus, "respool_pool_ready", 1.0);
}

/// promtool finds no mistake in the page.
#[test]
fn promtool_accepts_the_metrics() {
    let program = match find_program("promtool") {
        Ok(program) => program,
        Err(missing) => return leave_out("prometheus", missing),
    };
    let target = with_pages(&[]);
    let mut client = target.client();
    assert_eq!(client.call("SET key value"), Reply::ok());
    let pages = pages_of(target.proxy());
    let began = Instant::now();
    let page = loop {
        let page = get(pages, "/metrics");
        if page
            .body
            .contains("respool_request_duration_seconds_bucket{command=\"set\"")
        {
            break page;
        }
        assert!(began.elapsed() < SOON, "{}", page.body);
        thread::sleep(Duration::from_millis(50));
    };
    let mut command = Command::new(program);
    command.args(["check", "metrics"]).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("promtool starts");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(page.body.as_bytes()).expect("it reads");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

//! Clients that are opened by a URL and options, before real servers.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use respool_client::{CallError, Client, ClientOptions, OpenError};
use respool_testkit::certificates::TestCa;
use respool_testkit::client::{Reply, RespClient};
use respool_testkit::servers::{ServerProcess, any_server, leave_out};
use respool_testkit::time::wait_until;
use respool_testkit::topologies::{
    ClusterSettings, Node, Sentinels, SentinelsSettings, Shards, TestCluster, TestTls, cluster_url,
    sentinel_url, sharded_url,
};

const PATIENCE: Duration = Duration::from_secs(20);

fn opened(options: &ClientOptions, url: &str) -> Client {
    match options.open(url) {
        Ok(client) => client,
        Err(error) => panic!("{url}: {error}"),
    }
}

/// A program may use each command of its server.
#[test]
fn client_refuses_no_command_of_its_own() {
    let server = ServerProcess::start(&any_server(), &["--enable-debug-command", "yes"]);
    let server = server.expect("the server starts");
    let url = format!("redis://{}", server.address());
    let client = opened(&Client::options(), &url);
    let reply = client.call(&["DEBUG", "SLEEP", "0"]);
    assert_eq!(reply.expect("a reply"), b"+OK\r\n");
    let client = opened(&Client::options().set("refuse-commands", "debug"), &url);
    let error = client.call(&["DEBUG", "SLEEP", "0"]).expect_err("refused");
    assert!(error.to_string().contains("refuse-commands"), "{error}");
}

/// Waits until the servers are known, and writes and reads keys that several servers divide.
fn use_keys(client: &Client) {
    wait_until("a call is answered", PATIENCE, || {
        client.call(&["GET", "key"]).is_ok()
    });
    for index in 0..100 {
        let (key, value) = (format!("key-{index}"), format!("{index:03}"));
        let reply = client.call(&["SET", &key, &value]);
        assert_eq!(reply.expect("a reply"), b"+OK\r\n");
        let reply = client.call(&["GET", &key]).expect("a reply");
        assert_eq!(reply, format!("$3\r\n{value}\r\n").into_bytes());
    }
}

fn keys_of(node: &Node) -> i64 {
    match node.ask_ok(&["DBSIZE"]) {
        Ok(Reply::Integer(keys)) => keys,
        other => panic!("{other:?}"),
    }
}

#[test]
fn url_of_one_server_is_opened() {
    let server = ServerProcess::start::<&str>(&any_server(), &[]).expect("the server starts");
    let client = opened(
        &Client::options(),
        &format!("redis://{}/3", server.address()),
    );
    use_keys(&client);
    let info = client.call(&["INFO", "keyspace"]).expect("a reply");
    let info = String::from_utf8_lossy(&info).into_owned();
    assert!(info.contains("db3:keys=100"), "{info}");
}

#[test]
fn shards_divide_the_keys() {
    let shards = Shards::start::<&str>(&any_server(), 3, &[]).expect("the servers start");
    let client = opened(&Client::options(), &sharded_url(&shards.addresses()));
    use_keys(&client);
    for node in shards.nodes() {
        let keys = keys_of(node);
        assert!((1..100).contains(&keys), "{keys}");
    }
}

#[test]
fn cluster_is_opened_by_one_node() {
    let settings = ClusterSettings {
        replicas: 0,
        ..ClusterSettings::default()
    };
    let cluster = TestCluster::start(&any_server(), settings).expect("the Cluster starts");
    let client = opened(&Client::options(), &cluster_url(&cluster.addresses()[..1]));
    use_keys(&client);
    for node in cluster.nodes() {
        let keys = keys_of(node);
        assert!((1..100).contains(&keys), "{keys}");
    }
}

#[test]
fn primary_is_found_by_sentinels() {
    let settings = SentinelsSettings {
        watched: 1,
        ..SentinelsSettings::default()
    };
    let sentinels = Sentinels::start(&any_server(), &settings).expect("the Sentinels start");
    let watched = sentinels.watched(0);
    let url = sentinel_url(&sentinels.addresses(), watched.name());
    use_keys(&opened(&Client::options(), &url));
    let keys = keys_of(watched.server(0));
    assert_eq!(keys, 100);
}

/// Whether the server of this system has TLS: the names of its options are in the program then.
fn has_tls(binary: &Path) -> bool {
    let program = fs::read(binary).unwrap_or_else(|error| panic!("{error}"));
    let option = b"tls-cert-file";
    let has_tls = program.windows(option.len()).any(|bytes| bytes == option);
    if !has_tls {
        leave_out("tls", format!("{} has no TLS", binary.display()));
    }
    has_tls
}

/// A server with TLS is reached if its certificate is trusted, and only then.
#[test]
fn server_with_tls_is_reached() {
    let binary = any_server();
    if !has_tls(&binary) {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let ca = TestCa::new(folder.path(), "own").expect("a CA");
    let tls = TestTls {
        identity: ca.sign("server", &["127.0.0.1"]).expect("a certificate"),
        ca: ca.file.clone(),
        asks_clients: false,
    };
    let (port, args) = tls.listen().expect("a port");
    let _server = ServerProcess::start(&binary, &args).expect("the server starts");
    let url = format!("rediss://{}", SocketAddr::from(([127, 0, 0, 1], port.port)));
    let trusts = ca.file.to_str().expect("a path in UTF-8");
    use_keys(&opened(
        &Client::options().set("server-tls-ca", trusts),
        &url,
    ));
    let distrusts = opened(&Client::options().set("outage-hold-ms", "0"), &url);
    let error = distrusts.call(&["GET", "key-1"]).expect_err("no trust");
    assert!(matches!(error, CallError::NotSent(_)), "{error:?}");
}

/// The values of options have an effect, in the unit behind the number.
#[test]
fn options_have_an_effect() {
    let server = ServerProcess::start::<&str>(&any_server(), &[]).expect("the server starts");
    let url = format!("redis://{}", server.address());
    let options = Client::options()
        .set("request-timeout-ms", "60s")
        .set("request-timeout-ms", "100ms")
        .set("link-stall-ms", "60s")
        .set("refuse-commands", "flushall")
        .set("refuse-commands", "keys");
    let client = opened(&options, &url);
    for command in [&["FLUSHALL"][..], &["KEYS", "*"]] {
        let error = client.call(command).expect_err("refused");
        assert!(matches!(error, CallError::Server(_)), "{error:?}");
    }
    client.call(&["PING"]).expect("a reply");
    server.stop();
    let error = client.call(&["INCR", "key"]).expect_err("no reply");
    assert!(matches!(error, CallError::Unknown(_)), "{error:?}");
    server.cont();
}

fn problems_of(options: &ClientOptions, url: &str) -> Vec<String> {
    match options.open(url) {
        Err(OpenError::Invalid(problems)) => problems,
        Err(error) => panic!("{url}: {error}"),
        Ok(_) => panic!("{url}: it is opened"),
    }
}

/// Every problem of the URL and of options is in one error, and no secret.
#[test]
fn all_problems_are_in_the_error() {
    let options = Client::options()
        .set("request-timeout-ms", "soon")
        .set("listen", ":6380")
        .set("metrics-listen", ":9000")
        .set("control-socket", "/run/a")
        .set("sesions-max", "10")
        .set("backend", "redis://h")
        .set("refuse-commands", "redis://:SECRET@h")
        .set("max-delay-us", "200");
    let problems = problems_of(&options, "redis://:SECRET@h:x");
    let program = "is an option of the program respool: a client has no use for it";
    let expected = [
        &format!("listen: {program}"),
        &format!("metrics-listen: {program}"),
        &format!("control-socket: {program}"),
        "unknown option `sesions-max`: did you mean `sessions-max`?",
        "backend: is the URL of the call `open`: give it there",
        "backend: the port must be",
        "request-timeout-ms: must be",
        "refuse-commands: no command is called `redis://...`",
    ];
    assert_eq!(problems.len(), expected.len(), "{problems:#?}");
    for (problem, expected) in problems.iter().zip(expected) {
        assert!(problem.starts_with(expected), "{problem}: not {expected}");
        assert!(!problem.contains(":SECRET"), "{problem}");
    }
    let error = options.open("redis://:SECRET@h:x").err().expect("an error");
    assert_eq!(error.to_string(), problems.join("\n"));
    let checked = options.check("redis://:SECRET@h:x");
    let checked = checked.expect_err("an error");
    assert_eq!(checked.to_string(), error.to_string());
    assert!(Client::options().check("redis://h").is_ok());
}

/// Options that exclude each other, and files that cannot be read, are problems, too.
#[test]
fn wrong_combination_is_a_problem() {
    for (name, value, url, problem) in [
        (
            "backend-password",
            "b",
            "redis://:a@h",
            "backend-password: `backend` has a password already: remove one",
        ),
        (
            "server-tls-ca",
            "/nonexistent",
            "rediss://h",
            "server-tls-ca: `/nonexistent` cannot be read: ",
        ),
        (
            "backend-password-file",
            "/nonexistent",
            "redis://h",
            "backend-password-file: ",
        ),
        (
            "reconnect-min-ms",
            "1h",
            "redis://h",
            "`reconnect-min-ms` = 3600000 (code) must be at most `reconnect-max-ms`",
        ),
    ] {
        let problems = problems_of(&Client::options().set(name, value), url);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].starts_with(problem), "{problems:?}");
    }
}

fn password_threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("this process has threads");
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name == "passwords\n").count()
}

/// A password that the server refuses is read again from its file, until the last client ends.
#[test]
fn password_is_read_again_from_its_file() {
    let server = ServerProcess::start(&any_server(), &["--requirepass", "first"]);
    let server = server.expect("the server starts");
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("password");
    fs::write(&file, "first\n").expect("a file");
    let options = Client::options().set(
        "backend-password-file",
        file.to_str().expect("a path in UTF-8"),
    );
    let client = opened(&options, &format!("redis://{}", server.address()));
    client
        .call(&["CONFIG", "SET", "requirepass", "second"])
        .expect("a reply");
    fs::write(&file, "second\n").expect("a file");
    let mut observer = RespClient::connect(server.address());
    assert_eq!(observer.call("AUTH second"), Reply::ok());
    // The links of the client end, and have to log in again.
    let ended = observer.call("CLIENT KILL TYPE normal");
    assert!(matches!(ended, Reply::Integer(1..)), "{ended:?}");
    // A thread gets its name when it first runs.
    wait_until("the thread runs", PATIENCE, || password_threads() > 0);
    use_keys(&client);
    drop(client);
    // Other tests have such threads for a while.
    wait_until("the thread ends", PATIENCE, || password_threads() == 0);
}

//! Clients whose worker is a task of tokio, before real servers.

use std::time::{Duration, Instant};

use respool_client::{CallError, Client, OpenError};
use respool_testkit::servers::{ServerProcess, any_server};
use tokio::runtime::{Builder, Runtime};

const SOON: Duration = Duration::from_secs(20);

fn server() -> ServerProcess {
    ServerProcess::start::<&str>(&any_server(), &[]).expect("the server starts")
}

fn url(server: &ServerProcess) -> String {
    format!("redis://{}", server.address())
}

/// A runtime with one thread, and one with two.
fn runtimes() -> [Runtime; 2] {
    let one = Builder::new_current_thread().enable_all().build();
    let two = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    [one.expect("a runtime"), two.expect("a runtime")]
}

/// The number of threads of this process that have this name.
fn threads_named(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("the threads");
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|comm| comm.trim_end() == name).count()
}

#[test]
fn tasks_get_their_own_replies() {
    let server = server();
    for runtime in runtimes() {
        runtime.block_on(async {
            let client = Client::on_tokio(&url(&server)).expect("the client starts");
            client.ask(&["FLUSHALL"]).await.expect("a reply");
            let tasks = (0..200).map(|index| {
                let client = client.clone();
                tokio::spawn(async move {
                    let key = format!("counter-{index}");
                    for count in 1..=50 {
                        let reply = client.ask(&["INCR", &key]).await.expect("a reply");
                        assert_eq!(reply, format!(":{count}\r\n").into_bytes());
                        let reply = client.ask(&["GET", &key]).await.expect("a reply");
                        let count = count.to_string();
                        let value = format!("${}\r\n{count}\r\n", count.len());
                        assert_eq!(reply, value.into_bytes());
                    }
                })
            });
            for task in tasks.collect::<Vec<_>>() {
                task.await.expect("no panic");
            }
        });
    }
}

/// The client has no thread of its own.
#[test]
fn client_has_no_thread() {
    let server = server();
    let [runtime, _] = runtimes();
    let before = threads_named("worker-0");
    runtime.block_on(async {
        let client = Client::on_tokio(&url(&server)).expect("the client starts");
        client.ask(&["PING"]).await.expect("a reply");
        assert_eq!(threads_named("worker-0"), before);
    });
}

/// A thread outside the runtime may block in a call.
#[test]
fn threads_call_beside_tasks() {
    let server = server();
    let [_, runtime] = runtimes();
    let client = runtime.block_on(async { Client::on_tokio(&url(&server)) });
    let client = client.expect("the client starts");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..100 {
                    client.call(&["INCR", "n"]).expect("a reply");
                }
            });
        }
    });
    assert_eq!(client.call(&["GET", "n"]).unwrap(), b"$3\r\n800\r\n");
}

/// The alarm of a held batch and the ticks of the engine reach the task while all others wait.
#[test]
fn timers_of_the_engine_go_on() {
    let server = server();
    for runtime in runtimes() {
        runtime.block_on(async {
            let client = Client::options()
                .set("request-timeout-ms", "200ms")
                .on_tokio(&url(&server))
                .expect("the client starts");
            client.ask(&["PING"]).await.expect("a reply");
            server.stop();
            let error = client.ask(&["INCR", "n"]).await.expect_err("no reply");
            server.cont();
            assert!(matches!(error, CallError::Unknown(_)), "{error:?}");
        });
    }
}

/// Large values, which take many turns, pass.
#[test]
fn large_values_pass() {
    let server = server();
    for runtime in runtimes() {
        runtime.block_on(async {
            let client = Client::on_tokio(&url(&server)).expect("the client starts");
            let value = vec![b'v'; 16 << 20];
            let reply = client.ask(&[b"SET", &b"k"[..], &value]).await;
            assert_eq!(reply.expect("a reply"), b"+OK\r\n");
            let reply = client.ask(&["GET", "k"]).await.expect("a reply");
            assert_eq!(reply.len(), value.len() + 13);
        });
    }
}

/// A client that is dropped has its requests executed, and then its task ends.
#[test]
fn dropped_client_ends_its_task() {
    let server = server();
    let [_, runtime] = runtimes();
    let url = url(&server);
    let mut session = runtime.block_on(async {
        let client = Client::on_tokio(&url).expect("the client starts");
        client.session()
    });
    session.send(&["SET", "k", "v"]).unwrap();
    drop(session);
    let deadline = Instant::now() + SOON;
    let other = Client::open(&url).expect("the client starts");
    while other.call(&["GET", "k"]).unwrap() != b"$1\r\nv\r\n" {
        assert!(Instant::now() < deadline, "the request was not executed");
    }
    while runtime.metrics().num_alive_tasks() > 0 {
        assert!(Instant::now() < deadline, "the task goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A client ends with its runtime, and says so.
#[test]
fn client_ends_with_its_runtime() {
    let server = server();
    for runtime in runtimes() {
        let client = runtime.block_on(async {
            let client = Client::on_tokio(&url(&server)).expect("the client starts");
            client.ask(&["PING"]).await.expect("a reply");
            client
        });
        drop(runtime);
        let error = client.call(&["PING"]).expect_err("the client has ended");
        assert!(matches!(error, CallError::NotSent(_)), "{error:?}");
    }
}

#[test]
fn start_needs_a_runtime() {
    let server = server();
    let error = Client::on_tokio(&url(&server))
        .map(|_| ())
        .expect_err("no runtime");
    assert!(matches!(error, OpenError::Runtime(_)), "{error}");
    assert!(
        error.to_string().starts_with("cannot start the task"),
        "{error}"
    );
}

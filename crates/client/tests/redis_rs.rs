//! The crate `redis` through a client, before a real server.

use std::time::{Duration, Instant};

use redis::{Commands, ConnectionLike, RedisError, RedisResult, Value};
use respool_client::{CallError, Client, call_error};
use respool_testkit::servers::{ServerProcess, any_server};
use respool_testkit::tasks::block_on;
use respool_testkit::time::wait_until;

const SOON: Duration = Duration::from_secs(20);

fn server() -> ServerProcess {
    ServerProcess::start::<&str>(&any_server(), &[]).expect("the server starts")
}

fn client(server: &ServerProcess) -> Client {
    Client::open(&format!("redis://{}", server.address())).expect("the client opens")
}

#[test]
fn typed_commands_work() {
    let server = server();
    let mut connection = client(&server).redis_connection();
    let _: () = connection.set("k", 42).unwrap();
    assert_eq!(connection.get::<_, i64>("k").unwrap(), 42);
    assert_eq!(connection.get::<_, Option<String>>("none").unwrap(), None);
    let _: () = connection.hset("h", "f", "v").unwrap();
    let all: Vec<(String, String)> = connection.hgetall("h").unwrap();
    assert_eq!(all, [("f".into(), "v".into())]);
    let _: () = connection.rpush("list", &["a", "b"]).unwrap();
    let error: RedisError = connection.get::<_, String>("list").unwrap_err();
    assert_eq!(error.code(), Some("WRONGTYPE"));
    let keys: Vec<String> = connection
        .scan()
        .unwrap()
        .collect::<RedisResult<_>>()
        .unwrap();
    assert_eq!(keys.len(), 3);
    assert!(connection.check_connection() && connection.is_open());
}

/// At the limit the error tells the outcome, and the connection goes on.
#[test]
fn limit_ends_commands_and_pipelines() {
    let server = server();
    let mut connection = client(&server).redis_connection();
    let _: () = connection.set("k", 0).unwrap();
    connection.set_limit(Some(Duration::from_millis(100)));
    assert_eq!(connection.get::<_, i64>("k").unwrap(), 0);
    let sleep = "redis.call('SET', 'k', 1) local from = redis.call('TIME') \
                 repeat local now = redis.call('TIME') \
                 until (now[1] - from[1]) * 1000000 + now[2] - from[2] > 500000";
    let mut pipeline = redis::pipe();
    pipeline.cmd("EVAL").arg(sleep).arg(0).incr("k", 1);
    let slow = redis::cmd("EVAL").arg(sleep).arg(0).to_owned();
    for is_pipeline in [false, true] {
        let began = Instant::now();
        let error = match is_pipeline {
            true => pipeline.query::<()>(&mut connection).unwrap_err(),
            false => slow.query::<()>(&mut connection).unwrap_err(),
        };
        assert!(began.elapsed() < Duration::from_millis(450), "{error:?}");
        let outcome = call_error(&error);
        assert!(matches!(outcome, Some(CallError::Unknown(_))), "{error:?}");
        wait_until("the script ends", SOON, || {
            connection.get::<_, i64>("k").is_ok()
        });
    }
    connection.set_limit(None);
    assert!(connection.get::<_, i64>("k").unwrap() >= 1);
    // A session for good has requests that later ones would meet.
    redis::cmd("SELECT").arg(0).exec(&mut connection).unwrap();
    connection.set_limit(Some(Duration::from_millis(100)));
    let wait = redis::cmd("BLPOP").arg("none").arg(0).to_owned();
    wait.query::<Value>(&mut connection).unwrap_err();
    assert!(!connection.is_open());
}

/// A pipeline returns its values in order, and its errors at their places.
#[test]
fn pipelines_keep_their_order() {
    let server = server();
    let client = client(&server);
    let mut connection = client.redis_connection();
    let mut tasks = client.async_redis_connection();
    let mut pipeline = redis::pipe();
    pipeline.set("k", "v").ignore();
    for _ in 0..1_000 {
        pipeline.incr("n", 1).get("n");
    }
    let numbers: Vec<i64> = pipeline.query(&mut connection).unwrap();
    let expected: Vec<i64> = (1..=1_000).flat_map(|number| [number, number]).collect();
    assert_eq!(numbers, expected);
    let numbers: Vec<i64> = block_on(pipeline.query_async(&mut tasks)).unwrap();
    assert_eq!(numbers.len(), 2_000);
    // Larger than the buffers on the way.
    let value = "v".repeat(100_000);
    let mut pipeline = redis::pipe();
    for number in 0..50 {
        pipeline.set(number, &value).ignore().get(number);
    }
    let values: Vec<String> = pipeline.query(&mut connection).unwrap();
    assert!(values.len() == 50 && values.iter().all(|got| *got == value));
    let values: Vec<String> = block_on(pipeline.query_async(&mut tasks)).unwrap();
    assert!(values.len() == 50 && values.iter().all(|got| *got == value));
    let failing: RedisResult<Vec<Value>> =
        redis::pipe().lpush("k", 1).get("k").query(&mut connection);
    assert!(failing.is_err());
    assert_eq!(connection.get::<_, String>("k").unwrap(), "v");
}

/// Transactions, also with watched keys and with commands that the server refuses.
#[test]
fn transactions_are_whole() {
    let server = server();
    let client = client(&server);
    let mut connection = client.redis_connection();
    let mut tasks = client.async_redis_connection();
    let mut pipeline = redis::pipe();
    pipeline.atomic().set("n", 1).ignore().incr("n", 1);
    assert_eq!(pipeline.query::<(i64,)>(&mut connection).unwrap(), (2,));
    assert_eq!(
        block_on(pipeline.query_async::<(i64,)>(&mut tasks)).unwrap(),
        (2,)
    );
    let mut tries = 0;
    let (sum,): (i64,) = redis::transaction(&mut connection, &["n"], |connection, pipeline| {
        let n: i64 = connection.get("n")?;
        tries += 1;
        if tries == 1 {
            let _: () = client.redis_connection().set("n", 10)?;
        }
        pipeline.set("n", n + 1).ignore().get("n").query(connection)
    })
    .unwrap();
    assert_eq!((sum, tries), (11, 2));
    let mut refused = redis::pipe();
    refused.atomic().set("other", 1).cmd("NOSUCH").arg(1);
    let error = refused.query::<Vec<Value>>(&mut connection).unwrap_err();
    assert_eq!(error.code(), Some("EXECABORT"), "{error}");
    assert_eq!(connection.get::<_, Option<i64>>("other").unwrap(), None);
}

#[test]
fn scripts_are_loaded_once() {
    let server = server();
    let client = client(&server);
    let mut connection = client.redis_connection();
    let mut tasks = client.async_redis_connection();
    let script = redis::Script::new("return tonumber(ARGV[1]) + redis.call('INCR', KEYS[1])");
    for number in 1..=3 {
        let sum: i64 = script.key("n").arg(10).invoke(&mut connection).unwrap();
        assert_eq!(sum, 10 + number);
    }
    let sum: i64 = block_on(script.key("n").arg(10).invoke_async(&mut tasks)).unwrap();
    assert_eq!(sum, 14);
}

/// Commands of tasks, with the traits of tasks.
mod tasks {
    use super::{ServerProcess, block_on, client, server};
    use redis::{AsyncCommands, Value};
    use std::future::Future;
    use std::task::{Context, Waker};

    #[test]
    fn tasks_share_a_client() {
        let server = server();
        let client = client(&server);
        let mut connection = client.async_redis_connection();
        block_on(async {
            let _: () = connection.set("k", "v").await.unwrap();
            let mut other = client.async_redis_connection();
            assert_eq!(other.get::<_, String>("k").await.unwrap(), "v");
        });
    }

    /// A future that is dropped in the middle closes a connection with a state, and no other one.
    #[test]
    fn dropped_future_leaves_no_reply_for_the_next() {
        let server: ServerProcess = server();
        let client = client(&server);
        let mut stateless = client.async_redis_connection();
        let mut own = client.async_redis_connection();
        block_on(redis::cmd("SELECT").arg(5).exec_async(&mut own)).unwrap();
        for connection in [&mut stateless, &mut own] {
            let mut context = Context::from_waker(Waker::noop());
            let mut waiting = Box::pin(connection.blpop::<_, Value>("list", 0.0));
            assert!(waiting.as_mut().poll(&mut context).is_pending());
        }
        let got = block_on(async { stateless.get::<_, Option<i64>>("k").await });
        assert_eq!(got.unwrap(), None);
        let error = block_on(async { own.get::<_, Option<i64>>("k").await }).unwrap_err();
        assert!(!own.is_open() && error.is_io_error(), "{error}");

        // A pipeline that needs no state is dropped alone.
        let mut pipeline = redis::pipe();
        pipeline.blpop("list", 0.0).get("k");
        let mut context = Context::from_waker(Waker::noop());
        let mut waiting = Box::pin(pipeline.query_async::<Value>(&mut stateless));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        drop(waiting);
        let got = block_on(async { stateless.get::<_, Option<i64>>("k").await });
        assert_eq!(got.unwrap(), None);
    }

    #[test]
    fn state_belongs_to_its_connection() {
        let server = server();
        let client = client(&server);
        let (mut own, mut other) = (
            client.async_redis_connection(),
            client.async_redis_connection(),
        );
        block_on(async {
            redis::cmd("SELECT")
                .arg(5)
                .exec_async(&mut own)
                .await
                .unwrap();
            let _: () = own.set("k", "v").await.unwrap();
            assert_eq!(own.get::<_, String>("k").await.unwrap(), "v");
            assert_eq!(other.get::<_, Option<String>>("k").await.unwrap(), None);
        });
    }
}

/// A state of the connection stays, and other connections do not have it.
#[test]
fn state_belongs_to_its_connection() {
    let server = server();
    let client = client(&server);
    let (mut own, mut other) = (client.redis_connection(), client.redis_connection());
    redis::cmd("SELECT").arg(5).exec(&mut own).unwrap();
    let _: () = own.set("k", "v").unwrap();
    assert_eq!(own.get::<_, String>("k").unwrap(), "v");
    assert_eq!(other.get::<_, Option<String>>("k").unwrap(), None);
}

#[test]
fn database_is_that_of_the_url() {
    let server = server();
    let client = Client::open(&format!("redis://{}/3", server.address())).unwrap();
    assert_eq!(client.redis_connection().get_db(), 3);
}

/// A command without a response leaves none for the next one, of this connection or another.
#[test]
fn replies_that_are_not_wanted_are_taken() {
    let server = server();
    let client = client(&server);
    let mut connection = client.redis_connection();
    let mut silent = redis::cmd("SET");
    silent.arg("k").arg("v").set_no_response(true);
    for _ in 0..2 {
        silent.exec(&mut connection).unwrap();
        assert_eq!(
            client.redis_connection().get::<_, String>("k").unwrap(),
            "v"
        );
        assert_eq!(connection.get::<_, String>("k").unwrap(), "v");
        // From now on the connection has a session of its own.
        redis::cmd("CLIENT")
            .arg("SETNAME")
            .arg("n")
            .exec(&mut connection)
            .unwrap();
    }
    let mut off = redis::cmd("CLIENT");
    off.arg("REPLY").arg("OFF").set_no_response(true);
    off.exec(&mut connection).unwrap();
    assert_eq!(
        client.redis_connection().get::<_, String>("k").unwrap(),
        "v"
    );
}

/// Requests that a connection cannot run are refused, and change nothing.
#[test]
fn requests_without_their_replies_are_refused() {
    let server = server();
    let client = client(&server);
    let mut connection = client.redis_connection();
    let two = [
        redis::cmd("INCR").arg("n").get_packed_command(),
        redis::cmd("INCR").arg("n").get_packed_command(),
    ];
    let refused = [
        connection.req_packed_command(&two.concat()).unwrap_err(),
        connection
            .req_packed_commands(&two.concat(), 0, 1)
            .unwrap_err(),
        connection.req_packed_command(b"INCR n\r\n").unwrap_err(),
        redis::cmd("SUBSCRIBE")
            .arg("news")
            .exec(&mut connection)
            .unwrap_err(),
    ];
    for error in refused {
        assert!(
            matches!(call_error(&error), Some(CallError::Invalid(_))),
            "{error}"
        );
    }
    assert_eq!(connection.get::<_, Option<i64>>("n").unwrap(), None);
}

/// A pipeline of which a part was executed is not called unexecuted.
#[test]
fn part_of_a_pipeline_may_have_been_executed() {
    let (up, down) = (server(), server());
    let url = format!("redis-sharded://{},{}", up.address(), down.address());
    let options = Client::options().set("outage-hold-ms", "1s");
    let client = options.open(&url).unwrap();
    let mut connection = client.redis_connection();
    let key_of = |server: &ServerProcess| {
        let mut own = respool_testkit::client::RespClient::connect(server.address());
        (0..100)
            .map(|number| format!("k{number}"))
            .find(|key| {
                let _: () = client.redis_connection().set(key, 1).unwrap();
                own.call(&format!("EXISTS {key}")) == respool_testkit::client::Reply::Integer(1)
            })
            .expect("a key of the server")
    };
    let (here, away) = (key_of(&up), key_of(&down));
    down.kill9();
    wait_until("the server is known to be away", SOON, || {
        connection
            .get::<_, i64>(&away)
            .is_err_and(|error| error.is_connection_refusal())
    });
    for order in [[&here, &away], [&away, &here]] {
        let mut pipeline = redis::pipe();
        pipeline.incr(order[0], 1).incr(order[1], 1);
        let error = pipeline.query::<Vec<i64>>(&mut connection).unwrap_err();
        assert!(
            matches!(call_error(&error), Some(CallError::Unknown(_))),
            "{error}"
        );
    }
    assert_eq!(connection.get::<_, i64>(&here).unwrap(), 3);
    let mut pipeline = redis::pipe();
    let error = pipeline
        .incr(&away, 1)
        .query::<Vec<i64>>(&mut connection)
        .unwrap_err();
    assert!(
        matches!(call_error(&error), Some(CallError::NotSent(_))),
        "{error}"
    );
}

/// The kind of an error tells whether the command may have been executed.
#[test]
fn errors_tell_the_outcome() {
    let server = server();
    let options = Client::options()
        .set("request-timeout-ms", "2s")
        .set("outage-hold-ms", "1s");
    let client = options
        .open(&format!("redis://{}", server.address()))
        .unwrap();
    let mut connection = client.redis_connection();
    let _: () = connection.set("k", "v").unwrap();
    server.stop();
    let error = connection.incr::<_, _, i64>("n", 1).unwrap_err();
    assert!(error.is_connection_dropped(), "{error}");
    assert!(
        matches!(call_error(&error), Some(CallError::Unknown(_))),
        "{error}"
    );
    server.cont();
    wait_until("the server answers", SOON, || {
        connection.get::<_, String>("k").is_ok()
    });
    server.kill9();
    wait_until("the server is known to be away", SOON, || {
        let error = connection.get::<_, String>("k").err();
        error.is_some_and(|error| {
            error.is_connection_refusal()
                && matches!(call_error(&error), Some(CallError::NotSent(_)))
        })
    });
}

//! The client library redis-rs, unmodified: blocking, asynchronous and multiplexed, in both
//! protocols.

use redis::{AsyncCommands, Commands, RedisError};

use crate::target::{Options, Target, on_every_target};

fn urls(target: &Target) -> [String; 2] {
    let address = target.address();
    [
        format!("redis://{address}/?protocol=resp2"),
        format!("redis://{address}/?protocol=resp3"),
    ]
}

#[test]
fn a_blocking_client_works_in_both_protocols() {
    on_every_target(&Options::with(&["--threads=2"]), |target| {
        for url in urls(target) {
            let body = || -> Result<(), RedisError> {
                let client = redis::Client::open(url.as_str())?;
                let mut connection = client.get_connection()?;
                redis::cmd("FLUSHDB").exec(&mut connection)?;
                let _: () = connection.set("key", "value")?;
                assert_eq!(connection.get::<_, String>("key")?, "value");
                assert_eq!(connection.get::<_, Option<String>>("none")?, None);
                assert_eq!(connection.incr::<_, _, i64>("count", 5)?, 5);
                let _: () = connection.hset_multiple("hash", &[("a", 1), ("b", 2)])?;
                let hash: std::collections::BTreeMap<String, i64> = connection.hgetall("hash")?;
                assert_eq!(
                    hash.into_iter().collect::<Vec<_>>(),
                    [("a".into(), 1), ("b".into(), 2)]
                );
                let _: () = connection.zadd("zset", "member", 1.5)?;
                assert_eq!(connection.zscore::<_, _, f64>("zset", "member")?, 1.5);
                let _: () = connection.sadd("set", &["x", "y"])?;
                let set: std::collections::BTreeSet<String> = connection.smembers("set")?;
                assert_eq!(set.len(), 2);

                let mut pipeline = redis::pipe();
                for number in 0..1_000 {
                    pipeline
                        .set(format!("key:{number}"), number)
                        .ignore()
                        .get(format!("key:{number}"));
                }
                let values: Vec<i64> = pipeline.query(&mut connection)?;
                assert_eq!(values, (0..1_000).collect::<Vec<_>>());

                let error = connection
                    .incr::<_, _, i64>("key", 1)
                    .expect_err("no number");
                assert!(error.to_string().contains("not an integer"), "{error}");
                let script = redis::Script::new("return ARGV[1] .. KEYS[1]");
                let joined: String = script.key("k").arg("a").invoke(&mut connection)?;
                assert_eq!(joined, "ak");
                Ok(())
            };
            body().unwrap_or_else(|error| panic!("{url} on {}: {error}", target.name));
        }
    });
}

#[test]
fn a_multiplexed_client_works_in_both_protocols() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime can be built");
    on_every_target(&Options::with(&["--threads=2"]), |target| {
        for url in urls(target) {
            let result: Result<(), RedisError> = runtime.block_on(async {
                let client = redis::Client::open(url.as_str())?;
                let connection = client.get_multiplexed_async_connection().await?;
                let mut tasks = tokio::task::JoinSet::new();
                for task in 0..50 {
                    let mut connection = connection.clone();
                    tasks.spawn(async move {
                        for round in 0..40 {
                            let key = format!("task:{task}");
                            let value = format!("{task}/{round}");
                            let _: () = connection.set(&key, &value).await?;
                            assert_eq!(connection.get::<_, String>(&key).await?, value);
                            let mut pipeline = redis::pipe();
                            pipeline.append(&key, "+").ignore().strlen(&key).get(&key);
                            let (len, got): (usize, String) =
                                pipeline.query_async(&mut connection).await?;
                            assert_eq!((len, got), (value.len() + 1, value + "+"));
                        }
                        Ok::<_, RedisError>(())
                    });
                }
                while let Some(task) = tasks.join_next().await {
                    task.expect("no task sees a wrong value")?;
                }
                Ok(())
            });
            result.unwrap_or_else(|error| panic!("{url} on {}: {error}", target.name));
        }
    });
}

#[test]
fn a_client_with_a_password_and_a_database_works() {
    on_every_target(&Options::default().password("secret"), |target| {
        for protocol in ["resp2", "resp3"] {
            let url = format!("redis://:secret@{}/3?protocol={protocol}", target.address());
            let body = || -> Result<(), RedisError> {
                let mut connection = redis::Client::open(url.as_str())?.get_connection()?;
                let _: () = connection.set("key", "in-3")?;
                assert_eq!(connection.get::<_, String>("key")?, "in-3");
                Ok(())
            };
            body().unwrap_or_else(|error| panic!("{url} on {}: {error}", target.name));
            let wrong = format!("redis://:wrong@{}/?protocol={protocol}", target.address());
            let refused =
                redis::Client::open(wrong.as_str()).and_then(|client| client.get_connection());
            assert!(refused.is_err(), "the wrong password is refused");
        }
        let mut direct = target.direct_client();
        direct.call("AUTH secret");
        direct.call("SELECT 3");
        assert_eq!(
            direct.call("GET key"),
            respool_testkit::client::Reply::bulk("in-3")
        );
    });
}

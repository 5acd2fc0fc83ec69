//! Runs GET, INCR and a pipeline with redis-rs. `run` explains the arguments and the lines.

use std::io::BufRead;

use redis::aio::ConnectionLike;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let url = format!("redis://127.0.0.1:{}", arguments[2]);
    if arguments[1] == "cluster" {
        let client = redis::cluster::ClusterClient::new(vec![url]).expect("a URL");
        serve(client.get_async_connection().await.expect("a connection")).await;
    } else {
        let client = redis::Client::open(url).expect("a URL");
        serve(client.get_connection_manager().await.expect("a connection")).await;
    }
}

async fn serve(mut connection: impl ConnectionLike) {
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line");
        let words: Vec<&str> = line.split(' ').collect();
        let answer: redis::RedisResult<redis::Value> = if words[0] == "PIPELINE" {
            let mut pipeline = redis::pipe();
            for key in &words[1..] {
                pipeline.incr(*key, 1);
            }
            pipeline.query_async(&mut connection).await
        } else {
            redis::cmd(words[0])
                .arg(words[1])
                .query_async(&mut connection)
                .await
        };
        match answer {
            Ok(value) => println!("{{\"value\": {:?}}}", format!("{value:?}")),
            Err(error) => println!("{{\"error\": {:?}}}", format!("{:?}", error.kind())),
        }
    }
}

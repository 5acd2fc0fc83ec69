//! The loop of the libraries for Rust: a process of its own, `respool-lab client-load`.

use std::io::{self, BufRead, Write};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use respool_client::Client;
use tokio::runtime::Builder;

use super::LoopResult;

const KEYS: usize = 100;
const WARM_UP: Duration = Duration::from_millis(500);
/// Threads of a runtime.
const RUNTIME_THREADS: usize = 2;

/// Reads `PEER URL CALLERS VERB VALUE_BYTES SECONDS`, or `PEER probe`, and runs the loop.
///
/// # Errors
/// One line.
pub fn run(words: &[String]) -> Result<(), String> {
    let [peer, url, rest @ ..] = words else {
        return Err("arguments: PEER URL CALLERS VERB VALUE_BYTES SECONDS".to_owned());
    };
    if url == "probe" {
        return Ok(());
    }
    let [callers, verb, size, seconds] = rest else {
        return Err("arguments: PEER URL CALLERS VERB VALUE_BYTES SECONDS".to_owned());
    };
    let number = |text: &String| {
        text.parse::<usize>()
            .map_err(|error| format!("{text}: {error}"))
    };
    let (callers, size) = (number(callers)?, number(size)?);
    let seconds = seconds
        .parse()
        .map_err(|error| format!("{seconds}: {error}"))?;
    let loads: Vec<Load> = (0..callers)
        .map(|caller| Load::new(caller, verb, size))
        .collect();
    let seconds = Duration::from_secs_f64(seconds);
    match peer.as_str() {
        "redis-rs-threads" => {
            let client = redis::Client::open(url.as_str()).map_err(text)?;
            let connect = |_: &Load| client.get_connection().map(ThreadClient::RedisRs);
            let clients = loads.iter().map(connect).collect::<Result<_, _>>();
            run_threads(clients.map_err(text)?, &loads, seconds)
        }
        "respool-threads" => {
            let client = Client::open(url).map_err(text)?;
            let clients = loads.iter().map(|_| ThreadClient::Respool(client.clone()));
            run_threads(clients.collect(), &loads, seconds)
        }
        _ => {
            let runtime = Builder::new_multi_thread()
                .worker_threads(RUNTIME_THREADS)
                .enable_all()
                .build()
                .map_err(text)?;
            runtime.block_on(async {
                let client = TaskClient::open(peer, url).await?;
                run_tasks(&client, loads, seconds).await
            })
        }
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A client of a thread.
enum ThreadClient {
    RedisRs(redis::Connection),
    Respool(Client),
}

impl ThreadClient {
    /// Sends a request. Returns whether it has a reply.
    fn ask(&mut self, request: &LoadRequest) -> bool {
        match self {
            ThreadClient::RedisRs(connection) => {
                request.command.query::<redis::Value>(connection).is_ok()
            }
            ThreadClient::Respool(client) => client.call(&request.args).is_ok(),
        }
    }
}

/// A client of all tasks.
#[derive(Clone)]
enum TaskClient {
    RedisRs(redis::aio::MultiplexedConnection),
    Respool(Client),
}

impl TaskClient {
    async fn open(peer: &str, url: &str) -> Result<TaskClient, String> {
        match peer {
            "redis-rs-multiplexed" => {
                let client = redis::Client::open(url).map_err(text)?;
                let connection = client.get_multiplexed_async_connection().await;
                connection.map(TaskClient::RedisRs).map_err(text)
            }
            "respool-task" => Client::on_tokio(url).map(TaskClient::Respool).map_err(text),
            "respool-thread" => Client::open(url).map(TaskClient::Respool).map_err(text),
            _ => Err(format!("{peer} is no library for Rust")),
        }
    }

    async fn ask(&mut self, request: &LoadRequest) -> bool {
        match self {
            TaskClient::RedisRs(connection) => {
                let reply = request.command.query_async::<redis::Value>(connection);
                reply.await.is_ok()
            }
            TaskClient::Respool(client) => client.ask(&request.args).await.is_ok(),
        }
    }
}

/// A request in the forms that the libraries take.
#[derive(Clone)]
struct LoadRequest {
    args: Vec<Vec<u8>>,
    command: redis::Cmd,
}

impl LoadRequest {
    fn new(words: Vec<String>) -> LoadRequest {
        let args: Vec<Vec<u8>> = words.into_iter().map(String::into_bytes).collect();
        let mut command = redis::Cmd::new();
        for arg in &args {
            command.arg(arg);
        }
        LoadRequest { args, command }
    }
}

/// The requests of a caller.
#[derive(Clone)]
struct Load {
    /// Writes the keys.
    prepare: LoadRequest,
    request: LoadRequest,
}

impl Load {
    fn new(caller: usize, verb: &str, size: usize) -> Load {
        let keys: Vec<String> = (0..KEYS).map(|key| format!("key:{caller}:{key}")).collect();
        let value = "v".repeat(size);
        let words = |verb: &str| -> Vec<String> {
            let mut words = vec![verb.to_uppercase()];
            match verb {
                "get" => words.push(keys[0].clone()),
                "set" => words.extend([keys[0].clone(), value.clone()]),
                "mget" => words.extend(keys.iter().cloned()),
                _ => words.extend(keys.iter().flat_map(|key| [key.clone(), value.clone()])),
            }
            words
        };
        let (prepare, request) = match verb {
            "large" => ("set", "get"),
            verb => ("mset", verb),
        };
        Load {
            prepare: LoadRequest::new(words(prepare)),
            request: LoadRequest::new(words(request)),
        }
    }
}

/// The requests of a caller in the measured time.
#[derive(Default)]
struct Asked {
    /// The time of each answered request, nanoseconds.
    times: Vec<u32>,
    errors: u64,
}

impl Asked {
    fn add(&mut self, began: Instant, has_reply: bool) {
        match has_reply {
            true => self.times.push(began.elapsed().as_nanos() as u32),
            false => self.errors += 1,
        }
    }
}

fn run_threads(
    mut clients: Vec<ThreadClient>,
    loads: &[Load],
    seconds: Duration,
) -> Result<(), String> {
    for (client, load) in clients.iter_mut().zip(loads) {
        client.ask(&load.prepare);
    }
    let run = |client: &mut ThreadClient, load: &Load, time| {
        let (mut asked, until) = (Asked::default(), Instant::now() + time);
        while Instant::now() < until {
            let began = Instant::now();
            asked.add(began, client.ask(&load.request));
        }
        asked
    };
    let barrier = Barrier::new(loads.len() + 1);
    thread::scope(|scope| {
        let threads = clients.into_iter().zip(loads).map(|(mut client, load)| {
            let barrier = &barrier;
            scope.spawn(move || {
                run(&mut client, load, WARM_UP);
                barrier.wait();
                barrier.wait();
                run(&mut client, load, seconds)
            })
        });
        let threads: Vec<_> = threads.collect();
        barrier.wait();
        let began = get_ready();
        barrier.wait();
        let join = |thread: thread::ScopedJoinHandle<'_, Asked>| {
            thread
                .join()
                .map_err(|_| "a thread has panicked".to_owned())
        };
        let asked = threads.into_iter().map(join).collect::<Result<_, _>>()?;
        finish(asked, began?.elapsed())
    })
}

async fn run_tasks(client: &TaskClient, loads: Vec<Load>, seconds: Duration) -> Result<(), String> {
    let run = |loads: Vec<Load>, time| async move {
        let until = Instant::now() + time;
        let tasks = loads.into_iter().map(|load| {
            let mut client = client.clone();
            tokio::spawn(async move {
                let mut asked = Asked::default();
                while Instant::now() < until {
                    let began = Instant::now();
                    asked.add(began, client.ask(&load.request).await);
                }
                asked
            })
        });
        let mut all = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            all.push(task.await.map_err(text)?);
        }
        Ok::<Vec<Asked>, String>(all)
    };
    for load in &loads {
        client.clone().ask(&load.prepare).await;
    }
    run(loads.clone(), WARM_UP).await?;
    let began = get_ready()?;
    let asked = run(loads, seconds).await?;
    finish(asked, began.elapsed())
}

/// Says that the loop may begin, and waits for the word. Returns the time of the beginning.
fn get_ready() -> Result<Instant, String> {
    say("ready")?;
    hear()?;
    Ok(Instant::now())
}

/// Says the result, and waits until the lab has read the CPU of this process.
fn finish(asked: Vec<Asked>, took: Duration) -> Result<(), String> {
    let errors = asked.iter().map(|asked| asked.errors).sum();
    let mut times: Vec<u32> = asked.into_iter().flat_map(|asked| asked.times).collect();
    times.sort_unstable();
    let at = |part: f64| {
        let index = (times.len() as f64 * part) as usize;
        let time = times.get(index.min(times.len().saturating_sub(1)));
        time.map_or(0.0, |time| f64::from(*time) / 1e3)
    };
    let result = LoopResult {
        requests: times.len() as u64,
        errors,
        seconds: took.as_secs_f64(),
        p50_us: at(0.5),
        p99_us: at(0.99),
    };
    say(&serde_json::to_string(&result).map_err(text)?)?;
    hear()
}

fn say(line: &str) -> Result<(), String> {
    writeln!(io::stdout(), "{line}").map_err(text)
}

/// Reads a line, or the end of the input.
fn hear() -> Result<(), String> {
    io::stdin()
        .lock()
        .read_line(&mut String::new())
        .map(drop)
        .map_err(text)
}

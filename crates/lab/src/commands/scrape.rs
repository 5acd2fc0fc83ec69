//! `respool-lab scrape`

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use respool_testkit::client::RespClient;
use respool_testkit::servers::{Proxy, ServerProcess};

use super::{fail, read};
use crate::cpu;
use crate::figure::quantile;
use crate::flags::positive;
use crate::targets::{Programs, ServerChoice};
use crate::tls::arguments;

const NAME: &str = "scrape";
const ABOUT: &str = "\
respool-lab scrape: how long a scrape of the metrics takes.

Starts respool before a pool of many servers, which are addresses of one server, and sends one
request of each command with a histogram of its own. Then it reads /metrics again and again. Exits
with 1 if the median is over --most-ms.

Usage: respool-lab scrape [OPTIONS]
Example: respool-lab scrape --servers 256 --scrapes 50";

/// Longer than the pause between two reports of the workers, which is a second at most.
const SETTLE: Duration = Duration::from_millis(2_500);

/// Commands with histograms, `other` included.
const HISTOGRAMS: usize = 64;

/// One request of each command with a histogram of its own, and of one without.
const REQUESTS: &str = "\
SET s 1|GET s|GETEX s|INCR s|INCRBY s 1|DECR s|MGET s|MSET s 1|SETEX s 9 1|SETNX s 1|DEL x|EXISTS s\
|EXPIRE s 9|PEXPIRE s 9000|SCAN 0|TTL s|UNLINK x|HSET h f 1|HDEL h x|HEXISTS h f|HGET h f|HGETALL h\
|HINCRBY h f 1|HMGET h f|HMSET h f 1|LPUSH l 1 2 3 4 5 6 7 8 9|RPUSH l 1|LLEN l|LPOP l|RPOP l\
|LRANGE l 0 1|LTRIM l 0 9|SADD m 1 2 3|SCARD m|SISMEMBER m 1|SMEMBERS m|SPOP m|SREM m 1\
|ZADD z 1 a 2 b 3 c 4 d 5 e|ZCARD z|ZINCRBY z 1 a|ZRANGE z 0 1|ZRANGEBYSCORE z 0 1|ZREM z e\
|ZSCORE z a|XADD x * f 1|XGROUP CREATE x g 0|XREADGROUP GROUP g c STREAMS x >|XACK x g 1-1\
|XREAD STREAMS x 0|EVAL 1 0|EVALSHA x 0|PUBLISH c 1|MULTI|INCR s|EXEC|BLPOP l 1|BRPOP l 1|BRPOPLPUSH l l 1\
|BLMOVE l l LEFT LEFT 1|BLMPOP 1 1 l LEFT|BZPOPMIN z 1|BZPOPMAX z 1|BZMPOP 1 1 z MIN|WAIT 0 1\
|WAITAOF 0 0 1|STRLEN s";

#[derive(Args)]
struct ScrapeArgs {
    /// Servers of the pool.
    #[arg(long, value_name = "N", value_parser = positive::<u32>, default_value_t = 256)]
    servers: u32,
    /// Scrapes, one after the other.
    #[arg(long, value_name = "N", value_parser = positive::<u32>, default_value_t = 50)]
    scrapes: u32,
    /// The bar for the median, milliseconds.
    #[arg(long, value_name = "MS", value_parser = positive::<u32>, default_value_t = 20)]
    most_ms: u32,
    /// Workers of respool.
    #[arg(long, value_name = "N", value_parser = positive::<u32>, default_value_t = 2)]
    threads: u32,
    /// The respool to test [the one next to respool-lab, or from PATH].
    #[arg(long, value_name = "PATH")]
    respool: Option<PathBuf>,
}

/// Runs it.
pub fn run(args: &[OsString]) -> ExitCode {
    let given: ScrapeArgs = match read(NAME, ABOUT, args) {
        Ok(given) => given,
        Err(code) => return code,
    };
    match measure(&given) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => fail(NAME, &problem),
    }
}

fn measure(given: &ScrapeArgs) -> Result<(), String> {
    let broken = |error: io::Error| error.to_string();
    let binary = Programs::respool(given.respool.as_deref())?;
    // All addresses of the loopback network lead to it.
    let all = ["--bind", "0.0.0.0", "--protected-mode", "no"];
    let server = ServerProcess::start(&ServerChoice::Found.binary()?, &all).map_err(broken)?;
    let port = server.address().port();
    let address = |nth: u32| format!("127.0.{}.{}:{port}", 1 + nth / 250, 1 + nth % 250);
    let addresses: Vec<String> = (0..given.servers).map(address).collect();
    let pages = free_address().map_err(broken)?;
    let proxy = Proxy::start_with(&binary, |port| {
        arguments([
            ("--listen", format!("127.0.0.1:{port}")),
            (
                "--backend",
                format!("redis-sharded://{}", addresses.join(",")),
            ),
            ("--metrics-listen", pages.to_string()),
            ("--threads", given.threads.to_string()),
            ("--links-max", (4 * given.servers).to_string()),
        ])
    })
    .map_err(broken)?;
    let mut client = RespClient::connect(proxy.address());
    for request in REQUESTS.split('|') {
        client.call(request);
    }
    thread::sleep(SETTLE);
    let pid = proxy.pid();
    let before = cpu::read(pid).map_err(broken)?;
    let (mut ms, mut page) = (Vec::new(), String::new());
    for _ in 0..given.scrapes {
        let began = Instant::now();
        page = scrape(pages).map_err(broken)?;
        ms.push(began.elapsed().as_secs_f64() * 1e3);
    }
    let used = cpu::read(pid).map_err(broken)?.since(&before);
    let cpu_us = used.us_per_request(given.scrapes.into());
    report(given, ms, cpu_us, &page)
}

/// An address that is free now.
fn free_address() -> io::Result<SocketAddr> {
    std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()
}

/// Reads the page. The connection closes behind it.
fn scrape(pages: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect(pages)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    match page.starts_with("HTTP/1.1 200 ") {
        true => Ok(page),
        false => Err(io::Error::other(format!("/metrics answers {page:.80}"))),
    }
}

fn report(
    given: &ScrapeArgs,
    mut ms: Vec<f64>,
    cpu_us: Option<f64>,
    page: &str,
) -> Result<(), String> {
    ms.sort_by(f64::total_cmp);
    let at = |fraction| quantile(&ms, fraction);
    let is_sample = |line: &&str| line.starts_with("respool_");
    let samples = page.lines().filter(is_sample).count();
    let count = |line: &&str| line.starts_with("respool_request_duration_seconds_count{");
    let commands = page.lines().filter(count).count();
    let up = |line: &&str| line.starts_with("respool_server_up{") && line.ends_with("} 1.0");
    let servers = page.lines().filter(up).count();
    super::say(&format!(
        "Scrapes of /metrics: {} servers, {} workers\n\n\
         servers that are up  {servers}\ncommands             {commands}\n\
         samples              {samples}\nbytes                {}\nscrapes              {}\n\
         ms                   p50 {:.1}, p99 {:.1}, most {:.1}\nCPU ms each          {:.1}\n",
        given.servers,
        given.threads,
        page.len(),
        ms.len(),
        at(0.5),
        at(0.99),
        at(1.0),
        cpu_us.unwrap_or(f64::NAN) / 1e3,
    ));
    if servers != given.servers as usize || commands != HISTOGRAMS {
        return Err(format!(
            "the page has {servers} servers that are up and {commands} commands, not {} and \
             {HISTOGRAMS}: it is smaller than it should be",
            given.servers
        ));
    }
    match at(0.5) <= f64::from(given.most_ms) {
        true => Ok(()),
        false => Err(format!("the median is over {} ms", given.most_ms)),
    }
}

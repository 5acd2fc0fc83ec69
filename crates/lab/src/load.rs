//! The load generator: many connections, one thread, as little CPU as possible.
//!
//! It shares the cores with its target, so its work per request is minimal. Requests and replies
//! are prepared on a [`Tape`]. A ready connection costs one read, one comparison, one look at the
//! clock and one write. A running load allocates nothing.
//!
//! **Closed loop** (the default): each connection sends a batch, waits for all its replies, and
//! sends the next one. The time of a request runs from just before the write of its batch to just
//! after the read that completed its reply. One look at the clock between that read and the next
//! write ends the one and begins the other. A target that stalls stalls the generator, too. So the
//! percentiles hold for *these* clients, and not for clients at a fixed rate. The open loop
//! measures those.
//!
//! **Open loop** (a rate): batches are due at fixed times, even if earlier ones have no reply, and
//! a free connection takes the next due one. Time runs from when a batch was *due*. So waiting for
//! a free connection counts, and a late generator as well. A batch that is due but unanswered at
//! the end enters the percentiles with its time so far: a lower bound, never left out.
//!
//! A second thread sleeps. It wakes ten times a second to report progress, and at both ends of the
//! measured window, where it reads count, clock and CPU together.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use respool_testkit::reply::ReplyFramer;
use respool_testkit::time::clock_ns;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use rustls::{ClientConfig, StreamOwned};
use serde::{Deserialize, Serialize};

use crate::case::Verb;
use crate::cpu::{self, CpuUsage};
use crate::load_stream::{LoadStream, tls_to};
use crate::schedule::Schedule;
use crate::tape::{self, Tape, TapeRecipe};

/// The settings of a load.
#[derive(Clone, Debug)]
pub struct LoadSettings {
    /// The address to connect to.
    pub target: SocketAddr,
    /// TLS of the connections that send requests; `None`: plain.
    pub tls: Option<Arc<ClientConfig>>,
    /// The requests.
    pub recipe: TapeRecipe,
    /// Connections that send requests.
    pub connections: usize,
    /// Further connections that stay idle.
    pub idle: usize,
    /// Threads that send requests; each has its share of the connections.
    pub threads: usize,
    /// Seconds before the measured window, with the same load.
    pub warmup_s: f64,
    /// Seconds of the measured window.
    pub seconds: f64,
    /// Requests a second over all connections; `None`: closed loop.
    pub rate: Option<f64>,
    /// Processes whose CPU is read at both ends of the window, by name; those of one name count as
    /// one. The generator itself is always among them.
    pub watch: Vec<(String, Vec<u32>)>,
}

/// Events of a running generator, one JSON object a line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum LoadEvent {
    /// The measured window begins.
    Start {
        /// Nanoseconds of the machine's monotonic clock, as in all events.
        at_ns: u64,
    },
    /// Requests answered since the window began.
    Progress {
        /// When.
        at_ns: u64,
        /// How many.
        requests: u64,
    },
    /// The measured window ends.
    End {
        /// When.
        at_ns: u64,
    },
    /// The last event.
    Result(Box<LoadResult>),
}

/// The result of a load.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadResult {
    /// HOST:PORT
    pub target: String,
    /// The command.
    pub verb: Verb,
    /// Requests of a batch.
    pub pipeline: usize,
    /// Connections that sent requests.
    pub connections: usize,
    /// Idle connections.
    pub idle: usize,
    /// Threads that sent requests.
    pub threads: usize,
    /// Requests a second that were due; `None`: closed loop.
    pub rate: Option<f64>,
    /// Length of the window.
    pub seconds: f64,
    /// Requests answered in the window.
    pub requests: u64,
    /// All answered requests: before the window, in it, and those in flight at its end.
    pub answered: u64,
    /// Replies other than expected, with those of the warm-up.
    pub wrong: u64,
    /// The first of them.
    pub first_wrong: Option<String>,
    /// Requests in flight or overdue when the window closed.
    pub unfinished: u64,
    /// Connections that still owed a reply a second later.
    pub stalled: usize,
    /// Time per request.
    pub latency: Latency,
    /// CPU in the window, by name; the generator's own is called `generator`.
    pub usage: Vec<(String, CpuUsage)>,
}

/// Times in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Requests that were timed.
    pub count: u64,
    /// Mean; `None` where the generator does not report it.
    pub mean_us: Option<f64>,
    /// Percent, and the time that so many percent of the requests did not exceed.
    pub percentiles: Vec<(f64, f64)>,
}

impl Latency {
    /// The percentiles of a report.
    pub const LADDER: [f64; 12] = [
        1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.99, 100.0,
    ];

    /// Reads a histogram of nanoseconds.
    pub fn of(histogram: &Histogram<u64>) -> Latency {
        let time = |percent| histogram.value_at_percentile(percent) as f64 / 1e3;
        if histogram.is_empty() {
            return Latency::default();
        }
        Latency {
            count: histogram.len(),
            mean_us: Some(histogram.mean() / 1e3),
            percentiles: Latency::LADDER
                .iter()
                .map(|&percent| (percent, time(percent)))
                .collect(),
        }
    }

    /// The time that so many percent of the requests did not exceed, if it is in the report.
    pub fn at(&self, percent: f64) -> Option<f64> {
        self.percentiles
            .iter()
            .find(|(p, _)| *p == percent)
            .map(|&(_, us)| us)
    }
}

/// Runs a load to its end. `tell` gets its events.
///
/// # Errors
/// One line: a connection is refused or lost, bytes are no reply, or file descriptors run out.
pub fn run(load: &LoadSettings, tell: &mut dyn FnMut(LoadEvent)) -> Result<LoadResult, String> {
    load.recipe.check()?;
    allow_descriptors(load.connections + load.idle + load.threads * 3 + 64)?;
    let tape = Tape::new(&load.recipe);
    let idle = open_idle(load)?;
    let threads = load.threads.clamp(1, load.connections.max(1));
    let mut workers = Vec::new();
    for thread in 0..threads {
        workers.push(Worker::new(load, &tape, thread, threads)?);
    }
    let shared = LoadState {
        phase: AtomicU8::new(WARMUP),
        counts: (0..threads).map(|_| WorkerCount::default()).collect(),
    };
    let (window, outcomes) = std::thread::scope(|scope| {
        let running: Vec<_> = workers
            .into_iter()
            .zip(&shared.counts)
            .map(|(worker, count)| scope.spawn(|| worker.run(&shared.phase, &count.0)))
            .collect();
        let is_over = || {
            running
                .iter()
                .any(std::thread::ScopedJoinHandle::is_finished)
        };
        let window = watch_window(load, &shared, &is_over, tell);
        shared.phase.store(STOP, Ordering::Relaxed);
        let outcomes: Vec<Result<WorkerOutcome, String>> = running
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .expect("a worker of the generator does not panic")
            })
            .collect();
        (window, outcomes)
    });
    drop(idle);
    let mut sum = WorkerOutcome::new();
    for outcome in outcomes {
        sum.add(outcome?);
    }
    let window = window?;
    Ok(LoadResult {
        target: load.target.to_string(),
        verb: load.recipe.verb,
        pipeline: load.recipe.pipeline,
        connections: load.connections,
        idle: load.idle,
        threads,
        rate: load.rate,
        seconds: window.seconds,
        requests: window.requests,
        answered: sum.answered,
        wrong: sum.wrong.count,
        first_wrong: sum.wrong.first,
        unfinished: sum.unfinished,
        stalled: sum.stalled,
        latency: Latency::of(&sum.histogram),
        usage: window.usage,
    })
}

/// Writes every key with its value, and checks the replies.
///
/// # Errors
/// One line, when the target is unreachable or refuses.
pub fn preload(
    target: SocketAddr,
    tls: Option<&Arc<ClientConfig>>,
    recipe: &TapeRecipe,
) -> Result<(), String> {
    let recipe = TapeRecipe {
        verb: Verb::Set,
        ..*recipe
    };
    let failed = |error: io::Error| format!("preload of {target}: {error}");
    let socket = TcpStream::connect(target).map_err(failed)?;
    socket
        .set_read_timeout(Some(Duration::from_secs(10)))
        .map_err(failed)?;
    let mut stream: Box<dyn ReadWrite> = match tls {
        None => Box::new(socket),
        Some(config) => {
            let tls = tls_to(target, config).map_err(failed)?;
            Box::new(StreamOwned::new(tls, socket))
        }
    };
    // A thousand at a time, fewer when they are large: each side holds no more than for an ordinary
    // pipeline.
    let step = ((1 << 20) / (recipe.value_bytes + 64)).clamp(1, 1000) as u32;
    for first in (0..recipe.keys).step_by(step as usize) {
        let count = (recipe.keys - first).min(step);
        let mut requests = Vec::new();
        for key in first..first + count {
            tape::write_request(&mut requests, &recipe, &[key]);
        }
        stream.write_all(&requests).map_err(failed)?;
        let mut replies = vec![0; 5 * count as usize];
        stream.read_exact(&mut replies).map_err(failed)?;
        if let Some(other) = replies.chunks(5).find(|reply| *reply != b"+OK\r\n") {
            return Err(format!(
                "preload of {target}: SET was answered with {}",
                quote(other)
            ));
        }
    }
    Ok(())
}

trait ReadWrite: Read + Write {}

impl<T: Read + Write> ReadWrite for T {}

/// Raises the limit of file descriptors of this process to `count`, if the hard limit allows it.
///
/// # Errors
/// One line that names the limit to raise.
pub fn allow_descriptors(count: usize) -> Result<(), String> {
    let limit = getrlimit(Resource::Nofile);
    let count = count as u64;
    if limit.current.is_none_or(|current| current >= count) {
        return Ok(());
    }
    if limit.maximum.is_some_and(|maximum| maximum < count) {
        return Err(format!(
            "{count} file descriptors are needed: raise `ulimit -Hn`"
        ));
    }
    let wanted = Rlimit {
        current: Some(count),
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, wanted).map_err(|error| format!("setrlimit: {error}"))
}

/// Connects and proves by PING that the connection is served.
///
/// # Errors
/// When it is not.
pub fn open_and_ping(target: SocketAddr) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(target)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(b"*1\r\n$4\r\nPING\r\n")?;
    let mut answer = [0; 7];
    stream.read_exact(&mut answer)?;
    if &answer != b"+PONG\r\n" {
        return Err(io::Error::other(format!(
            "PING was answered with {}",
            quote(&answer)
        )));
    }
    Ok(stream)
}

const WARMUP: u8 = 0;
const MEASURE: u8 = 1;
const STOP: u8 = 2;

/// Time between two reports of progress.
const PROGRESS: Duration = Duration::from_millis(100);
/// How long a target may take after the end for the missing replies.
const DRAIN: Duration = Duration::from_secs(1);

struct LoadState {
    phase: AtomicU8,
    counts: Vec<WorkerCount>,
}

/// Requests answered by one worker, on a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct WorkerCount(AtomicU64);

struct Window {
    seconds: f64,
    requests: u64,
    usage: Vec<(String, CpuUsage)>,
}

/// Sleeps through the warm-up and the window, and reads all counters at both ends of the window.
fn watch_window(
    load: &LoadSettings,
    shared: &LoadState,
    is_over: &dyn Fn() -> bool,
    tell: &mut dyn FnMut(LoadEvent),
) -> Result<Window, String> {
    let mut watched = load.watch.clone();
    watched.push(("generator".to_owned(), vec![std::process::id()]));
    let read_all = || -> Result<(u64, u64, Vec<cpu::Reading>), String> {
        let mut readings = Vec::with_capacity(watched.len());
        for (name, pids) in &watched {
            let reading = cpu::read_all(pids);
            readings.push(reading.map_err(|error| format!("the CPU of {name}: {error}"))?);
        }
        let count = shared
            .counts
            .iter()
            .map(|count| count.0.load(Ordering::Relaxed))
            .sum();
        Ok((clock_ns(), count, readings))
    };
    let sleep_until = |at_ns: u64| -> bool {
        while let Some(left) = at_ns.checked_sub(clock_ns()).filter(|&left| left > 0) {
            if is_over() {
                return false;
            }
            std::thread::sleep(Duration::from_nanos(left).min(PROGRESS));
        }
        !is_over()
    };
    let lost = || Err("the generator ended early".to_owned());
    if !sleep_until(clock_ns() + (load.warmup_s * 1e9) as u64) {
        return lost();
    }
    shared.phase.store(MEASURE, Ordering::Relaxed);
    let (start_ns, start_count, start) = read_all()?;
    tell(LoadEvent::Start { at_ns: start_ns });
    let end_ns = start_ns + (load.seconds * 1e9) as u64;
    let step = PROGRESS.as_nanos() as u64;
    let mut next = start_ns + step;
    // The last stretch ends with the window: no event comes just before it.
    while next + step / 2 < end_ns {
        if !sleep_until(next) {
            return lost();
        }
        let count: u64 = shared
            .counts
            .iter()
            .map(|count| count.0.load(Ordering::Relaxed))
            .sum();
        tell(LoadEvent::Progress {
            at_ns: clock_ns(),
            requests: count - start_count,
        });
        next += step;
    }
    if !sleep_until(end_ns) {
        return lost();
    }
    let (end_ns, end_count, end) = read_all()?;
    shared.phase.store(STOP, Ordering::Relaxed);
    tell(LoadEvent::Progress {
        at_ns: end_ns,
        requests: end_count - start_count,
    });
    tell(LoadEvent::End { at_ns: end_ns });
    let usage = watched.iter().zip(end.iter().zip(&start));
    Ok(Window {
        seconds: (end_ns - start_ns) as f64 / 1e9,
        requests: end_count - start_count,
        usage: usage
            .map(|((name, _), (end, start))| (name.clone(), end.since(start)))
            .collect(),
    })
}

/// One thread with its connections and results.
struct Worker<'t> {
    tape: &'t Tape,
    epoll: OwnedFd,
    connections: Vec<LoadConnection>,
    open_loop: Option<OpenLoop>,
    outcome: WorkerOutcome,
    buffer: Vec<u8>,
}

struct OpenLoop {
    schedule: Schedule,
    /// Connections without a due batch, the longest waiting first.
    free: VecDeque<usize>,
    timer: OwnedFd,
    /// The time that the timer is set to.
    armed_ns: u64,
}

/// The results of a worker.
struct WorkerOutcome {
    histogram: Histogram<u64>,
    answered: u64,
    wrong: Wrong,
    unfinished: u64,
    stalled: usize,
}

#[derive(Default)]
struct Wrong {
    count: u64,
    first: Option<String>,
}

impl WorkerOutcome {
    fn new() -> WorkerOutcome {
        WorkerOutcome {
            // From a nanosecond to ten minutes in three digits.
            histogram: Histogram::new_with_bounds(1, 600_000_000_000, 3)
                .expect("the bounds of the histogram are legal"),
            answered: 0,
            wrong: Wrong::default(),
            unfinished: 0,
            stalled: 0,
        }
    }

    fn add(&mut self, other: WorkerOutcome) {
        self.histogram
            .add(&other.histogram)
            .expect("all histograms have the same bounds");
        self.answered += other.answered;
        self.wrong.count += other.wrong.count;
        self.wrong.first = self.wrong.first.take().or(other.wrong.first);
        self.unfinished += other.unfinished;
        self.stalled += other.stalled;
    }
}

/// The id of the timer among the ids of connections.
const TIMER: u64 = u64::MAX;
/// Wakes a worker without replies, to see whether it should stop.
const LOOK_UP: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

impl<'t> Worker<'t> {
    fn new(
        load: &LoadSettings,
        tape: &'t Tape,
        thread: usize,
        threads: usize,
    ) -> Result<Worker<'t>, String> {
        let system = |error: Errno| format!("epoll: {error}");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
        let mut connections = Vec::new();
        for place in (0..load.connections).skip(thread).step_by(threads) {
            let failed =
                |error: io::Error| format!("connection {place} to {}: {error}", load.target);
            let stream = LoadStream::connect(load.target, load.tls.as_ref()).map_err(failed)?;
            let number = EventData::new_u64(connections.len() as u64);
            epoll::add(&epoll, stream.socket(), number, EventFlags::IN).map_err(system)?;
            // Connections start spread over the tape, so that no two send the same keys at the same
            // moment.
            let batch = place * tape.batches() / load.connections;
            connections.push(LoadConnection::new(stream, batch));
        }
        let open_loop = match load.rate {
            None => None,
            Some(rate) => {
                let timer = timerfd_create(
                    TimerfdClockId::Monotonic,
                    TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
                )
                .map_err(|error| format!("timerfd: {error}"))?;
                epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)
                    .map_err(system)?;
                let batches_per_second = rate / load.recipe.pipeline as f64 / threads as f64;
                // Threads start at different times within an interval, instead of all at once.
                let offset = 1e9 / batches_per_second * thread as f64 / threads as f64;
                Some(OpenLoop {
                    schedule: Schedule::new(clock_ns() + offset as u64, batches_per_second),
                    free: (0..connections.len()).collect(),
                    timer,
                    armed_ns: 0,
                })
            }
        };
        // Room for two whole batches of replies: one read then empties an ordinary connection.
        let buffer = vec![0; (2 * tape.replies(0).len()).max(16 << 10)];
        Ok(Worker {
            tape,
            epoll,
            connections,
            open_loop,
            outcome: WorkerOutcome::new(),
            buffer,
        })
    }

    fn run(mut self, phase: &AtomicU8, count: &AtomicU64) -> Result<WorkerOutcome, String> {
        let mut events = Vec::with_capacity(1024);
        if self.open_loop.is_none() {
            for place in 0..self.connections.len() {
                self.begin(place, clock_ns())?;
            }
        }
        let mut phase_now = WARMUP;
        while phase_now != STOP {
            self.begin_due_batches()?;
            self.wait(&mut events)?;
            phase_now = phase.load(Ordering::Relaxed);
            for event in &events {
                self.outcome.answered += self.handle_event(event, phase_now == MEASURE)?;
            }
            count.store(self.outcome.answered, Ordering::Relaxed);
        }
        self.account_for_the_rest();
        self.drain(&mut events)?;
        Ok(self.outcome)
    }

    fn wait(&self, events: &mut Vec<epoll::Event>) -> Result<(), String> {
        events.clear();
        match epoll::wait(&self.epoll, spare_capacity(events), Some(&LOOK_UP)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(format!("epoll: {error}")),
        }
    }

    /// Returns how many requests it completed.
    fn handle_event(&mut self, event: &epoll::Event, is_measured: bool) -> Result<u64, String> {
        if event.data.u64() == TIMER {
            if let Some(open_loop) = &mut self.open_loop {
                open_loop.armed_ns = 0;
                // There is nothing to read if it was set again meanwhile.
                let _ = rustix::io::read(&open_loop.timer, &mut [0; 8]);
            }
            return Ok(0);
        }
        let place = event.data.u64() as usize;
        let connection = &mut self.connections[place];
        let flags = event.flags;
        if flags.contains(EventFlags::OUT) {
            connection.flush(self.tape, &self.epoll, place)?;
        }
        if !flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            return Ok(0);
        }
        let length = match connection.stream.read(&mut self.buffer) {
            Ok(0) => return Err("the target closed a connection".to_owned()),
            Ok(length) => length,
            Err(error) if is_for_now(&error) => return Ok(0),
            Err(error) => return Err(format!("the target broke a connection: {error}")),
        };
        let bytes = &self.buffer[..length];
        let completed = connection.receive(self.tape, bytes, &mut self.outcome.wrong)?;
        let now = clock_ns();
        if is_measured && completed > 0 {
            let time = now.saturating_sub(connection.start_ns);
            self.outcome.histogram.saturating_record_n(time, completed);
        }
        if !connection.is_busy {
            match &mut self.open_loop {
                None => self.begin(place, now)?,
                Some(open_loop) => match open_loop.schedule.take(now) {
                    Some(due) => self.begin(place, due)?,
                    None => open_loop.free.push_back(place),
                },
            }
        }
        Ok(completed)
    }

    fn begin(&mut self, place: usize, start_ns: u64) -> Result<(), String> {
        let connection = &mut self.connections[place];
        connection.begin(self.tape, start_ns);
        connection.flush(self.tape, &self.epoll, place)
    }

    /// Open loop: gives due batches to free connections, and sets the timer for the next one.
    fn begin_due_batches(&mut self) -> Result<(), String> {
        loop {
            let Some(open_loop) = &mut self.open_loop else {
                return Ok(());
            };
            let Some(&place) = open_loop.free.front() else {
                return Ok(());
            };
            if let Some(due) = open_loop.schedule.take(clock_ns()) {
                open_loop.free.pop_front();
                self.begin(place, due)?;
                continue;
            }
            let due = open_loop.schedule.due_ns();
            if open_loop.armed_ns != due {
                open_loop.armed_ns = due;
                let at = Itimerspec {
                    it_interval: Timespec::default(),
                    it_value: Timespec {
                        tv_sec: (due / 1_000_000_000) as i64,
                        tv_nsec: (due % 1_000_000_000) as i64,
                    },
                };
                timerfd_settime(&open_loop.timer, TimerfdTimerFlags::ABSTIME, &at)
                    .map_err(|error| format!("timerfd: {error}"))?;
            }
            return Ok(());
        }
    }

    /// Counts requests in flight, and in an open loop overdue ones, when the window closes.
    fn account_for_the_rest(&mut self) {
        let now = clock_ns();
        let batch = self.tape.batch_requests();
        let mut waiting = Vec::new();
        for connection in self
            .connections
            .iter()
            .filter(|connection| connection.is_busy)
        {
            waiting.push((connection.start_ns, batch - connection.replied));
        }
        if let Some(open_loop) = &mut self.open_loop {
            while let Some(due) = open_loop.schedule.take(now) {
                waiting.push((due, batch));
            }
        }
        for (start_ns, requests) in waiting {
            self.outcome.unfinished += requests as u64;
            // A closed loop always has a batch in flight: its time would only be cut short.
            if self.open_loop.is_some() {
                let time = now.saturating_sub(start_ns);
                self.outcome
                    .histogram
                    .saturating_record_n(time, requests as u64);
            }
        }
    }

    /// Reads the missing replies, so that the next measurement finds a target at rest.
    fn drain(&mut self, events: &mut Vec<epoll::Event>) -> Result<(), String> {
        let deadline = clock_ns() + DRAIN.as_nanos() as u64;
        if let Some(open_loop) = &mut self.open_loop {
            epoll::delete(&self.epoll, &open_loop.timer)
                .map_err(|error| format!("epoll: {error}"))?;
        }
        while self.connections.iter().any(|connection| connection.is_busy) && clock_ns() < deadline
        {
            self.wait(events)?;
            for event in events.iter() {
                let place = event.data.u64() as usize;
                let connection = &mut self.connections[place];
                let flags = event.flags;
                if flags.contains(EventFlags::OUT) {
                    connection.flush(self.tape, &self.epoll, place)?;
                }
                match connection.stream.read(&mut self.buffer) {
                    Ok(0) => return Err("the target closed a connection".to_owned()),
                    Ok(length) => {
                        let bytes = &self.buffer[..length];
                        self.outcome.answered +=
                            connection.receive(self.tape, bytes, &mut self.outcome.wrong)?;
                    }
                    Err(error) if is_for_now(&error) => {}
                    Err(error) => return Err(format!("the target broke a connection: {error}")),
                }
            }
        }
        self.outcome.stalled = self.connections.iter().filter(|c| c.is_busy).count();
        Ok(())
    }
}

/// One connection with at most one batch in flight.
struct LoadConnection {
    stream: LoadStream,
    /// Index on the tape of the batch in flight, or of the next one.
    batch: usize,
    is_busy: bool,
    /// When it was sent; in an open loop, when it was due.
    start_ns: u64,
    /// Bytes of its requests that the stream took.
    sent: usize,
    /// Bytes of its replies so far, all as expected.
    matched: usize,
    /// Its answered requests.
    replied: usize,
    /// Whether epoll also reports room to write.
    waits_for_room: bool,
    /// Set from the first unexpected byte until a reply and a read end together.
    unexpected: Option<Box<UnexpectedReplies>>,
}

/// A connection with unexpected replies: they are parsed by their own framing.
#[derive(Default)]
struct UnexpectedReplies {
    scanner: ReplyFramer,
    /// The reply so far, cut short, and its real length.
    reply: Vec<u8>,
    length: usize,
}

/// Bytes of an unexpected reply in the report.
const QUOTED_BYTES_MAX: usize = 120;

impl LoadConnection {
    fn new(stream: LoadStream, batch: usize) -> LoadConnection {
        LoadConnection {
            stream,
            batch,
            is_busy: false,
            start_ns: 0,
            sent: 0,
            matched: 0,
            replied: 0,
            waits_for_room: false,
            unexpected: None,
        }
    }

    fn begin(&mut self, tape: &Tape, start_ns: u64) {
        debug_assert!(!self.is_busy, "one batch at a time");
        self.batch = if self.batch + 1 < tape.batches() {
            self.batch + 1
        } else {
            0
        };
        self.is_busy = true;
        self.start_ns = start_ns;
        self.sent = 0;
        self.matched = 0;
        self.replied = 0;
    }

    /// Writes the rest of the batch. Bytes that the kernel has no room for wait for epoll.
    fn flush(&mut self, tape: &Tape, epoll: &OwnedFd, place: usize) -> Result<(), String> {
        let requests = tape.requests(self.batch);
        let has_more = |stream: &LoadStream, sent| sent < requests.len() || stream.wants_write();
        if self.is_busy && has_more(&self.stream, self.sent) {
            match self.stream.write(&requests[self.sent..]) {
                Ok(length) => self.sent += length,
                Err(error) if is_for_now(&error) => {}
                Err(error) => return Err(format!("the target broke a connection: {error}")),
            }
        }
        let needs_room = self.is_busy && has_more(&self.stream, self.sent);
        if needs_room != self.waits_for_room {
            self.waits_for_room = needs_room;
            let flags = if needs_room {
                EventFlags::IN | EventFlags::OUT
            } else {
                EventFlags::IN
            };
            let place = EventData::new_u64(place as u64);
            epoll::modify(epoll, self.stream.socket(), place, flags)
                .map_err(|error| format!("epoll: {error}"))?;
        }
        Ok(())
    }

    /// Takes bytes of replies. Returns how many replies they complete. After the last one the
    /// connection is free.
    fn receive(&mut self, tape: &Tape, bytes: &[u8], wrong: &mut Wrong) -> Result<u64, String> {
        if !self.is_busy {
            return Err(format!("unexpected reply: {}", quote(bytes)));
        }
        let before = self.replied;
        let expected = &tape.replies(self.batch)[self.matched..];
        if self.unexpected.is_none() && expected.starts_with(bytes) {
            self.matched += bytes.len();
            self.replied = self.matched / tape.reply_bytes();
        } else {
            self.receive_unexpected(tape, bytes, wrong)?;
        }
        self.is_busy = self.replied < tape.batch_requests();
        Ok((self.replied - before) as u64)
    }

    #[cold]
    fn receive_unexpected(
        &mut self,
        tape: &Tape,
        bytes: &[u8],
        wrong: &mut Wrong,
    ) -> Result<(), String> {
        let size = tape.reply_bytes();
        let mut unexpected = match self.unexpected.take() {
            Some(unexpected) => unexpected,
            None => {
                // The earlier bytes of this reply were as expected, so the tape has them.
                let mut unexpected = Box::<UnexpectedReplies>::default();
                let begun = &tape.replies(self.batch)[self.replied * size..self.matched];
                unexpected.take(begun, size)?;
                unexpected
            }
        };
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.replied == tape.batch_requests() {
                return Err(format!("unexpected reply: {}", quote(rest)));
            }
            let (taken, is_whole) = unexpected.take(rest, size)?;
            rest = &rest[taken..];
            if is_whole {
                let expected = tape.reply(self.batch, self.replied);
                if unexpected.length != expected.len() || unexpected.reply != expected {
                    wrong.count += 1;
                    let request = tape.request(self.batch, self.replied);
                    wrong.first.get_or_insert_with(|| {
                        // Long replies have a long common part: a reader looks for the difference.
                        let same = common(&unexpected.reply, expected);
                        let skipped = if same < QUOTED_BYTES_MAX / 2 { 0 } else { same };
                        let place = match skipped {
                            0 => String::new(),
                            _ => format!(" from byte {skipped} on"),
                        };
                        format!(
                            "{} was answered{place} with {}, not with {}",
                            quote(request),
                            quote(&unexpected.reply[skipped..]),
                            quote(&expected[skipped..])
                        )
                    });
                }
                unexpected.reply.clear();
                unexpected.length = 0;
                self.replied += 1;
            }
        }
        self.matched = self.replied * size;
        // Comparison can resume between two replies.
        self.unexpected = (unexpected.length > 0).then_some(unexpected);
        Ok(())
    }
}

impl UnexpectedReplies {
    /// Takes bytes up to the end of the reply; `size` bytes are expected. Returns how many it took,
    /// and whether the reply is complete.
    fn take(&mut self, bytes: &[u8], size: usize) -> Result<(usize, bool), String> {
        let end = self
            .scanner
            .feed(bytes)
            .map_err(|_| format!("bytes that are no reply: {}", quote(bytes)))?;
        let taken = end.unwrap_or(bytes.len());
        // Enough to compare with the expected reply, and to quote.
        let room = (size + QUOTED_BYTES_MAX).saturating_sub(self.reply.len());
        self.reply.extend_from_slice(&bytes[..taken.min(room)]);
        self.length += taken;
        Ok((taken, end.is_some()))
    }
}

/// Whether the socket is not ready, or a signal came.
fn is_for_now(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// The length of the common beginning.
fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Bytes of a peer for a message: readable and short.
fn quote(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(QUOTED_BYTES_MAX)];
    let dots = if cut.len() < bytes.len() { "…" } else { "" };
    format!("\"{}{dots}\"", cut.escape_ascii())
}

fn open_idle(load: &LoadSettings) -> Result<Vec<TcpStream>, String> {
    (0..load.idle)
        .map(|place| {
            open_and_ping(load.target).map_err(|error| format!("idle connection {place}: {error}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tape::TapeValues;
    use proptest::prelude::*;

    fn tape(verb: Verb, pipeline: usize) -> Tape {
        Tape::new(&TapeRecipe {
            verb,
            pipeline,
            keys: 3000,
            zipf: None,
            value_bytes: 2,
            values: TapeValues::OfKey,
        })
    }

    fn connection(tape: &Tape) -> LoadConnection {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = LoadStream::connect(listener.local_addr().unwrap(), None).unwrap();
        let mut connection = LoadConnection::new(stream, 3);
        connection.begin(tape, 0);
        connection
    }

    /// Feeds a stream in pieces. Returns how many replies it completed and how many were wrong.
    fn feed(
        connection: &mut LoadConnection,
        tape: &Tape,
        stream: &[u8],
        cuts: &[usize],
    ) -> Result<(u64, u64, Option<String>), String> {
        let mut wrong = Wrong::default();
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut % (stream.len() + 1)).collect();
        places.extend([0, stream.len()]);
        places.sort_unstable();
        places.dedup();
        let mut completed = 0;
        for pair in places.windows(2) {
            completed += connection.receive(tape, &stream[pair[0]..pair[1]], &mut wrong)?;
        }
        Ok((completed, wrong.count, wrong.first))
    }

    proptest! {
        #[test]
        fn any_split_counts_the_same_replies_and_the_same_wrong_ones(
            spoilt in prop::collection::vec(0usize..60, 0..5),
            cuts in prop::collection::vec(any::<usize>(), 0..30),
        ) {
            let tape = tape(Verb::Get, 20);
            let mut connection = connection(&tape);
            let mut stream = Vec::new();
            let mut expected = 0;
            for place in 0..20 {
                if !spoilt.contains(&place) {
                    stream.extend_from_slice(tape.reply(connection.batch, place));
                    continue;
                }
                expected += 1;
                // A reply of another size, one of the same size, and an error.
                stream.extend_from_slice(match place % 3 {
                    0 => b"$-1\r\n",
                    1 => b"$2\r\n!!\r\n",
                    _ => b"-ERR no such thing\r\n",
                });
            }
            let (completed, wrong, _) = feed(&mut connection, &tape, &stream, &cuts).unwrap();
            prop_assert_eq!((completed, wrong), (20, expected));
            prop_assert!(!connection.is_busy && connection.unexpected.is_none());
        }
    }

    #[test]
    fn a_reply_that_belongs_to_another_key_is_wrong_and_named() {
        let tape = tape(Verb::Get, 1);
        let mut connection = connection(&tape);
        let other = (0..tape.batches())
            .find(|&batch| tape.replies(batch) != tape.replies(connection.batch))
            .unwrap();
        let (completed, wrong, first) =
            feed(&mut connection, &tape, tape.replies(other), &[]).unwrap();
        assert_eq!((completed, wrong), (1, 1));
        assert!(first.unwrap().contains("GET"));
    }

    /// An MGET reply with one element wrong, missing or nil is wrong, and its place is named.
    #[test]
    fn wrong_element_of_an_mget_reply_is_named() {
        let tape = tape(Verb::Mget(100), 1);
        let whole = tape.replies(4).to_vec();
        let element = b"$2\r\nxx\r\n".len();
        let place = b"*100\r\n".len() + 70 * element;
        let mut other = whole.clone();
        other[place + 4] ^= 1;
        let mut missing = [b"*99\r\n", &whole[b"*100\r\n".len()..]].concat();
        missing.truncate(missing.len() - element);
        let nil = [&whole[..place], b"$-1\r\n", &whole[place + element..]].concat();
        for (reply, named) in [
            (other, format!("from byte {} on", place + 4)),
            (missing, "answered with \"*99".to_owned()),
            (nil, format!("from byte {} on with \"-1", place + 1)),
        ] {
            for cuts in [&[][..], &[3, 50, 300, 600]] {
                let mut connection = connection(&tape);
                assert_eq!(connection.batch, 4, "the batch of the reply");
                let (completed, wrong, first) = feed(&mut connection, &tape, &reply, cuts).unwrap();
                assert_eq!((completed, wrong), (1, 1));
                let first = first.unwrap();
                assert!(first.contains(&named), "{first}");
            }
        }
        let right = feed(&mut connection(&tape), &tape, &whole, &[1, 700]);
        assert_eq!(right, Ok((1, 0, None)));
    }

    #[test]
    fn more_replies_than_requests_end_the_run() {
        let tape = tape(Verb::Set, 2);
        for extra in [&b"+OK\r\n+OK\r\n+OK\r\n"[..], b"+OK\r\n+NO\r\n+OK\r\n"] {
            let problem = feed(&mut connection(&tape), &tape, extra, &[]).unwrap_err();
            assert!(problem.contains("unexpected reply"), "{problem}");
        }
        let problem = feed(&mut connection(&tape), &tape, b"HTTP/1.1 400\r\n", &[]).unwrap_err();
        assert!(problem.contains("no reply"), "{problem}");
    }

    /// So many requests of a hundred take no longer than a percentile.
    #[test]
    fn percentile_bounds_its_share_of_requests() {
        let mut outcome = WorkerOutcome::new();
        for microsecond in 1..=1000u64 {
            outcome.histogram.record(microsecond * 1000).unwrap();
        }
        let latency = Latency::of(&outcome.histogram);
        assert_eq!(latency.count, 1000);
        for (percent, expected) in [(50.0, 500.0), (99.0, 990.0), (99.9, 999.0), (100.0, 1000.0)] {
            let found = latency.at(percent).unwrap();
            assert!(
                (found / expected - 1.0).abs() < 0.002,
                "p{percent} is {found}"
            );
        }
        assert_eq!(
            Latency::of(&WorkerOutcome::new().histogram),
            Latency::default()
        );
    }
}

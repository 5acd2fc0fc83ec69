//! How long the batch of a busy link may wait: as long as waiting pays.
//!
//! ```text
//!   INFO cpu, every 200 ms ──► utilization of the server's main thread ──┐
//!     (or the occupancy of its links)                                    ├─► a controller each
//!   the driver's reports   ──► utilization of the worker's thread ───────┘      │
//!                                                     the longer wait counts ◄──┘
//! ```
//!
//! A batch that waits gathers more requests, so server and worker spend less on each of them. This
//! pays where one of them has no room, and costs latency everywhere else. With
//! [`Aim::Balanced`] a batch therefore leaves at once while both have room.
//!
//! Each server has a *window*: the time between two answers to INFO cpu. The wait changes only at
//! the end of a window, so each sample belongs to one wait. A server that is not asked has windows
//! of the same length. Five windows a second settle a wait within 2 s ([`controller`]). With one a
//! second it would be 10 s.
//!
//! The *occupancy* of a server's links is the fraction of time in which one of them owes replies.
//! It says less than the server's own figures: a distant server with room owes replies nearly
//! always.
//!
//! Time in which the worker is ready to run, and has no processor, counts as its utilization: then
//! its machine has no room.
//!
//! With [`Settings::asks_server_cpu`](crate::settings::Settings) each server is asked every 5 s at
//! least, for metrics. Such an answer ends no window.
//!
//! Where requests are so rare that the longest wait gathers less than a fifth of a request, nothing
//! waits and the server is not asked.
//!
//! A wait helps only where it makes requests cheaper. If other clients of the server, or slow
//! commands, take its time, batches wait as long as under [`Aim::ServerCpu`], and no longer.

mod controller;

use respool_protocol::value::Value;

use crate::base::handle::LinkId;
use crate::base::settings::{Aim, FlushRule};
use crate::base::time::{TICK_MS, Time};
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::link::LinkRole;
use crate::data_plane::own_options::CoalescingSwitches;
use crate::data_plane::worker_report::ServerCpu;
use crate::routing::pool::ServerId;

use controller::{Band, Controller, Sample};

/// The length of a window, milliseconds. It ends at the nearest tick.
const WINDOW_MS: u64 = 200;
/// If no answer has come after this time, the window ends without it, milliseconds.
const LATE_MS: u64 = 3 * WINDOW_MS;
/// A window that is longer says nothing of the present load, milliseconds.
const WINDOW_MS_MAX: u64 = 4 * WINDOW_MS;
/// A window that is shorter says little, milliseconds. There are such windows behind a late answer.
const WINDOW_MS_MIN: u64 = WINDOW_MS / 2;
/// The longest wait under a balanced rule, microseconds. A window has to see four batches at least.
const WAIT_US_MAX: u32 = WINDOW_MS as u32 * 1_000 / 4;
/// Servers begin their windows at so many different moments.
const STAGGERED: u64 = WINDOW_MS / TICK_MS as u64;
/// How long a server is not asked again after it refused, milliseconds.
const REFUSED_MS: u64 = 60_000;
/// The time between two questions for metrics, milliseconds.
const METRICS_MS: u64 = 5_000;
/// The question: `INFO cpu`.
const QUESTION: &[u8] = b"*2\r\n$4\r\nINFO\r\n$3\r\ncpu\r\n";

/// The utilization of one core by a server's main thread.
const SERVER: Band = Band {
    room: 0.45,
    full: 0.6,
};
/// The occupancy of the links to a server.
const LINKS: Band = Band {
    room: 0.9,
    full: 1.0,
};
/// The utilization of the worker's thread. The band begins high: below it, a batch that waits adds
/// more to the time of its requests than the worker's queue does.
const WORKER: Band = Band {
    room: 0.85,
    full: 0.95,
};

/// The number of requests that the longest wait has to gather.
const GATHERED_MIN: f64 = 0.2;
/// As [`GATHERED_MIN`], while batches wait already. So rates near the bound do not switch waits on
/// and off.
const GATHERED_MIN_WAITING: f64 = GATHERED_MIN / 2.0;
/// Figures of a server that make no sense, one after the other, until it is not asked.
const ODD_MAX: u8 = 3;
/// The most cores that one process can use, we assume. A larger figure is a leap.
const CORES_MAX: f64 = 1_024.0;
/// A server that got so many requests in a window must have used processor time.
const SENT_FOR_NOTHING_MAX: u64 = 1_000;
/// Characters of a server's refusal that the log shows.
const REFUSAL_SHOWN_MAX: usize = 200;
/// The weight of one tick in the smoothed occupancy: some ten ticks count.
const OCCUPANCY_WEIGHT: f32 = 0.1;

/// Measurements of a worker's thread by the driver, since the thread began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time on a processor, microseconds.
    pub ran_us: u64,
    /// Time in which the thread was ready to run and had no processor, microseconds. 0 where the
    /// system does not tell.
    pub waited_us: u64,
}

/// The last report of the driver.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WorkerLoad {
    report: Option<(Time, Usage)>,
    /// The utilization between the last two reports.
    utilization: Option<f32>,
}

impl WorkerLoad {
    fn note(&mut self, now: Time, usage: Usage) {
        let report = (now, usage);
        if let Some(before) = self.report.replace(report) {
            self.utilization = utilization(before, report);
        }
    }

    /// The utilization since an earlier report.
    fn since(&self, before: Option<(Time, Usage)>) -> Option<f32> {
        utilization(before?, self.report?)
    }
}

fn utilization((at, before): (Time, Usage), (now, usage): (Time, Usage)) -> Option<f32> {
    let total = |usage: Usage| usage.ran_us.saturating_add(usage.waited_us);
    let used = total(usage).saturating_sub(total(before));
    (now > at).then(|| (used as f32 / now.since_us(at) as f32).min(1.0))
}

/// The reason why batches to a server wait, or do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum WaitReason {
    /// Too few requests come for a wait to gather some.
    #[default]
    Few,
    /// Server and worker have room.
    Room,
    /// The server's main thread has no room.
    Server,
    /// The server does not tell its utilization, and its links are nearly always occupied.
    Links,
    /// The worker has no room.
    Worker,
}

impl WaitReason {
    fn name(self) -> &'static str {
        match self {
            WaitReason::Few => "few-requests",
            WaitReason::Room => "cpu-free",
            WaitReason::Server => "server-busy",
            WaitReason::Links => "links-busy",
            WaitReason::Worker => "worker-busy",
        }
    }
}

/// An answer to INFO cpu.
#[derive(Debug, PartialEq)]
enum CpuAnswer {
    /// The processor time since the server began.
    Cpu(ServerCpu),
    /// The server is starting, or busy with one command.
    Later,
    /// The server's error.
    Refused(String),
    /// The figures make no sense; the reason.
    Unusable(String),
}

impl CpuAnswer {
    fn of(reply: &[u8]) -> CpuAnswer {
        if let Some(error) = reply.strip_prefix(b"-") {
            let later: [&[u8]; 3] = [b"LOADING", b"BUSY", b"MASTERDOWN"];
            return match later.iter().any(|word| error.starts_with(word)) {
                true => CpuAnswer::Later,
                false => {
                    let error = String::from_utf8_lossy(error);
                    let shown = error.trim_end().chars().take(REFUSAL_SHOWN_MAX);
                    CpuAnswer::Refused(shown.collect())
                }
            };
        }
        let value = Value::read(reply);
        let text = value.as_ref().and_then(Value::text);
        let text = text.and_then(|text| std::str::from_utf8(text).ok());
        let text = text.unwrap_or_default();
        let field = |name: &str| -> Option<f64> {
            let mut lines = text.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            let seconds: Option<f64> = value.trim().parse().ok();
            seconds.filter(|seconds| *seconds >= 0.0 && seconds.is_finite())
        };
        // A server before 7.0 counts its threads that save and free memory, too.
        let sums = [
            ["used_cpu_user_main_thread", "used_cpu_sys_main_thread"],
            ["used_cpu_user", "used_cpu_sys"],
        ];
        let cpu = |[user, sys]: &[&str; 2]| {
            Some(ServerCpu {
                user_s: field(user)?,
                system_s: field(sys)?,
            })
        };
        match sums.iter().find_map(cpu) {
            Some(cpu) => CpuAnswer::Cpu(cpu),
            None => CpuAnswer::Unusable("it has no used_cpu_user and used_cpu_sys".into()),
        }
    }
}

/// The state at the beginning of a window.
#[derive(Clone, Copy, Debug, Default)]
struct LoadWindow {
    /// When the window began.
    at: Time,
    /// Requests to the server that had left at the last tick before.
    requests: u64,
    /// The time of that tick.
    counted_at: Time,
    /// The driver's last report before.
    report: Option<(Time, Usage)>,
    /// The server's processor time, seconds.
    cpu_s: Option<f64>,
}

/// A question on a link: which link, and since when it was up.
type Connection = (LinkId, Time);

/// The load of a server, and the wait of batches to it.
#[derive(Debug)]
pub(crate) struct ServerLoad {
    /// The present window.
    window: LoadWindow,
    /// Requests that had left to the server at the last tick.
    requests: u64,
    /// The time of that tick.
    counted_at: Time,
    /// The connection of the question that the server has not answered.
    question_on: Option<Connection>,
    /// Whether that question is for metrics alone: its answer ends no window.
    is_for_metrics: bool,
    /// When the server was last asked for metrics.
    metrics_asked_at: Option<Time>,
    /// The connection on which the server gave the figures of the window.
    figures_on: Option<Connection>,
    /// Figures that made no sense, one after the other.
    odd: u8,
    /// When the server last refused, or gave figures of no use.
    refused_at: Option<Time>,
    /// Whether the log names the refusal.
    is_refusal_logged: bool,
    /// The fraction of a core that the server's main thread used in the last window.
    utilization: Option<f32>,
    /// The smoothed fraction of ticks at which one of its links owes replies.
    occupancy: f32,
    /// Whether one of its links owes replies at this tick.
    is_occupied: bool,
    by_server: Controller,
    by_links: Controller,
    by_worker: Controller,
    /// The longest wait of a batch at present, microseconds.
    wait_us: u32,
    /// `wait_us` as a fraction of the longest wait that the rule allows.
    applied: f32,
    /// The reason why batches wait, or do not.
    reason: WaitReason,
    /// The server's last answer with its processor time, and when it came.
    cpu: Option<(Time, ServerCpu)>,
}

impl Default for ServerLoad {
    fn default() -> ServerLoad {
        ServerLoad {
            window: LoadWindow::default(),
            requests: 0,
            counted_at: Time::default(),
            question_on: None,
            is_for_metrics: false,
            metrics_asked_at: None,
            figures_on: None,
            odd: 0,
            refused_at: None,
            is_refusal_logged: false,
            utilization: None,
            occupancy: 0.0,
            is_occupied: false,
            by_server: Controller::new(SERVER),
            by_links: Controller::new(LINKS),
            by_worker: Controller::new(WORKER),
            wait_us: 0,
            applied: 0.0,
            reason: WaitReason::default(),
            cpu: None,
        }
    }
}

impl ServerLoad {
    /// How long a batch may wait under a balanced rule, microseconds.
    #[inline]
    pub(crate) fn wait_us(&self) -> u32 {
        self.wait_us
    }

    /// Requests of respool itself that this link owes replies to. No batch waits for them.
    ///
    /// It counts the question of an open batch, too. That batch may then leave early.
    #[inline]
    pub(crate) fn questions_on(&self, link: LinkId) -> usize {
        usize::from(self.question_on.is_some_and(|(on, _)| on == link))
    }

    /// Ends all waits and begins the controllers anew. A question that is in flight is still owed.
    pub(crate) fn reset(&mut self) {
        *self = ServerLoad {
            requests: self.requests,
            counted_at: self.counted_at,
            question_on: self.question_on,
            is_for_metrics: self.is_for_metrics,
            metrics_asked_at: self.metrics_asked_at,
            refused_at: self.refused_at,
            is_refusal_logged: self.is_refusal_logged,
            occupancy: self.occupancy,
            cpu: self.cpu,
            ..ServerLoad::default()
        };
    }

    fn sample_occupancy(&mut self, now: Time) {
        self.counted_at = now;
        let is = if self.is_occupied { 1.0 } else { 0.0 };
        self.occupancy += (is - self.occupancy) * OCCUPANCY_WEIGHT;
        self.is_occupied = false;
    }

    fn is_window_over(&self, now: Time) -> bool {
        now.since_ms(self.window.at) + u64::from(TICK_MS) / 2 >= WINDOW_MS
    }

    /// Requests a second since the window began.
    fn rate(&self) -> f64 {
        let us = self.counted_at.since_us(self.window.counted_at).max(1);
        (self.requests - self.window.requests) as f64 * 1e6 / us as f64
    }

    /// Whether the longest wait gathers requests at the rate of the window.
    fn gathers(&self, longest_us: u32) -> bool {
        let min = match self.wait_us > 0 {
            true => GATHERED_MIN_WAITING,
            false => GATHERED_MIN,
        };
        let gathered = self.rate() * f64::from(longest_us) / 1e6;
        gathered >= min
    }

    fn begin_window(&mut self, now: Time, worker: &WorkerLoad, cpu_s: Option<f64>) {
        self.window = LoadWindow {
            at: now,
            requests: self.requests,
            counted_at: self.counted_at,
            report: worker.report,
            cpu_s,
        };
    }

    /// Ends a window in which few requests came.
    fn end_idle(&mut self, now: Time, worker: &WorkerLoad) {
        if self.reason != WaitReason::Few {
            self.reset();
        }
        self.begin_window(now, worker, None);
    }

    /// The utilization of a core since the window began. An error if the server's figures make no
    /// sense, with the reason.
    fn used(&mut self, now: Time, cpu_s: f64) -> Result<Option<f32>, String> {
        let Some(before) = self.window.cpu_s else {
            return Ok(None);
        };
        let cores = (cpu_s - before) * 1e6 / now.since_us(self.window.at).max(1) as f64;
        let stands_still =
            cores == 0.0 && self.requests - self.window.requests >= SENT_FOR_NOTHING_MAX;
        if (0.0..=CORES_MAX).contains(&cores) && !stands_still {
            self.odd = 0;
            return Ok(Some(cores.min(1.0) as f32));
        }
        // The server may have been restarted, or another one answers.
        self.odd += 1;
        if self.odd < ODD_MAX {
            return Ok(None);
        }
        self.odd = 0;
        Err(match stands_still {
            true => "its processor time stands still".into(),
            false => format!("its processor time leaps from {before:e} s to {cpu_s:e} s"),
        })
    }

    /// Ends a window. `longest_us`: the longest wait. `cpu_s`: the server's processor time, if the
    /// server tells it.
    fn end_window(
        &mut self,
        now: Time,
        longest_us: u32,
        worker: &WorkerLoad,
        cpu_s: Option<f64>,
    ) -> Result<(), String> {
        let us = now.since_us(self.window.at);
        let is_usable = (WINDOW_MS_MIN * 1_000..=WINDOW_MS_MAX * 1_000).contains(&us);
        if is_usable {
            let utilization = match cpu_s {
                Some(cpu_s) => self.used(now, cpu_s)?,
                None => None,
            };
            let rate = self.rate();
            let sample = |utilization| Sample {
                utilization,
                rate: rate as f32,
                applied: self.applied,
                longest_us,
            };
            match (utilization, cpu_s) {
                (Some(utilization), _) => {
                    self.by_server.follow(sample(utilization));
                    self.by_links.reset();
                }
                // The server tells its time, and there is none yet to compare it with.
                (None, Some(_)) => {}
                (None, None) => {
                    self.by_links.follow(sample(self.occupancy));
                    self.by_server.reset();
                }
            }
            self.utilization = utilization;
            match worker.since(self.window.report) {
                Some(used) => self.by_worker.follow(sample(used)),
                None => self.by_worker.reset(),
            }
            self.decide(longest_us);
        }
        self.begin_window(now, worker, cpu_s);
        Ok(())
    }

    fn decide(&mut self, longest_us: u32) {
        let asked_for = [
            (self.by_worker.fraction(), WaitReason::Worker),
            (self.by_links.fraction(), WaitReason::Links),
            (self.by_server.fraction(), WaitReason::Server),
        ];
        let none = (0.0, WaitReason::Room);
        let longer = |a: (f32, WaitReason), b: (f32, WaitReason)| {
            if b.0 > 0.0 && b.0 >= a.0 { b } else { a }
        };
        (self.applied, self.reason) = asked_for.into_iter().fold(none, longer);
        self.wait_us = match self.applied > 0.0 {
            true => (longest_us as f32 * self.applied).max(1.0) as u32,
            false => 0,
        };
    }

    /// The server's last answer with its processor time, and when it came.
    pub(crate) fn cpu(&self) -> Option<(Time, ServerCpu)> {
        self.cpu
    }

    /// The fields of INFO about the load.
    pub(crate) fn shown(&self, rule: &FlushRule) -> String {
        let wait_us = rule.wait_us(self.wait_us);
        let why = match rule.aim {
            Aim::Balanced => self.reason.name(),
            Aim::Latency | Aim::ServerCpu => "flush-rule",
        };
        let utilization = self
            .utilization
            .map_or("-1".into(), |fraction| format!("{fraction:.2}"));
        let occupancy = self.occupancy;
        format!(
            "wait_us={wait_us},wait_reason={why},waits_for={why},utilization={utilization},\
             occupancy={occupancy:.2}"
        )
    }
}

impl FlushRule {
    /// The longest wait under a balanced rule, microseconds.
    fn longest_balanced_us(&self) -> u32 {
        self.max_delay_us.min(WAIT_US_MAX)
    }

    /// How long a batch may wait, where a balanced rule would let it wait for `balanced_us`.
    #[inline]
    pub(crate) fn wait_us(&self, balanced_us: u32) -> u32 {
        self.wait_us_for(None, balanced_us)
    }

    /// How long a batch may wait for requests of a listener. `own`: its aim, if the pool has
    /// another.
    #[inline]
    pub(crate) fn wait_us_for(&self, own: Option<Aim>, balanced_us: u32) -> u32 {
        match own.unwrap_or(self.aim) {
            Aim::Balanced => balanced_us.min(self.max_delay_us),
            Aim::Latency => 0,
            Aim::ServerCpu => self.max_delay_us,
        }
    }
}

impl WorkerLoad {
    /// The driver's last measurement.
    pub(crate) fn usage(&self) -> Option<Usage> {
        self.report.map(|(_, usage)| usage)
    }
}

impl DataPlane {
    /// The worker's utilization as INFO shows it; -1 if it is not known.
    pub(crate) fn worker_utilization(&self) -> String {
        let utilization = self.worker_load.utilization;
        utilization.map_or("-1".into(), |fraction| format!("{fraction:.2}"))
    }

    /// Begins a tick: notes the load of the worker, and samples links.
    pub(crate) fn begin_tick(&mut self, usage: Option<Usage>) {
        match usage {
            Some(usage) => self.worker_load.note(self.now, usage),
            None => self.worker_load = WorkerLoad::default(),
        }
        self.sample_links();
    }

    /// Counts the requests that have left, and whether a link owes replies at this moment.
    fn sample_links(&mut self) {
        for (id, link) in self.links.iter_mut() {
            let requests = std::mem::take(&mut link.requests);
            if link.role != LinkRole::Shared {
                continue;
            }
            let load = &mut self.servers[usize::from(link.kind.server.0)].load;
            load.requests += requests;
            let owed = link
                .ledger
                .in_flight()
                .saturating_sub(load.questions_on(id));
            load.is_occupied |= link.is_up() && owed > 0;
        }
        for server in &mut self.servers {
            server.load.sample_occupancy(self.now);
        }
    }

    /// Ends windows that are over, and asks servers how busy they are.
    pub(crate) fn tick_flush_rule(&mut self) {
        for at in 0..self.pools.len() {
            self.pools[at].longest_wait_us = 0;
        }
        for at in 0..self.servers.len() {
            let id = ServerId(at as u16);
            let pool = self.pool_of(id);
            let (whole, rule) = (pool.parent, &pool.flush);
            let of_listener =
                |switches: &CoalescingSwitches| switches.aims_at(Aim::Balanced, whole);
            let longest_us = rule.longest_balanced_us();
            match rule.aim == Aim::Balanced || self.coalescing_switches.iter().any(of_listener) {
                true => self.tick_load(id, longest_us),
                false if self.servers[at].load.reason != WaitReason::Few => {
                    self.servers[at].load.reset();
                }
                false => {}
            }
            if self.settings.asks_server_cpu {
                self.ask_for_metrics(id);
            }
            let wait_us = self.servers[at].load.wait_us;
            let longest_us = &mut self.pools[usize::from(whole)].longest_wait_us;
            *longest_us = wait_us.max(*longest_us);
        }
        self.set_waits();
    }

    /// Stores the wait of its batches in each shared link, so a flush reads nothing else. Call this
    /// when the wait of a server or the rule of a pool has changed.
    pub(crate) fn set_waits(&mut self) {
        for id in self.link_index.shared.values() {
            if let Some(link) = self.links.get_mut(*id) {
                let server = &self.servers[usize::from(link.kind.server.0)];
                let rule = &self.pools[usize::from(server.pool)].flush;
                link.wait_us = rule.wait_us(server.load.wait_us);
            }
        }
    }

    fn tick_load(&mut self, id: ServerId, longest_us: u32) {
        let (now, worker) = (self.now, self.worker_load);
        let stagger_ms = u64::from(id.0) % STAGGERED * u64::from(TICK_MS);
        let link = self.link_of_questions(id);
        let on = link.map(|(on, _)| on);
        let may_be_asked = link.is_some_and(|(_, takes)| takes);
        let load = &mut self.servers[usize::from(id.0)].load;
        if load.window.at == Time(0) {
            load.begin_window(
                Time(now.0.saturating_sub(stagger_ms * 1_000)),
                &worker,
                None,
            );
        }
        // Another connection may lead to another server.
        if load.figures_on.is_some_and(|of| Some(of) != on) {
            load.figures_on = None;
            load.window.cpu_s = None;
        }
        if load.question_on.is_some_and(|of| Some(of) != on) {
            load.question_on = None;
        }
        if !load.is_window_over(now) {
            return;
        }
        if !load.gathers(longest_us) {
            return load.end_idle(now, &worker);
        }
        let has_refused = |at: Time| now.since_ms(at) < REFUSED_MS;
        let on = on.filter(|_| !load.refused_at.is_some_and(has_refused));
        let is_late = now.since_ms(load.window.at) >= LATE_MS;
        match on {
            Some(on) if load.question_on.is_none() && may_be_asked => {
                load.question_on = Some(on);
                load.is_for_metrics = false;
                self.put_ours(on.0, QUESTION, Completion::Cpu);
            }
            // The answer is awaited, or room on the link.
            Some(_) if !is_late => {}
            // Waits stay as they are.
            Some(_) => load.begin_window(now, &worker, None),
            None => {
                // Without a figure of the server there is nothing to refuse.
                let _ = load.end_window(now, longest_us, &worker, None);
            }
        }
    }

    /// The connection on which a server is asked, and whether it takes a question now. `None`: it
    /// is not up.
    fn link_of_questions(&self, id: ServerId) -> Option<(Connection, bool)> {
        let link_id = self.first_link_to(id)?;
        let link = self.links.get(link_id).filter(|link| link.is_up())?;
        let takes = link.takes() && link.unread_since.is_none();
        Some(((link_id, link.up_since), takes))
    }

    /// Asks a server for metrics, if the flush rule has not asked it lately.
    fn ask_for_metrics(&mut self, id: ServerId) {
        let now = self.now;
        let Some((on, true)) = self.link_of_questions(id) else {
            return;
        };
        let load = &mut self.servers[usize::from(id.0)].load;
        // A lost connection brings no answer.
        load.question_on.take_if(|of| *of != on);
        let lately = |at: Option<Time>, ms| at.is_some_and(|at| now.since_ms(at) < ms);
        if load.question_on.is_some()
            || lately(load.refused_at, REFUSED_MS)
            || lately(load.metrics_asked_at, METRICS_MS)
            || lately(load.cpu.map(|(at, _)| at), METRICS_MS)
        {
            return;
        }
        load.metrics_asked_at = Some(now);
        load.question_on = Some(on);
        load.is_for_metrics = true;
        self.put_ours(on.0, QUESTION, Completion::Cpu);
    }

    /// Takes a server's answer to INFO cpu.
    pub(crate) fn take_cpu(&mut self, link_id: LinkId, reply: &[u8]) {
        let Some((id, on)) = self
            .links
            .get(link_id)
            .map(|link| (link.kind.server, (link_id, link.up_since)))
        else {
            return;
        };
        let (now, worker) = (self.now, self.worker_load);
        let longest_us = self.pool_of(id).flush.longest_balanced_us();
        let load = &mut self.servers[usize::from(id.0)].load;
        if load.question_on.take_if(|of| *of == on).is_none() {
            return;
        }
        let answer = CpuAnswer::of(reply);
        if let CpuAnswer::Cpu(cpu) = answer {
            load.cpu = Some((now, cpu));
        }
        if load.is_for_metrics && matches!(answer, CpuAnswer::Cpu(_) | CpuAnswer::Later) {
            return;
        }
        load.figures_on = Some(on);
        let wait_before_us = load.wait_us;
        let ended = match answer {
            CpuAnswer::Cpu(cpu) => load.end_window(now, longest_us, &worker, Some(cpu.total_s())),
            // Waits stay as they are.
            CpuAnswer::Later => {
                load.begin_window(now, &worker, None);
                Ok(())
            }
            CpuAnswer::Refused(error) => Err(format!("{error}; grant +info")),
            CpuAnswer::Unusable(why) => Err(why),
        };
        if load.wait_us != wait_before_us {
            self.set_waits();
        }
        let Err(why) = ended else {
            return;
        };
        let load = &mut self.servers[usize::from(id.0)].load;
        load.refused_at = Some(now);
        load.utilization = None;
        load.begin_window(now, &worker, None);
        if !std::mem::replace(&mut load.is_refusal_logged, true) {
            let server = self.server(id);
            let (pool, label) = (usize::from(server.pool), &server.label);
            let effect = match self.settings.asks_server_cpu {
                true => {
                    "it has no respool_server_cpu_seconds_total, and under flush-rule = balanced \
                     the occupancy of its links decides how long batches wait"
                }
                false => {
                    "the occupancy of its links decides how long batches wait; flush-rule = \
                     latency or server-cpu does not ask"
                }
            };
            let text = format!("INFO cpu of {label} is of no use ({why}): {effect}");
            self.report_event(pool, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(main: Option<(f64, f64)>, all: (f64, f64)) -> Vec<u8> {
        let mut text = format!(
            "# CPU\r\nused_cpu_sys:{:.6}\r\nused_cpu_user:{:.6}\r\nused_cpu_sys_children:99.0\r\n",
            all.0, all.1
        );
        if let Some((sys, user)) = main {
            text += &format!(
                "used_cpu_sys_main_thread:{sys:.6}\r\nused_cpu_user_main_thread:{user:.6}\r\n"
            );
        }
        format!("${}\r\n{text}\r\n", text.len()).into_bytes()
    }

    /// The main thread counts where the server tells it.
    #[test]
    fn answers_are_read() {
        let main = info(Some((1.25, 2.0)), (7.0, 8.0));
        let cpu = |user_s, system_s| CpuAnswer::Cpu(ServerCpu { user_s, system_s });
        assert_eq!(CpuAnswer::of(&main), cpu(2.0, 1.25));
        assert_eq!(CpuAnswer::of(&info(None, (7.0, 8.0))), cpu(8.0, 7.0));
        assert_eq!(CpuAnswer::of(b"-LOADING it is\r\n"), CpuAnswer::Later);
        let refused = "NOPERM this user has no permissions to run the 'info' command";
        let reply = format!("-{refused}\r\n");
        assert_eq!(
            CpuAnswer::of(reply.as_bytes()),
            CpuAnswer::Refused(refused.into())
        );
        let sections = [
            "",
            "used_cpu_sys:1.0\r\nused_cpu_user:-1.000000\r\n",
            "used_cpu_sys:1\r\nused_cpu_user:\r\n",
            "used_cpu_sys:nan\r\nused_cpu_user:1\r\n",
            "used_cpu_sys:1\r\n",
        ];
        let bulk = |text: &&str| format!("${}\r\n{text}\r\n", text.len());
        let others = ["+OK\r\n", ":1\r\n", "*0\r\n", "$-1\r\n"].map(str::to_owned);
        for odd in sections.iter().map(bulk).chain(others) {
            let answer = CpuAnswer::of(odd.as_bytes());
            assert!(matches!(answer, CpuAnswer::Unusable(_)), "{odd:?}");
        }
    }

    /// Windows of a server that answers, one after the other.
    struct Windows {
        load: ServerLoad,
        now: Time,
    }

    impl Windows {
        fn new() -> Windows {
            let mut windows = Windows {
                load: ServerLoad::default(),
                now: Time(1_000_000),
            };
            let now = windows.now;
            windows.load.begin_window(now, &WorkerLoad::default(), None);
            windows
        }

        fn end(&mut self, ms: u32, cpu_s: f64) -> Result<Option<f32>, String> {
            self.now = self.now.plus_ms(ms);
            self.load.requests += u64::from(ms) * 10;
            self.load.counted_at = self.now;
            let worker = WorkerLoad::default();
            let ended = self.load.end_window(self.now, 200, &worker, Some(cpu_s));
            ended.map(|()| self.load.utilization)
        }
    }

    /// A server that was restarted counts from 0. One leap is another server, several are nonsense.
    #[test]
    fn figures_that_leap_are_refused() {
        let mut windows = Windows::new();
        assert_eq!(windows.end(250, 50.0), Ok(None), "nothing to compare with");
        let used = windows.end(250, 50.1).expect("sense").expect("known");
        assert!((0.39..0.41).contains(&used), "{used}");
        assert_eq!(windows.end(250, 0.0), Ok(None), "a restart");
        assert_eq!(windows.end(250, 0.5), Ok(Some(1.0)), "two cores");
        assert_eq!(windows.end(250, 1e9), Ok(None), "another server");
        assert!(windows.end(250, 1e9 + 0.1).expect("sense").is_some());
        // The server is asked again later, and may then be as odd.
        for _ in 0..300 {
            for cpu_s in [1e5, 1e9] {
                assert_eq!(windows.end(250, cpu_s), Ok(None));
            }
            let error = windows.end(250, 0.0).expect_err("three in a row");
            assert_eq!(error, "its processor time leaps from 1e9 s to 0e0 s");
        }
    }

    /// A server that answers requests uses time.
    #[test]
    fn figures_that_stand_still_are_refused() {
        let mut windows = Windows::new();
        for _ in 0..ODD_MAX {
            assert_eq!(windows.end(250, 5.0), Ok(None));
        }
        assert!(windows.end(250, 5.0).is_err());
    }

    /// The answer to a late question comes right before the next one.
    #[test]
    fn windows_of_odd_length_count_for_nothing() {
        let mut windows = Windows::new();
        assert_eq!(windows.end(250, 5.0), Ok(None));
        let used = windows.end(250, 5.025).expect("sense");
        assert_eq!(windows.end(5_000, 10.0), Ok(used), "too long");
        assert_eq!(windows.end(1, 10.1), Ok(used), "too short");
        assert!(windows.end(250, 10.225).expect("sense") > used);
    }
}

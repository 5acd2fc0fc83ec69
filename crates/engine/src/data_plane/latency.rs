//! The time of each request, by command, counted once for each run of replies.
//!
//! An entry of the ledger has the time when its request was read, and the ledger has the time when
//! each batch left. So a reply needs no look at a clock: all times are those of turns. Neighbouring
//! replies to one command, of requests that were read in one turn, are one *run*. A run is counted
//! when it ends. A reply on a slow path is counted by itself.

use respool_protocol::commands::{self, CommandId, id};

use crate::base::coarse_times::CoarseReport;
use crate::base::handle::{LinkId, SessionId};
use crate::base::latency::{CommandTimes, LatencyReport, NARROW_TICKS};
use crate::base::limits::LATENCY_COMMANDS_MAX;
use crate::base::time::Stamp;
use crate::data_plane::DataPlane;
use crate::data_plane::ledger::departures::Departure;
use crate::data_plane::ledger::{CommandMark, Entry, Ledger};
use crate::data_plane::request_errors::ErrorTable;

/// The name of all commands without a measurement of their own.
pub(crate) const OTHER: &str = "other";

/// The commands with a measurement of their own. They are the same ones in every worker and every
/// process, so that sums and dashboards compare like with like.
#[rustfmt::skip]
const NAMED: [CommandId; LATENCY_COMMANDS_MAX - 1] = [
    id::DECR, id::GET, id::GETEX, id::INCR, id::INCRBY, id::MGET, id::MSET, id::SET, id::SETEX,
    id::SETNX,
    id::DEL, id::EXISTS, id::EXPIRE, id::PEXPIRE, id::SCAN, id::TTL, id::UNLINK,
    id::HDEL, id::HEXISTS, id::HGET, id::HGETALL, id::HINCRBY, id::HMGET, id::HMSET, id::HSET,
    id::LLEN, id::LPOP, id::LPUSH, id::LRANGE, id::LTRIM, id::RPOP, id::RPUSH,
    id::SADD, id::SCARD, id::SISMEMBER, id::SMEMBERS, id::SPOP, id::SREM,
    id::ZADD, id::ZCARD, id::ZINCRBY, id::ZRANGE, id::ZRANGEBYSCORE, id::ZREM, id::ZSCORE,
    id::XACK, id::XADD,
    id::EVAL, id::EVALSHA, id::EXEC, id::PUBLISH,
    // All that may block: their times say nothing about others.
    id::BLMOVE, id::BLMPOP, id::BLPOP, id::BRPOP, id::BRPOPLPUSH, id::BZMPOP, id::BZPOPMAX,
    id::BZPOPMIN, id::WAIT, id::WAITAOF, id::XREAD, id::XREADGROUP,
];

/// The number of all commands that are not in [`NAMED`].
const OTHER_NUMBER: usize = NAMED.len();

/// The place of each command in [`NAMED`], by [`CommandMark::index`]; [`OTHER_NUMBER`] of all
/// others.
const NUMBERS: [u8; CommandMark::COUNT] = {
    let mut numbers = [OTHER_NUMBER as u8; CommandMark::COUNT];
    let mut nth = 0;
    while nth < NAMED.len() {
        let number = &mut numbers[NAMED[nth].index()];
        assert!(*number == OTHER_NUMBER as u8, "each command is named once");
        *number = nth as u8;
        nth += 1;
    }
    numbers
};

/// The number of a command: less than [`LATENCY_COMMANDS_MAX`]. `None`: a request of respool's own.
pub(crate) fn number_of(command: CommandMark) -> Option<usize> {
    let number = NUMBERS.get(command.index())?;
    Some(usize::from(*number))
}

/// The name of the command with this number.
pub(crate) fn name_of(number: usize) -> &'static str {
    NAMED.get(number).map_or(OTHER, |id| id.get().name)
}

/// The name of each element of [`LatencyTable::commands`].
fn names() -> impl Iterator<Item = &'static str> {
    commands::all().map(|id| id.get().name).chain([OTHER])
}

/// The measurement of a command.
#[derive(Default)]
struct Measured {
    /// The times of its requests.
    times: CommandTimes,
    /// Whether it has changed since the last report.
    has_changed: bool,
}

/// Answered requests of one command with the same times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AnsweredRun {
    /// Their command.
    command: CommandMark,
    /// The time when they were read.
    read_at: Stamp,
    /// The time when their batch left.
    left: Stamp,
    /// Their number.
    count: u32,
}

impl AnsweredRun {
    /// No request.
    pub(crate) const NONE: AnsweredRun = AnsweredRun {
        command: CommandMark::NONE,
        read_at: Stamp(0),
        left: Stamp(0),
        count: 0,
    };

    /// An answered request.
    #[inline]
    fn of_one(entry: &Entry, departure: Departure) -> AnsweredRun {
        AnsweredRun {
            command: entry.command,
            read_at: entry.read_at,
            left: departure.left,
            count: 1,
        }
    }
}

/// A run that goes on: its next reply may follow.
pub(crate) struct OpenRun {
    /// The time when its requests were read.
    pub(crate) read_at: Stamp,
    /// Their command; [`CommandMark::NONE`] without a run.
    pub(crate) command: CommandMark,
    /// The departure of the first one.
    departure: Departure,
    /// Replies of links before it, as [`crate::Counters`] has them.
    replies_before: u64,
}

impl OpenRun {
    /// No run.
    pub(crate) const NONE: OpenRun = OpenRun {
        read_at: Stamp(0),
        command: CommandMark::NONE,
        departure: Departure {
            left: Stamp(0),
            count: 0,
        },
        replies_before: 0,
    };

    /// The number of its requests. `replies`: the number of replies so far.
    #[inline]
    fn count(&self, replies: u64) -> u32 {
        (replies - self.replies_before) as u32
    }
}

/// The measurements of a worker.
pub(crate) struct LatencyTable {
    /// By [`CommandMark::index`]: one for each command of [`NAMED`] once it was used, and one for
    /// all others.
    commands: Box<[Option<Box<Measured>>; CommandMark::COUNT]>,
    /// The answered request that a completion handles now. It counts if it is not sent again.
    completing: Option<AnsweredRun>,
    /// The least time of a slow request, ticks. `u32::MAX`: no request is slow.
    pub(crate) slow_ticks: u32,
    /// The error replies.
    pub(crate) errors: ErrorTable,
}

impl Default for LatencyTable {
    fn default() -> LatencyTable {
        LatencyTable {
            commands: Box::new([const { None }; CommandMark::COUNT]),
            completing: None,
            slow_ticks: u32::MAX,
            errors: ErrorTable::default(),
        }
    }
}

impl LatencyTable {
    /// Whether a request that was read at `read_at` and is answered in the turn of `now` is slow.
    #[inline]
    pub(crate) fn is_slow(&self, read_at: Stamp, now: Stamp) -> bool {
        now.ticks_since(read_at) >= self.slow_ticks
    }

    /// Counts a run that was answered in the turn of `now`.
    #[inline]
    pub(crate) fn note(&mut self, run: AnsweredRun, now: Stamp) {
        if !self.note_short(run, now) {
            self.note_long(run, now);
        }
    }

    /// Counts a run that left at once and was answered soon, if its command has a measurement.
    /// Returns whether it has counted it.
    #[inline(always)]
    fn note_short(&mut self, run: AnsweredRun, now: Stamp) -> bool {
        let ticks = now.ticks_since(run.read_at);
        if run.left == run.read_at
            && ticks < NARROW_TICKS
            && let Some(Some(measured)) = self.commands.get_mut(run.command.index())
        {
            measured.times.note_soon(ticks, run.count);
            measured.has_changed = true;
            return true;
        }
        false
    }

    /// Counts a run of answered requests, however long they took.
    #[inline(never)]
    fn note_long(&mut self, run: AnsweredRun, now: Stamp) {
        if run.command.index() >= CommandMark::COUNT {
            return;
        }
        let measured = self.measured_of(run.command);
        measured.has_changed = true;
        let server = now.ticks_since(run.left);
        match run.left.ticks_since(run.read_at) {
            0 => measured.times.note_at_once(server, run.count),
            waiting => measured.times.note_waited(waiting, server, run.count),
        }
    }

    /// Adds an answered request to a run of the same batch, or counts the run and begins another
    /// one.
    #[inline]
    pub(crate) fn note_next(
        &mut self,
        run: &mut AnsweredRun,
        entry: &Entry,
        departure: Departure,
        now: Stamp,
    ) {
        if entry.is_of_run(run.command, run.read_at) {
            run.count += 1;
        } else {
            self.note_other(run, entry, departure, now);
        }
    }

    #[inline(never)]
    fn note_other(
        &mut self,
        run: &mut AnsweredRun,
        entry: &Entry,
        departure: Departure,
        now: Stamp,
    ) {
        self.note(*run, now);
        *run = AnsweredRun::of_one(entry, departure);
    }

    /// The measurement of a command: its own, or that of all others.
    fn measured_of(&mut self, command: CommandMark) -> &mut Measured {
        let index = match usize::from(NUMBERS[command.index()]) {
            OTHER_NUMBER => CommandMark::OTHER.index(),
            _ => command.index(),
        };
        self.commands[index].get_or_insert_default()
    }

    /// The times of all commands.
    #[cfg(test)]
    pub(crate) fn snapshot(&self) -> LatencyReport {
        let measured = self.commands.iter().zip(names());
        let times = measured.filter_map(|(measured, name)| {
            let measured = measured.as_ref()?;
            Some((name, measured.times.clone()))
        });
        times.collect()
    }

    /// The times of all commands, in buckets of powers of two.
    pub(crate) fn coarse_report(&self) -> CoarseReport {
        let measured = self.commands.iter().zip(names());
        measured
            .filter_map(|(measured, name)| Some((name, &measured.as_ref()?.times)))
            .collect()
    }

    /// Brings a report up to date.
    pub(crate) fn report(&mut self, report: &mut LatencyReport) {
        for (measured, name) in self.commands.iter_mut().zip(names()) {
            let Some(measured) = measured else {
                continue;
            };
            if std::mem::take(&mut measured.has_changed) {
                let times = report.commands.entry(name).or_default();
                times.clone_from(&measured.times);
            }
        }
        self.errors.report(report);
    }

    /// Ends `run`, if there is one, and begins another one with the front request of this ledger,
    /// which is of `command` and was read at `read_at`. `replies`: the number of replies of links
    /// so far. Returns whether the request is slow.
    #[inline(never)]
    #[must_use]
    pub(crate) fn begin_run(
        &mut self,
        run: &mut OpenRun,
        (command, read_at): (CommandMark, Stamp),
        ledger: &mut Ledger,
        (replies, now): (u64, Stamp),
    ) -> bool {
        if run.command != CommandMark::NONE && !self.end_short_run(run, replies, now) {
            self.end_long_run(run, replies, ledger, now);
        }
        *run = OpenRun {
            read_at,
            command,
            departure: ledger.front_departure(),
            replies_before: replies,
        };
        self.is_slow(read_at, now)
    }

    /// Counts the requests of a run that ends, if all of them left at once and were answered soon.
    /// Returns whether it has counted them. If it has not, [`LatencyTable::end_long_run`] has to
    /// follow. `replies`: the number of replies of links so far.
    #[inline]
    pub(crate) fn end_short_run(&mut self, run: &OpenRun, replies: u64, now: Stamp) -> bool {
        let answered = AnsweredRun {
            command: run.command,
            read_at: run.read_at,
            left: run.departure.left,
            count: run.count(replies),
        };
        answered.count <= run.departure.count && self.note_short(answered, now)
    }

    /// Ends a run and counts its requests. The last of them is the last request of this ledger that
    /// was answered. `replies`: the number of replies of links so far.
    #[inline(never)]
    pub(crate) fn end_long_run(
        &mut self,
        run: &OpenRun,
        replies: u64,
        ledger: &mut Ledger,
        now: Stamp,
    ) {
        let mut rest = run.count(replies);
        // Nearly always one batch has all of them.
        while rest > 0 {
            let departure = ledger.departure_before(rest);
            let count = rest.min(departure.count);
            rest -= count;
            let answered = AnsweredRun {
                command: run.command,
                read_at: run.read_at,
                left: departure.left,
                count,
            };
            self.note(answered, now);
        }
    }
}

/// Replies on a slow path.
impl DataPlane {
    /// The front request of a link as one that is answered.
    fn front_answered(&mut self, id: LinkId, front: &Entry) -> Option<AnsweredRun> {
        let link = self.links.get_mut(id)?;
        Some(AnsweredRun::of_one(front, link.ledger.front_departure()))
    }

    /// Counts a request that is answered.
    fn note_answered(&mut self, answered: Option<AnsweredRun>) {
        if let Some(answered) = answered {
            self.latency.note(answered, self.now_stamp);
        }
    }

    /// Counts the front request of a link, which is answered.
    pub(crate) fn note_front(&mut self, id: LinkId, front: &Entry) {
        let answered = self.front_answered(id, front);
        self.note_answered(answered);
        self.watch_front(id, front);
    }

    /// Notes that the front request is answered and its completion has to say whether it is sent
    /// again.
    pub(crate) fn begin_completing(&mut self, id: LinkId, front: &Entry) {
        self.latency.completing = self.front_answered(id, front);
        self.begin_slow_completion(id, front);
    }

    /// Notes that the completion sends the request again: it counts when it is answered again.
    pub(crate) fn note_repeated(&mut self) {
        self.latency.completing = None;
    }

    /// Ends the completion of a request: it counts, unless it was sent again.
    pub(crate) fn end_completing(&mut self) {
        let answered = self.latency.completing.take();
        self.end_slow_completion(answered.is_some());
        self.note_answered(answered);
    }

    /// Notes that the request of the completion was read at `read_at`, and that other servers have
    /// answered it before. Its whole time counts as that of servers.
    pub(crate) fn note_begun_at(&mut self, read_at: Stamp) {
        if let Some(run) = &mut self.latency.completing {
            (run.read_at, run.left) = (read_at, read_at);
        }
    }

    /// Counts a request whose reply is not that of one entry: it was put together from several, or
    /// was held back. Its whole time counts as that of servers.
    pub(crate) fn note_whole(&mut self, session: SessionId, command: CommandMark, read_at: Stamp) {
        let answered = AnsweredRun {
            command,
            read_at,
            left: read_at,
            count: 1,
        };
        self.note_answered(Some(answered));
        self.watch_whole(LinkId::NONE, (session, command), read_at, read_at);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use proptest::prelude::*;

    use super::*;
    use crate::base::handle::SessionId;
    use crate::base::latency::LatencyHistogram;
    use crate::base::time::{STAMP_TICK_US, Time};
    use crate::data_plane::egress::{EgressStop, Replies, ReplyUse};
    use crate::data_plane::ingress::may_wait;
    use crate::data_plane::test_plane::{plane_with_link, session_of};

    /// A step of a random history of a link.
    #[derive(Clone, Debug)]
    enum Step {
        /// A session asks some requests of one command in a turn this many ticks later.
        Ask {
            session: usize,
            command: usize,
            count: u32,
            ticks: u32,
        },
        /// The open batch leaves so many ticks later.
        Leave { ticks: u32 },
        /// One read brings replies, errors among them, as far as requests are in flight.
        Answer { are_errors: Vec<bool>, ticks: u32 },
        /// A request's session leaves it.
        GiveUp { index: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        let ticks =
            || prop_oneof![9 => Just(0u32), 9 => 0u32..5, 9 => 0u32..3_000, 1 => 0u32..1 << 26];
        let replies = prop::collection::vec(prop::bool::weighted(0.1), 1..40);
        prop_oneof![
            4 => (0usize..3, 0usize..COMMANDS.len(), 1u32..9, ticks()).prop_map(
                |(session, command, count, ticks)| Step::Ask { session, command, count, ticks }
            ),
            3 => ticks().prop_map(|ticks| Step::Leave { ticks }),
            4 => (replies, ticks()).prop_map(
                |(are_errors, ticks)| Step::Answer { are_errors, ticks }
            ),
            1 => (0usize..30).prop_map(|index| Step::GiveUp { index }),
        ]
    }

    /// Commands, each with the name of its measurement. A request of respool's own has none.
    const COMMANDS: [(Option<CommandId>, Option<&str>); 4] = [
        (Some(id::GET), Some("get")),
        (Some(id::SET), Some("set")),
        (Some(id::CONFIG_GET), Some("other")),
        (None, None),
    ];

    /// A request of the model: the name of its measurement, and its times in ticks since the start.
    #[derive(Clone, Copy)]
    struct ModelRequest {
        name: Option<&'static str>,
        read: u64,
        left: Option<u64>,
    }

    /// Requests by the longest time of their bucket, microseconds.
    type Buckets = BTreeMap<u64, u64>;

    /// The longest time of the bucket of a time, as docs/design/latency.md has the bounds.
    fn bucket_us(ticks: u64) -> u64 {
        let mut width = 1;
        while ticks / width >= 64 {
            width *= 2;
        }
        let last = (ticks / width + 1) * width - 1;
        last.min((1 << 24) - 1) * 8
    }

    /// A link with three sessions, and the times as a simple model counts them, one by one.
    struct History {
        plane: DataPlane,
        link: LinkId,
        sessions: Vec<SessionId>,
        requests: VecDeque<ModelRequest>,
        /// The buckets of whole times, of times in respool, and of times at the server.
        expected: BTreeMap<&'static str, [Buckets; 3]>,
    }

    impl History {
        /// `begin`: ticks.
        fn new(begin: u64) -> History {
            let (mut plane, link) = plane_with_link();
            plane.begin_turn(Time(begin * STAMP_TICK_US));
            let sessions = (0..3).map(|_| session_of(&mut plane)).collect();
            History {
                plane,
                link,
                sessions,
                requests: VecDeque::new(),
                expected: BTreeMap::new(),
            }
        }

        fn now(&self) -> u64 {
            self.plane.now.0 / STAMP_TICK_US
        }

        fn begin_turn(&mut self, ticks: u32) {
            let now = self.plane.now.0 + u64::from(ticks) * STAMP_TICK_US;
            self.plane.begin_turn(Time(now));
        }

        fn ledger(&mut self) -> &mut Ledger {
            &mut self.plane.links.get_mut(self.link).expect("a link").ledger
        }

        fn take(&mut self, step: &Step) {
            match step {
                Step::Ask {
                    session,
                    command,
                    count,
                    ticks,
                } => {
                    self.begin_turn(*ticks);
                    self.ask(self.sessions[*session], COMMANDS[*command], *count);
                }
                Step::Leave { ticks } => {
                    self.begin_turn(*ticks);
                    let (now, stamp) = (self.now(), self.plane.now_stamp);
                    let ledger = self.ledger();
                    ledger.flush(stamp);
                    ledger.write(ledger.pending().len());
                    let left =
                        |request: &mut ModelRequest| request.left = request.left.or(Some(now));
                    self.requests.iter_mut().for_each(left);
                }
                Step::Answer { are_errors, ticks } => {
                    self.begin_turn(*ticks);
                    let count = are_errors.len().min(self.ledger().in_flight());
                    self.answer(&are_errors[..count]);
                }
                Step::GiveUp { index } => {
                    if let Some(request) = self.requests.get_mut(*index) {
                        request.name = None;
                        self.ledger().give_up(*index);
                    }
                }
            }
        }

        fn ask(
            &mut self,
            session: SessionId,
            (command, name): (Option<CommandId>, Option<&'static str>),
            count: u32,
        ) {
            let (now, stamp) = (self.now(), self.plane.now_stamp);
            for _ in 0..count {
                let state = self.plane.sessions.get_mut(session).expect("a session");
                let entry = Entry {
                    len: 1,
                    command: command.map_or(CommandMark::UNMEASURED, CommandMark::from),
                    ..Entry::of(session, state.take_seq(), stamp)
                };
                self.ledger().push(entry, b"x");
                self.requests.push_back(ModelRequest {
                    name,
                    read: now,
                    left: None,
                });
            }
        }

        fn answer(&mut self, are_errors: &[bool]) {
            let now = self.now();
            for request in self.requests.drain(..are_errors.len()) {
                let left = request.left.expect("it is in flight");
                let times = [now - request.read, left - request.read, now - left];
                if let Some(name) = request.name {
                    let buckets = self.expected.entry(name).or_default();
                    for (buckets, ticks) in buckets.iter_mut().zip(times) {
                        *buckets.entry(bucket_us(ticks)).or_default() += 1;
                    }
                }
            }
            let replies = are_errors.iter().map(|is_error| match is_error {
                true => &b"-ERR no\r\n"[..],
                false => b"+OK\r\n",
            });
            let bytes = replies.collect::<Vec<_>>().concat();
            let mut replies = Replies::of(&bytes);
            loop {
                match self.plane.deliver_replies(self.link, &mut replies) {
                    EgressStop::Special { len } => {
                        let taken = self.plane.take_answer(self.link, &mut replies, len);
                        assert!(matches!(taken, ReplyUse::Taken));
                    }
                    EgressStop::End => break,
                    _ => panic!("the replies are whole, and no request has a completion"),
                }
            }
            assert!(replies.rest().is_empty());
        }

        /// The buckets of the measurements, in the model's form.
        fn measured(&self) -> BTreeMap<&'static str, [Buckets; 3]> {
            let report = self.plane.latency.snapshot();
            let buckets = |times: LatencyHistogram| times.buckets().collect();
            let commands = report.commands().map(|(name, times)| {
                let all = [times.total(), times.waiting(), times.server()];
                (name, all.map(buckets))
            });
            commands.collect()
        }
    }

    proptest! {
        /// The times are those of each request by itself: no run counts a request twice, or with
        /// another one's times. Stamps may wrap meanwhile.
        #[test]
        fn times_agree_with_a_model(
            begin in prop_oneof![Just(0), Just((1u64 << 32) - 2_000)],
            steps in prop::collection::vec(step(), 1..80),
        ) {
            let mut history = History::new(begin);
            for step in &steps {
                history.take(step);
                prop_assert_eq!(&history.measured(), &history.expected);
            }
        }
    }

    /// A request that left and was answered at once.
    fn at_once(command: CommandMark) -> AnsweredRun {
        AnsweredRun {
            command,
            read_at: Stamp(0),
            left: Stamp(0),
            count: 1,
        }
    }

    /// The number of measurements is fixed: commands without a name share one.
    #[test]
    fn commands_without_a_name_are_other() {
        let mut latency = LatencyTable::default();
        let all = commands::all().map(CommandMark::from);
        for command in all.chain([CommandMark::OTHER]) {
            latency.note(at_once(command), Stamp(10));
        }
        let report = latency.snapshot();
        assert_eq!(report.commands.len(), LATENCY_COMMANDS_MAX);
        let unnamed = CommandMark::COUNT - NAMED.len();
        assert_eq!(report.commands[OTHER].total().count(), unnamed as u64);
        for id in NAMED {
            assert_eq!(report.commands[id.get().name].total().count(), 1);
        }
    }

    /// A command that may block is not among the others, whose times it would rule.
    #[test]
    fn commands_that_may_block_have_a_name() {
        for id in commands::all().filter(|id| may_wait(*id)) {
            assert!(NAMED.contains(&id), "{}", id.get().name);
        }
    }

    /// Requests of respool's own are not measured.
    #[test]
    fn requests_of_our_own_are_not_measured() {
        let mut latency = LatencyTable::default();
        latency.note(at_once(CommandMark::UNMEASURED), Stamp(1));
        assert!(latency.snapshot().commands.is_empty());
    }

    /// A report that is brought up to date twice has each request once.
    #[test]
    fn report_is_brought_up_to_date() {
        let (mut latency, mut report) = (LatencyTable::default(), LatencyReport::default());
        for now in [10, 10_000] {
            let waited = AnsweredRun {
                left: Stamp(5),
                ..at_once(id::GET.into())
            };
            latency.note(at_once(id::GET.into()), Stamp(now));
            latency.note(waited, Stamp(now));
            latency.report(&mut report);
            latency.report(&mut report);
            assert_eq!(report, latency.snapshot());
        }
        let (_, times) = report.commands().next().expect("a command was measured");
        assert_eq!(times.total().count(), 4);
    }
}

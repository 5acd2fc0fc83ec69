//! The slow log of a worker: the last requests that took long, from their reading to their reply.
//!
//! The time of a run of replies is compared with the threshold when the run begins
//! ([`LatencyTable::begin_run`]). The first request of a slow run is logged: its bytes are still in
//! the ledger then. Replies on slow paths are compared one by one.
//!
//! [`LatencyTable::begin_run`]: crate::data_plane::latency::LatencyTable::begin_run

use std::collections::VecDeque;
use std::sync::Arc;

use crate::base::handle::{LinkId, SessionId};
use crate::base::limits::SLOW_PER_TURN_MAX;
use crate::base::settings::SlowLogSettings;
use crate::base::time::{STAMP_TICK_US, Stamp, Time};
use crate::data_plane::DataPlane;
use crate::data_plane::ledger::{CommandMark, Entry};
use crate::data_plane::slow_arguments::{is_logged, shown_args, shown_name};

/// A request in the slow log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowRequest {
    /// Its number, unique in the process.
    pub(crate) id: u64,
    /// When its reply came.
    pub(crate) at: Time,
    /// The same, as Unix time in seconds.
    pub(crate) unix_s: u64,
    /// The time in respool, microseconds.
    pub(crate) waiting_us: u64,
    /// The time at the server, microseconds.
    pub(crate) server_us: u64,
    /// Its arguments, cut, without passwords.
    pub(crate) args: Vec<Vec<u8>>,
    /// The pool of its session.
    pub(crate) pool: u16,
    /// The address of its client; empty if the client has left.
    pub(crate) client: String,
    /// The name of the client.
    pub(crate) client_name: Vec<u8>,
    /// The user of its session.
    pub(crate) user: String,
    /// The server that answered it; empty for a request to several servers.
    pub(crate) server: String,
}

impl SlowRequest {
    /// Bytes of memory.
    fn memory_bytes(&self) -> usize {
        let args = self.args.iter().map(Vec::capacity).sum::<usize>();
        size_of::<SlowRequest>()
            + args
            + self.args.capacity() * size_of::<Vec<u8>>()
            + self.client.capacity()
            + self.client_name.capacity()
            + self.user.capacity()
            + self.server.capacity()
    }
}

/// The last slow requests of a worker.
#[derive(Default)]
pub(crate) struct SlowLog {
    /// Number of requests that are kept.
    len_max: usize,
    /// The requests, the newest at the back.
    requests: VecDeque<Arc<SlowRequest>>,
    /// Bytes of memory of the requests.
    bytes: usize,
    /// Slow requests so far.
    count: u64,
    /// The last turn with a slow request.
    turn: Stamp,
    /// Slow requests of that turn.
    in_turn: usize,
    /// The slow request that a completion handles now. It is logged if it is not sent again.
    completing: Option<SlowRequest>,
}

impl SlowLog {
    /// Takes new settings. Requests beyond the new length are dropped, the oldest first.
    pub(crate) fn apply(&mut self, settings: &SlowLogSettings) {
        self.len_max = settings.len_max as usize;
        self.drop_oldest(self.len_max);
    }

    fn drop_oldest(&mut self, len_max: usize) {
        while self.requests.len() > len_max
            && let Some(oldest) = self.requests.pop_front()
        {
            self.bytes -= oldest.memory_bytes();
        }
    }

    /// Whether a request of this command is logged in the turn of `now`.
    fn takes(&mut self, command: CommandMark, now: Stamp) -> bool {
        if self.turn != now {
            (self.turn, self.in_turn) = (now, 0);
        }
        let takes = self.in_turn < SLOW_PER_TURN_MAX && is_logged(command);
        self.in_turn += usize::from(takes);
        takes
    }

    fn push(&mut self, request: SlowRequest) {
        self.drop_oldest(self.len_max.saturating_sub(1));
        self.bytes += request.memory_bytes();
        self.requests.push_back(Arc::new(request));
    }

    /// The newest `count` requests of a pool, the newest first. `is_of_pool`: whether a pool counts
    /// as this one.
    pub(crate) fn newest(
        &self,
        is_of_pool: impl Fn(u16) -> bool,
        count: usize,
    ) -> Vec<Arc<SlowRequest>> {
        let all = self.requests.iter().rev();
        let of_pool = all.filter(|request| is_of_pool(request.pool));
        of_pool.take(count).cloned().collect()
    }

    /// Number of requests of a pool.
    pub(crate) fn count_of(&self, is_of_pool: impl Fn(u16) -> bool) -> usize {
        let requests = self.requests.iter();
        requests.filter(|request| is_of_pool(request.pool)).count()
    }

    /// Drops the requests of a pool.
    fn clear(&mut self, is_of_pool: impl Fn(u16) -> bool) {
        self.requests.retain(|request| !is_of_pool(request.pool));
        let requests = self.requests.iter();
        self.bytes = requests.map(|request| request.memory_bytes()).sum();
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes + self.requests.capacity() * size_of::<Arc<SlowRequest>>()
    }
}

/// A slow request, as the ledger or a component knows it.
struct SlowFacts {
    session: SessionId,
    /// The link of its reply; [`LinkId::NONE`] for several.
    link: LinkId,
    read_at: Stamp,
    /// The time when its batch left.
    left: Stamp,
    args: Vec<Vec<u8>>,
}

impl DataPlane {
    /// Takes the settings of the slow log.
    pub(crate) fn apply_slow_log(&mut self) {
        let settings = &self.settings.slow_log;
        self.latency.slow_ticks = settings
            .slower_than_us
            .map_or(u32::MAX, |us| u64::from(us).div_ceil(STAMP_TICK_US) as u32);
        self.slow_log.apply(settings);
    }

    /// Forgets the slow requests of a pool.
    pub(crate) fn clear_slow_log(&mut self, pool: u16) {
        let mut slow_log = std::mem::take(&mut self.slow_log);
        slow_log.clear(|of| self.known_pool(of) == pool);
        self.slow_log = slow_log;
    }

    /// Logs the front request of a link, which is answered now, if it is slow.
    #[inline]
    pub(crate) fn watch_front(&mut self, id: LinkId, front: &Entry) {
        if self.latency.is_slow(front.read_at, self.now_stamp) {
            self.log_slow_front(id, front);
        }
    }

    /// Logs the front request of a link, which is answered now and slow.
    #[cold]
    #[inline(never)]
    pub(crate) fn log_slow_front(&mut self, id: LinkId, front: &Entry) {
        if let Some(request) = self.slow_front(id, front) {
            self.slow_log.push(request);
        }
    }

    fn slow_front(&mut self, id: LinkId, front: &Entry) -> Option<SlowRequest> {
        if !self.slow_log.takes(front.command, self.now_stamp) {
            return None;
        }
        let link = self.links.get_mut(id)?;
        let left = link.ledger.front_departure().left;
        let own = link.ledger.first_bytes();
        let args = match front.class.beginning() {
            [] => shown_args(front.command, own),
            beginning => shown_args(front.command, &[beginning, own].concat()),
        };
        Some(self.slow_request(SlowFacts {
            session: front.session,
            link: id,
            read_at: front.read_at,
            left,
            args,
        }))
    }

    /// Logs a joined read, which has left the ledger and is answered now, if it is slow. `left`:
    /// the time when its batch left.
    #[inline]
    pub(crate) fn watch_read(&mut self, id: LinkId, entry: &Entry, left: Stamp, request: &[u8]) {
        if self.latency.is_slow(entry.read_at, self.now_stamp)
            && self.slow_log.takes(entry.command, self.now_stamp)
        {
            let request = self.slow_request(SlowFacts {
                session: entry.session,
                link: id,
                read_at: entry.read_at,
                left,
                args: shown_args(entry.command, request),
            });
            self.slow_log.push(request);
        }
    }

    /// Logs a request without its bytes, if it is slow: its arguments are its name alone.
    /// `link`: [`LinkId::NONE`] if several servers have answered it.
    pub(crate) fn watch_whole(
        &mut self,
        link: LinkId,
        (session, command): (SessionId, CommandMark),
        read_at: Stamp,
        left: Stamp,
    ) {
        if self.latency.is_slow(read_at, self.now_stamp)
            && self.slow_log.takes(command, self.now_stamp)
        {
            let request = self.slow_request(SlowFacts {
                session,
                link,
                read_at,
                left,
                args: shown_name(command),
            });
            self.slow_log.push(request);
        }
    }

    /// Notes that the completion of the front request decides whether the request is sent again.
    #[inline]
    pub(crate) fn begin_slow_completion(&mut self, id: LinkId, front: &Entry) {
        if self.latency.is_slow(front.read_at, self.now_stamp) {
            self.slow_log.completing = self.slow_front(id, front);
        }
    }

    /// Ends the completion of a request. `is_answered`: it is not sent again.
    #[inline]
    pub(crate) fn end_slow_completion(&mut self, is_answered: bool) {
        if let Some(request) = self.slow_log.completing.take()
            && is_answered
        {
            self.slow_log.push(request);
        }
    }

    /// The entry of the log for a request that is answered now.
    fn slow_request(&mut self, facts: SlowFacts) -> SlowRequest {
        let session = self.sessions.get(facts.session);
        let rare = session.and_then(|session| session.rare.as_deref());
        let link = self.links.get(facts.link);
        let link_pool = link.map(|link| self.pool_of(link.kind.server).parent);
        let user = session.map(|session| session.user);
        let user = user.or(link.map(|link| link.kind.user));
        let us = |ticks: u32| u64::from(ticks) * STAMP_TICK_US;
        let (index, workers) = (self.worker.index as u64, self.worker.count as u64);
        let request = SlowRequest {
            id: self.slow_log.count * workers + index,
            at: self.now,
            unix_s: self.worker.started_at + self.now.0 / 1_000_000,
            waiting_us: us(facts.left.ticks_since(facts.read_at)),
            server_us: us(self.now_stamp.ticks_since(facts.left)),
            args: facts.args,
            pool: session
                .map(|session| session.pool)
                .or(link_pool)
                .unwrap_or_default(),
            client: session.map_or_else(String::new, |session| session.peer.to_string()),
            client_name: rare.map_or_else(Vec::new, |rare| rare.client.name.to_vec()),
            user: user.map_or("", |user| self.user_name(user)).to_owned(),
            server: self.label(facts.link).to_owned(),
        };
        self.slow_log.count += 1;
        request
    }
}

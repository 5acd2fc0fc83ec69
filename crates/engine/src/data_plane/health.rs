//! How the servers behind us fare: who fails, who tries one that is away, and what INFO says of
//! each.
//!
//! ```text
//!   a link is up ──lost, nothing can be had──► away: rests ──it is time──► one link tries
//!        ▲                                       ▲  no link connects          │       │
//!        │                                       └────────── failed ──────────┘       │
//!        └──────────── all that rest connect ◄───────────── answered ─────────────────┘
//! ```
//!
//! Links of several databases, users and sessions go to one server. Where none of them is up, what
//! one of them has found out is true for the others: they fail at once, and do not knock each for
//! itself.

use std::collections::HashSet;
use std::fmt::Write;

use crate::engine::Engine;
use crate::limits::SERVERS_SHOWN_MAX;
use crate::link::{Link, Role, State};
use crate::outage::Outage;
use crate::pool::{Server, ServerId, Topology};
use crate::reconnects::Reconnects;
use crate::settings::Address;
use crate::slots::Key;
use crate::time::Time;

/// How long requests wait for an attempt to reach a server that was away, milliseconds. If it
/// answers at all it does so sooner; and who waits for one that is gone is to be told soon.
const PROBE_MS: u64 = 100;

/// How the connections to a server fare.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Attempts to connect that failed one behind the other, since the last one that did not.
    failures: u32,
    /// All that ever failed.
    failures_total: u64,
    /// Connections that were lost.
    lost_total: u64,
    /// When either happened last.
    failed_at: Option<Time>,
    /// Why the last attempt failed.
    pub(crate) reason: String,
    /// The last attempt failed: if no link is up the next one is made then, by one link.
    rest_until: Option<Time>,
    /// That link, while it tries.
    pub(crate) probe: Option<Key>,
    /// The last attempt was answered, be it by a refusal.
    answered: bool,
    pub(crate) outage: Outage,
    /// Young links that may connect again at once.
    pub(crate) reconnects: Reconnects,
    /// Since when its name is looked up, while that goes on.
    looked_up_since: Option<Time>,
}

impl Health {
    /// What was found out does not count any more.
    pub(crate) fn forget(&mut self) {
        self.failures = 0;
        self.rest_until = None;
        self.outage.end();
        self.probe = None;
        self.answered = false;
    }

    pub(crate) fn begin_look_up(&mut self, since: Time) {
        self.looked_up_since = Some(since);
    }

    pub(crate) fn end_look_up(&mut self) {
        self.looked_up_since = None;
    }
}

/// What happens to it.
impl Engine {
    pub(crate) fn health(&mut self, server: ServerId) -> &mut Health {
        &mut self.servers[usize::from(server.0)].health
    }

    /// A connection that was in use is lost.
    pub(crate) fn note_lost(&mut self, server: ServerId) {
        let now = self.now;
        let health = self.health(server);
        health.lost_total += 1;
        health.failed_at = Some(now);
    }

    /// The server has answered an attempt by a refusal: so it is there.
    pub(crate) fn note_refused(&mut self, server: ServerId) {
        let now = self.now;
        let health = self.health(server);
        health.failures = health.failures.saturating_add(1);
        health.failures_total += 1;
        health.failed_at = Some(now);
        health.rest_until = None;
        health.outage.end();
        health.probe = None;
        health.answered = true;
    }

    /// An attempt that began then came to nothing. Requests do not wait for the next one, unless the
    /// link `retries`.
    pub(crate) fn note_unreachable(
        &mut self,
        server: ServerId,
        (began, retries): (Time, bool),
        reason: &str,
    ) {
        let now = self.now;
        let health = self.health(server);
        // Attempts of several links at the same time fail for one reason.
        let follows = health.failed_at.is_none_or(|last| began >= last);
        health.failures_total += 1;
        health.failed_at = Some(now);
        health.probe = None;
        health.answered = false;
        reason.clone_into(&mut health.reason);
        if follows || health.rest_until.is_none() {
            health.failures = health.failures.saturating_add(1);
            if retries {
                return;
            }
            let failures = health.failures;
            let pause_ms = self.back_off_ms(failures);
            self.health(server).rest_until = Some(now.plus_ms(pause_ms));
        }
    }

    /// A link is up: links that could not connect try again.
    pub(crate) fn note_reached(&mut self, server: ServerId) {
        let health = self.health(server);
        let was_away = health.rest_until.is_some() || health.outage.is_on();
        health.forget();
        health.answered = true;
        if was_away {
            for key in self.links.keys() {
                let rests = |link: &Link| {
                    link.key.server == server
                        && link.refusal.is_none()
                        && matches!(link.state, State::Resting { .. } | State::Retrying { .. })
                };
                if self.links.get(key).is_some_and(rests) {
                    self.connect(key);
                }
            }
            self.pump(server);
        }
    }

    /// How long is waited after so many failures. Between half and the whole of a pause that
    /// doubles, so that workers do not knock all at once.
    pub(crate) fn back_off_ms(&mut self, failures: u32) -> u32 {
        let timeouts = &self.settings.timeouts;
        let (min, max) = (timeouts.reconnect_min_ms, timeouts.reconnect_max_ms);
        let doublings = failures.saturating_sub(1).min(16);
        let pause = u64::from(min)
            .saturating_mul(1 << doublings)
            .min(u64::from(max)) as u32;
        let jitter = self.random() % (u64::from(pause) / 2 + 1);
        pause / 2 + jitter as u32
    }
}

/// What follows from it.
impl Engine {
    /// If no link to a server is up and the last attempt has failed: until when it rests.
    pub(crate) fn away_until(&self, server: ServerId) -> Option<Time> {
        let until = self.server(server).health.rest_until?;
        (!self.has_link_up(server)).then_some(until)
    }

    /// Whosever that is.
    pub(crate) fn has_link_up(&self, server: ServerId) -> bool {
        let is_up = |(_, link): (Key, &Link)| link.key.server == server && link.is_up();
        self.links.iter().any(is_up)
    }

    /// Whether a server to which no shared link is up has answered the last attempt, and does not
    /// take its time over another one.
    pub(crate) fn answers_by_refusals(&self, server: ServerId) -> bool {
        let is_slow = |(_, link): (Key, &Link)| match link.state {
            State::Connecting { since } | State::Greeting { since, .. } => {
                link.key.server == server && self.now.since_ms(since) >= PROBE_MS
            }
            _ => false,
        };
        self.server(server).health.answered && !self.links.iter().any(is_slow)
    }

    /// Whether nothing can be had of a server, and the last attempt failed for this reason.
    pub(crate) fn is_away_for(&self, server: ServerId, reason: &str) -> bool {
        self.away_until(server).is_some() && self.server(server).health.reason == reason
    }

    /// Whether a server is there: a link to it is up, whosever it is, or the last attempt at one
    /// was answered.
    pub(crate) fn is_there(&self, server: ServerId) -> bool {
        self.server(server).health.answered || self.has_link_up(server)
    }

    /// Whether a server may be there: it is, or no attempt to reach it has failed yet.
    pub(crate) fn may_be_there(&self, server: ServerId) -> bool {
        self.is_there(server) || self.server(server).health.failures == 0
    }

    /// Whether there is a point in connecting a link now. If so, and its server was away, the
    /// others leave it to this one.
    pub(crate) fn may_try(&mut self, key: Key, server: ServerId) -> bool {
        let Some(until) = self.away_until(server) else {
            return true;
        };
        if self.now < until || self.is_tried_by_another(key, server) {
            return false;
        }
        self.health(server).probe = Some(key);
        true
    }

    /// Whether a link that rests has to go on with that.
    pub(crate) fn must_rest(&self, key: Key, server: ServerId) -> bool {
        self.away_until(server)
            .is_some_and(|until| self.now < until || self.is_tried_by_another(key, server))
    }

    fn is_tried_by_another(&self, key: Key, server: ServerId) -> bool {
        let tries = |link: &Link| {
            link.key.server == server
                && matches!(
                    link.state,
                    State::Connecting { .. } | State::Greeting { .. }
                )
        };
        let probe = self.server(server).health.probe;
        let probe = probe.filter(|probe| *probe != key);
        probe.is_some_and(|probe| self.links.get(probe).is_some_and(tries))
    }

    /// Links that were to be connected while their server is known to be away: they have failed, as
    /// if they had tried.
    pub(crate) fn fail_untried(&mut self) {
        if self.untried.is_empty() {
            return;
        }
        for key in std::mem::take(&mut self.untried) {
            if let Some(link) = self.links.get(key).filter(|link| link.untried) {
                let reason = self.server(link.key.server).health.reason.clone();
                self.link_down(key, &reason, None);
            }
        }
    }

    /// The attempt to reach a server that was away takes its time: nobody waits for that.
    pub(crate) fn tick_probe(&mut self, key: Key) {
        let now = self.now;
        let is_late = |link: &Link, since: Time| {
            link.role == Role::Shared && !link.is_late && now.since_ms(since) >= PROBE_MS
        };
        let Some(link) = self.links.get(key) else {
            return;
        };
        match link.state {
            State::Connecting { since } | State::Greeting { since, .. }
                if is_late(link, since) && self.away_until(link.key.server).is_some() => {}
            _ => return,
        }
        let reason = self.why_late(link.key.server);
        if let Some(link) = self.links.get_mut(key) {
            link.is_late = true;
            link.reason.clone_from(&reason);
        }
        self.fail_waiting(key);
        self.wake_waiters(key);
    }

    /// Why an attempt to reach a server takes long: the look-up of its name, or else the reason why
    /// the last attempt failed.
    fn why_late(&self, server: ServerId) -> String {
        let server = self.server(server);
        match (server.health.looked_up_since, &server.settings.address) {
            (Some(since), Address::Tcp { host, .. }) => {
                let ms = self.now.since_ms(since);
                format!("looking up {host} has taken {ms} ms")
            }
            _ => server.health.reason.clone(),
        }
    }

    /// Why an attempt to reach a server has failed for want of an answer in time. Its text is the
    /// same for each attempt.
    pub(crate) fn why_no_answer(&self, server: ServerId, limit_ms: u32) -> String {
        let server = self.server(server);
        match (server.health.looked_up_since, &server.settings.address) {
            (Some(_), Address::Tcp { host, .. }) => {
                format!("looking up {host} has taken more than {limit_ms} ms")
            }
            _ => format!("no answer within {limit_ms} ms"),
        }
    }

    /// Servers to which no link is up, and that cannot be reached. One that owns slots and is read
    /// as a replica, too, is one.
    pub(crate) fn servers_away(&self) -> u64 {
        let ids = (0..self.servers.len() as u16).map(ServerId);
        let is_out = |id| self.server(id).health.outage.is_on() && !self.has_link_up(id);
        let is_away = |id| self.away_until(id).is_some() || is_out(id);
        let away = ids.filter(|id| !self.server(*id).gone && is_away(*id));
        let which = away.map(|id| (self.server(id).pool, &self.server(id).label));
        which.collect::<HashSet<_>>().len() as u64
    }
}

/// What a link says of its server.
#[derive(Clone, Copy, Default)]
struct Seen {
    links: u32,
    up: bool,
    tries: bool,
    rests: bool,
    sentinel: bool,
}

/// INFO.
impl Engine {
    /// The number of servers that `is_shown` and that this worker uses, and a line for each. At
    /// [`SERVERS_SHOWN_MAX`], servers that are not up come first.
    pub(crate) fn server_lines(&self, is_shown: impl Fn(ServerId) -> bool) -> (usize, Vec<String>) {
        let mut seen = vec![Seen::default(); self.servers.len()];
        for (_, link) in self.links.iter() {
            if link.role == Role::Probe {
                continue;
            }
            let seen = &mut seen[usize::from(link.key.server.0)];
            seen.links += 1;
            seen.sentinel |= link.role == Role::Sentinel;
            match link.state {
                State::Up => seen.up = true,
                State::Connecting { .. } | State::Greeting { .. } => seen.tries = true,
                State::Resting { .. } | State::Retrying { .. } => seen.rests = true,
                State::Down => {}
            }
        }
        let slots = self.slots_of_servers();
        let ids = (0..self.servers.len() as u16).map(ServerId);
        let with_seen = ids.zip(&seen);
        let mut shown: Vec<(ServerId, &Seen)> = with_seen
            .filter(|(id, _)| is_shown(*id))
            .filter(|(id, seen)| !self.server(*id).gone || seen.links > 0)
            .filter(|(id, seen)| seen.links > 0 || !self.is_shown_as_read(*id))
            .collect();
        let count = shown.len();
        if count > SERVERS_SHOWN_MAX {
            shown.sort_by_key(|(_, seen)| seen.up);
            shown.truncate(SERVERS_SHOWN_MAX);
        }
        let lines = shown.into_iter().map(|(id, seen)| {
            let slots = slots.get(usize::from(id.0)).copied().flatten();
            self.server_line(id, seen, slots)
        });
        (count, lines.collect())
    }

    fn server_line(&self, id: ServerId, seen: &Seen, slots: Option<u32>) -> String {
        let server = self.server(id);
        let state = match server {
            Server { gone: true, .. } => "gone",
            Server { unknown: true, .. } => "unknown",
            _ if seen.up => "up",
            _ if seen.tries => "connecting",
            _ if seen.rests => "resting",
            _ => "down",
        };
        let health = &server.health;
        let ago = health.failed_at.map(|at| self.now.since_ms(at));
        let mut line = format!(
            "address={},pool={},role={},state={state},links={},failures={},failures_total={},lost_total={}",
            server.label,
            self.pool_name(id),
            self.role_of(id, seen),
            seen.links,
            health.failures,
            health.failures_total,
            health.lost_total,
        );
        let _ = match ago {
            Some(ms) => write!(line, ",last_failure_ms_ago={ms}"),
            None => write!(line, ",last_failure_ms_ago=-1"),
        };
        let _ = write!(line, ",login={}", server.trust.word());
        if let Some(slots) = slots {
            let _ = write!(line, ",slots={slots}");
        }
        let readers = self.pool_of(id).readers.as_ref();
        let address = &server.settings.address;
        if let Some(read) = readers.and_then(|its| its.shown(id, address)) {
            let _ = write!(line, ",{read}");
        }
        line
    }

    /// Whether a node owns nothing, and has a line as the replica that is read.
    fn is_shown_as_read(&self, id: ServerId) -> bool {
        let server = self.server(id);
        self.pool_of(id).readers.is_some() && server.replica_of.is_none() && self.owns_nothing(id)
    }

    /// What a server is: as the Cluster has it, else as it says itself.
    fn role_of(&self, id: ServerId, seen: &Seen) -> &'static str {
        if seen.sentinel {
            return "sentinel";
        }
        if self.server(id).replica_of.is_some() {
            return "replica";
        }
        match &self.pool_of(id).topology {
            Topology::Cluster(cluster) => cluster.role_of(id),
            _ => match self.identity(id).map(|identity| identity.role.as_str()) {
                Some("slave" | "replica") => "replica",
                Some("sentinel") => "sentinel",
                _ => "primary",
            },
        }
    }

    /// How many slots each server owns; `None` where there are no slots.
    fn slots_of_servers(&self) -> Vec<Option<u32>> {
        let mut slots = vec![None; self.servers.len()];
        for cluster in self.pools.iter().filter_map(|pool| pool.cluster()) {
            for (server, count) in cluster.slot_counts() {
                slots[usize::from(server.0)] = Some(count);
            }
        }
        slots
    }
}

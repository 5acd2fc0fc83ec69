//! The state of the servers: failures, attempts to reach a server that is away, and the figures
//! that INFO shows.
//!
//! ```text
//!   a link is up ──lost, no link left──► away: back-off ──it is time──► one link tries
//!        ▲                                       ▲                          │       │
//!        │                                       └───────── failed ─────────┘       │
//!        └──── all links in back-off connect ◄──────────── answered ────────────────┘
//! ```
//!
//! Links of several databases, users and sessions go to one server. While none of them is up, the
//! result of one attempt counts for all of them: they fail at once, and make no attempts of their
//! own.

use crate::Event;
use crate::base::handle::LinkId;
use crate::base::settings::Address;
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::bounds_met::REPORT_EVERY_MS;
use crate::data_plane::link::{ConnectAttempt, Link, LinkRole, LinkState};
use crate::data_plane::outage::Outage;
use crate::data_plane::reconnects::Reconnects;
use crate::routing::pool::ServerId;
use crate::settings::PoolKind;

/// How long requests wait for an attempt to reach a server that was away, milliseconds. A server
/// that is well answers sooner, and clients of a lost server shall learn it soon.
const PROBE_MS: u64 = 100;

/// The state of the connections to a server.
#[derive(Debug, Default)]
pub(crate) struct ServerHealth {
    /// Attempts to connect that failed since the last success.
    pub(crate) failures: u32,
    /// Attempts to connect that ever failed.
    pub(crate) failures_total: u64,
    /// Connections that were lost, ever.
    pub(crate) lost_total: u64,
    /// When an attempt last failed or a connection was last lost.
    pub(crate) failed_at: Option<Time>,
    /// The reason why the last attempt failed.
    pub(crate) reason: String,
    /// The end of the back-off after a failed attempt. If no link is up, one link then tries.
    rest_until: Option<Time>,
    /// The link that tries to reach a server that is away.
    pub(crate) probe: Option<LinkId>,
    /// The server answered the last attempt, be it by a refusal.
    answered: bool,
    /// The time in which requests wait for a server that was lost.
    pub(crate) outage: Outage,
    /// Tokens for young links that connect again at once.
    pub(crate) reconnects: Reconnects,
    /// When the look-up of the server's name began; `None` when it has ended.
    looked_up_since: Option<Time>,
    /// When the log last told that requests got no reply in time.
    timeouts_told_at: Option<Time>,
}

impl ServerHealth {
    /// The server was reached: forgets failures, back-off and outage.
    pub(crate) fn forget(&mut self) {
        self.failures = 0;
        self.rest_until = None;
        self.outage.end();
        self.probe = None;
        self.answered = false;
    }

    /// A connection that was in use is lost.
    pub(crate) fn handle_loss(&mut self, now: Time) {
        self.lost_total += 1;
        self.failed_at = Some(now);
    }

    /// The server has refused an attempt: so it can be reached. If it `wants_login`, it waits for
    /// the logins of clients, and the attempt has not failed.
    pub(crate) fn handle_refusal(&mut self, now: Time, wants_login: bool) {
        let (failures, total) = (self.failures, self.failures_total);
        self.forget();
        self.answered = true;
        if !wants_login {
            self.failures = failures.saturating_add(1);
            self.failures_total = total + 1;
            self.failed_at = Some(now);
        }
    }

    /// A request got no reply in time. Returns whether the operator is told now: once a minute.
    fn tells_timeout(&mut self, now: Time) -> bool {
        let told_at = &mut self.timeouts_told_at;
        let is_due = told_at.is_none_or(|at| now.since_ms(at) >= REPORT_EVERY_MS);
        if is_due {
            *told_at = Some(now);
        }
        is_due
    }

    pub(crate) fn begin_look_up(&mut self, since: Time) {
        self.looked_up_since = Some(since);
    }

    pub(crate) fn end_look_up(&mut self) {
        self.looked_up_since = None;
    }
}

/// Events.
impl DataPlane {
    /// A server has not answered a request by its deadline.
    pub(crate) fn note_timeout(&mut self, link: LinkId) {
        let (now, limit_ms) = (self.now, self.settings.timeouts.request_ms);
        let Some(server) = self.links.get(link).map(|link| link.kind.server) else {
            return;
        };
        if self.health(server).tells_timeout(now) {
            let server = self.label(link);
            let effect = format!("{server} has not answered requests within {limit_ms} ms");
            let name = "request-timeout-ms";
            self.emit(Event::BoundReached { name, effect });
        }
    }

    /// A link is up: links of this server that wait for their next attempt try now. Returns whether
    /// the server was away.
    pub(crate) fn note_reached(&mut self, server: ServerId) -> bool {
        let health = self.health(server);
        let was_away = health.rest_until.is_some() || health.outage.is_on();
        health.forget();
        health.answered = true;
        if was_away {
            self.connect_resting(server);
        }
        was_away
    }

    /// Other nodes say that a server owns slots, and it owned none before. If no link to it is up,
    /// respool tries it again at once, and requests wait for it as after a loss: it may have come
    /// back in the middle of the back-off.
    pub(crate) fn note_new_owner(&mut self, server: ServerId) {
        let rests = |link: &Link| {
            let waits = matches!(
                link.state,
                LinkState::Backoff { .. } | LinkState::Retrying { .. }
            );
            link.kind.server == server
                && link.handshake_error.is_none()
                && (waits || link.attempt == ConnectAttempt::Slow)
        };
        if self.has_link_up(server) || !self.links.iter().any(|(_, link)| rests(link)) {
            return;
        }
        let now = self.now;
        let waits = self.settings.timeouts.outage_hold_ms > 0;
        let health = self.health(server);
        // If requests do not wait, one link tries the server for all.
        health.rest_until = (!waits).then_some(now);
        health.outage.begin_anew(now);
        self.connect_resting(server);
    }

    /// The servers of a pool have other TLS, so the reason of a failure may be gone: respool tries
    /// those in back-off again at once.
    pub(crate) fn note_new_tls(&mut self, pool: usize) {
        for server in (0..self.servers.len() as u16).map(ServerId) {
            if usize::from(self.pool_of(server).parent) == pool {
                self.note_new_owner(server);
                self.connect_resting(server);
            }
        }
    }

    /// Connects the links of a server that wait for their next attempt. Requests wait again for
    /// attempts that are under way. Links that the server refused keep their back-off.
    fn connect_resting(&mut self, server: ServerId) {
        for id in self.links.ids() {
            let paused = self.is_link_paused(id);
            let Some(link) = self.links.get_mut(id) else {
                continue;
            };
            if link.kind.server != server || link.handshake_error.is_some() {
                continue;
            }
            match link.state {
                LinkState::Backoff { .. } | LinkState::Retrying { .. } => self.connect(id),
                LinkState::Connecting { .. } | LinkState::Handshaking { .. }
                    if link.attempt == ConnectAttempt::Slow =>
                {
                    link.attempt = ConnectAttempt::Fair;
                    link.admit(link.may_take(), paused);
                }
                _ => {}
            }
        }
    }

    /// Notes that a link is lost that was to be connected while its server was known to be away.
    pub(crate) fn lose_untried(&mut self, id: LinkId) {
        if let Some(link) = self.links.get(id).filter(|link| link.is_untried()) {
            let reason = self.server(link.kind.server).health.reason.clone();
            self.note_link_lost(id, &reason, None);
        }
    }

    /// Fails the requests that wait on a link if its attempt takes longer than `PROBE_MS` and its
    /// server was away before.
    pub(crate) fn tick_late_attempt(&mut self, id: LinkId) {
        if self.note_late(id) {
            self.fail_waiting(id);
            self.wake_waiters(id);
        }
    }

    /// Notes a link if its attempt takes longer than `PROBE_MS` and its server was away before.
    /// Returns whether the requests that wait on the link fail.
    fn note_late(&mut self, id: LinkId) -> bool {
        let now = self.now;
        let is_late = |link: &Link, since: Time| {
            link.role == LinkRole::Shared
                && link.attempt == ConnectAttempt::Fair
                && now.since_ms(since) >= PROBE_MS
        };
        let Some(link) = self.links.get(id) else {
            return false;
        };
        match link.state {
            LinkState::Connecting { since } | LinkState::Handshaking { since, .. }
                if is_late(link, since) && self.away_until(link.kind.server).is_some() => {}
            _ => return false,
        }
        let reason = self.why_late(link.kind.server);
        if let Some(link) = self.links.get_mut(id) {
            link.attempt = ConnectAttempt::Slow;
            link.reason = reason;
        }
        true
    }

    /// The state of the connections to a server.
    pub(crate) fn health(&mut self, server: ServerId) -> &mut ServerHealth {
        &mut self.servers[usize::from(server.0)].health
    }

    /// The end of the back-off, if no link to a server is up and the last attempt has failed.
    pub(crate) fn away_until(&self, server: ServerId) -> Option<Time> {
        let until = self.server(server).health.rest_until?;
        (!self.has_link_up(server)).then_some(until)
    }

    /// Whether a link to a server is up, of any session or user.
    pub(crate) fn has_link_up(&self, server: ServerId) -> bool {
        let is_up = |(_, link): (LinkId, &Link)| link.kind.server == server && link.is_up();
        self.links.iter().any(is_up)
    }

    /// Whether a server without a shared link that is up has answered the last attempt, and no
    /// other attempt takes long.
    pub(crate) fn answers_by_refusals(&self, server: ServerId) -> bool {
        let is_slow = |(_, link): (LinkId, &Link)| match link.state {
            LinkState::Connecting { since } | LinkState::Handshaking { since, .. } => {
                link.kind.server == server && self.now.since_ms(since) >= PROBE_MS
            }
            _ => false,
        };
        self.server(server).health.answered && !self.links.iter().any(is_slow)
    }

    /// Whether a server is away and the last attempt failed for this reason.
    pub(crate) fn is_away_for(&self, server: ServerId, reason: &str) -> bool {
        self.away_until(server).is_some() && self.server(server).health.reason == reason
    }

    /// Whether a server can be reached: a link to it is up, or it answered the last attempt.
    pub(crate) fn is_there(&self, server: ServerId) -> bool {
        self.server(server).health.answered || self.has_link_up(server)
    }

    /// Whether a server can be reached, as far as known: no attempt to reach it has failed yet.
    pub(crate) fn may_be_there(&self, server: ServerId) -> bool {
        self.is_there(server) || self.server(server).health.failures == 0
    }

    /// Whether a link shall connect now. If its server was away, the other links wait for this
    /// attempt.
    pub(crate) fn may_try(&mut self, id: LinkId, server: ServerId) -> bool {
        let Some(until) = self.away_until(server) else {
            return true;
        };
        if self.now < until || self.is_tried_by_another(id, server) {
            return false;
        }
        self.health(server).probe = Some(id);
        true
    }

    /// Whether a link in back-off stays there.
    pub(crate) fn must_rest(&self, id: LinkId, server: ServerId) -> bool {
        self.away_until(server)
            .is_some_and(|until| self.now < until || self.is_tried_by_another(id, server))
    }

    fn is_tried_by_another(&self, id: LinkId, server: ServerId) -> bool {
        let tries = |link: &Link| {
            link.kind.server == server
                && matches!(
                    link.state,
                    LinkState::Connecting { .. } | LinkState::Handshaking { .. }
                )
        };
        let probe = self.server(server).health.probe;
        let probe = probe.filter(|probe| *probe != id);
        probe.is_some_and(|probe| self.links.get(probe).is_some_and(tries))
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

    /// Why an attempt to reach a server got no answer in time. The text is equal for each attempt.
    pub(crate) fn why_no_answer(&self, server: ServerId, limit_ms: u32) -> String {
        let uses_tls = self.pool_of(server).tls;
        let server = self.server(server);
        match (server.health.looked_up_since, &server.settings.address) {
            (Some(_), Address::Tcp { host, .. }) => {
                format!("looking up {host} has taken more than {limit_ms} ms")
            }
            // A server takes the first message of TLS for the beginning of a request, and waits for
            // the rest.
            _ if uses_tls => {
                format!("no answer within {limit_ms} ms; does it speak TLS at this port?")
            }
            _ => format!("no answer within {limit_ms} ms"),
        }
    }

    /// An attempt to connect that began at `began` has failed. Requests do not wait for the next
    /// one, unless the link `retries`.
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

    /// The pause after so many failures, milliseconds: between half and all of a time that doubles,
    /// so that workers do not connect all at once.
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

    /// Reports an event of a pool. An equal text is reported again, because it is another event.
    pub(crate) fn report_event(&mut self, pool: usize, text: String) {
        self.reported_topology.remove(&pool);
        self.emit_topology(pool, text);
    }

    /// Reports a text about the topology of a pool or subpool.
    pub(crate) fn emit_topology(&mut self, pool: usize, text: String) {
        let of = &self.settings.pools[usize::from(self.pools[pool].parent)];
        let text = match self.prefix_of(pool) {
            Some(prefix) => format!("behind `{prefix}`: {text}"),
            None => text,
        };
        let pool = of.name.clone();
        self.emit(Event::Topology { pool, text });
    }

    /// The prefix of a subpool's keys; `None` for the subpool without a prefix.
    fn prefix_of(&self, subpool: usize) -> Option<String> {
        let whole = usize::from(self.pools[subpool].parent);
        let place = |index: &u16| usize::from(*index) == subpool;
        let place = self.pools.subpools_of(whole).iter().position(place)?;
        let PoolKind::ByPrefix { subpools } = &self.settings.pools[whole].kind else {
            return None;
        };
        let prefix = &subpools.get(place).filter(|_| place > 0)?.prefix;
        Some(String::from_utf8_lossy(prefix).into_owned())
    }
}

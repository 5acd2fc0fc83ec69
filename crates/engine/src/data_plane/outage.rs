//! A server that has just gone away: requests wait a moment for it to come back.
//!
//! ```text
//!   a link is up ──lost──► an outage: links retry, and requests wait ──reached──► what waited leaves
//!                             │
//!                             └──`outage_hold_ms` is over──► what waits fails; later requests fail at once
//! ```
//!
//! A restart takes half a second. Without a proxy, a client connects again during that time and asks
//! again. A client of respool does not see the loss, so respool has to wait in its place. Only
//! requests that were surely not executed wait.

use crate::cluster::Cluster;
use crate::engine::Engine;
use crate::link::{Link, Role, State};
use crate::pool::ServerId;
use crate::slots::Key;
use crate::time::Time;

/// The longest pause between two attempts while requests wait, milliseconds.
const RETRY_MAX_MS: u32 = 100;

/// Since when a server is away.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outage {
    since: Option<Time>,
}

impl Outage {
    /// A connection was lost, or could not be had, and there is no other one.
    fn begin(&mut self, now: Time) {
        self.since.get_or_insert(now);
    }

    /// The server was reached.
    pub(crate) fn end(&mut self) {
        self.since = None;
    }

    pub(crate) fn is_on(&self) -> bool {
        self.since.is_some()
    }

    /// Whether requests wait for the server at `now`.
    fn holds(&self, now: Time, hold_ms: u32) -> bool {
        let is_young = |since| now.since_ms(since) < u64::from(hold_ms);
        self.since.is_some_and(is_young)
    }
}

impl Engine {
    /// Whether a link that is down retries, with the requests that wait on it. A link of one session
    /// does so only if it never was up: otherwise the server has lost the state of that session.
    pub(crate) fn retries(&self, key: Key, was_up: bool) -> bool {
        let Some(link) = self.links.get(key) else {
            return false;
        };
        let may = match link.role {
            Role::Shared | Role::Hub(_) => true,
            Role::Captured { .. }
            | Role::Streaming { .. }
            | Role::Pinned { .. }
            | Role::Redirect { .. } => !was_up,
            // Logins wait in their queue, see [`crate::login_probe`].
            Role::Emergency { .. } | Role::Sentinel | Role::Probe | Role::Spare => false,
        };
        may && self.holds_requests(link.key.server) && !self.is_link_expired(link)
    }

    /// Whether requests wait for a server that is away.
    pub(crate) fn holds_requests(&self, id: ServerId) -> bool {
        let server = self.server(id);
        let outage = server.health.outage;
        let cluster = self.pool_of(id).cluster();
        let is_replaced = cluster.is_some_and(Cluster::is_known) && self.owns_nothing(id);
        !server.gone
            && !is_replaced
            && outage.holds(self.now, self.settings.timeouts.outage_hold_ms)
    }

    /// An attempt to reach a server has failed, or its last link was lost. A server that ends closes
    /// its listener first, and its connections one by one: a failed attempt counts though another
    /// link is still up.
    pub(crate) fn begin_outage(&mut self, server: ServerId, was_up: bool) {
        if !was_up || !self.has_link_up(server) {
            let now = self.now;
            self.health(server).outage.begin(now);
        }
    }

    /// Whether a link that is to connect leaves the attempt to another one, and waits for it. During
    /// an outage one link tries the server.
    pub(crate) fn waits_for_attempt(&mut self, key: Key) -> bool {
        let holds = |link: &&Link| self.holds_requests(link.key.server);
        let Some(link) = self.links.get(key).filter(holds) else {
            return false;
        };
        let server = link.key.server;
        let tries = |link: &Link| link.key.server == server && link.tries();
        let probe = self.server(server).health.probe;
        let other = probe.filter(|probe| *probe != key);
        let waits = other
            .and_then(|other| self.links.get(other))
            .is_some_and(tries)
            && self.retries(key, false);
        if waits {
            self.retry_later(key);
        } else {
            self.health(server).probe = Some(key);
        }
        waits
    }

    /// A link pauses until its next attempt. Requests are put on it meanwhile.
    pub(crate) fn retry_later(&mut self, key: Key) {
        let Some(link) = self.links.get(key) else {
            return;
        };
        let failures = link.failures.max(1);
        let pause_ms = self.back_off_ms(failures).min(RETRY_MAX_MS);
        let at = self.now.plus_ms(pause_ms);
        let paused = self.is_link_paused(key);
        if let Some(link) = self.links.get_mut(key) {
            link.state = State::Retrying { at };
            link.admit(link.may_take(), paused);
        }
    }

    /// A link that retries: the next attempt, or the end of its patience.
    pub(crate) fn tick_retry(&mut self, key: Key) {
        let Some(link) = self.links.get(key) else {
            return;
        };
        let State::Retrying { at } = link.state else {
            return;
        };
        if !self.retries(key, false) {
            let reason = link.reason.clone();
            if let Some(link) = self.links.get_mut(key) {
                // This is no further attempt.
                link.untried = true;
            }
            self.link_down(key, &reason, None);
        } else if self.now >= at {
            self.connect(key);
        }
    }
}

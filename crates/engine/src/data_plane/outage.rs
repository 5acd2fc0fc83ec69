//! A server that has just gone away: requests wait a moment for it to come back.
//!
//! ```text
//!   a link is up ──lost──► an outage: links retry, requests wait ──reached──► the requests leave
//!                             │
//!                             └──`outage_hold_ms` is over──► they fail; later ones fail at once
//! ```
//!
//! A restart takes half a second. Without a proxy, a client connects again during that time and
//! repeats its request. A client of respool does not see the loss, so respool has to wait in its
//! place. Only requests that were surely not executed wait.

use crate::base::handle::LinkId;
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::link::{ConnectAttempt, Link, LinkRole, LinkState};
use crate::routing::pool::ServerId;

/// The longest pause between two attempts while requests wait, milliseconds.
const RETRY_MAX_MS: u32 = 100;

/// The time since which a server is away.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outage {
    /// When the server was lost; `None` once it was reached.
    since: Option<Time>,
}

impl Outage {
    /// An attempt to connect failed, or the last link that was up is lost.
    fn begin(&mut self, now: Time) {
        self.since.get_or_insert(now);
    }

    /// Restarts the wait: other nodes say that the server is there.
    pub(crate) fn begin_anew(&mut self, now: Time) {
        self.since = Some(now);
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

impl DataPlane {
    /// Connects a link in state `Retrying` when its next attempt is due. Loses it once requests no
    /// longer wait for its server.
    pub(crate) fn tick_retry(&mut self, id: LinkId) {
        let Some(link) = self.links.get(id) else {
            return;
        };
        let LinkState::Retrying { at } = link.state else {
            return;
        };
        if !self.retries(id, false) {
            let reason = link.reason.clone();
            if let Some(link) = self.links.get_mut(id) {
                // The loss counts no failed attempt.
                link.attempt = ConnectAttempt::Skipped;
            }
            self.note_link_lost(id, &reason, None);
        } else if self.now >= at {
            self.connect(id);
        }
    }

    /// Whether a link that is down retries, with the requests that wait on it. A link of one
    /// session retries only if it never was up: otherwise the server has lost that session's state.
    pub(crate) fn retries(&self, id: LinkId, was_up: bool) -> bool {
        let Some(link) = self.links.get(id) else {
            return false;
        };
        let may = match link.role {
            LinkRole::Shared | LinkRole::HubLine(_) => true,
            LinkRole::Draining { .. }
            | LinkRole::Streaming { .. }
            | LinkRole::Pinned { .. }
            | LinkRole::Redirect { .. } => !was_up,
            // Logins wait in their queue, see [`crate::access::login_probe`].
            LinkRole::Emergency { .. } | LinkRole::Sentinel | LinkRole::Probe | LinkRole::Idle => {
                false
            }
        };
        may && self.holds_requests(link.kind.server) && !self.is_link_expired(link)
    }

    /// Whether requests wait for a server that is away.
    pub(crate) fn holds_requests(&self, id: ServerId) -> bool {
        let server = self.server(id);
        let outage = server.health.outage;
        let cluster = self.pool_of(id).cluster();
        let is_replaced = cluster.is_some_and(|slots| slots.is_known) && self.owns_nothing(id);
        !server.gone
            && !is_replaced
            && outage.holds(self.now, self.settings.timeouts.outage_hold_ms)
    }

    /// An attempt to reach a server has failed, or its last link was lost. A server that ends
    /// closes its listener first, and its connections one by one: so a failed attempt begins an
    /// outage though another link is still up.
    pub(crate) fn begin_outage(&mut self, server: ServerId, was_up: bool) {
        if !was_up || !self.has_link_up(server) {
            let now = self.now;
            self.health(server).outage.begin(now);
        }
    }

    /// Whether another link already tries to reach the server; this link then waits for that
    /// attempt. During an outage one link at a time tries the server.
    pub(crate) fn wait_for_attempt(&mut self, id: LinkId) -> bool {
        let holds = |link: &&Link| self.holds_requests(link.kind.server);
        let Some(link) = self.links.get(id).filter(holds) else {
            return false;
        };
        let server = link.kind.server;
        let tries = |link: &Link| link.kind.server == server && link.tries();
        let probe = self.server(server).health.probe;
        let other = probe.filter(|probe| *probe != id);
        let waits = other
            .and_then(|other| self.links.get(other))
            .is_some_and(tries)
            && self.retries(id, false);
        if waits {
            self.retry_later(id);
        } else {
            self.health(server).probe = Some(id);
        }
        waits
    }

    /// A link pauses until its next attempt. Meanwhile it takes requests.
    pub(crate) fn retry_later(&mut self, id: LinkId) {
        let Some(link) = self.links.get(id) else {
            return;
        };
        let failures = link.failures.max(1);
        let pause_ms = self.back_off_ms(failures).min(RETRY_MAX_MS);
        let at = self.now.plus_ms(pause_ms);
        let paused = self.is_link_paused(id);
        if let Some(link) = self.links.get_mut(id) {
            link.state = LinkState::Retrying { at };
            link.admit(link.may_take(), paused);
        }
    }
}

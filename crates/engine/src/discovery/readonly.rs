//! A plain server that refuses writes. Its name, its proxy or its moving address may lead to
//! another server by now, and only a new connection gets there.
//!
//! ```text
//!   -READONLY on a link ──► the client gets the reply
//!                      └──► a new link is connected ──► it is up: new requests go there, and the
//!                                                       old link answers its earlier requests
//! ```
//!
//! In a Cluster the nodes know the primary, and behind Sentinels the Sentinels do. There, respool
//! asks them instead (`redirect/deferred.rs`).

use respool_protocol::encode;
use respool_protocol::value::Value;

use crate::base::handle::LinkId;
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::discovery::DiscoveryCompletion;
use crate::data_plane::link::{IDLE_EMERGENCY, Link, LinkRole};
use crate::discovery::Discovery;
use crate::routing::pool::ServerId;

/// The first pause between two reconnects of the links to a server, milliseconds. A name may follow
/// its primary by seconds.
const RENEWAL_MIN_MS: u32 = 1_000;
/// The longest such pause, milliseconds. Clients may send writes for days to a server that is meant
/// to take none.
const RENEWAL_MAX_MS: u32 = 60_000;

/// The pause between two questions for a server's role that scripts cause, milliseconds.
const ROLE_MS: u32 = 1_000;

/// When a server that refuses writes was reconnected.
#[derive(Debug, Default)]
pub(crate) struct ReadonlyReconnect {
    /// The links are not renewed again before this time.
    due: Time,
    /// The pause from the last renewal until `due`, milliseconds.
    pause_ms: u32,
    /// The server is not asked for its role again before this time.
    role_due: Time,
}

impl ReadonlyReconnect {
    /// Whether a server may be asked for its role.
    fn may_ask(&mut self, now: Time) -> bool {
        let may = now >= self.role_due;
        if may {
            self.role_due = now.plus_ms(ROLE_MS);
        }
        may
    }

    /// Whether the links may be renewed now. Each renewal doubles the pause; a long time without
    /// one resets it.
    fn is_due(&mut self, now: Time) -> bool {
        if now < self.due {
            return false;
        }
        let is_old = now.since_ms(self.due) >= u64::from(RENEWAL_MAX_MS);
        self.pause_ms = match is_old {
            true => RENEWAL_MIN_MS,
            false => (self.pause_ms * 2).clamp(RENEWAL_MIN_MS, RENEWAL_MAX_MS),
        };
        self.due = now.plus_ms(self.pause_ms);
        true
    }
}

/// The error of a server that refuses writes. Before Redis 7.0, other words stand in front of it in
/// an error of a script.
const READONLY: &[u8] = b"-READONLY ";
/// The bytes of an error that are searched for [`READONLY`].
const BEGINNING_BYTES: usize = 512;

/// Whether an error may say that its server refuses writes.
fn may_be_readonly(error: &[u8]) -> bool {
    let beginning = &error[..error.len().min(BEGINNING_BYTES)];
    beginning
        .windows(READONLY.len())
        .any(|words| words == READONLY)
}

impl Discovery {
    /// An error of a link without redirects: it may contain [`READONLY`].
    pub(crate) fn note_readonly(&mut self, plane: &mut DataPlane, id: LinkId, error: &[u8]) {
        let Some(link) = plane.links.get(id).filter(|_| may_be_readonly(error)) else {
            return;
        };
        let server = link.kind.server;
        // A replica never takes writes.
        if plane.server(server).replica_of.is_some() {
            return;
        }
        match plane.may_be_a_clients(link) {
            true => self.ask_role(plane, server),
            false if error.starts_with(READONLY) => self.renew_if_due(plane, server),
            false => {}
        }
    }

    /// The server has answered the question for its role.
    pub(crate) fn take_role(&mut self, plane: &mut DataPlane, link: LinkId, reply: &[u8]) {
        let Some(link) = plane.links.get(link) else {
            return;
        };
        let (server, handles_redirects) = (link.kind.server, link.handles_redirects);
        let answer = Value::read(reply);
        let role = answer
            .as_ref()
            .and_then(|answer| answer.field("role")?.text());
        match role {
            Some(b"replica" | b"slave") if handles_redirects => {
                self.request_survey(plane, server);
                self.request_refresh_after_loss(plane, server);
            }
            Some(b"replica" | b"slave") => self.renew_if_due(plane, server),
            _ => {}
        }
    }

    fn renew_if_due(&mut self, plane: &mut DataPlane, server: ServerId) {
        let now = plane.now;
        if self
            .readonly_reconnects
            .entry(server)
            .or_default()
            .is_due(now)
        {
            self.reconnect(plane, server);
        }
    }

    /// Connects a new link for each shared link. The new link takes its place once it is up. Until
    /// then sessions go on with the old link, and also if the new link never comes up.
    fn reconnect(&mut self, plane: &mut DataPlane, server: ServerId) {
        let state = plane.server(server);
        let (pool, label) = (usize::from(state.pool), &state.label);
        let text = format!(
            "{label} refuses writes: respool reconnects, because its name may lead to another \
             server now"
        );
        plane.report_event(pool, text);
        for id in plane.links.ids() {
            let is_affected = |link: &&mut Link| link.kind.server == server && link.is_up();
            let Some(link) = plane.links.get_mut(id).filter(is_affected) else {
                continue;
            };
            let kind = link.kind;
            match link.role {
                LinkRole::Idle | IDLE_EMERGENCY => plane.close_link(id),
                LinkRole::Shared => {
                    // No session waits for an idle link: if it cannot be connected, no client gets
                    // an error.
                    if let Some(successor) = plane.add_link(kind, LinkRole::Idle) {
                        plane.connect(successor);
                    }
                }
                LinkRole::Probe => plane.lose_link(id, "respool reconnects to its server"),
                // A session keeps its own link, and no other session gets the link afterwards.
                // Subscriptions keep their link until it has a successor.
                _ => link.tainted = true,
            }
        }
    }

    /// A script reports that its server refuses writes, but a script may return any error text.
    /// Asks the server for its role.
    pub(crate) fn ask_role(&mut self, plane: &mut DataPlane, server: ServerId) {
        let now = plane.now;
        if plane.server(server).replica_of.is_some() {
            return;
        }
        let Some(link) = self.link_that_answers(plane, server) else {
            return;
        };
        if !self
            .readonly_reconnects
            .entry(server)
            .or_default()
            .may_ask(now)
        {
            return;
        }
        let version = plane.links.get(link).map(|link| link.kind.version);
        let version = version.unwrap_or_default().number().to_string();
        let mut question = Vec::new();
        // Every user may send HELLO, and this one does not change the link.
        encode::request(&mut question, &["HELLO", &version]);
        plane.put_ours(
            link,
            &question,
            Completion::Discovery(DiscoveryCompletion::Role),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u32) -> Time {
        Time(0).plus_ms(ms)
    }

    /// A client may send writes for days to a server that is meant to take none.
    #[test]
    fn pause_doubles_with_each_renewal() {
        let mut reconnect = ReadonlyReconnect::default();
        let mut due = Vec::new();
        for ms in 0..300_000 {
            if reconnect.is_due(at(ms)) {
                due.push(ms);
            }
        }
        let pauses: Vec<u32> = due.windows(2).map(|two| two[1] - two[0]).collect();
        let expected = [
            1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000,
        ];
        assert_eq!(pauses, expected);
    }

    #[test]
    fn pause_is_short_again_after_a_long_time() {
        let mut reconnect = ReadonlyReconnect::default();
        assert!(reconnect.is_due(at(0)));
        assert!(reconnect.is_due(at(1_000)));
        assert!(!reconnect.is_due(at(2_999)));
        assert!(reconnect.is_due(at(3_000 + RENEWAL_MAX_MS)));
        assert!(!reconnect.is_due(at(3_999 + RENEWAL_MAX_MS)));
        assert!(reconnect.is_due(at(4_000 + RENEWAL_MAX_MS)));
    }

    #[test]
    fn role_is_asked_for_once_a_second() {
        let mut reconnect = ReadonlyReconnect::default();
        let questions = (0..10_000).filter(|ms| reconnect.may_ask(at(*ms)));
        assert_eq!(questions.count(), 10);
    }

    /// Before Redis 7.0, an error of a script has other words in front. A reply may be long.
    #[test]
    fn readonly_is_searched_for_at_the_beginning_alone() {
        assert!(may_be_readonly(b"-READONLY You can't write\r\n"));
        assert!(may_be_readonly(
            b"-ERR Error running script: -READONLY no\r\n"
        ));
        assert!(!may_be_readonly(b"-ERR unknown command\r\n"));
        let late = [&[b'x'; BEGINNING_BYTES][..], READONLY].concat();
        assert!(!may_be_readonly(&late));
    }
}

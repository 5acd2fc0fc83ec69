//! A plain server that takes no writes any more: whoever stands behind its name, or behind a proxy or an address that moves, may
//! be another one by now, and only a new connection comes to that one.
//!
//! ```text
//!   -READONLY on a link ──► the client has its answer
//!                      └──► what the server owes it still answers, on the old connections; what comes is asked on new ones
//! ```
//!
//! Of a Cluster and of Sentinels others know who its primary is, and it is them who are asked (`elsewhere`).

use crate::engine::Engine;
use crate::link::{Link, Role};
use crate::pool::ServerId;
use crate::slots::Key;
use crate::time::Time;

/// How soon after the first time a server is connected anew once more, milliseconds. A name may follow its primary by seconds.
const RENEWAL_MIN_MS: u32 = 1_000;
/// How seldom at last: writes may be sent for days to a server that takes none, and is to take none.
const RENEWAL_MAX_MS: u32 = 60_000;

/// When a server that takes no writes was connected anew.
#[derive(Debug, Default)]
pub(crate) struct Renewal {
    /// Not again before.
    due: Time,
    /// How long that was from the last time on.
    pause_ms: u32,
}

impl Renewal {
    /// Whether it is time. The pause doubles, and is forgotten by who was not in need of it for long.
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

impl Engine {
    /// An error is the next reply of a link. Whether it is taken for what it says of the server, and not an answer.
    #[cold]
    pub(crate) fn is_heeded(&mut self, key: Key, reply: &[u8]) -> bool {
        match self.links.get(key).is_some_and(|link| link.heeds) {
            true => self.goes_elsewhere(key, reply),
            false => {
                if reply.starts_with(b"-READONLY ") {
                    self.note_readonly(key);
                }
                false
            }
        }
    }

    fn note_readonly(&mut self, key: Key) {
        let Some(link) = self.links.get(key) else {
            return;
        };
        let server = link.key.server;
        // A replica is there to be read; and what is left already is known to take no writes.
        if link.tainted || self.server(server).replica_of.is_some() {
            return;
        }
        let now = self.now;
        if self.servers[usize::from(server.0)].renewal.is_due(now) {
            self.renew(server);
        }
    }

    /// Whatever comes is asked on new connections; the old ones answer what they owe.
    fn renew(&mut self, server: ServerId) {
        let state = self.server(server);
        let (pool, label) = (usize::from(state.pool), &state.label);
        let text = format!(
            "{label} takes no writes: it is connected anew, for another one may stand there now"
        );
        self.tell_topology(pool, text);
        for key in self.links.keys() {
            let its = |link: &&mut Link| link.key.server == server && link.is_up();
            let has_room = self.has_room_for_link();
            let Some(link) = self.links.get_mut(key).filter(its) else {
                continue;
            };
            match link.role {
                Role::Spare => self.close_link(key),
                // Without room for its successor it goes on as it is.
                Role::Shared if !has_room => {}
                Role::Shared => {
                    link.tainted = true;
                    let owes = !link.ledger.is_empty();
                    self.stop_sharing(key, Key::NOBODY);
                    if !owes {
                        self.close_link(key);
                    }
                }
                // Whoever has one of its own keeps it, and nobody gets it afterwards.
                _ => link.tainted = true,
            }
        }
    }
}

//! Probing links: on them a server is asked about logins, for clients and for respool itself.
//!
//! A failed AUTH leaves the connection of a Redis server as it was. So one connection tries any number of passwords.

use crate::auth::CONFIGURED;
use crate::engine::Engine;
use crate::limits::LOGIN_PROBES_PER_SERVER;
use crate::link::{Link, LinkKey, Role};
use crate::pool::ServerId;
use crate::slots::Key;

/// The logins of one worker that wait for a server.
#[derive(Default)]
pub(crate) struct LoginProbes {
    /// New sessions that wait for a check of the configured login; at most as many as there are sessions.
    pub(crate) newcomers: Vec<Key>,
}

impl Engine {
    pub(crate) fn is_probe(&self, key: Key) -> bool {
        let role = self.links.get(key).map(|link| link.role);
        role == Some(Role::Probe)
    }

    /// The probing link of a server with the least to do; a new one if all have something to do and there may be one more. `any`:
    /// no new one if there is one at all.
    pub(crate) fn probing_link(&mut self, server: ServerId, any: bool) -> Option<Key> {
        let probes =
            |(_, link): &(Key, &Link)| link.role == Role::Probe && link.key.server == server;
        let its = self.links.iter().filter(probes);
        let mut count = 0;
        let least = its
            .inspect(|_| count += 1)
            .min_by_key(|(_, link)| link.ledger.len())
            .map(|(key, link)| (key, link.ledger.is_empty()));
        match least {
            Some((key, is_idle)) if is_idle || any || count >= LOGIN_PROBES_PER_SERVER => Some(key),
            _ => {
                let kind = LinkKey {
                    db: 0,
                    user: CONFIGURED,
                    ..self.first_link(server)
                };
                let link = self.add_link(kind, Role::Probe)?;
                self.connect(link);
                Some(link)
            }
        }
    }

    /// What a server said to a greeting with the configured login; `None`: it agreed.
    pub(crate) fn greeted_as_configured(&mut self, key: Key, refusal: Option<&[u8]>) {
        let Some(link) = self.links.get(key) else {
            return;
        };
        let server = link.key.server;
        let has_credentials = self.server(server).settings.credentials.is_some();
        let is_configured = match link.role {
            Role::Sentinel => false,
            // It brings no credentials.
            Role::Probe => !has_credentials,
            _ => link.key.user == CONFIGURED,
        };
        match refusal {
            _ if !is_configured => {}
            None => self.login_accepted(server),
            Some(error) => self.login_refused(server, error),
        }
    }

    /// A probing link is gone.
    pub(crate) fn probe_lost(&mut self, server: ServerId) {
        self.servers[usize::from(server.0)].trust.handle_check_end();
        self.release_newcomers();
    }
}

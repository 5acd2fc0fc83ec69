//! Passwords that change while respool runs.
//!
//! ```text
//!   a server refuses a password ──► Event::PasswordRefused ──► the source is read, outside of here
//!                                                                        │
//!   refused links connect, the login is checked ◄── handle_password ◄────┘  a new password
//! ```
//!
//! Links that are up stay: a server keeps a connection that it has accepted. During the hold of an
//! outage, requests wait for the new password as they wait for a server that restarts.

use std::sync::Arc;

use crate::auth::CONFIGURED;
use crate::engine::{Engine, Event};
use crate::link::{Link, Role, State};
use crate::pool::ServerId;
use crate::settings::{Credentials, PasswordSource};
use crate::slots::Key;
use crate::trust::refuses_login;

impl Credentials {
    /// Takes the new password of a source. Whether it differs from the one before.
    pub(crate) fn renew(&mut self, source: PasswordSource, password: &str) -> bool {
        let is_new = self.source == Some(source) && self.password != password;
        if is_new {
            password.clone_into(&mut self.password);
        }
        is_new
    }
}

impl Engine {
    /// A source of passwords has this one now. Servers that refused the one before are asked again
    /// at once; links that are up stay, and so do sessions.
    pub fn handle_password(&mut self, source: PasswordSource, password: &str) {
        let is_old = |source_of: Option<PasswordSource>, its: &str| {
            source_of == Some(source) && its != password
        };
        let mut users = self.settings.users.iter();
        if users.any(|user| is_old(user.source, &user.password)) {
            for user in &mut Arc::make_mut(&mut self.settings).users {
                if user.source == Some(source) {
                    password.clone_into(&mut user.password);
                }
            }
        }
        for pool in self.pools.iter_mut() {
            let of_nodes = pool.cluster_mut().and_then(|its| its.credentials_mut());
            if let Some(credentials) = of_nodes {
                credentials.renew(source, password);
            }
            let of_sentinels = pool.watch.as_mut().and_then(|its| its.credentials_mut());
            if let Some(credentials) = of_sentinels {
                credentials.renew(source, password);
            }
        }
        for index in 0..self.servers.len() {
            let credentials = &mut self.servers[index].settings.credentials;
            let renews = |its: &mut Credentials| its.renew(source, password);
            if credentials.as_mut().is_some_and(renews) {
                self.try_new_password(ServerId(index as u16));
            }
        }
    }

    /// Connects the links that a server has refused, and asks whether it accepts the login.
    fn try_new_password(&mut self, server: ServerId) {
        for key in self.links.keys() {
            let Some(link) = self.links.get(key) else {
                continue;
            };
            let rests = matches!(link.state, State::Resting { .. } | State::Retrying { .. });
            let is_refused = link.refusal.as_deref().is_some_and(refuses_login);
            let is_ours = link.key.server == server && link.key.user == CONFIGURED;
            if is_ours && is_refused && rests {
                // The health of the server was found out with the old password.
                self.health(server).forget();
                self.connect(key);
            }
        }
        self.check_login_now(server);
    }

    /// A server refuses the configured login with this error: if the password has a source, that
    /// is to be read again. Whether it has one.
    pub(crate) fn seek_password(&mut self, server: ServerId, error: &[u8]) -> bool {
        let source = self.source_refused(server, error);
        if let Some(source) = source {
            self.tell(Event::PasswordRefused { source });
        }
        source.is_some()
    }

    /// The source of the password that a server refuses with this error.
    fn source_refused(&self, server: ServerId, error: &[u8]) -> Option<PasswordSource> {
        let credentials = self.server(server).settings.credentials.as_ref()?;
        credentials.source.filter(|_| refuses_login(error))
    }

    /// Whether a link waits for a new password: its server has refused the configured one with this
    /// error, and the password has a source.
    pub(crate) fn awaits_password(&self, key: Key, refusal: Option<&[u8]>) -> bool {
        let is_ours = |link: &&Link| link.key.user == CONFIGURED && link.role != Role::Probe;
        let (Some(link), Some(error)) = (self.links.get(key).filter(is_ours), refusal) else {
            return false;
        };
        self.source_refused(link.key.server, error).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other sources, and passwords without a source, stay as they are.
    #[test]
    fn credentials_take_the_password_of_their_source_alone() {
        let mut own = Credentials {
            user: None,
            password: "one".to_owned(),
            source: Some(PasswordSource(1)),
        };
        assert!(!own.renew(PasswordSource(0), "two"));
        assert!(!own.renew(PasswordSource(1), "one"));
        assert_eq!(own.password, "one");
        assert!(own.renew(PasswordSource(1), "two"));
        assert_eq!(own.password, "two");
        own.source = None;
        assert!(!own.renew(PasswordSource(1), "three"));
        assert_eq!(own.password, "two");
    }
}

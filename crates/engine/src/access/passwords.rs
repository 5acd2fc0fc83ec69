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

use crate::access::Access;
use crate::base::error::refuses_login;
use crate::base::handle::{CONFIGURED, LinkId};
use crate::base::settings::{Credentials, PasswordSource};
use crate::data_plane::DataPlane;
use crate::data_plane::actions::Event;
use crate::data_plane::link::{Link, LinkRole, LinkState};
use crate::routing::pool::ServerId;

impl Credentials {
    /// Takes the new password of a source. Returns whether it differs from the one before.
    pub(crate) fn renew(&mut self, source: PasswordSource, password: &str) -> bool {
        let is_new = self.source == Some(source) && self.password != password;
        if is_new {
            password.clone_into(&mut self.password);
        }
        is_new
    }
}

impl Access {
    /// A server refuses the configured login with this error. If the password has a source, emits
    /// the event that asks for a new reading. Returns whether it has one.
    pub(crate) fn seek_password(
        &mut self,
        plane: &mut DataPlane,
        server: ServerId,
        error: &[u8],
    ) -> bool {
        let source = self.source_refused(plane, server, error);
        if let Some(source) = source {
            plane.emit(Event::PasswordRefused { source });
        }
        source.is_some()
    }

    /// The source of the password that a server refuses with this error.
    fn source_refused(
        &self,
        plane: &DataPlane,
        server: ServerId,
        error: &[u8],
    ) -> Option<PasswordSource> {
        let credentials = plane.server(server).settings.credentials.as_ref()?;
        credentials.source.filter(|_| refuses_login(error))
    }

    /// Whether a link waits for a new password: its server has refused the configured one with this
    /// error, and the password has a source.
    pub(crate) fn awaits_password(
        &self,
        plane: &DataPlane,
        id: LinkId,
        error: Option<&[u8]>,
    ) -> bool {
        let is_ours = |link: &&Link| link.kind.user == CONFIGURED && link.role != LinkRole::Probe;
        let (Some(link), Some(error)) = (plane.links.get(id).filter(is_ours), error) else {
            return false;
        };
        self.source_refused(plane, link.kind.server, error)
            .is_some()
    }

    /// Takes the current password of a source. Servers that refused the one before are asked again
    /// at once. Links that are up stay, and so do sessions.
    pub(crate) fn handle_password(
        &mut self,
        plane: &mut DataPlane,
        source: PasswordSource,
        password: &str,
    ) {
        let is_old = |source_of: Option<PasswordSource>, old: &str| {
            source_of == Some(source) && old != password
        };
        let mut users = plane.settings.users.iter();
        if users.any(|user| is_old(user.source, &user.password)) {
            for user in &mut Arc::make_mut(&mut plane.settings).users {
                if user.source == Some(source) {
                    password.clone_into(&mut user.password);
                }
            }
        }
        for index in 0..plane.servers.len() {
            let credentials = &mut plane.servers[index].settings.credentials;
            let renews = |credentials: &mut Credentials| credentials.renew(source, password);
            if credentials.as_mut().is_some_and(renews) {
                self.try_new_password(plane, ServerId(index as u16));
            }
        }
    }

    /// Connects the links that a server has refused, and asks whether it accepts the login.
    fn try_new_password(&mut self, plane: &mut DataPlane, server: ServerId) {
        for id in plane.links.ids() {
            let Some(link) = plane.links.get(id) else {
                continue;
            };
            let rests = matches!(
                link.state,
                LinkState::Backoff { .. } | LinkState::Retrying { .. }
            );
            let is_refused = link.handshake_error.as_deref().is_some_and(refuses_login);
            let is_ours = link.kind.server == server && link.kind.user == CONFIGURED;
            if is_ours && is_refused && rests {
                // The health of the server was measured with the old password.
                plane.health(server).forget();
                plane.connect(id);
            }
        }
        self.check_login_now(plane, server);
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

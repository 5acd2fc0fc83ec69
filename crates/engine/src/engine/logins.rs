//! Logins: a user that logs in may have other rights and other scripts than before.

use crate::access::auth::LoginEffect;
use crate::base::handle::{LinkId, SessionId};
use crate::base::settings::Credentials;
use crate::data_plane::completion::access::Login;
use crate::data_plane::ledger::Entry;
use crate::engine::Engine;

impl Engine {
    /// Handles the server's reply to an AUTH.
    pub(crate) fn settle_login(&mut self, link: LinkId, entry: Entry, login: Login) {
        let in_hubs = self.users_in_hubs();
        let effect = self
            .access
            .settle_login(&mut self.plane, link, entry, login, &in_hubs);
        self.note_login(effect);
    }

    /// The entry of a login that a server has accepted within EXEC. `None`: the table is full.
    pub(crate) fn place_of_login(&mut self, id: SessionId, login: Credentials) -> Option<u16> {
        let (in_hubs, mut freed) = (self.users_in_hubs(), Vec::new());
        let plane = &mut self.plane;
        let user = self
            .access
            .place_of_login(plane, id, login, &in_hubs, &mut freed);
        self.note_login(LoginEffect {
            freed,
            renewed: None,
        });
        user
    }

    /// The server has agreed within EXEC that a session is this user. `db`: the database that the
    /// session has selected.
    pub(crate) fn become_user(&mut self, id: SessionId, link: LinkId, (user, db): (u16, u32)) {
        let renewed = self
            .access
            .become_user(&mut self.plane, id, link, (user, db));
        self.note_login(LoginEffect {
            freed: Vec::new(),
            renewed,
        });
    }

    fn users_in_hubs(&self) -> Vec<u16> {
        self.pubsub.hubs.iter().map(|hub| hub.user).collect()
    }

    /// Forgets the servers' answers about the rights of the users of a login.
    fn note_login(&mut self, effect: LoginEffect) {
        for user in effect.freed {
            self.local
                .catalog
                .forget_user(&mut self.plane.learned_commands, user);
        }
        if let Some(user) = effect.renewed {
            self.local.catalog.doubt_user(user);
        }
    }
}

//! Logins: a user that logs in may have other rights and other scripts than before.

use crate::access::auth::{ExecLogin, LoginEffect};
use crate::base::handle::{LinkId, SessionId};
use crate::base::settings::Credentials;
use crate::data_plane::completion::access::{Login, LoginClaim};
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

    /// Handles the result of a login within EXEC, see `Access::settle_exec_login`.
    pub(crate) fn log_in_within_exec(
        &mut self,
        of: (SessionId, LinkId),
        login: (Credentials, LoginClaim),
        state: (bool, u32),
    ) -> ExecLogin {
        let in_hubs = self.users_in_hubs();
        let (outcome, effect) =
            self.access
                .settle_exec_login(&mut self.plane, of, login, state, &in_hubs);
        self.note_login(effect);
        outcome
    }

    fn users_in_hubs(&self) -> Vec<u16> {
        self.pubsub.hubs.iter().map(|hub| hub.user).collect()
    }

    fn note_login(&mut self, effect: LoginEffect) {
        let LoginEffect { freed, renewed } = effect;
        self.local.note_logins(&mut self.plane, &freed, renewed);
    }
}

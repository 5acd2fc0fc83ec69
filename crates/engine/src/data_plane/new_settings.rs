//! New settings while everything runs: the copies that the data plane makes of settings are made
//! again.
//!
//! Most code reads the settings where it needs a value. Those values need no step here.

use std::sync::Arc;

use crate::base::settings::{Settings, User};
use crate::data_plane::ingress::ShapeCache;
use crate::data_plane::session::{Flags, Session};
use crate::data_plane::{DataPlane, direct_classes};

impl DataPlane {
    /// Takes other settings. Their pools are made and ended after that.
    pub(crate) fn take_settings(&mut self, settings: Arc<Settings>) {
        self.direct_classes = direct_classes(&settings);
        // The cached shape holds the class of a command, and the command may be refused now.
        self.shape_cache = ShapeCache::default();
        self.memory
            .set_bound(settings.limits.worker_memory_bytes_max);
        let unanswered_requests_max = settings.limits.link_unanswered_requests_max;
        self.settings = settings;
        self.apply_slow_log();
        self.apply_hot_keys();
        for id in self.links.ids() {
            if let Some(link) = self.links.get_mut(id) {
                link.reply_room.bound_ledger(unanswered_requests_max);
            }
            self.reopen(id);
        }
        // Sessions that wait for a shared link are woken by the tick.
        self.next_pinned();
        self.next_streaming();
    }

    /// Takes the configured users. Sessions of removed users are closed; a new password leaves
    /// sessions alone. Returns the users in an order in which each keeps its number.
    pub(crate) fn take_users(&mut self, new: &[User]) -> Vec<User> {
        let users = renewed(&self.settings.users, new);
        for (index, (old, user)) in self.settings.users.clone().iter().zip(&users).enumerate() {
            if old.name == user.name || old.is_removed() {
                continue;
            }
            let is_its = |session: &Session| {
                usize::from(session.user) == index && !session.state.any(Flags::UNAUTHENTICATED)
            };
            let sessions = self.sessions.iter();
            let its: Vec<_> = sessions
                .filter(|(_, session)| is_its(session))
                .map(|(id, _)| id)
                .collect();
            for id in its {
                let reason = format!(
                    "a reload of the configuration removed its user {}",
                    old.name
                );
                self.close_for(id, reason);
            }
        }
        users
    }
}

/// The users that stay, at their places, and the new ones at free places or at the end. Sessions
/// know their user by its place. A place whose user was removed has the empty name, by which no
/// client can log in.
fn renewed(old: &[User], new: &[User]) -> Vec<User> {
    let stays = |user: &User| new.iter().find(|other| other.name == user.name);
    let mut users: Vec<User> = old
        .iter()
        .map(|user| stays(user).cloned().unwrap_or_else(User::removed))
        .collect();
    let is_new = |user: &&User| old.iter().all(|other| other.name != user.name);
    for user in new.iter().filter(is_new) {
        match users.iter_mut().find(|place| place.is_removed()) {
            Some(place) => place.clone_from(user),
            None => users.push(user.clone()),
        }
    }
    users
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(texts: &[&str]) -> Vec<User> {
        let user = |text: &&str| {
            let (name, password) = text.split_once(':').expect("a name and a password");
            User {
                name: name.to_owned(),
                password: password.to_owned(),
                source: None,
            }
        };
        texts.iter().map(user).collect()
    }

    /// A session knows its user by its place, so a user keeps its place.
    #[test]
    fn user_keeps_its_place() {
        let old = users(&["default:a", "ann:b", "bob:c"]);
        let new = users(&["bob:c", "eve:d", "default:new"]);
        let renewed_users = renewed(&old, &new);
        assert_eq!(renewed_users, users(&["default:new", "eve:d", "bob:c"]));
        let fewer = renewed(&renewed_users, &users(&["bob:c"]));
        assert_eq!(fewer, users(&[":", ":", "bob:c"]));
        assert_eq!(
            renewed(&fewer, &users(&["bob:c", "x:1", "y:2", "z:3"])),
            users(&["x:1", "y:2", "bob:c", "z:3"])
        );
    }
}

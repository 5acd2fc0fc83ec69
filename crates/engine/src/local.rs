//! Commands about the session itself or about respool: answered here, in Redis's words.

pub(crate) mod acl;
pub(crate) mod catalog;
pub(crate) mod cluster_facade;
pub(crate) mod hello;
pub(crate) mod info;
pub(crate) mod own_command;
pub(crate) mod report_command;
pub(crate) mod scripts;
pub(crate) mod session_commands;
pub(crate) mod settle;
pub(crate) mod unknown;

use crate::data_plane::DataPlane;
use crate::data_plane::link::LinkRole;
use crate::data_plane::link_loss::LinkDown;
use crate::local::catalog::CommandCatalog;
use crate::local::scripts::Scripts;
use crate::routing::pool::ServerId;

/// The state of respool's own commands, and the learned commands and scripts.
#[derive(Default)]
pub(crate) struct Local {
    pub(crate) scripts: Scripts,
    pub(crate) catalog: CommandCatalog,
}

impl Local {
    /// Forgets the servers' answers about the rights of users whose numbers are free, and of a user
    /// that has logged in again.
    pub(crate) fn note_logins(
        &mut self,
        plane: &mut DataPlane,
        freed: &[u16],
        renewed: Option<u16>,
    ) {
        for user in freed {
            self.catalog.forget_user(&mut plane.learned_commands, *user);
        }
        if let Some(user) = renewed {
            self.catalog.invalidate_user(user);
        }
    }

    /// A link is lost: its questions are not answered, and another server may come back in the
    /// place of its server.
    pub(crate) fn link_down(&mut self, plane: &mut DataPlane, down: &LinkDown) {
        // A failed attempt says nothing about the server's replies.
        match down.was_up {
            true => self.catalog.lose_questions(down.link, plane.now),
            false => self.catalog.leave_questions(down.link),
        }
        if down.was_up && down.role == LinkRole::Shared {
            self.invalidate_server(plane, down.server);
        }
        if !down.keeps_fragment {
            // Behind `take_down`, which decides the requests that stay.
            self.load_again(plane, down.link);
        }
    }

    /// Drops the answers of a server after another one got its entry.
    pub(crate) fn forget_server(&mut self, plane: &mut DataPlane, server: ServerId) {
        self.catalog
            .forget_server(&mut plane.learned_commands, server);
        self.scripts.forget_server(server);
    }

    /// Another server may be in the place of this one, or will be: facts about it may be old.
    pub(crate) fn invalidate_server(&mut self, plane: &mut DataPlane, server: ServerId) {
        self.catalog
            .invalidate_server(&mut plane.learned_commands, server);
        self.note_scripts_lost(plane, server);
    }
}

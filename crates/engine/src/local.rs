//! Commands about the session itself or about respool: answered here, in Redis's words.

pub(crate) mod acl;
pub(crate) mod catalog;
pub(crate) mod cluster_facade;
pub(crate) mod info;
pub(crate) mod scripts;
pub(crate) mod unknown;

use respool_protocol::commands::{CommandId, id};
use respool_protocol::encode::{self, Version};
use respool_protocol::value::Value;

use crate::base::handle::SessionId;
use crate::base::limits::NAME_BYTES_MAX;
use crate::data_plane::DataPlane;
use crate::data_plane::hello::{BAD_NAME, LONG_NAME, is_plain};
use crate::data_plane::link::LinkRole;
use crate::data_plane::link_loss::LinkDown;
use crate::local::catalog::CommandCatalog;
use crate::local::scripts::Scripts;

/// The state of respool's own commands, and the learned commands and scripts.
#[derive(Default)]
pub(crate) struct Local {
    pub(crate) scripts: Scripts,
    pub(crate) catalog: CommandCatalog,
}

/// Appends a module of the server as HELLO shows it in this version of the protocol.
pub(crate) fn append_module(out: &mut Vec<u8>, version: Version, module: &Value) {
    let Value::List(fields) = module else {
        return append_value(out, module);
    };
    encode::map(out, version, fields.len() / 2);
    fields.iter().for_each(|field| append_value(out, field));
}

fn append_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Bulk(text) | Value::Line(text) | Value::Error(text) => encode::bulk(out, text),
        Value::Integer(number) => encode::integer(out, *number),
        Value::Null => encode::bulk(out, b""),
        Value::List(values) => {
            encode::array(out, values.len());
            values.iter().for_each(|value| append_value(out, value));
        }
    }
}

impl Local {
    /// A link is lost: its questions are not answered, and another server may come back in the
    /// place of its server.
    pub(crate) fn link_down(&mut self, plane: &mut DataPlane, down: &LinkDown) {
        // A failed attempt says nothing about the server's replies.
        match down.was_up {
            true => self.catalog.lose_questions(down.link, plane.now),
            false => self.catalog.leave_questions(down.link),
        }
        if down.was_up && down.role == LinkRole::Shared {
            self.catalog
                .doubt_server(&mut plane.learned_commands, down.server);
            self.note_scripts_lost(plane, down.server);
        }
    }

    /// Whether a server without Cluster accepts READONLY or READWRITE. Valkey 8 and newer accept
    /// both, for clients that can be redirected to a primary. Redis up to 6.2 accepts READWRITE.
    pub(crate) fn takes_without_cluster(
        &self,
        plane: &DataPlane,
        session_id: SessionId,
        id: CommandId,
    ) -> bool {
        match plane.server_version_of(session_id) {
            Some(("valkey", (major, _))) => major >= 8,
            _ => id == id::READWRITE && plane.is_before_7(session_id),
        }
    }

    pub(crate) fn set_name(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        name: &[u8],
    ) -> Result<(), &'static [u8]> {
        if !is_plain(name) {
            return Err(BAD_NAME);
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(LONG_NAME);
        }
        if let Some(session) = plane.sessions.get_mut(id) {
            session.rare().name = name.to_vec();
        }
        plane.weigh(id);
        Ok(())
    }
}

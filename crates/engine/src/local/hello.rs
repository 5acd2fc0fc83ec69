//! HELLO: the steps of the session, and the reply.

use respool_protocol::encode::{self, Version};
use respool_protocol::value::Value;

use crate::base::handle::SessionId;
use crate::data_plane::DataPlane;
use crate::data_plane::database_change::DatabaseChange;
use crate::data_plane::hello::HelloArgs;
use crate::data_plane::ingress::{Dispatched, Request};
use crate::data_plane::session::Flags;
use crate::local::Local;

impl Local {
    /// HELLO. `log_in`: the login that it may have. `Err`: the server is asked, the session waits,
    /// or is refused. `restrict`: allows a subscriber the commands of its new version.
    pub(crate) fn hello(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
        log_in: impl FnOnce(&mut DataPlane, &HelloArgs<'_>, Version) -> Result<(), Dispatched>,
        restrict: impl FnOnce(&mut DataPlane),
    ) -> Dispatched {
        let Some(session) = plane.sessions.get(id) else {
            return Dispatched::Done;
        };
        let hello = match HelloArgs::read(request) {
            Ok(hello) => hello,
            Err(text) => return plane.answer_error(id, &text),
        };
        let (db, version) = (session.db, hello.version.unwrap_or(session.version));
        if let Err(dispatched) = log_in(plane, &hello, version) {
            return dispatched;
        }
        if let Some(dispatched) = self.refuse_without_login(plane, id) {
            return dispatched;
        }
        match plane.change_database(id, version, db) {
            DatabaseChange::Done => restrict(plane),
            DatabaseChange::Wait => return Dispatched::Wait,
            DatabaseChange::Failed(reply) => return plane.answer_reply(id, &reply),
            DatabaseChange::Away(_) => return plane.close_at_hello(id),
        }
        self.answer_hello(plane, id, hello.name)
    }

    /// Refuses a HELLO of a session that is not logged in. `None`: it is.
    fn refuse_without_login(&self, plane: &mut DataPlane, id: SessionId) -> Option<Dispatched> {
        let session = plane.sessions.get(id)?;
        if !session.state.any(Flags::UNAUTHENTICATED) {
            return None;
        }
        let proto = match plane.is_redis_before(id, (7, 2)) {
            true => "",
            false => "<proto> ",
        };
        let text = format!(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
             HELLO {proto}AUTH <user> <pass> option can be used to authenticate the client and \
             select the RESP protocol version at the same time"
        );
        Some(plane.answer_error(id, text.as_bytes()))
    }

    /// Answers a HELLO after the session has changed to its version. `name`: the new name.
    fn answer_hello(
        &mut self,
        plane: &mut DataPlane,
        session_id: SessionId,
        name: Option<&[u8]>,
    ) -> Dispatched {
        let Some(identity) = plane.identity_of(session_id).cloned() else {
            return plane.wait_for_identity(session_id);
        };
        if let Some(name) = name {
            let set = self.set_name(plane, session_id, name);
            debug_assert!(set.is_ok(), "HelloArgs::read has checked the name");
        }
        let mode = match plane.shows_a_node(session_id) {
            true => "cluster",
            false => "standalone",
        };
        plane.answer_with(session_id, |out, session| {
            let version = session.version;
            encode::map(out, version, 7);
            for (field, text) in [("server", &identity.server), ("version", &identity.version)] {
                encode::bulk(out, field.as_bytes());
                encode::bulk(out, text.as_bytes());
            }
            encode::bulk(out, b"proto");
            encode::integer(out, version.number());
            encode::bulk(out, b"id");
            encode::integer(out, session.id as i64);
            for (field, text) in [("mode", mode), ("role", "master")] {
                encode::bulk(out, field.as_bytes());
                encode::bulk(out, text.as_bytes());
            }
            encode::bulk(out, b"modules");
            encode::array(out, identity.modules.len());
            for module in &identity.modules {
                append_module(out, version, module);
            }
        })
    }
}

/// Appends a module of the server as HELLO shows it in this version of the protocol.
fn append_module(out: &mut Vec<u8>, version: Version, module: &Value) {
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

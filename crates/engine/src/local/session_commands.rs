//! Commands about the session itself: its name, its library, the replies that it wants, and where it
//! reads.

use respool_protocol::commands::id;

use crate::base::handle::SessionId;
use crate::base::limits::NAME_BYTES_MAX;
use crate::data_plane::DataPlane;
use crate::data_plane::handshake::NO_CLUSTER;
use crate::data_plane::hello::{BAD_NAME, LONG_NAME, is_plain};
use crate::data_plane::ingress::{Dispatched, OK, Request};
use crate::local::Local;

impl Local {
    /// READONLY, READWRITE and ASKING, for a client that sees a single server without replicas.
    /// Only a node of a Cluster acts on them.
    pub(crate) fn answer_reading_mode(
        &self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        // Valkey 8 and newer accept READONLY and READWRITE, for clients that can be redirected to a
        // primary. Redis up to 6.2 accepts READWRITE.
        let is_accepted = match plane.server_version_of(id) {
            _ if request.id == id::ASKING => false,
            Some(("valkey", (major, _))) => major >= 8,
            _ => request.id == id::READWRITE && plane.is_before_7(id),
        };
        match is_accepted {
            true => plane.answer_reply(id, OK),
            false => plane.answer_error(id, NO_CLUSTER),
        }
    }

    /// CLIENT SETNAME.
    pub(crate) fn client_setname(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> Result<(), Dispatched> {
        self.set_name(plane, id, request.arg(2))
            .map_err(|text| plane.answer_error(id, text))
    }

    /// Gives a session a name. `Err`: the error text.
    pub(super) fn set_name(
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

    /// CLIENT REPLY. The mode concerns only the connection between client and respool.
    pub(crate) fn client_reply(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        let mode = request.arg(2).to_ascii_lowercase();
        let Some(session) = plane.sessions.get_mut(id) else {
            return Dispatched::Done;
        };
        match &mode[..] {
            b"on" => {
                session.flags.reply_on();
                plane.answer_reply(id, OK)
            }
            b"off" => {
                session.flags.reply_off();
                Dispatched::Done
            }
            b"skip" => {
                session.flags.skip_reply();
                Dispatched::Done
            }
            _ => plane.answer_error(id, b"ERR syntax error"),
        }
    }

    /// CLIENT SETINFO.
    pub(crate) fn set_info(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        let (attribute, value) = (request.arg(2), request.arg(3));
        let is_name = attribute.eq_ignore_ascii_case(b"lib-name");
        if !is_name && !attribute.eq_ignore_ascii_case(b"lib-ver") {
            let text = [b"ERR Unrecognized option '", attribute, b"'"].concat();
            return plane.answer_error(id, &text);
        }
        if !is_plain(value) {
            // The error names the attribute as the client wrote it.
            let why = b" cannot contain spaces, newlines or special characters.";
            return plane.answer_error(id, &[b"ERR ", attribute, why].concat());
        }
        if value.len() > NAME_BYTES_MAX {
            return plane.answer_error(id, LONG_NAME);
        }
        if let Some(session) = plane.sessions.get_mut(id) {
            let rare = session.rare();
            match is_name {
                true => rare.lib_name = value.to_vec(),
                false => rare.lib_ver = value.to_vec(),
            }
        }
        plane.weigh(id);
        plane.answer_reply(id, OK)
    }
}

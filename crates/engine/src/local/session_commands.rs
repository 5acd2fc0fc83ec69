//! Commands about the session itself: its database, its name, its library, the replies that it
//! wants, and where it reads.

use std::borrow::Cow;

use respool_protocol::commands::id;
use respool_protocol::{encode, number};

use crate::base::error_text::unknown_subcommand_before_7;
use crate::base::handle::SessionId;
use crate::base::limits::NAME_BYTES_MAX;
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::local::LocalCompletion;
use crate::data_plane::database_change::DatabaseChange;
use crate::data_plane::handshake::NO_CLUSTER;
use crate::data_plane::hello::{BAD_NAME, LONG_NAME, is_plain};
use crate::data_plane::ingress::{Dispatched, OK, Request};
use crate::local::Local;
use crate::local::own_command::SessionCommand;

/// A single server's error to a database that it does not have.
const NO_DB: &[u8] = b"ERR DB index is out of range";
/// The error of a Cluster's node to any database but the first one.
const OF_NODE: &[u8] = b"-ERR SELECT is not allowed in cluster mode";

impl Local {
    /// Answers a command about the session itself.
    pub(crate) fn answer_session(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        command: SessionCommand,
        request: &Request<'_>,
    ) -> Dispatched {
        match command {
            SessionCommand::Quit => {
                plane.answer_reply(id, OK);
                plane.close_when_answered(id);
                Dispatched::Done
            }
            SessionCommand::Select => self.select(plane, id, request),
            SessionCommand::ClientId => plane.answer_in_order(id, |out, session| {
                encode::integer(out, session.id as i64);
            }),
            SessionCommand::ClientGetname => {
                plane.answer_in_order(id, |out, session| match &session.rare {
                    Some(rare) if !rare.client.name.is_empty() => {
                        encode::bulk(out, &rare.client.name)
                    }
                    _ => encode::null(out, session.version),
                })
            }
            SessionCommand::ClientSetname => self.client_setname(plane, id, request),
            SessionCommand::ClientSetinfo => self.set_info(plane, id, request),
            SessionCommand::ClientReply => self.client_reply(plane, id, request),
            // respool makes no use of a client's capabilities, such as redirects.
            SessionCommand::ClientCapa => plane.answer_reply(id, OK),
            SessionCommand::ReadingMode => self.answer_reading_mode(plane, id, request),
            // Newer servers have refused it before.
            SessionCommand::UnknownSubcommand => {
                let text = unknown_subcommand_before_7(request.arg(0), request.arg(1));
                plane.answer_error(id, &text)
            }
        }
    }

    fn select(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        let db = match database_asked(request.arg(1)) {
            Ok(db) => db,
            Err(text) => return plane.answer_error(id, text),
        };
        let Some(session) = plane.sessions.get(id) else {
            return Dispatched::Done;
        };
        let version = session.version;
        if session.pins.bind() {
            let completion = Some(Completion::Local(LocalCompletion::Select(db)));
            let dispatched = plane.dispatch_on_link(id, request.bytes, false, completion);
            plane.hold_until_caught_up(id);
            return dispatched;
        }
        match plane.change_database(id, version, db) {
            DatabaseChange::Done => plane.answer_reply(id, OK),
            DatabaseChange::Wait => Dispatched::Wait,
            DatabaseChange::Failed(reply) | DatabaseChange::Away(reply) => {
                let reply = refusal_of_database(plane, id, &reply).into_owned();
                plane.answer_reply(id, &reply)
            }
        }
    }

    /// READONLY, READWRITE and ASKING, for a client that sees a single server without replicas.
    /// Only a node of a Cluster acts on them.
    fn answer_reading_mode(
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
    fn client_setname(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        match self.set_name(plane, id, request.arg(2)) {
            Ok(()) => plane.answer_in_order(id, |out, _| out.extend_from_slice(OK)),
            Err(text) => plane.answer_error(id, text),
        }
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
            session.rare().client.name = name.into();
        }
        plane.weigh(id);
        Ok(())
    }

    /// CLIENT REPLY. The mode concerns only the connection between client and respool.
    fn client_reply(
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
                session.state.reply_on();
                plane.answer_reply(id, OK)
            }
            b"off" => {
                session.state.reply_off();
                Dispatched::Done
            }
            b"skip" => {
                session.state.skip_reply();
                Dispatched::Done
            }
            _ => plane.answer_error(id, b"ERR syntax error"),
        }
    }

    /// CLIENT SETINFO.
    fn set_info(
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
            let client = &mut session.rare().client;
            match is_name {
                true => client.lib_name = value.into(),
                false => client.lib_ver = value.into(),
            }
        }
        plane.weigh(id);
        plane.answer_reply(id, OK)
    }
}

/// The database that a SELECT names. `Err`: the error text.
fn database_asked(index: &[u8]) -> Result<u32, &'static [u8]> {
    let Some(index) = number::parse(index) else {
        return Err(b"ERR value is not an integer or out of range");
    };
    if i32::try_from(index).is_err() {
        return Err(b"ERR value is out of range, value must between -2147483648 and 2147483647");
    }
    u32::try_from(index).map_err(|_| NO_DB)
}

/// The reply to a SELECT as the session may see it: a single server does not mention a Cluster.
pub(crate) fn refusal_of_database<'a>(
    plane: &DataPlane,
    id: SessionId,
    reply: &'a [u8],
) -> Cow<'a, [u8]> {
    if !reply.starts_with(OF_NODE) || !plane.hides_nodes(id) {
        return reply.into();
    }
    let mut refusal = Vec::new();
    encode::error(&mut refusal, NO_DB);
    refusal.into()
}

#[cfg(test)]
mod tests {
    use respool_protocol::request::RequestScanner;

    use super::*;
    use crate::data_plane::test_plane::{plane_with_link, replies_of, request_of, session_of};
    use crate::local::own_command::OwnCommand;

    /// Answers requests of a session one after the other.
    fn answer(plane: &mut DataPlane, id: SessionId, lines: &[&str]) -> Dispatched {
        let mut local = Local::default();
        let mut dispatched = Dispatched::Done;
        for line in lines {
            let kept = request_of(line);
            let mut scanner = RequestScanner::default();
            let request = kept.read(&mut scanner);
            let Some(OwnCommand::Session(command)) = OwnCommand::of(request.id) else {
                panic!("{line} is not about the session");
            };
            dispatched = local.answer_session(plane, id, command, &request);
        }
        dispatched
    }

    /// Commands about the session need no server.
    #[test]
    fn session_commands_are_answered_at_once() {
        let no_cluster = "-ERR This instance has cluster support disabled\r\n";
        for (lines, replies) in [
            (&["CLIENT GETNAME"][..], "$-1\r\n"),
            (
                &["CLIENT SETNAME x", "CLIENT GETNAME"],
                "+OK\r\n$1\r\nx\r\n",
            ),
            (
                &["CLIENT SETINFO LIB-NAME x", "CLIENT SETINFO lib-ver 1"],
                "+OK\r\n+OK\r\n",
            ),
            (
                &["CLIENT SETINFO lib x"],
                "-ERR Unrecognized option 'lib'\r\n",
            ),
            (
                &[
                    "CLIENT REPLY OFF",
                    "CLIENT CAPA redirect",
                    "CLIENT REPLY ON",
                ],
                "+OK\r\n",
            ),
            (&["CLIENT REPLY NEVER"], "-ERR syntax error\r\n"),
            (&["READONLY"], no_cluster),
            (&["ASKING"], no_cluster),
            (&["SELECT 0"], "+OK\r\n"),
            (&["SELECT -1"], "-ERR DB index is out of range\r\n"),
        ] {
            let (mut plane, _) = plane_with_link();
            let id = session_of(&mut plane);
            assert_eq!(answer(&mut plane, id, lines), Dispatched::Done);
            assert_eq!(replies_of(&plane, id), replies, "{lines:?}");
        }
    }

    /// Another database is another link. SELECT waits until that link is up.
    #[test]
    fn select_waits_for_the_link_of_its_database() {
        let (mut plane, first) = plane_with_link();
        let id = session_of(&mut plane);
        assert_eq!(answer(&mut plane, id, &["SELECT 1"]), Dispatched::Wait);
        assert_eq!(replies_of(&plane, id), "");
        let links = plane.links.iter().map(|(link, _)| link);
        let other = links.filter(|link| *link != first).last();
        plane.mark_up(other.expect("a link was opened"));
        assert_eq!(answer(&mut plane, id, &["SELECT 1"]), Dispatched::Done);
        assert_eq!(replies_of(&plane, id), "+OK\r\n");
        let session = plane.sessions.get(id).expect("the session is there");
        assert_eq!((session.db, Some(session.link)), (1, other));
    }

    /// An index that no server has is refused in Redis's words.
    #[test]
    fn database_is_a_small_number() {
        assert_eq!(database_asked(b"0"), Ok(0));
        assert_eq!(database_asked(b"2147483647"), Ok(i32::MAX as u32));
        assert_eq!(database_asked(b"-1"), Err(NO_DB));
        for (index, beginning) in [
            (&b"one"[..], &b"ERR value is not an integer"[..]),
            (b"2147483648", b"ERR value is out of range, value must"),
        ] {
            let text = database_asked(index).unwrap_err();
            assert!(text.starts_with(beginning));
        }
    }
}

//! A session's change to another database or version of the protocol. That is another link, which
//! has to prove that its server agrees.

use respool_protocol::encode::{self, Version};

use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::ingress::Blocked;
use crate::data_plane::link::{LinkKind, LinkState};

/// The outcome of a session's change to another database or version of the protocol.
pub(crate) enum DatabaseChange {
    Done,
    Wait,
    /// With the error reply.
    Failed(Vec<u8>),
    /// No server can be reached; with the error reply.
    Away(Vec<u8>),
}

impl From<Blocked> for DatabaseChange {
    fn from(blocked: Blocked) -> DatabaseChange {
        match blocked {
            Blocked::Wait => DatabaseChange::Wait,
            Blocked::Refused(reply) => DatabaseChange::Failed(reply),
        }
    }
}

impl DataPlane {
    /// Gives a session another database or protocol version.
    pub(crate) fn change_database(
        &mut self,
        id: SessionId,
        version: Version,
        db: u32,
    ) -> DatabaseChange {
        let Some(session) = self.sessions.get(id) else {
            return DatabaseChange::Done;
        };
        if (session.version, session.db) == (version, db) {
            return DatabaseChange::Done;
        }
        let pinned = session.pins.bind();
        if let Some(node) = self.pools.node_among(session.pool.into())
            && !pinned
        {
            // The node with the fewest databases decides whether the index is valid.
            self.switch_server(id, node);
        }
        if self.hold_until_caught_up(id) {
            return DatabaseChange::Wait;
        }
        match pinned {
            true => self.change_own_link(id, version),
            false => self.change_shared_link(id, version, db),
        }
    }

    /// The link of a pinned session changes with the session.
    fn change_own_link(&mut self, id: SessionId, version: Version) -> DatabaseChange {
        let mut request = Vec::new();
        encode::request(&mut request, &["HELLO", &version.number().to_string()]);
        let link = match self.ask_for_ourselves(id, &request, Completion::Pass) {
            Ok(link) => link,
            Err(blocked) => return blocked.into(),
        };
        if let Some(link) = self.links.get_mut(link) {
            link.kind.version = version;
        }
        if let Some(session) = self.sessions.get_mut(id) {
            session.version = version;
        }
        DatabaseChange::Done
    }

    fn change_shared_link(&mut self, id: SessionId, version: Version, db: u32) -> DatabaseChange {
        let Some(session) = self.sessions.get(id) else {
            return DatabaseChange::Done;
        };
        let kind = LinkKind {
            version,
            db,
            ..self.kind_with_lane(session)
        };
        let link = match self.shared_link_for(id, kind) {
            Ok(link) => link,
            Err(blocked) => return blocked.into(),
        };
        match self.links.get(link).map(|link| &link.state) {
            None => DatabaseChange::Wait,
            Some(LinkState::Up) => {
                self.attach(id, link);
                if let Some(session) = self.sessions.get_mut(id) {
                    session.version = version;
                    session.db = db;
                }
                DatabaseChange::Done
            }
            Some(LinkState::Backoff { .. }) => self.change_refused(id, link),
            Some(
                LinkState::Down
                | LinkState::Lost
                | LinkState::Retrying { .. }
                | LinkState::Connecting { .. }
                | LinkState::Handshaking { .. },
            ) => match self.wait_until_up(id, link) {
                Ok(()) => DatabaseChange::Wait,
                Err(reply) => DatabaseChange::Away(reply),
            },
        }
    }

    /// The link for the change is in back-off.
    fn change_refused(&self, id: SessionId, link: LinkId) -> DatabaseChange {
        let error = self
            .links
            .get(link)
            .and_then(|link| link.handshake_error.as_deref());
        match error {
            Some(text) if answers_client(text) => {
                let mut reply = Vec::new();
                encode::error(&mut reply, text);
                DatabaseChange::Failed(reply)
            }
            Some(_) => DatabaseChange::Failed(self.no_link_reply(link, self.server_down_error(id))),
            None => DatabaseChange::Away(self.no_link_reply(link, self.server_down_error(id))),
        }
    }
}

/// Whether a server's error to respool's SELECT or HELLO is its reply to the client's.
fn answers_client(error: &[u8]) -> bool {
    let beginnings: [&[u8]; 4] = [b"ERR DB index", b"ERR SELECT", b"NOPROTO", b"NOAUTH"];
    beginnings.iter().any(|start| error.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::answers_client;

    /// An error about the database or version answers the client. An error about respool's own
    /// login does not.
    #[test]
    fn error_of_select_answers_the_client() {
        for (error, answers) in [
            (&b"ERR DB index is out of range"[..], true),
            (b"ERR SELECT is not allowed in cluster mode", true),
            (b"NOPROTO unsupported protocol version", true),
            (b"NOAUTH Authentication required.", true),
            (b"WRONGPASS invalid username-password pair", false),
            (b"LOADING Redis is loading the dataset in memory", false),
        ] {
            assert_eq!(answers_client(error), answers);
        }
    }
}

//! The server at which a session reads, in a pool with replicas.
//!
//! The table of the pool (`routing/replica_table.rs`) says which server has the session's read
//! share. A session that reads its own writes reads at the owner for a while after each write.

use respool_protocol::commands::{Command, CommandFlags, CommandId, id};

use crate::base::error_text::NO_READER;
use crate::base::handle::SessionId;
use crate::base::settings::ReadPolicy;
use crate::data_plane::DataPlane;
use crate::data_plane::ingress::{Dispatched, OK, Request};
use crate::data_plane::link::{Link, LinkKind, LinkState};
use crate::data_plane::reachability::SILENT_MS;
use crate::data_plane::session::Flags;
use crate::routing::next_server::NextServer;
use crate::routing::pool::ServerId;
use crate::routing::replica_table::NoReader;

/// If a link to a replica owes replies and brings nothing for this long, it is closed, and its
/// reads are sent elsewhere, milliseconds. The time is a third of `request-timeout-ms`, from
/// [`SILENT_MS`] to this; without a timeout it is this.
pub(crate) const SILENCE_MS_MAX: u64 = 1_000;

/// The reads of a session at the owner after its own writes.
#[derive(Debug, Default)]
pub(crate) struct OwnWriteReads {
    /// The session has written. Its next read without a request in flight clears this.
    written: bool,
    /// The end of the time in which the session reads at the owner, milliseconds.
    until_ms: Option<u32>,
}

impl DataPlane {
    /// Switches a session from a replica to the owner, if its request is not a read. `command`:
    /// `None` if the table does not have the command.
    pub(crate) fn switch_from_replica(&mut self, id: SessionId, command: Option<&Command>) {
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        let of = self.server(session.server).replica_of;
        let is_read = command.is_some_and(|command| command.replica);
        if let Some(owner) = of
            && !session.pins.bind()
            && (!is_read || session.state.any(Flags::IN_MULTI))
        {
            let owner = match self.server(owner).gone {
                true => self.pools.default_server_of(session.pool.into()),
                false => owner,
            };
            self.switch_server(id, owner);
        }
    }

    /// Switches a session to the owner of a request's keys, or to the server at which the session
    /// reads them. `may_read`: that server may be a replica.
    pub(crate) fn switch_to_reader(
        &mut self,
        id: SessionId,
        owner: ServerId,
        command: &Command,
        may_read: bool,
    ) -> Result<(), NoReader> {
        let Some(session) = self.sessions.get(id) else {
            return Ok(());
        };
        let kind = self.kind_of(session);
        let reader = self.server_in_reach(id, owner, command, kind);
        let server = if may_read { reader? } else { owner };
        self.switch_server(id, server);
        Ok(())
    }

    /// Switches a session as [`DataPlane::switch_to_reader`] does. Returns the outcome if no server
    /// may be read.
    pub(crate) fn switch_or_refuse(
        &mut self,
        id: SessionId,
        owner: ServerId,
        request: &Request<'_>,
        may_read: bool,
    ) -> Option<Dispatched> {
        match self.switch_to_reader(id, owner, request.command, may_read) {
            Ok(()) => None,
            Err(NoReader) => Some(self.answer_error(id, NO_READER)),
        }
    }

    /// The server for a request of a session. `owner`: the owner of its keys.
    #[inline]
    pub(crate) fn server_for(
        &mut self,
        id: SessionId,
        owner: ServerId,
        command: &Command,
    ) -> Result<ServerId, NoReader> {
        let Some(session) = self.sessions.get(id) else {
            return Ok(owner);
        };
        match &self.pool_of(owner).readers {
            None => Ok(owner),
            Some(_) if session.state.any(Flags::OWN_READ_MODE) => {
                self.server_as_wanted(id, owner, command)
            }
            Some(readers) if command.replica => readers.instead_of(owner, id),
            Some(_) => Ok(owner),
        }
    }

    /// The server for a request of a session that reads its own writes.
    #[cold]
    fn server_as_wanted(
        &mut self,
        id: SessionId,
        owner: ServerId,
        command: &Command,
    ) -> Result<ServerId, NoReader> {
        let now_ms = self.now.wrapping_ms();
        let Some(session) = self.sessions.get_mut(id) else {
            return Ok(owner);
        };
        let is_caught_up = session.is_caught_up();
        let answered_ms = session.answered_at.wrapping_ms();
        let own_writes_ms = self.pools.own_writes_ms(usize::from(session.pool));
        let reading = &mut session.rare().reading;
        reading.written |= may_write(command);
        let pool = usize::from(self.servers[usize::from(owner.0)].pool);
        let Some(readers) = &self.pools[pool].readers else {
            return Ok(owner);
        };
        if !command.replica || readers.settings.own_writes_ms == 0 {
            return Ok(owner);
        }
        if reading.written && is_caught_up {
            // The last write was answered then at the latest.
            reading.written = false;
            reading.until_ms = Some(answered_ms.wrapping_add(own_writes_ms));
        }
        let is_over = |until_ms: u32| (until_ms.wrapping_sub(now_ms) as i32) <= 0;
        if reading.written || !reading.until_ms.is_none_or(is_over) {
            return Ok(owner);
        }
        reading.until_ms = None;
        readers.instead_of(owner, id)
    }

    /// The server for a request on the slow path. If a link of this kind to the replica is in
    /// back-off (the replica has too many links, or does not know the user), it is the owner, if
    /// the policy lets the owner answer. The hot path never meets such a link, because it does not
    /// accept.
    pub(crate) fn server_in_reach(
        &mut self,
        id: SessionId,
        owner: ServerId,
        command: &Command,
        kind: LinkKind,
    ) -> Result<ServerId, NoReader> {
        if self.tracks_several(id) {
            // A replica would not track the session's reads.
            return Ok(owner);
        }
        let server = self.server_for(id, owner, command)?;
        if server != owner && self.may_be_read(owner) {
            let link = self.link_index.shared(&kind.at(server));
            let rests = |link: &Link| matches!(link.state, LinkState::Backoff { .. });
            if link
                .and_then(|link| self.links.get(link))
                .is_some_and(rests)
            {
                return Ok(owner);
            }
        }
        Ok(server)
    }

    /// The server for a read that another one has refused or lost: the owner, if it can be reached
    /// and the policy lets it answer.
    pub(crate) fn server_at_last(
        &mut self,
        id: SessionId,
        owner: ServerId,
        command: &Command,
        kind: LinkKind,
    ) -> Result<ServerId, NoReader> {
        match self.may_be_read(owner) && !self.is_lost(owner) {
            true => Ok(owner),
            false => self.server_in_reach(id, owner, command, kind),
        }
    }

    /// The server that gets a refused request of a session now. `sent_on`: the kind of the link
    /// that carried it. `slot`: the slot of its first key. `new_primary`: the server that has taken
    /// over from the owner behind that link.
    pub(crate) fn next_server_of(
        &mut self,
        session: SessionId,
        (sent_on, command): (LinkKind, Option<&Command>),
        slot: Option<u16>,
        next: NextServer,
        new_primary: Option<ServerId>,
    ) -> Result<ServerId, NoReader> {
        let pool = usize::from(self.server(sent_on.server).pool);
        let owner = match (next, slot, self.pools[pool].cluster()) {
            (NextServer::Importer(server) | NextServer::Named(server), ..) => return Ok(server),
            (NextServer::Owner, Some(slot), Some(cluster)) => cluster.owner_of_slot(slot),
            (NextServer::Owner, ..) => {
                new_primary.unwrap_or_else(|| self.owner_behind(sent_on.server))
            }
        };
        match command {
            Some(command) => self.server_at_last(session, owner, command, sent_on),
            None => Ok(owner),
        }
    }

    /// Whether the policy lets an owner answer if no replica does.
    pub(crate) fn may_be_read(&self, owner: ServerId) -> bool {
        let readers = self.pool_of(owner).readers.as_deref();
        readers.is_none_or(|readers| readers.settings.policy != ReadPolicy::Replica)
    }

    /// The owner of a replica; the server itself if it is no replica.
    pub(crate) fn owner_behind(&self, server: ServerId) -> ServerId {
        self.server(server).replica_of.unwrap_or(server)
    }

    /// Notes a request of a session if it may write, even where the table names no key.
    pub(crate) fn note_command(&mut self, id: SessionId, command: CommandId, argc: usize) {
        // A subcommand that the table does not have may be that of a newer server.
        let is_unknown = command.get().is_container() && argc > 1;
        if command == id::EXEC || is_unknown || may_write(command.get()) {
            self.note_write(id);
        }
    }

    /// A session may have written.
    pub(crate) fn note_write(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(id)
            && session.state.any(Flags::OWN_READ_MODE)
        {
            session.rare().reading.written = true;
        }
    }

    /// Sets a session's way of reading to that of a new session.
    pub(crate) fn reset_reading(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.state.remove(Flags::OWN_READ_MODE);
            if self.pools.all_read_own_writes(session.pool.into()) {
                session.state |= Flags::OWN_READ_MODE;
            }
        }
    }

    /// Answers READONLY and READWRITE in a pool with replicas: they say whether the session reads
    /// its own writes.
    pub(crate) fn set_reading(&mut self, id: SessionId, command: CommandId) -> Dispatched {
        if let Some(session) = self.sessions.get_mut(id) {
            session.state.remove(Flags::OWN_READ_MODE);
            if command == id::READWRITE {
                session.state |= Flags::OWN_READ_MODE;
                // Earlier writes count, too.
                session.rare().reading.written = true;
            }
        }
        self.answer_reply(id, OK)
    }

    /// Whether an owner cannot be reached now, and could be before.
    pub(crate) fn is_lost(&self, owner: ServerId) -> bool {
        self.first_link_is(owner, |link| {
            let was_tried = link.failures > 0 || link.lost_at.is_some();
            !link.is_up() && was_tried || self.is_silent(link, SILENCE_MS_MAX)
        })
    }

    /// Whether a server is connected and answers.
    pub(crate) fn brings_replies(&self, server: ServerId) -> bool {
        self.first_link_is(server, |link| {
            link.is_up() && !self.is_silent(link, SILENT_MS)
        })
    }
}

/// Whether a command may write, as far as the table says.
fn may_write(command: &Command) -> bool {
    let reads = command.flags.has(CommandFlags::READONLY);
    command.flags.has(CommandFlags::WRITE) || !reads && !command.keys.is_empty()
}

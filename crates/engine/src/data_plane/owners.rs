//! The owners of the keys of a request.

use std::cell::Cell;

use respool_protocol::commands::{self, Command, CommandId, KeyFlags, Spread, id, is_word};
use respool_protocol::request::RequestScanner;

use crate::base::error_text::{CROSSSLOT, FOREIGN_OWNER, UNKNOWN_KEYS};
use crate::base::handle::SessionId;
use crate::data_plane::DataPlane;
use crate::data_plane::ingress::Request;
use crate::data_plane::session::{Flags, Session};
use crate::routing::pool::Group;

/// The owners of the keys of a request, by [`Group`]: two slots of one node are several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestOwner {
    /// The request has no keys.
    NoKeys,
    One(Group),
    Several,
}

impl RequestOwner {
    /// The owners with one more key, of this group.
    pub(crate) fn and(self, added: Group) -> RequestOwner {
        match self {
            RequestOwner::NoKeys => RequestOwner::One(added),
            RequestOwner::One(group) if group == added => self,
            RequestOwner::One(_) | RequestOwner::Several => RequestOwner::Several,
        }
    }
}

/// The first arguments of a request, identified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeadingCommand {
    /// A row of the table.
    Row(CommandId),
    /// A command that the server has and the table has not.
    Learned { alone: bool, reads: bool },
    /// The table and the server both lack the command.
    Nothing,
}

impl DataPlane {
    /// The owners of the keys of a request.
    pub(crate) fn owner_of_keys<'a>(
        &self,
        id: SessionId,
        command: &Command,
        argc: usize,
        arg: impl Fn(usize) -> &'a [u8],
    ) -> RequestOwner {
        let Some(session) = self.sessions.get(id) else {
            return RequestOwner::NoKeys;
        };
        let (pool, any) = (session.pool, session.next_seq);
        let channels_have_places = self.channels_have_places(id);
        let mut owner = RequestOwner::NoKeys;
        let visited = command.keys(argc, &arg, |at, key_flags| {
            // Scatter asks for the owner of each key anew.
            if owner == RequestOwner::Several
                || key_flags.has(KeyFlags::NOT_KEY) && !channels_have_places
            {
                return;
            }
            let pool_or_first = match key_flags.has(KeyFlags::NOT_KEY) {
                true => self.pools.subpools_of(usize::from(pool))[0],
                false => pool,
            };
            let group = self.pools.group_of(pool_or_first, arg(at), || any);
            owner = owner.and(group);
        });
        // If the keys cannot be found, the arguments are wrong, and any server refuses the request
        // in its own words: rows with specs that are unknown have a rule `key_scan`. A PFMERGE
        // without sources has an error too, but goes to the owner of its one key.
        match (visited, owner) {
            (Err(_), RequestOwner::Several) => RequestOwner::NoKeys,
            (_, owner) => owner,
        }
    }

    /// Whether a large request, which `rest` begins with, is held until it is whole. It is if it
    /// concerns the session, as WATCH, BLPOP and SUBSCRIBE do. A pool of several servers adds two
    /// reasons: the request is for more than one of them, or arguments that decide its server have
    /// not come.
    pub(crate) fn is_held_whole(
        &self,
        session_id: SessionId,
        scanner: &RequestScanner,
        rest: &[u8],
    ) -> bool {
        let (spans, argc) = (scanner.spans(), scanner.argc());
        let missing = Cell::new(false);
        let arg = |at: usize| match spans.get(at) {
            Some(span) => span.of(rest),
            None => {
                missing.set(true);
                b""
            }
        };
        let Some(session) = self.sessions.get(session_id) else {
            return false;
        };
        let refused = Flags::IN_MULTI | Flags::UNAUTHENTICATED;
        if session.state.is_tunnel() || session.state.any(refused) {
            return false;
        }
        let pool = &self.pools[usize::from(session.pool)];
        let has_several = self.is_routed(session_id) && pool.has_several();
        let Some(id) = commands::resolve(argc, arg) else {
            // Only a server can find the keys of its arguments.
            return has_several;
        };
        let command = id.get();
        let is_ours = command.answer.avoids_shared_link();
        if is_ours || !has_several {
            return is_ours;
        }
        let may_look_elsewhere = matches!(id, id::SORT | id::SORT_RO) && pool.cluster().is_none();
        let spread = command.fan_out.spread;
        let owner = self.owner_of_keys(session_id, command, argc, arg);
        let is_divided = match owner {
            RequestOwner::One(_) => false,
            RequestOwner::Several => spread == Spread::Owners,
            RequestOwner::NoKeys => !is_for_one_server(spread),
        };
        missing.get() || is_divided || may_look_elsewhere
    }

    /// Chooses the server of a large request that passes through, by its first arguments.
    pub(crate) fn switch_large(
        &mut self,
        session_id: SessionId,
        opening: LeadingCommand,
        args: &[&[u8]],
        argc: usize,
        queued: Option<Group>,
    ) -> Result<(), &'static [u8]> {
        match opening {
            LeadingCommand::Row(id) => self.note_command(session_id, id, argc),
            LeadingCommand::Learned { reads: true, .. } => {}
            LeadingCommand::Learned { .. } | LeadingCommand::Nothing => self.note_write(session_id),
        }
        let Some(session) = self
            .sessions
            .get(session_id)
            .filter(|_| self.is_routed(session_id))
        else {
            return Ok(());
        };
        let pool = usize::from(session.pool);
        self.switch_from_replica(session_id, None);
        if !self.pools[pool].has_several() {
            return Ok(());
        }
        let LeadingCommand::Row(id) = opening else {
            return Err(UNKNOWN_KEYS);
        };
        let (command, spread) = (id.get(), id.get().fan_out.spread);
        let arg = |at: usize| args.get(at).copied().unwrap_or_default();
        match self.owner_of_keys(session_id, command, argc, arg) {
            RequestOwner::One(group) if self.may_switch_to(session_id, group, queued) => {
                let server = self.pools.server_of(group);
                self.switch_server(session_id, server);
                Ok(())
            }
            RequestOwner::One(_) => Err(FOREIGN_OWNER),
            RequestOwner::Several => Err(CROSSSLOT),
            RequestOwner::NoKeys => {
                let is_bound = |session: &Session| session.pins.bind();
                if spread == Spread::Default && !self.sessions.get(session_id).is_some_and(is_bound)
                {
                    let server = self.pools.default_server_of(pool);
                    self.switch_server(session_id, server);
                }
                Ok(())
            }
        }
    }

    /// Chooses the server of a command that the table does not have, by the server's report of its
    /// keys. One owner must have all keys, and gets the request even if it only reads. A command
    /// without keys is refused, since it may concern the keys of all servers. A pool that removes
    /// prefixes refuses every such command.
    pub(crate) fn switch_to_keys<'a>(
        &mut self,
        id: SessionId,
        (places, arg): (impl Iterator<Item = usize>, impl Fn(usize) -> &'a [u8]),
        refusal: &'static [u8],
        queued: Option<Group>,
    ) -> Result<Option<Group>, &'static [u8]> {
        let Some(session) = self.sessions.get(id) else {
            return Ok(None);
        };
        if self.removes_prefix(id) {
            return Err(UNKNOWN_KEYS);
        }
        let (pool, any) = (session.pool, session.next_seq);
        let groups = places.map(|at| self.pools.group_of(pool, arg(at), || any));
        match groups.fold(RequestOwner::NoKeys, RequestOwner::and) {
            RequestOwner::One(group) if self.may_switch_to(id, group, queued) => {
                let owner = self.pools.server_of(group);
                self.switch_server(id, owner);
                Ok(Some(group))
            }
            RequestOwner::One(_) => Err(FOREIGN_OWNER),
            RequestOwner::Several => Err(CROSSSLOT),
            RequestOwner::NoKeys => Err(refusal),
        }
    }
}

/// Whether a SORT reads keys that it makes from a pattern.
pub(crate) fn looks_elsewhere(request: &Request<'_>) -> bool {
    let makes = |pair: &[&[u8]]| {
        let [option, pattern] = pair else {
            return false;
        };
        let names = is_word(option, b"by") || is_word(option, b"get");
        names && pattern.contains(&b'*')
    };
    matches!(request.id, id::SORT | id::SORT_RO)
        && request.args().collect::<Vec<_>>().windows(2).any(makes)
}

/// Whether a request without keys goes to one server, whichever that is.
fn is_for_one_server(spread: Spread) -> bool {
    matches!(
        spread,
        Spread::Default | Spread::Owner | Spread::Owners | Spread::Any
    )
}

//! Flows of scattered requests: passes the decisions of `scatter` on to the other components.

use respool_protocol::commands::{Answer, Spread};
use respool_protocol::fan::Sections;

use crate::base::error_text::NO_READER;
use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::bounds_met::Bound;
use crate::data_plane::completion::pubsub::ChannelKind;
use crate::data_plane::completion::pubsub::PubsubCompletion;
use crate::data_plane::ingress::{Blocked, Dispatched, Request, bound_reply};
use crate::data_plane::key_prefix::{Stripped, UNKNOWN_ARGUMENTS, scanned};
use crate::data_plane::ledger::Entry;
use crate::data_plane::quick_code::may_hold_up;
use crate::data_plane::scattered::MergeRule;
use crate::data_plane::standing::Standing;
use crate::engine::Engine;
use crate::local::info::adds_our_section;
use crate::routing::pool::ServerId;
use crate::routing::replica_table::NoReader;
use crate::scatter::{Division, Finished, ScanStep, as_seen, is_read};

/// Requests for several servers.
impl Engine {
    /// Divides a request whose keys belong to several servers: each owner gets the share with its
    /// keys.
    pub(crate) fn divide(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        if self.plane.sessions.get(id).is_none() {
            return Dispatched::Done;
        }
        let mut split = self.scatter.take_split();
        let placed = match self.scatter.divide(&self.plane, id, request, &mut split) {
            Division::Shares(parts, merge) => self.ask_owners(id, request, parts, merge),
            Division::Whole(owner) => self.ask_one_owner(id, request, owner),
            Division::Refused(text) => self.plane.answer_error(id, text),
            Division::NoKeys if self.plane.removes_prefix(id) => {
                self.refuse_stripped(id, UNKNOWN_ARGUMENTS)
            }
            // The server answers with its own error.
            Division::NoKeys => self.plane.dispatch_on_link(id, request.bytes, false, None),
        };
        self.scatter.keep_split(split);
        placed
    }

    /// Sends their shares to the owners, or to the servers that are read in their place.
    fn ask_owners(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
        mut parts: Vec<(ServerId, &[u8])>,
        merge: MergeRule,
    ) -> Dispatched {
        for (server, _) in &mut parts {
            match self.server_in_reach(id, *server, request) {
                Ok(read) => *server = read,
                Err(NoReader) => return self.plane.answer_error(id, NO_READER),
            }
        }
        let scatter = &self.scatter;
        match scatter.strip_shares(&self.plane, id, request.command, &parts) {
            Ok(stripped) => self.ask_several(id, request, &as_seen(&parts, &stripped), merge),
            Err(text) => self.refuse_stripped(id, text),
        }
    }

    /// Sends the whole request to the owner of its keys, or to the server that is read in its
    /// place.
    fn ask_one_owner(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
        owner: ServerId,
    ) -> Dispatched {
        match self.server_in_reach(id, owner, request) {
            Ok(server) => self.plane.switch_server(id, server),
            Err(NoReader) => return self.plane.answer_error(id, NO_READER),
        }
        match self.plane.removes_prefix(id) {
            true => self.dispatch_stripped(id, request, false),
            false => self
                .plane
                .dispatch_on_link(id, request.bytes, is_read(request), None),
        }
    }

    fn server_in_reach(
        &mut self,
        id: SessionId,
        owner: ServerId,
        request: &Request<'_>,
    ) -> Result<ServerId, NoReader> {
        let Some(session) = self.plane.sessions.get(id) else {
            return Ok(owner);
        };
        let kind = self.plane.kind_of(session);
        self.plane.server_in_reach(id, owner, request.command, kind)
    }

    /// Sends the request to every server of the pool. A request about sharded channels goes only to
    /// the servers that may have such channels.
    pub(crate) fn ask_all(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        self.ask_each(id, request, request.bytes, MergeRule::AsSaid)
    }

    /// Sends the request to these servers.
    pub(crate) fn ask_these(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
        servers: &[ServerId],
    ) -> Dispatched {
        let parts: Vec<_> = servers
            .iter()
            .map(|server| (*server, request.bytes))
            .collect();
        self.ask_several(id, request, &parts, MergeRule::AsSaid)
    }

    /// Sends INFO to all servers. The sections that the client asked for are made from theirs.
    pub(crate) fn ask_info(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        let sections = || request.args().skip(1);
        let asked = Sections::asked(sections());
        let mut bytes = Vec::new();
        asked.request(sections(), &mut bytes);
        let adds_section = adds_our_section(request);
        self.ask_each(
            id,
            request,
            &bytes,
            MergeRule::Info {
                asked,
                adds_section,
            },
        )
    }

    /// Sends these bytes to every server of the pool.
    fn ask_each(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
        bytes: &[u8],
        merge: MergeRule,
    ) -> Dispatched {
        if self.plane.sessions.get(id).is_none() {
            return Dispatched::Done;
        }
        let spread: Spread = request.command.fan_out.spread;
        let scatter = &self.scatter;
        let servers = scatter.servers_for_all(&self.plane, id, spread);
        match scatter.strip_keys_of_all(&self.plane, id, request, &servers) {
            Ok(stripped) => {
                let parts: Vec<_> = servers.iter().map(|server| (*server, bytes)).collect();
                self.ask_several(id, request, &as_seen(&parts, &stripped), merge)
            }
            Err(text) => self.refuse_stripped(id, text),
        }
    }

    /// Removes the prefix from a routed request, and dispatches it as its server shall see it.
    pub(crate) fn dispatch_stripped(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
        server_refuses: bool,
    ) -> Dispatched {
        let is_in_multi = self.plane.is_in_multi(id);
        match self.plane.strip(id, request, is_in_multi) {
            Stripped::Same => self.dispatch_at_server(id, request, server_refuses),
            Stripped::Shorter(bytes) => scanned(&bytes, |spans| {
                let bytes = &bytes;
                let request = Request {
                    bytes,
                    spans,
                    ..*request
                };
                self.dispatch_at_server(id, &request, server_refuses)
            }),
            Stripped::Bare(bytes) => self.plane.dispatch_on_link(id, &bytes, false, None),
            Stripped::Refused(text) => self.refuse_stripped(id, text),
        }
    }

    pub(crate) fn refuse_stripped(&mut self, id: SessionId, text: &[u8]) -> Dispatched {
        self.plane.counters.refused += 1;
        self.plane.refuse_queued(id, text)
    }

    /// SCAN goes through one server after the other.
    pub(crate) fn scan(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        if self.plane.sessions.get(id).is_none() {
            return Dispatched::Done;
        }
        let (server, at, next) = match self.scatter.scan_step(&self.plane, id, request) {
            ScanStep::Refused(text) => return self.plane.answer_error(id, text),
            ScanStep::Over => return self.plane.answer_reply(id, b"*2\r\n$1\r\n0\r\n*0\r\n"),
            ScanStep::Ask {
                server,
                at,
                next,
                is_lost,
            } => {
                if is_lost {
                    self.discovery.request_refresh(&mut self.plane, server);
                }
                (server, at, next)
            }
        };
        self.plane.switch_server(id, server);
        let scatter = &self.scatter;
        match scatter.scan_request(&self.plane, id, request, (at, next)) {
            Ok((bytes, duty)) => self.plane.dispatch_on_link(id, &bytes, true, Some(duty)),
            Err(text) => self.refuse_stripped(id, text),
        }
    }

    /// Sends the shares of a request to their servers, or holds the session until all links are
    /// ready.
    fn ask_several(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
        parts: &[(ServerId, &[u8])],
        merge: MergeRule,
    ) -> Dispatched {
        let servers = parts.iter().map(|(server, _)| *server);
        let links = match request.command.answer {
            Answer::Alone => self.links_alone(id, servers.collect()),
            // All links must be ready before the first share leaves, so that no request is half
            // sent.
            _ => servers
                .map(|server| self.link_to(id, server, request))
                .collect(),
        };
        match links {
            Ok(links) => {
                self.scatter
                    .start(&mut self.plane, id, request, parts, links, merge);
                Dispatched::Done
            }
            Err(blocked) => self.plane.blocked(id, blocked),
        }
    }

    /// The link to a server, ready for a request of this session: the shared link, or the link on
    /// which the session tracks keys.
    fn link_to(
        &mut self,
        session_id: SessionId,
        server: ServerId,
        request: &Request<'_>,
    ) -> Result<LinkId, Blocked> {
        if self.plane.tracks_several(session_id) {
            let link = self.plane.tracking_link(session_id, server)?;
            return self.plane.ready_link(session_id, link);
        }
        let Some(session) = self.plane.sessions.get(session_id) else {
            return Err(Blocked::Wait);
        };
        let mut kind = self.plane.kind_at(session, server);
        if may_hold_up(request.id) {
            kind = self.plane.kind_for_flush(session_id, kind);
        }
        let link = match self.plane.current_link(kind) {
            Some(link) => link,
            None => self.plane.shared_link_for(session_id, kind)?,
        };
        let link = self.plane.ready_link(session_id, link)?;
        match self
            .plane
            .await_writes(session_id, link, request.bytes, is_read(request))
        {
            Some(blocked) => Err(blocked),
            None => Ok(link),
        }
    }

    /// A link to each server that carries nothing else, for a request that must not wait behind
    /// others there. The links serve this one request, as streaming links do, and count among them.
    /// At the bound of streaming links, each is an emergency link.
    fn links_alone(
        &mut self,
        id: SessionId,
        servers: Vec<ServerId>,
    ) -> Result<Vec<LinkId>, Blocked> {
        // The session's earlier requests are executed first.
        if self.plane.hold_until_caught_up(id) {
            return Err(Blocked::Wait);
        }
        for server in &servers {
            let first = self
                .plane
                .shared
                .get(&self.plane.first_link(*server))
                .copied();
            if let Some(first) = first.filter(|_| self.plane.standing(*server) == Standing::Away) {
                return Err(Blocked::Refused(
                    self.plane.no_link_reply(first, self.plane.away_error(id)),
                ));
            }
        }
        let has_room = self.pinned.may_stream(&self.plane, id, servers.len())
            && self.plane.has_room_for_link();
        let is_urgent = !has_room
            && servers
                .iter()
                .all(|server| self.pinned.has_room_for_urgent_link(&self.plane, *server));
        if !has_room && !is_urgent {
            return Err(self.pinned.wait_for_urgent_link(
                &mut self.plane,
                id,
                Bound::StreamingLinks,
            ));
        }
        self.plane.set_gives_up_at(id, None);
        let mut links = Vec::with_capacity(servers.len());
        for server in servers {
            let Some(session) = self.plane.sessions.get(id) else {
                return Err(Blocked::Wait);
            };
            let kind = self.plane.kind_of(session).at(server);
            let link = match is_urgent {
                true => self.pinned.urgent_link(&mut self.plane, kind, id),
                false => self.pinned.link_once(&mut self.plane, kind, id),
            };
            match link {
                Some(link) => links.push(link),
                None => {
                    links
                        .into_iter()
                        .for_each(|link| self.plane.close_link(link));
                    self.plane.next_streaming();
                    return Err(Blocked::Refused(bound_reply("links-max")));
                }
            }
        }
        Ok(links)
    }
}

/// Answers to shares.
impl Engine {
    /// Keeps a server's answer to its share, and delivers the whole reply after the last one.
    pub(crate) fn take_share_of(&mut self, entry: Entry, index: u16, reply: &[u8]) {
        let scatter = &mut self.scatter;
        if let Some(finished) = scatter.handle_part(&mut self.plane, entry, index, reply) {
            self.finish_scatter(finished);
        }
    }

    /// Completes the reply to a scattered request with facts of other components, and delivers it.
    fn finish_scatter(&mut self, mut finished: Finished) {
        let session = finished.entry.session;
        if let Some(adds_section) = finished.adds_section() {
            finished.reply = self.with_our_section(session, adds_section, &finished.reply);
        }
        if finished.counts_shard_subscribers()
            && let Some(session) = self.plane.sessions.get(session)
        {
            finished.reply = self.pubsub.recount(
                session.pool,
                &PubsubCompletion::Subscribers(ChannelKind::Shard),
                &finished.reply,
            );
        }
        if finished.is_agreement() {
            self.pinned
                .settle_tracking(&mut self.plane, session, &finished.reply);
        }
        self.scatter.deliver(&mut self.plane, finished);
    }
}

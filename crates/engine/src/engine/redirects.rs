//! Flows of refused requests: passes the decisions of `redirect` on to the other components.

use respool_protocol::cluster::{Endpoint, Redirect, Refusal};
use respool_protocol::commands::id;
use respool_protocol::encode;

use crate::base::error_text::NO_READER;
use crate::base::handle::{LinkId, SessionId};
use crate::base::settings::Address;
use crate::base::time::Time;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::redirect::ProofStep;
use crate::data_plane::ingress::bound_reply;
use crate::data_plane::ledger::Entry;
use crate::data_plane::link::LinkKind;
use crate::data_plane::sent_request::id_of;
use crate::data_plane::session::Flags;
use crate::discovery::readonly::may_be_readonly;
use crate::engine::Engine;
use crate::redirect::deferred::{
    Deferred, Departure, Judgement, ProofOutcome, RetryScan, RetryStep,
};
use crate::routing::next_server::NextServer;
use crate::routing::pool::ServerId;
use crate::routing::replica_table::NoReader;

/// Refusals.
impl Engine {
    /// The next reply of a link is an error. Returns whether respool acts on it, and does not pass
    /// it on.
    #[cold]
    pub(crate) fn is_refusal_handled(&mut self, id: LinkId, reply: &[u8]) -> bool {
        if self.plane.links.get(id).is_some_and(|link| link.heeds) {
            return self.handle_refusal(id, reply);
        }
        if may_be_readonly(reply) {
            self.discovery.note_readonly(&mut self.plane, id, reply);
        }
        false
    }

    /// Handles the error reply in front of a link whose server may redirect. Returns whether the
    /// request has left the link: it was deferred or answered.
    #[cold]
    pub(crate) fn handle_refusal(&mut self, id: LinkId, reply: &[u8]) -> bool {
        let refused = match self.redirects.judge(&mut self.plane, id, reply) {
            Judgement::Answer => return false,
            Judgement::AskRole(server) => {
                self.discovery.ask_role(&mut self.plane, server);
                return false;
            }
            Judgement::AwaitsProof => return true,
            Judgement::Refused(refused) => refused,
        };
        let (server, slot, said) = (refused.server, refused.slot, refused.said());
        if self
            .discovery
            .is_nobodys(&mut self.plane, server, said, slot)
        {
            if refused.is_block {
                // The client gets this refusal. The error of EXEC says less.
                self.answer_front(id, refused.front, &refused.reply);
            }
            return refused.is_block;
        }
        let next = self.follow_redirect(server, slot, said, refused.refusal);
        match self.redirects.take_off(&mut self.plane, &refused, next) {
            Departure::Deferred => {}
            Departure::LeavesOwnLink(by) => self.plane.leave_own_link(id, by),
            Departure::Answer(told) => self.answer_front(id, refused.front, &told),
            Departure::WatchLost(by, told) => {
                self.plane.lose_watch(by);
                self.answer_front(id, refused.front, &told);
            }
        }
        true
    }

    /// Updates the topology from a refusal, and returns the server that gets the request next.
    /// `slot`: the slot of the request, if respool can see its keys.
    pub(crate) fn follow_redirect(
        &mut self,
        server: ServerId,
        slot: Option<u16>,
        said: &[u8],
        refusal: Refusal,
    ) -> NextServer {
        let pool = usize::from(self.plane.server(server).pool);
        let of_replica = self.plane.server(server).replica_of.is_some();
        match refusal {
            Refusal::Moved | Refusal::Ask => {
                let redirect = Redirect::read(said);
                let named = redirect.as_ref();
                let named = named.and_then(|redirect| self.server_named_by(server, redirect));
                let Some((redirect, named)) = redirect.zip(named) else {
                    // No known server has the named address, at least not yet.
                    self.discovery.request_refresh(&mut self.plane, server);
                    return NextServer::Owner;
                };
                self.discovery.reach(&mut self.plane, named);
                if redirect.ask {
                    self.plane.counters.redirected_ask += 1;
                    return NextServer::Importer(named);
                }
                self.plane.counters.redirected_moved += 1;
                if of_replica {
                    // The replica's own topology may be out of date. So only this read follows the
                    // redirect, and respool asks the owners.
                    if self
                        .discovery
                        .owner_of_slot(&self.plane, pool, redirect.slot)
                        == Some(named)
                    {
                        self.discovery.note_refused_read(&mut self.plane, server);
                    }
                    self.discovery.request_refresh(&mut self.plane, server);
                    return NextServer::Named(named);
                }
                self.heal_slot(pool, redirect.slot, named);
                if slot != Some(redirect.slot) {
                    return NextServer::Named(named);
                }
            }
            // CLUSTERDOWN does not count against the replica: every node would answer so.
            _ if of_replica && refusal != Refusal::ClusterDown => {
                self.plane.counters.requests_deferred += 1;
                self.discovery.note_refused_read(&mut self.plane, server);
            }
            Refusal::ReadOnly | Refusal::Unblocked | Refusal::ClusterDown | Refusal::MasterDown => {
                self.plane.counters.requests_deferred += 1;
                self.discovery.request_survey(&mut self.plane, server);
                self.discovery
                    .request_refresh_after_loss(&mut self.plane, server);
            }
            Refusal::TryAgain | Refusal::Loading => self.plane.counters.requests_deferred += 1,
        }
        NextServer::Owner
    }

    /// The server that a redirect names. `None`: no node has named that address in an answer about
    /// the topology. Then respool asks the node about the topology.
    fn server_named_by(&mut self, server: ServerId, redirect: &Redirect<'_>) -> Option<ServerId> {
        let host = match (redirect.host, &self.plane.server(server).settings.address) {
            (Some(host), _) => host.to_owned(),
            (None, Address::Tcp { host, .. }) => host.clone(),
            (None, Address::Unix(_)) => return None,
        };
        let port = redirect.port;
        self.known_server_at(server, Endpoint { host, port }, redirect.ask)
    }

    /// Takes the request in front off its link, and gives its session this reply.
    fn answer_front(&mut self, id: LinkId, front: Entry, reply: &[u8]) {
        if let Some(link) = self.plane.links.get_mut(id) {
            if front.duty {
                link.duties.pop_front();
            }
            link.pop_answered(front);
        }
        self.plane.counters.link_replies += 1;
        self.plane.pass_on(front, reply);
    }

    /// A blocking request got its answer on the session's own link. It goes on at another server.
    pub(crate) fn go_on_alone(
        &mut self,
        link: LinkId,
        entry: Entry,
        asked: (Vec<u8>, Completion),
        next: (ServerId, Time),
    ) {
        self.redirects
            .go_on_elsewhere(&mut self.plane, link, entry, asked, next);
        self.plane.leave_own_link(link, entry.session);
    }

    /// Decides about an unproven request after the server's answer to the second question.
    pub(crate) fn settle_proof(
        &mut self,
        id: LinkId,
        place: (SessionId, u32),
        proof: ProofStep,
        reply: &[u8],
    ) {
        let (item, twin) =
            match self
                .redirects
                .settle_proof(&mut self.plane, id, place, proof, reply)
            {
                ProofOutcome::Gone => return,
                ProofOutcome::SendScript {
                    entry,
                    request,
                    refusal,
                } => {
                    let plane = &mut self.plane;
                    if !self.local.send_script_along(plane, id, entry, &request) {
                        self.plane.pass_on(entry, &refusal);
                    }
                    return;
                }
                ProofOutcome::Answer(entry, reply) => return self.plane.pass_on(entry, &reply),
                ProofOutcome::Refused(item, twin) => (item, twin),
            };
        let (server, slot) = (item.asked().server, item.slot());
        let said = reply.strip_prefix(b"-").unwrap_or_default();
        if self
            .discovery
            .is_nobodys(&mut self.plane, server, said, slot)
        {
            let entry = item.entry();
            return self.plane.pass_on(entry, reply);
        }
        let next = self.follow_redirect(server, slot, said, twin);
        self.redirects.keep_proven(&mut self.plane, item, next);
    }
}

/// Deferred requests that are sent again.
impl Engine {
    /// Sends deferred requests again if they may be sent.
    pub(crate) fn retry_deferred(&mut self) {
        for id in self.redirects.poll_new_sessions() {
            self.retry_deferred_of(id);
        }
        for id in self.redirects.poll_sessions(&self.plane) {
            self.retry_deferred_of(id);
        }
        self.redirects.end_scan_of_sessions(&self.plane);
    }

    /// Sends the deferred requests of a session again, or ends them, as far as that is due.
    fn retry_deferred_of(&mut self, id: SessionId) {
        let scattered = self.plane.scattered_of(id);
        let scan = self.redirects.begin_scan(&mut self.plane, id, scattered);
        if let Some(mut scan) = scan {
            while let Some(step) = scan.next(&self.plane) {
                match step {
                    RetryStep::GiveUp(item) => self.give_up_deferred(item),
                    RetryStep::Send(item) => self.retry(&mut scan, id, item),
                }
            }
            self.redirects.end_scan(&mut self.plane, scan);
        }
        self.redirects.list_again(&self.plane, id);
    }

    fn give_up_deferred(&mut self, item: Deferred) {
        let (entry, reply) = self.redirects.give_up(&mut self.plane, item);
        self.plane.pass_on(entry, &reply);
    }

    /// Sends one deferred request again, if there is a link for it.
    fn retry(&mut self, scan: &mut RetryScan, id: SessionId, item: Deferred) {
        let Some(item) = self.settle_by_heir(item) else {
            return;
        };
        let link = if item.waits() {
            match self.own_link_for(id, &item) {
                Some(link) => link,
                None => return scan.stay_without_link(item),
            }
        } else if self.plane.tracks_several(id) {
            match self.tracking_link_for(id, &item) {
                Some(link) => link,
                // A link gets free, or the slot gets another owner.
                None => return scan.stay_until_tick(&self.plane, item),
            }
        } else {
            match self.link_for(&item) {
                Ok(link) => link,
                Err(told) => {
                    let entry = item.entry();
                    self.plane.counters.failed_not_sent += 1;
                    return self.plane.pass_on(entry, &told);
                }
            }
        };
        let is_in_back_off = self
            .plane
            .links
            .get(link)
            .is_some_and(|to| self.redirects.may_wait_at(&self.plane, to, &item));
        if let Some(item) = scan.leave_on(&self.plane, link, item, is_in_back_off) {
            self.send_deferred(link, item);
        }
    }

    /// Settles a share of a scattered request whose server has no slots any more. Its heir must
    /// have got a share of the same request. Then the heir's answer counts for both shares. A read
    /// is refused, so that nothing is counted twice. The exceptions are FLUSHALL and FLUSHDB: keys
    /// may have moved to the heir after it deleted its own. So the heir gets the command once more,
    /// which is safe, because the session has no request behind it. `None`: the share is settled.
    fn settle_by_heir(&mut self, item: Deferred) -> Option<Deferred> {
        let Some(index) = item.share() else {
            return Some(item);
        };
        if matches!(id_of(item.request()), Some(id::FLUSHALL | id::FLUSHDB)) {
            return Some(item);
        }
        let heir = match (item.next_server(), item.slot()) {
            (NextServer::Owner, None) => self.discovery.heir_of(&self.plane, item.asked().server),
            _ => None,
        };
        let Some(answer) = heir.and_then(|heir| self.plane.part_of(item.entry(), heir)) else {
            return Some(item);
        };
        if item.reads() {
            self.give_up_deferred(item);
        } else {
            let entry = item.entry();
            self.take_share_of(entry, index, &answer);
        }
        None
    }

    /// The kind of link for the next attempt.
    fn kind_for(&mut self, item: &Deferred) -> Result<LinkKind, NoReader> {
        let asked = item.asked();
        let command = id_of(item.request()).map(|id| id.get());
        let server = self.discovery.next_server_of(
            &mut self.plane,
            item.entry().session,
            (asked, command),
            item.slot(),
            item.next_server(),
        )?;
        Ok(asked.at(server))
    }

    /// The link for the next attempt, or the error reply to the client if there is none.
    fn link_for(&mut self, item: &Deferred) -> Result<LinkId, Vec<u8>> {
        match self.kind_for(item) {
            Ok(kind) => {
                let link = self.plane.current_link(kind);
                link.ok_or_else(|| bound_reply("links-max"))
            }
            Err(NoReader) => {
                let mut reply = Vec::new();
                encode::error(&mut reply, NO_READER);
                Err(reply)
            }
        }
    }

    /// The link on which the session tracks keys at the server of the next attempt. `None`: there
    /// is no such link just now.
    fn tracking_link_for(&mut self, id: SessionId, item: &Deferred) -> Option<LinkId> {
        let server = self.kind_for(item).ok()?.server;
        let first = self.plane.shared.get(&self.plane.first_link(server));
        let is_in_back_off = first
            .and_then(|first| self.plane.links.get(*first))
            .is_some_and(|first| self.redirects.may_wait_at(&self.plane, first, item));
        let is_known = self.plane.tracks_on(id, server).is_some();
        if is_in_back_off || !is_known && !self.plane.may_have_own_link(id) {
            return None;
        }
        let link = self.plane.tracking_link(id, server).ok()?;
        // The next attempt has no CLIENT CACHING in front of it.
        self.plane.lack_caching(id);
        Some(link)
    }

    /// A link that the session has for itself. `None`: none is free just now.
    fn own_link_for(&mut self, id: SessionId, item: &Deferred) -> Option<LinkId> {
        let link = if self.plane.tracks_several(id) {
            let link = self.tracking_link_for(id, item)?;
            let server = self.plane.links.get(link)?.kind.server;
            self.plane.switch_server(id, server);
            link
        } else {
            if !self.plane.may_have_own_link(id) {
                return None;
            }
            let kind = self.kind_for(item).ok()?;
            self.plane.move_to_own_link(kind, id)?
        };
        if let Some(session) = self.plane.sessions.get_mut(id) {
            session.flags |= Flags::UNPINNING;
        }
        if let Some(link) = self.plane.links.get_mut(link) {
            link.waits = true;
        }
        Some(link)
    }

    /// Sends a deferred request on this link.
    fn send_deferred(&mut self, link: LinkId, item: Deferred) {
        let entry = item.entry();
        if let Some(index) = item.share()
            && let Some(server) = self.plane.links.get(link).map(|link| link.kind.server)
        {
            self.plane.ask_share_of(entry, index, server);
        }
        if let Err(told) = self.redirects.wake_link(&mut self.plane, link, entry) {
            return self.plane.pass_on(entry, &told);
        }
        if item.names_scripts() {
            self.local
                .load_named(&mut self.plane, link, entry.session, item.request());
        }
        self.redirects.send(&mut self.plane, link, item);
    }
}

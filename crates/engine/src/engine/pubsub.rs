//! Subscriptions and messages: passes the requests of a hub on to discovery, links and memory.

use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::completion::pubsub::ChannelKind;
use crate::data_plane::ingress::{Dispatched, Request};
use crate::data_plane::link::LineId;
use crate::engine::Engine;
use crate::pubsub::keyspace_events::brings_events;
use crate::pubsub::{CountedLink, HubPush};

impl Engine {
    /// SUBSCRIBE, PSUBSCRIBE, SSUBSCRIBE (`on`) and the commands that undo them.
    pub(crate) fn change_subscriptions(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
        kind: ChannelKind,
        on: bool,
    ) -> Dispatched {
        if self.plane.hold_until_caught_up(id) {
            return Dispatched::Wait;
        }
        if on && let Some(placed) = self.await_publishers(id, request, kind) {
            return placed;
        }
        let change = (kind, on);
        self.pubsub
            .change_subscriptions(&mut self.plane, id, request, change)
    }

    /// Waits until respool knows the servers that publish to the channels of a request. `None`:
    /// they are known.
    fn await_publishers(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
        kind: ChannelKind,
    ) -> Option<Dispatched> {
        let pool = usize::from(self.plane.sessions.get(id)?.pool);
        let home = usize::from(self.plane.pools.parts_of(pool)[0]);
        let cluster = self.plane.pools[home].cluster();
        // The first topology answer may move everything that is published to another node, and the
        // session would miss messages.
        if kind != ChannelKind::Shard
            && cluster.is_some_and(|slots| !slots.is_known)
            && self.plane.waits_for_nodes(id, home)
        {
            return Some(Dispatched::Wait);
        }
        if !brings_events(kind, request) {
            return None;
        }
        let waits = match self.plane.unknown_part(pool) {
            Some(part) => self.plane.waits_for_nodes(id, part),
            None => self.discovery.waits_for_owners(&mut self.plane, id, pool),
        };
        if waits {
            return Some(Dispatched::Wait);
        }
        let text = self.plane.no_nodes(self.plane.unknown_part(pool)?);
        Some(self.plane.answer_error(id, text.as_bytes()))
    }

    /// PUBLISH, SPUBLISH and PUBSUB NUMSUB.
    pub(crate) fn dispatch_counted(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        match self.pubsub.place_counted(&mut self.plane, id, request) {
            CountedLink::Hubs(placed) => placed,
            CountedLink::Sessions { reads, completion } => {
                self.plane
                    .dispatch_on_link(id, request.bytes, reads, completion)
            }
        }
    }

    /// Handles a push on a hub's link.
    pub(crate) fn take_hub_push(&mut self, link: LinkId, line: LineId, push: &[u8]) {
        match self.pubsub.handle_push(&mut self.plane, link, line, push) {
            HubPush::Message(message) => {
                while !self.pubsub.fan_out(&mut self.plane, &message) {
                    self.relieve_memory();
                }
            }
            HubPush::Done => {}
        }
    }

    /// Handles the reply to a hub's request. Its entry has left the ledger.
    pub(crate) fn settle_ask(&mut self, link: LinkId, reply: &[u8]) {
        match self.pubsub.refused_ask(&self.plane, link, reply) {
            Some(refused) => {
                let said = &reply[1..];
                let (server, slot) = (refused.server, refused.slot);
                let has_no_owner = self
                    .discovery
                    .is_nobodys(&mut self.plane, server, said, slot);
                if !has_no_owner {
                    self.follow_redirect(server, slot, said, refused.refusal);
                }
                let line = (link, refused.line);
                self.pubsub
                    .put_off_ask(&mut self.plane, line, has_no_owner, reply);
            }
            None => self.pubsub.settle_ask(&mut self.plane, link, reply),
        }
    }

    /// Whether the rest of a hub's bytes waits for the next turn.
    pub(crate) fn puts_push_off(&mut self, link: LinkId, rest: &[u8]) -> bool {
        let bytes_max = self.links_bytes_read_max();
        self.pubsub
            .puts_push_off(&mut self.plane, link, bytes_max, rest)
    }

    /// At the start of a turn, handles the pushes that were deferred in the last one.
    pub(crate) fn take_pushes_put_off(&mut self) {
        self.pubsub.fanned_out = 0;
        if !self.pubsub.has_pushes_put_off() {
            return;
        }
        for line in self.pubsub.lines() {
            if let Some((link, bytes)) = self.pubsub.take_deferred(&mut self.plane, line) {
                self.take_replies(link, &bytes);
                self.settle_losses();
            }
        }
    }

    /// Opens links that have waited for notifications, and puts the requests of hubs on links.
    pub(crate) fn ask_hubs(&mut self) {
        if self.pubsub.hubs.is_empty() {
            return;
        }
        for link in self.pubsub.take_links_to_open(&self.plane) {
            if !self.local.waits_for_scripts(&mut self.plane, link) {
                self.link_is_up(link);
            }
        }
        self.pubsub.ask_hubs(&mut self.plane);
    }
}

//! Subscriptions and messages: passes the requests of a hub on to discovery, links and memory.

use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::completion::pubsub::ChannelKind;
use crate::data_plane::ingress::{Dispatched, Request};
use crate::data_plane::link::LineId;
use crate::engine::Engine;
use crate::pubsub::keyspace_events::brings_events;
use crate::pubsub::{HubPush, RefusedAsk};

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
        if on {
            let news = (kind != ChannelKind::Shard, brings_events(kind, request));
            let waits = self.discovery.await_publishers(&mut self.plane, id, news);
            if let Some(dispatched) = waits {
                return dispatched;
            }
        }
        let change = (kind, on);
        self.pubsub
            .change_subscriptions(&mut self.plane, id, request, change)
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

    /// A server has refused a hub's request, since it does not own the slot. The topology follows,
    /// and the hub asks again.
    pub(crate) fn follow_refused_ask(&mut self, link: LinkId, refused: RefusedAsk, reply: &[u8]) {
        let (server, slot, said) = (refused.server, refused.slot, &reply[1..]);
        let has_no_owner = self
            .discovery
            .confirm_unowned(&mut self.plane, server, said, slot);
        if !has_no_owner {
            self.follow_refusal((server, slot), said, refused.refusal);
        }
        let line = (link, refused.line);
        self.pubsub
            .defer_hub_request(&mut self.plane, line, has_no_owner, reply);
    }

    /// At the start of a turn, handles the pushes that were deferred in the last one.
    pub(crate) fn take_deferred_pushes(&mut self) {
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
    pub(crate) fn send_hub_requests(&mut self) {
        if self.pubsub.hubs.is_empty() {
            return;
        }
        for link in self.pubsub.take_links_to_open(&self.plane) {
            if !self.local.waits_for_scripts(&mut self.plane, link) {
                self.link_is_up(link);
            }
        }
        self.pubsub.send_hub_requests(&mut self.plane);
    }
}

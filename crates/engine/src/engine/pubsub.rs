//! Subscriptions and messages: passes the requests of a hub on to discovery, links and memory.

use crate::base::handle::LinkId;
use crate::data_plane::link::LineId;
use crate::engine::Engine;
use crate::pubsub::{HubPush, HubRefusal};

impl Engine {
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
    pub(crate) fn follow_hub_refusal(&mut self, link: LinkId, refused: HubRefusal, reply: &[u8]) {
        let at = (refused.server, refused.slot);
        let next = self.follow_refusal(at, &reply[1..], refused.refusal);
        let line = (link, refused.line);
        self.pubsub
            .defer_hub_request(&mut self.plane, line, next.is_none(), reply);
    }

    /// At the start of a turn, handles the pushes that were postponed in the last one.
    pub(crate) fn take_postponed_pushes(&mut self) {
        self.pubsub.fanned_out = 0;
        if !self.pubsub.has_postponed_pushes() {
            return;
        }
        for line in self.pubsub.lines() {
            if let Some((link, bytes)) = self.pubsub.take_postponed(&mut self.plane, line) {
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

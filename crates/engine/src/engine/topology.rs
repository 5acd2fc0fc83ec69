//! Changes of the topology, as far as they concern more than one component.
//!
//! Discovery reads the answers of servers, writes the routing tables, and returns the rest: which
//! servers lost slots, left, or got another address. Sessions, hubs, watches and deferred requests
//! follow here.

use std::collections::HashSet;

use crate::base::handle::LinkId;
use crate::data_plane::completion::discovery::DiscoveryCompletion;
use crate::discovery::TopologyReply;
use crate::discovery::sentinel::{SentinelEvent, SurveyAnswer};
use crate::discovery::servers::ServersInUse;
use crate::engine::Engine;
use crate::routing::pool::ServerId;

/// Refreshes.
impl Engine {
    /// A server has answered a question about the topology.
    pub(crate) fn settle_discovery(
        &mut self,
        id: LinkId,
        asked: DiscoveryCompletion,
        reply: &[u8],
    ) {
        match self.discovery.settle(&mut self.plane, id, asked, reply) {
            TopologyReply::Settled => {}
            TopologyReply::RefreshIsOver { pool } => self.end_refresh(pool),
            TopologyReply::Surveyed(answer) => self.follow_survey(answer),
        }
    }

    /// Ends refreshes that take too long, starts those that are due, and gives up silent nodes.
    pub(crate) fn tick_clusters(&mut self) {
        for pool in 0..self.plane.pools.len() {
            if self.plane.pools[pool].cluster().is_none() {
                continue;
            }
            let hears_events = self.pubsub.hears_events(&self.plane, pool);
            if self
                .discovery
                .tick_refresh(&mut self.plane, pool, hears_events)
            {
                self.end_refresh(pool);
            }
            for link in self.discovery.replaced_links(&mut self.plane, pool) {
                let reason = "it was replaced while it owed replies";
                self.plane.lose_link(link, reason);
                // A hub that moves below must not take the loss along to its new server.
                self.settle_losses();
            }
            self.discovery.tick_waiting_sessions(&mut self.plane, pool);
            self.choose_home(pool);
        }
    }

    /// Ends a refresh. Discovery believes a topology of the answers, if one counts.
    fn end_refresh(&mut self, pool: usize) {
        let in_use = self.servers_in_use();
        let Some(ended) = self.discovery.end_refresh(&mut self.plane, pool, &in_use) else {
            return;
        };
        if ended.change.is_some() {
            // Sessions of a server that has left switch to the new home.
            self.choose_home(pool);
        }
        let in_use = self.servers_in_use();
        self.discovery
            .conclude_refresh(&mut self.plane, pool, ended, &in_use);
        self.forget_reused();
    }

    /// Chooses the node of a Cluster for publishing and subscribing, and moves hubs to it.
    fn choose_home(&mut self, pool: usize) {
        let counts = self.pubsub.subscriber_counts.clone();
        let moves = self
            .discovery
            .choose_home(&mut self.plane, pool, &mut counts.homes());
        if let Some((from, to)) = moves {
            self.pubsub.move_hubs(&mut self.plane, from, to);
        }
    }
}

/// Servers that come and go.
impl Engine {
    /// The servers to which components refer. It is empty while no entry is reused.
    pub(crate) fn servers_in_use(&self) -> ServersInUse {
        if !self.discovery.reuses_servers(&self.plane) {
            return ServersInUse::default();
        }
        let all = (0..self.plane.servers.len() as u16).map(ServerId);
        let is_used = |server: &ServerId| self.pubsub.hubs.iter().any(|hub| hub.needs(*server));
        ServersInUse {
            all: self.redirects.has_waiting_sessions(),
            some: all.filter(is_used).collect::<HashSet<_>>(),
        }
    }

    /// Drops the answers of servers whose entries now belong to other servers.
    pub(crate) fn forget_reused(&mut self) {
        for server in self.discovery.reused.drain(..) {
            let learned = &mut self.plane.learned_commands;
            self.local.catalog.forget_server(learned, server);
        }
    }
}

/// Sentinels.
impl Engine {
    /// Connects to known Sentinels without a link, and surveys those for which that is due.
    pub(crate) fn tick_sentinels(&mut self) {
        for pool in 0..self.plane.pools.len() {
            if self.plane.pools[pool].watched.is_some() {
                self.meet_sentinels(pool);
                for primary in self.discovery.promotions(&mut self.plane, pool) {
                    self.follow_primary(pool, primary);
                }
                self.discovery.survey_again(&mut self.plane, pool);
            }
        }
    }

    pub(crate) fn meet_sentinels(&mut self, pool: usize) {
        let in_use = self.servers_in_use();
        self.discovery
            .meet_sentinels(&mut self.plane, pool, &in_use);
        self.forget_reused();
    }

    /// Follows a primary, its replicas and the other Sentinels to their addresses in an answer.
    fn follow_survey(&mut self, answer: SurveyAnswer) {
        let (pool, primary) = (answer.pool, answer.primary);
        if answer.names_others {
            self.meet_sentinels(pool);
        }
        // The replicas are those of the primary that is believed then.
        self.follow_primary(pool, primary);
        let in_use = self.servers_in_use();
        self.discovery
            .know_replicas_named(&mut self.plane, answer, &in_use);
        self.forget_reused();
    }

    /// A Sentinel has sent a message.
    pub(crate) fn take_sentinel_push(&mut self, link: LinkId, push: &[u8]) {
        match self
            .discovery
            .take_sentinel_push(&mut self.plane, link, push)
        {
            SentinelEvent::Nothing => return,
            SentinelEvent::Survey => {}
            SentinelEvent::Moved { pool, primary } => {
                self.follow_primary(pool, primary);
            }
        }
        self.discovery.survey_soon(&mut self.plane, link);
    }

    /// The server that stands for a primary reports the role of a replica. Returns whether its
    /// requests go to another server now.
    pub(crate) fn leave_new_primary(&mut self, server: ServerId) -> bool {
        let new_primary = self.discovery.forget_new_primary(&mut self.plane, server);
        new_primary.is_some_and(|(pool, primary)| self.follow_primary(pool, primary))
    }

    /// Follows a primary to the address that the Sentinels name, and ends its links to the old one.
    /// Returns whether that is a new address.
    fn follow_primary(&mut self, pool: usize, primary: usize) -> bool {
        let moves = self
            .discovery
            .take_new_address(&mut self.plane, pool, primary);
        let Some(server) = moves else {
            return false;
        };
        for id in self.plane.links.ids() {
            if self.plane.leave_old_address(id, server) {
                self.settle_losses();
                // The failures that were counted were those of the old server.
                self.plane.health(server).forget();
            }
        }
        self.discovery
            .connect_to_new_address(&mut self.plane, server);
        true
    }
}

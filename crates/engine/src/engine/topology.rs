//! Changes of the topology, as far as they concern more than one component.
//!
//! Discovery reads the answers of servers, writes the routing tables, and returns the rest: which
//! servers lost slots, left, or got another address. Sessions, hubs, watches and deferred requests
//! follow here.

use crate::base::handle::LinkId;
use crate::data_plane::DataPlane;
use crate::data_plane::completion::discovery::DiscoveryCompletion;
use crate::discovery::sentinel::{SentinelEvent, SurveyAnswer};
use crate::discovery::servers::ServersInUse;
use crate::discovery::{Discovery, TopologyReply};
use crate::engine::Engine;
use crate::routing::pool::ServerId;

/// Refreshes.
impl Engine {
    /// A server has answered a question about the topology.
    pub(crate) fn settle_discovery(
        &mut self,
        id: LinkId,
        question: DiscoveryCompletion,
        reply: &[u8],
    ) {
        match self.discovery.settle(&mut self.plane, id, question, reply) {
            TopologyReply::Settled => {}
            TopologyReply::RefreshIsOver { pool } => self.end_refresh(pool),
            TopologyReply::Surveyed(answer) => self.follow_survey(answer),
        }
    }

    /// Ends slow refreshes, starts refreshes that are due, and closes the links to silent nodes.
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
            self.choose_default_server(pool);
        }
    }

    /// Ends a refresh. Discovery believes a topology of the answers, if one counts.
    fn end_refresh(&mut self, pool: usize) {
        let ended = self.with_servers_in_use(|discovery, plane, in_use| {
            discovery.end_refresh(plane, pool, in_use)
        });
        let Some(ended) = ended else {
            return;
        };
        if ended.change.is_some() {
            // The default server may have left.
            self.choose_default_server(pool);
        }
        self.with_servers_in_use(|discovery, plane, in_use| {
            discovery.conclude_refresh(plane, pool, ended, in_use);
        });
    }

    /// Chooses the node of a Cluster for publishing and subscribing, and moves hubs to it.
    fn choose_default_server(&mut self, pool: usize) {
        let counts = self.pubsub.subscriber_counts.clone();
        let (discovery, plane) = (&mut self.discovery, &mut self.plane);
        let moves = discovery.choose_default_server(plane, pool, &mut counts.default_servers());
        if let Some((from, to)) = moves {
            self.pubsub.move_hubs(&mut self.plane, from, to);
        }
    }
}

/// Servers that come and go.
impl Engine {
    /// Has discovery take in servers. Where there are many, a new server may get the entry of one
    /// that is gone. Discovery cannot see deferred requests and hubs, so the engine tells it which
    /// servers these refer to: their entries are kept. `Local` then drops the answers of a server
    /// with an entry that was reused.
    pub(crate) fn with_servers_in_use<T>(
        &mut self,
        take_in: impl FnOnce(&mut Discovery, &mut DataPlane, &ServersInUse) -> T,
    ) -> T {
        let (discovery, plane) = (&mut self.discovery, &mut self.plane);
        let in_use = match discovery.reuses_servers(plane) {
            true => ServersInUse {
                all: self.redirects.has_waiting_sessions(),
                some: self.pubsub.servers_needed(),
            },
            false => ServersInUse::default(),
        };
        let taken = take_in(discovery, plane, &in_use);
        for server in discovery.reused.drain(..) {
            self.local.forget_server(plane, server);
        }
        taken
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
        self.with_servers_in_use(|discovery, plane, in_use| {
            discovery.meet_sentinels(plane, pool, in_use);
        });
    }

    /// Follows a primary, its replicas and the other Sentinels to their addresses in an answer.
    fn follow_survey(&mut self, answer: SurveyAnswer) {
        let (pool, primary) = (answer.pool, answer.primary);
        if answer.names_others {
            self.meet_sentinels(pool);
        }
        // The replicas are those of the primary that is believed then.
        self.follow_primary(pool, primary);
        self.with_servers_in_use(|discovery, plane, in_use| {
            discovery.know_replicas_named(plane, answer, in_use);
        });
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

//! Pools that a reload adds or ends.
//!
//! ```text
//!   handle_settings ──► new pools connect; sessions of ended pools begin to leave
//!   tick            ──► sessions may move once the new pool answers, or after `outage-hold-ms`
//!   failed attempt  ──► sessions may move at once if no server of the old pool can be reached
//!   each turn       ──► some sessions move; the last ones are closed at the bound of time
//!                   ──► discovery forgets the pool; its links close
//! ```

use crate::base::handle::SessionId;
use crate::base::settings::Settings;
use crate::engine::Engine;

impl Engine {
    /// Adds and ends pools, after new settings are in effect. `before`: the old settings.
    /// `drain_ms`: how long sessions of ended pools may go on with state at the old server.
    pub(crate) fn follow_pools(&mut self, before: &Settings, drain_ms: u32) {
        if self.plane.settings.pools.len() > self.plane.pools.len() {
            let (pools, _) = self.plane.add_pools();
            self.discovery
                .add_pools(&self.plane.pools, &self.plane.servers, pools.start);
            for pool in pools {
                self.meet_sentinels(pool);
            }
        }
        for pool in self.plane.newly_ended(before) {
            if let Some(successor) = self.plane.begin_pool_end(pool, drain_ms) {
                // The scripts that clients have sent to the old pool are known to the new one.
                self.local.scripts.copy(pool, successor);
            }
        }
        self.plane.leave_pools_in_back_off();
        self.tick_pool_ends();
    }

    /// The sessions to close because their pool ends without a successor. Requests that they have
    /// sent are answered first.
    pub fn sessions_of_removed_pools(&self, settings: &Settings) -> Vec<SessionId> {
        self.plane.sessions_of_removed_pools(settings)
    }

    /// Looks for pools that sessions may leave now, and closes links that nothing uses any more.
    pub(crate) fn tick_pool_ends(&mut self) {
        if !self.plane.ending.is_empty() {
            self.plane.tick_pool_ends();
            self.pubsub.follow_pool_ends(&mut self.plane);
            self.settle_losses();
        }
    }

    /// Has some sessions leave pools that have ended, and forgets the pools that all have left.
    pub(crate) fn go_on_leaving(&mut self) {
        let end_session = |plane: &mut _, id| self.pinned.end_session(plane, id);
        for pool in self.plane.go_on_leaving(end_session) {
            self.discovery.forget_pool(&mut self.plane, pool);
            self.plane.leave_pool(pool);
            self.local.scripts.forget(pool);
        }
    }
}

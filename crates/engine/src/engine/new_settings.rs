//! New settings, between two turns.
//!
//! ```text
//!   handle_settings ──► plane: sessions of removed users close
//!                   ──► plane: limits, deadlines, refused commands; sessions that wait go on
//!                   ──► pools: new ones connect; sessions of ended ones leave (`pool_ends.rs`)
//!                   ──► admin: flush rules; values of CONFIG SET end
//! ```
//!
//! Most code reads the settings where it needs them, so it sees new values at once. Only values
//! that were copied at the start are copied again here.

use std::sync::Arc;

use crate::base::limits::unanswered_bytes_max;
use crate::base::reload_report::ReloadReport;
use crate::base::settings::Settings;
use crate::base::time::Time;
use crate::data_plane::actions::ListeningPort;
use crate::engine::Engine;

/// An order to take other settings. All workers of a process get an equal one.
#[derive(Clone, Debug)]
pub struct NewSettings {
    /// The settings. Their pools are those of [`PoolPlaces`](crate::PoolPlaces).
    pub settings: Arc<Settings>,
    /// The time of the order, by the clock that all workers share. Options that clients set before
    /// it are overwritten.
    pub at: Time,
    /// The TCP ports for clients, in the order of the configuration.
    pub ports: Arc<[ListeningPort]>,
    /// How long sessions of a pool that has ended may go on with a transaction or a request that
    /// waits, before they are closed.
    pub drain_ms: u32,
}

impl Engine {
    /// Takes other settings. Sessions stay, except those of removed users and pools. Links stay,
    /// except those of pools that have ended.
    pub fn handle_settings(&mut self, new: NewSettings) {
        let mut settings = bounded(new.settings);
        let users = self.plane.take_users(&settings.users);
        if users != settings.users {
            Arc::make_mut(&mut settings).users = users;
        }
        self.plane.worker.ports = new.ports;
        let before = self.plane.settings.clone();
        self.plane.take_settings(settings.clone());
        self.follow_pools(&before, new.drain_ms);
        // Behind the new pools: an option that a client has set later may be one of theirs.
        self.admin.take_rules(&mut self.plane, &settings, new.at);
    }

    /// Takes the outcome of the last reload of the configuration, for INFO.
    pub fn handle_reload_report(&mut self, report: ReloadReport) {
        self.admin.reloads = report;
    }
}

/// Lowers the bound of unanswered bytes to the part that the memory bound allows.
pub(crate) fn bounded(mut settings: Arc<Settings>) -> Arc<Settings> {
    let bytes_max = unanswered_bytes_max(&settings.limits);
    if settings.limits.link_unanswered_bytes_max > bytes_max {
        Arc::make_mut(&mut settings)
            .limits
            .link_unanswered_bytes_max = bytes_max;
    }
    settings
}

//! The outcome of reloads of the configuration.

/// The outcome of all reloads so far, for INFO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReloadReport {
    /// Number of configurations that were applied after the first one.
    pub epoch: u64,
    /// Number of reloads that failed. A failed reload changes nothing.
    pub failures: u64,
    /// Whether the last reload failed.
    pub last_failed: bool,
    /// The time of the last reload, seconds since 1970. 0: there was none.
    pub last_at: u64,
}

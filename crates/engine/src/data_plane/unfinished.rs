//! Requests without their end.

use respool_protocol::request::{RequestScanner, Tail, Violation};

use crate::base::handle::{LinkId, SessionId};
use crate::base::limits::UNAUTHENTICATED_HELD_BYTES_MAX;
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::session::Flags;

/// The handling of a request without its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfinished {
    /// The session is refused: it sent much and has not authenticated.
    Refused,
    /// The request is too large to hold, and goes on as it comes.
    Large,
    /// It is held until it is whole.
    Held,
}

/// A request too large to be held, while it is sent.
pub(crate) struct LargeRequest {
    /// The scan of its rest.
    pub(crate) tail: Tail,
    /// The link that gets it. `None`: it was refused, and its rest is dropped.
    pub(crate) link: Option<LinkId>,
    /// The completion of its reply, if that is not simply passed on.
    pub(crate) completion: Option<Completion>,
    /// Whether the session wants no reply to it.
    pub(crate) silent: bool,
}

impl DataPlane {
    /// Judges a request that begins with `rest`, without its end.
    pub(crate) fn judge_unfinished(
        &mut self,
        id: SessionId,
        scanner: &mut RequestScanner,
        rest: &[u8],
    ) -> Unfinished {
        let state = self.sessions.get(id).map(|session| session.state);
        let state = state.unwrap_or_default();
        let is_trusted = !state.any(Flags::UNAUTHENTICATED);
        if !is_trusted && rest.len() > UNAUTHENTICATED_HELD_BYTES_MAX {
            scanner.reset();
            self.refuse_protocol(id, Violation::UnauthenticatedBulkLength);
            return Unfinished::Refused;
        }
        let limits = &self.settings.limits;
        let held_max = match state.any(Flags::IN_MULTI) {
            true => limits.transaction_bytes_max,
            false => limits.request_held_bytes_max,
        } as usize;
        let is_large = scanner.argc() > 0
            && (scanner.len_at_least() > held_max as u64 || rest.len() > held_max);
        // This is decided once: a request may come in thousands of reads.
        if is_large && !scanner.is_held_whole() && self.is_held_whole(id, scanner, rest) {
            scanner.hold_whole();
        }
        match is_large && !scanner.is_held_whole() {
            true => Unfinished::Large,
            false => Unfinished::Held,
        }
    }
}

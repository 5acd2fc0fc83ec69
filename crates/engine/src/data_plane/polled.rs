//! The blocking commands that are polled instead of sent to wait at their server.

use std::collections::VecDeque;

use crate::base::handle::{LinkId, SessionId};
use crate::base::limits::POLL_AGAIN_MS;
use crate::base::time::{Stamp, Time};
use crate::data_plane::ledger::CommandMark;
use crate::data_plane::link::LinkKind;

/// A blocking command that is polled.
#[derive(Debug)]
pub(crate) struct PolledCommand {
    pub(crate) session: SessionId,
    /// The place of its reply in the session's order.
    pub(crate) seq: u32,
    pub(crate) command: CommandMark,
    /// The time when it was read.
    pub(crate) read_at: Stamp,
    pub(crate) request: Vec<u8>,
    pub(crate) kind: LinkKind,
    pub(crate) slot: Option<u16>,
    /// The end of the client's timeout. `None`: it waits for ever.
    pub(crate) until: Option<Time>,
    pub(crate) due: Time,
    /// The link on which a poll is in flight.
    pub(crate) link: Option<LinkId>,
    /// The server's last nil.
    pub(crate) nil: Vec<u8>,
}

/// The blocking commands that are polled, the one that was sent longest ago first. Each session has
/// at most one.
#[derive(Debug, Default)]
pub(crate) struct PolledCommands {
    pub(crate) waiting: VecDeque<PolledCommand>,
}

impl PolledCommands {
    /// Whether a command of this session is polled.
    pub(crate) fn holds(&self, session: SessionId) -> bool {
        self.waiting.iter().any(|one| one.session == session)
    }

    /// Drops the command of a session that has gone. Returns its bytes.
    pub(crate) fn forget(&mut self, session: SessionId) -> usize {
        self.take(session).map_or(0, |one| one.request.len())
    }

    /// Bytes of the requests.
    #[cfg(debug_assertions)]
    pub(crate) fn held_bytes(&self) -> usize {
        self.waiting.iter().map(|one| one.request.len()).sum()
    }

    pub(crate) fn take(&mut self, session: SessionId) -> Option<PolledCommand> {
        let at = self.waiting.iter().position(|one| one.session == session)?;
        self.waiting.remove(at)
    }

    /// Takes the due command that has waited longest.
    pub(crate) fn next_due(&mut self, now: Time) -> Option<PolledCommand> {
        let is_due = |one: &PolledCommand| one.link.is_none() && one.due <= now;
        let at = self.waiting.iter().position(is_due)?;
        self.waiting.remove(at)
    }

    /// Puts a command behind those of all other sessions, to be sent again.
    pub(crate) fn postpone(&mut self, mut one: PolledCommand, now: Time) {
        one.link = None;
        one.due = now.plus_ms(POLL_AGAIN_MS);
        self.waiting.push_back(one);
    }

    /// The sessions that poll on a link.
    pub(crate) fn on(&self, link: LinkId) -> Vec<SessionId> {
        let is_on = |one: &&PolledCommand| one.link == Some(link);
        self.waiting
            .iter()
            .filter(is_on)
            .map(|one| one.session)
            .collect()
    }
}

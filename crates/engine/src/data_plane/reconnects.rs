//! Which lost links connect again at once, with the requests that wait for them.
//!
//! ```text
//!   up for a second or longer                         connects at once
//!   younger, and it answered a request                connects at once, for one token
//!   younger, and another link to its server is up     connects at once, for many tokens
//!   younger, without either, or without tokens        backs off, and requests fail
//!   in back-off, and its user logs in, also by EXEC   connects at once
//!   refused, and its user logs in for another link    connects at once, for many tokens
//! ```
//!
//! A server closes a link that it owes too much (`client-output-buffer-limit`,
//! `maxmemory-clients`), however young the link is. Such a server is well all the same.
//!
//! Reads that were in flight on a lost link are sent once more. If a session had more than
//! [`LOST_TOGETHER_MAX`] of them, all its requests go on a link apart, one for all such sessions:
//! their replies may be the reason why the server closed the link.

use std::collections::HashMap;

use crate::base::handle::{LinkId, SessionId};
use crate::base::limits::{RECONNECT_TOKEN_MS, RECONNECT_TOKENS_MAX, RECONNECT_UNANSWERED_TOKENS};
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::ledger::EarlierAttempt;
use crate::data_plane::link::LinkRole;
use crate::data_plane::session::Session;
use crate::routing::pool::ServerId;

/// More reads of one session than this, lost with a link, are sent again on a link apart.
const LOST_TOGETHER_MAX: usize = 4;

/// The tokens for young links to one server. Call [`Reconnects::take`] for each link that
/// reconnects. Time never runs back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reconnects {
    /// Tokens left at `since`.
    tokens: u32,
    /// When the next token began to grow.
    since: Time,
}

impl Default for Reconnects {
    fn default() -> Self {
        Reconnects {
            tokens: RECONNECT_TOKENS_MAX,
            since: Time(0),
        }
    }
}

impl Reconnects {
    /// Takes the tokens for one young link. Returns whether it may connect again at once.
    fn take(&mut self, has_answered: bool, now: Time) -> bool {
        let each_us = u64::from(RECONNECT_TOKEN_MS) * 1_000;
        let grown = now.since_us(self.since) / each_us;
        let tokens = u64::from(self.tokens).saturating_add(grown);
        self.tokens = tokens.min(u64::from(RECONNECT_TOKENS_MAX)) as u32;
        self.since = match self.tokens == RECONNECT_TOKENS_MAX {
            true => now,
            false => Time(self.since.0 + grown * each_us),
        };
        let price = match has_answered {
            true => 1,
            false => RECONNECT_UNANSWERED_TOKENS,
        };
        let may = self.tokens >= price;
        if may {
            self.tokens -= price;
        }
        may
    }
}

impl DataPlane {
    /// Whether a young link that was lost connects again at once: its server is well, and tokens
    /// are left.
    pub(crate) fn reconnects_at_once(&mut self, id: LinkId) -> bool {
        let Some(link) = self.links.get(id) else {
            return false;
        };
        let (server, up_since) = (link.kind.server, link.up_since);
        let was_answered = |session: &Session| session.link == id && session.answered_at > up_since;
        let has_answered = self
            .sessions
            .iter()
            .any(|(_, session)| was_answered(session));
        let now = self.now;
        (has_answered || self.has_link_up(server))
            && self.health(server).reconnects.take(has_answered, now)
    }

    /// Whether a link that its server refused connects again at once, because its user has logged
    /// in for another link.
    pub(crate) fn may_connect_refused(&mut self, server: ServerId) -> bool {
        let now = self.now;
        self.health(server).reconnects.take(false, now)
    }

    /// A shared link was lost, and its reads in flight stayed in its ledger. If sessions had more
    /// than [`LOST_TOGETHER_MAX`], all their requests move to one link apart. Such a session sends
    /// nothing more before they are answered. `cut_off`: a session that is closed; its requests are
    /// dropped.
    pub(super) fn ask_pipelines_apart(&mut self, id: LinkId, cut_off: Option<SessionId>) {
        let Some(link) = self.links.get_mut(id) else {
            return;
        };
        if let Some(cut_off) = cut_off {
            link.take_unsent(|entry| entry.session == cut_off);
        }
        let mut lost: HashMap<SessionId, usize> = HashMap::new();
        for entry in link.ledger.iter() {
            let is_lost =
                entry.earlier_attempt() == EarlierAttempt::Lost && entry.session != SessionId::NONE;
            *lost.entry(entry.session).or_default() += usize::from(is_lost);
        }
        lost.retain(|_, count| *count > LOST_TOGETHER_MAX);
        let kind = link.kind;
        let Some(by) = lost.keys().next().copied() else {
            return;
        };
        if !self.has_room_for_link() {
            return;
        }
        let Some(apart) = self.add_link(kind, LinkRole::Draining { by }) else {
            return;
        };
        let Some(link) = self.links.get_mut(id) else {
            return;
        };
        let departed = link.take_departing(|entry, _| lost.contains_key(&entry.session));
        let Some(state) = self.links.get_mut(apart) else {
            return;
        };
        for each in departed {
            state.ledger.push_departed(each);
        }
        for session in lost.into_keys() {
            self.hold_until_caught_up(session);
        }
        self.connect(apart);
        self.list_link(apart);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_bound_reconnects_of_young_links() {
        for (has_answered, price) in [(true, 1), (false, RECONNECT_UNANSWERED_TOKENS)] {
            let mut reconnects = Reconnects::default();
            let start = Time(0).plus_ms(60_000);
            let at_once = RECONNECT_TOKENS_MAX / price;
            for _ in 0..at_once {
                assert!(reconnects.take(has_answered, start));
            }
            assert!(!reconnects.take(has_answered, start));
            let soon = start.plus_ms(price * RECONNECT_TOKEN_MS - 1);
            assert!(!reconnects.take(has_answered, soon));
            let later = start.plus_ms(price * RECONNECT_TOKEN_MS);
            assert!(reconnects.take(has_answered, later));
            assert!(!reconnects.take(has_answered, later));
            let much_later = later.plus_ms(1_000_000);
            let taken = (0..200).filter(|_| reconnects.take(has_answered, much_later));
            assert_eq!(taken.count() as u32, at_once);
        }
    }
}

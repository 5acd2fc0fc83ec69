//! Which lost links connect again at once, with the requests that wait for them.
//!
//! ```text
//!   up for a second or longer                         connects at once
//!   younger, and it answered a request                connects at once, for one token
//!   younger, and another link to its server is up     connects at once, for many tokens
//!   younger, and neither; or the tokens are used up   rests, and requests fail
//!   rests, and its user logs in, also within EXEC     connects at once
//!   refused, and its user logs in elsewhere           connects at once, for many tokens
//! ```
//!
//! A server closes a link that it owes too much (`client-output-buffer-limit`,
//! `maxmemory-clients`), however young the link is. Such a server is well all the same.
//!
//! Reads that were in flight on a lost link are asked once more. Several reads of one session go on
//! a link apart: their replies may be the reason why the server closed the link.

use std::collections::HashMap;

use crate::engine::Engine;
use crate::entry::Before;
use crate::limits::{RECONNECT_TOKEN_MS, RECONNECT_TOKENS_MAX, RECONNECT_UNANSWERED_TOKENS};
use crate::link::Role;
use crate::pool::ServerId;
use crate::session::Session;
use crate::slots::Key;
use crate::time::Time;

/// Reads of one session, lost with a link, above which they are asked again on a link apart.
const LOST_TOGETHER_MAX: usize = 4;

/// The tokens for young links to one server. Ask [`Reconnects::take`] for each; time never runs
/// back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reconnects {
    tokens: u32,
    /// Since when another one grows.
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
    /// Whether one more young link may connect again at once.
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

impl Engine {
    /// Whether a link that is up no more connects again at once although it is young: its server is
    /// well, and this does not happen too often.
    pub(crate) fn reconnects_at_once(&mut self, key: Key) -> bool {
        let Some(link) = self.links.get(key) else {
            return false;
        };
        let (server, up_since) = (link.key.server, link.up_since);
        let was_answered =
            |session: &Session| session.link == key && session.answered_at > up_since;
        let has_answered = self.sessions.iter().any(|(_, its)| was_answered(its));
        let now = self.now;
        (has_answered || self.has_link_up(server))
            && self.health(server).reconnects.take(has_answered, now)
    }

    /// Whether a link that its server refused connects again at once, because its user has logged
    /// in.
    pub(crate) fn may_connect_refused(&mut self, server: ServerId) -> bool {
        let now = self.now;
        self.health(server).reconnects.take(false, now)
    }

    /// A shared link was lost, and its reads in flight stayed on it. If a session had several, they
    /// move to a link apart, with the requests of the session behind them. The session sends
    /// nothing more before they are answered. `cut_off`: a session that is closed; its requests are
    /// dropped.
    pub(crate) fn ask_pipelines_apart(&mut self, key: Key, cut_off: Option<Key>) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        if let Some(cut_off) = cut_off {
            link.take_unsent(|entry| entry.session == cut_off);
        }
        let mut lost: HashMap<Key, usize> = HashMap::new();
        for entry in &link.ledger {
            let is_lost = entry.before == Before::Lost && entry.session != Key::NOBODY;
            *lost.entry(entry.session).or_default() += usize::from(is_lost);
        }
        lost.retain(|_, count| *count > LOST_TOGETHER_MAX);
        let kind = link.key;
        let Some(by) = lost.keys().next().copied() else {
            return;
        };
        if !self.has_room_for_link() {
            return;
        }
        let Some(apart) = self.add_link(kind, Role::Captured { by }) else {
            return;
        };
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        let left = link.take_left(|entry, _| lost.contains_key(&entry.session));
        let Some(state) = self.links.get_mut(apart) else {
            return;
        };
        for each in left {
            match each.duty {
                Some(duty) => state.push_with(each.entry, &each.request, duty),
                None => state.push(each.entry, &each.request),
            }
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
    fn young_links_connect_at_once_only_so_often() {
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

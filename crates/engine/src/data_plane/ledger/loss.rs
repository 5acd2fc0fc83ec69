//! The ledger of a connection that ends: the requests that stay for the next one.

use std::collections::HashSet;

use crate::base::handle::SessionId;
use crate::data_plane::completion::Completion;
use crate::data_plane::ledger::departures::Departures;
use crate::data_plane::ledger::{EarlierAttempt, Entry, HeldRequest, Ledger};

impl Ledger {
    /// Ends the connection. Returns the requests that may have been executed, and requests that no
    /// session waits for. Requests that were not written whole stay for the next connection. If
    /// that follows at once (`again`), reads that were sent once also stay.
    pub(crate) fn lose_connection(&mut self, again: bool) -> Vec<Entry> {
        let mixed = self.is_mixed();
        let sent = self.sent();
        let stays = self.survivors_of_loss(sent, again);
        let gone = self.rebuild(sent, &stays);
        if mixed {
            self.put_into_session_order();
        }
        gone
    }

    /// The number of requests, from the front, that were written whole.
    pub(crate) fn sent(&self) -> usize {
        let mut unwritten = self.bytes.unwritten().len();
        let mut sent = self.entries.len();
        while sent > 0 && unwritten > 0 {
            unwritten = unwritten.saturating_sub(self.entries[sent - 1].len as usize);
            sent -= 1;
        }
        // A fused request was sent when its last member was.
        while sent > 0 && sent < self.entries.len() && self.entries[sent].class.is_joined() {
            sent -= 1;
        }
        sent
    }

    /// Whether each request stays for the next connection. The first `sent` were written whole. A
    /// read among them does not stay if its session sent a change after it: the second run would
    /// see that change.
    fn survivors_of_loss(&self, sent: usize, again: bool) -> Vec<bool> {
        // A request that no session waits for is not sent again: its client may have sent another
        // request since.
        let is_wanted = |entry: &Entry| entry.session != SessionId::NONE || entry.has_completion();
        let mut stays: Vec<bool> = self.entries.iter().map(is_wanted).collect();
        let is_simple = |request: HeldRequest<'_>| {
            let read_again = request.completion.and_then(Completion::read_again);
            !request.entry.has_completion() || read_again.is_some()
        };
        let simple: Vec<bool> = self.requests().map(is_simple).collect();
        let mut changed = HashSet::new();
        for (index, entry) in self.entries.iter().enumerate().take(sent).rev() {
            let simple = entry.is_silent() || simple[index];
            let harmless = entry.class.reads() && simple && !changed.contains(&entry.session);
            let is_first_loss = entry.earlier_attempt() != EarlierAttempt::Lost;
            stays[index] = again && harmless && is_first_loss && entry.session != SessionId::NONE;
            if !entry.class.reads() {
                changed.insert(entry.session);
            }
        }
        stays
    }

    /// Makes a ledger of the requests that stay, of which none is sent. Each stands alone again.
    /// Returns the others. A completion may still refuse to begin again.
    fn rebuild(&mut self, sent: usize, stays: &[bool]) -> Vec<Entry> {
        let left = self.in_flight();
        let mut gone = Vec::new();
        let mut kept = Vec::new();
        for (index, (mut entry, extent, mut completion)) in self.take_all().enumerate() {
            let has_no_session = entry.session == SessionId::NONE;
            if entry.class.is_whole() {
                // The members of a fused request stand for themselves again.
            } else if stays[index]
                && completion
                    .as_mut()
                    .is_none_or(|completion| completion.begin_again(has_no_session))
            {
                let begins_at = kept.len();
                kept.extend_from_slice(extent.beginning);
                kept.extend_from_slice(&self.bytes.bytes()[extent.sent]);
                entry.len = (kept.len() - begins_at) as u32;
                entry.class = entry.class.alone();
                if index < left {
                    entry = entry.leaving_again();
                }
                if index < sent {
                    entry = entry.after(EarlierAttempt::Lost);
                }
                self.entries.push_back(entry);
                self.completions.extend(completion);
            } else {
                gone.push(entry);
            }
        }
        self.bytes.replace(kept);
        self.allowed = 0;
        self.count_open();
        self.heads = 0;
        self.is_repeating = false;
        self.departures = Departures::default();
        gone
    }

    /// Puts each session's requests into the order in which the session sent them. A request that
    /// is sent again may stand behind later ones. Nothing is in flight.
    fn put_into_session_order(&mut self) {
        let mut requests: Vec<_> = self.take_all().collect();
        requests.sort_by(|(one, ..), (other, ..)| one.cmp_in_session(other));
        let mut bytes = Vec::with_capacity(self.bytes.bytes().len());
        for (entry, extent, completion) in requests {
            bytes.extend_from_slice(&self.bytes.bytes()[extent.own]);
            self.entries.push_back(entry);
            self.completions.extend(completion);
        }
        self.bytes.replace(bytes);
    }
}

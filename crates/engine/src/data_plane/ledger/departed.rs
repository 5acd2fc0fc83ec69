//! Requests that leave a ledger for another link.

use std::collections::{HashMap, HashSet};

use crate::base::handle::SessionId;
use crate::data_plane::completion::Completion;
use crate::data_plane::ledger::departures::Departures;
use crate::data_plane::ledger::{EarlierAttempt, Entry, HeldRequest, Ledger};

/// A request that was taken off its link.
pub(crate) struct Departed {
    /// Its entry, as it is put on the next link.
    pub(crate) entry: Entry,
    /// Its bytes.
    pub(crate) request: Vec<u8>,
    /// The use of its reply, if that is not simply passed on.
    pub(crate) completion: Option<Completion>,
}

/// The rule for a request that was sent on one link and is sent again on another link.
#[derive(Debug)]
pub(crate) enum RepeatRule {
    /// It is not sent again.
    No,
    /// It is sent again, and its reply is passed on.
    Plainly,
    /// It is sent again, and its reply has this completion.
    With(Completion),
}

/// Bounds on the requests of one link that are sent a second time.
pub(crate) struct RepeatBounds {
    /// Requests of one session. A session with more of them waits.
    pub(crate) requests_of_session: usize,
    /// Bytes of all requests. A session without room for its requests waits.
    pub(crate) bytes: usize,
}

/// The requests of one session on a link.
struct SessionSum {
    /// Whether all may be sent a second time.
    may_go: bool,
    /// The number of requests.
    requests: usize,
    /// Bytes of all requests.
    bytes: usize,
}

/// Reads of one session that are sent again on another link when its link is not read any more. If
/// two hundred sessions are slow, one after the other, each of them makes the server repeat the
/// reads of the others. With 128 a server had time for nothing else.
pub(super) const ASKED_AGAIN_MAX: usize = 16;

impl Ledger {
    /// Appends a request that has left another link.
    pub(crate) fn push_departed(&mut self, departed: Departed) {
        match departed.completion {
            Some(completion) => self.push_with(departed.entry, &departed.request, completion),
            None => self.push(departed.entry, &departed.request),
        }
    }

    /// Takes the requests that can go to another link: those of sessions whose requests here may
    /// all be sent twice. The first replies will be dropped. A session with any other request must
    /// wait, or its order is lost. `stay`: sessions that keep their requests here. `again`: how a
    /// request is sent a second time, if it may be.
    pub(crate) fn take_requests_of_others(
        &mut self,
        stay: [SessionId; 2],
        again: impl Fn(&Entry, &[u8], Option<&Completion>) -> RepeatRule,
        bounds: RepeatBounds,
    ) -> Vec<Departed> {
        let mixed = self.is_mixed();
        let rule = |held: HeldRequest<'_>| again(held.entry, held.sent(), held.completion);
        let rules: Vec<RepeatRule> = self.requests().map(rule).collect();
        let going = self.sessions_that_go(stay, &rules, bounds);
        let mut taken = Vec::new();
        for (held, rule) in self.requests().zip(rules) {
            if !going.contains(&held.entry.session) {
                continue;
            }
            let request = held.bytes();
            taken.push(Departed {
                entry: Entry {
                    len: request.len() as u32,
                    class: held.entry.class.alone(),
                    ..held.entry.after(EarlierAttempt::Lost)
                },
                request,
                completion: match rule {
                    RepeatRule::With(completion) => Some(completion),
                    RepeatRule::Plainly | RepeatRule::No => None,
                },
            });
        }
        for entry in self.iter_mut() {
            if going.contains(&entry.session) {
                entry.give_up();
            }
        }
        if mixed {
            taken.sort_by(|one, other| one.entry.cmp_in_session(&other.entry));
        }
        taken
    }

    /// The sessions of the requests that leave. `rules`: for each request, how it is sent again.
    fn sessions_that_go(
        &self,
        stay: [SessionId; 2],
        rules: &[RepeatRule],
        bounds: RepeatBounds,
    ) -> HashSet<SessionId> {
        let mut sums: HashMap<SessionId, SessionSum> = HashMap::new();
        for (held, rule) in self.requests().zip(rules) {
            let sum = sums.entry(held.entry.session).or_insert(SessionSum {
                may_go: true,
                requests: 0,
                bytes: 0,
            });
            sum.may_go &= !matches!(rule, RepeatRule::No);
            sum.requests += 1;
            sum.bytes += held.len();
        }
        sums.remove(&SessionId::NONE);
        for session in stay {
            sums.remove(&session);
        }
        let (mut going, mut bytes) = (HashSet::new(), 0);
        for entry in self.iter() {
            if let Some(sum) = sums.remove(&entry.session)
                && sum.may_go
                && sum.requests <= bounds.requests_of_session
                && bytes + sum.bytes <= bounds.bytes
            {
                bytes += sum.bytes;
                going.insert(entry.session);
            }
        }
        going
    }

    /// Takes the plain reads of sessions that have only a few, as
    /// [`Ledger::take_requests_of_others`] does. A session with many requests would make the server
    /// do much work twice.
    pub(crate) fn take_few_reads_of_others(&mut self, stay: [SessionId; 2]) -> Vec<Departed> {
        let again = |entry: &Entry, _: &[u8], _: Option<&Completion>| match entry.class.reads() {
            true if !entry.has_completion() => RepeatRule::Plainly,
            _ => RepeatRule::No,
        };
        let bounds = RepeatBounds {
            requests_of_session: ASKED_AGAIN_MAX,
            bytes: usize::MAX,
        };
        self.take_requests_of_others(stay, again, bounds)
    }

    /// Takes the unsent requests for which `leaves` is true from the ledger of a link that is not
    /// connected. Returns their entries.
    pub(crate) fn take_unsent(&mut self, leaves: impl Fn(&Entry) -> bool) -> Vec<Entry> {
        if !self.iter().any(&leaves) {
            return Vec::new();
        }
        let taken = self.take_departing(|entry, _| leaves(entry));
        taken.into_iter().map(|departed| departed.entry).collect()
    }

    /// Takes such requests, with their bytes and completions.
    pub(crate) fn take_departing(
        &mut self,
        leaves: impl Fn(&Entry, &[u8]) -> bool,
    ) -> Vec<Departed> {
        let mut taken = Vec::new();
        let mut kept = Vec::new();
        for (entry, extent, completion) in self.take_all() {
            let request = &self.bytes.bytes()[extent.own];
            if leaves(&entry, request) {
                taken.push(Departed {
                    entry,
                    request: request.to_vec(),
                    completion,
                });
            } else {
                kept.extend_from_slice(request);
                self.entries.push_back(entry);
                self.completions.extend(completion);
            }
        }
        self.bytes.replace(kept);
        // Nothing is sent before the link is up.
        self.allowed = 0;
        self.count_open();
        self.departures = Departures::default();
        taken
    }
}

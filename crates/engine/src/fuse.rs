//! Level 3 of coalescing: the GETs of a batch leave as one MGET, its SETs without options as one MSET.
//!
//! ```text
//!   gathered:   GET a   SET b 1   INCR c   GET d            of four sessions
//!   sent:       INCR c   SET b 1   MGET a d
//!   ledger:     INCR c | SET b   | Gets(2), a, d           each part with its own session and place
//! ```
//!
//! No client can tell, because of four rules:
//! - Requests of different sessions that were gathered at one moment may run in any order: none of them was
//!   answered. Those of one session keep theirs: what is fused runs behind all others of the batch, so a GET is
//!   fused if its session has asked for nothing but GETs behind it, and a SET if for nothing but such SETs and GETs.
//! - A session of which something is fused is not asked for more until all of it is answered. So whatever has to
//!   be asked again can be asked again as if it had never been sent.
//! - MGET says nil where GET may say WRONGTYPE. So a nil is asked again, as a GET, and everything that its
//!   session has fused behind it, too.
//! - An error is of the whole and says that nothing was executed: every part is asked again by itself, and has
//!   its own answer.
//!
//! Who looks at the server itself can tell: MONITOR, SLOWLOG and INFO show MGET and MSET.

use respool_protocol::number;

use crate::engine::Engine;
use crate::limits::{FUSED_BYTES_MAX, FUSED_KEYS_MAX};
use crate::link::{Class, Entry, GET, SET};
use crate::session::Flags;
use crate::slots::Key;

/// Where a batch is put into its new order; kept for the next one.
#[derive(Default)]
pub(crate) struct Fusing {
    /// What becomes of each request of the batch, from its end on.
    plan: Vec<Class>,
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// The requests that become parts, by where their bytes are.
    sets: Vec<(Entry, usize)>,
    gets: Vec<(Entry, usize)>,
}

/// In one batch, from its end on: what else a session has asked for behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Behind {
    /// Nothing but GETs.
    #[default]
    Gets,
    /// SETs that will be fused.
    Sets,
    /// Something else.
    Other,
}

impl Engine {
    /// A batch is about to leave: what can be fused is.
    pub(crate) fn fuse(&mut self, key: Key) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        if link.unfused > 0 {
            link.unfused -= 1;
            return;
        }
        self.batch = self.batch.wrapping_add(1);
        let batch = self.batch;
        let mut fusing = std::mem::take(&mut self.fusing);
        let Some(link) = self.links.get(key) else {
            return;
        };
        let (entries, bytes) = link.open_batch_of();
        // From the end on: whether a request may be moved behind all others.
        fusing.plan.clear();
        let mut counts = [0_usize; 2];
        let mut at = bytes.len();
        for entry in entries.rev() {
            at -= entry.len as usize;
            let request = &bytes[at..at + entry.len as usize];
            let mut class = if entry.duty {
                Class::Write
            } else {
                entry.class
            };
            let Some(session) = self.sessions.get_mut(entry.session) else {
                fusing.plan.push(Class::Write);
                continue;
            };
            if session.batch != batch {
                session.batch = batch;
                session.behind = Behind::Gets;
            }
            match class {
                Class::Get if session.behind == Behind::Gets && is_plain(request, GET) => {
                    counts[0] += 1;
                }
                Class::Set if session.behind <= Behind::Sets && is_plain(request, SET) => {
                    session.behind = Behind::Sets;
                    counts[1] += 1;
                }
                _ => {
                    session.behind = Behind::Other;
                    class = Class::Write;
                }
            }
            fusing.plan.push(class);
        }
        if counts.iter().any(|count| *count > 1) {
            self.rearrange(key, &mut fusing);
        }
        self.fusing = fusing;
    }

    /// Puts the batch into its new order. Even a single part goes in the form of many: what is moved and what is
    /// fused is asked again in the same cases.
    fn rearrange(&mut self, key: Key, fusing: &mut Fusing) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        fusing.bytes.clear();
        fusing.entries.clear();
        fusing.sets.clear();
        fusing.gets.clear();
        let (entries, bytes) = link.open_batch_of();
        let mut at = 0;
        for (entry, class) in entries.zip(fusing.plan.iter().rev()) {
            let behind = at + entry.len as usize;
            match class {
                Class::Get => fusing.gets.push((*entry, at)),
                Class::Set => fusing.sets.push((*entry, at)),
                _ => {
                    fusing.bytes.extend_from_slice(&bytes[at..behind]);
                    fusing.entries.push(*entry);
                }
            }
            at = behind;
        }
        let kinds = [
            (&fusing.sets, Class::Sets, Class::OfSets, 2),
            (&fusing.gets, Class::Gets, Class::OfGets, 1),
        ];
        for (parts, head, part, args) in kinds {
            let mut rest = &parts[..];
            while !rest.is_empty() {
                let count = together(rest);
                let (these, others) = rest.split_at(count);
                rest = others;
                let start = fusing.bytes.len();
                fusing.bytes.push(b'*');
                number::append(&mut fusing.bytes, 1 + (count * args) as i64);
                let name: &[u8] = match head {
                    Class::Gets => b"\r\n$4\r\nMGET\r\n",
                    _ => b"\r\n$4\r\nMSET\r\n",
                };
                fusing.bytes.extend_from_slice(name);
                fusing.entries.push(Entry {
                    class: head,
                    len: (fusing.bytes.len() - start) as u32,
                    ..Entry::of(Key::NOBODY, count as u32, these[0].0.at_ms)
                });
                for (entry, at) in these {
                    let beginning = part.beginning().len();
                    fusing
                        .bytes
                        .extend_from_slice(&bytes[at + beginning..at + entry.len as usize]);
                    fusing.entries.push(Entry {
                        class: part,
                        len: entry.len - beginning as u32,
                        ..*entry
                    });
                    if let Some(session) = self.sessions.get_mut(entry.session) {
                        session.flags |= Flags::FUSED;
                    }
                }
                self.counters.fused_batches += 1;
                match head {
                    Class::Gets => self.counters.fused_gets += count as u64,
                    _ => self.counters.fused_sets += count as u64,
                }
            }
        }
        link.rearrange(&fusing.bytes, &fusing.entries);
    }
}

/// How many of these, from the first, make one request.
fn together(parts: &[(Entry, usize)]) -> usize {
    let mut bytes = 0;
    let fits = |(entry, _): &&(Entry, usize)| {
        bytes += entry.len as usize;
        bytes <= FUSED_BYTES_MAX
    };
    let count = parts.iter().take(FUSED_KEYS_MAX).take_while(fits).count();
    count.max(1)
}

/// Whether a request is a GET or SET and no more, in the one way to write that.
fn is_plain(request: &[u8], beginning: &[u8]) -> bool {
    // The name may be in any case.
    const NAME_AT: usize = 8;
    request.len() > beginning.len() && request[..NAME_AT] == beginning[..NAME_AT]
}

/// Replies to what was fused.
impl Engine {
    /// A reply to an MGET begins; or it is an error. Returns how many bytes of it are done with: its elements
    /// are replies like others. `None`: the rest has to come first.
    pub(crate) fn open_gets(
        &mut self,
        key: Key,
        head: Entry,
        bytes: &[u8],
    ) -> Result<Option<usize>, String> {
        const WRONG: &str = "its reply to MGET is no array of that length";
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            return Ok(None);
        };
        let line = &bytes[..=end];
        let Some(link) = self.links.get_mut(key) else {
            return Ok(None);
        };
        match line
            .strip_suffix(b"\r\n")
            .and_then(|line| line.split_first())
        {
            Some((b'-', text)) => {
                link.pop_answered(head);
                self.counters.link_replies += 1;
                self.part(key, head.seq, text);
            }
            Some((b'*', count)) if number::parse(count) == Some(head.seq.into()) => {
                link.pop_answered(head);
                link.note_parts(head.seq);
                self.counters.link_replies += 1;
            }
            _ => return Err(WRONG.to_owned()),
        }
        Ok(Some(line.len()))
    }

    /// The reply to an MSET.
    fn settle_sets(&mut self, key: Key, head: Entry, reply: &[u8]) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        link.pop_answered(head);
        self.counters.link_replies += 1;
        if let Some(text) = reply.strip_prefix(b"-") {
            return self.part(key, head.seq, text);
        }
        for _ in 0..head.seq {
            let Some(link) = self.links.get_mut(key) else {
                return;
            };
            let Some(entry) = link.first_in_flight() else {
                return;
            };
            link.pop_answered(entry);
            self.deliver(entry.session, entry.seq, 1, reply);
        }
    }

    /// Nothing of it was executed: the parts go their own ways.
    fn part(&mut self, key: Key, count: u32, _error: &[u8]) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        link.leave_unfused();
        for (entry, request) in link.take_parts(count) {
            self.ask_again(key, entry, &request);
        }
    }

    /// A reply to something fused that may not be what it seems. False: it is.
    pub(crate) fn settle_fused(&mut self, key: Key, entry: Entry, reply: &[u8]) -> bool {
        match entry.class {
            Class::Sets => {
                self.settle_sets(key, entry, reply);
                true
            }
            _ => self.asks_for_element_again(key, entry, reply),
        }
    }

    /// An element that may hide an error, or stands behind one of its session that may, is asked for again.
    fn asks_for_element_again(&mut self, key: Key, entry: Entry, element: &[u8]) -> bool {
        let (Some(link), Some(session)) = (
            self.links.get_mut(key),
            self.sessions.get_mut(entry.session),
        ) else {
            return false;
        };
        let nil = is_nil(element);
        if !nil && !session.flags.any(Flags::ASKS_AGAIN) {
            return false;
        }
        link.nils += u32::from(nil);
        self.counters.link_replies += 1;
        if let Some((entry, request)) = link.take_part_alone() {
            // It was executed.
            let entry = Entry {
                again: true,
                ..entry
            };
            self.ask_again(key, entry, &request);
        }
        true
    }

    fn ask_again(&mut self, key: Key, entry: Entry, request: &[u8]) {
        let Some(session) = self.sessions.get_mut(entry.session) else {
            self.counters.late_replies += 1;
            return;
        };
        session.flags |= Flags::ASKS_AGAIN;
        if let Some(link) = self.links.get_mut(key) {
            link.asks_again = true;
            link.push(entry, request);
        }
        self.counters.asked_again += 1;
        self.list_link(key);
    }
}

/// What MGET says where there is nothing, or nothing that GET would show.
#[inline]
pub(crate) fn is_nil(element: &[u8]) -> bool {
    matches!(element, b"$-1\r\n" | b"_\r\n")
}

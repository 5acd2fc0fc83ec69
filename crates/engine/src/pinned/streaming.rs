//! Requests too large to hold: they are cut through to the server on a link of their own, so that a
//! client that sends slowly holds up nobody else.

use respool_protocol::commands::{self, Answer};
use respool_protocol::request::Scanner;

use crate::belief;
use crate::bounds::Bound;
use crate::duty::Duty;
use crate::engine::Engine;
use crate::entry::Entry;
use crate::link::{LinkKey, Role};
use crate::requests::{Blocked, Placed, bound_reply};
use crate::scripts::{awaits_body, body_shown};
use crate::session::{Flags, Large};
use crate::slots::Key;
use crate::unknown::What;
use crate::words::unknown_command;

impl Engine {
    /// A request of which `rest` is the beginning turns out too large to hold. Returns how many
    /// bytes of `rest` are done with, or `None` if it has to wait.
    pub(crate) fn begin_large(
        &mut self,
        key: Key,
        scanner: &Scanner,
        rest: &[u8],
    ) -> Option<usize> {
        let args: Vec<&[u8]> = scanner.spans().iter().map(|span| span.of(rest)).collect();
        let arg = |index: usize| args.get(index).copied().unwrap_or_default();
        let id = commands::resolve(scanner.argc(), arg);
        if awaits_body(id, &args, scanner.len_at_least()) || self.hold_until_caught_up(key) {
            return None;
        }
        let what = match self.identify(key, &args, scanner.argc()) {
            Ok(what) => what,
            Err(Placed::Wait) => return None,
            Err(Placed::Done) => {
                self.swallow(key, scanner);
                return Some(scanner.scanned());
            }
        };
        let refused = self
            .check_large(key, &args, scanner.argc(), what)
            .and_then(|()| self.route_large(key, what, &args, scanner.argc()))
            .and_then(|()| {
                let arguments = (scanner.argc(), scanner.spans());
                self.strip_large(key, what, arguments, &rest[..scanner.scanned()])
            });
        if refused.is_ok() && self.is_paused_large(key, &args, scanner.argc()) {
            self.hold_for_pause(key);
            return None;
        }
        let mut stripped = None;
        let (flag, link) = match refused.map(|other| stripped = other) {
            Err(text) => {
                self.counters.requests += 1;
                self.refuse_queued(key, &text);
                (Flags::SWALLOWING, None)
            }
            Ok(()) => match self.streaming_link(key) {
                Ok(link) => {
                    self.counters.requests += 1;
                    self.counters.streamed_requests += 1;
                    (Flags::STREAMING, Some(link))
                }
                Err(Blocked::Wait) => return None,
                Err(Blocked::Refused(reply)) => {
                    self.counters.requests += 1;
                    self.counters.failed_not_sent += 1;
                    self.answer_reply(key, &reply);
                    (Flags::SWALLOWING, None)
                }
            },
        };
        let used = scanner.scanned();
        let duty = id.and_then(|id| {
            let counted = self.count_duty(key, id, arg(1));
            counted.or_else(|| self.naming_duty(key, id.get()))
        });
        let session = self.sessions.get_mut(key)?;
        session.flags |= flag;
        // The answer may come before the end of the request, and other requests follow its end.
        session.burst.count_as_many();
        let silent = session.flags.any(Flags::SILENT | Flags::SILENT_ONCE);
        session.rare().large = Some(Large {
            tail: scanner.tail(),
            link,
            duty: match belief::runs_code(id) {
                true => Some(Duty::Code {
                    shown: id.and_then(|id| body_shown(id, &args)),
                }),
                false => duty.or(silent.then_some(Duty::Pass)),
            },
            silent,
        });
        if let Some(link) = link {
            session.take_seq();
            if let Some(link) = self.links.get_mut(link) {
                link.begin_streaming();
                link.tainted |= matches!(what, What::Learned { alone: true, .. });
                link.stream(stripped.as_deref().unwrap_or(&rest[..used]), self.now);
            }
            self.write_link(link);
        }
        self.count_down_silence(key);
        Some(used)
    }

    /// A large request was answered, and is read to its end for nothing.
    fn swallow(&mut self, key: Key, scanner: &Scanner) {
        if let Some(session) = self.sessions.get_mut(key) {
            session.flags |= Flags::SWALLOWING;
            session.rare().large = Some(Large {
                tail: scanner.tail(),
                link: None,
                duty: None,
                silent: false,
            });
        }
    }

    /// As for any request, by the arguments that have come.
    fn check_large(
        &mut self,
        key: Key,
        args: &[&[u8]],
        argc: usize,
        what: What,
    ) -> Result<(), Vec<u8>> {
        let arg = |index: usize| args.get(index).copied().unwrap_or_default();
        let flags = self
            .sessions
            .get(key)
            .map_or(Flags::default(), |session| session.flags);
        let too_large = |name: &str| {
            format!("ERR respool: the arguments of '{name}' are too large").into_bytes()
        };
        if let What::Row(id) = what {
            self.check_shape(key, id.get(), argc, arg)?;
            self.check(key, id.get(), id, argc, arg)?;
            let ours = matches!(
                id.get().answer,
                Answer::Session | Answer::Pinned | Answer::Alone
            );
            if ours {
                return Err(too_large(id.get().name));
            }
        } else if what == What::Nothing {
            return Err(unknown_command(args, self.is_before_7(key)));
        }
        if flags.any(Flags::TUNNEL) {
            return Err(too_large(&String::from_utf8_lossy(arg(0))));
        }
        if flags.any(Flags::IN_MULTI) {
            return Err(
                b"ERR respool: the transaction is larger than transaction-bytes-max".to_vec(),
            );
        }
        Ok(())
    }

    /// A link for one large request of this session.
    fn streaming_link(&mut self, key: Key) -> Result<Key, Blocked> {
        let Some(session) = self.sessions.get(key) else {
            return Err(Blocked::Wait);
        };
        let kind = self.kind_of(session);
        if self.tracks_several(key) {
            self.ride_to_track(key)?;
            self.lack_caching(key);
        }
        let Some(session) = self.sessions.get(key) else {
            return Err(Blocked::Wait);
        };
        if !session.pins.is_empty() {
            if self.wait_for_own_link(key) {
                return Err(Blocked::Wait);
            }
            // Its own link it is, with what the server knows there.
            return self.usable_link(key);
        }
        self.wait_for_streaming(key)?;
        let link = self.link_once(kind, key);
        link.ok_or_else(|| Blocked::Refused(bound_reply("links-max")))
    }

    /// A link that serves one request of this session; `None`: there may be no more links.
    pub(crate) fn link_once(&mut self, kind: LinkKey, key: Key) -> Option<Key> {
        let role = Role::Streaming { by: key };
        if let Some(spare) = self.take_spare(kind, role) {
            return Some(spare);
        }
        let link = self.add_link(kind, role)?;
        self.connect(link);
        Some(link)
    }

    /// There is a bound for such links: at it, the session waits.
    fn wait_for_streaming(&mut self, key: Key) -> Result<(), Blocked> {
        if self.is_past_deadline(key) || self.settings.limits.streaming_links_max == 0 {
            return Err(Blocked::Refused(bound_reply("streaming-links-max")));
        }
        if !self.may_stream(key, 1) {
            self.note_bound(Bound::StreamingLinks);
            self.begin_to_wait(key);
            self.streaming_waiters.wait(key);
            self.hold(key, Flags::HOLD_LINK);
            return Err(Blocked::Wait);
        }
        self.streaming_waiters.leave(key);
        self.set_gives_up_at(key, None);
        Ok(())
    }

    /// Whether this session may have so many streaming links, of all that want some.
    pub(crate) fn may_stream(&self, key: Key, needed: usize) -> bool {
        let free = self.free_streaming_links();
        self.streaming_waiters.admit(key, needed, free)
    }

    pub(crate) fn free_streaming_links(&self) -> usize {
        let max = self.settings.limits.streaming_links_max as usize;
        max.saturating_sub(self.streaming_links())
    }

    pub(crate) fn streaming_links(&self) -> usize {
        let links = self.links.iter();
        let streaming = links.filter(|(_, link)| matches!(link.role, Role::Streaming { .. }));
        streaming.count()
    }

    /// More bytes of a large request; returns how many belong to it.
    pub(crate) fn take_large(&mut self, key: Key, input: &[u8]) -> usize {
        let Some(session) = self.sessions.get_mut(key) else {
            return input.len();
        };
        let seq = session.next_seq.wrapping_sub(1);
        let Some(large) = session.rare.as_mut().and_then(|rare| rare.large.as_mut()) else {
            unreachable!("a session that streams or swallows has a large request");
        };
        let (link, silent) = (large.link, large.silent);
        let (used, ends, duty) = match large.tail.scan(input) {
            Ok((used, true)) => (used, true, large.duty.take()),
            Ok((used, false)) => (used, false, None),
            Err(violation) => {
                self.end_large(key);
                if let Some(link) = link {
                    // The place it took in the order of replies is the error's.
                    self.abandon(link);
                    let mut reply = Vec::new();
                    violation.append_reply(&mut reply);
                    self.deliver(key, seq, 1, &reply);
                }
                // A request that is swallowed has its reply already.
                self.close_when_answered(key);
                return input.len();
            }
        };
        if let Some(link) = link
            && let Some(state) = self.links.get_mut(link)
        {
            state.stream(&input[..used], self.now);
            if ends {
                state.progress = self.now;
                state.ledger.push_back(Entry {
                    duty: duty.is_some(),
                    silent,
                    ..Entry::of(key, seq, self.asked_ms)
                });
                state.duties.extend(duty);
                state.end_streaming();
                self.counters.link_requests += 1;
                self.counters.batches += 1;
            } else if state.out.bytes().len() >= STREAM_BYTES_MAX {
                self.wait_at(key, link);
            }
            self.write_link(link);
        }
        if ends {
            self.end_large(key);
            if link.is_some() {
                // What follows goes on the shared link again, and must not overtake this one there.
                self.hold(key, Flags::HOLD_DRAIN);
            }
        }
        used
    }

    /// The rest of a large request never comes. It was not executed, and is answered by nobody.
    pub(crate) fn forget_large(&mut self, key: Key) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        let link = session.rare().large.take().and_then(|large| large.link);
        session.flags.remove(Flags::STREAMING | Flags::SWALLOWING);
        if let Some(link) = link {
            // It had the last place in the order of replies.
            session.next_seq = session.next_seq.wrapping_sub(1);
            self.abandon(link);
            self.release(key, Flags::HOLD_LINK);
        }
        self.close_when_answered(key);
    }

    fn end_large(&mut self, key: Key) {
        if let Some(session) = self.sessions.get_mut(key) {
            session.flags.remove(Flags::STREAMING | Flags::SWALLOWING);
            session.rare().large = None;
        }
    }
}

/// Bytes of a large request that wait for its server; at it the client is not read.
pub(crate) const STREAM_BYTES_MAX: usize = 1 << 20;

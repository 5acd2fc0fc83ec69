//! One connection of ours to a server: what waits to be written, what is owed in return, and when
//! the open batch leaves.
//!
//! ```text
//!            written, unanswered            flushed      open batch
//! ledger   [ e0 e1 e2 | e3 e4 e5        |  e6 e7      |  e8 e9   ]   requests, first in first out
//! out                          [ half of e5, e6 e7    |  e8 e9   ]   bytes
//!                              ^ next byte to write   ^ allowed
//! ```
//!
//! The ledger has an entry for every request whose reply has not come, whoever still wants it: a
//! reply belongs to the entry in front and to nothing else. An entry leaves only when its reply ends
//! or the connection does.

use std::collections::VecDeque;

use respool_protocol::encode::{self, Version};
use respool_protocol::reply;
use respool_protocol::value::Value;

use crate::buffer::{Outgoing, Spare};
use crate::limits::BATCH_BYTES_MAX;
use crate::pool::ServerId;
use crate::returns::Returns;
use crate::settings::{Credentials, FlushRule};
use crate::slots::Key;
use crate::time::Time;

/// What makes links interchangeable: sessions with the same key share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LinkKey {
    pub(crate) server: ServerId,
    pub(crate) version: Version,
    pub(crate) db: u32,
}

/// Whose requests travel on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Everybody's.
    Shared,
    /// Nobody's any more: `by` takes its replies too slowly, and the link serves what it owes.
    Captured { by: Key },
    /// One large request of `by`.
    Streaming { by: Key },
    /// Nobody's: was streaming, and waits for the next large request.
    Spare,
}

/// How far the connection is.
#[derive(Debug)]
pub(crate) enum State {
    /// Not connected, and nobody waits for it.
    Down,
    /// Until the kernel or the deadline says otherwise.
    Connecting { since: Time },
    /// Connected; the server has to answer our greeting first.
    Greeting { since: Time, greeting: Greeting },
    /// In use.
    Up,
    /// Not connected; the next attempt is at `until`.
    Resting { until: Time },
}

/// The handshake: one write, one reply for each of its commands.
#[derive(Debug)]
pub(crate) struct Greeting {
    /// Not yet written.
    unsent: Vec<u8>,
    /// Replies still to come.
    replies: u32,
    /// The bytes of the reply that is coming.
    got: Vec<u8>,
    scanner: reply::Scanner,
}

/// A request that was put on a link, as long as its reply has not come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Who asked; [`Key::NOBODY`] once the request was answered otherwise or its session is gone.
    pub(crate) session: Key,
    /// Its place in the order of the session's replies.
    pub(crate) seq: u32,
    /// Bytes on the wire; 0 for a request that was cut through.
    pub(crate) len: u32,
    /// When it came, [`Time::stamp_ms`].
    pub(crate) at_ms: u32,
}

/// What the flush rule says of an open batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Flush(Why),
    HoldUntil(Time),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Idle,
    Full,
    Late,
}

pub(crate) struct Link {
    /// Whether a request may be appended without further questions: the one question of the hot path.
    pub(crate) accepting: bool,
    /// Whether the engine has it on its list of links with an open batch.
    pub(crate) listed: bool,
    pub(crate) out: Outgoing,
    /// Of its own: a batch is larger than what sessions need, and comes again and again.
    spare: Spare,
    /// Bytes of `out` that may be written.
    allowed: usize,
    pub(crate) ledger: VecDeque<Entry>,
    /// Entries of the open batch, at the back of the ledger.
    open: u32,
    /// The turn in which the open batch got its first request.
    open_since: Time,
    /// Sessions that got their last reply on this link and are expected back.
    pub(crate) returns: Returns,

    pub(crate) scanner: reply::Scanner,
    /// The reply that is coming, as far as it has not been passed on.
    pub(crate) partial: Vec<u8>,
    /// Whether a part of it has been passed on.
    pub(crate) cutting: bool,
    /// When the server last sent anything, or last had nothing to send.
    pub(crate) progress: Time,
    /// Not read, because its captor takes nothing; since when, and for how long before that.
    pub(crate) paused: Option<Time>,
    pub(crate) paused_us: u64,

    pub(crate) state: State,
    pub(crate) role: Role,
    pub(crate) key: LinkKey,
    /// Sessions that ride on it.
    pub(crate) riders: u32,
    /// Sessions that wait until it can be used, or refused.
    pub(crate) waiters: Vec<Key>,
    /// Attempts to connect since the last success.
    pub(crate) failures: u32,
    /// What the last attempt came to. For a person; for a client if `refusal`.
    pub(crate) reason: String,
    /// The server's own error reply to our greeting, if that was it.
    pub(crate) refusal: Option<Vec<u8>>,
    /// What the server said of itself.
    pub(crate) identity: Option<Identity>,
    /// Since when it has been up.
    pub(crate) up_since: Time,
    /// Since when nobody has ridden on it.
    pub(crate) unused_since: Time,
}

/// What a server says of itself in its reply to HELLO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// `redis` or `valkey`.
    pub(crate) server: String,
    pub(crate) version: String,
}

impl Link {
    pub(crate) fn new(key: LinkKey, role: Role, max_delay_us: u32, now: Time) -> Self {
        Link {
            accepting: true,
            listed: false,
            out: Outgoing::default(),
            spare: Spare::default(),
            allowed: 0,
            ledger: VecDeque::new(),
            open: 0,
            open_since: now,
            returns: Returns::new(max_delay_us),
            scanner: reply::Scanner::default(),
            partial: Vec::new(),
            cutting: false,
            progress: now,
            paused: None,
            paused_us: 0,
            state: State::Down,
            role,
            key,
            riders: 0,
            waiters: Vec::new(),
            failures: 0,
            reason: String::from("not connected yet"),
            refusal: None,
            identity: None,
            up_since: now,
            unused_since: now,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, State::Up)
    }

    /// Requests that have left and are not answered.
    pub(crate) fn in_flight(&self) -> usize {
        self.ledger.len() - self.open as usize
    }

    /// The request that the next reply answers.
    pub(crate) fn first_in_flight(&self) -> Option<Entry> {
        if self.in_flight() > 0 {
            self.ledger.front().copied()
        } else {
            None
        }
    }

    /// The request in front is answered. `None` if nothing is in flight: then the server talks to itself.
    #[inline]
    pub(crate) fn pop_answered(&mut self) -> Option<Entry> {
        if self.in_flight() > 0 {
            self.ledger.pop_front()
        } else {
            None
        }
    }

    /// Whether a reply for this session is still to come.
    pub(crate) fn owes(&self, session: Key) -> bool {
        self.ledger.iter().any(|entry| entry.session == session)
    }

    /// Whether the open batch has requests.
    pub(crate) fn has_open_batch(&self) -> bool {
        self.open > 0
    }

    /// Appends a whole request to the open batch.
    #[inline]
    pub(crate) fn push(&mut self, entry: Entry, request: &[u8]) {
        debug_assert_eq!(entry.len as usize, request.len());
        self.out.tail(&mut self.spare).extend_from_slice(request);
        self.ledger.push_back(entry);
        self.open += 1;
    }

    /// The open batch got its first request in the turn at `now`.
    pub(crate) fn open_batch(&mut self, now: Time) {
        self.open_since = now;
    }

    /// Whether the open batch leaves. Level 2: an idle link flushes at once; a busy one when the batch
    /// in flight has come back, when the batch is full, or when its oldest request has waited long
    /// enough. Replies announce requests: who was answered and is about to ask again is waited for,
    /// within the same bound, so the requests of one crowd stay one batch.
    pub(crate) fn decide(&mut self, rule: &FlushRule, now: Time) -> Decision {
        if !rule.hold {
            return Decision::Flush(Why::Idle);
        }
        if self.out.len() - self.allowed >= BATCH_BYTES_MAX {
            return Decision::Flush(Why::Full);
        }
        if self.in_flight() == 0 && !self.returns.worth_waiting(now, self.open) {
            return Decision::Flush(Why::Idle);
        }
        let due = self.open_since + rule.max_delay_us;
        if now >= due {
            self.returns.waited(self.open);
            Decision::Flush(Why::Late)
        } else {
            Decision::HoldUntil(due)
        }
    }

    /// Closes the open batch: its bytes may be written.
    pub(crate) fn flush(&mut self, now: Time) {
        if self.in_flight() == 0 {
            self.progress = now;
        }
        self.open = 0;
        self.allowed = self.out.len();
        self.returns.end_wait();
    }

    /// Appends a part of a request that is cut through; it may be written at once.
    pub(crate) fn stream(&mut self, bytes: &[u8]) {
        self.out.tail(&mut self.spare).extend_from_slice(bytes);
        self.allowed = self.out.len();
    }

    /// What may be written now.
    pub(crate) fn pending(&self) -> &[u8] {
        match &self.state {
            State::Greeting { greeting, .. } => &greeting.unsent,
            State::Up => &self.out.pending()[..self.allowed],
            _ => &[],
        }
    }

    /// The kernel took `count` of the pending bytes.
    pub(crate) fn written(&mut self, count: usize) {
        match &mut self.state {
            State::Greeting { greeting, .. } => {
                greeting.unsent.drain(..count);
            }
            _ => {
                self.allowed -= count;
                self.out.take(count, &mut self.spare);
            }
        }
    }

    /// The connection stands: greet.
    pub(crate) fn greet(&mut self, credentials: Option<&Credentials>, now: Time) {
        self.state = State::Greeting {
            since: now,
            greeting: Greeting::new(self.key, credentials),
        };
    }

    /// The first entry of the ledger whose request was not written whole, and the first of which no
    /// byte was written. Between them there is at most one: the half-written.
    fn first_unsent(&self) -> (usize, usize) {
        let mut unwritten = self.out.len();
        let mut untouched = self.ledger.len();
        while untouched > 0 {
            let len = self.ledger[untouched - 1].len as usize;
            if len == 0 || unwritten == 0 {
                break;
            }
            if len > unwritten {
                return (untouched - 1, untouched);
            }
            unwritten -= len;
            untouched -= 1;
        }
        (untouched, untouched)
    }

    /// The connection is gone. Gives back the requests that may have been executed and the one that
    /// was half written; requests of which no byte was written stay, for the next connection.
    pub(crate) fn disconnect(&mut self) -> (Vec<Entry>, Option<Entry>) {
        let (unsent, untouched) = self.first_unsent();
        let kept: usize = self
            .ledger
            .range(untouched..)
            .map(|entry| entry.len as usize)
            .sum();
        let half = self.out.len() - kept;
        self.out.take(half, &mut self.spare);
        let mut gone: Vec<Entry> = self.ledger.drain(..untouched).collect();
        let half_written =
            (unsent < untouched).then(|| gone.pop().expect("the half-written entry is the last"));
        self.open = self.ledger.len() as u32;
        self.allowed = 0;
        self.returns.end_wait();
        self.scanner = reply::Scanner::default();
        self.partial = Vec::new();
        self.cutting = false;
        self.paused = None;
        (gone, half_written)
    }

    /// The oldest unsent request leaves the open batch of a link that is not connected.
    pub(crate) fn pop_unsent(&mut self) -> Option<Entry> {
        debug_assert!(!self.is_up());
        let entry = self.ledger.pop_front()?;
        self.out.take(entry.len as usize, &mut self.spare);
        self.open -= 1;
        Some(entry)
    }
}

impl Greeting {
    fn new(key: LinkKey, credentials: Option<&Credentials>) -> Self {
        let version = if key.version == Version::Resp3 {
            "3"
        } else {
            "2"
        };
        let mut args = vec!["HELLO", version];
        if let Some(credentials) = credentials {
            args.extend([
                "AUTH",
                credentials.user.as_deref().unwrap_or("default"),
                &credentials.password,
            ]);
        }
        args.extend(["SETNAME", "respool"]);
        let mut unsent = Vec::new();
        let mut replies = 1;
        encode::request(&mut unsent, &args);
        if key.db != 0 {
            encode::request(&mut unsent, &["SELECT", &key.db.to_string()]);
            replies += 1;
        }
        Greeting {
            unsent,
            replies,
            got: Vec::new(),
            scanner: reply::Scanner::default(),
        }
    }

    /// Takes bytes of the server; says what they come to.
    pub(crate) fn read(&mut self, bytes: &[u8], identity: &mut Option<Identity>) -> Greeted {
        let mut at = 0;
        while self.replies > 0 && at < bytes.len() {
            let (len, whole) = match self.scanner.scan(&bytes[at..]) {
                Ok(reply::Scanned::Whole(len)) => (len, true),
                Ok(reply::Scanned::Part) => (bytes.len() - at, false),
                Err(error) => return Greeted::Broken(error.to_string()),
            };
            self.got.extend_from_slice(&bytes[at..at + len]);
            if self.got.len() > GREETING_BYTES_MAX {
                return Greeted::Broken(format!(
                    "its greeting is longer than {GREETING_BYTES_MAX} bytes"
                ));
            }
            at += len;
            if !whole {
                break;
            }
            match Value::read(&self.got) {
                Some(Value::Error(text)) => return Greeted::Refused(text),
                Some(value) => {
                    if let Some(version) = value.field("version").and_then(Value::text) {
                        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                        let server = value
                            .field("server")
                            .and_then(Value::text)
                            .unwrap_or(b"redis");
                        *identity = Some(Identity {
                            server: text(server),
                            version: text(version),
                        });
                    }
                }
                None => return Greeted::Broken(String::from("its greeting cannot be read")),
            }
            self.got.clear();
            self.replies -= 1;
        }
        match self.replies {
            0 if at < bytes.len() => {
                Greeted::Broken(String::from("it sent a reply that nobody asked for"))
            }
            0 => Greeted::Done,
            _ => Greeted::Waiting,
        }
    }
}

/// What the replies to a greeting have come to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Greeted {
    Waiting,
    Done,
    /// The server's own error.
    Refused(Vec<u8>),
    /// This is no server that we can speak to.
    Broken(String),
}

/// A greeting's replies are a few hundred bytes.
const GREETING_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: FlushRule = FlushRule {
        hold: true,
        max_delay_us: 200,
    };

    fn link() -> Link {
        let key = LinkKey {
            server: ServerId(0),
            version: Version::Resp2,
            db: 0,
        };
        let mut link = Link::new(key, Role::Shared, RULE.max_delay_us, Time(0));
        link.state = State::Up;
        link
    }

    fn push(link: &mut Link, seq: u32, len: usize) {
        let entry = Entry {
            session: Key {
                index: 1,
                generation: 1,
            },
            seq,
            len: len as u32,
            at_ms: 0,
        };
        link.push(entry, &vec![b'x'; len]);
    }

    #[test]
    fn a_full_batch_takes_its_wait_with_it() {
        let mut link = link();
        link.returns.expect(Time(300), 0);
        for seq in 0..5 {
            push(&mut link, seq, 10);
        }
        link.open_batch(Time(300));
        assert_eq!(
            link.decide(&RULE, Time(300)),
            Decision::HoldUntil(Time(500))
        );
        push(&mut link, 5, BATCH_BYTES_MAX);
        assert_eq!(link.decide(&RULE, Time(310)), Decision::Flush(Why::Full));
        link.flush(Time(310));
        push(&mut link, 6, 10);
        link.open_batch(Time(320));
        // Fewer requests than the batch before it had when its wait began.
        assert_eq!(link.decide(&RULE, Time(520)), Decision::Flush(Why::Late));
    }

    #[test]
    fn a_lone_request_never_waits_and_nobody_waits_longer_than_max_delay() {
        let mut link = link();
        push(&mut link, 0, 10);
        assert_eq!(link.decide(&RULE, Time(0)), Decision::Flush(Why::Idle));
        link.flush(Time(0));
        link.written(10);
        link.open_batch(Time(50));
        push(&mut link, 1, 10);
        assert_eq!(link.decide(&RULE, Time(60)), Decision::HoldUntil(Time(250)));
        assert_eq!(link.decide(&RULE, Time(250)), Decision::Flush(Why::Late));
        link.ledger.pop_front();
        assert_eq!(link.decide(&RULE, Time(250)), Decision::Flush(Why::Idle));
        link.open_batch(Time(300));
        link.returns.expect(Time(300), 0);
        assert_eq!(
            link.decide(&RULE, Time(310)),
            Decision::HoldUntil(Time(500))
        );
        assert_eq!(link.decide(&RULE, Time(500)), Decision::Flush(Why::Late));
    }

    #[test]
    fn a_full_batch_leaves_though_the_link_is_busy() {
        let mut link = link();
        push(&mut link, 0, 10);
        link.flush(Time(0));
        push(&mut link, 1, BATCH_BYTES_MAX - 1);
        assert!(matches!(
            link.decide(&RULE, Time(0)),
            Decision::HoldUntil(_)
        ));
        push(&mut link, 2, 1);
        assert_eq!(link.decide(&RULE, Time(0)), Decision::Flush(Why::Full));
    }

    #[test]
    fn what_was_written_whole_is_unknown_what_was_half_written_is_not_and_the_rest_stays() {
        for written in 0..=40 {
            let mut link = link();
            for seq in 0..4 {
                push(&mut link, seq, 10);
            }
            link.flush(Time(0));
            link.written(written);
            let (gone, half) = link.disconnect();
            let seqs: Vec<u32> = gone.iter().map(|entry| entry.seq).collect();
            let whole = (written / 10) as u32;
            assert_eq!(
                seqs,
                (0..whole).collect::<Vec<_>>(),
                "{written} bytes written"
            );
            assert_eq!(
                half.map(|entry| entry.seq),
                (written % 10 > 0).then_some(whole)
            );
            let kept = 4 - whole as usize - usize::from(half.is_some());
            assert_eq!((link.ledger.len(), link.out.len()), (kept, kept * 10));
        }
    }

    #[test]
    fn a_greeting_ends_with_its_last_reply_however_it_is_cut() {
        let key = LinkKey {
            server: ServerId(0),
            version: Version::Resp2,
            db: 7,
        };
        let bytes =
            b"*4\r\n$6\r\nserver\r\n$6\r\nvalkey\r\n$7\r\nversion\r\n$5\r\n9.1.0\r\n+OK\r\n";
        for cut in 0..bytes.len() {
            let mut greeting = Greeting::new(key, None);
            let mut identity = None;
            assert_eq!(
                greeting.read(&bytes[..cut], &mut identity),
                Greeted::Waiting
            );
            assert_eq!(greeting.read(&bytes[cut..], &mut identity), Greeted::Done);
            let expected = Identity {
                server: "valkey".into(),
                version: "9.1.0".into(),
            };
            assert_eq!(identity, Some(expected));
        }
        let mut greeting = Greeting::new(key, None);
        let refused = Greeted::Refused(b"NOAUTH no".to_vec());
        assert_eq!(greeting.read(b"-NOAUTH no\r\n", &mut None), refused);
    }
}

//! An entry of a link's ledger: the session of a request, and its role in a batch.

use std::cmp::Ordering;

use crate::base::error::Fate;
use crate::base::handle::SessionId;

/// A request on a link, from the time it is put there until its reply comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// The session of the request. It is [`SessionId::NONE`] for a request that was answered
    /// otherwise (its deadline has passed, or it was moved to another link), for a request of
    /// respool's own, and for the head of a fused request. The entries of a closed session keep
    /// its id, which finds no session.
    pub(crate) session: SessionId,
    /// The place of the request in the order of the session's replies. In a head it is the number
    /// of parts: see [`Entry::part_count`].
    pub(crate) seq: u32,
    /// Bytes that the link holds for it. A request that was streamed, and a collapsed read
    /// ([`Class::Same`]), have none of their own.
    pub(crate) len: u32,
    /// The time when the request was read, [`crate::base::time::Time::stamp_ms`].
    pub(crate) at_ms: u32,
    pub(crate) class: Class,
    pub(crate) before: EarlierAttempt,
    /// Whether its reply has a completion, see [`crate::data_plane::link::Link::completions`].
    /// Other replies are simply passed on.
    pub(crate) has_completion: bool,
    /// Whether its session wants no reply to it.
    pub(crate) silent: bool,
}

// A busy link has a hundred thousand entries.
const _: () = assert!(size_of::<Entry>() == 24);

impl Entry {
    /// Orders entries by session, and each session's by the order in which it sent them.
    pub(crate) fn asked_before(&self, other: &Entry) -> Ordering {
        let distance = self.seq.wrapping_sub(other.seq) as i32;
        self.session.cmp(&other.session).then(distance.cmp(&0))
    }

    /// An entry for a request that may change data.
    pub(crate) fn of(session: SessionId, seq: u32, at_ms: u32) -> Entry {
        Entry {
            session,
            seq,
            len: 0,
            at_ms,
            class: Class::Write,
            before: EarlierAttempt::Unsent,
            has_completion: false,
            silent: false,
        }
    }

    /// The head of a fused request: `parts` requests follow it. `first`: the entry of the first
    /// part, which gives the head its age. `len`: the head's own bytes.
    pub(crate) fn head(class: Class, parts: u32, len: u32, first: &Entry) -> Entry {
        debug_assert!(class.is_whole());
        Entry {
            class,
            len,
            ..Entry::of(SessionId::NONE, parts, first.at_ms)
        }
    }

    /// The number of parts that were sent with this head.
    pub(crate) fn part_count(&self) -> u32 {
        debug_assert!(self.class.is_whole());
        self.seq
    }

    /// Whether no session waits for it any more.
    pub(crate) fn is_given_up(&self) -> bool {
        self.session == SessionId::NONE && !self.has_completion && !self.class.is_whole()
    }

    /// The fate of the request if it was not written whole to the present connection.
    pub(crate) fn fate_unsent(&self) -> Fate {
        match self.before {
            EarlierAttempt::Unsent | EarlierAttempt::Refused => Fate::NotSent,
            EarlierAttempt::Answered | EarlierAttempt::Lost => Fate::Unknown,
        }
    }
}

/// The outcome of an earlier attempt to send a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EarlierAttempt {
    /// There was none.
    Unsent,
    /// The request was answered, but the reply was not one for its session.
    Answered,
    /// The reply said that the request was not executed.
    Refused,
    /// The connection was lost, or held up by a slow session. A request is sent again after that
    /// once.
    Lost,
}

/// The role of a request in its batch, which says how it may be sent a second time. The classes
/// that the hot path asks about stand side by side, so that each of its questions is one
/// comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// A request that may change data.
    Write,
    /// A read: it may be executed twice without harm.
    Read,
    /// A read equal to the one before it. It was not sent, and gets the same reply.
    Same,
    /// A read whose reply depends on the data alone.
    Pure,
    /// A GET that may be fused.
    Get,
    /// A SET that may be fused if it has no options.
    Set,
    /// A pure read that was moved within its batch.
    Moved,
    /// A part of an MGET: a GET of which only the key was sent.
    OfGets,
    /// A part of an MSET: a SET of which only key and value were sent.
    OfSets,
    /// The head of a fused MGET: see [`Entry::head`].
    Gets,
    /// The head of a fused MSET: see [`Entry::head`].
    Sets,
    /// A GET that was sent alone, to see whether the user has the right to GET.
    TriesGet,
    /// A SET that was sent alone, to see whether the user has the right to SET.
    TriesSet,
}

impl Class {
    pub(crate) fn of(reads: bool) -> Class {
        if reads { Class::Read } else { Class::Write }
    }

    pub(crate) fn reads(self) -> bool {
        !matches!(
            self,
            Class::Write | Class::Set | Class::Sets | Class::OfSets | Class::TriesSet
        )
    }

    /// Whether it may be joined with other requests of its batch.
    #[inline]
    pub(crate) fn may_move(self) -> bool {
        matches!(self, Class::Pure | Class::Get | Class::Set)
    }

    /// Whether it was moved, fused, or sent to try a right: its reply may have to be more than
    /// passed on.
    #[inline]
    pub(crate) fn is_coalesced(self) -> bool {
        matches!(self, Class::Moved | Class::OfGets | Class::OfSets)
            || self.is_whole()
            || self.tries()
    }

    /// Whether its reply tells respool more than the session gets.
    #[inline]
    pub(crate) fn tells(self) -> bool {
        self == Class::Sets || self.tries()
    }

    /// Whether it is a read that may have to be sent again.
    pub(crate) fn is_moved_read(self) -> bool {
        matches!(self, Class::Moved | Class::OfGets | Class::Same)
    }

    /// Whether it was sent alone to see whether its user has the right to the command.
    #[inline]
    pub(crate) fn tries(self) -> bool {
        matches!(self, Class::TriesGet | Class::TriesSet)
    }

    /// Whether it is the head of a fused request.
    pub(crate) fn is_whole(self) -> bool {
        matches!(self, Class::Gets | Class::Sets)
    }

    /// Whether it was sent together with the entry before it.
    pub(crate) fn is_part(self) -> bool {
        matches!(self, Class::OfGets | Class::OfSets | Class::Same)
    }

    /// The bytes in front of the arguments, which a fused request was sent without.
    pub(crate) fn beginning(self) -> &'static [u8] {
        match self {
            Class::OfGets => GET,
            Class::OfSets => SET,
            _ => b"",
        }
    }

    /// The class of the request when it is sent again. It is not fused, which could fail in the
    /// same way. Of equal reads one may be sent.
    pub(crate) fn asked_again(self) -> Class {
        match self {
            read if read.is_moved_read() => Class::Pure,
            other => Class::of(other.reads()),
        }
    }

    /// The class of the request when it stands alone again.
    pub(crate) fn alone(self) -> Class {
        match self {
            Class::OfGets | Class::TriesGet => Class::Get,
            Class::OfSets | Class::TriesSet => Class::Set,
            Class::Moved | Class::Same => Class::Pure,
            other => other,
        }
    }
}

/// The beginning of a GET.
pub(crate) const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n";
/// The beginning of a SET without options.
pub(crate) const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n";

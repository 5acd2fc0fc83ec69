//! A line of a link's ledger: whose a request is, and what it is to its batch.

use std::cmp::Ordering;

use crate::failure::Fate;
use crate::slots::Key;

/// A request that was put on a link, as long as its reply has not come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Who asked; [`Key::NOBODY`] once the request was answered otherwise or its session is gone.
    pub(crate) session: Key,
    /// Its place in the order of the session's replies.
    pub(crate) seq: u32,
    /// Bytes on the wire; 0 for a request that was cut through.
    pub(crate) len: u32,
    /// When it came, [`crate::time::Time::stamp_ms`].
    pub(crate) at_ms: u32,
    pub(crate) class: Class,
    pub(crate) before: Before,
    /// Its reply is not simply passed on: see [`crate::link::Link::duties`].
    pub(crate) duty: bool,
    /// Its session wants no reply to it.
    pub(crate) silent: bool,
}

// A hundred thousand of them wait on a busy link.
const _: () = assert!(size_of::<Entry>() == 24);

impl Entry {
    /// By sessions, and by the order in which each has asked.
    pub(crate) fn asked_before(&self, other: &Entry) -> Ordering {
        let turns = self.seq.wrapping_sub(other.seq) as i32;
        self.session.cmp(&other.session).then(turns.cmp(&0))
    }

    /// A request that may change something.
    pub(crate) fn of(session: Key, seq: u32, at_ms: u32) -> Entry {
        Entry {
            session,
            seq,
            len: 0,
            at_ms,
            class: Class::Write,
            before: Before::Unsent,
            duty: false,
            silent: false,
        }
    }

    /// Whether its session does not wait for it any more.
    pub(crate) fn is_given_up(&self) -> bool {
        self.session == Key::NOBODY && !self.duty && !self.class.is_whole()
    }

    /// What became of it when it was not written whole to the present connection.
    pub(crate) fn fate_unsent(&self) -> Fate {
        match self.before {
            Before::Unsent | Before::Refused => Fate::NotSent,
            Before::Answered | Before::Lost => Fate::Unknown,
        }
    }
}

/// What became of a request when it was sent before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// It was not.
    Unsent,
    /// It was answered, and that was no answer for its session.
    Answered,
    /// It was answered that it was not executed.
    Refused,
    /// Its connection was lost, or held up by a slow session. That is survived once.
    Lost,
}

/// What a request is to its batch, and to a server that may have to be asked twice. Those of which the hot path asks stand
/// side by side, so that each of its questions is one comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// It may change something.
    Write,
    /// It changes nothing: to run it twice does no harm.
    Read,
    /// The same as what is in front of it: nothing was sent, and that one's answer is its own.
    Same,
    /// A read whose answer follows from the data alone.
    Pure,
    /// A GET: one that may be fused.
    Get,
    /// A SET: a write that may be fused if it has no options.
    Set,
    /// A pure read that was moved.
    Moved,
    /// A part of an MGET or MSET: a GET or a SET of which only the arguments were sent.
    OfGets,
    OfSets,
    /// The head of one: nobody's; `seq` is how many parts were sent with it.
    Gets,
    Sets,
    /// A GET or SET that stands for itself, to see whether this user may do it.
    TriesGet,
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

    /// Whether it may leave together with others.
    #[inline]
    pub(crate) fn may_move(self) -> bool {
        matches!(self, Class::Pure | Class::Get | Class::Set)
    }

    /// Whether its reply may be more, or less, than it seems.
    #[inline]
    pub(crate) fn is_special(self) -> bool {
        matches!(self, Class::Moved | Class::OfGets | Class::OfSets)
            || self.is_whole()
            || self.tries()
    }

    /// Whether its reply tells us more than whom it is for.
    #[inline]
    pub(crate) fn tells(self) -> bool {
        self == Class::Sets || self.tries()
    }

    /// Whether it is a read whose answer may have to be asked for again.
    pub(crate) fn is_moved_read(self) -> bool {
        matches!(self, Class::Moved | Class::OfGets | Class::Same)
    }

    /// Whether it stands for itself to see whether its user may do it.
    #[inline]
    pub(crate) fn tries(self) -> bool {
        matches!(self, Class::TriesGet | Class::TriesSet)
    }

    /// Whether it is the head of what was made of several.
    pub(crate) fn is_whole(self) -> bool {
        matches!(self, Class::Gets | Class::Sets)
    }

    /// Whether it is sent with what is in front of it.
    pub(crate) fn is_part(self) -> bool {
        matches!(self, Class::OfGets | Class::OfSets | Class::Same)
    }

    /// What was sent of a request in front of its arguments, when it stood for itself.
    pub(crate) fn beginning(self) -> &'static [u8] {
        match self {
            Class::OfGets => GET,
            Class::OfSets => SET,
            _ => b"",
        }
    }

    /// What it is when it is asked again by itself: nothing that is fused, or it would come to the same; of equal ones one may be sent.
    pub(crate) fn asked_again(self) -> Class {
        match self {
            read if read.is_moved_read() => Class::Pure,
            other => Class::of(other.reads()),
        }
    }

    /// What it is when it stands for itself again.
    pub(crate) fn alone(self) -> Class {
        match self {
            Class::OfGets | Class::TriesGet => Class::Get,
            Class::OfSets | Class::TriesSet => Class::Set,
            Class::Moved | Class::Same => Class::Pure,
            other => other,
        }
    }
}

/// How a GET and a SET without options begin.
pub(crate) const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n";
pub(crate) const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n";

//! The states of a session, and the word of them that the hot path asks.

use std::ops::{BitAnd, BitOr, BitOrAssign, Not};

/// The states of a session. A session with none of [`Flags::OFF_PATH`] sends whole requests
/// straight to its link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SessionState {
    /// The marks. The hot path loads this word alone.
    gate: Flags,
}

impl SessionState {
    /// Whether any of these marks is set.
    #[inline]
    pub(crate) fn any(self, of: Flags) -> bool {
        self.gate.any(of)
    }

    pub(crate) fn remove(&mut self, flags: Flags) {
        self.gate.remove(flags);
    }
}

impl BitOrAssign<Flags> for SessionState {
    fn bitor_assign(&mut self, flags: Flags) {
        self.gate |= flags;
    }
}

impl BitAnd<Flags> for SessionState {
    type Output = Flags;
    fn bitand(self, of: Flags) -> Flags {
        self.gate & of
    }
}

/// A set of marks and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(u32);

impl Flags {
    /// Only AUTH and HELLO are allowed yet.
    pub(crate) const UNAUTHENTICATED: Flags = Flags(1);
    /// Hold: output is above the soft bound, until the client takes it.
    pub(crate) const HOLD_OUTPUT: Flags = Flags(1 << 1);
    /// Hold: too many requests are unanswered.
    pub(crate) const HOLD_DEPTH: Flags = Flags(1 << 2);
    /// Hold: the next request takes another way, and must not overtake those in flight.
    pub(crate) const HOLD_DRAIN: Flags = Flags(1 << 3);
    /// Hold: the link for the next request has no room, or is not up yet.
    pub(crate) const HOLD_LINK: Flags = Flags(1 << 4);
    /// Hold: the worker is short of memory, and this session is owed most.
    pub(crate) const HOLD_MEMORY: Flags = Flags(1 << 5);
    /// The session is closed once its replies are written. Further input is ignored.
    pub(crate) const CLOSING: Flags = Flags(1 << 6);
    /// The client sends no more. The session is closed once its replies are written.
    pub(crate) const ENDED: Flags = Flags(1 << 7);
    /// A large request is being cut through: its bytes go on as they come.
    pub(crate) const STREAMING: Flags = Flags(1 << 8);
    /// A large request was refused, and its bytes are being dropped.
    pub(crate) const SWALLOWING: Flags = Flags(1 << 9);
    /// The reorder buffer holds replies.
    pub(crate) const PARKED: Flags = Flags(1 << 10);
    /// The session is on the engine's list of sessions with something to write.
    pub(crate) const LISTED: Flags = Flags(1 << 11);
    /// The session is on the engine's list of sessions to continue.
    pub(crate) const RESUMING: Flags = Flags(1 << 12);
    /// The driver was told not to read the session's socket.
    pub(crate) const UNREAD: Flags = Flags(1 << 13);
    /// A transaction is being queued: MULTI came, EXEC did not.
    pub(crate) const IN_MULTI: Flags = Flags(1 << 14);
    /// The client wants no replies (CLIENT REPLY OFF).
    pub(crate) const SILENT: Flags = Flags(1 << 15);
    /// The client wants no reply to the next request (CLIENT REPLY SKIP).
    pub(crate) const SILENT_ONCE: Flags = Flags(1 << 16);
    /// Bytes go to the session's own link and come back unread (MONITOR).
    pub(crate) const TUNNEL: Flags = Flags(1 << 17);
    /// The session gives its own link back once all its requests are answered.
    pub(crate) const UNPINNING: Flags = Flags(1 << 18);
    /// A reply is being passed on in parts: no message may come in between.
    pub(crate) const MID_REPLY: Flags = Flags(1 << 19);
    /// CLIENT REPLY SKIP is being answered. The next request gets no reply.
    pub(crate) const SILENT_NEXT: Flags = Flags(1 << 20);
    /// A subscriber in RESP2, to which few other commands are allowed.
    pub(crate) const RESTRICTED: Flags = Flags(1 << 21);
    /// Hold: CLIENT PAUSE is on, and pauses the next request.
    pub(crate) const HOLD_PAUSE: Flags = Flags(1 << 22);
    /// Reply steps of the last request are left. They come before the next request.
    pub(crate) const STEPS: Flags = Flags(1 << 23);
    /// Hold: the session needs a link of its own, and there is no room for one more.
    pub(crate) const HOLD_ROOM: Flags = Flags(1 << 24);
    /// A coalesced request may have to be sent again. Until it is answered, no further request is
    /// sent.
    pub(crate) const FUSED: Flags = Flags(1 << 25);
    /// A coalesced request is being sent again, and so are the requests behind it that depend on
    /// it.
    pub(crate) const ASKS_AGAIN: Flags = Flags(1 << 26);
    /// The session has queued a transaction or watched keys before.
    pub(crate) const HAS_QUEUED: Flags = Flags(1 << 27);
    /// The pool has several servers: each request is routed by its keys.
    pub(crate) const ROUTED: Flags = Flags(1 << 28);
    /// A request to one of several servers took the slow path, so the time of its reply is unknown:
    /// do not cork output.
    pub(crate) const UNFORESEEN: Flags = Flags(1 << 29);
    /// A server of the pool gets keys without their prefix, so requests are rewritten.
    pub(crate) const STRIPS: Flags = Flags(1 << 31);
    /// The client has chosen how it reads, or its pool lets it read its own writes: see
    /// `Rare::reading`.
    pub(crate) const READS_OTHERWISE: Flags = Flags(1 << 30);

    /// All holds: reasons for which the session's bytes wait.
    pub(crate) const HOLD: Flags = Flags::HOLD_OUTPUT
        .with(Flags::HOLD_DEPTH)
        .with(Flags::HOLD_DRAIN)
        .with(Flags::HOLD_LINK)
        .with(Flags::HOLD_MEMORY)
        .with(Flags::HOLD_PAUSE)
        .with(Flags::HOLD_ROOM);
    /// Holds that a server or respool ends. The others end by an act of the client, or once memory
    /// is free again.
    pub(crate) const HOLD_BY_SERVER: Flags = Flags::HOLD_DEPTH
        .with(Flags::HOLD_DRAIN)
        .with(Flags::HOLD_LINK)
        .with(Flags::HOLD_PAUSE)
        .with(Flags::HOLD_ROOM);
    /// Holds that end by an act of the client, once memory is free again, or by CLIENT UNPAUSE.
    pub(crate) const HOLD_BY_CLIENT: Flags = Flags::HOLD_OUTPUT
        .with(Flags::HOLD_MEMORY)
        .with(Flags::HOLD_PAUSE);
    /// States in which the held bytes do not begin with a request to dispatch.
    pub(crate) const MID_REQUEST: Flags = Flags::STREAMING
        .with(Flags::SWALLOWING)
        .with(Flags::STEPS)
        .with(Flags::TUNNEL);
    /// States in which the session's bytes are not scanned for requests.
    pub(crate) const NOT_SCANNED: Flags = Flags::HOLD
        .with(Flags::CLOSING)
        .with(Flags::STEPS)
        .with(Flags::STREAMING)
        .with(Flags::SWALLOWING);
    /// States in which requests leave the hot path. The hot path asks a session for these alone.
    pub(crate) const OFF_PATH: Flags = Flags::UNAUTHENTICATED
        .with(Flags::IN_MULTI)
        .with(Flags::SILENT)
        .with(Flags::SILENT_ONCE)
        .with(Flags::TUNNEL)
        .with(Flags::FUSED)
        .with(Flags::RESTRICTED)
        .with(Flags::ROUTED)
        .with(Flags::STRIPS);
    /// States in which output is not corked.
    pub(crate) const WRITES_AT_ONCE: Flags = Flags::NOT_SCANNED
        .with(Flags::ENDED)
        .with(Flags::UNFORESEEN);
    /// States that end with the last reply that the session is owed.
    pub(crate) const AWAITS_LAST: Flags = Flags::HOLD_DEPTH
        .with(Flags::HOLD_DRAIN)
        .with(Flags::UNPINNING);

    const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    #[inline]
    pub(crate) fn any(self, of: Flags) -> bool {
        self.0 & of.0 != 0
    }

    pub(crate) fn remove(&mut self, flags: Flags) {
        self.0 &= !flags.0;
    }
}

impl BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}
impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Flags) {
        self.0 |= other.0;
    }
}
impl BitAnd for Flags {
    type Output = Flags;
    fn bitand(self, other: Flags) -> Flags {
        Flags(self.0 & other.0)
    }
}
impl Not for Flags {
    type Output = Flags;
    fn not(self) -> Flags {
        Flags(!self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every flag has a bit of its own, and no session with a hold is scanned.
    #[test]
    fn flags_have_one_bit_and_holds_stop_the_scan() {
        use Flags as F;
        let mut seen = F::default();
        let mut note = |flag: Flags| {
            assert_eq!(flag.0.count_ones(), 1);
            assert!(!seen.any(flag), "{flag:?} shares its bit");
            seen |= flag;
        };
        for hold in [
            F::HOLD_OUTPUT,
            F::HOLD_DEPTH,
            F::HOLD_DRAIN,
            F::HOLD_LINK,
            F::HOLD_MEMORY,
            F::HOLD_PAUSE,
            F::HOLD_ROOM,
        ] {
            note(hold);
            assert!(hold.any(F::HOLD) && hold.any(F::NOT_SCANNED));
        }
        for other in [F::CLOSING, F::STEPS, F::STREAMING, F::SWALLOWING] {
            note(other);
            assert!(!other.any(F::HOLD) && other.any(F::NOT_SCANNED));
        }
        for other in [
            F::UNAUTHENTICATED,
            F::ENDED,
            F::PARKED,
            F::LISTED,
            F::RESUMING,
            F::UNREAD,
            F::IN_MULTI,
            F::SILENT,
            F::SILENT_ONCE,
            F::TUNNEL,
            F::UNPINNING,
            F::MID_REPLY,
            F::RESTRICTED,
            F::SILENT_NEXT,
            F::FUSED,
            F::ASKS_AGAIN,
            F::ROUTED,
            F::HAS_QUEUED,
            F::UNFORESEEN,
            F::READS_OTHERWISE,
            F::STRIPS,
        ] {
            note(other);
            assert!(!other.any(F::HOLD) && !other.any(F::NOT_SCANNED));
        }
    }
}

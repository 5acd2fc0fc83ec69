//! The states of a session, and the word of them that the hot path asks.

use std::ops::{BitOr, BitOrAssign};

/// The states of a session: marks, the holds, and three states of which each has one value.
///
/// The hot path asks the gate word alone, one question at a time. The word has all marks and holds,
/// and a bit for each answer that it needs of the other states. Only the setters write the word, so
/// it stays in step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SessionState {
    /// Marks, holds and derived bits.
    gate: Flags,
    phase: Phase,
    input: InputMode,
    reply_mode: ReplyMode,
}

/// How far a session is from its end. A session that is not open is closed once its replies are
/// written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Open,
    /// The client sends no more. Its requests that have come are still executed.
    Ended,
    /// respool takes no more requests. `ended`: the client sends none either.
    Closing { ended: bool },
}

impl Phase {
    fn input_has_ended(self) -> bool {
        matches!(self, Phase::Ended | Phase::Closing { ended: true })
    }

    /// The phase after the client has ended its input.
    fn after_input(self) -> Phase {
        match self {
            Phase::Open | Phase::Ended => Phase::Ended,
            Phase::Closing { .. } => Phase::Closing { ended: true },
        }
    }

    /// The phase after respool has decided to close the session.
    fn after_close(self) -> Phase {
        let ended = self.input_has_ended();
        Phase::Closing { ended }
    }
}

/// The end of a session.
impl SessionState {
    /// Whether respool takes no more requests, or the client sends no more.
    #[inline]
    pub(crate) fn is_ending(self) -> bool {
        self.gate.any(Flags::CLOSING | Flags::ENDED)
    }

    /// Whether respool takes no more requests.
    #[inline]
    pub(crate) fn is_closing(self) -> bool {
        self.gate.any(Flags::CLOSING)
    }

    /// Whether the client sends no more.
    #[inline]
    pub(crate) fn input_has_ended(self) -> bool {
        self.gate.any(Flags::ENDED)
    }

    /// The client sends no more. The session is closed once its replies are written.
    pub(crate) fn end_input(&mut self) {
        self.set_phase(self.phase.after_input());
    }

    /// The session is closed once its replies are written. Further input is ignored.
    pub(crate) fn close(&mut self) {
        self.set_phase(self.phase.after_close());
    }

    fn set_phase(&mut self, phase: Phase) {
        self.phase = phase;
        self.set_gate(Flags::CLOSING, matches!(phase, Phase::Closing { .. }));
        self.set_gate(Flags::ENDED, phase.input_has_ended());
    }
}

/// The meaning of a session's next bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum InputMode {
    /// They begin with a request.
    #[default]
    Requests,
    /// They begin with a request, which goes to the session's own link. All bytes of that link come
    /// back unread (MONITOR).
    Tunnel,
    /// They are the rest of a large request, and go on as they come.
    Streaming,
    /// They are the rest of a large request that was refused, and are dropped. `in_tunnel`: the
    /// session has a tunnel. A large request in a tunnel is always refused.
    Swallowing { in_tunnel: bool },
}

impl InputMode {
    fn is_tunnel(self) -> bool {
        matches!(
            self,
            InputMode::Tunnel | InputMode::Swallowing { in_tunnel: true }
        )
    }

    fn is_inside_large(self) -> bool {
        matches!(self, InputMode::Streaming | InputMode::Swallowing { .. })
    }

    /// The input after MONITOR was refused or has ended.
    fn without_tunnel(self) -> InputMode {
        match self {
            InputMode::Requests | InputMode::Tunnel => InputMode::Requests,
            InputMode::Streaming => InputMode::Streaming,
            InputMode::Swallowing { .. } => InputMode::Swallowing { in_tunnel: false },
        }
    }

    /// The input after a large request was refused, at its beginning or in the middle.
    fn after_refusal(self) -> InputMode {
        let in_tunnel = self.is_tunnel();
        InputMode::Swallowing { in_tunnel }
    }

    /// The input after the end of a large request.
    fn after_large(self) -> InputMode {
        match self.is_tunnel() {
            true => InputMode::Tunnel,
            false => InputMode::Requests,
        }
    }
}

/// The input.
impl SessionState {
    /// Whether the next bytes are the rest of a large request.
    #[inline]
    pub(crate) fn is_inside_large(self) -> bool {
        self.gate.any(Flags::INSIDE_LARGE)
    }

    /// Whether the next bytes are the rest of a large request that goes to a server.
    pub(crate) fn is_streaming(self) -> bool {
        self.input == InputMode::Streaming
    }

    /// Whether the session has a tunnel, or has asked for one (MONITOR).
    #[inline]
    pub(crate) fn is_tunnel(self) -> bool {
        self.gate.any(Flags::TUNNEL)
    }

    /// Whether the held bytes do not begin with a request to dispatch.
    pub(crate) fn is_mid_request(self) -> bool {
        self.gate.any(Flags::MID_REQUEST)
    }

    /// MONITOR was sent to the server.
    pub(crate) fn begin_tunnel(&mut self) {
        debug_assert_eq!(self.input, InputMode::Requests);
        self.set_input(InputMode::Tunnel);
    }

    /// MONITOR was refused or has ended, if there was one.
    pub(crate) fn end_tunnel(&mut self) {
        self.set_input(self.input.without_tunnel());
    }

    /// A large request goes to its server as it comes.
    pub(crate) fn begin_streaming(&mut self) {
        debug_assert_eq!(self.input, InputMode::Requests);
        self.set_input(InputMode::Streaming);
    }

    /// A large request was refused: the rest of it is dropped.
    pub(crate) fn swallow(&mut self) {
        self.set_input(self.input.after_refusal());
    }

    /// A large request has come to its end, or its rest never comes.
    pub(crate) fn end_large(&mut self) {
        self.set_input(self.input.after_large());
    }

    fn set_input(&mut self, input: InputMode) {
        self.input = input;
        self.set_gate(Flags::INSIDE_LARGE, input.is_inside_large());
        self.set_gate(Flags::TUNNEL, input.is_tunnel());
    }
}

/// Reasons for which a session's bytes wait. A session may have several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holds(u8);

impl Holds {
    /// Output is above the soft bound, until the client takes it.
    pub(crate) const OUTPUT: Holds = Holds(1);
    /// Too many requests are unanswered.
    pub(crate) const DEPTH: Holds = Holds(1 << 1);
    /// The next request takes another way, and must not overtake those in flight.
    pub(crate) const CATCH_UP: Holds = Holds(1 << 2);
    /// The link for the next request has no room, or is not up yet.
    pub(crate) const LINK: Holds = Holds(1 << 3);
    /// The worker is short of memory, and this session is owed most.
    pub(crate) const MEMORY: Holds = Holds(1 << 4);
    /// CLIENT PAUSE is on, and pauses the next request.
    pub(crate) const PAUSE: Holds = Holds(1 << 5);
    /// The session needs a link of its own, and there is no room for one more.
    pub(crate) const ROOM: Holds = Holds(1 << 6);

    /// Holds that a server or respool ends. A pause ends by its time or by a client, so it is in
    /// both sets.
    pub(crate) const BY_SERVER: Holds = Holds::DEPTH
        .with(Holds::CATCH_UP)
        .with(Holds::LINK)
        .with(Holds::PAUSE)
        .with(Holds::ROOM);
    /// Holds that stop the clock of a deadline: they end by an act of a client, or once memory is
    /// free again.
    pub(crate) const BY_CLIENT: Holds = Holds::OUTPUT.with(Holds::MEMORY).with(Holds::PAUSE);

    const fn with(self, other: Holds) -> Holds {
        Holds(self.0 | other.0)
    }

    pub(crate) const fn without(self, other: Holds) -> Holds {
        Holds(self.0 & !other.0)
    }

    #[inline]
    pub(crate) fn any(self, of: Holds) -> bool {
        self.0 & of.0 != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Holds {
    type Output = Holds;
    fn bitor(self, other: Holds) -> Holds {
        self.with(other)
    }
}

/// Holds. They are the low byte of the gate word.
impl SessionState {
    #[inline]
    pub(crate) fn holds(self) -> Holds {
        Holds((self.gate.0 & Flags::HELD.0) as u8)
    }

    #[inline]
    pub(crate) fn is_held(self) -> bool {
        self.gate.any(Flags::HELD)
    }

    #[inline]
    pub(crate) fn hold(&mut self, reason: Holds) {
        self.gate.0 |= u32::from(reason.0);
    }

    #[inline]
    pub(crate) fn release(&mut self, reason: Holds) {
        self.gate.0 &= !u32::from(reason.0);
    }
}

/// The replies that the client wants (CLIENT REPLY). As at the server, OFF leaves a SKIP in place:
/// one transaction may have both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyMode {
    On(Skip),
    /// No request gets a reply, and no message comes.
    Off(Skip),
}

/// The requests that get no reply because of CLIENT REPLY SKIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Skip {
    None,
    /// The request that is being dispatched.
    This,
    /// The request after it: the request that is being dispatched is CLIENT REPLY SKIP.
    Next,
    Both,
}

impl Default for ReplyMode {
    fn default() -> Self {
        ReplyMode::On(Skip::None)
    }
}

impl ReplyMode {
    fn skip(self) -> Skip {
        match self {
            ReplyMode::On(skip) | ReplyMode::Off(skip) => skip,
        }
    }

    /// The same mode with another skip.
    fn with(self, skip: Skip) -> ReplyMode {
        match self {
            ReplyMode::On(_) => ReplyMode::On(skip),
            ReplyMode::Off(_) => ReplyMode::Off(skip),
        }
    }

    fn is_silent(self) -> bool {
        matches!(self, ReplyMode::Off(_)) || matches!(self.skip(), Skip::This | Skip::Both)
    }

    /// The mode after CLIENT REPLY ON.
    fn after_on(self) -> ReplyMode {
        ReplyMode::On(match self.skip() {
            Skip::None | Skip::This => Skip::None,
            Skip::Next | Skip::Both => Skip::Next,
        })
    }

    /// The mode after CLIENT REPLY SKIP, which OFF makes void.
    fn after_skip(self) -> ReplyMode {
        match self {
            ReplyMode::Off(_) => self,
            ReplyMode::On(Skip::None | Skip::Next) => ReplyMode::On(Skip::Next),
            ReplyMode::On(Skip::This | Skip::Both) => ReplyMode::On(Skip::Both),
        }
    }

    /// The mode in a request that gets no reply.
    fn in_silent_request(self) -> ReplyMode {
        self.with(match self.skip() {
            Skip::None | Skip::This => Skip::This,
            Skip::Next | Skip::Both => Skip::Both,
        })
    }

    fn after_request(self) -> ReplyMode {
        self.with(match self.skip() {
            Skip::None | Skip::This => Skip::None,
            Skip::Next | Skip::Both => Skip::This,
        })
    }
}

/// CLIENT REPLY.
impl SessionState {
    /// Whether the request that is being dispatched gets no reply.
    #[inline]
    pub(crate) fn is_silent(self) -> bool {
        self.gate.any(Flags::SILENT)
    }

    /// Whether the client wants the reply of each request: neither CLIENT REPLY OFF, nor SKIP for
    /// the present or the next request, is in effect.
    pub(crate) fn wants_replies(self) -> bool {
        self.reply_mode == ReplyMode::On(Skip::None)
    }

    /// Whether the client wants no bytes at all.
    pub(crate) fn replies_are_off(self) -> bool {
        matches!(self.reply_mode, ReplyMode::Off(_))
    }

    pub(crate) fn reply_on(&mut self) {
        self.set_reply_mode(self.reply_mode.after_on());
    }

    pub(crate) fn reply_off(&mut self) {
        self.set_reply_mode(ReplyMode::Off(self.reply_mode.skip()));
    }

    /// CLIENT REPLY SKIP: the next request gets no reply.
    pub(crate) fn skip_reply(&mut self) {
        self.set_reply_mode(self.reply_mode.after_skip());
    }

    /// The request that is being dispatched gets no reply.
    pub(crate) fn silence_request(&mut self) {
        self.set_reply_mode(self.reply_mode.in_silent_request());
    }

    /// A request is dispatched, or its last step is answered.
    pub(crate) fn end_request(&mut self) {
        self.set_reply_mode(self.reply_mode.after_request());
    }

    /// RESET ends OFF. The server does not end SKIP.
    pub(crate) fn reset_reply_mode(&mut self) {
        self.set_reply_mode(ReplyMode::On(self.reply_mode.skip()));
    }

    fn set_reply_mode(&mut self, mode: ReplyMode) {
        self.reply_mode = mode;
        self.set_gate(Flags::SILENT, mode.is_silent());
    }
}

/// The questions of the hot path. Each is one test of the gate word.
impl SessionState {
    /// Whether the session's bytes are not scanned for requests now.
    #[inline]
    pub(crate) fn is_not_scanned(self) -> bool {
        self.gate.any(Flags::NOT_SCANNED)
    }

    /// Whether the session sends whole requests straight to its link.
    #[inline]
    pub(crate) fn is_on_one_server_path(self) -> bool {
        !self.gate.any(Flags::OFF_ONE_SERVER_PATH)
    }

    /// The states for which requests leave the hot path.
    #[inline]
    pub(crate) fn off_path(self) -> Flags {
        Flags(self.gate.0 & Flags::OFF_ONE_SERVER_PATH.0)
    }

    /// Whether output is not corked.
    #[inline]
    pub(crate) fn writes_at_once(self) -> bool {
        self.gate.any(Flags::WRITES_AT_ONCE)
    }

    /// Whether a state ends with the last reply that the session is owed.
    #[inline]
    pub(crate) fn awaits_last(self) -> bool {
        self.gate.any(Flags::AWAITS_LAST)
    }
}

/// Marks.
impl SessionState {
    /// Keeps the gate word in step with a state.
    fn set_gate(&mut self, bits: Flags, on: bool) {
        match on {
            true => self.gate |= bits,
            false => self.gate.remove(bits),
        }
    }

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

/// Marks of a session, each set or not. Derived bits and masks are private to this file: nothing
/// else can set them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(u32);

impl Flags {
    /// Only AUTH and HELLO are allowed yet.
    pub(crate) const UNAUTHENTICATED: Flags = Flags(1 << 8);
    /// A transaction is being queued: MULTI came, EXEC did not.
    pub(crate) const IN_MULTI: Flags = Flags(1 << 9);
    /// A subscriber in RESP2, to which few other commands are allowed.
    pub(crate) const RESTRICTED: Flags = Flags(1 << 10);
    /// The pool has several servers: each request is routed by its keys.
    pub(crate) const ROUTED: Flags = Flags(1 << 11);
    /// A server of the pool gets keys without their prefix, so requests are rewritten.
    pub(crate) const REWRITES_KEYS: Flags = Flags(1 << 12);
    /// A coalesced request may have to be sent again. Until it is answered, no further request is
    /// sent.
    pub(crate) const FUSED: Flags = Flags(1 << 13);
    /// Derived: the request that is being dispatched gets no reply.
    const SILENT: Flags = Flags(1 << 14);
    /// Derived: the session has a tunnel.
    const TUNNEL: Flags = Flags(1 << 15);
    /// Derived: the next bytes are the rest of a large request.
    const INSIDE_LARGE: Flags = Flags(1 << 16);
    /// Derived: the phase is [`Phase::Closing`].
    const CLOSING: Flags = Flags(1 << 17);
    /// Derived: the client sends no more.
    const ENDED: Flags = Flags(1 << 18);
    /// Reply steps of the last request are left. They come before the next request.
    pub(crate) const STEPS: Flags = Flags(1 << 19);
    /// A request to one of several servers took the slow path, so the time of its reply is unknown:
    /// do not cork output.
    pub(crate) const REPLY_TIME_UNKNOWN: Flags = Flags(1 << 20);
    /// The session gives its own link back once all its requests are answered.
    pub(crate) const UNPINNING: Flags = Flags(1 << 21);
    /// A coalesced request is being sent again, and so are the requests behind it that depend on
    /// it.
    pub(crate) const ASKS_AGAIN: Flags = Flags(1 << 22);
    /// The client has chosen how it reads, or its pool lets it read its own writes: see
    /// `Rare::reading`.
    pub(crate) const OWN_READ_MODE: Flags = Flags(1 << 23);
    /// The reorder buffer holds replies.
    pub(crate) const REORDERED: Flags = Flags(1 << 24);
    /// A reply is being passed on in fragments: no message may come in between.
    pub(crate) const MID_REPLY: Flags = Flags(1 << 25);

    /// Derived: the holds. The session's bytes wait.
    const HELD: Flags = Flags(u8::MAX as u32);
    /// States in which the held bytes do not begin with a request to dispatch.
    const MID_REQUEST: Flags = Flags::INSIDE_LARGE.with(Flags::STEPS).with(Flags::TUNNEL);
    /// States in which the session's bytes are not scanned for requests.
    const NOT_SCANNED: Flags = Flags::HELD
        .with(Flags::CLOSING)
        .with(Flags::STEPS)
        .with(Flags::INSIDE_LARGE);
    /// States in which requests leave the hot path. The hot path asks a session for these alone.
    const OFF_ONE_SERVER_PATH: Flags = Flags::UNAUTHENTICATED
        .with(Flags::IN_MULTI)
        .with(Flags::SILENT)
        .with(Flags::TUNNEL)
        .with(Flags::FUSED)
        .with(Flags::RESTRICTED)
        .with(Flags::ROUTED)
        .with(Flags::REWRITES_KEYS);
    /// States in which output is not corked.
    const WRITES_AT_ONCE: Flags = Flags::NOT_SCANNED
        .with(Flags::ENDED)
        .with(Flags::REPLY_TIME_UNKNOWN);
    /// States that end with the last reply that the session is owed.
    const AWAITS_LAST: Flags = Flags::UNPINNING
        .with(Flags(Holds::DEPTH.0 as u32))
        .with(Flags(Holds::CATCH_UP.0 as u32));

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
#[cfg(test)]
mod tests {
    use super::*;

    /// CLIENT REPLY SKIP silences one request, the next one. OFF silences all, and leaves a SKIP.
    #[test]
    fn reply_mode_follows_its_table() {
        use ReplyMode::{Off, On};
        use Skip::{Both, Next, None, This};
        // Mode; whether it is silent; the mode after ON, OFF, SKIP, in a silent request, after a
        // request, after RESET.
        let table = [
            (
                On(None),
                false,
                [On(None), Off(None), On(Next), On(This), On(None), On(None)],
            ),
            (
                On(This),
                true,
                [On(None), Off(This), On(Both), On(This), On(None), On(This)],
            ),
            (
                On(Next),
                false,
                [On(Next), Off(Next), On(Next), On(Both), On(This), On(Next)],
            ),
            (
                On(Both),
                true,
                [On(Next), Off(Both), On(Both), On(Both), On(This), On(Both)],
            ),
            (
                Off(None),
                true,
                [
                    On(None),
                    Off(None),
                    Off(None),
                    Off(This),
                    Off(None),
                    On(None),
                ],
            ),
            (
                Off(This),
                true,
                [
                    On(None),
                    Off(This),
                    Off(This),
                    Off(This),
                    Off(None),
                    On(This),
                ],
            ),
            (
                Off(Next),
                true,
                [
                    On(Next),
                    Off(Next),
                    Off(Next),
                    Off(Both),
                    Off(This),
                    On(Next),
                ],
            ),
            (
                Off(Both),
                true,
                [
                    On(Next),
                    Off(Both),
                    Off(Both),
                    Off(Both),
                    Off(This),
                    On(Both),
                ],
            ),
        ];
        let steps: [fn(&mut SessionState); 6] = [
            SessionState::reply_on,
            SessionState::reply_off,
            SessionState::skip_reply,
            SessionState::silence_request,
            SessionState::end_request,
            SessionState::reset_reply_mode,
        ];
        for (mode, is_silent, after) in table {
            for (step, after) in steps.into_iter().zip(after) {
                let mut state = SessionState::default();
                state |= Flags::ROUTED;
                state.set_reply_mode(mode);
                assert_eq!(state.is_silent(), is_silent, "{mode:?}");
                step(&mut state);
                assert_eq!(state.reply_mode, after, "{mode:?}");
                assert_eq!(state.is_silent(), after.is_silent(), "{after:?}");
                // The gate word has the other marks as before.
                let off_path = state.off_path();
                assert_eq!(off_path != Flags::ROUTED, after.is_silent(), "{after:?}");
                assert!(off_path.any(Flags::ROUTED));
            }
        }
    }

    /// A session ends in either order: by its client, by respool, or by both.
    #[test]
    fn phase_follows_its_table() {
        use Phase::{Closing, Ended, Open};
        let [both, ours] = [true, false].map(|ended| Closing { ended });
        // Phase; whether it is closing, and its input has ended; the phase after the end of the
        // input, and after a decision to close.
        let table = [
            (Open, (false, false), [Ended, ours]),
            (Ended, (false, true), [Ended, both]),
            (ours, (true, false), [both, ours]),
            (both, (true, true), [both, both]),
        ];
        let steps: [fn(&mut SessionState); 2] = [SessionState::end_input, SessionState::close];
        for (phase, (is_closing, has_ended), after) in table {
            for (step, after) in steps.into_iter().zip(after) {
                let mut state = SessionState::default();
                state.set_phase(phase);
                let found = (state.is_closing(), state.input_has_ended());
                assert_eq!(found, (is_closing, has_ended), "{phase:?}");
                assert_eq!(state.is_ending(), phase != Open, "{phase:?}");
                assert_eq!(state.is_not_scanned(), is_closing, "{phase:?}");
                assert_eq!(state.writes_at_once(), phase != Open);
                step(&mut state);
                assert_eq!(state.phase, after, "{phase:?}");
            }
        }
    }

    /// A large request that is refused in a tunnel is dropped, and the tunnel stays.
    #[test]
    fn input_mode_follows_its_table() {
        use InputMode::{Requests, Streaming, Swallowing, Tunnel};
        let [in_tunnel, outside] = [true, false].map(|in_tunnel| Swallowing { in_tunnel });
        // Input; whether it is scanned, and whether it is a tunnel; the input after the end of the
        // tunnel, after a refusal, and after the end of a large request.
        let table = [
            (Requests, (true, false), [Requests, outside, Requests]),
            (Tunnel, (true, true), [Requests, in_tunnel, Tunnel]),
            (Streaming, (false, false), [Streaming, outside, Requests]),
            (outside, (false, false), [outside, outside, Requests]),
            (in_tunnel, (false, true), [outside, in_tunnel, Tunnel]),
        ];
        let steps: [fn(&mut SessionState); 3] = [
            SessionState::end_tunnel,
            SessionState::swallow,
            SessionState::end_large,
        ];
        for (input, (is_scanned, is_tunnel), after) in table {
            let mut state = SessionState::default();
            state.set_input(input);
            assert_eq!(state.is_not_scanned(), !is_scanned, "{input:?}");
            assert_eq!(state.is_inside_large(), !is_scanned, "{input:?}");
            assert_eq!(state.is_streaming(), input == Streaming, "{input:?}");
            assert_eq!(state.is_tunnel(), is_tunnel, "{input:?}");
            assert_eq!(!state.is_on_one_server_path(), is_tunnel, "{input:?}");
            for (step, after) in steps.into_iter().zip(after) {
                let mut state = state;
                step(&mut state);
                assert_eq!(state.input, after, "{input:?}");
            }
        }
    }

    /// A hold stops the scan, corks nothing, and leaves the other states alone.
    #[test]
    fn holds_stop_the_scan() {
        use Holds as H;
        let all = [
            H::OUTPUT,
            H::DEPTH,
            H::CATCH_UP,
            H::LINK,
            H::MEMORY,
            H::PAUSE,
            H::ROOM,
        ];
        for hold in all {
            let mut state = SessionState::default();
            state |= Flags::ROUTED;
            state.close();
            let before = state;
            state.hold(hold);
            assert!(state.is_held() && state.holds() == hold);
            assert!(state.is_not_scanned() && state.writes_at_once());
            let ends_with_last = hold == H::DEPTH || hold == H::CATCH_UP;
            assert_eq!(state.awaits_last(), ends_with_last, "{hold:?}");
            let others = all.into_iter().filter(|other| *other != hold);
            for other in others {
                assert!(
                    !state.holds().any(other),
                    "{hold:?} shares its bit with {other:?}"
                );
                state.release(other);
            }
            assert_eq!(state.holds(), hold);
            // Every hold has an end.
            assert!(hold.any(H::BY_SERVER | H::BY_CLIENT));
            state.release(hold);
            assert_eq!(state, before);
        }
    }

    /// Every flag has a bit of its own, and none is a hold.
    #[test]
    fn flags_have_one_bit() {
        use Flags as F;
        let mut seen = F::HELD;
        let mut note = |flag: Flags| {
            assert_eq!(flag.0.count_ones(), 1);
            assert!(!seen.any(flag), "{flag:?} shares its bit");
            seen |= flag;
        };
        for other in [F::CLOSING, F::STEPS, F::INSIDE_LARGE] {
            note(other);
            assert!(other.any(F::NOT_SCANNED));
        }
        for other in [
            F::UNAUTHENTICATED,
            F::ENDED,
            F::REORDERED,
            F::IN_MULTI,
            F::SILENT,
            F::TUNNEL,
            F::UNPINNING,
            F::MID_REPLY,
            F::RESTRICTED,
            F::FUSED,
            F::ASKS_AGAIN,
            F::ROUTED,
            F::REPLY_TIME_UNKNOWN,
            F::OWN_READ_MODE,
            F::REWRITES_KEYS,
        ] {
            note(other);
            assert!(!other.any(F::NOT_SCANNED));
        }
    }
}

//! Sessions with a link of their own: because the server's side of the connection knows something
//! about them (watched keys, tracking), or because one request of theirs may wait there.
//!
//! A session changes links only while nothing of it is in flight, so its requests never overtake
//! each other. A link is given back as soon as the last reason for it has ended and everything on
//! it was answered: clean, since what was done on it leaves no trace, or else it is closed.

use respool_protocol::commands::id;

use crate::bounds::Bound;
use crate::duty::Duty;
use crate::engine::{Action, Engine, LinkId};
use crate::entry::Entry;
use crate::failure::{Cause, Fate};
use crate::link::{Dismissal, Link, LinkKey, Role, Sends};
use crate::monitor::Tunnel;
use crate::redirect::Redirect;
use crate::requests::{Blocked, Placed, Request, bound_reply};
use crate::session::{Flags, Pins, Session};
use crate::settings::WhenFull;
use crate::slots::Key;
use crate::waiters::Readiness;

impl Engine {
    /// Sees to it that a session has a link of its own, from now on and for this reason, too.
    pub(crate) fn pin(&mut self, key: Key, pins: Pins) -> Result<(), Blocked> {
        let Some(session) = self.sessions.get(key) else {
            return Err(Blocked::Wait);
        };
        let kind = self.kind_of(session);
        self.pin_to(kind, key, pins)
    }

    /// The same, with a link of this kind if it has none yet.
    pub(crate) fn pin_to(&mut self, kind: LinkKey, key: Key, pins: Pins) -> Result<(), Blocked> {
        let has_none = |session: &Session| session.pins.is_empty();
        if self.sessions.get(key).is_some_and(has_none) {
            if self.hold_until_caught_up(key) {
                return Err(Blocked::Wait);
            }
            let link = self.own_link(kind, key)?;
            self.ride(key, link);
        }
        if let Some(session) = self.sessions.get_mut(key) {
            session.pins.add(pins);
            if pins.any(Pins::STATE) {
                self.taint_own_link(key);
            }
        }
        Ok(())
    }

    /// Something is left on a session's own link that nobody else must find there.
    pub(crate) fn taint_own_link(&mut self, key: Key) {
        let link = self.sessions.get(key).map(|session| session.link);
        if let Some(link) = link.and_then(|link| self.links.get_mut(link))
            && link.role == (Role::Pinned { by: key })
        {
            link.tainted = true;
        }
    }

    /// Waits until nothing at all is in flight on a session's own link. A session may have all its
    /// answers before that: a request that was given up still has its place there, and so has what
    /// we ask.
    pub(crate) fn wait_for_own_link(&mut self, key: Key) -> bool {
        let Some(session) = self.sessions.get(key) else {
            return false;
        };
        let link = session.link;
        let busy = |link: &Link| {
            let owes = !link.ledger.is_empty() || !link.out.bytes().is_empty();
            link.role == Role::Pinned { by: key } && owes
        };
        let busy = self.links.get(link).is_some_and(busy);
        if busy {
            self.wait_at(key, link);
        }
        busy
    }

    /// A link that only this session uses: one that was given back, or a new one.
    pub(crate) fn own_link(&mut self, kind: LinkKey, key: Key) -> Result<Key, Blocked> {
        self.wait_for_room(key)?;
        let role = Role::Pinned { by: key };
        let link = match self.take_spare(kind, role) {
            Some(spare) => spare,
            None => {
                self.make_room_for_own_link();
                let Some(link) = self.add_link(kind, role) else {
                    return Err(Blocked::Refused(bound_reply("links-max")));
                };
                self.connect(link);
                link
            }
        };
        self.counters.pins += 1;
        Ok(link)
    }

    /// Links that serve one session each have a bound: at it, the session waits or is refused.
    pub(crate) fn wait_for_room(&mut self, key: Key) -> Result<(), Blocked> {
        if self.is_past_deadline(key) {
            return Err(Blocked::Refused(bound_reply("pinned-links-max")));
        }
        if self.may_have_own_link(key) {
            self.pinned_waiters.leave(key);
            self.set_gives_up_at(key, None);
            return Ok(());
        }
        self.note_bound(Bound::PinnedLinks);
        if self.settings.pinned_links_full == WhenFull::Refuse {
            return Err(Blocked::Refused(bound_reply("pinned-links-max")));
        }
        self.begin_to_wait(key);
        self.pinned_waiters.wait(key);
        self.hold(key, Flags::HOLD_ROOM);
        Err(Blocked::Wait)
    }

    /// Whether this session may have a link of its own now, of all that want one.
    pub(crate) fn may_have_own_link(&self, key: Key) -> bool {
        self.pinned_waiters.admit(key, 1, self.free_own_links())
    }

    /// How many more links may serve one session alone.
    pub(crate) fn free_own_links(&self) -> usize {
        let max = self.settings.limits.pinned_links_max;
        max.saturating_sub(self.pinned_links) as usize
    }

    /// A link that was given back is a connection of the server like any other.
    fn own_links_are_full(&self) -> bool {
        let spares: usize = self.spares.values().map(Vec::len).sum();
        self.pinned_links as usize + spares >= self.settings.limits.pinned_links_max as usize
    }

    /// One of another kind makes room.
    fn make_room_for_own_link(&mut self) {
        if self.own_links_are_full()
            && let Some(spare) = self
                .spares
                .values()
                .find_map(|spares| spares.first().copied())
        {
            self.close_link(spare);
        }
    }

    /// A link that was given back, if there is one of this kind.
    pub(crate) fn take_spare(&mut self, kind: LinkKey, role: Role) -> Option<Key> {
        let paused = self.is_server_paused(kind.server);
        let spares = self.spares.get_mut(&kind)?;
        while let Some(key) = spares.pop() {
            if let Some(link) = self.links.get_mut(key)
                && link.role == Role::Spare
            {
                link.role = role;
                link.admit(link.may_take(), paused);
                self.pinned_links += u32::from(role.is_one_sessions());
                return Some(key);
            }
        }
        None
    }

    /// A link is done with what it was taken for, and clean: it waits for the next one.
    pub(crate) fn keep_spare(&mut self, key: Key) {
        let now = self.now;
        let role = self.links.get(key).map(|link| link.role);
        // One that becomes a spare counts as much as before; one that was streaming did not count.
        let too_many = !role.is_some_and(Role::is_one_sessions) && self.own_links_are_full();
        let unfit = |link: &Link| link.tainted || link.paused.is_some();
        if too_many || self.links.get(key).is_some_and(unfit) {
            return self.close_link(key);
        }
        if let Some(link) = self.links.get_mut(key) {
            link.waits = false;
            self.pinned_links -= u32::from(link.role.is_one_sessions());
            link.role = Role::Spare;
            link.admit(false, false);
            link.unused_since = now;
            self.spares.entry(link.key).or_default().push(key);
        }
    }

    /// The reason has ended with what the session asked last: once that is answered, and if there
    /// is no other one, it goes on with everybody else.
    pub(crate) fn unpin(&mut self, key: Key, pins: Pins) {
        if let Some(session) = self.sessions.get_mut(key)
            && session.pins.any(pins)
        {
            session.pins.remove(pins);
            session.flags |= Flags::UNPINNING;
            if session.is_caught_up() {
                self.finish_unpinning(key);
            } else {
                self.hold(key, Flags::HOLD_DRAIN);
            }
        }
    }

    /// Everything that a session asked is answered.
    pub(crate) fn finish_unpinning(&mut self, key: Key) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        session.flags.remove(Flags::UNPINNING);
        let (link, pins) = (session.link, session.pins);
        if let Some(link) = self.links.get_mut(link) {
            link.waits = false;
        }
        if !pins.any(Pins::SPREAD) {
            self.drop_tracker(key);
        }
        if pins.is_empty() {
            self.ride_shared(key);
            self.give_back(link);
        }
    }

    /// The link of a session that needs none of its own any more.
    pub(crate) fn give_back(&mut self, key: Key) {
        let Some(link) = self.links.get(key) else {
            return;
        };
        if !matches!(link.role, Role::Pinned { .. }) {
            return;
        }
        if link.is_up() && link.is_idle() && !link.tainted {
            self.keep_spare(key);
            self.next_pinned();
        } else {
            self.close_link(key);
        }
    }

    /// Links of their own may be had again: as many sessions go on as there is room for.
    pub(crate) fn next_pinned(&mut self) {
        let free = self.free_own_links();
        let sessions = &self.sessions;
        let readiness = |key| Readiness::of(sessions.get(key), Flags::HOLD_ROOM);
        for waiter in self.pinned_waiters.wake(free, readiness) {
            self.release(waiter, Flags::HOLD_ROOM);
        }
    }

    /// A session's own link is lost, and with it what the server knew about the session. Watched
    /// keys may have changed, so its transaction will fail as if they had; whatever else it was,
    /// only a new connection of the client can bring it back.
    pub(crate) fn lose_pins(
        &mut self,
        by: Key,
        link: Key,
        (was_up, is_away): (bool, bool),
        lost: Cause<'_>,
    ) {
        // The server was told that no more comes, or said it itself.
        let quitting =
            |link: &Link| link.tunnel == Some(Tunnel::Quitting) || link.sends == Sends::Nothing;
        let quitting = self.links.get(link).is_some_and(quitting);
        let waited = is_away && self.links.get(link).is_some_and(Link::holds_a_waiter);
        if self.is_tracking_link(by, link) {
            return self.lose_tracking_link(by, link, was_up, quitting || waited);
        }
        if quitting || waited {
            // The server has answered, and closed. Or it is gone: libraries take an error for the
            // answer, and a closed connection for a restart. The owner of its keys may be another
            // server by now, and the session's link one to that.
            self.close_when_answered(by);
        }
        if let Some(session) = self.sessions.get_mut(by)
            && session.link == link
        {
            let pins = std::mem::take(&mut session.pins);
            session.link = Key::NOBODY;
            let tunnel = session.flags.any(Flags::TUNNEL);
            session.flags.remove(Flags::UNPINNING | Flags::TUNNEL);
            if was_up && pins.any(Pins::WATCH) {
                session.rare().watch_lost = true;
            }
            if quitting || waited {
                return;
            }
            if tunnel && !was_up {
                let seq = session.take_seq();
                let at_ms = self.now.stamp_ms();
                self.fail(Entry::of(by, seq, at_ms), Fate::NotSent, lost);
            } else if was_up && pins.any(Pins::STATE) {
                let reason = "the connection that the server knew it by was lost";
                self.close_for(by, reason.to_owned());
            }
        }
    }

    /// One request that may wait at the server (`waits`), or must not wait behind others, and
    /// leaves nothing behind that its pins do not tell.
    pub(crate) fn place_alone(
        &mut self,
        key: Key,
        bytes: &[u8],
        (reads, duty): (bool, Option<Duty>),
        pins: Pins,
        waits: bool,
    ) -> Placed {
        if let Err(blocked) = self.pin(key, pins) {
            return self.blocked(key, blocked);
        }
        let placed = self.place_on_link(key, bytes, reads, duty);
        if placed == Placed::Done {
            let link = self
                .sessions
                .get(key)
                .map_or(Key::NOBODY, |session| session.link);
            if let Some(link) = self.links.get_mut(link) {
                link.waits = waits;
            }
            self.unpin(key, pins);
        }
        placed
    }

    /// Places a command that stops the scripts of other sessions, or the server: SCRIPT KILL and
    /// its like. It must not wait for a link that these sessions hold. If all pinned links are
    /// taken, it gets an emergency link.
    pub(crate) fn place_urgent(
        &mut self,
        key: Key,
        bytes: &[u8],
        (reads, duty): (bool, Option<Duty>),
    ) -> Placed {
        let Some(session) = self.sessions.get(key) else {
            return Placed::Done;
        };
        // A server that runs a script may refuse SELECT, and these commands concern no database.
        let kind = LinkKey {
            db: 0,
            ..self.kind_of(session)
        };
        let has_own = !session.pins.is_empty();
        if has_own || self.may_have_own_link(key) {
            if let Err(blocked) = self.pin_to(kind, key, Pins::ONCE) {
                return self.blocked(key, blocked);
            }
            return self.place_alone(key, bytes, (reads, duty), Pins::ONCE, false);
        }
        if self.hold_until_caught_up(key) {
            return Placed::Wait;
        }
        let Some(link) = self.emergency_link(kind, key) else {
            let blocked = self.wait_for_emergency(key, Bound::PinnedLinks);
            return self.blocked(key, blocked);
        };
        self.set_gives_up_at(key, None);
        self.put_on(link, key, bytes, duty.unwrap_or(Duty::Pass));
        // What it asks next goes another way.
        self.hold_until_caught_up(key);
        Placed::Done
    }

    /// A client has said its last, and as far as is known here the server makes it wait. On its
    /// link we say no more either: what the server has for it still comes, and a wait the server
    /// ends as that of any client that has left, without an element that nobody would get. Then it
    /// closes the link.
    pub(crate) fn end_wait(&mut self, key: Key) {
        self.reading_changed(key);
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        let own = session.link;
        let link = self.links.get_mut(own);
        let Some(link) = link.filter(|link| link.tunnel.is_none()) else {
            return self.close(key, false);
        };
        if self.draining && link.is_up() && link.sends == Sends::More {
            return self.dismiss(own);
        }
        // What it sent behind that may be executed on this link alone: it is, if the server need
        // not wait first.
        let has_more = !session.held.is_empty() && !session.pins.is_empty();
        let asked_at = link.ledger.back().map_or(0, |entry| entry.at_ms);
        if has_more && self.now_ms.wrapping_sub(asked_at) < LAST_WORDS_MS {
            return;
        }
        self.send_the_rest(own);
    }

    /// What is to be written on a link is, and then nothing more.
    fn send_the_rest(&mut self, own: Key) {
        if let Some(link) = self.links.get_mut(own)
            && link.sends == Sends::More
        {
            link.sends = Sends::Rest;
            link.tainted = true;
            link.admit(false, false);
        }
        self.end_sending(own);
    }

    /// A session waits, and it is respool that leaves. A server drops what it has for a client that
    /// has left; so it is asked to end the wait: with an error, for some servers do not survive to
    /// end one with its time (Redis before 7.2, when a pause has put it off). It may not have heard
    /// yet of what it is to end, or not wait any more.
    fn dismiss(&mut self, own: Key) {
        let now = self.now;
        let Some(link) = self.links.get_mut(own) else {
            return;
        };
        let Dismissal { at, denied } = link.dismissal;
        let is_coming = link.scanner.is_inside() || !link.partial.is_empty();
        let is_late = at.is_some_and(|at| now.since_ms(at) >= DISMISSAL_MS);
        if is_coming || at.is_some() && !is_late {
            return;
        }
        link.dismissal.at = Some(now);
        let duty = Duty::Dismissal { of: own };
        if is_late || denied >= DISMISSALS_MAX || !self.ask_to_unblock(own, "ERROR", duty) {
            self.send_the_rest(own);
        }
    }

    /// What the server said to that.
    pub(crate) fn dismissed(&mut self, own: Key, reply: &[u8]) {
        if let Some(link) = self.links.get_mut(own) {
            link.dismissal.denied += match reply {
                b":1\r\n" => return,
                b":0\r\n" => 1,
                _ => DISMISSALS_MAX,
            };
            link.dismissal.at = None;
        }
    }

    /// The last bytes of a link may have been written.
    pub(crate) fn end_sending(&mut self, own: Key) {
        let now = self.now;
        if let Some(link) = self.links.get_mut(own)
            && link.sends == Sends::Rest
            && link.is_up()
            && link.out.unwritten().is_empty()
        {
            link.sends = Sends::Nothing;
            // From now on a server that does nothing is stalled.
            link.progress = now;
            self.act(Action::EndLink(LinkId(own)));
        }
    }

    /// CLIENT TRACKING, NO-TOUCH, IMPORT-SOURCE: as long as it is on, the session keeps a link of
    /// its own.
    pub(crate) fn switch(&mut self, key: Key, request: &Request<'_>) -> Placed {
        // Whether it is on is known when what was asked before is answered.
        if self.hold_until_caught_up(key) {
            return Placed::Wait;
        }
        match self.place_switch(key, Switch::of(request), None, request.bytes) {
            Ok(placed) => placed,
            Err(blocked) => self.blocked(key, blocked),
        }
    }

    /// `bytes`: as the server is to be asked.
    pub(crate) fn place_switch(
        &mut self,
        key: Key,
        switch: Switch,
        redirect: Option<Redirect>,
        bytes: &[u8],
    ) -> Result<Placed, Blocked> {
        let had = self.has_switched_on(key, switch.pins);
        if switch.on {
            self.pin(key, switch.pins)?;
        }
        let duty = Duty::Switch {
            switch,
            had,
            redirect,
        };
        Ok(self.place_on_link(key, bytes, false, Some(duty)))
    }

    /// What the server said to that.
    pub(crate) fn settle_switch(
        &mut self,
        key: Key,
        (switch, had): (Switch, bool),
        redirect: Option<Redirect>,
        said: &[u8],
    ) {
        let agreed = said.starts_with(b"+");
        if agreed && switch.pins.any(Pins::TRACKING) {
            self.set_redirect(key, redirect.filter(|_| switch.on));
        }
        match self.sessions.get_mut(key) {
            // It may have been switched off in front of this.
            Some(session) if switch.on && agreed => session.pins.add(switch.pins),
            _ if agreed || switch.on && !had => self.unpin(key, switch.pins),
            _ => {}
        }
    }

    pub(crate) fn has_switched_on(&self, key: Key, pins: Pins) -> bool {
        let session = self.sessions.get(key);
        session.is_some_and(|session| session.pins.any(pins))
    }
}

/// How often a server may say that it did not end a wait, and how long it may say nothing.
const DISMISSALS_MAX: u8 = 2;
const DISMISSAL_MS: u64 = 1_000;

/// A server that has not answered for so long waits: what its client sent behind that before it
/// left is not executed.
const LAST_WORDS_MS: u32 = 100;

/// What a command of [`Engine::switch`] asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Switch {
    pub(crate) pins: Pins,
    pub(crate) on: bool,
}

impl Switch {
    pub(crate) fn of(request: &Request<'_>) -> Switch {
        let has = |word: &[u8]| request.args().any(|arg| arg.eq_ignore_ascii_case(word));
        let on = request.arg(2).eq_ignore_ascii_case(b"ON");
        let pins = match request.id {
            id::CLIENT_NO_TOUCH => Pins::NO_TOUCH,
            id::CLIENT_IMPORT_SOURCE => Pins::IMPORT,
            _ if has(b"BCAST") || !on => Pins::TRACKING.with(Pins::BROADCAST),
            _ => Pins::TRACKING,
        };
        Switch { pins, on }
    }
}

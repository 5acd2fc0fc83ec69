//! A server does not answer on a link: another link takes its place for sessions with nothing in
//! flight on it.
//!
//! ```text
//!   no byte for 50 ms, and another session asks ──► a successor is connected; that session waits
//!        the link brings a byte ──────────────────► the successor is closed, all go on as before
//!        the successor is up ─────────────────────► it is the shared link; the old one answers
//!                                                   the requests it has, and is closed
//! ```
//!
//! A script that loops past `busy-reply-threshold` stops one connection and not the server: each
//! other connection is answered with BUSY, and SCRIPT KILL works. The same holds for a write while
//! the server pauses writes (CLIENT PAUSE, FAILOVER), for FLUSHALL of a server that frees memory in
//! the background, and for a module's command that blocks its connection. A server that is frozen,
//! or executes a slow command, answers no handshake, so nothing changes for it. A plain read in
//! front is never held alone, except PFCOUNT: it may write a cached number, so a server that pauses
//! writes holds it.
//!
//! A session leaves a link that owes it replies only if the server may execute all its requests
//! there twice: reads, transactions of reads, SCRIPT LOAD. So requests keep their order, and no
//! write is sent twice.
//!
//! If a pause of writes holds the request in front of the old link, the server pauses writes.
//! Further requests that the pause would hold wait in respool until the old link brings a byte:
//! sent, they would stop the successor as well. All other requests take the successor.
//!
//! A link of one session (WATCH, tracking, a large request) or of a hub has no successor. The same
//! script or pause makes it silent. It is closed at `link-stall-ms` only if no session waits for
//! the request in front, or if the server answers no PING on a shared link.

use respool_protocol::commands::{Retry, id};
use respool_protocol::encode;

use crate::base::handle::{CONFIGURED, LinkId, SessionId};
use crate::base::limits::{TAKEOVER_BYTES_MAX, TAKEOVER_LINKS_PER_SERVER};
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::local::LocalCompletion;
use crate::data_plane::ingress::Blocked;
use crate::data_plane::ledger::departed::{Departed, RepeatBounds, RepeatRule};
use crate::data_plane::ledger::{Class, Entry};
use crate::data_plane::link::{Link, LinkRole, Sends};
use crate::data_plane::pause::may_write;
use crate::data_plane::scripts::each_request;
use crate::data_plane::sent_request::{id_of, runs_code, without_asking};
use crate::data_plane::slow_readers::CODE_LANE;
use crate::routing::pool::ServerId;

/// How long a link that owes replies may bring no byte before another one may take its place,
/// milliseconds.
const STUCK_MS: u64 = 50;
/// The least `stuck_ms` in round trips of the server. The longer of the two bounds counts.
const STUCK_ROUND_TRIPS: u64 = 5;
/// The pause after a successor that was not needed, milliseconds. It doubles each time.
const PAUSE_MIN_MS: u32 = 1_000;
/// The longest such pause, milliseconds. A server with many slow commands gets one needless
/// connection after each pause.
const PAUSE_MAX_MS: u32 = 8_000;
/// How long a server that has refused a handshake with BUSY is taken to be busy, milliseconds.
const BUSY_MS: u64 = 1_000;
/// How often a server with a silent link is asked for life on another one, milliseconds. A quarter
/// of `link-stall-ms`, if that is less.
const LIFE_MS: u64 = 1_000;
/// How many times `link-stall-ms` a link may bring no byte while its server answers on other links.
const STALLS_MAX: u32 = 10;

/// The takeovers of the links to one server. Ask [`LinkTakeover::may_begin`] before a successor is
/// connected, and report its outcome by [`LinkTakeover::succeed`] or [`LinkTakeover::fail`]. Time
/// never runs back.
#[derive(Debug, Default)]
pub(crate) struct LinkTakeover {
    /// The shortest handshake, milliseconds.
    round_trip_ms: Option<u64>,
    /// Pairs of a stuck link and the link that is being connected to take its place.
    successors: Vec<(LinkId, LinkId)>,
    /// Links that were taken over and still owe replies.
    left: Vec<LinkId>,
    /// The link in `left` with a write that the server holds, and when it brought its last byte.
    pub(crate) holding: Option<(LinkId, Time)>,
    /// No successor is connected before this time.
    due: Time,
    /// The pause after the last successor that failed, milliseconds; 0 after a takeover.
    pause_ms: u32,
    /// When the server refused a handshake because it is busy, and its error text.
    busy: Option<(Time, Vec<u8>)>,
    /// A link of one session or one hub was found silent since the last tick.
    has_silent_link: bool,
    /// When a shared link last brought a byte, as of the last tick with such a link.
    life_at: Option<Time>,
}

impl LinkTakeover {
    /// Notes how long a handshake took, milliseconds.
    fn note_handshake(&mut self, ms: u64) {
        self.round_trip_ms = Some(self.round_trip_ms.map_or(ms, |least| least.min(ms)));
    }

    /// How long a link may bring no byte before it is stuck, milliseconds.
    fn stuck_ms(&self) -> u64 {
        STUCK_MS.max(STUCK_ROUND_TRIPS * self.round_trip_ms.unwrap_or_default())
    }

    fn successor_of(&self, old: LinkId) -> Option<LinkId> {
        let mut all = self.successors.iter();
        all.find(|(stuck, _)| *stuck == old).map(|(_, link)| *link)
    }

    fn old_of(&self, successor: LinkId) -> Option<LinkId> {
        let mut all = self.successors.iter();
        all.find(|(_, link)| *link == successor)
            .map(|(old, _)| *old)
    }

    /// Whether a successor may be connected now.
    fn may_begin(&self, now: Time) -> bool {
        now >= self.due && self.left.len() + self.successors.len() < TAKEOVER_LINKS_PER_SERVER
    }

    /// A successor of a stuck link is being connected.
    fn begin(&mut self, old: LinkId, successor: LinkId) {
        self.successors.push((old, successor));
    }

    /// A successor has taken over.
    fn succeed(&mut self, successor: LinkId) {
        self.left.extend(self.old_of(successor));
        self.successors.retain(|(_, link)| *link != successor);
        self.pause_ms = 0;
    }

    /// A successor was not needed, or could not be connected.
    fn fail(&mut self, successor: LinkId, now: Time) {
        self.successors.retain(|(_, link)| *link != successor);
        self.pause_ms = (self.pause_ms * 2).clamp(PAUSE_MIN_MS, PAUSE_MAX_MS);
        self.due = now.plus_ms(self.pause_ms);
    }

    /// Whether the server has answered on a shared link a moment ago.
    fn is_alive(&self, now: Time, stall_ms: u32) -> bool {
        let is_young = |at| now.since_ms(at) < u64::from(stall_ms / 2);
        self.life_at.is_some_and(is_young)
    }

    /// The server's error text, if it said less than `BUSY_MS` ago that it is busy.
    fn busy_words(&self, now: Time) -> Option<&[u8]> {
        let (at, words) = self.busy.as_ref()?;
        (now.since_ms(*at) < BUSY_MS).then_some(words)
    }
}

/// Whether a server refuses because it runs a script.
pub(crate) fn is_busy(error: &[u8]) -> bool {
    error.starts_with(b"BUSY ")
}

/// Whether a request may stop its own connection while the server executes the writes of others: it
/// frees memory in the background (Redis 7.4).
fn may_block_alone(request: &[u8]) -> bool {
    matches!(id_of(request), Some(id::FLUSHALL | id::FLUSHDB))
}

/// Whether a server that pauses writes holds one of these requests. `reads`: commands that are not
/// in the table are known to be reads. `scripts`: the server holds SCRIPT, too.
fn may_be_paused(requests: &[u8], reads: bool, scripts: bool) -> bool {
    let mut is_held = false;
    each_request(requests, |id, args| {
        is_held |= match id {
            Some(id) if scripts && id.get().name.starts_with("script") => true,
            Some(id) => may_write(id.get(), id, || args.get(1).copied()),
            None => !reads,
        };
    });
    is_held
}

/// Whether a server may execute each of these requests twice without harm. `reads`: commands that
/// are not in the table are known to be reads.
fn may_be_asked_twice(requests: &[u8], reads: bool) -> bool {
    let mut may = true;
    each_request(requests, |id, _| {
        may &= match id {
            Some(id::MULTI | id::EXEC | id::SCRIPT_LOAD) => true,
            Some(id) => id.get().retry == Retry::Read,
            None => reads,
        };
    });
    may
}

/// Whether a link may outlast `link-stall-ms` although no successor takes its place: it serves one
/// session, or one hub, and owes a reply.
fn may_outlast(link: &Link) -> bool {
    let is_apart = matches!(
        link.role,
        LinkRole::Pinned { .. } | LinkRole::Streaming { .. } | LinkRole::HubLine(_)
    );
    is_apart
        && link.is_up()
        && link.ledger.in_flight() > 0
        && !link.waits
        && link.sends == Sends::More
        && link.unread_since.is_none()
        && link.tunnel.is_none()
}

impl DataPlane {
    pub(crate) fn takeover(&mut self, server: ServerId) -> &mut LinkTakeover {
        &mut self.servers[usize::from(server.0)].takeover
    }

    /// Notes the duration of a handshake with a server. `since`: its start.
    pub(crate) fn note_handshake(&mut self, server: ServerId, since: Time) {
        let ms = self.now.since_ms(since);
        self.takeover(server).note_handshake(ms);
    }

    /// Whether a shared link owes replies and has brought nothing for longer than is usual.
    pub(crate) fn is_stuck(&self, link: &Link) -> bool {
        let takeover = &self.server(link.kind.server).takeover;
        link.role == LinkRole::Shared
            && link.is_up()
            // A link that is not read because its client takes no replies is not stuck.
            && link.unread_since.is_none()
            && link.ledger.in_flight() > 0
            && self.now.since_ms(link.progress) >= takeover.stuck_ms()
            && self.may_be_held(link)
            // The ledger does not name the session of a request that was given up. That session
            // must not overtake the request.
            && !link.ledger.iter().any(Entry::is_given_up)
    }

    /// Whether a link is being connected to take the place of a stuck one.
    pub(crate) fn is_successor(&self, id: LinkId, link: &Link) -> bool {
        self.server(link.kind.server).takeover.old_of(id).is_some()
    }

    fn may_take_over(&self, server: ServerId) -> bool {
        self.server(server).takeover.may_begin(self.now)
    }

    /// Whether a link was taken over, and still owes replies.
    pub(crate) fn was_left(&self, id: LinkId, server: ServerId) -> bool {
        self.server(server).takeover.left.contains(&id)
    }

    /// Takes the requests behind the one in front, to send them again on the successor. A session
    /// moves with all its requests, if the server may execute each of them twice.
    pub(crate) fn take_requests_behind(&mut self, old: LinkId) -> Vec<Departed> {
        let Some(link) = self.links.get(old) else {
            return Vec::new();
        };
        let server = link.kind.server;
        let front = link.ledger.first_in_flight();
        let by = front.map_or(SessionId::NONE, |front| front.session);
        let is_before_7 = self.holds_script_commands(server);
        let again = |entry: &Entry, bytes: &[u8], completion: Option<&Completion>| {
            let is_plain = match entry.class {
                Class::Read | Class::Write => {
                    may_be_asked_twice(bytes, entry.class.reads())
                        && !may_be_paused(bytes, entry.class.reads(), is_before_7)
                }
                class => class.reads(),
            };
            match completion.map(Completion::on_successor) {
                _ if !is_plain => RepeatRule::No,
                None => RepeatRule::Plainly,
                Some(Some(completion)) => RepeatRule::With(completion),
                Some(None) => RepeatRule::No,
            }
        };
        let bounds = RepeatBounds {
            requests_of_session: usize::MAX,
            bytes: TAKEOVER_BYTES_MAX,
        };
        let old = self.links.get_mut(old);
        let moved = old.map(|old| {
            let stay = old.bound_sessions(by);
            old.ledger.take_requests_of_others(stay, again, bounds)
        });
        let moved = moved.unwrap_or_default();
        self.counters.reads_sent_again += moved.len() as u64;
        moved
    }

    /// Whether a server may hold the request in front of a link alone. Other reads run no code, and
    /// take long only where the whole server is slow.
    fn may_be_held(&self, link: &Link) -> bool {
        let Some(front) = link.ledger.first_in_flight() else {
            return false;
        };
        match front.class {
            // A request of no session is respool's own, unless it runs code.
            Class::Write if front.session != SessionId::NONE => true,
            Class::Write => self.runs_code_in_front(link),
            Class::Read => self.runs_code_in_front(link) || self.may_pause_front(link),
            class => !class.reads(),
        }
    }

    /// Whether a server that pauses writes holds the request in front of a link.
    fn may_pause_front(&self, link: &Link) -> bool {
        let is_before_7 = self.holds_script_commands(link.kind.server);
        let reads = link
            .ledger
            .first_in_flight()
            .map(|front| front.class.reads());
        reads.is_some_and(|reads| may_be_paused(link.ledger.first_bytes(), reads, is_before_7))
    }

    /// Whether a pause of writes holds all subcommands of SCRIPT: it does before Redis 7.
    fn holds_script_commands(&self, server: ServerId) -> bool {
        let release = self.release_at(server);
        release.is_some_and(|(name, release)| name == "redis" && release < (7, 0))
    }

    /// Whether the request in front of a link, or one of a transaction there, runs code.
    fn runs_code_in_front(&self, link: &Link) -> bool {
        self.may_be_a_clients(link) || link.ledger.is_front_a_block_of_code()
    }

    /// Whether a server holds the request in front of a link because it pauses writes. A command
    /// that runs code, or may block its own connection, does not prove such a pause.
    fn holds_write(&self, link: &Link) -> bool {
        match link.ledger.first_in_flight().map(|front| front.class) {
            Some(Class::Write | Class::Read) => {
                self.may_pause_front(link)
                    && !self.runs_code_in_front(link)
                    && !may_block_alone(link.ledger.first_bytes())
            }
            Some(class) => !class.reads(),
            None => false,
        }
    }

    /// Notes a link of one session or one hub that owes a reply and brings no byte. The next tick
    /// then checks on a shared link whether the server lives.
    pub(crate) fn tick_silent(&mut self, id: LinkId) {
        let patience_ms = u64::from(self.settings.timeouts.link_stall_ms / 4).min(LIFE_MS);
        let Some(link) = self.links.get(id).filter(|link| may_outlast(link)) else {
            return;
        };
        let server = link.kind.server;
        if self.now.since_ms(link.progress) >= patience_ms {
            self.takeover(server).has_silent_link = true;
        }
    }

    /// Whether a link stays although it brings no byte for `link-stall-ms`: its server answers on
    /// another link. A session must wait for the request in front, or for any request if the link
    /// was taken over.
    pub(crate) fn outlasts_stall(&self, id: LinkId, link: &Link) -> bool {
        let stall_ms = self.settings.timeouts.link_stall_ms;
        let most = u64::from(stall_ms) * u64::from(STALLS_MAX);
        let front = link.ledger.first_in_flight().map(|front| front.session);
        may_outlast(link)
            && front.is_some_and(|front| self.sessions.get(front).is_some())
            && self.now.since_ms(link.progress) < most
            && self
                .server(link.kind.server)
                .takeover
                .is_alive(self.now, stall_ms)
            || self.is_left_by_a_living_server(id, link)
    }

    fn is_left_by_a_living_server(&self, id: LinkId, link: &Link) -> bool {
        let stall_ms = self.settings.timeouts.link_stall_ms;
        let answers = |(_, other): (LinkId, &Link)| {
            let recent = self.now.since_ms(other.progress) < u64::from(stall_ms);
            other.kind.server == link.kind.server
                && other.role == LinkRole::Shared
                && other.is_up()
                && (recent || other.ledger.in_flight() == 0)
        };
        let most = u64::from(stall_ms) * u64::from(STALLS_MAX);
        let is_wanted = || {
            let mut entries = link.ledger.iter();
            entries.any(|entry| self.sessions.get(entry.session).is_some())
        };
        self.was_left(id, link.kind.server)
            && self.now.since_ms(link.progress) < most
            && is_wanted()
            && self.links.iter().any(answers)
    }

    /// Lets a session wait for the successor of a stuck link, if there is one or one may be
    /// connected. A server that is known to be busy answers the request with its error text
    /// instead.
    pub(crate) fn await_successor(
        &mut self,
        session_id: SessionId,
        link_id: LinkId,
    ) -> Option<Blocked> {
        let link = self.links.get(link_id).filter(|link| self.is_stuck(link))?;
        let session = self.sessions.get(session_id)?;
        if !session.is_caught_up() && link.ledger.owes(session_id) {
            return None;
        }
        let kind = link.kind;
        if self.would_overtake(session_id) {
            return None;
        }
        if self.is_past_deadline(session_id) {
            return Some(self.wait_at_full(session_id, link_id));
        }
        let takeover = &self.server(kind.server).takeover;
        if let Some(words) = takeover.busy_words(self.now) {
            let mut reply = Vec::new();
            encode::error(&mut reply, words);
            return Some(Blocked::Refused(reply));
        }
        let successor = match takeover.successor_of(link_id) {
            Some(successor) => successor,
            None => self.begin_takeover(link_id)?,
        };
        self.begin_to_wait(session_id);
        self.wait_at(session_id, successor);
        Some(Blocked::Wait)
    }

    /// Connects a successor of a stuck link, if there may be one.
    fn begin_takeover(&mut self, old: LinkId) -> Option<LinkId> {
        let kind = self.links.get(old)?.kind;
        if !self.may_take_over(kind.server) {
            return None;
        }
        let successor = self.insert_link(kind, LinkRole::Idle);
        self.takeover(kind.server).begin(old, successor);
        self.connect(successor);
        Some(successor)
    }

    /// Closes the successor of a link that brought a byte or is gone.
    pub(crate) fn drop_successor(&mut self, old: LinkId, server: ServerId) {
        let now = self.now;
        let takeover = self.takeover(server);
        if let Some(successor) = takeover.successor_of(old) {
            takeover.fail(successor, now);
            self.close_link(successor);
        }
    }

    /// Whether the client may have written the error that answers the request in front: code can
    /// return any error.
    pub(crate) fn may_be_a_clients(&self, link: &Link) -> bool {
        let Some(front) = link.ledger.first_in_flight() else {
            return true;
        };
        match link.ledger.front_completion() {
            Some(Completion::Local(LocalCompletion::Code { .. })) => true,
            // In a block with MULTI the server itself reports the error. Without MULTI the requests
            // ran one by one, and may run code.
            Some(Completion::Block { opens, .. }) => !opens,
            _ => front.len > 0 && runs_code(id_of(without_asking(link.ledger.first_bytes()))),
        }
    }

    /// Notes when a shared link to a server last brought a byte. If that was too long ago, a
    /// shared link that owes no replies sends a PING.
    pub(crate) fn ask_for_life(&mut self, server: ServerId) {
        let patience_ms = u64::from(self.settings.timeouts.link_stall_ms / 4).min(LIFE_MS);
        let (mut last, mut idle) = (None, None);
        for (id, link) in self.links_shared_to(server) {
            if link.is_up() && link.role == LinkRole::Shared {
                last = last.max(Some(link.progress));
                // The ACL of a client's user may forbid PING, and the server would log that. So a
                // link of the configured user is preferred.
                let is_ours = link.kind.user == CONFIGURED;
                if link.ledger.is_empty() && (idle.is_none() || is_ours) {
                    idle = Some(id);
                }
            }
        }
        let now = self.now;
        self.takeover(server).life_at = last;
        let is_recent = |at| now.since_ms(at) < patience_ms;
        if let Some(idle) = idle
            && !last.is_some_and(is_recent)
        {
            let mut ping = Vec::new();
            encode::request(&mut ping, &["PING"]);
            self.put_ours(idle, &ping, Completion::Pass);
        }
    }

    /// Lets requests of a session for a shared link wait, if the server pauses writes and would
    /// hold one of them. Sent, the request would stop that link as well.
    pub(crate) fn await_writes(
        &mut self,
        session: SessionId,
        link_id: LinkId,
        requests: &[u8],
        reads: bool,
    ) -> Option<Blocked> {
        let link = self.links.get(link_id)?;
        if link.accepting() || link.role != LinkRole::Shared {
            return None;
        }
        let server = link.kind.server;
        self.end_holding(server);
        let holding = self.link_that_holds_writes(server)?;
        let is_held = may_be_paused(requests, reads, self.holds_script_commands(server));
        is_held.then(|| self.wait_at_full(session, holding))
    }

    /// Sets which link the server holds writes on. While there is one, requests for the server take
    /// the slow path.
    fn set_holding(&mut self, server: ServerId, holding: Option<(LinkId, Time)>) {
        let before = std::mem::replace(&mut self.takeover(server).holding, holding);
        self.admit_links();
        if let Some((link, _)) = before {
            self.wake_waiters(link);
        }
    }

    /// Ends the hold of writes once its link has brought a byte, owes nothing or is gone.
    pub(crate) fn end_holding(&mut self, server: ServerId) {
        let Some((id, since)) = self.server(server).takeover.holding else {
            return;
        };
        let still = |link: &Link| link.progress == since && link.ledger.in_flight() > 0;
        if !self.links.get(id).is_some_and(still) {
            self.set_holding(server, None);
        }
    }

    /// A successor is up. Returns whether it takes the place of the old link, which may have
    /// brought a reply meanwhile.
    pub(crate) fn takes_over(&mut self, successor: LinkId) -> bool {
        let Some(link) = self.links.get(successor) else {
            return false;
        };
        let kind = link.kind;
        let takeover = &self.server(kind.server).takeover;
        let Some(old) = takeover.old_of(successor) else {
            // It was connected for another reason.
            return true;
        };
        let is_shared = self.link_index.shared(&kind) == Some(old);
        let takes = is_shared && self.links.get(old).is_some_and(|old| self.is_stuck(old));
        let now = self.now;
        match takes {
            true => {
                let holding = self.links.get(old).filter(|link| self.holds_write(link));
                let holding = holding.map(|link| (old, link.progress));
                self.takeover(kind.server).succeed(successor);
                self.counters.silent_links_replaced += 1;
                self.note_slow_code(old);
                if holding.is_some() {
                    self.set_holding(kind.server, holding);
                }
            }
            false => self.takeover(kind.server).fail(successor, now),
        }
        takes
    }

    /// A successor could not be connected. `error`: the server's error to its handshake.
    pub(crate) fn lose_successor(&mut self, successor: LinkId, error: Option<&[u8]>) {
        let Some(link) = self.links.get(successor) else {
            return;
        };
        let (now, server) = (self.now, link.kind.server);
        let takeover = self.takeover(server);
        if let Some(old) = takeover.old_of(successor) {
            takeover.fail(successor, now);
            if let Some(words) = error.filter(|words| is_busy(words)) {
                takeover.busy = Some((now, words.to_vec()));
                takeover.due = now;
                self.note_slow_code(old);
            }
        }
    }

    /// Keeps other sessions off a link that is stuck, as long as a successor is possible.
    pub(crate) fn tick_stuck(&mut self, id: LinkId) {
        let Some(link) = self
            .links
            .get(id)
            .filter(|link| link.role == LinkRole::Shared)
        else {
            return;
        };
        let server = link.kind.server;
        let is_code_link = link.kind.lane == CODE_LANE;
        let takeover = &self.server(server).takeover;
        let is_stuck = self.is_stuck(link);
        let has_way = takeover.successor_of(id).is_some()
            || takeover.busy_words(self.now).is_some()
            || self.may_take_over(server);
        let paused = self.is_server_paused(server) || is_stuck && has_way;
        // A takeover begins if another session's request is in flight or a session waits for the
        // link. It also begins after half of `link-stall-ms`: a link that owes replies to one
        // session alone is lost as stalled, unless the server is known to live.
        let silent_ms = self.now.since_ms(link.progress);
        let is_wanted = link.ledger.owes_others()
            || !link.waiters.is_empty()
            || silent_ms >= u64::from(self.settings.timeouts.link_stall_ms / 2);
        let begins = is_stuck && takeover.successor_of(id).is_none() && is_wanted;
        if let Some(link) = self.links.get_mut(id)
            && link.takes()
        {
            link.admit(true, paused);
        }
        if is_stuck && is_code_link {
            self.note_slow_code(id);
        }
        if begins {
            self.begin_takeover(id);
        }
    }

    /// Ends the takeovers and holds of writes that are over, and checks servers with silent links.
    pub(crate) fn tick_takeovers(&mut self) {
        for index in 0..self.servers.len() {
            let server = ServerId(index as u16);
            let links = &self.links;
            let left = &mut self.servers[index].takeover.left;
            left.retain(|id| links.get(*id).is_some());
            self.end_holding(server);
            if std::mem::take(&mut self.takeover(server).has_silent_link) {
                self.ask_for_life(server);
            }
            for (old, _) in self.servers[index].takeover.successors.clone() {
                if !self.links.get(old).is_some_and(|link| self.is_stuck(link)) {
                    self.drop_successor(old, server);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32) -> LinkId {
        LinkId {
            index,
            generation: 1,
        }
    }

    #[test]
    fn distant_server_has_five_round_trips_to_answer() {
        let mut takeover = LinkTakeover::default();
        assert_eq!(takeover.stuck_ms(), STUCK_MS);
        takeover.note_handshake(100);
        assert_eq!(takeover.stuck_ms(), 500);
        takeover.note_handshake(2_000);
        assert_eq!(takeover.stuck_ms(), 500);
        takeover.note_handshake(1);
        assert_eq!(takeover.stuck_ms(), STUCK_MS);
    }

    /// Links that were left count for the bound, and each needless successor doubles the pause.
    #[test]
    fn successors_are_bounded_and_back_off() {
        let mut takeover = LinkTakeover::default();
        let at = |ms| Time(0).plus_ms(ms);
        assert!(takeover.may_begin(at(0)));
        takeover.begin(link(1), link(2));
        assert_eq!(takeover.successor_of(link(1)), Some(link(2)));
        assert_eq!(takeover.old_of(link(2)), Some(link(1)));
        takeover.fail(link(2), at(0));
        assert_eq!(takeover.successor_of(link(1)), None);
        assert!(!takeover.may_begin(at(999)) && takeover.may_begin(at(1_000)));
        takeover.begin(link(1), link(3));
        takeover.fail(link(3), at(1_000));
        assert!(!takeover.may_begin(at(2_999)) && takeover.may_begin(at(3_000)));
        takeover.begin(link(1), link(4));
        takeover.succeed(link(4));
        assert!(takeover.may_begin(at(3_000)));
        takeover.begin(link(4), link(5));
        assert!(
            !takeover.may_begin(at(3_000)),
            "one link was left, and a successor is being connected"
        );
    }
}

//! Links that come up, go down, stall and come back; requests whose time is over.

use respool_protocol::encode;

use std::sync::Arc;

use crate::auth::CONFIGURED;
use crate::cluster::SILENT_MS;
use crate::duty::Duty;
use crate::emergency;
use crate::engine::{Action, Engine, Event, LinkId};
use crate::entry::{Before, Entry};
use crate::failure::{self, Cause, Fate};
use crate::greeting::Greeted;
use crate::limits::{LINK_UNUSED_MS, REFUSED_LINKS_MAX};
use crate::link::{Link, Role, Sends, State, Streaming};
use crate::monitor::Tunnel;
use crate::requests::wants_password;
use crate::session::{Flags, Session};
use crate::settings::AwayError;
use crate::slots::Key;
use crate::takeover::is_busy;
use crate::time::Time;
use crate::tracking::AWAY;
use crate::trust::refuses_login;
use crate::words::NOAUTH;

/// A connection that lasted this long was a good one: its loss is answered by connecting at once.
const STABLE_MS: u64 = 1_000;

impl Engine {
    /// A link's socket failed, or could not be connected.
    pub fn handle_link_lost(&mut self, link: LinkId, reason: &str) {
        // It was given up in this very turn: what is lost is not its next connection.
        if !self.is_to_close(link) {
            let reason = self.why_lost(link.0, reason);
            self.link_down(link.0, &reason, None);
        }
    }

    /// We give a link up.
    pub(crate) fn lose_link(&mut self, key: Key, reason: &str) {
        self.act(Action::CloseLink(LinkId(key)));
        self.link_down(key, reason, None);
    }

    /// What the server has answered to our greeting so far.
    pub(crate) fn greeted(&mut self, key: Key, greeted: Greeted) {
        match greeted {
            // It may ask on.
            Greeted::Waiting => self.write_link(key),
            Greeted::Done if self.is_disproved(key) => {
                let Some(server) = self.links.get(key).map(|link| link.key.server) else {
                    return;
                };
                if !self.leave_heir(server) {
                    self.lose_link(
                        key,
                        "it is a replica, and the Sentinels call it the primary",
                    );
                }
                self.doubt_primary(server);
            }
            Greeted::Done => {
                self.take_limits(key);
                self.greeted_as_configured(key, None);
                if !self.waits_for_branches(key) && !self.waits_for_scripts(key) {
                    self.link_is_up(key);
                }
            }
            // A probing link may be unauthenticated: clients' logins are tried on it.
            Greeted::Refused(text) if self.is_probe(key) && text.starts_with(b"NOAUTH") => {
                self.greeted_as_configured(key, Some(&text));
                self.link_is_up(key);
            }
            Greeted::Broken(reason) => self.lose_link(key, &reason),
            Greeted::Refused(text) => {
                self.act(Action::CloseLink(LinkId(key)));
                let reason = format!("the server refused: {}", String::from_utf8_lossy(&text));
                self.link_down(key, &reason, Some(text));
            }
        }
    }

    pub(crate) fn link_is_up(&mut self, key: Key) {
        self.stir_put_off();
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        let greeted_since = match link.state {
            State::Greeting { since, .. } => since,
            _ => self.now,
        };
        link.state = State::Up;
        link.is_late = false;
        link.up_since = self.now;
        link.progress = self.now;
        link.refusal = None;
        let heeded = link.heeds.then_some(link.key.server);
        let (role, its_server) = (link.role, link.key.server);
        if link.has_open_batch() {
            self.list_link(key);
        } else {
            self.write_link(key);
        }
        self.counters.link_ups += 1;
        self.reopen(key);
        if let Some(server) = heeded {
            self.doubt_owners(server);
            self.look_at(server);
        }
        if role == Role::Sentinel {
            self.sentinel_up(key);
        }
        self.hub_up(key);
        self.pump_logins(key);
        self.note_handshake(its_server, greeted_since);
        self.wake_waiters(key);
        self.note_reached(its_server);
        self.succeed(key);
        let Some(link) = self.links.get(key) else {
            return;
        };
        let is_node = self.pool_of(its_server).cluster().is_some();
        let identity = link
            .identity
            .as_ref()
            .map_or(String::new(), |identity| identity.description(is_node));
        if matches!(link.role, Role::Shared | Role::Hub(_) | Role::Sentinel) {
            let server = self.label(key).to_owned();
            let pool = self.pool_name(link.key.server).to_owned();
            self.tell(Event::LinkUp {
                server,
                pool,
                identity,
            });
        }
    }

    pub(crate) fn link_down(&mut self, key: Key, reason: &str, refusal: Option<Vec<u8>>) {
        self.note_lost_questions(key);
        self.lose_polls(key);
        self.ask_again(key);
        self.lose_successor(key, refusal.as_deref());
        if !self.links.get(key).is_some_and(Link::is_up) {
            self.leave_code_lane(key);
        }
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        let was_up = link.is_up();
        let begins_to_track = link.is_asked_to_track();
        let mut stable = was_up && self.now.since_ms(link.up_since) >= STABLE_MS;
        if was_up && !stable {
            link.state = State::Down;
            stable = self.reconnects_at_once(key);
        }
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        let cut_off = if link.cutting && link.scanner.kind() != b'>' {
            link.first_in_flight().map(|entry| entry.session)
        } else {
            None
        };
        // An attempt that failed says nothing about the server's answers.
        match was_up {
            true => self.learned.lose_questions(key, self.now),
            false => self.learned.leave_questions(key),
        }
        // Its reads need not wait for it: they may be asked elsewhere.
        let pool = self.servers[usize::from(link.key.server.0)].pool;
        let is_read_elsewhere = self.pools[usize::from(pool)].readers.is_some();
        let role = link.role;
        if was_up {
            link.lost_at = Some(self.now);
        }
        let its_server = link.key.server;
        link.state = State::Down;
        if was_up && role == Role::Shared {
            self.learned.doubt_server(its_server);
            self.note_scripts_lost(its_server);
        }
        // A password that comes from a file may be replaced there at any moment.
        let awaits_password = self.awaits_password(key, refusal.as_deref());
        let may_retry = refusal.is_none() || awaits_password;
        if may_retry {
            self.begin_outage(its_server, was_up);
        }
        let retries = may_retry && self.retries(key, was_up);
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        let shared = role.is_manys();
        // A server that refuses the link is there: its words go to the client.
        let is_away = was_up || !retries && refusal.is_none();
        let shut_down_by = link.is_shut_down_by().filter(|_| was_up);
        if link.sends == Sends::Nothing
            || is_away && link.holds_a_waiter()
            || shut_down_by.is_some()
        {
            // The client has left, or is closed in place of an error.
            link.ledger.iter_mut().for_each(|entry| entry.silent = true);
        }
        let moves = is_read_elsewhere && shared;
        // Of a large request that waits, the link has the first part: that is no request yet.
        let keeps_part = retries && !was_up && link.streaming != Streaming::No;
        let gone = match keeps_part {
            true => Vec::new(),
            false => link.disconnect(moves || stable && role == Role::Shared),
        };
        if !keeps_part {
            self.load_again(key);
        }
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        link.is_late = false;
        let (tried, began) = (!std::mem::take(&mut link.untried), link.attempted_at);
        let has_left = link.sends == Sends::Nothing;
        let heeds = link.heeds && role == Role::Shared;
        self.forget_asking(key);
        if heeds {
            if self.server(its_server).replica_of.is_none() {
                self.doubt_primary(its_server);
                // A server that refuses a greeting is alive, and refuses every attempt.
                let is_lost = was_up || refusal.is_none();
                if is_lost || !self.knows_all(usize::from(pool)) {
                    self.doubt_lost_owner(its_server);
                }
            } else if was_up {
                self.doubt_owners(its_server);
            }
            self.forget_look(key);
            self.deal_seats(usize::from(self.server(its_server).pool));
        }
        if heeds || moves {
            self.move_left(key);
        }
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        // What stays waits for the next connection, if there is to be one.
        let stranded: Vec<Entry> = match role {
            Role::Shared | Role::Probe => Vec::new(),
            _ if retries && !matches!(role, Role::Hub(_)) => Vec::new(),
            _ => link.take_unsent(|_| true),
        };
        if stable {
            let lost = |entry: &&Entry| entry.before == Before::Lost;
            self.counters.reads_sent_again += link.ledger.iter().filter(lost).count() as u64;
        }
        link.failures = if stable {
            0
        } else {
            link.failures.saturating_add(1)
        };
        link.reason = reason.to_owned();
        // A client has asked for a link without riders, and the refusal concerns that client alone.
        let theirs = refusal.is_some() && link.riders == 0 && !link.waiters.is_empty();
        // A session's own link says nothing that the shared one does not.
        let told = tried && !theirs && matches!(role, Role::Shared | Role::Hub(_) | Role::Sentinel);
        let refused = refusal.is_some();
        let refused_with = refusal.clone();
        // A server that wanted a password wants it still, until it has been seen not to.
        if refusal.is_some() || !wants_password(link) {
            link.refusal = refusal;
        }
        let (wanted, kind) = (wants_password(link), link.key);
        let server = self.label(key).to_owned();
        if tried {
            self.counters.link_downs += 1;
            match refused {
                _ if was_up && has_left => {}
                _ if was_up => self.note_lost(kind.server),
                true if theirs || kind.user != CONFIGURED => {}
                true if awaits_password => {
                    self.note_unreachable(kind.server, (began, retries), reason);
                }
                true => self.note_refused(kind.server),
                false => self.note_unreachable(kind.server, (began, retries), reason),
            }
        }
        if refused && role != Role::Probe {
            self.greeted_as_configured(key, refused_with.as_deref());
        }
        // A Sentinel's password is no client's to say.
        let is_clients = !matches!(role, Role::Sentinel | Role::Probe);
        if wanted && kind.user == CONFIGURED && is_clients {
            self.flag_unauthenticated(key);
        }
        if told {
            self.tell(Event::LinkDown {
                server: server.clone(),
                pool: self.pool_name(kind.server).to_owned(),
                reason: reason.to_owned(),
            });
        }
        let lost = Cause::LinkLost {
            server: &server,
            reason,
        };
        if let Role::Pinned { by } = role
            && !retries
        {
            self.lose_pins(by, key, (was_up, is_away), lost);
            if begins_to_track {
                self.close_for(by, String::from(AWAY));
            }
        }
        if let Some(session) = cut_off {
            // Half a reply is with the client: whatever follows would be taken for the rest of it.
            self.close_for(
                session,
                format!("connection to {server} lost in the middle of its reply"),
            );
        }
        for entry in gone {
            self.fail(entry, Fate::Unknown, lost);
        }
        if let Some(session) = shut_down_by {
            // As the server closes the connection of that client.
            self.close_when_answered(session);
        }
        for entry in stranded {
            self.fail_unsent(key, entry, lost);
        }
        if was_up && stable && role == Role::Shared && !heeds {
            self.ask_pipelines_apart(key, cut_off);
        }
        match role {
            // What stayed leaves when the link is back.
            Role::Shared | Role::Sentinel if stable => self.connect(key),
            Role::Shared | Role::Sentinel if stable => self.connect(key),
            Role::Hub(hub) => {
                if was_up {
                    self.lose_subscriptions(hub, &server);
                }
                self.hub_down(hub);
                if stable {
                    self.connect(key);
                } else if retries {
                    self.retry_later(key);
                } else {
                    self.rest(key);
                }
            }
            _ if retries => self.retry_later(key),
            Role::Shared | Role::Sentinel => self.rest(key),
            Role::Streaming { by } => {
                self.fail_large(by, key, lost);
                self.remove_link(key);
                self.next_streaming();
                return;
            }
            Role::Pinned { by } => {
                self.fail_large(by, key, lost);
                return self.remove_link(key);
            }
            Role::Emergency { .. } => return self.remove_link(key),
            Role::Redirect { .. } if was_up => {
                self.lose_redirect(key);
                return self.remove_link(key);
            }
            Role::Redirect { .. } => self.rest(key),
            Role::Probe => {
                self.fail_waiting(key);
                self.remove_link(key);
                if !was_up {
                    self.probe_failed(its_server, reason, refused);
                }
                return self.probe_lost(its_server, key);
            }
            Role::Captured { .. } | Role::Spare => return self.remove_link(key),
        }
        if heeds {
            self.deal_seats(usize::from(self.server(its_server).pool));
        }
        self.close_disowned(key);
        self.wake_waiters(key);
    }

    /// The server knows the user of a link no more, or another password: it has closed that user's
    /// connections, and its sessions here are no better.
    fn close_disowned(&mut self, key: Key) {
        let said = |link: &Link, code: &str| {
            let refusal = link.refusal.as_deref().unwrap_or_default();
            refusal.starts_with(code.as_bytes())
        };
        let disowned = |link: &Link| {
            link.key.user != CONFIGURED
                // Users are not replicated: the primary may know better.
                && self.server(link.key.server).replica_of.is_none()
                && ["WRONGPASS", "NOAUTH", "NOPERM"]
                    .iter()
                    .any(|code| said(link, code))
        };
        let Some(link) = self.links.get(key).filter(|link| disowned(link)) else {
            return;
        };
        let (user, server) = (link.key.user, link.key.server);
        // NOPERM refuses a command of the greeting, and not the user.
        let is_deleted = !said(link, "NOPERM");
        let riders = self
            .sessions
            .iter()
            .filter(|(_, session)| session.link == key);
        for rider in riders.map(|(rider, _)| rider).collect::<Vec<_>>() {
            self.close_when_answered(rider);
        }
        if is_deleted {
            self.close_waits_of(user, server);
        }
    }

    /// No connection can be had: what waits for one fails, and the next attempt is a while off.
    fn rest(&mut self, key: Key) {
        let Some((server, failures)) = self
            .links
            .get(key)
            .map(|link| (link.key.server, link.failures))
        else {
            return;
        };
        let until = match self.away_until(server) {
            Some(until) => until,
            None => self.now.plus_ms(self.back_off_ms(failures)),
        };
        if let Some(link) = self.links.get_mut(key) {
            link.state = State::Resting { until };
        }
        self.fail_waiting(key);
        self.bound_refused(key);
    }

    /// A server refuses a link, for example to a database that it does not have. If there are too
    /// many refused links, the oldest one is removed. The next tick removes all refused links
    /// without riders. Until then, a client could fill `links-max` with them.
    fn bound_refused(&mut self, newest: Key) {
        let links = self.links.iter();
        let refused = links.filter_map(|(key, link)| match link.state {
            State::Resting { until } if key != newest && self.is_refused_to_all(link) => {
                Some((until, key))
            }
            _ => None,
        });
        let refused: Vec<(Time, Key)> = refused.collect();
        if refused.len() >= REFUSED_LINKS_MAX
            && let Some((_, oldest)) = refused.into_iter().min()
        {
            self.remove_link(oldest);
        }
    }

    /// Whether the server has refused a shared link, and no session rides on it or waits for it.
    fn is_refused_to_all(&self, link: &Link) -> bool {
        link.refusal.is_some()
            && link.riders == 0
            && link.waiters.is_empty()
            && link.role == Role::Shared
            && link.key.user == CONFIGURED
            && link.key != self.first_link(link.key.server)
            && !self.is_routed_to(link.key.server)
    }

    /// Fails the requests that wait at a link that is not up.
    pub(crate) fn fail_waiting(&mut self, key: Key) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        link.admit(false, false);
        let failed = link.take_unsent(|_| true);
        let reason = link.reason.clone();
        let server = self.label(key).to_owned();
        for entry in failed {
            let cause = Cause::NoLink {
                server: &server,
                reason: &reason,
            };
            self.fail_unsent(key, entry, cause);
        }
    }

    /// A request was not sent because its link could not be had.
    fn fail_unsent(&mut self, link: Key, entry: Entry, cause: Cause<'_>) {
        if self.links.get(link).is_some_and(wants_password) {
            let mut reply = Vec::new();
            encode::error(&mut reply, NOAUTH);
            self.pass_on(entry, &reply);
            return;
        }
        let refusal = self.links.get(link).and_then(|link| link.refusal.clone());
        // The server would say the same to the client.
        if let Some(words) = refusal.as_deref().filter(|words| is_busy(words)) {
            let mut reply = Vec::new();
            encode::error(&mut reply, words);
            self.pass_on(entry, &reply);
        } else {
            let away = failure::away_error_at(refusal.as_deref(), self.away_error_of(entry));
            self.fail_as(entry, entry.fate_unsent(), away, cause);
        }
    }

    /// The link of a large request is gone before the request was sent whole: it was not executed.
    /// The rest of it is read for nothing.
    fn fail_large(&mut self, session: Key, link: Key, cause: Cause<'_>) {
        let Some(state) = self.sessions.get_mut(session) else {
            return;
        };
        let seq = state.next_seq.wrapping_sub(1);
        let Some(large) = state.rare.as_mut().and_then(|rare| rare.large.as_mut()) else {
            return;
        };
        let silent = large.silent;
        if large.link == Some(link) {
            large.link = None;
            state.flags.remove(Flags::STREAMING);
            state.flags |= Flags::SWALLOWING;
            let entry = Entry {
                silent,
                ..Entry::of(session, seq, 0)
            };
            self.fail(entry, Fate::NotSent, cause);
            self.release(session, Flags::HOLD_LINK);
        }
    }

    /// The session of a half-sent large request is gone: its link can carry nothing else.
    pub(crate) fn abandon(&mut self, link: Key) {
        self.act(Action::CloseLink(LinkId(link)));
        if let Some(Role::Pinned { by }) = self.links.get(link).map(|link| link.role) {
            let server = self.label(link).to_owned();
            let reason = "a request was broken off";
            let lost = Cause::LinkLost {
                server: &server,
                reason,
            };
            self.lose_pins(by, link, (true, true), lost);
        }
        self.remove_link(link);
        self.next_streaming();
    }

    /// A request gets no reply; its client gets an error in its place.
    pub(crate) fn fail(&mut self, entry: Entry, fate: Fate, cause: Cause<'_>) {
        let away = self.away_error_of(entry);
        self.fail_as(entry, fate, away, cause);
    }

    /// The same. `away` is the code if the server is away.
    fn fail_as(&mut self, entry: Entry, fate: Fate, away: AwayError, cause: Cause<'_>) {
        if self.sessions.get(entry.session).is_none() {
            return;
        }
        match fate {
            Fate::NotSent => self.counters.failed_not_sent += 1,
            Fate::Unknown => self.counters.failed_unknown += 1,
        }
        let mut reply = std::mem::take(&mut self.scratch);
        reply.clear();
        failure::append_reply_as(&mut reply, fate, away, cause);
        self.pass_on(entry, &reply);
        self.scratch = reply;
    }

    /// A link that had no room has room again: sessions that wait for it continue.
    pub(crate) fn reopen(&mut self, key: Key) {
        let limits = &self.settings.limits;
        let paused = self.is_link_paused(key);
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        let least_room = match link.reply_room.is_careful() {
            true => link.reply_room.replies_max(),
            false => link.reply_room.replies_max().div_ceil(2),
        };
        let room = link.ledger.len() + least_room <= link.reply_room.replies_max()
            && link.out.bytes().len() <= limits.link_unanswered_bytes_max as usize / 2;
        if !room || matches!(link.state, State::Down | State::Resting { .. }) {
            return;
        }
        link.admit(link.may_take(), paused);
        self.wake_for_room(key);
    }

    pub(crate) fn wake_waiters(&mut self, key: Key) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        for waiter in std::mem::take(&mut link.waiters) {
            self.release(waiter, Flags::HOLD_LINK);
        }
    }

    /// Looks at every deadline.
    pub(crate) fn tick(&mut self) {
        // Borrowed for the moment: a tick, too, comes often enough not to allocate.
        let mut keys = std::mem::take(&mut self.ticking);
        keys.extend(self.links.iter().map(|(key, _)| key));
        for key in keys.drain(..) {
            self.tick_link(key);
        }
        self.ticking = keys;
        self.tick_takeovers();
        self.tick_polls();
        self.tick_clusters();
        self.tick_trackers();
        self.tick_sentinels();
        self.tick_readers();
        self.tick_questions();
        self.tick_lessons();
        self.tick_waiters();
        self.tick_arrivals();
        self.tick_limits();
        self.tick_holders();
        self.tick_slow_readers();
        self.tick_hubs();
        self.tick_login_checks();
        self.tick_memory();
        self.tick_untaken();
        self.tick_login_queue();
        self.tick_guesses();
        let idle_ms = u64::from(self.settings.timeouts.session_idle_ms);
        if idle_ms > 0 {
            let idle = |(key, session): (Key, &crate::session::Session)| {
                // A subscriber may listen for ever.
                let over = session.is_caught_up()
                    && session.out.is_empty()
                    && !session.listens()
                    && !session.flags.any(Flags::TUNNEL)
                    // These sessions wait for respool.
                    && !session.flags.any(Flags::HOLD | Flags::STEPS | Flags::RESUMING)
                    && self.now.since_ms(session.active_at) >= idle_ms;
                over.then_some(key)
            };
            for key in self.sessions.iter().filter_map(idle).collect::<Vec<_>>() {
                self.close_for(key, format!("session-idle-ms: idle for {idle_ms} ms"));
            }
        }
    }

    /// Whether nothing will be asked of a link's server, as far as is known.
    fn is_gone(&self, link: &Link) -> bool {
        let server = link.key.server;
        self.server(server).gone || link.heeds && self.owns_nothing(server)
    }

    fn tick_link(&mut self, key: Key) {
        let timeouts = self.settings.timeouts.clone();
        let now = self.now;
        let Some(link) = self.links.get(key) else {
            return;
        };
        let is_connecting = matches!(link.state, State::Connecting { .. });
        if is_connecting && let Some(reason) = self.why_refused(link.key.server) {
            return self.lose_link(key, &reason);
        }
        match link.state {
            // A server that executes a long request greets no link, though it is alive. A link for
            // one request, or a successor, waits longer than `connect_ms` for the greeting.
            State::Greeting { .. }
                if (link.role.is_one_requests() && timeouts.request_ms > 0
                    || self.is_successor(key, link))
                    && self.is_reachable(link.key.server) => {}
            State::Connecting { since } | State::Greeting { since, .. }
                if over(now, since, timeouts.connect_ms) =>
            {
                let server = link.key.server;
                let late = || self.why_no_answer(server, timeouts.connect_ms);
                let reason = self.why_unknown(server).unwrap_or_else(late);
                return self.lose_link(key, &reason);
            }
            // No session rides on this link, which may be for a database that does not exist. The
            // client has got its error.
            State::Resting { .. }
                if link.riders == 0
                    && Arc::strong_count(&link.held) == 1
                    && !matches!(link.role, Role::Hub(_) | Role::Sentinel)
                    && (link.key != self.first_link(link.key.server) || self.is_gone(link))
                    // A session that has turned to another server comes back, and must not wait for
                    // the same attempts again.
                    && (!self.is_routed_to(link.key.server)
                        || over(now, link.unused_since, LINK_UNUSED_MS)) =>
            {
                return self.remove_link(key);
            }
            // A password that the server has refused is said again when a client says it.
            State::Resting { .. }
                if link.key.user != CONFIGURED
                    && link.refusal.as_deref().is_some_and(refuses_login) =>
            {
                return;
            }
            State::Retrying { .. } => {
                self.tick_retry(key);
                self.tick_at_link(key);
                return self.tick_requests(key, timeouts.request_ms);
            }
            State::Resting { until } if now >= until => {
                if !self.must_rest(key, link.key.server) {
                    self.connect(key);
                }
                return;
            }
            State::Up
                // What has not left yet, it is not to have answered.
                if (link.in_flight() > 0 || !link.pending().is_empty())
                    && link.paused.is_none()
                    && (!link.waits || link.sends == Sends::Nothing)
                    && link.tunnel.is_none()
                    && over(now, link.progress, timeouts.link_stall_ms)
                    && !self.outlasts_stall(key, link) =>
            {
                return self.lose_link(
                    key,
                    &format!("it sent nothing for {} ms", timeouts.link_stall_ms),
                );
            }
            _ => {}
        }
        let of_owner = self.server(link.key.server).replica_of.is_none();
        if of_owner && self.is_silent(link, SILENT_MS) {
            let server = link.key.server;
            self.doubt_lost_owner(server);
        }
        if self
            .links
            .get(key)
            .is_some_and(|link| matches!(link.role, Role::Redirect { .. }))
        {
            self.tick_redirect(key);
        }
        self.tick_at_link(key);
        self.tick_reply_room(key);
        self.tick_stuck(key);
        self.tick_silent(key);
        self.tick_probe(key);
        self.tick_requests(key, timeouts.request_ms);
        self.tick_paused(key);
        self.tick_upload(key);
        self.tick_waiting(key);
        let Some(link) = self.links.get(key) else {
            return;
        };
        let unused = link.riders == 0
            && Arc::strong_count(&link.held) == 1
            && link.ledger.is_empty()
            && link.out.bytes().is_empty()
            && link.waiters.is_empty();
        let is_first = link.key == self.first_link(link.key.server) && !self.is_gone(link);
        let is_idle = link.role == emergency::IDLE;
        let may_go = is_idle
            || matches!(link.role, Role::Spare | Role::Probe | Role::Redirect { .. })
            || link.role == Role::Shared && !is_first;
        if unused && may_go && link.is_up() && over(now, link.unused_since, LINK_UNUSED_MS) {
            self.close_link(key);
        }
    }

    /// Answers what has waited too long. What was sent keeps its place in the ledger, so that its
    /// late reply is known for what it is.
    fn tick_requests(&mut self, key: Key, request_ms: u32) {
        if request_ms == 0 {
            return;
        }
        let now = self.now.stamp_ms();
        let expired = |entry: &Entry| now.wrapping_sub(entry.at_ms) >= request_ms;
        let Some(link) = self.links.get(key) else {
            return;
        };
        if !link.is_up() && self.is_link_expired(link) {
            return self.lose_link(key, &format!("not connected within {request_ms} ms"));
        }
        if matches!(link.tunnel, Some(Tunnel::Asked { .. })) && self.is_link_expired(link) {
            return self.lose_link(key, &format!("no reply to MONITOR within {request_ms} ms"));
        }
        if let Some(link) = self.links.get_mut(key).filter(|link| !link.is_up()) {
            // What respool asks itself must not leave from in front of requests that rely on it.
            let leaves = |entry: &Entry| expired(entry) && entry.session != Key::NOBODY;
            for entry in link.take_unsent(leaves) {
                self.give_up(key, entry, entry.fate_unsent());
            }
        }
        let captor = self.slow_captor(key, request_ms);
        let half = self.half_answered(key, request_ms);
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        if !link.is_up() || link.waits {
            return;
        }
        // The reply in front may have reached its client in part: that request is being answered.
        let mut late = Vec::new();
        // All of them: what was moved in its batch, or is asked again, stands behind what is
        // younger.
        let answering = usize::from(link.cutting);
        for entry in link.ledger.iter_mut().skip(answering) {
            if !expired(entry) {
                continue;
            }
            if entry.session != Key::NOBODY && entry.session != captor {
                late.push(*entry);
                entry.session = Key::NOBODY;
            }
        }
        // What is to be asked again has left the ledger, and goes back there behind the rest of
        // what it left with.
        link.again.retain(|(entry, _)| {
            let is_late = expired(entry) && entry.session != captor;
            late.extend(is_late.then_some(*entry));
            !is_late
        });
        // What has become of the link can only be told from the answer. And a server may lose the
        // reply to an AUTH that fails within an EXEC: then every later one would be taken for
        // another's.
        let is_own = matches!(link.role, Role::Pinned { .. });
        let uncertain =
            is_own && !late.is_empty() && link.duties.iter().any(Duty::changes_identity);
        let is_late = !late.is_empty();
        let server = link.key.server;
        if let Some(session) = half {
            let reason =
                format!("request-timeout-ms: the rest of a reply has not come for {request_ms} ms");
            self.close_for(session, reason);
        }
        let was_left = is_late && self.was_left(key, server);
        for entry in late {
            self.give_up(key, entry, Fate::Unknown);
            if was_left && !entry.class.reads() {
                // On another link its next request might overtake this one.
                self.close_when_answered(entry.session);
            }
        }
        if is_late && self.links.get(key).is_some_and(emergency::is_emergency) {
            // It is one of few: its place is free again.
            self.lose_link(key, "its request was not answered in time");
        }
        if uncertain && self.links.get(key).is_some() {
            self.lose_link(key, "whose it is was not answered in time");
        }
    }

    /// The session that takes its replies from this link slowly, so that its requests are not late.
    fn slow_captor(&self, key: Key, request_ms: u32) -> Key {
        let Some(link) = self.links.get(key) else {
            return Key::NOBODY;
        };
        let captor = link.role.captor();
        let is_slow = match link.role {
            Role::Captured { .. } => self.takes_slowly(key, captor, request_ms),
            _ => link.paused.is_some(),
        };
        if is_slow { captor } else { Key::NOBODY }
    }

    /// Whether a session is the reason that its replies on a link are late: it has not taken all of
    /// them, or has done so a moment ago.
    fn takes_slowly(&self, key: Key, session: Key, request_ms: u32) -> bool {
        let (Some(link), Some(its)) = (self.links.get(key), self.sessions.get(session)) else {
            return false;
        };
        let moved_at = link.progress.max(its.took_at);
        link.paused.is_some()
            || !its.out.is_empty()
            || self.is_early(key, session)
            || self.now.since_ms(moved_at) < u64::from(request_ms)
    }

    /// The session that has got a part of a reply, if the rest has not come in time. No error can
    /// follow that part.
    fn half_answered(&self, key: Key, request_ms: u32) -> Option<Key> {
        let link = self.links.get(key).filter(|link| link.cutting)?;
        let session = link.first_in_flight()?.session;
        let is_late = !self.takes_slowly(key, session, request_ms);
        (is_late && self.sessions.get(session).is_some()).then_some(session)
    }

    /// A request has had its time.
    pub(crate) fn give_up(&mut self, link: Key, entry: Entry, fate: Fate) {
        self.counters.timeouts += 1;
        self.arrivals.count(entry.session);
        if fate == Fate::Unknown {
            self.note_given_up(link, &entry);
        }
        let server = self.label(link).to_owned();
        let limit_ms = self.settings.timeouts.request_ms;
        let server = &server;
        self.fail(entry, fate, Cause::Deadline { server, limit_ms });
    }

    /// A link that is not read because of its captor: not for ever, and less long while others
    /// wait.
    fn tick_paused(&mut self, key: Key) {
        let Some(link) = self.links.get(key) else {
            return;
        };
        let Some(since) = link.paused else { return };
        let captor = link.role.captor();
        let limits = &self.settings.limits;
        let stalled = self.sessions.get(captor).is_none_or(|session| {
            over(
                self.now,
                session.took_at.max(since),
                limits.session_stall_ms,
            )
        });
        let session_stall_ms = limits.session_stall_ms;
        if self.strangers_wait(key) && self.count_strangers_wait(key) {
            if !self.is_early(key, captor) {
                return self.close_for_strangers(captor);
            }
            // It waits for another server. What it is brought is bounded by its hard bound.
            self.read_on(key);
        } else if stalled {
            let reason = format!("session-stall-ms: it took no reply for {session_stall_ms} ms");
            self.close_for(captor, reason);
        }
    }

    /// A request that began to wait when its client had already said its last.
    fn tick_waiting(&mut self, key: Key) {
        let Some(link) = self.links.get(key) else {
            return;
        };
        let by = link.role.captor();
        let has_left = |session: &Session| session.link == key && session.flags.any(Flags::ENDED);
        if link.waits && self.sessions.get(by).is_some_and(has_left) {
            self.end_wait(by);
        }
    }

    /// A large request whose client stopped in the middle of it: its link is one of few.
    fn tick_upload(&mut self, key: Key) {
        let Some(link) = self
            .links
            .get(key)
            .filter(|link| link.streaming == Streaming::Open)
        else {
            return;
        };
        let by = link.role.captor();
        let Some(session) = self.sessions.get(by) else {
            return;
        };
        let stall_ms = self.settings.limits.session_stall_ms;
        let idle_ms = self.settings.timeouts.session_idle_ms;
        let (option, limit_ms) = match idle_ms > 0 && idle_ms < stall_ms {
            true => ("session-idle-ms", idle_ms),
            false => ("session-stall-ms", stall_ms),
        };
        // A client that takes no output is not read: that is its own doing.
        let is_ours = session
            .flags
            .any(Flags::HOLD_BY_SERVER | Flags::HOLD_MEMORY);
        if session.flags.any(Flags::STREAMING)
            && !is_ours
            && over(self.now, session.active_at, limit_ms)
        {
            let reason = format!("{option}: it sent nothing of its request for {limit_ms} ms");
            self.close_for(by, reason);
        }
    }

    /// xorshift64*: the jitter needs no more.
    pub(crate) fn random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }
}

fn over(now: Time, since: Time, limit_ms: u32) -> bool {
    now.since_ms(since) >= u64::from(limit_ms)
}

/// Answers from here.
impl Engine {
    /// A reply of ours takes its place in the session's order.
    pub(crate) fn answer_reply(&mut self, key: Key, reply: &[u8]) -> crate::requests::Placed {
        if let Some(session) = self.sessions.get_mut(key) {
            let seq = session.take_seq();
            let silent = session.flags.any(Flags::SILENT | Flags::SILENT_ONCE);
            self.counters.requests_answered_here += 1;
            self.deliver(key, seq, 1, if silent { &[] } else { reply });
        }
        crate::requests::Placed::Done
    }

    /// The same, for an error.
    pub(crate) fn answer_error(&mut self, key: Key, text: &[u8]) -> crate::requests::Placed {
        let mut reply = Vec::new();
        encode::error(&mut reply, text);
        self.answer_reply(key, &reply)
    }
}

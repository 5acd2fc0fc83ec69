//! The replies that a shared link may be owed, because a server bounds each connection.
//!
//! ```text
//!   handshake ──► CONFIG GET ──► the server's limits ──► half of them: bytes that a link may be
//!                                                        owed
//!                                                              ÷
//!        the largest reply lately, or a guess if that is more ──► replies that it may be owed
//! ```
//!
//! A server closes a connection that it owes more than `client-output-buffer-limit`. Above
//! `maxmemory-clients` it closes the largest connections. Without a proxy, each client has that
//! limit for itself. A shared link has it for all its clients. So requests wait before they would
//! make the link be owed too much. A link to a server without such a limit is bounded by
//! `link_unanswered_requests_max` alone.
//!
//! The size of a reply is known only when it comes. Until then it is guessed, and the guess is
//! large: [`UNSEEN_REPLY_BYTES`]. It falls by a quarter whenever a full link has been answered by
//! smaller replies, and rises again on a link that is not full. So the guess costs up to forty
//! round trips, and only where the server has a limit. Of replies that come whole in one read, the
//! mean counts.
//!
//! A *careful* link has brought large replies lately. Its requests take the slow path, one by one,
//! so not even a pipeline passes the bound. A full careful link opens again once all its replies
//! have come, because Valkey 9.1 counts large values that it has sent until its whole buffer is
//! sent. Then the sessions that have waited are first, in their order, and later sessions wait
//! behind them. Large readers move to links apart ([`crate::data_plane::slow_readers`]), so the
//! common link is careful for seconds only.
//!
//! Rejected: CLIENT NO-EVICT, because the limit is the operator's decision. A size for each
//! command, because the GETs of two clients differ as much as two commands.

use respool_protocol::encode;
use respool_protocol::value::Value;

use crate::base::handle::{CONFIGURED, LinkId, SessionId};
use crate::base::limits::Limits;
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::actions::Event;
use crate::data_plane::completion::Completion;
use crate::data_plane::ingress::Blocked;
use crate::data_plane::link::{Link, LinkRole, LinkState};
use crate::data_plane::session::Session;
use crate::data_plane::session_state::Holds;
use crate::data_plane::slow_readers::{CODE_LANE, DEFAULT_LANE, LinkLane};
use crate::routing::pool::ServerId;

/// The server's option that limits one connection.
const OUTPUT: &str = "client-output-buffer-limit";
/// The server's option that limits all connections together.
const CLIENTS: &str = "maxmemory-clients";
/// The beginning of the system's text for a connection that the peer has cut.
const RESET: &str = "Connection reset by peer";
/// The options that the server is asked for. A server before 7.0 takes one name or pattern, and
/// does not know `maxmemory-clients`.
const QUESTIONS: [&str; LimitQuestions::REPLIES as usize] = [OUTPUT, "maxmemory*"];

/// The size that replies are assumed to have before any has come.
const UNSEEN_REPLY_BYTES: u64 = 4 << 20;
/// The least size that is guessed.
const GUESS_BYTES_MIN: u64 = 64;
/// The time after which the largest reply counts for half, and an unneeded guess is doubled,
/// milliseconds.
const AGED_EVERY_MS: u64 = 1_000;
/// Requests of one read of a session, roughly. So many may be dispatched before a link that is not
/// careful is checked.
const REQUESTS_PER_READ: u64 = 2_048;
/// How long a server that refuses to tell its limits is not asked again, milliseconds.
const REFUSED_MS: u64 = 60_000;
/// The time after which a server that has told its limits is asked again, milliseconds. CONFIG SET
/// may change them while the links stay.
const ASKED_EVERY_MS: u64 = 60_000;
/// Links of one kind, for each worker: one for each lane.
const LINKS_OF_KIND: u64 = CODE_LANE as u64 + 1;
/// If a link is lost that was owed so many bytes, an unknown limit of the server may be the cause.
const SUSPECT_BYTES: u64 = 8 << 20;

/// The limits of a server for its clients, bytes. 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerLimits {
    /// The bytes that one connection may be owed: the lesser of the hard and the soft limit.
    output: u64,
    /// The bytes that all connections may use together.
    clients: u64,
}

impl ServerLimits {
    /// The bytes that one shared link may be owed, and the option that limits them. Half of the
    /// limit is left for replies that are larger than the guess.
    fn of_link(self, workers: usize) -> Option<(u64, &'static str)> {
        let links = workers.max(1) as u64 * LINKS_OF_KIND;
        let fractions = [
            (self.output / 2, OUTPUT),
            (self.clients / 2 / links, CLIENTS),
        ];
        let limited = [self.output, self.clients].into_iter().zip(fractions);
        limited
            .filter(|(limit, _)| *limit > 0)
            .map(|(_, fraction)| fraction)
            .min()
    }
}

/// The limits of one server, as far as it has told them.
#[derive(Debug, Default)]
pub(crate) struct KnownLimits {
    /// The limits. `None`: the server has not told them.
    limits: Option<ServerLimits>,
    /// When the server was last asked.
    asked_at: Time,
    /// When the server last refused.
    refused_at: Option<Time>,
    /// Whether the log names the refusal.
    is_refusal_logged: bool,
    /// The questions that are open on a link that is up.
    questions: Option<LimitQuestions>,
}

impl KnownLimits {
    /// Whether the server is asked on a new link.
    fn is_to_ask(&self, now: Time) -> bool {
        self.refused_at
            .is_none_or(|at| now.since_ms(at) >= REFUSED_MS)
    }

    /// Whether the server is asked on a link that is up.
    fn is_to_ask_again(&self, now: Time) -> bool {
        self.limits.is_some()
            && self.is_to_ask(now)
            && now.since_ms(self.asked_at) >= ASKED_EVERY_MS
    }
}

/// The questions about the limits, at the end of a handshake.
#[derive(Debug)]
pub(crate) struct LimitQuestions {
    /// Replies to the handshake that come before the answers.
    before: u32,
    /// The answers that have come.
    answers: Vec<Value>,
}

impl LimitQuestions {
    /// The number of replies to the questions.
    pub(crate) const REPLIES: u32 = 2;

    /// Appends the questions to a handshake with `before` replies.
    pub(crate) fn ask(out: &mut Vec<u8>, before: u32) -> LimitQuestions {
        for option in QUESTIONS {
            encode::request(out, &["CONFIG", "GET", option]);
        }
        LimitQuestions {
            before,
            answers: Vec::new(),
        }
    }

    /// Takes an answer on a link that is up. Returns whether it was the last one.
    fn take_next(&mut self, reply: &[u8]) -> bool {
        self.answers.push(Value::read(reply).unwrap_or(Value::Null));
        self.answers.len() >= Self::REPLIES as usize
    }

    /// Takes a reply to the handshake, after `came` others. Returns whether it was an answer.
    pub(crate) fn take(&mut self, came: u32, reply: &Value) -> bool {
        let is_answer = self.is_next(came);
        if is_answer {
            self.answers.push(reply.clone());
        }
        is_answer
    }

    /// Whether the next reply is an answer, after `came` others.
    pub(crate) fn is_next(&self, came: u32) -> bool {
        (self.before..self.before + Self::REPLIES).contains(&came)
    }

    /// The limits, as far as the server tells them.
    fn limits(&self) -> Option<ServerLimits> {
        let option = |name| {
            let mut all = self.answers.iter().filter_map(|all| all.field(name));
            std::str::from_utf8(all.next()?.text()?).ok()
        };
        let is_list = |answer: &&Value| matches!(answer, Value::List(_));
        self.answers.iter().find(is_list)?;
        Some(ServerLimits {
            output: option(OUTPUT).map_or(0, output_limit),
            clients: option(CLIENTS).map_or(0, |text| clients_limit(text, option("maxmemory"))),
        })
    }

    /// The server's error, if it refuses to tell.
    fn refusal(&self) -> Option<String> {
        let refusal = |answer: &Value| match answer {
            Value::Error(text) if text.starts_with(b"NOPERM") || text.starts_with(b"ERR") => {
                Some(String::from_utf8_lossy(text).into_owned())
            }
            _ => None,
        };
        self.answers.iter().find_map(refusal)
    }
}

/// The limit of the class `normal`. Each class has a hard limit, a soft limit and seconds.
fn output_limit(text: &str) -> u64 {
    let mut words = text.split_ascii_whitespace();
    words.by_ref().find(|word| *word == "normal");
    let limits = words.take(2).filter_map(|word| word.parse().ok());
    limits.filter(|bytes| *bytes > 0).min().unwrap_or(0)
}

/// The limit for all clients, given in bytes or as a percentage of `maxmemory`.
fn clients_limit(text: &str, maxmemory: Option<&str>) -> u64 {
    match text.strip_suffix('%') {
        None => text.parse().unwrap_or(0),
        Some(percent) => {
            let percent: u64 = percent.parse().unwrap_or(0);
            let maxmemory: u64 = maxmemory.and_then(|text| text.parse().ok()).unwrap_or(0);
            maxmemory / 100 * percent.min(100)
        }
    }
}

/// How many replies one link may be owed. Report the fragments of replies that come in several
/// reads with [`ReplyBudget::note_fragment`] and [`ReplyBudget::note_end`]. Call
/// [`ReplyBudget::note_full`] when the link closes and [`ReplyBudget::note_room`] when it opens
/// again. Call [`ReplyBudget::age`] in every tick. Time never runs back.
#[derive(Debug)]
pub(crate) struct ReplyBudget {
    /// Replies that the link may be owed without a limit of the server.
    unanswered_requests_max: usize,
    /// Bytes that the link may be owed. `None`: any number.
    bytes_max: Option<u64>,
    /// Bytes of the largest reply lately; halved as it ages.
    largest: u64,
    /// Bytes of the largest reply since sizes last aged.
    newest: u64,
    /// Bytes that a reply is assumed to have if none was larger.
    guess: u64,
    /// The bytes of the present reply that have come.
    coming: u64,
    /// Requests of a careful link since it was last owed nothing.
    dispatched: usize,
    /// Sessions that were woken for this room and have not used it.
    woken: Vec<SessionId>,
    /// Whether the link is closed because it is owed as much as it may be.
    is_full: bool,
    /// Whether the link was closed for that since sizes last aged.
    was_full: bool,
    /// When sizes last aged.
    aged_at: Time,
    /// Replies that the link may be owed, by all of the above.
    replies_max: usize,
    /// Whether each request of the link is checked.
    is_careful: bool,
}

impl ReplyBudget {
    /// The budget of a link in this lane.
    pub(crate) fn new(lane: LinkLane, now: Time) -> ReplyBudget {
        // Sessions are in the other lanes because of large or slow replies.
        let is_for_readers = !matches!(lane, DEFAULT_LANE | CODE_LANE);
        ReplyBudget {
            unanswered_requests_max: usize::MAX,
            bytes_max: None,
            largest: if is_for_readers {
                UNSEEN_REPLY_BYTES
            } else {
                0
            },
            newest: 0,
            guess: UNSEEN_REPLY_BYTES,
            coming: 0,
            dispatched: 0,
            woken: Vec::new(),
            is_full: false,
            was_full: false,
            aged_at: now,
            replies_max: usize::MAX,
            is_careful: false,
        }
    }

    /// The number of replies that the link may be owed, within `link_unanswered_requests_max`.
    #[inline]
    pub(crate) fn replies_max(&self) -> usize {
        self.replies_max
    }

    /// Whether each request has to ask for room.
    #[inline]
    pub(crate) fn is_careful(&self) -> bool {
        self.is_careful
    }

    /// Whether the server has a limit for the link.
    #[inline]
    pub(crate) fn is_limited(&self) -> bool {
        self.bytes_max.is_some()
    }

    fn decide(&mut self) {
        match self.bytes_max {
            None => (self.replies_max, self.is_careful) = (self.unanswered_requests_max, false),
            Some(bytes_max) => {
                let replies = bytes_max / self.largest.max(self.guess);
                let replies = usize::try_from(replies.max(1)).unwrap_or(usize::MAX);
                self.replies_max = replies.min(self.unanswered_requests_max);
                self.is_careful = self.largest.saturating_mul(REQUESTS_PER_READ) > bytes_max;
            }
        }
    }

    /// Sets the number of replies, of any size, that the link may be owed.
    pub(crate) fn bound_ledger(&mut self, unanswered_requests_max: u32) {
        self.unanswered_requests_max = unanswered_requests_max as usize;
        self.decide();
    }

    /// Sets the number of bytes that the link may be owed.
    fn limit_to(&mut self, bytes_max: Option<u64>) {
        self.bytes_max = bytes_max;
        self.decide();
    }

    /// Notes bytes of a reply without its end. Returns whether the link becomes careful.
    pub(crate) fn note_fragment(&mut self, bytes: usize) -> bool {
        self.coming = self.coming.saturating_add(bytes as u64);
        self.note_size(self.coming)
    }

    /// Notes the last bytes of such a reply. Returns whether the link becomes careful.
    fn note_end(&mut self, bytes: usize) -> bool {
        let becomes_careful = self.note_fragment(bytes);
        self.coming = 0;
        becomes_careful
    }

    /// Notes the size of a reply: at least so many bytes, or their mean. Returns whether the link
    /// becomes careful.
    fn note_size(&mut self, bytes: u64) -> bool {
        let was_careful = self.is_careful;
        self.newest = self.newest.max(bytes);
        if bytes > self.largest {
            self.largest = bytes;
            self.decide();
        }
        self.is_careful && !was_careful
    }

    /// Notes a request for a careful link that is owed `owed` replies.
    fn note_request(&mut self, owed: usize) {
        self.dispatched = if owed == 0 { 1 } else { self.dispatched + 1 };
    }

    /// Whether a session may send a request on a careful link that is owed `owed` replies. A
    /// session that was woken may, once. Another session may if none waits, and if there is room
    /// for all that were woken.
    fn admits(&mut self, session: SessionId, owed: usize, others_wait: bool) -> bool {
        let dispatched = if owed == 0 { 0 } else { self.dispatched };
        self.use_reserved_room(session)
            || !others_wait && dispatched + self.woken.len() < self.replies_max
    }

    /// Ends the claim of a woken session to its room. Returns whether it had one.
    fn use_reserved_room(&mut self, session: SessionId) -> bool {
        let at = self.woken.iter().position(|woken| *woken == session);
        at.map(|at| self.woken.remove(at)).is_some()
    }

    /// Whether a careful link has got as many requests as it may before it is owed nothing.
    #[inline]
    fn is_spent(&self) -> bool {
        self.is_careful && self.dispatched >= self.replies_max
    }

    /// Forgets the reply that was coming and the woken sessions, because the connection is lost.
    pub(crate) fn forget_fragment(&mut self) {
        self.coming = 0;
        self.woken.clear();
    }

    /// Notes that the link is owed as many replies as it may be.
    fn note_full(&mut self) {
        self.is_full = true;
        self.was_full = true;
    }

    /// Notes that a full link has room again. No reply was larger than `largest`, so the guess
    /// falls.
    fn note_room(&mut self) {
        if std::mem::take(&mut self.is_full) && self.is_limited() {
            let least = self.largest.max(GUESS_BYTES_MIN);
            self.guess = self.guess.min((self.guess - self.guess / 4).max(least));
            self.decide();
        }
    }

    /// Makes sizes that were seen long ago count less.
    fn age(&mut self, now: Time) {
        if now.since_ms(self.aged_at) < AGED_EVERY_MS {
            return;
        }
        self.aged_at = now;
        self.largest = std::mem::take(&mut self.newest).max(self.largest / 2);
        if !std::mem::take(&mut self.was_full) {
            self.guess = (self.guess * 2).min(UNSEEN_REPLY_BYTES);
        }
        self.decide();
    }

    /// The bytes of so many replies, if all are as large as the largest one.
    fn bytes_of(&self, replies: usize) -> u64 {
        self.largest.saturating_mul(replies as u64)
    }
}

impl Link {
    /// Whether the link may not be owed one more reply.
    pub(crate) fn owes_enough(&self, limits: &Limits) -> bool {
        self.is_full(limits) || !self.ledger.is_empty() && self.reply_room.is_spent()
    }

    /// Closes the link for requests if it is owed as many replies as it may be.
    #[inline]
    pub(crate) fn close_if_full(&mut self, limits: &Limits) {
        if self.is_full(limits) {
            self.close_as_full();
        }
    }

    #[cold]
    fn close_as_full(&mut self) {
        self.reply_room.note_full();
        self.admit(false, false);
    }

    /// Closes the link for requests if it may not be owed one more reply, and returns whether it
    /// did. To be called before each request on the slow path.
    pub(crate) fn close_if_owes_enough(&mut self, limits: &Limits) -> bool {
        let owes_enough = self.owes_enough(limits);
        if owes_enough {
            self.close_as_full();
        }
        owes_enough
    }

    /// Makes each request of the link ask for room from now on.
    fn begin_to_care(&mut self) {
        self.reply_room.dispatched = self.ledger.len();
        self.admit(self.takes(), true);
    }

    /// Whether the link is owed as many replies as its server's limits allow, and could otherwise
    /// take more.
    fn lacks_reply_room(&self, limits: &Limits) -> bool {
        let owed = self.ledger.len();
        self.owes_enough(limits) && owed < limits.link_unanswered_requests_max as usize
    }
}

impl DataPlane {
    /// Whether a new link asks its server for its limits. A client's user need not have the right
    /// to ask, and the server would note the attempt in its ACL LOG.
    pub(crate) fn asks_for_limits(&self, link: &Link) -> bool {
        self.settings.asks_output_limits
            && link.role == LinkRole::Shared
            && link.kind.user == CONFIGURED
            && link.kind.lane == DEFAULT_LANE
            && self
                .server(link.kind.server)
                .reply_limits
                .is_to_ask(self.now)
    }

    /// Asks servers again for their limits.
    pub(crate) fn tick_limits(&mut self) {
        if !self.settings.asks_output_limits {
            return;
        }
        for at in 0..self.servers.len() {
            let id = ServerId(at as u16);
            let link = self.first_link_to(id);
            let answers = |link: &Link| link.is_up() && link.takes() && link.unread_since.is_none();
            let up = link.filter(|link| self.links.get(*link).is_some_and(answers));
            let now = self.now;
            let known = &mut self.servers[at].reply_limits;
            let Some(link) = up.filter(|_| known.is_to_ask_again(now)) else {
                continue;
            };
            known.asked_at = now;
            known.questions = Some(LimitQuestions::ask(&mut Vec::new(), 0));
            for option in QUESTIONS {
                let mut question = Vec::new();
                encode::request(&mut question, &["CONFIG", "GET", option]);
                self.put_ours(link, &question, Completion::Limits);
            }
        }
    }

    /// Bounds a shared link by its server's limits.
    pub(crate) fn limit_link(&mut self, id: LinkId) {
        let Some(link) = self.links.get(id) else {
            return;
        };
        let limits = self.server(link.kind.server).reply_limits.limits;
        let limits = limits.filter(|_| link.role == LinkRole::Shared);
        let of_link = limits.and_then(|limits| limits.of_link(self.worker.count));
        let before = link.reply_room.bytes_max;
        let bytes_max = of_link.map(|(bytes, _)| bytes);
        if before == bytes_max {
            return;
        }
        if let Some(link) = self.links.get_mut(id) {
            link.reply_room.limit_to(bytes_max);
            let accepts = link.accepting();
            link.admit(link.takes(), !accepts);
        }
        // There may now be room for sessions that wait.
        self.wake_waiters(id);
    }

    /// Reports a limit that one session's replies may exceed.
    fn report_low_limit(&mut self, server: ServerId, limits: ServerLimits) {
        let Some((bytes, name)) = limits.of_link(self.worker.count) else {
            return;
        };
        if bytes >= u64::from(self.settings.limits.session_output_hard_bytes) {
            return;
        }
        let label = &self.server(server).label;
        let effect = format!(
            "the server {label} closes a connection that it owes more; so a link may be owed at \
             most {bytes} bytes of replies, less than session-output-hard-bytes, and requests with \
             large replies wait for one another"
        );
        self.emit(Event::BoundReached { name, effect });
    }

    /// Notes bytes of a reply that came in several reads. `ends`: they are its last ones.
    pub(crate) fn note_reply_bytes(&mut self, id: LinkId, bytes: usize, ends: bool) {
        let Some(link) = self.links.get_mut(id) else {
            return;
        };
        let becomes_careful = match ends {
            true => link.reply_room.note_end(bytes),
            false => link.reply_room.note_fragment(bytes),
        };
        if becomes_careful {
            link.begin_to_care();
        }
    }

    /// Notes a read of so many bytes on a link that was owed `owed` replies before.
    #[cold]
    pub(crate) fn note_whole_replies(&mut self, id: LinkId, bytes: usize, owed: usize) {
        let Some(link) = self.links.get_mut(id) else {
            return;
        };
        let answered = owed.saturating_sub(link.ledger.len());
        if let Some(mean) = bytes.checked_div(answered)
            && link.reply_room.note_size(mean as u64)
        {
            link.begin_to_care();
        }
    }

    /// Lets a session send a request on a link. If the link is careful and others have waited
    /// longer for its room, the session waits.
    pub(crate) fn take_careful_room(
        &mut self,
        session: SessionId,
        link_id: LinkId,
    ) -> Result<(), Blocked> {
        let careful = |link: &&mut Link| link.reply_room.is_careful();
        let Some(link) = self.links.get_mut(link_id).filter(careful) else {
            return Ok(());
        };
        let (owed, others_wait) = (link.ledger.len(), !link.waiters.is_empty());
        if link.role == LinkRole::Shared && !link.reply_room.admits(session, owed, others_wait) {
            return Err(self.wait_for_reply_room(session, link_id));
        }
        link.reply_room.note_request(owed);
        Ok(())
    }

    /// Makes a session wait for room on a link. A session that was woken in vain keeps its place.
    pub(crate) fn wait_for_reply_room(&mut self, session: SessionId, link_id: LinkId) -> Blocked {
        let link = self.links.get_mut(link_id);
        let had_reserved = link.is_some_and(|link| link.reply_room.use_reserved_room(session));
        self.note_wait_for_room(session, link_id);
        let blocked = self.wait_at_full(session, link_id);
        if let Some(link) = self.links.get_mut(link_id).filter(|_| had_reserved)
            && link.waiters.last() == Some(&session)
        {
            link.waiters.rotate_right(1);
        }
        blocked
    }

    /// Counts the wait of a session for room on a link.
    fn note_wait_for_room(&mut self, session: SessionId, link: LinkId) {
        let limits = &self.settings.limits;
        let lacks = |link: &Link| link.lacks_reply_room(limits);
        if self.links.get(link).is_some_and(lacks) && self.deadline_of(session).is_none() {
            self.counters.output_limit_waits += 1;
        }
    }

    /// Wakes sessions for the room of a link that is open again: all of them, or as many as a
    /// careful link has room for.
    pub(crate) fn wake_for_room(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(id) else {
            return;
        };
        link.reply_room.note_room();
        if !link.reply_room.is_careful() {
            return self.wake_waiters(id);
        }
        let had_woken = !link.reply_room.woken.is_empty();
        let room = link
            .reply_room
            .replies_max()
            .saturating_sub(link.ledger.len() + link.reply_room.woken.len());
        let mut waiters = std::mem::take(&mut link.waiters).into_iter();
        let (mut woken, mut others) = (Vec::new(), Vec::new());
        while woken.len() < room
            && let Some(waiter) = waiters.next()
        {
            // A session that has closed, or that was released in another way, needs no room.
            let held = |session: &&mut Session| session.state.holds().any(Holds::LINK);
            let Some(session) = self.sessions.get_mut(waiter).filter(held) else {
                continue;
            };
            // A session that would not send here at once gets no place. It asks anew when it can.
            let waits_here = session.state.holds() == Holds::LINK;
            if waits_here && session.link == id {
                // One session may wait here twice.
                session.state.release(Holds::LINK);
                woken.push(waiter);
            } else {
                others.push(waiter);
            }
        }
        link.waiters = waiters.collect();
        link.reply_room.woken.extend_from_slice(&woken);
        if !had_woken && !woken.is_empty() {
            self.turn.reserved_room.push(id);
        }
        // The session that is released last continues first.
        for waiter in others.into_iter().chain(woken.into_iter().rev()) {
            self.release(waiter, Holds::LINK);
        }
    }

    /// The reason for the loss of a link, with a possible cause if large replies were in flight, or
    /// if the server cut the connection before it said anything.
    pub(crate) fn why_lost(&self, id: LinkId, reason: &str) -> String {
        // A server with TLS takes the first request for a wrong record.
        let is_plain_handshake = |link: &Link| {
            matches!(link.state, LinkState::Handshaking { .. })
                && !self.pool_of(link.kind.server).tls
        };
        if reason.starts_with(RESET) && self.links.get(id).is_some_and(is_plain_handshake) {
            return format!(
                "{reason}; does it speak TLS at this port? Then write rediss in place of redis in \
                 its URL"
            );
        }
        let is_suspect = |link: &&Link| {
            let known = &self.server(link.kind.server).reply_limits;
            let most = match (link.reply_room.bytes_max, known.limits) {
                (Some(bytes_max), _) => bytes_max / 2,
                (None, Some(_)) => u64::MAX,
                (None, None) => SUSPECT_BYTES,
            };
            let owed = link.reply_room.bytes_of(link.ledger.in_flight());
            link.is_up() && link.role.is_multiplexed() && owed >= most
        };
        match self.links.get(id).filter(is_suspect) {
            None => reason.to_owned(),
            Some(_) => format!(
                "{reason}; large replies were in flight, so perhaps the server closed it at its \
                 {OUTPUT} or {CLIENTS}"
            ),
        }
    }

    /// Gives unused room of woken sessions to the next ones, after all woken sessions have
    /// continued. A session may have closed instead, be on another link now, or wait for its
    /// client.
    #[cold]
    pub(crate) fn pass_room_on(&mut self) {
        for id in std::mem::take(&mut self.turn.reserved_room) {
            let Some(link) = self.links.get_mut(id) else {
                continue;
            };
            let (awaited, sessions) = (link.reply_room.woken.len(), &self.sessions);
            link.reply_room.woken.retain(|woken| {
                let asks = |session: &Session| {
                    let waits = session.state.holds().any(Holds::LINK);
                    session.link == id && (waits || session.resuming.is_set())
                };
                sessions.get(*woken).is_some_and(asks)
            });
            let left = link.reply_room.woken.len();
            if left > 0 {
                self.turn.reserved_room.push(id);
            }
            if left < awaited {
                self.reopen(id);
            }
        }
    }

    /// Ages sizes in a tick, and wakes sessions that still wait although there is room.
    pub(crate) fn tick_reply_room(&mut self, id: LinkId) {
        let now = self.now;
        let Some(link) = self.links.get_mut(id) else {
            return;
        };
        // A woken session that has not asked by now may be gone, or held.
        link.reply_room.woken.clear();
        // An unread link teaches nothing about sizes.
        if link.unread_since.is_none() {
            link.reply_room.age(now);
        }
        if link.reply_room.is_limited() && !link.waiters.is_empty() {
            self.reopen(id);
        }
    }

    /// Takes the answers about limits, if the handshake of a link asked for them.
    pub(crate) fn take_limits(&mut self, link_id: LinkId) {
        let Some(link) = self.links.get_mut(link_id) else {
            return;
        };
        let id = link.kind.server;
        let LinkState::Handshaking { handshake, .. } = &mut link.state else {
            return;
        };
        if let Some(questions) = handshake.take_limits() {
            self.learn_limits(id, &questions);
        }
    }

    /// Takes a server's answer to one question about its limits.
    pub(crate) fn take_limit_answer(&mut self, link_id: LinkId, reply: &[u8]) {
        let Some(id) = self.links.get(link_id).map(|link| link.kind.server) else {
            return;
        };
        let known = &mut self.servers[usize::from(id.0)].reply_limits;
        if let Some(mut questions) = known.questions.take() {
            match questions.take_next(reply) {
                true => self.learn_limits(id, &questions),
                false => known.questions = Some(questions),
            }
        }
    }

    /// Learns a server's limits from its answers.
    fn learn_limits(&mut self, id: ServerId, questions: &LimitQuestions) {
        let now = self.now;
        let known = &mut self.servers[usize::from(id.0)].reply_limits;
        known.asked_at = now;
        // The answers to earlier questions are older.
        known.questions = None;
        let Some(limits) = questions.limits() else {
            // A busy server tells its limits on the next link.
            let refusal = questions.refusal();
            known.refused_at = refusal.is_some().then_some(now);
            if let Some(refusal) = refusal {
                self.report_refusal(id, &refusal);
            }
            return;
        };
        known.refused_at = None;
        let before = known.limits.replace(limits);
        if before == Some(limits) {
            return;
        }
        for link in self.links.ids() {
            self.limit_link(link);
        }
        self.report_low_limit(id, limits);
    }

    /// Notes the loss of a link in the handshake. If only the answers about limits were missing,
    /// the server may have closed the connection because of the questions. Then it is not asked
    /// again for a while.
    pub(crate) fn note_lost_questions(&mut self, link_id: LinkId) {
        let Some(link) = self.links.get(link_id) else {
            return;
        };
        let id = link.kind.server;
        if let LinkState::Handshaking { handshake, .. } = &link.state
            && handshake.awaits_limits()
        {
            let known = &mut self.servers[usize::from(id.0)].reply_limits;
            known.refused_at = Some(self.now);
            self.report_refusal(id, "it closes the connection");
        }
    }

    /// Reports once that a server does not tell its limits. Each worker asks each server, and the
    /// first worker reports.
    fn report_refusal(&mut self, id: ServerId, why: &str) {
        let known = &mut self.servers[usize::from(id.0)].reply_limits;
        if self.worker.index > 0 || std::mem::replace(&mut known.is_refusal_logged, true) {
            return;
        }
        let server = self.server(id);
        let (pool, label) = (usize::from(server.pool), &server.label);
        let text = format!(
            "{label} does not tell its {OUTPUT} and {CLIENTS} ({why}): links may be owed more \
             replies than these allow; with server-output-limits=false, respool does not ask"
        );
        self.report_event(pool, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn answers(replies: &[&str]) -> LimitQuestions {
        let mut questions = LimitQuestions::ask(&mut Vec::new(), 1);
        for (came, reply) in replies.iter().enumerate() {
            let value = Value::read(reply.as_bytes()).expect("a whole reply");
            assert!(questions.take(came as u32 + 1, &value));
        }
        questions
    }

    fn option(name: &str, value: &str) -> String {
        format!(
            "*2\r\n${}\r\n{name}\r\n${}\r\n{value}\r\n",
            name.len(),
            value.len()
        )
    }

    /// The lesser of the hard and the soft limit counts; 0 is none.
    #[test]
    fn output_limit_is_that_of_normal_clients() {
        for (text, limit) in [
            (
                "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60",
                0,
            ),
            ("normal 1000 0 0 slave 5 5 5", 1_000),
            ("slave 5 5 5 pubsub 6 6 6 normal 1000 300 60", 300),
            ("normal 0 300 60", 300),
            ("normal x", 0),
            ("", 0),
        ] {
            assert_eq!(output_limit(text), limit, "{text}");
        }
    }

    /// `maxmemory-clients` is a number of bytes or a percentage of `maxmemory`.
    #[test]
    fn clients_limit_may_be_a_fraction_of_memory() {
        assert_eq!(clients_limit("1000", Some("7")), 1_000);
        assert_eq!(clients_limit("5%", Some("1000")), 50);
        assert_eq!(clients_limit("5%", Some("0")), 0);
        assert_eq!(clients_limit("5%", None), 0);
        assert_eq!(clients_limit("-1", None), 0);
    }

    /// A server that does not tell its limits may have some.
    #[test]
    fn silent_server_is_not_taken_for_unlimited() {
        let refused = answers(&["-NOPERM no\r\n", "-NOPERM no\r\n"]);
        assert_eq!(refused.limits(), None);
        assert_eq!(refused.refusal().as_deref(), Some("NOPERM no"));
        let busy = answers(&["-BUSY no\r\n", "-BUSY no\r\n"]);
        assert_eq!((busy.limits(), busy.refusal()), (None, None));
        let odd = answers(&["+OK\r\n", ":1\r\n"]);
        assert_eq!((odd.limits(), odd.refusal()), (None, None));
        // Before 7.0 there is no `maxmemory-clients`.
        let old = answers(&[&option(OUTPUT, "normal 64 0 0"), &option("maxmemory", "9")]);
        let limits = ServerLimits {
            output: 64,
            clients: 0,
        };
        assert_eq!(old.limits(), Some(limits));
        let none = answers(&["*0\r\n", "*0\r\n"]);
        assert_eq!(none.limits(), Some(ServerLimits::default()));
        assert_eq!(ServerLimits::default().of_link(1), None);
    }

    /// In RESP3 the answer is a map.
    #[test]
    fn limits_are_read_from_a_map() {
        let output = option(OUTPUT, "normal 64 0 0").replacen("*2", "%1", 1);
        let memory = "%2\r\n$9\r\nmaxmemory\r\n$1\r\n0\r\n$17\r\nmaxmemory-clients\r\n$2\r\n99\r\n";
        let limits = ServerLimits {
            output: 64,
            clients: 99,
        };
        assert_eq!(answers(&[&output, memory]).limits(), Some(limits));
    }

    /// All links of all workers share `maxmemory-clients`.
    #[test]
    fn link_has_a_fraction_of_the_limit_for_all_clients() {
        let limits = ServerLimits {
            output: 64 * MIB,
            clients: 192 * MIB,
        };
        assert_eq!(limits.of_link(1), Some((16 * MIB, CLIENTS)));
        assert_eq!(limits.of_link(2), Some((8 * MIB, CLIENTS)));
        let output = ServerLimits {
            clients: 0,
            ..limits
        };
        assert_eq!(output.of_link(2), Some((32 * MIB, OUTPUT)));
    }

    fn bounded(bytes_max: u64) -> ReplyBudget {
        let mut room = ReplyBudget::new(DEFAULT_LANE, Time(0));
        room.limit_to(Some(bytes_max));
        room
    }

    /// Only links of large and slow readers are careful from the beginning. Code has mostly small
    /// replies.
    #[test]
    fn link_for_readers_is_careful_from_the_beginning() {
        let is_careful = |lane| {
            let mut room = ReplyBudget::new(lane, Time(0));
            room.limit_to(Some(16 * MIB));
            room.is_careful()
        };
        let careful: Vec<LinkLane> = (DEFAULT_LANE..=CODE_LANE)
            .filter(|lane| is_careful(*lane))
            .collect();
        assert_eq!(careful, [1, 2, 3, 4]);
    }

    /// The bound follows the largest reply, which counts less with time.
    #[test]
    fn bound_follows_the_largest_reply_and_forgets_it() {
        let mut room = bounded(16 * MIB);
        assert_eq!((room.replies_max(), room.is_careful()), (4, false));
        let mut becomes_careful = false;
        for _ in 0..31 {
            becomes_careful |= room.note_fragment(256 << 10);
        }
        becomes_careful |= room.note_end(256 << 10);
        assert!(becomes_careful);
        assert_eq!((room.replies_max(), room.is_careful()), (2, true));
        room.age(Time(0).plus_ms(1_000));
        assert_eq!(room.replies_max(), 2);
        room.age(Time(0).plus_ms(2_000));
        assert_eq!(room.replies_max(), 4);
        (3..20).for_each(|second| room.age(Time(0).plus_ms(second * 1_000)));
        assert_eq!((room.replies_max(), room.is_careful()), (4, false));
    }

    /// A full link with small replies gets more room, and loses it when it does not need it.
    #[test]
    fn full_links_with_small_replies_get_room_and_lose_it_unused() {
        let mut room = bounded(16 * MIB);
        let mut times = 0;
        while room.replies_max() < 65_536 {
            room.note_full();
            room.note_room();
            times += 1;
        }
        assert!(times < 40, "{times}");
        // The link was not full, so nothing is learned.
        let before = room.replies_max();
        room.note_room();
        assert_eq!(room.replies_max(), before);
        (1..=20).for_each(|second| room.age(Time(0).plus_ms(second * 1_000)));
        assert_eq!(room.replies_max(), 4);
    }

    /// A link to a server without a limit never checks requests one by one.
    #[test]
    fn link_without_a_limit_is_never_careful() {
        let mut room = ReplyBudget::new(1, Time(0));
        assert!(!room.note_end(1 << 30));
        room.note_full();
        room.note_room();
        assert_eq!((room.replies_max(), room.is_careful()), (usize::MAX, false));
    }
}

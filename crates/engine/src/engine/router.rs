//! Whose a request is, where a pool has several servers.
//!
//! ```text
//!   GET k              the owner of k; where replicas are read, one of those (`readers.rs`)
//!   BLPOP a b 0        the owner of both, or CROSSSLOT
//!   MGET a b c         divided: each owner gets its keys, and the replies become one
//!   DBSIZE             every server
//!   PUBLISH            the pool's first server
//!   PING, TIME         the first that answers, and so AUTH
//! ```
//!
//! Which of these a command is, its row in the table says, and nothing else ([`Spread`]).
//!
//! A session turns to the server that its next request is for: from then on its link is the one
//! that all share there, and whatever places a request does so as if there were no other server.
//! What it asked elsewhere comes back in its own time and waits for its turn among the session's
//! replies. The requests for one key all go one way, so they are executed in the order asked.

use std::cell::Cell;

use respool_protocol::commands::{
    self, Answer, Command, CommandId, KeyFlags, Retry, Spread, id, is_word,
};
use respool_protocol::encode::Version;
use respool_protocol::request::Scanner;

use crate::cluster::{SILENT_MS, owes_for};
use crate::duty::Duty;
use crate::engine::Engine;
use crate::entry::{Class, Entry};
use crate::greeting::{NO_CLUSTER, NO_NODE};
use crate::here::asks_for_us_alone;
use crate::link::{Link, LinkKey, Role, State};
use crate::pinned::Switch;
use crate::pool::{Group, ServerId};
use crate::quick_code::may_hold_up;
use crate::readers::{NO_READER, NoReader};
use crate::requests::{Placed, Request};
use crate::session::{Flags, Pins, Session};
use crate::settings::Shows;
use crate::slots::Key;
use crate::tracking::asks_for;
use crate::unknown::{Keys, What};
use crate::wait::is_wait;
use crate::words::wrong_arity;

/// Redis's text (`getNodeByQuery`).
pub(crate) const CROSSSLOT: &[u8] = b"CROSSSLOT Keys in request don't hash to the same slot";
/// To what a session asks between WATCH or MULTI and EXEC, all of which one server has to execute.
const FOREIGN: &[u8] =
    b"CROSSSLOT respool: this belongs to another server of the pool than the keys \
    that were watched or queued before it";

/// Of a SORT whose keys are not all known.
pub(crate) const ELSEWHERE: &[u8] =
    b"ERR respool: BY and GET of SORT are refused where a pool has several servers: \
    the keys that they name may be anywhere";

/// To what would be done by halves: a Cluster's nodes refuse it.
const ONE_DATABASE: &[u8] =
    b"ERR respool: SWAPDB is refused where some keys of a pool are in a Cluster, which has one database";

/// To commands that the table does not have.
pub(crate) const UNKNOWN_KEYS: &[u8] =
    b"ERR respool: which arguments of this command are keys is not known, and the pool has several servers";

const NO_KEYS: &[u8] =
    b"ERR respool: this command names no keys, and which server of the pool it is for is not known";

/// Whom the keys of a request belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// It has none.
    Nobody,
    One(Group),
    Several,
}

impl Owner {
    /// With one more key, which belongs here.
    fn and(self, its: Group) -> Owner {
        match self {
            Owner::Nobody => Owner::One(its),
            Owner::One(group) if group == its => self,
            Owner::One(_) | Owner::Several => Owner::Several,
        }
    }
}

/// How a server fares, from worse to better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    /// It cannot be had.
    Away,
    /// Nobody knows yet.
    Tried,
    /// It owes replies, and sends nothing.
    Silent,
    /// Nobody is let in, but it says so. Where clients bring the password, that is all that there
    /// is before the first one.
    Refuses,
    Answers,
}

impl Engine {
    /// A request with one key: the short way where a pool has several servers. False: it is to go
    /// the long way.
    #[inline]
    pub(crate) fn place_by_key(&mut self, key: Key, request: &Request<'_>) -> bool {
        let Some(class) = self.straight[request.id.index()] else {
            return false;
        };
        let at = usize::from(request.command.only_key);
        // Some module's command may come without the key that it names to be its only one.
        let has_key =
            (1..request.spans.len()).contains(&at) && request.command.arity_ok(request.spans.len());
        if !has_key {
            return false;
        }
        if !self.goes_by_key(key) {
            return self.strips_by_key(key) && self.put_stripped(key, request, at, class);
        }
        let placed = self.put_by_key(key, request.bytes, request.arg(at), (request.id, class));
        if placed {
            self.alike
                .learn(request.bytes, request.spans, request.id, class);
        }
        placed
    }

    /// Whether nothing is special about a session but that its pool has several servers.
    #[inline]
    pub(crate) fn goes_by_key(&self, key: Key) -> bool {
        let session = self.sessions.get(key);
        session.is_some_and(|session| {
            session.flags & Flags::OFF_PATH == Flags::ROUTED && session.pins.is_empty()
        })
    }

    /// The request goes to the owner of its key, if the link there takes it without further
    /// questions.
    #[inline]
    pub(crate) fn put_by_key(
        &mut self,
        key: Key,
        bytes: &[u8],
        name: &[u8],
        (id, class): (CommandId, Class),
    ) -> bool {
        let Some(session) = self.sessions.get(key) else {
            return false;
        };
        let (any, at) = (session.next_seq, session.server);
        let (part, owner) = self.pools.owner_of(session.pool, name, || any);
        let server = match part.readers {
            None => Ok(owner),
            Some(_) => self.server_for(key, owner, id.get()),
        };
        let Ok(server) = server else {
            return false;
        };
        if server != at {
            self.turn(key, server);
        }
        let Some(session) = self.sessions.get_mut(key) else {
            return false;
        };
        let on = session.link;
        let Some(link) = self.links.get_mut(on).filter(|link| link.accepting) else {
            return false;
        };
        session.asked = Some(id);
        let entry = Entry {
            len: bytes.len() as u32,
            class,
            ..Entry::of(key, session.take_seq(), self.asked_ms)
        };
        link.push(entry, bytes);
        self.counters.link_requests += 1;
        if !link.listed {
            self.list_link(on);
        }
        true
    }

    /// Sees to it that a request meets its server: the session turns to it. If it is not for one
    /// server, or cannot be, what became of it.
    pub(crate) fn route(&mut self, key: Key, request: &Request<'_>) -> Option<Placed> {
        self.note_asked(key, request.id, request.spans.len());
        let session = self.sessions.get(key)?;
        if request.id == id::WATCH && session.flags.any(Flags::IN_MULTI) {
            // It is refused as ever.
            return None;
        }
        if request.command.fan_out.spread == Spread::Here && !session.flags.any(Flags::IN_MULTI) {
            return None;
        }
        let (pool, own) = (usize::from(session.pool), session.server);
        let in_multi = session.flags.any(Flags::IN_MULTI);
        let is_reading = matches!(request.id, id::READONLY | id::READWRITE);
        if is_reading && !in_multi && self.pools.has_readers(pool) {
            return Some(self.set_reading(key, request.id));
        }
        if !self.pools[pool].has_several() {
            return self.route_to_one(key, request);
        }
        let owner = self.owner_of_keys(key, request.command, request.spans.len(), |at| {
            request.arg(at)
        });
        let is_bound = session.pins.bind() || self.queued_group(key).is_some();
        if request.id == id::CLIENT_CACHING
            && request.command.arity_ok(request.spans.len())
            && !in_multi
            && self.tracks_several(key)
            && self.has_switched_on(key, Pins::TRACKING)
        {
            return Some(self.cache_next(key, request));
        }
        let home = self.pools.home_of(pool);
        let of_cluster = self.pools[pool].cluster().is_some();
        let channels_have_places = self.channels_have_places(key);
        let asks_a_node = is_of_cluster(request);
        let spread = match request.command.fan_out.spread {
            Spread::Channels if channels_have_places => Spread::All,
            Spread::Channels => Spread::Home,
            // Any plain server says that it is no node.
            _ if asks_a_node && !self.has_nodes(key) => Spread::Any,
            spread => spread,
        };
        match owner {
            // To its clients the pool is a plain server, as in all other answers.
            _ if asks_a_node && self.hides_nodes(key) => {
                let text = match request.command.arity_ok(request.spans.len()) {
                    true => NO_CLUSTER.to_vec(),
                    false => wrong_arity(request.command),
                };
                Some(self.refuse_queued(key, &text))
            }
            _ if !of_cluster && request.id == id::SWAPDB && self.pools.has_cluster(pool) => {
                Some(self.refuse_queued(key, ONE_DATABASE))
            }
            // A Cluster's nodes refuse that themselves, where they have to.
            Owner::One(_) if !of_cluster && looks_elsewhere(request) => {
                Some(self.refuse_queued(key, ELSEWHERE))
            }
            Owner::One(group) if self.may_turn_to(key, group) => {
                let owner = self.pools.server_of(group);
                let kind = self.kind_of(self.sessions.get(key)?);
                match self.server_in_reach(key, owner, request.command, kind) {
                    Ok(server) if !is_bound && !in_multi => self.turn(key, server),
                    Err(NoReader) if !is_bound && !in_multi => {
                        return Some(self.answer_error(key, NO_READER));
                    }
                    _ => self.turn(key, owner),
                }
                if in_multi {
                    self.bind_transaction(key, group);
                } else if request.id == id::WATCH {
                    self.note_watched(key, group);
                }
                None
            }
            Owner::One(_) => Some(self.refuse_queued(key, FOREIGN)),
            Owner::Several if spread == Spread::Owners && !is_bound && !in_multi => {
                Some(self.divide(key, request))
            }
            Owner::Several => Some(self.refuse_queued(key, CROSSSLOT)),
            Owner::Nobody => match spread {
                Spread::Here => None,
                Spread::Node if !in_multi && self.shows_a_node(key) => {
                    self.answer_as_node(key, request)
                }
                Spread::Any
                    if request.id == id::CONFIG_GET
                        && !in_multi
                        && !is_bound
                        && self.hides_nodes(key) =>
                {
                    Some(self.ask_any(key, request, Duty::AsPlainServer))
                }
                // INFO tells of a primary, too.
                Spread::Refused
                    if request.id == id::ROLE
                        && !in_multi
                        && !is_bound
                        && self.shows_a_node(key) =>
                {
                    Some(self.ask_any(key, request, Duty::RoleOfNode))
                }
                // The node that executes it would tell of itself.
                Spread::Node if of_cluster && request.command.answer != Answer::Session => {
                    Some(self.refuse_bound(key, request.command))
                }
                Spread::Owner | Spread::Owners | Spread::Any | Spread::Node => {
                    // Always the same one, as long as it is there.
                    if !is_bound && !in_multi && !self.tracks_here(key) {
                        let up = self.first_up(pool);
                        self.turn(key, up);
                    }
                    None
                }
                // A Cluster's nodes tell each other what is published.
                Spread::Home if channels_have_places && is_bound && self.is_at_home(own, pool) => {
                    None
                }
                Spread::Channels => None,
                Spread::Home if own != home && is_bound => Some(self.refuse_queued(key, FOREIGN)),
                Spread::Home => {
                    self.turn(key, home);
                    if in_multi && !of_cluster {
                        let first = self.pools.parts_of(pool)[0];
                        self.bind_transaction(key, self.pools.group_at(first, home));
                    }
                    None
                }
                Spread::Off if is_tracking(request, b"off") && self.tracks_several(key) => {
                    match in_multi {
                        true => Some(self.refuse_bound(key, request.command)),
                        false => Some(self.stop_tracking(key)),
                    }
                }
                // The server names the mistake in its own words.
                Spread::Off if is_wrong_switch(request) => None,
                Spread::Off if in_multi && !switches_off(request) => {
                    Some(self.refuse_bound(key, request.command))
                }
                Spread::Off if switches_off(request) => {
                    let pins = Switch::of(request).pins;
                    let is_on = self.tracks_several(key) && self.has_switched_on(key, pins);
                    match (is_on, in_multi) {
                        (false, _) => None,
                        (true, false) => Some(self.stop_switch(key, pins)),
                        (true, true) => Some(self.refuse_bound(key, request.command)),
                    }
                }
                Spread::Off if is_tracking(request, b"on") => {
                    let broadcasts = asks_for(request.args(), b"BCAST");
                    if broadcasts && let Some(placed) = self.know_owners(key, pool) {
                        return Some(placed);
                    }
                    Some(self.track_at_several(key, request))
                }
                Spread::Off if is_switch(request.id) => Some(self.switch_at_several(key, request)),
                Spread::Off | Spread::Refused => {
                    Some(self.refuse_for_several(key, request.command))
                }
                Spread::All if request.id == id::INFO && asks_for_us_alone(request) => None,
                // It would be asked of a part of them.
                Spread::All | Spread::Turns if !self.knows_all(pool) => self.know_owners(key, pool),
                // Of what one server executes, the others would know nothing.
                Spread::All | Spread::Turns if is_bound || in_multi => {
                    Some(self.refuse_bound(key, request.command))
                }
                Spread::All | Spread::Turns
                    if self.keeps_place(pool, request) && self.hold_until_caught_up(key) =>
                {
                    Some(Placed::Wait)
                }
                Spread::All | Spread::Turns if self.waits_for_owners(key, pool) => {
                    Some(Placed::Wait)
                }
                // The server names the mistake in its own words.
                Spread::Turns if !request.command.arity_ok(request.spans.len()) => None,
                Spread::All if is_wait(request.id) => {
                    Some(match request.command.arity_ok(request.spans.len()) {
                        true => self.place_wait_at_all(key, request),
                        false => self.place_on_link(key, request.bytes, false, None),
                    })
                }
                Spread::All if request.id == id::INFO => Some(self.ask_info(key, request)),
                Spread::All | Spread::Turns => {
                    let placed = match spread {
                        Spread::Turns => self.scan(key, request),
                        _ => self.ask_all(key, request),
                    };
                    if self.keeps_place(pool, request) {
                        self.hold_until_caught_up(key);
                    }
                    Some(placed)
                }
            },
        }
    }

    /// Whether it matters what a request is in front of and behind that is for all servers, because
    /// what those refuse for a while is asked again: it changes something at all of them, or sees
    /// all keys. Then it is asked when all that its session asked before is answered, and nothing
    /// is asked behind it until it is.
    ///
    /// The same holds for FLUSHALL everywhere, since it travels on links apart.
    fn keeps_place(&self, pool: usize, request: &Request<'_>) -> bool {
        let command = request.command;
        let matters = command.retry == Retry::Write || command.flags.has(commands::Flags::READONLY);
        matters
            && command.answer != Answer::Alone
            && (self.pools.refuse_for_now(pool) || may_hold_up(request.id))
    }

    /// The same where one server owns everything, and has replicas that may be read.
    fn route_to_one(&mut self, key: Key, request: &Request<'_>) -> Option<Placed> {
        let session = self.sessions.get(key)?;
        let owner = self.home_of(session);
        if !session.pins.is_empty() {
            return None;
        }
        let in_multi = session.flags.any(Flags::IN_MULTI);
        let kind = self.kind_of(session);
        match self.server_in_reach(key, owner, request.command, kind) {
            Ok(server) if !in_multi => self.turn(key, server),
            Err(NoReader) if !in_multi => return Some(self.answer_error(key, NO_READER)),
            _ => self.turn(key, owner),
        }
        None
    }

    /// Waits for all servers of a pool to be known. `None`: they are known.
    fn know_owners(&mut self, key: Key, pool: usize) -> Option<Placed> {
        let part = self.unknown_part(pool)?;
        if let Some(text) = self.unknown_for(part, NO_NODE) {
            return Some(self.refuse_queued(key, text.as_bytes()));
        }
        if !self.is_in_multi(key) && self.waits_for_nodes(key, part) {
            return Some(Placed::Wait);
        }
        let text = self.no_nodes(part);
        Some(self.refuse_queued(key, text.as_bytes()))
    }

    /// Whether all servers of a pool are known.
    pub(crate) fn knows_all(&self, pool: usize) -> bool {
        self.unknown_part(pool).is_none()
    }

    /// Of the parts of a pool, a Cluster of which no node has said anything.
    pub(crate) fn unknown_part(&self, pool: usize) -> Option<usize> {
        let parts = self.pools.parts_of(pool).iter();
        let cluster = |part: usize| self.pools[part].cluster();
        let mut parts = parts.map(|part| usize::from(*part));
        parts.find(|part| cluster(*part).is_some_and(|cluster| !cluster.is_known()))
    }

    /// Whether nothing is known of a Cluster because a server that was named for it cannot be used
    /// for this reason: what is said then.
    fn unknown_for(&self, part: usize, reason: &str) -> Option<String> {
        let mut servers = self.pools[part].servers().iter();
        let server = servers.find(|server| self.is_away_for(**server, reason))?;
        let label = &self.server(*server).label;
        Some(format!(
            "CLUSTERDOWN respool: no node of the Cluster is known; {label}: {reason}"
        ))
    }

    /// Whether a server is one of the part of a pool where everything is that has no key.
    fn is_at_home(&self, server: ServerId, pool: usize) -> bool {
        self.server(server).pool == self.pools.parts_of(pool)[0]
    }

    /// What a session has queued may belong to another server than when it was.
    pub(crate) fn turn_to_queued(&mut self, key: Key) {
        let Some(group) = self.queued_group(key).filter(|_| self.is_routed(key)) else {
            return;
        };
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        if !session.pins.bind() {
            let server = self.pools.server_of(group);
            self.turn(key, server);
        }
    }

    /// A session turns to who owns this key, if nothing keeps it.
    pub(crate) fn turn_to_owner(&mut self, key: Key, name: &[u8]) {
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        let any = session.next_seq;
        let group = self.pools.group_of(session.pool, name, || any);
        if self.may_turn_to(key, group) {
            let owner = self.pools.server_of(group);
            self.turn(key, owner);
        }
    }

    fn note_watched(&mut self, key: Key, group: Group) {
        if let Some(session) = self.sessions.get_mut(key) {
            let watches = session.pins.any(Pins::WATCH);
            let watched = &mut session.rare().watched;
            if !watches {
                watched.clear();
            }
            if !watched.contains(&group) {
                watched.push(group);
            }
        }
    }

    /// Whether nothing keeps a session from asking the owner of that.
    fn may_turn_to(&self, key: Key, group: Group) -> bool {
        let Some(session) = self.sessions.get(key) else {
            return false;
        };
        let server = self.pools.server_of(group);
        let queued = self.queued_group(key);
        (!session.pins.bind() || session.server == server)
            && queued.is_none_or(|queued| queued == group)
    }

    /// Whether a large request, which `rest` begins with, is held until it is whole. It is about the
    /// session, as WATCH, BLPOP and SUBSCRIBE are. Or several servers are behind the session, and
    /// the request is for more than one of them, or the arguments that decide where it goes have not
    /// all come.
    pub(crate) fn is_held_whole(&self, key: Key, scanner: &Scanner, rest: &[u8]) -> bool {
        let (spans, argc) = (scanner.spans(), scanner.argc());
        let missing = Cell::new(false);
        let arg = |at: usize| match spans.get(at) {
            Some(span) => span.of(rest),
            None => {
                missing.set(true);
                b""
            }
        };
        let Some(session) = self.sessions.get(key) else {
            return false;
        };
        let refused = Flags::IN_MULTI | Flags::UNAUTHENTICATED | Flags::TUNNEL;
        if session.flags.any(refused) {
            return false;
        }
        let pool = &self.pools[usize::from(session.pool)];
        let has_several = self.is_routed(key) && pool.has_several();
        let Some(id) = commands::resolve(argc, arg) else {
            // Only a server knows which arguments are keys.
            return has_several;
        };
        let command = id.get();
        let is_ours = matches!(
            command.answer,
            Answer::Session | Answer::Pinned | Answer::Alone
        );
        if is_ours || !has_several {
            return is_ours;
        }
        let may_look_elsewhere = matches!(id, id::SORT | id::SORT_RO) && pool.cluster().is_none();
        let spread = command.fan_out.spread;
        let owner = self.owner_of_keys(key, command, argc, arg);
        let is_divided = match owner {
            Owner::One(_) => false,
            Owner::Several => spread == Spread::Owners,
            Owner::Nobody => !is_for_one_server(spread),
        };
        missing.get() || is_divided || may_look_elsewhere
    }

    /// The same for a request that is cut through, of which these arguments have come.
    pub(crate) fn route_large(
        &mut self,
        key: Key,
        what: What,
        args: &[&[u8]],
        argc: usize,
    ) -> Result<(), Vec<u8>> {
        match what {
            What::Row(id) => self.note_asked(key, id, argc),
            What::Learned { reads: true, .. } => {}
            What::Learned { .. } | What::Nothing => self.note_write(key),
        }
        let Some(session) = self.sessions.get(key).filter(|_| self.is_routed(key)) else {
            return Ok(());
        };
        let pool = usize::from(session.pool);
        self.turn_from_replica(key, None);
        if !self.pools[pool].has_several() {
            return Ok(());
        }
        let What::Row(id) = what else {
            return Err(UNKNOWN_KEYS.to_vec());
        };
        let (command, spread) = (id.get(), id.get().fan_out.spread);
        let arg = |at: usize| args.get(at).copied().unwrap_or_default();
        match self.owner_of_keys(key, command, argc, arg) {
            Owner::One(group) if self.may_turn_to(key, group) => {
                let server = self.pools.server_of(group);
                self.turn(key, server);
                Ok(())
            }
            Owner::One(_) => Err(FOREIGN.to_vec()),
            Owner::Several => Err(CROSSSLOT.to_vec()),
            Owner::Nobody => {
                let is_bound = |session: &Session| session.pins.bind();
                if spread == Spread::Home && !self.sessions.get(key).is_some_and(is_bound) {
                    let home = self.pools.home_of(pool);
                    self.turn(key, home);
                }
                Ok(())
            }
        }
    }

    /// The same for a command that the table does not have, by what its server says of its keys:
    /// one server has to own them all, and is its owner, though it only reads. What names no keys
    /// may be about those of all servers, so it is no single one's; nor is what sees keys that are
    /// shorter there.
    pub(crate) fn route_learned<'a>(
        &mut self,
        key: Key,
        keys: Keys,
        argc: usize,
        arg: impl Fn(usize) -> &'a [u8],
    ) -> Result<(), &'static [u8]> {
        let Some(session) = self.sessions.get(key) else {
            return Ok(());
        };
        if self.strips(key) {
            return Err(UNKNOWN_KEYS);
        }
        let (pool, any) = (session.pool, session.next_seq);
        let in_multi = session.flags.any(Flags::IN_MULTI);
        let groups = keys.places(argc);
        let groups = groups.map(|at| self.pools.group_of(pool, arg(at), || any));
        match groups.fold(Owner::Nobody, Owner::and) {
            Owner::One(group) if self.may_turn_to(key, group) => {
                let owner = self.pools.server_of(group);
                self.turn(key, owner);
                if in_multi {
                    self.bind_transaction(key, group);
                }
                Ok(())
            }
            Owner::One(_) => Err(FOREIGN),
            Owner::Several => Err(CROSSSLOT),
            Owner::Nobody if keys == Keys::Unsaid => Err(UNKNOWN_KEYS),
            Owner::Nobody => Err(NO_KEYS),
        }
    }

    /// A request goes to the first server that is up; its reply is completed here.
    fn ask_any(&mut self, key: Key, request: &Request<'_>, duty: Duty) -> Placed {
        if let Some(session) = self.sessions.get(key)
            && !self.tracks_here(key)
        {
            let up = self.first_up(usize::from(session.pool));
            self.turn(key, up);
        }
        self.place_on_link(key, request.bytes, true, Some(duty))
    }

    /// Whether nodes of a Cluster are behind a session that is to see a plain server.
    pub(crate) fn hides_nodes(&self, key: Key) -> bool {
        self.has_nodes(key) && !self.shows_a_node(key)
    }

    /// Whether nodes of a Cluster are behind a session.
    pub(crate) fn has_nodes(&self, key: Key) -> bool {
        let session = self.sessions.get(key);
        session.is_some_and(|session| self.pools.has_cluster(session.pool.into()))
    }

    /// Whether a session sees a node of a Cluster.
    pub(crate) fn shows_a_node(&self, key: Key) -> bool {
        let session = self.sessions.get(key);
        session.is_some_and(|session| {
            let pool = usize::from(session.pool);
            self.pools[pool].cluster().is_some() && self.settings.pools[pool].shows == Shows::Node
        })
    }

    /// Whether the sharded channels of a session's pool are with the owners of their slots.
    pub(crate) fn channels_have_places(&self, key: Key) -> bool {
        let first = |session: &Session| self.pools.first_of(session.pool.into());
        let session = self.sessions.get(key);
        session.is_some_and(|session| first(session).cluster().is_some())
    }

    /// Whether the sessions that a server is asked for have to turn to it.
    pub(crate) fn is_routed_to(&self, server: ServerId) -> bool {
        let whole = self.pool_of(server).whole;
        self.pools[usize::from(whole)].is_routed()
    }

    /// Whether the keys of a session's pool have several owners.
    pub(crate) fn has_several_owners(&self, key: Key) -> bool {
        let session = self.sessions.get(key);
        session.is_some_and(|session| self.pools[usize::from(session.pool)].has_several())
    }

    pub(crate) fn is_routed(&self, key: Key) -> bool {
        let session = self.sessions.get(key);
        session.is_some_and(|session| session.flags.any(Flags::ROUTED))
    }

    /// A session whose server cannot be reached, and that is bound to nothing there, turns to one
    /// that can: what has no key is everybody's.
    pub(crate) fn turn_from_dead(&mut self, key: Key) {
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        let failed = |link: &Link| !link.is_up() && link.failures > 0;
        let is_dead = self.links.get(session.link).is_some_and(failed);
        if is_dead && !session.pins.bind() && self.queued_group(key).is_none() {
            let up = self.first_up(usize::from(session.pool));
            self.turn(key, up);
        }
    }

    /// The first of a pool's servers that answers; else one that may; the first of all, if none
    /// can.
    pub(crate) fn first_up(&self, pool: usize) -> ServerId {
        let mut best = (Standing::Away, self.pools.home_of(pool));
        for server in self.pools[pool].servers() {
            let standing = self.standing(*server);
            if standing > best.0 {
                best = (standing, *server);
            }
            if standing == Standing::Answers {
                break;
            }
        }
        best.1
    }

    /// What is known of a server by the links that are shared, whoever asks on them.
    pub(crate) fn standing(&self, server: ServerId) -> Standing {
        let answers = |link: &Link| link.is_up() && !owes_for(link, self.now, SILENT_MS);
        if self.first_link_is(server, answers) {
            return Standing::Answers;
        }
        let (mut up, mut silent) = (false, false);
        for (_, link) in self.links_shared_to(server) {
            up |= link.is_up();
            silent |= owes_for(link, self.now, SILENT_MS);
        }
        match up {
            true if silent => Standing::Silent,
            true => Standing::Answers,
            false if self.answers_by_refusals(server) => Standing::Refuses,
            false if self.is_resting(server) => Standing::Away,
            false => Standing::Tried,
        }
    }

    /// Whether a link to a server is up that everybody shares.
    pub(crate) fn is_reachable(&self, server: ServerId) -> bool {
        self.links_shared_to(server).any(|(_, link)| link.is_up())
    }

    pub(crate) fn links_shared_to(&self, server: ServerId) -> impl Iterator<Item = (Key, &Link)> {
        let kinds = self
            .shared
            .iter()
            .filter(move |(kind, _)| kind.server == server);
        kinds.filter_map(|(_, key)| Some((*key, self.links.get(*key)?)))
    }

    /// Whether that could not be had, and is not tried just now.
    pub(crate) fn is_resting(&self, server: ServerId) -> bool {
        self.first_link_is(server, |link| matches!(link.state, State::Resting { .. }))
    }

    pub(crate) fn first_link_is(&self, server: ServerId, so: impl FnOnce(&Link) -> bool) -> bool {
        let link = self.shared.get(&self.first_link(server));
        link.and_then(|link| self.links.get(*link)).is_some_and(so)
    }

    /// The server where everything is published that a session may listen to.
    pub(crate) fn home_of(&self, session: &Session) -> ServerId {
        self.pools.home_of(usize::from(session.pool))
    }

    fn owner_of_keys<'a>(
        &self,
        key: Key,
        command: &Command,
        argc: usize,
        arg: impl Fn(usize) -> &'a [u8],
    ) -> Owner {
        let Some(session) = self.sessions.get(key) else {
            return Owner::Nobody;
        };
        let (pool, any) = (session.pool, session.next_seq);
        let channels_have_places = self.channels_have_places(key);
        let mut owner = Owner::Nobody;
        let visited = command.keys(argc, &arg, |at, what| {
            // Whoever divides it asks for each of its keys anew.
            if owner == Owner::Several || what.has(KeyFlags::NOT_KEY) && !channels_have_places {
                return;
            }
            let of = match what.has(KeyFlags::NOT_KEY) {
                true => self.pools.parts_of(usize::from(pool))[0],
                false => pool,
            };
            let its = self.pools.group_of(of, arg(at), || any);
            owner = owner.and(its);
        });
        // Where its keys are cannot be said: any server refuses it in its own words. But a PFMERGE
        // without sources is none of these, and belongs where its one key does.
        match (visited, owner) {
            (Err(_), Owner::Several) => Owner::Nobody,
            (_, owner) => owner,
        }
    }

    /// From now on the session rides on the link that all share to this server. What it has in
    /// flight elsewhere stays there.
    pub(crate) fn turn(&mut self, key: Key, server: ServerId) {
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        if session.server == server {
            return;
        }
        debug_assert!(!session.pins.bind(), "its own link goes to one server");
        let kind = self.kind_at(session, server);
        let link = match session.pins.any(Pins::SPREAD) {
            // If it has none, the request opens one.
            true => self.tracks_on(key, server),
            false => self.current_link(kind),
        };
        let link = link.unwrap_or(Key::NOBODY);
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        session.server = server;
        let old = std::mem::replace(&mut session.link, link);
        self.close_if_full(old);
        self.leave(old);
        if let Some(link) = self.links.get_mut(link) {
            link.riders += 1;
        }
    }

    /// The kind of link that a session shares with others to this server.
    pub(crate) fn kind_at(&self, session: &Session, server: ServerId) -> LinkKey {
        self.shared_kind_of(session).at(server)
    }

    /// The link that all share of a kind: mostly that of which was asked last.
    #[inline]
    pub(crate) fn current_link(&mut self, kind: LinkKey) -> Option<Key> {
        let server = usize::from(kind.server.0);
        let is_shared = |link: &Link| link.role == Role::Shared;
        if let Some(link) = self.servers[server].current(kind)
            && self.links.get(link).is_some_and(is_shared)
        {
            return Some(link);
        }
        let link = self.shared_link(kind)?;
        let version = usize::from(kind.version == Version::Resp3);
        self.servers[server].current[version] = Some((kind, link));
        Some(link)
    }

    /// A command that a pool of several servers cannot execute as one.
    fn refuse_for_several(&mut self, key: Key, command: &Command) -> Placed {
        self.refuse_as(key, command, ": ask the servers themselves")
    }

    /// A command that several servers execute, each a part of it, and a transaction is one server's.
    fn refuse_bound(&mut self, key: Key, command: &Command) -> Placed {
        let when = " in a transaction, or while keys are watched: send it before MULTI and WATCH, \
                    or after EXEC";
        self.refuse_as(key, command, when)
    }

    fn refuse_as(&mut self, key: Key, command: &Command, rest: &str) -> Placed {
        self.counters.refused += 1;
        let name = command.name.replace('|', " ");
        let text =
            format!("ERR respool: '{name}' cannot be asked of a pool of several servers{rest}");
        self.refuse_queued(key, text.as_bytes())
    }
}

/// Whether a SORT reads keys that it makes of a pattern.
pub(crate) fn looks_elsewhere(request: &Request<'_>) -> bool {
    let makes = |pair: &[&[u8]]| {
        let [option, pattern] = pair else {
            return false;
        };
        let names = is_word(option, b"by") || is_word(option, b"get");
        names && pattern.contains(&b'*')
    };
    matches!(request.id, id::SORT | id::SORT_RO)
        && request.args().collect::<Vec<_>>().windows(2).any(makes)
}

/// Whether a request without keys goes to one server, whichever it is.
fn is_for_one_server(spread: Spread) -> bool {
    matches!(
        spread,
        Spread::Home | Spread::Owner | Spread::Owners | Spread::Any
    )
}

/// Whether only a Cluster's node can answer it. A plain server refuses all subcommands of CLUSTER,
/// even HELP.
fn is_of_cluster(request: &Request<'_>) -> bool {
    request.command.name.starts_with("cluster|") || request.id == id::CLUSTERSCAN
}

/// Whether it is CLIENT TRACKING, to be switched on or off.
fn is_tracking(request: &Request<'_>, way: &[u8]) -> bool {
    let argc = request.spans.len();
    let has_length = argc == 3 || argc > 3 && way == b"on";
    request.id == id::CLIENT_TRACKING && has_length && request.arg(2).eq_ignore_ascii_case(way)
}

/// Whether CLIENT TRACKING and the like have an argument that no server knows in its place.
fn is_wrong_switch(request: &Request<'_>) -> bool {
    let is_way = |way: &[u8]| request.arg(2).eq_ignore_ascii_case(way);
    !request.command.arity_ok(request.spans.len()) || !is_way(b"on") && !is_way(b"off")
}

/// Whether CLIENT NO-TOUCH, CLIENT IMPORT-SOURCE.
fn is_switch(command: CommandId) -> bool {
    matches!(command, id::CLIENT_NO_TOUCH | id::CLIENT_IMPORT_SOURCE)
}

/// CLIENT TRACKING OFF and the like.
fn switches_off(request: &Request<'_>) -> bool {
    request.spans.len() == 3 && request.arg(2).eq_ignore_ascii_case(b"off")
}

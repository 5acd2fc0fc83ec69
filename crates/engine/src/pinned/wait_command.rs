//! WAIT and WAITAOF.
//!
//! A server waits for the last write of the same connection, but the session's writes went over
//! shared links. So respool writes something on the pinned link in front of the request. All
//! earlier writes reach the replicas before it.
//!
//! ```text
//!   Redis before 7.2   HELLO 2                        any command does
//!   a Cluster's node   MULTI, SET k "", DEL k, EXEC   a key of its slots: no message is replicated
//!   else               SPUBLISH respool:wait ""       no client gets it, unless it subscribes
//! ```
//!
//! In a pool of several servers the session may have written to any of them. respool asks all of
//! them, one after the other, so the session needs one pinned link, as with one server. Each server
//! gets the rest of the timeout: a later one has had more time already. The reply is the least
//! number of all servers.

use std::sync::Arc;

use respool_protocol::cluster::Refusal;
use respool_protocol::commands::id;
use respool_protocol::slot::hash_slot;
use respool_protocol::value::Value;
use respool_protocol::{encode, number};

use crate::base::handle::{CONFIGURED, LinkId, SessionId};
use crate::base::time::{TICK_MS, Time};
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::pinned::PinnedCompletion;
use crate::data_plane::completion::pinned::{OtherServers, RedirectStandIn, WaitCommand};
use crate::data_plane::ingress::{Dispatched, Request};
use crate::data_plane::ledger::Entry;
use crate::data_plane::link::{Link, Role};
use crate::data_plane::session::{Pins, Session};
use crate::engine::Engine;
use crate::pinned::Pinned;
use crate::routing::pool::ServerId;

/// The channel, and the beginning of the keys.
const WAITED: &str = "respool:wait";
/// Among this many keys each slot has one.
const KEYS: u32 = 1 << 18;
/// How long a node may refuse the write for a redirect before the client gets the error,
/// milliseconds.
const REFUSED_MS_MAX: u64 = 10_000;

/// The error to a WAIT if the server refuses the write in front of it. The server's error follows.
const NO_MESSAGE: &[u8] =
    b"-ERR respool: to wait for what others' connections wrote takes the right to \
    SPUBLISH on the channel respool:wait; the server says: ";
const NO_KEY: &[u8] =
    b"-ERR respool: to wait for what others' connections wrote takes the right to \
    SET and DEL keys that begin with respool:wait; the server says: ";

const REFUSED: &[u8] = b"-ERR respool: a node of the Cluster did not let it wait; it says: ";

impl Engine {
    /// Sends WAIT or WAITAOF to one server.
    pub(crate) fn dispatch_wait(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        self.dispatch_wait_of(id, request, None)
    }

    /// Sends WAIT or WAITAOF to all servers of the pool, one after the other.
    pub(crate) fn dispatch_wait_at_all(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        let Some(session) = self.plane.sessions.get(id) else {
            return Dispatched::Done;
        };
        let first = self.plane.pools[usize::from(session.pool)].servers()[0];
        let timeout = request.args().last().and_then(number::parse);
        let mut args: Vec<Vec<u8>> = request.args().map(<[u8]>::to_vec).collect();
        args.pop();
        let rest = timeout.map(|ms| OtherServers {
            answered: Vec::new(),
            least: Vec::new(),
            args,
            until: (ms > 0).then(|| {
                self.plane
                    .now
                    .plus_ms(u32::try_from(ms).unwrap_or(u32::MAX))
            }),
            refused_since: None,
        });
        self.plane.switch_server(id, first);
        // A malformed timeout is refused by the first server.
        self.dispatch_waiting(id, request, |engine| {
            engine.dispatch_wait_of(id, request, rest.map(Box::new))
        })
    }

    fn dispatch_wait_of(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
        rest: Option<Box<OtherServers>>,
    ) -> Dispatched {
        let Some(session) = self.plane.sessions.get(id) else {
            return Dispatched::Done;
        };
        let mut kind = self.plane.kind_of(session);
        let is_up = |link: &Link| link.kind == self.plane.first_link(kind.server) && link.is_up();
        if kind.user != CONFIGURED && self.plane.links.iter().any(|(_, link)| is_up(link)) {
            // Few users may publish to a channel, so the configured user's link is taken. A user
            // without the right to WAIT is refused all the same.
            if let Some(placed) = self.refused_by_right(id, request) {
                return placed;
            }
            kind.user = CONFIGURED;
        }
        let session = self
            .plane
            .sessions
            .get(id)
            .filter(|session| session.pins.is_empty());
        let own = session.and_then(|session| self.plane.links.get(session.link));
        let of_user = own.filter(|own| own.kind.user != kind.user);
        let of_user = of_user.map(|own| own.held.clone());
        if let Err(blocked) = self.pinned.pin_to(&mut self.plane, kind, id, Pins::ONCE) {
            return self.plane.blocked(id, blocked);
        }
        let (mut bytes, in_front) = self
            .pinned
            .in_front_of_wait(&mut self.plane, id, kind.server);
        bytes.extend_from_slice(request.bytes);
        let completion = Completion::Pinned(PinnedCompletion::Wait(Box::new(WaitCommand {
            before: in_front,
            in_front,
            refused: None,
            rest,
            of_user,
        })));
        self.dispatch_alone(id, &bytes, (false, Some(completion)), Pins::ONCE, true)
    }

    /// Handles the reply of a server.
    pub(crate) fn settle_wait(
        &mut self,
        link: LinkId,
        entry: Entry,
        waiting: WaitCommand,
        reply: &[u8],
    ) {
        let WaitCommand {
            refused,
            rest,
            of_user,
            ..
        } = waiting;
        let refusal = refused.as_deref().and_then(|said| said.strip_prefix(b"-"));
        let Some(mut rest) = rest else {
            return match refusal {
                Some(why) => self.pass_on(entry, &[NO_MESSAGE, why].concat()),
                None => self.pass_on(entry, reply),
            };
        };
        let Some(server) = self.plane.links.get(link).map(|link| link.kind.server) else {
            return;
        };
        let of_cluster = self.plane.pool_of(server).cluster().is_some();
        if let Some(why) = refusal
            && !(of_cluster && Refusal::of(why).is_some())
        {
            let text = if of_cluster { NO_KEY } else { NO_MESSAGE };
            return self.pass_on(entry, &[text, why].concat());
        }
        let said = reply.strip_prefix(b"-").unwrap_or_default();
        let why = refusal.or((of_cluster && is_of_replica(said)).then_some(said));
        if let Some(why) = why {
            match Refusal::of(why) {
                Some(refusal) => {
                    self.follow_redirect(server, None, why, refusal);
                }
                None => self.request_refresh_after_loss(server),
            }
            let since = *rest.refused_since.get_or_insert(self.plane.now);
            if rest.until.is_some_and(|until| self.plane.now >= until) {
                // No replica is known to have the writes of this node.
                rest.least = vec![0; rest.args.len() - 1];
                return self.end_wait_at_all(entry, &rest);
            }
            if self.plane.now.since_ms(since) >= REFUSED_MS_MAX {
                return self.pass_on(entry, &[REFUSED, why].concat());
            }
        } else {
            let Some(numbers) = numbers(reply) else {
                // An error to the request itself would be the same at every server.
                return self.pass_on(entry, reply);
            };
            rest.refused_since = None;
            rest.answered.push(server);
            match rest.least.is_empty() {
                true => rest.least = numbers,
                false => {
                    let both = rest.least.iter_mut().zip(numbers);
                    both.for_each(|(least, other)| *least = other.min(*least));
                }
            }
        }
        self.wait_at_next(link, entry, rest, of_user);
    }

    /// Asks the next server that owns slots and has not answered.
    fn wait_at_next(
        &mut self,
        link: LinkId,
        entry: Entry,
        rest: Box<OtherServers>,
        of_user: Option<Arc<RedirectStandIn>>,
    ) {
        let Some(session) = self.plane.sessions.get(entry.session) else {
            return;
        };
        let servers = self.plane.pools[usize::from(session.pool)].servers();
        let left = servers.iter().find(|server| {
            !rest.answered.contains(server) && self.pinned.owns_something(&self.plane, **server)
        });
        let Some(server) = left.copied() else {
            return self.end_wait_at_all(entry, &rest);
        };
        let (mut bytes, in_front) =
            self.pinned
                .in_front_of_wait(&mut self.plane, entry.session, server);
        // A timeout of 0 would be none.
        let left_ms = |until: Time| until.since_ms(self.plane.now).max(1);
        let timeout = rest.until.map_or(0, left_ms).to_string();
        let mut args: Vec<&[u8]> = rest.args.iter().map(Vec::as_slice).collect();
        args.push(timeout.as_bytes());
        encode::request(&mut bytes, &args);
        // A pause, in which the nodes tell the new owners of the slots.
        let pause_ms = rest.refused_since.map_or(0, |_| TICK_MS);
        let waiting = WaitCommand {
            before: in_front,
            in_front,
            refused: None,
            rest: Some(rest),
            of_user,
        };
        let completion = Completion::Pinned(PinnedCompletion::Wait(Box::new(waiting)));
        let due = self.plane.now.plus_ms(pause_ms);
        self.go_on_alone(link, entry, (bytes, completion), (server, due));
    }

    fn end_wait_at_all(&mut self, entry: Entry, rest: &OtherServers) {
        let mut reply = Vec::new();
        match rest.least[..] {
            [replicas] => encode::integer(&mut reply, replicas),
            ref both => {
                encode::array(&mut reply, both.len());
                both.iter()
                    .for_each(|one| encode::integer(&mut reply, *one));
            }
        }
        self.pass_on(entry, &reply);
    }
}

fn wait_key(number: u32) -> String {
    format!("{WAITED}:{number}")
}

/// Reads the numbers in a reply to WAIT or WAITAOF.
fn numbers(reply: &[u8]) -> Option<Vec<i64>> {
    let one = |value: Value| match value {
        Value::Integer(number) => Some(number),
        _ => None,
    };
    match Value::read(reply)? {
        Value::List(values) if values.len() == 2 => values.into_iter().map(one).collect(),
        value => Some(vec![one(value)?]),
    }
}

/// Whether the error says that the server is a replica, or has become one: another server is the
/// primary.
fn is_of_replica(said: &[u8]) -> bool {
    Refusal::of(said) == Some(Refusal::Unblocked)
        || said.starts_with(b"ERR WAIT") && said.windows(7).any(|word| word == b"replica")
}

/// Whether a command is WAIT or WAITAOF.
pub(crate) fn is_wait(id: respool_protocol::commands::CommandId) -> bool {
    matches!(id, id::WAIT | id::WAITAOF)
}

impl Pinned {
    /// Whether a server owns slots. A server that has just lost its last slot has no write that the
    /// new owners lack.
    fn owns_something(&self, plane: &DataPlane, server: ServerId) -> bool {
        let cluster = plane.pool_of(server).cluster();
        cluster.is_none_or(|cluster| cluster.owns_slots(server))
    }

    /// The writes in front of the request at this server, and the number of their replies.
    fn in_front_of_wait(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        server: ServerId,
    ) -> (Vec<u8>, u32) {
        let mut bytes = Vec::new();
        let release = plane.release_at(server);
        if release.is_some_and(|(name, release)| name == "redis" && release < (7, 2)) {
            let version = plane.sessions.get(id).map(|session| session.version);
            let version = version.unwrap_or_default().number().to_string();
            encode::request(&mut bytes, &["HELLO", &version]);
            return (bytes, 1);
        }
        if let Some(name) = self.key_to_write_at(plane, server) {
            encode::request(&mut bytes, &["MULTI"]);
            encode::request(&mut bytes, &["SET", &name, ""]);
            encode::request(&mut bytes, &["DEL", &name]);
            encode::request(&mut bytes, &["EXEC"]);
            return (bytes, 4);
        }
        encode::request(&mut bytes, &["SPUBLISH", WAITED, ""]);
        (bytes, 1)
    }

    /// A key in a random slot of this node, so that a slot that is being migrated is not hit each
    /// time.
    fn key_to_write_at(&mut self, plane: &mut DataPlane, server: ServerId) -> Option<String> {
        let first = plane.random() as u32;
        let pool = usize::from(plane.server(server).pool);
        let cluster = plane.pools[pool].cluster()?;
        let mut names = (0..KEYS).map(|more| wait_key(first.wrapping_add(more) % KEYS));
        names.find(|name| cluster.owner_of_slot(hash_slot(name.as_bytes())) == server)
    }

    /// The server has deleted a user. Sessions of the user that wait on a link of the configured
    /// user are closed, as the server would close them.
    pub(crate) fn close_waits_of(&mut self, plane: &mut DataPlane, user: u16, server: ServerId) {
        let waits = |(id, session): (SessionId, &Session)| {
            let own = plane.links.get(session.link)?;
            let is_others = own.role == (Role::Pinned { by: id }) && own.kind.user != user;
            let is_its = own.kind.server == server;
            (session.user == user && is_its && is_others).then_some(id)
        };
        let waiting: Vec<SessionId> = plane.sessions.iter().filter_map(waits).collect();
        for session in waiting {
            plane.close(session, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use respool_protocol::slot::SLOTS;

    use super::*;

    /// Each of the 16,384 slots has a key among those that WAIT may write.
    #[test]
    fn every_slot_has_a_key_to_write() {
        let slots = (0..KEYS).map(|number| hash_slot(wait_key(number).as_bytes()));
        let slots: HashSet<u16> = slots.collect();
        assert_eq!(slots.len(), usize::from(SLOTS));
    }
}

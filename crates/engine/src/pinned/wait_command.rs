//! WAIT and WAITAOF.
//!
//! A server lets them wait for what their own connection has written last. That was another one, so something is written in
//! front of them that nobody sees: what was written before it has gone the same way to the replicas.
//!
//! ```text
//!   Redis before 7.2     HELLO 2                        any command does
//!   a Cluster's node     MULTI, SET k "", DEL k, EXEC   with a key of one of its slots: it hands no message on to replicas
//!   else                 SPUBLISH respool:wait ""       to no client, unless one subscribes to just that
//! ```
//!
//! Where a pool has several servers, the session may have written to any of them. All are asked, one after the other: so a
//! session has one link of its own, as with one server. Who comes later has had more time already and is left the rest of it;
//! and the answer is the least that any of them says.

use std::sync::Arc;

use respool_protocol::cluster::Refusal;
use respool_protocol::commands::id;
use respool_protocol::encode;
use respool_protocol::number;
use respool_protocol::slot::hash_slot;
use respool_protocol::value::Value;

use crate::auth::CONFIGURED;
use crate::duty::Duty;
use crate::engine::{Engine, TICK_MS};
use crate::entry::Entry;
use crate::link::{Link, Role};
use crate::pool::ServerId;
use crate::redirect::Stand;
use crate::requests::{Placed, Request};
use crate::session::{Pins, Session};
use crate::slots::Key;
use crate::time::Time;

/// The channel, and how the keys begin.
const WAITED: &str = "respool:wait";
/// Among so many keys each slot has one.
const KEYS: u32 = 1 << 18;
/// So long a node may say that it does not own a slot any more, or not now, before its client is told, milliseconds.
const REFUSED_MS_MAX: u64 = 10_000;

/// To a WAIT that could not be told what to wait for; what the server said follows.
const NO_MESSAGE: &[u8] =
    b"-ERR respool: to wait for what others' connections wrote takes the right to \
    SPUBLISH on the channel respool:wait; the server says: ";
const NO_KEY: &[u8] =
    b"-ERR respool: to wait for what others' connections wrote takes the right to \
    SET and DEL keys that begin with respool:wait; the server says: ";

const REFUSED: &[u8] = b"-ERR respool: a node of the Cluster did not let it wait; it says: ";

/// A WAIT or WAITAOF, until a server has answered it.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// How many replies to what is in front of it are to come.
    before: u32,
    /// What the server said to that instead of agreeing.
    refused: Option<Vec<u8>>,
    /// All of them, for one that is sent again from its beginning.
    in_front: u32,
    /// What comes behind it, where a pool has several servers.
    rest: Option<Box<Rest>>,
    /// Keeps a link of the session's user open while the session waits on another user's. The
    /// server closes that link when it deletes the user, see [`Engine::close_waits_of`].
    of_user: Option<Arc<Stand>>,
}

/// Other servers are asked the same.
#[derive(Debug)]
struct Rest {
    answered: Vec<ServerId>,
    /// What those have said at the least.
    least: Vec<i64>,
    /// The request but for its timeout; and when that is over, if ever.
    args: Vec<Vec<u8>>,
    until: Option<Time>,
    /// Since when a node has refused what is written in front of it.
    refused_since: Option<Time>,
}

impl Waiting {
    /// Whether the next reply is to something in front of it, and not to the request itself.
    pub(crate) fn is_in_front(&self) -> bool {
        self.before > 0
    }

    pub(crate) fn take_in_front(&mut self, reply: &[u8]) {
        self.before -= 1;
        // What comes behind an error follows from it.
        if reply.starts_with(b"-") {
            self.refused.get_or_insert_with(|| reply.to_vec());
        }
    }

    pub(crate) fn begin_again(&mut self) {
        self.before = self.in_front;
        self.refused = None;
    }
}

impl Engine {
    /// One server is asked.
    pub(crate) fn place_wait(&mut self, key: Key, request: &Request<'_>) -> Placed {
        self.place_wait_of(key, request, None)
    }

    /// All servers of the pool are.
    pub(crate) fn place_wait_at_all(&mut self, key: Key, request: &Request<'_>) -> Placed {
        let Some(session) = self.sessions.get(key) else {
            return Placed::Done;
        };
        let first = self.pools[usize::from(session.pool)].servers()[0];
        let timeout = request.args().last().and_then(number::parse);
        let mut args: Vec<Vec<u8>> = request.args().map(<[u8]>::to_vec).collect();
        args.pop();
        let rest = timeout.map(|ms| Rest {
            answered: Vec::new(),
            least: Vec::new(),
            args,
            until: (ms > 0).then(|| self.now.plus_ms(u32::try_from(ms).unwrap_or(u32::MAX))),
            refused_since: None,
        });
        self.turn(key, first);
        // What is no time any server refuses.
        self.place_waiting(key, request, |engine| {
            engine.place_wait_of(key, request, rest.map(Box::new))
        })
    }

    fn place_wait_of(
        &mut self,
        key: Key,
        request: &Request<'_>,
        rest: Option<Box<Rest>>,
    ) -> Placed {
        let Some(session) = self.sessions.get(key) else {
            return Placed::Done;
        };
        let mut kind = self.kind_of(session);
        let is_up = |link: &Link| link.key == self.first_link(kind.server) && link.is_up();
        if kind.user != CONFIGURED && self.links.iter().any(|(_, link)| is_up(link)) {
            // Hardly any other user may write to a channel. Who may not wait is told so all the same.
            if let Some(placed) = self.refused_by_right(key, request) {
                return placed;
            }
            kind.user = CONFIGURED;
        }
        let session = self.sessions.get(key).filter(|its| its.pins.is_empty());
        let own = session.and_then(|session| self.links.get(session.link));
        let of_user = own.filter(|own| own.key.user != kind.user);
        let of_user = of_user.map(|own| own.held.clone());
        if let Err(blocked) = self.pin_to(kind, key, Pins::ONCE) {
            return self.blocked(key, blocked);
        }
        let (mut bytes, in_front) = self.in_front_of_wait(key, kind.server);
        bytes.extend_from_slice(request.bytes);
        let duty = Duty::Wait(Box::new(Waiting {
            before: in_front,
            in_front,
            refused: None,
            rest,
            of_user,
        }));
        self.place_alone(key, &bytes, (false, Some(duty)), Pins::ONCE, true)
    }

    /// What is written in front of it at that server, and how many replies there are to that.
    fn in_front_of_wait(&mut self, key: Key, server: ServerId) -> (Vec<u8>, u32) {
        let mut bytes = Vec::new();
        let release = self.release_at(server);
        if release.is_some_and(|(name, release)| name == "redis" && release < (7, 2)) {
            let version = self.sessions.get(key).map(|session| session.version);
            let version = version.unwrap_or_default().number().to_string();
            encode::request(&mut bytes, &["HELLO", &version]);
            return (bytes, 1);
        }
        if let Some(name) = self.key_to_write_at(server) {
            encode::request(&mut bytes, &["MULTI"]);
            encode::request(&mut bytes, &["SET", &name, ""]);
            encode::request(&mut bytes, &["DEL", &name]);
            encode::request(&mut bytes, &["EXEC"]);
            return (bytes, 4);
        }
        encode::request(&mut bytes, &["SPUBLISH", WAITED, ""]);
        (bytes, 1)
    }

    /// A key of a slot that this node owns: not always of the same one, which might be on its way.
    fn key_to_write_at(&mut self, server: ServerId) -> Option<String> {
        let first = self.random() as u32;
        let pool = usize::from(self.server(server).pool);
        let cluster = self.pools[pool].cluster()?;
        let mut names = (0..KEYS).map(|more| wait_key(first.wrapping_add(more) % KEYS));
        names.find(|name| cluster.owner_of_slot(hash_slot(name.as_bytes())) == server)
    }

    /// A server has answered.
    pub(crate) fn settle_wait(&mut self, link: Key, entry: Entry, waiting: Waiting, reply: &[u8]) {
        let Waiting {
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
        let Some(server) = self.links.get(link).map(|link| link.key.server) else {
            return;
        };
        let of_cluster = self.pool_of(server).cluster().is_some();
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
                    self.follow(server, None, why, refusal);
                }
                None => self.doubt_lost_owner(server),
            }
            let since = *rest.refused_since.get_or_insert(self.now);
            if rest.until.is_some_and(|until| self.now >= until) {
                // It is not known that anybody has it.
                rest.least = vec![0; rest.args.len() - 1];
                return self.end_wait_at_all(entry, &rest);
            }
            if self.now.since_ms(since) >= REFUSED_MS_MAX {
                return self.pass_on(entry, &[REFUSED, why].concat());
            }
        } else {
            let Some(numbers) = numbers(reply) else {
                // What is wrong with it is so everywhere.
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

    /// The server has deleted a user. Sessions of the user that wait on a link of the configured
    /// user are closed, as the server would close them.
    pub(crate) fn close_waits_of(&mut self, user: u16, server: ServerId) {
        let waits = |(key, session): (Key, &Session)| {
            let own = self.links.get(session.link)?;
            let is_others = own.role == (Role::Pinned { by: key }) && own.key.user != user;
            let is_its = own.key.server == server;
            (session.user == user && is_its && is_others).then_some(key)
        };
        let waiting: Vec<Key> = self.sessions.iter().filter_map(waits).collect();
        for session in waiting {
            self.close(session, false);
        }
    }

    /// Whoever owns something now, and has not answered, is asked.
    fn wait_at_next(
        &mut self,
        link: Key,
        entry: Entry,
        rest: Box<Rest>,
        of_user: Option<Arc<Stand>>,
    ) {
        let Some(session) = self.sessions.get(entry.session) else {
            return;
        };
        let servers = self.pools[usize::from(session.pool)].servers();
        let left = servers
            .iter()
            .find(|server| !rest.answered.contains(server) && self.owns_something(**server));
        let Some(server) = left.copied() else {
            return self.end_wait_at_all(entry, &rest);
        };
        let (mut bytes, in_front) = self.in_front_of_wait(entry.session, server);
        // None would be for ever.
        let left_ms = |until: Time| until.since_ms(self.now).max(1);
        let timeout = rest.until.map_or(0, left_ms).to_string();
        let mut args: Vec<&[u8]> = rest.args.iter().map(Vec::as_slice).collect();
        args.push(timeout.as_bytes());
        encode::request(&mut bytes, &args);
        // Where its slots are now, the nodes have to be asked.
        let pause_ms = rest.refused_since.map_or(0, |_| TICK_MS);
        let waiting = Waiting {
            before: in_front,
            in_front,
            refused: None,
            rest: Some(rest),
            of_user,
        };
        let duty = Duty::Wait(Box::new(waiting));
        let due = self.now.plus_ms(pause_ms);
        self.go_on_alone(link, entry, (bytes, duty), (server, due));
    }

    /// Who has lost its last slot a moment ago has nothing more to hand on that its heirs do not have.
    fn owns_something(&self, server: ServerId) -> bool {
        let cluster = self.pool_of(server).cluster();
        cluster.is_none_or(|cluster| cluster.owns_slots(server))
    }

    fn end_wait_at_all(&mut self, entry: Entry, rest: &Rest) {
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

/// What WAIT and WAITAOF answer.
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

/// Whether a server says that it has become a replica, or is one: its place is another one's.
fn is_of_replica(said: &[u8]) -> bool {
    Refusal::of(said) == Some(Refusal::Unblocked)
        || said.starts_with(b"ERR WAIT") && said.windows(7).any(|word| word == b"replica")
}

/// Whether it is one of the two.
pub(crate) fn is_wait(id: respool_protocol::commands::CommandId) -> bool {
    matches!(id, id::WAIT | id::WAITAOF)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use respool_protocol::slot::SLOTS;

    use super::*;

    #[test]
    fn every_slot_has_a_key_to_write() {
        let slots = (0..KEYS).map(|number| hash_slot(wait_key(number).as_bytes()));
        let slots: HashSet<u16> = slots.collect();
        assert_eq!(slots.len(), usize::from(SLOTS));
    }
}

//! WAIT and WAITAOF.
//!
//! A server waits for the last write of the same connection, but the session's writes went over
//! shared links. So respool sends a write on the pinned link before WAIT. All earlier writes reach
//! the replicas before this one.
//!
//! ```text
//!   Redis before 7.2   HELLO 2                        any command does
//!   a Cluster's node   MULTI, SET k "", DEL k, EXEC   a key of its slots: no message is replicated
//!   else               SPUBLISH respool:wait ""       no client gets it, unless it subscribes
//! ```
//!
//! In a pool of several servers the session may have written to any of them. respool asks all of
//! them, one after the other, so the session needs one pinned link, as with one server. Each server
//! gets the rest of the timeout. A later server has replicated for longer by then. The reply is the
//! least number of all servers.

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
use crate::data_plane::completion::pinned::{
    OtherServers, PinnedCompletion, RedirectStandIn, WaitCommand,
};
use crate::data_plane::ingress::{Blocked, Dispatched, Request};
use crate::data_plane::ledger::Entry;
use crate::data_plane::link::{Link, LinkKind, LinkRole};
use crate::data_plane::session::{Pins, Session};
use crate::pinned::Pinned;
use crate::routing::pool::ServerId;

/// The channel to which respool publishes, and the prefix of the keys that it writes.
const WAITED: &str = "respool:wait";
/// Among this many keys each slot has one.
const KEYS: u32 = 1 << 18;
/// How long a node may refuse the write for a redirect before the client gets the error,
/// milliseconds.
const REFUSED_MS_MAX: u64 = 10_000;

/// The error to a WAIT if the server refuses the write before it. The server's error follows.
const NO_MESSAGE: &[u8] =
    b"-ERR respool: WAIT and WAITAOF need the right to SPUBLISH on the channel respool:wait; \
    the server says: ";
const NO_KEY: &[u8] =
    b"-ERR respool: WAIT and WAITAOF need the right to SET and DEL keys that begin with \
    respool:wait; the server says: ";

const REFUSED: &[u8] = b"-ERR respool: a Cluster node refused to wait: ";

/// The outcome of a WAIT or WAITAOF after the reply of a server.
pub(super) enum WaitOutcome {
    /// The client gets this reply.
    Reply(Vec<u8>),
    /// The next server is to be asked: see [`Pinned::wait_at_next`].
    Next {
        rest: WaitAtAll,
        /// The refusal of this server.
        refused: Option<RefusedWait>,
    },
    /// The link is gone.
    Nothing,
}

/// The error of a server that refuses to let a session wait.
pub(crate) struct RefusedWait {
    pub(crate) why: Vec<u8>,
    /// The redirect, if the server does not own the keys any more, or will not for long.
    pub(crate) redirects: Option<Refusal>,
}

/// A WAIT or WAITAOF that is on its way from one server to the next.
pub(crate) struct WaitAtAll {
    rest: Box<OtherServers>,
    of_user: Option<Arc<RedirectStandIn>>,
}

/// The request for the next server.
pub(crate) struct NextWait {
    pub(crate) request: (Vec<u8>, Completion),
    /// The server, and the time at which it is sent.
    pub(crate) at: (ServerId, Time),
}

impl OtherServers {
    /// The servers of a pool, for this request.
    pub(crate) fn of(request: &Request<'_>, plane: &DataPlane) -> Option<Box<OtherServers>> {
        // A malformed timeout is refused by the first server.
        let ms = request.args().last().and_then(number::parse)?;
        let mut args: Vec<Vec<u8>> = request.args().map(<[u8]>::to_vec).collect();
        args.pop();
        Some(Box::new(OtherServers {
            answered: Vec::new(),
            least: Vec::new(),
            args,
            read_at: plane.read_at,
            until: (ms > 0).then(|| plane.now.plus_ms(u32::try_from(ms).unwrap_or(u32::MAX))),
            refused_since: None,
        }))
    }

    /// Takes the numbers of one more server.
    fn take(&mut self, server: ServerId, numbers: Vec<i64>) {
        self.refused_since = None;
        self.answered.push(server);
        match self.least.is_empty() {
            true => self.least = numbers,
            false => {
                let both = self.least.iter_mut().zip(numbers);
                both.for_each(|(least, other)| *least = other.min(*least));
            }
        }
    }

    /// Handles a refusal that may end, because another node owns the keys. Returns the reply if it
    /// has lasted too long.
    fn take_refusal(&mut self, why: &[u8], now: Time) -> Option<Vec<u8>> {
        let since = *self.refused_since.get_or_insert(now);
        if self.until.is_some_and(|until| now >= until) {
            // No replica is known to have the writes of this node.
            self.least = vec![0; self.args.len() - 1];
            return Some(self.reply());
        }
        (now.since_ms(since) >= REFUSED_MS_MAX).then(|| [REFUSED, why].concat())
    }

    /// The reply to the client: the least numbers of all servers.
    fn reply(&self) -> Vec<u8> {
        let mut reply = Vec::new();
        match self.least[..] {
            [replicas] => encode::integer(&mut reply, replicas),
            ref both => {
                encode::array(&mut reply, both.len());
                both.iter()
                    .for_each(|one| encode::integer(&mut reply, *one));
            }
        }
        reply
    }

    /// The request for the next server, with the rest of the timeout.
    fn request(&self, now: Time) -> Vec<u8> {
        // WAIT with timeout 0 waits for ever, so 1 ms is the least.
        let left_ms = |until: Time| until.since_ms(now).max(1);
        let timeout = self.until.map_or(0, left_ms).to_string();
        let mut args: Vec<&[u8]> = self.args.iter().map(Vec::as_slice).collect();
        args.push(timeout.as_bytes());
        let mut request = Vec::new();
        encode::request(&mut request, &args);
        request
    }
}

impl Pinned {
    /// Whether a session waits on a link of another user. Its own right to WAIT has to be known
    /// first.
    fn waits_as_another(&self, plane: &DataPlane, id: SessionId) -> bool {
        let session = plane.sessions.get(id);
        session.is_some_and(|session| self.kind_to_wait(plane, session).1)
    }

    /// Switches a session to the first of all servers at which it waits. Returns the others.
    pub(crate) fn begin_wait_at_all(
        &self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> Option<Box<OtherServers>> {
        let session = plane.sessions.get(id)?;
        let first = plane.pools[usize::from(session.pool)].servers()[0];
        let rest = OtherServers::of(request, plane);
        plane.switch_server(id, first);
        rest
    }

    /// Sends WAIT or WAITAOF to one server, or to all servers of a pool (`rest`) one after the
    /// other. `refused_by_right`: the outcome if the session's user may not send the request, or
    /// the session waits for the answer.
    pub(crate) fn dispatch_wait(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
        rest: Option<Box<OtherServers>>,
        refused_by_right: impl FnOnce(&mut DataPlane) -> Option<Dispatched>,
    ) -> Dispatched {
        let was_waiting = plane.deadline_of(id).is_some();
        // A user without the right to WAIT is refused on another user's link, too.
        let refused = match self.waits_as_another(plane, id) {
            true => refused_by_right(plane),
            false => None,
        };
        let dispatched = match refused {
            Some(dispatched) => dispatched,
            None => self.send_wait(plane, id, request, rest),
        };
        self.note_wait(plane, id, request, (was_waiting, dispatched));
        dispatched
    }

    fn send_wait(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
        rest: Option<Box<OtherServers>>,
    ) -> Dispatched {
        let Some(session) = plane.sessions.get(id) else {
            return Dispatched::Done;
        };
        let (kind, _) = self.kind_to_wait(plane, session);
        match self.begin_wait(plane, id, kind, (request, rest)) {
            Ok((bytes, completion)) => {
                let completion = (false, Some(completion));
                plane.dispatch_alone(id, &bytes, completion, Pins::ONCE, true)
            }
            Err(blocked) => plane.blocked(id, blocked),
        }
    }

    /// The kind of link on which a session waits. The configured user's is taken if it is up, since
    /// few users may publish to a channel. `true`: it is not the session's own user, so the
    /// session's right to WAIT has to be known first.
    fn kind_to_wait(&self, plane: &DataPlane, session: &Session) -> (LinkKind, bool) {
        let mut kind = plane.kind_of(session);
        let is_up = |link: &Link| link.kind == plane.default_kind(kind.server) && link.is_up();
        let is_others = kind.user != CONFIGURED && plane.links.iter().any(|(_, link)| is_up(link));
        if is_others {
            kind.user = CONFIGURED;
        }
        (kind, is_others)
    }

    /// Pins a session to a link of this kind for WAIT or WAITAOF. Returns the bytes to send and
    /// their completion.
    fn begin_wait(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        kind: LinkKind,
        (request, rest): (&Request<'_>, Option<Box<OtherServers>>),
    ) -> Result<(Vec<u8>, Completion), Blocked> {
        let session = plane.sessions.get(id);
        let session = session.filter(|session| session.pins.is_empty());
        let own = session.and_then(|session| plane.links.get(session.link));
        let of_user = own.filter(|own| own.kind.user != kind.user);
        let of_user = of_user.map(|own| own.stand_in.clone());
        plane.pin_to(kind, id, Pins::ONCE)?;
        let (mut bytes, in_front) = self.in_front_of_wait(plane, id, kind.server);
        bytes.extend_from_slice(request.bytes);
        let completion = Completion::Pinned(PinnedCompletion::Wait(Box::new(WaitCommand {
            before: in_front,
            in_front,
            refused: None,
            rest,
            of_user,
        })));
        Ok((bytes, completion))
    }

    /// Handles the reply of a server.
    pub(super) fn settle_wait(
        &self,
        plane: &DataPlane,
        link: LinkId,
        waiting: WaitCommand,
        reply: &[u8],
    ) -> WaitOutcome {
        let WaitCommand {
            refused,
            rest,
            of_user,
            ..
        } = waiting;
        let refusal = refused
            .as_deref()
            .and_then(|error| error.strip_prefix(b"-"));
        let Some(mut rest) = rest else {
            return WaitOutcome::Reply(match refusal {
                Some(why) => [NO_MESSAGE, why].concat(),
                None => reply.to_vec(),
            });
        };
        let Some(server) = plane.links.get(link).map(|link| link.kind.server) else {
            return WaitOutcome::Nothing;
        };
        let of_cluster = plane.pool_of(server).cluster().is_some();
        if let Some(why) = refusal
            && !(of_cluster && Refusal::of(why).is_some())
        {
            let text = if of_cluster { NO_KEY } else { NO_MESSAGE };
            return WaitOutcome::Reply([text, why].concat());
        }
        let error = reply.strip_prefix(b"-").unwrap_or_default();
        let why = refusal.or((of_cluster && is_of_replica(error)).then_some(error));
        let Some(why) = why else {
            let Some(numbers) = numbers(reply) else {
                // An error to the request itself would be the same at every server.
                return WaitOutcome::Reply(reply.to_vec());
            };
            rest.take(server, numbers);
            let rest = WaitAtAll { rest, of_user };
            return WaitOutcome::Next {
                rest,
                refused: None,
            };
        };
        WaitOutcome::Next {
            rest: WaitAtAll { rest, of_user },
            refused: Some(RefusedWait {
                why: why.to_vec(),
                redirects: Refusal::of(why),
            }),
        }
    }

    /// The request for the next server that owns slots and has not answered. `refused`: the last
    /// server has refused the write in front of it. `None`: the client has its reply.
    pub(crate) fn wait_at_next(
        &mut self,
        plane: &mut DataPlane,
        entry: Entry,
        WaitAtAll { mut rest, of_user }: WaitAtAll,
        refused: Option<RefusedWait>,
    ) -> Option<NextWait> {
        let now = plane.now;
        let refused = refused.and_then(|refused| rest.take_refusal(&refused.why, now));
        if let Some(reply) = refused {
            plane.answer_or_fail(entry, &reply);
            return None;
        }
        let pool = usize::from(plane.sessions.get(entry.session)?.pool);
        let servers = plane.pools[pool].servers();
        let left = servers
            .iter()
            .find(|server| !rest.answered.contains(server) && self.owns_slots(plane, **server));
        let Some(server) = left.copied() else {
            plane.answer_or_fail(entry, &rest.reply());
            return None;
        };
        let (mut bytes, in_front) = self.in_front_of_wait(plane, entry.session, server);
        bytes.extend(rest.request(now));
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
        let due = now.plus_ms(pause_ms);
        Some(NextWait {
            request: (bytes, completion),
            at: (server, due),
        })
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
fn is_of_replica(error: &[u8]) -> bool {
    Refusal::of(error) == Some(Refusal::Unblocked)
        || error.starts_with(b"ERR WAIT") && error.windows(7).any(|word| word == b"replica")
}

/// Whether a command is WAIT or WAITAOF.
pub(crate) fn is_wait(id: respool_protocol::commands::CommandId) -> bool {
    matches!(id, id::WAIT | id::WAITAOF)
}

impl Pinned {
    /// Whether a server owns slots. A server that has just lost its last slot has no write that the
    /// new owners lack.
    fn owns_slots(&self, plane: &DataPlane, server: ServerId) -> bool {
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
    pub(super) fn close_waits_of(&mut self, plane: &mut DataPlane, user: u16, server: ServerId) {
        let waits = |(id, session): (SessionId, &Session)| {
            let own = plane.links.get(session.link)?;
            let is_others = own.role == (LinkRole::Pinned { by: id }) && own.kind.user != user;
            let is_its = own.kind.server == server;
            (session.user == user && is_its && is_others).then_some(id)
        };
        let waiting: Vec<SessionId> = plane.sessions.iter().filter_map(waits).collect();
        for session in waiting {
            plane.close(session);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use respool_protocol::slot::SLOTS;

    use super::*;

    /// Each of the 16,384 slots has a key among the keys that WAIT may write.
    #[test]
    fn every_slot_has_a_key_to_write() {
        let slots = (0..KEYS).map(|number| hash_slot(wait_key(number).as_bytes()));
        let slots: HashSet<u16> = slots.collect();
        assert_eq!(slots.len(), usize::from(SLOTS));
    }

    fn servers(request: &str, now: Time) -> OtherServers {
        let mut args: Vec<Vec<u8>> = request.split(' ').map(|arg| arg.into()).collect();
        let ms: u32 = String::from_utf8(args.pop().expect("a timeout"))
            .expect("it is text")
            .parse()
            .expect("it is a number");
        OtherServers {
            answered: Vec::new(),
            least: Vec::new(),
            args,
            read_at: now.stamp(),
            until: (ms > 0).then(|| now.plus_ms(ms)),
            refused_since: None,
        }
    }

    /// The client gets the least number of all servers, and each server the rest of the timeout.
    #[test]
    fn wait_at_all_servers_replies_the_least_number() {
        let at = |ms: u32| Time(0).plus_ms(ms);
        let mut one = servers("WAIT 2 500", at(0));
        one.take(ServerId(0), vec![2]);
        one.take(ServerId(1), vec![1]);
        one.take(ServerId(2), vec![2]);
        assert_eq!(one.reply(), b":1\r\n");
        let request = |ms| String::from_utf8(one.request(at(ms))).expect("it is text");
        assert!(request(100).ends_with("$3\r\n400\r\n"), "{}", request(100));
        assert!(
            request(700).ends_with("$1\r\n1\r\n"),
            "0 would be no timeout"
        );
        let mut both = servers("WAITAOF 1 2 0", at(0));
        both.take(ServerId(0), vec![1, 2]);
        both.take(ServerId(1), vec![0, 3]);
        assert_eq!(both.reply(), b"*2\r\n:0\r\n:2\r\n");
        assert!(both.request(at(9)).ends_with(b"$1\r\n0\r\n"));
    }

    /// A refusal that goes on ends the request: with 0 at its timeout, else with the error.
    #[test]
    fn refused_wait_ends_at_its_timeout_or_with_the_error() {
        let at = |ms: u64| Time(0).plus_ms(ms as u32);
        let mut limited = servers("WAIT 2 500", at(0));
        limited.take(ServerId(0), vec![2]);
        assert_eq!(limited.take_refusal(b"MOVED 1 a:1", at(100)), None);
        let zero = limited.take_refusal(b"MOVED 1 a:1", at(500));
        assert_eq!(zero.as_deref(), Some(b":0\r\n".as_slice()));
        let mut endless = servers("WAIT 2 0", at(0));
        assert_eq!(endless.take_refusal(b"MOVED 1 a:1", at(0)), None);
        endless.take(ServerId(0), vec![2]);
        assert_eq!(
            endless.take_refusal(b"MOVED 1 a:1", at(REFUSED_MS_MAX)),
            None
        );
        let late = endless.take_refusal(b"MOVED 1 a:1", at(2 * REFUSED_MS_MAX));
        assert_eq!(late, Some([REFUSED, b"MOVED 1 a:1"].concat()));
    }
}

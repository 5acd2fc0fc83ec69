//! Scattered requests: each has shares at several servers, and waits here until all have an answer.
//!
//! They are in the data plane because any request can fail, and a failed share fails its whole
//! request. `Scatter` sends the shares, and merges their answers.

use std::collections::VecDeque;

use respool_protocol::commands::{CommandId, Names, Retry};
use respool_protocol::encode;
use respool_protocol::fan::Sections;

use crate::base::handle::SessionId;
use crate::base::limits::{Limits, parts_bytes_max, parts_bytes_option};
use crate::base::session_map::SessionMap;
use crate::base::slab::Slab;
use crate::data_plane::DataPlane;
use crate::data_plane::charges::{Charge, ChargeKind};
use crate::data_plane::completion::pinned::is_connection_switch;
use crate::data_plane::ledger::Entry;
use crate::data_plane::session::Session;
use crate::data_plane::turn_lists::Cleanup;
use crate::routing::pool::ServerId;

/// The scattered requests of a session.
#[derive(Default)]
pub(crate) struct ScatteredRequests {
    /// In the order of their places.
    requests: VecDeque<ScatterRequest>,
    /// The number of shares without an answer.
    waiting: usize,
    /// The requests, and the parts that have come.
    charge: Charge,
}

impl ScatteredRequests {
    /// The index of the request with the place `seq`. No request is before `head`.
    fn find(&self, head: u32, seq: u32) -> Option<usize> {
        let ahead = |seq: u32| seq.wrapping_sub(head);
        self.requests
            .binary_search_by_key(&ahead(seq), |request| ahead(request.seq))
            .ok()
    }
}

/// A request with shares at several servers, until all have answered.
pub(crate) struct ScatterRequest {
    /// Its place in the session's reply order.
    seq: u32,
    pub(crate) id: CommandId,
    pub(crate) merge: MergeRule,
    pub(crate) shares: Vec<ShareState>,
    /// The number of shares without an answer.
    waiting: usize,
    /// Bytes of the parts that have come.
    held_bytes: usize,
    /// The error reply for the client, once a share failed without a reply.
    pub(crate) failure: Option<Vec<u8>>,
    /// A share was executed, or may have been.
    executed: bool,
    /// Whether the session wants no reply to it.
    pub(crate) silent: bool,
    /// The pattern of KEYS. A server that sees keys without their prefix may be asked for a wider
    /// pattern. Its part is then filtered by this one.
    sifted_by: Option<Box<[u8]>>,
}

/// The rule that makes one reply of the parts.
pub(crate) enum MergeRule {
    /// By key: the index of the part that has each key.
    ByKey(Vec<u16>),
    /// By the rule that the command table has for the command.
    ByTable,
    /// INFO: the requested sections, and whether respool's own section is added.
    Info {
        sections: Sections,
        adds_section: bool,
    },
}

/// A share, and its answer.
pub(crate) struct ShareState {
    pub(crate) server: ServerId,
    /// Empty until it has come.
    pub(crate) reply: Vec<u8>,
}

impl ScatterRequest {
    /// A request with the place `seq` and with shares for these servers.
    pub(crate) fn new(
        (seq, silent): (u32, bool),
        id: CommandId,
        merge: MergeRule,
        servers: impl Iterator<Item = ServerId>,
        sifted_by: Option<Box<[u8]>>,
    ) -> ScatterRequest {
        let share = |server| ShareState {
            server,
            reply: Vec::new(),
        };
        let shares: Vec<_> = servers.map(share).collect();
        ScatterRequest {
            seq,
            id,
            merge,
            waiting: shares.len(),
            shares,
            held_bytes: 0,
            failure: None,
            executed: false,
            silent,
            sifted_by,
        }
    }

    /// Whether a part has come.
    fn has_answers(&self) -> bool {
        self.waiting < self.shares.len()
    }

    /// Its memory without the parts' bytes.
    fn memory_bytes(&self) -> usize {
        let order = match &self.merge {
            MergeRule::ByKey(order) => order.capacity() * size_of::<u16>(),
            MergeRule::ByTable | MergeRule::Info { .. } => 0,
        };
        size_of::<ScatterRequest>() + self.shares.capacity() * size_of::<ShareState>() + order
    }

    /// Keeps the answer to a share.
    fn take(&mut self, index: u16, reply: &[u8], limits: &Limits) {
        self.waiting -= 1;
        self.executed |= !reply.starts_with(b"-");
        if self.failure.is_some() {
            // The request has failed already: this part is not used.
        } else if self.held_bytes + reply.len() > parts_bytes_max(limits) {
            self.failure = Some(too_large(limits));
            self.drop_parts();
        } else if let Some(share) = self.shares.get_mut(usize::from(index)) {
            share.reply = reply.to_vec();
            self.held_bytes += reply.len();
        }
    }

    /// Notes that a share gets no reply, but this error.
    fn fail(&mut self, error: &[u8]) {
        self.waiting -= 1;
        self.executed |= !error.starts_with(b"-NOTSENT");
        self.failure.get_or_insert_with(|| error.to_vec());
    }

    /// Drops the parts that have come.
    fn drop_parts(&mut self) {
        for share in &mut self.shares {
            share.reply = Vec::new();
        }
        self.held_bytes = 0;
    }

    /// Whether the command is about the session's links: all its servers must agree.
    pub(crate) fn is_agreement(&self) -> bool {
        is_connection_switch(self.id)
    }

    /// Adds to the error of the whole request that a share may have been executed. The error itself
    /// holds for its share alone.
    pub(crate) fn qualify_failure(&self, reply: &mut Vec<u8>) {
        // If some servers refuse an agreement, the change is undone at the others.
        let writes = self.id.get().retry == Retry::Write && !self.is_agreement();
        if self.executed && writes {
            let why = reply.strip_prefix(b"-").unwrap_or(reply).trim_ascii_end();
            let why = String::from_utf8_lossy(why);
            let text = format!(
                "UNKNOWN respool: a part of the command was executed, or may have been; {why}"
            );
            reply.clear();
            encode::error(reply, text.as_bytes());
        }
    }

    /// The server that answers a share, and which keys its reply names.
    pub(crate) fn share(&self, index: u16) -> Option<(ServerId, Names)> {
        let share = self.shares.get(usize::from(index))?;
        Some((share.server, self.id.get().names))
    }

    /// The pattern that filters the parts of KEYS.
    pub(crate) fn sifted_by(&self) -> Option<&[u8]> {
        self.sifted_by.as_deref()
    }
}

/// The error for a request with parts that are together larger than respool holds.
fn too_large(limits: &Limits) -> Vec<u8> {
    let most = parts_bytes_max(limits);
    let option = parts_bytes_option(limits);
    let mut reply = Vec::new();
    let text = format!(
        "ERR respool: the replies of the servers are together larger than {most} bytes \
         ({option}): ask for less at once, or raise that option"
    );
    encode::error(&mut reply, text.as_bytes());
    reply
}

/// The requests of an entry's session, and the index of the entry's own request among them.
fn locate<'a>(
    sessions: &Slab<SessionId, Session>,
    scattered: &'a mut SessionMap<ScatteredRequests>,
    entry: Entry,
) -> Option<(&'a mut ScatteredRequests, usize)> {
    let head = sessions.get(entry.session)?.head_seq;
    let of = scattered.get_mut(entry.session)?;
    let at = of.find(head, entry.seq)?;
    Some((of, at))
}

impl DataPlane {
    /// Adds a request. Its shares leave now.
    pub(crate) fn add_scattered(&mut self, id: SessionId, request: ScatterRequest) {
        let of = self.scattered.get_or_default(id);
        let is_behind = |last: &ScatterRequest| request.seq.wrapping_sub(last.seq) as i32 > 0;
        debug_assert!(
            of.requests.back().is_none_or(is_behind),
            "places are in order"
        );
        of.waiting += request.waiting;
        of.charge.memory += request.memory_bytes();
        of.requests.push_back(request);
        let charge = of.charge;
        self.charge(id, ChargeKind::Parts, charge);
    }

    /// The scattered request of which this entry is a share.
    pub(crate) fn scattered(&self, entry: Entry) -> Option<&ScatterRequest> {
        let head = self.sessions.get(entry.session)?.head_seq;
        let of = self.scattered.get(entry.session)?;
        Some(&of.requests[of.find(head, entry.seq)?])
    }

    /// Requests of a session that lack answers to shares, and how many answers they lack.
    pub(crate) fn scattered_of(&self, id: SessionId) -> (usize, usize) {
        let of = self.scattered.get(id);
        of.map_or((0, 0), |of| (of.requests.len(), of.waiting))
    }

    /// The place behind the last request of which a part has come.
    pub(crate) fn end_of_shares(&self, id: SessionId) -> Option<u32> {
        let mut answered = self.scattered.get(id)?.requests.iter().rev();
        let last = answered.find(|request| request.has_answers())?;
        Some(last.seq.wrapping_add(1))
    }

    /// Keeps a server's answer to its share. Returns whether the request is still there.
    pub(crate) fn store_share_reply(&mut self, entry: Entry, index: u16, reply: &[u8]) -> bool {
        let Some((of, at)) = locate(&self.sessions, &mut self.scattered, entry) else {
            return false;
        };
        let request = &mut of.requests[at];
        let before = request.held_bytes;
        request.take(index, reply, &self.settings.limits);
        let after = request.held_bytes;
        of.waiting -= 1;
        of.charge.counted = of.charge.counted + after - before;
        of.charge.memory = of.charge.memory + after - before;
        let charge = of.charge;
        self.charge(entry.session, ChargeKind::Parts, charge);
        self.bound_share_replies(entry.session);
        true
    }

    /// Holds the parts of a session to the bounds of early replies.
    fn bound_share_replies(&mut self, id: SessionId) {
        let limits = &self.settings.limits;
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        let reordered = session.reordered_bytes();
        if reordered > parts_bytes_max(limits) {
            let reason = "worker-memory-bytes-max: replies of several servers";
            self.close_for(id, reason.to_owned());
        } else if reordered > limits.session_output_soft_bytes as usize {
            self.turn.slowed_by_current_read.push(id);
        }
    }

    /// Notes that a share gets no reply, but this error. The client gets the error of the whole
    /// request after the last share. Returns whether the entry was a share.
    pub(super) fn fail_share(&mut self, entry: Entry, error: &[u8]) -> bool {
        let Some((of, at)) = locate(&self.sessions, &mut self.scattered, entry) else {
            return false;
        };
        of.waiting -= 1;
        of.requests[at].fail(error);
        let Some(mut request) = self.take_scattered(entry) else {
            return true;
        };
        let mut reply = request.failure.take().unwrap_or_default();
        request.qualify_failure(&mut reply);
        let entry = entry.of_command(request.id).silenced(request.silent);
        match request.is_agreement() {
            // The links change back before the client has its answer.
            true => self
                .turn
                .cleanups
                .push_back(Cleanup::Disagreed(entry, reply)),
            false => self.deliver_to(entry, &reply),
        }
        true
    }

    /// Takes out the entry's request, if it waits for no more parts.
    pub(crate) fn take_scattered(&mut self, entry: Entry) -> Option<ScatterRequest> {
        let (of, at) = locate(&self.sessions, &mut self.scattered, entry)?;
        if of.requests[at].waiting > 0 {
            return None;
        }
        let request = of.requests.remove(at)?;
        of.charge.counted -= request.held_bytes;
        of.charge.memory -= request.held_bytes + request.memory_bytes();
        let charge = of.charge;
        if of.requests.is_empty() {
            self.scattered.remove(entry.session);
        }
        self.charge(entry.session, ChargeKind::Parts, charge);
        Some(request)
    }

    /// Notes that a share goes to another server now.
    pub(crate) fn ask_share_of(&mut self, entry: Entry, index: u16, server: ServerId) {
        let Some((of, at)) = locate(&self.sessions, &mut self.scattered, entry) else {
            return;
        };
        if let Some(share) = of.requests[at].shares.get_mut(usize::from(index)) {
            share.server = server;
        }
    }

    /// The answer of a server to its share of a request, if it has a share and has answered.
    pub(crate) fn part_of(&self, entry: Entry, server: ServerId) -> Option<Vec<u8>> {
        let mut shares = self.scattered(entry)?.shares.iter();
        let share = shares.find(|share| share.server == server && !share.reply.is_empty())?;
        Some(share.reply.clone())
    }
}

#[cfg(test)]
mod tests {
    use respool_protocol::commands::id;

    use super::*;

    /// An error of a bound names the option and its value.
    #[test]
    fn too_large_answers_name_their_option() {
        let mut limits = Limits {
            worker_memory_bytes_max: 1 << 20,
            session_output_hard_bytes: 1_000,
            ..Limits::default()
        };
        let by_memory = String::from_utf8(too_large(&limits)).expect("text");
        assert!(
            by_memory.contains("larger than 131072 bytes"),
            "{by_memory}"
        );
        let option = "(an eighth of worker-memory-bytes-max, which is 1048576)";
        assert!(by_memory.contains(option), "{by_memory}");
        limits.session_output_hard_bytes = 200_000;
        let by_output = String::from_utf8(too_large(&limits)).expect("text");
        assert!(
            by_output.contains("larger than 200000 bytes"),
            "{by_output}"
        );
        let option = "(session-output-hard-bytes, which is 200000)";
        assert!(by_output.contains(option), "{by_output}");
    }

    fn request(id: CommandId) -> ScatterRequest {
        let servers = [ServerId(0), ServerId(1)].into_iter();
        ScatterRequest::new((0, false), id, MergeRule::ByTable, servers, None)
    }

    /// A failed write says that a share may have been executed, unless no share was sent. A failed
    /// agreement is undone, so it does not say so.
    #[test]
    fn failure_says_if_a_share_may_have_been_executed() {
        let unsent: &[u8] = b"-NOTSENT away\r\n";
        let table: [(CommandId, &[u8], bool); 5] = [
            (id::DEL, b":1\r\n", true),
            (id::DEL, b"-READONLY no\r\n", false),
            (id::DEL, unsent, false),
            (id::MGET, b"*0\r\n", false),
            (id::CLIENT_TRACKING, b"+OK\r\n", false),
        ];
        for (id, first, is_qualified) in table {
            let mut request = request(id);
            match first == unsent {
                true => request.fail(first),
                false => request.take(0, first, &Limits::default()),
            }
            request.fail(unsent);
            assert_eq!(request.waiting, 0);
            let mut reply = request.failure.take().expect("it has failed");
            request.qualify_failure(&mut reply);
            let qualified = reply.starts_with(b"-UNKNOWN respool: a part");
            assert_eq!(qualified, is_qualified, "{} {first:?}", id.get().name);
        }
    }
}

//! What several servers are asked for one request: each its part, and their replies become one.
//!
//! A part is an entry of its link's ledger like any other, with the place of the whole in the order of the session's
//! replies. The session keeps what has come until all parts have; whoever fails has failed the whole.

use respool_protocol::commands::{CommandId, Retry, id};
use respool_protocol::encode;
use respool_protocol::fan::{self, Cursor, Divided, Merged, Part, Undivided};

use crate::duty::Duty;
use crate::engine::Engine;
use crate::link::{Class, Entry};
use crate::pool::{Group, ServerId};
use crate::requests::{Blocked, Placed, Request, bound_reply};
use crate::route::CROSSSLOT;
use crate::session::{Flags, Session};
use crate::slots::Key;

/// Memory for a reply that is put together, between two of them.
const REPLY_BYTES_KEPT: usize = 64 << 10;

/// A request of which several servers have a part, until all have answered.
pub(crate) struct Gather {
    /// Its place in the order of the session's replies.
    seq: u32,
    id: CommandId,
    /// Of each key, which part it is in.
    order: Vec<u16>,
    parts: Vec<Answered>,
    /// Parts that are not answered.
    waiting: usize,
    /// What our client is told if a part failed without a reply.
    failure: Option<Vec<u8>>,
    /// A part was executed, or may have been.
    executed: bool,
    silent: bool,
}

struct Answered {
    server: ServerId,
    reply: Vec<u8>,
}

impl Gather {
    pub(crate) fn held_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.reply.len()).sum()
    }
}

impl Engine {
    /// A request whose keys belong to several servers: each owner gets its own.
    pub(crate) fn divide(&mut self, key: Key, request: &Request<'_>) -> Placed {
        let Some(session) = self.sessions.get(key) else {
            return Placed::Done;
        };
        let (pool, any) = (&self.pools[usize::from(session.pool)], session.next_seq);
        let mut split = std::mem::take(&mut self.split);
        let group_of = |name: &[u8]| pool.group_of(name, || any).0;
        let placed = match split.divide(request.id, request.bytes, request.spans, group_of) {
            Ok(Divided::Shares) => {
                let shares = split.shares();
                let parts: Vec<_> = shares
                    .map(|share| (pool.server_of(Group(share.group)), share.request))
                    .collect();
                self.ask_several(key, request, &parts, split.order().to_vec())
            }
            Ok(Divided::Whole { group }) => {
                let server = pool.server_of(Group(group));
                self.turn(key, server);
                self.place_on_link(key, request.bytes, is_read(request), None)
            }
            Err(Undivided::Together) => self.answer_error(key, CROSSSLOT),
            // The server says in its own words what is wrong with it.
            Err(Undivided::Keys) => self.place_on_link(key, request.bytes, false, None),
        };
        split.reset();
        self.split = split;
        placed
    }

    /// Every server of the pool gets the request.
    pub(crate) fn ask_all(&mut self, key: Key, request: &Request<'_>) -> Placed {
        let Some(session) = self.sessions.get(key) else {
            return Placed::Done;
        };
        let servers = self.pools[usize::from(session.pool)].servers();
        let parts: Vec<_> = servers
            .iter()
            .map(|server| (*server, request.bytes))
            .collect();
        if request.id == id::SCRIPT_FLUSH {
            self.forget_scripts(session.pool);
        }
        self.ask_several(key, request, &parts, Vec::new())
    }

    /// SCAN goes through one server after the other: which one it is at, its cursor says.
    pub(crate) fn scan(&mut self, key: Key, request: &Request<'_>) -> Placed {
        let Some(session) = self.sessions.get(key) else {
            return Placed::Done;
        };
        let cursor = request
            .spans
            .get(1)
            .and_then(|span| Cursor::parse(span.of(request.bytes)));
        let Some(cursor) = cursor else {
            return self.answer_error(key, b"ERR invalid cursor");
        };
        let pool = &self.pools[usize::from(session.pool)];
        let Some(((number, server), next)) = pool.scanned_from(cursor.server) else {
            // Those that were left are gone.
            return self.answer_reply(key, b"*2\r\n$1\r\n0\r\n*0\r\n");
        };
        let cursor = match number == cursor.server {
            true => cursor.cursor,
            // It was another one's that is gone.
            false => 0,
        };
        self.turn(key, server);
        let mut bytes = Vec::new();
        let at = Cursor {
            server: number,
            cursor,
        };
        fan::scan_request(request.bytes, request.spans, at, &mut bytes);
        let duty = Duty::Scan { number, next };
        self.place_on_link(key, &bytes, true, Some(duty))
    }

    /// What a server has answered to that, with the cursor that the client is to see.
    pub(crate) fn scanned(
        &self,
        link: Key,
        (number, next): (u16, Option<u16>),
        reply: &[u8],
    ) -> Vec<u8> {
        let part = Part {
            server: self.label(link),
            reply,
        };
        let mut out = Vec::new();
        fan::scan_reply(part, number, next, &mut out);
        out
    }

    fn ask_several(
        &mut self,
        key: Key,
        request: &Request<'_>,
        parts: &[(ServerId, &[u8])],
        order: Vec<u16>,
    ) -> Placed {
        let mut links = Vec::with_capacity(parts.len());
        for (server, _) in parts {
            // All of them, before any is asked: nothing is to be done by halves that could be known.
            match self.link_to(key, *server) {
                Ok(link) => links.push(link),
                Err(blocked) => return self.blocked(key, blocked),
            }
        }
        let Some(session) = self.sessions.get_mut(key) else {
            return Placed::Done;
        };
        let seq = session.take_seq();
        let silent = session.flags.any(Flags::SILENT | Flags::SILENT_ONCE);
        session.rare().gathers.push_back(Gather {
            seq,
            id: request.id,
            order,
            waiting: parts.len(),
            parts: parts
                .iter()
                .map(|(server, _)| Answered {
                    server: *server,
                    reply: Vec::new(),
                })
                .collect(),
            failure: None,
            executed: false,
            silent,
        });
        let reads = is_read(request);
        for (index, ((_, bytes), link)) in parts.iter().zip(links).enumerate() {
            let Some(state) = self.links.get_mut(link) else {
                continue;
            };
            let entry = Entry {
                len: bytes.len() as u32,
                class: Class::of(reads),
                duty: true,
                ..Entry::of(key, seq, self.now_ms)
            };
            let duty = Duty::Part {
                index: index as u16,
                shows_script: request.id == id::SCRIPT_LOAD,
            };
            state.push_with(entry, bytes, duty);
            self.counters.link_requests += 1;
            self.list_link(link);
            self.close_if_full(link);
        }
        Placed::Done
    }

    /// The link that all share to a server, ready to take a request of this session.
    fn link_to(&mut self, key: Key, server: ServerId) -> Result<Key, Blocked> {
        let Some(session) = self.sessions.get(key) else {
            return Err(Blocked::Wait);
        };
        let kind = self.kind_at(session, server);
        match self.current_link(kind) {
            Some(link) => self.ready_link(key, link),
            None => Err(Blocked::Refused(bound_reply("links_max"))),
        }
    }

    /// A server has answered its part.
    pub(crate) fn take_part_of(&mut self, entry: Entry, index: u16, reply: &[u8]) {
        let Some(gather) = self.gather_of(entry) else {
            self.counters.late_replies += 1;
            return;
        };
        gather.waiting -= 1;
        if let Some(part) = gather.parts.get_mut(usize::from(index)) {
            part.reply = reply.to_vec();
        }
        gather.executed |= !reply.starts_with(b"-");
        self.held_bytes += reply.len();
        if let Some(session) = self.sessions.get_mut(entry.session) {
            session.rare().gathered_bytes += reply.len();
        }
        self.bound_gathered(entry.session);
        self.finish_gather(entry);
    }

    /// What parts bring is bounded as what comes before its turn.
    fn bound_gathered(&mut self, key: Key) {
        let limits = &self.settings.limits;
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        let parked = session.parked_bytes();
        if parked > limits.session_output_hard_bytes as usize {
            let reason = "session_output_hard_bytes: replies of several servers";
            self.close_for(key, reason.to_owned());
        } else if parked > limits.session_output_soft_bytes as usize {
            self.early.push(key);
        }
    }

    /// A part gets no reply. Whether the entry was one.
    pub(crate) fn fail_part(&mut self, entry: Entry, error: &[u8]) -> bool {
        let Some(gather) = self.gather_of(entry) else {
            return false;
        };
        gather.waiting -= 1;
        gather.executed |= !error.starts_with(b"-NOTSENT");
        gather.failure.get_or_insert_with(|| error.to_vec());
        self.finish_gather(entry);
        true
    }

    fn gather_of(&mut self, entry: Entry) -> Option<&mut Gather> {
        let session = self.sessions.get_mut(entry.session)?;
        let gathers = &mut session.rare.as_mut()?.gathers;
        gathers.iter_mut().find(|gather| gather.seq == entry.seq)
    }

    /// The last part makes one reply of all.
    fn finish_gather(&mut self, entry: Entry) {
        let take = |session: &mut Session| {
            let rare = session.rare.as_mut()?;
            let done = |gather: &Gather| gather.seq == entry.seq && gather.waiting == 0;
            let at = rare.gathers.iter().position(done)?;
            let gather = rare.gathers.remove(at)?;
            rare.gathered_bytes -= gather.held_bytes();
            Some(gather)
        };
        let Some(gather) = self.sessions.get_mut(entry.session).and_then(take) else {
            return;
        };
        self.held_bytes -= gather.held_bytes();
        let mut reply = std::mem::take(&mut self.scratch);
        reply.clear();
        let failed = match &gather.failure {
            Some(failure) => {
                reply.extend_from_slice(failure);
                true
            }
            None => {
                let answered = gather.parts.iter();
                let parts: Vec<_> = answered
                    .map(|part| Part {
                        server: &self.servers[usize::from(part.server.0)].label,
                        reply: &part.reply,
                    })
                    .collect();
                let merger = &mut self.merger;
                merger.merge(gather.id, &gather.order, &parts, &mut reply) != Merged::Whole
            }
        };
        if failed && gather.executed && gather.id.get().retry == Retry::Write {
            // What it says is true of its part.
            let why = reply.strip_prefix(b"-").unwrap_or(&reply).trim_ascii_end();
            let why = String::from_utf8_lossy(why);
            let text = format!(
                "UNKNOWN respool: a part of the command was executed, or may have been; {why}"
            );
            reply.clear();
            encode::error(&mut reply, text.as_bytes());
        }
        let reply_to_it = if gather.silent { b"" } else { reply.as_slice() };
        self.deliver(entry.session, entry.seq, 1, reply_to_it);
        // What was large is not kept.
        reply.clear();
        reply.shrink_to(REPLY_BYTES_KEPT);
        self.scratch = reply;
    }
}

fn is_read(request: &Request<'_>) -> bool {
    request.command.retry == Retry::Read
}

//! The by-key hot path: a request with one key, in a pool of several servers.

use respool_protocol::commands::{CommandId, Names};
use respool_protocol::prefix;

use crate::base::handle::SessionId;
use crate::data_plane::DataPlane;
use crate::data_plane::ingress::Request;
use crate::data_plane::ledger::{Class, Entry};
use crate::data_plane::session::Flags;

/// The memory that the scratch buffer keeps between two rewritten requests.
const SCRATCH_BYTES_KEPT: usize = 64 << 10;

impl DataPlane {
    /// Dispatches a request with one key on the hot path of a pool of several servers. False: it
    /// has to take the slow path.
    #[inline]
    pub(crate) fn dispatch_by_key(&mut self, session_id: SessionId, request: &Request<'_>) -> bool {
        let Some(class) = self.direct_classes[request.id.index()] else {
            return false;
        };
        let at = usize::from(request.command.only_key);
        // A command of a module may come without the key that is its only one by the table.
        let has_key =
            (1..request.spans.len()).contains(&at) && request.command.arity_ok(request.spans.len());
        if !has_key {
            return false;
        }
        if !self.goes_by_key(session_id) {
            return self.removes_prefix_by_key(session_id)
                && self.put_without_prefix(session_id, request, at, class);
        }
        let dispatched = self.push_by_key(
            session_id,
            request.bytes,
            request.arg(at),
            (request.id, class),
        );
        if dispatched {
            self.shape_cache
                .learn(request.bytes, request.spans, request.id, class);
        }
        dispatched
    }

    /// Puts a request on the link of its key's owner, if that link accepts it.
    #[inline]
    fn push_by_key(
        &mut self,
        session_id: SessionId,
        bytes: &[u8],
        key: &[u8],
        (id, class): (CommandId, Class),
    ) -> bool {
        let Some(session) = self.sessions.get(session_id) else {
            return false;
        };
        let (any, at) = (session.next_seq, session.server);
        let (subpool, owner) = self.pools.owner_of(session.pool, key, || any);
        let server = match subpool.readers {
            None => Ok(owner),
            Some(_) => self.server_for(session_id, owner, id.get()),
        };
        let Ok(server) = server else {
            return false;
        };
        if server != at {
            self.switch_server(session_id, server);
        }
        let Some(session) = self.sessions.get_mut(session_id) else {
            return false;
        };
        let on = session.link;
        let Some(link) = self.links.get_mut(on).filter(|link| link.accepting()) else {
            return false;
        };
        session.last_command = Some(id);
        let entry = Entry {
            len: bytes.len() as u32,
            command: id.into(),
            class,
            ..Entry::of(session_id, session.take_seq(), self.read_at)
        };
        link.ledger.push(entry, bytes);
        self.counters.link_requests += 1;
        if !link.listed {
            self.list_link(on);
        }
        true
    }

    /// The hot path of a request with one key, the argument `at`. `false`: the slow path must
    /// take the request.
    fn put_without_prefix(
        &mut self,
        session_id: SessionId,
        request: &Request<'_>,
        at: usize,
        class: Class,
    ) -> bool {
        let Some(session) = self
            .sessions
            .get(session_id)
            .filter(|_| request.command.names == Names::None)
        else {
            return false;
        };
        let (key, any) = (request.arg(at), session.next_seq);
        let (subpool, _) = self.pools.owner_of(session.pool, key, || any);
        let prefix = &subpool.removed_prefix[..];
        let how = (request.id, class);
        if prefix.is_empty() {
            return self.push_by_key(session_id, request.bytes, key, how);
        }
        let Some(bare_key) = key.strip_prefix(prefix) else {
            return false;
        };
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        prefix::replace(
            request.bytes,
            request.spans,
            [(at, bare_key)].into_iter(),
            &mut bytes,
        );
        let dispatched = self.push_by_key(session_id, &bytes, key, how);
        bytes.clear();
        bytes.shrink_to(SCRATCH_BYTES_KEPT);
        self.scratch = bytes;
        dispatched
    }

    /// Whether the removal of prefixes is all that keeps a routed session off the hot path.
    fn removes_prefix_by_key(&self, id: SessionId) -> bool {
        let way = Flags::ROUTED | Flags::REWRITES_KEYS;
        let session = self.sessions.get(id);
        session.is_some_and(|session| session.state.off_path() == way && session.pins.is_empty())
    }
}

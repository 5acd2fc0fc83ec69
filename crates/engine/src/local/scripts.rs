//! Scripts that clients have shown: servers get them again after a restart or a failover.
//!
//! ```text
//!   EVAL body, SCRIPT LOAD body   respool remembers the body, in all workers
//!   EVALSHA sha                   SCRIPT LOAD body, EVALSHA sha     the first time on a connection
//!   MULTI, EVALSHA sha, EXEC      SCRIPT LOAD body, MULTI, EVALSHA sha, EXEC
//!   EVALSHA sha, NOSCRIPT         the server has lost it: it gets the body, and the request again
//! ```
//!
//! A client that is connected to a server itself shows its scripts again when it connects again. A
//! client of respool does not see the loss.

mod restore;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use respool_protocol::commands::{Retry, id};
use respool_protocol::{encode, number};
use restore::{LoadingLink, Restored};

use crate::base::handle::{CONFIGURED, LinkId, SessionId};
use crate::base::limits::{SCRIPT_BYTES_MAX, SCRIPTS_LOADED_MAX, SPARED_SCRIPTS_MAX};
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::local::{LocalCompletion, ScriptEffect};
use crate::data_plane::ingress::{Blocked, Dispatched, Request};
use crate::data_plane::ledger::Entry;
use crate::data_plane::ledger::departed::Departed;
use crate::data_plane::scripts::{
    ScriptHash, ScriptSource, ScriptSources, body_at, each_request, is_refusal, name_of, name_said,
    names_in,
};
use crate::data_plane::session::Session;
use crate::data_plane::worker_query::{ScriptQuery, WorkerQuery};
use crate::local::Local;
use crate::routing::pool::ServerId;

/// A script that a client has shown.
struct Script {
    number: u32,
    body: Arc<[u8]>,
    used: ScriptUse,
    shown_by: ScriptSources,
}

/// The last use of a script since it came to the back of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScriptUse {
    Nowhere,
    /// By clients of other workers.
    Elsewhere,
    /// By clients of this worker.
    Here,
}

impl Script {
    /// SCRIPT LOAD of it.
    fn loading(&self) -> Vec<u8> {
        let mut loading = Vec::new();
        encode::request(&mut loading, &[&b"SCRIPT"[..], b"LOAD", &self.body]);
        loading
    }

    fn memory_bytes(&self) -> usize {
        self.body.len() + ENTRY_BYTES + self.shown_by.memory_bytes()
    }
}

/// The bodies of scripts, by the pool of the client that showed them and by their SHA-1.
#[derive(Default)]
pub(crate) struct Scripts {
    scripts: HashMap<(u16, ScriptHash), Script>,
    /// The keys of `scripts`, in the order in which room is made. The first script goes, or comes
    /// to the back if it was used since (second chance, as in the CLOCK algorithm).
    order: VecDeque<(u16, ScriptHash)>,
    bytes: usize,
    next_number: u32,
    /// Pools in which scripts were flushed in this turn.
    flushed: Vec<u16>,
    /// Scripts that were shown in this turn, after the flushes.
    shown: Vec<(u16, ScriptHash)>,
    /// When each server may last have lost its scripts, and its pool.
    lost: HashMap<ServerId, (u16, Time)>,
    /// Links that are connected, and wait for the configured user to load scripts.
    held: Vec<LoadingLink>,
    /// The replies of servers to the configured user.
    restored: Restored,
}

impl Scripts {
    /// A client of this pool has shown a script. Returns its number, unless it is too large.
    fn remember(&mut self, pool: u16, body: &[u8], source: ScriptSource<'_>) -> Option<u32> {
        let place = (pool, name_of(body));
        let is_new = match self.scripts.get_mut(&place) {
            Some(script) => {
                script.used = ScriptUse::Here;
                if script.shown_by.has(source) {
                    return Some(script.number);
                }
                false
            }
            None => {
                self.insert(place, body.into())?;
                true
            }
        };
        let script = self.scripts.get_mut(&place)?;
        let (number, before) = (script.number, script.memory_bytes());
        let is_news = script.shown_by.note(source);
        self.bytes += script.memory_bytes() - before;
        if is_new || is_news {
            self.shown.push(place);
            self.make_room(0);
        }
        Some(number)
    }

    /// A client of another worker has shown a script, or has used it lately.
    pub(crate) fn learn(&mut self, pool: u16, body: Arc<[u8]>, shown_by: &ScriptSources) {
        let place = (pool, name_of(&body));
        match self.scripts.get_mut(&place) {
            Some(script) if script.used == ScriptUse::Nowhere => script.used = ScriptUse::Elsewhere,
            Some(_) => {}
            None => {
                self.insert(place, body);
            }
        }
        if let Some(script) = self.scripts.get_mut(&place) {
            let before = script.memory_bytes();
            script.shown_by.merge(shown_by);
            self.bytes += script.memory_bytes() - before;
            self.make_room(0);
        }
    }

    /// The connection to a server of this pool was lost.
    fn note_lost(&mut self, pool: u16, server: ServerId, now: Time) {
        self.lost.insert(server, (pool, now));
        self.restored.forget(server);
    }

    /// The number of a server is given to another one.
    pub(crate) fn forget_server(&mut self, server: ServerId) {
        self.lost.remove(&server);
        self.restored.forget(server);
    }

    /// The reply of a server to the configured user that loads the script of this number.
    pub(crate) fn note_restored(
        &mut self,
        (server, number): (ServerId, u32),
        reply: &[u8],
        now: Time,
    ) {
        self.restored.note(server, number, reply, now);
    }

    /// When a server may last have lost its scripts, unless a client has flushed them since.
    fn lost_at(&self, server: ServerId) -> Option<Time> {
        self.lost.get(&server).map(|(_, at)| *at)
    }

    /// A client of this worker names a script. Returns whether it is known.
    fn use_named(&mut self, pool: u16, name: ScriptHash) -> bool {
        let script = self.scripts.get_mut(&(pool, name));
        script.map(|script| script.used = ScriptUse::Here).is_some()
    }

    /// Forgets the script that was not used for the longest time. Returns false if there is none.
    fn forget_one(&mut self) -> bool {
        let mut spared = 0;
        while let Some(first) = self.order.pop_front() {
            let Some(script) = self.scripts.get_mut(&first) else {
                continue;
            };
            spared += 1;
            if script.used == ScriptUse::Nowhere || spared > SPARED_SCRIPTS_MAX {
                self.bytes -= script.memory_bytes();
                self.scripts.remove(&first);
                return true;
            }
            if script.used == ScriptUse::Here {
                // Other workers make room, too, and do not see the use.
                self.shown.push(first);
            }
            script.used = ScriptUse::Nowhere;
            self.order.push_back(first);
        }
        false
    }

    fn insert(&mut self, place: (u16, ScriptHash), body: Arc<[u8]>) -> Option<u32> {
        let len = body.len() + ENTRY_BYTES;
        if len > SCRIPT_BYTES_MAX {
            return None;
        }
        self.make_room(len);
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        self.bytes += len;
        self.order.push_back(place);
        let script = Script {
            number,
            body,
            used: ScriptUse::Nowhere,
            shown_by: ScriptSources::default(),
        };
        self.scripts.insert(place, script);
        Some(number)
    }

    /// Forgets scripts until there is room for so many bytes more.
    fn make_room(&mut self, bytes: usize) {
        while self.bytes + bytes > SCRIPT_BYTES_MAX && self.forget_one() {}
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes
    }

    fn find(&self, pool: u16, name: ScriptHash) -> Option<&Script> {
        self.scripts.get(&(pool, name))
    }

    /// Whether scripts were flushed or shown in this turn.
    pub(crate) fn has_news(&self) -> bool {
        !self.flushed.is_empty() || !self.shown.is_empty()
    }

    /// Whether links wait for scripts.
    pub(crate) fn holds_links(&self) -> bool {
        !self.held.is_empty()
    }

    /// Gives a pool the scripts of another one, before sessions move from there to it.
    pub(crate) fn copy(&mut self, from: u16, to: u16) {
        let scripts = self.scripts.iter().filter(|((of, _), _)| *of == from);
        let scripts = scripts.map(|(_, script)| (script.body.clone(), script.shown_by.clone()));
        for (body, shown_by) in scripts.collect::<Vec<_>>() {
            self.learn(to, body, &shown_by);
        }
    }

    /// The scripts of a pool were flushed: from now on NOSCRIPT is the right answer.
    pub(crate) fn forget(&mut self, pool: u16) {
        self.scripts.retain(|(of, _), _| *of != pool);
        self.order.retain(|(of, _)| *of != pool);
        self.shown.retain(|(of, _)| *of != pool);
        self.lost.retain(|_, (of, _)| *of != pool);
        self.bytes = self.scripts.values().map(Script::memory_bytes).sum();
    }
}

/// A script's place in the tables, which may be half empty, and the allocator's bookkeeping.
const ENTRY_BYTES: usize =
    2 * size_of::<((u16, ScriptHash), Script)>() + 2 * size_of::<(u16, ScriptHash)>() + 32;

/// Whether an EVAL counts its keys right. Otherwise the server refuses it.
fn counts_its_keys(args: &[&[u8]]) -> bool {
    let count = args.get(2).and_then(|count| number::parse(count));
    count.is_some_and(|count| (0..=args.len() as i64 - 3).contains(&count))
}

impl Local {
    /// EVAL, EVALSHA and their like.
    pub(crate) fn dispatch_script(
        &mut self,
        plane: &mut DataPlane,
        session_id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        let lane = plane.enter_code_lane(session_id, request);
        plane.on_code_lane(session_id, lane, |plane| {
            self.place_script(plane, session_id, request)
        })
    }

    fn place_script(
        &mut self,
        plane: &mut DataPlane,
        session_id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        let reads = request.command.retry == Retry::Read;
        let completion = match request.id {
            id::EVAL | id::EVAL_RO | id::SCRIPT_LOAD => Some(LocalCompletion::Script),
            id::SCRIPT_FLUSH => Some(LocalCompletion::FlushScripts),
            _ => {
                let named = name_said(request.arg(1));
                match self.load_scripts(plane, session_id, named.as_slice()) {
                    Ok(known) => (known > 0).then_some(LocalCompletion::Evalsha),
                    Err(blocked) => return plane.blocked(session_id, blocked),
                }
            }
        };
        let completion = completion.map(Completion::Local);
        plane.dispatch_on_link(session_id, request.bytes, reads, completion)
    }

    /// Has the server load the scripts that a request names, in front of the request. Returns how
    /// many of them respool knows. The session waits for those that the configured user loads,
    /// unless they are so many that the first ones would be dropped before the last ones are
    /// loaded.
    pub(crate) fn load_scripts(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        names: &[ScriptHash],
    ) -> Result<usize, Blocked> {
        let pool = plane.known_pool(plane.pool_of_session(id));
        let may_wait = names.len() <= SCRIPTS_LOADED_MAX / 2;
        let (mut known, mut waits_at) = (0, None);
        for name in names {
            if self.scripts.use_named(pool, *name) {
                known += 1;
                // A server that holds writes does not hold SCRIPT LOAD.
                let link = plane.usable_link(id)?;
                let waits = match may_wait {
                    true => self.load_as_configured(plane, link, pool, *name),
                    false => None,
                };
                if waits.is_none() {
                    self.load_on(plane, link, pool, *name);
                }
                waits_at = waits.or(waits_at);
            }
        }
        match waits_at {
            Some(at) => Err(plane.wait_at_full(id, at)),
            None => Ok(known),
        }
    }

    /// A connection is lost. Requests that stay on the link may name scripts, which the next server
    /// gets in front of them.
    pub(crate) fn load_again(&mut self, plane: &mut DataPlane, id: LinkId) {
        let Some(link) = plane.links.get_mut(id) else {
            return;
        };
        link.loaded.clear();
        if !link.ledger.any_completion(Completion::names_scripts) {
            return;
        }
        put_in_front(plane, id, |plane, departed| {
            for each in departed {
                if each
                    .completion
                    .as_ref()
                    .is_some_and(Completion::names_scripts)
                {
                    self.load_named_later(plane, id, each.entry.session, &each.request);
                }
            }
        });
    }

    /// The reply to requests that showed scripts. respool remembers the scripts that the server has
    /// now.
    pub(crate) fn settle_script(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        session: SessionId,
        request: &[u8],
        reply: &[u8],
    ) {
        let Some(pool) = plane.known_pool_of(session) else {
            return;
        };
        let was_run = !is_refusal(reply);
        each_request(request, |id, args| {
            let loads = id == Some(id::SCRIPT_LOAD);
            let is_kept = match loads {
                true => !reply.starts_with(b"-"),
                false => was_run && counts_its_keys(args),
            };
            if let Some(body) = id.and_then(body_at).and_then(|at| args.get(at))
                && is_kept
            {
                self.remember_loaded(plane, link, pool, body, loads);
            }
        });
    }

    /// The server has executed a large request of a session that showed this script.
    pub(crate) fn settle_shown(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        session: SessionId,
        body: &[u8],
    ) {
        if let Some(pool) = plane.known_pool_of(session) {
            self.remember_loaded(plane, link, pool, body, false);
        }
    }

    /// Remembers a script that the server of a link has now. `loads`: it was shown by SCRIPT LOAD.
    fn remember_loaded(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        pool: u16,
        body: &[u8],
        loads: bool,
    ) {
        let user = plane.links.get(link).map(|link| link.kind.user);
        let source = match user.filter(|user| *user != CONFIGURED) {
            _ if loads => ScriptSource::Load,
            user => ScriptSource::Run {
                user: user.and_then(|user| plane.logins.name_of(user)),
            },
        };
        let number = self.scripts.remember(pool, body, source);
        if let (Some(number), Some(link)) = (number, plane.links.get_mut(link)) {
            link.loaded.note_loaded(number);
        }
    }

    /// Handles the effect of a request that several servers got.
    pub(crate) fn settle_effect(
        &mut self,
        plane: &mut DataPlane,
        (link, session): (LinkId, SessionId),
        effect: ScriptEffect,
        request: &[u8],
        reply: &[u8],
    ) {
        match effect {
            ScriptEffect::None => {}
            ScriptEffect::Load => self.settle_script(plane, link, session, request, reply),
            ScriptEffect::Flush => self.settle_flush(plane, link, reply),
        }
    }

    /// Handles the reply to several requests. `code`: the requests, if one of them runs code.
    /// `flushes`: one of them flushes the scripts. Returns whether the session is to be closed.
    pub(crate) fn settle_block(
        &mut self,
        plane: &mut DataPlane,
        (link, session): (LinkId, SessionId),
        (code, flushes): (Option<&Vec<u8>>, bool),
        reply: &[u8],
    ) -> bool {
        let is_lost =
            code.is_some_and(|request| self.settle_code(plane, link, session, request, reply));
        if flushes {
            self.settle_flush(plane, link, reply);
        }
        is_lost
    }

    /// Handles the reply to a block that runs code. Remembers the scripts that the block showed. If
    /// the server has lost a script that the block names, the next block sends the script again.
    /// Returns whether the session is to be closed because it names a script that is lost for good.
    fn settle_code(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        session: SessionId,
        request: &[u8],
        reply: &[u8],
    ) -> bool {
        let finds = |text: &[u8]| reply.windows(text.len()).any(|window| window == text);
        if !finds(b"-NOSCRIPT") {
            self.settle_script(plane, link, session, request, reply);
            return false;
        }
        let is_lost = self.has_lost_scripts(plane, link, session, request, reply);
        self.forget_loaded(plane, link);
        is_lost
    }

    /// Handles the reply to an EVALSHA of a known script. Returns whether the server may have lost
    /// the script, so that the request may be sent again after its body. A script may also return
    /// NOSCRIPT itself, after it ran. So respool first asks the server whether it has the script.
    /// If the session has sent requests after this one, they would be executed first, so the client
    /// gets the reply.
    pub(crate) fn settle_evalsha(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        entry: Entry,
        reply: &[u8],
    ) -> bool {
        if !reply.starts_with(b"-NOSCRIPT") {
            return false;
        }
        self.forget_loaded(plane, link);
        let is_last = |session: &Session| {
            session.link == link && session.next_seq == entry.seq.wrapping_add(1)
        };
        plane.sessions.get(entry.session).is_some_and(is_last)
    }

    /// The server does not have the script of an EVALSHA. Sends the body, and the request again
    /// after it. `false`: respool has dropped the body, and the client gets the reply. If the user
    /// may not load scripts, the server answers NOSCRIPT once more, and the client gets that.
    pub(crate) fn send_script_along(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        entry: Entry,
        request: &[u8],
    ) -> bool {
        let pool = plane.known_pool_of(entry.session);
        let named = pool.zip(names_in(request).pop());
        let script = named.and_then(|(pool, name)| self.scripts.find(pool, name));
        let (Some(script), Some(state)) = (script, plane.links.get_mut(link)) else {
            return false;
        };
        let mut bytes = script.loading();
        bytes.extend_from_slice(request);
        let entry = Entry {
            len: bytes.len() as u32,
            ..entry.with_completion(true)
        };
        state.ledger.push_with(entry, &bytes, Completion::behind(1));
        plane.note_repeated();
        plane.counters.scripts_reloaded += 1;
        plane.list_link(link);
        plane.close_if_full(link);
        true
    }

    /// Takes the news of another worker, or of this one.
    pub(crate) fn handle_script_query(&mut self, query: ScriptQuery) {
        match query {
            ScriptQuery::Forget { pool } => self.scripts.forget(pool),
            ScriptQuery::Show {
                pool,
                body,
                shown_by,
            } => self.scripts.learn(pool, body, &shown_by),
        }
    }

    /// The news of this turn for the other workers: scripts that were flushed, then those that were
    /// shown. A script that was shown behind a flush is not to be forgotten.
    pub(crate) fn take_script_news(&mut self) -> Vec<WorkerQuery> {
        let flushed = std::mem::take(&mut self.scripts.flushed).into_iter();
        let flushes = flushed.map(|pool| ScriptQuery::Forget { pool });
        let shown = std::mem::take(&mut self.scripts.shown).into_iter();
        let showings = shown.filter_map(|place| {
            let script = self.scripts.scripts.get(&place)?;
            Some(ScriptQuery::Show {
                pool: place.0,
                body: script.body.clone(),
                shown_by: script.shown_by.clone(),
            })
        });
        flushes.chain(showings).map(WorkerQuery::Script).collect()
    }

    /// Puts SCRIPT LOAD of a known script on a link, unless the connection has it. After SCRIPT
    /// FLUSH the client expects NOSCRIPT, so it is not loaded.
    pub(crate) fn load_on(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        pool: u16,
        name: ScriptHash,
    ) {
        if let (Some(script), Some(state)) =
            (self.scripts.find(pool, name), plane.links.get_mut(link))
            && state.loaded.lacks(script.number)
            && !state.ledger.any_completion(Completion::flushes_scripts)
        {
            state.loaded.note_loaded(script.number);
            let (number, loading) = (script.number, script.loading());
            plane.counters.scripts_reloaded += 1;
            plane.put_ours(
                link,
                &loading,
                Completion::Local(LocalCompletion::Load(number)),
            );
        }
    }

    /// Handles the reply to SCRIPT LOAD in front of a request.
    pub(crate) fn settle_load(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        number: u32,
        reply: &[u8],
    ) {
        if let Some(link) = plane.links.get_mut(link)
            && reply.starts_with(b"-")
        {
            link.loaded.note_refused(number, reply);
        }
    }

    /// Puts requests that have left a link on another one, behind the scripts that they name.
    pub(crate) fn put_moved(&mut self, plane: &mut DataPlane, to: LinkId, moved: Vec<Departed>) {
        if moved.is_empty() {
            return;
        }
        for each in moved {
            if each
                .completion
                .as_ref()
                .is_some_and(Completion::names_scripts)
            {
                self.load_named(plane, to, each.entry.session, &each.request);
            }
            if let Some(link) = plane.links.get_mut(to) {
                link.ledger.push_departed(each);
            }
        }
        plane.list_link(to);
        plane.close_if_full(to);
    }

    /// Puts SCRIPT LOAD on a link for each script that a request names. The request was meant for
    /// another link.
    pub(crate) fn load_named(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        session: SessionId,
        request: &[u8],
    ) {
        let Some(pool) = plane.known_pool_of(session) else {
            return;
        };
        for name in names_in(request) {
            self.load_on(plane, link, pool, name);
        }
    }

    /// The reply to a SCRIPT FLUSH, or to a block with one. A client that flushes expects NOSCRIPT
    /// from then on, so all workers forget the bodies. The client may have left meanwhile.
    pub(crate) fn settle_flush(&mut self, plane: &mut DataPlane, link: LinkId, reply: &[u8]) {
        let server = plane.links.get(link).map(|link| link.kind.server);
        if let Some(server) = server.filter(|_| !reply.starts_with(b"-")) {
            let pool = plane.known_pool(plane.pool_of(server).parent);
            self.scripts.forget(pool);
            if !self.scripts.flushed.contains(&pool) {
                self.scripts.flushed.push(pool);
            }
        }
    }

    fn forget_loaded(&mut self, plane: &mut DataPlane, link: LinkId) {
        if let Some(link) = plane.links.get_mut(link) {
            link.loaded.clear();
            self.scripts.restored.forget(link.kind.server);
        }
    }
}

/// Puts requests, by `put`, in front of all requests of a link that is not up.
fn put_in_front(plane: &mut DataPlane, id: LinkId, put: impl FnOnce(&mut DataPlane, &[Departed])) {
    let Some(link) = plane.links.get_mut(id) else {
        return;
    };
    let departed = link.take_departing(|_, _| true);
    put(plane, &departed);
    let Some(link) = plane.links.get_mut(id) else {
        return;
    };
    for each in departed {
        link.ledger.push_departed(each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// EVAL of the configured user.
    const RUN: ScriptSource<'static> = ScriptSource::Run { user: None };

    fn has(scripts: &Scripts, pool: u16, digest: &[u8]) -> bool {
        name_said(digest).is_some_and(|name| scripts.find(pool, name).is_some())
    }

    /// Redis's name of a script is the SHA-1 of its body.
    #[test]
    fn script_is_found_by_its_sha1() {
        let mut scripts = Scripts::default();
        scripts.remember(0, b"return 1", RUN);
        // The reply to SCRIPT LOAD "return 1".
        let name = b"e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
        assert!(has(&scripts, 0, name));
        assert!(has(&scripts, 0, &name.to_ascii_uppercase()));
        assert!(!has(&scripts, 0, &name[1..]));
        // Another pool has the script only after one of its own clients has shown it. A pool that
        // forgets it leaves it to the other.
        assert!(!has(&scripts, 1, name));
        scripts.remember(1, b"return 1", RUN);
        scripts.forget(0);
        assert!(!has(&scripts, 0, name));
        assert!(has(&scripts, 1, name));
        assert_eq!(scripts.bytes, b"return 1".len() + ENTRY_BYTES);
    }

    /// The memory of bodies is bounded: the oldest unused scripts are dropped.
    #[test]
    fn scripts_are_dropped_at_the_bound() {
        let mut scripts = Scripts::default();
        let body = |size: usize| vec![b'x'; 200_000 + size];
        for size in 0..40 {
            let user = format!("user{}", "x".repeat(100 * size));
            for user in [None, Some(&user[..])] {
                scripts.remember(size as u16 % 3, &body(size), ScriptSource::Run { user });
            }
            let all = scripts.scripts.values();
            let held: usize = all.map(Script::memory_bytes).sum();
            assert_eq!(held, scripts.bytes);
            assert!(held <= SCRIPT_BYTES_MAX);
            assert_eq!(scripts.scripts.len(), scripts.order.len());
        }
        let kept = |size: usize| {
            scripts
                .find(size as u16 % 3, name_of(&body(size)))
                .is_some()
        };
        assert!(!kept(0) && kept(25) && kept(39));
        let large = vec![b'x'; SCRIPT_BYTES_MAX + 1];
        assert_eq!(scripts.remember(0, &large, RUN), None);
        assert!(!scripts.scripts.is_empty());
    }

    /// Fills the memory for scripts once, with one of 6 KB at a time, and calls `each` between.
    fn fill(scripts: &mut Scripts, mut each: impl FnMut(&mut Scripts)) {
        for number in 0..900 {
            let other = format!("return {number} --{}", "z".repeat(6_000));
            scripts.remember(0, other.as_bytes(), RUN);
            each(scripts);
        }
    }

    /// A script that is used again and again is not dropped, however many come after it.
    #[test]
    fn script_in_use_is_not_forgotten() {
        let mut scripts = Scripts::default();
        let [named, shown, unused] = [&b"return 1"[..], b"return 2", b"return 3"];
        for body in [named, shown, unused] {
            scripts.remember(0, body, RUN);
        }
        fill(&mut scripts, |scripts| {
            assert!(scripts.use_named(0, name_of(named)));
            scripts.remember(0, shown, RUN);
        });
        assert!(scripts.find(0, name_of(named)).is_some());
        assert!(scripts.find(0, name_of(shown)).is_some());
        assert!(scripts.find(0, name_of(unused)).is_none());
        assert!(scripts.bytes <= SCRIPT_BYTES_MAX);
        // Once it is used no more, it goes.
        fill(&mut scripts, |_| {});
        fill(&mut scripts, |_| {});
        assert!(scripts.find(0, name_of(named)).is_none());
    }

    /// A worker does not see the uses on other workers, so they tell it.
    #[test]
    fn script_used_on_another_worker_is_kept() {
        let (mut here, mut there) = (Scripts::default(), Scripts::default());
        let name = name_of(b"return 1");
        let tell = |from: &mut Scripts, to: &mut Scripts| {
            for place in std::mem::take(&mut from.shown) {
                if let Some(script) = from.scripts.get(&place) {
                    to.learn(place.0, script.body.clone(), &script.shown_by);
                }
            }
        };
        here.remember(0, b"return 1", RUN);
        fill(&mut here, |here| {
            here.use_named(0, name);
            tell(here, &mut there);
            tell(&mut there, here);
        });
        assert!(there.find(0, name).is_some());
        // Workers that only tell each other of a script do not keep it.
        for _ in 0..4 {
            fill(&mut here, |here| {
                tell(here, &mut there);
                tell(&mut there, here);
            });
            fill(&mut there, |there| {
                tell(there, &mut here);
                tell(&mut here, there);
            });
        }
        assert!(here.find(0, name).is_none() && there.find(0, name).is_none());
    }

    /// A script that was shown behind a flush is not forgotten by other workers. News are told
    /// once.
    #[test]
    fn flush_is_told_before_scripts_behind_it() {
        let mut local = Local::default();
        assert!(!local.scripts.has_news());
        local.scripts.remember(0, b"return 1", RUN);
        local.scripts.forget(0);
        local.scripts.flushed.push(0);
        local.scripts.remember(0, b"return 2", RUN);
        assert!(local.scripts.has_news());
        let news = local.take_script_news();
        let [
            WorkerQuery::Script(ScriptQuery::Forget { pool: 0 }),
            WorkerQuery::Script(ScriptQuery::Show { pool: 0, body, .. }),
        ] = &news[..]
        else {
            panic!("{news:?}");
        };
        assert_eq!(&**body, b"return 2");
        assert!(!local.scripts.has_news());
    }
}

//! Scripts that the user of a session may not load, and sessions that have lost their scripts.
//!
//! A script is loaded in front of the request that names it, as the user of the session. That takes
//! the right to SCRIPT LOAD, which a user with the right to EVAL may lack. Then the link of the
//! configured user loads the script, and the request waits for the reply:
//!
//! ```text
//!   link of the configured user   SCRIPT LOAD body ─► its name
//!   link of the session's user                          └─► MULTI, EVALSHA sha, EXEC
//! ```
//!
//! A server keeps its scripts for all connections. So one reply counts for the links of all users,
//! until a connection to the server is lost or the server says NOSCRIPT. Each script is under way
//! once, so no more than `SCRIPT_BYTES_MAX` is.
//!
//! Requests that outlive the connection of their link name scripts, too. Such a link waits for a
//! short time once it is connected.
//!
//! A script is restored so only for users that have shown it by EVAL, or for all users if one has
//! shown it by SCRIPT LOAD: a server without a restart would have it. The server checks the right
//! to EVALSHA as before. If the configured user may not load scripts, the request leaves after a
//! SCRIPT LOAD of the session's user.
//!
//! A script may be lost for good: respool has dropped it, or no user may load it. A client that
//! names it in a transaction would get NOSCRIPT for ever, since it has shown the script on this
//! connection. So the connection is closed after that reply, as the restart of the server would
//! have closed it.

use std::collections::HashMap;

use crate::base::handle::{CONFIGURED, LinkId, SessionId};
use crate::base::limits::{SCRIPTS_LOADED_MAX, SCRIPTS_REFUSED_MS, SCRIPTS_WAIT_MS};
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::actions::Event;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::local::LocalCompletion;
use crate::data_plane::completion::local::Subject;
use crate::data_plane::link::{LinkState, Streaming};
use crate::data_plane::reply_elements::elements_of;
use crate::data_plane::scripts::{ScriptHash, ScriptLoad, names_in};
use crate::data_plane::session::Flags;
use crate::local::Local;
use crate::local::scripts::{Script, put_in_front};
use crate::routing::pool::ServerId;

/// A link that is connected, and waits for the configured user to load scripts.
pub(crate) struct LoadingLink {
    pub(crate) link: LinkId,
    /// The end of its handshake.
    since: Time,
    /// The pools and names of the scripts that requests on it name.
    scripts: Vec<(u16, ScriptHash)>,
}

/// The replies of servers to SCRIPT LOAD by the configured user, by the numbers of scripts. Call
/// [`Restored::note`] for each reply and [`Restored::forget`] when a server may have lost its
/// scripts. Time never runs back.
#[derive(Debug, Default)]
pub(super) struct Restored {
    servers: HashMap<ServerId, HashMap<u32, (ScriptLoad, Time)>>,
}

impl Restored {
    /// The server has replied to SCRIPT LOAD.
    pub(super) fn note(&mut self, server: ServerId, number: u32, reply: &[u8], now: Time) {
        let loading = match reply.starts_with(b"-") {
            true => ScriptLoad::Untried,
            false => ScriptLoad::Sent,
        };
        let scripts = self.servers.entry(server).or_default();
        if scripts.len() >= SCRIPTS_LOADED_MAX && !scripts.contains_key(&number) {
            scripts.clear();
        }
        scripts.insert(number, (loading, now));
    }

    /// The server may have lost its scripts.
    pub(super) fn forget(&mut self, server: ServerId) {
        self.servers.remove(&server);
    }

    /// The last reply of a server, if it still counts. A refusal counts for [`SCRIPTS_REFUSED_MS`].
    fn last_load(&self, server: ServerId, number: u32, now: Time) -> Option<ScriptLoad> {
        let (loading, at) = *self.servers.get(&server)?.get(&number)?;
        let counts = loading == ScriptLoad::Sent || now.since_ms(at) < SCRIPTS_REFUSED_MS;
        counts.then_some(loading)
    }
}

impl Local {
    /// Has the configured user load a script that a request on this link names, if the user of the
    /// link needs that. Returns the link on which the session waits for the reply.
    pub(super) fn load_as_configured(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        pool: u16,
        name: ScriptHash,
    ) -> Option<LinkId> {
        let number = self.script_to_restore(plane, link, pool, name)?.number;
        let state = plane.links.get_mut(link)?;
        let server = state.kind.server;
        if let Some(loading) = self.scripts.restored.last_load(server, number, plane.now) {
            state.loaded.note(number, loading);
            return None;
        }
        let first = plane.shared_link(plane.default_kind(server))?;
        match plane.links.get(first)?.state {
            // Requests on it fail: the server is away for long, or refuses the configured user.
            LinkState::Backoff { .. } => return None,
            LinkState::Down => plane.connect(first),
            LinkState::Lost
            | LinkState::Retrying { .. }
            | LinkState::Connecting { .. }
            | LinkState::Handshaking { .. } => {}
            LinkState::Up => {
                let subject = Subject::Script { number };
                if self.begin_question(plane, (server, CONFIGURED), subject.clone(), first) {
                    let loading = self.scripts.find(pool, name)?.loading();
                    plane.put_ours(
                        first,
                        &loading,
                        Completion::Local(LocalCompletion::Learn(subject)),
                    );
                    plane.counters.scripts_reloaded += 1;
                }
            }
        }
        Some(first)
    }

    /// A script that the configured user is to load for requests on this link.
    fn script_to_restore(
        &self,
        plane: &DataPlane,
        link: LinkId,
        pool: u16,
        name: ScriptHash,
    ) -> Option<&Script> {
        let state = plane.links.get(link)?;
        let user = Some(state.kind.user).filter(|user| *user != CONFIGURED)?;
        let script = self.scripts.find(pool, name)?;
        // Behind SCRIPT FLUSH the client expects NOSCRIPT.
        let is_new = !state.loaded.knows(script.number)
            && !state.ledger.any_completion(Completion::flushes_scripts);
        let name = plane.logins.name_of(user);
        let is_admitted = || name.is_some_and(|user| script.shown_by.admits(user));
        (is_new && is_admitted()).then_some(script)
    }

    /// Loads the scripts of a request that stays on a link that is not up: in front of the request,
    /// or later by the configured user.
    pub(super) fn load_named_later(
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
            if self.script_to_restore(plane, link, pool, name).is_none() {
                self.load_on(plane, link, pool, name);
            } else if let Some(link) = plane.links.get_mut(link) {
                link.loaded.later.push((pool, name));
            }
        }
    }

    /// A link has finished its handshake. Returns whether it waits until the configured user has
    /// loaded scripts.
    pub(crate) fn waits_for_scripts(&mut self, plane: &mut DataPlane, link: LinkId) -> bool {
        let Some(state) = plane.links.get_mut(link) else {
            return false;
        };
        let mut scripts = std::mem::take(&mut state.loaded.later);
        scripts.sort_unstable();
        scripts.dedup();
        scripts.truncate(SCRIPTS_LOADED_MAX / 2);
        let since = plane.now;
        let held = LoadingLink {
            link,
            since,
            scripts,
        };
        self.hold_for_scripts(plane, held)
    }

    fn hold_for_scripts(&mut self, plane: &mut DataPlane, held: LoadingLink) -> bool {
        let mut waits = false;
        for (pool, name) in &held.scripts {
            waits |= self
                .load_as_configured(plane, held.link, *pool, *name)
                .is_some();
        }
        let is_young = plane.now.since_ms(held.since) < SCRIPTS_WAIT_MS;
        if waits && is_young {
            self.scripts.held.push(held);
            return true;
        }
        // The link's own user loads the scripts that the configured user has not loaded.
        let lacks = |(pool, name): &(u16, ScriptHash)| {
            let script = self.scripts.find(*pool, *name);
            let state = plane.links.get(held.link);
            script.zip(state).is_some_and(|(script, link)| {
                // The first fragment of a large request is not a whole request, and stays after all
                // others.
                link.streaming == Streaming::No && link.loaded.lacks(script.number)
            })
        };
        if held.scripts.iter().any(lacks) {
            put_in_front(plane, held.link, |plane, _| {
                for (pool, name) in &held.scripts {
                    self.load_on(plane, held.link, *pool, *name);
                }
            });
        }
        false
    }

    /// The links that wait for scripts. Each is looked at once, by [`Local::may_open`].
    pub(crate) fn take_held_links(&mut self) -> Vec<LoadingLink> {
        std::mem::take(&mut self.scripts.held)
    }

    /// Whether a link that has waited for scripts may open: the scripts are loaded, or cannot be,
    /// or the time is over. Otherwise the link waits on, unless it was lost.
    pub(crate) fn may_open(&mut self, plane: &mut DataPlane, held: LoadingLink) -> bool {
        // The link may have been lost since, and be in its next handshake.
        let is_handshake_done = plane.links.get(held.link).is_some_and(|link| {
            matches!(&link.state, LinkState::Handshaking { handshake, .. } if handshake.is_done())
        });
        is_handshake_done && !self.hold_for_scripts(plane, held)
    }
}

impl Local {
    /// Whether the reply to a transaction is NOSCRIPT for a script that cannot be restored, in a
    /// session that is older than the loss of the scripts.
    pub(crate) fn has_lost_scripts(
        &self,
        plane: &DataPlane,
        link: LinkId,
        session: SessionId,
        request: &[u8],
        reply: &[u8],
    ) -> bool {
        let (Some(state), Some(session)) = (plane.links.get(link), plane.sessions.get(session))
        else {
            return false;
        };
        let is_older = |lost| session.accepted_at <= lost;
        if !self
            .scripts
            .lost_at(state.kind.server)
            .is_some_and(is_older)
        {
            return false;
        }
        let pool = plane.known_pool(session.pool);
        let is_lost = |name: &ScriptHash| match self.scripts.find(pool, *name) {
            Some(script) => state.loaded.is_denied(script.number),
            None => true,
        };
        let says_so = |elements: Vec<&[u8]>| {
            elements
                .iter()
                .any(|element| element.starts_with(b"-NOSCRIPT"))
        };
        elements_of(reply).is_some_and(says_so) && names_in(request).iter().any(is_lost)
    }

    /// Closes a session after the reply with NOSCRIPT for a lost script.
    pub(crate) fn close_for_lost_scripts(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        session_id: SessionId,
    ) {
        let Some(session) = plane.sessions.get(session_id) else {
            return;
        };
        if session.state.is_closing() || session.state.any(Flags::STEPS) {
            // Requests of its transaction are answered by respool, and their replies are still to
            // come.
            return;
        }
        let peer = session.peer.to_string();
        let server = plane.label(link);
        let reason = format!(
            "scripts lost: {server} has lost a script since this session connected, and it cannot \
             be loaded again: the client has to show it anew"
        );
        plane.counters.sessions_closed_by_us += 1;
        plane.emit(Event::SessionClosed { peer, reason });
        plane.close_when_answered(session_id);
    }

    /// A shared link to a server was lost: another process without scripts may be there next.
    pub(crate) fn note_scripts_lost(&mut self, plane: &mut DataPlane, server: ServerId) {
        let pool = plane.known_pool(plane.pool_of(server).parent);
        self.scripts.note_lost(pool, server, plane.now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that took a script has it until a connection is lost. A refusal counts for a while.
    #[test]
    fn reply_counts_for_all_links_of_a_server() {
        let (server, other) = (ServerId(0), ServerId(1));
        let (mut restored, now) = (Restored::default(), Time(0));
        restored.note(server, 1, b"$2\r\nid\r\n", now);
        restored.note(server, 2, b"-NOPERM no\r\n", now);
        let soon = now.plus_ms(SCRIPTS_REFUSED_MS as u32 - 1);
        assert_eq!(restored.last_load(server, 1, soon), Some(ScriptLoad::Sent));
        assert_eq!(
            restored.last_load(server, 2, soon),
            Some(ScriptLoad::Untried)
        );
        assert_eq!(restored.last_load(other, 1, soon), None);
        let later = now.plus_ms(SCRIPTS_REFUSED_MS as u32);
        assert_eq!(restored.last_load(server, 1, later), Some(ScriptLoad::Sent));
        assert_eq!(restored.last_load(server, 2, later), None);
        restored.forget(server);
        assert_eq!(restored.last_load(server, 1, later), None);
        for number in 0..2 * SCRIPTS_LOADED_MAX as u32 {
            restored.note(server, number, b"+OK\r\n", now);
        }
        assert!(restored.servers[&server].len() <= SCRIPTS_LOADED_MAX);
    }
}

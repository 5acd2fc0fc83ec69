//! Flows of scripts: requests that name one, and news for other workers.

use respool_protocol::commands::{Retry, id};

use crate::base::handle::SessionId;
use crate::base::limits::SCRIPTS_LOADED_MAX;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::local::LocalCompletion;
use crate::data_plane::ingress::{Blocked, Dispatched, Request};
use crate::data_plane::scripts::{ScriptHash, name_said};
use crate::engine::Engine;

impl Engine {
    /// EVAL, EVALSHA and their like.
    pub(crate) fn dispatch_script(
        &mut self,
        session_id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        let reads = request.command.retry == Retry::Read;
        let completion = match request.id {
            id::EVAL | id::EVAL_RO | id::SCRIPT_LOAD => {
                Some(Completion::Local(LocalCompletion::Script))
            }
            id::SCRIPT_FLUSH => Some(Completion::Local(LocalCompletion::FlushScripts)),
            _ => match self.load_scripts(session_id, name_said(request.arg(1)).as_slice()) {
                Ok(known) => (known > 0).then_some(Completion::Local(LocalCompletion::Evalsha)),
                Err(blocked) => return self.plane.blocked(session_id, blocked),
            },
        };
        self.plane
            .dispatch_on_link(session_id, request.bytes, reads, completion)
    }

    /// Has the server load the scripts that a request names, in front of the request. Returns how
    /// many of them respool knows. The session waits for those that the configured user loads,
    /// unless they are so many that the first ones would be dropped before the last ones are
    /// loaded.
    pub(crate) fn load_scripts(
        &mut self,
        id: SessionId,
        names: &[ScriptHash],
    ) -> Result<usize, Blocked> {
        let pool = self.plane.pool_of_session(id);
        let may_wait = names.len() <= SCRIPTS_LOADED_MAX / 2;
        let (mut known, mut waits_at) = (0, None);
        for name in names {
            if self.local.scripts.use_named(pool, *name) {
                known += 1;
                // A server that holds writes does not hold SCRIPT LOAD.
                let link = self.plane.usable_link(id)?;
                let waits =
                    self.local
                        .load_in_front(&mut self.plane, link, (pool, *name), may_wait);
                waits_at = waits.or(waits_at);
            }
        }
        match waits_at {
            Some(at) => Err(self.plane.wait_at_full(id, at)),
            None => Ok(known),
        }
    }

    /// Opens links that have waited for scripts.
    pub(crate) fn open_links_with_scripts(&mut self) {
        for held in self.local.take_held_links() {
            let link = held.link;
            if self.local.may_open(&mut self.plane, held) {
                self.link_is_up(link);
            }
        }
    }

    /// Tells the other workers which scripts were flushed and shown in this turn.
    pub(crate) fn tell_scripts(&mut self) {
        for news in self.local.take_script_news() {
            self.admin.tell_others(&mut self.plane, &news);
        }
    }
}

//! Requests with commands that the table lacks: respool asks the server about the command.

use respool_protocol::commands::{self};
use respool_protocol::request::Span;

use crate::base::error_text::{
    NO_KEYS, NOAUTH, UNKNOWN_KEYS, not_in_subscription, unknown_command,
};
use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::ingress::Dispatched;
use crate::data_plane::learned_commands::{CommandInfo, LearnedKeySpec};
use crate::data_plane::link::Link;
use crate::data_plane::owners::Opening;
use crate::data_plane::quick_code::CodeLane;
use crate::data_plane::session::{Flags, Pins};
use crate::engine::Engine;
use crate::local::catalog::{may_be_a_name, stays_open};
impl Engine {
    /// Identifies a large request by its first arguments. The session may have to wait for the
    /// server's answer.
    pub(crate) fn identify(
        &mut self,
        session_id: SessionId,
        args: &[&[u8]],
        argc: usize,
    ) -> Result<Opening, Dispatched> {
        let arg = |index: usize| args.get(index).copied().unwrap_or_default();
        if let Some(id) = commands::resolve(argc, arg) {
            return Ok(Opening::Row(id));
        }
        let name = arg(0).to_ascii_lowercase();
        let unauthenticated = self
            .plane
            .sessions
            .get(session_id)
            .is_none_or(|session| session.flags.any(Flags::UNAUTHENTICATED));
        if unauthenticated || !may_be_a_name(&name) {
            return Ok(Opening::Nothing);
        }
        self.switch_to_informed_server(session_id, args.get(1).copied());
        Ok(
            match self.local.info_of(&mut self.plane, session_id, name)? {
                CommandInfo::Renamed(id) => Opening::Row(id),
                CommandInfo::Shared { reads, .. } => Opening::Learned {
                    alone: false,
                    reads,
                },
                CommandInfo::Alone { .. } | CommandInfo::Unsaid { .. } => Opening::Learned {
                    alone: true,
                    reads: false,
                },
                CommandInfo::Nothing { .. } => Opening::Nothing,
            },
        )
    }

    /// In a pool of several servers, only some may have a module. Most commands name their first
    /// key at once, so the owner of that key is asked, or another server if the owner is away.
    fn switch_to_informed_server(&mut self, id: SessionId, first: Option<&[u8]>) {
        if self.plane.has_several_owners(id) {
            if let Some(first) = first {
                let queued = self.plane.queued_group(id);
                self.plane.switch_to_owner(id, first, queued);
            }
            self.switch_from_dead_if_free(id);
        }
    }

    /// A request whose command the table does not have.
    pub(crate) fn dispatch_unknown(
        &mut self,
        session_id: SessionId,
        bytes: &[u8],
        spans: &[Span],
    ) -> Dispatched {
        self.plane.switch_from_replica(session_id, None);
        self.switch_to_informed_server(session_id, spans.get(1).map(|name| name.of(bytes)));
        let name = spans[0].of(bytes).to_ascii_lowercase();
        if name == b"post" || name == b"host:" {
            // A browser was tricked into talking to respool: the rest of its request is not the
            // user's will. Redis closes such a connection, too (`securityWarningCommand`).
            let reason = "it speaks HTTP: possibly an attack by way of a browser";
            self.plane.close_for(session_id, reason.to_owned());
            return Dispatched::Done;
        }
        let flags = self
            .plane
            .sessions
            .get(session_id)
            .map(|session| session.flags)
            .unwrap_or_default();
        let in_multi = flags.any(Flags::IN_MULTI);
        let unauthenticated = flags.any(Flags::UNAUTHENTICATED);
        let lesson = match unauthenticated || !may_be_a_name(&name) {
            true => CommandInfo::Nothing { at: self.plane.now },
            false => match self
                .local
                .info_of(&mut self.plane, session_id, name.clone())
            {
                Ok(lesson) => lesson,
                Err(placed) => return placed,
            },
        };
        let keys = match lesson {
            CommandInfo::Shared { keys, .. } | CommandInfo::Alone { keys } => Some(keys),
            CommandInfo::Unsaid { .. } => Some(LearnedKeySpec::Unsaid),
            CommandInfo::Renamed(_) | CommandInfo::Nothing { .. } => None,
        };
        if let Some(keys) = keys
            && self.plane.has_several_owners(session_id)
        {
            let arg = |at: usize| spans[at].of(bytes);
            let refusal = match keys {
                LearnedKeySpec::Unsaid => UNKNOWN_KEYS,
                LearnedKeySpec::At { .. } | LearnedKeySpec::None => NO_KEYS,
            };
            let places = keys.places(spans.len());
            let queued = self.plane.queued_group(session_id);
            let routed = self
                .plane
                .switch_to_keys(session_id, (places, arg), refusal, queued);
            match routed {
                Ok(Some(group)) if in_multi => {
                    self.plane.bind_transaction(session_id, group);
                }
                Ok(_) => {}
                Err(text) => return self.plane.refuse_queued(session_id, text),
            }
        }
        if keys.is_some() && flags.any(Flags::RESTRICTED) {
            return self.plane.answer_error(
                session_id,
                &not_in_subscription(&name, self.plane.is_before_7(session_id)),
            );
        }
        let held = match lesson {
            CommandInfo::Shared { reads, .. } => self.plane.pauses(session_id, || !reads),
            CommandInfo::Alone { .. } | CommandInfo::Unsaid { .. } => {
                self.plane.pauses(session_id, || true)
            }
            CommandInfo::Renamed(_) | CommandInfo::Nothing { .. } => false,
        };
        if held {
            return self.plane.hold_for_pause(session_id);
        }
        // An unknown command may write, too: a module may have been loaded meanwhile.
        if !matches!(
            lesson,
            CommandInfo::Renamed(_) | CommandInfo::Shared { reads: true, .. }
        ) {
            self.plane.note_write(session_id);
        }
        match lesson {
            CommandInfo::Renamed(id) => {
                let sub = spans.get(1).filter(|_| id.get().is_container());
                let sub = sub.and_then(|name| commands::lookup_sub(id, name.of(bytes)));
                self.dispatch_known(session_id, bytes, spans, sub.unwrap_or(id))
            }
            // Servers see keys without their prefix here, so the request must not reach a command
            // that was added just now.
            CommandInfo::Nothing { .. }
                if unauthenticated || in_multi || self.plane.removes_prefix(session_id) =>
            {
                if self.plane.is_silent_before_auth(session_id) {
                    return self.plane.answer_error(session_id, NOAUTH);
                }
                let args: Vec<&[u8]> = spans.iter().map(|span| span.of(bytes)).collect();
                self.plane.refuse_queued(
                    session_id,
                    &unknown_command(&args, self.plane.is_before_7(session_id)),
                )
            }
            // The server writes its own error.
            CommandInfo::Nothing { .. } => self.dispatch_on_link(session_id, bytes, false, None),
            _ if in_multi => {
                let taints = !matches!(lesson, CommandInfo::Shared { .. });
                self.queue_unknown(session_id, bytes, taints)
            }
            CommandInfo::Shared { reads, .. } => {
                let lane = self.plane.enter_code_lane_with(session_id, bytes);
                if lane == CodeLane::Waits {
                    return Dispatched::Wait;
                }
                let placed = self.dispatch_on_link(session_id, bytes, reads, None);
                self.plane.leave_code_lane(session_id, lane);
                placed
            }
            CommandInfo::Alone { .. } | CommandInfo::Unsaid { .. } => {
                let mut pins = Pins::ONCE;
                pins.add(Pins::UNKNOWN);
                self.dispatch_alone(session_id, bytes, (false, None), pins, true)
            }
        }
    }

    /// Handles the replies to a MULTI and the EXEC after it. If only MULTI is accepted, the link is
    /// stuck in a transaction and is closed.
    pub(crate) fn settle_probe(&mut self, link: LinkId, opened: &[u8], executed: &[u8]) {
        let of_link = |link: &Link| (link.kind.server, link.kind.user);
        let Some(whose) = self.plane.links.get(link).map(of_link) else {
            return;
        };
        if stays_open(opened, executed) {
            self.plane
                .lose_link(link, "it opens transactions and does not execute them");
            // The loss drops the answers known before.
            self.settle_losses();
        }
        let replies = [opened, executed];
        self.local
            .settle_probe(&mut self.plane, link, whose, replies);
    }
}

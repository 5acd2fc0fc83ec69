//! Requests with commands that the table lacks: respool asks the server about the command, and
//! judges the request by the answer.

use respool_protocol::commands::{self, CommandId};
use respool_protocol::request::Span;

use crate::base::error_text::{
    NO_KEYS, NOAUTH, UNKNOWN_KEYS, not_in_subscription, unknown_command,
};
use crate::base::handle::SessionId;
use crate::data_plane::DataPlane;
use crate::data_plane::ingress::Dispatched;
use crate::data_plane::learned_commands::{CommandInfo, LearnedKeySpec};
use crate::data_plane::owners::LeadingCommand;
use crate::data_plane::session::{Flags, Pins};
use crate::local::Local;
use crate::local::catalog::may_be_a_name;
use crate::local::report_command::RESPOOL;

/// A request with a command that the table lacks.
pub(crate) struct UnknownRequest<'a> {
    bytes: &'a [u8],
    spans: &'a [Span],
    /// The name of the command, in lower case.
    name: Vec<u8>,
}

impl<'a> UnknownRequest<'a> {
    /// `spans`: at least one.
    pub(crate) fn new(bytes: &'a [u8], spans: &'a [Span]) -> UnknownRequest<'a> {
        let name = spans[0].of(bytes).to_ascii_lowercase();
        UnknownRequest { bytes, spans, name }
    }

    fn arg(&self, index: usize) -> &'a [u8] {
        self.spans[index].of(self.bytes)
    }

    /// Whether it is for respool itself.
    pub(crate) fn is_report(&self) -> bool {
        self.name == RESPOOL
    }

    /// The arguments behind the name.
    pub(crate) fn args(&self) -> Vec<&'a [u8]> {
        let bytes = self.bytes;
        self.spans[1..].iter().map(|span| span.of(bytes)).collect()
    }

    /// The first argument behind the name.
    fn first(&self) -> Option<&'a [u8]> {
        self.spans.get(1).map(|first| first.of(self.bytes))
    }

    /// Whether a browser was tricked into talking to respool: the rest of its request is not the
    /// user's will. Redis closes such a connection, too (`securityWarningCommand`).
    fn is_http(&self) -> bool {
        matches!(&self.name[..], b"post" | b"host:")
    }

    /// The row of the command that the server has by another name. A container's subcommand has a
    /// row of its own.
    fn row_of(&self, renamed: CommandId) -> CommandId {
        let sub = self.first().filter(|_| renamed.get().is_container());
        let sub = sub.and_then(|name| commands::lookup_sub(renamed, name));
        sub.unwrap_or(renamed)
    }
}

/// The way of a request with a command that the table lacks, as the server's answer decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnknownWay {
    /// It was placed, refused, or waits.
    Dispatched(Dispatched),
    /// It is this command of the table by another name.
    Known(CommandId),
    /// It is queued until EXEC. `taints`: its link must not be used by others afterwards.
    Queue { taints: bool },
}

/// The outcome for a request with a command that the table lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnknownOutcome {
    /// A subscriber must not send it.
    RefuseSubscriber,
    /// It waits for the end of a pause.
    Hold,
    /// It is a command of the table by another name.
    Known(CommandId),
    /// respool writes the error: the request must not reach the server.
    RefuseUnknown,
    /// The server gets it and writes its own error.
    AskServer,
    /// It is queued until EXEC. `taints`: its link must not be used by others afterwards.
    Queue { taints: bool },
    /// It goes to a shared link.
    SharedLink { reads: bool },
    /// It gets a link of its own.
    Dedicated,
}

/// The state of a session, as far as it decides about a request with an unknown command.
#[derive(Clone, Copy, Debug, Default)]
struct UnknownFacts {
    is_unauthenticated: bool,
    in_multi: bool,
    /// The session has subscribed, and its protocol version allows few commands then.
    is_restricted: bool,
    /// A pause holds the request.
    is_paused: bool,
    /// Servers see keys without their prefix.
    removes_prefix: bool,
}

fn outcome_of(info: CommandInfo, facts: UnknownFacts) -> UnknownOutcome {
    // Servers see keys without their prefix in some pools, so the request must not reach a command
    // that was added just now.
    let stays_here = facts.is_unauthenticated || facts.in_multi || facts.removes_prefix;
    match info {
        CommandInfo::Renamed(id) => UnknownOutcome::Known(id),
        CommandInfo::Nothing { .. } if stays_here => UnknownOutcome::RefuseUnknown,
        CommandInfo::Nothing { .. } => UnknownOutcome::AskServer,
        _ if facts.is_restricted => UnknownOutcome::RefuseSubscriber,
        _ if facts.is_paused => UnknownOutcome::Hold,
        CommandInfo::Shared { .. } if facts.in_multi => UnknownOutcome::Queue { taints: false },
        _ if facts.in_multi => UnknownOutcome::Queue { taints: true },
        CommandInfo::Shared { reads, .. } => UnknownOutcome::SharedLink { reads },
        CommandInfo::Alone { .. } | CommandInfo::Unreported { .. } => UnknownOutcome::Dedicated,
    }
}

impl Local {
    /// Dispatches a request by the server's answer about its command.
    pub(crate) fn dispatch_unknown(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &UnknownRequest<'_>,
    ) -> UnknownWay {
        let bytes = request.bytes;
        let outcome = match self.judge_unknown(plane, id, request) {
            Ok(outcome) => outcome,
            Err(dispatched) => return UnknownWay::Dispatched(dispatched),
        };
        UnknownWay::Dispatched(match outcome {
            UnknownOutcome::Known(renamed) => return UnknownWay::Known(request.row_of(renamed)),
            UnknownOutcome::Queue { taints } => return UnknownWay::Queue { taints },
            UnknownOutcome::RefuseSubscriber => refuse_subscriber(plane, id, request),
            UnknownOutcome::Hold => plane.hold_for_pause(id),
            UnknownOutcome::RefuseUnknown => refuse_unknown(plane, id, request),
            UnknownOutcome::AskServer => plane.dispatch_on_link(id, bytes, false, None),
            UnknownOutcome::SharedLink { reads } => {
                let lane = plane.enter_code_lane_with(id, bytes);
                plane.on_code_lane(id, lane, |plane| {
                    plane.dispatch_on_link(id, bytes, reads, None)
                })
            }
            UnknownOutcome::Dedicated => {
                let mut pins = Pins::ONCE;
                pins.add(Pins::UNKNOWN);
                plane.dispatch_alone(id, bytes, (false, None), pins, true)
            }
        })
    }

    /// Judges a request by the server's answer about its command, and switches the session to the
    /// owner of its keys. `Err`: the session waits for the answer, is refused or closed.
    fn judge_unknown(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &UnknownRequest<'_>,
    ) -> Result<UnknownOutcome, Dispatched> {
        if let Some(session) = plane.sessions.get_mut(id) {
            session.last_command = None;
        }
        plane.switch_from_replica(id, None);
        plane.switch_to_informed_server(id, request.first());
        let info = self.describe(plane, id, request)?;
        switch_to_keys_of(plane, id, request, info)
            .map_err(|text| plane.refuse_queued(id, text))?;
        let state = plane.sessions.get(id).map(|session| session.state);
        let state = state.unwrap_or_default();
        let reads = matches!(info, CommandInfo::Shared { reads: true, .. });
        let outcome = outcome_of(
            info,
            UnknownFacts {
                is_unauthenticated: state.any(Flags::UNAUTHENTICATED),
                in_multi: state.any(Flags::IN_MULTI),
                is_restricted: state.any(Flags::RESTRICTED),
                is_paused: plane.pauses(id, || !reads),
                removes_prefix: plane.removes_prefix(id),
            },
        );
        // An unknown command may write, too: a module may have been loaded meanwhile.
        let is_over = matches!(
            outcome,
            UnknownOutcome::RefuseSubscriber | UnknownOutcome::Hold
        );
        if !is_over && !reads && !matches!(outcome, UnknownOutcome::Known(_)) {
            plane.note_write(id);
        }
        Ok(outcome)
    }

    /// The server's answer about the command of a request. `Err`: the session waits for it, is
    /// refused or closed.
    fn describe(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &UnknownRequest<'_>,
    ) -> Result<CommandInfo, Dispatched> {
        if request.is_http() {
            let reason = "it speaks HTTP: possibly an attack by way of a browser";
            plane.close_for(id, reason.to_owned());
            return Err(Dispatched::Done);
        }
        let state = plane.sessions.get(id).map(|session| session.state);
        let is_unauthenticated = state.is_some_and(|state| state.any(Flags::UNAUTHENTICATED));
        match is_unauthenticated || !may_be_a_name(&request.name) {
            true => Ok(CommandInfo::Nothing { at: plane.now }),
            false => self.info_of(plane, id, request.name.clone()),
        }
    }

    /// Identifies a large request by its first arguments. `Err`: the session waits for the server's
    /// answer.
    pub(crate) fn identify(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        args: &[&[u8]],
        argc: usize,
    ) -> Result<LeadingCommand, Dispatched> {
        let arg = |index: usize| args.get(index).copied().unwrap_or_default();
        if let Some(row) = commands::resolve(argc, arg) {
            return Ok(LeadingCommand::Row(row));
        }
        let name = arg(0).to_ascii_lowercase();
        let session = plane.sessions.get(id);
        let is_unauthenticated =
            session.is_none_or(|session| session.state.any(Flags::UNAUTHENTICATED));
        if is_unauthenticated || !may_be_a_name(&name) {
            return Ok(LeadingCommand::Nothing);
        }
        plane.switch_to_informed_server(id, args.get(1).copied());
        Ok(match self.info_of(plane, id, name)? {
            CommandInfo::Renamed(row) => LeadingCommand::Row(row),
            CommandInfo::Shared { reads, .. } => LeadingCommand::Learned {
                alone: false,
                reads,
            },
            CommandInfo::Alone { .. } | CommandInfo::Unreported { .. } => LeadingCommand::Learned {
                alone: true,
                reads: false,
            },
            CommandInfo::Nothing { .. } => LeadingCommand::Nothing,
        })
    }
}

/// Answers a subscriber that sends a command which it must not send.
pub(crate) fn refuse_subscriber(
    plane: &mut DataPlane,
    id: SessionId,
    request: &UnknownRequest<'_>,
) -> Dispatched {
    let text = not_in_subscription(&request.name, plane.is_before_7(id));
    plane.answer_error(id, &text)
}

/// Answers a request as a server that lacks the command would.
fn refuse_unknown(
    plane: &mut DataPlane,
    id: SessionId,
    request: &UnknownRequest<'_>,
) -> Dispatched {
    if plane.is_silent_before_auth(id) {
        return plane.answer_error(id, NOAUTH);
    }
    let args: Vec<&[u8]> = (0..request.spans.len()).map(|at| request.arg(at)).collect();
    let text = unknown_command(&args, plane.is_before_7(id));
    plane.refuse_queued(id, &text)
}

/// Switches a session, and its transaction, to the owner of the keys in a request, if its pool has
/// several owners. `Err`: the error text.
fn switch_to_keys_of(
    plane: &mut DataPlane,
    id: SessionId,
    request: &UnknownRequest<'_>,
    info: CommandInfo,
) -> Result<(), &'static [u8]> {
    let keys = match info {
        CommandInfo::Shared { keys, .. } | CommandInfo::Alone { keys } => keys,
        CommandInfo::Unreported { .. } => LearnedKeySpec::Unreported,
        CommandInfo::Renamed(_) | CommandInfo::Nothing { .. } => return Ok(()),
    };
    if !plane.has_several_owners(id) {
        return Ok(());
    }
    let refusal = match keys {
        LearnedKeySpec::Unreported => UNKNOWN_KEYS,
        LearnedKeySpec::At { .. } | LearnedKeySpec::None => NO_KEYS,
    };
    let places = keys.places(request.spans.len());
    let queued = plane.queued_group(id);
    let group = plane.switch_to_keys(id, (places, |at| request.arg(at)), refusal, queued)?;
    if let Some(group) = group
        && plane.is_in_multi(id)
    {
        plane.bind_transaction(id, group);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use respool_protocol::commands::id;
    use respool_protocol::encode;
    use respool_protocol::request::RequestScanner;

    use super::*;
    use crate::base::time::Time;
    use crate::data_plane::session::Session;
    use crate::data_plane::test_plane::{plane_with_link, session_of};

    const NOW: Time = Time(1);
    const NONE: LearnedKeySpec = LearnedKeySpec::None;
    const READS: CommandInfo = CommandInfo::Shared {
        reads: true,
        keys: NONE,
    };
    const ALONE: CommandInfo = CommandInfo::Alone { keys: NONE };
    const UNSAID: CommandInfo = CommandInfo::Unreported { at: NOW };
    const NOTHING: CommandInfo = CommandInfo::Nothing { at: NOW };

    fn facts() -> UnknownFacts {
        UnknownFacts::default()
    }

    /// The server's answer and the state of the session decide about a request.
    #[test]
    fn outcome_follows_from_answer_and_session() {
        use UnknownOutcome::*;
        let in_multi = UnknownFacts {
            in_multi: true,
            ..facts()
        };
        let restricted = UnknownFacts {
            is_restricted: true,
            is_paused: true,
            ..facts()
        };
        let paused = UnknownFacts {
            is_paused: true,
            ..in_multi
        };
        let unauthenticated = UnknownFacts {
            is_unauthenticated: true,
            ..facts()
        };
        let stripped = UnknownFacts {
            removes_prefix: true,
            ..facts()
        };
        for (info, facts, outcome) in [
            (READS, facts(), SharedLink { reads: true }),
            (READS, in_multi, Queue { taints: false }),
            (READS, restricted, RefuseSubscriber),
            (READS, paused, Hold),
            (ALONE, facts(), Dedicated),
            (ALONE, in_multi, Queue { taints: true }),
            (UNSAID, facts(), Dedicated),
            (UNSAID, paused, Hold),
            (NOTHING, facts(), AskServer),
            (NOTHING, restricted, AskServer),
            (NOTHING, in_multi, RefuseUnknown),
            (NOTHING, unauthenticated, RefuseUnknown),
            (NOTHING, stripped, RefuseUnknown),
            (CommandInfo::Renamed(id::GET), paused, Known(id::GET)),
        ] {
            assert_eq!(outcome_of(info, facts), outcome, "{info:?} {facts:?}");
        }
    }

    /// A renamed container keeps its subcommands.
    #[test]
    fn renamed_container_finds_its_subcommand() {
        let bytes = b"*2\r\n$5\r\nknobs\r\n$3\r\nGET\r\n";
        let mut scanner = RequestScanner::default();
        assert!(scanner.scan(bytes, true).is_ok());
        let request = UnknownRequest::new(bytes, scanner.spans());
        assert_eq!(request.row_of(id::CONFIG), id::CONFIG_GET);
        assert_eq!(request.row_of(id::GET), id::GET);
    }

    /// A browser that was tricked into talking to respool is cut off, and no request of it is asked
    /// about.
    #[test]
    fn http_ends_the_session() {
        for word in ["POST", "Host:"] {
            let (mut plane, link) = plane_with_link();
            let id = session_of(&mut plane);
            let mut bytes = Vec::new();
            encode::request(&mut bytes, &[word]);
            let mut scanner = RequestScanner::default();
            assert!(scanner.scan(&bytes, true).is_ok());
            let request = UnknownRequest::new(&bytes, scanner.spans());
            let judged = Local::default().judge_unknown(&mut plane, id, &request);
            assert_eq!(judged, Err(Dispatched::Done));
            let closing = |session: &Session| session.state.is_closing();
            assert!(plane.sessions.get(id).is_none_or(closing));
            assert!(
                plane
                    .links
                    .get(link)
                    .is_some_and(|link| link.ledger.is_empty())
            );
        }
    }

    /// A session waits for the server's answer about a command, and the question is asked once.
    #[test]
    fn unknown_command_is_asked_about_once() {
        let (mut plane, link) = plane_with_link();
        let mut local = Local::default();
        let mut bytes = Vec::new();
        encode::request(&mut bytes, &["TOOL.GET", "k"]);
        let mut scanner = RequestScanner::default();
        assert!(scanner.scan(&bytes, true).is_ok());
        for _ in 0..2 {
            let id = session_of(&mut plane);
            let request = UnknownRequest::new(&bytes, scanner.spans());
            let judged = local.judge_unknown(&mut plane, id, &request);
            assert_eq!(judged, Err(Dispatched::Wait));
        }
        assert_eq!(plane.links.get(link).map(|link| link.ledger.len()), Some(1));
    }
}

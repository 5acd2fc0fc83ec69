//! The way of a request at its server, as its command and arguments decide.

use respool_protocol::commands::{self, Answer, Condition, id};

use crate::data_plane::ingress::{Request, may_wait};
use crate::data_plane::quick_code::may_hold_up;
use crate::pinned::wait_command::is_wait;

/// The way of a request after its session has switched to its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DispatchKind {
    /// It is queued until EXEC.
    Queue,
    /// It is queued until EXEC, and the server answers it with an error of its own.
    QueueRefused,
    /// The server answers it with an error of its own.
    ServersError,
    /// respool answers it.
    Local,
    /// WAIT or WAITAOF.
    WaitCommand,
    /// It may wait at the server.
    Blocking,
    /// SHUTDOWN.
    Shutdown,
    /// It must not wait behind others.
    Emergency,
    /// It runs a script.
    Script,
    /// Its reply counts connections.
    Counted,
    /// It may hold up the requests behind it.
    Code,
    /// It goes to the session's link.
    Link,
}

impl DispatchKind {
    /// `server_refuses`: the server answers the request with an error of its own.
    pub(crate) fn of(request: &Request<'_>, in_multi: bool, server_refuses: bool) -> DispatchKind {
        let (id, argc) = (request.id, request.spans.len());
        let ends_multi = matches!(
            id,
            id::MULTI | id::EXEC | id::DISCARD | id::WATCH | id::QUIT | id::RESET
        );
        if in_multi && !ends_multi {
            return match server_refuses {
                true => DispatchKind::QueueRefused,
                false => DispatchKind::Queue,
            };
        }
        let answer = request.command.answer;
        let is_conditional = matches!(answer, Answer::Conditional(_));
        if server_refuses || is_conditional && !request.command.arity_ok(argc) {
            return DispatchKind::ServersError;
        }
        let is_alone = match answer {
            Answer::Session | Answer::Pinned => return DispatchKind::Local,
            Answer::Alone if is_wait(id) => return DispatchKind::WaitCommand,
            Answer::Alone => true,
            Answer::Conditional(Condition::Block) => {
                commands::asks_to_block(argc, |at| request.arg(at))
            }
            _ => false,
        };
        match answer {
            _ if is_alone && may_wait(id) => DispatchKind::Blocking,
            _ if is_alone && id == id::SHUTDOWN => DispatchKind::Shutdown,
            _ if is_alone => DispatchKind::Emergency,
            Answer::Conditional(Condition::Script) => DispatchKind::Script,
            Answer::Conditional(Condition::Count) => DispatchKind::Counted,
            _ if may_hold_up(id) => DispatchKind::Code,
            _ => DispatchKind::Link,
        }
    }
}

#[cfg(test)]
mod tests {
    use respool_protocol::request::RequestScanner;

    use super::*;
    use crate::data_plane::test_plane::request_of;

    fn dispatched(line: &str, in_multi: bool, server_refuses: bool) -> DispatchKind {
        let (kept, mut scanner) = (request_of(line), RequestScanner::default());
        let request = kept.read(&mut scanner);
        DispatchKind::of(&request, in_multi, server_refuses)
    }

    /// The command and its arguments decide about the way of a request.
    #[test]
    fn each_kind_of_command_has_its_way() {
        use DispatchKind::*;
        for (line, way) in [
            ("GET k", Link),
            ("PING", Link),
            ("CLIENT ID", Local),
            ("CLIENT TRACKING ON", Local),
            ("MULTI", Local),
            ("WAIT 1 0", WaitCommand),
            ("BLPOP k 0", Blocking),
            ("XREAD BLOCK 0 STREAMS s 0", Blocking),
            ("XREAD STREAMS s 0", Link),
            ("XREAD", ServersError),
            ("SHUTDOWN", Shutdown),
            ("SCRIPT KILL", Emergency),
            ("EVAL return 0", Script),
            ("EVAL", ServersError),
            ("PUBLISH c m", Counted),
            ("FCALL f 0", Code),
        ] {
            assert_eq!(dispatched(line, false, false), way, "{line}");
        }
    }

    /// In a transaction a request is queued, unless it ends the transaction.
    #[test]
    fn transaction_queues_requests() {
        use DispatchKind::*;
        for line in ["GET k", "BLPOP k 0", "CLIENT ID", "EVAL"] {
            assert_eq!(dispatched(line, true, false), Queue, "{line}");
            assert_eq!(dispatched(line, true, true), QueueRefused, "{line}");
        }
        for line in ["EXEC", "DISCARD", "MULTI", "WATCH k", "RESET", "QUIT"] {
            assert_eq!(dispatched(line, true, false), Local, "{line}");
        }
    }

    /// The server writes its own error.
    #[test]
    fn refused_request_goes_to_the_server() {
        for line in ["CONFIG RESPOOL", "BLPOP k", "SHUTDOWN"] {
            assert_eq!(
                dispatched(line, false, true),
                DispatchKind::ServersError,
                "{line}"
            );
        }
    }
}

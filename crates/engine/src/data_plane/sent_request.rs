//! The bytes of a request as they stand on a link.

use respool_protocol::commands::{self, CommandId, id};
use respool_protocol::request::{Found, RequestScanner};

/// The command in front of a request that follows an ASK.
pub(crate) const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";

/// The bytes of a request on a link as the client sent it, without the [`ASKING`] of respool.
pub(crate) fn without_asking(request: &[u8]) -> &[u8] {
    request.strip_prefix(ASKING).unwrap_or(request)
}

/// The command of a whole request, if the table has it.
pub(crate) fn id_of(request: &[u8]) -> Option<CommandId> {
    let mut scanner = RequestScanner::default();
    let Ok(Found::Request { .. }) = scanner.scan(request, true) else {
        return None;
    };
    let spans = scanner.spans();
    commands::resolve(spans.len(), |index| spans[index].of(request))
}

/// Whether a request may return an error text that its client wrote. `command` is `None` if the
/// table does not have it. SCRIPT LOAD and FUNCTION LOAD return no such text: the first word of
/// their errors is always the server's `ERR`.
pub(crate) fn runs_code(command: Option<CommandId>) -> bool {
    command.is_none_or(|command| {
        matches!(
            command,
            id::EVAL
                | id::EVAL_RO
                | id::EVALSHA
                | id::EVALSHA_RO
                | id::FCALL
                | id::FCALL_RO
                // DEBUG ERROR returns its argument.
                | id::DEBUG
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The command is found behind ASKING, and only in a whole request.
    #[test]
    fn command_is_found_behind_asking() {
        let request = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n";
        let sent = [ASKING, request].concat();
        assert_eq!(without_asking(&sent), request);
        assert_eq!(without_asking(request), request);
        assert_eq!(id_of(request), Some(id::GET));
        assert_eq!(id_of(&sent), Some(id::ASKING));
        assert_eq!(id_of(&request[..10]), None);
    }

    /// The texts of all other commands of the table are the server's own.
    #[test]
    fn commands_that_run_code_are_known() {
        let code = commands::all().filter(|command| runs_code(Some(*command)));
        let names: Vec<&str> = code.map(|command| command.get().name).collect();
        let expected = [
            "debug",
            "eval",
            "eval_ro",
            "evalsha",
            "evalsha_ro",
            "fcall",
            "fcall_ro",
        ];
        assert_eq!(names, expected);
        assert!(runs_code(None));
    }
}

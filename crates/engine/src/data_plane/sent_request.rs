//! The bytes of a request as they stand on a link.

use respool_protocol::commands::{self, CommandId};
use respool_protocol::request::{Found, Scanner};

/// The command in front of a request that follows an ASK.
pub(crate) const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";

/// The bytes of a request on a link as the client sent it, without the [`ASKING`] of respool.
pub(crate) fn as_asked(request: &[u8]) -> &[u8] {
    request.strip_prefix(ASKING).unwrap_or(request)
}

/// The command of a whole request, if the table has it.
pub(crate) fn id_of(request: &[u8]) -> Option<CommandId> {
    let mut scanner = Scanner::default();
    let Ok(Found::Request { .. }) = scanner.scan(request, true) else {
        return None;
    };
    let spans = scanner.spans();
    commands::resolve(spans.len(), |index| spans[index].of(request))
}

#[cfg(test)]
mod tests {
    use respool_protocol::commands::id;

    use super::*;

    /// The command is found behind ASKING, and only in a whole request.
    #[test]
    fn command_is_found_behind_asking() {
        let request = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n";
        let sent = [ASKING, request].concat();
        assert_eq!(as_asked(&sent), request);
        assert_eq!(as_asked(request), request);
        assert_eq!(id_of(request), Some(id::GET));
        assert_eq!(id_of(&sent), Some(id::ASKING));
        assert_eq!(id_of(&request[..10]), None);
    }
}

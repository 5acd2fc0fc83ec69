//! Scripts in requests and on links: the facts that the whole engine reads.
//!
//! `local` remembers the bodies and has servers load them.

use std::collections::HashMap;

use respool_protocol::commands::{self, CommandId, id};
use respool_protocol::request::{Found, RequestScanner};

use sha1::{Digest, Sha1};

use crate::base::limits::{SCRIPT_BYTES_MAX, SCRIPT_USERS_MAX, SCRIPTS_LOADED_MAX};

/// The SHA-1 of a body, in lower-case hexadecimal.
pub(crate) type ScriptHash = [u8; 40];

/// The way in which a request shows a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptSource<'a> {
    /// By SCRIPT LOAD.
    Load,
    /// By EVAL of this user of the server. `None`: the configured one, which loads scripts itself.
    Run { user: Option<&'a str> },
}

/// The users that get a script restored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScriptSources {
    /// It was shown by SCRIPT LOAD: any user may name it.
    load: bool,
    /// Names of users that have shown it by EVAL, at most [`SCRIPT_USERS_MAX`]. Names, since each
    /// worker numbers users in its own way.
    users: Vec<Box<str>>,
}

impl ScriptSources {
    /// Whether this source is noted already, or does not count.
    pub(crate) fn has(&self, source: ScriptSource<'_>) -> bool {
        match source {
            ScriptSource::Load => self.load,
            ScriptSource::Run { user } => user.is_none_or(|user| self.has_run(user)),
        }
    }

    /// Notes a source. Returns whether it is a new one.
    pub(crate) fn note(&mut self, source: ScriptSource<'_>) -> bool {
        match source {
            ScriptSource::Load => !std::mem::replace(&mut self.load, true),
            ScriptSource::Run { user: Some(user) } => {
                let is_new = !self.has_run(user) && self.users.len() < SCRIPT_USERS_MAX;
                if is_new {
                    self.users.push(user.into());
                }
                is_new
            }
            ScriptSource::Run { user: None } => false,
        }
    }

    /// Notes the showings that another worker has seen.
    pub(crate) fn merge(&mut self, other: &ScriptSources) {
        if other.load {
            self.note(ScriptSource::Load);
        }
        for user in &other.users {
            self.note(ScriptSource::Run { user: Some(user) });
        }
    }

    /// Whether the script is restored for this user.
    pub(crate) fn admits(&self, user: &str) -> bool {
        self.load || self.has_run(user)
    }

    fn has_run(&self, user: &str) -> bool {
        self.users.iter().any(|name| **name == *user)
    }

    /// Bytes of memory, without the struct itself.
    pub(crate) fn memory_bytes(&self) -> usize {
        let names: usize = self.users.iter().map(|user| user.len()).sum();
        names + self.users.capacity() * size_of::<Box<str>>()
    }
}

/// The states of the scripts of one connection, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct LoadedScripts {
    scripts: HashMap<u32, ScriptLoad>,
    /// Scripts that requests on the link name. The configured user loads them before the link is
    /// up.
    pub(crate) later: Vec<(u16, ScriptHash)>,
}

/// The state of a script on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptLoad {
    /// The configured user may not load it. The user of the link has not tried.
    Untried,
    /// SCRIPT LOAD was sent.
    Sent,
    /// The user of the link may not load it.
    Denied,
}

impl LoadedScripts {
    /// Whether the script was not sent yet, though the link's user may be allowed to load it.
    pub(crate) fn lacks(&self, number: u32) -> bool {
        matches!(self.scripts.get(&number), None | Some(ScriptLoad::Untried))
    }

    /// Whether the script was sent, or must not be sent, on this connection.
    pub(crate) fn knows(&self, number: u32) -> bool {
        self.scripts.contains_key(&number)
    }

    /// Whether the link's user may not load the script.
    pub(crate) fn is_denied(&self, number: u32) -> bool {
        self.scripts.get(&number) == Some(&ScriptLoad::Denied)
    }

    /// The script was sent on this connection, or its server has it.
    pub(crate) fn note_loaded(&mut self, number: u32) {
        self.note(number, ScriptLoad::Sent);
    }

    /// The server has refused the script with this error. After any error but NOPERM it gets the
    /// script again.
    pub(crate) fn note_refused(&mut self, number: u32, error: &[u8]) {
        match error.starts_with(b"-NOPERM") {
            true => self.note(number, ScriptLoad::Denied),
            false => {
                self.scripts.remove(&number);
            }
        }
    }

    /// The connection is another one, or the server has forgotten scripts.
    pub(crate) fn clear(&mut self) {
        self.scripts.clear();
        self.later.clear();
    }

    /// Notes the state of a script. If there are too many, all are forgotten.
    pub(crate) fn note(&mut self, number: u32, loading: ScriptLoad) {
        if self.scripts.len() >= SCRIPTS_LOADED_MAX && !self.scripts.contains_key(&number) {
            self.scripts.clear();
        }
        self.scripts.insert(number, loading);
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

/// The hash of a body.
pub(crate) fn name_of(body: &[u8]) -> ScriptHash {
    let mut name = [0; 40];
    for (index, byte) in Sha1::digest(body).iter().enumerate() {
        name[2 * index] = HEX[usize::from(byte >> 4)];
        name[2 * index + 1] = HEX[usize::from(byte & 15)];
    }
    name
}

/// The hash that a client names, in lower case. `None`: it is no hash.
pub(crate) fn name_said(digest: &[u8]) -> Option<ScriptHash> {
    digest.to_ascii_lowercase().try_into().ok()
}

/// Calls `visit` with the command and the arguments of each request in `bytes`. `None`: the table
/// does not have the command.
pub(crate) fn each_request(mut bytes: &[u8], mut visit: impl FnMut(Option<CommandId>, &[&[u8]])) {
    let mut scanner = RequestScanner::default();
    while !bytes.is_empty()
        && let Ok(Found::Request { len }) = scanner.scan(bytes, true)
    {
        let args = scanner.spans().iter().map(|span| span.of(bytes));
        let args: Vec<&[u8]> = args.collect();
        visit(commands::resolve(args.len(), |index| args[index]), &args);
        bytes = &bytes[len..];
        scanner = RequestScanner::default();
    }
}

/// The scripts that requests name.
pub(crate) fn names_in(bytes: &[u8]) -> Vec<ScriptHash> {
    let mut names = Vec::new();
    each_request(bytes, |id, args| {
        if matches!(id, Some(id::EVALSHA | id::EVALSHA_RO))
            && let Some(name) = args.get(1).and_then(|digest| name_said(digest))
            && !names.contains(&name)
        {
            names.push(name);
        }
    });
    names
}

/// The place of a script's body in the arguments of a request that shows one.
pub(crate) fn body_at(id: CommandId) -> Option<usize> {
    match id {
        id::EVAL | id::EVAL_RO => Some(1),
        id::SCRIPT_LOAD => Some(2),
        _ => None,
    }
}

/// Whether a large request is held until the body of its script is whole, because respool is to
/// remember the script. `args` have come; the request has `len_at_least` bytes.
pub(crate) fn awaits_body(id: Option<CommandId>, args: &[&[u8]], len_at_least: u64) -> bool {
    let is_missing = |at: usize| args.len() <= at;
    id.and_then(body_at).is_some_and(is_missing) && len_at_least <= SCRIPT_BYTES_MAX as u64
}

/// The body of the script that a request shows, if it has come.
pub(crate) fn body_shown(id: CommandId, args: &[&[u8]]) -> Option<Box<[u8]>> {
    Some((*args.get(body_at(id)?)?).into())
}

/// First words of errors by which a server refuses a script before it keeps the body. A script may
/// return them, too: then it is remembered at its next run.
const REFUSALS: [&[u8]; 16] = [
    b"NOPERM",
    b"NOAUTH",
    b"BUSY",
    b"LOADING",
    b"OOM",
    b"MISCONF",
    b"READONLY",
    b"MOVED",
    b"ASK",
    b"TRYAGAIN",
    b"CLUSTERDOWN",
    b"CROSSSLOT",
    b"MASTERDOWN",
    b"NOREPLICAS",
    b"NOSCRIPT",
    b"EXECABORT",
];

/// Whether a reply to code says that the server has not run it. Other errors come from the script
/// itself, and the server keeps its body then, too.
pub(crate) fn is_refusal(reply: &[u8]) -> bool {
    reply.strip_prefix(b"-").is_some_and(|error| {
        if error.starts_with(b"ERR Error compiling script") {
            return true;
        }
        let word = error.split(|byte| matches!(byte, b' ' | b'\r')).next();
        word.is_some_and(|word| REFUSALS.contains(&word))
    })
}

#[cfg(test)]
mod tests {
    use respool_protocol::encode;

    use super::*;

    /// A user that has shown a script gets it restored. SCRIPT LOAD shows it for all users.
    #[test]
    fn script_is_restored_for_users_that_have_shown_it() {
        let mut shown_by = ScriptSources::default();
        assert!(!shown_by.note(ScriptSource::Run { user: None }));
        assert!(shown_by.note(ScriptSource::Run { user: Some("ann") }));
        assert!(!shown_by.note(ScriptSource::Run { user: Some("ann") }));
        assert!(shown_by.admits("ann") && !shown_by.admits("bob"));
        let mut other = ScriptSources::default();
        other.merge(&shown_by);
        assert_eq!(other, shown_by);
        assert!(other.note(ScriptSource::Load));
        shown_by.merge(&other);
        assert!(shown_by.admits("bob"));
    }

    /// A script remembers a bounded number of users.
    #[test]
    fn users_of_a_script_are_bounded() {
        let mut shown_by = ScriptSources::default();
        for number in 0..2 * SCRIPT_USERS_MAX {
            let user = number.to_string();
            let is_new = shown_by.note(ScriptSource::Run { user: Some(&user) });
            assert_eq!(is_new, number < SCRIPT_USERS_MAX);
        }
        assert!(shown_by.admits("0") && !shown_by.admits("16"));
    }

    /// After any error but NOPERM the script is sent again.
    #[test]
    fn refused_script_is_sent_again_unless_it_is_denied() {
        let mut loaded = LoadedScripts::default();
        assert!(loaded.lacks(1));
        loaded.note_loaded(1);
        assert!(!loaded.lacks(1));
        loaded.note_refused(1, b"-BUSY a script runs\r\n");
        assert!(loaded.lacks(1));
        loaded.note_refused(1, b"-NOPERM no\r\n");
        assert!(!loaded.lacks(1));
        loaded.clear();
        assert!(loaded.lacks(1));
    }

    /// The names are those of EVALSHA and EVALSHA_RO in a block, in lower case and once each.
    #[test]
    fn names_are_found_in_a_block() {
        let mut block = Vec::new();
        let name = String::from_utf8(name_of(b"return 1").to_vec()).expect("hexadecimal");
        encode::request(&mut block, &["MULTI"]);
        encode::request(&mut block, &["EVALSHA", &name, "0"]);
        encode::request(&mut block, &["evalsha_ro", &name.to_uppercase(), "0"]);
        encode::request(&mut block, &["EVALSHA", "short", "0"]);
        encode::request(&mut block, &["EXEC"]);
        assert_eq!(names_in(&block), [name_of(b"return 1")]);
    }
}

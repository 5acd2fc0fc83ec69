//! Whether a user may ask what is answered here. The server has the rules, so it is asked for the same, in a
//! form that does nothing there: who may not is told so before anybody looks at the arguments.

use std::collections::HashMap;

use respool_protocol::commands::{CommandId, Flags as CommandFlags, id};
use respool_protocol::encode;

use crate::duty::Duty;
use crate::engine::Engine;
use crate::link::LinkKey;
use crate::requests::{Blocked, Request};
use crate::session::Session;
use crate::slots::Key;
use crate::time::Time;
use crate::unknown::{Subject, Whose};

/// What servers said of rights, as of a moment.
#[derive(Default)]
pub(crate) struct Rights {
    known: HashMap<(Whose, CommandId), Right>,
}

struct Right {
    at: Time,
    /// The server's error, if it is not allowed.
    refusal: Option<Vec<u8>>,
}

/// How long a right is believed in: a server does not tell when its rules change.
const RIGHT_MS: u64 = 1_000;
/// As Redis says it to a command that could be queued and may not be executed (`execCommand`).
const CHANGED: &[u8] = b"NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command is no longer allowed for the following reason: no permission to execute the command or subcommand";
/// Nobody has said yet what may be asked by whom, and others could be harmed by it.
const NOT_TOLD: &[u8] =
    b"NOPERM respool: the server did not say whether this user may do that; try again";

impl Rights {
    pub(crate) fn learn(&mut self, whose: Whose, id: CommandId, reply: &[u8], at: Time) {
        let error = reply
            .strip_prefix(b"-")
            .filter(|error| error.starts_with(b"NOPERM"));
        let refusal = error.map(|error| error.trim_ascii_end().to_vec());
        self.known.insert((whose, id), Right { at, refusal });
    }

    pub(crate) fn doubt(&mut self, whose: Whose) {
        self.known.retain(|(of, _), _| *of != whose);
    }
}

impl Engine {
    /// The server's error to a session that may not ask this, if that is what it says. `None`: the session waits
    /// until that is known.
    pub(crate) fn refusal_of_right(
        &mut self,
        key: Key,
        request: &Request<'_>,
    ) -> Option<Option<Vec<u8>>> {
        let (Some(probe), Some(whose)) = (harmless(request), self.whose(key)) else {
            return Some(None);
        };
        let known = self.learned.rights.known.get(&(whose, request.id));
        if let Some(right) = known
            && self.now.since_ms(right.at) < RIGHT_MS
        {
            return Some(right.refusal.clone());
        }
        let session = self.sessions.get(key)?;
        let own = self.kind_of(session);
        // The link on which the session rides, or would if it had none of its own: none is opened for the question.
        let kind = match session.pins.is_empty() {
            true => own,
            false => LinkKey {
                user: own.user,
                ..self.first_link(own.server)
            },
        };
        let subject = Subject::Right(request.id);
        let asked = self.wait_for_lesson(key, kind, subject.clone(), |engine| {
            let mut bytes = Vec::new();
            encode::request(&mut bytes, &probe);
            engine.ask_on_shared(kind, &bytes, Duty::Learn(subject))
        });
        if matches!(asked, Err(Blocked::Wait)) {
            return None;
        }
        // It does not say: what it said last holds.
        let known = self.learned.rights.known.get(&(whose, request.id));
        Some(match known {
            Some(right) => right.refusal.clone(),
            None => untold(request),
        })
    }

    /// The same for a request that is executed within an EXEC, when the session was this user.
    pub(crate) fn refusal_within(
        &mut self,
        key: Key,
        request: &Request<'_>,
        user: u16,
    ) -> Option<Option<Vec<u8>>> {
        let is_still = |session: &Session| session.user == user;
        let refusal = if self.sessions.get(key).is_some_and(is_still) {
            self.refusal_of_right(key, request)?
        } else {
            // It was asked for when this was queued, unless the session became this user behind that.
            let whose = self.whose(key).map(|(server, _)| (server, user));
            let known = whose.and_then(|whose| self.learned.rights.known.get(&(whose, request.id)));
            match (harmless(request), known) {
                (None, _) => None,
                (_, Some(right)) => right.refusal.clone(),
                (_, None) => untold(request),
            }
        };
        Some(refusal.map(|refusal| match &refusal[..] {
            NOT_TOLD => refusal,
            _ => CHANGED.to_vec(),
        }))
    }
}

/// What is said to who could harm others, where nobody has said that it may.
fn untold(request: &Request<'_>) -> Option<Vec<u8>> {
    let harms = request.command.flags.has(CommandFlags::ADMIN);
    harms.then(|| NOT_TOLD.to_vec())
}

/// The same request with arguments with which it does nothing on our link. `None`: the server itself gets it anyway, or
/// everybody may ask it.
fn harmless<'a>(request: &Request<'a>) -> Option<Vec<&'a [u8]>> {
    let arguments: &[&[u8]] = match request.id {
        id::CLIENT_ID | id::CLIENT_GETNAME | id::CLIENT_INFO | id::CLIENT_UNPAUSE => &[],
        // As it is called already.
        id::CLIENT_SETNAME => &[b"respool"],
        id::CLIENT_SETINFO => &[b"respool", b"respool"],
        // What is no number is wrong everywhere. 0 is no client to some versions, and any to others.
        id::CLIENT_LIST | id::CLIENT_KILL => &[b"ID", b"respool"],
        id::CLIENT_UNBLOCK | id::CLIENT_PAUSE => &[b"respool"],
        id::CLIENT_NO_EVICT | id::CLIENT_REPLY | id::CLIENT_CAPA => &[b"respool"],
        _ => return None,
    };
    Some(
        request
            .args()
            .take(2)
            .chain(arguments.iter().copied())
            .collect(),
    )
}

//! Whether a user may ask what is answered here, and whether the server knows it by that name at all. The server has
//! the rules, so it is asked for the same, in a form that does nothing there: who may not is told so before anybody
//! looks at the arguments.

use std::collections::HashMap;

use respool_protocol::commands::{Flags as CommandFlags, id};
use respool_protocol::encode;

use crate::duty::Duty;
use crate::engine::Engine;
use crate::failure::{self, Cause, Fate};
use crate::link::LinkKey;
use crate::requests::{Blocked, Placed, Request, is_select};
use crate::session::Session;
use crate::settings::AwayError;
use crate::slots::Key;
use crate::time::Time;
use crate::unknown::{Subject, Whose};

/// What servers said of rights, as of a moment, by the bytes that they were asked.
#[derive(Default)]
pub(crate) struct Rights {
    known: HashMap<(Whose, Vec<u8>), Right>,
}

struct Right {
    at: Time,
    refusal: Option<Refusal>,
}

/// Why a server does not look at the arguments of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It has no command of this name.
    Unknown,
    /// It is not allowed: its error.
    Denied(Vec<u8>),
    /// The server has not said whether it is allowed, and the request could harm other clients.
    Untold,
}

/// How long a right is believed in: a server does not tell when its rules change.
pub(crate) const RIGHT_MS: u64 = 1_000;
/// As Redis says it to a command that could be queued and may not be executed (`execCommand`).
const CHANGED: &[u8] = b"NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command is no longer allowed for the following reason: no permission to execute the command or subcommand";

impl Rights {
    pub(crate) fn learn(&mut self, whose: Whose, probe: Vec<u8>, reply: &[u8], at: Time) {
        let refusal = match reply {
            [b'-', error @ ..] if error.starts_with(b"NOPERM") => {
                Some(Refusal::Denied(error.trim_ascii_end().to_vec()))
            }
            _ if reply.starts_with(b"-ERR unknown command") => Some(Refusal::Unknown),
            _ => None,
        };
        self.known.insert((whose, probe), Right { at, refusal });
    }

    pub(crate) fn doubt(&mut self, is_such: impl Fn(Whose) -> bool) {
        self.known.retain(|(of, _), _| !is_such(*of));
    }

    /// What is believed in no more is dropped.
    pub(crate) fn tick(&mut self, now: Time) {
        self.known
            .retain(|_, right| now.since_ms(right.at) < RIGHT_MS);
    }
}

impl Engine {
    /// Why the server would not look into this request of a session, if that is what it says. `None`: the session
    /// waits until that is known. `queued`: it is not to be executed yet.
    pub(crate) fn refusal_of_right(
        &mut self,
        key: Key,
        request: &Request<'_>,
        queued: bool,
    ) -> Option<Option<Refusal>> {
        let (Some(probe), Some(whose)) = (harmless(request, queued), self.whose(key)) else {
            return Some(None);
        };
        let about = (whose, probe);
        let known = self.learned.rights.known.get(&about);
        if let Some(right) = known
            && self.now.since_ms(right.at) < RIGHT_MS
        {
            return Some(right.refusal.clone());
        }
        let session = self.sessions.get(key)?;
        let own = self.kind_of(session);
        // The link on which the session rides, or would if it had none of its own.
        let kind = match session.pins.is_empty() {
            true => own,
            false => LinkKey {
                user: own.user,
                ..self.first_link(own.server)
            },
        };
        let subject = Subject::Right(about.1.clone());
        let asked = self.wait_for_lesson(key, kind, subject.clone(), |engine| {
            engine.ask_on_shared(kind, &about.1, Duty::Learn(subject))
        });
        if matches!(asked, Err(Blocked::Wait)) {
            return None;
        }
        Some(self.as_far_as_known(request, &about))
    }

    /// Tells a session that may not ask this, or has it wait until that is known. `None`: it may.
    pub(crate) fn refused_by_right(&mut self, key: Key, request: &Request<'_>) -> Option<Placed> {
        match self.refusal_of_right(key, request, false) {
            None => Some(Placed::Wait),
            Some(Some(Refusal::Denied(error))) => Some(self.answer_error(key, &error)),
            Some(Some(Refusal::Untold)) => {
                let error = self.untold_error(key, self.away_error(key));
                Some(self.answer_error(key, &error))
            }
            Some(Some(Refusal::Unknown) | None) => None,
        }
    }

    /// The error for a request whose right the server has not told. Nothing was denied: the request
    /// was not sent, as if the server were away.
    pub(crate) fn untold_error(&self, key: Key, away: AwayError) -> Vec<u8> {
        let server = self.whose(key).map(|(server, _)| server);
        let server = server.map_or("the server", |server| &self.server(server).label);
        failure::error_text(Fate::NotSent, away, Cause::Untold { server })
    }

    /// What was said last: a refusal holds until something else is said; a right that was had some time ago is none, where
    /// others could be harmed by it.
    fn as_far_as_known(&self, request: &Request<'_>, about: &(Whose, Vec<u8>)) -> Option<Refusal> {
        let known = self.learned.rights.known.get(about);
        let refusal = known.and_then(|right| right.refusal.clone());
        refusal.or_else(|| untold(request))
    }

    /// The same for a request that is executed within an EXEC, when the session was this user.
    pub(crate) fn refusal_within(
        &mut self,
        key: Key,
        request: &Request<'_>,
        user: u16,
    ) -> Option<Option<Vec<u8>>> {
        // To the server, users of our own are one.
        let theirs = self.settings.users.is_empty();
        let is_still = |session: &Session| session.user == user || !theirs;
        let refusal = if self.sessions.get(key).is_some_and(is_still) {
            self.refusal_of_right(key, request, false)?
        } else {
            // It was asked for when this was queued, unless the session became this user behind that.
            let whose = self.whose(key).map(|(server, _)| (server, user));
            match harmless(request, false).zip(whose) {
                None => None,
                Some((probe, whose)) => match self.learned.rights.known.get(&(whose, probe)) {
                    Some(right) => right.refusal.clone(),
                    None => untold(request),
                },
            }
        };
        Some(match refusal {
            Some(Refusal::Untold) => Some(self.untold_error(key, AwayError::NotSent)),
            Some(Refusal::Denied(_)) => Some(CHANGED.to_vec()),
            // It was known when it was queued.
            Some(Refusal::Unknown) | None => None,
        })
    }
}

/// Why a request is refused although the server has not refused it: it could harm other clients.
fn untold(request: &Request<'_>) -> Option<Refusal> {
    let harms = request.command.flags.has(CommandFlags::ADMIN);
    harms.then_some(Refusal::Untold)
}

/// The same request, by the same name, with arguments with which it does nothing on our link. `None`: the server itself
/// gets it anyway, or everybody may ask it.
fn harmless(request: &Request<'_>, queued: bool) -> Option<Vec<u8>> {
    let arguments: &[&[u8]] = match request.id {
        id::CLIENT_ID | id::CLIENT_GETNAME | id::CLIENT_INFO => &[],
        // To ask that is to do it. With an argument it is wrong, to newer servers whoever asks: so what is said of the
        // right is said at EXEC.
        id::CLIENT_UNPAUSE if queued => &[b"respool"],
        id::CLIENT_UNPAUSE => &[],
        // To a server that is a section which it does not have.
        id::INFO => &[b"respool"],
        // What is no number is nothing to wait for.
        id::WAIT => &[b"respool", b"respool"],
        id::WAITAOF => &[b"respool", b"respool", b"respool"],
        // As it is called already.
        id::CLIENT_SETNAME => &[b"respool"],
        id::CLIENT_SETINFO => &[b"respool", b"respool"],
        // What is no number is wrong everywhere. 0 is no client to some versions, and any to others.
        id::CLIENT_LIST | id::CLIENT_KILL => &[b"ID", b"respool"],
        id::CLIENT_UNBLOCK | id::CLIENT_PAUSE => &[b"respool"],
        id::CLIENT_NO_EVICT | id::CLIENT_REPLY | id::CLIENT_CAPA => &[b"respool"],
        // A subcommand that the table does not have.
        id::CLIENT => &[b"respool"],
        // These only tell. Nobody's node is called so, and any word is in a slot.
        id::CLUSTER_SLOTS | id::CLUSTER_SHARDS | id::CLUSTER_NODES | id::CLUSTER_INFO => &[],
        id::CLUSTER_MYID | id::CLUSTER_MYSHARDID | id::CLUSTER_LINKS => &[],
        id::CLUSTER_KEYSLOT | id::CLUSTER_REPLICAS | id::CLUSTER_SLAVES => &[b"respool"],
        // What is no number is no database. By another name it is refused here; and a Redis 8 that has just seen that
        // takes it by this one, too.
        id::SELECT if is_select(request.arg(0)) => &[b"respool"],
        _ => return None,
    };
    let named = request.command.name.split('|').count();
    // However the client writes it.
    let names = request.args().take(named).map(<[u8]>::to_ascii_uppercase);
    let words: Vec<Vec<u8>> = names
        .chain(arguments.iter().map(|argument| argument.to_vec()))
        .collect();
    let mut probe = Vec::new();
    encode::request(&mut probe, &words);
    Some(probe)
}

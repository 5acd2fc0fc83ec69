//! Whether the server's ACL allows a user a command that respool answers itself.
//!
//! The server has the rules, so respool asks it: it sends the same command with arguments that have
//! no effect (a probe). A user without the right gets the server's error before respool looks at
//! the arguments. The reply also tells whether the server has a command of this name.

use std::collections::HashMap;

use respool_protocol::commands::{CommandFlags, id};
use respool_protocol::encode;

use crate::base::error::{self, Cause, Fate};
use crate::base::handle::SessionId;
use crate::base::settings::ServerDownError;
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::local::{LocalCompletion, Subject};
use crate::data_plane::ingress::{Blocked, Dispatched, Request, is_select};
use crate::data_plane::learned_commands::ServerUser;
use crate::data_plane::link::LinkKind;
use crate::data_plane::session::Session;
use crate::local::Local;

/// The replies of servers to probes, by user and by the bytes of the probe, each with its time.
#[derive(Default)]
pub(crate) struct KnownRights {
    known: HashMap<(ServerUser, Vec<u8>), KnownRight>,
}

struct KnownRight {
    at: Time,
    refusal: Option<RightRefusal>,
}

/// The reason for which a server does not look at the arguments of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RightRefusal {
    /// The server has no command of this name.
    Unknown,
    /// The ACL denies the command: the server's error.
    Denied(Vec<u8>),
    /// The server has not answered yet, and the request could harm other clients.
    Unanswered,
}

/// How long an answer about a right counts. A server does not tell when its rules change.
pub(crate) const RIGHT_MS: u64 = 1_000;
/// Redis's error to a queued command that the user may not execute any more (`execCommand`).
const CHANGED: &[u8] = b"NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command is no longer allowed for the following reason: no permission to execute the command or subcommand";

impl KnownRights {
    pub(crate) fn learn(&mut self, user: ServerUser, probe: Vec<u8>, reply: &[u8], at: Time) {
        let refusal = match reply {
            [b'-', error @ ..] if error.starts_with(b"NOPERM") => {
                Some(RightRefusal::Denied(error.trim_ascii_end().to_vec()))
            }
            _ if reply.starts_with(b"-ERR unknown command") => Some(RightRefusal::Unknown),
            _ => None,
        };
        self.known.insert((user, probe), KnownRight { at, refusal });
    }

    /// Drops the answers about these users.
    pub(crate) fn invalidate(&mut self, is_dropped: impl Fn(ServerUser) -> bool) {
        self.known.retain(|(of, _), _| !is_dropped(*of));
    }

    /// Drops answers that are too old.
    pub(crate) fn tick(&mut self, now: Time) {
        self.known
            .retain(|_, right| now.since_ms(right.at) < RIGHT_MS);
    }
}

impl Local {
    /// Whether the server refuses this request of a session before it looks at the arguments. The
    /// outer `None`: the session waits for the answer. `queued`: the request is not executed yet.
    pub(crate) fn refusal_of_right(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
        queued: bool,
    ) -> Option<Option<RightRefusal>> {
        let (Some(probe), Some(user)) = (harmless(request, queued), self.server_user(plane, id))
        else {
            return Some(None);
        };
        let about = (user, probe);
        let known = self.catalog.rights.known.get(&about);
        if let Some(right) = known
            && plane.now.since_ms(right.at) < RIGHT_MS
        {
            return Some(right.refusal.clone());
        }
        let session = plane.sessions.get(id)?;
        let own = plane.kind_of(session);
        // The session's shared link, even while the session has a link of its own.
        let kind = match session.pins.is_empty() {
            true => own,
            false => LinkKind {
                user: own.user,
                ..plane.default_kind(own.server)
            },
        };
        let subject = Subject::Right(about.1.clone());
        let question = Completion::Local(LocalCompletion::Learn(subject.clone()));
        let answer = self.wait_for_info(plane, id, kind, subject, (about.1.clone(), question));
        if matches!(answer, Err(Blocked::Wait)) {
            return None;
        }
        Some(self.as_far_as_known(request, &about))
    }

    /// Refuses a request that the user may not send, or has the session wait for the answer.
    /// `None`: the user may send it.
    pub(crate) fn refused_by_right(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> Option<Dispatched> {
        match self.refusal_of_right(plane, id, request, false) {
            None => Some(Dispatched::Wait),
            Some(Some(RightRefusal::Denied(error))) => Some(plane.answer_error(id, &error)),
            Some(Some(RightRefusal::Unanswered)) => {
                let error = self.unanswered_error(plane, id, plane.server_down_error(id));
                Some(plane.answer_error(id, &error))
            }
            Some(Some(RightRefusal::Unknown) | None) => None,
        }
    }

    /// The error for a request whose right the server has not told. Nothing was denied: the request
    /// was not sent, as if the server were away.
    pub(crate) fn unanswered_error(
        &self,
        plane: &DataPlane,
        id: SessionId,
        away: ServerDownError,
    ) -> Vec<u8> {
        let server = self.server_user(plane, id).map(|(server, _)| server);
        let server = server.map_or("the server", |server| &plane.server(server).label);
        error::error_text(Fate::NotSent, away, Cause::Unanswered { server })
    }

    /// The last known answer. A refusal counts until the server answers otherwise. An old
    /// permission does not count for a request that could harm other clients.
    fn as_far_as_known(
        &self,
        request: &Request<'_>,
        about: &(ServerUser, Vec<u8>),
    ) -> Option<RightRefusal> {
        let known = self.catalog.rights.known.get(about);
        let refusal = known.and_then(|right| right.refusal.clone());
        refusal.or_else(|| unanswered(request))
    }

    /// Refuses a request within EXEC that its user may not execute, or has the session wait for the
    /// answer. `None`: the user may execute it.
    pub(crate) fn refuse_within(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
        user: u16,
    ) -> Option<Dispatched> {
        match self.refusal_within(plane, id, request, user) {
            None => Some(Dispatched::Wait),
            Some(refusal) => refusal.map(|refusal| plane.answer_error(id, &refusal)),
        }
    }

    /// The error for a request within EXEC if its user may not execute it. `user`: the session's
    /// user when the request runs. The outer `None`: the session waits for the answer.
    fn refusal_within(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
        user: u16,
    ) -> Option<Option<Vec<u8>>> {
        // To the server, all configured users of respool are one user.
        let are_of_server = plane.settings.users.is_empty();
        let is_still = |session: &Session| session.user == user || !are_of_server;
        let refusal = if plane.sessions.get(id).is_some_and(is_still) {
            self.refusal_of_right(plane, id, request, false)?
        } else {
            // The probe was sent when the request was queued, unless AUTH stands in front of it in
            // the transaction.
            let user = self
                .server_user(plane, id)
                .map(|(server, _)| (server, user));
            match harmless(request, false).zip(user) {
                None => None,
                Some((probe, user)) => match self.catalog.rights.known.get(&(user, probe)) {
                    Some(right) => right.refusal.clone(),
                    None => unanswered(request),
                },
            }
        };
        Some(match refusal {
            Some(RightRefusal::Unanswered) => {
                Some(self.unanswered_error(plane, id, ServerDownError::NotSent))
            }
            Some(RightRefusal::Denied(_)) => Some(CHANGED.to_vec()),
            // An unknown command was refused when it was queued.
            Some(RightRefusal::Unknown) | None => None,
        })
    }
}

/// Refuses a request without an answer of the server if the request could harm other clients.
fn unanswered(request: &Request<'_>) -> Option<RightRefusal> {
    let harms = request.command.flags.has(CommandFlags::ADMIN);
    harms.then_some(RightRefusal::Unanswered)
}

/// The probe: the command of the request by the same name, with arguments that have no effect on
/// our link. `None`: the server gets the request itself, or every user may send it.
fn harmless(request: &Request<'_>, queued: bool) -> Option<Vec<u8>> {
    let arguments: &[&[u8]] = match request.id {
        id::CLIENT_ID | id::CLIENT_GETNAME | id::CLIENT_INFO => &[],
        // This probe is executed if the user may send it. With an argument it is an error, and
        // newer servers check the argument before the right. So a queued one is checked at EXEC.
        id::CLIENT_UNPAUSE if queued => &[b"respool"],
        id::CLIENT_UNPAUSE => &[],
        // No server has a section of this name.
        id::INFO => &[b"respool"],
        // The server refuses arguments that are no numbers, so it does not wait.
        id::WAIT => &[b"respool", b"respool"],
        id::WAITAOF => &[b"respool", b"respool", b"respool"],
        // The link has this name already.
        id::CLIENT_SETNAME => &[b"respool"],
        id::CLIENT_SETINFO => &[b"respool", b"respool"],
        // Every server refuses an argument that is no number. 0 is no client to some versions, and
        // any client to others.
        id::CLIENT_LIST | id::CLIENT_KILL => &[b"ID", b"respool"],
        id::CLIENT_UNBLOCK | id::CLIENT_PAUSE => &[b"respool"],
        id::CLIENT_NO_EVICT | id::CLIENT_REPLY | id::CLIENT_CAPA => &[b"respool"],
        // Both reports of RESPOOL: the first reads, and no server has an event of this name.
        id::SLOWLOG_LEN => &[],
        id::LATENCY_RESET => &[b"respool"],
        // No table row has this subcommand.
        id::CLIENT => &[b"respool"],
        // These commands only read. No node has this name, and every word has a slot.
        id::CLUSTER_SLOTS | id::CLUSTER_SHARDS | id::CLUSTER_NODES | id::CLUSTER_INFO => &[],
        id::CLUSTER_MYID | id::CLUSTER_MYSHARDID | id::CLUSTER_LINKS => &[],
        id::CLUSTER_KEYSLOT | id::CLUSTER_REPLICAS | id::CLUSTER_SLAVES => &[b"respool"],
        // No database has this index. A renamed SELECT is refused here. A Redis 8 that has just
        // seen the other name takes this one, too.
        id::SELECT if is_select(request.arg(0)) => &[b"respool"],
        _ => return None,
    };
    let named = request.command.name.split('|').count();
    // The probe writes the name in capitals, as clients may write it in any case.
    let names = request.args().take(named).map(<[u8]>::to_ascii_uppercase);
    let words: Vec<Vec<u8>> = names
        .chain(arguments.iter().map(|argument| argument.to_vec()))
        .collect();
    let mut probe = Vec::new();
    encode::request(&mut probe, &words);
    Some(probe)
}

//! Completions: the use of replies that are not simply passed on to their session.
//!
//! The reply to nearly every entry of a ledger is just passed on. Any other entry carries a mark,
//! and its completion is in a second queue of its link, in the same order. So the hot path tests
//! one bit, and the ledger stays small. A completion gets its reply whole, if
//! [`Completion::needs_whole`] says so.
//!
//! The ledger knows which replies end an entry, and whether an entry may be sent again. The use of
//! the last reply is up to the component that put the request there: each component has an enum of
//! its own here, of plain data.

pub(crate) mod access;
pub(crate) mod admin;
pub(crate) mod discovery;
pub(crate) mod local;
pub(crate) mod pinned;
pub(crate) mod pubsub;
pub(crate) mod redirect;
pub(crate) mod scatter;
pub(crate) mod transaction;

use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::DataPlane;
use crate::data_plane::completion::access::AccessCompletion;
use crate::data_plane::completion::admin::AdminCompletion;
use crate::data_plane::completion::discovery::DiscoveryCompletion;
use crate::data_plane::completion::local::{LocalCompletion, ScriptEffect};
use crate::data_plane::completion::pinned::{ExecPreamble, PinnedCompletion};
use crate::data_plane::completion::pubsub::PubsubCompletion;
use crate::data_plane::completion::redirect::RedirectCompletion;
use crate::data_plane::completion::scatter::ScatterCompletion;
use crate::data_plane::completion::transaction::{Exec, TransactionCompletion};
use crate::data_plane::ledger::Entry;
use crate::data_plane::sent_request::{ASKING, without_asking};
use crate::data_plane::slow_readers::CODE_LANE;

/// The use of the reply to an entry. No session gets the replies to respool's *own* requests.
#[derive(Debug)]
pub(crate) enum Completion {
    /// The reply is passed on, unless the session wants no replies.
    Pass,
    /// The entry's bytes are several requests. The first `before` replies are dropped, and the
    /// session gets the last one.
    Block {
        before: u32,
        /// How many of the `before` replies have come.
        came: u32,
        exec: Option<Box<Exec>>,
        /// Whether the first reply is to MULTI. If it is an error, the requests after it were no
        /// block.
        opens: bool,
        /// The first of these replies that redirects the request, or asks to try later.
        refusal: Option<Vec<u8>>,
        /// Whether the session watches keys for this block.
        watched: bool,
        /// Whether one of the requests runs code, or loads a script.
        code: bool,
    },
    /// ASKING is in front, and its reply is dropped. `then`: the completion of the next reply.
    Asking {
        then: Option<Box<Completion>>,
    },
    /// PING in place of a request that respool answers itself. The session gets this answer after
    /// all that its server has sent before.
    Instead(Vec<u8>),
    /// SHUTDOWN: a server that obeys closes the connection, and then its session is closed too.
    Shutdown,
    /// Own: asks a server for its limits, see [`crate::data_plane::reply_limit`].
    Limits,
    /// Own: asks a server how busy it is, see [`crate::data_plane::flush_rule`].
    Cpu,
    // The last reply goes to a component.
    Access(AccessCompletion),
    Admin(AdminCompletion),
    Discovery(DiscoveryCompletion),
    Local(LocalCompletion),
    Pinned(PinnedCompletion),
    Pubsub(PubsubCompletion),
    Redirect(RedirectCompletion),
    Scatter(ScatterCompletion),
    Transaction(TransactionCompletion),
}

// A link with many completions has them in one queue.
const _: () = assert!(size_of::<Completion>() <= 56);

/// The place of a reply among the replies to its entry.
#[derive(Debug)]
enum ReplyPlace {
    /// More replies will come.
    Early,
    /// The server refused MULTI. It executes the requests after it one by one, so they are no
    /// transaction. The value is the number of replies that are still dropped.
    NotOpened(u32),
    /// It answers ASKING. The completion of the next reply follows.
    Asking(Option<Box<Completion>>),
    Last,
}

impl Completion {
    /// The completion of several requests: the session gets the last reply, and the `before`
    /// replies in front are dropped.
    pub(crate) fn behind(before: u32) -> Completion {
        Completion::Block {
            before,
            came: 0,
            exec: None,
            opens: false,
            refusal: None,
            watched: false,
            code: false,
        }
    }

    /// Whether its request may name scripts that respool knows.
    pub(crate) fn names_scripts(&self) -> bool {
        matches!(
            self,
            Completion::Local(LocalCompletion::Evalsha) | Completion::Block { code: true, .. }
        )
    }

    /// Whether the server forgets all scripts when it executes the request.
    pub(crate) fn flushes_scripts(&self) -> bool {
        match self {
            Completion::Local(LocalCompletion::FlushScripts) => true,
            Completion::Scatter(ScatterCompletion::Share { effect, .. }) => {
                *effect == ScriptEffect::Flush
            }
            Completion::Block { exec, .. } => exec.as_deref().is_some_and(Exec::flushes_scripts),
            _ => false,
        }
    }

    /// Whether the entry is a request of a session as the client sent it.
    pub(crate) fn is_of_request(&self) -> bool {
        matches!(
            self,
            Completion::Pass
                | Completion::Block { .. }
                | Completion::Local(
                    LocalCompletion::Script
                        | LocalCompletion::Evalsha
                        | LocalCompletion::FlushScripts
                )
                | Completion::Scatter(
                    ScatterCompletion::Share { .. } | ScatterCompletion::Named(_)
                )
                | Completion::Pubsub(PubsubCompletion::Receivers(_))
        )
    }

    /// Whether the entry is one whole request as the client sent it, and no block or share.
    pub(crate) fn is_of_one_request(&self) -> bool {
        let is_block_or_share = matches!(
            self,
            Completion::Block { .. } | Completion::Scatter(ScatterCompletion::Share { .. })
        );
        self.is_of_request() && !is_block_or_share
    }

    /// Prepares an entry that was not written whole to be sent from its beginning on a new
    /// connection. Replies that have come to requests in it are dropped. Returns whether it may be
    /// sent again. Requests without MULTI may not, since the server may have executed some of them.
    /// `has_no_session`: the entry is respool's own, or was given up.
    pub(crate) fn begin_again(&mut self, has_no_session: bool) -> bool {
        match self {
            Completion::Local(LocalCompletion::Learn(_))
            | Completion::Pubsub(PubsubCompletion::HubRequest)
            | Completion::Pinned(PinnedCompletion::Dismissal { .. })
            | Completion::Admin(AdminCompletion::Unblock { .. }) => {}
            // Requests after it rely on it.
            Completion::Pinned(PinnedCompletion::Track) => {}
            Completion::Local(LocalCompletion::Probe(first)) => *first = None,
            Completion::Discovery(completion) => return completion.begin_again(),
            Completion::Pubsub(PubsubCompletion::Leave { has_left }) => *has_left = false,
            // Other own requests, and requests that were given up, are not sent again.
            _ if has_no_session => return false,
            Completion::Block { opens: false, .. } => return false,
            Completion::Block { came, refusal, .. } => {
                *came = 0;
                *refusal = None;
            }
            Completion::Pinned(PinnedCompletion::Wait(waiting)) => waiting.begin_again(),
            Completion::Pinned(PinnedCompletion::Poll(before)) => *before = ExecPreamble::default(),
            _ => {}
        }
        true
    }

    /// The completion of the same read when it is sent once more. `None`: such a read is not sent
    /// again.
    pub(crate) fn read_again(&self) -> Option<Completion> {
        match self {
            Completion::Scatter(share) => share.read_again().map(Completion::Scatter),
            _ => None,
        }
    }

    /// The completion of the same request on a second link, whose reply goes to the session in
    /// place of the first link's reply. `None`: the second reply would be of no use.
    pub(crate) fn on_successor(&self) -> Option<Completion> {
        let local = |completion| Some(Completion::Local(completion));
        match *self {
            Completion::Pass => Some(Completion::Pass),
            Completion::Local(LocalCompletion::Script) => local(LocalCompletion::Script),
            Completion::Local(LocalCompletion::Evalsha) => local(LocalCompletion::Evalsha),
            Completion::Local(LocalCompletion::Info { ours }) => {
                local(LocalCompletion::Info { ours })
            }
            Completion::Block {
                before,
                exec: None,
                opens: true,
                watched: false,
                code,
                ..
            } => Some(Completion::Block {
                before,
                came: 0,
                exec: None,
                opens: true,
                refusal: None,
                watched: false,
                code,
            }),
            _ => self.read_again(),
        }
    }

    /// Whether its reply may change the user or the protocol version of the link and of its
    /// session.
    pub(crate) fn changes_identity(&self) -> bool {
        match self {
            Completion::Block { exec, .. } => exec.as_deref().is_some_and(Exec::changes_identity),
            Completion::Access(AccessCompletion::Login(_)) => true,
            _ => false,
        }
    }

    /// Whether the next reply must be whole before it can be used.
    pub(crate) fn needs_whole(&self) -> bool {
        match self {
            Completion::Pass
            | Completion::Shutdown
            | Completion::Local(LocalCompletion::Script | LocalCompletion::Code { .. }) => false,
            Completion::Block {
                before, came, exec, ..
            } => came < before || exec.is_some(),
            _ => true,
        }
    }

    /// Whether the end of a reply still completes it if the beginning was delivered or dropped.
    /// Otherwise the end is passed on, too.
    fn takes_rest(&self) -> bool {
        match self {
            Completion::Discovery(completion) => completion.takes_rest(),
            Completion::Local(
                LocalCompletion::Learn(_)
                | LocalCompletion::Probe(_)
                | LocalCompletion::Load(_)
                | LocalCompletion::Script
                | LocalCompletion::Code { .. },
            )
            | Completion::Admin(AdminCompletion::Unblock { .. }) => true,
            _ => false,
        }
    }

    /// Whether its use needs the request, too.
    fn needs_request(&self) -> bool {
        matches!(
            self,
            Completion::Local(LocalCompletion::Evalsha | LocalCompletion::Script)
                | Completion::Block { code: true, .. }
                | Completion::Scatter(ScatterCompletion::Share {
                    effect: ScriptEffect::Load,
                    ..
                })
        )
    }

    /// Takes the next reply to its entry, unless it is the last one.
    fn take_early(&mut self, reply: &[u8]) -> ReplyPlace {
        let is_early = match self {
            Completion::Block {
                before,
                came,
                opens,
                ..
            } => {
                let is_early = came < before;
                if is_early {
                    *came += 1;
                    if *opens && *came == 1 && reply.starts_with(b"-") {
                        return ReplyPlace::NotOpened(*before - 1);
                    }
                }
                is_early
            }
            Completion::Asking { then } => return ReplyPlace::Asking(then.take()),
            Completion::Access(completion) => completion.take_early(reply),
            Completion::Discovery(completion) => completion.take_early(reply),
            Completion::Local(completion) => completion.take_early(reply),
            Completion::Pinned(completion) => completion.take_early(reply),
            Completion::Pubsub(completion) => completion.take_early(reply),
            _ => false,
        };
        match is_early {
            true => ReplyPlace::Early,
            false => ReplyPlace::Last,
        }
    }
}

/// The effect of a reply with a completion.
pub(crate) enum Completed {
    /// The entry waits for more replies.
    Not,
    /// The server refused the MULTI of this entry, and executes the requests after it one by one.
    NotOpened(Entry),
    /// The last reply has come, and the entry has left the ledger.
    Last(LastReply),
}

/// An entry after its last reply has come.
pub(crate) struct LastReply {
    pub(crate) entry: Entry,
    pub(crate) completion: Completion,
    /// The request, if the use of the reply needs it.
    pub(crate) request: Vec<u8>,
}

impl DataPlane {
    /// Takes a reply to the entry in front, which has a completion. `cut`: the beginning of the
    /// reply was delivered before, and this is the rest.
    pub(crate) fn take_completed(&mut self, id: LinkId, reply: &[u8], cut: bool) -> Completed {
        let Some(link) = self.links.get_mut(id) else {
            return Completed::Not;
        };
        let Some(entry) = link.ledger.first_in_flight() else {
            return Completed::Not;
        };
        let Some(completion) = link.ledger.front_completion_mut() else {
            unreachable!("a marked entry has a completion");
        };
        match completion.take_early(reply) {
            ReplyPlace::Early => return Completed::Not,
            ReplyPlace::NotOpened(before) => {
                *completion = Completion::behind(before);
                self.note_front(id, &entry);
                if let Some(link) = self.links.get_mut(id) {
                    link.ledger.give_up(0);
                }
                return Completed::NotOpened(entry);
            }
            ReplyPlace::Asking(then) => {
                *completion = then.map_or(Completion::Pass, |then| *then);
                // From now on the entry has the bytes of the session's request alone.
                link.ledger.shorten_front(ASKING.len());
                return Completed::Not;
            }
            ReplyPlace::Last => {}
        }
        let request = match completion.needs_request() {
            true => without_asking(link.ledger.first_bytes()).to_vec(),
            false => Vec::new(),
        };
        if link.kind.lane == CODE_LANE {
            // The rest of a large reply is no error.
            self.note_code_answered(id, if cut { b"" } else { reply });
        }
        self.begin_completing(id, &entry);
        let Some(link) = self.links.get_mut(id) else {
            return Completed::Not;
        };
        let Some(completion) = link.ledger.pop_completed(entry) else {
            unreachable!("a marked entry has a completion");
        };
        self.counters.link_replies += 1;
        let completion = match cut && !completion.takes_rest() {
            true => Completion::Pass,
            false => completion,
        };
        // The rest of a large reply is no error, even if it begins with a dash.
        let entry = if cut { entry.uncounted() } else { entry };
        Completed::Last(LastReply {
            entry,
            completion,
            request,
        })
    }

    /// Delivers a reply to the session of an entry that is no share of a scattered request, if the
    /// session wants replies.
    pub(crate) fn deliver_to(&mut self, entry: Entry, reply: &[u8]) {
        if entry.session != SessionId::NONE {
            self.note_if_error(&entry, reply);
            let reply = if entry.is_silent() { &[] } else { reply };
            self.deliver(entry.session, entry.seq, 1, reply);
        }
    }

    /// The reply to a SELECT of a session with a link of its own.
    pub(crate) fn take_selected(&mut self, id: LinkId, entry: Entry, db: u32, reply: &[u8]) {
        if reply.starts_with(b"+")
            && let Some(link) = self.links.get_mut(id)
        {
            link.kind.db = db;
            let owner = self.owner_of(id, entry);
            if let Some(session) = self.sessions.get_mut(owner) {
                session.db = db;
            }
        }
    }

    /// The session that a reply concerns: the session of the request. If the request was given up,
    /// it is the session that has the link for itself: the server has changed the link's state.
    pub(crate) fn owner_of(&self, link: LinkId, entry: Entry) -> SessionId {
        if entry.session != SessionId::NONE {
            return entry.session;
        }
        let link = self.links.get(link);
        link.map_or(SessionId::NONE, |link| link.role.session())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_plane::completion::local::Subject;

    const OK: &[u8] = b"+OK\r\n";
    const ERROR: &[u8] = b"-ERR no\r\n";

    fn is_last(completion: &mut Completion, reply: &[u8]) -> bool {
        matches!(completion.take_early(reply), ReplyPlace::Last)
    }

    /// How many replies each completion takes before its last one.
    #[test]
    fn completion_counts_its_replies() {
        let discovery = Completion::Discovery;
        let table = [
            (Completion::Pass, 0),
            (Completion::behind(0), 0),
            (Completion::behind(3), 3),
            (
                discovery(DiscoveryCompletion::Survey {
                    primary: 0,
                    answers: Vec::new(),
                }),
                respool_protocol::sentinel::SURVEY_ANSWERS - 1,
            ),
            (
                discovery(DiscoveryCompletion::Owners {
                    ticket: 1,
                    listed: None,
                }),
                1,
            ),
            (discovery(DiscoveryCompletion::Look { first: None }), 1),
            (discovery(DiscoveryCompletion::Nodes { shards: None }), 1),
            (discovery(DiscoveryCompletion::Role), 0),
            (Completion::Local(LocalCompletion::Probe(None)), 1),
            (Completion::Local(LocalCompletion::Evalsha), 0),
            (
                Completion::Pinned(PinnedCompletion::Poll(ExecPreamble::default())),
                2,
            ),
            (Completion::Pubsub(PubsubCompletion::HubRequest), 0),
        ];
        for (mut completion, early) in table {
            for _ in 0..early {
                assert!(!is_last(&mut completion, OK), "{completion:?}");
            }
            assert!(is_last(&mut completion, OK), "{completion:?}");
        }
    }

    /// Replies that have come are dropped, since all requests of the entry are sent again.
    #[test]
    fn replies_are_counted_anew_after_a_loss() {
        for mut completion in [
            Completion::Discovery(DiscoveryCompletion::Look { first: None }),
            Completion::Local(LocalCompletion::Probe(None)),
        ] {
            assert!(!is_last(&mut completion, OK));
            assert!(completion.begin_again(true));
            assert!(!is_last(&mut completion, OK));
            assert!(is_last(&mut completion, OK));
        }
        let mut block = Completion::Block {
            before: 1,
            came: 0,
            exec: None,
            opens: true,
            refusal: None,
            watched: false,
            code: false,
        };
        assert!(!is_last(&mut block, OK));
        assert!(is_last(&mut block, OK));
        assert!(block.begin_again(false));
        assert!(!is_last(&mut block, OK));
    }

    /// No session waits for these any more, or the server may have executed some of them.
    #[test]
    fn some_requests_are_not_sent_again() {
        assert!(!Completion::Pass.begin_again(true));
        assert!(!Completion::Limits.begin_again(true));
        assert!(!Completion::Discovery(DiscoveryCompletion::Role).begin_again(true));
        assert!(!Completion::behind(2).begin_again(false));
        assert!(Completion::Pass.begin_again(false));
    }

    /// Only the reply to MULTI itself decides.
    #[test]
    fn block_is_none_if_its_multi_is_refused() {
        let block = || Completion::Block {
            before: 2,
            came: 0,
            exec: None,
            opens: true,
            refusal: None,
            watched: false,
            code: false,
        };
        let place = block().take_early(ERROR);
        assert!(matches!(place, ReplyPlace::NotOpened(1)));
        let mut later = block();
        assert!(matches!(later.take_early(OK), ReplyPlace::Early));
        assert!(matches!(later.take_early(ERROR), ReplyPlace::Early));
        assert!(matches!(later.take_early(ERROR), ReplyPlace::Last));
        // Without MULTI, errors in front are dropped like any reply.
        let place = Completion::behind(1).take_early(ERROR);
        assert!(matches!(place, ReplyPlace::Early));
    }

    #[test]
    fn reply_to_asking_makes_room_for_the_next_completion() {
        let then = Some(Box::new(Completion::Cpu));
        let place = Completion::Asking { then }.take_early(OK);
        assert!(
            matches!(place, ReplyPlace::Asking(Some(then)) if matches!(*then, Completion::Cpu))
        );
        let place = Completion::Asking { then: None }.take_early(OK);
        assert!(matches!(place, ReplyPlace::Asking(None)));
    }

    /// A server answers SUNSUBSCRIBE with an error, or not at all, and then the PING.
    #[test]
    fn error_to_leaving_is_not_the_pong() {
        let leave = || Completion::Pubsub(PubsubCompletion::Leave { has_left: false });
        assert!(is_last(&mut leave(), b"+PONG\r\n"));
        let mut refused = leave();
        assert!(!is_last(&mut refused, ERROR));
        assert!(is_last(&mut refused, ERROR));
        let mut moved = leave();
        assert!(!is_last(&mut moved, b"-MOVED 1 node:1\r\n"));
        assert!(!is_last(&mut moved, b"-MOVED 1 node:1\r\n"));
        assert!(is_last(&mut moved, b"+PONG\r\n"));
    }

    /// Something waits for these replies, however long they are.
    #[test]
    fn questions_end_with_a_reply_that_was_cut() {
        assert!(Completion::Local(LocalCompletion::Learn(Subject::Commands)).takes_rest());
        assert!(Completion::Local(LocalCompletion::Probe(None)).takes_rest());
        assert!(Completion::Discovery(DiscoveryCompletion::Look { first: None }).takes_rest());
        assert!(!Completion::Discovery(DiscoveryCompletion::Role).takes_rest());
        assert!(!Completion::Pass.takes_rest());
        assert!(!Completion::behind(1).takes_rest());
    }
}

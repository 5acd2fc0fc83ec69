//! The lists that a turn fills and empties.

use std::collections::VecDeque;

use crate::base::handle::{LinkId, SessionId};
use crate::base::time::Time;
use crate::data_plane::actions::{Action, Event};
use crate::data_plane::ledger::Entry;
use crate::data_plane::link_loss::LostLink;
use crate::data_plane::reorder::ReplyRange;
use crate::data_plane::resume::ResumeQueue;
use crate::data_plane::session::Session;

/// State beyond the data plane that a session does not need any more.
pub(crate) enum Cleanup {
    /// The session was closed: all that it held.
    Closed(SessionId, Box<Session>),
    /// The pinned link of this session has brought its last reply.
    Unpinned(SessionId),
    /// The session may leave its pool, which has ended, and waits for that with nothing unanswered.
    MayLeave(SessionId),
    /// A server refused a change of the session's links. The change is undone, and then the request
    /// gets this error.
    Disagreed(Entry, Vec<u8>),
}

/// The lists of a turn. The steps of [`crate::Engine::end_turn`] empty most of them. The driver
/// empties the last four. An entry that comes after its step waits for the next turn.
///
/// The second column names the main fillers.
///
/// ```text
/// list                    filled by                   emptied by        at which step of the turn
/// reply_ranges            go_on_delivering            deliver_range     in the same delivery
/// slowed_by_current_read  see its doc                 after_replies     after the read of a link
/// lost_links              lose_link                   settle_losses     after a read, and first
/// slow_pairs              after_replies, hold_output  slow_down_all     before `untried`
/// untried                 connect                     fail_untried      before `resume`
/// cleanups                close, note_caught_up,      process_cleanups  around `resume`
///                         hold_to_leave_pool
/// resume                  release                     resume_sessions   once, and after a tick
/// reserved_room           reopen                      pass_room_on      if `resume` is empty
/// ticking                 tick                        tick              in the same step
/// corked                  cork_output                 uncork            at the time of the entry
/// open_links              list_link, ingest           flush             if the flush rule agrees
/// reading                 hold, resume_listed         switch_reading    last
/// flushed_links           flush                       poll_link         after `end_turn`
/// dirty                   mark_dirty                  poll_session      after `end_turn`
/// actions                 push_action                 poll_action       after `end_turn`
/// events                  emit                        poll_event        after `end_turn`
/// ```
#[derive(Default)]
pub(crate) struct TurnLists {
    /// Links with an open batch, or with bytes that may leave.
    pub(crate) open_links: Vec<LinkId>,
    /// The time when the earliest batch that is held must leave. Each flush sets it anew.
    pub(crate) flush_at: Option<Time>,
    /// Links with bytes to write.
    pub(crate) flushed_links: Vec<LinkId>,
    /// Sessions with output to write.
    pub(crate) dirty: Vec<SessionId>,
    /// Ranges of replies that their session may get at once, from the bytes that are being read.
    pub(crate) reply_ranges: Vec<ReplyRange>,
    /// Sessions without a reason to wait any more.
    pub(crate) resume: ResumeQueue,
    /// Sessions for which reading may have to be switched on or off.
    pub(crate) reading: Vec<SessionId>,
    /// Commands for the driver.
    pub(crate) actions: VecDeque<Action>,
    /// Lines for the log.
    pub(crate) events: VecDeque<Event>,
    /// Corked sessions, each with the time at which its output leaves at the latest. The earliest
    /// time is first.
    pub(crate) corked: VecDeque<(Time, SessionId)>,
    /// Sessions that the link that is being read has brought too much: output that they do not
    /// take, or early replies. At the end of the read `after_replies` pairs them with the link.
    pub(crate) slowed_by_current_read: Vec<SessionId>,
    /// Sessions that may get more output than they take, each with the link that brings it.
    pub(crate) slow_pairs: Vec<(LinkId, SessionId)>,
    /// State of sessions that is not needed any more. The engine processes it in this turn.
    pub(crate) cleanups: VecDeque<Cleanup>,
    /// Links that are lost, until the engine has handled the loss.
    pub(crate) lost_links: VecDeque<LostLink>,
    /// Links that were not tried because their server is away. Their requests fail in this turn.
    pub(crate) untried: Vec<LinkId>,
    /// Links that woke sessions because they have room for replies. The sessions have not asked
    /// yet.
    pub(crate) reserved_room: Vec<LinkId>,
    /// The links of a tick, listed at its start.
    pub(crate) ticking: Vec<LinkId>,
}

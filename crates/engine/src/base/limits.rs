//! Every maximum of the engine that a client, a server or an operator can meet, in one place, with
//! what happens at it. What only says how much memory is worth keeping stands where it is kept.
//!
//! Limits marked *wire* are Redis's own: a client meets the same error at the same size whether it
//! speaks to us or to the server. The others bound what we hold on behalf of others.

use respool_protocol::request::UNAUTHENTICATED_BULK_BYTES_MAX;

/// The named bounds of one worker. Sizes in bytes, counts without unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sessions of the whole process. At it: the newcomer is told so and closed, as Redis does.
    pub sessions_max: u32,
    /// Requests of one session that are not answered yet. At it: the session is not read.
    pub session_depth_max: u32,
    /// Reply bytes a session has not taken. At it: the session is not read, and a link that is
    /// bringing it more replies stops being shared (see `Link` for what that means).
    pub session_output_soft_bytes: u32,
    /// Reply bytes a session has not taken, at which the link that brings more is not read either,
    /// for as long as [`Limits::session_stall_ms`] allows; then the session is closed.
    pub session_output_hard_bytes: u32,
    /// How long a session at its hard output bound may take nothing at all before it is closed,
    /// milliseconds.
    pub session_stall_ms: u32,
    /// Bytes of requests that are read of a session, and held, while it takes no replies. At it:
    /// the session is closed after [`Limits::session_stall_ms`].
    pub session_input_bytes_max: u32,
    /// How long requests of other sessions may wait behind sessions at their hard output bounds,
    /// milliseconds. The time is summed over all links of a kind and all sessions that block them.
    /// At it: such a session is closed.
    pub stranger_stall_ms: u32,
    /// Bytes of an incomplete request held for scanning. A request that is larger is cut through
    /// to the server on a link of its own.
    pub request_held_bytes_max: u32,
    /// Links of one worker on which one large request each travels. At it: the next one waits.
    pub streaming_links_max: u32,
    /// Links of one worker to all servers, except those that sessions have for themselves; or four
    /// for each node of its Clusters, if that is more: they may grow. At it: the idlest link makes
    /// room. If none is idle, what needs one more waits until its deadline.
    pub links_max: u32,
    /// Links of one worker that one session each has for itself: because it waits there (BLPOP), or
    /// for what the server knows about it (WATCH, CLIENT TRACKING, MONITOR), or to stand for it
    /// (REDIRECT). A session that tracks at several servers has one to each. At it: as
    /// [`Settings::pinned_links_full`](crate::settings::Settings::pinned_links_full) says.
    pub pinned_links_max: u32,
    /// Bytes that a session may queue between MULTI and EXEC. At it: the transaction is refused.
    pub transaction_bytes_max: u32,
    /// Channels and patterns that one session may subscribe to. At it: what would pass it is
    /// refused.
    pub session_subscriptions_max: u32,
    /// Channels and patterns that all sessions of one worker may subscribe to, each for itself. At
    /// it: the same.
    pub worker_subscriptions_max: u32,
    /// Requests on one link that are not answered yet. At it: the sessions that add more wait.
    pub link_ledger_max: u32,
    /// Bytes of requests on one link that are not answered yet; they are kept until then. It is a
    /// 64th of [`Limits::worker_memory_bytes_max`] at the most. At it: the sessions that add more
    /// wait.
    pub link_unanswered_bytes_max: u32,
    /// Bytes of memory that one worker holds for its sessions. At seven eighths of it: sessions
    /// that have not authenticated and old incomplete requests are given up, and the session that
    /// is owed most is not read. At it: that session is closed.
    pub worker_memory_bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            sessions_max: 10_000,
            session_depth_max: 4_096,
            session_output_soft_bytes: 1 << 20,
            session_output_hard_bytes: 32 << 20,
            session_stall_ms: 10_000,
            session_input_bytes_max: 64 << 20,
            stranger_stall_ms: 300,
            request_held_bytes_max: 256 << 10,
            streaming_links_max: 16,
            links_max: 128,
            pinned_links_max: 1_024,
            transaction_bytes_max: 64 << 20,
            session_subscriptions_max: 65_536,
            worker_subscriptions_max: 1 << 20,
            link_ledger_max: 65_536,
            link_unanswered_bytes_max: 4 << 20,
            worker_memory_bytes_max: 1 << 30,
        }
    }
}

/// What one link may hold, so that the links to many databases together hold a part of
/// [`Limits::worker_memory_bytes_max`].
pub(crate) fn unanswered_bytes_max(limits: &Limits) -> u32 {
    let most = (limits.worker_memory_bytes_max / UNANSWERED_SHARE).max(UNANSWERED_BYTES_MIN);
    u32::try_from(most).unwrap_or(u32::MAX)
}

/// A link holds one part of so many of [`Limits::worker_memory_bytes_max`], or this many bytes.
const UNANSWERED_SHARE: u64 = 64;
const UNANSWERED_BYTES_MIN: u64 = 64 << 10;

/// What several servers may answer to the requests of one session before one of them is whole: MGET
/// and KEYS are put together here. At it: an error, or the session is closed where several such
/// requests come to that together.
pub(crate) fn gathered_bytes_max(limits: &Limits) -> usize {
    let most = limits.worker_memory_bytes_max / GATHERED_SHARE;
    let most = most.max(limits.session_output_hard_bytes.into());
    usize::try_from(most).unwrap_or(usize::MAX)
}

/// The option that this bound comes from, with its value.
pub(crate) fn gathered_bytes_option(limits: &Limits) -> String {
    let (memory, hard) = (
        limits.worker_memory_bytes_max,
        limits.session_output_hard_bytes,
    );
    match memory / GATHERED_SHARE >= u64::from(hard) {
        true => format!("an eighth of worker-memory-bytes-max, which is {memory}"),
        false => format!("session-output-hard-bytes, which is {hard}"),
    }
}

/// One session holds one part of so many of [`Limits::worker_memory_bytes_max`] that way, or
/// [`Limits::session_output_hard_bytes`].
const GATHERED_SHARE: u64 = 8;

/// The least value of [`Limits::worker_memory_bytes_max`] that the options take.
pub const WORKER_MEMORY_BYTES_MIN: u64 = 1 << 20;

/// Bytes of requests that one session may have held before it has authenticated: AUTH with a name
/// and a password of the longest kind. At it: a request that is not whole is refused, and the
/// session closed; a session that waits for the answer to AUTH is not read.
pub const UNAUTHENTICATED_HELD_BYTES_MAX: usize =
    2 * UNAUTHENTICATED_BULK_BYTES_MAX as usize + (4 << 10);

/// The sessions of a worker that have not authenticated may together hold
/// [`Limits::worker_memory_bytes_max`] divided by this. At it: the sessions that hold most are
/// closed, until half of that is held.
pub const UNAUTHENTICATED_SHARE: usize = 16;

// One of them is never closed for what it may hold.
const _: () = assert!(
    UNAUTHENTICATED_HELD_BYTES_MAX as u64 <= WORKER_MEMORY_BYTES_MIN / UNAUTHENTICATED_SHARE as u64
);

/// When memory is short, a request that has been incomplete for so long is given up before any
/// output, milliseconds. Younger requests are given up only if incomplete requests fill the memory.
pub const INCOMPLETE_OLD_MS: u32 = 1_000;

/// Bytes of invalidations that one session has not been told, because they wait for its replies. At
/// it: the session is told to forget all keys.
pub const INVALIDATIONS_HELD_BYTES_MAX: usize = 64 << 10;

/// Bytes of the CLIENT TRACKING requests that are kept for one session, to be sent on its later
/// links. At it: the next one is refused.
pub const TRACKING_BYTES_MAX: usize = 16 << 10;

/// The longest name that a client may give itself or its library: every session may keep three.
pub const NAME_BYTES_MAX: usize = 1 << 10;

/// Bytes of one MGET or MSET that we make of many requests. At it: another one, as at
/// [`FlushRule::fused_keys_max`](crate::settings::FlushRule::fused_keys_max).
pub const FUSED_BYTES_MAX: usize = 8 << 10;
/// Bytes that a session sends while something of it that has left with others is not answered. At
/// it: it is not read.
pub const FUSED_WAITING_BYTES_MAX: usize = 64 << 10;
/// How long ago a user may have been seen to have the right to GET, or to SET, milliseconds. Half
/// of it later one request goes by itself to see it again; after all of it nothing is fused until
/// it is seen.
pub const RIGHT_SEEN_MS: u64 = 1_000;

/// Bytes a second that a request on a streaming link must bring, or its reply take away, while
/// others wait for one. The slowest session below that loses its link.
pub const UPLOAD_BYTES_PER_S_MIN: u64 = 64 << 10;
/// How long the rate of a session on a streaming link is measured before it counts, milliseconds.
pub const UPLOAD_WINDOW_MS: u64 = 1_000;
/// How long a session may hold a streaming link below [`UPLOAD_BYTES_PER_S_FAIR`] while others wait
/// for one, milliseconds. Half of the deadline of a request, if that is less.
pub const UPLOAD_HELD_MS: u32 = 5_000;
/// Bytes a second at which a session may hold a streaming link until its request has come whole,
/// though others wait. The largest value of a server, 512 MiB, takes two minutes.
pub const UPLOAD_BYTES_PER_S_FAIR: u64 = 4 << 20;

/// How long a session may hold a link of its own by WATCH alone while others wait for one,
/// milliseconds. Half of the deadline of a request, if that is less. Then its EXEC answers nil.
pub const WATCH_HELD_MS: u32 = 3_000;

/// Links to one server that were left to what they owe, with a successor each, or are about to be.
/// The successors are outside `links_max`, so others get the server's BUSY at that bound, too. At
/// it: no further link is left.
pub const TAKEOVER_LINKS_PER_SERVER: usize = 2;

/// Bytes of requests that are sent again on a successor. At it: further sessions wait for the link
/// that was left. A large pipeline of reads takes less.
pub const TAKEOVER_BYTES_MAX: usize = 1 << 20;

/// Links to one server for SCRIPT KILL, FUNCTION KILL, FUNCTION STATS and SHUTDOWN, one command
/// each, if no other link is left for them. They are outside all other bounds, and stay for [`LINK_UNUSED_MS`].
/// At it: the next such command waits.
pub const EMERGENCY_LINKS_PER_SERVER: usize = 2;

/// Questions of one kind (CLIENT LIST, PAUSE, UNBLOCK, and others) to all workers that are not
/// answered yet. At it: the next session waits, for [`QUESTION_MS`] at the most. A session has one
/// under way.
pub const QUESTIONS_MAX: usize = 64;

/// Options that one session sets for all workers, by CONFIG SET, of which not every worker knows
/// yet. At it: the next one is refused.
pub const SETTINGS_PER_SESSION_MAX: usize = 16;

/// Links of one worker that a server has refused, and that no session needs. At it: the oldest one
/// is forgotten.
pub const REFUSED_LINKS_MAX: usize = 16;

/// Bytes of requests to subscribe, or to leave, that one link has not answered. At it: the next
/// ones wait.
pub const SUBSCRIBING_BYTES_MAX: usize = 128 << 10;

/// How long a question to all workers may wait for its turn, and then for its answers,
/// milliseconds. At it: the client gets an error.
pub const QUESTION_MS: u32 = 5_000;

/// How long the requests for a new owner of keys wait until its keyspace notifications are
/// subscribed to, milliseconds. At it: they leave, and the notifications of the first may be lost.
pub const BRANCH_WAIT_MS: u64 = 100;

/// A link that nobody has needed for this long is closed, milliseconds: a hub's without
/// subscriptions, a session's own that was given back, a shared one without riders, but for the
/// first one of a server.
pub const LINK_UNUSED_MS: u32 = 10_000;

/// Bytes of an open batch at which it leaves although the link is busy: what Redis reads at once
/// (its `PROTO_IOBUF_LEN`), so a larger batch would save the server nothing.
pub const BATCH_BYTES_MAX: usize = 16 << 10;
/// The same where most of it may leave together: as one they take about half as much, and the more
/// there are, the more are the same.
pub const JOINED_BATCH_BYTES_MAX: usize = 2 * BATCH_BYTES_MAX;

/// Bytes of answers that wait for the rest, where several servers were asked at once. At it: they
/// are written.
pub const KEPT_BYTES_MAX: usize = BATCH_BYTES_MAX;

/// Reply bytes that one session may be owed at a time on a link that all share, by the sizes of its
/// last large replies. Above: it rides apart, on a link for large readers.
pub const REPLIES_OWED_MAX: u64 = 256 << 10;

/// Bytes of a reply below which it does not count for [`REPLIES_OWED_MAX`].
pub const LARGE_REPLY_BYTES: usize = 4 << 10;

/// Links of one kind, for each worker, that large readers share.
pub const LARGE_READER_LINKS: u8 = 2;

/// Links of one kind, for each worker, that slow readers share. All links apart together are at
/// most a quarter of [`Limits::links_max`]. At it: these sessions ride with all others.
pub const SLOW_READER_LINKS: u8 = 2;

/// Links of one kind, for each worker, for code that has not come back quickly (see `quick_code.rs`).
/// Together they are at most a quarter of [`Limits::links_max`]. At it: code travels with all requests.
pub const CODE_LINKS: u8 = 1;

/// How long code goes on a link apart after a link was stuck behind it, milliseconds.
pub const CODE_SLOW_MS: u32 = 60_000;

/// Scripts, functions and commands that one worker knows to be quick or slow. At it: those that
/// were not used lately are forgotten.
pub const QUICK_CODE_MAX: usize = 8 << 10;

/// How long a session rides apart after it was last seen as a large or slow reader, milliseconds.
pub const APART_MS: u32 = 60_000;

/// Sessions of one worker that ride apart. At it: the next one rides with all others.
pub const APART_SESSIONS_MAX: usize = 4 << 10;

/// The wait of strangers behind slow readers is forgiven by one part in so many of the time that
/// passes. In the long run strangers wait for 2 % of the time.
pub const STRANGERS_WAIT_SHARE: u64 = 50;

/// Tokens for links younger than a second to one server that connect again at once when they are
/// lost while the server is well. A link that answered something takes one token, another link
/// takes [`RECONNECT_UNANSWERED_TOKENS`]. At it: such links rest first, and requests fail
/// ...
pub const RECONNECT_TOKENS_MAX: u32 = 100;
/// ... until a token has grown, milliseconds for each.
pub const RECONNECT_TOKEN_MS: u32 = 20;
/// Tokens that a link takes which answered nothing, while another link to its server is up.
pub const RECONNECT_UNANSWERED_TOKENS: u32 = 20;

/// Bytes of the scripts that one worker remembers. At it: those that were not used for the longest
/// time are forgotten.
pub const SCRIPT_BYTES_MAX: usize = 4 << 20;

/// Users that have shown one script by EVAL, as many as respool remembers for each script. At it:
/// the script is not loaded for further users that may not load it themselves.
pub const SCRIPT_USERS_MAX: usize = 16;

/// How long the link of a user that is connected waits for the configured user to load the scripts
/// that its requests name, milliseconds. At it: they leave, and may be answered by NOSCRIPT.
pub const SCRIPTS_WAIT_MS: u64 = 500;

/// How long the configured user does not load a script again that a server has refused,
/// milliseconds.
pub const SCRIPTS_REFUSED_MS: u64 = 1_000;

/// Scripts that respool knows to be loaded on one connection, or by the configured user at one
/// server. At it: they are loaded again.
pub const SCRIPTS_LOADED_MAX: usize = 4_096;

/// Sessions to which one transaction may redirect what it tracks: each has a link that stands for
/// it, out of those that have a bound, as long as the transaction is open.
pub const REDIRECTS_QUEUED_MAX: usize = 4;

/// Sentinels that one worker listens to for one pool. Others are listened to when of these one is
/// gone.
pub const SENTINELS_WATCHED_MAX: usize = 5;

/// See [`Limits::links_max`].
pub const LINKS_PER_SERVER: usize = 4;

/// Servers that one worker knows of, in all its pools, with those that are gone. At it: what a
/// Cluster's nodes say of another one is not followed.
pub const SERVERS_MAX: usize = 8 << 10;

/// Replicas of one primary that are read. At it: what is said of others is left alone.
pub const REPLICAS_READ_MAX: usize = 32;

/// Servers of which INFO says how they fare. At it: those that are up are left out first.
pub const SERVERS_SHOWN_MAX: usize = 256;

/// Links of one worker to one server that try the logins of clients and check the configured login.
/// They do not count among [`Limits::links_max`]. At it: logins wait for one another.
pub const LOGIN_PROBES_PER_SERVER: usize = 2;

/// Logins that one probing link is asked about at once. At it: the next ones wait.
pub const LOGINS_PER_PROBE: usize = 16;

/// Logins of one worker that wait for a probing link. At it: the next one is refused.
pub const LOGIN_QUEUE_MAX: usize = 1 << 10;

/// Addresses of which one process remembers wrong passwords. At it: the address with the least
/// score is forgotten.
pub const GUESSERS_MAX: usize = 4 << 10;

/// Wrong passwords of one address that cost no delay. From there on each doubles the delay of the
/// address's next login.
pub const GUESSES_FREE: u32 = 8;

/// The delay of a login after [`GUESSES_FREE`] wrong passwords of its address ...
pub const GUESS_DELAY_MS_MIN: u32 = 50;
/// ... and after many, milliseconds ...
pub const GUESS_DELAY_MS_MAX: u32 = 1_000;
/// ... and the same for all sockets of the file system, milliseconds.
pub const SOCKET_GUESS_DELAY_MS_MAX: u32 = 200;

/// Wrong passwords of one address that count. At it: another one changes nothing.
pub const GUESS_SCORE_MAX: u32 = 16;

/// In this time one wrong password of an address is forgiven, milliseconds.
pub const GUESS_FORGIVEN_MS: u32 = 5_000;

/// From one login that had to wait to the next one of its address, microseconds.
pub const GUESS_SPACING_US: u32 = 5_000;

/// Scripts in use that are spared, and told to the other workers, while one is forgotten. At it:
/// the next one is forgotten though it is in use.
pub const SPARED_SCRIPTS_MAX: usize = 64;

/// From one new login to the next one of an address that has sent no wrong password,
/// microseconds, once [`GUESSES_FREE`] of them have no answer.
pub const LOGIN_SPACING_US: u32 = 1_000;

/// So far ahead such turns are given; from there on they are [`GUESS_SPACING_US`] apart,
/// milliseconds.
pub const LOGIN_BURST_MS: u32 = 500;

/// How long a login waits for its turn because of wrong passwords of its address, milliseconds. At
/// it: refused, untried.
pub const GUESS_WAIT_MS_MAX: u32 = 2_000;

/// How often the log tells the wrong passwords of one address, milliseconds.
pub const GUESS_REPORT_MS: u64 = 60_000;

// A login that waits alone is tried.
const _: () = assert!(GUESS_DELAY_MS_MAX < GUESS_WAIT_MS_MAX && GUESSES_FREE < GUESS_SCORE_MAX);

/// Bytes of a name and a password that a client may log in with. At it: refused, without asking a
/// server.
pub const CREDENTIALS_BYTES_MAX: usize = 8 << 10;

/// Blocking commands that one worker polls in one tick, where no pinned link is free. At it: the
/// others take their turn in the next ticks.
pub const POLLS_PER_TICK: usize = 64;
/// From one poll for a blocking command to the next, milliseconds.
pub const POLL_AGAIN_MS: u32 = 100;

/// Users of servers whose passwords clients have given to one worker, and who are still in use.
pub const LOGINS_MAX: usize = 1 << 10;
/// Passwords of one user of a pool's servers that links greet with. At it: a session with another
/// password that a server accepts rides on links that greet with the newest of these.
pub const PASSWORDS_OF_USER_MAX: usize = 4;
/// Databases of a login for which respool remembers the login that selected them. At it: the oldest
/// is forgotten.
pub const DATABASES_OF_LOGIN_MAX: usize = 16;

/// Commands that the table does not have of which one worker remembers what a server said. At it:
/// all are forgotten, and asked for again.
pub const LEARNED_COMMANDS_MAX: usize = 1 << 10;

/// Addresses of one Cluster that a redirect has named, and no topology answer yet. The same number
/// holds for addresses that a node has named since. At it: the oldest one is forgotten.
pub const ADDRESSES_SOUGHT_MAX: usize = 64;

/// The most entries of one address map: as many as a Cluster may have nodes.
pub const ADDRESS_MAP_MAX: usize = 4_096;

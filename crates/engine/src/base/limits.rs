//! Every limit of the engine that a client, a server or an operator can meet, with its effect.
//! Sizes of buffers and caches that nothing depends on stand where they are used.

use respool_protocol::request::UNAUTHENTICATED_BULK_BYTES_MAX;

/// The named bounds of one worker. Sizes in bytes, counts without unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sessions of the whole process. At the limit: a new client gets an error and is closed, as in
    /// Redis.
    pub sessions_max: u32,
    /// Unanswered requests of one session. At the limit: the session is not read.
    pub session_pipeline_max: u32,
    /// Reply bytes that a session has not taken. At the limit: the session is not read, and a
    /// shared link that brings more for it is drained (see `Link`).
    pub session_output_soft_bytes: u32,
    /// Reply bytes that a session has not taken, at which the link that brings more is not read
    /// either, for [`Limits::session_stall_ms`] at most. Then the session is closed.
    pub session_output_hard_bytes: u32,
    /// How long a session at its hard output limit may take nothing before it is closed,
    /// milliseconds.
    pub session_stall_ms: u32,
    /// Bytes of requests that respool reads and holds for a session that takes no replies. At the
    /// limit: the session is closed after [`Limits::session_stall_ms`].
    pub session_input_bytes_max: u32,
    /// How long requests of other sessions may wait behind sessions at their hard output limits,
    /// milliseconds. The time is summed over all links of a kind and all sessions that block them.
    /// At the limit: such a session is closed.
    pub head_of_line_stall_ms: u32,
    /// Bytes of an incomplete request that are held for scanning. A larger request is streamed to
    /// the server on a link of its own.
    pub request_held_bytes_max: u32,
    /// Links of one worker that stream one large request each. At the limit: the next large request
    /// waits.
    pub streaming_links_max: u32,
    /// Links of one worker to all servers, except links of one session. It is raised to four for
    /// each node of its Clusters, because they may grow. At the limit: the link that was idle
    /// longest is closed. If none is idle, requests that need another link wait until their
    /// deadline.
    pub links_max: u32,
    /// Links of one worker that one session each has for itself: it waits there (BLPOP), the server
    /// keeps state for it (WATCH, CLIENT TRACKING, MONITOR), or the link stands for it (REDIRECT).
    /// A session that tracks at several servers has one to each. At the limit:
    /// [`Settings::pinned_links_full`](crate::base::settings::Settings::pinned_links_full) decides.
    pub pinned_links_max: u32,
    /// Bytes that a session may queue between MULTI and EXEC. At the limit: the transaction is
    /// refused.
    pub transaction_bytes_max: u32,
    /// Channels and patterns of one session. At the limit: further ones are refused.
    pub session_subscriptions_max: u32,
    /// Channels and patterns of all sessions of one worker, counted for each session. At the limit:
    /// further ones are refused.
    pub worker_subscriptions_max: u32,
    /// Unanswered requests of one link. At the limit: sessions with further requests wait.
    pub link_unanswered_requests_max: u32,
    /// Bytes of unanswered requests of one link, which are kept until they are answered. At most a
    /// 64th of [`Limits::worker_memory_bytes_max`]. At the limit: sessions with further requests
    /// wait.
    pub link_unanswered_bytes_max: u32,
    /// Bytes of memory that one worker holds for its sessions. At seven eighths of it: sessions
    /// that have not authenticated and old incomplete requests are dropped, and the session with
    /// most output is not read. At the limit: that session is closed.
    pub worker_memory_bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            sessions_max: 10_000,
            session_pipeline_max: 4_096,
            session_output_soft_bytes: 1 << 20,
            session_output_hard_bytes: 32 << 20,
            session_stall_ms: 10_000,
            session_input_bytes_max: 64 << 20,
            head_of_line_stall_ms: 300,
            request_held_bytes_max: 256 << 10,
            streaming_links_max: 16,
            links_max: 128,
            pinned_links_max: 1_024,
            transaction_bytes_max: 64 << 20,
            session_subscriptions_max: 65_536,
            worker_subscriptions_max: 1 << 20,
            link_unanswered_requests_max: 65_536,
            link_unanswered_bytes_max: 4 << 20,
            worker_memory_bytes_max: 1 << 30,
        }
    }
}

/// The greatest [`Limits::link_unanswered_bytes_max`]: the links to many databases together hold a
/// part of [`Limits::worker_memory_bytes_max`].
pub(crate) fn unanswered_bytes_max(limits: &Limits) -> u32 {
    let most = (limits.worker_memory_bytes_max / UNANSWERED_DIVISOR).max(UNANSWERED_BYTES_MIN);
    u32::try_from(most).unwrap_or(u32::MAX)
}

/// A link may hold [`Limits::worker_memory_bytes_max`] divided by this.
const UNANSWERED_DIVISOR: u64 = 64;
/// The least bytes that a link may hold.
const UNANSWERED_BYTES_MIN: u64 = 64 << 10;

/// Bytes of parts that several servers have answered to the requests of one session, before any
/// reply is whole: replies to MGET and KEYS are merged here. At the limit: an error. If several
/// such requests of the session reach it together, the session is closed.
pub(crate) fn parts_bytes_max(limits: &Limits) -> usize {
    let most = limits.worker_memory_bytes_max / GATHERED_DIVISOR;
    let most = most.max(limits.session_output_hard_bytes.into());
    usize::try_from(most).unwrap_or(usize::MAX)
}

/// The option from which [`parts_bytes_max`] comes, with its value.
pub(crate) fn parts_bytes_option(limits: &Limits) -> String {
    let (memory, hard) = (
        limits.worker_memory_bytes_max,
        limits.session_output_hard_bytes,
    );
    match memory / GATHERED_DIVISOR >= u64::from(hard) {
        true => format!("an eighth of worker-memory-bytes-max, which is {memory}"),
        false => format!("session-output-hard-bytes, which is {hard}"),
    }
}

/// The parts of one session may hold [`Limits::worker_memory_bytes_max`] divided by this, or
/// [`Limits::session_output_hard_bytes`] if that is more.
const GATHERED_DIVISOR: u64 = 8;

/// The least value of [`Limits::worker_memory_bytes_max`] in options.
pub const WORKER_MEMORY_BYTES_MIN: u64 = 1 << 20;

/// Bytes of requests held for one session that has not authenticated: AUTH with the longest name
/// and password. At the limit: an incomplete request is refused and the session closed; a session
/// that waits for the reply to AUTH is not read.
pub const UNAUTHENTICATED_HELD_BYTES_MAX: usize =
    2 * UNAUTHENTICATED_BULK_BYTES_MAX as usize + (4 << 10);

/// The sessions of a worker that have not authenticated may together hold
/// [`Limits::worker_memory_bytes_max`] divided by this. At the limit: sessions are closed, the
/// largest first, until half of that is held.
pub const UNAUTHENTICATED_DIVISOR: usize = 16;

// One session alone never reaches the bound of all.
const _: () = assert!(
    UNAUTHENTICATED_HELD_BYTES_MAX as u64
        <= WORKER_MEMORY_BYTES_MIN / UNAUTHENTICATED_DIVISOR as u64
);

/// When memory is short, requests that have been incomplete for this long are dropped before any
/// output, milliseconds. Younger ones are dropped only if incomplete requests fill the memory.
pub const INCOMPLETE_OLD_MS: u32 = 1_000;

/// Bytes of invalidations that wait for the replies of one session. At the limit: the client is
/// told to forget all keys.
pub const INVALIDATIONS_HELD_BYTES_MAX: usize = 64 << 10;

/// Bytes of the CLIENT TRACKING requests that are kept for one session, to be sent on its later
/// links. At the limit: the next one is refused.
pub const TRACKING_BYTES_MAX: usize = 16 << 10;

/// The longest name that a client may give itself or its library, bytes. A session may have three
/// such names.
pub const NAME_BYTES_MAX: usize = 1 << 10;

/// Bytes of one MGET or MSET that respool makes of many requests. At the limit: another one begins,
/// as at [`FlushRule::fused_keys_max`](crate::base::settings::FlushRule::fused_keys_max).
pub const FUSED_BYTES_MAX: usize = 8 << 10;
/// Bytes that a session sends while a joined request of it is unanswered. At the limit: the session
/// is not read.
pub const FUSED_WAITING_BYTES_MAX: usize = 64 << 10;
/// How long the proof counts that a user has the right to GET, or to SET, milliseconds. After half
/// of it one request leaves alone to renew the proof. After all of it nothing is joined until it is
/// renewed.
pub const RIGHT_SEEN_MS: u64 = 1_000;

/// Bytes a second that a request on a streaming link must bring, or its reply take away, while
/// other sessions wait for one. The slowest session below that loses its link.
pub const UPLOAD_BYTES_PER_S_MIN: u64 = 64 << 10;
/// How long the rate of a session on a streaming link is measured before it counts, milliseconds.
pub const UPLOAD_WINDOW_MS: u64 = 1_000;
/// How long a session may hold a streaming link below [`UPLOAD_BYTES_PER_S_FAIR`] while other
/// sessions wait for one, milliseconds. At most half of the deadline of a request.
pub const UPLOAD_HELD_MS: u32 = 5_000;
/// Bytes a second at which a session may hold a streaming link until its request has come whole,
/// though other sessions wait. The largest value of a server, 512 MiB, takes two minutes.
pub const UPLOAD_BYTES_PER_S_FAIR: u64 = 4 << 20;

/// How long a session may hold a link of its own by WATCH alone while other sessions wait for one,
/// milliseconds. At most half of the deadline of a request. At the limit: the link is taken, and
/// EXEC answers nil.
pub const WATCH_HELD_MS: u32 = 3_000;

/// Links to one server that a successor has replaced or is about to replace, and that still owe
/// replies. The successors do not count for `links_max`, so sessions get the server's BUSY at that
/// limit, too. At the limit: no further link is replaced.
pub const TAKEOVER_LINKS_PER_SERVER: usize = 2;

/// Bytes of requests that are sent again on a successor. At the limit: further sessions wait for
/// the old link. A large pipeline of reads takes less.
pub const TAKEOVER_BYTES_MAX: usize = 1 << 20;

/// Links to one server for SCRIPT KILL, FUNCTION KILL, FUNCTION STATS and SHUTDOWN, one command
/// each, if no other link can carry them. They count for no other limit, and stay for
/// [`LINK_UNUSED_MS`]. At the limit: the next such command waits.
pub const EMERGENCY_LINKS_PER_SERVER: usize = 2;

/// Measurements of the times of requests by command in each worker: those of fixed commands, and
/// `other` for all commands without a name there. Each takes up to 20 KiB, and as much in the
/// worker's report.
pub const LATENCY_COMMANDS_MAX: usize = 64;

/// Arguments of a request that the slow log shows, as many as Redis shows. At the limit: the last
/// one says how many more there are.
pub const SLOW_ARGUMENTS_MAX: usize = 32;

/// Bytes of an argument that the slow log shows, as many as Redis shows. At the limit: the rest is
/// cut.
pub const SLOW_ARGUMENT_BYTES_MAX: usize = 128;

/// Slow requests that a worker logs in one turn. At the limit: the others are left out.
pub const SLOW_PER_TURN_MAX: usize = 16;

/// Places of sessions that a worker looks at in one turn, to have sessions leave a pool that a
/// reload has ended. At the limit: the next turn goes on.
pub const LEAVING_SESSIONS_PER_TURN_MAX: usize = 512;

/// Keys that a worker counts for `RESPOOL HOTKEYS GET`, for each pool. At the limit: a new key
/// takes the counter of the rarest one, and its count may be too large by that one's.
pub const HOT_KEYS_MAX: usize = 128;

/// Bytes of a key that `RESPOOL HOTKEYS GET` counts. At the limit: the rest of the key is left out.
pub const HOT_KEY_BYTES_MAX: usize = 256;

/// Keys of a sampled request that count. At the limit: the other keys do not.
pub const HOT_KEYS_PER_REQUEST_MAX: usize = 32;

/// The longest time that `slowlog-slower-than-us` takes, microseconds: an hour. Stamps of requests
/// wrap after 9.5 hours.
pub const SLOW_US_MAX: u32 = 3_600_000_000;

/// Queries of one kind (CLIENT LIST, PAUSE, UNBLOCK and others) to all workers that are not
/// answered yet; a session has one at a time. At the limit: the next session waits, for
/// [`QUESTION_MS`] at most.
pub const QUESTIONS_MAX: usize = 64;

/// Queries for the slow logs or the hot keys of all workers that are not answered yet. At the limit
/// the next session waits, as at [`QUESTIONS_MAX`].
pub const REPORTS_MAX: usize = 4;

/// Options that one session has set for all workers by CONFIG SET, and that some workers do not
/// have yet. At the limit: the next one is refused.
pub const SETTINGS_PER_SESSION_MAX: usize = 16;

/// The pause between attempts to connect to a server that refuses links without a login, because
/// its clients log in.
pub const NEEDS_LOGIN_MS: u32 = 2_000;

/// Links of one worker that a server has refused and that no session needs. At the limit: the
/// oldest one is removed.
pub const REFUSED_LINKS_MAX: usize = 16;

/// Bytes of SUBSCRIBE, UNSUBSCRIBE and the like that are unanswered on one link. At the limit:
/// further ones wait.
pub const SUBSCRIBING_BYTES_MAX: usize = 128 << 10;

/// How long a query to all workers may wait to be sent, and then for its answers, milliseconds. At
/// the limit: the client gets an error.
pub const QUESTION_MS: u32 = 5_000;

/// How long requests for a new owner of keys wait until respool subscribes to its keyspace
/// notifications, milliseconds. At the limit: they leave, and the first notifications may be lost.
pub const BRANCH_WAIT_MS: u64 = 100;

/// A link without use for this long is closed, milliseconds: the link of a hub without
/// subscriptions, an idle link that was given back, or a shared link without sessions, except the
/// first one to a server.
pub const LINK_UNUSED_MS: u32 = 10_000;

/// Bytes of an open batch at which it leaves although the link is busy. Redis reads this much at
/// once (its `PROTO_IOBUF_LEN`), so a larger batch would save the server nothing.
pub const BATCH_BYTES_MAX: usize = 16 << 10;
/// Bytes of an open batch at which it leaves although the link is busy, if most of its requests may
/// be joined. Joined they take about half the bytes, and the more there are, the more are equal.
pub const JOINED_BATCH_BYTES_MAX: usize = 2 * BATCH_BYTES_MAX;

/// Bytes of replies that wait for the rest of a session's replies, where several servers were asked
/// at once. At the limit: they are written.
pub const KEPT_BYTES_MAX: usize = BATCH_BYTES_MAX;

/// Reply bytes that a shared link may owe one session at a time, estimated by the sizes of its last
/// large replies. Above: the session goes on a link for large readers.
pub const REPLIES_OWED_MAX: u64 = 256 << 10;

/// Bytes of a reply below which it does not count for [`REPLIES_OWED_MAX`].
pub const LARGE_REPLY_BYTES: usize = 4 << 10;

/// Links of one kind, for each worker, that large readers share.
pub const LARGE_READER_LINKS: u8 = 2;

/// Links of one kind, for each worker, that slow readers share. All links in lanes together are at
/// most a quarter of [`Limits::links_max`]. At the limit: slow readers stay on the link of all
/// other sessions.
pub const SLOW_READER_LINKS: u8 = 2;

/// Links of one kind, for each worker, for code that has not come back quickly (see
/// `quick_code.rs`). Together they are at most a quarter of [`Limits::links_max`]. At the limit:
/// code stays on the link of all other requests.
pub const CODE_LINKS: u8 = 1;

/// How long code goes on a link of the code lane after a link was stuck behind it, milliseconds.
pub const CODE_SLOW_MS: u32 = 60_000;

/// Scripts, functions and commands that one worker knows to be quick or slow. At the limit: those
/// that were not used lately are forgotten.
pub const QUICK_CODE_MAX: usize = 8 << 10;

/// How long a session stays in its lane after it was last seen as a large or slow reader,
/// milliseconds.
pub const APART_MS: u32 = 60_000;

/// Sessions of one worker in lanes for readers. At the limit: the next one stays on the link of all
/// other sessions.
pub const APART_SESSIONS_MAX: usize = 4 << 10;

/// The time for which sessions have waited behind slow readers shrinks by the time that passes,
/// divided by this. In the long run sessions wait for 2 % of the time.
pub const STRANGERS_WAIT_DIVISOR: u64 = 50;

/// Tokens by which links younger than a second, to one server, connect again at once when they are
/// lost while the server is well. A link that has answered takes one token, another link takes
/// [`RECONNECT_UNANSWERED_TOKENS`]. At the limit: such links back off first, and requests fail.
pub const RECONNECT_TOKENS_MAX: u32 = 100;
/// The time in which one such token grows, milliseconds.
pub const RECONNECT_TOKEN_MS: u32 = 20;
/// Tokens that a link takes which has answered nothing, while another link to its server is up.
pub const RECONNECT_UNANSWERED_TOKENS: u32 = 20;

/// Bytes of the scripts that one worker remembers. At the limit: the scripts that were unused
/// longest are forgotten.
pub const SCRIPT_BYTES_MAX: usize = 4 << 20;

/// Users that have shown one script by EVAL, as many as respool remembers for each script. At the
/// limit: the script is not loaded for further users that may not load it themselves.
pub const SCRIPT_USERS_MAX: usize = 16;

/// How long a link of another user waits for the configured user to load the scripts that its
/// requests name, milliseconds. At the limit: the requests leave, and may be answered by NOSCRIPT.
pub const SCRIPTS_WAIT_MS: u64 = 500;

/// How long the configured user does not load a script again that a server has refused,
/// milliseconds.
pub const SCRIPTS_REFUSED_MS: u64 = 1_000;

/// Scripts that respool knows to be loaded on one connection, or by the configured user at one
/// server. At the limit: they are loaded again.
pub const SCRIPTS_LOADED_MAX: usize = 4_096;

/// Sessions to which one transaction may redirect its tracking. While the transaction is open, each
/// has a link that stands for it and counts for `pinned_links_max`.
pub const REDIRECTS_QUEUED_MAX: usize = 4;

/// Sentinels that one worker listens to for one pool. Another one is taken when one of these is
/// gone.
pub const SENTINELS_WATCHED_MAX: usize = 5;

/// Links of one worker for each node of its Clusters, see [`Limits::links_max`].
pub const LINKS_PER_SERVER: usize = 4;

/// Servers that one worker knows in all its pools, those that are gone included. At the limit:
/// further nodes of a Cluster are ignored.
pub const SERVERS_MAX: usize = 8 << 10;

/// Servers that all pools since the start have named, those that reloads have ended included.
/// Beyond it, a reload that changes pools is refused. Each has an entry among [`SERVERS_MAX`], and
/// discovery needs the rest. Each pool and each prefix names a server, so it bounds pools, too.
pub const SERVERS_EVER_MAX: usize = SERVERS_MAX / 2;

const _: () = assert!(
    2 * SERVERS_EVER_MAX <= u16::MAX as usize,
    "a session has the index of its pool in 16 bits"
);

/// Replicas of one primary that are read. At the limit: further replicas are ignored.
pub const REPLICAS_READ_MAX: usize = 32;

/// Servers in INFO. At the limit: servers that are up are left out first.
pub const SERVERS_SHOWN_MAX: usize = 256;

/// Servers in a worker's report, from which metrics are made.
pub const SERVERS_REPORTED_MAX: usize = 1_024;

/// Links of one worker to one server that try the logins of clients and check the configured login.
/// They do not count for [`Limits::links_max`]. At the limit: logins wait for one another.
pub const LOGIN_PROBES_PER_SERVER: usize = 2;

/// Logins that one probing link tries at once. At the limit: further logins wait.
pub const LOGINS_PER_PROBE: usize = 16;

/// Logins of one worker that wait for a probing link. At the limit: the next one is refused.
pub const LOGIN_QUEUE_MAX: usize = 1 << 10;

/// Addresses for which one process remembers wrong passwords. At the limit: the address with the
/// least score is forgotten.
pub const GUESSERS_MAX: usize = 4 << 10;

/// Wrong passwords of one address that cost no delay. Each further one doubles the delay of the
/// address's next login.
pub const GUESSES_FREE: u32 = 8;

/// The delay of a login after [`GUESSES_FREE`] wrong passwords of its address, milliseconds.
pub const GUESS_DELAY_MS_MIN: u32 = 50;
/// The longest delay of a login after wrong passwords of its address, milliseconds.
pub const GUESS_DELAY_MS_MAX: u32 = 1_000;
/// The longest delay of a login by a socket of the file system, milliseconds. All such sockets
/// count as one address.
pub const SOCKET_GUESS_DELAY_MS_MAX: u32 = 200;

/// Wrong passwords of one address that count. At the limit: another one changes nothing.
pub const GUESS_SCORE_MAX: u32 = 16;

/// The time in which one wrong password of an address is forgiven, milliseconds.
pub const GUESS_FORGIVEN_MS: u32 = 5_000;

/// The time between two logins of an address that had to wait, microseconds.
pub const GUESS_SPACING_US: u32 = 5_000;

/// Scripts in use that are kept, and told to the other workers, while one script is forgotten. At
/// the limit: the next script is forgotten though it is in use.
pub const SPARED_SCRIPTS_MAX: usize = 64;

/// The time between two new logins of an address that has sent no wrong password, microseconds,
/// once [`GUESSES_FREE`] of them are unanswered.
pub const LOGIN_SPACING_US: u32 = 1_000;

/// How far ahead logins are scheduled at that spacing, milliseconds. Later ones are
/// [`GUESS_SPACING_US`] apart.
pub const LOGIN_BURST_MS: u32 = 500;

/// How long a login waits because of wrong passwords of its address, milliseconds. At the limit: it
/// is refused without a try.
pub const GUESS_WAIT_MS_MAX: u32 = 2_000;

/// The time between two log lines on wrong passwords of one address, milliseconds.
pub const GUESS_REPORT_MS: u64 = 60_000;

// A login that waits alone is always tried.
const _: () = assert!(GUESS_DELAY_MS_MAX < GUESS_WAIT_MS_MAX && GUESSES_FREE < GUESS_SCORE_MAX);

/// Bytes of a name and password with which a client logs in. At the limit: refused without asking a
/// server.
pub const CREDENTIALS_BYTES_MAX: usize = 8 << 10;

/// Blocking commands that one worker polls in one tick, when no pinned link is free. At the limit:
/// the others are polled in the next ticks.
pub const POLLS_PER_TICK: usize = 64;
/// The time between two polls of a blocking command, milliseconds.
pub const POLL_AGAIN_MS: u32 = 100;

/// Users in use with passwords that clients have given to one worker.
pub const LOGINS_MAX: usize = 1 << 10;
/// Passwords of one user of a pool's servers with which links log in. At the limit: a session with
/// another valid password uses links with the newest of these.
pub const PASSWORDS_OF_USER_MAX: usize = 4;
/// The time after which a link that is up tries a login again that its server did not accept,
/// milliseconds.
pub const LOGIN_RENEWAL_PAUSE_MS: u32 = 10_000;
/// Databases of a login for which respool remembers the login that selected them. At the limit: the
/// oldest is forgotten.
pub const DATABASES_OF_LOGIN_MAX: usize = 16;

/// Commands outside of the table about which one worker remembers the server's word. At the limit:
/// all are forgotten, and asked for again.
pub const LEARNED_COMMANDS_MAX: usize = 1 << 10;

/// Addresses of one Cluster that a redirect has named and no topology answer yet. As many are
/// remembered that a node has named since. At the limit: the oldest one is forgotten.
pub const ADDRESSES_SOUGHT_MAX: usize = 64;

/// The most entries of one address map: as many as a Cluster may have nodes.
pub const ADDRESS_MAP_MAX: usize = 4_096;

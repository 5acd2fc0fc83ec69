//! Several workers as one, in virtual time: queries to all of them, pauses, and CLIENT INFO.

use crate::world::{World, request, requests, settings, worker};
use respool_engine::limits::{QUESTION_MS, QUESTIONS_MAX};
use respool_engine::settings::Settings;
use respool_engine::{Action, ClientLines, SessionId, Time, WorkerQuery, WorkerReply};

/// respool's own reply to CLIENT GETNAME without a name.
const NO_NAME: &str = "$-1\r\n";

/// Queries and answers between workers, on their way.
enum Post {
    Question(usize, u64, WorkerQuery),
    Answer(u64, WorkerReply),
}

/// The workers of one respool, each with its link up, at the same time.
struct WorkerGroup {
    workers: Vec<World>,
    now: Time,
    /// Messages on their way, each with the index of its worker.
    post: Vec<(usize, Post)>,
}

impl WorkerGroup {
    fn new(count: usize, settings: Settings) -> WorkerGroup {
        let connected = |index| World::new_among(worker(index, count), settings.clone());
        let workers: Vec<World> = (0..count).map(connected).collect();
        WorkerGroup {
            now: workers[0].now,
            workers,
            post: Vec::new(),
        }
    }

    /// Runs a turn of every worker. Messages between them are collected, not delivered.
    fn turn(&mut self) {
        let count = self.workers.len();
        for (from, world) in self.workers.iter_mut().enumerate() {
            world.turn_at(self.now, |_| {});
            for action in std::mem::take(&mut world.actions) {
                match action {
                    Action::Ask { ticket, question } => {
                        for other in (0..count).filter(|&other| other != from) {
                            let question = Post::Question(from, ticket, question.clone());
                            self.post.push((other, question));
                        }
                    }
                    Action::Answer { to, ticket, answer } => {
                        self.post.push((to, Post::Answer(ticket, answer)));
                    }
                    other => world.actions.push(other),
                }
            }
        }
    }

    /// Delivers messages until none is on its way.
    fn deliver(&mut self) {
        self.turn();
        while !self.post.is_empty() {
            for (to, post) in std::mem::take(&mut self.post) {
                let engine = &mut self.workers[to].engine;
                match post {
                    Post::Question(from, ticket, question) => {
                        engine.handle_question(from, ticket, question);
                    }
                    Post::Answer(ticket, answer) => engine.handle_answer(ticket, answer),
                }
            }
            self.turn();
        }
    }

    fn wait_ms(&mut self, ms: u32) {
        self.now = self.now.plus_ms(ms);
        self.turn();
    }

    fn accept(&mut self, worker: usize) -> SessionId {
        self.workers[worker].accept()
    }

    fn client_says(&mut self, worker: usize, session: SessionId, all: &[&str]) {
        let engine = &mut self.workers[worker].engine;
        engine.handle_session_bytes(session, &requests(all));
    }

    /// The server allows these commands when it is asked; the answers count for a second.
    fn may_ask(&mut self, session: SessionId, all: &[&str]) {
        for one in all {
            self.client_says(0, session, &[one]);
            self.turn();
            self.server_says(0, b"+OK\r\n");
            self.turn();
        }
        self.got(0, session);
        self.sent(0);
        self.workers[0].actions.clear();
    }

    fn server_says(&mut self, worker: usize, bytes: &[u8]) {
        let world = &mut self.workers[worker];
        world.engine.handle_link_bytes(world.shared, bytes);
    }

    /// Output of a session since the last call.
    fn got(&mut self, worker: usize, session: SessionId) -> String {
        self.workers[worker].got(session)
    }

    /// Bytes for the server on a worker's shared link since the last call.
    fn sent(&mut self, worker: usize) -> String {
        let world = &mut self.workers[worker];
        world.sent(world.shared)
    }
}

/// If a worker does not answer, the session gets an error in its place, and the replies after it
/// keep their order.
#[test]
fn worker_without_an_answer_leaves_an_error_in_order() {
    let mut group = WorkerGroup::new(3, settings());
    let session = group.accept(0);
    group.may_ask(session, &["CLIENT GETNAME", "CLIENT LIST x"]);
    group.client_says(
        0,
        session,
        &["CLIENT GETNAME", "CLIENT LIST", "CLIENT GETNAME"],
    );
    group.turn();
    assert_eq!(group.got(0, session), NO_NAME, "the reply before it");
    // One worker answers, the other does not.
    let lost = group.post.pop();
    assert!(matches!(lost, Some((2, Post::Question(0, ..)))));
    group.deliver();
    group.wait_ms(QUESTION_MS - 100);
    assert_eq!(group.got(0, session), "");
    group.wait_ms(200);
    let replies = group.got(0, session);
    assert!(replies.starts_with("-UNKNOWN respool: "), "{replies}");
    assert!(replies.ends_with(NO_NAME), "{replies}");
    if let Some((_, Post::Question(_, ticket, _))) = lost {
        group.workers[0]
            .engine
            .handle_answer(ticket, WorkerReply::Lines(ClientLines::default()));
    }
    group.turn();
    assert_eq!(group.got(0, session), "", "an answer that comes too late");
}

/// CLIENT PAUSE is confirmed when all requests that any worker sent before it are answered.
#[test]
fn pause_is_confirmed_when_earlier_requests_are_answered() {
    let mut group = WorkerGroup::new(2, settings());
    let (writer, admin) = (group.accept(1), group.accept(0));
    group.may_ask(admin, &["CLIENT PAUSE x"]);
    group.client_says(1, writer, &["SET a 1", "SET a 2"]);
    group.turn();
    group.wait_ms(10);
    group.client_says(0, admin, &["CLIENT PAUSE 1000 WRITE"]);
    group.client_says(1, writer, &["SET a 3"]);
    group.deliver();
    group.server_says(1, b"+OK\r\n");
    group.deliver();
    assert_eq!(group.got(0, admin), "", "one write is still in flight");
    // A later read is not waited for.
    group.wait_ms(10);
    let reader = group.accept(1);
    group.client_says(1, reader, &["GET a"]);
    group.server_says(1, b"+OK\r\n+OK\r\n");
    group.deliver();
    assert_eq!(group.got(0, admin), "+OK\r\n");
    group.wait_ms(1);
    assert!(group.sent(1).ends_with("GET\r\n$1\r\na\r\n"));
}

/// CLIENT PAUSE waits for an earlier write even if it left after a later request.
#[test]
fn pause_waits_for_earlier_writes_behind_later_requests() {
    let mut settings = settings();
    settings.flush.fuse = true;
    settings.flush.max_delay_us = 50_000;
    let mut group = WorkerGroup::new(2, settings);
    group.workers[1].see_rights();
    group.now = group.workers[1].now;
    let admin = group.accept(0);
    let [a, b, c, busy] = [(); 4].map(|()| group.accept(1));
    group.may_ask(admin, &["CLIENT PAUSE x"]);
    group.client_says(1, busy, &["INCR busy"]);
    group.turn();
    group.client_says(1, a, &["SET a 1"]);
    group.client_says(1, b, &["SET b 1"]);
    group.wait_ms(1);
    group.client_says(0, admin, &["CLIENT PAUSE 1000 WRITE"]);
    group.deliver();
    group.wait_ms(1);
    group.client_says(1, c, &["TTL x"]);
    group.wait_ms(1);
    group.sent(1);
    group.server_says(1, b":1\r\n");
    group.deliver();
    let sent = requests(&["TTL x", "MSET a 1 b 1"]);
    assert_eq!(group.sent(1).as_bytes(), sent);
    group.deliver();
    assert_eq!(group.got(0, admin), "", "two writes are in flight");
    group.server_says(1, b":-2\r\n");
    group.deliver();
    assert_eq!(group.got(0, admin), "");
    group.server_says(1, b"+OK\r\n");
    group.deliver();
    assert_eq!(group.got(0, admin), "+OK\r\n");
}

/// A pause ends at its time, and the held requests leave in the order in which they were held.
#[test]
fn pause_ends_at_its_time_and_held_requests_keep_order() {
    let mut group = WorkerGroup::new(2, settings());
    let admin = group.accept(0);
    group.may_ask(admin, &["CLIENT PAUSE x"]);
    group.client_says(
        0,
        admin,
        &["CLIENT PAUSE 1234 WRITE", "CLIENT PAUSE 3 WRITE"],
    );
    let begin = group.now;
    group.deliver();
    assert_eq!(group.got(0, admin), "+OK\r\n+OK\r\n");
    let sessions: Vec<SessionId> = (0..5).map(|_| group.accept(1)).collect();
    for (at, session) in sessions.iter().enumerate() {
        group.client_says(1, *session, &[&format!("SET k {at}"), "GET k"]);
        group.wait_ms(1);
    }
    let end = group.workers[1]
        .engine
        .deadline()
        .expect("the pause has an end");
    assert_eq!(end, begin.plus_ms(1_234), "the longer of two pauses counts");
    group.now = Time(end.0 - 1);
    group.turn();
    assert_eq!(group.sent(1), "");
    group.now = end;
    group.turn();
    let all = (0..5).flat_map(|at| requests(&[&format!("SET k {at}"), "GET k"]));
    let all: Vec<u8> = all.collect();
    assert_eq!(group.sent(1).as_bytes(), all);
}

/// A paused session is read on within a bound.
#[test]
fn paused_session_is_read_within_a_bound() {
    let settings = settings();
    let bound = settings.limits.request_held_bytes_max as usize;
    let mut group = WorkerGroup::new(1, settings);
    let (admin, writer) = (group.accept(0), group.accept(0));
    group.may_ask(admin, &["CLIENT PAUSE x"]);
    group.client_says(0, admin, &["CLIENT PAUSE 1000 ALL"]);
    group.client_says(0, writer, &["EXEC"]);
    group.turn();
    let reads = |group: &mut WorkerGroup| std::mem::take(&mut group.workers[0].actions);
    assert_eq!(reads(&mut group), [], "the session is read on");
    let mut sent = 0;
    while sent < bound {
        group.client_says(0, writer, &["EXEC"].repeat(1_000));
        sent += 1_000 * b"*1\r\n$4\r\nEXEC\r\n".len();
        group.turn();
    }
    assert_eq!(reads(&mut group), [Action::ReadSession(writer, false)]);
    group.wait_ms(1_000);
    assert_eq!(reads(&mut group), [Action::ReadSession(writer, true)]);
}

/// A paused session that hangs up while it is not read is closed, and none of its held requests is
/// executed.
#[test]
fn paused_session_that_hangs_up_executes_nothing() {
    let mut settings = settings();
    settings.limits.request_held_bytes_max = 100;
    let mut group = WorkerGroup::new(1, settings);
    let (admin, writer) = (group.accept(0), group.accept(0));
    group.may_ask(admin, &["CLIENT PAUSE x", "CLIENT GETNAME"]);
    group.client_says(0, admin, &["CLIENT PAUSE 1000 WRITE"]);
    group.client_says(
        0,
        writer,
        &["CLIENT GETNAME", "SET a 1", "SET a 2", "SET a 3", "SET a 4"],
    );
    group.turn();
    assert_eq!(
        group.workers[0].actions,
        [Action::ReadSession(writer, false)]
    );
    group.workers[0].engine.handle_session_hangup(writer);
    group.wait_ms(2_000);
    assert_eq!(
        group.got(0, writer),
        NO_NAME,
        "the replies that it was owed"
    );
    let close = Action::CloseSession {
        session: writer,
        after_output: true,
        reason: None,
    };
    assert_eq!(group.workers[0].actions[1..], [close]);
    assert_eq!(group.sent(0), "");
}

/// The rest of a large request waits for the end of a pause.
#[test]
fn rest_of_a_large_request_waits_for_the_end_of_a_pause() {
    let mut settings = settings();
    settings.limits.request_held_bytes_max = 100;
    let mut group = WorkerGroup::new(1, settings);
    let (admin, writer) = (group.accept(0), group.accept(0));
    group.may_ask(admin, &["CLIENT PAUSE x"]);
    let large = request(&["SET", "a", &"x".repeat(1_000)]);
    let (beginning, rest) = large.split_at(600);
    group.workers[0].sends(writer, beginning);
    // The large request goes on a link of its own.
    let link = group.workers[0].connect();
    assert_eq!(group.workers[0].sent(link).as_bytes(), beginning);
    group.now = group.workers[0].now;
    group.client_says(0, admin, &["CLIENT PAUSE 1000 WRITE"]);
    group.turn();
    assert_eq!(
        group.got(0, admin),
        "+OK\r\n",
        "an incomplete request is not executed"
    );
    group.workers[0].engine.handle_session_bytes(writer, rest);
    group.turn();
    assert_eq!(group.workers[0].sent(link), "");
    group.wait_ms(1_000);
    assert_eq!(group.workers[0].sent(link).as_bytes(), rest);
    group.workers[0].engine.handle_link_bytes(link, b"+OK\r\n");
    group.turn();
    assert_eq!(group.got(0, writer), "+OK\r\n");
}

/// A client that leaves in the middle of a large request in a pause keeps no link.
#[test]
fn end_in_a_pause_gives_up_a_large_request() {
    let mut settings = settings();
    settings.limits.request_held_bytes_max = 100;
    let mut group = WorkerGroup::new(1, settings);
    let (admin, writer) = (group.accept(0), group.accept(0));
    group.may_ask(admin, &["CLIENT PAUSE x"]);
    let large = request(&["SET", "a", &"x".repeat(1_000)]);
    group.workers[0].sends(writer, &large[..600]);
    let link = group.workers[0].connect();
    group.now = group.workers[0].now;
    group.client_says(0, admin, &["CLIENT PAUSE 1000 WRITE"]);
    group.turn();
    let engine = &mut group.workers[0].engine;
    engine.handle_session_bytes(writer, &large[600..700]);
    group.turn();
    group.workers[0].engine.handle_session_end(writer);
    group.turn();
    group.turn();
    let actions = &group.workers[0].actions;
    let close = Action::CloseSession {
        session: writer,
        after_output: true,
        reason: None,
    };
    assert!(actions.contains(&close), "{actions:?}");
    assert!(actions.contains(&Action::CloseLink(link)), "{actions:?}");
}

/// If two sessions set an option at the same time, the same value holds in every worker, in
/// any order of the messages to the workers.
#[test]
fn option_set_twice_at_once_is_the_same_in_all_workers() {
    const UNKNOWN: &[u8] = b"-ERR Unknown option or number of arguments for CONFIG SET\r\n";
    let mut group = WorkerGroup::new(3, settings());
    let sessions = [0, 1, 2].map(|worker| group.accept(worker));
    for (worker, keys) in [(0, 10), (1, 20), (2, 30)] {
        let set = format!("CONFIG SET respool.fused-keys-max {keys}");
        group.client_says(worker, sessions[worker], &[&set]);
        group.turn();
        group.server_says(worker, UNKNOWN);
    }
    group.deliver();
    let get = "CONFIG GET respool.fused-keys-max";
    let shown = [0, 1, 2].map(|worker| {
        assert_eq!(group.got(worker, sessions[worker]), "+OK\r\n");
        group.client_says(worker, sessions[worker], &[get]);
        group.turn();
        group.server_says(worker, b"*0\r\n");
        group.turn();
        group.got(worker, sessions[worker])
    });
    let last =
        String::from_utf8(request(&["respool.fused-keys-max", "30"])).expect("output is text");
    assert_eq!(shown, [&last; 3].map(Clone::clone));
}

/// A session has one query to all workers under way. A full lane makes sessions wait their turn,
/// and refuses none.
#[test]
fn flood_of_queries_leaves_each_session_its_turn() {
    let mut group = WorkerGroup::new(2, settings());
    let many: Vec<_> = (0..QUESTIONS_MAX + 50).map(|_| group.accept(0)).collect();
    let late = group.accept(0);
    let asked = ["CLIENT KILL ID 100", "CLIENT GETNAME"];
    group.may_ask(
        many[0],
        &["CLIENT KILL ID x", "CLIENT LIST ID x", "CLIENT GETNAME"],
    );
    for session in &many {
        group.client_says(0, *session, &asked.repeat(3));
    }
    group.client_says(
        0,
        late,
        &["CLIENT KILL ID 100", "CLIENT LIST ID 0", "CLIENT GETNAME"],
    );
    group.turn();
    assert_eq!(group.post.len(), QUESTIONS_MAX);
    // A query of another lane.
    let other = group.accept(0);
    group.client_says(0, other, &["CLIENT LIST ID 0"]);
    group.turn();
    assert_eq!(group.post.len(), QUESTIONS_MAX + 1);
    group.deliver();
    for session in many {
        let expected = format!(":0\r\n{NO_NAME}").repeat(3);
        assert_eq!(group.got(0, session), expected);
    }
    let empty = "$0\r\n\r\n";
    assert_eq!(group.got(0, late), format!(":0\r\n{empty}{NO_NAME}"));
    assert_eq!(group.got(0, other), empty);
}

/// A session that waits to ask is refused at its deadline, and goes on.
#[test]
fn wait_to_ask_ends_at_the_deadline() {
    let mut settings = settings();
    settings.timeouts.request_ms = 600;
    let mut group = WorkerGroup::new(2, settings);
    let many: Vec<_> = (0..QUESTIONS_MAX).map(|_| group.accept(0)).collect();
    let (late, gone) = (group.accept(0), group.accept(0));
    group.may_ask(late, &["CLIENT KILL ID x", "CLIENT GETNAME"]);
    let asked = ["CLIENT KILL ID 100", "CLIENT GETNAME"];
    for session in many.iter().chain([&gone, &late]) {
        group.client_says(0, *session, &asked);
    }
    group.turn();
    group.workers[0].engine.handle_session_lost(gone);
    group.turn();
    assert_eq!(group.got(0, late), "");
    // The other worker does not answer.
    group.post.clear();
    for _ in 0..4 {
        group.wait_ms(200);
    }
    let refused = group.got(0, late);
    assert!(
        refused.starts_with("-NOTSENT") && refused.contains("too many CLIENT commands wait"),
        "{refused}"
    );
    assert!(refused.ends_with(NO_NAME), "{refused}");
    group.wait_ms(QUESTION_MS);
    for session in many {
        let reply = group.got(0, session);
        assert!(
            reply.starts_with("-UNKNOWN") && reply.ends_with(NO_NAME),
            "{reply}"
        );
    }
    group.may_ask(late, &["CLIENT KILL ID x"]);
    group.client_says(0, late, &["CLIENT KILL ID 100"]);
    group.deliver();
    assert_eq!(group.got(0, late), ":0\r\n");
}

/// A session with CLIENT NO-EVICT is not closed to free memory.
#[test]
fn session_with_no_evict_is_not_closed_for_memory() {
    let mut settings = settings();
    settings.limits.worker_memory_bytes_max = 4_000;
    let mut group = WorkerGroup::new(1, settings);
    let (spared, closed) = (group.accept(0), group.accept(0));
    group.client_says(0, spared, &["CLIENT NO-EVICT ON"]);
    group.turn();
    // The server answers neither question: whether the user may send this, and which commands it
    // has.
    group.server_says(0, b"-ERR no\r\n-ERR no\r\n");
    group.turn();
    for session in [spared, closed] {
        group.client_says(0, session, &["GET a"]);
    }
    group.turn();
    // Neither client takes output: the engine decides before sockets are written.
    for len in [6_000, 5_000] {
        let reply = format!("${len}\r\n{}\r\n", "x".repeat(len));
        group.server_says(0, reply.as_bytes());
    }
    group.turn();
    assert_eq!(group.workers[0].closed_sessions(), [closed]);
    assert!(group.got(0, spared).len() > 6_000);
}

/// Clients take a field of CLIENT INFO as a sign that the server has the feature. Each list is that
/// of the server.
#[test]
fn client_info_has_the_fields_of_the_servers_release() {
    const OLD: &str = "id addr laddr fd name age idle flags db sub psub multi qbuf qbuf-free argv-mem obl oll \
                       omem tot-mem events cmd user redir";
    const REDIS_7: &str = "id addr laddr fd name age idle flags db sub psub ssub multi qbuf qbuf-free argv-mem \
                           multi-mem rbs rbp obl oll omem tot-mem events cmd user redir resp";
    const REDIS_8: &str = "id addr laddr fd name age idle flags db sub psub ssub multi watch qbuf qbuf-free \
                           argv-mem multi-mem rbs rbp obl oll omem tot-mem events cmd user redir resp lib-name \
                           lib-ver io-thread tot-net-in tot-net-out tot-cmds";
    const VALKEY_9: &str = "id addr laddr fd name age idle flags capa db sub psub ssub multi watch qbuf qbuf-free \
                            argv-mem multi-mem rbs rbp obl oll omem tot-mem events cmd user redir resp lib-name \
                            lib-ver tot-net-in tot-net-out tot-cmds";
    let releases = [
        ("redis", "6.2.7", OLD),
        ("redis", "7.0.15", REDIS_7),
        ("redis", "8.2.3", REDIS_8),
        ("valkey", "9.1.2", VALKEY_9),
    ];
    for (server, version, fields) in releases {
        let mut world = World::unconnected(worker(0, 1), settings());
        let link = world.shared;
        world.turn(|engine| engine.handle_link_up(link));
        let words = ["server", server, "version", version];
        let words = words.map(|word| format!("${}\r\n{word}\r\n", word.len()));
        world.says(link, format!("*4\r\n{}", words.concat()));
        let session = world.accept();
        world.asks(session, &["CLIENT INFO"]);
        // The server answers that this user may send it.
        world.says(link, "+OK\r\n");
        let got = world.got(session);
        let line = got.lines().nth(1).expect("CLIENT INFO has a line");
        let shown = line.split(' ').filter_map(|field| field.split('=').next());
        let shown: Vec<&str> = shown.collect();
        assert_eq!(
            shown,
            fields.split_whitespace().collect::<Vec<_>>(),
            "{server} {version}"
        );
    }
}

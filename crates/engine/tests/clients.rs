//! Several workers as one, in virtual time: what is asked of all of them, and what holds all of them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use respool_engine::limits::{Limits, QUESTION_MS, QUESTIONS_MAX};
use respool_engine::settings::{Address, PoolKind, PoolSettings, ServerSettings, Settings};
use respool_engine::{Action, Answer, Engine, LinkId, Peer, Question, SessionId, Time, Worker};
use respool_protocol::encode;

const HELLO: &[u8] = b"*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n8.2.0\r\n";
const PONG: &str = "+PONG\r\n";

/// What workers send each other, on its way.
enum Post {
    Question(usize, u64, Question),
    Answer(u64, Answer),
}

/// Engines, each with a link that is up; their sockets take everything at once.
struct Fleet {
    engines: Vec<Engine>,
    links: Vec<LinkId>,
    now: Time,
    /// For the worker of that number.
    post: Vec<(usize, Post)>,
    /// By worker: what was written to sessions and links, and what else was to be done.
    replies: Vec<Vec<(SessionId, Vec<u8>)>>,
    requests: Vec<Vec<u8>>,
    actions: Vec<Vec<Action>>,
}

impl Fleet {
    fn new(count: usize, limits: Limits) -> Fleet {
        let server = ServerSettings {
            address: Address::Tcp {
                host: "server".into(),
                port: 1,
            },
            credentials: None,
            db: 0,
        };
        let pool = PoolSettings {
            name: "d".into(),
            kind: PoolKind::Single(server),
        };
        let settings = Arc::new(Settings {
            limits,
            pools: vec![pool],
            ..Settings::default()
        });
        let worker = |index| Worker {
            index,
            count,
            seed: 7,
            process_id: 1,
            tcp_port: 0,
            started_at: 0,
        };
        let engines: Vec<Engine> = (0..count)
            .map(|index| Engine::new(settings.clone(), worker(index), Time(0)))
            .collect();
        let mut fleet = Fleet {
            engines,
            links: Vec::new(),
            now: Time(0),
            post: Vec::new(),
            replies: vec![Vec::new(); count],
            requests: vec![Vec::new(); count],
            actions: vec![Vec::new(); count],
        };
        fleet.turn();
        for worker in 0..count {
            let Some(Action::Connect { link, .. }) = fleet.actions[worker].pop() else {
                panic!("an engine connects to its server first");
            };
            fleet.links.push(link);
            fleet.engines[worker].handle_link_up(link);
        }
        fleet.turn();
        for worker in 0..count {
            fleet.server_says(worker, HELLO);
        }
        fleet.turn();
        fleet.requests = vec![Vec::new(); count];
        fleet
    }

    /// A turn of every worker. Post between them is collected, not delivered.
    fn turn(&mut self) {
        for worker in 0..self.engines.len() {
            self.end_turn(worker);
        }
    }

    fn end_turn(&mut self, worker: usize) {
        let engine = &mut self.engines[worker];
        engine.begin_turn(self.now);
        engine.end_turn();
        while let Some(link) = engine.poll_link() {
            let bytes = engine.link_output(link).to_vec();
            engine.handle_link_written(link, bytes.len());
            self.requests[worker].extend(bytes);
        }
        while let Some(session) = engine.poll_session() {
            let bytes = engine.session_output(session).to_vec();
            engine.handle_session_written(session, bytes.len());
            self.replies[worker].push((session, bytes));
        }
        while let Some(action) = engine.poll_action() {
            match action {
                Action::Ask { ticket, question } => {
                    for other in (0..self.replies.len()).filter(|&other| other != worker) {
                        let question = Post::Question(worker, ticket, question.clone());
                        self.post.push((other, question));
                    }
                }
                Action::Answer { to, ticket, answer } => {
                    self.post.push((to, Post::Answer(ticket, answer)));
                }
                other => self.actions[worker].push(other),
            }
        }
    }

    /// Delivers what is on its way until nothing is.
    fn deliver(&mut self) {
        self.turn();
        while !self.post.is_empty() {
            for (to, post) in std::mem::take(&mut self.post) {
                match post {
                    Post::Question(from, ticket, question) => {
                        self.engines[to].handle_question(from, ticket, question);
                    }
                    Post::Answer(ticket, answer) => self.engines[to].handle_answer(ticket, answer),
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
        let peer = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
        self.engines[worker].handle_accept(Peer::Tcp(peer), 0)
    }

    fn client_says(&mut self, worker: usize, session: SessionId, requests: &[&str]) {
        let mut bytes = Vec::new();
        for request in requests {
            encode::request(&mut bytes, &request.split(' ').collect::<Vec<_>>());
        }
        self.engines[worker].handle_session_bytes(session, &bytes);
    }

    fn server_says(&mut self, worker: usize, bytes: &[u8]) {
        self.engines[worker].handle_link_bytes(self.links[worker], bytes);
    }

    /// What a session got since the last look.
    fn replies(&mut self, worker: usize, session: SessionId) -> String {
        let all = std::mem::take(&mut self.replies[worker]);
        let (its, others): (Vec<_>, _) = all.into_iter().partition(|(id, _)| *id == session);
        self.replies[worker] = others;
        let bytes: Vec<u8> = its.into_iter().flat_map(|(_, bytes)| bytes).collect();
        String::from_utf8(bytes).expect("these tests speak text")
    }
}

#[test]
fn a_worker_that_does_not_answer_leaves_an_error_and_the_order_of_replies() {
    let mut fleet = Fleet::new(3, Limits::default());
    let session = fleet.accept(0);
    fleet.client_says(0, session, &["PING", "CLIENT LIST", "PING"]);
    fleet.turn();
    assert_eq!(fleet.replies(0, session), PONG, "what is in front of it");
    // One answers, the other does not.
    let lost = fleet.post.pop();
    assert!(matches!(lost, Some((2, Post::Question(0, ..)))));
    fleet.deliver();
    fleet.wait_ms(QUESTION_MS - 100);
    assert_eq!(fleet.replies(0, session), "");
    fleet.wait_ms(200);
    let replies = fleet.replies(0, session);
    assert!(replies.starts_with("-UNKNOWN respool: "), "{replies}");
    assert!(replies.ends_with(PONG), "{replies}");
    if let Some((_, Post::Question(_, ticket, _))) = lost {
        fleet.engines[0].handle_answer(ticket, Answer::Lines(Vec::new()));
    }
    fleet.turn();
    assert_eq!(
        fleet.replies(0, session),
        "",
        "an answer that comes too late"
    );
}

#[test]
fn a_pause_is_confirmed_when_nothing_that_any_worker_let_through_before_is_on_its_way() {
    let mut fleet = Fleet::new(2, Limits::default());
    let (writer, admin) = (fleet.accept(1), fleet.accept(0));
    fleet.client_says(1, writer, &["SET a 1", "SET a 2"]);
    fleet.turn();
    fleet.wait_ms(10);
    fleet.client_says(0, admin, &["CLIENT PAUSE 1000 WRITE"]);
    fleet.client_says(1, writer, &["SET a 3"]);
    fleet.deliver();
    fleet.server_says(1, b"+OK\r\n");
    fleet.deliver();
    assert_eq!(fleet.replies(0, admin), "", "one is still on its way");
    // A read that came later is not waited for.
    fleet.wait_ms(10);
    let reader = fleet.accept(1);
    fleet.client_says(1, reader, &["GET a"]);
    fleet.server_says(1, b"+OK\r\n+OK\r\n");
    fleet.deliver();
    assert_eq!(fleet.replies(0, admin), "+OK\r\n");
    fleet.wait_ms(1);
    assert!(fleet.requests[1].ends_with(b"GET\r\n$1\r\na\r\n"));
}

#[test]
fn a_pause_ends_at_its_time_and_what_it_held_leaves_in_the_order_in_which_it_was_held() {
    let mut fleet = Fleet::new(2, Limits::default());
    let admin = fleet.accept(0);
    fleet.client_says(
        0,
        admin,
        &["CLIENT PAUSE 1234 WRITE", "CLIENT PAUSE 3 WRITE"],
    );
    fleet.deliver();
    assert_eq!(fleet.replies(0, admin), "+OK\r\n+OK\r\n");
    let sessions: Vec<SessionId> = (0..5).map(|_| fleet.accept(1)).collect();
    for (at, session) in sessions.iter().enumerate() {
        fleet.client_says(1, *session, &[&format!("SET k {at}"), "GET k"]);
        fleet.wait_ms(1);
    }
    let end = fleet.engines[1].deadline().expect("the pause has an end");
    assert_eq!(end, Time(1_234_000), "of two pauses, the longer");
    fleet.now = Time(end.0 - 1);
    fleet.turn();
    assert_eq!(fleet.requests[1], b"");
    fleet.now = end;
    fleet.turn();
    let mut all = Vec::new();
    for at in 0..5 {
        encode::request(&mut all, &["SET", "k", &at.to_string()]);
        encode::request(&mut all, &["GET", "k"]);
    }
    let sent = String::from_utf8_lossy(&fleet.requests[1]).into_owned();
    assert_eq!(sent, String::from_utf8_lossy(&all));
}

#[test]
fn who_is_paused_is_read_on_within_a_bound() {
    let limits = Limits::default();
    let bound = limits.request_held_bytes_max as usize;
    let mut fleet = Fleet::new(1, limits);
    let (admin, writer) = (fleet.accept(0), fleet.accept(0));
    fleet.client_says(0, admin, &["CLIENT PAUSE 1000 ALL"]);
    fleet.client_says(0, writer, &["PING"]);
    fleet.turn();
    let reads = |fleet: &mut Fleet| std::mem::take(&mut fleet.actions[0]);
    assert_eq!(reads(&mut fleet), [], "it is read on");
    let mut sent = 0;
    while sent < bound {
        fleet.client_says(0, writer, &["PING"].repeat(1_000));
        sent += 1_000 * b"*1\r\n$4\r\nPING\r\n".len();
        fleet.turn();
    }
    assert_eq!(reads(&mut fleet), [Action::ReadSession(writer, false)]);
    fleet.wait_ms(1_000);
    assert_eq!(reads(&mut fleet), [Action::ReadSession(writer, true)]);
}

#[test]
fn who_hangs_up_while_it_is_paused_and_not_read_is_closed_and_nothing_of_it_is_executed() {
    let limits = Limits {
        request_held_bytes_max: 100,
        ..Limits::default()
    };
    let mut fleet = Fleet::new(1, limits);
    let (admin, writer) = (fleet.accept(0), fleet.accept(0));
    fleet.client_says(0, admin, &["CLIENT PAUSE 1000 WRITE"]);
    fleet.client_says(
        0,
        writer,
        &["PING", "SET a 1", "SET a 2", "SET a 3", "SET a 4"],
    );
    fleet.turn();
    assert_eq!(fleet.actions[0], [Action::ReadSession(writer, false)]);
    fleet.engines[0].handle_session_hangup(writer);
    fleet.wait_ms(2_000);
    assert_eq!(fleet.replies(0, writer), PONG, "what it was owed");
    let close = Action::CloseSession {
        session: writer,
        gently: true,
    };
    assert_eq!(fleet.actions[0][1..], [close]);
    assert_eq!(fleet.requests[0], b"");
}

#[test]
fn the_rest_of_a_large_request_waits_for_the_end_of_a_pause() {
    let limits = Limits {
        request_held_bytes_max: 100,
        ..Limits::default()
    };
    let mut fleet = Fleet::new(1, limits);
    let (admin, writer) = (fleet.accept(0), fleet.accept(0));
    let mut large = Vec::new();
    encode::request(&mut large, &["SET", "a", &"x".repeat(1_000)]);
    let (beginning, rest) = large.split_at(600);
    fleet.engines[0].handle_session_bytes(writer, beginning);
    fleet.turn();
    let Some(Action::Connect { link, .. }) = fleet.actions[0].pop() else {
        panic!("it travels on a link of its own");
    };
    fleet.engines[0].handle_link_up(link);
    fleet.turn();
    fleet.engines[0].handle_link_bytes(link, HELLO);
    fleet.turn();
    assert!(fleet.requests[0].ends_with(beginning));
    fleet.client_says(0, admin, &["CLIENT PAUSE 1000 WRITE"]);
    fleet.turn();
    assert_eq!(
        fleet.replies(0, admin),
        "+OK\r\n",
        "half a request is nothing yet"
    );
    fleet.engines[0].handle_session_bytes(writer, rest);
    fleet.turn();
    assert!(fleet.requests[0].ends_with(beginning));
    fleet.wait_ms(1_000);
    assert!(fleet.requests[0].ends_with(&large));
    fleet.engines[0].handle_link_bytes(link, b"+OK\r\n");
    fleet.turn();
    assert_eq!(fleet.replies(0, writer), "+OK\r\n");
}

#[test]
fn questions_are_bounded_without_losing_any_of_who_asks_many() {
    let mut fleet = Fleet::new(2, Limits::default());
    let (many, late) = (fleet.accept(0), fleet.accept(0));
    fleet.client_says(0, many, &["CLIENT KILL ID 100"].repeat(QUESTIONS_MAX + 50));
    fleet.client_says(0, late, &["CLIENT KILL ID 100", "PING"]);
    fleet.turn();
    assert_eq!(fleet.post.len(), QUESTIONS_MAX);
    let refused = fleet.replies(0, late);
    assert!(
        refused.starts_with("-NOTSENT") && refused.contains("questions_max"),
        "{refused}"
    );
    assert!(refused.ends_with(PONG), "{refused}");
    for _ in 0..3 {
        fleet.deliver();
    }
    assert_eq!(fleet.replies(0, many), ":0\r\n".repeat(QUESTIONS_MAX + 50));
}

#[test]
fn who_said_no_evict_is_not_closed_to_make_room() {
    let limits = Limits {
        worker_memory_bytes_max: 4_000,
        ..Limits::default()
    };
    let mut fleet = Fleet::new(1, limits);
    let (spared, closed) = (fleet.accept(0), fleet.accept(0));
    fleet.client_says(0, spared, &["CLIENT NO-EVICT ON"]);
    for session in [spared, closed] {
        fleet.client_says(0, session, &["GET a"]);
    }
    fleet.turn();
    // Neither takes anything: the engine decides before sockets are written.
    for len in [6_000, 5_000] {
        let reply = format!("${len}\r\n{}\r\n", "x".repeat(len));
        fleet.server_says(0, reply.as_bytes());
    }
    fleet.turn();
    let gone = fleet.actions[0].iter().filter_map(|action| match action {
        Action::CloseSession { session, .. } => Some(*session),
        _ => None,
    });
    assert_eq!(gone.collect::<Vec<_>>(), [closed]);
    assert!(fleet.replies(0, spared).len() > 6_000);
}

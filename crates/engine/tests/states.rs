//! What sessions and links are left as when something ends in a bad moment, each in a history of its own.

use respool_engine::settings::{Address, PoolKind, PoolSettings, ServerSettings, Settings};
use respool_engine::{Action, Engine, LinkId, Peer, SessionId, Time, Worker};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

fn settings() -> Settings {
    let server = ServerSettings {
        address: Address::Tcp {
            host: "server".into(),
            port: 1,
        },
        credentials: None,
        db: 0,
    };
    Settings {
        pools: vec![PoolSettings {
            name: "d".into(),
            kind: PoolKind::Single(server),
        }],
        ..Settings::default()
    }
}
/// The engine, and everything that came out of it.
struct World {
    engine: Engine,
    now: u64,
    out: Vec<(SessionId, Vec<u8>)>,
    link_out: Vec<(LinkId, Vec<u8>)>,
    actions: Vec<Action>,
}
const HELLO: &[u8] = b"*2\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n";
impl World {
    fn new(s: Settings) -> World {
        let worker = Worker {
            index: 0,
            count: COUNT.with(std::cell::Cell::get),
            seed: 7,
            process_id: 1,
            tcp_port: 0,
            started_at: 0,
        };
        let mut world = World {
            engine: Engine::new(Arc::new(s), worker, Time(0)),
            now: 0,
            out: vec![],
            link_out: vec![],
            actions: vec![],
        };
        world.engine.begin_turn(Time(0));
        world
    }
    fn accept(&mut self) -> SessionId {
        self.engine.handle_accept(
            Peer::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1)),
            0,
        )
    }
    fn at(&mut self, ms: u64) {
        self.now += ms * 1000;
        self.engine.begin_turn(Time(self.now));
    }
    /// Ends the turn; everything that leaves is written at once.
    fn end(&mut self) {
        self.engine.end_turn();
        while let Some(l) = self.engine.poll_link() {
            let o = self.engine.link_output(l).to_vec();
            if !o.is_empty() {
                self.engine.handle_link_written(l, o.len());
                self.link_out.push((l, o));
            }
        }
        while let Some(s) = self.engine.poll_session() {
            let o = self.engine.session_output(s).to_vec();
            if !o.is_empty() {
                self.engine.handle_session_written(s, o.len());
                self.out.push((s, o));
            }
        }
        while let Some(a) = self.engine.poll_action() {
            self.actions.push(a);
        }
        while self.engine.poll_event().is_some() {}
    }
    /// Many turns, 60 ms apart.
    fn end_n(&mut self, n: usize) {
        for _ in 0..n {
            self.end();
            self.at(60);
        }
        self.end();
    }
    fn connects(&mut self) -> Vec<LinkId> {
        let v = self
            .actions
            .iter()
            .filter_map(|a| {
                if let Action::Connect { link, .. } = a {
                    Some(*link)
                } else {
                    None
                }
            })
            .collect();
        self.actions.clear();
        v
    }
    /// Connects the first link.
    fn up(&mut self) -> LinkId {
        self.end();
        let l = self.connects()[0];
        self.up_link(l);
        l
    }
    fn up_link(&mut self, l: LinkId) {
        self.at(1);
        self.engine.handle_link_up(l);
        self.end();
        self.at(1);
        self.engine.handle_link_bytes(l, HELLO);
        self.end();
    }
    fn got(&self, s: SessionId) -> Vec<u8> {
        self.out
            .iter()
            .filter(|(k, _)| *k == s)
            .flat_map(|(_, o)| o.clone())
            .collect()
    }
    fn sent(&self, l: LinkId) -> Vec<u8> {
        self.link_out
            .iter()
            .filter(|(k, _)| *k == l)
            .flat_map(|(_, o)| o.clone())
            .collect()
    }
}
fn request(args: &[&[u8]]) -> Vec<u8> {
    let mut o = vec![];
    respool_protocol::encode::request(&mut o, args);
    o
}

thread_local! { static COUNT: std::cell::Cell<usize> = const { std::cell::Cell::new(1) }; }
fn cmd(s: &str) -> Vec<u8> {
    request(&s.split(' ').map(str::as_bytes).collect::<Vec<_>>())
}
fn s(b: &[u8]) -> String {
    String::from_utf8_lossy(b).into_owned()
}
impl World {
    fn say(&mut self, id: SessionId, what: &[&str]) {
        for w in what {
            let b = cmd(w);
            self.engine.handle_session_bytes(id, &b);
        }
    }
    fn server(&mut self, l: LinkId, b: &str) {
        self.at(1);
        self.engine.handle_link_bytes(l, b.as_bytes());
        self.end();
    }
}

#[test]
fn a_link_offered_to_somebody_who_is_gone_is_offered_to_the_next() {
    let mut st = settings();
    st.limits.pinned_links_max = 1;
    let mut w = World::new(st);
    w.up();
    let [a, b, c] = [w.accept(), w.accept(), w.accept()];
    w.at(1);
    w.say(a, &["BLPOP k 0"]);
    w.end();
    let l = w.connects()[0];
    w.up_link(l);
    w.at(1);
    w.say(b, &["BLPOP k 0"]);
    w.end();
    w.at(1);
    w.say(c, &["BLPOP k 0"]);
    w.end();
    assert!(w.connects().is_empty());
    w.at(1);
    w.engine.handle_session_lost(a);
    w.engine.handle_session_lost(b);
    w.end();
    w.end_n(20);
    assert!(
        !w.connects().is_empty(),
        "the third waits for ever though the link is free"
    );
}

#[test]
fn who_has_no_answer_to_its_auth_does_not_ride_as_that_user() {
    let mut st = settings();
    st.timeouts.request_ms = 100;
    let mut w = World::new(st);
    w.up();
    let a = w.accept();
    w.at(1);
    w.say(a, &["AUTH bob old"]);
    w.end();
    let bob = w.connects()[0];
    w.up_link(bob);
    w.at(1);
    w.end();
    assert!(s(&w.sent(bob)).contains("AUTH"));
    w.end_n(5);
    w.server(bob, "-WRONGPASS no\r\n");
    w.link_out.clear();
    w.at(1);
    w.say(a, &["SET secret 1"]);
    w.end();
    assert!(
        !s(&w.sent(bob)).contains("secret"),
        "it rides as bob though nobody agreed"
    );
}

#[test]
fn a_link_on_which_somebody_else_logged_in_is_given_to_nobody() {
    let mut st = settings();
    st.timeouts.request_ms = 100;
    let mut w = World::new(st);
    w.up();
    let a = w.accept();
    w.at(1);
    w.say(a, &["WATCH k"]);
    w.end();
    let own = w.connects()[0];
    w.up_link(own);
    w.server(own, "+OK\r\n");
    w.at(1);
    w.say(a, &["AUTH bob pw"]);
    w.end();
    w.end_n(5);
    w.server(own, "+OK\r\n");
    w.at(1);
    w.say(a, &["UNWATCH"]);
    w.end();
    w.server(own, "+OK\r\n");
    w.end();
    let b = w.accept();
    w.link_out.clear();
    w.actions.clear();
    w.at(1);
    w.say(b, &["WATCH z"]);
    w.end();
    assert!(
        !s(&w.sent(own)).contains("WATCH"),
        "a stranger gets a link that is bob"
    );
}

#[test]
fn a_transaction_that_selects_waits_for_the_answers_before_it() {
    COUNT.with(|c| c.set(2));
    let mut w = World::new(settings());
    let l = w.up();
    let a = w.accept();
    w.at(1);
    w.say(a, &["MULTI"]);
    w.end();
    w.server(l, "+OK\r\n+OK\r\n-ERR no\r\n");
    w.at(1);
    w.say(a, &["DISCARD", "CLIENT LIST", "MULTI", "SELECT 1", "EXEC"]);
    w.end();
    assert!(!s(&w.sent(l)).contains("SELECT"), "its EXEC waits");
    let tickets: Vec<u64> = w
        .actions
        .iter()
        .filter_map(|action| match action {
            Action::Ask { ticket, .. } => Some(*ticket),
            _ => None,
        })
        .collect();
    w.at(1);
    w.engine
        .handle_answer(tickets[0], respool_engine::Answer::Lines(Vec::new()));
    w.end();
    assert!(s(&w.sent(l)).contains("SELECT"));
    w.server(l, "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n+OK\r\n");
    assert!(
        s(&w.got(a)).ends_with("+QUEUED\r\n*1\r\n+OK\r\n"),
        "{}",
        s(&w.got(a))
    );
}

#[test]
fn exec_after_a_lost_watch_ends_a_new_one_too() {
    let mut w = World::new(settings());
    let first = w.up();
    let a = w.accept();
    w.at(1);
    w.say(a, &["WATCH k"]);
    w.end();
    let own = w.connects()[0];
    w.up_link(own);
    w.server(own, "+OK\r\n");
    w.at(1);
    w.engine.handle_link_lost(own, "gone");
    w.end();
    w.actions.clear();
    w.at(1);
    w.say(a, &["WATCH k2"]);
    w.end();
    let own = w.connects()[0];
    w.up_link(own);
    w.server(own, "+OK\r\n");
    w.at(1);
    w.say(a, &["MULTI"]);
    w.end();
    for l in [first, own] {
        if s(&w.sent(l)).contains("COMMAND") {
            w.server(l, "+OK\r\n+OK\r\n-ERR no\r\n");
        }
    }
    w.at(1);
    w.say(a, &["EXEC"]);
    w.end();
    w.server(own, "+OK\r\n");
    assert!(s(&w.got(a)).ends_with("*-1\r\n"), "{}", s(&w.got(a)));
    w.link_out.clear();
    w.at(1);
    w.say(a, &["SET x 1"]);
    w.end();
    assert!(
        s(&w.sent(first)).contains("SET"),
        "still pinned, and still watching k2: its next EXEC may fail for it: {:?}",
        s(&w.sent(own))
    );
}

#[test]
fn a_link_that_is_not_read_is_not_given_to_another() {
    let mut st = settings();
    st.limits.session_output_soft_bytes = 100;
    st.limits.session_output_hard_bytes = 1000;
    let mut w = World::new(st);
    w.up();
    let a = w.accept();
    w.at(1);
    w.say(a, &["WATCH k"]);
    w.end();
    let own = w.connects()[0];
    w.up_link(own);
    w.server(own, "+OK\r\n");
    w.at(1);
    w.say(a, &["GET x", "GET y", "UNWATCH"]);
    w.end();
    w.actions.clear();
    w.at(1);
    let big = format!("$2000\r\n{}\r\n", "x".repeat(2000));
    w.engine
        .handle_link_bytes(own, format!("{big}{big}+OK\r\n").as_bytes());
    w.end();
    let off = w
        .actions
        .iter()
        .filter(|x| matches!(x, Action::ReadLink(_, false)))
        .count();
    let on = w
        .actions
        .iter()
        .filter(|x| matches!(x, Action::ReadLink(_, true) | Action::CloseLink(_)))
        .count();
    w.end_n(3);
    assert_eq!(off, on, "given back, but not read");
}

#[test]
fn who_came_before_the_server_asked_for_a_password_has_to_give_one_too() {
    let mut w = World::new(settings());
    w.end();
    let l = w.connects()[0];
    w.at(1);
    w.engine.handle_link_lost(l, "nobody listens");
    w.end();
    let a = w.accept();
    w.end_n(40);
    let l = *w.connects().last().unwrap();
    w.at(1);
    w.engine.handle_link_up(l);
    w.end();
    w.at(1);
    w.engine
        .handle_link_bytes(l, b"-NOAUTH HELLO must be called\r\n");
    w.end();
    let b = w.accept();
    w.at(1);
    w.say(a, &["CLIENT LIST"]);
    w.say(b, &["CLIENT LIST"]);
    w.end();
    assert!(s(&w.got(b)).starts_with("-NOAUTH"));
    assert!(s(&w.got(a)).starts_with("-NOAUTH"));
}

#[test]
fn a_late_reply_on_a_pinned_link_does_not_disturb_a_large_request() {
    let mut st = settings();
    st.timeouts.request_ms = 100;
    let mut w = World::new(st);
    w.up();
    let a = w.accept();
    w.at(1);
    w.say(a, &["WATCH k"]);
    w.end();
    let own = w.connects()[0];
    w.up_link(own);
    w.server(own, "+OK\r\n");
    w.at(1);
    w.say(a, &["GET x"]);
    w.end();
    w.end_n(5);
    let big = request(&[b"SET", b"k", &vec![b'x'; 400_000]]);
    w.at(1);
    w.engine.handle_session_bytes(a, &big[..300_000]);
    w.end();
    w.at(1);
    w.engine.handle_session_bytes(a, &big[300_000..]);
    w.engine.handle_link_bytes(own, b"$1\r\n1\r\n");
    w.end();
    w.server(own, "+OK\r\n");
    assert!(s(&w.sent(own)).ends_with("xxx\r\n"));
    assert!(s(&w.got(a)).ends_with("+OK\r\n"));
}

#[test]
fn links_given_back_count_against_the_bound() {
    let mut st = settings();
    st.limits.pinned_links_max = 2;
    let mut w = World::new(st);
    w.up();
    let mut open = 0;
    for db in 0..8 {
        let [a, b] = [w.accept(), w.accept()];
        for x in [a, b] {
            if db > 0 {
                w.at(1);
                w.say(x, &[&format!("SELECT {db}")]);
                w.end();
                for l in w.connects() {
                    w.at(1);
                    w.engine.handle_link_up(l);
                    w.end();
                    w.server(l, &format!("{}+OK\r\n", s(HELLO)));
                }
            }
            w.at(1);
            w.say(x, &["WATCH k"]);
            w.end();
            for l in w.connects() {
                open += 1;
                w.at(1);
                w.engine.handle_link_up(l);
                w.end();
                w.server(
                    l,
                    &format!("{}{}", s(HELLO), if db > 0 { "+OK\r\n" } else { "" }),
                );
                w.server(l, "+OK\r\n");
                w.at(1);
                w.say(x, &["UNWATCH"]);
                w.end();
                w.server(l, "+OK\r\n");
            }
        }
    }
    let closed = w
        .actions
        .iter()
        .filter(|x| matches!(x, Action::CloseLink(_)))
        .count();
    assert!(open - closed <= 2);
}

#[test]
fn a_pinned_link_lost_in_the_middle_of_a_reply_is_counted_once() {
    let mut w = World::new(settings());
    w.up();
    let a = w.accept();
    w.at(1);
    w.say(a, &["WATCH k"]);
    w.end();
    let own = w.connects()[0];
    w.up_link(own);
    w.server(own, "+OK\r\n");
    w.at(1);
    w.say(a, &["GET x"]);
    w.end();
    w.server(own, &format!("$1000000\r\n{}", "x".repeat(200_000)));
    w.at(1);
    w.engine.handle_link_lost(own, "gone");
    w.end();
    let b = w.accept();
    w.at(1);
    w.say(b, &["WATCH k"]);
    w.end();
    assert_eq!(w.connects().iter().filter(|l| **l != own).count(), 1);
}

//! Bounds and ends of the engine, each in a history of its own, in virtual time.

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
            count: 1,
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

#[test]
fn replies_that_never_came_to_their_turn_are_given_back_with_their_session() {
    let mut world = World::new(settings());
    world.up();
    for _ in 0..10 {
        world.at(1);
        let s = world.accept();
        world
            .engine
            .handle_session_bytes(s, &request(&[b"GET", b"k"]));
        world
            .engine
            .handle_session_bytes(s, &request(&[b"ECHO", &vec![b'x'; 200_000]]));
        world.end();
        world.engine.handle_session_lost(s);
        world.end();
    }
    assert_eq!(world.engine.counters().sessions, 0);
    assert_eq!(world.engine.counters().held_bytes, 0);
}
#[test]
fn nobody_is_closed_for_what_a_session_that_is_gone_once_held() {
    let mut settings = settings();
    settings.limits.worker_memory_bytes_max = 1 << 20;
    let mut world = World::new(settings);
    world.up();
    for _ in 0..10 {
        world.at(1);
        let s = world.accept();
        world
            .engine
            .handle_session_bytes(s, &request(&[b"GET", b"k"]));
        world
            .engine
            .handle_session_bytes(s, &request(&[b"ECHO", &vec![b'x'; 200_000]]));
        world.end();
        world.engine.handle_session_lost(s);
        world.end();
    }
    world.at(1);
    let innocent = world.accept();
    world.end();
    world.at(1);
    world.engine.handle_session_bytes(innocent, b"PING\r\n");
    world.end();
    assert_eq!(world.got(innocent), b"+PONG\r\n");
}
#[test]
fn who_sends_no_more_gets_all_replies_though_it_was_held_in_between() {
    let mut settings = settings();
    settings.limits.session_output_soft_bytes = 1000;
    let mut world = World::new(settings);
    world.up();
    world.at(1);
    let s = world.accept();
    let mut b = vec![];
    for _ in 0..30 {
        b.extend(request(&[b"ECHO", &[b'x'; 100]]));
    }
    world.engine.handle_session_bytes(s, &b);
    world.engine.handle_session_end(s);
    world.end_n(5);
    let one = 100 + 8;
    assert_eq!(world.got(s).len() / one, 30, "replies");
}
#[test]
fn a_waiter_that_is_gone_does_not_keep_the_next_one_waiting() {
    let mut settings = settings();
    settings.limits.streaming_links_max = 1;
    let mut world = World::new(settings);
    world.up();
    world.at(1);
    let head = |n: usize| format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${n}\r\n").into_bytes();
    let (a, b, c) = (world.accept(), world.accept(), world.accept());
    let n = 300_000;
    world.engine.handle_session_bytes(a, &head(n));
    world.end();
    let l = world.connects()[0];
    world.up_link(l);
    world.at(1);
    world.engine.handle_session_bytes(b, &head(n));
    world.end();
    world.engine.handle_session_bytes(c, &head(n));
    world.end();
    world.at(1);
    world.engine.handle_session_lost(b);
    world.end();
    let mut rest = vec![b'v'; n];
    rest.extend(b"\r\n");
    world.engine.handle_session_bytes(a, &rest);
    world.end();
    world.at(1);
    world.engine.handle_link_bytes(l, b"+OK\r\n");
    world.end();
    assert_eq!(world.got(a), b"+OK\r\n");
    world.end_n(1000);
    assert_eq!(world.engine.counters().streamed_requests, 2, "c goes on");
}
#[test]
fn a_large_request_at_the_bound_of_links_is_refused() {
    let mut settings = settings();
    settings.limits.links_max = 2;
    let mut world = World::new(settings);
    world.up();
    world.at(1);
    let (a, b) = (world.accept(), world.accept());
    world
        .engine
        .handle_session_bytes(b, &request(&[b"SELECT", b"1"]));
    world.end();
    let l = world.connects()[0];
    world.at(1);
    world.engine.handle_link_up(l);
    world.end();
    world.at(1);
    world.engine.handle_link_bytes(l, HELLO);
    world.engine.handle_link_bytes(l, b"+OK\r\n");
    world.end();
    assert_eq!(world.got(b), b"+OK\r\n");
    world
        .engine
        .handle_session_bytes(a, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$300000\r\n");
    world.end();
    world.engine.handle_session_lost(b);
    world.end();
    world.end_n(500); // 30 s: the link of db 1 is closed as unused
    assert_eq!(world.engine.counters().links, 1);
    assert!(world.got(a).starts_with(b"-NOTSENT "));
}
#[test]
fn a_link_that_was_full_before_it_was_up_is_used_again() {
    let mut settings = settings();
    settings.timeouts.request_ms = 500;
    settings.limits.link_ledger_max = 10;
    let mut world = World::new(settings);
    world.end();
    let l = world.connects()[0];
    world.at(1);
    world.engine.handle_link_up(l);
    world.end(); // greeting written; the server is slow
    let s = world.accept();
    let mut b = vec![];
    for _ in 0..20 {
        b.extend(request(&[b"GET", b"k"]));
    }
    world.engine.handle_session_bytes(s, &b);
    world.end();
    for _ in 0..12 {
        world.at(60);
        world.end();
    }
    assert!(world.got(s).starts_with(b"-NOTSENT"));
    world.at(1);
    world.engine.handle_link_bytes(l, HELLO);
    world.end();
    let t = world.accept();
    world.at(1);
    world
        .engine
        .handle_session_bytes(t, &request(&[b"GET", b"fresh"]));
    world.end();
    world.end_n(2000);
    assert!(
        String::from_utf8_lossy(&world.sent(l)).contains("fresh"),
        "two minutes later: {:?} {:?}",
        String::from_utf8_lossy(&world.sent(l)),
        String::from_utf8_lossy(&world.got(t))
    );
}
#[test]
fn a_large_request_that_was_given_up_is_never_sent() {
    let mut settings = settings();
    settings.timeouts.request_ms = 500;
    let mut world = World::new(settings);
    world.up();
    world.at(1);
    let s = world.accept();
    let n = 300_000;
    let mut b = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${n}\r\n").into_bytes();
    b.extend(vec![b'v'; n]);
    b.extend(b"\r\n");
    world.engine.handle_session_bytes(s, &b[..100_000]);
    world.end();
    world.engine.handle_session_bytes(s, &b[100_000..]);
    world.end();
    let l = world.connects()[0];
    for _ in 0..12 {
        world.at(60);
        world.end();
    }
    assert!(world.got(s).starts_with(b"-NOTSENT"));
    world.up_link(l);
    world.end_n(5);
    assert!(
        world.sent(l).len() < 1000,
        "told NOTSENT, and {} bytes were sent",
        world.sent(l).len()
    );
}
#[test]
fn an_upload_to_a_server_that_takes_nothing_ends() {
    let mut world = World::new(settings());
    world.up();
    world.at(1);
    let a = world.accept();
    world
        .engine
        .handle_session_bytes(a, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$30000000\r\n");
    world.end();
    let l = world.connects()[0];
    world.up_link(l);
    // the server reads nothing any more: nothing is written
    world.at(1);
    world.engine.handle_session_bytes(a, &vec![b'x'; 2_000_000]);
    world.engine.end_turn();
    while world.engine.poll_link().is_some() {}
    for _ in 0..4000 {
        world.at(60);
        world.engine.end_turn();
        while world.engine.poll_link().is_some() {}
        while world.engine.poll_action().is_some() {}
        while world.engine.poll_event().is_some() {}
    }
    assert!(
        world.engine.counters().links == 1 || !world.engine.session_output(a).is_empty(),
        "240 s: links {}",
        world.engine.counters().links
    );
}
#[test]
fn a_line_longer_than_may_be_held_is_waited_for_and_answered_once_at_the_most() {
    let mut settings = settings();
    settings.limits.request_held_bytes_max = 1024;
    let mut world = World::new(settings);
    world.up();
    world.at(1);
    let a = world.accept();
    world.engine.handle_session_bytes(a, &vec![b'x'; 2000]);
    world.end();
    world.end_n(5);
    assert!(
        world.got(a).len() < 10_000,
        "{} bytes of replies to one line",
        world.got(a).len()
    );
}
#[test]
fn who_ends_in_the_middle_of_a_request_gets_the_replies_to_those_before() {
    let mut world = World::new(settings());
    world.up();
    world.at(1);
    let a = world.accept();
    let mut m = request(&[b"PING"]);
    m.extend(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$300000\r\nabc");
    world.engine.handle_session_bytes(a, &m);
    world.engine.handle_session_end(a);
    world.end_n(3);
    assert_eq!(world.got(a), b"+PONG\r\n");
}

#[test]
fn a_link_that_is_down_is_captured_by_nobody() {
    let mut settings = settings();
    settings.limits.session_output_soft_bytes = 1000;
    settings.limits.link_ledger_max = 1 << 16;
    let mut world = World::new(settings);
    let l = world.up();
    world.at(100);
    let a = world.accept();
    // 900 bytes of output that the client does not take, then requests on the link
    world
        .engine
        .handle_session_bytes(a, &request(&[b"ECHO", &[b'x'; 900]]));
    let mut m = vec![];
    for _ in 0..10 {
        m.extend(request(&[b"SET", b"k", b"v"]));
    }
    world.engine.handle_session_bytes(a, &m);
    world.engine.end_turn();
    // half of it is written, and the link (younger than a second) is lost
    let o = world.engine.link_output(l).len();
    world.engine.handle_link_written(l, o / 2);
    world.engine.handle_link_lost(l, "reset");
    world.engine.end_turn();
    world.end();
    // everything reconnects
    for _ in 0..3000 {
        for l in world.connects() {
            world.up_link(l);
        }
        world.at(60);
        world.end();
    }
    assert_eq!(world.engine.counters().links, 1, "three minutes later");
}

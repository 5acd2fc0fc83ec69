//! A server that has just gone away: requests wait a moment for it, then they fail at once.

use respool_engine::settings::{LostSubscriptions, ServerDownError, Settings};
use respool_engine::{Event, LinkId};

use crate::world::{HELLO, World, cluster, requests, settings};

const HOLD_MS: u32 = 1_000;

fn patient() -> Settings {
    let mut settings = settings();
    settings.timeouts.outage_hold_ms = HOLD_MS;
    settings
}

/// A world in which the server has run for a while.
fn settled(settings: Settings) -> World {
    let mut world = World::new(settings);
    world.wait_ms(1_500);
    world
}

/// Refuses every connection for `ms`. Returns how often the server was tried.
fn refuses(world: &mut World, ms: u32) -> usize {
    let mut tried = 0;
    for _ in 0..ms / 50 {
        for link in world.connecting() {
            tried += 1;
            world.lose(link);
        }
        world.wait_ms(50);
    }
    tried
}

/// The server accepts connections again.
fn returns(world: &mut World) -> LinkId {
    for _ in 0..60 {
        if let Some(link) = world.connecting().pop() {
            world.up(link);
            return link;
        }
        world.wait_ms(50);
    }
    panic!("no attempt to connect follows");
}

/// The server accepts connections again, and is tried within this time.
fn returns_within(world: &mut World, ms: u64) -> LinkId {
    let since = world.now;
    let link = returns(world);
    assert!(world.now.since_ms(since) <= ms, "it is tried too late");
    link
}

/// Requests wait for a server that restarts, and are then executed.
#[test]
fn requests_wait_for_a_server_that_restarts() {
    let mut world = settled(patient());
    let [before, during] = [world.accept(), world.accept()];
    world.asks(before, &["GET a"]);
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&["GET a"]));
    world.lose(world.shared);
    refuses(&mut world, 200);
    world.asks(during, &["SET b 1"]);
    let tried = refuses(&mut world, 300);
    assert!((3..=8).contains(&tried), "{tried} attempts");
    assert_eq!(world.got(before) + &world.got(during), "");
    let link = returns(&mut world);
    assert_eq!(world.sent(link).as_bytes(), requests(&["GET a", "SET b 1"]));
    world.says(link, "$1\r\n1\r\n+OK\r\n");
    assert_eq!(world.got(before), "$1\r\n1\r\n");
    assert_eq!(world.got(during), "+OK\r\n");
}

/// The first login of a user waits as other requests do. No link is connected for it meanwhile.
#[test]
fn first_login_waits_for_a_server_that_restarts() {
    for (login, said) in [
        ("AUTH bob pw", "+OK\r\n"),
        ("HELLO 3 AUTH bob pw", "%7\r\n$6\r\nserver\r\n"),
    ] {
        let mut world = settled(patient());
        world.lose(world.shared);
        refuses(&mut world, 100);
        let session = world.accept();
        world.asks(session, &[login, "GET k"]);
        let tried = refuses(&mut world, 500);
        assert!((4..=11).contains(&tried), "{tried} attempts");
        assert_eq!(world.got(session), "");
        assert_eq!(world.closed_sessions(), []);
        returns(&mut world);
        // The probing link, and then the user's.
        let probe = returns(&mut world);
        assert!(world.sent(probe).contains("AUTH"));
        world.says(probe, ["+OK\r\n", HELLO].concat());
        let own = returns(&mut world);
        world.turn(|_| {});
        assert!(world.sent(own).contains("GET"));
        let got = world.got(session);
        assert!(got.starts_with(said), "{got}");
    }
}

/// A server stays away for longer: the first login of a user is not sent, and later ones fail at
/// once.
#[test]
fn first_login_fails_after_the_hold() {
    let mut world = settled(patient());
    world.lose(world.shared);
    refuses(&mut world, 100);
    let session = world.accept();
    world.asks(session, &["AUTH bob pw"]);
    refuses(&mut world, HOLD_MS + 200);
    assert!(world.got(session).starts_with("-NOTSENT "));
    world.asks(session, &["AUTH bob pw"]);
    refuses(&mut world, 100);
    assert!(world.got(session).starts_with("-NOTSENT "));
}

/// A node that comes back before a failover gets the waiting requests.
#[test]
fn requests_wait_for_a_node_of_a_cluster() {
    let mut settings = cluster(2);
    settings.timeouts.outage_hold_ms = HOLD_MS;
    let mut world = settled(settings);
    world.know_owners();
    let lost = world.all_shared[1];
    let key = world.key_at(world.server_of(lost), "k");
    let session = world.accept();
    world.lose(lost);
    world.asks(session, &[&format!("SET {key} 1")]);
    refuses(&mut world, 500);
    assert_eq!(world.got(session), "");
    let link = returns(&mut world);
    let set = ["SET", &key, "1"].map(str::to_owned);
    assert!(world.asked(link).iter().any(|asked| *asked == set));
}

/// A failover takes place while requests wait for the owner of their keys: the new owner gets them.
#[test]
fn requests_wait_for_the_new_owner() {
    let mut settings = cluster(2);
    settings.timeouts.outage_hold_ms = HOLD_MS;
    let mut world = settled(settings);
    world.know_owners();
    let [new_primary, lost] = [world.all_shared[0], world.all_shared[1]];
    let key = world.key_at(world.server_of(lost), "k");
    let session = world.accept();
    world.lose(lost);
    world.asks(session, &[&format!("SET {key} 1")]);
    refuses(&mut world, 200);
    let place = world.server_of(new_primary);
    let slots = format!(
        "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$6\r\nserver\r\n:{}\r\n$40\r\n{place:040}\r\n",
        place + 1
    );
    let info = "cluster_state:ok\r\ncluster_slots_assigned:16384\r\n\
        cluster_current_epoch:2\r\ncluster_my_epoch:2\r\n";
    for _ in 0..16 {
        refuses(&mut world, 50);
        for args in world.asked(new_primary) {
            match &args.join(" ")[..] {
                "CLUSTER SLOTS" => world.says(new_primary, slots.clone()),
                "CLUSTER INFO" => world.says(new_primary, format!("${}\r\n{info}\r\n", info.len())),
                asked => {
                    assert_eq!(asked, format!("SET {key} 1"));
                    return;
                }
            }
        }
    }
    panic!("the new owner got no waiting request");
}

/// The nodes of a Cluster of a primary and a replica answer questions about the topology: the node
/// with the port `owner` owns all slots, and the other one follows it.
fn answer_owners(world: &mut World, links: [LinkId; 2], owner: u16) {
    let node = |port: u16| {
        let id = port - 1;
        format!("*3\r\n$6\r\nserver\r\n:{port}\r\n$40\r\n{id:040}\r\n")
    };
    let (first, second) = (node(owner), node(3 - owner));
    let slots = format!("*1\r\n*4\r\n:0\r\n:16383\r\n{first}{second}");
    for link in links {
        for args in world.asked(link) {
            let said = world.owners.said(&args).unwrap_or_default();
            let is_slots = args[1] == "SLOTS";
            world.says(link, if is_slots { slots.clone() } else { said });
        }
    }
}

/// A Cluster of a primary and a replica. The replica is lost, and respool waits long before its
/// next attempt to reach it.
fn replica_in_back_off() -> (World, [LinkId; 2]) {
    let mut settings = cluster(2);
    settings.timeouts.outage_hold_ms = HOLD_MS;
    settings.timeouts.reconnect_max_ms = 60_000;
    let mut world = settled(settings);
    let links = [world.all_shared[0], world.all_shared[1]];
    for _ in 0..40 {
        world.wait_ms(50);
        answer_owners(&mut world, links, 1);
    }
    world.lose(links[1]);
    for _ in 0..100 {
        refuses(&mut world, 50);
        answer_owners(&mut world, links, 1);
    }
    assert!(world.connecting().is_empty());
    (world, links)
}

/// The redirect of the key `k`.
const MOVED_K: &str = "-MOVED 7629 server:2\r\n";

/// A lost replica takes over while respool waits before its next attempt: it is tried at once, and
/// gets the request. If it is still away, or answers late, the request waits for it.
#[test]
fn requests_wait_for_a_replica_that_returns_and_takes_over() {
    for (refuses_for_ms, is_late_by_ms) in [(0, 0), (300, 0), (0, 400)] {
        let (mut world, links) = replica_in_back_off();
        let session = world.accept();
        world.asks(session, &["SET k 1"]);
        assert_eq!(world.sent(links[0]).as_bytes(), requests(&["SET k 1"]));
        world.says(links[0], MOVED_K);
        for _ in 0..refuses_for_ms / 50 {
            refuses(&mut world, 50);
            answer_owners(&mut world, links, 2);
        }
        for _ in 0..is_late_by_ms / 50 {
            world.wait_ms(50);
            answer_owners(&mut world, links, 2);
        }
        assert_eq!(world.got(session), "");
        let link = returns_within(&mut world, 150);
        let set = ["SET", "k", "1"].map(str::to_owned).to_vec();
        assert!(world.asked(link).contains(&set));
        world.says(link, "+OK\r\n");
        assert_eq!(world.got(session), "+OK\r\n");
    }
}

/// The nodes name the lost replica as the owner, before any request is redirected.
#[test]
fn lost_replica_named_as_owner_is_tried_at_once() {
    let (mut world, links) = replica_in_back_off();
    let has_moved = |world: &World| {
        let events = world.events.iter();
        let texts = events.filter_map(|event| match event {
            Event::Topology { text, .. } => Some(text),
            _ => None,
        });
        texts.into_iter().any(|text| text.contains("moved"))
    };
    let end = world.now.plus_ms(60_000);
    while !has_moved(&world) {
        assert!(world.now < end, "no refresh follows");
        refuses(&mut world, 50);
        answer_owners(&mut world, links, 2);
    }
    let link = returns_within(&mut world, 150);
    let session = world.accept();
    world.asks(session, &["SET k 1"]);
    let set = ["SET", "k", "1"].map(str::to_owned).to_vec();
    assert!(world.asked(link).contains(&set));
}

/// A new owner that stays away fails the request at the end of the hold.
#[test]
fn requests_for_a_new_owner_that_stays_away_fail_after_the_hold() {
    let (mut world, links) = replica_in_back_off();
    let session = world.accept();
    world.asks(session, &["SET k 1"]);
    world.says(links[0], MOVED_K);
    let pass = |world: &mut World, ms: u32| {
        for _ in 0..ms / 50 {
            refuses(world, 50);
            answer_owners(world, links, 2);
        }
    };
    pass(&mut world, HOLD_MS - 200);
    assert_eq!(world.got(session), "");
    pass(&mut world, 500);
    assert!(world.got(session).starts_with("-NOTSENT "));
}

/// Requests fail when the hold of an outage is over, and later ones fail at once.
#[test]
fn requests_fail_at_the_end_of_the_hold_and_then_at_once() {
    let mut world = settled(patient());
    let session = world.accept();
    world.lose(world.shared);
    refuses(&mut world, HOLD_MS / 2);
    world.asks(session, &["SET a 1"]);
    refuses(&mut world, HOLD_MS / 2 - 100);
    assert_eq!(world.got(session), "");
    refuses(&mut world, 200);
    let got = world.got(session);
    assert!(
        got.starts_with("-NOTSENT ") && got.contains("gone"),
        "{got}"
    );
    for _ in 0..20 {
        world.asks(session, &["GET a"]);
        refuses(&mut world, 50);
        assert!(world.got(session).starts_with("-NOTSENT "));
    }
    // The next outage has a hold of its own.
    let link = returns(&mut world);
    world.wait_ms(1_500);
    world.lose(link);
    world.asks(session, &["GET a"]);
    assert_eq!(world.got(session), "");
}

/// Requests that need a pinned link wait for the server, too.
#[test]
fn requests_for_pinned_links_wait_too() {
    let mut world = settled(patient());
    let [blocks, watches, uploads] = [world.accept(), world.accept(), world.accept()];
    world.lose(world.shared);
    refuses(&mut world, 100);
    world.asks(blocks, &["BLPOP k 0"]);
    world.asks(watches, &["WATCH k"]);
    world.sends(uploads, b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$600000\r\n");
    world.sends(uploads, &[b'x'; 300_000]);
    refuses(&mut world, 300);
    for session in [blocks, watches, uploads] {
        assert_eq!(world.got(session), "");
    }
    let first = returns(&mut world);
    let mut sent = world.sent(first);
    for link in world.connecting() {
        world.up(link);
        sent += &world.sent(link);
    }
    for verb in ["BLPOP", "WATCH", "SET"] {
        assert!(sent.contains(verb), "{verb}");
    }
}

/// The hold of an outage does not extend the deadline of a request.
#[test]
fn requests_wait_no_longer_than_their_deadline() {
    let mut settings = patient();
    settings.timeouts.request_ms = 300;
    let mut world = settled(settings);
    let session = world.accept();
    world.lose(world.shared);
    refuses(&mut world, 50);
    world.asks(session, &["GET a"]);
    refuses(&mut world, 200);
    assert_eq!(world.got(session), "");
    refuses(&mut world, 150);
    assert!(world.got(session).starts_with("-NOTSENT "));
}

/// A server that refuses the login is reachable: requests fail at once.
#[test]
fn requests_do_not_wait_for_a_server_that_refuses() {
    let mut world = settled(patient());
    let session = world.accept();
    world.lose(world.shared);
    let link = world.connecting()[0];
    world.turn(|engine| engine.handle_link_up(link));
    world.says(link, "-LOADING Redis is loading the dataset in memory\r\n");
    world.asks(session, &["GET a"]);
    assert!(
        world.got(session).starts_with("-"),
        "the request fails at once"
    );
}

/// One link of a server tries to connect at a time. The others follow when it is up.
#[test]
fn one_link_tries_while_others_wait() {
    let mut world = settled(patient());
    let other = world.accept();
    world.may_ask(other, &["SELECT respool"]);
    world.asks(other, &["SELECT 5"]);
    let second = world.connect();
    world.wait_ms(1_500);
    world.lose(world.shared);
    world.lose(second);
    world
        .connecting()
        .into_iter()
        .for_each(|link| world.lose(link));
    for _ in 0..10 {
        world.wait_ms(50);
        let tried = world.connecting();
        assert!(tried.len() <= 1, "{tried:?}");
        tried.into_iter().for_each(|link| world.lose(link));
    }
    returns(&mut world);
    assert_eq!(world.connecting().len(), 1, "the other link follows");
}

/// A session that waits in BLPOP is closed with its link. A library takes an error as the reply,
/// but connects again after a closed connection.
#[test]
fn session_waiting_on_a_pinned_link_is_closed_with_it() {
    for request in ["BLPOP k 0", "XREAD BLOCK 0 STREAMS s $", "WAIT 1 0"] {
        let mut world = settled(patient());
        let session = world.accept();
        world.asks(session, &[request]);
        let link = world.connect();
        world.sent(link);
        world.lose(link);
        assert_eq!(world.got(session), "", "{request}");
        assert_eq!(world.closed_sessions(), [session], "{request}");
    }
}

/// Sessions with subscriptions on a lost link are closed, since they may have missed messages.
#[test]
fn subscribers_of_a_lost_link_are_closed() {
    for keep in [false, true] {
        let mut settings = patient();
        settings.lost_subscriptions = match keep {
            true => LostSubscriptions::Keep,
            false => LostSubscriptions::Close,
        };
        let mut world = settled(settings);
        let [listens, other] = [world.accept(), world.accept()];
        world.asks(listens, &["SUBSCRIBE news"]);
        let link = world.connect();
        world.sent(link);
        world.says(link, ">3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
        assert!(world.got(listens).contains("news"));
        world.lose(link);
        let closed: &[_] = if keep { &[] } else { &[listens] };
        assert_eq!(world.closed_sessions(), closed);
        assert_eq!(world.got(other), "");
    }
}

/// A server that ends closes its listener first, then one connection after the other.
#[test]
fn requests_wait_while_links_are_lost_one_by_one() {
    let mut world = settled(patient());
    let sessions = [world.accept(), world.accept()];
    world.asks(sessions[0], &["HELLO 3"]);
    let first = world.connect();
    world.wait_ms(1_500);
    // The last link is still up when the first one finds the listener closed.
    world.lose(first);
    let tried = world.connecting();
    assert_eq!(tried.len(), 1);
    world.lose(tried[0]);
    world.asks(sessions[0], &["SET a 1"]);
    world.lose(world.shared);
    world.asks(sessions[1], &["HELLO 3"]);
    refuses(&mut world, 300);
    for session in sessions {
        assert!(!world.got(session).contains("NOTSENT"));
    }
}

/// A client that waits for a job connects again after a closed connection, and ends at an error.
#[test]
fn session_that_is_to_wait_is_closed_when_hold_is_over() {
    for request in ["BLPOP k 0", "XREAD BLOCK 0 STREAMS s $", "WAIT 1 0"] {
        let mut world = settled(patient());
        let [early, late, other] = [world.accept(), world.accept(), world.accept()];
        world.lose(world.shared);
        refuses(&mut world, 100);
        world.asks(early, &[request]);
        refuses(&mut world, HOLD_MS + 300);
        assert_eq!(world.got(early), "", "{request}");
        assert_eq!(world.closed_sessions(), [early], "{request}");
        world.asks(late, &[request]);
        refuses(&mut world, 300);
        assert_eq!(world.got(late), "", "{request}");
        assert_eq!(world.closed_sessions(), [early, late], "{request}");
        world.asks(other, &["GET a"]);
        assert!(world.got(other).starts_with("-NOTSENT "), "{request}");
    }
}

/// The server finishes each handshake and closes the connection at the first request. The questions
/// about the right to open transactions and about commands are asked again each time, but sessions
/// wait for the answers only so long.
#[test]
fn questions_that_are_lost_each_time_keep_no_session_waiting() {
    for request in ["MULTI", "ANY.COMMAND a"] {
        let mut world = settled(patient());
        let session = world.accept();
        world.asks(session, &[request]);
        let (mut asked, mut up) = (0, vec![world.shared]);
        for _ in 0..30 {
            for link in std::mem::take(&mut up) {
                match world.asked(link).is_empty() {
                    true => up.push(link),
                    false => {
                        asked += 1;
                        world.lose(link);
                    }
                }
            }
            for link in world.connecting() {
                world.up(link);
                up.push(link);
            }
            world.wait_ms(50);
        }
        assert!(asked > 2, "{request}: {asked}");
        // A command that may wait at the server is sent on a pinned link.
        match request {
            "MULTI" => assert_eq!(world.got(session), "+OK\r\n"),
            _ => assert_eq!(world.closed_sessions(), [session]),
        }
    }
}

const CODES: [(ServerDownError, &str); 3] = [
    (
        ServerDownError::Loading,
        "-LOADING respool: the command was not executed; ",
    ),
    (
        ServerDownError::TryAgain,
        "-TRYAGAIN respool: the command was not executed; ",
    ),
    (
        ServerDownError::NotSent,
        "-NOTSENT respool: the command was not executed; ",
    ),
];

/// A world with this code whose server is away for longer than requests wait.
fn away(code: ServerDownError) -> World {
    let mut settings = patient();
    settings.server_down_error = code;
    let mut world = settled(settings);
    world.lose(world.shared);
    refuses(&mut world, HOLD_MS + 200);
    world
}

/// A request that waits for the hold to end, and one after it, have the code of the settings.
#[test]
fn lone_request_has_the_code_of_the_settings() {
    for (code, text) in CODES {
        let mut settings = patient();
        settings.server_down_error = code;
        let mut world = settled(settings);
        let session = world.accept();
        world.lose(world.shared);
        refuses(&mut world, 100);
        world.asks(session, &["SET a 1"]);
        refuses(&mut world, HOLD_MS + 200);
        let got = world.got(session);
        assert!(got.starts_with(text), "{got}");
        for request in ["SET a 1", "GET a", "SELECT 3", "WATCH a", "MGET a b"] {
            world.asks(session, &[request]);
            // WATCH needs a pinned link, which is tried first.
            refuses(&mut world, 100);
            let got = world.got(session);
            assert!(got.starts_with(text), "{request}: {got}");
        }
    }
}

/// Client libraries repeat a whole pipeline for LOADING, so no request of one has it.
#[test]
fn pipelined_requests_have_the_code_notsent() {
    let mut world = away(ServerDownError::Loading);
    let session = world.accept();
    world.asks(session, &["SET a 1", "WATCH a", "GET a"]);
    refuses(&mut world, 100);
    let got = world.got(session);
    assert_eq!(got.matches("-NOTSENT ").count(), 3, "{got}");
    // The same while they wait.
    let link = returns(&mut world);
    world.wait_ms(1_500);
    world.lose(link);
    world.asks(session, &["SET a 1", "GET a"]);
    refuses(&mut world, HOLD_MS + 200);
    let got = world.got(session);
    assert_eq!(got.matches("-NOTSENT ").count(), 2, "{got}");
}

/// The second request of a pipeline fails after the first was executed and answered.
#[test]
fn request_behind_an_executed_one_has_the_code_notsent() {
    let mut settings = patient();
    settings.server_down_error = ServerDownError::Loading;
    let mut world = settled(settings);
    let session = world.accept();
    let both = requests(&["INCR a", "INCR b"]);
    let (first, rest) = both.split_at(both.len() - 3);
    world.sends(session, first);
    world.says(world.shared, ":1\r\n");
    assert_eq!(world.got(session), ":1\r\n");
    world.lose(world.shared);
    refuses(&mut world, HOLD_MS + 200);
    world.sends(session, rest);
    let got = world.got(session);
    assert!(got.starts_with("-NOTSENT "), "{got}");
}

/// If the client has not read the reply to its first request, the second request of its pipeline
/// has the code NOTSENT.
#[test]
fn request_behind_a_reply_not_taken_has_the_code_notsent() {
    let mut settings = patient();
    settings.server_down_error = ServerDownError::Loading;
    let mut world = settled(settings);
    let session = world.accept();
    world.slow.insert(session);
    world.asks(session, &["INCR a"]);
    world.says(world.shared, ":1\r\n");
    world.lose(world.shared);
    refuses(&mut world, HOLD_MS + 200);
    world.asks(session, &["INCR b"]);
    world.takes(session);
    let got = world.got(session);
    assert!(got.starts_with(":1\r\n-NOTSENT "), "{got}");
}

/// EXEC cannot be repeated by itself, since its transaction is gone. This is true of an EXEC that
/// finds no server, and of one that waits.
#[test]
fn exec_of_a_transaction_has_the_code_notsent() {
    for waits in [false, true] {
        let mut settings = patient();
        settings.server_down_error = ServerDownError::Loading;
        let mut world = settled(settings);
        let session = world.accept();
        world.asks(session, &["MULTI"]);
        world.allows_transactions(world.shared);
        world.asks(session, &["INCR a"]);
        world.allows_transactions(world.shared);
        assert_eq!(world.got(session), "+OK\r\n+QUEUED\r\n");
        world.lose(world.shared);
        refuses(&mut world, if waits { 100 } else { HOLD_MS + 200 });
        world.asks(session, &["EXEC"]);
        refuses(&mut world, HOLD_MS + 200);
        let got = world.got(session);
        assert!(got.starts_with("-NOTSENT "), "{waits}: {got}");
    }
}

/// A large request may have its reply before its end, and others follow its end.
#[test]
fn large_request_has_the_code_notsent() {
    let mut world = away(ServerDownError::Loading);
    let session = world.accept();
    let large = requests(&[&format!("SET a {}", "x".repeat(1 << 20))]);
    for part in large.chunks(16 << 10) {
        world.sends(session, part);
    }
    refuses(&mut world, 100);
    let got = world.got(session);
    assert!(got.starts_with("-NOTSENT "), "{got}");
}

/// A server that refuses the login is reachable. A repeated request would fail, too.
#[test]
fn request_to_a_server_that_refuses_has_the_code_notsent() {
    for (words, code) in [
        ("-ERR max number of clients reached\r\n", "-LOADING "),
        ("-WRONGPASS invalid username-password pair\r\n", "-NOTSENT "),
        ("-NOPERM no permissions to run 'hello'\r\n", "-NOTSENT "),
    ] {
        let mut settings = settings();
        settings.server_down_error = ServerDownError::Loading;
        let mut world = settled(settings);
        let [waits, comes] = [world.accept(), world.accept()];
        world.lose(world.shared);
        let [link] = world.connecting()[..] else {
            panic!("the link is connected again");
        };
        world.asks(waits, &["GET a"]);
        world.turn(|engine| engine.handle_link_up(link));
        world.says(link, words);
        world.asks(comes, &["GET a"]);
        for session in [waits, comes] {
            let got = world.got(session);
            assert!(got.starts_with(code), "{words}: {got}");
        }
    }
}

/// An inline request has the code NOTSENT: no library sends such requests.
#[test]
fn inline_request_has_the_code_notsent() {
    let mut world = away(ServerDownError::Loading);
    let session = world.accept();
    world.sends(session, b"INCR a\r\n");
    let got = world.got(session);
    assert!(got.starts_with("-NOTSENT "), "{got}");
}

/// A client is closed at HELLO with every error code for its requests: libraries connect again.
#[test]
fn hello_is_closed_while_the_server_is_away() {
    for (code, text) in CODES {
        let mut world = away(code);
        for hello in ["HELLO 3", "HELLO 3 AUTH user password"] {
            let session = world.accept();
            world.asks(session, &[hello]);
            refuses(&mut world, 300);
            assert_eq!(world.got(session), "", "{text}: {hello}");
            let closed = world.closed_sessions();
            assert_eq!(closed.last(), Some(&session), "{text}: {hello}");
        }
    }
}

/// A request that may have been executed never has a code that says 'ask again'.
#[test]
fn request_that_was_sent_has_the_code_unknown() {
    let mut settings = patient();
    settings.server_down_error = ServerDownError::Loading;
    let mut world = settled(settings);
    let session = world.accept();
    world.asks(session, &["INCR a"]);
    world.lose(world.shared);
    refuses(&mut world, HOLD_MS + 200);
    let got = world.got(session);
    assert!(got.starts_with("-UNKNOWN "), "{got}");
}

/// After a restart the first question on the new connection is waited for: a client that connects
/// again is not told that its server gave no answer.
#[test]
fn question_after_a_restart_is_waited_for() {
    let mut world = settled(patient());
    let session = world.accept();
    world.asks(session, &["MULTI"]);
    assert!(!world.asked(world.shared).is_empty());
    world.lose(world.shared);
    refuses(&mut world, 500);
    let link = returns(&mut world);
    world.wait_ms(1);
    let other = world.accept();
    world.asks(other, &["MULTI"]);
    for session in [session, other] {
        assert_eq!(world.got(session), "", "the server has not answered");
    }
    world.allows_transactions(link);
    world.allows_transactions(link);
    for session in [session, other] {
        assert_eq!(world.got(session), "+OK\r\n");
    }
}

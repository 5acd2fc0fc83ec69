//! Scripts that clients have shown are loaded again, before a request names them.

use crate::world::{HELLO, World, request, requests, settings, without_lanes, worker};
use respool_engine::limits::{SCRIPT_BYTES_MAX, SCRIPTS_WAIT_MS};
use respool_engine::{Action, Event, LinkId, SessionId, WorkerId};
use sha1::{Digest, Sha1};

const BODY: &str = "return 1";
const SHA: &str = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";

fn load() -> String {
    text(&request(&["SCRIPT", "LOAD", BODY]))
}

fn evalsha(key: &str) -> String {
    text(&request(&["EVALSHA", SHA, "1", key]))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("requests are text")
}

/// The server is known to allow transactions.
fn takes_transactions(world: &mut World, session: SessionId, link: LinkId) {
    world.asks(session, &["MULTI", "GET k", "EXEC"]);
    world.allows_transactions(link);
    world.got(session);
    world.sent(link);
}

/// A session that has shown the script, and the link after a restart of the server.
fn shown_before_a_restart() -> (World, SessionId, LinkId) {
    let mut world = World::new(without_lanes(settings()));
    let session = world.accept();
    world.sends(session, &request(&["EVAL", BODY, "1", "k"]));
    world.says(world.shared, ":1\r\n");
    world.got(session);
    world.wait_ms(1_500);
    world.sends(session, evalsha("k").as_bytes());
    world.sent(world.shared);
    world.says(world.shared, ":1\r\n");
    assert_eq!(world.got(session), ":1\r\n");
    world.lose(world.shared);
    let link = world.connect();
    (world, session, link)
}

/// A script is loaded once on each connection, in front of the first EVALSHA.
#[test]
fn script_is_loaded_once_on_each_connection() {
    let (mut world, session, link) = shown_before_a_restart();
    world.sends(session, (evalsha("a") + &evalsha("b")).as_bytes());
    assert_eq!(world.sent(link), load() + &evalsha("a") + &evalsha("b"));
    world.says(link, format!("$40\r\n{SHA}\r\n:1\r\n:2\r\n"));
    assert_eq!(world.got(session), ":1\r\n:2\r\n");
    world.sends(session, evalsha("c").as_bytes());
    assert_eq!(world.sent(link), evalsha("c"));
}

/// A script that a transaction names is loaded in front of its MULTI.
#[test]
fn script_in_a_transaction_is_loaded_before_it() {
    let (mut world, session, link) = shown_before_a_restart();
    let block = text(&requests(&["MULTI"])) + &evalsha("a") + &text(&requests(&["EXEC"]));
    takes_transactions(&mut world, session, link);
    world.sends(session, block.as_bytes());
    assert_eq!(world.sent(link), load() + &block);
    world.says(
        link,
        format!("$40\r\n{SHA}\r\n+OK\r\n+QUEUED\r\n*1\r\n:1\r\n"),
    );
    assert!(world.got(session).ends_with("*1\r\n:1\r\n"));
}

/// A script that a transaction shows is remembered.
#[test]
fn script_shown_in_a_transaction_is_known() {
    let eval = request(&["EVAL", BODY, "1", "k"]);
    let load = request(&["SCRIPT", "LOAD", BODY]);
    for (shows, said) in [
        (eval, ":1\r\n".to_owned()),
        (load, format!("$40\r\n{SHA}\r\n")),
    ] {
        let mut world = World::new(without_lanes(settings()));
        let session = world.accept();
        let link = world.shared;
        takes_transactions(&mut world, session, link);
        let [multi, exec] = ["MULTI", "EXEC"].map(|word| requests(&[word]));
        world.sends(session, &[multi, shows, exec].concat());
        world.says(world.shared, format!("+OK\r\n+QUEUED\r\n*1\r\n{said}"));
        world.wait_ms(1_500);
        world.lose(world.shared);
        let link = world.connect();
        world.sends(session, evalsha("a").as_bytes());
        assert_eq!(world.sent(link), self::load() + &evalsha("a"));
    }
}

/// The name of the script with this body.
fn name_of(body: &str) -> String {
    let digest = Sha1::digest(body);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The server is lost. Then the session names the script with this body. Returns its output.
fn sent_after_a_loss(world: &mut World, session: SessionId, body: &str) -> (String, String) {
    world.got(session);
    world.wait_ms(1_500);
    world.lose(world.shared);
    let link = world.connect();
    let name = name_of(body);
    let named = text(&request(&["EVALSHA", &name, "1", "k"]));
    world.sends(session, named.as_bytes());
    (world.sent(link), named)
}

/// A script larger than the bound for held requests is remembered as a small one is.
#[test]
fn large_script_is_loaded_again() {
    let body = format!("return 1 --{}", "x".repeat(600_000));
    let load = request(&["SCRIPT", "LOAD", &body]);
    for shows in [request(&["EVAL", &body, "1", "k"]), load.clone()] {
        let mut world = World::new(without_lanes(settings()));
        let session = world.accept();
        for part in shows.chunks(100_000) {
            assert_eq!(world.sent(world.shared), "");
            world.sends(session, part);
        }
        assert_eq!(world.sent(world.shared).as_bytes(), shows);
        world.says(world.shared, ":1\r\n");
        let (sent, named) = sent_after_a_loss(&mut world, session, &body);
        assert!(sent == text(&load) + &named);
    }
}

/// A small script is remembered even if its arguments are too large to hold.
#[test]
fn script_with_large_arguments_is_loaded_again() {
    for (said, is_known) in [(":1\r\n", true), ("-NOPERM no\r\n", false)] {
        let mut world = World::new(without_lanes(settings()));
        let session = world.accept();
        let large = "x".repeat(600_000);
        let shows = request(&["EVAL", BODY, "1", "k", &large]);
        world.sends(session, &shows[..100_000]);
        let own = world.connect();
        world.sends(session, &shows[100_000..]);
        world.turn(|_| {});
        assert!(world.sent(own).ends_with("x\r\n"));
        world.says(own, said);
        assert_eq!(world.got(session), said);
        let (sent, named) = sent_after_a_loss(&mut world, session, BODY);
        assert_eq!(sent, if is_known { load() } else { String::new() } + &named);
    }
}

/// A script larger than all remembered ones may be is cut through, and not remembered.
#[test]
fn script_beyond_the_bound_is_cut_through() {
    let mut world = World::new(without_lanes(settings()));
    let session = world.accept();
    let shows = request(&["EVAL", &"x".repeat(SCRIPT_BYTES_MAX), "0"]);
    world.sends(session, &shows[..100_000]);
    let own = world.connect();
    world.sends(session, &shows[100_000..]);
    world.turn(|_| {});
    assert!(world.sent(own).as_bytes().ends_with(&shows));
}

/// A server that has lost its scripts gets them again.
#[test]
fn server_that_loses_scripts_gets_them_again() {
    let (mut world, session, link) = shown_before_a_restart();
    takes_transactions(&mut world, session, link);
    let block = text(&requests(&["MULTI"])) + &evalsha("a") + &text(&requests(&["EXEC"]));
    world.sends(session, block.as_bytes());
    // A client of the server itself has sent SCRIPT FLUSH meanwhile.
    let noscript = "-NOSCRIPT No matching script. Please use EVAL.\r\n";
    world.says(
        link,
        format!("$40\r\n{SHA}\r\n+OK\r\n+QUEUED\r\n*1\r\n{noscript}"),
    );
    world.sent(link);
    world.sends(session, block.as_bytes());
    assert_eq!(world.sent(link), load() + &block);
}

/// Requests that outlive their connection have their scripts loaded on the next one.
#[test]
fn requests_that_outlive_a_link_get_scripts_loaded() {
    let (mut world, session, link) = shown_before_a_restart();
    world.wait_ms(1_500);
    world.lose(link);
    world.sends(session, evalsha("a").as_bytes());
    let [attempt] = world.connecting()[..] else {
        panic!("one link connects");
    };
    world.up(attempt);
    assert_eq!(world.sent(attempt), load() + &evalsha("a"));
}

/// A script that a client shows to one worker is known to all workers.
#[test]
fn scripts_are_known_to_all_workers() {
    let mut first = World::new_among(worker(0, 2), without_lanes(settings()));
    let mut second = World::new_among(worker(1, 2), without_lanes(settings()));
    let session = first.accept();
    first.sends(session, &request(&["SCRIPT", "LOAD", BODY]));
    first.says(first.shared, format!("$40\r\n{SHA}\r\n"));
    let asked = first.actions.drain(..).find_map(|action| match action {
        Action::Ask { ticket, question } => Some((ticket, question)),
        _ => None,
    });
    let (ticket, question) = asked.expect("the other worker gets a query");
    second.turn(|engine| engine.handle_question(0, ticket, question));
    let session = second.accept();
    second.sends(session, evalsha("a").as_bytes());
    assert_eq!(second.sent(second.shared), load() + &evalsha("a"));
}

/// A debugger that ignores the refusal would execute its script for good, instead of rolling it
/// back.
#[test]
fn script_of_a_refused_debugger_does_not_run() {
    let mut world = World::new(without_lanes(settings()));
    let [debugs, other] = [0; 2].map(|_| world.accept());
    world.asks(debugs, &["SCRIPT DEBUG YES", "EVAL x 0", "EVALSHA x 0"]);
    let got = world.got(debugs);
    assert_eq!(got.matches("-ERR respool: ").count(), 3, "{got}");
    assert_eq!(world.sent(world.shared), "");
    world.asks(debugs, &["SCRIPT DEBUG NO", "EVAL x 0"]);
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&["EVAL x 0"]));
    world.says(world.shared, "$-1\r\n");
    world.asks(other, &["EVAL y 0"]);
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&["EVAL y 0"]));
}

const NOPERM: &str = "-NOPERM User bob has no permissions to run the 'script|load' command\r\n";
const NOSCRIPT: &str = "-NOSCRIPT No matching script. Please use EVAL.\r\n";

/// MULTI, EVALSHA of the script, EXEC.
fn block() -> String {
    text(&requests(&["MULTI"])) + &evalsha("k") + &text(&requests(&["EXEC"]))
}

/// The reply to [`block`], with this element.
fn executed(element: &str) -> String {
    format!("+OK\r\n+QUEUED\r\n*1\r\n{element}")
}

/// A pool with sessions of two users of the server, each with a link of its own.
struct Users {
    world: World,
    bob: (SessionId, LinkId),
    ann: (SessionId, LinkId),
}

impl Users {
    fn new() -> Users {
        Users::among(worker(0, 1))
    }

    fn among(worker: WorkerId) -> Users {
        let mut world = World::new_among(worker, without_lanes(settings()));
        let mut probe = None;
        let [bob, ann] = ["bob", "ann"].map(|user| {
            let session = world.accept();
            world.asks(session, &[&format!("AUTH {user} secret")]);
            let probe = *probe.get_or_insert_with(|| world.connect());
            world.says(probe, ["+OK\r\n", HELLO].concat());
            assert_eq!(world.got(session), "+OK\r\n");
            world.asks(session, &["GET k"]);
            let mut links = world.connecting();
            links.iter().for_each(|link| world.up(*link));
            links.retain(|link| world.sent(*link).contains("GET"));
            let [link] = links[..] else {
                panic!("the user has a link");
            };
            world.says(link, "$-1\r\n");
            assert_eq!(world.got(session), "$-1\r\n");
            takes_transactions_of(&mut world, (session, link));
            (session, link)
        });
        Users { world, bob, ann }
    }

    /// The server is restarted, and takes all links again.
    fn restart(&mut self) {
        self.world.wait_ms(1_500);
        for link in [self.world.shared, self.bob.1, self.ann.1] {
            self.world.sent(link);
            self.world.lose(link);
        }
        for link in self.world.connecting() {
            self.world.up(link);
        }
        for user in [self.bob, self.ann] {
            takes_transactions_of(&mut self.world, user);
        }
        self.world.sent(self.world.shared);
    }

    /// The session sends a request, and the server replies on its link.
    fn runs(&mut self, (session, link): (SessionId, LinkId), asked: &[u8], said: &str) {
        self.world.sends(session, asked);
        assert_eq!(self.world.sent(link).as_bytes(), asked);
        self.world.says(link, said);
        assert_eq!(self.world.got(session), said);
    }
}

/// The server of a user is known to allow transactions.
fn takes_transactions_of(world: &mut World, (session, link): (SessionId, LinkId)) {
    world.asks(session, &["MULTI", "GET k", "EXEC"]);
    for _ in 0..3 {
        world.allows_transactions(world.shared);
        world.allows_transactions(link);
    }
    world.got(session);
    world.sent(link);
}

/// A user without the right to SCRIPT LOAD has shown a script by EVAL. Its client does not notice a
/// restart of the server: the script is loaded when its transaction comes.
#[test]
fn script_is_restored_for_a_user_that_may_not_load_it() {
    let mut users = Users::new();
    let (session, link) = users.bob;
    users.runs(users.bob, &request(&["EVAL", BODY, "1", "k"]), ":1\r\n");
    users.restart();
    let world = &mut users.world;
    for asked in [block(), block()] {
        world.sends(session, asked.as_bytes());
        if world.sent(world.shared) == load() {
            assert_eq!(world.sent(link), "");
            world.says(world.shared, format!("$40\r\n{SHA}\r\n"));
        }
        assert_eq!(world.sent(link), asked);
        world.says(link, executed(":1\r\n"));
        assert!(world.got(session).ends_with("*1\r\n:1\r\n"));
    }
    assert_eq!(world.engine.counters().scripts_reloaded, 1);
    users.restart();
    let world = &mut users.world;
    world.sends(session, (evalsha("a") + &evalsha("b")).as_bytes());
    assert_eq!(world.sent(world.shared), load());
    world.says(world.shared, format!("$40\r\n{SHA}\r\n"));
    assert_eq!(world.sent(link), evalsha("a") + &evalsha("b"));
}

/// A script shown by EVAL is restored for that user. A script shown by SCRIPT LOAD is restored for
/// all users.
#[test]
fn script_is_restored_for_other_users_if_it_was_loaded() {
    for (shows, said, is_restored) in [
        (
            request(&["EVAL", BODY, "1", "k"]),
            ":1\r\n".to_owned(),
            false,
        ),
        (
            request(&["SCRIPT", "LOAD", BODY]),
            format!("$40\r\n{SHA}\r\n"),
            true,
        ),
    ] {
        let mut users = Users::new();
        users.runs(users.ann, &shows, &said);
        users.restart();
        let (world, (session, link)) = (&mut users.world, users.bob);
        world.sends(session, block().as_bytes());
        let [configured, own] = [world.shared, link].map(|link| world.sent(link));
        match is_restored {
            true => assert_eq!([configured, own], [load(), String::new()]),
            // Bob's own SCRIPT LOAD is sent, as far as his rights go.
            false => assert_eq!([configured, own], [String::new(), load() + &block()]),
        }
    }
}

/// Each worker numbers users in its own way, so workers send each other names.
#[test]
fn script_that_a_user_has_shown_to_another_worker_is_restored() {
    let mut first = Users::among(worker(0, 2));
    let mut second = Users::among(worker(1, 2));
    first.runs(first.bob, &request(&["EVAL", BODY, "1", "k"]), ":1\r\n");
    let told = first
        .world
        .actions
        .drain(..)
        .find_map(|action| match action {
            Action::Ask { ticket, question } => Some((ticket, question)),
            _ => None,
        });
    let (ticket, question) = told.expect("the other worker gets a query");
    let world = &mut second.world;
    world.turn(|engine| engine.handle_question(0, ticket, question));
    for ((session, link), is_restored) in [(second.ann, false), (second.bob, true)] {
        world.sends(session, evalsha("k").as_bytes());
        let [configured, own] = [world.shared, link].map(|link| world.sent(link));
        match is_restored {
            true => assert_eq!([configured, own], [load(), String::new()]),
            false => assert_eq!([configured, own], [String::new(), load() + &evalsha("k")]),
        }
    }
}

/// A server keeps its scripts for all connections. So the configured user loads a script once for
/// all users, and once more after the server has lost it.
#[test]
fn script_is_restored_once_for_all_users() {
    for is_later in [false, true] {
        let mut users = Users::new();
        for user in [users.bob, users.ann] {
            users.runs(user, &request(&["EVAL", BODY, "1", "k"]), ":1\r\n");
        }
        users.restart();
        let (bob, ann, world) = (users.bob, users.ann, &mut users.world);
        world.sends(bob.0, block().as_bytes());
        if !is_later {
            world.sends(ann.0, block().as_bytes());
        }
        assert_eq!(world.sent(world.shared), load());
        world.says(world.shared, format!("$40\r\n{SHA}\r\n"));
        if is_later {
            world.sends(ann.0, block().as_bytes());
        }
        for (session, link) in [bob, ann] {
            assert_eq!(world.sent(link), block());
            world.says(link, executed(NOSCRIPT));
            assert!(world.got(session).ends_with(NOSCRIPT));
        }
        assert_eq!(world.sent(world.shared), "");
        assert_eq!(world.engine.counters().scripts_reloaded, 1);
        world.sends(ann.0, block().as_bytes());
        assert_eq!(world.sent(world.shared), load());
        world.says(world.shared, NOPERM);
        // A refusal counts for all users, too: each has to load the script itself.
        world.sends(bob.0, block().as_bytes());
        for (_, link) in [bob, ann] {
            assert_eq!(world.sent(link), load() + &block());
        }
        assert_eq!(world.sent(world.shared), "");
    }
}

/// A block that names one script often has it loaded once. A block that names more scripts than a
/// link remembers does not wait for them in turns.
#[test]
fn scripts_of_a_large_block_are_loaded_once() {
    let bodies: Vec<String> = (0..2_100)
        .map(|number| format!("return {number}"))
        .collect();
    for (named, repeated) in [(1, 3_000), (2_100, 1)] {
        let mut users = Users::new();
        let mut all = text(&requests(&["MULTI"]));
        for body in &bodies[..named] {
            let load = request(&["SCRIPT", "LOAD", body]);
            let name = name_of(body);
            users.runs(users.bob, &load, &format!("$40\r\n{name}\r\n"));
            all += &text(&request(&["EVALSHA", &name, "0"])).repeat(repeated);
        }
        all += &text(&requests(&["EXEC"]));
        users.restart();
        let (world, (session, link)) = (&mut users.world, users.bob);
        world.sends(session, all.as_bytes());
        let loads = |world: &mut World, link| {
            let asked = world.asked(link);
            asked.iter().filter(|args| args[0] == "SCRIPT").count()
        };
        let [configured, own] = [world.shared, link].map(|link| loads(world, link));
        match named {
            1 => assert_eq!([configured, own], [1, 0]),
            _ => assert_eq!([configured, own], [0, named]),
        }
    }
}

/// If the configured user may not load scripts, the user of the session gets the server's own
/// answer.
#[test]
fn script_is_loaded_as_its_user_if_the_configured_one_may_not() {
    let mut users = Users::new();
    let (session, link) = users.bob;
    users.runs(users.bob, &request(&["EVAL", BODY, "1", "k"]), ":1\r\n");
    users.restart();
    let world = &mut users.world;
    world.sends(session, evalsha("k").as_bytes());
    assert_eq!(world.sent(world.shared), load());
    world.says(world.shared, NOPERM);
    assert_eq!(world.sent(link), load() + &evalsha("k"));
    world.says(link, [NOPERM, NOSCRIPT].concat());
    // The server is asked whether it lacks the script.
    world.says(link, NOPERM);
    assert_eq!(world.got(session), NOSCRIPT);
    assert!(world.closed_sessions().is_empty());
}

/// A request waits for its script until its deadline.
#[test]
fn request_waits_for_its_script_until_its_deadline() {
    let mut users = Users::new();
    let (session, link) = users.bob;
    users.runs(users.bob, &request(&["EVAL", BODY, "1", "k"]), ":1\r\n");
    users.restart();
    let world = &mut users.world;
    world.sends(session, evalsha("k").as_bytes());
    assert_eq!(world.sent(world.shared), load());
    world.wait_ms(9_000);
    assert_eq!(world.got(session), "");
    world.wait_ms(1_100);
    let got = world.got(session);
    assert!(got.starts_with("-NOTSENT "), "{got}");
    assert_eq!(world.sent(link), "");
}

/// The question whether a script is loaded is lost with its link, and asked again.
#[test]
fn script_is_asked_for_anew_if_the_link_is_lost_meanwhile() {
    let mut users = Users::new();
    let (session, link) = users.bob;
    users.runs(users.bob, &request(&["EVAL", BODY, "1", "k"]), ":1\r\n");
    users.restart();
    let world = &mut users.world;
    world.sends(session, block().as_bytes());
    assert_eq!(world.sent(world.shared), load());
    world.wait_ms(1_500);
    world.lose(world.shared);
    world.connect();
    assert_eq!(world.sent(world.shared), load());
    world.says(world.shared, format!("$40\r\n{SHA}\r\n"));
    assert_eq!(world.sent(link), block());
}

/// A session whose link was lost since it came, and a script that cannot be restored.
fn lost_script() -> (World, SessionId, LinkId) {
    let mut world = World::new(without_lanes(settings()));
    let session = world.accept();
    world.wait_ms(1_500);
    world.lose(world.shared);
    let link = world.connect();
    takes_transactions(&mut world, session, link);
    (world, session, link)
}

fn closings(world: &World) -> Vec<&String> {
    let events = world.events.iter().filter_map(|event| match event {
        Event::SessionClosed { reason, .. } => Some(reason),
        _ => None,
    });
    events.collect()
}

/// A client believes that the server has a script which it has shown on this connection. A restart
/// would have closed the connection, so respool closes it after the reply.
#[test]
fn lost_script_closes_its_session_behind_exec() {
    let (mut world, session, link) = lost_script();
    let newcomer = world.accept();
    for (asks, is_closed) in [(newcomer, false), (session, true)] {
        let behind = request(&["GET", "k"]);
        world.sends(asks, &[block().as_bytes(), &behind].concat());
        world.says(link, executed(NOSCRIPT) + "$-1\r\n");
        assert!(
            world
                .got(asks)
                .ends_with(&(NOSCRIPT.to_owned() + "$-1\r\n"))
        );
        let closed = if is_closed { vec![session] } else { vec![] };
        assert_eq!(world.closed_sessions(), closed);
    }
    assert_eq!(closings(&world).len(), 1);
}

/// Libraries send EVAL after NOSCRIPT.
#[test]
fn lost_script_is_noscript_outside_of_transactions() {
    let (mut world, session, link) = lost_script();
    world.sends(session, evalsha("k").as_bytes());
    world.says(link, NOSCRIPT);
    assert_eq!(world.got(session), NOSCRIPT);
    world.asks(session, &["GET k"]);
    world.says(link, "$-1\r\n");
    assert_eq!(world.got(session), "$-1\r\n");
    assert!(world.closed_sessions().is_empty());
}

/// A client that flushes scripts expects NOSCRIPT.
#[test]
fn flushed_script_closes_no_session() {
    let (mut world, session, link) = lost_script();
    world.asks(session, &["SCRIPT FLUSH"]);
    world.says(link, "+OK\r\n");
    world.sends(session, block().as_bytes());
    world.says(link, executed(NOSCRIPT));
    assert!(world.got(session).ends_with(NOSCRIPT));
    assert!(world.closed_sessions().is_empty());
}

/// A value that only looks like the error closes nothing.
#[test]
fn value_that_says_noscript_closes_no_session() {
    let (mut world, session, link) = lost_script();
    world.sends(session, block().as_bytes());
    world.says(link, executed("$11\r\n\r\n-NOSCRIPT\r\n"));
    assert!(world.got(session).ends_with("-NOSCRIPT\r\n"));
    assert!(world.closed_sessions().is_empty());
}

/// If no user may load a script, the session that names it is closed, and its client shows the
/// script again.
#[test]
fn script_that_no_user_may_load_closes_its_session() {
    let mut users = Users::new();
    let (session, link) = users.bob;
    users.runs(users.bob, &request(&["EVAL", BODY, "1", "k"]), ":1\r\n");
    users.restart();
    let world = &mut users.world;
    world.sends(session, block().as_bytes());
    world.says(world.shared, NOPERM);
    assert_eq!(world.sent(link), load() + &block());
    world.says(link, NOPERM.to_owned() + &executed(NOSCRIPT));
    assert!(world.got(session).ends_with(NOSCRIPT));
    assert_eq!(world.closed_sessions(), [session]);
}

/// Requests that outlive the connection of their link name scripts. The link waits until the
/// configured user has loaded them, for a short time at most.
#[test]
fn link_waits_for_the_scripts_of_its_requests() {
    enum Configured {
        Loads,
        MayNot,
        IsAway,
    }
    for configured in [Configured::Loads, Configured::MayNot, Configured::IsAway] {
        let mut users = Users::new();
        let (session, link) = users.bob;
        users.runs(users.bob, &request(&["EVAL", BODY, "1", "k"]), ":1\r\n");
        let world = &mut users.world;
        let shared = world.shared;
        world.wait_ms(1_500);
        world.turn(|engine| {
            engine.handle_session_bytes(session, block().as_bytes());
            engine.handle_link_lost(link, "gone");
            engine.handle_link_lost(shared, "gone");
        });
        world.up(link);
        assert_eq!(world.sent(link), "");
        let expected = match configured {
            Configured::Loads => {
                world.up(shared);
                assert_eq!(world.sent(shared), load());
                world.says(shared, format!("$40\r\n{SHA}\r\n"));
                block()
            }
            Configured::MayNot => {
                world.up(shared);
                world.says(shared, NOPERM);
                load() + &block()
            }
            Configured::IsAway => {
                world.wait_ms(SCRIPTS_WAIT_MS as u32);
                load() + &block()
            }
        };
        assert_eq!(world.sent(link), expected);
    }
}

/// A script that returns an error has run: the server has its body.
#[test]
fn script_that_returns_an_error_is_remembered() {
    let eval = "EVAL return_1 0";
    for (shows, reply, is_known) in [
        (eval, "-LOCKED by another client\r\n", true),
        (eval, "-ERR user_script:1: failed script: abc\r\n", true),
        (eval, "-NOPERM no\r\n", false),
        (eval, "-OOM command not allowed\r\n", false),
        (
            eval,
            "-ERR Error compiling script (new function)\r\n",
            false,
        ),
        ("EVAL return_1 a", "-ERR value is not an integer\r\n", false),
        ("EVAL return_1 1", "-ERR Number of keys\r\n", false),
    ] {
        let mut world = World::new(without_lanes(settings()));
        let session = world.accept();
        world.asks(session, &[shows]);
        world.says(world.shared, reply);
        assert_eq!(world.got(session), reply);
        world.sent(world.shared);
        world.lose(world.shared);
        let link = world.connect();
        let named = format!("EVALSHA {} 0", name_of("return_1"));
        world.asks(session, &[&named]);
        let load = "SCRIPT LOAD return_1";
        let expected = match is_known {
            true => requests(&[load, &named]),
            false => requests(&[&named]),
        };
        assert_eq!(world.sent(link).as_bytes(), expected, "{reply}");
    }
}

/// After SCRIPT FLUSH a client expects NOSCRIPT, also on a connection that never had the script.
#[test]
fn script_is_not_loaded_behind_a_flush_in_flight() {
    let mut world = World::new(without_lanes(settings()));
    let session = world.accept();
    world.asks(session, &["EVAL return_1 0"]);
    world.says(world.shared, ":1\r\n");
    world.sent(world.shared);
    world.lose(world.shared);
    let link = world.connect();
    let named = format!("EVALSHA {} 0", name_of("return_1"));
    let all = ["SCRIPT FLUSH", named.as_str()];
    world.asks(session, &all);
    assert_eq!(world.sent(link).as_bytes(), requests(&all));
}

//! Scripts that clients have shown are loaded again, before a request names them.

mod world;

use respool_engine::limits::SCRIPT_BYTES_MAX;
use respool_engine::{Action, LinkId, SessionId};
use sha1::{Digest, Sha1};
use world::{World, request, requests, settings, without_lanes, worker};

const BODY: &str = "return 1";
const SHA: &str = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";

fn load() -> String {
    text(&request(&["SCRIPT", "LOAD", BODY]))
}

fn evalsha(key: &str) -> String {
    text(&request(&["EVALSHA", SHA, "1", key]))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("it is text")
}

/// The server is known to take transactions.
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

#[test]
fn script_is_loaded_once_on_each_connection_before_it_is_named() {
    let (mut world, session, link) = shown_before_a_restart();
    world.sends(session, (evalsha("a") + &evalsha("b")).as_bytes());
    assert_eq!(world.sent(link), load() + &evalsha("a") + &evalsha("b"));
    world.says(link, format!("$40\r\n{SHA}\r\n:1\r\n:2\r\n"));
    assert_eq!(world.got(session), ":1\r\n:2\r\n");
    world.sends(session, evalsha("c").as_bytes());
    assert_eq!(world.sent(link), evalsha("c"));
}

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

/// The server is lost. Then the session names the script with this body: returns what it gets.
fn sent_after_a_loss(world: &mut World, session: SessionId, body: &str) -> (String, String) {
    world.got(session);
    world.wait_ms(1_500);
    world.lose(world.shared);
    let link = world.connect();
    let name: String = Sha1::digest(body)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let named = text(&request(&["EVALSHA", &name, "1", "k"]));
    world.sends(session, named.as_bytes());
    (world.sent(link), named)
}

/// A script larger than what is held of other requests is remembered as a small one is.
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

/// A small script is remembered though its arguments are too large to be held.
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

/// A script larger than all that is remembered is cut through.
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

#[test]
fn server_that_forgets_scripts_gets_them_again() {
    let (mut world, session, link) = shown_before_a_restart();
    takes_transactions(&mut world, session, link);
    let block = text(&requests(&["MULTI"])) + &evalsha("a") + &text(&requests(&["EXEC"]));
    world.sends(session, block.as_bytes());
    // SCRIPT FLUSH of a client of the server itself came between.
    let noscript = "-NOSCRIPT No matching script. Please use EVAL.\r\n";
    world.says(
        link,
        format!("$40\r\n{SHA}\r\n+OK\r\n+QUEUED\r\n*1\r\n{noscript}"),
    );
    world.sent(link);
    world.sends(session, block.as_bytes());
    assert_eq!(world.sent(link), load() + &block);
}

#[test]
fn requests_that_outlive_a_connection_have_their_scripts_loaded() {
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
    let (ticket, question) = asked.expect("the other worker is told");
    second.turn(|engine| engine.handle_question(0, ticket, question));
    let session = second.accept();
    second.sends(session, evalsha("a").as_bytes());
    assert_eq!(second.sent(second.shared), load() + &evalsha("a"));
}

/// A debugger that does not look at the refusal would run its script for good, and not roll it back.
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

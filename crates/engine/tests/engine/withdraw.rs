//! A caller that waits no longer learns whether its requests may be executed.

use respool_engine::settings::Aim;
use respool_engine::{Fate, SessionId};

use crate::world::{World, request, settings, sharded};

/// Withdraws the requests of a session in a turn of their own. The session is closed then.
fn withdraw(world: &mut World, session: SessionId) -> Option<Fate> {
    let mut fate = None;
    world.turn(|engine| fate = engine.withdraw(session));
    assert_eq!(world.closed_sessions(), [session]);
    fate
}

#[test]
fn sent_request_may_be_executed_and_its_reply_is_dropped() {
    let mut world = World::new(settings());
    let [one, other] = [world.accept(), world.accept()];
    world.sends(one, &request(&["GET", "k"]));
    world.sends(other, &request(&["GET", "l"]));
    assert_eq!(withdraw(&mut world, one), Some(Fate::Unknown));
    // The reply to the withdrawn request reaches no other session.
    world.says(world.shared, "$1\r\n1\r\n$1\r\n2\r\n");
    assert_eq!(world.got(other), "$1\r\n2\r\n");
    assert_eq!(world.got(one), "");
}

#[test]
fn request_of_the_open_batch_is_taken_out() {
    let mut settings = settings();
    settings.flush.aim = Aim::ServerCpu;
    settings.flush.max_delay_us = 50_000;
    let mut world = World::new(settings);
    let [first, one, other] = [world.accept(), world.accept(), world.accept()];
    world.sends(first, &request(&["GET", "first"]));
    world.sent(world.shared);
    // The link awaits a reply, so the batch is open.
    world.sends(
        one,
        &[request(&["SET", "k", "1"]), request(&["GET", "k"])].concat(),
    );
    world.sends(other, &request(&["GET", "other"]));
    assert_eq!(world.sent(world.shared), "");
    assert_eq!(withdraw(&mut world, one), Some(Fate::NotSent));
    world.says(world.shared, "$1\r\n1\r\n");
    assert_eq!(world.asked(world.shared), [["GET", "other"]]);
    world.says(world.shared, "$1\r\n2\r\n");
    assert_eq!(world.got(first), "$1\r\n1\r\n");
    assert_eq!(world.got(other), "$1\r\n2\r\n");
}

/// A batch of which nothing is left does not leave, and the link goes on.
#[test]
fn emptied_batch_does_not_leave() {
    let mut settings = settings();
    settings.flush.max_delay_us = 50_000;
    let mut world = World::new(settings);
    let [first, one] = [world.accept(), world.accept()];
    world.sends(first, &request(&["GET", "first"]));
    world.sends(one, &request(&["INCR", "k"]));
    world.sent(world.shared);
    assert_eq!(withdraw(&mut world, one), Some(Fate::NotSent));
    world.wait_ms(200);
    assert_eq!(world.sent(world.shared), "");
    world.says(world.shared, "$1\r\n1\r\n");
    world.sends(first, &request(&["GET", "next"]));
    assert_eq!(world.asked(world.shared), [["GET", "next"]]);
}

#[test]
fn request_for_a_link_that_is_not_connected_is_taken_out() {
    let mut settings = settings();
    settings.timeouts.outage_hold_ms = 60_000;
    let mut world = World::new(settings);
    let [one, other] = [world.accept(), world.accept()];
    world.lose(world.shared);
    world.sends(one, &request(&["INCR", "k"]));
    world.sends(other, &request(&["INCR", "l"]));
    assert_eq!(withdraw(&mut world, one), Some(Fate::NotSent));
    world.wait_ms(1_000);
    let link = world.connect();
    assert_eq!(world.asked(link), [["INCR", "l"]]);
}

/// A request that has failed has its reply, in the turn of the loss, too.
#[test]
fn failed_request_is_answered() {
    let mut settings = settings();
    settings.timeouts.outage_hold_ms = 60_000;
    let mut world = World::new(settings);
    let one = world.accept();
    world.sends(one, &request(&["INCR", "k"]));
    let link = world.shared;
    let (mut fate, mut output) = (Some(Fate::NotSent), Vec::new());
    world.turn(|engine| {
        engine.handle_link_lost(link, "gone");
        output.extend_from_slice(engine.session_output(one));
        fate = engine.withdraw(one);
    });
    assert_eq!(fate, None);
    assert!(output.starts_with(b"-UNKNOWN respool: "), "{output:?}");
}

#[test]
fn incomplete_and_answered_requests_have_their_own_fates() {
    let mut world = World::new(settings());
    let [cut, idle, answered] = [world.accept(), world.accept(), world.accept()];
    world.sends(cut, b"*2\r\n$3\r\nGET\r\n$1\r\n");
    assert_eq!(withdraw(&mut world, cut), Some(Fate::NotSent));
    let mut fate = Some(Fate::Unknown);
    world.turn(|engine| fate = engine.withdraw(idle));
    assert_eq!(fate, None);
    world.sends(answered, &request(&["PING"]));
    world.says(world.shared, "+PONG\r\n");
    world.turn(|engine| fate = engine.withdraw(answered));
    assert_eq!(fate, None);
    world.turn(|engine| fate = engine.withdraw(answered));
    assert_eq!(fate, Some(Fate::Unknown), "the session is closed");
}

/// The shares of one request may have left on another link: it is not taken out.
#[test]
fn share_of_a_divided_request_is_not_taken_out() {
    let mut settings = sharded(2);
    settings.timeouts.outage_hold_ms = 60_000;
    let mut world = World::new(settings);
    let [one, other] = [world.key_at(0, "a"), world.key_at(1, "b")];
    let session = world.accept();
    let [_, second] = world.all_shared[..] else {
        panic!("there are two servers");
    };
    world.lose(second);
    world.sends(session, &request(&["MSET", &one, "1", &other, "2"]));
    assert_eq!(withdraw(&mut world, session), Some(Fate::Unknown));
}

/// A request with a use of its reply keeps it, also behind one that is taken out.
#[test]
fn reply_to_another_session_keeps_its_use() {
    let mut settings = settings();
    settings.flush.max_delay_us = 50_000;
    let mut world = World::new(settings);
    let [first, one, other] = [world.accept(), world.accept(), world.accept()];
    world.sends(first, &request(&["GET", "first"]));
    world.sends(one, &request(&["INCR", "k"]));
    world.sends(other, &request(&["CONFIG", "GET", "respool.fuse"]));
    world.sent(world.shared);
    assert_eq!(withdraw(&mut world, one), Some(Fate::NotSent));
    world.says(world.shared, "$1\r\n1\r\n");
    assert_eq!(
        world.asked(world.shared),
        [["CONFIG", "GET", "respool.fuse"]]
    );
    world.says(world.shared, "*0\r\n");
    assert_eq!(
        world.got(other),
        "*2\r\n$12\r\nrespool.fuse\r\n$2\r\nno\r\n"
    );
}

/// One of two requests has left: it may be executed.
#[test]
fn one_sent_request_makes_the_outcome_unknown() {
    let mut settings = settings();
    settings.flush.max_delay_us = 50_000;
    let mut world = World::new(settings);
    let one = world.accept();
    world.sends(one, &request(&["INCR", "k"]));
    world.sends(one, &request(&["INCR", "l"]));
    assert_eq!(world.asked(world.shared), [["INCR", "k"]]);
    assert_eq!(withdraw(&mut world, one), Some(Fate::Unknown));
    world.says(world.shared, ":1\r\n");
    world.wait_ms(200);
    assert_eq!(
        world.sent(world.shared),
        "",
        "the second one does not leave"
    );
}

//! Error texts that clients write: scripts return them after they ran, and these texts must not
//! change the handling of other requests.

use crate::world::{World, requests, settings, without_lanes};
use respool_engine::settings::Settings;
use respool_engine::{LinkId, SessionId};
use respool_protocol::slot::hash_slot;

/// A world whose Cluster nodes have named the owners of all slots.
pub(crate) fn nodes_of(settings: Settings) -> World {
    let mut world = World::new(without_lanes(settings));
    for link in world.all_shared.clone() {
        for args in world.asked(link) {
            let said = world.owners.said(&args).expect("a topology question");
            world.says(link, said);
        }
    }
    world
}

/// Two nodes, a key of the first one, and a session.
pub(crate) fn two_nodes() -> (World, [LinkId; 2], String, SessionId) {
    let mut settings = crate::world::cluster(2);
    settings.timeouts.request_ms = 2_000;
    settings.flush.fuse = false;
    let mut world = nodes_of(settings);
    let [first, second] = world.all_shared[..] else {
        panic!("two nodes")
    };
    let key = world.key_at(0, "k");
    let session = world.accept();
    (world, [first, second], key, session)
}

/// Requests on a link, as words, without questions about the topology. If there are only such
/// questions, these are answered.
pub(crate) fn asked(world: &mut World, link: LinkId) -> Vec<String> {
    let all = world.asked(link);
    let (topology, asked): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|args| args[0] == "CLUSTER");
    if asked.is_empty() {
        for args in topology {
            let said = world.owners.said(&args);
            world.says(
                link,
                said.unwrap_or_else(|| "-ERR unknown subcommand\r\n".to_owned()),
            );
        }
    }
    asked.into_iter().map(|args| args.join(" ")).collect()
}

pub(crate) fn slot(key: &str) -> u16 {
    hash_slot(key.as_bytes())
}

/// Errors by which a server refuses a slot, or all requests.
fn refusals(key: &str) -> Vec<String> {
    let slot = slot(key);
    [
        &format!("MOVED {slot} server:1"),
        &format!("MOVED {slot} server:2"),
        &format!("MOVED {slot} evil:9 script: 0, on @user_script:1."),
        &format!("ASK {slot} server:1"),
        &format!("ASK {slot} evil:9"),
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "CLUSTERDOWN The cluster is down",
        "CLUSTERDOWN Hash slot not served",
        "LOADING Redis is loading the dataset in memory",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "READONLY You can't write against a read only replica.",
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
    ]
    .map(|text| format!("-{text}\r\n"))
    .to_vec()
}

/// Each request that runs code, and its twin, by which the server shows whether it ran.
fn scripts(key: &str) -> Vec<(String, String)> {
    let none = "0".repeat(40);
    [
        (
            format!("EVAL body 1 {key} x"),
            format!("EVAL return 0 1 {key}"),
        ),
        (format!("EVAL_RO body 1 {key}"), format!("EXISTS {key}")),
        (
            format!("EVALSHA abc 1 {key}"),
            format!("EVALSHA {none} 1 {key}"),
        ),
        (format!("FCALL f 1 {key}"), format!("FCALL - 1 {key}")),
        (format!("FCALL_RO f 1 {key}"), format!("EXISTS {key}")),
    ]
    .to_vec()
}

/// A script that imitates a refusal runs once: the server accepts the twin, so the script ran.
#[test]
fn script_that_imitates_a_refusal_runs_once() {
    let (_, _, key, _) = two_nodes();
    for (script, twin) in scripts(&key) {
        for refusal in refusals(&key) {
            let (mut world, [first, second], key, session) = two_nodes();
            world.asks(session, &[&script]);
            assert_eq!(asked(&mut world, first), [script.as_str()]);
            world.says(first, &refusal);
            let questions = asked(&mut world, first);
            match questions.first().map(String::as_str) {
                Some("HELLO 2") => {
                    assert!(refusal.starts_with("-READONLY"));
                    world.says(first, "*2\r\n$4\r\nrole\r\n$6\r\nmaster\r\n");
                }
                Some(question) => {
                    assert_eq!(question, twin);
                    assert_eq!(world.got(session), "", "the client waits for the proof");
                    world.says(first, "$1\r\n0\r\n");
                }
                None => assert!(refusal.starts_with("-UNBLOCKED")),
            }
            assert_eq!(world.got(session), refusal, "{script}");
            world.wait_ms(2_500);
            let more = [first, second].map(|link| asked(&mut world, link)).concat();
            assert_eq!(more, Vec::<String>::new(), "{script}: {refusal}");
            assert!(world.connecting().is_empty(), "{script}: {refusal}");
            // The slot has the same owner as before.
            let other = world.accept();
            world.asks(other, &[&format!("GET {key}")]);
            assert_eq!(
                asked(&mut world, first),
                [format!("GET {key}")],
                "{refusal}"
            );
        }
    }
}

/// The server refuses the twin, too, so the script did not run: a moving slot breaks no script.
#[test]
fn script_is_sent_again_once_its_server_proves_the_refusal() {
    let (_, _, key, _) = two_nodes();
    for (script, twin) in scripts(&key) {
        for word in ["MOVED", "ASK"] {
            let (mut world, [first, second], key, session) = two_nodes();
            let redirect = format!("-{word} {} server:2\r\n", slot(&key));
            world.asks(session, &[&script]);
            asked(&mut world, first);
            world.says(first, &redirect);
            assert_eq!(asked(&mut world, first), [twin.as_str()]);
            world.says(first, &redirect);
            let expected = match word {
                "ASK" => vec!["ASKING".to_owned(), script.clone()],
                _ => vec![script.clone()],
            };
            assert_eq!(asked(&mut world, second), expected);
            world.says(
                second,
                if word == "ASK" {
                    "+OK\r\n:7\r\n"
                } else {
                    ":7\r\n"
                },
            );
            world.turn(|_| {});
            assert_eq!(world.got(session), ":7\r\n");
        }
        let (mut world, [first, _], _, session) = two_nodes();
        let loading = "-LOADING Redis is loading the dataset in memory\r\n";
        world.asks(session, &[&script]);
        world.says(first, loading);
        world.says(first, loading);
        asked(&mut world, first);
        world.wait_ms(100);
        assert_eq!(asked(&mut world, first), [script.as_str()]);
        world.says(first, ":7\r\n");
        world.turn(|_| {});
        assert_eq!(world.got(session), ":7\r\n");
    }
}

/// An importing node refuses every request without ASKING, so the twin goes after ASKING.
#[test]
fn script_at_an_importing_node_is_proven_behind_asking() {
    let (mut world, [first, second], key, session) = two_nodes();
    let script = format!("EVAL body 1 {key}");
    let ask = format!("-ASK {} server:2\r\n", slot(&key));
    world.asks(session, &[&script]);
    world.says(first, &ask);
    world.says(first, &ask);
    assert_eq!(asked(&mut world, second), ["ASKING", &script]);
    // The script has run there, and imitates the node.
    let moved = format!("-MOVED {} server:1\r\n", slot(&key));
    world.says(second, format!("+OK\r\n{moved}"));
    let twin = format!("EVAL return 0 1 {key}");
    assert_eq!(asked(&mut world, second), ["ASKING", &twin]);
    world.says(second, "+OK\r\n:0\r\n");
    assert_eq!(world.got(session), moved);
}

/// Without a proof the client gets the reply as it came, and no NOTSENT.
#[test]
fn reply_without_a_proof_goes_to_its_client_as_it_came() {
    for is_lost in [true, false] {
        let (mut world, [first, _], key, session) = two_nodes();
        let moved = format!("-MOVED {} server:2\r\n", slot(&key));
        world.asks(session, &[&format!("EVAL body 1 {key}")]);
        world.says(first, &moved);
        assert_eq!(world.got(session), "");
        if is_lost {
            world.lose(first);
            world.wait_ms(100);
        } else {
            world.wait_ms(2_100);
        }
        assert_eq!(world.got(session), moved, "lost: {is_lost}");
    }
}

/// A request that ran after the script stays after it: the script is not sent again.
#[test]
fn proven_script_is_not_resent_behind_a_later_request() {
    let (mut world, [first, second], key, session) = two_nodes();
    let moved = format!("-MOVED {} server:2\r\n", slot(&key));
    let both = [format!("EVAL body 1 {key}"), format!("SET {key} v")];
    world.asks(session, &both.each_ref().map(String::as_str));
    world.says(first, [&moved, "+OK\r\n"].concat());
    world.says(first, &moved);
    world.turn(|_| {});
    let got = world.got(session);
    assert!(
        got.starts_with("-NOTSENT ") && got.ends_with("+OK\r\n"),
        "{got}"
    );
    assert!(asked(&mut world, second).is_empty());
}

/// An unknown command is redirected if a server proves that by its keys.
#[test]
fn unknown_command_is_proven_by_its_keys() {
    for is_honest in [true, false] {
        let (mut world, [first, second], key, session) = two_nodes();
        let command = format!("tool.add {key} x");
        world.asks(session, &[&command]);
        assert_eq!(asked(&mut world, first), ["COMMAND INFO tool.add"]);
        let facts = "*1\r\n*6\r\n$8\r\ntool.add\r\n:3\r\n*1\r\n+write\r\n:1\r\n:1\r\n:1\r\n";
        world.says(first, facts);
        assert_eq!(asked(&mut world, first), [command.as_str()]);
        let moved = format!("-MOVED {} server:2\r\n", slot(&key));
        world.says(first, &moved);
        assert_eq!(asked(&mut world, first), [format!("EXISTS {key}")]);
        if is_honest {
            world.says(first, &moved);
            assert_eq!(asked(&mut world, second), [command]);
        } else {
            world.says(first, ":1\r\n");
            assert_eq!(world.got(session), moved);
            assert!(asked(&mut world, second).is_empty());
        }
    }
}

/// A session begins a transaction. Before the first one, respool asks for the user's rights.
fn begins(world: &mut World, link: LinkId, session: SessionId) {
    world.asks(session, &["MULTI"]);
    world.allows_transactions(link);
}

/// An error to EXEC proves that nothing ran. A script that ran in a block would return its error as
/// an element of an array.
#[test]
fn exec_error_of_a_transaction_with_a_script_is_proof() {
    let (mut world, [first, second], key, session) = two_nodes();
    let script = format!("EVAL body 1 {key}");
    let moved = format!("-MOVED {} server:2\r\n", slot(&key));
    let asks = |world: &mut World| {
        begins(world, first, session);
        world.asks(session, &[&script, "EXEC"]);
        world.got(session);
    };
    asks(&mut world);
    assert_eq!(asked(&mut world, first), ["MULTI", &script, "EXEC"]);
    let ran = format!("*1\r\n{moved}");
    world.says(first, format!("+OK\r\n+QUEUED\r\n{ran}"));
    assert_eq!(world.got(session), ran);
    asks(&mut world);
    asked(&mut world, first);
    world.says(first, format!("+OK\r\n+QUEUED\r\n{moved}"));
    assert_eq!(asked(&mut world, second), ["MULTI", &script, "EXEC"]);
}

/// A redirect is the server's own error, but its address counts only if a node names it as a
/// member.
#[test]
fn redirect_to_an_unknown_address_waits_until_a_node_names_it() {
    for word in ["MOVED", "ASK"] {
        for is_member in [true, false] {
            let (mut world, [first, _], key, session) = two_nodes();
            let redirect = format!("-{word} {} server:9\r\n", slot(&key));
            let get = format!("GET {key}");
            world.asks(session, &[&get]);
            world.asked(first);
            world.says(first, &redirect);
            assert!(world.connecting().is_empty());
            let questions = world.asked(first);
            let questions: Vec<String> = questions.iter().map(|args| args.join(" ")).collect();
            assert!(
                questions.contains(&"CLUSTER NODES".to_owned()),
                "{questions:?}"
            );
            let line = format!("{:040} server:9@19 master - 0 0 3 connected\n", 9);
            let text = if is_member { line } else { String::new() };
            let nodes = format!("${}\r\n{text}\r\n", text.len());
            world.says(first, format!("-ERR unknown subcommand\r\n{nodes}"));
            // The redirected request was sent again meanwhile.
            world.says(first, &redirect);
            world.wait_ms(100);
            let connecting = world.connecting();
            assert_eq!(!connecting.is_empty(), is_member, "{word}");
            if is_member {
                world.up(connecting[0]);
                let asked = asked(&mut world, connecting[0]);
                assert_eq!(asked.last(), Some(&get));
            }
        }
    }
}

/// Nodes that tell nothing about other nodes: a request that runs no code follows the redirect.
#[test]
fn redirect_is_followed_where_nodes_hide_their_names() {
    let mut settings = crate::world::cluster(1);
    settings.flush.fuse = false;
    let mut world = World::new(without_lanes(settings));
    let seed = world.shared;
    let session = world.accept();
    world.asks(session, &["GET k"]);
    let moved = format!("-MOVED {} server:9\r\n", slot("k"));
    let mut connecting = Vec::new();
    for _ in 0..50 {
        for args in world.asked(seed) {
            let said = match args[0].as_str() {
                "CLUSTER" => "-NOPERM no\r\n",
                _ => &moved,
            };
            world.says(seed, said);
        }
        connecting.extend(world.connecting());
        if !connecting.is_empty() {
            break;
        }
        world.wait_ms(50);
    }
    assert_eq!(connecting.len(), 1);
    world.up(connecting[0]);
    world.wait_ms(100);
    assert_eq!(
        asked(&mut world, connecting[0]).last().map(String::as_str),
        Some("GET k")
    );
}

const NOSCRIPT: &str = "-NOSCRIPT No matching script.\r\n";

/// A world whose server has this script.
fn with_script() -> (World, SessionId, String) {
    let mut world = World::new(without_lanes(settings()));
    let session = world.accept();
    world.asks(session, &["SCRIPT LOAD return_1"]);
    world.says(world.shared, "+OK\r\n");
    world.got(session);
    world.sent(world.shared);
    (world, session, sha1_of("return_1"))
}

fn sha1_of(body: &str) -> String {
    use sha1::{Digest, Sha1};
    let bytes = Sha1::digest(body.as_bytes());
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A script that returns NOSCRIPT runs once: the server has the script, so it ran.
#[test]
fn script_that_says_noscript_runs_once() {
    let (mut world, session, digest) = with_script();
    let link = world.shared;
    world.asks(session, &[&format!("EVALSHA {digest} 0 x")]);
    world.sent(link);
    world.says(link, NOSCRIPT);
    assert_eq!(asked(&mut world, link), [format!("SCRIPT EXISTS {digest}")]);
    assert_eq!(world.got(session), "");
    for said in ["*1\r\n:1\r\n", "-NOPERM no\r\n"] {
        let (mut world, session, digest) = with_script();
        world.asks(session, &[&format!("EVALSHA {digest} 0 x")]);
        world.says(world.shared, NOSCRIPT);
        world.sent(world.shared);
        world.says(world.shared, said);
        assert_eq!(world.got(session), NOSCRIPT);
        world.wait_ms(1_000);
        assert_eq!(asked(&mut world, link), Vec::<String>::new());
    }
}

/// SCRIPT LOAD goes in front, so no reply of the script is taken for one about rights.
#[test]
fn script_that_its_server_forgot_is_loaded_and_asked_again() {
    let (mut world, session, digest) = with_script();
    let link = world.shared;
    let evalsha = format!("EVALSHA {digest} 0 x");
    world.asks(session, &[&evalsha]);
    world.sent(link);
    world.says(link, NOSCRIPT);
    world.sent(link);
    world.says(link, "*1\r\n:0\r\n");
    assert_eq!(asked(&mut world, link), ["SCRIPT LOAD return_1", &evalsha]);
    let own = "-NOPERM in the script's own words\r\n";
    world.says(link, format!("$40\r\n{digest}\r\n{own}"));
    assert_eq!(world.got(session), own);
}

/// A client without the right to flush takes no script from others.
#[test]
fn scripts_are_dropped_only_if_the_server_flushes_them() {
    for (said, is_flushed) in [("-NOPERM no\r\n", false), ("+OK\r\n", true)] {
        let (mut world, session, digest) = with_script();
        let link = world.shared;
        world.asks(session, &["SCRIPT FLUSH"]);
        assert_eq!(asked(&mut world, link), ["SCRIPT FLUSH"]);
        world.says(link, said);
        assert_eq!(world.got(session), said);
        world.asks(session, &[&format!("EVALSHA {digest} 0 x")]);
        world.says(link, NOSCRIPT);
        assert_eq!(world.got(session) == NOSCRIPT, is_flushed, "{said}");
    }
}

/// The script of another client may have run before the block, and have returned NOSCRIPT itself.
#[test]
fn block_that_flushes_scripts_has_them_dropped() {
    let (mut world, session, digest) = with_script();
    let link = world.shared;
    let other = world.accept();
    begins(&mut world, link, other);
    world.asks(session, &[&format!("EVALSHA {digest} 0 x")]);
    world.asks(other, &["SCRIPT FLUSH", "EXEC"]);
    world.sent(link);
    world.says(link, NOSCRIPT);
    let exists = format!("SCRIPT EXISTS {digest}");
    assert_eq!(
        asked(&mut world, link),
        ["MULTI", "SCRIPT FLUSH", "EXEC", exists.as_str()]
    );
    let block = "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n";
    world.says(link, block);
    assert!(world.got(other).ends_with("+QUEUED\r\n*1\r\n+OK\r\n"));
    world.says(link, "*1\r\n:0\r\n");
    assert_eq!(world.got(session), NOSCRIPT);
    assert_eq!(asked(&mut world, link), Vec::<String>::new());
}

/// A SCRIPT FLUSH takes effect even if its client does not wait for the replies.
#[test]
fn scripts_are_dropped_though_the_flushing_client_leaves() {
    let (mut world, [first, second], key, session) = two_nodes();
    world.asks(session, &["SCRIPT LOAD return_1"]);
    let digest = sha1_of("return_1");
    for link in [first, second] {
        world.says(link, format!("$40\r\n{digest}\r\n"));
    }
    let hasty = world.accept();
    world.asks(hasty, &["SCRIPT FLUSH"]);
    world.sent(first);
    world.sent(second);
    world.turn(|engine| engine.handle_session_lost(hasty));
    world.says(first, "+OK\r\n");
    world.says(second, "+OK\r\n");
    world.got(session);
    world.asks(session, &[&format!("EVALSHA {digest} 1 {key}")]);
    assert_eq!(
        asked(&mut world, first),
        [format!("EVALSHA {digest} 1 {key}")]
    );
    world.says(first, NOSCRIPT);
    assert_eq!(world.got(session), NOSCRIPT);
}

/// The server is asked for its role, once a second, and answers that it is a primary.
#[test]
fn script_that_returns_readonly_renews_no_link() {
    for text in [
        "-READONLY You can't write against a read only replica.\r\n",
        "-READONLY x script: 0, on @user_script:1.\r\n",
        "-ERR Error running script (call to f_0): @user_script:1: -READONLY You can't write\r\n",
        "-@user_script: 1: -READONLY You can't write against a read only replica.\r\n",
    ] {
        let mut world = World::new(without_lanes(settings()));
        let link = world.shared;
        let session = world.accept();
        let (mut questions, mut role) = (0, "6\r\nmaster");
        for nth in 0..40 {
            if nth == 30 {
                role = "7\r\nreplica";
            }
            world.asks(session, &["EVAL body 0"]);
            world.says(link, text);
            assert_eq!(world.got(session), text);
            for args in world.asked(link) {
                if args[0] == "HELLO" {
                    questions += 1;
                    world.says(link, format!("*2\r\n$4\r\nrole\r\n${role}\r\n"));
                }
            }
            let renewed = world.connecting();
            assert_eq!(!renewed.is_empty(), nth >= 30 && questions == 4, "{nth}");
            if !renewed.is_empty() {
                break;
            }
            world.wait_ms(100);
        }
        assert_eq!(questions, 4, "{text}");
    }
}

/// The error to a command of the table that runs no code comes from the server itself.
#[test]
fn request_that_runs_no_code_is_believed_at_once() {
    let (mut world, [first, second], key, session) = two_nodes();
    let get = format!("GET {key}");
    world.asks(session, &[&get]);
    world.says(first, format!("-MOVED {} server:2\r\n", slot(&key)));
    assert_eq!(world.sent(second).as_bytes(), requests(&[&get]));
}

//! A command that the server lacks gets the server's own error, even if respool's table has it.

use std::thread;
use std::time::Duration;

use respool_testkit::client::{Reply, RespClient, words};
use respool_testkit::servers::{Proxy, ServerProcess, installed};
use respool_testkit::time::wait_until;

use crate::target::{Options, Target, before_every_server, respool};

/// Commands that respool answers itself or must change, each used rightly and wrongly. Redis 6.2
/// lacks SETINFO, NO-EVICT, NO-TOUCH and sharded channels, and does not check the arity of
/// subcommands. 7.0 lacks SETINFO and NO-TOUCH. No Redis has CAPA and IMPORT-SOURCE.
const REQUESTS: &[&str] = &[
    "CLIENT",
    "CLIENT NOSUCH",
    "CLIENT NOSUCH a b",
    "CLIENT a\nb",
    concat!(
        "client a-name-of-which-Redis-7-shows-as-much-as-this-------------------------------------------",
        "-------------------------------------------and-Redis-6-all"
    ),
    "CLIENT CAPA redirect",
    "CLIENT CAPA",
    "CLIENT GETNAME",
    "CLIENT GETNAME a",
    "CLIENT GETREDIR a",
    "CLIENT ID a",
    "CLIENT IMPORT-SOURCE a",
    "CLIENT IMPORT-SOURCE",
    "CLIENT INFO a",
    "CLIENT KILL",
    "CLIENT KILL a b c",
    "CLIENT KILL ID 0",
    "CLIENT KILL ID a",
    "CLIENT KILL MAXAGE 1000000",
    "CLIENT NO-EVICT ON",
    "CLIENT NO-EVICT maybe",
    "CLIENT NO-EVICT",
    "CLIENT NO-EVICT ON a",
    "CLIENT NO-TOUCH OFF",
    "CLIENT NO-TOUCH maybe",
    "CLIENT NO-TOUCH",
    "CLIENT PAUSE",
    "CLIENT PAUSE 0 WRITE a",
    "CLIENT REPLY",
    "CLIENT REPLY ON a",
    "CLIENT SETINFO lib-name a",
    "CLIENT SETINFO no-name a",
    "CLIENT SETINFO lib-name",
    "CLIENT SETINFO lib-name a b",
    "CLIENT SETNAME",
    "CLIENT SETNAME a b",
    "CLIENT TRACKING",
    "CLIENT TRACKINGINFO a",
    "CLIENT UNBLOCK",
    "CLIENT UNBLOCK 999 ERROR a",
    "CLIENT UNPAUSE a",
    "CLUSTER NOSUCH",
    "SCRIPT NOSUCH",
    "SCRIPT DEBUG",
    "AUTH",
    "ASKING",
    "READONLY",
    "READWRITE",
    "RESET a",
    "SELECT",
    "SELECT 0 1",
    "HELLO 2 a",
    "SUBSCRIBE",
    "PSUBSCRIBE",
    "SSUBSCRIBE",
    "SUNSUBSCRIBE nobody nobody",
    "SPUBLISH a",
    "SPUBLISH a b",
    "PUBLISH a",
    "PUBSUB SHARDNUMSUB a",
    "PUBSUB NOSUCH",
    "WATCH",
    "UNWATCH a",
    "DISCARD a",
    "MULTI a",
    "MONITOR a",
    "SYNC a",
    "PSYNC a",
    "EVAL",
    "EVAL_RO",
    "EVAL_RO a",
    "WAIT 0",
    "WAITAOF 0 0",
    "BLMPOP",
    "BLPOP",
    "XREAD",
    "GET",
    "GET a b",
    "CONFIG NOSUCH",
    "CONFIG GET",
    "OBJECT FREQ",
    "OBJECT NOSUCH a",
    "FUNCTION NOSUCH",
    "HSETEX a",
    "EXPIRETIME",
    "DELIFEQ a b",
    "NOSUCH a",
    "PING a b",
];

/// The states of a session, each with the requests that lead to it.
const STATES: [(&str, &[&str]); 4] = [
    ("in RESP2", &[]),
    ("in RESP3", &["HELLO 3"]),
    ("to a transaction", &["MULTI"]),
    ("to a subscriber in RESP2", &["SUBSCRIBE channel"]),
];

/// The reply to a request in this state of a session, and to EXEC and PING behind it.
fn ask(target: &Target, state: &[&str], request: &str) -> Vec<Reply> {
    let mut client = target.client();
    for before in state {
        client.call(before);
    }
    let mut replies = vec![client.call(request)];
    if state == ["MULTI"] {
        replies.push(client.call("EXEC"));
    }
    replies.push(client.call("PING"));
    // The session must be gone before the next client asks for the number: in Redis 6.2, CLIENT
    // KILL ID 0 means all clients.
    client.close_sending();
    while client.some_bytes().is_ok_and(|bytes| !bytes.is_empty()) {}
    replies
}

/// Unknown and wrong commands get the server's own error in every state of a session.
#[test]
fn unknown_and_wrong_commands_get_the_servers_error() {
    all_is_answered_as_by(&[], REQUESTS);
}

/// An error about a renamed command names it as the client did.
#[test]
fn renamed_command_is_named_in_its_errors() {
    let requests = [
        "CLI",
        "CLI NOSUCH",
        "cli noSuch a",
        "CLI ID a",
        "CLI PAUSE 0 WRITE a",
        "cli unblock 999 error a",
    ];
    all_is_answered_as_by(&["--rename-command", "CLIENT", "CLI"], &requests);
}

/// The old name of a renamed or removed command is unknown, before and after respool has asked the
/// server for its commands.
#[test]
fn old_name_of_a_renamed_command_is_unknown() {
    let requests = [
        "CLIENT ID",
        "client Id",
        "CLIENT GETNAME",
        "CLIENT SETNAME a",
        "CLIENT INFO",
        "CLIENT LIST",
        "CLIENT KILL TYPE normal SKIPME yes",
        "CLIENT PAUSE 1",
        "CLIENT UNPAUSE",
        "CLIENT UNBLOCK 1",
        "CLIENT REPLY ON",
        "CLIENT NO-EVICT ON",
        "CLIENT SETINFO LIB-NAME a",
        "CLIENT NOSUCH a",
        "CLIENT",
    ];
    for name in ["", "CLI"] {
        all_is_answered_as_by(&["--rename-command", "CLIENT", name], &requests);
    }
    for name in ["", "SEL"] {
        let requests = [
            "SELECT 1", "SELECT 0", "SELECT a", "CLIENT", "SELECT 1", "SELECT",
        ];
        all_is_answered_as_by(&["--rename-command", "SELECT", name], &requests);
    }
    for name in ["DISCARD", "RESET", "READONLY", "READWRITE", "ASKING"] {
        all_is_answered_as_by(&["--rename-command", name, ""], &[name, "CLIENT", name]);
    }
}

/// respool itself needs SELECT. Where it is renamed, SELECT is refused with advice and costs no
/// link.
#[test]
fn renamed_select_is_refused_with_advice() {
    let options = Options {
        server: ["--rename-command", "SELECT", "SEL"].map(Into::into).into(),
        ..Options::default()
    };
    before_every_server(&options, |target| {
        let refused = |client: &mut RespClient, asked: &str| {
            let reply = client.call(asked);
            let tells = |text: &str| text.contains("rename-command") && text.contains("--backend");
            assert!(reply.error().is_some_and(tells), "{asked}: {reply:?}");
        };
        for _ in 0..10 {
            let mut client = target.client();
            for asked in ["SEL 1", "sel 0", "SEL 2"] {
                refused(&mut client, asked);
                let unknown = client.call("SELECT 1");
                let is_unknown = |text: &str| text.starts_with("ERR unknown command");
                assert!(unknown.error().is_some_and(is_unknown), "{unknown:?}");
                assert_eq!(client.call("SET k v"), Reply::ok());
            }
            assert_eq!(client.call("MULTI"), Reply::ok());
            refused(&mut client, "SEL 1");
            client.call("SET k stranger");
            let ended = client.call("EXEC");
            let is_aborted = |text: &str| text.starts_with("EXECABORT");
            assert!(ended.error().is_some_and(is_aborted), "{ended:?}");
        }
        assert!(connections(target) < 10);
        let mut client = target.client();
        assert_eq!(client.call("GET k"), Reply::bulk("v"));
        assert_eq!(client.call("WATCH k"), Reply::ok());
        refused(&mut client, "SEL 1");
        assert_eq!(target.direct_client().call("DBSIZE"), Reply::Integer(1));
    });
}

/// The number of connections that the server has had: respool's links, health probes, and this one.
fn connections(target: &Target) -> u32 {
    let Reply::Bulk(stats) = target.direct_client().call("INFO stats") else {
        panic!("a text");
    };
    let stats = String::from_utf8_lossy(&stats).into_owned();
    let count = stats.split("total_connections_received:").nth(1);
    let count = count.and_then(|rest| rest.lines().next()?.trim().parse().ok());
    count.unwrap_or_else(|| panic!("no count in {stats}"))
}

/// By servers that are started with these arguments.
fn all_is_answered_as_by(arguments: &[&str], requests: &[&str]) {
    let options = Options {
        server: arguments.iter().map(|&arg| arg.to_owned()).collect(),
        ..Options::default()
    };
    for binary in installed() {
        let direct = Target::direct(&binary, &options);
        let proxied = Target::proxied(&binary, &options);
        let mut differences = Vec::new();
        for (state, before) in STATES {
            for request in requests {
                let (said, other) = (
                    ask(&direct, before, request),
                    ask(&proxied, before, request),
                );
                if said != other {
                    differences.push(format!("{request} {state}:\n  {said:?}\n  {other:?}"));
                }
            }
        }
        assert!(
            differences.is_empty(),
            "{} of them before {}:\n{}",
            differences.len(),
            direct.name,
            differences.join("\n")
        );
    }
}

/// An unknown subcommand is refused without a dedicated link.
#[test]
fn unknown_subcommand_takes_no_dedicated_link() {
    before_every_server(&Options::default(), |target| {
        let mut clients: Vec<_> = (0..50).map(|_| target.client()).collect();
        for client in &mut clients {
            client.send(&words("CLIENT NOSUCH a"));
            client.close_sending();
        }
        for mut client in clients {
            let refused = client.reply();
            let text = refused.error().expect("an error").to_lowercase();
            assert!(text.starts_with("err unknown subcommand"), "{text}");
            client.expect_closed();
        }
        assert!(connections(target) < 10);
    });
}

/// CLIENT SETINFO of libraries changes no link and takes none.
#[test]
fn client_setinfo_changes_no_link() {
    for binary in installed() {
        let target = Target::proxied(&binary, &Options::default());
        let mut clients: Vec<_> = (0..20).map(|_| target.client()).collect();
        for client in &mut clients {
            let all = [
                "HELLO 2",
                "CLIENT SETINFO LIB-NAME mine",
                "CLIENT SETINFO LIB-VER 1",
                "PING",
            ];
            client.send(&all.map(words).concat());
        }
        for client in &mut clients {
            let replies = client.replies(4);
            let knows = !target.name.contains("redis 6.") && !target.name.contains("redis 7.0");
            assert_eq!(
                replies[1] == Reply::ok(),
                knows,
                "{}: {replies:?}",
                target.name
            );
            assert_eq!(replies[1].error().is_some(), !knows);
            assert_eq!(replies[3], Reply::Simple("PONG".into()));
        }
        let Reply::Bulk(list) = target.direct_client().call("CLIENT LIST") else {
            panic!("a list is a bulk string");
        };
        let list = String::from_utf8_lossy(&list).into_owned();
        // respool's one link, and this connection.
        assert_eq!(list.lines().count(), 2, "{list}");
        assert!(!list.contains("lib-name=mine"), "{list}");
    }
}

/// A slow reader of a large reply gets its link alone. The command list that other clients need is
/// asked on another link.
#[test]
fn slow_reader_does_not_delay_the_command_list() {
    let target = Target::proxied(
        &respool_testkit::servers::any_server(),
        &Options::with(&["--threads=1"]),
    );
    let mut direct = target.direct_client();
    direct.call_args(&["SET", "large", &"x".repeat(50_000_000)]);
    let mut slow = target.client();
    slow.send(&words("GET large"));
    let mut others: Vec<_> = (0..5).map(|_| target.client()).collect();
    for other in &mut others {
        other.send(&words("NOSUCH.COMMAND x"));
    }
    for other in &mut others {
        other.set_read_timeout(std::time::Duration::from_secs(5));
        let refused = other.reply();
        let unknown = |text: &str| text.starts_with("ERR unknown command");
        assert!(refused.error().is_some_and(unknown), "{refused:?}");
    }
    assert_eq!(slow.reply(), Reply::bulk("x".repeat(50_000_000)));
}

/// A server's command list is long, and a refused query is an entry in its ACL LOG. So one query
/// serves all sessions.
#[test]
fn command_list_is_asked_once() {
    before_every_server(&Options::with(&["--threads=1"]), |target| {
        let mut direct = target.direct_client();
        let few = "ACL SETUSER few on >secret ~* +get +auth";
        assert_eq!(direct.call(few), Reply::ok());
        for _ in 0..5 {
            let mut client = target.client();
            client.call("CLIENT SETINFO lib-name a");
            assert_eq!(client.call("AUTH few secret"), Reply::ok());
            client.call("CLIENT SETINFO lib-name b");
            assert_eq!(client.call("GET k"), Reply::Null);
        }
        let Reply::Bulk(stats) = direct.call("INFO commandstats") else {
            panic!("a text");
        };
        let stats = String::from_utf8_lossy(&stats).into_owned();
        assert!(stats.contains("cmdstat_command:calls=1,"), "{stats}");
        let Reply::Array(log) = direct.call("ACL LOG") else {
            panic!("an array");
        };
        let command = Reply::bulk("command");
        assert!(
            log.iter()
                .all(|entry| entry.get("object") != Some(&command))
        );
    });
}

/// Another server may answer after a lost connection, so the meaning of a name is asked again.
#[test]
fn command_list_is_renewed_after_a_lost_connection() {
    for binary in installed() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("names.conf");
        let name = |command: &str| {
            std::fs::write(&file, format!("rename-command {command} FOO\n")).expect("a file");
        };
        name("GET");
        let included = file.to_str().expect("UTF-8");
        let server = ServerProcess::start(&binary, &["--include", included]);
        let mut server = server.unwrap_or_else(|error| panic!("{error}"));
        let backend = format!("--backend=redis://{}", server.address());
        let args = [backend.as_str(), "--threads=1", "--request-timeout-ms=3s"];
        let proxy = Proxy::start(&respool(), &args).unwrap_or_else(|error| panic!("{error}"));
        let mut client = RespClient::connect(proxy.address());
        assert_eq!(client.call("SET key value"), Reply::ok());
        assert_eq!(client.call("FOO key"), Reply::bulk("value"));
        name("BLPOP");
        server.restart().unwrap_or_else(|error| panic!("{error}"));
        wait_until("the server answers again", Duration::from_secs(10), || {
            client.call("PING") == Reply::Simple("PONG".into())
        });
        // With its old meaning it would use the shared link, and all clients would wait behind it.
        client.send(&words("FOO list 0"));
        let mut other = RespClient::connect(proxy.address());
        for _ in 0..20 {
            assert_eq!(other.call("PING"), Reply::Simple("PONG".into()));
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(other.call("RPUSH list 1"), Reply::Integer(1));
        assert_eq!(
            client.reply(),
            Reply::Array(vec![Reply::bulk("list"), Reply::bulk("1")])
        );
    }
}

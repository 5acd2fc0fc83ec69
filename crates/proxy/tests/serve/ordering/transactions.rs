//! Transactions over shared links give the server's own replies, byte for byte.

use std::thread;
use std::time::Duration;

use respool_testkit::client::{Reply, RespClient, words};
use respool_testkit::servers::installed;
use respool_testkit::time::wait_until;

use crate::target::{Options, Target, before_every_server, on_every_target, proxied};

/// Several sessions, line by line, with the session of each. The same lines go to a server and to
/// one behind respool; every byte of every reply must be the same.
const SCRIPTS: [&str; 26] = [
    "a MULTI|a SET k 1|a INCR k|a GET k|a EXEC|a GET k",
    "a MULTI|a EXEC|a EXEC|a DISCARD|a MULTI|a DISCARD|a DISCARD",
    "a MULTI|a SET k 1|a DISCARD|a GET k",
    "a MULTI|a MULTI|a SET k 1|a EXEC|a GET k",
    "a MULTI|a WATCH k|a SET k 1|a EXEC|a GET k",
    "a MULTI|a NOSUCH x|a SET k 1|a EXEC|a GET k|a MULTI|a SET k 2|a EXEC",
    "a MULTI|a GET|a SET k 1|a EXEC|a GET k|a EXEC x|a MULTI|a EXEC x|a EXEC",
    "a SET k word|a MULTI|a INCR k|a LPUSH k x|a SET other 1|a EXEC|a GET other",
    "a WATCH k|b SET k 1|a MULTI|a SET k 2|a EXEC|a GET k|a MULTI|a SET k 3|a EXEC",
    "a WATCH k|a UNWATCH|b SET k 1|a MULTI|a SET k 2|a EXEC|a WATCH k|b SET k 4|a MULTI|a DISCARD|a MULTI|a GET k|a EXEC",
    "a MULTI|a SELECT 3|a SET k in-three|a SELECT 99999|a EXEC|a GET k|a SELECT 0|a GET k|b GET k",
    "a MULTI|a WAITAOF 0 0|a EXEC|a MULTI|a HPERSIST h FIELDS 1 f|a XACKDEL s|a EXEC",
    "a MULTI|a CONFIG NOSUCH|a EXEC|a MULTI|a OBJECT ENCODING|a EXEC|a MULTI|a XINFO STREAM|a EXEC",
    "a MULTI|a ZREVRANK z m WITHSCORE more|a EXEC|a MULTI|a LPOP l 1 2|a EXEC|a MULTI|a SCRIPT|a EXEC",
    "a HELLO 3|a WATCH k|b SET k 1|a MULTI|a HGETALL h|a EXEC|a MULTI|a HSET h f v|a HGETALL h|a BLPOP none 0|a EXEC|a RESET|a EXEC",
    "a MULTI|a HSET h f v|a HELLO 3|a HGETALL h|a EXEC|a HGETALL h|b HGETALL h|a MULTI|a HELLO 2|a HGETALL h|a EXEC|a HGETALL h",
    "a MULTI|a HELLO 4|a HELLO 3 SETNAME me|a SET k 1|a HELLO 2 WRONG|a CLIENT GETNAME|a EXEC|a CLIENT GETNAME|a GET k",
    "a MULTI|a SUBSCRIBE x|a SET k 1|a UNSUBSCRIBE x|a EXEC|a GET k|a MULTI|a GET k|a PSUBSCRIBE x*|a EXEC|a PING|a GET k",
    "a MULTI|a PING|a SUBSCRIBE x|a PING|a PING y|a EXEC|a PING|a RESET|a MULTI|a HSET h f v|a HELLO 3 SETNAME me|a HGETALL h|a EXEC|a CLIENT GETNAME",
    "a MULTI|a CLIENT UNPAUSE|a CLIENT KILL ID 99999|a SET k 1|a CLIENT UNBLOCK 99999|a CLIENT KILL 1.2.3.4:5|a EXEC|a GET k",
    "a MULTI|a MONITOR|a SET k 1|a EXEC|a GET k|a SET k 2|a CLIENT GETREDIR",
    "a ACL SETUSER u on >p ~u* +@all|a SET other 1|a MULTI|a ACL WHOAMI|a AUTH u p|a ACL WHOAMI|a GET other|a SET u1 1|a EXEC|a ACL WHOAMI|a GET other|b GET other|b GET u1",
    "a ACL SETUSER u on >p ~u* +@all|a HSET u f v|a WATCH q|a MULTI|a SELECT 3|a HSET u f w|a HELLO 3 AUTH u p SETNAME me|a HGETALL u|a SELECT 0|a HGETALL u|a CLIENT GETNAME|a AUTH a b c|a EXEC|a HGETALL u|a ACL WHOAMI|a CLIENT GETNAME|b ACL WHOAMI|b HGETALL u",
    "a ACL SETUSER u on >p ~u* +@all|a ACL SETUSER w on >p ~w* +@all|a AUTH u p|a CLIENT TRACKING ON|a MULTI|a AUTH w p|a GET u|a AUTH u p|a GET u|a EXEC|a GET u|b SET u 1|a CLIENT TRACKING OFF|a ACL WHOAMI|b AUTH w p|b MULTI|b GET w|b EXEC",
    "a HELLO 3|a WATCH k|a HELLO 2|a UNWATCH|a WATCH k|a HELLO 3|a UNWATCH|a MULTI|a HELLO 2|a EXEC|a HELLO",
    "a MULTI|a CLIENT TRACKING ON|a CLIENT GETREDIR|a CLIENT TRACKING OFF|a EXEC|a CLIENT TRACKINGINFO|b CLIENT LIST ID 99999",
];

fn play(target: &Target, script: &str) -> Vec<String> {
    let mut clients = [target.client(), target.client()];
    let mut said = Vec::new();
    for line in script.split('|') {
        let (name, request) = line.split_once(' ').expect("a name and a request");
        let client = &mut clients[usize::from(name == "b")];
        client.send(&words(request));
        let mut reply = String::from_utf8_lossy(&client.reply_bytes()).into_owned();
        if let Some((front, behind)) = reply.split_once("\r\n$2\r\nid\r\n:") {
            // In the reply to HELLO the session's id is respool's own.
            let behind = behind.trim_start_matches(|digit: char| digit.is_ascii_digit());
            reply = format!("{front}{behind}");
        }
        said.push(format!("{line} -> {reply:?}"));
    }
    said
}

#[test]
fn a_transaction_answers_byte_for_byte_as_the_server_does() {
    for binary in installed() {
        for script in SCRIPTS {
            let direct = Target::direct(&binary, &Options::default());
            let through = Target::proxied(&binary, &Options::default());
            assert_eq!(
                play(&direct, script),
                play(&through, script),
                "{}",
                through.name
            );
        }
    }
}

/// respool itself answers commands about the session inside a transaction.
#[test]
fn session_commands_are_answered_inside_exec() {
    let target = proxied(&Options::default());
    let mut client = target.client();
    let id = client.call("CLIENT ID");
    for request in [
        "MULTI",
        "CLIENT SETNAME inside",
        "CLIENT ID",
        "SET k v",
        "CLIENT GETNAME",
        "PING",
        "ECHO x",
    ] {
        client.call(request);
    }
    let expected = [
        Reply::ok(),
        id,
        Reply::ok(),
        Reply::bulk("inside"),
        Reply::Simple("PONG".into()),
        Reply::bulk("x"),
    ];
    assert_eq!(client.call("EXEC"), Reply::Array(expected.into()));
    assert_eq!(client.call("CLIENT GETNAME"), Reply::bulk("inside"));
}

/// The reply to EXEC is put together from the server's replies and respool's own. Those may take a
/// while, and nothing comes in between.
#[test]
fn transaction_mixes_local_and_server_commands() {
    on_every_target(&Options::with(&["--threads", "2"]), |target| {
        let mut client = target.client();
        let mut others: Vec<RespClient> = (0..3).map(|_| target.client()).collect();
        client.call("ACL SETUSER reader on >secret ~* &* +@all");
        for other in &mut others {
            other.call("SUBSCRIBE news");
        }
        let mut bytes = Vec::new();
        for request in [
            "MULTI",
            "SET k 1",
            "AUTH reader secret",
            "PUBLISH news hello",
            "PUBSUB NUMSUB news",
            "SUBSCRIBE own",
            "HELLO 3 AUTH reader secret SETNAME mine",
            "CLIENT LIST",
            "GET k",
            "EXEC",
            "ACL WHOAMI",
            "CLIENT GETNAME",
        ] {
            bytes.extend(words(request));
        }
        client.send(&bytes);
        let mut replies = client.replies(10);
        let Some(Reply::Array(results)) = replies.pop() else {
            panic!("EXEC is not answered by an array: {replies:?}");
        };
        assert_eq!(results.len(), 8);
        assert_eq!(results[..3], [Reply::ok(), Reply::ok(), Reply::Integer(3)]);
        let counts = [Reply::bulk("news"), Reply::Integer(3)];
        assert_eq!(results[3], Reply::Array(counts.into()));
        let confirmed = [
            Reply::bulk("subscribe"),
            Reply::bulk("own"),
            Reply::Integer(1),
        ];
        assert_eq!(results[4], Reply::Array(confirmed.into()));
        assert_eq!(results[5].get("proto"), Some(&Reply::Integer(3)));
        let Reply::Other('=', listed) = &results[6] else {
            panic!("CLIENT LIST is answered by {:?}", results[6]);
        };
        let listed = String::from_utf8_lossy(listed);
        assert!(listed.contains("name=mine"), "{listed}");
        assert!(listed.contains("user=reader"), "{listed}");
        assert_eq!(results[7], Reply::bulk("1"));
        assert_eq!(client.reply(), Reply::bulk("reader"));
        assert_eq!(client.reply(), Reply::bulk("mine"));
        for other in &mut others {
            let message = ["message", "news", "hello"].map(Reply::bulk);
            assert_eq!(other.reply(), Reply::Array(message.into()));
        }
    });
}

/// Fields of a line of CLIENT INFO or LIST.
fn shown(line: &str) -> Vec<&str> {
    let names = ["flags=", "db=", "multi=", "user="];
    let is_one = |field: &&str| names.iter().any(|name| field.starts_with(name));
    line.split_whitespace().filter(is_one).collect()
}

/// CLIENT LIST inside a transaction shows the state of its client at that moment.
#[test]
fn client_list_in_a_transaction_is_current() {
    for binary in installed() {
        let direct = Target::direct(&binary, &Options::default());
        let through = Target::proxied(&binary, &Options::with(&["--threads", "2"]));
        let [before, within] = [direct, through].map(|target| {
            let mut client = target.client();
            client.call("ACL SETUSER reader on >secret ~* +@all");
            client.call("MULTI");
            for request in ["INFO", "LIST", "INFO"].into_iter().enumerate() {
                client.call(["SELECT 3", "AUTH reader secret", "SELECT 5"][request.0]);
                client.call(&format!("CLIENT {}", request.1));
            }
            let Reply::Array(results) = client.call("EXEC") else {
                panic!("EXEC is answered by an array");
            };
            let lines: Vec<String> = [1, 3, 5]
                .map(|index| match &results[index] {
                    Reply::Bulk(line) => String::from_utf8_lossy(line).into_owned(),
                    other => panic!("CLIENT INFO is answered by {other:?}"),
                })
                .into();
            let mut lines: Vec<String> = lines.iter().map(|line| shown(line).join(" ")).collect();
            let Reply::Bulk(after) = client.call("CLIENT INFO") else {
                panic!("CLIENT INFO is answered by a bulk string");
            };
            // Valkey keeps a count of zero from here on.
            let after = String::from_utf8_lossy(&after).replace("multi=0", "multi=-1");
            lines.push(shown(&after).join(" "));
            lines
        });
        assert_eq!(before, within, "{}", binary.display());
    }
}

/// The name of a renamed command does not identify it. The session uses the command that it found
/// when the request was queued.
#[test]
fn renamed_command_runs_in_a_transaction() {
    let renamed = ["CLIENT", "SUBSCRIBE", "AUTH", "MULTI"];
    let arguments = |name: &str| {
        let new = format!("MY-{name}");
        ["--rename-command".to_owned(), name.to_owned(), new]
    };
    let options = Options {
        server: renamed.iter().flat_map(|name| arguments(name)).collect(),
        ..Options::with(&["--threads", "2"])
    };
    before_every_server(&options, |target| {
        let (mut client, mut other) = (target.client(), target.client());
        client.call("ACL SETUSER reader on >secret ~* +@all");
        for request in [
            "MY-MULTI",
            "MY-CLIENT SETNAME me",
            "MY-CLIENT GETNAME",
            "MY-CLIENT TRACKING ON REDIRECT 99999",
            "SELECT 3",
            "SET k v",
            "MY-AUTH reader secret",
            "ACL WHOAMI",
        ] {
            client.call(request);
        }
        let Reply::Array(results) = client.call("EXEC") else {
            panic!("EXEC is answered by an array");
        };
        assert_eq!(results[..2], [Reply::ok(), Reply::bulk("me")]);
        assert!(
            results[2]
                .error()
                .is_some_and(|text| text.contains("redirect"))
        );
        let rest = [Reply::ok(), Reply::ok(), Reply::ok(), Reply::bulk("reader")];
        assert_eq!(results[3..], rest);
        assert_eq!(other.call("PING"), Reply::Simple("PONG".into()));
    });
}

/// An unknown command may change its connection, so its transaction runs on a link of its own.
#[test]
fn unknown_command_in_a_transaction_is_isolated() {
    let options = Options {
        server: [
            "--rename-command",
            "SELECT",
            "GOTO",
            "--rename-command",
            "CLIENT",
            "CLI",
        ]
        .map(String::from)
        .into(),
        ..Options::with(&["--threads", "1"])
    };
    before_every_server(&options, |target| {
        let mut direct = target.direct_client();
        direct.call("ACL SETUSER app on >secret ~* +@all -command");
        let mut stranger = target.client();
        stranger.call("AUTH app secret");
        stranger.call("SET where here");
        for asked in ["GOTO 5", "CLI REPLY OFF"] {
            let mut client = target.client();
            client.call("AUTH app secret");
            client.send(&["MULTI", asked, "SET k v", "EXEC"].map(words).concat());
            client.replies(3);
            // The other client gets no reply to its EXEC, as it wanted.
            thread::sleep(Duration::from_millis(200));
            assert_eq!(stranger.call("GET where"), Reply::bulk("here"), "{asked}");
            assert_eq!(stranger.call("SET where here"), Reply::ok());
        }
    });
}

/// respool reads the result of EXEC although the client wants no reply: it tells the session's
/// state from then on.
#[test]
fn silent_transaction_keeps_its_session_changes() {
    on_every_target(&Options::default(), |target| {
        let mut client = target.client();
        client.call("ACL SETUSER reader on >secret ~* &* +@all");
        client.call_args(&["SET", "large", &"x".repeat(300_000)]);
        let mut bytes = Vec::new();
        for request in [
            "CLIENT REPLY OFF",
            "MULTI",
            "GET large",
            "SELECT 3",
            "AUTH reader secret",
            "EXEC",
            "SET where three",
            "CLIENT REPLY ON",
            "GET where",
            "ACL WHOAMI",
        ] {
            bytes.extend(words(request));
        }
        client.send(&bytes);
        assert_eq!(client.reply(), Reply::ok());
        assert_eq!(client.reply(), Reply::bulk("three"));
        assert_eq!(client.reply(), Reply::bulk("reader"));
        client.call("SELECT 0");
        assert_eq!(client.call("EXISTS where"), Reply::Integer(0));
    });
}

/// The server runs the block on a connection without subscriptions. SUBSCRIBE takes effect at the
/// end of the transaction.
#[test]
fn subscribe_in_a_transaction_holds_from_its_end() {
    before_every_server(&Options::with(&["--threads", "2"]), |target| {
        let (mut client, mut writer) = (target.client(), target.client());
        client.call("HELLO 3");
        for request in ["MULTI", "SUBSCRIBE own", "PUBLISH own early"] {
            client.call(request);
        }
        let Reply::Array(results) = client.call("EXEC") else {
            panic!("EXEC is answered by an array");
        };
        assert_eq!(results[1..], [Reply::Integer(0)]);
        assert_eq!(writer.call("PUBLISH own late"), Reply::Integer(1));
        assert_eq!(
            String::from_utf8_lossy(&client.reply_bytes()),
            ">3\r\n$7\r\nmessage\r\n$3\r\nown\r\n$4\r\nlate\r\n"
        );
    });
}

/// No request of another session comes between those of a block, and no session gets another's
/// results.
#[test]
fn blocks_of_many_sessions_are_never_torn_and_need_no_links() {
    on_every_target(&Options::with(&["--threads", "2"]), |target| {
        const SESSIONS: usize = 200;
        const ROUNDS: usize = 5;
        let mut clients: Vec<RespClient> = (0..SESSIONS).map(|_| target.client()).collect();
        for round in 0..ROUNDS {
            for (index, client) in clients.iter_mut().enumerate() {
                let mut bytes = words("MULTI");
                bytes.extend(words("INCR torn"));
                bytes.extend(words("INCR torn"));
                bytes.extend(words(&format!("SET own:{index} {round}")));
                bytes.extend(words(&format!("GET own:{index}")));
                bytes.extend(words("EXEC"));
                bytes.extend(words(&format!("GET own:{index}")));
                client.send(&bytes);
            }
            for (index, client) in clients.iter_mut().enumerate() {
                let replies = client.replies(7);
                let Reply::Array(results) = &replies[5] else {
                    panic!("EXEC is answered by {:?}", replies[5]);
                };
                let (Reply::Integer(first), Reply::Integer(second)) = (&results[0], &results[1])
                else {
                    panic!("{results:?}");
                };
                assert_eq!(first + 1, *second, "session {index}: a block was torn");
                assert_eq!(first % 2, 1, "session {index}: a block was torn");
                assert_eq!(results[3], Reply::bulk(round.to_string()));
                assert_eq!(replies[6], Reply::bulk(round.to_string()));
            }
        }
        if target.proxy.is_some() {
            let mut direct = target.direct_client();
            let Reply::Bulk(list) = direct.call("CLIENT LIST") else {
                panic!("a list");
            };
            let links = String::from_utf8_lossy(&list)
                .matches("name=respool")
                .count();
            assert!((1..=2).contains(&links), "{links} links for two workers");
        }
    });
}

/// A client that vanishes inside a transaction leaves nothing behind.
#[test]
fn vanished_client_leaves_no_transaction() {
    let target = proxied(&Options::with(&["--threads", "1"]));
    let mut steady = target.client();
    for request in ["WATCH k", "MULTI", "SET k gone"] {
        let mut client = target.client();
        client.call("WATCH k");
        client.call("MULTI");
        client.call(request);
        client.reset();
        let mut client = target.client();
        client.send(&words("MULTI"));
        client.send(&words("SET k gone"));
        client.send(&words("EXEC")[..9]);
        client.reply();
        client.reset();
        assert_eq!(steady.call("SET k kept"), Reply::ok());
        assert_eq!(steady.call("GET k"), Reply::bulk("kept"));
    }
    wait_until(
        "the links of closed watchers are closed",
        Duration::from_secs(10),
        || {
            let Reply::Bulk(list) = target.direct_client().call("CLIENT LIST") else {
                return false;
            };
            String::from_utf8_lossy(&list)
                .matches("name=respool")
                .count()
                == 1
        },
    );
}

/// After the loss of a link with watched keys, EXEC returns nil: the keys may have changed. The
/// next WATCH works.
#[test]
fn a_watch_that_was_lost_makes_exec_fail_and_the_next_one_works() {
    let target = proxied(&Options::with(&["--threads", "1"]));
    let mut client = target.client();
    assert_eq!(client.call("WATCH k"), Reply::ok());
    // The shared link is then old enough to be connected again at once.
    thread::sleep(Duration::from_millis(1_200));
    let mut direct = target.direct_client();
    direct.call("CLIENT KILL TYPE normal SKIPME yes");
    assert_eq!(client.call("MULTI"), Reply::ok());
    client.call("SET k 1");
    assert_eq!(client.call("EXEC"), Reply::Null);
    assert_eq!(client.call("GET k"), Reply::Null);
    assert_eq!(client.call("WATCH k"), Reply::ok());
    assert_eq!(client.call("MULTI"), Reply::ok());
    client.call("SET k 2");
    assert_eq!(client.call("EXEC"), Reply::Array([Reply::ok()].into()));
}

/// A transaction has a bound of its own. A request above `request-held-bytes-max` fits below it.
#[test]
fn transaction_bound_admits_large_requests() {
    let target = proxied(&Options::with(&["--transaction-bytes-max", "1MiB"]));
    let mut client = target.client();
    let large = "x".repeat(600 << 10);
    client.call("MULTI");
    assert_eq!(
        client.call_args(&["SET", "k", &large]),
        Reply::Simple("QUEUED".into())
    );
    assert_eq!(client.call("STRLEN k"), Reply::Simple("QUEUED".into()));
    let done = [Reply::ok(), Reply::Integer(600 << 10)];
    assert_eq!(client.call("EXEC"), Reply::Array(done.into()));
    for size in [600 << 10, 2 << 20] {
        client.call("MULTI");
        client.call_args(&["SET", "k", &large]);
        let refused = client.call_args(&["SET", "k", &"y".repeat(size)]);
        assert!(
            refused
                .error()
                .is_some_and(|text| text.contains("transaction-bytes-max")),
            "{refused:?}"
        );
        let aborted = client.call("EXEC");
        assert!(
            aborted
                .error()
                .is_some_and(|text| text.starts_with("EXECABORT")),
            "{aborted:?}"
        );
    }
    assert_eq!(client.call("STRLEN k"), Reply::Integer(600 << 10));
}

/// The server executes commands at once that it does not queue: a user without MULTI must not fill
/// the queue.
#[test]
fn a_user_without_multi_is_told_so_before_anything_is_queued() {
    let target = proxied(&Options::with(&["--threads", "1"]));
    let mut direct = target.direct_client();
    for (user, without) in [("no-multi", "-multi"), ("no-exec", "-exec")] {
        direct.call(&format!("ACL SETUSER {user} on nopass ~* +@all {without}"));
        let mut client = target.client();
        assert_eq!(client.call(&format!("AUTH {user} x")), Reply::ok());
        let refused = client.call("MULTI");
        assert!(
            refused
                .error()
                .is_some_and(|text| text.starts_with("NOPERM")),
            "{refused:?}"
        );
    }
    // Rights that change between MULTI and EXEC.
    direct.call("ACL SETUSER late on nopass ~* +@all");
    let mut client = target.client();
    client.call("AUTH late x");
    client.call("MULTI");
    client.call("SET k 1");
    direct.call("ACL SETUSER late -multi");
    let unknown = client.call("EXEC");
    assert!(
        unknown
            .error()
            .is_some_and(|text| text.starts_with("UNKNOWN")),
        "{unknown:?}"
    );
}

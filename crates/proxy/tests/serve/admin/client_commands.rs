//! CLIENT commands: they are about respool's clients, with all workers as one, in the server's
//! words.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use respool_testkit::client::{Reply, RespClient, words};
use respool_testkit::servers::installed;
use respool_testkit::time::wait_until;

use crate::target::{Options, Target, on_every_target, proxied};

/// Requests whose replies do not depend on the time, right and wrong ones, apart from some fields
/// of a line. Those behind the bar are Valkey's.
const ASKED: &str = "CLIENT LIST
CLIENT LIST x
CLIENT LIST TYPE
CLIENT LIST TYPE bogus
CLIENT LIST TYPE normal x
CLIENT LIST TYPE normal
CLIENT LIST TYPE slave
CLIENT LIST TYPE replica
CLIENT LIST TYPE master
CLIENT LIST TYPE primary
CLIENT LIST TYPE pubsub
CLIENT LIST TYPE normal TYPE pubsub
CLIENT LIST ID
CLIENT LIST ID a
CLIENT LIST ID 0
CLIENT LIST ID -1
CLIENT LIST ID 99999999999999999999
CLIENT LIST ID 100000 a
CLIENT LIST ID 100000 TYPE normal
CLIENT LIST ID 100000 100001
CLIENT LIST NAME asker
CLIENT LIST SKIPME yes
CLIENT LIST MAXAGE 1000
CLIENT LIST USER default
CLIENT LIST USER nobody
CLIENT INFO
CLIENT INFO x
CLIENT KILL
CLIENT KILL x
CLIENT KILL x y
CLIENT KILL ID
CLIENT KILL ID a
CLIENT KILL ID 0
CLIENT KILL ID -5
CLIENT KILL ID 99999
CLIENT KILL ID 99999 99998
CLIENT KILL ID 99999 x y
CLIENT KILL ID 99999999999999999999999
CLIENT KILL ID 99999 TYPE
CLIENT KILL ID 99999 TYPE pubsub
CLIENT KILL ADDR 1.2.3.4:5
CLIENT KILL LADDR 1.2.3.4:5
CLIENT KILL TYPE bogus
CLIENT KILL TYPE master
CLIENT KILL TYPE primary
CLIENT KILL TYPE pubsub
CLIENT KILL TYPE normal ADDR x
CLIENT KILL USER nobody
CLIENT KILL USER default ID 99999
CLIENT KILL SKIPME maybe
CLIENT KILL SKIPME
CLIENT KILL MAXAGE a
CLIENT KILL MAXAGE 0
CLIENT KILL MAXAGE -1
CLIENT KILL MAXAGE 100000
CLIENT KILL MAXAGE 99999999999999999999
CLIENT KILL NAME x
CLIENT PAUSE
CLIENT PAUSE a
CLIENT PAUSE -1
CLIENT PAUSE 0
CLIENT PAUSE 1.5
CLIENT PAUSE 1 foo
CLIENT PAUSE a foo
CLIENT PAUSE 1 WRITE x
CLIENT PAUSE 1 write
CLIENT PAUSE 1 ALL
CLIENT PAUSE 9223372036854775807
CLIENT PAUSE 99999999999999999999
CLIENT UNPAUSE
CLIENT UNPAUSE x
CLIENT UNBLOCK
CLIENT UNBLOCK a
CLIENT UNBLOCK 99999
CLIENT UNBLOCK 99999 TIMEOUT
CLIENT UNBLOCK 99999 error
CLIENT UNBLOCK 99999 bogus
CLIENT UNBLOCK a bogus
CLIENT UNBLOCK 1 ERROR x
CLIENT UNBLOCK -1
CLIENT UNBLOCK 99999999999999999999
CLIENT NO-EVICT
CLIENT NO-EVICT x
CLIENT NO-EVICT on
CLIENT INFO
CLIENT NO-EVICT OFF
CLIENT NO-EVICT on x
CLIENT HELP
CLIENT HELP x
CLIENT bogus
CLIENT
CLIENT LIST NOT-ID a
CLIENT LIST NOT-ID 0
CLIENT LIST NOT-ID
CLIENT LIST NOT-ID 100000 100001 TYPE normal
CLIENT LIST ID TYPE normal
CLIENT LIST MAXAGE a
CLIENT LIST MAXAGE 0
CLIENT LIST NOT-MAXAGE 1
CLIENT LIST IDLE 0
CLIENT LIST IDLE a
CLIENT LIST IDLE 1000
CLIENT LIST NOT-USER default
CLIENT LIST NOT-USER nobody
CLIENT LIST SKIPME maybe
CLIENT LIST SKIPME no
CLIENT LIST SKIPME
CLIENT LIST NOT-SKIPME yes
CLIENT LIST FLAGS Q
CLIENT LIST FLAGS NN
CLIENT LIST FLAGS Ne
CLIENT LIST NOT-FLAGS Q
CLIENT LIST NOT-FLAGS N
CLIENT LIST NOT-FLAGS e
CLIENT LIST NOT-TYPE bogus
CLIENT LIST NOT-TYPE pubsub
CLIENT LIST DB a
CLIENT LIST DB 0
CLIENT LIST DB 1
CLIENT LIST NOT-DB a
CLIENT LIST NOT-DB 0
CLIENT LIST NOT-DB 1
CLIENT LIST CAPA x
CLIENT LIST CAPA r
CLIENT LIST NOT-CAPA x
CLIENT LIST NOT-CAPA r
CLIENT LIST IP 127.0.0.1
CLIENT LIST IP 127.0.0
CLIENT LIST NOT-IP 127.0.0.1
CLIENT LIST NOT-NAME asker
CLIENT LIST NOT-NAME x
CLIENT LIST LIB-NAME x
CLIENT LIST LIB-NAME lib
CLIENT LIST NOT-LIB-NAME lib
CLIENT LIST LIB-VER 1
CLIENT LIST NOT-LIB-VER 1
CLIENT LIST ADDR x
CLIENT LIST NOT-ADDR x
CLIENT LIST NOT-LADDR x
CLIENT LIST NAME
CLIENT KILL NAME x LIB-NAME y
CLIENT KILL NOT-TYPE normal";

/// Replies to CLIENT commands have the words and the fields of the server's.
#[test]
fn client_commands_use_the_servers_words_and_fields() {
    let replies = |target: &Target| -> Vec<String> {
        let (mut asker, mut other) = (target.client(), target.client());
        assert_eq!(asker.call("CLIENT SETNAME asker"), Reply::ok());
        assert_eq!(other.call("CLIENT SETNAME other"), Reply::ok());
        // Servers of 6.2 and 7.0 refuse CLIENT SETINFO, with and without respool.
        other.call("CLIENT SETINFO LIB-NAME lib");
        let mut reply = |asked: &str| {
            asker.send(&words(asked));
            without_the_moment(&asker.reply_bytes())
        };
        ASKED.lines().map(&mut reply).collect()
    };
    for binary in installed() {
        let direct = Target::direct(&binary, &Options::default());
        // We speak as these two do; earlier versions know less.
        if ![(8, 2), (9, 1)].contains(&direct.version) {
            continue;
        }
        let proxied = Target::proxied(&binary, &Options::with(&["--threads=3"]));
        let replies = replies(&direct).into_iter().zip(replies(&proxied));
        for (asked, (direct_reply, reply)) in ASKED.lines().zip(replies) {
            assert_eq!(reply, direct_reply, "{asked} on {}", direct.name);
        }
    }
}

/// A reply without the parts that differ between moments or connections, with its lines sorted.
fn without_the_moment(reply: &[u8]) -> String {
    let reply = String::from_utf8_lossy(reply).into_owned();
    if !reply.contains("\nid=") {
        return reply;
    }
    let constant = [
        "name",
        "flags",
        "capa",
        "db",
        "sub",
        "psub",
        "ssub",
        "multi",
        "watch",
        "events",
        "cmd",
        "user",
        "redir",
        "resp",
        "lib-name",
        "lib-ver",
        "io-thread",
    ];
    let line = |line: &str| {
        let field = |field: &str| match field.split_once('=') {
            Some((name, _)) if !constant.contains(&name) => name.to_owned(),
            _ => field.to_owned(),
        };
        line.split(' ').map(field).collect::<Vec<_>>().join(" ")
    };
    let lines: BTreeSet<String> = reply.lines().skip(1).map(line).collect();
    lines.into_iter().collect::<Vec<_>>().join("\n")
}

/// A line of CLIENT LIST names the client and its address.
#[test]
fn client_list_line_names_client_and_address() {
    on_every_target(&Options::with(&["--threads=2"]), |target| {
        let mut client = target.client();
        let id = id(&mut client).to_string();
        client.call("CLIENT SETNAME somebody");
        client.call("SELECT 3");
        client.call("HELLO 3");
        let own = client
            .stream()
            .local_addr()
            .expect("the client is connected");
        let info = text(client.call("CLIENT INFO"));
        let list = text(client.call(&format!("CLIENT LIST ID {id}")));
        for said in [&info, &list] {
            let said = &lines(said)[0];
            assert_eq!(said["id"], id);
            assert_eq!(said["addr"], own.to_string());
            assert_eq!(said["laddr"], target.address().to_string());
            assert_eq!(said["name"], "somebody");
            assert_eq!(said["db"], "3");
            assert_eq!(said["user"], "default");
            let fd: i32 = said["fd"].parse().expect("a number");
            assert!(fd > 2, "{said:?}");
            // CLIENT INFO of 6.2 has no field `resp`.
            assert_eq!(said.get("resp").map_or("3", String::as_str), "3");
        }
        assert!(
            info.ends_with('\n') && info.lines().count() == 1,
            "{info:?}"
        );
    });
}

/// A line of CLIENT LIST counts queued commands as the server does.
#[test]
fn client_list_line_counts_queued_commands() {
    let histories: [&[&str]; 9] = [
        &[],
        &["EXEC", "UNWATCH", "WATCH", "MULTI a"],
        &["MULTI"],
        &["MULTI", "SET a 1", "EXEC"],
        &["MULTI", "NOSUCH", "EXEC", "HELLO 2"],
        &["MULTI", "DISCARD", "RESET"],
        &["WATCH a"],
        &["WATCH a", "UNWATCH"],
        &["WATCH a", "RESET"],
    ];
    for binary in installed() {
        let targets = [Target::direct, Target::proxied].map(|by| by(&binary, &Options::default()));
        for history in histories {
            let said = targets.each_ref().map(|target| {
                let mut client = target.client();
                for asked in history {
                    client.call(asked);
                }
                let reply = client.call("CLIENT INFO");
                match client.call("EXEC") {
                    Reply::Array(results) => results.into_iter().next().map(text),
                    _ => Some(text(reply)),
                }
            });
            let [direct, through] =
                said.map(|said| said.map(|info| lines(&info)[0]["multi"].clone()));
            assert_eq!(
                through, direct,
                "{history:?} on {}: queued commands",
                targets[0].name
            );
        }
    }
}

#[test]
fn every_worker_lists_the_clients_of_all_workers() {
    on_every_target(&Options::with(&["--threads=3"]), |target| {
        let mut clients: Vec<RespClient> = (0..30).map(|_| target.client()).collect();
        let ids: BTreeSet<i64> = clients.iter_mut().map(id).collect();
        assert_eq!(ids.len(), clients.len());
        for client in &mut clients {
            let list = text(client.call("CLIENT LIST TYPE normal"));
            let lines = lines(&list);
            let listed: BTreeSet<i64> = lines.iter().map(number).collect();
            // The direct server has no other client; through respool its links are not shown.
            assert_eq!(listed, ids);
            assert_eq!(lines.len(), ids.len());
        }
        let (&first, &last) = (ids.first().expect("30"), ids.last().expect("30"));
        let list = text(clients[0].call(&format!("CLIENT LIST ID {last} {first}")));
        let listed: BTreeSet<i64> = lines(&list).iter().map(number).collect();
        assert_eq!(listed, BTreeSet::from([first, last]));
    });
}

/// CLIENT KILL closes a client of any worker, and no other one.
#[test]
fn client_kill_reaches_every_worker() {
    on_every_target(&Options::with(&["--threads=3"]), |target| {
        let mut killer = target.client();
        let own = id(&mut killer);
        let mut others: Vec<RespClient> = (0..12).map(|_| target.client()).collect();
        others.iter_mut().for_each(|client| _ = id(client));
        for at in (0..12).rev() {
            let mut victim = others.remove(at);
            let reply = match at % 3 {
                0 => {
                    let id = id(&mut victim);
                    killer.call(&format!("CLIENT KILL ID {id}"))
                }
                1 => {
                    let addr = victim
                        .stream()
                        .local_addr()
                        .expect("the client is connected");
                    killer.call(&format!("CLIENT KILL ADDR {addr} TYPE normal"))
                }
                _ => {
                    // The old form says OK instead of how many.
                    let addr = victim
                        .stream()
                        .local_addr()
                        .expect("the client is connected");
                    assert_eq!(killer.call(&format!("CLIENT KILL {addr}")), Reply::ok());
                    Reply::Integer(1)
                }
            };
            assert_eq!(reply, Reply::Integer(1));
            victim.expect_closed();
            for other in &mut others {
                assert_eq!(other.call("PING"), Reply::Simple("PONG".into()));
            }
        }
        let mut all: Vec<RespClient> = (0..12).map(|_| target.client()).collect();
        all.iter_mut().for_each(|client| _ = id(client));
        wait_until(
            "CLIENT LIST shows 13 sessions",
            Duration::from_secs(5),
            || lines(&text(killer.call("CLIENT LIST"))).len() == 13,
        );
        let laddr = target.address();
        let killed = killer.call(&format!("CLIENT KILL LADDR {laddr} USER default"));
        assert_eq!(killed, Reply::Integer(12));
        all.iter_mut().for_each(RespClient::expect_closed);
        assert_eq!(id(&mut killer), own, "CLIENT KILL skips its caller");
        if let Some(proxy) = &target.proxy {
            wait_until("the log names CLIENT KILL", Duration::from_secs(5), || {
                proxy.log().contains("CLIENT KILL")
            });
        }
    });
}

/// A client that kills itself gets its reply first. Its later requests do not run.
#[test]
fn client_that_kills_itself_is_answered_first() {
    on_every_target(&Options::with(&["--threads=3"]), |target| {
        for old_form in [true, false] {
            let mut client = target.client();
            let id = id(&mut client);
            let addr = client
                .stream()
                .local_addr()
                .expect("the client is connected");
            let kill = if old_form {
                format!("CLIENT KILL {addr}")
            } else {
                format!("CLIENT KILL ID {id} SKIPME no")
            };
            let mut bytes = words("SET before 1");
            bytes.extend(words(&kill));
            bytes.extend(words("SET behind 1"));
            client.send(&bytes);
            assert_eq!(client.reply(), Reply::ok());
            let done = if old_form {
                Reply::ok()
            } else {
                Reply::Integer(1)
            };
            assert_eq!(client.reply(), done);
            client.expect_closed();
            let mut next = target.client();
            assert_eq!(next.call("EXISTS before behind"), Reply::Integer(1));
            assert_eq!(next.call("DEL before"), Reply::Integer(1));
        }
    });
}

/// Replies that need all workers keep their place in the session's order.
#[test]
fn worker_answers_keep_the_session_order() {
    // All six clients may be with one worker, which asks `QUESTIONS_MAX` questions at once at most.
    const ROUNDS: usize = 20;
    let target = proxied(&Options::with(&["--threads=3"]));
    let mut clients: Vec<RespClient> = (0..6).map(|_| target.client()).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        let own = id(client);
        let mut bytes = Vec::new();
        for round in 0..ROUNDS {
            bytes.extend(words(&format!("SET key-{at} {round}")));
            bytes.extend(words(&format!("CLIENT LIST ID {own}")));
            bytes.extend(words(&format!("GET key-{at}")));
            bytes.extend(words("CLIENT KILL ID 100000"));
        }
        client.send(&bytes);
    }
    for client in &mut clients {
        for round in 0..ROUNDS {
            assert_eq!(client.reply(), Reply::ok());
            assert_eq!(lines(&text(client.reply())).len(), 1);
            assert_eq!(client.reply(), Reply::bulk(round.to_string()));
            assert_eq!(client.reply(), Reply::Integer(0));
        }
    }
}

/// CLIENT UNBLOCK wakes a blocked client of any worker.
#[test]
fn client_unblock_reaches_every_worker() {
    on_every_target(&Options::with(&["--threads=3"]), |target| {
        let mut admin = target.client();
        let mut clients: Vec<RespClient> = (0..9).map(|_| target.client()).collect();
        let ids: Vec<i64> = clients.iter_mut().map(id).collect();
        for id in &ids {
            let reply = admin.call(&format!("CLIENT UNBLOCK {id}"));
            assert_eq!(reply, Reply::Integer(0), "no client is blocked");
        }
        for client in &mut clients {
            client.send(&[words("BLPOP none 0"), words("ECHO behind")].concat());
        }
        let flags = |admin: &mut RespClient, id: i64| {
            let list = text(admin.call(&format!("CLIENT LIST ID {id}")));
            lines(&list)[0]["flags"].clone()
        };
        for (at, (client, id)) in clients.iter_mut().zip(ids).enumerate() {
            let how = ["", " TIMEOUT", " ERROR"][at % 3];
            wait_until("the client is blocked", Duration::from_secs(5), || {
                flags(&mut admin, id) == "b"
            });
            // The server may not have begun to wait.
            let asked = format!("CLIENT UNBLOCK {id}{how}");
            wait_until(
                "CLIENT UNBLOCK unblocks the client",
                Duration::from_secs(5),
                || admin.call(&asked) == Reply::Integer(1),
            );
            match client.reply() {
                Reply::Null if at % 3 < 2 => {}
                Reply::Error(text) if at % 3 == 2 => {
                    assert_eq!(text, "UNBLOCKED client unblocked via CLIENT UNBLOCK");
                }
                other => panic!("unblocked by {how:?}: {other:?}"),
            }
            assert_eq!(client.reply(), Reply::bulk("behind"));
            assert_eq!(flags(&mut admin, id), "N");
        }
    });
}

/// CLIENT PAUSE WRITE holds a transaction that writes. One that only reads goes on.
#[test]
fn write_pause_holds_writing_transactions_only() {
    on_every_target(&Options::with(&["--threads=3"]), |target| {
        let (mut admin, mut reader, mut writer) =
            (target.client(), target.client(), target.client());
        for (client, queued) in [(&mut reader, "GET k"), (&mut writer, "SET k v")] {
            assert_eq!(client.call("MULTI"), Reply::ok());
            assert_eq!(client.call(queued), Reply::Simple("QUEUED".into()));
        }
        assert_eq!(admin.call("CLIENT PAUSE 60000 WRITE"), Reply::ok());
        writer.send(&words("EXEC"));
        assert!(writer.is_quiet(Duration::from_millis(50)));
        assert_eq!(reader.call("EXEC"), Reply::Array(vec![Reply::Null]));
        assert_eq!(reader.call("MULTI"), Reply::ok());
        // A command that would only be queued waits, too.
        reader.send(&words("SET k other"));
        assert!(reader.is_quiet(Duration::from_millis(50)));
        assert_eq!(admin.call("CLIENT UNPAUSE"), Reply::ok());
        assert_eq!(writer.reply(), Reply::Array(vec![Reply::ok()]));
        assert_eq!(reader.reply(), Reply::Simple("QUEUED".into()));
        let list = text(admin.call("CLIENT LIST"));
        let multi = |line: &&ClientFields| line["flags"] == "x" && line["multi"] == "1";
        assert_eq!(lines(&list).iter().filter(multi).count(), 1, "{list}");
        assert_eq!(reader.call("EXEC"), Reply::Array(vec![Reply::ok()]));
        assert_eq!(admin.call("GET k"), Reply::bulk("other"));
    });
}

/// CLIENT PAUSE WRITE holds the writers of all workers and lets readers through. After it all
/// requests run in order.
#[test]
fn write_pause_holds_writers_of_all_workers() {
    on_every_target(&Options::with(&["--threads=3"]), |target| {
        let mut admin = target.client();
        let mut writers: Vec<RespClient> = (0..9).map(|_| target.client()).collect();
        let mut readers: Vec<RespClient> = (0..9).map(|_| target.client()).collect();
        writers
            .iter_mut()
            .chain(&mut readers)
            .for_each(|client| _ = id(client));
        assert_eq!(admin.call("CLIENT PAUSE 60000 WRITE"), Reply::ok());
        for (at, writer) in writers.iter_mut().enumerate() {
            let mut bytes = words(&format!("GET list-{at}"));
            for value in 0..20 {
                bytes.extend(words(&format!("RPUSH list-{at} {value}")));
                bytes.extend(words(&format!("LLEN list-{at}")));
            }
            writer.send(&bytes);
            assert_eq!(
                writer.reply(),
                Reply::Null,
                "requests before a write are answered"
            );
        }
        for held in ["PUBLISH c m", "EVAL return(1) 0", "PFCOUNT none"] {
            let mut client = target.client();
            client.send(&words(held));
            assert!(client.is_quiet(Duration::from_millis(30)), "{held}");
        }
        for _ in 0..3 {
            for reader in &mut readers {
                assert_eq!(reader.call("LLEN list-0"), Reply::Integer(0));
                assert_eq!(reader.call("PING"), Reply::Simple("PONG".into()));
            }
        }
        for writer in &mut writers {
            assert!(writer.is_quiet(Duration::from_millis(5)));
        }
        let list = text(readers[0].call("CLIENT LIST"));
        let blocked = lines(&list)
            .iter()
            .filter(|line| line["flags"] == "b")
            .count();
        assert!(blocked >= writers.len(), "{list}");
        assert_eq!(admin.call("CLIENT UNPAUSE"), Reply::ok());
        for writer in &mut writers {
            for value in 1..=20 {
                assert_eq!(writer.reply(), Reply::Integer(value));
                assert_eq!(writer.reply(), Reply::Integer(value));
            }
        }
    });
}

/// CLIENT PAUSE ALL holds every command and ends by itself.
#[test]
fn full_pause_holds_every_command_until_its_end() {
    on_every_target(&Options::with(&["--threads=3"]), |target| {
        let mut admin = target.client();
        let mut clients: Vec<RespClient> = (0..9).map(|_| target.client()).collect();
        clients.iter_mut().for_each(|client| _ = id(client));
        let began = Instant::now();
        let pause = Duration::from_millis(400);
        assert_eq!(admin.call("CLIENT PAUSE 400"), Reply::ok());
        for client in &mut clients {
            // A wrong request is answered. A valid one waits, whether respool or the server would
            // answer it.
            client.send(&[words("GET"), words("PING"), words("INCR n")].concat());
            assert!(client.reply().error().is_some());
        }
        admin.send(&words("CLIENT UNPAUSE"));
        for client in &mut clients {
            assert_eq!(client.reply(), Reply::Simple("PONG".into()));
            assert!(began.elapsed() >= pause, "{:?}", began.elapsed());
            assert!(matches!(client.reply(), Reply::Integer(_)));
        }
        assert_eq!(admin.reply(), Reply::ok());
        assert_eq!(admin.call("GET n"), Reply::bulk("9"));
    });
}

/// A paused request does not run when its client has left.
#[test]
fn paused_request_of_a_gone_client_does_not_run() {
    on_every_target(&Options::with(&["--threads=2"]), |target| {
        let mut admin = target.client();
        let mut stays = target.client();
        let leavers: Vec<RespClient> = (0..6).map(|_| target.client()).collect();
        assert_eq!(stays.call("PING"), Reply::Simple("PONG".into()));
        assert_eq!(admin.call("CLIENT PAUSE 60000 WRITE"), Reply::ok());
        for (at, mut leaver) in leavers.into_iter().enumerate() {
            leaver.send(&words("INCR n"));
            assert!(leaver.is_quiet(Duration::from_millis(20)));
            match at % 3 {
                0 => leaver.reset(),
                1 => drop(leaver),
                _ => {
                    leaver.close_sending();
                    leaver.expect_closed();
                }
            }
        }
        stays.send(&words("INCR n"));
        wait_until("only two sessions remain", Duration::from_secs(5), || {
            lines(&text(admin.call("CLIENT LIST"))).len() == 2
        });
        assert_eq!(admin.call("CLIENT UNPAUSE"), Reply::ok());
        assert_eq!(stays.reply(), Reply::Integer(1));
    });
}

/// After the OK of CLIENT PAUSE, no write reaches the server until the pause ends.
#[test]
fn confirmed_pause_keeps_writes_from_the_server() {
    let target = proxied(&Options::with(&["--threads=3"]));
    let mut direct = target.direct_client();
    let mut admin = target.client();
    thread::scope(|scope| {
        for _ in 0..6 {
            let mut client = target.client();
            scope.spawn(move || {
                for _ in 0..60 {
                    client.send(&words("INCR n").repeat(20));
                    (0..20).for_each(|_| _ = client.reply());
                }
            });
        }
        for _ in 0..10 {
            assert_eq!(admin.call("CLIENT PAUSE 60000 WRITE"), Reply::ok());
            let count = direct.call("GET n");
            thread::sleep(Duration::from_millis(5));
            assert_eq!(direct.call("GET n"), count);
            assert_eq!(admin.call("CLIENT UNPAUSE"), Reply::ok());
            thread::sleep(Duration::from_millis(2));
        }
    });
    assert_eq!(direct.call("GET n"), Reply::bulk("7200"));
}

fn text(value: Reply) -> String {
    match value {
        Reply::Bulk(text) | Reply::Other('=', text) => {
            let text = String::from_utf8_lossy(&text).into_owned();
            text.strip_prefix("txt:")
                .map_or(text.clone(), str::to_owned)
        }
        other => panic!("a text, not {other:?}"),
    }
}

fn id(client: &mut RespClient) -> i64 {
    match client.call("CLIENT ID") {
        Reply::Integer(id) => id,
        other => panic!("an id is a number, not {other:?}"),
    }
}

type ClientFields = BTreeMap<String, String>;

/// The fields of each line.
fn lines(list: &str) -> Vec<ClientFields> {
    let field = |field: &str| {
        let (name, value) = field.split_once('=').expect("a field has a value");
        (name.to_owned(), value.to_owned())
    };
    let line = |line: &str| line.split(' ').map(field).collect();
    list.lines().map(line).collect()
}

fn number(line: &ClientFields) -> i64 {
    line["id"].parse().expect("an id is a number")
}

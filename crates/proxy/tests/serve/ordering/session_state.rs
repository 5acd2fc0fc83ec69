//! The state of a session stays with it, although all sessions share a link.

use respool_testkit::client::{Reply, words};
use respool_testkit::random::{Random, seed};

use crate::target::{Options, on_every_target};

#[test]
fn a_database_belongs_to_the_session_that_selected_it() {
    on_every_target(&Options::default(), |target| {
        let mut clients: Vec<_> = (0..16).map(|_| target.client()).collect();
        for (db, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.call(&format!("SELECT {db}")), Reply::ok());
        }
        for (db, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.call(&format!("SET key in-{db}")), Reply::ok());
        }
        for (db, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.call("GET key"), Reply::bulk(format!("in-{db}")));
            assert_eq!(client.call("DBSIZE"), Reply::Integer(1));
        }
        assert_eq!(clients[3].call("FLUSHDB"), Reply::ok());
        for (db, client) in clients.iter_mut().enumerate() {
            assert_eq!(
                client.call("EXISTS key"),
                Reply::Integer(i64::from(db != 3))
            );
        }
        assert_eq!(
            target.client().call("GET key"),
            Reply::bulk("in-0"),
            "a new session starts in 0"
        );
    });
}

#[test]
fn select_takes_effect_between_its_neighbours_in_a_pipeline() {
    on_every_target(&Options::default(), |target| {
        let seed = seed();
        let mut random = Random::new(seed);
        let mut client = target.client();
        let mut values = [None; 16];
        let mut db = 0;
        for round in 0..20 {
            let mut bytes = Vec::new();
            let mut expected = Vec::new();
            for step in 0..100 {
                match random.below(3) {
                    0 => {
                        db = random.below(16) as usize;
                        bytes.extend(words(&format!("SELECT {db}")));
                        expected.push(Reply::ok());
                    }
                    1 => {
                        let value = round * 1_000 + step;
                        bytes.extend(words(&format!("SET key {value}")));
                        values[db] = Some(value);
                        expected.push(Reply::ok());
                    }
                    _ => {
                        bytes.extend(words("GET key"));
                        expected.push(
                            values[db].map_or(Reply::Null, |v: i32| Reply::bulk(v.to_string())),
                        );
                    }
                }
            }
            let replies = client.exchange(bytes, expected.len());
            assert_eq!(replies, expected, "round {round}, RESPOOL_TEST_SEED={seed}");
        }
    });
}

/// Sessions of RESP2 and RESP3 share a server, and each gets its own protocol.
#[test]
fn sessions_of_both_protocols_keep_their_own() {
    on_every_target(&Options::default(), |target| {
        let (mut two, mut three) = (target.client(), target.client());
        assert!(matches!(three.call("HELLO 3"), Reply::Map(_)));
        two.call("HSET hash field value");
        let pair = vec![Reply::bulk("field"), Reply::bulk("value")];
        for _ in 0..50 {
            two.send(&words("HGETALL hash"));
            three.send(&words("HGETALL hash"));
            three.send(&words("GET none"));
            two.send(&words("GET none"));
            assert_eq!(two.reply_bytes(), b"*2\r\n$5\r\nfield\r\n$5\r\nvalue\r\n");
            assert_eq!(three.reply(), Reply::Map(pair.clone()));
            assert_eq!(three.reply_bytes(), b"_\r\n");
            assert_eq!(two.reply_bytes(), b"$-1\r\n");
        }
    });
}

#[test]
fn hello_takes_effect_between_its_neighbours_in_a_pipeline() {
    on_every_target(&Options::default(), |target| {
        let seed = seed();
        let mut random = Random::new(seed);
        let mut client = target.client();
        client.call("SADD set member");
        let mut version = 2;
        for _ in 0..20 {
            let mut bytes = Vec::new();
            let mut expected = Vec::new();
            for _ in 0..60 {
                match random.below(3) {
                    0 => {
                        version = 2 + random.below(2);
                        bytes.extend(words(&format!("HELLO {version}")));
                        expected.push(None);
                    }
                    1 => {
                        bytes.extend(words("SMEMBERS set"));
                        let members = vec![Reply::bulk("member")];
                        expected.push(Some(match version {
                            2 => Reply::Array(members),
                            _ => Reply::Set(members),
                        }));
                    }
                    _ => {
                        bytes.extend(words("ECHO x"));
                        expected.push(Some(Reply::bulk("x")));
                    }
                }
            }
            let replies = client.exchange(bytes, expected.len());
            for (at, (reply, expected)) in replies.iter().zip(&expected).enumerate() {
                match expected {
                    Some(expected) => {
                        assert_eq!(reply, expected, "reply {at}, RESPOOL_TEST_SEED={seed}")
                    }
                    None => assert!(reply.get("proto").is_some(), "reply {at} is {reply:?}"),
                }
            }
        }
    });
}

#[test]
fn names_and_ids_belong_to_their_session() {
    on_every_target(&Options::with(&["--threads=2"]), |target| {
        let mut clients: Vec<_> = (0..10).map(|_| target.client()).collect();
        let mut ids = Vec::new();
        for (number, client) in clients.iter_mut().enumerate() {
            assert_eq!(
                client.call(&format!("CLIENT SETNAME name-{number}")),
                Reply::ok()
            );
            let Reply::Integer(id) = client.call("CLIENT ID") else {
                panic!("an id is a number")
            };
            ids.push(id);
        }
        for (number, client) in clients.iter_mut().enumerate() {
            assert_eq!(
                client.call("CLIENT GETNAME"),
                Reply::bulk(format!("name-{number}"))
            );
            assert_eq!(client.call("CLIENT ID"), Reply::Integer(ids[number]));
        }
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 10, "no two sessions have the same id");
    });
}

#[test]
fn reset_gives_a_session_back_as_it_began() {
    on_every_target(&Options::default(), |target| {
        let mut client = target.client();
        client.call("SET key in-0");
        client.call("HELLO 3");
        client.call("SELECT 5");
        client.call("CLIENT SETNAME somebody");
        assert_eq!(client.call("RESET"), Reply::Simple("RESET".into()));
        assert_eq!(client.call("GET key"), Reply::bulk("in-0"));
        client.send(&words("GET none"));
        assert_eq!(client.reply_bytes(), b"$-1\r\n", "RESP2 again");
        assert_eq!(client.call("CLIENT GETNAME"), Reply::Null);
    });
}

#[test]
fn info_has_the_fields_that_clients_look_for() {
    on_every_target(&Options::default(), |target| {
        let mut client = target.client();
        for request in [
            "INFO",
            "INFO server",
            "INFO all",
            "INFO everything",
            "INFO default",
        ] {
            let Reply::Bulk(text) = client.call(request) else {
                panic!("{request} is answered by a text")
            };
            let text = String::from_utf8_lossy(&text).into_owned();
            assert!(text.contains("# Server\r\n"), "{request}: {text}");
            for field in ["redis_version:", "_mode:standalone\r\n", "process_id:"] {
                assert!(text.contains(field), "{request} lacks {field}: {text}");
            }
            if request != "INFO server" {
                for field in [
                    "role:master\r\n",
                    "connected_clients:",
                    "loading:0\r\n",
                    "connected_slaves:",
                ] {
                    assert!(text.contains(field), "{request} lacks {field}: {text}");
                }
            }
        }
        let Reply::Bulk(text) = client.call("INFO replication") else {
            panic!("a text")
        };
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(
            text.contains("role:master\r\n") && !text.contains("redis_version:"),
            "{text}"
        );
    });
}

#[test]
fn command_lists_the_commands() {
    on_every_target(&Options::default(), |target| {
        let mut client = target.client();
        assert!(matches!(
            client.call("COMMAND COUNT"),
            Reply::Integer(100..)
        ));
        let Reply::Array(all) = client.call("COMMAND") else {
            panic!("an array")
        };
        assert!(all.len() > 100);
        let Reply::Array(info) = client.call("COMMAND INFO get nosuch") else {
            panic!("an array")
        };
        assert_eq!(info.len(), 2);
        let Reply::Array(get) = &info[0] else {
            panic!("{info:?}")
        };
        assert_eq!(get[..2], [Reply::bulk("get"), Reply::Integer(2)]);
        assert_eq!(
            get[3..6],
            [Reply::Integer(1), Reply::Integer(1), Reply::Integer(1)]
        );
        assert_eq!(info[1], Reply::Null);
        let keys = client.call("COMMAND GETKEYS MSET a 1 b 2");
        assert_eq!(keys, Reply::Array(vec![Reply::bulk("a"), Reply::bulk("b")]));
    });
}

/// Half a request of a closed session does not become a part of another session's request.
#[test]
fn half_request_of_a_gone_session_is_dropped() {
    on_every_target(&Options::with(&["--threads=1"]), |target| {
        for half in [
            "*1048576\r\n$4\r\n",
            "*2\r\n$4\r\nECHO\r\n$1",
            "*3\r\n$3\r\nSET\r\n$100\r\nabc",
            "ECHO a",
        ] {
            let mut gone = target.client();
            assert_eq!(gone.call("PING"), Reply::Simple("PONG".into()));
            gone.send(half.as_bytes());
            assert!(
                gone.is_quiet(std::time::Duration::from_millis(20)),
                "{half:?} is no request"
            );
            drop(gone);
            for _ in 0..3 {
                let mut next = target.client();
                assert_eq!(
                    next.call("ECHO mine"),
                    Reply::bulk("mine"),
                    "behind {half:?}"
                );
            }
        }
    });
}

//! Many requests of one client at once.

use respool_testkit::client::{Reply, words};

use crate::target::{Options, on_every_target};

#[test]
fn a_pipeline_of_any_depth_is_answered_in_order() {
    on_every_target(&Options::default(), |target| {
        let mut client = target.client();
        for depth in [1, 2, 3, 10, 100, 1_000, 4_095, 4_096, 4_097, 10_000] {
            let mut bytes = Vec::new();
            for at in 0..depth {
                bytes.extend(words(&format!("SET key:{at} value:{at}:{depth}")));
            }
            for at in 0..depth {
                bytes.extend(words(&format!("GET key:{at}")));
            }
            let replies = client.exchange(bytes, 2 * depth);
            assert!(
                replies[..depth].iter().all(|reply| *reply == Reply::ok()),
                "depth {depth}"
            );
            for (at, reply) in replies[depth..].iter().enumerate() {
                assert_eq!(
                    *reply,
                    Reply::bulk(format!("value:{at}:{depth}")),
                    "depth {depth}"
                );
            }
        }
    });
}

/// Replies of respool's own keep their place among those of the server.
#[test]
fn local_replies_keep_their_place_in_a_pipeline() {
    on_every_target(&Options::default(), |target| {
        let mut client = target.client();
        let Reply::Integer(id) = client.call("CLIENT ID") else {
            panic!("an id is a number")
        };
        for depth in [1, 7, 500] {
            let mut bytes = Vec::new();
            let mut expected = Vec::new();
            for at in 0..depth {
                let mut ask = |text: String, reply: Reply| {
                    bytes.extend(words(&text));
                    expected.push(reply);
                };
                ask(format!("SET mixed value:{at}"), Reply::ok());
                ask("PING".into(), Reply::Simple("PONG".into()));
                ask("GET mixed".into(), Reply::bulk(format!("value:{at}")));
                ask(format!("ECHO {at}"), Reply::bulk(at.to_string()));
                ask(format!("PING {at}"), Reply::bulk(at.to_string()));
                ask("CLIENT ID".into(), Reply::Integer(id));
                ask(
                    format!("APPEND mixed :{at}"),
                    Reply::Integer(format!("value:{at}:{at}").len() as i64),
                );
                ask(format!("CLIENT SETNAME name-{at}"), Reply::ok());
                ask(
                    "STRLEN mixed".into(),
                    Reply::Integer(format!("value:{at}:{at}").len() as i64),
                );
                ask("CLIENT GETNAME".into(), Reply::bulk(format!("name-{at}")));
                ask("SELECT 1".into(), Reply::ok());
                ask("EXISTS mixed".into(), Reply::Integer(0));
                ask("SELECT 0".into(), Reply::ok());
                ask("EXISTS mixed".into(), Reply::Integer(1));
                ask(
                    "GET".into(),
                    Reply::Error("ERR wrong number of arguments for 'get' command".into()),
                );
                ask("DEL mixed".into(), Reply::Integer(1));
            }
            let replies = client.exchange(bytes, expected.len());
            for (at, (reply, expected)) in replies.iter().zip(&expected).enumerate() {
                assert_eq!(reply, expected, "reply {at} of a pipeline of depth {depth}");
            }
        }
    });
}

/// A pipeline that ends in QUIT is answered whole, and then closed.
#[test]
fn pipeline_with_quit_is_answered_whole() {
    on_every_target(&Options::default(), |target| {
        let mut client = target.client();
        let mut bytes = Vec::new();
        for at in 0..100 {
            bytes.extend(words(&format!("SET quit:{at} {at}")));
            bytes.extend(words(&format!("GET quit:{at}")));
        }
        bytes.extend(words("QUIT"));
        // Behind QUIT nothing is executed.
        bytes.extend(words("SET quit:0 late"));
        client.send(&bytes);
        for at in 0..100 {
            assert_eq!(client.reply(), Reply::ok());
            assert_eq!(client.reply(), Reply::bulk(at.to_string()));
        }
        assert_eq!(client.reply(), Reply::ok());
        client.expect_closed();
        assert_eq!(target.client().call("GET quit:0"), Reply::bulk("0"));
    });
}

#[test]
fn errors_in_a_pipeline_stand_where_their_requests_stood() {
    on_every_target(&Options::default(), |target| {
        let mut client = target.client();
        let mut bytes = Vec::new();
        for text in [
            "SET a 1",
            "LPUSH a x",
            "INCR a",
            "NOSUCH a b",
            "INCR a",
            "SET a",
            "INCR a",
        ] {
            bytes.extend(words(text));
        }
        let replies = client.exchange(bytes, 7);
        assert_eq!(replies[0], Reply::ok());
        assert!(
            replies[1]
                .error()
                .is_some_and(|text| text.starts_with("WRONGTYPE ")),
            "{replies:?}"
        );
        assert_eq!(replies[2], Reply::Integer(2));
        assert!(
            replies[3]
                .error()
                .is_some_and(|text| text.starts_with("ERR unknown command ")),
            "{replies:?}"
        );
        assert_eq!(replies[4], Reply::Integer(3));
        assert!(
            replies[5]
                .error()
                .is_some_and(|text| text.starts_with("ERR wrong number of ")),
            "{replies:?}"
        );
        assert_eq!(replies[6], Reply::Integer(4));
    });
}

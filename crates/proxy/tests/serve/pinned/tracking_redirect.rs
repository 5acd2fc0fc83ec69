//! CLIENT TRACKING with REDIRECT: one client gets the invalidations of others, on any workers.

use std::time::{Duration, Instant};

use respool_testkit::client::{PATIENCE, Reply, RespClient};

use crate::target::{Options, Target, on_every_target, proxied};

/// So many that every worker has some.
const READERS: usize = 8;
const MOMENT: Duration = Duration::from_millis(100);

fn id_of(client: &mut RespClient) -> i64 {
    match client.call("CLIENT ID") {
        Reply::Integer(id) => id,
        other => panic!("CLIENT ID is answered by {other:?}"),
    }
}

fn readers(target: &Target, told: i64) -> Vec<RespClient> {
    (0..READERS).map(|_| reader(target, told)).collect()
}

fn reader(target: &Target, told: i64) -> RespClient {
    let mut client = target.client();
    let request = format!("CLIENT TRACKING ON REDIRECT {told}");
    assert_eq!(client.call(&request), Reply::ok());
    client
}

/// A RESP2 subscriber gets the invalidations of keys that other clients have read.
#[test]
fn resp2_subscriber_gets_invalidations_of_others() {
    on_every_target(&Options::with(&["--threads", "3"]), |target| {
        let (mut told, mut writer) = (target.client(), target.client());
        let id = id_of(&mut told);
        told.call("SUBSCRIBE __redis__:invalidate");
        let mut readers = readers(target, id);
        for (index, reader) in readers.iter_mut().enumerate() {
            assert_eq!(reader.call("CLIENT GETREDIR"), Reply::Integer(id));
            let info = reader.call("CLIENT TRACKINGINFO");
            assert_eq!(info.get("redirect"), Some(&Reply::Integer(id)));
            reader.call(&format!("GET key:{index}"));
        }
        let invalid = |keys: Reply| {
            let channel = ["message", "__redis__:invalidate"].map(Reply::bulk);
            let [message, channel] = channel;
            Reply::Array(vec![message, channel, keys])
        };
        for index in 0..READERS {
            writer.call(&format!("SET key:{index} new"));
            let key = Reply::bulk(format!("key:{index}"));
            assert_eq!(told.reply(), invalid(Reply::Array(vec![key])));
        }
        // The target was told once, and the readers themselves are never told.
        writer.call("SET key:0 newer");
        assert!(told.is_quiet(MOMENT));
        for reader in &mut readers {
            assert!(reader.is_quiet(Duration::from_millis(1)));
        }
        writer.call("FLUSHALL");
        assert_eq!(told.reply(), invalid(Reply::Null));
    });
}

/// A RESP3 client gets invalidations as pushes until tracking is switched off.
#[test]
fn resp3_client_gets_pushes_until_tracking_is_off() {
    on_every_target(&Options::with(&["--threads", "3"]), |target| {
        let (mut told, mut writer) = (target.client(), target.client());
        told.call("HELLO 3");
        let id = id_of(&mut told);
        let mut readers = readers(target, id);
        for reader in &mut readers {
            reader.call("GET k");
            writer.call("SET k new");
            let pushed = told.reply_bytes();
            assert_eq!(pushed, b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n");
            assert_eq!(reader.call("CLIENT TRACKING OFF"), Reply::ok());
            assert_eq!(reader.call("CLIENT GETREDIR"), Reply::Integer(-1));
            reader.call("GET k");
            writer.call("SET k newer");
            assert_eq!(told.call("PING"), Reply::Simple("PONG".into()));
        }
    });
}

/// CLIENT TRACKING REDIRECT needs the id of a client that is there.
#[test]
fn redirect_needs_an_existing_client() {
    on_every_target(&Options::with(&["--threads", "3"]), |target| {
        let mut client = target.client();
        let no_client = "ERR The client ID you want redirect to does not exist";
        for id in ["99999", "0", "-1"] {
            let refused = client.call(&format!("CLIENT TRACKING ON REDIRECT {id}"));
            assert_eq!(refused.error(), Some(no_client));
        }
        let refused = client.call("CLIENT TRACKING ON REDIRECT word");
        assert_eq!(
            refused.error(),
            Some("ERR value is not an integer or out of range")
        );
        assert_eq!(client.call("CLIENT GETREDIR"), Reply::Integer(-1));
        assert_eq!(client.call("SET k v"), Reply::ok());
    });
}

/// A tracking client learns that its redirect target has gone.
/// The message is that of the server; it comes slightly later.
#[test]
fn tracking_client_learns_of_a_broken_redirect() {
    on_every_target(&Options::with(&["--threads", "3"]), |target| {
        let (told, mut writer, mut reader) = (target.client(), target.client(), target.client());
        let mut told = told;
        let id = id_of(&mut told);
        reader.call("HELLO 3");
        let request = format!("CLIENT TRACKING ON REDIRECT {id}");
        assert_eq!(reader.call(&request), Reply::ok());
        told.reset();
        let since = Instant::now();
        loop {
            assert!(
                since.elapsed() < PATIENCE,
                "the reader hears that its target is gone"
            );
            reader.call("GET k");
            writer.call("SET k new");
            if !reader.is_quiet(MOMENT) {
                break;
            }
        }
        let expected = format!(">2\r\n$21\r\ntracking-redir-broken\r\n:{id}\r\n");
        assert_eq!(String::from_utf8_lossy(&reader.reply_bytes()), expected);
        let gone = reader.call(&request);
        let no_client = "ERR The client ID you want redirect to does not exist";
        assert_eq!(gone.error(), Some(no_client));
    });
}

/// CLIENT REPLY OFF does not keep CLIENT TRACKING REDIRECT from taking effect.
#[test]
fn redirect_works_with_client_reply_off() {
    on_every_target(&Options::with(&["--threads", "3"]), |target| {
        let mut told = target.client();
        let id = id_of(&mut told);
        let track = format!("CLIENT TRACKING ON REDIRECT {id}");
        for before in ["CLIENT REPLY OFF", "CLIENT REPLY SKIP"] {
            let mut reader = target.client();
            let mut bytes = Vec::new();
            for request in [before, &track] {
                bytes.extend(respool_testkit::client::words(request));
            }
            reader.send(&bytes);
            if before.ends_with("OFF") {
                assert_eq!(reader.call("CLIENT REPLY ON"), Reply::ok());
            }
            assert_eq!(reader.call("CLIENT GETREDIR"), Reply::Integer(id));
        }
    });
}

/// The target of a redirect is not closed as idle.
/// Servers close clients that are idle, but not those that listen.
#[test]
fn redirect_target_is_never_closed_as_idle() {
    on_every_target(&Options::with(&["--threads", "1"]), |target| {
        let (mut told, mut writer) = (target.client(), target.client());
        let id = id_of(&mut told);
        told.call("SUBSCRIBE __redis__:invalidate");
        let mut readers = readers(target, id);
        writer.call("CONFIG SET timeout 2");
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(5) {
            for reader in &mut readers {
                reader.call("GET k");
            }
            std::thread::sleep(MOMENT);
        }
        writer = target.client();
        writer.call("SET k new");
        let message = ["message", "__redis__:invalidate"].map(Reply::bulk);
        let [message, channel] = message;
        let key = Reply::Array(vec![Reply::bulk("k")]);
        assert_eq!(told.reply(), Reply::Array(vec![message, channel, key]));
    });
}

/// A transaction switches redirects on, over and off in the order of its requests.
#[test]
fn transaction_switches_redirects_in_order() {
    on_every_target(&Options::with(&["--threads", "3"]), |target| {
        let (mut first, mut second) = (target.client(), target.client());
        let (mut reader, mut writer) = (target.client(), target.client());
        let ids = [id_of(&mut first), id_of(&mut second)];
        first.call("HELLO 3");
        second.call("HELLO 3");
        let on = |id| format!("CLIENT TRACKING ON REDIRECT {id}");
        let block = |reader: &mut RespClient, requests: &[&str]| {
            assert_eq!(reader.call("MULTI"), Reply::ok());
            for request in requests {
                assert_eq!(reader.call(request), Reply::Simple("QUEUED".into()));
            }
            match reader.call("EXEC") {
                Reply::Array(results) => results,
                other => panic!("EXEC is answered by {other:?}"),
            }
        };
        let asked = [&on(ids[0]), "CLIENT GETREDIR", "CLIENT TRACKING OFF"];
        let again = [&on(ids[1]), "CLIENT GETREDIR", "GET k"];
        let results = block(&mut reader, &[asked, again].concat());
        let [ok, id] = [Reply::ok(), Reply::Integer(ids[1])];
        let expected = [
            ok.clone(),
            Reply::Integer(ids[0]),
            ok.clone(),
            ok,
            id,
            Reply::Null,
        ];
        assert_eq!(results, expected);
        writer.call("SET k new");
        assert_eq!(
            String::from_utf8_lossy(&second.reply_bytes()),
            ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n"
        );
        assert!(first.is_quiet(Duration::from_millis(1)));
        // A target that does not exist is an error in the result, and changes nothing.
        let results = block(&mut reader, &[&on(99_999), "CLIENT GETREDIR"]);
        let no_client = "ERR The client ID you want redirect to does not exist";
        assert_eq!(results[0].error(), Some(no_client));
        assert_eq!(results[1], Reply::Integer(ids[1]));
    });
}

/// A tracking client is closed when the connection that brings its invalidations is lost: its cache
/// must not be believed.
#[test]
fn tracking_client_is_closed_with_the_lost_link() {
    let target = proxied(&Options::with(&["--threads", "1"]));
    let mut told = target.client();
    let id = id_of(&mut told);
    let mut reader = reader(&target, id);
    let mut server = target.direct_client();
    let Reply::Bulk(list) = server.call("CLIENT LIST") else {
        panic!("a list");
    };
    let list = String::from_utf8_lossy(&list).into_owned();
    let link = list
        .split_whitespace()
        .filter_map(|field| field.strip_prefix("redir="))
        .find(|redir| *redir != "-1")
        .expect("the server redirects to a link");
    let killed = server.call(&format!("CLIENT KILL ID {link}"));
    assert_eq!(killed, Reply::Integer(1));
    reader.expect_closed();
    assert_eq!(told.call("PING"), Reply::Simple("PONG".into()));
}

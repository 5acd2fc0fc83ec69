//! The server's rules for users hold, also for replies that respool gives itself.

use respool_testkit::client::{Reply, RespClient, words};
use respool_testkit::servers::installed;

use crate::target::{Options, Target, before_every_server};
use crate::topology::cluster::{Served, primaries, with_every_server};

/// Commands that respool answers itself, and that rules may forbid.
const ASKED: [&str; 14] = [
    "CLIENT ID",
    "CLIENT GETNAME",
    "CLIENT SETNAME me",
    "CLIENT INFO",
    "CLIENT LIST",
    "CLIENT KILL TYPE normal SKIPME yes",
    "CLIENT KILL 127.0.0.1:1",
    "CLIENT PAUSE 100000",
    "CLIENT UNPAUSE",
    "CLIENT UNBLOCK 1",
    "CLIENT NO-EVICT ON",
    "CLIENT REPLY ON",
    "CLIENT SETINFO LIB-NAME mine",
    "SELECT 3",
];

fn user(target: &Target, rules: &str) -> RespClient {
    let rules = format!("ACL SETUSER app on >secret ~* &* {rules}");
    assert_eq!(target.direct_client().call(&rules), Reply::ok());
    let mut client = target.client();
    assert_eq!(client.call("AUTH app secret"), Reply::ok());
    client
}

/// The server's NOPERM answers a forbidden command, alone and inside MULTI.
#[test]
fn forbidden_command_gets_the_servers_noperm() {
    for binary in installed() {
        let direct = Target::direct(&binary, &Options::default());
        let through = Target::proxied(&binary, &Options::with(&["--threads", "2"]));
        for rules in ["-@all +get +multi +exec +auth", "+@all -@dangerous -@admin"] {
            let said = [&direct, &through].map(|target| {
                let mut client = user(target, rules);
                let mut said = Vec::new();
                let mut note = |client: &mut RespClient, asked: &str| {
                    let reply = client.call(asked);
                    let refused = reply.error().map(str::to_owned);
                    said.push((
                        asked.to_owned(),
                        refused.filter(|text| text.starts_with("NOPERM")),
                    ));
                    reply
                };
                for asked in ASKED {
                    note(&mut client, asked);
                }
                note(&mut client, "MULTI");
                note(&mut client, "CLIENT KILL TYPE normal SKIPME yes");
                let ended = client.call("EXEC");
                assert!(
                    ended
                        .error()
                        .is_some_and(|text| text.starts_with("EXECABORT")),
                    "{ended:?}"
                );
                said
            });
            let [direct, through] = said;
            assert!(
                direct
                    .iter()
                    .filter(|(_, refused)| refused.is_some())
                    .count()
                    >= 6
            );
            assert_eq!(direct, through, "{} {rules}", binary.display());
        }
    }
}

/// CLIENT KILL and CLIENT PAUSE need the user's rights at the server, and work once it has them.
#[test]
fn client_kill_needs_the_servers_permission() {
    before_every_server(&Options::with(&["--threads", "2"]), |target| {
        let mut victims: Vec<RespClient> = (0..4).map(|_| target.client()).collect();
        for victim in &mut victims {
            victim.call("GET k");
        }
        let mut client = user(target, "+@all -@dangerous -@admin");
        for asked in ["CLIENT KILL TYPE normal SKIPME yes", "CLIENT PAUSE 100000"] {
            let refused = client.call(asked);
            assert!(
                refused
                    .error()
                    .is_some_and(|text| text.starts_with("NOPERM"))
            );
        }
        for victim in &mut victims {
            assert_eq!(victim.call("SET k v"), Reply::ok());
        }
        target.direct_client().call("ACL SETUSER app +@all");
        // respool trusts the answer about a right for a second.
        respool_testkit::time::wait_until(
            "the user may call CLIENT KILL",
            std::time::Duration::from_secs(5),
            || client.call("CLIENT KILL TYPE normal SKIPME yes") == Reply::Integer(4),
        );
    });
}

/// respool answers CLUSTER only to users that may ask a node for it.
#[test]
fn cluster_facade_asks_for_the_nodes_permission() {
    with_every_server(|binary| {
        let served = Served::start(binary, primaries(), &["--threads=1"]);
        let rules = "ACL SETUSER app on >secret ~* &* +@all -cluster";
        let addresses = served.cluster.addresses();
        for node in &addresses {
            let set = RespClient::connect(*node).call(rules);
            assert_eq!(set, Reply::ok());
        }
        let mut direct = RespClient::connect(addresses[0]);
        let mut through = served.client();
        for asked in [
            "SLOTS",
            "SHARDS",
            "NODES",
            "INFO",
            "MYID",
            "KEYSLOT a",
            "LINKS",
            "REPLICAS a",
            "SLAVES a",
        ] {
            let asked = format!("CLUSTER {asked}");
            let own = through.call(&asked);
            let is_refused = own.error().is_some_and(|text| !text.contains("node a"));
            assert!(!is_refused, "{asked}: {own:?}");
        }
        for client in [&mut direct, &mut through] {
            assert_eq!(client.call("AUTH app secret"), Reply::ok());
        }
        for asked in ["SLOTS", "NODES", "INFO", "MYID", "KEYSLOT a", "REPLICAS a"] {
            let asked = format!("CLUSTER {asked}");
            let said = direct.call(&asked);
            let refused = said.error().is_some_and(|text| text.starts_with("NOPERM"));
            assert!(refused, "{asked}: {said:?}");
            assert_eq!(through.call(&asked), said, "{asked}");
        }
        assert_eq!(through.call("READONLY"), Reply::ok());
    });
}

/// A command that respool executes inside EXEC has the rights of the user logged in at that place.
#[test]
fn auth_in_a_transaction_changes_the_rights() {
    for binary in installed() {
        let said = [
            Target::direct(&binary, &Options::default()),
            Target::proxied(&binary, &Options::with(&["--threads", "2"])),
        ]
        .map(|target| {
            let rules = "ACL SETUSER low on >low ~* &* +@all -@dangerous -@admin";
            assert_eq!(target.direct_client().call(rules), Reply::ok());
            let mut victim = target.client();
            victim.call("GET k");
            let mut client = target.client();
            for asked in [
                "MULTI",
                "CLIENT UNBLOCK 1",
                "AUTH low low",
                "CLIENT KILL TYPE normal SKIPME yes",
                "CLIENT PAUSE 100000",
            ] {
                client.call(asked);
            }
            let executed = client.call("EXEC");
            assert_eq!(victim.call("SET k v"), Reply::ok());
            (executed, client.call("ACL WHOAMI"))
        });
        let [direct, through] = said;
        assert_eq!(direct, through, "{}", binary.display());
    }
}

/// `INFO respool` needs the user's right to INFO.
#[test]
fn info_respool_needs_the_info_permission() {
    before_every_server(&Options::with(&["--threads", "1"]), |target| {
        let may_not = user(target, "+@all -info").call("INFO respool");
        let refused = may_not.error().unwrap_or_default().to_owned();
        assert!(refused.starts_with("NOPERM"), "{may_not:?}");
        let told = target.client().call("INFO respool");
        assert!(format!("{told:?}").contains("respool_version:"), "{told:?}");
    });
}

/// Without fusing, rules about the arguments of one command hold.
/// The user may MGET and MSET all keys, but GET and SET one: selectors came with Redis 7.
#[test]
fn selectors_hold_without_coalescing() {
    before_every_server(&Options::with(&["--fuse=false"]), |target| {
        let first_argument = "-@all +auth +mget +mset +get|mine +set|mine";
        let selector = "-@all +auth resetkeys ~mine +get +set (~* +mget +mset)";
        let all = [first_argument, selector];
        let is_6 = target.version < (7, 0);
        for rules in &all[..if is_6 { 1 } else { 2 }] {
            target.direct_client().call("ACL DELUSER app");
            target.direct_client().call("SET other 1");
            let mut client = user(target, rules);
            // respool learns from the replies that this user has the right.
            let both = ["GET mine", "SET mine 1"].map(|ask| words(ask).repeat(3));
            for _ in 0..3 {
                client.send(&both.concat());
                client.replies(6);
            }
            client.send(&["GET mine", "GET other"].map(words).concat());
            let got = client.replies(2);
            client.send(&["SET mine 2", "SET other 2"].map(words).concat());
            let set = client.replies(2);
            assert_eq!([&got[0], &set[0]], [&Reply::bulk("1"), &Reply::ok()]);
            for refused in [&got[1], &set[1]] {
                let error = refused.error();
                let is_refused = error.is_some_and(|error| error.starts_with("NOPERM"));
                assert!(is_refused, "{rules}: {refused:?}");
            }
            let other = target.direct_client().call("GET other");
            assert_eq!(other, Reply::bulk("1"));
        }
    });
}

/// A changed password refuses new logins with the old one. Sessions that logged in before go on.
#[test]
fn changed_password_disturbs_no_session() {
    before_every_server(&Options::with(&["--threads", "1"]), |target| {
        let mut direct = target.direct_client();
        direct.call("ACL SETUSER app on >old ~* &* +@all");
        let mut busy: Vec<RespClient> = (0..8).map(|_| target.client()).collect();
        for client in &mut busy {
            assert_eq!(client.call("AUTH app old"), Reply::ok());
        }
        direct.call("ACL SETUSER app resetpass >new");
        let mut late = target.client();
        for round in 0..30 {
            for (index, client) in busy.iter_mut().enumerate() {
                client.send(&words(&format!("ECHO {round}:{index}")).repeat(20));
            }
            let refused = late.call(["AUTH app old", "HELLO 3 AUTH app old"][round % 2]);
            let refused = refused.error().unwrap_or_default().to_owned();
            assert!(refused.starts_with("WRONGPASS"), "{refused}");
            for (index, client) in busy.iter_mut().enumerate() {
                let own = Reply::bulk(format!("{round}:{index}"));
                assert_eq!(client.replies(20), vec![own; 20]);
            }
        }
    });
}

/// A user that may not MULTI can open a transaction once it gets the right.
#[test]
fn granted_multi_opens_a_transaction() {
    before_every_server(&Options::default(), |target| {
        let mut client = user(target, "+@all -multi");
        let refused = client.call("MULTI");
        let is_denied = |text: &str| text.starts_with("NOPERM");
        assert!(refused.error().is_some_and(is_denied), "{refused:?}");
        target.direct_client().call("ACL SETUSER app +multi");
        // respool trusts the answer about a right for a second.
        respool_testkit::time::wait_until(
            "the user may call MULTI",
            std::time::Duration::from_secs(5),
            || client.call("MULTI") == Reply::ok(),
        );
        assert_eq!(client.call("PING"), Reply::Simple("QUEUED".into()));
        assert_eq!(
            client.call("EXEC"),
            Reply::Array(vec![Reply::Simple("PONG".into())])
        );
    });
}

//! Options that change at run time: CONFIG SET and CONFIG GET of names that begin with `respool.`.

use std::net::SocketAddr;
use std::time::Duration;

use respool_testkit::client::{Reply, RespClient, counter, words};
use respool_testkit::servers::Proxy;
use respool_testkit::time::wait_until;

use crate::target::{Options, Target, before_every_server, proxied, respool};

const SOON: Duration = Duration::from_secs(10);

/// The value of an option, as CONFIG GET shows it.
fn option(client: &mut RespClient, name: &str) -> String {
    let reply = client.call(&format!("CONFIG GET {name}"));
    match reply.get(name) {
        Some(Reply::Bulk(value)) => String::from_utf8_lossy(value).into_owned(),
        _ => panic!("{name}: {reply:?}"),
    }
}

/// Sends equal reads and two GETs in one batch, three times: after the first batch respool knows
/// that the user may send them. Returns the number of fused GETs and of collapsed reads.
pub(crate) fn coalesced(client: &mut RespClient) -> (u64, u64) {
    let mut count = || {
        (
            counter(client, "fused_gets"),
            counter(client, "reads_collapsed"),
        )
    };
    let before = count();
    for _ in 0..3 {
        client.send(&["LLEN l", "LLEN l", "GET a", "GET b"].map(words).concat());
        client.replies(4);
    }
    let mut count = || {
        (
            counter(client, "fused_gets"),
            counter(client, "reads_collapsed"),
        )
    };
    let after = count();
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn fusing_and_collapsing_are_switched_while_respool_runs() {
    before_every_server(&Options::default(), |target| {
        let mut client = target.client();
        client.call("MSET a 1 b 2");
        client.call("RPUSH l 1");
        // On a busy machine the requests of one write may arrive in several reads.
        wait_until("MGET joining and read collapsing are on", SOON, || {
            let (gets, reads) = coalesced(&mut client);
            gets > 0 && reads > 0
        });
        assert_eq!(client.call("CONFIG SET respool.fuse no"), Reply::ok());
        wait_until("reads are collapsed", SOON, || {
            let (gets, reads) = coalesced(&mut client);
            assert_eq!(gets, 0);
            reads > 0
        });
        assert_eq!(client.call("config set RESPOOL.Collapse NO"), Reply::ok());
        assert_eq!(coalesced(&mut client), (0, 0));
        assert_eq!(option(&mut client, "respool.fuse"), "no");
        assert_eq!(option(&mut client, "respool.collapse"), "no");
        assert_eq!(client.call("CONFIG SET respool.fuse yes"), Reply::ok());
        assert_eq!(client.call("CONFIG SET respool.collapse yes"), Reply::ok());
        wait_until(
            "MGET joining and read collapsing are on again",
            SOON,
            || {
                let (gets, reads) = coalesced(&mut client);
                gets > 0 && reads > 0
            },
        );
        // The server has no such options and got none.
        let reply = target.direct_client().call("CONFIG GET respool.*");
        assert_eq!(reply, Reply::Array(Vec::new()));
        wait_until("the log names the change", SOON, || {
            target.proxy().log().contains("options set")
        });
    });
}

#[test]
fn options_are_shown_as_a_server_shows_its_own() {
    before_every_server(&Options::with(&["--max-delay-us=300"]), |target| {
        let mut client = target.client();
        let all = |of: fn(Vec<Reply>) -> Reply| {
            let pairs = [
                ("respool.flush-rule", "balanced"),
                ("respool.max-delay-us", "300"),
                ("respool.fuse", "yes"),
                ("respool.fused-keys-max", "128"),
                ("respool.collapse", "yes"),
                ("respool.listener.flush-rule", "pool"),
                ("respool.listener.fuse", "yes"),
                ("respool.listener.collapse", "yes"),
            ];
            of(pairs
                .iter()
                .flat_map(|(name, value)| [Reply::bulk(name), Reply::bulk(value)])
                .collect())
        };
        assert_eq!(client.call("CONFIG GET respool.*"), all(Reply::Array));
        client.call("HELLO 3");
        assert_eq!(client.call("CONFIG GET RESPOOL.*"), all(Reply::Map));
        assert_eq!(
            client.call("CONFIG GET respool.nosuch"),
            Reply::Map(Vec::new())
        );
        // The server's own options go to the server.
        let maxmemory = client.call("CONFIG GET maxmemory");
        assert_eq!(maxmemory.get("maxmemory"), Some(&Reply::bulk("0")));
        assert_eq!(client.call("CONFIG SET maxmemory-samples 6"), Reply::ok());
        let mut direct = target.direct_client();
        let samples = direct.call("CONFIG GET maxmemory-samples");
        assert_eq!(samples.get("maxmemory-samples"), Some(&Reply::bulk("6")));
        // In the middle of a pipeline, a new value holds from its place on.
        let asked = [
            "SET k 1",
            "CONFIG SET respool.max-delay-us 400",
            "CONFIG GET respool.max-delay-us",
            "GET k",
            "CONFIG SET respool.max-delay-us 500",
            "CONFIG GET respool.max-delay-us",
        ];
        client.send(&asked.map(words).concat());
        let shown = |value: &str| {
            Reply::Map(vec![
                Reply::bulk("respool.max-delay-us"),
                Reply::bulk(value),
            ])
        };
        let got = client.replies(asked.len());
        assert_eq!(got[0], Reply::ok());
        assert_eq!(got[1], Reply::ok());
        assert_eq!(got[2], shown("400"));
        assert_eq!(got[3], Reply::bulk("1"));
        assert_eq!(got[4], Reply::ok());
        assert_eq!(got[5], shown("500"));
    });
}

/// An invalid CONFIG SET gets an error and changes nothing.
#[test]
fn invalid_config_set_changes_nothing() {
    before_every_server(&Options::default(), |target| {
        let is_6 = target.version < (7, 0);
        let mut client = target.client();
        for (wrong, said) in [
            ("CONFIG SET respool.nosuch 1", "Unknown option"),
            (
                "CONFIG SET respool.fuse perhaps",
                "argument must be 'yes' or 'no'",
            ),
            (
                "CONFIG SET respool.max-delay-us 0",
                "must be between 1 and 1000000",
            ),
            (
                "CONFIG SET respool.max-delay-us x",
                "parsed into an integer",
            ),
            (
                "CONFIG SET respool.fuse no maxmemory 1",
                "need a command each",
            ),
            ("CONFIG GET respool.fuse maxmemory", "need a command each"),
            ("CONFIG SET respool.fuse", ""),
            ("CONFIG SET respool.fuse no respool.collapse", ""),
            ("CONFIG SET respool.fuse no respool.nosuch 1", ""),
            ("CONFIG SET respool.fuse no respool.fuse no", ""),
        ] {
            let reply = client.call(wrong);
            let error = reply
                .error()
                .unwrap_or_else(|| panic!("{wrong}: {reply:?}"));
            assert!(error.contains(said), "{wrong}: {error}");
        }
        client.call("MULTI");
        let reply = client.call("CONFIG SET respool.fuse no");
        assert!(reply.error().is_some(), "{reply:?}");
        let reply = client.call("EXEC");
        assert!(
            reply
                .error()
                .is_some_and(|error| error.starts_with("EXECABORT")),
            "{reply:?}"
        );
        assert_eq!(option(&mut client, "respool.fuse"), "yes");
        let both = client.call("CONFIG SET respool.fuse no respool.collapse no");
        // Before Redis 7, CONFIG SET takes one option.
        assert_eq!(both.error().is_some(), is_6, "{both:?}");
        let set = if is_6 { "yes" } else { "no" };
        assert_eq!(option(&mut client, "respool.fuse"), set);
        assert_eq!(option(&mut client, "respool.collapse"), set);
        let maxmemory = client.call("CONFIG GET maxmemory");
        assert_eq!(maxmemory.get("maxmemory"), Some(&Reply::bulk("0")));
    });
}

/// CONFIG SET refuses the same values as the start. The log names the pool and the listener of the
/// changed option.
#[test]
fn config_set_checks_as_the_start_and_logs_its_place() {
    let target = proxied(&Options::with(&["--request-timeout-ms=100"]));
    let mut client = target.client();
    let refused = |reply: Reply| {
        let error = reply.error().unwrap_or_else(|| panic!("{reply:?}"));
        assert!(error.contains("request-timeout-ms is 100"), "{error}");
    };
    refused(client.call("CONFIG SET respool.max-delay-us 100000"));
    assert_eq!(option(&mut client, "respool.max-delay-us"), "200");
    let set = client.call("CONFIG SET respool.max-delay-us 99999");
    assert_eq!(set, Reply::ok());
    assert_eq!(
        client.call("CONFIG SET respool.flush-rule latency"),
        Reply::ok()
    );
    let set = client.call("CONFIG SET respool.max-delay-us 1000000");
    assert_eq!(set, Reply::ok(), "nothing is held");
    refused(client.call("CONFIG SET respool.flush-rule balanced"));
    let listener = format!("listener=\"{}\"", target.proxy().address());
    // A separate thread writes the log.
    wait_until("the log names the options", SOON, || {
        let log = target.proxy().log();
        let line = log.lines().find(|line| line.contains("options set"));
        line.is_some_and(|line| line.contains("pool=") && line.contains(&listener))
    });
}

/// CONFIG SET of respool's options needs the user's right to CONFIG SET at the server.
#[test]
fn config_set_needs_the_servers_permission() {
    before_every_server(&Options::default(), |target| {
        let mut direct = target.direct_client();
        direct.call("ACL SETUSER some on >secret ~* +@all -config");
        direct.call("ACL SETUSER reader on >secret ~* +@all -config +config|get");
        for user in ["some", "reader"] {
            let mut client = target.client();
            assert_eq!(client.call(&format!("AUTH {user} secret")), Reply::ok());
            for ask in ["CONFIG SET respool.fuse no", "CONFIG GET respool.fuse"] {
                let mut alone = target.direct_client();
                alone.call(&format!("AUTH {user} secret"));
                let (got, said) = (client.call(ask), alone.call(ask));
                match said.error() {
                    Some(text) if text.starts_with("NOPERM") => assert_eq!(got, said, "{ask}"),
                    _ => assert_eq!(got.get("respool.fuse"), Some(&Reply::bulk("yes")), "{ask}"),
                }
            }
        }
        let mut client = target.client();
        assert_eq!(option(&mut client, "respool.fuse"), "yes");
    });
}

/// When CONFIG SET returns OK, the value holds in every worker.
#[test]
fn config_set_holds_in_every_worker_once_confirmed() {
    let target = proxied(&Options::with(&["--threads=3"]));
    let mut clients: Vec<RespClient> = (0..30).map(|_| target.client()).collect();
    for round in 0..20_u32 {
        let value = (200 + round).to_string();
        let by = clients.len() * round as usize / 20;
        let set = format!("CONFIG SET respool.max-delay-us {value}");
        assert_eq!(clients[by].call(&set), Reply::ok());
        for client in &mut clients {
            assert_eq!(option(client, "respool.max-delay-us"), value);
        }
    }
}

/// With two respools in a row, CONFIG SET can reach the one next to the server.
#[test]
fn config_set_reaches_the_inner_respool_of_two() {
    before_every_server(&Options::default(), |target| {
        let in_front = Proxy::start(
            &respool(),
            &[
                "--max-delay-us=321".to_owned(),
                format!("--backend=redis://{}", target.address()),
            ],
        );
        let in_front = in_front.unwrap_or_else(|error| panic!("{error}"));
        let mut clients = [in_front.address(), target.address()].map(RespClient::connect);
        wait_until("respool has connected to its server", SOON, || {
            clients[0].call("PING") == Reply::Simple("PONG".into())
        });
        let name = "respool.max-delay-us";
        let shown =
            |clients: &mut [RespClient; 2]| clients.each_mut().map(|client| option(client, name));
        assert_eq!(shown(&mut clients), ["200"; 2]);
        for (by, value) in [(0, "400"), (1, "500")] {
            let set = clients[by].call(&format!("CONFIG SET {name} {value}"));
            assert_eq!(set, Reply::ok());
            assert_eq!(shown(&mut clients), [value; 2]);
        }
        assert!(!in_front.log().contains("options set"));
    });
}

/// The addresses of respool's listeners, in their order.
fn listeners(target: &Target) -> Vec<SocketAddr> {
    let log = target.proxy().log();
    let line = log.lines().find(|line| line.contains("ready"));
    let word = line.and_then(|line| {
        line.split(' ')
            .find_map(|word| word.strip_prefix("listen="))
    });
    let addresses = word.unwrap_or_else(|| panic!("{log}")).split(',');
    addresses
        .map(|address| address.parse().expect("an address"))
        .collect()
}

#[test]
fn listener_option_applies_to_its_listener_only() {
    let target = proxied(&Options::with(&["--listen=127.0.0.1:0"]));
    wait_until("the log says `ready`", Duration::from_secs(5), || {
        target.proxy().log().contains("ready")
    });
    let addresses = listeners(&target);
    assert_eq!(addresses.len(), 2);
    let [mut one, mut two] = [addresses[0], addresses[1]].map(RespClient::connect);
    one.call("MSET a 1 b 2");
    one.call("RPUSH l 1");
    assert_eq!(two.call("CONFIG SET respool.listener.fuse no"), Reply::ok());
    assert_eq!(option(&mut two, "respool.listener.fuse"), "no");
    assert_eq!(option(&mut one, "respool.listener.fuse"), "yes");
    assert_eq!(option(&mut two, "respool.fuse"), "yes", "the pool's");
    assert_eq!(coalesced(&mut two).0, 0);
    let (gets, reads) = coalesced(&mut one);
    assert!(gets > 0 && reads > 0);
    assert_eq!(
        two.call("CONFIG SET respool.listener.collapse no"),
        Reply::ok()
    );
    assert_eq!(coalesced(&mut two), (0, 0));
    // Within one MGET, too, a GET does not take the reply of an equal GET.
    assert_eq!(
        two.call("CONFIG SET respool.listener.fuse yes"),
        Reply::ok()
    );
    let before = counter(&mut two, "reads_collapsed");
    for _ in 0..3 {
        two.send(&words("GET a").repeat(6));
        assert_eq!(two.replies(6), vec![Reply::bulk("1"); 6]);
    }
    assert_eq!(counter(&mut two, "reads_collapsed"), before);
    // An option of the pool holds for both.
    assert_eq!(two.call("CONFIG SET respool.fuse no"), Reply::ok());
    assert_eq!(coalesced(&mut one).0, 0);
}

//! Logins against the server's own users: withdrawn logins, and guessed passwords.

use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use respool_testkit::client::{Reply, RespClient, words};
use respool_testkit::servers::{Proxy, ServerProcess, installed};
use respool_testkit::time::wait_until;
use respool_testkit::topologies::{
    ClusterSettings, Sentinels, SentinelsSettings, Shards, TestCluster, cluster_url, sentinel_url,
    sharded_url,
};
use tempfile::TempDir;

use crate::target::{Options, Target, before_every_server, respool};
use crate::topology::cluster::{Served, primaries, some_server};
use crate::topology::sentinel;

/// How soon a change must be seen.
const SOON: Duration = Duration::from_secs(5);

fn must_log_in(reply: &Reply) -> bool {
    reply.error().is_some_and(|text| text.starts_with("NOAUTH"))
}

/// Two checks of the login, with the default of `login-check-ms`. When the server withdraws the
/// login, a session from before the last good check stays; a later one is checked again.
const TWO_CHECKS: Duration = Duration::from_millis(1_200);

/// A client that comes now.
fn newcomer_must_log_in(target: &Target) -> bool {
    must_log_in(&target.client().call("GET key"))
}

/// After the server got a password, or switched its default user off, new clients of respool must
/// log in. Older clients stay logged in, as at the server.
#[test]
fn newcomers_must_log_in_once_the_server_wants_it() {
    for change in ["CONFIG SET requirepass new", "ACL SETUSER default off"] {
        before_every_server(&Options::with(&["--threads", "2"]), |target| {
            let mut direct = target.direct_client();
            let app = "ACL SETUSER app on >secret ~* &* +@all";
            assert_eq!(direct.call(app), Reply::ok());
            let mut old = target.client();
            assert_eq!(old.call("SET key value"), Reply::ok());
            thread::sleep(TWO_CHECKS);
            assert_eq!(direct.call(change), Reply::ok());
            // Both workers detect the change.
            wait_until("new clients must log in", SOON, || {
                (0..16).all(|_| newcomer_must_log_in(target))
            });
            let mut newcomer = target.client();
            for asked in ["CONFIG GET requirepass", "SET key 2", "SELECT 1", "HELLO 3"] {
                assert!(must_log_in(&newcomer.call(asked)), "{change}: {asked}");
            }
            assert_eq!(newcomer.call("AUTH app secret"), Reply::ok());
            assert_eq!(newcomer.call("GET key"), Reply::bulk("value"));
            assert_eq!(old.call("GET key"), Reply::bulk("value"));
            let log = target.proxy().log();
            let lines = |level: &str, line: &str| {
                let is_such = |text: &&str| text.contains(level) && text.contains(line);
                log.lines().filter(is_such).count()
            };
            // One line, though both workers detect the change.
            assert_eq!(lines("WARN", "login withdrawn"), 1, "{log}");
            let undone = direct.call_args(&["CONFIG", "SET", "requirepass", ""]);
            assert_eq!(undone, Reply::ok());
            let undone = direct.call("ACL SETUSER default on nopass");
            assert_eq!(undone, Reply::ok());
            wait_until("new clients need no password", SOON, || {
                (0..16).all(|_| !newcomer_must_log_in(target))
            });
            let is_said = || {
                let log = target.proxy().log();
                let is_end = |line: &str| line.contains("INFO login accepted again");
                log.lines().any(is_end)
            };
            wait_until("the log says that the login counts again", SOON, is_said);
        });
    }
}

/// After the user of the URL got another password, was switched off or deleted, new clients must
/// log in.
#[test]
fn newcomers_must_log_in_once_the_configured_user_changes() {
    let changes = [
        "ACL SETUSER app resetpass >other",
        "ACL SETUSER app off",
        "ACL DELUSER app",
    ];
    for binary in installed() {
        for change in changes {
            let target = Target::direct(&binary, &Options::default());
            let mut direct = target.direct_client();
            let set = "ACL SETUSER app on >secret ~* &* +@all";
            assert_eq!(direct.call(set), Reply::ok());
            let url = format!("--backend=redis://app:secret@{}", target.server.address());
            let args = ["--threads=1", url.as_str()];
            let proxy = Proxy::start(&respool(), &args).unwrap_or_else(|error| panic!("{error}"));
            let client = || RespClient::connect(proxy.address());
            let mut old = client();
            assert_eq!(old.call("SET key value"), Reply::ok());
            thread::sleep(TWO_CHECKS);
            assert!(direct.call(change).error().is_none());
            wait_until("new clients must log in", SOON, || {
                must_log_in(&client().call("GET key"))
            });
            // The server closes the connections of a user that it deletes.
            if !change.contains("DELUSER") {
                assert_eq!(old.call("GET key"), Reply::bulk("value"), "{change}");
            }
            let mut newcomer = client();
            assert_eq!(newcomer.call("AUTH default any"), Reply::ok());
            assert_eq!(newcomer.call("GET key"), Reply::bulk("value"));
            assert_eq!(direct.call("ACL DELUSER app").error(), None);
            assert_eq!(direct.call(set), Reply::ok());
            wait_until("new clients need no password", SOON, || {
                client().call("GET key") == Reply::bulk("value")
            });
        }
    }
}

/// After one of several servers got a password, new clients must log in.
#[test]
fn newcomers_must_log_in_once_any_shard_wants_it() {
    for binary in installed() {
        let start =
            |_| ServerProcess::start(&binary, &[""; 0]).unwrap_or_else(|error| panic!("{error}"));
        let servers: Vec<ServerProcess> = (0..3).map(start).collect();
        let hosts: Vec<String> = servers
            .iter()
            .map(|server| server.address().to_string())
            .collect();
        let url = format!("--backend=redis-sharded://{}", hosts.join(","));
        let proxy = Proxy::start(&respool(), &["--threads=1", url.as_str()]);
        let proxy = proxy.unwrap_or_else(|error| panic!("{error}"));
        let client = || RespClient::connect(proxy.address());
        let mut old = client();
        let write_all = |client: &mut RespClient| {
            (0..30).all(|key| client.call(&format!("SET key:{key} 1")) == Reply::ok())
        };
        assert!(write_all(&mut old));
        thread::sleep(TWO_CHECKS);
        let mut direct = RespClient::connect(servers[2].address());
        direct.call("CONFIG SET requirepass new");
        wait_until("new clients must log in", SOON, || {
            must_log_in(&client().call("GET key"))
        });
        assert!(write_all(&mut old), "the old session keeps its links");
        for server in &servers[..2] {
            RespClient::connect(server.address()).call("CONFIG SET requirepass new");
        }
        let mut newcomer = client();
        assert_eq!(newcomer.call("AUTH new"), Reply::ok());
        assert!(write_all(&mut newcomer));
        thread::sleep(Duration::from_millis(50));
        assert!(write_all(&mut old));
    }
}

/// A pool of one kind.
enum PoolOfKind {
    Plain(ServerProcess),
    Sharded(Shards),
    Cluster(TestCluster),
    Watched(Sentinels),
    /// The second one has the keys that begin with `p:`.
    Prefixes([ServerProcess; 2]),
}

impl PoolOfKind {
    /// One of each.
    fn start_all() -> Vec<PoolOfKind> {
        let binary = some_server();
        let server = || ServerProcess::start(&binary, &[""; 0]);
        let settings = SentinelsSettings {
            watched: 1,
            ..SentinelsSettings::default()
        };
        let all = || -> std::io::Result<Vec<PoolOfKind>> {
            Ok(vec![
                PoolOfKind::Plain(server()?),
                PoolOfKind::Sharded(Shards::start(&binary, 2, &[""; 0])?),
                PoolOfKind::Cluster(TestCluster::start(&binary, primaries())?),
                PoolOfKind::Watched(Sentinels::start(&sentinel::some_server(9), &settings)?),
                PoolOfKind::Prefixes([server()?, server()?]),
            ])
        };
        all().unwrap_or_else(|error| panic!("{error}"))
    }

    fn name(&self) -> &'static str {
        match self {
            PoolOfKind::Plain(_) => "plain",
            PoolOfKind::Sharded(_) => "sharded",
            PoolOfKind::Cluster(_) => "Cluster",
            PoolOfKind::Watched(_) => "Sentinels",
            PoolOfKind::Prefixes(_) => "prefixes",
        }
    }

    /// The servers that have keys.
    fn servers(&self) -> Vec<SocketAddr> {
        match self {
            PoolOfKind::Plain(server) => vec![server.address()],
            PoolOfKind::Sharded(shards) => shards.addresses(),
            PoolOfKind::Cluster(cluster) => cluster.addresses(),
            PoolOfKind::Watched(sentinels) => {
                let primary = sentinels.primary(0);
                let primary = primary.unwrap_or_else(|error| panic!("{error}"));
                vec![sentinels.watched(0).server(primary).address()]
            }
            PoolOfKind::Prefixes(servers) => {
                servers.iter().map(|server| server.address()).collect()
            }
        }
    }

    /// A respool before it; the folder has its file.
    fn proxy(&self) -> (Proxy, TempDir) {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let file = folder.path().join("respool.toml");
        let servers = self.servers();
        let (backend, prefixes) = match self {
            PoolOfKind::Plain(_) => (format!("redis://{}", servers[0]), String::new()),
            PoolOfKind::Sharded(_) => (sharded_url(&servers), String::new()),
            PoolOfKind::Cluster(_) => (cluster_url(&servers), String::new()),
            PoolOfKind::Watched(sentinels) => {
                let name = sentinels.watched(0).name();
                (sentinel_url(&sentinels.addresses(), name), String::new())
            }
            PoolOfKind::Prefixes(_) => {
                let part = format!("[pool.all.prefixes]\n'p:' = 'redis://{}'\n", servers[1]);
                (format!("redis://{}", servers[0]), part)
            }
        };
        let proxy = Proxy::start_with(&respool(), |port| {
            let text = format!(
                "threads = 1\n[pool.all]\nlisten = '127.0.0.1:{port}'\nbackend = '{backend}'\n{prefixes}"
            );
            write(&file, &text);
            vec!["--config".into(), file.display().to_string()]
        });
        (proxy.unwrap_or_else(|error| panic!("{error}")), folder)
    }
}

fn write(file: &Path, text: &str) {
    std::fs::write(file, text).unwrap_or_else(|error| panic!("{error}"));
}

/// How many connections a server has ever accepted.
fn accepted(direct: &mut RespClient) -> u64 {
    let Reply::Bulk(info) = direct.call("INFO stats") else {
        panic!("INFO is a bulk");
    };
    let info = String::from_utf8_lossy(&info).into_owned();
    let count = info
        .lines()
        .find_map(|line| line.strip_prefix("total_connections_received:"));
    count.and_then(|count| count.parse().ok()).expect("a count")
}

/// Five hundred wrong passwords from a hundred connections at once use two probing links to each
/// server.
#[test]
fn guesses_make_few_connections_before_every_kind() {
    for kind in PoolOfKind::start_all() {
        let (proxy, _folder) = kind.proxy();
        let mut settled = RespClient::connect(proxy.address());
        let name = kind.name();
        wait_until("the pool answers", SOON, || {
            (0..30).all(|key| settled.call(&format!("SET k:{key} 1")) == Reply::ok())
        });
        let servers = kind.servers().into_iter();
        let mut direct: Vec<RespClient> = servers.map(RespClient::connect).collect();
        let before: Vec<u64> = direct.iter_mut().map(accepted).collect();
        let mut guessers: Vec<RespClient> = (0..100)
            .map(|_| RespClient::connect(proxy.address()))
            .collect();
        for (number, guesser) in guessers.iter_mut().enumerate() {
            for guess in 0..5 {
                let asked = format!("AUTH user{number} wrong{guess}");
                guesser.send(&respool_testkit::client::words(&asked));
            }
        }
        for guesser in &mut guessers {
            for reply in guesser.replies(5) {
                let refused = reply.error().unwrap_or_default();
                assert!(refused.starts_with("WRONGPASS "), "{name}: {reply:?}");
            }
        }
        let after: Vec<u64> = direct.iter_mut().map(accepted).collect();
        for (before, after) in before.iter().zip(&after) {
            // The other ones are of checks and of a moment.
            assert!(after - before <= 10, "{name}: {before} became {after}");
        }
        assert_eq!(settled.call("GET k:1"), Reply::bulk("1"), "{name}");
        let log = proxy.log();
        assert_eq!(log.matches("logins refused").count(), 1, "{name}: {log}");
    }
}

/// The users of a replica may differ from those of its primary.
#[test]
fn replica_that_wants_a_password_disturbs_no_session() {
    let settings = ClusterSettings::default();
    let served = Served::start_with(
        &some_server(),
        settings,
        &["--threads=1"],
        "?reads=prefer-replica",
    );
    served.whole();
    let [mut subscriber, mut waiting, mut reader] = [(); 3].map(|()| served.client());
    subscriber.call("SUBSCRIBE news");
    waiting.send(&words("BLPOP list 0"));
    assert_eq!(reader.call("SET key value"), Reply::ok());
    for node in served.cluster.nodes() {
        let mut direct = RespClient::connect(node.address());
        let Reply::Array(role) = direct.call("ROLE") else {
            panic!("the node has a role");
        };
        if role[0] == Reply::bulk("slave") {
            assert_eq!(direct.call("CONFIG SET requirepass new"), Reply::ok());
            direct.call("CLIENT KILL TYPE normal SKIPME yes");
        }
    }
    wait_until("links to replicas are lost", SOON, || {
        served.proxy.log().contains("NOAUTH")
    });
    thread::sleep(TWO_CHECKS);
    assert_eq!(reader.call("GET key"), Reply::bulk("value"));
    assert_eq!(reader.call("PUBLISH news 1"), Reply::Integer(1));
    assert_eq!(reader.call("RPUSH list a"), Reply::Integer(1));
    assert!(matches!(waiting.reply(), Reply::Array(_)));
    let log = served.proxy.log();
    assert!(!log.contains("new sessions must authenticate"), "{log}");
}

/// After the servers got a password, new clients must log in, in every kind of pool.
#[test]
fn newcomers_must_log_in_before_every_kind() {
    for kind in PoolOfKind::start_all() {
        let (proxy, _folder) = kind.proxy();
        let name = kind.name();
        let client = || RespClient::connect(proxy.address());
        let mut old = client();
        let write_all = |client: &mut RespClient| {
            (0..30).all(|key| {
                ["k", "p"]
                    .iter()
                    .all(|prefix| client.call(&format!("SET {prefix}:{key} 1")) == Reply::ok())
            })
        };
        wait_until("the pool answers", SOON, || write_all(&mut old));
        thread::sleep(TWO_CHECKS);
        let servers = kind.servers();
        let set = |server: &SocketAddr, old: &str, password: &str| {
            let mut direct = RespClient::connect(*server);
            if !old.is_empty() {
                assert_eq!(direct.call(&format!("AUTH {old}")), Reply::ok());
            }
            let set = direct.call_args(&["CONFIG", "SET", "requirepass", password]);
            assert_eq!(set, Reply::ok(), "{name}");
        };
        // The last one alone: of a pool with prefixes, the part.
        let last = servers.last().expect("the pool has servers");
        set(last, "", "new");
        let claim = format!("{name}: new clients must log in");
        wait_until(&claim, SOON, || must_log_in(&client().call("GET k:1")));
        assert!(
            must_log_in(&client().call("CONFIG GET requirepass")),
            "{name}"
        );
        assert!(
            write_all(&mut old),
            "{name}: the old session keeps its links"
        );
        for server in &servers[..servers.len() - 1] {
            set(server, "", "new");
        }
        let mut newcomer = client();
        assert_eq!(newcomer.call("AUTH new"), Reply::ok(), "{name}");
        assert!(write_all(&mut newcomer), "{name}");
        for server in &servers {
            set(server, "new", "");
        }
        let claim = format!("{name}: new clients need no password");
        wait_until(&claim, SOON, || {
            client().call("GET k:1") == Reply::bulk("1")
        });
    }
}

/// A client selects a database and then logs in as a user that may not SELECT. It stays in its
/// database.
#[test]
fn login_keeps_a_database_that_it_may_not_select() {
    before_every_server(&Options::with(&["--threads", "1"]), |target| {
        let mut direct = target.direct_client();
        let bob = "ACL SETUSER bob on >pw ~* &* +acl +get +auth";
        assert_eq!(direct.call(bob), Reply::ok());
        assert_eq!(direct.call("SELECT 9"), Reply::ok());
        assert_eq!(direct.call("SET key nine"), Reply::ok());
        for mut client in [target.direct_client(), target.client()] {
            assert_eq!(client.call("SELECT 9"), Reply::ok());
            assert_eq!(client.call("AUTH bob pw"), Reply::ok());
            assert_eq!(client.call("ACL WHOAMI"), Reply::bulk("bob"));
            assert_eq!(client.call("GET key"), Reply::bulk("nine"));
            for refused in ["SELECT 9", "SELECT 3", "SET key 1"] {
                let said = client.call(refused);
                let text = said.error().unwrap_or_default();
                assert!(text.starts_with("NOPERM"), "{refused}: {said:?}");
            }
            assert_eq!(client.call("GET key"), Reply::bulk("nine"));
        }
    });
}

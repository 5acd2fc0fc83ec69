//! Counters of `/metrics` never fall, also when servers leave and labels change.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use respool_testkit::client::{Reply, RespClient};
use respool_testkit::servers::{Proxy, ServerProcess, any_server};
use respool_testkit::time::wait_until;
use respool_testkit::topologies::{Sentinels, SentinelsSettings};

use super::metrics::{Labels, get, pages_of, parse};
use crate::target::respool;
use crate::topology::sentinel;

const SOON: Duration = Duration::from_secs(30);

/// The counters of all pages so far.
struct SeenCounters {
    pages: SocketAddr,
    /// The last value of each series that may not fall.
    last: BTreeMap<(String, Labels), f64>,
}

impl SeenCounters {
    fn new(pages: SocketAddr) -> SeenCounters {
        SeenCounters {
            pages,
            last: BTreeMap::new(),
        }
    }

    /// Reads a page, and compares its counters with those of all pages before.
    fn look(&mut self) {
        for (name, labels, value) in parse(&get(self.pages, "/metrics").body) {
            if !["_total", "_bucket", "_count", "_sum"]
                .iter()
                .any(|suffix| name.ends_with(suffix))
            {
                continue;
            }
            let label = (name, labels);
            let before = self.last.get(&label).copied().unwrap_or(0.0);
            assert!(before <= value, "{label:?} falls from {before} to {value}");
            self.last.insert(label, value);
        }
    }

    /// Looks again and again until `holds`.
    fn look_until(&mut self, claim: &str, mut holds: impl FnMut(&SeenCounters) -> bool) {
        wait_until(claim, SOON, || {
            self.look();
            thread::sleep(Duration::from_millis(20));
            holds(self)
        });
    }

    /// The connections to this server that were lost.
    fn lost(&self, server: SocketAddr) -> f64 {
        let server = server.to_string();
        let is_it = |(name, labels): &(String, Labels)| {
            name == "respool_server_connections_lost_total" && labels["server"] == server
        };
        let found = self.last.iter().find(|(label, _)| is_it(label));
        found.map_or(0.0, |(_, value)| *value)
    }
}

/// Closes the links of respool at this server `times` times.
fn lose_links(admin: &mut RespClient, proxy: SocketAddr, times: usize) {
    for _ in 0..times {
        let closed = admin.call("CLIENT KILL TYPE normal SKIPME yes");
        assert!(matches!(closed, Reply::Integer(1..)), "{closed:?}");
        wait_until("the link is up again", SOON, || {
            RespClient::connect(proxy).call("GET key").error().is_none()
        });
        // A link that was up for less than a second is not connected again at once.
        thread::sleep(Duration::from_millis(1_100));
    }
}

/// A reload changes only the password: for a while the pool has its server twice, with the same
/// labels. The counters go on from those of the old one.
#[test]
fn counters_go_on_when_a_password_changes() {
    let server = ServerProcess::start(&any_server(), &["--requirepass", "one"]);
    let server = server.unwrap_or_else(|error| panic!("{error}"));
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("respool.toml");
    let write = |port: u16, password: &str| {
        let socket = folder.path().join("control.sock");
        let text = format!(
            "threads = 2\ncontrol-socket = '{}'\nmetrics-listen = '127.0.0.1:0'\n\
             [pool.main]\nlisten = '127.0.0.1:{port}'\nbackend = 'redis://:{password}@{}'\n",
            socket.display(),
            server.address()
        );
        fs::write(&file, text).expect("the file can be written");
    };
    let proxy = Proxy::start_with(&respool(), |port| {
        write(port, "one");
        vec!["--config".into(), file.display().to_string()]
    });
    let proxy = proxy.unwrap_or_else(|error| panic!("{error}"));
    let mut watched = SeenCounters::new(pages_of(&proxy));
    let mut admin = RespClient::connect(server.address());
    assert_eq!(admin.call("AUTH one"), Reply::ok());
    let mut client = RespClient::connect(proxy.address());
    assert_eq!(client.call("SET key value"), Reply::ok());
    watched.look();
    lose_links(&mut admin, proxy.address(), 2);
    watched.look_until("losses are counted", |watched| {
        watched.lost(server.address()) >= 2.0
    });
    let before = watched.lost(server.address());
    let old = links(&mut admin);
    assert!(!old.is_empty());
    assert_eq!(admin.call("CONFIG SET requirepass two"), Reply::ok());
    write(proxy.address().port(), "two");
    let output = Command::new(respool())
        .args(["reload", "--config"])
        .arg(&file)
        .output()
        .expect("respool runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && said.contains("backend"),
        "{said}"
    );
    watched.look_until("the links of the old login are gone", |_| {
        assert_eq!(client.call("GET key"), Reply::bulk("value"));
        links(&mut admin).is_disjoint(&old)
    });
    // Reports are half a second old.
    let reported = Instant::now() + Duration::from_millis(1_200);
    watched.look_until("a report without them", |_| Instant::now() > reported);
    assert!(watched.lost(server.address()) >= before);
    let before = watched.lost(server.address());
    lose_links(&mut admin, proxy.address(), 1);
    watched.look_until("more losses are counted", |watched| {
        watched.lost(server.address()) > before
    });
}

/// The connections of others at a server, by their ids.
fn links(admin: &mut RespClient) -> BTreeSet<String> {
    let own = admin.call("CLIENT ID");
    let Reply::Integer(own) = own else {
        panic!("{own:?}");
    };
    let list = admin.call("CLIENT LIST TYPE normal");
    let text = String::from_utf8_lossy(list.text().expect("a text")).into_owned();
    let ids = text.lines().filter_map(|line| line.split(' ').next());
    let others = ids.filter(|id| *id != format!("id={own}"));
    others.map(str::to_owned).collect()
}

/// Sentinels promote a replica and then the first primary again. The counters of each address go
/// on where they were.
#[test]
fn counters_go_on_over_failovers() {
    let settings = SentinelsSettings {
        sentinels: 1,
        quorum: 1,
        watched: 1,
        ..SentinelsSettings::default()
    };
    let sentinels = Sentinels::start(&any_server(), &settings);
    let sentinels = sentinels.unwrap_or_else(|error| panic!("{error}"));
    let args = ["--threads=2", "--metrics-listen=127.0.0.1:0"];
    let proxy = sentinel::proxy_before(&sentinels, &settings, &args);
    let mut watched = SeenCounters::new(pages_of(&proxy));
    let mut client = RespClient::connect(proxy.address());
    wait_until("the primary is known", SOON, || {
        client.call("SET key value") == Reply::ok()
    });
    let primary = || {
        sentinels
            .primary(0)
            .unwrap_or_else(|error| panic!("{error}"))
    };
    let mut lost = Vec::new();
    for round in 0..3 {
        let before = primary();
        let address = sentinels.watched(0).server(before).address();
        let mut admin = RespClient::connect(address);
        // The last request of the client has left on one of these.
        let old = links(&mut admin);
        let closed = admin.call("CLIENT KILL TYPE normal SKIPME yes");
        assert!(matches!(closed, Reply::Integer(1..)), "{closed:?}");
        assert!(!old.is_empty() && links(&mut admin).is_disjoint(&old));
        let earlier = watched.lost(address);
        watched.look_until("a loss is counted", |watched| {
            watched.lost(address) > earlier
        });
        lost.push((address, watched.lost(address)));
        if round == 2 {
            break;
        }
        let whole = sentinels.wait_until_whole(SOON);
        whole.unwrap_or_else(|error| panic!("{error}"));
        let begun = sentinels.begin_failover(0, 0);
        begun.unwrap_or_else(|error| panic!("{error}"));
        watched.look_until("another primary serves", |_| {
            let now = sentinels.primary(0).unwrap_or(before);
            now != before && client.call("SET key value") == Reply::ok()
        });
    }
    let first = lost[0].0;
    assert!(lost[1].0 != first && lost[2].0 == first, "{lost:?}");
    assert!(lost[2].1 > lost[0].1, "{lost:?}");
}

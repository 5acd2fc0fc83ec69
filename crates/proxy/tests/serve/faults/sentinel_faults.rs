//! Wrong answers of Sentinels: unknown names, nonsense, and stale addresses.
//!
//! The Sentinels are fakes that answer as a test wants; the servers are real.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use respool_testkit::client::{Reply, RespClient, is_not_executed, pipelined, words};
use respool_testkit::fake::{Fakes, NodeRequest, bulk};
use respool_testkit::servers::{Proxy, ReservedPort, ServerProcess, any_server};
use respool_testkit::time::wait_until;

use crate::faults::server_failures::{RequestFate, fate};
use crate::target::respool;

/// The longest time that a test waits, on a machine that has other things to do.
const SOON: Duration = Duration::from_secs(20);

/// Within which nothing comes, so nothing will.
const A_WHILE: Duration = Duration::from_millis(300);

/// A Sentinel's answers about the primary `m`.
#[derive(Clone, Default)]
struct SentinelAnswers {
    /// The address of the primary; `None`: the Sentinel does not know the name.
    primary: Option<SocketAddr>,
    epoch: u64,
    peers: Vec<SocketAddr>,
    /// Whether the Sentinel refuses every connection.
    refuses: bool,
    /// Whether the Sentinel publishes no event.
    mute: bool,
    /// The reply to any request instead of the others, if set.
    instead: Option<String>,
}

struct Sentinel {
    fakes: Fakes,
    says: Arc<Mutex<SentinelAnswers>>,
}

impl Sentinel {
    fn start(primary: SocketAddr, epoch: u64) -> Sentinel {
        let says = SentinelAnswers {
            primary: Some(primary),
            epoch,
            ..SentinelAnswers::default()
        };
        let says = Arc::new(Mutex::new(says));
        let shared = Arc::clone(&says);
        let fakes = Fakes::start(1, move |asked| {
            let says = shared.lock().expect("no holder panics").clone();
            answer(asked, &says)
        });
        Sentinel { fakes, says }
    }

    fn address(&self) -> SocketAddr {
        self.fakes.addresses()[0]
    }

    /// Changes its answers from now on. No event tells of it.
    fn will_say(&self, change: impl FnOnce(&mut SentinelAnswers)) {
        change(&mut self.says.lock().expect("no holder panics"));
    }

    /// Something has happened to the name.
    fn tell(&self) {
        self.fakes
            .tell(&message("+set", "master m 127.0.0.1 1 quorum 2"));
    }

    fn is_heard(&self) {
        let before = self.surveys();
        self.tell();
        wait_until("respool asks the Sentinel again", SOON, || {
            self.surveys() > before
        });
        // Time for respool to take the answers.
        thread::sleep(A_WHILE);
    }

    fn surveys(&self) -> usize {
        self.fakes.count("SENTINEL MYID")
    }
}

fn message(channel: &str, text: &str) -> String {
    format!(">3\r\n{}{}{}", bulk("message"), bulk(channel), bulk(text))
}

fn answer(asked: &NodeRequest<'_>, says: &SentinelAnswers) -> Option<String> {
    const UNKNOWN: &str = "-ERR No such master with that name\r\n";
    if asked.name() == "HELLO" && says.refuses {
        return Some("-ERR not yet\r\n".to_owned());
    }
    if asked.name() == "HELLO" {
        return None;
    }
    if asked.name() == "SUBSCRIBE" && says.mute {
        return Some(
            "-NOPERM this user has no permissions to run the 'subscribe' command\r\n".to_owned(),
        );
    }
    if asked.name() == "SUBSCRIBE" {
        return Some(String::new());
    }
    if let Some(instead) = &says.instead {
        return Some(instead.clone());
    }
    if asked.is("SENTINEL MYID") {
        return Some(bulk(&format!("{:040}", asked.all[0].port())));
    }
    let name = asked.words.get(1).map(|word| word.to_ascii_uppercase());
    let Some(primary) = says.primary else {
        return Some(match name.as_deref() {
            Some("GET-MASTER-ADDR-BY-NAME") => "*-1\r\n".to_owned(),
            _ => UNKNOWN.to_owned(),
        });
    };
    let (ip, port) = (primary.ip().to_string(), primary.port().to_string());
    Some(match name.as_deref() {
        Some("MASTER") => list(&[
            ("name", "m"),
            ("ip", &ip),
            ("port", &port),
            ("flags", "master"),
            ("config-epoch", &says.epoch.to_string()),
            ("quorum", "2"),
            ("num-slaves", "1"),
            ("num-other-sentinels", &says.peers.len().to_string()),
        ]),
        Some("GET-MASTER-ADDR-BY-NAME") => format!("*2\r\n{}{}", bulk(&ip), bulk(&port)),
        Some("SENTINELS") => {
            let one = |peer: &SocketAddr| {
                list(&[
                    ("runid", &format!("{:040}", peer.port())),
                    ("ip", &peer.ip().to_string()),
                    ("port", &peer.port().to_string()),
                    ("flags", "sentinel"),
                ])
            };
            let peers: Vec<String> = says.peers.iter().map(one).collect();
            format!("*{}\r\n{}", peers.len(), peers.concat())
        }
        _ => "*0\r\n".to_owned(),
    })
}

fn list(fields: &[(&str, &str)]) -> String {
    let fields: String = fields
        .iter()
        .map(|(name, value)| bulk(name) + &bulk(value))
        .collect();
    format!("*{}\r\n{fields}", fields.matches('$').count())
}

/// Two servers, each with its number as a value, and a respool that may use one of them.
struct TwoServers {
    servers: [ServerProcess; 2],
    proxy: Option<Proxy>,
}

impl Drop for TwoServers {
    fn drop(&mut self) {
        let Some(proxy) = &self.proxy else { return };
        let log = proxy.log();
        if thread::panicking() {
            eprintln!("its log:\n{log}");
        } else {
            assert!(!log.contains("panicked at"), "{log}");
        }
    }
}

impl TwoServers {
    fn new() -> TwoServers {
        let servers = [0, 1].map(|number| {
            let server = ServerProcess::start(&any_server(), &[""; 0]);
            let server = server.unwrap_or_else(|error| panic!("{error}"));
            let set = RespClient::connect(server.address()).call(&format!("SET number {number}"));
            assert_eq!(set, Reply::ok());
            server
        });
        TwoServers {
            servers,
            proxy: None,
        }
    }

    fn address(&self, server: usize) -> SocketAddr {
        self.servers[server].address()
    }

    fn serve(&mut self, seeds: &[SocketAddr], args: &[&str]) {
        let seeds: Vec<String> = seeds.iter().map(SocketAddr::to_string).collect();
        let mut all = vec![format!("--backend=redis-sentinel://{}/m", seeds.join(","))];
        all.extend(args.iter().map(|&arg| arg.to_owned()));
        let proxy = Proxy::start(&respool(), &all).unwrap_or_else(|error| panic!("{error}"));
        self.proxy = Some(proxy);
    }

    fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().expect("respool is started")
    }

    fn client(&self) -> RespClient {
        RespClient::connect(self.proxy().address())
    }

    fn server_number(&self) -> Reply {
        self.client().call("GET number")
    }

    /// By one Sentinel, which names the first server.
    fn led_to_the_first() -> (TwoServers, Sentinel) {
        let mut scene = TwoServers::new();
        let sentinel = Sentinel::start(scene.address(0), 1);
        scene.serve(&[sentinel.address()], &["--threads=1"]);
        scene.leads_to(0);
        (scene, sentinel)
    }

    #[track_caller]
    fn leads_to(&self, server: usize) {
        let claim = format!("server {server} answers the clients");
        wait_until(&claim, SOON, || {
            self.server_number() == Reply::bulk(server.to_string())
        });
    }

    #[track_caller]
    fn stays_with(&self, server: usize) {
        let end = Instant::now() + A_WHILE;
        while Instant::now() < end {
            assert_eq!(self.server_number(), Reply::bulk(server.to_string()));
        }
    }

    fn said(&self, text: &str) -> usize {
        self.proxy().log().matches(text).count()
    }
}

/// An address without a listener.
fn unused_address() -> SocketAddr {
    let port = ReservedPort::new().unwrap_or_else(|error| panic!("{error}"));
    SocketAddr::from(([127, 0, 0, 1], port.port))
}

/// A Sentinel that does not know the name is logged once and keeps no session from the others.
#[test]
fn sentinel_without_the_name_is_skipped() {
    let mut scene = TwoServers::new();
    let knows = Sentinel::start(scene.address(0), 1);
    let ignorant = [0, 1].map(|_| Sentinel::start(scene.address(1), 9));
    for one in &ignorant {
        one.will_say(|says| says.primary = None);
    }
    let seeds = [
        ignorant[0].address(),
        knows.address(),
        ignorant[1].address(),
    ];
    scene.serve(&seeds, &["--threads=1"]);
    scene.leads_to(0);
    for _ in 0..3 {
        ignorant.iter().for_each(Sentinel::is_heard);
    }
    scene.stays_with(0);
    for one in &ignorant {
        let said = format!("Sentinel {}: ", one.address());
        assert_eq!(scene.said(&said), 1, "{}", scene.proxy().log());
    }
}

/// Where no Sentinel knows the name, the client gets an error in time.
#[test]
fn unknown_name_is_an_error_in_time() {
    let mut scene = TwoServers::new();
    let ignorant = Sentinel::start(scene.address(0), 1);
    ignorant.will_say(|says| says.primary = None);
    scene.serve(
        &[ignorant.address()],
        &["--threads=1", "--request-timeout-ms=400"],
    );
    let reply = scene.server_number();
    let error = reply.error().unwrap_or_default();
    assert!(is_not_executed(error), "{reply:?}");
    // When the Sentinel names the primary, requests succeed.
    ignorant.will_say(|says| says.primary = Some(scene.address(0)));
    ignorant.is_heard();
    scene.leads_to(0);
}

/// An invalid reply of a Sentinel counts as none, and is not asked for without end.
#[test]
fn invalid_sentinel_reply_is_not_asked_without_end() {
    let mut scene = TwoServers::new();
    let knows = Sentinel::start(scene.address(0), 1);
    let mut long = "*3000\r\n".to_owned();
    long += &"$-1\r\n".repeat(3_000);
    let all = [
        "+OK\r\n",
        ":-1\r\n",
        "*-1\r\n",
        "*0\r\n",
        "*1\r\n$1\r\nm\r\n",
        "_\r\n",
        "%1\r\n+ip\r\n:1\r\n",
    ];
    let rubbish: Vec<Sentinel> = all
        .iter()
        .map(|text| (*text).to_owned())
        .chain([
            long,
            "\0\0\0\r\n".to_owned(),
            ">1\r\n+m\r\n".to_owned(),
            "$9999999999\r\n".to_owned(),
        ])
        .map(|instead| {
            let sentinel = Sentinel::start(scene.address(1), 9);
            sentinel.will_say(|says| says.instead = Some(instead));
            sentinel
        })
        .collect();
    for some in rubbish.chunks(3) {
        let mut seeds: Vec<SocketAddr> = some.iter().map(Sentinel::address).collect();
        seeds.push(knows.address());
        scene.serve(&seeds, &["--threads=1"]);
        scene.leads_to(0);
        for one in some {
            one.tell();
        }
        scene.stays_with(0);
        for one in some {
            assert!(one.surveys() < 30, "{} surveys", one.surveys());
        }
        assert!(!scene.proxy().log().contains("panicked at"));
        assert!(
            scene.proxy().log().lines().count() < 200,
            "{}",
            scene.proxy().log()
        );
    }
}

/// A flood of events does not cause a flood of queries.
#[test]
fn event_flood_does_not_cause_a_query_flood() {
    let mut scene = TwoServers::new();
    let excited = Sentinel::start(scene.address(0), 1);
    scene.serve(&[excited.address()], &["--threads=1"]);
    scene.leads_to(0);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        for _ in 0..20 {
            excited.tell();
        }
        thread::sleep(Duration::from_millis(1));
    }
    // Twenty surveys a second would suffice.
    assert!(excited.surveys() < 60, "{} surveys", excited.surveys());
    scene.stays_with(0);
}

/// The latest epoch counts, and within it the majority of Sentinels.
#[test]
fn latest_epoch_counts_then_the_majority() {
    let mut scene = TwoServers::new();
    let all = [0, 1, 1].map(|server| Sentinel::start(scene.address(server), 4));
    let seeds = all.each_ref().map(Sentinel::address);
    scene.serve(&seeds, &["--threads=1"]);
    scene.leads_to(1);
    // Until all are heard, the first ones may count for more.
    all.iter().for_each(Sentinel::is_heard);
    scene.leads_to(1);
    scene.stays_with(1);
    // One Sentinel has heard of a later failover.
    all[0].will_say(|says| says.epoch = 5);
    all[0].is_heard();
    scene.leads_to(0);
    for old in &all[1..] {
        old.is_heard();
        scene.stays_with(0);
    }
}

/// A Sentinel that was cut off does not lead back to the old primary.
#[test]
fn stale_sentinel_does_not_lead_back() {
    let mut scene = TwoServers::new();
    let cut_off = Sentinel::start(scene.address(0), 1);
    let informed = Sentinel::start(scene.address(1), 2);
    cut_off.will_say(|says| says.peers = vec![informed.address()]);
    scene.serve(&[cut_off.address()], &["--threads=1"]);
    scene.leads_to(1);
    // The only one that knows is gone, and is spoken of no more.
    drop(informed);
    cut_off.will_say(|says| says.peers = Vec::new());
    for _ in 0..3 {
        cut_off.is_heard();
    }
    scene.stays_with(1);
}

/// A name that was removed and added again is followed though its epochs are lower.
#[test]
fn recreated_name_is_followed_with_lower_epochs() {
    let mut scene = TwoServers::new();
    let here = Sentinel::start(scene.address(0), 7);
    let gone = Sentinel::start(scene.address(0), 7);
    scene.serve(&[here.address(), gone.address()], &["--threads=1"]);
    scene.leads_to(0);
    wait_until("respool has asked both Sentinels", SOON, || {
        here.surveys() > 0 && gone.surveys() > 0
    });
    drop(gone);
    // SENTINEL REMOVE, SENTINEL MONITOR.
    here.fakes
        .tell(&message("-monitor", "master m 127.0.0.1 1"));
    here.will_say(|says| (says.primary, says.epoch) = (Some(scene.address(1)), 0));
    here.fakes
        .tell(&message("+monitor", "master m 127.0.0.1 1 quorum 2"));
    scene.leads_to(1);
    scene.stays_with(1);
}

#[test]
fn an_event_alone_leads_to_the_new_primary() {
    let mut scene = TwoServers::new();
    let sentinel = Sentinel::start(scene.address(0), 1);
    scene.serve(&[sentinel.address()], &["--threads=1"]);
    scene.leads_to(0);
    let [old, new] = [0, 1].map(|server| {
        let address = scene.address(server);
        format!("{} {}", address.ip(), address.port())
    });
    // The Sentinel publishes the message, and answers no query.
    sentinel.will_say(|says| says.instead = Some(String::new()));
    sentinel
        .fakes
        .tell(&message("+switch-master", &format!("other {old} {new}")));
    scene.stays_with(0);
    sentinel
        .fakes
        .tell(&message("+switch-master", &format!("m {old} {new}")));
    scene.leads_to(1);
}

/// The event of the Sentinel that leads a failover: `server` was told to become the primary in
/// place of the first one.
fn promotes(scene: &TwoServers, sentinel: &Sentinel, server: usize) {
    let [old, new] = [0, server].map(|server| {
        let address = scene.address(server);
        format!("{} {}", address.ip(), address.port())
    });
    sentinel.fakes.tell(&message(
        "+failover-state-wait-promotion",
        &format!("slave {} {new} @ m {old}", new.replace(' ', ":")),
    ));
}

/// A replica that Sentinel has promoted, and that is a primary, is followed before it is named.
#[test]
fn promoted_replica_is_followed_before_it_is_named() {
    let mut scene = TwoServers::new();
    let sentinel = Sentinel::start(scene.address(0), 1);
    let uninformed = Sentinel::start(scene.address(0), 1);
    scene.serve(
        &[sentinel.address(), uninformed.address()],
        &["--threads=1"],
    );
    scene.leads_to(0);
    let surveys = (sentinel.surveys(), uninformed.surveys());
    promotes(&scene, &sentinel, 1);
    scene.leads_to(1);
    // Late events about the old primary lead no session back.
    uninformed.fakes.tell(&message(
        "+slave",
        "slave 127.0.0.1:1 127.0.0.1 1 @ m 127.0.0.1 2",
    ));
    wait_until("respool has asked both Sentinels again", SOON, || {
        sentinel.surveys() > surveys.0 && uninformed.surveys() > surveys.1
    });
    scene.stays_with(1);
    // The failover to server 1 was given up, and no Sentinel has named server 1.
    scene.leads_to(0);
    // After another failover the Sentinels name another server.
    promotes(&scene, &sentinel, 1);
    scene.leads_to(1);
    for one in [&sentinel, &uninformed] {
        one.will_say(|says| says.epoch = 3);
        one.is_heard();
    }
    scene.leads_to(0);
}

/// A replica whose promotion fails is left again, and waiting clients are answered.
#[test]
fn failed_promotion_is_left_and_clients_are_answered() {
    let mut scene = TwoServers::new();
    let sentinel = Sentinel::start(scene.address(0), 1);
    scene.serve(&[sentinel.address()], &["--threads=1"]);
    scene.leads_to(0);
    let old = scene.address(0);
    let mut replica = RespClient::connect(scene.address(1));
    let follow = format!("REPLICAOF {} {}", old.ip(), old.port());
    assert_eq!(replica.call(&follow), Reply::ok());
    // Reads that were lost with a connection are retried if that was up for a while.
    thread::sleep(Duration::from_millis(1_100));
    let was = |server: usize| format!(", and was {}", scene.address(server));
    let (mut reader, mut writer) = (scene.client(), scene.client());
    promotes(&scene, &sentinel, 1);
    let mut executed = 0;
    let mut unsure = 0;
    wait_until("respool has tried the replica and returned", SOON, || {
        reader.send(&words("GET number"));
        writer.send(&words("INCR n"));
        assert_eq!(reader.reply(), Reply::bulk("0"));
        match writer.reply() {
            Reply::Integer(n) => {
                assert!((executed + 1..=executed + 1 + unsure).contains(&n), "{n}");
                (executed, unsure) = (n, 0);
            }
            reply => {
                assert_eq!(fate(&reply), RequestFate::Unknown, "{reply:?}");
                unsure += 1;
            }
        }
        scene.said(&was(0)) > 0 && scene.said(&was(1)) > 0
    });
    scene.stays_with(0);
    assert!(matches!(writer.call("INCR n"), Reply::Integer(_)));
}

/// A Sentinel that refuses SUBSCRIBE is polled.
#[test]
fn sentinel_without_subscribe_is_polled() {
    let mut scene = TwoServers::new();
    let sentinel = Sentinel::start(scene.address(0), 1);
    sentinel.will_say(|says| says.mute = true);
    scene.serve(&[sentinel.address()], &["--threads=1"]);
    scene.leads_to(0);
    sentinel.will_say(|says| (says.primary, says.epoch) = (Some(scene.address(1)), 2));
    scene.leads_to(1);
    assert_eq!(sentinel.fakes.count("SUBSCRIBE"), 1);
    assert!(sentinel.surveys() < 30, "{} surveys", sentinel.surveys());
}

/// When the Sentinels that respool listens to are gone, it listens to others.
#[test]
fn lost_subscriptions_move_to_other_sentinels() {
    let mut scene = TwoServers::new();
    // The first five seeds do not exist.
    let mut seeds: Vec<SocketAddr> = (0..5).map(|_| unused_address()).collect();
    let mut all: Vec<Sentinel> = (0..7)
        .map(|_| Sentinel::start(scene.address(0), 1))
        .collect();
    seeds.extend(all.iter().map(Sentinel::address));
    scene.serve(&seeds, &["--threads=1"]);
    scene.leads_to(0);
    let listened = |all: &[Sentinel]| all.iter().filter(|one| one.surveys() > 0).count();
    wait_until("respool listens to five Sentinels", SOON, || {
        listened(&all) == 5
    });
    thread::sleep(A_WHILE);
    assert_eq!(listened(&all), 5, "and no more");
    for left in [6, 5] {
        let first = all
            .iter()
            .position(|one| one.surveys() > 0)
            .expect("five are");
        drop(all.remove(first));
        assert_eq!(all.len(), left);
        wait_until("respool listens to another Sentinel instead", SOON, || {
            listened(&all) == 5
        });
    }
    for one in &all {
        one.will_say(|says| (says.primary, says.epoch) = (Some(scene.address(1)), 2));
    }
    all[4].is_heard();
    scene.leads_to(1);
}

/// respool listens to five Sentinels at most, also when all are back.
#[test]
fn five_sentinels_at_most_are_subscribed_to() {
    let mut scene = TwoServers::new();
    let all: Vec<Sentinel> = (0..9)
        .map(|_| Sentinel::start(scene.address(0), 1))
        .collect();
    for one in &all {
        one.will_say(|says| says.refuses = true);
    }
    let seeds: Vec<SocketAddr> = all.iter().map(Sentinel::address).collect();
    scene.serve(&seeds, &["--threads=1", "--reconnect-max-ms=200"]);
    wait_until("respool has tried each Sentinel", SOON, || {
        all.iter().all(|one| one.fakes.count("HELLO") > 1)
    });
    for one in &all {
        one.will_say(|says| says.refuses = false);
    }
    scene.leads_to(0);
    thread::sleep(2 * A_WHILE);
    let before: Vec<usize> = all.iter().map(Sentinel::surveys).collect();
    all.iter().for_each(Sentinel::tell);
    thread::sleep(A_WHILE);
    let listened = all
        .iter()
        .zip(before)
        .filter(|(one, before)| one.surveys() > *before);
    assert_eq!(listened.count(), 5);
}

#[test]
fn a_server_that_says_that_it_is_a_replica_is_not_used() {
    let mut scene = TwoServers::new();
    let (old, new) = (scene.address(0), scene.address(1));
    follow(new, old);
    let sentinel = Sentinel::start(new, 1);
    scene.serve(
        &[sentinel.address()],
        &["--threads=2", "--request-timeout-ms=400"],
    );
    for _ in 0..3 {
        let reply = scene.client().call("SET key here");
        let error = reply.error().unwrap_or_default();
        assert!(is_not_executed(error), "{reply:?}");
    }
    assert!(scene.said("it is a replica") > 0);
    assert!(
        scene.proxy().log().lines().count() < 200,
        "{}",
        scene.proxy().log()
    );
    // The replica is promoted at last.
    assert_eq!(
        RespClient::connect(new).call("REPLICAOF NO ONE"),
        Reply::ok()
    );
    wait_until("the new primary gets the SET", SOON, || {
        scene.client().call("SET key here") == Reply::ok()
    });
    assert_eq!(
        RespClient::connect(new).call("GET key"),
        Reply::bulk("here")
    );
}

/// A request that a demoted primary refuses is retried at the next primary.
#[test]
fn refusal_of_a_demoted_primary_is_retried() {
    let (scene, sentinel) = TwoServers::led_to_the_first();
    let (old, new) = (scene.address(0), scene.address(1));
    let mut client = scene.client();
    assert_eq!(client.call("SET key 1"), Reply::ok());
    let slow = RespClient::connect(new).call("SET key 5");
    assert_eq!(slow, Reply::ok());
    follow_silently(old, unused_address());
    // READONLY, again and again.
    client.send(&respool_testkit::client::words("INCR key"));
    assert!(client.is_quiet(A_WHILE), "the client gets no reply");
    sentinel.will_say(|says| (says.primary, says.epoch) = (Some(new), 2));
    assert_eq!(client.reply(), Reply::Integer(6), "once");
    assert!(sentinel.surveys() < 60, "{} surveys", sentinel.surveys());
}

/// The old primary itself reports the change before any Sentinel. A client that blocks there does
/// not get that error.
#[test]
fn blocked_client_of_a_demoted_primary_sees_no_error() {
    let (scene, sentinel) = TwoServers::led_to_the_first();
    let (old, new) = (scene.address(0), scene.address(1));
    let mut client = scene.client();
    client.send(&respool_testkit::client::words("BLPOP list 0"));
    let waits_at = |server| {
        wait_until("the client is blocked", SOON, || {
            let info = RespClient::connect(server).call("INFO clients");
            matches!(info, Reply::Bulk(info) if info.windows(17).any(|some| some == b"blocked_clients:1"))
        });
    };
    waits_at(old);
    follow_silently(old, unused_address());
    if !client.is_quiet(A_WHILE) {
        // A blocked session waits on a dedicated link, and a new link is not used once its server
        // has reported itself as a replica. A session that would block at an absent server is
        // closed.
        client.expect_closed();
        client = scene.client();
        sentinel.will_say(|says| (says.primary, says.epoch) = (Some(new), 2));
        scene.leads_to(1);
        client.send(&respool_testkit::client::words("BLPOP list 0"));
    }
    sentinel.will_say(|says| (says.primary, says.epoch) = (Some(new), 2));
    waits_at(new);
    assert_eq!(
        RespClient::connect(new).call("RPUSH list x"),
        Reply::Integer(1)
    );
    let element = Reply::Array(vec![Reply::bulk("list"), Reply::bulk("x")]);
    assert_eq!(client.reply(), element);
}

/// The error of a server that comes up.
const LOADING: &str = "LOADING Redis is loading the dataset in memory";

/// A client of that primary, and the servers between them.
fn before(primary: &Fakes) -> ((Sentinel, TwoServers), RespClient) {
    let sentinel = Sentinel::start(primary.addresses()[0], 1);
    let mut scene = TwoServers::new();
    scene.serve(&[sentinel.address()], &["--threads=1"]);
    let client = scene.client();
    ((sentinel, scene), client)
}

/// The primary refuses the first request for a moment and not the later ones. Around FLUSHALL, a
/// session has nothing in flight: the refused request does not run behind it.
#[test]
fn refused_request_does_not_run_behind_flushall() {
    for [first, behind] in [
        ["SET key 1", "FLUSHALL"],
        ["SET key 1", "DBSIZE"],
        ["FLUSHALL", "SET key 1"],
        ["DBSIZE", "SET key 1"],
    ] {
        let refuses = AtomicBool::new(true);
        let primary = Fakes::start(1, move |asked| match asked.is(first) {
            true if refuses.swap(false, Ordering::SeqCst) => Some(format!("-{LOADING}\r\n")),
            _ => None,
        });
        let (_between, mut client) = before(&primary);
        wait_until("the primary answers the GET", SOON, || {
            client.call("GET it") == Reply::bulk("it")
        });
        let replies = pipelined(&mut client, &format!("{first};{behind}"));
        let is_alone = [first, behind].contains(&"FLUSHALL");
        let (told, count) = match is_alone {
            true => (None, 2),
            false => (Some(LOADING), 1),
        };
        assert_eq!(replies[0].error(), told, "{first}, {behind}");
        assert!(replies[1].error().is_none(), "{replies:?}");
        assert_eq!(primary.count(first), count, "{first}");
    }
}

/// A refused request does not run behind later ones of its session that were fused. On the link,
/// only the arguments of a fused request remain.
#[test]
fn refused_request_does_not_run_behind_a_fused_one() {
    for (first, behind, whole) in [
        ("INCR key", ["GET key", "GET other"], "MGET"),
        ("INCR key", ["SET key 1", "SET other 2"], "MSET"),
        ("GET key", ["SET key 1", "SET other 2"], "MSET"),
    ] {
        let refuses = AtomicBool::new(true);
        let primary = Fakes::start(1, move |asked| match asked.name() {
            _ if asked.is(first) && refuses.swap(false, Ordering::SeqCst) => {
                Some(format!("-{LOADING}\r\n"))
            }
            "MGET" => Some("*2\r\n$3\r\nkey\r\n$5\r\nother\r\n".to_owned()),
            "MSET" => Some("+OK\r\n".to_owned()),
            _ => None,
        });
        let (_between, mut client) = before(&primary);
        wait_until("the requests leave as one MGET and one MSET", SOON, || {
            pipelined(&mut client, "SET it 1;SET this 2;GET it;GET this");
            primary.count("MGET it this") > 0 && primary.count("MSET it 1 this 2") > 0
        });
        let replies = pipelined(&mut client, &format!("{first};{}", behind.join(";")));
        assert!(
            primary.count(&format!("{whole} key")) > 0,
            "{first}, {whole}"
        );
        assert_eq!(replies[0].error(), Some(LOADING), "{first}, {whole}");
        assert!(replies[1].error().is_none(), "{replies:?}");
        assert_eq!(primary.count(first), 1, "{first}, {whole}");
    }
}

fn follow(replica: SocketAddr, primary: SocketAddr) {
    follow_silently(replica, primary);
    wait_until("the replica follows its primary", SOON, || {
        let info = RespClient::connect(replica).call("INFO replication");
        matches!(info, Reply::Bulk(info) if info.windows(21).any(|some| some == b"master_link_status:up"))
    });
}

fn follow_silently(replica: SocketAddr, primary: SocketAddr) {
    let order = format!("REPLICAOF {} {}", primary.ip(), primary.port());
    assert_eq!(RespClient::connect(replica).call(&order), Reply::ok());
}

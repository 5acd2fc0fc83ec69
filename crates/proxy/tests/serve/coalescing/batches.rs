//! Requests that leave as one, before real servers: each client gets the reply of its own command.
//!
//! A test sends the same requests twice: to a server, one after the other, and through respool at
//! one moment, so that they leave in one batch. Replies and the data of the servers must be equal.
//! The counters must show that requests were fused: otherwise the test proves nothing.

use std::path::Path;
use std::thread;
use std::time::Duration;

use respool_testkit::client::{Reply, RespClient, counter, request, words};
use respool_testkit::fault_proxy::{FaultMode, FaultProxy};
use respool_testkit::servers::installed;
use respool_testkit::time::wait_until;

use crate::faults::server_failures::{RequestFate, fate};
use crate::target::{Options, Target};

/// A client and its requests.
#[derive(Clone)]
struct Caller {
    /// Earlier requests: its protocol version, its user.
    hello: &'static [&'static str],
    asks: Vec<Vec<u8>>,
}

const RESP2: &[&str] = &[];
const RESP3: &[&str] = &["HELLO 3"];

fn caller(hello: &'static [&'static str], asks: &[&str]) -> Caller {
    Caller {
        hello,
        asks: asks.iter().map(|ask| words(ask)).collect(),
    }
}

/// One caller for each of these requests.
fn callers(hello: &'static [&'static str], asks: &[&str]) -> Vec<Caller> {
    asks.iter().map(|ask| caller(hello, &[ask])).collect()
}

/// The replies of each client, byte for byte.
type Answers = Vec<Vec<String>>;

/// Each asks when the one before has its answers.
fn one_after_the_other(target: &Target, callers: &[Caller]) -> Answers {
    let ask = |caller: &Caller| {
        let mut client = greeted(target, caller.hello);
        client.send(&caller.asks.concat());
        caller.asks.iter().map(|_| text(&mut client)).collect()
    };
    callers.iter().map(ask).collect()
}

/// All ask while the server, which owes an answer, stands still: so their requests gather.
fn at_one_moment(target: &Target, callers: &[Caller]) -> Answers {
    let mut clients: Vec<RespClient> = callers
        .iter()
        .map(|caller| greeted(target, caller.hello))
        .collect();
    // One for each link that is shared: its batch waits until this is answered.
    let mut hellos: Vec<_> = callers.iter().map(|caller| caller.hello).collect();
    hellos.sort_unstable();
    hellos.dedup();
    let mut busy: Vec<RespClient> = hellos.iter().map(|hello| greeted(target, hello)).collect();
    let mut observer = target.client();
    let gathered = |observer: &mut RespClient| counter(observer, "link_requests");
    let before = gathered(&mut observer);
    target.server.stop();
    // These show that the user may send the fused forms: respool fuses nothing before that.
    let busy_with = ["GET tried", "GET tried", "SET tried 1", "SET tried 1"].map(words);
    for client in &mut busy {
        client.send(&busy_with.concat());
    }
    let count = (busy.len() * busy_with.len()) as u64;
    wait_until("the links are busy", Duration::from_secs(5), || {
        gathered(&mut observer) == before + count
    });
    for (client, caller) in clients.iter_mut().zip(callers) {
        client.send(&caller.asks.concat());
        // The pause keeps the order of the clients.
        thread::sleep(Duration::from_millis(2));
    }
    let small = |caller: &&Caller| caller.asks.iter().all(|ask| ask.len() < 10_000);
    if callers.iter().all(|caller| small(&caller)) {
        let asked: usize = callers.iter().map(|caller| caller.asks.len()).sum();
        wait_until(
            "the link has gathered all requests",
            Duration::from_secs(5),
            || gathered(&mut observer) == before + count + asked as u64,
        );
    }
    target.server.cont();
    for client in &mut busy {
        client.replies(busy_with.len());
    }
    // Each client reads in a thread of its own: a client that does not read would be closed in the
    // end.
    thread::scope(|scope| {
        let reads = clients.iter_mut().zip(callers).map(|(client, caller)| {
            let count = caller.asks.len();
            scope.spawn(move || (0..count).map(|_| text(client)).collect::<Vec<_>>())
        });
        let reads: Vec<_> = reads.collect();
        let joined = reads.into_iter().map(|read| read.join());
        joined
            .map(|answers| answers.expect("every reply comes"))
            .collect()
    })
}

fn greeted(target: &Target, hello: &[&str]) -> RespClient {
    let mut client = target.client();
    for line in hello {
        let reply = client.call(line);
        assert!(reply.error().is_none(), "{line}: {reply:?}");
    }
    client
}

fn text(client: &mut RespClient) -> String {
    let bytes = client.reply_bytes();
    match bytes.len() {
        0..2_000 => bytes.escape_ascii().to_string(),
        len => format!("{len} bytes of hash {:x}", hash(&bytes)),
    }
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Batches wait for the test, not for the clock.
fn options(server: &[&str]) -> Options {
    let mut options = Options::with(&["--flush-rule=server-cpu", "--max-delay-us=1s"]);
    options.server = server.iter().map(|&arg| arg.to_owned()).collect();
    options
}

/// The data of the server: type, content and expiry of every key.
fn content(target: &Target) -> Vec<(String, String)> {
    let mut client = target.direct_client();
    let mut keys = match client.call("KEYS *") {
        Reply::Array(keys) => keys,
        // A replica that has lost its primary may be told to say nothing.
        other => return vec![(format!("{other:?}"), String::new())],
    };
    keys.sort_by_key(|key| format!("{key:?}"));
    let describe = |key: Reply| {
        let Reply::Bulk(key) = key else {
            panic!("a key");
        };
        client.send(&request(&[b"DUMP", key.as_slice()]));
        let dump = text(&mut client);
        client.send(&request(&[b"PTTL", key.as_slice()]));
        let expires = client.reply() != Reply::Integer(-1);
        (
            key.escape_ascii().to_string(),
            format!("{dump} expires: {expires}"),
        )
    };
    keys.into_iter().map(describe).collect()
}

/// The numbers of fused, collapsed and repeated requests since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Saved {
    gets: u64,
    sets: u64,
    collapsed: u64,
    again: u64,
}

impl Saved {
    /// Whether GETs were, and SETs.
    fn fused(self) -> (bool, bool) {
        (self.gets > 0, self.sets > 0)
    }
}

fn saved(target: &Target) -> Saved {
    let mut client = target.client();
    let mut of = |name| counter(&mut client, name);
    Saved {
        gets: of("fused_gets"),
        sets: of("fused_sets"),
        collapsed: of("reads_collapsed"),
        again: of("joined_requests_resent"),
    }
}

/// Asks the same directly and through respool, before two equal servers.
struct Pair {
    direct: Target,
    proxied: Target,
    before: Saved,
}

impl Pair {
    fn new(binary: &Path, options: &Options) -> Pair {
        let direct = Target::direct(binary, options);
        let proxied = Target::proxied(binary, options);
        Pair {
            direct,
            proxied,
            before: Saved::default(),
        }
    }

    /// Says this to both servers.
    fn tell(&self, lines: &[&str]) {
        for target in [&self.direct, &self.proxied] {
            let mut client = target.direct_client();
            for line in lines {
                let reply = client.call(line);
                assert!(reply.error().is_none(), "{line}: {reply:?}");
            }
        }
    }

    /// Asserts that both give the same replies. Returns the counts of fused, collapsed and repeated
    /// requests.
    #[track_caller]
    fn ask(&mut self, callers: &[Caller]) -> Saved {
        let expected = one_after_the_other(&self.direct, callers);
        let got = at_one_moment(&self.proxied, callers);
        self.proxied.direct_client().call("DEL tried");
        for ((caller, expected), got) in callers.iter().zip(expected).zip(got) {
            let asked: Vec<_> = caller
                .asks
                .iter()
                .map(|ask| ask[..ask.len().min(99)].escape_ascii().to_string())
                .collect();
            assert_eq!(got, expected, "{} to {asked:?}", self.proxied.name);
        }
        assert_eq!(content(&self.proxied), content(&self.direct));
        let now = saved(&self.proxied);
        let before = std::mem::replace(&mut self.before, now);
        Saved {
            gets: now.gets - before.gets,
            sets: now.sets - before.sets,
            collapsed: now.collapsed - before.collapsed,
            again: now.again - before.again,
        }
    }
}

/// Runs the body on every server at hand.
fn on_every_pair(server: &[&str], body: impl Fn(&mut Pair)) {
    for binary in installed() {
        body(&mut Pair::new(&binary, &options(server)));
    }
}

/// Fused GETs of a value, a missing key, an expired key and a list answer each client as a GET
/// does.
#[test]
fn fused_gets_answer_each_key_by_itself() {
    on_every_pair(&[], |pair| {
        pair.tell(&[
            "SET one 1",
            "SET word hello",
            "APPEND empty ",
            "RPUSH list a b",
            "HSET hash field value",
            "SADD set member",
            "XADD stream 1-1 field value",
            "SET short value PX 1",
            "SET long value EX 1000",
        ]);
        thread::sleep(Duration::from_millis(5));
        let asks = [
            "GET one",
            "GET list",
            "GET nosuch",
            "GET word",
            "GET short",
            "get hash",
            "GET empty",
            "GET stream",
            "GET long",
            "GET set",
            "GET nosuch",
            "GET one",
        ];
        for hello in [RESP2, RESP3] {
            let saved = pair.ask(&callers(hello, &asks));
            // One GET is equal to another with a value, and one to another without: the retries
            // repeat both.
            assert_eq!((saved.gets, saved.collapsed), (12, 3), "{saved:?}");
            // Five keys of other types or expired ones, and two clients that read the same missing
            // key.
            assert_eq!(saved.again, 7, "{saved:?}");
        }
        // Clients of both versions at once, and one client with all requests.
        let mut both = callers(RESP2, &asks);
        both.extend(callers(RESP3, &asks));
        both.push(caller(RESP2, &asks));
        both.push(caller(RESP3, &asks));
        let saved = pair.ask(&both);
        assert!(saved.gets >= 20 && saved.collapsed > 0, "{saved:?}");
    });
}

/// A client's requests for one key run in its order, even if only some of them are fused.
#[test]
fn fusing_keeps_a_clients_order_on_one_key() {
    on_every_pair(&[], |pair| {
        pair.tell(&[
            "RPUSH a:list 1",
            "RPUSH b:list 1",
            "SET a:count 1",
            "SET b:count 1",
        ]);
        let asks = |client: &str| -> Vec<Vec<u8>> {
            [
                "GET k",
                "SET k 1",
                "GET k",
                "GET list",
                "SET k 2",
                "SET k 3",
                "GET k",
                "DEL k",
                "GET k",
                "GET list",
                "SET list 5",
                "GET list",
                "INCR list",
                "GET list",
                "SET k 4 NX",
                "SET k 5 XX GET",
                "STRLEN k",
                "GET k",
                "GETDEL k",
                "GET k",
                "SET k 6 EX 1000",
                "SET k 7",
                "TTL k",
                "INCR count",
                "GET count",
                "GET count",
                "STRLEN count",
                "STRLEN count",
                "MSET k 8 l 9",
                "MGET k l list",
                "GET l",
            ]
            .iter()
            .map(|ask| own(client, ask))
            .collect()
        };
        // GET with SET is younger than 6.2's NX, so it stands with XX here.
        for hello in [RESP2, RESP3] {
            let callers: Vec<_> = ["a", "b", "c", "d"]
                .map(|client| Caller {
                    hello,
                    asks: asks(client),
                })
                .into();
            let saved = pair.ask(&callers);
            assert!(saved.gets > 0, "{saved:?}");
        }
    });
}

/// A request with the keys of a client: `GET k` is `GET a:k`.
fn own(client: &str, ask: &str) -> Vec<u8> {
    let mut args: Vec<String> = ask.split(' ').map(str::to_owned).collect();
    let keys: &[usize] = match args[0].as_str() {
        "MSET" => &[1, 3],
        "MGET" => &[1, 2, 3],
        _ => &[1],
    };
    for at in keys {
        args[*at] = format!("{client}:{}", args[*at]);
    }
    request(&args)
}

/// Fused SETs store the same values as single SETs, for any bytes.
#[test]
fn fused_sets_store_any_bytes() {
    on_every_pair(&[], |pair| {
        pair.tell(&[
            "SET temporary value EX 1000",
            "RPUSH list a",
            "SET kept value EX 1000",
        ]);
        let mut all = callers(
            RESP2,
            &[
                "SET a 1",
                "SET b word",
                "SET temporary 2",
                "SET list now-a-string",
                "SET kept value KEEPTTL",
                "set c 3",
                "SET a 1",
            ],
        );
        let odd: [(&[u8], &[u8]); 6] = [
            (b"", b"of the empty key"),
            (b"empty", b""),
            (b"\r\n*2\r\n", b"\r\n$-1\r\n"),
            (b"\0\xff key", b"\0\xff value"),
            (b"int", b"9223372036854775807"),
            (b"no int", b"007"),
        ];
        for (key, value) in odd {
            all.push(Caller {
                hello: RESP2,
                asks: vec![request(&[b"SET", key, value]), request(&[b"GET", key])],
            });
        }
        let saved = pair.ask(&all);
        assert!(saved.sets >= 12 && saved.gets >= 6, "{saved:?}");
        assert_eq!(saved.again, 0, "{saved:?}");
        for caller in &mut all {
            caller.hello = RESP3;
        }
        assert!(pair.ask(&all).sets >= 12);
    });
}

/// A server without memory refuses each SET by itself, and GETs are answered.
#[test]
fn out_of_memory_refuses_each_set_alone() {
    on_every_pair(&["--maxmemory-policy", "noeviction"], |pair| {
        pair.tell(&[
            "SET there value",
            "SET other value",
            "RPUSH list a",
            "CONFIG SET maxmemory 1",
        ]);
        let all = callers(
            RESP2,
            &[
                "SET a 1",
                "GET there",
                "SET b 2",
                "GET list",
                "SET new 3",
                "DEL other",
                "GET nosuch",
            ],
        );
        let saved = pair.ask(&all);
        assert!(saved.sets >= 3 && saved.again >= 3, "{saved:?}");
        pair.tell(&["CONFIG SET maxmemory 0"]);
        pair.ask(&all);
    });
}

/// A server that cannot save refuses each SET by itself.
#[test]
fn misconf_refuses_each_set_alone() {
    on_every_pair(&[], |pair| {
        // Nothing can be renamed to a directory's name.
        for target in [&pair.direct, &pair.proxied] {
            std::fs::create_dir(target.server.dir().join("dump.rdb")).expect("the name is free");
        }
        pair.tell(&["SET there value"]);
        for target in [&pair.direct, &pair.proxied] {
            let mut client = target.direct_client();
            client.call_args(&["CONFIG", "SET", "save", "3600 100000"]);
            client.call("BGSAVE");
            wait_until("BGSAVE has failed", Duration::from_secs(10), || {
                let Reply::Bulk(text) = client.call("INFO persistence") else {
                    return false;
                };
                String::from_utf8_lossy(&text).contains("rdb_last_bgsave_status:err")
            });
        }
        let all = callers(
            RESP2,
            &["SET a 1", "GET there", "SET b 2", "SET new 3", "GET nosuch"],
        );
        let saved = pair.ask(&all);
        assert!(saved.sets >= 3 && saved.again >= 3, "{saved:?}");
        pair.tell(&["CONFIG SET stop-writes-on-bgsave-error no"]);
        pair.ask(&all);
    });
}

/// A replica, and a primary with too few replicas, refuse each request by itself.
#[test]
fn readonly_and_noreplicas_refuse_requests_alone() {
    // A refused form rests for a while, so each state starts a new pair.
    let states: [&[&str]; 3] = [
        &["CONFIG SET min-replicas-to-write 1"],
        // A replica of an absent primary.
        &["REPLICAOF 127.0.0.1 1"],
        &[
            "CONFIG SET replica-serve-stale-data no",
            "REPLICAOF 127.0.0.1 1",
        ],
    ];
    for state in states {
        on_every_pair(&[], |pair| {
            pair.tell(&["SET there value", "RPUSH list a"]);
            pair.tell(state);
            let all = callers(
                RESP2,
                &[
                    "SET a 1",
                    "GET there",
                    "SET b 2",
                    "SET new 3",
                    "GET nosuch",
                    "GET list",
                ],
            );
            let saved = pair.ask(&all);
            assert!(saved.sets >= 3 && saved.again >= 3, "{saved:?}");
            pair.tell(&["CONFIG SET min-replicas-to-write 0", "REPLICAOF NO ONE"]);
            pair.ask(&all);
        });
    }
}

/// Before a Cluster node, each fused request is answered by itself.
#[test]
fn cluster_node_answers_each_fused_request() {
    on_every_pair(&["--cluster-enabled", "yes"], |pair| {
        let slots: Vec<String> = (0..16_384).map(|slot| slot.to_string()).collect();
        pair.tell(&[&format!("CLUSTER ADDSLOTS {}", slots.join(" "))]);
        for target in [&pair.direct, &pair.proxied] {
            let mut client = target.direct_client();
            wait_until(
                "the server serves its slots",
                Duration::from_secs(10),
                || client.call("SET there value") == Reply::ok(),
            );
        }
        let all = callers(
            RESP2,
            &[
                "SET a 1",
                "GET there",
                "SET b 2",
                "SET c 3",
                "GET nosuch",
                "GET there",
            ],
        );
        let saved = pair.ask(&all);
        assert!(
            saved.sets >= 3 && saved.gets >= 3 && saved.again >= 5,
            "{saved:?}"
        );
        let saved = pair.ask(&all);
        assert_eq!(
            (saved.sets, saved.gets),
            (0, 0),
            "requests are not joined again"
        );
    });
}

/// A user gets NOPERM for requests without the right, and values for the others.
#[test]
fn missing_rights_refuse_only_their_own_requests() {
    const FEW: &[&str] = &["AUTH few secret"];
    const FEW_3: &[&str] = &["HELLO 3 AUTH few secret"];
    const SOME: &[&str] = &["AUTH some secret"];
    const NEITHER: &[&str] = &["AUTH neither secret"];
    const READER: &[&str] = &["AUTH reader secret"];
    on_every_pair(&[], |pair| {
        let is_6 = pair.direct.version < (7, 0);
        pair.tell(&[
            // May not send the fused forms.
            "ACL SETUSER few on >secret ~* +@all -mget -mset",
            "ACL SETUSER some on >secret ~mine:* +@all",
            // May send only the fused forms.
            "ACL SETUSER neither on >secret ~* +@all -get -set",
            if is_6 {
                "ACL SETUSER reader on >secret ~mine:* +@all -@write"
            } else {
                "ACL SETUSER reader on >secret %R~mine:* %W~other:* +@all"
            },
            "SET mine:a 1",
            "SET mine:b 2",
            "SET other:a 3",
            "RPUSH mine:list 4",
        ]);
        let asks = [
            "GET mine:a",
            "GET other:a",
            "SET mine:c 5",
            "SET other:c 6",
            "GET mine:b",
            "GET mine:list",
            "GET mine:nosuch",
            "SET mine:d 7",
            "GET mine:a",
        ];
        // A refused form is not tried again. A form that the user may not send by itself is not
        // tried at all.
        let [nothing, both] = [(false, false), (true, true)];
        for (hello, at_first, then) in [
            (FEW, both, nothing),
            (FEW_3, both, nothing),
            (SOME, both, nothing),
            (NEITHER, nothing, nothing),
            (READER, (true, !is_6), nothing),
            (RESP2, both, both),
        ] {
            for round in 0..3 {
                let fused = if round == 0 { at_first } else { then };
                let mut saved = pair.ask(&callers(hello, &asks));
                // On a busy machine the requests of one round may leave in several batches. After a
                // refusal no further round tells more.
                for _ in 0..4 {
                    if saved.fused() != fused && then == both {
                        saved = pair.ask(&callers(hello, &asks));
                    }
                }
                assert_eq!(saved.fused(), fused, "{hello:?}, round {round}: {saved:?}");
                let is_refused = round == 0 && then == nothing && at_first != nothing;
                assert!(!is_refused || saved.again >= 3, "{hello:?}: {saved:?}");
            }
        }
        // All at once, each on a link of its user.
        let all: Vec<_> = [FEW, SOME, NEITHER, READER, RESP2]
            .iter()
            .flat_map(|hello| callers(hello, &asks))
            .collect();
        // One request now and then leaves alone, and shows whether the user still has the right.
        // On a busy machine the requests of one round may leave in several batches.
        let mut most = 0;
        for _ in 0..5 {
            let saved = pair.ask(&all);
            assert!(saved.gets <= 6, "only the last one's: {saved:?}");
            most = most.max(saved.gets);
            if most >= 5 {
                break;
            }
        }
        assert!(most >= 5, "the last one's: {most}");
        // A right that is lost is lost within a second.
        pair.tell(&["ACL SETUSER default -get"]);
        thread::sleep(Duration::from_millis(1_100));
        let saved = pair.ask(&callers(RESP2, &asks));
        assert_eq!(saved.fused(), (false, true), "{saved:?}");
    });
}

/// Where the server has no MGET, MSET, GET or SET, replies equal the server's.
#[test]
fn missing_mget_mset_or_get_is_not_noticed() {
    let neither: &[&str] = &[
        "--rename-command",
        "MGET",
        "",
        "--rename-command",
        "MSET",
        "",
    ];
    // Whether GETs and SETs are fused: at first, and when that was refused.
    for (args, at_first, then) in [
        (neither, (true, true), (false, false)),
        (
            &["--rename-command", "GET", ""],
            (false, true),
            (false, true),
        ),
        (
            &["--rename-command", "SET", ""],
            (true, false),
            (true, false),
        ),
    ] {
        on_every_pair(args, |pair| {
            pair.tell(&["APPEND a 1", "APPEND b 2", "RPUSH list 1"]);
            let asks = [
                "GET a",
                "GET b",
                "SET c 3",
                "SET d 4",
                "GET list",
                "GET nosuch",
            ];
            for round in 0..3 {
                let saved = pair.ask(&callers(RESP2, &asks));
                let fused = if round == 0 { at_first } else { then };
                assert_eq!(saved.fused(), fused, "{args:?}, round {round}: {saved:?}");
            }
        });
    }
}

#[test]
fn keyspace_events_are_those_of_single_commands() {
    // `m` (a missed key) and `n` (a new key) are not part of `A`.
    on_every_pair(&["--notify-keyspace-events", "AKEm"], |pair| {
        if pair.direct.version >= (7, 0) {
            pair.tell(&["CONFIG SET notify-keyspace-events AKEmn"]);
        }
        pair.tell(&[
            "SET there 1",
            "SET one 1",
            "SET two 2",
            "RPUSH list a",
            "SET temporary 2 EX 1000",
        ]);
        let listen = |target: &Target| {
            let mut listener = target.direct_client();
            listener.call("PSUBSCRIBE __key*");
            listener
        };
        let mut listeners = [listen(&pair.direct), listen(&pair.proxied)];
        let saved = pair.ask(&callers(
            RESP2,
            &[
                "SET a 1",
                "SET there 2",
                "GET one",
                "SET temporary 3",
                "SET list 4",
                "GET two",
                "SET b 5",
                "GET nosuch",
            ],
        ));
        assert_eq!((saved.sets, saved.gets), (5, 3), "{saved:?}");
        let mut events = listeners.each_mut().map(|listener| {
            let mut events = Vec::new();
            while !listener.is_quiet(Duration::from_millis(100)) {
                let event = format!("{:?}", listener.reply());
                // The requests that keep the links busy are not part of the test.
                if !event.contains("tried") {
                    events.push(event);
                }
            }
            events.sort();
            events
        });
        let [missed, missed_fused] = events.each_mut().map(|events| {
            let missed = |event: &mut String| event.contains("keymiss");
            events.extract_if(.., missed).count()
        });
        assert_eq!(
            (missed, missed_fused),
            (2, 4),
            "a miss in a joined read is read again"
        );
        assert!(events[0].len() >= 10, "{:?}", events[0]);
        assert_eq!(events[1], events[0], "{}", pair.proxied.name);
    });
}

#[test]
fn huge_values_among_small_ones_reach_each_whole() {
    let mut options = options(&[]);
    // So that the larger ones are more than respool holds for a client.
    let bounds = [
        "--session-output-soft-bytes=256KiB",
        "--session-output-hard-bytes=1MiB",
    ];
    options.respool.extend(bounds.map(str::to_owned));
    for binary in installed() {
        let pair = &mut Pair::new(&binary, &options);
        let value = |len: usize| -> Vec<u8> { (0..len).map(|at| (at * 7 % 251) as u8).collect() };
        for target in [&pair.direct, &pair.proxied] {
            let mut client = target.direct_client();
            for len in [10, 5_000, 20_000, 300_000, 3 << 20] {
                let key = format!("value:{len}");
                client.call_args(&[b"SET", key.as_bytes(), &value(len)]);
            }
        }
        let asks = [
            "GET value:10",
            "GET value:300000",
            "GET value:5000",
            "GET value:3145728",
            "GET nosuch",
            "GET value:20000",
            "GET value:300000",
            "GET value:10",
            "GET value:3145728",
            "GET value:5000",
        ];
        let saved = pair.ask(&callers(RESP2, &asks));
        assert!(saved.gets >= 6 && saved.collapsed > 0, "{saved:?}");
        // One client sends all of it, so a reply that is too large to hold stands between its
        // others.
        let mut all = callers(RESP3, &asks);
        all.push(caller(RESP3, &asks));
        pair.ask(&all);
        let set = |key: &str, len: usize| Caller {
            hello: RESP2,
            asks: vec![
                request(&[b"SET", key.as_bytes(), &value(len)]),
                request(&[b"GET", key.as_bytes()]),
            ],
        };
        let sets = |lens: &[usize]| -> Vec<Caller> {
            let set = |len| set(&format!("new:{len}"), len);
            lens.iter().copied().map(set).collect()
        };
        // As many bytes as fit one batch.
        let saved = pair.ask(&sets(&[1, 7_000, 2, 8_000, 3]));
        assert!(saved.sets >= 5, "{saved:?}");
        let mut all = sets(&[4, 9_000, 15_000, 5, 100_000, 300_000, 6, 1 << 20, 7]);
        all.extend(callers(RESP2, &asks));
        pair.ask(&all);
    }
}

/// Equal reads are sent once, but never across a write of the same client.
#[test]
fn equal_reads_collapse_but_not_across_own_writes() {
    on_every_pair(&[], |pair| {
        pair.tell(&[
            "SET k 1",
            "RPUSH list a b c",
            "HSET hash f v",
            "SADD set m",
            "ZADD zset 1 m",
        ]);
        let reads = [
            "LLEN list",
            "STRLEN k",
            "LLEN list",
            "LRANGE list 0 -1",
            "LRANGE list 0 1",
            "LRANGE list 0 -1",
            "HGETALL hash",
            "HGETALL hash",
            "ZSCORE zset m",
            "ZSCORE zset m",
            "SMEMBERS set",
            "SMEMBERS set",
            "LLEN k",
            "LLEN k",
            "GET k",
            "GET k",
            "EXISTS k",
            "EXISTS k",
            "TYPE list",
            "TYPE list",
        ];
        for hello in [RESP2, RESP3] {
            let saved = pair.ask(&callers(hello, &reads));
            // EXISTS may have several keys, and is left alone for that.
            assert_eq!(saved.collapsed, 8, "{saved:?}");
        }
        let mut all = callers(RESP2, &["LLEN list", "LLEN list", "GET k", "GET k"]);
        // A writer sees its own writes; these keys are its own.
        for client in ["a", "b"] {
            all.push(Caller {
                hello: RESP2,
                asks: [
                    "LLEN list",
                    "RPUSH list x",
                    "LLEN list",
                    "LLEN list",
                    "GET k",
                    "SET k 1",
                    "GET k",
                    "GET k",
                ]
                .iter()
                .map(|ask| own(client, ask))
                .collect(),
            });
        }
        let saved = pair.ask(&all);
        assert!(saved.collapsed >= 2, "{saved:?}");
    });
}

/// INFO counts the requests that coalescing has saved.
#[test]
fn saved_requests_are_counted() {
    on_every_pair(&[], |pair| {
        pair.tell(&["MSET a 1 b 2 c 3 d 4", "RPUSH list a"]);
        let asks = [
            "GET a",
            "GET b",
            "GET c",
            "GET d",
            "GET a",
            "SET x 1",
            "SET y 2",
            "LLEN list",
            "LLEN list",
            "INCR n",
        ];
        let saved = pair.ask(&callers(RESP2, &asks));
        assert_eq!(
            (saved.gets, saved.sets, saved.collapsed),
            (5, 2, 2),
            "{saved:?}"
        );
        let mut client = pair.proxied.client();
        // One MGET for five, one MSET for two, one LLEN for two.
        assert_eq!(counter(&mut client, "commands_saved"), 4 + 1 + 1);
        assert_eq!(counter(&mut client, "fused_batches"), 2);
        let Reply::Bulk(text) = client.call("INFO respool") else {
            panic!("INFO is a text");
        };
        let text = String::from_utf8(text).expect("INFO is ASCII");
        let sizes = text
            .lines()
            .find_map(|line| line.strip_prefix("respool_batch_requests:"))
            .unwrap_or_else(|| panic!("{text}"));
        let of = |size: &str| {
            let counts = sizes.split(',').filter_map(|bucket| bucket.split_once('='));
            let count = counts
                .filter(|(name, _)| *name == size)
                .map(|(_, count)| count.parse::<u64>().expect("a number"));
            count.sum::<u64>()
        };
        assert_eq!(
            (of("4"), of("16")),
            (1, 1),
            "one batch of 4 requests and one of 16: {sizes}"
        );
        let batches = counter(&mut client, "batches");
        let buckets = [
            "1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1024", "more",
        ];
        assert_eq!(buckets.map(of).iter().sum::<u64>(), batches, "{sizes}");
    });
}

/// Some requests have left together when the connection is lost, and some have gathered behind
/// them. Returns whether that happened: batches wait for the clock, and tests may be slow.
fn lose_joined_requests(binary: &Path, comes_back: bool) -> bool {
    let options = Options::with(&[
        "--flush-rule=server-cpu",
        "--max-delay-us=150ms",
        "--request-timeout-ms=10s",
    ]);
    let target = Target::direct(binary, &options);
    let fault_proxy = FaultProxy::start(target.server.address(), FaultMode::Pass);
    let target = target.behind(fault_proxy.address(), &options);
    target.direct_client().call("MSET x 1 y 2");
    // A connection that is younger than a second when it is lost is not replaced at once.
    thread::sleep(Duration::from_millis(1_100));
    // respool joins no requests before it has seen that the user may send MGET and MSET.
    let tried = ["GET x", "GET x", "SET tried 1", "SET tried 1"].map(words);
    target.client().exchange(tried.concat(), tried.len());
    let count = |name: &str| counter(&mut target.client(), name);
    let mut asked = count("link_requests");
    let mut ask = |lines: &[&str]| -> Vec<RespClient> {
        let ask = |line: &&str| {
            let mut client = target.client();
            client.send(&words(line));
            client
        };
        let clients = lines.iter().map(ask).collect();
        asked += lines.len() as u64;
        wait_until("the link has all requests", Duration::from_secs(5), || {
            count("link_requests") == asked
        });
        clients
    };
    target.server.stop();
    // A write in front would have its link taken over.
    let mut busy = ask(&["TTL busy"]);
    let batches = count("batches");
    let sent = ["SET a 1", "SET b 1", "GET x", "GET y", "GET x"];
    let mut were_sent = ask(&sent);
    wait_until("the batch has left", Duration::from_secs(5), || {
        count("batches") == batches + 1
    });
    let not_sent = ["SET c 1", "SET d 1", "INCR n", "GET x", "GET x"];
    let mut were_not_sent = ask(&not_sent);
    // After a while one request of each kind leaves alone again, and shows the right.
    let is_as_meant = (count("fused_sets"), count("fused_gets")) == (2, 3);
    if !is_as_meant || count("batches") > batches + 1 {
        return false;
    }
    if !comes_back {
        fault_proxy.set(FaultMode::CloseOnAccept);
    }
    fault_proxy.reset_all();
    target.server.cont();
    assert_eq!(fate(&busy[0].reply()) == RequestFate::Replied, comes_back);
    for (line, client) in sent.iter().zip(&mut were_sent) {
        let reply = client.reply();
        match (line.starts_with("GET"), comes_back) {
            (false, _) => assert_eq!(fate(&reply), RequestFate::Unknown, "{line}: {reply:?}"),
            (true, true) => assert_eq!(fate(&reply), RequestFate::Replied, "{line}: {reply:?}"),
            (true, false) => assert_ne!(fate(&reply), RequestFate::Replied, "{line}: {reply:?}"),
        }
    }
    let expected = if comes_back {
        RequestFate::Replied
    } else {
        RequestFate::NotExecuted
    };
    for (line, client) in not_sent.iter().zip(&mut were_not_sent) {
        let reply = client.reply();
        assert_eq!(fate(&reply), expected, "{line}: {reply:?}");
    }
    let held = if comes_back {
        Reply::bulk("1")
    } else {
        Reply::Null
    };
    assert_eq!(
        target.direct_client().call("MGET c d n"),
        Reply::Array(vec![held; 3])
    );
    true
}

/// When a connection is lost, the client of each fused request learns the fate of its request.
#[test]
fn lost_connection_reports_each_fused_request() {
    for binary in installed() {
        for comes_back in [false, true] {
            let came_to_it = (0..10).any(|_| lose_joined_requests(&binary, comes_back));
            assert!(came_to_it, "ten times too slow");
        }
    }
}

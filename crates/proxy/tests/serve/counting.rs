//! Sessions that count: each has keys of its own, and knows of each what it must be, also while what is behind respool changes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use respool_lab::servers::Server;

use super::client::{Client, Value, is_not_executed, request, words};
use super::divided::text;
use super::target::{Options, Random, any_server, one_of_each_worker, proxied, seed, wait_until};

/// Within which every session is answered again when the servers are what they should be.
const HEALED: Duration = Duration::from_secs(5);
/// Within which all that was acknowledged is at replicas, on a machine that has other things to do.
const HANDED_ON: Duration = Duration::from_secs(20);

/// What may go wrong for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    /// Nothing; but what asks for several keys of one slot at once may not be executed while it moves.
    Nothing,
    /// What says what became of the request: a connection is gone, or a server has only just started.
    Cuts,
    /// The same: a node is gone, and perhaps what it acknowledged last. Not what its replicas had by then: see [`Steps`].
    Loss,
}

/// A key that is only ever incremented, by one session.
#[derive(Debug)]
struct Count {
    key: String,
    /// What it was said to be last.
    last: i64,
    /// Increments since that may have been executed.
    unknown: i64,
    /// What a replica has of it, if what came behind may be lost.
    kept: Option<i64>,
}

impl Count {
    fn new(key: String, first: i64) -> Count {
        Count {
            key,
            last: first,
            unknown: 0,
            kept: None,
        }
    }

    /// It was said to be `value`, after `more` increments. Whether it may be is answered; from then on it is that and nothing else.
    ///
    /// Of the unknown ones so many have been executed, and no other ever will: a session's requests about a key are executed
    /// in the order asked, and a server reads nothing more of a connection that is gone by the time the next one is open.
    fn take(&mut self, value: i64, more: i64) -> Result<(), String> {
        let most = self.last + more + self.unknown;
        let least = self.kept.unwrap_or(self.last) + more;
        if !(least..=most).contains(&value) {
            return Err(format!("it is {value}, {more} more than {self:?}"));
        }
        self.last = value;
        self.unknown = 0;
        Ok(())
    }

    /// What it was said to be last is at a replica; what it will be is not yet.
    fn keep(&mut self) {
        self.kept = Some(self.last);
    }
}

/// Sessions that hand on what they count before something happens that may lose what is not handed on.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// How often that was wanted.
    wanted: AtomicU64,
    /// How often a session has done so.
    done: AtomicU64,
}

impl Steps {
    /// What has been acknowledged to any session by now is at a replica when this returns, and whoever loses it fails the
    /// test. It is for moments in which all servers are what they should be.
    pub(crate) fn hand_on(&self) {
        let wanted = self.wanted.fetch_add(1, Ordering::SeqCst) + 1;
        wait_until("every session has handed on what it has", HANDED_ON, || {
            self.done.load(Ordering::SeqCst) == wanted * SESSIONS
        });
    }
}

/// What was asked, with the places of the counts or texts that it is about.
#[derive(Clone, Debug)]
enum Asked {
    Incr(usize),
    Get(usize),
    Mget(Vec<usize>),
    Block(usize, usize),
    Eval(usize),
    Mset(Vec<(usize, String)>),
    Del(Vec<usize>),
    Read(Vec<usize>),
}

/// A session that knows what its keys must be.
pub(crate) struct Counting {
    client: Client,
    random: Random,
    counts: Vec<Count>,
    /// Keys that it sets and deletes, with what is there.
    texts: Vec<(String, Value)>,
    allowed: Allowed,
    /// What is answered at the moment.
    asked: Option<Asked>,
    /// How often it was told what.
    errors: BTreeMap<String, u64>,
    answered: u64,
    refused: u64,
    /// The longest that a pipeline took.
    longest: Duration,
}

/// Counts of a session; so many keys are in one slot.
const COUNTS: usize = 16;
pub(crate) const TOGETHER: usize = 4;

impl Counting {
    /// The session with this number; no two have a key or a value of a count in common.
    fn start(mut client: Client, number: u64, seed: u64, allowed: Allowed) -> Counting {
        let key = |place: usize| match place < TOGETHER {
            true => format!("{{t{number}}}:{place}"),
            false => format!("c{number}:{place}"),
        };
        let first = |place| (number as i64 * COUNTS as i64 + place as i64 + 1) * 1_000_000;
        let counts = (0..COUNTS).map(|place| Count::new(key(place), first(place)));
        let counts: Vec<Count> = counts.collect();
        for count in &counts {
            let set = client.call(&format!("SET {} {}", count.key, count.last));
            assert_eq!(set, Value::ok());
        }
        let texts = (0..8).map(|place| (format!("d{number}:{place}"), Value::Null));
        Counting {
            client,
            random: Random::new(seed.wrapping_add(number)),
            counts,
            texts: texts.collect(),
            allowed,
            asked: None,
            errors: BTreeMap::new(),
            answered: 0,
            refused: 0,
            longest: Duration::ZERO,
        }
    }

    fn place(&mut self) -> usize {
        self.random.below(COUNTS as u64) as usize
    }

    /// Some of so many, none twice.
    fn some(&mut self, of: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..of).collect();
        for place in 0..of - 1 {
            let other = place + self.random.below((of - place) as u64) as usize;
            all.swap(place, other);
        }
        let count = 1 + self.random.below(6) as usize;
        all.truncate(count);
        all
    }

    fn ask(&mut self, out: &mut Vec<u8>) -> Asked {
        let place = self.place();
        let key = self.counts[place].key.clone();
        let kinds = match self.allowed {
            Allowed::Nothing => 100,
            // What is set may be, or not; the counts show that well enough.
            Allowed::Cuts | Allowed::Loss => 82,
        };
        match self.random.below(kinds) {
            0..40 => {
                out.extend(words(&format!("INCR {key}")));
                Asked::Incr(place)
            }
            40..60 => {
                out.extend(words(&format!("GET {key}")));
                Asked::Get(place)
            }
            60..68 => {
                let places = self.some(COUNTS);
                let keys = places.iter().map(|place| self.counts[*place].key.as_str());
                let asked: Vec<&str> = ["MGET"].into_iter().chain(keys).collect();
                out.extend(request(&asked));
                Asked::Mget(places)
            }
            68..75 => {
                let one = self.random.below(TOGETHER as u64) as usize;
                let other = (one + 1) % TOGETHER;
                let (a, b) = (&self.counts[one].key, &self.counts[other].key);
                let block = format!("MULTI;INCR {a};INCR {b};EXEC");
                out.extend(block.split(';').flat_map(words));
                Asked::Block(one, other)
            }
            75..82 => {
                let script = "return redis.call('INCR',KEYS[1])";
                out.extend(request(&["EVAL", script, "1", &key]));
                Asked::Eval(place)
            }
            82..88 => {
                let places = self.some(self.texts.len());
                let mut asked = vec!["MSET".to_owned()];
                let mut set = Vec::new();
                for place in places {
                    let value = self.random.below(1_000_000).to_string();
                    asked.extend([self.texts[place].0.clone(), value.clone()]);
                    set.push((place, value));
                }
                out.extend(request(&asked));
                Asked::Mset(set)
            }
            kind => {
                let places = self.some(self.texts.len());
                let name = if kind < 92 { "DEL" } else { "MGET" };
                let keys = places.iter().map(|place| self.texts[*place].0.as_str());
                let asked: Vec<&str> = [name].into_iter().chain(keys).collect();
                out.extend(request(&asked));
                if kind < 92 {
                    Asked::Del(places)
                } else {
                    Asked::Read(places)
                }
            }
        }
    }

    /// Notes an error. Whether the request may have been executed.
    fn failed(&mut self, reply: &Value, is_several: bool) -> bool {
        let text = reply.error().unwrap_or("nil");
        let word = text.split(' ').next().unwrap_or_default();
        // A script could have said this itself, so it is not sent again. Nothing was executed.
        if matches!(self.asked, Some(Asked::Eval(_))) && word == "CLUSTERDOWN" {
            self.refused += 1;
            return false;
        }
        let is_allowed = match self.allowed {
            Allowed::Nothing => is_several && matches!(word, "TRYAGAIN" | "NOTSENT" | "EXECABORT"),
            Allowed::Cuts | Allowed::Loss => {
                let ours = is_not_executed(text);
                let restarts = self.allowed == Allowed::Cuts && word == "LOADING";
                ours || text.starts_with("UNKNOWN respool: ")
                    || restarts
                    || is_several && word == "EXECABORT"
            }
        };
        assert!(is_allowed, "{:?} is answered {text}", self.asked);
        *self.errors.entry(text.to_owned()).or_default() += 1;
        self.refused += 1;
        word == "UNKNOWN"
    }

    /// The reply to an increment.
    fn incremented(&mut self, place: usize, reply: &Value, is_several: bool) {
        match reply {
            Value::Integer(value) => self.is_said(place, *value, 1),
            reply => {
                let unknown = self.failed(reply, is_several);
                self.counts[place].unknown += i64::from(unknown);
            }
        }
    }

    /// A value that was read.
    fn is_read(&mut self, place: usize, reply: &Value) {
        // It was set before the load began: one that is not there has been lost whole.
        self.is_said(place, number(reply), 0);
    }

    fn is_said(&mut self, place: usize, value: i64, more: i64) {
        let taken = self.counts[place].take(value, more);
        taken.unwrap_or_else(|error| panic!("{error}"));
        self.answered += 1;
    }

    fn take_reply(&mut self, asked: Asked) {
        let reply = self.client.reply();
        self.asked = Some(asked.clone());
        match asked {
            Asked::Incr(place) | Asked::Eval(place) => self.incremented(place, &reply, false),
            Asked::Get(_) | Asked::Mget(_) if reply.error().is_some() => {
                let together = |places: &[usize]| {
                    let together = places.iter().filter(|place| **place < TOGETHER);
                    together.count() > 1
                };
                let is_several = matches!(&asked, Asked::Mget(places) if together(places));
                self.failed(&reply, is_several);
            }
            Asked::Get(place) => self.is_read(place, &reply),
            Asked::Mget(places) => {
                let Value::Array(values) = reply else {
                    panic!("MGET answers {reply:?}")
                };
                assert_eq!(values.len(), places.len());
                for (place, value) in places.into_iter().zip(&values) {
                    self.is_read(place, value);
                }
            }
            Asked::Block(one, other) => {
                let queued = self.client.replies(2);
                let executed = self.client.reply();
                match &executed {
                    Value::Array(values) if values.len() == 2 => {
                        for reply in [&reply].into_iter().chain(&queued) {
                            assert!(reply.error().is_none(), "{reply:?}: {executed:?}");
                        }
                        self.incremented(one, &values[0], true);
                        self.incremented(other, &values[1], true);
                    }
                    _ => {
                        for reply in [&reply].into_iter().chain(&queued) {
                            if reply.error().is_some() {
                                self.failed(reply, true);
                            }
                        }
                        self.incremented(one, &executed, true);
                        self.incremented(other, &executed, true);
                    }
                }
            }
            Asked::Mset(set) => {
                assert_eq!(reply, Value::ok());
                for (place, value) in set {
                    self.texts[place].1 = Value::bulk(value);
                }
                self.answered += 1;
            }
            Asked::Del(places) => {
                let there = |place: &&usize| self.texts[**place].1 != Value::Null;
                let there = places.iter().filter(there).count();
                assert_eq!(reply, Value::Integer(there as i64));
                for place in places {
                    self.texts[place].1 = Value::Null;
                }
                self.answered += 1;
            }
            Asked::Read(places) => {
                let there = places.iter().map(|place| self.texts[*place].1.clone());
                assert_eq!(reply, Value::Array(there.collect()));
                self.answered += 1;
            }
        }
    }

    /// Asks pipelines of up to 20 until it is over.
    fn run(&mut self, over: &AtomicBool, steps: &Steps) {
        let mut handed_on = 0;
        while !over.load(Ordering::SeqCst) {
            if steps.wanted.load(Ordering::SeqCst) > handed_on {
                self.hand_on();
                handed_on += 1;
                steps.done.fetch_add(1, Ordering::SeqCst);
            }
            let mut out = Vec::new();
            let depth = 1 + self.random.below(20);
            let asked: Vec<Asked> = (0..depth).map(|_| self.ask(&mut out)).collect();
            let before = self.refused;
            let sent = Instant::now();
            self.client.send(&out);
            for asked in asked {
                self.take_reply(asked);
            }
            self.longest = self.longest.max(sent.elapsed());
            if self.refused > before {
                // Who is refused at once would do nothing else.
                thread::sleep(Duration::from_millis(2));
            }
        }
    }

    /// Waits until replicas have what its counts are.
    fn hand_on(&mut self) {
        for place in 0..COUNTS {
            let key = self.counts[place].key.clone();
            wait_until("every key is read again", HEALED, || {
                let reply = self.client.call(&format!("GET {key}"));
                match reply.error() {
                    // It may be less than it was said to be, by another server.
                    None => self.is_read(place, &reply),
                    Some(_) => {
                        self.failed(&reply, false);
                    }
                }
                reply.error().is_none()
            });
        }
        wait_until("a replica has all of it", HANDED_ON, || {
            let handed_on = self.client.call("WAIT 1 5000");
            matches!(handed_on, Value::Integer(1..))
        });
        for count in &mut self.counts {
            count.keep();
        }
    }

    /// Each of its keys is answered again; what was unknown has been executed or never will.
    pub(crate) fn goes_on(&mut self) {
        for place in 0..COUNTS {
            let key = self.counts[place].key.clone();
            wait_until("every key is answered again", HEALED, || {
                let reply = self.client.call(&format!("INCR {key}"));
                self.incremented(place, &reply, false);
                reply.error().is_none()
            });
            let value = self.client.call(&format!("GET {key}"));
            assert_eq!(number(&value), self.counts[place].last, "{key}");
        }
    }
}

pub(crate) fn number(reply: &Value) -> i64 {
    let text = text(reply);
    text.parse()
        .unwrap_or_else(|_| panic!("{text} is no number"))
}

/// Lets many sessions, some of each worker, count before, while and after `trouble` happens; afterwards all of them go on.
/// Returns how often a session was told what.
pub(crate) fn counted<T>(
    address: SocketAddr,
    served: &mut T,
    allowed: Allowed,
    trouble: impl FnOnce(&mut T),
) -> BTreeMap<String, u64> {
    counted_in_steps(address, served, allowed, |served, _| trouble(served))
}

/// The same where trouble comes in several steps, between which everything is as it should be.
pub(crate) fn counted_in_steps<T>(
    address: SocketAddr,
    served: &mut T,
    allowed: Allowed,
    trouble: impl FnOnce(&mut T, &Steps),
) -> BTreeMap<String, u64> {
    let seed = seed();
    eprintln!("RESPOOL_TEST_SEED={seed}");
    let over = AtomicBool::new(false);
    let steps = Steps::default();
    // Each worker knows for itself what is behind it, and has to find out for itself what becomes of that.
    let mut clients = one_of_each_worker(address);
    assert!(clients.len() <= SESSIONS as usize, "some for each worker");
    clients.resize_with(SESSIONS as usize, || Client::connect(address));
    let mut sessions: Vec<Counting> = (0..)
        .zip(clients)
        .map(|(number, client)| Counting::start(client, number, seed, allowed))
        .collect();
    thread::scope(|scope| {
        let running: Vec<_> = sessions
            .iter_mut()
            .map(|session| {
                let (over, steps) = (&over, &steps);
                scope.spawn(move || session.run(over, steps))
            })
            .collect();
        thread::sleep(Duration::from_millis(200));
        let troubled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            if allowed == Allowed::Loss {
                steps.hand_on();
            }
            trouble(&mut *served, &steps);
        }));
        thread::sleep(Duration::from_millis(400));
        over.store(true, Ordering::SeqCst);
        for session in running {
            session
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        if let Err(panic) = troubled {
            std::panic::resume_unwind(panic);
        }
    });
    let mut errors = BTreeMap::new();
    for session in &mut sessions {
        session.goes_on();
        for (text, count) in &session.errors {
            *errors.entry(text.clone()).or_insert(0) += count;
        }
    }
    let answered: u64 = sessions.iter().map(|session| session.answered).sum();
    let longest = sessions.iter().map(|session| session.longest).max();
    eprintln!("{answered} answers, the longest pipeline took {longest:?}, and {errors:?}");
    assert!(answered > 100 * SESSIONS, "the load was a load");
    errors
}

pub(crate) const SESSIONS: u64 = 12;

#[test]
fn a_count_that_is_doubled_is_noticed_though_others_before_it_were_uncertain() {
    let mut count = Count::new("key".to_owned(), 100);
    count.unknown = 2;
    assert!(count.take(104, 1).is_err());
    assert_eq!(count.take(102, 1), Ok(()));
    // One of the two was executed. The other one never will be.
    assert!(count.take(104, 1).is_err());
    assert!(count.take(103, 0).is_err());
    assert_eq!(count.take(103, 1), Ok(()));
    count.unknown = 1;
    assert_eq!(count.take(103, 0), Ok(()), "a read tells it, too");
    assert!(count.take(104, 0).is_err());
    count.keep();
    assert!(count.take(105, 1).is_err(), "nor where some may be lost");
}

#[test]
fn a_count_that_is_lost_is_noticed_unless_no_replica_had_it() {
    let mut count = Count::new("key".to_owned(), 100);
    assert_eq!(count.take(101, 1), Ok(()));
    assert!(count.take(100, 0).is_err());
    assert!(count.take(101, 1).is_err());
    count.keep();
    for value in 102..110 {
        assert_eq!(count.take(value, 1), Ok(()));
    }
    assert_eq!(count.take(105, 0), Ok(()));
    assert!(count.take(107, 1).is_err(), "what was lost stays so");
    assert!(count.take(100, 0).is_err());
    assert!(count.take(101, 1).is_err());
    assert_eq!(count.take(101, 0), Ok(()), "all behind it");
}

/// What a server is made to do behind everybody's back, and under which rule a run notices it.
#[test]
fn a_run_fails_when_a_server_has_doubled_or_lost_what_it_may_not() {
    let primary = proxied(&Options::default());
    let port = primary.server.port().to_string();
    let follows = ["--replicaof", "127.0.0.1", &port];
    let replica = Server::start(&any_server(), &follows).unwrap_or_else(|error| panic!("{error}"));
    wait_until("it follows", HANDED_ON, || {
        let said = Client::connect(replica.address()).call("INFO replication");
        text(&said).contains("master_link_status:up")
    });
    let (key, of_several) = ("c7:9", "{t3}:1");
    for (order, noticed_by) in [
        (format!("INCR {key}"), &ALL[..]),
        // More than is counted in the time of a run.
        (format!("DECRBY {key} 500000"), &ALL),
        (format!("DECR {key}"), &ALL[..2]),
        (format!("DEL {of_several}"), &ALL),
        ("PING".to_owned(), &[]),
    ] {
        for allowed in ALL {
            let mut planted = primary.direct_client();
            assert_eq!(planted.call("FLUSHALL"), Value::ok());
            let run = || {
                let counted = |planted: &mut Client, _: &Steps| {
                    // Time for a few that are not handed on to be acknowledged.
                    thread::sleep(Duration::from_millis(200));
                    let done = planted.call(&order);
                    assert!(done.error().is_none(), "{done:?}");
                };
                counted_in_steps(primary.address(), &mut planted, allowed, counted);
            };
            let is_noticed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err();
            let expected = noticed_by.contains(&allowed);
            assert_eq!(is_noticed, expected, "{order}, {allowed:?}");
        }
    }
}

const ALL: [Allowed; 3] = [Allowed::Nothing, Allowed::Cuts, Allowed::Loss];

//! Sessions that count: each has keys of its own and knows their values, also while servers fail or
//! slots move.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Reply, RespClient, is_not_executed, one_of_each_worker, request, text, words};
use crate::random::{Random, seed};
use crate::time::wait_until;

/// The time in which every session is answered again once the servers are healthy.
const HEALED: Duration = Duration::from_secs(5);
/// The time in which replicas have all acknowledged writes, on a busy machine.
pub const HANDED_ON: Duration = Duration::from_secs(20);

/// The failures that a run allows a session to meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedFailures {
    /// None, except that a request for several keys of one slot may fail while the slot moves.
    Nothing,
    /// Errors that tell the fate of the request: a connection was lost, or a server has only just
    /// started.
    Cuts,
    /// The same, and lost writes: a node has failed, with writes that it acknowledged last. Writes
    /// that its replicas had must not be lost: see [`Steps`].
    Loss,
}

/// A key that one session only increments.
#[derive(Debug)]
struct KeyCount {
    key: String,
    /// Its value by the last reply.
    last: i64,
    /// Increments since then that may have run.
    unknown: i64,
    /// The value that a replica has; `None` until writes may be lost.
    kept: Option<i64>,
}

impl KeyCount {
    fn new(key: String, first: i64) -> KeyCount {
        KeyCount {
            key,
            last: first,
            unknown: 0,
            kept: None,
        }
    }

    /// Takes a value that a reply gave, after `more` increments. Refuses a value that cannot be;
    /// from then on the count is exactly this value.
    ///
    /// The value tells how many of the unknown increments have run, and no other one ever will: a
    /// session's requests for one key run in the order sent, and a server reads no more from a lost
    /// connection once the next one is open.
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

    /// Notes that a replica has the last value.
    fn keep(&mut self) {
        self.kept = Some(self.last);
    }
}

/// Lets sessions wait for replication before a step that may lose unreplicated writes.
#[derive(Debug, Default)]
pub struct Steps {
    /// How often a step has asked for it.
    wanted: AtomicU64,
    /// How often a session has done it.
    done: AtomicU64,
}

impl Steps {
    /// Returns when replicas have all writes that were acknowledged to any session so far. A later
    /// loss of them fails the test. Call it while all servers are healthy.
    pub fn hand_on(&self) {
        let wanted = self.wanted.fetch_add(1, Ordering::SeqCst) + 1;
        wait_until("every session has handed its values on", HANDED_ON, || {
            self.done.load(Ordering::SeqCst) == wanted * SESSIONS
        });
    }
}

/// A request, with the indexes of its counts or texts.
#[derive(Clone, Debug)]
enum CountingRequest {
    Incr(usize),
    Get(usize),
    Mget(Vec<usize>),
    Block(usize, usize),
    Eval(usize),
    Mset(Vec<(usize, String)>),
    Del(Vec<usize>),
    Read(Vec<usize>),
}

/// A session that knows the value of each of its keys.
pub struct Counting {
    client: RespClient,
    random: Random,
    counts: Vec<KeyCount>,
    /// Keys that it sets and deletes, with their values.
    texts: Vec<(String, Reply)>,
    allowed: AllowedFailures,
    /// The request whose reply is read now.
    asked: Option<CountingRequest>,
    /// How often it got each error.
    errors: BTreeMap<String, u64>,
    answered: u64,
    refused: u64,
    /// The longest time that a pipeline took.
    longest: Duration,
}

/// Counts of a session; [`TOGETHER`] of them share a slot.
const COUNTS: usize = 16;
/// Counts of a session whose keys are in one slot.
pub const TOGETHER: usize = 4;

impl Counting {
    /// The session with this number. Two sessions have no key and no value of a count in
    /// common.
    fn start(mut client: RespClient, number: u64, seed: u64, allowed: AllowedFailures) -> Counting {
        let key = |place: usize| match place < TOGETHER {
            true => format!("{{t{number}}}:{place}"),
            false => format!("c{number}:{place}"),
        };
        let first = |place| (number as i64 * COUNTS as i64 + place as i64 + 1) * 1_000_000;
        let counts = (0..COUNTS).map(|place| KeyCount::new(key(place), first(place)));
        let counts: Vec<KeyCount> = counts.collect();
        for count in &counts {
            let set = client.call(&format!("SET {} {}", count.key, count.last));
            assert_eq!(set, Reply::ok());
        }
        let texts = (0..8).map(|place| (format!("d{number}:{place}"), Reply::Null));
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

    /// Some of so many indexes, each once.
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

    fn ask(&mut self, out: &mut Vec<u8>) -> CountingRequest {
        let place = self.place();
        let key = self.counts[place].key.clone();
        let kinds = match self.allowed {
            AllowedFailures::Nothing => 100,
            // Without the requests that set texts: an uncertain SET or DEL leaves two possible
            // values.
            AllowedFailures::Cuts | AllowedFailures::Loss => 82,
        };
        match self.random.below(kinds) {
            0..40 => {
                out.extend(words(&format!("INCR {key}")));
                CountingRequest::Incr(place)
            }
            40..60 => {
                out.extend(words(&format!("GET {key}")));
                CountingRequest::Get(place)
            }
            60..68 => {
                let places = self.some(COUNTS);
                let keys = places.iter().map(|place| self.counts[*place].key.as_str());
                let asked: Vec<&str> = ["MGET"].into_iter().chain(keys).collect();
                out.extend(request(&asked));
                CountingRequest::Mget(places)
            }
            68..75 => {
                let one = self.random.below(TOGETHER as u64) as usize;
                let other = (one + 1) % TOGETHER;
                let (a, b) = (&self.counts[one].key, &self.counts[other].key);
                let block = format!("MULTI;INCR {a};INCR {b};EXEC");
                out.extend(block.split(';').flat_map(words));
                CountingRequest::Block(one, other)
            }
            75..82 => {
                let script = "return redis.call('INCR',KEYS[1])";
                out.extend(request(&["EVAL", script, "1", &key]));
                CountingRequest::Eval(place)
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
                CountingRequest::Mset(set)
            }
            kind => {
                let places = self.some(self.texts.len());
                let name = if kind < 92 { "DEL" } else { "MGET" };
                let keys = places.iter().map(|place| self.texts[*place].0.as_str());
                let asked: Vec<&str> = [name].into_iter().chain(keys).collect();
                out.extend(request(&asked));
                if kind < 92 {
                    CountingRequest::Del(places)
                } else {
                    CountingRequest::Read(places)
                }
            }
        }
    }

    /// Notes an error. Returns whether the request may have run.
    fn failed(&mut self, reply: &Reply, is_several: bool) -> bool {
        let text = reply.error().unwrap_or("nil");
        let word = text.split(' ').next().unwrap_or_default();
        // A script can return this text itself, so respool does not retry it. Nothing has run.
        if matches!(self.asked, Some(CountingRequest::Eval(_))) && word == "CLUSTERDOWN" {
            self.refused += 1;
            return false;
        }
        let is_allowed = match self.allowed {
            AllowedFailures::Nothing => {
                is_several && matches!(word, "TRYAGAIN" | "NOTSENT" | "EXECABORT")
            }
            AllowedFailures::Cuts | AllowedFailures::Loss => {
                let ours = is_not_executed(text);
                let restarts = self.allowed == AllowedFailures::Cuts && word == "LOADING";
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

    /// Takes the reply to an increment.
    fn incremented(&mut self, place: usize, reply: &Reply, is_several: bool) {
        match reply {
            Reply::Integer(value) => self.is_said(place, *value, 1),
            reply => {
                let unknown = self.failed(reply, is_several);
                self.counts[place].unknown += i64::from(unknown);
            }
        }
    }

    /// Takes a value that was read.
    fn is_read(&mut self, place: usize, reply: &Reply) {
        // The count was set before the load began, so a missing key is a loss of the whole count.
        self.is_said(place, number(reply), 0);
    }

    fn is_said(&mut self, place: usize, value: i64, more: i64) {
        let taken = self.counts[place].take(value, more);
        taken.unwrap_or_else(|error| panic!("{error}"));
        self.answered += 1;
    }

    fn take_reply(&mut self, asked: CountingRequest) {
        let reply = self.client.reply();
        self.asked = Some(asked.clone());
        match asked {
            CountingRequest::Incr(place) | CountingRequest::Eval(place) => {
                self.incremented(place, &reply, false)
            }
            CountingRequest::Get(_) | CountingRequest::Mget(_) if reply.error().is_some() => {
                let together = |places: &[usize]| {
                    let together = places.iter().filter(|place| **place < TOGETHER);
                    together.count() > 1
                };
                let is_several =
                    matches!(&asked, CountingRequest::Mget(places) if together(places));
                self.failed(&reply, is_several);
            }
            CountingRequest::Get(place) => self.is_read(place, &reply),
            CountingRequest::Mget(places) => {
                let Reply::Array(values) = reply else {
                    panic!("MGET answers {reply:?}")
                };
                assert_eq!(values.len(), places.len());
                for (place, value) in places.into_iter().zip(&values) {
                    self.is_read(place, value);
                }
            }
            CountingRequest::Block(one, other) => {
                let queued = self.client.replies(2);
                let executed = self.client.reply();
                match &executed {
                    Reply::Array(values) if values.len() == 2 => {
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
            CountingRequest::Mset(set) => {
                assert_eq!(reply, Reply::ok());
                for (place, value) in set {
                    self.texts[place].1 = Reply::bulk(value);
                }
                self.answered += 1;
            }
            CountingRequest::Del(places) => {
                let there = |place: &&usize| self.texts[**place].1 != Reply::Null;
                let there = places.iter().filter(there).count();
                assert_eq!(reply, Reply::Integer(there as i64));
                for place in places {
                    self.texts[place].1 = Reply::Null;
                }
                self.answered += 1;
            }
            CountingRequest::Read(places) => {
                let there = places.iter().map(|place| self.texts[*place].1.clone());
                assert_eq!(reply, Reply::Array(there.collect()));
                self.answered += 1;
            }
        }
    }

    /// Sends pipelines of up to 20 requests until the run is over.
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
            let asked: Vec<CountingRequest> = (0..depth).map(|_| self.ask(&mut out)).collect();
            let before = self.refused;
            let sent = Instant::now();
            self.client.send(&out);
            for asked in asked {
                self.take_reply(asked);
            }
            self.longest = self.longest.max(sent.elapsed());
            if self.refused > before {
                // A session whose requests fail at once would otherwise spin.
                thread::sleep(Duration::from_millis(2));
            }
        }
    }

    /// Waits until replicas have its counts.
    fn hand_on(&mut self) {
        for place in 0..COUNTS {
            let key = self.counts[place].key.clone();
            wait_until("every key is read again", HEALED, || {
                let reply = self.client.call(&format!("GET {key}"));
                match reply.error() {
                    // It may be less than before, from another server.
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
            matches!(handed_on, Reply::Integer(1..))
        });
        for count in &mut self.counts {
            count.keep();
        }
    }

    /// Every key is answered again. Each unknown increment has run, or never will.
    pub fn goes_on(&mut self) {
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

/// The number that a bulk string holds.
pub fn number(reply: &Reply) -> i64 {
    let text = text(reply);
    text.parse()
        .unwrap_or_else(|_| panic!("{text} is no number"))
}

/// Runs many sessions, some on each worker, before, during and after `trouble`. Afterwards all of
/// them go on. Returns how often each error came.
pub fn counted<T>(
    address: SocketAddr,
    served: &mut T,
    allowed: AllowedFailures,
    trouble: impl FnOnce(&mut T),
) -> BTreeMap<String, u64> {
    counted_in_steps(address, served, allowed, |served, _| trouble(served))
}

/// The same for trouble in several steps, with healthy servers between them.
pub fn counted_in_steps<T>(
    address: SocketAddr,
    served: &mut T,
    allowed: AllowedFailures,
    trouble: impl FnOnce(&mut T, &Steps),
) -> BTreeMap<String, u64> {
    let seed = seed();
    eprintln!("RESPOOL_TEST_SEED={seed}");
    let over = AtomicBool::new(false);
    let steps = Steps::default();
    // Each worker knows its servers by itself and has to notice their failures by itself.
    let mut clients = one_of_each_worker(address);
    assert!(clients.len() <= SESSIONS as usize, "some for each worker");
    clients.resize_with(SESSIONS as usize, || RespClient::connect(address));
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
            if allowed == AllowedFailures::Loss {
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

/// Sessions of a run.
pub const SESSIONS: u64 = 12;

#[cfg(test)]
mod tests {
    use super::*;

    /// A doubled increment is noticed although earlier ones were uncertain.
    #[test]
    fn doubled_count_is_noticed_behind_uncertain_ones() {
        let mut count = KeyCount::new("key".to_owned(), 100);
        count.unknown = 2;
        assert!(count.take(104, 1).is_err());
        assert_eq!(count.take(102, 1), Ok(()));
        // One of the two ran. The other one never will.
        assert!(count.take(104, 1).is_err());
        assert!(count.take(103, 0).is_err());
        assert_eq!(count.take(103, 1), Ok(()));
        count.unknown = 1;
        assert_eq!(count.take(103, 0), Ok(()), "a read tells it, too");
        assert!(count.take(104, 0).is_err());
        count.keep();
        assert!(
            count.take(105, 1).is_err(),
            "it may not be one more, even if some may be lost"
        );
    }

    /// A lost increment is noticed if a replica had it.
    #[test]
    fn lost_count_is_noticed_if_a_replica_had_it() {
        let mut count = KeyCount::new("key".to_owned(), 100);
        assert_eq!(count.take(101, 1), Ok(()));
        assert!(count.take(100, 0).is_err());
        assert!(count.take(101, 1).is_err());
        count.keep();
        for value in 102..110 {
            assert_eq!(count.take(value, 1), Ok(()));
        }
        assert_eq!(count.take(105, 0), Ok(()));
        assert!(count.take(107, 1).is_err(), "a lost count stays lost");
        assert!(count.take(100, 0).is_err());
        assert!(count.take(101, 1).is_err());
        assert_eq!(count.take(101, 0), Ok(()), "all behind it");
    }
}

//! Sessions that count: each has keys of its own, and knows of each what it must be, also while what is behind respool changes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::client::{Client, Value, request, words};
use super::divided::text;
use super::target::{Random, seed, wait_until};

/// Within which every session is answered again when the servers are what they should be.
const HEALED: Duration = Duration::from_secs(5);

/// What may go wrong for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    /// Nothing; but what asks for several keys of one slot at once may not be executed while it moves.
    Nothing,
    /// What says what became of the request: a connection is gone, or a server has only just started.
    Cuts,
    /// The same: a node is gone, and perhaps what it acknowledged last.
    Loss,
}

/// A key that is only ever incremented, by one session.
#[derive(Debug)]
struct Count {
    key: String,
    /// What it was said to be last.
    last: i64,
    /// Increments that may have been executed.
    unknown: i64,
}

impl Count {
    /// It was said to be `value`, after `more` increments.
    fn take(&mut self, value: i64, more: i64, allowed: Allowed) {
        let Count { key, last, unknown } = self;
        let least = *last + more;
        let is_lost = allowed == Allowed::Loss;
        assert!(
            value <= least + *unknown && (value >= least || is_lost),
            "{key} is {value} and was {last}, {more} more, perhaps {unknown} more"
        );
        *last = value;
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
    pub(crate) fn start(address: SocketAddr, number: u64, seed: u64, allowed: Allowed) -> Counting {
        let key = |place: usize| match place < TOGETHER {
            true => format!("{{t{number}}}:{place}"),
            false => format!("c{number}:{place}"),
        };
        let first = |place| (number as i64 * COUNTS as i64 + place as i64 + 1) * 1_000_000;
        let counts = (0..COUNTS).map(|place| Count {
            key: key(place),
            last: first(place),
            unknown: 0,
        });
        let counts: Vec<Count> = counts.collect();
        let mut client = Client::connect(address);
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
        let is_allowed = match self.allowed {
            Allowed::Nothing => is_several && matches!(word, "TRYAGAIN" | "NOTSENT" | "EXECABORT"),
            Allowed::Cuts | Allowed::Loss => {
                let ours = text.starts_with("NOTSENT respool: ");
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
            Value::Integer(value) => {
                let allowed = self.allowed;
                self.counts[place].take(*value, 1, allowed);
                self.answered += 1;
            }
            reply => {
                let unknown = self.failed(reply, is_several);
                self.counts[place].unknown += i64::from(unknown);
            }
        }
    }

    /// A value that was read.
    fn is_read(&mut self, place: usize, reply: &Value) {
        let value = match reply {
            Value::Null if self.allowed == Allowed::Loss => 0,
            reply => number(reply),
        };
        let allowed = self.allowed;
        self.counts[place].take(value, 0, allowed);
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
    pub(crate) fn run(&mut self, over: &AtomicBool) {
        while !over.load(Ordering::SeqCst) {
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

/// Lets many sessions count before, while and after `trouble` happens; afterwards all of them go on.
/// Returns how often a session was told what.
pub(crate) fn counted<T>(
    address: SocketAddr,
    served: &mut T,
    allowed: Allowed,
    trouble: impl FnOnce(&mut T),
) -> BTreeMap<String, u64> {
    let seed = seed();
    eprintln!("RESPOOL_TEST_SEED={seed}");
    let over = AtomicBool::new(false);
    let mut sessions: Vec<Counting> = (0..SESSIONS)
        .map(|number| Counting::start(address, number, seed, allowed))
        .collect();
    thread::scope(|scope| {
        let running: Vec<_> = sessions
            .iter_mut()
            .map(|session| {
                let over = &over;
                scope.spawn(move || session.run(over))
            })
            .collect();
        thread::sleep(Duration::from_millis(200));
        let troubled =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| trouble(&mut *served)));
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

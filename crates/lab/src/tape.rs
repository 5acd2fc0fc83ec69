//! The requests of a measurement, prepared with their replies.
//!
//! ```text
//! requests  | GET key:…0007 | GET key:…1202 | GET key:…0451 | …   every request has the same size
//! replies   | $2 ab         | $2 k9         | $2 xZ         | …   every reply has the same size
//!             ^ batch 0                       ^ batch 1           a batch is one slice of each
//! ```
//!
//! All connections play the same tape in a circle, each from its own position. Sending is one write
//! of prepared bytes, and checking is one comparison with prepared bytes. So the generator spends
//! next to nothing, and still checks every reply against its key.

use rand_distr::{Distribution, Zipf};
use respool_testkit::random::Random;
use respool_testkit::reply::write_bulk;

use crate::case::Verb;

/// Prebuilt requests and their replies.
#[derive(Clone, Debug)]
pub struct Tape {
    requests: Vec<u8>,
    replies: Vec<u8>,
    request_bytes: usize,
    reply_bytes: usize,
    batch: usize,
    batches: usize,
}

/// The value of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapeValues {
    /// Made from the key, so that a reply to another request shows.
    OfKey,
    /// The same for every key: all that an echo server can answer.
    Filler,
}

/// The settings of a tape.
#[derive(Clone, Copy, Debug)]
pub struct TapeRecipe {
    /// The command.
    pub verb: Verb,
    /// Requests of a batch.
    pub pipeline: usize,
    /// Different keys.
    pub keys: u32,
    /// Exponent of Zipf's law, with key 0 the most frequent; `None`: evenly.
    pub zipf: Option<f64>,
    /// Size of every value.
    pub value_bytes: usize,
    /// The value of a key.
    pub values: TapeValues,
}

/// Requests on a tape; large pipelines make it longer. Enough that the order of keys does not
/// matter, few enough for the second-level cache.
const REQUESTS: usize = 4096;
/// Requests on a tape of skewed keys. Rare keys must occur, and the concurrent requests of many
/// connections must be another sample each time: so it has far more requests than are ever in
/// flight.
const SKEWED_REQUESTS: usize = 1 << 18;
/// Bytes of a tape, about. Large values make it shorter, down to two batches.
const BYTES_MAX: usize = 64 << 20;

impl TapeRecipe {
    /// Checks that there is a tape of this recipe.
    ///
    /// # Errors
    /// One line with the reason.
    pub fn check(&self) -> Result<(), String> {
        match (self.verb, self.zipf) {
            (Verb::Mget(count) | Verb::Mset(count), _) if count > self.keys => Err(format!(
                "an {} of {count} different keys needs as many: --keys {count}",
                self.verb.command()
            )),
            (Verb::Mget(_) | Verb::Mset(_), Some(_)) => Err(format!(
                "the keys of an {} are all different: there is none by Zipf's law",
                self.verb.command()
            )),
            _ => Ok(()),
        }
    }

    /// Requests on the tape, before they fill whole batches.
    fn requests(&self) -> usize {
        let keys = self.verb.keys() as usize;
        let wanted = match (self.verb, self.zipf) {
            // Every key occurs once, for any number of keys in a request: the cost of a key depends
            // on how many keys the server has used recently.
            (Verb::Mget(_) | Verb::Mset(_), _) => self.keys as usize / keys,
            (_, Some(_)) => SKEWED_REQUESTS,
            (_, None) => REQUESTS,
        };
        wanted.min(BYTES_MAX / (keys * (self.value_bytes + 64)))
    }
}

impl Tape {
    /// Makes the tape of a recipe that passes its [`TapeRecipe::check`]. Equal recipes make equal
    /// tapes.
    pub fn new(recipe: &TapeRecipe) -> Tape {
        let batch = recipe.pipeline.max(1);
        let batches = recipe.requests().div_ceil(batch).max(2);
        let mut tape = Tape {
            requests: Vec::new(),
            replies: Vec::new(),
            request_bytes: 0,
            reply_bytes: 0,
            batch,
            batches,
        };
        let mut draw = Draw::new(recipe);
        let mut keys = vec![0; recipe.verb.keys() as usize];
        for _ in 0..batch * batches {
            draw.fill(&mut keys);
            write_request(&mut tape.requests, recipe, &keys);
            write_reply(&mut tape.replies, recipe, &keys);
            if tape.request_bytes == 0 {
                (tape.request_bytes, tape.reply_bytes) = (tape.requests.len(), tape.replies.len());
            }
        }
        assert_eq!(
            tape.requests.len(),
            tape.request_bytes * batch * batches,
            "one size"
        );
        assert_eq!(
            tape.replies.len(),
            tape.reply_bytes * batch * batches,
            "one size"
        );
        tape
    }

    /// Batches on the tape.
    pub fn batches(&self) -> usize {
        self.batches
    }

    /// Requests of each batch.
    pub fn batch_requests(&self) -> usize {
        self.batch
    }

    /// Size of each reply.
    pub fn reply_bytes(&self) -> usize {
        self.reply_bytes
    }

    /// The requests of a batch.
    pub fn requests(&self, batch: usize) -> &[u8] {
        let length = self.batch * self.request_bytes;
        &self.requests[batch * length..][..length]
    }

    /// The replies of a batch.
    pub fn replies(&self, batch: usize) -> &[u8] {
        let length = self.batch * self.reply_bytes;
        &self.replies[batch * length..][..length]
    }

    /// One request of a batch, for an error message.
    pub fn request(&self, batch: usize, place: usize) -> &[u8] {
        &self.requests(batch)[place * self.request_bytes..][..self.request_bytes]
    }

    /// One reply of a batch.
    pub fn reply(&self, batch: usize, place: usize) -> &[u8] {
        &self.replies(batch)[place * self.reply_bytes..][..self.reply_bytes]
    }
}

/// The choice of the next keys.
enum Draw {
    Evenly {
        keys: u32,
        random: Random,
    },
    Skewed {
        zipf: Zipf<f64>,
        random: Random,
    },
    /// All keys in a random order, repeated: the keys of one request differ, and each occurs
    /// equally often.
    Circle {
        order: Vec<u32>,
        at: usize,
    },
}

impl Draw {
    fn new(recipe: &TapeRecipe) -> Draw {
        let mut random = Random::new(0x5eed);
        let keys = recipe.keys.max(1);
        match (recipe.verb, recipe.zipf) {
            (Verb::Mget(_) | Verb::Mset(_), _) => {
                let mut order: Vec<u32> = (0..keys).collect();
                random.shuffle(&mut order);
                Draw::Circle { order, at: 0 }
            }
            (_, Some(theta)) => Draw::Skewed {
                zipf: Zipf::new(f64::from(keys), theta).expect("an exponent from 0, and keys"),
                random,
            },
            (_, None) => Draw::Evenly { keys, random },
        }
    }

    fn fill(&mut self, out: &mut [u32]) {
        match self {
            Draw::Evenly { keys, random } => {
                out.fill_with(|| random.below(u64::from(*keys)) as u32);
            }
            Draw::Skewed { zipf, random } => out.fill_with(|| zipf.sample(random) as u32 - 1),
            Draw::Circle { order, at } => out.fill_with(|| {
                let key = order[*at];
                *at = (*at + 1) % order.len();
                key
            }),
        }
    }
}

/// The name of a key, as `redis-benchmark -r` has it: both generators use the same keys.
pub fn key_name(key: u32) -> String {
    format!("key:{key:012}")
}

/// The value of a key.
pub fn value_of(key: u32, bytes: usize, values: TapeValues) -> Vec<u8> {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    match values {
        TapeValues::Filler => vec![b'x'; bytes],
        // The key to base 62, last digit first: two bytes tell 3,844 keys apart.
        TapeValues::OfKey => {
            let mut rest = key as usize;
            let mut value = vec![b'0'; bytes];
            for place in &mut value {
                *place = DIGITS[rest % 62];
                rest /= 62;
            }
            value
        }
    }
}

/// Writes the request for these keys, [`Verb::keys`] of them, as a client library would.
pub fn write_request(out: &mut Vec<u8>, recipe: &TapeRecipe, keys: &[u32]) {
    let name = key_name(keys[0]);
    match recipe.verb {
        Verb::Get => write_command(out, &[b"GET", name.as_bytes()]),
        Verb::Set => {
            let value = value_of(keys[0], recipe.value_bytes, recipe.values);
            write_command(out, &[b"SET", name.as_bytes(), &value]);
        }
        Verb::Multi => {
            write_command(out, &[b"MULTI"]);
            for verb in [Verb::Set, Verb::Get] {
                write_request(out, &TapeRecipe { verb, ..*recipe }, keys);
            }
            write_command(out, &[b"EXEC"]);
        }
        Verb::Mget(_) => {
            write_array(out, 1 + keys.len());
            write_bulk(out, b"MGET");
            for &key in keys {
                write_bulk(out, key_name(key).as_bytes());
            }
        }
        Verb::Mset(_) => {
            write_array(out, 1 + 2 * keys.len());
            write_bulk(out, b"MSET");
            for &key in keys {
                write_bulk(out, key_name(key).as_bytes());
                write_bulk(out, &value_of(key, recipe.value_bytes, recipe.values));
            }
        }
    }
}

/// Writes a command as an array of bulk strings.
pub fn write_command(out: &mut Vec<u8>, words: &[&[u8]]) {
    write_array(out, words.len());
    for word in words {
        write_bulk(out, word);
    }
}

fn write_array(out: &mut Vec<u8>, length: usize) {
    out.extend_from_slice(format!("*{length}\r\n").as_bytes());
}

fn write_reply(out: &mut Vec<u8>, recipe: &TapeRecipe, keys: &[u32]) {
    let value = |key: u32| value_of(key, recipe.value_bytes, recipe.values);
    match recipe.verb {
        Verb::Get => write_bulk(out, &value(keys[0])),
        Verb::Set | Verb::Mset(_) => out.extend_from_slice(b"+OK\r\n"),
        Verb::Multi => {
            out.extend_from_slice(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n");
            for verb in [Verb::Set, Verb::Get] {
                write_reply(out, &TapeRecipe { verb, ..*recipe }, keys);
            }
        }
        Verb::Mget(_) => {
            write_array(out, keys.len());
            for &key in keys {
                write_bulk(out, &value(key));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn recipe(verb: Verb, pipeline: usize) -> TapeRecipe {
        TapeRecipe {
            verb,
            pipeline,
            keys: 3000,
            zipf: None,
            value_bytes: 2,
            values: TapeValues::OfKey,
        }
    }

    #[test]
    fn request_has_the_bytes_of_a_client_library() {
        let mut out = Vec::new();
        write_request(&mut out, &recipe(Verb::Set, 1), &[63]);
        assert_eq!(
            out,
            b"*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000063\r\n$2\r\n11\r\n"
        );
        out.clear();
        write_request(&mut out, &recipe(Verb::Get, 1), &[7]);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000007\r\n");
        out.clear();
        let mget = recipe(Verb::Mget(2), 1);
        write_request(&mut out, &mget, &[7, 63]);
        assert_eq!(
            out,
            b"*3\r\n$4\r\nMGET\r\n$16\r\nkey:000000000007\r\n$16\r\nkey:000000000063\r\n"
        );
        out.clear();
        write_reply(&mut out, &mget, &[7, 63]);
        assert_eq!(out, b"*2\r\n$2\r\n70\r\n$2\r\n11\r\n");
        out.clear();
        let mset = recipe(Verb::Mset(2), 1);
        write_request(&mut out, &mset, &[7, 63]);
        assert_eq!(
            out,
            b"*5\r\n$4\r\nMSET\r\n$16\r\nkey:000000000007\r\n$2\r\n70\r\n\
              $16\r\nkey:000000000063\r\n$2\r\n11\r\n"
        );
    }

    #[test]
    fn two_bytes_tell_three_thousand_keys_apart() {
        let values: HashSet<Vec<u8>> = (0..3000)
            .map(|key| value_of(key, 2, TapeValues::OfKey))
            .collect();
        assert_eq!(values.len(), 3000);
    }

    #[test]
    fn large_values_make_a_short_tape() {
        let large = TapeRecipe {
            value_bytes: 16 << 20,
            ..recipe(Verb::Set, 1)
        };
        assert_eq!(Tape::new(&large).batches(), 3);
    }

    #[test]
    fn every_reply_on_the_tape_belongs_to_its_request() {
        let tape = Tape::new(&recipe(Verb::Get, 20));
        let mut seen = HashSet::new();
        for batch in 0..tape.batches() {
            assert_eq!(tape.requests(batch).len(), 20 * 36);
            for place in 0..20 {
                let request = String::from_utf8(tape.request(batch, place).to_vec()).unwrap();
                let digits = request.trim_end().rsplit_once("key:").unwrap().1;
                let key = digits.parse().unwrap();
                let mut reply = Vec::new();
                write_bulk(&mut reply, &value_of(key, 2, TapeValues::OfKey));
                assert_eq!(tape.reply(batch, place), reply);
                seen.insert(key);
            }
        }
        // 4,096 draws of 3,000 leave about a quarter untouched.
        assert!(seen.len() > 2000 && seen.iter().all(|&key| key < 3000));
    }

    /// The keys of a request, in order.
    fn keys_of(request: &[u8]) -> Vec<u32> {
        let text = String::from_utf8(request.to_vec()).unwrap();
        let digits = text.split("key:").skip(1);
        digits.map(|rest| rest[..12].parse().unwrap()).collect()
    }

    #[test]
    fn the_keys_of_an_mset_differ_and_all_keys_come_as_often() {
        let tape = Tape::new(&recipe(Verb::Mset(100), 1));
        let all = |batch| keys_of(tape.request(batch, 0));
        let keys: Vec<u32> = (0..tape.batches()).flat_map(all).collect();
        let different: HashSet<u32> = keys.iter().copied().collect();
        assert_eq!((keys.len(), different.len()), (3000, 3000));
        assert_eq!(tape.reply(0, 0), b"+OK\r\n");
    }

    #[test]
    fn the_keys_of_an_mget_differ_and_all_keys_come_as_often() {
        for (count, requests) in [(1, 3000), (7, 428), (1000, 3), (2000, 2), (3000, 2)] {
            let tape = Tape::new(&recipe(Verb::Mget(count), 1));
            let mut counts = vec![0; 3000];
            for batch in 0..tape.batches() {
                let keys = keys_of(tape.request(batch, 0));
                let different: HashSet<u32> = keys.iter().copied().collect();
                assert_eq!(
                    (keys.len(), different.len()),
                    (count as usize, count as usize)
                );
                let mut reply = format!("*{count}\r\n").into_bytes();
                for key in keys {
                    write_bulk(&mut reply, &value_of(key, 2, TapeValues::OfKey));
                    counts[key as usize] += 1;
                }
                assert_eq!(tape.reply(batch, 0), reply);
            }
            assert_eq!(tape.batches(), requests);
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(most - least <= 1, "{count} keys: {least} to {most} times");
        }
    }

    #[test]
    fn a_skewed_tape_is_long_and_asks_most_for_the_first_key() {
        let tape = Tape::new(&TapeRecipe {
            zipf: Some(0.99),
            ..recipe(Verb::Get, 20)
        });
        let requests = tape.batches() * tape.batch_requests();
        assert!(requests >= SKEWED_REQUESTS, "{requests}");
        let mut counts = vec![0u32; 3000];
        for batch in 0..tape.batches() {
            for key in keys_of(tape.requests(batch)) {
                counts[key as usize] += 1;
            }
        }
        let sum: f64 = (1..=3000).map(|rank| f64::from(rank).powf(-0.99)).sum();
        let expected = requests as f64 / sum;
        let found = f64::from(counts[0]);
        assert!(
            (found / expected - 1.0).abs() < 0.02,
            "{found} of {expected}"
        );
        assert!(counts.iter().filter(|&&count| count > 0).count() > 2900);
    }

    #[test]
    fn a_recipe_that_cannot_be_made_is_refused() {
        assert_eq!(recipe(Verb::Mget(3000), 1).check(), Ok(()));
        assert!(recipe(Verb::Mget(3001), 1).check().is_err());
        let skewed = TapeRecipe {
            zipf: Some(1.0),
            ..recipe(Verb::Mget(2), 1)
        };
        assert!(skewed.check().is_err());
    }

    const DRAWS: u32 = 200_000;

    /// The expected count of each rank.
    fn expected(ranks: u32, theta: f64) -> Vec<f64> {
        let weights: Vec<f64> = (1..=ranks).map(|k| f64::from(k).powf(-theta)).collect();
        let sum: f64 = weights.iter().sum();
        weights
            .iter()
            .map(|weight| weight / sum * f64::from(DRAWS))
            .collect()
    }

    fn drawn(ranks: u32, theta: f64) -> Vec<f64> {
        let zipf = Zipf::new(f64::from(ranks), theta).unwrap();
        let mut random = Random::new(20_260_101);
        let mut counts = vec![0.0; ranks as usize];
        for _ in 0..DRAWS {
            counts[zipf.sample(&mut random) as usize - 1] += 1.0;
        }
        counts
    }

    fn chi_square(found: &[f64], expected: &[f64]) -> f64 {
        found
            .iter()
            .zip(expected)
            .map(|(found, expected)| (found - expected).powi(2) / expected)
            .sum()
    }

    #[test]
    fn each_rank_comes_as_often_as_the_law_says() {
        // Even, little skew, usual skew, the logarithm, and more than that.
        for theta in [0.0, 0.5, 0.99, 1.0, 1.2, 2.0] {
            let found = chi_square(&drawn(50, theta), &expected(50, theta));
            // With 49 degrees of freedom a true sampler stays below it in 999 of 1,000 runs; the
            // seed is fixed.
            assert!(found < 85.35, "theta {theta}: {found}");
        }
        // The measure detects an error of a tenth.
        let found = chi_square(&drawn(50, 0.99), &expected(50, 1.09));
        assert!(found > 1_000.0, "{found}");
    }

    /// Of a million keys, head and tail have the shares of the law.
    #[test]
    fn million_keys_have_the_expected_head_and_tail() {
        let (found, expected) = (drawn(1_000_000, 0.99), expected(1_000_000, 0.99));
        let mut from = 0;
        for to in [1, 2, 3, 10, 100, 1_000, 10_000, 100_000, 500_000, 1_000_000] {
            let found: f64 = found[from..to].iter().sum();
            let expected: f64 = expected[from..to].iter().sum();
            // Four standard deviations of a count.
            assert!(
                (found - expected).abs() < 4.0 * expected.sqrt(),
                "ranks {from} to {to}: {found} of {expected}"
            );
            from = to;
        }
    }

    #[test]
    fn one_key_is_always_itself() {
        assert_eq!(drawn(1, 0.99), [f64::from(DRAWS)]);
    }
}

//! The requests of a measurement, made before it starts, with the replies that belong to them.
//!
//! ```text
//! requests  | GET key:…0007 | GET key:…1202 | GET key:…0451 | …     every request has the same size
//! replies   | $2 ab         | $2 k9         | $2 xZ         | …     and so has every reply
//!             ^ batch 0                       ^ batch 1             a batch is one slice of each
//! ```
//!
//! All connections play the same tape in a circle, each from a place of its own. So sending is one write of bytes
//! that lie ready, and checking is one comparison with bytes that lie ready: the generator spends next
//! to nothing on either, and still every reply is checked against the key that was asked for.

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

/// Which value belongs to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// One that is made from the key, so that a reply that belongs to another request shows.
    OfKey,
    /// The same for every key: what an echo server can answer.
    Filler,
}

/// What a tape is made for.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    /// SET or GET.
    pub verb: Verb,
    /// Requests of a batch.
    pub pipeline: usize,
    /// Different keys, chosen evenly.
    pub keys: u32,
    /// Size of every value.
    pub value_bytes: usize,
    /// Which value belongs to a key.
    pub values: Values,
}

/// Requests on a tape; large pipelines make it longer. Enough that the order of keys does not matter, little enough to
/// stay in the second-level cache.
const REQUESTS: usize = 4096;
/// Bytes of a tape, about; large values make it shorter, down to two batches.
const BYTES_MAX: usize = 64 << 20;

impl Tape {
    /// Records a tape. The same recipe makes the same tape.
    pub fn new(recipe: &Recipe) -> Tape {
        let batch = recipe.pipeline.max(1);
        let requests = (BYTES_MAX / (recipe.value_bytes + 64)).min(REQUESTS);
        let batches = requests.div_ceil(batch).max(2);
        let mut tape = Tape {
            requests: Vec::new(),
            replies: Vec::new(),
            request_bytes: 0,
            reply_bytes: 0,
            batch,
            batches,
        };
        let mut random = Random::new(0x5eed);
        for _ in 0..batch * batches {
            let key = random.below(u64::from(recipe.keys.max(1))) as u32;
            write_request(&mut tape.requests, recipe, key);
            write_reply(&mut tape.replies, recipe, key);
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

    /// What to send for a batch.
    pub fn requests(&self, batch: usize) -> &[u8] {
        let length = self.batch * self.request_bytes;
        &self.requests[batch * length..][..length]
    }

    /// What to receive for a batch.
    pub fn replies(&self, batch: usize) -> &[u8] {
        let length = self.batch * self.reply_bytes;
        &self.replies[batch * length..][..length]
    }

    /// One request of a batch, for a report of what went wrong.
    pub fn request(&self, batch: usize, place: usize) -> &[u8] {
        &self.requests(batch)[place * self.request_bytes..][..self.request_bytes]
    }

    /// One reply of a batch.
    pub fn reply(&self, batch: usize, place: usize) -> &[u8] {
        &self.replies(batch)[place * self.reply_bytes..][..self.reply_bytes]
    }
}

/// The name of a key: that of `redis-benchmark -r`, so that both generators ask for the same keys.
pub fn key_name(key: u32) -> String {
    format!("key:{key:012}")
}

/// The value of a key.
pub fn value_of(key: u32, bytes: usize, values: Values) -> Vec<u8> {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    match values {
        Values::Filler => vec![b'x'; bytes],
        // The key to base 62, last digit first: two bytes tell 3,844 keys apart.
        Values::OfKey => {
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

/// Writes `SET key value`, `GET key` or both in a transaction, as a client library would.
pub fn write_request(out: &mut Vec<u8>, recipe: &Recipe, key: u32) {
    let name = key_name(key);
    match recipe.verb {
        Verb::Get => write_command(out, &[b"GET", name.as_bytes()]),
        Verb::Set => {
            let value = value_of(key, recipe.value_bytes, recipe.values);
            write_command(out, &[b"SET", name.as_bytes(), &value]);
        }
        Verb::Multi => {
            write_command(out, &[b"MULTI"]);
            for verb in [Verb::Set, Verb::Get] {
                write_request(out, &Recipe { verb, ..*recipe }, key);
            }
            write_command(out, &[b"EXEC"]);
        }
    }
}

/// Writes a command as an array of bulks.
pub fn write_command(out: &mut Vec<u8>, words: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        write_bulk(out, word);
    }
}

fn write_reply(out: &mut Vec<u8>, recipe: &Recipe, key: u32) {
    match recipe.verb {
        Verb::Get => write_bulk(out, &value_of(key, recipe.value_bytes, recipe.values)),
        Verb::Set => out.extend_from_slice(b"+OK\r\n"),
        Verb::Multi => {
            out.extend_from_slice(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n");
            for verb in [Verb::Set, Verb::Get] {
                write_reply(out, &Recipe { verb, ..*recipe }, key);
            }
        }
    }
}

/// Writes a bulk.
pub fn write_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// SplitMix64: small, and the same everywhere.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        // The bias of a remainder is one in 2^64 / bound: nothing here.
        (mixed ^ (mixed >> 31)) % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn recipe(verb: Verb, pipeline: usize) -> Recipe {
        Recipe {
            verb,
            pipeline,
            keys: 3000,
            value_bytes: 2,
            values: Values::OfKey,
        }
    }

    #[test]
    fn a_request_is_what_a_client_library_sends() {
        let mut out = Vec::new();
        write_request(&mut out, &recipe(Verb::Set, 1), 63);
        assert_eq!(
            out,
            b"*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000063\r\n$2\r\n11\r\n"
        );
        out.clear();
        write_request(&mut out, &recipe(Verb::Get, 1), 7);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000007\r\n");
    }

    #[test]
    fn two_bytes_tell_three_thousand_keys_apart() {
        let values: HashSet<Vec<u8>> = (0..3000)
            .map(|key| value_of(key, 2, Values::OfKey))
            .collect();
        assert_eq!(values.len(), 3000);
    }

    #[test]
    fn large_values_make_a_short_tape() {
        let large = Recipe {
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
                write_bulk(&mut reply, &value_of(key, 2, Values::OfKey));
                assert_eq!(tape.reply(batch, place), reply);
                seen.insert(key);
            }
        }
        // 4,096 draws of 3,000 leave about a quarter untouched.
        assert!(seen.len() > 2000 && seen.iter().all(|&key| key < 3000));
    }
}

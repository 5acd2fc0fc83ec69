//! The requests of a client, and the replies that it may get.

use std::collections::VecDeque;

use respool_engine::SessionId;
use respool_protocol::encode;
use respool_protocol::reply::{self, Scanned};
use respool_protocol::request::{self, Found, Violation, split_inline};
use respool_protocol::value::Value;

use super::choices::Choices;
use super::servers::VALUE;

/// Bytes that the driver reads of a client in a turn.
const READ_BYTES: usize = 64 << 10;

/// The reply that a request may get. A value in it names its key.
#[derive(Debug)]
enum Expected {
    Anything,
    /// If it is a [`VALUE`], it is that of this key.
    ValueOf(Vec<u8>),
    /// If its elements are such values, they are those of these keys.
    ValuesOf(Vec<Vec<u8>>),
}

pub(crate) struct Client {
    pub(crate) session: SessionId,
    /// Bytes that were generated and that the engine has not got yet.
    pub(crate) unsent: Vec<u8>,
    /// Whether the engine wants to read it.
    pub(crate) is_read: bool,
    /// Whether it takes little output, and not at once.
    pub(crate) is_slow: bool,
    /// Bytes that were sent and are no whole request yet.
    begun: Vec<u8>,
    scanner: request::RequestScanner,
    /// Whether it has sent malformed bytes: later bytes do not count.
    has_erred: bool,
    /// The expected reply of each request that may still be answered.
    expected: VecDeque<Expected>,
    /// Whether the present request was answered before its end.
    answered_early: bool,
    /// The number of replies is unknown. MONITOR shows the requests of other clients. A line that
    /// is too long is refused or not, by the cut of its bytes. In a transaction, SUBSCRIBE of two
    /// channels has two replies, while the reply to EXEC counts one.
    is_uncounted: bool,
    has_opened: bool,
    got: Vec<u8>,
    replies: reply::ReplyScanner,
    /// Bytes of `got` that the scanner has seen.
    seen: usize,
}

impl Client {
    pub(crate) fn new(session: SessionId) -> Client {
        Client {
            session,
            unsent: Vec::new(),
            is_read: true,
            is_slow: false,
            begun: Vec::new(),
            scanner: request::RequestScanner::default(),
            has_erred: false,
            expected: VecDeque::new(),
            answered_early: false,
            is_uncounted: false,
            has_opened: false,
            got: Vec::new(),
            replies: reply::ReplyScanner::default(),
            seen: 0,
        }
    }

    /// The next bytes of the client.
    pub(crate) fn send(&mut self, choices: &mut Choices<'_>) -> Vec<u8> {
        if self.unsent.is_empty() {
            for _ in 0..=choices.below(4) {
                generate(choices, &mut self.unsent);
            }
        }
        let count = choices.piece_of(self.unsent.len()).min(READ_BYTES);
        let bytes: Vec<u8> = self.unsent.drain(..count).collect();
        self.note_sent(&bytes);
        bytes
    }

    fn note_sent(&mut self, bytes: &[u8]) {
        if self.has_erred {
            return;
        }
        self.begun.extend_from_slice(bytes);
        let mut at = 0;
        loop {
            let rest = &self.begun[at..];
            let (len, args) = match self.scanner.scan(rest, true) {
                Ok(Found::Request { len }) => {
                    let args = self.scanner.spans().iter();
                    (len, args.map(|span| span.of(rest).to_vec()).collect())
                }
                Ok(Found::Nothing { len }) => (len, Vec::new()),
                Ok(Found::Inline { len }) => match split_inline(&rest[..len]) {
                    Ok(words) => (len, words),
                    Err(_) => {
                        self.has_erred = true;
                        self.expected.push_back(Expected::Anything);
                        return;
                    }
                },
                Ok(Found::More) => break,
                Err(violation) => {
                    use Violation::{LongArrayHeader, LongBulkHeader, LongLine};
                    let too_long = [LongArrayHeader, LongBulkHeader, LongLine];
                    self.is_uncounted |= too_long.contains(&violation);
                    self.has_erred = true;
                    self.expected.push_back(Expected::Anything);
                    return;
                }
            };
            at += len;
            self.note_request(&args);
        }
        self.begun.drain(..at);
    }

    fn note_request(&mut self, args: &[Vec<u8>]) {
        let Some(name) = args.first() else {
            return;
        };
        self.is_uncounted |= name.eq_ignore_ascii_case(b"MONITOR");
        self.has_opened |= name.eq_ignore_ascii_case(b"MULTI");
        let subscribes = name.to_ascii_uppercase().ends_with(b"SUBSCRIBE");
        self.is_uncounted |= self.has_opened && subscribes && args.len() > 2;
        if std::mem::take(&mut self.answered_early) {
            return;
        }
        self.expected
            .push_back(match &name.to_ascii_uppercase()[..] {
                b"GET" if args.len() == 2 => Expected::ValueOf(args[1].clone()),
                b"MGET" => Expected::ValuesOf(args[1..].to_vec()),
                _ => Expected::Anything,
            });
    }

    /// Takes these bytes. They must be RESP, with at most one reply for each request, in order.
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        self.got.extend_from_slice(bytes);
        let mut begin = 0;
        while self.seen < self.got.len() {
            match self.replies.scan(&self.got[self.seen..]) {
                Ok(Scanned::Whole(len)) => {
                    self.seen += len;
                    let reply = self.got[begin..self.seen].to_vec();
                    self.take_reply(&reply);
                    begin = self.seen;
                }
                Ok(Scanned::Fragment) => self.seen = self.got.len(),
                Err(error) => panic!("a client got {error}: {}", shown(&self.got[begin..])),
            }
        }
        self.got.drain(..begin);
        self.seen -= begin;
    }

    fn take_reply(&mut self, reply: &[u8]) {
        if self.is_uncounted || is_message(reply) {
            return;
        }
        let value = Value::read(reply);
        match self.expected.pop_front() {
            Some(first) if first.fits(value.as_ref()) => return,
            None if !self.begun.is_empty() && !self.answered_early => {
                // The request was refused by its first part.
                self.answered_early = true;
                return;
            }
            None => panic!("a client got a reply too much: {}", shown(reply)),
            Some(_) => {}
        }
        // Requests without a reply (CLIENT REPLY) are passed over.
        while let Some(next) = self.expected.pop_front() {
            if next.fits(value.as_ref()) {
                return;
            }
        }
        panic!("a client got the value of another key: {}", shown(reply));
    }
}

impl Expected {
    fn fits(&self, reply: Option<&Value>) -> bool {
        let is_of = |value: &Value, key: &[u8]| match value {
            Value::Bulk(text) if text.starts_with(VALUE) => &text[VALUE.len()..] == key,
            _ => true,
        };
        match (self, reply) {
            (_, None) => true,
            (Expected::ValueOf(key), Some(value)) => is_of(value, key),
            (Expected::ValuesOf(keys), Some(Value::List(values))) => {
                let mut pairs = values.iter().zip(keys);
                pairs.all(|(value, key)| is_of(value, key))
            }
            (_, Some(Value::Bulk(text))) => !text.starts_with(VALUE),
            _ => true,
        }
    }
}

/// Whether these bytes answer no request: a push, or its RESP2 form.
fn is_message(reply: &[u8]) -> bool {
    const MESSAGES: [&str; 9] = [
        "*3\r\n$7\r\nmessage\r\n",
        "*3\r\n$8\r\nsmessage\r\n",
        "*4\r\n$8\r\npmessage\r\n",
        "*3\r\n$9\r\nsubscribe\r\n",
        "*3\r\n$10\r\npsubscribe\r\n",
        "*3\r\n$10\r\nssubscribe\r\n",
        "*3\r\n$11\r\nunsubscribe\r\n",
        "*3\r\n$12\r\npunsubscribe\r\n",
        "*3\r\n$12\r\nsunsubscribe\r\n",
    ];
    let mut all = MESSAGES.iter();
    reply.starts_with(b">") || all.any(|message| reply.starts_with(message.as_bytes()))
}

fn shown(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(200)].escape_ascii().to_string()
}

/// Adds a request, the beginning of one, or malformed bytes.
fn generate(choices: &mut Choices<'_>, out: &mut Vec<u8>) {
    let large = choices.of(&[3_000, 10, 70_000, 300_000]);
    let value = "v".repeat(match choices.one_in(6) {
        true => large,
        false => 5,
    });
    let number = choices.below(40);
    let key = match choices.below(8) {
        0 => format!("p:{number}"),
        1 => "{p:}x".to_owned(),
        2 => format!("{{a}}{number}"),
        3 if choices.one_in(4) => String::new(),
        _ => format!("k{number}"),
    };
    let other = format!("{}{}", choices.of(&["k", "p:", "{a}"]), choices.below(10));
    let (key, other, value) = (&*key, &*other, &*value);
    let digest = "0123456789012345678901234567890123456789";
    let words: &[&str] = match choices.below(60) {
        0..=9 => &["GET", key],
        10..=13 => &["SET", key, value],
        14 => &["MULTI"],
        15 => &["EXEC"],
        16 => &["DISCARD"],
        17 => &["WATCH", key],
        18 => &["BLPOP", key, "1"],
        19 | 20 => &["MGET", key, other, "k1"],
        21 => &["MSET", key, value, other, "1"],
        22 => &["EVAL", value, "1", key],
        23 => &["EVALSHA", digest, "1", key],
        24 => &["HELLO", "3"],
        25 => &["CLIENT", "REPLY", choices.of(&["SKIP", "OFF", "ON"])],
        26 => &["CLIENT", "TRACKING", choices.of(&["ON", "OFF"])],
        27 => &["SELECT", choices.of(&["0", "1"])],
        28 => &["UNHEARD", key, value],
        29 => &["KEYS", "*"],
        30 => &["SCAN", choices.of(&["0", "17", "x"])],
        31 => &["INFO"],
        32 => &["PUBLISH", other, value],
        33 => &["SUBSCRIBE", other, "c"],
        34 => &["MONITOR"],
        35 => &["CLIENT", "LIST"],
        36 => &["DEL", key, other, value],
        37 => &["RESET"],
        38 => &["AUTH", choices.of(&["right", "wrong"])],
        39 => &["AUTH", "we", "secret"],
        40 => &["HELLO", "2", "AUTH", "default", "right"],
        41 => &["UNSUBSCRIBE"],
        42 => &["PSUBSCRIBE", other],
        43 => &["SSUBSCRIBE", other],
        44 => &["CLIENT", "PAUSE", "60", choices.of(&["ALL", "WRITE"])],
        45 => &["CLIENT", "UNPAUSE"],
        46 => &["SCRIPT", "LOAD", value],
        47 => &["SCRIPT", choices.of(&["KILL", "FLUSH"])],
        48 => &["XREAD", "BLOCK", "0", "STREAMS", key, "$"],
        49 => &["CLIENT", "KILL", "ID", "3"],
        50 => &["CLIENT", "UNBLOCK", "2"],
        51 => &["CLIENT", "TRACKING", "ON", "REDIRECT", "2"],
        52 => &["DBSIZE"],
        53 => &["CONFIG", "GET", choices.of(&["*", "respool.*"])],
        54 => &["READWRITE"],
        55 => &["QUIT"],
        56 => &["WAIT", "1", "10"],
        57 => &["LRANGE", key, "0", "-1"],
        58 => &["CLIENT", "NO-TOUCH", "ON"],
        _ => &["PING"],
    };
    match choices.below(40) {
        0 => {
            let line = choices.of(&[
                "a",
                "*",
                "*1",
                "*3\r\n$",
                "*1\r\n$1",
                "\0",
                "*2\r\n$3\r\nGET\r\n",
                "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$400000\r\n",
                "*100000\r\n",
            ]);
            out.extend_from_slice(line.as_bytes());
            let filler = choices.of(b"a0*$\0 \n");
            let len = out.len() + large.min(70_000);
            out.resize(len, filler);
        }
        1 | 2 => {
            out.extend_from_slice(words.join(" ").as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        3 => out.extend_from_slice(b"*0\r\n\r\n"),
        4 if value.len() < 100 => {
            // Several equal requests, as in a pipeline.
            for _ in 0..choices.below(40) {
                encode::request(out, words);
            }
        }
        _ => encode::request(out, words),
    }
}

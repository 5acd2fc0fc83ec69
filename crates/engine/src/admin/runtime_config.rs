//! What of our own can be switched while we run: CONFIG SET and CONFIG GET of names that begin with `respool.`.
//!
//! ```text
//!   CONFIG SET respool.fuse no ──> the server: may this user?  ──  "Unknown option": it may
//!                                                                    │ every worker, by a question
//!                                        OK, when all have done it <─┘
//! ```
//!
//! Rights are the server's. It is asked the same, knows no such name, and says so to who may; what it says to anybody else is
//! passed on. What is set holds for the pool of the listener by which the client came, or for that listener alone, in
//! all workers, until it is set again or respool ends.

use respool_protocol::commands::id;
use respool_protocol::encode;

use crate::directory::matches;
use crate::duty::Duty;
use crate::engine::{Engine, Event};
use crate::entry::Entry;
use crate::fleet::{Form, Question};
use crate::link::Role;
use crate::requests::{Placed, Request};
use crate::returns::Returns;
use crate::session::Flags;
use crate::settings::FlushRule;
use crate::slots::Key;
use crate::time::Time;

/// Whether what the clients of one listener ask waits for others, and takes part in what leaves together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Levels {
    pub(crate) hold: bool,
    pub(crate) fuse: bool,
    pub(crate) collapse: bool,
}

impl Levels {
    pub(crate) const ALL: Levels = Levels {
        hold: true,
        fuse: true,
        collapse: true,
    };

    /// Those of a listener, of those that were set.
    #[inline]
    pub(crate) fn of(set: &[Levels], listener: u16) -> Levels {
        let levels = set.get(usize::from(listener));
        levels.copied().unwrap_or(Levels::ALL)
    }
}

/// What was asked of us, and waits for what the server says to it.
#[derive(Debug)]
pub(crate) enum Control {
    Get { patterns: Vec<Vec<u8>> },
    Set { pairs: Vec<(Vec<u8>, Vec<u8>)> },
}

/// What a name stands for.
struct Dial {
    name: &'static str,
    kind: Kind,
    get: fn(&FlushRule, &Levels) -> u32,
    set: fn(&mut FlushRule, &mut Levels, u32),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Switch,
    Number { min: u32, max: u32 },
}

/// Every name, in the order in which they are listed.
const DIALS: [Dial; 8] = [
    Dial {
        name: "respool.hold",
        kind: Kind::Switch,
        get: |rule, _| rule.hold.into(),
        set: |rule, _, value| rule.hold = value != 0,
    },
    Dial {
        name: "respool.max-delay-us",
        kind: Kind::Number {
            min: FlushRule::MAX_DELAY_US_MIN,
            max: FlushRule::MAX_DELAY_US_MAX,
        },
        get: |rule, _| rule.max_delay_us,
        set: |rule, _, value| rule.max_delay_us = value,
    },
    Dial {
        name: "respool.fuse",
        kind: Kind::Switch,
        get: |rule, _| rule.fuse.into(),
        set: |rule, _, value| rule.fuse = value != 0,
    },
    Dial {
        name: "respool.fused-keys-max",
        kind: Kind::Number {
            min: FlushRule::FUSED_KEYS_MAX_MIN,
            max: FlushRule::FUSED_KEYS_MAX_MAX,
        },
        get: |rule, _| rule.fused_keys_max,
        set: |rule, _, value| rule.fused_keys_max = value,
    },
    Dial {
        name: "respool.collapse",
        kind: Kind::Switch,
        get: |rule, _| rule.collapse.into(),
        set: |rule, _, value| rule.collapse = value != 0,
    },
    Dial {
        name: "respool.listener.hold",
        kind: Kind::Switch,
        get: |_, levels| levels.hold.into(),
        set: |_, levels, value| levels.hold = value != 0,
    },
    Dial {
        name: "respool.listener.fuse",
        kind: Kind::Switch,
        get: |_, levels| levels.fuse.into(),
        set: |_, levels, value| levels.fuse = value != 0,
    },
    Dial {
        name: "respool.listener.collapse",
        kind: Kind::Switch,
        get: |_, levels| levels.collapse.into(),
        set: |_, levels, value| levels.collapse = value != 0,
    },
];

const PREFIX: &[u8] = b"respool.";

/// Whether a name, or a pattern, is about us.
fn is_ours(name: &[u8]) -> bool {
    name.len() >= PREFIX.len() && name[..PREFIX.len()].eq_ignore_ascii_case(PREFIX)
}

/// Whether a CONFIG SET or GET is about us, at least in part.
pub(crate) fn is_control(request: &Request<'_>) -> bool {
    names(request).any(is_ours)
}

fn names<'a>(request: &Request<'a>) -> impl Iterator<Item = &'a [u8]> {
    let step = match request.id {
        id::CONFIG_SET => 2,
        _ => 1,
    };
    let asks = matches!(request.id, id::CONFIG_SET | id::CONFIG_GET);
    request
        .args()
        .skip(2)
        .step_by(step)
        .take(if asks { usize::MAX } else { 0 })
}

impl Engine {
    /// CONFIG SET or GET of something of ours. What is wrong in its form the server says best.
    pub(crate) fn place_control(&mut self, key: Key, request: &Request<'_>) -> Placed {
        let in_multi = |flags: Flags| flags.any(Flags::IN_MULTI);
        if self
            .sessions
            .get(key)
            .is_some_and(|session| in_multi(session.flags))
        {
            let text = b"ERR respool: its own options are not for transactions";
            return self.refuse_queued(key, text);
        }
        if !names(request).all(is_ours) {
            let text = b"ERR respool: its own options and those of the server need a command each";
            return self.answer_error(key, text);
        }
        let args: Vec<Vec<u8>> = request
            .args()
            .skip(2)
            .map(<[u8]>::to_ascii_lowercase)
            .collect();
        let control = match request.id {
            id::CONFIG_GET => Control::Get { patterns: args },
            _ => {
                let (pairs, rest) = args.as_chunks::<2>();
                if !rest.is_empty() {
                    return self.place_on_link(key, request.bytes, false, None);
                }
                let pair = |[name, value]: &[Vec<u8>; 2]| (name.clone(), value.clone());
                let pairs = pairs.iter().map(pair).collect();
                Control::Set { pairs }
            }
        };
        let duty = Duty::Control(Box::new(control));
        let reads = request.id == id::CONFIG_GET;
        self.place_on_link(key, request.bytes, reads, Some(duty))
    }

    /// What the server says to it.
    pub(crate) fn settle_control(&mut self, entry: Entry, control: Control, reply: &[u8]) {
        let Some(session) = self.sessions.get(entry.session) else {
            // Its client has been told that it was given up: nothing is set.
            return;
        };
        let (pool, listener, version) = (session.pool, session.listener, session.version);
        match control {
            Control::Get { patterns } if matches!(reply, b"*0\r\n" | b"%0\r\n") => {
                let levels = Levels::of(&self.levels, listener);
                let rule = &self.pools[usize::from(pool)].flush;
                let asked = |dial: &&Dial| {
                    let name = dial.name.as_bytes();
                    patterns.iter().any(|pattern| matches(pattern, name))
                };
                let found: Vec<&Dial> = DIALS.iter().filter(asked).collect();
                let mut out = Vec::new();
                encode::map(&mut out, version, found.len());
                for dial in found {
                    encode::bulk(&mut out, dial.name.as_bytes());
                    let value = (dial.get)(rule, &levels);
                    encode::bulk(&mut out, dial.text(value).as_bytes());
                }
                self.pass_on(entry, &out);
            }
            Control::Set { pairs } if UNKNOWN.iter().any(|start| reply.starts_with(start)) => {
                match values(&pairs).and_then(|values| self.check_rule(pool, values)) {
                    Ok(values) => self.set_everywhere(entry, (pool, listener), values),
                    Err(text) => {
                        let mut out = Vec::new();
                        encode::error(&mut out, text.as_bytes());
                        self.pass_on(entry, &out);
                    }
                }
            }
            _ => self.pass_on(entry, reply),
        }
    }

    /// What may not be at the start may not be set later. Returns what is to be set.
    fn check_rule(
        &self,
        pool: u16,
        values: Vec<(usize, u32)>,
    ) -> Result<Vec<(usize, u32)>, String> {
        let (of, mut levels) = (&self.pools[usize::from(pool)], Levels::ALL);
        let mut rule = of.flush.clone();
        for (dial, value) in &values {
            (DIALS[*dial].set)(&mut rule, &mut levels, *value);
        }
        let failed = |name: &str, why: &str| {
            let text = format!("(possibly related to argument '{name}') - {why}");
            Err(format!("ERR CONFIG SET failed {text}"))
        };
        let timeouts = &self.settings.timeouts;
        if rule.outwaits(timeouts) {
            let why = format!(
                "what is held for max-delay-us = {} would time out before it is sent: request-timeout-ms is {}",
                rule.max_delay_us, timeouts.request_ms
            );
            return failed("respool.max-delay-us", &why);
        }
        Ok(values)
    }

    fn set_everywhere(
        &mut self,
        entry: Entry,
        (pool, listener): (u16, u16),
        values: Vec<(usize, u32)>,
    ) {
        let options: Vec<String> = values
            .iter()
            .map(|(dial, value)| format!("{}={}", DIALS[*dial].name, DIALS[*dial].text(*value)))
            .collect();
        let Some(session) = self.sessions.get(entry.session) else {
            return;
        };
        let (peer, listener_address) = (session.peer.to_string(), session.local.to_string());
        let question = Question::Set {
            at: (self.now, self.worker.index),
            pool,
            listener,
            values,
        };
        if self.ask_in_place(entry, question, Form::Ok) {
            let pool = self.settings.pools[usize::from(pool)].name.clone();
            self.tell(Event::OptionsSet {
                peer,
                pool,
                listener: listener_address,
                options: options.join(" "),
            });
        }
    }

    /// In this worker. Of what is set twice at a time, the later one holds in every worker, in whatever order they hear of it.
    pub(crate) fn set_dials(
        &mut self,
        at: (Time, usize),
        (pool, listener): (u16, u16),
        values: &[(usize, u32)],
    ) {
        let mut levels = Levels::of(&self.levels, listener);
        let Some(of) = self.pools.get_mut(usize::from(pool)) else {
            return;
        };
        let before = of.flush.max_delay_us;
        for &(index, value) in values {
            let dial = &DIALS[index];
            let whose = if dial.is_of_listener() {
                listener
            } else {
                pool
            };
            let last = self.set_at.entry((index, whose)).or_insert(at);
            if *last <= at {
                *last = at;
                (dial.set)(&mut of.flush, &mut levels, value);
            }
        }
        let max_delay_us = of.flush.max_delay_us;
        if max_delay_us != before {
            // The slots of a calendar are as long as the wait.
            of.expect_anew();
        }
        let rule = of.flush.clone();
        self.pools.set_parts(usize::from(pool), &rule);
        *self.levels_mut(listener) = levels;
        for link in self.links.keys() {
            if let Some(link) = self.links.get_mut(link)
                && self.pools[usize::from(self.servers[usize::from(link.key.server.0)].pool)].whole
                    == pool
                && link.role == Role::Shared
            {
                link.try_again();
                if max_delay_us != before {
                    link.returns = Returns::new(max_delay_us);
                }
            }
        }
    }

    fn levels_mut(&mut self, listener: u16) -> &mut Levels {
        let index = usize::from(listener);
        if self.levels.len() <= index {
            self.levels.resize(index + 1, Levels::ALL);
        }
        &mut self.levels[index]
    }
}

impl Dial {
    fn is_of_listener(&self) -> bool {
        self.name.starts_with("respool.listener.")
    }

    fn text(&self, value: u32) -> String {
        match self.kind {
            Kind::Switch if value == 0 => "no".to_owned(),
            Kind::Switch => "yes".to_owned(),
            Kind::Number { .. } => value.to_string(),
        }
    }

    /// A value as Redis reads one, or why not.
    fn read(&self, text: &[u8]) -> Result<u32, String> {
        match self.kind {
            Kind::Switch => match text {
                b"yes" => Ok(1),
                b"no" => Ok(0),
                _ => Err("argument must be 'yes' or 'no'".to_owned()),
            },
            Kind::Number { min, max } => {
                let number = std::str::from_utf8(text)
                    .ok()
                    .and_then(|text| text.parse().ok());
                let number: i64 = number.ok_or("argument couldn't be parsed into an integer")?;
                u32::try_from(number)
                    .ok()
                    .filter(|number| (min..=max).contains(number))
                    .ok_or_else(|| format!("argument must be between {min} and {max} inclusive"))
            }
        }
    }
}

/// All of them, or why none of them: in the words of Redis 7.
fn values(pairs: &[(Vec<u8>, Vec<u8>)]) -> Result<Vec<(usize, u32)>, String> {
    let mut values: Vec<(usize, u32)> = Vec::new();
    for (name, value) in pairs {
        let shown = String::from_utf8_lossy(&name[..name.len().min(128)]);
        let dial = DIALS.iter().position(|dial| dial.name.as_bytes() == name);
        let Some(dial) = dial else {
            return Err(format!(
                "ERR Unknown option or number of arguments for CONFIG SET - '{shown}'"
            ));
        };
        let failed = |why: &str| {
            format!("ERR CONFIG SET failed (possibly related to argument '{shown}') - {why}")
        };
        if values.iter().any(|(other, _)| *other == dial) {
            return Err(failed("duplicate parameter"));
        }
        let value = DIALS[dial].read(value).map_err(|why| failed(&why))?;
        values.push((dial, value));
    }
    Ok(values)
}

/// How servers say that they have no option of that name.
const UNKNOWN: [&[u8]; 2] = [b"-ERR Unknown option", b"-ERR Unsupported CONFIG parameter"];

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Vec<(usize, u32)>, String> {
        let pair =
            |(name, value): &(&str, &str)| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        values(&pairs.iter().map(pair).collect::<Vec<_>>())
    }

    #[test]
    fn values_are_read_as_redis_reads_its_own_and_all_or_none() {
        assert_eq!(
            read(&[("respool.fuse", "no"), ("respool.max-delay-us", "500")]),
            Ok(vec![(2, 0), (1, 500)])
        );
        for (wrong, why) in [
            (("respool.fuse", "maybe"), "'yes' or 'no'"),
            (("respool.fuse", ""), "'yes' or 'no'"),
            (
                ("respool.max-delay-us", "0"),
                "between 1 and 1000000 inclusive",
            ),
            (("respool.max-delay-us", "-5"), "between 1 and"),
            (("respool.max-delay-us", "99999999999"), "between 1 and"),
            (("respool.max-delay-us", "soon"), "parsed into an integer"),
            (("respool.nosuch", "1"), "Unknown option"),
            (("respool.", "1"), "Unknown option"),
            (("respool.hold", "no"), "duplicate"),
        ] {
            let error = read(&[("respool.hold", "no"), wrong]).unwrap_err();
            assert!(error.contains(why), "{wrong:?}: {error}");
        }
    }

    #[test]
    fn what_is_set_is_what_is_read_back() {
        let (mut rule, mut levels) = (FlushRule::default(), Levels::ALL);
        for dial in &DIALS {
            for value in match dial.kind {
                Kind::Switch => [0, 1],
                Kind::Number { min, max } => [min, max],
            } {
                (dial.set)(&mut rule, &mut levels, value);
                assert_eq!((dial.get)(&rule, &levels), value, "{}", dial.name);
                assert_eq!(dial.read(dial.text(value).as_bytes()), Ok(value));
            }
            assert!(is_ours(dial.name.as_bytes()) && dial.name == dial.name.to_lowercase());
        }
    }
}

//! Options of respool that can be changed while it runs: CONFIG SET and CONFIG GET of names that
//! begin with `respool.`.
//!
//! ```text
//!   CONFIG SET respool.fuse no ──> the server: may this user?  ──  "Unknown option": it may
//!                                                                    │ every worker, by a question
//!                                        OK, when all have done it <─┘
//! ```
//!
//! The server decides on the right. It gets the same command, lacks the name, and says so to a user
//! with the right. Any other reply is passed on. A value holds in all workers for the pool of the
//! client's listener, or for that listener alone. It holds until it is set again, until new
//! settings come (`engine/new_settings`), or until respool ends.

use respool_protocol::commands::id;
use respool_protocol::encode::{self, Version};

use crate::admin::Admin;
use crate::admin::workers::OwnQuestion;
use crate::base::arrivals::ArrivalForecast;
use crate::base::glob::matches;
use crate::base::handle::SessionId;
use crate::base::pool_places;
use crate::base::settings::{Aim, FlushRule, Settings};
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::actions::Event;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::admin::{AdminCompletion, PendingControl};
use crate::data_plane::ingress::{Dispatched, Request, excess_reply};
use crate::data_plane::ledger::Entry;
use crate::data_plane::link::LinkRole;
use crate::data_plane::own_options::{CoalescingSwitches, is_ours, names};
use crate::data_plane::worker_query::{AdminQuery, ReplyForm, WorkerQuery};

/// An option that can be set at run time.
struct RuntimeOption {
    name: &'static str,
    kind: DialKind,
    get: fn(&FlushRule, &CoalescingSwitches) -> u32,
    set: fn(&mut FlushRule, &mut CoalescingSwitches, u32),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DialKind {
    Switch,
    Number {
        min: u32,
        max: u32,
    },
    /// One of these words, by its index.
    Word(&'static [&'static str]),
}

/// The words for aims. `pool`: the listener has the aim of its pool.
const AIMS: [&str; Aim::ALL.len()] = [
    Aim::Balanced.name(),
    Aim::Latency.name(),
    Aim::ServerCpu.name(),
];
const AIMS_OR_POOLS: [&str; Aim::ALL.len() + 1] = [AIMS[0], AIMS[1], AIMS[2], "pool"];

/// The index of an aim among the words, and back.
fn index_of(aim: Option<Aim>) -> u32 {
    let index = aim.and_then(|aim| Aim::ALL.iter().position(|other| *other == aim));
    index.unwrap_or(Aim::ALL.len()) as u32
}

fn aim_at(index: u32) -> Option<Aim> {
    Aim::ALL.get(index as usize).copied()
}

/// All names, in the order of CONFIG GET.
const RUNTIME_OPTIONS: [RuntimeOption; 8] = [
    RuntimeOption {
        name: "respool.flush-rule",
        kind: DialKind::Word(&AIMS),
        get: |rule, _| index_of(Some(rule.aim)),
        set: |rule, _, value| rule.aim = aim_at(value).unwrap_or_default(),
    },
    RuntimeOption {
        name: "respool.max-delay-us",
        kind: DialKind::Number {
            min: FlushRule::MAX_DELAY_US_MIN,
            max: FlushRule::MAX_DELAY_US_MAX,
        },
        get: |rule, _| rule.max_delay_us,
        set: |rule, _, value| rule.max_delay_us = value,
    },
    RuntimeOption {
        name: "respool.fuse",
        kind: DialKind::Switch,
        get: |rule, _| rule.fuse.into(),
        set: |rule, _, value| rule.fuse = value != 0,
    },
    RuntimeOption {
        name: "respool.fused-keys-max",
        kind: DialKind::Number {
            min: FlushRule::FUSED_KEYS_MAX_MIN,
            max: FlushRule::FUSED_KEYS_MAX_MAX,
        },
        get: |rule, _| rule.fused_keys_max,
        set: |rule, _, value| rule.fused_keys_max = value,
    },
    RuntimeOption {
        name: "respool.collapse",
        kind: DialKind::Switch,
        get: |rule, _| rule.collapse.into(),
        set: |rule, _, value| rule.collapse = value != 0,
    },
    RuntimeOption {
        name: "respool.listener.flush-rule",
        kind: DialKind::Word(&AIMS_OR_POOLS),
        get: |_, switches| index_of(switches.aim),
        set: |_, switches, value| switches.aim = aim_at(value),
    },
    RuntimeOption {
        name: "respool.listener.fuse",
        kind: DialKind::Switch,
        get: |_, switches| switches.fuse.into(),
        set: |_, switches, value| switches.fuse = value != 0,
    },
    RuntimeOption {
        name: "respool.listener.collapse",
        kind: DialKind::Switch,
        get: |_, switches| switches.collapse.into(),
        set: |_, switches, value| switches.collapse = value != 0,
    },
];

/// An old name of an option, which works until the next version. It was a switch.
struct OldName {
    old: &'static str,
    new: &'static str,
    /// The values of the option for `no` and `yes`.
    values: [&'static str; 2],
}

const OLD_NAMES: [OldName; 2] = [
    OldName {
        old: "respool.hold",
        new: "respool.flush-rule",
        values: ["latency", "server-cpu"],
    },
    OldName {
        old: "respool.listener.hold",
        new: "respool.listener.flush-rule",
        values: ["latency", "pool"],
    },
];

impl OldName {
    /// The old name that `name` is.
    fn find(name: &[u8]) -> Option<&'static OldName> {
        OLD_NAMES.iter().find(|known| known.old.as_bytes() == name)
    }

    /// The option's value for an old value, or the reason for which there is none.
    fn value(&self, text: &[u8]) -> Result<&'static str, String> {
        let index = DialKind::Switch.read(text)?;
        Ok(self.values[index as usize])
    }

    /// The old value for the option's value. Batches may wait unless the value is `latency`.
    fn old_value(&self, value: &str) -> &'static str {
        if value == self.values[0] { "no" } else { "yes" }
    }
}

/// The next step after the server's reply to a CONFIG SET or GET of respool's options.
enum ControlReply {
    /// The client has got an error for the request: nothing is set.
    Gone,
    /// The client gets the server's reply.
    Pass,
    /// The client gets this reply.
    Reply(Vec<u8>),
    /// All workers set the options.
    Ask(OwnQuestion),
}

impl Admin {
    /// Sends a CONFIG SET or GET of respool's options to the server.
    pub(crate) fn dispatch_control(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        let control = match control_asked(plane, id, request) {
            Ok(control) => control,
            Err(text) => return plane.answer_error(id, text),
        };
        let reads = matches!(control, Some(PendingControl::Get { .. }));
        let completion =
            control.map(|control| Completion::Admin(AdminCompletion::Control(Box::new(control))));
        plane.dispatch_on_link(id, request.bytes, reads, completion)
    }

    /// Handles a server's reply. Returns a query that this worker has to answer like all others.
    pub(crate) fn settle(
        &mut self,
        plane: &mut DataPlane,
        entry: Entry,
        completion: AdminCompletion,
        reply: &[u8],
    ) -> Option<OwnQuestion> {
        match completion {
            AdminCompletion::Unblock { to, ticket } => self.unblocked(plane, (to, ticket), reply),
            AdminCompletion::Control(control) => {
                match self.settle_control(plane, entry, *control, reply) {
                    ControlReply::Gone => {}
                    ControlReply::Pass => plane.answer_or_fail(entry, reply),
                    ControlReply::Reply(reply) => plane.answer_or_fail(entry, &reply),
                    ControlReply::Ask(own) => return Some(own),
                }
            }
        }
        None
    }

    /// Handles the server's reply to a CONFIG SET or GET of respool's options.
    fn settle_control(
        &mut self,
        plane: &mut DataPlane,
        entry: Entry,
        control: PendingControl,
        reply: &[u8],
    ) -> ControlReply {
        let Some(session) = plane.sessions.get(entry.session) else {
            return ControlReply::Gone;
        };
        let (pool, listener, version) = (session.pool, session.listener, session.version);
        match control {
            PendingControl::Get { patterns } if matches!(reply, b"*0\r\n" | b"%0\r\n") => {
                let switches = CoalescingSwitches::of(&plane.coalescing_switches, listener);
                let rule = &plane.pools[usize::from(pool)].flush;
                ControlReply::Reply(values_of(rule, &switches, &patterns, version))
            }
            PendingControl::Set { pairs }
                if UNKNOWN.iter().any(|start| reply.starts_with(start)) =>
            {
                let values = values(&pairs)
                    .and_then(|values| self.check_rule(plane, (pool, listener), values));
                match values {
                    Ok(values) => {
                        let old_names = old_names_of(&pairs);
                        self.set_everywhere(plane, entry, (pool, listener), values, old_names)
                    }
                    Err(text) => {
                        let mut out = Vec::new();
                        encode::error(&mut out, text.as_bytes());
                        ControlReply::Reply(out)
                    }
                }
            }
            _ => ControlReply::Pass,
        }
    }

    fn set_everywhere(
        &mut self,
        plane: &mut DataPlane,
        entry: Entry,
        (pool, listener): (u16, u16),
        values: Vec<(usize, u32)>,
        old_names: String,
    ) -> ControlReply {
        let options: Vec<String> = values
            .iter()
            .map(|(dial, value)| {
                format!(
                    "{}={}",
                    RUNTIME_OPTIONS[*dial].name,
                    RUNTIME_OPTIONS[*dial].text(*value)
                )
            })
            .collect();
        let Some(session) = plane.sessions.get(entry.session) else {
            return ControlReply::Gone;
        };
        let event = Event::OptionsSet {
            peer: session.peer.to_string(),
            pool: plane.settings.pools[usize::from(pool)].name.clone(),
            listener: session.local.to_string(),
            options: options.join(" "),
            old_names,
        };
        let question = WorkerQuery::Admin(AdminQuery::Set {
            at: (plane.now, plane.worker.index),
            pool,
            listener,
            values,
        });
        match self.ask_in_place(plane, entry, question, ReplyForm::Ok) {
            Some(own) => {
                plane.emit(event);
                ControlReply::Ask(own)
            }
            None => ControlReply::Reply(excess_reply(
                "too many CONFIG commands of this client wait: try again",
            )),
        }
    }
}

/// The options of respool that a CONFIG SET or GET names. `None`: it is malformed, and the server
/// answers it. `Err`: the error text.
fn control_asked(
    plane: &mut DataPlane,
    id: SessionId,
    request: &Request<'_>,
) -> Result<Option<PendingControl>, &'static [u8]> {
    if plane.is_in_multi(id) {
        plane.abort_transaction(id);
        return Err(b"ERR respool: options `respool.*` cannot be set in a transaction");
    }
    if !names(request).all(is_ours) {
        return Err(b"ERR respool: `respool.*` and the server's options need a command each");
    }
    let args = request.args().skip(2).map(<[u8]>::to_ascii_lowercase);
    let args: Vec<Vec<u8>> = args.collect();
    if request.id == id::CONFIG_GET {
        return Ok(Some(PendingControl::Get { patterns: args }));
    }
    let (pairs, rest) = args.as_chunks::<2>();
    if !rest.is_empty() {
        return Ok(None);
    }
    let pair = |[name, value]: &[Vec<u8>; 2]| (name.clone(), value.clone());
    let pairs = pairs.iter().map(pair).collect();
    Ok(Some(PendingControl::Set { pairs }))
}

/// The reply to CONFIG GET: the options with names that match a pattern.
fn values_of(
    rule: &FlushRule,
    switches: &CoalescingSwitches,
    patterns: &[Vec<u8>],
    version: Version,
) -> Vec<u8> {
    let is_wanted = |dial: &&RuntimeOption| {
        let name = dial.name.as_bytes();
        patterns.iter().any(|pattern| matches(pattern, name))
    };
    let found: Vec<&RuntimeOption> = RUNTIME_OPTIONS.iter().filter(is_wanted).collect();
    // No pattern but the whole name finds an old name.
    let is_named = |name: &&OldName| {
        patterns
            .iter()
            .any(|pattern| pattern == name.old.as_bytes())
    };
    let old: Vec<&OldName> = OLD_NAMES.iter().filter(is_named).collect();
    let mut out = Vec::new();
    encode::map(&mut out, version, found.len() + old.len());
    let text = |dial: &RuntimeOption| dial.text((dial.get)(rule, switches));
    for dial in found {
        encode::bulk(&mut out, dial.name.as_bytes());
        encode::bulk(&mut out, text(dial).as_bytes());
    }
    for name in old {
        let dial = RUNTIME_OPTIONS.iter().find(|dial| dial.name == name.new);
        let value = dial.map_or(String::new(), text);
        encode::bulk(&mut out, name.old.as_bytes());
        encode::bulk(&mut out, name.old_value(&value).as_bytes());
    }
    out
}

impl RuntimeOption {
    fn is_of_listener(&self) -> bool {
        self.name.starts_with("respool.listener.")
    }

    fn text(&self, value: u32) -> String {
        match self.kind {
            DialKind::Switch if value == 0 => "no".to_owned(),
            DialKind::Switch => "yes".to_owned(),
            DialKind::Number { .. } => value.to_string(),
            DialKind::Word(words) => words
                .get(value as usize)
                .copied()
                .unwrap_or_default()
                .to_owned(),
        }
    }
}

impl DialKind {
    /// Reads a value as Redis does, or returns the reason for which it cannot.
    fn read(self, text: &[u8]) -> Result<u32, String> {
        match self {
            DialKind::Switch => match text {
                b"yes" => Ok(1),
                b"no" => Ok(0),
                _ => Err("argument must be 'yes' or 'no'".to_owned()),
            },
            DialKind::Number { min, max } => {
                let number = std::str::from_utf8(text)
                    .ok()
                    .and_then(|text| text.parse().ok());
                let number: i64 = number.ok_or("argument couldn't be parsed into an integer")?;
                u32::try_from(number)
                    .ok()
                    .filter(|number| (min..=max).contains(number))
                    .ok_or_else(|| format!("argument must be between {min} and {max} inclusive"))
            }
            DialKind::Word(words) => {
                let index = words.iter().position(|word| word.as_bytes() == text);
                let index = index.map(|index| index as u32);
                index.ok_or_else(|| {
                    format!(
                        "argument(s) must be one of the following: {}",
                        words.join(", ")
                    )
                })
            }
        }
    }
}

/// Reads all pairs. If one is wrong, returns the error in the words of Redis 7.
fn values(pairs: &[(Vec<u8>, Vec<u8>)]) -> Result<Vec<(usize, u32)>, String> {
    let mut values: Vec<(usize, u32)> = Vec::new();
    for (name, value) in pairs {
        let shown = String::from_utf8_lossy(&name[..name.len().min(128)]);
        let old = OldName::find(name);
        let new_name = old.map_or(name.as_slice(), |old| old.new.as_bytes());
        let dial = RUNTIME_OPTIONS
            .iter()
            .position(|dial| dial.name.as_bytes() == new_name);
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
        let value = match old {
            Some(old) => old.value(value).map(str::as_bytes),
            None => Ok(value.as_slice()),
        };
        let value = value.and_then(|value| RUNTIME_OPTIONS[dial].kind.read(value));
        let value = value.map_err(|why| failed(&why))?;
        values.push((dial, value));
    }
    Ok(values)
}

/// The old names among the names of these pairs, each with its new name.
fn old_names_of(pairs: &[(Vec<u8>, Vec<u8>)]) -> String {
    let old = pairs.iter().filter_map(|(name, _)| OldName::find(name));
    let old = old.map(|name| format!("{} is now {}", name.old, name.new));
    old.collect::<Vec<_>>().join(", ")
}

/// Errors of servers to an unknown option.
const UNKNOWN: [&[u8]; 2] = [b"-ERR Unknown option", b"-ERR Unsupported CONFIG parameter"];

impl Admin {
    /// Refuses values that the configuration would refuse at the start, too. Returns the values.
    fn check_rule(
        &self,
        plane: &DataPlane,
        (pool, listener): (u16, u16),
        values: Vec<(usize, u32)>,
    ) -> Result<Vec<(usize, u32)>, String> {
        let of = &plane.pools[usize::from(pool)];
        let mut switches = CoalescingSwitches::of(&plane.coalescing_switches, listener);
        let mut rule = of.flush.clone();
        for (dial, value) in &values {
            (RUNTIME_OPTIONS[*dial].set)(&mut rule, &mut switches, *value);
        }
        let failed = |name: &str, why: &str| {
            let text = format!("(possibly related to argument '{name}') - {why}");
            Err(format!("ERR CONFIG SET failed {text}"))
        };
        let timeouts = &plane.settings.timeouts;
        // A listener of the pool may have an aim with a longer wait than the pool's.
        let others = plane.coalescing_switches.iter().enumerate();
        let others =
            others.filter(|(at, switches)| switches.pool == pool && *at != usize::from(listener));
        let set = others.filter_map(|(_, switches)| switches.aim);
        let outwaits = |aim| {
            let rule = FlushRule {
                aim,
                ..rule.clone()
            };
            rule.outwaits(timeouts)
        };
        if set.chain(switches.aim).chain([rule.aim]).any(outwaits) {
            let why = format!(
                "a request held for max-delay-us = {} would time out before it is sent: request-timeout-ms is {}",
                rule.max_delay_us, timeouts.request_ms
            );
            return failed("respool.max-delay-us", &why);
        }
        Ok(values)
    }

    /// Sets options in this worker. If two sessions set an option at the same time, the later
    /// change wins in every worker, for any order in which the changes reach it.
    pub(crate) fn set_dials(
        &mut self,
        plane: &mut DataPlane,
        at: (Time, usize),
        (pool, listener): (u16, u16),
        values: &[(usize, u32)],
    ) {
        if at.0 <= self.settings_at {
            return;
        }
        let mut switches = CoalescingSwitches::of(&plane.coalescing_switches, listener);
        let Some(of) = plane.pools.get(usize::from(pool)) else {
            return;
        };
        let mut rule = of.flush.clone();
        for &(index, value) in values {
            let dial = &RUNTIME_OPTIONS[index];
            let owner = if dial.is_of_listener() {
                listener
            } else {
                pool
            };
            let last = self.set_at.entry((index, owner)).or_insert(at);
            if *last <= at {
                *last = at;
                (dial.set)(&mut rule, &mut switches, value);
            }
        }
        switches.pool = pool;
        *self.switches_mut(plane, listener) = switches;
        set_rule(plane, pool, rule);
    }

    /// Takes the flush rules of new settings, which were made at this time. Options that clients
    /// set before are overwritten. An option that a client has set since then stays, in every
    /// worker alike: if the settings end its pool, it holds for the successor.
    pub(crate) fn take_rules(&mut self, plane: &mut DataPlane, settings: &Settings, at: Time) {
        let (former, switches) = (std::mem::take(&mut self.set_at), &plane.coalescing_switches);
        let in_effect = |pool| pool_places::in_effect(&settings.pools, pool).unwrap_or(pool);
        let is_later = |(_, (set, _)): &(_, (Time, usize))| *set > at;
        let later = former.into_iter().filter(is_later);
        let later = later.map(|((index, owner), set)| {
            let dial = &RUNTIME_OPTIONS[index];
            let (value, owner, pool) = match dial.is_of_listener() {
                true => {
                    let switches = CoalescingSwitches::of(switches, owner);
                    let value = (dial.get)(&settings.flush, &switches);
                    (value, owner, in_effect(switches.pool))
                }
                false => {
                    let rule = &plane.pools[usize::from(owner)].flush;
                    let value = (dial.get)(rule, &CoalescingSwitches::ALL);
                    (value, in_effect(owner), in_effect(owner))
                }
            };
            (set, (index, owner, (value, pool)))
        });
        let (set_at, later): (Vec<_>, Vec<_>) = later.unzip();
        let owners = later.iter().map(|&(index, owner, _)| (index, owner));
        self.set_at = owners.zip(set_at).collect();
        self.settings_at = at;
        let were_set = std::mem::take(&mut plane.coalescing_switches);
        for &(index, owner, (value, pool)) in &later {
            let dial = &RUNTIME_OPTIONS[index];
            if dial.is_of_listener() {
                let switches = self.switches_mut(plane, owner);
                switches.pool = pool;
                (dial.set)(&mut FlushRule::default(), switches, value);
            }
        }
        let pools = settings.pools.iter().enumerate();
        for (index, pool) in pools.filter(|(_, pool)| pool.is_in_use()) {
            let mut rule = pool.flush.as_ref().unwrap_or(&settings.flush).clone();
            for &(dial, owner, (value, _)) in &later {
                let dial = &RUNTIME_OPTIONS[dial];
                if !dial.is_of_listener() && usize::from(owner) == index {
                    (dial.set)(&mut rule, &mut CoalescingSwitches::ALL.clone(), value);
                }
            }
            let is_other = plane
                .pools
                .get(index)
                .is_some_and(|pool| pool.flush != rule);
            if is_other || !were_set.is_empty() {
                set_rule(plane, index as u16, rule);
            }
        }
    }

    fn switches_mut<'a>(
        &mut self,
        plane: &'a mut DataPlane,
        listener: u16,
    ) -> &'a mut CoalescingSwitches {
        let index = usize::from(listener);
        if plane.coalescing_switches.len() <= index {
            plane
                .coalescing_switches
                .resize(index + 1, CoalescingSwitches::ALL);
        }
        &mut plane.coalescing_switches[index]
    }
}

/// Gives a pool and its subpools a flush rule. Measurements under the old rule are forgotten.
fn set_rule(plane: &mut DataPlane, pool: u16, rule: FlushRule) {
    let Some(of) = plane.pools.get_mut(usize::from(pool)) else {
        return;
    };
    let (before, aim) = (of.flush.max_delay_us, of.flush.aim);
    of.flush = rule.clone();
    let max_delay_us = rule.max_delay_us;
    if max_delay_us != before {
        // The slots of an arrival wheel are as long as the wait.
        of.expect_anew();
    }
    plane.pools.set_subpools(usize::from(pool), &rule);
    if (rule.max_delay_us, rule.aim) != (before, aim) {
        for server in &mut plane.servers {
            if plane.pools[usize::from(server.pool)].parent == pool {
                server.load.reset();
            }
        }
    }
    plane.set_waits();
    for link in plane.links.ids() {
        if let Some(link) = plane.links.get_mut(link)
            && plane.pools[usize::from(plane.servers[usize::from(link.kind.server.0)].pool)].parent
                == pool
            && link.role == LinkRole::Shared
        {
            link.gates.open_all();
            if max_delay_us != before {
                link.forecast = ArrivalForecast::new(max_delay_us);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CONFIG GET shows the options that match some pattern, in the order of the table.
    #[test]
    fn config_get_shows_the_options_that_match() {
        let (rule, switches) = (FlushRule::default(), CoalescingSwitches::ALL);
        let get = |patterns: &[&str]| {
            let patterns: Vec<Vec<u8>> = patterns.iter().map(|it| it.as_bytes().into()).collect();
            let reply = values_of(&rule, &switches, &patterns, Version::Resp3);
            String::from_utf8(reply).expect("names and values are text")
        };
        assert_eq!(
            get(&["respool.fuse"]),
            "%1\r\n$12\r\nrespool.fuse\r\n$3\r\nyes\r\n"
        );
        assert!(get(&["respool.listener.*", "respool.collapse"]).starts_with("%4\r\n$16\r\n"));
        assert_eq!(get(&["respool.nosuch"]), "%0\r\n");
    }

    fn read(pairs: &[(&str, &str)]) -> Result<Vec<(usize, u32)>, String> {
        let pair =
            |(name, value): &(&str, &str)| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        values(&pairs.iter().map(pair).collect::<Vec<_>>())
    }

    /// Values are read as Redis reads its own options: all of them, or none and an error.
    #[test]
    fn values_are_read_as_redis_reads_them() {
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
            (("respool.flush-rule", "latency"), "duplicate"),
            (
                ("respool.listener.flush-rule", "no"),
                "one of the following: balanced, latency",
            ),
        ] {
            let error = read(&[("respool.flush-rule", "latency"), wrong]).unwrap_err();
            assert!(error.contains(why), "{wrong:?}: {error}");
        }
    }

    /// An old switch sets the option of the new name. Only its whole name finds it.
    #[test]
    fn old_name_sets_and_shows_the_new_option() {
        let (mut rule, mut switches) = (FlushRule::default(), CoalescingSwitches::ALL);
        for (name, value, new) in [
            ("respool.hold", "yes", ("respool.flush-rule", "server-cpu")),
            ("respool.hold", "no", ("respool.flush-rule", "latency")),
            (
                "respool.listener.hold",
                "no",
                ("respool.listener.flush-rule", "latency"),
            ),
            (
                "respool.listener.hold",
                "yes",
                ("respool.listener.flush-rule", "pool"),
            ),
        ] {
            let set = read(&[(name, value)]);
            assert_eq!(set, read(&[new]), "{name} {value}");
            for (dial, value) in set.unwrap() {
                (RUNTIME_OPTIONS[dial].set)(&mut rule, &mut switches, value);
            }
            let patterns = [name.as_bytes().to_vec()];
            let reply = values_of(&rule, &switches, &patterns, Version::Resp2);
            let (name_len, len) = (name.len(), value.len());
            let shown = format!("*2\r\n${name_len}\r\n{name}\r\n${len}\r\n{value}\r\n");
            assert_eq!(String::from_utf8(reply).unwrap(), shown);
        }
        let all = values_of(&rule, &switches, &[b"respool.*".to_vec()], Version::Resp2);
        assert!(!String::from_utf8(all).unwrap().contains("hold"));
        let both = read(&[("respool.hold", "no"), ("respool.flush-rule", "latency")]);
        assert!(both.unwrap_err().contains("duplicate parameter"));
        let wrong = read(&[("respool.hold", "latency")]);
        assert!(
            wrong
                .unwrap_err()
                .contains("'respool.hold') - argument must be 'yes' or 'no'")
        );
    }

    /// Each value of each option is read back as it was set.
    #[test]
    fn option_is_read_back_as_it_was_set() {
        let (mut rule, mut switches) = (FlushRule::default(), CoalescingSwitches::ALL);
        for dial in &RUNTIME_OPTIONS {
            for value in match dial.kind {
                DialKind::Switch => vec![0, 1],
                DialKind::Number { min, max } => vec![min, max],
                DialKind::Word(words) => (0..words.len() as u32).collect(),
            } {
                (dial.set)(&mut rule, &mut switches, value);
                assert_eq!((dial.get)(&rule, &switches), value, "{}", dial.name);
                assert_eq!(dial.kind.read(dial.text(value).as_bytes()), Ok(value));
            }
            assert!(is_ours(dial.name.as_bytes()) && dial.name == dial.name.to_lowercase());
        }
    }
}

//! Makes a case, round by round, from its seed and the state of the direct side.
//!
//! Requests of two connections in one round have no order, so they must not touch the same data.
//! Each key, each channel and the shared state of scripts belongs to one connection for a round,
//! and may change its owner between rounds. A request that touches everything has a round of its
//! own.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use respool_protocol::commands::{self, CommandFlags};
use respool_testkit::random::Random;

use super::script::{Args, RoundStep, ScriptRequest, ScriptRound, name};
use super::session::{ReplySwitch, SessionModel, blocks_without_end, subscription};
use super::side::{Control, Side};
use super::templates::{
    CACHE, CLASSES, ENDLESS, EXACT, FUNCTIONS, LIBRARIES, NOT_QUEUED, QUEUED, RequestClass,
    SCRIPTS, SOLO, Template, WAYS, WRONG,
};

/// The ingredients of a case.
#[derive(Clone, Debug)]
pub(crate) struct CaseRecipe {
    pub(crate) connections: usize,
    /// The approximate number of requests.
    pub(crate) steps: usize,
    /// Names of classes and ways.
    pub(crate) classes: BTreeSet<&'static str>,
    /// Names of commands that are never sent, in the form of [`name`]; or with an option: `EXPIRE
    /// NX`.
    pub(crate) omitted: Vec<String>,
}

impl CaseRecipe {
    fn omits(&self, args: &[Vec<u8>]) -> bool {
        let name = name(args);
        self.omitted.iter().any(|omitted| {
            let rest = omitted.strip_prefix(&name);
            rest.is_some_and(|rest| match rest.strip_prefix(' ') {
                Some(option) => args.iter().any(|arg| arg == option.as_bytes()),
                None => rest.is_empty(),
            })
        })
    }
}

/// The scripts of a case. Each case has its own, as respool remembers those of earlier cases.
///
/// # Errors
/// When the server does not answer with the SHA1 of each.
pub(crate) fn scripts(seed: u64, server: &mut Control) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut scripts = Vec::new();
    for body in SCRIPTS {
        let body = format!("{body} -- {seed}").into_bytes();
        let sha = server.call(&[b"SCRIPT", b"LOAD".as_slice(), &body])?;
        scripts.push((body, sha.text().unwrap_or_default().to_vec()));
    }
    Ok(scripts)
}

/// Every name of `--classes`.
pub(crate) fn class_names() -> Vec<&'static str> {
    CLASSES
        .iter()
        .map(|class| class.name)
        .chain(WAYS.iter().map(|(name, _)| *name))
        .collect()
}

#[derive(Debug)]
pub(crate) struct RoundGenerator<'a> {
    recipe: &'a CaseRecipe,
    random: Random,
    left: usize,
    /// Scripts with their SHA1 from the server.
    scripts: Vec<(Vec<u8>, Vec<u8>)>,
    /// The last id of a stream entry. The next one is mostly above it.
    stream_ms: i64,
    /// Makes values unique.
    serial: u64,
}

/// The requests that a connection may send in a round.
struct AllowedRequests<'a> {
    connection: usize,
    /// Its state after the requests of this round.
    session: SessionModel,
    /// Keys and channels that the connection owns in this round.
    owned: &'a BTreeSet<&'static [u8]>,
    has_cache: bool,
    is_alone: bool,
    may_wait: bool,
}

/// Keys by the type that they mostly have.
const KEYS: [(&str, &[&[u8]]); 9] = [
    ("str", &[b"s1", b"s2", b"s3", b"", b"bin\x00\r\n\xff"]),
    ("list", &[b"l1", b"l2", b"l3", b"list 4"]),
    ("set", &[b"t1", b"t2", b"t3"]),
    ("hash", &[b"h1", b"h2", b"h3"]),
    ("zset", &[b"z1", b"z2", b"z3"]),
    ("stream", &[b"x1", b"x2"]),
    ("hll", &[b"p1", b"p2"]),
    ("bits", &[b"b1", b"b2"]),
    ("geo", &[b"g1", b"g2"]),
];
const CHANNELS: [&[u8]; 4] = [b"c1", b"c2", b"c3", b"c\x00\r\n4"];
const SHARDS: [&[u8]; 2] = [b"sh1", b"sh2"];
const PATTERNS: [&[u8]; 4] = [b"c*", b"c?", b"*", b"[c]1"];
/// Far in the future and far apart, so that a wrong expiry differs by more than the clocks do.
const TIMES: [i64; 4] = [100_000, 200_000, 300_000, 400_000];
const TIME_FAR: i64 = 4_000_000_000;
/// Above respool's bound for a held request.
const HUGE_BYTES: usize = 300_000;

impl<'a> RoundGenerator<'a> {
    pub(crate) fn new(
        recipe: &'a CaseRecipe,
        seed: u64,
        scripts: Vec<(Vec<u8>, Vec<u8>)>,
    ) -> RoundGenerator<'a> {
        let mut random = Random::new(seed);
        // Neighbouring seeds begin far apart.
        let mut random = Random::new(random.next_u64());
        let left = recipe.steps / 2 + random.below(recipe.steps + 1);
        RoundGenerator {
            recipe,
            random,
            left,
            scripts,
            stream_ms: 1,
            serial: 0,
        }
    }

    fn has(&self, class: &str) -> bool {
        self.recipe.classes.contains(class)
    }

    /// The next round; `None` when the case is long enough.
    pub(crate) fn round(&mut self, direct: &Side) -> Option<ScriptRound> {
        if self.left == 0 {
            return None;
        }
        let free: Vec<usize> = (0..self.recipe.connections)
            .filter(|&index| !direct.is_blocked(index))
            .collect();
        let waiting: Vec<usize> = (0..self.recipe.connections)
            .filter(|&index| direct.is_blocked(index))
            .collect();
        if let (Some(&waiter), true) = (waiting.first(), self.random.one_in(3)) {
            let server = *self.random.pick(&free);
            let requests = self.serve(direct, waiter, &direct.connections[server].session);
            self.left = self.left.saturating_sub(requests.len());
            let steps = vec![RoundStep {
                connection: server,
                requests,
                cuts: Vec::new(),
            }];
            return Some(ScriptRound { steps });
        }
        if self.has("together") && free.len() > 1 && self.random.one_in(4) {
            let round = self.together(direct, &free);
            let asked: usize = round.steps.iter().map(|step| step.requests.len()).sum();
            self.left = self.left.saturating_sub(asked.max(1));
            return Some(round);
        }
        let is_alone = free.len() == 1 || self.random.one_in(2);
        let mut round = ScriptRound::default();
        let everything: BTreeSet<&'static [u8]> = all_names().into_iter().collect();
        if is_alone {
            let connection = *self.random.pick(&free);
            let may_wait = free.len() > 1;
            let session = direct.connections[connection].session.clone();
            let owned = &everything;
            let allowed = AllowedRequests {
                connection,
                session,
                owned,
                has_cache: true,
                is_alone,
                may_wait,
            };
            round.steps.push(self.step(allowed));
        } else {
            for (connection, (owned, has_cache)) in self.deal(direct, &free) {
                let session = direct.connections[connection].session.clone();
                let owned = &owned;
                let allowed = AllowedRequests {
                    connection,
                    session,
                    owned,
                    has_cache,
                    is_alone,
                    may_wait: false,
                };
                round.steps.push(self.step(allowed));
            }
        }
        let asked: usize = round.steps.iter().map(|step| step.requests.len()).sum();
        self.left = self.left.saturating_sub(asked.max(1));
        Some(round)
    }

    /// A round with requests that may be fused: all connections read any keys, or some write their
    /// own, or both.
    fn together(&mut self, direct: &Side, free: &[usize]) -> ScriptRound {
        let only_reads = self.random.one_in(2);
        let only_writes = !only_reads && self.random.one_in(2);
        let dealt: BTreeMap<_, _> = if only_reads {
            let all = |&index: &usize| (index, (all_names().into_iter().collect(), false));
            free.iter().map(all).collect()
        } else {
            self.deal(direct, free)
        };
        let mut round = ScriptRound::default();
        for (connection, (owned, has_cache)) in dealt {
            let session = direct.connections[connection].session.clone();
            let is_fit = session.queue.is_none()
                && !session.is_subscribed()
                && !session.is_tracking
                && session.replies == ReplySwitch::On;
            if !is_fit {
                continue;
            }
            let allowed = AllowedRequests {
                connection,
                session,
                owned: &owned,
                has_cache,
                is_alone: false,
                may_wait: false,
            };
            let count = 1 + self.random.below(12);
            let wanted = |class: &RequestClass| match class.name {
                "reads" => !only_writes,
                "texts" => !only_reads,
                _ => false,
            };
            let recipe = self.recipe;
            let requests: Vec<ScriptRequest> = (0..count)
                .filter_map(|_| self.of_class(&allowed, wanted))
                .filter(|args| !recipe.omits(args))
                .map(ScriptRequest::Array)
                .collect();
            let mut step = RoundStep {
                connection,
                requests,
                cuts: Vec::new(),
            };
            if self.has("cuts") && self.random.one_in(6) {
                step.cuts = self.cuts(&step);
            }
            if !step.requests.is_empty() {
                round.steps.push(step);
            }
        }
        round
    }

    /// Deals names to connections. Each name has one owner, and names that belong together have the
    /// same one.
    fn deal(
        &mut self,
        direct: &Side,
        free: &[usize],
    ) -> BTreeMap<usize, (BTreeSet<&'static [u8]>, bool)> {
        let mut free = free.to_vec();
        self.random.shuffle(&mut free);
        let mut owners: BTreeMap<&'static [u8], usize> = BTreeMap::new();
        let mut cache_owner = None;
        let mut players = Vec::new();
        for connection in free {
            let session = &direct.connections[connection].session;
            let queue = session.queue.iter().flatten();
            // The names that an EXEC would touch.
            let mut needs: BTreeSet<&'static [u8]> = BTreeSet::new();
            // A connection that is sent messages must not unsubscribe meanwhile.
            let mut is_fit = !session.is_subscribed() && !session.is_tracking;
            let mut needs_cache = false;
            for args in queue.chain([&session.watched]) {
                needs.extend(names_in(args));
                let flags = flags(args);
                is_fit &= flags & SOLO == 0 && blocking_family(args).is_none();
                needs_cache |= flags & CACHE != 0;
            }
            is_fit &= needs.iter().all(|name| !owners.contains_key(name))
                && !(needs_cache && cache_owner.is_some());
            // A few connections are enough, and not each of them is active in every round.
            if !is_fit || players.len() >= 2 && self.random.one_in(2) {
                continue;
            }
            owners.extend(needs.into_iter().map(|name| (name, connection)));
            if needs_cache {
                cache_owner = Some(connection);
            }
            players.push(connection);
        }
        if players.is_empty() {
            return BTreeMap::new();
        }
        let cache_owner = cache_owner.unwrap_or_else(|| *self.random.pick(&players));
        // Names of one blocked request stay together: otherwise the order of two pushes would
        // decide its result.
        for index in 0..self.recipe.connections {
            let Some(request) = direct.blocked_in(index) else {
                continue;
            };
            let together: BTreeSet<&'static [u8]> = names_in(request.args()).collect();
            let taken = together.iter().find_map(|name| owners.get(name).copied());
            let owner = taken.unwrap_or_else(|| *self.random.pick(&players));
            // If the names of a group have several owners, one owner keeps the group. The names of
            // the others have no owner in this round.
            for name in together {
                match owners.get(name) {
                    Some(other) if *other != owner => {
                        owners.insert(name, usize::MAX);
                    }
                    _ => {
                        owners.insert(name, owner);
                    }
                }
            }
        }
        for name in all_names() {
            let owner = *self.random.pick(&players);
            owners.entry(name).or_insert(owner);
        }
        let mut dealt: BTreeMap<usize, (BTreeSet<&'static [u8]>, bool)> = BTreeMap::new();
        for connection in players {
            dealt.insert(connection, (BTreeSet::new(), connection == cache_owner));
        }
        for (name, owner) in owners {
            if let Some((owned, _)) = dealt.get_mut(&owner) {
                owned.insert(name);
            }
        }
        dealt
    }

    /// The requests of one connection in a round.
    fn step(&mut self, mut allowed: AllowedRequests<'_>) -> RoundStep {
        let connection = allowed.connection;
        let count = match self.random.below(10) {
            0..3 => 1,
            3..8 => 2 + self.random.below(4),
            _ => 6 + self.random.below(10),
        };
        let mut requests = Vec::new();
        while requests.len() < count {
            // An empty line after CLIENT REPLY SKIP uses up the skip in servers.
            let skips = allowed.session.replies == ReplySwitch::Skip;
            if self.has("protocol") && !skips && self.random.one_in(100) {
                let request = self.raw();
                let closes = matches!(request, ScriptRequest::Closes(_));
                // Redis 8.2 does not answer a protocol error behind a command that waited, until
                // more bytes come. With replies switched off there is no answer, and no server
                // closes before it has answered.
                let waits = |request: &ScriptRequest| may_wait(request.args());
                let is_mute = allowed.session.replies != ReplySwitch::On;
                if closes && (is_mute || requests.iter().any(waits)) {
                    continue;
                }
                requests.push(request);
                if closes {
                    break;
                }
                continue;
            }
            let Some(args) = self.request(&allowed) else {
                break;
            };
            let is_last = matches!(args[0].to_ascii_uppercase().as_slice(), b"QUIT");
            let waits = allowed.session.queue.is_none()
                && !allowed.session.is_restricted()
                && blocks_without_end(&args);
            assume(&mut allowed.session, &args);
            let is_short = args.iter().map(Vec::len).sum::<usize>() < 2000;
            let is_inline = self.has("inline") && is_short && self.random.one_in(25);
            requests.push(if is_inline {
                ScriptRequest::Inline(args)
            } else {
                ScriptRequest::Array(args)
            });
            if is_last {
                break;
            }
            if waits {
                // These requests run when another connection ends the wait. That time is unknown,
                // so no result may depend on it.
                for _ in 0..self.random.below(3) {
                    let harmless = [
                        "PING",
                        "ECHO behind",
                        "GET never-set",
                        "NOSUCH command",
                        "CLIENT GETNAME",
                    ];
                    let words: Vec<&str> = self.random.pick(&harmless).split(' ').collect();
                    requests.push(array(&words));
                }
                break;
            }
        }
        // Replies that were switched off are switched on in the same write, so that the round has
        // an end.
        if allowed.session.replies != ReplySwitch::On {
            requests.push(array(&["CLIENT", "REPLY", "ON"]));
        }
        let mut step = RoundStep {
            connection,
            requests,
            cuts: Vec::new(),
        };
        if self.has("cuts") && self.random.one_in(3) {
            step.cuts = self.cuts(&step);
        }
        step
    }

    fn cuts(&mut self, step: &RoundStep) -> Vec<usize> {
        let mut bytes = Vec::new();
        for request in &step.requests {
            request.encode(&mut bytes, &|_| 0);
        }
        if bytes.len() < 2 {
            return Vec::new();
        }
        let count = 1 + self.random.below(4);
        let mut cuts: Vec<usize> = (0..count)
            .map(|_| 1 + self.random.below(bytes.len() - 1))
            .collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts
    }

    /// One request that is not left out.
    fn request(&mut self, allowed: &AllowedRequests<'_>) -> Option<Args> {
        let recipe = self.recipe;
        // Where every fitting request is left out, the step ends.
        let mut attempts = (0..20).map_while(|_| self.any_request(allowed));
        attempts
            .find(|args| !recipe.omits(args) && !messages_own_connection(&allowed.session, args))
    }

    /// One request that fits the state of the connection.
    fn any_request(&mut self, allowed: &AllowedRequests<'_>) -> Option<Args> {
        let words = |line: &str| {
            Some(
                line.split(' ')
                    .map(|word| word.as_bytes().to_vec())
                    .collect::<Args>(),
            )
        };
        let session = &allowed.session;
        if session.is_restricted() {
            // Only a few commands are allowed. The others give errors, which must be seen now and
            // then.
            match self.random.below(100) {
                0..10 => return words("PING"),
                10..20 => return words("PING hello"),
                20..25 => return words("RESET"),
                25..27 => return words("QUIT"),
                27..37 => return words("UNSUBSCRIBE"),
                37..42 if allowed.is_alone => return words("PUNSUBSCRIBE"),
                42..44 => return words("HELLO 3"),
                44..80 => return self.of_class(allowed, |class| class.name == "pubsub"),
                _ => {}
            }
        } else if session.queue.is_some() {
            match self.random.below(100) {
                0..16 => return words("EXEC"),
                16..19 => return words("DISCARD"),
                19..21 => return words("MULTI"),
                21..22 => return words("WATCH s1"),
                22..23 => return words("RESET"),
                23..24 => return words("UNWATCH"),
                24..30 => {
                    // Requests that change the connection itself.
                    let changes = ["connection", "pubsub", "replies", "tracking"];
                    let args = self.of_class(allowed, |class| changes.contains(&class.name));
                    if args.is_some() {
                        return args;
                    }
                }
                _ => {}
            }
        } else if session.replies != ReplySwitch::On {
            // Requests for data, whose effects show later. In the end replies are on again.
            if self.random.one_in(4) {
                return words("CLIENT REPLY ON");
            }
            return self.of_class(allowed, |class| {
                ![
                    "connection",
                    "pubsub",
                    "transactions",
                    "blocking",
                    "replies",
                ]
                .contains(&class.name)
            });
        } else if session.is_subscribed() && self.random.one_in(5) {
            return self.of_class(allowed, |class| class.name == "pubsub");
        }
        let args = self.of_class(allowed, |_| true)?;
        Some(args)
    }

    fn of_class(
        &mut self,
        allowed: &AllowedRequests<'_>,
        is_wanted: impl Fn(&RequestClass) -> bool,
    ) -> Option<Args> {
        let wants_errors = self.has("errors");
        let fits = |template: &Template| {
            let flags = template.1;
            (flags & SOLO == 0 || allowed.is_alone)
                && (flags & CACHE == 0 || allowed.has_cache)
                && (flags & ENDLESS == 0 || allowed.may_wait || allowed.session.queue.is_some())
                && (flags & WRONG == 0 || wants_errors)
                && (flags & NOT_QUEUED == 0 || allowed.session.queue.is_none())
                && (flags & QUEUED == 0 || allowed.session.queue.is_some())
        };
        let classes = &self.recipe.classes;
        let weight = |class: &RequestClass| {
            let is_wanted = is_wanted(class)
                && classes.contains(class.name)
                && class.templates.iter().any(fits);
            if is_wanted { class.weight } else { 0 }
        };
        let class = &CLASSES[self.random.weighted(CLASSES.iter().map(weight))?];
        let weights = class
            .templates
            .iter()
            .map(|template| if fits(template) { template.0 } else { 0 });
        let (_, flags, text) = class.templates[self.random.weighted(weights)?];
        let mut args = self.fill(text, allowed);
        if self.has("errors") && self.random.one_in(8) {
            // Any spelling of a command is valid.
            args[0] = args[0]
                .iter()
                .map(|byte| {
                    if self.random.one_in(2) {
                        byte.to_ascii_lowercase()
                    } else {
                        *byte
                    }
                })
                .collect();
        }
        if self.has("errors") && flags & EXACT == 0 && self.random.one_in(14) {
            self.spoil(&mut args, allowed.connection);
        }
        Some(args)
    }

    /// Makes a mistake. It inserts words that the connection owns, as they may become the name of a
    /// key.
    fn spoil(&mut self, args: &mut Args, connection: usize) {
        let last = args.len() - 1;
        match self.random.below(6) {
            0 if last > 0 => {
                args.pop();
            }
            1 => args.push(format!("more{connection}").into_bytes()),
            2 => args[0].extend_from_slice(b"x"),
            3 if last > 0 => args.truncate(1),
            _ if last > 0 => {
                let garbage = *self.random.pick(&[
                    "abc",
                    "-",
                    "99999999999999999999",
                    "1.5",
                    "0x",
                    "nan",
                    "\u{fffd}\r\n",
                ]);
                let at = 1 + self.random.below(last);
                args[at] = format!("{garbage}{connection}").into_bytes();
            }
            _ => args.push(Vec::new()),
        }
    }

    fn raw(&mut self) -> ScriptRequest {
        if self.random.one_in(2) {
            let nothing: &[&[u8]] = &[b"\r\n", b"*0\r\n", b"*-1\r\n", b"\n"];
            return ScriptRequest::Silent(self.random.pick(nothing).to_vec());
        }
        let broken: &[&[u8]] = &[
            b"*1\r\nfoo\r\n",
            b"*x\r\n",
            b"*99999999999\r\n",
            b"*1\r\n$-5\r\n",
            b"*1\r\n$x\r\n",
            b"*2\r\n$3\r\nGET\r\n:1\r\n",
            b"*1\r\n$99999999999\r\n",
            b"GET \"unbalanced\r\n",
            b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n*1\r\n",
        ];
        ScriptRequest::Closes(self.random.pick(broken).to_vec())
    }

    /// Requests that serve a blocked connection.
    fn serve(
        &mut self,
        direct: &Side,
        waiter: usize,
        session: &SessionModel,
    ) -> Vec<ScriptRequest> {
        let args = direct
            .blocked_in(waiter)
            .map(|request| request.args().to_vec())
            .unwrap_or_default();
        let is_asked = |name: &str| !self.recipe.omitted.iter().any(|omitted| omitted == name);
        if is_asked("CLIENT UNBLOCK") && self.random.one_in(8) {
            let how = *self.random.pick(&["TIMEOUT", "ERROR"]);
            return vec![array(&[
                "CLIENT",
                "UNBLOCK",
                &format!("{{id{waiter}}}"),
                how,
            ])];
        }
        if is_asked("CLIENT KILL") && self.random.one_in(16) {
            return vec![array(&["CLIENT", "KILL", "ID", &format!("{{id{waiter}}}")])];
        }
        let Some((family, key)) = blocking_family(&args) else {
            return vec![array(&["PING"])];
        };
        let mut requests = Vec::new();
        let mut ask = |args: &[&[u8]]| {
            requests.push(ScriptRequest::Array(
                args.iter().map(|arg| arg.to_vec()).collect(),
            ))
        };
        if session.is_restricted() {
            ask(&[b"RESET"]);
        } else if session.queue.is_some() {
            ask(&[b"DISCARD"]);
        }
        ask(&[
            b"SELECT",
            direct.connections[waiter].session.db.to_string().as_bytes(),
        ]);
        let in_transaction = self.has("transactions") && self.random.one_in(3);
        if in_transaction {
            ask(&[b"MULTI"]);
        }
        if !matches!(family, Family::Stream) && self.random.one_in(2) {
            ask(&[b"DEL", &key]);
        }
        self.serial += 1;
        let value = format!("served{}", self.serial).into_bytes();
        self.stream_ms += 1000;
        let id = format!("{}-1", self.stream_ms).into_bytes();
        match family {
            Family::List if self.random.one_in(4) => {
                ask(&[b"LPUSH", b"l3", &value]);
                ask(&[b"RPOPLPUSH", b"l3", &key]);
            }
            Family::List => ask(&[b"RPUSH", &key, &value, b"second", b"third"]),
            Family::Zset => ask(&[b"ZADD", &key, b"1", &value, b"2", b"second"]),
            Family::Stream => ask(&[b"XADD", &key, &id, b"f", &value]),
        }
        ask(&[b"EXISTS", &key]);
        if in_transaction {
            ask(&[b"EXEC"]);
        }
        requests
    }

    /// Makes a request of a template.
    fn fill(&mut self, template: &str, allowed: &AllowedRequests<'_>) -> Args {
        let words: Vec<&str> = template
            .split(' ')
            .filter(|word| !word.is_empty())
            .collect();
        let mut args = Args::new();
        self.fill_words(&words, allowed, &mut args);
        args
    }

    fn fill_words(&mut self, words: &[&str], allowed: &AllowedRequests<'_>, args: &mut Args) {
        let mut at = 0;
        while at < words.len() {
            match words[at] {
                "[" => {
                    let end = at
                        + words[at..]
                            .iter()
                            .position(|word| *word == "]")
                            .unwrap_or(words.len() - at - 1);
                    let choices: Vec<&[&str]> =
                        words[at + 1..end].split(|word| *word == "|").collect();
                    let choice = *self.random.pick(&choices);
                    self.fill_words(choice, allowed, args);
                    at = end;
                }
                "(" => {
                    let end = at
                        + words[at..]
                            .iter()
                            .position(|word| *word == ")+")
                            .unwrap_or(words.len() - at - 1);
                    for _ in 0..1 + self.random.below(4) {
                        // Each repetition makes its choices anew.
                        self.fill_words(&words[at + 1..end], allowed, args);
                    }
                    at = end;
                }
                word => match word.strip_prefix('$').filter(|rest| !rest.is_empty()) {
                    Some(what) => self.fill_word(what, allowed, args),
                    None => args.push(word.as_bytes().to_vec()),
                },
            }
            at += 1;
        }
    }

    fn fill_word(&mut self, what: &str, allowed: &AllowedRequests<'_>, args: &mut Args) {
        let random = &mut self.random;
        let text = |number: i64| number.to_string().into_bytes();
        let arg = match what {
            "n" => text(random.between(-3, 30)),
            "i" => text(random.between(-6, 8)),
            "u" => text(random.between(0, 9)),
            "f" | "m" => {
                let members: &[&[u8]] = &[
                    b"a",
                    b"b",
                    b"c",
                    b"dd",
                    b"1",
                    b"2",
                    b"",
                    b"m\x00\r\n\xff",
                    b"a longer one",
                ];
                random.pick(members).to_vec()
            }
            "v" => return self.value(args),
            "score" => random
                .pick(&["0", "1", "2.5", "-3", "1e3", "7", "3.0", "inf", "-inf"])
                .as_bytes()
                .to_vec(),
            "smin" => random.pick(&["-inf", "0", "(1", "2"]).as_bytes().to_vec(),
            "smax" => random
                .pick(&["+inf", "3", "(1000", "1"])
                .as_bytes()
                .to_vec(),
            "lmin" => random.pick(&["-", "[a", "(b"]).as_bytes().to_vec(),
            "lmax" => random.pick(&["+", "[c", "(dd"]).as_bytes().to_vec(),
            "xmin" => random.pick(&["-", "0", "3", "(2-1"]).as_bytes().to_vec(),
            "xmax" => random.pick(&["+", "9", "5-0", "(7-1"]).as_bytes().to_vec(),
            "xid" => {
                // Mostly above the last id; now and then an existing or refused one.
                let ms = if random.one_in(3) {
                    random.between(0, self.stream_ms)
                } else {
                    self.stream_ms += random.between(0, 2);
                    self.stream_ms
                };
                format!("{ms}-{}", random.between(0, 3)).into_bytes()
            }
            "ttl" => text(*random.pick(&TIMES)),
            "ttlms" => text(random.pick(&TIMES) * 1000),
            "at" => text(TIME_FAR + random.pick(&TIMES)),
            "atms" => text((TIME_FAR + random.pick(&TIMES)) * 1000),
            "db" => random
                .pick(&[
                    "0", "1", "2", "0", "1", "2", "0", "9", "15", "16", "-1", "x",
                ])
                .as_bytes()
                .to_vec(),
            "spaced" => b"two words".to_vec(),
            "pat" => random.pick(&PATTERNS).to_vec(),
            "body" => random.pick(&self.scripts).0.clone(),
            "sha" => random.pick(&self.scripts).1.clone(),
            "library" => random.pick(&LIBRARIES).as_bytes().to_vec(),
            "function" => random.pick(&FUNCTIONS).as_bytes().to_vec(),
            "keys_args" => {
                args.push(b"1".to_vec());
                self.fill_words(&["[", "$str", "|", "$list", "]", "$v"], allowed, args);
                return;
            }
            "ch" => self.owned(&CHANNELS, allowed),
            "shard" => self.owned(&SHARDS, allowed),
            "any" => self.any_key(allowed),
            kind => {
                let keys = KEYS.iter().find(|(name, _)| *name == kind);
                let (_, keys) = keys.expect("every word of a template is one of those above");
                if self.random.one_in(16) {
                    self.any_key(allowed)
                } else {
                    self.owned(keys, allowed)
                }
            }
        };
        args.push(arg);
    }

    fn any_key(&mut self, allowed: &AllowedRequests<'_>) -> Vec<u8> {
        let keys = *self.random.pick(&KEYS);
        self.owned(keys.1, allowed)
    }

    /// One of these names that the connection owns, or else a name that only it uses.
    fn owned(&mut self, names: &[&'static [u8]], allowed: &AllowedRequests<'_>) -> Vec<u8> {
        let owned: Vec<&[u8]> = names
            .iter()
            .copied()
            .filter(|name| allowed.owned.contains(name))
            .collect();
        match owned.is_empty() {
            true => format!("own{}", allowed.connection).into_bytes(),
            false => self.random.pick(&owned).to_vec(),
        }
    }

    fn value(&mut self, args: &mut Args) {
        let simple: [&[u8]; 9] = [
            b"",
            b"a",
            b"10",
            b"-7",
            b"3.5",
            b"two words",
            b"\r\n+OK\r\n",
            b"\x00\xff\x80",
            b"$5\r\nhello\r\n",
        ];
        let value = if self.has("huge") && self.random.one_in(500) {
            self.serial += 1;
            let pattern = format!("{}.", self.serial).into_bytes();
            pattern.into_iter().cycle().take(HUGE_BYTES).collect()
        } else if self.random.one_in(2) {
            self.serial += 1;
            format!("v{}", self.serial).into_bytes()
        } else {
            self.random.pick(&simple).to_vec()
        };
        args.push(value);
    }
}

fn array(words: &[&str]) -> ScriptRequest {
    ScriptRequest::Array(words.iter().map(|word| word.as_bytes().to_vec()).collect())
}

/// Keys and channels.
fn all_names() -> Vec<&'static [u8]> {
    let keys = KEYS.iter().flat_map(|(_, keys)| keys.iter().copied());
    keys.chain(CHANNELS).chain(SHARDS).collect()
}

/// The names among these arguments.
fn names_in(args: &[Vec<u8>]) -> impl Iterator<Item = &'static [u8]> + use<'_> {
    all_names()
        .into_iter()
        .filter(|name| args.iter().any(|arg| arg == name))
}

/// The flags of all templates of a command together.
fn flags(args: &[Vec<u8>]) -> u8 {
    let Some(first) = args.first() else {
        return 0;
    };
    let name = name(args);
    let templates = CLASSES.iter().flat_map(|class| class.templates);
    let same = templates.filter(|(_, _, text)| {
        let words: Args = text
            .split(' ')
            .map(|word| word.as_bytes().to_vec())
            .collect();
        super::script::name(&words) == name
            || words[0].eq_ignore_ascii_case(first) && words.len() == 1
    });
    same.fold(0, |flags, template| flags | template.1)
}

#[derive(Clone, Copy, Debug)]
enum Family {
    List,
    Zset,
    Stream,
}

/// The family of keys that a blocking command waits for, and one key that would serve it.
fn blocking_family(args: &[Vec<u8>]) -> Option<(Family, Vec<u8>)> {
    let key = |at: usize| args.get(at).cloned();
    match name(args).as_str() {
        "BLPOP" | "BRPOP" | "BRPOPLPUSH" | "BLMOVE" => Some((Family::List, key(1)?)),
        "BLMPOP" => Some((Family::List, key(3)?)),
        "BZPOPMIN" | "BZPOPMAX" => Some((Family::Zset, key(1)?)),
        "BZMPOP" => Some((Family::Zset, key(3)?)),
        "XREAD" | "XREADGROUP" => {
            let streams = args
                .iter()
                .position(|arg| arg.eq_ignore_ascii_case(b"STREAMS"))?;
            let blocks = args.iter().any(|arg| arg.eq_ignore_ascii_case(b"BLOCK"));
            blocks.then_some((Family::Stream, key(streams + 1)?))
        }
        _ => None,
    }
}

/// Whether a request may block, if only for a moment.
fn may_wait(args: &[Vec<u8>]) -> bool {
    // Redis 8 empties a database in the background and blocks the client until then.
    let waits = ["WAIT", "WAITAOF", "FLUSHALL", "FLUSHDB"];
    blocking_family(args).is_some() || waits.contains(&name(args).as_str())
}

/// Whether a request, once EXEC runs it, sends a message to its own connection. Up to Redis 7.0
/// such a message becomes one extra element of the reply, which no client can parse.
fn messages_own_connection(session: &SessionModel, args: &[Vec<u8>]) -> bool {
    let Some(queue) = &session.queue else {
        return false;
    };
    let joins = |args: &Args| subscription(&name(args)).is_some_and(|(_, joins)| joins);
    let hears = session.is_subscribed() || queue.iter().any(joins);
    match name(args).as_str() {
        "PUBLISH" | "SPUBLISH" => hears,
        // Changes of keys cause messages, too.
        _ => session.hears_everything() && !reads(args),
    }
}

/// Whether a request surely changes no key.
fn reads(args: &[Vec<u8>]) -> bool {
    let arg = |index: usize| args.get(index).map_or(&[][..], Vec::as_slice);
    let id = commands::resolve(args.len(), arg);
    let flags = id.map(|id| commands::command(id).flags);
    // Scripts lack both flags.
    flags.is_some_and(|flags| flags.has(CommandFlags::READONLY) || flags.has(CommandFlags::LOADING))
}

/// Assumes that a request succeeds: only the choice of the next requests depends on it.
fn assume(session: &mut SessionModel, args: &Args) {
    use respool_testkit::frame::Frame;
    let request = ScriptRequest::Array(args.clone());
    let name = name(args);
    let ends_queue =
        ["EXEC", "DISCARD", "RESET", "QUIT", "MULTI", "WATCH"].contains(&name.as_str());
    let reply = if session.queue.is_some() && !ends_queue {
        b"QUEUED".to_vec()
    } else if name == "MULTI" && (session.queue.is_some() || args.len() > 1)
        || session.is_restricted() && subscription(&name).is_none() && name != "RESET"
    {
        return;
    } else {
        b"OK".to_vec()
    };
    let ok = Frame::Line(b'+', reply);
    let confirmation = |name: &str, channel: &Vec<u8>| {
        let kind = Frame::Bulk(b'$', Some(name.to_ascii_lowercase().into_bytes()));
        let channel = Frame::Bulk(b'$', Some(channel.clone()));
        Frame::List(b'*', Some(vec![kind, channel]))
    };
    let reply = match (name.as_str(), &session.queue) {
        ("EXEC", Some(queue)) => {
            let results = queue.iter().map(|args| {
                let name = super::script::name(args);
                match (subscription(&name), args.get(1)) {
                    // It may still be aborted, so the connection is still subscribed.
                    (Some((_, true)), Some(channel)) => confirmation(&name, channel),
                    _ => ok.clone(),
                }
            });
            Frame::List(b'*', Some(results.collect()))
        }
        _ => ok,
    };
    session.handle_reply(&request, Some(&reply));
    if let (Some((_, _)), true) = (subscription(&name), session.queue.is_none()) {
        for channel in &args[1..] {
            session.handle_confirmation(&confirmation(&name, channel));
        }
        if args.len() == 1 && name.ends_with("UNSUBSCRIBE") {
            session.leave_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_template_can_be_filled() {
        let recipe = CaseRecipe {
            connections: 1,
            steps: 1,
            classes: class_names().into_iter().collect(),
            omitted: Vec::new(),
        };
        let mut generator =
            RoundGenerator::new(&recipe, 1, vec![(b"return 1".to_vec(), b"e0e1".to_vec())]);
        let owned: BTreeSet<&'static [u8]> = all_names().into_iter().collect();
        let session = SessionModel::default();
        let allowed = AllowedRequests {
            connection: 0,
            session,
            owned: &owned,
            has_cache: true,
            is_alone: true,
            may_wait: true,
        };
        for template in CLASSES.iter().flat_map(|class| class.templates) {
            for _ in 0..20 {
                let args = generator.fill(template.2, &allowed);
                let odd = args.iter().find(|arg| {
                    [b"[".as_slice(), b"]", b"|", b"(", b")+"].contains(&arg.as_slice())
                });
                assert!(odd.is_none() && !args.is_empty(), "{}: {odd:?}", template.2);
            }
        }
    }
}

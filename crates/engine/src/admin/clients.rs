//! The clients of the process, as CLIENT LIST, KILL, PAUSE and their like see them: our sessions,
//! not the server's connections, which are our links.
//!
//! Syntax, texts and the order of fields are those of Redis 8.2 (`clientListCommand`,
//! `clientKillCommand` and their neighbours); before a Valkey those of Valkey 9.1
//! (`parseClientFiltersOrReply`), whose CLIENT LIST and KILL know more filters.

use std::borrow::Cow;
use std::fmt::{Display, Write as _};

use respool_protocol::commands::{self, Command, CommandId, id};
use respool_protocol::encode;
use respool_protocol::number;

use crate::duty::Duty;
use crate::engine::{Engine, Event};
use crate::fleet::{Answer, Form, Question};
use crate::here::OK;
use crate::link::{Link, Role};
use crate::listing::Lines;
use crate::pool::ServerId;
use crate::requests::{Placed, Request};
use crate::session::{Flags, Local, Peer, Pins, Session};
use crate::slots::Key;
use crate::time::Time;
use crate::words::{c_string, malformed_subcommand};

/// Which sessions a CLIENT LIST or KILL is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The session that asks.
    asker: u64,
    /// Its pool, beyond which it sees and reaches nobody: it is that pool's server that has given
    /// it the right.
    pool: u16,
    /// Whether it is left out.
    skip_asker: bool,
    /// How lines are written.
    dialect: Dialect,
    /// At least this old, and this long without a word, in seconds.
    age: Option<u64>,
    idle: Option<u64>,
    /// What must be true of them, and what must not (`NOT-...`).
    is: Traits,
    is_not: Traits,
}

/// How the wait of a blocked session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unblock {
    /// As if its time were over.
    Timeout,
    /// With an error that says so.
    Error,
}

/// What CLIENT PAUSE holds back, and until when.
#[derive(Debug)]
pub(crate) struct Pause {
    /// Whose sessions it is about.
    pool: u16,
    pub(crate) until: Time,
    /// Everything, not only what may write.
    all: bool,
}

/// The error text if nobody is found.
type Doubt = Option<Vec<u8>>;

/// Whose syntax and texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    Redis,
    Valkey,
}

/// What may be said of a session, in a filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Traits {
    ids: Option<Vec<u64>>,
    kind: Option<Kind>,
    addr: Option<Vec<u8>>,
    laddr: Option<Vec<u8>>,
    ip: Option<Vec<u8>>,
    user: Option<Vec<u8>>,
    flags: Option<Vec<u8>>,
    name: Option<Vec<u8>>,
    lib_name: Option<Vec<u8>>,
    lib_ver: Option<Vec<u8>>,
    db: Option<u32>,
    capa: Option<Vec<u8>>,
}

/// What TYPE tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Normal,
    PubSub,
    Replica,
    Primary,
}

impl Kind {
    fn by_name(name: &[u8], dialect: Dialect) -> Option<Kind> {
        let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
        Some(match () {
            () if is("normal") => Kind::Normal,
            () if is("pubsub") => Kind::PubSub,
            () if is("slave") || is("replica") => Kind::Replica,
            () if is("master") => Kind::Primary,
            () if is("primary") && dialect == Dialect::Valkey => Kind::Primary,
            () => return None,
        })
    }
}

/// The commands.
impl Engine {
    /// Answers what is about clients.
    pub(crate) fn answer_clients(&mut self, key: Key, request: &Request<'_>) -> Placed {
        match request.id {
            id::CLIENT_INFO => {
                let mut line = String::new();
                self.write_client_line(&mut line, key);
                self.answer_with(key, |out, session| {
                    encode::verbatim(out, session.version, &line)
                })
            }
            id::CLIENT_LIST => match self.list_filter(key, request) {
                Ok((filter, form, doubt)) => {
                    self.ask(key, Question::List(Box::new(filter)), form, doubt)
                }
                Err(text) => self.answer_error(key, &text),
            },
            id::CLIENT_KILL => match self.kill_filter(key, request) {
                Ok((filter, form, doubt)) => {
                    self.ask(key, Question::Kill(Box::new(filter)), form, doubt)
                }
                Err(text) => self.answer_error(key, &text),
            },
            id::CLIENT_PAUSE => match self.pause_asked(key, request) {
                Ok(question) => self.ask(key, question, Form::Ok, None),
                Err(text) => self.answer_error(key, &text),
            },
            id::CLIENT_UNPAUSE => {
                let pool = self.pool_of_session(key);
                self.ask(key, Question::Unpause { pool }, Form::Ok, None)
            }
            id::CLIENT_UNBLOCK => match self.unblock_asked(key, request) {
                Ok(question) => self.ask(key, question, Form::Sum, None),
                Err(text) => self.answer_error(key, &text),
            },
            _ => self.client_no_evict(key, request),
        }
    }

    /// The filter of a CLIENT LIST, the shape of its answer, and the error if nobody is found.
    fn list_filter(
        &self,
        key: Key,
        request: &Request<'_>,
    ) -> Result<(Filter, Form, Doubt), Vec<u8>> {
        let mut filter = self.filter(key, false);
        let argc = request.spans.len();
        let (mut named, mut doubt) = (None, None);
        if filter.dialect == Dialect::Valkey {
            doubt = self.parse_filters(key, request, &mut filter)?;
        } else if argc == 4 && request.arg(2).eq_ignore_ascii_case(b"type") {
            filter.is.kind = Some(kind(request.arg(3), filter.dialect)?);
        } else if argc > 3 && request.arg(2).eq_ignore_ascii_case(b"id") {
            let mut ids = Vec::new();
            for arg in request.args().skip(3) {
                let id = number::parse(arg).ok_or(b"ERR Invalid client ID".as_slice())?;
                // Ids that nobody has are no error; below 1, nobody has any.
                ids.push(u64::try_from(id).unwrap_or(0));
            }
            named = Some(ids.clone());
            filter.is.ids = Some(ids);
        } else if argc != 2 {
            return Err(SYNTAX.to_vec());
        }
        Ok((filter, Form::Lines(named), doubt))
    }

    /// The same for a CLIENT KILL.
    fn kill_filter(
        &self,
        key: Key,
        request: &Request<'_>,
    ) -> Result<(Filter, Form, Doubt), Vec<u8>> {
        let mut filter = self.filter(key, true);
        if request.spans.len() == 3 {
            // The old form: one address, and it may be one's own.
            filter.skip_asker = false;
            filter.is.addr = Some(request.arg(2).to_vec());
            return Ok((filter, Form::AnyKilled, None));
        }
        let doubt = self.parse_filters(key, request, &mut filter)?;
        Ok((filter, Form::Sum, doubt))
    }

    fn filter(&self, key: Key, skip_asker: bool) -> Filter {
        Filter {
            asker: self.sessions.get(key).map_or(0, |session| session.id),
            pool: self.pool_of_session(key),
            skip_asker,
            dialect: self.dialect_of(key),
            age: None,
            idle: None,
            is: Traits::default(),
            is_not: Traits::default(),
        }
    }

    /// Filters as pairs of a name and a value; Valkey's ID takes as many values as are numbers.
    fn parse_filters(
        &self,
        key: Key,
        request: &Request<'_>,
        filter: &mut Filter,
    ) -> Result<Doubt, Vec<u8>> {
        let mut doubt = None;
        let argc = request.spans.len();
        let valkey = filter.dialect == Dialect::Valkey;
        let mut at = 2;
        while at < argc {
            if at + 1 == argc {
                return Err(SYNTAX.to_vec());
            }
            let word = request.arg(at).to_ascii_lowercase();
            let value = request.arg(at + 1);
            at += 2;
            match word.as_slice() {
                b"skipme" => {
                    filter.skip_asker = if value.eq_ignore_ascii_case(b"yes") {
                        true
                    } else if value.eq_ignore_ascii_case(b"no") {
                        false
                    } else {
                        return Err(SYNTAX.to_vec());
                    };
                    continue;
                }
                b"maxage" if !self.is_redis_before(key, (7, 4)) => {
                    filter.age = Some(seconds("maxage", value)?);
                    continue;
                }
                b"idle" if valkey => {
                    filter.idle = Some(seconds("idle", value)?);
                    continue;
                }
                _ => {}
            }
            let (traits, word) = match word.strip_prefix(b"not-") {
                Some(rest) if valkey => (&mut filter.is_not, rest),
                _ => (&mut filter.is, word.as_slice()),
            };
            let negated = word.len() < request.arg(at - 2).len();
            match word {
                b"id" if valkey => {
                    let ids = traits.ids.get_or_insert_default();
                    at -= 1;
                    while at < argc
                        && let Some(id) = number::parse(request.arg(at))
                    {
                        ids.push(client_id(Some(id))?);
                        at += 1;
                    }
                }
                b"id" if self.is_before_7(key) => {
                    // Below 1 is nobody.
                    let id = number::parse(value).ok_or(NO_INTEGER)?;
                    traits.ids = Some(vec![u64::try_from(id).unwrap_or(0)]);
                }
                b"id" => traits.ids = Some(vec![client_id(number::parse(value))?]),
                b"type" => traits.kind = Some(kind(value, filter.dialect)?),
                b"addr" => traits.addr = Some(value.to_vec()),
                b"laddr" => traits.laddr = Some(value.to_vec()),
                b"user" => {
                    if !self.is_user(value) {
                        let text = [b"ERR No such user '", c_string(value), b"'"].concat();
                        if negated || !self.settings.users.is_empty() {
                            return Err(text);
                        }
                        // Another worker may have somebody of that name.
                        doubt = Some(text);
                    }
                    traits.user = Some(value.to_vec());
                }
                b"flags" if valkey => {
                    known_letters("flags", negated, value, KNOWN_FLAGS)?;
                    traits.flags = Some(value.to_vec());
                }
                b"capa" if valkey => {
                    known_letters("capa", negated, value, b"r")?;
                    traits.capa = Some(value.to_vec());
                }
                b"name" if valkey => traits.name = Some(value.to_vec()),
                b"lib-name" if valkey => traits.lib_name = Some(value.to_vec()),
                b"lib-ver" if valkey => traits.lib_ver = Some(value.to_vec()),
                b"ip" if valkey => traits.ip = Some(value.to_vec()),
                b"db" if valkey => {
                    let word = if negated { "NOT-DB" } else { "DB" };
                    let index = number::parse(value).and_then(|index| i32::try_from(index).ok());
                    let index = index
                        .ok_or_else(|| format!("ERR {word} is not an integer or out of range"))?;
                    // How many databases the server has is not known here: an index beyond is
                    // nobody's.
                    let index = u32::try_from(index).map_err(|_| {
                        format!("ERR {word} number should be between 0 and {}", i32::MAX)
                    })?;
                    traits.db = Some(index);
                }
                _ => return Err(SYNTAX.to_vec()),
            }
        }
        Ok(doubt)
    }

    fn pause_asked(&self, key: Key, request: &Request<'_>) -> Result<Question, Vec<u8>> {
        let argc = request.spans.len();
        let all = match argc {
            4 if request.arg(3).eq_ignore_ascii_case(b"write") => false,
            4 if !request.arg(3).eq_ignore_ascii_case(b"all") => {
                return Err(b"ERR CLIENT PAUSE mode must be WRITE or ALL".to_vec());
            }
            5.. if self.dialect_of(key) == Dialect::Redis => {
                return Err(malformed_subcommand(request));
            }
            _ => true,
        };
        let ms = number::parse(request.arg(2))
            .ok_or(b"ERR timeout is not an integer or out of range".as_slice())?;
        let ms = u64::try_from(ms).map_err(|_| b"ERR timeout is negative".as_slice())?;
        // The server's clock counts from 1970; what is too far for it is so here.
        let now_ms = self.worker.started_at * 1_000 + self.now.0 / 1_000;
        if ms > i64::MAX as u64 - now_ms {
            return Err(b"ERR timeout is out of range".to_vec());
        }
        let until = Time(self.now.0.saturating_add(ms.saturating_mul(1_000)));
        let pool = self.pool_of_session(key);
        Ok(Question::Pause { pool, until, all })
    }

    fn unblock_asked(&self, key: Key, request: &Request<'_>) -> Result<Question, Vec<u8>> {
        let argc = request.spans.len();
        let how = match argc {
            4 if request.arg(3).eq_ignore_ascii_case(b"error") => Unblock::Error,
            4 if !request.arg(3).eq_ignore_ascii_case(b"timeout") => {
                return Err(b"ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR".to_vec());
            }
            5.. if self.dialect_of(key) == Dialect::Redis => {
                return Err(malformed_subcommand(request));
            }
            _ => Unblock::Timeout,
        };
        let id = number::parse(request.arg(2))
            .ok_or(b"ERR value is not an integer or out of range".as_slice())?;
        // Below 1 is nobody.
        let id = u64::try_from(id).unwrap_or(0);
        let pool = self.pool_of_session(key);
        Ok(Question::Unblock { id, pool, how })
    }

    fn client_no_evict(&mut self, key: Key, request: &Request<'_>) -> Placed {
        let on = request.arg(2).eq_ignore_ascii_case(b"on");
        if !on && !request.arg(2).eq_ignore_ascii_case(b"off") {
            return self.answer_error(key, SYNTAX);
        }
        if let Some(session) = self.sessions.get_mut(key)
            && (on || session.rare.is_some())
        {
            session.rare().no_evict = on;
        }
        self.answer_reply(key, OK)
    }
}

/// What the commands do with this worker's sessions.
impl Engine {
    pub(crate) fn list_clients(&self, filter: &Filter) -> Lines {
        let mut lines = Lines::default();
        for (key, session) in self.sessions.iter() {
            if self.passes(session, filter) {
                lines.push(session.id, |text| {
                    self.write_client_line(text, key);
                });
            }
        }
        lines.shrink();
        lines
    }

    /// Closes the sessions that pass. Who asks for its own end is answered first.
    pub(crate) fn kill_clients(&mut self, filter: &Filter) -> u64 {
        let passes = |(key, session): (Key, &Session)| {
            self.passes(session, filter).then_some((key, session.id))
        };
        let killed: Vec<(Key, u64)> = self.sessions.iter().filter_map(passes).collect();
        for &(key, id) in &killed {
            let asker = filter.asker;
            if id == asker {
                self.close_when_answered(key);
                continue;
            }
            let peer = self.sessions.get(key).map(|session| session.peer);
            self.tell(Event::SessionClosed {
                peer: peer.map_or(String::new(), |peer| peer.to_string()),
                reason: format!("client {asker} asked for it: CLIENT KILL"),
            });
            self.close(key, false);
        }
        killed.len() as u64
    }

    /// The pool of a session that is here.
    pub(crate) fn pool_of_session(&self, key: Key) -> u16 {
        self.sessions.get(key).map_or(0, |session| session.pool)
    }

    pub(crate) fn begin_pause(&mut self, pool: u16, until: Time, all: bool) {
        match self.pauses.iter_mut().find(|pause| pause.pool == pool) {
            // Of two pauses the longer and the stricter hold.
            Some(pause) => {
                pause.until = pause.until.max(until);
                pause.all |= all;
            }
            None if until <= self.now => {}
            None => {
                self.pauses.push(Pause { pool, until, all });
                self.admit_links();
            }
        }
    }

    pub(crate) fn end_pause(&mut self, pool: u16) {
        let Some(index) = self.pauses.iter().position(|pause| pause.pool == pool) else {
            return;
        };
        self.pauses.swap_remove(index);
        self.admit_links();
        // Who is released last continues first. Whoever is paused in another pool stays so.
        let (mut released, sessions) = (Vec::new(), &self.sessions);
        self.paused.retain(|key| {
            let ends = sessions
                .get(*key)
                .is_none_or(|session| session.pool == pool);
            if ends {
                released.push(*key);
            }
            !ends
        });
        for key in released.into_iter().rev() {
            self.release(key, Flags::HOLD_PAUSE);
        }
    }

    /// Ends those whose time is over.
    pub(crate) fn end_pauses(&mut self) {
        let now = self.now;
        while let Some(over) = self.pauses.iter().find(|pause| now >= pause.until) {
            self.end_pause(over.pool);
        }
    }

    /// A pause began or ended: the short way closes or opens.
    pub(crate) fn admit_links(&mut self) {
        for key in self.links.keys() {
            let paused = self.is_link_paused(key);
            if let Some(link) = self.links.get_mut(key) {
                link.admit(link.takes, paused);
            }
        }
    }

    /// Whether a pause is on for the pool of a link, or the server of the link holds writes.
    pub(crate) fn is_link_paused(&self, link: Key) -> bool {
        let link = self.links.get(link);
        link.is_some_and(|link| self.is_server_paused(link.key.server))
    }

    /// The same of a server.
    pub(crate) fn is_server_paused(&self, server: ServerId) -> bool {
        let pool = self.pool_of(server).whole;
        let is_on = |pause: &Pause| pause.pool == pool;
        self.pauses.iter().any(is_on) || self.link_that_holds_writes(server).is_some()
    }

    /// Whether a pause is on that holds what writes, or what does not, of this session.
    #[inline]
    pub(crate) fn pauses(&self, key: Key, writes: impl FnOnce() -> bool) -> bool {
        if self.pauses.is_empty() {
            return false;
        }
        let pool = self.pool_of_session(key);
        let pause = self.pauses.iter().find(|pause| pause.pool == pool);
        pause.is_some_and(|pause| pause.all || writes())
    }

    /// Whether a request has to wait for the end of a pause. As in Redis, what is wrong by its name
    /// or the number of its arguments has been answered by then, and what MULTI would only queue
    /// waits, too.
    #[inline]
    pub(crate) fn is_paused(&self, key: Key, request: &Request<'_>) -> bool {
        self.pauses(key, || {
            if request.id == id::EXEC {
                let session = self.sessions.get(key);
                let transaction = session
                    .and_then(|session| session.rare.as_ref())
                    .and_then(|rare| rare.transaction.as_ref());
                return transaction.is_some_and(|transaction| transaction.writes);
            }
            request_may_write(request)
        })
    }

    /// The same for a request that has come in part; its command is known.
    pub(crate) fn is_paused_large(&self, key: Key, args: &[&[u8]], argc: usize) -> bool {
        self.pauses(key, || {
            let arg = |index: usize| args.get(index).copied().unwrap_or_default();
            let id = commands::resolve(argc, arg);
            // Of a script that has not come whole, nothing is known.
            id.is_some_and(|id| may_write(id.get(), id, || args.get(1).copied()))
        })
    }

    /// The session waits until the pause ends.
    #[cold]
    pub(crate) fn hold_for_pause(&mut self, key: Key) -> Placed {
        self.hold(key, Flags::HOLD_PAUSE);
        if self.paused.len() > 2 * self.sessions.len() {
            // Those who came and went while a long pause lasts.
            let sessions = &self.sessions;
            self.paused.retain(|key| sessions.get(*key).is_some());
        }
        self.paused.push(key);
        Placed::Wait
    }

    /// A client that is paused sends no more: as in Redis, what it asked is not executed.
    pub(crate) fn end_paused(&mut self, key: Key) {
        if self
            .sessions
            .get(key)
            .is_some_and(|session| session.flags.any(Flags::HOLD_PAUSE))
        {
            self.close_when_answered(key);
        }
    }

    /// Asks the server to end the wait of a session of ours in a command that blocks. False if it
    /// is in none; otherwise the server's answer becomes that to `whose` question.
    pub(crate) fn unblock(
        &mut self,
        (id, pool): (u64, u16),
        how: Unblock,
        whose: (usize, u64),
    ) -> bool {
        let session = self
            .sessions
            .iter()
            .find(|(_, session)| session.id == id && session.pool == pool);
        let polled = session
            .map(|(key, _)| key)
            .filter(|key| self.polling.holds(*key));
        let blocked = session.map(|(_, session)| session.link);
        if let Some(key) = polled
            && self.unblock_poll(key, matches!(how, Unblock::Error))
        {
            let (to, ticket) = whose;
            self.give_answer(to, ticket, Answer::Count(1));
            return true;
        }
        // Named at the server by its connection, that must not be another session's by then.
        if let Some(link) = blocked.and_then(|link| self.links.get_mut(link)) {
            link.tainted |= link.waits;
        }
        let waits = |link: &Link| link.waits && link.is_up() && !link.ledger.is_empty();
        let waits = |link: &Key| self.links.get(*link).is_some_and(waits);
        let Some(blocked) = blocked.filter(waits) else {
            return false;
        };
        let how = match how {
            Unblock::Timeout => "TIMEOUT",
            Unblock::Error => "ERROR",
        };
        let (to, ticket) = whose;
        self.ask_to_unblock(blocked, how, Duty::Unblock { to, ticket })
    }

    /// Asks a server to end a wait on a link of ours: on another one. False if there is none that
    /// has been up since before: behind the same address may be another server by now, to which the
    /// name of the link is a stranger's.
    pub(crate) fn ask_to_unblock(&mut self, blocked: Key, how: &str, duty: Duty) -> bool {
        let Some(blocked) = self.links.get(blocked) else {
            return false;
        };
        let (server, client_id) = (blocked.key.server, blocked.client_id);
        // The configured user's, if it is let in: who asks was found to have the right.
        let first = self.first_link(server);
        let shared = |link: &Link| {
            let is_older = link.up_since <= blocked.up_since;
            link.role == Role::Shared && link.is_up() && link.key.server == server && is_older
        };
        let links = self.links.iter().filter(|(_, link)| shared(link));
        let Some((link, _)) = links.max_by_key(|(_, link)| link.key == first) else {
            return false;
        };
        let client_id = client_id.to_string();
        let mut request = Vec::new();
        encode::request(&mut request, &["CLIENT", "UNBLOCK", &client_id, how]);
        self.put_ours(link, &request, duty);
        true
    }

    /// What the server said to that.
    pub(crate) fn unblocked(&mut self, (to, ticket): (usize, u64), reply: &[u8]) {
        let count = u64::from(reply == b":1\r\n");
        self.give_answer(to, ticket, Answer::Count(count));
    }

    fn passes(&self, session: &Session, filter: &Filter) -> bool {
        let old = |since: Time, seconds: Option<u64>| {
            seconds.is_none_or(|seconds| self.now.since_ms(since) / 1_000 >= seconds)
        };
        session.pool == filter.pool
            && !(filter.skip_asker && session.id == filter.asker)
            && old(session.accepted_at, filter.age)
            && old(session.active_at, filter.idle)
            && self.has(session, &filter.is).all(|has| has)
            && !self.has(session, &filter.is_not).any(|has| has)
    }

    /// Of each trait that is named, whether the session has it.
    fn has<'a>(
        &'a self,
        session: &'a Session,
        traits: &'a Traits,
    ) -> impl Iterator<Item = bool> + 'a {
        let rare = session.rare.as_deref();
        // An empty name is none.
        let text = |ours: Option<&Vec<u8>>, wanted: &Option<Vec<u8>>| {
            let given =
                |wanted: &Vec<u8>| ours.is_some_and(|ours| !ours.is_empty() && ours == wanted);
            wanted.as_ref().map(given)
        };
        let plain = |ours: &dyn Fn() -> String, wanted: &Option<Vec<u8>>| -> Option<bool> {
            wanted.as_ref().map(|wanted| ours().as_bytes() == wanted)
        };
        let flags = |wanted: &Vec<u8>| {
            let ours = self.client_flags(session);
            wanted.iter().all(|&flag| ours.contains(char::from(flag)))
        };
        [
            traits.ids.as_ref().map(|ids| ids.contains(&session.id)),
            traits.kind.map(|kind| kind == client_kind(session)),
            plain(&|| addr(session), &traits.addr),
            plain(&|| laddr(session), &traits.laddr),
            traits.ip.as_ref().map(|ip| is_from(session, ip)),
            plain(&|| self.user_name(session.user).to_owned(), &traits.user),
            traits.flags.as_ref().map(flags),
            text(rare.map(|rare| &rare.name), &traits.name),
            text(rare.map(|rare| &rare.lib_name), &traits.lib_name),
            text(rare.map(|rare| &rare.lib_ver), &traits.lib_ver),
            traits.db.map(|db| db == session.db),
            // CLIENT CAPA is taken and forgotten: nobody has any.
            traits.capa.as_ref().map(Vec::is_empty),
        ]
        .into_iter()
        .flatten()
    }

    fn dialect_of(&self, key: Key) -> Dialect {
        match self.identity_of(key) {
            Some(identity) if identity.server == "valkey" => Dialect::Valkey,
            _ => Dialect::Redis,
        }
    }

    /// Whether somebody may be of that name, as far as this worker knows.
    fn is_user(&self, name: &[u8]) -> bool {
        // Redis always has its default user, whether anybody may be it or not.
        name == b"default"
            || self
                .settings
                .users
                .iter()
                .any(|user| user.name.as_bytes() == name)
            || self
                .sessions
                .iter()
                .any(|(_, session)| self.user_name(session.user).as_bytes() == name)
    }

    /// The letters of a session, in Redis's order.
    fn client_flags(&self, session: &Session) -> String {
        let waits = self.links.get(session.link).is_some_and(|link| link.waits);
        let rare = session.rare.as_deref();
        let no_evict = rare.is_some_and(|rare| rare.no_evict);
        let within = rare.and_then(|rare| rare.within);
        let letters = [
            ('O', session.pins.any(Pins::MONITOR)),
            ('P', session.listens()),
            ('x', session.flags.any(Flags::IN_MULTI) || within.is_some()),
            (
                'b',
                waits || session.flags.any(Flags::HOLD_PAUSE | Flags::HOLD_ROOM),
            ),
            ('t', session.pins.any(Pins::TRACKING)),
            ('B', session.pins.any(Pins::BROADCAST)),
            ('c', session.flags.any(Flags::CLOSING)),
            ('U', session.peer == Peer::Unix),
            ('e', no_evict),
            ('T', session.pins.any(Pins::NO_TOUCH)),
            ('I', session.pins.any(Pins::IMPORT)),
        ];
        let flags: String = letters
            .into_iter()
            .filter_map(|(letter, is)| is.then_some(letter))
            .collect();
        if flags.is_empty() {
            "N".to_owned()
        } else {
            flags
        }
    }

    /// Appends a session's line as CLIENT LIST and INFO show it. Its memory is what the session
    /// makes us hold, without the buffers that it borrows for a turn.
    fn write_client_line(&self, line: &mut String, key: Key) {
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        let seconds = |since| self.now.since_ms(since) / 1_000;
        let rare = session.rare.as_deref();
        let transaction = rare.and_then(|rare| rare.transaction.as_ref());
        let within = rare.and_then(|rare| rare.within);
        let queued = within.map(|within| within.count);
        let queued = queued.or(transaction.map(|transaction| transaction.count));
        // Valkey 8.1 and newer make room for what is queued at the first MULTI or WATCH, and keep
        // it.
        let keeps_room = || {
            let release = self.release_of(key);
            release.is_some_and(|(server, its)| server == "valkey" && its >= (8, 1))
        };
        let none_queued = match session.flags.any(Flags::HAS_QUEUED) && keeps_room() {
            true => 0,
            false => -1,
        };
        let held = session.held_bytes();
        let unsent = session.out.len();
        let [sub, psub, ssub] = session.subscriptions();
        // Nothing but a defect of this function makes writing to a String fail.
        let _ = write!(
            line,
            "id={} addr={} laddr={} fd={} name={} age={} idle={} flags={}",
            session.id,
            addr(session),
            laddr(session),
            session.fd,
            text(rare.map(|rare| &rare.name)),
            seconds(session.accepted_at),
            seconds(session.active_at),
            self.client_flags(session),
        );
        let release = self.release_of(key);
        let mut put = |field: &str, value: &dyn Display| {
            if shows_field(release, field) {
                let _ = write!(line, " {field}={value}");
            }
        };
        put("capa", &"");
        put("db", &within.map_or(session.db, |within| within.db));
        put("sub", &sub);
        put("psub", &psub);
        put("ssub", &ssub);
        put("multi", &queued.map_or(none_queued, i64::from));
        // The number of keys is known to the server alone.
        put("watch", &u8::from(session.pins.any(Pins::WATCH)));
        put("qbuf", &session.held.len());
        put("qbuf-free", &0);
        put("argv-mem", &0);
        put("multi-mem", &0);
        put("rbs", &0);
        put("rbp", &0);
        put("obl", &unsent);
        put("oll", &0);
        put("omem", &0);
        put("tot-mem", &(size_of::<Session>() + held));
        // A session that was not read while it waited is read again.
        let is_unread = session.flags.any(Flags::UNREAD) && session.flags.any(Flags::HOLD);
        put("events", &if is_unread { "" } else { "r" });
        put("cmd", &session.asked.map_or("NULL", |id| id.get().name));
        let user = within.map_or(session.user, |within| within.user);
        put("user", &self.user_name(user));
        let redirect = match rare.and_then(|rare| rare.redirect.as_ref()) {
            Some(redirect) => redirect.to as i64,
            None if session.pins.any(Pins::TRACKING) => 0,
            None => -1,
        };
        put("redir", &redirect);
        put("resp", &session.version.number());
        put("lib-name", &text(rare.map(|rare| &rare.lib_name)));
        put("lib-ver", &text(rare.map(|rare| &rare.lib_ver)));
        put("io-thread", &0);
        put("tot-net-in", &session.bytes_in);
        put("tot-net-out", &session.bytes_out);
        // Places in the order of replies count requests; those in front of the head are answered.
        put("tot-cmds", &session.head_seq);
        line.push('\n');
    }
}

/// A field of CLIENT LIST, and the first release of Redis and of Valkey that shows it. `None`: no
/// release of that server shows it.
type Since = (&'static str, Option<(u32, u32)>, Option<(u32, u32)>);

/// Fields that are newer than Redis 6.2, or that one of the two servers does not have. Clients take
/// such a field as a sign that the server has the feature. Checked with Redis 6.2, 7.0 and 8.2 and
/// Valkey 9.1; releases between these as their documentation says. Redis has `ssub` since 7.0.3.
const FIELDS_SINCE: [Since; 13] = [
    ("capa", None, Some((8, 1))),
    ("ssub", Some((7, 0)), Some((7, 2))),
    ("watch", Some((7, 4)), Some((8, 0))),
    ("multi-mem", Some((7, 0)), Some((7, 2))),
    ("rbs", Some((7, 0)), Some((7, 2))),
    ("rbp", Some((7, 0)), Some((7, 2))),
    ("resp", Some((7, 0)), Some((7, 2))),
    ("lib-name", Some((7, 2)), Some((7, 2))),
    ("lib-ver", Some((7, 2)), Some((7, 2))),
    ("io-thread", Some((8, 0)), None),
    ("tot-net-in", Some((8, 2)), Some((8, 0))),
    ("tot-net-out", Some((8, 2)), Some((8, 0))),
    ("tot-cmds", Some((8, 2)), Some((8, 0))),
];

/// Whether a server shows a field in CLIENT LIST. A server of unknown release is a new Redis.
fn shows_field(release: Option<(&str, (u32, u32))>, field: &str) -> bool {
    let Some((_, redis, valkey)) = FIELDS_SINCE.iter().find(|(name, ..)| *name == field) else {
        return true;
    };
    match release {
        None => redis.is_some(),
        Some(("valkey", its)) => valkey.is_some_and(|first| its >= first),
        Some((_, its)) => redis.is_some_and(|first| its >= first),
    }
}

/// Every letter that a Valkey 9.1 knows.
const KNOWN_FLAGS: &[u8] = b"OSMPxbtRBdcuAUreTIN";

fn client_kind(session: &Session) -> Kind {
    if session.listens() {
        Kind::PubSub
    } else {
        Kind::Normal
    }
}

fn text(field: Option<&Vec<u8>>) -> Cow<'_, str> {
    String::from_utf8_lossy(field.map_or(b"", Vec::as_slice))
}

fn addr(session: &Session) -> String {
    match (session.peer, &session.local) {
        (Peer::Tcp(address), _) => address.to_string(),
        // The other end has no name: it goes by ours.
        (Peer::Unix, Local::Unix(path)) => format!("{path}:0"),
        (Peer::Unix, _) => "unix".to_owned(),
    }
}

fn laddr(session: &Session) -> String {
    match &session.local {
        Local::Unknown => String::new(),
        Local::Tcp(address) => address.to_string(),
        Local::Unix(path) => format!("{path}:0"),
    }
}

fn is_from(session: &Session, ip: &[u8]) -> bool {
    match session.peer {
        Peer::Tcp(address) => address.ip().to_string().as_bytes() == ip,
        Peer::Unix => false,
    }
}

fn kind(name: &[u8], dialect: Dialect) -> Result<Kind, Vec<u8>> {
    Kind::by_name(name, dialect)
        .ok_or_else(|| [b"ERR Unknown client type '", c_string(name), b"'"].concat())
}

const NO_INTEGER: &[u8] = b"ERR value is not an integer or out of range";

fn client_id(id: Option<i64>) -> Result<u64, &'static [u8]> {
    id.and_then(|id| u64::try_from(id).ok())
        .filter(|&id| id > 0)
        .ok_or(b"ERR client-id should be greater than 0")
}

fn seconds(word: &str, value: &[u8]) -> Result<u64, String> {
    let seconds = number::parse(value)
        .ok_or_else(|| format!("ERR {word} is not an integer or out of range"))?;
    u64::try_from(seconds)
        .ok()
        .filter(|&seconds| seconds > 0)
        .ok_or_else(|| format!("ERR {word} should be greater than 0"))
}

fn known_letters(word: &str, negated: bool, value: &[u8], known: &[u8]) -> Result<(), Vec<u8>> {
    if value.iter().all(|letter| known.contains(letter)) {
        return Ok(());
    }
    let which = if negated {
        format!("NOT-{}", word.to_uppercase())
    } else {
        "provided".to_owned()
    };
    let text = format!("ERR Unknown {word} found in the {which} filter: ");
    Err([text.as_bytes(), c_string(value)].concat())
}

/// Whether CLIENT PAUSE WRITE is about a request.
pub(crate) fn request_may_write(request: &Request<'_>) -> bool {
    let first = || request.spans.get(1).map(|span| span.of(request.bytes));
    may_write(request.command, request.id, first)
}

/// Whether CLIENT PAUSE WRITE is about a command: it changes data, or sends something to replicas
/// though it does not (the mark MAY_REPLICATE, which servers do not show). Of a script we know only
/// what its first line says.
pub(crate) fn may_write<'a>(
    command: &Command,
    id: CommandId,
    first: impl Fn() -> Option<&'a [u8]>,
) -> bool {
    match id {
        id::EVAL => !first().is_some_and(says_no_writes),
        id::EVALSHA | id::FCALL | id::PUBLISH | id::SPUBLISH | id::PFCOUNT => true,
        _ => command.flags.has(commands::Flags::WRITE),
    }
}

/// Whether a script begins with `#!... flags=...,no-writes,...`.
fn says_no_writes(script: &[u8]) -> bool {
    let line = script
        .split(|&byte| byte == b'\n')
        .next()
        .unwrap_or_default();
    line.starts_with(b"#!")
        && line
            .split(|byte| byte.is_ascii_whitespace())
            .filter_map(|word| word.strip_prefix(b"flags="))
            .any(|flags| {
                flags
                    .split(|&byte| byte == b',')
                    .any(|flag| flag == b"no-writes")
            })
}

const SYNTAX: &[u8] = b"ERR syntax error";

#[cfg(test)]
mod tests {
    use super::says_no_writes;

    #[test]
    fn a_script_is_let_through_a_pause_of_writes_only_when_its_first_line_says_that_it_writes_nothing()
     {
        for reads in [
            "#!lua flags=no-writes\nreturn 1",
            "#!lua flags=allow-stale,no-writes\nreturn 1",
            "#!lua name=x flags=no-writes",
        ] {
            assert!(says_no_writes(reads.as_bytes()), "{reads}");
        }
        for unknown in [
            "return 1",
            "#!lua\nreturn 1",
            "#!lua\n#!lua flags=no-writes",
            "#!lua flags=no-writesx\n",
            "-- #!lua flags=no-writes",
            "",
        ] {
            assert!(!says_no_writes(unknown.as_bytes()), "{unknown}");
        }
    }
}

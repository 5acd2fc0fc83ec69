//! Commands that are about the session itself, or about us: answered here, in Redis's words.

use std::borrow::Cow;
use std::fmt::Write as _;

use respool_protocol::commands::{CommandId, id};
use respool_protocol::encode::{self, Version};
use respool_protocol::number;
use respool_protocol::value::Value;

use crate::auth::CONFIGURED;
use crate::counters::Counters;
use crate::duty::Duty;
use crate::engine::Engine;
use crate::greeting::Identity;
use crate::limits::NAME_BYTES_MAX;
use crate::link::{Link, LinkKey, Role, State};
use crate::requests::{Blocked, Kept, Placed, Request, bound_reply};
use crate::session::{Flags, Local, Pins, Session};
use crate::slots::Key;
use crate::subscriptions::Kind;
use crate::words::unknown_subcommand_before_7;

impl Engine {
    /// Answers a request whose command the table gives to us.
    pub(crate) fn answer_here(&mut self, key: Key, request: &Request<'_>) -> Placed {
        match request.id {
            // As to a subscriber, which its session is; or behind something else of its
            // transaction.
            id::PING if self.is_restricted(key) => self.pong_in_subscription(key, request),
            id::PING => self.place_on_link(key, request.bytes, true, None),
            id::QUIT => {
                self.answer_reply(key, b"+OK\r\n");
                self.close_when_answered(key);
                Placed::Done
            }
            id::SELECT => self.select(key, request),
            id::AUTH => self.auth(key, request),
            id::HELLO => self.hello(key, request),
            id::RESET => self.reset(key),
            id::INFO => self.info(key, request),
            id::CLIENT_ID => self.answer_in_order(key, |out, session| {
                encode::integer(out, session.id as i64);
            }),
            id::CLIENT_GETNAME => self.answer_in_order(key, |out, session| match &session.rare {
                Some(rare) if !rare.name.is_empty() => encode::bulk(out, &rare.name),
                _ => encode::null(out, session.version),
            }),
            id::CLIENT_SETNAME => match self.set_name(key, request.arg(2)) {
                Ok(()) => self.answer_in_order(key, |out, _| out.extend_from_slice(OK)),
                Err(text) => self.answer_error(key, text),
            },
            id::CLIENT_SETINFO => self.set_info(key, request),
            id::MULTI | id::EXEC | id::DISCARD | id::WATCH | id::UNWATCH => {
                self.answer_transaction(key, request)
            }
            id::SUBSCRIBE => self.change_subscriptions(key, request, Kind::Channel, true),
            id::UNSUBSCRIBE => self.change_subscriptions(key, request, Kind::Channel, false),
            id::PSUBSCRIBE => self.change_subscriptions(key, request, Kind::Pattern, true),
            id::PUNSUBSCRIBE => self.change_subscriptions(key, request, Kind::Pattern, false),
            id::SSUBSCRIBE => self.change_subscriptions(key, request, Kind::Shard, true),
            id::SUNSUBSCRIBE => self.change_subscriptions(key, request, Kind::Shard, false),
            id::MONITOR => self.monitor(key, request),
            id::CLIENT_GETREDIR | id::CLIENT_TRACKINGINFO => {
                self.place_on_link(key, request.bytes, false, Some(Duty::NameTold))
            }
            id::CLIENT_REPLY => self.client_reply(key, request),
            id::CLIENT_TRACKING => self.client_tracking(key, request),
            id::CLIENT_NO_TOUCH | id::CLIENT_IMPORT_SOURCE => self.switch(key, request),
            // A Cluster's node alone does anything by these; who speaks to us speaks to one server.
            id::READONLY | id::READWRITE if self.takes_without_cluster(key, request.id) => {
                self.answer_reply(key, OK)
            }
            id::READONLY | id::READWRITE | id::ASKING => {
                self.answer_error(key, b"ERR This instance has cluster support disabled")
            }
            // What a client is capable of (to be redirected, say) is never asked of it here.
            id::CLIENT_CAPA => self.answer_reply(key, OK),
            // A subcommand that nobody knows. Newer servers have said so by now.
            id::CLIENT => self.answer_error(key, &unknown_subcommand_before_7(request)),
            id::CLIENT_INFO
            | id::CLIENT_LIST
            | id::CLIENT_KILL
            | id::CLIENT_PAUSE
            | id::CLIENT_UNPAUSE
            | id::CLIENT_UNBLOCK
            | id::CLIENT_NO_EVICT => self.answer_clients(key, request),
            _ => {
                let text = format!("ERR respool: '{}' is not supported", request.command.name);
                self.answer_error(key, text.as_bytes())
            }
        }
    }

    /// Answers with what `write` appends, in the session's version of the protocol.
    pub(crate) fn answer_with(
        &mut self,
        key: Key,
        write: impl FnOnce(&mut Vec<u8>, &Session),
    ) -> Placed {
        let mut reply = std::mem::take(&mut self.scratch);
        reply.clear();
        if let Some(session) = self.sessions.get(key) {
            write(&mut reply, session);
            self.answer_reply(key, &reply);
        }
        self.scratch = reply;
        Placed::Done
    }

    /// The same, behind all bytes that the server has sent to the session before. A client that tracks
    /// takes any answer as a sign that it was told of all changes until then.
    fn answer_in_order(&mut self, key: Key, write: impl FnOnce(&mut Vec<u8>, &Session)) -> Placed {
        let Some(session) = self.sessions.get(key) else {
            return Placed::Done;
        };
        let is_told = session.pins.any(Pins::TRACKING) && session.version == Version::Resp3;
        let is_up = self.links.get(session.link).is_some_and(Link::is_up);
        if !is_told || !is_up || session.flags.any(Flags::STEPS) {
            return self.answer_with(key, write);
        }
        let (mut answer, mut ping) = (Vec::new(), Vec::new());
        write(&mut answer, session);
        encode::request(&mut ping, &["PING"]);
        self.place_on_link(key, &ping, true, Some(Duty::Instead(answer)))
    }

    fn select(&mut self, key: Key, request: &Request<'_>) -> Placed {
        let Some(index) = number::parse(request.arg(1)) else {
            return self.answer_error(key, b"ERR value is not an integer or out of range");
        };
        if i32::try_from(index).is_err() {
            let text = b"ERR value is out of range, value must between -2147483648 and 2147483647";
            return self.answer_error(key, text);
        }
        let Ok(db) = u32::try_from(index) else {
            return self.answer_error(key, NO_DB);
        };
        let Some(session) = self.sessions.get(key) else {
            return Placed::Done;
        };
        let version = session.version;
        if session.pins.bind() {
            let placed = self.place_on_link(key, request.bytes, false, Some(Duty::Select(db)));
            self.hold_until_caught_up(key);
            return placed;
        }
        match self.move_to(key, version, db) {
            Moved::Done => self.answer_reply(key, OK),
            Moved::Wait => Placed::Wait,
            Moved::Failed(reply) | Moved::Away(reply) => {
                let reply = self.refusal_of_database(key, &reply).into_owned();
                self.answer_reply(key, &reply)
            }
        }
    }

    /// The reply to a SELECT as its session is to see it: a plain server speaks of no Cluster.
    pub(crate) fn refusal_of_database<'a>(&self, key: Key, reply: &'a [u8]) -> Cow<'a, [u8]> {
        if !reply.starts_with(OF_NODE) || !self.hides_nodes(key) {
            return reply.into();
        }
        let mut refusal = Vec::new();
        encode::error(&mut refusal, NO_DB);
        refusal.into()
    }

    /// Gives a session another database or version of the protocol: another link, which has to
    /// prove that its server agrees.
    fn move_to(&mut self, key: Key, version: Version, db: u32) -> Moved {
        let Some(session) = self.sessions.get(key) else {
            return Moved::Done;
        };
        if (session.version, session.db) == (version, db) {
            return Moved::Done;
        }
        let pinned = session.pins.bind();
        if let Some(node) = self
            .pools
            .node_among(session.pool.into())
            .filter(|_| !pinned)
        {
            // Who has the fewest databases says whether it is one of all.
            self.turn(key, node);
        }
        if self.hold_until_caught_up(key) {
            return Moved::Wait;
        }
        let Some(session) = self.sessions.get(key) else {
            return Moved::Done;
        };
        let kind = self.shared_kind_of(session);
        if pinned {
            // Its own link follows it.
            let mut request = Vec::new();
            encode::request(&mut request, &["HELLO", &version.number().to_string()]);
            return match self.ask_for_ourselves(key, &request, Duty::Pass) {
                Ok(link) => {
                    if let Some(link) = self.links.get_mut(link) {
                        link.key.version = version;
                    }
                    if let Some(session) = self.sessions.get_mut(key) {
                        session.version = version;
                    }
                    Moved::Done
                }
                Err(Blocked::Wait) => Moved::Wait,
                Err(Blocked::Refused(reply)) => Moved::Failed(reply),
            };
        }
        let kind = LinkKey {
            version,
            db,
            ..kind
        };
        let link = match self.shared_link_for(key, kind) {
            Ok(link) => link,
            Err(Blocked::Wait) => return Moved::Wait,
            Err(Blocked::Refused(reply)) => return Moved::Failed(reply),
        };
        let Some(state) = self.links.get(link) else {
            return Moved::Wait;
        };
        match &state.state {
            State::Up => {
                self.ride(key, link);
                if let Some(session) = self.sessions.get_mut(key) {
                    session.version = version;
                    session.db = db;
                }
                return Moved::Done;
            }
            State::Resting { .. } => {
                // What the server says to a SELECT or HELLO of ours is what it would say to the
                // client's.
                let theirs = state.refusal.as_deref().filter(|text| {
                    [
                        b"ERR DB index".as_slice(),
                        b"ERR SELECT",
                        b"NOPROTO",
                        b"NOAUTH",
                    ]
                    .iter()
                    .any(|start| text.starts_with(start))
                });
                return match theirs {
                    Some(text) => {
                        let mut reply = Vec::new();
                        encode::error(&mut reply, text);
                        Moved::Failed(reply)
                    }
                    None => {
                        let reply = self.no_link_reply(link, self.away_error(key));
                        match state.refusal.is_some() {
                            true => Moved::Failed(reply),
                            false => Moved::Away(reply),
                        }
                    }
                };
            }
            State::Down
            | State::Retrying { .. }
            | State::Connecting { .. }
            | State::Greeting { .. } => {}
        }
        match self.wait_until_up(key, link) {
            Ok(()) => Moved::Wait,
            Err(reply) => Moved::Away(reply),
        }
    }

    fn hello(&mut self, key: Key, request: &Request<'_>) -> Placed {
        let Some(session) = self.sessions.get(key) else {
            return Placed::Done;
        };
        let hello = match Hello::read(request) {
            Ok(hello) => hello,
            Err(text) => return self.answer_error(key, &text),
        };
        let (db, version) = (session.db, hello.version.unwrap_or(session.version));
        if let Some((user, password)) = hello.credentials
            && self.settings.users.is_empty()
        {
            let rest = (version, hello.without_credentials());
            return self.log_in(key, (Some(user), password), Some(rest));
        }
        if let Some((user, password)) = hello.credentials
            && let Err(placed) = self.authenticate(key, user, password)
        {
            return placed;
        }
        let unauthenticated = |session: &Session| session.flags.any(Flags::UNAUTHENTICATED);
        if self.sessions.get(key).is_some_and(unauthenticated) {
            let proto = match self.is_redis_before(key, (7, 2)) {
                true => "",
                false => "<proto> ",
            };
            let text = format!(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO {proto}AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time"
            );
            return self.answer_error(key, text.as_bytes());
        }
        match self.move_to(key, version, db) {
            Moved::Done => self.restrict(key),
            Moved::Wait => return Placed::Wait,
            Moved::Failed(reply) => return self.answer_reply(key, &reply),
            Moved::Away(_) => return self.close_greeting(key),
        }
        let Some(identity) = self.identity_of(key).cloned() else {
            return self.wait_for_identity(key);
        };
        if let Some(name) = hello.name {
            let set = self.set_name(key, name);
            debug_assert!(set.is_ok(), "the name was looked at above");
        }
        let mode = match self.shows_a_node(key) {
            true => "cluster",
            false => "standalone",
        };
        self.answer_with(key, |out, session| {
            let version = session.version;
            encode::map(out, version, 7);
            for (field, text) in [("server", &identity.server), ("version", &identity.version)] {
                encode::bulk(out, field.as_bytes());
                encode::bulk(out, text.as_bytes());
            }
            encode::bulk(out, b"proto");
            encode::integer(out, version.number());
            encode::bulk(out, b"id");
            encode::integer(out, session.id as i64);
            for (field, text) in [("mode", mode), ("role", "master")] {
                encode::bulk(out, field.as_bytes());
                encode::bulk(out, text.as_bytes());
            }
            encode::bulk(out, b"modules");
            encode::array(out, identity.modules.len());
            for module in &identity.modules {
                append_module(out, version, module);
            }
        })
    }

    /// A client greets, and no server can be reached. Its connection is closed, as the server's would
    /// be: libraries connect again then, and take an error for the last word.
    pub(crate) fn close_greeting(&mut self, key: Key) -> Placed {
        self.counters.failed_not_sent += 1;
        self.close_when_answered(key);
        Placed::Done
    }

    /// The server that a session speaks to, by its own words. The session's link may be on its way.
    pub(crate) fn identity_of(&self, key: Key) -> Option<&Identity> {
        let session = self.sessions.get(key)?;
        self.identity(session.server)
    }

    /// Whether the server agrees to READONLY or READWRITE though it is no Cluster's: Valkey 8 and
    /// newer to both, where they are for who can be redirected to a primary, Redis up to 6.2 to the
    /// second.
    fn takes_without_cluster(&self, key: Key, id: CommandId) -> bool {
        match self.release_of(key) {
            Some(("valkey", (major, _))) => major >= 8,
            _ => id == id::READWRITE && self.is_before_7(key),
        }
    }

    /// Nobody has spoken to the server yet: its link has to be up first, or to have failed.
    fn wait_for_identity(&mut self, key: Key) -> Placed {
        let Some(session) = self.sessions.get(key) else {
            return Placed::Done;
        };
        let link = session.link;
        let Some(state) = self.links.get_mut(link) else {
            return self.answer_reply(key, &bound_reply("links-max"));
        };
        match state.state {
            State::Resting { .. } if state.refusal.is_none() => self.close_greeting(key),
            State::Resting { .. } | State::Up => {
                let reply = self.no_link_reply(link, self.away_error(key));
                self.answer_reply(key, &reply)
            }
            State::Down
            | State::Retrying { .. }
            | State::Connecting { .. }
            | State::Greeting { .. } => match self.wait_until_up(key, link) {
                Ok(()) => Placed::Wait,
                Err(_) => self.close_greeting(key),
            },
        }
    }

    /// CLIENT REPLY: what goes to the client is between it and us.
    fn client_reply(&mut self, key: Key, request: &Request<'_>) -> Placed {
        let mode = request.arg(2).to_ascii_lowercase();
        let Some(session) = self.sessions.get_mut(key) else {
            return Placed::Done;
        };
        match &mode[..] {
            b"on" => {
                session.flags.remove(Flags::SILENT | Flags::SILENT_ONCE);
                self.answer_reply(key, OK)
            }
            b"off" => {
                session.flags |= Flags::SILENT;
                Placed::Done
            }
            b"skip" => {
                if !session.flags.any(Flags::SILENT) {
                    session.flags |= Flags::SILENT_NEXT;
                }
                Placed::Done
            }
            _ => self.answer_error(key, b"ERR syntax error"),
        }
    }

    pub(crate) fn reset(&mut self, key: Key) -> Placed {
        let Some(session) = self.sessions.get(key) else {
            return Placed::Done;
        };
        let server = session.server;
        if self.hold_until_caught_up(key) {
            return Placed::Wait;
        }
        self.leave_all(key);
        self.set_redirect(key, None);
        let first = self.first_link(server);
        let link = self.shared_link(first).unwrap_or(Key::NOBODY);
        self.end_transaction(key);
        let own = self.sessions.get_mut(key).and_then(|session| {
            let state = Flags::SILENT | Flags::TUNNEL | Flags::UNPINNING;
            session.flags.remove(state);
            session.pins = Pins::default();
            let own = self.links.get(session.link)?.role == Role::Pinned { by: key };
            own.then_some(session.link)
        });
        self.drop_tracker(key);
        self.ride(key, link);
        if let Some(own) = own {
            if let Some(link) = self.links.get_mut(own) {
                link.tainted = true;
            }
            self.give_back(own);
        }
        let pool = self.sessions.get(key).map_or(0, |session| session.pool);
        let protected = self.must_authenticate(pool.into());
        if let Some(session) = self.sessions.get_mut(key) {
            session.version = first.version;
            session.db = first.db;
            session.user = CONFIGURED;
            if let Some(rare) = &mut session.rare {
                rare.name = Vec::new();
                rare.no_evict = false;
                rare.debugs_scripts = false;
                rare.watch_lost = false;
                rare.redirect_found = None;
            }
            if protected {
                session.flags |= Flags::UNAUTHENTICATED;
            }
        }
        self.reset_reading(key);
        self.answer_reply(key, b"+RESET\r\n")
    }

    fn set_name(&mut self, key: Key, name: &[u8]) -> Result<(), &'static [u8]> {
        if !is_plain(name) {
            return Err(BAD_NAME);
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(LONG_NAME);
        }
        if let Some(session) = self.sessions.get_mut(key) {
            session.rare().name = name.to_vec();
        }
        self.weigh(key);
        Ok(())
    }

    fn set_info(&mut self, key: Key, request: &Request<'_>) -> Placed {
        let (attribute, value) = (request.arg(2), request.arg(3));
        let library = if attribute.eq_ignore_ascii_case(b"lib-name") {
            "lib-name"
        } else if attribute.eq_ignore_ascii_case(b"lib-ver") {
            "lib-ver"
        } else {
            return self.answer_error(
                key,
                &[b"ERR Unrecognized option '", attribute, b"'"].concat(),
            );
        };
        if !is_plain(value) {
            // Named as the client wrote it.
            let why = b" cannot contain spaces, newlines or special characters.";
            return self.answer_error(key, &[b"ERR ", attribute, why].concat());
        }
        if value.len() > NAME_BYTES_MAX {
            return self.answer_error(key, LONG_NAME);
        }
        if let Some(session) = self.sessions.get_mut(key) {
            let rare = session.rare();
            *(if library == "lib-name" {
                &mut rare.lib_name
            } else {
                &mut rare.lib_ver
            }) = value.to_vec();
        }
        self.weigh(key);
        self.answer_reply(key, OK)
    }

    /// INFO: the server's, with a section of ours; that one alone if nothing else is asked for.
    fn info(&mut self, key: Key, request: &Request<'_>) -> Placed {
        if asks_for_us_alone(request) {
            if let Some(placed) = self.refused_by_right(key, request) {
                return placed;
            }
            let text = self.our_section(key);
            return self.answer_with(key, |out, session| {
                encode::verbatim(out, session.version, &text)
            });
        }
        let ours = adds_our_section(request);
        let looks_into = ours || self.has_nodes(key);
        let duty = looks_into.then_some(Duty::Info { ours });
        self.place_on_link(key, request.bytes, true, duty)
    }

    /// Our section of INFO for a session: counters of the whole process, and the servers and links
    /// of the session's own pool. A client of one pool learns no name or address of another.
    pub(crate) fn our_section(&self, key: Key) -> String {
        let pool = self.pool_of_session(key);
        let is_shown = |server| self.pool_of(server).whole == pool;
        let tcp_port = match self.sessions.get(key).map(|session| &session.local) {
            _ if self.settings.pools.len() == 1 => self.worker.tcp_port,
            Some(Local::Tcp(at)) => at.port(),
            _ => 0,
        };
        let mut text = String::from("# Respool\r\n");
        let mut field = |name: &str, value: &dyn std::fmt::Display| {
            let _ = write!(text, "{name}:{value}\r\n");
        };
        field("respool_version", &env!("CARGO_PKG_VERSION"));
        field("respool_process_id", &self.worker.process_id);
        field("respool_tcp_port", &tcp_port);
        field("respool_uptime_in_seconds", &(self.now.0 / 1_000_000));
        field("respool_worker", &self.worker.index);
        field("respool_workers", &self.worker.count);
        for (name, value) in self.fleet_now().each() {
            field(&format!("respool_{name}"), &value);
        }
        let (servers, lines) = self.server_lines(is_shown);
        field("respool_servers", &servers);
        for (index, line) in lines.iter().enumerate() {
            field(&format!("respool_server_{index}"), line);
        }
        let links = self.links.iter().map(|(_, link)| link);
        let links = links.filter(|link| is_shown(link.key.server));
        for (index, link) in links.enumerate() {
            let state = match link.state {
                State::Down => "down",
                State::Retrying { .. } => "retrying",
                State::Connecting { .. } => "connecting",
                State::Greeting { .. } => "greeting",
                State::Up => "up",
                State::Resting { .. } => "resting",
            };
            let role = match link.role {
                Role::Shared => "shared",
                Role::Captured { .. } => "captured",
                Role::Streaming { .. } => "streaming",
                Role::Emergency { .. } => "emergency",
                Role::Pinned { .. } => "pinned",
                Role::Hub(_) => "hub",
                Role::Sentinel => "sentinel",
                Role::Redirect { .. } => "redirect",
                Role::Probe => "probe",
                Role::Spare => "spare",
            };
            let version = link.key.version.number();
            let described = format!(
                "server={},pool={},db={},resp={version},role={role},state={state},in_flight={},riders={}",
                self.server(link.key.server).label,
                self.pool_name(link.key.server),
                link.key.db,
                link.in_flight(),
                link.riders,
            );
            field(&format!("respool_link_{index}"), &described);
        }
        text
    }

    /// The whole process: what the others last reported, and this worker as of now.
    fn fleet_now(&self) -> Counters {
        let mut sum = self.fleet;
        sum.add(&self.counters());
        sum
    }
}

const OUR_SECTION: &[u8] = b"respool";

/// Whether INFO is asked for our section, and for nothing else.
pub(crate) fn asks_for_us_alone(request: &Request<'_>) -> bool {
    let mut sections = request.args().skip(1);
    request.spans.len() > 1 && sections.all(|section| section.eq_ignore_ascii_case(OUR_SECTION))
}

/// Whether our section stands behind those that INFO was asked for.
pub(crate) fn adds_our_section(request: &Request<'_>) -> bool {
    let adds = |section: &[u8]| {
        let group = [OUR_SECTION, b"all", b"everything", b"default"];
        group.iter().any(|name| section.eq_ignore_ascii_case(name))
    };
    request.spans.len() == 1 || request.args().skip(1).any(adds)
}

/// What a HELLO asks for.
pub(crate) struct Hello<'a> {
    /// `None`: to be told which it is.
    pub(crate) version: Option<Version>,
    /// Name and password.
    pub(crate) credentials: Option<(&'a [u8], &'a [u8])>,
    name: Option<&'a [u8]>,
}

impl<'a> Hello<'a> {
    /// Or what is wrong with it. The order of the checks is that of Redis's `helloCommand`.
    pub(crate) fn read(request: &Request<'a>) -> Result<Hello<'a>, Vec<u8>> {
        let mut args = request.args().skip(1);
        let version = match args.next().map(number::parse) {
            None => None,
            Some(Some(2)) => Some(Version::Resp2),
            Some(Some(3)) => Some(Version::Resp3),
            Some(Some(_)) => return Err(b"NOPROTO unsupported protocol version".to_vec()),
            Some(None) => {
                return Err(b"ERR Protocol version is not an integer or out of range".to_vec());
            }
        };
        let (mut credentials, mut name) = (None, None);
        while let Some(option) = args.next() {
            let wrong = || [b"ERR Syntax error in HELLO option '", option, b"'"].concat();
            if option.eq_ignore_ascii_case(b"AUTH") {
                credentials = Some(args.next().zip(args.next()).ok_or_else(wrong)?);
            } else if option.eq_ignore_ascii_case(b"SETNAME") {
                let given = args.next().ok_or_else(wrong)?;
                if !is_plain(given) {
                    return Err(BAD_NAME.to_vec());
                }
                if given.len() > NAME_BYTES_MAX {
                    return Err(LONG_NAME.to_vec());
                }
                name = Some(given);
            } else {
                return Err(wrong());
            }
        }
        Ok(Hello {
            version,
            credentials,
            name,
        })
    }

    /// The same without AUTH.
    pub(crate) fn without_credentials(&self) -> Kept {
        let number = self.version.map(|version| version.number().to_string());
        let mut words: Vec<&[u8]> = vec![b"HELLO"];
        words.extend(number.as_ref().map(String::as_bytes));
        if let Some(name) = self.name {
            words.extend([b"SETNAME", name]);
        }
        let mut bytes = Vec::new();
        encode::request(&mut bytes, &words);
        let id = id::HELLO;
        Kept { id, bytes }
    }
}

/// A module of the server, as HELLO tells it in this version of the protocol.
fn append_module(out: &mut Vec<u8>, version: Version, module: &Value) {
    let Value::List(fields) = module else {
        return append_value(out, module);
    };
    encode::map(out, version, fields.len() / 2);
    fields.iter().for_each(|field| append_value(out, field));
}

fn append_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Bulk(text) | Value::Line(text) | Value::Error(text) => encode::bulk(out, text),
        Value::Integer(number) => encode::integer(out, *number),
        Value::Null => encode::bulk(out, b""),
        Value::List(values) => {
            encode::array(out, values.len());
            values.iter().for_each(|value| append_value(out, value));
        }
    }
}

enum Moved {
    Done,
    Wait,
    /// With the error reply.
    Failed(Vec<u8>),
    /// No server can be reached; with the error reply.
    Away(Vec<u8>),
}

pub(crate) const OK: &[u8] = b"+OK\r\n";
/// What a plain server says of a database that it does not have.
const NO_DB: &[u8] = b"ERR DB index is out of range";
/// What a Cluster's node says of any database but the first one.
const OF_NODE: &[u8] = b"-ERR SELECT is not allowed in cluster mode";
const LONG_NAME: &[u8] = b"ERR respool: a name may have 1024 bytes at the most";
const _: () = assert!(NAME_BYTES_MAX == 1024, "the error text says so");
const BAD_NAME: &[u8] = b"ERR Client names cannot contain spaces, newlines or special characters.";

/// What Redis takes for a client's name or library: printable ASCII without space.
pub(crate) fn is_plain(text: &[u8]) -> bool {
    text.iter().all(|byte| (b'!'..=b'~').contains(byte))
}

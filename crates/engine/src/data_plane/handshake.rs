//! The handshake on a new link, and the server's identity in its replies.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, reason = "it reads bytes of a server")
)]

use respool_protocol::value::Value;
use respool_protocol::{encode, reply};

use crate::base::settings::Credentials;
use crate::data_plane::link::{LinkKind, UNASKED};
use crate::data_plane::reply_limit::LimitQuestions;

/// The handshake: one write, and one reply to each of its commands.
#[derive(Debug)]
pub(crate) struct Handshake {
    /// Bytes that are still to be written.
    pub(crate) unsent: Vec<u8>,
    /// The number of replies that are still to come.
    replies: u32,
    /// Whether the server must be a node of a Cluster.
    to_node: bool,
    /// Whether the last reply of this stage shows if the server is a node.
    asks_for_node: bool,
    /// The number of replies that have come.
    came: u32,
    detour: Option<Detour>,
    /// The questions about the server's limits.
    limits: Option<LimitQuestions>,
    /// The bytes of the reply that is coming.
    got: Vec<u8>,
    scanner: reply::ReplyScanner,
}

/// A way to set up the connection if the link's user may not. A client may have selected its
/// database as another user, before it logged in as this one. So the handshake logs in as another
/// user, sets the connection up, and logs in as the link's user again.
#[derive(Debug)]
struct Detour {
    /// SELECT and READONLY, as far as the link needs them.
    setup: Vec<u8>,
    /// The number of replies to `setup`.
    setup_replies: u32,
    /// Logins that are still to be tried, the next one last.
    others: Vec<Credentials>,
    /// The login of the link's user.
    own: Credentials,
    stage: DetourStage,
    /// Whether the server refused a command of this stage.
    has_failed: bool,
    /// The server's error to the link's user.
    error: Vec<u8>,
}

/// The stage of a detour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DetourStage {
    /// The link's user sets the connection up.
    Own,
    /// Another user logs in. An AUTH that fails may get no reply behind other replies (see
    /// [`crate::data_plane::completion::access::Login::is_answered_by`]), so it is sent alone.
    LogsIn,
    /// That user sets the connection up, and the link's user logs in.
    SetsUp,
}

impl Detour {
    /// Handles an error reply at the place `came`. Returns whether the detour takes it.
    fn handle_error(&mut self, came: u32, text: &[u8]) -> bool {
        match self.stage {
            // The reply to HELLO is the first.
            DetourStage::Own if came == 0 || came > self.setup_replies => return false,
            DetourStage::Own if !text.starts_with(b"NOPERM") => return false,
            DetourStage::Own => self.error = text.to_vec(),
            DetourStage::LogsIn | DetourStage::SetsUp => {}
        }
        self.has_failed = true;
        true
    }

    /// Handles the last reply of a stage, which is no error. A reply to AUTH has to be +OK.
    fn handle_last(&mut self, reply: &Value) {
        self.has_failed |= self.stage != DetourStage::Own && *reply != Value::Line(b"OK".to_vec());
    }

    /// Ends a stage: all its replies have come. Writes the commands of the next stage and returns
    /// the number of their replies. 0: there is no further stage.
    fn next_stage(&mut self, unsent: &mut Vec<u8>) -> u32 {
        let is_logged_in = self.stage == DetourStage::LogsIn && !self.has_failed;
        if is_logged_in {
            self.stage = DetourStage::SetsUp;
            unsent.extend_from_slice(&self.setup);
            encode::request(unsent, &auth_words(&self.own));
            return self.setup_replies + 1;
        }
        if !self.has_failed {
            return 0;
        }
        let Some(other) = self.others.pop() else {
            return 0;
        };
        self.stage = DetourStage::LogsIn;
        self.has_failed = false;
        encode::request(unsent, &auth_words(&other));
        1
    }
}

/// The words of an AUTH with this login.
fn auth_words(login: &Credentials) -> [&str; 3] {
    let user = login.user.as_deref().unwrap_or("default");
    ["AUTH", user, &login.password]
}

/// The identity of a server in its reply to HELLO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// `redis` or `valkey`.
    pub(crate) server: String,
    pub(crate) version: String,
    /// `master`, `replica`, `sentinel`.
    pub(crate) role: String,
    /// `standalone`, `cluster`, `sentinel`.
    pub(crate) mode: String,
    /// Its modules, each with the names and values of its fields.
    pub(crate) modules: Vec<Value>,
}

impl Identity {
    /// Reads the reply to HELLO.
    fn read(hello: &Value) -> Identity {
        let text = |name, default: &str| {
            let text = hello.field(name).and_then(Value::text);
            text.map_or_else(
                || default.to_owned(),
                |text| String::from_utf8_lossy(text).into_owned(),
            )
        };
        Identity {
            server: text("server", "redis"),
            version: text("version", ""),
            role: text("role", ""),
            mode: text("mode", ""),
            modules: match hello.field("modules") {
                Some(Value::List(modules)) => modules.clone(),
                _ => Vec::new(),
            },
        }
    }

    /// The description of a server for the log. `is_known_node`: the configuration has it as a
    /// node.
    pub(crate) fn description(&self, is_known_node: bool) -> String {
        let Identity {
            server, version, ..
        } = self;
        // Without this hint, the server's redirects would surprise the clients.
        let hint = if self.mode == "cluster" && !is_known_node {
            " (a node of a Cluster: its MOVED and ASK reach the clients; redis-cluster:// would follow them)"
        } else {
            ""
        };
        format!("{server} {version}{hint}")
    }
}

impl Handshake {
    /// Whether the next reply is about the server's limits.
    pub(crate) fn awaits_limits(&self) -> bool {
        let limits = self.limits.as_ref();
        limits.is_some_and(|limits| limits.is_next(self.came))
    }

    /// Whether all its replies have come.
    pub(crate) fn is_done(&self) -> bool {
        self.replies == 0
    }

    /// Makes the handshake of a link. `credentials`: the login of the link's user. `others`: logins
    /// of other users that may set up the connection if that user may not, the best one last.
    /// `to_node`: the server must be a node of a Cluster.
    pub(crate) fn new(
        kind: LinkKind,
        (credentials, others): (Option<&Credentials>, Vec<Credentials>),
        reads_only: bool,
        to_node: bool,
    ) -> Self {
        let version = kind.version.number().to_string();
        let mut args = vec!["HELLO", &version];
        if let Some(credentials) = credentials {
            args.extend(auth_words(credentials));
        }
        args.extend(["SETNAME", "respool"]);
        let mut unsent = Vec::new();
        encode::request(&mut unsent, &args);
        let (mut setup, mut setup_replies) = (Vec::new(), 0);
        if kind.db != 0 {
            encode::request(&mut setup, &["SELECT", &kind.db.to_string()]);
            setup_replies += 1;
        }
        if reads_only {
            encode::request(&mut setup, &["READONLY"]);
            setup_replies += 1;
        }
        unsent.extend_from_slice(&setup);
        let is_needed = setup_replies > 0 && !others.is_empty();
        let own = credentials.filter(|_| is_needed);
        let detour = own.map(|own| Detour {
            setup,
            setup_replies,
            others,
            own: own.clone(),
            stage: DetourStage::Own,
            has_failed: false,
            error: Vec::new(),
        });
        Handshake {
            unsent,
            replies: 1 + setup_replies,
            to_node,
            asks_for_node: false,
            came: 0,
            detour,
            limits: None,
            got: Vec::new(),
            scanner: reply::ReplyScanner::default(),
        }
    }

    /// Adds questions about the server's limits for a connection.
    pub(crate) fn with_limits(mut self) -> Self {
        self.limits = Some(LimitQuestions::ask(&mut self.unsent, self.replies));
        self.replies += LimitQuestions::REPLIES;
        self
    }

    /// Takes these questions, with their answers.
    pub(crate) fn take_limits(&mut self) -> Option<LimitQuestions> {
        self.limits.take()
    }

    /// The handshake of a probing link, which has no credentials yet.
    pub(crate) fn of_probe() -> Self {
        let mut unsent = Vec::new();
        encode::request(&mut unsent, &["HELLO"]);
        Handshake {
            unsent,
            replies: 1,
            to_node: false,
            asks_for_node: false,
            came: 0,
            detour: None,
            limits: None,
            got: Vec::new(),
            scanner: reply::ReplyScanner::default(),
        }
    }

    /// Reads bytes of the server, and returns the outcome so far.
    pub(crate) fn read(
        &mut self,
        bytes: &[u8],
        identity: &mut Option<Identity>,
        client_id: &mut i64,
    ) -> HandshakeReply {
        let mut at = 0;
        while self.replies > 0 && at < bytes.len() {
            let rest = bytes.get(at..).unwrap_or_default();
            let (len, whole) = match self.scanner.scan(rest) {
                Ok(reply::Scanned::Whole(len)) => (len, true),
                Ok(reply::Scanned::Fragment) => (rest.len(), false),
                Err(_) if self.got.is_empty() && rest.starts_with(TLS_ALERT) => {
                    return HandshakeReply::Broken(SPEAKS_TLS.to_owned());
                }
                Err(_) if self.got.is_empty() && rest.starts_with(b"HTTP/") => {
                    return HandshakeReply::Broken(SPEAKS_HTTP.to_owned());
                }
                Err(error) if self.got.is_empty() => {
                    return HandshakeReply::Broken(format!("{error}{NOT_REDIS}"));
                }
                Err(error) => return HandshakeReply::Broken(error.to_string()),
            };
            self.got.extend_from_slice(rest.get(..len).unwrap_or(rest));
            if self.got.len() > HANDSHAKE_REPLIES_BYTES_MAX {
                return HandshakeReply::Broken(format!(
                    "its handshake replies are longer than {HANDSHAKE_REPLIES_BYTES_MAX} bytes"
                ));
            }
            at += len;
            if !whole {
                break;
            }
            if self.scanner.kind() == b'>' {
                // A push is no reply.
                self.got.clear();
                continue;
            }
            let is_last = self.replies == 1;
            let is_about_node = is_last && std::mem::take(&mut self.asks_for_node);
            let came = self.came;
            let mut limits = self.limits.as_mut();
            let mut is_of_limits = |value: &Value| {
                let limits = limits.as_mut();
                limits.is_some_and(|limits| limits.take(came, value))
            };
            match Value::read(&self.got) {
                Some(value) if is_of_limits(&value) => {}
                Some(Value::Error(text)) if is_about_node => {
                    if text.starts_with(NO_CLUSTER) {
                        return HandshakeReply::Broken(NO_NODE.to_owned());
                    }
                }
                Some(Value::Error(text)) => {
                    let detour = self.detour.as_mut();
                    if !detour.is_some_and(|detour| detour.handle_error(came, &text)) {
                        return HandshakeReply::Refused(text);
                    }
                }
                Some(value) => {
                    if let Some(Value::Integer(id)) = value.field("id") {
                        *client_id = *id;
                    }
                    if value.field("version").and_then(Value::text).is_some() {
                        let own = Identity::read(&value);
                        if self.to_node && own.mode == "standalone" {
                            // It may be a proxy for nodes that calls itself standalone.
                            encode::request(&mut self.unsent, &["CLUSTER", "INFO"]);
                            self.replies += 1;
                            self.asks_for_node = true;
                        }
                        *identity = Some(own);
                    }
                    if let Some(detour) = self.detour.as_mut().filter(|_| is_last) {
                        detour.handle_last(&value);
                    }
                }
                None => {
                    return HandshakeReply::Broken(String::from(
                        "its handshake reply cannot be read",
                    ));
                }
            }
            self.got.clear();
            self.replies -= 1;
            self.came += 1;
            let detour = self.detour.as_mut().filter(|_| self.replies == 0);
            if let Some(detour) = detour {
                self.replies = detour.next_stage(&mut self.unsent);
                if self.replies == 0 && detour.has_failed {
                    return HandshakeReply::Refused(std::mem::take(&mut detour.error));
                }
            }
        }
        match self.replies {
            0 if at < bytes.len() => HandshakeReply::Broken(UNASKED.to_owned()),
            0 => HandshakeReply::Done,
            _ => HandshakeReply::Waiting,
        }
    }
}

/// The outcome of the replies to a handshake.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HandshakeReply {
    Waiting,
    Done,
    /// The server's error reply.
    Refused(Vec<u8>),
    /// The server does not speak the protocol as expected. The text is the cause.
    Broken(String),
}

/// The first bytes of an alert of TLS.
const TLS_ALERT: &[u8] = &[0x15, 3];

/// The reason of a link without TLS to a server that answered with TLS.
const SPEAKS_TLS: &str =
    "the server speaks TLS at this port: write rediss in place of redis in its URL";

/// The reason of a link to a server that answered with HTTP.
const SPEAKS_HTTP: &str =
    "the server speaks HTTP at this port, and not the protocol of Redis: check the port in its URL";

/// The remedy behind an error in the first reply of a server.
const NOT_REDIS: &str =
    ": it may not speak the protocol of Redis at this port, so check the port in its URL";

/// The error of a server that is no node of a Cluster, to a command for nodes alone.
pub(crate) const NO_CLUSTER: &[u8] = b"ERR This instance has cluster support disabled";

/// A plain server in a Cluster's place would execute every request, and the nodes would not have
/// its writes.
pub(crate) const NO_NODE: &str = "it is no node of a Cluster (cluster support is disabled there): use redis:// or redis-sharded:// for it";

/// The bound on the replies to a handshake, which are a few hundred bytes.
const HANDSHAKE_REPLIES_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use respool_protocol::encode::Version;

    use super::*;
    use crate::data_plane::slow_readers::DEFAULT_LANE;
    use crate::routing::pool::ServerId;

    /// A handshake ends with its last reply, however its bytes are cut.
    #[test]
    fn handshake_ends_with_its_last_reply() {
        let kind = LinkKind {
            server: ServerId(0),
            version: Version::Resp2,
            db: 7,
            user: 0,
            lane: DEFAULT_LANE,
        };
        let bytes =
            b"*4\r\n$6\r\nserver\r\n$6\r\nvalkey\r\n$7\r\nversion\r\n$5\r\n9.1.0\r\n+OK\r\n";
        for cut in 0..bytes.len() {
            let mut handshake = Handshake::new(kind, (None, Vec::new()), false, false);
            let mut identity = None;
            assert_eq!(
                handshake.read(&bytes[..cut], &mut identity, &mut 0),
                HandshakeReply::Waiting
            );
            assert_eq!(
                handshake.read(&bytes[cut..], &mut identity, &mut 0),
                HandshakeReply::Done
            );
            let expected = Identity {
                server: "valkey".into(),
                version: "9.1.0".into(),
                role: "".into(),
                mode: "".into(),
                modules: Vec::new(),
            };
            assert_eq!(identity, Some(expected));
        }
        let mut handshake = Handshake::new(kind, (None, Vec::new()), false, false);
        let refused = HandshakeReply::Refused(b"NOAUTH no".to_vec());
        assert_eq!(
            handshake.read(b"-NOAUTH no\r\n", &mut None, &mut 0),
            refused
        );
    }

    /// An alert of TLS and an answer of HTTP are known, and other bytes are a wrong reply.
    #[test]
    fn other_protocol_is_named() {
        let broken_by = |bytes: &[u8]| match Handshake::of_probe().read(bytes, &mut None, &mut 0) {
            HandshakeReply::Broken(reason) => reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(broken_by(&[0x15, 3, 3, 0, 2, 2, 70]), SPEAKS_TLS);
        assert_ne!(broken_by(&[0x15, 4]), SPEAKS_TLS);
        assert_eq!(broken_by(b"HTTP/1.1 400 Bad Request\r\n"), SPEAKS_HTTP);
        let other = "no reply starts with byte 0x53: it may not speak the protocol of Redis";
        assert!(broken_by(b"SSH-2.0-x\r\n").starts_with(other));
    }

    /// A server is taken for a plain one only if it refuses CLUSTER INFO in the words of one. A
    /// proxy before a Cluster may call itself standalone.
    #[test]
    fn plain_server_is_known_by_its_refusal_alone() {
        let kind = LinkKind {
            server: ServerId(0),
            version: Version::Resp2,
            db: 0,
            user: 0,
            lane: DEFAULT_LANE,
        };
        let hello = |mode: &str| {
            let mode = format!("${}\r\n{mode}\r\n", mode.len());
            format!("*4\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$4\r\nmode\r\n{mode}")
        };
        let outcome_of = |to_node, bytes: &str| {
            let mut handshake = Handshake::new(kind, (None, Vec::new()), false, to_node);
            handshake.unsent.clear();
            let outcome = handshake.read(bytes.as_bytes(), &mut None, &mut 0);
            (outcome, !handshake.unsent.is_empty())
        };
        let plain = hello("standalone");
        assert_eq!(outcome_of(false, &plain), (HandshakeReply::Done, false));
        assert_eq!(
            outcome_of(true, &hello("cluster")),
            (HandshakeReply::Done, false)
        );
        assert_eq!(outcome_of(true, &plain), (HandshakeReply::Waiting, true));
        for (hello, expected) in [
            ("$2\r\nok\r\n", HandshakeReply::Done),
            ("-NOPERM no\r\n", HandshakeReply::Done),
            (
                "-ERR This instance has cluster support disabled\r\n",
                HandshakeReply::Broken(NO_NODE.to_owned()),
            ),
        ] {
            assert_eq!(
                outcome_of(true, &(plain.clone() + hello)).0,
                expected,
                "{hello}"
            );
        }
    }

    /// A server that tracks keys or publishes may push before it has answered the handshake.
    #[test]
    fn push_is_no_reply_to_a_handshake() {
        let kind = LinkKind {
            server: ServerId(0),
            version: Version::Resp3,
            db: 0,
            user: 0,
            lane: DEFAULT_LANE,
        };
        let push = b">2\r\n$10\r\ninvalidate\r\n_\r\n";
        let hello = b"%1\r\n$7\r\nversion\r\n$5\r\n9.1.0\r\n";
        let bytes = [&push[..], hello].concat();
        for cut in 0..bytes.len() {
            let mut handshake = Handshake::new(kind, (None, Vec::new()), false, false);
            let mut identity = None;
            let first = handshake.read(&bytes[..cut], &mut identity, &mut 0);
            assert_eq!(first, HandshakeReply::Waiting, "cut at {cut}");
            let second = handshake.read(&bytes[cut..], &mut identity, &mut 0);
            assert_eq!(second, HandshakeReply::Done, "cut at {cut}");
            assert_eq!(identity.map(|own| own.version), Some("9.1.0".into()));
        }
    }

    /// Reads the replies to a handshake one by one, and returns the outcome of the last one.
    fn answered(handshake: &mut Handshake, replies: &[&str]) -> HandshakeReply {
        let (mut identity, mut last) = (None, HandshakeReply::Waiting);
        for reply in replies {
            assert_eq!(last, HandshakeReply::Waiting);
            handshake.unsent.clear();
            last = handshake.read(reply.as_bytes(), &mut identity, &mut 0);
        }
        last
    }

    /// The bytes of these requests.
    fn words(all: &[&str]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for one in all {
            encode::request(&mut bytes, &one.split(' ').collect::<Vec<_>>());
        }
        bytes
    }

    fn login(user: &str) -> Credentials {
        Credentials {
            user: Some(user.to_owned()),
            password: "pw".to_owned(),
            source: None,
        }
    }

    const HELLO: &str = "*2\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n";
    const NOPERM: &str = "-NOPERM no 'select'\r\n";
    const OK: &str = "+OK\r\n";

    /// If the link's user may not SELECT, the first other login that may does.
    #[test]
    fn database_of_a_former_user_is_kept() {
        let kind = LinkKind {
            server: ServerId(0),
            version: Version::Resp2,
            db: 9,
            user: 1,
            lane: DEFAULT_LANE,
        };
        let bob = login("bob");
        let new = |others: &[&str]| {
            let others = others.iter().map(|user| login(user)).collect();
            Handshake::new(kind, (Some(&bob), others), false, false)
        };
        let mut handshake = new(&["last", "second", "first"]);
        // The second login may not SELECT, and the first is not accepted any more.
        for (replies, sent, outcome) in [
            (
                &[HELLO, NOPERM][..],
                &["AUTH first pw"][..],
                HandshakeReply::Waiting,
            ),
            (
                &["-WRONGPASS no\r\n"],
                &["AUTH second pw"],
                HandshakeReply::Waiting,
            ),
            (&[OK], &["SELECT 9", "AUTH bob pw"], HandshakeReply::Waiting),
            (&[NOPERM, OK], &["AUTH last pw"], HandshakeReply::Waiting),
            (&[OK], &["SELECT 9", "AUTH bob pw"], HandshakeReply::Waiting),
            (&[OK, OK], &[], HandshakeReply::Done),
        ] {
            assert_eq!(answered(&mut handshake, replies), outcome);
            assert_eq!(handshake.unsent, words(sent));
        }
        // A user that may SELECT needs no other user.
        assert_eq!(
            answered(&mut new(&["app"]), &[HELLO, OK]),
            HandshakeReply::Done
        );
        // The error is that of the link's user.
        let refused = HandshakeReply::Refused(NOPERM[1..NOPERM.len() - 2].into());
        for (others, replies) in [
            (&["app"][..], &[HELLO, NOPERM, "-WRONGPASS no\r\n"][..]),
            (&["app"], &[HELLO, NOPERM, OK, NOPERM, OK]),
            (&[], &[HELLO, NOPERM]),
        ] {
            assert_eq!(answered(&mut new(others), replies), refused, "{replies:?}");
        }
    }

    /// If the link's user has no right to READONLY, another user sets up a link to a replica.
    #[test]
    fn readonly_is_sent_as_a_user_that_may() {
        let kind = LinkKind {
            server: ServerId(0),
            version: Version::Resp2,
            db: 3,
            user: 1,
            lane: DEFAULT_LANE,
        };
        let bob = login("bob");
        let mut handshake = Handshake::new(kind, (Some(&bob), vec![login("app")]), true, true);
        let node = "*2\r\n$4\r\nmode\r\n$7\r\ncluster\r\n";
        let replies = [node, OK, "-NOPERM no 'readonly'\r\n"];
        assert_eq!(answered(&mut handshake, &replies), HandshakeReply::Waiting);
        assert_eq!(handshake.unsent, words(&["AUTH app pw"]));
        assert_eq!(answered(&mut handshake, &[OK]), HandshakeReply::Waiting);
        assert_eq!(
            handshake.unsent,
            words(&["SELECT 3", "READONLY", "AUTH bob pw"])
        );
        assert_eq!(answered(&mut handshake, &[OK; 3]), HandshakeReply::Done);
    }

    /// If the link's user is refused at the end of a detour, the link does not stay up as the other
    /// user.
    #[test]
    fn link_is_not_up_with_another_users_rights() {
        let kind = LinkKind {
            server: ServerId(0),
            version: Version::Resp2,
            db: 0,
            user: 1,
            lane: DEFAULT_LANE,
        };
        let bob = login("bob");
        // A proxy for the nodes may call itself standalone. Then CLUSTER INFO is sent, too.
        let node = "*4\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n";
        let no_readonly = "-NOPERM no 'readonly'\r\n";
        let refused = || HandshakeReply::Refused(no_readonly[1..no_readonly.len() - 2].into());
        for (info, own_login, outcome) in [
            ("$2\r\nok\r\n", OK, HandshakeReply::Done),
            ("$2\r\nok\r\n", "-WRONGPASS no\r\n", refused()),
            (no_readonly, "-WRONGPASS no\r\n", refused()),
            ("$2\r\nok\r\n", "$2\r\nno\r\n", refused()),
        ] {
            let mut handshake = Handshake::new(kind, (Some(&bob), vec![login("app")]), true, true);
            let replies = [node, no_readonly, info, OK, OK, own_login];
            assert_eq!(answered(&mut handshake, &replies), outcome, "{own_login}");
        }
        // A login of the other user that is refused ends the detour, too.
        let mut handshake = Handshake::new(kind, (Some(&bob), vec![login("app")]), true, true);
        let replies = [node, no_readonly, "$2\r\nok\r\n", "-WRONGPASS no\r\n"];
        assert_eq!(answered(&mut handshake, &replies), refused());
    }
}

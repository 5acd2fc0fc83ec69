//! The first words to a server, and what it says of itself.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, reason = "it reads bytes of a server")
)]

use respool_protocol::encode;
use respool_protocol::reply;
use respool_protocol::value::Value;

use crate::link::{LinkKey, UNASKED};
use crate::reply_room::LimitQuestions;
use crate::settings::Credentials;

/// The handshake: one write, one reply for each of its commands.
#[derive(Debug)]
pub(crate) struct Greeting {
    /// Not yet written.
    pub(crate) unsent: Vec<u8>,
    /// Replies still to come.
    replies: u32,
    /// Whether it is to be a Cluster's node.
    to_node: bool,
    /// The last reply of this stage will say whether it is one.
    asks_for_node: bool,
    /// Replies that have come.
    came: u32,
    detour: Option<Detour>,
    /// What the server is asked about its limits.
    limits: Option<LimitQuestions>,
    /// The bytes of the reply that is coming.
    got: Vec<u8>,
    scanner: reply::Scanner,
}

/// The way to a state of the connection that the link's user may not set up. A client may have
/// selected its database as another user, before it logged in as this one. So the greeting logs in
/// as another user, sets the connection up, and logs in as the link's user again.
#[derive(Debug)]
struct Detour {
    /// SELECT and READONLY, as far as the link needs them.
    setup: Vec<u8>,
    /// Replies to these.
    setup_replies: u32,
    /// Logins that are still to be tried, the next one last.
    others: Vec<Credentials>,
    /// The login of the link's user.
    own: Credentials,
    stage: Stage,
    /// Whether the server refused a command of this stage.
    has_failed: bool,
    /// The server's error to the link's user.
    refusal: Vec<u8>,
}

/// How far a detour is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The link's user sets the connection up.
    Own,
    /// Another user logs in. An AUTH that fails may get no reply behind other replies (see
    /// [`crate::auth::Login::is_answered_by`]), so it is sent alone.
    LogsIn,
    /// That user sets the connection up, and the link's user logs in.
    SetsUp,
}

impl Detour {
    /// An error is the reply at the place `came`. Returns whether the detour takes it.
    fn handle_error(&mut self, came: u32, text: &[u8]) -> bool {
        match self.stage {
            // The reply to HELLO is the first.
            Stage::Own if came == 0 || came > self.setup_replies => return false,
            Stage::Own if !text.starts_with(b"NOPERM") => return false,
            Stage::Own => self.refusal = text.to_vec(),
            Stage::LogsIn | Stage::SetsUp => {}
        }
        self.has_failed = true;
        true
    }

    /// The last reply of a stage is no error. If it is the reply to AUTH, it has to be +OK.
    fn handle_last(&mut self, reply: &Value) {
        self.has_failed |= self.stage != Stage::Own && *reply != Value::Line(b"OK".to_vec());
    }

    /// All replies of a stage have come. Writes the commands of the next stage and returns the
    /// number of their replies. 0: there is no further stage.
    fn next_stage(&mut self, unsent: &mut Vec<u8>) -> u32 {
        let is_logged_in = self.stage == Stage::LogsIn && !self.has_failed;
        if is_logged_in {
            self.stage = Stage::SetsUp;
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
        self.stage = Stage::LogsIn;
        self.has_failed = false;
        encode::request(unsent, &auth_words(&other));
        1
    }
}

/// The words of the AUTH of a login.
fn auth_words(login: &Credentials) -> [&str; 3] {
    let user = login.user.as_deref().unwrap_or("default");
    ["AUTH", user, &login.password]
}

/// What a server says of itself in its reply to HELLO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// `redis` or `valkey`.
    pub(crate) server: String,
    pub(crate) version: String,
    /// `master`, `replica`, `sentinel`.
    pub(crate) role: String,
    /// `standalone`, `cluster`, `sentinel`.
    pub(crate) mode: String,
    /// Its modules: of each, names and values of its fields.
    pub(crate) modules: Vec<Value>,
}

impl Identity {
    /// Of the reply to HELLO.
    fn read(hello: &Value) -> Identity {
        let text = |name, default: &str| {
            let said = hello.field(name).and_then(Value::text);
            said.map_or_else(
                || default.to_owned(),
                |said| String::from_utf8_lossy(said).into_owned(),
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

    /// What the log says of a server; `is_known_node`: we take it for one of a Cluster.
    pub(crate) fn description(&self, is_known_node: bool) -> String {
        let Identity {
            server, version, ..
        } = self;
        // Without a word about it, its redirections would surprise the clients.
        let hint = if self.mode == "cluster" && !is_known_node {
            " (a node of a Cluster: its MOVED and ASK reach the clients; redis-cluster:// would follow them)"
        } else {
            ""
        };
        format!("{server} {version}{hint}")
    }
}

impl Greeting {
    /// Whether an answer about the server's limits is the next reply.
    pub(crate) fn awaits_limits(&self) -> bool {
        let limits = self.limits.as_ref();
        limits.is_some_and(|limits| limits.is_next(self.came))
    }

    /// Whether all its replies have come.
    pub(crate) fn is_done(&self) -> bool {
        self.replies == 0
    }

    /// `credentials`: the login of the link's user. `others`: logins for what that user may not
    /// set up, the best one last. `to_node`: to one of a Cluster.
    pub(crate) fn new(
        key: LinkKey,
        (credentials, others): (Option<&Credentials>, Vec<Credentials>),
        reads_only: bool,
        to_node: bool,
    ) -> Self {
        let version = key.version.number().to_string();
        let mut args = vec!["HELLO", &version];
        if let Some(credentials) = credentials {
            args.extend(auth_words(credentials));
        }
        args.extend(["SETNAME", "respool"]);
        let mut unsent = Vec::new();
        encode::request(&mut unsent, &args);
        let (mut setup, mut setup_replies) = (Vec::new(), 0);
        if key.db != 0 {
            encode::request(&mut setup, &["SELECT", &key.db.to_string()]);
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
            stage: Stage::Own,
            has_failed: false,
            refusal: Vec::new(),
        });
        Greeting {
            unsent,
            replies: 1 + setup_replies,
            to_node,
            asks_for_node: false,
            came: 0,
            detour,
            limits: None,
            got: Vec::new(),
            scanner: reply::Scanner::default(),
        }
    }

    /// The same, with questions about what the server bounds for a connection.
    pub(crate) fn with_limits(mut self) -> Self {
        self.limits = Some(LimitQuestions::ask(&mut self.unsent, self.replies));
        self.replies += LimitQuestions::REPLIES;
        self
    }

    /// Those questions, with their answers.
    pub(crate) fn take_limits(&mut self) -> Option<LimitQuestions> {
        self.limits.take()
    }

    /// Of a probing link: it has no credentials yet.
    pub(crate) fn of_probe() -> Self {
        let mut unsent = Vec::new();
        encode::request(&mut unsent, &["HELLO"]);
        Greeting {
            unsent,
            replies: 1,
            to_node: false,
            asks_for_node: false,
            came: 0,
            detour: None,
            limits: None,
            got: Vec::new(),
            scanner: reply::Scanner::default(),
        }
    }

    /// Takes bytes of the server; says what they come to.
    pub(crate) fn read(
        &mut self,
        bytes: &[u8],
        identity: &mut Option<Identity>,
        client_id: &mut i64,
    ) -> Greeted {
        let mut at = 0;
        while self.replies > 0 && at < bytes.len() {
            let rest = bytes.get(at..).unwrap_or_default();
            let (len, whole) = match self.scanner.scan(rest) {
                Ok(reply::Scanned::Whole(len)) => (len, true),
                Ok(reply::Scanned::Part) => (rest.len(), false),
                Err(error) => return Greeted::Broken(error.to_string()),
            };
            self.got.extend_from_slice(rest.get(..len).unwrap_or(rest));
            if self.got.len() > GREETING_BYTES_MAX {
                return Greeted::Broken(format!(
                    "its greeting is longer than {GREETING_BYTES_MAX} bytes"
                ));
            }
            at += len;
            if !whole {
                break;
            }
            if self.scanner.kind() == b'>' {
                // A push answers nothing.
                self.got.clear();
                continue;
            }
            let is_last = self.replies == 1;
            let tells_of_node = is_last && std::mem::take(&mut self.asks_for_node);
            let came = self.came;
            let mut limits = self.limits.as_mut();
            let mut is_of_limits = |value: &Value| {
                let limits = limits.as_mut();
                limits.is_some_and(|limits| limits.take(came, value))
            };
            match Value::read(&self.got) {
                Some(value) if is_of_limits(&value) => {}
                Some(Value::Error(text)) if tells_of_node => {
                    if text.starts_with(NO_CLUSTER) {
                        return Greeted::Broken(NO_NODE.to_owned());
                    }
                }
                Some(Value::Error(text)) => {
                    let detour = self.detour.as_mut();
                    if !detour.is_some_and(|detour| detour.handle_error(came, &text)) {
                        return Greeted::Refused(text);
                    }
                }
                Some(value) => {
                    if let Some(Value::Integer(id)) = value.field("id") {
                        *client_id = *id;
                    }
                    if value.field("version").and_then(Value::text).is_some() {
                        let own = Identity::read(&value);
                        if self.to_node && own.mode == "standalone" {
                            // It may be a proxy that says so, and speak for nodes.
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
                None => return Greeted::Broken(String::from("its greeting cannot be read")),
            }
            self.got.clear();
            self.replies -= 1;
            self.came += 1;
            let detour = self.detour.as_mut().filter(|_| self.replies == 0);
            if let Some(detour) = detour {
                self.replies = detour.next_stage(&mut self.unsent);
                if self.replies == 0 && detour.has_failed {
                    return Greeted::Refused(std::mem::take(&mut detour.refusal));
                }
            }
        }
        match self.replies {
            0 if at < bytes.len() => Greeted::Broken(UNASKED.to_owned()),
            0 => Greeted::Done,
            _ => Greeted::Waiting,
        }
    }
}

/// What the replies to a greeting have come to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Greeted {
    Waiting,
    Done,
    /// The server's own error.
    Refused(Vec<u8>),
    /// This is no server that we can speak to.
    Broken(String),
}

/// To what only a Cluster's node is asked, in the words of a server that is none.
pub(crate) const NO_CLUSTER: &[u8] = b"ERR This instance has cluster support disabled";

/// Whatever it would be asked it would execute, and the others would know nothing of that.
pub(crate) const NO_NODE: &str = "it is no node of a Cluster (cluster support is disabled there): use redis:// or redis-sharded:// for it";

/// A greeting's replies are a few hundred bytes.
const GREETING_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use respool_protocol::encode::Version;

    use super::*;
    use crate::pool::ServerId;
    use crate::slow_readers::EVERYBODYS;

    #[test]
    fn a_greeting_ends_with_its_last_reply_however_it_is_cut() {
        let key = LinkKey {
            server: ServerId(0),
            version: Version::Resp2,
            db: 7,
            user: 0,
            lane: EVERYBODYS,
        };
        let bytes =
            b"*4\r\n$6\r\nserver\r\n$6\r\nvalkey\r\n$7\r\nversion\r\n$5\r\n9.1.0\r\n+OK\r\n";
        for cut in 0..bytes.len() {
            let mut greeting = Greeting::new(key, (None, Vec::new()), false, false);
            let mut identity = None;
            assert_eq!(
                greeting.read(&bytes[..cut], &mut identity, &mut 0),
                Greeted::Waiting
            );
            assert_eq!(
                greeting.read(&bytes[cut..], &mut identity, &mut 0),
                Greeted::Done
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
        let mut greeting = Greeting::new(key, (None, Vec::new()), false, false);
        let refused = Greeted::Refused(b"NOAUTH no".to_vec());
        assert_eq!(greeting.read(b"-NOAUTH no\r\n", &mut None, &mut 0), refused);
    }

    /// A proxy before a Cluster may call itself standalone.
    #[test]
    fn a_server_that_is_no_node_is_known_by_its_own_words_alone() {
        let key = LinkKey {
            server: ServerId(0),
            version: Version::Resp2,
            db: 0,
            user: 0,
            lane: EVERYBODYS,
        };
        let hello = |mode: &str| {
            let mode = format!("${}\r\n{mode}\r\n", mode.len());
            format!("*4\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$4\r\nmode\r\n{mode}")
        };
        let greeted = |to_node, bytes: &str| {
            let mut greeting = Greeting::new(key, (None, Vec::new()), false, to_node);
            greeting.unsent.clear();
            let greeted = greeting.read(bytes.as_bytes(), &mut None, &mut 0);
            (greeted, !greeting.unsent.is_empty())
        };
        let plain = hello("standalone");
        assert_eq!(greeted(false, &plain), (Greeted::Done, false));
        assert_eq!(greeted(true, &hello("cluster")), (Greeted::Done, false));
        assert_eq!(greeted(true, &plain), (Greeted::Waiting, true));
        for (said, expected) in [
            ("$2\r\nok\r\n", Greeted::Done),
            ("-NOPERM no\r\n", Greeted::Done),
            (
                "-ERR This instance has cluster support disabled\r\n",
                Greeted::Broken(NO_NODE.to_owned()),
            ),
        ] {
            assert_eq!(greeted(true, &(plain.clone() + said)).0, expected, "{said}");
        }
    }

    /// A server that tracks keys or publishes may push before it has answered the greeting.
    #[test]
    fn push_is_no_reply_to_a_greeting() {
        let key = LinkKey {
            server: ServerId(0),
            version: Version::Resp3,
            db: 0,
            user: 0,
            lane: EVERYBODYS,
        };
        let push = b">2\r\n$10\r\ninvalidate\r\n_\r\n";
        let hello = b"%1\r\n$7\r\nversion\r\n$5\r\n9.1.0\r\n";
        let bytes = [&push[..], hello].concat();
        for cut in 0..bytes.len() {
            let mut greeting = Greeting::new(key, (None, Vec::new()), false, false);
            let mut identity = None;
            let first = greeting.read(&bytes[..cut], &mut identity, &mut 0);
            assert_eq!(first, Greeted::Waiting, "cut at {cut}");
            let second = greeting.read(&bytes[cut..], &mut identity, &mut 0);
            assert_eq!(second, Greeted::Done, "cut at {cut}");
            assert_eq!(identity.map(|own| own.version), Some("9.1.0".into()));
        }
    }

    /// Reads the replies to a greeting one by one, and returns the outcome of the last one.
    fn greeted(greeting: &mut Greeting, replies: &[&str]) -> Greeted {
        let (mut identity, mut last) = (None, Greeted::Waiting);
        for reply in replies {
            assert_eq!(last, Greeted::Waiting);
            greeting.unsent.clear();
            last = greeting.read(reply.as_bytes(), &mut identity, &mut 0);
        }
        last
    }

    /// The words of these requests.
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
        let key = LinkKey {
            server: ServerId(0),
            version: Version::Resp2,
            db: 9,
            user: 1,
            lane: EVERYBODYS,
        };
        let bob = login("bob");
        let new = |others: &[&str]| {
            let others = others.iter().map(|user| login(user)).collect();
            Greeting::new(key, (Some(&bob), others), false, false)
        };
        let mut greeting = new(&["last", "second", "first"]);
        // The second login may not SELECT, and the first is not accepted any more.
        for (replies, sent, outcome) in [
            (
                &[HELLO, NOPERM][..],
                &["AUTH first pw"][..],
                Greeted::Waiting,
            ),
            (
                &["-WRONGPASS no\r\n"],
                &["AUTH second pw"],
                Greeted::Waiting,
            ),
            (&[OK], &["SELECT 9", "AUTH bob pw"], Greeted::Waiting),
            (&[NOPERM, OK], &["AUTH last pw"], Greeted::Waiting),
            (&[OK], &["SELECT 9", "AUTH bob pw"], Greeted::Waiting),
            (&[OK, OK], &[], Greeted::Done),
        ] {
            assert_eq!(greeted(&mut greeting, replies), outcome);
            assert_eq!(greeting.unsent, words(sent));
        }
        // A user that may SELECT needs no other one.
        assert_eq!(greeted(&mut new(&["app"]), &[HELLO, OK]), Greeted::Done);
        // The refusal is that of the link's user.
        let refused = Greeted::Refused(NOPERM[1..NOPERM.len() - 2].into());
        for (others, replies) in [
            (&["app"][..], &[HELLO, NOPERM, "-WRONGPASS no\r\n"][..]),
            (&["app"], &[HELLO, NOPERM, OK, NOPERM, OK]),
            (&[], &[HELLO, NOPERM]),
        ] {
            assert_eq!(greeted(&mut new(others), replies), refused, "{replies:?}");
        }
    }

    /// A link to a replica is set up by another user, too, if its own user has no right to READONLY.
    #[test]
    fn readonly_is_sent_as_a_user_that_may() {
        let key = LinkKey {
            server: ServerId(0),
            version: Version::Resp2,
            db: 3,
            user: 1,
            lane: EVERYBODYS,
        };
        let bob = login("bob");
        let mut greeting = Greeting::new(key, (Some(&bob), vec![login("app")]), true, true);
        let node = "*2\r\n$4\r\nmode\r\n$7\r\ncluster\r\n";
        let replies = [node, OK, "-NOPERM no 'readonly'\r\n"];
        assert_eq!(greeted(&mut greeting, &replies), Greeted::Waiting);
        assert_eq!(greeting.unsent, words(&["AUTH app pw"]));
        assert_eq!(greeted(&mut greeting, &[OK]), Greeted::Waiting);
        assert_eq!(
            greeting.unsent,
            words(&["SELECT 3", "READONLY", "AUTH bob pw"])
        );
        assert_eq!(greeted(&mut greeting, &[OK; 3]), Greeted::Done);
    }

    /// If the link's user is refused at the end of a detour, the link is not up as the other user.
    #[test]
    fn link_is_not_up_with_another_users_rights() {
        let key = LinkKey {
            server: ServerId(0),
            version: Version::Resp2,
            db: 0,
            user: 1,
            lane: EVERYBODYS,
        };
        let bob = login("bob");
        // A proxy for the nodes may call itself standalone. Then CLUSTER INFO is asked, too.
        let node = "*4\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n";
        let no_readonly = "-NOPERM no 'readonly'\r\n";
        let refused = || Greeted::Refused(no_readonly[1..no_readonly.len() - 2].into());
        for (info, own_login, outcome) in [
            ("$2\r\nok\r\n", OK, Greeted::Done),
            ("$2\r\nok\r\n", "-WRONGPASS no\r\n", refused()),
            (no_readonly, "-WRONGPASS no\r\n", refused()),
            ("$2\r\nok\r\n", "$2\r\nno\r\n", refused()),
        ] {
            let mut greeting = Greeting::new(key, (Some(&bob), vec![login("app")]), true, true);
            let replies = [node, no_readonly, info, OK, OK, own_login];
            assert_eq!(greeted(&mut greeting, &replies), outcome, "{own_login}");
        }
        // A login of the other user that is refused ends the detour, too.
        let mut greeting = Greeting::new(key, (Some(&bob), vec![login("app")]), true, true);
        let replies = [node, no_readonly, "$2\r\nok\r\n", "-WRONGPASS no\r\n"];
        assert_eq!(greeted(&mut greeting, &replies), refused());
    }
}

//! The golden files of `crates/protocol/tests/golden`: replies of real servers to given bytes, and
//! of respool. The README there describes their format.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use respool_testkit::client::{Reply, RespClient, words};
use respool_testkit::servers::{Proxy, installed};
use respool_testkit::time::wait_until;
use respool_testkit::topologies::{
    ClusterSettings, Sentinels, SentinelsSettings, Shards, TestCluster, cluster_url, sentinel_url,
    sharded_url,
};

use crate::target::{Options, Target, respool};
use crate::topology::cluster::SOON;

/// A kind of server, and which version of it.
type ServerVersion = (&'static str, (u32, u32));

/// The versions of the files. respool frames requests as one of these does, before any server.
const VERSIONS: [ServerVersion; 4] = [
    ("redis", (6, 2)),
    ("redis", (7, 0)),
    ("redis", (8, 2)),
    ("valkey", (9, 1)),
];
const AS_ANY_VERSION: &str = "requests.golden";

#[test]
fn the_two_forms_of_a_request_are_read_as_the_servers_read_them() {
    check(AS_ANY_VERSION);
}

/// A misused command gets the error of its server.
#[test]
fn misused_commands_get_the_servers_errors() {
    check("commands.golden");
}

#[test]
fn a_handshake_is_answered_as_the_servers_answer_it() {
    check("handshake.golden");
}

/// A client that is not logged in gets the errors of its server.
#[test]
fn unauthenticated_clients_get_the_servers_errors() {
    check("auth.golden");
}

#[test]
fn replies_have_the_types_of_the_protocol_that_the_client_chose() {
    check("resp3.golden");
}

/// Runs every case of a file directly and through respool, on every server, and reports all
/// differences.
fn check(name: &str) {
    let file = GoldenFile::read(&folder().join(name));
    let options = Options {
        password: file.password,
        ..Options::default()
    };
    let mut failures = Vec::new();
    let mut run = |stage: &GoldenStage, versions: &[ServerVersion]| {
        for case in &file.cases {
            // The nearest variant is shown: that of this server.
            let mut tried: Vec<Vec<GoldenStep>> = Vec::new();
            let mut first_failure = None;
            let passed = versions.iter().any(|version| {
                let steps = case.steps(*version);
                if tried.contains(&steps) {
                    return false;
                }
                let result = play(stage, file.password, &steps);
                tried.push(steps);
                result
                    .map_err(|failure| first_failure.get_or_insert(failure).clone())
                    .is_ok()
            });
            if stage.is_cluster && is_other_in_a_cluster(&case.name) {
                if passed {
                    let (case, stage) = (&case.name, &stage.name);
                    failures.push(format!("{name}: {case}\n  is no other on {stage}"));
                }
                continue;
            }
            if let (false, Some(failure)) = (passed, first_failure) {
                failures.push(format!(
                    "{name}: {}\n  on {}\n{failure}",
                    case.name, stage.name
                ));
            }
        }
    };
    for binary in installed() {
        let target = Target::direct(&binary, &options);
        let own = version(&target);
        run(&GoldenStage::of(&target), &[own]);
        // The server's own version comes first, so the output shows the failure of that version.
        let any: Vec<ServerVersion> = [own].into_iter().chain(VERSIONS).collect();
        let versions = match name {
            AS_ANY_VERSION => any.as_slice(),
            _ => &[own],
        };
        run(
            &GoldenStage::of(&Target::proxied(&binary, &options)),
            versions,
        );
        before_several(&binary, file.password, |stage| run(stage, versions));
    }
    let count = failures.len();
    assert!(
        failures.is_empty(),
        "{count} cases differ:\n\n{}\n",
        failures.join("\n\n")
    );
}

/// A Cluster has one database, and its nodes look at the slots of the keys before they count the
/// arguments of MSET.
fn is_other_in_a_cluster(case: &str) -> bool {
    matches!(
        case,
        "SELECT" | "RESET and the database" | "MSET without the last value"
    )
}

/// Where a case is played: at this address, on these servers.
struct GoldenStage {
    name: String,
    is_cluster: bool,
    address: SocketAddr,
    servers: Vec<SocketAddr>,
}

impl GoldenStage {
    fn of(target: &Target) -> GoldenStage {
        GoldenStage {
            name: target.name.clone(),
            is_cluster: false,
            address: target.address(),
            servers: vec![target.server.address()],
        }
    }
}

/// The same before pools of several servers: a handshake and a wrong command get the same replies.
fn before_several(binary: &Path, password: Option<&str>, mut run: impl FnMut(&GoldenStage)) {
    let mut play = |url: String, servers: Vec<SocketAddr>| {
        let user = password.map(|password| format!("://:{password}@"));
        let url = url.replacen("://", user.as_deref().unwrap_or("://"), 1);
        let mut args = vec![format!("--backend={url}"), "--threads=1".to_owned()];
        args.extend(password.map(|password| format!("--password={password}")));
        // The files are of servers without Cluster support.
        args.push("--cluster-shows=server".to_owned());
        let proxy = Proxy::start(&respool(), &args).unwrap_or_else(|error| panic!("{error}"));
        // Without a server respool does not know the version, and some texts differ by version.
        wait_until("the servers are reached", SOON, || {
            let mut client = RespClient::connect(proxy.address());
            let auth = password.map(|password| format!("AUTH {password}"));
            auth.iter().for_each(|auth| drop(client.call(auth)));
            client.call("DBSIZE").error().is_none()
        });
        run(&GoldenStage {
            name: format!("respool {url} before {}", binary.display()),
            is_cluster: url.starts_with("redis-cluster://"),
            address: proxy.address(),
            servers,
        });
    };
    let own = password.map(str::to_owned);

    let args: Vec<String> = own
        .iter()
        .flat_map(|own| ["--requirepass".to_owned(), own.clone()])
        .collect();
    let shards = Shards::start(binary, 2, &args).unwrap_or_else(|error| panic!("{error}"));
    play(sharded_url(&shards.addresses()), shards.addresses());

    let settings = SentinelsSettings {
        sentinels: 1,
        quorum: 1,
        watched: 1,
        replicas: 0,
        password: own.clone(),
        ..SentinelsSettings::default()
    };
    let sentinels = Sentinels::start(binary, &settings).unwrap_or_else(|error| panic!("{error}"));
    let watched = &sentinels.all_watched()[0];
    play(
        sentinel_url(&sentinels.addresses(), watched.name()),
        vec![watched.server(0).address()],
    );

    let settings = ClusterSettings {
        replicas: 0,
        password: own,
        ..ClusterSettings::default()
    };
    let cluster = TestCluster::start(binary, settings).unwrap_or_else(|error| panic!("{error}"));
    play(cluster_url(&cluster.addresses()), cluster.addresses());
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../protocol/tests/golden")
}

fn version(target: &Target) -> ServerVersion {
    (
        if target.name.starts_with("valkey") {
            "valkey"
        } else {
            "redis"
        },
        target.version,
    )
}

/// Plays a case on a connection of its own. Returns the expected and the real bytes where they
/// differ.
fn play(stage: &GoldenStage, password: Option<&str>, steps: &[GoldenStep]) -> Result<(), String> {
    for server in &stage.servers {
        let mut cleaner = RespClient::connect(*server);
        if let Some(password) = password {
            cleaner.call(&format!("AUTH {password}"));
        }
        assert_eq!(cleaner.call("FLUSHALL"), Reply::ok());
    }

    let mut feed = Feed {
        client: RespClient::connect(stage.address),
        bytes: Vec::new(),
        closed: false,
    };
    feed.client.set_read_timeout(Duration::from_secs(5));
    let mut is_quiet_at_end = false;
    for step in steps {
        // A server that closes during a write has still answered.
        let _ = feed.client.try_send(&step.sent);
        let mut at = 0;
        for piece in &step.expected {
            if let Err(reason) = piece.take(&mut feed, &mut at) {
                let got = feed.rest();
                return Err(format!(
                    "  sent      {}\n  expected  {}\n  got       {got}   ({reason})",
                    show(&step.sent),
                    step.expected_text.join(" "),
                ));
            }
        }
        feed.bytes.drain(..at);
        is_quiet_at_end = step.expected.is_empty();
    }
    if feed.closed {
        return Ok(());
    }
    if is_quiet_at_end {
        return match feed.bytes.is_empty() && feed.client.is_quiet(Duration::from_millis(40)) {
            true => Ok(()),
            false => Err(format!(
                "  expected  nothing\n  got       < {}",
                feed.rest()
            )),
        };
    }
    // Nothing more may come: the reply to a last request must be the next thing that does.
    feed.client.send(&words("ECHO sentinel"));
    let expected: [&[u8]; 2] = [
        b"$8\r\nsentinel\r\n",
        b"-NOAUTH Authentication required.\r\n",
    ];
    while expected
        .iter()
        .any(|end| end.len() > feed.bytes.len() && end.starts_with(&feed.bytes))
    {
        if feed.byte(feed.bytes.len()).is_none() {
            break;
        }
    }
    match expected.contains(&feed.bytes.as_slice()) {
        true => Ok(()),
        false => Err(format!(
            "  expected nothing more at the end\n  got       < {}",
            feed.rest()
        )),
    }
}

/// Bytes of the current step from the peer.
struct Feed {
    client: RespClient,
    bytes: Vec<u8>,
    closed: bool,
}

impl Feed {
    /// The byte at this place, waited for; `None` when it does not come.
    fn byte(&mut self, at: usize) -> Option<u8> {
        while self.bytes.len() <= at {
            match self.client.some_bytes() {
                Ok(bytes) if !bytes.is_empty() => self.bytes.extend(bytes),
                Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => return None,
                _ => {
                    self.closed = true;
                    return None;
                }
            }
        }
        Some(self.bytes[at])
    }

    /// All bytes so far and the next ones, in the notation of the file.
    fn rest(&mut self) -> String {
        self.client.set_read_timeout(Duration::from_millis(100));
        while self.byte(self.bytes.len()).is_some() {}
        self.client.set_read_timeout(Duration::from_secs(5));
        show(&self.bytes) + if self.closed { "  (closed)" } else { "" }
    }
}

struct GoldenFile {
    password: Option<&'static str>,
    cases: Vec<GoldenCase>,
}

struct GoldenCase {
    name: String,
    lines: Vec<GoldenLine>,
}

enum GoldenLine {
    Sent(Vec<u8>),
    Expected {
        condition: Option<String>,
        text: String,
    },
}

#[derive(Clone, Debug, Default, PartialEq)]
struct GoldenStep {
    sent: Vec<u8>,
    expected: Vec<Piece>,
    expected_text: Vec<String>,
}

/// A part of the expected reply.
#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Bytes(Vec<u8>),
    Int,
    Text,
    Reply,
    Closed,
}

impl GoldenFile {
    fn read(path: &Path) -> GoldenFile {
        let text =
            std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut file = GoldenFile {
            password: None,
            cases: Vec::new(),
        };
        for (number, line) in text.lines().enumerate() {
            let place = || format!("{}:{}", path.display(), number + 1);
            if line.is_empty() || line.starts_with('#') {
            } else if let Some(password) = line.strip_prefix("! password ") {
                file.password = Some(password.to_owned().leak());
            } else if let Some(name) = line.strip_prefix("== ") {
                file.cases.push(GoldenCase {
                    name: name.to_owned(),
                    lines: Vec::new(),
                });
            } else {
                let case = file
                    .cases
                    .last_mut()
                    .unwrap_or_else(|| panic!("{}: no case", place()));
                case.lines.push(
                    GoldenLine::parse(line).unwrap_or_else(|| panic!("{}: {line:?}", place())),
                );
            }
        }
        let senders = |case: &GoldenCase| {
            case.lines
                .iter()
                .any(|line| matches!(line, GoldenLine::Sent(_)))
        };
        assert!(
            !file.cases.is_empty() && file.cases.iter().all(senders),
            "every case sends something"
        );
        file
    }
}

impl GoldenLine {
    fn parse(line: &str) -> Option<GoldenLine> {
        if let Some(text) = line.strip_prefix("> ") {
            return Some(GoldenLine::Sent(unescape(text)));
        }
        let line = line.strip_prefix('<')?;
        let (condition, text) = match line.strip_prefix('[') {
            None => (None, line),
            Some(rest) => {
                let (condition, text) = rest.split_once(']')?;
                (Some(condition.to_owned()), text)
            }
        };
        Some(GoldenLine::Expected {
            condition,
            text: text.strip_prefix(' ')?.to_owned(),
        })
    }
}

impl GoldenCase {
    /// Bytes for a server of this version, with the expected replies.
    fn steps(&self, version: ServerVersion) -> Vec<GoldenStep> {
        let mut steps: Vec<GoldenStep> = Vec::new();
        let mut chosen: Option<&str> = None;
        let mut answered = true;
        for line in &self.lines {
            match line {
                GoldenLine::Sent(bytes) => {
                    if answered {
                        steps.push(GoldenStep::default());
                    }
                    let step = steps.last_mut().expect("pushed at the first line");
                    step.sent.extend_from_slice(bytes);
                    (chosen, answered) = (None, false);
                }
                GoldenLine::Expected { condition, text } => {
                    answered = true;
                    if let Some(condition) = condition {
                        if chosen.is_none() && holds(condition, version) {
                            chosen = Some(condition);
                        }
                        if chosen != Some(condition) {
                            continue;
                        }
                    }
                    let step = steps.last_mut().expect("a case begins with a request");
                    step.expected.extend(pieces(text));
                    step.expected_text.push(text.clone());
                }
            }
        }
        steps
    }
}

/// Whether `redis<7,valkey` means this version.
fn holds(condition: &str, (kind, version): ServerVersion) -> bool {
    condition.split(',').any(|one| {
        let (name, below) = one
            .split_once('<')
            .map_or((one, None), |(name, below)| (name, Some(below)));
        assert!(
            name == "redis" || name == "valkey",
            "no server is called {name:?}"
        );
        let below = below.map(|below| {
            let mut numbers = below
                .split('.')
                .map(|n| n.parse().expect("a version is numbers"));
            (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
        });
        name == kind && below.is_none_or(|below| version < below)
    })
}

impl Piece {
    fn take(&self, feed: &mut Feed, at: &mut usize) -> Result<(), String> {
        match self {
            Piece::Bytes(bytes) => {
                for expected in bytes {
                    match feed.byte(*at) {
                        Some(byte) if byte == *expected => *at += 1,
                        Some(_) => return Err(format!("differs at byte {at}")),
                        None => return Err(format!("ends at byte {at}")),
                    }
                }
            }
            Piece::Int => {
                let start = *at;
                while feed
                    .byte(*at)
                    .is_some_and(|byte| byte.is_ascii_digit() || byte == b'-')
                {
                    *at += 1;
                }
                if *at == start {
                    return Err(format!("no number at byte {at}"));
                }
            }
            Piece::Text => {
                while feed.byte(*at).ok_or("a line ends")? != b'\r' {
                    *at += 1;
                }
            }
            Piece::Reply => {
                let mut left = 1;
                while left > 0 {
                    left -= 1;
                    let start = *at;
                    while feed.byte(*at).ok_or("a reply ends")? != b'\n' {
                        *at += 1;
                    }
                    *at += 1;
                    let line = &feed.bytes[start..*at];
                    let count: usize = String::from_utf8_lossy(&line[1..])
                        .trim_end()
                        .parse()
                        .unwrap_or(0);
                    match line[0] {
                        b'$' => {
                            feed.byte(*at + count + 1).ok_or("a bulk string ends")?;
                            *at += count + 2;
                        }
                        b'*' | b'~' => left += count,
                        b'%' => left += 2 * count,
                        b'+' | b'-' | b':' | b'_' | b',' | b'#' => {}
                        other => return Err(format!("a reply starts with {other}")),
                    }
                }
            }
            Piece::Closed => {
                if feed.byte(*at).is_some() || !feed.closed {
                    return Err("not closed".into());
                }
            }
        }
        Ok(())
    }
}

fn pieces(text: &str) -> Vec<Piece> {
    if text == "(closed)" {
        return vec![Piece::Closed];
    }
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let special = [
            ("{int}", Piece::Int),
            ("{text}", Piece::Text),
            ("{reply}", Piece::Reply),
        ];
        let next = special
            .into_iter()
            .filter_map(|(name, piece)| Some((rest.find(name)?, name.len(), piece)))
            .min_by_key(|(at, ..)| *at);
        let Some((at, len, piece)) = next else {
            pieces.push(Piece::Bytes(unescape(rest)));
            break;
        };
        if at > 0 {
            pieces.push(Piece::Bytes(unescape(&rest[..at])));
        }
        pieces.push(piece);
        rest = &rest[at + len..];
    }
    pieces
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if let Some((count, inner, behind)) = repetition(rest) {
            bytes.extend(unescape(inner).repeat(count));
            rest = behind;
            continue;
        }
        rest = &rest[first.len_utf8()..];
        if first != '\\' {
            bytes.extend(first.to_string().bytes());
            continue;
        }
        let escape = rest
            .chars()
            .next()
            .expect("a backslash stands before something");
        rest = &rest[1..];
        bytes.push(match escape {
            'r' => b'\r',
            'n' => b'\n',
            't' => b'\t',
            '\\' => b'\\',
            'x' => {
                let byte = u8::from_str_radix(&rest[..2], 16).expect("two hexadecimal digits");
                rest = &rest[2..];
                byte
            }
            other => panic!("no escape: \\{other}"),
        });
    }
    bytes
}

/// `{300 times ab}` and the text behind it.
fn repetition(text: &str) -> Option<(usize, &str, &str)> {
    let (inside, behind) = text.strip_prefix('{')?.split_once('}')?;
    let (count, inner) = inside.split_once(" times ")?;
    Some((count.parse().ok()?, inner, behind))
}

fn show(bytes: &[u8]) -> String {
    let mut text = String::new();
    let mut at = 0;
    while at < bytes.len() {
        let same = bytes[at..]
            .iter()
            .take_while(|byte| **byte == bytes[at])
            .count();
        let one = match bytes[at] {
            b'{' => "\\x7b".to_owned(),
            b'}' => "\\x7d".to_owned(),
            b'"' | b'\'' => char::from(bytes[at]).to_string(),
            byte => byte.escape_ascii().to_string(),
        };
        if same >= 300 {
            text.push_str(&format!("{{{same} times {one}}}"));
            at += same;
        } else {
            text.push_str(&one);
            at += 1;
        }
    }
    text
}

/// Of several expected replies in a golden file, the first whose version matches counts.
#[test]
fn golden_file_uses_the_first_matching_version() {
    let lines = "<[redis<7] a|<[redis<7.2,valkey] b|<[redis] c|< d";
    let lines = ["> x"]
        .into_iter()
        .chain(lines.split('|'))
        .map(|line| GoldenLine::parse(line).unwrap());
    let case = GoldenCase {
        name: String::new(),
        lines: lines.collect(),
    };
    let text = |version| case.steps(version)[0].expected_text.concat();
    assert_eq!(text(("redis", (6, 2))), "ad");
    assert_eq!(text(("redis", (7, 0))), "bd");
    assert_eq!(text(("redis", (8, 2))), "cd");
    assert_eq!(text(("valkey", (9, 1))), "bd");
}

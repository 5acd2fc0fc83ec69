//! Primaries that Sentinels watch: requests to Sentinels, and their answers.
//!
//! ```text
//! Sentinel:  ask_survey ──> five answers ──read──> Survey: an address, other Sentinels, replicas
//!            ask_events ──> messages ─────read──> Event: use it, or ask again
//! Primary:   role in HELLO, or ask_role ──> proof that the address is right
//! ```
//!
//! First subscribe to a Sentinel until every channel is [confirmed](Message::Subscribed), and then
//! ask it. So no change is lost between the two. Both can share a connection in RESP3, and need two
//! in RESP2.
//!
//! An answer may be old: the Sentinel may be cut off from the others or return after a long
//! absence. So the address is a claim. The server's own [`ReportedRole`], from ROLE or
//! HELLO, proves it. A replaced primary may still report itself as primary for a while. Config
//! epochs show that another server has replaced it.

mod answers;
mod events;
mod requests;
mod role;

use std::error::Error;
use std::fmt;

pub use crate::cluster::{Endpoint, HOST_BYTES_MAX, ID_BYTES_MAX};
pub use answers::{read_address, read_id};
pub use events::{CHANNELS, FailoverEvent, Instance, Kind, Message};
pub use requests::{
    ask_address, ask_events, ask_id, ask_ping, ask_primaries, ask_primary, ask_replicas, ask_role,
    ask_sentinels, ask_survey,
};
pub use role::{Progress, ReportedRole};

/// Most primaries of one Sentinel. Each costs the Sentinel two connections and a PING per second.
pub const PRIMARIES_MAX: usize = 1_024;

/// Most replicas of one primary.
pub const REPLICAS_MAX: usize = 1_024;

/// Most Sentinels that watch one primary, and most configured Sentinels.
pub const SENTINELS_MAX: usize = 128;

/// Longest answer that is read.
pub const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Longest message that is read.
pub const MESSAGE_BYTES_MAX: usize = 8 << 10;

/// Longest name of a primary.
pub const NAME_BYTES_MAX: usize = 255;

/// Number of answers in a survey.
pub const SURVEY_ANSWERS: usize = 5;

/// Longest entry of a list: about 900 bytes, a third of them field names, a name and up to three
/// hosts.
const ENTRY_BYTES: usize = 1_200 + NAME_BYTES_MAX + 3 * HOST_BYTES_MAX;

// An answer has room for a list with the most entries.
const _: () = assert!(PRIMARIES_MAX * ENTRY_BYTES <= ANSWER_BYTES_MAX);
const _: () = assert!(REPLICAS_MAX * ENTRY_BYTES <= ANSWER_BYTES_MAX);
const _: () = assert!(SENTINELS_MAX * ENTRY_BYTES <= ANSWER_BYTES_MAX);
// A message names two instances, each by name, host and port, then both again, and a channel.
const _: () = assert!(MESSAGE_BYTES_MAX >= 4 * (NAME_BYTES_MAX + HOST_BYTES_MAX) + 1_024);

/// A primary, as one Sentinel sees it: SENTINEL MASTERS, SENTINEL MASTER.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Primary {
    /// Its name, the same for all Sentinels. Not empty, without spaces.
    pub name: String,
    /// Address of the watched server; `None` if its host name has no address.
    ///
    /// During a [failover](Primary::is_failing_over) this is still the old server, although the
    /// config epoch may already belong to the new one. [`read_address`] gives the address for
    /// clients.
    pub endpoint: Option<Endpoint>,
    /// Its health.
    pub health: InstanceHealth,
    /// Whether this Sentinel leads a failover of it at this moment.
    pub is_failing_over: bool,
    /// Config epoch. If two Sentinels name different servers, the higher epoch is of the later
    /// failover.
    pub config_epoch: u64,
    /// Number of Sentinels that must agree that it is down.
    pub quorum: u64,
    /// Number of replicas that the Sentinel knows.
    pub replicas: u64,
    /// Number of other Sentinels that the Sentinel knows.
    pub other_sentinels: u64,
}

/// A replica, as one Sentinel sees it: SENTINEL REPLICAS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Its address; `None` if its host name has no address.
    pub endpoint: Option<Endpoint>,
    /// Its health.
    pub health: InstanceHealth,
    /// Whether it reports itself as a replica.
    pub says_replica: bool,
    /// Its primary, as it reports itself; `None` if the Sentinel has not asked it yet.
    pub of: Option<Endpoint>,
    /// Whether its link to the primary is up.
    pub is_linked: bool,
    /// Priority for promotion: the lowest is promoted first, 0 is never promoted.
    pub priority: u64,
    /// Replication offset: bytes of the stream that it has applied.
    pub offset_bytes: u64,
}

impl Replica {
    /// Whether it can serve reads: it is online and receives the writes of a primary.
    pub fn is_usable(&self) -> bool {
        self.health == InstanceHealth::Online
            && self.says_replica
            && self.is_linked
            && self.endpoint.is_some()
    }
}

/// Another Sentinel, as one Sentinel sees it: SENTINEL SENTINELS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentinelPeer {
    /// 40 hexadecimal digits, fixed while it keeps its configuration file; `None` until it is
    /// known.
    pub id: Option<String>,
    /// Its address; `None` if its host name has no address, or another Sentinel took its address.
    pub endpoint: Option<Endpoint>,
    /// Its health.
    pub health: InstanceHealth,
}

/// The health of a server, as a Sentinel sees it: the worst of its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InstanceHealth {
    /// The server is reachable.
    Online,
    /// The Sentinel has no connection to the server, perhaps because it has only just learned of
    /// it.
    Disconnected,
    /// The server has been silent for too long: `s_down`.
    Suspected,
    /// A quorum of Sentinels agrees that the primary is down: `o_down`. Only for primaries.
    Failed,
}

/// The answers of one Sentinel about one primary, to the requests of [`ask_survey`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// Id of the Sentinel; `None` if it refuses the request.
    pub id: Option<String>,
    /// The primary, as this Sentinel sees it.
    pub primary: Primary,
    /// The address that this Sentinel gives to clients.
    pub address: Endpoint,
    /// The other Sentinels that this one knows. If the list cannot be read, the address still
    /// counts.
    pub peers: Result<Vec<SentinelPeer>, AnswerError>,
    /// The replicas that this Sentinel knows. If the list cannot be read, the address still counts.
    pub replicas: Result<Vec<Replica>, AnswerError>,
}

impl Survey {
    /// Reads the answers to the requests of [`ask_survey`], in their order.
    ///
    /// # Errors
    /// When an answer about the primary itself is malformed; the error names the fault.
    pub fn read(answers: [&[u8]; SURVEY_ANSWERS]) -> Result<Survey, AnswerError> {
        let [primary, address, peers, replicas, id] = answers;
        Ok(Survey {
            primary: Primary::read(primary)?,
            address: read_address(address)?,
            peers: SentinelPeer::read_all(peers),
            replicas: Replica::read_all(replicas),
            id: read_id(id).ok(),
        })
    }

    /// Replaces each endpoint by the result of `map`.
    pub fn map_endpoints(&mut self, map: impl Fn(&Endpoint) -> Endpoint) {
        let peers = self.peers.iter_mut().flatten();
        let peers = peers.filter_map(|peer| peer.endpoint.as_mut());
        let replicas = self.replicas.iter_mut().flatten();
        let replicas = replicas.flat_map(|replica| [&mut replica.endpoint, &mut replica.of]);
        let primary = self.primary.endpoint.iter_mut();
        let all = primary.chain([&mut self.address]).chain(peers);
        for endpoint in all.chain(replicas.flatten()) {
            *endpoint = map(endpoint);
        }
    }
}

/// The reason why an answer or a message cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerError {
    /// The Sentinel watches no primary of this name.
    UnknownName,
    /// The Sentinel watches a primary of this name, but does not know its address at this moment.
    NotKnown,
    /// The Sentinel answered with another error; its beginning.
    Refused(String),
    /// The answer has more than this many bytes.
    TooLong(usize),
    /// The bytes are not one complete reply.
    NotAReply,
    /// The answer has another structure than the expected one, which is named.
    Form(&'static str),
    /// A field has a wrong value: name of the field, beginning of the value.
    Field(&'static str, String),
    /// The field with this name is missing.
    Missing(&'static str),
    /// A list has more than this many entries.
    TooMany(usize),
}

impl fmt::Display for AnswerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AnswerError::UnknownName => f.write_str("the Sentinel knows no primary of this name"),
            AnswerError::NotKnown => f.write_str("the Sentinel does not know where the primary is"),
            AnswerError::Refused(error) => write!(f, "it answered '{error}'"),
            AnswerError::TooLong(max) => write!(f, "it has more than {max} bytes"),
            AnswerError::NotAReply => f.write_str("it is not one complete reply"),
            AnswerError::Form(expected) => write!(f, "it should be {expected}"),
            AnswerError::Field(name, value) => write!(f, "the {name} cannot be '{value}'"),
            AnswerError::Missing(name) => write!(f, "the {name} is missing"),
            AnswerError::TooMany(max) => write!(f, "it has more than {max} entries"),
        }
    }
}

impl Error for AnswerError {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encode;
    use crate::value::Value;

    fn at(host: &str, port: u16) -> Endpoint {
        let host = host.to_owned();
        Endpoint { host, port }
    }

    /// The leading Sentinel of a failover still watches the old server, under the new epoch. A
    /// Sentinel may refuse some requests of a survey.
    #[test]
    fn survey_is_read_during_a_failover_and_in_part() {
        let text = |fields: &[(&str, &str)]| {
            let mut out = Vec::new();
            encode::request(
                &mut out,
                &fields
                    .iter()
                    .flat_map(|(key, value)| [*key, *value])
                    .collect::<Vec<_>>(),
            );
            out
        };
        let primary = |flags| {
            text(&[
                ("name", "m"),
                ("ip", "h"),
                ("port", "1"),
                ("flags", flags),
                ("config-epoch", "7"),
                ("quorum", "2"),
                ("num-slaves", "1"),
                ("num-other-sentinels", "2"),
            ])
        };
        let new = b"*2\r\n+h\r\n+2\r\n";
        let flags = "master,s_down,o_down,failover_in_progress";
        let survey = |primary: &[u8], address: &[u8], id: &[u8]| {
            Survey::read([primary, address, b"*0\r\n", b"*0\r\n", id])
        };
        let leading = survey(&primary(flags), new, b"$1\r\na\r\n").expect("a survey");
        assert!(leading.primary.is_failing_over);
        assert_eq!((leading.address.port, leading.primary.config_epoch), (2, 7));
        assert_eq!(leading.id.as_deref(), Some("a"));
        // A Sentinel may refuse the requests that do not concern the primary.
        let refused = b"-NOPERM x\r\n";
        let alone = Survey::read([&primary("master"), new, refused, refused, refused]);
        let alone = alone.expect("a survey");
        assert_eq!((alone.id, alone.address.port), (None, 2));
        assert!(alone.peers.is_err() && alone.replicas.is_err());
        for (found, error) in [
            (
                survey(b"-ERR No such master with that name\r\n", new, b"+a\r\n"),
                AnswerError::UnknownName,
            ),
            (
                survey(&primary("master"), b"*-1\r\n", b"+a\r\n"),
                AnswerError::UnknownName,
            ),
            (
                survey(&primary("master"), b"-IDONTKNOW I have not\r\n", b"+a\r\n"),
                AnswerError::NotKnown,
            ),
            (
                survey(&primary("master"), b"*2\r\n+\r\n+1\r\n", b"+a\r\n"),
                AnswerError::NotKnown,
            ),
            (
                survey(&primary("master"), refused, b"+a\r\n"),
                AnswerError::Refused("NOPERM x".to_owned()),
            ),
            (survey(b"", new, b"+a\r\n"), AnswerError::NotAReply),
        ] {
            assert_eq!(found, Err(error));
        }
    }

    /// A survey has a request for each answer that it reads. The epoch is asked before the address.
    #[test]
    fn survey_requests_match_its_answers() {
        let mut out = Vec::new();
        ask_survey(&mut out, "m");
        let mut requests = Vec::new();
        let mut scanner = crate::reply::ReplyScanner::default();
        let mut rest = &out[..];
        while let Ok(crate::reply::Scanned::Whole(end)) = scanner.scan(rest)
            && !rest.is_empty()
        {
            let Some(Value::List(words)) = Value::read(&rest[..end]) else {
                panic!("a request is a list");
            };
            let words = words
                .iter()
                .map(|word| String::from_utf8_lossy(word.text().unwrap_or_default()));
            requests.push(words.collect::<Vec<_>>().join(" "));
            rest = &rest[end..];
        }
        assert_eq!(requests.len(), SURVEY_ANSWERS);
        assert_eq!(
            requests,
            [
                "SENTINEL MASTER m",
                "SENTINEL GET-MASTER-ADDR-BY-NAME m",
                "SENTINEL SENTINELS m",
                "SENTINEL REPLICAS m",
                "SENTINEL MYID",
            ]
        );
        for (ask, request) in [
            (
                ask_primaries as fn(&mut Vec<u8>),
                &b"*2\r\n$8\r\nSENTINEL\r\n$7\r\nMASTERS\r\n"[..],
            ),
            (ask_ping, b"*1\r\n$4\r\nPING\r\n"),
            (ask_role, b"*1\r\n$4\r\nROLE\r\n"),
        ] {
            let mut out = Vec::new();
            ask(&mut out);
            assert_eq!(out, request);
        }
        let mut events = Vec::new();
        ask_events(&mut events);
        let Some(Value::List(words)) = Value::read(&events) else {
            panic!("a request is a list");
        };
        assert_eq!(words[0].text(), Some(&b"SUBSCRIBE"[..]));
        let channels: Vec<_> = words[1..].iter().filter_map(Value::text).collect();
        assert_eq!(channels, CHANNELS.map(str::as_bytes));
    }

    /// A malformed primary is an error, and its text names the fault.
    #[test]
    fn malformed_primary_error_names_the_fault() {
        let fields = "+name\r\n+m\r\n+ip\r\n+h\r\n+port\r\n+1\r\n+flags\r\n+master\r\n+config-epoch\r\n+1\r\n\
             +quorum\r\n+1\r\n+num-slaves\r\n+0\r\n+num-other-sentinels\r\n+0\r\n";
        let primary = |old: &str, new: &str| {
            let read = format!("%8\r\n{}", fields.replace(old, new));
            Primary::read(read.as_bytes()).map(drop)
        };
        assert_eq!(primary("", ""), Ok(()));
        let long_name = format!("+{}\r\n+ip", "n".repeat(NAME_BYTES_MAX + 1));
        let long_host = format!("+{}\r\n", "h".repeat(HOST_BYTES_MAX + 1));
        for (found, text) in [
            (primary("+quorum", "+other"), "the quorum is missing"),
            (
                primary("+1\r\n+flags", "+x\r\n+flags"),
                "the ip cannot be 'x'",
            ),
            (
                primary("+1\r\n+flags", "+65536\r\n+flags"),
                "the ip cannot be '65536'",
            ),
            (primary("+h\r\n", "+h h\r\n"), "the ip cannot be 'h h'"),
            (
                primary("+h\r\n", &long_host),
                &format!("the ip cannot be '{}'", "h".repeat(100)),
            ),
            (
                primary("+m\r\n+ip", "+\r\n+ip"),
                "the name of a primary cannot be ''",
            ),
            (
                primary("+m\r\n+ip", &long_name),
                &format!("the name of a primary cannot be '{}'", "n".repeat(100)),
            ),
            (
                primary("+m\r\n+ip", "+m\x01\r\n+ip"),
                "the name of a primary cannot be 'm?'",
            ),
            (
                primary("+1\r\n+quorum", "+-1\r\n+quorum"),
                "the config-epoch cannot be '-1'",
            ),
            (
                primary("+master\r\n", "_\r\n"),
                "it should be text where text belongs",
            ),
            (
                Primary::read(b"+OK\r\n").map(drop),
                "it should be names of fields with their values",
            ),
        ] {
            assert_eq!(
                found.map_err(|error| error.to_string()),
                Err(text.to_owned())
            );
        }
    }

    /// A malformed list, id or address is an error, and its text names the fault.
    #[test]
    fn malformed_answer_error_names_the_fault() {
        let many = |max: usize| format!("*{}\r\n{}", max + 1, "_\r\n".repeat(max + 1));
        for (found, text) in [
            (
                Primary::read_all(b":1\r\n").map(drop),
                "it should be a list of primaries",
            ),
            (
                Primary::read_all(b"*1\r\n*0\r\n").map(drop),
                "the name is missing",
            ),
            (
                Primary::read_all(many(PRIMARIES_MAX).as_bytes()).map(drop),
                "it has more than 1024 entries",
            ),
            (
                Replica::read_all(many(REPLICAS_MAX).as_bytes()).map(drop),
                "it has more than 1024 entries",
            ),
            (
                SentinelPeer::read_all(many(SENTINELS_MAX).as_bytes()).map(drop),
                "it has more than 128 entries",
            ),
            (
                Replica::read_all(b"_\r\n").map(drop),
                "it should be a list of replicas",
            ),
            (
                SentinelPeer::read_all(b"_\r\n").map(drop),
                "it should be a list of Sentinels",
            ),
            (
                SentinelPeer::read_all(b"*1\r\n*2\r\n+runid\r\n+a b\r\n").map(drop),
                "the id of a Sentinel cannot be 'a b'",
            ),
            (
                read_id(b"+\r\n").map(drop),
                "the id of a Sentinel cannot be ''",
            ),
            (
                read_address(b"*1\r\n+h\r\n").map(drop),
                "it should be a host and a port",
            ),
            (
                read_address(b"+OK\r\n").map(drop),
                "it should be a host and a port",
            ),
            (
                read_address(b"*2\r\n+h\r\n+1\r\n+h\r\n").map(drop),
                "it is not one complete reply",
            ),
            (
                read_address(b"-NOAUTH x\x01y\r\n").map(drop),
                "it answered 'NOAUTH x?y'",
            ),
            (
                read_address(&vec![b' '; ANSWER_BYTES_MAX + 1]).map(drop),
                "it has more than 4194304 bytes",
            ),
        ] {
            assert_eq!(
                found.map_err(|error| error.to_string()),
                Err(text.to_owned())
            );
        }
        for (host, port) in [("", 1), ("?", 1), ("h", 0)] {
            let answer = format!("*2\r\n+{host}\r\n+{port}\r\n");
            let read = read_address(answer.as_bytes());
            assert_eq!(read, Err(AnswerError::NotKnown));
        }
    }

    /// The worst flag decides the health. Other flags, and flags of later versions, do not count.
    #[test]
    fn worst_flag_decides_the_health() {
        for (flags, health) in [
            ("", InstanceHealth::Online),
            ("slave,promoted,reconf_done", InstanceHealth::Online),
            ("sentinel,master_down,no_s_down", InstanceHealth::Online),
            ("slave,disconnected", InstanceHealth::Disconnected),
            ("s_down,slave,disconnected", InstanceHealth::Suspected),
            ("s_down,o_down,master,disconnected", InstanceHealth::Failed),
            ("o_down", InstanceHealth::Failed),
        ] {
            let answer = format!(
                "*1\r\n*8\r\n+runid\r\n+\r\n+ip\r\n+h\r\n+port\r\n+1\r\n+flags\r\n+{flags}\r\n"
            );
            let peer = SentinelPeer {
                id: None,
                endpoint: Some(at("h", 1)),
                health,
            };
            assert_eq!(
                SentinelPeer::read_all(answer.as_bytes()),
                Ok(vec![peer]),
                "{flags}"
            );
        }
    }

    /// A replica is usable only if it is online and linked to a primary.
    #[test]
    fn only_a_linked_replica_is_usable() {
        let good = Replica {
            endpoint: Some(at("h", 1)),
            health: InstanceHealth::Online,
            says_replica: true,
            of: None,
            is_linked: true,
            priority: 0,
            offset_bytes: 0,
        };
        assert!(good.is_usable());
        let spoils: [fn(&mut Replica); 6] = [
            |replica| replica.endpoint = None,
            |replica| replica.health = InstanceHealth::Disconnected,
            |replica| replica.health = InstanceHealth::Suspected,
            |replica| replica.health = InstanceHealth::Failed,
            |replica| replica.says_replica = false,
            |replica| replica.is_linked = false,
        ];
        for spoil in spoils {
            let mut replica = good.clone();
            spoil(&mut replica);
            assert!(!replica.is_usable(), "{replica:?}");
        }
    }

    proptest! {
        /// Reading any bytes gives an answer or an error, and never panics.
        #[test]
        fn any_bytes_are_an_answer_or_an_error(
            pieces in prop::collection::vec(
                prop_oneof![
                    prop::sample::select(vec![
                        "*1\r\n", "*2\r\n", "*3\r\n", "*5\r\n", "%1\r\n", "%4\r\n", "*0\r\n", ":0\r\n", "_\r\n", "*-1\r\n",
                        "+name\r\n+m\r\n", "+ip\r\n+h\r\n", "+port\r\n+1\r\n", "+flags\r\n+s_down\r\n", "+runid\r\n+a\r\n",
                        "+master\r\n", "+slave\r\n", "+sentinel\r\n", "+h\r\n", "+1\r\n",
                    ]).prop_map(|piece| piece.as_bytes().to_vec()),
                    prop::collection::vec(any::<u8>(), 0..6),
                ],
                0..30,
            ),
        ) {
            let bytes = pieces.concat();
            let _ = (Primary::read(&bytes), Primary::read_all(&bytes), Replica::read_all(&bytes));
            let _ = (SentinelPeer::read_all(&bytes), read_address(&bytes), read_id(&bytes), ReportedRole::read(&bytes));
            let _ = Survey::read([&bytes; SURVEY_ANSWERS]);
        }
    }
}

//! Primaries that Sentinels watch: requests to Sentinels, their answers, and which answer to
//! believe.
//!
//! ```text
//! Sentinel:  ask_survey ──> five answers ──read──> Survey ──> its Answer ──┐
//!                                                    │                     ├─choose─> address
//!                                                    │      other Answers ─┘             │
//!                                                    └──> Roster: Sentinel to ask next   │
//!            ask_events ──> messages ─────read──> Event: use it, or ask again            │
//! Primary:   role in HELLO, or ask_role ──> proof that the address is right <────────────┘
//! ```
//!
//! First subscribe to a Sentinel until every channel is [confirmed](Message::Subscribed), and then
//! ask it. So no change is lost between the two. Both can share a connection in RESP3, and need two
//! in RESP2.
//!
//! An answer may be old: the Sentinel may be cut off from the others or return after a long
//! absence. So the chosen address is a claim. The server's own [`ReportedRole`], from ROLE or
//! HELLO, proves it. A replaced primary may still report itself as primary for a while. Config
//! epochs show that another server has replaced it.

mod answers;
mod events;
mod requests;
mod role;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
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
    /// The primary, as it sees it.
    pub primary: Primary,
    /// The address that it gives to clients.
    pub address: Endpoint,
    /// The other Sentinels that it knows. If this list cannot be read, the address still counts.
    pub peers: Result<Vec<SentinelPeer>, AnswerError>,
    /// The replicas that it knows. If this list cannot be read, the address still counts.
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

    /// The part that [`choose`] compares with the answers of other Sentinels.
    pub fn answer(&self) -> PrimaryAnswer {
        let is_old = self.primary.endpoint.as_ref() != Some(&self.address);
        PrimaryAnswer {
            id: self.id.clone(),
            address: self.address.clone(),
            config_epoch: self.primary.config_epoch,
            // During a failover the health is that of the old server, not of the new one.
            health: match self.primary.health {
                _ if is_old && self.primary.is_failing_over => InstanceHealth::Online,
                health => health,
            },
        }
    }
}

/// The address of a primary, as one Sentinel gives it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PrimaryAnswer {
    /// Id of the Sentinel, if known.
    pub id: Option<String>,
    /// The address that it gives to clients.
    pub address: Endpoint,
    /// Epoch of the failover or configuration that made this address the primary.
    pub config_epoch: u64,
    /// Health of the server at the address, as the Sentinel sees it.
    pub health: InstanceHealth,
}

/// Chooses the answer to believe among the last answers of several Sentinels about one primary.
/// `None` if there are no answers. The last answer of a Sentinel that is gone may stay in the list,
/// so that no older answer wins against it.
///
/// 1. Only answers with the highest config epoch count. Every failover raises the epoch, and only
///    one Sentinel wins an epoch. A Sentinel with a lower epoch has not heard of the last failover.
/// 2. Of these answers, the address that most Sentinels give wins. Addresses differ within an epoch
///    if a Sentinel was changed by hand or has another configuration (host names, an address of
///    another network). A Sentinel that is reached in two ways counts once.
/// 3. Of addresses with equally many Sentinels, the one that fewer of them think is down wins.
/// 4. Otherwise the winner does not depend on the order of the answers.
pub fn choose(answers: &[PrimaryAnswer]) -> Option<&PrimaryAnswer> {
    let epoch = answers.iter().map(|answer| answer.config_epoch).max()?;
    let latest = answers.iter().filter(|answer| answer.config_epoch == epoch);
    let mut by_address: BTreeMap<&Endpoint, Votes<'_>> = BTreeMap::new();
    for answer in latest {
        let votes = by_address.entry(&answer.address).or_default();
        match &answer.id {
            Some(id) => drop(votes.with_id.insert(id)),
            None => votes.without_id += 1,
        }
        votes.answers.push(answer);
    }
    let (_, votes) = by_address.iter().max_by_key(|(address, votes)| {
        // A Sentinel has no connection yet to a server that it has only just learned of. So
        // Disconnected does not count as down.
        let is_down = |answer: &&&PrimaryAnswer| answer.health >= InstanceHealth::Suspected;
        let down = votes.answers.iter().filter(is_down).count();
        let sentinels = votes.with_id.len() + votes.without_id;
        (sentinels, Reverse(down), Reverse(*address))
    })?;
    votes
        .answers
        .iter()
        .copied()
        .min_by_key(|answer| (answer.health, &answer.id))
}

/// The answers with the same address.
#[derive(Default)]
struct Votes<'a> {
    /// Ids of the Sentinels that gave them, each once.
    with_id: BTreeSet<&'a str>,
    /// Number of answers without an id.
    without_id: usize,
    answers: Vec<&'a PrimaryAnswer>,
}

/// The Sentinels that may be asked: configured ones, and ones that a Sentinel has named.
///
/// Configured Sentinels stay. Learned Sentinels last until the next answer. An address that no
/// Sentinel names any more may belong to an unrelated Sentinel, which watches another server under
/// the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roster {
    /// The configured Sentinels.
    seeds: Vec<Endpoint>,
    /// All Sentinels, in the order of attempts.
    all: Vec<Endpoint>,
}

impl Roster {
    /// A roster of the configured Sentinels, each once, in their order.
    ///
    /// # Errors
    /// When there are none, or more than [`SENTINELS_MAX`].
    pub fn new(seeds: impl IntoIterator<Item = Endpoint>) -> Result<Roster, RosterError> {
        let mut unique: Vec<Endpoint> = Vec::new();
        for seed in seeds {
            if unique.contains(&seed) {
                continue;
            }
            if unique.len() == SENTINELS_MAX {
                return Err(RosterError::TooMany);
            }
            unique.push(seed);
        }
        if unique.is_empty() {
            return Err(RosterError::Empty);
        }
        Ok(Roster {
            all: unique.clone(),
            seeds: unique,
        })
    }

    /// The configured Sentinels.
    pub fn seeds(&self) -> &[Endpoint] {
        &self.seeds
    }

    /// All Sentinels in the order of attempts, at most twice [`SENTINELS_MAX`]. Configured ones are
    /// first, then learned ones. Last are Sentinels of both kinds that the last answer reports as
    /// down.
    pub fn all(&self) -> &[Endpoint] {
        &self.all
    }

    /// The Sentinel to try after this one, round robin. The first one if `tried` is `None` or no
    /// longer in the roster.
    pub fn after(&self, tried: Option<&Endpoint>) -> &Endpoint {
        let at = tried.and_then(|tried| self.all.iter().position(|one| one == tried));
        let next = at.map_or(0, |at| (at + 1) % self.all.len());
        // A roster has at least one seed, and `all` has every seed.
        &self.all[next]
    }

    /// Handles an answer that names the other Sentinels, for one primary or, concatenated, for
    /// several. Returns whether the roster has changed.
    ///
    /// The Sentinel that answered is also learned, although it does not list itself. At most
    /// [`SENTINELS_MAX`] are learned, the healthiest first.
    pub fn handle_peers<'a>(
        &mut self,
        asked: &Endpoint,
        peers: impl IntoIterator<Item = &'a SentinelPeer>,
    ) -> bool {
        // If a Sentinel is listed twice, its better health counts.
        let mut listed = BTreeMap::from([(asked, InstanceHealth::Online)]);
        for peer in peers {
            let Some(endpoint) = &peer.endpoint else {
                continue;
            };
            let health = listed.entry(endpoint).or_insert(peer.health);
            *health = (*health).min(peer.health);
        }
        let is_down = |endpoint: &Endpoint| {
            let health = listed.get(endpoint);
            health.is_some_and(|&health| health >= InstanceHealth::Suspected)
        };
        let mut learned: Vec<(InstanceHealth, &Endpoint)> = listed
            .iter()
            .filter(|(endpoint, _)| !self.seeds.contains(endpoint))
            .map(|(endpoint, health)| (*health, *endpoint))
            .collect();
        // The Sentinel that answered is first, so it is never cut off.
        learned.sort_by_key(|&(health, endpoint)| (endpoint != asked, health, endpoint));
        learned.truncate(SENTINELS_MAX);
        learned.sort();
        let learned = learned.into_iter().map(|(_, endpoint)| endpoint);
        let mut all: Vec<Endpoint> = self.seeds.iter().chain(learned).cloned().collect();
        // The sort is stable, so the other order stays.
        all.sort_by_key(is_down);
        let differ = |before: &[Endpoint], after: &[Endpoint]| {
            let before: BTreeSet<&Endpoint> = before.iter().collect();
            before != after.iter().collect()
        };
        let has_changed = differ(&self.all, &all);
        self.all = all;
        has_changed
    }
}

/// The reason why a list of configured Sentinels is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RosterError {
    /// The list is empty.
    Empty,
    /// The list has more than [`SENTINELS_MAX`] Sentinels.
    TooMany,
}

impl fmt::Display for RosterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RosterError::Empty => f.write_str("at least one Sentinel is needed"),
            RosterError::TooMany => write!(f, "at most {SENTINELS_MAX} Sentinels are allowed"),
        }
    }
}

impl Error for RosterError {}

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

    /// The answer of a Sentinel with this id; an empty id means none.
    fn answer(id: &str, address: u16, config_epoch: u64) -> PrimaryAnswer {
        PrimaryAnswer {
            id: Some(id.to_owned()).filter(|id| !id.is_empty()),
            address: at("h", address),
            config_epoch,
            health: InstanceHealth::Online,
        }
    }

    /// The port of the chosen address, which is the same in any order of the answers.
    fn chosen_port(answers: &[PrimaryAnswer]) -> u16 {
        let mut reordered = answers.to_vec();
        let first = choose(answers).expect("there are answers").clone();
        for _ in answers {
            reordered.rotate_left(1);
            assert_eq!(choose(&reordered), Some(&first));
        }
        reordered.reverse();
        assert_eq!(choose(&reordered), Some(&first));
        first.address.port
    }

    fn peer(port: u16, health: InstanceHealth) -> SentinelPeer {
        SentinelPeer {
            id: Some(format!("{port:040x}")),
            endpoint: Some(at("h", port)),
            health,
        }
    }

    fn ports(roster: &Roster) -> Vec<u16> {
        roster.all().iter().map(|one| one.port).collect()
    }

    fn roster(ports: &[u16]) -> Roster {
        Roster::new(ports.iter().map(|&port| at("h", port))).expect("some seeds")
    }

    /// Without answers no address is chosen.
    #[test]
    fn no_answers_give_no_choice() {
        assert_eq!(choose(&[]), None);
    }

    /// One answer with the highest config epoch wins against many with lower epochs.
    #[test]
    fn highest_config_epoch_wins_against_many() {
        let old = [answer("a", 1, 4), answer("b", 1, 4), answer("c", 1, 0)];
        let answers = [&old[..], &[answer("d", 2, 5)]].concat();
        assert_eq!(chosen_port(&answers), 2);
        assert_eq!(chosen_port(&old), 1);
    }

    /// Within an epoch the majority wins, even if it reports its server as down.
    #[test]
    fn majority_wins_within_an_epoch() {
        let mut answers = vec![answer("a", 1, 5), answer("b", 2, 5), answer("c", 2, 5)];
        for answer in &mut answers[1..] {
            answer.health = InstanceHealth::Failed;
        }
        assert_eq!(chosen_port(&answers), 2);
        // Answers of another epoch do not vote.
        answers.extend([answer("d", 1, 4), answer("e", 1, 4)]);
        assert_eq!(chosen_port(&answers), 2);
        // Each answer without an id counts as one Sentinel.
        answers.extend([answer("", 1, 5), answer("", 1, 5)]);
        assert_eq!(chosen_port(&answers), 1);
    }

    /// A Sentinel that answers several times counts once.
    #[test]
    fn sentinel_that_answers_twice_counts_once() {
        let mut answers = vec![answer("a", 1, 5), answer("a", 1, 5), answer("a", 1, 5)];
        answers.extend([answer("b", 2, 5), answer("c", 2, 5)]);
        assert_eq!(chosen_port(&answers), 2);
    }

    /// Of two addresses with equally many Sentinels, the server that is up wins.
    #[test]
    fn server_that_is_up_wins_a_tie() {
        let mut answers = vec![answer("a", 1, 5), answer("b", 2, 5)];
        for health in [InstanceHealth::Suspected, InstanceHealth::Failed] {
            answers[0].health = health;
            assert_eq!(chosen_port(&answers), 2);
        }
        // Disconnected is no disadvantage: a new primary has no connections yet.
        answers[0].health = InstanceHealth::Disconnected;
        assert_eq!(chosen_port(&answers), 1);
    }

    /// Of equal answers always the same one is chosen.
    #[test]
    fn choice_among_equal_answers_is_stable() {
        assert_eq!(
            chosen_port(&[answer("b", 2, 5), answer("a", 3, 5), answer("c", 1, 5)]),
            1
        );
        // Of several answers with the chosen address, always the same one is returned.
        let mut answers = vec![answer("b", 1, 5), answer("a", 1, 5), answer("", 1, 5)];
        answers[2].health = InstanceHealth::Suspected;
        assert_eq!(chosen_port(&answers), 1);
        assert_eq!(choose(&answers), Some(&answers[1]));
    }

    /// During a failover a survey names the new primary, although the leading Sentinel still
    /// watches the old server under the new epoch.
    #[test]
    fn survey_during_a_failover_names_the_new_primary() {
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
        assert_eq!(leading.answer(), answer("a", 2, 7));

        // Before a replica is promoted, the health is that of the old primary.
        let old = survey(&primary(flags), b"*2\r\n+h\r\n+1\r\n", b"$1\r\na\r\n");
        let old = old.expect("a survey").answer();
        assert_eq!((old.address.port, old.health), (1, InstanceHealth::Failed));
        // A Sentinel may refuse the requests that do not concern the primary.
        let refused = b"-NOPERM x\r\n";
        let alone = Survey::read([&primary("master"), new, refused, refused, refused]);
        let alone = alone.expect("a survey");
        assert_eq!(alone.answer(), answer("", 2, 7));
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

    /// A roster has each seed once, and a bounded number of seeds.
    #[test]
    fn seeds_are_unique_and_bounded() {
        assert_eq!(ports(&roster(&[5, 3, 5, 4])), [5, 3, 4]);
        assert_eq!(Roster::new([]), Err(RosterError::Empty));
        let many = |count: u16| Roster::new((1..=count).map(|port| at("h", port)));
        let max = SENTINELS_MAX as u16;
        assert_eq!(
            many(max).map(|roster| roster.all().len()),
            Ok(SENTINELS_MAX)
        );
        assert_eq!(many(max + 1), Err(RosterError::TooMany));
    }

    /// A Sentinel that the next answer does not name is forgotten, unless it is configured.
    #[test]
    fn learned_sentinels_last_until_the_next_answer() {
        let mut roster = roster(&[5, 3]);
        let online = |port| peer(port, InstanceHealth::Online);
        assert!(roster.handle_peers(&at("h", 5), &[online(9), online(7)]));
        assert_eq!(ports(&roster), [5, 3, 7, 9]);
        assert!(!roster.handle_peers(&at("h", 5), &[online(7), online(9), online(7)]));
        // The Sentinel that answers does not list itself. A Sentinel without an address is skipped.
        let mut without_address = online(8);
        without_address.endpoint = None;
        assert!(roster.handle_peers(&at("h", 9), &[online(5), without_address]));
        assert_eq!(ports(&roster), [5, 3, 9]);
        assert!(roster.handle_peers(&at("h", 3), &[]));
        assert_eq!((ports(&roster), roster.seeds().len()), (vec![5, 3], 2));
    }

    /// A Sentinel that another one reports as down is tried last, even a configured one.
    #[test]
    fn sentinels_reported_down_are_tried_last() {
        let mut roster = roster(&[5, 3]);
        let peers = [
            peer(5, InstanceHealth::Suspected),
            peer(6, InstanceHealth::Suspected),
            peer(7, InstanceHealth::Disconnected),
            peer(8, InstanceHealth::Online),
            // The list for another primary has a better health.
            peer(9, InstanceHealth::Suspected),
            peer(9, InstanceHealth::Online),
        ];
        assert!(roster.handle_peers(&at("h", 3), &peers));
        assert_eq!(ports(&roster), [3, 8, 9, 7, 5, 6]);
        assert_eq!(roster.after(None).port, 3);
        let mut tried = vec![roster.after(None).clone()];
        for _ in 0..6 {
            tried.push(roster.after(tried.last()).clone());
        }
        let tried: Vec<u16> = tried.iter().map(|one| one.port).collect();
        assert_eq!(tried, [3, 8, 9, 7, 5, 6, 3]);
        assert_eq!(roster.after(Some(&at("elsewhere", 8))).port, 3);
        // A Sentinel that answers is up, whatever was reported before.
        roster.handle_peers(&at("h", 5), &peers[1..2]);
        assert_eq!(ports(&roster), [5, 3, 6]);
    }

    /// The number of learned Sentinels is bounded. The healthiest are learned, and the one that
    /// answered always is.
    #[test]
    fn learned_sentinels_are_bounded() {
        let mut roster = roster(&[1]);
        let max = SENTINELS_MAX as u16;
        let peers = |health| (100..100 + max).map(move |port| peer(port, health));
        // The healthiest Sentinels are learned.
        let mut many: Vec<SentinelPeer> = peers(InstanceHealth::Suspected).collect();
        many.push(peer(999, InstanceHealth::Online));
        roster.handle_peers(&at("h", 1), &many);
        assert_eq!(roster.all().len(), 1 + SENTINELS_MAX);
        assert_eq!(ports(&roster)[..3], [1, 999, 100]);
        // The Sentinel that answered is learned, too.
        let many: Vec<SentinelPeer> = peers(InstanceHealth::Online).collect();
        roster.handle_peers(&at("z", 998), &many);
        assert_eq!(roster.all().len(), 1 + SENTINELS_MAX);
        assert!(roster.all().contains(&at("z", 998)));
    }

    fn any_health() -> impl Strategy<Value = InstanceHealth> {
        prop::sample::select(vec![
            InstanceHealth::Online,
            InstanceHealth::Disconnected,
            InstanceHealth::Suspected,
            InstanceHealth::Failed,
        ])
    }

    fn any_answer() -> impl Strategy<Value = PrimaryAnswer> {
        ("[a-c]?", 1..4_u16, 0..3_u64, any_health()).prop_map(|(id, port, epoch, health)| {
            PrimaryAnswer {
                health,
                ..answer(&id, port, epoch)
            }
        })
    }

    fn any_peer() -> impl Strategy<Value = SentinelPeer> {
        (0..9_u16, any_health()).prop_map(|(port, health)| {
            let mut peer = peer(port, health);
            peer.endpoint = peer.endpoint.filter(|_| port != 0);
            peer
        })
    }

    proptest! {
        /// Most Sentinels of the highest epoch agree with the choice, in any order of the answers.
        #[test]
        fn majority_of_the_latest_epoch_is_chosen(
            (answers, reordered) in prop::collection::vec(any_answer(), 1..9)
                .prop_flat_map(|answers| (Just(answers.clone()), Just(answers).prop_shuffle())),
        ) {
            let chosen = choose(&answers).expect("there are answers");
            prop_assert_eq!(choose(&reordered), Some(chosen));
            let epoch = answers.iter().map(|answer| answer.config_epoch).max();
            prop_assert_eq!(Some(chosen.config_epoch), epoch);
            let votes = |port: u16| {
                let votes: Vec<_> = answers
                    .iter()
                    .filter(|answer| Some(answer.config_epoch) == epoch && answer.address.port == port)
                    .collect();
                let mut ids: Vec<_> = votes.iter().filter_map(|answer| answer.id.clone()).collect();
                let without_id = votes.len() - ids.len();
                ids.sort();
                ids.dedup();
                ids.len() + without_id
            };
            prop_assert_eq!(Some(votes(chosen.address.port)), (1..4).map(votes).max());
        }

        /// A roster has its seeds, the Sentinel that answered last and the Sentinels that it named,
        /// whatever came before.
        #[test]
        fn roster_has_its_seeds_and_the_last_answer(
            seeds in prop::collection::vec(1..9_u16, 1..5),
            asked in 1..9_u16,
            (peers, reordered) in prop::collection::vec(any_peer(), 0..9)
                .prop_flat_map(|peers| (Just(peers.clone()), Just(peers).prop_shuffle())),
            before in prop::collection::vec(any_peer(), 0..9),
        ) {
            let mut one = roster(&seeds);
            let mut other = one.clone();
            one.handle_peers(&at("h", asked), &peers);
            other.handle_peers(&at("h", 1), &before);
            other.handle_peers(&at("h", asked), &reordered);
            prop_assert_eq!(&one, &other);
            prop_assert!(!one.handle_peers(&at("h", asked), &reordered));

            let listed = peers.iter().filter_map(|peer| Some(peer.endpoint.as_ref()?.port));
            let expected: BTreeSet<u16> = seeds.iter().copied().chain([asked]).chain(listed).collect();
            let mut found = ports(&one);
            found.sort_unstable();
            prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
            // One round tries each Sentinel.
            let mut tried = BTreeSet::new();
            let mut at = one.after(None);
            for _ in one.all() {
                tried.insert(at.clone());
                at = one.after(Some(at));
            }
            prop_assert_eq!(tried.len(), one.all().len());
        }

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

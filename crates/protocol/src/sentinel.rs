//! What Sentinels say of the primaries that they watch: asked, read, and which of them to believe.
//!
//! ```text
//! a Sentinel:   ask_survey ──> five answers ──read──> a Survey ──> its Answer ──┐
//!                                                        │                      ├──choose──> where the primary is
//!                                                        │    other Sentinels' ─┘                    │
//!                                                        └──> Roster: whom to ask next               │
//!               ask_events ──> messages ─────read──> an Event: take it as it is, or ask again        │
//! the primary:  its role in HELLO, or ask_role ──────────> the proof                   <─────────────┘
//! ```
//!
//! Nothing is lost between the two questions if a Sentinel is first subscribed to, until every channel is
//! [confirmed](Message::Subscribed), and then asked: on one connection with RESP3, or on two.
//!
//! What a Sentinel says may be old: it may be cut off from the others, or come back from a long absence. So the address
//! that is chosen is a claim, and the server's own [`Role`] the proof, as is the role in its answer to HELLO. A server that was primary may say so for a while
//! after it has been replaced, and no answer of its own can show that: that is what config epochs are for.

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
pub use events::{CHANNELS, Event, Instance, Kind, Message};
pub use requests::{
    ask_address, ask_events, ask_id, ask_ping, ask_primaries, ask_primary, ask_replicas, ask_role,
    ask_sentinels, ask_survey,
};
pub use role::{Progress, Role};

/// How many primaries a Sentinel may watch. Each costs it two connections and a PING per second.
pub const PRIMARIES_MAX: usize = 1_024;

/// How many replicas a primary may have.
pub const REPLICAS_MAX: usize = 1_024;

/// How many Sentinels may watch one primary, and how many may be configured.
pub const SENTINELS_MAX: usize = 128;

/// The longest answer that is read.
pub const ANSWER_BYTES_MAX: usize = 4 << 20;

/// The longest message that is read.
pub const MESSAGE_BYTES_MAX: usize = 8 << 10;

/// The longest name of a primary.
pub const NAME_BYTES_MAX: usize = 255;

/// How many answers a survey has.
pub const SURVEY_ANSWERS: usize = 5;

/// An entry of a list has about 900 bytes, a third of them names of fields, and up to three hosts.
const ENTRY_BYTES: usize = 1_200 + NAME_BYTES_MAX + 3 * HOST_BYTES_MAX;

// Each list may be as long as it may be.
const _: () = assert!(PRIMARIES_MAX * ENTRY_BYTES <= ANSWER_BYTES_MAX);
const _: () = assert!(REPLICAS_MAX * ENTRY_BYTES <= ANSWER_BYTES_MAX);
const _: () = assert!(SENTINELS_MAX * ENTRY_BYTES <= ANSWER_BYTES_MAX);
// A message names two instances, each by name, host and port, once more by both, and a channel.
const _: () = assert!(MESSAGE_BYTES_MAX >= 4 * (NAME_BYTES_MAX + HOST_BYTES_MAX) + 1_024);

/// A primary, as one Sentinel sees it: SENTINEL MASTERS, SENTINEL MASTER.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Primary {
    /// What all Sentinels call it. Never empty, without spaces.
    pub name: String,
    /// Which server the Sentinel watches under this name; `None` if it has a name that leads nowhere.
    ///
    /// While it [fails over](Primary::is_failing_over) that is still the old one, though the config epoch may already
    /// be that of the new one: where clients should go is what [`read_address`] gives.
    pub endpoint: Option<Endpoint>,
    /// How it is.
    pub health: Health,
    /// Whether this Sentinel is replacing it at this moment.
    pub is_failing_over: bool,
    /// Of two Sentinels that name different servers, the one with the higher epoch has heard of the later failover.
    pub config_epoch: u64,
    /// How many Sentinels must agree that it is gone.
    pub quorum: u64,
    /// How many replicas the Sentinel knows.
    pub replicas: u64,
    /// How many Sentinels besides itself it knows.
    pub other_sentinels: u64,
}

/// A replica, as one Sentinel sees it: SENTINEL REPLICAS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Where it is; `None` if it has a name that leads nowhere.
    pub endpoint: Option<Endpoint>,
    /// How it is.
    pub health: Health,
    /// Whether it says of itself that it is a replica.
    pub says_replica: bool,
    /// The primary that it follows, as it says itself; `None` if it has not been asked yet.
    pub of: Option<Endpoint>,
    /// Whether its link to that primary is up.
    pub is_linked: bool,
    /// The lowest is promoted first; 0 never is.
    pub priority: u64,
    /// How much of the replication stream it has taken in.
    pub offset_bytes: u64,
}

impl Replica {
    /// Whether reads may go there: it is online, and takes in what a primary writes.
    pub fn is_usable(&self) -> bool {
        self.health == Health::Online
            && self.says_replica
            && self.is_linked
            && self.endpoint.is_some()
    }
}

/// Another Sentinel, as one sees it: SENTINEL SENTINELS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// 40 hexadecimal digits, the same for as long as it keeps its file; `None` until it has said it.
    pub id: Option<String>,
    /// Where it is; `None` if its name leads nowhere, or another one took its place.
    pub endpoint: Option<Endpoint>,
    /// How it is.
    pub health: Health,
}

/// How a server is, as a Sentinel sees it: the worst that its flags say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// Nothing is known against it.
    Online,
    /// The Sentinel has no connection to it, maybe because it has only just heard of it.
    Disconnected,
    /// It has been silent too long for this Sentinel: `s_down`.
    Suspected,
    /// As many Sentinels as must agree hold that it is down: `o_down`. Only for primaries.
    Failed,
}

/// All that one Sentinel says about one name: what [`ask_survey`] asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// Who answered; `None` if it may not be asked.
    pub id: Option<String>,
    /// What it sees under this name.
    pub primary: Primary,
    /// Where it sends clients.
    pub address: Endpoint,
    /// The other Sentinels that it knows. That the list cannot be read keeps nobody from the primary.
    pub peers: Result<Vec<Peer>, AnswerError>,
    /// The replicas that it knows; as above.
    pub replicas: Result<Vec<Replica>, AnswerError>,
}

impl Survey {
    /// Reads the answers to the requests of [`ask_survey`], in their order.
    ///
    /// # Errors
    /// Says what is wrong with the answers about the primary itself.
    pub fn read(answers: [&[u8]; SURVEY_ANSWERS]) -> Result<Survey, AnswerError> {
        let [primary, address, peers, replicas, id] = answers;
        Ok(Survey {
            primary: Primary::read(primary)?,
            address: read_address(address)?,
            peers: Peer::read_all(peers),
            replicas: Replica::read_all(replicas),
            id: read_id(id).ok(),
        })
    }

    /// Puts other endpoints in the place of those that the answers have.
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

    /// What of it is weighed against what others say.
    pub fn answer(&self) -> Answer {
        let is_old = self.primary.endpoint.as_ref() != Some(&self.address);
        Answer {
            id: self.id.clone(),
            address: self.address.clone(),
            config_epoch: self.primary.config_epoch,
            // What is said against a server that has been replaced is not said of the new one.
            health: match self.primary.health {
                _ if is_old && self.primary.is_failing_over => Health::Online,
                health => health,
            },
        }
    }
}

/// Where one Sentinel says that a primary is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Answer {
    /// Which Sentinel, if it is known.
    pub id: Option<String>,
    /// Where it sends clients.
    pub address: Endpoint,
    /// The epoch of the failover, or of the configuration, by which the primary is there.
    pub config_epoch: u64,
    /// How it sees the server that is there.
    pub health: Health,
}

/// The answer to believe, of what several Sentinels said of one name, each of them last; `None` if there is none. What a
/// Sentinel said that is gone may stay among them, so that no other leads back behind it.
///
/// 1. Only answers with the highest config epoch count. Every failover has a higher one than the last, and only one
///    Sentinel can win it: who has a lower one has not heard of the last failover.
/// 2. Of these, the address that most Sentinels give. They differ within an epoch where one was told by hand, or was
///    set up differently (names, or an address of another net). A Sentinel that is reached in two ways counts once.
/// 3. If as many give another one: the address at which fewer of them think that the server is down.
/// 4. If that is the same, too: any, but the same in whatever order the answers stand.
pub fn choose(answers: &[Answer]) -> Option<&Answer> {
    let epoch = answers.iter().map(|answer| answer.config_epoch).max()?;
    let latest = answers.iter().filter(|answer| answer.config_epoch == epoch);
    let mut parties: BTreeMap<&Endpoint, Party<'_>> = BTreeMap::new();
    for answer in latest {
        let party = parties.entry(&answer.address).or_default();
        match &answer.id {
            Some(id) => drop(party.known.insert(id)),
            None => party.unknown += 1,
        }
        party.answers.push(answer);
    }
    let (_, party) = parties.iter().max_by_key(|(address, party)| {
        // To a server that it has only just heard of, a Sentinel has no connection yet.
        let is_down = |answer: &&&Answer| answer.health >= Health::Suspected;
        let down = party.answers.iter().filter(is_down).count();
        let sentinels = party.known.len() + party.unknown;
        (sentinels, Reverse(down), Reverse(*address))
    })?;
    party
        .answers
        .iter()
        .copied()
        .min_by_key(|answer| (answer.health, &answer.id))
}

/// Those who give the same address.
#[derive(Default)]
struct Party<'a> {
    known: BTreeSet<&'a str>,
    unknown: usize,
    answers: Vec<&'a Answer>,
}

/// The Sentinels that may be asked: those configured, and those that one of them told of.
///
/// What is configured stays. What was learned lasts until the next answer: an address that no Sentinel speaks of any
/// more may by then be that of a stranger, who watches something else under the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roster {
    seeds: Vec<Endpoint>,
    /// In the order in which they are to be tried.
    all: Vec<Endpoint>,
}

impl Roster {
    /// The Sentinels that are configured, each once, in their order.
    ///
    /// # Errors
    /// When there are none, or more than [`SENTINELS_MAX`].
    pub fn new(seeds: impl IntoIterator<Item = Endpoint>) -> Result<Roster, RosterError> {
        let mut each: Vec<Endpoint> = Vec::new();
        for seed in seeds {
            if each.contains(&seed) {
                continue;
            }
            if each.len() == SENTINELS_MAX {
                return Err(RosterError::TooMany);
            }
            each.push(seed);
        }
        if each.is_empty() {
            return Err(RosterError::Empty);
        }
        Ok(Roster {
            all: each.clone(),
            seeds: each,
        })
    }

    /// Those configured.
    pub fn seeds(&self) -> &[Endpoint] {
        &self.seeds
    }

    /// All, in the order in which they are to be tried: the configured ones, then those learned, and last those of either
    /// kind of which the Sentinel that told of them thinks that they are down. At most twice [`SENTINELS_MAX`].
    pub fn all(&self) -> &[Endpoint] {
        &self.all
    }

    /// Whom to try after this one, or first; round and round. If it is no longer among them, the first again.
    pub fn after(&self, tried: Option<&Endpoint>) -> &Endpoint {
        let at = tried.and_then(|tried| self.all.iter().position(|one| one == tried));
        let next = at.map_or(0, |at| (at + 1) % self.all.len());
        // There is a seed, and all of them are in it.
        &self.all[next]
    }

    /// A Sentinel has answered, and told which others it knows; about several names, one list behind the other.
    /// Returns whether there are others than before.
    ///
    /// The one that answered is one of them, though it does not list itself. More than [`SENTINELS_MAX`] are not
    /// learned: the healthiest are.
    pub fn handle_peers<'a>(
        &mut self,
        asked: &Endpoint,
        peers: impl IntoIterator<Item = &'a Peer>,
    ) -> bool {
        // Of one that is named twice, the better word counts.
        let mut told = BTreeMap::from([(asked, Health::Online)]);
        for peer in peers {
            let Some(endpoint) = &peer.endpoint else {
                continue;
            };
            let health = told.entry(endpoint).or_insert(peer.health);
            *health = (*health).min(peer.health);
        }
        let is_down = |endpoint: &Endpoint| {
            let health = told.get(endpoint);
            health.is_some_and(|&health| health >= Health::Suspected)
        };
        let mut learned: Vec<(Health, &Endpoint)> = told
            .iter()
            .filter(|(endpoint, _)| !self.seeds.contains(endpoint))
            .map(|(endpoint, health)| (*health, *endpoint))
            .collect();
        // Who answered is kept, whatever its place among so many.
        learned.sort_by_key(|&(health, endpoint)| (endpoint != asked, health, endpoint));
        learned.truncate(SENTINELS_MAX);
        learned.sort();
        let learned = learned.into_iter().map(|(_, endpoint)| endpoint);
        let mut all: Vec<Endpoint> = self.seeds.iter().chain(learned).cloned().collect();
        // The order of the rest stays as it is.
        all.sort_by_key(is_down);
        let is_new = |before: &[Endpoint], now: &[Endpoint]| {
            let before: BTreeSet<&Endpoint> = before.iter().collect();
            before != now.iter().collect()
        };
        let has_changed = is_new(&self.all, &all);
        self.all = all;
        has_changed
    }
}

/// Why Sentinels that are configured cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RosterError {
    /// There is none.
    Empty,
    /// There are more than [`SENTINELS_MAX`].
    TooMany,
}

impl fmt::Display for RosterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RosterError::Empty => f.write_str("at least one Sentinel is needed"),
            RosterError::TooMany => write!(f, "there are at most {SENTINELS_MAX} Sentinels"),
        }
    }
}

impl Error for RosterError {}

/// Why an answer or a message cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerError {
    /// The Sentinel watches nothing under this name.
    UnknownName,
    /// The Sentinel watches something under this name, and does not know yet, or not any more, where it is.
    NotKnown,
    /// The Sentinel answered with another error, of which the beginning is here.
    Refused(String),
    /// It is longer than this many bytes.
    TooLong(usize),
    /// The bytes are not one whole reply.
    NotAReply,
    /// It is not built as it should be: what should be there.
    Form(&'static str),
    /// A field, by its name, has this value, of which the beginning is here.
    Field(&'static str, String),
    /// A field, by its name, is missing.
    Missing(&'static str),
    /// A list has more entries than this.
    TooMany(usize),
}

impl fmt::Display for AnswerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AnswerError::UnknownName => f.write_str("the Sentinel knows no primary of this name"),
            AnswerError::NotKnown => f.write_str("the Sentinel does not know where the primary is"),
            AnswerError::Refused(error) => write!(f, "it answered '{error}'"),
            AnswerError::TooLong(max) => write!(f, "it has at most {max} bytes"),
            AnswerError::NotAReply => f.write_str("it is not one whole reply"),
            AnswerError::Form(expected) => write!(f, "it should be {expected}"),
            AnswerError::Field(name, value) => write!(f, "the {name} cannot be '{value}'"),
            AnswerError::Missing(name) => write!(f, "the {name} is missing"),
            AnswerError::TooMany(max) => write!(f, "it has at most {max} entries"),
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

    /// The answer of a Sentinel, by its id or without one.
    fn said(id: &str, address: u16, config_epoch: u64) -> Answer {
        Answer {
            id: Some(id.to_owned()).filter(|id| !id.is_empty()),
            address: at("h", address),
            config_epoch,
            health: Health::Online,
        }
    }

    /// The port that is believed, in whatever order the answers stand.
    fn believed(answers: &[Answer]) -> u16 {
        let mut turned = answers.to_vec();
        let first = choose(answers).expect("there are answers").clone();
        for _ in answers {
            turned.rotate_left(1);
            assert_eq!(choose(&turned), Some(&first));
        }
        turned.reverse();
        assert_eq!(choose(&turned), Some(&first));
        first.address.port
    }

    fn peer(port: u16, health: Health) -> Peer {
        Peer {
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

    #[test]
    fn nobody_is_believed_where_nobody_answered() {
        assert_eq!(choose(&[]), None);
    }

    /// One who has heard of the last failover knows more than any number of those who have not.
    #[test]
    fn the_highest_config_epoch_is_believed_against_many() {
        let old = [said("a", 1, 4), said("b", 1, 4), said("c", 1, 0)];
        let answers = [&old[..], &[said("d", 2, 5)]].concat();
        assert_eq!(believed(&answers), 2);
        assert_eq!(believed(&old), 1);
    }

    /// Even if it is said that the server there is down, or its place in the list is the last.
    #[test]
    fn within_an_epoch_most_sentinels_are_believed() {
        let mut answers = vec![said("a", 1, 5), said("b", 2, 5), said("c", 2, 5)];
        for answer in &mut answers[1..] {
            answer.health = Health::Failed;
        }
        assert_eq!(believed(&answers), 2);
        // Those of another epoch do not vote.
        answers.extend([said("d", 1, 4), said("e", 1, 4)]);
        assert_eq!(believed(&answers), 2);
        // One without an id is one Sentinel.
        answers.extend([said("", 1, 5), said("", 1, 5)]);
        assert_eq!(believed(&answers), 1);
    }

    /// By its name and by its address, a Sentinel is one.
    #[test]
    fn a_sentinel_that_answers_twice_counts_once() {
        let mut answers = vec![said("a", 1, 5), said("a", 1, 5), said("a", 1, 5)];
        answers.extend([said("b", 2, 5), said("c", 2, 5)]);
        assert_eq!(believed(&answers), 2);
    }

    #[test]
    fn where_as_many_say_otherwise_the_server_that_is_up_is_believed() {
        let mut answers = vec![said("a", 1, 5), said("b", 2, 5)];
        for health in [Health::Suspected, Health::Failed] {
            answers[0].health = health;
            assert_eq!(believed(&answers), 2);
        }
        // Nobody is connected yet to a server that has just become primary.
        answers[0].health = Health::Disconnected;
        assert_eq!(believed(&answers), 1);
    }

    #[test]
    fn of_answers_that_weigh_the_same_one_is_believed_always() {
        assert_eq!(
            believed(&[said("b", 2, 5), said("a", 3, 5), said("c", 1, 5)]),
            1
        );
        // And of those who say the same, it is the same that is shown.
        let mut answers = vec![said("b", 1, 5), said("a", 1, 5), said("", 1, 5)];
        answers[2].health = Health::Suspected;
        assert_eq!(believed(&answers), 1);
        assert_eq!(choose(&answers), Some(&answers[1]));
    }

    /// The one that leads a failover watches the old server under the new epoch until it is done.
    #[test]
    fn a_survey_during_a_failover_sends_clients_to_the_new_primary() {
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
        assert_eq!(leading.answer(), said("a", 2, 7));

        // Before a new one is promoted, what is said is said of the old one;
        let old = survey(&primary(flags), b"*2\r\n+h\r\n+1\r\n", b"$1\r\na\r\n");
        let old = old.expect("a survey").answer();
        assert_eq!((old.address.port, old.health), (1, Health::Failed));
        // and what else is asked may be forbidden.
        let refused = b"-NOPERM x\r\n";
        let alone = Survey::read([&primary("master"), new, refused, refused, refused]);
        let alone = alone.expect("a survey");
        assert_eq!(alone.answer(), said("", 2, 7));
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

    /// As many requests as answers are read, with the epoch before the address.
    #[test]
    fn a_survey_asks_for_what_it_reads() {
        let mut out = Vec::new();
        ask_survey(&mut out, "m");
        let mut asked = Vec::new();
        let mut scanner = crate::reply::Scanner::default();
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
            asked.push(words.collect::<Vec<_>>().join(" "));
            rest = &rest[end..];
        }
        assert_eq!(asked.len(), SURVEY_ANSWERS);
        assert_eq!(
            asked,
            [
                "SENTINEL MASTER m",
                "SENTINEL GET-MASTER-ADDR-BY-NAME m",
                "SENTINEL SENTINELS m",
                "SENTINEL REPLICAS m",
                "SENTINEL MYID",
            ]
        );
        for (ask, asked) in [
            (
                ask_primaries as fn(&mut Vec<u8>),
                &b"*2\r\n$8\r\nSENTINEL\r\n$7\r\nMASTERS\r\n"[..],
            ),
            (ask_ping, b"*1\r\n$4\r\nPING\r\n"),
            (ask_role, b"*1\r\n$4\r\nROLE\r\n"),
        ] {
            let mut out = Vec::new();
            ask(&mut out);
            assert_eq!(out, asked);
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

    /// The text of an error says what is wrong.
    #[test]
    fn a_malformed_answer_is_refused_with_its_reason() {
        let fields = "+name\r\n+m\r\n+ip\r\n+h\r\n+port\r\n+1\r\n+flags\r\n+master\r\n+config-epoch\r\n+1\r\n\
             +quorum\r\n+1\r\n+num-slaves\r\n+0\r\n+num-other-sentinels\r\n+0\r\n";
        let primary = |old: &str, new: &str| {
            let read = format!("%8\r\n{}", fields.replace(old, new));
            Primary::read(read.as_bytes()).map(drop)
        };
        assert_eq!(primary("", ""), Ok(()));
        let long_name = format!("+{}\r\n+ip", "n".repeat(NAME_BYTES_MAX + 1));
        let long_host = format!("+{}\r\n", "h".repeat(HOST_BYTES_MAX + 1));
        let many = |max: usize| format!("*{}\r\n{}", max + 1, "_\r\n".repeat(max + 1));
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
                "it has at most 1024 entries",
            ),
            (
                Replica::read_all(many(REPLICAS_MAX).as_bytes()).map(drop),
                "it has at most 1024 entries",
            ),
            (
                Peer::read_all(many(SENTINELS_MAX).as_bytes()).map(drop),
                "it has at most 128 entries",
            ),
            (
                Replica::read_all(b"_\r\n").map(drop),
                "it should be a list of replicas",
            ),
            (
                Peer::read_all(b"_\r\n").map(drop),
                "it should be a list of Sentinels",
            ),
            (
                Peer::read_all(b"*1\r\n*2\r\n+runid\r\n+a b\r\n").map(drop),
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
                "it is not one whole reply",
            ),
            (
                read_address(b"-NOAUTH x\x01y\r\n").map(drop),
                "it answered 'NOAUTH x?y'",
            ),
            (
                read_address(&vec![b' '; ANSWER_BYTES_MAX + 1]).map(drop),
                "it has at most 4194304 bytes",
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

    /// Flags that say nothing of it, and those of later versions, do not count.
    #[test]
    fn the_worst_flag_says_how_a_server_is() {
        for (flags, health) in [
            ("", Health::Online),
            ("slave,promoted,reconf_done", Health::Online),
            ("sentinel,master_down,no_s_down", Health::Online),
            ("slave,disconnected", Health::Disconnected),
            ("s_down,slave,disconnected", Health::Suspected),
            ("s_down,o_down,master,disconnected", Health::Failed),
            ("o_down", Health::Failed),
        ] {
            let answer = format!(
                "*1\r\n*8\r\n+runid\r\n+\r\n+ip\r\n+h\r\n+port\r\n+1\r\n+flags\r\n+{flags}\r\n"
            );
            let peer = Peer {
                id: None,
                endpoint: Some(at("h", 1)),
                health,
            };
            assert_eq!(Peer::read_all(answer.as_bytes()), Ok(vec![peer]), "{flags}");
        }
    }

    #[test]
    fn only_a_replica_that_follows_is_usable() {
        let good = Replica {
            endpoint: Some(at("h", 1)),
            health: Health::Online,
            says_replica: true,
            of: None,
            is_linked: true,
            priority: 0,
            offset_bytes: 0,
        };
        assert!(good.is_usable());
        let spoils: [fn(&mut Replica); 6] = [
            |replica| replica.endpoint = None,
            |replica| replica.health = Health::Disconnected,
            |replica| replica.health = Health::Suspected,
            |replica| replica.health = Health::Failed,
            |replica| replica.says_replica = false,
            |replica| replica.is_linked = false,
        ];
        for spoil in spoils {
            let mut replica = good.clone();
            spoil(&mut replica);
            assert!(!replica.is_usable(), "{replica:?}");
        }
    }

    #[test]
    fn seeds_are_each_there_once_and_not_too_many() {
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

    /// Whom nobody speaks of any more is forgotten, unless it is configured.
    #[test]
    fn what_was_learned_lasts_until_the_next_answer() {
        let mut roster = roster(&[5, 3]);
        let online = |port| peer(port, Health::Online);
        assert!(roster.handle_peers(&at("h", 5), &[online(9), online(7)]));
        assert_eq!(ports(&roster), [5, 3, 7, 9]);
        assert!(!roster.handle_peers(&at("h", 5), &[online(7), online(9), online(7)]));
        // The one that was asked does not list itself, and one without an address is nowhere.
        let mut nowhere = online(8);
        nowhere.endpoint = None;
        assert!(roster.handle_peers(&at("h", 9), &[online(5), nowhere]));
        assert_eq!(ports(&roster), [5, 3, 9]);
        assert!(roster.handle_peers(&at("h", 3), &[]));
        assert_eq!((ports(&roster), roster.seeds().len()), (vec![5, 3], 2));
    }

    /// One that another thinks is down is tried last, also one that is configured.
    #[test]
    fn those_thought_down_are_tried_last() {
        let mut roster = roster(&[5, 3]);
        let peers = [
            peer(5, Health::Suspected),
            peer(6, Health::Suspected),
            peer(7, Health::Disconnected),
            peer(8, Health::Online),
            // About another name it is not thought so.
            peer(9, Health::Suspected),
            peer(9, Health::Online),
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
        // Who answers is not down, whatever was said before.
        roster.handle_peers(&at("h", 5), &peers[1..2]);
        assert_eq!(ports(&roster), [5, 3, 6]);
    }

    #[test]
    fn no_more_are_learned_than_there_may_be() {
        let mut roster = roster(&[1]);
        let max = SENTINELS_MAX as u16;
        let peers = |health| (100..100 + max).map(move |port| peer(port, health));
        // The healthiest are learned,
        let mut many: Vec<Peer> = peers(Health::Suspected).collect();
        many.push(peer(999, Health::Online));
        roster.handle_peers(&at("h", 1), &many);
        assert_eq!(roster.all().len(), 1 + SENTINELS_MAX);
        assert_eq!(ports(&roster)[..3], [1, 999, 100]);
        // and the one that answered always is.
        let many: Vec<Peer> = peers(Health::Online).collect();
        roster.handle_peers(&at("z", 998), &many);
        assert_eq!(roster.all().len(), 1 + SENTINELS_MAX);
        assert!(roster.all().contains(&at("z", 998)));
    }

    fn any_health() -> impl Strategy<Value = Health> {
        prop::sample::select(vec![
            Health::Online,
            Health::Disconnected,
            Health::Suspected,
            Health::Failed,
        ])
    }

    fn any_answer() -> impl Strategy<Value = Answer> {
        ("[a-c]?", 1..4_u16, 0..3_u64, any_health()).prop_map(|(id, port, epoch, health)| Answer {
            health,
            ..said(&id, port, epoch)
        })
    }

    fn any_peer() -> impl Strategy<Value = Peer> {
        (0..9_u16, any_health()).prop_map(|(port, health)| {
            let mut peer = peer(port, health);
            peer.endpoint = peer.endpoint.filter(|_| port != 0);
            peer
        })
    }

    proptest! {
        #[test]
        fn the_latest_and_most_are_believed_in_any_order(
            (answers, turned) in prop::collection::vec(any_answer(), 1..9)
                .prop_flat_map(|answers| (Just(answers.clone()), Just(answers).prop_shuffle())),
        ) {
            let chosen = choose(&answers).expect("there are answers");
            prop_assert_eq!(choose(&turned), Some(chosen));
            let epoch = answers.iter().map(|answer| answer.config_epoch).max();
            prop_assert_eq!(Some(chosen.config_epoch), epoch);
            let votes = |port: u16| {
                let party: Vec<_> = answers
                    .iter()
                    .filter(|answer| Some(answer.config_epoch) == epoch && answer.address.port == port)
                    .collect();
                let mut known: Vec<_> = party.iter().filter_map(|answer| answer.id.clone()).collect();
                let unknown = party.len() - known.len();
                known.sort();
                known.dedup();
                known.len() + unknown
            };
            prop_assert_eq!(Some(votes(chosen.address.port)), (1..4).map(votes).max());
        }

        #[test]
        fn a_roster_has_its_seeds_and_what_it_was_told(
            seeds in prop::collection::vec(1..9_u16, 1..5),
            asked in 1..9_u16,
            (peers, turned) in prop::collection::vec(any_peer(), 0..9)
                .prop_flat_map(|peers| (Just(peers.clone()), Just(peers).prop_shuffle())),
            before in prop::collection::vec(any_peer(), 0..9),
        ) {
            let mut one = roster(&seeds);
            let mut other = one.clone();
            one.handle_peers(&at("h", asked), &peers);
            other.handle_peers(&at("h", 1), &before);
            other.handle_peers(&at("h", asked), &turned);
            prop_assert_eq!(&one, &other);
            prop_assert!(!one.handle_peers(&at("h", asked), &turned));

            let told = peers.iter().filter_map(|peer| Some(peer.endpoint.as_ref()?.port));
            let expected: BTreeSet<u16> = seeds.iter().copied().chain([asked]).chain(told).collect();
            let mut found = ports(&one);
            found.sort_unstable();
            prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
            // Round and round, everybody is tried.
            let mut tried = BTreeSet::new();
            let mut at = one.after(None);
            for _ in one.all() {
                tried.insert(at.clone());
                at = one.after(Some(at));
            }
            prop_assert_eq!(tried.len(), one.all().len());
        }

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
            let _ = (Peer::read_all(&bytes), read_address(&bytes), read_id(&bytes), Role::read(&bytes));
            let _ = Survey::read([&bytes; SURVEY_ANSWERS]);
        }
    }
}

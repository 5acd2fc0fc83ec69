//! The election of one address of a primary among the addresses that its Sentinels give.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use respool_protocol::sentinel::{Endpoint, InstanceHealth, Survey};

/// The address of a primary, as one Sentinel gives it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PrimaryAnswer {
    /// Id of the Sentinel, if known.
    pub(crate) id: Option<String>,
    /// The address that it gives to clients.
    pub(crate) address: Endpoint,
    /// Epoch of the failover or configuration that made this address the primary.
    pub(crate) config_epoch: u64,
    /// Health of the server at the address, as the Sentinel sees it.
    pub(crate) health: InstanceHealth,
}

impl PrimaryAnswer {
    /// The part of a survey that [`choose`] compares with the answers of other Sentinels.
    pub(crate) fn of(survey: &Survey) -> PrimaryAnswer {
        let primary = &survey.primary;
        let is_old = primary.endpoint.as_ref() != Some(&survey.address);
        PrimaryAnswer {
            id: survey.id.clone(),
            address: survey.address.clone(),
            config_epoch: primary.config_epoch,
            // During a failover the health is that of the old server, not of the new one.
            health: match primary.health {
                _ if is_old && primary.is_failing_over => InstanceHealth::Online,
                health => health,
            },
        }
    }
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
pub(crate) fn choose(answers: &[PrimaryAnswer]) -> Option<&PrimaryAnswer> {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::discovery::test_answers::{any_health, endpoint};

    /// The answer of a Sentinel with this id; an empty id means none.
    fn answer(id: &str, address: u16, config_epoch: u64) -> PrimaryAnswer {
        PrimaryAnswer {
            id: Some(id.to_owned()).filter(|id| !id.is_empty()),
            address: endpoint("h", address),
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

    /// The survey of each situation with one, as real Sentinels answered it, with the name of the
    /// situation. `crates/protocol/tests/sentinel/README.md` describes the files.
    fn recorded_surveys(file: &str) -> Vec<(&str, Survey)> {
        let mut surveys = Vec::new();
        for situation in file.split("\n== ").skip(1) {
            let (name, rest) = situation.split_once('\n').expect(situation);
            let answer = |command: &str| {
                let mut lines = rest.lines().filter_map(|line| line.split_once(' '));
                let (_, escaped) = lines.find(|(word, _)| *word == command)?;
                Some(escaped.replace("\\r", "\r").replace("\\n", "\n"))
            };
            let Some(primary) = answer("master") else {
                continue;
            };
            // During a failover there are no lists.
            let parts = ["address", "sentinels", "replicas", "id"];
            let parts = parts.map(|part| answer(part).unwrap_or_else(|| "*0\r\n".to_owned()));
            let [address, sentinels, replicas, id] = parts.each_ref().map(String::as_bytes);
            let survey = Survey::read([primary.as_bytes(), address, sentinels, replicas, id]);
            surveys.push((name, survey.expect(name)));
        }
        surveys
    }

    const FILES: [&str; 4] = [
        include_str!("../../../protocol/tests/sentinel/redis-6.2.txt"),
        include_str!("../../../protocol/tests/sentinel/redis-7.0.txt"),
        include_str!("../../../protocol/tests/sentinel/redis-8.2.txt"),
        include_str!("../../../protocol/tests/sentinel/valkey-9.1.txt"),
    ];

    /// After a promotion the new primary is chosen, even against real Sentinels that do not know of
    /// it yet.
    #[test]
    fn new_primary_is_chosen_after_a_failover() {
        for surveys in FILES.map(recorded_surveys) {
            let answers = |name: &str| -> Vec<PrimaryAnswer> {
                let named = surveys.iter().filter(|(of, _)| of.starts_with(name));
                named.map(|(_, survey)| PrimaryAnswer::of(survey)).collect()
            };
            let before = answers("three Sentinels, asked");
            let during = answers("a failover waits for a replica, asked");
            let after = answers("after the failover, asked");
            let died = answers("after they died, asked");
            let counts = [&before, &during, &after, &died].map(Vec::len);
            assert_eq!(counts, [3, 3, 3, 2]);
            let chosen = |answers: &[PrimaryAnswer]| choose(answers).expect("answers").address.port;
            assert_eq!(chosen(&before), 17200);
            assert_eq!(chosen(&after), 17202);
            // One Sentinel with the new epoch wins against two with the old one.
            for newer in &during {
                assert!(newer.health < InstanceHealth::Suspected);
                let answers = [&before[1..], std::slice::from_ref(newer)].concat();
                assert_eq!(chosen(&answers), 17202);
            }
            let last = died[0].address.port;
            assert!([17200, 17201].contains(&last));
            let all = [&before[..], &during, &after, &died[1..]].concat();
            assert_eq!(chosen(&all), last);
        }
    }

    /// Before a replica is promoted, the health is that of the old primary. From then on it is that
    /// of the new one, which the leading Sentinel does not watch yet.
    #[test]
    fn answer_during_a_failover_has_the_health_of_its_address() {
        let mut surveys = recorded_surveys(FILES[0]).into_iter();
        let leading = surveys.find(|(name, _)| name.starts_with("a failover waits"));
        let (_, mut survey) = leading.expect("a failover");
        assert!(survey.primary.is_failing_over);
        survey.primary.health = InstanceHealth::Failed;
        assert_ne!(survey.primary.endpoint.as_ref(), Some(&survey.address));
        assert_eq!(PrimaryAnswer::of(&survey).health, InstanceHealth::Online);
        survey.address = survey.primary.endpoint.clone().expect("an address");
        assert_eq!(PrimaryAnswer::of(&survey).health, InstanceHealth::Failed);
    }

    fn any_answer() -> impl Strategy<Value = PrimaryAnswer> {
        ("[a-c]?", 1..4_u16, 0..3_u64, any_health()).prop_map(|(id, port, epoch, health)| {
            PrimaryAnswer {
                health,
                ..answer(&id, port, epoch)
            }
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
    }
}

//! The Sentinels of a pool, and the order in which they are asked.

use std::collections::{BTreeMap, BTreeSet};

use respool_protocol::sentinel::{Endpoint, InstanceHealth, SENTINELS_MAX, SentinelPeer};

/// The Sentinels that may be asked: configured ones, and ones that a Sentinel has named.
///
/// Configured Sentinels stay. Learned Sentinels last until the next answer. An address that no
/// Sentinel names any more may belong to an unrelated Sentinel, which watches another server under
/// the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Roster {
    /// The configured Sentinels.
    seeds: Vec<Endpoint>,
    /// All Sentinels, in the order of attempts.
    all: Vec<Endpoint>,
}

impl Roster {
    /// A roster of the configured Sentinels.
    pub(crate) fn new(seeds: Vec<Endpoint>) -> Roster {
        let all = seeds.clone();
        Roster { seeds, all }
    }

    /// All Sentinels in the order of attempts, at most twice [`SENTINELS_MAX`]. Configured ones are
    /// first, then learned ones. Last are Sentinels of both kinds that the last answer reports as
    /// down.
    pub(crate) fn all(&self) -> &[Endpoint] {
        &self.all
    }

    /// Handles an answer that names the other Sentinels, for one primary or, concatenated, for
    /// several. Returns whether the roster has changed.
    ///
    /// The Sentinel that answered is also learned, although it does not list itself. At most
    /// [`SENTINELS_MAX`] are learned, the healthiest first.
    pub(crate) fn handle_peers<'a>(
        &mut self,
        sentinel: &Endpoint,
        peers: impl IntoIterator<Item = &'a SentinelPeer>,
    ) -> bool {
        // If a Sentinel is listed twice, its better health counts.
        let mut listed = BTreeMap::from([(sentinel, InstanceHealth::Online)]);
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
        learned.sort_by_key(|&(health, endpoint)| (endpoint != sentinel, health, endpoint));
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::discovery::test_answers::{any_health, endpoint};

    fn peer(port: u16, health: InstanceHealth) -> SentinelPeer {
        SentinelPeer {
            id: Some(format!("{port:040x}")),
            endpoint: Some(endpoint("h", port)),
            health,
        }
    }

    fn ports(roster: &Roster) -> Vec<u16> {
        roster.all().iter().map(|one| one.port).collect()
    }

    fn roster(ports: &[u16]) -> Roster {
        Roster::new(ports.iter().map(|&port| endpoint("h", port)).collect())
    }

    /// A Sentinel that the next answer does not name is forgotten, unless it is configured.
    #[test]
    fn learned_sentinels_last_until_the_next_answer() {
        let mut roster = roster(&[5, 3]);
        let online = |port| peer(port, InstanceHealth::Online);
        assert!(roster.handle_peers(&endpoint("h", 5), &[online(9), online(7)]));
        assert_eq!(ports(&roster), [5, 3, 7, 9]);
        assert!(!roster.handle_peers(&endpoint("h", 5), &[online(7), online(9), online(7)]));
        // The Sentinel that answers does not list itself. A Sentinel without an address is skipped.
        let mut without_address = online(8);
        without_address.endpoint = None;
        assert!(roster.handle_peers(&endpoint("h", 9), &[online(5), without_address]));
        assert_eq!(ports(&roster), [5, 3, 9]);
        assert!(roster.handle_peers(&endpoint("h", 3), &[]));
        assert_eq!((ports(&roster), roster.seeds.len()), (vec![5, 3], 2));
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
        assert!(roster.handle_peers(&endpoint("h", 3), &peers));
        assert_eq!(ports(&roster), [3, 8, 9, 7, 5, 6]);
        // A Sentinel that answers is up, though another one reported it as down.
        roster.handle_peers(&endpoint("h", 5), &peers[1..2]);
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
        roster.handle_peers(&endpoint("h", 1), &many);
        assert_eq!(roster.all().len(), 1 + SENTINELS_MAX);
        assert_eq!(ports(&roster)[..3], [1, 999, 100]);
        // The Sentinel that answered is learned, too.
        let many: Vec<SentinelPeer> = peers(InstanceHealth::Online).collect();
        roster.handle_peers(&endpoint("z", 998), &many);
        assert_eq!(roster.all().len(), 1 + SENTINELS_MAX);
        assert!(roster.all().contains(&endpoint("z", 998)));
    }

    fn any_peer() -> impl Strategy<Value = SentinelPeer> {
        (0..9_u16, any_health()).prop_map(|(port, health)| {
            let mut peer = peer(port, health);
            peer.endpoint = peer.endpoint.filter(|_| port != 0);
            peer
        })
    }

    proptest! {
        /// A roster has its seeds, the Sentinel that answered last and the Sentinels that it named,
        /// whatever came before.
        #[test]
        fn roster_has_its_seeds_and_the_last_answer(
            seeds in prop::collection::btree_set(1..9_u16, 1..5),
            sentinel in 1..9_u16,
            (peers, reordered) in prop::collection::vec(any_peer(), 0..9)
                .prop_flat_map(|peers| (Just(peers.clone()), Just(peers).prop_shuffle())),
            before in prop::collection::vec(any_peer(), 0..9),
        ) {
            let seeds = Vec::from_iter(seeds);
            let mut one = roster(&seeds);
            let mut other = one.clone();
            one.handle_peers(&endpoint("h", sentinel), &peers);
            other.handle_peers(&endpoint("h", 1), &before);
            other.handle_peers(&endpoint("h", sentinel), &reordered);
            prop_assert_eq!(&one, &other);
            prop_assert!(!one.handle_peers(&endpoint("h", sentinel), &reordered));

            let listed = peers.iter().filter_map(|peer| Some(peer.endpoint.as_ref()?.port));
            let learned = listed.chain([sentinel]);
            let expected: BTreeSet<u16> = seeds.iter().copied().chain(learned).collect();
            let mut found = ports(&one);
            found.sort_unstable();
            prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
        }
    }
}

//! The election of one view of a Cluster among the views that its nodes give.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use respool_protocol::cluster::{ClusterNode, Endpoint, Info, View};

/// The result of [`choose`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ViewChoice {
    /// The chosen view; `None` if there are no answers.
    pub(crate) view: Option<View>,
    /// The current epoch of the nodes that share the chosen view.
    pub(crate) epoch: u64,
    /// Whether the view belongs to the known Cluster. Only then its epoch can be compared with the
    /// epoch of an earlier view.
    pub(crate) is_known: bool,
    /// The indexes of answers that belong to other Clusters.
    pub(crate) unlisted_nodes: Vec<usize>,
}

/// Chooses the view to believe among answers of the same time. `known` has the node ids of the view
/// that was believed before.
///
/// 1. Two answers belong to one Cluster if their views have a node id in common, directly or
///    through other answers. Epochs and majorities of different Clusters cannot be compared.
/// 2. The Cluster with the most answers wins; then the one with the most known ids; then the one
///    that is first by the rules below.
/// 3. Nodes that are not [usable](ClusterNode::is_usable) are removed from every view.
/// 4. Only answers with the highest current epoch count. Every failover raises the epoch, and the
///    new epoch spreads to all reachable nodes. A node with a lower epoch has not heard of the last
///    failover.
/// 5. Of these answers, the view that most nodes share wins. Views are equal if every slot has the
///    same owner. A slot that moves to the node with the highest epoch does not raise the epoch, so
///    answers of one epoch may differ for a moment.
/// 6. Of views that are shared equally often, the one with more nodes in state ok wins. Then the
///    one with more owned slots wins. Then the choice does not depend on the order of the answers.
/// 7. Of the answers that share the view, one in state ok with the most usable nodes is taken
///    unchanged. Replicas and zones of several answers are not mixed.
///
/// The Cluster of an answer without ids is unknown. Such answers count as one Cluster, and only if
/// no answer has ids.
///
/// All answers should come from the same command: an answer with ids and an answer without never
/// agree.
pub(crate) fn choose(known: &BTreeSet<String>, answers: &[(View, Info)]) -> ViewChoice {
    let usable = answers.iter().map(|(view, info)| (view.usable(), info));
    let usable: Vec<(View, &Info)> = usable.collect();
    let clusters = clusters_of(answers);
    let mut by_cluster: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let mut without_ids = Vec::new();
    for (answer, cluster) in clusters.iter().enumerate() {
        match *cluster {
            Some(cluster) => by_cluster.entry(cluster).or_default().push(answer),
            None => without_ids.push(answer),
        }
    }
    let with_ids = by_cluster.iter().filter_map(|(cluster, members)| {
        let ids = members.iter().flat_map(|answer| answers[*answer].0.ids());
        let ids: BTreeSet<&str> = ids.collect();
        let shared = ids.iter().filter(|id| known.contains(**id)).count();
        let best = BestView::of(&usable, members)?;
        // Views without slots may rank equal. The first id decides: two Clusters have no id in
        // common.
        let last = Reverse(ids.first().copied());
        let rank = (members.len(), shared, best.rank, last);
        Some((rank, best.view, Some(*cluster)))
    });
    let unidentified = BestView::of(&usable, &without_ids).filter(|_| by_cluster.is_empty());
    let unidentified = unidentified.map(|best| {
        let rank = (without_ids.len(), 0, best.rank, Reverse(None));
        (rank, best.view, None)
    });
    let best = with_ids.chain(unidentified);
    let best = best.max_by(|(rank, ..), (other, ..)| rank.cmp(other));
    let chosen = best.as_ref().and_then(|(.., cluster)| *cluster);
    let is_other = |answer: &usize| clusters[*answer].is_some_and(|its| Some(its) != chosen);
    let shared = best.as_ref().map_or(0, |((_, shared, ..), ..)| *shared);
    ViewChoice {
        is_known: shared > 0 || known.is_empty() || chosen.is_none(),
        unlisted_nodes: (0..answers.len()).filter(is_other).collect(),
        epoch: best.as_ref().map_or(0, |((_, _, rank, _), ..)| rank.0),
        view: best.map(|(_, view, _)| view.clone()),
    }
}

/// The Cluster of each answer, named by the index of its first answer; `None` for an answer without
/// ids.
fn clusters_of(answers: &[(View, Info)]) -> Vec<Option<usize>> {
    let mut clusters: Vec<Option<usize>> = vec![None; answers.len()];
    let mut first_with: BTreeMap<&str, usize> = BTreeMap::new();
    for (answer, (view, _)) in answers.iter().enumerate() {
        for id in view.ids() {
            let own = *clusters[answer].get_or_insert(answer);
            let with = *first_with.entry(id).or_insert(answer);
            let other = clusters[with].unwrap_or(own);
            // The id joins two groups that had no id in common until now.
            let (first, later) = (own.min(other), own.max(other));
            for cluster in clusters.iter_mut().filter(|its| **its == Some(later)) {
                *cluster = Some(first);
            }
        }
    }
    clusters
}

/// The best view among the answers of one Cluster.
struct BestView<'a> {
    /// Decides between Clusters, the highest wins: the epoch; the answers that share the view, and
    /// those in state ok among them; the owned slots; the owners.
    rank: (u64, usize, usize, usize, Reverse<Ownership<'a>>),
    view: &'a View,
}

impl<'a> BestView<'a> {
    /// `members`: the indexes of the Cluster's answers.
    fn of(answers: &'a [(View, &Info)], members: &[usize]) -> Option<BestView<'a>> {
        let epoch_of = |answer: &usize| answers[*answer].1.current_epoch;
        let epoch = members.iter().map(epoch_of).max()?;
        let mut groups: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for answer in members.iter().filter(|answer| epoch_of(answer) == epoch) {
            let ownership = ownership_of(&answers[*answer].0);
            groups.entry(ownership).or_default().push(*answer);
        }
        let ranked = groups.into_iter().map(|(ownership, group)| {
            let ok = group.iter().filter(|&&answer| answers[answer].1.ok).count();
            let owned = answers[group[0]].0.slots_owned();
            ((epoch, group.len(), ok, owned, Reverse(ownership)), group)
        });
        let (rank, group) = ranked.max()?;
        let best = group.iter().max_by_key(|&&answer| {
            let (view, info) = &answers[answer];
            (info.ok, view.nodes().len(), Reverse(answer))
        })?;
        let view = &answers[*best].0;
        Some(BestView { rank, view })
    }
}

/// First slot, last slot and owner of each range.
type Ownership<'a> = Vec<(u16, u16, OwnerKey<'a>)>;

/// Identifies a node across views.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum OwnerKey<'a> {
    Id(&'a str),
    Endpoint(Option<&'a Endpoint>),
}

/// The owners of the slots, in a form that does not depend on the order of the nodes.
fn ownership_of(view: &View) -> Ownership<'_> {
    let ranges = view.ranges().map(|(range, owner)| {
        let key = key_of(&view.nodes()[usize::from(owner)]);
        (*range.start(), *range.end(), key)
    });
    ranges.collect()
}

/// The identity of a node across views: its id, or its endpoint if it has no id.
fn key_of(node: &ClusterNode) -> OwnerKey<'_> {
    match &node.endpoint {
        _ if !node.id.is_empty() => OwnerKey::Id(&node.id),
        endpoint => OwnerKey::Endpoint(endpoint.as_ref()),
    }
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;

    use proptest::prelude::*;
    use respool_protocol::cluster::{NodeHealth, NodeRole};
    use respool_protocol::slot::SLOTS;

    use super::*;
    use crate::discovery::test_answers::endpoint;

    fn info(current_epoch: u64, ok: bool) -> Info {
        Info {
            ok,
            current_epoch,
            my_epoch: 0,
            slots_assigned: 0,
        }
    }

    /// A view of primaries with these ids, and of ranges, each with the index of its owner.
    fn view(ids: &[&str], ranges: &[(RangeInclusive<u16>, u16)]) -> View {
        let node = |id: &&str| ClusterNode::primary(id, endpoint(id, 1));
        View::new(ids.iter().map(node).collect(), ranges.iter().cloned()).expect("a view")
    }

    /// The id of each slot's owner.
    fn owner_ids(view: &View) -> Vec<Option<&str>> {
        let id = |slot| view.owner_of(slot).map(|node| node.id.as_str());
        (0..SLOTS).map(id).collect()
    }

    /// The rules of `choose` hold, one case for each rule in its order.
    #[test]
    fn view_is_chosen_by_the_rules() {
        let ours = || view(&["a", "b"], &[(0..=99, 0), (100..=199, 1)]);
        let same = || view(&["b", "a"], &[(0..=99, 1), (100..=199, 0)]);
        let theirs = || view(&["a", "b"], &[(0..=199, 0)]);
        let choose = |answers: &[(View, Info)]| choose(&BTreeSet::new(), answers).view;
        let believed = |answers: &[(View, Info)]| {
            let view = choose(answers)?;
            Some(owner_ids(&view)[150]? == "b")
        };
        assert_eq!(choose(&[]), None);
        let (ok, down) = (info(7, true), info(7, false));
        assert_eq!(
            believed(&[(theirs(), ok), (ours(), ok), (same(), ok)]),
            Some(true)
        );
        assert_eq!(
            believed(&[(theirs(), info(8, false)), (ours(), ok), (same(), ok)]),
            Some(false)
        );
        assert_eq!(believed(&[(theirs(), down), (ours(), ok)]), Some(true));
        assert_eq!(believed(&[(theirs(), ok), (ours(), down)]), Some(false));
        let more = || view(&["a", "b"], &[(0..=99, 0), (100..=200, 1)]);
        assert_eq!(believed(&[(theirs(), ok), (more(), ok)]), Some(true));
        assert_eq!(believed(&[(theirs(), ok), (more(), down)]), Some(false));

        // If no rule decides, the result does not depend on the order of the answers.
        let [one, other] = [0, 1].map(|owner| (view(&["a", "b"], &[(0..=99, owner)]), ok));
        let either = choose(&[one.clone(), other.clone()]).expect("two answers");
        assert_eq!(Some(either), choose(&[other, one]));

        // Nodes that share a view may know different nodes without slots.
        let wider = || view(&["a", "b", "spare"], &[(0..=99, 0), (100..=199, 1)]);
        let nodes = |answers: &[(View, Info)]| choose(answers).map(|view| view.nodes().len());
        assert_eq!(nodes(&[(ours(), ok), (wider(), ok), (ours(), ok)]), Some(3));
        assert_eq!(nodes(&[(ours(), ok), (wider(), down)]), Some(2));

        // Slots of a failed owner count as slots without an owner.
        let mut nodes = theirs().nodes().to_vec();
        nodes[0].health = NodeHealth::Failed;
        let failed = View::new(nodes, theirs().ranges()).expect("a view");
        let unowned = view(&["b"], &[]);
        let answers = [(failed, ok), (ours(), ok), (unowned, ok)];
        assert_eq!(choose(&answers).map(|view| view.slots_owned()), Some(0));
    }

    /// Epochs of different Clusters are not compared. The choice names the answers of other
    /// Clusters.
    #[test]
    fn other_clusters_are_outvoted() {
        let ours = |owner| (view(&["a", "b"], &[(0..=99, owner)]), info(7, true));
        let theirs = |epoch| {
            let view = view(&["x", "y"], &[(0..=16_383, 0)]);
            (view, info(epoch, true))
        };
        let empty = |epoch| (view(&[], &[]), info(epoch, false));
        let chosen = |known: &[&str], answers: &[(View, Info)]| {
            let known = known.iter().map(|id| String::from(*id)).collect();
            let choice = choose(&known, answers);
            let first = choice
                .view
                .and_then(|view| Some(owner_ids(&view)[0]?.to_owned()));
            (
                first.unwrap_or_default(),
                choice.epoch,
                choice.unlisted_nodes,
            )
        };
        let is = |first: &str, epoch, unlisted_nodes: &[usize]| {
            (first.to_owned(), epoch, unlisted_nodes.to_vec())
        };
        // The Cluster with most answers wins; of several, the known one.
        let answers = [theirs(9), ours(0), ours(1)];
        assert_eq!(chosen(&[], &answers), is("a", 7, &[0]));
        assert_eq!(chosen(&["b", "gone"], &answers), is("a", 7, &[0]));
        assert_eq!(chosen(&["y"], &answers), is("a", 7, &[0]));
        let answers = [theirs(9), ours(1)];
        assert_eq!(chosen(&["a"], &answers), is("b", 7, &[0]));
        assert_eq!(chosen(&["y"], &answers), is("x", 9, &[1]));
        // A node that moved to another Cluster keeps its id.
        assert_eq!(chosen(&["a", "b", "x"], &answers), is("b", 7, &[0]));
        // If both are equally known, the higher epoch wins.
        assert_eq!(chosen(&[], &[ours(0), theirs(6)]), is("a", 7, &[1]));
        assert_eq!(chosen(&["gone"], &[theirs(8), ours(0)]), is("x", 8, &[1]));

        // Two answers without a common id belong to one Cluster if a third answer connects them.
        let one = || (view(&["a", "b"], &[(0..=99, 0)]), info(7, true));
        let other = || (view(&["d", "c"], &[(0..=99, 0)]), info(8, true));
        let both = || (view(&["c", "b"], &[(0..=99, 0)]), info(6, true));
        for answers in [
            [one(), other(), both()],
            [both(), one(), other()],
            [other(), one(), both()],
        ] {
            assert_eq!(chosen(&["a"], &answers), is("d", 8, &[]));
        }
        let apart = chosen(&["a"], &[one(), other(), theirs(9)]);
        assert_eq!(apart, is("a", 7, &[1, 2]));

        // Nodes that have not met yet are Clusters of their own. Without slots their answers have
        // no ids.
        assert_eq!(chosen(&["a"], &[empty(9), ours(0)]), is("a", 7, &[]));
        let most = [empty(9), ours(0), empty(9)];
        assert_eq!(chosen(&[], &most), is("a", 7, &[]));
        let choice = choose(&BTreeSet::new(), &[empty(9), empty(8)]);
        assert_eq!((choice.view, choice.epoch), (Some(empty(9).0), 9));
    }

    /// The choice says whether it belongs to the known Cluster.
    #[test]
    fn choice_says_whether_its_cluster_is_known() {
        let answers = [(view(&["a", "b"], &[(0..=99, 0)]), info(7, true))];
        let is_known = |known: &[&str]| {
            let known = known.iter().map(|id| String::from(*id)).collect();
            choose(&known, &answers).is_known
        };
        assert!(is_known(&["b", "gone"]) && is_known(&[]));
        assert!(!is_known(&["gone"]));
    }

    /// Answers without ids, as old servers give them, count as one Cluster.
    #[test]
    fn answers_without_ids_are_of_one_cluster() {
        let without = |owner, epoch| {
            let with_ids = view(&["a", "b"], &[(0..=99, owner)]);
            let mut nodes = with_ids.nodes().to_vec();
            nodes.iter_mut().for_each(|node| node.id.clear());
            let view = View::new(nodes, with_ids.ranges()).expect("a view");
            (view, info(epoch, true))
        };
        let answers = [without(0, 7), without(0, 7), without(1, 8)];
        for known in [BTreeSet::new(), BTreeSet::from(["x".to_owned()])] {
            let choice = choose(&known, &answers);
            assert_eq!(choice.view.as_ref(), Some(&answers[2].0));
            assert_eq!((choice.epoch, choice.unlisted_nodes), (8, Vec::new()));
        }
    }

    /// The slots at which the owner changes, each with its new owner among the primaries.
    type Cuts = BTreeMap<u16, Option<prop::sample::Index>>;

    fn any_cuts() -> impl Strategy<Value = Cuts> {
        prop::collection::btree_map(0..SLOTS, any::<Option<prop::sample::Index>>(), 0..12)
    }

    /// Nodes with ids in any order. The first node is a primary.
    fn any_nodes() -> impl Strategy<Value = Vec<ClusterNode>> {
        let shapes = prop::collection::vec((any::<bool>(), 0..5_u8), 1..8);
        (shapes, any::<u64>()).prop_map(|(shapes, seed)| {
            let node = |(index, (is_replica, health)): (usize, (bool, u8))| {
                let number = (index as u64 + 1).wrapping_mul(seed | 1);
                let endpoint = endpoint("::1", 7_000 + index as u16);
                let mut node = ClusterNode::primary(&format!("{number:040x}"), endpoint);
                if is_replica && index > 0 {
                    node.role = NodeRole::Replica { of: Some(0) };
                }
                if health == 0 {
                    node.health = NodeHealth::Failed;
                }
                node
            };
            shapes.into_iter().enumerate().map(node).collect()
        })
    }

    fn cut(nodes: &[ClusterNode], cuts: &Cuts) -> View {
        let primaries: Vec<u16> = (0..)
            .zip(nodes)
            .filter_map(|(index, node)| (node.role == NodeRole::Primary).then_some(index))
            .collect();
        let ends = cuts.keys().skip(1).map(|next| next - 1).chain([SLOTS - 1]);
        let ranges = cuts.iter().zip(ends).filter_map(|((&first, owner), last)| {
            Some((first..=last, *owner.as_ref()?.get(&primaries)))
        });
        View::new(nodes.to_vec(), ranges).expect("ranges beside each other")
    }

    /// The view with its nodes in another order.
    fn rotated(view: &View, by: usize) -> View {
        let count = view.nodes().len();
        let mut nodes = view.nodes().to_vec();
        nodes.rotate_left(by % count);
        let new_index = |index: u16| ((usize::from(index) + count - by % count) % count) as u16;
        for node in &mut nodes {
            if let NodeRole::Replica { of: Some(of) } = &mut node.role {
                *of = new_index(*of);
            }
        }
        let ranges = view
            .ranges()
            .map(|(range, owner)| (range, new_index(owner)));
        View::new(nodes, ranges).expect("the same view")
    }

    /// The answers of real nodes to CLUSTER NODES and CLUSTER INFO, each with the name of its
    /// situation. `crates/protocol/tests/cluster/README.md` describes the files.
    fn recorded_answers(file: &str) -> Vec<(&str, View, Info)> {
        let bytes = |escaped: &str| escaped.replace("\\r", "\r").replace("\\n", "\n");
        let mut answers = Vec::new();
        let (mut name, mut host, mut nodes) = ("", "", String::new());
        for line in file.lines() {
            match line.split_once(' ') {
                Some(("==", rest)) => name = rest,
                Some(("asked", rest)) => host = rest,
                Some(("nodes", rest)) => nodes = bytes(rest),
                Some(("info", rest)) => {
                    let view = View::from_nodes(nodes.as_bytes(), host).expect(name);
                    answers.push((name, view, Info::read(bytes(rest).as_bytes()).expect(name)));
                }
                _ => {}
            }
        }
        // A node answers in both versions of the protocol.
        answers.dedup_by_key(|(name, ..)| *name);
        answers
    }

    /// After a failover, one real answer with the new epoch wins against those with the old one.
    #[test]
    fn failover_is_believed_by_its_epoch() {
        for file in [
            include_str!("../../../protocol/tests/cluster/redis-6.2.txt"),
            include_str!("../../../protocol/tests/cluster/redis-7.0.txt"),
            include_str!("../../../protocol/tests/cluster/redis-8.2.txt"),
            include_str!("../../../protocol/tests/cluster/valkey-9.1.txt"),
        ] {
            let answers = recorded_answers(file);
            let named = |is_it: &dyn Fn(&str) -> bool| -> Vec<(View, Info)> {
                let named = answers.iter().filter(|(name, ..)| is_it(name));
                named.map(|(_, view, info)| (view.clone(), *info)).collect()
            };
            let mut votes = named(&|name| name.starts_with("three") && name.contains(", asked "));
            assert_eq!(votes.len(), 4);
            let after = named(&|name| name == "after a failover");
            let choose = |votes: &[_]| {
                let choice = choose(&BTreeSet::new(), votes);
                assert!(choice.unlisted_nodes.is_empty());
                choice.view.expect("answers")
            };
            let old = choose(&votes);
            votes.insert(2, after[0].clone());
            let new = choose(&votes);
            let is_failed = |node: &&ClusterNode| node.health == NodeHealth::Failed;
            let failed = after[0]
                .0
                .nodes()
                .iter()
                .find(is_failed)
                .expect("a failed node");
            assert!(new.nodes().iter().all(|node| node.id != failed.id));
            assert_eq!(new.nodes().len(), 3);
            // Its replica has its slots, and all other slots stay.
            for slot in 0..SLOTS {
                let id = |view: &View| Some(view.owner_of(slot)?.id.clone());
                let has_moved = matches!(slot, 0..=5459 | 16383);
                assert_eq!(id(&old) != id(&new), has_moved, "{slot}");
                assert_eq!(id(&old).as_ref() == Some(&failed.id), has_moved, "{slot}");
            }
        }
    }

    proptest! {
        /// The owners of slots are equal for every order of the nodes.
        #[test]
        fn ownership_does_not_depend_on_the_order_of_nodes(
            nodes in any_nodes(),
            cuts in any_cuts(),
            by in 0..9_usize,
        ) {
            let view = cut(&nodes, &cuts);
            let rotated = rotated(&view, by);
            prop_assert_eq!(ownership_of(&rotated), ownership_of(&view));
        }

        /// Most answers of the highest epoch agree with the chosen view, in any order of answers
        /// and nodes.
        #[test]
        fn majority_of_the_latest_epoch_is_chosen(
            nodes in any_nodes(),
            cuts in prop::collection::vec(any_cuts(), 1..4),
            votes in prop::collection::vec((any::<prop::sample::Index>(), 0..3_u64, any::<bool>(), 0..9_usize), 1..9),
            by: usize,
        ) {
            let views: Vec<View> = cuts.iter().map(|cuts| cut(&nodes, cuts)).collect();
            let answers: Vec<(View, Info)> = votes
                .iter()
                .map(|(which, epoch, ok, by)| (rotated(which.get(&views), *by), info(*epoch, *ok)))
                .collect();
            let choose = |answers: &[(View, Info)]| choose(&BTreeSet::new(), answers).view;
            let chosen = choose(&answers).expect("there are answers");
            prop_assert!(chosen.nodes().iter().all(ClusterNode::is_usable));

            let epoch = answers.iter().map(|(_, info)| info.current_epoch).max();
            let latest = answers.iter().filter(|(_, info)| Some(info.current_epoch) == epoch);
            let latest: Vec<View> = latest.map(|(view, _)| view.usable()).collect();
            let owners: Vec<_> = latest.iter().map(owner_ids).collect();
            let votes = |of: &Vec<Option<&str>>| owners.iter().filter(|other| *other == of).count();
            let most = owners.iter().map(votes).max();
            prop_assert_eq!(Some(votes(&owner_ids(&chosen))), most);

            let mut reordered = answers.clone();
            reordered.rotate_left(by % answers.len());
            reordered.reverse();
            let again = choose(&reordered).expect("there are answers");
            prop_assert_eq!(owner_ids(&again), owner_ids(&chosen));
        }

        /// Fewer answers of another Cluster change nothing, whatever their epochs and positions. If
        /// our Cluster is known, equally many change nothing either.
        #[test]
        fn choice_is_the_same_without_other_clusters(
            nodes in any_nodes(),
            cuts in prop::collection::vec((any_cuts(), 0..3_u64, any::<bool>()), 1..5),
            theirs in prop::collection::vec((any_cuts(), 0..9_u64, any::<prop::sample::Index>()), 0..5),
            is_known: bool,
        ) {
            let known = nodes.iter().map(|node| node.id.clone()).filter(|_| is_known);
            let known: BTreeSet<String> = known.collect();
            let of = |cuts: &Cuts, nodes: &[ClusterNode], epoch, ok| (cut(nodes, cuts), info(epoch, ok));
            let ours: Vec<_> = cuts.iter().map(|(cuts, epoch, ok)| of(cuts, &nodes, *epoch, *ok)).collect();
            let alone = choose(&known, &ours);
            prop_assert!(alone.unlisted_nodes.is_empty() && alone.is_known);
            let mut others = nodes.clone();
            others.iter_mut().for_each(|node| node.id.insert(0, 'x'));
            let fewer = ours.len() - usize::from(!is_known);
            let mut all = ours.clone();
            for (cuts, epoch, at) in theirs.iter().take(fewer) {
                all.insert(at.index(all.len() + 1), of(cuts, &others, *epoch, true));
            }
            let choice = choose(&known, &all);
            prop_assert_eq!((&choice.view, choice.epoch), (&alone.view, alone.epoch));
            let is_theirs = |answer: &usize| all[*answer].0.ids().all(|id| id.starts_with('x'));
            let unlisted_nodes: Vec<usize> = (0..all.len()).filter(is_theirs).collect();
            prop_assert_eq!(choice.unlisted_nodes, unlisted_nodes);
        }
    }
}

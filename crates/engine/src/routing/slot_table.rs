//! The owner of each slot of a Cluster. Discovery writes the table, and requests are routed by it.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use respool_protocol::fan::Cursor;
use respool_protocol::hashing::Hash;
use respool_protocol::slot::{SLOTS, hash_slot};

use crate::routing::pool::ServerId;

/// The highest number of a server in SCAN cursors, exclusive.
const NUMBERS: u16 = Cursor::SERVERS_MAX;

/// The slots of a Cluster, as far as requests and reports need them.
#[derive(Debug)]
pub(crate) struct SlotTable {
    /// The owner of each slot, by which requests are routed.
    owners: Box<[ServerId]>,
    /// Nodes that own slots; the owner of slot 0 is the first.
    servers: Vec<ServerId>,
    /// The node where messages are published and channels are subscribed to; one of `servers`.
    pub(crate) default_server: ServerId,
    /// The owners with their numbers in SCAN cursors.
    scan_order: Vec<(u16, ServerId)>,
    /// The numbers that this Cluster may use in SCAN cursors.
    numbers: Range<u16>,
    /// All nodes of the last answer, replicas included.
    pub(crate) members: Vec<ServerId>,
    /// Slots without an owner, in order. `owners` keeps the last owner of each: that node gets the
    /// requests, and refuses or redirects them.
    pub(crate) unserved: Vec<u16>,
    /// Whether a node reported `cluster_state:ok` in the last refresh, though slots may have no
    /// owner.
    pub(crate) is_ok: bool,
    /// Whether nodes have named the owners. Before that, the seeds own all slots.
    pub(crate) is_known: bool,
    /// Whether nodes are asked, or will be asked at once, for the owners of slots.
    pub(crate) is_refreshing: bool,
    /// A slot has changed its owner since hubs last looked at their channels.
    pub(crate) has_moved: bool,
}

/// Getters.
impl SlotTable {
    #[inline]
    pub(crate) fn owner_of(&self, key: &[u8]) -> ServerId {
        self.owners[usize::from(hash_slot(key))]
    }

    pub(crate) fn owner_of_slot(&self, slot: u16) -> ServerId {
        self.owners[usize::from(slot)]
    }

    /// The owner of each slot.
    pub(crate) fn owners(&self) -> &[ServerId] {
        &self.owners
    }

    /// Whether a node owns any slot.
    pub(crate) fn owns_slots(&self, server: ServerId) -> bool {
        self.owners.contains(&server)
    }

    /// The first slot of a node; slot 0 if the node owns none.
    pub(crate) fn first_slot_of(&self, server: ServerId) -> u16 {
        let mut owners = (0..SLOTS).zip(&self.owners);
        let first = owners.find(|(_, owner)| **owner == server);
        first.map_or(0, |(slot, _)| slot)
    }

    /// Nodes that own slots; the owner of slot 0 is the first.
    pub(crate) fn servers(&self) -> &[ServerId] {
        &self.servers
    }

    /// How many slots each node owns.
    pub(crate) fn slot_counts(&self) -> HashMap<ServerId, u32> {
        let mut counts: HashMap<ServerId, u32> = HashMap::new();
        counts.extend(self.members.iter().map(|server| (*server, 0)));
        for run in self.owners.chunk_by(|one, next| one == next) {
            *counts.entry(run[0]).or_default() += run.len() as u32;
        }
        for slot in &self.unserved {
            if let Some(count) = counts.get_mut(&self.owner_of_slot(*slot)) {
                *count -= 1;
            }
        }
        counts
    }

    /// The owners with their numbers in SCAN cursors, in the order of the numbers.
    pub(crate) fn scan_order(&self) -> &[(u16, ServerId)] {
        &self.scan_order
    }
}

/// Changes.
impl SlotTable {
    /// The table of a Cluster that no node has described. `seeds`: the nodes of the configuration.
    /// `numbers`: the numbers that this Cluster may use in SCAN cursors.
    pub(crate) fn new(seeds: Vec<ServerId>, numbers: Range<u16>) -> SlotTable {
        let first = seeds[0];
        let numbers = numbers.start..numbers.end.min(NUMBERS).max(numbers.start + 1);
        SlotTable {
            owners: vec![first; usize::from(SLOTS)].into_boxed_slice(),
            servers: seeds.clone(),
            default_server: first,
            scan_order: numbers.clone().zip(seeds.iter().copied()).collect(),
            numbers,
            members: seeds,
            unserved: Vec::new(),
            is_ok: false,
            is_known: false,
            is_refreshing: true,
            has_moved: false,
        }
    }

    /// Gives a slot to a node, and returns its old owner. The list of owners stays as it was.
    pub(crate) fn set_owner(&mut self, slot: u16, owner: ServerId) -> ServerId {
        let old = std::mem::replace(&mut self.owners[usize::from(slot)], owner);
        self.has_moved |= old != owner;
        old
    }

    /// Gives all slots to one node. The list of owners stays as it was.
    pub(crate) fn set_every_owner(&mut self, owner: ServerId) {
        self.owners.fill(owner);
        self.has_moved = true;
    }

    /// Lists the owners anew and gives them numbers for SCAN. `name_of`: the name of a node, which
    /// is equal in all processes.
    pub(crate) fn list_owners(&mut self, name_of: impl Fn(ServerId) -> String) {
        let mut seen = HashSet::new();
        self.servers.clear();
        let mut last = None;
        for owner in &self.owners {
            // Neighbouring slots mostly have the same owner.
            if last.replace(*owner) != Some(*owner) && seen.insert(*owner) {
                self.servers.push(*owner);
            }
        }
        let owners = self.servers.iter();
        let owners = owners.map(|server| (name_of(*server), *server)).collect();
        self.number(owners);
    }

    /// Gives the owners their numbers in SCAN cursors. The numbers depend only on the set of
    /// owners, not on earlier ones: a client may go on with its cursor at another worker or
    /// process, which saw the Cluster change in other steps.
    ///
    /// If an owner comes or goes, all owners get other numbers. Then an older cursor finds no
    /// server, and its SCAN starts the Cluster anew. It has to: the new owner's place in the order
    /// is not known to that cursor, so keys behind it might be missed.
    ///
    /// An old number that is in use again hides the change: with `n` owners, in `n` of 32,768
    /// cases.
    fn number(&mut self, mut owners: Vec<(String, ServerId)>) {
        owners.sort_unstable();
        let names: Vec<&str> = owners.iter().map(|(name, _)| &name[..]).collect();
        let all = Hash::Murmur.of(names.join(" ").as_bytes());
        let (from, count) = (self.numbers.start, self.numbers.len() as u32);
        let mut taken = HashSet::new();
        self.scan_order.clear();
        for (name, server) in owners {
            let first = Hash::Murmur.of(format!("{all} {name}").as_bytes()) % count;
            let mut numbers = (0..count).map(|more| from + ((first + more) % count) as u16);
            if let Some(number) = numbers.find(|number| taken.insert(*number)) {
                self.scan_order.push((number, server));
            }
        }
        self.scan_order.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of so many nodes, none of which owns slots yet.
    fn table_of(nodes: u16, numbers: Range<u16>) -> (SlotTable, Vec<ServerId>) {
        let ids: Vec<ServerId> = (0..nodes).map(ServerId).collect();
        (SlotTable::new(ids.clone(), numbers), ids)
    }

    fn name_of(server: ServerId) -> String {
        format!("node:{}", server.0 + 1)
    }

    /// Slots without an owner count for no node. A node without slots counts zero.
    #[test]
    fn unserved_slots_count_for_no_node() {
        let (mut table, ids) = table_of(3, 0..10);
        assert_eq!(table.set_owner(5, ids[1]), ids[0]);
        assert!(table.has_moved);
        table.has_moved = false;
        assert_eq!(table.set_owner(5, ids[1]), ids[1]);
        assert!(!table.has_moved);
        table.unserved = vec![0, 1, 5];
        let counts = table.slot_counts();
        let counts: Vec<u32> = ids.iter().map(|id| counts[id]).collect();
        assert_eq!(counts, [u32::from(SLOTS) - 3, 0, 0]);
        assert_eq!(table.first_slot_of(ids[1]), 5);
        assert!(table.owns_slots(ids[1]) && !table.owns_slots(ids[2]));
    }

    /// The owners are listed by their first slots, each once.
    #[test]
    fn owners_are_listed_by_their_first_slots() {
        let (mut table, ids) = table_of(3, 0..10);
        table.set_every_owner(ids[2]);
        table.set_owner(7, ids[0]);
        table.set_owner(9, ids[1]);
        table.list_owners(name_of);
        assert_eq!(table.servers(), [ids[2], ids[0], ids[1]]);
        assert_eq!(table.owner_of_slot(8), ids[2]);
    }

    /// Other Clusters have the numbers around the range.
    #[test]
    fn scan_numbers_of_nodes_are_those_of_their_cluster() {
        let (mut table, ids) = table_of(12, 7..17);
        // The last two nodes own nothing yet.
        for (slot, owner) in table.owners.iter_mut().enumerate() {
            *owner = ids[slot % 10];
        }
        table.list_owners(name_of);
        let numbers = |table: &SlotTable| -> Vec<u16> {
            let numbered = table.scan_order().iter();
            numbered.map(|(number, _)| *number).collect()
        };
        assert_eq!(numbers(&table), (7..17).collect::<Vec<_>>());
        table.owners.fill(ids[10]);
        table.list_owners(name_of);
        assert!((7..17).contains(&numbers(&table)[0]));
    }

    /// The numbers depend on the set of owners alone. While one owner differs, no old number is in
    /// use.
    #[test]
    fn scan_numbers_depend_on_the_owners_alone() {
        let (mut table, ids) = table_of(200, 0..u16::MAX);
        let numbered = |table: &SlotTable| table.scan_order().to_vec();
        let own = |table: &mut SlotTable, nodes: Range<usize>| {
            for (slot, owner) in table.owners.iter_mut().enumerate() {
                *owner = ids[nodes.start + slot % nodes.len()];
            }
            table.list_owners(name_of);
            assert_eq!(table.scan_order().len(), nodes.len());
        };
        own(&mut table, 0..3);
        let before = numbered(&table);
        // A replica takes over.
        own(&mut table, 1..4);
        let after = numbered(&table);
        let was_there = |(number, _): &(u16, ServerId)| before.iter().any(|(old, _)| old == number);
        assert!(!after.iter().any(was_there));
        own(&mut table, 0..200);
        assert!(numbered(&table).windows(2).all(|two| two[0].0 < two[1].0));
        own(&mut table, 0..3);
        assert_eq!(numbered(&table), before);
    }
}

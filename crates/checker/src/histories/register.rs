//! Whether the writes and reads of one key could have happened one after the other.
//!
//! Every value is written once, so each read names its write. The check is then one pass over
//! sorted intervals (P. B. Gibbons, E. Korach: Testing Shared Memories, SIAM Journal on Computing
//! 26(4), 1997). A write and the reads of its value are a *cluster*. Where one of them ended before
//! another began, the key held the value in between for sure: that is the *forward* zone of the
//! cluster. Where all of them overlap, one moment within the overlap is enough: its *backward*
//! zone.
//!
//! ```text
//!   write 7   |------|                              |--------------|   write 8
//!   read  7                |-----|            |----------|             read  8
//!   forward zone of 7  [===]                  backward zone of 8  [==]
//! ```
//!
//! There is an order exactly if no two forward zones overlap, no backward zone lies within a
//! forward one, and no read of a value ended before its write began.

use std::collections::{HashMap, HashSet};
use std::fmt;

/// One write or read of a key. Times are nanoseconds of one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// When the request was sent.
    pub start: u64,
    /// When the reply came; `u64::MAX`: there was none, so its effect is unknown.
    pub end: u64,
    /// The value written or read; [`UNWRITTEN`] is the value before the first write.
    pub value: u64,
    /// Whether it is a write.
    pub writes: bool,
}

/// The value of a key without any write.
pub const UNWRITTEN: u64 = 0;

/// Why there is no order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contradiction {
    /// A read gave a value that was never written, or only later.
    FromNowhere(u64),
    /// The key held both values at once: each was there before and after a moment of the other.
    Both(u64, u64),
    /// A client that had written or read the first value then read the second one, which is older.
    Back(u64, u64),
}

impl Contradiction {
    /// The values that contradict each other.
    pub fn values(self) -> Vec<u64> {
        match self {
            Contradiction::FromNowhere(value) => vec![value],
            Contradiction::Both(one, other) | Contradiction::Back(one, other) => vec![one, other],
        }
    }
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Contradiction::FromNowhere(value) => {
                write!(
                    f,
                    "value {value} was read, and no client had begun to write it"
                )
            }
            Contradiction::Both(one, other) => write!(
                f,
                "values {one} and {other} would have been there at the same time"
            ),
            Contradiction::Back(from, to) => write!(
                f,
                "behind value {from} the same client got value {to}, which was there before"
            ),
        }
    }
}

/// A write and the reads of its value.
struct ValueCluster {
    value: u64,
    written_from: Option<u64>,
    first_end: u64,
    last_start: u64,
    first_read_end: u64,
}

/// Looks for a contradiction in the operations on one key.
///
/// # Errors
/// The first contradiction.
pub fn check(operations: &[Operation]) -> Result<(), Contradiction> {
    let mut forward = Vec::new();
    let mut backward = Vec::new();
    for cluster in clusters(operations).into_values() {
        let value = cluster.value;
        if cluster
            .written_from
            .is_none_or(|from| cluster.first_read_end < from)
        {
            return Err(Contradiction::FromNowhere(value));
        }
        let (end, start) = (cluster.first_end, cluster.last_start);
        if end < start {
            forward.push((end, start, value));
        } else {
            backward.push((start, end, value));
        }
    }
    forward.sort_unstable();
    for pair in forward.windows(2) {
        let ((_, high, one), (low, _, other)) = (pair[0], pair[1]);
        if low < high {
            return Err(Contradiction::Both(one, other));
        }
    }
    for (low, high, value) in backward {
        let before = forward.partition_point(|zone| zone.0 < low);
        if let Some(around) = before.checked_sub(1).map(|index| forward[index])
            && high < around.1
        {
            return Err(Contradiction::Both(around.2, value));
        }
    }
    Ok(())
}

/// Looks for a client that saw a key go back to an older value. Requests of one write have one
/// time, so only their order tells that. `clients`: the operations of each client, in its order.
///
/// # Errors
/// The first contradiction.
pub fn check_order(clients: &[Vec<Operation>]) -> Result<(), Contradiction> {
    let writes = clients.iter().flatten().filter(|one| one.writes);
    let mut written: HashMap<u64, (u64, u64)> = writes
        .map(|one| (one.value, (one.start, one.end)))
        .collect();
    written.insert(UNWRITTEN, (0, 0));
    for client in clients {
        // A write without a reply shows nothing.
        let known = client.iter().filter(|one| one.end < u64::MAX);
        let mut seen: Vec<u64> = known.map(|one| one.value).collect();
        seen.dedup();
        let mut earlier = HashSet::new();
        for pair in seen.windows(2) {
            earlier.insert(pair[0]);
            let times = written.get(&pair[0]).zip(written.get(&pair[1]));
            let is_older = times.is_some_and(|((begun, _), (_, done))| done < begun);
            if is_older || earlier.contains(&pair[1]) {
                return Err(Contradiction::Back(pair[0], pair[1]));
            }
        }
    }
    Ok(())
}

fn clusters(operations: &[Operation]) -> HashMap<u64, ValueCluster> {
    let unwritten = Operation {
        start: 0,
        end: 0,
        value: UNWRITTEN,
        writes: true,
    };
    let mut clusters: HashMap<u64, ValueCluster> = HashMap::new();
    for operation in std::iter::once(&unwritten).chain(operations) {
        let value = operation.value;
        let cluster = clusters.entry(value).or_insert(ValueCluster {
            value,
            written_from: None,
            first_end: u64::MAX,
            last_start: 0,
            first_read_end: u64::MAX,
        });
        cluster.first_end = cluster.first_end.min(operation.end);
        cluster.last_start = cluster.last_start.max(operation.start);
        if operation.writes {
            cluster.written_from = Some(operation.start);
        } else {
            cluster.first_read_end = cluster.first_read_end.min(operation.end);
        }
    }
    // A write without a reply did not take effect, if no client has read it.
    clusters.retain(|_, cluster| cluster.first_end < u64::MAX);
    clusters
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn write(value: u64, start: u64, end: u64) -> Operation {
        Operation {
            start,
            end,
            value,
            writes: true,
        }
    }

    fn read(value: u64, start: u64, end: u64) -> Operation {
        Operation {
            writes: false,
            ..write(value, start, end)
        }
    }

    /// A history that one register can give is accepted.
    #[test]
    fn possible_history_is_accepted() {
        for history in [
            vec![],
            vec![read(0, 1, 2), write(7, 3, 4), read(7, 5, 6)],
            // Two readers during a write may see it or not, in an order that fits.
            vec![write(7, 1, 9), read(0, 2, 3), read(7, 4, 5), read(7, 6, 7)],
            // Overlapping writes took effect in either order.
            vec![write(7, 1, 5), write(8, 1, 5), read(8, 6, 7), read(8, 8, 9)],
            // A write without a reply took effect late.
            vec![write(7, 1, u64::MAX), read(0, 5, 6), read(7, 8, 9)],
            vec![write(7, 1, u64::MAX), read(0, 5, 6), read(0, 8, 9)],
        ] {
            assert_eq!(check(&history), Ok(()), "{history:?}");
        }
    }

    /// A history that no register can give is found.
    #[test]
    fn impossible_history_is_found() {
        use Contradiction::{Both, FromNowhere};
        for (history, why) in [
            (vec![read(7, 1, 2)], FromNowhere(7)),
            (vec![read(7, 1, 2), write(7, 3, 4)], FromNowhere(7)),
            // An old value after the reply to a new write: a cache without invalidation does that.
            (vec![write(7, 1, 2), read(0, 3, 4)], Both(0, 7)),
            (
                vec![write(7, 1, 2), write(8, 3, 4), read(7, 5, 6)],
                Both(7, 8),
            ),
            // New, then old.
            (
                vec![write(7, 1, 9), read(7, 2, 3), read(0, 4, 5)],
                Both(0, 7),
            ),
            // Two readers disagree on the order of two writes.
            (
                vec![
                    write(7, 1, 3),
                    write(8, 1, 3),
                    read(7, 4, 5),
                    read(8, 6, 7),
                    read(7, 8, 9),
                ],
                Both(8, 7),
            ),
        ] {
            assert_eq!(check(&history), Err(why), "{history:?}");
        }
    }

    #[test]
    fn for_one_client_a_key_never_runs_back() {
        use Contradiction::Back;
        let of = |own: Vec<Operation>, others: &[Operation]| {
            check_order(&[vec![own], others.iter().map(|one| vec![*one]).collect()].concat())
        };
        // All operations of one client were sent at once.
        let own = |seen: &[(bool, u64)]| -> Vec<Operation> {
            let each = seen.iter().enumerate();
            each.map(|(at, &(writes, value))| Operation {
                writes,
                ..write(value, 10, 20 + at as u64)
            })
            .collect()
        };
        let (writes, reads) = (true, false);
        let others = [write(7, 1, 2), write(8, 12, 15)];
        for seen in [
            own(&[(reads, 0), (writes, 1), (reads, 1), (writes, 2), (reads, 2)]),
            // Written by another client meanwhile.
            own(&[(writes, 1), (reads, 8), (writes, 2), (reads, 2)]),
            own(&[(reads, 7), (reads, 8), (reads, 8)]),
        ] {
            assert_eq!(of(seen.clone(), &others), Ok(()), "{seen:?}");
        }
        for (seen, why) in [
            (own(&[(writes, 1), (reads, 0)]), Back(1, 0)),
            (own(&[(writes, 1), (writes, 2), (reads, 1)]), Back(2, 1)),
            // Written by another client before.
            (own(&[(writes, 1), (reads, 7)]), Back(1, 7)),
            (own(&[(reads, 8), (reads, 7)]), Back(8, 7)),
            (own(&[(reads, 8), (writes, 1), (reads, 8)]), Back(1, 8)),
        ] {
            assert_eq!(of(seen.clone(), &others), Err(why), "{seen:?}");
        }
        // It may not have run.
        let lost = vec![write(1, 10, u64::MAX), read(7, 10, 20)];
        assert_eq!(of(lost, &others), Ok(()));
    }

    /// What clients of one register see: each operation takes effect at a moment between its start
    /// and its end.
    fn honest() -> impl Strategy<Value = Vec<Operation>> {
        let one = (any::<bool>(), 1u64..40, 1u64..40);
        proptest::collection::vec(one, 1..60).prop_map(|steps| {
            let mut held = UNWRITTEN;
            let mut history = Vec::new();
            for (index, (writes, before, behind)) in steps.into_iter().enumerate() {
                let moment = 100 + 10 * index as u64;
                if writes {
                    held = index as u64 + 1;
                }
                history.push(Operation {
                    start: moment - before,
                    end: moment + behind,
                    value: held,
                    writes,
                });
            }
            history
        })
    }

    proptest! {
        /// Every history that one register gives is accepted.
        #[test]
        fn every_history_of_one_register_is_accepted(history in honest()) {
            prop_assert_eq!(check(&history), Ok(()));
        }

        /// A read that returns an overwritten value, where the overwriting write was acknowledged
        /// before the read, is found.
        #[test]
        fn a_stale_read_is_found(history in honest(), which in any::<prop::sample::Index>()) {
            let writes: Vec<Operation> = history.iter().filter(|one| one.writes).copied().collect();
            let mut history = history;
            let chosen = which.index(history.len());
            let read = history[chosen];
            prop_assume!(!read.writes);
            let overwritten_by = |new: &&Operation| new.end < read.start;
            let Some(new) = writes.iter().rfind(overwritten_by) else {
                return Err(TestCaseError::reject("nothing was overwritten before it"));
            };
            // A value whose write ended before the new one began: no order puts it behind.
            let old = writes.iter().rfind(|old| old.end < new.start);
            history[chosen].value = old.map_or(UNWRITTEN, |old| old.value);
            prop_assert!(check(&history).is_err());
        }
    }
}

//! Whether what was written to and read from one key could have happened one after the other.
//!
//! Every value is written once, so each read names its write, and the question has an answer in one pass over
//! sorted intervals (P. B. Gibbons, E. Korach: Testing Shared Memories, SIAM Journal on Computing 26(4), 1997).
//! A write and the reads of its value are a *cluster*. Where one of them had ended before another began, the key
//! surely held the value in between: that is the cluster's *forward* zone. Where all of them overlap, one moment
//! within the overlap is enough: its *backward* zone.
//!
//! ```text
//!   write 7   |------|                              |--------------|   write 8
//!   read  7                |-----|            |----------|             read  8
//!   forward zone of 7  [===]                  backward zone of 8  [==]
//! ```
//!
//! There is an order exactly when no two forward zones overlap, no backward zone lies within a forward one, and
//! nobody read a value before its write began.

use std::collections::{HashMap, HashSet};
use std::fmt;

/// One write or read of a key. Times are nanoseconds of one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// When it was asked.
    pub start: u64,
    /// When it was answered; `u64::MAX`: whether and when it took effect, nobody said.
    pub end: u64,
    /// What was written or read; [`UNWRITTEN`] is what is there before the first write.
    pub value: u64,
    /// A write, else a read.
    pub writes: bool,
}

/// The value of a key that nobody has written.
pub const UNWRITTEN: u64 = 0;

/// Why there is no order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contradiction {
    /// A value was read that nobody wrote, or before its write began.
    FromNowhere(u64),
    /// The key surely held both at once: each was there before and behind a moment of the other.
    Both(u64, u64),
    /// Who had written or read the first got the second behind it, which had been written before the first.
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
                    "value {value} was read, and nobody had begun to write it"
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
struct Cluster {
    value: u64,
    written_from: Option<u64>,
    first_end: u64,
    last_start: u64,
    first_read_end: u64,
}

/// Looks for a contradiction in what was done to one key.
///
/// # Errors
/// The first one found.
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

/// Looks for a client that saw a key run back. What is asked in one write is asked at one time, so only its order tells that.
/// `clients`: what each wrote and read there, in the order in which it asked.
///
/// # Errors
/// The first one found.
pub fn check_order(clients: &[Vec<Operation>]) -> Result<(), Contradiction> {
    let writes = clients.iter().flatten().filter(|one| one.writes);
    let mut written: HashMap<u64, (u64, u64)> = writes
        .map(|one| (one.value, (one.start, one.end)))
        .collect();
    written.insert(UNWRITTEN, (0, 0));
    for client in clients {
        // A write of which nobody said whether it took effect shows nothing.
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

fn clusters(operations: &[Operation]) -> HashMap<u64, Cluster> {
    let unwritten = Operation {
        start: 0,
        end: 0,
        value: UNWRITTEN,
        writes: true,
    };
    let mut clusters: HashMap<u64, Cluster> = HashMap::new();
    for operation in std::iter::once(&unwritten).chain(operations) {
        let value = operation.value;
        let cluster = clusters.entry(value).or_insert(Cluster {
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
    // A write of which nobody knows whether it took effect did not, if nobody has seen it.
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

    #[test]
    fn what_could_have_happened_is_believed() {
        for history in [
            vec![],
            vec![read(0, 1, 2), write(7, 3, 4), read(7, 5, 6)],
            // Two readers during a write may see it or not, in an order that fits.
            vec![write(7, 1, 9), read(0, 2, 3), read(7, 4, 5), read(7, 6, 7)],
            // Writes that overlap took effect in either order.
            vec![write(7, 1, 5), write(8, 1, 5), read(8, 6, 7), read(8, 8, 9)],
            // Nobody said whether it was executed: it was, late.
            vec![write(7, 1, u64::MAX), read(0, 5, 6), read(7, 8, 9)],
            vec![write(7, 1, u64::MAX), read(0, 5, 6), read(0, 8, 9)],
        ] {
            assert_eq!(check(&history), Ok(()), "{history:?}");
        }
    }

    #[test]
    fn what_could_not_have_happened_is_found() {
        use Contradiction::{Both, FromNowhere};
        for (history, why) in [
            (vec![read(7, 1, 2)], FromNowhere(7)),
            (vec![read(7, 1, 2), write(7, 3, 4)], FromNowhere(7)),
            // An old value behind the answer to a new one: what a cache does that is not told.
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
            // Two readers disagree on which write was first.
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
        // All of what is its own was asked at once.
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
            // Somebody else's, written meanwhile.
            own(&[(writes, 1), (reads, 8), (writes, 2), (reads, 2)]),
            own(&[(reads, 7), (reads, 8), (reads, 8)]),
        ] {
            assert_eq!(of(seen.clone(), &others), Ok(()), "{seen:?}");
        }
        for (seen, why) in [
            (own(&[(writes, 1), (reads, 0)]), Back(1, 0)),
            (own(&[(writes, 1), (writes, 2), (reads, 1)]), Back(2, 1)),
            // Somebody else's, written before.
            (own(&[(writes, 1), (reads, 7)]), Back(1, 7)),
            (own(&[(reads, 8), (reads, 7)]), Back(8, 7)),
            (own(&[(reads, 8), (writes, 1), (reads, 8)]), Back(1, 8)),
        ] {
            assert_eq!(of(seen.clone(), &others), Err(why), "{seen:?}");
        }
        // It may not have been executed.
        let lost = vec![write(1, 10, u64::MAX), read(7, 10, 20)];
        assert_eq!(of(lost, &others), Ok(()));
    }

    /// What clients of one register see: each operation takes effect at a moment between its start and its end.
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
        #[test]
        fn whatever_one_register_answers_is_believed(history in honest()) {
            prop_assert_eq!(check(&history), Ok(()));
        }

        /// One read is answered with what had been overwritten, and that answered, before it was asked.
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
            // Whose write was over before the new one began: there is no order in which it comes behind it.
            let old = writes.iter().rfind(|old| old.end < new.start);
            history[chosen].value = old.map_or(UNWRITTEN, |old| old.value);
            prop_assert!(check(&history).is_err());
        }
    }
}

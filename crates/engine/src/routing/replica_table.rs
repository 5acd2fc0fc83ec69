//! Which of the servers that can be read is read by whom.

use crate::pool::ServerId;
use crate::settings::{ReadPolicy, Reads};
use crate::slots::Key;

/// Seats of a table: with so many the smallest share is a 64th.
const SEATS: usize = 64;
/// For so many more or fewer nobody changes seats.
const SHARE_SLACK: usize = SEATS / 8;
/// Round trips that differ by less than this are equal, microseconds: what a busy moment adds to any of them.
const SLACK_US: u64 = 1_000;
/// A server that is slower by any factor gets this part of what the fastest gets, at the least.
const SHARE_MIN: f64 = 0.25;

/// Whom sessions read, by their seats.
pub(super) type Seats = [ServerId; SEATS];

/// Neighbours sit far from each other, so any few sessions spread as evenly as many (the golden ratio's multiples, Knuth, TAOCP 6.4); so
/// do those that take the same place one after the other.
pub(super) fn seat_of(session: Key) -> usize {
    const GOLDEN: u32 = 0x9E37_79B9;
    let number = session.index.wrapping_add(session.generation);
    (number.wrapping_mul(GOLDEN) >> (u32::BITS - SEATS.ilog2())) as usize
}

/// One that can be read, as shares are dealt.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) server: ServerId,
    pub(super) zone: Option<String>,
    pub(super) weight: u32,
    pub(super) latency_us: u64,
}

/// Of those that can be read, the ones that shall be. Who has seats keeps them a while longer than it would get them: else those at
/// the border would come and go with every look at them.
pub(super) fn choose(
    mut all: Vec<Candidate>,
    settings: &Reads,
    before: Option<&Seats>,
) -> Vec<Candidate> {
    let is_here = |one: &Candidate| settings.zone.is_some() && one.zone == settings.zone;
    if all.iter().any(is_here) {
        all.retain(is_here);
    }
    if settings.policy == ReadPolicy::Nearest {
        let least = all.iter().map(|one| one.latency_us).min().unwrap_or(0);
        let near_us = 2 * least + SLACK_US;
        let has_seats = |one: &Candidate| before.is_some_and(|seats| seats.contains(&one.server));
        all.retain(|one| {
            one.latency_us <= near_us || has_seats(one) && one.latency_us <= 2 * near_us
        });
    }
    all
}

/// The shares of those that can be read now. Nobody changes seats who has no need to: at another server a session might see again what it
/// has seen newer. `None`: there is nobody.
pub(super) fn seat_again(candidates: &[Candidate], before: Option<&Seats>) -> Option<Box<Seats>> {
    let fresh = seat(candidates)?;
    let Some(before) = before else {
        return Some(fresh);
    };
    let count = |seats: &Seats, server| seats.iter().filter(|its| **its == server).count();
    // More than it should have, if that is above zero. Who is not read any more should have none.
    let surplus =
        |seats: &Seats, server| count(seats, server) as i32 - count(&fresh, server) as i32;
    let is_near =
        |server: &ServerId| surplus(before, *server).unsigned_abs() as usize <= SHARE_SLACK;
    let is_new = |server: &ServerId| !before.contains(server);
    let is_gone = |server: &ServerId| !fresh.contains(server);
    if !before.iter().any(is_gone) && !fresh.iter().any(is_new) && fresh.iter().all(is_near) {
        return Some(Box::new(*before));
    }
    let mut seats = Box::new(*before);
    for seat in 0..SEATS {
        let lacks = |one: &&Candidate| surplus(&seats, one.server) < 0;
        if surplus(&seats, seats[seat]) > 0
            && let Some(one) = candidates.iter().find(lacks)
        {
            seats[seat] = one.server;
        }
    }
    Some(seats)
}

/// Gives each its share of the seats: by its weight, and less to the slower. `None`: there is nobody.
fn seat(candidates: &[Candidate]) -> Option<Box<Seats>> {
    let least = candidates.iter().map(|one| one.latency_us).min()?;
    let share = |one: &Candidate| {
        let speed = (least + SLACK_US) as f64 / (one.latency_us + SLACK_US) as f64;
        f64::from(one.weight) * speed.max(SHARE_MIN)
    };
    let total: f64 = candidates.iter().map(share).sum();
    let mut behind = 0.0;
    let mut ends = candidates.iter().map(|one| {
        behind += share(one) / total;
        (one.server, behind)
    });
    let (mut server, mut end) = ends.next()?;
    Some(Box::new(std::array::from_fn(|at| {
        let middle = (at as f64 + 0.5) / SEATS as f64;
        while middle > end
            && let Some(next) = ends.next()
        {
            (server, end) = next;
        }
        server
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(server: u16, zone: &str, weight: u32, latency_us: u64) -> Candidate {
        Candidate {
            server: ServerId(server),
            zone: (!zone.is_empty()).then(|| zone.to_owned()),
            weight,
            latency_us,
        }
    }

    fn counts(candidates: &[Candidate]) -> Vec<(u16, usize)> {
        let seats = seat(candidates).expect("there is somebody");
        let count = |server| seats.iter().filter(|its| **its == server).count();
        candidates
            .iter()
            .map(|one| (one.server.0, count(one.server)))
            .collect()
    }

    #[test]
    fn seats_are_dealt_by_weight() {
        let all = [one(1, "", 1, 100), one(2, "", 3, 100)];
        assert_eq!(counts(&all), [(1, 16), (2, 48)]);
        assert_eq!(counts(&all[..1]), [(1, 64)]);
        assert!(seat(&[]).is_none());
    }

    #[test]
    fn nobody_changes_seats_without_need() {
        let all = [1, 2, 3].map(|server| one(server, "", 1, 100));
        let [one, other, third] = all.clone();
        let changed = |from: &Seats, to: &Seats| {
            let changed = (0..SEATS).filter(|seat| from[*seat] != to[*seat]);
            changed.map(|seat| from[seat].0).collect::<Vec<_>>()
        };
        let begun = seat(&all).expect("there is somebody");
        // One goes: who read there reads elsewhere, and nobody else.
        let without = seat_again(&all[1..], Some(&begun)).expect("there is somebody");
        let moved = changed(&begun, &without);
        assert!(
            (21..=22).contains(&moved.len()) && moved.iter().all(|from| *from == 1),
            "{moved:?}"
        );
        assert_eq!(counts_of(&without, [2, 3]), [32, 32]);
        // It is back: a third of the others' comes to it.
        let again = seat_again(&all, Some(&without)).expect("there is somebody");
        let moved = changed(&without, &again);
        assert!((21..=22).contains(&moved.len()), "{moved:?}");
        assert!(
            counts_of(&again, [1, 2, 3])
                .iter()
                .all(|count| (21..=22).contains(count))
        );
        // A bit slower or faster is no reason, much is one.
        let slower = |latency_us| Candidate {
            latency_us,
            ..third.clone()
        };
        let same = seat_again(&[one.clone(), other.clone(), slower(700)], Some(&begun));
        assert_eq!(same.as_ref(), Some(&begun));
        let much =
            seat_again(&[one, other, slower(3_000)], Some(&begun)).expect("there is somebody");
        assert!(changed(&begun, &much).iter().all(|from| *from == 3));
        assert!(counts_of(&much, [3])[0] < 12);
        assert!(seat_again(&[], Some(&begun)).is_none());
        // Who comes gets seats, however few.
        let few = [
            Candidate {
                weight: 60,
                ..all[0].clone()
            },
            all[1].clone(),
        ];
        let begun = seat(&few[..1]).expect("there is somebody");
        let both = seat_again(&few, Some(&begun)).expect("there is somebody");
        assert_eq!(counts_of(&both, [1, 2]), [63, 1]);
    }

    fn counts_of<const N: usize>(seats: &Seats, servers: [u16; N]) -> [usize; N] {
        servers.map(|server| seats.iter().filter(|its| its.0 == server).count())
    }

    #[test]
    fn the_slower_gets_less_and_never_nothing() {
        let all = [one(1, "", 1, 200), one(2, "", 1, 2_600)];
        // 1,200 of 3,600 microseconds.
        assert_eq!(counts(&all), [(1, 48), (2, 16)]);
        let all = [one(1, "", 1, 200), one(2, "", 1, 1_000_000)];
        assert_eq!(counts(&all), [(1, 51), (2, 13)]);
        // What any moment adds makes no difference that matters.
        let all = [one(1, "", 1, 100), one(2, "", 1, 160)];
        assert_eq!(counts(&all), [(1, 33), (2, 31)]);
    }

    fn chosen(all: Vec<Candidate>, reads: &Reads) -> Vec<u16> {
        let chosen = choose(all, reads, None);
        chosen.iter().map(|one| one.server.0).collect()
    }

    #[test]
    fn the_zone_comes_first_if_anybody_is_there() {
        let reads = Reads {
            policy: ReadPolicy::PreferReplica,
            zone: Some("a".into()),
            ..Reads::default()
        };
        let chosen = |all| chosen(all, &reads);
        assert_eq!(chosen(vec![one(1, "b", 1, 1), one(2, "a", 1, 9_000)]), [2]);
        assert_eq!(
            chosen(vec![one(1, "b", 1, 1), one(2, "", 1, 9_000)]),
            [1, 2]
        );
    }

    #[test]
    fn who_is_far_away_is_not_the_nearest() {
        let reads = Reads {
            policy: ReadPolicy::Nearest,
            ..Reads::default()
        };
        let chosen = |all| chosen(all, &reads);
        let all = vec![
            one(1, "", 1, 300),
            one(2, "", 1, 900),
            one(3, "", 1, 30_000),
        ];
        assert_eq!(chosen(all), [1, 2]);
    }

    #[test]
    fn who_is_at_the_border_does_not_come_and_go() {
        let reads = Reads {
            policy: ReadPolicy::Nearest,
            ..Reads::default()
        };
        let mut seats = None;
        let mut read_at = |latency_us| {
            let all = vec![one(1, "", 1, 300), one(2, "", 1, latency_us)];
            let chosen = choose(all, &reads, seats.as_deref());
            seats = seat_again(&chosen, seats.as_deref());
            chosen.len()
        };
        // Up to 1,600 µs it is as near as the other one.
        assert_eq!([1_700, 1_500, 1_700, 3_100].map(&mut read_at), [1, 2, 2, 2]);
        assert_eq!([3_300, 1_700, 1_500].map(&mut read_at), [1, 1, 2]);
    }

    #[test]
    fn neighbours_sit_apart() {
        let mut taken = [0; SEATS];
        for index in 0..SEATS as u32 {
            taken[seat_of(Key {
                index,
                generation: 1,
            })] += 1;
        }
        assert!(
            taken.iter().all(|count| (0..=2).contains(count)),
            "{taken:?}"
        );
        let few = 0..10;
        let below = few.filter(|index| {
            seat_of(Key {
                index: *index,
                generation: 1,
            }) < SEATS / 2
        });
        assert!((4..=6).contains(&below.count()));
        // Each opens a connection for one request: its place is taken anew all the time.
        let one_after_the_other = (0..10).filter(|turn| {
            seat_of(Key {
                index: 0,
                generation: 2 * turn + 1,
            }) < SEATS / 2
        });
        assert!((4..=6).contains(&one_after_the_other.count()));
    }
}

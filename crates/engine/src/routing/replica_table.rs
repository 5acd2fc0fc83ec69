//! Which server a session reads at: seats are divided among the servers by weight and speed.

use crate::base::handle::SessionId;
use crate::base::settings::{ReadPolicy, Reads};
use crate::routing::pool::ServerId;

/// Seats of a table. The smallest share of a server is one of them.
pub(crate) const SEATS: usize = 64;
/// A share may differ from its aim by this many seats before seats move. It stays so far off for as
/// long as the server is as quick as then, so this is also the error of a weight.
pub(crate) const SHARE_SLACK: usize = SEATS / 16;
/// Round trips that differ by less than this are equal, microseconds: any moment of load adds as
/// much.
pub(crate) const SLACK_US: u64 = 1_000;
/// The least speed factor of a slow server's share; the fastest server has 1.
pub(crate) const SHARE_MIN: f64 = 0.25;

/// No replica can be read, and the policy allows only replicas.
#[derive(Debug)]
pub(crate) struct NoReader;

/// The server of each seat.
pub(crate) type Seats = [ServerId; SEATS];

/// The table of a pool with replicas that may be read: the server at which each session reads the
/// keys of an owner. Discovery writes it.
#[derive(Debug)]
pub(crate) struct ReplicaTable {
    pub(crate) settings: Reads,
    /// The seats of the sessions of each owner, by the index of the owner.
    seats: Vec<Option<Box<Seats>>>,
    /// How many servers have seats, or are owners without a table.
    count: usize,
    /// The replicas that have not reported their role yet, each with its owner.
    unheard: Vec<(ServerId, ServerId)>,
}

impl ReplicaTable {
    /// `None`: the policy reads at the owners only.
    pub(crate) fn new(settings: &Reads) -> Option<Box<ReplicaTable>> {
        (settings.policy != ReadPolicy::Primary).then(|| {
            Box::new(ReplicaTable {
                settings: settings.clone(),
                seats: Vec::new(),
                count: 0,
                unheard: Vec::new(),
            })
        })
    }

    /// The server at which a session reads the keys of an owner.
    #[inline]
    pub(crate) fn instead_of(
        &self,
        owner: ServerId,
        session: SessionId,
    ) -> Result<ServerId, NoReader> {
        match self.seats.get(usize::from(owner.0)) {
            Some(Some(seats)) => Ok(seats[seat_of(session)]),
            _ if self.settings.policy == ReadPolicy::Replica => Err(NoReader),
            _ => Ok(owner),
        }
    }

    /// How many servers the sessions of the pool read at.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The seats of an owner's sessions, if any reads elsewhere.
    pub(crate) fn seats_of(&self, owner: ServerId) -> Option<&Seats> {
        let seats = self.seats.get(usize::from(owner.0));
        seats.and_then(Option::as_deref)
    }

    /// How many seats a server has.
    pub(crate) fn seats_at(&self, server: ServerId) -> usize {
        let seats = self.seats.iter().flatten();
        let its = seats.flat_map(|seats| seats.iter().filter(|seat| **seat == server));
        its.count()
    }

    /// Sets the seats of all owners, by their indices, and how many servers are read.
    pub(crate) fn set_seats(&mut self, seats: Vec<Option<Box<Seats>>>, count: usize) {
        (self.seats, self.count) = (seats, count);
    }

    /// Whether the policy treats owners like replicas.
    pub(crate) fn reads_owners(&self) -> bool {
        self.settings.policy == ReadPolicy::Nearest
    }

    /// Whether all sessions read their own writes, and how long they do after a write,
    /// milliseconds.
    pub(crate) fn own_writes(&self) -> (bool, u32) {
        (self.settings.all_own_writes, self.settings.own_writes_ms)
    }

    /// The replicas of an owner that have not reported their role yet.
    pub(crate) fn unheard_of(&self, owner: ServerId) -> impl Iterator<Item = ServerId> {
        let its = self.unheard.iter().filter(move |(_, of)| *of == owner);
        its.map(|(replica, _)| *replica)
    }

    /// Sets the replicas that have not reported their role yet, each with its owner.
    pub(crate) fn set_unheard(&mut self, unheard: Vec<(ServerId, ServerId)>) {
        self.unheard = unheard;
    }
}

/// The seat of a session. Multiples of the golden ratio (Knuth, TAOCP 6.4) put neighbours far
/// apart, so few sessions spread as evenly as many. Sessions that take one index after another
/// spread as well.
pub(crate) fn seat_of(session: SessionId) -> usize {
    const GOLDEN: u32 = 0x9E37_79B9;
    let number = session.index.wrapping_add(session.generation);
    (number.wrapping_mul(GOLDEN) >> (u32::BITS - SEATS.ilog2())) as usize
}

/// A server that can be read, with all that decides its share.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) server: ServerId,
    pub(crate) zone: Option<String>,
    pub(crate) weight: u32,
    pub(crate) latency_us: u64,
}

/// The candidates that are read: those of our zone if there are any, and of these the near ones, if
/// the policy asks for that. A server that has seats keeps them up to twice the distance at which
/// it would get them. So a server at the border does not come and go.
pub(crate) fn choose(
    mut all: Vec<Candidate>,
    settings: &Reads,
    before: Option<&Seats>,
) -> Vec<Candidate> {
    let is_in_zone = |one: &Candidate| settings.zone.is_some() && one.zone == settings.zone;
    if all.iter().any(is_in_zone) {
        all.retain(is_in_zone);
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

/// The seats for these candidates. As few seats as possible move: at another server a session may
/// see older data than it has seen. `None`: there is no candidate.
pub(crate) fn seat_again(candidates: &[Candidate], before: Option<&Seats>) -> Option<Box<Seats>> {
    let fresh = seat(candidates)?;
    let Some(before) = before else {
        return Some(fresh);
    };
    let count = |seats: &Seats, server| seats.iter().filter(|seat| **seat == server).count();
    // The seats that a server has above its new share; below zero if it lacks some. A server that
    // is not read any more has a share of zero.
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

/// Divides the seats by weight and speed. `None`: there is no candidate.
pub(crate) fn seat(candidates: &[Candidate]) -> Option<Box<Seats>> {
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
        let seats = seat(candidates).expect("there is a candidate");
        let count = |server| seats.iter().filter(|seat| **seat == server).count();
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
    fn seats_move_only_if_shares_change() {
        let all = [1, 2, 3].map(|server| one(server, "", 1, 100));
        let [one, other, third] = all.clone();
        let changed = |from: &Seats, to: &Seats| {
            let changed = (0..SEATS).filter(|seat| from[*seat] != to[*seat]);
            changed.map(|seat| from[seat].0).collect::<Vec<_>>()
        };
        let begun = seat(&all).expect("there is a candidate");
        // A server goes: only its own sessions move.
        let without = seat_again(&all[1..], Some(&begun)).expect("there is a candidate");
        let moved = changed(&begun, &without);
        assert!(
            (21..=22).contains(&moved.len()) && moved.iter().all(|from| *from == 1),
            "{moved:?}"
        );
        assert_eq!(counts_of(&without, [2, 3]), [32, 32]);
        // The server is back: a third of the other servers' seats move to it.
        let again = seat_again(&all, Some(&without)).expect("there is a candidate");
        let moved = changed(&without, &again);
        assert!((21..=22).contains(&moved.len()), "{moved:?}");
        assert!(
            counts_of(&again, [1, 2, 3])
                .iter()
                .all(|count| (21..=22).contains(count))
        );
        // A small change of speed moves no seat, a large one does.
        let slower = |latency_us| Candidate {
            latency_us,
            ..third.clone()
        };
        let same = seat_again(&[one.clone(), other.clone(), slower(400)], Some(&begun));
        assert_eq!(same.as_ref(), Some(&begun));
        let much =
            seat_again(&[one, other, slower(3_000)], Some(&begun)).expect("there is a candidate");
        assert!(changed(&begun, &much).iter().all(|from| *from == 3));
        assert!(counts_of(&much, [3])[0] < 12);
        assert!(seat_again(&[], Some(&begun)).is_none());
        // A new server gets seats, however small its share.
        let few = [
            Candidate {
                weight: 60,
                ..all[0].clone()
            },
            all[1].clone(),
        ];
        let begun = seat(&few[..1]).expect("there is a candidate");
        let both = seat_again(&few, Some(&begun)).expect("there is a candidate");
        assert_eq!(counts_of(&both, [1, 2]), [63, 1]);
    }

    fn counts_of<const N: usize>(seats: &Seats, servers: [u16; N]) -> [usize; N] {
        servers.map(|server| seats.iter().filter(|seat| seat.0 == server).count())
    }

    #[test]
    fn slower_server_gets_a_smaller_share_above_zero() {
        let all = [one(1, "", 1, 200), one(2, "", 1, 2_600)];
        // 1,200 of 3,600 microseconds.
        assert_eq!(counts(&all), [(1, 48), (2, 16)]);
        let all = [one(1, "", 1, 200), one(2, "", 1, 1_000_000)];
        assert_eq!(counts(&all), [(1, 51), (2, 13)]);
        // A small difference of speed hardly counts.
        let all = [one(1, "", 1, 100), one(2, "", 1, 160)];
        assert_eq!(counts(&all), [(1, 33), (2, 31)]);
    }

    fn chosen(all: Vec<Candidate>, reads: &Reads) -> Vec<u16> {
        let chosen = choose(all, reads, None);
        chosen.iter().map(|one| one.server.0).collect()
    }

    #[test]
    fn servers_of_the_zone_come_first() {
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
    fn distant_server_is_not_chosen_as_nearest() {
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
    fn server_at_the_border_keeps_its_seats() {
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
        // Up to 1,600 µs the second server counts as near.
        assert_eq!([1_700, 1_500, 1_700, 3_100].map(&mut read_at), [1, 2, 2, 2]);
        assert_eq!([3_300, 1_700, 1_500].map(&mut read_at), [1, 1, 2]);
    }

    #[test]
    fn neighbouring_sessions_spread_over_the_seats() {
        let mut taken = [0; SEATS];
        for index in 0..SEATS as u32 {
            taken[seat_of(SessionId {
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
            seat_of(SessionId {
                index: *index,
                generation: 1,
            }) < SEATS / 2
        });
        assert!((4..=6).contains(&below.count()));
        // Sessions that connect for one request each take the same index again and again.
        let one_after_the_other = (0..10).filter(|turn| {
            seat_of(SessionId {
                index: 0,
                generation: 2 * turn + 1,
            }) < SEATS / 2
        });
        assert!((4..=6).contains(&one_after_the_other.count()));
    }
}

//! The server at which a session reads: read shares are divided among servers by weight and speed.

use crate::base::handle::SessionId;
use crate::base::settings::{ReadPolicy, Reads};
use crate::routing::pool::ServerId;

/// The read shares of a table. A server that is read has at least one.
pub(crate) const READ_SHARES: usize = 64;
/// A server may have this many read shares too many or too few before any move. It keeps them for
/// as long as it is as quick as then, so this is also the error of a weight.
pub(crate) const READ_SHARE_SLACK: usize = READ_SHARES / 16;
/// Round trips that differ by less than this are equal, microseconds: any moment of load adds as
/// much.
pub(crate) const SLACK_US: u64 = 1_000;
/// The least factor for the speed of a slow server. The fastest server has 1.
pub(crate) const SPEED_FACTOR_MIN: f64 = 0.25;

/// No replica can be read, and the policy allows only replicas.
#[derive(Debug)]
pub(crate) struct NoReader;

/// The server of each read share.
pub(crate) type ReadShares = [ServerId; READ_SHARES];

/// The table of a pool with replicas that may be read: the server at which each session reads the
/// keys of an owner. Discovery writes it.
#[derive(Debug)]
pub(crate) struct ReplicaTable {
    pub(crate) settings: Reads,
    /// The read shares of each owner, by the index of the owner.
    shares: Vec<Option<Box<ReadShares>>>,
    /// How many servers have read shares, or are owners without a table.
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
                shares: Vec::new(),
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
        match self.shares.get(usize::from(owner.0)) {
            Some(Some(shares)) => Ok(shares[read_share_of(session)]),
            _ if self.settings.policy == ReadPolicy::Replica => Err(NoReader),
            _ => Ok(owner),
        }
    }

    /// How many servers the sessions of the pool read at.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The read shares of an owner, if any session reads elsewhere.
    pub(crate) fn read_shares_of(&self, owner: ServerId) -> Option<&ReadShares> {
        let shares = self.shares.get(usize::from(owner.0));
        shares.and_then(Option::as_deref)
    }

    /// How many read shares a server has.
    pub(crate) fn read_share_count(&self, server: ServerId) -> usize {
        let shares = self.shares.iter().flatten();
        let its = shares.flat_map(|shares| shares.iter().filter(|share| **share == server));
        its.count()
    }

    /// Sets the read shares of all owners, by their indices, and how many servers are read.
    pub(crate) fn set_read_shares(&mut self, shares: Vec<Option<Box<ReadShares>>>, count: usize) {
        (self.shares, self.count) = (shares, count);
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

/// The read share of a session. Multiples of the golden ratio (Knuth, TAOCP 6.4) put neighbours far
/// apart, so few sessions spread as evenly as many. Sessions that take one index after another
/// spread as well.
pub(crate) fn read_share_of(session: SessionId) -> usize {
    const GOLDEN: u32 = 0x9E37_79B9;
    let number = session.index.wrapping_add(session.generation);
    (number.wrapping_mul(GOLDEN) >> (u32::BITS - READ_SHARES.ilog2())) as usize
}

/// A server that can be read, with all that decides how many read shares it gets.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) server: ServerId,
    pub(crate) zone: Option<String>,
    pub(crate) weight: u32,
    pub(crate) latency_us: u64,
}

/// The candidates that are read: those of our zone if there are any, and of these the near ones, if
/// the policy asks for that. A server that has read shares keeps them up to twice the distance at
/// which it would get them. So a server at the border does not come and go.
pub(crate) fn choose(
    mut all: Vec<Candidate>,
    settings: &Reads,
    before: Option<&ReadShares>,
) -> Vec<Candidate> {
    let is_in_zone = |one: &Candidate| settings.zone.is_some() && one.zone == settings.zone;
    if all.iter().any(is_in_zone) {
        all.retain(is_in_zone);
    }
    if settings.policy == ReadPolicy::Nearest {
        let least = all.iter().map(|one| one.latency_us).min().unwrap_or(0);
        let near_us = 2 * least + SLACK_US;
        let has_read_shares =
            |one: &Candidate| before.is_some_and(|shares| shares.contains(&one.server));
        all.retain(|one| {
            one.latency_us <= near_us || has_read_shares(one) && one.latency_us <= 2 * near_us
        });
    }
    all
}

/// The read shares for these candidates. As few as possible move: at another server a session may
/// see older data than it has seen. `None`: there is no candidate.
pub(crate) fn deal_again(
    candidates: &[Candidate],
    before: Option<&ReadShares>,
) -> Option<Box<ReadShares>> {
    let fresh = deal(candidates)?;
    let Some(before) = before else {
        return Some(fresh);
    };
    let count =
        |shares: &ReadShares, server| shares.iter().filter(|share| **share == server).count();
    // The read shares that a server has above its new number; below zero if it lacks some. The
    // number of a server that is not read any more is zero.
    let surplus =
        |shares: &ReadShares, server| count(shares, server) as i32 - count(&fresh, server) as i32;
    let is_near =
        |server: &ServerId| surplus(before, *server).unsigned_abs() as usize <= READ_SHARE_SLACK;
    let is_new = |server: &ServerId| !before.contains(server);
    let is_gone = |server: &ServerId| !fresh.contains(server);
    if !before.iter().any(is_gone) && !fresh.iter().any(is_new) && fresh.iter().all(is_near) {
        return Some(Box::new(*before));
    }
    let mut shares = Box::new(*before);
    for share in 0..READ_SHARES {
        let lacks = |one: &&Candidate| surplus(&shares, one.server) < 0;
        if surplus(&shares, shares[share]) > 0
            && let Some(one) = candidates.iter().find(lacks)
        {
            shares[share] = one.server;
        }
    }
    Some(shares)
}

/// Divides the read shares by weight and speed. `None`: there is no candidate.
pub(crate) fn deal(candidates: &[Candidate]) -> Option<Box<ReadShares>> {
    let least = candidates.iter().map(|one| one.latency_us).min()?;
    let factor = |one: &Candidate| {
        let speed = (least + SLACK_US) as f64 / (one.latency_us + SLACK_US) as f64;
        f64::from(one.weight) * speed.max(SPEED_FACTOR_MIN)
    };
    let total: f64 = candidates.iter().map(factor).sum();
    let mut behind = 0.0;
    let mut ends = candidates.iter().map(|one| {
        behind += factor(one) / total;
        (one.server, behind)
    });
    let (mut server, mut end) = ends.next()?;
    Some(Box::new(std::array::from_fn(|at| {
        let middle = (at as f64 + 0.5) / READ_SHARES as f64;
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
        let shares = deal(candidates).expect("there is a candidate");
        let count = |server| shares.iter().filter(|share| **share == server).count();
        candidates
            .iter()
            .map(|one| (one.server.0, count(one.server)))
            .collect()
    }

    #[test]
    fn read_shares_are_dealt_by_weight() {
        let all = [one(1, "", 1, 100), one(2, "", 3, 100)];
        assert_eq!(counts(&all), [(1, 16), (2, 48)]);
        assert_eq!(counts(&all[..1]), [(1, 64)]);
        assert!(deal(&[]).is_none());
    }

    #[test]
    fn read_shares_move_only_if_servers_change() {
        let all = [1, 2, 3].map(|server| one(server, "", 1, 100));
        let [one, other, third] = all.clone();
        let changed = |from: &ReadShares, to: &ReadShares| {
            let changed = (0..READ_SHARES).filter(|share| from[*share] != to[*share]);
            changed.map(|share| from[share].0).collect::<Vec<_>>()
        };
        let begun = deal(&all).expect("there is a candidate");
        // A server goes: only its own sessions move.
        let without = deal_again(&all[1..], Some(&begun)).expect("there is a candidate");
        let moved = changed(&begun, &without);
        assert!(
            (21..=22).contains(&moved.len()) && moved.iter().all(|from| *from == 1),
            "{moved:?}"
        );
        assert_eq!(counts_of(&without, [2, 3]), [32, 32]);
        // The server is back: a third of the other servers' read shares move to it.
        let again = deal_again(&all, Some(&without)).expect("there is a candidate");
        let moved = changed(&without, &again);
        assert!((21..=22).contains(&moved.len()), "{moved:?}");
        assert!(
            counts_of(&again, [1, 2, 3])
                .iter()
                .all(|count| (21..=22).contains(count))
        );
        // A small change of speed moves no read share, a large one does.
        let slower = |latency_us| Candidate {
            latency_us,
            ..third.clone()
        };
        let same = deal_again(&[one.clone(), other.clone(), slower(400)], Some(&begun));
        assert_eq!(same.as_ref(), Some(&begun));
        let much =
            deal_again(&[one, other, slower(3_000)], Some(&begun)).expect("there is a candidate");
        assert!(changed(&begun, &much).iter().all(|from| *from == 3));
        assert!(counts_of(&much, [3])[0] < 12);
        assert!(deal_again(&[], Some(&begun)).is_none());
        // A new server gets a read share, however small its weight.
        let few = [
            Candidate {
                weight: 60,
                ..all[0].clone()
            },
            all[1].clone(),
        ];
        let begun = deal(&few[..1]).expect("there is a candidate");
        let both = deal_again(&few, Some(&begun)).expect("there is a candidate");
        assert_eq!(counts_of(&both, [1, 2]), [63, 1]);
    }

    fn counts_of<const N: usize>(shares: &ReadShares, servers: [u16; N]) -> [usize; N] {
        servers.map(|server| shares.iter().filter(|share| share.0 == server).count())
    }

    #[test]
    fn slower_server_gets_fewer_read_shares_but_some() {
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
    fn server_at_the_border_keeps_its_read_shares() {
        let reads = Reads {
            policy: ReadPolicy::Nearest,
            ..Reads::default()
        };
        let mut shares = None;
        let mut read_at = |latency_us| {
            let all = vec![one(1, "", 1, 300), one(2, "", 1, latency_us)];
            let chosen = choose(all, &reads, shares.as_deref());
            shares = deal_again(&chosen, shares.as_deref());
            chosen.len()
        };
        // Up to 1,600 µs the second server counts as near.
        assert_eq!([1_700, 1_500, 1_700, 3_100].map(&mut read_at), [1, 2, 2, 2]);
        assert_eq!([3_300, 1_700, 1_500].map(&mut read_at), [1, 1, 2]);
    }

    #[test]
    fn neighbouring_sessions_spread_over_read_shares() {
        let mut taken = [0; READ_SHARES];
        for index in 0..READ_SHARES as u32 {
            taken[read_share_of(SessionId {
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
            read_share_of(SessionId {
                index: *index,
                generation: 1,
            }) < READ_SHARES / 2
        });
        assert!((4..=6).contains(&below.count()));
        // Sessions that connect for one request each take the same index again and again.
        let one_after_the_other = (0..10).filter(|turn| {
            read_share_of(SessionId {
                index: 0,
                generation: 2 * turn + 1,
            }) < READ_SHARES / 2
        });
        assert!((4..=6).contains(&one_after_the_other.count()));
    }
}

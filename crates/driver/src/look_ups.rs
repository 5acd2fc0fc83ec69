//! Scheduling of host name look-ups: one at a time for each name, with bounds for each pool.
//!
//! The system's resolver blocks, so look-ups run on resolver threads. If the resolver hangs, the
//! number of threads stays bounded, and names of other pools are still looked up. [`LookUps`]
//! decides which look-up runs and which links get its result. Its caller owns the threads and the
//! clock.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Look-ups that each pool may always run at once.
const POOL_RUNNING_MAX: usize = 2;

/// Look-ups that all pools together may run beyond [`POOL_RUNNING_MAX`] of each.
const SHARED_RUNNING_MAX: usize = 8;

/// Duration from which a look-up is slow. Its result is kept for later attempts.
const SLOW: Duration = Duration::from_millis(500);

/// How long the result of a slow look-up is kept.
const KEEP: Duration = Duration::from_secs(10);

/// A host and a port.
pub(crate) type HostPort = (String, u16);

/// The addresses of a name, or the resolver's error.
pub(crate) type LookUpResult = Result<Vec<SocketAddr>, String>;

/// A link that waits for a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiter<L> {
    /// The link and its worker.
    pub(crate) link: L,
    /// Number of the link's connection attempt.
    pub(crate) attempt: u64,
}

/// The answer to [`LookUps::request`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LookUpState {
    /// The look-up is running or queued since this time. The waiter gets its result.
    Wait(Instant),
    /// As `Wait`, and the caller has to start a resolver thread for it.
    Start(Instant),
    /// The kept result of a slow look-up.
    Known(Vec<SocketAddr>),
}

/// All look-ups that are running or queued, and kept results of slow ones.
///
/// Call [`LookUps::request`] for each connection attempt and [`LookUps::handle_result`] when a
/// look-up has ended. Time never runs back.
#[derive(Debug)]
pub(crate) struct LookUps<L> {
    /// Look-ups that are running or queued.
    all: HashMap<HostPort, LookUp<L>>,
    /// Names of the queued look-ups in `all`, oldest first.
    queue: VecDeque<HostPort>,
    /// Number of running look-ups of each pool.
    running: HashMap<u16, usize>,
    /// Results of slow look-ups, each with the end of its validity.
    kept: HashMap<HostPort, (Instant, Vec<SocketAddr>)>,
}

#[derive(Debug)]
struct LookUp<L> {
    /// The pools that need the name. A running look-up counts for the first one.
    pools: Vec<u16>,
    /// Time of the first request.
    since: Instant,
    /// Links that get the result, at most one waiter for each link.
    waiters: Vec<Waiter<L>>,
}

impl<L> Default for LookUps<L> {
    fn default() -> Self {
        LookUps {
            all: HashMap::new(),
            queue: VecDeque::new(),
            running: HashMap::new(),
            kept: HashMap::new(),
        }
    }
}

impl<L: Copy + Eq> LookUps<L> {
    /// Requests the addresses of a name for a link of a pool.
    pub(crate) fn request(
        &mut self,
        name: &HostPort,
        pool: u16,
        waiter: Waiter<L>,
        now: Instant,
    ) -> LookUpState {
        self.kept.retain(|_, (until, _)| now < *until);
        if let Some((_, addresses)) = self.kept.get(name) {
            return LookUpState::Known(addresses.clone());
        }
        if let Some(look_up) = self.all.get_mut(name) {
            let same = |other: &&mut Waiter<L>| other.link == waiter.link;
            match look_up.waiters.iter_mut().find(same) {
                Some(earlier) => *earlier = waiter,
                None => look_up.waiters.push(waiter),
            }
            if !look_up.pools.contains(&pool) {
                look_up.pools.push(pool);
            }
            let since = look_up.since;
            // The look-up may be queued because other pools are at their bound. This pool may still
            // start it.
            return match self.queue.iter().position(|queued| queued == name) {
                Some(at) if self.may_start(pool) => {
                    self.start(at, pool);
                    LookUpState::Start(since)
                }
                _ => LookUpState::Wait(since),
            };
        }
        let look_up = LookUp {
            pools: vec![pool],
            since: now,
            waiters: vec![waiter],
        };
        self.all.insert(name.clone(), look_up);
        if !self.may_start(pool) {
            self.queue.push_back(name.clone());
            return LookUpState::Wait(now);
        }
        *self.running.entry(pool).or_default() += 1;
        LookUpState::Start(now)
    }

    /// Handles the result of a look-up. Returns its waiters, and the name that the resolver thread
    /// looks up next.
    pub(crate) fn handle_result(
        &mut self,
        name: &HostPort,
        result: &LookUpResult,
        now: Instant,
    ) -> (Vec<Waiter<L>>, Option<HostPort>) {
        let Some(look_up) = self.all.remove(name) else {
            return (Vec::new(), None);
        };
        if let Some(running) = look_up
            .pools
            .first()
            .and_then(|pool| self.running.get_mut(pool))
        {
            *running -= 1;
        }
        if let Ok(addresses) = result
            && now.duration_since(look_up.since) >= SLOW
        {
            self.kept
                .insert(name.clone(), (now + KEEP, addresses.clone()));
        }
        (look_up.waiters, self.start_next())
    }

    /// Starts the oldest queued look-up that one of its pools may start.
    fn start_next(&mut self) -> Option<HostPort> {
        let pool_of = |name: &HostPort| {
            let mut pools = self.all.get(name)?.pools.iter().copied();
            pools.find(|pool| self.may_start(*pool))
        };
        let mut queued = self.queue.iter().enumerate();
        let (at, pool) = queued.find_map(|(at, name)| Some((at, pool_of(name)?)))?;
        self.start(at, pool)
    }

    /// Starts the look-up at this index of the queue; it counts for `pool`.
    fn start(&mut self, at: usize, pool: u16) -> Option<HostPort> {
        let name = self.queue.remove(at)?;
        let pools = &mut self.all.get_mut(&name)?.pools;
        pools.sort_by_key(|other| *other != pool);
        *self.running.entry(pool).or_default() += 1;
        Some(name)
    }

    /// Whether the bounds allow this pool one more running look-up.
    fn may_start(&self, pool: u16) -> bool {
        let of_pool = |pool| self.running.get(pool).copied().unwrap_or(0);
        let beyond = |pool| of_pool(pool).saturating_sub(POOL_RUNNING_MAX);
        let shared: usize = self.running.keys().map(beyond).sum();
        of_pool(&pool) < POOL_RUNNING_MAX || shared < SHARED_RUNNING_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(host: &str) -> HostPort {
        (host.to_owned(), 6379)
    }

    fn waiter(link: usize) -> Waiter<usize> {
        Waiter { link, attempt: 1 }
    }

    fn found() -> LookUpResult {
        Ok(vec![SocketAddr::from(([127, 0, 0, 1], 6379))])
    }

    /// Links that need the same name share one look-up, and each gets its result.
    #[test]
    fn links_share_one_look_up() {
        let (mut look_ups, now) = (LookUps::default(), Instant::now());
        let a = name("a");
        assert_eq!(
            look_ups.request(&a, 0, waiter(1), now),
            LookUpState::Start(now)
        );
        let later = now + Duration::from_millis(400);
        for pool in [0, 1] {
            let state = look_ups.request(&a, pool, waiter(2), later);
            assert_eq!(state, LookUpState::Wait(now));
        }
        let again = Waiter {
            attempt: 2,
            ..waiter(1)
        };
        assert_eq!(
            look_ups.request(&a, 0, again, later),
            LookUpState::Wait(now)
        );
        let (waiters, next) = look_ups.handle_result(&a, &found(), later);
        assert_eq!((waiters, next), (vec![again, waiter(2)], None));
        assert_eq!(
            look_ups.request(&a, 0, waiter(1), later),
            LookUpState::Start(later)
        );
    }

    /// Hanging look-ups of one pool use up the shared bound and the bound of their pool, but not
    /// the bounds of other pools.
    #[test]
    fn hanging_names_leave_other_pools_their_bound() {
        let (mut look_ups, now) = (LookUps::default(), Instant::now());
        let hangs = |number: usize| name(&format!("hangs-{number}"));
        let started = (0..100).filter(|&number| {
            look_ups.request(&hangs(number), 0, waiter(number), now) == LookUpState::Start(now)
        });
        assert_eq!(started.count(), POOL_RUNNING_MAX + SHARED_RUNNING_MAX);
        for pool in 1..20 {
            for number in 0..POOL_RUNNING_MAX {
                let other = name(&format!("other-{pool}-{number}"));
                let state = look_ups.request(&other, pool, waiter(1_000), now);
                assert_eq!(state, LookUpState::Start(now));
            }
            let third = name(&format!("third-{pool}"));
            let state = look_ups.request(&third, pool, waiter(1_000), now);
            assert_eq!(state, LookUpState::Wait(now));
        }
        // When a look-up ends, the oldest queued name that may start follows.
        let (_, next) = look_ups.handle_result(&name("other-7-0"), &found(), now);
        assert_eq!(next, Some(name("third-7")));
        let (_, next) = look_ups.handle_result(&hangs(0), &found(), now);
        assert_eq!(next, Some(hangs(10)));
    }

    /// A queued name of a pool with hanging names is looked up once a pool below its bound requests
    /// it.
    #[test]
    fn queued_name_starts_for_a_pool_below_its_bound() {
        let (mut look_ups, now) = (LookUps::default(), Instant::now());
        let hangs = |number: usize| name(&format!("hangs-{number}"));
        let full = POOL_RUNNING_MAX + SHARED_RUNNING_MAX;
        for number in 0..full {
            let state = look_ups.request(&hangs(number), 0, waiter(number), now);
            assert_eq!(state, LookUpState::Start(now));
        }
        let (x, y) = (name("x"), name("y"));
        for name in [&x, &y] {
            assert_eq!(
                look_ups.request(name, 0, waiter(50), now),
                LookUpState::Wait(now)
            );
        }
        let later = now + Duration::from_millis(100);
        assert_eq!(
            look_ups.request(&x, 1, waiter(60), later),
            LookUpState::Start(now)
        );
        assert_eq!(
            look_ups.request(&x, 1, waiter(61), later),
            LookUpState::Wait(now)
        );
        // The other pool is now at its bound. When one of its look-ups ends, its queued name
        // starts.
        let third = name("third");
        assert_eq!(
            look_ups.request(&third, 1, waiter(62), later),
            LookUpState::Start(later)
        );
        assert_eq!(
            look_ups.request(&y, 1, waiter(63), later),
            LookUpState::Wait(now)
        );
        let (waiters, next) = look_ups.handle_result(&x, &found(), later);
        assert_eq!(waiters, [waiter(50), waiter(60), waiter(61)]);
        assert_eq!(next, Some(y.clone()));
        let (waiters, next) = look_ups.handle_result(&y, &found(), later);
        assert_eq!((waiters, next), (vec![waiter(50), waiter(63)], None));
        look_ups.handle_result(&third, &found(), later);
        assert_eq!(look_ups.running.get(&1), Some(&0));
    }

    /// The result of a look-up that outlasts its connection attempts is kept for the next attempts,
    /// for 10 s.
    #[test]
    fn result_of_a_slow_look_up_is_kept() {
        let (mut look_ups, now) = (LookUps::default(), Instant::now());
        let (a, later) = (name("a"), now + Duration::from_secs(6));
        for result in [Err("no such name".to_owned()), found()] {
            look_ups.request(&a, 0, waiter(1), now);
            look_ups.handle_result(&a, &result, later);
        }
        let state = look_ups.request(&a, 0, waiter(1), later);
        assert_eq!(state, LookUpState::Known(found().unwrap_or_default()));
        let much_later = later + KEEP;
        let state = look_ups.request(&a, 0, waiter(1), much_later);
        assert_eq!(state, LookUpState::Start(much_later));
    }
}

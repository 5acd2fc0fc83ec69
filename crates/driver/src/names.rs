//! Look-ups of host names: one at a time for each name, and a place for each pool.
//!
//! The system's resolver blocks, so each look-up runs on a thread of its own. A resolver that hangs
//! must neither collect threads nor keep the names of another pool waiting. [`LookUps`] decides
//! which look-up runs and which callers get its result. The caller owns threads and clock.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Look-ups that each pool may have under way whatever other pools do.
const PLACES_OF_POOL: usize = 2;

/// Look-ups that all pools together may have under way beside those.
const SHARED_PLACES: usize = 8;

/// How long a look-up may take before its result is kept for the attempts that come after it.
const SLOW: Duration = Duration::from_millis(500);

/// How long such a result is kept.
const KEPT: Duration = Duration::from_secs(10);

/// A host and a port.
pub(crate) type Name = (String, u16);

/// What a resolver says of a name.
pub(crate) type Answer = Result<Vec<SocketAddr>, String>;

/// A link that waits for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller<L> {
    /// Which link of which worker.
    pub(crate) link: L,
    /// Which of its connections this is.
    pub(crate) attempt: u64,
}

/// What becomes of a question.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The caller is told when the look-up ends. It began then, or waits for a place since then.
    Wait(Instant),
    /// The same, and a thread has to be started for it.
    Start(Instant),
    /// A slow look-up has ended a moment ago.
    Known(Vec<SocketAddr>),
}

/// Every look-up under way, those that wait for a place, and results of slow ones.
///
/// Call [`LookUps::ask`] for each attempt and [`LookUps::end`] when a look-up has ended. Time never
/// runs back.
#[derive(Debug)]
pub(crate) struct LookUps<L> {
    all: HashMap<Name, LookUp<L>>,
    /// Those of `all` that have no place yet, oldest first.
    waiting: VecDeque<Name>,
    /// Look-ups under way of each pool.
    running: HashMap<u16, usize>,
    /// Results of slow look-ups, with the time until which they count.
    kept: HashMap<Name, (Instant, Vec<SocketAddr>)>,
}

#[derive(Debug)]
struct LookUp<L> {
    /// The pools that have asked. The look-up runs in a place of the first one.
    pools: Vec<u16>,
    since: Instant,
    /// At most one for each link.
    callers: Vec<Caller<L>>,
}

impl<L> Default for LookUps<L> {
    fn default() -> Self {
        LookUps {
            all: HashMap::new(),
            waiting: VecDeque::new(),
            running: HashMap::new(),
            kept: HashMap::new(),
        }
    }
}

impl<L: Copy + Eq> LookUps<L> {
    /// A link of a pool needs a name.
    pub(crate) fn ask(&mut self, name: &Name, pool: u16, caller: Caller<L>, now: Instant) -> Asked {
        self.kept.retain(|_, (until, _)| now < *until);
        if let Some((_, addresses)) = self.kept.get(name) {
            return Asked::Known(addresses.clone());
        }
        if let Some(look_up) = self.all.get_mut(name) {
            let same = |other: &&mut Caller<L>| other.link == caller.link;
            match look_up.callers.iter_mut().find(same) {
                Some(earlier) => *earlier = caller,
                None => look_up.callers.push(caller),
            }
            if !look_up.pools.contains(&pool) {
                look_up.pools.push(pool);
            }
            let since = look_up.since;
            // It may wait for a place of another pool, and this one has a place.
            return match self.waiting.iter().position(|waits| waits == name) {
                Some(at) if self.has_place(pool) => {
                    self.start(at, pool);
                    Asked::Start(since)
                }
                _ => Asked::Wait(since),
            };
        }
        let look_up = LookUp {
            pools: vec![pool],
            since: now,
            callers: vec![caller],
        };
        self.all.insert(name.clone(), look_up);
        if !self.has_place(pool) {
            self.waiting.push_back(name.clone());
            return Asked::Wait(now);
        }
        *self.running.entry(pool).or_default() += 1;
        Asked::Start(now)
    }

    /// A look-up has ended. Returns those who asked, and the name that the thread looks up next.
    pub(crate) fn end(
        &mut self,
        name: &Name,
        answer: &Answer,
        now: Instant,
    ) -> (Vec<Caller<L>>, Option<Name>) {
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
        if let Ok(addresses) = answer
            && now.duration_since(look_up.since) >= SLOW
        {
            self.kept
                .insert(name.clone(), (now + KEPT, addresses.clone()));
        }
        (look_up.callers, self.next())
    }

    /// The oldest look-up that may start takes its place.
    fn next(&mut self) -> Option<Name> {
        let with_place = |name: &Name| {
            let mut pools = self.all.get(name)?.pools.iter().copied();
            pools.find(|pool| self.has_place(*pool))
        };
        let mut waiting = self.waiting.iter().enumerate();
        let (at, pool) = waiting.find_map(|(at, name)| Some((at, with_place(name)?)))?;
        self.start(at, pool)
    }

    /// The look-up at this index of those that wait takes a place of the pool.
    fn start(&mut self, at: usize, pool: u16) -> Option<Name> {
        let name = self.waiting.remove(at)?;
        let pools = &mut self.all.get_mut(&name)?.pools;
        pools.sort_by_key(|other| *other != pool);
        *self.running.entry(pool).or_default() += 1;
        Some(name)
    }

    fn has_place(&self, pool: u16) -> bool {
        let of_pool = |pool| self.running.get(pool).copied().unwrap_or(0);
        let beyond = |pool| of_pool(pool).saturating_sub(PLACES_OF_POOL);
        let shared: usize = self.running.keys().map(beyond).sum();
        of_pool(&pool) < PLACES_OF_POOL || shared < SHARED_PLACES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(host: &str) -> Name {
        (host.to_owned(), 6379)
    }

    fn caller(link: usize) -> Caller<usize> {
        Caller { link, attempt: 1 }
    }

    fn found() -> Answer {
        Ok(vec![SocketAddr::from(([127, 0, 0, 1], 6379))])
    }

    /// Callers of one name share one look-up, and all are told its result.
    #[test]
    fn callers_share_one_look_up() {
        let (mut look_ups, now) = (LookUps::default(), Instant::now());
        let a = name("a");
        assert_eq!(look_ups.ask(&a, 0, caller(1), now), Asked::Start(now));
        let later = now + Duration::from_millis(400);
        for pool in [0, 1] {
            let asked = look_ups.ask(&a, pool, caller(2), later);
            assert_eq!(asked, Asked::Wait(now));
        }
        let again = Caller {
            attempt: 2,
            ..caller(1)
        };
        assert_eq!(look_ups.ask(&a, 0, again, later), Asked::Wait(now));
        let (told, next) = look_ups.end(&a, &found(), later);
        assert_eq!((told, next), (vec![again, caller(2)], None));
        assert_eq!(look_ups.ask(&a, 0, caller(1), later), Asked::Start(later));
    }

    /// Look-ups of one pool that hang take the shared places and their own pool's places, and no
    /// place of another pool.
    #[test]
    fn hanging_names_leave_other_pools_their_places() {
        let (mut look_ups, now) = (LookUps::default(), Instant::now());
        let hangs = |number: usize| name(&format!("hangs-{number}"));
        let started = (0..100).filter(|&number| {
            look_ups.ask(&hangs(number), 0, caller(number), now) == Asked::Start(now)
        });
        assert_eq!(started.count(), PLACES_OF_POOL + SHARED_PLACES);
        for pool in 1..20 {
            for number in 0..PLACES_OF_POOL {
                let other = name(&format!("other-{pool}-{number}"));
                let asked = look_ups.ask(&other, pool, caller(1_000), now);
                assert_eq!(asked, Asked::Start(now));
            }
            let third = name(&format!("third-{pool}"));
            let asked = look_ups.ask(&third, pool, caller(1_000), now);
            assert_eq!(asked, Asked::Wait(now));
        }
        // A place that is free again goes to the oldest name that may have it.
        let (_, next) = look_ups.end(&name("other-7-0"), &found(), now);
        assert_eq!(next, Some(name("third-7")));
        let (_, next) = look_ups.end(&hangs(0), &found(), now);
        assert_eq!(next, Some(hangs(10)));
    }

    /// A name in the queue of a pool whose names hang is looked up for another pool that asks for
    /// it.
    #[test]
    fn name_that_waits_starts_for_a_pool_with_a_place() {
        let (mut look_ups, now) = (LookUps::default(), Instant::now());
        let hangs = |number: usize| name(&format!("hangs-{number}"));
        let full = PLACES_OF_POOL + SHARED_PLACES;
        for number in 0..full {
            let asked = look_ups.ask(&hangs(number), 0, caller(number), now);
            assert_eq!(asked, Asked::Start(now));
        }
        let (x, y) = (name("x"), name("y"));
        for name in [&x, &y] {
            assert_eq!(look_ups.ask(name, 0, caller(50), now), Asked::Wait(now));
        }
        let later = now + Duration::from_millis(100);
        assert_eq!(look_ups.ask(&x, 1, caller(60), later), Asked::Start(now));
        assert_eq!(look_ups.ask(&x, 1, caller(61), later), Asked::Wait(now));
        // The other pool's places are used up; the first one that is free is for the name it waits
        // for.
        let third = name("third");
        assert_eq!(
            look_ups.ask(&third, 1, caller(62), later),
            Asked::Start(later)
        );
        assert_eq!(look_ups.ask(&y, 1, caller(63), later), Asked::Wait(now));
        let (told, next) = look_ups.end(&x, &found(), later);
        assert_eq!(told, [caller(50), caller(60), caller(61)]);
        assert_eq!(next, Some(y.clone()));
        let (told, next) = look_ups.end(&y, &found(), later);
        assert_eq!((told, next), (vec![caller(50), caller(63)], None));
        look_ups.end(&third, &found(), later);
        assert_eq!(look_ups.running.get(&1), Some(&0));
    }

    /// A look-up that outlasts the attempts that asked for it is of use to the next one, for a
    /// while.
    #[test]
    fn result_of_a_slow_look_up_is_kept() {
        let (mut look_ups, now) = (LookUps::default(), Instant::now());
        let (a, later) = (name("a"), now + Duration::from_secs(6));
        for answer in [Err("no such name".to_owned()), found()] {
            look_ups.ask(&a, 0, caller(1), now);
            look_ups.end(&a, &answer, later);
        }
        let asked = look_ups.ask(&a, 0, caller(1), later);
        assert_eq!(asked, Asked::Known(found().unwrap_or_default()));
        let much_later = later + KEPT;
        let asked = look_ups.ask(&a, 0, caller(1), much_later);
        assert_eq!(asked, Asked::Start(much_later));
    }
}

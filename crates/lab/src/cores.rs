//! Cores of their own for the proxy, and the others for everything else.
//!
//! Left alone, the scheduler decides anew in each measurement who shares a core with whom, and CPU per request follows:
//! with `respool-lab against` of one build and itself, on two cores, the quadruples' ratios spread about twice as wide as
//! with the proxy on a core of its own.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores that this process may use, in two parts.
#[derive(Debug)]
pub struct Cores {
    proxy: CpuSet,
    others: CpuSet,
}

impl Cores {
    /// So many for the proxy, but one for the others at least. From now on this thread, and every process that it starts, is
    /// on the others'; what runs already stays where it is. `None`: there is only one core.
    ///
    /// # Errors
    /// When the kernel does not allow it.
    pub fn split(for_proxy: usize) -> Result<Option<Cores>, String> {
        let mut others = sched_getaffinity(None).map_err(|error| format!("cores: {error}"))?;
        let mut proxy = CpuSet::new();
        let for_proxy = for_proxy.min((others.count() as usize).saturating_sub(1));
        // The last ones: the first is where most kernels handle interrupts.
        let all = (0..CpuSet::MAX_CPU).rev();
        let taken: Vec<usize> = all
            .filter(|&core| others.is_set(core))
            .take(for_proxy)
            .collect();
        for &core in &taken {
            others.unset(core);
            proxy.set(core);
        }
        if taken.is_empty() {
            return Ok(None);
        }
        use_only(&others)?;
        Ok(Some(Cores { proxy, others }))
    }

    /// Has a proxy started on its cores.
    ///
    /// # Errors
    /// When the kernel does not allow it, or `start` fails.
    pub fn start_proxy<T>(&self, start: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        use_only(&self.proxy)?;
        let started = start();
        use_only(&self.others)?;
        started
    }
}

/// Of this thread, and of what it starts.
fn use_only(cores: &CpuSet) -> Result<(), String> {
    sched_setaffinity(None, cores).map_err(|error| format!("cores: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proxy_shares_no_core_with_the_others() {
        // A thread of its own, which takes what it was given to its end.
        let checked = std::thread::spawn(|| {
            let before = sched_getaffinity(None).unwrap();
            let Some(cores) = Cores::split(1000).unwrap() else {
                assert_eq!(before.count(), 1);
                return;
            };
            let others = sched_getaffinity(None).unwrap();
            let proxy = cores
                .start_proxy(|| Ok(sched_getaffinity(None).unwrap()))
                .unwrap();
            assert_eq!(sched_getaffinity(None).unwrap(), others);
            assert_eq!((others.count(), proxy.count()), (1, before.count() - 1));
            assert!((0..CpuSet::MAX_CPU).all(|core| !(others.is_set(core) && proxy.is_set(core))));
        });
        checked.join().unwrap();
    }
}

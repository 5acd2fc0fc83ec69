//! Cores of its own for the proxy, and the other cores for all else.
//!
//! Without this, the scheduler decides anew in each measurement which processes share a core, and
//! CPU per request follows that. In `respool-lab against` with one build against itself on two
//! cores, the quadruples' ratios then spread about twice as wide.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores that this process may use, in two parts.
#[derive(Debug)]
pub struct Cores {
    proxy: CpuSet,
    others: CpuSet,
}

impl Cores {
    /// Takes so many cores for the proxy, but leaves one for the others. From now on this thread
    /// and all processes that it starts use the others' cores; running ones stay where they are.
    /// `None`: there is only one core.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn split(for_proxy: usize) -> Result<Option<Cores>, String> {
        let mut others = sched_getaffinity(None).map_err(|error| format!("cores: {error}"))?;
        let mut proxy = CpuSet::new();
        let for_proxy = for_proxy.min((others.count() as usize).saturating_sub(1));
        // The proxy gets the last ones: most kernels handle interrupts on the first.
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

    /// Starts a proxy on its cores.
    ///
    /// # Errors
    /// When the kernel refuses, or `start` fails.
    pub fn start_proxy<T>(&self, start: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        use_only(&self.proxy)?;
        let started = start();
        use_only(&self.others)?;
        started
    }
}

/// Sets the cores of this thread and of the processes that it starts.
fn use_only(cores: &CpuSet) -> Result<(), String> {
    sched_setaffinity(None, cores).map_err(|error| format!("cores: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proxy_shares_no_core_with_the_others() {
        // A separate thread keeps its cores to its end.
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

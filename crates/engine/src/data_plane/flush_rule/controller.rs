//! A controller of the wait that keeps a utilization within a band.
//!
//! The controller asks for a fraction of the longest wait. Each fraction has a target utilization:
//! the lower end of the band for none, the upper end for all. The fraction settles where the
//! measured utilization is its target:
//!
//! ```text
//!   utilization
//!        full ┤          .·´ target of a wait
//!             │╲      .·´
//!             │  ╲ .·´
//!             │  .●.
//!        room ┤·´    `·.____ measured with this wait
//!             └──────────────
//!             0    wait    max_delay_us
//! ```
//!
//! The lower curve is known at one point, the last sample. Its slope is bounded: where a batch has
//! `n` requests, a server spends about `a + b / n` on each, and `n` grows with the wait. So twice
//! the wait saves half of the utilization at most, and nothing at least. The slope is learned from
//! one sample to the next, by the cost of a request, so a change of the load is no slope. Each step
//! goes where the two curves meet if the slope is right (Newton's method in logarithms).
//!
//! A steady wait becomes longer when three samples in a row ask for it. With three busy processes
//! on two cores, one sample in four shows a full worker by chance (50 connections, 60,000 requests
//! a second).
//!
//! Rejected: a smoothed wait, with the sample as its target. It swings where short waits already
//! save much, and takes long where they save little.

/// The lower bound of the fraction with which a wait begins and ends. That fraction gathers one
/// request on average: a timer for less costs more than it saves.
const LEAST_FRACTION_MIN: f32 = 1.0 / 32.0;
/// The upper bound of that fraction.
const LEAST_FRACTION_MAX: f32 = 1.0 / 8.0;
/// The largest fraction with which a wait begins: its effect is not known yet.
const FIRST_FRACTION_MAX: f32 = 1.0 / 8.0;
/// The most by which one step multiplies or divides a fraction.
const STEP_MAX: f32 = 4.0;
/// The least by which a step multiplies a fraction at full utilization.
const FULL_STEP_MIN: f32 = 1.5;
/// The slope that is assumed before one was learned.
const SLOPE_FIRST: f32 = 0.6;
const SLOPE_MIN: f32 = 0.1;
const SLOPE_MAX: f32 = 1.0;
/// Rates that differ by a larger factor are different loads. No slope is learned from them.
const RATE_FACTOR_MAX: f32 = 1.25;
/// Fractions that differ by less, in logarithms, are the same wait: they teach no slope.
const SAME_WAIT: f32 = 0.05;
/// A steady wait becomes longer after so many samples in a row that ask for it. Fewer may be a
/// burst, another process on the machine, or another worker that tries to do without a wait.
const RISES_MIN: u8 = 3;
/// Samples with room at the shortest wait, one after the other, until no wait is tried.
const SHORTEST_MAX: u8 = 12;

const _: () = assert!(LEAST_FRACTION_MAX <= FIRST_FRACTION_MAX && FIRST_FRACTION_MAX < 1.0);

/// Up to `room` nothing waits. From `full` on batches wait for the longest time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Band {
    pub(super) room: f32,
    pub(super) full: f32,
}

impl Band {
    fn target(self, fraction: f32) -> f32 {
        self.room + (self.full - self.room) * fraction
    }
}

/// A measurement over a time in which one wait was applied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// The utilization, from 0 to 1.
    pub(super) utilization: f32,
    /// Requests per second.
    pub(super) rate: f32,
    /// The fraction of the longest wait. Another controller may have asked for it.
    pub(super) applied: f32,
    /// The longest wait, microseconds.
    pub(super) longest_us: u32,
}

impl Sample {
    fn waited(self) -> bool {
        self.applied > 0.0
    }

    fn least_fraction(self) -> f32 {
        let gathered = self.rate * self.longest_us as f32 / 1e6;
        (1.0 / gathered).clamp(LEAST_FRACTION_MIN, LEAST_FRACTION_MAX)
    }

    fn cost(self) -> f32 {
        self.utilization.max(0.001) / self.rate.max(1.0)
    }
}

/// Whether two fractions are about the same wait.
fn is_same_wait(a: f32, b: f32) -> bool {
    match a > 0.0 && b > 0.0 {
        true => (a / b).ln().abs() < SAME_WAIT,
        false => a == b,
    }
}

/// Controls one wait by one utilization. Report each sample with [`Controller::follow`].
#[derive(Debug)]
pub(super) struct Controller {
    band: Band,
    /// The fraction of the longest wait that the controller asks for.
    fraction: f32,
    /// By how much the utilization falls as the wait grows, in logarithms.
    slope: f32,
    last: Option<Sample>,
    /// The last sample without a wait.
    without: Option<Sample>,
    /// Samples with room at the shortest wait, one after the other.
    shortest: u8,
    /// Samples of a steady wait in a row that ask for a longer one.
    rises: u8,
}

impl Controller {
    pub(super) const fn new(band: Band) -> Controller {
        Controller {
            band,
            fraction: 0.0,
            slope: SLOPE_FIRST,
            last: None,
            without: None,
            shortest: 0,
            rises: 0,
        }
    }

    /// The fraction of the longest wait that the controller asks for: 0, or at least
    /// [`Sample::least_fraction`].
    pub(super) fn fraction(&self) -> f32 {
        self.fraction
    }

    /// Forgets all that the controller has learned.
    pub(super) fn reset(&mut self) {
        *self = Controller::new(self.band);
    }

    pub(super) fn follow(&mut self, sample: Sample) {
        // The first sample has no earlier one to compare with.
        let Some(last) = self.last.replace(sample) else {
            return;
        };
        let fraction = match sample.waited() {
            false => self.first_fraction(sample, last.waited()),
            true => {
                if last.waited() {
                    self.learn(last, sample);
                }
                self.next_fraction(sample)
            }
        };
        let is_rise = fraction > sample.applied && !is_same_wait(fraction, sample.applied);
        self.rises = match is_rise && is_same_wait(sample.applied, last.applied) {
            true => (self.rises + 1) % RISES_MIN,
            false => 0,
        };
        if self.rises == 0 {
            self.fraction = fraction;
        }
    }

    /// Learns the slope from two samples with a wait.
    fn learn(&mut self, last: Sample, sample: Sample) {
        let wider = (sample.applied / last.applied).ln();
        let rates = sample.rate.max(1.0) / last.rate.max(1.0);
        let is_same_load = (1.0 / RATE_FACTOR_MAX..=RATE_FACTOR_MAX).contains(&rates);
        if is_same_load && !is_same_wait(sample.applied, last.applied) {
            let slope = -(sample.cost() / last.cost()).ln() / wider;
            self.slope = ((self.slope + slope) / 2.0).clamp(SLOPE_MIN, SLOPE_MAX);
        }
    }

    /// The fraction behind a sample without a wait. `was_tried`: the sample before had a wait, so
    /// this one tried to do without.
    fn first_fraction(&mut self, sample: Sample, was_tried: bool) -> f32 {
        self.without = Some(sample);
        self.shortest = 0;
        let Band { room, full } = self.band;
        let above = (sample.utilization - room) / (full - room);
        let least = sample.least_fraction();
        match above > 0.0 {
            true if was_tried => least,
            true => (above * FIRST_FRACTION_MAX).clamp(least, FIRST_FRACTION_MAX),
            false => 0.0,
        }
    }

    /// The fraction behind a sample with a wait.
    fn next_fraction(&mut self, sample: Sample) -> f32 {
        // ln(measured) - slope * step = ln(target(fraction * e^step)), for the step.
        let measured = sample.utilization.max(0.001).ln();
        let bound = STEP_MAX.ln();
        let mut step = 0.0_f32;
        for _ in 0..4 {
            let target = self.band.target(sample.applied * step.exp());
            let error = measured - self.slope * step - target.ln();
            let steepness = self.slope + (target - self.band.room) / target;
            step = (step + error / steepness).clamp(-bound, bound);
        }
        if sample.utilization > self.band.full {
            // Requests queue, so the sample understates their cost.
            step = step.max(FULL_STEP_MIN.ln());
        }
        let fraction = sample.applied * step.exp();
        let least = sample.least_fraction();
        if fraction > least {
            self.shortest = 0;
            return fraction.min(1.0);
        }
        // The shortest wait may make much room. It stays where there would be no room without it.
        let has_room = sample.utilization < self.band.room;
        self.shortest = self.shortest.saturating_add(u8::from(has_room));
        // At full utilization requests queue, so a sample understates their cost.
        let Band { room, full } = self.band;
        let would_lack = |idle: Sample| {
            idle.cost() * sample.rate > room
                || idle.utilization > full && sample.rate * RATE_FACTOR_MAX > idle.rate
        };
        let lacks_room = sample.utilization > full || self.without.is_some_and(would_lack);
        match lacks_room && self.shortest < SHORTEST_MAX {
            true => least,
            false => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{SERVER, WINDOW_MS, WORKER};
    use super::*;

    /// The longest wait, seconds.
    const MAX_DELAY: f32 = 200e-6;
    const STEP_MS: u32 = 50;
    /// A wait that differs by less has not moved.
    const NEAR: f32 = 1.0 / 8.0;

    /// Microseconds for each request, and for each batch.
    type PlantCost = (f32, f32);

    fn utilization((each, batch): PlantCost, rate: f32, applied: f32) -> f32 {
        let gathered = 1.0 + rate * applied * MAX_DELAY;
        (rate * (each + batch / gathered) / 1e6).min(1.0)
    }

    /// A worker, its controllers, and its window.
    struct PlantWorker {
        by_server: Controller,
        by_worker: Controller,
        applied: f32,
        /// Utilization of server and worker since the window began, times milliseconds.
        used: [f32; 2],
        requests: f32,
        window_ms: u32,
    }

    /// Workers before one server, in virtual time.
    struct Plant {
        server: PlantCost,
        worker: PlantCost,
        workers: Vec<PlantWorker>,
        /// The largest relative error of a sample. `random` chooses each error.
        noise: f32,
        random: u64,
    }

    impl Plant {
        fn new((server, worker): (PlantCost, PlantCost), workers: usize, noise: f32) -> Plant {
            let worker_at = |at: usize| PlantWorker {
                by_server: Controller::new(SERVER),
                by_worker: Controller::new(WORKER),
                applied: 0.0,
                used: [0.0; 2],
                requests: 0.0,
                window_ms: at as u32 * STEP_MS,
            };
            Plant {
                server,
                worker,
                workers: (0..workers).map(worker_at).collect(),
                noise,
                random: 1,
            }
        }

        fn wrong(&mut self) -> f32 {
            self.random = self
                .random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            1.0 + self.noise * ((self.random >> 40) as f32 / (1 << 23) as f32 - 1.0)
        }

        /// A step at so many requests per second.
        fn step(&mut self, rate: f32) {
            let each = rate / self.workers.len() as f32;
            let at_server = |worker: &PlantWorker| utilization(self.server, each, worker.applied);
            let server = self.workers.iter().map(at_server).sum::<f32>().min(1.0);
            for at in 0..self.workers.len() {
                let [wrong_server, wrong_worker] = [(); 2].map(|()| self.wrong());
                let cost = self.worker;
                let worker = &mut self.workers[at];
                let own = utilization(cost, each, worker.applied);
                let ms = STEP_MS as f32;
                worker.used[0] += server * ms;
                worker.used[1] += own * ms;
                worker.requests += each * ms / 1e3;
                worker.window_ms += STEP_MS;
                if worker.window_ms < WINDOW_MS as u32 {
                    continue;
                }
                let length = worker.window_ms as f32;
                let sample = |used: f32, wrong: f32| Sample {
                    utilization: (used / length * wrong).min(1.0),
                    rate: worker.requests * 1e3 / length,
                    applied: worker.applied,
                    longest_us: (MAX_DELAY * 1e6) as u32,
                };
                let [of_server, of_worker] = [
                    sample(worker.used[0], wrong_server),
                    sample(worker.used[1], wrong_worker),
                ];
                worker.by_server.follow(of_server);
                worker.by_worker.follow(of_worker);
                worker.applied = worker.by_server.fraction().max(worker.by_worker.fraction());
                (worker.used, worker.requests, worker.window_ms) = ([0.0; 2], 0.0, 0);
            }
        }

        /// The fraction of so many ms in which a worker's wait is not near its median, and how
        /// often the wait moves away from there. Both are those of the worst worker.
        fn restless(&mut self, rate: f32, ms: u32) -> (f32, usize) {
            let mut seen = vec![Vec::new(); self.workers.len()];
            for _ in 0..ms / STEP_MS {
                self.step(rate);
                for (seen, worker) in seen.iter_mut().zip(&self.workers) {
                    seen.push(worker.applied);
                }
            }
            let of_one = |waits: Vec<f32>| {
                let mut sorted = waits.clone();
                sorted.sort_by(f32::total_cmp);
                let median = sorted[sorted.len() / 2];
                let away: Vec<bool> = waits
                    .iter()
                    .map(|wait| (wait - median).abs() > NEAR)
                    .collect();
                let count = away.iter().filter(|away| **away).count();
                let moves = away.windows(2).filter(|pair| !pair[0] && pair[1]).count();
                (count as f32 / away.len() as f32, moves)
            };
            let worst = |a: (f32, usize), b: (f32, usize)| (a.0.max(b.0), a.1.max(b.1));
            seen.into_iter().map(of_one).fold((0.0, 0), worst)
        }

        /// The difference between the longest and the shortest wait of a worker within so many ms.
        fn swing(&mut self, rate: f32, ms: u32) -> f32 {
            let mut least = vec![1.0_f32; self.workers.len()];
            let mut most = vec![0.0_f32; self.workers.len()];
            for _ in 0..ms / STEP_MS {
                self.step(rate);
                for (at, worker) in self.workers.iter().enumerate() {
                    least[at] = least[at].min(worker.applied);
                    most[at] = most[at].max(worker.applied);
                }
            }
            let swings = most.iter().zip(least).map(|(most, least)| most - least);
            swings.fold(0.0, f32::max)
        }
    }

    const LOW: f32 = 0.5;
    const HIGH: f32 = 0.92;

    /// A controller of a worker's wait, before a rate of 60,000 a second.
    struct WorkerTrial {
        controller: Controller,
    }

    impl WorkerTrial {
        fn new() -> WorkerTrial {
            WorkerTrial {
                controller: Controller::new(WORKER),
            }
        }

        /// The fraction after so many samples with the fraction that it asks for.
        fn follow(&mut self, count: usize, utilization: f32) -> f32 {
            for _ in 0..count {
                let applied = self.controller.fraction();
                self.follow_with(applied, utilization);
            }
            self.controller.fraction()
        }

        fn follow_with(&mut self, applied: f32, utilization: f32) -> f32 {
            self.controller.follow(Sample {
                utilization,
                rate: 60_000.0,
                applied,
                longest_us: 200,
            });
            self.controller.fraction()
        }
    }

    /// Two samples in a row without room begin no wait, and the third does.
    #[test]
    fn wait_begins_with_the_third_sample() {
        let mut trial = WorkerTrial::new();
        for _ in 0..10 {
            assert_eq!(trial.follow(5, LOW), 0.0);
            assert_eq!(trial.follow(2, HIGH), 0.0);
        }
        assert_eq!(trial.follow(1, LOW), 0.0);
        assert!(trial.follow(3, HIGH) > 0.0);
    }

    /// A wait that has settled becomes longer with the third sample in a row that asks for it.
    #[test]
    fn settled_wait_grows_with_the_third_sample() {
        let mut trial = WorkerTrial::new();
        trial.follow(3, HIGH);
        // The utilization that belongs to a quarter of the longest wait.
        let target = WORKER.target(0.25);
        trial.follow(60, target);
        let near = 0.2..0.3;
        assert!(near.contains(&trial.controller.fraction()));
        for _ in 0..10 {
            let held = trial.follow(2, 1.0);
            assert!(near.contains(&held), "{held}");
            trial.follow(5, target);
        }
        assert!(trial.follow(3, 1.0) > 0.35);
    }

    /// A controller with room in its utilization asks for no wait, however long another one holds
    /// it.
    #[test]
    fn wait_of_another_controller_asks_for_none() {
        let mut trial = WorkerTrial::new();
        for _ in 0..1_000 {
            assert_eq!(trial.follow_with(0.2, LOW), 0.0);
        }
    }

    fn costs() -> impl Strategy<Value = (PlantCost, PlantCost)> {
        let one = || (0.1..4.0_f32, 0.5..12.0_f32);
        (one(), one())
    }

    fn rates() -> impl Strategy<Value = Vec<f32>> {
        prop::collection::vec(1_000.0..250_000.0_f32, 1..6)
    }

    proptest! {
        /// Two seconds after any step of the load, the waits of all workers stand still. A worker
        /// may try one window without a wait, and the other workers react to that.
        #[test]
        fn any_load_settles_in_two_seconds(
            costs in costs(),
            rates in rates(),
            workers in 1..4_usize,
        ) {
            let mut plant = Plant::new(costs, workers, 0.0);
            for rate in rates {
                plant.restless(rate, 2_000);
                let (time, moves) = plant.restless(rate, 3_000);
                prop_assert!(time <= 0.3 && moves <= 2, "{rate}: {time}, {moves}");
            }
        }

        /// Wrong samples do not make waits swing from none to the longest one.
        #[test]
        fn noise_is_not_amplified(costs in costs(), rates in rates()) {
            let mut plant = Plant::new(costs, 1, 0.05);
            for rate in rates {
                plant.swing(rate, 2_000);
                let swing = plant.swing(rate, 3_000);
                prop_assert!(swing <= 0.65, "{rate}: {swing}");
            }
        }

        /// No wait is longer than the longest one, and each has a cause.
        #[test]
        fn waits_have_a_cause(costs in costs(), rates in rates()) {
            let mut plant = Plant::new(costs, 1, 0.0);
            for rate in rates {
                let swing = plant.swing(rate, 4_000);
                prop_assert!(plant.workers[0].applied <= 1.0);
                let applied = plant.workers[0].applied;
                let server = utilization(plant.server, rate, applied);
                let worker = utilization(plant.worker, rate, applied);
                // At the shortest wait, the controller tries at times to do without.
                if applied == 0.0 && swing == 0.0 {
                    prop_assert!(server < SERVER.room + 0.02 && worker < WORKER.room + 0.02);
                }
                let least = (1.0 / (rate * MAX_DELAY)).clamp(LEAST_FRACTION_MIN, LEAST_FRACTION_MAX);
                if applied > 2.0 * least {
                    prop_assert!(server > SERVER.room * 0.9 || worker > WORKER.room * 0.9);
                }
                let is_tried = applied == 0.0 && swing > 0.0;
                if applied < 0.9 && !is_tried {
                    prop_assert!(server < SERVER.full + 0.02, "{server}");
                    prop_assert!(worker < WORKER.full + 0.02, "{worker}");
                }
            }
        }
    }
}

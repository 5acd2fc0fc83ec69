//! Relations between bounds.

use respool_engine::settings::FlushRule;

use super::resolve::Resolved;
use crate::options::find;
use crate::problem::{ConfigPlace, Problem};

impl Resolved {
    /// Checks pairs of bounds. `low` above `high` is always a slip, never a choice.
    pub(super) fn check_relations(&self, problems: &mut Vec<Problem>) {
        let values = &self.values;
        let (limits, timeouts) = (&values.limits, &values.timeouts);
        let mut ordered = |low: (&str, u64), high: (&str, u64), strict: bool, why: &str| {
            if low.1 > high.1 || (strict && low.1 == high.1) {
                let low = (self.describe(low.0), self.place(low.0));
                problems.push(self.disordered(low, high.0, strict, why));
            }
        };
        let memory = ("worker-memory-bytes-max", limits.worker_memory_bytes_max);
        let output_hard = (
            "session-output-hard-bytes",
            limits.session_output_hard_bytes.into(),
        );
        let held = (
            "request-held-bytes-max",
            limits.request_held_bytes_max.into(),
        );
        ordered(
            (
                "session-output-soft-bytes",
                limits.session_output_soft_bytes.into(),
            ),
            output_hard,
            true,
            "reading stops at the first, and the session is closed at the second",
        );
        ordered(
            output_hard,
            memory,
            false,
            "the output of one session must fit into a worker",
        );
        ordered(held, memory, false, "one request must fit into a worker");
        ordered(
            held,
            (
                "link-unanswered-bytes-max",
                limits.link_unanswered_bytes_max.into(),
            ),
            false,
            "a held request must fit into the unanswered bytes of its link",
        );
        ordered(
            ("streaming-links-max", limits.streaming_links_max.into()),
            ("links-max", limits.links_max.into()),
            true,
            "at least one link must be left for requests that are not large",
        );
        ordered(
            ("head-of-line-stall-ms", limits.head_of_line_stall_ms.into()),
            ("session-stall-ms", limits.session_stall_ms.into()),
            false,
            "other sessions do not wait longer for a slow client than it may stall itself",
        );
        ordered(
            ("reconnect-min-ms", timeouts.reconnect_min_ms.into()),
            ("reconnect-max-ms", timeouts.reconnect_max_ms.into()),
            false,
            "the pause grows from the first to the second",
        );
        self.check_waits(problems);
    }

    /// Checks for every pool that a request waits in a batch for less than its deadline.
    pub(super) fn check_waits(&self, problems: &mut Vec<Problem>) {
        let mut check = |rule: &FlushRule, low: (String, &ConfigPlace)| {
            if rule.outwaits(&self.values.timeouts) {
                let why = "a waiting request would time out before it is sent";
                problems.push(self.disordered(low, "request-timeout-ms", true, why));
            }
        };
        const NAME: &str = "max-delay-us";
        let of_all = &self.values.flush;
        let waits = |rule: &FlushRule| (rule.aim, rule.max_delay_us);
        let differs = |rule: &FlushRule| waits(rule) != waits(of_all);
        // `None`: the pool has the flush rule of all pools.
        let pools = self.values.pools.iter();
        let rules = || pools.clone().map(|pool| self.rule_of(pool).filter(differs));
        if !self.has_named_pools() || rules().any(|rule| rule.is_none()) {
            check(of_all, (self.describe(NAME), self.place(NAME)));
        }
        for (pool, rule) in pools.clone().zip(rules()) {
            let Some(rule) = rule else { continue };
            let mut own = pool.options.iter();
            let own = own.find(|own| own.option.name == NAME && self.counts(own));
            let place = own.map_or(self.place(NAME), |own| &own.place);
            let name = format!("pool.{}.{NAME}", pool.name);
            check(
                &rule,
                (format!("`{name}` = {} ({place})", rule.max_delay_us), place),
            );
        }
    }

    /// The problem that `low`, a text with its place, is not below the option `high`, or not at
    /// most equal to it.
    pub(super) fn disordered(
        &self,
        low: (String, &ConfigPlace),
        high: &str,
        strict: bool,
        why: &str,
    ) -> Problem {
        let relation = if strict { "below" } else { "at most" };
        let (low_text, low_place) = low;
        // The problem has the place of the later of the two.
        let low_is_later = low_place.layer() >= self.place(high).layer();
        let place = if low_is_later {
            low_place
        } else {
            self.place(high)
        };
        let text = format!(
            "{low_text} must be {relation} {}: {why}; lower the first or raise the second",
            self.describe(high)
        );
        Problem::at(place.clone(), text)
    }

    /// An option as `name = value (place)`.
    pub(super) fn describe(&self, name: &str) -> String {
        let option = find(name).expect("relations name options of the table");
        let texts = option.get(&mut self.values.clone());
        format!(
            "`{name}` = {} ({})",
            option.in_file(&texts),
            self.place(name)
        )
    }
}

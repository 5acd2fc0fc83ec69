//! Makes a failing script short: it leaves out all that the failure does not need.

use std::time::{Duration, Instant};

use super::script::{Args, DifferScript, ScriptRequest};

/// The longest time to spend on it.
const TIME_MAX: Duration = Duration::from_secs(30);

/// Tries scripts; each attempt is one run of both sides.
pub(crate) struct Shrink<'a> {
    best: DifferScript,
    /// Whether a script fails in the same way.
    fails: &'a mut dyn FnMut(&DifferScript) -> Result<bool, String>,
    deadline: Instant,
    pub(crate) runs: u32,
}

impl<'a> Shrink<'a> {
    pub(crate) fn new(
        script: DifferScript,
        fails: &'a mut dyn FnMut(&DifferScript) -> Result<bool, String>,
    ) -> Shrink<'a> {
        Shrink {
            best: script,
            fails,
            deadline: Instant::now() + TIME_MAX,
            runs: 0,
        }
    }

    /// The shortest failing script.
    ///
    /// # Errors
    /// When a server has ended.
    pub(crate) fn run(mut self) -> Result<DifferScript, String> {
        loop {
            let before = self.best.clone();
            self.without_requests()?;
            self.without_cuts()?;
            self.in_one_round()?;
            self.with_fewer_connections()?;
            self.with_simpler_requests()?;
            if self.best == before || Instant::now() > self.deadline {
                return Ok(self.best);
            }
        }
    }

    /// Keeps a script if it still fails.
    fn attempt(&mut self, mut script: DifferScript) -> Result<bool, String> {
        script.tidy();
        if script == self.best || Instant::now() > self.deadline {
            return Ok(false);
        }
        self.runs += 1;
        let fails = (self.fails)(&script)?;
        if fails {
            self.best = script;
        }
        Ok(fails)
    }

    /// Leaves out runs of requests, halves first, then shorter ones. It starts at the end, as the
    /// requests behind the failure never ran.
    fn without_requests(&mut self) -> Result<(), String> {
        let mut length = self.best.requests().div_ceil(2).max(1);
        loop {
            let mut end = self.best.requests();
            while end > 0 {
                let start = end.saturating_sub(length);
                let shorter = without(&self.best, start, end);
                self.attempt(shorter)?;
                end = start;
            }
            if length == 1 {
                return Ok(());
            }
            length /= 2;
        }
    }

    fn without_cuts(&mut self) -> Result<(), String> {
        let mut plain = self.best.clone();
        for round in &mut plain.rounds {
            for step in &mut round.steps {
                step.cuts.clear();
            }
        }
        if self.attempt(plain)? {
            return Ok(());
        }
        for round in 0..self.best.rounds.len() {
            for step in 0..self.best.rounds[round].steps.len() {
                for cut in (0..self.best.rounds[round].steps[step].cuts.len()).rev() {
                    let mut fewer = self.best.clone();
                    fewer.rounds[round].steps[step].cuts.remove(cut);
                    self.attempt(fewer)?;
                }
            }
        }
        Ok(())
    }

    /// Merges neighbouring rounds: fewer rounds are easier to read.
    fn in_one_round(&mut self) -> Result<(), String> {
        let mut at = 1;
        while at < self.best.rounds.len() {
            let mut merged = self.best.clone();
            let round = merged.rounds.remove(at);
            let earlier = &mut merged.rounds[at - 1];
            // Only steps of one connection: two connections in one round have no order.
            let is_one = earlier.steps.len() == 1
                && round.steps.len() == 1
                && earlier.steps[0].connection == round.steps[0].connection;
            if is_one {
                earlier.steps[0]
                    .requests
                    .extend(round.steps[0].requests.clone());
            }
            if !is_one || !self.attempt(merged)? {
                at += 1;
            }
        }
        Ok(())
    }

    fn with_fewer_connections(&mut self) -> Result<(), String> {
        for from in (0..self.best.connections).rev() {
            for to in 0..from {
                let mut fewer = self.best.clone();
                for round in &mut fewer.rounds {
                    // Two steps of one connection in a round would become one, so such a script
                    // stays as it is.
                    let both = [from, to]
                        .iter()
                        .all(|one| round.steps.iter().any(|step| step.connection == *one));
                    if both {
                        continue;
                    }
                    for step in round
                        .steps
                        .iter_mut()
                        .filter(|step| step.connection == from)
                    {
                        step.connection = to;
                    }
                }
                if self.attempt(fewer)? {
                    break;
                }
            }
        }
        // Numbers connections without gaps.
        let mut used: Vec<usize> = self
            .best
            .rounds
            .iter()
            .flat_map(|round| &round.steps)
            .map(|step| step.connection)
            .collect();
        used.sort_unstable();
        used.dedup();
        let mut renamed = self.best.clone();
        renamed.connections = used.len().max(1);
        for step in renamed.rounds.iter_mut().flat_map(|round| &mut round.steps) {
            step.connection = used
                .iter()
                .position(|one| *one == step.connection)
                .unwrap_or(0);
        }
        self.attempt(renamed)?;
        Ok(())
    }

    /// Fewer and shorter arguments, arrays instead of lines.
    fn with_simpler_requests(&mut self) -> Result<(), String> {
        for at in (0..self.best.requests()).rev() {
            let Some(request) = request(&self.best, at) else {
                continue;
            };
            if let ScriptRequest::Inline(args) = &request {
                self.attempt(with(&self.best, at, ScriptRequest::Array(args.clone())))?;
            }
            for index in (1..request.args().len()).rev() {
                // The current request: each success changes it.
                let Some(request) = self::request(&self.best, at) else {
                    break;
                };
                let mut args: Args = request.args().to_vec();
                if index >= args.len() {
                    continue;
                }
                args.remove(index);
                if self.attempt(with(&self.best, at, rebuilt(&request, args)))? {
                    continue;
                }
                let length = request.args()[index].len();
                for shorter in [1, 16, 300].into_iter().filter(|shorter| *shorter < length) {
                    let mut args = request.args().to_vec();
                    args[index] = vec![b'a'; shorter];
                    if self.attempt(with(&self.best, at, rebuilt(&request, args)))? {
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

fn rebuilt(request: &ScriptRequest, args: Args) -> ScriptRequest {
    match request {
        ScriptRequest::Inline(_) => ScriptRequest::Inline(args),
        _ => ScriptRequest::Array(args),
    }
}

/// The script without requests `start..end`, counted over all rounds.
fn without(script: &DifferScript, start: usize, end: usize) -> DifferScript {
    let mut shorter = script.clone();
    let mut at = 0;
    for step in shorter.rounds.iter_mut().flat_map(|round| &mut round.steps) {
        step.requests.retain(|_| {
            at += 1;
            !(start..end).contains(&(at - 1))
        });
    }
    shorter
}

fn request(script: &DifferScript, at: usize) -> Option<ScriptRequest> {
    let steps = script.rounds.iter().flat_map(|round| &round.steps);
    steps.flat_map(|step| &step.requests).nth(at).cloned()
}

fn with(script: &DifferScript, at: usize, request: ScriptRequest) -> DifferScript {
    let mut changed = script.clone();
    let steps = changed.rounds.iter_mut().flat_map(|round| &mut round.steps);
    if let Some(place) = steps.flat_map(|step| &mut step.requests).nth(at) {
        *place = request;
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shrunk script keeps the requests that its failure needs, and no others.
    #[test]
    fn shrinking_keeps_only_the_failing_requests() {
        let mut text = String::from("connections 3\n");
        for number in 0..30 {
            text.push_str(&format!(
                "round\n{} SET k{number} v\n{0} GET k{number} x y\n{0} cut 3 9\n",
                number % 3
            ));
        }
        let script = DifferScript::read(&text).expect("a script");
        // Fails if k7 is set before k20 is read.
        let mut fails = |script: &DifferScript| {
            let names: Vec<String> = (0..)
                .map_while(|at| request(script, at))
                .map(|request| request.line())
                .collect();
            let set = names.iter().position(|line| line.starts_with("SET k7"));
            let get = names.iter().position(|line| line.starts_with("GET k20"));
            Ok(set.is_some() && set < get)
        };
        let short = Shrink::new(script, &mut fails)
            .run()
            .expect("nothing can go wrong");
        assert_eq!(short.write(), "connections 1\nround\n0 SET k7\n0 GET k20\n");
    }
}

//! Two sides that get the same requests.

use std::thread;
use std::time::{Duration, Instant};

use super::compare::{self, Difference, Forgiven};
use super::script::{DifferScript, RoundStep, ScriptRequest, ScriptRound};
use super::side::{Control, Side};
use super::state::DataState;
use respool_testkit::frame::Frame;

/// The result of a script.
#[derive(Debug)]
pub(crate) enum ScriptOutcome {
    Same,
    Different(Difference),
    /// The direct side answered as no server may: so nothing follows for the other side.
    Unsound(String),
}

/// The source of rounds: a script, or a generator that sees the state of the direct side.
pub(crate) type RoundSource<'a> = &'a mut dyn FnMut(&Side) -> Option<ScriptRound>;

#[derive(Debug)]
pub(crate) struct SidePair {
    pub(crate) direct: Side,
    pub(crate) other: Side,
    /// How long a reply may take.
    pub(crate) patience: Duration,
    pub(crate) forgiven: Forgiven,
    /// The last run left something at the servers that its clients should have taken with them.
    pub(crate) has_left_something: bool,
}

impl SidePair {
    pub(crate) fn new(direct: Side, other: Side, patience: Duration) -> SidePair {
        SidePair {
            direct,
            other,
            patience,
            forgiven: Forgiven::new(),
            has_left_something: false,
        }
    }

    /// Runs a script on empty servers to its end.
    ///
    /// # Errors
    /// When a server has ended.
    pub(crate) fn play(&mut self, script: &DifferScript) -> Result<ScriptOutcome, String> {
        let mut rounds = script.rounds.iter();
        let (_, outcome) = self.run(script.connections, &mut |_| rounds.next().cloned())?;
        Ok(outcome)
    }

    /// Runs rounds until there are none or a difference shows. Returns the script of these rounds.
    ///
    /// # Errors
    /// When a server has ended.
    pub(crate) fn run(
        &mut self,
        connections: usize,
        source: RoundSource<'_>,
    ) -> Result<(DifferScript, ScriptOutcome), String> {
        for side in [&mut self.direct, &mut self.other] {
            empty(&mut side.control)?;
            side.begin(connections);
        }
        let mut played = DifferScript {
            connections,
            rounds: Vec::new(),
        };
        let mut outcome = ScriptOutcome::Same;
        while let Some(mut round) = source(&self.direct) {
            // A blocked connection sends nothing meanwhile.
            round
                .steps
                .retain(|step| !self.direct.is_blocked(step.connection));
            played.rounds.push(round.clone());
            outcome = self.play_round(&round)?;
            if !matches!(outcome, ScriptOutcome::Same) {
                break;
            }
        }
        if matches!(outcome, ScriptOutcome::Same) {
            outcome = self.finish()?;
        }
        self.direct.end();
        self.other.end();
        let left_behind = self.wait_until_left()?;
        self.has_left_something = left_behind.is_some();
        if let (ScriptOutcome::Same, Some(difference)) = (&outcome, left_behind) {
            outcome = ScriptOutcome::Different(difference);
        }
        played.tidy();
        Ok((played, outcome))
    }

    fn play_round(&mut self, round: &ScriptRound) -> Result<ScriptOutcome, String> {
        self.direct.lay_out(round)?;
        let goal = match self.direct.settle(self.patience) {
            Ok(goal) => goal,
            Err(problem) => return Ok(ScriptOutcome::Unsound(problem)),
        };
        if let Err(problem) = self.other.lay_out(round) {
            return Ok(ScriptOutcome::Different(Difference {
                about: "a new connection".to_owned(),
                direct: "accepted, and CLIENT ID answered".to_owned(),
                other: problem,
                signature: "no connection".to_owned(),
            }));
        }
        let blocked = self.other.follow(&goal, self.patience)?;
        let difference = compare::sides(&self.direct, &self.other, &mut self.forgiven)
            .or_else(|| compare::blocked(goal.blocked, blocked));
        Ok(difference.map_or(ScriptOutcome::Same, ScriptOutcome::Different))
    }

    /// One more reply on every connection shows a duplicate. Then the data of the servers is
    /// compared.
    fn finish(&mut self) -> Result<ScriptOutcome, String> {
        let ping = |connection| RoundStep {
            connection,
            requests: vec![ScriptRequest::Array(vec![b"PING".to_vec()])],
            cuts: Vec::new(),
        };
        let connections = 0..self.direct.connections.len();
        let steps = connections
            .filter(|&connection| !self.direct.is_blocked(connection))
            .map(ping)
            .collect();
        let outcome = self.play_round(&ScriptRound { steps })?;
        if !matches!(outcome, ScriptOutcome::Same) {
            return Ok(outcome);
        }
        let read = |side: &mut Side| {
            DataState::read(&mut side.control, side.prefix)
                .map_err(|error| format!("the server: {error}"))
        };
        let (one, two) = (read(&mut self.direct)?, read(&mut self.other)?);
        Ok(match one.difference(&two) {
            None => ScriptOutcome::Same,
            Some((about, direct, other)) => {
                let kind = about.split(' ').next().unwrap_or_default();
                let signature = format!("state: {kind}");
                ScriptOutcome::Different(Difference {
                    about: format!("in the end, {about}"),
                    direct,
                    other,
                    signature,
                })
            }
        })
    }

    /// Clients that have left are not blocked or subscribed at the server any more.
    fn wait_until_left(&mut self) -> Result<Option<Difference>, String> {
        let deadline = Instant::now() + self.patience.min(LEAVING_MAX);
        loop {
            let (one, two) = (left(&mut self.direct)?, left(&mut self.other)?);
            if one.is_empty() && two.is_empty() {
                return Ok(None);
            }
            if Instant::now() > deadline {
                return Ok(Some(Difference {
                    about: "the rest at the server when all clients are gone".to_owned(),
                    direct: one,
                    other: two,
                    signature: "left behind".to_owned(),
                }));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The longest time until a client's end is noticed.
const LEAVING_MAX: Duration = Duration::from_secs(2);

fn left(side: &mut Side) -> Result<String, String> {
    let mut left = Vec::new();
    let blocked = side.blocked_clients()?;
    if blocked > 0 {
        left.push(format!("{blocked} blocked clients"));
    }
    for what in ["CHANNELS", "SHARDCHANNELS", "NUMPAT"] {
        let reply = side
            .control
            .call(&["PUBSUB", what])
            .map_err(|error| format!("the server: {error}"))?;
        let has_some = !reply.items().is_empty() || reply.integer().is_some_and(|count| count > 0);
        if has_some {
            left.push(format!("PUBSUB {what} {reply}"));
        }
    }
    Ok(left.join(", "))
}

/// Makes a server as new.
fn empty(server: &mut Control) -> Result<(), String> {
    for request in [
        &["FLUSHALL"][..],
        &["SCRIPT", "FLUSH"],
        &["FUNCTION", "FLUSH"],
    ] {
        let reply = server
            .call(request)
            .map_err(|error| format!("the server: {error}"))?;
        // 6.2 has no functions.
        let may_fail = matches!(&reply, Frame::Line(b'-', _)) && request[0] == "FUNCTION";
        if !reply.is_ok() && !may_fail {
            return Err(format!("{} was answered with {reply}", request.join(" ")));
        }
    }
    Ok(())
}

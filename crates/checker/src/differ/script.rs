//! A case as text: the requests of each connection in each round, to be printed, read, cut down and
//! run again.
//!
//! ```text
//! connections 2
//! round
//! 0 SET s1 "a\x00b"            connection 0 writes one request, ...
//! 0 GET s1                     ... and a second one behind it, in the same write
//! 1 inline GET s1              a line instead of an array
//! 0 cut 5 17                   its bytes leave in three pieces
//! round
//! 1 raw closes "*1\r\nfoo\r\n"  bytes as they are; an error and the end of the connection follow
//! 1 raw silent "\r\n"           bytes as they are; nothing follows
//! ```
//!
//! A round ends when all its replies have come. It leaves out a connection that is still blocked,
//! and reconnects one that was closed. `{id1}` as an argument is the id of connection 1 on its
//! side.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use respool_protocol::commands::{self, KeyFlags, id};

use respool_testkit::words;

/// The arguments of a request, with the name first.
pub(crate) type Args = Vec<Vec<u8>>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DifferScript {
    pub(crate) connections: usize,
    pub(crate) rounds: Vec<ScriptRound>,
}

/// Requests that are written before any reply is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScriptRound {
    /// At most one for each connection.
    pub(crate) steps: Vec<RoundStep>,
}

/// The requests of one connection in a round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoundStep {
    pub(crate) connection: usize,
    pub(crate) requests: Vec<ScriptRequest>,
    /// Increasing offsets at which the bytes are cut: each piece is a write of its own.
    pub(crate) cuts: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ScriptRequest {
    /// An array of bulk strings.
    Array(Args),
    /// A line of words.
    Inline(Args),
    /// Bytes without a reply.
    Silent(Vec<u8>),
    /// Bytes that break the protocol: an error and the end of the connection follow.
    Closes(Vec<u8>),
}

impl ScriptRequest {
    /// Its arguments; none for raw bytes.
    pub(crate) fn args(&self) -> &[Vec<u8>] {
        match self {
            ScriptRequest::Array(args) | ScriptRequest::Inline(args) => args,
            ScriptRequest::Silent(_) | ScriptRequest::Closes(_) => &[],
        }
    }

    /// The name of its command in capitals, or a name for raw bytes.
    pub(crate) fn name(&self) -> String {
        match self {
            ScriptRequest::Array(args) | ScriptRequest::Inline(args) => name(args),
            ScriptRequest::Silent(_) | ScriptRequest::Closes(_) => "(raw bytes)".to_owned(),
        }
    }

    /// The request with this prefix in front of its keys, and of a key pattern that begins with a
    /// letter.
    pub(crate) fn behind(&self, prefix: &[u8]) -> ScriptRequest {
        let mut request = self.clone();
        let (ScriptRequest::Array(args) | ScriptRequest::Inline(args)) = &mut request else {
            return request;
        };
        let row = match args.is_empty() || prefix.is_empty() {
            true => None,
            false => commands::resolve(args.len(), |at| &args[at][..]),
        };
        let Some(row) = row else {
            return request;
        };
        let mut keys = BTreeSet::new();
        // A request that the server refuses may have no known keys.
        let _ = row.get().keys(
            args.len(),
            |at| &args[at][..],
            |at, what| {
                if !what.has(KeyFlags::NOT_KEY) {
                    keys.insert(at);
                }
            },
        );
        let is_named = |pattern: &Vec<u8>| pattern.first().is_some_and(u8::is_ascii_alphabetic);
        if row == id::KEYS && args.get(1).is_some_and(is_named) {
            keys.insert(1);
        }
        for key in keys {
            args[key].splice(0..0, prefix.iter().copied());
        }
        request
    }

    /// Appends its bytes. `id` gives the ids of the connections.
    pub(crate) fn encode(&self, out: &mut Vec<u8>, id: &dyn Fn(usize) -> i64) {
        match self {
            ScriptRequest::Array(args) => {
                let args: Args = args.iter().map(|arg| with_id(arg, id)).collect();
                respool_protocol::encode::request(out, &args);
            }
            ScriptRequest::Inline(args) => {
                for (index, arg) in args.iter().enumerate() {
                    if index > 0 {
                        out.push(b' ');
                    }
                    let arg = with_id(arg, id);
                    let is_plain =
                        |byte: &u8| byte.is_ascii_alphanumeric() || b"-_:.*?".contains(byte);
                    if !arg.is_empty() && arg.iter().all(is_plain) {
                        out.extend_from_slice(&arg);
                    } else {
                        out.extend_from_slice(words::quote(&arg).as_bytes());
                    }
                }
                out.extend_from_slice(b"\r\n");
            }
            ScriptRequest::Silent(bytes) | ScriptRequest::Closes(bytes) => {
                out.extend_from_slice(bytes)
            }
        }
    }

    /// Its line in a script.
    pub(crate) fn line(&self) -> String {
        let words = |args: &Args| {
            let words: Vec<String> = args.iter().map(|arg| words::write(arg)).collect();
            words.join(" ")
        };
        match self {
            ScriptRequest::Array(args) if args.first().is_some_and(|name| is_keyword(name)) => {
                let rest = words(&args[1..].to_vec());
                format!("{} {rest}", words::quote(&args[0]))
            }
            ScriptRequest::Array(args) => words(args),
            ScriptRequest::Inline(args) => format!("inline {}", words(args)),
            ScriptRequest::Silent(bytes) => format!("raw silent {}", words::write(bytes)),
            ScriptRequest::Closes(bytes) => format!("raw closes {}", words::write(bytes)),
        }
    }
}

/// The name of a command in capitals, with its subcommand.
pub(crate) fn name(args: &[Vec<u8>]) -> String {
    let upper = |arg: &Vec<u8>| arg.to_ascii_uppercase().escape_ascii().to_string();
    let Some(name) = args.first().map(upper) else {
        return String::new();
    };
    match args.get(1) {
        Some(sub) if CONTAINERS.contains(&name.as_str()) => format!("{name} {}", upper(sub)),
        _ => name,
    }
}

const CONTAINERS: [&str; 17] = [
    "ACL",
    "CLIENT",
    "CLUSTER",
    "COMMAND",
    "CONFIG",
    "DEBUG",
    "FUNCTION",
    "LATENCY",
    "MEMORY",
    "MODULE",
    "OBJECT",
    "PUBSUB",
    "SCRIPT",
    "SLOWLOG",
    "XGROUP",
    "XINFO",
    "COMMANDLOG",
];

fn is_keyword(word: &[u8]) -> bool {
    [b"inline".as_slice(), b"raw", b"cut"].contains(&word)
}

fn with_id(arg: &[u8], id: &dyn Fn(usize) -> i64) -> Vec<u8> {
    let digits = arg
        .strip_prefix(b"{id")
        .and_then(|rest| rest.strip_suffix(b"}"));
    let connection = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    match connection {
        Some(connection) => id(connection).to_string().into_bytes(),
        None => arg.to_vec(),
    }
}

impl DifferScript {
    /// The requests of all connections.
    pub(crate) fn requests(&self) -> usize {
        let steps = self.rounds.iter().flat_map(|round| &round.steps);
        steps.map(|step| step.requests.len()).sum()
    }

    /// Whether it has a command whose name begins so.
    pub(crate) fn asks(&self, name: &str) -> bool {
        let steps = self.rounds.iter().flat_map(|round| &round.steps);
        steps
            .flat_map(|step| &step.requests)
            .any(|request| request.name().starts_with(name))
    }

    /// Removes empty steps and rounds.
    pub(crate) fn tidy(&mut self) {
        for round in &mut self.rounds {
            round.steps.retain(|step| !step.requests.is_empty());
        }
        self.rounds.retain(|round| !round.steps.is_empty());
    }

    pub(crate) fn write(&self) -> String {
        let mut text = format!("connections {}\n", self.connections);
        for round in &self.rounds {
            text.push_str("round\n");
            for step in &round.steps {
                for request in &step.requests {
                    let _ = writeln!(text, "{} {}", step.connection, request.line());
                }
                if !step.cuts.is_empty() {
                    let cuts: Vec<String> = step.cuts.iter().map(usize::to_string).collect();
                    let _ = writeln!(text, "{} cut {}", step.connection, cuts.join(" "));
                }
            }
        }
        text
    }

    /// Reads a script by [`DifferScript::write`] or by hand.
    ///
    /// # Errors
    /// With the line that cannot be read, and why.
    pub(crate) fn read(text: &str) -> Result<DifferScript, String> {
        let mut script = DifferScript::default();
        for (number, line) in text.lines().enumerate() {
            read_line(&mut script, line)
                .map_err(|problem| format!("line {}: {problem}", number + 1))?;
        }
        match script.connections {
            0 => Err("`connections N` is missing".to_owned()),
            _ => Ok(script),
        }
    }
}

fn read_line(script: &mut DifferScript, line: &str) -> Result<(), String> {
    let words = words::split(line)?;
    let Some((first, rest)) = words.split_first() else {
        return Ok(());
    };
    let number = |word: &words::LineWord| -> Option<usize> {
        std::str::from_utf8(&word.bytes).ok()?.parse().ok()
    };
    match (first.bytes.as_slice(), rest) {
        (b"connections", [count]) => {
            script.connections = number(count).ok_or("a number is expected")?;
            return Ok(());
        }
        (b"round", []) => {
            script.rounds.push(ScriptRound::default());
            return Ok(());
        }
        _ => {}
    }
    let connection =
        number(first).ok_or("`connections`, `round` or the number of a connection is expected")?;
    if connection >= script.connections {
        return Err(format!("there is no connection {connection}"));
    }
    let round = script.rounds.last_mut().ok_or("`round` is missing")?;
    let at = round
        .steps
        .iter()
        .position(|step| step.connection == connection);
    let at = at.unwrap_or_else(|| {
        round.steps.push(RoundStep {
            connection,
            ..RoundStep::default()
        });
        round.steps.len() - 1
    });
    let step = &mut round.steps[at];
    let keyword = match rest.first() {
        None => return Err("a request is expected".to_owned()),
        Some(word) if word.is_quoted => b"".as_slice(),
        Some(word) => &word.bytes,
    };
    let args = |words: &[words::LineWord]| {
        words
            .iter()
            .map(|word| word.bytes.clone())
            .collect::<Args>()
    };
    match (keyword, rest) {
        (b"cut", [_, cuts @ ..]) => {
            step.cuts = cuts
                .iter()
                .map(number)
                .collect::<Option<_>>()
                .ok_or("numbers are expected")?;
            step.cuts.sort_unstable();
        }
        (b"inline", [_, words @ ..]) => step.requests.push(ScriptRequest::Inline(args(words))),
        (b"raw", [_, what, bytes]) if what.bytes == b"silent" => {
            step.requests
                .push(ScriptRequest::Silent(bytes.bytes.clone()));
        }
        (b"raw", [_, what, bytes]) if what.bytes == b"closes" => {
            step.requests
                .push(ScriptRequest::Closes(bytes.bytes.clone()));
        }
        (b"raw", _) => {
            return Err("`raw silent BYTES` or `raw closes BYTES` is expected".to_owned());
        }
        _ => step.requests.push(ScriptRequest::Array(args(rest))),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_reads_as_it_was_written() {
        let text = "connections 2\nround\n0 SET s1 \"a\\x00b\"\n0 GET s1\n0 cut 5 17\n1 inline GET s1\nround\n\
                    1 raw closes \"*1\\r\\nfoo\\r\\n\"\n0 raw silent \"\\r\\n\"\n0 \"raw\" x\n0 CLIENT KILL ID {id1}\n";
        let script = DifferScript::read(text).expect("a script");
        let [first, second] = &script.rounds[..] else {
            panic!("two rounds")
        };
        assert_eq!(first.steps[0].cuts, [5, 17]);
        assert_eq!(
            first.steps[1].requests,
            [ScriptRequest::Inline(vec![b"GET".to_vec(), b"s1".to_vec()])]
        );
        let mut bytes = Vec::new();
        second.steps[1].requests[2].encode(&mut bytes, &|connection| 100 + connection as i64);
        assert_eq!(
            bytes,
            b"*4\r\n$6\r\nCLIENT\r\n$4\r\nKILL\r\n$2\r\nID\r\n$3\r\n101\r\n"
        );
        // Lines of one connection are written together.
        let written = script.write();
        assert_eq!(DifferScript::read(&written), Ok(script));
    }

    /// A line that cannot be read is named with its number.
    #[test]
    fn unreadable_line_is_named() {
        for (text, part) in [
            ("round\n", "connections"),
            ("connections 1\n0 GET k\n", "line 2: `round`"),
            ("connections 1\nround\n1 GET k\n", "no connection 1"),
            ("connections 1\nround\n0 raw odd x\n", "line 3: `raw silent"),
        ] {
            let problem = DifferScript::read(text).expect_err(text);
            assert!(problem.contains(part), "{text}: {problem}");
        }
    }
}

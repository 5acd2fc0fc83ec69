//! The table of options.
//!
//! It drives the command line, the configuration file, `--help`, the reference page, the manual
//! page and the printed configuration. An option has one name everywhere: `--max-delay-us 200` on
//! the command line is `max-delay-us = 200` in the file. [`Values::default`] holds the defaults;
//! those of limits, timeouts and the flush rule are the engine's own.
//!
//! To add an option, write a constant in the file of its topic, list it in [`OPTIONS`], and add its
//! field to [`Values`]. An option of TLS has more places: see `docs/design/driver.md`, *TLS in
//! each crate*.

mod access;
mod addresses;
mod batching;
mod deadlines;
mod in_file;
mod limits;
mod logs;
mod metrics;
mod number;
mod parse;
mod renamed;
mod spawn;
mod tls;
mod values;

use std::fmt;

pub use number::{NumberField, NumberKind};
pub use parse::switch;
pub(crate) use parse::{parse_path, parse_secret};
pub(crate) use renamed::{RENAMED, both_names, renamed_notice};
pub use renamed::{Renamed, find_by_any_name, switch_values, value_by_name};
pub use values::{LogFormat, LogLevel, Threads, Values};

/// One option.
pub struct Opt {
    /// The name, without leading dashes.
    pub name: &'static str,
    /// The heading under which it is listed.
    pub topic: Topic,
    /// The type of its value, and the field that holds it.
    pub kind: OptionKind,
    /// The placeholder for its value in help; empty for a switch.
    pub value: &'static str,
    /// The first line of its description, without a full stop.
    pub brief: &'static str,
    /// The rest of its description. An empty line separates paragraphs.
    pub more: &'static str,
    /// A value other than the default, as the command line takes it.
    pub example: &'static str,
    /// The environment variable that sets it, too.
    pub variable: Option<&'static str>,
    /// Whether its value is hidden wherever options are shown.
    pub secret: bool,
    /// Whether a pool may have its own value in the file.
    pub per_pool: bool,
    /// The effect of a reload on a changed value.
    pub at_reload: AtReload,
    /// Whether it is about listeners, their clients or the process: an embedded client has none.
    pub of_program: bool,
}

/// The effect of a reload of the configuration on an option with another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtReload {
    /// All workers use the new value.
    Applies,
    /// Nothing is reloaded: only a start can change the value.
    Restart,
}

/// The type of an option's value, and the field of [`Values`] that holds it.
pub enum OptionKind {
    /// `true` or `false`, or `yes` or `no`; the bare name means `true`.
    Switch(fn(&mut Values) -> &mut bool),
    /// A whole number.
    Number(NumberKind),
    /// One text.
    Text {
        /// Parses the text.
        set: fn(&mut Values, &str) -> Result<(), String>,
        /// Writes the value as `set` parses it; `None` if there is none.
        get: fn(&Values) -> Option<String>,
        /// Whether the file may have a whole number in place of a string.
        or_number: bool,
    },
    /// Any number of texts; in the file, an array. A later layer replaces the whole list.
    List {
        /// Parses a text and adds it.
        push: fn(&mut Values, &str) -> Result<(), String>,
        /// Removes the default, or the list of an earlier layer.
        clear: fn(&mut Values),
        /// Writes the elements as `push` parses them.
        get: fn(&Values) -> Vec<String>,
    },
}

/// The headings, in the order in which they are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// Listeners, servers, workers, and pages about the process.
    Addresses,
    /// A server of respool's own.
    Spawn,
    /// TLS of listeners and of servers.
    Tls,
    /// Passwords, users and refused commands.
    Access,
    /// When batches leave, and which requests they fuse.
    Batching,
    /// Deadlines, pauses and outages.
    Deadlines,
    /// Bounds.
    Limits,
    /// The log.
    Logs,
}

impl Topic {
    /// All headings, in order.
    pub const ALL: [Topic; 8] = [
        Topic::Addresses,
        Topic::Spawn,
        Topic::Tls,
        Topic::Access,
        Topic::Batching,
        Topic::Deadlines,
        Topic::Limits,
        Topic::Logs,
    ];

    /// The heading.
    pub fn title(self) -> &'static str {
        match self {
            Topic::Addresses => "Addresses and workers",
            Topic::Spawn => "A server of respool's own",
            Topic::Tls => "TLS",
            Topic::Access => "Passwords and users",
            Topic::Batching => "Batching",
            Topic::Deadlines => "Deadlines",
            Topic::Limits => "Limits",
            Topic::Logs => "Logs",
        }
    }

    /// The text below the heading, about all of its options; may be empty.
    pub fn intro(self) -> &'static str {
        match self {
            Topic::Addresses => "",
            Topic::Spawn => {
                "With --spawn, respool starts a Redis or Valkey server for itself alone and stops \
                 it at the end: a working cache with nothing else set up."
            }
            Topic::Tls => {
                "Options that begin with `tls` are for clients. Options that begin with `server-tls` are \
                 for servers that --backend reaches over TLS: rediss://, rediss-sharded://, \
                 rediss-cluster:// and rediss-sentinel://."
            }
            Topic::Access => {
                "Every user of the machine can read a command line. Give passwords in the file, in \
                 a password file or in the environment."
            }
            Topic::Batching => {
                "Requests of all sessions of a worker gather in the open batch of a link. A link \
                 that awaits no reply sends its batch at the end of the turn, so a lone client never \
                 waits."
            }
            Topic::Deadlines => {
                "Numbers are in the unit of the name; us, ms, s, min and h may be written behind \
                 them. respool looks every 50 ms whether a time is over."
            }
            Topic::Limits => {
                "Everything that can grow has a maximum. Numbers of bytes may be written with KiB, \
                 MiB, or GiB behind them. Unless its text says otherwise, a limit holds for each \
                 worker."
            }
            Topic::Logs => {
                "The log goes to standard error. The slow log and the sample of keys stay in memory."
            }
        }
    }
}

/// An option with the values that most options share.
const OPTION: Opt = Opt {
    name: "",
    topic: Topic::Addresses,
    kind: OptionKind::Switch(|values| &mut values.spawn),
    value: "",
    brief: "",
    more: "",
    example: "",
    variable: None,
    secret: false,
    per_pool: false,
    at_reload: AtReload::Restart,
    of_program: false,
};

/// Every option, in the order of the headings and of the help.
pub static OPTIONS: &[Opt] = &[
    addresses::LISTEN,
    addresses::BACKEND,
    addresses::POOL,
    addresses::ANNOUNCE,
    addresses::CLUSTER_SHOWS,
    addresses::ADDRESS_MAP,
    addresses::THREADS,
    metrics::METRICS_LISTEN,
    metrics::READY_REQUIRES_SERVER,
    addresses::CONTROL_SOCKET,
    spawn::SPAWN,
    spawn::SPAWN_PROGRAM,
    spawn::SPAWN_MEMORY_BYTES,
    tls::TLS_LISTEN,
    tls::TLS_CERT,
    tls::TLS_KEY,
    tls::TLS_CA,
    tls::TLS_CLIENT_AUTH,
    tls::TLS_MIN_VERSION,
    tls::SERVER_TLS_CA,
    tls::SERVER_TLS_CERT,
    tls::SERVER_TLS_KEY,
    tls::SERVER_TLS_NAME,
    tls::SERVER_TLS_VERIFY,
    access::PASSWORD,
    access::PASSWORD_FILE,
    access::SOCKET_MODE,
    access::SOCKET_OWNER,
    access::SOCKET_GROUP,
    access::USER,
    access::REFUSE_COMMANDS,
    access::BACKEND_PASSWORD,
    access::BACKEND_PASSWORD_FILE,
    access::BACKEND_PASSWORD_COMMAND,
    batching::FLUSH_RULE,
    batching::MAX_DELAY_US,
    batching::FUSE,
    batching::FUSED_KEYS_MAX,
    batching::COLLAPSE,
    deadlines::REQUEST_TIMEOUT_MS,
    deadlines::CONNECT_TIMEOUT_MS,
    deadlines::LINK_STALL_MS,
    deadlines::RECONNECT_MIN_MS,
    deadlines::RECONNECT_MAX_MS,
    deadlines::OUTAGE_HOLD_MS,
    deadlines::SERVER_DOWN_ERROR,
    deadlines::LOST_SUBSCRIPTIONS,
    deadlines::LOGIN_CHECK_MS,
    deadlines::SESSION_IDLE_MS,
    deadlines::AUTHENTICATE_TIMEOUT_MS,
    deadlines::DRAIN_TIMEOUT_MS,
    limits::SESSIONS_MAX,
    limits::SESSION_PIPELINE_MAX,
    limits::SESSION_OUTPUT_SOFT_BYTES,
    limits::SESSION_OUTPUT_HARD_BYTES,
    limits::SESSION_INPUT_BYTES_MAX,
    limits::SESSION_STALL_MS,
    limits::HEAD_OF_LINE_STALL_MS,
    limits::REQUEST_HELD_BYTES_MAX,
    limits::STREAMING_LINKS_MAX,
    limits::LINKS_MAX,
    limits::PINNED_LINKS_MAX,
    limits::PINNED_LINKS_FULL,
    limits::TRANSACTION_BYTES_MAX,
    limits::SESSION_SUBSCRIPTIONS_MAX,
    limits::WORKER_SUBSCRIPTIONS_MAX,
    limits::LINK_UNANSWERED_REQUESTS_MAX,
    limits::LINK_UNANSWERED_BYTES_MAX,
    limits::SERVER_OUTPUT_LIMITS,
    limits::WORKER_MEMORY_BYTES_MAX,
    logs::LOG_FORMAT,
    logs::LOG_LEVEL,
    logs::SLOWLOG_SLOWER_THAN_US,
    logs::SLOWLOG_LEN_MAX,
    logs::HOTKEYS_SAMPLE,
];

/// The option of that name.
pub fn find(name: &str) -> Option<&'static Opt> {
    OPTIONS.iter().find(|option| option.name == name)
}

impl Opt {
    /// Parses `text` into `values`. A list gets one more element.
    ///
    /// # Errors
    /// Names the fault of the text, and the right form.
    pub(crate) fn set(&self, values: &mut Values, text: &str) -> Result<(), String> {
        match &self.kind {
            OptionKind::Switch(field) => {
                let value = switch(text).ok_or("must be `true` or `false`, or `yes` or `no`")?;
                *field(values) = value;
                Ok(())
            }
            OptionKind::Number(number) => {
                let value = number.parse(text)?;
                match number.field {
                    NumberField::U64(field) => *field(values) = value,
                    NumberField::U32(field) => {
                        *field(values) =
                            u32::try_from(value).expect("the table's max fits its field");
                    }
                }
                Ok(())
            }
            OptionKind::Text { set, .. } => set(values, text),
            OptionKind::List { push, .. } => push(values, text),
        }
    }

    /// The texts that `values` hold, each as `set` parses it.
    pub fn get(&self, values: &mut Values) -> Vec<String> {
        match &self.kind {
            OptionKind::Switch(field) => vec![field(values).to_string()],
            OptionKind::Number(number) => vec![number.get(values).to_string()],
            OptionKind::Text { get, .. } => get(values).into_iter().collect(),
            OptionKind::List { get, .. } => get(values),
        }
    }

    /// The old name that works until the next version.
    pub fn old_name(&self) -> Option<&'static Renamed> {
        RENAMED.iter().find(|renamed| renamed.new == self.name)
    }

    /// The default, as help shows it; `None` if there is none.
    pub fn default(&self) -> Option<String> {
        let mut values = Values::default();
        if let OptionKind::Number(number) = &self.kind {
            return Some(number.describe(number.get(&mut values)));
        }
        Some(self.get(&mut values).join(" ")).filter(|text| !text.is_empty())
    }
}

/// Names are unique in the table.
impl PartialEq for Opt {
    fn eq(&self, other: &Opt) -> bool {
        self.name == other.name
    }
}

impl Eq for Opt {}

impl fmt::Debug for Opt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests;

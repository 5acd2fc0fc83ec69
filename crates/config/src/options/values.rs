//! The values of all options.

use std::path::PathBuf;

use respool_driver::tls::{ClientAuth, MinVersion};
use respool_engine::address_map::MapEntry;
use respool_engine::limits::Limits;
use respool_engine::settings::{
    Address, Announced, FlushRule, LostSubscriptions, ServerDownError, Shows, SlowLogSettings,
    Timeouts, User, WhenFull,
};
use respool_protocol::commands::{self, CommandId};

use crate::account::Account;
use crate::backend::BackendUrl;
use crate::password_command::PasswordCommand;
use crate::pools::NamedPool;

/// The values of all options, each valid by itself. [`crate::config`] checks them together.
#[derive(Clone, PartialEq, Eq)]
pub struct Values {
    pub(crate) listen: Vec<Address>,
    pub(crate) backend: BackendUrl,
    pub(crate) pools: Vec<NamedPool>,
    pub(crate) announce: Option<Announced>,
    pub(crate) shows: Shows,
    pub(crate) address_map: Vec<MapEntry>,
    pub(crate) threads: Threads,
    pub(crate) metrics_listen: Option<Address>,
    pub(crate) ready_requires_server: bool,
    pub(crate) control_socket: Option<PathBuf>,
    pub(crate) spawn: bool,
    pub(crate) spawn_program: Option<PathBuf>,
    pub(crate) spawn_memory_bytes: u64,
    pub(crate) tls_listen: Vec<Address>,
    pub(crate) tls_certs: Vec<PathBuf>,
    pub(crate) tls_keys: Vec<PathBuf>,
    pub(crate) tls_ca: Option<PathBuf>,
    pub(crate) tls_client_auth: ClientAuth,
    pub(crate) tls_min_version: MinVersion,
    pub(crate) server_tls_ca: Option<PathBuf>,
    pub(crate) server_tls_cert: Option<PathBuf>,
    pub(crate) server_tls_key: Option<PathBuf>,
    pub(crate) server_tls_name: Option<String>,
    pub(crate) server_tls_verify: bool,
    pub(crate) socket_mode: u32,
    pub(crate) socket_owner: Option<Account>,
    pub(crate) socket_group: Option<Account>,
    pub(crate) password: Option<String>,
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) users: Vec<User>,
    pub(crate) backend_password: Option<String>,
    pub(crate) backend_password_file: Option<PathBuf>,
    pub(crate) backend_password_command: Option<PasswordCommand>,
    pub(crate) refused: Vec<CommandId>,
    pub(crate) passes_debug_object: bool,
    pub(crate) flush: FlushRule,
    pub(crate) timeouts: Timeouts,
    pub(crate) drain_timeout_ms: u32,
    pub(crate) limits: Limits,
    pub(crate) asks_output_limits: bool,
    pub(crate) pinned_links_full: WhenFull,
    pub(crate) server_down_error: ServerDownError,
    pub(crate) lost_subscriptions: LostSubscriptions,
    pub(crate) slow_log: SlowLogSettings,
    pub(crate) hot_keys_sample: u32,
    pub(crate) log_format: LogFormat,
    pub(crate) log_level: LogLevel,
}

impl Default for Values {
    fn default() -> Self {
        Values {
            // Next to the usual port of Redis, and for clients of this machine alone.
            listen: vec![Address::Tcp {
                host: "127.0.0.1".into(),
                port: 6380,
            }],
            backend: BackendUrl::default(),
            pools: Vec::new(),
            announce: None,
            shows: Shows::default(),
            address_map: Vec::new(),
            threads: Threads::Auto,
            metrics_listen: None,
            ready_requires_server: true,
            control_socket: None,
            spawn: false,
            spawn_program: None,
            spawn_memory_bytes: 256 << 20,
            tls_listen: Vec::new(),
            tls_certs: Vec::new(),
            tls_keys: Vec::new(),
            tls_ca: None,
            tls_client_auth: ClientAuth::default(),
            tls_min_version: MinVersion::default(),
            server_tls_ca: None,
            server_tls_cert: None,
            server_tls_key: None,
            server_tls_name: None,
            server_tls_verify: true,
            password: None,
            password_file: None,
            // As with other servers, a client that can reach the directory may connect.
            socket_mode: 0o777,
            socket_owner: None,
            socket_group: None,
            users: Vec::new(),
            backend_password: None,
            backend_password_file: None,
            backend_password_command: None,
            refused: commands::all().filter(|id| id.get().dangerous).collect(),
            // DEBUG OBJECT only reads, as DUMP does.
            passes_debug_object: true,
            flush: FlushRule::default(),
            timeouts: Timeouts::default(),
            drain_timeout_ms: 10_000,
            limits: Limits::default(),
            asks_output_limits: true,
            pinned_links_full: WhenFull::default(),
            server_down_error: ServerDownError::default(),
            lost_subscriptions: LostSubscriptions::default(),
            slow_log: SlowLogSettings::default(),
            hot_keys_sample: 0,
            log_format: LogFormat::Text,
            log_level: LogLevel::Info,
        }
    }
}

/// The number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One for each core that respool may use.
    Auto,
    /// This many.
    Exactly(usize),
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The level of the least severe lines that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Errors alone.
    Error,
    /// Warnings, too.
    Warn,
    /// Events of the operation, too.
    Info,
    /// Details for a search of faults, too.
    Debug,
    /// Everything.
    Trace,
}

/// The most workers. Most machines have fewer cores, and a mistyped number is noticed.
pub(crate) const THREADS_MAX: usize = 1_024;

impl LogLevel {
    pub(super) const ALL: [LogLevel; 5] = [
        LogLevel::Error,
        LogLevel::Warn,
        LogLevel::Info,
        LogLevel::Debug,
        LogLevel::Trace,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        }
    }
}

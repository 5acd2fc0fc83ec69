//! The configuration of respool: URLs, options and files become settings of the engine and of the
//! driver, or every problem in them.
//!
//! - `raw` keeps the texts of all layers: file, environment and arguments.
//! - `options` is the table of options. `address` parses listeners, `backend` URLs of servers,
//!   `pools` named pools, and `account` users and groups of the system.
//! - `config` makes a checked configuration of the texts, or returns every `problem`.
//! - `passwords` reads files with passwords, at the start and later; `tls_files` those with
//!   certificates. `password_command` runs commands that print passwords.
//! - `plain` escapes text from outside.

mod account;
pub mod address;
pub mod backend;
pub mod config;
pub mod options;
mod password_command;
pub mod passwords;
pub mod plain;
pub mod pools;
pub mod problem;
pub mod raw;
pub mod tls_files;

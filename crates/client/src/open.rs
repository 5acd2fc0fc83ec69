//! Opens a client by a URL and options.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use respool_config::config::{Backend, Config};
use respool_config::passwords::Rereader;
use respool_config::plain::plain;
use respool_config::problem::{ConfigPlace, Problem};
use respool_config::raw::RawConfig;
use respool_driver::{Notice, Notify, StartError};
use tracing::warn;

use crate::{Client, Core, Parts};

/// The option that [`ClientOptions::open`] takes apart.
const URL: &str = "backend";
/// Values of options for a client, where those of the program are for strangers: a program may use
/// each command of its own server, and tells outcomes apart by the type of an error.
const DEFAULTS: [(&str, &str); 2] = [
    ("refuse-commands", "none"),
    ("server-down-error", "notsent"),
];

/// Options of a client, by their names in the configuration of respool: see
/// [`Client::options`].
#[derive(Clone, Default)]
pub struct ClientOptions {
    /// Names and values, in the order in which they were set.
    texts: Vec<(String, String)>,
    resp3: bool,
    notify: Option<Notify>,
}

impl ClientOptions {
    /// Sets an option. The value is written as in `respool serve --NAME VALUE`: numbers are in the
    /// unit of the name, or in one behind them, such as `2s` or `64MiB`.
    ///
    /// Two defaults are not those of the program: `refuse-commands` is `none`, and
    /// `server-down-error` is `notsent`.
    ///
    /// Of an option with one value the last one counts. Each value of a list is set by itself. A
    /// wrong name or value is an error of [`ClientOptions::open`].
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> ClientOptions {
        self.texts.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Chooses the protocol of the replies to calls: RESP3, or RESP2, which is the default. A
    /// server that does not have RESP3 answers in RESP2.
    #[must_use]
    pub fn resp3(mut self, on: bool) -> ClientOptions {
        self.resp3 = on;
        self
    }

    /// Sets the function that gets events for the operator. It is called on the client's thread or
    /// on that of a caller. It must not block, and must not call the client.
    #[must_use]
    pub fn notify(mut self, notify: Notify) -> ClientOptions {
        self.notify = Some(notify);
        self
    }

    /// Opens a client with these options: see [`Client::open`].
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(&self, url: &str) -> Result<Client, OpenError> {
        self.open_with(url, |parts| Core::start(parts).map_err(OpenError::Start))
    }

    /// Opens a client with these options on the current runtime: see [`Client::on_tokio`].
    ///
    /// # Errors
    /// See [`OpenError`].
    ///
    /// # Panics
    /// See [`Client::on_tokio`].
    #[cfg(feature = "tokio")]
    pub fn on_tokio(&self, url: &str) -> Result<Client, OpenError> {
        self.open_with(url, Core::start_on_tokio)
    }

    fn open_with(
        &self,
        url: &str,
        start: impl FnOnce(Parts) -> Result<Core, OpenError>,
    ) -> Result<Client, OpenError> {
        let config = self.config(url).map_err(OpenError::of_problems)?;
        for warning in &config.warnings {
            warn!("{}", plain(warning));
        }
        let urls = config.pools.iter().filter_map(|pool| match &pool.backend {
            Backend::Server(url) => Some((**url).clone()),
            Backend::Spawn(_) => None,
        });
        let rereader = Rereader::new(&config.renewable_passwords, &config.tls_files);
        let core = start(Parts {
            settings: Arc::new(config.settings(&urls.collect::<Vec<_>>())),
            pool_tls: config.tls_files.of_pools(config.pools.len()),
            resp3: self.resp3,
            notify: asking(rereader.clone(), self.notify.clone()),
            rereader,
        })?;
        core.read_again().map_err(OpenError::Thread)?;
        Ok(Client(Arc::new(core)))
    }

    /// Checks the URL and these options without opening anything. It reads files and runs commands
    /// as [`Client::open`] does.
    ///
    /// # Errors
    /// [`OpenError::Invalid`].
    pub fn check(&self, url: &str) -> Result<(), OpenError> {
        let checked = self.config(url);
        checked.map(drop).map_err(OpenError::of_problems)
    }

    fn config(&self, url: &str) -> Result<Config, Vec<Problem>> {
        let mut raw = RawConfig::default();
        raw.add_code(URL, url);
        for (name, value) in DEFAULTS {
            if self.texts.iter().all(|(set, _)| set != name) {
                raw.add_code(name, value);
            }
        }
        for (name, value) in &self.texts {
            if name == URL {
                let what = "is the URL of the call `open`: give it there";
                let problem = Problem::of_option(name, &ConfigPlace::Code, what);
                raw.problems.push(problem);
            } else {
                raw.add_code(name, value);
            }
        }
        Ok(Config::resolve(raw)?.0)
    }
}

/// Has refused passwords read again from their files and commands, and passes other events on.
fn asking(rereader: Rereader, notify: Option<Notify>) -> Notify {
    Arc::new(move |notice| match (notice, &notify) {
        (Notice::PasswordRefused { source }, _) => rereader.ask(source),
        (notice, Some(notify)) => notify(notice),
        (_, None) => {}
    })
}

/// A client that cannot be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL or options are wrong. Each text is one problem with its remedy, in front of it the
    /// name of the option; the URL is the option `backend`. No text has a password.
    Invalid(Vec<String>),
    /// The system refuses the thread of the client, or a descriptor.
    Start(StartError),
    /// The system refuses the thread that reads passwords and certificates again.
    Thread(io::Error),
    /// There is no runtime for the task of the client, or the system refuses it a descriptor.
    #[cfg(feature = "tokio")]
    Runtime(io::Error),
}

impl OpenError {
    fn of_problems(problems: Vec<Problem>) -> OpenError {
        let problems = problems.iter();
        let texts = problems.map(|problem| plain(&problem.to_string()).into_owned());
        OpenError::Invalid(texts.collect())
    }
}

impl From<StartError> for OpenError {
    fn from(error: StartError) -> OpenError {
        OpenError::Start(error)
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Invalid(problems) => f.write_str(&problems.join("\n")),
            OpenError::Start(error) => error.fmt(f),
            OpenError::Thread(error) => {
                write!(f, "cannot start the thread that reads passwords: {error}")
            }
            #[cfg(feature = "tokio")]
            OpenError::Runtime(error) => {
                write!(f, "cannot start the task of the client: {error}")
            }
        }
    }
}

impl Error for OpenError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            OpenError::Invalid(_) => None,
            OpenError::Start(error) => Some(error),
            OpenError::Thread(error) => Some(error),
            #[cfg(feature = "tokio")]
            OpenError::Runtime(error) => Some(error),
        }
    }
}

//! Which user a session is, what that user may do, and whether servers accept our logins.

pub(crate) mod acl;
pub(crate) mod auth;
pub(crate) mod guess_delay;
pub(crate) mod login_check;
pub(crate) mod login_probe;
pub(crate) mod login_state;
pub(crate) mod passwords;

use auth::Logins;
use login_probe::LoginProbes;

/// The users that clients have named, and logins that are being tried.
#[derive(Default)]
pub(crate) struct Access {
    pub(crate) logins: Logins,
    pub(crate) login_probes: LoginProbes,
}

//! Reads passwords, and makes the users of respool.

use std::path::Path;

use respool_engine::settings::{PasswordSource, User};

use super::resolve::Resolved;
use crate::backend::{BackendServers, BackendUrl, ORIGINS, SENTINEL_ORIGINS};
use crate::passwords::{PasswordOrigin, RenewablePasswords, readable_by_others};
use crate::problem::{ConfigPlace, Problem};
use crate::tls_files::TlsFiles;

impl Resolved {
    /// The users that may connect: `default`, if there is a password, and the named ones.
    pub(super) fn users(
        &self,
        passwords: &mut RenewablePasswords,
        problems: &mut Vec<Problem>,
    ) -> Vec<User> {
        let values = &self.values;
        let literal = values.password.as_ref().map(|_| "password");
        let file = values.password_file.as_ref().map(|_| "password-file");
        let password = match self.latest(&[literal, file], problems) {
            None => None,
            Some("password") => values.password.clone().map(|password| (password, None)),
            Some(name) => {
                let path = values.password_file.as_deref();
                let read = path.and_then(|path| self.read_secret(name, path, passwords, problems));
                read.map(|(password, source)| (password, Some(source)))
            }
        };
        let default = password.map(|(password, source)| User {
            name: "default".into(),
            password,
            source,
        });
        let mut users: Vec<User> = Vec::new();
        for user in default.iter().chain(&values.users) {
            if users.iter().any(|other| other.name == user.name) {
                let what = match user.name.as_str() {
                    "default" => {
                        "`default` is the user of `password`: give one of them, once".into()
                    }
                    name => format!("`{name}` is given twice"),
                };
                problems.push(Problem::of_option("user", self.place("user"), what));
            } else {
                users.push(user.clone());
            }
        }
        users
    }

    /// Reads the password file that an option names. Returns the password and the number of its
    /// origin.
    pub(super) fn read_secret(
        &self,
        name: &str,
        path: &Path,
        passwords: &mut RenewablePasswords,
        problems: &mut Vec<Problem>,
    ) -> Option<(String, PasswordSource)> {
        let origin = PasswordOrigin::File(path.to_owned());
        let secret = passwords.read(&format!("--{name}"), &origin);
        secret
            .map_err(|what| {
                let problem = Problem::of_option(name, self.place(name), what);
                problems.push(problem.of_moment());
            })
            .ok()
    }

    /// Warnings about files with passwords or private keys that other users of the machine may
    /// read.
    pub(super) fn readable_secrets(
        &self,
        passwords: &RenewablePasswords,
        tls: &TlsFiles,
    ) -> Vec<String> {
        let config = self.file_with_secrets();
        let config = config.and_then(|path| readable_by_others(Path::new(&path), "a password"));
        let config = config.map(|warning| format!("--config: {warning}"));
        let keys = tls.keys().filter_map(|(option, path)| {
            let warning = readable_by_others(path, "a private key")?;
            Some(format!("--{option}: {warning}"))
        });
        passwords.warnings().chain(config).chain(keys).collect()
    }

    /// The path of the configuration file, if it has a password.
    pub(super) fn file_with_secrets(&self) -> Option<String> {
        let values = &self.values;
        let has_password = |url: &BackendUrl| url.password.is_some();
        let path = |place: &ConfigPlace| match place {
            ConfigPlace::File { path, .. } => Some(path.clone()),
            _ => None,
        };
        let of_all = [
            ("password", values.password.is_some()),
            ("backend-password", values.backend_password.is_some()),
            ("user", !values.users.is_empty()),
            ("backend", has_password(&values.backend)),
        ];
        let of_all = of_all.into_iter().filter(|(_, is_secret)| *is_secret);
        let of_all = of_all.filter_map(|(name, _)| path(self.place(name)));
        let of_pools = values.pools.iter().filter(|pool| {
            let backend = pool.backend.iter().map(|(url, _)| url);
            let prefixes = pool.prefixes.iter().map(|part| &part.url);
            backend.chain(prefixes).any(has_password)
        });
        let mut all = of_all.chain(of_pools.filter_map(|pool| path(&pool.place)));
        all.next()
    }
}

/// The same URL with the passwords from the origins that it names. `option` is the option for the
/// origin of its servers' password, for messages; `None`: it is a parameter of the URL.
pub(super) fn with_passwords(
    url: &BackendUrl,
    option: Option<&str>,
    passwords: &mut RenewablePasswords,
    wrong: &mut dyn FnMut(String),
) -> BackendUrl {
    let mut url = url.clone();
    if let Some(origin) = &url.origin {
        let name = option.unwrap_or_else(|| ORIGINS.name_of(origin));
        match passwords.read_for_servers(name, origin) {
            Ok((password, source)) => {
                url.password = Some(password);
                url.source = Some(source);
            }
            Err(what) => wrong(what),
        }
    }
    if let BackendServers::Sentinel(sentinels) = &mut url.servers
        && let Some(origin) = &sentinels.origin
    {
        match passwords.read_for_servers(SENTINEL_ORIGINS.name_of(origin), origin) {
            Ok(read) => sentinels.set_password(read),
            Err(what) => wrong(what),
        }
    }
    url
}

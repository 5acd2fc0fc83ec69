//! Reads passwords, and makes the users of respool.

use std::path::Path;

use respool_engine::settings::{PasswordSource, User};

use super::resolve::Resolved;
use crate::backend::{BackendServers, BackendUrl};
use crate::passwords::{PasswordFiles, readable_by_others};
use crate::problem::{ConfigPlace, Problem};

impl Resolved {
    /// The users that may connect: `default`, if there is a password, and the named ones.
    pub(super) fn users(
        &self,
        files: &mut PasswordFiles,
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
                let read = path.and_then(|path| self.read_secret(name, path, files, problems));
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

    /// Reads the password file that an option names. Returns the password and the number of the
    /// file.
    pub(super) fn read_secret(
        &self,
        name: &str,
        path: &Path,
        files: &mut PasswordFiles,
        problems: &mut Vec<Problem>,
    ) -> Option<(String, PasswordSource)> {
        let secret = files.read(&format!("--{name}"), path);
        secret
            .map_err(|what| problems.push(Problem::of_option(name, self.place(name), what)))
            .ok()
    }

    /// Warnings about files with passwords that other users of the machine may read.
    pub(super) fn readable_secrets(&self, files: &PasswordFiles) -> Vec<String> {
        let config = self.file_with_secrets();
        let config = config.and_then(|path| readable_by_others(Path::new(&path)));
        let config = config.map(|warning| format!("--config: {warning}"));
        files.warnings().chain(config).collect()
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

/// The same URL with the passwords from the files that it names. `option` is the name of the option
/// or parameter for the password file of its servers, for errors.
pub(super) fn with_passwords(
    url: &BackendUrl,
    option: &str,
    files: &mut PasswordFiles,
    wrong: &mut dyn FnMut(String),
) -> BackendUrl {
    let mut url = url.clone();
    if let Some(path) = &url.password_file {
        match files.read(option, path) {
            Ok((password, source)) => {
                url.password = Some(password);
                url.source = Some(source);
            }
            Err(what) => wrong(what),
        }
    }
    if let BackendServers::Sentinel(sentinels) = &mut url.servers
        && let Some(path) = &sentinels.password_file
    {
        match files.read("sentinel-password-file", path) {
            Ok(read) => sentinels.set_password(read),
            Err(what) => wrong(what),
        }
    }
    url
}

//! The configuration as a TOML file.

use super::resolve::Resolved;
use crate::options::{OPTIONS, Opt, Values};
use crate::pools::UNNAMED_POOL_OPTIONS;

/// The options that give the same password in several forms. Of these the latest layer counts.
const PASSWORD_FORMS: [&[&str]; 2] = [
    &["password", "password-file"],
    &[
        "backend",
        "backend-password",
        "backend-password-file",
        "backend-password-command",
    ],
];

impl Resolved {
    /// A file that makes the same configuration. Each line has a comment with the place of the
    /// value. Passwords are left out.
    pub fn to_toml(&self) -> String {
        let mut values = self.values.clone();
        let mut lines = String::from(
            "# The configuration in effect, with the place of each value. Passwords are not shown.\n",
        );
        for option in OPTIONS {
            if option.name == "pool" && self.has_named_pools() {
                continue;
            }
            lines.push_str(&self.line(option, &mut values));
            lines.push('\n');
        }
        if self.has_named_pools() {
            for pool in &self.values.pools {
                lines.push_str(&pool.to_toml(|own| self.counts(own)));
            }
        }
        lines
    }

    pub(super) fn line(&self, option: &Opt, values: &mut Values) -> String {
        let (name, place) = (option.name, self.place(option.name));
        let texts = option.get(values);
        if texts.is_empty() {
            return format!("# {name} is not set");
        }
        // Of two options that exclude each other, the overruled one would make the file wrong.
        let overruled = match name {
            name if UNNAMED_POOL_OPTIONS.contains(&name) && self.has_named_pools() => true,
            "listen" => self.is_tls_only(),
            "backend" => values.spawn && self.place("spawn").layer() >= place.layer(),
            "spawn" => values.spawn && self.place("backend").layer() > place.layer(),
            "spawn-program" | "spawn-memory-bytes" => {
                !values.spawn || self.place("backend").layer() > self.place("spawn").layer()
            }
            _ => self.has_later_password(name),
        };
        let value = match option.secret {
            true => "\"********\"".to_owned(),
            false => option.in_file(&texts),
        };
        let line = format!("{name} = {value}  # {place}");
        match (overruled, option.secret) {
            (true, _) => format!("# {line}, not in use"),
            (false, true) => format!("# {line}"),
            (false, false) => line,
        }
    }

    /// Whether a later layer gives the password of an option in another form.
    fn has_later_password(&self, name: &str) -> bool {
        let Some(forms) = PASSWORD_FORMS.iter().find(|forms| forms.contains(&name)) else {
            return false;
        };
        let layer = self.place(name).layer();
        let mut forms = forms.iter().filter(|form| match **form {
            "backend" => self.values.backend.has_password(),
            form => self.places.contains_key(form),
        });
        name != "backend" && forms.any(|form| self.place(form).layer() > layer)
    }
}

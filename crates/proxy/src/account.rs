//! Users and groups of the system, by name or number.

use nix::unistd::{Group, User};

/// A user or a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) id: u32,
    /// As it was given.
    pub(crate) said: String,
}

/// # Errors
/// When the system knows no such user.
pub(crate) fn user(text: &str) -> Result<Account, String> {
    let look_up = |name: &str| User::from_name(name).map(|user| user.map(|user| user.uid.as_raw()));
    account(text, "user", look_up)
}

/// # Errors
/// When the system knows no such group.
pub(crate) fn group(text: &str) -> Result<Account, String> {
    let look_up =
        |name: &str| Group::from_name(name).map(|group| group.map(|group| group.gid.as_raw()));
    account(text, "group", look_up)
}

fn account(
    text: &str,
    kind: &str,
    look_up: impl Fn(&str) -> nix::Result<Option<u32>>,
) -> Result<Account, String> {
    let said = text.to_owned();
    if let Ok(id) = text.parse() {
        return Ok(Account { id, said });
    }
    match look_up(text) {
        Ok(Some(id)) => Ok(Account { id, said }),
        Ok(None) => Err(format!("the system knows no {kind} of this name")),
        Err(error) => Err(format!("the system cannot look up the {kind}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_have_names_and_numbers() {
        assert_eq!(user("root").map(|user| user.id), Ok(0));
        assert_eq!(group("root").map(|group| group.id), Ok(0));
        assert_eq!(user("1234").map(|user| user.id), Ok(1234));
        let unknown = user("no-such-user-here").expect_err("there is none");
        assert_eq!(unknown, "the system knows no user of this name");
    }
}

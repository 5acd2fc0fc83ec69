//! Users and groups of the system, by name or number.

use nix::unistd::{Group, User};

/// A user or a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    /// The number of the user or group.
    pub(crate) id: u32,
    /// The name or number as the operator gives it.
    pub(crate) name: String,
}

/// Looks up a user.
///
/// # Errors
/// When the system has no such user.
pub(crate) fn user(text: &str) -> Result<Account, String> {
    let look_up = |name: &str| User::from_name(name).map(|user| user.map(|user| user.uid.as_raw()));
    account(text, "user", look_up)
}

/// Looks up a group.
///
/// # Errors
/// When the system has no such group.
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
    let name = text.to_owned();
    if let Ok(id) = text.parse() {
        return Ok(Account { id, name });
    }
    match look_up(text) {
        Ok(Some(id)) => Ok(Account { id, name }),
        Ok(None) => Err(format!("the system has no {kind} of this name")),
        Err(error) => Err(format!("the system cannot look up the {kind}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn account_is_found_by_name_and_number() {
        assert_eq!(user("root").map(|user| user.id), Ok(0));
        assert_eq!(group("root").map(|group| group.id), Ok(0));
        assert_eq!(user("1234").map(|user| user.id), Ok(1234));
        let unknown = user("no-such-user-here").expect_err("there is none");
        assert_eq!(unknown, "the system has no user of this name");
    }
}

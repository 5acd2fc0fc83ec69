//! Values of options as the TOML file has them.

use toml_edit::Value;

use super::{Opt, OptionKind};
use crate::plain::{is_plain, plain_toml};

impl Opt {
    /// The example as a value in the file.
    pub fn example_in_file(&self) -> String {
        self.in_file(&[self.example.to_owned()])
    }

    /// Texts as a value in the file.
    pub fn in_file(&self, texts: &[String]) -> String {
        let quoted = |text: &String| match is_plain(text) {
            true => Value::from(text.as_str()).to_string(),
            false => plain_toml(text),
        };
        let bare = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match (&self.kind, texts) {
            (OptionKind::List { .. }, texts) => {
                format!(
                    "[{}]",
                    texts.iter().map(quoted).collect::<Vec<_>>().join(", ")
                )
            }
            (OptionKind::Switch(_), [text]) => text.clone(),
            (
                OptionKind::Number(_)
                | OptionKind::Text {
                    or_number: true, ..
                },
                [text],
            ) if bare(text) => text.clone(),
            (_, texts) => texts.iter().map(quoted).collect(),
        }
    }
}

//! Options for the log.

use super::values::{LogFormat, LogLevel};
use super::{OPTION, Opt, OptionKind, Topic};

pub(super) const LOG_FORMAT: Opt = Opt {
    name: "log-format",
    topic: Topic::Logs,
    kind: OptionKind::Text {
        set: |values, text| {
            values.log_format = match text {
                "text" => LogFormat::Text,
                "json" => LogFormat::Json,
                _ => return Err("must be `text` or `json`".into()),
            };
            Ok(())
        },
        get: |values| {
            Some(match values.log_format {
                LogFormat::Text => "text".into(),
                LogFormat::Json => "json".into(),
            })
        },
        or_number: false,
    },
    value: "text|json",
    brief: "Lines for people, or one JSON object a line",
    more: "",
    example: "json",
    ..OPTION
};

pub(super) const LOG_LEVEL: Opt = Opt {
    name: "log-level",
    topic: Topic::Logs,
    kind: OptionKind::Text {
        set: |values, text| {
            let level = LogLevel::ALL.iter().find(|level| level.name() == text);
            values.log_level =
                *level.ok_or("must be `error`, `warn`, `info`, `debug` or `trace`")?;
            Ok(())
        },
        get: |values| Some(values.log_level.name().into()),
        or_number: false,
    },
    value: "LEVEL",
    brief: "The least severe lines: error, warn, info, debug or trace",
    more: "",
    example: "warn",
    ..OPTION
};

//! Options for the log.

use respool_engine::limits::SLOW_US_MAX;

use super::number::{NumberField, NumberKind, Unit, number, number_or_zero};
use super::values::{LogFormat, LogLevel};
use super::{AtReload, OPTION, Opt, OptionKind, Topic};

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
    of_program: true,
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
    of_program: true,
    ..OPTION
};

/// The times that [`SLOWLOG_SLOWER_THAN_US`] takes, beside -1.
const SLOW_TIMES: NumberKind = NumberKind {
    unit: Unit::Microseconds,
    min: 0,
    max: SLOW_US_MAX as u64,
    zero: None,
    field: NumberField::U32(|values| values.slow_log.slower_than_us.get_or_insert_default()),
};

pub(super) const SLOWLOG_SLOWER_THAN_US: Opt = Opt {
    name: "slowlog-slower-than-us",
    topic: Topic::Logs,
    kind: OptionKind::Text {
        set: |values, text| {
            values.slow_log.slower_than_us = match text {
                "-1" => None,
                _ => {
                    let us = SLOW_TIMES.parse(text);
                    let us = us.map_err(|error| format!("{error}; or -1 (no slow log)"))?;
                    Some(u32::try_from(us).expect("the largest time fits"))
                }
            };
            Ok(())
        },
        get: |values| {
            let us = values.slow_log.slower_than_us;
            Some(us.map_or_else(|| "-1".into(), |us| us.to_string()))
        },
        or_number: true,
    },
    value: "TIME",
    brief: "The least time of a request in the slow log; -1: no slow log",
    more: "The time runs from the reading of the request to its reply, in respool and at the \
           server together. With 0 every request is slow; a worker logs 16 of them in each turn. \
           Requests that may wait at the server (BLPOP) are not logged. `RESPOOL SLOWLOG GET` \
           shows the slow log.",
    example: "2ms",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const SLOWLOG_LEN_MAX: Opt = Opt {
    name: "slowlog-len-max",
    topic: Topic::Logs,
    kind: number(Unit::Count, 1, 1_024, |values| &mut values.slow_log.len_max),
    value: "COUNT",
    brief: "Requests that each worker keeps in the slow log",
    more: "At the limit, the oldest request is dropped. A request takes up to 6 KB.",
    example: "512",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const HOTKEYS_SAMPLE: Opt = Opt {
    name: "hotkeys-sample",
    topic: Topic::Logs,
    kind: number_or_zero(Unit::Count, (1, 1_000_000), "no sample", |values| {
        &mut values.hot_keys_sample
    }),
    value: "COUNT",
    brief: "The keys of one request in so many count as hot keys",
    more: "`RESPOOL HOTKEYS GET` shows the keys that are asked for most. A smaller number is more \
           exact and costs more: 100 is right where a key gets some hundred requests a second.",
    example: "100",
    at_reload: AtReload::Applies,
    ..OPTION
};

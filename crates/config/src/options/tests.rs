//! Tests of the table of options.

use respool_engine::limits::Limits;
use respool_engine::settings::{FlushRule, Timeouts};

use super::*;

fn set(name: &str, text: &str) -> Result<Vec<String>, String> {
    let (option, mut values) = (find(name).expect(name), Values::default());
    if let OptionKind::List { clear, .. } = option.kind {
        clear(&mut values);
    }
    option
        .set(&mut values, text)
        .map(|()| option.get(&mut values))
}

/// Every field of the engine's settings is an option, and no option writes the field of another.
#[test]
fn every_engine_setting_is_an_option() {
    // A new field of the engine fails to compile here until it has an option.
    let Limits {
        sessions_max: _,
        session_pipeline_max: _,
        session_output_soft_bytes: _,
        session_output_hard_bytes: _,
        session_stall_ms: _,
        session_input_bytes_max: _,
        head_of_line_stall_ms: _,
        request_held_bytes_max: _,
        streaming_links_max: _,
        links_max: _,
        session_subscriptions_max: _,
        worker_subscriptions_max: _,
        pinned_links_max: _,
        transaction_bytes_max: _,
        link_unanswered_requests_max: _,
        link_unanswered_bytes_max: _,
        worker_memory_bytes_max: _,
    } = Limits::default();
    let Timeouts {
        request_ms: _,
        connect_ms: _,
        link_stall_ms: _,
        reconnect_min_ms: _,
        reconnect_max_ms: _,
        outage_hold_ms: _,
        session_idle_ms: _,
        login_check_ms: _,
        authenticate_ms: _,
    } = Timeouts::default();
    let FlushRule {
        aim: _,
        max_delay_us: _,
        fuse: _,
        fused_keys_max: _,
        collapse: _,
    } = FlushRule::default();

    let mut values = Values::default();
    for option in OPTIONS {
        let before: Vec<_> = OPTIONS.iter().map(|other| other.get(&mut values)).collect();
        option.set(&mut values, option.example).expect(option.name);
        for (other, before) in OPTIONS.iter().zip(before) {
            let changed = other.get(&mut values) != before;
            assert_eq!(
                changed,
                other.name == option.name,
                "{} by {}",
                other.name,
                option.name
            );
        }
    }
    let number_of = |text: String| text.matches(": ").count();
    let shown = format!("{:?}", (&values.limits, &values.timeouts, &values.flush));
    let default = (Limits::default(), Timeouts::default(), FlushRule::default());
    let engine = OPTIONS.iter().filter(|option| {
        [Topic::Batching, Topic::Deadlines, Topic::Limits].contains(&option.topic)
    });
    // All but five: the drain timeout, which is not the engine's, and the options that are no
    // numbers: pinned-links-full, lost-subscriptions, server-down-error, server-output-limits.
    assert_eq!(number_of(shown), engine.count() - 5);
    assert_ne!((values.limits, values.timeouts, values.flush), default);
}

#[test]
fn names_are_unique_and_briefs_are_short() {
    for (index, option) in OPTIONS.iter().enumerate() {
        assert!(
            OPTIONS[..index]
                .iter()
                .all(|other| other.name != option.name)
        );
        assert!(
            option
                .name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'-')
        );
        assert!(
            !option.brief.is_empty() && option.brief.len() <= 66,
            "{}",
            option.name
        );
        assert!(
            !option.brief.ends_with('.') && !option.more.contains("  "),
            "{}",
            option.name
        );
        assert_eq!(
            option.value.is_empty(),
            matches!(option.kind, OptionKind::Switch(_))
        );
    }
}

#[test]
fn every_default_parses_as_itself() {
    let mut values = Values::default();
    for option in OPTIONS {
        let default = option.get(&mut values);
        let mut again = Values::default();
        if let OptionKind::List { clear, .. } = option.kind {
            clear(&mut again);
        }
        for text in &default {
            option
                .set(&mut again, text)
                .unwrap_or_else(|error| panic!("{}: {error}", option.name));
        }
        assert_eq!(option.get(&mut again), default, "{}", option.name);
    }
}

#[test]
fn number_has_the_unit_of_its_name_or_its_own() {
    for (name, text, value) in [
        ("max-delay-us", "200", "200"),
        ("max-delay-us", "1ms", "1000"),
        ("slowlog-slower-than-us", "2ms", "2000"),
        ("slowlog-slower-than-us", "0", "0"),
        ("slowlog-slower-than-us", "-1", "-1"),
        ("request-timeout-ms", "1500", "1500"),
        ("request-timeout-ms", "2s", "2000"),
        ("request-timeout-ms", "1500000us", "1500"),
        ("request-timeout-ms", "0", "0"),
        ("session-idle-ms", "1 h", "3600000"),
        ("drain-timeout-ms", "2min", "120000"),
        ("session-output-soft-bytes", "64KiB", "65536"),
        ("worker-memory-bytes-max", "1GiB", "1073741824"),
        ("spawn-memory-bytes", "0", "0"),
        ("sessions-max", "7", "7"),
    ] {
        assert_eq!(set(name, text), Ok(vec![value.into()]), "{name} {text}");
    }
}

/// -1 switches the slow log off. Other times have a range.
#[test]
fn wrong_time_of_the_slow_log_is_an_error() {
    for (text, error) in [
        (
            "2h",
            "must be from 0 to 3600000000 (1h); or -1 (no slow log)",
        ),
        (
            "-2",
            "must be a whole number of microseconds, such as 200 or 1ms; or -1",
        ),
    ] {
        let told = set("slowlog-slower-than-us", text).expect_err(text);
        assert!(told.starts_with(error), "{text}: {told}");
    }
}

/// The error names the right form of the value.
#[test]
fn wrong_value_is_an_error() {
    let huge = "9".repeat(60);
    for (name, text, error) in [
        (
            "sessions-max",
            "many",
            "must be a whole number without a unit, such as 100",
        ),
        ("sessions-max", "", "must be a whole number without a unit"),
        (
            "sessions-max",
            "-1",
            "must be a whole number without a unit",
        ),
        (
            "sessions-max",
            "1KiB",
            "must be a whole number without a unit",
        ),
        ("sessions-max", "0", "must be from 1 to 10000000"),
        ("sessions-max", huge.as_str(), "must be from 1 to 10000000"),
        (
            "max-delay-us",
            "1KiB",
            "must be a whole number of microseconds, such as 200 or 1ms",
        ),
        ("max-delay-us", "2s", "must be from 1 to 1000000 (1s)"),
        (
            "request-timeout-ms",
            "1.5s",
            "must be a whole number of milliseconds, such as 1500 or 2s",
        ),
        (
            "request-timeout-ms",
            "1500us",
            "is not a whole number of milliseconds",
        ),
        (
            "request-timeout-ms",
            "25h",
            "must be from 1 to 28800000 (8h), or 0 (no deadline)",
        ),
        (
            "worker-memory-bytes-max",
            "1GB",
            "must be a whole number of bytes, such as 1048576 or 1MiB",
        ),
        (
            "worker-memory-bytes-max",
            "1KiB",
            "must be from 1048576 (1MiB) to 1099511627776 (1TiB)",
        ),
        ("fuse", "on", "must be `true` or `false`, or `yes` or `no`"),
        (
            "flush-rule",
            "on",
            "must be `balanced`, `latency` or `server-cpu`",
        ),
        ("threads", "0", "must be `auto` or a number from 1 to 1024"),
        (
            "threads",
            "1025",
            "must be `auto` or a number from 1 to 1024",
        ),
        ("log-format", "xml", "must be `text` or `json`"),
        (
            "log-level",
            "loud",
            "must be `error`, `warn`, `info`, `debug` or `trace`",
        ),
        ("user", "alice", "must be NAME:PASSWORD"),
        (
            "user",
            ":x",
            "a user's name has at least one character and no spaces",
        ),
        (
            "user",
            "a b:x",
            "a user's name has at least one character and no spaces",
        ),
        (
            "user",
            "alice:",
            "is empty: a password has at least one character",
        ),
        (
            "password",
            "",
            "is empty: a password has at least one character",
        ),
        ("password-file", "", "is empty: it must be a path"),
    ] {
        let told = set(name, text).expect_err(text);
        assert!(told.starts_with(error), "{name} {text}: {told}");
    }
}

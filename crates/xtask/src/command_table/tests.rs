//! The generator: the entries that it joins and refuses. Its output equals the files in the
//! repository.

use super::policy::Rule;
use super::*;

fn entry(name: &str, arity: i16, flags: &[&str]) -> CommandEntry {
    CommandEntry {
        name: name.to_owned(),
        arity,
        flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
        acl: Vec::new(),
        tips: Vec::new(),
        keys: Vec::new(),
        since: None,
        deprecated_since: None,
    }
}

fn snapshot(server: &str, commands: Vec<CommandEntry>) -> Snapshot {
    Snapshot {
        server: server.to_owned(),
        commands,
    }
}

fn policy(text: &str) -> Policy {
    // Columns without a rule.
    let columns = [
        "answer", "retry", "danger", "fan_out", "coalesce", "replica", "names", "key_scan",
    ];
    let empty = columns
        .iter()
        .filter(|column| !text.contains(&format!("[[{column}]]")));
    let head: String = empty.map(|column| format!("{column} = []\n")).collect();
    toml::from_str(&(head + text)).expect("a policy")
}

/// A row joined from two servers' words for it.
fn joined(redis: CommandEntry, valkey: CommandEntry) -> Result<Row, String> {
    Row::join(&[("redis-8.2", &redis), ("valkey-9.1", &valkey)])
}

/// A table, page or snapshot edited by hand, or a policy changed without the table, cannot pass.
#[test]
fn generated_files_are_fresh() {
    let root = crate::root();
    for (path, text) in generated(&root).unwrap() {
        assert!(
            read(&path).unwrap() == text,
            "{} is stale: run `cargo xtask commands`",
            path.display()
        );
    }
    for (_, file) in SOURCES {
        let text = read(&data(&root, file)).unwrap();
        let snapshot: Snapshot = serde_json::from_str(&text).unwrap();
        assert!(
            snapshot.text() == text,
            "{file} is not as it would be written"
        );
    }
}

#[test]
fn joined_row_is_the_safe_union() {
    let row = joined(
        entry("x", 3, &["readonly", "fast", "loading"]),
        entry("x", -3, &["write", "blocking", "fast"]),
    )
    .unwrap();
    assert_eq!(row.arity, -3);
    let flags: Vec<&str> = row.flags.iter().map(String::as_str).collect();
    assert_eq!(flags, ["blocking", "fast", "write"]);
    assert_eq!(row.retry, RetryColumn::Write);
    assert_eq!(
        row.differences,
        [
            "arity: redis-8.2 3, valkey-9.1 -3",
            "flags: redis-8.2 [readonly loading], valkey-9.1 [write blocking]"
        ]
    );
    for (a, b, union) in [
        (2, 2, 2),
        (2, 3, -2),
        (-4, 3, -3),
        (-2, -5, -2),
        (-2, -2, -2),
    ] {
        assert_eq!(
            joined(entry("x", a, &[]), entry("x", b, &[]))
                .unwrap()
                .arity,
            union,
            "{a} and {b}"
        );
    }
}

#[test]
fn unjoinable_entries_are_an_error() {
    let key = |at| KeyEntry {
        begin: BeginEntry::Index(at),
        find: FindEntry::Range {
            lastkey: 0,
            keystep: 1,
            limit: 0,
        },
        flags: vec!["RO".to_owned()],
    };
    let mut redis = entry("x", 2, &[]);
    redis.keys.push(key(1));
    let mut valkey = redis.clone();
    assert!(joined(redis.clone(), valkey.clone()).is_ok());
    valkey.keys[0] = key(2);
    assert!(
        joined(redis.clone(), valkey.clone())
            .unwrap_err()
            .contains("where the keys of x are")
    );
    valkey.keys.clear();
    assert!(
        joined(redis.clone(), valkey)
            .unwrap_err()
            .contains("how many key specs x has")
    );

    let table = |change: &dyn Fn(&mut CommandEntry)| {
        let mut changed = redis.clone();
        change(&mut changed);
        JoinedTable::join(&[snapshot("redis-8.2", vec![changed])], policy(""))
            .and_then(|table| table.code())
    };
    assert!(table(&|_| {}).is_ok());
    assert!(
        table(&|x| x.flags.push("new".into()))
            .unwrap_err()
            .contains("unknown flag new")
    );
    assert!(
        table(&|x| x.keys[0].flags.push("NEW".into()))
            .unwrap_err()
            .contains("unknown key flag NEW")
    );
    assert!(
        table(&|x| x.tips.push("request_policy:new".into()))
            .unwrap_err()
            .contains("request_policy new")
    );
    assert!(
        table(&|x| x.tips.push("response_policy:new".into()))
            .unwrap_err()
            .contains("response_policy new")
    );
    assert!(
        table(&|x| x.name = "a-name-longer-than-a-name-can-be".into())
            .unwrap_err()
            .contains("longer")
    );
}

/// The generator refuses to divide a command whose requests cannot be divided.
#[test]
fn command_that_cannot_be_divided_is_refused() {
    let key = |at, find: &FindEntry| KeyEntry {
        begin: BeginEntry::Index(at),
        find: find.clone(),
        flags: Vec::new(),
    };
    let range = |lastkey, keystep| FindEntry::Range {
        lastkey,
        keystep,
        limit: 0,
    };
    let counted = |keynumidx| FindEntry::Keynum {
        keynumidx,
        firstkey: 1,
        keystep: 1,
    };
    let answer = |arity, keys: Vec<KeyEntry>| {
        let mut command = entry("x", arity, &[]);
        command.keys = keys;
        command.tips.push("request_policy:multi_shard".to_owned());
        JoinedTable::join(&[snapshot("redis-8.2", vec![command])], policy("")).map(|_| ())
    };
    for (arity, find) in [(-2, range(-1, 1)), (-3, range(-1, 2)), (-3, counted(0))] {
        assert_eq!(answer(arity, vec![key(1, &find)]), Ok(()), "{find:?}");
    }
    let all = range(-1, 1);
    for (arity, keys, why) in [
        (-2, vec![], "one key spec"),
        (-3, vec![key(1, &all), key(1, &all)], "one key spec"),
        (-3, vec![key(2, &all)], "neither a key nor"),
        (-3, vec![key(1, &range(-2, 1))], "neither a key nor"),
        (-4, vec![key(1, &counted(1))], "neither a key nor"),
        (-3, vec![key(1, &all)], "too few arguments"),
        (2, vec![key(1, &all)], "too few arguments"),
        (-4, vec![key(1, &counted(0))], "too few arguments"),
    ] {
        let said = answer(arity, keys).unwrap_err();
        assert!(
            said.contains(why) && said.contains("fan_out of x"),
            "{said}"
        );
    }
}

/// A rule with a misspelt command, without effect or against another cannot pass.
#[test]
fn a_rule_that_does_nothing_is_an_error() {
    let join = |rules: &str| {
        let commands = vec![
            entry("a", 1, &[]),
            entry("b", -2, &[]),
            entry("b|c", 2, &["readonly"]),
        ];
        JoinedTable::join(&[snapshot("redis-8.2", commands)], policy(rules))
    };
    let rule = |commands: &str| {
        format!("[[retry]]\nclass = \"read\"\ncommands = [{commands}]\nreason = \"r\"\n")
    };
    let table = join(&rule("\"a\", \"b\"")).unwrap();
    assert!(table.rows.iter().all(|row| row.retry == RetryColumn::Read));
    for (rules, problem) in [
        (rule("\"A\""), "no command is called A"),
        (rule("\"b|*d\""), "no command is called b|*d"),
        (rule("\"b|c\""), "retry of b|c is Read without this rule"),
        (rule("\"*\""), "without this rule"),
        (rule("\"a\"").replace("\"r\"", "\" \""), "gives no reason"),
        (
            rule("\"a\"")
                .replace("retry", "fan_out")
                .replace("class = \"read\"", "spread = \"all\"\nmerge = \"one\"")
                + &rule("\"a\"")
                    .replace("retry", "fan_out")
                    .replace("class = \"read\"", "spread = \"default\"\nmerge = \"one\""),
            "two rules set fan_out of a",
        ),
    ] {
        let error = join(&rules).unwrap_err();
        assert!(error.contains(problem), "{error}, not {problem}");
    }
    let misspelt = rule("\"a\"").replace("commands", "command");
    assert!(
        toml::from_str::<Rule<RetryColumn>>(misspelt.strip_prefix("[[retry]]").unwrap()).is_err()
    );
}

#[test]
fn a_changed_line_is_named() {
    assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
    assert_eq!(first_difference("a\nb\n", "a\nc\n"), Some(("b", "c")));
    assert_eq!(
        first_difference("a\n", "a\nc\n"),
        Some(("nothing more", "c"))
    );
}

//! Compares the table with the snapshots that it was generated from, and looks up bytes that are
//! not commands. Tests of xtask compare the keys with those that real servers find.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const SNAPSHOTS: [(&str, Servers); 2] = [
    (
        include_str!("../../data/commands-redis-8.2.json"),
        Servers::REDIS_8_2,
    ),
    (
        include_str!("../../data/commands-valkey-9.1.json"),
        Servers::VALKEY_9_1,
    ),
];

/// The names of a snapshot, read as text without code of the generator.
fn names(snapshot: &str) -> Vec<&str> {
    snapshot
        .lines()
        .filter_map(|line| line.strip_prefix("{\"name\":\"")?.split('"').next())
        .collect()
}

fn words(line: &str) -> Vec<&[u8]> {
    line.split(' ').map(str::as_bytes).collect()
}

fn find(line: &str) -> &'static Command {
    let args = words(line);
    resolve(args.len(), |at| args[at]).expect(line).get()
}

/// The indexes of the keys of a request.
fn keys(line: &str) -> Result<Vec<usize>, KeyError> {
    // `""` stands for an empty argument.
    let args: Vec<&[u8]> = words(line)
        .into_iter()
        .map(|arg| if arg == b"\"\"" { b"" } else { arg })
        .collect();
    let mut found = Vec::new();
    let visit = |key, _| found.push(key);
    find(line).keys(args.len(), |at| args[at], visit)?;
    Ok(found)
}

fn refusal(line: &str) -> Option<CommandRefusal> {
    let args = words(line);
    find(line).refusal(args.len(), |at| args[at])
}

/// Every command of a snapshot is found under its name, and under no other.
#[test]
fn every_command_of_both_snapshots_is_found_in_any_case() {
    for (snapshot, server) in SNAPSHOTS {
        let names = names(snapshot);
        assert!(names.len() > 350, "the snapshot has {} names", names.len());
        for name in names {
            let mixed: String = name
                .chars()
                .enumerate()
                .map(|(at, c)| {
                    if at % 2 == 0 {
                        c.to_ascii_uppercase()
                    } else {
                        c
                    }
                })
                .collect();
            for spelling in [name.to_owned(), name.to_uppercase(), mixed] {
                let found = find(&spelling.replace('|', " "));
                assert_eq!(found.name, name);
                assert!(found.servers.has(server), "{name} is known to {server:?}");
            }
        }
    }
}

/// Every row is a command of a server.
#[test]
fn every_row_is_in_a_snapshot() {
    let known: BTreeSet<&str> = SNAPSHOTS
        .iter()
        .flat_map(|(snapshot, _)| names(snapshot))
        .collect();
    let rows: BTreeSet<&str> = all().map(|id| id.get().name).collect();
    assert_eq!(rows, known);
    assert_eq!(rows.len(), CommandId::COUNT, "every row has its own name");
}

/// Every constant in the source has the row of its name.
#[test]
fn every_constant_names_its_row() {
    assert_eq!(id::GET.get().name, "get");
    assert_eq!(id::CLIENT_SETNAME.get().name, "client|setname");
    assert_eq!(id::RESTORE_ASKING.get().name, "restore-asking");
    let mut seen = 0;
    for line in include_str!("table.rs").lines() {
        let Some(line) = line.strip_prefix("    pub const ") else {
            continue;
        };
        let (constant, value) = line.split_once(": CommandId = CommandId(").expect(line);
        let row: u16 = value.strip_suffix(");").expect(line).parse().expect(line);
        let name = CommandId(row)
            .get()
            .name
            .to_uppercase()
            .replace(['|', '-'], "_");
        assert_eq!(constant, name);
        seen += 1;
    }
    assert_eq!(seen, CommandId::COUNT);
}

/// A command whose flags say that it may affect its connection is passed on only if this list says
/// that it is harmless. A new such command of a snapshot fails here until it is reviewed.
#[test]
fn connection_commands_are_passed_on_only_if_harmless() {
    // Commands that are passed on although flagged, with the reason.
    let harmless: &[(&str, &str)] = &[
        ("publish", "hands a message to others; answers once"),
        ("spublish", "hands a message to others; answers once"),
        ("pubsub|channels", "shows the server's subscriptions"),
        ("pubsub|numpat", "shows the server's subscriptions"),
        ("pubsub|numsub", "shows the server's subscriptions"),
        ("pubsub|shardchannels", "shows the server's subscriptions"),
        ("pubsub|shardnumsub", "shows the server's subscriptions"),
        ("save", "barred from transactions because it takes long"),
        (
            "restore-asking",
            "carries ASKING within itself and leaves nothing behind",
        ),
        (
            "client|caching",
            "only a session that tracks has a link where it does anything",
        ),
    ];
    let suspicious = [
        CommandFlags::BLOCKING,
        CommandFlags::PUBSUB,
        CommandFlags::NO_MULTI,
        CommandFlags::NO_AUTH,
        CommandFlags::ASKING,
        CommandFlags::ALLOW_BUSY,
    ];
    let mut passed = BTreeSet::new();
    for command in all().map(CommandId::get) {
        let suspect = suspicious.iter().any(|&flag| command.flags.has(flag));
        // Every subcommand of CLIENT but HELP concerns connections.
        let suspect =
            suspect || command.name.starts_with("client|") && command.name != "client|help";
        // A corrected reply makes no difference to the connection.
        let counted = command.answer == Answer::Conditional(Condition::Count);
        if suspect && (command.answer == Answer::Server || counted) {
            passed.insert(command.name);
        }
    }
    // `pubsub|help` is not in the list because it has no such flag.
    let allowed: BTreeSet<&str> = harmless.iter().map(|(name, _)| *name).collect();
    assert_eq!(passed, allowed);
}

/// No write may be sent again, and only suitable commands may be coalesced. A mistake in the policy
/// would make these columns dangerous.
#[test]
fn writes_are_not_retried_and_coalescing_is_safe() {
    for command in all().map(CommandId::get) {
        if command.flags.has(CommandFlags::WRITE) {
            assert_eq!(command.retry, Retry::Write, "{}", command.name);
        }
        match command.coalesce {
            Coalesce::None => {}
            Coalesce::Get => assert_eq!(command.name, "get"),
            Coalesce::Set => assert_eq!(command.name, "set"),
            Coalesce::Collapse => assert_eq!(command.retry, Retry::Read, "{}", command.name),
        }
        if command.coalesce != Coalesce::None {
            assert!(command.only_key > 0, "{}", command.name);
            assert_eq!(command.answer, Answer::Server, "{}", command.name);
        }
    }
    for line in [
        "srandmember k",
        "hrandfield k",
        "ttl k",
        "vrandmember k",
        "xread streams k 0",
        "dump k",
        "object freq k",
    ] {
        assert_eq!(find(line).coalesce, Coalesce::None, "{line}");
    }
    assert_eq!(find("hgetall k").coalesce, Coalesce::Collapse);
    // Scripts, and commands that look like reads but are not.
    for line in [
        "eval s 0",
        "fcall f 0",
        "publish c m",
        "getex k",
        "config set a b",
        "xreadgroup group g c streams k >",
    ] {
        assert_eq!(find(line).retry, Retry::Write, "{line}");
    }
    for line in [
        "eval_ro s 0",
        "get k",
        "scan 0",
        "config get *",
        "time",
        "command docs",
    ] {
        assert_eq!(find(line).retry, Retry::Read, "{line}");
    }
}

/// A container leads to its own subcommands, and to no others.
#[test]
fn containers_lead_to_their_own_subcommands() {
    assert_eq!(find("CLIENT").name, "client");
    assert_eq!(find("CLIENT NOSUCH").name, "client");
    assert_eq!(
        find("CLIENT NOSUCH").answer,
        Answer::Session,
        "never to the server"
    );
    assert_eq!(find("CONFIG NOSUCH").answer, Answer::Server);
    assert_eq!(find("GET CLIENT").name, "get");
    // Names that begin like another container.
    assert_eq!(find("CLUSTERSCAN 0").name, "clusterscan");
    assert_eq!(find("COMMANDLOG GET 1 slow").name, "commandlog|get");
    assert_eq!(
        find("COMMAND GETKEYSANDFLAGS").name,
        "command|getkeysandflags"
    );
    for whole in ["client|id", "config|get", "|", "client|", "id", "getkeys"] {
        assert_eq!(lookup(whole.as_bytes()), None, "{whole}");
    }
    assert_eq!(lookup_sub(id::CONFIG, b"ge"), None);
    assert_eq!(lookup_sub(id::CONFIG, b"gett"), None);
    assert_eq!(lookup_sub(id::CONFIG, b""), None);
    assert_eq!(lookup_sub(id::GET, b"get"), None);
}

/// A container with a refused subcommand passes no unknown subcommand on: newer servers may have
/// more that must be refused.
#[test]
fn containers_with_refusals_pass_no_unknown_subcommand() {
    for command in all().map(CommandId::get) {
        if let (Answer::Refused(_), Some((container, _))) =
            (command.answer, command.name.split_once('|'))
        {
            assert_eq!(find(container).answer, Answer::Session, "{}", command.name);
        }
    }
}

/// The arity counts the name of the command.
#[test]
fn arity_counts_the_name() {
    for (line, ok) in [
        ("GET", false),
        ("GET k", true),
        ("GET k k", false),
        ("SET k", false),
        ("SET k v", true),
        ("SET k v EX 1", true),
        ("CONFIG GET", false),
        ("CONFIG GET a", true),
        // Redis needs 3 here and Valkey at least 3: a number that one of them takes passes.
        ("CLUSTER REPLICATE NO ONE", true),
    ] {
        assert_eq!(find(line).arity_ok(words(line).len()), ok, "{line}");
    }
}

/// XREAD blocks if the server's parser finds BLOCK.
#[test]
fn xread_blocks_if_the_server_finds_block() {
    for (line, blocks) in [
        ("XREAD STREAMS k 0", false),
        ("XREAD COUNT 1 STREAMS k 0", false),
        ("XREAD BLOCK 0 STREAMS k 0", true),
        ("XREAD block 0 STREAMS k 0", true),
        ("XREAD COUNT 1 BLOCK 0 STREAMS k 0", true),
        // A stream, an id, a group or a consumer may be named BLOCK.
        ("XREAD STREAMS BLOCK 0", false),
        ("XREAD STREAMS k BLOCK", false),
        ("XREADGROUP GROUP BLOCK c STREAMS k >", false),
        ("XREADGROUP GROUP g BLOCK STREAMS k >", false),
        ("XREADGROUP GROUP STREAMS c BLOCK 0 STREAMS k >", true),
        ("XREADGROUP GROUP g c NOACK BLOCK 0 STREAMS k >", true),
        ("XREADGROUP BLOCK 0 GROUP g c STREAMS k >", true),
        ("XREADGROUP GROUP g c CLAIM 5 BLOCK 0 STREAMS k >", true),
        // The argument of COUNT must be a number, so the server refuses this.
        ("XREAD COUNT BLOCK STREAMS k 0", false),
        ("XREAD BLOCK", false),
        ("XREAD", false),
        // An option of a server newer than the table may take arguments.
        ("XREAD NEWER STREAMS BLOCK 0 STREAMS k 0", true),
        ("XREAD NEWER 1 STREAMS k 0", false),
        // For the server a word ends at a zero byte.
        ("XREAD BLOCK\0x 0 STREAMS k 0", true),
        ("XREAD STREAMS\0 BLOCK 0", false),
        ("XREAD BLOCKX 0 STREAMS k 0", false),
    ] {
        let words = words(line);
        let asks = asks_to_block(words.len(), |index| words[index]);
        assert_eq!(asks, blocks, "{line:?}");
    }
}

/// A refused command has the reason of its refusal.
#[test]
fn refused_command_has_its_reason() {
    for (line, reason) in [
        ("PSYNC ? -1", CommandRefusal::Replication),
        ("SCRIPT DEBUG YES", CommandRefusal::ConnectionState),
        ("DEBUG PROTOCOL push", CommandRefusal::ConnectionState),
    ] {
        assert_eq!(refusal(line), Some(reason), "{line}");
    }
    for line in [
        "GET k",
        "PING",
        "DEBUG SLEEP 0",
        "DEBUG",
        "PUBLISH c m",
        "CLIENT ID",
        "FAILOVER",
    ] {
        assert_eq!(refusal(line), None, "{line}");
    }
}

/// Keys are found by each kind of key spec, and by each function.
#[test]
fn keys_are_where_the_key_specs_say() {
    for (line, expected) in [
        ("GET k", &[1][..]),
        ("PING", &[]),
        ("CONFIG GET a", &[]),
        ("MGET a b c", &[1, 2, 3]),
        ("MSET a 1 b 2", &[1, 3]),
        ("LCS a b", &[1, 2]),
        ("BLPOP a b 0", &[1, 2]),
        ("RENAME a b", &[1, 2]),
        ("BITOP AND d a b", &[2, 3, 4]),
        ("OBJECT ENCODING k", &[2]),
        ("XGROUP CREATE k g 0", &[2]),
        ("EVAL s 0", &[]),
        ("EVAL s 0 a", &[]),
        ("EVAL s 2 a b c", &[3, 4]),
        ("FCALL_RO f 1 a", &[3]),
        ("LMPOP 2 a b LEFT", &[2, 3]),
        ("ZUNION 1 a", &[2]),
        ("ZUNIONSTORE d 2 a b WEIGHTS 1 2", &[1, 3, 4]),
        ("MSETEX 2 a 1 b 2 EX 9", &[2, 4]),
        ("XREAD STREAMS a b 0 0", &[2, 3]),
        ("XREAD COUNT 1 STREAMS a 0", &[4]),
        ("XREADGROUP GROUP STREAMS c STREAMS STREAMS >", &[5]),
        ("SORT k", &[1]),
        ("SORT k BY store GET # STORE a STORE b", &[1, 9]),
        ("SORT k LIMIT store x STORE", &[1]),
        ("SORT_RO k BY a GET store", &[1]),
        ("GEORADIUS k 0 0 1 m", &[1]),
        ("GEORADIUS k 0 0 1 m COUNT 1 STORE d", &[1, 9]),
        ("GEORADIUSBYMEMBER k x 1 m STOREDIST d", &[1, 6]),
        ("MIGRATE h 1 k 0 1", &[3]),
        ("MIGRATE h 1 k 0 1 AUTH keys", &[3]),
        ("MIGRATE h 1 \"\" 0 1 AUTH2 a keys KEYS a b", &[10, 11]),
        ("MIGRATE h 1 k 0 1 KEYS", &[3]),
        ("SPUBLISH c m", &[1]),
        ("SSUBSCRIBE a b", &[1, 2]),
        ("MEMORY USAGE k", &[2]),
        ("VADD k", &[1]),
    ] {
        assert_eq!(keys(line).as_deref(), Ok(expected), "{line}");
    }
    for line in [
        "GET",
        "MGET",
        "OBJECT ENCODING",
        "EVAL s",
        "EVAL s 1",
        "EVAL s -1 a",
        "EVAL s 01 a",
        "EVAL s x a",
        "EVAL s 9223372036854775807 a",
        "EVAL s 18446744073709551617 a",
        "ZUNION 0 a",
        "ZUNIONSTORE d 3 a b",
        "MSETEX 2 a 1",
        "MSETEX 0 a 1",
        "XREAD COUNT 1",
        "XREAD STREAMS",
        "MIGRATE h 1 k 0 1 KEYS a",
        "SORT",
        "BLPOP a",
    ] {
        // BLPOP with no timeout has no room for a key.
        assert_eq!(keys(line), Err(KeyError), "{line}");
    }
}

/// The debug format of a set has the names of its members.
#[test]
fn sets_show_their_members() {
    assert_eq!(
        format!("{:?}", id::GET.get().flags),
        r#"{"readonly", "fast"}"#
    );
    assert_eq!(format!("{:?}", id::GET), "get");
    assert!(!CommandFlags::WRITE.has(CommandFlags::WRITE.or(CommandFlags::FAST)));
}

/// A lookup by comparing with every name.
fn lookup_slowly(name: &[u8]) -> Option<CommandId> {
    all().find(|id| {
        let known = id.get().name;
        !known.contains('|') && known.as_bytes().eq_ignore_ascii_case(name)
    })
}

proptest! {
    /// Any bytes are found if and only if they are a name.
    #[test]
    fn lookup_finds_exactly_the_names(name in proptest::collection::vec(any::<u8>(), 0..40)) {
        prop_assert_eq!(lookup(&name), lookup_slowly(&name));
    }

    /// A name with one byte changed, added or removed is found only if it is another name.
    #[test]
    fn names_one_byte_off_are_found_only_if_they_are_names(
        row in 0..CommandId::COUNT, at in 0usize..30, byte: u8, how in 0..4,
    ) {
        let mut name = CommandId(row as u16).get().name.as_bytes().to_vec();
        let at = at % name.len();
        match how {
            0 => name[at] = byte,
            1 => name.insert(at, byte),
            2 => drop(name.remove(at)),
            // A flipped case bit, `{` for `[`: case folding by one bit would not see this.
            _ => name[at] ^= 0x20,
        }
        prop_assert_eq!(lookup(&name), lookup_slowly(&name));
        name.push(byte);
        prop_assert_eq!(lookup(&name), lookup_slowly(&name));
    }

    /// With any arguments, keys are arguments, a spec finds each of them at most once, and no
    /// function panics.
    #[test]
    fn keys_of_anything_are_arguments(
        row in 0..CommandId::COUNT,
        args in proptest::collection::vec(
            prop_oneof![
                proptest::sample::select(vec![
                    "streams", "store", "STOREDIST", "keys", "auth2", "by", "get", "limit", "block",
                    "group", "0", "1", "2", "3", "-1", "9223372036854775807", "", "a",
                ]).prop_map(|word| word.as_bytes().to_vec()),
                proptest::collection::vec(any::<u8>(), 0..4),
            ],
            0..12,
        ),
    ) {
        let command = CommandId(row as u16).get();
        let argc = args.len();
        let mut found = 0;
        let result = command.keys(argc, |at| &args[at], |key, _| {
            found += 1;
            assert!((1..argc).contains(&key), "argument {key} of {argc}");
        });
        prop_assert!(found <= argc * command.keys.len());
        if command.keys.is_empty() {
            prop_assert_eq!(result, Ok(()));
            prop_assert_eq!(found, 0);
        }
        command.refusal(argc, |at| &args[at]);
        command.arity_ok(argc);
    }
}

/// A command that takes from one of several keys has this key in its reply, and its row says so. No
/// other row says so.
#[test]
fn reply_names_the_key_that_was_taken_from() {
    let takes = |spec: &KeySpec| {
        let several = !matches!(spec.find, Find::Range { last: 0, .. });
        several && spec.flags.has(KeyFlags::ACCESS.or(KeyFlags::DELETE))
    };
    let mut found = Vec::new();
    for id in all() {
        let command = id.get();
        let is_handed_on = command.key_scan == KeyScan::Migrate;
        let says = command.keys.iter().any(takes) && !is_handed_on;
        assert_eq!(says, command.names == Names::First, "{}", command.name);
        if command.names != Names::None {
            // The hot path, for commands with an only key, does not check this column.
            assert_eq!(command.only_key, 0, "{}", command.name);
            found.push(command.name);
        }
    }
    assert_eq!(found.len(), 15, "{found:?}");
}

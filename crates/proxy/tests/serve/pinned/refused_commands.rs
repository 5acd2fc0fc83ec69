//! A command that needs a connection of its own is refused, and never reaches the shared link.

use respool_testkit::client::{Reply, words};
use respool_testkit::servers::installed;

use crate::target::{Options, Target, on_every_target, proxied};

/// Each of them would change the server's handling of later requests on the same connection, delay
/// them, or bring uncounted replies.
const REFUSED: [&str; 12] = [
    "SYNC",
    "PSYNC ? -1",
    "REPLCONF listening-port 1",
    "ASKING",
    "SCRIPT DEBUG YES",
    // Commands that the default configuration refuses.
    "SHUTDOWN",
    "shutdown nosave",
    "REPLICAOF NO ONE",
    "SLAVEOF NO ONE",
    "FAILOVER",
    "DEBUG JMAP",
    "CLUSTER FAILOVER",
];

/// A refused command gets an error that says so, and changes neither its session nor others.
#[test]
fn refused_command_leaves_the_session_unchanged() {
    for binary in installed() {
        let target = Target::proxied(&binary, &Options::default());
        let mut steady = target.client();
        let mut client = target.client();
        for refused in REFUSED {
            let mut bytes = words("SET key value");
            bytes.extend(words(refused));
            bytes.extend(words("GET key"));
            bytes.extend(words("PING"));
            client.send(&bytes);
            assert_eq!(client.reply(), Reply::ok(), "before {refused}");
            let reply = client.reply();
            let text = reply
                .error()
                .unwrap_or_else(|| panic!("{refused} is answered by {reply:?}"));
            assert!(
                !text.starts_with("NOTSENT") && !text.starts_with("UNKNOWN"),
                "{refused}: {text}"
            );
            assert_eq!(client.reply(), Reply::bulk("value"), "behind {refused}");
            assert_eq!(
                client.reply(),
                Reply::Simple("PONG".into()),
                "behind {refused}"
            );
            assert_eq!(
                steady.call("GET key"),
                Reply::bulk("value"),
                "beside {refused}"
            );
        }
        assert_eq!(client.call("INCR count"), Reply::Integer(1));
    }
}

/// DEBUG OBJECT only reads. Naming DEBUG refuses all of it.
#[test]
fn debug_object_passes_unless_debug_is_named() {
    let is_refused = |reply: Reply| {
        let text = reply.error().unwrap_or_default().to_owned();
        text.contains("refuse-commands")
    };
    for binary in installed() {
        let named = ["--refuse-commands", "shutdown,debug"];
        let both = ["--refuse-commands", "debug,!debug|object"];
        for (args, passes) in [(&[][..], true), (&named, false), (&both, true)] {
            let target = Target::proxied(&binary, &Options::with(args));
            let mut client = target.client();
            assert_eq!(client.call("SET key value"), Reply::ok());
            for request in ["DEBUG OBJECT key", "debug object key"] {
                assert_eq!(
                    is_refused(client.call(request)),
                    !passes,
                    "{args:?}: {request}"
                );
            }
            for request in [
                "DEBUG SLEEP 0",
                "DEBUG",
                "DEBUG OBJECTS",
                "DEBUG PROTOCOL null",
            ] {
                assert!(is_refused(client.call(request)), "{args:?}: {request}");
            }
            client.call("MULTI");
            assert_eq!(is_refused(client.call("DEBUG OBJECT key")), !passes);
            assert!(is_refused(client.call("DEBUG SLEEP 0")));
        }
    }
}

/// Forms of a blocking command that do not block work.
#[test]
fn non_blocking_forms_are_not_refused() {
    on_every_target(&Options::default(), |target| {
        let mut client = target.client();
        let Reply::Bulk(id) = client.call("XADD stream * field value") else {
            panic!("an id")
        };
        let Reply::Array(streams) = client.call("XREAD COUNT 10 STREAMS stream 0") else {
            panic!("an array")
        };
        assert_eq!(streams.len(), 1);
        assert_eq!(client.call("XREAD STREAMS stream $"), Reply::Null);
        // A stream may be called as the option that blocks.
        assert_eq!(client.call("XREAD STREAMS BLOCK 0"), Reply::Null);
        assert_eq!(client.call("XGROUP CREATE stream group 0"), Reply::ok());
        let read = client.call("XREADGROUP GROUP group consumer STREAMS stream >");
        assert!(matches!(read, Reply::Array(_)), "{read:?}");
        let id = String::from_utf8_lossy(&id).into_owned();
        assert_eq!(
            client.call(&format!("XACK stream group {id}")),
            Reply::Integer(1)
        );
        client.call("RPUSH list a");
        assert_eq!(client.call("LMOVE list other LEFT RIGHT"), Reply::bulk("a"));
        assert_eq!(client.call("PUBLISH channel message"), Reply::Integer(0));
    });
}

/// Commands with keys, of every kind, are answered as the server answers them.
#[test]
fn keyed_commands_of_every_kind_pass_unchanged() {
    // The same list on a fresh server, with and without respool: the bytes are the same.
    let commands = [
        "SET s value",
        "SETEX e 100 v",
        "PSETEX p 100000 v",
        "SETNX s other",
        "GETRANGE s 0 2",
        "SETRANGE s 1 X",
        "GETDEL e",
        "GETEX s PERSIST",
        "APPEND s more",
        "STRLEN s",
        "MSET a 1 b 2 c 3",
        "MSETNX a 1 d 4",
        "MGET a b c d",
        "INCRBY a 5",
        "DECRBY a 3",
        "INCRBYFLOAT a 1.5",
        "EXISTS a b z",
        "TOUCH a b z",
        "DEL c z",
        "UNLINK b z",
        "TYPE a",
        "RENAME a a2",
        "RENAMENX a2 a3",
        "COPY a3 a4",
        "EXPIRE a3 100",
        "PERSIST a3",
        "OBJECT ENCODING a3",
        "DUMP none",
        "SETBIT bits 7 1",
        "GETBIT bits 7",
        "BITCOUNT bits",
        "BITPOS bits 1",
        "BITOP NOT notbits bits",
        "BITFIELD bits SET u8 0 255 GET u4 0",
        "HSET h a 1 b 2",
        "HGET h a",
        "HMGET h a b c",
        "HINCRBY h a 5",
        "HLEN h",
        "HKEYS h",
        "HVALS h",
        "HEXISTS h a",
        "HDEL h a",
        "HSCAN h 0",
        "RPUSH l a b c d",
        "LLEN l",
        "LINDEX l 1",
        "LRANGE l 0 -1",
        "LSET l 0 A",
        "LINSERT l BEFORE b x",
        "LREM l 1 x",
        "LTRIM l 0 2",
        "LPOP l",
        "RPOPLPUSH l l2",
        "LPOS l b",
        "SADD s1 a b c",
        "SADD s2 b c d",
        "SCARD s1",
        "SISMEMBER s1 a",
        "SMISMEMBER s1 a z",
        "SINTERSTORE s3 s1 s2",
        "SDIFF s1 s2",
        "SMOVE s1 s2 a",
        "SREM s2 d",
        "ZADD z 1 a 2 b 3 c",
        "ZCARD z",
        "ZSCORE z b",
        "ZRANK z c",
        "ZINCRBY z 5 a",
        "ZRANGE z 0 -1 WITHSCORES",
        "ZRANGEBYSCORE z 2 4",
        "ZREM z b",
        "ZUNIONSTORE z2 2 z z WEIGHTS 2 3",
        "ZPOPMIN z",
        "PFADD hll a b c",
        "PFCOUNT hll",
        "GEOADD g 13.361389 38.115556 Palermo",
        "GEOPOS g Palermo",
        "XADD x 1-1 f v",
        "XLEN x",
        "XRANGE x - +",
        "XDEL x 1-1",
        "SORT l ALPHA",
        "SORT l ALPHA STORE sorted",
        "EVAL return{KEYS[1],ARGV[1]} 1 k a",
        "EVAL return{} 0",
        "SCRIPT EXISTS abc",
        "DBSIZE",
        "RANDOMKEY x",
        "SCAN 0 COUNT 1000 MATCH none*",
        "KEYS none*",
        "FLUSHDB",
        "LASTSAVE x",
        "SWAPDB 0 1",
        "MOVE a 1",
    ];
    let answers = |target: &Target| -> Vec<String> {
        let mut client = target.client();
        let mut answer = |command: &&str| {
            client.send(&words(command));
            client.reply_bytes().escape_ascii().to_string()
        };
        commands.iter().map(&mut answer).collect()
    };
    for binary in installed() {
        let options = Options::default();
        let direct = answers(&Target::direct(&binary, &options));
        let proxied = answers(&Target::proxied(&binary, &options));
        for (at, command) in commands.iter().enumerate() {
            let server = binary.display();
            assert_eq!(proxied[at], direct[at], "{command} on {server}");
        }
    }
}

/// `refuse-commands` holds for requests of clients, also by the new name of a renamed command, and
/// not for commands of scripts: those are for the server's ACL.
#[test]
fn refused_command_in_a_script_is_for_the_acl() {
    let options = Options {
        server: ["--rename-command", "FLUSHALL", "wipe"]
            .map(str::to_owned)
            .into(),
        ..Options::with(&["--refuse-commands=flushall,flushdb"])
    };
    let target = proxied(&options);
    let (mut client, mut direct) = (target.client(), target.direct_client());
    let refused = |reply: Reply| {
        let Reply::Error(text) = reply else {
            panic!("the command was executed: {reply:?}")
        };
        assert!(text.contains("(refuse-commands)"), "{text}");
    };
    for request in ["wipe", "FLUSHALL", "WIPE ASYNC", "FLUSHDB"] {
        assert_eq!(direct.call("SET k 1"), Reply::ok());
        refused(client.call(request));
        client.send(format!("{request}\r\n").as_bytes());
        refused(client.reply());
        assert_eq!(client.call("MULTI"), Reply::ok());
        refused(client.call(request));
        assert_eq!(client.call("DISCARD"), Reply::ok());
        assert_eq!(direct.call("EXISTS k"), Reply::Integer(1), "{request}");
    }
    let script = "EVAL return{redis.call('FLUSHDB')} 0";
    client.call(script);
    assert_eq!(direct.call("EXISTS k"), Reply::Integer(0));
    // The rule that the option's text names.
    assert_eq!(direct.call("SET k 1"), Reply::ok());
    assert_eq!(direct.call("ACL SETUSER default -flushdb"), Reply::ok());
    assert!(matches!(client.call(script), Reply::Error(_)));
    assert_eq!(direct.call("EXISTS k"), Reply::Integer(1));
}

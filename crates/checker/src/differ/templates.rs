//! The requests: one line for each form of a command, with its weight.
//!
//! In a line, `[ A | B | ]` is one of its choices, `( A B )+` repeats its content one to four
//! times, and `$word` is made up: a key that is mostly of the type named (`$str $list $set $hash
//! $zset $stream $hll $bits $geo`, `$any`), a value `$v`, a field `$f`, a member `$m`, a number
//! `$n`, an index `$i`, a small count `$u`, a score `$score`, ends of ranges (`$smin $smax $lmin
//! $lmax $xmin $xmax`), an id of a stream entry `$xid`, times that are far away (`$ttl $ttlms $at
//! $atms`), a database `$db`, names of channels (`$ch $pat $shard`), scripts (`$body $sha
//! $keys_args`, `$library`, `$function`), the id of a connection `$id`.
//!
//! Commands that a server lacks are sent all the same: its error is a reply like others.
//!
//! Two equal servers answer some requests differently, so these are left out: SPOP, SRANDMEMBER,
//! HRANDFIELD and ZRANDMEMBER of a part of a collection, SCAN with a small count, XADD with `*` for
//! an id, SORT of a set without sorting, keys that expire while the script runs, MONITOR, and
//! CLIENT TRACKING with BCAST (the number of changes in one push depends on how they were read).

/// It touches or shows more than its keys: only when no other connection is active.
pub(crate) const SOLO: u8 = 1;
/// Sent as it stands: a changed form would be incomparable, or wait too long.
pub(crate) const EXACT: u8 = 2;
/// It uses the scripts and functions that all connections share.
pub(crate) const CACHE: u8 = 4;
/// It may block until another connection serves it.
pub(crate) const ENDLESS: u8 = 8;
/// Not between MULTI and EXEC.
pub(crate) const NOT_QUEUED: u8 = 16;

/// Wrong by itself: only where errors are wanted.
pub(crate) const WRONG: u8 = 32;

/// Only between MULTI and EXEC.
pub(crate) const QUEUED: u8 = 64;

/// Weight, flags, and request.
pub(crate) type Template = (u32, u8, &'static str);

/// A class of requests that a run includes or leaves out.
pub(crate) struct RequestClass {
    pub(crate) name: &'static str,
    pub(crate) weight: u32,
    pub(crate) templates: &'static [Template],
}

/// Classes that are ways of sending requests: see the generator.
pub(crate) const WAYS: [(&str, &str); 6] = [
    (
        "together",
        "rounds in which several connections ask the classes reads and texts at once",
    ),
    ("inline", "lines instead of arrays"),
    (
        "errors",
        "wrong arity, unknown commands, arguments that make no sense",
    ),
    (
        "protocol",
        "broken protocol, which ends the connection; requests for nothing",
    ),
    ("huge", "values of 300 KB"),
    ("cuts", "bytes cut anywhere"),
];

pub(crate) const CLASSES: &[RequestClass] = &[
    RequestClass {
        name: "strings",
        weight: 16,
        templates: &[
            (6, 0, "SET $str $v"),
            (
                3,
                0,
                "SET $str $v [ NX | XX | ] [ GET | ] [ EX $ttl | PX $ttlms | EXAT $at | PXAT $atms | KEEPTTL | ]",
            ),
            (6, 0, "GET $str"),
            (1, 0, "GETSET $str $v"),
            (2, 0, "GETDEL $str"),
            (2, 0, "GETEX $str [ EX $ttl | PXAT $atms | PERSIST | ]"),
            (2, 0, "APPEND $str $v"),
            (2, 0, "STRLEN $str"),
            (3, 0, "INCR $str"),
            (1, 0, "DECR $str"),
            (2, 0, "INCRBY $str $n"),
            (1, 0, "DECRBY $str $n"),
            (1, 0, "INCRBYFLOAT $str $score"),
            (2, 0, "GETRANGE $str $i $i"),
            (1, 0, "SUBSTR $str $i $i"),
            (2, 0, "SETRANGE $str $u $v"),
            (1, 0, "SETNX $str $v"),
            (1, 0, "SETEX $str $ttl $v"),
            (1, 0, "PSETEX $str $ttlms $v"),
            (2, 0, "MSET ( $str $v )+"),
            (3, 0, "MGET ( $str )+ $any"),
            (1, 0, "MSETNX ( $str $v )+"),
            (
                1,
                0,
                "LCS $str $str [ LEN | IDX MINMATCHLEN $u WITHMATCHLEN | IDX | ]",
            ),
            (1, 0, "DELIFEQ $str $v"),
            (1, 0, "SET $str $v IFEQ $v"),
            (1, 0, "MSETEX 1 $str $v EX $ttl"),
        ],
    },
    // Requests that may be fused with those of others.
    RequestClass {
        name: "texts",
        weight: 3,
        templates: &[
            (4, 0, "SET $str $v"),
            (1, 0, "SET $str $v EX $ttl"),
            (4, 0, "GET $str"),
            (1, 0, "GET $any"),
            (1, 0, "DEL $str"),
            (1, 0, "INCR $str"),
        ],
    },
    RequestClass {
        name: "reads",
        weight: 3,
        templates: &[
            (6, 0, "GET $str"),
            (2, 0, "GET $any"),
            (2, 0, "STRLEN $str"),
            (2, 0, "LLEN $list"),
            (1, 0, "LRANGE $list 0 -1"),
            (1, 0, "TYPE $str"),
            (1, 0, "EXISTS $str"),
            (1, 0, "ZCARD $zset"),
            (1, 0, "MGET $str $str $any"),
        ],
    },
    RequestClass {
        name: "keys",
        weight: 10,
        templates: &[
            (4, 0, "DEL ( $any )+"),
            (2, 0, "UNLINK ( $any )+"),
            (3, 0, "EXISTS ( $any )+"),
            (3, 0, "TYPE $any"),
            (2, 0, "TOUCH ( $any )+"),
            (2, 0, "RENAME $any $any"),
            (1, 0, "RENAMENX $any $any"),
            (2, 0, "COPY $any $any [ REPLACE | ]"),
            (2, 0, "OBJECT ENCODING $any"),
            (1, 0, "OBJECT REFCOUNT $list"),
            (1, 0, "OBJECT HELP"),
            (1, EXACT, "OBJECT IDLETIME $any"),
            (2, 0, "DUMP $any"),
            (1, 0, "RESTORE $any 0 $v [ REPLACE | ]"),
            (1, SOLO | EXACT, "RANDOMKEY"),
            (2, SOLO | EXACT, "KEYS [ * | s* | ?1 | [a-l]* | nothing ]"),
            (2, SOLO | EXACT, "DBSIZE"),
            (
                2,
                SOLO | EXACT,
                "SCAN 0 COUNT 100000 [ MATCH s* | TYPE list | TYPE nothing | ]",
            ),
            (1, EXACT, "MEMORY USAGE $any"),
        ],
    },
    RequestClass {
        name: "lists",
        weight: 12,
        templates: &[
            (4, 0, "RPUSH $list ( $v )+"),
            (4, 0, "LPUSH $list ( $v )+"),
            (1, 0, "[ RPUSHX | LPUSHX ] $list ( $v )+"),
            (4, 0, "LRANGE $list 0 -1"),
            (2, 0, "LRANGE $list $i $i"),
            (3, 0, "[ LPOP | RPOP ] $list [ $u | | ]"),
            (2, 0, "LLEN $list"),
            (2, 0, "LINDEX $list $i"),
            (2, 0, "LSET $list $i $v"),
            (1, 0, "LREM $list $i $v"),
            (1, 0, "LTRIM $list $i $i"),
            (1, 0, "LINSERT $list [ BEFORE | AFTER ] $v $v"),
            (1, 0, "LPOS $list $v [ RANK $i | COUNT 0 | MAXLEN $u | ]"),
            (2, 0, "RPOPLPUSH $list $list"),
            (2, 0, "LMOVE $list $list [ LEFT | RIGHT ] [ LEFT | RIGHT ]"),
            (2, 0, "LMPOP 2 $list $list [ LEFT | RIGHT ] [ COUNT $u | ]"),
        ],
    },
    RequestClass {
        name: "hashes",
        weight: 10,
        templates: &[
            (5, 0, "HSET $hash ( $f $v )+"),
            (1, 0, "HMSET $hash ( $f $v )+"),
            (1, 0, "HSETNX $hash $f $v"),
            (3, 0, "HGET $hash $f"),
            (2, 0, "HMGET $hash ( $f )+"),
            (3, 0, "HGETALL $hash"),
            (1, 0, "HKEYS $hash"),
            (1, 0, "HVALS $hash"),
            (1, 0, "HLEN $hash"),
            (1, 0, "HSTRLEN $hash $f"),
            (1, 0, "HEXISTS $hash $f"),
            (2, 0, "HDEL $hash ( $f )+"),
            (2, 0, "HINCRBY $hash $f $n"),
            (1, 0, "HINCRBYFLOAT $hash $f $score"),
            (1, EXACT, "HSCAN $hash 0 COUNT 100000 [ NOVALUES | ]"),
            (1, EXACT, "HRANDFIELD $hash 100000 [ WITHVALUES | ]"),
            (1, 0, "HPEXPIREAT $hash $atms FIELDS 1 $f"),
            (1, 0, "HTTL $hash FIELDS 2 $f $f"),
            (1, 0, "HPERSIST $hash FIELDS 1 $f"),
            (1, 0, "HGETDEL $hash FIELDS 1 $f"),
            (1, 0, "HSETEX $hash PXAT $atms FIELDS 1 $f $v"),
            (1, 0, "HGETEX $hash PERSIST FIELDS 1 $f"),
        ],
    },
    RequestClass {
        name: "sets",
        weight: 10,
        templates: &[
            (5, 0, "SADD $set ( $m )+"),
            (2, 0, "SREM $set ( $m )+"),
            (3, 0, "SMEMBERS $set"),
            (2, 0, "SISMEMBER $set $m"),
            (1, 0, "SMISMEMBER $set ( $m )+"),
            (2, 0, "SCARD $set"),
            (1, 0, "SMOVE $set $set $m"),
            (2, 0, "[ SINTER | SUNION | SDIFF ] ( $set )+"),
            (
                2,
                0,
                "[ SINTERSTORE | SUNIONSTORE | SDIFFSTORE ] $set ( $set )+",
            ),
            (1, 0, "SINTERCARD 2 $set $set [ LIMIT $u | ]"),
            (1, EXACT, "SPOP $set 100000"),
            (1, EXACT, "SRANDMEMBER $set 100000"),
            (1, EXACT, "SSCAN $set 0 COUNT 100000"),
        ],
    },
    RequestClass {
        name: "zsets",
        weight: 12,
        templates: &[
            (
                6,
                0,
                "ZADD $zset [ NX | XX | GT | LT | XX GT | ] [ CH | ] ( $score $m )+",
            ),
            (1, 0, "ZADD $zset INCR $score $m"),
            (2, 0, "ZREM $zset ( $m )+"),
            (3, 0, "ZRANGE $zset 0 -1 [ WITHSCORES | ]"),
            (1, 0, "ZRANGE $zset $smin $smax BYSCORE [ LIMIT $u $u | ]"),
            (1, 0, "ZRANGE $zset $lmin $lmax BYLEX"),
            (1, 0, "ZREVRANGE $zset $i $i [ WITHSCORES | ]"),
            (
                2,
                0,
                "ZRANGEBYSCORE $zset $smin $smax [ WITHSCORES | ] [ LIMIT $u $u | ]",
            ),
            (1, 0, "ZREVRANGEBYSCORE $zset $smax $smin"),
            (1, 0, "ZRANGEBYLEX $zset $lmin $lmax"),
            (1, 0, "ZREVRANGEBYLEX $zset $lmax $lmin"),
            (2, 0, "ZSCORE $zset $m"),
            (1, 0, "ZMSCORE $zset ( $m )+"),
            (2, 0, "ZINCRBY $zset $score $m"),
            (1, 0, "ZCARD $zset"),
            (1, 0, "ZCOUNT $zset $smin $smax"),
            (1, 0, "ZLEXCOUNT $zset $lmin $lmax"),
            (1, 0, "[ ZRANK | ZREVRANK ] $zset $m [ WITHSCORE | | ]"),
            (2, 0, "[ ZPOPMIN | ZPOPMAX ] $zset [ $u | ]"),
            (1, 0, "ZREMRANGEBYRANK $zset $i $i"),
            (1, 0, "ZREMRANGEBYSCORE $zset $smin $smax"),
            (1, 0, "ZREMRANGEBYLEX $zset $lmin $lmax"),
            (
                2,
                0,
                "[ ZUNIONSTORE | ZINTERSTORE ] $zset 2 $zset $zset [ WEIGHTS $u $u | ] [ AGGREGATE MAX | ]",
            ),
            (1, 0, "ZDIFFSTORE $zset 2 $zset $zset"),
            (
                1,
                0,
                "[ ZUNION | ZINTER | ZDIFF ] 2 $zset $zset [ WITHSCORES | ]",
            ),
            (1, 0, "ZINTERCARD 2 $zset $zset"),
            (1, 0, "ZRANGESTORE $zset $zset $i $i"),
            (1, 0, "ZMPOP 2 $zset $zset [ MIN | MAX ] [ COUNT $u | ]"),
            (1, EXACT, "ZSCAN $zset 0 COUNT 100000"),
            (1, EXACT, "ZRANDMEMBER $zset 100000 [ WITHSCORES | ]"),
        ],
    },
    RequestClass {
        name: "streams",
        weight: 12,
        templates: &[
            (
                6,
                EXACT,
                "XADD $stream [ NOMKSTREAM | ] [ MAXLEN = $u | MAXLEN ~ 100 | MINID = $xid | | | ] $xid ( $f $v )+",
            ),
            (1, 0, "XLEN $stream"),
            (2, 0, "XRANGE $stream $xmin $xmax [ COUNT $u | ]"),
            (1, 0, "XREVRANGE $stream $xmax $xmin"),
            (2, 0, "XDEL $stream $xid $xid"),
            (1, 0, "XTRIM $stream MAXLEN $u"),
            (1, 0, "XSETID $stream $xid"),
            (
                2,
                EXACT,
                "XREAD [ COUNT $u | ] STREAMS $stream $stream 0 $xid",
            ),
            (
                3,
                0,
                "XGROUP CREATE $stream [ g1 | g2 ] [ 0 | $ | $xid ] [ MKSTREAM | ]",
            ),
            (1, 0, "XGROUP SETID $stream [ g1 | g2 ] $xid"),
            (
                1,
                0,
                "XGROUP CREATECONSUMER $stream [ g1 | g2 ] [ c1 | c2 ]",
            ),
            (1, 0, "XGROUP DELCONSUMER $stream [ g1 | g2 ] [ c1 | c2 ]"),
            (1, 0, "XGROUP DESTROY $stream [ g1 | g2 ]"),
            (
                4,
                EXACT,
                "XREADGROUP GROUP [ g1 | g2 ] [ c1 | c2 ] [ COUNT $u | ] [ NOACK | ] STREAMS $stream [ > | 0 ]",
            ),
            (2, 0, "XACK $stream [ g1 | g2 ] $xid $xid"),
            (
                2,
                0,
                "XPENDING $stream [ g1 | g2 ] [ - + 10 | - + 10 c1 | ]",
            ),
            (
                1,
                EXACT,
                "XCLAIM $stream [ g1 | g2 ] [ c1 | c2 ] 0 $xid $xid [ FORCE | ] [ JUSTID | ]",
            ),
            (
                1,
                EXACT,
                "XAUTOCLAIM $stream [ g1 | g2 ] [ c1 | c2 ] 0 0 [ COUNT $u | ] [ JUSTID | ]",
            ),
            (1, 0, "XINFO STREAM $stream [ FULL | ]"),
            (1, 0, "XINFO GROUPS $stream"),
            (1, 0, "XINFO CONSUMERS $stream [ g1 | g2 ]"),
            (1, 0, "XDELEX $stream ACKED IDS 1 $xid"),
            (1, 0, "XACKDEL $stream g1 KEEPREF IDS 1 $xid"),
            (1, 0, "XINFO HELP"),
        ],
    },
    RequestClass {
        name: "hyperloglog",
        weight: 3,
        templates: &[
            (3, 0, "PFADD $hll ( $m )+"),
            (2, 0, "PFCOUNT ( $hll )+"),
            (1, 0, "PFMERGE $hll ( $hll )+"),
        ],
    },
    RequestClass {
        name: "bitmaps",
        weight: 5,
        templates: &[
            (4, 0, "SETBIT $bits $u [ 0 | 1 ]"),
            (2, 0, "GETBIT $bits $u"),
            (2, 0, "BITCOUNT $bits [ $i $i | ]"),
            (1, 0, "BITPOS $bits [ 0 | 1 ] [ $u | ]"),
            (1, 0, "BITOP [ AND | OR | XOR ] $bits $bits $bits"),
            (1, 0, "BITOP NOT $bits $bits"),
            (1, 0, "BITFIELD $bits SET u8 $u $u GET i4 0 INCRBY u2 100 1"),
            (1, 0, "BITFIELD_RO $bits GET u8 0"),
        ],
    },
    RequestClass {
        name: "geo",
        weight: 4,
        templates: &[
            (
                4,
                0,
                "GEOADD $geo ( [ 13.36 38.11 | 15.08 37.50 | 2.35 48.85 | 500 1 ] $m )+",
            ),
            (1, 0, "GEODIST $geo $m $m [ km | ]"),
            (1, 0, "GEOPOS $geo ( $m )+"),
            (1, 0, "GEOHASH $geo ( $m )+"),
            (
                2,
                0,
                "GEOSEARCH $geo FROMLONLAT 15 37 BYRADIUS 2000 km ASC [ WITHDIST | WITHCOORD | ]",
            ),
            (
                1,
                0,
                "GEOSEARCHSTORE $geo $geo FROMLONLAT 15 37 BYBOX 400 400 km ASC",
            ),
            (1, 0, "GEORADIUS $geo 15 37 200 km ASC [ STORE $geo | ]"),
            (1, 0, "GEORADIUS_RO $geo 15 37 200 km DESC"),
            (1, 0, "GEORADIUSBYMEMBER $geo $m 200 km ASC"),
        ],
    },
    RequestClass {
        name: "expire",
        weight: 6,
        templates: &[
            (2, EXACT, "EXPIRE $any $ttl [ NX | XX | GT | LT | | ]"),
            (1, EXACT, "PEXPIRE $any $ttlms"),
            (2, EXACT, "EXPIREAT $any $at"),
            (1, EXACT, "PEXPIREAT $any $atms"),
            (1, EXACT, "[ EXPIREAT | PEXPIREAT ] $any 1000"),
            (
                1,
                EXACT,
                "EXPIRE $any [ -1 | 0 | 99999999999999999 | soon ]",
            ),
            (2, 0, "PERSIST $any"),
            (2, 0, "TTL $any"),
            (1, 0, "PTTL $any"),
            (1, 0, "[ EXPIRETIME | PEXPIRETIME ] $any"),
        ],
    },
    RequestClass {
        name: "sort",
        weight: 4,
        templates: &[
            (3, EXACT, "SORT $list ALPHA [ DESC | ] [ LIMIT $u $u | ]"),
            (1, EXACT, "SORT $zset ALPHA"),
            (1, EXACT, "SORT $set ALPHA"),
            (1, EXACT, "SORT $list [ DESC | ]"),
            (2, EXACT, "SORT $list ALPHA STORE $list"),
            (1, EXACT, "SORT_RO $list ALPHA"),
            (1, EXACT | SOLO, "SORT $list BY h1->* ALPHA GET # GET s*"),
            (1, EXACT, "SORT $list BY nosort"),
        ],
    },
    RequestClass {
        name: "databases",
        weight: 5,
        templates: &[
            (6, EXACT, "SELECT $db"),
            (2, EXACT, "MOVE $any $db"),
            (2, EXACT, "COPY $any $any DB $db [ REPLACE | ]"),
            (2, EXACT | SOLO, "SWAPDB $db $db"),
            (1, EXACT | SOLO, "FLUSHDB [ ASYNC | SYNC | ]"),
            (1, EXACT | SOLO, "FLUSHALL [ ASYNC | SYNC | ]"),
        ],
    },
    RequestClass {
        name: "scripts",
        weight: 7,
        templates: &[
            (4, CACHE | EXACT, "EVAL $body $keys_args"),
            (1, CACHE | EXACT, "EVAL_RO $body $keys_args"),
            (3, CACHE | EXACT, "EVALSHA $sha $keys_args"),
            (1, CACHE | EXACT, "EVALSHA_RO $sha $keys_args"),
            (2, CACHE | EXACT, "SCRIPT LOAD $body"),
            (2, CACHE | EXACT, "SCRIPT EXISTS $sha $sha"),
            (1, CACHE | EXACT, "SCRIPT FLUSH [ SYNC | ASYNC | ]"),
            (1, CACHE | EXACT, "SCRIPT SHOW $sha"),
            (1, EXACT, "SCRIPT KILL"),
            (1, EXACT | WRONG, "EVAL $body [ x | -1 | 99 ]"),
            (1, EXACT, "EVALSHA short 0"),
            (1, EXACT, "SCRIPT HELP"),
        ],
    },
    RequestClass {
        name: "functions",
        weight: 3,
        templates: &[
            (3, CACHE | EXACT, "FUNCTION LOAD [ REPLACE | ] $library"),
            (3, CACHE | EXACT, "FCALL $function 1 $any $v"),
            (1, CACHE | EXACT, "FCALL_RO $function 1 $any $v"),
            (
                1,
                CACHE | EXACT,
                "FUNCTION LIST [ LIBRARYNAME mylib | WITHCODE | ]",
            ),
            (1, CACHE | EXACT, "FUNCTION DELETE [ mylib | otherlib ]"),
            (1, CACHE | EXACT, "FUNCTION FLUSH"),
            (1, EXACT, "FUNCTION KILL"),
            (1, EXACT, "FUNCTION HELP"),
        ],
    },
    RequestClass {
        name: "connection",
        weight: 6,
        templates: &[
            (4, 0, "PING [ $v | | ]"),
            (2, 0, "ECHO $v"),
            (2, 0, "CLIENT SETNAME [ me | you | $spaced ]"),
            (2, 0, "CLIENT GETNAME"),
            (
                1,
                0,
                "CLIENT SETINFO [ lib-name | lib-ver | other ] [ mine | 1.0 ]",
            ),
            (1, EXACT, "CLIENT ID"),
            (1, EXACT, "CLIENT INFO"),
            (
                4,
                EXACT | NOT_QUEUED,
                "HELLO [ 2 | 3 | 3 | ] [ SETNAME fine | ]",
            ),
            (
                1,
                EXACT | NOT_QUEUED,
                "HELLO [ 1 | 4 | x | 3 SETNAME | 3 AUTH default | 3 nonsense | 3 SETNAME $spaced ]",
            ),
            (3, EXACT | QUEUED, "HELLO [ 2 | 3 ] [ SETNAME fine | ]"),
            (1, EXACT | QUEUED, "HELLO [ 4 | 3 AUTH default ]"),
            (1, EXACT | QUEUED, "MONITOR"),
            (1, EXACT | NOT_QUEUED, "RESET"),
            (1, EXACT | NOT_QUEUED, "QUIT"),
            (
                1,
                EXACT,
                "AUTH [ wrong | default wrong | default nopass | a b c ]",
            ),
            (1, 0, "CLIENT HELP"),
            (1, EXACT, "CLIENT NO-EVICT [ ON | OFF | maybe ]"),
            (1, EXACT, "CLIENT NO-TOUCH [ ON | OFF ]"),
            (
                1,
                EXACT,
                "CLIENT UNBLOCK 99999999 [ TIMEOUT | ERROR | later | ]",
            ),
            (
                1,
                EXACT,
                "CLIENT KILL [ ID 99999999 | 127.0.0.1:1 | ADDR 127.0.0.1:1 ]",
            ),
            (1, EXACT | WRONG, "CLIENT KILL [ ID x | NOSUCH 1 ]"),
            (
                1,
                EXACT,
                "CLIENT LIST [ ID 99999999 | TYPE pubsub | TYPE nothing ]",
            ),
            (1, EXACT | WRONG, "CLIENT NOSUCH"),
            (
                1,
                EXACT | SOLO | NOT_QUEUED,
                "CLIENT PAUSE [ 20 | 20 WRITE | 20 ALL | -1 | x | 20 NONE ]",
            ),
            (1, EXACT | SOLO | NOT_QUEUED, "CLIENT UNPAUSE"),
            (1, EXACT | SOLO | QUEUED, "CLIENT [ PAUSE 0 | UNPAUSE ]"),
        ],
    },
    RequestClass {
        name: "replies",
        weight: 2,
        // The generator adds the requests behind it, and its end.
        templates: &[
            (3, EXACT | NOT_QUEUED, "CLIENT REPLY OFF"),
            (3, EXACT | NOT_QUEUED, "CLIENT REPLY SKIP"),
            (1, EXACT | NOT_QUEUED, "CLIENT REPLY ON"),
            (1, EXACT | NOT_QUEUED, "CLIENT REPLY MAYBE"),
            // Without the reply to one of its requests, the reply to EXEC would have no end.
            (1, EXACT | QUEUED, "CLIENT REPLY [ ON | MAYBE ]"),
        ],
    },
    RequestClass {
        name: "transactions",
        weight: 12,
        templates: &[
            (8, EXACT, "MULTI"),
            (1, EXACT, "EXEC"),
            (1, EXACT, "DISCARD"),
            (4, EXACT, "WATCH ( $any )+"),
            (1, EXACT, "UNWATCH"),
            (1, EXACT, "MULTI now"),
            (1, EXACT, "WATCH"),
        ],
    },
    RequestClass {
        name: "blocking",
        weight: 6,
        templates: &[
            // On existing data, mostly served at once; for a moment, then null; without end, until
            // another connection serves it.
            (3, EXACT, "[ BLPOP | BRPOP ] $list $list [ 0.02 | 0.03 ]"),
            (3, EXACT | ENDLESS, "[ BLPOP | BRPOP ] $list $list 0"),
            (
                1,
                EXACT,
                "BLMOVE $list $list [ LEFT | RIGHT ] [ LEFT | RIGHT ] 0.02",
            ),
            (
                2,
                EXACT | ENDLESS,
                "BLMOVE $list $list [ LEFT | RIGHT ] [ LEFT | RIGHT ] 0",
            ),
            (1, EXACT, "BRPOPLPUSH $list $list 0.02"),
            (1, EXACT | ENDLESS, "BRPOPLPUSH $list $list 0"),
            (1, EXACT, "BLMPOP 0.02 2 $list $list LEFT [ COUNT $u | ]"),
            (1, EXACT | ENDLESS, "BLMPOP 0 2 $list $list RIGHT"),
            (1, EXACT, "[ BZPOPMIN | BZPOPMAX ] $zset $zset 0.02"),
            (2, EXACT | ENDLESS, "[ BZPOPMIN | BZPOPMAX ] $zset $zset 0"),
            (1, EXACT, "BZMPOP 0.02 2 $zset $zset MIN"),
            (1, EXACT | ENDLESS, "BZMPOP 0 2 $zset $zset MAX COUNT 2"),
            (1, EXACT, "XREAD BLOCK 20 STREAMS $stream $"),
            (
                2,
                EXACT | ENDLESS,
                "XREAD COUNT 2 BLOCK 0 STREAMS $stream $",
            ),
            (
                1,
                EXACT,
                "XREADGROUP GROUP g1 c1 BLOCK 20 STREAMS $stream >",
            ),
            (
                1,
                EXACT | ENDLESS,
                "XREADGROUP GROUP g1 c1 BLOCK 0 STREAMS $stream >",
            ),
            (1, EXACT, "BLPOP $list [ -1 | soon | 99999999999999999999 ]"),
            (1, EXACT, "BLPOP 0"),
            (1, EXACT, "WAIT 0 20"),
            (1, EXACT, "WAIT 1 20"),
            (1, EXACT, "WAITAOF 0 0 20"),
        ],
    },
    RequestClass {
        name: "pubsub",
        weight: 7,
        templates: &[
            (5, 0, "PUBLISH $ch $v"),
            (2, 0, "SPUBLISH $shard $v"),
            (3, EXACT | NOT_QUEUED, "SUBSCRIBE ( $ch )+"),
            (2, EXACT | NOT_QUEUED | SOLO, "PSUBSCRIBE ( $pat )+"),
            (1, EXACT | NOT_QUEUED, "SSUBSCRIBE $shard"),
            (1, EXACT | NOT_QUEUED, "UNSUBSCRIBE ( $ch )+"),
            (1, EXACT | NOT_QUEUED, "UNSUBSCRIBE"),
            (1, EXACT | NOT_QUEUED | SOLO, "PUNSUBSCRIBE [ $pat | ]"),
            (1, EXACT | NOT_QUEUED, "SUNSUBSCRIBE [ $shard | ]"),
            // One channel each: more confirmations would not fit the reply to EXEC.
            (3, EXACT | QUEUED, "SUBSCRIBE $ch"),
            (1, EXACT | QUEUED | SOLO, "PSUBSCRIBE [ c* | c? ]"),
            (1, EXACT | QUEUED, "SSUBSCRIBE $shard"),
            (2, EXACT | QUEUED, "UNSUBSCRIBE $ch"),
            (1, EXACT | QUEUED | SOLO, "PUNSUBSCRIBE [ c* | c? ]"),
            (1, SOLO, "PUBSUB CHANNELS [ c* | ]"),
            (1, SOLO, "PUBSUB NUMSUB $ch $ch"),
            (1, SOLO, "PUBSUB NUMPAT"),
            (1, SOLO, "PUBSUB SHARDCHANNELS"),
            (1, SOLO, "PUBSUB SHARDNUMSUB $shard"),
            (1, 0, "PUBSUB HELP"),
        ],
    },
    RequestClass {
        name: "tracking",
        weight: 2,
        templates: &[
            (
                4,
                EXACT | NOT_QUEUED | SOLO,
                "CLIENT TRACKING ON [ NOLOOP | OPTIN | OPTOUT | OPTIN OPTOUT | PREFIX s | ]",
            ),
            (2, EXACT | NOT_QUEUED | SOLO, "CLIENT TRACKING OFF"),
            (
                2,
                EXACT | QUEUED | SOLO,
                "CLIENT TRACKING [ ON | ON NOLOOP | OFF ]",
            ),
            (1, EXACT | WRONG, "CLIENT TRACKING [ MAYBE | ]"),
            (1, EXACT, "CLIENT CACHING [ YES | NO | MAYBE ]"),
            (1, EXACT, "CLIENT TRACKINGINFO"),
            (1, EXACT, "CLIENT GETREDIR"),
            (2, EXACT | NOT_QUEUED | SOLO, "HELLO 3"),
        ],
    },
    RequestClass {
        name: "server",
        weight: 3,
        templates: &[
            (1, 0, "COMMAND COUNT"),
            (1, 0, "COMMAND INFO get set nosuch"),
            (1, 0, "COMMAND GETKEYS MSET a b c d"),
            (1, 0, "COMMAND GETKEYS EVAL x 2 a b c"),
            (1, 0, "CONFIG GET maxmemory*"),
            (1, WRONG, "CONFIG NOSUCH"),
            (1, EXACT, "TIME"),
            (1, EXACT, "LASTSAVE"),
            (1, 0, "ROLE"),
            (1, 0, "ACL WHOAMI"),
            (1, 0, "ACL CAT string"),
            (1, EXACT, "INFO [ server | keyspace | ]"),
            (1, 0, "LATENCY HISTORY nothing"),
            (1, 0, "SLOWLOG LEN nothing"),
            (1, 0, "MODULE LIST"),
            (1, 0, "CLUSTER INFO"),
            (1, WRONG, "CLUSTER NOSUCH"),
            (1, 0, "READONLY"),
            (1, 0, "ASKING"),
            (1, WRONG, "DEBUG NOSUCH"),
        ],
    },
];

/// Scripts.
pub(crate) const SCRIPTS: [&str; 6] = [
    "return {KEYS, ARGV}",
    "return redis.call('SET', KEYS[1], ARGV[1])",
    "return redis.call('GET', KEYS[1])",
    "redis.call('RPUSH', KEYS[1], ARGV[1]) return redis.call('LRANGE', KEYS[1], 0, -1)",
    "return redis.error_reply('MINE went wrong')",
    "return redis.pcall('INCR', KEYS[1])",
];

/// Libraries of functions.
pub(crate) const LIBRARIES: [&str; 3] = [
    "#!lua name=mylib\nredis.register_function('first', function(keys, args) return redis.call('SET', keys[1], args[1]) end)",
    "#!lua name=otherlib\nredis.register_function{function_name='second', callback=function(keys, args) return \
     {keys[1], args[1]} end, flags={'no-writes'}}",
    "#!lua name=badlib\nthis is no program",
];

pub(crate) const FUNCTIONS: [&str; 3] = ["first", "second", "third"];

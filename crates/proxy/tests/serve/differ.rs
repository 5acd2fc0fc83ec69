//! Random requests get the same replies through respool as from the server, and leave the same behind.

use std::time::Duration;

use respool_lab::differ::{self, Settings};
use respool_lab::servers::{self, Flavour};

use super::target::{respool, say, seed};

/// Commands, and options of commands, that respool knows and not every server does. To a subscriber, in a transaction,
/// and with a wrong number of arguments, they are answered by the table, not by the server, which would say that it does
/// not know them. These came with Redis 7.0 ...
const SINCE_7_0: &[&str] = &[
    "BLMPOP",
    "BZMPOP",
    "CLIENT NO-EVICT",
    "EVALSHA_RO",
    "EVAL_RO",
    "EXPIRE GT",
    "EXPIRE LT",
    "EXPIRE NX",
    "EXPIRE XX",
    "EXPIRETIME",
    "FCALL",
    "FCALL_RO",
    "FUNCTION DELETE",
    "FUNCTION FLUSH",
    "FUNCTION HELP",
    "FUNCTION KILL",
    "FUNCTION LIST",
    "FUNCTION LOAD",
    "LCS",
    "LMPOP",
    "PEXPIRETIME",
    "PUBSUB SHARDCHANNELS",
    "PUBSUB SHARDNUMSUB",
    "SINTERCARD",
    "SORT_RO",
    "SPUBLISH",
    "SSUBSCRIBE",
    "SUNSUBSCRIBE",
    "ZINTERCARD",
    "ZMPOP",
];

/// ... these with Redis 7.2 ...
const SINCE_7_2: &[&str] = &["ZRANK WITHSCORE", "ZREVRANK WITHSCORE"];

/// ... and these later, or only to some.
const LATER: &[&str] = &[
    "CLIENT NO-TOUCH",
    "CLIENT SETINFO",
    "DELIFEQ",
    "HGETDEL",
    "HGETEX",
    "HPERSIST",
    "HPEXPIREAT",
    "HSETEX",
    "HTTL",
    "MSETEX",
    "SCRIPT SHOW",
    "WAITAOF",
    "XACKDEL",
    "XDELEX",
];

#[test]
fn no_client_can_tell_random_requests_through_respool_from_the_same_to_the_server() {
    let seed = seed() % 1_000_000_000;
    for flavour in Flavour::ALL {
        // Those that are not installed were named by the others.
        if servers::find(flavour).is_err() {
            continue;
        }
        for threads in ["--threads=1", "--threads=3"] {
            say(&format!(
                "differ: {} {threads} --seed {seed}",
                flavour.name()
            ));
            let newer: &[&[&str]] = match flavour {
                Flavour::Redis62 => &[SINCE_7_0, SINCE_7_2],
                Flavour::Redis70 => &[SINCE_7_2],
                _ => &[],
            };
            let unknown = newer.iter().copied().flatten().chain(LATER);
            let omitted = unknown.map(|&name| name.to_owned()).collect();
            let settings = Settings {
                seed,
                cases: 12,
                time_max: Some(Duration::from_secs(3)),
                flavour,
                respool: respool(),
                respool_args: vec![threads.to_owned()],
                // What is wrong in itself is compared by the golden files; INFO and the like are our own.
                without: ["errors", "server"].map(str::to_owned).into(),
                omitted,
                accepts_refusals: true,
                // Only what never comes is waited for so long.
                patience: Duration::from_secs(20),
                ..Settings::default()
            };
            let report =
                differ::run(&settings, &mut |_| {}).unwrap_or_else(|problem| panic!("{problem}"));
            assert!(report.is_clean(), "{}", report.text());
        }
    }
}

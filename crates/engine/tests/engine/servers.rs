//! Pools of several servers, each rule in a history of its own.

use crate::world::{OF_THE_LAST, World, requests};
use respool_engine::settings::{PoolKind, Shows};
use respool_engine::{LinkId, SessionId};

/// This many servers, and a key of each.
fn servers(count: u16) -> (World, Vec<LinkId>, Vec<String>) {
    let world = World::new(crate::world::sharded(count));
    let keys = (0..count.into()).map(|at| world.key_at(at, "k")).collect();
    let links = world.all_shared.clone();
    (world, links, keys)
}

/// Requests to a server, as words.
fn asked(world: &mut World, link: LinkId) -> Vec<String> {
    let asked = world.asked(link).into_iter();
    asked.map(|args| args.join(" ")).collect()
}

/// A server answers COMMAND, MULTI and EXEC so that the table counts and the user may open
/// transactions.
fn may_queue(world: &mut World, session: SessionId, link: LinkId, key: &str) {
    world.asks(session, &["MULTI", &format!("GET {key}")]);
    world.says(link, "-ERR no\r\n");
    world.says(link, "+OK\r\n*0\r\n");
    world.sent(link);
    world.got(session);
}

/// CLIENT REPLY SKIP drops the reply of a scattered request.
#[test]
fn skipped_reply_of_several_servers_is_dropped() {
    let (mut world, links, keys) = servers(2);
    let session = world.accept();
    world.may_ask(session, &["CLIENT REPLY respool"]);
    let del = format!("DEL {} {}", keys[0], keys[1]);
    let get = format!("GET {}", keys[0]);
    world.asks(session, &["CLIENT REPLY SKIP", &del, &get]);
    world.wait_ms(1);
    assert_eq!(
        asked(&mut world, links[0]),
        [format!("DEL {}", keys[0]), get]
    );
    assert_eq!(asked(&mut world, links[1]), [format!("DEL {}", keys[1])]);
    world.says(links[0], ":1\r\n$1\r\nv\r\n");
    world.says(links[1], ":1\r\n");
    assert_eq!(world.got(session), "$1\r\nv\r\n");
}

/// A transaction refuses keys of a second server, and commands for all servers.
#[test]
fn transaction_has_keys_of_one_server_only() {
    let (mut world, links, keys) = servers(2);
    let session = world.accept();
    may_queue(&mut world, session, links[0], &keys[0]);
    let crossslot = "-CROSSSLOT ";
    for foreign in [
        format!("GET {}", keys[1]),
        format!("MGET {} {}", keys[0], keys[1]),
    ] {
        world.asks(session, &[&foreign]);
        assert!(world.got(session).starts_with(crossslot), "{foreign}");
    }
    world.asks(session, &["DBSIZE"]);
    assert!(
        world
            .got(session)
            .starts_with("-ERR respool: 'dbsize' cannot")
    );
    world.asks(session, &["EXEC"]);
    assert!(world.got(session).starts_with("-EXECABORT "));
    world.asks(
        session,
        &["MULTI", &format!("WATCH {}", keys[1]), "DISCARD"],
    );
    assert!(
        world
            .got(session)
            .contains("-ERR WATCH inside MULTI is not allowed")
    );
    // Commands for all servers are refused also before a key has chosen a server.
    world.asks(
        session,
        &["MULTI", &format!("MGET {} {}", keys[0], keys[1])],
    );
    assert!(world.got(session).starts_with("+OK\r\n-CROSSSLOT "));
    world.asks(session, &["DBSIZE"]);
    assert!(
        world
            .got(session)
            .starts_with("-ERR respool: 'dbsize' cannot")
    );
    for link in links {
        assert_eq!(asked(&mut world, link), Vec::<String>::new());
    }
}

/// A session that watches keys stays at their server. Requests for other servers are refused.
#[test]
fn watching_session_stays_at_its_server() {
    let (mut world, links, mut keys) = servers(2);
    keys.reverse();
    let session = world.accept();
    world.asks(session, &[&format!("WATCH {}", keys[0])]);
    let own = world.connect();
    assert_eq!(world.server_of(own), 1);
    world.says(own, "+OK\r\n");
    assert_eq!(world.got(session), "+OK\r\n");
    world.sent(own);
    for foreign in [
        format!("GET {}", keys[1]),
        format!("MGET {} {}", keys[0], keys[1]),
    ] {
        world.asks(session, &[&foreign]);
        assert!(world.got(session).starts_with("-CROSSSLOT "), "{foreign}");
    }
    world.asks(session, &["DBSIZE"]);
    assert!(
        world
            .got(session)
            .starts_with("-ERR respool: 'dbsize' cannot")
    );
    world.asks(session, &[&format!("GET {}", keys[0]), "ECHO here"]);
    let its = [format!("GET {}", keys[0]), "ECHO here".to_owned()];
    assert_eq!(asked(&mut world, own), its);
    // A large request goes there, too, or is refused.
    let own_large = format!("*3\r\n$3\r\nSET\r\n$2\r\n{}\r\n$300000\r\nv", keys[0]);
    let large = format!("*3\r\n$3\r\nSET\r\n$2\r\n{}\r\n$300000\r\nv", keys[1]);
    world.says(own, "$-1\r\n$4\r\nhere\r\n");
    world.got(session);
    world.sends(session, large.as_bytes());
    assert!(world.got(session).starts_with("-CROSSSLOT "));
    world.sends(session, &[&[b'v'; 299_999][..], b"\r\n"].concat());
    world.sends(session, own_large.as_bytes());
    assert_eq!(world.sent(own), own_large);
    for link in links {
        assert_eq!(asked(&mut world, link), Vec::<String>::new());
    }
}

/// A request without a key goes to the first server that is up. PUBLISH goes only to the first
/// server, for every channel.
#[test]
fn request_without_a_key_goes_to_the_first_server_up() {
    let (mut world, links, keys) = servers(3);
    let session = world.accept();
    // The last request of the session went to another server.
    world.asks(session, &[&format!("GET {}", keys[2]), "TIME"]);
    world.wait_ms(1);
    assert_eq!(asked(&mut world, links[0]), ["TIME"]);
    assert_eq!(asked(&mut world, links[2]).len(), 1);
    world.says(links[2], "$-1\r\n");
    world.says(links[0], "*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
    world.got(session);
    world.lose(links[0]);
    for link in world.connecting() {
        world.lose(link);
    }
    let channel = world.key_at(2, "channel");
    world.asks(session, &["TIME", &format!("PUBLISH {channel} news")]);
    assert_eq!(asked(&mut world, links[1]), ["TIME"]);
    world.says(links[1], "*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
    let got = world.got(session);
    let published = got.strip_prefix("*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
    assert!(
        published.is_some_and(|reply| reply.starts_with("-NOTSENT ")),
        "{got}"
    );
    assert_eq!(asked(&mut world, links[2]), Vec::<String>::new());
}

/// A full link takes no share of a scattered request.
#[test]
fn full_link_takes_no_part() {
    let mut settings = crate::world::sharded(3);
    settings.limits.link_unanswered_requests_max = 4;
    let mut world = World::new(settings);
    let [k, l, elsewhere] = [0, 1, 2].map(|at| world.key_at(at, "k"));
    let third = world.all_shared[2];
    let sessions = [(); 20].map(|()| world.accept());
    for session in sessions {
        world.asks(session, &[&format!("GET {elsewhere}")]);
        world.says(third, "$-1\r\n");
    }
    world.sent(third);
    let mget = requests(&[&format!("MGET {k} {l}")]);
    world.turn(|engine| {
        for session in &sessions {
            engine.handle_session_bytes(*session, &mget);
        }
    });
    world.wait_ms(50);
    let asked = world
        .all_shared
        .clone()
        .into_iter()
        .map(|link| asked(&mut world, link).len());
    assert_eq!(asked.collect::<Vec<_>>(), [4, 4, 0]);
}

/// A full link stays full for a session that has switched to another server and back.
#[test]
fn full_link_stays_full_for_a_returning_session() {
    let mut settings = crate::world::sharded(2);
    settings.limits.link_unanswered_requests_max = 4;
    let mut world = World::new(settings);
    let [k, l] = [0, 1].map(|at| format!("GET {}", world.key_at(at, "k")));
    let session = world.accept();
    let both: Vec<&str> = [k.as_str(), &l].repeat(20);
    world.asks(session, &both);
    world.wait_ms(50);
    for link in world.all_shared.clone() {
        assert!(asked(&mut world, link).len() <= 4);
    }
}

/// A link that no session is attached to any more is closed.
#[test]
fn unused_link_of_a_switched_session_is_closed() {
    let (mut world, links, keys) = servers(2);
    let session = world.accept();
    world.may_ask(session, &["SELECT respool"]);
    world.asks(session, &["SELECT 1"]);
    let first = world.connect();
    assert_eq!(world.got(session), "+OK\r\n");
    // Other sessions use this server in another database.
    let other = world.accept();
    world.asks(other, &[&format!("GET {}", keys[1])]);
    world.says(links[1], "$-1\r\n");
    world.sent(links[1]);
    world.asks(session, &[&format!("GET {}", keys[1])]);
    let second = world.connect();
    assert_eq!(world.sent(links[1]), "");
    world.says(second, "$-1\r\n");
    assert_eq!(world.got(session), "$-1\r\n");
    world.wait_ms(2 * respool_engine::limits::LINK_UNUSED_MS);
    assert_eq!(
        world.closed_links(),
        [first],
        "and not the link that the session is attached to"
    );
    world.turn(|engine| engine.handle_session_lost(session));
    world.wait_ms(2 * respool_engine::limits::LINK_UNUSED_MS);
    assert_eq!(world.closed_links(), [first, second]);
    assert_eq!(world.engine.counters().links as usize, links.len());
}

/// A lost read is sent again, but not after a later change by its session, even if that is a share.
#[test]
fn lost_read_is_not_retried_after_a_scattered_change() {
    for (behind, reads, again) in [
        ("DEL", false, false),
        ("MGET", true, true),
        ("EXISTS", true, true),
        // SCAN is not sent again: its cursor has left with the request.
        ("SCAN", true, false),
    ] {
        let (mut world, links, keys) = servers(2);
        world.wait_ms(1_100);
        let session = world.accept();
        let get = format!("GET {}", keys[0]);
        let share = format!("{behind} {}", keys[0]);
        let behind = match behind {
            "SCAN" => "SCAN 0".to_owned(),
            _ => format!("{behind} {} {}", keys[0], keys[1]),
        };
        world.asks(session, &[&get, &behind]);
        assert_eq!(asked(&mut world, links[0]).len(), 2, "{behind}");
        world.lose(links[0]);
        assert_eq!(world.connect(), links[0]);
        let mut sent = if reads { vec![get] } else { Vec::new() };
        sent.extend(again.then_some(share));
        assert_eq!(asked(&mut world, links[0]), sent, "{behind}");
    }
}

/// A queued request is checked by the list of the server that was asked at MULTI, even if another
/// one will execute it.
#[test]
fn queued_request_for_another_server_is_checked() {
    let (mut world, links, keys) = servers(2);
    let session = world.accept();
    world.asks(session, &["MULTI"]);
    let has = [("get", 2), ("multi", 1), ("exec", 1)];
    let has = has.map(|(name, arity)| format!("*2\r\n+{name}\r\n:{arity}\r\n"));
    world.says(links[0], format!("*3\r\n{}", has.concat()));
    world.says(links[0], "+OK\r\n*0\r\n");
    assert_eq!(world.got(session), "+OK\r\n");
    let get = format!("GET {}", keys[1]);
    world.asks(session, &[&get, &format!("{get} more"), "EXEC"]);
    assert_eq!(
        world.got(session),
        "+QUEUED\r\n-ERR wrong number of arguments for 'get' command\r\n\
         -EXECABORT Transaction discarded because of previous errors.\r\n"
    );
}

/// A read that is sent again has its keys without their prefix. The reply names them with it.
#[test]
fn retried_read_keeps_its_prefix_removed() {
    let mut settings = crate::world::parted(1);
    let PoolKind::ByPrefix { subpools } = &mut settings.pools[0].kind else {
        panic!("a pool of subpools");
    };
    subpools[1].strip = true;
    let mut world = World::new(settings);
    let link = world.all_shared[1];
    world.wait_ms(1_100);
    let session = world.accept();
    world.asks(session, &[&format!("XREAD STREAMS {OF_THE_LAST}:st 0")]);
    assert_eq!(asked(&mut world, link), ["XREAD STREAMS :st 0"]);
    world.lose(link);
    assert_eq!(world.connect(), link);
    assert_eq!(asked(&mut world, link), ["XREAD STREAMS :st 0"]);
    world.says(link, "*1\r\n*2\r\n$3\r\n:st\r\n*0\r\n");
    assert_eq!(world.got(session), "*1\r\n*2\r\n$5\r\nk1:st\r\n*0\r\n");
}

/// The beginning of a request, before an argument of this length.
fn large(words: &[&str], rest: usize, len: usize) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len() + rest);
    for word in words {
        bytes += &format!("${}\r\n{word}\r\n", word.len());
    }
    bytes += &format!("${len}\r\nv");
    bytes.into_bytes()
}

/// A large request goes to the server of its key.
#[test]
fn large_request_goes_to_the_server_of_its_key() {
    let (mut world, _, keys) = servers(2);
    for (at, key) in keys.iter().enumerate() {
        let session = world.accept();
        let bytes = large(&["SET", key], 1, 300_000);
        world.sends(session, &bytes);
        let link = world.connect();
        assert_eq!(world.server_of(link), at);
        assert_eq!(world.sent(link).as_bytes(), bytes);
    }
    let session = world.accept();
    let bytes = large(&["ECHO"], 1, 300_000);
    world.sends(session, &bytes);
    let link = world.connect();
    assert_eq!(world.sent(link).as_bytes(), bytes, "ECHO has no key");
}

/// Keys that have not come may belong to other servers. They have all come when the request is
/// whole.
#[test]
fn large_request_waits_until_its_keys_have_come() {
    let (mut world, links, _) = servers(2);
    let key = world.key_at(1, "k");
    let many = vec![key.as_str(); 30_000].join(" ");
    for (request, said) in [
        (format!("SUNIONSTORE {many}"), ":0\r\n"),
        (format!("SINTER {many}"), "*0\r\n"),
        (format!("EVAL {} 1 {key}", "x".repeat(300_000)), "$-1\r\n"),
    ] {
        let session = world.accept();
        let bytes = requests(&[&request]);
        for piece in bytes.chunks(64 << 10) {
            assert_eq!(world.sent(links[0]) + &world.sent(links[1]), "");
            world.sends(session, piece);
        }
        assert_eq!(world.sent(links[0]), "");
        let link = match request.starts_with("EVAL") {
            true => world.connect(),
            false => links[1],
        };
        assert_eq!(world.sent(link).len(), bytes.len());
        world.says(link, said);
        assert_eq!(world.got(session), said);
    }
}

/// An unknown command is held until its keys have come, too: only a server knows them.
#[test]
fn large_unknown_command_goes_where_its_keys_are() {
    let (mut world, links, keys) = servers(2);
    let session = world.accept();
    let request = format!("TOOL.ADD {} {}", "x".repeat(300_000), keys[1]);
    let bytes = requests(&[&request]);
    for piece in bytes.chunks(64 << 10) {
        world.sends(session, piece);
    }
    assert_eq!(asked(&mut world, links[0]), ["COMMAND INFO tool.add"]);
    let facts = "*1\r\n*6\r\n$8\r\ntool.add\r\n:3\r\n*1\r\n+write\r\n:2\r\n:2\r\n:1\r\n";
    world.says(links[0], facts);
    let link = world.connect();
    assert_eq!(world.server_of(link), 1);
    assert_eq!(world.sent(link).len(), bytes.len());
    world.says(link, ":1\r\n");
    assert_eq!(world.got(session), ":1\r\n");
}

/// WATCH, BLPOP and SUBSCRIBE with thousands of names concern the session, and are held whole.
#[test]
fn large_request_about_the_session_is_held_whole() {
    for servers in [1, 2] {
        let mut world = World::new(crate::world::sharded(servers));
        let key = world.key_at(0, "k");
        let many = vec![key.as_str(); 60_000].join(" ");
        for request in [format!("WATCH {many}"), format!("BLPOP {many} 0")] {
            let session = world.accept();
            let bytes = requests(&[&request]);
            bytes
                .chunks(64 << 10)
                .for_each(|piece| world.sends(session, piece));
            assert_eq!(world.got(session), "");
            let link = world.connect();
            assert!(
                world
                    .sent(link)
                    .ends_with(&String::from_utf8_lossy(&bytes).as_ref()),
                "{servers}"
            );
            world.says(link, "+OK\r\n");
            assert_eq!(world.got(session), "+OK\r\n");
        }
    }
}

/// A request that has begun with keys of one server may have keys of others.
#[test]
fn large_request_is_divided_when_all_its_keys_have_come() {
    let (mut world, links, keys) = servers(2);
    // A key that has not come is not taken for the empty key.
    let of_nobody = world.owner_of("");
    let session = world.accept();
    world.sends(session, &large(&["MSET", &keys[of_nobody]], 3, 300_000));
    world.sends(session, &[b'v'; 299_999]);
    assert_eq!(world.got(session), "");
    assert_eq!(world.connecting(), []);
    for link in &links {
        assert_eq!(world.sent(*link), "");
    }
    let other = &keys[1 - of_nobody];
    world.sends(
        session,
        format!("\r\n${}\r\n{other}\r\n$1\r\nw\r\n", other.len()).as_bytes(),
    );
    for link in links {
        assert!(world.sent(link).contains("MSET"));
        world.says(link, "+OK\r\n");
    }
    assert_eq!(world.got(session), "+OK\r\n");
}

/// A server that cannot be reached, and a session that was there.
fn first_is_gone(queued: bool) -> (World, Vec<LinkId>, SessionId) {
    let (mut world, links, keys) = servers(2);
    let session = world.accept();
    if queued {
        may_queue(&mut world, session, links[0], &keys[0]);
    }
    world.lose(links[0]);
    for link in world.connecting() {
        world.lose(link);
    }
    (world, links, session)
}

/// A question that any server can answer goes to one that is up.
#[test]
fn question_for_any_server_goes_to_one_that_is_up() {
    let (mut world, links, session) = first_is_gone(false);
    world.asks(session, &["CLIENT SETNAME name"]);
    assert_eq!(asked(&mut world, links[1]), ["CLIENT SETNAME respool"]);
    world.says(links[1], "+OK\r\n");
    assert_eq!(world.got(session), "+OK\r\n");
}

/// A transaction is executed by the server of its keys, or not at all.
#[test]
fn transaction_runs_at_its_server_or_not_at_all() {
    let (mut world, links, session) = first_is_gone(true);
    world.asks(session, &["CLIENT GETNAME", "EXEC"]);
    world.wait_ms(50);
    let got = world.got(session);
    assert!(
        got.contains("-NOTSENT ") || got.contains("-EXECABORT "),
        "{got}"
    );
    assert!(!world.sent(links[1]).contains("MULTI"));
}

/// DEBUG OBJECT names one key, so its owner answers. Other DEBUG subcommands concern one server.
#[test]
fn debug_object_goes_to_the_owner_of_its_key() {
    let (mut world, links, keys) = servers(2);
    let session = world.accept();
    for (link, key) in links.iter().zip(&keys) {
        let debug = format!("DEBUG OBJECT {key}");
        world.asks(session, &[&debug]);
        assert_eq!(world.sent(*link).as_bytes(), requests(&[&debug]));
        world.says(*link, "+Value at:0x1\r\n");
        assert_eq!(world.got(session), "+Value at:0x1\r\n");
    }
    world.asks(session, &["DEBUG SLEEP 0"]);
    assert!(
        world
            .got(session)
            .starts_with("-ERR respool: 'debug' cannot be sent to a pool")
    );
}

/// In front of a Cluster all replies show a node, or all show a plain server.
#[test]
fn all_answers_show_a_node_or_all_a_plain_server() {
    const NO_CLUSTER: &str = "-ERR This instance has cluster support disabled\r\n";
    let of_cluster = |shows| {
        let mut settings = crate::world::cluster(2);
        settings.pools[0].shows = shows;
        let mut world = World::new(settings);
        world.know_owners();
        world.sent(world.shared);
        let session = world.accept();
        (world, session)
    };
    let subcommands = [
        "HELP",
        "SLOT-STATS SLOTSRANGE 0 1",
        "COUNT-FAILURE-REPORTS x",
        "FORGET x",
        "SAVECONFIG",
        "BUMPEPOCH",
        "FLUSHSLOTS",
        "SLOTS",
        "ADDSLOTS 1",
    ];
    let (mut world, session) = of_cluster(Shows::Server);
    for subcommand in subcommands {
        world.asks(session, &[&format!("CLUSTER {subcommand}")]);
        assert_eq!(world.got(session), NO_CLUSTER, "{subcommand}");
    }
    for command in ["READONLY", "ASKING"] {
        world.asks(session, &[command]);
        // The server gives no list of commands.
        for _ in world.asked(world.shared) {
            world.says(world.shared, "-ERR no\r\n");
        }
        assert_eq!(world.got(session), NO_CLUSTER, "{command}");
    }
    world.asks(session, &["CONFIG GET cluster-enabled"]);
    world.says(
        world.shared,
        "*2\r\n$15\r\ncluster-enabled\r\n$3\r\nyes\r\n",
    );
    assert_eq!(
        world.got(session),
        "*2\r\n$15\r\ncluster-enabled\r\n$2\r\nno\r\n"
    );
    world.sent(world.shared);
    world.asks(session, &["SELECT 1"]);
    // The server is first asked whether this user may select.
    assert_eq!(
        world.sent(world.shared).as_bytes(),
        requests(&["SELECT respool"])
    );
    world.says(world.shared, "-ERR no number\r\n");
    let [link] = world.connecting()[..] else {
        panic!("a link to the database is connected");
    };
    world.turn(|engine| engine.handle_link_up(link));
    world.says(
        link,
        [
            crate::world::HELLO,
            "-ERR SELECT is not allowed in cluster mode\r\n",
        ]
        .concat(),
    );
    assert_eq!(world.got(session), "-ERR DB index is out of range\r\n");
    let other = world.accept();
    world.asks(other, &["ROLE"]);
    assert!(
        world
            .got(other)
            .starts_with("-ERR respool: 'role' cannot be sent to a pool")
    );

    // INFO shows a primary without replicas.
    let (mut world, session) = of_cluster(Shows::Node);
    world.asks(session, &["ROLE"]);
    world.says(
        world.shared,
        "*3\r\n$6\r\nmaster\r\n:42\r\n*1\r\n*3\r\n$1\r\nh\r\n$1\r\n1\r\n$2\r\n41\r\n",
    );
    assert_eq!(world.got(session), "*3\r\n$6\r\nmaster\r\n:42\r\n*0\r\n");
    world.asks(session, &["CONFIG GET cluster-enabled"]);
    let enabled = "*2\r\n$15\r\ncluster-enabled\r\n$3\r\nyes\r\n";
    world.says(world.shared, enabled);
    assert_eq!(world.got(session), enabled);

    // Plain servers refuse it themselves.
    let (mut world, links, _) = servers(2);
    let session = world.accept();
    for subcommand in subcommands {
        let cluster = format!("CLUSTER {subcommand}");
        world.asks(session, &[&cluster]);
        assert_eq!(world.sent(links[0]).as_bytes(), requests(&[&cluster]));
        world.says(links[0], NO_CLUSTER);
        assert_eq!(world.got(session), NO_CLUSTER, "{subcommand}");
    }
}

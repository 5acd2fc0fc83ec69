//! The one table of options.
//!
//! It drives the command line, the configuration file, `--help`, the reference page, the manual
//! page and the printed configuration. An option has one name everywhere: `--max-delay-us 200` on
//! the command line is `max-delay-us = 200` in the file. Defaults are not in the table: they are
//! what [`Values::default`] holds, and for limits, timeouts and the flush rule the engine's own.

use std::path::PathBuf;

use respool_engine::address_map::Entry;
use respool_engine::limits::{Limits, WORKER_MEMORY_BYTES_MIN};
use respool_engine::settings::{
    Address, Announced, AwayError, FlushRule, LostSubscriptions, Shows, Timeouts, User, WhenFull,
};
use respool_protocol::commands::{self, CommandId};

use crate::account::{self, Account};
use crate::address::{BackendUrl, parse_announced, parse_backend, parse_listener};
use crate::pools::NamedPool;
use crate::problem::shown;

/// One option.
pub(crate) struct Opt {
    /// Its name, without dashes in front.
    pub(crate) name: &'static str,
    /// The heading under which it is shown.
    pub(crate) topic: Topic,
    /// What it takes, and where that is kept.
    pub(crate) kind: Kind,
    /// What stands for its value in help.
    pub(crate) value: &'static str,
    /// What it is, in one line.
    pub(crate) brief: &'static str,
    /// What else there is to know. Paragraphs are parted by an empty line.
    pub(crate) more: &'static str,
    /// A value that means something, as the command line takes it.
    pub(crate) example: &'static str,
    /// The environment variable that also sets it.
    pub(crate) variable: Option<&'static str>,
    /// Never shown once given.
    pub(crate) secret: bool,
    /// In the file, a pool may have its own.
    pub(crate) per_pool: bool,
}

/// What an option takes, and where that is kept.
pub(crate) enum Kind {
    /// `true` or `false`, or `yes` or `no`; the bare name means `true`.
    Switch(fn(&mut Values) -> &mut bool),
    /// A whole number.
    Number(Number),
    /// One text.
    Text {
        /// Reads it.
        set: fn(&mut Values, &str) -> Result<(), String>,
        /// Writes it as `set` reads it.
        get: fn(&Values) -> Option<String>,
        /// The file may also have a whole number.
        or_number: bool,
    },
    /// Any number of texts; in the file, an array. A later layer replaces the whole list.
    List {
        /// Reads one more.
        push: fn(&mut Values, &str) -> Result<(), String>,
        /// Forgets the default or what an earlier layer gave.
        clear: fn(&mut Values),
        /// Writes them as `push` reads them.
        get: fn(&Values) -> Vec<String>,
    },
}

/// A whole number in the unit that its option's name ends in.
pub(crate) struct Number {
    /// What it counts.
    pub(crate) unit: Unit,
    /// The smallest, apart from what `zero` allows.
    pub(crate) min: u64,
    /// The largest.
    pub(crate) max: u64,
    /// What 0 means, where it means something of its own.
    pub(crate) zero: Option<&'static str>,
    /// Where it is kept.
    pub(crate) field: Field,
}

/// Where a number is kept.
pub(crate) enum Field {
    /// In 32 bits.
    U32(fn(&mut Values) -> &mut u32),
    /// In 64 bits.
    U64(fn(&mut Values) -> &mut u64),
}

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Things.
    Count,
    /// Bytes.
    Bytes,
    /// Thousandths of a second.
    Milliseconds,
    /// Millionths of a second.
    Microseconds,
}

/// The headings, in the order in which they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    /// Who reaches us, and whom we reach.
    Addresses,
    /// A server of our own.
    Spawn,
    /// Who may connect.
    Access,
    /// When gathered requests leave.
    Batching,
    /// Deadlines.
    Deadlines,
    /// Bounds.
    Limits,
    /// What we say of ourselves.
    Logs,
}

impl Topic {
    /// All of them, in order.
    pub(crate) const ALL: [Topic; 7] = [
        Topic::Addresses,
        Topic::Spawn,
        Topic::Access,
        Topic::Batching,
        Topic::Deadlines,
        Topic::Limits,
        Topic::Logs,
    ];

    /// The heading.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Topic::Addresses => "Addresses and workers",
            Topic::Spawn => "A server of respool's own",
            Topic::Access => "Passwords and users",
            Topic::Batching => "Batching",
            Topic::Deadlines => "Deadlines",
            Topic::Limits => "Limits",
            Topic::Logs => "Logs",
        }
    }

    /// What its options have in common.
    pub(crate) fn intro(self) -> &'static str {
        match self {
            Topic::Addresses => "",
            Topic::Spawn => {
                "With --spawn, respool starts a Redis or Valkey server for itself alone and stops \
                 it at the end: a working cache with nothing else set up."
            }
            Topic::Access => {
                "What stands on a command line can be read by everybody on the machine. Passwords \
                are better given by the file, by a password file or by the environment."
            }
            Topic::Batching => {
                "Requests of all sessions of a worker gather in the open batch of a link. A link \
                 that owes no reply sends its batch at the end of the turn, so a lone client never \
                 waits."
            }
            Topic::Deadlines => {
                "Numbers are in the unit of the name; us, ms, s, min and h may be written behind \
                 them. Whether time is over is looked at every 50 ms."
            }
            Topic::Limits => {
                "Everything that can grow has a maximum. Numbers of bytes may be written with KiB, \
                 MiB, or GiB behind them. Unless their text says otherwise, limits hold for each \
                 worker."
            }
            Topic::Logs => "Logs go to standard error.",
        }
    }
}

/// What all options together say. Plain values; [`crate::config`] makes sense of them.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Values {
    pub(crate) listen: Vec<Address>,
    pub(crate) backend: BackendUrl,
    pub(crate) pools: Vec<NamedPool>,
    pub(crate) announce: Option<Announced>,
    pub(crate) shows: Shows,
    pub(crate) address_map: Vec<Entry>,
    pub(crate) threads: Threads,
    pub(crate) spawn: bool,
    pub(crate) spawn_program: Option<PathBuf>,
    pub(crate) spawn_memory_bytes: u64,
    pub(crate) socket_mode: u32,
    pub(crate) socket_owner: Option<Account>,
    pub(crate) socket_group: Option<Account>,
    pub(crate) password: Option<String>,
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) users: Vec<User>,
    pub(crate) backend_password: Option<String>,
    pub(crate) backend_password_file: Option<PathBuf>,
    pub(crate) refused: Vec<CommandId>,
    pub(crate) passes_debug_object: bool,
    pub(crate) flush: FlushRule,
    pub(crate) timeouts: Timeouts,
    pub(crate) drain_timeout_ms: u32,
    pub(crate) limits: Limits,
    pub(crate) asks_output_limits: bool,
    pub(crate) pinned_links_full: WhenFull,
    pub(crate) away_error: AwayError,
    pub(crate) lost_subscriptions: LostSubscriptions,
    pub(crate) log_format: LogFormat,
    pub(crate) log_level: LogLevel,
}

impl Default for Values {
    fn default() -> Self {
        Values {
            // Beside a Redis on its usual port, and for this machine alone.
            listen: vec![Address::Tcp {
                host: "127.0.0.1".into(),
                port: 6380,
            }],
            backend: BackendUrl::default(),
            pools: Vec::new(),
            announce: None,
            shows: Shows::default(),
            address_map: Vec::new(),
            threads: Threads::Auto,
            spawn: false,
            spawn_program: None,
            spawn_memory_bytes: 256 << 20,
            password: None,
            password_file: None,
            // As other servers have it: a client needs no right but to reach the directory.
            socket_mode: 0o777,
            socket_owner: None,
            socket_group: None,
            users: Vec::new(),
            backend_password: None,
            backend_password_file: None,
            refused: commands::all().filter(|id| id.get().dangerous).collect(),
            // It only reads, as DUMP does.
            passes_debug_object: true,
            flush: FlushRule::default(),
            timeouts: Timeouts::default(),
            drain_timeout_ms: 10_000,
            limits: Limits::default(),
            asks_output_limits: true,
            pinned_links_full: WhenFull::default(),
            away_error: AwayError::default(),
            lost_subscriptions: LostSubscriptions::default(),
            log_format: LogFormat::Text,
            log_level: LogLevel::Info,
        }
    }
}

/// How many workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Threads {
    /// One per core that we may use.
    Auto,
    /// This many.
    Exactly(usize),
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The least severe lines that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// The most workers: more than most machines have cores, few enough that a slip is noticed.
pub(crate) const THREADS_MAX: usize = 1_024;

/// A day, the longest deadline that is still one.
const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

const fn number(unit: Unit, min: u64, max: u64, field: fn(&mut Values) -> &mut u32) -> Kind {
    Kind::Number(Number {
        unit,
        min,
        max,
        zero: None,
        field: Field::U32(field),
    })
}

const fn number_or_zero(
    unit: Unit,
    (min, max): (u64, u64),
    zero: &'static str,
    field: fn(&mut Values) -> &mut u32,
) -> Kind {
    Kind::Number(Number {
        unit,
        min,
        max,
        zero: Some(zero),
        field: Field::U32(field),
    })
}

/// What most options have in common.
const OPTION: Opt = Opt {
    name: "",
    topic: Topic::Addresses,
    kind: Kind::Switch(|values| &mut values.spawn),
    value: "",
    brief: "",
    more: "",
    example: "",
    variable: None,
    secret: false,
    per_pool: false,
};

/// Every option, under its heading, in the order in which they are shown.
pub(crate) static OPTIONS: &[Opt] = &[
    Opt {
        name: "listen",
        kind: Kind::List {
            push: |values, text| {
                values.listen.push(parse_listener(text)?);
                Ok(())
            },
            clear: |values| values.listen.clear(),
            get: |values| values.listen.iter().map(Address::to_string).collect(),
        },
        value: "ADDRESS",
        brief: "Where clients reach respool; may be given several times",
        more: "HOST:PORT, [IPv6]:PORT, :PORT for every IPv4 address of the machine, or unix:/path \
               for a socket in the file system. Port 0 asks the system for a free one; the line \
               `ready` of the log names it.\n\nWhoever reaches a listener may use the server \
               behind it: set a password before listening on more than this machine.",
        example: "0.0.0.0:6380",
        ..OPTION
    },
    Opt {
        name: "backend",
        kind: Kind::Text {
            set: |values, text| {
                values.backend = parse_backend(text)?;
                Ok(())
            },
            get: |values| Some(values.backend.to_string()),
            or_number: false,
        },
        value: "URL",
        brief: "The Redis or Valkey server behind respool, or several",
        more: "redis://[USER:PASSWORD@]HOST[:PORT][/DB] or unix://[USER:PASSWORD@]/path[?db=N]. \
               Reserved characters in a part are written %XX. Sessions start in the \
               database DB and reach the others by SELECT: numbers, also those in MOVE, COPY and \
               SWAPDB, are the server's. The port is 6379 unless given. TLS (rediss://) is not supported.\n\nThe \
               server need not be up when respool starts: respool keeps trying, and clients get an \
               error that says so until it answers. The host name is resolved at every attempt to \
               connect.\n\nredis-sharded://HOST:PORT:WEIGHT,HOST:PORT:WEIGHT/DB?PARAMETERS, where all but the hosts may be left away, \
               divides the keys among several plain servers, by twemproxy's rule unless told otherwise. In place of HOST:PORT the path of a \
               socket may stand, / written as %2F: %2Frun%2Fredis.sock:WEIGHT. Parameters, with & between \
               them: hash (murmur unless given; twemproxy's own default is fnv1a_64, which tends to keep keys together that differ in their last \
               characters only), distribution (ketama, modula or random; ketama unless given), \
               hash-tag (two characters between which stands the part of a key that counts, {} unless given; nothing: the whole key), names (one for each \
               server, with commas, if the configuration that data comes from has such), like=predixy (its rule: hash is crc16 or atol, \
               the order of the servers counts, and there are no weights and no names). To keep data where it is, say what the proxy in use says, the order and the writing of \
               addresses included.\n\nredis-cluster://HOST:PORT,HOST:PORT is a Cluster: any nodes of it, which know the others. User and \
               password are those of every node.\n\nredis-sentinel://HOST:PORT,HOST:PORT/NAME is the primary that Sentinels watch under that \
               name: any of them, on port 26379 unless given. With NAME,NAME the keys are divided among several, as by redis-sharded:// and with \
               its parameters but for names. Of the servers user and password stand in front, the database behind the names (/NAME/DB); those of \
               the Sentinels are the parameters sentinel-user and sentinel-password.\n\nWith the parameter password-file=PATH the password \
               stands in a file, with sentinel-password-file=PATH that of the Sentinels: see backend-password-file.\n\nIn front of a Cluster or Sentinels, the parameter reads says \
               where keys are read: primary; prefer-primary, while it is there; replica; prefer-replica, and if there is none the primary; \
               nearest, of all of them. zone=NAME: who is in it comes first, by what a Valkey says (availability-zone) or by how its host \
               begins, as in zones=10.1.:a,10.2.:b. weights=HOST:PORT:N,...: the part that a server gets beside others (1; 0: none). A session \
               that says READWRITE reads at primaries for own-writes-ms (1000; 0: always) after each of its writes; with own-writes=all every \
               session does.",
        example: "redis://10.0.0.7:6379/0",
        ..OPTION
    },
    Opt {
        name: "pool",
        kind: Kind::List {
            push: |values, text| {
                values.pools.push(NamedPool::parse(text)?);
                Ok(())
            },
            clear: |values| values.pools.clear(),
            get: |values| values.pools.iter().map(NamedPool::to_string).collect(),
        },
        value: "NAME=LISTEN=URL",
        brief: "A pool with its own listeners; may be given several times",
        more: "Several pools in one process, instead of --listen and --backend: NAME is what the log and INFO call the pool, \
               LISTEN one of its addresses or several with commas between them, URL what --backend takes, with the user and the \
               password of this pool. In the file better a table for each, at its end: [pool.NAME] with the keys \
               `listen` and `backend`, and those of the options below that say so; there, [pool.NAME.prefixes] may have URLs of any kind for the keys that begin in some way, and take that off.\n\nWhat a client asks goes to the pool whose listener it has reached, and to no other. \
               The workers and everything that the other options say are common to all pools, the users of respool among it.",
        example: "pages=127.0.0.1:6381=redis://10.0.0.8",
        ..OPTION
    },
    Opt {
        name: "announce",
        kind: Kind::Text {
            set: |values, text| {
                values.announce = Some(parse_announced(text)?);
                Ok(())
            },
            get: |values| values.announce.as_ref().map(Announced::to_string),
            or_number: false,
        },
        value: "HOST[:PORT]",
        brief: "Where clients that speak to a Cluster are told that respool is",
        more: "In front of a Cluster, such clients ask which nodes there are and connect to what they are told: respool, at \
               the address by which the question came. Where a container, NAT or a load balancer maps another address to \
               that, give the one that clients use: a host name, an IPv4 address or [IPv6]. One holds for all listeners of a pool; without a \
               port, each says its own.",
        example: "cache.example:6380",
        per_pool: true,
        ..OPTION
    },
    Opt {
        name: "cluster-shows",
        kind: Kind::Text {
            set: |values, text| {
                values.shows = match text {
                    "node" => Shows::Node,
                    "server" => Shows::Server,
                    _ => return Err("must be `node` or `server`".into()),
                };
                Ok(())
            },
            get: |values| {
                Some(match values.shows {
                    Shows::Node => "node".into(),
                    Shows::Server => "server".into(),
                })
            },
            or_number: false,
        },
        value: "node|server",
        brief: "How a Cluster behind respool shows itself to clients",
        more: "With `node`, as a Cluster of one node that owns all slots: clients that speak to a Cluster work, and so do all \
               others. With `server`, as a server without Cluster support. INFO, HELLO and CLUSTER say the same.",
        example: "server",
        per_pool: true,
        ..OPTION
    },
    Opt {
        name: "address-map",
        kind: Kind::List {
            push: |values, text| {
                let entries = text.split(',').map(Entry::parse);
                let entries: Result<Vec<Entry>, String> = entries.collect();
                values.address_map.extend(entries?);
                Ok(())
            },
            clear: |values| values.address_map.clear(),
            get: |values| values.address_map.iter().map(Entry::to_string).collect(),
        },
        value: "NAMED=REACHED",
        brief: "Where servers are that name addresses of another network",
        more: "Behind NAT, in containers and behind forwarded ports, the nodes of a Cluster and Sentinels name addresses that \
               respool cannot reach. Each entry says where the server with such an address is reached. May be given several \
               times, or with commas between the entries.\n\n10.0.0.1:6379=127.0.0.1:7001 is for that address. Without a port \
               on the left, an entry is for every port of the host; without one on the right, the port stays as it is. \
               10.0.0.1:7000-7005=10.1.0.1:17000-17005 is for a range of ports, in their order. A host may be a name, an IPv4 \
               address or [IPv6], and may have one `*` on the left: 10.0.0.*=10.1.0.*. The `*` on the right is what the one \
               on the left stands for.\n\nEntries without a `*` in the host come first, of these the one that says most about the port. \
               Of the others the first that fits counts. An address goes through the map once. The map is not for the addresses of \
               --backend.",
        example: "10.0.0.1:6379=127.0.0.1:7001",
        per_pool: true,
        ..OPTION
    },
    Opt {
        name: "threads",
        kind: Kind::Text {
            set: |values, text| {
                values.threads = match text.parse() {
                    _ if text == "auto" => Threads::Auto,
                    Ok(count @ 1..=THREADS_MAX) => Threads::Exactly(count),
                    _ => {
                        return Err(format!(
                            "must be `auto` or a number from 1 to {THREADS_MAX}"
                        ));
                    }
                };
                Ok(())
            },
            get: |values| {
                Some(match values.threads {
                    Threads::Auto => "auto".into(),
                    Threads::Exactly(count) => count.to_string(),
                })
            },
            or_number: true,
        },
        value: "N|auto",
        brief: "Workers; each is one thread with its own sessions and links",
        more: "auto is one for each core that respool may use. A server gets one shared link from \
               each worker, so fewer workers make larger batches: one is enough until its core is \
               busy, and leaves the other cores to the server.",
        example: "1",
        ..OPTION
    },
    Opt {
        name: "spawn",
        topic: Topic::Spawn,
        kind: Kind::Switch(|values| &mut values.spawn),
        brief: "Start a server of respool's own and stop it at the end",
        more: "Starts the first of redis-server and valkey-server that PATH has, on a socket that \
               only this user reaches, without persistence: what it holds is gone when respool \
               ends. It ends with respool, even when respool is killed. If it ends first, respool \
               says so and ends too, with exit code 1, since what it held is lost. Excludes \
               --backend.",
        example: "true",
        ..OPTION
    },
    Opt {
        name: "spawn-program",
        topic: Topic::Spawn,
        kind: Kind::Text {
            set: |values, text| {
                values.spawn_program = Some(parse_path(text)?);
                Ok(())
            },
            get: |values| {
                values
                    .spawn_program
                    .as_deref()
                    .map(|path| path.display().to_string())
            },
            or_number: false,
        },
        value: "PATH",
        brief: "The server to start, where PATH has none or the wrong one",
        more: "The path of a redis-server or valkey-server, or a name that is looked for in PATH.",
        example: "/opt/valkey/bin/valkey-server",
        ..OPTION
    },
    Opt {
        name: "spawn-memory-bytes",
        topic: Topic::Spawn,
        kind: Kind::Number(Number {
            unit: Unit::Bytes,
            min: 1 << 20,
            max: 1 << 40,
            zero: Some("no limit"),
            field: Field::U64(|values| &mut values.spawn_memory_bytes),
        }),
        value: "SIZE",
        brief: "How much its data may take",
        more: "At it, the keys that were used least recently make room for new ones (maxmemory \
               with allkeys-lru).",
        example: "1GiB",
        ..OPTION
    },
    Opt {
        name: "password",
        topic: Topic::Access,
        kind: Kind::Text {
            set: |values, text| {
                values.password = Some(parse_secret(text)?);
                Ok(())
            },
            get: |values| values.password.clone(),
            or_number: false,
        },
        value: "PASSWORD",
        brief: "What clients must say by AUTH, as the user `default`",
        more: "Without a password and without users, everybody may connect, as with a Redis \
               without a password.",
        example: "a-long-one",
        variable: Some("RESPOOL_PASSWORD"),
        secret: true,
        ..OPTION
    },
    Opt {
        name: "socket-mode",
        topic: Topic::Access,
        kind: Kind::Text {
            set: |values, text| {
                values.socket_mode = parse_mode(text)?;
                Ok(())
            },
            get: |values| Some(format!("{:04o}", values.socket_mode)),
            or_number: false,
        },
        value: "MODE",
        brief: "The mode of sockets in the file system on which respool listens",
        more: "In octal, as for chmod. A client must be allowed to write to the socket. By default, every user of the machine \
               that reaches the directory may connect, as with the sockets of PostgreSQL, whatever the umask is. Who may \
               then do what is a matter of passwords: set one, or give the socket a group and the mode 0660, or put it into a \
               directory that only its clients may enter.",
        example: "0660",
        ..OPTION
    },
    Opt {
        name: "socket-owner",
        topic: Topic::Access,
        kind: Kind::Text {
            set: |values, text| {
                values.socket_owner = Some(account::user(text)?);
                Ok(())
            },
            get: |values| values.socket_owner.as_ref().map(|owner| owner.said.clone()),
            or_number: false,
        },
        value: "USER",
        brief: "The owner of these sockets: the name or number of a user",
        more: "Only root may give a socket to another user.",
        example: "root",
        ..OPTION
    },
    Opt {
        name: "socket-group",
        topic: Topic::Access,
        kind: Kind::Text {
            set: |values, text| {
                values.socket_group = Some(account::group(text)?);
                Ok(())
            },
            get: |values| values.socket_group.as_ref().map(|group| group.said.clone()),
            or_number: false,
        },
        value: "GROUP",
        brief: "The group of these sockets: its name or number",
        more: "Without being root, respool may give them to groups that it belongs to.",
        example: "root",
        ..OPTION
    },
    Opt {
        name: "password-file",
        topic: Topic::Access,
        kind: Kind::Text {
            set: |values, text| {
                values.password_file = Some(parse_path(text)?);
                Ok(())
            },
            get: |values| {
                values
                    .password_file
                    .as_deref()
                    .map(|path| path.display().to_string())
            },
            or_number: false,
        },
        value: "FILE",
        brief: "A file that holds that password",
        more: "A line end behind the password is not part of it. respool reads the file again at SIGHUP. Sessions that have \
               authenticated stay.",
        example: "/run/credentials/respool/password",
        ..OPTION
    },
    Opt {
        name: "user",
        topic: Topic::Access,
        kind: Kind::List {
            push: |values, text| {
                values.users.push(parse_user(text)?);
                Ok(())
            },
            clear: |values| values.users.clear(),
            get: |values| {
                let text = |user: &User| format!("{}:{}", user.name, user.password);
                values.users.iter().map(text).collect()
            },
        },
        value: "NAME:PASSWORD",
        brief: "Somebody else who may connect; may be given several times",
        more: "For clients that say AUTH NAME PASSWORD. The name ends at the first colon. To the \
               server, every client is the one user that --backend names.",
        example: "alice:a-long-one",
        secret: true,
        ..OPTION
    },
    Opt {
        name: "refuse-commands",
        topic: Topic::Access,
        kind: Kind::List {
            push: |values, text| {
                let (passing, refused): (Vec<&str>, Vec<&str>) = text
                    .split(',')
                    .partition(|name| is_debug_object_passed(name));
                values.passes_debug_object |= !passing.is_empty();
                if text != "none" && !refused.is_empty() {
                    values.refused.extend(parse_commands(&refused.join(","))?);
                }
                Ok(())
            },
            clear: |values| {
                values.refused.clear();
                values.passes_debug_object = false;
            },
            get: |values| match &values.refused[..] {
                [] => vec!["none".into()],
                refused => {
                    let names = refused.iter().map(|id| id.get().name);
                    let passing = values.passes_debug_object.then_some(DEBUG_OBJECT_PASSES);
                    names.chain(passing).map(str::to_owned).collect()
                }
            },
        },
        value: "COMMAND",
        brief: "A command that no client may use; may be given several times",
        more: "It holds for what clients send: plainly, in a transaction, inline, to a subscriber, before and \
               after AUTH. It does not hold for what scripts, functions and modules call within the \
               server. Only a rule of the server's ACL for the user of `--backend`, or for the users of \
               clients, prevents that: `ACL SETUSER NAME -flushall`. A command that was renamed on the \
               server is refused by both names. \
               `none` for no such command. Names as in `config|set`; the name of a command that has subcommands stands for all of \
               them. Several names may be given at once, with commas between them. `!debug|object` lets DEBUG \
               OBJECT pass though `debug` is refused. What is given replaces the default, which is what one client \
               could do to all others.",
        example: "shutdown,flushall,config",
        ..OPTION
    },
    Opt {
        name: "backend-password",
        topic: Topic::Access,
        kind: Kind::Text {
            set: |values, text| {
                values.backend_password = Some(parse_secret(text)?);
                Ok(())
            },
            get: |values| values.backend_password.clone(),
            or_number: false,
        },
        value: "PASSWORD",
        brief: "What respool says to the server by AUTH",
        more: "Instead of the password in --backend; the user, if it is not the default one, still \
               stands there: redis://USER@HOST.",
        example: "a-long-one",
        variable: Some("RESPOOL_BACKEND_PASSWORD"),
        secret: true,
        ..OPTION
    },
    Opt {
        name: "backend-password-file",
        topic: Topic::Access,
        kind: Kind::Text {
            set: |values, text| {
                values.backend_password_file = Some(parse_path(text)?);
                Ok(())
            },
            get: |values| {
                values
                    .backend_password_file
                    .as_deref()
                    .map(|path| path.display().to_string())
            },
            or_number: false,
        },
        value: "FILE",
        brief: "A file that holds that password",
        more: "A line end behind the password is not part of it.\n\nrespool reads the file again when a server refuses the \
               password, and at SIGHUP. New connections use what it finds; those that are up stay. If the file cannot \
               be read or is empty, the password from before stays, and the log says so.",
        example: "/run/credentials/respool/backend-password",
        ..OPTION
    },
    Opt {
        name: "hold",
        topic: Topic::Batching,
        kind: Kind::Switch(|values| &mut values.flush.hold),
        brief: "Hold a batch until the one before it has come back",
        more: "A link that owes replies keeps its open batch until they have come back, the batch \
               is large enough, or its oldest request has waited --max-delay-us. The replies tell \
               the clients to ask again, so the next batch is as large as the last one, and the \
               server spends less on system calls. With --hold=false, every batch leaves at the \
               end of the turn that gathered it.",
        example: "false",
        per_pool: true,
        ..OPTION
    },
    Opt {
        name: "max-delay-us",
        topic: Topic::Batching,
        kind: number(
            Unit::Microseconds,
            FlushRule::MAX_DELAY_US_MIN as u64,
            FlushRule::MAX_DELAY_US_MAX as u64,
            |values| &mut values.flush.max_delay_us,
        ),
        value: "TIME",
        brief: "The longest that a request waits in an open batch",
        more: "A bound, not a pause: a batch leaves when the one before it has come back and those whom \
               that has answered, and who are about to ask again, have asked. A larger value makes \
               larger batches where replies or clients are slow to come. Where a pool has \
               several servers, the answers to a part of a pipeline wait as long for the rest.",
        example: "500",
        per_pool: true,
        ..OPTION
    },
    Opt {
        name: "fuse",
        topic: Topic::Batching,
        kind: Kind::Switch(|values| &mut values.flush.fuse),
        brief: "Send the GETs of a batch as one MGET, and its SETs as one MSET",
        more: "Each client gets what its own command would have got. Only GET and SET without \
               options are fused, and only where their order does not matter. Who looks at the \
               server itself sees the difference: in MONITOR, SLOWLOG and INFO commandstats. In front of a Cluster what \
               stands side by side is fused if it is of one slot (keys with a common hash tag); where that is rare, it is left alone for a while. \
               Of what one client has asked in a batch, only the last of it is fused: GETs with nothing behind them, and SETs with nothing but \
               GETs and other reads of single keys behind them, as many as fit one MSET.",
        example: "false",
        per_pool: true,
        ..OPTION
    },
    Opt {
        name: "fused-keys-max",
        topic: Topic::Batching,
        kind: number(
            Unit::Count,
            FlushRule::FUSED_KEYS_MAX_MIN as u64,
            FlushRule::FUSED_KEYS_MAX_MAX as u64,
            |values| &mut values.flush.fused_keys_max,
        ),
        value: "COUNT",
        brief: "The most keys in such an MGET or MSET",
        more: "More of them make each hardly cheaper, and the server answers nobody else meanwhile. One has at \
               most 8 KiB, too.",
        example: "64",
        per_pool: true,
        ..OPTION
    },
    Opt {
        name: "collapse",
        topic: Topic::Batching,
        kind: Kind::Switch(|values| &mut values.flush.collapse),
        brief: "Send reads of a batch that are the same once",
        more: "Each client gets the answer. Reads of one key whose answer follows from the data alone, and only \
               where nothing writes in between. Who reads different keys in one write and needs them read in \
               that order, while others write, is better off without.",
        example: "false",
        per_pool: true,
        ..OPTION
    },
    Opt {
        name: "request-timeout-ms",
        topic: Topic::Deadlines,
        kind: number_or_zero(Unit::Milliseconds, (1, DAY_MS), "no deadline", |values| {
            &mut values.timeouts.request_ms
        }),
        value: "TIME",
        brief: "From when a request is read to its reply",
        more: "At it, the client gets an error that says whether the request was sent to the \
               server. A reply that comes later is dropped; the link that it comes on lives on. \
               Whatever the request waits for before it is sent takes of this time: a link, its \
               greeting, an answer about rights.",
        example: "2s",
        ..OPTION
    },
    Opt {
        name: "connect-timeout-ms",
        topic: Topic::Deadlines,
        kind: number(Unit::Milliseconds, 1, DAY_MS, |values| {
            &mut values.timeouts.connect_ms
        }),
        value: "TIME",
        brief: "For connecting to the server, with the handshake",
        more: "At it, the attempt is given up, and the next one follows after the pause below.",
        example: "500",
        ..OPTION
    },
    Opt {
        name: "link-stall-ms",
        topic: Topic::Deadlines,
        kind: number(Unit::Milliseconds, 1, DAY_MS, |values| {
            &mut values.timeouts.link_stall_ms
        }),
        value: "TIME",
        brief: "How long a link that owes replies may bring nothing at all",
        more: "At it, the link is closed and opened anew, and whoever waits on it gets an error \
               that says that what became of the request is unknown. A link that a script or a pause \
               of the server holds stays while the server answers on another link, up to ten times \
               as long. Keep it above the longest other command that the server runs.",
        example: "60s",
        ..OPTION
    },
    Opt {
        name: "reconnect-min-ms",
        topic: Topic::Deadlines,
        kind: number(Unit::Milliseconds, 1, DAY_MS, |values| {
            &mut values.timeouts.reconnect_min_ms
        }),
        value: "TIME",
        brief: "The first pause between two attempts to connect",
        more: "It doubles from attempt to attempt, with jitter, and starts anew after a connection that lasted \
               a second. One that is lost sooner counts here as an attempt that failed.",
        example: "10",
        ..OPTION
    },
    Opt {
        name: "reconnect-max-ms",
        topic: Topic::Deadlines,
        kind: number(Unit::Milliseconds, 1, DAY_MS, |values| {
            &mut values.timeouts.reconnect_max_ms
        }),
        value: "TIME",
        brief: "The longest pause between two attempts to connect",
        more: "",
        example: "1s",
        ..OPTION
    },
    Opt {
        name: "outage-hold-ms",
        topic: Topic::Deadlines,
        kind: number_or_zero(Unit::Milliseconds, (1, DAY_MS), "not at all", |values| {
            &mut values.timeouts.outage_hold_ms
        }),
        value: "TIME",
        brief: "How long requests wait for a server, from its loss on",
        more: "A restart of the server then costs time instead of errors. Only requests that were not sent wait, and reads \
               that may be asked again. When the time is over, what waits fails, and until the server is back requests \
               fail at once. A request waits no longer than `request-timeout-ms`. A failover of a Cluster or by Sentinels \
               costs no errors either if it takes less: a Cluster needs its `cluster-node-timeout` and some two seconds, \
               Sentinels need `down-after-milliseconds` and about one.",
        example: "500",
        ..OPTION
    },
    Opt {
        name: "server-away-error",
        topic: Topic::Deadlines,
        kind: Kind::Text {
            set: |values, text| {
                values.away_error = match text {
                    "loading" => AwayError::Loading,
                    "tryagain" => AwayError::TryAgain,
                    "notsent" => AwayError::NotSent,
                    _ => return Err("must be `loading`, `tryagain` or `notsent`".into()),
                };
                Ok(())
            },
            get: |values| {
                Some(match values.away_error {
                    AwayError::Loading => "loading".into(),
                    AwayError::TryAgain => "tryagain".into(),
                    AwayError::NotSent => "notsent".into(),
                })
            },
            or_number: false,
        },
        value: "loading|tryagain|notsent",
        brief: "The code of errors for requests whose server is away",
        more: "The request was not executed, and the server cannot be reached. Plain clients of redis-py, go-redis and \
               Redisson ask again for LOADING, clients of a Cluster for TRYAGAIN: see retries.md. A request in a \
               pipeline gets NOTSENT in any case, because libraries repeat the whole pipeline for the others.",
        example: "tryagain",
        ..OPTION
    },
    Opt {
        name: "lost-subscriptions",
        topic: Topic::Deadlines,
        kind: Kind::Text {
            set: |values, text| {
                values.lost_subscriptions = match text {
                    "close" => LostSubscriptions::Close,
                    "keep" => LostSubscriptions::Keep,
                    _ => return Err("must be `close` or `keep`".into()),
                };
                Ok(())
            },
            get: |values| {
                Some(match values.lost_subscriptions {
                    LostSubscriptions::Close => "close".into(),
                    LostSubscriptions::Keep => "keep".into(),
                })
            },
            or_number: false,
        },
        value: "close|keep",
        brief: "What becomes of subscribers when their link to the server is lost",
        more: "With `close`, their connections are closed, as the server would close them: a client learns that it may have \
               missed messages, and subscribes again. With `keep`, respool subscribes again, and the client is not told.",
        example: "keep",
        ..OPTION
    },
    Opt {
        name: "login-check-ms",
        topic: Topic::Deadlines,
        kind: number_or_zero(Unit::Milliseconds, (50, DAY_MS), "never", |values| {
            &mut values.timeouts.login_check_ms
        }),
        value: "TIME",
        brief: "How often servers are asked if they still accept the login",
        more: "A server keeps connections that it has accepted, though it wants a password from then on, has another one, or \
               has switched the user off. Once respool finds out, new sessions must authenticate. Older sessions keep their \
               links, as they would keep their connections. Each worker asks on a connection of its own, while it has \
               sessions, and not where `password` or `user` say who may connect.",
        example: "200",
        ..OPTION
    },
    Opt {
        name: "session-idle-ms",
        topic: Topic::Deadlines,
        kind: number_or_zero(Unit::Milliseconds, (1, 30 * DAY_MS), "for ever", |values| {
            &mut values.timeouts.session_idle_ms
        }),
        value: "TIME",
        brief: "How long a session may ask nothing before it is closed",
        more: "A session that has sent a request in part is closed, too, once it sends nothing for \
               as long.",
        example: "1h",
        ..OPTION
    },
    Opt {
        name: "authenticate-timeout-ms",
        topic: Topic::Deadlines,
        kind: number_or_zero(Unit::Milliseconds, (1, DAY_MS), "for ever", |values| {
            &mut values.timeouts.authenticate_ms
        }),
        value: "TIME",
        brief: "How long a client that must authenticate may take to do so",
        more: "Then it is closed. It must if there are users, or if the server wants a password. The time is \
               looked at once a second or more often.",
        example: "10s",
        ..OPTION
    },
    Opt {
        name: "drain-timeout-ms",
        topic: Topic::Deadlines,
        kind: number_or_zero(Unit::Milliseconds, (1, DAY_MS), "cut at once", |values| {
            &mut values.drain_timeout_ms
        }),
        value: "TIME",
        brief: "How long a stop waits for requests that have arrived",
        more: "After SIGTERM or SIGINT, requests that have arrived are still answered. Sessions \
               that are not done by then are cut, and the exit code is 1. Let a supervisor wait \
               longer than this before it kills.",
        example: "30s",
        ..OPTION
    },
    Opt {
        name: "sessions-max",
        topic: Topic::Limits,
        kind: number(Unit::Count, 1, 10_000_000, |values| {
            &mut values.limits.sessions_max
        }),
        value: "COUNT",
        brief: "Sessions of the whole process",
        more: "At it, a newcomer is told so and closed, as Redis does. At its start, respool \
               raises its limit of open files to what this needs; if it may not, it warns and \
               lowers the number of sessions to what fits.",
        example: "50000",
        ..OPTION
    },
    Opt {
        name: "session-depth-max",
        topic: Topic::Limits,
        kind: number(Unit::Count, 1, 1_000_000, |values| {
            &mut values.limits.session_depth_max
        }),
        value: "COUNT",
        brief: "Requests of one session that are not answered yet",
        more: "At it, the session is not read until replies have come.",
        example: "1000",
        ..OPTION
    },
    Opt {
        name: "session-output-soft-bytes",
        topic: Topic::Limits,
        kind: number(Unit::Bytes, 16 << 10, u32::MAX as u64, |values| {
            &mut values.limits.session_output_soft_bytes
        }),
        value: "SIZE",
        brief: "Reply bytes that a client has not taken: no more requests",
        more: "At it, the session is not read, and a link that is bringing it more replies stops \
               being shared with other sessions.",
        example: "4MiB",
        ..OPTION
    },
    Opt {
        name: "session-output-hard-bytes",
        topic: Topic::Limits,
        kind: number(Unit::Bytes, 64 << 10, u32::MAX as u64, |values| {
            &mut values.limits.session_output_hard_bytes
        }),
        value: "SIZE",
        brief: "Reply bytes that a client has not taken: no more replies",
        more: "At it, the link that brings more is not read either, for as long as \
               --session-stall-ms and --stranger-stall-ms allow; then the session is closed. \
               Replies before their turn have the same bound, and count apart. A reply that is put \
               together of several servers' parts may have an eighth of --worker-memory-bytes-max. \
               Where a pool has several servers, sessions may wait for each other's replies on shared links. Such a \
               session cannot be paused, and is closed at the bound at once. A client that asks \
               for many large values in one pipeline there needs a larger bound.",
        example: "64MiB",
        ..OPTION
    },
    Opt {
        name: "session-input-bytes-max",
        topic: Topic::Limits,
        kind: number(Unit::Bytes, 64 << 10, u32::MAX as u64, |values| {
            &mut values.limits.session_input_bytes_max
        }),
        value: "SIZE",
        brief: "Requests that are held of a client while it takes no replies",
        more: "Many libraries write a whole pipeline before they read. At it, a client that takes nothing for `session-stall-ms` is \
               closed.",
        example: "128MiB",
        ..OPTION
    },
    Opt {
        name: "session-stall-ms",
        topic: Topic::Limits,
        kind: number(Unit::Milliseconds, 1, DAY_MS, |values| {
            &mut values.limits.session_stall_ms
        }),
        value: "TIME",
        brief: "How long a client at the hard bound may take nothing at all",
        more: "At it, the session is closed.",
        example: "30s",
        ..OPTION
    },
    Opt {
        name: "stranger-stall-ms",
        topic: Topic::Limits,
        kind: number(Unit::Milliseconds, 1, DAY_MS, |values| {
            &mut values.limits.stranger_stall_ms
        }),
        value: "TIME",
        brief: "How long such clients together may keep others waiting",
        more: "Counts while requests of other sessions wait behind a session at its hard bound, over \
               all such sessions and all links of one kind (server, database, protocol, user). At \
               it, the session that holds a link up is closed. A fiftieth of the time that passes is \
               taken off the count. A session that held a link up shares links with others like it \
               alone for a minute.",
        example: "200",
        ..OPTION
    },
    Opt {
        name: "request-held-bytes-max",
        topic: Topic::Limits,
        // Redis itself gathers up to 64 KiB of a line before it gives up on it.
        kind: number(Unit::Bytes, 64 << 10, 512 << 20, |values| {
            &mut values.limits.request_held_bytes_max
        }),
        value: "SIZE",
        brief: "Bytes of an incomplete request that are held",
        more: "A request that is larger is not held whole: it is cut through to the server, on a \
               link of its own. These are held whole, within `worker-memory-bytes-max`: a request for \
               several servers, which is divided; one whose server is not known before its last key; \
               WATCH, SUBSCRIBE and BLPOP with thousands of names. As much is read ahead of a client \
               that waits (in BLPOP, in CLIENT PAUSE), so that its leaving is seen.",
        example: "1MiB",
        ..OPTION
    },
    Opt {
        name: "streaming-links-max",
        topic: Topic::Limits,
        kind: number(Unit::Count, 1, 10_000, |values| {
            &mut values.limits.streaming_links_max
        }),
        value: "COUNT",
        brief: "Links on which one large request each travels",
        more: "At it, the next large request waits, until `request-timeout-ms` at the most, and then fails with NOTSENT. While \
               one waits, the slowest client that sends its own, or takes its reply, at less than 64 KiB a second is closed; \
               after 5 s (half of `request-timeout-ms`, if that is less) so is the slowest at less than 4 MiB a second. \
               Where a pool has several servers, SCRIPT KILL, FUNCTION KILL and FUNCTION STATS need one to each of them, and \
               at the bound have two links more to each server.",
        example: "4",
        ..OPTION
    },
    Opt {
        name: "links-max",
        topic: Topic::Limits,
        kind: number(Unit::Count, 2, 100_000, |values| {
            &mut values.limits.links_max
        }),
        value: "COUNT",
        brief: "Links of one worker to all servers, without the pinned ones",
        more: "At it, the link that was idle longest is closed for a new one, and sessions on it get another with their next \
               request. If no link is idle, a request that needs one more waits, and fails with NOTSENT after \
               `request-timeout-ms`. `INFO respool` counts both. Each server has one for each version of the protocol, each \
               database and each user that clients bring: twenty users in both versions before three servers are 120. Where \
               the nodes of a Cluster are many, it is four for each of them. One link more to each carries scripts \
               that may be slow, and two more may replace links that wait for a script.",
        example: "512",
        ..OPTION
    },
    Opt {
        name: "pinned-links-max",
        topic: Topic::Limits,
        kind: number(Unit::Count, 1, 100_000, |values| {
            &mut values.limits.pinned_links_max
        }),
        value: "COUNT",
        brief: "Links of one worker that one session each has for itself",
        more: "A session has one while it waits in a blocking command, from WATCH to EXEC, for a transaction \
               with SELECT, HELLO or AUTH in it, and while CLIENT TRACKING, CLIENT NO-TOUCH or MONITOR is on; and one to stand for each client that a REDIRECT names. \
               Where a pool has several servers, a session that tracks has one to each server that it asks. \
               At the bound, blocking commands are executed without waiting, ten times a second, until one has a result or its time is over; \
               XREAD BLOCK behind `$` and all other requests wait for a link.",
        example: "4096",
        ..OPTION
    },
    Opt {
        name: "pinned-links-full",
        topic: Topic::Limits,
        kind: Kind::Text {
            set: |values, text| {
                values.pinned_links_full = match text {
                    "wait" => WhenFull::Wait,
                    "refuse" => WhenFull::Refuse,
                    _ => return Err("must be `wait` or `refuse`".into()),
                };
                Ok(())
            },
            get: |values| {
                Some(match values.pinned_links_full {
                    WhenFull::Wait => "wait".into(),
                    WhenFull::Refuse => "refuse".into(),
                })
            },
            or_number: false,
        },
        value: "wait|refuse",
        brief: "What becomes of who needs a link of its own and finds none left",
        more: "With `wait`, the request waits until another session gives its link back, until its own time is over or until \
               `request-timeout-ms`. Then it fails with NOTSENT: its server was never asked. While a request waits, a \
               session that has held a link for 3 s by WATCH alone loses it, and its EXEC answers nil. SCRIPT KILL, \
               FUNCTION KILL and FUNCTION STATS have two links more to each server. With `refuse`, it is an error at once.",
        example: "refuse",
        ..OPTION
    },
    Opt {
        name: "transaction-bytes-max",
        topic: Topic::Limits,
        kind: number(Unit::Bytes, 1 << 10, 1 << 30, |values| {
            &mut values.limits.transaction_bytes_max
        }),
        value: "BYTES",
        brief: "Bytes that a session may queue between MULTI and EXEC",
        more: "At it, the request is refused, and so is the EXEC behind it.",
        example: "256MiB",
        ..OPTION
    },
    Opt {
        name: "session-subscriptions-max",
        topic: Topic::Limits,
        kind: number(Unit::Count, 1, 16 << 20, |values| {
            &mut values.limits.session_subscriptions_max
        }),
        value: "COUNT",
        brief: "Channels and patterns that one client may subscribe to",
        more: "At it, what would pass it is refused.",
        example: "1000",
        ..OPTION
    },
    Opt {
        name: "worker-subscriptions-max",
        topic: Topic::Limits,
        kind: number(Unit::Count, 1, 256 << 20, |values| {
            &mut values.limits.worker_subscriptions_max
        }),
        value: "COUNT",
        brief: "Channels and patterns that a worker's clients may subscribe to",
        more: "Each client's count for themselves, although the server is asked for a channel once. At it, what \
               would pass it is refused.",
        example: "100000",
        ..OPTION
    },
    Opt {
        name: "link-ledger-max",
        topic: Topic::Limits,
        kind: number(Unit::Count, 1, 16 << 20, |values| {
            &mut values.limits.link_ledger_max
        }),
        value: "COUNT",
        brief: "Requests on one link that are not answered yet",
        more: "At it, the sessions that add more wait.",
        example: "10000",
        ..OPTION
    },
    Opt {
        name: "link-unanswered-bytes-max",
        topic: Topic::Limits,
        kind: number(
            Unit::Bytes,
            respool_engine::limits::JOINED_BATCH_BYTES_MAX as u64,
            u32::MAX as u64,
            |values| &mut values.limits.link_unanswered_bytes_max,
        ),
        value: "SIZE",
        brief: "Bytes of requests on one link that are not answered yet",
        more: "They are kept until then. At it, the sessions that add more wait. It is a 64th of \
               --worker-memory-bytes-max at the most.",
        example: "16MiB",
        ..OPTION
    },
    Opt {
        name: "server-output-limits",
        topic: Topic::Limits,
        kind: Kind::Switch(|values| &mut values.asks_output_limits),
        brief: "Heed the limits of a server for what its clients are owed",
        more: "A server closes a connection that it owes more than its client-output-buffer-limit and \
               maxmemory-clients allow, and all clients of a link would lose their requests with it. So requests wait before their replies would make a link owe more than half of the limit. \
               respool asks with CONFIG GET and its own login when a link connects. A server that refuses to tell \
               notes that in its ACL LOG, and is not asked again for a minute. The log says so once for each server. The same holds for a \
               server that closes the connection instead of an answer. With --server-output-limits=false, respool \
               does not ask, and requests do not wait.",
        example: "false",
        ..OPTION
    },
    Opt {
        name: "worker-memory-bytes-max",
        topic: Topic::Limits,
        kind: Kind::Number(Number {
            unit: Unit::Bytes,
            min: WORKER_MEMORY_BYTES_MIN,
            max: 1 << 40,
            zero: None,
            field: Field::U64(|values| &mut values.limits.worker_memory_bytes_max),
        }),
        value: "SIZE",
        brief: "Bytes of memory that one worker holds for its sessions",
        more: "At seven eighths of it, clients that have not authenticated are closed, then those \
               whose requests have been incomplete for long; the session that is owed most is not \
               read. At the bound, that session is closed.",
        example: "512MiB",
        ..OPTION
    },
    Opt {
        name: "log-format",
        topic: Topic::Logs,
        kind: Kind::Text {
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
        brief: "For people, or one JSON object a line",
        more: "",
        example: "json",
        ..OPTION
    },
    Opt {
        name: "log-level",
        topic: Topic::Logs,
        kind: Kind::Text {
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
    },
];

/// The option of that name.
pub(crate) fn find(name: &str) -> Option<&'static Opt> {
    OPTIONS.iter().find(|option| option.name == name)
}

impl Opt {
    /// Reads `text` into `values`. A list gets one more element.
    ///
    /// # Errors
    /// What is wrong with the text, and what it should be.
    pub(crate) fn set(&self, values: &mut Values, text: &str) -> Result<(), String> {
        match &self.kind {
            Kind::Switch(field) => {
                let value = switch(text).ok_or("must be `true` or `false`, or `yes` or `no`")?;
                *field(values) = value;
                Ok(())
            }
            Kind::Number(number) => {
                let value = number.parse(text)?;
                match number.field {
                    Field::U64(field) => *field(values) = value,
                    Field::U32(field) => {
                        *field(values) =
                            u32::try_from(value).expect("the table's max fits its field");
                    }
                }
                Ok(())
            }
            Kind::Text { set, .. } => set(values, text),
            Kind::List { push, .. } => push(values, text),
        }
    }

    /// What `values` hold, each text as [`Opt::set`] reads it.
    pub(crate) fn get(&self, values: &mut Values) -> Vec<String> {
        match &self.kind {
            Kind::Switch(field) => vec![field(values).to_string()],
            Kind::Number(number) => vec![number.get(values).to_string()],
            Kind::Text { get, .. } => get(values).into_iter().collect(),
            Kind::List { get, .. } => get(values),
        }
    }

    /// The default, as help shows it; `None` where there is none.
    pub(crate) fn default(&self) -> Option<String> {
        let mut values = Values::default();
        if let Kind::Number(number) = &self.kind {
            return Some(number.describe(number.get(&mut values)));
        }
        Some(self.get(&mut values).join(" ")).filter(|text| !text.is_empty())
    }
}

impl Number {
    fn get(&self, values: &mut Values) -> u64 {
        match self.field {
            Field::U32(field) => u64::from(*field(values)),
            Field::U64(field) => *field(values),
        }
    }

    /// Reads digits with or without a suffix, and checks the range.
    fn parse(&self, text: &str) -> Result<u64, String> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (digits, suffix) = text.split_at(digits);
        let wrong = || format!("must be a whole number {}", self.unit.how_to_write());
        if digits.is_empty() {
            return Err(wrong());
        }
        let scale = if suffix.is_empty() {
            self.unit.size()
        } else {
            let known = self
                .unit
                .suffixes()
                .iter()
                .find(|(name, _)| *name == suffix.trim_start());
            known.ok_or_else(wrong)?.1
        };
        // What overflows is above every maximum.
        let amount = digits
            .parse::<u128>()
            .ok()
            .and_then(|count| count.checked_mul(scale));
        let amount = amount.unwrap_or(u128::MAX);
        if !amount.is_multiple_of(self.unit.size()) && amount != u128::MAX {
            return Err(format!("is not a whole number of {}", self.unit.plural()));
        }
        match u64::try_from(amount / self.unit.size()) {
            Ok(value) if (self.min..=self.max).contains(&value) => Ok(value),
            Ok(0) if self.zero.is_some() => Ok(0),
            _ => Err(format!("must be {}", self.range())),
        }
    }

    /// What it may be, in words.
    pub(crate) fn range(&self) -> String {
        let range = format!(
            "from {} to {}",
            self.describe(self.min),
            self.describe(self.max)
        );
        match self.zero {
            Some(meaning) => format!("{range}, or 0 ({meaning})"),
            None => range,
        }
    }

    /// A value as people read it: `1048576 (1MiB)`.
    pub(crate) fn describe(&self, value: u64) -> String {
        if value == 0 {
            return self
                .zero
                .map_or("0".into(), |meaning| format!("0 ({meaning})"));
        }
        let amount = u128::from(value) * self.unit.size();
        let largest = self
            .unit
            .suffixes()
            .iter()
            .rev()
            .find(|(_, size)| amount.is_multiple_of(*size));
        match largest {
            Some((suffix, size)) if *size > self.unit.size() => {
                format!("{value} ({}{suffix})", amount / size)
            }
            _ => value.to_string(),
        }
    }
}

impl Unit {
    /// One of it, in the smallest unit of its kind.
    fn size(self) -> u128 {
        match self {
            Unit::Count | Unit::Bytes | Unit::Microseconds => 1,
            Unit::Milliseconds => 1_000,
        }
    }

    /// What may stand behind a number, with its size in the smallest unit of its kind.
    fn suffixes(self) -> &'static [(&'static str, u128)] {
        match self {
            Unit::Count => &[],
            Unit::Bytes => &[
                ("KiB", 1 << 10),
                ("MiB", 1 << 20),
                ("GiB", 1 << 30),
                ("TiB", 1 << 40),
            ],
            Unit::Milliseconds | Unit::Microseconds => &[
                ("us", 1),
                ("ms", 1_000),
                ("s", 1_000_000),
                ("min", 60_000_000),
                ("h", 3_600_000_000),
            ],
        }
    }

    fn plural(self) -> &'static str {
        match self {
            Unit::Count => "things",
            Unit::Bytes => "bytes",
            Unit::Milliseconds => "milliseconds",
            Unit::Microseconds => "microseconds",
        }
    }

    fn how_to_write(self) -> &'static str {
        match self {
            Unit::Count => "without a unit, such as 100",
            Unit::Bytes => "of bytes, such as 1048576 or 1MiB",
            Unit::Milliseconds => "of milliseconds, such as 1500 or 2s",
            Unit::Microseconds => "of microseconds, such as 200 or 1ms",
        }
    }
}

impl LogLevel {
    const ALL: [LogLevel; 5] = [
        LogLevel::Error,
        LogLevel::Warn,
        LogLevel::Info,
        LogLevel::Debug,
        LogLevel::Trace,
    ];

    fn name(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        }
    }
}

/// Reads a switch, also in the words of CONFIG SET.
pub(crate) fn switch(text: &str) -> Option<bool> {
    match text {
        "true" | "yes" => Some(true),
        "false" | "no" => Some(false),
        _ => None,
    }
}

/// Checks a password, whose text must never be part of the error.
pub(crate) fn parse_secret(text: &str) -> Result<String, String> {
    match text {
        "" => Err("is empty: a password has at least one character".into()),
        _ => Ok(text.into()),
    }
}

fn parse_user(text: &str) -> Result<User, String> {
    let Some((name, password)) = text.split_once(':') else {
        return Err("must be NAME:PASSWORD".into());
    };
    if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c == '\0') {
        return Err("a user's name has at least one character and no spaces".into());
    }
    Ok(User {
        name: name.into(),
        password: parse_secret(password)?,
        source: None,
    })
}

/// What lets DEBUG OBJECT pass among the commands that are refused.
const DEBUG_OBJECT_PASSES: &str = "!debug|object";

fn is_debug_object_passed(name: &str) -> bool {
    name.trim().to_lowercase().replace(' ', "|") == DEBUG_OBJECT_PASSES
}

/// Names of commands with commas between them; a container stands for its subcommands, too.
fn parse_commands(text: &str) -> Result<Vec<CommandId>, String> {
    let mut found = Vec::new();
    for name in text.split(',') {
        let name = name.trim().to_lowercase().replace(' ', "|");
        let before = found.len();
        found.extend(commands::all().filter(|id| {
            let row = id.get().name;
            row == name
                || row
                    .split_once('|')
                    .is_some_and(|(container, _)| container == name)
        }));
        if found.len() == before {
            return Err(format!("no command is called `{}`", shown(&name)));
        }
    }
    Ok(found)
}

/// Permission bits, as chmod takes them.
fn parse_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("must be a mode in octal, at most 0777".into()),
    }
}

pub(crate) fn parse_path(text: &str) -> Result<PathBuf, String> {
    match text {
        "" => Err("is empty: it must be a path".into()),
        _ => Ok(text.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, text: &str) -> Result<Vec<String>, String> {
        let (option, mut values) = (find(name).expect(name), Values::default());
        if let Kind::List { clear, .. } = option.kind {
            clear(&mut values);
        }
        option
            .set(&mut values, text)
            .map(|()| option.get(&mut values))
    }

    #[test]
    fn every_field_of_the_engines_settings_is_an_option_and_no_option_writes_anothers_field() {
        // A field that is added to the engine fails to compile here until it has its option.
        let Limits {
            sessions_max: _,
            session_depth_max: _,
            session_output_soft_bytes: _,
            session_output_hard_bytes: _,
            session_stall_ms: _,
            session_input_bytes_max: _,
            stranger_stall_ms: _,
            request_held_bytes_max: _,
            streaming_links_max: _,
            links_max: _,
            session_subscriptions_max: _,
            worker_subscriptions_max: _,
            pinned_links_max: _,
            transaction_bytes_max: _,
            link_ledger_max: _,
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
            hold: _,
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
        // All but the drain timeout, which is ours, and the options that are no numbers: for a limit,
        // a loss, a server that is away, and the limits of servers.
        assert_eq!(number_of(shown), engine.count() - 5);
        assert_ne!((values.limits, values.timeouts, values.flush), default);
    }

    #[test]
    fn names_are_unique_and_briefs_are_one_line() {
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
                matches!(option.kind, Kind::Switch(_))
            );
        }
    }

    #[test]
    fn every_default_is_within_its_range_and_reads_as_itself() {
        let mut values = Values::default();
        for option in OPTIONS {
            let default = option.get(&mut values);
            let mut again = Values::default();
            if let Kind::List { clear, .. } = option.kind {
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
    fn numbers_are_in_the_unit_of_the_name_and_may_carry_another() {
        for (name, text, value) in [
            ("max-delay-us", "200", "200"),
            ("max-delay-us", "1ms", "1000"),
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

    #[test]
    fn a_value_that_is_wrong_is_told_what_it_should_be() {
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
                "must be from 1 to 86400000 (24h), or 0 (no deadline)",
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
            ("hold", "on", "must be `true` or `false`, or `yes` or `no`"),
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
}

//! Options for listeners, servers and workers.

use respool_engine::address_map::MapEntry;
use respool_engine::settings::{Address, Announced, Shows};

use super::parse::parse_path;
use super::values::{THREADS_MAX, Threads};
use super::{AtReload, OPTION, Opt, OptionKind};
use crate::address::{check_unix_path_len, parse_announced, parse_listener};
use crate::backend::parse_backend;
use crate::pools::NamedPool;

pub(super) const LISTEN: Opt = Opt {
    name: "listen",
    kind: OptionKind::List {
        push: |values, text| {
            values.listen.push(parse_listener(text)?);
            Ok(())
        },
        clear: |values| values.listen.clear(),
        get: |values| values.listen.iter().map(Address::to_string).collect(),
    },
    value: "ADDRESS",
    brief: "An address on which respool listens; may be given several times",
    more: "HOST:PORT, [IPv6]:PORT, :PORT for every IPv4 address of the machine, or unix:/path for \
           a socket in the file system. Port 0 asks the system for a free port; the line `ready` \
           of the log names it.\n\nEach client that reaches a listener may use the server behind \
           it: set a password before listening on more than this machine.",
    example: "0.0.0.0:6380",
    at_reload: AtReload::Applies,
    of_program: true,
    ..OPTION
};

pub(super) const BACKEND: Opt = Opt {
    name: "backend",
    kind: OptionKind::Text {
        set: |values, text| {
            values.backend = parse_backend(text)?;
            Ok(())
        },
        get: |values| Some(values.backend.to_string()),
        or_number: false,
    },
    value: "URL",
    brief: "The Redis or Valkey server behind respool, or several",
    more: "redis://[USER:PASSWORD@]HOST[:PORT][/DB] or unix://[USER:PASSWORD@]/path[?db=N] is one \
           server. Reserved characters in a part are written %XX. Sessions start in the database \
           DB and reach the others by SELECT. Database numbers are the server's, also in MOVE, \
           COPY and SWAPDB. The port is 6379 unless given.\n\nFor TLS \
           to the servers, write rediss in place of redis: rediss://, rediss-sharded://, \
           rediss-cluster://, rediss-sentinel://. There, Sentinels are reached over TLS, too. \
           Options that begin with server-tls say how certificates are checked.\n\nThe server need not be up when respool starts: respool keeps trying, and \
           until the server answers, clients get an error that says so. respool resolves the host \
           name at every attempt to \
           connect.\n\nredis-sharded://HOST:PORT:WEIGHT,HOST:PORT:WEIGHT/DB?PARAMETERS divides the \
           keys among several plain servers. Only the hosts are required. In place of HOST:PORT \
           the path of a socket may stand, with / written as %2F: %2Frun%2Fredis.sock:WEIGHT. \
           Several parameters have & between them. The rule is twemproxy's unless like=predixy is \
           given.\n\nFor twemproxy's rule, hash is murmur unless given. twemproxy's own default is \
           fnv1a_64, which tends to keep keys together that differ in their last characters only. \
           distribution is ketama, modula or random; ketama unless given. hash-tag is two \
           characters; only the part of a key between them is hashed. It is {} unless given; if it \
           is empty, the whole key is hashed. names has one name for each server, with commas \
           between them, for data from a configuration with names. For like=predixy, hash is crc16 \
           or atol, the order of the servers counts, and there are no weights and no names. To \
           keep data where it is, repeat the configuration of the proxy in use, with the same \
           order and spelling of the addresses.\n\nredis-cluster://HOST:PORT,HOST:PORT is a \
           Cluster. The hosts are its seed nodes: any of its nodes, which name the others. User \
           and password hold for every node.\n\nredis-sentinel://HOST:PORT,HOST:PORT/NAME is the \
           primary that Sentinels monitor under that name. The hosts are any of these Sentinels; \
           their port is 26379 unless given. With NAME,NAME the keys are divided among several \
           primaries, as by redis-sharded:// and with its parameters except names. User and \
           password are those of the servers, and the database stands behind the names (/NAME/DB). \
           The parameters sentinel-user and sentinel-password are the login for the \
           Sentinels.\n\nWith the parameter password-file=PATH the password stands in a file, with \
           sentinel-password-file=PATH that of the Sentinels: see backend-password-file. In the same \
           way password-command and sentinel-password-command name commands: see \
           backend-password-command; write a space as %20.\n\nIn \
           front of a Cluster or Sentinels, the parameter reads says at which servers keys are \
           read: primary; prefer-primary, the primary while it is up; replica; prefer-replica, a \
           replica, or the primary if there is none; nearest, the nearest of all of them. \
           zone=NAME prefers servers in that zone. A Valkey names its zone itself \
           (availability-zone); zones=10.1.:a,10.2.:b names it by how the host begins. \
           weights=HOST:PORT:N,... sets the share of a server in the reads (1; 0: none). A session \
           that sends READWRITE reads at primaries for own-writes-ms (1000; 0: always) after each \
           of its writes; with own-writes=all every session does.",
    example: "redis://10.0.0.7:6379/0",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const POOL: Opt = Opt {
    name: "pool",
    kind: OptionKind::List {
        push: |values, text| {
            values.pools.push(NamedPool::parse(text)?);
            Ok(())
        },
        clear: |values| values.pools.clear(),
        get: |values| values.pools.iter().map(NamedPool::to_string).collect(),
    },
    value: "NAME=LISTEN=URL",
    brief: "A pool with its own listeners; may be given several times",
    more: "Several pools in one process, instead of --listen and --backend. NAME is the name of \
           the pool in the log and in INFO. LISTEN is one of its addresses, or several with commas \
           between them; `tls:` in front of an address means TLS. URL is as for --backend, with \
           the user and the password for this pool. In the file, a table for each pool is easier to read, at the end of the file: \
           [pool.NAME] with the keys `listen`, `tls-listen` and `backend`, and those of the options below that \
           say so. There, [pool.NAME.prefixes] may have URLs of any kind for keys with a certain \
           prefix, and may strip the prefix.\n\nA client's requests go to the pool whose listener \
           it has reached, and to no other. All pools share the workers and all other options, \
           also the users of respool.",
    example: "pages=127.0.0.1:6381=redis://10.0.0.8",
    at_reload: AtReload::Applies,
    of_program: true,
    ..OPTION
};

pub(super) const ANNOUNCE: Opt = Opt {
    name: "announce",
    kind: OptionKind::Text {
        set: |values, text| {
            values.announce = Some(parse_announced(text)?);
            Ok(())
        },
        get: |values| values.announce.as_ref().map(Announced::to_string),
        or_number: false,
    },
    value: "HOST[:PORT]",
    brief: "The address of respool in replies to clients of a Cluster",
    more: "In front of a Cluster, clients with Cluster support ask for the nodes and connect to \
           those in the reply. The reply names respool, at the address that the client has \
           reached. Where a container, NAT or a load balancer maps another address to that, give \
           the address that clients use: a host name, an IPv4 address or [IPv6]. It holds for all \
           listeners of a pool; without a port, each listener names its own.",
    example: "cache.example:6380",
    per_pool: true,
    at_reload: AtReload::Applies,
    of_program: true,
    ..OPTION
};

pub(super) const CLUSTER_SHOWS: Opt = Opt {
    name: "cluster-shows",
    kind: OptionKind::Text {
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
    brief: "How a Cluster behind respool appears to clients",
    more: "With `node`, as a Cluster of one node that owns all slots: clients work with and \
           without Cluster support. With `server`, as a server without Cluster support. INFO, \
           HELLO and CLUSTER say the same.",
    example: "server",
    per_pool: true,
    of_program: true,
    ..OPTION
};

pub(super) const ADDRESS_MAP: Opt = Opt {
    name: "address-map",
    kind: OptionKind::List {
        push: |values, text| {
            let entries = text.split(',').map(MapEntry::parse);
            let entries: Result<Vec<MapEntry>, String> = entries.collect();
            values.address_map.extend(entries?);
            Ok(())
        },
        clear: |values| values.address_map.clear(),
        get: |values| values.address_map.iter().map(MapEntry::to_string).collect(),
    },
    value: "NAMED=REACHED",
    brief: "Maps addresses that servers name to those respool can reach",
    more: "Behind NAT, in containers and behind forwarded ports, the nodes of a Cluster and \
           Sentinels name addresses that respool cannot reach. Each entry says where respool \
           reaches the server with such an address. The option may be given several times, or with \
           commas between the entries.\n\n10.0.0.1:6379=127.0.0.1:7001 maps that address. Without \
           a port on the left, an entry maps every port of the host; without one on the right, the \
           port stays as it is. 10.0.0.1:7000-7005=10.1.0.1:17000-17005 maps a range of ports, in \
           their order. A host may be a name, an IPv4 address or [IPv6], and may have one `*` on \
           the left: 10.0.0.*=10.1.0.*. The `*` on the right stands for the same text as the one \
           on the left.\n\nEntries without a `*` in the host come first; among them, the entry \
           with the most exact port wins. Of the others, the first that matches wins. An address \
           is mapped once. The map does not hold for the addresses in --backend.",
    example: "10.0.0.1:6379=127.0.0.1:7001",
    per_pool: true,
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const THREADS: Opt = Opt {
    name: "threads",
    kind: OptionKind::Text {
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
    more: "auto is one for each core that respool may use. Each worker has one shared link to a \
           server, so fewer workers make larger batches. One worker is enough until its core is \
           busy, and it leaves the other cores to the server.",
    example: "1",
    of_program: true,
    ..OPTION
};

pub(super) const CONTROL_SOCKET: Opt = Opt {
    name: "control-socket",
    kind: OptionKind::Text {
        set: |values, text| {
            let path = parse_path(text)?;
            check_unix_path_len(&path)?;
            values.control_socket = Some(path);
            Ok(())
        },
        get: |values| {
            values
                .control_socket
                .as_deref()
                .map(|path| path.display().to_string())
        },
        or_number: false,
    },
    value: "PATH",
    brief: "A socket in the file system for `respool reload`",
    more: "Only the user of respool and root may connect: the socket has the mode 0600. Without \
           this option there is no such socket, and SIGHUP alone reloads the configuration.",
    example: "/run/respool/control.sock",
    of_program: true,
    ..OPTION
};

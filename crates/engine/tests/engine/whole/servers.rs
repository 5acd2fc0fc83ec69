//! Servers with right and wrong replies.

use std::collections::VecDeque;

use respool_engine::LinkId;
use respool_engine::settings::Address;
use respool_protocol::encode;
use respool_protocol::request::{Found, RequestScanner};

use super::choices::Choices;
use super::pools::{PREFIX, SENTINEL, STRIPPED};

/// Stands before the key in each value.
pub(crate) const VALUE: &[u8] = b"value of ";

/// Bytes of an argument that a server remembers.
const ARGUMENT_BYTES: usize = 100;

pub(crate) struct Servers {
    pub(crate) connections: Vec<Connection>,
    name: &'static str,
    version: &'static str,
    is_cluster: bool,
    /// One of this many replies is wrong. 0: none.
    ill_in: usize,
    /// The first slot of a Cluster's second node, and the epoch of that split.
    split: u16,
    epoch: u64,
    /// The port of the first primary.
    primary: u16,
}

/// A server's end of a link.
pub(crate) struct Connection {
    pub(crate) link: LinkId,
    port: u16,
    pub(crate) is_up: bool,
    /// Whether the engine wants to read it.
    pub(crate) is_read: bool,
    /// Whether the engine has ended its side.
    pub(crate) has_ended: bool,
    /// Bytes that came and are no whole request yet.
    begun: Vec<u8>,
    scanner: RequestScanner,
    /// Requests without a reply.
    pub(crate) asked: VecDeque<Vec<Vec<u8>>>,
    /// Output that the engine has not read.
    pub(crate) says: Vec<u8>,
    is_resp3: bool,
    /// Commands since MULTI.
    queued: Option<Vec<Vec<Vec<u8>>>>,
    subscribed: usize,
    /// Whether it has sent more or fewer replies than requests: its values name no key any more.
    miscounts: bool,
}

impl Connection {
    pub(crate) fn new(link: LinkId, to: &Address) -> Connection {
        let Address::Tcp { port, .. } = to else {
            unreachable!("no server listens at a path");
        };
        Connection {
            link,
            port: *port,
            is_up: false,
            is_read: true,
            has_ended: false,
            begun: Vec::new(),
            scanner: RequestScanner::default(),
            asked: VecDeque::new(),
            says: Vec::new(),
            is_resp3: false,
            queued: None,
            subscribed: 0,
            miscounts: false,
        }
    }

    /// The server reads these bytes, which must be requests.
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        self.begun.extend_from_slice(bytes);
        let mut at = 0;
        loop {
            let rest = &self.begun[at..];
            match self.scanner.scan(rest, true) {
                Ok(Found::Request { len }) => {
                    let args = self.scanner.spans().iter().map(|span| span.of(rest));
                    let cut = args.map(|arg| arg[..arg.len().min(ARGUMENT_BYTES)].to_vec());
                    self.asked.push_back(cut.collect());
                    at += len;
                }
                Ok(Found::More) => break,
                other => {
                    let shown = rest[..rest.len().min(200)].escape_ascii();
                    panic!("a server got {other:?}: {shown}");
                }
            }
        }
        self.begun.drain(..at);
    }
}

impl Servers {
    pub(crate) fn new(choices: &mut Choices<'_>, is_cluster: bool) -> Servers {
        let (name, version) = choices.of(&[
            ("redis", "7.0.0"),
            ("redis", "6.2.0"),
            ("redis", "8.2.0"),
            ("valkey", "9.1.0"),
        ]);
        Servers {
            connections: Vec::new(),
            name,
            version,
            is_cluster,
            ill_in: choices.of(&[0, 4, 16, 100]),
            split: 9_000,
            epoch: 1,
            primary: 1,
        }
    }

    /// All servers send right replies from now on.
    pub(crate) fn heal(&mut self) {
        self.ill_in = 0;
    }

    pub(crate) fn position(&self, link: LinkId) -> Option<usize> {
        let mut all = self.connections.iter();
        all.position(|connection| connection.link == link)
    }

    /// A failover, or slots that move.
    pub(crate) fn change_owners(&mut self, choices: &mut Choices<'_>) {
        self.split = choices.of(&[9_000, 100, 16_000, 1]);
        self.epoch += 1;
        self.primary = choices.of(&[1, 4]);
    }

    /// Answers the oldest request of a connection.
    pub(crate) fn answer(&mut self, at: usize, choices: &mut Choices<'_>) {
        let Some(args) = self.connections[at].asked.pop_front() else {
            return;
        };
        if self.ill_in > 0 && choices.one_in(self.ill_in) {
            let (bytes, replies) = ill_reply(choices);
            let connection = &mut self.connections[at];
            connection.says.extend_from_slice(&bytes);
            // respool sends HELLO after AUTH, and takes a reply that is no line for the answer to
            // HELLO.
            connection.miscounts |= replies != 1 || args[0] == b"AUTH";
            return;
        }
        let reply = self.reply(at, &args, choices);
        let connection = &mut self.connections[at];
        connection.says.extend_from_slice(&reply);
    }

    /// Sends bytes without a request.
    pub(crate) fn speak(&mut self, at: usize, choices: &mut Choices<'_>) {
        let ill = self.ill_in > 0;
        let connection = &mut self.connections[at];
        let text = match choices.below(5) {
            0 if ill => {
                connection.miscounts = true;
                "+unasked\r\n"
            }
            1 => ">2\r\n$10\r\ninvalidate\r\n*1\r\n$2\r\nk1\r\n",
            2 => ">2\r\n$10\r\ninvalidate\r\n_\r\n",
            3 if connection.port == SENTINEL => {
                ">3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$24\r\none server 1 server 4 end\r\n"
            }
            _ => ">3\r\n$7\r\nmessage\r\n$2\r\nk1\r\n$5\r\nhello\r\n",
        };
        // A connection in RESP2 has no pushes.
        if connection.is_resp3 || ill {
            connection.says.extend_from_slice(text.as_bytes());
        }
    }

    fn reply(&mut self, at: usize, args: &[Vec<u8>], choices: &mut Choices<'_>) -> Vec<u8> {
        let name = args[0].to_ascii_uppercase();
        let needs_more = matches!(
            &name[..],
            b"GET" | b"CLUSTER" | b"SENTINEL" | b"SCRIPT" | b"CLIENT"
        );
        if needs_more && args.len() < 2 {
            return b"-ERR wrong number of arguments\r\n".to_vec();
        }
        let connection = &mut self.connections[at];
        if let Some(queued) = &mut connection.queued {
            match &name[..] {
                b"EXEC" => {
                    let queued = connection.queued.take().unwrap_or_default();
                    let mut out = format!("*{}\r\n", queued.len()).into_bytes();
                    for args in queued {
                        out.extend(self.reply(at, &args, choices));
                    }
                    return out;
                }
                b"DISCARD" => connection.queued = None,
                b"RESET" => {}
                _ => {
                    queued.push(args.to_vec());
                    return b"+QUEUED\r\n".to_vec();
                }
            }
        }
        let mut out = Vec::new();
        match &name[..] {
            b"HELLO" => self.hello(at, args, &mut out),
            b"RESET" => {
                (connection.is_resp3, connection.queued) = (false, None);
                out.extend_from_slice(b"+RESET\r\n");
            }
            b"MULTI" => {
                connection.queued = Some(Vec::new());
                out.extend_from_slice(b"+OK\r\n");
            }
            b"GET" => self.value(at, &args[1], choices, &mut out),
            b"MGET" => {
                encode::array(&mut out, args.len() - 1);
                for key in &args[1..] {
                    self.value(at, key, choices, &mut out);
                }
            }
            b"SUBSCRIBE" | b"PSUBSCRIBE" | b"SSUBSCRIBE" | b"UNSUBSCRIBE" | b"PUNSUBSCRIBE"
            | b"SUNSUBSCRIBE" => {
                let is_more = !name.contains(&b'N');
                for channel in &args[1..] {
                    connection.subscribed = match is_more {
                        true => connection.subscribed + 1,
                        false => connection.subscribed.saturating_sub(1),
                    };
                    let kind = if connection.is_resp3 { '>' } else { '*' };
                    out.extend_from_slice(format!("{kind}3\r\n").as_bytes());
                    encode::bulk(&mut out, &name.to_ascii_lowercase());
                    encode::bulk(&mut out, channel);
                    encode::integer(&mut out, connection.subscribed as i64);
                }
            }
            b"PING" => out.extend_from_slice(b"+PONG\r\n"),
            b"CLUSTER" => self.cluster(args, &mut out),
            b"SENTINEL" => self.sentinel(args, &mut out),
            b"INFO" => {
                let replica = matches!(connection.port, 4 | 5);
                let role = match replica {
                    true => {
                        "role:slave\r\nmaster_host:server\r\nmaster_port:1\r\nmaster_link_status:up\r\nslave_repl_offset:7\r\n"
                    }
                    false => "role:master\r\nconnected_slaves:1\r\nmaster_repl_offset:7\r\n",
                };
                // The CPU time stands still, and leaps.
                let cpu_s = self.epoch;
                let cpu = format!("used_cpu_sys:{cpu_s}\r\nused_cpu_user:{cpu_s}\r\n");
                encode::bulk(
                    &mut out,
                    format!("# Replication\r\n{role}# CPU\r\n{cpu}").as_bytes(),
                );
            }
            b"ROLE" => out.extend_from_slice(match connection.port {
                4 | 5 => b"*5\r\n$5\r\nslave\r\n$6\r\nserver\r\n:1\r\n$9\r\nconnected\r\n:7\r\n",
                _ => b"*3\r\n$6\r\nmaster\r\n:7\r\n*0\r\n",
            }),
            b"COMMAND" => out.extend_from_slice(match args.len() {
                1 => b"*1\r\n*6\r\n$3\r\nget\r\n:2\r\n*1\r\n+readonly\r\n:1\r\n:1\r\n:1\r\n",
                _ => b"*1\r\n*6\r\n$7\r\nunheard\r\n:-2\r\n*1\r\n+write\r\n:1\r\n:1\r\n:1\r\n",
            }),
            b"EVALSHA" if choices.one_in(2) => out.extend_from_slice(b"-NOSCRIPT no\r\n"),
            b"SCRIPT" => out.extend_from_slice(match &args[1].to_ascii_uppercase()[..] {
                b"EXISTS" => b"*1\r\n:0\r\n",
                b"LOAD" => b"$40\r\n0123456789012345678901234567890123456789\r\n",
                _ => b"+OK\r\n",
            }),
            b"SCAN" => out.extend_from_slice(b"*2\r\n$1\r\n0\r\n*1\r\n$2\r\nk1\r\n"),
            b"KEYS" => out.extend_from_slice(b"*2\r\n$2\r\nk1\r\n$1\r\n7\r\n"),
            b"LRANGE" => {
                let count = choices.of(&[1, 300, 5_000]);
                encode::array(&mut out, count);
                for _ in 0..count {
                    encode::bulk(&mut out, b"an element of forty bytes or a few more");
                }
            }
            b"CONFIG" => out.extend_from_slice(b"*2\r\n$9\r\nmaxmemory\r\n$1\r\n0\r\n"),
            b"BLPOP" | b"XREAD" => match connection.is_resp3 {
                true => out.extend_from_slice(b"_\r\n"),
                false => out.extend_from_slice(b"*-1\r\n"),
            },
            b"DBSIZE" | b"DEL" | b"PUBLISH" | b"SPUBLISH" | b"WAIT" => {
                encode::integer(&mut out, 1);
            }
            b"MONITOR" => out.extend_from_slice(b"+OK\r\n+1 [0 a:1] \"get\" \"k1\"\r\n"),
            b"EVAL" => encode::bulk(&mut out, b"done"),
            b"CLIENT" => match &args[1].to_ascii_uppercase()[..] {
                b"UNBLOCK" => encode::integer(&mut out, 1),
                _ => out.extend_from_slice(b"+OK\r\n"),
            },
            _ => out.extend_from_slice(b"+OK\r\n"),
        }
        out
    }

    fn hello(&mut self, at: usize, args: &[Vec<u8>], out: &mut Vec<u8>) {
        let connection = &mut self.connections[at];
        if let Some(version) = args.get(1) {
            connection.is_resp3 = version == b"3";
        }
        let role = match connection.port {
            4 | 5 if connection.port != self.primary => "replica",
            _ => "master",
        };
        let mode = match connection.port {
            SENTINEL => "sentinel",
            STRIPPED => "standalone",
            _ if self.is_cluster => "cluster",
            _ => "standalone",
        };
        out.extend_from_slice(if connection.is_resp3 { b"%4" } else { b"*8" });
        out.extend_from_slice(b"\r\n");
        let fields = [
            ("server", self.name),
            ("version", self.version),
            ("role", role),
            ("mode", mode),
        ];
        for (name, text) in fields {
            encode::bulk(out, name.as_bytes());
            encode::bulk(out, text.as_bytes());
        }
    }

    /// The value of a key. It names the key as clients do.
    fn value(&self, at: usize, key: &[u8], choices: &mut Choices<'_>, out: &mut Vec<u8>) {
        let connection = &self.connections[at];
        match choices.below(6) {
            0 => out.extend_from_slice(match connection.is_resp3 {
                true => b"_\r\n",
                false => b"$-1\r\n",
            }),
            _ if connection.miscounts => encode::bulk(out, b"another one's"),
            _ => {
                let prefix = match connection.port {
                    STRIPPED => PREFIX,
                    _ => "",
                };
                encode::bulk(out, &[VALUE, prefix.as_bytes(), key].concat());
            }
        }
    }

    fn cluster(&self, args: &[Vec<u8>], out: &mut Vec<u8>) {
        match &args[1].to_ascii_uppercase()[..] {
            b"SLOTS" => {
                encode::array(out, 2);
                let ranges = [(0, self.split - 1, 1, 4), (self.split, 16_383, 2, 5)];
                for (first, last, owner, replica) in ranges {
                    encode::array(out, 4);
                    encode::integer(out, first.into());
                    encode::integer(out, last.into());
                    for port in [owner, replica] {
                        encode::array(out, 3);
                        encode::bulk(out, b"server");
                        encode::integer(out, port);
                        encode::bulk(out, format!("{port:040}").as_bytes());
                    }
                }
            }
            b"INFO" => {
                let epoch = self.epoch;
                let text = format!(
                    "cluster_state:ok\r\ncluster_slots_assigned:16384\r\ncluster_current_epoch:{epoch}\r\ncluster_my_epoch:1\r\n"
                );
                encode::bulk(out, text.as_bytes());
            }
            _ => out.extend_from_slice(b"-ERR unknown subcommand\r\n"),
        }
    }

    fn sentinel(&self, args: &[Vec<u8>], out: &mut Vec<u8>) {
        let name = args.get(2).map_or("", |name| match &name[..] {
            b"two" => "two",
            _ => "one",
        });
        let (primary, replica) = match name {
            "two" => ("2", "5"),
            _ if self.primary == 4 => ("4", "1"),
            _ => ("1", "4"),
        };
        let epoch = self.epoch.to_string();
        let mut fields = |all: &[(&str, &str)]| {
            encode::array(out, all.len() * 2);
            for (name, text) in all {
                encode::bulk(out, name.as_bytes());
                encode::bulk(out, text.as_bytes());
            }
        };
        match &args[1].to_ascii_uppercase()[..] {
            b"MASTER" => fields(&[
                ("name", name),
                ("ip", "server"),
                ("port", primary),
                ("flags", "master"),
                ("config-epoch", &epoch),
                ("quorum", "1"),
                ("num-slaves", "1"),
                ("num-other-sentinels", "0"),
            ]),
            b"GET-MASTER-ADDR-BY-NAME" => fields(&[("server", primary)]),
            b"REPLICAS" => {
                out.extend_from_slice(b"*1\r\n");
                let mut one = Vec::new();
                std::mem::swap(out, &mut one);
                let all = [
                    ("ip", "server"),
                    ("port", replica),
                    ("flags", "slave"),
                    ("role-reported", "slave"),
                    ("master-host", "server"),
                    ("master-port", primary),
                    ("master-link-status", "ok"),
                    ("slave-priority", "100"),
                    ("slave-repl-offset", "7"),
                ];
                encode::array(&mut one, all.len() * 2);
                for (name, text) in all {
                    encode::bulk(&mut one, name.as_bytes());
                    encode::bulk(&mut one, text.as_bytes());
                }
                *out = one;
            }
            b"SENTINELS" => out.extend_from_slice(b"*0\r\n"),
            _ => encode::bulk(out, format!("{SENTINEL:040}").as_bytes()),
        }
    }
}

/// Bytes of a hostile or faulty server, and the number of replies in them.
fn ill_reply(choices: &mut Choices<'_>) -> (Vec<u8>, usize) {
    const ONE: [&str; 36] = [
        "$-1\r\n",
        "*-1\r\n",
        ":1\r\n",
        "*0\r\n",
        "*2\r\n$1\r\na\r\n$1\r\nb\r\n",
        "*3\r\n$1\r\na\r\n$-1\r\n+x\r\n",
        "*2\r\n$1\r\n0\r\n*0\r\n",
        "-ERR no\r\n",
        "-MOVED 1 server:2\r\n",
        "-MOVED 9001 server:1\r\n",
        "-MOVED 7 elsewhere:7\r\n",
        "-MOVED 99999 :0\r\n",
        "-ASK 1 server:2\r\n",
        "-MOVED\r\n",
        "-READONLY no\r\n",
        "-NOSCRIPT no\r\n",
        "-LOADING no\r\n",
        "-TRYAGAIN no\r\n",
        "-CLUSTERDOWN Hash slot not served\r\n",
        "-MASTERDOWN no\r\n",
        "-NOAUTH no\r\n",
        "-WRONGPASS no\r\n",
        "-NOPERM no\r\n",
        "-EXECABORT no\r\n",
        "-BUSY no\r\n",
        "-UNBLOCKED no\r\n",
        "-WRONGTYPE no\r\n",
        "-\r\n",
        "+\r\n",
        "|1\r\n+a\r\n+b\r\n:1\r\n",
        "_\r\n",
        "#t\r\n",
        "%1\r\n$7\r\nversion\r\n$5\r\n7.2.0\r\n",
        "*1\r\n*6\r\n$7\r\nunheard\r\n:-2\r\n*1\r\n+write\r\n:1\r\n:1\r\n:1\r\n",
        "+QUEUED\r\n",
        "+OK\r\n",
    ];
    const NONE: [&str; 8] = [
        "",
        ">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n",
        ">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n",
        ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n",
        ">0\r\n",
        "nonsense",
        "$5x",
        "*9999999\r\n",
    ];
    match choices.below(8) {
        0 => {
            let len = choices.of(&[5_000, 40_000, 200_000]);
            let mut bytes = format!("${len}\r\n").into_bytes();
            bytes.resize(bytes.len() + len, b'x');
            bytes.extend_from_slice(b"\r\n");
            (bytes, 1)
        }
        1 => (choices.of(&NONE).into(), 0),
        2 => (b"+one\r\n+two\r\n".to_vec(), 2),
        _ => (choices.of(&ONE).into(), 1),
    }
}

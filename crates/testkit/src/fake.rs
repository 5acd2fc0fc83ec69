//! Fake nodes: they answer by a script and record their requests.

use std::io::Write;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::client::{Reply, RespClient};

/// A request to a node, and the facts from which a script answers it.
pub struct NodeRequest<'a> {
    /// The index of the node.
    pub node: usize,
    /// The addresses of all nodes.
    pub all: &'a [SocketAddr],
    /// The words of the request; the first one in capitals.
    pub words: &'a [String],
}

impl NodeRequest<'_> {
    /// Whether these are the words of the request; case does not count.
    pub fn is(&self, words: &str) -> bool {
        let own = self.words.join(" ");
        own.eq_ignore_ascii_case(words)
    }

    /// The name of the command, in capitals.
    pub fn name(&self) -> &str {
        &self.words[0]
    }
}

/// A reply in wire format. `None` stands for the reply of a healthy Cluster node, see [`in_order`].
pub type FakeAnswer = Option<String>;

type FakeScript = dyn Fn(&NodeRequest<'_>) -> FakeAnswer + Send + Sync;

/// Several nodes with one script, which end when this is dropped.
pub struct Fakes {
    addresses: Vec<SocketAddr>,
    shared: Arc<FakeNodesState>,
}

struct FakeNodesState {
    addresses: Vec<SocketAddr>,
    script: Box<FakeScript>,
    asked: Mutex<Vec<(usize, Vec<String>)>>,
    open: Mutex<Vec<TcpStream>>,
    ended: AtomicBool,
}

impl Fakes {
    /// Starts so many nodes on free ports.
    pub fn start(
        count: usize,
        script: impl Fn(&NodeRequest<'_>) -> FakeAnswer + Send + Sync + 'static,
    ) -> Fakes {
        let listen = |_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let listeners: Vec<TcpListener> = (0..count).map(listen).collect();
        let address = |listener: &TcpListener| listener.local_addr().expect("it is bound");
        let addresses: Vec<SocketAddr> = listeners.iter().map(address).collect();
        let shared = Arc::new(FakeNodesState {
            addresses: addresses.clone(),
            script: Box::new(script),
            asked: Mutex::default(),
            open: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        for (node, listener) in listeners.into_iter().enumerate() {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.accept(node, &listener));
        }
        Fakes { addresses, shared }
    }

    /// Where the nodes listen.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Writes this text to all open connections, without a request.
    pub fn tell(&self, text: &str) {
        for mut stream in self.shared.open.lock().expect("no holder panics").iter() {
            // A closed connection misses it.
            let _ = stream.write_all(text.as_bytes());
        }
    }

    /// The requests of one node, in order, with spaces between the words.
    pub fn asked_of(&self, node: usize) -> Vec<String> {
        let asked = self.shared.asked.lock().expect("no holder panics");
        let own = asked.iter().filter(|(of, _)| *of == node);
        own.map(|(_, asked)| asked.join(" ")).collect()
    }

    /// How many requests to any node begin with these words.
    pub fn count(&self, words: &str) -> usize {
        let asked = self.shared.asked.lock().expect("no holder panics");
        let is_it = |asked: &[String]| asked.join(" ").starts_with(words);
        asked.iter().filter(|(_, asked)| is_it(asked)).count()
    }
}

impl Drop for Fakes {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        for stream in self.shared.open.lock().expect("no holder panics").iter() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        for address in &self.addresses {
            // Wakes the accepting thread.
            let _ = TcpStream::connect(address);
        }
    }
}

impl FakeNodesState {
    fn accept(self: Arc<FakeNodesState>, node: usize, listener: &TcpListener) {
        for stream in listener.incoming() {
            if self.ended.load(Ordering::SeqCst) {
                return;
            }
            let Ok(stream) = stream else { continue };
            let Ok(kept) = stream.try_clone() else {
                continue;
            };
            self.open.lock().expect("no holder panics").push(kept);
            let shared = Arc::clone(&self);
            thread::spawn(move || shared.serve(node, RespClient::of(stream)));
        }
    }

    /// A request has the shape of a reply: an array of bulk strings.
    fn serve(&self, node: usize, mut peer: RespClient) {
        while let Ok(Reply::Array(words)) = peer.try_reply() {
            let mut request = Vec::new();
            for word in &words {
                let Reply::Bulk(word) = word else { return };
                request.push(String::from_utf8_lossy(word).into_owned());
            }
            let Some(name) = request.first_mut() else {
                return;
            };
            name.make_ascii_uppercase();
            let asked = NodeRequest {
                node,
                all: &self.addresses,
                words: &request,
            };
            let mut all = self.asked.lock().expect("no holder panics");
            all.push((node, request.clone()));
            drop(all);
            let answer = (self.script)(&asked).unwrap_or_else(|| in_order(&asked));
            if peer.stream().write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }
}

/// The reply of a healthy node that owns as many slots as the others.
pub fn in_order(asked: &NodeRequest<'_>) -> String {
    match asked.name() {
        "HELLO" => {
            "*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n".to_owned()
        }
        "PING" => "+PONG\r\n".to_owned(),
        "GET" => bulk(&asked.words[1]),
        "CLUSTER" if asked.is("CLUSTER SLOTS") => shares(asked.all),
        "CLUSTER" if asked.is("CLUSTER INFO") => info(asked.all.len(), 1),
        _ => "+OK\r\n".to_owned(),
    }
}

/// A bulk string in wire format.
pub fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// CLUSTER SLOTS: each of these nodes has an equal share.
pub fn shares(nodes: &[SocketAddr]) -> String {
    let mut answer = format!("*{}\r\n", nodes.len());
    for (place, node) in nodes.iter().enumerate() {
        let first = |place: usize| 16_384 * place / nodes.len();
        answer += &range(first(place), first(place + 1) - 1, *node);
    }
    answer
}

/// One entry of CLUSTER SLOTS.
pub fn range(first: usize, last: usize, node: SocketAddr) -> String {
    let host = bulk(&node.ip().to_string());
    let id = bulk(&format!("{:040}", node.port()));
    format!(
        "*3\r\n:{first}\r\n:{last}\r\n*3\r\n{host}:{}\r\n{id}",
        node.port()
    )
}

/// CLUSTER SLOTS in which each primary has an equal share and the first one has these replicas.
pub fn followed(primaries: &[SocketAddr], replicas: &[SocketAddr]) -> String {
    let place = |node: &SocketAddr| {
        let (host, port) = (bulk(&node.ip().to_string()), node.port());
        format!("*3\r\n{host}:{port}\r\n{}", bulk(&format!("{port:040}")))
    };
    let all = shares(primaries);
    // The replicas stand behind the first primary, in a longer entry.
    let first = range(0, 16_384 / primaries.len() - 1, primaries[0]);
    let rest = first.strip_prefix("*3").expect("of three");
    let replicas: Vec<String> = replicas.iter().map(place).collect();
    let with_them = format!("*{}{rest}{}", 3 + replicas.len(), replicas.concat());
    all.replacen(&first, &with_them, 1)
}

/// CLUSTER INFO of a Cluster with so many nodes.
pub fn info(nodes: usize, epoch: u64) -> String {
    let lines = [
        "cluster_enabled:1".to_owned(),
        "cluster_state:ok".to_owned(),
        "cluster_slots_assigned:16384".to_owned(),
        "cluster_slots_ok:16384".to_owned(),
        "cluster_slots_pfail:0".to_owned(),
        "cluster_slots_fail:0".to_owned(),
        format!("cluster_known_nodes:{nodes}"),
        format!("cluster_size:{nodes}"),
        format!("cluster_current_epoch:{epoch}"),
        "cluster_my_epoch:1".to_owned(),
    ];
    bulk(&format!("{}\r\n", lines.join("\r\n")))
}

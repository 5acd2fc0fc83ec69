//! A real Cluster.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::client::{Reply, RespClient};
use respool_protocol::slot::SLOTS;

use super::{
    FORM_LIMIT, Node, REPLICATION, TestTls, check_replica, check_running, text, wait_until,
};
use crate::servers::ServerProcess;

/// The settings of a [`TestCluster`].
#[derive(Clone, Debug)]
pub struct ClusterSettings {
    /// Nodes with slots, each with an equal share.
    pub primaries: usize,
    /// Replicas of each primary.
    pub replicas: usize,
    /// The silence after which nodes suspect a node.
    pub node_timeout: Duration,
    /// The password of clients and of nodes among each other.
    pub password: Option<String>,
    /// The TLS of clients and of the bus; nodes have a plain port, too.
    pub tls: Option<TestTls>,
    /// More arguments for every node, such as `--cluster-require-full-coverage`, `no`.
    pub args: Vec<String>,
}

impl Default for ClusterSettings {
    /// Three primaries with a replica each, which notice a failure soon.
    fn default() -> ClusterSettings {
        ClusterSettings {
            primaries: 3,
            replicas: 1,
            node_timeout: Duration::from_millis(1000),
            password: None,
            tls: None,
            args: Vec::new(),
        }
    }
}

/// Nodes of one binary that have formed a Cluster. The primaries come first, in the order of their
/// slots; then a first replica of each in the same order, then a second of each. That is the start:
/// later the nodes decide their roles.
#[derive(Debug)]
pub struct TestCluster {
    nodes: Vec<Node>,
    /// Node ids.
    ids: Vec<String>,
    binary: PathBuf,
    settings: ClusterSettings,
}

/// A line of CLUSTER NODES: how one node sees another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its node id.
    pub id: String,
    /// `ADDRESS:PORT`.
    pub address: String,
    /// `master`, `slave`, `myself`, `fail?`, `fail`, `handshake`, …
    pub flags: Vec<String>,
    /// The id of its primary.
    pub primary: Option<String>,
    /// Its configuration epoch: of two claims to a slot, the later one counts.
    pub epoch: u64,
    /// Whether the bus reaches it.
    pub is_connected: bool,
    /// Its own slots, without those in migration.
    pub slots: Vec<RangeInclusive<u16>>,
}

impl Seen {
    fn is(&self, flag: &str) -> bool {
        self.flags.iter().any(|own| own == flag)
    }

    /// Whether it owns the slot.
    pub fn has(&self, slot: u16) -> bool {
        self.slots.iter().any(|slots| slots.contains(&slot))
    }

    fn read(line: &str) -> Option<Seen> {
        // ID ADDRESS:PORT@BUS[,NAME...] FLAGS PRIMARY PING PONG EPOCH LINK SLOTS...
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[
            id,
            address,
            flags,
            primary,
            _,
            _,
            epoch,
            link,
            ref slots @ ..,
        ] = &words[..]
        else {
            return None;
        };
        let mut own = Vec::new();
        // Brackets hold a slot in migration.
        for slots in slots.iter().filter(|slots| !slots.starts_with('[')) {
            let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
            own.push(first.parse().ok()?..=last.parse().ok()?);
        }
        Some(Seen {
            id: id.to_owned(),
            address: address.split('@').next()?.to_owned(),
            flags: flags.split(',').map(str::to_owned).collect(),
            primary: (primary != "-").then(|| primary.to_owned()),
            epoch: epoch.parse().ok()?,
            is_connected: link == "connected",
            slots: own,
        })
    }
}

impl TestCluster {
    /// Starts the nodes and forms the Cluster. Returns when each node reports it as whole and each
    /// replica has its primary's data.
    ///
    /// # Errors
    /// When a node does not start, or they do not form a Cluster.
    pub fn start(binary: &Path, settings: ClusterSettings) -> io::Result<TestCluster> {
        let (primaries, replicas) = (settings.primaries, settings.replicas);
        let mut cluster = TestCluster {
            nodes: Vec::new(),
            ids: Vec::new(),
            binary: binary.to_owned(),
            settings,
        };
        for node in 0..primaries * (1 + replicas) {
            cluster.start_node()?;
            // With equal epochs, the nodes would first settle them one after the other.
            cluster.nodes[node].ask_ok(&[
                "CLUSTER",
                "SET-CONFIG-EPOCH",
                &(node + 1).to_string(),
            ])?;
        }
        for primary in 0..primaries {
            // Redis 6.2 lacks ADDSLOTSRANGE.
            let mut args = vec!["CLUSTER".to_owned(), "ADDSLOTS".to_owned()];
            args.extend(cluster.share(primary).map(|slot| slot.to_string()));
            cluster.nodes[primary].ask_ok(&args)?;
        }
        for node in 1..cluster.nodes.len() {
            cluster.introduce(node)?;
        }
        cluster.wait_until_acquainted()?;
        for replica in primaries..cluster.nodes.len() {
            cluster.replicate(replica, replica % primaries)?;
        }
        cluster.wait_until_whole(FORM_LIMIT)?;
        // The check below skips a node that has ended.
        check_running(&cluster.nodes)?;
        Ok(cluster)
    }

    /// All nodes, killed ones as well.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// One node, to query, kill or freeze it.
    pub fn node(&self, node: usize) -> &Node {
        &self.nodes[node]
    }

    /// One node, to restart it. It stays the same node, without its keys.
    pub fn node_mut(&mut self, node: usize) -> &mut Node {
        &mut self.nodes[node]
    }

    /// The id of a node.
    pub fn id(&self, node: usize) -> &str {
        &self.ids[node]
    }

    /// Where they listen.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        super::addresses(&self.nodes)
    }

    /// The first slots of a primary.
    pub fn share(&self, primary: usize) -> RangeInclusive<u16> {
        let first =
            |primary: usize| (usize::from(SLOTS) * primary / self.settings.primaries) as u16;
        first(primary)..=first(primary + 1) - 1
    }

    /// How a node sees all nodes.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn seen_by(&self, node: usize) -> io::Result<Vec<Seen>> {
        let lines = text(&self.nodes[node].ask_ok(&["CLUSTER", "NODES"])?)?;
        let read =
            |line| Seen::read(line).ok_or_else(|| io::Error::other(format!("no node: {line}")));
        lines.lines().map(read).collect()
    }

    /// The owner of a slot: of the nodes that answer and claim it, the one with the latest epoch.
    ///
    /// # Errors
    /// When no node claims it, or a node does not answer.
    pub fn owner(&self, slot: u16) -> io::Result<usize> {
        let mut latest = None;
        for node in self.answering() {
            let seen = self.seen_by(node)?;
            let own = seen.iter().find(|seen| seen.is("myself"));
            if let Some(own) = own.filter(|own| own.has(slot)) {
                latest = latest.max(Some((own.epoch, node)));
            }
        }
        let unowned = || io::Error::other(format!("slot {slot} has no owner"));
        latest.map(|(_, node)| node).ok_or_else(unowned)
    }

    /// The replicas of a node as it sees them, in any state.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn replicas(&self, primary: usize) -> io::Result<Vec<usize>> {
        let seen = self.seen_by(primary)?;
        let own = seen
            .iter()
            .filter(|seen| seen.primary.as_deref() == Some(self.id(primary)));
        Ok(own
            .filter_map(|seen| self.ids.iter().position(|id| *id == seen.id))
            .collect())
    }

    /// Adds a node without slots that all others know. Returns its index.
    ///
    /// # Errors
    /// When it does not start, or does not join.
    pub fn add_node(&mut self) -> io::Result<usize> {
        let node = self.nodes.len();
        self.start_node()?;
        self.introduce(node)?;
        self.wait_until_acquainted()?;
        self.wait_until_whole(FORM_LIMIT)?;
        check_running(&self.nodes[node..])?;
        Ok(node)
    }

    /// Makes an empty node a replica. [`TestCluster::wait_until_whole`] waits until it has the
    /// keys.
    ///
    /// # Errors
    /// When the node refuses.
    pub fn replicate(&self, replica: usize, primary: usize) -> io::Result<()> {
        let args = ["CLUSTER", "REPLICATE", self.id(primary)];
        self.nodes[replica].ask_ok(&args).map(drop)
    }

    /// Begins a failover (CLUSTER FAILOVER) from a running primary to this replica.
    /// [`TestCluster::wait_for_other_owner`] waits for its end.
    ///
    /// # Errors
    /// When the replica refuses.
    pub fn begin_failover(&self, replica: usize) -> io::Result<()> {
        self.nodes[replica]
            .ask_ok(&["CLUSTER", "FAILOVER"])
            .map(drop)
    }

    /// Moves slots with their keys between two primaries. Returns when all answering nodes agree. A
    /// slot takes a few milliseconds. From Redis 7.0 on, a node without slots becomes a replica of
    /// the node that took its last one.
    ///
    /// # Errors
    /// When a node refuses, or the nodes do not agree.
    pub fn move_slots(
        &self,
        slots: impl IntoIterator<Item = u16>,
        from: usize,
        to: usize,
    ) -> io::Result<()> {
        let mut last = None;
        let mut ends = self.ends(from, to)?;
        for slot in slots {
            self.begin_on(&mut ends, slot, from, to)?;
            self.keys_on(&mut ends, slot, to, usize::MAX)?;
            self.end_on(&mut ends, slot, to)?;
            last = Some(slot);
        }
        match last {
            None => Ok(()),
            Some(last) => self.wait_for_owner(last, to),
        }
    }

    /// Moves slots with their keys at once (CLUSTER MIGRATESLOTS). Returns when all answering nodes
    /// agree. `false`: these nodes lack the command, which came with Valkey 9.0.
    ///
    /// # Errors
    /// When a node refuses or gives up, or the nodes do not agree.
    pub fn hand_over(
        &self,
        slots: RangeInclusive<u16>,
        from: usize,
        to: usize,
    ) -> io::Result<bool> {
        let mut giver = self.nodes[from].connect()?;
        if let Reply::Error(_) = giver.ask(&["CLUSTER", "GETSLOTMIGRATIONS"])? {
            return Ok(false);
        }
        let (first, last) = (slots.start().to_string(), slots.end().to_string());
        let range = ["SLOTSRANGE", &first, &last, "NODE", self.id(to)];
        giver.ask_ok(&[&["CLUSTER", "MIGRATESLOTS"], &range[..]].concat())?;
        wait_until(FORM_LIMIT, || {
            let said = giver.ask_ok(&["CLUSTER", "GETSLOTMIGRATIONS"]);
            let Reply::Array(all) = said.map_err(|error| error.to_string())? else {
                return Err("CLUSTER GETSLOTMIGRATIONS gives no list".to_owned());
            };
            let is_over = |one: &Reply| {
                let state = one.get("state").and_then(Reply::text);
                state == Some(b"success")
            };
            match all.iter().find(|one| !is_over(one)) {
                Some(one) => Err(format!("it is not handed over: {one:?}")),
                None => Ok(()),
            }
        })?;
        self.wait_for_owner(*slots.end(), to).map(|()| true)
    }

    /// The first of three steps of [`TestCluster::move_slots`]: from now on nodes may reply ASK and
    /// TRYAGAIN.
    ///
    /// # Errors
    /// When a node refuses.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) -> io::Result<()> {
        self.begin_on(&mut self.ends(from, to)?, slot, from, to)
    }

    /// The second step: moves some keys of the slot. Returns how many it moved.
    ///
    /// # Errors
    /// When a node refuses.
    pub fn move_keys(&self, slot: u16, from: usize, to: usize, max: usize) -> io::Result<usize> {
        self.keys_on(&mut self.ends(from, to)?, slot, to, max)
    }

    /// The third step, when no key is left: tells the primaries, and returns when all answering
    /// nodes agree.
    ///
    /// # Errors
    /// When a node refuses, or the nodes do not agree.
    pub fn end_move(&self, slot: u16, from: usize, to: usize) -> io::Result<()> {
        self.end_on(&mut self.ends(from, to)?, slot, to)?;
        self.wait_for_owner(slot, to)
    }

    /// Returns when all answering nodes report a healthy Cluster, agree on slots and replicas, and
    /// each replica among them has its primary's data.
    ///
    /// # Errors
    /// When that takes too long. The text names the missing condition.
    pub fn wait_until_whole(&self, limit: Duration) -> io::Result<()> {
        wait_until(limit, || self.check_whole())
    }

    /// As [`TestCluster::wait_until_whole`], until the owner of the slot is another node than this
    /// one: for the end of a failover. Returns the new owner.
    ///
    /// # Errors
    /// When that takes too long. The text names the missing condition.
    pub fn wait_for_other_owner(
        &self,
        slot: u16,
        than: usize,
        limit: Duration,
    ) -> io::Result<usize> {
        wait_until(limit, || {
            let owner = self.owner(slot).map_err(|error| error.to_string())?;
            if owner == than {
                return Err(format!("slot {slot} is still node {than}'s"));
            }
            self.check_whole().map(|()| owner)
        })
    }

    /// The nodes that can answer.
    fn answering(&self) -> Vec<usize> {
        let nodes = 0..self.nodes.len();
        nodes
            .filter(|&node| self.nodes[node].is_answering())
            .collect()
    }

    fn start_node(&mut self) -> io::Result<()> {
        let timeout = self.settings.node_timeout.as_millis().to_string();
        let mut args = vec![
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            &timeout,
        ];
        args.extend(REPLICATION);
        let password = self.settings.password.as_deref();
        if let Some(password) = password {
            args.extend(["--requirepass", password, "--masterauth", password]);
        }
        args.extend(self.settings.args.iter().map(String::as_str));
        let tls = self
            .settings
            .tls
            .as_ref()
            .map(TestTls::listen)
            .transpose()?;
        if let Some((_, own)) = &tls {
            args.extend(["--tls-cluster", "yes"]);
            args.extend(own.iter().map(String::as_str));
        }
        let server = match tls {
            Some(_) => ServerProcess::start_with_tls_bus(&self.binary, &args)?,
            None => ServerProcess::start_with_bus(&self.binary, &args)?,
        };
        let node = Node {
            tls_port: tls.map(|(port, _)| port),
            ..Node::new(server, password)
        };
        self.ids.push(text(&node.ask_ok(&["CLUSTER", "MYID"])?)?);
        self.nodes.push(node);
        Ok(())
    }

    /// Introduces a node to all nodes before it. By themselves the nodes learn of one node a
    /// second.
    fn introduce(&self, node: usize) -> io::Result<()> {
        for known in self.answering().into_iter().filter(|&known| known < node) {
            let address = self.nodes[known].address();
            let (ip, port) = (address.ip().to_string(), address.port().to_string());
            self.nodes[node].ask_ok(&["CLUSTER", "MEET", &ip, &port])?;
        }
        Ok(())
    }

    /// Returns when every answering node knows every other one, so that each can be named to each.
    fn wait_until_acquainted(&self) -> io::Result<()> {
        wait_until(FORM_LIMIT, || {
            for node in self.answering() {
                self.check_acquainted(node)?;
            }
            Ok(())
        })
    }

    /// Checks that a node knows all answering nodes and sees no fault in them.
    fn check_acquainted(&self, node: usize) -> Result<Vec<Seen>, String> {
        let mut seen = self.seen_by(node).map_err(|error| error.to_string())?;
        let own = self.nodes[node].address();
        // An ended node takes no part.
        let answering = self.answering();
        seen.retain(|seen| answering.iter().any(|&node| seen.id == self.ids[node]));
        for &other in &answering {
            let address = self.nodes[other].address().to_string();
            let Some(seen) = seen.iter().find(|seen| seen.id == self.ids[other]) else {
                return Err(format!("{own} does not know {address}"));
            };
            let is_bad = ["handshake", "noaddr", "fail?", "fail"]
                .iter()
                .any(|flag| seen.is(flag));
            if is_bad || seen.address != address || !seen.is_connected {
                return Err(format!("{own} sees {address} as {seen:?}"));
            }
        }
        Ok(seen)
    }

    fn check_whole(&self) -> Result<(), String> {
        let mut agreed = None;
        for node in self.answering() {
            let address = self.nodes[node].address();
            let info = self.nodes[node].ask_ok(&["CLUSTER", "INFO"]);
            let info = info
                .and_then(|info| text(&info))
                .map_err(|error| error.to_string())?;
            let state = super::field_of(&info, "cluster_state").unwrap_or_default();
            if state != "ok" {
                return Err(format!("{address} says cluster_state:{state}"));
            }
            let seen = self.check_acquainted(node)?;
            let own = seen.iter().find(|seen| seen.is("myself"));
            let followed = own.and_then(|own| own.primary.clone());
            let roles = seen
                .into_iter()
                .map(|seen| (seen.id, (seen.primary, seen.slots)));
            let roles: BTreeMap<_, _> = roles.collect();
            if *agreed.get_or_insert_with(|| roles.clone()) != roles {
                return Err(format!("{address} does not agree with another: {roles:?}"));
            }
            if let Some(followed) = followed {
                let primary = self.ids.iter().position(|id| *id == followed);
                let primary = primary.ok_or_else(|| format!("{address} follows a stranger"))?;
                check_replica(&self.nodes[node], self.nodes[primary].address())?;
            }
        }
        // Without any node, nothing has been agreed.
        agreed.map(drop).ok_or_else(|| "no node answers".to_owned())
    }

    /// Returns when all answering nodes name this owner of the slot, and know its claim as it does
    /// itself.
    ///
    /// A node that was only told of the new owner takes the slot back when the old owner's last
    /// messages arrive: their epoch is later than the one it knows of the new owner. A node that
    /// takes a slot without knowing the former owner's epoch claims it with the same epoch, and
    /// then the nodes may disagree for ever.
    fn wait_for_owner(&self, slot: u16, owner: usize) -> io::Result<()> {
        wait_until(FORM_LIMIT, || {
            let id = self.id(owner);
            let by_itself = self.seen_by(owner).map_err(|error| error.to_string())?;
            let own = by_itself.iter().find(|seen| seen.id == id);
            let own = own.ok_or_else(|| format!("{id} does not know itself"))?;
            for node in self.answering() {
                let seen = self.seen_by(node).map_err(|error| error.to_string())?;
                let has = |seen: &Seen| seen.id == id && seen.has(slot) && seen.epoch == own.epoch;
                if !seen.iter().any(has) {
                    let address = self.nodes[node].address();
                    return Err(format!(
                        "{address} does not see that slot {slot} has moved to {}, epoch {}",
                        own.address, own.epoch
                    ));
                }
            }
            Ok(())
        })
    }

    /// Connections to both ends of a migration and to the other primaries.
    fn ends(&self, from: usize, to: usize) -> io::Result<Ends> {
        let mut others = Vec::new();
        for seen in self.seen_by(to)?.iter().filter(|seen| seen.is("master")) {
            let node = self.ids.iter().position(|id| *id == seen.id);
            let node = node.filter(|&node| node != from && node != to);
            if let Some(node) = node.filter(|&node| self.nodes[node].is_answering()) {
                others.push(self.nodes[node].connect()?);
            }
        }
        Ok(Ends {
            from: self.nodes[from].connect()?,
            to: self.nodes[to].connect()?,
            others,
        })
    }

    fn begin_on(&self, ends: &mut Ends, slot: u16, from: usize, to: usize) -> io::Result<()> {
        let slot = slot.to_string();
        // The importing node comes first: it must accept a client that gets ASK.
        let args = ["CLUSTER", "SETSLOT", &slot, "IMPORTING", self.id(from)];
        ends.to.ask_ok(&args)?;
        let args = ["CLUSTER", "SETSLOT", &slot, "MIGRATING", self.id(to)];
        ends.from.ask_ok(&args)?;
        Ok(())
    }

    fn keys_on(&self, ends: &mut Ends, slot: u16, to: usize, max: usize) -> io::Result<usize> {
        // With TLS on the bus, MIGRATE speaks TLS as well.
        let node = &self.nodes[to];
        let address = node.tls_address().unwrap_or(node.address());
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        let mut moved = 0;
        let mut before = Vec::new();
        while moved < max {
            let count = KEYS_AT_ONCE.min(max - moved).to_string();
            let args = ["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), &count];
            let Reply::Array(keys) = ends.from.ask_ok(&args)? else {
                return Err(io::Error::other("CLUSTER GETKEYSINSLOT gives no keys"));
            };
            if keys.is_empty() {
                break;
            }
            if keys == before {
                return Err(io::Error::other(format!(
                    "slot {slot}: its keys stay: {keys:?}"
                )));
            }
            let limit = MIGRATE_LIMIT_MS.to_string();
            let mut args: Vec<&[u8]> = Vec::new();
            for word in ["MIGRATE", &ip, &port, "", "0", &limit] {
                args.push(word.as_bytes());
            }
            if let Some(password) = &self.settings.password {
                args.extend([b"AUTH", password.as_bytes()]);
            }
            args.push(b"KEYS");
            args.extend(keys.iter().filter_map(Reply::text));
            ends.from.ask_ok(&args)?;
            moved += keys.len();
            before = keys;
        }
        Ok(moved)
    }

    fn end_on(&self, ends: &mut Ends, slot: u16, to: usize) -> io::Result<()> {
        let slot = slot.to_string();
        let args = ["CLUSTER", "SETSLOT", &slot, "NODE", self.id(to)];
        // The importing node comes first, as its claim counts. If the exporting node came first and
        // both failed then, the slot would have no owner.
        ends.to.ask_ok(&args)?;
        for primary in std::iter::once(&mut ends.from).chain(&mut ends.others) {
            // It may know already. If that was its last slot, it may be a replica now and refuse.
            // The agreement of all nodes is checked afterwards.
            primary.ask(&args)?;
        }
        Ok(())
    }
}

/// The nodes to tell of a migration.
struct Ends {
    from: RespClient,
    to: RespClient,
    others: Vec<RespClient>,
}

/// Few enough for one request.
const KEYS_AT_ONCE: usize = 100;
const MIGRATE_LIMIT_MS: u64 = 5_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_any_version_is_read_without_the_slots_on_their_way() {
        let line = "07c3 127.0.0.1:30004@31004,name,shard-id=69bc myself,master - 0 1426238317239 4 connected \
                    0-99 101 [100->-67ed] [200-<-292f]";
        let seen = Seen::read(line).unwrap();
        assert_eq!(seen.address, "127.0.0.1:30004");
        assert_eq!(
            (seen.primary.as_deref(), seen.epoch, seen.is_connected),
            (None, 4, true)
        );
        assert_eq!(
            [99, 100, 101, 200].map(|slot| seen.has(slot)),
            [true, false, true, false]
        );
        assert!(seen.is("myself") && seen.is("master") && !seen.is("slave"));

        let line = "292f :0@0 slave,fail,noaddr 67ed 1 2 0 disconnected";
        let seen = Seen::read(line).unwrap();
        assert_eq!(
            (seen.primary.as_deref(), seen.is_connected),
            (Some("67ed"), false)
        );
        assert_eq!(Seen::read("292f :0@0 slave,noaddr 67ed 1 2 0"), None);
        assert_eq!(
            Seen::read("292f :0@0 master - 1 2 0 connected 0-65536"),
            None
        );
    }

    #[test]
    fn the_shares_of_the_primaries_are_all_slots_and_none_twice() {
        for primaries in 1..=7 {
            let cluster = TestCluster {
                nodes: Vec::new(),
                ids: Vec::new(),
                binary: PathBuf::new(),
                settings: ClusterSettings {
                    primaries,
                    ..ClusterSettings::default()
                },
            };
            let slots = (0..primaries).flat_map(|primary| cluster.share(primary));
            assert!(slots.eq(0..SLOTS), "{primaries}");
        }
    }
}

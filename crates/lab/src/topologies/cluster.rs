//! A Cluster of our own.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use respool_protocol::slot::SLOTS;
use respool_protocol::value::Value;

use super::{
    Connection, FORM_LIMIT, Node, REPLICATION, check_replica, check_running, text, wait_until,
};
use crate::servers::Server;

/// What a [`Cluster`] is made of.
#[derive(Clone, Debug)]
pub struct ClusterSettings {
    /// Nodes with slots, each with an equal share.
    pub primaries: usize,
    /// Replicas of each.
    pub replicas: usize,
    /// After so long a silence the others begin to think that a node has failed.
    pub node_timeout: Duration,
    /// What clients, and nodes among each other, must say.
    pub password: Option<String>,
    /// More arguments for every node, such as `--cluster-require-full-coverage`, `no`.
    pub args: Vec<String>,
}

impl Default for ClusterSettings {
    /// Three primaries with a replica each, that soon miss each other.
    fn default() -> ClusterSettings {
        ClusterSettings {
            primaries: 3,
            replicas: 1,
            node_timeout: Duration::from_millis(1000),
            password: None,
            args: Vec::new(),
        }
    }
}

/// Nodes of one binary that have formed a Cluster. First the primaries, in the order of their slots; then a first
/// replica of each in the same order, then a second of each. That is how they begin: who is what later, they decide.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
    /// Names of the nodes in the Cluster.
    ids: Vec<String>,
    binary: PathBuf,
    settings: ClusterSettings,
}

/// What one node thinks of one node: a line of CLUSTER NODES.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its name in the Cluster.
    pub id: String,
    /// `ADDRESS:PORT`.
    pub address: String,
    /// `master`, `slave`, `myself`, `fail?`, `fail`, `handshake`, …
    pub flags: Vec<String>,
    /// Whose replica it is.
    pub primary: Option<String>,
    /// By which of two claims the later one is told.
    pub epoch: u64,
    /// Whether the bus reaches it.
    pub is_connected: bool,
    /// Its own slots, without those that are on their way.
    pub slots: Vec<RangeInclusive<u16>>,
}

impl Seen {
    fn is(&self, flag: &str) -> bool {
        self.flags.iter().any(|own| own == flag)
    }

    /// Whether the slot is its.
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
        // In brackets: a slot that comes or goes.
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

impl Cluster {
    /// Starts the nodes, makes them a Cluster, and returns when every one says that it is whole and every replica has
    /// what its primary has.
    ///
    /// # Errors
    /// When a node does not start, or they do not come together.
    pub fn start(binary: &Path, settings: ClusterSettings) -> io::Result<Cluster> {
        let (primaries, replicas) = (settings.primaries, settings.replicas);
        let mut cluster = Cluster {
            nodes: Vec::new(),
            ids: Vec::new(),
            binary: binary.to_owned(),
            settings,
        };
        for node in 0..primaries * (1 + replicas) {
            cluster.start_node()?;
            // Equal epochs would have to be told apart first, one after the other.
            cluster.nodes[node].order(&["CLUSTER", "SET-CONFIG-EPOCH", &(node + 1).to_string()])?;
        }
        for primary in 0..primaries {
            // Not ADDSLOTSRANGE, which Redis 6.2 has not.
            let mut args = vec!["CLUSTER".to_owned(), "ADDSLOTS".to_owned()];
            args.extend(cluster.share(primary).map(|slot| slot.to_string()));
            cluster.nodes[primary].order(&args)?;
        }
        for node in 1..cluster.nodes.len() {
            cluster.introduce(node)?;
        }
        cluster.wait_until_acquainted()?;
        for replica in primaries..cluster.nodes.len() {
            cluster.replicate(replica, replica % primaries)?;
        }
        cluster.wait_until_whole(FORM_LIMIT)?;
        // One that is gone is not asked whether all is well.
        check_running(&cluster.nodes)?;
        Ok(cluster)
    }

    /// All nodes, also those that have been killed.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// One node: to ask it, kill it, freeze it.
    pub fn node(&self, node: usize) -> &Node {
        &self.nodes[node]
    }

    /// One node, to restart it. It is the node that it was, without its keys.
    pub fn node_mut(&mut self, node: usize) -> &mut Node {
        &mut self.nodes[node]
    }

    /// The name of a node in the Cluster.
    pub fn id(&self, node: usize) -> &str {
        &self.ids[node]
    }

    /// Where they listen.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        super::addresses(&self.nodes)
    }

    /// The slots that a primary begins with.
    pub fn share(&self, primary: usize) -> RangeInclusive<u16> {
        let first =
            |primary: usize| (usize::from(SLOTS) * primary / self.settings.primaries) as u16;
        first(primary)..=first(primary + 1) - 1
    }

    /// What a node thinks of all nodes.
    ///
    /// # Errors
    /// When it does not say.
    pub fn seen_by(&self, node: usize) -> io::Result<Vec<Seen>> {
        let lines = text(&self.nodes[node].order(&["CLUSTER", "NODES"])?)?;
        let read =
            |line| Seen::read(line).ok_or_else(|| io::Error::other(format!("no node: {line}")));
        lines.lines().map(read).collect()
    }

    /// Who has a slot: of those that answer and claim it, the one with the latest claim.
    ///
    /// # Errors
    /// When nobody does, or a node does not answer.
    pub fn owner(&self, slot: u16) -> io::Result<usize> {
        let mut latest = None;
        for node in self.answering() {
            let seen = self.seen_by(node)?;
            let own = seen.iter().find(|seen| seen.is("myself"));
            if let Some(own) = own.filter(|own| own.has(slot)) {
                latest = latest.max(Some((own.epoch, node)));
            }
        }
        let nobody = || io::Error::other(format!("slot {slot} is nobody's"));
        latest.map(|(_, node)| node).ok_or_else(nobody)
    }

    /// The replicas of a node, as it sees them itself, in any state.
    ///
    /// # Errors
    /// When it does not say.
    pub fn replicas(&self, primary: usize) -> io::Result<Vec<usize>> {
        let seen = self.seen_by(primary)?;
        let own = seen
            .iter()
            .filter(|seen| seen.primary.as_deref() == Some(self.id(primary)));
        Ok(own
            .filter_map(|seen| self.ids.iter().position(|id| *id == seen.id))
            .collect())
    }

    /// Another node, which all know and which has no slots. Returns its number.
    ///
    /// # Errors
    /// When it does not start, or they do not come together.
    pub fn add_node(&mut self) -> io::Result<usize> {
        let node = self.nodes.len();
        self.start_node()?;
        self.introduce(node)?;
        self.wait_until_acquainted()?;
        self.wait_until_whole(FORM_LIMIT)?;
        check_running(&self.nodes[node..])?;
        Ok(node)
    }

    /// Makes an empty node a replica. [`Cluster::wait_until_whole`] waits until it has the keys.
    ///
    /// # Errors
    /// When it refuses.
    pub fn replicate(&self, replica: usize, primary: usize) -> io::Result<()> {
        let args = ["CLUSTER", "REPLICATE", self.id(primary)];
        self.nodes[replica].order(&args).map(drop)
    }

    /// Begins a failover: the replica asks its primary, which runs, for its place. That it has got it,
    /// [`Cluster::wait_for_other_owner`] says.
    ///
    /// # Errors
    /// When it refuses.
    pub fn begin_failover(&self, replica: usize) -> io::Result<()> {
        self.nodes[replica]
            .order(&["CLUSTER", "FAILOVER"])
            .map(drop)
    }

    /// Moves slots with their keys from one primary to another, and returns when all nodes that answer say so. A slot takes
    /// a few milliseconds. Who has no slot left becomes a replica of who took the last one, from Redis 7.0 on.
    ///
    /// # Errors
    /// When a node refuses, or they do not come to agree.
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

    /// Has a primary hand slots with their keys over to another one, all at once (CLUSTER MIGRATESLOTS), and returns when all nodes
    /// that answer say so. `false`: these nodes do not know how, as none before Valkey 9.0 does.
    ///
    /// # Errors
    /// When they know, and a node refuses, gives up, or they do not come to agree.
    pub fn hand_over(
        &self,
        slots: RangeInclusive<u16>,
        from: usize,
        to: usize,
    ) -> io::Result<bool> {
        let mut giver = self.nodes[from].connect()?;
        if let Value::Error(_) = giver.ask(&["CLUSTER", "GETSLOTMIGRATIONS"])? {
            return Ok(false);
        }
        let (first, last) = (slots.start().to_string(), slots.end().to_string());
        let range = ["SLOTSRANGE", &first, &last, "NODE", self.id(to)];
        giver.order(&[&["CLUSTER", "MIGRATESLOTS"], &range[..]].concat())?;
        wait_until(FORM_LIMIT, || {
            let said = giver.order(&["CLUSTER", "GETSLOTMIGRATIONS"]);
            let Value::List(all) = said.map_err(|error| error.to_string())? else {
                return Err("CLUSTER GETSLOTMIGRATIONS gives no list".to_owned());
            };
            let is_over = |one: &Value| {
                let state = one.field("state").and_then(Value::text);
                state == Some(b"success")
            };
            match all.iter().find(|one| !is_over(one)) {
                Some(one) => Err(format!("it is not handed over: {one:?}")),
                None => Ok(()),
            }
        })?;
        self.wait_for_owner(*slots.end(), to).map(|()| true)
    }

    /// The first third of [`Cluster::move_slots`]: from now on there may be ASK and TRYAGAIN.
    ///
    /// # Errors
    /// When one of them refuses.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) -> io::Result<()> {
        self.begin_on(&mut self.ends(from, to)?, slot, from, to)
    }

    /// The second third: moves keys of the slot, so many at most. Returns how many there were.
    ///
    /// # Errors
    /// When one of them refuses.
    pub fn move_keys(&self, slot: u16, from: usize, to: usize, max: usize) -> io::Result<usize> {
        self.keys_on(&mut self.ends(from, to)?, slot, to, max)
    }

    /// The last third, when no key is left: tells the primaries, and returns when all nodes that answer say so.
    ///
    /// # Errors
    /// When one of them refuses, or they do not come to agree.
    pub fn end_move(&self, slot: u16, from: usize, to: usize) -> io::Result<()> {
        self.end_on(&mut self.ends(from, to)?, slot, to)?;
        self.wait_for_owner(slot, to)
    }

    /// Returns when the nodes that answer all say that the Cluster is fine, agree on who has which slots and who is
    /// whose replica, and every replica among them has what its primary has.
    ///
    /// # Errors
    /// When it does not come to that in time; the text says what was missing.
    pub fn wait_until_whole(&self, limit: Duration) -> io::Result<()> {
        wait_until(limit, || self.check_whole())
    }

    /// As [`Cluster::wait_until_whole`], until another node than this one has the slot: for what follows a failover or
    /// the end of a primary. Returns which.
    ///
    /// # Errors
    /// When it does not come to that in time; the text says what was missing.
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

    /// The nodes that there is sense in asking.
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
        let node = Node::new(Server::start_with_bus(&self.binary, &args)?, password);
        self.ids.push(text(&node.order(&["CLUSTER", "MYID"])?)?);
        self.nodes.push(node);
        Ok(())
    }

    /// Makes a node known to all before it. They would tell each other, but one node a second.
    fn introduce(&self, node: usize) -> io::Result<()> {
        for known in self.answering().into_iter().filter(|&known| known < node) {
            let address = self.nodes[known].address();
            let (ip, port) = (address.ip().to_string(), address.port().to_string());
            self.nodes[node].order(&["CLUSTER", "MEET", &ip, &port])?;
        }
        Ok(())
    }

    /// Returns when every node that answers knows every one, so that each can be named to each.
    fn wait_until_acquainted(&self) -> io::Result<()> {
        wait_until(FORM_LIMIT, || {
            for node in self.answering() {
                self.check_acquainted(node)?;
            }
            Ok(())
        })
    }

    /// That a node knows all that answer, and nothing bad of them.
    fn check_acquainted(&self, node: usize) -> Result<Vec<Seen>, String> {
        let mut seen = self.seen_by(node).map_err(|error| error.to_string())?;
        let own = self.nodes[node].address();
        // One that has gone takes no part.
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
            let info = self.nodes[node].order(&["CLUSTER", "INFO"]);
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
        // Of nobody one may say anything.
        agreed.map(drop).ok_or_else(|| "no node answers".to_owned())
    }

    /// Returns when all nodes that answer say that this one has the slot, and know of its claim what it says itself.
    ///
    /// Who only was told the slot's new owner takes it back as soon as the old one's last words arrive, which are of a
    /// later epoch than what it knows of the new one. And who takes a slot without knowing the epoch of the one who
    /// took it before claims it with the same: of that the nodes may disagree for ever.
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

    /// Connections to the two that a slot moves between, and to the other primaries.
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
        // The one who takes first: a client that is sent on must be let in.
        let args = ["CLUSTER", "SETSLOT", &slot, "IMPORTING", self.id(from)];
        ends.to.order(&args)?;
        let args = ["CLUSTER", "SETSLOT", &slot, "MIGRATING", self.id(to)];
        ends.from.order(&args)?;
        Ok(())
    }

    fn keys_on(&self, ends: &mut Ends, slot: u16, to: usize, max: usize) -> io::Result<usize> {
        let address = self.nodes[to].address();
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        let mut moved = 0;
        let mut before = Vec::new();
        while moved < max {
            let count = KEYS_AT_ONCE.min(max - moved).to_string();
            let args = ["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), &count];
            let Value::List(keys) = ends.from.order(&args)? else {
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
            args.extend(keys.iter().filter_map(Value::text));
            ends.from.order(&args)?;
            moved += keys.len();
            before = keys;
        }
        Ok(moved)
    }

    fn end_on(&self, ends: &mut Ends, slot: u16, to: usize) -> io::Result<()> {
        let slot = slot.to_string();
        let args = ["CLUSTER", "SETSLOT", &slot, "NODE", self.id(to)];
        // The one who takes first: it makes the claim that counts. If the one who gives were first and then both
        // were gone, the slot would be nobody's.
        ends.to.order(&args)?;
        for primary in std::iter::once(&mut ends.from).chain(&mut ends.others) {
            // It may know already, and, if it was its last slot, have become a replica, which refuses. Whether all
            // know in the end is looked at afterwards.
            primary.ask(&args)?;
        }
        Ok(())
    }
}

/// Who has to be told when a slot moves.
struct Ends {
    from: Connection,
    to: Connection,
    others: Vec<Connection>,
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
            let cluster = Cluster {
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

//! Trouble with several servers while clients write and read, and the data that new primaries take
//! over.
//!
//! A primary that is killed or freezes may have acknowledged writes that its replica never got:
//! Redis replicates after its reply. So the replica is read in between, while no server answers for
//! those keys. The history is checked in two parts: up to that moment, and from the replica's data
//! on.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use respool_protocol::slot::hash_slot;
use respool_testkit::client::Reply;
use respool_testkit::random::Random;
use respool_testkit::scene::{Scene, SceneSettings, TopologyKind};
use respool_testkit::time::clock_ns;
use respool_testkit::topologies::{Node, Sentinels, TestCluster};

use super::{HistorySettings, Inherited, UNWRITTEN, register_key};

/// The trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing for two seconds.
    Nothing,
    /// Connections to the servers are cut.
    Cuts,
    /// Slots with keys move between primaries, in every way that these servers have.
    Moves,
    /// A node joins, gets slots, gives them back and leaves.
    Members,
    /// A replica takes over from its running primary.
    Command,
    /// All servers restart, one after the other; a primary, when its replica has taken over.
    Restarts,
    /// A primary gets SIGKILL.
    Kill,
    /// A primary gets SIGSTOP, and SIGCONT when its replica has taken over.
    Freeze,
}

impl Trouble {
    /// All kinds.
    pub const ALL: [Trouble; 8] = [
        Trouble::Nothing,
        Trouble::Cuts,
        Trouble::Moves,
        Trouble::Members,
        Trouble::Command,
        Trouble::Restarts,
        Trouble::Kill,
        Trouble::Freeze,
    ];

    /// The word for options.
    pub fn name(self) -> &'static str {
        match self {
            Trouble::Nothing => "nothing",
            Trouble::Cuts => "cuts",
            Trouble::Moves => "moves",
            Trouble::Members => "members",
            Trouble::Command => "command",
            Trouble::Restarts => "restarts",
            Trouble::Kill => "kill",
            Trouble::Freeze => "freeze",
        }
    }

    /// Whether clients may get errors for lost requests.
    pub fn may_fail(self) -> bool {
        matches!(self, Trouble::Cuts | Trouble::Kill | Trouble::Freeze)
    }

    /// Whether such servers survive it without a loss, apart from reads in between. After
    /// SENTINEL FAILOVER the old primary acknowledges writes while the new one takes them already.
    pub fn suits(self, kind: TopologyKind) -> bool {
        match self {
            Trouble::Nothing | Trouble::Cuts => true,
            Trouble::Kill | Trouble::Freeze => kind != TopologyKind::Sharded,
            _ => kind == TopologyKind::Cluster,
        }
    }

    /// Causes it, and returns when it is over.
    ///
    /// # Errors
    /// When a server refuses, or the servers do not recover.
    pub fn happen(
        self,
        settings: &HistorySettings,
        scene: &mut Scene,
    ) -> io::Result<Vec<Inherited>> {
        match (self, scene) {
            (Trouble::Nothing, _) => thread::sleep(Duration::from_secs(2)),
            (Trouble::Cuts, scene) => cut(scene)?,
            (Trouble::Moves, Scene::Cluster(cluster)) => move_slots(settings, cluster)?,
            (Trouble::Members, Scene::Cluster(cluster)) => join_and_leave(settings, cluster)?,
            (Trouble::Command, Scene::Cluster(cluster)) => {
                for primary in 0..2 {
                    fail_over(cluster, primary, primary + PRIMARIES)?;
                }
            }
            (Trouble::Restarts, Scene::Cluster(cluster)) => restart_all(cluster)?,
            (Trouble::Kill | Trouble::Freeze, Scene::Cluster(cluster)) => {
                return self.end_primary(settings, cluster);
            }
            (Trouble::Kill | Trouble::Freeze, Scene::Sentinel(sentinels)) => {
                return self.end_watched(settings, sentinels);
            }
            (trouble, _) => {
                let text = format!("{} does not happen to such servers", trouble.name());
                return Err(io::Error::other(text));
            }
        }
        Ok(Vec::new())
    }

    fn end_primary(
        self,
        settings: &HistorySettings,
        cluster: &mut TestCluster,
    ) -> io::Result<Vec<Inherited>> {
        self.end(cluster.node(0));
        let slots = cluster.share(0);
        let is_its = |key: &usize| slots.contains(&hash_slot(&register_key(0, *key)));
        let inherited = inherit(
            cluster.node(PRIMARIES),
            (0..settings.keys).filter(is_its),
            true,
        )?;
        let other = cluster.wait_for_other_owner(*slots.start(), 0, LIMIT)?;
        if other != PRIMARIES {
            return Err(io::Error::other(format!("node {other} has taken over")));
        }
        self.bring_back(cluster.node_mut(0))?;
        cluster.wait_until_whole(LIMIT)?;
        Ok(vec![inherited])
    }

    fn end_watched(
        self,
        settings: &HistorySettings,
        sentinels: &mut Sentinels,
    ) -> io::Result<Vec<Inherited>> {
        self.end(sentinels.watched(0).server(0));
        let inherited = inherit(sentinels.watched(0).server(1), 0..settings.keys, false)?;
        sentinels.wait_for_other_primary(0, 0, LIMIT)?;
        self.bring_back(sentinels.watched_mut(0).server_mut(0))?;
        sentinels.wait_until_whole(LIMIT)?;
        Ok(vec![inherited])
    }

    fn end(self, primary: &Node) {
        match self {
            Trouble::Freeze => primary.stop(),
            _ => primary.kill9(),
        }
    }

    fn bring_back(self, primary: &mut Node) -> io::Result<()> {
        match self {
            Trouble::Freeze => {
                // Clients with requests at the primary may get them acknowledged when it wakes: it
                // does not know yet that it was replaced. Without respool that happens, too.
                thread::sleep(HEARD);
                primary.cont();
                Ok(())
            }
            _ => primary.restart(),
        }
    }
}

/// The servers. A Cluster serves its other slots while a primary is gone.
///
/// # Errors
/// When they do not start.
pub fn scene(kind: TopologyKind, binary: &Path) -> io::Result<Scene> {
    let settings = SceneSettings {
        kind,
        is_partial: true,
        silence: SILENCE,
    };
    Scene::start(&settings, binary)
}

/// The silence after which the others take a server for failed.
const SILENCE: Duration = Duration::from_millis(1_500);
/// Primaries of a [`Scene`]'s Cluster; the replicas follow in the same order.
const PRIMARIES: usize = 3;
/// The time in which servers recover.
const LIMIT: Duration = Duration::from_secs(30);
/// After this time all bytes of the ended server have been read, and no server has replaced it yet.
const SETTLED: Duration = Duration::from_millis(400);
// A late read of many keys still meets the replica before it takes over.
const _: () = assert!(SETTLED.as_millis() * 2 < SILENCE.as_millis());
/// respool does not replace a link at once that was lost within its first second.
const BETWEEN_CUTS: Duration = Duration::from_millis(400);
const CUTS: usize = 9;
const MOVES: usize = 16;
/// The time in which respool has refreshed its topology.
const HEARD: Duration = Duration::from_millis(1_200);

/// The data of a replica, after its primary has failed and before the replica has taken over.
fn inherit(
    replica: &Node,
    keys: impl Iterator<Item = usize>,
    is_node: bool,
) -> io::Result<Inherited> {
    thread::sleep(SETTLED);
    let mut connection = replica.connect()?;
    if is_node {
        connection.ask_ok(&["READONLY"])?;
    }
    let mut inherited = Inherited {
        at: clock_ns(),
        values: BTreeMap::new(),
    };
    for key in keys {
        let value = match connection.ask_ok(&[b"GET".as_slice(), &register_key(0, key)])? {
            Reply::Null => UNWRITTEN,
            reply => {
                let text = reply.text().and_then(|text| std::str::from_utf8(text).ok());
                let value = text.and_then(|text| text.parse().ok());
                value.ok_or_else(|| io::Error::other(format!("key {key} is {reply:?}")))?
            }
        };
        inherited.values.insert(key, value);
    }
    // It is still a replica at the end: otherwise some values may be later writes.
    match replica.info("replication", "role")?.as_str() {
        "slave" => Ok(inherited),
        role => Err(io::Error::other(format!(
            "it was read too late: it is a {role}"
        ))),
    }
}

fn cut(scene: &Scene) -> io::Result<()> {
    let kill = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
    for turn in 0..CUTS {
        let node = scene.holder(turn % scene.groups())?;
        node.ask_ok(&kill)?;
        thread::sleep(BETWEEN_CUTS);
    }
    Ok(())
}

/// Moves slots of written keys, one key at a time, so that both nodes have some of a slot's keys.
/// Where nodes can migrate a slot at once, every second slot moves so.
fn move_slots(settings: &HistorySettings, cluster: &TestCluster) -> io::Result<()> {
    let mut random = Random::new(settings.seed);
    for turn in 0..MOVES {
        let slot = hash_slot(&register_key(0, random.below(settings.keys)));
        let from = cluster.owner(slot)?;
        let to = (from + 1 + random.below(PRIMARIES - 1)) % PRIMARIES;
        if turn % 2 == 1 && cluster.hand_over(slot..=slot, from, to)? {
            continue;
        }
        cluster.begin_move(slot, from, to)?;
        thread::sleep(Duration::from_millis(random.below(30) as u64));
        while cluster.move_keys(slot, from, to, 1)? > 0 {
            thread::sleep(Duration::from_millis(random.below(30) as u64));
        }
        cluster.end_move(slot, from, to)?;
    }
    Ok(())
}

fn join_and_leave(settings: &HistorySettings, cluster: &mut TestCluster) -> io::Result<()> {
    let joined = cluster.add_node()?;
    let mut taken = Vec::new();
    for key in 0..settings.keys {
        let slot = hash_slot(&register_key(0, key));
        let from = cluster.owner(slot)?;
        if key % 2 == 0 && from != joined {
            cluster.move_slots([slot], from, joined)?;
            taken.push((slot, from));
        }
    }
    thread::sleep(HEARD);
    for (slot, from) in taken {
        cluster.move_slots([slot], joined, from)?;
    }
    thread::sleep(HEARD);
    for node in 0..joined {
        let forget = ["CLUSTER", "FORGET", cluster.id(joined)];
        // A node that has become its replica meanwhile refuses.
        cluster.node(node).ask(&forget)?;
    }
    cluster.node(joined).kill9();
    thread::sleep(HEARD);
    Ok(())
}

fn fail_over(cluster: &TestCluster, primary: usize, replica: usize) -> io::Result<()> {
    let slot = *cluster.share(primary % PRIMARIES).start();
    cluster.begin_failover(replica)?;
    match cluster.wait_for_other_owner(slot, primary, LIMIT)? {
        owner if owner == replica => Ok(()),
        owner => Err(io::Error::other(format!("node {owner} has taken over"))),
    }
}

fn restart_all(cluster: &mut TestCluster) -> io::Result<()> {
    for primary in 0..PRIMARIES {
        let replica = primary + PRIMARIES;
        cluster.node_mut(replica).restart()?;
        cluster.wait_until_whole(LIMIT)?;
        fail_over(cluster, primary, replica)?;
        thread::sleep(HEARD);
        cluster.node_mut(primary).restart()?;
        cluster.wait_until_whole(LIMIT)?;
    }
    Ok(())
}

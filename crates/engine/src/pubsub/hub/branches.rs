//! Keyspace notifications of several servers. A server sends them to its own subscribers alone, so
//! a channel or pattern that may bring some is subscribed to at every owner of keys.
//!
//! ```text
//!   sessions ──► root "__key*"  ─► line HOME     ─► first server    all that is published
//!                  │
//!                  ├─ branch    ─► line of B     ─► owner B         its notifications, and no more
//!                  └─ branch    ─► line of C     ─► owner C         the same
//! ```
//!
//! The members and claims are the root's. A branch is claimed as long as its root is. What a
//! branch brings besides notifications is dropped: the nodes of a Cluster hand on what is
//! published, and the root has it already.
//!
//! **Requests.** A session that joins or leaves a root waits on one line after the other. Each
//! server was asked for a sign of life at once, so the rule of the hub holds for each of them.
//!
//! **Owners change.** A new owner gets a branch. A branch whose server is no longer an owner is
//! *leaving*: it is heard until the branches that replace it are asked for. Until then a primary
//! that became a replica sends what its own primary tells it, and afterwards the new branch does.
//! So no notification comes twice. A few may be lost while the new owner is being asked.

use std::collections::HashMap;
use std::sync::Arc;

use super::stripped::{Begun, Whole, channel_of, is_for, name_at_server};
use super::{Channel, HOME, Hub, Kind, NEVER, Part, Wait, What};
use crate::pool::ServerId;
use crate::slots::Key;
use crate::time::Time;

/// A server that owns keys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Owner {
    pub(crate) server: ServerId,
    /// The prefix of its keys that it does not see.
    pub(crate) unseen: Arc<[u8]>,
}

/// The owners of the keys of a hub's pool, as the hub knows them.
#[derive(Debug, Default)]
pub(super) struct Owners {
    servers: Vec<Owner>,
    /// Channels and patterns that may bring notifications.
    pub(super) roots: usize,
    /// The roots of patterns by other names, which servers without their prefix know.
    aliases: HashMap<Arc<[u8]>, Key>,
    /// Roots whose branches may have to come or go, some of them more than once. They are looked at
    /// at the end of the turn, and no others.
    unsettled: Vec<Key>,
    /// The same for all roots.
    is_all_unsettled: bool,
    /// Links to new owners that wait for the branches there, and since when.
    held_links: Vec<(Key, Time)>,
}

impl Owners {
    /// Whether a server owns keys, as far as is known.
    fn has(&self, server: ServerId) -> bool {
        let mut servers = self.servers.iter();
        self.servers.is_empty() || servers.any(|owner| owner.server == server)
    }

    /// Something has changed about this root, or about one of its branches.
    pub(super) fn unsettle(&mut self, root: Key) {
        self.unsettled.push(root);
    }

    /// A root is gone.
    pub(super) fn forget(&mut self, root: Key) {
        self.roots -= 1;
        self.aliases.retain(|_, its| *its != root);
    }

    pub(super) fn holds_no_links(&self) -> bool {
        self.held_links.is_empty()
    }
}

/// Getters.
impl Hub {
    /// Whether it subscribes to anything that may bring notifications.
    pub(crate) fn has_roots(&self) -> bool {
        self.owners.roots > 0
    }

    /// Whether the owners of keys have to be looked at.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.owners.is_all_unsettled || !self.owners.unsettled.is_empty()
    }

    fn roots(&self) -> impl Iterator<Item = (Key, &Channel)> {
        let mut all = self.channels.iter();
        let is_root = |channel: &Channel| matches!(channel.part, Part::Root { .. });
        std::iter::from_fn(move || all.find(|(_, channel)| is_root(channel)))
    }

    /// Whether the members of a root get what a line brings.
    pub(super) fn root_receives(
        &self,
        root: &Channel,
        branches: &[Key],
        line: u16,
        is_event: impl FnOnce() -> bool,
    ) -> bool {
        let is_former = root.is_heard_on_former(line);
        if root.line == line || is_former {
            let server = self.lines[usize::from(line)].server;
            let sends = self.owners.has(server) || self.is_growing(branches);
            // The old home may be an owner still, and then it has a branch.
            let mut branches = branches.iter().filter_map(|its| self.channels.get(*its));
            let is_asked = |its: &Channel| its.wanted && self.server_of(its) == server;
            let is_taken_over = is_former && branches.any(is_asked);
            return sends && !is_taken_over || !is_event();
        }
        let branches_here = branches.iter().filter_map(|its| self.channels.get(*its));
        let branch = branches_here.into_iter().find(|its| its.line == line);
        let is_sent = |branch: &Channel| branch.confirmed && self.is_heard(root, branches, branch);
        branch.is_some_and(is_sent) && is_event()
    }

    /// A push of a server that sees keys without their prefix, as its receivers are to see it: with
    /// the name of their channel or pattern. `None`: it is for no session.
    pub(crate) fn with_prefix(
        &self,
        line: u16,
        (kind, name): (Kind, &[u8]),
        push: &[u8],
    ) -> Option<(Arc<[u8]>, Vec<u8>)> {
        let whole = Whole::read(kind, push, self.unseen_on(line)?)?;
        let name = self.name_for_sessions((kind, name), whole.channel())?;
        let push = whole.push(kind, &name)?;
        Some((name, push))
    }

    /// The same for the beginning of a push that is too large: the name alone. A pattern whose
    /// notification has not come as far as the end of its channel counts as matching.
    pub(crate) fn name_with_prefix(
        &self,
        line: u16,
        (kind, name): (Kind, &[u8]),
        beginning: &[u8],
    ) -> Option<Arc<[u8]>> {
        match channel_of(kind, beginning, self.unseen_on(line)?) {
            Begun::Channel(channel) => {
                let name = self.name_for_sessions((kind, name), &channel)?;
                is_for(kind, &name, &channel).then_some(name)
            }
            Begun::Unsaid => self.name_for_sessions((kind, name), name),
            Begun::Other => None,
        }
    }

    /// The prefix that the server of a line does not see.
    fn unseen_on(&self, line: u16) -> Option<&[u8]> {
        let server = self.lines[usize::from(line)].server;
        let mut owners = self.owners.servers.iter();
        let owner = owners.find(|its| its.server == server)?;
        Some(&owner.unseen)
    }

    /// The name that sessions use for a channel of a server without the prefix. `channel`: that of the notification, with the prefix.
    fn name_for_sessions(&self, (kind, name): (Kind, &[u8]), channel: &[u8]) -> Option<Arc<[u8]>> {
        let root = match kind {
            Kind::Pattern => match self.owners.aliases.get(name) {
                Some(root) => *root,
                None => self.channel(kind, name)?,
            },
            _ => self.channel(kind, channel)?,
        };
        Some(self.channels.get(root)?.name.clone())
    }

    /// Whether the server of a line sees keys without their prefix.
    pub(crate) fn strips(&self, line: u16) -> bool {
        let server = self.lines[usize::from(line)].server;
        let mut owners = self.owners.servers.iter();
        owners.any(|owner| owner.server == server && !owner.unseen.is_empty())
    }

    /// Whether what a branch brings counts: it stays, or what replaces it is not asked for yet.
    fn is_heard(&self, root: &Channel, branches: &[Key], branch: &Channel) -> bool {
        if !is_leaving(branch) {
            return true;
        }
        match self.server_of(branch) == self.server_of(root) {
            true => !root.wanted,
            false => self.is_growing(branches),
        }
    }

    /// Whether a branch that stays is not asked for yet.
    fn is_growing(&self, branches: &[Key]) -> bool {
        let mut branches = branches
            .iter()
            .filter_map(|branch| self.channels.get(*branch));
        branches.any(|its| !is_leaving(its) && !its.wanted && its.refused.is_none())
    }

    fn server_of(&self, channel: &Channel) -> ServerId {
        self.lines[usize::from(channel.line)].server
    }

    fn branches_of_root(&self, root: Key) -> &[Key] {
        match self.channels.get(root).map(|root| &root.part) {
            Some(Part::Root { branches }) => branches,
            _ => &[],
        }
    }

    /// The branches that stay, of the channels that a session wants to join.
    pub(super) fn branches_of(&self, wait: &Wait) -> impl Iterator<Item = &Channel> {
        let channels = match &wait.what {
            What::Join(channels) => &channels[..],
            What::Leave(_) => &[],
        };
        let branches = channels
            .iter()
            .flat_map(|root| self.branches_of_root(*root));
        let branches = branches.filter_map(|branch| self.channels.get(*branch));
        branches.filter(|branch| !is_leaving(branch))
    }

    /// Whether a session waits for a branch on that line.
    pub(super) fn has_branch_on(&self, line: u16, wait: &Wait) -> bool {
        self.branches_of(wait).any(|branch| branch.line == line)
    }

    /// The sessions that get what comes by a channel: a branch has those of its root.
    pub(super) fn members_by<'a>(&'a self, channel: &'a Channel) -> &'a [Key] {
        match channel.part {
            Part::Branch { root, .. } => {
                let branches = self.branches_of_root(root);
                let root = self.channels.get(root);
                let root = root.filter(|root| self.is_heard(root, branches, channel));
                root.map_or(&[], |root| &root.members)
            }
            _ => &channel.members,
        }
    }

    /// The members of a root that lose a branch, since its server refuses it.
    pub(super) fn left_behind_by(&self, root: Key, is_leaving: bool) -> Vec<Key> {
        let root = self.channels.get(root).filter(|_| !is_leaving);
        root.map_or_else(Vec::new, |root| root.members.clone())
    }

    /// What a server has said that refuses a channel or a branch of it.
    pub(super) fn refusal_of(&self, channel: Key) -> Option<&[u8]> {
        let branches = self.branches_of_root(channel).iter();
        let mut all = std::iter::once(&channel).chain(branches);
        all.find_map(|key| {
            let channel = self.channels.get(*key).filter(|its| !is_leaving(its))?;
            channel.refused.as_deref()
        })
    }
}

/// Links for requests wait for branches.
impl Hub {
    /// The hub's link to a server that has not yet confirmed a branch.
    pub(crate) fn pending_link(&self, server: ServerId) -> Option<Key> {
        let mut pending = self.channels.iter().map(|(_, channel)| channel);
        let branch = pending.find(|channel| {
            let is_branch = matches!(
                channel.part,
                Part::Branch {
                    is_leaving: false,
                    ..
                }
            );
            is_branch && is_pending(channel) && self.server_of(channel) == server
        })?;
        Some(self.lines[usize::from(branch.line)].link)
    }

    /// A link to a new owner waits. Each link waits once, so `links-max` bounds how many do.
    pub(crate) fn hold_link(&mut self, link: Key, since: Time) {
        self.owners.held_links.push((link, since));
    }

    /// The links that wait.
    pub(crate) fn take_held_links(&mut self) -> Vec<(Key, Time)> {
        std::mem::take(&mut self.owners.held_links)
    }
}

/// Branches come and go.
impl Hub {
    /// These servers own keys now.
    pub(crate) fn follow_owners(&mut self, owners: Vec<Owner>, now: Time) {
        self.owners.is_all_unsettled |= self.owners.servers != owners;
        self.owners.servers = owners;
        for root in self.take_unsettled() {
            self.grow(root, now);
            self.end_branches(root);
        }
    }

    /// The roots that are to be looked at, each once.
    fn take_unsettled(&mut self) -> Vec<Key> {
        let mut some = std::mem::take(&mut self.owners.unsettled);
        if std::mem::take(&mut self.owners.is_all_unsettled) {
            return self.roots().map(|(key, _)| key).collect();
        }
        some.sort_unstable();
        some.dedup();
        some
    }

    /// Looks again, at the end of the turn, which branches of all roots have to come or go.
    pub(crate) fn unsettle(&mut self) {
        self.owners.is_all_unsettled = true;
    }

    /// A claimed root gets a branch at each owner that lacks one.
    fn grow(&mut self, key: Key, now: Time) {
        let Some(root) = self.channels.get(key) else {
            return;
        };
        let Part::Root { branches } = &root.part else {
            return;
        };
        let is_claimed = root.claims > 0;
        let (kind, name, home) = (
            root.kind,
            root.name.clone(),
            self.lines[usize::from(HOME)].server,
        );
        let mut lacking: Vec<Owner> = self.owners.servers.clone();
        lacking.retain(|owner| owner.server != home);
        for branch in branches.clone() {
            let Some(its) = self.channels.get(branch) else {
                continue;
            };
            let server = self.server_of(its);
            let place = lacking.iter().position(|owner| owner.server == server);
            let stays = place.is_some() || self.owners.servers.is_empty();
            if let Some(place) = place {
                lacking.remove(place);
            }
            if let Some(its) = self.channels.get_mut(branch)
                && let Part::Branch { is_leaving, .. } = &mut its.part
            {
                *is_leaving = !stays;
            }
        }
        for owner in lacking.into_iter().filter(|_| is_claimed) {
            let Some(its) = name_at_server(kind, &name, &owner.unseen, key.index) else {
                continue;
            };
            let line = self.line_to(owner.server, now);
            let has_name = *its != *name;
            let its: Arc<[u8]> = if has_name { its.into() } else { name.clone() };
            let part = Part::Branch {
                root: key,
                is_leaving: false,
                has_name,
            };
            if has_name && kind == Kind::Pattern {
                self.owners.aliases.insert(its.clone(), key);
            }
            let mut branch = Channel::new(kind, part, line, its);
            branch.claims = 1;
            self.bytes += branch.bytes();
            let branch = self.channels.insert(branch);
            self.line(line).channels += 1;
            if let Some(root) = self.channels.get_mut(key)
                && let Part::Root { branches } = &mut root.part
            {
                branches.push(branch);
            }
            self.ask(branch);
        }
    }

    /// A session asks for a root: so do its branches ask for it.
    pub(super) fn claim_branches(&mut self, root: Key, now: Time) {
        self.grow(root, now);
        for branch in self.branches_of_root(root).to_vec() {
            if let Some(its) = self.channels.get_mut(branch) {
                its.claims = 1;
            }
            self.ask(branch);
        }
    }

    /// A root is claimed no longer. Its branches bring what comes until its members have left.
    pub(super) fn wither(&mut self, root: Key) {
        for branch in self.branches_of_root(root).to_vec() {
            self.release_branch(branch);
        }
    }

    /// Branches that are replaced go.
    fn end_branches(&mut self, key: Key) {
        let Some(root) = self.channels.get(key) else {
            return;
        };
        let Part::Root { branches } = &root.part else {
            return;
        };
        let is_over = |branch: &&Key| {
            let branch = self.channels.get(**branch);
            branch.is_none_or(|branch| !self.is_heard(root, branches, branch))
        };
        let over: Vec<Key> = branches.iter().filter(is_over).copied().collect();
        for branch in over {
            self.cut(key, branch);
            self.release_branch(branch);
        }
    }

    fn release_branch(&mut self, key: Key) {
        if let Some(branch) = self.channels.get_mut(key) {
            branch.claims = 0;
            self.ask(key);
            self.drop_unused(key);
        }
    }

    /// A root has that branch no more.
    pub(super) fn cut(&mut self, root: Key, branch: Key) {
        if let Some(root) = self.channels.get_mut(root)
            && let Part::Root { branches } = &mut root.part
        {
            branches.retain(|its| *its != branch);
        }
    }
}

/// Requests wait on one line after the other.
impl Hub {
    /// The lines, besides that one, on which a request waits, and until when. Each server is asked
    /// for a sign of life.
    pub(super) fn rest_of(&mut self, line: u16, what: &What) -> Vec<(u16, u64)> {
        let (What::Join(channels) | What::Leave(channels)) = what;
        let mut lines: Vec<u16> = Vec::new();
        for root in channels {
            let branches = self.branches_of_root(*root).iter();
            let branches = branches.filter_map(|branch| self.channels.get(*branch));
            lines.extend(branches.map(|branch| branch.line));
        }
        lines.sort_unstable();
        lines.dedup();
        let others = lines.into_iter().filter(|other| *other != line);
        let until = |at| {
            let line = self.line(at);
            line.ask_for_life();
            (at, line.until())
        };
        others.map(until).collect()
    }

    /// Has a request wait on its next line. Gives it back if there is none.
    pub(super) fn wait_on(&mut self, mut wait: Wait) -> Option<Wait> {
        while let Some((at, until)) = wait.rest.pop() {
            let line = &self.lines[usize::from(at)];
            let is_over = match wait.what {
                _ if line.connected => until.min(line.until()) <= line.answered,
                What::Join(_) => !self.has_branch_on(at, &wait),
                What::Leave(_) => true,
            };
            if !is_over {
                self.wait_at(at, until, wait);
                return None;
            }
        }
        // An owner may have come since, or a connection may have been lost.
        let Some(pending) = self.branches_of(&wait).find(|branch| is_pending(branch)) else {
            return Some(wait);
        };
        let (at, wanted) = (pending.line, pending.wanted);
        if self.line(at).connected && !wanted {
            self.stalled.push(wait);
        } else {
            self.wait_at(at, NEVER, wait);
        }
        None
    }

    /// Has a request wait on a line until so many answers have come, or all that are asked for.
    fn wait_at(&mut self, at: u16, until: u64, wait: Wait) {
        let line = self.line(at);
        let until = until.min(line.until());
        line.queue(Wait { until, ..wait });
    }
}

fn is_leaving(channel: &Channel) -> bool {
    matches!(
        channel.part,
        Part::Branch {
            is_leaving: true,
            ..
        }
    )
}

/// Whether the server has said nothing about it yet.
fn is_pending(channel: &Channel) -> bool {
    !channel.confirmed && channel.refused.is_none()
}

#[cfg(test)]
#[path = "branches/tests.rs"]
mod tests;

//! Keyspace notifications of several servers. A server sends them to its own subscribers alone, so
//! a hub subscribes to a channel or pattern that may bring some at every owner of keys.
//!
//! ```text
//!   sessions ──► root "__key*"  ─► line HOME     ─► first server    all messages
//!                  │
//!                  ├─ branch    ─► line of B     ─► owner B         notifications of B alone
//!                  └─ branch    ─► line of C     ─► owner C         notifications of C alone
//! ```
//!
//! The root has the members and claims. A branch is claimed as long as its root is. Other messages
//! of a branch are dropped: the nodes of a Cluster pass published messages on, and the root has
//! them already.
//!
//! **Requests.** A session that joins or leaves a root waits on one line after the other. Each
//! server got its PING at once, so each line keeps the order that the hub promises.
//!
//! **Owners change.** A new owner gets a branch. A branch at a server that is no longer an owner is
//! *leaving*: it is heard until the hub has asked for the branches that replace it. Until then, a
//! primary that became a replica sends the notifications of its own primary. Afterwards the new
//! branch sends them. So no notification comes twice. A few may be lost while the hub asks the new
//! owner.

use std::collections::HashMap;
use std::sync::Arc;

use crate::base::handle::{LinkId, SessionId};
use crate::base::time::Time;
use crate::routing::pool::ServerId;

use super::stripped::{FullPush, PartialPush, channel_of, is_for, name_at_server};
use super::{Channel, ChannelId, ChannelKind, ChannelRole, HOME, Hub, HubWait, NEVER, WaitEffect};

/// A server that owns keys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeyOwner {
    pub(crate) server: ServerId,
    /// The prefix that routes to it and that it does not see.
    pub(crate) removed_prefix: Arc<[u8]>,
}

/// The owners of the keys of a hub's pool, as the hub knows them.
#[derive(Debug, Default)]
pub(super) struct Owners {
    servers: Vec<KeyOwner>,
    /// The number of channels and patterns that may bring notifications.
    pub(super) roots: usize,
    /// The roots of patterns by the names that they have at servers without their prefix.
    aliases: HashMap<Arc<[u8]>, ChannelId>,
    /// Roots with branches that may have to change, some more than once. The end of the turn checks
    /// these roots alone.
    unsettled: Vec<ChannelId>,
    /// The branches of all roots may have to change.
    is_all_unsettled: bool,
    /// Links to new owners that wait for branches, each with the start of its wait.
    held_links: Vec<(LinkId, Time)>,
}

impl Owners {
    /// Whether a server owns keys. It counts as an owner if no owner is known.
    fn has(&self, server: ServerId) -> bool {
        let mut servers = self.servers.iter();
        self.servers.is_empty() || servers.any(|owner| owner.server == server)
    }

    /// Notes a change of this root or of one of its branches.
    pub(super) fn unsettle(&mut self, root: ChannelId) {
        self.unsettled.push(root);
    }

    /// Forgets a root that is gone.
    pub(super) fn forget(&mut self, root: ChannelId) {
        self.roots -= 1;
        self.aliases.retain(|_, aliased| *aliased != root);
    }

    pub(super) fn holds_no_links(&self) -> bool {
        self.held_links.is_empty()
    }
}

/// Getters.
impl Hub {
    /// Whether it has a subscription that may bring notifications.
    pub(crate) fn has_roots(&self) -> bool {
        self.owners.roots > 0
    }

    /// Whether branches may have to change.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.owners.is_all_unsettled || !self.owners.unsettled.is_empty()
    }

    fn roots(&self) -> impl Iterator<Item = (ChannelId, &Channel)> {
        let mut all = self.channels.iter();
        let is_root = |channel: &Channel| matches!(channel.role, ChannelRole::Root { .. });
        std::iter::from_fn(move || all.find(|(_, channel)| is_root(channel)))
    }

    /// Whether the members of a root get a message from this line.
    pub(super) fn root_receives(
        &self,
        root: &Channel,
        branches: &[ChannelId],
        line: u16,
        is_event: impl FnOnce() -> bool,
    ) -> bool {
        let is_former = root.is_heard_on_former(line);
        if root.line == line || is_former {
            let server = self.lines[usize::from(line)].server;
            let sends = self.owners.has(server) || self.is_growing(branches);
            // The old home may still be an owner. Then it has a branch.
            let mut branches = branches
                .iter()
                .filter_map(|branch| self.channels.get(*branch));
            let is_asked = |branch: &Channel| branch.wanted && self.server_of(branch) == server;
            let is_taken_over = is_former && branches.any(is_asked);
            return sends && !is_taken_over || !is_event();
        }
        let branches_here = branches
            .iter()
            .filter_map(|branch| self.channels.get(*branch));
        let branch = branches_here.into_iter().find(|branch| branch.line == line);
        let is_sent = |branch: &Channel| branch.confirmed && self.is_heard(root, branches, branch);
        branch.is_some_and(is_sent) && is_event()
    }

    /// A push of a server that sees keys without their prefix, translated for its receivers, with
    /// the name of their channel or pattern. `None`: no session gets it.
    pub(crate) fn with_prefix(
        &self,
        line: u16,
        (kind, name): (ChannelKind, &[u8]),
        push: &[u8],
    ) -> Option<(Arc<[u8]>, Vec<u8>)> {
        let whole = FullPush::read(kind, push, self.unseen_on(line)?)?;
        let name = self.name_for_sessions((kind, name), whole.channel())?;
        let push = whole.push(kind, &name)?;
        Some((name, push))
    }

    /// The receivers' name for the beginning of a push that is too large, from a server that sees
    /// keys without their prefix. If the channel of a pattern's notification has not come whole,
    /// the pattern counts as matching.
    pub(crate) fn name_with_prefix(
        &self,
        line: u16,
        (kind, name): (ChannelKind, &[u8]),
        beginning: &[u8],
    ) -> Option<Arc<[u8]>> {
        match channel_of(kind, beginning, self.unseen_on(line)?) {
            PartialPush::Channel(channel) => {
                let name = self.name_for_sessions((kind, name), &channel)?;
                is_for(kind, &name, &channel).then_some(name)
            }
            PartialPush::Undecided => self.name_for_sessions((kind, name), name),
            PartialPush::Other => None,
        }
    }

    /// The prefix that the server of a line does not see.
    fn unseen_on(&self, line: u16) -> Option<&[u8]> {
        let server = self.lines[usize::from(line)].server;
        let mut owners = self.owners.servers.iter();
        let owner = owners.find(|owner| owner.server == server)?;
        Some(&owner.removed_prefix)
    }

    /// The sessions' name for a channel of a server without the prefix. `channel`: the channel of
    /// the notification, with the prefix.
    fn name_for_sessions(
        &self,
        (kind, name): (ChannelKind, &[u8]),
        channel: &[u8],
    ) -> Option<Arc<[u8]>> {
        let root = match kind {
            ChannelKind::Pattern => match self.owners.aliases.get(name) {
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
        owners.any(|owner| owner.server == server && !owner.removed_prefix.is_empty())
    }

    /// Whether the messages of a branch count: it stays, or its replacement is not asked for yet.
    fn is_heard(&self, root: &Channel, branches: &[ChannelId], branch: &Channel) -> bool {
        if !is_leaving(branch) {
            return true;
        }
        match self.server_of(branch) == self.server_of(root) {
            true => !root.wanted,
            false => self.is_growing(branches),
        }
    }

    /// Whether a branch that stays is not asked for yet.
    fn is_growing(&self, branches: &[ChannelId]) -> bool {
        let mut branches = branches
            .iter()
            .filter_map(|branch| self.channels.get(*branch));
        branches.any(|branch| !is_leaving(branch) && !branch.wanted && branch.refused.is_none())
    }

    fn server_of(&self, channel: &Channel) -> ServerId {
        self.lines[usize::from(channel.line)].server
    }

    fn branches_of_root(&self, root: ChannelId) -> &[ChannelId] {
        match self.channels.get(root).map(|root| &root.role) {
            Some(ChannelRole::Root { branches }) => branches,
            _ => &[],
        }
    }

    /// The branches that stay, of all channels that a session wants to join.
    pub(super) fn branches_of(&self, wait: &HubWait) -> impl Iterator<Item = &Channel> {
        let channels = match &wait.effect {
            WaitEffect::Join(channels) => &channels[..],
            WaitEffect::Leave(_) => &[],
        };
        let branches = channels
            .iter()
            .flat_map(|root| self.branches_of_root(*root));
        let branches = branches.filter_map(|branch| self.channels.get(*branch));
        branches.filter(|branch| !is_leaving(branch))
    }

    /// Whether a session waits for a branch on this line.
    pub(super) fn has_branch_on(&self, line: u16, wait: &HubWait) -> bool {
        self.branches_of(wait).any(|branch| branch.line == line)
    }

    /// The sessions that get the messages of a channel. A branch has those of its root.
    pub(super) fn members_by<'a>(&'a self, channel: &'a Channel) -> &'a [SessionId] {
        match channel.role {
            ChannelRole::Branch { root, .. } => {
                let branches = self.branches_of_root(root);
                let root = self.channels.get(root);
                let root = root.filter(|root| self.is_heard(root, branches, channel));
                root.map_or(&[], |root| &root.members)
            }
            _ => &channel.members,
        }
    }

    /// The members of a root that lose a branch, because its server refuses it.
    pub(super) fn left_behind_by(&self, root: ChannelId, is_leaving: bool) -> Vec<SessionId> {
        let root = self.channels.get(root).filter(|_| !is_leaving);
        root.map_or_else(Vec::new, |root| root.members.clone())
    }

    /// The error of a server that refuses a channel or a branch of it.
    pub(super) fn refusal_of(&self, channel: ChannelId) -> Option<&[u8]> {
        let branches = self.branches_of_root(channel).iter();
        let mut all = std::iter::once(&channel).chain(branches);
        all.find_map(|id| {
            let channel = self
                .channels
                .get(*id)
                .filter(|channel| !is_leaving(channel))?;
            channel.refused.as_deref()
        })
    }
}

/// Links for requests that wait for branches.
impl Hub {
    /// The hub's link to a server that has not yet confirmed a branch.
    pub(crate) fn pending_link(&self, server: ServerId) -> Option<LinkId> {
        let mut pending = self.channels.iter().map(|(_, channel)| channel);
        let branch = pending.find(|channel| {
            let is_branch = matches!(
                channel.role,
                ChannelRole::Branch {
                    is_leaving: false,
                    ..
                }
            );
            is_branch && is_pending(channel) && self.server_of(channel) == server
        })?;
        Some(self.lines[usize::from(branch.line)].link)
    }

    /// Makes a link to a new owner wait. Each link waits once, so `links-max` bounds the list.
    pub(crate) fn hold_link(&mut self, link: LinkId, since: Time) {
        self.owners.held_links.push((link, since));
    }

    /// Takes the links that wait.
    pub(crate) fn take_held_links(&mut self) -> Vec<(LinkId, Time)> {
        std::mem::take(&mut self.owners.held_links)
    }
}

/// New branches and their end.
impl Hub {
    /// Updates the owners of keys, and the branches of the roots that need it.
    pub(crate) fn follow_owners(&mut self, owners: Vec<KeyOwner>, now: Time) {
        self.owners.is_all_unsettled |= self.owners.servers != owners;
        self.owners.servers = owners;
        for root in self.take_unsettled() {
            self.grow(root, now);
            self.end_branches(root);
        }
    }

    /// Takes the roots with branches that may have to change, each once.
    fn take_unsettled(&mut self) -> Vec<ChannelId> {
        let mut some = std::mem::take(&mut self.owners.unsettled);
        if std::mem::take(&mut self.owners.is_all_unsettled) {
            return self.roots().map(|(id, _)| id).collect();
        }
        some.sort_unstable();
        some.dedup();
        some
    }

    /// Marks the branches of all roots for a check at the end of the turn.
    pub(crate) fn unsettle(&mut self) {
        self.owners.is_all_unsettled = true;
    }

    /// Gives a claimed root a branch at each owner that lacks one, and marks branches at other
    /// servers as leaving.
    fn grow(&mut self, id: ChannelId, now: Time) {
        let Some(root) = self.channels.get(id) else {
            return;
        };
        let ChannelRole::Root { branches } = &root.role else {
            return;
        };
        let is_claimed = root.claims > 0;
        let (kind, name, home) = (
            root.kind,
            root.name.clone(),
            self.lines[usize::from(HOME)].server,
        );
        let mut lacking: Vec<KeyOwner> = self.owners.servers.clone();
        lacking.retain(|owner| owner.server != home);
        for branch in branches.clone() {
            let Some(state) = self.channels.get(branch) else {
                continue;
            };
            let server = self.server_of(state);
            let place = lacking.iter().position(|owner| owner.server == server);
            let stays = place.is_some() || self.owners.servers.is_empty();
            if let Some(place) = place {
                lacking.remove(place);
            }
            if let Some(state) = self.channels.get_mut(branch)
                && let ChannelRole::Branch { is_leaving, .. } = &mut state.role
            {
                *is_leaving = !stays;
            }
        }
        for owner in lacking.into_iter().filter(|_| is_claimed) {
            let Some(branch_name) = name_at_server(kind, &name, &owner.removed_prefix, id.index)
            else {
                continue;
            };
            let line = self.line_to(owner.server, now);
            let has_name = *branch_name != *name;
            let branch_name: Arc<[u8]> = if has_name {
                branch_name.into()
            } else {
                name.clone()
            };
            let role = ChannelRole::Branch {
                root: id,
                is_leaving: false,
                has_name,
            };
            if has_name && kind == ChannelKind::Pattern {
                self.owners.aliases.insert(branch_name.clone(), id);
            }
            let mut branch = Channel::new(kind, role, line, branch_name);
            branch.claims = 1;
            self.bytes += branch.bytes();
            let branch = self.channels.insert(branch);
            self.line(line).channels += 1;
            if let Some(root) = self.channels.get_mut(id)
                && let ChannelRole::Root { branches } = &mut root.role
            {
                branches.push(branch);
            }
            self.ask(branch);
        }
    }

    /// Claims the branches of a root that a session asks for, and asks for them.
    pub(super) fn claim_branches(&mut self, root: ChannelId, now: Time) {
        self.grow(root, now);
        for branch in self.branches_of_root(root).to_vec() {
            if let Some(state) = self.channels.get_mut(branch) {
                state.claims = 1;
            }
            self.ask(branch);
        }
    }

    /// Releases the branches of a root without claims. Their messages still go to the root's
    /// members until these have left.
    pub(super) fn remove_branches(&mut self, root: ChannelId) {
        for branch in self.branches_of_root(root).to_vec() {
            self.release_branch(branch);
        }
    }

    /// Ends the branches that are replaced.
    fn end_branches(&mut self, id: ChannelId) {
        let Some(root) = self.channels.get(id) else {
            return;
        };
        let ChannelRole::Root { branches } = &root.role else {
            return;
        };
        let is_over = |branch: &&ChannelId| {
            let branch = self.channels.get(**branch);
            branch.is_none_or(|branch| !self.is_heard(root, branches, branch))
        };
        let over: Vec<ChannelId> = branches.iter().filter(is_over).copied().collect();
        for branch in over {
            self.cut(id, branch);
            self.release_branch(branch);
        }
    }

    fn release_branch(&mut self, id: ChannelId) {
        if let Some(branch) = self.channels.get_mut(id) {
            branch.claims = 0;
            self.ask(id);
            self.drop_unused(id);
        }
    }

    /// Removes a branch from its root.
    pub(super) fn cut(&mut self, root: ChannelId, branch: ChannelId) {
        if let Some(root) = self.channels.get_mut(root)
            && let ChannelRole::Root { branches } = &mut root.role
        {
            branches.retain(|other| *other != branch);
        }
    }
}

/// Requests that wait on one line after the other.
impl Hub {
    /// The other lines on which a request waits, each with the total of answers that ends the wait.
    /// Each server gets a PING.
    pub(super) fn rest_of(&mut self, line: u16, effect: &WaitEffect) -> Vec<(u16, u64)> {
        let (WaitEffect::Join(channels) | WaitEffect::Leave(channels)) = effect;
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

    /// Makes a request wait on its next line. Returns the request if no line is left.
    pub(super) fn wait_on(&mut self, mut wait: HubWait) -> Option<HubWait> {
        while let Some((at, until)) = wait.rest.pop() {
            let line = &self.lines[usize::from(at)];
            let is_over = match wait.effect {
                _ if line.connected => until.min(line.until()) <= line.answered,
                WaitEffect::Join(_) => !self.has_branch_on(at, &wait),
                WaitEffect::Leave(_) => true,
            };
            if !is_over {
                self.wait_at(at, until, wait);
                return None;
            }
        }
        // There may be a new owner since, or a connection may have been lost.
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

    /// Makes a request wait on a line until the total of answers is `until`, or until all requests
    /// so far are answered.
    fn wait_at(&mut self, at: u16, until: u64, wait: HubWait) {
        let line = self.line(at);
        let until = until.min(line.until());
        line.queue(HubWait { until, ..wait });
    }
}

fn is_leaving(channel: &Channel) -> bool {
    matches!(
        channel.role,
        ChannelRole::Branch {
            is_leaving: true,
            ..
        }
    )
}

/// Whether the server's answer about it is missing.
fn is_pending(channel: &Channel) -> bool {
    !channel.confirmed && channel.refused.is_none()
}

#[cfg(test)]
mod tests;

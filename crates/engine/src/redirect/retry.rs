//! Deferred requests that are sent again: the link of each attempt.

use respool_protocol::commands::id;
use respool_protocol::encode;

use crate::base::error_text::NO_READER;
use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::DataPlane;
use crate::data_plane::ingress::bound_reply;
use crate::data_plane::ledger::Entry;
use crate::data_plane::link::LinkKind;
use crate::data_plane::sent_request::id_of;
use crate::data_plane::session::Flags;
use crate::redirect::Redirects;
use crate::redirect::deferred::{Deferred, RetryScan};
use crate::routing::pool::ServerId;
use crate::routing::replica_table::NoReader;

/// The effect of the answer of a new primary on a deferred share of the same request.
enum NewPrimaryAnswer {
    /// There is none: the share is sent again.
    Missing(Deferred),
    /// It counts for this share of the entry's request, too.
    Counts(Entry, u16, Vec<u8>),
    /// The share is refused, so that nothing is counted twice.
    Refused,
}

impl Redirects {
    /// Sends one deferred request again, if there is a link for it. `new_primary_of`: the server
    /// that has taken over from a server. `load_named`: has the server of the link load the scripts
    /// that the request names. Returns the share of a scattered request, with its index, that the
    /// answer of a new primary counts for.
    pub(crate) fn retry(
        &mut self,
        plane: &mut DataPlane,
        scan: &mut RetryScan,
        item: Deferred,
        new_primary_of: impl Fn(&DataPlane, ServerId) -> Option<ServerId>,
        load_named: impl FnOnce(&mut DataPlane, LinkId, &Deferred),
    ) -> Option<(Entry, u16, Vec<u8>)> {
        let (server, may_move) = (item.sent_on().server, item.may_go_to_new_primary());
        let new_primary_of = |plane: &DataPlane, server| match may_move {
            true => new_primary_of(plane, server),
            false => None,
        };
        let new_primary = new_primary_of(plane, server);
        let item = match self.settle_by_new_primary(plane, item, new_primary) {
            NewPrimaryAnswer::Missing(item) => item,
            NewPrimaryAnswer::Counts(entry, index, answer) => return Some((entry, index, answer)),
            NewPrimaryAnswer::Refused => return None,
        };
        // The owner of the slot may have changed since the request was sent.
        let new_primary = new_primary_of(plane, plane.owner_behind(server));
        if let Some((link, item)) = self.choose_link(plane, scan, item, new_primary) {
            if item.names_scripts() {
                load_named(plane, link, &item);
            }
            self.send(plane, link, item);
        }
        None
    }

    /// Settles a share of a scattered request at a server that has no slots any more. Its new
    /// primary must have got a share of the same request. Then the answer of the new primary counts
    /// for both shares. A read is refused, so that nothing is counted twice. The exceptions are
    /// FLUSHALL and FLUSHDB: keys may have moved to the new primary after it deleted its own. So
    /// the new primary gets the command once more, which is safe, because the session has no
    /// request behind it.
    fn settle_by_new_primary(
        &mut self,
        plane: &mut DataPlane,
        item: Deferred,
        new_primary: Option<ServerId>,
    ) -> NewPrimaryAnswer {
        let Some(index) = item.share() else {
            return NewPrimaryAnswer::Missing(item);
        };
        if matches!(id_of(item.request()), Some(id::FLUSHALL | id::FLUSHDB)) {
            return NewPrimaryAnswer::Missing(item);
        }
        match new_primary.and_then(|new_primary| plane.part_of(item.entry(), new_primary)) {
            None => NewPrimaryAnswer::Missing(item),
            Some(_) if item.reads() => {
                self.end_retries(plane, item);
                NewPrimaryAnswer::Refused
            }
            Some(answer) => NewPrimaryAnswer::Counts(item.entry(), index, answer),
        }
    }

    /// The link for the next attempt of a deferred request. `new_primary`: the server that has
    /// taken over from the request's owner. `None`: the request stays, or its client has got an
    /// error.
    fn choose_link(
        &mut self,
        plane: &mut DataPlane,
        scan: &mut RetryScan,
        item: Deferred,
        new_primary: Option<ServerId>,
    ) -> Option<(LinkId, Deferred)> {
        let id = item.entry().session;
        let link = if item.waits() {
            match self.own_link_for(plane, id, &item, new_primary) {
                Some(link) => link,
                None => {
                    scan.stay_without_link(item);
                    return None;
                }
            }
        } else if plane.tracks_several(id) {
            match self.tracking_link_for(plane, id, &item, new_primary) {
                Some(link) => link,
                None => {
                    // A link gets free, or the slot gets another owner.
                    scan.stay_until_tick(plane, item);
                    return None;
                }
            }
        } else {
            match link_for(plane, &item, new_primary) {
                Ok(link) => link,
                Err(error) => {
                    plane.counters.failed_not_sent += 1;
                    plane.answer_or_fail(item.entry(), &error);
                    return None;
                }
            }
        };
        let to = plane.links.get(link);
        let is_in_back_off = to.is_some_and(|to| self.may_wait_at(plane, to, &item));
        let item = scan.put_on_link(plane, link, item, is_in_back_off)?;
        let entry = item.entry();
        if let Some(index) = item.share()
            && let Some(server) = plane.links.get(link).map(|link| link.kind.server)
        {
            plane.ask_share_of(entry, index, server);
        }
        match self.wake_link(plane, link, entry) {
            Ok(()) => Some((link, item)),
            Err(error) => {
                plane.answer_or_fail(entry, &error);
                None
            }
        }
    }

    /// The link on which the session tracks keys at the server of the next attempt. `None`: there
    /// is no such link just now.
    fn tracking_link_for(
        &self,
        plane: &mut DataPlane,
        id: SessionId,
        item: &Deferred,
        new_primary: Option<ServerId>,
    ) -> Option<LinkId> {
        let server = kind_for(plane, item, new_primary).ok()?.server;
        let first = plane.first_link_to(server);
        let is_in_back_off = first
            .and_then(|first| plane.links.get(first))
            .is_some_and(|first| self.may_wait_at(plane, first, item));
        let is_known = plane.tracks_on(id, server).is_some();
        if is_in_back_off || !is_known && !plane.may_have_own_link(id) {
            return None;
        }
        let link = plane.tracking_link(id, server).ok()?;
        // The next attempt has no CLIENT CACHING in front of it.
        plane.lack_caching(id);
        Some(link)
    }

    /// A link that the session has for itself. `None`: none is free just now.
    fn own_link_for(
        &self,
        plane: &mut DataPlane,
        id: SessionId,
        item: &Deferred,
        new_primary: Option<ServerId>,
    ) -> Option<LinkId> {
        let link = if plane.tracks_several(id) {
            let link = self.tracking_link_for(plane, id, item, new_primary)?;
            let server = plane.links.get(link)?.kind.server;
            plane.switch_server(id, server);
            link
        } else {
            if !plane.may_have_own_link(id) {
                return None;
            }
            let kind = kind_for(plane, item, new_primary).ok()?;
            plane.move_to_own_link(kind, id)?
        };
        if let Some(session) = plane.sessions.get_mut(id) {
            session.state |= Flags::UNPINNING;
        }
        if let Some(link) = plane.links.get_mut(link) {
            link.waits = true;
        }
        Some(link)
    }
}

/// The kind of link for the next attempt.
fn kind_for(
    plane: &mut DataPlane,
    item: &Deferred,
    new_primary: Option<ServerId>,
) -> Result<LinkKind, NoReader> {
    let sent_on = item.sent_on();
    let command = id_of(item.request()).map(|id| id.get());
    let session = item.entry().session;
    let (slot, next) = (item.slot(), item.next_server());
    let server = plane.next_server_of(session, (sent_on, command), slot, next, new_primary)?;
    Ok(sent_on.at(server))
}

/// The link for the next attempt, or the error reply to the client if there is none.
fn link_for(
    plane: &mut DataPlane,
    item: &Deferred,
    new_primary: Option<ServerId>,
) -> Result<LinkId, Vec<u8>> {
    match kind_for(plane, item, new_primary) {
        Ok(kind) => {
            let link = plane.current_link(kind);
            link.ok_or_else(|| bound_reply("links-max"))
        }
        Err(NoReader) => {
            let mut reply = Vec::new();
            encode::error(&mut reply, NO_READER);
            Err(reply)
        }
    }
}

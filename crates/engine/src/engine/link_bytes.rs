//! Bytes of servers: the data plane delivers simple replies, and components get the others.

use crate::base::handle::LinkId;
use crate::data_plane::egress::{EgressStop, Replies, ReplyUse};
use crate::data_plane::link::{Link, LinkRole, LinkState, UNASKED};
use crate::engine::Engine;

/// The meaning of a reply that may answer no request.
enum SpecialReply {
    /// It is no answer, and the next reply may be one.
    Taken,
    /// It is no answer, and the bytes after it are not read, or not now.
    Last,
    /// It answers the front request.
    Answers,
}

impl Engine {
    /// A server sent bytes.
    pub fn handle_link_bytes(&mut self, link: LinkId, bytes: &[u8]) {
        self.take_link_bytes(link, bytes);
        if !self.discovery.lost_slots.is_empty() {
            self.discovery.settle_lost_slots(&mut self.plane);
        }
    }

    fn take_link_bytes(&mut self, id: LinkId, bytes: &[u8]) {
        let Some(link) = self.plane.links.get_mut(id) else {
            return;
        };
        link.progress = self.plane.now;
        self.plane.counters.link_bytes_in += bytes.len() as u64;
        match &mut link.state {
            LinkState::Up if link.tunnel.is_some() => {
                if let Some(session) = self.pinned.take_tunnel_bytes(&mut self.plane, id, bytes) {
                    self.reset(session);
                }
                self.settle_losses();
            }
            LinkState::Up => {
                if !link.unscanned.is_empty() {
                    return self.take_rest_of_head(id, bytes);
                }
                let (is_limited, owed) = (link.reply_room.is_limited(), link.ledger.len());
                if let LinkRole::HubLine(line) = link.role
                    && self.pubsub.line(line).keep_behind(bytes)
                {
                    return;
                }
                self.take_read(id, bytes);
                if is_limited {
                    self.plane.note_whole_replies(id, bytes.len(), owed);
                }
            }
            LinkState::Handshaking { handshake, .. } => {
                let replied = handshake.read(bytes, &mut link.identity, &mut link.client_id);
                self.handshake_replied(id, replied);
                self.settle_losses();
            }
            // The link was closed in this turn.
            _ => {}
        }
    }

    /// Takes more bytes of a fused MGET's reply, after its first line came in fragments.
    #[cold]
    fn take_rest_of_head(&mut self, id: LinkId, bytes: &[u8]) {
        let Some(link) = self.plane.links.get_mut(id) else {
            return;
        };
        let mut head = std::mem::take(&mut link.unscanned);
        head.extend_from_slice(bytes);
        self.take_read(id, &head);
    }

    /// Takes the bytes of one read.
    fn take_read(&mut self, id: LinkId, bytes: &[u8]) {
        self.take_replies(id, bytes);
        self.settle_losses();
        self.plane.after_replies(id);
        self.settle_losses();
    }

    /// Takes a server's replies. The data plane delivers the simple ones.
    pub(crate) fn take_replies(&mut self, id: LinkId, bytes: &[u8]) {
        let mut replies = Replies::of(bytes);
        loop {
            match self.plane.deliver_replies(id, &mut replies) {
                EgressStop::End => return,
                EgressStop::Completion { len } => {
                    if !self.complete_next(id, &mut replies, len) {
                        return;
                    }
                }
                EgressStop::Special { len } => match self.take_special(id, replies.rest(), len) {
                    SpecialReply::Taken => replies.at += len,
                    SpecialReply::Last => return,
                    SpecialReply::Answers => match self.plane.take_answer(id, &mut replies, len) {
                        ReplyUse::Taken => {}
                        ReplyUse::HasCompletion => {
                            if !self.complete_next(id, &mut replies, len) {
                                return;
                            }
                        }
                        ReplyUse::Unasked => return self.plane.lose_link(id, UNASKED),
                    },
                },
                EgressStop::Rest { len } => {
                    self.end_partial(id, &replies.rest()[..len]);
                    if !self.plane.links.get(id).is_some_and(Link::is_up) {
                        return;
                    }
                    replies.at += len;
                }
                EgressStop::Beginning => {
                    if let Some((line, message)) = self.plane.take_partial(id, replies.rest()) {
                        self.pubsub.refuse_message(&mut self.plane, line, &message);
                    }
                    return;
                }
                EgressStop::Broken(reason) => return self.plane.lose_link(id, &reason),
            }
        }
    }

    /// Gives the next reply, of `len` bytes, to the completion of its request. Returns whether the
    /// link is still up: a reply may end it, and then the bytes after it are not read.
    fn complete_next(&mut self, id: LinkId, replies: &mut Replies<'_>, len: usize) -> bool {
        self.complete(id, &replies.rest()[..len], false);
        replies.at += len;
        self.plane.links.get(id).is_some_and(Link::is_up)
    }

    /// Handles a reply that may answer no request: a push, or an error that respool handles itself.
    #[cold]
    #[inline(never)]
    fn take_special(&mut self, id: LinkId, bytes: &[u8], len: usize) -> SpecialReply {
        let reply = &bytes[..len];
        match reply.first() {
            Some(b'>') => {
                self.take_push(id, reply);
                // The push may have ended the link. Then the bytes after it are not read.
                let goes_on = self.plane.links.get(id).is_some_and(Link::is_up)
                    && !self.pubsub.postpone(&mut self.plane, id, &bytes[len..]);
                if goes_on {
                    SpecialReply::Taken
                } else {
                    SpecialReply::Last
                }
            }
            Some(b'-') if self.try_handle_refusal(id, reply) => SpecialReply::Taken,
            // The error may have ended the link.
            _ if !self.plane.links.get(id).is_some_and(Link::is_up) => SpecialReply::Last,
            _ => SpecialReply::Answers,
        }
    }

    /// Takes the end of a reply that began in an earlier read.
    #[inline(never)]
    fn end_partial(&mut self, id: LinkId, bytes: &[u8]) {
        let Some(ended) = self.plane.end_fragment(id, bytes) else {
            return;
        };
        let cut = ended.cut;
        let whole = if cut { bytes } else { &ended.bytes };
        if ended.kind == b'>' {
            // The beginning of a cut push was dropped, as it was too large for any session.
            if !cut {
                self.take_push(id, whole);
            }
        } else {
            let link = self.plane.links.get(id);
            let Some(entry) = link.and_then(|link| link.ledger.first_in_flight()) else {
                return self.plane.lose_link(id, UNASKED);
            };
            let is_refused = ended.kind == b'-' && !cut;
            if is_refused && self.try_handle_refusal(id, whole) {
                // Its session gets an answer later.
            } else if !self.plane.links.get(id).is_some_and(Link::is_up) {
                // The error has ended the link, which answers its requests.
            } else if self.plane.pass_ended(id, entry, whole, cut) {
                self.complete(id, whole, cut);
            }
            if cut {
                self.plane.end_mid_reply(entry.session);
            }
            if let Some(receiver) = ended.receiver {
                self.plane.note_cut_reply(id, receiver, whole.len(), cut);
            }
        }
        self.plane.spare_buffers.give(ended.bytes);
    }

    /// Takes a push, which answers no request. On a session's own link it is for that session.
    fn take_push(&mut self, id: LinkId, push: &[u8]) {
        match self.plane.links.get(id).map(|link| link.role) {
            Some(LinkRole::Pinned { by }) => {
                self.pinned.take_own_push(&mut self.plane, id, by, push);
            }
            Some(LinkRole::Redirect { to }) => {
                let query = self.pinned.take_redirected_push(&mut self.plane, to, push);
                if let Some(query) = query {
                    self.send_to_all_workers(query);
                }
            }
            Some(LinkRole::HubLine(line)) => self.take_hub_push(id, line, push),
            Some(LinkRole::Sentinel) => self.take_sentinel_push(id, push),
            _ => {}
        }
    }
}

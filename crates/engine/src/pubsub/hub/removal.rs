//! The move of a hub's home while its old server is still up, as after a failover by command.
//!
//! ```text
//!   line HOME ──► new server    is asked for everything
//!   line n    ──► old server    is heard until the new one has confirmed, channel by channel
//! ```
//!
//! Members and claims stay. Until its new server has confirmed, a channel is received on its
//! *former* line. Then the hub unsubscribes from it on that line. If the former line is lost before
//! it has answered, the members of the channel may have missed messages.

use crate::base::time::Time;
use crate::routing::pool::ServerId;

use super::{Channel, ChannelId, HOME, Hub, HubLine, HubRequest, HubWait, NEVER, WaitEffect};

/// The line on which a channel was before its home moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FormerLine {
    pub(super) line: u16,
    /// The hub has unsubscribed from the channel on that line.
    is_unsubscribed: bool,
}

impl Channel {
    /// Whether the members get messages from this line as their channel's former line.
    pub(super) fn is_heard_on_former(&self, line: u16) -> bool {
        let is_heard = |former: FormerLine| former.line == line && !former.is_unsubscribed;
        self.former.is_some_and(is_heard)
    }

    /// Whether members miss messages if a line is lost.
    pub(super) fn depends_on(&self, line: u16) -> bool {
        match self.former {
            Some(former) => former.line == line || former.is_unsubscribed && self.line == line,
            None => self.line == line,
        }
    }
}

impl Hub {
    /// Moves the home to another server. Returns the line on which the old server goes on.
    pub(crate) fn move_home(&mut self, to: ServerId, now: Time) -> u16 {
        let at = self.free_line().unwrap_or_else(|| {
            self.lines.push(HubLine::new(to, now));
            self.lines.len() - 1
        });
        let mut old = std::mem::replace(self.line(HOME), HubLine::new(to, now));
        old.is_former = true;
        for request in &mut old.requests {
            if matches!(request, HubRequest::Subscribe { .. }) {
                *request = HubRequest::Ping;
            }
        }
        // The old server answers requests to leave. Requests to join wait for the new server.
        let (leaving, joining): (Vec<HubWait>, Vec<HubWait>) = old
            .waits
            .drain(..)
            .partition(|wait| matches!(wait.effect, WaitEffect::Leave(_)));
        old.waits = leaving.into();
        let until = NEVER;
        let joining = joining.into_iter().map(|wait| HubWait { until, ..wait });
        self.line(HOME).waits = joining.collect();
        self.lines[at] = old;
        for id in self.on_line(HOME) {
            self.move_channel(id, at as u16);
        }
        at as u16
    }

    /// Asks for a channel of the home anew. Its old server is on the line `from`.
    fn move_channel(&mut self, id: ChannelId, from: u16) {
        let Some(channel) = self.channels.get_mut(id) else {
            return;
        };
        let is_heard = channel.confirmed;
        let is_sent = channel.wanted || channel.in_flight > 0;
        let (kind, name) = (channel.kind, channel.name.clone());
        channel.moves = channel.moves.wrapping_add(1);
        channel.wanted = false;
        channel.confirmed = false;
        channel.in_flight = 0;
        channel.left_out = false;
        if is_heard {
            let earlier = channel.former.replace(FormerLine {
                line: from,
                is_unsubscribed: false,
            });
            if let Some(earlier) = earlier {
                self.line(earlier.line).channels -= 1;
            }
        }
        self.line(HOME).channels += 1;
        let old = self.line(from);
        if !is_heard {
            old.channels -= 1;
            if is_sent {
                old.requests.push_back(HubRequest::Abandon {
                    channel: id,
                    kind,
                    name,
                });
            }
        }
        self.update_excess(id);
        self.drop_unused(id);
    }

    /// Unsubscribes from a channel on its former line, because the new server has confirmed or
    /// refused it.
    pub(super) fn leave_former(&mut self, id: ChannelId) {
        let Some(channel) = self.channels.get_mut(id) else {
            return;
        };
        let (kind, name) = (channel.kind, channel.name.clone());
        if let Some(former) = channel
            .former
            .as_mut()
            .filter(|former| !former.is_unsubscribed)
        {
            former.is_unsubscribed = true;
            let line = former.line;
            self.line(line).requests.push_back(HubRequest::Abandon {
                channel: id,
                kind,
                name,
            });
        }
    }

    /// Unsubscribes from a channel that is dropped on its former line.
    pub(super) fn drop_former(&mut self, id: ChannelId, channel: &Channel) {
        let Some(former) = channel.former else {
            return;
        };
        let (kind, name) = (channel.kind, channel.name.clone());
        let line = self.line(former.line);
        line.channels -= 1;
        if line.connected && !former.is_unsubscribed {
            line.requests.push_back(HubRequest::Abandon {
                channel: id,
                kind,
                name,
            });
        }
    }

    /// Handles the answer to the unsubscribe on a channel's former line.
    pub(super) fn end_former(&mut self, line: u16, id: ChannelId) {
        let has_left = |channel: &&mut Channel| {
            channel
                .former
                .is_some_and(|former| former.line == line && former.is_unsubscribed)
        };
        if let Some(channel) = self.channels.get_mut(id).filter(has_left) {
            channel.former = None;
            self.line(line).channels -= 1;
        }
    }

    /// Forgets a lost line as the former line of its channels.
    pub(super) fn lose_former(&mut self, line: u16) {
        let is_there = |(_, channel): &(ChannelId, &Channel)| {
            channel.former.is_some_and(|former| former.line == line)
        };
        let channels: Vec<ChannelId> = self
            .channels
            .iter()
            .filter(is_there)
            .map(|(id, _)| id)
            .collect();
        for id in channels {
            if let Some(channel) = self.channels.get_mut(id) {
                channel.former = None;
                self.line(line).channels -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use respool_protocol::encode::Version;

    use super::super::{ChannelKind, HubId, HubOutcome, KeyOwner, Subscriber};
    use super::*;
    use crate::base::handle::SessionId;
    use crate::pubsub::subscriber_counts::SubscriberCounts;

    /// A hub with servers 0 to 2, and a session that listens to news and to notifications.
    struct Scene {
        hub: Hub,
        session: SessionId,
        subscriber: Subscriber,
    }

    fn owners(servers: [u16; 2]) -> Vec<KeyOwner> {
        let owner = |server| KeyOwner {
            server: ServerId(server),
            removed_prefix: Arc::default(),
        };
        servers.map(owner).to_vec()
    }

    const NAMES: [&[u8]; 2] = [b"news*", b"__key*"];

    impl Scene {
        fn new() -> Scene {
            let subscriber_counts = Arc::new(SubscriberCounts::default());
            let mut hub = Hub::new((0, ServerId(0)), 0, subscriber_counts, Time(0));
            hub.follow_owners(owners([0, 1]), Time(0));
            hub.handle_up(HOME);
            let mut scene = Scene {
                hub,
                session: SessionId {
                    index: 1,
                    generation: 1,
                },
                subscriber: Subscriber::new(HubId(0)),
            };
            let outcome = scene.hub.subscribe(
                (scene.session, 0),
                &mut scene.subscriber,
                (ChannelKind::Pattern, HOME),
                NAMES.into_iter(),
                Version::Resp2,
                Time(0),
            );
            assert_eq!(outcome, HubOutcome::Waits);
            scene.hub.handle_up(1);
            for line in [HOME, 1] {
                scene.answer(line);
            }
            assert!(scene.subscriber.listens());
            scene
        }

        /// Sends the requests of a line, which its server answers. Returns them.
        fn answer(&mut self, line: u16) -> Vec<String> {
            let mut all = Vec::new();
            while let Some(request) = self.hub.poll_request(line) {
                let mut bytes = Vec::new();
                self.hub.write_request(line, &request, &mut bytes);
                let text = String::from_utf8(bytes).expect("text");
                let words: Vec<&str> = text.split("\r\n").skip(2).step_by(2).collect();
                match words[..] {
                    ["PING"] => self.hub.handle_pong(line).expect("the hub asked for it"),
                    [verb, name] => {
                        let of = (ChannelKind::Pattern, verb == "PSUBSCRIBE");
                        let confirmed = self.hub.handle_confirmed(line, of, name.as_bytes());
                        confirmed.expect("the hub asked for it");
                    }
                    _ => panic!("{words:?}"),
                }
                all.push(words.join(" "));
            }
            while let Some(done) = self.hub.poll_done(line) {
                self.hub
                    .settle(done, &mut self.subscriber, Version::Resp2)
                    .expect("the request waits on no other line");
            }
            all
        }

        /// Whether the session gets a message of a pattern that comes on a line.
        fn gets(&self, line: u16, name: usize, is_event: bool) -> bool {
            let of = (ChannelKind::Pattern, NAMES[name]);
            let receivers = self.hub.receivers(line, of, || is_event);
            assert!(receivers.is_empty() || receivers == [self.session]);
            !receivers.is_empty()
        }

        /// The first server is replaced by the third, and the second becomes the home.
        fn move_home(&mut self) -> u16 {
            let old = self.hub.move_home(ServerId(1), Time(0));
            self.hub.follow_owners(owners([2, 1]), Time(0));
            old
        }
    }

    /// The old home is heard until the new one has confirmed, and is told to stop then.
    #[test]
    fn old_home_is_heard_until_the_new_one_confirms() {
        let mut scene = Scene::new();
        let old = scene.move_home();
        assert_eq!(scene.answer(old), [""; 0]);
        assert!(scene.gets(old, 0, false) && scene.gets(old, 1, false));
        assert!(scene.gets(1, 1, true), "the branch at the second server");
        assert!(scene.hub.listeners(old).contains(&scene.session));
        assert!(
            scene.hub.listeners(HOME).is_empty(),
            "the session has missed no message"
        );
        scene.hub.handle_up(HOME);
        assert_eq!(
            scene.answer(HOME),
            ["PSUBSCRIBE news*", "PSUBSCRIBE __key*"]
        );
        for name in 0..NAMES.len() {
            assert!(!scene.gets(old, name, false));
            assert!(scene.gets(HOME, name, false));
        }
        assert!(scene.gets(HOME, 1, true) && !scene.gets(1, 1, true));
        assert!(!scene.gets(old, 1, true), "the old server is a replica now");
        // If the old line is lost before it has answered, messages may be missing.
        assert!(scene.hub.listeners(old).contains(&scene.session));
        assert_eq!(
            scene.answer(old),
            ["PUNSUBSCRIBE news*", "PUNSUBSCRIBE __key*"]
        );
        assert!(scene.hub.listeners(old).is_empty());
        assert!(scene.hub.line(old).is_unused());
    }

    /// A session that leaves during the move leaves nothing on either line.
    #[test]
    fn session_that_leaves_during_the_move_leaves_both_lines() {
        for connects in [false, true] {
            let mut scene = Scene::new();
            let old = scene.move_home();
            if connects {
                scene.hub.handle_up(HOME);
            }
            scene.hub.forget(scene.session, &mut scene.subscriber);
            for line in 0..scene.hub.lines.len() as u16 {
                scene.answer(line);
            }
            assert!(!scene.gets(old, 0, false) && !scene.gets(HOME, 0, false));
            assert!(scene.hub.lines.iter().all(HubLine::is_unused));
            assert_eq!((scene.hub.held_bytes(), scene.hub.claims()), (0, 0));
        }
    }

    /// The home moves again before it has confirmed: the first server is heard until the last
    /// confirms.
    #[test]
    fn home_that_moves_twice_is_heard_all_the_time() {
        let mut scene = Scene::new();
        let first = scene.move_home();
        scene.hub.handle_up(HOME);
        let second = scene.hub.move_home(ServerId(2), Time(0));
        assert_ne!(first, second);
        assert!(scene.gets(first, 0, false) && !scene.gets(second, 0, false));
        scene.hub.handle_up(HOME);
        scene.answer(HOME);
        assert!(scene.gets(HOME, 0, false) && !scene.gets(first, 0, false));
        for line in [first, second] {
            scene.answer(line);
            assert!(scene.hub.line(line).is_unused());
        }
    }
}

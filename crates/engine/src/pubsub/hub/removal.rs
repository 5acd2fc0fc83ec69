//! The home of a hub moves while its old server is still there, as after a failover by command.
//!
//! ```text
//!   line HOME ──► new server    is asked for everything
//!   line n    ──► old server    is heard until the new one has confirmed, channel by channel
//! ```
//!
//! Members and claims stay. Until its new server has confirmed, a channel is received on its
//! *former* line. Then that line is told to send it no more. If the former line is lost before it
//! has answered, the members of the channel may have missed messages.

use super::{Ask, Channel, HOME, Hub, Line, NEVER, Wait, What};
use crate::pool::ServerId;
use crate::slots::Key;
use crate::time::Time;

/// The line on which a channel was before its home moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Former {
    pub(super) line: u16,
    /// It was told to send the channel no more.
    is_told: bool,
}

impl Channel {
    /// Whether messages on a line are for the members, since the channel was there before.
    pub(super) fn is_heard_on_former(&self, line: u16) -> bool {
        let is_it = |former: Former| former.line == line && !former.is_told;
        self.former.is_some_and(is_it)
    }

    /// Whether members miss messages if a line is lost.
    pub(super) fn depends_on(&self, line: u16) -> bool {
        match self.former {
            Some(former) => former.line == line || former.is_told && self.line == line,
            None => self.line == line,
        }
    }
}

impl Hub {
    /// Has everything at home be asked for at another server. Returns the line on which the old
    /// server goes on.
    pub(crate) fn move_home(&mut self, to: ServerId, now: Time) -> u16 {
        let at = self.free_line().unwrap_or_else(|| {
            self.lines.push(Line::new(to, now));
            self.lines.len() - 1
        });
        let mut old = std::mem::replace(self.line(HOME), Line::new(to, now));
        old.is_former = true;
        for ask in &mut old.to_ask {
            if matches!(ask, Ask::Subscribe { .. }) {
                *ask = Ask::Ping;
            }
        }
        // The old server answers those that leave. Those that join wait for the new one.
        let (leaving, joining): (Vec<Wait>, Vec<Wait>) = old
            .waits
            .drain(..)
            .partition(|wait| matches!(wait.what, What::Leave(_)));
        old.waits = leaving.into();
        let until = NEVER;
        let joining = joining.into_iter().map(|wait| Wait { until, ..wait });
        self.line(HOME).waits = joining.collect();
        self.lines[at] = old;
        for key in self.on_line(HOME) {
            self.move_channel(key, at as u16);
        }
        at as u16
    }

    /// A channel at home is asked for anew. Its server until now is at that line.
    fn move_channel(&mut self, key: Key, from: u16) {
        let Some(channel) = self.channels.get_mut(key) else {
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
            let earlier = channel.former.replace(Former {
                line: from,
                is_told: false,
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
                old.to_ask.push_back(Ask::Abandon {
                    channel: key,
                    kind,
                    name,
                });
            }
        }
        self.tell(key);
        self.drop_unused(key);
    }

    /// The new server has confirmed, or refuses: the former line is told to send the channel no
    /// more.
    pub(super) fn leave_former(&mut self, key: Key) {
        let Some(channel) = self.channels.get_mut(key) else {
            return;
        };
        let (kind, name) = (channel.kind, channel.name.clone());
        if let Some(former) = channel.former.as_mut().filter(|former| !former.is_told) {
            former.is_told = true;
            let line = former.line;
            self.line(line).to_ask.push_back(Ask::Abandon {
                channel: key,
                kind,
                name,
            });
        }
    }

    /// A channel goes: so does what is left of it on its former line.
    pub(super) fn drop_former(&mut self, key: Key, channel: &Channel) {
        let Some(former) = channel.former else {
            return;
        };
        let (kind, name) = (channel.kind, channel.name.clone());
        let line = self.line(former.line);
        line.channels -= 1;
        if line.connected && !former.is_told {
            line.to_ask.push_back(Ask::Abandon {
                channel: key,
                kind,
                name,
            });
        }
    }

    /// A line has answered that it sends a channel no more.
    pub(super) fn end_former(&mut self, line: u16, key: Key) {
        let is_it = |channel: &&mut Channel| {
            channel
                .former
                .is_some_and(|former| former.line == line && former.is_told)
        };
        if let Some(channel) = self.channels.get_mut(key).filter(is_it) {
            channel.former = None;
            self.line(line).channels -= 1;
        }
    }

    /// A line is lost: no channel is received there as on its former line.
    pub(super) fn lose_former(&mut self, line: u16) {
        let is_there = |(_, channel): &(Key, &Channel)| {
            channel.former.is_some_and(|former| former.line == line)
        };
        let there: Vec<Key> = self
            .channels
            .iter()
            .filter(is_there)
            .map(|(key, _)| key)
            .collect();
        for key in there {
            if let Some(channel) = self.channels.get_mut(key) {
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

    use super::super::{HubId, Kind, Outcome, Owner, Subscriber};
    use super::*;
    use crate::directory::Directory;

    /// A hub before servers 0 to 2, and a session that listens to news and to notifications.
    struct Scene {
        hub: Hub,
        session: Key,
        subscriber: Subscriber,
    }

    fn owners(servers: [u16; 2]) -> Vec<Owner> {
        let owner = |server| Owner {
            server: ServerId(server),
            unseen: Arc::default(),
        };
        servers.map(owner).to_vec()
    }

    const NAMES: [&[u8]; 2] = [b"news*", b"__key*"];

    impl Scene {
        fn new() -> Scene {
            let directory = Arc::new(Directory::default());
            let mut hub = Hub::new((0, ServerId(0)), 0, directory, Time(0));
            hub.follow_owners(owners([0, 1]), Time(0));
            hub.handle_up(HOME);
            let mut scene = Scene {
                hub,
                session: Key {
                    index: 1,
                    generation: 1,
                },
                subscriber: Subscriber::new(HubId(0)),
            };
            let outcome = scene.hub.subscribe(
                (scene.session, 0),
                &mut scene.subscriber,
                (Kind::Pattern, HOME),
                NAMES.into_iter(),
                Version::Resp2,
                Time(0),
            );
            assert_eq!(outcome, Outcome::Waits);
            scene.hub.handle_up(1);
            for line in [HOME, 1] {
                scene.answer(line);
            }
            assert!(scene.subscriber.listens());
            scene
        }

        /// What a line asks now. Its server answers.
        fn answer(&mut self, line: u16) -> Vec<String> {
            let mut all = Vec::new();
            while let Some(ask) = self.hub.poll_ask(line) {
                let mut bytes = Vec::new();
                self.hub.write_ask(line, &ask, &mut bytes);
                let text = String::from_utf8(bytes).expect("text");
                let words: Vec<&str> = text.split("\r\n").skip(2).step_by(2).collect();
                match words[..] {
                    ["PING"] => self.hub.handle_pong(line).expect("it was asked"),
                    [verb, name] => {
                        let of = (Kind::Pattern, verb == "PSUBSCRIBE");
                        let confirmed = self.hub.handle_confirmed(line, of, name.as_bytes());
                        confirmed.expect("it was asked");
                    }
                    _ => panic!("{words:?}"),
                }
                all.push(words.join(" "));
            }
            while let Some(done) = self.hub.poll_done(line) {
                self.hub
                    .settle(done, &mut self.subscriber, Version::Resp2)
                    .expect("it waits on no other line");
            }
            all
        }

        /// Whether the session gets a message of a pattern that comes on a line.
        fn gets(&self, line: u16, name: usize, is_event: bool) -> bool {
            let of = (Kind::Pattern, NAMES[name]);
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
            "it has missed nothing"
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
        assert!(!scene.gets(old, 1, true), "it is a replica now");
        // If it is lost before it has answered, messages may be missing.
        assert!(scene.hub.listeners(old).contains(&scene.session));
        assert_eq!(
            scene.answer(old),
            ["PUNSUBSCRIBE news*", "PUNSUBSCRIBE __key*"]
        );
        assert!(scene.hub.listeners(old).is_empty());
        assert!(scene.hub.line(old).is_unused());
    }

    /// If the session leaves meanwhile, nothing stays.
    #[test]
    fn session_that_leaves_meanwhile_leaves_both() {
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
            assert!(scene.hub.lines.iter().all(Line::is_unused));
            assert_eq!((scene.hub.held_bytes(), scene.hub.claims()), (0, 0));
        }
    }

    /// The home moves on before it has confirmed: the first one is heard until the last confirms.
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

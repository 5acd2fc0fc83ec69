//! The state of one connection: the number of replies to the next request depends on all earlier
//! ones.

use std::collections::BTreeSet;

use super::script::{Args, ScriptRequest, name};
use respool_testkit::frame::Frame;

/// What a request brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// No reply: replies are switched off.
    Nothing,
    /// One reply.
    One,
    /// One reply, when another connection serves it.
    Someday,
    /// So many confirmations, or one error.
    Confirmations(usize),
    /// The last replies, and the end of the connection.
    Close,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReplySwitch {
    #[default]
    On,
    Off,
    /// No reply to the next request.
    Skip,
}

/// The state of a connection, by its requests and replies.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionModel {
    is_resp3: bool,
    pub(crate) db: usize,
    /// Requests between MULTI and EXEC.
    pub(crate) queue: Option<Vec<Args>>,
    pub(crate) watched: Vec<Vec<u8>>,
    pub(crate) replies: ReplySwitch,
    /// Whether it gets invalidations of the keys that it has read.
    pub(crate) is_tracking: bool,
    /// Channels, patterns, sharded channels.
    subscriptions: [BTreeSet<Vec<u8>>; 3],
}

impl SessionModel {
    pub(crate) fn is_subscribed(&self) -> bool {
        self.subscriptions.iter().any(|names| !names.is_empty())
    }

    /// Whether the session has subscribed to the pattern `*`, so it gets every message.
    pub(crate) fn hears_everything(&self) -> bool {
        self.subscriptions[1].contains(b"*".as_slice())
    }

    /// Whether only commands of subscribers are allowed.
    pub(crate) fn is_restricted(&self) -> bool {
        !self.is_resp3 && self.is_subscribed()
    }

    pub(crate) fn expects(&self, request: &ScriptRequest) -> Expect {
        let args = request.args();
        match request {
            ScriptRequest::Silent(_) => return Expect::Nothing,
            ScriptRequest::Closes(_) => return Expect::Close,
            _ if args.is_empty() => return Expect::Nothing,
            _ => {}
        }
        let name = name(args);
        if name == "QUIT" {
            return Expect::Close;
        }
        let is_plain = self.queue.is_none() && !self.is_restricted();
        if is_plain && name == "CLIENT REPLY" && args.len() == 3 {
            match args[2].to_ascii_uppercase().as_slice() {
                b"ON" => return Expect::One,
                b"OFF" | b"SKIP" => return Expect::Nothing,
                _ => {}
            }
        }
        if self.replies != ReplySwitch::On {
            return Expect::Nothing;
        }
        if self.queue.is_some() {
            return Expect::One;
        }
        match subscription(&name) {
            // UNSUBSCRIBE without names brings one confirmation each, or one if there was none.
            Some((family, false)) if args.len() == 1 => {
                return Expect::Confirmations(self.subscriptions[family].len().max(1));
            }
            // SUBSCRIBE without names is an error.
            Some(_) => return Expect::Confirmations((args.len() - 1).max(1)),
            None => {}
        }
        if is_plain && blocks_without_end(args) {
            return Expect::Someday;
        }
        Expect::One
    }

    /// Whether a frame is the message of a subscription, and no reply.
    pub(crate) fn is_message(&self, frame: &Frame) -> bool {
        let kind = frame
            .items()
            .first()
            .and_then(Frame::text)
            .unwrap_or_default();
        let is_confirmation = |kind: &[u8]| kind.ends_with(b"subscribe");
        match frame {
            Frame::List(b'>', _) => !is_confirmation(kind),
            // In RESP2 it looks like any array, but a subscriber gets no other reply that begins
            // so.
            _ => {
                self.is_subscribed()
                    && [b"message".as_slice(), b"pmessage", b"smessage"].contains(&kind)
            }
        }
    }

    /// Whether a message belongs to a confirmed subscription that has not ended.
    pub(crate) fn is_subscribed_to(&self, message: &Frame) -> bool {
        let [kind, name, ..] = message.items() else {
            return false;
        };
        let family = match kind.text() {
            Some(b"message") => 0,
            Some(b"pmessage") => 1,
            Some(b"smessage") => 2,
            // Other pushes belong to no subscription.
            _ => return true,
        };
        name.text()
            .is_some_and(|name| self.subscriptions[family].contains(name))
    }

    /// Takes one confirmation of a subscription as soon as it comes.
    pub(crate) fn handle_confirmation(&mut self, frame: &Frame) {
        let [kind, channel, ..] = frame.items() else {
            return;
        };
        let kind = kind.text().unwrap_or_default().to_ascii_uppercase();
        let kind = String::from_utf8_lossy(&kind).into_owned();
        if let (Some((family, joins)), Some(channel)) = (subscription(&kind), channel.text()) {
            if joins {
                self.subscriptions[family].insert(channel.to_vec());
            } else {
                self.subscriptions[family].remove(channel);
            }
        }
    }

    /// Forgets all subscriptions.
    pub(crate) fn leave_all(&mut self) {
        self.subscriptions = Default::default();
    }

    /// Takes the result of a request. `reply` is `None` when none was due.
    pub(crate) fn handle_reply(&mut self, request: &ScriptRequest, reply: Option<&Frame>) {
        let args = request.args();
        if args.is_empty() {
            return;
        }
        let name = name(args);
        let is_reply_mode = name == "CLIENT REPLY" && self.queue.is_none() && !self.is_restricted();
        if self.replies == ReplySwitch::Skip && !is_reply_mode {
            self.replies = ReplySwitch::On;
        }
        // A request without a reply is taken for a success.
        let has_failed = reply.is_some_and(Frame::is_error);
        if is_reply_mode && args.len() == 3 && !has_failed {
            match (args[2].to_ascii_uppercase().as_slice(), self.replies) {
                (b"ON", _) => self.replies = ReplySwitch::On,
                (b"OFF", _) => self.replies = ReplySwitch::Off,
                (b"SKIP", ReplySwitch::On) => self.replies = ReplySwitch::Skip,
                _ => {}
            }
            return;
        }
        let is_queued = matches!(reply, Some(Frame::Line(b'+', text)) if text == b"QUEUED");
        if let (Some(queue), true) = (&mut self.queue, is_queued) {
            queue.push(args.to_vec());
            return;
        }
        self.apply(args, &name, reply, has_failed);
    }

    fn apply(&mut self, args: &[Vec<u8>], name: &str, reply: Option<&Frame>, has_failed: bool) {
        if name == "EXEC" {
            let without_multi = reply
                .and_then(Frame::text)
                .is_some_and(|text| text.starts_with(b"ERR EXEC without MULTI"));
            if without_multi {
                return;
            }
            self.watched.clear();
            let queue = self.queue.take().unwrap_or_default();
            for (args, item) in queue
                .iter()
                .zip(reply.map(Frame::items).unwrap_or_default())
            {
                let name = super::script::name(args);
                if subscription(&name).is_some() {
                    self.handle_confirmation(item);
                }
                self.apply(args, &name, Some(item), item.is_error());
            }
            return;
        }
        if has_failed {
            return;
        }
        match name {
            "MULTI" => self.queue = Some(Vec::new()),
            "DISCARD" => {
                self.queue = None;
                self.watched.clear();
            }
            "WATCH" => self.watched.extend(args[1..].iter().cloned()),
            "UNWATCH" => self.watched.clear(),
            "CLIENT TRACKING" => {
                self.is_tracking = args
                    .get(2)
                    .is_some_and(|arg| arg.eq_ignore_ascii_case(b"ON"))
            }
            "RESET" => *self = SessionModel::default(),
            "SELECT" => {
                let db = args
                    .get(1)
                    .and_then(|db| std::str::from_utf8(db).ok()?.parse().ok());
                self.db = db.unwrap_or(self.db);
            }
            "HELLO" => match args.get(1).map(Vec::as_slice) {
                Some(b"2") => self.is_resp3 = false,
                Some(b"3") => self.is_resp3 = true,
                _ => {}
            },
            _ => {}
        }
    }
}

/// The kind of subscription of a command, and whether it subscribes or unsubscribes.
pub(crate) fn subscription(name: &str) -> Option<(usize, bool)> {
    Some(match name {
        "SUBSCRIBE" => (0, true),
        "PSUBSCRIBE" => (1, true),
        "SSUBSCRIBE" => (2, true),
        "UNSUBSCRIBE" => (0, false),
        "PUNSUBSCRIBE" => (1, false),
        "SUNSUBSCRIBE" => (2, false),
        _ => return None,
    })
}

/// Whether it may block until another connection serves it.
pub(crate) fn blocks_without_end(args: &[Vec<u8>]) -> bool {
    let is_zero = |arg: &Vec<u8>| {
        let number = std::str::from_utf8(arg)
            .ok()
            .and_then(|text| text.parse::<f64>().ok());
        number == Some(0.0)
    };
    match name(args).as_str() {
        "BLPOP" | "BRPOP" | "BZPOPMIN" | "BZPOPMAX" | "BRPOPLPUSH" | "BLMOVE" => {
            args.last().is_some_and(is_zero)
        }
        "BLMPOP" | "BZMPOP" => args.get(1).is_some_and(is_zero),
        "XREAD" | "XREADGROUP" => {
            let upper: Vec<Vec<u8>> = args.iter().map(|arg| arg.to_ascii_uppercase()).collect();
            let options = upper
                .iter()
                .position(|arg| arg == b"STREAMS")
                .unwrap_or(upper.len());
            let block = upper[..options].iter().position(|arg| arg == b"BLOCK");
            block.and_then(|at| args.get(at + 1)).is_some_and(is_zero)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(line: &str) -> ScriptRequest {
        ScriptRequest::Array(
            line.split(' ')
                .map(|word| word.as_bytes().to_vec())
                .collect(),
        )
    }

    fn line(text: &str) -> Frame {
        Frame::Line(text.as_bytes()[0], text.as_bytes()[1..].to_vec())
    }

    fn push(words: &[&str]) -> Frame {
        let bulk = |word: &&str| Frame::Bulk(b'$', Some(word.as_bytes().to_vec()));
        Frame::List(b'>', Some(words.iter().map(bulk).collect()))
    }

    #[test]
    fn expected_replies_depend_on_earlier_requests() {
        let mut session = SessionModel::default();
        assert_eq!(session.expects(&request("BLPOP k 0")), Expect::Someday);
        assert_eq!(session.expects(&request("BLPOP k 0.1")), Expect::One);
        assert_eq!(
            session.expects(&request("XREAD BLOCK 0 STREAMS s $")),
            Expect::Someday
        );
        assert_eq!(
            session.expects(&request("XREAD STREAMS BLOCK 0")),
            Expect::One
        );
        assert_eq!(
            session.expects(&request("UNSUBSCRIBE")),
            Expect::Confirmations(1)
        );

        session.handle_reply(&request("MULTI"), Some(&line("+OK")));
        assert_eq!(session.expects(&request("BLPOP k 0")), Expect::One);
        session.handle_reply(&request("HELLO 3"), Some(&line("+QUEUED")));
        let results = Frame::List(b'*', Some(vec![push(&[])]));
        session.handle_reply(&request("EXEC"), Some(&results));
        assert!(session.queue.is_none() && session.is_resp3);

        session.handle_confirmation(&push(&["subscribe", "a", "1"]));
        session.handle_confirmation(&push(&["subscribe", "b", "2"]));
        assert_eq!(
            session.expects(&request("UNSUBSCRIBE")),
            Expect::Confirmations(2)
        );
        assert!(session.is_message(&push(&["message", "a", "x"])));
        assert!(session.is_subscribed_to(&push(&["message", "a", "x"])));
        assert!(!session.is_subscribed_to(&push(&["message", "c", "x"])));
        session.handle_reply(&request("RESET"), Some(&line("+RESET")));
        assert!(!session.is_subscribed() && !session.is_resp3);
    }

    /// A reply that CLIENT REPLY suppresses is not waited for.
    #[test]
    fn client_reply_off_expects_no_reply() {
        let mut session = SessionModel::default();
        assert_eq!(
            session.expects(&request("CLIENT REPLY SKIP")),
            Expect::Nothing
        );
        session.handle_reply(&request("CLIENT REPLY SKIP"), None);
        assert_eq!(session.expects(&request("GET k")), Expect::Nothing);
        session.handle_reply(&request("GET k"), None);
        assert_eq!(session.expects(&request("GET k")), Expect::One);
        session.handle_reply(&request("client reply off"), None);
        assert_eq!(session.expects(&request("GET k")), Expect::Nothing);
        session.handle_reply(&request("GET k"), None);
        assert_eq!(session.expects(&request("GET k")), Expect::Nothing);
        assert_eq!(session.expects(&request("CLIENT REPLY ON")), Expect::One);
    }
}

//! Errors by which a node says that it executed nothing of a request: their kinds, and redirects.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, reason = "it reads bytes of a server")
)]

use std::str;

use super::{HOST_BYTES_MAX, split_address};
use crate::number;
use crate::slot::SLOTS;

/// The reason why a node executed nothing. The first word of its error tells it; for
/// [`Refusal::Unblocked`] the whole text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `MOVED`: another node owns the slot, see [`Redirect`].
    Moved,
    /// `ASK`: the slot migrates to another node, which may have the key. It holds for this request.
    Ask,
    /// `TRYAGAIN`: the slot migrates, and its old and new owner each have some of the keys.
    TryAgain,
    /// `CLUSTERDOWN`: the slot has no owner, or too many nodes are unreachable.
    ClusterDown,
    /// `LOADING`: the node still loads its data.
    Loading,
    /// `MASTERDOWN`: a replica has no link to its primary, and is configured not to serve then.
    MasterDown,
    /// `READONLY`: a write reached a replica.
    ReadOnly,
    /// `UNBLOCKED`, with the text for a primary that becomes a replica: a blocking command ends
    /// there. A client that another client unblocks gets another text, which is not a refusal.
    Unblocked,
}

/// The error of a blocking command at a primary that becomes a replica.
const UNBLOCKED: &[u8] =
    b"UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";

impl Refusal {
    /// The refusal in an error, or `None` if the error concerns the request itself.
    ///
    /// `error` is without its leading `-`, and with or without its line end. The first byte decides
    /// most cases, so every error may be checked.
    #[inline]
    pub fn of(error: &[u8]) -> Option<Refusal> {
        let (word, refusal): (&[u8], Refusal) = match error {
            [b'M', b'O', ..] => (b"MOVED", Refusal::Moved),
            [b'A', ..] => (b"ASK", Refusal::Ask),
            [b'T', ..] => (b"TRYAGAIN", Refusal::TryAgain),
            [b'C', ..] => (b"CLUSTERDOWN", Refusal::ClusterDown),
            [b'L', ..] => (b"LOADING", Refusal::Loading),
            [b'M', b'A', ..] => (b"MASTERDOWN", Refusal::MasterDown),
            [b'R', ..] => (b"READONLY", Refusal::ReadOnly),
            [b'U', ..] => (UNBLOCKED, Refusal::Unblocked),
            _ => return None,
        };
        match error.strip_prefix(word)? {
            [] | [b' ' | b'\r', ..] => Some(refusal),
            _ => None,
        }
    }
}

/// The redirect in an error: `MOVED 3999 127.0.0.1:6381`, `ASK 3999 one.example:6381`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirect<'a> {
    /// Whether it is an ASK. It holds for one request, which needs ASKING in front of it.
    pub ask: bool,
    /// The slot, less than [`SLOTS`].
    pub slot: u16,
    /// A name, an IPv4 address or an IPv6 address without brackets. `None`: the host of the node
    /// that answered. The node writes no host or, for an unknown host name, `?`.
    pub host: Option<&'a str>,
    /// The port, never 0.
    pub port: u16,
}

impl<'a> Redirect<'a> {
    /// Reads an error, without its leading `-`, and with or without its line end. `None` if it is
    /// not MOVED or ASK, or has no usable address.
    pub fn read(error: &'a [u8]) -> Option<Redirect<'a>> {
        let ask = match Refusal::of(error)? {
            Refusal::Moved => false,
            Refusal::Ask => true,
            _ => return None,
        };
        let line = error.strip_suffix(b"\r\n").unwrap_or(error);
        // More than three words may come from later versions and are ignored.
        let mut words = line.split(|&byte| byte == b' ').skip(1);
        let slot = number::parse(words.next()?)?;
        let slot = u16::try_from(slot).ok().filter(|&slot| slot < SLOTS)?;
        let (host, port) = split_address(str::from_utf8(words.next()?).ok()?)?;
        let host = Some(host).filter(|host| !matches!(*host, "" | "?"));
        if port == 0 || host.is_some_and(|host| host.len() > HOST_BYTES_MAX) {
            return None;
        }
        Some(Redirect {
            ask,
            slot,
            host,
            port,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WORDS: [(&str, Refusal); 7] = [
        ("MOVED", Refusal::Moved),
        ("ASK", Refusal::Ask),
        ("TRYAGAIN", Refusal::TryAgain),
        ("CLUSTERDOWN", Refusal::ClusterDown),
        ("LOADING", Refusal::Loading),
        ("MASTERDOWN", Refusal::MasterDown),
        ("READONLY", Refusal::ReadOnly),
    ];

    fn redirect(host: Option<&str>, slot: u16, port: u16, ask: bool) -> Redirect<'_> {
        Redirect {
            ask,
            slot,
            host,
            port,
        }
    }

    /// The complete first word decides, and the text behind it does not count.
    #[test]
    fn first_word_decides_the_refusal() {
        for (word, refusal) in WORDS {
            for rest in ["", " ", " and more\r\n", "\r\n"] {
                assert_eq!(
                    Refusal::of(format!("{word}{rest}").as_bytes()),
                    Some(refusal)
                );
            }
            for other in [
                &word[1..],
                &word[..word.len() - 1],
                &format!("{word}S"),
                &format!("ERR {word}"),
                &format!("-{word}"),
                &word.to_lowercase(),
            ] {
                assert_eq!(Refusal::of(other.as_bytes()), None, "{other}");
            }
        }
        for other in [
            "",
            "ERR",
            "WRONGTYPE Operation",
            "CROSSSLOT Keys",
            "MISCONF x",
        ] {
            assert_eq!(Refusal::of(other.as_bytes()), None, "{other}");
        }
        // UNBLOCKED is a refusal only with the text for a primary that becomes a replica.
        assert_eq!(Refusal::of(UNBLOCKED), Some(Refusal::Unblocked));
        let line = [UNBLOCKED, b"\r\n"].concat();
        assert_eq!(Refusal::of(&line), Some(Refusal::Unblocked));
        for other in [
            &b"UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n"[..],
            b"UNBLOCKED\r\n",
            b"UNBLOCKED the stream key no longer exists",
        ] {
            assert_eq!(Refusal::of(other), None);
        }
    }

    /// A redirect has a slot, a port, and a host: a name, an IPv4 or IPv6 address, or none.
    #[test]
    fn redirect_has_slot_host_and_port() {
        for (error, expected) in [
            (
                "MOVED 3999 127.0.0.1:6381",
                redirect(Some("127.0.0.1"), 3999, 6381, false),
            ),
            (
                "ASK 0 one.example:1\r\n",
                redirect(Some("one.example"), 0, 1, true),
            ),
            ("MOVED 16383 :65535", redirect(None, 16383, 65535, false)),
            ("MOVED 1 ?:6381", redirect(None, 1, 6381, false)),
            ("ASK 7 ::1:6381", redirect(Some("::1"), 7, 6381, true)),
            (
                "MOVED 7 [2001:db8::2]:6381",
                redirect(Some("2001:db8::2"), 7, 6381, false),
            ),
            ("MOVED 7 h:6381 later", redirect(Some("h"), 7, 6381, false)),
        ] {
            assert_eq!(Redirect::read(error.as_bytes()), Some(expected), "{error}");
        }
        let long = format!("MOVED 1 {}:1", "h".repeat(HOST_BYTES_MAX + 1));
        for error in [
            "MOVED",
            "MOVED 1",
            "MOVED 1 ",
            "MOVED 1 h",
            "MOVED 1 h:",
            "MOVED 1 h:0",
            "MOVED 1 h:65536",
            "MOVED 1 h:+1",
            "MOVED 16384 h:1",
            "MOVED -1 h:1",
            "MOVED  1 h:1",
            "MOVED x h:1",
            "MOVED 1 h\x01:1",
            "MOVED 1 \u{e9}:1",
            "TRYAGAIN 1 h:1",
            &long,
        ] {
            assert_eq!(Redirect::read(error.as_bytes()), None, "{error}");
        }
        assert_eq!(Redirect::read(b"MOVED 1 \xff:1"), None);
    }

    proptest! {
        /// A written redirect is read back.
        #[test]
        fn written_redirect_is_read_back(
            ask: bool,
            slot in 0..SLOTS,
            host in "[a-z0-9.:-]{0,60}",
            port in 1..=u16::MAX,
        ) {
            let word = if ask { "ASK" } else { "MOVED" };
            let error = format!("{word} {slot} {host}:{port}\r\n");
            let host = Some(host.as_str()).filter(|host| !host.is_empty());
            prop_assert_eq!(Redirect::read(error.as_bytes()), Some(redirect(host, slot, port, ask)));
        }

        /// Any bytes behind a refusal's word are accepted, and any redirect that is read is valid.
        #[test]
        fn any_bytes_are_a_refusal_or_none(
            word in prop::sample::select(WORDS.map(|(word, _)| word).to_vec()),
            rest in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(b" :0129.[]?\r\n".to_vec())], 0..30),
        ) {
            let error = [word.as_bytes(), b" ", &rest].concat();
            prop_assert!(Refusal::of(&error).is_some());
            if let Some(redirect) = Redirect::read(&error) {
                prop_assert!(redirect.slot < SLOTS && redirect.port > 0 && redirect.host != Some(""));
            }
            prop_assert_eq!(Redirect::read(&rest), None);
            let _ = Refusal::of(&rest);
        }
    }
}

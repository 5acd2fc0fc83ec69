//! When two replies count as equal.
//!
//! Byte for byte, unless [`RULES`] says otherwise. The table has every forgiven difference with its
//! reason. A report shows how often each rule was needed.

use std::collections::BTreeMap;

use super::PREFIX;
use super::script::name;
use super::side::{Exchange, Messages, Side, SideConnection};
use super::state::{sorted, sorted_pairs, without_times};
use respool_testkit::frame::{Frame, REFUSAL};
use respool_testkit::words;

/// A forgiven difference, its commands and its reason.
struct ForgivenDifference {
    /// Names of commands, with the subcommand where there is one.
    commands: &'static [&'static str],
    why: &'static str,
    same: fn(&[Vec<u8>], &Frame, &Frame) -> bool,
}

/// Two servers without respool differ in these as well, except where a rule says that only respool
/// needs it.
const RULES: &[ForgivenDifference] = &[
    ForgivenDifference {
        commands: &[
            "SMEMBERS",
            "SINTER",
            "SUNION",
            "SDIFF",
            "HKEYS",
            "HVALS",
            "KEYS",
            "SPOP",
            "SRANDMEMBER",
            "ACL CAT",
            "COMMAND LIST",
            "PUBSUB CHANNELS",
            "PUBSUB SHARDCHANNELS",
            "FUNCTION LIST",
            "COMMAND DOCS",
        ],
        why: "hash tables answer in the order of a seed that every server draws anew",
        same: |_, one, two| sorted(one) == sorted(two),
    },
    ForgivenDifference {
        commands: &["COMMAND"],
        why: "hash tables answer in the order of a seed that every server draws anew (commands, and subcommands in each)",
        same: |_, one, two| one.items().len() == two.items().len(),
    },
    ForgivenDifference {
        commands: &["HGETALL", "HRANDFIELD", "ZRANDMEMBER", "CONFIG GET"],
        why: "hash tables answer in the order of a seed that every server draws anew (pairs)",
        same: |args, one, two| {
            let has_pairs = args.len() != 3 || name(args) == "CONFIG GET";
            if has_pairs {
                sorted_pairs(one) == sorted_pairs(two)
            } else {
                sorted(one) == sorted(two)
            }
        },
    },
    ForgivenDifference {
        commands: &["SCAN", "SSCAN", "HSCAN", "ZSCAN"],
        why: "a scan goes through a hash table in the order of its seed (here always to its end: the cursor must be 0)",
        same: |args, one, two| {
            let has_pairs = matches!(name(args).as_str(), "HSCAN" | "ZSCAN")
                && !args.iter().any(|arg| arg.eq_ignore_ascii_case(b"NOVALUES"));
            match (one.items(), two.items()) {
                ([cursor_one, one], [cursor_two, two]) if cursor_one == cursor_two => {
                    if has_pairs {
                        sorted_pairs(one) == sorted_pairs(two)
                    } else {
                        sorted(one) == sorted(two)
                    }
                }
                _ => false,
            }
        },
    },
    ForgivenDifference {
        commands: &["RANDOMKEY"],
        why: "which key is left to chance; whether there is one is not",
        same: |_, one, two| one.class() == two.class(),
    },
    ForgivenDifference {
        commands: &[
            "TTL",
            "PTTL",
            "EXPIRETIME",
            "PEXPIRETIME",
            "HTTL",
            "HPTTL",
            "HEXPIRETIME",
            "HPEXPIRETIME",
        ],
        why: "the two sides run one after the other: times may be a minute apart (those in scripts are 1000 s apart)",
        same: |args, one, two| {
            let tolerance = if name(args).contains('P') { 60_000 } else { 60 };
            near(one, two, tolerance)
        },
    },
    ForgivenDifference {
        commands: &["OBJECT IDLETIME", "OBJECT FREQ", "MEMORY USAGE"],
        why: "idle seconds grow, access counters are probabilistic, and an allocator rounds by its history",
        same: |_, one, two| one.class() == two.class(),
    },
    ForgivenDifference {
        commands: &[
            "XINFO STREAM",
            "XINFO GROUPS",
            "XINFO CONSUMERS",
            "XPENDING",
            "XREADGROUP",
        ],
        why: "the replies hold times of deliveries and of consumers, and ages",
        same: |_, one, two| without_idle(&without_times(one)) == without_idle(&without_times(two)),
    },
    ForgivenDifference {
        commands: &["DUMP"],
        why: "hash tables are written in the order of a seed that every server draws anew (contents are compared at the \
              end), streams with times",
        same: |_, one, two| one.class() == two.class(),
    },
    ForgivenDifference {
        commands: &["CLIENT ID", "TIME", "LASTSAVE", "CLIENT GETREDIR"],
        why: "ids of connections and times are each server's own",
        same: |_, one, two| shape(one) == shape(two),
    },
    ForgivenDifference {
        commands: &["HELLO"],
        why: "its field id is each server's own",
        same: |_, one, two| without_fields(one, &["id"]) == without_fields(two, &["id"]),
    },
    ForgivenDifference {
        commands: &["HELLO"],
        why: "respool does not tell which modules its server has (only respool needs this rule)",
        same: |_, one, two| {
            let fields = ["id", "modules"];
            without_fields(one, &fields) == without_fields(two, &fields)
        },
    },
    ForgivenDifference {
        commands: &[
            "CLIENT INFO",
            "CLIENT LIST",
            "INFO",
            "MEMORY STATS",
            "LATENCY HISTOGRAM",
        ],
        why: "the reply describes the server process (addresses, ages, memory); both sides return text",
        same: |_, one, two| one.class() == two.class(),
    },
    ForgivenDifference {
        commands: &["UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE"],
        why: "UNSUBSCRIBE without arguments confirms in the order of a hash table; each channel once, with falling counts",
        // Several frames make up the reply: see `same_confirmations`.
        same: |_, _, _| false,
    },
];

/// How often each rule was needed, by its reason.
pub(crate) type Forgiven = BTreeMap<&'static str, u64>;

/// A difference, and how to tell it from others.
#[derive(Clone, Debug)]
pub(crate) struct Difference {
    /// Its subject: a request, a message, a key.
    pub(crate) about: String,
    pub(crate) direct: String,
    pub(crate) other: String,
    /// Equal for differences that are most likely one defect.
    pub(crate) signature: String,
}

impl Difference {
    /// Whether it is a refusal in respool's own words.
    pub(crate) fn is_refusal(&self) -> bool {
        let error = self.other.strip_prefix('-');
        error.is_some_and(|error| error.starts_with(REFUSAL))
    }
}

/// The first difference between the replies to two connections in a round.
pub(crate) fn connections(
    index: usize,
    direct: &SideConnection,
    other: &SideConnection,
    forgiven: &mut Forgiven,
) -> Option<Difference> {
    let place = |what: &str| format!("connection {index}: {}", words::cut(what));
    if let Some(trouble) = &other.trouble {
        return Some(Difference {
            about: place("the received replies"),
            direct: "well-formed, and as many as were asked".to_owned(),
            other: trouble.clone(),
            signature: "trouble".to_owned(),
        });
    }
    for (at, one) in direct.done.iter().enumerate() {
        let Some(two) = other.done.get(at) else {
            return Some(Difference {
                about: place(&one.request.line()),
                direct: show(one),
                other: "no reply".to_owned(),
                signature: format!("{}: {} / nothing", one.request.name(), class(one)),
            });
        };
        if !exchanges(one, two, forgiven) {
            return Some(Difference {
                about: place(&one.request.line()),
                direct: show(one),
                other: show(two),
                signature: signature(one, two),
            });
        }
    }
    if let Some(two) = other.done.get(direct.done.len()) {
        return Some(Difference {
            about: place(&two.request.line()),
            direct: "no reply yet".to_owned(),
            other: show(two),
            signature: format!("{}: nothing / {}", two.request.name(), class(two)),
        });
    }
    if direct.is_open() != other.is_open() {
        let state = |connection: &SideConnection| {
            let state = if connection.is_open() {
                "open"
            } else {
                "closed"
            };
            state.to_owned()
        };
        return Some(Difference {
            about: place("in the end it is"),
            direct: state(direct),
            other: state(other),
            signature: format!("{} / {}", state(direct), state(other)),
        });
    }
    if let Some(message) = other.unsubscribed.first() {
        return Some(Difference {
            about: place("a message of a subscription that is not there"),
            direct: "none".to_owned(),
            other: message.to_string(),
            signature: "a message without a subscription".to_owned(),
        });
    }
    if !same_messages(&direct.messages, &other.messages, forgiven) {
        let list = |connection: &SideConnection| {
            let channels = connection.messages.iter().map(|(channel, payloads)| {
                let channel: Vec<String> = channel.iter().map(Frame::to_string).collect();
                let payloads: Vec<String> = payloads.iter().map(Frame::to_string).collect();
                format!("{}: {}", channel.join(" "), payloads.join(", "))
            });
            channels.collect::<Vec<_>>().join("; ")
        };
        let order = match direct.message_count.cmp(&other.message_count) {
            std::cmp::Ordering::Less => "too many",
            std::cmp::Ordering::Equal => "others",
            std::cmp::Ordering::Greater => "too few",
        };
        return Some(Difference {
            about: place("its messages"),
            direct: list(direct),
            other: list(other),
            signature: format!("messages: {order}"),
        });
    }
    None
}

/// The first difference of a round. A refusal comes before others, as they may follow from it.
pub(crate) fn sides(direct: &Side, other: &Side, forgiven: &mut Forgiven) -> Option<Difference> {
    let pairs = direct
        .connections
        .iter()
        .zip(&other.connections)
        .enumerate();
    let mut differences: Vec<Difference> = pairs
        .filter_map(|(index, (one, two))| connections(index, one, two, forgiven))
        .collect();
    let refusal = differences.iter().position(Difference::is_refusal);
    let first = refusal.unwrap_or(0);
    (first < differences.len()).then(|| differences.swap_remove(first))
}

/// A different number of blocked clients at the end of a round. Both sides have got as many
/// replies.
pub(crate) fn blocked(direct: i64, other: i64) -> Option<Difference> {
    let order = match direct.cmp(&other) {
        std::cmp::Ordering::Less => "too many",
        std::cmp::Ordering::Equal => return None,
        std::cmp::Ordering::Greater => "too few",
    };
    Some(Difference {
        about: "clients that wait at the server".to_owned(),
        direct: direct.to_string(),
        other: other.to_string(),
        signature: format!("blocked clients: {order}"),
    })
}

fn exchanges(one: &Exchange, two: &Exchange, forgiven: &mut Forgiven) -> bool {
    if one.has_closed != two.has_closed {
        return false;
    }
    if one.frames == two.frames {
        return true;
    }
    let args = one.request.args();
    let request = name(args);
    if request.ends_with("UNSUBSCRIBE")
        && args.len() == 1
        && same_confirmations(&one.frames, &two.frames)
    {
        for rule in rules(&request) {
            *forgiven.entry(rule.why).or_default() += 1;
        }
        return true;
    }
    match (&one.frames[..], &two.frames[..]) {
        ([one_frame], [two_frame]) if request == "EXEC" => {
            let (results, others) = (one_frame.items(), two_frame.items());
            results.len() == others.len()
                && results.len() == one.queue.len()
                && results
                    .iter()
                    .zip(others)
                    .zip(&one.queue)
                    .all(|((one, two), args)| frames(args, one, two, forgiven))
        }
        ([one], [two]) => frames(args, one, two, forgiven),
        _ => false,
    }
}

/// The payloads of each channel in order. Different channels have no common order.
fn same_messages(one: &Messages, two: &Messages, forgiven: &mut Forgiven) -> bool {
    one.len() == two.len()
        && one
            .iter()
            .zip(two)
            .all(|((channel_one, one), (channel_two, two))| {
                let is_invalidation =
                    channel_one.first().and_then(Frame::text) == Some(b"invalidate");
                if is_invalidation && channel_one == channel_two && one != two {
                    *forgiven.entry(INVALIDATIONS).or_default() += 1;
                    return sorted_keys(one) == sorted_keys(two);
                }
                channel_one == channel_two && one == two
            })
}

/// Beside [`RULES`], the forgiven difference in errors.
const SHORT_NAMES: &str = "a server that sees keys without their prefix names them so in its errors \
                           (only respool needs this rule)";

/// The bytes of the arguments that a server shows for an unknown command.
const SHOWN_BYTES: usize = 100;

fn same_but_for_prefix(one: &Frame, two: &Frame) -> bool {
    let text = |frame: &Frame| {
        let text = String::from_utf8_lossy(frame.text().unwrap_or_default()).into_owned();
        text.replace(&String::from_utf8_lossy(PREFIX).into_owned(), "")
    };
    let (one, two) = (text(one), text(two));
    let is_unknown = one.starts_with("ERR unknown command ");
    one == two || is_unknown && two.starts_with(one.get(..SHOWN_BYTES).unwrap_or(&one))
}

/// Beside [`RULES`], the forgiven difference in invalidations, which are no replies.
const INVALIDATIONS: &str = "two connections that change keys in one round have no order; invalidations of these keys \
                             have none either, and come together in any number";

fn sorted_keys(payloads: &[Frame]) -> Vec<Frame> {
    let mut keys: Vec<Frame> = Vec::new();
    for payload in payloads {
        match payload {
            Frame::List(_, Some(items)) => keys.extend(items.iter().cloned()),
            other => keys.push(other.clone()),
        }
    }
    keys.sort();
    keys
}

fn frames(args: &[Vec<u8>], one: &Frame, two: &Frame, forgiven: &mut Forgiven) -> bool {
    if one == two {
        return true;
    }
    let request = name(args);
    if one.is_error() && two.is_error() && same_but_for_prefix(one, two) {
        *forgiven.entry(SHORT_NAMES).or_default() += 1;
        return true;
    }
    if one.is_error() || two.is_error() {
        return false;
    }
    let rule = rules(&request).find(|rule| (rule.same)(args, one, two));
    if let Some(rule) = rule {
        *forgiven.entry(rule.why).or_default() += 1;
    }
    rule.is_some()
}

fn rules(request: &str) -> impl Iterator<Item = &'static ForgivenDifference> + use<'_> {
    RULES
        .iter()
        .filter(move |rule| rule.commands.contains(&request))
}

fn without_fields(frame: &Frame, names: &[&str]) -> Frame {
    let is_named = |field: &[Frame]| {
        names
            .iter()
            .any(|name| field[0].text() == Some(name.as_bytes()))
    };
    match frame {
        Frame::List(kind, Some(items)) => {
            let fields: Vec<&[Frame]> = items.chunks(2).filter(|field| !is_named(field)).collect();
            Frame::List(*kind, Some(fields.concat()))
        }
        other => other.clone(),
    }
}

/// Each channel once, and the same counts of channels, in order.
fn same_confirmations(one: &[Frame], two: &[Frame]) -> bool {
    let channels = |frames: &[Frame]| {
        let mut names: Vec<Option<Frame>> = frames
            .iter()
            .map(|frame| frame.items().get(1).cloned())
            .collect();
        names.sort();
        names
    };
    let counts = |frames: &[Frame]| -> Vec<_> {
        frames
            .iter()
            .map(|frame| frame.items().get(2).cloned())
            .collect()
    };
    channels(one) == channels(two) && counts(one) == counts(two)
}

fn near(one: &Frame, two: &Frame, tolerance: u64) -> bool {
    match (one, two) {
        (Frame::List(kind_one, Some(one)), Frame::List(kind_two, Some(two))) => {
            kind_one == kind_two
                && one.len() == two.len()
                && one
                    .iter()
                    .zip(two)
                    .all(|(one, two)| near(one, two, tolerance))
        }
        _ => match (one.integer(), two.integer()) {
            // A negative number means that there is no expiry, or no key.
            (Some(one), Some(two)) if one >= 0 && two >= 0 => one.abs_diff(two) <= tolerance,
            _ => one == two,
        },
    }
}

/// The types of all its values.
fn shape(frame: &Frame) -> String {
    match frame {
        Frame::List(kind, Some(items)) => {
            let items: Vec<String> = items.iter().map(shape).collect();
            format!("{}[{}]", char::from(*kind), items.join(","))
        }
        other => other.class(),
    }
}

/// The frame without ages: maps and flat lists of fields name them, an entry of XPENDING has them
/// at a fixed place.
fn without_idle(frame: &Frame) -> Frame {
    let Frame::List(kind, Some(items)) = frame else {
        return frame.clone();
    };
    let mut items: Vec<Frame> = items.iter().map(without_idle).collect();
    for at in 1..items.len() {
        let named =
            [b"idle".as_slice(), b"inactive"].contains(&items[at - 1].text().unwrap_or_default());
        // [id, consumer, idle, deliveries]
        let is_entry = items.len() == 4
            && at == 2
            && items[0].text().is_some_and(|id| id.contains(&b'-'))
            && items[3].integer().is_some();
        if (named || is_entry) && items[at].integer().is_some() {
            items[at] = Frame::Line(b':', b"a while".to_vec());
        }
    }
    Frame::List(*kind, Some(items))
}

/// An error is known by its words alone: many commands return the same ones.
fn signature(one: &Exchange, two: &Exchange) -> String {
    let words = |exchange: &Exchange| -> Option<String> {
        let error = exchange.frames.first().filter(|frame| frame.is_error())?;
        let text = String::from_utf8_lossy(error.text()?).into_owned();
        // Quoted words are the client's.
        let words = text.split(|quote: char| "'`\"".contains(quote)).step_by(2);
        let words: String = words.collect::<Vec<_>>().join("…");
        let words = words.split("with args beginning with").next();
        Some(format!("-{}", words.unwrap_or_default().trim_end()))
    };
    let (said, other) = (words(one), words(two));
    let has_error = said.is_some() || other.is_some();
    let said = said.unwrap_or_else(|| class(one));
    let other = other.unwrap_or_else(|| class(two));
    if has_error && one.has_closed == two.has_closed {
        format!("{said} / {other}")
    } else {
        format!("{}: {said} / {other}", one.request.name())
    }
}

fn class(exchange: &Exchange) -> String {
    let mut text = exchange
        .frames
        .first()
        .map_or_else(|| "nothing".to_owned(), Frame::class);
    if exchange.has_closed {
        text.push_str(" and closed");
    }
    text
}

fn show(exchange: &Exchange) -> String {
    let mut text: Vec<String> = exchange.frames.iter().map(Frame::to_string).collect();
    if text.is_empty() {
        text.push("no reply".to_owned());
    }
    if exchange.has_closed {
        text.push("connection closed".to_owned());
    }
    text.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use respool_testkit::frame::Frames;

    fn frame(bytes: &[u8]) -> Frame {
        let mut frames = Frames::default();
        frames.push(bytes);
        frames.take().expect("a reply").expect("a whole one")
    }

    fn are_same(request: &str, one: &[u8], two: &[u8]) -> bool {
        let args: Vec<Vec<u8>> = request
            .split(' ')
            .map(|word| word.as_bytes().to_vec())
            .collect();
        frames(&args, &frame(one), &frame(two), &mut Forgiven::new())
    }

    #[test]
    fn only_named_differences_are_forgiven() {
        let (ab, ba) = (
            b"*2\r\n$1\r\na\r\n$1\r\nb\r\n",
            b"*2\r\n$1\r\nb\r\n$1\r\na\r\n",
        );
        assert!(are_same("SMEMBERS s", ab, ba));
        assert!(!are_same("LRANGE l 0 -1", ab, ba));
        assert!(
            !are_same("HGETALL h", ab, ba),
            "the value of one field is not another field"
        );
        assert!(
            !are_same("SMEMBERS s", ab, b"~2\r\n$1\r\nb\r\n$1\r\na\r\n"),
            "the type of a reply is never forgiven"
        );
        assert!(!are_same("SMEMBERS s", b"-ERR one\r\n", b"-ERR two\r\n"));
        assert!(are_same("TTL k", b":1000\r\n", b":990\r\n"));
        assert!(!are_same("TTL k", b":1000\r\n", b":2000\r\n"));
        assert!(!are_same("TTL k", b":-1\r\n", b":-2\r\n"));
        assert!(are_same(
            "HELLO 3",
            b"%1\r\n$2\r\nid\r\n:3\r\n",
            b"%1\r\n$2\r\nid\r\n:4\r\n"
        ));
        assert!(!are_same(
            "HELLO 3",
            b"%1\r\n$5\r\nproto\r\n:3\r\n",
            b"%1\r\n$5\r\nproto\r\n:2\r\n"
        ));
    }

    /// Ages are left out of the comparison, and nothing else.
    #[test]
    fn ages_are_left_out_and_nothing_else() {
        let entry = |idle: u8, count: u8| {
            format!("*1\r\n*4\r\n$3\r\n1-1\r\n$1\r\nc\r\n:{idle}\r\n:{count}\r\n")
        };
        assert!(are_same(
            "XPENDING x g - + 10",
            entry(1, 1).as_bytes(),
            entry(9, 1).as_bytes()
        ));
        assert!(!are_same(
            "XPENDING x g - + 10",
            entry(1, 1).as_bytes(),
            entry(1, 2).as_bytes()
        ));
    }
}

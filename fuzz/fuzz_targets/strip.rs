//! Key prefixes: without its prefix a request is otherwise the same, a pattern matches the same
//! keys, and a reply with the prefix is valid.
#![no_main]

use libfuzzer_sys::fuzz_target;
use respool_protocol::commands::{self, Names};
use respool_protocol::glob::{Left, Pattern};
use respool_protocol::{prefix, reply, request};

/// Separates a pattern from a key.
const SEPARATOR: u8 = 0xff;

// The first byte selects the keys of a reply, and the length of the prefix that follows it.
fuzz_target!(|input: &[u8]| {
    let Some((&choice, rest)) = input.split_first() else {
        return;
    };
    let Some((prefix, bytes)) = rest.split_at_checked(1 + usize::from(choice % 3)) else {
        return;
    };
    use Names::{Each, First, None, Second, Streams, Whole};
    let names = [None, Whole, Each, First, Second, Streams][usize::from(choice) / 3 % 6];
    take_off(bytes, prefix);
    put_back(bytes, names, prefix);
    find(bytes, prefix);
});

fn take_off(bytes: &[u8], prefix: &[u8]) {
    let mut scanner = request::RequestScanner::default();
    let Ok(request::Found::Request { len }) = scanner.scan(bytes, true) else {
        return;
    };
    let (bytes, spans) = (&bytes[..len], scanner.spans().to_vec());
    let Some(command) = commands::resolve(spans.len(), |at| spans[at].of(bytes)) else {
        return;
    };
    let command = command.get();
    let Ok(keys) = prefix::keys_of(command, bytes, spans.len(), &spans) else {
        return;
    };
    let mut out = Vec::new();
    if prefix::take_off(command, bytes, &spans, &keys, prefix, &mut out).is_err() {
        return;
    }
    let len = out.len();
    assert_eq!(
        scanner.scan(&out, true),
        Ok(request::Found::Request { len })
    );
    assert_eq!(scanner.spans().len(), spans.len());
    for (index, (was, is)) in spans.iter().zip(scanner.spans()).enumerate() {
        let removed = if keys.contains(&index) { prefix } else { b"" };
        assert_eq!(was.of(bytes), [removed, is.of(&out)].concat());
    }
}

fn put_back(bytes: &[u8], names: Names, prefix: &[u8]) {
    let is_complete = |bytes: &[u8]| {
        reply::ReplyScanner::default().scan(bytes) == Ok(reply::Scanned::Whole(bytes.len()))
    };
    let mut out = Vec::new();
    let restored = prefix::put_back(bytes, names, prefix, |_| true, &mut out);
    if is_complete(bytes) && restored.is_ok() {
        assert!(is_complete(&out), "{}", out.escape_ascii());
    }
}

fn find(bytes: &[u8], prefix: &[u8]) {
    let mut both = bytes.splitn(2, |&byte| byte == SEPARATOR);
    let (pattern, key) = (both.next().unwrap_or_default(), both.next());
    let (pattern, key) = (Pattern::new(pattern), key.unwrap_or_default());
    let found = match pattern.behind(prefix) {
        Left::Same(left) => Pattern::new(&left).finds(key),
        Left::More(left) => {
            let whole = [prefix, key].concat();
            Pattern::new(&left).finds(key) && pattern.finds(&whole)
        }
        Left::Unclear => return,
    };
    assert_eq!(found, pattern.finds(&[prefix, key].concat()));
}

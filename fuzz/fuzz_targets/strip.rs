//! Without a prefix in front of its keys a request is otherwise the same, a pattern finds the same keys, and with it a reply is one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use respool_protocol::commands::{self, Names};
use respool_protocol::glob::{Left, Pattern};
use respool_protocol::{prefix, reply, request};

/// Stands between a pattern and a key.
const BETWEEN: u8 = 0xff;

// The first byte says which keys a reply names, and how long the prefix is that follows it.
fuzz_target!(|input: &[u8]| {
    let Some((&how, rest)) = input.split_first() else {
        return;
    };
    let Some((prefix, bytes)) = rest.split_at_checked(1 + usize::from(how % 3)) else {
        return;
    };
    use Names::{Each, First, None, Second, Streams, Whole};
    let names = [None, Whole, Each, First, Second, Streams][usize::from(how) / 3 % 6];
    take_off(bytes, prefix);
    put_back(bytes, names, prefix);
    find(bytes, prefix);
});

fn take_off(bytes: &[u8], prefix: &[u8]) {
    let mut scanner = request::Scanner::default();
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
        let unseen = if keys.contains(&index) { prefix } else { b"" };
        assert_eq!(was.of(bytes), [unseen, is.of(&out)].concat());
    }
}

fn put_back(bytes: &[u8], names: Names, prefix: &[u8]) {
    let is_one = |bytes: &[u8]| {
        reply::Scanner::default().scan(bytes) == Ok(reply::Scanned::Whole(bytes.len()))
    };
    let mut out = Vec::new();
    let named = prefix::put_back(bytes, names, prefix, |_| true, &mut out);
    if is_one(bytes) && named.is_ok() {
        assert!(is_one(&out), "{}", out.escape_ascii());
    }
}

fn find(bytes: &[u8], prefix: &[u8]) {
    let mut both = bytes.splitn(2, |&byte| byte == BETWEEN);
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

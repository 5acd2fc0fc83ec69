//! The shares of a divided request are together the request. Any replies of servers merge into one
//! complete reply.
#![no_main]

use libfuzzer_sys::fuzz_target;
use respool_protocol::commands::{self, CommandId};
use respool_protocol::fan::{Divided, Merger, Part, Split, scan_reply};
use respool_protocol::{reply, request};

/// Separates the replies of two servers.
const SEPARATOR: u8 = 0xff;

// The first two bytes select a command, the next four the server of each key.
fuzz_target!(|input: &[u8]| {
    let Some((&[low, high, order @ ..], bytes)) = input.split_first_chunk::<6>() else {
        return;
    };
    divide(bytes);
    let row = usize::from(u16::from_le_bytes([low, high])) % CommandId::COUNT;
    let command = commands::all().nth(row).expect("a row of the table");
    merge(command, &order, bytes);
});

fn divide(bytes: &[u8]) {
    let mut scanner = request::RequestScanner::default();
    let Ok(request::Found::Request { len }) = scanner.scan(bytes, true) else {
        return;
    };
    let (request, spans) = (&bytes[..len], scanner.spans());
    let Some(command) = commands::resolve(spans.len(), |at| spans[at].of(request)) else {
        return;
    };
    let group_of = |key: &[u8]| {
        key.iter()
            .fold(0, |sum: u16, &byte| sum.wrapping_add(byte.into()))
            % 3
    };
    let mut split = Split::default();
    let mut keys = Vec::new();
    let divided = split.divide(command, request, spans, |key| {
        keys.push(key.to_vec());
        group_of(key)
    });
    if divided != Ok(Divided::Shares) {
        assert_eq!(split.shares().len(), 0);
        return;
    }
    assert_eq!(split.order().len(), keys.len());
    let mut shares = Vec::new();
    for share in split.shares() {
        let len = share.request.len();
        assert_eq!(
            scanner.scan(share.request, true),
            Ok(request::Found::Request { len })
        );
        let mut keys = Vec::new();
        let again = Split::default().divide(command, share.request, scanner.spans(), |key| {
            keys.push(key.to_vec());
            group_of(key)
        });
        assert_eq!(again, Ok(Divided::Whole { group: share.group }));
        assert_eq!(keys.len(), share.keys as usize);
        shares.push(keys.into_iter());
    }
    for (key, &share) in keys.iter().zip(split.order()) {
        assert_eq!(shares[usize::from(share)].next().as_ref(), Some(key));
    }
    assert!(shares.iter_mut().all(|keys| keys.next().is_none()));
}

fn merge(command: CommandId, order: &[u8], bytes: &[u8]) {
    let replies = bytes.split(|&byte| byte == SEPARATOR);
    let parts: Vec<Part<'_>> = replies
        .map(|reply| Part {
            server: "127.0.0.1:6379",
            reply,
        })
        .collect();
    let order: Vec<u16> = order.iter().map(|&share| u16::from(share % 4)).collect();
    let mut out = Vec::new();
    for keys in 0..=order.len() {
        out.clear();
        Merger::default().merge(command, &order[..keys], &parts, &mut out);
        assert!(is_one_reply(&out), "{}", out.escape_ascii());
    }
    out.clear();
    scan_reply(parts[0], 0, Some(1), &mut out);
    assert!(is_one_reply(&out), "{}", out.escape_ascii());
}

fn is_one_reply(bytes: &[u8]) -> bool {
    reply::ReplyScanner::default().scan(bytes) == Ok(reply::Scanned::Whole(bytes.len()))
}

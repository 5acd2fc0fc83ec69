//! Any chunking of any bytes gives the same requests, and the same as a simple reader of Redis's
//! rules.
#![no_main]

use libfuzzer_sys::fuzz_target;
use respool_protocol::request::{
    ARGS_MAX, BULK_BYTES_MAX, Found, RequestScanner, UNAUTHENTICATED_ARGS_MAX,
    UNAUTHENTICATED_BULK_BYTES_MAX, Violation, split_inline,
};

#[derive(Clone, Debug, PartialEq)]
enum Event {
    Request(Vec<Vec<u8>>),
    Line(Result<Vec<Vec<u8>>, Violation>),
    Nothing,
    Violation(Violation),
}

// The first byte says whether the client is trusted. The next seven bytes are the cuts.
fuzz_target!(|input: &[u8]| {
    let Some((head, bytes)) = input.split_at_checked(8) else {
        return;
    };
    let trusted = head[0] % 2 == 0;
    let cuts = head[1..]
        .iter()
        .map(|cut| usize::from(*cut) * bytes.len() / 256);
    let whole = scan(bytes, [].into_iter(), trusted);
    assert_eq!(scan(bytes, cuts, trusted), whole, "cut in pieces");
    assert_eq!(
        scan(bytes, 0..bytes.len(), trusted),
        whole,
        "one byte at a time"
    );
    assert_eq!(read_simply(bytes, trusted), whole, "read simply");
});

/// Scans the bytes in pieces. Returns each event with the end of its request.
fn scan(bytes: &[u8], cuts: impl Iterator<Item = usize>, trusted: bool) -> Vec<(usize, Event)> {
    let mut cuts: Vec<usize> = cuts.chain([bytes.len()]).collect();
    cuts.sort_unstable();
    let mut scanner = RequestScanner::default();
    let mut events = Vec::new();
    let mut start = 0;
    for cut in cuts {
        loop {
            let pending = &bytes[start..cut];
            let (len, event) = match scanner.scan(pending, trusted) {
                Ok(Found::More) => {
                    check_tail(&scanner, &bytes[start..], pending.len(), trusted);
                    break;
                }
                Ok(Found::Nothing { len }) => (len, Event::Nothing),
                Ok(Found::Inline { len }) => (len, Event::Line(split_inline(&pending[..len]))),
                Ok(Found::Request { len }) => {
                    let args = scanner
                        .spans()
                        .iter()
                        .map(|span| span.of(pending).to_vec())
                        .collect();
                    assert_eq!(scanner.argc(), scanner.spans().len());
                    (len, Event::Request(args))
                }
                Err(violation) => {
                    events.push((start, Event::Violation(violation)));
                    return events;
                }
            };
            assert!(
                len > 0 && len <= pending.len(),
                "the end is within the bytes"
            );
            start += len;
            events.push((start, event));
        }
    }
    events
}

/// Asserts that the tail of an incomplete request finds the same end as a scan of the whole
/// request. The first `arrived` bytes have been scanned.
fn check_tail(scanner: &RequestScanner, request: &[u8], arrived: usize, trusted: bool) {
    if scanner.scanned() == 0 || !trusted {
        return;
    }
    let mut held = RequestScanner::default();
    let held = held.scan(request, trusted);
    let mut tail = scanner.tail();
    let (mut at, mut ended) = (scanner.scanned(), false);
    assert!(at <= arrived && scanner.len_at_least() >= at as u64);
    while at < request.len() && !ended {
        let step = request.len().min(at + 1 + at % 5);
        match tail.scan(&request[at..step]) {
            Ok((len, end)) => {
                assert!(len <= step - at && (end || len == step - at));
                at += len;
                ended = end;
            }
            // The tail may find a violation sooner: it does not wait for the end of a header that
            // is too long for a number.
            Err(_) => return assert!(!matches!(held, Ok(Found::Request { .. })), "{held:?}"),
        }
    }
    match held {
        Ok(Found::Request { len }) => assert!(ended && at == len, "{at} {len}"),
        other => assert!(!ended && other == Ok(Found::More), "{other:?}"),
    }
}

/// As [`scan`], by a simple reader of Redis's rules over all bytes at once.
fn read_simply(bytes: &[u8], trusted: bool) -> Vec<(usize, Event)> {
    let mut events = Vec::new();
    let mut start = 0;
    while start < bytes.len() {
        match read_request(&bytes[start..], trusted) {
            Ok(Some((len, event))) => {
                start += len;
                events.push((start, event));
            }
            Ok(None) => break,
            Err(violation) => {
                events.push((start, Event::Violation(violation)));
                break;
            }
        }
    }
    events
}

fn read_request(bytes: &[u8], trusted: bool) -> Result<Option<(usize, Event)>, Violation> {
    if bytes[0] != b'*' {
        if bytes.starts_with(&[0x16, 3]) {
            return Err(Violation::Tls);
        }
        // Redis reads the bytes as a C string, so it finds no line end behind a zero byte.
        let end = bytes.iter().position(|byte| b"\n\0".contains(byte));
        let Some(end) = end.filter(|end| bytes[*end] == b'\n') else {
            return Ok(None);
        };
        let is_blank = bytes[..end]
            .iter()
            .all(|byte| b" \t\n\r\x0b\x0c".contains(byte));
        let line = &bytes[..=end];
        return Ok(Some((
            end + 1,
            if is_blank {
                Event::Nothing
            } else {
                Event::Line(split_inline(line))
            },
        )));
    }
    let Some((line, mut at)) = read_line(bytes, 0) else {
        return Ok(None);
    };
    let count = read_number(&line?[1..])
        .filter(|count| *count <= ARGS_MAX)
        .ok_or(Violation::ArrayLength)?;
    if !trusted && count > UNAUTHENTICATED_ARGS_MAX {
        return Err(Violation::UnauthenticatedArrayLength);
    }
    if count <= 0 {
        return Ok(Some((at, Event::Nothing)));
    }
    let mut args = Vec::new();
    for _ in 0..count {
        let Some((line, next)) = read_line(bytes, at) else {
            return Ok(None);
        };
        let kind = bytes[at];
        if kind != b'$' {
            return Err(Violation::NotABulk(kind));
        }
        let len = read_number(&line?[1..]).filter(|len| (0..=BULK_BYTES_MAX).contains(len));
        let len = len.ok_or(Violation::BulkLength)?;
        if !trusted && len > UNAUTHENTICATED_BULK_BYTES_MAX {
            return Err(Violation::UnauthenticatedBulkLength);
        }
        let end = next + len as usize;
        if bytes.len() < end + 2 {
            return Ok(None);
        }
        if &bytes[end..end + 2] != b"\r\n" {
            return Err(Violation::LineEnd);
        }
        args.push(bytes[next..end].to_vec());
        at = end + 2;
    }
    Ok(Some((at, Event::Request(args))))
}

/// Reads a line with its type byte, up to its CR. Returns it with the start of the next line. The
/// byte behind the CR must be LF.
fn read_line(bytes: &[u8], at: usize) -> Option<(Result<&[u8], Violation>, usize)> {
    // A CR in place of the type byte does not end the line.
    let end = at
        + 1
        + bytes
            .get(at + 1..)?
            .iter()
            .position(|byte| *byte == b'\r')?;
    let line = match bytes.get(end + 1)? {
        b'\n' => Ok(&bytes[at..end]),
        _ => Err(Violation::LineEnd),
    };
    Some((line, end + 2))
}

/// Reads a number in the form that Redis writes: no plus sign, no leading zero, no space.
fn read_number(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let number: i64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

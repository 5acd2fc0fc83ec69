//! Any chunking of any bytes gives the same replies, and the same as a simple reader of the
//! protocol.
#![no_main]

use libfuzzer_sys::fuzz_target;
use respool_protocol::reply::{ReplyScanner, Scanned};

// The first seven bytes are the cuts.
fuzz_target!(|input: &[u8]| {
    let Some((cuts, bytes)) = input.split_at_checked(7) else {
        return;
    };
    let cuts = cuts.iter().map(|cut| usize::from(*cut) * bytes.len() / 256);
    let whole = scan(bytes, [].into_iter());
    assert_eq!(scan(bytes, cuts), whole, "cut in pieces");
    assert_eq!(scan(bytes, 0..bytes.len()), whole, "one byte at a time");
    let expected = read_simply(bytes);
    match expected.1 {
        // The simple reader does not find a wrong byte in an incomplete reply.
        End::More => assert_eq!(whole.0, expected.0, "read simply"),
        _ => assert_eq!(whole, expected, "read simply"),
    }
});

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Clean,
    More,
    Error,
}

/// Scans the bytes in pieces. Returns the end and type byte of each reply, and how the bytes end.
fn scan(bytes: &[u8], cuts: impl Iterator<Item = usize>) -> (Vec<(usize, u8)>, End) {
    let mut cuts: Vec<usize> = cuts.chain([bytes.len()]).collect();
    cuts.sort_unstable();
    let mut scanner = ReplyScanner::default();
    let mut ends = Vec::new();
    let mut at = 0;
    for cut in cuts {
        while at < cut {
            match scanner.scan(&bytes[at..cut]) {
                Ok(Scanned::Whole(len)) => {
                    assert!(len > 0 && len <= cut - at && !scanner.is_inside());
                    at += len;
                    ends.push((at, scanner.kind()));
                }
                Ok(Scanned::Fragment) => {
                    assert!(scanner.is_inside());
                    at = cut;
                }
                Err(_) => return (ends, End::Error),
            }
        }
    }
    (
        ends,
        if scanner.is_inside() {
            End::More
        } else {
            End::Clean
        },
    )
}

/// As [`scan`], by a simple reader of complete input.
fn read_simply(bytes: &[u8]) -> (Vec<(usize, u8)>, End) {
    let mut ends = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let mut left = 1_u64;
        let mut end = at;
        while left > 0 {
            match value(bytes, end) {
                Ok((next, more)) => {
                    end = next;
                    let Some(sum) = (left - 1).checked_add(more) else {
                        return (ends, End::Error);
                    };
                    left = sum;
                }
                Err(end) => return (ends, end),
            }
        }
        ends.push((end, bytes[at]));
        at = end;
    }
    (ends, End::Clean)
}

/// The end of one value, and the number of values behind it that belong to it.
fn value(bytes: &[u8], at: usize) -> Result<(usize, u64), End> {
    let kind = *bytes.get(at).ok_or(End::More)?;
    if !b"+-:_#,($=!*~>%|".contains(&kind) {
        return Err(End::Error);
    }
    let is_line = b"+-:_#,(".contains(&kind);
    let newline = bytes[at..]
        .iter()
        .position(|byte| *byte == b'\n')
        .ok_or(End::More)?
        + at;
    let line = &bytes[at + 1..newline];
    let line = line.strip_suffix(b"\r").ok_or(End::Error)?;
    if is_line {
        return if line.contains(&b'\r') {
            Err(End::Error)
        } else {
            Ok((newline + 1, 0))
        };
    }
    // A length must have the form in which Redis writes numbers.
    let text = std::str::from_utf8(line).map_err(|_| End::Error)?;
    let number: i64 = text.parse().map_err(|_| End::Error)?;
    if number.to_string() != text {
        return Err(End::Error);
    }
    match (kind, u64::try_from(number)) {
        (b'$' | b'*', Err(_)) if number == -1 => Ok((newline + 1, 0)),
        (_, Err(_)) => Err(End::Error),
        (b'$' | b'=' | b'!', Ok(len)) => {
            let end = (newline as u64 + 1).checked_add(len + 2).ok_or(End::More)?;
            if end <= bytes.len() as u64 {
                Ok((end as usize, 0))
            } else {
                Err(End::More)
            }
        }
        (b'%', Ok(len)) => Ok((newline + 1, len.checked_mul(2).ok_or(End::Error)?)),
        (b'|', Ok(len)) => Ok((
            newline + 1,
            len.checked_mul(2)
                .and_then(|n| n.checked_add(1))
                .ok_or(End::Error)?,
        )),
        (_, Ok(len)) => Ok((newline + 1, len)),
    }
}

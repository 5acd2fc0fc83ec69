//! Decimal numbers on the wire, as Redis reads and writes them.

/// Reads a slice as a number, as Redis's `string2ll` does: no plus sign, no leading zero, no space.
pub fn parse(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut value = 0i64;
    for &byte in digits {
        if !byte.is_ascii_digit() {
            return None;
        }
        let digit = i64::from(byte - b'0');
        // The value is built as a negative number, so that the smallest number fits.
        value = value.checked_mul(10)?.checked_sub(digit)?;
    }
    if negative {
        Some(value)
    } else {
        value.checked_neg()
    }
}

/// Appends `value` in decimal.
pub fn append(out: &mut Vec<u8>, value: i64) {
    let mut text = [0u8; 20];
    let mut at = text.len();
    let mut rest = value.unsigned_abs();
    loop {
        at -= 1;
        text[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        at -= 1;
        text[at] = b'-';
    }
    out.extend_from_slice(&text[at..]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{append, parse};

    /// Only the form that Redis writes is a number.
    #[test]
    fn only_the_form_of_redis_is_a_number() {
        for bad in [
            "",
            "-",
            "-0",
            "+1",
            "01",
            "00",
            " 1",
            "1 ",
            "1a",
            "9223372036854775808",
        ] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(parse(b"0"), Some(0));
        assert_eq!(parse(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse(b"9223372036854775807"), Some(i64::MAX));
    }

    proptest! {
        /// A written number is read back.
        #[test]
        fn written_number_is_read_back(value: i64) {
            let mut text = Vec::new();
            append(&mut text, value);
            let expected = value.to_string().into_bytes();
            prop_assert_eq!(&text, &expected);
            prop_assert_eq!(parse(&text), Some(value));
        }
    }
}

//! Percent-encoding of URLs, strict: a `%` without two hexadecimal digits is an error.

/// Decodes each `%XX`. The result is UTF-8 without a zero byte.
pub(crate) fn percent_decode(text: &str) -> Result<String, String> {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != b'%' {
            decoded.push(bytes[at]);
            at += 1;
            continue;
        }
        match (digit(bytes.get(at + 1)), digit(bytes.get(at + 2))) {
            (Some(high), Some(low)) => decoded.push((high * 16 + low) as u8),
            _ => return Err("after `%` come two hexadecimal digits; % itself is %25".into()),
        }
        at += 3;
    }
    match String::from_utf8(decoded) {
        Ok(text) if text.contains('\0') => Err("holds a zero byte".into()),
        Ok(text) => Ok(text),
        Err(_) => Err("is not UTF-8 once its %XX are decoded".into()),
    }
}

/// Encodes each byte as `%XX`, except ASCII letters, digits and the bytes in `plain`.
pub(crate) fn percent_encode(text: &str, plain: &[u8]) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || plain.contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

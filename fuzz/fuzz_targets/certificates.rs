//! No input makes the certificate parser panic, and it ignores the bytes behind the certificate.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The module alone: the rest of the driver needs a provider of cryptography, which takes a minute
// to build.
#[allow(dead_code)] // The signatures of handshakes are not checked here.
#[path = "../../crates/driver/src/tls/certificate.rs"]
mod certificate;

use certificate::CertificateFields;

/// A certificate of X.509 v3 with an extension without names: its version, serial number,
/// algorithm, issuer, times, subject, key and extensions.
const VALID: &[u8] = b"\x30\x4f\x30\x4d\xa0\x03\x02\x01\x02\x02\x01\x07\x30\x00\x30\x00\
    \x30\x20\x17\x0d700101000001Z\x18\x0f20500101000000Z\x30\x00\
    \x30\x0c\x30\x05\x06\x03\x2a\x03\x04\x03\x03\x00\xaa\xbb\
    \xa3\x0d\x30\x0b\x30\x09\x06\x03\x55\x1d\x11\x04\x02\x30\x00";

// If the first byte is even, the others are a certificate. Otherwise they change a valid one: each
// three of them are a place, a byte for it, and whether the byte is inserted there.
fuzz_target!(init: assert!(CertificateFields::read(VALID).is_some()), |input: &[u8]| {
    let Some((&choice, rest)) = input.split_first() else {
        return;
    };
    match choice % 2 {
        0 => check(rest),
        _ => {
            let mut der = VALID.to_vec();
            for change in rest.chunks_exact(3) {
                let at = usize::from(change[0]) % der.len();
                match change[2] % 2 {
                    0 => der[at] = change[1],
                    _ => der.insert(at, change[1]),
                }
            }
            check(&der);
        }
    }
});

fn check(der: &[u8]) {
    let Some(fields) = CertificateFields::read(der) else {
        return;
    };
    assert!((1..=3).contains(&fields.version));
    let key = fields.key.der();
    let at = der.windows(key.len()).position(|part| part == key.as_ref());
    assert!(at.is_some(), "the key is not of the certificate");
    // Bytes behind a certificate change nothing.
    let longer = [der, b"\x30\x00"].concat();
    let again = CertificateFields::read(&longer).expect("the certificate is the same");
    assert_eq!(again.version, fields.version);
    assert_eq!(again.not_before, fields.not_before);
    assert_eq!(again.not_after, fields.not_after);
    assert_eq!(again.key, fields.key);
    assert_eq!(again.extensions(), fields.extensions());
}

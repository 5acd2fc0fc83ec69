//! The fields of a certificate that respool reads itself.
//!
//! rustls reads certificates of X.509 v3 alone, and tells no time and no name of theirs. `openssl
//! x509 -req` without extensions makes v1, and Redis takes such a certificate.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, SystemTime};

use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::{CertificateError, DigitallySignedStruct, Error, PeerMisbehaved};

/// The fields of a certificate.
#[derive(Debug)]
pub(super) struct CertificateFields<'a> {
    /// The version of X.509, from 1.
    pub(super) version: u8,
    /// The first second in which it is valid.
    pub(super) not_before: SystemTime,
    /// The last second in which it is valid.
    pub(super) not_after: SystemTime,
    /// Its public key.
    pub(super) key: PublicKey<'a>,
    /// The elements behind the key: the extensions, if there are any.
    behind_key: &'a [u8],
}

/// The extensions of a certificate that the log and the warnings tell of.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CertificateExtensions {
    /// Its DNS names, IP addresses and URIs (subjectAltName).
    pub(super) names: Vec<String>,
    /// Whether a server may show it: it names no uses (extendedKeyUsage), or serverAuth is one.
    pub(super) is_for_servers: bool,
}

/// The public key of a certificate: SubjectPublicKeyInfo in DER.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PublicKey<'a> {
    /// All of it.
    whole: &'a [u8],
    /// The content of the identifier of the algorithm.
    algorithm: &'a [u8],
    /// The bits of the key.
    bits: &'a [u8],
}

impl<'a> CertificateFields<'a> {
    /// Reads a certificate in DER. `None`: it is none.
    pub(super) fn read(der: &'a [u8]) -> Option<CertificateFields<'a>> {
        let mut outer = Elements(der);
        let mut certificate = Elements(outer.content(SEQUENCE)?);
        let mut fields = Elements(certificate.content(SEQUENCE)?);
        let version = match fields.0.first()? {
            &VERSION => match Elements(fields.content(VERSION)?).content(INTEGER)? {
                [number @ 0..=2] => number + 1,
                _ => return None,
            },
            _ => 1,
        };
        fields.content(INTEGER)?; // The serial number.
        fields.content(SEQUENCE)?; // The algorithm of the signature.
        fields.content(SEQUENCE)?; // The issuer.
        let mut validity = Elements(fields.content(SEQUENCE)?);
        let (not_before, not_after) = (validity.time()?, validity.time()?);
        fields.content(SEQUENCE)?; // The subject.
        let key = PublicKey::read(&mut fields)?;
        Some(CertificateFields {
            version,
            not_before,
            not_after,
            key,
            behind_key: fields.0,
        })
    }

    /// Its extensions. Those that cannot be read count as missing: they refuse no certificate.
    pub(super) fn extensions(&self) -> CertificateExtensions {
        let mut found = CertificateExtensions {
            names: Vec::new(),
            is_for_servers: true,
        };
        let mut rest = Elements(self.behind_key);
        while let Some((tag, content)) = rest.next() {
            let list = Elements(content).content(SEQUENCE);
            let mut list = Elements(list.filter(|_| tag == EXTENSIONS).unwrap_or_default());
            while let Some(extension) = list.content(SEQUENCE) {
                found.add(Elements(extension));
            }
        }
        found
    }
}

impl CertificateExtensions {
    /// Adds an extension: its identifier, a flag if it is critical, and its value.
    fn add(&mut self, mut extension: Elements<'_>) {
        let Some(id) = extension.content(OBJECT_ID) else {
            return;
        };
        let value = std::iter::from_fn(|| extension.next()).find(|(tag, _)| *tag == OCTET_STRING);
        let Some(list) = value.and_then(|(_, value)| Elements(value).content(SEQUENCE)) else {
            return;
        };
        let mut list = Elements(list);
        let list = std::iter::from_fn(|| list.next());
        match id {
            SUBJECT_ALT_NAME => self.names = list.filter_map(shown_name).collect(),
            EXTENDED_KEY_USAGE => {
                self.is_for_servers = list.into_iter().any(|one| one == (OBJECT_ID, SERVER_AUTH));
            }
            _ => {}
        }
    }
}

/// The text of a name of subjectAltName. `None`: it is of another kind.
fn shown_name((tag, name): (u8, &[u8])) -> Option<String> {
    match tag {
        DNS_NAME | URI => Some(String::from_utf8_lossy(name).into_owned()),
        IP_ADDRESS => match name.len() {
            4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(name).ok()?).to_string()),
            _ => Some(Ipv6Addr::from(<[u8; 16]>::try_from(name).ok()?).to_string()),
        },
        _ => None,
    }
}

impl<'a> PublicKey<'a> {
    fn read(fields: &mut Elements<'a>) -> Option<PublicKey<'a>> {
        let from = fields.0;
        let mut parts = Elements(fields.content(SEQUENCE)?);
        let whole = &from[..from.len() - fields.0.len()];
        let algorithm = parts.content(SEQUENCE)?;
        // The first byte counts bits that are not used. A key has whole bytes.
        let [0, bits @ ..] = parts.content(BIT_STRING)? else {
            return None;
        };
        Some(PublicKey {
            whole,
            algorithm,
            bits,
        })
    }

    /// SubjectPublicKeyInfo in DER.
    pub(super) fn der(&self) -> SubjectPublicKeyInfoDer<'a> {
        SubjectPublicKeyInfoDer::from(self.whole)
    }

    /// Verifies the signature of a handshake of TLS 1.3.
    pub(super) fn verify_tls13(
        &self,
        message: &[u8],
        signed: &DigitallySignedStruct,
        algorithms: &WebPkiSupportedAlgorithms,
    ) -> Result<(), Error> {
        verify_tls13_signature_with_raw_key(message, &self.der(), signed, algorithms).map(|_| ())
    }

    /// Verifies the signature of a handshake of TLS 1.2. There a scheme leaves the curve open, so
    /// the one of the key counts.
    pub(super) fn verify_tls12(
        &self,
        message: &[u8],
        signed: &DigitallySignedStruct,
        algorithms: &WebPkiSupportedAlgorithms,
    ) -> Result<(), Error> {
        let mut schemes = algorithms.mapping.iter();
        let Some((_, possible)) = schemes.find(|(scheme, _)| *scheme == signed.scheme) else {
            return Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into());
        };
        let mut possible = possible.iter();
        let is_of_key = |id: &[u8]| id == self.algorithm;
        let Some(algorithm) = possible.find(|one| is_of_key(one.public_key_alg_id().as_ref()))
        else {
            return Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into());
        };
        let verified = algorithm.verify_signature(self.bits, message, signed.signature());
        verified.map_err(|_| CertificateError::BadSignature.into())
    }
}

/// The elements of DER that are left.
struct Elements<'a>(&'a [u8]);

impl<'a> Elements<'a> {
    /// Takes the next element, which must have this tag. Returns its content.
    fn content(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (found, content) = self.next()?;
        (found == tag).then_some(content)
    }

    /// Takes the next element: its tag and its content.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, first], mut rest) = self.0.split_first_chunk()?;
        let length = match first {
            0..=0x7f => usize::from(first),
            // The length itself has one to three bytes. No certificate is longer than that.
            0x81..=0x83 => {
                let (length, behind) = rest.split_at_checked(usize::from(first & 0x7f))?;
                rest = behind;
                let add = |sum, byte: &u8| sum << 8 | usize::from(*byte);
                length.iter().fold(0, add)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, content))
    }

    /// Takes a time: `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ`. A time before 1970 is 1970.
    fn time(&mut self) -> Option<SystemTime> {
        let (tag, text) = self.next()?;
        let (year_digits, text) = match tag {
            UTC_TIME => (2, text),
            GENERALIZED_TIME => (4, text),
            _ => return None,
        };
        let (digits, b"Z") = text.split_at_checked(year_digits + 10)? else {
            return None;
        };
        let number = |digits: &[u8]| {
            let add = |sum: i64, digit: &u8| {
                let digit = digit.is_ascii_digit().then(|| i64::from(digit - b'0'));
                Some(sum * 10 + digit?)
            };
            digits.iter().try_fold(0, add)
        };
        let (year, rest) = digits.split_at(year_digits);
        let year = match number(year)? {
            // By RFC 5280.
            year @ 0..50 if tag == UTC_TIME => 2_000 + year,
            year if tag == UTC_TIME => 1_900 + year,
            year => year,
        };
        let mut parts = rest.chunks(2).map(number);
        let mut part = |range: std::ops::RangeInclusive<i64>| {
            parts.next()?.filter(|part| range.contains(part))
        };
        let (month, day) = (part(1..=12)?, part(1..=31)?);
        let (hour, minute, second) = (part(0..=23)?, part(0..=59)?, part(0..=60)?);
        let seconds = ((days_since_1970(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
        let since_1970 = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        Some(SystemTime::UNIX_EPOCH + since_1970)
    }
}

/// The number of days from 1970-01-01 to a day of the Gregorian calendar.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    // A year that begins in March has its leap day at the end.
    let (year, month) = match month {
        1 | 2 => (year - 1, month + 9),
        month => (year, month - 3),
    };
    let of_years = 365 * year + year / 4 - year / 100 + year / 400;
    of_years + (153 * month + 2) / 5 + day - 1 - DAYS_UNTIL_1970
}

/// From March of the year 0 to January of 1970.
const DAYS_UNTIL_1970: i64 = 719_468;

const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT_ID: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
/// The tag of the version, which v1 does not have.
const VERSION: u8 = 0xa0;
/// The tag of the extensions, which v1 does not have.
const EXTENSIONS: u8 = 0xa3;
/// Tags of names in subjectAltName.
const DNS_NAME: u8 = 0x82;
const URI: u8 = 0x86;
const IP_ADDRESS: u8 = 0x87;
/// 2.5.29.17.
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
/// 2.5.29.37.
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
/// 1.3.6.1.5.5.7.3.1.
const SERVER_AUTH: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];

#[cfg(test)]
mod tests {
    use super::*;

    /// An element with its length in the shortest form.
    fn element(tag: u8, content: &[u8]) -> Vec<u8> {
        let length = content.len() as u16;
        let [high, low] = length.to_be_bytes();
        match length {
            0..=0x7f => [&[tag, low], content].concat(),
            0x80..=0xff => [&[tag, 0x81, low], content].concat(),
            _ => [&[tag, 0x82, high, low], content].concat(),
        }
    }

    /// A certificate of these elements: its version, the two times and the bits of the key.
    fn certificate_of(version: &[u8], times: [(u8, &str); 2], bits: &[u8]) -> Vec<u8> {
        let times = times.map(|(tag, text)| element(tag, text.as_bytes()));
        let algorithm = element(SEQUENCE, ALGORITHM);
        let fields = [
            version,
            &element(INTEGER, &[7]),
            &algorithm,
            &element(SEQUENCE, b"issuer"),
            &element(SEQUENCE, &times.concat()),
            &element(SEQUENCE, b"subject"),
            &key_of(bits),
            &element(EXTENSIONS, &element(SEQUENCE, &extensions())),
        ];
        let signature = element(BIT_STRING, &[0; 200]);
        let parts = [element(SEQUENCE, &fields.concat()), algorithm, signature];
        element(SEQUENCE, &parts.concat())
    }

    /// Names of each kind, one of them with bytes that are no text, and the use by servers.
    fn extensions() -> Vec<u8> {
        let names = [
            element(DNS_NAME, b"a.example"),
            element(DNS_NAME, b"\xff"),
            element(IP_ADDRESS, &[127, 0, 0, 1]),
            element(IP_ADDRESS, &[1; 16]),
            element(IP_ADDRESS, &[1; 5]),
            element(0x81, b"mail@example"),
            element(URI, b"spiffe://a"),
        ];
        let uses = element(OBJECT_ID, SERVER_AUTH);
        let value = |list: &[u8]| element(OCTET_STRING, &element(SEQUENCE, list));
        let names = [element(OBJECT_ID, SUBJECT_ALT_NAME), value(&names.concat())];
        let critical = [1, 1, 0xff].to_vec();
        let uses = [
            element(OBJECT_ID, EXTENDED_KEY_USAGE),
            critical,
            value(&uses),
        ];
        let other = [
            element(OBJECT_ID, b"other"),
            element(OCTET_STRING, b"\x30\x7f"),
        ];
        let [names, uses, other] = [names.concat(), uses.concat(), other.concat()];
        [other, names, uses]
            .map(|one| element(SEQUENCE, &one))
            .concat()
    }

    /// Names and uses are read, and other extensions and odd names change nothing.
    #[test]
    fn extensions_are_read() {
        let der = certificate_of(V3, TIMES, BITS);
        let found = CertificateFields::read(&der).unwrap().extensions();
        let names = [
            "a.example",
            "\u{fffd}",
            "127.0.0.1",
            "101:101:101:101:101:101:101:101",
        ];
        assert_eq!(found.names[..4], names);
        assert_eq!(found.names[4..], ["spiffe://a"]);
        assert!(found.is_for_servers);
    }

    fn key_of(bits: &[u8]) -> Vec<u8> {
        let parts = [element(SEQUENCE, ALGORITHM), element(BIT_STRING, bits)];
        element(SEQUENCE, &parts.concat())
    }

    /// The content of an identifier of an algorithm. The reader does not look into it.
    const ALGORITHM: &[u8] = b"algorithm";
    /// The first byte counts unused bits.
    const BITS: &[u8] = &[0, 0xaa, 0xbb];
    const V3: &[u8] = &[VERSION, 3, INTEGER, 1, 2];
    const TIMES: [(u8, &str); 2] = [
        (UTC_TIME, "700101000001Z"),
        (GENERALIZED_TIME, "20500101000000Z"),
    ];

    fn seconds_of(time: SystemTime) -> u64 {
        let since_1970 = time.duration_since(SystemTime::UNIX_EPOCH);
        since_1970.unwrap().as_secs()
    }

    /// Certificates of X.509 v1, v2 and v3 have the same fields. Only v2 and v3 name their version.
    #[test]
    fn each_version_is_read() {
        for (version, expected) in [
            (&[][..], Some(1)),
            (&[VERSION, 3, INTEGER, 1, 0], Some(1)),
            (&[VERSION, 3, INTEGER, 1, 1], Some(2)),
            (V3, Some(3)),
            (&[VERSION, 3, INTEGER, 1, 3], None),
            (&[VERSION, 3, INTEGER, 1, 0xff], None),
            (&[VERSION, 4, INTEGER, 2, 0, 2], None),
            (&[VERSION, 2, INTEGER, 0], None),
            (&[VERSION, 0], None),
            (&[VERSION, 3, BIT_STRING, 1, 2], None),
        ] {
            let der = certificate_of(version, TIMES, BITS);
            let fields = CertificateFields::read(&der);
            assert_eq!(fields.as_ref().map(|fields| fields.version), expected);
            let Some(fields) = fields else { continue };
            assert_eq!(seconds_of(fields.not_before), 1);
            assert_eq!(seconds_of(fields.not_after), 2_524_608_000);
            assert_eq!(fields.key.der().as_ref(), key_of(BITS));
            assert_eq!(fields.key.algorithm, ALGORITHM);
            assert_eq!(fields.key.bits, &BITS[1..]);
        }
    }

    /// A certificate without its last bytes is none, and bytes behind a certificate change nothing.
    #[test]
    fn truncated_certificate_is_none() {
        let der = certificate_of(V3, TIMES, BITS);
        for len in 0..der.len() {
            assert!(CertificateFields::read(&der[..len]).is_none(), "{len}");
        }
        let longer = [&der[..], &[0xff; 3]].concat();
        let fields = CertificateFields::read(&longer).unwrap();
        assert_eq!(fields.key.der().as_ref(), key_of(BITS));
    }

    /// No byte of a certificate can be changed to one that ends the reader.
    #[test]
    fn changed_bytes_are_survived() {
        for version in [&[][..], V3] {
            let mut der = certificate_of(version, TIMES, BITS);
            for at in 0..der.len() {
                let before = der[at];
                for byte in 0..=u8::MAX {
                    der[at] = byte;
                    if let Some(fields) = CertificateFields::read(&der) {
                        assert!((1..=3).contains(&fields.version));
                        assert!(fields.key.bits.len() < fields.key.whole.len());
                        let _ = fields.extensions();
                    }
                }
                der[at] = before;
            }
        }
    }

    /// A length has up to three bytes of its own, and ends within the certificate.
    #[test]
    fn lengths_of_each_form_are_read() {
        for (der, expected) in [
            (&[SEQUENCE, 0][..], Some(0)),
            (&[SEQUENCE, 2, 1, 2], Some(2)),
            (&[SEQUENCE, 2, 1, 2, 3], Some(2)),
            (&[SEQUENCE, 0x81, 2, 1, 2], Some(2)),
            (&[SEQUENCE, 0x82, 0, 2, 1, 2], Some(2)),
            (&[SEQUENCE, 0x83, 0, 0, 2, 1, 2], Some(2)),
            (&[SEQUENCE, 3, 1, 2], None),
            (&[SEQUENCE, 0x81], None),
            (&[SEQUENCE, 0x82, 0], None),
            (&[SEQUENCE, 0x83, 0xff, 0xff, 0xff, 1, 2], None),
            // Without an end, and longer than a certificate.
            (&[SEQUENCE, 0x80, 1, 2, 0, 0], None),
            (&[SEQUENCE, 0x84, 0, 0, 0, 2, 1, 2], None),
            (&[SEQUENCE, 0xff], None),
            (&[SEQUENCE], None),
            (&[], None),
            (&[BIT_STRING, 2, 1, 2], None),
        ] {
            let content = Elements(der).content(SEQUENCE);
            assert_eq!(content.map(<[u8]>::len), expected, "{der:x?}");
        }
    }

    /// The bits of a key are whole bytes.
    #[test]
    fn key_has_whole_bytes() {
        for (bits, expected) in [
            (BITS, Some(2)),
            (&[0], Some(0)),
            (&[1, 0xaa], None),
            (&[], None),
        ] {
            let der = certificate_of(V3, TIMES, bits);
            let fields = CertificateFields::read(&der);
            assert_eq!(fields.map(|fields| fields.key.bits.len()), expected);
        }
    }

    fn time_of(tag: u8, text: &str) -> Option<u64> {
        let der = element(tag, text.as_bytes());
        Elements(&der).time().map(seconds_of)
    }

    /// Times have two or four digits of the year, and count from 1970.
    #[test]
    fn times_of_both_forms_are_read() {
        for (tag, text, seconds) in [
            (UTC_TIME, "700101000000Z", Some(0)),
            (UTC_TIME, "000229000001Z", Some(951_782_401)),
            (UTC_TIME, "491231235959Z", Some(2_524_607_999)),
            (UTC_TIME, "500101000000Z", Some(0)),
            (GENERALIZED_TIME, "20500101000000Z", Some(2_524_608_000)),
            (GENERALIZED_TIME, "20240301000000Z", Some(1_709_251_200)),
            (GENERALIZED_TIME, "99991231235959Z", Some(253_402_300_799)),
            (UTC_TIME, "20500101000000Z", None),
            (UTC_TIME, "701301000000Z", None),
            (UTC_TIME, "7001010000Z", None),
            (UTC_TIME, "70010100000xZ", None),
            (UTC_TIME, "700100000000Z", None),
            (UTC_TIME, "700101240000Z", None),
            (UTC_TIME, "700101006000Z", None),
            (UTC_TIME, "700101000061Z", None),
            (UTC_TIME, "700101000000+0100", None),
            (UTC_TIME, "700101000000ZZ", None),
            (UTC_TIME, "", None),
            (GENERALIZED_TIME, "00010101000000Z", Some(0)),
            (GENERALIZED_TIME, "20240301000000.5Z", None),
            (GENERALIZED_TIME, "700101000000Z", None),
            (INTEGER, "700101000000Z", None),
        ] {
            assert_eq!(time_of(tag, text), seconds, "{text}");
        }
    }
}

//! Hash slots: which of the 16,384 parts of a Cluster a key belongs to.

use crate::hashing::HashTag;

/// How many hash slots a Cluster has.
pub const SLOTS: u16 = 16_384;

/// The hash slot of a key: CRC16 of the key, or of its hash tag if it has one, modulo [`SLOTS`].
///
/// The hash tag is what stands between the first `{` and the first `}` after it, unless that is
/// nothing: `{user}.name` and `{user}.mail` share a slot, `{}.name` is hashed whole.
pub fn hash_slot(key: &[u8]) -> u16 {
    crc16(hashed_part(key)) % SLOTS
}

/// What of a key decides its slot.
pub fn hashed_part(key: &[u8]) -> &[u8] {
    HashTag::BRACES.part_of(key)
}

/// CRC16 as XMODEM has it: polynomial 0x1021, initial value 0, nothing reflected.
pub(crate) fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, &byte| {
        (crc << 8) ^ CRC16_OF_BYTE[usize::from((crc >> 8) as u8 ^ byte)]
    })
}

/// The CRC16 of each byte.
pub(crate) static CRC16_OF_BYTE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 {
                (crc << 1) ^ 0x1021
            } else {
                crc << 1
            };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of CRC-16/XMODEM, and slots that a Redis Cluster reports.
    #[test]
    fn known_keys_have_their_known_slots() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(hash_slot(b"123456789"), 12_739);
        assert_eq!(hash_slot(b""), 0);
        assert_eq!(hash_slot(b"foo"), 12_182);
        assert_eq!(hash_slot(b"bar"), 5_061);
        assert_eq!(hash_slot(b"hello"), 866);
    }

    /// Only the first brace pair counts, and only if something stands in it.
    #[test]
    fn a_hash_tag_decides_alone() {
        for (key, part) in [
            (&b"{user1000}.following"[..], &b"user1000"[..]),
            (b"foo{}{bar}", b"foo{}{bar}"),
            (b"foo{{bar}}zap", b"{bar"),
            (b"foo{bar}{zap}", b"bar"),
            (b"foo{bar", b"foo{bar"),
            (b"foo}bar{", b"foo}bar{"),
            (b"}{a}", b"a"),
        ] {
            assert_eq!(hashed_part(key), part, "{}", key.escape_ascii());
            assert_eq!(hash_slot(key), crc16(part) % SLOTS);
        }
    }
}

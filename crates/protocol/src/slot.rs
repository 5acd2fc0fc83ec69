//! Hash slots: the one of 16,384 slots of a Cluster that a key belongs to.

use crate::hashing::HashTag;

/// Number of hash slots of a Cluster.
pub const SLOTS: u16 = 16_384;

/// The hash slot of a key: CRC16 of the key, or of its hash tag if it has one, modulo [`SLOTS`].
///
/// The hash tag is the text between the first `{` and the next `}`, unless it is empty.
/// `{user}.name` and `{user}.mail` share a slot; of `{}.name` the whole key is hashed.
pub fn hash_slot(key: &[u8]) -> u16 {
    crc16(hashed_part(key)) % SLOTS
}

/// The part of a key that decides its slot.
pub fn hashed_part(key: &[u8]) -> &[u8] {
    HashTag::BRACES.part_of(key)
}

/// CRC16 as in XMODEM: polynomial 0x1021, initial value 0, not reflected.
///
/// It processes eight bytes at once with independent table look-ups. Byte by byte, each look-up
/// would wait for the one before.
pub(crate) fn crc16(bytes: &[u8]) -> u16 {
    let (eights, rest) = bytes.as_chunks::<8>();
    let crc = eights.iter().fold(0, |crc: u16, eight| {
        let [high, low] = crc.to_be_bytes();
        let [first, second, rest @ ..] = eight;
        let mut next =
            CRC16_BEFORE[7][usize::from(first ^ high)] ^ CRC16_BEFORE[6][usize::from(second ^ low)];
        for (behind, byte) in rest.iter().rev().enumerate() {
            next ^= CRC16_BEFORE[behind][usize::from(*byte)];
        }
        next
    });
    rest.iter().fold(crc, |crc, &byte| {
        (crc << 8) ^ CRC16_OF_BYTE[usize::from((crc >> 8) as u8 ^ byte)]
    })
}

/// The CRC16 of each byte.
pub(crate) static CRC16_OF_BYTE: [u16; 256] = CRC16_BEFORE[0];

/// The CRC16 of each byte, followed by 0 to 7 zero bytes.
static CRC16_BEFORE: [[u16; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut behind = 0;
        while behind < 8 {
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 0x8000 != 0 {
                    (crc << 1) ^ 0x1021
                } else {
                    crc << 1
                };
                bit += 1;
            }
            tables[behind][byte] = crc;
            behind += 1;
        }
        byte += 1;
    }
    tables
};

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of CRC-16/XMODEM holds, and keys have the slots that a Redis Cluster
    /// reports.
    #[test]
    fn known_keys_have_their_known_slots() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(hash_slot(b"123456789"), 12_739);
        assert_eq!(hash_slot(b""), 0);
        assert_eq!(hash_slot(b"foo"), 12_182);
        assert_eq!(hash_slot(b"bar"), 5_061);
        assert_eq!(hash_slot(b"hello"), 866);
    }

    /// For keys of any length, eight bytes at once give the same result as the definition bit by
    /// bit.
    #[test]
    fn eight_bytes_at_once_give_the_same_crc() {
        let bytes: Vec<u8> = (0..100_u32)
            .map(|at| ((at * at * 151) >> 3) as u8)
            .collect();
        for from in 0..20 {
            for to in from..bytes.len() {
                let mut crc = 0_u16;
                for byte in &bytes[from..to] {
                    crc ^= u16::from(*byte) << 8;
                    for _ in 0..8 {
                        let carry = if crc & 0x8000 != 0 { 0x1021 } else { 0 };
                        crc = (crc << 1) ^ carry;
                    }
                }
                assert_eq!(crc16(&bytes[from..to]), crc, "{from}..{to}");
            }
        }
    }

    /// Only the first pair of braces counts, and only if it is not empty.
    #[test]
    fn hash_tag_decides_the_slot() {
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

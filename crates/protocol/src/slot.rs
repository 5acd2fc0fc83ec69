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
///
/// Eight bytes at once: what each of them does to the result is looked up by itself, where byte by byte every look-up would
/// wait for the one before.
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

/// The CRC16 of each byte with so many zeros behind it.
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

    /// Keys of any length: by eights and the rest, the result is that of the definition, bit by bit.
    #[test]
    fn eight_bytes_at_once_are_as_one_after_the_other() {
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

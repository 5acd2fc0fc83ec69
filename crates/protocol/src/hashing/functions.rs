//! The hash functions of twemproxy and predixy, each with the quirks of its proxy.
//!
//! These functions decide where a proxy has stored a key. So they compute the value of the
//! proxy, which may differ from the textbook. Sources: twemproxy 0.5 (`src/hashkit`), predixy 1.0.5
//! (`src/HashFunc.cpp`), and the descriptions of the algorithms named below.
//!
//! **Bytes from 0x80 on.** Some of twemproxy's functions read the key as C's `char`, which is
//! signed on x86 and unsigned on ARM. So a twemproxy on ARM places keys with such bytes on other
//! servers. The functions here compute as on x86 on every machine; [`signed`] marks these places.

use super::md5::{little_endian, md5};
use crate::slot::CRC16_OF_BYTE;

/// Bob Jenkins' one-at-a-time hash (Dr. Dobb's Journal, 1997).
pub(super) fn one_at_a_time(key: &[u8]) -> u32 {
    let mut hash = 0_u32;
    for &byte in key {
        hash = hash.wrapping_add(signed(byte));
        hash = hash.wrapping_add(hash << 10);
        hash ^= hash >> 6;
    }
    hash = hash.wrapping_add(hash << 3);
    hash ^= hash >> 11;
    hash.wrapping_add(hash << 15)
}

/// The first four bytes of the MD5 digest.
pub(super) fn md5_head(key: &[u8]) -> u32 {
    little_endian(&md5(key))
}

/// The CRC16 of Redis Cluster in a 32-bit register that keeps the bits shifted out of the lower
/// half (see twemproxy's pull request 367). The lower 16 bits are the CRC16.
pub(super) fn crc16(key: &[u8]) -> u32 {
    key.iter().fold(0, |crc: u32, &byte| {
        let index = (crc >> 8) as u8 ^ byte;
        (crc << 8) ^ u32::from(CRC16_OF_BYTE[usize::from(index)])
    })
}

/// Fifteen bits from the middle of CRC32, as in libmemcached. Ketama's points are spread over 32
/// bits, so with ketama nearly all keys get the same server.
pub(super) fn crc32(key: &[u8]) -> u32 {
    (crc32a(key) >> 16) & 0x7fff
}

/// CRC-32 as in IEEE 802.3: polynomial 0x04C11DB7, reflected.
pub(super) fn crc32a(key: &[u8]) -> u32 {
    !key.iter().fold(u32::MAX, |crc, &byte| {
        (crc >> 8) ^ CRC32_OF_BYTE[usize::from(crc as u8 ^ byte)]
    })
}

/// FNV-1 (Fowler, Noll, Vo) with the 64-bit offset and prime; the lower 32 bits of the result.
/// Higher bits never influence these, so a 32-bit computation is enough.
pub(super) fn fnv1_64(key: &[u8]) -> u32 {
    key.iter().fold(FNV_64_OFFSET, |hash, &byte| {
        hash.wrapping_mul(FNV_64_PRIME) ^ signed(byte)
    })
}

/// FNV-1a with the 64-bit offset and prime; the lower 32 bits of the result. Twemproxy's default.
pub(super) fn fnv1a_64(key: &[u8]) -> u32 {
    key.iter().fold(FNV_64_OFFSET, |hash, &byte| {
        (hash ^ signed(byte)).wrapping_mul(FNV_64_PRIME)
    })
}

/// 32-bit FNV-1.
pub(super) fn fnv1_32(key: &[u8]) -> u32 {
    key.iter().fold(FNV_32_OFFSET, |hash, &byte| {
        hash.wrapping_mul(FNV_32_PRIME) ^ signed(byte)
    })
}

/// 32-bit FNV-1a.
pub(super) fn fnv1a_32(key: &[u8]) -> u32 {
    key.iter().fold(FNV_32_OFFSET, |hash, &byte| {
        (hash ^ signed(byte)).wrapping_mul(FNV_32_PRIME)
    })
}

/// Paul Hsieh's SuperFastHash (<http://www.azillionmonkeys.com/qed/hash.html>), with 0 instead of
/// the length as initial value.
pub(super) fn hsieh(key: &[u8]) -> u32 {
    let half = |bytes: &[u8]| u32::from(u16::from_le_bytes([bytes[0], bytes[1]]));
    let mut hash = 0_u32;
    let mut quads = key.chunks_exact(4);
    for quad in &mut quads {
        hash = hash.wrapping_add(half(quad));
        hash = (hash << 16) ^ (half(&quad[2..]) << 11) ^ hash;
        hash = hash.wrapping_add(hash >> 11);
    }
    match quads.remainder() {
        rest @ [_, _, last] => {
            hash = hash.wrapping_add(half(rest));
            hash ^= hash << 16;
            hash ^= signed(*last) << 18;
            hash = hash.wrapping_add(hash >> 11);
        }
        rest @ [_, _] => {
            hash = hash.wrapping_add(half(rest));
            hash ^= hash << 11;
            hash = hash.wrapping_add(hash >> 17);
        }
        &[last] => {
            hash = hash.wrapping_add(u32::from(last));
            hash ^= hash << 10;
            hash = hash.wrapping_add(hash >> 1);
        }
        _ => {}
    }
    hash ^= hash << 3;
    hash = hash.wrapping_add(hash >> 5);
    hash ^= hash << 4;
    hash = hash.wrapping_add(hash >> 17);
    hash ^= hash << 25;
    hash.wrapping_add(hash >> 6)
}

/// Austin Appleby's MurmurHash2 in little-endian, with a seed that derives from the length.
pub(super) fn murmur(key: &[u8]) -> u32 {
    const FACTOR: u32 = 0x5bd1_e995;
    let length = key.len() as u32;
    let mut hash = 0xdead_beef_u32.wrapping_mul(length) ^ length;
    let mut quads = key.chunks_exact(4);
    for quad in &mut quads {
        let mut part = little_endian(quad).wrapping_mul(FACTOR);
        part ^= part >> 24;
        hash = hash.wrapping_mul(FACTOR) ^ part.wrapping_mul(FACTOR);
    }
    let rest = quads.remainder();
    if !rest.is_empty() {
        hash = (hash ^ padded(rest)).wrapping_mul(FACTOR);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(FACTOR);
    hash ^ (hash >> 15)
}

/// Bob Jenkins' lookup3 (`hashlittle`, 2006, <http://burtleburtle.net/bob/c/lookup3.c>) with 13 as
/// its initial value, for non-empty keys.
pub(super) fn jenkins(key: &[u8]) -> u32 {
    let start = 0xdead_beef_u32
        .wrapping_add(key.len() as u32)
        .wrapping_add(13);
    let (mut a, mut b, mut c) = (start, start, start);
    let mut rest = key;
    // The last block, of one to twelve bytes, is not mixed: the final steps below take it.
    while rest.len() > 12 {
        let (block, behind) = rest.split_at(12);
        rest = behind;
        a = a.wrapping_add(little_endian(block));
        b = b.wrapping_add(little_endian(&block[4..]));
        c = c.wrapping_add(little_endian(&block[8..]));
        a = a.wrapping_sub(c) ^ c.rotate_left(4);
        c = c.wrapping_add(b);
        b = b.wrapping_sub(a) ^ a.rotate_left(6);
        a = a.wrapping_add(c);
        c = c.wrapping_sub(b) ^ b.rotate_left(8);
        b = b.wrapping_add(a);
        a = a.wrapping_sub(c) ^ c.rotate_left(16);
        c = c.wrapping_add(b);
        b = b.wrapping_sub(a) ^ a.rotate_left(19);
        a = a.wrapping_add(c);
        c = c.wrapping_sub(b) ^ b.rotate_left(4);
        b = b.wrapping_add(a);
    }
    a = a.wrapping_add(padded(rest));
    b = b.wrapping_add(padded(rest.get(4..).unwrap_or_default()));
    c = c.wrapping_add(padded(rest.get(8..).unwrap_or_default()));
    c = (c ^ b).wrapping_sub(b.rotate_left(14));
    a = (a ^ c).wrapping_sub(c.rotate_left(11));
    b = (b ^ a).wrapping_sub(a.rotate_left(25));
    c = (c ^ b).wrapping_sub(b.rotate_left(16));
    a = (a ^ c).wrapping_sub(c.rotate_left(4));
    b = (b ^ a).wrapping_sub(a.rotate_left(14));
    (c ^ b).wrapping_sub(b.rotate_left(24))
}

/// The number at the beginning of a key, after at most one sign; 0 if there is none. It wraps
/// around at 64 bits. Predixy takes the remainder of the unsigned number: -1 is 2^64 - 1.
pub(super) fn atol(key: &[u8]) -> u64 {
    let (negative, digits) = match key {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let number =
        digits
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .fold(0_u64, |number, &digit| {
                number
                    .wrapping_mul(10)
                    .wrapping_add(u64::from(digit - b'0'))
            });
    if negative {
        number.wrapping_neg()
    } else {
        number
    }
}

/// A byte as a `char` of x86: from 0x80 on it is negative, and sign extension sets all higher bits.
fn signed(byte: u8) -> u32 {
    i32::from(byte as i8) as u32
}

/// The first four bytes as a little-endian number; missing bytes are 0.
fn padded(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .take(4)
        .rev()
        .fold(0, |word, &byte| (word << 8) | u32::from(byte))
}

const FNV_32_OFFSET: u32 = 0x811c_9dc5;
const FNV_32_PRIME: u32 = 0x0100_0193;
/// The lower halves of 0xcbf29ce484222325 and 0x100000001b3.
const FNV_64_OFFSET: u32 = 0x8422_2325;
const FNV_64_PRIME: u32 = 0x0000_01b3;

/// The CRC32 of each byte, without the inversions.
static CRC32_OF_BYTE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 {
                (crc >> 1) ^ 0xedb8_8320
            } else {
                crc >> 1
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

    /// The key `apple` has the hashes that the tests of libmemcached and twemproxy expect.
    #[test]
    fn libmemcached_vectors_hold() {
        let key = b"apple";
        assert_eq!(one_at_a_time(key), 2_297_466_611);
        assert_eq!(md5_head(key), 3_195_025_439);
        assert_eq!(crc16(key), 3_662_830_516);
        assert_eq!(crc32(key), 10_542);
        assert_eq!(crc32a(key), 2_838_417_488);
        assert_eq!(fnv1_32(key), 67_176_023);
        assert_eq!(fnv1a_32(key), 280_767_167);
        assert_eq!(fnv1_64(key), 473_199_127);
        assert_eq!(fnv1a_64(key), 1_488_911_807);
        assert_eq!(hsieh(key), 3_738_850_110);
        assert_eq!(jenkins(key), 1_442_444_624);
        assert_eq!(murmur(key), 4_142_305_122);
    }

    /// These vectors hold: check values of the CRCs (of `123456789`), the example of twemproxy's
    /// pull request 367, and FNV's test vectors (<http://www.isthe.com/chongo/src/fnv/test_fnv.c>).
    #[test]
    fn other_published_vectors_hold() {
        assert_eq!(crc32a(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc16(b"123456789") & 0xffff, 0x31c3);
        assert_eq!(crc16(b"FM|ivector_2129920"), 2_859_837_793);
        assert_eq!(fnv1_32(b"foobar"), 0x31f0_b262);
        assert_eq!(fnv1a_32(b"foobar"), 0xbf9c_f968);
        assert_eq!(fnv1_64(b"foobar"), 0x340d_8765_a4dd_a9c2_u64 as u32);
        assert_eq!(fnv1a_64(b"foobar"), 0x8594_4171_f739_67e8_u64 as u32);
    }

    /// `atol` reads one sign and digits at the beginning of a key, modulo 2^64.
    #[test]
    fn atol_reads_the_number_at_the_beginning() {
        for (key, number) in [
            (&b""[..], 0),
            (b"0", 0),
            (b"42", 42),
            (b"+42", 42),
            (b"-42", 0_u64.wrapping_sub(42)),
            (b"42:7", 42),
            (b"a42", 0),
            (b" 42", 0),
            (b"--42", 0),
            (b"+-42", 0),
            (b"-", 0),
            (b"18446744073709551617", 1),
        ] {
            assert_eq!(atol(key), number, "{}", key.escape_ascii());
        }
    }
}

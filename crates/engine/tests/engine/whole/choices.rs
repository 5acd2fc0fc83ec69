//! The source of the choices of a history.

/// A stream of numbers, made from a seed or read from the bytes of a fuzzer.
pub(crate) enum Choices<'a> {
    Seed(u64),
    Bytes(&'a [u8]),
}

impl Choices<'_> {
    /// The choices of a seed. Small seeds give streams as different as any.
    pub(crate) fn seeded(seed: u64) -> Choices<'static> {
        Choices::Seed(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `end`; 0 when the bytes have run out.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        match self {
            Choices::Seed(state) => {
                *state ^= *state << 13;
                *state ^= *state >> 7;
                *state ^= *state << 17;
                (*state >> 11) as usize % end
            }
            Choices::Bytes(bytes) => match bytes.split_first_chunk::<2>() {
                Some((first, rest)) => {
                    *bytes = rest;
                    usize::from(u16::from_le_bytes(*first)) % end
                }
                None => 0,
            },
        }
    }

    /// True once in this many times.
    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == count - 1
    }

    pub(crate) fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// A piece of this many bytes: all, some, or one.
    pub(crate) fn piece_of(&mut self, len: usize) -> usize {
        match self.below(4) {
            0 => 1.min(len),
            1 => 1 + self.below(len.max(1)),
            _ => len,
        }
        .min(len)
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(self, Choices::Bytes([] | [_]))
    }
}

//! Bytes on their way out, and the memory they lie in.

/// Bytes that wait to be written: appended behind, taken in front.
///
/// ```text
///   | taken | to be written | room |
///           start           len
/// ```
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    start: usize,
}

impl Outgoing {
    #[inline]
    pub(crate) fn pending(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Gives back room: the socket has taken what it takes, and the rest may wait for long.
    pub(crate) fn settle(&mut self) {
        if self.start > self.len() / 4 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        shrink(&mut self.bytes);
    }

    /// Where to append; memory comes from `spare` when there is none yet.
    #[inline]
    pub(crate) fn tail(&mut self, spare: &mut Spare) -> &mut Vec<u8> {
        if self.bytes.capacity() == 0 {
            self.bytes = spare.take();
        }
        &mut self.bytes
    }

    /// The first `count` bytes were written, or never will be.
    #[inline]
    pub(crate) fn take(&mut self, count: usize, spare: &mut Spare) {
        self.start += count;
        debug_assert!(self.start <= self.bytes.len());
        if self.start == self.bytes.len() {
            self.start = 0;
            spare.give(std::mem::take(&mut self.bytes));
        } else if self.start >= COMPACT_BYTES && self.start * 2 >= self.bytes.len() {
            // A reader that never quite catches up must not make the part in front grow for ever.
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }
}

/// Bytes of a link: they are kept until they are answered, so that what was lost with a connection
/// and did no harm can be sent again.
///
/// ```text
///   | answered | written, unanswered | unwritten | room |
///              answered              written     len
/// ```
#[derive(Debug, Default)]
pub(crate) struct Unanswered {
    bytes: Vec<u8>,
    answered: usize,
    written: usize,
    /// Something was answered that had not been written whole.
    overtaken: bool,
}

impl Unanswered {
    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Gives back the room of a link that owes nothing.
    pub(crate) fn settle(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = Vec::new();
        }
    }

    /// Everything that was not answered.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.answered..]
    }

    /// What the kernel has not taken.
    #[inline]
    pub(crate) fn unwritten(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    #[inline]
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The last `count` bytes, which the kernel has not seen, are to be replaced.
    pub(crate) fn take_back(&mut self, count: usize) {
        debug_assert!(count <= self.bytes.len() - self.written);
        self.bytes.truncate(self.bytes.len() - count);
    }

    #[inline]
    pub(crate) fn write(&mut self, count: usize) {
        self.written += count;
        debug_assert!(self.written <= self.bytes.len());
    }

    /// Whether something was answered before it was asked: what else is said cannot be trusted.
    pub(crate) fn is_overtaken(&self) -> bool {
        self.overtaken
    }

    /// The first `count` bytes were answered.
    #[inline]
    pub(crate) fn answer(&mut self, count: usize) {
        self.answered += count;
        if self.answered > self.written {
            self.written = self.answered;
            self.overtaken = true;
        }
        debug_assert!(self.answered <= self.bytes.len());
        if self.answered == self.bytes.len() {
            self.answered = 0;
            self.written = 0;
            self.bytes.clear();
            self.bytes.shrink_to(LINK_BYTES_KEPT);
        } else if self.answered >= COMPACT_BYTES && self.answered * 2 >= self.bytes.len() {
            self.bytes.drain(..self.answered);
            self.written -= self.answered;
            self.answered = 0;
        }
    }

    /// Starts anew with these bytes, none of them written.
    pub(crate) fn replace(&mut self, bytes: Vec<u8>) {
        *self = Unanswered {
            bytes,
            ..Unanswered::default()
        };
    }
}

/// Frees the room of a buffer whose bytes may wait for long, if it is more than half of them. A
/// quarter stays, so a buffer that grows and is shrunk in turn is copied once per quarter.
pub(crate) fn shrink(bytes: &mut Vec<u8>) {
    if bytes.capacity() > bytes.len() + bytes.len() / 2 + SMALL_BYTES {
        bytes.shrink_to(bytes.len() + bytes.len() / 4);
    }
}

/// So much room is no loss.
const SMALL_BYTES: usize = 512;

const COMPACT_BYTES: usize = 64 << 10;

/// Buffers that nobody uses. Whoever becomes idle gives its buffer back, so an idle session holds
/// none, and the few that a turn needs stay warm in the processor's cache.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    buffers: Vec<Vec<u8>>,
}

/// What a fresh buffer has room for; it grows by doubling.
const FRESH_BYTES: usize = 512;
/// Room that a link keeps between batches.
const LINK_BYTES_KEPT: usize = 64 << 10;
/// A buffer that grew beyond this is freed, not kept.
const SPARE_BYTES_MAX: usize = 16 << 10;
/// How many buffers are kept: at most four megabytes in a worker.
const SPARES_MAX: usize = 256;

impl Spare {
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.buffers
            .pop()
            .unwrap_or_else(|| Vec::with_capacity(FRESH_BYTES))
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.buffers.iter().map(Vec::capacity).sum()
    }

    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        if capacity > 0 && capacity <= SPARE_BYTES_MAX && self.buffers.len() < SPARES_MAX {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_appended_is_taken_in_order_and_memory_goes_back() {
        let mut spare = Spare::default();
        let mut out = Outgoing::default();
        out.tail(&mut spare).extend_from_slice(b"hello world");
        out.take(6, &mut spare);
        assert_eq!(out.pending(), b"world");
        out.tail(&mut spare).extend_from_slice(b"!");
        assert_eq!(out.pending(), b"world!");
        out.take(6, &mut spare);
        assert!(out.is_empty());
        assert_eq!((out.bytes.capacity(), spare.buffers.len()), (0, 1));
    }

    #[test]
    fn a_reader_that_never_catches_up_does_not_make_the_buffer_grow() {
        let mut spare = Spare::default();
        let mut out = Outgoing::default();
        for _ in 0..1000 {
            out.tail(&mut spare).extend_from_slice(&[7; 10_000]);
            let all_but_one = out.len() - 1;
            out.take(all_but_one, &mut spare);
        }
        assert_eq!(out.pending(), [7]);
        assert!(out.bytes.capacity() < 8 * COMPACT_BYTES);
    }
}

//! Buffers of bytes on their way out, and their memory.

/// Bytes that wait to be written: appended at the back, taken from the front.
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

    /// Frees unused memory, because the remaining bytes may wait for long.
    pub(crate) fn settle(&mut self) {
        if self.start > self.len() / 4 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        shrink(&mut self.bytes);
    }

    /// The buffer to append to. A buffer without memory takes some from `spare`.
    #[inline]
    pub(crate) fn tail(&mut self, spare: &mut SpareBuffers) -> &mut Vec<u8> {
        if self.bytes.capacity() == 0 {
            self.bytes = spare.take();
        }
        &mut self.bytes
    }

    /// Removes the first `count` bytes: they were written or dropped.
    #[inline]
    pub(crate) fn take(&mut self, count: usize, spare: &mut SpareBuffers) {
        self.start += count;
        debug_assert!(self.start <= self.bytes.len());
        if self.start == self.bytes.len() {
            self.start = 0;
            spare.give(std::mem::take(&mut self.bytes));
        } else if self.start >= COMPACT_BYTES && self.start * 2 >= self.bytes.len() {
            // A slow reader that never catches up must not make the taken part grow for ever.
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }
}

/// Bytes of a link. They are kept until they are answered, so that harmless requests can be sent
/// again after a lost connection.
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
    /// A request was answered before it had been written whole.
    overtaken: bool,
}

impl Unanswered {
    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Frees the memory of a link that owes nothing.
    pub(crate) fn settle(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = Vec::new();
        }
    }

    /// All bytes without an answer.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.answered..]
    }

    /// The bytes that the kernel has not taken.
    #[inline]
    pub(crate) fn unwritten(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    #[inline]
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes back the last `count` bytes, which the kernel has not seen.
    pub(crate) fn take_back(&mut self, count: usize) {
        debug_assert!(count <= self.bytes.len() - self.written);
        self.bytes.truncate(self.bytes.len() - count);
    }

    #[inline]
    pub(crate) fn write(&mut self, count: usize) {
        self.written += count;
        debug_assert!(self.written <= self.bytes.len());
    }

    /// Whether a request was answered before it was sent: later replies cannot be trusted.
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
        } else if self.answered >= COMPACT_BYTES {
            self.compact();
        }
    }

    /// Frees the answered bytes, if they are half of all.
    #[inline(never)]
    fn compact(&mut self) {
        if self.answered * 2 >= self.bytes.len() {
            self.bytes.drain(..self.answered);
            self.written -= self.answered;
            self.answered = 0;
        }
    }

    /// Replaces all bytes by these, of which none is written.
    pub(crate) fn replace(&mut self, bytes: Vec<u8>) {
        *self = Unanswered {
            bytes,
            ..Unanswered::default()
        };
    }
}

/// Frees the room of a buffer if its bytes may wait for long and the room exceeds half their
/// length. A quarter stays, so a buffer that grows and shrinks by turns is copied once per quarter.
pub(crate) fn shrink(bytes: &mut Vec<u8>) {
    if bytes.capacity() > bytes.len() + bytes.len() / 2 + SMALL_BYTES {
        bytes.shrink_to(bytes.len() + bytes.len() / 4);
    }
}

/// Room that is not worth freeing.
const SMALL_BYTES: usize = 512;

/// The part in front is removed when it has this size and half of the bytes.
const COMPACT_BYTES: usize = 64 << 10;

/// Unused buffers. A session that becomes idle gives its buffer back, so an idle session holds
/// none. The few buffers that a turn needs stay warm in the processor's cache.
#[derive(Debug, Default)]
pub(crate) struct SpareBuffers {
    buffers: Vec<Vec<u8>>,
}

/// The capacity of a fresh buffer, bytes; it grows by doubling.
const FRESH_BYTES: usize = 512;
/// Room that a link keeps between batches, bytes.
const LINK_BYTES_KEPT: usize = 64 << 10;
/// The largest buffer that is kept, bytes.
const SPARE_BYTES_MAX: usize = 16 << 10;
/// How many buffers are kept: at most four megabytes in a worker.
const SPARES_MAX: usize = 256;

impl SpareBuffers {
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
    fn bytes_leave_in_order_and_memory_goes_back() {
        let mut spare = SpareBuffers::default();
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
    fn slow_reader_does_not_make_the_buffer_grow() {
        let mut spare = SpareBuffers::default();
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

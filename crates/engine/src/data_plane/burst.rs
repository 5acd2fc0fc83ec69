//! Whether a request is alone: the only one that its session has sent since it was owed nothing.
//!
//! Some client libraries repeat a whole pipeline when one request in it gets an error that says
//! 'ask again'. The other requests may have been executed. So only a request that is alone gets
//! such an error.

/// The requests of a session since all of its earlier ones were answered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Burst {
    /// The place of the first request in the order of replies.
    first: u32,
    /// Bytes that came before the session was owed a reply to the first request.
    bytes: u32,
    /// The place of the last request on the slow path of [`crate::data_plane::ingress`].
    dispatched: u32,
    /// The bytes of that request.
    placed_bytes: u32,
}

/// A burst of so many bytes may be a piece of a pipeline: redis-py writes a pipeline in pieces of
/// at least 6,000 bytes, and each may end with a request.
const PIECE_BYTES_MIN: u32 = 4 << 10;

/// A length as a burst stores it.
fn counted(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

impl Burst {
    /// Begins a burst with so many bytes. Its first request has the place `seq`.
    #[inline]
    pub(crate) fn begin(&mut self, seq: u32, bytes: usize) {
        (self.first, self.bytes) = (seq, counted(bytes));
    }

    /// Adds bytes that came behind waiting bytes.
    pub(crate) fn extend(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(counted(bytes));
    }

    /// Notes that a request of so many bytes is to have the place `seq`.
    pub(crate) fn place(&mut self, seq: u32, bytes: usize) {
        (self.dispatched, self.placed_bytes) = (seq, counted(bytes));
    }

    /// Makes no request of the burst count as alone: to repeat the request would not repeat all of
    /// its effects, or its bytes cannot be compared with those of the burst.
    pub(crate) fn count_as_many(&mut self) {
        self.first = self.first.wrapping_sub(1);
    }

    /// Whether the request that is to have the place `seq` is alone.
    pub(crate) fn is_alone(&self, seq: u32) -> bool {
        self.bytes < PIECE_BYTES_MIN
            && (self.first, self.dispatched, self.placed_bytes) == (seq, seq, self.bytes)
    }

    /// Whether the request at `seq` is alone. The next one will have the place `next_seq`, and
    /// `waiting` bytes of the client were not taken yet.
    pub(crate) fn was_alone(&self, seq: u32, next_seq: u32, waiting: usize) -> bool {
        self.bytes < PIECE_BYTES_MIN
            && self.first == seq
            && next_seq.wrapping_sub(seq) == 1
            && waiting == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEQ: u32 = u32::MAX;

    /// A burst of so many bytes. Its first request has 10.
    fn burst(bytes: usize) -> Burst {
        let mut burst = Burst::default();
        burst.begin(SEQ, bytes);
        burst.place(SEQ, 10);
        burst
    }

    /// One request that came whole or in fragments is alone, before it has its place and after
    /// that.
    #[test]
    fn request_that_came_alone_is_alone() {
        for came_first in [10, 4] {
            let mut burst = burst(came_first);
            burst.extend(10 - came_first);
            assert!(burst.is_alone(SEQ));
            assert!(burst.was_alone(SEQ, 0, 0));
        }
    }

    /// The first request of a pipeline is not alone.
    #[test]
    fn first_of_a_pipeline_is_not_alone() {
        let mut burst = burst(20);
        assert!(!burst.is_alone(SEQ));
        assert!(!burst.was_alone(SEQ, 1, 0), "the second has its place");
        assert!(!burst.was_alone(SEQ, 0, 10), "the second waits");
        burst.begin(SEQ, 10);
        burst.extend(10);
        assert!(
            !burst.is_alone(SEQ),
            "the second came while the first waited"
        );
    }

    /// A large request may be the first piece of a pipeline.
    #[test]
    fn large_request_is_not_alone() {
        let large = PIECE_BYTES_MIN as usize;
        for bytes in [large - 1, large] {
            let mut burst = Burst::default();
            burst.begin(SEQ, bytes);
            burst.place(SEQ, bytes);
            assert_eq!(burst.is_alone(SEQ), bytes < large);
            assert_eq!(burst.was_alone(SEQ, 0, 0), bytes < large);
        }
    }

    /// The last request of a pipeline is not alone, although all others were answered.
    #[test]
    fn last_of_a_pipeline_is_not_alone() {
        let mut burst = burst(20);
        burst.place(0, 10);
        assert!(!burst.is_alone(0));
        assert!(!burst.was_alone(0, 1, 0));
    }

    /// A request that counts as many is not alone, and the next burst is not concerned.
    #[test]
    fn request_that_counts_as_many_is_not_alone() {
        let mut burst = burst(10);
        burst.count_as_many();
        assert!(!burst.is_alone(SEQ));
        assert!(!burst.was_alone(SEQ, 0, 0));
        burst.begin(0, 10);
        assert!(!burst.is_alone(0), "it is not dispatched yet");
        burst.place(0, 10);
        assert!(burst.is_alone(0));
    }
}

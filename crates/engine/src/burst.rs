//! Whether a request is alone: the only one that its session has sent since it was owed nothing.
//!
//! Some client libraries repeat a whole pipeline when one request in it gets an error that says 'ask
//! again'. The other requests may have been executed. So only a request that is alone gets such an
//! error.

/// What a session has sent since it was owed nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Burst {
    /// The place of its first request in the order of replies.
    first: u32,
    /// All bytes of the burst. A burst of more than 4 GiB has more than one request.
    bytes: u32,
    /// The bytes of the request that was placed last off the short way.
    placed: u32,
}

impl Burst {
    /// The client sent `bytes`. `is_new`: it was owed nothing, no byte of it waited, and it had been
    /// given all replies. Then the next request has the place `seq`.
    pub(crate) fn grow(&mut self, is_new: bool, seq: u32, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        if is_new {
            (self.first, self.bytes, self.placed) = (seq, bytes, 0);
        } else {
            self.bytes = self.bytes.saturating_add(bytes);
        }
    }

    /// A request of so many bytes is to be placed.
    pub(crate) fn place(&mut self, bytes: usize) {
        self.placed = u32::try_from(bytes).unwrap_or(u32::MAX);
    }

    /// No request of the burst counts as alone, because to repeat the request would not repeat all
    /// of its effects, or because its bytes cannot be compared with those of the burst.
    pub(crate) fn count_as_many(&mut self) {
        self.first = self.first.wrapping_sub(1);
    }

    /// Whether the request that is being placed is alone. It will have the place `seq`.
    pub(crate) fn is_alone(&self, seq: u32) -> bool {
        self.first == seq && self.bytes == self.placed
    }

    /// Whether the request at `seq` is alone. The next one will have the place `next_seq`, and
    /// `waiting` bytes of the client were not taken yet.
    pub(crate) fn was_alone(&self, seq: u32, next_seq: u32, waiting: usize) -> bool {
        self.first == seq && next_seq.wrapping_sub(seq) == 1 && waiting == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEQ: u32 = u32::MAX;

    fn burst(bytes: usize) -> Burst {
        let mut burst = Burst::default();
        burst.grow(true, SEQ, bytes);
        burst
    }

    /// One request that came whole is alone, before it has its place and after that.
    #[test]
    fn request_that_came_whole_is_alone() {
        let mut burst = burst(10);
        burst.place(10);
        assert!(burst.is_alone(SEQ));
        assert!(burst.was_alone(SEQ, 0, 0));
    }

    /// One request that came in two reads is alone.
    #[test]
    fn request_that_came_in_parts_is_alone() {
        let mut burst = burst(4);
        burst.grow(false, SEQ, 6);
        burst.place(10);
        assert!(burst.is_alone(SEQ));
    }

    /// The first request of a pipeline is not alone, in whatever parts the pipeline came.
    #[test]
    fn first_of_a_pipeline_is_not_alone() {
        let mut together = burst(20);
        together.place(10);
        assert!(!together.is_alone(SEQ));
        let mut apart = burst(10);
        apart.place(10);
        apart.grow(false, 0, 10);
        assert!(!apart.is_alone(SEQ));
        assert!(!burst(20).was_alone(SEQ, 1, 0), "the second has its place");
        assert!(!burst(20).was_alone(SEQ, 0, 10), "the second waits");
    }

    /// The last request of a pipeline is not alone, although all others were answered.
    #[test]
    fn last_of_a_pipeline_is_not_alone() {
        let mut burst = burst(20);
        burst.place(10);
        assert!(!burst.is_alone(0));
        assert!(!burst.was_alone(0, 1, 0));
    }

    /// A request that counts as many is not alone, and the next burst is not concerned.
    #[test]
    fn request_that_counts_as_many_is_not_alone() {
        let mut burst = burst(10);
        burst.place(10);
        burst.count_as_many();
        assert!(!burst.is_alone(SEQ));
        assert!(!burst.was_alone(SEQ, 0, 0));
        burst.grow(true, 0, 10);
        assert!(!burst.is_alone(0), "it is not placed yet");
        burst.place(10);
        assert!(burst.is_alone(0));
    }

    /// A new burst begins when the session was owed nothing.
    #[test]
    fn request_after_a_pipeline_is_alone() {
        let mut burst = burst(20);
        burst.grow(true, 1, 10);
        burst.place(10);
        assert!(burst.is_alone(1));
    }
}

//! Which ready socket is handled first, so that a full turn leaves none out for ever.

/// Remembers where a full turn stopped.
///
/// The kernel reports sockets that stay ready in the same order in each turn. So the next turn
/// begins with the first socket that was left out. An index would not do: it counts in a list that
/// was rotated already.
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    /// The token of the first socket that was left out.
    first: Option<u64>,
}

impl LeftOut {
    /// Brings the socket that was left out first to the front, if it is ready still. `token` reads
    /// the token of an item.
    pub(crate) fn bring_forward<T>(&mut self, ready: &mut [T], token: impl Fn(&T) -> u64) {
        let Some(first) = self.first.take() else {
            return;
        };
        if let Some(at) = ready.iter().position(|item| token(item) == first) {
            ready.rotate_left(at);
        }
    }

    /// The turn is full, and this socket is left out.
    pub(crate) fn note(&mut self, token: u64) {
        self.first.get_or_insert(token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Handles `room` of the ready sockets, as a turn does, and returns them.
    fn turn(left_out: &mut LeftOut, ready: &[u64], room: usize) -> Vec<u64> {
        let mut ready = ready.to_vec();
        left_out.bring_forward(&mut ready, |token| *token);
        for token in ready.drain(room.min(ready.len())..) {
            left_out.note(token);
        }
        ready
    }

    /// Sockets that are always ready are handled in turn, whatever part of them fits a turn.
    #[test]
    fn full_turns_handle_each_socket_equally_often() {
        let ready: Vec<u64> = (0..12).collect();
        for room in [1, 2, 5, 6, 7, 11, 12] {
            let mut left_out = LeftOut::default();
            let mut handled = [0; 12];
            for _ in 0..12 {
                for token in turn(&mut left_out, &ready, room) {
                    handled[token as usize] += 1;
                }
            }
            assert_eq!(handled, [room; 12], "{room} fit a turn");
        }
    }

    /// A socket that is not ready any more changes nothing for the others.
    #[test]
    fn turn_without_the_socket_left_out_begins_at_the_front() {
        let mut left_out = LeftOut::default();
        assert_eq!(turn(&mut left_out, &[1, 2, 3, 4], 2), [1, 2]);
        assert_eq!(turn(&mut left_out, &[1, 2, 4], 2), [1, 2]);
        assert_eq!(turn(&mut left_out, &[1, 2, 4], 2), [4, 1]);
        assert_eq!(turn(&mut left_out, &[1, 2, 4], 3), [2, 4, 1]);
        assert_eq!(turn(&mut left_out, &[1, 2, 4], 3), [1, 2, 4]);
    }
}

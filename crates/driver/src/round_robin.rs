//! Round robin over ready sockets, so that full turns do not starve any of them.

/// Remembers where a full turn stopped.
///
/// The kernel reports sockets that stay ready in the same order in each turn. So the next turn
/// begins with the first socket that the full turn skipped. An index would be wrong: it would count
/// in a list that is already rotated.
///
/// Call [`RoundRobin::rotate`] at the start of a turn and [`RoundRobin::note_skipped`] for each
/// socket that does not fit the turn.
#[derive(Debug, Default)]
pub(crate) struct RoundRobin {
    /// Token of the first skipped socket of the last turn.
    next: Option<u64>,
}

impl RoundRobin {
    /// Rotates the ready sockets so that the first skipped one is in front, if it is still ready.
    /// `token` reads the token of an item.
    pub(crate) fn rotate<T>(&mut self, ready: &mut [T], token: impl Fn(&T) -> u64) {
        let Some(next) = self.next.take() else {
            return;
        };
        if let Some(at) = ready.iter().position(|item| token(item) == next) {
            ready.rotate_left(at);
        }
    }

    /// Notes that the turn is full and this socket was not handled.
    pub(crate) fn note_skipped(&mut self, token: u64) {
        self.next.get_or_insert(token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Handles up to `max` of the ready sockets, as a turn does, and returns these.
    fn turn(round_robin: &mut RoundRobin, ready: &[u64], max: usize) -> Vec<u64> {
        let mut ready = ready.to_vec();
        round_robin.rotate(&mut ready, |token| *token);
        for token in ready.drain(max.min(ready.len())..) {
            round_robin.note_skipped(token);
        }
        ready
    }

    /// Sockets that are always ready are handled equally often, however many fit a turn.
    #[test]
    fn full_turns_handle_each_socket_equally_often() {
        let ready: Vec<u64> = (0..12).collect();
        for max in [1, 2, 5, 6, 7, 11, 12] {
            let mut round_robin = RoundRobin::default();
            let mut handled = [0; 12];
            for _ in 0..12 {
                for token in turn(&mut round_robin, &ready, max) {
                    handled[token as usize] += 1;
                }
            }
            assert_eq!(handled, [max; 12], "{max} fit a turn");
        }
    }

    /// If the skipped socket is not ready any more, the turn keeps the kernel's order.
    #[test]
    fn turn_without_the_skipped_socket_keeps_the_order() {
        let mut round_robin = RoundRobin::default();
        assert_eq!(turn(&mut round_robin, &[1, 2, 3, 4], 2), [1, 2]);
        assert_eq!(turn(&mut round_robin, &[1, 2, 4], 2), [1, 2]);
        assert_eq!(turn(&mut round_robin, &[1, 2, 4], 2), [4, 1]);
        assert_eq!(turn(&mut round_robin, &[1, 2, 4], 3), [2, 4, 1]);
        assert_eq!(turn(&mut round_robin, &[1, 2, 4], 3), [1, 2, 4]);
    }
}

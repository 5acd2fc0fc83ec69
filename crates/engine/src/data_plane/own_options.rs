//! The options of respool that clients may set at run time: the values of a listener, and the
//! names.

use respool_protocol::commands::id;

use crate::base::settings::Aim;
use crate::data_plane::ingress::Request;

/// The coalescing switches and the aim of the flush rule for the clients of one listener.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CoalescingSwitches {
    /// The aim of the flush rule. `None`: that of the pool.
    pub(crate) aim: Option<Aim>,
    /// The pool of the listener, once an option of the listener was set.
    pub(crate) pool: u16,
    pub(crate) fuse: bool,
    pub(crate) collapse: bool,
}

impl CoalescingSwitches {
    pub(crate) const ALL: CoalescingSwitches = CoalescingSwitches {
        aim: None,
        pool: 0,
        fuse: true,
        collapse: true,
    };

    /// Whether the listener belongs to this pool and has this aim of its own.
    pub(crate) fn aims_at(&self, aim: Aim, pool: u16) -> bool {
        self.aim == Some(aim) && self.pool == pool
    }

    /// The switches of a listener, or the defaults if none were set.
    #[inline]
    pub(crate) fn of(set: &[CoalescingSwitches], listener: u16) -> CoalescingSwitches {
        let switches = set.get(usize::from(listener));
        switches.copied().unwrap_or(CoalescingSwitches::ALL)
    }
}

const PREFIX: &[u8] = b"respool.";

/// Whether a name or a pattern is about respool's options.
pub(crate) fn is_ours(name: &[u8]) -> bool {
    name.len() >= PREFIX.len() && name[..PREFIX.len()].eq_ignore_ascii_case(PREFIX)
}

/// Whether a CONFIG SET or GET names an option of respool.
pub(crate) fn is_control(request: &Request<'_>) -> bool {
    names(request).any(is_ours)
}

/// The options that a CONFIG SET or GET names.
pub(crate) fn names<'a>(request: &Request<'a>) -> impl Iterator<Item = &'a [u8]> {
    let step = match request.id {
        id::CONFIG_SET => 2,
        _ => 1,
    };
    let asks = matches!(request.id, id::CONFIG_SET | id::CONFIG_GET);
    request
        .args()
        .skip(2)
        .step_by(step)
        .take(if asks { usize::MAX } else { 0 })
}

//! Replies to requests for several servers, and replies that name keys.

use respool_protocol::commands::Names;

use crate::data_plane::completion::local::ScriptEffect;

/// The completion of a request that several servers execute.
#[derive(Debug)]
pub(crate) enum ScatterCompletion {
    /// SCAN of server `number`, and then of server `next`. `sifted_by`: a pattern for the keys that
    /// the server returns.
    Scan {
        number: u16,
        next: Option<u16>,
        sifted_by: Option<Box<[u8]>>,
    },
    /// The reply names keys without the prefix that respool removes for its server.
    Named(Names),
    /// A share of a scattered request, with its number.
    Share { index: u16, effect: ScriptEffect },
}

impl ScatterCompletion {
    /// The effect of the request on the scripts of its server.
    pub(crate) fn effect(&self) -> ScriptEffect {
        match self {
            ScatterCompletion::Share { effect, .. } => *effect,
            ScatterCompletion::Scan { .. } | ScatterCompletion::Named(_) => ScriptEffect::None,
        }
    }

    /// The completion of the same read when it is sent once more. `None`: such a read is not sent
    /// again.
    pub(crate) fn read_again(&self) -> Option<ScatterCompletion> {
        match *self {
            ScatterCompletion::Share { index, .. } => Some(ScatterCompletion::Share {
                index,
                effect: ScriptEffect::None,
            }),
            ScatterCompletion::Named(names) => Some(ScatterCompletion::Named(names)),
            ScatterCompletion::Scan { .. } => None,
        }
    }
}

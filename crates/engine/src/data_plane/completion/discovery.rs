//! Replies that tell the addresses, roles and slots of servers.

use respool_protocol::sentinel::SURVEY_ANSWERS;

/// The completion of a question about the topology. All of them are respool's own.
#[derive(Debug)]
pub(crate) enum DiscoveryCompletion {
    /// Asks a Sentinel about the primary of this number, with five requests. `answers`: the replies
    /// so far.
    Survey { primary: u16, answers: Vec<Vec<u8>> },
    /// Asks a node of a Cluster for the owners of slots, with two requests. `listed`: the first
    /// reply.
    Owners {
        ticket: u32,
        listed: Option<Vec<u8>>,
    },
    /// Asks a server from which sessions read for its identity and its state, with two requests.
    /// `first`: the first reply.
    Look { first: Option<Vec<u8>> },
    /// Asks the server for its role.
    Role,
    /// Asks a node for all nodes, because it named an unknown one, with two requests. `shards`: the
    /// first reply.
    Nodes { shards: Option<Vec<u8>> },
}

impl DiscoveryCompletion {
    /// Takes a reply that is not the last one. Returns whether the reply was such a one.
    pub(crate) fn take_early(&mut self, reply: &[u8]) -> bool {
        match self {
            DiscoveryCompletion::Owners { listed: first, .. }
            | DiscoveryCompletion::Look { first }
            | DiscoveryCompletion::Nodes { shards: first } => {
                let is_first = first.is_none();
                if is_first {
                    *first = Some(reply.to_vec());
                }
                is_first
            }
            DiscoveryCompletion::Survey { answers, .. } => {
                let is_early = answers.len() + 1 < SURVEY_ANSWERS;
                if is_early {
                    answers.push(reply.to_vec());
                }
                is_early
            }
            DiscoveryCompletion::Role => false,
        }
    }

    /// Drops the replies that have come, before the questions are sent again. Returns whether they
    /// are sent again.
    pub(crate) fn begin_again(&mut self) -> bool {
        match self {
            DiscoveryCompletion::Owners { listed: first, .. }
            | DiscoveryCompletion::Look { first }
            | DiscoveryCompletion::Nodes { shards: first } => *first = None,
            DiscoveryCompletion::Survey { answers, .. } => answers.clear(),
            DiscoveryCompletion::Role => return false,
        }
        true
    }

    /// Whether a too long reply still ends it.
    pub(crate) fn takes_rest(&self) -> bool {
        !matches!(
            self,
            DiscoveryCompletion::Role | DiscoveryCompletion::Nodes { .. }
        )
    }
}

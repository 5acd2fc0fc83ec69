//! Requests with commands that the table lacks: respool asks the server about the command.

use respool_protocol::request::Span;

use crate::base::handle::SessionId;
use crate::data_plane::ingress::Dispatched;
use crate::data_plane::session::Pins;
use crate::engine::Engine;
use crate::local::unknown::{UnknownRequest, UnknownStep};

impl Engine {
    /// A request whose command the table does not have.
    pub(crate) fn dispatch_unknown(
        &mut self,
        session_id: SessionId,
        bytes: &[u8],
        spans: &[Span],
    ) -> Dispatched {
        let request = UnknownRequest::new(bytes, spans);
        let plane = &mut self.plane;
        let step = match self.local.judge_unknown(plane, session_id, &request) {
            Ok(step) => step,
            Err(dispatched) => return dispatched,
        };
        match step {
            UnknownStep::RefuseSubscriber => {
                self.local.refuse_subscriber(plane, session_id, &request)
            }
            UnknownStep::Hold => plane.hold_for_pause(session_id),
            UnknownStep::Known(id) => {
                self.dispatch_known(session_id, bytes, spans, request.row_of(id))
            }
            UnknownStep::RefuseUnknown => self.local.refuse_unknown(plane, session_id, &request),
            UnknownStep::AskServer => self.plane.dispatch_on_link(session_id, bytes, false, None),
            UnknownStep::Queue { taints } => {
                self.transactions
                    .queue_unknown(&mut self.plane, session_id, bytes, taints)
            }
            UnknownStep::Share { reads } => {
                let lane = plane.enter_code_lane_with(session_id, bytes);
                plane.on_code_lane(session_id, lane, |plane| {
                    plane.dispatch_on_link(session_id, bytes, reads, None)
                })
            }
            UnknownStep::Dedicated => {
                let mut pins = Pins::ONCE;
                pins.add(Pins::UNKNOWN);
                self.plane
                    .dispatch_alone(session_id, bytes, (false, None), pins, true)
            }
        }
    }
}

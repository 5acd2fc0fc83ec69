//! Commands that respool answers itself: the answers, and their effects on several components.

use respool_protocol::encode;

use crate::base::counters::Counters;
use crate::base::handle::SessionId;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::pinned::{PinnedCompletion, redirect_asked};
use crate::data_plane::ingress::{Dispatched, Request};
use crate::engine::Engine;
use crate::local::info::{InfoFacts, ask_info, asks_for_us_alone, own_section};
use crate::local::own_command::OwnCommand;

impl Engine {
    /// Answers a request with a command that the table gives to respool.
    pub(crate) fn answer_locally(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        let plane = &mut self.plane;
        let Some(command) = OwnCommand::of(request.id) else {
            let text = format!("ERR respool: '{}' is not supported", request.command.name);
            return plane.answer_error(id, text.as_bytes());
        };
        match command {
            // In a subscription PING has its own reply; within a transaction it goes to the server.
            OwnCommand::Ping if plane.is_restricted(id) => {
                self.pubsub.pong_in_subscription(plane, id, request)
            }
            OwnCommand::Ping => plane.dispatch_on_link(id, request.bytes, true, None),
            OwnCommand::Session(command) => self.local.answer_session(plane, id, command, request),
            OwnCommand::Auth => self.access.auth(plane, id, request),
            OwnCommand::Hello => self.hello(id, request),
            OwnCommand::Reset => self.reset(id),
            OwnCommand::Info => self.info(id, request),
            OwnCommand::Clients => {
                let own = self.admin.answer_clients(plane, id, request);
                self.dispatch_own(own)
            }
            OwnCommand::Transaction => self.answer_transaction(id, request),
            OwnCommand::Subscription { kind, adds } => {
                let discovery = &mut self.discovery;
                let await_publishers =
                    |plane: &mut _, news| discovery.await_publishers(plane, id, news);
                let change = (kind, adds);
                self.pubsub
                    .change_subscriptions(plane, id, request, change, await_publishers)
            }
            OwnCommand::Monitor => self.pinned.monitor(plane, id, request),
            OwnCommand::TargetName => {
                let completion = Completion::Pinned(PinnedCompletion::NameTold);
                plane.dispatch_on_link(id, request.bytes, false, Some(completion))
            }
            OwnCommand::Tracking => match redirect_asked(request) {
                Some((at, to)) => self.track_for(id, request, at, to),
                None => self.pinned.switch(plane, id, request),
            },
            OwnCommand::Switch => self.pinned.switch(plane, id, request),
        }
    }

    fn hello(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        self.local.hello(
            &mut self.plane,
            id,
            request,
            |plane, hello, version| self.access.log_in_by_hello(plane, id, hello, version),
            |plane| self.pubsub.restrict(plane, id),
        )
    }

    /// RESET: the session becomes as a new one.
    pub(crate) fn reset(&mut self, id: SessionId) -> Dispatched {
        let plane = &mut self.plane;
        if plane.hold_until_caught_up(id) {
            return Dispatched::Wait;
        }
        self.pubsub.leave_all(plane, id);
        self.pinned.set_redirect(plane, id, None);
        self.transactions.end_transaction(plane, id);
        plane.reset(id)
    }

    /// INFO: the server's sections and respool's; only respool's if the client asks for no other.
    fn info(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        let plane = &mut self.plane;
        if !asks_for_us_alone(request) {
            return ask_info(plane, id, request);
        }
        if let Some(dispatched) = self.local.refused_by_right(plane, id, request) {
            return dispatched;
        }
        let text = self.our_section(id);
        self.plane.answer_with(id, |out, session| {
            encode::verbatim(out, session.version, &text);
        })
    }

    /// respool's section of INFO for a session: counters of the whole process, and the servers and
    /// links of the session's own pool.
    pub(crate) fn our_section(&self, id: SessionId) -> String {
        let pool = self.plane.pool_of_session(id);
        let is_shown = |server| self.plane.pool_of(server).parent == pool;
        let (servers, server_lines) = self.discovery.server_lines(&self.plane, is_shown);
        own_section(&InfoFacts {
            process_id: self.plane.worker.process_id,
            tcp_port: self.plane.tcp_port_of(id),
            uptime_s: self.plane.now.0 / 1_000_000,
            worker: self.plane.worker.index,
            workers: self.plane.worker.count,
            utilization: self.plane.worker_utilization(),
            reloads: self.admin.reloads,
            counters: self.workers_now(),
            servers,
            server_lines,
            link_lines: self.plane.link_lines(pool),
        })
    }

    /// Counters of the whole process: the last reports of the other workers, and this worker as of
    /// now.
    fn workers_now(&self) -> Counters {
        let mut sum = self.admin.other_workers;
        sum.add(&self.counters());
        sum
    }
}

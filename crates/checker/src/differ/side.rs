//! One of the two sides: several connections to one address, and one directly to its server.
//!
//! The direct side decides which replies are due. Nothing stands before its server, so it can tell
//! "not yet" from "never": once the server has answered a later INFO on another connection, it has
//! handled all that it had received. The other side must then bring as much.
//!
//! No reply tells when a wait begins. So a round ends only when the server itself counts as many
//! blocked clients as there are waiting connections. On the second side this also covers clients
//! that have left while they were blocked, until the server has noticed.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use respool_testkit::client::{RespClient, request};
use respool_testkit::servers::ServerProcess;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::script::{ScriptRequest, ScriptRound};
use super::session::{Expect, ReplySwitch, SessionModel};
use respool_testkit::frame::{Frame, Frames};

/// The result of one request.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) request: ScriptRequest,
    /// Its reply; several for a subscription, none where none is due.
    pub(crate) frames: Vec<Frame>,
    /// Whether the connection ended with it.
    pub(crate) has_closed: bool,
    /// The requests that an EXEC executed.
    pub(crate) queue: Vec<Vec<Vec<u8>>>,
}

/// The payloads of one subscription, by all that stands in front of a payload.
pub(crate) type Messages = BTreeMap<Vec<Frame>, Vec<Frame>>;

/// One client.
#[derive(Debug, Default)]
pub(crate) struct SideConnection {
    stream: Option<TcpStream>,
    id: i64,
    frames: Frames,
    pub(crate) session: SessionModel,
    /// Pieces to be written, one write each.
    outbox: VecDeque<Vec<u8>>,
    /// Requests without a complete reply; `part` belongs to the first one.
    asked: VecDeque<ScriptRequest>,
    expect: Option<Expect>,
    /// The frames of the first request so far.
    part: Vec<Frame>,
    /// Finished requests of this round.
    pub(crate) done: Vec<Exchange>,
    pub(crate) messages: Messages,
    pub(crate) message_count: usize,
    /// Messages without a subscription.
    pub(crate) unsubscribed: Vec<Frame>,
    /// An error that no server may make.
    pub(crate) trouble: Option<String>,
    /// Bytes received and requests finished, to see progress.
    progress: u64,
}

/// How far the connections have come in a round.
#[derive(Clone, Debug)]
pub(crate) struct Goal {
    done: Vec<usize>,
    messages: Vec<usize>,
    is_open: Vec<bool>,
    /// Clients that the server counts as blocked.
    pub(crate) blocked: i64,
}

#[derive(Debug)]
pub(crate) struct Side {
    address: SocketAddr,
    /// The prefix of all keys.
    pub(crate) prefix: &'static [u8],
    /// A direct connection to the server.
    pub(crate) control: Control,
    pub(crate) connections: Vec<SideConnection>,
}

/// With this pause between them, pieces arrive one by one.
const PIECE_PAUSE: Duration = Duration::from_micros(40);
/// The bytes that a server reads from one connection before it looks at others.
const SERVER_READ_BYTES: usize = 16 << 10;
/// The time that a request without a reply may need behind a proxy.
const SILENT_PAUSE: Duration = Duration::from_millis(30);
/// Time between two counts of blocked clients.
const COUNT_PAUSE: Duration = Duration::from_millis(1);
/// The longest time for a reply on the direct connection.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(20);

impl Side {
    /// # Errors
    /// When the server cannot be reached.
    pub(crate) fn new(
        address: SocketAddr,
        server: &ServerProcess,
        prefix: &'static [u8],
    ) -> Result<Side, String> {
        let control =
            Control::connect(server.address()).map_err(|error| format!("the server: {error}"))?;
        Ok(Side {
            address,
            prefix,
            control,
            connections: Vec::new(),
        })
    }

    /// Opens so many new connections.
    pub(crate) fn begin(&mut self, connections: usize) {
        self.connections = (0..connections)
            .map(|_| SideConnection::default())
            .collect();
    }

    /// Ends all connections.
    pub(crate) fn end(&mut self) {
        self.connections.clear();
    }

    /// Whether a connection is blocked after a round.
    pub(crate) fn is_blocked(&self, connection: usize) -> bool {
        !self.connections[connection].asked.is_empty()
    }

    /// The request in which it is blocked.
    pub(crate) fn blocked_in(&self, connection: usize) -> Option<&ScriptRequest> {
        self.connections[connection].asked.front()
    }

    /// Opens closed connections again, and prepares the writes of a round.
    ///
    /// # Errors
    /// When a connection cannot be made.
    pub(crate) fn lay_out(&mut self, round: &ScriptRound) -> Result<(), String> {
        for connection in &mut self.connections {
            connection.done.clear();
            connection.messages.clear();
            connection.message_count = 0;
        }
        // All connections come first: a request may name the id of any.
        for index in 0..self.connections.len() {
            if self.connections[index].stream.is_none() {
                let opened = SideConnection::open(self.address);
                self.connections[index] =
                    opened.map_err(|error| format!("a new connection: {error}"))?;
            }
        }
        let ids: Vec<i64> = self
            .connections
            .iter()
            .map(|connection| connection.id)
            .collect();
        let id = |connection: usize| ids.get(connection).copied().unwrap_or(0);
        for step in &round.steps {
            let mut bytes = Vec::new();
            for request in &step.requests {
                request.behind(self.prefix).encode(&mut bytes, &id);
            }
            let connection = &mut self.connections[step.connection];
            connection.asked.extend(step.requests.iter().cloned());
            let mut start = 0;
            for end in step.cuts.iter().copied().chain([bytes.len()]) {
                // A shortened script may have cuts beyond its end.
                let end = end.min(bytes.len());
                if end > start {
                    connection.outbox.push_back(bytes[start..end].to_vec());
                    start = end;
                }
            }
        }
        Ok(())
    }

    /// Runs the round until every due reply has come. Returns the counts of replies, messages and
    /// blocked clients, and the open connections. The other side must reach the same.
    ///
    /// # Errors
    /// When a due reply does not come, or an undue one comes: the tester has miscounted.
    pub(crate) fn settle(&mut self, patience: Duration) -> Result<Goal, String> {
        let deadline = Instant::now() + patience;
        let written = self
            .connections
            .iter()
            .flat_map(|connection| &connection.outbox)
            .map(Vec::len)
            .sum::<usize>();
        let done = self.pump(deadline, |side| {
            side.connections.iter().all(SideConnection::is_settled)
        })?;
        if !done {
            let stuck = self
                .connections
                .iter()
                .find(|connection| !connection.is_settled());
            let request = stuck.and_then(|connection| connection.asked.front());
            return Err(format!(
                "no reply to {}",
                request.map(ScriptRequest::line).unwrap_or_default()
            ));
        }
        let blocked = loop {
            // A message or a served waiter needs one turn of the server, a long pipeline one for
            // each read.
            let turns = if self.has_waiters() {
                1 + written / SERVER_READ_BYTES
            } else {
                0
            };
            for _ in 0..turns {
                self.blocked_clients()?;
            }
            let blocked = self.blocked_clients()?;
            let before = self.progress();
            self.pump(Instant::now(), |_| false)?;
            let mut troubles = self
                .connections
                .iter()
                .filter_map(|one| one.trouble.clone());
            if let Some(trouble) = troubles.next() {
                return Err(trouble);
            }
            if self.progress() != before && Instant::now() < deadline {
                self.pump(deadline, |side| {
                    side.connections.iter().all(SideConnection::is_settled)
                })?;
                continue;
            }
            let waiting = self.waiting();
            if blocked == waiting {
                break blocked;
            }
            if Instant::now() >= deadline {
                return Err(format!(
                    "{waiting} connections wait, and the server counts {blocked} blocked clients"
                ));
            }
            thread::sleep(COUNT_PAUSE);
        };
        Ok(Goal {
            done: self
                .connections
                .iter()
                .map(|connection| connection.done.len())
                .collect(),
            messages: self
                .connections
                .iter()
                .map(|connection| connection.message_count)
                .collect(),
            is_open: self
                .connections
                .iter()
                .map(|connection| connection.is_open())
                .collect(),
            blocked,
        })
    }

    /// Runs the round until as many replies have come as on the other side, and as many clients are
    /// blocked, or patience ends. Returns the number of blocked clients.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub(crate) fn follow(&mut self, goal: &Goal, patience: Duration) -> Result<i64, String> {
        let deadline = Instant::now() + patience;
        let is_refused = |side: &Side| side.connections.iter().any(SideConnection::is_refused);
        let has_all = |side: &Side| {
            side.connections
                .iter()
                .enumerate()
                .all(|(index, connection)| {
                    // A closed or broken connection brings no more.
                    let is_over = connection.trouble.is_some() || connection.stream.is_none();
                    // A connection must have sent its requests, also when their replies are not due
                    // yet.
                    let has_all = connection.outbox.is_empty()
                        && connection.done.len() >= goal.done[index]
                        && connection.message_count >= goal.messages[index];
                    is_over || has_all && goal.is_open[index]
                })
        };
        // After a refusal, other replies may be missing because of it.
        let has_come = self.pump(deadline, |side| has_all(side) || is_refused(side))?;
        let mut blocked = self.blocked_clients()?;
        if has_come && !is_refused(self) {
            while blocked != goal.blocked && Instant::now() < deadline {
                thread::sleep(COUNT_PAUSE);
                blocked = self.blocked_clients()?;
            }
            if self.connections.iter().any(SideConnection::ended_silently) {
                thread::sleep(SILENT_PAUSE);
            }
        }
        // Reads replies that are too many and here already.
        self.pump(Instant::now(), |_| false)?;
        Ok(blocked)
    }

    /// Clients that the server counts as blocked.
    pub(crate) fn blocked_clients(&mut self) -> Result<i64, String> {
        let info = self
            .control
            .call(&["INFO", "clients"])
            .map_err(|error| format!("the server: {error}"))?;
        let text = String::from_utf8_lossy(info.text().unwrap_or_default()).into_owned();
        let field = text
            .lines()
            .find_map(|line| line.strip_prefix("blocked_clients:"));
        field
            .and_then(|number| number.trim().parse().ok())
            .ok_or_else(|| "INFO has no blocked_clients".to_owned())
    }

    /// Connections that are owed a reply: in a settled round those that another connection must
    /// serve.
    fn waiting(&self) -> i64 {
        let waiting = self.connections.iter().filter(|one| !one.asked.is_empty());
        waiting.count() as i64
    }

    fn has_waiters(&self) -> bool {
        self.connections
            .iter()
            .any(|connection| !connection.asked.is_empty() || connection.session.is_subscribed())
    }

    fn progress(&self) -> u64 {
        self.connections
            .iter()
            .map(|connection| connection.progress)
            .sum()
    }

    /// Writes and reads until `is_done` or the deadline, and looks at least once. Returns whether
    /// it is done.
    fn pump(&mut self, deadline: Instant, is_done: impl Fn(&Side) -> bool) -> Result<bool, String> {
        loop {
            // One piece for each connection, so that they take turns.
            let mut has_more = false;
            for connection in &mut self.connections {
                connection.write_piece();
                has_more |= !connection.outbox.is_empty();
            }
            if has_more {
                thread::sleep(PIECE_PAUSE);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let is_over = left.is_zero();
            let wait = if has_more {
                Duration::ZERO
            } else {
                left.min(Duration::from_millis(20))
            };
            // After the deadline, only data that came before this look counts.
            let done_before = is_done(self);
            let ready = self.wait_readable(if done_before { Duration::ZERO } else { wait })?;
            for index in &ready {
                self.connections[*index].read();
            }
            if ready.is_empty() {
                if is_done(self) {
                    return Ok(true);
                }
                if is_over {
                    return Ok(false);
                }
            }
        }
    }

    fn wait_readable(&self, wait: Duration) -> Result<Vec<usize>, String> {
        let open: Vec<(usize, &TcpStream)> = self
            .connections
            .iter()
            .enumerate()
            .filter_map(|(index, connection)| Some((index, connection.stream.as_ref()?)))
            .collect();
        let mut polled: Vec<PollFd<'_>> = open
            .iter()
            .map(|(_, stream)| PollFd::new(*stream, PollFlags::IN))
            .collect();
        let wait = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        match poll(&mut polled, Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(format!("poll: {error}")),
        }
        let ready = polled
            .iter()
            .zip(&open)
            .filter(|(polled, _)| !polled.revents().is_empty());
        Ok(ready.map(|(_, (index, _))| *index).collect())
    }
}

impl SideConnection {
    /// Connects and asks for the id, which also proves that the server answers.
    fn open(address: SocketAddr) -> io::Result<SideConnection> {
        let mut control = Control::connect(address)?;
        let id = control.call(&["CLIENT", "ID"])?;
        let id = id
            .integer()
            .ok_or_else(|| io::Error::other(format!("CLIENT ID was answered with {id}")))?;
        let stream = control.0.into_stream();
        stream.set_nonblocking(true)?;
        Ok(SideConnection {
            stream: Some(stream),
            id,
            ..SideConnection::default()
        })
    }

    pub(crate) fn is_open(&self) -> bool {
        self.stream.is_some()
    }

    /// Whether every missing reply depends on another connection.
    fn is_settled(&self) -> bool {
        let is_waiting = self.asked.is_empty() || self.expect == Some(Expect::Someday);
        self.trouble.is_some() || self.outbox.is_empty() && (is_waiting || self.stream.is_none())
    }

    /// Whether respool refused a request of this round in its own words.
    fn is_refused(&self) -> bool {
        let mut frames = self.done.iter().flat_map(|exchange| &exchange.frames);
        frames.any(Frame::is_refusal)
    }

    /// Whether the last request of the round had no reply because replies are switched off.
    fn ended_silently(&self) -> bool {
        let last = self.done.last();
        let is_silent =
            |exchange: &Exchange| !exchange.request.args().is_empty() && exchange.frames.is_empty();
        last.is_some_and(|exchange| is_silent(exchange) && !exchange.has_closed)
            || self.session.replies != ReplySwitch::On && last.is_some()
    }

    fn write_piece(&mut self) {
        let Some(stream) = &mut self.stream else {
            self.outbox.clear();
            return;
        };
        let Some(piece) = self.outbox.front_mut() else {
            return;
        };
        match stream.write(piece) {
            Ok(written) if written == piece.len() => {
                self.outbox.pop_front();
                // A request without a reply is not waited for.
                self.take_frames();
            }
            Ok(written) => {
                piece.drain(..written);
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            // The peer has closed; its last bytes are still to be read.
            Err(_) => self.outbox.clear(),
        }
    }

    fn read(&mut self) {
        let Some(stream) = &mut self.stream else {
            return;
        };
        let mut buffer = [0; 64 << 10];
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => {
                self.progress += count as u64;
                self.frames.push(&buffer[..count]);
                self.take_frames();
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Ok(_) | Err(_) => self.handle_end(),
        }
    }

    fn take_frames(&mut self) {
        while self.trouble.is_none() {
            self.finish_silent();
            match self.frames.take() {
                Err(problem) => self.trouble = Some(problem),
                Ok(None) => break,
                Ok(Some(frame)) => self.take_frame(frame),
            }
        }
    }

    fn take_frame(&mut self, frame: Frame) {
        if self.session.is_message(&frame) {
            if !self.session.is_subscribed_to(&frame) {
                self.unsubscribed.push(frame.clone());
            }
            if let Frame::List(_, Some(mut items)) = frame {
                let payload = items.pop();
                self.messages.entry(items).or_default().extend(payload);
                self.message_count += 1;
            }
            return;
        }
        match self.expect {
            None => self.trouble = Some(format!("unexpected reply: {frame}")),
            Some(Expect::Close) => self.part.push(frame),
            Some(Expect::Confirmations(count)) => {
                let is_last = frame.is_error() || self.part.len() + 1 == count;
                self.session.handle_confirmation(&frame);
                self.part.push(frame);
                if is_last {
                    self.finish(false);
                }
            }
            Some(Expect::One | Expect::Someday | Expect::Nothing) => {
                self.part.push(frame);
                self.finish(false);
            }
        }
    }

    /// Finishes requests without a reply; then works out the replies to the next request.
    fn finish_silent(&mut self) {
        while self.expect.is_none() {
            let Some(request) = self.asked.front() else {
                return;
            };
            match self.session.expects(request) {
                Expect::Nothing => self.finish(false),
                expect => self.expect = Some(expect),
            }
        }
    }

    fn finish(&mut self, has_closed: bool) {
        let Some(request) = self.asked.pop_front() else {
            return;
        };
        self.progress += 1;
        self.expect = None;
        let frames = std::mem::take(&mut self.part);
        let is_exec = request.name() == "EXEC";
        let queue = self
            .session
            .queue
            .clone()
            .filter(|_| is_exec)
            .unwrap_or_default();
        self.session.handle_reply(&request, frames.first());
        self.done.push(Exchange {
            request,
            frames,
            has_closed,
            queue,
        });
    }

    fn handle_end(&mut self) {
        if !self.frames.rest().is_empty() {
            self.trouble
                .get_or_insert_with(|| "the connection ended within a reply".to_owned());
        }
        self.stream = None;
        self.outbox.clear();
        self.finish_silent();
        self.finish(true);
        // The server never read the requests behind it.
        self.asked.clear();
        self.expect = None;
        self.session = SessionModel::default();
    }
}

/// A plain client that sends one request at a time.
#[derive(Debug)]
pub(crate) struct Control(RespClient);

impl Control {
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Control> {
        RespClient::open(address, CONTROL_TIMEOUT).map(Control)
    }

    pub(crate) fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Frame> {
        self.0.try_send(&request(args))?;
        self.reply()
    }

    /// Sends all of them at once.
    pub(crate) fn call_all(&mut self, requests: &[Vec<Vec<u8>>]) -> io::Result<Vec<Frame>> {
        let mut replies = Vec::new();
        // Small enough for the socket buffers, so that no reply has to be read while we write.
        for some in requests.chunks(64) {
            self.0.try_send(
                &some
                    .iter()
                    .flat_map(|args| request(args))
                    .collect::<Vec<u8>>(),
            )?;
            for _ in some {
                replies.push(self.reply()?);
            }
        }
        Ok(replies)
    }

    fn reply(&mut self) -> io::Result<Frame> {
        let bytes = self.0.try_reply_bytes()?;
        Frame::read(&bytes).ok_or_else(|| io::Error::other("a reply that cannot be read"))
    }
}

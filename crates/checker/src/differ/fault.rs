//! A proxy before a server that plants faults in replies. The tester has to find them.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use respool_protocol::encode;
use respool_protocol::request::{Found, RequestScanner};

use super::session::blocks_without_end;
use respool_testkit::frame::{Frame, Frames};

/// The fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// None: the proxy itself makes no difference.
    None,
    /// None, but blocking requests reach the server late: the tester has to see when the wait
    /// begins.
    DelayWait,
    /// Swaps a number above 2 with the reply behind it.
    Swap,
    /// Drops a number above 2.
    Drop,
    /// Sends a number above 2 twice.
    Duplicate,
    /// Changes a number above 2.
    Alter,
    /// Sends a number above 2 to another client.
    Misroute,
    /// Runs APPEND twice and answers it once.
    ExecuteTwice,
    /// Answers DEL without deleting.
    Forget,
    /// Drops a message of a subscription.
    LoseMessage,
    /// Keeps blocking requests from the server.
    KeepWait,
}

impl Fault {
    /// Faults that no client can see.
    pub(crate) const HARMLESS: [Fault; 2] = [Fault::None, Fault::DelayWait];

    /// Faults that must be found.
    pub(crate) const ALL: [Fault; 9] = [
        Fault::Swap,
        Fault::Drop,
        Fault::Duplicate,
        Fault::Alter,
        Fault::Misroute,
        Fault::ExecuteTwice,
        Fault::Forget,
        Fault::LoseMessage,
        Fault::KeepWait,
    ];

    /// Classes of requests in which the fault shows.
    pub(crate) fn classes(self) -> &'static [&'static str] {
        match self {
            Fault::LoseMessage => &["strings", "pubsub"],
            Fault::KeepWait => &["lists", "blocking"],
            // Replies are counted, so these classes have one reply for each request.
            Fault::ExecuteTwice => &["strings", "lists", "keys"],
            _ => &["strings", "lists", "keys", "sets"],
        }
    }
}

/// Stands between clients and one server.
pub(crate) struct FaultPlanter {
    address: SocketAddr,
    shared: Arc<PlanterState>,
}

/// State that the threads of a planter share.
struct PlanterState {
    server: SocketAddr,
    fault: Fault,
    /// The connections to the clients.
    clients: Mutex<HashMap<u64, TcpStream>>,
    next: AtomicU64,
    is_over: AtomicBool,
}

/// Far longer than other requests need for a round.
const WAIT_DELAY: Duration = Duration::from_millis(20);
/// A held reply waits no longer than this for the next one.
const SWAP_WAIT: Duration = Duration::from_millis(5);

impl FaultPlanter {
    /// # Errors
    /// When it cannot listen.
    pub(crate) fn start(server: SocketAddr, fault: Fault) -> io::Result<FaultPlanter> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(PlanterState {
            server,
            fault,
            clients: Mutex::new(HashMap::new()),
            next: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || accepting.accept(&listener));
        Ok(FaultPlanter { address, shared })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for FaultPlanter {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        for stream in self.shared.clients().values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // Wakes the accepting thread, which then sees the end.
        let _ = TcpStream::connect(self.address);
    }
}

impl PlanterState {
    fn clients(&self) -> MutexGuard<'_, HashMap<u64, TcpStream>> {
        self.clients.lock().expect("no holder panics")
    }

    fn accept(self: Arc<PlanterState>, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.is_over.load(Ordering::SeqCst) {
                return;
            }
            let Ok(client) = client else { continue };
            let _ = self.serve(client);
        }
    }

    fn serve(self: &Arc<PlanterState>, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect(self.server)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let id = self.next.fetch_add(1, Ordering::SeqCst);
        self.clients().insert(id, client.try_clone()?);
        // Replies to leave out, counted from the first.
        let extra = Arc::new(Mutex::new(VecDeque::new()));
        let (forth, back) = (Arc::clone(self), Arc::clone(self));
        let (from, to) = (client, server.try_clone()?);
        let extra_made = Arc::clone(&extra);
        thread::spawn(move || {
            forth.pass_requests(from, &to, &extra_made);
            let _ = to.shutdown(Shutdown::Both);
        });
        thread::spawn(move || {
            back.pass_replies(id, server, &extra);
            if let Some(client) = back.clients().remove(&id) {
                let _ = client.shutdown(Shutdown::Both);
            }
        });
        Ok(())
    }

    fn pass_requests(&self, mut from: TcpStream, mut to: &TcpStream, extra: &Mutex<VecDeque<u64>>) {
        let mut scanner = RequestScanner::default();
        let mut held = Vec::new();
        let mut sent = 0;
        let mut buffer = [0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            held.extend_from_slice(&buffer[..count]);
            loop {
                let (len, args) = match scanner.scan(&held, true) {
                    Ok(Found::Request { len }) => {
                        let args: Vec<Vec<u8>> = scanner
                            .spans()
                            .iter()
                            .map(|span| span.of(&held).to_vec())
                            .collect();
                        (len, args)
                    }
                    Ok(Found::Inline { len } | Found::Nothing { len }) => (len, Vec::new()),
                    Ok(Found::More) => break,
                    // The server is to answer them.
                    Err(_) => (held.len(), Vec::new()),
                };
                let mut bytes: Vec<u8> = held.drain(..len).collect();
                let is = |name: &[u8]| {
                    args.first()
                        .is_some_and(|first| first.eq_ignore_ascii_case(name))
                };
                sent += 1;
                match self.fault {
                    Fault::ExecuteTwice if is(b"APPEND") => {
                        extra.lock().expect("no holder panics").push_back(sent);
                        bytes.extend(bytes.clone());
                        sent += 1;
                    }
                    Fault::Forget if is(b"DEL") => {
                        let mut args = args;
                        args[0] = b"EXISTS".to_vec();
                        bytes.clear();
                        encode::request(&mut bytes, &args);
                    }
                    Fault::DelayWait if blocks_without_end(&args) => thread::sleep(WAIT_DELAY),
                    Fault::KeepWait if blocks_without_end(&args) => bytes.clear(),
                    _ => {}
                }
                if to.write_all(&bytes).is_err() {
                    return;
                }
                if held.is_empty() {
                    break;
                }
            }
        }
    }

    fn pass_replies(&self, id: u64, mut from: TcpStream, extra: &Mutex<VecDeque<u64>>) {
        let mut frames = Frames::default();
        let mut buffer = [0; 16 << 10];
        let mut held: Option<Vec<u8>> = None;
        let mut came = 0;
        loop {
            let wait = held.is_some().then_some(SWAP_WAIT);
            let count = from
                .set_read_timeout(wait)
                .and_then(|()| from.read(&mut buffer));
            match count {
                Ok(count @ 1..) => frames.push(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if let Some(bytes) = held.take() {
                        self.send(id, &bytes);
                    }
                    continue;
                }
                Ok(_) | Err(_) => break,
            }
            while let Ok(Some(frame)) = frames.take() {
                came += 1;
                let mut bytes = Vec::new();
                write(&mut bytes, &frame);
                let is_marked = frame.integer().is_some_and(|number| number > 2 && came > 1);
                let mut extra = extra.lock().expect("no holder panics");
                let is_extra = extra.front() == Some(&came);
                if is_extra {
                    extra.pop_front();
                    continue;
                }
                drop(extra);
                if let Some(earlier) = held.take() {
                    self.send(id, &bytes);
                    self.send(id, &earlier);
                    continue;
                }
                match self.fault {
                    Fault::Swap if is_marked => held = Some(bytes),
                    Fault::Drop if is_marked => {}
                    Fault::Duplicate if is_marked => {
                        self.send(id, &bytes);
                        self.send(id, &bytes);
                    }
                    Fault::Alter if is_marked => self.send(id, b":1000\r\n"),
                    Fault::Misroute if is_marked => {
                        let stranger = self.clients().keys().copied().find(|other| *other != id);
                        self.send(stranger.unwrap_or(id), &bytes);
                    }
                    Fault::LoseMessage
                        if frame.items().first().and_then(Frame::text) == Some(b"message") => {}
                    _ => self.send(id, &bytes),
                }
            }
        }
        if let Some(bytes) = held {
            self.send(id, &bytes);
        }
    }

    fn send(&self, id: u64, bytes: &[u8]) {
        let client = self
            .clients()
            .get(&id)
            .and_then(|client| client.try_clone().ok());
        if let Some(mut client) = client {
            let _ = client.write_all(bytes);
        }
    }
}

/// Writes the bytes that a reply was read from.
fn write(out: &mut Vec<u8>, frame: &Frame) {
    let mut header = |kind: u8, text: &[u8]| {
        out.push(kind);
        out.extend_from_slice(text);
        out.extend_from_slice(b"\r\n");
    };
    match frame {
        Frame::Line(kind, text) => header(*kind, text),
        Frame::Bulk(kind, None) | Frame::List(kind, None) => header(*kind, b"-1"),
        Frame::Bulk(kind, Some(text)) => {
            header(*kind, text.len().to_string().as_bytes());
            out.extend_from_slice(text);
            out.extend_from_slice(b"\r\n");
        }
        Frame::List(kind, Some(items)) => {
            let count = if *kind == b'%' {
                items.len() / 2
            } else {
                items.len()
            };
            header(*kind, count.to_string().as_bytes());
            for item in items {
                write(out, item);
            }
        }
    }
}

//! A proxy between respool and a real server that delays, cuts or garbles replies as networks and
//! broken servers do.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::client::reset;

/// The treatment of replies by the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultMode {
    /// It passes them on.
    Pass,
    /// It passes them on so much later, as from a distant or busy server.
    Late(Duration),
    /// It passes them on one byte at a time.
    Dribble,
    /// It accepts connections and closes them at once.
    CloseOnAccept,
    /// It accepts connections and never answers.
    Silent,
    /// It passes this many bytes, resets the connection in both directions, and returns to `Pass`.
    ResetAfter(u64),
    /// It passes this many bytes, sends bytes that are no RESP, and returns to `Pass`.
    GarbageAfter(u64),
}

/// Listens on a port of its own and connects each client to the server.
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<FaultProxyState>,
}

/// State that the threads of a fault proxy share.
struct FaultProxyState {
    server: SocketAddr,
    mode: Mutex<FaultMode>,
    /// Reply bytes passed since the mode was set.
    passed: AtomicU64,
    /// The open connections towards respool.
    open: Mutex<HashMap<u64, TcpStream>>,
    accepted: AtomicU64,
    ended: AtomicBool,
}

impl FaultProxy {
    /// Listens on a free port before this server.
    pub fn start(server: SocketAddr, mode: FaultMode) -> FaultProxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener
            .local_addr()
            .expect("a bound socket has an address");
        let shared = Arc::new(FaultProxyState {
            server,
            mode: Mutex::new(mode),
            passed: AtomicU64::new(0),
            open: Mutex::new(HashMap::new()),
            accepted: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || accepting.accept(&listener));
        FaultProxy { address, shared }
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the mode from now on.
    pub fn set(&self, mode: FaultMode) {
        let mut now = self.shared.mode.lock().expect("no holder panics");
        *now = mode;
        self.shared.passed.store(0, Ordering::SeqCst);
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Sends these bytes to respool on every open connection.
    pub fn inject(&self, bytes: &[u8]) {
        for stream in self.shared.open.lock().expect("no holder panics").values() {
            let _ = (&*stream).write_all(bytes);
        }
    }

    /// Resets every open connection.
    pub fn reset_all(&self) {
        for (_, stream) in self.shared.open.lock().expect("no holder panics").drain() {
            reset(&stream);
        }
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.reset_all();
        // Wakes the accepting thread, which then sees the end.
        let _ = TcpStream::connect(self.address);
    }
}

impl FaultProxyState {
    fn mode(&self) -> FaultMode {
        *self.mode.lock().expect("no holder panics")
    }

    fn accept(self: Arc<FaultProxyState>, listener: &TcpListener) {
        for stream in listener.incoming() {
            if self.ended.load(Ordering::SeqCst) {
                return;
            }
            let Ok(stream) = stream else { continue };
            let id = self.accepted.fetch_add(1, Ordering::SeqCst);
            if self.mode() == FaultMode::CloseOnAccept {
                continue;
            }
            let _ = stream.set_nodelay(true);
            let Ok(server) = TcpStream::connect(self.server) else {
                reset(&stream);
                continue;
            };
            let _ = server.set_nodelay(true);
            let clone =
                |stream: &TcpStream| stream.try_clone().expect("a socket can be duplicated");
            self.open
                .lock()
                .expect("no holder panics")
                .insert(id, clone(&stream));
            let (forth, back) = (Arc::clone(&self), Arc::clone(&self));
            let (from, to) = (clone(&stream), clone(&server));
            thread::spawn(move || forth.pass_requests(from, to));
            thread::spawn(move || {
                back.pass_replies(server, stream);
                back.open.lock().expect("no holder panics").remove(&id);
            });
        }
    }

    fn pass_requests(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = [0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if self.mode() == FaultMode::Silent {
                continue;
            }
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    }

    fn pass_replies(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = [0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let bytes = &buffer[..count];
            let passed = self.passed.fetch_add(count as u64, Ordering::SeqCst);
            let sent = match self.mode() {
                FaultMode::Pass => to.write_all(bytes),
                FaultMode::Late(time) => {
                    thread::sleep(time);
                    to.write_all(bytes)
                }
                FaultMode::Silent | FaultMode::CloseOnAccept => Ok(()),
                FaultMode::Dribble => bytes.iter().try_for_each(|byte| {
                    thread::sleep(Duration::from_micros(50));
                    to.write_all(std::slice::from_ref(byte))
                }),
                FaultMode::ResetAfter(limit) | FaultMode::GarbageAfter(limit)
                    if passed + (count as u64) < limit =>
                {
                    to.write_all(bytes)
                }
                mode @ (FaultMode::ResetAfter(limit) | FaultMode::GarbageAfter(limit)) => {
                    let _ = to.write_all(&bytes[..limit.saturating_sub(passed) as usize]);
                    *self.mode.lock().expect("no holder panics") = FaultMode::Pass;
                    if matches!(mode, FaultMode::GarbageAfter(_)) {
                        let _ = to.write_all(b"\x01 this is no reply \r\n");
                    } else {
                        // The bytes before the reset must arrive: a reset discards what its
                        // receiver has not read.
                        thread::sleep(Duration::from_millis(5));
                        reset(&to);
                        reset(&from);
                        return;
                    }
                    Ok(())
                }
            };
            if sent.is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
}

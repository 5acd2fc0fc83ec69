//! The floor: what the kernel alone costs a process that stands between clients and their replies.
//!
//! An echo server. **What it does**: one thread, one epoll; in each turn, for each connection that is ready, one read and
//! one write. It counts the requests in the bytes that it read, by counting the byte `*` (no key or value
//! of the lab has one), and writes so many replies of the right size: `+OK` when the first request of a read
//! is an array of three (SET), a bulk of the agreed size when it is an array of two (GET).
//!
//! **What it does not do**: find where a request ends, look at a command or key, keep anything between turns beyond which reply a
//! connection gets, talk to a server, look at a clock, have a limit, handle a write that the kernel takes only half of (it
//! ends, loudly). A proxy has to do all that *and* read and write once more for the server, so no proxy reaches
//! the floor, unless it serves several ready clients by fewer system calls than two each.
//!
//! What a request costs here depends on how many arrive per read, so it has to be measured in the same run, with the
//! same pipeline and connections, as what is compared with it.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use crate::tape;

/// Requests that one write answers at most, and bytes of such an answer, about.
const REPLIES_MAX: usize = 4096;
const REPLIES_BYTES_MAX: usize = 1 << 20;
const LISTENER: u64 = u64::MAX;

/// Serves until it is killed. `value_bytes` is the size of the value in a GET's reply.
///
/// # Errors
/// When it cannot listen, or a client does not take its replies.
pub fn serve(listen: SocketAddr, value_bytes: usize) -> io::Result<()> {
    let listener = TcpListener::bind(listen)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(
        &epoll,
        &listener,
        EventData::new_u64(LISTENER),
        EventFlags::IN,
    )?;
    let mut bulk = Vec::new();
    tape::write_bulk(&mut bulk, &vec![b'x'; value_bytes]);
    let replies = [Replies::new(b"+OK\r\n"), Replies::new(&bulk)];
    // By file descriptor would do, but numbers of our own need no trust in how the kernel deals them out.
    let mut clients: Vec<Option<Client>> = Vec::new();
    let mut free: Vec<usize> = Vec::new();
    let mut events = Vec::with_capacity(1024);
    let mut buffer = vec![0; 256 << 10];
    loop {
        events.clear();
        match epoll::wait(&epoll, spare_capacity(&mut events), None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            if event.data.u64() == LISTENER {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                let place = free.pop().unwrap_or(clients.len());
                epoll::add(
                    &epoll,
                    &stream,
                    EventData::new_u64(place as u64),
                    EventFlags::IN,
                )?;
                if place == clients.len() {
                    clients.push(None);
                }
                clients[place] = Some(Client {
                    stream,
                    is_get: false,
                    ends_in_star: false,
                });
                continue;
            }
            let place = event.data.u64() as usize;
            let Some(client) = &mut clients[place] else {
                continue;
            };
            match rustix::io::read(&client.stream, &mut buffer) {
                Ok(length) if length > 0 => client.answer(&buffer[..length], &replies)?,
                Err(Errno::AGAIN | Errno::INTR) => {}
                // Closing takes it out of the epoll, too.
                _ => {
                    clients[place] = None;
                    free.push(place);
                }
            }
        }
    }
}

struct Client {
    stream: TcpStream,
    is_get: bool,
    /// The last read ended in the middle of `*2`.
    ends_in_star: bool,
}

impl Client {
    fn answer(&mut self, bytes: &[u8], replies: &[Replies; 2]) -> io::Result<()> {
        let count = self.count(bytes);
        let replies = &replies[usize::from(self.is_get)];
        let mut left = count;
        while left > 0 {
            let part = left.min(replies.count);
            let reply = replies.of(part);
            let written = rustix::io::write(&self.stream, reply)?;
            if written < reply.len() {
                return Err(io::Error::other("a client does not take its replies"));
            }
            left -= part;
        }
        Ok(())
    }

    /// How many requests begin in these bytes; notes of which kind they are by the first of them.
    fn count(&mut self, bytes: &[u8]) -> usize {
        let kind = match (self.ends_in_star, bytes) {
            (true, [kind, ..]) | (false, [b'*', kind, ..]) => Some(kind),
            _ => None,
        };
        if let Some(kind) = kind {
            self.is_get = *kind == b'2';
        }
        self.ends_in_star = bytes.last() == Some(&b'*');
        bytes.iter().filter(|&&byte| byte == b'*').count()
    }
}

/// As many of the same reply as one write answers.
struct Replies {
    bytes: Vec<u8>,
    size: usize,
    count: usize,
}

impl Replies {
    fn new(reply: &[u8]) -> Replies {
        let count = (REPLIES_BYTES_MAX / reply.len()).clamp(1, REPLIES_MAX);
        Replies {
            bytes: reply.repeat(count),
            size: reply.len(),
            count,
        }
    }

    fn of(&self, count: usize) -> &[u8] {
        &self.bytes[..count * self.size]
    }
}

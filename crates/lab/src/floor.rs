//! The floor: the cost of the kernel alone for a process between clients and their replies.
//!
//! It is an echo server. **It does little**: one thread, one epoll; in each turn, one read and one
//! write for each ready connection. It counts the requests in the bytes that it read by the byte
//! `*`, which no key or value of the lab contains. It writes so many replies of the right size:
//! `+OK` when the first request of a read is an array of three (SET), a bulk string of the agreed
//! size when it is an array of two (GET).
//!
//! **It does not** find the end of a request, look at a command or key, talk to a server,
//! look at a clock, or have a limit. Between turns it keeps only the kind of reply for each
//! connection. It ends loudly when the kernel takes only half of a write. A proxy has to do all
//! that *and* read and write once more for the server. So no proxy reaches the floor, unless it
//! needs fewer than two system calls for each ready client.
//!
//! The cost of a request depends on how many arrive in one read. So the floor must be measured in
//! the same run as the proxies that it is compared with, with the same pipeline and connections.

use std::io;
use std::net::{TcpListener, TcpStream};

use respool_testkit::reply::write_bulk;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

/// Most requests that one write answers, and about the most bytes of it.
const REPLIES_MAX: usize = 4096;
const REPLIES_BYTES_MAX: usize = 1 << 20;
const LISTENER: u64 = u64::MAX;

/// Serves until it is killed. `value_bytes` is the size of the value in a GET's reply.
///
/// # Errors
/// When it cannot accept, or a client does not read its replies.
pub fn serve(listener: &TcpListener, value_bytes: usize) -> io::Result<()> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(
        &epoll,
        listener,
        EventData::new_u64(LISTENER),
        EventFlags::IN,
    )?;
    let mut bulk = Vec::new();
    write_bulk(&mut bulk, &vec![b'x'; value_bytes]);
    let replies = [EqualReplies::new(b"+OK\r\n"), EqualReplies::new(&bulk)];
    // File descriptors would do as indexes, but own numbers do not depend on how the kernel assigns
    // them.
    let mut clients: Vec<Option<FloorClient>> = Vec::new();
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
                clients[place] = Some(FloorClient {
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
            let is_gone = match rustix::io::read(&client.stream, &mut buffer) {
                Ok(0) => true,
                Ok(length) => client.answer(&buffer[..length], &replies)?.is_err(),
                Err(Errno::AGAIN | Errno::INTR) => false,
                Err(_) => true,
            };
            if is_gone {
                // Closing removes it from the epoll, too.
                clients[place] = None;
                free.push(place);
            }
        }
    }
}

/// The client has gone.
struct Gone;

struct FloorClient {
    stream: TcpStream,
    is_get: bool,
    /// The last read ended in the middle of `*2`.
    ends_in_star: bool,
}

impl FloorClient {
    /// An error ends the floor: it keeps no bytes for a client that does not read.
    fn answer(
        &mut self,
        bytes: &[u8],
        replies: &[EqualReplies; 2],
    ) -> io::Result<Result<(), Gone>> {
        let count = self.count(bytes);
        let replies = &replies[usize::from(self.is_get)];
        let mut left = count;
        while left > 0 {
            let part = left.min(replies.count);
            let reply = replies.of(part);
            match rustix::io::write(&self.stream, reply) {
                Ok(written) if written == reply.len() => {}
                Ok(_) | Err(Errno::AGAIN) => {
                    return Err(io::Error::other("a client does not take its replies"));
                }
                Err(_) => return Ok(Err(Gone)),
            }
            left -= part;
        }
        Ok(Ok(()))
    }

    /// The number of requests that begin in these bytes. Their kind is that of the first one.
    fn count(&mut self, bytes: &[u8]) -> usize {
        let kind = match (self.ends_in_star, bytes) {
            (true, [kind, ..]) | (false, [b'*', kind, ..]) => Some(kind),
            _ => None,
        };
        if let Some(kind) = kind {
            self.is_get = *kind == b'2';
        }
        // A request whose kind is not there yet counts with the next read.
        let carried = usize::from(self.ends_in_star);
        self.ends_in_star = bytes.last() == Some(&b'*');
        let begun = bytes.iter().filter(|&&byte| byte == b'*').count();
        carried + begun - usize::from(self.ends_in_star)
    }
}

/// As many equal replies as one write can hold.
struct EqualReplies {
    bytes: Vec<u8>,
    size: usize,
    count: usize,
}

impl EqualReplies {
    fn new(reply: &[u8]) -> EqualReplies {
        let count = (REPLIES_BYTES_MAX / reply.len()).clamp(1, REPLIES_MAX);
        EqualReplies {
            bytes: reply.repeat(count),
            size: reply.len(),
            count,
        }
    }

    fn of(&self, count: usize) -> &[u8] {
        &self.bytes[..count * self.size]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    /// The echo server answers every request, however its bytes are cut, and outlives its clients.
    #[test]
    fn floor_answers_every_request() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || serve(&listener, 3));
        let connect = || {
            let stream = TcpStream::connect(address).unwrap();
            let limit = std::time::Duration::from_secs(10);
            stream.set_read_timeout(Some(limit)).unwrap();
            stream
        };
        let get = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n";
        // It leaves with its replies in flight.
        connect().write_all(&get.repeat(10)).unwrap();
        for cut in 1..get.len() {
            let mut client = connect();
            client.set_nodelay(true).unwrap();
            let bytes = get.repeat(2);
            client.write_all(&bytes[..cut]).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(1));
            client.write_all(&bytes[cut..]).unwrap();
            let mut replies = [0; 18];
            client.read_exact(&mut replies).unwrap();
            assert_eq!(&replies, b"$3\r\nxxx\r\n$3\r\nxxx\r\n", "cut at {cut}");
        }
        let mut client = connect();
        client
            .write_all(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n")
            .unwrap();
        let mut reply = [0; 5];
        client.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"+OK\r\n");
    }
}

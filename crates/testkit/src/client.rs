//! A blocking client. It reads replies with the testkit's own parser, so that it shares no mistake
//! with the code under test.
//!
//! Its methods come in two families. Tests use those that panic, such as [`RespClient::call`].
//! Topologies and measurements use those that return errors, such as [`RespClient::ask`].

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use crate::frame::Frame;
use crate::reply::ReplyFramer;

/// How long a reply may take before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Words of a request in an error text.
const WORDS_SHOWN: usize = 4;
/// Bytes of a reply in an error text.
const BYTES_SHOWN: usize = 200;

/// A reply, parsed whole.
#[derive(Clone, PartialEq)]
pub enum Reply {
    /// A simple string: `+`.
    Simple(String),
    /// An error: `-`, or a bulk error of RESP3.
    Error(String),
    /// An integer: `:`.
    Integer(i64),
    /// A bulk string: `$`.
    Bulk(Vec<u8>),
    /// A null of RESP2 or RESP3.
    Null,
    /// An array: `*`.
    Array(Vec<Reply>),
    /// Keys and values by turns.
    Map(Vec<Reply>),
    /// A set: `~`.
    Set(Vec<Reply>),
    /// A push: `>`.
    Push(Vec<Reply>),
    /// The text of a double, boolean, big number or verbatim string, behind its type byte.
    Other(char, Vec<u8>),
}

impl Reply {
    /// A bulk string of these bytes.
    pub fn bulk(bytes: impl AsRef<[u8]>) -> Reply {
        Reply::Bulk(bytes.as_ref().to_vec())
    }

    /// The simple string OK.
    pub fn ok() -> Reply {
        Reply::Simple("OK".into())
    }

    /// The text of an error; `None` for any other reply.
    pub fn error(&self) -> Option<&str> {
        match self {
            Reply::Error(text) => Some(text),
            _ => None,
        }
    }

    /// The bytes of a bulk string or a simple string.
    pub fn text(&self) -> Option<&[u8]> {
        match self {
            Reply::Simple(text) => Some(text.as_bytes()),
            Reply::Bulk(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The value of a key, in a map or in an array of keys and values.
    pub fn get(&self, key: &str) -> Option<&Reply> {
        let (Reply::Map(items) | Reply::Array(items)) = self else {
            return None;
        };
        let (pairs, _) = items.as_chunks();
        let key = Some(key.as_bytes());
        let pair = pairs.iter().find(|[name, _]| name.text() == key);
        pair.map(|[_, value]| value)
    }
}

impl From<Frame> for Reply {
    fn from(frame: Frame) -> Reply {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let all = |items: Vec<Frame>| items.into_iter().map(Reply::from).collect();
        if let Some(number) = frame.integer() {
            return Reply::Integer(number);
        }
        match frame {
            Frame::Line(b'_', _) | Frame::Bulk(_, None) | Frame::List(_, None) => Reply::Null,
            Frame::Line(b'+', line) => Reply::Simple(text(&line)),
            Frame::Line(b'-', line) | Frame::Bulk(b'!', Some(line)) => Reply::Error(text(&line)),
            Frame::Bulk(b'$', Some(bytes)) => Reply::Bulk(bytes),
            Frame::Line(kind, bytes) | Frame::Bulk(kind, Some(bytes)) => {
                Reply::Other(char::from(kind), bytes)
            }
            Frame::List(b'~', Some(items)) => Reply::Set(all(items)),
            Frame::List(b'>', Some(items)) => Reply::Push(all(items)),
            Frame::List(b'%', Some(items)) => Reply::Map(all(items)),
            Frame::List(_, Some(items)) => Reply::Array(all(items)),
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |f: &mut fmt::Formatter<'_>, bytes: &[u8]| {
            write!(
                f,
                "\"{}\"",
                bytes[..bytes.len().min(BYTES_SHOWN)].escape_ascii()
            )?;
            if bytes.len() > BYTES_SHOWN {
                write!(f, "... {} bytes", bytes.len())
            } else {
                Ok(())
            }
        };
        match self {
            Reply::Simple(text) => write!(f, "+{text}"),
            Reply::Error(text) => write!(f, "-{text}"),
            Reply::Integer(number) => write!(f, ":{number}"),
            Reply::Bulk(content) => bytes(f, content),
            Reply::Null => f.write_str("null"),
            Reply::Array(items) => f.debug_list().entries(items).finish(),
            Reply::Map(items) => f
                .write_str("%")
                .and_then(|()| f.debug_list().entries(items).finish()),
            Reply::Set(items) => f
                .write_str("~")
                .and_then(|()| f.debug_list().entries(items).finish()),
            Reply::Push(items) => f
                .write_str(">")
                .and_then(|()| f.debug_list().entries(items).finish()),
            Reply::Other(kind, content) => write!(f, "{kind}").and_then(|()| bytes(f, content)),
        }
    }
}

/// Whether the error says that the request was not executed.
pub fn is_not_executed(error: &str) -> bool {
    const CODES: [&str; 3] = [
        "NOTSENT respool: ",
        "LOADING respool: the command was not executed; ",
        "TRYAGAIN respool: the command was not executed; ",
    ];
    CODES.iter().any(|code| error.starts_with(code))
}

/// The bytes of a request: an array of bulk strings.
pub fn request<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        let arg = arg.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        bytes.extend_from_slice(arg);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// The bytes of a request, given as words with spaces between them.
pub fn words(text: &str) -> Vec<u8> {
    request(&text.split(' ').collect::<Vec<_>>())
}

/// One connection.
#[derive(Debug)]
pub struct RespClient {
    reader: BufReader<TcpStream>,
}

impl RespClient {
    /// Connects; panics when that fails.
    pub fn connect(address: SocketAddr) -> RespClient {
        RespClient::try_connect(address)
            .unwrap_or_else(|error| panic!("connect to {address}: {error}"))
    }

    /// Connects.
    ///
    /// # Errors
    /// When no peer accepts.
    pub fn try_connect(address: SocketAddr) -> io::Result<RespClient> {
        RespClient::open(address, PATIENCE)
    }

    /// Connects. No operation takes longer than `limit`.
    ///
    /// # Errors
    /// When no peer accepts.
    pub fn open(address: SocketAddr, limit: Duration) -> io::Result<RespClient> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
        let stream = TcpStream::connect_timeout(&address, limit).map_err(named)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        Ok(RespClient::of(stream))
    }

    /// A client over an existing connection.
    pub fn of(stream: TcpStream) -> RespClient {
        RespClient {
            reader: BufReader::with_capacity(64 << 10, stream),
        }
    }

    /// The socket.
    pub fn stream(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    /// The socket, without this client. Bytes that the client has read and not returned are lost.
    pub fn into_stream(self) -> TcpStream {
        self.reader.into_inner()
    }

    /// Sets the time that each later read may wait.
    pub fn set_read_timeout(&self, limit: Duration) {
        self.stream()
            .set_read_timeout(Some(limit))
            .expect("a timeout above zero can be set");
    }

    /// Writes all of these bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes)
            .unwrap_or_else(|error| panic!("send {} bytes: {error}", bytes.len()));
    }

    /// Writes all of these bytes.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.reader.get_mut().write_all(bytes)
    }

    /// Writes on a thread of its own, so that the bytes may be more than the socket buffers hold.
    pub fn send_aside(&self, bytes: Vec<u8>) -> thread::JoinHandle<io::Result<()>> {
        let mut stream = self
            .stream()
            .try_clone()
            .expect("a socket can be duplicated");
        thread::spawn(move || stream.write_all(&bytes))
    }

    /// Sends words with spaces between them as one request, and reads its reply.
    pub fn call(&mut self, text: &str) -> Reply {
        self.send(&words(text));
        self.reply()
    }

    /// Sends one request and reads its reply.
    pub fn call_args<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Reply {
        self.send(&request(args));
        self.reply()
    }

    /// Sends one request and reads its reply; error replies count.
    ///
    /// # Errors
    /// When no reply comes, or more than one. The connection is then of no use. The error names the
    /// server and the request.
    pub fn ask<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Reply> {
        let asked = self.try_send(&request(args));
        let reply = asked.and_then(|()| self.try_reply());
        match reply {
            Ok(_) if self.has_unread() => {
                Err(self.error_context(args, io::ErrorKind::InvalidData, "bytes follow the reply"))
            }
            Ok(reply) => Ok(reply),
            Err(error) => Err(self.error_context(args, error.kind(), &error.to_string())),
        }
    }

    /// As [`RespClient::ask`], but an error reply is an error.
    ///
    /// # Errors
    /// When no reply comes, or an error.
    pub fn ask_ok<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Reply> {
        match self.ask(args)? {
            Reply::Error(error) => Err(self.error_context(args, io::ErrorKind::Other, &error)),
            reply => Ok(reply),
        }
    }

    /// An error with the server's address and the request.
    fn error_context<A: AsRef<[u8]>>(
        &self,
        args: &[A],
        kind: io::ErrorKind,
        error: &str,
    ) -> io::Error {
        let mut text = match self.stream().peer_addr() {
            Ok(address) => format!("{address}:"),
            Err(_) => "a lost connection:".to_owned(),
        };
        for arg in args.iter().take(WORDS_SHOWN) {
            let _ = write!(text, " {}", arg.as_ref().escape_ascii());
        }
        io::Error::new(kind, format!("{text}: {error}"))
    }

    /// Whether bytes behind the last reply were read from the socket.
    pub fn has_unread(&self) -> bool {
        !self.reader.buffer().is_empty()
    }

    /// Reads one reply.
    pub fn reply(&mut self) -> Reply {
        self.try_reply()
            .unwrap_or_else(|error| panic!("read a reply: {error}"))
    }

    /// Reads one reply.
    ///
    /// # Errors
    /// When the connection ends, or the bytes are no reply.
    pub fn try_reply(&mut self) -> io::Result<Reply> {
        read_reply(&mut self.reader)
    }

    /// The bytes of one reply, with its elements.
    pub fn reply_bytes(&mut self) -> Vec<u8> {
        self.try_reply_bytes()
            .unwrap_or_else(|error| panic!("read a reply: {error}"))
    }

    /// The bytes of one reply, with its elements.
    ///
    /// # Errors
    /// When the connection ends, or the bytes are no reply.
    pub fn try_reply_bytes(&mut self) -> io::Result<Vec<u8>> {
        read_reply_bytes(&mut self.reader)
    }

    /// Reads this many replies.
    pub fn replies(&mut self, count: usize) -> Vec<Reply> {
        (0..count).map(|_| self.reply()).collect()
    }

    /// Writes all of these bytes while it reads this many replies.
    pub fn exchange(&mut self, bytes: Vec<u8>, count: usize) -> Vec<Reply> {
        let writer = self.send_aside(bytes);
        let replies = self.replies(count);
        writer
            .join()
            .expect("the writer does not panic")
            .expect("all is written");
        replies
    }

    /// Reads exactly this many bytes.
    ///
    /// # Errors
    /// When the connection ends before.
    pub fn bytes(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.reader.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads the bytes that there are, at least one; none at the end of the stream.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn some_bytes(&mut self) -> io::Result<Vec<u8>> {
        let bytes = self.reader.fill_buf()?.to_vec();
        self.reader.consume(bytes.len());
        Ok(bytes)
    }

    /// Whether no byte comes for this long, and the peer does not close.
    pub fn is_quiet(&mut self, time: Duration) -> bool {
        if self.has_unread() {
            return false;
        }
        self.set_read_timeout(time);
        let result = self.stream().peek(&mut [0]);
        self.set_read_timeout(PATIENCE);
        let timed_out = [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut];
        matches!(result, Err(error) if timed_out.contains(&error.kind()))
    }

    /// Asserts that the peer closes the connection and sends nothing before.
    #[track_caller]
    pub fn expect_closed(&mut self) {
        match self.some_bytes() {
            Ok(bytes) if bytes.is_empty() => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            other => {
                let other = other.map(|bytes| bytes.escape_ascii().to_string());
                panic!("expected the connection to be closed, got {other:?}");
            }
        }
    }

    /// Shuts down the sending side; replies still come.
    pub fn close_sending(&self) {
        self.stream()
            .shutdown(Shutdown::Write)
            .expect("a connected socket can be shut down");
    }

    /// Resets the connection.
    pub fn reset(self) {
        reset(self.stream());
    }
}

/// Reads one reply from any stream.
pub(crate) fn read_reply(reader: &mut impl BufRead) -> io::Result<Reply> {
    let bytes = read_reply_bytes(reader)?;
    let frame = Frame::read(&bytes);
    frame
        .map(Reply::from)
        .ok_or_else(|| broken(format!("no reply: {:?}", shown(&bytes))))
}

fn read_reply_bytes(reader: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut scanner = ReplyFramer::default();
    let mut bytes = Vec::new();
    loop {
        let read = match reader.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if read.is_empty() {
            let text = format!("closed behind {:?}", shown(&bytes));
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        let end = scanner
            .feed(read)
            .map_err(|_| broken(format!("no reply: {:?}", shown(read))))?;
        let taken = end.unwrap_or(read.len());
        bytes.extend_from_slice(&read[..taken]);
        reader.consume(taken);
        if end.is_some() {
            return Ok(bytes);
        }
    }
}

/// Resets the connection at once, also when other handles of its socket are open: the kernel does
/// so when it disconnects the socket from its peer.
pub fn reset(stream: &TcpStream) {
    let _ = rustix::net::connect_unspec(stream);
}

/// A counter of `INFO respool`.
pub fn counter(client: &mut RespClient, name: &str) -> u64 {
    let Reply::Bulk(text) = client.call("INFO respool") else {
        panic!("INFO is a text");
    };
    let text = String::from_utf8(text).expect("INFO is ASCII");
    let name = format!("respool_{name}:");
    let line = text.lines().find_map(|line| line.strip_prefix(&name));
    let value = line.and_then(|value| value.parse().ok());
    value.unwrap_or_else(|| panic!("{name} is not in {text}"))
}

/// One connection for each worker of a respool, in the order of the workers.
pub fn one_of_each_worker(address: SocketAddr) -> Vec<RespClient> {
    let mut all = BTreeMap::new();
    // The kernel spreads connections over the workers: of 400, each worker gets some.
    for _ in 0..400 {
        let mut client = RespClient::connect(address);
        let workers = counter(&mut client, "workers") as usize;
        all.entry(counter(&mut client, "worker")).or_insert(client);
        if all.len() == workers {
            return all.into_values().collect();
        }
    }
    panic!("a worker gets no connection: {:?} do", all.keys())
}

/// The bulk strings of an array, as text.
pub fn texts(value: &Reply) -> Vec<String> {
    let Reply::Array(elements) = value else {
        panic!("no array: {value:?}")
    };
    elements.iter().map(text).collect()
}

/// The text of a bulk string.
pub fn text(value: &Reply) -> String {
    let Reply::Bulk(bytes) = value else {
        panic!("no text: {value:?}")
    };
    String::from_utf8_lossy(bytes).into_owned()
}

/// Sends requests in one pipeline, with `;` between them, and reads their replies.
pub fn pipelined(client: &mut RespClient, requests: &str) -> Vec<Reply> {
    let count = requests.split(';').count();
    client.exchange(requests.split(';').flat_map(words).collect(), count)
}

/// The beginning of some bytes, for an error text.
fn shown(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(BYTES_SHOWN)]
        .escape_ascii()
        .to_string()
}

fn broken(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each type of both protocol versions has its reply, and all three nulls are one.
    #[test]
    fn frames_of_every_type_become_replies() {
        let read = |bytes: &[u8]| Frame::read(bytes).map(Reply::from);
        let of = |bytes: &str| Reply::bulk(bytes);
        for (bytes, reply) in [
            (&b"+OK\r\n"[..], Reply::ok()),
            (b"-ERR a\r\n", Reply::Error("ERR a".into())),
            (b"!5\r\nERR a\r\n", Reply::Error("ERR a".into())),
            (b":-7\r\n", Reply::Integer(-7)),
            (b"$2\r\n\r\n\r\n", of("\r\n")),
            (b"$-1\r\n", Reply::Null),
            (b"*-1\r\n", Reply::Null),
            (b"_\r\n", Reply::Null),
            (b"*1\r\n$1\r\na\r\n", Reply::Array(vec![of("a")])),
            (b"~1\r\n$1\r\na\r\n", Reply::Set(vec![of("a")])),
            (b">1\r\n$1\r\na\r\n", Reply::Push(vec![of("a")])),
            (
                b"%1\r\n$1\r\na\r\n:1\r\n",
                Reply::Map(vec![of("a"), Reply::Integer(1)]),
            ),
            (b",3.25\r\n", Reply::Other(',', b"3.25".to_vec())),
            (b"=5\r\ntxt:a\r\n", Reply::Other('=', b"txt:a".to_vec())),
        ] {
            assert_eq!(read(bytes), Some(reply), "{}", bytes.escape_ascii());
            assert_eq!(
                read(&bytes[..bytes.len() - 1]),
                None,
                "{}",
                bytes.escape_ascii()
            );
        }
    }
}

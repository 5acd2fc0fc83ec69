//! A blocking client that knows RESP by itself, so that it shares no mistake with what it tests.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

/// How long any reply may take before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A reply, parsed whole.
#[derive(Clone, PartialEq)]
pub(crate) enum Value {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Null,
    Array(Vec<Value>),
    /// Keys and values in turn.
    Map(Vec<Value>),
    Set(Vec<Value>),
    Push(Vec<Value>),
    /// The text of a double, boolean, big number or verbatim string, behind its type byte.
    Other(char, Vec<u8>),
}

impl Value {
    pub(crate) fn bulk(bytes: impl AsRef<[u8]>) -> Value {
        Value::Bulk(bytes.as_ref().to_vec())
    }

    pub(crate) fn ok() -> Value {
        Value::Simple("OK".into())
    }

    /// The text of an error; `None` if it is none.
    pub(crate) fn error(&self) -> Option<&str> {
        match self {
            Value::Error(text) => Some(text),
            _ => None,
        }
    }

    /// The value that belongs to a key, in a map or in an array of keys and values.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        let (Value::Map(items) | Value::Array(items)) = self else {
            return None;
        };
        let (pairs, _) = items.as_chunks();
        let pair = pairs.iter().find(|[name, _]| *name == Value::bulk(key));
        pair.map(|[_, value]| value)
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |f: &mut fmt::Formatter<'_>, bytes: &[u8]| {
            write!(f, "\"{}\"", bytes[..bytes.len().min(200)].escape_ascii())?;
            if bytes.len() > 200 {
                write!(f, "... {} bytes", bytes.len())
            } else {
                Ok(())
            }
        };
        match self {
            Value::Simple(text) => write!(f, "+{text}"),
            Value::Error(text) => write!(f, "-{text}"),
            Value::Integer(number) => write!(f, ":{number}"),
            Value::Bulk(content) => bytes(f, content),
            Value::Null => f.write_str("null"),
            Value::Array(items) => f.debug_list().entries(items).finish(),
            Value::Map(items) => f
                .write_str("%")
                .and_then(|()| f.debug_list().entries(items).finish()),
            Value::Set(items) => f
                .write_str("~")
                .and_then(|()| f.debug_list().entries(items).finish()),
            Value::Push(items) => f
                .write_str(">")
                .and_then(|()| f.debug_list().entries(items).finish()),
            Value::Other(kind, content) => write!(f, "{kind}").and_then(|()| bytes(f, content)),
        }
    }
}

/// Whether respool says that the request was not executed.
pub(crate) fn is_not_executed(error: &str) -> bool {
    const CODES: [&str; 3] = [
        "NOTSENT respool: ",
        "LOADING respool: the command was not executed; ",
        "TRYAGAIN respool: the command was not executed; ",
    ];
    CODES.iter().any(|code| error.starts_with(code))
}

/// The bytes of a request: an array of bulk strings.
pub(crate) fn request<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        let arg = arg.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        bytes.extend_from_slice(arg);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// The same of words separated by spaces.
pub(crate) fn words(text: &str) -> Vec<u8> {
    request(&text.split(' ').collect::<Vec<_>>())
}

/// One connection.
pub(crate) struct Client {
    reader: BufReader<TcpStream>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Client {
        Client::try_connect(address).unwrap_or_else(|error| panic!("connect to {address}: {error}"))
    }

    pub(crate) fn try_connect(address: SocketAddr) -> io::Result<Client> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Client::of(stream))
    }

    /// A connection that is made already.
    pub(crate) fn of(stream: TcpStream) -> Client {
        Client {
            reader: BufReader::with_capacity(64 << 10, stream),
        }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    /// How long a read may wait from now on.
    pub(crate) fn patience(&self, limit: Duration) {
        self.stream()
            .set_read_timeout(Some(limit))
            .expect("a timeout above zero can be set");
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes)
            .unwrap_or_else(|error| panic!("send {} bytes: {error}", bytes.len()));
    }

    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.reader.get_mut().write_all(bytes)
    }

    /// Writes on a thread of its own, so that what is sent may be longer than what fits on the way.
    pub(crate) fn send_aside(&self, bytes: Vec<u8>) -> thread::JoinHandle<io::Result<()>> {
        let mut stream = self
            .stream()
            .try_clone()
            .expect("a socket can be duplicated");
        thread::spawn(move || stream.write_all(&bytes))
    }

    /// Sends words separated by spaces as one request, and reads its reply.
    pub(crate) fn call(&mut self, text: &str) -> Value {
        self.send(&words(text));
        self.reply()
    }

    pub(crate) fn call_args<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Value {
        self.send(&request(args));
        self.reply()
    }

    pub(crate) fn reply(&mut self) -> Value {
        self.try_reply()
            .unwrap_or_else(|error| panic!("read a reply: {error}"))
    }

    pub(crate) fn try_reply(&mut self) -> io::Result<Value> {
        let bytes = self.try_reply_bytes()?;
        let mut rest = bytes.as_slice();
        let value = parse(&mut rest)?;
        assert!(
            rest.is_empty(),
            "a reply that was cut out whole parses whole"
        );
        Ok(value)
    }

    /// The bytes of one reply, with all that it holds.
    pub(crate) fn reply_bytes(&mut self) -> Vec<u8> {
        self.try_reply_bytes()
            .unwrap_or_else(|error| panic!("read a reply: {error}"))
    }

    pub(crate) fn try_reply_bytes(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut left = 1_u64;
        while left > 0 {
            left -= 1;
            let start = bytes.len();
            if self.reader.read_until(b'\n', &mut bytes)? == 0 || !bytes.ends_with(b"\r\n") {
                let text = format!("closed behind {:?}", bytes.escape_ascii().to_string());
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
            }
            let line = &bytes[start..bytes.len() - 2];
            match line[0] {
                b'$' | b'!' | b'=' => {
                    let len = number(&line[1..])?;
                    if len >= 0 {
                        let start = bytes.len();
                        bytes.resize(start + len as usize + 2, 0);
                        self.reader.read_exact(&mut bytes[start..])?;
                    }
                }
                b'*' | b'~' | b'>' => left += number(&line[1..])?.max(0) as u64,
                b'%' => left += 2 * number(&line[1..])?.max(0) as u64,
                b'|' => left += 1 + 2 * number(&line[1..])?.max(0) as u64,
                _ => {}
            }
        }
        Ok(bytes)
    }

    pub(crate) fn replies(&mut self, count: usize) -> Vec<Value> {
        (0..count).map(|_| self.reply()).collect()
    }

    /// Writes all of it while it reads this many replies.
    pub(crate) fn exchange(&mut self, bytes: Vec<u8>, count: usize) -> Vec<Value> {
        let writer = self.send_aside(bytes);
        let replies = self.replies(count);
        writer
            .join()
            .expect("the writer does not panic")
            .expect("all is written");
        replies
    }

    /// Exactly this many bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.reader.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// What there is, at least one byte; empty at the end of the stream.
    pub(crate) fn some_bytes(&mut self) -> io::Result<Vec<u8>> {
        let bytes = self.reader.fill_buf()?.to_vec();
        self.reader.consume(bytes.len());
        Ok(bytes)
    }

    /// Whether nothing comes for this long: no byte, and no end of the stream.
    pub(crate) fn is_quiet(&mut self, time: Duration) -> bool {
        if !self.reader.buffer().is_empty() {
            return false;
        }
        self.patience(time);
        let result = self.stream().peek(&mut [0]);
        self.patience(PATIENCE);
        let timed_out = [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut];
        matches!(result, Err(error) if timed_out.contains(&error.kind()))
    }

    /// Asserts that the other side has closed, or does, and that nothing came before.
    #[track_caller]
    pub(crate) fn expect_closed(&mut self) {
        match self.some_bytes() {
            Ok(bytes) if bytes.is_empty() => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            other => {
                let other = other.map(|bytes| bytes.escape_ascii().to_string());
                panic!("expected the connection to be closed, got {other:?}");
            }
        }
    }

    /// Says that nothing more will be sent; replies still come.
    pub(crate) fn close_sending(&self) {
        self.stream()
            .shutdown(Shutdown::Write)
            .expect("a connected socket can be shut down");
    }

    /// Goes away without a word: the other side meets a reset.
    pub(crate) fn vanish(self) {
        reset(self.stream());
    }
}

/// Resets the connection, at once and whoever else holds its socket: what the kernel does when it is
/// told to forget the peer.
pub(crate) fn reset(stream: &TcpStream) {
    let _ = rustix::net::connect_unspec(stream);
}

fn number(text: &[u8]) -> io::Result<i64> {
    let number = std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok());
    number.ok_or_else(|| broken(format!("no length: {:?}", text.escape_ascii().to_string())))
}

fn broken(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn parse(rest: &mut &[u8]) -> io::Result<Value> {
    let end = rest.windows(2).position(|pair| pair == b"\r\n");
    let end = end.ok_or_else(|| broken("a line without end".into()))?;
    let (line, behind) = (&rest[..end], &rest[end + 2..]);
    *rest = behind;
    let (kind, line) = (line[0], &line[1..]);
    let text = || String::from_utf8_lossy(line).into_owned();
    let items = |rest: &mut &[u8], per_item: i64| -> io::Result<Option<Vec<Value>>> {
        let count = number(line)? * per_item;
        if count < 0 {
            return Ok(None);
        }
        (0..count)
            .map(|_| parse(rest))
            .collect::<io::Result<_>>()
            .map(Some)
    };
    Ok(match kind {
        b'+' => Value::Simple(text()),
        b'-' => Value::Error(text()),
        b':' => Value::Integer(number(line)?),
        b'_' => Value::Null,
        b'$' | b'!' | b'=' => match usize::try_from(number(line)?) {
            Err(_) => Value::Null,
            Ok(len) => {
                let content = rest
                    .get(..len)
                    .ok_or_else(|| broken("a bulk cut short".into()))?
                    .to_vec();
                *rest = &rest[len + 2..];
                match kind {
                    b'$' => Value::Bulk(content),
                    b'!' => Value::Error(String::from_utf8_lossy(&content).into_owned()),
                    _ => Value::Other('=', content),
                }
            }
        },
        b'*' => items(rest, 1)?.map_or(Value::Null, Value::Array),
        b'~' => items(rest, 1)?.map_or(Value::Null, Value::Set),
        b'>' => items(rest, 1)?.map_or(Value::Null, Value::Push),
        b'%' => items(rest, 2)?.map_or(Value::Null, Value::Map),
        b'|' => {
            items(rest, 2)?;
            parse(rest)?
        }
        b',' | b'#' | b'(' => Value::Other(char::from(kind), line.to_vec()),
        other => {
            return Err(broken(format!(
                "no reply starts with {:?}",
                char::from(other)
            )));
        }
    })
}

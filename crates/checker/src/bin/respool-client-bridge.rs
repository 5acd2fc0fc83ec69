//! Connections whose requests go through a client of this process, so that the checkers drive the
//! client as they drive the proxy.
//!
//! ```text
//! respool-client-bridge serve --listen 127.0.0.1:PORT --NAME=VALUE ...
//! ```
//!
//! Each connection has a stream of the client. With `--calls=true` it has no session: each request
//! is a call that waits for its reply. `--give-up-one-in=N`: one in so many calls ends its wait
//! after a fraction of a millisecond. All other options are those of the client.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use respool_client::{CallError, Client, ClientOptions, SessionStream};
use respool_protocol::encode;
use respool_protocol::request::{Found, RequestScanner};
use respool_testkit::random::Random;

/// The most bytes of one read.
const READ_BYTES: usize = 64 << 10;
/// The longest wait of a call that gives up.
const GIVE_UP_US: usize = 400;
/// The only request that is no call.
const HELLO_3: &[u8] = b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n";
/// Codes with which the texts of outcomes begin that come from the engine.
const CODES: [&str; 4] = ["NOTSENT ", "UNKNOWN ", "LOADING ", "TRYAGAIN "];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("respool-client-bridge: {error}");
            ExitCode::from(2)
        }
    }
}

/// The command line.
struct BridgeArguments {
    listen: String,
    url: String,
    calls: bool,
    give_up_one_in: usize,
    options: ClientOptions,
}

impl BridgeArguments {
    fn parse() -> Result<BridgeArguments, String> {
        let mut words = std::env::args().skip(1);
        if words.next().as_deref() != Some("serve") {
            return Err("the first argument is `serve`".to_owned());
        }
        let mut arguments = BridgeArguments {
            listen: String::new(),
            url: String::new(),
            calls: false,
            give_up_one_in: 0,
            options: Client::options(),
        };
        while let Some(word) = words.next() {
            let option = word
                .strip_prefix("--")
                .ok_or(format!("unexpected {word:?}"))?;
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                None => (option, words.next().ok_or(format!("{word} needs a value"))?),
            };
            let wrong = |error: &dyn std::fmt::Display| format!("--{name}: {error}");
            match name {
                "listen" => arguments.listen = value,
                "backend" => arguments.url = value,
                "calls" => arguments.calls = value.parse().map_err(|error| wrong(&error))?,
                "give-up-one-in" => {
                    arguments.give_up_one_in = value.parse().map_err(|error| wrong(&error))?;
                }
                _ => arguments.options = arguments.options.set(name, &value),
            }
        }
        Ok(arguments)
    }
}

fn run() -> Result<(), String> {
    let arguments = BridgeArguments::parse()?;
    let open = |options: ClientOptions| options.open(&arguments.url);
    let resp2 = open(arguments.options.clone()).map_err(|error| error.to_string())?;
    let resp3 = open(arguments.options.clone().resp3(true)).map_err(|error| error.to_string())?;
    let listener = TcpListener::bind(&arguments.listen).map_err(|error| error.to_string())?;
    for (number, socket) in listener.incoming().enumerate() {
        let socket = socket.map_err(|error| error.to_string())?;
        socket
            .set_nodelay(true)
            .map_err(|error| error.to_string())?;
        if arguments.calls {
            let calls = ConnectionCalls {
                versions: [resp2.clone(), resp3.clone()],
                is_resp3: false,
                give_up_one_in: arguments.give_up_one_in,
                random: Random::new(number as u64),
            };
            thread::spawn(move || calls.serve(socket));
        } else {
            let stream = Arc::new(resp2.stream());
            thread::spawn(move || serve_stream(&socket, &stream));
        }
    }
    Ok(())
}

/// Passes bytes in both directions until one side ends.
fn serve_stream(socket: &TcpStream, stream: &Arc<SessionStream>) -> io::Result<()> {
    let mut output = socket.try_clone()?;
    let replies = stream.clone();
    let writer = thread::spawn(move || -> io::Result<()> {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match replies.read(&mut buffer, None)? {
                0 => return output.shutdown(Shutdown::Both),
                count => output.write_all(&buffer[..count])?,
            }
        }
    });
    let mut input = socket;
    let mut buffer = vec![0; READ_BYTES];
    let passed = loop {
        match input.read(&mut buffer) {
            Ok(0) => break Ok(()),
            Ok(count) => {
                if let Err(error) = stream.write_all(&buffer[..count], None) {
                    // The last replies are on their way to the other thread.
                    break Err(error);
                }
            }
            Err(error) => break Err(error),
        }
    };
    if passed.is_ok() {
        stream.close();
    }
    let _ = writer.join();
    passed
}

/// The calls of one connection, one after the other.
struct ConnectionCalls {
    /// Clients whose replies are in RESP2 and in RESP3.
    versions: [Client; 2],
    is_resp3: bool,
    give_up_one_in: usize,
    random: Random,
}

impl ConnectionCalls {
    fn serve(mut self, mut socket: TcpStream) -> io::Result<()> {
        let mut scanner = RequestScanner::default();
        let (mut bytes, mut buffer) = (Vec::new(), vec![0; READ_BYTES]);
        loop {
            let mut replies = Vec::new();
            loop {
                match scanner.scan(&bytes, false) {
                    Ok(Found::More) => break,
                    Ok(Found::Request { len }) => {
                        let request: Vec<u8> = bytes.drain(..len).collect();
                        replies.extend(self.reply(request));
                    }
                    found => return Err(io::Error::other(format!("no request: {found:?}"))),
                }
            }
            socket.write_all(&replies)?;
            match socket.read(&mut buffer)? {
                0 => return Ok(()),
                count => bytes.extend_from_slice(&buffer[..count]),
            }
        }
    }

    fn reply(&mut self, request: Vec<u8>) -> Vec<u8> {
        if request == HELLO_3 {
            self.is_resp3 = true;
            let mut session = self.versions[1].session();
            return session.call(&["HELLO", "3"]).unwrap_or_else(error_reply);
        }
        let gives_up = self.give_up_one_in > 0 && self.random.one_in(self.give_up_one_in);
        let limit = gives_up.then(|| self.random.below(GIVE_UP_US) as u64);
        let client = &self.versions[usize::from(self.is_resp3)];
        let outcome = client.call_encoded(request, limit.map(Duration::from_micros));
        outcome.unwrap_or_else(error_reply)
    }
}

/// The reply of the engine that tells this error.
fn error_reply(error: CallError) -> Vec<u8> {
    let (code, text) = match &error {
        CallError::NotSent(text) => ("NOTSENT ", text),
        CallError::Unknown(text) => ("UNKNOWN ", text),
        CallError::Server(text) => ("", text),
        other => ("ERR ", &other.to_string()),
    };
    let is_told = CODES.iter().any(|code| text.starts_with(code));
    let mut reply = Vec::new();
    encode::error(
        &mut reply,
        format!("{}{text}", if is_told { "" } else { code }).as_bytes(),
    );
    reply
}

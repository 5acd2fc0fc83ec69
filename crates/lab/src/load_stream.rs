//! The stream of one connection of the load generator: plain bytes, or TLS.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

/// A connection that does not block.
#[derive(Debug)]
pub(crate) struct LoadStream {
    socket: TcpStream,
    /// `None`: plain.
    tls: Option<Box<ClientConnection>>,
}

impl LoadStream {
    /// Connects. With TLS it also does the handshake; the certificate must name the address.
    ///
    /// # Errors
    /// When the target refuses, or the handshake fails.
    pub(crate) fn connect(
        target: SocketAddr,
        config: Option<&Arc<ClientConfig>>,
    ) -> io::Result<LoadStream> {
        let mut socket = TcpStream::connect(target)?;
        socket.set_nodelay(true)?;
        let tls = match config {
            None => None,
            Some(config) => {
                let mut tls = tls_to(target, config)?;
                while tls.is_handshaking() {
                    tls.complete_io(&mut socket)?;
                }
                Some(Box::new(tls))
            }
        };
        socket.set_nonblocking(true)?;
        Ok(LoadStream { socket, tls })
    }

    /// The socket, for epoll.
    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Reads plaintext, at most one batch of replies. 0: the target has closed.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`]: nothing has come. Otherwise the connection is broken.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return Ok(rustix::io::read(&self.socket, buffer)?);
        };
        loop {
            match tls.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            if tls.read_tls(&mut self.socket)? == 0 {
                return Ok(0);
            }
            // A session ticket brings no plaintext.
            tls.process_new_packets().map_err(io::Error::other)?;
        }
    }

    /// Writes plaintext. Returns how many bytes were taken: by the kernel, or by TLS for the
    /// kernel.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`]: the kernel has no room. Otherwise the connection is broken.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return Ok(rustix::io::write(&self.socket, bytes)?);
        };
        let taken = tls.writer().write(bytes)?;
        while tls.wants_write() {
            match tls.write_tls(&mut self.socket) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }

    /// Whether TLS has bytes for the kernel. [`LoadStream::write`] writes them, too.
    pub(crate) fn wants_write(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }
}

/// A client of TLS that names the address of its target.
pub(crate) fn tls_to(
    target: SocketAddr,
    config: &Arc<ClientConfig>,
) -> io::Result<ClientConnection> {
    let name = ServerName::from(target.ip());
    ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;
    use std::time::Duration;

    use respool_testkit::certificates::TestCa;
    use respool_testkit::tls_client::TlsPeer;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::{ServerConfig, ServerConnection, StreamOwned};

    const BATCH: usize = 40_000;

    /// A batch of several records arrives whole in both directions, though the kernel has no room
    /// for it at once.
    #[test]
    fn batch_of_several_records_goes_both_ways() {
        let dir = tempfile::tempdir().unwrap();
        let ca = TestCa::new(dir.path(), "load").unwrap();
        let identity = ca.sign("target", &["127.0.0.1"]).unwrap();
        let chain = CertificateDer::pem_file_iter(identity.cert).unwrap();
        let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_file(identity.key).unwrap();
        let server = ServerConfig::builder().with_no_client_auth();
        let server = Arc::new(server.with_single_cert(chain, key).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let echo = thread::spawn(move || {
            let (socket, _) = listener.accept().unwrap();
            let tls = ServerConnection::new(server).unwrap();
            let mut stream = StreamOwned::new(tls, socket);
            let mut batch = vec![0; BATCH];
            stream.read_exact(&mut batch).unwrap();
            stream.write_all(&batch).unwrap();
            stream.flush().unwrap();
        });
        let config = TlsPeer::trusting(&ca.file).config().unwrap();
        let mut stream = LoadStream::connect(address, Some(&config)).unwrap();
        let sent: Vec<u8> = (0..BATCH).map(|place| (place % 251) as u8).collect();
        let (mut taken, mut got) = (0, Vec::new());
        let mut buffer = vec![0; 2 * BATCH];
        while got.len() < BATCH {
            if taken < BATCH || stream.wants_write() {
                taken += stream.write(&sent[taken..]).unwrap();
            }
            match stream.read(&mut buffer) {
                Ok(0) => panic!("the echo ended early"),
                Ok(count) => got.extend_from_slice(&buffer[..count]),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }
        assert!(got == sent, "the bytes come back as they were sent");
        echo.join().unwrap();
        assert_eq!(stream.read(&mut buffer).ok(), Some(0), "the end is seen");
    }
}

//! A blocking client over TLS.

use std::io::{self, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};

use crate::certificates::CertificateFiles;
use crate::client::{PATIENCE, Reply, read_reply, words};

/// The side of a client in TLS: the CA that it trusts, and its certificate.
#[derive(Clone, Debug)]
pub struct TlsPeer {
    /// The file of the CA that it trusts.
    pub ca: PathBuf,
    /// The host that it names, and that the certificate must name.
    pub name: String,
    /// Its own certificate.
    pub identity: Option<CertificateFiles>,
    /// The only version of TLS that it speaks; `None`: 1.2 and 1.3.
    pub version: Option<&'static SupportedProtocolVersion>,
}

/// One connection over TLS.
#[derive(Debug)]
pub struct TlsClient {
    reader: BufReader<StreamOwned<ClientConnection, TcpStream>>,
}

impl TlsPeer {
    /// A client without a certificate that trusts this CA, and names `localhost`.
    pub fn trusting(ca: impl Into<PathBuf>) -> TlsPeer {
        TlsPeer {
            ca: ca.into(),
            name: "localhost".into(),
            identity: None,
            version: None,
        }
    }

    /// The same client with a certificate.
    pub fn with(mut self, identity: &CertificateFiles) -> TlsPeer {
        self.identity = Some(identity.clone());
        self
    }

    /// The same client, for another host.
    pub fn named(mut self, name: &str) -> TlsPeer {
        self.name = name.into();
        self
    }

    /// The same client with only this version.
    pub fn speaking(mut self, version: &'static SupportedProtocolVersion) -> TlsPeer {
        self.version = Some(version);
        self
    }

    /// Reads the files. The result serves any number of connections.
    ///
    /// # Errors
    /// When a file cannot be read, or has no certificate.
    pub fn config(&self) -> io::Result<Arc<ClientConfig>> {
        let mut roots = RootCertStore::empty();
        let ca = CertificateDer::from_pem_file(&self.ca).map_err(io::Error::other)?;
        roots.add(ca).map_err(io::Error::other)?;
        let both = [&rustls::version::TLS13, &rustls::version::TLS12];
        let one = self.version.map(|version| [version]);
        let versions = one.as_ref().map_or(&both[..], |one| &one[..]);
        let builder = ClientConfig::builder_with_protocol_versions(versions);
        let builder = builder.with_root_certificates(roots);
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(files) => {
                let chain = CertificateDer::pem_file_iter(&files.cert).map_err(io::Error::other)?;
                let chain = chain.collect::<Result<_, _>>().map_err(io::Error::other)?;
                let key = PrivateKeyDer::from_pem_file(&files.key).map_err(io::Error::other)?;
                let config = builder.with_client_auth_cert(chain, key);
                config.map_err(io::Error::other)?
            }
        };
        Ok(Arc::new(config))
    }

    /// Connects and shakes hands.
    ///
    /// # Errors
    /// When no peer accepts, or one side refuses the other.
    pub fn connect(&self, address: SocketAddr) -> io::Result<TlsClient> {
        TlsClient::open(address, &self.name, self.config()?)
    }
}

impl TlsClient {
    /// Connects and shakes hands, without a session of an earlier connection.
    ///
    /// # Errors
    /// When no peer accepts, or one side refuses the other. With TLS 1.3 a server refuses the
    /// certificate of a client only afterwards: then the first reply is an error.
    pub fn open(
        address: SocketAddr,
        name: &str,
        config: Arc<ClientConfig>,
    ) -> io::Result<TlsClient> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, stream);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        let reader = BufReader::with_capacity(64 << 10, stream);
        Ok(TlsClient { reader })
    }

    /// The certificate that the server has shown.
    pub fn server_certificate(&self) -> Option<&[u8]> {
        let chain = self.reader.get_ref().conn.peer_certificates()?;
        chain.first().map(AsRef::as_ref)
    }

    /// The version of TLS in use.
    pub fn version(&self) -> Option<rustls::ProtocolVersion> {
        self.reader.get_ref().conn.protocol_version()
    }

    /// Writes all of these bytes.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let stream = self.reader.get_mut();
        stream.write_all(bytes)?;
        stream.flush()
    }

    /// Reads one reply.
    ///
    /// # Errors
    /// When the connection ends, or the bytes are no reply.
    pub fn try_reply(&mut self) -> io::Result<Reply> {
        read_reply(&mut self.reader)
    }

    /// Sends words with spaces between them as one request, and reads its reply.
    ///
    /// # Errors
    /// When the connection ends, or the bytes are no reply.
    pub fn try_call(&mut self, text: &str) -> io::Result<Reply> {
        self.try_send(&words(text))?;
        self.try_reply()
    }

    /// As [`TlsClient::try_call`]; panics without a reply.
    pub fn call(&mut self, text: &str) -> Reply {
        self.try_call(text)
            .unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// Tells the server that no more bytes come (`close_notify`), and shuts down the sending side.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn close_sending(&mut self) -> io::Result<()> {
        let stream = self.reader.get_mut();
        stream.conn.send_close_notify();
        stream.flush()?;
        stream.sock.shutdown(std::net::Shutdown::Write)
    }
}

//! The settings of TLS: certificates, keys and trusted CAs. They are read from PEM bytes and
//! checked before a connection uses them. This module opens no file.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use respool_engine::settings::Address;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ParsedCertificate, ResolvesServerCert,
    WebPkiClientVerifier,
};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, InconsistentKeys, RootCertStore,
    ServerConfig, SignatureScheme, SupportedProtocolVersion,
};
use rustls_native_certs::ErrorKind;

use crate::tls::certificate::{CertificateFields, PublicKey};

/// Tickets for a later session that a client gets at the end of its handshake.
const TICKETS: usize = 1;

/// A certificate with its chain, and its key: the contents of PEM files.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsIdentity {
    /// The certificate, followed by those of intermediate CAs.
    pub certificate_pem: Vec<u8>,
    /// The private key of the certificate: PKCS #8, PKCS #1 or SEC 1, without a passphrase.
    pub key_pem: Vec<u8>,
}

// The debug format shows no key.
impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsIdentity").finish_non_exhaustive()
    }
}

/// Whether clients show a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// Clients are not asked for a certificate.
    #[default]
    Off,
    /// A client may show none. The certificate of a client that shows one has to be trusted.
    Optional,
    /// A client without a trusted certificate is refused.
    Required,
}

/// The oldest version of TLS that a connection may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MinVersion {
    /// TLS 1.2 and 1.3.
    #[default]
    Tls12,
    /// TLS 1.3 alone.
    Tls13,
}

impl MinVersion {
    fn versions(self) -> &'static [&'static SupportedProtocolVersion] {
        static FROM_TLS12: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];
        static FROM_TLS13: [&SupportedProtocolVersion; 1] = [&TLS13];
        match self {
            MinVersion::Tls12 => &FROM_TLS12,
            MinVersion::Tls13 => &FROM_TLS13,
        }
    }
}

/// The CAs that may sign the certificates of servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roots {
    /// The CAs that the system trusts.
    System(SystemCas),
    /// The CAs of a PEM file.
    Pem(Vec<u8>),
}

/// TLS of a listener.
#[derive(Clone, Debug, Default)]
pub struct ListenerTlsSettings {
    /// Certificates of respool, at least one. Each client gets the first one that is valid for the
    /// name that it asks for (SNI) and that it can verify; without such a one, the first that it
    /// can verify.
    pub identities: Vec<TlsIdentity>,
    /// The CAs that may sign the certificates of clients. Needed unless `client_auth` is off.
    pub client_ca_pem: Option<Vec<u8>>,
    /// Whether clients show a certificate.
    pub client_auth: ClientAuth,
    /// The oldest version.
    pub min_version: MinVersion,
}

/// TLS of the servers of a pool.
#[derive(Clone, Debug)]
pub struct ServerTlsSettings {
    /// The CAs that may sign the certificates of the servers.
    pub roots: Roots,
    /// The certificate of respool.
    pub identity: Option<TlsIdentity>,
    /// The name in the certificates of the servers, a DNS name or an IP address. `None`: the host
    /// of the address that a link connects to.
    pub server_name: Option<String>,
    /// Whether certificates are verified. Without it, anyone on the network path can read and
    /// change the traffic.
    pub verify: bool,
    /// The oldest version.
    pub min_version: MinVersion,
}

/// The facts of a certificate of respool. None of them refuses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// The first second in which it is valid.
    pub not_before: SystemTime,
    /// The last second in which it is valid.
    pub not_after: SystemTime,
    /// The earliest expiry in its chain. `None`: never.
    pub chain_expiry: Option<SystemTime>,
    /// Its DNS names, IP addresses and URIs (subjectAltName).
    pub names: Vec<String>,
    /// Whether a server may show it: it names no uses (extendedKeyUsage), or serverAuth is one.
    pub is_for_servers: bool,
}

impl CertificateFacts {
    /// Reads those of the first certificate of a chain.
    fn read(
        input: TlsInput,
        chain: &[CertificateDer<'static>],
    ) -> Result<CertificateFacts, TlsProblem> {
        let Some(own) = CertificateFields::read(&chain[0]) else {
            let error = Error::InvalidCertificate(CertificateError::BadEncoding);
            return Err(unusable(input)(&error));
        };
        let extensions = own.extensions();
        Ok(CertificateFacts {
            not_before: own.not_before,
            not_after: own.not_after,
            chain_expiry: earliest_expiry(chain),
            names: extensions.names,
            is_for_servers: extensions.is_for_servers,
        })
    }

    /// Whether it is valid at this time. Its last second is part of that.
    pub fn is_valid_at(&self, now: SystemTime) -> bool {
        now >= self.not_before && !self.has_expired_at(now)
    }

    /// Whether it has expired at this time.
    pub fn has_expired_at(&self, now: SystemTime) -> bool {
        now >= self.not_after + Duration::from_secs(1)
    }
}

/// The input that makes TLS settings unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsInput {
    /// The certificate of the identity with this index.
    Certificate(usize),
    /// The key of the identity with this index.
    Key(usize),
    /// The CAs of clients.
    ClientCa,
    /// The CAs of servers.
    Roots,
    /// The name of servers.
    ServerName,
}

/// The defect of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsFault {
    /// It is needed and not given.
    Missing,
    /// It is not PEM, for this reason.
    NotPem(String),
    /// It has no certificate.
    NoCertificate,
    /// It has no private key.
    NoKey,
    /// The key is protected by a passphrase.
    EncryptedKey,
    /// The key has a kind or a size that is not supported.
    UnsupportedKey,
    /// The key belongs to another certificate.
    KeyMismatch,
    /// The key belongs to the certificate in this place of the file, from 1.
    NotFirst(usize),
    /// It cannot be used, for this reason.
    Unusable(String),
}

/// The reason why TLS settings cannot be used. Its text names no file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsProblem {
    /// The input.
    pub input: TlsInput,
    /// Its defect.
    pub fault: TlsFault,
}

impl fmt::Display for TlsProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let input = match self.input {
            TlsInput::Certificate(_) => "the certificate",
            TlsInput::Key(_) => "the key",
            TlsInput::ClientCa => "the CA of clients",
            TlsInput::Roots => "the CA of servers",
            TlsInput::ServerName => "the name of servers",
        };
        match &self.fault {
            TlsFault::Missing => write!(f, "{input} is missing"),
            TlsFault::NotPem(reason) => write!(f, "{input} is not a PEM file: {reason}"),
            TlsFault::NoCertificate => write!(
                f,
                "{input} has no certificate; a PEM file has a line '-----BEGIN CERTIFICATE-----'"
            ),
            TlsFault::NoKey => write!(
                f,
                "{input} has no private key; a PEM file has a line '-----BEGIN PRIVATE KEY-----'"
            ),
            TlsFault::EncryptedKey => write!(
                f,
                "{input} has a passphrase; 'openssl pkey -in KEY -out NEW' writes it without one"
            ),
            TlsFault::UnsupportedKey => write!(
                f,
                "{input} is not supported: it must be ECDSA (P-256, P-384, P-521), Ed25519, or RSA \
                 with 2048 to 8192 bits; make a new key with its certificate"
            ),
            TlsFault::KeyMismatch => f.write_str("the key does not match the certificate"),
            TlsFault::NotFirst(place) => write!(
                f,
                "the key belongs to certificate {place} of the file: put that one first, and behind \
                 it those between it and its CA"
            ),
            TlsFault::Unusable(reason) => write!(f, "{input} cannot be used: {reason}"),
        }
    }
}

impl std::error::Error for TlsProblem {}

fn problem(input: TlsInput, fault: TlsFault) -> TlsProblem {
    TlsProblem { input, fault }
}

fn unusable(input: TlsInput) -> impl Fn(&dyn fmt::Display) -> TlsProblem {
    move |error| problem(input, TlsFault::Unusable(error.to_string()))
}

/// Checked TLS settings of a listener. A clone shares them.
#[derive(Clone, Debug)]
pub struct ListenerTls {
    pub(super) config: Arc<ServerConfig>,
    /// The facts of each certificate, in the order of the settings.
    certificates: Arc<[CertificateFacts]>,
    /// When the first CA of clients expires. `None`: never, or there is none.
    ca_expiry: Option<SystemTime>,
}

impl ListenerTls {
    /// Reads and checks the settings.
    ///
    /// # Errors
    /// One for each input that cannot be used. A certificate that has expired, or is not valid yet,
    /// is none: it is shown to clients, which refuse it.
    pub fn new(settings: &ListenerTlsSettings) -> Result<ListenerTls, Vec<TlsProblem>> {
        let provider = provider();
        let (mut keys, mut certificates) = (Vec::new(), Vec::new());
        let mut problems = Vec::new();
        for (index, identity) in settings.identities.iter().enumerate() {
            match read_identity(index, identity, &provider) {
                Ok((key, facts)) => {
                    keys.push(Arc::new(key));
                    certificates.push(facts);
                }
                Err(of_identity) => problems.extend(of_identity),
            }
        }
        if settings.identities.is_empty() {
            problems.push(problem(TlsInput::Certificate(0), TlsFault::Missing));
        }
        let verifier = match settings.client_auth {
            ClientAuth::Off => Ok(None),
            ClientAuth::Optional | ClientAuth::Required => {
                client_verifier(settings, &provider).map(Some)
            }
        };
        let verifier = match verifier {
            Ok(verifier) if problems.is_empty() => verifier,
            verifier => {
                problems.extend(verifier.err());
                return Err(problems);
            }
        };
        let own = |error: Error| vec![unusable(TlsInput::Certificate(0))(&error)];
        let builder = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(settings.min_version.versions())
            .map_err(own)?;
        let (builder, ca_expiry) = match verifier {
            None => (builder.with_no_client_auth(), None),
            Some((verifier, expiry)) => (builder.with_client_cert_verifier(verifier), expiry),
        };
        let mut config = builder.with_cert_resolver(Arc::new(CertificateChoice { keys }));
        // A ticket holds the whole state of a session, so any worker can resume it. New settings
        // have new ticket keys: a session of old settings is never resumed with them.
        config.ticketer = new_ticketer().map_err(own)?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = TICKETS;
        Ok(ListenerTls {
            config: Arc::new(config),
            certificates: certificates.into(),
            ca_expiry,
        })
    }

    /// The facts of each certificate, in the order of the settings.
    pub fn certificates(&self) -> &[CertificateFacts] {
        &self.certificates
    }

    /// When the first CA of clients expires. `None`: never, or there is none. An expired CA still
    /// counts.
    pub fn ca_expiry(&self) -> Option<SystemTime> {
        self.ca_expiry
    }
}

/// Checked TLS settings of the servers of a pool. A clone shares them.
#[derive(Clone, Debug)]
pub struct ServerTls {
    pub(super) config: Arc<ClientConfig>,
    /// The configured name of the servers.
    name: Option<ServerName<'static>>,
    /// Whether certificates are verified.
    verify: bool,
    /// The facts of the certificate of respool, if it has one.
    certificate: Option<CertificateFacts>,
    /// When the first CA of the servers expires. `None`: never, or no file names CAs.
    ca_expiry: Option<SystemTime>,
}

impl ServerTls {
    /// Reads and checks the settings.
    ///
    /// # Errors
    /// One for each input that cannot be used, or for a system without CAs.
    pub fn new(settings: &ServerTlsSettings) -> Result<ServerTls, Vec<TlsProblem>> {
        let provider = provider();
        let roots = settings.verify.then(|| match &settings.roots {
            Roots::System(cas) => cas.roots().map(|roots| (roots, None)),
            Roots::Pem(pem) => read_roots(TlsInput::Roots, pem),
        });
        let identity = settings.identity.as_ref();
        let identity = identity.map(|identity| read_identity(0, identity, &provider));
        let name = settings.server_name.clone().map(|name| {
            ServerName::try_from(name).map_err(|error| unusable(TlsInput::ServerName)(&error))
        });
        let given = (roots.transpose(), identity.transpose(), name.transpose());
        let (Ok(roots), Ok(identity), Ok(name)) = given else {
            let (roots, identity, name) = given;
            let of_identity = identity.err().into_iter().flatten();
            let problems = roots.err().into_iter().chain(of_identity);
            return Err(problems.chain(name.err()).collect());
        };
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(settings.min_version.versions())
            .map_err(|error| vec![unusable(TlsInput::Roots)(&error)])?;
        let (roots, ca_expiry) = roots.unzip();
        let builder = match roots {
            Some(roots) => builder.with_root_certificates(roots),
            None => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Unverified { provider })),
        };
        let (config, certificate) = match identity {
            None => (builder.with_no_client_auth(), None),
            Some((key, facts)) => {
                let resolver = Arc::new(SingleCertAndKey::from(key));
                (builder.with_client_cert_resolver(resolver), Some(facts))
            }
        };
        Ok(ServerTls {
            config: Arc::new(config),
            name,
            verify: settings.verify,
            certificate,
            ca_expiry: ca_expiry.flatten(),
        })
    }

    /// The facts of the certificate of respool, if it has one.
    pub fn certificate(&self) -> Option<&CertificateFacts> {
        self.certificate.as_ref()
    }

    /// When the first CA of the servers expires. `None`: never, or no file names CAs. An expired CA
    /// still counts.
    pub fn ca_expiry(&self) -> Option<SystemTime> {
        self.ca_expiry
    }

    /// Whether both are clones of one.
    pub(crate) fn is_same(&self, other: &ServerTls) -> bool {
        Arc::ptr_eq(&self.config, &other.config)
    }

    /// The name that the certificate of the server at this address has to have.
    pub(super) fn name_of(&self, address: &Address) -> Result<ServerName<'static>, String> {
        if let Some(name) = &self.name {
            return Ok(name.clone());
        }
        let named = match address {
            Address::Tcp { host, .. } => ServerName::try_from(host.clone()).ok(),
            Address::Unix(_) => None,
        };
        match named {
            Some(name) => Ok(name),
            // The name is used for nothing but SNI and tickets.
            None if !self.verify => {
                ServerName::try_from("localhost").map_err(|error| error.to_string())
            }
            None => Err(format!(
                "no certificate can be verified for {address}: set server-tls-name to the name of \
                 the server"
            )),
        }
    }
}

/// The verifier of clients' certificates, by the CAs of the settings, and the earliest expiry of
/// these.
fn client_verifier(
    settings: &ListenerTlsSettings,
    provider: &Arc<CryptoProvider>,
) -> Result<(Arc<dyn ClientCertVerifier>, Option<SystemTime>), TlsProblem> {
    let Some(pem) = &settings.client_ca_pem else {
        return Err(problem(TlsInput::ClientCa, TlsFault::Missing));
    };
    let (roots, expiry) = read_roots(TlsInput::ClientCa, pem)?;
    let roots = Arc::new(roots);
    let mut verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
    if settings.client_auth == ClientAuth::Optional {
        verifier = verifier.allow_unauthenticated();
    }
    let ca = unusable(TlsInput::ClientCa);
    let verifier = verifier.build().map_err(|error| ca(&error))?;
    Ok((verifier, expiry))
}

/// The algorithms of all connections.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn new_ticketer() -> Result<Arc<dyn rustls::server::ProducesTickets>, Error> {
    rustls::crypto::aws_lc_rs::Ticketer::new()
}

/// Reads a certificate and its key, and checks that they belong together. A problem of the
/// certificate does not hide one of the key.
fn read_identity(
    index: usize,
    identity: &TlsIdentity,
    provider: &Arc<CryptoProvider>,
) -> Result<(CertifiedKey, CertificateFacts), Vec<TlsProblem>> {
    let (of_chain, of_key) = (TlsInput::Certificate(index), TlsInput::Key(index));
    let chain = read_certificates(of_chain, &identity.certificate_pem);
    let loaded = read_key(of_key, &identity.key_pem).and_then(|key| {
        let loaded = provider.key_provider.load_private_key(key);
        loaded.map_err(|_| problem(of_key, TlsFault::UnsupportedKey))
    });
    let facts = match &chain {
        Ok(chain) => CertificateFacts::read(of_chain, chain),
        Err(error) => Err(error.clone()),
    };
    let (chain, loaded) = match (chain, loaded) {
        (Ok(chain), Ok(loaded)) => (chain, loaded),
        (_, loaded) => return Err(facts.err().into_iter().chain(loaded.err()).collect()),
    };
    let fits = |certificate: &CertificateDer<'static>| {
        let alone = CertifiedKey::new(vec![certificate.clone()], loaded.clone());
        check_match(&alone).is_ok()
    };
    let place = chain.iter().position(fits).map(|index| index + 1);
    let key = CertifiedKey::new(chain, loaded);
    let mismatch = match check_match(&key) {
        Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => Some(match place {
            Some(place) => problem(of_chain, TlsFault::NotFirst(place)),
            None => problem(of_key, TlsFault::KeyMismatch),
        }),
        // The error of a wrong certificate is told already.
        Err(error) => facts.is_ok().then(|| unusable(of_chain)(&error)),
        Ok(()) => None,
    };
    match (facts, mismatch) {
        (Ok(facts), None) => Ok((key, facts)),
        (facts, mismatch) => Err(facts.err().into_iter().chain(mismatch).collect()),
    }
}

/// Checks that a key is that of its certificate, as far as the key tells.
fn check_match(key: &CertifiedKey) -> Result<(), Error> {
    let fields = CertificateFields::read(&key.cert[0]);
    let matches = match (fields, key.key.public_key()) {
        // rustls does not read it.
        (Some(fields), Some(public)) if fields.version == 1 => match fields.key.der() == public {
            true => Ok(()),
            false => Err(InconsistentKeys::KeyMismatch.into()),
        },
        _ => key.keys_match(),
    };
    match matches {
        Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(()),
        matches => matches,
    }
}

fn read_key(input: TlsInput, pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsProblem> {
    let is_encrypted = pem
        .windows(ENCRYPTED.len())
        .any(|window| window == ENCRYPTED);
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| {
        let fault = match error {
            _ if is_encrypted => TlsFault::EncryptedKey,
            PemError::NoItemsFound => TlsFault::NoKey,
            error => TlsFault::NotPem(words_of_pem(&error)),
        };
        problem(input, fault)
    })
}

/// The defect of a PEM file. The text has no byte of the file but a label, since the rest may be a
/// key.
fn words_of_pem(error: &PemError) -> String {
    match error {
        PemError::MissingSectionEnd { end_marker } => {
            // In a file of one line all of it stands in place of the label.
            let is_label = |byte: &u8| byte.is_ascii_uppercase() || *byte == b' ';
            let end = match end_marker.iter().all(is_label) {
                true => format!("its line '-----END {}-----'", end_marker.escape_ascii()),
                false => "the line of its end".to_owned(),
            };
            format!("{end} is missing; is it half-written?")
        }
        PemError::IllegalSectionStart { .. } => {
            "a line begins with '-----BEGIN' and does not end with '-----'; is it half-written?"
                .to_owned()
        }
        PemError::Base64Decode(_) => {
            "the lines between BEGIN and END are not base64; is it half-written?".to_owned()
        }
        error => error.to_string(),
    }
}

/// A word of the PEM header of a key with a passphrase.
const ENCRYPTED: &[u8] = b"ENCRYPTED";

/// Reads at least one certificate.
fn read_certificates(
    input: TlsInput,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, TlsProblem> {
    let certificates = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| problem(input, TlsFault::NotPem(words_of_pem(&error))))?;
    match certificates.is_empty() {
        true => Err(problem(input, TlsFault::NoCertificate)),
        false => Ok(certificates),
    }
}

/// Reads trusted CAs. Returns the earliest expiry, too; `None`: never. rustls does not look at it.
fn read_roots(
    input: TlsInput,
    pem: &[u8],
) -> Result<(RootCertStore, Option<SystemTime>), TlsProblem> {
    let certificates = read_certificates(input, pem)?;
    let expiry = earliest_expiry(&certificates);
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots
            .add(certificate)
            .map_err(|error| unusable(input)(&error))?;
    }
    Ok((roots, expiry))
}

/// The CAs that the system trusted when they were read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SystemCas {
    certificates: Arc<[CertificateDer<'static>]>,
    /// The first error of the reading.
    error: Option<String>,
}

impl SystemCas {
    /// Reads them, some 140 certificates.
    pub fn read() -> SystemCas {
        let found = rustls_native_certs::load_native_certs();
        SystemCas {
            certificates: found.certs.into(),
            error: found.errors.first().map(|error| match &error.kind {
                ErrorKind::Pem(kind) => format!("{}: {}", error.context, words_of_pem(kind)),
                _ => error.to_string(),
            }),
        }
    }

    fn roots(&self) -> Result<RootCertStore, TlsProblem> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(self.certificates.iter().cloned());
        if !roots.is_empty() {
            return Ok(roots);
        }
        let error = self.error.as_ref().map(|error| format!(" ({error})"));
        let why = format!(
            "the system has no trusted CA; install its package ca-certificates, or set \
             server-tls-ca to a PEM file{}",
            error.unwrap_or_default()
        );
        Err(problem(TlsInput::Roots, TlsFault::Unusable(why)))
    }
}

#[cfg(test)]
impl SystemCas {
    /// Those of a system without a CA.
    pub(super) fn none(error: Option<&str>) -> SystemCas {
        SystemCas {
            certificates: Arc::new([]),
            error: error.map(str::to_owned),
        }
    }
}

/// The end of the year 9999, in seconds since 1970: a certificate can name no later time.
const LAST_SECOND: Duration = Duration::from_secs(253_402_300_799);

/// The earliest expiry of these certificates. `None`: never.
fn earliest_expiry(certificates: &[CertificateDer<'_>]) -> Option<SystemTime> {
    let last = SystemTime::UNIX_EPOCH + LAST_SECOND;
    let fields = certificates.iter();
    let fields = fields.filter_map(|certificate| CertificateFields::read(certificate));
    let expiries = fields.map(|fields| fields.not_after);
    expiries.filter(|expiry| *expiry < last).min()
}

/// The certificates of a listener, of which each client gets one.
#[derive(Debug)]
struct CertificateChoice {
    keys: Vec<Arc<CertifiedKey>>,
}

impl ResolvesServerCert for CertificateChoice {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let [first, others @ ..] = &self.keys[..] else {
            return None;
        };
        if others.is_empty() {
            return Some(first.clone());
        }
        let is_known = |key: &&Arc<CertifiedKey>| {
            let scheme = key.key.choose_scheme(hello.signature_schemes());
            scheme.is_some()
        };
        let name = hello
            .server_name()
            .and_then(|name| ServerName::try_from(name).ok());
        let named = name.and_then(|name| {
            let mut known = self.keys.iter().filter(is_known);
            known.find(|key| is_valid_for(key, &name))
        });
        let chosen = named.or_else(|| self.keys.iter().find(is_known));
        Some(chosen.unwrap_or(first).clone())
    }
}

fn is_valid_for(key: &CertifiedKey, name: &ServerName<'_>) -> bool {
    let certificate = key.cert.first().map(ParsedCertificate::try_from);
    matches!(certificate, Some(Ok(certificate)) if verify_server_name(&certificate, name).is_ok())
}

/// The public key of a certificate of any version.
fn key_of<'a>(certificate: &'a CertificateDer<'_>) -> Result<PublicKey<'a>, Error> {
    let fields = CertificateFields::read(certificate);
    let fields = fields.ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))?;
    Ok(fields.key)
}

/// Accepts any certificate of a server, if the server has its key.
#[derive(Debug)]
struct Unverified {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        key_of(certificate)?.verify_tls12(message, signed, algorithms)?;
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        key_of(certificate)?.verify_tls13(message, signed, algorithms)?;
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

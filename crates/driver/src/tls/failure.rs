//! Errors of a connection, in words for the log and for the clients of failed requests.

use respool_engine::DriverCounts;
use rustix::io::Errno;
use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

/// An error of a connection's bytes.
#[derive(Debug)]
pub(crate) enum StreamError {
    /// A system call failed.
    System(Errno),
    /// TLS failed. The box keeps the results of plain connections small.
    Tls(Box<Error>),
}

impl From<Errno> for StreamError {
    fn from(error: Errno) -> Self {
        StreamError::System(error)
    }
}

impl From<Error> for StreamError {
    fn from(error: Error) -> Self {
        StreamError::Tls(Box::new(error))
    }
}

impl StreamError {
    /// The error of a connection to a server: `Connection refused (os error 111)`.
    pub(crate) fn of_server(&self) -> String {
        self.text(words_of_server)
    }

    /// The error of a connection from a client.
    pub(crate) fn of_client(&self) -> String {
        self.text(words_of_client)
    }

    fn text(&self, words: fn(&Error) -> Option<&'static str>) -> String {
        match self {
            StreamError::System(error) => std::io::Error::from(*error).to_string(),
            StreamError::Tls(error) => match words(error) {
                // The error has the time of the attempt. The log says a reason once, so each
                // attempt needs the same text.
                Some(words) if is_about_time(error) => words.to_owned(),
                Some(words) => format!("{words} ({error})"),
                None => error.to_string(),
            },
        }
    }

    /// The reason why the handshake of a client failed.
    pub(crate) fn refusal(&self) -> HandshakeRefusal {
        let error = match self {
            StreamError::System(_) => return HandshakeRefusal::Closed,
            StreamError::Tls(error) => &**error,
        };
        match error {
            Error::InvalidMessage(_) => HandshakeRefusal::NoTls,
            Error::PeerIncompatible(_) => HandshakeRefusal::Version,
            Error::NoCertificatesPresented => {
                HandshakeRefusal::ClientCertificate(CertificateRefusal::Missing)
            }
            Error::InvalidCertificate(error) => {
                HandshakeRefusal::ClientCertificate(CertificateRefusal::of(error))
            }
            Error::AlertReceived(alert) if is_about_certificate(*alert) => {
                HandshakeRefusal::OurCertificate
            }
            _ => HandshakeRefusal::Protocol,
        }
    }
}

/// The reason why the handshake of a client failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeRefusal {
    /// The client does not speak TLS.
    NoTls,
    /// The client has no version, or no algorithm, that respool allows.
    Version,
    /// The certificate of the client is refused.
    ClientCertificate(CertificateRefusal),
    /// The client refused the certificate of respool.
    OurCertificate,
    /// The client broke the protocol.
    Protocol,
    /// The client closed its connection.
    Closed,
    /// The client took too long.
    Deadline,
}

impl HandshakeRefusal {
    /// The reason in the log, by which clients are counted.
    pub(crate) fn text(self) -> &'static str {
        match self {
            HandshakeRefusal::NoTls => "tls: no TLS",
            HandshakeRefusal::Version => "tls: version",
            HandshakeRefusal::ClientCertificate(refusal) => match refusal {
                CertificateRefusal::Missing => "tls: no client certificate",
                CertificateRefusal::UnknownCa => "tls: client certificate: unknown CA",
                CertificateRefusal::Expired => "tls: client certificate: expired",
                CertificateRefusal::NotYetValid => "tls: client certificate: not valid yet",
                CertificateRefusal::Usage => "tls: client certificate: usage",
                CertificateRefusal::Other => "tls: client certificate",
            },
            HandshakeRefusal::OurCertificate => "tls: our certificate",
            HandshakeRefusal::Protocol => "tls: protocol",
            HandshakeRefusal::Closed => "tls: closed",
            HandshakeRefusal::Deadline => "tls: deadline",
        }
    }
}

/// The reason why the certificate of a client is refused. The log and the metrics tell each apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CertificateRefusal {
    /// The client showed none.
    Missing,
    /// No CA that respool trusts has signed it.
    UnknownCa,
    /// It has expired.
    Expired,
    /// It is not valid yet.
    NotYetValid,
    /// It is not for clients.
    Usage,
    /// Each other reason: it is that of a CA, or of X.509 v1.
    Other,
}

impl CertificateRefusal {
    fn of(error: &CertificateError) -> CertificateRefusal {
        match error {
            // A bad signature is one by another CA of the same name.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                CertificateRefusal::UnknownCa
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                CertificateRefusal::Expired
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                CertificateRefusal::NotYetValid
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                CertificateRefusal::Usage
            }
            _ => CertificateRefusal::Other,
        }
    }

    /// Counts a client.
    pub(crate) fn count(self, counts: &mut DriverCounts) {
        let count = match self {
            CertificateRefusal::Missing => &mut counts.certificates_missing,
            CertificateRefusal::UnknownCa => &mut counts.certificates_of_unknown_ca,
            CertificateRefusal::Expired => &mut counts.certificates_expired,
            CertificateRefusal::NotYetValid => &mut counts.certificates_not_yet_valid,
            CertificateRefusal::Usage => &mut counts.certificates_of_other_usage,
            CertificateRefusal::Other => &mut counts.certificates_refused_otherwise,
        };
        *count += 1;
    }
}

/// The words for an error of a server; `None`: the error's own text is plain enough.
fn words_of_server(error: &Error) -> Option<&'static str> {
    Some(match error {
        Error::InvalidCertificate(error) => match error {
            // A bad signature is one by another CA of the same name.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "no trusted CA has signed the server's certificate; server-tls-ca must name the \
                 file of its CA"
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the server's certificate has expired; renew it at the server, or is the clock \
                 wrong?"
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the server's certificate is not valid yet; is the clock right?"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "the server's certificate is for another name; server-tls-name must be a name \
                 that it has"
            }
            error if is_ca_of_peer(error) => {
                "the server's certificate is a CA certificate (CA:TRUE), as 'openssl req -x509' \
                 makes it; give the server a leaf certificate"
            }
            error if is_v1_of_peer(error) => {
                "the server's certificate is of X.509 v1; sign it with extensions \
                 ('openssl x509 -req -extfile')"
            }
            _ => "the server's certificate cannot be verified",
        },
        Error::NoCertificatesPresented => "the server showed no certificate",
        error if is_no_tls(error) => {
            "the server does not speak TLS at this address; if it has none, write redis in place \
             of rediss in its URL"
        }
        Error::PeerIncompatible(
            PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig,
        )
        | Error::AlertReceived(AlertDescription::ProtocolVersion) => {
            "the server and respool have no version of TLS in common; the server must allow 1.2 \
             or 1.3"
        }
        Error::PeerIncompatible(_) => "the server and respool have no algorithm in common",
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "the server wants a certificate of respool; set server-tls-cert and server-tls-key"
        }
        Error::AlertReceived(alert) if is_about_certificate(*alert) => {
            "the server refused the certificate of respool; it must trust the CA of server-tls-cert"
        }
        Error::AlertReceived(AlertDescription::HandshakeFailure) => {
            "the server refused the handshake; it may want a certificate of respool \
             (server-tls-cert and server-tls-key)"
        }
        _ => return None,
    })
}

/// The words for an error of a client; `None`: the error's own text is plain enough.
fn words_of_client(error: &Error) -> Option<&'static str> {
    Some(match error {
        Error::InvalidCertificate(error) => match error {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "no CA of tls-ca has signed the client's certificate"
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the client's certificate has expired"
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the client's certificate is not valid yet"
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                "the client's certificate is not for clients: its extendedKeyUsage lacks clientAuth"
            }
            error if is_ca_of_peer(error) => {
                "the client's certificate is a CA certificate (CA:TRUE), as 'openssl req -x509' \
                 makes it"
            }
            error if is_v1_of_peer(error) => {
                "the client's certificate is of X.509 v1; sign it with extensions \
                 ('openssl x509 -req -extfile')"
            }
            _ => "the client's certificate cannot be verified",
        },
        Error::NoCertificatesPresented => {
            "the client showed no certificate, and tls-client-auth requires one"
        }
        error if is_no_tls(error) => "the client does not speak TLS at this listener",
        Error::PeerIncompatible(
            PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::SupportedVersionsExtensionRequired
            // Clients that do not know TLS 1.2 do not know this extension.
            | PeerIncompatible::SignatureAlgorithmsExtensionRequired,
        )
        | Error::AlertReceived(AlertDescription::ProtocolVersion) => {
            "the client and respool have no version of TLS in common"
        }
        Error::PeerIncompatible(_) => "the client and respool have no algorithm in common",
        Error::AlertReceived(alert) if is_about_certificate(*alert) => {
            "the client refused the certificate of respool"
        }
        _ => return None,
    })
}

/// Whether the text of an error has the time at which a certificate was looked at.
fn is_about_time(error: &Error) -> bool {
    matches!(
        error,
        Error::InvalidCertificate(
            CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. }
        )
    )
}

/// Whether the peer showed the certificate of a CA as its own. rustls has no error of its own for
/// it, and hands out that of webpki.
fn is_ca_of_peer(error: &CertificateError) -> bool {
    matches!(error, CertificateError::Other(cause) if cause.0.to_string() == "CaUsedAsEndEntity")
}

/// Whether the certificate of the peer is of X.509 v1, as `openssl x509 -req` makes it without
/// extensions. rustls hands out the error of webpki.
fn is_v1_of_peer(error: &CertificateError) -> bool {
    matches!(
        error,
        CertificateError::Other(cause) if cause.0.to_string() == "UnsupportedCertVersion"
    )
}

/// Whether the peer's bytes are no records of TLS.
fn is_no_tls(error: &Error) -> bool {
    matches!(
        error,
        Error::InvalidMessage(
            InvalidMessage::InvalidContentType
                | InvalidMessage::UnknownProtocolVersion
                | InvalidMessage::MessageTooLarge
        )
    )
}

/// Whether the alert is the peer's verdict on a certificate of ours.
fn is_about_certificate(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateRequired
            | AlertDescription::AccessDenied
            // The signature is by another CA of the same name.
            | AlertDescription::DecryptError
    )
}

//! The arguments of HELLO, and the names that it accepts.

use respool_protocol::commands::id;
use respool_protocol::encode::{self, Version};
use respool_protocol::number;

use crate::base::limits::NAME_BYTES_MAX;
use crate::data_plane::ingress::{KeptRequest, Request};

/// The arguments of a HELLO.
pub(crate) struct HelloArgs<'a> {
    /// `None`: the client keeps its version.
    pub(crate) version: Option<Version>,
    /// Name and password.
    pub(crate) credentials: Option<(&'a [u8], &'a [u8])>,
    pub(crate) name: Option<&'a [u8]>,
}

impl<'a> HelloArgs<'a> {
    /// Reads the arguments, or returns the error. The order of the checks is that of Redis's
    /// `helloCommand`.
    pub(crate) fn read(request: &Request<'a>) -> Result<HelloArgs<'a>, Vec<u8>> {
        let mut args = request.args().skip(1);
        let version = match args.next().map(number::parse) {
            None => None,
            Some(Some(2)) => Some(Version::Resp2),
            Some(Some(3)) => Some(Version::Resp3),
            Some(Some(_)) => return Err(b"NOPROTO unsupported protocol version".to_vec()),
            Some(None) => {
                return Err(b"ERR Protocol version is not an integer or out of range".to_vec());
            }
        };
        let (mut credentials, mut name) = (None, None);
        while let Some(option) = args.next() {
            let wrong = || [b"ERR Syntax error in HELLO option '", option, b"'"].concat();
            if option.eq_ignore_ascii_case(b"AUTH") {
                credentials = Some(args.next().zip(args.next()).ok_or_else(wrong)?);
            } else if option.eq_ignore_ascii_case(b"SETNAME") {
                let given = args.next().ok_or_else(wrong)?;
                if !is_plain(given) {
                    return Err(BAD_NAME.to_vec());
                }
                if given.len() > NAME_BYTES_MAX {
                    return Err(LONG_NAME.to_vec());
                }
                name = Some(given);
            } else {
                return Err(wrong());
            }
        }
        Ok(HelloArgs {
            version,
            credentials,
            name,
        })
    }

    /// The same HELLO without AUTH.
    pub(crate) fn without_credentials(&self) -> KeptRequest {
        let number = self.version.map(|version| version.number().to_string());
        let mut words: Vec<&[u8]> = vec![b"HELLO"];
        words.extend(number.as_ref().map(String::as_bytes));
        if let Some(name) = self.name {
            words.extend([b"SETNAME", name]);
        }
        let mut bytes = Vec::new();
        encode::request(&mut bytes, &words);
        let id = id::HELLO;
        KeptRequest { id, bytes }
    }
}

pub(crate) const LONG_NAME: &[u8] = b"ERR respool: a name may have 1024 bytes at the most";
const _: () = assert!(NAME_BYTES_MAX == 1024, "the error text says so");
pub(crate) const BAD_NAME: &[u8] =
    b"ERR Client names cannot contain spaces, newlines or special characters.";

/// Whether Redis takes this as a client's name or library: printable ASCII without space.
pub(crate) fn is_plain(text: &[u8]) -> bool {
    text.iter().all(|byte| (b'!'..=b'~').contains(byte))
}

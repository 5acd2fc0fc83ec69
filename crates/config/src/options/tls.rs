//! Options for TLS: of listeners, and of the connections to servers.

use std::path::{Path, PathBuf};

use respool_driver::tls::{ClientAuth, MinVersion};
use respool_engine::settings::Address;

use super::parse::parse_path;
use super::{AtReload, OPTION, Opt, OptionKind, Topic};
use crate::address::{parse_listener, parse_tls_name};

/// The values of `tls-client-auth`.
const CLIENT_AUTHS: [(&str, ClientAuth); 3] = [
    ("off", ClientAuth::Off),
    ("optional", ClientAuth::Optional),
    ("required", ClientAuth::Required),
];

/// The values of `tls-min-version`.
const VERSIONS: [(&str, MinVersion); 2] = [("1.2", MinVersion::Tls12), ("1.3", MinVersion::Tls13)];

/// The word of a value.
fn word_of<T: Copy + PartialEq>(all: &[(&'static str, T)], value: T) -> Option<String> {
    let mut all = all.iter();
    let found = all.find(|(_, other)| *other == value);
    found.map(|(word, _)| (*word).to_owned())
}

/// The value of a word.
fn value_of<T: Copy>(all: &[(&'static str, T)], word: &str) -> Option<T> {
    let mut all = all.iter();
    all.find(|(other, _)| *other == word)
        .map(|(_, value)| *value)
}

fn shown_path(path: Option<&Path>) -> Option<String> {
    path.map(|path| path.display().to_string())
}

fn shown_paths(paths: &[PathBuf]) -> Vec<String> {
    paths
        .iter()
        .filter_map(|path| shown_path(Some(path)))
        .collect()
}

pub(super) const TLS_LISTEN: Opt = Opt {
    name: "tls-listen",
    at_reload: AtReload::Applies,
    topic: Topic::Tls,
    kind: OptionKind::List {
        push: |values, text| {
            values.tls_listen.push(parse_listener(text)?);
            Ok(())
        },
        clear: |values| values.tls_listen.clear(),
        get: |values| values.tls_listen.iter().map(Address::to_string).collect(),
    },
    value: "ADDRESS",
    brief: "An address on which clients use TLS; may be given several times",
    more: "The forms are those of listen. If tls-listen is given and listen is not, respool \
           listens with TLS only. The table of a pool in the file may have tls-listen beside \
           listen, or in its place. In --pool, `tls:` in front of an address of LISTEN says the \
           same.",
    example: "0.0.0.0:6390",
    of_program: true,
    ..OPTION
};

pub(super) const TLS_CERT: Opt = Opt {
    name: "tls-cert",
    at_reload: AtReload::Applies,
    topic: Topic::Tls,
    kind: OptionKind::List {
        push: |values, text| {
            values.tls_certs.push(parse_path(text)?);
            Ok(())
        },
        clear: |values| values.tls_certs.clear(),
        get: |values| shown_paths(&values.tls_certs),
    },
    value: "FILE",
    brief: "A certificate for clients; may be given several times",
    more: "A file in PEM format: the certificate, and behind it the certificates between it and \
           its CA. Each has a tls-key at the same place of its list. A client that names a host \
           (SNI) gets the first certificate for that name. Other clients get the first one.\n\n\
           respool looks at the files every 5 s. If a certificate and its key have changed, new \
           connections get them. Connections that are up stay. A certificate that does not fit \
           its key changes nothing, and the log says so.",
    example: "/etc/respool/tls/tls.crt",
    of_program: true,
    ..OPTION
};

pub(super) const TLS_KEY: Opt = Opt {
    name: "tls-key",
    at_reload: AtReload::Applies,
    topic: Topic::Tls,
    kind: OptionKind::List {
        push: |values, text| {
            values.tls_keys.push(parse_path(text)?);
            Ok(())
        },
        clear: |values| values.tls_keys.clear(),
        get: |values| shown_paths(&values.tls_keys),
    },
    value: "FILE",
    brief: "The private key of a tls-cert; may be given several times",
    more: "A file in PEM format, without a passphrase. Other users of the machine must not be \
           able to read it.",
    example: "/etc/respool/tls/tls.key",
    of_program: true,
    ..OPTION
};

pub(super) const TLS_CA: Opt = Opt {
    name: "tls-ca",
    at_reload: AtReload::Applies,
    topic: Topic::Tls,
    kind: OptionKind::Text {
        set: |values, text| {
            values.tls_ca = Some(parse_path(text)?);
            Ok(())
        },
        get: |values| shown_path(values.tls_ca.as_deref()),
        or_number: false,
    },
    value: "FILE",
    brief: "The CAs that sign certificates of clients",
    more: "A file in PEM format with one certificate or several. It needs tls-client-auth.",
    example: "/etc/respool/tls/client-ca.crt",
    of_program: true,
    ..OPTION
};

pub(super) const TLS_CLIENT_AUTH: Opt = Opt {
    name: "tls-client-auth",
    at_reload: AtReload::Applies,
    topic: Topic::Tls,
    kind: OptionKind::Text {
        set: |values, text| {
            let auth = value_of(&CLIENT_AUTHS, text);
            values.tls_client_auth = auth.ok_or("must be `off`, `optional` or `required`")?;
            Ok(())
        },
        get: |values| word_of(&CLIENT_AUTHS, values.tls_client_auth),
        or_number: false,
    },
    value: "off|optional|required",
    brief: "Whether clients have a certificate of their own",
    more: "With `required`, a client without a certificate is refused. With `optional`, such a \
           client is accepted. In both cases a certificate that tls-ca has not signed is refused. \
           A certificate is no login: passwords and users hold as without TLS.",
    example: "required",
    of_program: true,
    ..OPTION
};

pub(super) const TLS_MIN_VERSION: Opt = Opt {
    name: "tls-min-version",
    at_reload: AtReload::Applies,
    topic: Topic::Tls,
    kind: OptionKind::Text {
        set: |values, text| {
            let version = value_of(&VERSIONS, text);
            values.tls_min_version = version.ok_or("must be `1.2` or `1.3`")?;
            Ok(())
        },
        get: |values| word_of(&VERSIONS, values.tls_min_version),
        or_number: false,
    },
    value: "1.2|1.3",
    brief: "The oldest version of TLS that clients may use",
    more: "Older versions than 1.2 are not supported.",
    example: "1.3",
    of_program: true,
    ..OPTION
};

pub(super) const SERVER_TLS_CA: Opt = Opt {
    name: "server-tls-ca",
    at_reload: AtReload::Applies,
    topic: Topic::Tls,
    kind: OptionKind::Text {
        set: |values, text| {
            values.server_tls_ca = Some(parse_path(text)?);
            Ok(())
        },
        get: |values| shown_path(values.server_tls_ca.as_deref()),
        or_number: false,
    },
    value: "FILE",
    brief: "The CAs that sign certificates of servers (rediss://)",
    more: "A file in PEM format. Without it, the CAs of the system count. It holds for all servers \
           of a pool that are reached over TLS, Sentinels among them.",
    example: "/etc/respool/tls/server-ca.crt",
    per_pool: true,
    ..OPTION
};

pub(super) const SERVER_TLS_CERT: Opt = Opt {
    name: "server-tls-cert",
    at_reload: AtReload::Applies,
    topic: Topic::Tls,
    kind: OptionKind::Text {
        set: |values, text| {
            values.server_tls_cert = Some(parse_path(text)?);
            Ok(())
        },
        get: |values| shown_path(values.server_tls_cert.as_deref()),
        or_number: false,
    },
    value: "FILE",
    brief: "The certificate that respool shows to servers",
    more: "For servers that ask their clients for one, as Redis does unless `tls-auth-clients no` \
           is set. A file in PEM format. Its key is server-tls-key.",
    example: "/etc/respool/tls/client.crt",
    per_pool: true,
    ..OPTION
};

pub(super) const SERVER_TLS_KEY: Opt = Opt {
    name: "server-tls-key",
    at_reload: AtReload::Applies,
    topic: Topic::Tls,
    kind: OptionKind::Text {
        set: |values, text| {
            values.server_tls_key = Some(parse_path(text)?);
            Ok(())
        },
        get: |values| shown_path(values.server_tls_key.as_deref()),
        or_number: false,
    },
    value: "FILE",
    brief: "The private key of server-tls-cert",
    more: "A file in PEM format, without a passphrase.",
    example: "/etc/respool/tls/client.key",
    per_pool: true,
    ..OPTION
};

pub(super) const SERVER_TLS_NAME: Opt = Opt {
    name: "server-tls-name",
    at_reload: AtReload::Applies,
    topic: Topic::Tls,
    kind: OptionKind::Text {
        set: |values, text| {
            values.server_tls_name = Some(parse_tls_name(text)?);
            Ok(())
        },
        get: |values| values.server_tls_name.clone(),
        or_number: false,
    },
    value: "NAME",
    brief: "The name in the certificates of servers",
    more: "A host name or an IP address. Without it, a certificate must name the host that respool \
           connects to. The nodes of a Cluster and Sentinels often name servers by addresses that \
           stand in no certificate. Then give the name that all these certificates have.",
    example: "redis.example",
    per_pool: true,
    ..OPTION
};

pub(super) const SERVER_TLS_VERIFY: Opt = Opt {
    name: "server-tls-verify",
    at_reload: AtReload::Applies,
    topic: Topic::Tls,
    kind: OptionKind::Switch(|values| &mut values.server_tls_verify),
    brief: "Check the certificates of servers",
    more: "With `no`, respool takes any certificate. Then a machine in between can read and change \
           everything, passwords included. The log warns of it at the start.",
    example: "false",
    per_pool: true,
    ..OPTION
};

//! Warnings about peers that could read or use more than the operator may know.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use respool_driver::tls::ClientAuth;
use respool_engine::settings::Address;

use super::PoolConfig;
use super::resolve::Resolved;
use super::tls::urls;
use crate::address::ListenAt;
use crate::backend::BackendServers;

impl Resolved {
    /// Warnings about listeners that other machines reach without a password or without TLS, and
    /// about sockets that every user of this machine reaches without a password. Also about
    /// passwords for servers that can be read on the way, metrics that other machines can read, and
    /// servers whose certificates are not checked.
    pub(super) fn exposure(&self, pools: &[PoolConfig], is_open: bool) -> Vec<String> {
        let listeners = || pools.iter().flat_map(|pool| &pool.listen);
        let exposed = || listeners().filter(|at| is_exposed(&at.address));
        let mut warnings = Vec::new();
        // A listener that takes only clients with a certificate is not open.
        let asks = |at: &ListenAt| at.tls && self.values.tls_client_auth == ClientAuth::Required;
        if let Some(open) = shown(exposed().filter(|at| is_open && !asks(at))) {
            warnings.push(format!(
                "every client that reaches {open} may use the server: set a password, or listen on \
                 127.0.0.1"
            ));
        }
        if let Some(plain) = shown(exposed().filter(|at| !at.tls)) {
            warnings.push(format!(
                "clients of {plain} use no TLS, so passwords and data can be read on the way: use \
                 --tls-listen in place of --listen, or listen on 127.0.0.1"
            ));
        }
        let sockets =
            listeners().filter(|at| is_open && !asks(at) && self.is_for_all_users(&at.address));
        if let Some(open) = shown(sockets) {
            warnings.push(format!(
                "every user of this machine may use the server by {open}: set a password, or \
                 --socket-mode 0660 and --socket-group"
            ));
        }
        for url in pools.iter().flat_map(urls) {
            if matches!(url.servers, BackendServers::Sentinel(_)) {
                // Its addresses are those of the Sentinels, and not of the servers that get the
                // password.
                continue;
            }
            let mut exposed = url.addresses().into_iter();
            let exposed = exposed.find(|address| is_exposed(address));
            if let Some(server) = exposed.filter(|_| !url.tls && url.password.is_some()) {
                warnings.push(format!(
                    "the password for {server} is sent without TLS, so it can be read on the way: \
                     write rediss in place of redis in its URL"
                ));
            }
        }
        let pages = self.values.metrics_listen.as_ref();
        if let Some(pages) = pages.filter(|address| is_exposed(address)) {
            warnings.push(format!(
                "every machine that reaches {pages} can read the metrics, which name pools and \
                 servers: listen on 127.0.0.1, or let only the monitoring connect"
            ));
        }
        for pool in pools {
            let mut named = self.values.pools.iter();
            let table = named.find(|named| Some(&named.name) == pool.name.as_ref());
            let verify = match table {
                Some(table) => self.values_of(table).server_tls_verify,
                None => self.values.server_tls_verify,
            };
            if !verify && urls(pool).any(|url| url.tls) {
                let of_pool = pool.name.as_ref();
                let of_pool =
                    of_pool.map_or(String::new(), |name| format!(" of the pool `{name}`"));
                warnings.push(format!(
                    "certificates of the servers{of_pool} are not checked (--server-tls-verify): a \
                     machine in between can read and change everything; name their CA by \
                     --server-tls-ca"
                ));
            }
        }
        warnings
    }

    /// Whether every user of this machine may connect to the address, a socket in the file system.
    fn is_for_all_users(&self, address: &Address) -> bool {
        let Address::Unix(path) = address else {
            return false;
        };
        self.values.socket_mode & 0o002 != 0 && path.parent().is_some_and(is_for_all)
    }
}

/// Whether every user of this machine may enter the directory. One that does not exist is made at
/// the start, as systemd makes those in /run.
fn is_for_all(directory: &Path) -> bool {
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    directory.ancestors().all(|part| {
        std::fs::metadata(part).map_or(true, |meta| meta.permissions().mode() & 0o001 != 0)
    })
}

/// Whether other machines may reach the address.
fn is_exposed(address: &Address) -> bool {
    match address {
        Address::Tcp { host, .. } => {
            !(host == "localhost" || host == "::1" || host.starts_with("127."))
        }
        Address::Unix(_) => false,
    }
}

/// The listeners with commas between them; `None` without any.
fn shown<'a>(listeners: impl Iterator<Item = &'a ListenAt>) -> Option<String> {
    let all: Vec<_> = listeners.map(|at| at.address.to_string()).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

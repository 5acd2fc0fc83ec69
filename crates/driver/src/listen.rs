//! Listening sockets: one for each worker on every address.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use respool_engine::settings::Address;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

/// How many clients may wait to be accepted; the kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// A listening socket of one worker.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: OwnedFd,
    /// Index of the pool its sessions use.
    pub(crate) pool: usize,
    /// Its path, if it is a socket in the file system.
    pub(crate) path: Option<Arc<str>>,
}

/// Binds `count` sockets to an address; returns it with the port that the kernel chose.
pub(crate) fn bind(address: &Address, count: usize) -> io::Result<(Address, Vec<OwnedFd>)> {
    match address {
        Address::Tcp { host, port } => {
            let mut error = io::Error::new(io::ErrorKind::NotFound, "no such host");
            for candidate in (host.as_str(), *port).to_socket_addrs()? {
                match bind_tcp(candidate, count) {
                    Ok((bound, sockets)) => {
                        return Ok((
                            Address::Tcp {
                                host: host.clone(),
                                port: bound.port(),
                            },
                            sockets,
                        ));
                    }
                    Err(failed) => error = failed,
                }
            }
            Err(error)
        }
        Address::Unix(path) => {
            let first = bind_unix(path)?;
            let mut sockets = Vec::new();
            for _ in 1..count {
                // The kernel has no SO_REUSEPORT for these: the workers share one queue.
                sockets.push(first.try_clone()?);
            }
            sockets.push(first);
            Ok((address.clone(), sockets))
        }
    }
}

fn bind_tcp(address: SocketAddr, count: usize) -> io::Result<(SocketAddr, Vec<OwnedFd>)> {
    // SO_REUSEPORT would let us share the port with anybody who sets it too: first see that it is free.
    let probe = tcp_socket(address, false)?;
    let bound = local_address(&probe)?;
    if count == 1 {
        net::listen(&probe, BACKLOG)?;
        return Ok((bound, vec![probe]));
    }
    drop(probe);
    let mut sockets = Vec::new();
    for _ in 0..count {
        let socket = tcp_socket(bound, true)?;
        net::listen(&socket, BACKLOG)?;
        sockets.push(socket);
    }
    Ok((bound, sockets))
}

fn tcp_socket(address: SocketAddr, shared: bool) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    if address.is_ipv6() {
        // `[::]` is every IPv6 address, so that `0.0.0.0` may stand beside it with the same port.
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if shared {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    net::bind(&socket, &address)?;
    Ok(socket)
}

fn local_address(socket: &OwnedFd) -> io::Result<SocketAddr> {
    let name = net::getsockname(socket)?;
    SocketAddr::try_from(name).map_err(|_| io::Error::other("the socket has no IP address"))
}

fn bind_unix(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let new = || {
        net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
    };
    let socket = new()?;
    match net::bind(&socket, &address) {
        Ok(()) => {}
        Err(rustix::io::Errno::ADDRINUSE) => {
            // Left behind by a process that is gone, or in use? Only the first may be replaced.
            if net::connect(&new()?, &address) != Err(rustix::io::Errno::CONNREFUSED) {
                return Err(rustix::io::Errno::ADDRINUSE.into());
            }
            if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "there is a file of that name, and it is no socket",
                ));
            }
            std::fs::remove_file(path)?;
            net::bind(&socket, &address)?;
        }
        Err(error) => return Err(error.into()),
    }
    net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

//! `respool-lab floor`

use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;

use clap::Args;

use super::{end_with_parent, fail, read};
use crate::flags::{address, value_bytes};
use crate::floor;

const NAME: &str = "floor";
const ABOUT: &str = "\
respool-lab floor: an echo server that shows the cost of the kernel alone for a proxy.

For every request in the bytes it reads it sends a fixed reply: +OK for SET, a value of the given size
for GET. One thread, one epoll, one read and one write per ready connection and turn. It looks at no
command or key, keeps no limit and talks to no server: no useful proxy can be cheaper with two system
calls per ready client. Put load on it: respool-lab load --values filler --target HOST:PORT

Usage: respool-lab floor --listen HOST:PORT [OPTIONS]";

#[derive(Args)]
struct FloorArgs {
    /// Where to listen.
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    listen: SocketAddr,
    /// Size of the value in a reply to GET.
    #[arg(long, value_name = "N", value_parser = value_bytes, default_value_t = 2)]
    value_bytes: usize,
    /// End when the process that started it ends.
    #[arg(long = "child")]
    is_child: bool,
}

/// Runs it.
pub fn run(args: &[OsString]) -> ExitCode {
    let settings: FloorArgs = match read(NAME, ABOUT, args) {
        Ok(settings) => settings,
        Err(code) => return code,
    };
    let listen = settings.listen;
    if settings.is_child {
        end_with_parent();
    }
    let served = TcpListener::bind(listen)
        .and_then(|listener| floor::serve(&listener, settings.value_bytes));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(NAME, &format!("{listen}: {error}")),
    }
}

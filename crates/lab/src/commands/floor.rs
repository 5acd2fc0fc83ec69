//! `respool-lab floor`

use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;

use super::{end_with_parent, fail, read};
use crate::flags::{Flag, value_bytes};
use crate::floor;

const NAME: &str = "floor";
const ABOUT: &str = "\
respool-lab floor: an echo server that shows what the kernel alone costs a proxy.

For every request in the bytes it reads it sends a fixed reply: +OK for SET, a value of the given size
for GET. One thread, one epoll, one read and one write per ready connection and turn. It looks at no
command or key, keeps no limit and talks to no server: no useful proxy can be cheaper with two system
calls per ready client. Put load on it: respool-lab load --values filler --target HOST:PORT

Usage: respool-lab floor --listen HOST:PORT [OPTIONS]";

struct Settings {
    listen: Option<SocketAddr>,
    value_bytes: usize,
    is_child: bool,
}

const FLAGS: [&Flag<Settings>; 3] = [
    &Flag {
        name: "listen",
        value: Some("HOST:PORT"),
        help: "Where to listen.",
        set: |settings, value| {
            settings.listen = Some(super::load::address(value)?);
            Ok(())
        },
    },
    &Flag {
        name: "value-bytes",
        value: Some("N"),
        help: "Size of the value in a reply to GET [2].",
        set: |settings, value| value_bytes(value).map(|n| settings.value_bytes = n),
    },
    &Flag {
        name: "child",
        value: None,
        help: "End when the process that started it ends.",
        set: |settings, _| {
            settings.is_child = true;
            Ok(())
        },
    },
];

/// Runs it.
pub fn run(args: &[OsString]) -> ExitCode {
    let mut settings = Settings {
        listen: None,
        value_bytes: 2,
        is_child: false,
    };
    if let Err(code) = read(NAME, ABOUT, &FLAGS, args, &mut settings) {
        return code;
    }
    let Some(listen) = settings.listen else {
        return fail(NAME, "where? --listen HOST:PORT");
    };
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

//! Reads files of a bounded size, which may be pipes.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The longest time in seconds that a file which is a pipe may bring no byte.
const PIPE_SECONDS_MAX: i64 = 5;

/// The content of a file of at most `bytes_max` bytes. If the file is a pipe, this waits for its
/// bytes, each time for [`PIPE_SECONDS_MAX`] at most.
pub(crate) fn read_file(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let is_pipe = file.metadata()?.file_type().is_fifo();
    let (mut bytes, mut part) = (Vec::new(), [0; 16 << 10]);
    loop {
        if is_pipe {
            wait_for_bytes(&file)?;
        }
        match (&file).read(&mut part) {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if bytes.len() as u64 > bytes_max {
            return Err(io::Error::other(format!(
                "it has more than {bytes_max} bytes"
            )));
        }
    }
}

/// Waits until a pipe has bytes, or no writer.
fn wait_for_bytes(pipe: &File) -> io::Result<()> {
    let limit = Timespec {
        tv_sec: PIPE_SECONDS_MAX,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(pipe, PollFlags::IN)];
    match poll(&mut fds, Some(&limit)) {
        Ok(0) => Err(io::Error::other(format!(
            "it is a pipe, and nothing was written to it for {PIPE_SECONDS_MAX} seconds"
        ))),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

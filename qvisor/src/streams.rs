//! Standard streams on their way into a sandbox.
#![deny(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use crate::sys::procfs;

/// A descriptor that is to be a standard stream of a guest's program.
#[derive(Debug)]
pub struct Stream {
    /// The descriptor.
    pub fd: OwnedFd,
    /// Its open file description is shared with nobody, and does not block.
    pub own: bool,
}

impl Stream {
    /// Takes a stream from whoever has it. Its open file description may be shared with the user's
    /// shell, whose O_NONBLOCK must stay as it is: where possible the terminal or pipe behind it is
    /// opened anew. That is done out here, for a sandbox may open nothing.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn take(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        if let Some(fd) = reopen(fd) {
            return Ok(Self { fd, own: true });
        }
        Ok(Self { fd: rustix::io::fcntl_dupfd_cloexec(fd, 3)?, own: false })
    }

    /// Takes standard input, output and error.
    ///
    /// # Errors
    /// As [`Stream::take`].
    pub fn take_each([input, output, error]: [BorrowedFd<'_>; 3]) -> Result<[Self; 3], Errno> {
        Ok([Self::take(input)?, Self::take(output)?, Self::take(error)?])
    }
}

fn reopen(fd: BorrowedFd<'_>) -> Option<OwnedFd> {
    let stat = rustix::fs::fstat(fd).ok()?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Fifo => {}
        // To open /dev/ptmx (5, 2) is to make a new pseudoterminal.
        FileType::CharacterDevice
            if (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)) != (5, 2) => {}
        _ => return None,
    }
    let mode = rustix::fs::fcntl_getfl(fd).ok()?;
    if mode.contains(OFlags::PATH) {
        // Nobody gave the right to read it.
        return None;
    }
    let mode = mode & OFlags::RWMODE;
    let flags = mode | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(
        procfs::path(&format!("self/fd/{}", fd.as_raw_fd())),
        flags,
        rustix::fs::Mode::empty(),
    )
    .ok()
}

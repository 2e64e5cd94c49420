//! The one host call of the store that no library wraps.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// sync_file_range(2): begins to write dirty pages of a range to the disk; with `wait`, waits until they are there and
/// reports errors of writing them.
pub fn sync_range(file: BorrowedFd<'_>, offset: u64, len: u64, wait: bool) -> io::Result<()> {
    let mut flags = libc::SYNC_FILE_RANGE_WRITE;
    if wait {
        flags |= libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    }
    // SAFETY: no pointers.
    let ret = unsafe { libc::sync_file_range(file.as_raw_fd(), offset as i64, len as i64, flags) };
    if ret == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

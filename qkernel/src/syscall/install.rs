//! New descriptors for new files.

use alloc::sync::Arc;

use linux_raw_sys::general::RLIMIT_NOFILE;
use qlib::Va;

use crate::errno::{Errno, Result};
use crate::fs::{Fd, OpenFile};
use crate::task::Thread;

/// Puts a file at the lowest free descriptor: its number. EMFILE.
pub fn fd(thread: &Thread, file: Arc<OpenFile>, close_on_exec: bool) -> Result<Fd> {
    let limit = thread.process.rlimit(RLIMIT_NOFILE);
    if limit == 0 {
        return Err(Errno::EMFILE);
    }
    thread.files().insert(file, close_on_exec, 0, limit)
}

/// As [`fd()`], as a system call's result.
pub fn one(thread: &Thread, file: Arc<OpenFile>, close_on_exec: bool) -> Result<usize> {
    fd(thread, file, close_on_exec).map(|fd| fd as usize)
}

/// Puts two files at the lowest free descriptors and stores the numbers as `int fds[2]`; neither
/// stays when something fails.
pub fn pair(
    thread: &Thread,
    first: Arc<OpenFile>,
    second: Arc<OpenFile>,
    close_on_exec: bool,
    fds: Va,
) -> Result<usize> {
    let first = fd(thread, first, close_on_exec)?;
    let stored = fd(thread, second, close_on_exec).and_then(|second| {
        let stored = thread.mm().write(fds, &[first, second]);
        if stored.is_err() {
            drop(thread.files().remove(second));
        }
        stored
    });
    if stored.is_err() {
        drop(thread.files().remove(first));
    }
    stored.map(|()| 0)
}

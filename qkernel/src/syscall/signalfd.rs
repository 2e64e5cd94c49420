//! signalfd(2).

use alloc::sync::Arc;

use linux_raw_sys::general::{O_CLOEXEC, O_NONBLOCK, O_RDONLY};
use qlib::Va;

use super::install;
use crate::errno::{Errno, Result};
use crate::fs::{Fd, OpenFile};
use crate::ipc::signalfd::SignalFd;
use crate::task::{SigSet, Thread};

/// signalfd(2).
pub fn signalfd(thread: &Arc<Thread>, fd: Fd, mask: Va, size: usize) -> Result<usize> {
    signalfd4(thread, fd, mask, size, 0)
}

/// signalfd4(2).
pub fn signalfd4(thread: &Arc<Thread>, fd: Fd, mask: Va, size: usize, flags: u32) -> Result<usize> {
    if size != 8 || flags & !(O_CLOEXEC | O_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    // SIGKILL and SIGSTOP cannot be taken this way.
    let mask = SigSet(thread.mm().read::<u64>(mask)?).as_mask();
    if fd != -1 {
        let file = thread.files().get(fd)?;
        file.downcast::<SignalFd>().ok_or(Errno::EINVAL)?.set_mask(mask);
        return Ok(fd as usize);
    }
    let signalfd = SignalFd::new(mask, &thread.process);
    install::one(
        thread,
        OpenFile::new(signalfd, O_RDONLY | flags & O_NONBLOCK),
        flags & O_CLOEXEC != 0,
    )
}

//! pipe(2) and eventfd(2).

use alloc::sync::Arc;

use linux_raw_sys::general::{
    EFD_CLOEXEC, EFD_NONBLOCK, EFD_SEMAPHORE, O_CLOEXEC, O_DIRECT, O_NONBLOCK, O_RDWR,
};
use qlib::Va;

use super::install;
use crate::errno::{Errno, Result};
use crate::fs::OpenFile;
use crate::ipc::eventfd::EventFd;
use crate::ipc::pipe;
use crate::task::Thread;

/// pipe(2).
pub fn pipe(thread: &Arc<Thread>, fds: Va) -> Result<usize> {
    pipe2(thread, fds, 0)
}

/// pipe2(2).
pub fn pipe2(thread: &Arc<Thread>, fds: Va, flags: u32) -> Result<usize> {
    if flags & !(O_CLOEXEC | O_NONBLOCK | O_DIRECT) != 0 {
        return Err(Errno::EINVAL);
    }
    let (read, write) = pipe::create(flags);
    install::pair(thread, read, write, flags & O_CLOEXEC != 0, fds)
}

/// eventfd(2).
pub fn eventfd(thread: &Arc<Thread>, initval: u32) -> Result<usize> {
    eventfd2(thread, initval, 0)
}

/// eventfd2(2).
pub fn eventfd2(thread: &Arc<Thread>, initval: u32, flags: u32) -> Result<usize> {
    if flags & !(EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE) != 0 {
        return Err(Errno::EINVAL);
    }
    let eventfd = EventFd::new(u64::from(initval), flags & EFD_SEMAPHORE != 0);
    install::one(
        thread,
        OpenFile::new(eventfd, O_RDWR | flags & O_NONBLOCK),
        flags & EFD_CLOEXEC != 0,
    )
}

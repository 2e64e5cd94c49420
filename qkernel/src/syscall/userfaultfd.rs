//! userfaultfd(2).

use alloc::sync::Arc;

use linux_raw_sys::general::{CAP_SYS_PTRACE, O_CLOEXEC, O_NONBLOCK, UFFD_USER_MODE_ONLY};

use super::install;
use crate::errno::{Errno, Result};
use crate::fs::proc::sys;
use crate::ipc::userfaultfd::UserFaultFd;
use crate::task::Thread;

/// userfaultfd(2).
pub fn userfaultfd(thread: &Arc<Thread>, flags: u32) -> Result<usize> {
    let is_for_user_mode_only = flags & UFFD_USER_MODE_ONLY != 0;
    let is_allowed = is_for_user_mode_only
        || sys::number("vm/unprivileged_userfaultfd", 0) != 0
        || thread.creds().capable(CAP_SYS_PTRACE);
    if !is_allowed {
        return Err(Errno::EPERM);
    }
    if flags & !(UFFD_USER_MODE_ONLY | O_CLOEXEC | O_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    let file = UserFaultFd::open(&thread.mm(), is_for_user_mode_only, flags);
    install::one(thread, file, flags & O_CLOEXEC != 0)
}

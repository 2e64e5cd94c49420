//! Who may look into whom (ptrace(2), "Ptrace access mode checking").

use alloc::sync::Arc;

use linux_raw_sys::general::CAP_SYS_PTRACE;

use super::Thread;
use crate::creds::AccessMode;
use crate::errno::{Errno, Result};

/// EPERM unless `thread` may look into `other` (ptrace(2), "Ptrace access mode checking"): same
/// ids, no more capabilities, dumpable.
pub fn check(thread: &Thread, other: &Thread, mode: AccessMode) -> Result {
    /// SUID_DUMP_USER of prctl(2)'s PR_SET_DUMPABLE.
    const DUMPABLE: u32 = 1;
    if Arc::ptr_eq(&thread.process, &other.process) {
        return Ok(());
    }
    let (own, its) = (thread.creds(), other.creds());
    let dumpable = other.process.traits.lock().dumpable;
    if dumpable == DUMPABLE && own.covers(&its, mode) || own.has_cap(CAP_SYS_PTRACE) {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

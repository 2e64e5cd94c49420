//! Who may look into whom (ptrace(2), "Ptrace access mode checking").

use alloc::sync::Arc;

use linux_raw_sys::general::CAP_SYS_PTRACE;

use super::Thread;
use crate::creds::AccessMode;
use crate::errno::{Errno, Result};
use crate::user_namespace::UserNs;

/// True if its program may be looked into by those with the same rights (PR_SET_DUMPABLE).
pub fn is_dumpable(thread: &Thread) -> bool {
    /// SUID_DUMP_USER of prctl(2)'s PR_SET_DUMPABLE.
    const DUMPABLE: u32 = 1;
    thread.process.traits.lock().dumpable == DUMPABLE
}

/// The user namespace that a thread's program is of ([`Traits::memory_user`]).
///
/// [`Traits::memory_user`]: super::process::Traits::memory_user
pub fn memory_user(thread: &Thread) -> UserNs {
    thread.process.traits.lock().memory_user.clone()
}

/// EPERM unless `thread` may look into `other` (ptrace(2), "Ptrace access mode checking"): same
/// ids and no more capabilities, or CAP_SYS_PTRACE in its user namespace; dumpable, or the same in
/// that which its program began in.
pub fn check(thread: &Thread, other: &Thread, mode: AccessMode) -> Result {
    if Arc::ptr_eq(&thread.process, &other.process) {
        return Ok(());
    }
    let (own, its) = (thread.creds(), other.creds());
    let is_capable = own.capable_in(&its.user, CAP_SYS_PTRACE);
    let may = (is_capable || own.has_ids_of(&its, mode) && own.has_caps_of(&its, mode))
        && (is_dumpable(other) || own.capable_in(&memory_user(other), CAP_SYS_PTRACE));
    // Nobody does through others what landlock(7) forbids.
    if may && own.domain.is_above(&its.domain) { Ok(()) } else { Err(Errno::EPERM) }
}

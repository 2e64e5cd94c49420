//! clone(2), clone3(2), fork(2), vfork(2).

use alloc::sync::Arc;

use linux_raw_sys::general::{
    CLONE_ARGS_SIZE_VER0, CLONE_DETACHED, CLONE_INTO_CGROUP, CLONE_PARENT_SETTID, CLONE_PIDFD,
    CLONE_THREAD,
};
use qlib::Va;

use crate::abi::abi_struct;
use crate::errno::{Errno, Result};
use crate::task::Thread;
use crate::task::clone::{self as make, CloneArgs};

/// clone(2), with the argument order of x86-64.
pub async fn clone(
    thread: &Arc<Thread>,
    flags: u64,
    stack: u64,
    parent_tid: Va,
    child_tid: Va,
    tls: u64,
) -> Result<usize> {
    const SIGNAL_MASK: u64 = 0xff;
    // The upper half is clone3's; Linux drops it here.
    let bits = flags & 0xffff_ffff & !SIGNAL_MASK;
    let pidfd = if bits & u64::from(CLONE_PIDFD) != 0 { parent_tid } else { Va(0) };
    if pidfd.0 != 0 && bits & u64::from(CLONE_PARENT_SETTID | CLONE_DETACHED) != 0 {
        return Err(Errno::EINVAL);
    }
    let exit_signal = (flags & SIGNAL_MASK) as u32;
    make::clone(
        thread,
        CloneArgs { flags: bits, stack, exit_signal, parent_tid, child_tid, tls, pidfd },
    )
    .await
}

abi_struct! {
    /// struct clone_args.
    pub struct RawCloneArgs {
        pub flags: u64, pub pidfd: u64, pub child_tid: u64, pub parent_tid: u64,
        pub exit_signal: u64, pub stack: u64, pub stack_size: u64, pub tls: u64, pub set_tid: u64,
        pub set_tid_size: u64, pub cgroup: u64,
    }
}

/// clone3(2).
pub async fn clone3(thread: &Arc<Thread>, cl_args: Va, size: usize) -> Result<usize> {
    let least = CLONE_ARGS_SIZE_VER0 as usize;
    let raw: RawCloneArgs = thread.mm().read_sized(cl_args, size, least)?;
    if raw.flags & CLONE_INTO_CGROUP != 0
        || raw.flags & 0xff != 0
        || raw.flags & u64::from(CLONE_DETACHED) != 0
    {
        return Err(Errno::EINVAL);
    }
    if raw.set_tid_size != 0 || raw.set_tid != 0 {
        // Only for checkpoint and restore, with CAP_CHECKPOINT_RESTORE.
        return Err(if raw.set_tid_size > 32 || raw.set_tid == 0 {
            Errno::EINVAL
        } else {
            Errno::EPERM
        });
    }
    if (raw.stack == 0) != (raw.stack_size == 0)
        || raw.exit_signal > u64::from(crate::task::signal::SIGNALS)
    {
        return Err(Errno::EINVAL);
    }
    let exit_signal = raw.exit_signal as u32;
    if raw.flags & u64::from(CLONE_THREAD) != 0 && exit_signal != 0 {
        return Err(Errno::EINVAL);
    }
    let stack = raw.stack.checked_add(raw.stack_size).ok_or(Errno::EINVAL)?;
    let args = CloneArgs {
        flags: raw.flags,
        stack,
        exit_signal,
        parent_tid: Va(raw.parent_tid),
        child_tid: Va(raw.child_tid),
        tls: raw.tls,
        pidfd: Va(raw.pidfd),
    };
    make::clone(thread, args).await
}

/// fork(2).
pub async fn fork(thread: &Arc<Thread>) -> Result<usize> {
    make::fork(thread).await
}

/// vfork(2).
pub async fn vfork(thread: &Arc<Thread>) -> Result<usize> {
    make::vfork(thread).await
}

//! rseq(2): see [`crate::task::rseq`].

use alloc::sync::Arc;

use qlib::Va;

use crate::arch;
use crate::errno::{Errno, Result};
use crate::task::{Thread, rseq as restartable};

/// RSEQ_FLAG_UNREGISTER.
const UNREGISTER: u32 = 1;

/// rseq(2). ENOSYS where the host schedules user threads: a restartable sequence must be aborted
/// when its thread is preempted or migrated, which only a scheduler sees. Two threads that ran at
/// once and believed to be alone on their CPU would corrupt each other's data. The C library and
/// allocators do without where the call is missing.
pub fn rseq(thread: &Arc<Thread>, rseq: Va, rseq_len: u32, flags: u32, sig: u32) -> Result<usize> {
    let cpu = arch::cpu().ok_or(Errno::ENOSYS)?;
    match flags {
        0 => restartable::register(thread, rseq, rseq_len, sig, cpu)?,
        UNREGISTER => restartable::unregister(thread, rseq, rseq_len, sig)?,
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

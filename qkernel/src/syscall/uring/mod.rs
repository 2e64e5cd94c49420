//! io_uring_setup(2), io_uring_enter(2), io_uring_register(2).
//!
//! A request is served by the functions of the system calls, on behalf of a stand-in for the thread
//! that submitted it ([`crate::task::worker`]). Its future is polled once while it is submitted: so
//! what need not wait is answered at once. What must goes on as a task of its own.

mod buffers;
mod cancel;
mod files;
mod job;
mod net;
mod ops;
mod poll;
mod prepare;
mod register;
mod rw;
mod serve;
mod submit;
mod table;
mod timeout;

use alloc::sync::Arc;

use linux_raw_sys::general::{O_CLOEXEC, O_RDWR};
use qlib::Va;
pub use register::io_uring_register;

use super::install;
use super::poll::{reset_mask, set_mask};
use crate::abi::TimeSpec;
use crate::account;
use crate::errno::{Errno, Result};
use crate::fs::{Fd, OpenFile};
use crate::ipc::uring::Ring;
use crate::ipc::uring::abi::{self, GetEvents, Params};
use crate::task::Thread;
use crate::time;
use crate::wait::{PollMask, block_on};

/// The most requests that a ring has room for, and the most answers.
const MOST_ENTRIES: u32 = 32768;
const MOST_ANSWERS: u32 = 2 * MOST_ENTRIES;

const SETUP_FLAGS: u32 = abi::SETUP_CQSIZE
    | abi::SETUP_CLAMP
    | abi::SETUP_R_DISABLED
    | abi::SETUP_SUBMIT_ALL
    | abi::SETUP_COOP_TASKRUN
    | abi::SETUP_TASKRUN_FLAG
    | abi::SETUP_SINGLE_ISSUER
    | abi::SETUP_DEFER_TASKRUN
    | abi::SETUP_NO_SQARRAY;

const FEATURES: u32 = abi::FEAT_SINGLE_MMAP
    | abi::FEAT_NODROP
    | abi::FEAT_SUBMIT_STABLE
    | abi::FEAT_RW_CUR_POS
    | abi::FEAT_CUR_PERSONALITY
    | abi::FEAT_FAST_POLL
    | abi::FEAT_POLL_32BITS
    | abi::FEAT_EXT_ARG
    | abi::FEAT_NATIVE_WORKERS
    | abi::FEAT_CQE_SKIP
    | abi::FEAT_LINKED_FILE;

/// How many entries a ring gets that is to have room for `wanted`. EINVAL.
fn size_of_ring(wanted: u32, most: u32, clamps: bool) -> Result<u32> {
    match wanted {
        0 => Err(Errno::EINVAL),
        _ if wanted > most && clamps => Ok(most),
        _ if wanted > most => Err(Errno::EINVAL),
        _ => Ok(wanted.next_power_of_two()),
    }
}

/// EINVAL, or EPERM for a ring that the kernel would watch by itself, as where that is forbidden.
fn check_flags(flags: u32) -> Result {
    let tasks = abi::SETUP_COOP_TASKRUN | abi::SETUP_DEFER_TASKRUN;
    if flags & abi::SETUP_SQPOLL != 0 {
        return Err(Errno::EPERM);
    }
    if flags & !SETUP_FLAGS != 0
        || flags & abi::SETUP_TASKRUN_FLAG != 0 && flags & tasks == 0
        || flags & abi::SETUP_DEFER_TASKRUN != 0 && flags & abi::SETUP_SINGLE_ISSUER == 0
    {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// io_uring_setup(2).
pub fn io_uring_setup(thread: &Arc<Thread>, entries: u32, params: Va) -> Result<usize> {
    let mut p: Params = thread.mm().read(params)?;
    if p.reserved != [0; 3] {
        return Err(Errno::EINVAL);
    }
    check_flags(p.flags)?;
    let clamps = p.flags & abi::SETUP_CLAMP != 0;
    p.sq_entries = size_of_ring(entries, MOST_ENTRIES, clamps)?;
    p.cq_entries = match p.flags & abi::SETUP_CQSIZE {
        0 => 2 * p.sq_entries,
        _ => size_of_ring(p.cq_entries, MOST_ANSWERS, clamps)?,
    };
    if p.cq_entries < p.sq_entries {
        return Err(Errno::EINVAL);
    }
    account::ask(size_of::<Ring>() as u64)?;
    let ring = Ring::new(p.sq_entries, p.cq_entries, p.flags)?;
    if p.flags & abi::SETUP_SINGLE_ISSUER != 0 && ring.is_enabled() {
        ring.set_issuer(thread.tid());
    }
    (p.sq, p.cq) = ring.memory.offsets();
    p.features = FEATURES;
    thread.mm().write(params, &p)?;
    let file = OpenFile::new(ring, O_RDWR | O_CLOEXEC);
    install::one(thread, file, true)
}

/// The open ring behind a descriptor. EBADF, EOPNOTSUPP.
fn ring_of(thread: &Thread, fd: Fd) -> Result<(Arc<OpenFile>, Arc<Ring>)> {
    let file = thread.files().opened(fd)?;
    let ring = file.downcast::<Ring>().ok_or(Errno::EOPNOTSUPP)?.handle()?;
    Ok((file, ring))
}

/// For how long, and with which signals blocked, answers are waited for.
#[derive(Default)]
struct Wait {
    mask: Va,
    mask_size: usize,
    deadline_ns: Option<u64>,
}

impl Wait {
    fn read(thread: &Thread, flags: u32, argument: Va, size: usize) -> Result<Wait> {
        if flags & abi::ENTER_EXT_ARG == 0 {
            return Ok(Wait { mask: argument, mask_size: size, deadline_ns: None });
        }
        if size != size_of::<GetEvents>() {
            return Err(Errno::EINVAL);
        }
        let GetEvents { mask, mask_size, pad, time } = thread.mm().read(argument)?;
        if pad != 0 {
            return Err(Errno::EINVAL);
        }
        let deadline_ns = match time {
            0 => None,
            time => Some(time::deadline_after(thread.mm().read::<TimeSpec>(Va(time))?.to_ns()?)),
        };
        Ok(Wait { mask: Va(mask), mask_size: mask_size as usize, deadline_ns })
    }
}

/// io_uring_enter(2).
pub async fn io_uring_enter(
    thread: &Arc<Thread>,
    fd: Fd,
    to_submit: u32,
    min_complete: u32,
    flags: u32,
    argument: Va,
    size: usize,
) -> Result<usize> {
    const KNOWN: u32 =
        abi::ENTER_GETEVENTS | abi::ENTER_SQ_WAKEUP | abi::ENTER_SQ_WAIT | abi::ENTER_EXT_ARG;
    if flags & !KNOWN != 0 {
        return Err(Errno::EINVAL);
    }
    let (_file, ring) = ring_of(thread, fd)?;
    if !ring.is_enabled() {
        return Err(Errno::EBADFD);
    }
    ring.flush();
    let mut submitted = 0;
    if to_submit > 0 {
        ring.check_issuer(thread.tid())?;
        submitted = submit::submit(thread, &ring, to_submit).await?;
        if submitted != to_submit as usize {
            return Ok(submitted);
        }
    }
    if flags & abi::ENTER_GETEVENTS != 0 {
        let waited = match Wait::read(thread, flags, argument, size) {
            Ok(wait) => wait_for(thread, &ring, min_complete, wait).await,
            Err(error) => Err(error),
        };
        if submitted == 0 {
            waited?;
        }
    }
    Ok(submitted)
}

async fn wait_for(thread: &Arc<Thread>, ring: &Ring, least: u32, wait: Wait) -> Result {
    if ring.flags & abi::SETUP_DEFER_TASKRUN != 0 {
        ring.check_issuer(thread.tid())?;
    }
    let least = least.min(ring.memory.cq_entries());
    let attempt = || {
        ring.flush();
        if ring.ready() >= least { Ok(()) } else { Err(Errno::EAGAIN) }
    };
    set_mask(thread, wait.mask, wait.mask_size)?;
    let queues = [ring.answered_queue()];
    let result = block_on(thread, &queues, PollMask::READ, wait.deadline_ns, attempt).await;
    let result = match result {
        Err(Errno::ETIMEDOUT) => Err(Errno::ETIME),
        Err(Errno::ERESTARTSYS) => Err(Errno::EINTR),
        result => result,
    };
    reset_mask(thread, wait.mask, &result);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_as_large_as_linux_makes_them() {
        assert_eq!(size_of_ring(0, 8, true), Err(Errno::EINVAL));
        assert_eq!(size_of_ring(5, 8, false), Ok(8));
        assert_eq!(size_of_ring(9, 8, false), Err(Errno::EINVAL));
        assert_eq!(size_of_ring(u32::MAX, 8, true), Ok(8));
    }

    #[test]
    fn flags_that_contradict_each_other_are_refused() {
        assert_eq!(check_flags(abi::SETUP_DEFER_TASKRUN), Err(Errno::EINVAL));
        assert_eq!(check_flags(abi::SETUP_DEFER_TASKRUN | abi::SETUP_SINGLE_ISSUER), Ok(()));
        assert_eq!(check_flags(abi::SETUP_TASKRUN_FLAG), Err(Errno::EINVAL));
        assert_eq!(check_flags(abi::SETUP_SQPOLL), Err(Errno::EPERM));
        assert_eq!(check_flags(1 << 31), Err(Errno::EINVAL));
    }
}

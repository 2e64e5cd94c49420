//! IORING_OP_TIMEOUT, TIMEOUT_REMOVE and LINK_TIMEOUT.

use super::job::{Done, Job, Prepared};
use crate::errno::{Errno, Result};
use crate::ipc::uring::abi::{
    LINK_TIMEOUT_UPDATE, OP_LINK_TIMEOUT, OP_TIMEOUT, TIMEOUT_ABS, TIMEOUT_BOOTTIME,
    TIMEOUT_ETIME_SUCCESS, TIMEOUT_REALTIME, TIMEOUT_UPDATE,
};
use crate::ipc::uring::request::Request;
use crate::time::{self, Clock};
use crate::wait::{PollMask, WaitQueue, block_on, notified};

/// When a time of a request is over, in nanoseconds of CLOCK_MONOTONIC.
fn deadline(flags: u32, ns: u64) -> u64 {
    let clock = match flags {
        _ if flags & TIMEOUT_REALTIME != 0 => Clock::Realtime,
        _ if flags & TIMEOUT_BOOTTIME != 0 => Clock::Boottime,
        _ => Clock::Monotonic,
    };
    if flags & TIMEOUT_ABS != 0 { clock.to_monotonic_ns(ns) } else { time::deadline_after(ns) }
}

/// Why a timeout was notified.
enum Why {
    Changed,
    Counted,
}

/// IORING_OP_TIMEOUT.
pub(super) async fn wait(job: Job) -> Result<Done> {
    let sqe = *job.sqe();
    let Prepared::Time(ns) = job.prepared else { return Err(Errno::EINVAL) };
    job.request.terms.lock().deadline_ns = deadline(sqe.op_flags, ns);
    // After so many answers it is over too.
    let count = match sqe.offset {
        0 => None,
        count => Some(job.ring.answered().saturating_add(count)),
    };
    let mut queues: alloc::vec::Vec<&WaitQueue> = alloc::vec![&job.request.changed];
    queues.extend(count.map(|_| job.ring.answered_queue()));
    loop {
        let terms = *job.request.terms.lock();
        let attempt = || {
            if job.request.terms.lock().changes != terms.changes {
                return Ok(Why::Changed);
            }
            let is_counted = count.is_some_and(|count| job.ring.answered() >= count);
            if is_counted { Ok(Why::Counted) } else { Err(Errno::EAGAIN) }
        };
        let until = Some(terms.deadline_ns);
        match block_on(&job.worker, &queues, PollMask::READ, until, attempt).await {
            Ok(Why::Changed) => {}
            Ok(Why::Counted) => return Ok(Done::default()),
            Err(Errno::ETIMEDOUT) => {
                let failed = sqe.op_flags & TIMEOUT_ETIME_SUCCESS == 0;
                return Ok(Done { failed, ..Done::error(Errno::ETIME) });
            }
            Err(error) => return Err(error),
        }
    }
}

/// Waits until the time of a request that limits another one is over; false: it was cancelled.
pub(super) async fn is_over(limit: &Request, ns: u64) -> bool {
    limit.terms.lock().deadline_ns = deadline(limit.sqe.op_flags, ns);
    loop {
        let deadline_ns = limit.terms.lock().deadline_ns;
        match limit.is_cancelled() {
            true => return false,
            false if time::monotonic_ns() >= deadline_ns => return true,
            false => notified(&limit.changed, PollMask::IN, Some(deadline_ns)).await,
        }
    }
}

/// IORING_OP_TIMEOUT_REMOVE, and its updates.
pub(super) fn remove(job: &Job) -> Result<Done> {
    let sqe = job.sqe();
    let opcode = match sqe.op_flags & LINK_TIMEOUT_UPDATE {
        0 => OP_TIMEOUT,
        _ => OP_LINK_TIMEOUT,
    };
    let is_it = |request: &Request| {
        request.sqe.opcode == opcode
            && request.terms.lock().user_data == sqe.address
            && request.is_under_way()
    };
    let found = job.ring.requests.find(is_it).ok_or(Errno::ENOENT)?;
    match job.prepared {
        Prepared::Time(ns) if sqe.op_flags & (TIMEOUT_UPDATE | LINK_TIMEOUT_UPDATE) != 0 => {
            found.change(|terms| terms.deadline_ns = deadline(sqe.op_flags, ns));
        }
        _ => found.cancel(),
    }
    Ok(Done::default())
}

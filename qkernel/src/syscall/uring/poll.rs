//! IORING_OP_POLL_ADD and POLL_REMOVE.

use alloc::sync::Arc;

use super::job::{Done, Job};
use crate::errno::{Errno, Result};
use crate::executor;
use crate::fs::OpenFile;
use crate::ipc::uring::Ring;
use crate::ipc::uring::abi::{
    OP_POLL_ADD, POLL_ADD_MULTI, POLL_UPDATE_EVENTS, POLL_UPDATE_USER_DATA,
};
use crate::ipc::uring::request::Request;
use crate::wait::{PollMask, Registered, Sleeper, Turn, block_on};

fn wanted(request: &Request) -> PollMask {
    PollMask::from_bits_truncate(request.terms.lock().events) | PollMask::ALWAYS
}

fn found(file: &OpenFile, request: &Request) -> PollMask {
    file.poll() & wanted(request)
}

/// IORING_OP_POLL_ADD.
pub(super) async fn add(job: Job) -> Result<Done> {
    let file = job.file()?;
    job.request.terms.lock().events = job.sqe().op_flags;
    let Some(queue) = file.ops.queue() else {
        // It is always ready, or never.
        let mask = found(&file, &job.request);
        return if mask.is_empty() { Err(Errno::EINVAL) } else { Ok(done(mask)) };
    };
    // A ring that watches itself would have no end of it.
    if job.sqe().length & POLL_ADD_MULTI != 0 && file.downcast::<Ring>().is_none() {
        return many(&job, &file).await;
    }
    let attempt = || match found(&file, &job.request) {
        mask if mask.is_empty() => Err(Errno::EAGAIN),
        mask => Ok(done(mask)),
    };
    let queues = [queue, &job.request.changed];
    block_on(&job.worker, &queues, PollMask::all(), None, attempt).await
}

fn done(mask: PollMask) -> Done {
    Done::with(mask.bits() as usize)
}

/// Answers each time that something happens, until it is cancelled, or nobody takes the answers.
async fn many(job: &Job, file: &Arc<OpenFile>) -> Result<Done> {
    let wakeup = job.worker.wakeup();
    let queue = file.ops.queue().ok_or(Errno::EINVAL)?;
    loop {
        let changes = job.request.terms.lock().changes;
        let mut registered = Registered::new(2)?;
        for (queue, mask) in [(queue, wanted(&job.request)), (&job.request.changed, PollMask::IN)] {
            registered.add(queue, queue.try_register(mask, Turn::Always, wakeup.clone())?);
        }
        while job.request.terms.lock().changes == changes {
            wakeup.clear();
            if job.worker.is_dying() {
                return Err(Errno::ECANCELED);
            }
            let mask = found(file, &job.request);
            if !mask.is_empty() {
                if job.ring.has_overflow() {
                    return Ok(done(mask));
                }
                job.answer_more(mask.bits() as i32, 0);
                executor::yield_now().await;
            }
            wakeup.wait().await;
        }
    }
}

/// IORING_OP_POLL_REMOVE, and its updates.
pub(super) fn remove(job: &Job) -> Result<Done> {
    let sqe = job.sqe();
    let is_it = |request: &Request| {
        request.sqe.opcode == OP_POLL_ADD
            && request.terms.lock().user_data == sqe.address
            && request.is_under_way()
    };
    let request = job.ring.requests.find(is_it).ok_or(Errno::ENOENT)?;
    if sqe.length & (POLL_UPDATE_EVENTS | POLL_UPDATE_USER_DATA) == 0 {
        request.cancel();
        return Ok(Done::default());
    }
    request.change(|terms| {
        if sqe.length & POLL_UPDATE_EVENTS != 0 {
            terms.events = sqe.op_flags;
        }
        if sqe.length & POLL_UPDATE_USER_DATA != 0 {
            terms.user_data = sqe.offset;
        }
    });
    Ok(Done::default())
}

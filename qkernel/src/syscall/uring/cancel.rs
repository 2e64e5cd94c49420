//! IORING_OP_ASYNC_CANCEL.

use alloc::sync::Arc;

use super::job::{Done, Job};
use crate::errno::{Errno, Result};
use crate::ipc::uring::abi::{CANCEL_ALL, CANCEL_ANY, CANCEL_FD, CANCEL_FD_FIXED, SQE_FIXED_FILE};
use crate::ipc::uring::request::Request;

/// Cancels the first request that is meant, or all: 0, or how many.
pub(super) fn cancel(job: &Job) -> Result<Done> {
    let sqe = job.sqe();
    let flags = sqe.op_flags;
    let file = match flags & CANCEL_FD {
        0 => None,
        _ => {
            let is_registered = flags & CANCEL_FD_FIXED != 0 || sqe.flags & SQE_FIXED_FILE != 0;
            let file = match is_registered {
                true => job.ring.registered_file(sqe.fd)?,
                false => job.worker.files().get(sqe.fd)?,
            };
            Some(Arc::as_ptr(&file) as usize)
        }
    };
    let is_meant = |request: &Request| {
        let is_named = match file {
            Some(file) => request.is_about(file),
            None => flags & CANCEL_ANY != 0 || request.terms.lock().user_data == sqe.address,
        };
        is_named && request.id != job.request.id && request.is_under_way()
    };
    if flags & (CANCEL_ALL | CANCEL_ANY) != 0 {
        return Ok(Done::with(job.ring.requests.cancel(is_meant)));
    }
    let found = job.ring.requests.find(is_meant).ok_or(Errno::ENOENT)?;
    found.cancel();
    Ok(Done::default())
}

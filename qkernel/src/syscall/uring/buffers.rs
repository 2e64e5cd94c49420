//! IORING_OP_PROVIDE_BUFFERS and REMOVE_BUFFERS, and requests that choose a buffer when there is
//! something to put into it (IOSQE_BUFFER_SELECT).

use alloc::sync::Arc;

use qlib::Va;

use super::job::{Done, Job, Prepared};
use crate::errno::{Errno, Result};
use crate::fs::OpenFile;
use crate::io::IoBuffer;
use crate::ipc::uring::abi::{CQE_BUFFER_SHIFT, CQE_F_BUFFER};
use crate::ipc::uring::buffers::Provided;
use crate::syscall::rw;
use crate::wait::{PollMask, Registered, Signal, Sleeper, Turn};

/// IORING_OP_PROVIDE_BUFFERS.
pub(super) fn provide(job: &Job) -> Result<Done> {
    let sqe = job.sqe();
    let mut buffers = job.ring.buffers.lock();
    for index in 0..sqe.fd as u64 {
        let address = Va(sqe.address + index * u64::from(sqe.length));
        let number = (sqe.offset + index) as u16;
        let buffer = Provided { address, length: sqe.length as usize, number };
        match buffers.provide(sqe.buffer, buffer) {
            Err(error) if index == 0 => return Err(error),
            Err(_) => break,
            Ok(()) => {}
        }
    }
    Ok(Done::default())
}

/// IORING_OP_REMOVE_BUFFERS.
pub(super) fn remove(job: &Job) -> Result<Done> {
    let sqe = job.sqe();
    Ok(Done::with(job.ring.buffers.lock().remove(sqe.buffer, sqe.fd as usize)?))
}

/// A request that chooses a buffer each time that it is attempted.
pub(super) struct Choice<'a> {
    job: &'a Job,
    file: &'a OpenFile,
    wakeup: Arc<Signal>,
    registered: Registered<'a>,
    is_registered: bool,
}

impl<'a> Choice<'a> {
    pub(super) fn of(job: &'a Job, file: &'a OpenFile) -> Result<Self> {
        let (wakeup, registered) = (job.worker.wakeup(), Registered::new(1)?);
        Ok(Choice { job, file, wakeup, registered, is_registered: false })
    }

    /// Takes a buffer for an attempt that does not wait. ENOBUFS.
    pub(super) fn take(&self) -> Result<(Provided, IoBuffer<'static>)> {
        self.wakeup.clear();
        let most = match self.job.prepared {
            Prepared::Most(most) => most,
            _ => self.job.sqe().length as usize,
        };
        let group = self.job.sqe().buffer;
        let chosen = self.job.ring.buffers.lock().take(group)?;
        let length = if most == 0 { chosen.length } else { chosen.length.min(most) };
        match rw::single(&self.job.worker, chosen.address, length) {
            Ok(buffer) => Ok((chosen, buffer)),
            Err(error) => {
                self.job.ring.buffers.lock().give_back(group, chosen);
                Err(error)
            }
        }
    }

    /// What came of the request, after an attempt that has put so many bytes into the buffer;
    /// `None` if another one is to be made, which may go otherwise: not if it `is_over`.
    pub(super) async fn settle(
        &mut self,
        chosen: Provided,
        result: Result<usize>,
        is_over: bool,
    ) -> Result<Option<Done>> {
        let Self { job, file, .. } = *self;
        if let Ok(bytes) = result {
            let flags = CQE_F_BUFFER | u32::from(chosen.number) << CQE_BUFFER_SHIFT;
            return Ok(Some(Done { flags, ..Done::with(bytes) }));
        }
        job.ring.buffers.lock().give_back(job.sqe().buffer, chosen);
        match (result, file.ops.queue()) {
            (Err(error), _) if is_over => return Err(error),
            (Err(Errno::EAGAIN), Some(_)) if self.is_registered => {
                if job.worker.is_dying() {
                    return Err(Errno::ERESTARTSYS);
                }
                self.wakeup.wait().await;
            }
            (Err(Errno::EAGAIN), Some(queue)) => {
                let wakeup = self.wakeup.clone();
                let id = queue.try_register(PollMask::READ, Turn::Always, wakeup)?;
                self.registered.add(queue, id);
                self.is_registered = true;
            }
            (Err(error), _) => return Err(error),
            (Ok(_), _) => {}
        }
        Ok(None)
    }
}

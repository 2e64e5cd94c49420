//! Requests about names, descriptors and memory.

use linux_raw_sys::general::{MADV_DONTNEED, MADV_DONTNEED_LOCKED, MADV_FREE, O_CLOEXEC};
use qlib::Va;

use super::job::{Done, Job};
use super::table;
use crate::errno::{Errno, Result};
use crate::fs::open::OpenHow;
use crate::ipc::uring::Ring;
use crate::ipc::uring::abi::{Cqe, OP_OPENAT};
use crate::syscall::{dir, epoll, link, memory, open, stat};
use crate::task::run;

/// IORING_OP_OPENAT and OPENAT2.
pub(super) async fn open_at(job: Job) -> Result<Done> {
    let sqe = *job.sqe();
    let how: OpenHow = match sqe.opcode {
        OP_OPENAT => open::plain_how(sqe.op_flags, sqe.length),
        _ => open::read_how(&job.worker, Va(sqe.offset), sqe.length as usize)?,
    };
    let closes = how.flags & O_CLOEXEC != 0;
    if sqe.file_index != 0 && closes {
        return Err(Errno::EINVAL);
    }
    let file = open::opened(&job.worker, sqe.fd, job.address(), &how).await?;
    job.give(file, closes)
}

/// IORING_OP_CLOSE.
pub(super) fn close(job: &Job) -> Result<Done> {
    let sqe = job.sqe();
    if sqe.file_index != 0 {
        table::set_file(&job.ring, sqe.file_index as u32 - 1, None)?;
        return Ok(Done::default());
    }
    if job.worker.files().get(sqe.fd)?.downcast::<Ring>().is_some() {
        return Err(Errno::EBADF);
    }
    open::close(&job.worker, sqe.fd).map(Done::with)
}

/// IORING_OP_STATX.
pub(super) fn statx(job: &Job) -> Result<Done> {
    let sqe = job.sqe();
    let (flags, mask, out) = (sqe.op_flags, sqe.length, Va(sqe.offset));
    stat::statx(&job.worker, sqe.fd, job.address(), flags, mask, out).map(Done::with)
}

/// IORING_OP_UNLINKAT.
pub(super) fn unlink_at(job: &Job) -> Result<Done> {
    let sqe = job.sqe();
    if sqe.offset != 0 || sqe.length != 0 || sqe.file_index != 0 {
        return Err(Errno::EINVAL);
    }
    link::unlinkat(&job.worker, sqe.fd, job.address(), sqe.op_flags).map(Done::with)
}

/// IORING_OP_RENAMEAT.
pub(super) fn rename_at(job: &Job) -> Result<Done> {
    let sqe = job.sqe();
    let (old, new) = (job.address(), Va(sqe.offset));
    let (new_dir, flags) = (sqe.length as i32, sqe.op_flags);
    link::renameat2(&job.worker, sqe.fd, old, new_dir, new, flags).map(Done::with)
}

/// IORING_OP_LINKAT.
pub(super) fn link_at(job: &Job) -> Result<Done> {
    let sqe = job.sqe();
    let (old, new) = (job.address(), Va(sqe.offset));
    let (new_dir, flags) = (sqe.length as i32, sqe.op_flags);
    link::linkat(&job.worker, sqe.fd, old, new_dir, new, flags).map(Done::with)
}

/// IORING_OP_SYMLINKAT.
pub(super) fn symlink_at(job: &Job) -> Result<Done> {
    let sqe = job.sqe();
    if sqe.length != 0 || sqe.op_flags != 0 {
        return Err(Errno::EINVAL);
    }
    link::symlinkat(&job.worker, job.address(), sqe.fd, Va(sqe.offset)).map(Done::with)
}

/// IORING_OP_MKDIRAT.
pub(super) fn make_dir_at(job: &Job) -> Result<Done> {
    let sqe = job.sqe();
    if sqe.offset != 0 || sqe.op_flags != 0 {
        return Err(Errno::EINVAL);
    }
    dir::mkdirat(&job.worker, sqe.fd, job.address(), sqe.length).map(Done::with)
}

/// IORING_OP_EPOLL_CTL.
pub(super) fn epoll_ctl(job: &Job) -> Result<Done> {
    let sqe = job.sqe();
    if sqe.buffer != 0 || sqe.file_index != 0 {
        return Err(Errno::EINVAL);
    }
    let (op, fd) = (sqe.length, sqe.offset as i32);
    epoll::epoll_ctl(&job.worker, sqe.fd, op, fd, job.address()).map(Done::with)
}

/// IORING_OP_MADVISE. What takes pages away does so while no thread is in user mode.
pub(super) async fn advise_memory(job: Job) -> Result<Done> {
    let sqe = *job.sqe();
    if sqe.buffer != 0 || sqe.offset != 0 || sqe.file_index != 0 {
        return Err(Errno::EINVAL);
    }
    let (length, advice) = (u64::from(sqe.length), sqe.op_flags);
    let mm = job.worker.mm();
    let takes = matches!(advice, MADV_DONTNEED | MADV_DONTNEED_LOCKED | MADV_FREE);
    let halted = if takes { Some(mm.halt_all().await) } else { None };
    let result = memory::madvise(&job.worker, job.address(), length, advice);
    if halted.is_some() && mm.has_ops() {
        run::may_sync(&job.worker).await;
        mm.carry_out_ops().await;
    }
    drop(halted);
    result.map(Done::with)
}

/// IORING_OP_FILES_UPDATE.
pub(super) fn update_files(job: &Job) -> Result<Done> {
    let sqe = job.sqe();
    if sqe.op_flags != 0 || sqe.file_index != 0 {
        return Err(Errno::EINVAL);
    }
    let first = u32::try_from(sqe.offset).map_err(|_| Errno::EINVAL)?;
    table::update_files(&job.worker, &job.ring, first, job.address(), sqe.length).map(Done::with)
}

/// IORING_OP_MSG_RING: an answer in another ring.
pub(super) fn message(job: &Job) -> Result<Done> {
    let (file, sqe) = (job.file()?, job.sqe());
    let ring = file.downcast::<Ring>().ok_or(Errno::EBADFD)?;
    // A command, and flags.
    if sqe.address != 0 || sqe.op_flags != 0 || sqe.file_index != 0 {
        return Err(Errno::EINVAL);
    }
    if !ring.is_enabled() {
        return Err(Errno::EBADFD);
    }
    if ring.has_overflow() {
        return Err(Errno::EOVERFLOW);
    }
    let result = sqe.length as i32;
    ring.answer(Cqe { user_data: sqe.offset, result, flags: 0 }, true, true);
    Ok(Done::default())
}

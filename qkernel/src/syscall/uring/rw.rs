//! Requests that read, write, and write to disks.

use alloc::sync::Arc;

use linux_raw_sys::general::{O_DSYNC, O_SYNC, RWF_APPEND, RWF_DSYNC, RWF_NOWAIT, RWF_SYNC};

use super::buffers::Choice;
use super::job::{Done, Job};
use crate::errno::{Errno, Result};
use crate::fs::{OpenFile, disk};
use crate::io::IoBuffer;
use crate::ipc::uring::abi::{FSYNC_DATASYNC, SPLICE_FD_IN_FIXED, SQE_BUFFER_SELECT};
use crate::syscall::sendfile::{self, Offset};
use crate::syscall::transfer::{
    Position, Read, Transfer, Write, Writing, has_read, read_once, whenever_ready,
};
use crate::syscall::{attr, rw, sync};
use crate::task::oom;
use crate::wait::PollMask;

/// Where a request reads or writes: what has no positions has none here either.
fn position(job: &Job, file: &OpenFile) -> Result<Position> {
    let offset = job.sqe().offset as i64;
    if offset == -1 || !file.ops.is_seekable() {
        return Ok(Position::Current);
    }
    Ok(Position::At(u64::try_from(offset).map_err(|_| Errno::EINVAL)?))
}

/// IORING_OP_READ, READV and READ_FIXED.
pub(super) async fn read(mut job: Job) -> Result<Done> {
    let file = job.file()?;
    let flags = job.sqe().op_flags;
    if !file.is_readable() {
        return Err(Errno::EBADF);
    }
    rw::check_flags(&file, flags)?;
    let no_wait = flags & RWF_NOWAIT != 0;
    let position = position(&job, &file)?;
    if job.sqe().flags & SQE_BUFFER_SELECT != 0 {
        return read_into_choice(&job, &file, position, no_wait).await;
    }
    let mut buffer = job.take_buffer()?;
    let wanted = buffer.remaining();
    let bytes = match file.ops.queue() {
        Some(_) if !no_wait => {
            let attempt = || once(&file, &mut buffer, position);
            whenever_ready(&job.worker, &file, PollMask::READ, attempt).await?
        }
        _ => plain(&job, file, buffer, position, no_wait).await?,
    };
    Ok(Done::transferred(bytes, wanted))
}

async fn read_into_choice(
    job: &Job,
    file: &Arc<OpenFile>,
    position: Position,
    no_wait: bool,
) -> Result<Done> {
    let mut choice = Choice::of(job, file)?;
    loop {
        let (chosen, mut buffer) = choice.take()?;
        let result = match file.ops.queue() {
            Some(_) => loop {
                match once(file, &mut buffer, position) {
                    Err(Errno::ERESTARTNOMEM) if oom::copy_may_go_on(&job.worker).await => {}
                    result => break result,
                }
            },
            None => plain(job, file.clone(), buffer, position, no_wait).await,
        };
        let is_over = no_wait && result == Err(Errno::EAGAIN);
        if let Some(done) = choice.settle(chosen, result, is_over).await? {
            return Ok(done);
        }
    }
}

fn once(file: &OpenFile, buffer: &mut IoBuffer<'_>, position: Position) -> Result<usize> {
    let found = read_once(file, buffer, position)?;
    Ok(has_read(file, position, found.bytes))
}

async fn plain(
    job: &Job,
    file: Arc<OpenFile>,
    buffer: IoBuffer<'static>,
    position: Position,
    no_wait: bool,
) -> Result<usize> {
    let transfer = Transfer { position, no_wait, ..Transfer::new(&job.worker, file, buffer) };
    Read(transfer).complete().await
}

/// IORING_OP_WRITE, WRITEV and WRITE_FIXED.
pub(super) async fn write(mut job: Job) -> Result<Done> {
    let file = job.file()?;
    let flags = job.sqe().op_flags;
    if !file.is_writable() {
        return Err(Errno::EBADF);
    }
    rw::check_flags(&file, flags)?;
    let (no_wait, appends) = (flags & RWF_NOWAIT != 0, flags & RWF_APPEND != 0);
    let mut position = position(&job, &file)?;
    let mut buffer = job.take_buffer()?;
    let wanted = buffer.remaining();
    let worker = &job.worker;
    if file.ops.queue().is_some() && !no_wait {
        // What there is room for, as of a file that does not block.
        let writing = Writing::begin(worker, &file, &mut buffer, position, true, appends)?;
        let attempt = || writing.attempt(&file, &mut buffer);
        let result = whenever_ready(worker, &file, PollMask::WRITE, attempt).await;
        let bytes = writing.finish(worker, &file, &buffer, result)?;
        return Ok(Done::transferred(bytes, wanted));
    }
    if appends && file.ops.shares_position() && !file.is_append() {
        // The host's position goes where the host's own flags say.
        position = Position::At(file.attributes()?.size);
    }
    let transfer =
        Transfer { position, no_wait, appends, ..Transfer::new(worker, file.clone(), buffer) };
    let bytes = Write(transfer).transfer().await?;
    let more = if flags & RWF_SYNC != 0 { O_SYNC } else { 0 }
        | if flags & RWF_DSYNC != 0 { O_DSYNC } else { 0 };
    disk::settle(worker, &file, file.flags() | more, bytes).await?;
    Ok(Done::transferred(bytes, wanted))
}

/// IORING_OP_FSYNC.
pub(super) async fn fsync(job: Job) -> Result<Done> {
    let file = job.file()?;
    let data_only = job.sqe().op_flags & FSYNC_DATASYNC != 0;
    sync::sync_open(&job.worker, &file, data_only).await.map(Done::with)
}

/// IORING_OP_SYNC_FILE_RANGE.
pub(super) async fn sync_range(job: Job) -> Result<Done> {
    let (file, sqe) = (job.file()?, job.sqe());
    let range = (sqe.offset as i64, sqe.length.into());
    sync::sync_range(&job.worker, &file, range, sqe.op_flags).await.map(Done::with)
}

/// IORING_OP_FALLOCATE.
pub(super) async fn allocate(job: Job) -> Result<Done> {
    let (file, sqe) = (job.file()?, job.sqe());
    let (offset, length) = (sqe.offset as i64, sqe.address as i64);
    attr::allocate(&job.worker, &file, sqe.length, offset, length).await.map(Done::with)
}

/// IORING_OP_FADVISE.
pub(super) fn advise(job: &Job) -> Result<Done> {
    let sqe = job.sqe();
    attr::advise(&*job.file()?, sqe.length.into(), sqe.op_flags).map(Done::with)
}

/// What a request moves data between.
fn both(job: &Job) -> Result<(Arc<OpenFile>, Arc<OpenFile>)> {
    let sqe = job.sqe();
    let from = job.file_of(sqe.file_index, sqe.op_flags & SPLICE_FD_IN_FIXED != 0)?;
    let to = job.file()?;
    if from.is_readable() && to.is_writable() { Ok((from, to)) } else { Err(Errno::EBADF) }
}

/// IORING_OP_SPLICE.
pub(super) async fn splice(job: Job) -> Result<Done> {
    let sqe = *job.sqe();
    let (from, to) = both(&job)?;
    let flags = sendfile::known_flags(sqe.op_flags & !SPLICE_FD_IN_FIXED)?;
    if sqe.length == 0 {
        return Ok(Done::default());
    }
    let from = (from, Offset::Is(sqe.address as i64));
    let to = (to, Offset::Is(sqe.offset as i64));
    let moved = sendfile::splice_files(&job.worker, from, to, sqe.length as usize, flags).await?;
    Ok(Done::transferred(moved, sqe.length as usize))
}

/// IORING_OP_TEE.
pub(super) async fn tee(job: Job) -> Result<Done> {
    let sqe = *job.sqe();
    let (from, to) = both(&job)?;
    let flags = sendfile::known_flags(sqe.op_flags & !SPLICE_FD_IN_FIXED)?;
    let wanted = sqe.length as usize;
    let copied = sendfile::tee_files(&job.worker, &from, &to, wanted, flags).await?;
    Ok(Done::transferred(copied, wanted))
}

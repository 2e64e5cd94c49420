//! read(2), write(2) and their vectored and positioned forms; lseek(2).

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{
    IN_ACCESS, IN_MODIFY, RLIM64_INFINITY, RLIMIT_FSIZE, RWF_APPEND, RWF_DSYNC, RWF_HIPRI, RWF_NOWAIT, RWF_SYNC,
    SEEK_CUR, SEEK_DATA, SEEK_END, SEEK_HOLE, SEEK_SET, SIGPIPE, SIGXFSZ, UIO_MAXIOV,
};
use qlib::Va;

use super::message;
use crate::abi::IoVec;
use crate::errno::{Errno, Result};
use crate::fs::{self, Fd, FileOps, OpenFile, notify};
use crate::io::IoBuffer;
use crate::net::Socket;
use crate::task::Thread;
use crate::task::signal::{self, SigInfo};
use crate::time;
use crate::wait::{PollMask, block_on};

/// Where a transfer happens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    /// The file's own, which moves.
    Current,
    /// This one.
    At(u64),
}

fn readable(thread: &Arc<Thread>, fd: Fd) -> Result<Arc<OpenFile>> {
    let file = thread.files().get(fd)?;
    if file.is_readable() { Ok(file) } else { Err(Errno::EBADF) }
}

fn writable(thread: &Arc<Thread>, fd: Fd) -> Result<Arc<OpenFile>> {
    let file = thread.files().get(fd)?;
    if file.is_writable() { Ok(file) } else { Err(Errno::EBADF) }
}

fn at(file: &OpenFile, offset: i64) -> Result<Position> {
    let offset = u64::try_from(offset).map_err(|_| Errno::EINVAL)?;
    if file.ops.is_seekable() { Ok(Position::At(offset)) } else { Err(Errno::ESPIPE) }
}

/// The user buffer of one pointer and length.
fn single(thread: &Arc<Thread>, buffer: Va, count: usize) -> IoBuffer<'static> {
    IoBuffer::user(thread.mm(), alloc::vec![(buffer, count)])
}

/// The user buffer that an array of `struct iovec` describes.
pub(super) fn vectored(thread: &Arc<Thread>, vectors: Va, count: usize) -> Result<IoBuffer<'static>> {
    if count > UIO_MAXIOV as usize {
        return Err(Errno::EINVAL);
    }
    let vectors: Vec<IoVec> = thread.mm().read_array(vectors, count)?;
    let mut ranges = Vec::with_capacity(count);
    let mut total: i64 = 0;
    for vector in vectors {
        let len = i64::try_from(vector.len).map_err(|_| Errno::EINVAL)?;
        total = total.checked_add(len).ok_or(Errno::EINVAL)?;
        if len > 0 {
            ranges.push((Va(vector.base), len as usize));
        }
    }
    Ok(IoBuffer::user(thread.mm(), ranges))
}

/// Waits as the file's flags and kind demand, for `attempt` to give something else than EAGAIN.
async fn when_ready<T>(
    thread: &Arc<Thread>,
    file: &Arc<OpenFile>,
    mask: PollMask,
    no_wait: bool,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let ops: &dyn FileOps = &*file.ops;
    let Some(queue) = ops.queue().filter(|_| !no_wait && !file.is_nonblocking()) else { return attempt() };
    let deadline = match ops.wait_limit_ns(mask.contains(PollMask::OUT)) {
        0 => None,
        limit => Some(time::deadline_after(limit)),
    };
    match block_on(thread, &[queue], mask, deadline, attempt).await {
        Err(Errno::ETIMEDOUT) if deadline.is_some() => Err(Errno::EAGAIN),
        // signal(7): with a timeout they are not restarted.
        Err(Errno::ERESTARTSYS) if deadline.is_some() => Err(Errno::EINTR),
        result => result,
    }
}

async fn read_file(
    thread: &Arc<Thread>,
    file: Arc<OpenFile>,
    mut buffer: IoBuffer<'_>,
    position: Position,
    no_wait: bool,
) -> Result<usize> {
    if let Some(socket) = file.downcast::<Socket>()
        && socket.has_low_water()
    {
        return message::receive(thread, &file, &mut buffer, 0, false, 0).await.map(|got| got.bytes);
    }
    let read = when_ready(thread, &file, PollMask::READ, no_wait, || {
        let offset = match position {
            Position::Current => *file.position.lock(),
            Position::At(offset) => offset,
        };
        file.ops.read(&file, &mut buffer, offset)
    })
    .await?;
    if position == Position::Current && file.ops.is_seekable() {
        let mut place = file.position.lock();
        *place = place.saturating_add(read as u64);
    }
    if read > 0 {
        notify::file_event(&file, IN_ACCESS);
    }
    Ok(read)
}

async fn write_file(
    thread: &Arc<Thread>,
    file: Arc<OpenFile>,
    mut buffer: IoBuffer<'_>,
    position: Position,
    no_wait: bool,
) -> Result<usize> {
    let seekable = file.ops.is_seekable();
    let mut end = 0;
    if seekable {
        let mut offset = match position {
            Position::Current => *file.position.lock(),
            Position::At(offset) => offset,
        };
        if file.is_append() {
            offset = file.attributes()?.size;
        }
        limit_size(thread, &file, offset, &mut buffer)?;
        end = offset;
    }
    let is_whole = file.ops.is_stream() && !no_wait && !file.is_nonblocking();
    let result = when_ready(thread, &file, PollMask::WRITE, no_wait, || {
        let written = file.ops.write(&file, &mut buffer, end)?;
        if is_whole && buffer.remaining() > 0 { Err(Errno::EAGAIN) } else { Ok(written) }
    })
    .await;
    let written = match result {
        Ok(_) if is_whole => buffer.done(),
        Err(_) if is_whole && buffer.done() > 0 => buffer.done(),
        Err(Errno::EPIPE) => {
            if file.ops.is_stream() {
                signal::send_to_thread(thread, SigInfo::kernel(SIGPIPE))?;
            }
            return Err(Errno::EPIPE);
        }
        result => result?,
    };
    if seekable {
        if position == Position::Current {
            *file.position.lock() = end.saturating_add(written as u64);
        }
        if written > 0 {
            fs::open::drop_suid(&thread.creds(), &file)?;
        }
    }
    if written > 0 {
        notify::file_event(&file, IN_MODIFY);
    }
    Ok(written)
}

/// Cuts a write to RLIMIT_FSIZE and to what an offset can express; past the limit: SIGXFSZ and EFBIG.
fn limit_size(thread: &Arc<Thread>, file: &OpenFile, offset: u64, buffer: &mut IoBuffer<'_>) -> Result {
    let room = (i64::MAX as u64).checked_sub(offset).filter(|room| *room > 0).ok_or(Errno::EFBIG)?;
    buffer.limit(usize::try_from(room).unwrap_or(usize::MAX));
    let limit = thread.process.rlimit(RLIMIT_FSIZE);
    if limit == RLIM64_INFINITY as u64 || buffer.remaining() == 0 || !file.attributes()?.is_regular() {
        return Ok(());
    }
    match limit.checked_sub(offset).filter(|room| *room > 0) {
        Some(room) => {
            buffer.limit(usize::try_from(room).unwrap_or(usize::MAX));
            Ok(())
        }
        None => {
            file_too_large(thread);
            Err(Errno::EFBIG)
        }
    }
}

/// A write past RLIMIT_FSIZE was tried: SIGXFSZ.
pub(super) fn file_too_large(thread: &Arc<Thread>) {
    // It can only fail for queued signals.
    let _ = signal::send_to_thread(thread, SigInfo::user(SIGXFSZ, 0, 0));
}

/// read(2).
pub async fn read(thread: &Arc<Thread>, fd: Fd, buffer: Va, count: usize) -> Result<usize> {
    let file = readable(thread, fd)?;
    read_file(thread, file, single(thread, buffer, count), Position::Current, false).await
}

/// write(2).
pub async fn write(thread: &Arc<Thread>, fd: Fd, buffer: Va, count: usize) -> Result<usize> {
    let file = writable(thread, fd)?;
    write_file(thread, file, single(thread, buffer, count), Position::Current, false).await
}

/// pread64(2).
pub async fn pread64(thread: &Arc<Thread>, fd: Fd, buffer: Va, count: usize, offset: i64) -> Result<usize> {
    let file = readable(thread, fd)?;
    let position = at(&file, offset)?;
    read_file(thread, file, single(thread, buffer, count), position, false).await
}

/// pwrite64(2).
pub async fn pwrite64(thread: &Arc<Thread>, fd: Fd, buffer: Va, count: usize, offset: i64) -> Result<usize> {
    let file = writable(thread, fd)?;
    let position = at(&file, offset)?;
    write_file(thread, file, single(thread, buffer, count), position, false).await
}

/// readv(2).
pub async fn readv(thread: &Arc<Thread>, fd: Fd, vectors: Va, count: usize) -> Result<usize> {
    let file = readable(thread, fd)?;
    read_file(thread, file, vectored(thread, vectors, count)?, Position::Current, false).await
}

/// writev(2).
pub async fn writev(thread: &Arc<Thread>, fd: Fd, vectors: Va, count: usize) -> Result<usize> {
    let file = writable(thread, fd)?;
    write_file(thread, file, vectored(thread, vectors, count)?, Position::Current, false).await
}

/// preadv(2). On 64-bit machines the offset is in its first half alone.
pub async fn preadv(thread: &Arc<Thread>, fd: Fd, vectors: Va, count: usize, offset: i64) -> Result<usize> {
    let file = readable(thread, fd)?;
    let position = at(&file, offset)?;
    read_file(thread, file, vectored(thread, vectors, count)?, position, false).await
}

/// pwritev(2).
pub async fn pwritev(thread: &Arc<Thread>, fd: Fd, vectors: Va, count: usize, offset: i64) -> Result<usize> {
    let file = writable(thread, fd)?;
    let position = at(&file, offset)?;
    write_file(thread, file, vectored(thread, vectors, count)?, position, false).await
}

/// Offset -1 of the "2" calls: the file's own position.
fn at_or_current(file: &OpenFile, offset: i64) -> Result<Position> {
    if offset == -1 { Ok(Position::Current) } else { at(file, offset) }
}

/// preadv2(2).
pub async fn preadv2(
    thread: &Arc<Thread>,
    fd: Fd,
    vectors: Va,
    count: usize,
    offset: i64,
    _high: u64,
    flags: u32,
) -> Result<usize> {
    if flags & !(RWF_HIPRI | RWF_NOWAIT) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let file = readable(thread, fd)?;
    let position = at_or_current(&file, offset)?;
    read_file(thread, file, vectored(thread, vectors, count)?, position, flags & RWF_NOWAIT != 0).await
}

/// pwritev2(2).
pub async fn pwritev2(
    thread: &Arc<Thread>,
    fd: Fd,
    vectors: Va,
    count: usize,
    offset: i64,
    _high: u64,
    flags: u32,
) -> Result<usize> {
    if flags & !(RWF_HIPRI | RWF_NOWAIT | RWF_DSYNC | RWF_SYNC | RWF_APPEND) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let file = writable(thread, fd)?;
    let mut position = at_or_current(&file, offset)?;
    if flags & RWF_APPEND != 0 && file.ops.is_seekable() {
        position = Position::At(file.attributes()?.size);
    }
    let buffer = vectored(thread, vectors, count)?;
    let written = write_file(thread, file.clone(), buffer, position, flags & RWF_NOWAIT != 0).await?;
    if flags & (RWF_DSYNC | RWF_SYNC) != 0 {
        file.ops.sync(&file, flags & RWF_SYNC == 0)?;
    }
    Ok(written)
}

/// lseek(2).
pub fn lseek(thread: &Arc<Thread>, fd: Fd, offset: i64, whence: u32) -> Result<usize> {
    let file = thread.files().get(fd)?;
    if file.flags() & linux_raw_sys::general::O_PATH != 0 {
        return Err(Errno::EBADF);
    }
    if !file.ops.is_seekable() {
        return Err(Errno::ESPIPE);
    }
    let from = |base: u64| i64::try_from(base).ok().and_then(|b| b.checked_add(offset)).ok_or(Errno::EOVERFLOW);
    let target = match whence {
        SEEK_SET => offset,
        SEEK_CUR => from(*file.position.lock())?,
        SEEK_END => from(file.attributes()?.size)?,
        SEEK_DATA | SEEK_HOLE => {
            let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
            file.ops.seek_data(&file, offset, whence == SEEK_DATA)? as i64
        }
        _ => return Err(Errno::EINVAL),
    };
    let target = u64::try_from(target).map_err(|_| Errno::EINVAL)?;
    *file.position.lock() = target;
    Ok(target as usize)
}

//! read(2), write(2) and their vectored and positioned forms; lseek(2).

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{
    O_DSYNC, O_SYNC, RWF_APPEND, RWF_DSYNC, RWF_HIPRI, RWF_NOWAIT, RWF_SYNC, SEEK_CUR, SEEK_DATA,
    SEEK_END, SEEK_HOLE, SEEK_SET, UIO_MAXIOV,
};
use qlib::pagetable::USER_END;
use qlib::{PAGE_SIZE, Va};

use super::transfer::{Position, Read, Transfer, Write};
use crate::abi::IoVec;
use crate::errno::{Errno, Result};
use crate::fs::{Fd, OpenFile, disk, position};
use crate::io::{IoBuffer, MAX_TRANSFER_BYTES};
use crate::task::Thread;

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

/// The file and the place of a positioned read (`access` is [`OpenFile::is_readable`]) or write.
/// That a file has no positions is seen before how it is open: ESPIPE.
fn positioned(
    thread: &Arc<Thread>,
    fd: Fd,
    position: impl Fn(&OpenFile) -> Result<Position>,
    access: impl Fn(&OpenFile) -> bool,
) -> Result<(Arc<OpenFile>, Position)> {
    let file = thread.files().opened(fd)?;
    let position = position(&file)?;
    if access(&file) { Ok((file, position)) } else { Err(Errno::EBADF) }
}

/// EFAULT if a range of user memory goes beyond where that ends, whatever is transferred.
fn within_user(buffer: Va, count: usize) -> Result {
    let end = buffer.0.checked_add(count as u64).ok_or(Errno::EFAULT)?;
    if end <= USER_END.0 - PAGE_SIZE { Ok(()) } else { Err(Errno::EFAULT) }
}

/// The user buffer of one pointer and length. EFAULT.
pub(super) fn single(thread: &Thread, buffer: Va, count: usize) -> Result<IoBuffer<'static>> {
    within_user(buffer, count)?;
    Ok(IoBuffer::user_range(thread.mm(), buffer, count))
}

/// The ranges that an array of `struct iovec` describes. EINVAL, EFAULT.
pub(super) fn ranges(thread: &Thread, vectors: Va, count: usize) -> Result<Vec<(Va, usize)>> {
    if count > UIO_MAXIOV as usize {
        return Err(Errno::EINVAL);
    }
    let vectors: Vec<IoVec> = thread.mm().read_array(vectors, count)?;
    let mut ranges = Vec::with_capacity(count);
    for vector in vectors {
        let len = i64::try_from(vector.len).map_err(|_| Errno::EINVAL)?;
        ranges.push((Va(vector.base), len as usize));
    }
    Ok(ranges)
}

/// The user buffer that an array of `struct iovec` describes. EINVAL, EFAULT.
pub(super) fn vectored(thread: &Thread, vectors: Va, count: usize) -> Result<IoBuffer<'static>> {
    let ranges = ranges(thread, vectors, count)?;
    // Of a single one Linux looks at what is transferred at most, of several at all.
    let most = if count == 1 { MAX_TRANSFER_BYTES } else { usize::MAX };
    ranges.iter().try_for_each(|(start, len)| within_user(*start, *len.min(&most)))?;
    Ok(IoBuffer::user(thread.mm(), ranges))
}

/// As [`vectored`], of memory of another process: where it is not there only the transfer tells.
pub(super) fn vectored_elsewhere(
    thread: &Thread,
    vectors: Va,
    count: usize,
) -> Result<IoBuffer<'static>> {
    Ok(IoBuffer::user(thread.mm(), ranges(thread, vectors, count)?))
}

/// read(2).
pub fn read(thread: &Arc<Thread>, fd: Fd, buffer: Va, count: usize) -> Result<Read<'_>> {
    let file = readable(thread, fd)?;
    Ok(Read(Transfer::new(thread, file, single(thread, buffer, count)?)))
}

/// write(2).
pub fn write(thread: &Arc<Thread>, fd: Fd, buffer: Va, count: usize) -> Result<Write<'_>> {
    let file = writable(thread, fd)?;
    Ok(Write(Transfer::new(thread, file, single(thread, buffer, count)?)))
}

/// pread64(2).
pub fn pread64(
    thread: &Arc<Thread>,
    fd: Fd,
    buffer: Va,
    count: usize,
    offset: i64,
) -> Result<Read<'_>> {
    let (file, position) = positioned(thread, fd, |f| at(f, offset), OpenFile::is_readable)?;
    Ok(Read(Transfer { position, ..Transfer::new(thread, file, single(thread, buffer, count)?) }))
}

/// pwrite64(2).
pub fn pwrite64(
    thread: &Arc<Thread>,
    fd: Fd,
    buffer: Va,
    count: usize,
    offset: i64,
) -> Result<Write<'_>> {
    let (file, position) = positioned(thread, fd, |f| at(f, offset), OpenFile::is_writable)?;
    Ok(Write(Transfer { position, ..Transfer::new(thread, file, single(thread, buffer, count)?) }))
}

/// readv(2).
pub fn readv(thread: &Arc<Thread>, fd: Fd, vectors: Va, count: usize) -> Result<Read<'_>> {
    let file = readable(thread, fd)?;
    Ok(Read(Transfer::new(thread, file, vectored(thread, vectors, count)?)))
}

/// writev(2).
pub fn writev(thread: &Arc<Thread>, fd: Fd, vectors: Va, count: usize) -> Result<Write<'_>> {
    let file = writable(thread, fd)?;
    Ok(Write(Transfer::new(thread, file, vectored(thread, vectors, count)?)))
}

/// preadv(2). On 64-bit machines the offset is in its first half alone.
pub fn preadv(
    thread: &Arc<Thread>,
    fd: Fd,
    vectors: Va,
    count: usize,
    offset: i64,
) -> Result<Read<'_>> {
    let (file, position) = positioned(thread, fd, |f| at(f, offset), OpenFile::is_readable)?;
    Ok(Read(Transfer {
        position,
        ..Transfer::new(thread, file, vectored(thread, vectors, count)?)
    }))
}

/// pwritev(2).
pub fn pwritev(
    thread: &Arc<Thread>,
    fd: Fd,
    vectors: Va,
    count: usize,
    offset: i64,
) -> Result<Write<'_>> {
    let (file, position) = positioned(thread, fd, |f| at(f, offset), OpenFile::is_writable)?;
    Ok(Write(Transfer {
        position,
        ..Transfer::new(thread, file, vectored(thread, vectors, count)?)
    }))
}

/// Offset -1 of the "2" calls: the file's own position.
fn at_or_current(file: &OpenFile, offset: i64) -> Result<Position> {
    if offset == -1 { Ok(Position::Current) } else { at(file, offset) }
}

/// Flags of preadv2(2) and pwritev2(2) that are not known are EOPNOTSUPP, as on Linux; what
/// contradicts itself is EINVAL.
pub(super) fn check_flags(file: &OpenFile, flags: u32) -> Result {
    // Since Linux 6.9: not at the end, although the file is open for that.
    const RWF_NOAPPEND: u32 = 0x20;
    const KNOWN: u32 = RWF_HIPRI | RWF_NOWAIT | RWF_DSYNC | RWF_SYNC | RWF_APPEND | RWF_NOAPPEND;
    if flags & !KNOWN != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    match flags & (RWF_APPEND | RWF_NOAPPEND) {
        both if both == RWF_APPEND | RWF_NOAPPEND => Err(Errno::EINVAL),
        // What Linux before 6.9 says.
        RWF_NOAPPEND if file.is_append() && file.is_writable() => Err(Errno::EOPNOTSUPP),
        _ => Ok(()),
    }
}

/// preadv2(2).
pub fn preadv2(
    thread: &Arc<Thread>,
    fd: Fd,
    vectors: Va,
    count: usize,
    offset: i64,
    _high: u64,
    flags: u32,
) -> Result<Read<'_>> {
    let (file, position) =
        positioned(thread, fd, |f| at_or_current(f, offset), OpenFile::is_readable)?;
    // Those of writes are allowed, and mean nothing.
    check_flags(&file, flags)?;
    let no_wait = flags & RWF_NOWAIT != 0;
    Ok(Read(Transfer {
        position,
        no_wait,
        ..Transfer::new(thread, file, vectored(thread, vectors, count)?)
    }))
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
    let (file, mut position) =
        positioned(thread, fd, |f| at_or_current(f, offset), OpenFile::is_writable)?;
    check_flags(&file, flags)?;
    let appends = flags & RWF_APPEND != 0;
    if appends && file.ops.shares_position() && !file.is_append() {
        // The host's position goes where the host's own flags say.
        position = Position::At(file.attributes()?.size);
    }
    let no_wait = flags & RWF_NOWAIT != 0;
    let buffer = vectored(thread, vectors, count)?;
    let write =
        Transfer { position, no_wait, appends, ..Transfer::new(thread, file.clone(), buffer) };
    let written = Write(write).transfer().await?;
    let wanted = if flags & RWF_SYNC != 0 { O_SYNC } else { 0 }
        | if flags & RWF_DSYNC != 0 { O_DSYNC } else { 0 };
    disk::settle(thread, &file, file.flags() | wanted, written).await?;
    Ok(written)
}

/// A move of a file's own position that is about to be made.
pub struct Seek<'a> {
    thread: &'a Arc<Thread>,
    file: Arc<OpenFile>,
    offset: i64,
    whence: u32,
}

impl Seek<'_> {
    /// Makes it if no other call moves the position now; `None`: nothing has been done.
    pub fn attempt(self) -> Option<Result<usize>> {
        if position::is_moving(&self.file) { None } else { Some(self.seek()) }
    }

    /// Makes it, when no other call moves the position any more.
    pub async fn complete(self) -> Result<usize> {
        let _moving = position::hold(self.thread, &self.file).await?;
        self.seek()
    }

    fn seek(&self) -> Result<usize> {
        let &Seek { ref file, offset, whence, .. } = self;
        if file.ops.shares_position() {
            return file.ops.seek(offset, whence).map(|position| position as usize);
        }
        if file.ops.is_everywhere() {
            return Ok(0);
        }
        let from = |base: u64| {
            i64::try_from(base).ok().and_then(|b| b.checked_add(offset)).ok_or(Errno::EINVAL)
        };
        let target = match whence {
            SEEK_SET => offset,
            SEEK_CUR => from(*file.position.lock())?,
            SEEK_END if !file.ops.has_end(file) => return Err(Errno::EINVAL),
            SEEK_END => from(file.attributes()?.size)?,
            SEEK_DATA | SEEK_HOLE => {
                let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
                file.ops.seek_data(file, offset, whence == SEEK_DATA)? as i64
            }
            _ => return Err(Errno::EINVAL),
        };
        let target = u64::try_from(target).map_err(|_| Errno::EINVAL)?;
        *file.position.lock() = target;
        Ok(target as usize)
    }
}

/// lseek(2).
pub fn lseek(thread: &Arc<Thread>, fd: Fd, offset: i64, whence: u32) -> Result<Seek<'_>> {
    let file = thread.files().opened(fd)?;
    if whence > SEEK_HOLE {
        return Err(Errno::EINVAL);
    }
    if !file.ops.is_seekable() {
        return Err(Errno::ESPIPE);
    }
    Ok(Seek { thread, file, offset, whence })
}

//! Moving data between files without the program: sendfile(2), splice(2), tee(2), vmsplice(2),
//! copy_file_range(2).

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{
    O_APPEND, SEEK_CUR, SPLICE_F_GIFT, SPLICE_F_MORE, SPLICE_F_MOVE, SPLICE_F_NONBLOCK,
};
use qlib::Va;

use super::rw::vectored;
use super::transfer::Position::At;
use super::transfer::{read_file, signal_broken};
use crate::errno::{Errno, Result};
use crate::fs::{self, Fd, FileOps, OpenFile, ask, disk};
use crate::io::{IoBuffer, MAX_TRANSFER_BYTES};
use crate::ipc::pipe::PipeEnd;
use crate::task::Thread;
use crate::time::Breath;
use crate::wait::{PollMask, Sleeper, block_on};

/// Bytes moved at a time.
const CHUNK: usize = 64 << 10;

fn files(thread: &Arc<Thread>, from: Fd, to: Fd) -> Result<(Arc<OpenFile>, Arc<OpenFile>)> {
    let files = thread.files();
    let (from, to) = (files.get(from)?, files.get(to)?);
    if from.is_readable() && to.is_writable() { Ok((from, to)) } else { Err(Errno::EBADF) }
}

/// One attempt, waiting if it would block and may.
async fn ready<T>(
    thread: &Arc<Thread>,
    file: &OpenFile,
    mask: PollMask,
    no_wait: bool,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let ops: &dyn FileOps = &*file.ops;
    match ops.queue() {
        Some(queue) if !no_wait && !file.is_nonblocking() => {
            block_on(thread, &[queue], mask, None, attempt).await
        }
        _ => attempt(),
    }
}

/// Waits until a pipe has room: for how much, at most `wanted` bytes. SIGPIPE without a reader.
async fn room(
    thread: &Arc<Thread>,
    (file, pipe): (&OpenFile, &PipeEnd),
    wanted: usize,
    no_wait: bool,
) -> Result<usize> {
    let room = ready(thread, file, PollMask::WRITE, no_wait, || pipe.room(wanted)).await;
    room.map_err(|error| signal_broken(thread, file, error))
}

/// Where a caller says that a position is.
#[derive(Clone, Copy)]
pub(super) enum Offset {
    /// There; null means the file's own.
    Behind(Va),
    /// Here; -1 means the file's own.
    Is(i64),
}

impl Offset {
    fn is_own(self) -> bool {
        matches!(self, Offset::Behind(Va(0)) | Offset::Is(-1))
    }
}

/// A file position: the file's own, or one that the program keeps.
struct Position {
    own: Option<u64>,
    va: Va,
}

impl Position {
    /// From a pointer argument: null means the file's own position.
    fn read(thread: &Arc<Thread>, file: &OpenFile, va: Va) -> Result<Self> {
        if va.0 == 0 {
            return Ok(Position { own: None, va });
        }
        if !file.ops.is_seekable() {
            return Err(Errno::ESPIPE);
        }
        let offset: i64 = thread.mm().read(va)?;
        Ok(Position { own: Some(u64::try_from(offset).map_err(|_| Errno::EINVAL)?), va })
    }

    fn of(thread: &Arc<Thread>, file: &OpenFile, offset: Offset) -> Result<Self> {
        match offset {
            Offset::Behind(va) => Position::read(thread, file, va),
            Offset::Is(-1) => Ok(Position { own: None, va: Va(0) }),
            Offset::Is(_) if !file.ops.is_seekable() => Err(Errno::ESPIPE),
            Offset::Is(offset) => {
                let own = u64::try_from(offset).map_err(|_| Errno::EINVAL)?;
                Ok(Position { own: Some(own), va: Va(0) })
            }
        }
    }

    fn get(&self, file: &OpenFile) -> u64 {
        self.own.unwrap_or_else(|| file.own_offset())
    }

    fn advance(&mut self, file: &OpenFile, bytes: usize) {
        match &mut self.own {
            Some(offset) => *offset = offset.saturating_add(bytes as u64),
            None => file.advance(bytes),
        }
    }

    fn store(&self, thread: &Arc<Thread>) -> Result {
        match self.own.filter(|_| self.va.0 != 0) {
            Some(offset) => thread.mm().write(self.va, &offset),
            None => Ok(()),
        }
    }
}

/// Reads up to `max` bytes, and advances the position.
async fn take(
    thread: &Arc<Thread>,
    file: &OpenFile,
    position: &mut Position,
    max: usize,
    no_wait: bool,
) -> Result<Vec<u8>> {
    let mut bytes = alloc::vec![0; max.min(CHUNK)];
    let offset = position.get(file);
    let mut buffer = IoBuffer::kernel(&mut bytes);
    let read = match file.ops.queue() {
        None => read_file(thread, file, &mut buffer, At(offset), false).await?,
        Some(_) => {
            let attempt = || file.ops.read(file, &mut buffer, offset);
            ready(thread, file, PollMask::READ, no_wait, attempt).await?
        }
    };
    position.advance(file, read);
    bytes.truncate(read);
    Ok(bytes)
}

/// Writes bytes, all of them unless an error comes in between: how many were written.
async fn give(
    thread: &Arc<Thread>,
    file: &OpenFile,
    position: &mut Position,
    bytes: &[u8],
    no_wait: bool,
) -> Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        let offset = position.get(file);
        let result = ready(thread, file, PollMask::WRITE, no_wait, || {
            file.ops.write(file, &mut IoBuffer::kernel_const(&bytes[done..]), offset)
        })
        .await;
        match result {
            Ok(0) => break,
            Ok(written) => {
                position.advance(file, written);
                done += written;
            }
            Err(error) => {
                signal_broken(thread, file, error);
                if done == 0 {
                    return Err(error);
                }
                break;
            }
        }
    }
    if done > 0 && file.ops.is_seekable() {
        fs::open::drop_suid(&thread.creds(), file)?;
    }
    Ok(done)
}

/// Moves up to `count` bytes. Neither side may ever have to wait (/dev/zero into a terminal that
/// drops what is too much).
async fn transfer(
    thread: &Arc<Thread>,
    from: (&OpenFile, &mut Position),
    to: (&OpenFile, &mut Position),
    count: usize,
) -> Result<usize> {
    let mut moved = 0;
    let mut breath = Breath::new();
    let ((source, source_position), (target, target_position)) = (from, to);
    ask::before_reading(thread, source).await?;
    while moved < count {
        if moved > 0 && thread.is_interrupted() {
            break;
        }
        breath.take().await;
        let bytes = match take(thread, source, source_position, count - moved, moved > 0).await {
            Ok(bytes) if bytes.is_empty() => break,
            Ok(bytes) => bytes,
            Err(error) if moved == 0 => return Err(error),
            Err(_) => break,
        };
        let given = give(thread, target, target_position, &bytes, false).await;
        let written = *given.as_ref().unwrap_or(&0);
        if written < bytes.len() {
            // What was not written has not been read.
            rewind(source, source_position, bytes.len() - written)?;
        }
        moved += written;
        match given {
            Err(error) if moved == 0 => return Err(error),
            Ok(n) if n == bytes.len() => {}
            _ => break,
        }
    }
    Ok(moved)
}

/// Moves a position back by `bytes` bytes.
fn rewind(file: &OpenFile, position: &mut Position, bytes: usize) -> Result {
    match &mut position.own {
        Some(offset) => *offset = offset.saturating_sub(bytes as u64),
        None if file.ops.shares_position() => {
            file.ops.seek(-(bytes as i64), SEEK_CUR)?;
        }
        None => {
            let mut position = file.position.lock();
            *position = position.saturating_sub(bytes as u64);
        }
    }
    Ok(())
}

/// sendfile(2).
pub async fn sendfile(
    thread: &Arc<Thread>,
    out: Fd,
    input: Fd,
    offset: Va,
    count: usize,
) -> Result<usize> {
    let (from, to) = files(thread, input, out)?;
    if to.flags() & O_APPEND != 0 || !from.ops.is_seekable() {
        return Err(Errno::EINVAL);
    }
    let mut source = Position::read(thread, &from, offset)?;
    let mut target = Position { own: None, va: Va(0) };
    let count = count.min(MAX_TRANSFER_BYTES);
    let moved = transfer(thread, (&from, &mut source), (&to, &mut target), count).await;
    // What read(2) says of a directory.
    let moved = moved.map_err(|e| if e == Errno::EISDIR { Errno::EINVAL } else { e })?;
    source.store(thread)?;
    disk::settle(thread, &to, to.flags(), moved).await?;
    Ok(moved)
}

/// copy_file_range(2).
pub async fn copy_file_range(
    thread: &Arc<Thread>,
    input: Fd,
    in_offset: Va,
    out: Fd,
    out_offset: Va,
    count: usize,
    flags: u32,
) -> Result<usize> {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let (from, to) = files(thread, input, out)?;
    if to.is_append() {
        return Err(Errno::EBADF);
    }
    let (own, other) = (from.attributes()?, to.attributes()?);
    if own.is_dir() || other.is_dir() {
        return Err(Errno::EISDIR);
    }
    if !own.is_regular() || !other.is_regular() {
        return Err(Errno::EINVAL);
    }
    let mut source = Position::read(thread, &from, in_offset)?;
    let mut target = Position::read(thread, &to, out_offset)?;
    let count = count.min(MAX_TRANSFER_BYTES);
    if own.id() == other.id() {
        let (a, b) = (source.get(&from), target.get(&to));
        if a < b.saturating_add(count as u64) && b < a.saturating_add(count as u64) && count > 0 {
            return Err(Errno::EINVAL);
        }
    }
    let moved = transfer(thread, (&from, &mut source), (&to, &mut target), count).await?;
    source.store(thread)?;
    target.store(thread)?;
    disk::settle(thread, &to, to.flags(), moved).await?;
    Ok(moved)
}

const SPLICE_FLAGS: u32 = SPLICE_F_MOVE | SPLICE_F_NONBLOCK | SPLICE_F_MORE | SPLICE_F_GIFT;

/// Flags that splice(2) and tee(2) have: those. EINVAL.
pub(super) fn known_flags(flags: u32) -> Result<u32> {
    if flags & !SPLICE_FLAGS != 0 { Err(Errno::EINVAL) } else { Ok(flags) }
}

/// splice(2).
pub async fn splice(
    thread: &Arc<Thread>,
    input: Fd,
    in_offset: Va,
    out: Fd,
    out_offset: Va,
    count: usize,
    flags: u32,
) -> Result<usize> {
    if flags & !SPLICE_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    if count == 0 {
        return Ok(0);
    }
    let (from, to) = files(thread, input, out)?;
    let (in_offset, out_offset) = (Offset::Behind(in_offset), Offset::Behind(out_offset));
    splice_files(thread, (from, in_offset), (to, out_offset), count, flags).await
}

/// splice(2) of files that are open for it.
pub(super) async fn splice_files(
    thread: &Arc<Thread>,
    (from, in_offset): (Arc<OpenFile>, Offset),
    (to, out_offset): (Arc<OpenFile>, Offset),
    count: usize,
    flags: u32,
) -> Result<usize> {
    let no_wait = flags & SPLICE_F_NONBLOCK != 0;
    let (source, target) = (from.downcast::<PipeEnd>(), to.downcast::<PipeEnd>());
    if source.is_some() && !in_offset.is_own() || target.is_some() && !out_offset.is_own() {
        return Err(Errno::ESPIPE);
    }
    match (source, target) {
        (None, None) => Err(Errno::EINVAL),
        (Some(source), Some(target)) if source.is_same_pipe(target) => Err(Errno::EINVAL),
        (Some(source), _) => {
            if to.is_append() {
                return Err(Errno::EINVAL);
            }
            let mut position = Position::of(thread, &to, out_offset)?;
            let wanted = match target {
                Some(target) => room(thread, (&to, target), count.min(CHUNK), no_wait).await?,
                None => count.min(CHUNK),
            };
            let bytes =
                ready(thread, &from, PollMask::READ, no_wait, || source.take(wanted)).await?;
            let given = give(thread, &to, &mut position, &bytes, no_wait).await;
            let written = *given.as_ref().unwrap_or(&0);
            source.put_back(bytes[written..].to_vec());
            position.store(thread)?;
            disk::settle(thread, &to, to.flags(), written).await?;
            given
        }
        (None, Some(target)) => {
            ask::before_reading(thread, &from).await?;
            let mut position = Position::of(thread, &from, in_offset)?;
            let wanted = room(thread, (&to, target), count.min(CHUNK), no_wait).await?;
            let bytes = take(thread, &from, &mut position, wanted, no_wait).await?;
            let moved = bytes.len();
            if moved > 0 {
                target.push(bytes);
            }
            position.store(thread)?;
            Ok(moved)
        }
    }
}

/// tee(2).
pub async fn tee(
    thread: &Arc<Thread>,
    input: Fd,
    out: Fd,
    count: usize,
    flags: u32,
) -> Result<usize> {
    if flags & !SPLICE_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let (from, to) = files(thread, input, out)?;
    tee_files(thread, &from, &to, count, flags).await
}

/// tee(2) of files that are open for it.
pub(super) async fn tee_files(
    thread: &Arc<Thread>,
    from: &OpenFile,
    to: &OpenFile,
    count: usize,
    flags: u32,
) -> Result<usize> {
    let (Some(source), Some(target)) = (from.downcast::<PipeEnd>(), to.downcast::<PipeEnd>())
    else {
        return Err(Errno::EINVAL);
    };
    if source.is_same_pipe(target) {
        return Err(Errno::EINVAL);
    }
    if count == 0 {
        return Ok(0);
    }
    let no_wait = flags & SPLICE_F_NONBLOCK != 0;
    let wanted = room(thread, (to, target), count.min(CHUNK), no_wait).await?;
    let bytes = ready(thread, from, PollMask::READ, no_wait, || source.copy(wanted)).await?;
    let copied = bytes.len();
    if copied > 0 {
        target.push(bytes);
    }
    Ok(copied)
}

/// vmsplice(2): the pages are copied, whether they are given or not.
pub async fn vmsplice(
    thread: &Arc<Thread>,
    fd: Fd,
    vectors: Va,
    count: usize,
    flags: u32,
) -> Result<usize> {
    if flags & !SPLICE_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let file = thread.files().get(fd)?;
    let pipe = file.downcast::<PipeEnd>().ok_or(Errno::EBADF)?;
    let mut buffer = vectored(thread, vectors, count)?;
    let no_wait = flags & SPLICE_F_NONBLOCK != 0;
    if file.is_readable() {
        let bytes =
            ready(thread, &file, PollMask::READ, no_wait, || pipe.take(buffer.remaining())).await?;
        let stored = buffer.put(&bytes)?;
        pipe.put_back(bytes[stored..].to_vec());
        return Ok(stored);
    }
    let mut moved = 0;
    while buffer.remaining() > 0 {
        let wanted = buffer.remaining().min(CHUNK);
        let taken = match room(thread, (&file, pipe), wanted, no_wait).await {
            Ok(taken) => taken,
            Err(error) if moved == 0 => return Err(error),
            Err(_) => break,
        };
        let bytes = buffer.take_vec(taken)?;
        moved += bytes.len();
        pipe.push(bytes);
    }
    Ok(moved)
}

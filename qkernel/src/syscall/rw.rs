//! read(2), write(2) and their vectored and positioned forms; lseek(2).

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{
    IN_ACCESS, IN_MODIFY, RLIM64_INFINITY, RLIMIT_FSIZE, RWF_APPEND, RWF_DSYNC, RWF_HIPRI,
    RWF_NOWAIT, RWF_SYNC, S_IFIFO, SEEK_CUR, SEEK_DATA, SEEK_END, SEEK_HOLE, SEEK_SET, SIGPIPE,
    SIGXFSZ, UIO_MAXIOV,
};
use qlib::Va;

use super::message;
use crate::abi::IoVec;
use crate::errno::{Errno, Result};
use crate::fs::{self, Fd, FileOps, OpenFile, notify, writeback};
use crate::io::IoBuffer;
use crate::net::Socket;
use crate::task::Thread;
use crate::task::signal::{self, SigInfo};
use crate::time;
use crate::time::breath::{Breath, PIECE_BYTES};
use crate::wait::{PollMask, Sleeper, block_on};

/// Where a transfer happens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    /// The file's own, which moves.
    Current,
    /// This one.
    At(u64),
}

impl Position {
    /// Where the next piece goes.
    fn after(self, bytes: usize) -> Position {
        match self {
            Position::Current => Position::Current,
            Position::At(offset) => Position::At(offset.saturating_add(bytes as u64)),
        }
    }
}

/// True if a transfer is made in pieces between which others get the kernel. What can make its
/// caller wait takes little at once anyway.
fn takes_long(file: &OpenFile, buffer: &IoBuffer<'_>) -> bool {
    buffer.remaining() > PIECE_BYTES && file.ops.queue().is_none()
}

/// Transfers a long buffer piece by piece, until one is short or fails, or the thread is to end:
/// the bytes, or the first piece's error.
async fn in_pieces(
    thread: &Thread,
    buffer: &mut IoBuffer<'_>,
    mut position: Position,
    mut transfer: impl FnMut(&mut IoBuffer<'_>, Position) -> Result<usize>,
) -> Result<usize> {
    let mut breath = Breath::new();
    let mut all = 0;
    loop {
        let wanted = buffer.remaining().min(PIECE_BYTES);
        match buffer.piece(PIECE_BYTES, |piece| transfer(piece, position)) {
            Ok(bytes) => {
                all += bytes;
                position = position.after(bytes);
                if bytes < wanted || buffer.remaining() == 0 || thread.is_dying() {
                    return Ok(all);
                }
            }
            Err(error) if all == 0 => return Err(error),
            Err(_) => return Ok(all),
        }
        breath.take().await;
    }
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
    IoBuffer::user_range(thread.mm(), buffer, count)
}

/// The user buffer that an array of `struct iovec` describes.
pub(super) fn vectored(
    thread: &Arc<Thread>,
    vectors: Va,
    count: usize,
) -> Result<IoBuffer<'static>> {
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
    let Some(queue) = ops.queue().filter(|_| !no_wait && !file.is_nonblocking()) else {
        return attempt();
    };
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

/// What is about to be read or written.
struct Transfer<'a> {
    thread: &'a Arc<Thread>,
    file: Arc<OpenFile>,
    buffer: IoBuffer<'static>,
    position: Position,
    no_wait: bool,
}

impl<'a> Transfer<'a> {
    /// One at the file's own position, which waits if the file says so.
    fn new(thread: &'a Arc<Thread>, file: Arc<OpenFile>, buffer: IoBuffer<'static>) -> Self {
        Transfer { thread, file, buffer, position: Position::Current, no_wait: false }
    }
}

/// True if a transfer that cannot be made now is waited for.
fn may_wait(file: &OpenFile, no_wait: bool) -> bool {
    !no_wait && file.ops.queue().is_some() && !file.is_nonblocking()
}

/// True if a socket gives nothing before it has so many bytes.
fn has_low_water(file: &OpenFile) -> bool {
    file.downcast::<Socket>().is_some_and(Socket::has_low_water)
}

/// A read that is about to be made.
pub struct Read<'a>(Transfer<'a>);

impl Read<'_> {
    /// Makes it if that need not wait; `None`: nothing has been done.
    pub fn attempt(self) -> Option<Result<usize>> {
        let Transfer { file, mut buffer, position, no_wait, .. } = self.0;
        if has_low_water(&file) || takes_long(&file, &buffer) {
            return None;
        }
        match read_once(&file, &mut buffer, position) {
            Err(Errno::EAGAIN) if may_wait(&file, no_wait) => None,
            result => Some(result),
        }
    }

    /// Makes it, and waits as it must.
    pub async fn complete(self) -> Result<usize> {
        let Transfer { thread, file, mut buffer, position, no_wait } = self.0;
        if has_low_water(&file) {
            let received = message::receive(thread, &file, &mut buffer, 0, false, 0).await;
            return received.map(|got| got.bytes);
        }
        if takes_long(&file, &buffer) {
            let transfer = |piece: &mut IoBuffer<'_>, at| read_once(&file, piece, at);
            return in_pieces(thread, &mut buffer, position, transfer).await;
        }
        let attempt = || read_once(&file, &mut buffer, position);
        when_ready(thread, &file, PollMask::READ, no_wait, attempt).await
    }
}

/// One attempt, which does not wait: EAGAIN.
fn read_once(file: &OpenFile, buffer: &mut IoBuffer<'_>, position: Position) -> Result<usize> {
    let offset = match position {
        Position::Current => file.own_offset(),
        Position::At(offset) => offset,
    };
    let read = file.ops.read(file, buffer, offset)?;
    if position == Position::Current {
        file.advance(read);
    }
    if read > 0 {
        notify::file_event(file, IN_ACCESS);
    }
    Ok(read)
}

/// A write under way.
struct Writing {
    position: Position,
    /// Where it goes to in a file with positions.
    offset: u64,
    /// It goes on until everything is written.
    is_whole: bool,
}

impl Writing {
    fn begin(
        thread: &Arc<Thread>,
        file: &OpenFile,
        buffer: &mut IoBuffer<'_>,
        position: Position,
        no_wait: bool,
    ) -> Result<Writing> {
        let mut offset = 0;
        if file.ops.is_seekable() {
            offset = match position {
                Position::Current => file.own_offset(),
                Position::At(offset) => offset,
            };
            let is_elsewhere = position == Position::Current && file.ops.shares_position();
            if file.is_append() && !is_elsewhere {
                offset = file.attributes()?.size;
            }
            if !is_elsewhere {
                limit_size(thread, file, offset, buffer)?;
            } else if thread.process.rlimit(RLIMIT_FSIZE) != RLIM64_INFINITY as u64 {
                let place = if file.is_append() { file.attributes()?.size } else { file.tell()? };
                limit_size(thread, file, place, buffer)?;
            }
        }
        let is_whole = file.ops.is_stream() && !no_wait && !file.is_nonblocking();
        Ok(Writing { position, offset, is_whole })
    }

    /// Writes what there is room for. To a stream that is all, so that EAGAIN says that there is no
    /// more: who is outside tells of room only after there was none. But others have their turn
    /// after [`PIECE_BYTES`].
    fn attempt(&self, file: &OpenFile, buffer: &mut IoBuffer<'_>) -> Result<usize> {
        let most = buffer.done() + PIECE_BYTES;
        loop {
            match file.ops.write(file, buffer, self.offset)? {
                written if !self.is_whole || buffer.remaining() == 0 => return Ok(written),
                0 => return Err(Errno::EAGAIN),
                written if buffer.done() >= most => return Ok(written),
                _ => {}
            }
        }
    }

    fn finish(
        &self,
        thread: &Arc<Thread>,
        file: &OpenFile,
        buffer: &IoBuffer<'_>,
        result: Result<usize>,
    ) -> Result<usize> {
        let written = match result {
            Ok(_) if self.is_whole => buffer.done(),
            Err(error) if self.is_whole && buffer.done() > 0 => {
                // Of a pipe, who has written a part gets the signal too.
                if file.attributes().is_ok_and(|a| a.kind() == S_IFIFO) {
                    signal_broken(thread, file, error);
                }
                buffer.done()
            }
            Err(error) => return Err(signal_broken(thread, file, error)),
            Ok(written) => written,
        };
        if file.ops.is_seekable() {
            if self.position == Position::Current && !file.ops.shares_position() {
                *file.position.lock() = self.offset.saturating_add(written as u64);
            }
            if written > 0 {
                fs::open::drop_suid(&thread.creds(), file)?;
            }
        }
        if written > 0 {
            notify::file_event(file, IN_MODIFY);
        }
        Ok(written)
    }
}

/// A write that is about to be made.
pub struct Write<'a>(Transfer<'a>);

impl Write<'_> {
    /// Makes it if that need not wait; `None`: nothing has been done.
    pub fn attempt(self) -> Option<Result<usize>> {
        let Transfer { thread, file, mut buffer, position, no_wait } = self.0;
        // A wait may come after a part is written.
        if !file.ops.writes_at_once(buffer.remaining()) && may_wait(&file, no_wait)
            || takes_long(&file, &buffer)
        {
            return None;
        }
        let writing = match Writing::begin(thread, &file, &mut buffer, position, no_wait) {
            Ok(writing) => writing,
            Err(error) => return Some(Err(error)),
        };
        match writing.attempt(&file, &mut buffer) {
            Err(Errno::EAGAIN) if may_wait(&file, no_wait) && buffer.done() == 0 => None,
            // Also what ended early, at memory that is not there.
            result => Some(writing.finish(thread, &file, &buffer, result)),
        }
    }

    /// Makes it, and waits as it must.
    pub async fn complete(self) -> Result<usize> {
        let Transfer { thread, file, mut buffer, position, no_wait } = self.0;
        // What does not fit is cut off once, before the first piece.
        let writing = Writing::begin(thread, &file, &mut buffer, position, no_wait)?;
        if takes_long(&file, &buffer) {
            let transfer = |piece: &mut IoBuffer<'_>, at| {
                let writing = Writing::begin(thread, &file, piece, at, no_wait)?;
                let result = writing.attempt(&file, piece);
                writing.finish(thread, &file, piece, result)
            };
            return in_pieces(thread, &mut buffer, position, transfer).await;
        }
        let mut breath = None;
        loop {
            let attempt = || writing.attempt(&file, &mut buffer);
            let result = when_ready(thread, &file, PollMask::WRITE, no_wait, attempt).await;
            if writing.is_whole && result.is_ok() && buffer.remaining() > 0 && !thread.is_dying() {
                breath.get_or_insert_with(Breath::new).take().await;
                continue;
            }
            return writing.finish(thread, &file, &buffer, result);
        }
    }
}

/// Sends SIGPIPE if `error` is that a stream has lost its reader; the error.
pub(super) fn signal_broken(thread: &Arc<Thread>, file: &OpenFile, error: Errno) -> Errno {
    if error == Errno::EPIPE && file.ops.is_stream() {
        // It can fail only where there is no memory for it; the error says the same.
        let _ = signal::send_to_thread(thread, SigInfo::kernel(SIGPIPE));
    }
    error
}

/// Cuts a write to RLIMIT_FSIZE and to what an offset can express; past the limit: SIGXFSZ and
/// EFBIG.
fn limit_size(
    thread: &Arc<Thread>,
    file: &OpenFile,
    offset: u64,
    buffer: &mut IoBuffer<'_>,
) -> Result {
    let room =
        (i64::MAX as u64).checked_sub(offset).filter(|room| *room > 0).ok_or(Errno::EFBIG)?;
    buffer.limit(usize::try_from(room).unwrap_or(usize::MAX));
    let limit = thread.process.rlimit(RLIMIT_FSIZE);
    if limit == RLIM64_INFINITY as u64
        || buffer.remaining() == 0
        || !file.attributes()?.is_regular()
    {
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
pub fn read(thread: &Arc<Thread>, fd: Fd, buffer: Va, count: usize) -> Result<Read<'_>> {
    let file = readable(thread, fd)?;
    Ok(Read(Transfer::new(thread, file, single(thread, buffer, count))))
}

/// write(2).
pub fn write(thread: &Arc<Thread>, fd: Fd, buffer: Va, count: usize) -> Result<Write<'_>> {
    let file = writable(thread, fd)?;
    Ok(Write(Transfer::new(thread, file, single(thread, buffer, count))))
}

/// pread64(2).
pub fn pread64(
    thread: &Arc<Thread>,
    fd: Fd,
    buffer: Va,
    count: usize,
    offset: i64,
) -> Result<Read<'_>> {
    let file = readable(thread, fd)?;
    let position = at(&file, offset)?;
    Ok(Read(Transfer { position, ..Transfer::new(thread, file, single(thread, buffer, count)) }))
}

/// pwrite64(2).
pub fn pwrite64(
    thread: &Arc<Thread>,
    fd: Fd,
    buffer: Va,
    count: usize,
    offset: i64,
) -> Result<Write<'_>> {
    let file = writable(thread, fd)?;
    let position = at(&file, offset)?;
    Ok(Write(Transfer { position, ..Transfer::new(thread, file, single(thread, buffer, count)) }))
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
    let file = readable(thread, fd)?;
    let position = at(&file, offset)?;
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
    let file = writable(thread, fd)?;
    let position = at(&file, offset)?;
    Ok(Write(Transfer {
        position,
        ..Transfer::new(thread, file, vectored(thread, vectors, count)?)
    }))
}

/// Offset -1 of the "2" calls: the file's own position.
fn at_or_current(file: &OpenFile, offset: i64) -> Result<Position> {
    if offset == -1 { Ok(Position::Current) } else { at(file, offset) }
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
    if flags & !(RWF_HIPRI | RWF_NOWAIT) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let file = readable(thread, fd)?;
    let position = at_or_current(&file, offset)?;
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
    if flags & !(RWF_HIPRI | RWF_NOWAIT | RWF_DSYNC | RWF_SYNC | RWF_APPEND) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let file = writable(thread, fd)?;
    let mut position = at_or_current(&file, offset)?;
    if flags & RWF_APPEND != 0 && file.ops.is_seekable() {
        position = Position::At(file.attributes()?.size);
    }
    let no_wait = flags & RWF_NOWAIT != 0;
    let buffer = vectored(thread, vectors, count)?;
    let write = Transfer { position, no_wait, ..Transfer::new(thread, file.clone(), buffer) };
    let written = Write(write).complete().await?;
    if flags & (RWF_DSYNC | RWF_SYNC) != 0 {
        let begun = file.ops.sync(&file, flags & RWF_SYNC == 0)?;
        writeback::written(thread, begun).await?;
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
    if file.ops.shares_position() {
        return file.ops.seek(offset, whence).map(|position| position as usize);
    }
    let from = |base: u64| {
        i64::try_from(base).ok().and_then(|b| b.checked_add(offset)).ok_or(Errno::EOVERFLOW)
    };
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

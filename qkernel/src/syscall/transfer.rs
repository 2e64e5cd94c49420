//! How read(2), write(2) and their like move data: at once where they can, else waiting as the file
//! demands, in pieces between which others get the kernel.

use alloc::sync::Arc;

use linux_raw_sys::general::{
    IN_ACCESS, IN_MODIFY, RLIM64_INFINITY, RLIMIT_FSIZE, S_IFIFO, SIGPIPE, SIGXFSZ,
};

use super::message;
use crate::errno::{Errno, Result};
use crate::fs::file::Cached;
use crate::fs::position::{self, Moving};
use crate::fs::{self, FileOps, OpenFile, ask, disk, notify};
use crate::io::IoBuffer;
use crate::mm::reclaim;
use crate::net::Socket;
use crate::task::signal::{self, SigInfo};
use crate::task::{Thread, oom};
use crate::time;
use crate::time::breath::{Breath, PIECE_BYTES};
use crate::wait::{PollMask, Sleeper, WaitQueue, block_on};

/// Where a transfer happens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Position {
    /// The file's own, which moves.
    Current,
    /// This one.
    At(u64),
}

impl Position {
    /// As a number.
    fn offset(self, file: &OpenFile) -> u64 {
        match self {
            Position::Current => file.own_offset(),
            Position::At(offset) => offset,
        }
    }

    /// True if another call moves it now.
    fn is_taken(self, file: &OpenFile) -> bool {
        self == Position::Current && position::is_moving(file)
    }

    /// Takes it from others for a call that moves it step by step.
    async fn hold(self, thread: &Thread, file: &OpenFile) -> Result<Option<Moving>> {
        match self {
            Position::Current if file.ops.queue().is_none() => {
                position::hold(thread, file).await.map(Some)
            }
            _ => Ok(None),
        }
    }

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
    thread: &Arc<Thread>,
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
                let is_short = bytes < wanted && !misses_memory(thread, bytes).await;
                if is_short || buffer.remaining() == 0 || thread.is_dying() {
                    return Ok(all);
                }
            }
            Err(Errno::ERESTARTNOMEM) if oom::copy_may_go_on(thread).await => {}
            Err(error) if all == 0 => return Err(error),
            Err(_) => return Ok(all),
        }
        breath.take().await;
    }
}

/// True if a transfer of so many bytes may have been cut short for want of memory, and now there is
/// some.
async fn misses_memory(thread: &Arc<Thread>, bytes: usize) -> bool {
    bytes > 0 && reclaim::is_short() && oom::copy_may_go_on(thread).await
}

/// How long it is waited at first, and at most, for a file that may miss room. Who reads a terminal
/// and stops does not mind a writer that is late.
const FIRST_PAUSE_NS: u64 = 20_000_000;
const LONGEST_PAUSE_NS: u64 = 1_000_000_000;

/// Waits as the file's flags and kind demand, for `attempt` to give something else than EAGAIN.
async fn when_ready<T>(
    thread: &Arc<Thread>,
    file: &Arc<OpenFile>,
    mask: PollMask,
    no_wait: bool,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    loop {
        match when_open(thread, file, mask, no_wait, &mut attempt).await {
            Err(Errno::ERESTARTNOMEM) if oom::copy_may_go_on(thread).await => {}
            result => return result,
        }
    }
}

/// The same, until memory is missing for a copy (ERESTARTNOMEM).
async fn when_open<T>(
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
    waited(thread, file, queue, mask, attempt).await
}

/// As [`when_ready`], whatever the file's flags say.
pub(super) async fn whenever_ready<T>(
    thread: &Arc<Thread>,
    file: &Arc<OpenFile>,
    mask: PollMask,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    loop {
        let result = match file.ops.queue() {
            Some(queue) => waited(thread, file, queue, mask, &mut attempt).await,
            None => attempt(),
        };
        match result {
            Err(Errno::ERESTARTNOMEM) if oom::copy_may_go_on(thread).await => {}
            result => return result,
        }
    }
}

async fn waited<T>(
    thread: &Arc<Thread>,
    file: &Arc<OpenFile>,
    queue: &WaitQueue,
    mask: PollMask,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let ops: &dyn FileOps = &*file.ops;
    let deadline = match ops.wait_limit_ns(mask.contains(PollMask::OUT)) {
        0 => None,
        limit => Some(time::deadline_after(limit)),
    };
    let mut pause_ns = FIRST_PAUSE_NS;
    while mask.contains(PollMask::OUT) && ops.may_miss_room() {
        let pause = Some(time::deadline_after(pause_ns));
        match block_on(thread, &[queue], mask, pause, &mut attempt).await {
            Err(Errno::ETIMEDOUT) => pause_ns = LONGEST_PAUSE_NS.min(pause_ns * 2),
            result => return result,
        }
    }
    match block_on(thread, &[queue], mask, deadline, attempt).await {
        Err(Errno::ETIMEDOUT) if deadline.is_some() => Err(Errno::EAGAIN),
        // signal(7): with a timeout they are not restarted.
        Err(Errno::ERESTARTSYS) if deadline.is_some() => Err(Errno::EINTR),
        result => result,
    }
}

/// What is about to be read or written.
pub(super) struct Transfer<'a> {
    pub(super) thread: &'a Arc<Thread>,
    pub(super) file: Arc<OpenFile>,
    pub(super) buffer: IoBuffer<'static>,
    pub(super) position: Position,
    pub(super) no_wait: bool,
    /// It is written at the file's end (RWF_APPEND).
    pub(super) appends: bool,
}

impl<'a> Transfer<'a> {
    /// One at the file's own position, which waits if the file says so.
    pub(super) fn new(
        thread: &'a Arc<Thread>,
        file: Arc<OpenFile>,
        buffer: IoBuffer<'static>,
    ) -> Self {
        let position = Position::Current;
        Transfer { thread, file, buffer, position, no_wait: false, appends: false }
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
pub struct Read<'a>(pub(super) Transfer<'a>);

impl Read<'_> {
    /// Makes it if that need not wait; `None`: nothing has been done.
    pub fn attempt(self) -> Option<Result<usize>> {
        let Transfer { file, mut buffer, position, no_wait, .. } = self.0;
        if has_low_water(&file)
            || takes_long(&file, &buffer)
            || position.is_taken(&file)
            || ask::guards(&file)
        {
            return None;
        }
        match read_once(&file, &mut buffer, position) {
            Err(Errno::EAGAIN) if may_wait(&file, no_wait) => None,
            Ok(found) if !found.is_all && !no_wait => None,
            // It may be less than there is, for want of memory; nothing but the buffer has moved.
            Ok(_)
                if reclaim::is_short()
                    && file.ops.queue().is_none()
                    && !file.ops.shares_position() =>
            {
                None
            }
            Ok(Cached { bytes: 0, is_all: false }) => Some(Err(Errno::EAGAIN)),
            result => Some(result.map(|found| has_read(&file, position, found.bytes))),
        }
    }

    /// Makes it, and waits as it must.
    pub async fn complete(self) -> Result<usize> {
        let Transfer { thread, file, mut buffer, position, no_wait, .. } = self.0;
        if has_low_water(&file) {
            let how = (&*file, !file.is_nonblocking());
            let received = message::receive(thread, how, &mut buffer, 0, false, 0).await;
            return received.map(|got| got.bytes);
        }
        ask::before_reading(thread, &file).await?;
        let _moving = position.hold(thread, &file).await?;
        if file.ops.queue().is_none() {
            return read_file(thread, &file, &mut buffer, position, no_wait).await;
        }
        let attempt = || {
            let found = read_once(&file, &mut buffer, position)?;
            Ok(has_read(&file, position, found.bytes))
        };
        when_ready(thread, &file, PollMask::READ, no_wait, attempt).await
    }
}

/// One attempt, which does not wait: EAGAIN. Nothing but the buffer moves.
pub(super) fn read_once(
    file: &OpenFile,
    buffer: &mut IoBuffer<'_>,
    position: Position,
) -> Result<Cached> {
    file.ops.read_cached(file, buffer, position.offset(file))
}

/// So much was read, which is given back.
pub(super) fn has_read(file: &OpenFile, position: Position, bytes: usize) -> usize {
    if position == Position::Current {
        file.advance(bytes);
    }
    if bytes > 0 {
        notify::file_event(file, IN_ACCESS);
    }
    bytes
}

/// Reads a file that is always ready, piece by piece, until one is short or fails, or the thread is
/// to end: the bytes, or the first piece's error. A disk is waited for unless `no_wait`: EAGAIN.
pub(super) async fn read_file(
    thread: &Arc<Thread>,
    file: &OpenFile,
    buffer: &mut IoBuffer<'_>,
    mut position: Position,
    no_wait: bool,
) -> Result<usize> {
    let mut breath = Breath::new();
    let mut all = 0;
    // The disk has just been waited for: what is to come is cached, or is read all the same.
    let mut is_fetched = false;
    loop {
        let wanted = buffer.remaining().min(PIECE_BYTES);
        let result = buffer.piece(PIECE_BYTES, |piece| match is_fetched {
            false => read_once(file, piece, position),
            true => file.ops.read(file, piece, position.offset(file)).map(Cached::all),
        });
        let Cached { bytes, is_all } = match result {
            Ok(found) => found,
            Err(Errno::ERESTARTNOMEM) if oom::copy_may_go_on(thread).await => continue,
            Err(error) if all == 0 => return Err(error),
            Err(_) => return Ok(all),
        };
        all += has_read(file, position, bytes);
        position = position.after(bytes);
        let is_cut = bytes < wanted && buffer.remaining() > 0 && misses_memory(thread, bytes).await;
        let is_end = bytes < wanted && !is_cut || buffer.remaining() == 0;
        let is_over = if is_all { is_end } else { no_wait };
        if is_over || thread.is_dying() {
            return if all == 0 && !is_all { Err(Errno::EAGAIN) } else { Ok(all) };
        }
        is_fetched = !is_all;
        if is_all {
            breath.take().await;
        } else if let Ok(begun) = file.ops.fetch(file, position.offset(file), buffer.remaining()) {
            // Whether it can be read, and why not, the read itself says.
            if disk::finished(thread, begun).await == Err(Errno::ERESTARTSYS) {
                return Err(Errno::ERESTARTSYS);
            }
        }
    }
}

/// A write under way.
pub(super) struct Writing {
    position: Position,
    /// Where it goes to in a file with positions.
    offset: u64,
    /// It goes on until everything is written.
    is_whole: bool,
}

impl Writing {
    pub(super) fn begin(
        thread: &Arc<Thread>,
        file: &OpenFile,
        buffer: &mut IoBuffer<'_>,
        position: Position,
        no_wait: bool,
        appends: bool,
    ) -> Result<Writing> {
        let mut offset = 0;
        if file.ops.is_seekable() {
            offset = position.offset(file);
            let is_elsewhere = position == Position::Current && file.ops.shares_position();
            if (appends || file.is_append()) && !is_elsewhere {
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
    pub(super) fn attempt(&self, file: &OpenFile, buffer: &mut IoBuffer<'_>) -> Result<usize> {
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

    pub(super) fn finish(
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
            let has_own = self.position == Position::Current && !file.ops.shares_position();
            if has_own && written > 0 {
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
pub struct Write<'a>(pub(super) Transfer<'a>);

impl Write<'_> {
    /// Makes it if that need not wait; `None`: nothing has been done.
    pub fn attempt(self) -> Option<Result<usize>> {
        let Transfer { thread, file, mut buffer, position, no_wait, appends } = self.0;
        // A wait may come after a part is written.
        if !file.ops.writes_at_once(buffer.remaining()) && may_wait(&file, no_wait)
            || takes_long(&file, &buffer)
            || disk::is_synchronous(file.flags())
            || position.is_taken(&file)
        {
            return None;
        }
        let writing = match Writing::begin(thread, &file, &mut buffer, position, no_wait, appends) {
            Ok(writing) => writing,
            Err(error) => return Some(Err(error)),
        };
        match writing.attempt(&file, &mut buffer) {
            Err(Errno::EAGAIN) if may_wait(&file, no_wait) && buffer.done() == 0 => None,
            // It is written again, all of it: at the same place.
            Ok(_)
                if reclaim::is_short()
                    && buffer.remaining() > 0
                    && file.ops.is_seekable()
                    && !file.is_append()
                    && !appends
                    && !file.ops.shares_position() =>
            {
                None
            }
            // Also what ended early, at memory that is not there.
            result => Some(writing.finish(thread, &file, &buffer, result)),
        }
    }

    /// Makes it, and waits as it must.
    pub async fn complete(self) -> Result<usize> {
        let (thread, file) = (self.0.thread, self.0.file.clone());
        let written = self.transfer().await?;
        disk::settle(thread, &file, file.flags(), written).await?;
        Ok(written)
    }

    /// Makes it as far as the file takes it.
    pub(super) async fn transfer(self) -> Result<usize> {
        let Transfer { thread, file, mut buffer, position, no_wait, appends } = self.0;
        let _moving = position.hold(thread, &file).await?;
        // What does not fit is cut off once, before the first piece.
        let writing = Writing::begin(thread, &file, &mut buffer, position, no_wait, appends)?;
        if takes_long(&file, &buffer) || reclaim::is_short() && file.ops.queue().is_none() {
            let transfer = |piece: &mut IoBuffer<'_>, at| {
                let writing = Writing::begin(thread, &file, piece, at, no_wait, appends)?;
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

/// Cuts a write to RLIMIT_FSIZE; past the limit: SIGXFSZ and EFBIG.
fn limit_size(
    thread: &Arc<Thread>,
    file: &OpenFile,
    offset: u64,
    buffer: &mut IoBuffer<'_>,
) -> Result {
    // As Linux has it for all that ends beyond what an offset can express.
    let end = offset.checked_add(buffer.remaining() as u64);
    if end.is_none_or(|end| end > i64::MAX as u64) {
        return Err(Errno::EINVAL);
    }
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

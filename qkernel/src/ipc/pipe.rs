//! Pipes and FIFOs (pipe(7), fifo(7)). The buffer is a queue of chunks, each allocated when it is
//! written and freed when it has been read, so an idle pipe holds no memory.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;

use linux_raw_sys::general::{
    CAP_SYS_RESOURCE, O_ACCMODE, O_DIRECT, O_NONBLOCK, O_RDONLY, O_RDWR, O_WRONLY,
};
use linux_raw_sys::ioctl::FIONREAD;
use qlib::{PAGE_SIZE, Va};

use crate::errno::{Errno, Result};
use crate::fs::attr::Attributes;
use crate::fs::{Caller, FileOps, OpenFile};
use crate::io::IoBuffer;
use crate::ipc::AnonInode;
use crate::sync::{Mutex, mutex};
use crate::task::Thread;
use crate::wait::{PollMask, WaitQueue, block_on};

/// Writes up to this many bytes are not torn apart.
const PIPE_BUF: usize = linux_raw_sys::general::PIPE_BUF as usize;
/// The capacity of a new pipe in bytes.
pub const DEFAULT_CAPACITY: usize = 16 * PIPE_BUF;
/// The largest capacity that needs no privilege (fs.pipe-max-size).
pub const MAX_CAPACITY: usize = 1 << 20;
/// The longest piece that is queued as one, or copied by tee(2) at once.
const MAX_PIECE: usize = 64 << 10;

/// Bytes written and not yet read.
struct Chunk {
    bytes: Vec<u8>,
    /// How many of them have been read.
    start: usize,
    /// A packet (O_DIRECT): one read takes it, and loses what does not fit.
    is_packet: bool,
}

struct PipeState {
    chunks: VecDeque<Chunk>,
    /// Unread bytes.
    len: usize,
    capacity: usize,
    readers: usize,
    writers: usize,
    /// How often each side has been opened, for the opens of a FIFO that wait for the other side.
    reader_opens: u64,
    writer_opens: u64,
}

impl PipeState {
    /// How many bytes more it takes. A packet, however short, uses up a page's worth, as on Linux.
    fn free(&self) -> usize {
        let packets = self.chunks.len() >= self.capacity / PIPE_BUF
            && self.chunks.back().is_some_and(|c| c.is_packet);
        if packets { 0 } else { self.capacity.saturating_sub(self.len) }
    }
}

/// A pipe.
pub struct Pipe {
    state: Mutex<PipeState>,
    queue: WaitQueue,
    identity: AnonInode,
}

/// One end of a pipe; an O_RDWR FIFO is both.
pub struct PipeEnd {
    pipe: Arc<Pipe>,
    reads: bool,
    writes: bool,
    /// How often the other side had been opened when this FIFO end was.
    peer_opens: u64,
}

impl Pipe {
    fn new() -> Arc<Self> {
        Arc::new(Pipe {
            state: Mutex::new(PipeState {
                chunks: VecDeque::new(),
                len: 0,
                capacity: DEFAULT_CAPACITY,
                readers: 0,
                writers: 0,
                reader_opens: 0,
                writer_opens: 0,
            }),
            queue: WaitQueue::new(),
            identity: AnonInode::new(),
        })
    }

    fn open(self: &Arc<Self>, reads: bool, writes: bool) -> PipeEnd {
        let peer_opens = {
            let mut state = self.state.lock();
            let peer_opens = if reads { state.writer_opens } else { state.reader_opens };
            if reads {
                state.readers += 1;
                state.reader_opens += 1;
            }
            if writes {
                state.writers += 1;
                state.writer_opens += 1;
            }
            peer_opens
        };
        self.queue.wake(PollMask::READ | PollMask::WRITE);
        PipeEnd { pipe: self.clone(), reads, writes, peer_opens }
    }

    /// How many of `want` bytes may be written now: EPIPE without a reader, EAGAIN when there is no
    /// room.
    fn room(&self, want: usize) -> Result<usize> {
        let mut state = self.state.lock();
        if state.readers == 0 {
            return Err(Errno::EPIPE);
        }
        let free = state.free();
        // What is appended next finds its place.
        state.chunks.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        if free == 0 || (want <= PIPE_BUF && free < want) {
            return Err(Errno::EAGAIN);
        }
        Ok(free.min(want))
    }

    fn append(&self, bytes: Vec<u8>, is_packet: bool) {
        if bytes.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        state.len += bytes.len();
        match state.chunks.back_mut() {
            Some(last)
                if !is_packet && !last.is_packet && last.bytes.len() + bytes.len() <= PIPE_BUF =>
            {
                last.bytes.extend_from_slice(&bytes);
            }
            _ => state.chunks.push_back(Chunk { bytes, start: 0, is_packet }),
        }
    }

    fn pop(&self) -> Option<Chunk> {
        let mut state = self.state.lock();
        let chunk = state.chunks.pop_front()?;
        state.len -= chunk.bytes.len() - chunk.start;
        Some(chunk)
    }

    fn unpop(&self, chunk: Chunk) {
        let mut state = self.state.lock();
        state.len += chunk.bytes.len() - chunk.start;
        state.chunks.push_front(chunk);
    }

    /// EAGAIN for a reader of an empty pipe, or nothing at its end.
    fn empty(&self) -> Result {
        if self.state.lock().writers > 0 { Err(Errno::EAGAIN) } else { Ok(()) }
    }
}

impl PipeEnd {
    /// Unread bytes in the pipe.
    pub fn len(&self) -> usize {
        self.pipe.state.lock().len
    }

    /// True if nothing is in the pipe.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The capacity in bytes (F_GETPIPE_SZ).
    pub fn capacity(&self) -> usize {
        self.pipe.state.lock().capacity
    }

    /// Sets the capacity, rounded up as Linux does (F_SETPIPE_SZ): the new one. EBUSY when more is
    /// in the pipe.
    pub fn set_capacity(&self, thread: &Thread, bytes: usize) -> Result<usize> {
        if bytes > 1 << 31 {
            return Err(Errno::EINVAL);
        }
        let capacity = bytes.max(PAGE_SIZE as usize).next_power_of_two();
        if capacity > MAX_CAPACITY && !thread.creds().has_cap(CAP_SYS_RESOURCE) {
            return Err(Errno::EPERM);
        }
        {
            let mut state = self.pipe.state.lock();
            if state.len > capacity {
                return Err(Errno::EBUSY);
            }
            state.capacity = capacity;
        }
        self.pipe.queue.wake(PollMask::WRITE);
        Ok(capacity)
    }

    /// True if both are ends of one pipe.
    pub fn is_same_pipe(&self, other: &PipeEnd) -> bool {
        Arc::ptr_eq(&self.pipe, &other.pipe)
    }

    /// For splice(2): takes up to `max` bytes out. Empty at the end; EAGAIN when there is nothing
    /// yet, EBADF at a write end.
    pub fn take(&self, max: usize) -> Result<Vec<u8>> {
        if !self.reads {
            return Err(Errno::EBADF);
        }
        let Some(mut chunk) = self.pipe.pop() else {
            return self.pipe.empty().map(|()| Vec::new());
        };
        let end = chunk.bytes.len().min(chunk.start + max);
        let bytes = chunk.bytes[chunk.start..end].to_vec();
        chunk.start = end;
        if end < chunk.bytes.len() {
            self.pipe.unpop(chunk);
        }
        self.pipe.queue.wake(PollMask::WRITE);
        Ok(bytes)
    }

    /// For splice(2): puts back what [`PipeEnd::take`] gave and could not be used.
    pub fn put_back(&self, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.pipe.unpop(Chunk { bytes, start: 0, is_packet: false });
            self.pipe.queue.wake(PollMask::READ);
        }
    }

    /// For tee(2): a copy of up to `max` unread bytes. As [`PipeEnd::take`] otherwise.
    pub fn copy(&self, max: usize) -> Result<Vec<u8>> {
        if !self.reads {
            return Err(Errno::EBADF);
        }
        let max = max.min(MAX_PIECE);
        let mut bytes = Vec::new();
        for chunk in &self.pipe.state.lock().chunks {
            let unread = &chunk.bytes[chunk.start..];
            bytes.extend_from_slice(&unread[..unread.len().min(max - bytes.len())]);
            if bytes.len() == max {
                break;
            }
        }
        if bytes.is_empty() && max > 0 {
            self.pipe.empty()?;
        }
        Ok(bytes)
    }

    /// For splice(2) and tee(2): how many of `want` bytes there is room for. EAGAIN, EPIPE, EBADF
    /// at a read end.
    pub fn room(&self, want: usize) -> Result<usize> {
        if !self.writes {
            return Err(Errno::EBADF);
        }
        // A splice may be torn apart, whatever its length.
        self.pipe.room(want.max(PIPE_BUF + 1)).map(|room| room.min(want))
    }

    /// For splice(2), tee(2) and vmsplice(2): puts bytes in for which [`PipeEnd::room`] has said
    /// that there is room.
    pub fn push(&self, bytes: Vec<u8>) {
        self.pipe.append(bytes, false);
        self.pipe.queue.wake(PollMask::READ);
    }
}

impl FileOps for PipeEnd {
    fn held_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, _offset: u64) -> Result<usize> {
        if !self.reads {
            return Err(Errno::EBADF);
        }
        if buffer.remaining() == 0 {
            return Ok(0);
        }
        let mut total = 0;
        while buffer.remaining() > 0 {
            let Some(mut chunk) = self.pipe.pop() else { break };
            if chunk.is_packet && total > 0 {
                self.pipe.unpop(chunk);
                break;
            }
            match buffer.put(&chunk.bytes[chunk.start..]) {
                Ok(copied) => {
                    total += copied;
                    chunk.start += copied;
                    if chunk.is_packet {
                        break;
                    }
                    if chunk.start < chunk.bytes.len() {
                        self.pipe.unpop(chunk);
                        break;
                    }
                }
                Err(error) => {
                    self.pipe.unpop(chunk);
                    if total == 0 {
                        return Err(error);
                    }
                    break;
                }
            }
        }
        if total == 0 {
            return self.pipe.empty().map(|()| 0);
        }
        self.pipe.queue.wake(PollMask::WRITE);
        Ok(total)
    }

    fn write(&self, file: &OpenFile, buffer: &mut IoBuffer<'_>, _offset: u64) -> Result<usize> {
        if !self.writes {
            return Err(Errno::EBADF);
        }
        if buffer.remaining() == 0 {
            return Ok(0);
        }
        let is_packet = file.flags() & O_DIRECT != 0;
        let mut total = 0;
        loop {
            // What is left of a long write may be torn apart, even its last piece.
            let want = match buffer.remaining() {
                0 => break,
                n if is_packet => n.min(PIPE_BUF),
                n if buffer.done() > 0 => n.max(PIPE_BUF + 1),
                n => n,
            };
            let room = match self.pipe.room(want) {
                Ok(room) => room,
                Err(error) if total == 0 => return Err(error),
                Err(_) => break,
            };
            let bytes = match buffer.take_vec(room.min(MAX_PIECE)) {
                Ok(bytes) => bytes,
                Err(error) if total == 0 => return Err(error),
                Err(_) => break,
            };
            if bytes.is_empty() {
                break;
            }
            total += bytes.len();
            self.pipe.append(bytes, is_packet);
        }
        self.pipe.queue.wake(PollMask::READ);
        Ok(total)
    }

    fn is_stream(&self) -> bool {
        true
    }

    fn writes_at_once(&self, bytes: usize) -> bool {
        bytes <= PIPE_BUF
    }

    fn attributes(&self, file: &OpenFile) -> Result<Attributes> {
        match &file.path {
            Some(fifo) => fifo.attributes(),
            None => Ok(self.pipe.identity.pipe()),
        }
    }

    fn poll(&self, _file: &OpenFile) -> PollMask {
        let state = self.pipe.state.lock();
        let mut mask = PollMask::empty();
        if self.reads {
            mask.set(PollMask::READ, state.len > 0);
            // A FIFO that no writer has opened since is not hung up, it is quiet.
            mask.set(PollMask::HUP, state.writers == 0 && state.writer_opens != self.peer_opens);
        }
        if self.writes {
            mask.set(PollMask::WRITE, state.free() >= PIPE_BUF);
            mask.set(PollMask::ERR, state.readers == 0);
        }
        mask
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(&self.pipe.queue)
    }

    fn ioctl(
        &self,
        caller: &dyn Caller,
        _file: &OpenFile,
        command: u32,
        argument: u64,
    ) -> Result<usize> {
        if command != FIONREAD {
            return Err(Errno::ENOTTY);
        }
        let len = i32::try_from(self.len()).unwrap_or(i32::MAX);
        caller.mm().write(Va(argument), &len).map(|()| 0)
    }

    fn release(&self, _file: &OpenFile) {
        {
            let mut state = self.pipe.state.lock();
            state.readers -= usize::from(self.reads);
            state.writers -= usize::from(self.writes);
            if state.readers == 0 && state.writers == 0 {
                // A FIFO outlives its openers only as a name.
                state.chunks.clear();
                state.len = 0;
            }
        }
        self.pipe.queue.wake(PollMask::READ | PollMask::WRITE | PollMask::ALWAYS);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A new pipe: its read end and its write end. `flags`: O_NONBLOCK, O_DIRECT.
pub fn create(flags: u32) -> (Arc<OpenFile>, Arc<OpenFile>) {
    let pipe = Pipe::new();
    let mut read = pipe.open(true, false);
    let write = pipe.open(false, true);
    read.peer_opens = 0;
    let flags = flags & (O_NONBLOCK | O_DIRECT);
    (
        OpenFile::new(Arc::new(read), O_RDONLY | flags),
        OpenFile::new(Arc::new(write), O_WRONLY | flags),
    )
}

/// The pipes behind FIFOs that are open, by device and inode number.
static FIFOS: Mutex<BTreeMap<(u64, u64), Weak<Pipe>>> = mutex(BTreeMap::new());

/// Opens the FIFO with this device and inode number. The caller then awaits [`finish_open`] on the
/// new description. ENXIO: opened for writing only, without waiting, and nobody reads.
pub fn open_fifo(device: u64, inode: u64, flags: u32) -> Result<Arc<dyn FileOps>> {
    let pipe = {
        let mut fifos = FIFOS.lock();
        fifos.retain(|_, pipe| pipe.strong_count() > 0);
        let known = fifos.get(&(device, inode)).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let pipe = Pipe::new();
            fifos.insert((device, inode), Arc::downgrade(&pipe));
            pipe
        })
    };
    let (reads, writes) = match flags & O_ACCMODE {
        O_RDONLY => (true, false),
        O_WRONLY => (false, true),
        O_RDWR => (true, true),
        _ => return Err(Errno::EINVAL),
    };
    if writes && !reads && flags & O_NONBLOCK != 0 && pipe.state.lock().readers == 0 {
        return Err(Errno::ENXIO);
    }
    Ok(Arc::new(pipe.open(reads, writes)))
}

/// Waits, as open(2) of a FIFO does, until the other side is open too. Returns at once for other
/// files, and with O_NONBLOCK.
pub async fn finish_open(thread: &Thread, file: &OpenFile) -> Result {
    let Some(end) = file.downcast::<PipeEnd>() else { return Ok(()) };
    if file.is_nonblocking() || (end.reads && end.writes) {
        return Ok(());
    }
    let is_joined = || {
        let state = end.pipe.state.lock();
        let (there, opens) = if end.reads {
            (state.writers, state.writer_opens)
        } else {
            (state.readers, state.reader_opens)
        };
        if there > 0 || opens != end.peer_opens { Ok(()) } else { Err(Errno::EAGAIN) }
    };
    block_on(thread, &[&end.pipe.queue], PollMask::READ | PollMask::WRITE, None, is_joined).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(file: &OpenFile, bytes: &[u8]) -> Result<usize> {
        file.ops.write(file, &mut IoBuffer::kernel_const(bytes), 0)
    }

    fn read(file: &OpenFile, max: usize) -> Result<Vec<u8>> {
        let mut bytes = alloc::vec![0; max];
        let got = file.ops.read(file, &mut IoBuffer::kernel(&mut bytes), 0)?;
        bytes.truncate(got);
        Ok(bytes)
    }

    #[test]
    fn bytes_come_out_in_order_across_chunks() {
        let (r, w) = create(0);
        assert_eq!(read(&r, 9), Err(Errno::EAGAIN));
        assert_eq!(write(&w, b"hello "), Ok(6));
        assert_eq!(write(&w, b"world"), Ok(5));
        assert_eq!(read(&r, 3).expect("data"), b"hel");
        assert_eq!(read(&r, 99).expect("data"), b"lo world");
        assert_eq!(read(&r, 1), Err(Errno::EAGAIN));
    }

    #[test]
    fn short_writes_are_whole_and_long_ones_fill_the_pipe() {
        let (r, w) = create(0);
        assert_eq!(write(&w, &[1; DEFAULT_CAPACITY - 10]), Ok(DEFAULT_CAPACITY - 10));
        assert_eq!(write(&w, &[2; 11]), Err(Errno::EAGAIN));
        assert_eq!(write(&w, &[3; PIPE_BUF + 1]), Ok(10));
        assert!(!w.poll().contains(PollMask::OUT));
        assert_eq!(read(&r, DEFAULT_CAPACITY).map(|b| b.len()), Ok(DEFAULT_CAPACITY));
        assert!(w.poll().contains(PollMask::OUT));
    }

    #[test]
    fn the_ends_see_each_other_close() {
        let (r, w) = create(0);
        assert_eq!(write(&w, b"x"), Ok(1));
        drop(w);
        assert!(r.poll().contains(PollMask::HUP | PollMask::IN));
        assert_eq!(read(&r, 9).expect("data"), b"x");
        assert_eq!(read(&r, 9).expect("end"), b"");
        let (r, w) = create(0);
        drop(r);
        assert_eq!(write(&w, b"x"), Err(Errno::EPIPE));
        assert!(w.poll().contains(PollMask::ERR));
    }

    #[test]
    fn packets_keep_their_bounds() {
        let (r, w) = create(O_DIRECT);
        assert_eq!(write(&w, b"one"), Ok(3));
        assert_eq!(write(&w, b"two"), Ok(3));
        assert_eq!(read(&r, 2).expect("data"), b"on");
        assert_eq!(read(&r, 9).expect("data"), b"two");
    }

    #[test]
    fn splice_takes_and_puts_back() {
        let (r, w) = create(0);
        let (from, to) =
            (r.downcast::<PipeEnd>().expect("a pipe"), w.downcast::<PipeEnd>().expect("a pipe"));
        assert!(from.is_same_pipe(to));
        to.push(b"abcdef".to_vec());
        assert_eq!(from.copy(4).expect("data"), b"abcd");
        let taken = from.take(3).expect("data");
        from.put_back(taken[1..].to_vec());
        assert_eq!(read(&r, 9).expect("data"), b"bcdef");
        assert_eq!(from.take(3), Err(Errno::EAGAIN));
        assert_eq!(from.take(3).is_err(), to.take(3).is_err());
    }

    #[test]
    fn fifos_are_found_by_inode() {
        assert_eq!(open_fifo(9, 1, O_WRONLY | O_NONBLOCK).err(), Some(Errno::ENXIO));
        let r = OpenFile::new(open_fifo(9, 1, O_RDONLY | O_NONBLOCK).expect("open"), O_RDONLY);
        assert!(!r.poll().contains(PollMask::HUP));
        assert_eq!(read(&r, 1).expect("end"), b"");
        let w = OpenFile::new(open_fifo(9, 1, O_WRONLY).expect("open"), O_WRONLY);
        assert_eq!(write(&w, b"q"), Ok(1));
        assert_eq!(read(&r, 9).expect("data"), b"q");
        drop(w);
        assert!(r.poll().contains(PollMask::HUP));
    }
}

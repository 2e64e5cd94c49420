//! Pipes and FIFOs (pipe(7), fifo(7)). The buffer is a queue of chunks, each allocated when it is
//! written and freed when it has been read, so an idle pipe holds no memory. Its room is counted in
//! pages as on Linux: what is written begins a new page, unless its last, broken page fits behind
//! what the last write left; a page has room again when all of it has been read.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;

use linux_raw_sys::general::{
    CAP_SYS_RESOURCE, O_ACCMODE, O_DIRECT, O_NONBLOCK, O_RDONLY, O_RDWR, O_WRONLY,
};
use qlib::PAGE_SIZE;

use crate::errno::{Errno, Result};
use crate::fs::attr::{Attributes, SetAttributes, StatFs};
use crate::fs::file::tell_unread;
use crate::fs::inode::simple_statfs;
use crate::fs::{Caller, FileOps, OpenFile, Tells};
use crate::io::IoBuffer;
use crate::ipc::AnonInode;
use crate::sync::{Mutex, mutex};
use crate::task::Thread;
use crate::wait::{PollMask, WaitQueue, block_on};

/// Of pipes without a name (magic.h).
const PIPEFS_MAGIC: u32 = 0x5049_5045;
/// Writes up to this many bytes are not torn apart.
const PIPE_BUF: usize = linux_raw_sys::general::PIPE_BUF as usize;
/// The capacity of a new pipe in bytes.
pub const DEFAULT_CAPACITY: usize = 16 * PIPE_BUF;
/// The largest capacity that needs no privilege (fs.pipe-max-size).
pub const MAX_CAPACITY: usize = 1 << 20;
/// The longest piece that is queued as one, or copied by tee(2) at once: whole pages.
const MAX_PIECE: usize = 64 << 10;
/// Bytes of a page of the buffer.
const PAGE: usize = PAGE_SIZE as usize;

/// Bytes written and not yet read.
struct Chunk {
    bytes: Vec<u8>,
    /// How many of them have been read.
    start: usize,
    kind: ChunkKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ChunkKind {
    /// Written; what is written next may follow on its last page.
    Written,
    /// A packet (O_DIRECT): one read takes it, and loses what does not fit.
    Packet,
    /// Came by splice(2) or its like.
    Spliced,
}

impl Chunk {
    /// Pages that it takes.
    fn pages(&self) -> usize {
        self.bytes.len().div_ceil(PAGE) - self.start / PAGE
    }
}

/// What a write may add.
struct Room {
    bytes: usize,
    /// So many of them, the first, go to the page that the last write left.
    behind_last: usize,
}

struct PipeState {
    chunks: VecDeque<Chunk>,
    /// Unread bytes.
    len: usize,
    /// Pages taken.
    pages: usize,
    /// Bytes, in whole pages.
    capacity: usize,
    readers: usize,
    writers: usize,
    /// How often each side has been opened, for the opens of a FIFO that wait for the other side.
    reader_opens: u64,
    writer_opens: u64,
}

impl PipeState {
    fn free_pages(&self) -> usize {
        (self.capacity / PAGE).saturating_sub(self.pages)
    }

    /// How many of the bytes of a write of `want` find a place behind the last one: those beyond
    /// whole pages, or none.
    fn behind_last(&self, want: usize) -> usize {
        let beyond = want % PAGE;
        match self.chunks.back() {
            Some(Chunk { bytes, kind: ChunkKind::Written, .. })
                if bytes.len() % PAGE != 0 && bytes.len() % PAGE + beyond <= PAGE =>
            {
                beyond
            }
            _ => 0,
        }
    }

    fn push(&mut self, chunk: Chunk) {
        if !chunk.bytes.is_empty() {
            self.len += chunk.bytes.len();
            self.pages += chunk.pages();
            self.chunks.push_back(chunk);
        }
    }
}

/// A pipe.
pub struct Pipe {
    state: Mutex<PipeState>,
    /// Those who watch its read ends, its write ends, and those that are both.
    readers: WaitQueue,
    writers: WaitQueue,
    both: WaitQueue,
    identity: AnonInode,
}

/// One end of a pipe; an O_RDWR FIFO is both.
pub struct PipeEnd {
    pipe: Arc<Pipe>,
    reads: bool,
    writes: bool,
    /// How often the other side had been opened when this FIFO end was, and nobody had that open:
    /// until somebody has, there is none who could have hung up.
    peer_opens: Option<u64>,
}

impl Pipe {
    fn new() -> Arc<Self> {
        Arc::new(Pipe {
            state: Mutex::new(PipeState {
                chunks: VecDeque::new(),
                len: 0,
                pages: 0,
                capacity: DEFAULT_CAPACITY,
                readers: 0,
                writers: 0,
                reader_opens: 0,
                writer_opens: 0,
            }),
            readers: WaitQueue::new(),
            writers: WaitQueue::new(),
            both: WaitQueue::new(),
            identity: AnonInode::new(),
        })
    }

    /// Notifies those whom `events` concern: as on Linux, who watches a write end hears nothing of
    /// what is written.
    fn wake(&self, events: PollMask) {
        if events.intersects(PollMask::READ | PollMask::ALWAYS) {
            self.readers.wake(events);
        }
        if events.intersects(PollMask::WRITE | PollMask::ALWAYS) {
            self.writers.wake(events);
        }
        self.both.wake(events);
    }

    fn open(self: &Arc<Self>, reads: bool, writes: bool) -> PipeEnd {
        let peer_opens = {
            let mut state = self.state.lock();
            let (there, opens) = if reads {
                (state.writers, state.writer_opens)
            } else {
                (state.readers, state.reader_opens)
            };
            if reads {
                state.readers += 1;
                state.reader_opens += 1;
            }
            if writes {
                state.writers += 1;
                state.writer_opens += 1;
            }
            (there == 0).then_some(opens)
        };
        self.wake(PollMask::READ | PollMask::WRITE);
        PipeEnd { pipe: self.clone(), reads, writes, peer_opens }
    }

    /// What of `want` bytes may be written now: EPIPE without a reader, EAGAIN without room.
    /// `begins`: a write that is not a packet begins with them.
    fn room(&self, want: usize, begins: bool) -> Result<Room> {
        let mut state = self.state.lock();
        if state.readers == 0 {
            return Err(Errno::EPIPE);
        }
        // What is appended next finds its place.
        state.chunks.try_reserve(2).map_err(|_| Errno::ENOMEM)?;
        let behind_last = if begins { state.behind_last(want) } else { 0 };
        match state.free_pages() * PAGE + behind_last {
            0 => Err(Errno::EAGAIN),
            free => Ok(Room { bytes: free.min(want), behind_last }),
        }
    }

    /// Adds bytes for which there is [room](Self::room).
    fn append(&self, mut bytes: Vec<u8>, behind_last: usize, kind: ChunkKind) {
        let mut state = self.state.lock();
        if behind_last > 0
            && let Some(last) = state.chunks.back_mut()
        {
            let rest = bytes.split_off(behind_last.min(bytes.len()));
            last.bytes.extend_from_slice(&bytes);
            state.len += bytes.len();
            bytes = rest;
        }
        // What may grow is no longer than a page.
        let broken = match kind {
            ChunkKind::Written => bytes.split_off(bytes.len() / PAGE * PAGE),
            _ => Vec::new(),
        };
        for bytes in [bytes, broken] {
            state.push(Chunk { bytes, start: 0, kind });
        }
    }

    /// Takes the oldest chunk out, and whether the pipe was full.
    fn pop(&self) -> Option<(Chunk, bool)> {
        let mut state = self.state.lock();
        let was_full = state.free_pages() == 0;
        let chunk = state.chunks.pop_front()?;
        state.len -= chunk.bytes.len() - chunk.start;
        state.pages -= chunk.pages();
        Some((chunk, was_full))
    }

    /// Puts one back at the front, if anything of it is left.
    fn unpop(&self, chunk: Chunk) {
        if chunk.start < chunk.bytes.len() {
            let mut state = self.state.lock();
            state.len += chunk.bytes.len() - chunk.start;
            state.pages += chunk.pages();
            state.chunks.push_front(chunk);
        }
    }

    /// Something has been read: those who write hear of it if the pipe was full, and is no longer.
    fn was_read(&self, was_full: bool) {
        if was_full && self.state.lock().free_pages() > 0 {
            self.wake(PollMask::WRITE);
        }
    }

    /// EAGAIN for a reader of an empty pipe, or nothing at its end.
    fn empty(&self) -> Result {
        if self.state.lock().writers > 0 { Err(Errno::EAGAIN) } else { Ok(()) }
    }
}

impl PipeEnd {
    /// What notifies of readiness.
    fn events(&self) -> &WaitQueue {
        match (self.reads, self.writes) {
            (true, true) => &self.pipe.both,
            (true, false) => &self.pipe.readers,
            _ => &self.pipe.writers,
        }
    }

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
        if capacity > MAX_CAPACITY && !thread.creds().capable(CAP_SYS_RESOURCE) {
            return Err(Errno::EPERM);
        }
        {
            let mut state = self.pipe.state.lock();
            if state.pages > capacity / PAGE {
                return Err(Errno::EBUSY);
            }
            state.capacity = capacity;
        }
        self.pipe.wake(PollMask::WRITE);
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
        let Some((mut chunk, was_full)) = self.pipe.pop() else {
            return self.pipe.empty().map(|()| Vec::new());
        };
        let end = chunk.bytes.len().min(chunk.start + max);
        let bytes = chunk.bytes[chunk.start..end].to_vec();
        chunk.start = end;
        self.pipe.unpop(chunk);
        self.pipe.was_read(was_full);
        Ok(bytes)
    }

    /// For splice(2): puts back what [`PipeEnd::take`] gave and could not be used.
    pub fn put_back(&self, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.pipe.unpop(Chunk { bytes, start: 0, kind: ChunkKind::Spliced });
            self.pipe.wake(PollMask::READ);
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
        self.pipe.room(want, false).map(|room| room.bytes)
    }

    /// For splice(2), tee(2) and vmsplice(2): puts bytes in for which [`PipeEnd::room`] has said
    /// that there is room.
    pub fn push(&self, bytes: Vec<u8>) {
        self.pipe.append(bytes, 0, ChunkKind::Spliced);
        self.pipe.wake(PollMask::READ);
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
        let (mut total, mut was_full) = (0, None);
        while buffer.remaining() > 0 {
            let Some((mut chunk, full)) = self.pipe.pop() else { break };
            was_full.get_or_insert(full);
            let is_packet = chunk.kind == ChunkKind::Packet;
            if is_packet && total > 0 {
                self.pipe.unpop(chunk);
                break;
            }
            match buffer.put(&chunk.bytes[chunk.start..]) {
                Ok(copied) => {
                    total += copied;
                    chunk.start += copied;
                    if is_packet {
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
        self.pipe.was_read(was_full == Some(true));
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
            let want = match buffer.remaining() {
                0 => break,
                n if is_packet => n.min(PIPE_BUF),
                n => n,
            };
            let room = match self.pipe.room(want, !is_packet && buffer.done() == 0) {
                Ok(room) => room,
                Err(error) if total == 0 => return Err(error),
                Err(_) => break,
            };
            let piece = room.bytes.min(room.behind_last + MAX_PIECE);
            let bytes = match buffer.take_vec(piece) {
                Ok(bytes) => bytes,
                Err(error) if total == 0 => return Err(error),
                Err(_) => break,
            };
            if bytes.is_empty() {
                break;
            }
            total += bytes.len();
            let kind = if is_packet { ChunkKind::Packet } else { ChunkKind::Written };
            self.pipe.append(bytes, room.behind_last, kind);
        }
        self.pipe.wake(PollMask::READ);
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

    fn set_attributes(&self, file: &OpenFile, change: &SetAttributes) -> Result {
        match &file.path {
            Some(fifo) => fifo.inode().set_attributes(change),
            None => {
                self.pipe.identity.change(change);
                Ok(())
            }
        }
    }

    fn statfs(&self, file: &OpenFile) -> Result<StatFs> {
        match &file.path {
            Some(fifo) => fifo.dentry.fs.statfs(),
            None => Ok(simple_statfs(PIPEFS_MAGIC)),
        }
    }

    fn poll(&self, _file: &OpenFile) -> PollMask {
        let state = self.pipe.state.lock();
        let mut mask = PollMask::empty();
        if self.reads {
            mask.set(PollMask::READ, state.len > 0);
            // A FIFO that no writer has opened since is not hung up, it is quiet.
            mask.set(
                PollMask::HUP,
                state.writers == 0 && Some(state.writer_opens) != self.peer_opens,
            );
        }
        if self.writes {
            mask.set(PollMask::WRITE, state.free_pages() > 0);
            mask.set(PollMask::ERR, state.readers == 0);
        }
        mask
    }

    fn tells(&self) -> Tells {
        Tells::Data
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(self.events())
    }

    fn ioctl(
        &self,
        caller: &dyn Caller,
        _file: &OpenFile,
        command: u32,
        argument: u64,
    ) -> Result<usize> {
        tell_unread(caller, command, argument, || self.len())
    }

    fn release(&self, _file: &OpenFile) {
        {
            let mut state = self.pipe.state.lock();
            state.readers -= usize::from(self.reads);
            state.writers -= usize::from(self.writes);
            if state.readers == 0 && state.writers == 0 {
                // A FIFO outlives its openers only as a name.
                state.chunks.clear();
                (state.len, state.pages) = (0, 0);
            }
        }
        self.pipe.wake(PollMask::READ | PollMask::WRITE | PollMask::ALWAYS);
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
    read.peer_opens = None;
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
        if there > 0 || Some(opens) != end.peer_opens { Ok(()) } else { Err(Errno::EAGAIN) }
    };
    block_on(thread, &[end.events()], PollMask::READ | PollMask::WRITE, None, is_joined).await
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
        assert_eq!(write(&w, &[3; PIPE_BUF + 1]), Ok(1));
        assert!(!w.poll().contains(PollMask::OUT));
        assert_eq!(read(&r, DEFAULT_CAPACITY).map(|b| b.len()), Ok(DEFAULT_CAPACITY - 9));
        assert!(w.poll().contains(PollMask::OUT));
    }

    #[test]
    fn room_is_counted_in_pages() {
        let (r, w) = create(0);
        // A page each, as neither fits behind the last one.
        for _ in 0..15 {
            assert_eq!(write(&w, &[1; PAGE / 2 + 1]), Ok(PAGE / 2 + 1));
        }
        assert_eq!(write(&w, &[1; PAGE]), Ok(PAGE));
        assert!(!w.poll().contains(PollMask::OUT));
        assert_eq!(write(&w, &[1]), Err(Errno::EAGAIN), "the last page is full");
        assert_eq!(read(&r, PAGE / 2).map(|b| b.len()), Ok(PAGE / 2));
        assert!(!w.poll().contains(PollMask::OUT), "a page is there until all of it is read");
        assert_eq!(read(&r, 1).map(|b| b.len()), Ok(1));
        assert!(w.poll().contains(PollMask::OUT));
        // Behind the last one goes what is beyond whole pages, if all of it fits.
        assert_eq!(write(&w, &[2; 100]), Ok(100));
        assert_eq!(write(&w, &[2; PAGE]), Err(Errno::EAGAIN));
        assert_eq!(write(&w, &[2; PAGE + 30]), Ok(30));
        assert_eq!(write(&w, &[2; PAGE - 129]), Err(Errno::EAGAIN));
        assert_eq!(write(&w, &[2; PAGE - 130]), Ok(PAGE - 130));
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
        // One that came when there was a writer has been left by it, too.
        let w = OpenFile::new(open_fifo(9, 1, O_WRONLY).expect("open"), O_WRONLY);
        let late = OpenFile::new(open_fifo(9, 1, O_RDONLY | O_NONBLOCK).expect("open"), O_RDONLY);
        assert!(!late.poll().contains(PollMask::HUP));
        drop(w);
        assert!(late.poll().contains(PollMask::HUP));
    }
}

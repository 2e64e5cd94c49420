//! Buffers of reads and writes: user memory named by iovecs, or memory of the kernel itself. A file
//! copies into or out of one without knowing which, or asks for guest physical segments and lets
//! the host do the copying.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;

use qlib::host::Segment;
use qlib::{Gpa, PAGE_SIZE, Va};

use crate::account;
use crate::arch;
use crate::errno::{Errno, Result};
use crate::mm::fault::Spare;
use crate::mm::{Access, AddressSpace, reclaim};

/// The longest single transfer, as Linux has it (MAX_RW_COUNT).
pub const MAX_TRANSFER_BYTES: usize = 0x7fff_f000;

/// So much of a buffer is copied on what is kept when memory is used up: as much as one message.
const SPARED_BYTES: usize = 64 << 10;

/// For a byte of a buffer: what is long can go on later.
fn spare_at(done: usize) -> Spare {
    if done < SPARED_BYTES { Spare::Some } else { Spare::None }
}

enum Memory<'a> {
    User { space: Arc<AddressSpace>, ranges: Ranges },
    Kernel(&'a mut [u8]),
    KernelConst(&'a [u8]),
}

/// Ranges of user memory. Most calls have one only.
enum Ranges {
    One([(Va, usize); 1]),
    Many(Vec<(Va, usize)>),
}

impl Deref for Ranges {
    type Target = [(Va, usize)];

    fn deref(&self) -> &[(Va, usize)] {
        match self {
            Ranges::One(range) => range,
            Ranges::Many(ranges) => ranges,
        }
    }
}

/// A buffer with a position: what is before it has been transferred.
pub struct IoBuffer<'a> {
    memory: Memory<'a>,
    done: usize,
    total: usize,
}

impl<'a> IoBuffer<'a> {
    /// Over user memory. The ranges' sum is cut to [`MAX_TRANSFER_BYTES`].
    pub fn user(space: Arc<AddressSpace>, mut ranges: Vec<(Va, usize)>) -> Self {
        let mut total = 0;
        for (_, len) in &mut ranges {
            *len = (*len).min(MAX_TRANSFER_BYTES - total);
            total += *len;
        }
        IoBuffer { memory: Memory::User { space, ranges: Ranges::Many(ranges) }, done: 0, total }
    }

    /// The same over one range.
    pub fn user_range(space: Arc<AddressSpace>, va: Va, len: usize) -> Self {
        let total = len.min(MAX_TRANSFER_BYTES);
        IoBuffer {
            memory: Memory::User { space, ranges: Ranges::One([(va, total)]) },
            done: 0,
            total,
        }
    }

    /// Over kernel memory on the heap that is read into.
    pub fn kernel(bytes: &'a mut [u8]) -> Self {
        let total = bytes.len();
        IoBuffer { memory: Memory::Kernel(bytes), done: 0, total }
    }

    /// Over kernel memory on the heap that is written from.
    pub fn kernel_const(bytes: &'a [u8]) -> Self {
        IoBuffer { memory: Memory::KernelConst(bytes), done: 0, total: bytes.len() }
    }

    /// How many bytes from here on lie in one range and one page.
    pub fn in_page(&self) -> usize {
        match &self.memory {
            Memory::User { ranges, .. } => Self::parts(ranges, self.done, PAGE_SIZE as usize)
                .next()
                .map_or(0, |(va, len)| len.min((PAGE_SIZE - va.page_offset()) as usize)),
            _ => self.remaining().min(PAGE_SIZE as usize),
        }
    }

    /// The same addresses in another address space.
    pub fn in_space(mut self, other: Arc<AddressSpace>) -> Self {
        if let Memory::User { space, .. } = &mut self.memory {
            *space = other;
        }
        self
    }

    /// Bytes still to be transferred.
    pub fn remaining(&self) -> usize {
        self.total - self.done
    }

    /// Bytes transferred so far.
    pub fn done(&self) -> usize {
        self.done
    }

    /// Goes back to the state when `done` bytes had been transferred.
    pub fn rewind(&mut self, done: usize) {
        self.done = done.min(self.done);
    }

    /// Counts `bytes` as transferred (after a host call moved them by [`IoBuffer::segments`]).
    pub fn advance(&mut self, bytes: usize) {
        self.done = (self.done + bytes).min(self.total);
    }

    /// Limits the buffer to `bytes` more.
    pub fn limit(&mut self, bytes: usize) {
        self.total = self.total.min(self.done.saturating_add(bytes));
    }

    /// Has `transfer` see no more than the next `bytes`.
    pub fn piece<T>(&mut self, bytes: usize, transfer: impl FnOnce(&mut Self) -> T) -> T {
        let total = self.total;
        self.limit(bytes);
        let result = transfer(self);
        self.total = total;
        result
    }

    /// The parts of user memory from `done` on, at most `max` bytes.
    fn parts(ranges: &[(Va, usize)], done: usize, max: usize) -> impl Iterator<Item = (Va, usize)> {
        let (mut skip, mut left) = (done, max);
        let part = move |&(va, len): &(Va, usize)| {
            let before = skip.min(len);
            let take = (len - before).min(left);
            let more = left > 0;
            (skip, left) = (skip - before, left - take);
            more.then_some((Va(va.0.wrapping_add(before as u64)), take))
        };
        ranges.iter().map_while(part).filter(|(_, take)| *take > 0)
    }

    /// Copies `bytes` in (for a read): how many fitted. EFAULT only if not a single byte could be
    /// stored.
    pub fn put(&mut self, bytes: &[u8]) -> Result<usize> {
        let want = bytes.len().min(self.remaining());
        let mut copied = 0;
        match &mut self.memory {
            Memory::User { space, ranges } => {
                for (va, len) in Self::parts(ranges, self.done, want) {
                    let spare = spare_at(self.done + copied);
                    let part = &bytes[copied..copied + len];
                    if let Err(error) = space.write_bytes_with(va, part, spare) {
                        if copied == 0 {
                            return Err(error);
                        }
                        break;
                    }
                    copied += len;
                }
            }
            Memory::Kernel(memory) => {
                memory[self.done..self.done + want].copy_from_slice(&bytes[..want]);
                copied = want;
            }
            Memory::KernelConst(_) => return Err(Errno::EFAULT),
        }
        self.done += copied;
        Ok(copied)
    }

    /// Copies out of the buffer (for a write): how many bytes. EFAULT only if not a single byte
    /// could be read.
    pub fn take(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let want = bytes.len().min(self.remaining());
        let mut copied = 0;
        match &self.memory {
            Memory::User { space, ranges } => {
                for (va, len) in Self::parts(ranges, self.done, want) {
                    if let Err(error) = space.read_bytes(va, &mut bytes[copied..copied + len]) {
                        if copied == 0 {
                            return Err(error);
                        }
                        break;
                    }
                    copied += len;
                }
            }
            Memory::Kernel(memory) => {
                bytes[..want].copy_from_slice(&memory[self.done..self.done + want]);
                copied = want;
            }
            Memory::KernelConst(memory) => {
                bytes[..want].copy_from_slice(&memory[self.done..self.done + want]);
                copied = want;
            }
        }
        self.done += copied;
        Ok(copied)
    }

    /// Takes up to `max` bytes into a new vector.
    pub fn take_vec(&mut self, max: usize) -> Result<Vec<u8>> {
        let length = max.min(self.remaining());
        let mut bytes = account::vec_for(length)?;
        bytes.resize(length, 0);
        let taken = self.take(&mut bytes)?;
        bytes.truncate(taken);
        Ok(bytes)
    }

    /// The next byte and its space, if a program has yet to see to its page (userfaultfd(2)).
    pub fn next_missing(&self, access: Access) -> Option<(Arc<AddressSpace>, Va)> {
        let Memory::User { space, ranges } = &self.memory else { return None };
        let (va, _) = Self::parts(ranges, self.done, 1).next()?;
        let (served, _) = space.awaits(va, access)?;
        served.context.serves_kernel().then(|| (space.clone(), va))
    }

    /// True if what lies so many bytes ahead is to be had later: memory is short, or a program has
    /// yet to see to the page.
    pub fn is_awaited(&self, ahead: usize, access: Access) -> bool {
        let is_served = match &self.memory {
            Memory::User { space, ranges } => Self::parts(ranges, self.done + ahead, 1)
                .next()
                .and_then(|(va, _)| space.awaits(va, access))
                .is_some_and(|(served, _)| served.context.serves_kernel()),
            _ => false,
        };
        is_served || reclaim::is_short()
    }

    /// Takes all that remains into a new vector, and no part of it: ERESTARTNOMEM while some of it
    /// [is to be had later](Self::is_awaited), EFAULT.
    pub fn take_message(&mut self) -> Result<Vec<u8>> {
        let length = self.remaining();
        let bytes = self.take_vec(length)?;
        match bytes.len() == length {
            true => Ok(bytes),
            false if self.is_awaited(0, Access::Read) => Err(Errno::ERESTARTNOMEM),
            false => Err(Errno::EFAULT),
        }
    }

    /// Stores `count` zero bytes: how many fitted.
    pub fn put_zeros(&mut self, count: usize) -> Result<usize> {
        const ZEROS: [u8; 512] = [0; 512];
        let mut stored = 0;
        while stored < count && self.remaining() > 0 {
            match self.put(&ZEROS[..ZEROS.len().min(count - stored)]) {
                Ok(more) => stored += more,
                Err(error) if stored == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(stored)
    }

    /// Guest physical segments of what remains, at most `max_bytes` and `max_segments`; faults the
    /// pages in. `access` is Write when the buffer is to be stored to. Empty only when nothing
    /// remains.
    pub fn segments(
        &self,
        access: Access,
        max_bytes: usize,
        max_segments: usize,
    ) -> Result<Vec<Segment>> {
        let want = self.remaining().min(max_bytes);
        let kernel = |pointer: *const u8| {
            let gpa: Gpa = arch::gpa_of(pointer);
            Ok(alloc::vec![Segment { gpa: gpa + self.done as u64, len: want as u64 }])
        };
        match &self.memory {
            Memory::User { space, ranges } => {
                let mut segments: Vec<Segment> = Vec::new();
                let mut at = self.done;
                for (va, len) in Self::parts(ranges, self.done, want) {
                    let room = max_segments.saturating_sub(segments.len());
                    if room == 0 {
                        break;
                    }
                    let spared = SPARED_BYTES.saturating_sub(at);
                    at += len;
                    match space.segments(va, len, access, room, spared) {
                        Ok(more) => segments.extend(more),
                        Err(error) if segments.is_empty() => return Err(error),
                        Err(_) => break,
                    }
                }
                Ok(segments)
            }
            Memory::Kernel(memory) => kernel(memory.as_ptr()),
            Memory::KernelConst(memory) => kernel(memory.as_ptr()),
        }
    }
}

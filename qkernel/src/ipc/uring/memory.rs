//! The memory that a ring shares with programs: what they put there is read once, each field, and
//! means no more than it can.
//!
//! All of it is one memory object: the rings from its start on, the requests where IORING_OFF_SQES
//! has them. Pages are made when they are first used.

use alloc::sync::Arc;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::SeqCst;

use qlib::{PAGE_SHIFT, PAGE_SIZE};
use zerocopy::{FromZeros, IntoBytes};

use super::abi::{CqOffsets, Cqe, OFF_CQ_RING, OFF_SQ_RING, OFF_SQES, SqOffsets, Sqe};
use crate::errno::{Errno, Result};
use crate::fs::shmem::{Quota, Shmem};
use crate::io::IoBuffer;

const SQ_HEAD: u64 = 0;
const SQ_TAIL: u64 = 64;
const CQ_HEAD: u64 = 128;
const CQ_TAIL: u64 = 192;
const SQ_MASK: u64 = 256;
const CQ_MASK: u64 = 260;
const SQ_ENTRIES: u64 = 264;
const CQ_ENTRIES: u64 = 268;
const SQ_DROPPED: u64 = 272;
const SQ_FLAGS: u64 = 276;
const CQ_FLAGS: u64 = 280;
const CQ_OVERFLOW: u64 = 284;
const CQES: u64 = 320;

/// The shared memory of a ring.
pub struct Memory {
    object: Arc<Shmem>,
    sq_entries: u32,
    cq_entries: u32,
    /// Requests are taken by the indices that stand in an array, not one after the other.
    has_array: bool,
}

fn pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE_SIZE)
}

impl Memory {
    /// For so many requests and answers, both powers of two; `has_array`: without
    /// IORING_SETUP_NO_SQARRAY. ENOMEM.
    pub fn new(sq_entries: u32, cq_entries: u32, has_array: bool) -> Result<Self> {
        let bytes = OFF_SQES + pages(u64::from(sq_entries) * size_of::<Sqe>() as u64);
        let object = Shmem::new(bytes, Quota::new(u64::MAX));
        let memory = Memory { object, sq_entries, cq_entries, has_array };
        for (place, value) in [
            (SQ_MASK, sq_entries - 1),
            (CQ_MASK, cq_entries - 1),
            (SQ_ENTRIES, sq_entries),
            (CQ_ENTRIES, cq_entries),
        ] {
            memory.word(place)?.store(value, SeqCst);
        }
        Ok(memory)
    }

    /// Where the indices of requests lie.
    fn array(&self) -> u64 {
        CQES + u64::from(self.cq_entries) * size_of::<Cqe>() as u64
    }

    /// How long the rings are, in bytes.
    fn rings_bytes(&self) -> u64 {
        pages(self.array() + u64::from(self.sq_entries) * 4)
    }

    /// Bytes of memory that lie in it.
    pub fn held_bytes(&self) -> u64 {
        self.object.page_count() << PAGE_SHIFT
    }

    /// What a mapping of `length` bytes at `offset` shows: the object, and the first page in it.
    /// EINVAL.
    pub fn mapping(&self, offset: u64, length: u64) -> Result<(Arc<Shmem>, u64)> {
        let (start, most) = match offset {
            OFF_SQ_RING | OFF_CQ_RING => (0, self.rings_bytes()),
            OFF_SQES => (OFF_SQES, self.object.size() - OFF_SQES),
            _ => return Err(Errno::EINVAL),
        };
        if length > most {
            return Err(Errno::EINVAL);
        }
        Ok((self.object.clone(), start >> PAGE_SHIFT))
    }

    fn word(&self, offset: u64) -> Result<&'static AtomicU32> {
        self.object.word(offset)
    }

    fn load(&self, offset: u64) -> Result<u32> {
        Ok(self.word(offset)?.load(SeqCst))
    }

    /// How many requests lie there from `head` on. No more than there are places.
    pub fn requests(&self, head: u32) -> Result<u32> {
        Ok(self.load(SQ_TAIL)?.wrapping_sub(head).min(self.sq_entries))
    }

    /// The request at `head`; `None`, and counted as dropped, if its index leads nowhere.
    pub fn request(&self, head: u32) -> Result<Option<Sqe>> {
        let place = u64::from(head & (self.sq_entries - 1));
        let index = match self.has_array {
            true => self.load(self.array() + 4 * place)?,
            false => place as u32,
        };
        if index >= self.sq_entries {
            self.word(SQ_DROPPED)?.fetch_add(1, SeqCst);
            return Ok(None);
        }
        let mut sqe = Sqe::new_zeroed();
        let offset = OFF_SQES + u64::from(index) * size_of::<Sqe>() as u64;
        self.object.read(&mut IoBuffer::kernel(sqe.as_mut_bytes()), offset)?;
        Ok(Some(sqe))
    }

    /// Requests before `head` have been taken.
    pub fn set_sq_head(&self, head: u32) -> Result {
        self.word(SQ_HEAD)?.store(head, SeqCst);
        Ok(())
    }

    /// How many answers lie there before `tail` that nobody has taken. A head that has run away
    /// counts as a full ring.
    pub fn answers(&self, tail: u32) -> Result<u32> {
        Ok(tail.wrapping_sub(self.load(CQ_HEAD)?).min(self.cq_entries))
    }

    /// Stores an answer at `tail`, where there is room.
    pub fn put_answer(&self, tail: u32, cqe: &Cqe) -> Result {
        let place = u64::from(tail & (self.cq_entries - 1));
        let offset = CQES + place * size_of::<Cqe>() as u64;
        self.object.write(&mut IoBuffer::kernel_const(cqe.as_bytes()), offset)?;
        self.word(CQ_TAIL)?.store(tail.wrapping_add(1), SeqCst);
        Ok(())
    }

    /// Sets and clears flags of the submission ring.
    pub fn change_sq_flags(&self, set: u32, clear: u32) -> Result {
        let word = self.word(SQ_FLAGS)?;
        word.fetch_or(set, SeqCst);
        word.fetch_and(!clear, SeqCst);
        Ok(())
    }

    /// An answer is lost.
    pub fn count_lost(&self) {
        if let Ok(word) = self.word(CQ_OVERFLOW) {
            word.fetch_add(1, SeqCst);
        }
    }

    /// IORING_CQ_* flags, which programs set.
    pub fn cq_flags(&self) -> u32 {
        self.load(CQ_FLAGS).unwrap_or(0)
    }

    /// How many answers there is room for.
    pub fn cq_entries(&self) -> u32 {
        self.cq_entries
    }

    /// How many requests there is room for.
    pub fn sq_entries(&self) -> u32 {
        self.sq_entries
    }

    /// Where all of it lies, for io_uring_setup(2).
    pub fn offsets(&self) -> (SqOffsets, CqOffsets) {
        let sq = SqOffsets {
            head: SQ_HEAD as u32,
            tail: SQ_TAIL as u32,
            ring_mask: SQ_MASK as u32,
            ring_entries: SQ_ENTRIES as u32,
            flags: SQ_FLAGS as u32,
            dropped: SQ_DROPPED as u32,
            array: if self.has_array { self.array() as u32 } else { 0 },
            ..SqOffsets::default()
        };
        let cq = CqOffsets {
            head: CQ_HEAD as u32,
            tail: CQ_TAIL as u32,
            ring_mask: CQ_MASK as u32,
            ring_entries: CQ_ENTRIES as u32,
            overflow: CQ_OVERFLOW as u32,
            cqes: CQES as u32,
            flags: CQ_FLAGS as u32,
            ..CqOffsets::default()
        };
        (sq, cq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap_at_the_largest_size() {
        let memory = Memory {
            object: Shmem::new(OFF_SQES, Quota::new(0)),
            sq_entries: 1 << 15,
            cq_entries: 1 << 16,
            has_array: true,
        };
        assert!(memory.rings_bytes() <= OFF_CQ_RING);
        assert!(memory.array() + 4 * (1 << 15) <= memory.rings_bytes());
    }
}

//! The global heap of 4 MiB blocks: all RAM that the kernel image does not occupy, cut into aligned
//! blocks which the page allocators borrow and return.
//!
//! Two bits for each block: in use, and dirty (may hold memory of the host). Lowest address first,
//! so that RAM in use stays compact. The bits lie in this object; no block is touched by it.

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use spin::mutex::SpinMutex;

use crate::{Frames, Gpa, PAGE_SIZE};

/// log2 of the block size.
pub const BLOCK_SHIFT: u32 = 22;
/// The block size in bytes (4 MiB).
pub const BLOCK_SIZE: u64 = 1 << BLOCK_SHIFT;
/// Frames in a block.
pub const BLOCK_FRAMES: u64 = BLOCK_SIZE / PAGE_SIZE;
/// The most RAM that is managed, in bytes (256 GiB); what lies above stays unused.
pub const MAX_RAM: u64 = (WORDS as u64 * 64) << BLOCK_SHIFT;

const WORDS: usize = 1024;

/// Contiguous blocks that were handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The first byte, aligned to [`BLOCK_SIZE`].
    pub gpa: Gpa,
    /// Every byte is known to be zero and not committed by the host.
    pub clean: bool,
}

/// The heap of blocks. A `static` of the kernel; [`BlockHeap::init`] gives it RAM.
#[derive(Debug)]
pub struct BlockHeap {
    inner: SpinMutex<Inner>,
    /// Blocks that are free, for those who look without the lock.
    free: AtomicUsize,
    /// How many of them may hold host memory, for the same.
    dirty: AtomicUsize,
}

#[derive(Debug)]
struct Inner {
    /// Bit set: in use, or not ours.
    used: [u64; WORDS],
    /// Bit set: may hold host memory. Meaningful only for blocks that are free.
    dirty: [u64; WORDS],
    /// First block of ours.
    first: usize,
    /// One past the last block of ours.
    end: usize,
    /// No block below this one is free.
    hint: usize,
    /// Blocks handed out.
    held: usize,
    /// Blocks between `first` and `end` that are not ours.
    excluded: usize,
    /// One past the last block that can be used without asking.
    ready: usize,
    /// Whom to ask for more.
    grow: Option<Grow>,
}

/// Makes RAM usable up to an address at least: up to where it is then, or `None` when that is not
/// possible. It must not use the heap.
pub type Grow = fn(Gpa) -> Option<Gpa>;

impl BlockHeap {
    /// A heap without any RAM.
    pub const fn empty() -> Self {
        Self {
            inner: SpinMutex::new(Inner {
                used: [0; WORDS],
                dirty: [0; WORDS],
                first: 0,
                end: 0,
                hint: 0,
                held: 0,
                excluded: 0,
                ready: 0,
                grow: None,
            }),
            free: AtomicUsize::new(0),
            dirty: AtomicUsize::new(0),
        }
    }

    /// Takes charge of `[free_start, ram_bytes)`, which must read as zeros. Partial blocks at the
    /// ends stay unused. Panics when called twice.
    pub fn init(&self, free_start: Gpa, ram_bytes: u64) {
        let mut inner = self.inner.lock();
        assert_eq!(inner.end, 0, "the block heap has RAM already");
        inner.end = (ram_bytes.min(MAX_RAM) >> BLOCK_SHIFT) as usize;
        inner.first = (free_start.0.div_ceil(BLOCK_SIZE) as usize).min(inner.end);
        inner.hint = inner.first;
        inner.ready = inner.end;
        self.note_free(&inner);
    }

    /// RAM from `ready` on is to be asked for before it is used. Before any block is taken.
    pub fn ask_from(&self, ready: Gpa, grow: Grow) {
        let mut inner = self.inner.lock();
        inner.ready = ((ready.0 >> BLOCK_SHIFT) as usize).min(inner.end);
        inner.grow = Some(grow);
    }

    /// Leaves the blocks of `range` alone for ever. Before any block is taken.
    pub fn exclude(&self, range: Range<Gpa>) {
        let mut inner = self.inner.lock();
        let first = ((range.start.0 >> BLOCK_SHIFT) as usize).max(inner.first);
        let end = (range.end.0.div_ceil(BLOCK_SIZE) as usize).min(inner.end);
        for i in first..end {
            inner.excluded += usize::from(!bit(&inner.used, i));
            set(&mut inner.used, i, true);
        }
        self.note_free(&inner);
    }

    fn note_free(&self, inner: &Inner) {
        self.free.store(inner.end - inner.first - inner.excluded - inner.held, Relaxed);
    }

    /// Blocks that are free. Takes no lock.
    pub fn free_blocks(&self) -> usize {
        self.free.load(Relaxed)
    }

    /// Blocks that are free and may hold host memory. Takes no lock.
    pub fn dirty_blocks(&self) -> usize {
        self.dirty.load(Relaxed)
    }

    /// As [`Self::free_ranges`], a block at a time, the highest first, until no more than `most`
    /// free blocks may hold host memory, or `release` returns false.
    pub fn release_down_to(&self, most: usize, release: &mut dyn FnMut(&[Frames]) -> bool) {
        let mut inner = self.inner.lock();
        for at in (inner.first..inner.end).rev() {
            if self.dirty.load(Relaxed) <= most {
                return;
            }
            if bit(&inner.used, at) || !bit(&inner.dirty, at) {
                continue;
            }
            if !release(&[Frames { start: Gpa((at as u64) << BLOCK_SHIFT), count: BLOCK_FRAMES }]) {
                return;
            }
            set(&mut inner.dirty, at, false);
            self.dirty.fetch_sub(1, Relaxed);
        }
    }

    /// Takes the lowest free block.
    pub fn alloc(&self) -> Option<Block> {
        self.alloc_contiguous(1)
    }

    /// Takes the lowest `count` free blocks that lie in a row. `None` when there are none, or for a
    /// `count` of 0.
    pub fn alloc_contiguous(&self, count: usize) -> Option<Block> {
        let mut inner = self.inner.lock();
        let start = inner.find(count)?;
        if start + count > inner.ready {
            let ready = inner.grow?(Gpa(((start + count) as u64) << BLOCK_SHIFT))?;
            inner.ready = ((ready.0 >> BLOCK_SHIFT) as usize).min(inner.end);
            if start + count > inner.ready {
                return None;
            }
        }
        let mut clean = true;
        for i in start..start + count {
            if bit(&inner.dirty, i) {
                clean = false;
                self.dirty.fetch_sub(1, Relaxed);
            }
            set(&mut inner.used, i, true);
        }
        if start == inner.hint {
            inner.hint = start + count;
        }
        inner.held += count;
        self.note_free(&inner);
        Some(Block { gpa: Gpa((start as u64) << BLOCK_SHIFT), clean })
    }

    /// Returns `count` blocks that begin at `gpa`. `clean` says that all their bytes were given
    /// back to the host. Panics when they were not handed out.
    pub fn free(&self, gpa: Gpa, count: usize, clean: bool) {
        let mut inner = self.inner.lock();
        let start = (gpa.0 >> BLOCK_SHIFT) as usize;
        assert!(
            gpa.0.is_multiple_of(BLOCK_SIZE) && start >= inner.first && start + count <= inner.end,
            "{gpa:?}"
        );
        for i in start..start + count {
            assert!(bit(&inner.used, i), "block at {gpa:?} + {} freed twice", i - start);
            set(&mut inner.used, i, false);
            set(&mut inner.dirty, i, !clean);
            self.dirty.fetch_add(usize::from(!clean), Relaxed);
        }
        inner.hint = inner.hint.min(start);
        inner.held -= count;
        self.note_free(&inner);
    }

    /// Calls `release` with batches of maximal ranges of free blocks that may hold host memory, and
    /// marks them clean when it returns true (they were given back to the host). `release` must not
    /// use this heap.
    pub fn free_ranges(&self, release: &mut dyn FnMut(&[Frames]) -> bool) {
        let mut inner = self.inner.lock();
        let mut at = inner.first;
        while at < inner.end {
            if bit(&inner.used, at) || !bit(&inner.dirty, at) {
                at += 1;
                continue;
            }
            let start = at;
            while at < inner.end && !bit(&inner.used, at) && bit(&inner.dirty, at) {
                at += 1;
            }
            let range = Frames {
                start: Gpa((start as u64) << BLOCK_SHIFT),
                count: (at - start) as u64 * BLOCK_FRAMES,
            };
            if release(&[range]) {
                (start..at).for_each(|i| set(&mut inner.dirty, i, false));
                self.dirty.fetch_sub(at - start, Relaxed);
            }
        }
    }

    /// Blocks in all, and blocks handed out.
    pub fn stats(&self) -> BlockStats {
        let inner = self.inner.lock();
        BlockStats { total: inner.end - inner.first - inner.excluded, held: inner.held }
    }
}

/// Counts of a [`BlockHeap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockStats {
    /// Blocks in all.
    pub total: usize,
    /// Blocks handed out.
    pub held: usize,
}

impl Inner {
    fn find(&mut self, count: usize) -> Option<usize> {
        if count == 0 {
            return None;
        }
        let mut at = self.hint;
        let mut run = 0;
        while at < self.end {
            if run == 0 && at.is_multiple_of(64) && self.used[at / 64] == u64::MAX {
                at += 64;
                continue;
            }
            run = if bit(&self.used, at) { 0 } else { run + 1 };
            at += 1;
            if run == count {
                return Some(at - count);
            }
        }
        None
    }
}

fn bit(words: &[u64; WORDS], i: usize) -> bool {
    words[i / 64] >> (i % 64) & 1 != 0
}

fn set(words: &mut [u64; WORDS], i: usize, value: bool) {
    let mask = 1 << (i % 64);
    words[i / 64] = if value { words[i / 64] | mask } else { words[i / 64] & !mask };
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn heap(blocks: u64) -> BlockHeap {
        let heap = BlockHeap::empty();
        heap.init(Gpa(BLOCK_SIZE - 5), (blocks + 1) * BLOCK_SIZE + 77);
        heap
    }

    #[test]
    fn lowest_first_and_all_of_ram() {
        let heap = heap(130);
        let all: Vec<u64> =
            core::iter::from_fn(|| heap.alloc()).map(|b| b.gpa.0 >> BLOCK_SHIFT).collect();
        assert_eq!(all, (1..=130).collect::<Vec<_>>());
        heap.free(Gpa(100 * BLOCK_SIZE), 1, false);
        heap.free(Gpa(7 * BLOCK_SIZE), 1, true);
        assert_eq!(heap.alloc(), Some(Block { gpa: Gpa(7 * BLOCK_SIZE), clean: true }));
        assert_eq!(heap.alloc(), Some(Block { gpa: Gpa(100 * BLOCK_SIZE), clean: false }));
        assert_eq!(heap.stats(), BlockStats { total: 130, held: 130 });
        assert_eq!(heap.free_blocks(), 0);
        heap.free(Gpa(BLOCK_SIZE), 2, false);
        assert_eq!(heap.free_blocks(), 2);
    }

    #[test]
    fn what_is_excluded_is_never_taken_or_given_back() {
        let heap = heap(10);
        heap.exclude(Gpa(3 * BLOCK_SIZE)..Gpa(5 * BLOCK_SIZE));
        heap.exclude(Gpa(9 * BLOCK_SIZE + 1)..Gpa(9 * BLOCK_SIZE + 2));
        heap.exclude(Gpa(100 * BLOCK_SIZE)..Gpa(101 * BLOCK_SIZE));
        let all: Vec<u64> =
            core::iter::from_fn(|| heap.alloc()).map(|b| b.gpa.0 >> BLOCK_SHIFT).collect();
        assert_eq!(all, [1, 2, 5, 6, 7, 8, 10]);
        assert_eq!(heap.stats(), BlockStats { total: 7, held: 7 });
        all.iter().for_each(|block| heap.free(Gpa(block * BLOCK_SIZE), 1, false));
        let mut given = Vec::new();
        heap.free_ranges(&mut |ranges| {
            given.extend(ranges.iter().map(|r| (r.start.0 / BLOCK_SIZE, r.count / BLOCK_FRAMES)));
            true
        });
        assert_eq!(given, [(1, 2), (5, 4), (10, 1)]);
    }

    #[test]
    fn more_is_asked_for_when_it_is_needed() {
        let heap = heap(10);
        heap.ask_from(Gpa(3 * BLOCK_SIZE), |end| {
            (end.0 <= 8 * BLOCK_SIZE).then(|| Gpa(end.0.next_multiple_of(4 * BLOCK_SIZE)))
        });
        let all: Vec<u64> =
            core::iter::from_fn(|| heap.alloc()).map(|b| b.gpa.0 >> BLOCK_SHIFT).collect();
        assert_eq!(all, (1..8).collect::<Vec<_>>());
        assert_eq!(heap.stats().held, 7);
    }

    #[test]
    fn contiguous_blocks_skip_holes_that_are_too_small() {
        let heap = heap(200);
        for _ in 0..6 {
            heap.alloc();
        }
        heap.free(Gpa(2 * BLOCK_SIZE), 2, true);
        assert_eq!(heap.alloc_contiguous(3).unwrap().gpa, Gpa(7 * BLOCK_SIZE));
        assert_eq!(heap.alloc_contiguous(2).unwrap().gpa, Gpa(2 * BLOCK_SIZE));
        assert_eq!(heap.alloc_contiguous(192), None);
        assert_eq!(heap.alloc_contiguous(191).unwrap().gpa, Gpa(10 * BLOCK_SIZE));
        assert_eq!(heap.alloc_contiguous(0), None);
    }

    #[test]
    fn dirty_ranges_are_released_once_and_in_one_piece() {
        let heap = heap(8);
        while heap.alloc().is_some() {}
        heap.free(Gpa(2 * BLOCK_SIZE), 3, false);
        heap.free(Gpa(6 * BLOCK_SIZE), 1, true);
        heap.free(Gpa(7 * BLOCK_SIZE), 1, false);
        let mut seen = Vec::new();
        heap.free_ranges(&mut |r| {
            seen.extend_from_slice(r);
            r[0].start.0 != 7 * BLOCK_SIZE
        });
        assert_eq!(seen.len(), 2);
        assert_eq!(seen[0], Frames { start: Gpa(2 * BLOCK_SIZE), count: 3 * BLOCK_FRAMES });
        assert_eq!(seen[1], Frames { start: Gpa(7 * BLOCK_SIZE), count: BLOCK_FRAMES });
        let mut again = Vec::new();
        heap.free_ranges(&mut |r| {
            again.extend_from_slice(r);
            true
        });
        assert_eq!(again, seen[1..], "what was refused is offered again");
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn double_free_is_a_bug() {
        heap(2).free(Gpa(BLOCK_SIZE), 1, false);
    }
}

//! The control page: the first 4 KiB of each 4 MiB block, found from any frame of the block by
//! clearing the low 22 bits of its address. Bits are changed under the allocator's lock only,
//! reference counts by anyone.

use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use static_assertions::const_assert;

use super::Stay;
use crate::blocks::BLOCK_FRAMES;
use crate::phys::PhysMap;
use crate::{Gpa, PAGE_SHIFT, PAGE_SIZE};

/// "No block" in `next`, `prev` and the list heads.
pub const NONE: u64 = u64::MAX;
/// Frames of a block that can be handed out.
pub const USABLE: u32 = BLOCK_FRAMES as u32 - 1;
/// A `run_limit` that says nothing.
const NO_LIMIT: u32 = 10;
const MAGIC: u64 = 0x4d41_5051_0000_0000;

/// The layout of a control page.
#[repr(C)]
pub struct Control {
    /// Ties the page to its place and its allocator, so that a frame that is not of a live block is
    /// noticed.
    magic: AtomicU64,
    /// Next block with free frames, in order of address.
    pub next: AtomicU64,
    /// Previous one.
    pub prev: AtomicU64,
    /// Level 1: bit w set when `free[w]` is not zero.
    summary: AtomicU64,
    /// Level 2: bit set when the frame is free.
    free: [AtomicU64; 16],
    /// Bit set when a free frame may hold memory of the host (and bytes other than zero).
    dirty: [AtomicU64; 16],
    /// Free frames.
    free_count: AtomicU32,
    /// No free aligned run of this order (log2 of its frames) or a higher one exists; a bound, not
    /// exact.
    run_limit: AtomicU32,
    /// 1: a huge page of the host is behind its second half, as far as is known.
    huge: AtomicU32,
    /// The number of its [`super::Stay`].
    stay: AtomicU32,
    /// Reference counts. Entry 0 is the control page itself and stays 0.
    pub refs: [AtomicU16; BLOCK_FRAMES as usize],
}

const_assert!(size_of::<Control>() <= PAGE_SIZE as usize);

/// What their last owner left in frames that are put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// They may hold anything.
    Touched,
    /// They hold no host memory.
    Clean,
    /// They are as they were when they were taken.
    Untouched,
}

/// Where a frame lies in its block.
pub fn index_of(gpa: Gpa) -> usize {
    (gpa.0 >> PAGE_SHIFT) as usize % BLOCK_FRAMES as usize
}

/// The block a frame lies in.
pub fn block_of(gpa: Gpa) -> Gpa {
    gpa.align_down(BLOCK_FRAMES * PAGE_SIZE)
}

/// The control page of the block at `block`. It may hold anything until [`Control::init`].
#[allow(unsafe_code)]
pub fn at(phys: PhysMap, block: Gpa) -> &'static Control {
    match phys.ptr(block, PAGE_SIZE) {
        // SAFETY: a whole mapped page, aligned to 4 MiB as all callers pass a block; every field is
        // an atomic, which may alias and accepts any bytes.
        Some(page) => unsafe { &*page.cast::<Control>() },
        None => panic!("{block:?} is not RAM"),
    }
}

impl Control {
    /// Makes a block all free. `clean`: its bytes are known to be zero.
    pub fn init(&self, block: Gpa, tag: u32, clean: bool, stay: Stay) {
        self.next.store(NONE, Relaxed);
        self.prev.store(NONE, Relaxed);
        self.set_stay(stay);
        self.summary.store(0xffff, Relaxed);
        for word in 0..16 {
            self.free[word].store(u64::MAX, Relaxed);
            self.dirty[word].store(if clean { 0 } else { u64::MAX }, Relaxed);
        }
        self.free[0].store(!1, Relaxed);
        self.free_count.store(USABLE, Relaxed);
        self.huge.store(0, Relaxed);
        self.run_limit.store(NO_LIMIT, Relaxed);
        if !clean {
            self.refs.iter().for_each(|r| r.store(0, Relaxed));
        }
        self.magic.store(MAGIC ^ block.0 ^ u64::from(tag), Relaxed);
    }

    /// Panics unless this is the live control page of `block` in the allocator `tag`.
    pub fn check(&self, block: Gpa, tag: u32) {
        let magic = self.magic.load(Relaxed);
        assert_eq!(
            magic,
            MAGIC ^ block.0 ^ u64::from(tag),
            "{block:?} is not a block of this allocator"
        );
    }

    /// Makes sure that the page is not taken for a live one any more.
    pub fn retire(&self) {
        self.magic.store(0, Relaxed);
    }

    /// For which frames the block is.
    pub fn stay(&self) -> Stay {
        if self.stay.load(Relaxed) == Stay::Lasting as u32 { Stay::Lasting } else { Stay::Passing }
    }

    /// Has it be for such frames.
    pub fn set_stay(&self, stay: Stay) {
        self.stay.store(stay as u32, Relaxed);
    }

    /// True if the host has a huge page behind its second half, as far as is known.
    pub fn is_huge(&self) -> bool {
        self.huge.load(Relaxed) != 0
    }

    /// It has.
    pub fn note_huge(&self) {
        self.huge.store(1, Relaxed);
    }

    /// The host has taken memory back from behind `count` frames from `start`.
    pub fn note_released(&self, start: usize, count: usize) {
        if start + count > super::MAX_RUN {
            self.huge.store(0, Relaxed);
        }
    }

    /// Free frames.
    pub fn free_count(&self) -> u32 {
        self.free_count.load(Relaxed)
    }

    /// The lowest free frame.
    pub fn first_free(&self) -> Option<usize> {
        let word = self.summary.load(Relaxed).trailing_zeros() as usize;
        let bits = self.free.get(word)?.load(Relaxed);
        Some(word * 64 + bits.trailing_zeros() as usize)
    }

    /// The lowest aligned run of `1 << order` free frames.
    pub fn first_run(&self, order: u32) -> Option<usize> {
        if order >= self.run_limit.load(Relaxed) {
            return None;
        }
        let found =
            if order <= 6 { self.run_in_words(order) } else { self.run_of_words(1 << (order - 6)) };
        if found.is_none() {
            self.run_limit.store(order, Relaxed);
        }
        found
    }

    fn run_in_words(&self, order: u32) -> Option<usize> {
        let mut left = self.summary.load(Relaxed);
        while left != 0 {
            let word = left.trailing_zeros() as usize;
            left &= left - 1;
            let mut bits = self.free[word].load(Relaxed);
            // After each step bit i says that the aligned run of 2^step frames that begins at i is
            // free.
            for step in 0..order {
                bits &= bits >> (1 << step) & ALIGNED[step as usize];
            }
            if bits != 0 {
                return Some(word * 64 + bits.trailing_zeros() as usize);
            }
        }
        None
    }

    fn run_of_words(&self, words: usize) -> Option<usize> {
        (0..16)
            .step_by(words)
            .find(|&w| self.free[w..w + words].iter().all(|f| f.load(Relaxed) == u64::MAX))
            .map(|w| w * 64)
    }

    /// True if all of `count` frames from `start` are free.
    pub fn all_free(&self, start: usize, count: usize) -> bool {
        words(start, count).all(|(word, mask)| self.free[word].load(Relaxed) & mask == mask)
    }

    /// Takes `count` free frames from `start`, with one reference each.
    pub fn take(&self, start: usize, count: usize) {
        for (word, mask) in words(start, count) {
            let bits = self.free[word].load(Relaxed);
            debug_assert_eq!(bits & mask, mask);
            self.free[word].store(bits & !mask, Relaxed);
            if bits == mask {
                self.summary.store(self.summary.load(Relaxed) & !(1 << word), Relaxed);
            }
        }
        self.refs[start..start + count].iter().for_each(|r| r.store(1, Relaxed));
        self.free_count.store(self.free_count.load(Relaxed) - count as u32, Relaxed);
    }

    /// Puts `count` frames from `start` back. Their counts are zero already.
    pub fn put(&self, start: usize, count: usize, after: After) {
        for (word, mask) in words(start, count) {
            let bits = self.free[word].load(Relaxed);
            assert_eq!(bits & mask, 0, "frame freed twice");
            self.free[word].store(bits | mask, Relaxed);
            self.summary.store(self.summary.load(Relaxed) | 1 << word, Relaxed);
        }
        match after {
            After::Touched => self.set_dirty(start, count, true),
            After::Clean => self.set_dirty(start, count, false),
            After::Untouched => {}
        }
        self.free_count.store(self.free_count.load(Relaxed) + count as u32, Relaxed);
        self.run_limit.store(NO_LIMIT, Relaxed);
    }

    /// Sets or clears the dirty bits of `count` frames from `start`.
    pub fn set_dirty(&self, start: usize, count: usize, dirty: bool) {
        if !dirty {
            self.note_released(start, count);
        }
        for (word, mask) in words(start, count) {
            let bits = self.dirty[word].load(Relaxed);
            self.dirty[word].store(if dirty { bits | mask } else { bits & !mask }, Relaxed);
        }
    }

    /// Clears the dirty bits of those of `count` frames from `start` that are free: how many.
    pub fn set_clean_if_free(&self, start: usize, count: usize) -> u64 {
        let mut cleared = 0;
        self.note_released(start, count);
        for (word, mask) in words(start, count) {
            let free = self.free[word].load(Relaxed) & mask;
            let dirty = self.dirty[word].load(Relaxed);
            cleared += u64::from((dirty & free).count_ones());
            self.dirty[word].store(dirty & !free, Relaxed);
        }
        cleared
    }

    /// How many dirty bits `count` frames from `start` have.
    pub fn count_dirty(&self, start: usize, count: usize) -> u64 {
        let dirty = |(word, mask): (usize, u64)| self.dirty[word].load(Relaxed) & mask;
        words(start, count).map(|word| u64::from(dirty(word).count_ones())).sum()
    }

    /// Calls `f` with each maximal range (start, count) of dirty frames among `count` frames from
    /// `start`.
    pub fn dirty_ranges(&self, start: usize, count: usize, f: &mut dyn FnMut(usize, usize)) {
        let mut at = start;
        while let Some(from) = next(&self.dirty, true, at, start + count) {
            at = next(&self.dirty, false, from, start + count).unwrap_or(start + count);
            f(from, at - from);
        }
    }

    /// Calls `f` with (start, count) ranges that cover every free dirty frame and no frame in use:
    /// as few as possible, so clean frames between two dirty ones are included.
    pub fn free_dirty_ranges(&self, f: &mut dyn FnMut(usize, usize)) {
        const END: usize = BLOCK_FRAMES as usize;
        let mut at = 0;
        while let Some(free_from) = next(&self.free, true, at, END) {
            at = next(&self.free, false, free_from, END).unwrap_or(END);
            let Some(first) = next(&self.dirty, true, free_from, at) else { continue };
            let mut last = first;
            self.dirty_ranges(first, at - first, &mut |from, count| last = from + count);
            f(first, last - first);
        }
    }
}

/// ALIGNED[s] has a bit at every multiple of 2^(s+1).
const ALIGNED: [u64; 6] = [
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
    0x0000_0000_0000_0001,
];

/// The words and masks that cover `count` bits from `start`.
fn words(start: usize, count: usize) -> impl Iterator<Item = (usize, u64)> {
    debug_assert!(count > 0, "no bits have no mask");
    let end = start + count;
    (start / 64..end.div_ceil(64)).map(move |word| {
        let low = start.saturating_sub(word * 64);
        let high = (end - word * 64).min(64);
        (word, (u64::MAX >> (64 - (high - low))) << low)
    })
}

/// The first bit with `value` in `[at, end)`.
fn next(bits: &[AtomicU64; 16], value: bool, mut at: usize, end: usize) -> Option<usize> {
    while at < end {
        let word = bits[at / 64].load(Relaxed);
        let word = (if value { word } else { !word }) >> (at % 64);
        if word != 0 {
            at += word.trailing_zeros() as usize;
            return (at < end).then_some(at);
        }
        at = (at / 64 + 1) * 64;
    }
    None
}

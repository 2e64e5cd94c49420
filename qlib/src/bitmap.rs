//! The bitmap page allocator (section 3.3 of the Hibernate Container paper).
//!
//! It hands out 4 KiB frames, and aligned runs of them, from 4 MiB blocks of the [`BlockHeap`]. The
//! first page of a block is its control page: which frames are free, which of those may hold memory
//! of the host, and a 16-bit reference count for each. A free frame holds no data of the allocator,
//! so it can be given back to the host at any moment, and reads as zeros afterwards. An empty block
//! goes back to the heap of blocks.
//!
//! Reference counts change without a lock; everything else is under a spin lock that is held for a
//! short, bounded time, except in [`FrameAllocator::free_ranges`].

mod control;
pub mod refs;

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use spin::mutex::SpinMutex;

use self::control::{After, Control, NONE, USABLE, block_of, index_of};
pub use self::refs::Saturated;
use crate::blocks::{BLOCK_FRAMES, BlockHeap};
use crate::phys::PhysMap;
use crate::{Frames, Gpa, PAGE_SIZE};

/// The longest run, in frames (2 MiB).
pub const MAX_RUN: usize = 512;

/// The allocator. Several can share one [`BlockHeap`]; each block belongs to one of them.
pub struct FrameAllocator<P = Plain> {
    phys: PhysMap,
    blocks: &'static BlockHeap,
    tag: u32,
    poison: AtomicBool,
    state: SpinMutex<FreeLists>,
    /// Frames of its blocks that are free, for those who look without the lock.
    free: AtomicU64,
    /// Those of them that may hold host memory, and frames that are not free, likewise.
    dirty: AtomicU64,
    held: AtomicU64,
    policy: PhantomData<P>,
}

/// What freed frames are filled with where [`FrameAllocator::poison`] asked for it.
const POISON: u8 = 0xdb;

/// What an allocator asks and tells as it takes blocks and gives them back. Functions of a type and
/// not pointers to functions, so that no stray write changes them. Called with the allocator
/// locked, so they must not use that one.
pub trait Policy {
    /// True if it may take one more block: what others need must be left.
    fn may_grow() -> bool {
        true
    }

    /// It has taken `block`; if false, it cannot use it and gives it back.
    fn taken(block: Gpa) -> bool {
        let _ = block;
        true
    }

    /// It gives `block` back.
    fn given_back(block: Gpa) {
        let _ = block;
    }

    /// How many of its frames are not free now, its own included, and how many are free but may
    /// hold host memory.
    fn counted(held: u64, dirty: u64) {
        let _ = (held, dirty);
    }
}

/// Takes what is there.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

impl Policy for Plain {}

/// How long a frame is in use. As long as there are enough blocks, frames of either sort have
/// blocks of their own, so that what a process leaves when it ends is whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// As long as some process.
    Passing = 0,
    /// No process's end frees it.
    Lasting = 1,
}

struct FreeLists {
    /// First block with free frames, in order of address, for each [`Stay`].
    heads: [u64; 2],
    /// A block in that list near which the last one was inserted, or [`NONE`].
    cursors: [u64; 2],
    /// An empty block that is kept in the list so that a frame that comes and goes does not move a
    /// block, or [`NONE`].
    spare: u64,
    blocks: u64,
    frames_used: u64,
    /// Frames that are free and may hold host memory.
    dirty: u64,
}

/// Counts of a [`FrameAllocator`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameStats {
    /// Frames handed out. Control pages are not among them.
    pub frames_used: u64,
    /// Blocks held.
    pub blocks: u64,
}

impl FrameAllocator {
    /// An allocator without any block. `tag` tells allocators that share `blocks` apart.
    pub const fn new(phys: PhysMap, blocks: &'static BlockHeap, tag: u32) -> Self {
        Self::with_policy(phys, blocks, tag)
    }
}

impl<P: Policy> FrameAllocator<P> {
    /// As [`FrameAllocator::new`], one that asks and tells.
    pub const fn with_policy(phys: PhysMap, blocks: &'static BlockHeap, tag: u32) -> Self {
        let state = FreeLists {
            heads: [NONE; 2],
            cursors: [NONE; 2],
            spare: NONE,
            blocks: 0,
            frames_used: 0,
            dirty: 0,
        };
        Self {
            phys,
            blocks,
            tag,
            poison: AtomicBool::new(false),
            state: SpinMutex::new(state),
            free: AtomicU64::new(0),
            dirty: AtomicU64::new(0),
            held: AtomicU64::new(0),
            policy: PhantomData,
        }
    }

    /// From now on fills each frame whose last reference is dropped with bytes that no program
    /// expects, so that tests see a frame that is used or shown after it was freed. It commits
    /// memory: for tests only.
    pub fn poison(&self) {
        self.poison.store(true, Ordering::Relaxed);
    }

    /// Frames that are free in the blocks that it holds, an empty one that it keeps included. Takes
    /// no lock.
    pub fn free_frames(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// Those of them that may hold host memory. Takes no lock.
    pub fn dirty_frames(&self) -> u64 {
        self.dirty.load(Ordering::Relaxed)
    }

    /// Frames of its blocks that are not free, its control pages included. Takes no lock.
    pub fn held_frames(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Gives the empty block that it keeps, if there is one, to the heap of blocks.
    pub fn give_back_spare(&self) {
        let mut state = self.state.lock();
        if state.spare != NONE {
            let spare = Gpa(state.spare);
            self.give_back(&mut state, spare);
        }
    }

    fn note_free(&self, state: &FreeLists) {
        let held = state.blocks + state.frames_used;
        self.free.store(state.blocks * USABLE as u64 - state.frames_used, Ordering::Relaxed);
        self.dirty.store(state.dirty, Ordering::Relaxed);
        self.held.store(held, Ordering::Relaxed);
        P::counted(held, state.dirty);
    }

    /// The map through which frames are reached.
    pub fn phys(&self) -> PhysMap {
        self.phys
    }

    /// A frame with one reference. Its bytes are unspecified. `None` when RAM is used up.
    pub fn alloc(&self) -> Option<Gpa> {
        self.alloc_for(Stay::Passing)
    }

    /// As [`Self::alloc`], for one that is used for so long.
    pub fn alloc_for(&self, stay: Stay) -> Option<Gpa> {
        self.alloc_frame(stay).map(|(gpa, _)| gpa)
    }

    /// A frame with one reference that reads as zeros. A frame that the host has not committed is
    /// not touched.
    pub fn alloc_zeroed(&self) -> Option<Gpa> {
        self.alloc_zeroed_for(Stay::Passing)
    }

    /// As [`Self::alloc_zeroed`], for one that is used for so long.
    pub fn alloc_zeroed_for(&self, stay: Stay) -> Option<Gpa> {
        let (gpa, dirty) = self.alloc_frame(stay)?;
        if dirty {
            self.phys.zero_frame(gpa);
        }
        Some(gpa)
    }

    /// `pages` contiguous frames (a power of two, at most [`MAX_RUN`]), aligned to their own size,
    /// with one reference each; their bytes are unspecified. `None` when there is no such run: the
    /// caller may try a shorter one. Each frame lives its own life afterwards.
    pub fn alloc_run(&self, pages: usize) -> Option<Gpa> {
        self.alloc_run_with(pages, &mut |_| ())
    }

    /// As [`Self::alloc_run`]; the frames read as zeros. Those that the host has not committed are
    /// not touched; the others are filled with zeros.
    pub fn alloc_run_zeroed(&self, pages: usize) -> Option<Gpa> {
        self.alloc_run_with(pages, &mut |range| {
            (0..range.count).for_each(|i| self.phys.zero_frame(range.start + i * PAGE_SIZE));
        })
    }

    /// As [`Self::alloc_run`]; `dirty` is called with each maximal range that may hold bytes other
    /// than zero, and may fill it or give it back to the host. Long ranges are better given back:
    /// many of their frames may have been reserved by their last owner and never touched, and
    /// filling them would commit them.
    pub fn alloc_run_with(&self, pages: usize, dirty: &mut dyn FnMut(Frames)) -> Option<Gpa> {
        assert!(pages.is_power_of_two() && pages <= MAX_RUN, "a run of {pages} pages");
        let (block, start) = {
            let mut state = self.state.lock();
            let (block, start) = self.find_run(&mut state, pages.trailing_zeros())?;
            self.take(&mut state, block, start, pages);
            (block, start)
        };
        // The frames are ours alone now, and nobody changes dirty bits of frames in use.
        self.control(block).dirty_ranges(start, pages, &mut |from, count| {
            dirty(Frames { start: frame(block, from), count: count as u64 });
        });
        Some(frame(block, start))
    }

    /// True if a frame in use lies in a huge page of the host, as far as is known.
    pub fn is_huge(&self, gpa: Gpa) -> bool {
        let (control, index) = self.locate(gpa);
        index >= MAX_RUN && control.is_huge()
    }

    /// The host has one now behind the run of [`MAX_RUN`] frames in use that begins at `first`.
    pub fn note_huge(&self, first: Gpa) {
        self.locate(first).0.note_huge();
    }

    /// The host has taken memory back from behind frames in use.
    pub fn note_released(&self, frames: Frames) {
        let (control, index) = self.locate(frames.start);
        control.note_released(index, frames.count as usize);
    }

    /// True if its blocks have such a run of free frames.
    pub fn has_run(&self, pages: usize) -> bool {
        let order = pages.next_power_of_two().trailing_zeros();
        let state = self.state.lock();
        self.list(&state).any(|block| self.control(block).first_run(order).is_some())
    }

    /// Takes exactly these frames if all of them are free and lie in one block of this allocator
    /// that has others in use; whether it did. Their bytes are unspecified. For growing a run in
    /// place.
    pub fn try_claim(&self, frames: Frames) -> bool {
        let (start, count) = (index_of(frames.start), frames.count as usize);
        let block = block_of(frames.start);
        if start == 0
            || count == 0
            || frames.count >= BLOCK_FRAMES
            || start + count > BLOCK_FRAMES as usize
        {
            return false;
        }
        let mut state = self.state.lock();
        let control = self.control(block);
        control.check(block, self.tag);
        if !control.all_free(start, count) {
            return false;
        }
        self.take(&mut state, block, start, count);
        true
    }

    /// Takes one more reference to a frame in use. [`Saturated`] when it has 65,535 already: copy
    /// it instead.
    pub fn ref_inc(&self, gpa: Gpa) -> Result<(), Saturated> {
        let (control, index) = self.locate(gpa);
        refs::inc(&control.refs[index])
    }

    /// Drops a reference; the last one frees the frame. Whether it was the last.
    pub fn ref_dec(&self, gpa: Gpa) -> bool {
        let (control, index) = self.locate(gpa);
        let last = refs::dec(&control.refs[index]);
        if last {
            if self.poison.load(Ordering::Relaxed) {
                self.phys.fill_frame(gpa, POISON);
            }
            self.put(gpa, 1, After::Touched);
        }
        last
    }

    /// References to a frame; 0 for a free one. When it is 1 and the caller holds that one, it
    /// stays 1.
    pub fn ref_count(&self, gpa: Gpa) -> u16 {
        let (control, index) = self.locate(gpa);
        control.refs[index].load(Ordering::Acquire)
    }

    /// Frees a frame that has one reference. Panics when it has another number of them.
    pub fn free(&self, gpa: Gpa) {
        self.free_run(Frames { start: gpa, count: 1 });
    }

    /// Frees frames of one block that have one reference each. Panics when one has another number
    /// of them.
    pub fn free_run(&self, frames: Frames) {
        self.release_refs(frames);
        self.put(frames.start, frames.count as usize, After::Touched);
    }

    /// As [`Self::free_run`] for frames that the caller knows to hold no host memory: never touched
    /// since they were handed out clean, or given back and not touched since. A wrong claim shows
    /// old bytes to the next owner.
    pub fn free_clean(&self, frames: Frames) {
        self.release_refs(frames);
        self.put(frames.start, frames.count as usize, After::Clean);
    }

    /// As [`Self::free_run`] for frames that nobody touched since they were handed out.
    pub fn free_untouched(&self, frames: Frames) {
        self.release_refs(frames);
        self.put(frames.start, frames.count as usize, After::Untouched);
    }

    /// Says that `frames` were given back to the host. Those that are free now are known to be zero
    /// from now on; those in use are not concerned (their owner may have touched them again).
    pub fn mark_released(&self, frames: Frames) {
        let mut state = self.state.lock();
        let end = frames.start.0 + frames.len_bytes();
        let mut at = frames.start;
        while at.0 < end {
            let block = block_of(at);
            let count = ((end - at.0) / PAGE_SIZE).min(BLOCK_FRAMES - index_of(at) as u64);
            let control = self.control(block);
            control.check(block, self.tag);
            state.dirty -= control.set_clean_if_free(index_of(at), count as usize);
            at = at + count * PAGE_SIZE;
        }
        self.note_free(&state);
    }

    /// Calls `release` with batches of ranges that cover every free frame that may hold host
    /// memory, and no frame in use; each range is as long as it can be. When `release` returns true
    /// they were given back to the host, and are marked so; when it returns false they will come
    /// again next time. An empty block that was kept goes to the [`BlockHeap`] first, so call that
    /// one's `free_ranges` afterwards. `release` must not use this allocator.
    pub fn free_ranges(&self, release: &mut dyn FnMut(&[Frames]) -> bool) {
        const BATCH: usize = 64;
        let mut state = self.state.lock();
        if state.spare != NONE {
            let spare = Gpa(state.spare);
            self.give_back(&mut state, spare);
        }
        let mut batch = [Frames { start: Gpa(0), count: 0 }; BATCH];
        let mut len = 0;
        let mut cleaned = 0;
        let mut flush = |batch: &[Frames]| {
            if !batch.is_empty() && release(batch) {
                for range in batch {
                    let control = self.control(block_of(range.start));
                    let (start, count) = (index_of(range.start), range.count as usize);
                    cleaned += control.count_dirty(start, count);
                    control.set_dirty(start, count, false);
                }
            }
        };
        for block in self.list(&state) {
            self.control(block).free_dirty_ranges(&mut |from, count| {
                if len == BATCH {
                    flush(&batch);
                    len = 0;
                }
                batch[len] = Frames { start: frame(block, from), count: count as u64 };
                len += 1;
            });
        }
        flush(&batch[..len]);
        state.dirty -= cleaned;
        self.note_free(&state);
    }

    /// Frames and blocks in use.
    pub fn stats(&self) -> FrameStats {
        let state = self.state.lock();
        FrameStats { frames_used: state.frames_used, blocks: state.blocks }
    }

    fn control(&self, block: Gpa) -> &'static Control {
        control::at(self.phys, block)
    }

    /// The control page and index of a frame. Panics when it is not a frame of a live block of this
    /// allocator.
    fn locate(&self, gpa: Gpa) -> (&'static Control, usize) {
        let (block, index) = (block_of(gpa), index_of(gpa));
        assert!(gpa.is_page_aligned() && index != 0, "{gpa:?} is not a frame");
        let control = self.control(block);
        control.check(block, self.tag);
        (control, index)
    }

    /// Takes the one reference of each frame away.
    fn release_refs(&self, frames: Frames) {
        let (control, index) = self.locate(frames.start);
        assert!(
            index + frames.count as usize <= BLOCK_FRAMES as usize,
            "{frames:?} leaves its block"
        );
        for count in &control.refs[index..index + frames.count as usize] {
            let was = count.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Relaxed);
            assert_eq!(was, Ok(1), "{frames:?} freed while shared or free");
        }
    }

    /// All blocks with free frames: those for what passes first, each sort in order of address.
    fn list(&self, state: &FreeLists) -> impl Iterator<Item = Gpa> {
        let known = |block: u64| (block != NONE).then_some(Gpa(block));
        let next = move |block: &Gpa| known(self.control(*block).next.load(Ordering::Relaxed));
        state.heads.into_iter().flat_map(move |head| core::iter::successors(known(head), next))
    }

    /// A block with a free frame, one of the sort as long as there is one or can be one.
    fn block_for(&self, state: &mut FreeLists, stay: Stay) -> Option<Gpa> {
        let head = state.heads[stay as usize];
        if head != NONE {
            return Some(Gpa(head));
        }
        let block = match state.spare {
            NONE => match self.grow(state, stay) {
                None => self.list(state).next()?,
                block => return block,
            },
            spare => Gpa(spare),
        };
        // What lasts goes on in the block where it begins: not a frame in each that gets one free.
        if stay == Stay::Lasting || state.spare == block.0 {
            self.unlink(state, block);
            self.control(block).set_stay(stay);
            self.link(state, block);
        }
        Some(block)
    }

    fn alloc_frame(&self, stay: Stay) -> Option<(Gpa, bool)> {
        let mut state = self.state.lock();
        let block = self.block_for(&mut state, stay)?;
        let control = self.control(block);
        let index = control.first_free()?;
        self.take(&mut state, block, index, 1);
        let mut dirty = false;
        control.dirty_ranges(index, 1, &mut |_, _| dirty = true);
        Some((frame(block, index), dirty))
    }

    fn find_run(&self, state: &mut FreeLists, order: u32) -> Option<(Gpa, usize)> {
        let mut block = state.heads[Stay::Passing as usize];
        while block != NONE {
            let control = self.control(Gpa(block));
            if let Some(start) = control.first_run(order) {
                return Some((Gpa(block), start));
            }
            block = control.next.load(Ordering::Relaxed);
        }
        let block = self.grow(state, Stay::Passing)?;
        Some((block, self.control(block).first_run(order)?))
    }

    /// Takes frames known to be free; the block leaves the list when it was the last ones.
    fn take(&self, state: &mut FreeLists, block: Gpa, start: usize, count: usize) {
        let control = self.control(block);
        state.dirty -= control.count_dirty(start, count);
        control.take(start, count);
        state.frames_used += count as u64;
        self.note_free(state);
        if state.spare == block.0 {
            state.spare = NONE;
        }
        if control.free_count() == 0 {
            self.unlink(state, block);
        }
    }

    /// Puts frames without references back; an empty block goes back to the heap unless it becomes
    /// the spare one.
    fn put(&self, gpa: Gpa, count: usize, after: After) {
        let block = block_of(gpa);
        let mut state = self.state.lock();
        let control = self.control(block);
        let was_full = control.free_count() == 0;
        control.put(index_of(gpa), count, after);
        state.dirty += control.count_dirty(index_of(gpa), count);
        state.frames_used -= count as u64;
        self.note_free(&state);
        if was_full {
            self.link(&mut state, block);
        }
        if control.free_count() == USABLE {
            if state.spare == NONE {
                state.spare = block.0;
            } else {
                // Keep the lower one: RAM in use stays compact.
                let higher = Gpa(state.spare.max(block.0));
                state.spare = state.spare.min(block.0);
                self.give_back(&mut state, higher);
            }
        }
    }

    fn grow(&self, state: &mut FreeLists, stay: Stay) -> Option<Gpa> {
        if !P::may_grow() {
            return None;
        }
        let block = self.blocks.alloc()?;
        if !P::taken(block.gpa) {
            self.blocks.free(block.gpa, 1, block.clean);
            return None;
        }
        self.control(block.gpa).init(block.gpa, self.tag, block.clean, stay);
        state.blocks += 1;
        state.dirty += if block.clean { 0 } else { u64::from(USABLE) };
        self.note_free(state);
        self.link(state, block.gpa);
        Some(block.gpa)
    }

    fn give_back(&self, state: &mut FreeLists, block: Gpa) {
        self.unlink(state, block);
        let control = self.control(block);
        state.dirty -= control.count_dirty(1, USABLE as usize);
        control.retire();
        state.blocks -= 1;
        self.note_free(state);
        if state.spare == block.0 {
            state.spare = NONE;
        }
        P::given_back(block);
        self.blocks.free(block, 1, false);
    }

    /// Puts a block into the list for its sort, in order of address, beginning the search where the
    /// last one was put.
    fn link(&self, state: &mut FreeLists, block: Gpa) {
        let stay = self.control(block).stay() as usize;
        let (mut prev, mut next) = (NONE, state.heads[stay]);
        if state.cursors[stay] != NONE && state.cursors[stay] < block.0 {
            prev = state.cursors[stay];
            next = self.control(Gpa(prev)).next.load(Ordering::Relaxed);
        }
        while next != NONE && next < block.0 {
            prev = next;
            next = self.control(Gpa(next)).next.load(Ordering::Relaxed);
        }
        let control = self.control(block);
        control.next.store(next, Ordering::Relaxed);
        control.prev.store(prev, Ordering::Relaxed);
        self.join(state, stay, prev, block.0);
        self.join(state, stay, block.0, next);
        state.cursors[stay] = block.0;
    }

    fn unlink(&self, state: &mut FreeLists, block: Gpa) {
        let control = self.control(block);
        let (prev, next) =
            (control.prev.load(Ordering::Relaxed), control.next.load(Ordering::Relaxed));
        let stay = control.stay() as usize;
        self.join(state, stay, prev, next);
        if state.cursors[stay] == block.0 {
            state.cursors[stay] = prev;
        }
    }

    /// Makes `next` follow `prev` in the list for a sort; [`NONE`] is its head or end.
    fn join(&self, state: &mut FreeLists, stay: usize, prev: u64, next: u64) {
        if prev == NONE {
            state.heads[stay] = next;
        } else {
            self.control(Gpa(prev)).next.store(next, Ordering::Relaxed);
        }
        if next != NONE {
            self.control(Gpa(next)).prev.store(prev, Ordering::Relaxed);
        }
    }
}

impl<P: Policy> fmt::Debug for FrameAllocator<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameAllocator")
            .field("tag", &self.tag)
            .field("stats", &self.stats())
            .finish()
    }
}

fn frame(block: Gpa, index: usize) -> Gpa {
    block + index as u64 * PAGE_SIZE
}

#[cfg(test)]
mod tests;

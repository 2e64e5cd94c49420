//! The kernel heap and the heap of 4 MiB blocks that all frames come from.
//!
//! A failed allocation of the kernel is a panic, so it must not come to that: the last free blocks
//! are the kernel's alone (the *reserve*), user frames cannot have them. When the kernel itself
//! gets down to them, memory is *low*: system calls and faults wait until the out-of-memory path
//! has got some back ([`crate::task::oom`]), and what must go on meanwhile lives on the reserve.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use qlib::blocks::{BLOCK_FRAMES, BlockHeap};
use qlib::heap::KernelHeap;
use qlib::platform::{BootInfo, PLATFORM_KVM};
use qlib::{PAGE_SIZE, kvm};

/// All blocks of RAM.
pub static BLOCKS: BlockHeap = BlockHeap::empty();

/// The kernel's own heap.
#[cfg_attr(target_os = "none", global_allocator)]
pub static HEAP: KernelHeap = KernelHeap::empty();

/// Blocks that user frames must leave.
static RESERVE_BLOCKS: AtomicUsize = AtomicUsize::new(0);
/// Below this many pages in blocks of the heap and in free blocks together, memory is low.
static LOW_PAGES: AtomicU64 = AtomicU64::new(0);
/// Bytes outside of guest RAM that count as used ([`crate::account`]), in whole pages.
static CHARGED_PAGES: AtomicU64 = AtomicU64::new(0);
/// What the host has not got back yet though it is charged no more, in whole pages. No reason to
/// refuse anything, but what is free must leave room for it.
static LINGERING_PAGES: AtomicU64 = AtomicU64::new(0);
/// Free pages of the heap's own blocks that the host has back: at least so many.
static RETURNED_PAGES: AtomicU64 = AtomicU64::new(0);
/// User frames that only what is made on the reserve may have.
static KEPT_FRAMES: AtomicU64 = AtomicU64::new(0);
/// What is made now is made on the reserve.
static ON_RESERVE: AtomicBool = AtomicBool::new(false);

/// Frames of a block that can be handed out: the first is its control page.
const USABLE_FRAMES: u64 = BLOCK_FRAMES - 1;
/// One block in this many is reserved: the books about pages on their way to be free take a 512th
/// of them, and those about pages of memory objects are given up piece by piece.
const RESERVE_SHARE: usize = 64;
/// What one object of the kernel may take in one piece while memory is low, in pages (128 KiB).
const PIECE_PAGES: usize = 32;
/// One user frame in this many is kept, and at most so many (1 MiB): a shell is loaded with half of
/// that.
const KEPT_SHARE: u64 = 128;
const MOST_KEPT_FRAMES: u64 = 256;
/// So few blocks, and a whole one is too much of them.
const FEW_BLOCKS: usize = 8;
/// What is kept then, in pages (512 KiB).
const FEW_PAGES: u64 = 128;

/// Gives them RAM. First thing at boot: nothing can be allocated before.
pub fn init(info: &BootInfo) {
    BLOCKS.init(info.free_start, info.ram_bytes);
    if info.platform == PLATFORM_KVM {
        BLOCKS.exclude(kvm::HOLE);
        BLOCKS.ask_from(info.kvm.ready, super::kvm::host::grow);
    }
    // SAFETY: qvisor maps all of RAM there for the sandbox's life; from `free_start` on it belongs
    // to these allocators.
    let phys = unsafe { qlib::phys::PhysMap::new(info.phys_base as usize, info.ram_bytes) };
    KEPT_FRAMES.store((info.ram_bytes / PAGE_SIZE / KEPT_SHARE).min(MOST_KEPT_FRAMES), Relaxed);
    resize(0);
    HEAP.init(phys, &BLOCKS);
}

/// So many blocks are no part of RAM for the time being: the reserve is as large as for the rest.
pub fn resize(withheld: usize) {
    let (blocks, pages) = reserve_of(BLOCKS.stats().total.saturating_sub(withheld));
    RESERVE_BLOCKS.store(blocks, Relaxed);
    LOW_PAGES.store(pages, Relaxed);
}

/// Of so many blocks: how many user frames must leave, and the pages below which memory is low.
fn reserve_of(total: usize) -> (usize, u64) {
    if total < FEW_BLOCKS {
        return (0, FEW_PAGES);
    }
    let blocks = (total / RESERVE_SHARE).max(1);
    (blocks, blocks as u64 * USABLE_FRAMES * 3 / 4)
}

/// Pages that the kernel heap can still have if `free` blocks are free.
fn kernel_room(free: usize) -> u64 {
    (HEAP.free_frames() + free as u64 * USABLE_FRAMES)
        .saturating_sub(CHARGED_PAGES.load(Relaxed) + shadow_pages())
}

/// Pages that the host has beside guest memory.
fn outside_pages() -> u64 {
    CHARGED_PAGES.load(Relaxed) + LINGERING_PAGES.load(Relaxed) + shadow_pages()
}

/// Pages that the host has for page tables of its own beside the guest's.
fn shadow_pages() -> u64 {
    if super::is_kvm() { 0 } else { HEAP.table_pages() }
}

/// True if user frames may have one more block.
pub fn user_may_grow() -> bool {
    leave_host_room(1);
    let Some(left) = BLOCKS.free_blocks().checked_sub(1) else { return false };
    if ON_RESERVE.load(Relaxed) {
        // Frames that are left come from what is kept. A block is for good, or as long as one frame
        // of it is used: the kernel must not be low for that.
        return kernel_room(left) >= LOW_PAGES.load(Relaxed);
    }
    leaves_reserve(left)
}

/// True if one free block more or less makes no difference to the kernel, with what is charged.
pub fn has_block_to_spare() -> bool {
    BLOCKS.free_blocks().checked_sub(1).is_some_and(leaves_reserve)
}

/// True if `left` free blocks are more than what user frames must leave.
fn leaves_reserve(left: usize) -> bool {
    let reserve = RESERVE_BLOCKS.load(Relaxed);
    let charged = (CHARGED_PAGES.load(Relaxed) + shadow_pages()).div_ceil(USABLE_FRAMES) as usize;
    left >= reserve + charged && kernel_room(left) >= 2 * LOW_PAGES.load(Relaxed).min(FEW_PAGES)
}

/// Frees of host memory what is free for the guest, as far as what is charged needs it: blocks that
/// were given back to the heap may be committed still, and then what stubs cost comes on top.
/// `more` blocks are about to be used.
#[cold]
fn leave_host_room(more: usize) {
    let dirty = BLOCKS.dirty_blocks();
    let too_many = too_many_dirty(dirty, BLOCKS.free_blocks(), outside_pages(), more);
    if too_many > 0 {
        BLOCKS.release_down_to(dirty - too_many, &mut |ranges| super::release(ranges).is_ok());
    }
}

/// Blocks that are free for the guest and may be committed by the host all the same, beyond those
/// that leave it room for what is charged.
fn too_many_dirty(dirty: usize, free: usize, charged_pages: u64, more: usize) -> usize {
    if charged_pages == 0 {
        return 0;
    }
    let kept = (charged_pages.div_ceil(USABLE_FRAMES) as usize).saturating_add(more);
    dirty.saturating_sub(free.saturating_sub(kept))
}

/// True if what the host has beside guest memory takes more than `free` blocks. Then it has the
/// place of free pages in the heap's own blocks.
fn is_beyond_blocks(free: usize) -> bool {
    outside_pages() > free as u64 * USABLE_FRAMES
}

/// Gives the host back the free pages of the heap's own blocks, when enough have come to be free
/// since it was last done.
#[cold]
fn return_heap_pages() {
    const WORTH_IT: u64 = 64;
    let free = HEAP.free_frames();
    let returned = RETURNED_PAGES.load(Relaxed).min(free);
    let now = if free - returned < WORTH_IT {
        returned
    } else {
        let mut all = true;
        HEAP.free_ranges(&mut |ranges| {
            let is_released = super::release(ranges).is_ok();
            all &= is_released;
            is_released
        });
        if all { HEAP.free_frames() } else { returned }
    };
    RETURNED_PAGES.store(now, Relaxed);
}

/// True if the kernel heap has got down to the reserve. Cheap: asked at each system call and fault.
/// So it is also where the host is left room for its page tables, and for what the heap has grown
/// by, since the last.
#[inline]
pub fn is_low() -> bool {
    let free = BLOCKS.free_blocks();
    let dirty = BLOCKS.dirty_blocks();
    if dirty > 0 && too_many_dirty(dirty, free, outside_pages(), 0) > 0 {
        leave_host_room(0);
    }
    if is_beyond_blocks(free) {
        return_heap_pages();
    } else if RETURNED_PAGES.load(Relaxed) > 0 {
        // Nobody notes from now on which of them are used again.
        RETURNED_PAGES.store(0, Relaxed);
    }
    kernel_room(free) < LOW_PAGES.load(Relaxed) || free == 0 && is_in_pieces()
}

/// True if no whole block is left, and in those of the heap no run of pages that is long enough for
/// what is allocated in one piece.
#[cold]
fn is_in_pieces() -> bool {
    LOW_PAGES.load(Relaxed) > 0 && !HEAP.has_run(PIECE_PAGES)
}

/// True if even what is left for things that cannot be refused has to be spared.
pub fn is_very_low() -> bool {
    let share = if ON_RESERVE.load(Relaxed) { 4 } else { 2 };
    kernel_room(BLOCKS.free_blocks()) < LOW_PAGES.load(Relaxed) / share
}

/// True if memory is low, but not so low that a small process could not be loaded.
pub fn has_some_left() -> bool {
    let free = BLOCKS.free_blocks();
    kernel_room(free) >= LOW_PAGES.load(Relaxed) / 4 * 3 && (free > 0 || !is_in_pieces())
}

/// User frames that are left for what must work when memory is used up.
pub fn kept_frames() -> u64 {
    if ON_RESERVE.load(Relaxed) { 0 } else { KEPT_FRAMES.load(Relaxed) }
}

/// The size of what is left when memory is low, in bytes: no single thing may take more than a part
/// of it.
pub fn low_bytes() -> u64 {
    LOW_PAGES.load(Relaxed) * PAGE_SIZE
}

/// True if `bytes` more, of kernel memory or of what is charged, leave memory as far from low as
/// user frames must.
pub fn has_room_for(bytes: u64) -> bool {
    let low = LOW_PAGES.load(Relaxed);
    // 0: unit tests, which have no such heap.
    let free = BLOCKS.free_blocks();
    low == 0
        || kernel_room(free) >= low.saturating_add(bytes.div_ceil(PAGE_SIZE))
            && (free > 0 || !is_in_pieces())
}

/// True if what is done now must work when memory is used up ([`on_reserve`]).
pub fn is_on_reserve() -> bool {
    ON_RESERVE.load(Relaxed)
}

/// True if `bytes` more of kernel memory leave half of the reserve. For what must work when memory
/// is low, and will give them back.
pub fn has_room_on_reserve(bytes: u64) -> bool {
    let room = kernel_room(BLOCKS.free_blocks());
    let low = LOW_PAGES.load(Relaxed);
    low == 0 || room >= (low / 2).saturating_add(bytes.div_ceil(PAGE_SIZE))
}

/// Changes what is charged for memory outside of guest RAM to `bytes`.
pub fn charge(bytes: u64) {
    let pages = bytes.div_ceil(PAGE_SIZE);
    if CHARGED_PAGES.swap(pages, Relaxed) < pages {
        leave_host_room(0);
    }
}

/// So many bytes are charged no more, but the host has not got them back yet.
pub fn linger(bytes: u64) {
    LINGERING_PAGES.store(bytes.div_ceil(PAGE_SIZE), Relaxed);
}

/// True if something [lingers](linger).
pub fn lingers() -> bool {
    LINGERING_PAGES.load(Relaxed) > 0
}

/// What is charged, with the host's page tables, in bytes.
pub fn charged() -> u64 {
    (CHARGED_PAGES.load(Relaxed) + shadow_pages()) * PAGE_SIZE
}

/// Does something that must work when memory is used up: its user frames may come from the reserve.
/// It must not wait for anything.
pub fn on_reserve<R>(work: impl FnOnce() -> R) -> R {
    let before = ON_RESERVE.swap(true, Relaxed);
    let result = work();
    ON_RESERVE.store(before, Relaxed);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_but_committed_leaves_the_host_room_for_what_is_charged() {
        // Nothing is charged: all may stay committed.
        assert_eq!(too_many_dirty(10, 10, 0, 1), 0);
        // A part of a block is a block.
        assert_eq!(too_many_dirty(10, 10, 1, 0), 1);
        assert_eq!(too_many_dirty(10, 10, USABLE_FRAMES + 1, 1), 3);
        // Those that are clean leave room too.
        assert_eq!(too_many_dirty(7, 10, 3 * USABLE_FRAMES, 0), 0);
        assert_eq!(too_many_dirty(8, 10, 3 * USABLE_FRAMES, 0), 1);
        // More is charged than there is.
        assert_eq!(too_many_dirty(4, 5, 100 * USABLE_FRAMES, 0), 4);
        assert_eq!(too_many_dirty(0, 5, 100 * USABLE_FRAMES, usize::MAX), 0);
    }

    #[test]
    fn the_reserve_grows_with_memory_and_has_bounds() {
        assert_eq!(reserve_of(1), (0, FEW_PAGES));
        assert_eq!(reserve_of(FEW_BLOCKS), (1, 767));
        assert_eq!(reserve_of(127).0, 1);
        assert_eq!(reserve_of(128).0, 2);
        assert_eq!(reserve_of(6 << 10).0, 96);
    }
}

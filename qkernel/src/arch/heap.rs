//! The kernel heap and the heap of 4 MiB blocks that all frames come from.
//!
//! A failed allocation of the kernel is a panic, so it must not come to that: the last free blocks
//! are the kernel's alone (the *reserve*), user frames cannot have them. When the kernel itself
//! gets down to them, memory is *low*: system calls and faults wait until the out-of-memory path
//! has got some back ([`crate::task::oom`]), and what must go on meanwhile lives on the reserve.
//!
//! RAM is as large as the host's. A container's memory limit is a *budget* of pages that the host
//! has committed: those in use, those that are free but not given back, and what is charged. So a
//! limit changes at any time and to any size, wherever the free pages lie.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use qlib::blocks::{BLOCK_FRAMES, BlockHeap};
use qlib::heap::KernelHeap;
use qlib::platform::{BootInfo, PLATFORM_KVM};
use qlib::{PAGE_SIZE, kvm};

use super::upcalls::UPCALLS;

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
/// Pages of host memory that there may be; `u64::MAX`: no limit but RAM.
static BUDGET_PAGES: AtomicU64 = AtomicU64::new(u64::MAX);
/// Of these, so many must be left by user frames ...
static BUDGET_RESERVE_PAGES: AtomicU64 = AtomicU64::new(0);
/// ... and so many by those that are not made on the reserve, on top.
static BUDGET_KEPT_PAGES: AtomicU64 = AtomicU64::new(0);
/// Pages of the kernel's image that are touched, at most.
static IMAGE_PAGES: AtomicU64 = AtomicU64::new(0);
/// User frames that are not free, with the control pages of their blocks, and those that are free
/// but may hold host memory.
static USER_PAGES: AtomicU64 = AtomicU64::new(0);
static USER_DIRTY_PAGES: AtomicU64 = AtomicU64::new(0);
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

/// The image's own pages on `process`, where its text and read-only data are the file's: 256 KiB.
const PRIVATE_IMAGE_PAGES: u64 = 64;
/// What a memory limit leaves the kernel at least, in pages (768 KiB).
const LEAST_RESERVE_PAGES: u64 = 192;
/// The same as a part of it; and the most of that, in pages (4 MiB), as long as a
/// [`RESERVE_SHARE`] is not more.
const BUDGET_SHARE: u64 = 32;
const MOST_RESERVE_PAGES: u64 = 1024;
/// So many free pages are worth giving back at once.
const WORTH_IT: u64 = 64;

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
    let image = match info.platform {
        PLATFORM_KVM => (info.free_start - info.image_start) / PAGE_SIZE,
        _ => PRIVATE_IMAGE_PAGES,
    };
    IMAGE_PAGES.store(image, Relaxed);
    set_budget(0);
    HEAP.init(phys, &BLOCKS);
}

/// There may be so many bytes of host memory from now on; 0, or as much as RAM: no limit.
pub fn set_budget(bytes: u64) {
    let total = BLOCKS.stats().total;
    let (blocks, mut low) = reserve_of(total);
    RESERVE_BLOCKS.store(blocks, Relaxed);
    let pages = bytes / PAGE_SIZE;
    let kept = |pages: u64| (pages / KEPT_SHARE).min(MOST_KEPT_FRAMES);
    let (mut budget, mut kept_frames) = (u64::MAX, kept(total as u64 * BLOCK_FRAMES));
    if pages != 0 && pages < total as u64 * BLOCK_FRAMES {
        let reserve;
        (reserve, low) = reserve_of_budget(pages);
        (budget, kept_frames) = (pages, 0);
        BUDGET_RESERVE_PAGES.store(reserve, Relaxed);
        BUDGET_KEPT_PAGES.store(kept(pages), Relaxed);
    }
    KEPT_FRAMES.store(kept_frames, Relaxed);
    LOW_PAGES.store(low, Relaxed);
    BUDGET_PAGES.store(budget, Relaxed);
}

/// Of a budget of so many pages: how many user frames must leave, and below how many memory is low.
fn reserve_of_budget(pages: u64) -> (u64, u64) {
    let share = (pages / BUDGET_SHARE).min(MOST_RESERVE_PAGES).max(pages / RESERVE_SHARE as u64);
    let reserve = share.max(LEAST_RESERVE_PAGES);
    (reserve, reserve / 3 * 2)
}

/// Notes how many user frames are not free, with the control pages of their blocks, and how many
/// free ones may hold host memory.
pub fn note_user(held: u64, dirty: u64) {
    USER_PAGES.store(held, Relaxed);
    USER_DIRTY_PAGES.store(dirty, Relaxed);
}

/// Pages in use, with what is charged.
fn used_pages() -> u64 {
    IMAGE_PAGES.load(Relaxed)
        + USER_PAGES.load(Relaxed)
        + HEAP.held_pages()
        + CHARGED_PAGES.load(Relaxed)
        + shadow_pages()
}

/// Free pages that the host may not have back.
fn dirty_pages() -> u64 {
    USER_DIRTY_PAGES.load(Relaxed)
        + HEAP.dirty_pages()
        + BLOCKS.dirty_blocks() as u64 * BLOCK_FRAMES
}

/// Gives the host back the blocks that are free.
pub fn release_blocks() {
    BLOCKS.free_ranges(&mut |ranges| super::release(ranges).is_ok());
}

/// Pages of the budget that are not used.
fn budget_left() -> u64 {
    BUDGET_PAGES.load(Relaxed).saturating_sub(used_pages())
}

/// How many pages too many the host may have committed, were there `more` of them.
fn beyond_budget(more: u64) -> u64 {
    let committed = used_pages() + dirty_pages() + LINGERING_PAGES.load(Relaxed);
    committed.saturating_add(more).saturating_sub(BUDGET_PAGES.load(Relaxed))
}

/// Gives free pages back to the host if `more` that it commits would be beyond the budget. Not
/// under the lock of an allocator.
#[inline]
fn keep_in_budget(more: u64) {
    if BUDGET_PAGES.load(Relaxed) != u64::MAX && beyond_budget(more) > 0 {
        return_pages(more);
    }
}

#[cold]
fn return_pages(more: u64) {
    if dirty_pages() < WORTH_IT {
        return;
    }
    let dirty = BLOCKS.dirty_blocks();
    let blocks = beyond_budget(more).div_ceil(BLOCK_FRAMES) as usize;
    if dirty > 0 {
        let left = dirty.saturating_sub(blocks);
        BLOCKS.release_down_to(left, &mut |ranges| super::release(ranges).is_ok());
    }
    if beyond_budget(more) > 0 && USER_DIRTY_PAGES.load(Relaxed) > 0 {
        (UPCALLS.release_user_frames)();
        // An empty block that was kept is the heap's of blocks now.
        BLOCKS.release_down_to(0, &mut |ranges| super::release(ranges).is_ok());
    }
    if beyond_budget(more) > 0 && HEAP.dirty_pages() > 0 {
        HEAP.free_ranges(&mut |ranges| super::release(ranges).is_ok());
    }
}

/// True if the budget has `count` more user frames; what the host needs for that, it has then.
pub fn budget_has(count: u64) -> bool {
    if BUDGET_PAGES.load(Relaxed) == u64::MAX {
        return true;
    }
    keep_in_budget(count);
    budget_left() >= user_floor().saturating_add(count)
}

/// Pages of the budget that user frames must leave now.
fn user_floor() -> u64 {
    match ON_RESERVE.load(Relaxed) {
        true => LOW_PAGES.load(Relaxed),
        false => BUDGET_RESERVE_PAGES.load(Relaxed) + BUDGET_KEPT_PAGES.load(Relaxed),
    }
}

/// True if a budget has half of the user frames left that are kept for what must work when memory
/// is used up; without a budget it is not known here.
pub fn budget_has_half_kept() -> bool {
    let kept = BUDGET_KEPT_PAGES.load(Relaxed) / 2;
    budget_left() > BUDGET_RESERVE_PAGES.load(Relaxed) + kept
}

/// True if all that is used leaves of the budget what user frames must; the host has the rest back.
pub fn fits_budget() -> bool {
    keep_in_budget(0);
    BUDGET_PAGES.load(Relaxed) == u64::MAX || budget_left() >= user_floor()
}

/// What is used of memory, with what is charged, in bytes.
pub fn used_bytes() -> u64 {
    used_pages() * PAGE_SIZE
}

/// What programs can still have before memory is used up, in bytes.
pub fn available_bytes() -> u64 {
    let floor = BUDGET_RESERVE_PAGES.load(Relaxed) + BUDGET_KEPT_PAGES.load(Relaxed);
    let free = BLOCKS.free_blocks();
    let charged = (CHARGED_PAGES.load(Relaxed) + shadow_pages()).div_ceil(USABLE_FRAMES) as usize;
    let blocks = free.saturating_sub(RESERVE_BLOCKS.load(Relaxed) + charged) as u64;
    let user_free = (USER_DIRTY_PAGES.load(Relaxed)).saturating_sub(KEPT_FRAMES.load(Relaxed));
    let pages = match BUDGET_PAGES.load(Relaxed) {
        u64::MAX => blocks * USABLE_FRAMES + user_free,
        _ => budget_left().saturating_sub(floor),
    };
    pages * PAGE_SIZE
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
        .min(budget_left())
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
    if budget_left() <= user_floor() {
        return false;
    }
    if ON_RESERVE.load(Relaxed) {
        // Frames that are left come from what is kept. A block is for good, or as long as one frame
        // of it is used: the kernel must not be low for that.
        return kernel_room(left) >= LOW_PAGES.load(Relaxed);
    }
    leaves_reserve(left)
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
    keep_in_budget(0);
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

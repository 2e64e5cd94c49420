//! Frames of user memory: where they come from, and what happens when they are used up.

use qlib::bitmap::{FrameAllocator, FrameStats, Policy, Stay};
use qlib::pagetable::{Action, Pte, PteFlags};
use qlib::{Frames, Gpa, PAGE_SIZE, Va};

use super::deferred_free::DeferredFree;
use super::reclaim;
use super::swap::slots;
use super::tables::Table;
use crate::account;
use crate::arch::{self, heap};
use crate::errno::{Errno, Result};
use crate::sync::Once;

/// The allocator of user frames.
pub type UserFrames = FrameAllocator<UserBlocks>;

static USER: Once<UserFrames> = Once::new();

/// How user frames take blocks. The platform shows user code nothing that is not in one of them.
#[derive(Clone, Copy, Debug)]
pub struct UserBlocks;

impl Policy for UserBlocks {
    fn may_grow() -> bool {
        account::user_may_grow()
    }

    fn taken(block: Gpa) -> bool {
        arch::user_block(block, true)
    }

    fn given_back(block: Gpa) {
        arch::user_block(block, false);
    }

    fn counted(held: u64, dirty: u64) {
        heap::note_user(held, dirty);
    }
}

/// Sets up the user frames. At boot, after the heap.
pub fn init() {
    USER.set(FrameAllocator::with_policy(
        arch::phys(),
        &heap::BLOCKS,
        u32::from_le_bytes(*b"user"),
    ));
    if arch::boot().poison_frames != 0 {
        user().poison();
    }
}

/// True if there is a frame for a user page: one in use by nobody, or a block that user frames may
/// still have.
pub fn are_left() -> bool {
    may_take(1)
}

/// As [`are_left`], for who has found none: some more are left than that, for what a call needs of
/// kernel memory in between is of the same budget, and is free when it is asked.
pub fn are_some_left() -> bool {
    const PASSING_PAGES: u64 = 64;
    are_left() && heap::budget_has(PASSING_PAGES)
}

/// True if the caller may take `count` frames: the last ones are for what must work when memory is
/// used up.
pub fn may_take(count: u64) -> bool {
    heap::budget_has(count)
        && (user().free_frames() >= count + heap::kept_frames() || account::user_may_grow())
}

/// True if a copy for a call may have a frame of those that are kept: half of them are not for it.
pub fn may_copy_to_kept() -> bool {
    user().free_frames() > heap::kept_frames() / 2 && heap::budget_has_half_kept()
}

/// Gives those that are free back to the host.
pub fn release_free() {
    user().free_ranges(&mut |ranges| arch::release(ranges).is_ok());
}

/// The allocator of user frames.
pub fn user() -> &'static UserFrames {
    USER.get()
}

/// How many user frames are in use.
pub fn stats() -> FrameStats {
    user().stats()
}

/// A frame of zeros with one reference.
pub fn alloc_zeroed() -> Result<Gpa> {
    alloc_zeroed_for(Stay::Passing)
}

/// As [`alloc_zeroed`], for a page that is there for so long.
pub fn alloc_zeroed_for(stay: Stay) -> Result<Gpa> {
    take(|| user().alloc_zeroed_for(stay))
}

/// One frame by `alloc`, if need be after what can be given up at once is given up. ENOMEM.
fn take(alloc: impl Fn() -> Option<Gpa>) -> Result<Gpa> {
    let take = || may_take(1).then(&alloc).flatten();
    take().or_else(|| reclaim::reclaim().then(take).flatten()).ok_or(Errno::ENOMEM)
}

/// `count` frames of zeros in a row, with one reference each; `None` when there are not so many.
pub fn alloc_run_zeroed(count: u64) -> Option<Gpa> {
    run_of(count, |run| user().alloc_run_zeroed(run))
}

/// `count` frames in a row of what `alloc` gives, which are a power of two.
fn run_of(count: u64, alloc: impl FnOnce(usize) -> Option<Gpa>) -> Option<Gpa> {
    let run = count.next_power_of_two();
    if !heap::budget_has(run) {
        return None;
    }
    let first = alloc(run as usize)?;
    if count < run {
        let rest = Frames { start: first + count * PAGE_SIZE, count: run - count };
        user().free_untouched(rest);
    }
    Some(first)
}

/// A frame with one reference whose bytes the caller overwrites.
pub fn alloc() -> Result<Gpa> {
    alloc_for(Stay::Passing)
}

/// As [`alloc`], for a page that is there for so long.
pub fn alloc_for(stay: Stay) -> Result<Gpa> {
    take(|| user().alloc_for(stay))
}

/// `count` frames in a row, with one reference each, whose bytes the caller overwrites; `None` when
/// there are not so many.
pub fn alloc_run(count: u64) -> Option<Gpa> {
    run_of(count, |run| user().alloc_run(run))
}

/// Drops one reference to each frame.
pub fn free_frames(frames: DeferredFree) {
    for frame in frames {
        user().ref_dec(frame);
    }
}

/// Drops everything that the entries of a table hold, and its tables. Nobody may have the pages
/// mapped any more.
pub fn free_all(table: &mut Table) {
    free_some(table, Va(0), usize::MAX);
}

/// Does so for at most `most` entries from `from` on: where to go on, or `None` if nothing is left.
pub fn free_some(table: &mut Table, from: Va, most: usize) -> Option<Va> {
    let (mut left, mut rest) = (most, None);
    table.for_each(from..arch::boot().user_max, &mut |va, pte| {
        if left == 0 {
            rest = Some(va);
            return Action::Stop;
        }
        left -= 1;
        free_entry(pte);
        Action::Replace(Pte::EMPTY)
    });
    if rest.is_none() {
        table.drop_all();
    }
    rest
}

/// Drops what one entry holds: a reference to a frame, or to a swap slot.
pub fn free_entry(pte: Pte) {
    if let Some(slot) = pte.slot() {
        slots::drop_ref(slot);
    } else if let Some(frame) = counted_frame(pte) {
        user().ref_dec(frame);
    }
}

/// The frame of an entry that holds a reference to one.
pub fn counted_frame(pte: Pte) -> Option<Gpa> {
    (pte.is_present() && !pte.has(PteFlags::WINDOW)).then(|| pte.gpa())
}

//! Huge pages: 2 MiB of private anonymous memory for which the host has one page, where a program
//! asks for them (MADV_HUGEPAGE) or has touched a long row. A fault of the host for each small page
//! costs several times what zeroing it does, and there are 512 of them.
//!
//! The guest's own page tables know small pages only. A huge page is 512 frames in a row, behind
//! which the host is asked to put one page of its own *before* a program sees them: by a host call
//! that takes a while, so that frames are taken first, and what has changed in the address space
//! meanwhile is looked at again. The call changes no byte, so nothing is wrong if nobody waits for
//! its end.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use qlib::bitmap::MAX_RUN;
use qlib::pagetable::Pte;
use qlib::{Frames, Gpa, PAGE_SIZE, Va};

use super::fault::entry_flags;
use super::frames::{self, counted_frame};
use super::space::Inner;
use super::vma::{Vma, VmaFlags};
use super::{Access, AddressSpace};
use crate::account;
use crate::arch;
use crate::errno::{Errno, Result};
use crate::time;

/// Bytes of a huge page.
const HUGE_BYTES: u64 = MAX_RUN as u64 * PAGE_SIZE;
/// How long a row of touches is before the next ones are given a huge page unasked: of what is
/// there then, at most an eighth is not touched.
const ROW_PIECES: u64 = 8;
/// For how long none is asked for after the host had none, in ns.
const REST_NS: u64 = 200_000_000;
/// The same if it does not seem to know any.
const UNKNOWN_REST_NS: u64 = 60_000_000_000;
/// The same after one that took longer than small pages would have, by how long it took: memory of
/// the host that it never used before takes as long in small pages.
const RESTS_PER_SLOW: u64 = 4;

/// The part of the container's memory that huge pages leave to others: where it comes to that,
/// small ones do, of which those come back that are never touched.
const SHARE_LEFT: u64 = 16;

/// None is asked for before this moment of the monotonic clock.
static RESTS_UNTIL: AtomicU64 = AtomicU64::new(0);

/// Frames for a huge page that no address space has yet.
#[derive(Debug)]
pub struct HugePage {
    at: Va,
    frames: Frames,
    /// The host has yet to be asked for a page behind them.
    is_new: bool,
}

impl Drop for HugePage {
    fn drop(&mut self) {
        if self.frames.count > 0 {
            frames::user().free_run(self.frames);
        }
    }
}

impl HugePage {
    /// The memory that the host is to be asked for a page for, if it has none there yet.
    pub fn wanted(&self) -> Option<Gpa> {
        self.is_new.then_some(self.frames.start)
    }

    /// What the host said, which was asked at `since_ns` (CLOCK_MONOTONIC).
    pub fn note(&mut self, outcome: Result, since_ns: u64) {
        if matches!(outcome, Ok(()) | Err(Errno::ETIME)) {
            frames::user().note_huge(self.frames.start);
        }
        let now = time::monotonic_ns();
        let rest = match outcome {
            Ok(()) => return,
            Err(Errno::ETIME | Errno::ETIMEDOUT) => (now - since_ns) * RESTS_PER_SLOW,
            // It knows none (MADV_COLLAPSE: Linux 6.1), or this RAM cannot have any.
            Err(Errno::EINVAL | Errno::ENOSYS) => UNKNOWN_REST_NS,
            // The thread is killed.
            Err(Errno::ERESTARTSYS) => return,
            Err(_) => REST_NS,
        };
        RESTS_UNTIL.store(now + rest, Relaxed);
    }
}

impl Inner {
    /// True if the first touch of `page` is to be given a huge page: in a range of which a program
    /// said so, or at the end of a long row, where nothing of the 2 MiB is there yet. What is read
    /// here and there is zeros that nobody has to have: of a range it has to be read in a row.
    pub(super) fn wants_huge(&mut self, vma: &Vma, page: Va, access: Access) -> bool {
        let at = page.align_down(HUGE_BYTES);
        let may_be = vma.start <= at
            && vma.end - at >= HUGE_BYTES
            && vma.backing.is_none()
            && vma.served().is_none()
            && !vma.flags.intersects(VmaFlags::SHARED | VmaFlags::NO_HUGE | VmaFlags::DROPPABLE);
        may_be
            && match vma.flags.contains(VmaFlags::HUGE) {
                true => access == Access::Write || self.ends_row(vma, at, 1),
                false => self.ends_row(vma, at, ROW_PIECES),
            }
            && self.empty_around(page, at..at + HUGE_BYTES) == (at..at + HUGE_BYTES)
    }

    /// True if so many pieces of the range below `at` are there, by their looks.
    fn ends_row(&mut self, vma: &Vma, at: Va, pieces: u64) -> bool {
        at - vma.start >= pieces * HUGE_BYTES
            && (0..pieces).all(|n| self.table().get(at - n * HUGE_BYTES - PAGE_SIZE).is_present())
    }
}

impl AddressSpace {
    /// Takes frames for the huge page that a touch of `va` wants. `None`: it is to have small ones.
    pub fn take_huge(&self, va: Va) -> Option<HugePage> {
        let until = RESTS_UNTIL.load(Relaxed);
        if until > 0 && time::monotonic_ns() < until {
            return None;
        }
        {
            let mut inner = self.lock();
            let vma = inner.vmas.find(va).cloned()?;
            if !inner.wants_huge(&vma, va.page_floor(), Access::Write) {
                return None;
            }
        }
        let left = account::memory_bytes() / PAGE_SIZE / SHARE_LEFT;
        if !frames::may_take(MAX_RUN as u64 + left) {
            return None;
        }
        let user = frames::user();
        let zero = |range: Frames| {
            (0..range.count).for_each(|n| user.phys().zero_frame(range.start + n * PAGE_SIZE));
        };
        let mut has_small = false;
        let first = user.alloc_run_with(MAX_RUN, &mut |range| match user.is_huge(range.start) {
            true => zero(range),
            false => has_small = true,
        })?;
        let frames = Frames { start: first, count: MAX_RUN as u64 };
        // The host would copy small pages that it has there, which takes longer than making new
        // ones.
        if has_small && arch::release(&[frames]).is_err() {
            zero(frames);
        }
        Some(HugePage { at: va.align_down(HUGE_BYTES), frames, is_new: !user.is_huge(first) })
    }

    /// How many bytes of a range that has no file lie in huge pages.
    pub fn huge_bytes(&self, range: Range<Va>) -> u64 {
        let mut bytes = 0;
        // Where the next page has to lie, and in which frame, to go on with what may be one.
        let mut next = (Va(0), Gpa(0));
        self.lock().table().visit(range, &mut |va, pte| {
            let Some(frame) = counted_frame(pte) else { return true };
            let is_first = va.0.is_multiple_of(HUGE_BYTES) && frame.0.is_multiple_of(HUGE_BYTES);
            if is_first || next == (va, frame) {
                next = (va + PAGE_SIZE, frame + PAGE_SIZE);
                let is_last = !is_first && next.0.0.is_multiple_of(HUGE_BYTES);
                if is_last && frames::user().is_huge(frame) {
                    bytes += HUGE_BYTES;
                }
            } else {
                next = (Va(0), Gpa(0));
            }
            true
        });
        bytes
    }

    /// Has programs see it, unless something else is there by now, or nothing may be.
    pub fn enter_huge(&self, mut page: HugePage) {
        let mut inner = self.lock();
        let Some(vma) = inner.vmas.find(page.at).cloned() else { return };
        if inner.wants_huge(&vma, page.at, Access::Write) {
            let pte = Pte::new(page.frames.start, entry_flags(&vma, true));
            if inner.table().map_run(page.at, pte, page.frames.count).is_ok() {
                page.frames.count = 0;
            }
        }
    }
}

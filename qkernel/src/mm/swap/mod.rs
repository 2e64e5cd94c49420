//! Pages that lie in the store, or [are to](kept): which slots ([`slots`]), when they were last
//! used ([`usage`]), [writing](write()) and reading them back ([`read`]), also [ahead] of use; and
//! what hibernation does to an address space: noting what was used, hiding it from the platform,
//! and rewriting its entries.

pub mod ahead;
pub mod kept;
mod read;
pub mod slots;
pub mod usage;
mod write;

pub use read::{memory_is_lost, swap_in, swap_in_run, swap_ins};
pub use usage::Usage;
pub use write::{segments_of, write, write_soon};

use alloc::vec::Vec;
use core::ops::Range;

use qlib::bitmap::Stay;
use qlib::pagetable::{Action, Pte, PteFlags};
use qlib::platform::MAX_TOUCHED_PAGES;
use qlib::{PAGE_SIZE, Va};

use super::AddressSpace;
use super::fault::{Failure, entry_flags};
use super::frames::counted_frame;
use super::freeze::EVERYTHING;
use super::space::Inner;
use super::vma::Vma;
use crate::arch;

/// Pages that come back from the swap file together at most: an aligned group of them. What a
/// request uses lies close together (a pool of Python's allocator has this size), and three
/// neighbours cost less than a fault.
const GROUP_PAGES: u64 = 4;

/// Bytes that the platform is asked about at once.
const CHUNK_BYTES: u64 = MAX_TOUCHED_PAGES * PAGE_SIZE;

/// True if an entry is shown and its page not known to be used: only then has the platform
/// something to tell.
fn is_open(pte: Pte) -> bool {
    pte.is_present() && pte.has(PteFlags::ACCESSED) && Usage::of(pte).is_unseen()
}

impl AddressSpace {
    /// Hides every page from the platform; the operation must be carried out
    /// ([`crate::task::UserThread::flush`]). Before, which pages user code has touched is noted in
    /// their entries. No thread of the space may be in user mode.
    pub fn hide_all(&self) {
        self.note_touched(arch::boot().user_min..arch::boot().user_max, &is_open);
        self.note_stale(EVERYTHING);
        let mut inner = self.lock();
        let (table, mmu) = inner.parts();
        mmu.forget(table, arch::boot().user_min..arch::boot().user_max);
        mmu.expect_warm_up();
        // What is empty still is given up at a sleep, and when memory is used up.
        inner.emptied.forget(u64::MAX);
    }

    /// Notes of those present entries of `range` that are `open` which pages user code has touched.
    pub(super) fn note_touched(&self, range: Range<Va>, is_open: &dyn Fn(Pte) -> bool) {
        let mut inner = self.lock();
        let mut chunks: Vec<Va> = Vec::new();
        inner.table().visit_present(range, &mut |va, pte| {
            let chunk = va.align_down(CHUNK_BYTES);
            if is_open(pte) && chunks.last() != Some(&chunk) {
                chunks.push(chunk);
            }
            true
        });
        for chunk in chunks {
            let mut bitmap = [0; MAX_TOUCHED_PAGES as usize / 64];
            match self.with_handle(|handle| handle.touched(chunk, &mut bitmap)) {
                Ok(()) => {}
                // No user code has run since it was taken off the platform.
                Err(_) if !self.is_on_platform() => return,
                Err(_) => bitmap.fill(u64::MAX),
            }
            let mut refilled = 0;
            inner.table().for_each_present(chunk..chunk + CHUNK_BYTES, &mut |va, pte| {
                let page = ((va - chunk) / PAGE_SIZE) as usize;
                let touched = bitmap[page / 64] >> (page % 64) & 1 != 0;
                if touched && is_open(pte) {
                    refilled += u64::from(Usage::of(pte).is_emptied());
                    Action::Replace(Usage::of(pte).seen().put(pte))
                } else {
                    Action::Keep
                }
            });
            inner.emptied.forget(refilled);
        }
    }

    /// Visits the entries of private ranges that hold a frame. The space must be hidden.
    /// `rewrite(anonymous, entry)` gives the new entry; for what becomes of the frames' references
    /// it answers itself. `anonymous`: without the page, zeros would be read.
    pub fn rewrite_private(&self, rewrite: &mut dyn FnMut(bool, Pte) -> Pte) {
        let reads_zeros = |vma: &Vma| vma.backing.is_none() && vma.served_by.is_none();
        self.rewrite(false, &mut |vma, pte| rewrite(reads_zeros(vma), pte));
    }

    /// As [`Self::rewrite_private`] for ranges that show memory objects (shared memory, files in
    /// memory). Mapped host files have no frames.
    pub fn rewrite_shared(&self, rewrite: &mut dyn FnMut(Pte) -> Pte) {
        self.rewrite(true, &mut |_, pte| rewrite(pte));
    }

    fn rewrite(&self, shared: bool, rewrite: &mut dyn FnMut(&Vma, Pte) -> Pte) {
        // A system call that has ended since the space was hidden may have brought a page in, and
        // the operation to show it has not been carried out: it would show the frame that is given
        // up here.
        self.note_stale(EVERYTHING);
        let mut inner = self.lock();
        inner.mmu.void_maps();
        // One by one: there may be very many, and this is done when memory is used up, too.
        let mut next = inner.vmas.iter().next().cloned();
        while let Some(vma) = next {
            next = inner.vmas.next_after(vma.end).cloned();
            if vma.is_shared() != shared {
                continue;
            }
            inner.table().for_each_present(vma.start..vma.end, &mut |_, pte| {
                if counted_frame(pte).is_none() {
                    return Action::Keep;
                }
                match rewrite(&vma, pte) {
                    new if new == pte => Action::Keep,
                    new => Action::Replace(new),
                }
            });
        }
    }
}

impl Inner {
    /// Brings the page at `page`, which lies in `slot`, back from the swap file, with its
    /// neighbours if they left together with it.
    pub(super) fn bring_back(&mut self, vma: &Vma, page: Va, slot: u64) -> Result<(), Failure> {
        debug_assert!(!vma.is_shared(), "pages of shared objects are swapped by their object");
        if self.bring_back_kept(vma, page, slot).map_err(|_| Failure::NO_MEMORY)? {
            return Ok(());
        }
        let (start, count) = self.group(vma, page, slot);
        let first_slot = slot - (page - start) / PAGE_SIZE;
        let (start, count, frame) = match swap_in_run(first_slot, count) {
            Some(frame) => (start, count, frame),
            None => (page, 1, swap_in(slot, Stay::Passing).map_err(|_| Failure::NO_MEMORY)?),
        };
        self.table().for_each(start..start + count * PAGE_SIZE, &mut |va, pte| {
            let kept = pte.flags() & PteFlags::KEPT_IN_SLOT;
            let flags = entry_flags(vma, kept.is_empty()) | kept;
            let usage = if va == page { Usage::of(pte).seen() } else { Usage::GUESSED };
            Action::Replace(usage.put(Pte::new(frame + (va - start), flags)))
        });
        Ok(())
    }

    /// The largest aligned group of pages around `page` that lie in slots in a row: first page and
    /// count. Those that left the working set were not used for long; nobody guesses them back.
    fn group(&mut self, vma: &Vma, page: Va, slot: u64) -> (Va, u64) {
        let mut count = GROUP_PAGES;
        while count > 1 {
            let start = page.align_down(count * PAGE_SIZE);
            let end = start + count * PAGE_SIZE;
            let mut found = 0;
            if vma.start <= start && end <= vma.end {
                self.table().visit(start..end, &mut |va, pte| {
                    let expected =
                        (slot + (va - start) / PAGE_SIZE).checked_sub((page - start) / PAGE_SIZE);
                    let fits = pte.slot().is_some()
                        && pte.slot() == expected
                        && !expected.is_some_and(kept::is_kept)
                        && Usage::of(pte) != Usage::LEFT;
                    found += u64::from(fits);
                    fits
                });
            }
            if found == count {
                return (start, count);
            }
            count /= 2;
        }
        (page, 1)
    }
}

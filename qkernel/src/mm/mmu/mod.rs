//! How CPUs come to see a page table, and its changes.
//!
//! The page table in guest memory is the truth. What CPUs see of it may lag (a missing mapping
//! faults), never lead: so a frame that an entry named is free only when no CPU can see it there.
//! [`Mmu`] is what sees to that for one address space. Where the hardware walks the page table
//! ([`hardware`], `kvm`) a change is carried out by forgetting what CPUs have cached. Where the
//! space is mirrored by mappings of a stub ([`mirror`], `process`) its threads carry changes out,
//! each before it goes on.

mod hardware;
mod mirror;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

use qlib::pagetable::{Action, Pte, PteFlags, TableAlloc};
use qlib::platform::DeferredOp;
use qlib::{Gpa, Va};

use super::deferred_free::DeferredFree;
use super::ranges::Ranges;
use super::swap::Usage;
use super::tables::Table;
use super::vma::Prot;
use crate::arch;

pub use mirror::{maps_in, touches, void};

/// What makes CPUs follow the page table of one address space.
pub(super) trait Mmu: Send {
    /// True if a CPU may see what the entry names, or will before what is pending is carried out:
    /// its frame may not be used for anything else before an [unmapping](Mmu::unmap) from now on.
    fn may_be_cached(&self, pte: Pte) -> bool;

    /// The entry of the page at `va` is there, or has become another: maps it, with neighbours that
    /// cost little.
    fn map(&mut self, table: &mut Table, va: Va);

    /// Unmaps `range`; what it had is gone from the page table, or faults in again.
    fn unmap(&mut self, range: Range<Va>);

    /// Changes the present entries of `range` by `change`, of which CPUs see the protection: how
    /// many that were emptied count as used from now on.
    fn protect(&mut self, table: &mut Table, range: Range<Va>, change: &dyn Fn(Pte) -> Pte) -> u64;

    /// Unmaps all pages of `range` without touching what the entries hold; they fault in again.
    fn forget(&mut self, table: &mut Table, range: Range<Va>) {
        let mut cached = false;
        table.for_each_present(range.clone(), &mut |_, pte| {
            cached |= self.may_be_cached(pte);
            match is_mapped(pte) {
                true => Action::Replace(pte.without(PteFlags::ACCESSED)),
                false => Action::Keep,
            }
        });
        if cached {
            self.unmap(range);
        }
    }

    /// As [`Mmu::forget`], for what must not be changed while it is mapped. What is known of its
    /// use by the mapping is lost with that, so it counts as used: how many pages had been emptied.
    fn hide(&mut self, table: &mut Table, range: Range<Va>) -> u64 {
        let mut emptied = 0;
        table.for_each_present(range.clone(), &mut |_, pte| match is_mapped(pte) {
            true => {
                emptied += u64::from(Usage::of(pte).is_emptied());
                Action::Replace(Usage::of(pte).seen().put(pte))
            }
            false => Action::Keep,
        });
        self.forget(table, range);
        emptied
    }

    /// A range that overlaps this one, and an unmapping of which may still be under way: who uses
    /// it anew has to carry that out too.
    fn on_its_way_out(&self, range: &Range<Va>) -> Option<Range<Va>> {
        let _ = range;
        None
    }

    /// `range` is used anew: has it unmapped first if an unmapping of it may still be under way.
    fn reuse(&mut self, range: Range<Va>);

    /// The entry at `va`, which [may be cached](Mmu::may_be_cached), has been replaced; it held
    /// `frame`. `for_kernel`: the kernel writes to the new page before the thread goes on; it
    /// [flushes](Mmu::flush) first.
    fn replace(&mut self, table: &mut Table, va: Va, frame: Option<Gpa>, for_kernel: bool);

    /// True if such a page of the kernel's is pending: threads that share the space may not see
    /// what it holds.
    fn has_unseen_copies(&self) -> bool {
        false
    }

    /// Takes out which pages those are: what another thread was given to map there before must be
    /// carried out before the copies are mapped.
    fn take_copies(&mut self) -> Ranges {
        Ranges::default()
    }

    /// Frees frames when what is pending is carried out.
    fn free_later(&mut self, frames: DeferredFree);

    /// Several threads use the space from now on.
    fn share(&mut self);

    /// True if whoever takes pages away must [freeze](super::freeze) the space for that: several
    /// threads use it, or did, and carry changes out.
    fn must_freeze(&self) -> bool;

    /// One thread alone goes on, with a page table of its own: what is pending stays.
    fn start_anew(&mut self);

    /// True if pages are better emptied where they are than taken away.
    fn empties(&self) -> bool {
        self.needs_threads()
    }

    /// True if threads of the space carry out its changes.
    fn needs_threads(&self) -> bool;

    /// Carries out what is pending, if no thread is needed for that, in the space with the page
    /// table at `root`: the frames that are free now.
    #[must_use]
    fn flush(&mut self, root: Gpa) -> DeferredFree;

    /// True if something is pending.
    fn is_pending(&self) -> bool;

    /// What a thread of the space has to carry out before it goes on, and the frames that are free
    /// afterwards.
    fn take(&mut self) -> (Vec<DeferredOp>, DeferredFree);

    /// Gives back what was [taken](Mmu::take) and will not be carried out by the thread that took
    /// it, with the [copies](Mmu::take_copies) that it shows, before what has come since.
    fn put_back(&mut self, ops: Vec<DeferredOp>, frames: DeferredFree, copies: Ranges);

    /// Frames will move: what is pending maps nothing any more. What it would have mapped faults in
    /// again.
    fn void_maps(&mut self);

    /// The sandbox sleeps: the next faults bring their surroundings too.
    fn expect_warm_up(&mut self);

    /// The frames that wait, when nothing of the space is mapped any more.
    fn take_frames(&mut self) -> DeferredFree;

    /// How many frames wait.
    fn waiting_frames(&self) -> usize;
}

/// True if the ranges have a page in common.
pub(super) fn overlap(a: &Range<Va>, b: &Range<Va>) -> bool {
    a.start < b.end && b.start < a.end
}

/// True if the page may be mapped as the entry says.
pub(super) fn is_mapped(pte: Pte) -> bool {
    pte.has(PteFlags::PRESENT | PteFlags::ACCESSED)
}

/// What makes CPUs follow a new page table.
pub(super) fn new() -> Box<dyn Mmu> {
    if arch::is_kvm() {
        Box::new(hardware::Hardware::default())
    } else {
        Box::new(mirror::Mirror::default())
    }
}

/// A page table has been made.
pub(super) fn table_made(root: Gpa) {
    if arch::is_kvm() {
        hardware::table_made(root);
    }
}

/// No entry leads to a table any more: frees it, perhaps later.
pub(super) fn free_table(table: Gpa) {
    if arch::is_kvm() {
        hardware::free_table(table);
    } else {
        arch::heap::HEAP.free_table(table);
    }
}

pub use hardware::release_tables;

/// PROT_* bits of an entry.
fn prot_of(pte: Pte) -> u32 {
    let mut prot = Prot::empty();
    if pte.has(PteFlags::USER | PteFlags::PRESENT) {
        prot |= Prot::READ;
        prot.set(Prot::WRITE, pte.has(PteFlags::WRITE));
        prot.set(Prot::EXEC, !pte.has(PteFlags::NX));
    }
    prot.bits()
}

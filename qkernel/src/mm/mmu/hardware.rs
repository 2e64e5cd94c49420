//! The hardware walks the page table: it sets the ACCESSED bit itself, before it uses an entry, so
//! every present one may be cached. A missing entry is not cached: nothing is ever to be mapped.

use alloc::vec::Vec;
use core::ops::Range;

use qlib::pagetable::{Action, Pte, TableAlloc};
use qlib::platform::DeferredOp;
use qlib::{Gpa, PAGE_SIZE, Va};

use super::{DeferredFree, Mmu, Table, prot_of};
use crate::arch::heap::HEAP;
use crate::arch::kvm::space;
use crate::mm::ranges::Ranges;
use crate::sync::{Mutex, mutex};

/// What CPUs have yet to forget of one space.
#[derive(Default)]
pub(super) struct Hardware {
    /// Ranges that CPUs may have cached as they were.
    stale: Vec<Range<Va>>,
    /// Frames that are free once those are forgotten.
    frames: DeferredFree,
}

impl Mmu for Hardware {
    fn may_be_cached(&self, pte: Pte) -> bool {
        pte.is_present()
    }

    fn map(&mut self, _: &mut Table, _: Va) {}

    fn unmap(&mut self, range: Range<Va>) {
        self.stale.push(range);
    }

    fn protect(&mut self, table: &mut Table, range: Range<Va>, change: &dyn Fn(Pte) -> Pte) -> u64 {
        let mut changed: Option<Range<Va>> = None;
        table.for_each_present(range, &mut |va, pte| {
            let new = change(pte);
            if prot_of(pte) != prot_of(new) {
                let start = changed.as_ref().map_or(va, |changed| changed.start);
                changed = Some(start..va + PAGE_SIZE);
            }
            Action::Replace(new)
        });
        self.stale.extend(changed);
        0
    }

    fn reuse(&mut self, _: Range<Va>) {}

    fn replace(&mut self, _: &mut Table, va: Va, frame: Option<Gpa>, _: bool) {
        self.frames.extend(frame);
        self.unmap(va..va + PAGE_SIZE);
    }

    fn free_later(&mut self, frames: DeferredFree) {
        self.frames.append(frames);
    }

    fn share(&mut self) {}

    fn must_freeze(&self) -> bool {
        false
    }

    fn start_anew(&mut self) {}

    fn needs_threads(&self) -> bool {
        false
    }

    fn flush(&mut self, root: Gpa) -> DeferredFree {
        if !self.stale.is_empty() {
            space::flush(root, &self.stale);
            self.stale.clear();
        }
        core::mem::take(&mut self.frames)
    }

    fn is_pending(&self) -> bool {
        !self.stale.is_empty() || !self.frames.is_empty()
    }

    fn take(&mut self) -> (Vec<DeferredOp>, DeferredFree) {
        // Threads have nothing to do.
        (Vec::new(), DeferredFree::default())
    }

    fn put_back(&mut self, _: Vec<DeferredOp>, frames: DeferredFree, _: Ranges) {
        self.frames.append(frames);
    }

    fn void_maps(&mut self) {}

    fn expect_warm_up(&mut self) {}

    fn take_frames(&mut self) -> DeferredFree {
        core::mem::take(&mut self.frames)
    }

    fn waiting_frames(&self) -> usize {
        self.frames.len()
    }
}

/// Tables that no entry leads to any more, but a CPU may still have on its way to a page.
static OLD_TABLES: Mutex<Vec<Gpa>> = mutex(Vec::new());

/// Puts the kernel's half into a new page table.
pub(super) fn table_made(root: Gpa) {
    space::enter_kernel_half(root);
}

/// Frees a table, later.
pub(super) fn free_table(table: Gpa) {
    OLD_TABLES.lock().push(table);
}

/// Frees the tables that have been taken out of use, if they are that many, when no CPU can walk
/// them any more.
pub fn release_tables(at_least: usize) {
    let tables = {
        let mut old = OLD_TABLES.lock();
        if old.len() < at_least.max(1) {
            return;
        }
        core::mem::take(&mut *old)
    };
    space::flush_everything(&tables);
    tables.into_iter().for_each(|table| HEAP.free_table(table));
}

//! A stub mirrors the page table by mappings of its own: changes are collected here as mapping
//! operations, and the threads of the space carry them out, each before it goes on.
//!
//! The ACCESSED bit of an entry says that the page may be mapped; only such pages need an operation
//! when they change or go, and their frames are not free until it is carried out.

use alloc::sync::Weak;
use alloc::vec::Vec;
use core::ops::Range;

use qlib::pagetable::{Action, Pte, PteFlags};
use qlib::platform::{DeferredOp, OP_MAP, OP_PROTECT, OP_UNMAP};
use qlib::{Gpa, PAGE_SIZE, Va};

use super::{DeferredFree, Mmu, Table, is_mapped, overlap, prot_of};
use crate::mm::ranges::Ranges;

/// More runs than this are not changed one by one but unmapped together, to fault in again.
const MAX_PROTECT_RUNS: usize = 8;
/// More ranges than this on their way out are joined.
const MAX_UNMAPPING: usize = 128;
/// The most that one operation maps (2 MiB).
const MAX_RUN_PAGES: u64 = 512;
/// Faults after a sleep that map a whole 2 MiB chunk, and the most operations that each gives.
const WARM_UP_FAULTS: u32 = 256;
const WARM_UP_OPERATIONS: usize = 64;

/// What the stub of one space has yet to do.
#[derive(Default)]
pub(super) struct Mirror {
    /// What is to be done before any thread of the space goes on.
    ops: Vec<DeferredOp>,
    /// Frames that are free once `ops` are carried out.
    deferred: DeferredFree,
    /// Ranges whose unmapping may still be under way in a thread of the space. What another thread
    /// maps there must be unmapped by itself too before it goes on: it could still see the old
    /// pages.
    unmapping: Vec<Unmapping>,
    /// Several threads use the space, or did.
    shared: bool,
    /// Some of `ops` map what the kernel writes to.
    has_unseen_copies: bool,
    /// Which pages those are.
    copies: Ranges,
    /// Faults that shall map what lies around them too.
    warm_up: u32,
}

/// A range on its way out.
struct Unmapping {
    range: Range<Va>,
    /// Those of its operations that are not carried out live.
    operations: Vec<Weak<()>>,
}

impl Unmapping {
    /// Has it stand for another one too. A range that covers too much only costs an operation too
    /// many.
    fn join(&mut self, range: Range<Va>, operation: Weak<()>) {
        self.range = self.range.start.min(range.start)..self.range.end.max(range.end);
        // Those of one call have one sign, and there may be very many.
        if !self.operations.last().is_some_and(|last| last.ptr_eq(&operation)) {
            self.operations.retain(|operation| operation.strong_count() > 0);
            self.operations.push(operation);
        }
    }

    fn is_underway(&self) -> bool {
        self.operations.iter().any(|operation| operation.strong_count() > 0)
    }
}

/// Makes an operation that maps something, or changes its protection, one that unmaps what is
/// there: the page faults in again, if it may.
pub fn void(op: &mut DeferredOp) {
    // A protection of what has not been mapped would be refused.
    if op.kind == OP_MAP || op.kind == OP_PROTECT {
        op.kind = OP_UNMAP;
    }
}

/// True if `op` is about something in `range`.
pub fn touches(op: &DeferredOp, range: &Range<Va>) -> bool {
    overlap(&(op.va..op.va + op.len), range)
}

/// True if `op` maps something in `range`.
pub fn maps_in(op: &DeferredOp, range: &Range<Va>) -> bool {
    op.kind == OP_MAP && touches(op, range)
}

fn unmap_op(range: &Range<Va>) -> DeferredOp {
    DeferredOp {
        kind: OP_UNMAP,
        va: range.start,
        len: range.end - range.start,
        ..DeferredOp::default()
    }
}

/// True if `op` maps all that `other` maps, to the same frames.
fn contains(op: &DeferredOp, other: &DeferredOp) -> bool {
    op.va <= other.va
        && other.va + other.len <= op.va + op.len
        && other.va - op.va == other.gpa.0.wrapping_sub(op.gpa.0)
}

impl Mirror {
    /// Maps `range`, joined with the last operation where it continues or contains that. (A page
    /// that is copied is mapped as it replaces the old one, and by the fault that asked for it.)
    fn push_map(&mut self, range: Range<Va>, gpa: Gpa, prot: u32) {
        let op =
            DeferredOp { kind: OP_MAP, prot, va: range.start, len: range.end - range.start, gpa };
        let last = self.ops.last_mut().filter(|last| last.kind == OP_MAP && last.prot == prot);
        match last {
            Some(last) if last.va + last.len == op.va && last.gpa + last.len == gpa => {
                last.len += op.len;
            }
            Some(last) if contains(&op, last) => *last = op,
            _ => self.ops.push(op),
        }
    }

    fn note_unmapping(&mut self, range: Range<Va>) {
        let operation = self.deferred.watch();
        if self.unmapping.len() >= MAX_UNMAPPING {
            self.unmapping.retain(Unmapping::is_underway);
        }
        if self.unmapping.len() < MAX_UNMAPPING {
            self.unmapping.push(Unmapping { range, operations: alloc::vec![operation] });
        } else if let Some(first) = self.unmapping.first_mut() {
            first.join(range, operation);
        }
    }

    /// Maps the page at `va`, with the neighbours that are not mapped yet and continue it.
    fn map_run(&mut self, table: &mut Table, va: Va) {
        let page = va.page_floor();
        #[cfg(feature = "poison")]
        {
            let (entry, root) = (table.get(page), table.root());
            if let Some(entry) = crate::arch::poison::instead(page, entry, root) {
                let _ = table.set(page, entry);
            }
        }
        let pte = table.get(page);
        let shape =
            PteFlags::WRITE | PteFlags::NX | PteFlags::WINDOW | PteFlags::USER | PteFlags::PRESENT;
        let continues = |other: Pte, distance: u64, forward: bool| {
            let expected = if forward {
                pte.gpa().0.checked_add(distance)
            } else {
                pte.gpa().0.checked_sub(distance)
            };
            other.flags() & shape == pte.flags() & shape
                && !other.has(PteFlags::ACCESSED)
                && Some(other.gpa().0) == expected
        };
        let chunk = page.align_down(MAX_RUN_PAGES * PAGE_SIZE);
        let (mut low, mut high) = (page, page + PAGE_SIZE);
        while low > chunk && continues(table.get(low - PAGE_SIZE), page - low + PAGE_SIZE, false) {
            low = low - PAGE_SIZE;
        }
        while high < chunk + MAX_RUN_PAGES * PAGE_SIZE
            && continues(table.get(high), high - page, true)
        {
            high = high + PAGE_SIZE;
        }
        let first = pte.gpa() - (page - low);
        table.for_each_present(low..high, &mut |_, pte| {
            Action::Replace(pte.with(PteFlags::ACCESSED))
        });
        self.push_map(low..high, first, prot_of(pte));
    }

    /// Maps what is there of the 2 MiB around `va`: after a sleep nothing is mapped, and what is
    /// there is the working set. An operation more costs a quarter of a fault.
    fn warm_up(&mut self, table: &mut Table, va: Va) {
        let chunk = va.align_down(MAX_RUN_PAGES * PAGE_SIZE);
        let hidden =
            |pte: Pte| pte.has(PteFlags::PRESENT | PteFlags::USER) && !pte.has(PteFlags::ACCESSED);
        let mut pages: Vec<Va> = Vec::new();
        table.visit(chunk..chunk + MAX_RUN_PAGES * PAGE_SIZE, &mut |at, pte| {
            if hidden(pte) {
                pages.push(at);
            }
            true
        });
        let ops = self.ops.len();
        for page in pages {
            if self.ops.len() - ops >= WARM_UP_OPERATIONS {
                break;
            }
            if hidden(table.get(page)) {
                self.map_run(table, page);
            }
        }
    }
}

impl Mmu for Mirror {
    /// Where several threads share the space, an entry that is not mapped any more counts too: the
    /// operation that unmaps it may be another thread's to carry out, and it may not have done so.
    fn may_be_cached(&self, pte: Pte) -> bool {
        is_mapped(pte) || self.shared && pte.is_present()
    }

    fn map(&mut self, table: &mut Table, va: Va) {
        self.map_run(table, va);
        if self.warm_up > 0 {
            self.warm_up -= 1;
            self.warm_up(table, va);
        }
    }

    fn unmap(&mut self, range: Range<Va>) {
        self.ops.push(unmap_op(&range));
        if self.shared {
            self.note_unmapping(range);
        }
    }

    fn protect(&mut self, table: &mut Table, range: Range<Va>, change: &dyn Fn(Pte) -> Pte) -> u64 {
        // Runs of mapped pages whose new protection is the same.
        let mut runs: Vec<(Range<Va>, u32)> = Vec::new();
        // Where threads share the space, an unmapping of another one may still make a hole, which
        // no protection can change.
        let mut too_many = false;
        let limit = if self.shared { 0 } else { MAX_PROTECT_RUNS };
        table.for_each_present(range.clone(), &mut |va, pte| {
            let new = change(pte);
            if self.may_be_cached(pte) && prot_of(pte) != prot_of(new) {
                let prot = prot_of(new);
                let full = runs.len() >= limit;
                match runs.last_mut() {
                    Some((run, last)) if run.end == va && *last == prot => run.end = va + PAGE_SIZE,
                    _ if full => too_many = true,
                    _ => runs.push((va..va + PAGE_SIZE, prot)),
                }
            }
            Action::Replace(new)
        });
        if too_many {
            return self.hide(table, range);
        }
        self.ops.extend(runs.into_iter().map(|(run, prot)| DeferredOp {
            kind: OP_PROTECT,
            prot,
            ..unmap_op(&run)
        }));
        0
    }

    fn on_its_way_out(&self, range: &Range<Va>) -> Option<Range<Va>> {
        let is_out = |out: &&Unmapping| overlap(&out.range, range) && out.is_underway();
        self.unmapping.iter().find(is_out).map(|out| out.range.clone())
    }

    fn reuse(&mut self, range: Range<Va>) {
        self.unmapping.retain(Unmapping::is_underway);
        if self.on_its_way_out(&range).is_none() {
            return;
        }
        let covers = |out: &Range<Va>| range.start <= out.start && out.end <= range.end;
        self.unmapping.retain(|out| !covers(&out.range));
        self.unmap(range);
    }

    fn replace(&mut self, table: &mut Table, va: Va, frame: Option<Gpa>, for_kernel: bool) {
        self.deferred.extend(frame);
        // The kernel's own accesses cannot wait for other threads that may yet map the old page:
        // who shows the copy does.
        if self.shared && for_kernel {
            let page = va.page_floor();
            self.has_unseen_copies = true;
            self.copies.add(page..page + PAGE_SIZE);
        }
        self.map(table, va);
    }

    fn has_unseen_copies(&self) -> bool {
        self.has_unseen_copies
    }

    fn take_copies(&mut self) -> Ranges {
        core::mem::take(&mut self.copies)
    }

    fn free_later(&mut self, frames: DeferredFree) {
        self.deferred.append(frames);
    }

    fn share(&mut self) {
        self.shared = true;
    }

    fn must_freeze(&self) -> bool {
        self.shared
    }

    fn start_anew(&mut self) {
        (self.shared, self.has_unseen_copies) = (false, false);
        self.unmapping.clear();
        self.copies.clear();
        self.warm_up = 0;
    }

    fn needs_threads(&self) -> bool {
        true
    }

    fn flush(&mut self, _: Gpa) -> DeferredFree {
        DeferredFree::default()
    }

    fn is_pending(&self) -> bool {
        !self.ops.is_empty() || !self.deferred.is_empty()
    }

    fn take(&mut self) -> (Vec<DeferredOp>, DeferredFree) {
        self.has_unseen_copies = false;
        (core::mem::take(&mut self.ops), core::mem::take(&mut self.deferred))
    }

    fn put_back(&mut self, mut ops: Vec<DeferredOp>, frames: DeferredFree, copies: Ranges) {
        self.has_unseen_copies |= self.shared && !ops.is_empty();
        copies.iter().for_each(|range| self.copies.add(range.clone()));
        ops.append(&mut self.ops);
        self.ops = ops;
        self.deferred.append(frames);
    }

    fn void_maps(&mut self) {
        self.ops.iter_mut().for_each(void);
    }

    fn expect_warm_up(&mut self) {
        self.warm_up = WARM_UP_FAULTS;
    }

    fn take_frames(&mut self) -> DeferredFree {
        core::mem::take(&mut self.deferred)
    }

    fn waiting_frames(&self) -> usize {
        self.deferred.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ops(maps: &[(u64, u64, u64, u32)]) -> Vec<(u64, u64, u64, u32)> {
        let mut mirror = Mirror::default();
        for &(page, pages, frame, prot) in maps {
            let va = Va(page * PAGE_SIZE);
            mirror.push_map(va..va + pages * PAGE_SIZE, Gpa(frame * PAGE_SIZE), prot);
        }
        let shown = |op: &DeferredOp| {
            (op.va.0 / PAGE_SIZE, op.len / PAGE_SIZE, op.gpa.0 / PAGE_SIZE, op.prot)
        };
        mirror.ops.iter().map(shown).collect()
    }

    #[test]
    fn an_unmapping_is_over_when_its_frames_are_free() {
        let page = |n: u64| Va(n * PAGE_SIZE)..Va((n + 1) * PAGE_SIZE);
        let mut mirror = Mirror { shared: true, ..Mirror::default() };
        mirror.unmap(page(1));
        let (ops, free) = mirror.take();
        assert_eq!(ops.len(), 1);
        mirror.reuse(page(2));
        assert!(mirror.ops.is_empty(), "another page");
        mirror.reuse(page(1));
        assert_eq!(mirror.take().0.len(), 1, "under way");
        mirror.unmap(page(4));
        let (_, other) = mirror.take();
        assert_eq!(mirror.on_its_way_out(&(page(3).start..page(9).end)), Some(page(4)));
        drop((free, other));
        assert_eq!(mirror.on_its_way_out(&page(4)), None);
        mirror.reuse(page(1));
        assert!(mirror.ops.is_empty(), "over");
    }

    #[test]
    fn very_many_unmappings_at_once_are_few_notes() {
        let mut mirror = Mirror { shared: true, ..Mirror::default() };
        for n in 0..10_000 {
            mirror.unmap(Va(2 * n * PAGE_SIZE)..Va((2 * n + 1) * PAGE_SIZE));
        }
        assert_eq!(mirror.unmapping.len(), MAX_UNMAPPING);
        assert!(mirror.unmapping.iter().all(|out| out.operations.len() == 1));
        mirror.reuse(Va(19_998 * PAGE_SIZE)..Va(19_999 * PAGE_SIZE));
        assert_eq!(mirror.ops.len(), 10_001, "none is forgotten");
    }

    #[test]
    fn a_mapping_is_joined_with_the_last_one_if_that_says_the_same() {
        // Once more, and with more around it.
        assert_eq!(ops(&[(8, 1, 20, 0), (8, 1, 20, 0)]), [(8, 1, 20, 0)]);
        assert_eq!(ops(&[(8, 1, 20, 0), (6, 4, 18, 0)]), [(6, 4, 18, 0)]);
        // What follows it.
        assert_eq!(ops(&[(8, 1, 20, 0), (9, 2, 21, 0)]), [(8, 3, 20, 0)]);
        // Other frames, less than it, or another protection.
        for other in [(8, 1, 21, 0), (6, 4, 17, 0), (8, 1, 20, 2), (9, 1, 22, 0)] {
            assert_eq!(ops(&[(8, 1, 20, 0), other]).len(), 2, "{other:?}");
        }
        assert_eq!(ops(&[(8, 2, 20, 0), (8, 1, 20, 0)]).len(), 2);
    }
}

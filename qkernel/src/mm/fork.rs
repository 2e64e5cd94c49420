//! fork(2): a copy of an address space that shares its frames until one side writes.
//!
//! What a shell or a server has written to since its last fork, it will most likely write to after
//! this one too: some twenty pages of stack and heap, and each would cost parent and child a fault.
//! So the child of a process with one thread gets copies of those pages at once
//! ([`super::rewritten`]), and the parent's stay as they are.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use linux_raw_sys::general::UFFD_FEATURE_EVENT_FORK;
use qlib::pagetable::{Pte, PteFlags};
use qlib::{Gpa, PAGE_SIZE, Va};

use super::frames::{self, counted_frame};
use super::ranges::Ranges;
use super::space::Inner;
use super::userfault::{Child, Context, Event, Registration};
use super::vma::{Prot, Vma, VmaFlags};
use super::{AddressSpace, swap};
use crate::account;
use crate::arch::heap;
use crate::errno::{Errno, Result};

/// Entries that are copied at a time.
const BATCH: usize = 1024;
/// Ranges that are hidden one by one; where there are more, what lies between is hidden too, and
/// faults in again.
const MOST_HIDDEN: usize = 64;
/// What the copy of a range takes, about, in bytes.
const RANGE_BYTES: u64 = 160;

/// Copies of pages, for a child that does not have them yet.
#[derive(Default)]
struct Copies(BTreeMap<Va, Gpa>);

impl Drop for Copies {
    fn drop(&mut self) {
        for frame in core::mem::take(&mut self.0).into_values() {
            frames::user().ref_dec(frame);
        }
    }
}

impl AddressSpace {
    /// Has the platform hide what [`AddressSpace::fork`] takes write access to away, where other
    /// threads may write to it; the operations must be carried out before, with the space frozen.
    /// For as soon as an entry says that a page is shared, somebody may copy it (by a fault that
    /// was on its way, or in the kernel), and what is written to the old page after that is lost.
    pub fn hide_before_fork(&self) {
        let mut inner = self.lock();
        // Also where another thread has yet to unmap what may be written to no more. And whether
        // the child has the range at all may change until then.
        let is_written = |vma: &&Vma| {
            let range = vma.start..vma.end;
            !vma.is_shared()
                && (vma.prot.contains(Prot::WRITE) || inner.mmu.on_its_way_out(&range).is_some())
        };
        let mut ranges: Ranges<MOST_HIDDEN> = Ranges::default();
        inner.vmas.iter().filter(is_written).for_each(|vma| ranges.add(vma.start..vma.end));
        let (table, mmu) = inner.parts();
        let used = ranges.iter().map(|range| mmu.hide(table, range.clone())).sum();
        inner.emptied.forget(used);
    }

    /// A copy. This space is left with operations that take write access away; they must be carried
    /// out ([`crate::task::UserThread::flush`]) before the copy runs.
    pub fn fork(&self) -> Result<Arc<AddressSpace>> {
        let child = AddressSpace::new(false)?;
        child.set_denied(self.denied().inherited());
        let mut inner = self.lock();
        let mut copy = child.lock();
        copy.brk = inner.brk;
        copy.mmap_top = inner.mmap_top;
        copy.patches = inner.patches.clone();
        account::ask(inner.vmas.len() as u64 * RANGE_BYTES)?;
        // Another thread could write to a page while it is copied.
        let rewritten = match self.threads().len() {
            1 => inner.rewritten.at_fork(),
            _ => BTreeSet::new(),
        };
        let mut served_children = Vec::new();
        let mut next = Va(0);
        while let Some(vma) = inner.vmas.next_after(next).cloned() {
            next = vma.end;
            if vma.flags.contains(VmaFlags::DONT_FORK) {
                continue;
            }
            // Its faults are nobody's, unless somebody asked to be told of children.
            let served_by = vma.told(UFFD_FEATURE_EVENT_FORK).map(|served| Registration {
                context: child_of(&mut served_children, &served.context),
                ..served.clone()
            });
            let is_served = served_by.is_some();
            copy.vmas.insert(Vma { served_by, ..vma.clone() });
            if vma.flags.contains(VmaFlags::WIPE_ON_FORK) {
                continue;
            }
            let mut copies = Copies::default();
            if !vma.is_shared() {
                copies = inner.copy_pages(rewritten.range(vma.start..vma.end));
                inner.share_copied(&vma, &copies);
            }
            let mut at = vma.start;
            while at < vma.end {
                let mut entries: Vec<(Va, Pte)> = Vec::new();
                let mut reached = vma.end;
                inner.table().visit(at..vma.end, &mut |va, pte| {
                    if entries.len() == BATCH {
                        reached = va;
                        return false;
                    }
                    entries.push((va, pte));
                    true
                });
                copy.take_over(entries, &mut copies, is_served)?;
                at = reached;
            }
        }
        let without =
            |vma: &&Vma| vma.flags.intersects(VmaFlags::DONT_FORK | VmaFlags::WIPE_ON_FORK);
        for vma in inner.vmas.iter().filter(without) {
            copy.unpatch(vma.start..vma.end);
        }
        drop(copy);
        for (told, context) in served_children {
            let event = Event::Fork(Child::new(context, Arc::new(child.program())));
            inner.untold.push((told, event));
        }
        drop(inner);
        Ok(child)
    }
}

/// What `parent` is for a child, by what is known of others.
fn child_of(known: &mut Vec<(Arc<Context>, Arc<Context>)>, parent: &Arc<Context>) -> Arc<Context> {
    if let Some((_, child)) = known.iter().find(|(of, _)| Arc::ptr_eq(of, parent)) {
        return child.clone();
    }
    let child = parent.of_child();
    known.push((parent.clone(), child.clone()));
    child
}

impl Inner {
    /// Copies those of `pages` that are nobody else's and are mapped for writing.
    fn copy_pages<'a>(&mut self, pages: impl Iterator<Item = &'a Va>) -> Copies {
        let mut copies = Copies::default();
        for page in pages.copied() {
            let pte = self.table().get(page);
            let Some(frame) = counted_frame(pte) else { continue };
            let is_own = pte.has(PteFlags::WRITE) && frames::user().ref_count(frame) == 1;
            if !is_own || heap::is_low() {
                continue;
            }
            // Without one, it is shared like all others.
            let Ok(own) = frames::alloc() else { break };
            if crate::arch::copy_page(own, frame).is_err() {
                frames::user().ref_dec(own);
                continue;
            }
            copies.0.insert(page, own);
        }
        copies
    }

    /// Takes write access away from all pages of a private range but those that are `copied`.
    fn share_copied(&mut self, vma: &Vma, copied: &Copies) {
        let share = |inner: &mut Inner, range: Range<Va>| {
            // Also those that cannot be written now: mprotect(2) may change that.
            inner.change(range, |pte| match pte.has(PteFlags::WINDOW) {
                true => pte,
                false => pte.without(PteFlags::WRITE).with(PteFlags::COW),
            });
        };
        let mut from = vma.start;
        for page in copied.0.keys().copied() {
            if from < page {
                share(self, from..page);
            }
            from = page + PAGE_SIZE;
        }
        if from < vma.end {
            share(self, from..vma.end);
        }
    }

    /// Enters what another space has too, or what it has been `copied` to.
    /// `is_served`: a program is told of writes there.
    fn take_over(
        &mut self,
        entries: Vec<(Va, Pte)>,
        copied: &mut Copies,
        is_served: bool,
    ) -> Result {
        for (va, pte) in entries {
            let pte = if is_served { pte } else { pte.without(PteFlags::WATCHED) };
            if let Some(own) = copied.0.remove(&va) {
                let pte = pte.with_gpa(own).without(PteFlags::ACCESSED);
                if self.table().set(va, pte).is_err() {
                    frames::user().ref_dec(own);
                    return Err(Errno::ENOMEM);
                }
                continue;
            }
            if let Some(slot) = pte.slot() {
                swap::slots::add_ref(slot);
            } else if let Some(frame) = counted_frame(pte)
                && frames::user().ref_inc(frame).is_err()
            {
                // So many share it already: the child gets a copy of its own.
                let own = frames::alloc()?;
                let copied = crate::arch::copy_page(own, frame);
                let pte = pte.with_gpa(own).without(PteFlags::ACCESSED);
                if copied.is_err() || self.table().set(va, pte).is_err() {
                    frames::user().ref_dec(own);
                    return Err(Errno::ENOMEM);
                }
                continue;
            }
            if self.table().set(va, pte.without(PteFlags::ACCESSED)).is_err() {
                frames::free_entry(pte);
                return Err(Errno::ENOMEM);
            }
        }
        Ok(())
    }
}

//! fork(2): a copy of an address space that shares its frames until one side writes.

use alloc::sync::Arc;
use alloc::vec::Vec;

use qlib::Va;
use qlib::pagetable::{Pte, PteFlags};

use super::frames::{self, counted_frame};
use super::space::Inner;
use super::vma::{Vma, VmaFlags};
use super::{AddressSpace, swap};
use crate::account;
use crate::errno::{Errno, Result};

/// Entries that are copied at a time.
const BATCH: usize = 1024;
/// What the copy of a range takes, about, in bytes.
const RANGE_BYTES: u64 = 160;

impl AddressSpace {
    /// A copy. This space is left with operations that take write access away; they must be carried
    /// out ([`crate::task::UserThread::flush`]) before the copy runs.
    pub fn fork(&self) -> Result<Arc<AddressSpace>> {
        let child = AddressSpace::new(false)?;
        let mut inner = self.lock();
        let mut copy = child.lock();
        copy.brk = inner.brk;
        copy.mmap_top = inner.mmap_top;
        copy.patches = inner.patches.clone();
        account::ask(inner.vmas.len() as u64 * RANGE_BYTES)?;
        let mut next = Va(0);
        while let Some(vma) = inner.vmas.next_after(next).cloned() {
            next = vma.end;
            if vma.flags.contains(VmaFlags::DONT_FORK) {
                continue;
            }
            copy.vmas.insert(vma.clone());
            if vma.flags.contains(VmaFlags::WIPE_ON_FORK) {
                continue;
            }
            if !vma.is_shared() {
                // Also those that cannot be written now: mprotect(2) may change that.
                inner.change(vma.start..vma.end, |pte| {
                    if pte.has(PteFlags::WINDOW) {
                        pte
                    } else {
                        pte.without(PteFlags::WRITE).with(PteFlags::COW)
                    }
                });
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
                copy.take_over(entries)?;
                at = reached;
            }
        }
        let without =
            |vma: &&Vma| vma.flags.intersects(VmaFlags::DONT_FORK | VmaFlags::WIPE_ON_FORK);
        for vma in inner.vmas.iter().filter(without) {
            copy.unpatch(vma.start..vma.end);
        }
        drop(copy);
        drop(inner);
        Ok(child)
    }
}

impl Inner {
    /// Enters what another space has too.
    fn take_over(&mut self, entries: Vec<(Va, Pte)>) -> Result {
        for (va, pte) in entries {
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

//! fork(2): a copy of an address space that shares its frames until one side writes.

use alloc::sync::Arc;
use alloc::vec::Vec;

use qlib::Va;
use qlib::pagetable::{Pte, PteFlags};

use super::AddressSpace;
use super::frames::{self, counted_frame};
use super::vma::{Vma, VmaFlags};
use crate::errno::{Errno, Result};
use crate::hibernate;

impl AddressSpace {
    /// A copy. This space is left with orders that take write access away; they must be carried out
    /// ([`crate::task::UserThread::flush`]) before the copy runs.
    pub fn fork(&self) -> Result<Arc<AddressSpace>> {
        let child = AddressSpace::new()?;
        let mut inner = self.lock();
        let mut copy = child.lock();
        copy.brk = inner.brk;
        copy.mmap_top = inner.mmap_top;
        copy.patches = inner.patches.clone();
        let vmas: Vec<Vma> = inner.vmas.iter().cloned().collect();
        for vma in vmas {
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
                    if pte.has(PteFlags::WINDOW) { pte } else { pte.without(PteFlags::WRITE).with(PteFlags::COW) }
                });
            }
            let mut entries: Vec<(Va, Pte)> = Vec::new();
            inner.table().visit(vma.start..vma.end, &mut |va, pte| {
                entries.push((va, pte));
                true
            });
            for (va, pte) in entries {
                if let Some(slot) = pte.slot() {
                    hibernate::slots::add_ref(slot);
                } else if let Some(frame) = counted_frame(pte)
                    && frames::user().ref_inc(frame).is_err()
                {
                    // So many share it already: the child gets a copy of its own.
                    let own = frames::alloc()?;
                    crate::arch::copy_page(own, frame)?;
                    let pte = pte.with_gpa(own).without(PteFlags::ACCESSED);
                    copy.table().set(va, pte).map_err(|_| Errno::ENOMEM)?;
                    continue;
                }
                if copy.table().set(va, pte.without(PteFlags::ACCESSED)).is_err() {
                    frames::free_entry(pte);
                    return Err(Errno::ENOMEM);
                }
            }
        }
        let without = |vma: &&Vma| vma.flags.intersects(VmaFlags::DONT_FORK | VmaFlags::WIPE_ON_FORK);
        for vma in inner.vmas.iter().filter(without) {
            copy.unpatch(vma.start..vma.end);
        }
        drop(copy);
        drop(inner);
        Ok(child)
    }
}

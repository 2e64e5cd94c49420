//! What hibernation does to an address space: hiding it from the platform, and rewriting the entries of its private pages.

use qlib::pagetable::{Action, Pte};

use super::AddressSpace;
use super::fault::WARM_UP_FAULTS;
use super::frames::{self, counted_frame};
use super::vma::Vma;
use crate::arch;

impl AddressSpace {
    /// Hides every page from the platform; the order must be carried out ([`crate::task::UserThread::flush`]).
    pub fn hide_all(&self) {
        self.epoch.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        let mut inner = self.lock();
        inner.hide(arch::boot().user_min..arch::boot().user_max);
        inner.warm_up = WARM_UP_FAULTS;
    }

    /// Visits the entries of private ranges that hold a frame. The space must be hidden. `rewrite(anonymous, entry)` gives the new
    /// entry; for what becomes of the frames' references it answers itself.
    pub fn rewrite_private(&self, rewrite: &mut dyn FnMut(bool, Pte) -> Pte) {
        let mut inner = self.lock();
        let ranges: alloc::vec::Vec<Vma> = inner.vmas.iter().filter(|v| !v.is_shared()).cloned().collect();
        for vma in ranges {
            inner.table().for_each(vma.start..vma.end, &mut |_, pte| {
                if counted_frame(pte).is_none() {
                    return Action::Keep;
                }
                match rewrite(vma.backing.is_none(), pte) {
                    new if new == pte => Action::Keep,
                    new => Action::Replace(new),
                }
            });
        }
    }

    /// Forgets the pages of shared objects, which fault in again from their object. The space must be hidden.
    pub fn forget_shared(&self) {
        let mut inner = self.lock();
        let ranges: alloc::vec::Vec<Vma> = inner.vmas.iter().filter(|v| v.is_shared()).cloned().collect();
        for vma in ranges {
            inner.table().for_each(vma.start..vma.end, &mut |_, pte| {
                frames::free_entry(pte);
                Action::Replace(Pte::EMPTY)
            });
        }
    }
}

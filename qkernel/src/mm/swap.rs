//! What hibernation does to an address space: noting what was used, hiding it from the platform, and rewriting its entries.

use alloc::vec::Vec;

use qlib::pagetable::{Action, Pte, PteFlags};
use qlib::platform::MAX_TOUCHED_PAGES;
use qlib::{PAGE_SIZE, Va};

use super::AddressSpace;
use super::fault::WARM_UP_FAULTS;
use super::frames::counted_frame;
use super::vma::Vma;
use crate::arch;
use crate::hibernate::Usage;

/// Bytes that the platform is asked about at once.
const CHUNK_BYTES: u64 = MAX_TOUCHED_PAGES * PAGE_SIZE;

/// Whether an entry is shown and its page not known to be used: only then has the platform something to tell.
fn is_open(pte: Pte) -> bool {
    pte.is_present() && pte.has(PteFlags::ACCESSED) && Usage::of(pte).is_unseen()
}

impl AddressSpace {
    /// Hides every page from the platform; the order must be carried out ([`crate::task::UserThread::flush`]). Before, which pages user
    /// code has touched is noted in their entries. No thread of the space may be in user mode.
    pub fn hide_all(&self) {
        self.note_touched();
        self.epoch.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        let mut inner = self.lock();
        inner.hide(arch::boot().user_min..arch::boot().user_max);
        inner.warm_up = WARM_UP_FAULTS;
    }

    fn note_touched(&self) {
        let mut inner = self.lock();
        let mut chunks: Vec<Va> = Vec::new();
        inner.table().visit(arch::boot().user_min..arch::boot().user_max, &mut |va, pte| {
            let chunk = va.align_down(CHUNK_BYTES);
            if is_open(pte) && chunks.last() != Some(&chunk) {
                chunks.push(chunk);
            }
            true
        });
        for chunk in chunks {
            let mut bitmap = [0; MAX_TOUCHED_PAGES as usize / 64];
            if self.handle().touched(chunk, &mut bitmap).is_err() {
                bitmap.fill(u64::MAX);
            }
            inner.table().for_each(chunk..chunk + CHUNK_BYTES, &mut |va, pte| {
                let page = ((va - chunk) / PAGE_SIZE) as usize;
                let touched = bitmap[page / 64] >> (page % 64) & 1 != 0;
                if touched && is_open(pte) { Action::Replace(Usage::of(pte).seen().put(pte)) } else { Action::Keep }
            });
        }
    }

    /// Visits the entries of private ranges that hold a frame. The space must be hidden. `rewrite(anonymous, entry)` gives the new
    /// entry; for what becomes of the frames' references it answers itself.
    pub fn rewrite_private(&self, rewrite: &mut dyn FnMut(bool, Pte) -> Pte) {
        self.rewrite(false, &mut |vma, pte| rewrite(vma.backing.is_none(), pte));
    }

    /// As [`Self::rewrite_private`] for ranges that show memory objects (shared memory, files in memory). Mapped host files have no frames.
    pub fn rewrite_shared(&self, rewrite: &mut dyn FnMut(Pte) -> Pte) {
        self.rewrite(true, &mut |_, pte| rewrite(pte));
    }

    fn rewrite(&self, shared: bool, rewrite: &mut dyn FnMut(&Vma, Pte) -> Pte) {
        let mut inner = self.lock();
        let ranges: Vec<Vma> = inner.vmas.iter().filter(|v| v.is_shared() == shared).cloned().collect();
        for vma in ranges {
            inner.table().for_each(vma.start..vma.end, &mut |_, pte| {
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

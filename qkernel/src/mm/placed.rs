//! Ranges whose faults a program serves itself, and the pages that it places there: what the
//! requests of ioctl_userfaultfd(2) do to an address space.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use qlib::pagetable::{Action, Pte, PteFlags};
use qlib::{Gpa, Va};

use super::committed::Committed;
use super::deferred_free::DeferredFree;
use super::fault::entry_flags;
use super::frames::{self, counted_frame};
use super::space::Inner;
use super::swap::Usage;
use super::userfault::{Context, Registration};
use super::vma::{Vma, VmaFlags};
use super::{AddressSpace, mmu};
use crate::arch;
use crate::errno::{Errno, Result};

/// What a page is placed with.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    /// These bytes, a page of them.
    Bytes(&'a [u8]),
    /// Zeros.
    Zeros,
}

impl AddressSpace {
    /// UFFDIO_REGISTER of the ranges in `[start, end)`, which the caller has
    /// [frozen](super::freeze) and lives in. EINVAL if there are none, or some that cannot be;
    /// EPERM for what can never be written, EBUSY for what is another's, ENOMEM.
    pub fn register(&self, range: Range<Va>, wanted: &Registration) -> Result {
        let inner = self.lock();
        let parts = inner.vmas.overlapping(range.start, range.end);
        if parts.is_empty() || !parts.iter().all(can_be_served) {
            return Err(Errno::EINVAL);
        }
        if parts.iter().any(|part| !part.max_prot.contains(super::Prot::WRITE)) {
            return Err(Errno::EPERM);
        }
        let is_others = |served: &Registration| !Arc::ptr_eq(&served.context, &wanted.context);
        if parts.iter().any(|part| part.served().is_some_and(is_others)) {
            return Err(Errno::EBUSY);
        }
        inner.check_split(range.start, range.end)?;
        drop(inner);
        let is_new = |part: &&Vma| !part.served().is_some_and(|served| served.missing);
        for part in parts.iter().filter(is_new).filter(|_| wanted.missing) {
            self.drop_untouched(part.start..part.end);
        }
        let mut inner = self.lock();
        for part in &parts {
            let was_watched = part.served().is_some_and(|served| served.writes);
            if wanted.writes != was_watched {
                inner.unwatch(part.start..part.end);
            }
            let served_by = Some(wanted.clone());
            inner.vmas.update(part.start, part.end, |vma| vma.served_by = served_by.clone());
        }
        Ok(())
    }

    /// UFFDIO_UNREGISTER: who waits there is the caller's to wake. EINVAL if there are no ranges,
    /// or some that cannot be registered, or are another's; ENOMEM.
    pub fn unregister(&self, range: Range<Va>, context: &Arc<Context>) -> Result {
        let mut inner = self.lock();
        let parts = inner.vmas.overlapping(range.start, range.end);
        let is_others = |served: &Registration| !Arc::ptr_eq(&served.context, context);
        if parts.is_empty()
            || !parts.iter().all(can_be_served)
            || parts.iter().any(|part| part.served().is_some_and(is_others))
        {
            return Err(Errno::EINVAL);
        }
        inner.check_split(range.start, range.end)?;
        inner.leave_to_kernel(parts);
        Ok(())
    }

    /// The same of all that is registered with `context`, whose descriptor is closed.
    pub fn unregister_all(&self, context: &Arc<Context>) {
        let mut inner = self.lock();
        let is_its = |served: &Registration| Arc::ptr_eq(&served.context, context);
        let is_served = |vma: &&Vma| vma.served_by.as_ref().is_some_and(is_its);
        let parts: Vec<Vma> = inner.vmas.iter().filter(is_served).cloned().collect();
        inner.leave_to_kernel(parts);
    }

    /// Places a page at `at`, of a range that goes on to `end` at least. `is_watched`: a write to
    /// it is told first. ENOENT where nothing is registered, EINVAL if writes are not, EEXIST if
    /// there is a page, ERESTARTNOMEM.
    pub fn place(&self, at: Va, content: Content<'_>, is_watched: bool) -> Result {
        let mut inner = self.lock();
        let vma = inner.vmas.find(at).cloned().ok_or(Errno::ENOENT)?;
        if !inner.table().get(at).is_empty() {
            return Err(Errno::EEXIST);
        }
        let frame = match content {
            Content::Bytes(_) => frames::alloc(),
            Content::Zeros => frames::alloc_zeroed(),
        };
        let frame = frame.map_err(|_| Errno::ERESTARTNOMEM)?;
        let filled = match content {
            Content::Bytes(bytes) => arch::copy_to_gpa(frame, bytes),
            Content::Zeros => Ok(()),
        };
        let mut flags = entry_flags(&vma, !is_watched);
        flags.set(PteFlags::WATCHED, is_watched);
        let entered = filled.and_then(|()| {
            let set = inner.table().set(at, Pte::new(frame, flags));
            set.map(|_| ()).map_err(|_| Errno::ERESTARTNOMEM)
        });
        entered.inspect_err(|_| {
            frames::user().ref_dec(frame);
        })
    }

    /// Whether pages may be placed in `[start, end)`: ENOENT unless it lies in one registered
    /// range, EINVAL if `is_watched` and writes there are not registered.
    pub fn check_place(&self, start: Va, end: Va, is_watched: bool) -> Result {
        let inner = self.lock();
        let vma = inner.vmas.find(start).filter(|vma| end <= vma.end).ok_or(Errno::ENOENT)?;
        let served = vma.served().ok_or(Errno::ENOENT)?;
        if is_watched && !served.writes { Err(Errno::EINVAL) } else { Ok(()) }
    }

    /// UFFDIO_WRITEPROTECT: has writes to the pages of `[start, end)` told first, or no longer.
    /// ENOENT unless writes are registered for all of it.
    pub fn watch_writes(&self, range: Range<Va>, is_watched: bool) -> Result {
        let mut inner = self.lock();
        let is_registered = |vma: &Vma| vma.served().is_some_and(|served| served.writes);
        if !inner.vmas.covers(range.start, range.end)
            || !inner.vmas.touching(range.start, range.end).all(is_registered)
        {
            return Err(Errno::ENOENT);
        }
        if !is_watched {
            inner.unwatch(range);
            return Ok(());
        }
        inner.change(range.clone(), |pte| pte.without(PteFlags::WRITE).with(PteFlags::WATCHED));
        inner.table().for_each(range, &mut |_, pte| match pte.is_swapped() {
            true => Action::Replace(pte.with(PteFlags::WATCHED)),
            false => Action::Keep,
        });
        Ok(())
    }

    /// Drops the pages of private memory in `range` that were reserved along with others and never
    /// touched: on Linux they would not be there.
    fn drop_untouched(&self, range: Range<Va>) {
        // Those that the platform shows and that it does not know to be touched are left marked.
        let mut marked = 0;
        let mut inner = self.lock();
        inner.table().for_each(range.clone(), &mut |_, pte| {
            if counted_frame(pte).is_none() || !mmu::is_mapped(pte) {
                return Action::Keep;
            }
            marked += u64::from(!Usage::of(pte).is_emptied());
            Action::Replace(Usage::of(pte).emptied().put(pte))
        });
        inner.emptied.note(marked);
        drop(inner);
        self.note_touched(range.clone(), &|pte| mmu::is_mapped(pte) && Usage::of(pte).is_emptied());
        let mut inner = self.lock();
        let mut committed = Committed::default();
        let is_untouched = |committed: &mut Committed, pte: Pte, frame: Gpa| {
            let is_known = mmu::is_mapped(pte) && !Usage::of(pte).is_emptied();
            !is_known && (!committed.contains(frame) || arch::phys().frame_is_zero(frame))
        };
        let (mut seen, mut drops) = (0, false);
        inner.table().for_each(range.clone(), &mut |_, pte| {
            let Some(frame) = counted_frame(pte) else { return Action::Keep };
            let usage = Usage::of(pte);
            if is_untouched(&mut committed, pte, frame) {
                drops = true;
                return Action::Replace(usage.emptied().put(pte));
            }
            seen += u64::from(usage.is_emptied());
            Action::Replace(usage.seen().put(pte))
        });
        inner.emptied.forget(seen);
        if !drops {
            return;
        }
        // One operation for all: what stays faults in again.
        let (table, mmu) = inner.parts();
        let mut deferred = DeferredFree::default();
        let mut is_cached = false;
        let mut emptied = 0;
        table.for_each(range.clone(), &mut |_, pte| {
            if counted_frame(pte).is_none() || !Usage::of(pte).is_emptied() {
                return Action::Keep;
            }
            emptied += u64::from(mmu::is_mapped(pte));
            if mmu.may_be_cached(pte) {
                is_cached = true;
                deferred.extend(counted_frame(pte));
            } else {
                frames::free_entry(pte);
            }
            Action::Replace(Pte::EMPTY)
        });
        mmu.forget(table, range.clone());
        if is_cached {
            mmu.free_later(deferred);
            mmu.unmap(range);
        }
        inner.emptied.forget(emptied);
    }
}

/// True if faults in a range can be a program's: private memory without a file, of its own.
fn can_be_served(vma: &Vma) -> bool {
    vma.backing.is_none() && !vma.flags.intersects(VmaFlags::SHARED | VmaFlags::PADS)
}

impl Inner {
    /// Has the kernel serve the faults of `parts` again.
    fn leave_to_kernel(&mut self, parts: Vec<Vma>) {
        for part in parts.iter().filter(|part| part.served_by.is_some()) {
            self.unwatch(part.start..part.end);
            self.vmas.update(part.start, part.end, |vma| vma.served_by = None);
        }
    }

    /// Writes to the pages of `range` are told no longer: they fault, and find the page writable.
    fn unwatch(&mut self, range: Range<Va>) {
        self.table().for_each(range, &mut |_, pte| match pte.has(PteFlags::WATCHED) {
            true => Action::Replace(pte.without(PteFlags::WATCHED)),
            false => Action::Keep,
        });
    }
}

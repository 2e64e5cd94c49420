//! Changes of the ranges of an address space: what mmap(2), munmap(2), mprotect(2), mremap(2),
//! brk(2) and madvise(2) do.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use linux_raw_sys::general::{UFFD_FEATURE_EVENT_REMAP, UFFD_FEATURE_EVENT_UNMAP};
use qlib::pagetable::{Pte, PteFlags};
use qlib::{PAGE_SHIFT, PAGE_SIZE, Va};

use super::AddressSpace;
use super::fault::entry_flags;
use super::layout::{PADS_BYTES, STACK_GAP_BYTES};
use super::policy::Policy;
use super::space::Inner;
use super::swap::Usage;
use super::userfault::Event;
use super::vma::{FileMapping, Prot, Vma, VmaFlags};
use crate::arch::{self, heap};
use crate::errno::{Errno, Result};

/// The most ranges an address space may have (the default of vm.max_map_count).
const MAX_RANGES: usize = 65530;
/// However small memory is, so many an address space may have.
const FEWEST_RANGES: usize = 2048;
/// What a range takes while ranges change, about, in bytes: lists of them are made and copied.
const RANGE_BYTES: u64 = 256;

/// The most ranges an address space may have: what a call about all of them takes must fit into
/// what is left when memory is low.
pub fn max_ranges() -> usize {
    let fitting = heap::low_bytes() / 2 / RANGE_BYTES;
    usize::try_from(fitting).unwrap_or(MAX_RANGES).clamp(FEWEST_RANGES, MAX_RANGES)
}

impl Inner {
    /// ENOMEM if there would be too many ranges when a change of `[start, end)` has split those
    /// that lie over its ends.
    pub(super) fn check_split(&self, start: Va, end: Va) -> Result {
        let is_inside = |at: Va| self.vmas.find(at).is_some_and(|vma| vma.start < at);
        let more = usize::from(is_inside(start)) + usize::from(is_inside(end));
        let is_full = more > 0 && self.vmas.len() + more > max_ranges();
        if is_full { Err(Errno::ENOMEM) } else { Ok(()) }
    }
}

/// Entries that are moved at a time.
const BATCH: usize = 1024;

/// Where MAP_32BIT looks for room, as Linux does.
const LOW: core::ops::Range<Va> = Va(0x4000_0000)..Va(0x8000_0000);

/// How much may be mapped, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// RLIMIT_AS: everything.
    pub total: u64,
    /// RLIMIT_DATA: what is private and can be written, but for stacks.
    pub data: u64,
}

impl From<u64> for Limits {
    /// Only a limit of everything.
    fn from(total: u64) -> Self {
        Limits { total, data: u64::MAX }
    }
}

/// Where mmap(2) shall put a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// At this address if it is free, else anywhere.
    Hint(Va),
    /// As Hint, but below 2 GiB (MAP_32BIT).
    Low(Va),
    /// Exactly there; what is there goes.
    Fixed(Va),
    /// Exactly there, EEXIST if something is.
    FixedNoReplace(Va),
}

/// The page-aligned range `[va, va + len)` as a program gave it: EINVAL if it is not aligned,
/// ENOMEM if it cannot be.
pub fn user_range(va: Va, len: u64) -> Result<(Va, Va)> {
    if !va.is_page_aligned() {
        return Err(Errno::EINVAL);
    }
    let end = va.checked_add(len).and_then(Va::page_ceil).ok_or(Errno::ENOMEM)?;
    if end > arch::boot().user_max {
        return Err(Errno::ENOMEM);
    }
    Ok((va, end))
}

/// How far a mapping may be from where it would be first, in bytes, so as not to wait for anybody.
const NEAR_BYTES: u64 = 64 << 20;

impl AddressSpace {
    /// Maps `len` bytes (rounded up to pages). The range's start and end are filled in.
    pub fn map(
        &self,
        place: Placement,
        len: u64,
        mut vma: Vma,
        limits: impl Into<Limits>,
    ) -> Result<Va> {
        let len = len.checked_add(PAGE_SIZE - 1).ok_or(Errno::ENOMEM)? & !(PAGE_SIZE - 1);
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let mut inner = self.lock();
        let (user_min, user_max) = (arch::boot().user_min, arch::boot().user_max);
        let start = match place {
            Placement::Hint(hint) | Placement::Low(hint) => {
                let low = matches!(place, Placement::Low(_));
                let hint = hint.page_floor();
                let highest = if low { LOW.end } else { user_max };
                let fits =
                    hint >= user_min && hint.checked_add(len).is_some_and(|end| end <= highest);
                if fits && inner.vmas.overlapping(hint, hint + len).is_empty() {
                    hint
                } else if low {
                    inner.vmas.find_gap(len, LOW.start, LOW.end, PAGE_SIZE).ok_or(Errno::ENOMEM)?
                } else {
                    let top = inner.mmap_top;
                    // A large range may be backed by huge pages one day: keep it aligned for them.
                    let align =
                        if len >= 2 << 20 && vma.backing.is_none() { 2 << 20 } else { PAGE_SIZE };
                    inner
                        .gap(len, user_min..top, align)
                        .or_else(|| inner.vmas.find_gap(len, user_min, top, PAGE_SIZE))
                        .or_else(|| inner.vmas.find_gap(len, user_min, user_max, PAGE_SIZE))
                        .ok_or(Errno::ENOMEM)?
                }
            }
            Placement::Fixed(at) | Placement::FixedNoReplace(at) => {
                let (start, end) = user_range(at, len)?;
                if start < user_min {
                    return Err(Errno::EPERM);
                }
                if matches!(place, Placement::FixedNoReplace(_))
                    && !inner.vmas.overlapping(start, end).is_empty()
                {
                    return Err(Errno::EEXIST);
                }
                inner.vmas.check_unsealed(start, end)?;
                start
            }
        };
        inner.check_limits(start, start + len, &vma, limits.into())?;
        if inner.vmas.len() >= max_ranges() {
            return Err(Errno::ENOMEM);
        }
        let gone = inner.unmap(start, start + len);
        inner.mmu.reuse(start..start + len);
        vma.start = start;
        vma.end = start + len;
        inner.vmas.insert(vma);
        drop(inner);
        // Files that were mapped may close now: not while the space is locked.
        drop(gone);
        Ok(start)
    }

    /// munmap(2).
    pub fn unmap(&self, va: Va, len: u64) -> Result {
        let (start, end) = user_range(va, len).map_err(|_| Errno::EINVAL)?;
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let mut inner = self.lock();
        inner.vmas.check_unsealed(start, end)?;
        if inner.vmas.len() >= max_ranges()
            && inner.vmas.find(start).is_some_and(|v| v.start < start && v.end > end)
        {
            return Err(Errno::ENOMEM);
        }
        let gone = inner.unmap(start, end);
        drop(inner);
        drop(gone);
        Ok(())
    }

    /// Takes everything away (exec).
    pub fn unmap_all(&self) {
        let gone = {
            let mut inner = self.lock();
            inner.brk = (Va(0), Va(0));
            inner.unmap(arch::boot().user_min, arch::boot().user_max)
        };
        // As on Linux, nobody is told.
        drop((gone, self.take_untold()));
    }

    /// The last call has left a mapping where it took pages from: nobody is told that there is
    /// none.
    pub fn tell_of_no_unmapping(&self) {
        let is_unmapping = |event: &Event| matches!(event, Event::Unmap(_));
        let dropped: Vec<_> =
            self.lock().untold.extract_if(.., |(_, event)| is_unmapping(event)).collect();
        drop(dropped);
    }

    /// mprotect(2). `grows_down`: PROT_GROWSDOWN. `data_limit_bytes`: RLIMIT_DATA.
    pub fn protect(
        &self,
        va: Va,
        len: u64,
        prot: Prot,
        grows_down: bool,
        data_limit_bytes: u64,
    ) -> Result {
        let (mut start, end) = user_range(va, len)?;
        if start == end {
            return Ok(());
        }
        let mut inner = self.lock();
        if grows_down {
            let vma = inner.vmas.find(start).ok_or(Errno::ENOMEM)?;
            if !vma.flags.contains(VmaFlags::GROWS_DOWN) {
                return Err(Errno::EINVAL);
            }
            start = vma.start;
        }
        inner.vmas.check_unsealed(start, end)?;
        inner.check_split(start, end)?;
        let parts = inner.vmas.overlapping(start, end);
        if parts.iter().any(|p| !p.max_prot.contains(prot)) {
            return Err(Errno::EACCES);
        }
        if data_limit_bytes != u64::MAX {
            let becomes_data = |p: &&Vma| !p.is_data() && Vma { prot, ..(*p).clone() }.is_data();
            let more: u64 = parts.iter().filter(becomes_data).map(Vma::len).sum();
            if more > 0 && inner.vmas.data_bytes() + more > data_limit_bytes {
                return Err(Errno::ENOMEM);
            }
        }
        // As on Linux, what lies before a hole is changed all the same.
        let covered = inner.vmas.covers(start, end);
        let mut reached = start;
        for part in parts {
            if part.start != reached {
                break;
            }
            reached = part.end;
            inner.protect_part(&part, prot);
        }
        if covered { Ok(()) } else { Err(Errno::ENOMEM) }
    }

    /// brk(2): the end of the heap afterwards.
    pub fn brk(&self, wanted: Va, limits: Limits) -> Va {
        let (start, current) = self.lock().brk;
        if wanted < start || wanted.0 - start.0 > limits.data {
            return current;
        }
        let (Some(old), Some(new)) = (current.page_ceil(), wanted.page_ceil()) else {
            return current;
        };
        if new < old {
            if self.unmap(new, old - new).is_err() {
                return current;
            }
        } else if new > old {
            let vma = Vma::anonymous(Prot::READ | Prot::WRITE, VmaFlags::HEAP);
            if self.map(Placement::FixedNoReplace(old), new - old, vma, limits).is_err() {
                return current;
            }
        }
        self.lock().brk.1 = wanted;
        wanted
    }

    /// What the heap loses if it is to end at `wanted`.
    pub fn lost_by_brk(&self, wanted: Va) -> Option<Range<Va>> {
        let (start, current) = self.lock().brk;
        (start <= wanted && wanted < current).then(|| wanted.page_floor()..current + PAGE_SIZE)
    }

    /// Sets where the heap begins (exec).
    pub fn set_brk(&self, start: Va) {
        self.lock().brk = (start, start);
    }

    /// Sets down to which address the stack may grow (exec): mmap(2) looks for room below it first,
    /// and leaves the stack its gap, and pads of call sites their room.
    pub fn set_stack_floor(&self, floor: Va) {
        self.lock().mmap_top = (floor - STACK_GAP_BYTES - PADS_BYTES).page_floor();
    }

    /// mremap(2). `fixed`: the new place, if MREMAP_FIXED.
    pub fn remap(
        &self,
        old: Va,
        old_len: u64,
        new_len: u64,
        may_move: bool,
        fixed: Option<Va>,
        limit: Limits,
    ) -> Result<Va> {
        let (start, end) = user_range(old, old_len).map_err(|_| Errno::EINVAL)?;
        let new_len = new_len.checked_add(PAGE_SIZE - 1).ok_or(Errno::EINVAL)? & !(PAGE_SIZE - 1);
        if new_len == 0 {
            return Err(Errno::EINVAL);
        }
        let vma = self.lock().vmas.find(start).cloned().ok_or(Errno::EFAULT)?;
        if vma.flags.contains(VmaFlags::SEALED) {
            return Err(Errno::EPERM);
        }
        let whole_end = if start == end { vma.end } else { end };
        if end > vma.end {
            return Err(Errno::EFAULT);
        }
        if start == end && !vma.is_shared() {
            return Err(Errno::EINVAL);
        }
        if let Some(backing) = &vma.backing {
            // File offsets are positive numbers of 63 bits.
            let first_page = backing.first_page + ((start - vma.start) >> PAGE_SHIFT);
            let end_page = first_page.checked_add(new_len >> PAGE_SHIFT).ok_or(Errno::EINVAL)?;
            if end_page > i64::MAX as u64 >> PAGE_SHIFT {
                return Err(Errno::EINVAL);
            }
        }
        if fixed.is_none() && start != end {
            if new_len <= end - start {
                if new_len < end - start {
                    self.unmap(start + new_len, end - start - new_len)?;
                }
                return Ok(start);
            }
            let grow = new_len - (end - start);
            // Any length may be asked for, so the new end may be no address.
            let to = end.checked_add(grow).filter(|to| *to <= arch::boot().user_max);
            let fits = to.is_some_and(|to| self.lock().vmas.overlapping(end, to).is_empty());
            if end == vma.end && fits {
                let mut more = vma.clone();
                if let Some(backing) = &mut more.backing {
                    backing.first_page += (end - vma.start) >> PAGE_SHIFT;
                }
                self.map(Placement::FixedNoReplace(end), grow, more, limit)?;
                return Ok(start);
            }
            if !may_move {
                return Err(Errno::ENOMEM);
            }
        }
        self.move_range(&vma, start, whole_end, end, new_len, fixed, limit)
    }

    #[allow(clippy::too_many_arguments)]
    fn move_range(
        &self,
        vma: &Vma,
        start: Va,
        whole_end: Va,
        end: Va,
        new_len: u64,
        fixed: Option<Va>,
        limit: Limits,
    ) -> Result<Va> {
        let mut copy = vma.clone();
        let told = vma.told(UFFD_FEATURE_EVENT_REMAP).map(|served| served.context.clone());
        copy.served_by = copy.served_by.filter(|_| told.is_some());
        if let Some(backing) = &mut copy.backing {
            backing.first_page += (start - vma.start) >> PAGE_SHIFT;
        }
        let place = match fixed {
            Some(at) => {
                let (new_start, new_end) = user_range(at, new_len).map_err(|_| Errno::EINVAL)?;
                if new_start < end && start < new_end {
                    return Err(Errno::EINVAL);
                }
                Placement::Fixed(at)
            }
            None => Placement::Hint(Va(0)),
        };
        let target = self.map(place, new_len, copy, limit)?;
        if start == end {
            // Old length 0: a second mapping of the same shared object.
            return Ok(target);
        }
        let mut inner = self.lock();
        inner.unpatch(start..whole_end);
        let moved_end = whole_end.min(start + new_len);
        let (table, mmu) = inner.parts();
        let mut cached = false;
        table.visit(start..moved_end, &mut |_, pte| {
            cached |= mmu.may_be_cached(pte);
            !cached
        });
        if cached {
            mmu.unmap(start..moved_end);
        }
        let mut at = start;
        while at < moved_end {
            let mut entries: Vec<(Va, Pte)> = Vec::new();
            let mut reached = moved_end;
            inner.table().visit(at..moved_end, &mut |va, pte| {
                if entries.len() == BATCH {
                    reached = va;
                    return false;
                }
                entries.push((va, pte));
                true
            });
            for (va, pte) in entries {
                // What the platform knows of its use is lost with the mapping.
                let moved = match pte.is_present() {
                    true => Usage::of(pte).seen().put(pte.without(PteFlags::ACCESSED)),
                    false => pte,
                };
                let moved = match told {
                    Some(_) => moved,
                    None => moved.without(PteFlags::WATCHED),
                };
                if inner.table().set(target + (va - start), moved).is_err() {
                    // Out of page tables: what has not been moved is still at the old place, and
                    // goes with it.
                    let gone = inner.unmap(start, end);
                    drop(inner);
                    drop(gone);
                    return Err(Errno::ENOMEM);
                }
                inner.table().update(va, |_| Pte::EMPTY);
            }
            at = reached;
        }
        inner.untold.extend(told.map(|told| (told, Event::Remap(start, target, end - start))));
        let gone = inner.unmap(start, end);
        drop(inner);
        drop(gone);
        Ok(target)
    }

    /// Faults pages in ahead of use (MAP_POPULATE, MADV_POPULATE_*, mlock).
    pub fn populate(&self, va: Va, len: u64, write: bool) -> Result {
        let (start, end) = user_range(va, len)?;
        let access = if write { super::Access::Write } else { super::Access::Read };
        let mut at = start;
        while at < end {
            if heap::is_low() {
                return Err(Errno::ENOMEM);
            }
            self.translate(at, access)?;
            at = at + PAGE_SIZE;
        }
        Ok(())
    }

    /// Sets or clears flags of the ranges in `[va, va + len)`.
    pub fn update_flags(&self, va: Va, len: u64, set: VmaFlags, clear: VmaFlags) -> Result {
        let (start, end) = user_range(va, len)?;
        let mut inner = self.lock();
        inner.check_split(start, end)?;
        let covered = inner.vmas.covers(start, end);
        inner.vmas.update(start, end, |vma| vma.flags = vma.flags.union(set).difference(clear));
        if covered { Ok(()) } else { Err(Errno::ENOMEM) }
    }

    /// EPERM if something in `[va, va + len)` is sealed where it cannot be written: without that,
    /// its content would be lost.
    pub fn check_discard(&self, va: Va, len: u64) -> Result {
        let (start, end) = user_range(va, len)?;
        let is_kept = |vma: &Vma| {
            vma.flags.contains(VmaFlags::SEALED)
                && vma.backing.is_none()
                && !vma.prot.contains(Prot::WRITE)
        };
        let is_lost = self.lock().vmas.touching(start, end).any(is_kept);
        if is_lost { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// mseal(2): what has no hole stays as it is from now on.
    pub fn seal(&self, va: Va, len: u64) -> Result {
        let (start, end) = user_range(va, len)?;
        let mut inner = self.lock();
        if !inner.vmas.covers(start, end) {
            return Err(Errno::ENOMEM);
        }
        inner.check_split(start, end)?;
        inner.vmas.update(start, end, |vma| vma.flags |= VmaFlags::SEALED);
        Ok(())
    }

    /// Sets the policy of `[va, va + len)`. EFAULT where it has holes.
    pub fn set_policy(&self, va: Va, len: u64, policy: Policy) -> Result {
        let (start, end) = user_range(va, len).map_err(|_| Errno::EFAULT)?;
        let mut inner = self.lock();
        if !inner.vmas.covers(start, end) {
            return Err(Errno::EFAULT);
        }
        inner.check_split(start, end)?;
        inner.vmas.update(start, end, |vma| vma.policy = policy);
        Ok(())
    }

    /// True if `[va, va + len)` is mapped without a hole.
    pub fn covers(&self, va: Va, len: u64) -> bool {
        user_range(va, len).is_ok_and(|(start, end)| self.lock().vmas.covers(start, end))
    }

    /// The ranges now, by address.
    pub fn ranges(&self) -> Vec<Vma> {
        self.lock().vmas.iter().cloned().collect()
    }

    /// Looks at each range, by address. `look` must not come back here.
    pub fn for_each_range(&self, look: impl FnMut(&Vma)) {
        self.lock().vmas.iter().for_each(look);
    }

    /// The first range that ends after `va`.
    pub fn range_after(&self, va: Va) -> Option<Vma> {
        self.lock().vmas.next_after(va).cloned()
    }

    /// Bytes mapped, and bytes mlock(2)ed.
    pub fn mapped_and_locked(&self) -> (u64, u64) {
        let inner = self.lock();
        (inner.vmas.total_bytes(), inner.vmas.locked_bytes())
    }

    /// The most that has been mapped, and that has been there, at once, in bytes. Pages that were
    /// emptied ([`super::discard`]) count for the latter until they are given up.
    pub fn peaks(&self) -> (u64, u64) {
        let mut inner = self.lock();
        (inner.vmas.peak_bytes(), inner.table().peak_pages() * PAGE_SIZE)
    }

    /// Where the first executable range begins and ends, and where the stack ends, for /proc; zeros
    /// for what is not there.
    pub fn text_and_stack(&self) -> ((u64, u64), u64) {
        let inner = self.lock();
        let text = inner
            .vmas
            .iter()
            .find(|v| v.prot.contains(Prot::EXEC))
            .map_or((0, 0), |v| (v.start.0, v.end.0));
        let stack =
            inner.vmas.iter().find(|v| v.flags.contains(VmaFlags::STACK)).map_or(0, |v| v.end.0);
        (text, stack)
    }

    /// The parts of ranges in `[va, va + len)`, and whether they cover it without a hole.
    pub fn parts(&self, va: Va, len: u64) -> Result<(Vec<Vma>, bool)> {
        let (start, end) = user_range(va, len)?;
        let inner = self.lock();
        Ok((inner.vmas.overlapping(start, end), inner.vmas.covers(start, end)))
    }

    /// Pages of its page tables.
    pub fn table_pages(&self) -> u64 {
        self.lock().table().table_pages()
    }

    /// Kernel memory for its ranges and for what is on its way to the platform, about, in bytes.
    pub fn books_bytes(&self) -> u64 {
        const RANGE_BYTES: u64 = 160;
        let inner = self.lock();
        inner.vmas.len() as u64 * RANGE_BYTES + inner.mmu.waiting_frames() as u64 * 8
    }

    /// Bytes mapped, bytes that have frames (anonymous and file together), bytes swapped out.
    pub fn sizes(&self) -> (u64, u64, u64) {
        let mut inner = self.lock();
        let mapped = inner.vmas.total_bytes();
        let (mut present, mut swapped) = (0, 0);
        inner.table().visit(Va(0)..arch::boot().user_max, &mut |_, pte| {
            if pte.is_present() {
                present += PAGE_SIZE;
            } else if pte.is_swapped() {
                swapped += PAGE_SIZE;
            }
            true
        });
        (mapped, present, swapped)
    }
}

impl Inner {
    /// The highest gap of `len` bytes in `bounds`; a lower one, if there is one near, rather than
    /// one that another thread may still have to unmap.
    fn gap(&mut self, len: u64, bounds: Range<Va>, align: u64) -> Option<Va> {
        let highest = self.vmas.find_gap(len, bounds.start, bounds.end, align)?;
        let lowest = Va(highest.0.saturating_sub(NEAR_BYTES));
        let mut gap = highest;
        while let Some(out) = self.mmu.on_its_way_out(&(gap..gap + len)) {
            match self.vmas.find_gap(len, bounds.start, out.start.min(gap), align) {
                Some(lower) if lower >= lowest => gap = lower,
                _ => return Some(highest),
            }
        }
        Some(gap)
    }

    /// Takes `[start, end)` away: the ranges that were there, to be dropped without the lock.
    fn unmap(&mut self, start: Va, end: Va) -> Vec<Vma> {
        let removed = self.vmas.remove(start, end);
        for vma in &removed {
            let Some(served) = vma.told(UFFD_FEATURE_EVENT_UNMAP) else { continue };
            // Once, however many there are.
            let is_known = |(told, event): &(Arc<_>, Event)| {
                Arc::ptr_eq(told, &served.context)
                    && matches!(event, Event::Unmap(range) if *range == (start..end))
            };
            if !self.untold.iter().any(is_known) {
                self.untold.push((served.context.clone(), Event::Unmap(start..end)));
            }
        }
        // From what was there: the range as a program gave it may begin where no operation reaches.
        if let (Some(first), Some(last)) = (removed.first(), removed.last()) {
            self.zap(first.start..last.end);
        }
        removed
    }

    /// ENOMEM if `vma`, mapped at `[start, end)` in place of what is there, is more than `limits`
    /// allow.
    fn check_limits(&self, start: Va, end: Va, vma: &Vma, limits: Limits) -> Result {
        let replaced = self.vmas.overlapping(start, end);
        let left = |all: u64, gone: u64| all - gone + (end - start);
        if left(self.vmas.total_bytes(), replaced.iter().map(Vma::len).sum()) > limits.total {
            return Err(Errno::ENOMEM);
        }
        if limits.data == u64::MAX || !vma.is_data() {
            return Ok(());
        }
        let gone = replaced.iter().filter(|v| v.is_data()).map(Vma::len).sum();
        if left(self.vmas.data_bytes(), gone) > limits.data { Err(Errno::ENOMEM) } else { Ok(()) }
    }

    fn protect_part(&mut self, part: &Vma, prot: Prot) {
        if prot.contains(Prot::WRITE) || part.flags.contains(VmaFlags::PADS) {
            self.unpatch(part.start..part.end);
        }
        self.vmas.update(part.start, part.end, |vma| vma.prot = prot);
        let mut changed = part.clone();
        changed.prot = prot;
        let shared = part.is_shared();
        self.change(part.start..part.end, |pte| {
            // A shared page may be written only after its object was told (a write fault); a
            // private one if it is ours alone.
            let own = !shared && !pte.has(PteFlags::COW) && !pte.has(PteFlags::WINDOW);
            let keep = shared && pte.has(PteFlags::WRITE);
            let is_watched = pte.has(PteFlags::WATCHED);
            let kept = PteFlags::COW | PteFlags::WINDOW | PteFlags::ACCESSED | PteFlags::WATCHED;
            let flags = entry_flags(&changed, (own || keep) && !is_watched);
            Pte::new(pte.gpa(), flags | pte.flags() & kept)
        });
    }
}

impl Vma {
    /// A range without a file; start and end are filled in when it is mapped.
    pub fn anonymous(prot: Prot, flags: VmaFlags) -> Vma {
        let (start, end, policy) = (Va(0), Va(0), Policy::default());
        Vma {
            start,
            end,
            prot,
            max_prot: Prot::all(),
            flags,
            backing: None,
            policy,
            served_by: None,
        }
    }

    /// A range of a file (or of anonymous shared memory).
    pub fn of_file(prot: Prot, max_prot: Prot, flags: VmaFlags, backing: FileMapping) -> Vma {
        let (start, end, policy) = (Va(0), Va(0), Policy::default());
        let (backing, served_by) = (Some(backing), None);
        Vma { start, end, prot, max_prot, flags, backing, policy, served_by }
    }
}

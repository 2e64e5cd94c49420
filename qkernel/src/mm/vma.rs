//! Ranges of an address space that were mapped by one mmap(2), and their set.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::ops::Range;

use bitflags::bitflags;
use qlib::Va;

use self::gaps::Gaps;
use super::Access;
use super::policy::Policy;
use super::userfault::Registration;
use crate::errno::{Errno, Result};
use crate::mm::mapped::MappedFile;

bitflags! {
    /// PROT_* bits.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Prot: u32 {
        /// PROT_READ.
        const READ = 1;
        /// PROT_WRITE.
        const WRITE = 2;
        /// PROT_EXEC.
        const EXEC = 4;
    }

    /// What a range is.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct VmaFlags: u32 {
        /// MAP_SHARED.
        const SHARED = 1;
        /// MAP_GROWSDOWN, and the stack.
        const GROWS_DOWN = 2;
        /// The heap that brk(2) moves.
        const HEAP = 4;
        /// The initial stack.
        const STACK = 8;
        /// MADV_DONTFORK.
        const DONT_FORK = 16;
        /// MADV_WIPEONFORK.
        const WIPE_ON_FORK = 32;
        /// mlock(2)ed.
        const LOCKED = 64;
        /// MAP_NORESERVE.
        const NO_RESERVE = 128;
        /// Pads of patched call sites (see [`super::patch`]).
        const PADS = 256;
        /// MADV_DONTDUMP.
        const DONT_DUMP = 512;
        /// mseal(2)ed.
        const SEALED = 1024;
        /// MAP_DROPPABLE.
        const DROPPABLE = 2048;
        /// MADV_HUGEPAGE.
        const HUGE = 4096;
        /// MADV_NOHUGEPAGE.
        const NO_HUGE = 8192;
    }
}

impl Prot {
    /// True if `access` is allowed. As on x86-64, what can be written or executed can be read.
    pub fn allows(self, access: Access) -> bool {
        match access {
            Access::Read => !self.is_empty(),
            Access::Write => self.contains(Prot::WRITE),
            Access::Execute => self.contains(Prot::EXEC),
        }
    }
}

/// The file behind a range.
#[derive(Clone)]
pub struct FileMapping {
    /// Supplies the pages.
    pub mapping: Arc<dyn MappedFile>,
    /// What was mapped, which stays open as long as it is: the VFS's (see
    /// [`crate::fs::file::file_of`]).
    pub file: Option<Arc<dyn Any + Send + Sync>>,
    /// Offset in the file, in pages, of the range's first byte.
    pub first_page: u64,
}

/// One range.
#[derive(Clone)]
pub struct Vma {
    /// First byte.
    pub start: Va,
    /// Past the last byte.
    pub end: Va,
    /// Protection now.
    pub prot: Prot,
    /// The protection that mprotect(2) may give (a read-only opened shared file cannot become
    /// writable).
    pub max_prot: Prot,
    /// What it is.
    pub flags: VmaFlags,
    /// Its file; `None`: anonymous. Anonymous shared memory has a mapping without a file.
    pub backing: Option<FileMapping>,
    /// mbind(2).
    pub policy: Policy,
    /// The program itself serves some of its faults (userfaultfd(2)).
    pub served_by: Option<Registration>,
}

impl Vma {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    /// True if it is empty (never, in a set).
    pub fn is_empty(&self) -> bool {
        self.end <= self.start
    }

    /// True if writes go to the mapped object.
    pub fn is_shared(&self) -> bool {
        self.flags.contains(VmaFlags::SHARED)
    }

    /// True if it counts for RLIMIT_DATA: private, writable, no stack.
    pub fn is_data(&self) -> bool {
        self.prot.contains(Prot::WRITE)
            && !self.flags.intersects(VmaFlags::SHARED | VmaFlags::STACK | VmaFlags::GROWS_DOWN)
    }

    /// Who is told of its faults, if anybody is.
    pub fn served(&self) -> Option<&Registration> {
        self.served_by.as_ref().filter(|served| !served.context.is_closed())
    }

    /// The same, if that one is told of such events (UFFD_FEATURE_EVENT_*) too.
    pub fn told(&self, events: u32) -> Option<&Registration> {
        self.served().filter(|served| served.context.has(events))
    }

    /// The page of the backing object that lies at `va`.
    pub fn object_page(&self, va: Va) -> u64 {
        self.backing.as_ref().map_or(0, |b| b.first_page) + ((va - self.start) >> qlib::PAGE_SHIFT)
    }

    /// The part of it in `[start, end)`.
    fn clipped(&self, start: Va, end: Va) -> Vma {
        let mut part = self.clone();
        part.start = self.start.max(start);
        part.end = self.end.min(end);
        if let Some(backing) = &mut part.backing {
            backing.first_page += (part.start - self.start) >> qlib::PAGE_SHIFT;
        }
        part
    }

    /// True if `next` continues it, so that both can be one.
    fn continues(&self, next: &Vma) -> bool {
        let same_backing = match (&self.backing, &next.backing) {
            (None, None) => true,
            (Some(a), Some(b)) => {
                Arc::ptr_eq(&a.mapping, &b.mapping)
                    && a.first_page + (self.len() >> qlib::PAGE_SHIFT) == b.first_page
            }
            _ => false,
        };
        self.end == next.start
            && self.prot == next.prot
            && self.max_prot == next.max_prot
            && self.flags == next.flags
            && self.policy == next.policy
            && self.served_by == next.served_by
            && same_backing
    }
}

/// Ranges that a search for a gap looks at one by one. Few for tests, which shall see both ways.
const MOST_STEPS: usize = if cfg!(test) { 4 } else { 64 };

/// The ranges of an address space: disjoint, by address.
#[derive(Clone, Default)]
pub struct VmaSet {
    /// By start. Only [`Self::put`] and [`Self::take`] change what is in here, and keep the rest.
    ranges: BTreeMap<u64, Vma>,
    /// Made when a search for a gap has gone on for too long: few processes have so many ranges.
    gaps: Option<Gaps>,
    total_bytes: u64,
    /// The most that has been.
    peak_bytes: u64,
    data_bytes: u64,
    locked_bytes: u64,
}

impl VmaSet {
    /// The range that holds `va`.
    pub fn find(&self, va: Va) -> Option<&Vma> {
        self.ranges.range(..=va.0).next_back().map(|(_, v)| v).filter(|v| va < v.end)
    }

    /// The first range that ends after `va`.
    pub fn next_after(&self, va: Va) -> Option<&Vma> {
        self.find(va).or_else(|| self.ranges.range(va.0..).next().map(|(_, v)| v))
    }

    /// The last range that starts before `va`.
    pub fn previous(&self, va: Va) -> Option<&Vma> {
        self.ranges.range(..va.0).next_back().map(|(_, v)| v)
    }

    /// All ranges.
    pub fn iter(&self) -> impl Iterator<Item = &Vma> {
        self.ranges.values()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges that have something in `[start, end)`, whole.
    pub fn touching(&self, start: Va, end: Va) -> impl Iterator<Item = &Vma> {
        let first = self.find(start).map_or(start.0, |v| v.start.0);
        self.ranges.range(first..end.0.max(first)).map(|(_, v)| v)
    }

    /// The parts of ranges inside `[start, end)`.
    pub fn overlapping(&self, start: Va, end: Va) -> Vec<Vma> {
        let parts = self.touching(start, end).map(|v| v.clipped(start, end));
        parts.filter(|v| !v.is_empty()).collect()
    }

    /// EPERM if something in `[start, end)` is sealed (mseal(2)).
    pub fn check_unsealed(&self, start: Va, end: Va) -> Result {
        let is_sealed = |vma: &Vma| vma.flags.contains(VmaFlags::SEALED);
        if self.touching(start, end).any(is_sealed) { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// True if `[start, end)` is mapped without a hole.
    pub fn covers(&self, start: Va, end: Va) -> bool {
        let mut at = start;
        while at < end {
            match self.find(at) {
                Some(vma) => at = vma.end,
                None => return false,
            }
        }
        true
    }

    /// Takes `[start, end)` out: the removed parts.
    pub fn remove(&mut self, start: Va, end: Va) -> Vec<Vma> {
        let removed = self.overlapping(start, end);
        for part in &removed {
            let Some(start) = self.find(part.start).map(|whole| whole.start) else { continue };
            let Some(whole) = self.take(start) else { continue };
            for rest in [whole.clipped(whole.start, part.start), whole.clipped(part.end, whole.end)]
            {
                if !rest.is_empty() {
                    self.put(rest);
                }
            }
        }
        removed
    }

    /// Adds a range where nothing is, joined with its neighbours if they continue each other.
    pub fn insert(&mut self, mut vma: Vma) {
        debug_assert!(self.overlapping(vma.start, vma.end).is_empty());
        let previous = self.previous(vma.start).filter(|p| p.continues(&vma)).map(|p| p.start);
        if let Some(previous) = previous.and_then(|start| self.take(start)) {
            vma = Vma { end: vma.end, ..previous };
        }
        let next = self.ranges.get(&vma.end.0).filter(|n| vma.continues(n)).map(|n| n.start);
        if let Some(next) = next.and_then(|start| self.take(start)) {
            vma.end = next.end;
        }
        self.put(vma);
    }

    /// Changes the ranges in `[start, end)` (splitting at its ends).
    pub fn update(&mut self, start: Va, end: Va, change: impl Fn(&mut Vma)) {
        for mut part in self.remove(start, end) {
            change(&mut part);
            self.insert(part);
        }
    }

    /// A free gap of `len` bytes in `[low, high)`, as high as possible (as Linux's top-down
    /// layout).
    pub fn find_gap(&mut self, len: u64, low: Va, high: Va, align: u64) -> Option<Va> {
        if self.gaps.is_none() {
            let mut top = high;
            for _ in 0..MOST_STEPS {
                let start = Va(top.0.checked_sub(len)?).align_down(align);
                if start < low {
                    return None;
                }
                match self.ranges.range(..start.0 + len).next_back() {
                    Some((_, vma)) if vma.end > start => top = vma.start,
                    _ => return Some(start),
                }
            }
        }
        let gaps = self.gaps.get_or_insert_with(|| Gaps::between(self.ranges.values()));
        gaps.highest(len, low, high, align)
    }

    /// Bytes that count for RLIMIT_DATA.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Bytes mlock(2)ed.
    pub fn locked_bytes(&self) -> u64 {
        self.locked_bytes
    }

    /// Bytes mapped.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// The most bytes that have been mapped at once.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// Enters a range where nothing is.
    fn put(&mut self, vma: Vma) {
        if let Some(gaps) = &mut self.gaps {
            let gap = gap_around(&self.ranges, &vma);
            gaps.remove(gap.clone());
            gaps.add(gap.start..vma.start.0);
            gaps.add(vma.end.0..gap.end);
        }
        self.total_bytes += vma.len();
        self.peak_bytes = self.peak_bytes.max(self.total_bytes);
        self.data_bytes += if vma.is_data() { vma.len() } else { 0 };
        self.locked_bytes += if vma.flags.contains(VmaFlags::LOCKED) { vma.len() } else { 0 };
        self.ranges.insert(vma.start.0, vma);
    }

    /// Takes the range that starts at `start` out.
    fn take(&mut self, start: Va) -> Option<Vma> {
        let vma = self.ranges.remove(&start.0)?;
        if let Some(gaps) = &mut self.gaps {
            let gap = gap_around(&self.ranges, &vma);
            gaps.remove(gap.start..vma.start.0);
            gaps.remove(vma.end.0..gap.end);
            gaps.add(gap);
        }
        self.total_bytes -= vma.len();
        self.data_bytes -= if vma.is_data() { vma.len() } else { 0 };
        self.locked_bytes -= if vma.flags.contains(VmaFlags::LOCKED) { vma.len() } else { 0 };
        Some(vma)
    }
}

/// From the end of what lies before `vma`, which is not among `ranges`, to the start of what lies
/// after it.
fn gap_around(ranges: &BTreeMap<u64, Vma>, vma: &Vma) -> Range<u64> {
    let before = ranges.range(..vma.start.0).next_back().map_or(0, |(_, v)| v.end.0);
    before..ranges.range(vma.end.0..).next().map_or(u64::MAX, |(start, _)| *start)
}

mod gaps;
#[cfg(test)]
mod tests;

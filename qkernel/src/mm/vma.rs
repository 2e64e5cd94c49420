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
            && same_backing
    }
}

/// The ranges of an address space: disjoint, by address.
#[derive(Clone, Default)]
pub struct VmaSet {
    /// By start. Only [`Self::put`] and [`Self::take`] change what is in here, and keep the rest.
    ranges: BTreeMap<u64, Vma>,
    gaps: Gaps,
    total_bytes: u64,
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

    /// The parts of ranges inside `[start, end)`.
    pub fn overlapping(&self, start: Va, end: Va) -> Vec<Vma> {
        let first = self.find(start).map_or(start.0, |v| v.start.0);
        if end.0 <= first {
            return Vec::new();
        }
        self.ranges
            .range(first..end.0)
            .map(|(_, v)| v.clipped(start, end))
            .filter(|v| !v.is_empty())
            .collect()
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
            let Some(whole) = self.find(part.start).cloned() else { continue };
            self.take(whole.start);
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
        if let Some(previous) = self.previous(vma.start).filter(|p| p.continues(&vma)).cloned() {
            self.take(previous.start);
            let end = vma.end;
            vma = previous;
            vma.end = end;
        }
        if let Some(next) = self.ranges.get(&vma.end.0).filter(|n| vma.continues(n)).cloned() {
            self.take(next.start);
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
    pub fn find_gap(&self, len: u64, low: Va, high: Va, align: u64) -> Option<Va> {
        match self.is_empty() {
            true => Some(Va(high.0.checked_sub(len)?).align_down(align)).filter(|at| *at >= low),
            false => self.gaps.highest(len, low, high, align),
        }
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

    /// Enters a range where nothing is.
    fn put(&mut self, vma: Vma) {
        let gap = self.gap_around(vma.start, vma.end);
        self.gaps.remove(gap.clone());
        self.gaps.add(gap.start..vma.start.0);
        self.gaps.add(vma.end.0..gap.end);
        self.total_bytes += vma.len();
        self.data_bytes += if vma.is_data() { vma.len() } else { 0 };
        self.locked_bytes += if vma.flags.contains(VmaFlags::LOCKED) { vma.len() } else { 0 };
        self.ranges.insert(vma.start.0, vma);
    }

    /// Takes the range that starts at `start` out.
    fn take(&mut self, start: Va) -> Option<Vma> {
        let vma = self.ranges.remove(&start.0)?;
        let gap = self.gap_around(vma.start, vma.end);
        self.gaps.remove(gap.start..vma.start.0);
        self.gaps.remove(vma.end.0..gap.end);
        self.gaps.add(gap);
        self.total_bytes -= vma.len();
        self.data_bytes -= if vma.is_data() { vma.len() } else { 0 };
        self.locked_bytes -= if vma.flags.contains(VmaFlags::LOCKED) { vma.len() } else { 0 };
        Some(vma)
    }

    /// From the end of what lies before `start` to the start of what lies after `end`, with nothing
    /// between the two.
    fn gap_around(&self, start: Va, end: Va) -> Range<u64> {
        let before = self.ranges.range(..start.0).next_back().map_or(0, |(_, v)| v.end.0);
        before..self.ranges.range(end.0..).next().map_or(u64::MAX, |(start, _)| *start)
    }
}

mod gaps;
#[cfg(test)]
mod tests;

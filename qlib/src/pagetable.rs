//! Page tables of user address spaces: the x86-64 four-level format, in guest memory, on both
//! platforms. On `kvm` the hardware walks them; on `process` they are the truth that the stub's
//! mappings follow.
//!
//! Only the user half (47 bits of virtual address) is managed; entries of the root's upper half are
//! left alone. The entry that points to a table counts the table's non-empty entries in bits 52 to
//! 61 (ignored by the hardware), so an empty table is noticed and freed at once.

mod pte;

use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use self::pte::ADDRESS;
pub use self::pte::{Pte, PteFlags, SLOT_END};
use crate::bitmap::FrameAllocator;
use crate::phys::PhysMap;
use crate::{Gpa, PAGE_SHIFT, PAGE_SIZE, Va};

/// End (exclusive) of the virtual addresses a table can map.
pub const USER_END: Va = Va(1 << 47);

const ENTRIES: usize = 512;
/// One in the counter of an entry that points to a table.
const COUNT_ONE: u64 = 1 << 52;
const COUNT_MASK: u64 = 0x3ff << 52;

/// Where page tables get their frames.
pub trait TableAlloc {
    /// A frame of zeros; `None` when RAM is used up.
    fn alloc_table(&self) -> Option<Gpa>;
    /// Takes a frame back. No entry refers to it any more; on a platform whose hardware walks the
    /// tables, the implementation keeps it aside until no CPU can have it cached.
    fn free_table(&self, table: Gpa);
}

impl<T: TableAlloc + ?Sized> TableAlloc for &T {
    fn alloc_table(&self) -> Option<Gpa> {
        (**self).alloc_table()
    }
    fn free_table(&self, table: Gpa) {
        (**self).free_table(table);
    }
}

impl TableAlloc for FrameAllocator {
    fn alloc_table(&self) -> Option<Gpa> {
        self.alloc_zeroed()
    }
    fn free_table(&self, table: Gpa) {
        self.free(table);
    }
}

/// Why an entry could not be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// RAM is used up. The table is as it was.
    NoMemory,
    /// The address is not a page of the user half.
    BadAddress,
}

/// What [`PageTable::for_each`] does with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Leaves it.
    Keep,
    /// Replaces it (with [`Pte::EMPTY`] to clear it).
    Replace(Pte),
    /// Leaves it and visits no more.
    Stop,
}

/// The page table of one address space. Dropping it frees its tables; what the leaf entries refer
/// to is the owner's business, before.
pub struct PageTable<A: TableAlloc> {
    phys: PhysMap,
    alloc: A,
    root: Gpa,
    tables: u64,
    /// Entries that are present, and the most there have been.
    present: u64,
    peak: u64,
}

type Entry = &'static AtomicU64;

/// The entries on the way to a leaf: the leaf's at \[0\], the root's at \[3\].
type Path = [Entry; 4];

impl<A: TableAlloc> PageTable<A> {
    /// An empty table; `None` when RAM is used up.
    pub fn new(phys: PhysMap, alloc: A) -> Option<Self> {
        let root = alloc.alloc_table()?;
        Some(Self { phys, alloc, root, tables: 1, present: 0, peak: 0 })
    }

    /// The root table (what CR3 holds).
    pub fn root(&self) -> Gpa {
        self.root
    }

    /// Pages that the tables take, the root included.
    pub fn table_pages(&self) -> u64 {
        self.tables
    }

    /// The most pages that have been present at once.
    pub fn peak_pages(&self) -> u64 {
        self.peak
    }

    /// The entry of the page at `va` (its low bits are ignored); empty beyond the user half.
    pub fn get(&self, va: Va) -> Pte {
        if va >= USER_END {
            return Pte::EMPTY;
        }
        match self.walk(va) {
            Ok(path) => Pte(path[0].load(Ordering::Acquire)),
            Err(_) => Pte::EMPTY,
        }
    }

    /// Sets the entry of the page at `va`; gives the old one. Tables are made, and freed, as
    /// needed.
    pub fn set(&mut self, va: Va, pte: Pte) -> Result<Pte, MapError> {
        if va >= USER_END || !va.is_page_aligned() {
            return Err(MapError::BadAddress);
        }
        if pte.is_empty() {
            return Ok(match self.walk(va) {
                Ok(path) => self.replace(&path, Pte::EMPTY),
                Err(_) => Pte::EMPTY,
            });
        }
        let path = self.walk_or_make(va)?;
        Ok(self.replace(&path, pte))
    }

    /// Replaces the entry of the page at `va` by `f` of it, if it is not empty; gives the old and
    /// the new one.
    pub fn update(&mut self, va: Va, f: impl FnOnce(Pte) -> Pte) -> Option<(Pte, Pte)> {
        if va >= USER_END {
            return None;
        }
        let path = self.walk(va).ok()?;
        let old = Pte(path[0].load(Ordering::Acquire));
        if old.is_empty() {
            return None;
        }
        let new = f(old);
        let old = self.replace(&path, new);
        Some((old, new))
    }

    /// Sets the empty entries of `count` pages from `va` to `first`, and to the frames that follow
    /// it. All or nothing. Panics when one of the entries is not empty.
    pub fn map_run(&mut self, va: Va, first: Pte, count: u64) -> Result<(), MapError> {
        let end = count
            .checked_mul(PAGE_SIZE)
            .and_then(|len| va.checked_add(len))
            .ok_or(MapError::BadAddress)?;
        if end > USER_END || !va.is_page_aligned() || first.is_empty() {
            return Err(MapError::BadAddress);
        }
        let mut at = va;
        while at < end {
            if let Err(error) = self.walk_or_make(at) {
                self.prune(va..at);
                return Err(error);
            }
            at = next_boundary(at, 1);
        }
        let (mut at, mut pte) = (va, first);
        while at < end {
            let path = self.walk_or_make(at)?;
            let table = self.table_at(path[1]);
            let stop = next_boundary(at, 1).min(end);
            let mut added = 0;
            while at < stop {
                let old = table[index(at, 0)].swap(pte.0, Ordering::AcqRel);
                assert_eq!(old, 0, "an entry at {at:?} was not empty");
                (at, pte) = (at + PAGE_SIZE, pte.with_gpa(pte.gpa() + PAGE_SIZE));
                added += COUNT_ONE;
            }
            path[1].fetch_add(added, Ordering::AcqRel);
            if first.is_present() {
                self.add_present(added / COUNT_ONE);
            }
        }
        Ok(())
    }

    /// Visits every entry of `range` that is not empty, in order, and does what `f` says. Whole
    /// absent subtrees are skipped in one step each; tables that become empty are freed.
    ///
    /// Where hardware walks the table it may set ACCESSED and DIRTY at any time: they are carried
    /// over to a replacement that is present.
    pub fn for_each(&mut self, range: Range<Va>, f: &mut dyn FnMut(Va, Pte) -> Action) {
        self.for_each_with(range, u64::MAX, f);
    }

    /// The same for those that are present: where most pages lie in the store, few are looked at.
    pub fn for_each_present(&mut self, range: Range<Va>, f: &mut dyn FnMut(Va, Pte) -> Action) {
        self.for_each_with(range, PteFlags::PRESENT.bits(), f);
    }

    /// The same for those that have one of the bits `any`.
    fn for_each_with(&mut self, range: Range<Va>, any: u64, f: &mut dyn FnMut(Va, Pte) -> Action) {
        let end = range.end.min(USER_END);
        let mut at = range.start.page_floor();
        while at < end {
            let path = match self.walk(at) {
                Ok(path) => path,
                Err(level) => {
                    at = next_boundary(at, level);
                    continue;
                }
            };
            let table = self.table_at(path[1]);
            let stop = next_boundary(at, 1).min(end);
            let mut stopped = false;
            while at < stop && !stopped {
                let entry = &table[index(at, 0)];
                let old = entry.load(Ordering::Acquire);
                if old & any != 0 {
                    match f(at, Pte(old)) {
                        Action::Keep => {}
                        Action::Stop => stopped = true,
                        Action::Replace(new) => {
                            let old = exchange(entry, old, new);
                            self.count_present(old, new);
                            if new.is_empty() {
                                path[1].fetch_sub(COUNT_ONE, Ordering::AcqRel);
                            }
                        }
                    }
                }
                at = at + PAGE_SIZE;
            }
            self.free_if_empty(&path);
            if stopped {
                return;
            }
        }
    }

    /// As [`Self::for_each`] without changes, until `f` returns false.
    pub fn visit(&self, range: Range<Va>, f: &mut dyn FnMut(Va, Pte) -> bool) {
        self.visit_with(range, u64::MAX, f);
    }

    /// The same for those that are present.
    pub fn visit_present(&self, range: Range<Va>, f: &mut dyn FnMut(Va, Pte) -> bool) {
        self.visit_with(range, PteFlags::PRESENT.bits(), f);
    }

    fn visit_with(&self, range: Range<Va>, any: u64, f: &mut dyn FnMut(Va, Pte) -> bool) {
        let end = range.end.min(USER_END);
        let mut at = range.start.page_floor();
        while at < end {
            match self.walk(at) {
                Err(level) => at = next_boundary(at, level),
                Ok(path) => {
                    let table = self.table_at(path[1]);
                    let stop = next_boundary(at, 1).min(end);
                    while at < stop {
                        let pte = table[index(at, 0)].load(Ordering::Acquire);
                        if pte & any != 0 && !f(at, Pte(pte)) {
                            return;
                        }
                        at = at + PAGE_SIZE;
                    }
                }
            }
        }
    }

    /// Frees all tables but the root, and forgets every entry of the user half.
    pub fn drop_all(&mut self) {
        let root = self.phys.page_table(self.root);
        for entry in &root[..ENTRIES / 2] {
            self.drop_tree(entry, 3);
        }
        self.present = 0;
    }

    /// Frees the tables below an entry of a table of `level` and clears it.
    fn drop_tree(&mut self, entry: Entry, level: u32) {
        if entry.load(Ordering::Acquire) == 0 {
            return;
        }
        if level > 1 {
            for below in self.table_at(entry) {
                self.drop_tree(below, level - 1);
            }
        }
        self.free_table(entry);
    }

    /// The path to the leaf of `va`, or the level (1 to 3) of the empty entry that ends it.
    fn walk(&self, va: Va) -> Result<Path, u32> {
        let third = &self.phys.page_table(self.root)[index(va, 3)];
        if third.load(Ordering::Acquire) == 0 {
            return Err(3);
        }
        let second = &self.table_at(third)[index(va, 2)];
        if second.load(Ordering::Acquire) == 0 {
            return Err(2);
        }
        let first = &self.table_at(second)[index(va, 1)];
        if first.load(Ordering::Acquire) == 0 {
            return Err(1);
        }
        Ok([&self.table_at(first)[index(va, 0)], first, second, third])
    }

    fn walk_or_make(&mut self, va: Va) -> Result<Path, MapError> {
        let mut path = [&self.phys.page_table(self.root)[index(va, 3)]; 4];
        for level in (1..=3).rev() {
            let entry = path[level];
            if entry.load(Ordering::Acquire) == 0 {
                let Some(table) = self.alloc.alloc_table() else {
                    if level < 3 {
                        self.prune_from(&path, level + 1);
                    }
                    return Err(MapError::NoMemory);
                };
                self.tables += 1;
                let flags = PteFlags::PRESENT | PteFlags::WRITE | PteFlags::USER;
                entry.store(table.0 | flags.bits(), Ordering::Release);
                if level < 3 {
                    path[level + 1].fetch_add(COUNT_ONE, Ordering::AcqRel);
                }
            }
            path[level - 1] = &self.table_at(entry)[index(va, level as u32 - 1)];
        }
        Ok(path)
    }

    fn table_at(&self, entry: Entry) -> &'static [AtomicU64; ENTRIES] {
        self.phys.page_table(Gpa(entry.load(Ordering::Acquire) & ADDRESS))
    }

    /// Replaces a leaf, keeps the counts, and frees tables that are empty then. Gives the old
    /// entry.
    fn replace(&mut self, path: &Path, new: Pte) -> Pte {
        let old = exchange(path[0], path[0].load(Ordering::Acquire), new);
        self.count_present(old, new);
        match (old.is_empty(), new.is_empty()) {
            (true, false) => {
                path[1].fetch_add(COUNT_ONE, Ordering::AcqRel);
            }
            (false, true) => {
                path[1].fetch_sub(COUNT_ONE, Ordering::AcqRel);
                self.free_if_empty(path);
            }
            _ => {}
        }
        old
    }

    fn count_present(&mut self, old: Pte, new: Pte) {
        match (old.is_present(), new.is_present()) {
            (false, true) => self.add_present(1),
            (true, false) => self.present -= 1,
            _ => {}
        }
    }

    fn add_present(&mut self, count: u64) {
        self.present += count;
        self.peak = self.peak.max(self.present);
    }

    fn free_if_empty(&mut self, path: &Path) {
        self.prune_from(path, 1);
    }

    /// Frees the table below `path[level]` if it is empty, and then those above it that become so.
    fn prune_from(&mut self, path: &Path, level: usize) {
        for at in level..=3 {
            if path[at].load(Ordering::Acquire) & COUNT_MASK != 0 {
                return;
            }
            self.free_table(path[at]);
            if at < 3 {
                path[at + 1].fetch_sub(COUNT_ONE, Ordering::AcqRel);
            }
        }
    }

    /// Frees leaf tables of `range` that are empty.
    fn prune(&mut self, range: Range<Va>) {
        let mut at = range.start;
        while at < range.end {
            match self.walk(at) {
                Ok(path) => {
                    self.free_if_empty(&path);
                    at = next_boundary(at, 1);
                }
                Err(level) => at = next_boundary(at, level),
            }
        }
    }

    fn free_table(&mut self, entry: Entry) {
        let table = Gpa(entry.swap(0, Ordering::AcqRel) & ADDRESS);
        self.alloc.free_table(table);
        self.tables -= 1;
    }
}

impl<A: TableAlloc> Drop for PageTable<A> {
    fn drop(&mut self) {
        self.drop_all();
        self.alloc.free_table(self.root);
    }
}

impl<A: TableAlloc> fmt::Debug for PageTable<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageTable").field("root", &self.root).field("tables", &self.tables).finish()
    }
}

/// Index of `va` in its table of `level` (0: the table that holds leaves).
fn index(va: Va, level: u32) -> usize {
    (va.0 >> (PAGE_SHIFT + 9 * level)) as usize % ENTRIES
}

/// The first address after `va` that the next entry of a table of `level` covers.
fn next_boundary(va: Va, level: u32) -> Va {
    let size = PAGE_SIZE << (9 * level);
    Va((va.0 & !(size - 1)) + size)
}

/// Replaces an entry that was `seen`; bits that the hardware sets meanwhile are not lost. Gives the
/// old entry.
fn exchange(entry: &AtomicU64, seen: u64, new: Pte) -> Pte {
    let hardware = if new.is_present() { (PteFlags::ACCESSED | PteFlags::DIRTY).bits() } else { 0 };
    let mut now = seen;
    loop {
        let value = new.0 | (now & !seen & hardware);
        match entry.compare_exchange(now, value, Ordering::AcqRel, Ordering::Acquire) {
            Ok(old) => return Pte(old),
            Err(other) => now = other,
        }
    }
}

#[cfg(test)]
mod tests;

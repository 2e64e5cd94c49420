//! What a program is about to touch is there before it does: a fault that need not be saves the way
//! to the kernel and back, which is most of what it costs where stubs mirror the page table.
//!
//! The thirty faults with which a small program starts are of its data, which the loader relocates
//! page by page, and of the first page of each of its parts.

use alloc::vec::Vec;
use core::ops::Range;

use qlib::pagetable::{Pte, PteFlags};
use qlib::{Frames, PAGE_SIZE, Va};

use super::fault::entry_flags;
use super::frames;
use super::mapped::MappedPage;
use super::space::Inner;
use super::vma::{Prot, Vma, VmaFlags};
use super::{Access, AddressSpace};
use crate::arch;

/// Pages that are copied at once (64 KiB): as many as a first touch of other memory reserves.
const RUN_PAGES: u64 = 16;
/// Ranges of one file that are looked through for its text.
const MOST_PARTS: usize = 6;
/// Ranges that a program is looked through for; a new one has about a dozen.
const MOST_RANGES: usize = 32;

/// True if the page is the program's own copy of a file's.
fn is_copy(pte: Pte) -> bool {
    pte.is_present() && !pte.has(PteFlags::WINDOW) && !pte.has(PteFlags::COW)
}

impl Inner {
    /// True if a range is data of a program or library: below it lies text of the same file. Of
    /// other files a page is the file's until it is written to, and shows what others write.
    fn is_program_data(&self, vma: &Vma) -> bool {
        let identity = |vma: &Vma| vma.backing.as_ref().map(|b| b.mapping.identity());
        let below = |vma: &Vma| {
            let below = self.vmas.previous(vma.start)?;
            (below.end == vma.start && identity(below) == identity(vma)).then_some(below)
        };
        core::iter::successors(below(vma), |vma| below(vma))
            .take(MOST_PARTS)
            .any(|vma| vma.prot.contains(Prot::EXEC))
    }

    /// Copies pages of a program's data in a row, of which `page` is one that is written to: of a
    /// short range all; of a long one those that follow, if the one before is copied. `None` if it
    /// is to be copied alone.
    pub(super) fn copy_run(&mut self, vma: &Vma, page: Va) -> Option<Pte> {
        if vma.served().is_some() || !self.is_program_data(vma) {
            return None;
        }
        let is_short = vma.end - vma.start <= RUN_PAGES * PAGE_SIZE;
        let follows = page > vma.start && is_copy(self.table().get(page - PAGE_SIZE));
        let around = match is_short {
            true => vma.start..vma.end,
            false if follows => page..(page + RUN_PAGES * PAGE_SIZE).min(vma.end),
            false => return None,
        };
        let Range { start: low, end: high } = self.empty_around(page, around);
        let mapping = &vma.backing.as_ref()?.mapping;
        let object_page = vma.object_page(low);
        let source = match mapping.page(object_page, false).ok()? {
            MappedPage::Window(source) => source,
            MappedPage::Frame(frame) => {
                frames::user().ref_dec(frame);
                return None;
            }
        };
        let count = ((high - low) / PAGE_SIZE).min(mapping.run_pages(object_page));
        if count < 2 || page >= low + count * PAGE_SIZE || !frames::may_take(count) {
            return None;
        }
        let first = frames::alloc_run(count)?;
        let copied = |index: u64| {
            let distance = index * PAGE_SIZE;
            arch::copy_page(first + distance, source + distance).is_ok()
        };
        // The file may be shorter by now than it says: then the page alone tells.
        if (0..count).all(copied)
            && self.table().map_run(low, Pte::new(first, entry_flags(vma, true)), count).is_ok()
        {
            return Some(self.table().get(page));
        }
        frames::user().free_run(Frames { start: first, count });
        None
    }
}

impl AddressSpace {
    /// A program was loaded, and begins at `entry` with its stack at `sp`: its parts are mapped as
    /// far as that takes no more memory than it is about to use anyway.
    pub fn expect_start(&self, entry: Va, sp: Va) {
        let mut inner = self.lock();
        let ranges: Vec<Vma> = inner.vmas.iter().take(MOST_RANGES).cloned().collect();
        for vma in ranges {
            let is_short = vma.end - vma.start <= RUN_PAGES * PAGE_SIZE;
            let (at, access) = match &vma.backing {
                None if vma.flags.contains(VmaFlags::STACK) => (sp.page_floor(), Access::Write),
                Some(_) if vma.is_shared() || vma.prot.is_empty() => continue,
                Some(_) if !vma.prot.contains(Prot::WRITE) => {
                    let has_entry = (vma.start..vma.end).contains(&entry);
                    (if has_entry { entry.page_floor() } else { vma.start }, Access::Read)
                }
                Some(_) if is_short => (vma.start, Access::Write),
                _ => continue,
            };
            // What cannot be had now is looked for when it is touched.
            if inner.resolve_in(&vma, at, access).is_ok() {
                inner.show_row(at, vma.end.min(at + RUN_PAGES * PAGE_SIZE));
            }
        }
    }
}

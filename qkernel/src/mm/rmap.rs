//! Taking the pages that a memory object has lost (ftruncate(2), fallocate(2) with
//! FALLOC_FL_PUNCH_HOLE, O_TRUNC) out of every address space that maps them, as Linux's
//! `unmap_mapping_range` does.
//!
//! The object itself loses its pages at once. What is still mapped keeps a reference of its own to
//! each frame, so no frame is free before `task::lost` has been to each space: it waits until no
//! thread there can have an operation to map such a page on its way, clears the entries, and has
//! the platform follow. The system call that caused it returns only then.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use qlib::{Gpa, PAGE_SHIFT, PAGE_SIZE, Va};

use super::AddressSpace;
use super::frames::{self, counted_frame};
use super::vma::Vma;
use crate::mm::mapped::MappedFile;

/// Pages that an object has lost and address spaces may still map.
pub struct Lost {
    /// The object.
    pub object: Arc<dyn MappedFile>,
    /// Which of its pages.
    pub pages: Range<u64>,
    /// The frames that they were, in ascending order, each with the reference that the object had:
    /// of private mappings only the pages that still are these go (a hole). `None`: all that lies
    /// there goes, a private copy too (the object ends before it).
    pub frames: Option<Vec<Gpa>>,
}

impl Drop for Lost {
    fn drop(&mut self) {
        self.frames.take().unwrap_or_default().into_iter().for_each(|frame| {
            frames::user().ref_dec(frame);
        });
    }
}

impl Lost {
    /// The part of a range of an address space that shows the pages.
    fn part_of(&self, vma: &Vma) -> Option<Range<Va>> {
        let backing =
            vma.backing.as_ref().filter(|b| b.mapping.identity() == self.object.identity())?;
        let pages = vma.len() >> PAGE_SHIFT;
        let from = self.pages.start.saturating_sub(backing.first_page).min(pages);
        let to = self.pages.end.saturating_sub(backing.first_page).min(pages);
        (from < to).then(|| vma.start + (from << PAGE_SHIFT)..vma.start + (to << PAGE_SHIFT))
    }
}

impl AddressSpace {
    /// True if it maps what was lost.
    pub fn maps(&self, lost: &Lost) -> bool {
        self.lock().vmas.iter().any(|vma| lost.part_of(vma).is_some())
    }

    /// Clears the entries of lost pages. No thread of the space but the caller's may have an
    /// operation to map something on its way.
    pub fn lose(&self, lost: &Lost) {
        let mut inner = self.lock();
        let parts: Vec<(bool, Range<Va>)> = inner
            .vmas
            .iter()
            .filter_map(|vma| Some((vma.is_shared(), lost.part_of(vma)?)))
            .collect();
        for (shared, part) in parts {
            match &lost.frames {
                Some(frames) if !shared => {
                    let mut pages: Vec<Va> = Vec::new();
                    inner.table().visit(part, &mut |va, pte| {
                        if counted_frame(pte)
                            .is_some_and(|frame| frames.binary_search(&frame).is_ok())
                        {
                            pages.push(va);
                        }
                        true
                    });
                    for page in pages {
                        inner.zap(page..page + PAGE_SIZE);
                    }
                }
                _ => inner.zap(part),
            }
        }
    }
}

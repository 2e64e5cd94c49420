//! What a program gives back while it keeps the range: madvise(2) with MADV_DONTNEED or MADV_FREE.
//!
//! Taking such pages away costs the thread three stops where a stub mirrors the page table, and the
//! next touch two more. So pages that nobody else has are *emptied* there: they keep their frames
//! and their mapping, the host alone takes its memory back, and the next touch finds zeros without
//! a trap. No frame changes hands, so there is nothing to be waited for. What is emptied and not
//! used again is of no use to others until its program, or a sleep, gives it up: so there is a
//! limit to it, beyond which frames are given back as ever.

use alloc::vec::Vec;
use core::ops::Range;

use linux_raw_sys::general::UFFD_FEATURE_EVENT_REMOVE;
use qlib::pagetable::{Action, Pte, PteFlags};
use qlib::{Frames, Gpa, PAGE_SIZE, Va};

use super::frames::{self, counted_frame};
use super::map::user_range;
use super::mmu::is_mapped;
use super::space::Inner;
use super::swap::Usage;
use super::userfault::Event;
use super::vma::{Vma, VmaFlags};
use super::{AddressSpace, emptied};
use crate::errno::{Errno, Result};
use crate::{account, arch};

/// Pages that are emptied at once; the host needs about a microsecond for each, and all else waits.
/// Of more the frames are given up: their next owner has use for them.
const MOST_PAGES: u64 = 256;
/// Runs of frames they may lie in, each a call of the host.
const MOST_RUNS: usize = 16;
/// The part of RAM that may be empty and nobody's else.
const SHARE: u64 = 32;

/// How many pages lie from `start` on to `end`.
fn pages_between(start: Va, end: Va) -> usize {
    ((end - start) / PAGE_SIZE) as usize
}

/// What is known of a page (/proc/PID/pagemap).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    /// It is not there, or never was.
    Nothing,
    /// It is there, and no file's.
    Anonymous,
    /// It is there, and a file's, or shared memory.
    OfFile,
    /// It is in the store.
    Swapped,
}

/// Bytes of an address space that are there, by kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resident {
    /// No file's. Among them is what private ranges show of files in memory.
    pub anonymous: u64,
    /// Of files of the host.
    pub file: u64,
    /// Of shared memory, and of files in memory that are mapped as such.
    pub shared: u64,
}

impl Resident {
    /// All of them.
    pub fn all(&self) -> u64 {
        self.anonymous + self.file + self.shared
    }
}

impl AddressSpace {
    /// Drops the pages of a range (MADV_DONTNEED, MADV_FREE): private ones read as zeros or the
    /// file's content again. Unless it [is emptied](Self::is_emptied), the range must be frozen.
    pub fn discard(&self, va: Va, len: u64) -> Result {
        let (start, end) = user_range(va, len)?;
        let mut inner = self.lock();
        let covered = inner.vmas.covers(start, end);
        let parts = inner.vmas.overlapping(start, end);
        for part in &parts {
            if let Some(served) = part.told(UFFD_FEATURE_EVENT_REMOVE) {
                let event = Event::Remove(part.start..part.end);
                inner.untold.push((served.context.clone(), event));
            }
        }
        match inner.frames_to_empty(&parts, start..end) {
            Some(runs) => {
                // Those that were reached are empty, and the caller may try again.
                let released = arch::release(&runs);
                runs.iter().for_each(|run| frames::user().note_released(*run));
                released.map_err(|_| Errno::EAGAIN)?;
                inner.note_emptied(start..end);
            }
            None => {
                for part in parts {
                    if part.flags.contains(VmaFlags::LOCKED) {
                        return Err(Errno::EINVAL);
                    }
                    inner.zap(part.start..part.end);
                }
            }
        }
        if covered { Ok(()) } else { Err(Errno::ENOMEM) }
    }

    /// The ranges whose content no copy of the space has (MADV_WIPEONFORK).
    pub fn never_copied(&self) -> Vec<Range<Va>> {
        let inner = self.lock();
        let mut ranges = Vec::new();
        let mut next = Va(0);
        while let Some(vma) = inner.vmas.next_after(next) {
            next = vma.end;
            if vma.flags.contains(VmaFlags::WIPE_ON_FORK) {
                ranges.push(vma.start..vma.end);
            }
        }
        ranges
    }

    /// True if [`Self::discard`] takes no page of the range away from anybody.
    pub fn is_emptied(&self, range: Range<Va>) -> bool {
        let mut inner = self.lock();
        let parts = inner.vmas.overlapping(range.start, range.end);
        inner.frames_to_empty(&parts, range).is_some()
    }

    /// Which pages of a range are there (mincore(2)): a byte for each, so the caller bounds it.
    pub fn resident(&self, va: Va, len: u64) -> Result<Vec<u8>> {
        let (start, end) = user_range(va, len)?;
        if !self.lock().vmas.covers(start, end) {
            return Err(Errno::ENOMEM);
        }
        let mut pages = alloc::vec![0; pages_between(start, end)];
        self.visit_resident(start..end, &mut |at, _| pages[pages_between(start, at)] = 1);
        Ok(pages)
    }

    /// What is known of the pages of `[start, end)`: one for each, so the caller bounds it.
    pub fn page_states(&self, start: Va, end: Va) -> Vec<PageState> {
        let mut pages = alloc::vec![PageState::Nothing; pages_between(start, end)];
        let index = |at: Va| pages_between(start, at);
        let mut note = |at: Va, state| {
            if let Some(page) = pages.get_mut(index(at)) {
                *page = state;
            }
        };
        self.visit_resident(start..end, &mut |at, _| note(at, PageState::Anonymous));
        let mut inner = self.lock();
        let files = inner.vmas.overlapping(start, end);
        let mut objects = alloc::vec![None; pages_between(start, end)];
        for part in files.iter().filter(|part| !part.is_shared()) {
            let within = pages_between(start, part.start)..pages_between(start, part.end);
            if let (Some(backing), Some(objects)) = (&part.backing, objects.get_mut(within)) {
                backing.mapping.frames_in_use(part.object_page(part.start), objects);
            }
        }
        inner.table().visit(start..end, &mut |at, pte| {
            if pte.is_swapped() {
                note(at, PageState::Swapped);
            } else if pte.is_present() {
                let shared = |vma: &Vma| vma.is_shared() && vma.start <= at && at < vma.end;
                // A private range shows the object's own frame until it is written to.
                let is_objects = objects.get(index(at)).is_some_and(|o| *o == Some(pte.gpa()));
                if pte.has(PteFlags::WINDOW) || is_objects || files.iter().any(shared) {
                    note(at, PageState::OfFile);
                }
            }
            true
        });
        drop(inner);
        drop(files);
        pages
    }

    /// Bytes that are there.
    pub fn resident_bytes(&self) -> u64 {
        self.resident_pages(Va(0), arch::boot().user_max) * PAGE_SIZE
    }

    /// Bytes that are there, by kind.
    pub fn resident_by_kind(&self) -> Resident {
        let shared: Vec<Range<Va>> = {
            let inner = self.lock();
            inner.vmas.iter().filter(|vma| vma.is_shared()).map(|vma| vma.start..vma.end).collect()
        };
        let mut shared = shared.into_iter().peekable();
        let mut found = Resident::default();
        self.visit_resident(Va(0)..arch::boot().user_max, &mut |at, pte| {
            while shared.next_if(|range| range.end <= at).is_some() {}
            let kind = match shared.peek() {
                _ if pte.has(PteFlags::WINDOW) => &mut found.file,
                Some(range) if range.start <= at => &mut found.shared,
                _ => &mut found.anonymous,
            };
            *kind += PAGE_SIZE;
        });
        found
    }

    /// How many pages of `[start, end)` are there.
    pub fn resident_pages(&self, start: Va, end: Va) -> u64 {
        let mut pages = 0;
        self.visit_resident(start..end, &mut |_, _| pages += 1);
        pages
    }

    /// Visits the pages of `range` that are there. Of those that were emptied the platform says
    /// whether they have been touched since.
    fn visit_resident(&self, range: Range<Va>, visit: &mut dyn FnMut(Va, Pte)) {
        let is_emptied = |pte: Pte| pte.is_present() && Usage::of(pte).is_emptied();
        if !self.lock().emptied.is_empty() {
            self.note_touched(range.clone(), &|pte| is_mapped(pte) && is_emptied(pte));
        }
        self.lock().table().visit(range, &mut |at, pte| {
            if pte.is_present() && !is_emptied(pte) {
                visit(at, pte);
            }
            true
        });
    }
}

impl Inner {
    /// The frames to empty, if all that is there of `parts`, which are all of `range`, can be.
    fn frames_to_empty(&mut self, parts: &[Vma], range: Range<Va>) -> Option<Vec<Frames>> {
        let is_private = |part: &Vma| {
            let kept = VmaFlags::SHARED | VmaFlags::LOCKED | VmaFlags::PADS;
            // The next touch of what is served by a program must trap.
            part.backing.is_none() && !part.flags.intersects(kept) && part.served_by.is_none()
        };
        let is_too_much = emptied::all() > account::memory_bytes() / PAGE_SIZE / SHARE;
        if !self.mmu.empties() || is_too_much || !parts.iter().all(is_private) {
            return None;
        }
        let (mut runs, mut left): (Vec<Frames>, _) = (Vec::new(), MOST_PAGES);
        let mut all = true;
        self.table().visit(range, &mut |_, pte| {
            all = left > 0 && own_frame(pte).is_some_and(|frame| add(&mut runs, frame));
            left = left.saturating_sub(1);
            all
        });
        all.then_some(runs)
    }

    fn note_emptied(&mut self, range: Range<Va>) {
        let mut pages = 0;
        self.table().for_each(range, &mut |_, pte| {
            pages += u64::from(!Usage::of(pte).is_emptied());
            Action::Replace(Usage::of(pte).emptied().put(pte))
        });
        self.emptied.note(pages);
    }
}

/// The frame of an entry, if nobody else has it, or is on the way to give it back.
fn own_frame(pte: Pte) -> Option<Gpa> {
    counted_frame(pte).filter(|frame| frames::user().ref_count(*frame) == 1)
}

/// Adds a frame to runs of them; false if that makes too many.
fn add(runs: &mut Vec<Frames>, frame: Gpa) -> bool {
    let full = runs.len() == MOST_RUNS;
    match runs.last_mut() {
        Some(run) if run.start + run.len_bytes() == frame => run.count += 1,
        _ if full => return false,
        _ => runs.push(Frames { start: frame, count: 1 }),
    }
    true
}

//! Bringing pages back from the swap file ahead of use, some at a time, in reads as large as
//! possible. They are not shown to the platform: a fault does that, as it did before, but finds the
//! page in memory.
//!
//! A page that several spaces have (since fork(2)) is read once, and shared again. While the others
//! are looked for its frame is kept here, with a reference of its own, so nobody writes to it.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use qlib::bitmap::Stay;
use qlib::host::{MAX_SWAP_IN_PAGES, Segment};
use qlib::pagetable::{Action, Pte, PteFlags};
use qlib::{Gpa, PAGE_SIZE, Va};

use super::read::read_slots;
use super::{Usage, kept, slots};
use crate::errno::{Errno, Result};
use crate::mm::AddressSpace;
use crate::mm::fault::entry_flags;
use crate::mm::frames;

/// Pages that are brought at once.
pub const MOST: usize = MAX_SWAP_IN_PAGES as usize;

/// Entries that are looked at at once.
pub const MOST_LOOKS: usize = 16 * 1024;

/// What a step has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Brought {
    /// Pages that were read.
    pub pages: u64,
    /// Where it goes on, in the unit of what was looked through; `None`: that was the end.
    pub next: Option<u64>,
}

/// Frames of pages with several names, by slot, each with a reference.
#[derive(Debug, Default)]
pub struct Shared(BTreeMap<u64, Gpa>);

impl Shared {
    /// The frame of a slot that is about to lose this name, with a reference for who had it; that
    /// which is kept is given up with the last name. `None` if the page is not kept, or its frame
    /// has as many names as one can have.
    fn take(&mut self, slot: u64) -> Option<Gpa> {
        let frame = *self.0.get(&slot)?;
        if slots::names(slot) == 1 {
            return self.0.remove(&slot);
        }
        frames::user().ref_inc(frame).is_ok().then_some(frame)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for frame in core::mem::take(&mut self.0).into_values() {
            frames::user().ref_dec(frame);
        }
    }
}

/// A swapped page that is to come: where it is named, and the frame that it gets.
#[derive(Clone, Copy, Debug)]
pub struct Coming {
    /// The address, or the index in an object.
    pub at: u64,
    /// Its slot.
    pub slot: u64,
    /// The frame that holds it; 0 before.
    pub frame: Gpa,
}

impl Coming {
    /// The page at `at`, in `slot`, if it is in the swap file.
    pub fn new(at: u64, slot: u64) -> Option<Coming> {
        let is_stored = slot != slots::ZERO && !kept::is_kept(slot);
        is_stored.then_some(Coming { at, slot, frame: Gpa(0) })
    }
}

/// Frames in a row, as many as there are up to `most`, which is more than none: the first of them,
/// and how many.
fn run_of(most: u64, stay: Stay) -> Option<(Gpa, u64)> {
    let mut count = if stay == Stay::Passing { 1 << most.ilog2() } else { 1 };
    while count > 1 {
        if let Some(start) = frames::alloc_run(count) {
            return Some((start, count));
        }
        count /= 2;
    }
    frames::alloc_for(stay).ok().map(|frame| (frame, 1))
}

/// Gives pages frames that are there for so long, neighbours where that can be, and fills them.
/// ENOMEM, and then nothing has happened.
pub fn read(pages: &mut [Coming], stay: Stay) -> Result {
    let mut done = 0;
    while done < pages.len() {
        let Some((start, count)) = run_of((pages.len() - done) as u64, stay) else {
            pages[..done].iter().for_each(|page| {
                frames::user().ref_dec(page.frame);
            });
            return Err(Errno::ENOMEM);
        };
        for (index, page) in (0..count).zip(&mut pages[done..]) {
            page.frame = start + index * PAGE_SIZE;
        }
        done += count as usize;
    }
    pages.sort_unstable_by_key(|page| page.slot);
    for run in pages.chunk_by(|one, next| one.slot + 1 == next.slot) {
        let segments: Vec<Segment> =
            run.iter().map(|page| Segment { gpa: page.frame, len: PAGE_SIZE }).collect();
        read_slots(run[0].slot, &segments);
    }
    pages.sort_unstable_by_key(|page| page.at);
    Ok(())
}

impl AddressSpace {
    /// Brings the next swapped pages of private ranges from address `from` on. ENOMEM.
    pub fn bring_ahead(&self, from: u64, shared: &mut Shared) -> Result<Brought> {
        let mut inner = self.lock();
        let mut brought = Brought::default();
        let Some(vma) = inner.vmas.next_after(Va(from)).cloned() else { return Ok(brought) };
        let start = vma.start.max(Va(from));
        brought.next = Some(vma.end.0);
        if vma.is_shared() {
            // The object has them.
            return Ok(brought);
        }
        let (mut coming, mut looks): (Vec<Coming>, usize) = (Vec::new(), 0);
        let mut end = vma.end;
        inner.table().visit(start..vma.end, &mut |va, pte| {
            looks += 1;
            if coming.len() == MOST || looks > MOST_LOOKS {
                end = va;
                return false;
            }
            coming.extend(pte.slot().and_then(|slot| Coming::new(va.0, slot)));
            true
        });
        brought.next = Some(end.0);
        // Of those that are shared, some are here already.
        let mut new: Vec<Coming> = Vec::new();
        coming.retain(|page| {
            let is_new = !shared.0.contains_key(&page.slot)
                && new.iter().all(|other| other.slot != page.slot);
            if is_new {
                new.push(*page);
            }
            !is_new
        });
        read(&mut new, Stay::Passing)?;
        brought.pages = new.len() as u64;
        for page in &new {
            if slots::names(page.slot) > 1 && frames::user().ref_inc(page.frame).is_ok() {
                shared.0.insert(page.slot, page.frame);
            }
        }
        for page in coming {
            let frame = shared.take(page.slot);
            new.extend(frame.map(|frame| Coming { frame, ..page }));
        }
        new.sort_unstable_by_key(|page| page.at);
        let mut pages = new.iter().peekable();
        inner.table().for_each(start..end, &mut |va, pte| {
            let Some(page) = pages.next_if(|page| page.at == va.0) else { return Action::Keep };
            let is_shared = frames::user().ref_count(page.frame) > 1;
            let cow = pte.has(PteFlags::COW) || is_shared;
            let is_watched = pte.has(PteFlags::WATCHED);
            let mut flags = entry_flags(&vma, !cow && !is_watched);
            flags.set(PteFlags::COW, cow);
            flags.set(PteFlags::WATCHED, is_watched);
            Action::Replace(Usage::of(pte).ahead().put(Pte::new(page.frame, flags)))
        });
        drop(inner);
        new.into_iter().for_each(|page| slots::drop_ref(page.slot));
        Ok(brought)
    }
}

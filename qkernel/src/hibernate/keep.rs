//! A deflate for an image of a sandbox that goes on: the private pages of programs get places in
//! the store, but are [kept] in their frames. Writing them is left to whoever makes the image, so
//! the sandbox stands still no longer than its books take.
//!
//! Spaces are looked through twice in the same order: which pages there are, and, when there are
//! places for all of them, to have their entries name those.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::ops::Range;

use qlib::host::Op;
use qlib::pagetable::{Pte, PteFlags};
use qlib::{Gpa, PAGE_SIZE};

use super::pages::{Aging, Pages, runs_of};
use crate::errno::{Errno, Result};
use crate::host::Call;
use crate::mm::committed::Committed;
use crate::mm::swap::kept::{self, Kept};
use crate::mm::swap::{Usage, segments_of, slots};
use crate::mm::{AddressSpace, frames};
use crate::pieces::Pieces;

/// Pages whose places are asked for at once.
const BATCH_PAGES: usize = 1024;

/// A frame with more names than this is written as ever: each name that comes back takes one more.
const MOST_NAMES: u16 = 1024;

/// The pages to be kept.
pub(super) struct Keep<'a> {
    spaces: &'a [Arc<AddressSpace>],
    aging: Aging,
    committed: Committed,
    /// Frames of pages that get slots.
    swapped: Pieces<Gpa>,
    /// Frames of the working set.
    set: Pieces<Gpa>,
    /// Those of both that have several names.
    shared: BTreeMap<Gpa, Shared>,
}

/// A frame with several names.
struct Shared {
    usage: Usage,
    /// Its index in the list that it is in.
    index: usize,
    /// How many names have been rewritten that name its slot now.
    names: u64,
    /// It is in the working set, and the reference that is kept has been taken.
    is_held: bool,
}

impl<'a> Keep<'a> {
    /// Finds all private pages that are no object's ([`Pages`] has those). ENOMEM if there may not
    /// be memory for a copy of each: they are written then.
    pub(super) fn collect(
        spaces: &'a [Arc<AddressSpace>],
        objects: &Pages,
        aging: Aging,
    ) -> Result<Keep<'a>> {
        let mut keep = Keep {
            spaces,
            aging,
            committed: Committed::default(),
            swapped: Pieces::new(),
            set: Pieces::new(),
            shared: BTreeMap::new(),
        };
        let mut outcome = Ok(());
        for mm in spaces {
            mm.rewrite_private(&mut |anonymous, pte| {
                if outcome.is_ok() && !keep.is_empty(anonymous, pte.gpa()) {
                    outcome = keep.add(objects, pte.gpa(), Usage::of(pte));
                }
                pte
            });
        }
        outcome?;
        for (frame, shared) in &mut keep.shared {
            let list =
                if aging.next(shared.usage).is_some() { &mut keep.set } else { &mut keep.swapped };
            shared.index = list.len();
            list.push(*frame)?;
        }
        let pages = (keep.swapped.len() + keep.set.len()) as u64;
        if frames::may_take(pages) { Ok(keep) } else { Err(Errno::ENOMEM) }
    }

    /// True if the page was reserved and never touched: reading it again gives the same.
    fn is_empty(&mut self, anonymous: bool, frame: Gpa) -> bool {
        anonymous && !self.committed.contains(frame)
    }

    fn add(&mut self, objects: &Pages, frame: Gpa, usage: Usage) -> Result {
        let names = frames::user().ref_count(frame);
        if names == 1 {
            return match self.aging.next(usage) {
                Some(_) => self.set.push(frame),
                None => self.swapped.push(frame),
            };
        }
        if objects.has(frame) {
            return Ok(());
        }
        if names > MOST_NAMES {
            return Err(Errno::ENOMEM);
        }
        let new = Shared { usage, index: 0, names: 0, is_held: false };
        let shared = self.shared.entry(frame).or_insert(new);
        shared.usage = shared.usage.join(usage);
        Ok(())
    }

    /// Frames of the working set, in its order.
    pub(super) fn set(&self) -> &Pieces<Gpa> {
        &self.set
    }

    /// How many pages have left the working set.
    pub(super) fn left(&self) -> u64 {
        if self.aging.is_first { 0 } else { self.swapped.len() as u64 }
    }

    /// Places for all of them. ENOMEM, EDQUOT.
    pub(super) fn reserve(&self) -> Result<Places> {
        let kept = Kept {
            first: 1,
            frames: numbers(&self.swapped)?,
            set: runs_of(&self.set)?,
            is_given: false,
            is_over: false,
        };
        let mut places = Places { kept: Some(kept), slots: 1..1 };
        Call::new(Op::SwapOut).arg(1, 2).run()?;
        for batch in self.swapped.chunks(BATCH_PAGES) {
            let call = Call::new(Op::SwapOut).arg(1, 1).segments(&segments_of(batch));
            let first = call.run()? + 1;
            slots::count_used(batch.len());
            if places.slots.is_empty() {
                places.slots = first..first;
            }
            places.slots.end += batch.len() as u64;
        }
        Ok(places)
    }

    /// Has entries name their places, and keeps the pages.
    pub(super) fn commit(mut self, places: Places) {
        let (spaces, first) = (self.spaces, places.slots.start);
        let mut at = first;
        for mm in spaces {
            mm.rewrite_private(&mut |anonymous, pte| self.rewrite(first, &mut at, anonymous, pte));
        }
        for (frame, shared) in &self.shared {
            // The first name's reference is the one that is kept.
            (1..shared.names).for_each(|_| {
                frames::user().ref_dec(*frame);
            });
        }
        places.keep();
    }

    /// What becomes of an entry; `at`: the slot of the next page that gets one and has no other
    /// name.
    fn rewrite(&mut self, first: u64, at: &mut u64, anonymous: bool, pte: Pte) -> Pte {
        let frame = pte.gpa();
        if self.is_empty(anonymous, frame) {
            frames::user().ref_dec(frame);
            return Pte::EMPTY;
        }
        let held = |usage: Usage| usage.put(pte.without(PteFlags::WRITE).with(PteFlags::COW));
        if frames::user().ref_count(frame) == 1 {
            return match self.aging.next(Usage::of(pte)) {
                Some(usage) => {
                    // It has one name, so it can have another.
                    let _ = frames::user().ref_inc(frame);
                    held(usage)
                }
                None => {
                    *at += 1;
                    self.swapped(*at - 1, pte, Usage::of(pte))
                }
            };
        }
        let Some(shared) = self.shared.get_mut(&frame) else { return pte };
        match self.aging.next(shared.usage) {
            Some(usage) => {
                if !core::mem::replace(&mut shared.is_held, true) {
                    let _ = frames::user().ref_inc(frame);
                }
                held(usage)
            }
            None => {
                let slot = first + shared.index as u64;
                if shared.names > 0 {
                    slots::add_ref(slot);
                }
                shared.names += 1;
                let usage = shared.usage;
                self.swapped(slot, pte, usage)
            }
        }
    }

    /// The entry of a page of this use in a slot.
    fn swapped(&self, slot: u64, pte: Pte, usage: Usage) -> Pte {
        self.aging.left(usage).put(Pte::swapped(slot, pte.flags() & PteFlags::KEPT_IN_SLOT))
    }
}

/// Places for pages, and slots that nobody names yet.
pub(super) struct Places {
    kept: Option<Kept>,
    slots: Range<u64>,
}

impl Places {
    /// The pages have them now.
    fn keep(mut self) {
        if let Some(mut kept) = self.kept.take() {
            kept.first = self.slots.start;
            kept::keep(kept);
        }
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        if self.kept.is_some() {
            self.slots.clone().for_each(slots::drop_ref);
            slots::give_back();
        }
    }
}

/// Numbers of frames. ENOMEM, also for one that is further up than there is any RAM.
fn numbers(frames: &Pieces<Gpa>) -> Result<Pieces<u32>> {
    let mut numbers = Pieces::new();
    for frame in frames.iter() {
        numbers.push(u32::try_from(frame.0 / PAGE_SIZE).map_err(|_| Errno::ENOMEM)?)?;
    }
    Ok(numbers)
}

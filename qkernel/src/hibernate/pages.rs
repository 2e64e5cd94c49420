//! The pages that a deflate writes out: finding them, choosing between swap file and REAP file,
//! writing, and only then changing the entries.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

use qlib::host::{Op, Segment};
use qlib::pagetable::{Pte, PteFlags};
use qlib::{Frames, Gpa, PAGE_SIZE};

use super::deflate::{WORKING_SET, yield_to_events};
use super::stats;
use crate::arch::{self, heap};
use crate::errno::{Errno, Result};
use crate::fs::{Page, Shmem};
use crate::host::Call;
use crate::mm::committed::{BLOCK_PAGES, Committed};
use crate::mm::swap::{Usage, slots};
use crate::mm::{AddressSpace, frames};
use crate::pieces::Pieces;
use crate::task::pause::Held;

/// Pages written between two looks at whether a wake has come.
const BATCH_PAGES: usize = 1024;

/// What the books take for a page while it is written out, in bytes: a frame, an index, a slot, two
/// places in the worst case.
const BOOK_BYTES: u64 = 64;

/// The pages of all address spaces and memory objects, each frame once. Everything is in pieces, as
/// memory may be by the time that a sleep is asked for, and may be refused.
pub(super) struct Pages {
    /// Frames with content: the objects', then the private ones in the order of their addresses in
    /// the spaces. And what is known of the use of each.
    frames: Pieces<(Gpa, Usage)>,
    index: Index,
}

/// Index in the list of frames by frame.
#[derive(Default)]
struct Index {
    blocks: BTreeMap<u64, Box<[u32]>>,
}

impl Index {
    /// What is not there.
    const NONE: u32 = u32::MAX;

    fn place_of(frame: Gpa) -> (u64, usize) {
        let block = frame.align_down(BLOCK_PAGES * PAGE_SIZE);
        (block.0, ((frame - block) / PAGE_SIZE) as usize)
    }

    fn get(&self, frame: Gpa) -> Option<usize> {
        let (block, page) = Self::place_of(frame);
        let index = *self.blocks.get(&block)?.get(page)?;
        (index != Self::NONE).then_some(index as usize)
    }

    /// ENOMEM.
    fn set(&mut self, frame: Gpa, index: usize) -> Result {
        let (block, page) = Self::place_of(frame);
        let pages = match self.blocks.entry(block) {
            Entry::Occupied(pages) => pages.into_mut(),
            Entry::Vacant(place) => {
                let mut pages: Vec<u32> = Vec::new();
                pages.try_reserve_exact(BLOCK_PAGES as usize).map_err(|_| Errno::ENOMEM)?;
                pages.resize(BLOCK_PAGES as usize, Self::NONE);
                place.insert(pages.into_boxed_slice())
            }
        };
        if let Some(known) = pages.get_mut(page) {
            *known = u32::try_from(index).map_err(|_| Errno::ENOMEM)?;
        }
        Ok(())
    }
}

/// Where a page is while the container sleeps, and how it is found afterwards.
#[derive(Clone, Copy)]
enum Backing {
    /// In this slot of the swap file.
    Slot(u64, Usage),
    /// In the REAP file, and in this frame after the wake.
    Frame(Gpa, Usage),
}

/// What is written, and where to.
pub(super) struct Plan {
    /// By index of the frame, and whether something names it already.
    places: Pieces<(Backing, bool)>,
    /// The frames that the REAP file fills, in its order.
    set: Pieces<Frames>,
}

impl Pages {
    /// Finds them. Pages that were reserved but never touched, and pages of zeros that no host file
    /// lies behind, are forgotten right away: reading them again gives the same. ENOMEM.
    pub(super) fn collect(
        spaces: &[Arc<AddressSpace>],
        objects: &Pieces<Arc<Shmem>>,
    ) -> Result<Pages> {
        if !heap::has_room_on_reserve(frames::stats().frames_used * BOOK_BYTES) {
            return Err(Errno::ENOMEM);
        }
        let mut committed = Committed::default();
        let mut pages = Pages { frames: Pieces::new(), index: Index::default() };
        let mut outcome = Ok(());
        let mut add = |pages: &mut Pages, frame, usage| {
            if outcome.is_ok() {
                outcome = pages.add(frame, usage);
            }
        };
        let mut is_zero = |frame| !committed.contains(frame) || arch::phys().frame_is_zero(frame);
        for object in objects.iter() {
            object.visit_frames(&mut |frame, usage| {
                let keep = !is_zero(frame);
                if keep {
                    add(&mut pages, frame, usage);
                }
                keep
            });
        }
        // Before any private page is known: a shared entry may name a frame of an object, and no
        // other.
        for mm in spaces {
            mm.rewrite_shared(&mut |pte| {
                let frame = pte.gpa();
                if pages.index.get(frame).is_none() {
                    // Reading it again gives the same, from the object.
                    frames::user().ref_dec(frame);
                    return Pte::EMPTY;
                }
                add(&mut pages, frame, Usage::of(pte));
                pte
            });
        }
        for mm in spaces {
            mm.rewrite_private(&mut |anonymous, pte| {
                let frame = pte.gpa();
                if anonymous && is_zero(frame) {
                    frames::user().ref_dec(frame);
                    return Pte::EMPTY;
                }
                add(&mut pages, frame, Usage::of(pte));
                pte
            });
        }
        outcome.map(|()| pages)
    }

    fn add(&mut self, frame: Gpa, usage: Usage) -> Result {
        let known = self.index.get(frame).and_then(|index| self.frames.get_mut(index));
        if let Some((_, known)) = known {
            *known = known.join(usage);
            return Ok(());
        }
        self.index.set(frame, self.frames.len())?;
        self.frames.push((frame, usage))
    }

    /// The frames of those that `which` chooses. ENOMEM.
    fn select(&self, which: impl Fn(Usage) -> bool) -> Result<Pieces<Gpa>> {
        let mut chosen = Pieces::new();
        for (frame, _) in self.frames.iter().filter(|(_, usage)| which(*usage)) {
            chosen.push(*frame)?;
        }
        Ok(chosen)
    }

    /// Writes all pages to the swap file.
    pub(super) async fn swap_out(&self, held: &Held) -> Result<Plan> {
        let frames = self.select(|_| true)?;
        let slots = write_swap(&frames, held).await?;
        drop(frames);
        let set = Pieces::new();
        match self.places(&set, &slots, |_| None, Usage::USED) {
            Ok(places) => Ok(Plan { places, set }),
            Err(error) => {
                free_slots(slots);
                Err(error)
            }
        }
    }

    /// Writes the working set to the REAP file, and what has left it to the swap file.
    /// `life_counts`: see [`Usage::after_sleep`].
    pub(super) async fn reap_out(&self, life_counts: bool, held: &Held) -> Result<Plan> {
        let next = |usage: Usage| usage.after_sleep(life_counts);
        let stay = self.select(|usage| next(usage).is_some())?;
        let leave = self.select(|usage| next(usage).is_none())?;
        let slots = write_swap(&leave, held).await?;
        let result =
            write_reap(&stay, held).await.and_then(|()| match dense_runs(stay.len() as u64) {
                Some(set) => Ok((set, true)),
                None => runs_of(&stay).map(|set| (set, false)),
            });
        let (set, is_new) = match result {
            Ok(set) => set,
            Err(error) => {
                free_slots(slots);
                return Err(error);
            }
        };
        match self.places(&set, &slots, next, Usage::LEFT) {
            Ok(places) => {
                stats::REAP_LEFT.fetch_add(leave.len() as u64, Relaxed);
                Ok(Plan { places, set })
            }
            Err(error) => {
                free_slots(slots);
                if is_new {
                    free_runs(set);
                }
                Err(error)
            }
        }
    }

    /// The place of each page: the next of `set`, or of `slots`, with usage `left`, if it leaves
    /// the working set. ENOMEM.
    fn places(
        &self,
        set: &Pieces<Frames>,
        slots: &Pieces<u64>,
        next: impl Fn(Usage) -> Option<Usage>,
        left: Usage,
    ) -> Result<Pieces<(Backing, bool)>> {
        let mut targets = set.iter().flat_map(|r| (0..r.count).map(|i| r.start + i * PAGE_SIZE));
        let mut slots = slots.iter();
        let mut places = Pieces::new();
        for (_, usage) in self.frames.iter() {
            let place = match next(*usage) {
                Some(usage) => targets.next().map(|frame| Backing::Frame(frame, usage)),
                None => slots.next().map(|slot| Backing::Slot(*slot, left)),
            };
            places.push((place.ok_or(Errno::EIO)?, false))?;
        }
        Ok(places)
    }

    /// Has entries and objects name the pages' new places, and gives their frames up. Nothing here
    /// fails.
    pub(super) fn commit(
        self,
        plan: Plan,
        spaces: &[Arc<AddressSpace>],
        objects: &Pieces<Arc<Shmem>>,
    ) {
        let Plan { mut places, set } = plan;
        // The place of the page in a frame, with a reference to it in exchange for one to the
        // frame.
        let mut exchange = |frame: Gpa| -> Option<Backing> {
            let (place, is_named) = places.get_mut(self.index.get(frame)?)?;
            let place = *place;
            if matches!(place, Backing::Frame(same, _) if same == frame) {
                return Some(place);
            }
            // A new frame comes with one reference, and a slot too: for the first that names it.
            let again = core::mem::replace(is_named, true);
            match place {
                Backing::Slot(slot, _) if again => slots::add_ref(slot),
                // The old frame had as many references, so this cannot fail; staying there would
                // lose the content.
                Backing::Frame(new, _) if again && frames::user().ref_inc(new).is_err() => {
                    return None;
                }
                _ => {}
            }
            frames::user().ref_dec(frame);
            Some(place)
        };
        for object in objects.iter() {
            object.move_frames(&mut |frame| {
                Some(match exchange(frame)? {
                    Backing::Slot(slot, usage) => Page::Swapped(slot, usage),
                    Backing::Frame(frame, usage) => Page::Frame(frame, usage),
                })
            });
        }
        for mm in spaces {
            mm.rewrite_shared(&mut |pte| match exchange(pte.gpa()) {
                Some(Backing::Frame(frame, usage)) => usage.put(pte.with_gpa(frame)),
                Some(Backing::Slot(slot, _)) => {
                    // The object brings it back.
                    slots::drop_ref(slot);
                    Pte::EMPTY
                }
                None => pte,
            });
            mm.rewrite_private(&mut |_, pte| match exchange(pte.gpa()) {
                Some(Backing::Frame(frame, usage)) => usage.put(pte.with_gpa(frame)),
                Some(Backing::Slot(slot, usage)) => {
                    usage.put(Pte::swapped(slot, pte.flags() & PteFlags::COW))
                }
                None => pte,
            });
        }
        for ranges in set.chunks(BATCH_PAGES) {
            let _ = arch::release(ranges);
        }
        stats::WORKING_SET_PAGES.store(set.iter().map(|r| r.count).sum(), Relaxed);
        *WORKING_SET.lock() = set;
    }
}

/// Contiguous frames joined to segments.
fn segments_of(pages: &[Gpa]) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for &gpa in pages {
        match segments.last_mut() {
            Some(last) if last.gpa + last.len == gpa => last.len += PAGE_SIZE,
            _ => segments.push(Segment { gpa, len: PAGE_SIZE }),
        }
    }
    segments
}

/// Writes pages to the swap file: their slots, each with one reference.
async fn write_swap(pages: &Pieces<Gpa>, held: &Held) -> Result<Pieces<u64>> {
    let mut slots: Pieces<u64> = Pieces::new();
    for batch in pages.chunks(BATCH_PAGES) {
        let mut numbers = alloc::vec![0u64; batch.len()];
        let call = Call::new(Op::SwapOut).arg(0, arch::gpa_of(numbers.as_mut_ptr().cast()).0);
        let mut result = call.segments(&segments_of(batch)).run().map(|_| ());
        if result.is_ok() {
            slots::count_used(numbers.len());
            for number in numbers {
                match result {
                    Ok(()) => result = slots.push(number + 1),
                    // Too many for the books: nobody will name it.
                    Err(_) => slots::drop_ref(number + 1),
                }
            }
        }
        let result = match result {
            Ok(()) => yield_to_events(held).await,
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            free_slots(slots);
            return Err(error);
        }
    }
    Ok(slots)
}

/// Frees slots that no entry names.
fn free_slots(slots: Pieces<u64>) {
    slots.into_iter().for_each(slots::drop_ref);
    slots::give_back();
}

/// Writes pages to a new REAP file.
async fn write_reap(pages: &Pieces<Gpa>, held: &Held) -> Result {
    let out = |phase: u64, segments: &[Segment]| {
        Call::new(Op::ReapOut).arg(0, phase).segments(segments).run()
    };
    out(0, &[])?;
    for batch in pages.chunks(BATCH_PAGES) {
        out(1, &segments_of(batch))?;
        yield_to_events(held).await?;
    }
    out(2, &[])?;
    Ok(())
}

/// The pages themselves, neighbours joined. ENOMEM.
fn runs_of(pages: &Pieces<Gpa>) -> Result<Pieces<Frames>> {
    let mut runs = Pieces::new();
    for segment in pages.chunks(BATCH_PAGES).flat_map(segments_of) {
        runs.push(Frames { start: segment.gpa, count: segment.len / PAGE_SIZE })?;
    }
    Ok(runs)
}

/// Frees what [`dense_runs`] made.
fn free_runs(runs: Pieces<Frames>) {
    runs.into_iter().for_each(|run| frames::user().free_run(run));
}

/// Frames for `pages` pages in runs as long as possible; `None` when RAM has no room for a second
/// set.
fn dense_runs(pages: u64) -> Option<Pieces<Frames>> {
    let mut runs: Pieces<Frames> = Pieces::new();
    let mut left = pages;
    while left > 0 {
        let mut want = 1u64 << left.ilog2().min(9);
        let run = loop {
            if let Some(start) = frames::alloc_run(want) {
                break Some(Frames { start, count: want });
            }
            if want == 1 {
                break None;
            }
            want /= 2;
        };
        let kept = run.is_some_and(|run| {
            let kept = runs.push(run).is_ok();
            if kept {
                left -= run.count;
            } else {
                frames::user().free_run(run);
            }
            kept
        });
        if !kept {
            free_runs(runs);
            return None;
        }
    }
    Some(runs)
}

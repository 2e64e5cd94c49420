//! The pages that a deflate writes out: finding them, choosing between swap file and REAP file,
//! writing, and only then changing the entries.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::sync::Arc;
use alloc::vec::Vec;

use qlib::host::{Op, Segment};
use qlib::pagetable::{Pte, PteFlags};
use qlib::{Frames, Gpa, PAGE_SIZE};

use crate::arch::{self, heap};
use crate::errno::{Errno, Result};
use crate::fs::{Page, Shmem, shmem};
use crate::host::Call;
use crate::mm::committed::{BLOCK_PAGES, Committed};
use crate::mm::swap::{self, Usage, segments_of, slots};
use crate::mm::{AddressSpace, frames};
use crate::pieces::Pieces;
use crate::sync::{Mutex, mutex};
use crate::task::pause::Held;
use crate::time;
use crate::wait::Signal;

/// The frames that the REAP file fills at the next inflate, in its order.
pub(super) static WORKING_SET: Mutex<Pieces<Frames>> = mutex(Pieces::new());

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

/// Where pages go at a sleep.
#[derive(Clone, Copy)]
pub(super) struct Aging {
    /// There is no working set yet: from the second sleep on what is present is it.
    pub(super) is_first: bool,
    /// See [`Usage::after_sleep`].
    pub(super) life_counts: bool,
}

impl Aging {
    /// What a page of the working set is after the sleep; `None` if it goes to a slot.
    pub(super) fn next(self, usage: Usage) -> Option<Usage> {
        if self.is_first { None } else { usage.after_sleep(self.life_counts) }
    }

    /// What is known of a page of this use that goes to a slot.
    pub(super) fn left(self, usage: Usage) -> Usage {
        if self.is_first { Usage::USED } else { usage.left() }
    }
}

/// What is written, and where to.
pub(super) struct Plan {
    /// By index of the frame, and whether something names it already.
    places: Pieces<(Backing, bool)>,
    /// The frames that the REAP file fills, in its order.
    set: Pieces<Frames>,
    /// How many pages have left the working set.
    pub(super) left: u64,
}

impl Plan {
    /// How many pages the working set has.
    pub(super) fn set_pages(&self) -> u64 {
        self.set.iter().map(|run| run.count).sum()
    }
}

impl Pages {
    /// Finds them. Pages that were reserved but never touched, and pages of zeros that no host file
    /// lies behind, are forgotten right away: reading them again gives the same. ENOMEM.
    pub(super) fn collect(
        spaces: &[Arc<AddressSpace>],
        objects: &Pieces<Arc<Shmem>>,
    ) -> Result<Pages> {
        let mut pages = Pages::of_objects(spaces, objects)?;
        let mut committed = Committed::default();
        let mut is_zero = |frame| !committed.contains(frame) || arch::phys().frame_is_zero(frame);
        let mut outcome = Ok(());
        for mm in spaces {
            mm.rewrite_private(&mut |anonymous, pte| {
                let frame = pte.gpa();
                if anonymous && is_zero(frame) {
                    frames::user().ref_dec(frame);
                    return Pte::EMPTY;
                }
                if outcome.is_ok() {
                    outcome = pages.add(frame, Usage::of(pte));
                }
                pte
            });
        }
        outcome.map(|()| pages)
    }

    /// Those of objects alone.
    pub(super) fn of_objects(
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
        outcome.map(|()| pages)
    }

    /// True if it is one of them.
    pub(super) fn has(&self, frame: Gpa) -> bool {
        self.index.get(frame).is_some()
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

    /// Writes the working set to the REAP file, all else to the swap file. In the REAP file, frames
    /// follow that are `kept` and not written.
    pub(super) async fn write(
        &self,
        aging: Aging,
        kept: &Pieces<Gpa>,
        held: &Held,
    ) -> Result<Plan> {
        let stay = self.select(|usage| aging.next(usage).is_some())?;
        let leave = self.select(|usage| aging.next(usage).is_none())?;
        let slots = write_swap(&leave, held).await?;
        let result = match aging.is_first {
            true => Ok((Pieces::new(), false)),
            false => write_set(&stay, kept, held).await,
        };
        let (set, is_new) = match result {
            Ok(set) => set,
            Err(error) => {
                free_slots(slots);
                return Err(error);
            }
        };
        match self.places(&set, &slots, aging) {
            Ok(places) => {
                let left = if aging.is_first { 0 } else { leave.len() as u64 };
                Ok(Plan { places, set, left })
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

    /// The place of each page: the next of `set`, or of `slots`. ENOMEM.
    fn places(
        &self,
        set: &Pieces<Frames>,
        slots: &Pieces<u64>,
        aging: Aging,
    ) -> Result<Pieces<(Backing, bool)>> {
        let mut targets = set.iter().flat_map(|r| (0..r.count).map(|i| r.start + i * PAGE_SIZE));
        let mut slots = slots.iter();
        let mut places = Pieces::new();
        for (_, usage) in self.frames.iter() {
            let place = match aging.next(*usage) {
                Some(usage) => targets.next().map(|frame| Backing::Frame(frame, usage)),
                None => slots.next().map(|slot| Backing::Slot(*slot, aging.left(*usage))),
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
        let Plan { mut places, set, .. } = plan;
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
                    usage.put(Pte::swapped(slot, pte.flags() & PteFlags::KEPT_IN_SLOT))
                }
                None => pte,
            });
        }
        for ranges in set.chunks(BATCH_PAGES) {
            let _ = arch::release(ranges);
        }
        shmem::forget_list();
        *WORKING_SET.lock() = set;
    }
}

/// Lets other events in for a moment: one that wakes the sandbox ends the deflate.
pub(super) async fn yield_to_events(held: &Held) -> Result {
    let signal = Arc::new(Signal::default());
    time::at_next_event(signal.clone());
    signal.wait().await;
    held.still()
}

/// Writes pages to the swap file: their slots, each with one reference.
async fn write_swap(pages: &Pieces<Gpa>, held: &Held) -> Result<Pieces<u64>> {
    let mut slots: Pieces<u64> = Pieces::new();
    for batch in pages.chunks(BATCH_PAGES) {
        let result = swap::write(batch).and_then(|numbers| {
            let mut result = Ok(());
            for slot in numbers {
                match result {
                    Ok(()) => result = slots.push(slot),
                    // Too many for the books: nobody will name it.
                    Err(_) => slots::drop_ref(slot),
                }
            }
            result
        });
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

/// Writes the working set, and has those follow in it that are `kept`: where it goes after the
/// wake, and whether that is new frames.
async fn write_set(
    stay: &Pieces<Gpa>,
    kept: &Pieces<Gpa>,
    held: &Held,
) -> Result<(Pieces<Frames>, bool)> {
    write_reap(stay, kept, held).await?;
    match dense_runs(stay.len() as u64) {
        Some(set) => Ok((set, true)),
        None => runs_of(stay).map(|set| (set, false)),
    }
}

/// Writes pages to a new REAP file, and has those follow in it that are `kept`.
async fn write_reap(pages: &Pieces<Gpa>, kept: &Pieces<Gpa>, held: &Held) -> Result {
    let out = |phase: u64, kept: u64, segments: &[Segment]| {
        Call::new(Op::ReapOut).arg(0, phase).arg(1, kept).segments(segments).run()
    };
    out(0, 0, &[])?;
    for batch in pages.chunks(BATCH_PAGES) {
        out(1, 0, &segments_of(batch))?;
        yield_to_events(held).await?;
    }
    for batch in kept.chunks(BATCH_PAGES) {
        out(1, 1, &segments_of(batch))?;
    }
    out(2, 0, &[])?;
    Ok(())
}

/// The pages themselves, neighbours joined. ENOMEM.
pub(super) fn runs_of(pages: &Pieces<Gpa>) -> Result<Pieces<Frames>> {
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

//! The pages that a deflate writes out: finding them, choosing between swap file and REAP file, writing, and only then changing
//! the entries.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

use hashbrown::HashMap;
use qlib::host::{Op, Segment};
use qlib::pagetable::{Pte, PteFlags};
use qlib::{Frames, Gpa, PAGE_SIZE};

use super::deflate::{Committed, WORKING_SET, breathe};
use super::pause::Held;
use super::usage::Usage;
use super::{slots, stats};
use crate::arch;
use crate::errno::Result;
use crate::fs::{Page, Shmem};
use crate::host::Call;
use crate::mm::{AddressSpace, frames};

/// Pages written between two looks at whether a wake has come.
const BATCH_PAGES: usize = 1024;

/// The pages of all address spaces and memory objects, each frame once.
pub(super) struct Pages {
    /// Frames with content: the objects', then the private ones in the order of their addresses in the spaces.
    frames: Vec<Gpa>,
    /// What is known of the use of each.
    usage: Vec<Usage>,
    /// Index in `frames` by frame.
    index: HashMap<u64, u32>,
}

/// Where a page is while the container sleeps, and how it is found afterwards.
#[derive(Clone, Copy)]
enum Place {
    /// In this slot of the swap file.
    Slot(u64, Usage),
    /// In the REAP file, and in this frame after the wake.
    Frame(Gpa, Usage),
}

/// What is written, and where to.
pub(super) struct Plan {
    /// By index of the frame.
    places: Vec<Place>,
    /// The frames that the REAP file fills, in its order.
    set: Vec<Frames>,
}

impl Pages {
    /// Finds them. Pages that were reserved but never touched, and pages of zeros that no host file lies behind, are forgotten right away:
    /// reading them again gives the same.
    pub(super) fn collect(spaces: &[Arc<AddressSpace>], objects: &[Arc<Shmem>]) -> Pages {
        let mut committed = Committed::default();
        let mut pages = Pages { frames: Vec::new(), usage: Vec::new(), index: HashMap::new() };
        let mut is_zero = |frame| !committed.contains(frame) || arch::phys().frame_is_zero(frame);
        for object in objects {
            object.visit_frames(&mut |frame, usage| {
                let keep = !is_zero(frame);
                if keep {
                    pages.add(frame, usage);
                }
                keep
            });
        }
        // Before any private page is known: a shared entry may name a frame of an object, and no other.
        for mm in spaces {
            mm.rewrite_shared(&mut |pte| {
                let frame = pte.gpa();
                if !pages.index.contains_key(&frame.0) {
                    frames::user().ref_dec(frame);
                    return Pte::EMPTY;
                }
                pages.add(frame, Usage::of(pte));
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
                pages.add(frame, Usage::of(pte));
                pte
            });
        }
        pages
    }

    fn add(&mut self, frame: Gpa, usage: Usage) {
        let next = self.frames.len() as u32;
        let index = *self.index.entry(frame.0).or_insert(next);
        if index == next {
            self.frames.push(frame);
            self.usage.push(usage);
        } else if let Some(known) = self.usage.get_mut(index as usize) {
            *known = known.join(usage);
        }
    }

    /// Writes all pages to the swap file.
    pub(super) async fn swap_out(&self, held: &Held) -> Result<Plan> {
        let slots = write_swap(&self.frames, held).await?;
        let places = slots.into_iter().map(|slot| Place::Slot(slot, Usage::USED)).collect();
        Ok(Plan { places, set: Vec::new() })
    }

    /// Writes the working set to the REAP file, and what has left it to the swap file. `life_counts`: see [`Usage::after_sleep`].
    pub(super) async fn reap_out(&self, life_counts: bool, held: &Held) -> Result<Plan> {
        let next: Vec<Option<Usage>> = self.usage.iter().map(|usage| usage.after_sleep(life_counts)).collect();
        let select = |stays: bool| -> Vec<Gpa> {
            let chosen = self.frames.iter().zip(&next).filter(|(_, next)| next.is_some() == stays);
            chosen.map(|(frame, _)| *frame).collect()
        };
        let (stay, leave) = (select(true), select(false));
        let slots = write_swap(&leave, held).await?;
        if let Err(error) = write_reap(&stay, held).await {
            free_slots(slots);
            return Err(error);
        }
        let set = dense_runs(stay.len() as u64).unwrap_or_else(|| {
            let segments = segments_of(&stay);
            segments.iter().map(|s| Frames { start: s.gpa, count: s.len / PAGE_SIZE }).collect()
        });
        let mut targets = set.iter().flat_map(|r| (0..r.count).map(|i| r.start + i * PAGE_SIZE));
        let mut slots = slots.into_iter();
        let place = |next: Option<Usage>| match next {
            Some(usage) => targets.next().map(|frame| Place::Frame(frame, usage)),
            None => slots.next().map(|slot| Place::Slot(slot, Usage::LEFT)),
        };
        let places = next.into_iter().map_while(place).collect();
        stats::REAP_LEFT.fetch_add(leave.len() as u64, Relaxed);
        Ok(Plan { places, set })
    }

    /// Has entries and objects name the pages' new places, and gives their frames up. Nothing here fails.
    pub(super) fn settle(self, plan: Plan, spaces: &[Arc<AddressSpace>], objects: &[Arc<Shmem>]) {
        let Plan { places, set } = plan;
        // A new frame comes with one reference, and a slot too: for the first that names it.
        let mut named = alloc::vec![false; places.len()];
        // The place of the page in a frame, with a reference to it in exchange for one to the frame.
        let mut exchange = |frame: Gpa| -> Option<Place> {
            let index = *self.index.get(&frame.0)? as usize;
            let place = *places.get(index)?;
            if matches!(place, Place::Frame(same, _) if same == frame) {
                return Some(place);
            }
            let again = core::mem::replace(named.get_mut(index)?, true);
            match place {
                Place::Slot(slot, _) if again => slots::add_ref(slot),
                // The old frame had as many references, so this cannot fail; staying there would lose the content.
                Place::Frame(new, _) if again && frames::user().ref_inc(new).is_err() => return None,
                _ => {}
            }
            frames::user().ref_dec(frame);
            Some(place)
        };
        for object in objects {
            object.move_frames(&mut |frame| {
                Some(match exchange(frame)? {
                    Place::Slot(slot, usage) => Page::Swapped(slot, usage),
                    Place::Frame(frame, usage) => Page::Frame(frame, usage),
                })
            });
        }
        for mm in spaces {
            mm.rewrite_shared(&mut |pte| match exchange(pte.gpa()) {
                Some(Place::Frame(frame, usage)) => usage.put(pte.with_gpa(frame)),
                Some(Place::Slot(slot, _)) => {
                    // The object brings it back.
                    slots::drop_ref(slot);
                    Pte::EMPTY
                }
                None => pte,
            });
            mm.rewrite_private(&mut |_, pte| match exchange(pte.gpa()) {
                Some(Place::Frame(frame, usage)) => usage.put(pte.with_gpa(frame)),
                Some(Place::Slot(slot, usage)) => usage.put(Pte::swapped(slot, pte.flags() & PteFlags::COW)),
                None => pte,
            });
        }
        let _ = arch::release(&set);
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
async fn write_swap(pages: &[Gpa], held: &Held) -> Result<Vec<u64>> {
    let mut slots: Vec<u64> = Vec::with_capacity(pages.len());
    for batch in pages.chunks(BATCH_PAGES) {
        let mut numbers = alloc::vec![0u64; batch.len()];
        let call = Call::new(Op::SwapOut).arg(0, arch::gpa_of(numbers.as_mut_ptr().cast()).0);
        let result = match call.segments(&segments_of(batch)).run() {
            Ok(_) => {
                slots::count_used(numbers.len());
                slots.extend(numbers.iter().map(|slot| slot + 1));
                breathe(held).await
            }
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
fn free_slots(slots: Vec<u64>) {
    slots.into_iter().for_each(slots::drop_ref);
    slots::give_back();
}

/// Writes pages to a new REAP file.
async fn write_reap(pages: &[Gpa], held: &Held) -> Result {
    let out = |phase: u64, segments: &[Segment]| Call::new(Op::ReapOut).arg(0, phase).segments(segments).run();
    out(0, &[])?;
    for batch in pages.chunks(BATCH_PAGES) {
        out(1, &segments_of(batch))?;
        breathe(held).await?;
    }
    out(2, &[])?;
    Ok(())
}

/// Frames for `pages` pages in runs as long as possible; `None` when RAM has no room for a second set.
fn dense_runs(pages: u64) -> Option<Vec<Frames>> {
    let mut runs: Vec<Frames> = Vec::new();
    let mut left = pages;
    while left > 0 {
        let mut want = 1u64 << left.ilog2().min(9);
        let run = loop {
            if let Some(start) = frames::user().alloc_run(want as usize) {
                break Some(Frames { start, count: want });
            }
            if want == 1 {
                break None;
            }
            want /= 2;
        };
        match run {
            Some(run) => {
                left -= run.count;
                runs.push(run);
            }
            None => {
                for run in runs {
                    frames::user().free_run(run);
                }
                return None;
            }
        }
    }
    Some(runs)
}

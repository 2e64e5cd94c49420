//! Deflate: pause, write application memory to the store, give everything free back to the host.
//!
//! Nothing is changed before everything has been written, so a failure or a wake on the way loses nothing. The first
//! time all pages go to the swap file and their entries are marked; from the second time on the pages that are present
//! are the recorded working set: they go to the REAP file, are moved to dense runs of frames, and keep their entries.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

use hashbrown::HashMap;
use qlib::host::{Op, Segment};
use qlib::pagetable::{Pte, PteFlags};
use qlib::{Frames, Gpa, PAGE_SIZE};

use super::state::{Input, State};
use super::{pause, slots, stats, step};
use crate::errno::{Errno, Result};
use crate::host::Call;
use crate::mm::{AddressSpace, frames};
use crate::sync::{Mutex, mutex};
use crate::task::{Thread, table};
use crate::wait::Signal;
use crate::{arch, time};

/// Pages written between two looks at whether a wake has come.
const BATCH_PAGES: usize = 1024;
/// Pages of a block of the page allocator.
const BLOCK_PAGES: u64 = 1024;

/// The frames that the REAP file fills at the next inflate, in its order.
pub(super) static WORKING_SET: Mutex<Vec<Frames>> = mutex(Vec::new());

/// Why a deflate did not happen: errno and a line for the user.
pub type Failure = (Errno, String);

/// Hibernates the sandbox. A task of its own calls this; on success nothing runs any more until a wake.
pub async fn deflate() -> core::result::Result<(), Failure> {
    match super::current() {
        State::Hibernated => return Ok(()),
        State::Awake { .. } => step(Input::Stop),
        State::Deflating { .. } | State::Inflating => {
            return Err((Errno::EBUSY, "it is changing its state already: try again".to_string()));
        }
    }
    let begin_ns = time::monotonic_ns();
    match attempt().await {
        Ok(()) => {
            stats::DEFLATES.fetch_add(1, Relaxed);
            stats::LAST_DEFLATE_NS.store(time::monotonic_ns() - begin_ns, Relaxed);
            step(Input::Deflated);
            Ok(())
        }
        Err(error) => {
            stats::DEFLATES_FAILED.fetch_add(1, Relaxed);
            step(Input::Abandoned);
            pause::resume();
            Err((error, reason(error)))
        }
    }
}

fn reason(error: Errno) -> String {
    match error {
        Errno::EINTR => "something woke it while it was going to sleep: it stays awake".to_string(),
        Errno::ENOSPC => "the disk of the swap store is full: free some space; it stays awake".to_string(),
        Errno::EDQUOT => "the swap store's quota is used up: raise it; it stays awake".to_string(),
        other => alloc::format!("the swap store failed ({}): it stays awake", other.name()),
    }
}

async fn attempt() -> Result {
    pause::pause().await?;
    let spaces = spaces();
    for (mm, thread) in &spaces {
        mm.hide_all();
        thread.user.flush(mm).await?;
        still_paused()?;
    }
    let first = slots::used() == 0 && stats::DEFLATES.load(Relaxed) == 0;
    // Objects first: what is written of them can be faulted in again if the rest fails.
    spaces.iter().for_each(|(mm, _)| mm.forget_shared());
    crate::fs::swap_out_objects(first)?;
    let mut pages = Pages::collect(&spaces);
    if first {
        pages.swap_out(&spaces).await?;
    } else {
        pages.reap_out(&spaces).await?;
    }
    // From here on nothing fails. Windows come back by themselves at the next touch.
    let _ = Call::new(Op::WindowsRelease).run();
    drop(pages);
    drop(spaces);
    slots::give_back();
    release_free();
    Ok(())
}

/// Every address space with one of its threads.
pub(super) fn spaces() -> Vec<(Arc<AddressSpace>, Arc<Thread>)> {
    let mut spaces: Vec<(Arc<AddressSpace>, Arc<Thread>)> = Vec::new();
    for thread in table::threads() {
        let mm = thread.mm();
        if !thread.user.is_dead() && !spaces.iter().any(|(known, _)| Arc::ptr_eq(known, &mm)) {
            spaces.push((mm, thread));
        }
    }
    spaces
}

fn still_paused() -> Result {
    if pause::is_paused() { Ok(()) } else { Err(Errno::EINTR) }
}

/// Lets other events in for a moment: one that wakes the sandbox ends the deflate.
async fn breathe() -> Result {
    let signal = Arc::new(Signal::default());
    time::insert(time::monotonic_ns(), signal.clone());
    signal.wait().await;
    still_paused()
}

/// Gives all free memory back to the host: user frames, kernel heap, whole blocks.
pub fn release_free() {
    let mut release = |ranges: &[Frames]| arch::release(ranges).is_ok();
    frames::user().free_ranges(&mut release);
    arch::heap::HEAP.free_ranges(&mut release);
    arch::heap::BLOCKS.free_ranges(&mut release);
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

/// The private pages of all address spaces, each frame once.
struct Pages {
    /// Frames with content, in the order of their addresses in the spaces.
    frames: Vec<Gpa>,
    /// Index in `frames` by frame.
    index: HashMap<u64, u32>,
}

/// What becomes of a frame.
const NOTHING: u64 = u64::MAX;

impl Pages {
    /// Finds them. Pages that were reserved but never touched, and anonymous pages of zeros, are forgotten right away: reading
    /// them again gives the same.
    fn collect(spaces: &[(Arc<AddressSpace>, Arc<Thread>)]) -> Pages {
        let mut committed = Committed::default();
        let mut pages = Pages { frames: Vec::new(), index: HashMap::new() };
        let phys = arch::phys();
        for (mm, _) in spaces {
            mm.rewrite_private(&mut |anonymous, pte| {
                let frame = pte.gpa();
                if anonymous && (!committed.contains(frame) || phys.frame_is_zero(frame)) {
                    frames::user().ref_dec(frame);
                    return Pte::EMPTY;
                }
                let next = pages.frames.len() as u32;
                let frames = &mut pages.frames;
                pages.index.entry(frame.0).or_insert_with(|| {
                    frames.push(frame);
                    next
                });
                pte
            });
        }
        pages
    }

    /// Writes all pages to the swap file and marks their entries.
    async fn swap_out(&mut self, spaces: &[(Arc<AddressSpace>, Arc<Thread>)]) -> Result {
        let mut slots: Vec<u64> = Vec::with_capacity(self.frames.len());
        for batch in self.frames.chunks(BATCH_PAGES) {
            let mut numbers = alloc::vec![0u64; batch.len()];
            let result = Call::new(Op::SwapOut)
                .arg(0, arch::gpa_of(numbers.as_mut_ptr().cast()).0)
                .segments(&segments_of(batch))
                .run()
                .map(|_| slots.extend(numbers.iter().map(|slot| slot + 1)));
            let result = match result {
                Ok(()) => breathe().await,
                Err(error) => Err(error),
            };
            if let Err(error) = result {
                slots::count_used(slots.len());
                slots.drain(..).for_each(slots::drop_ref);
                slots::give_back();
                return Err(error);
            }
        }
        slots::count_used(slots.len());
        let mut named = alloc::vec![false; slots.len()];
        for (mm, _) in spaces {
            mm.rewrite_private(&mut |_, pte| {
                let Some(&index) = self.index.get(&pte.gpa().0) else { return pte };
                let slot = slots[index as usize];
                if core::mem::replace(&mut named[index as usize], true) {
                    slots::add_ref(slot);
                }
                frames::user().ref_dec(pte.gpa());
                Pte::swapped(slot, pte.flags() & PteFlags::COW)
            });
        }
        stats::WORKING_SET_PAGES.store(0, Relaxed);
        Ok(())
    }

    /// Writes all pages to the REAP file, moves them to dense runs and lets the host have both.
    async fn reap_out(&mut self, spaces: &[(Arc<AddressSpace>, Arc<Thread>)]) -> Result {
        let out = |phase: u64, segments: &[Segment]| Call::new(Op::ReapOut).arg(0, phase).segments(segments).run();
        out(0, &[])?;
        for batch in self.frames.chunks(BATCH_PAGES) {
            out(1, &segments_of(batch))?;
            breathe().await?;
        }
        out(2, &[])?;
        let targets = dense_runs(self.frames.len() as u64);
        let moved: Vec<u64> = match &targets {
            Some(runs) => runs.iter().flat_map(|r| (0..r.count).map(|i| (r.start + i * PAGE_SIZE).0)).collect(),
            None => self.frames.iter().map(|f| f.0).collect(),
        };
        let mut taken = alloc::vec![NOTHING; moved.len()];
        for (mm, _) in spaces {
            mm.rewrite_private(&mut |_, pte| {
                let Some(&index) = self.index.get(&pte.gpa().0) else { return pte };
                let target = Gpa(moved[index as usize]);
                if target == pte.gpa() {
                    return pte;
                }
                if core::mem::replace(&mut taken[index as usize], target.0) != NOTHING
                    && frames::user().ref_inc(target).is_err()
                {
                    // The old frame had as many references, so this cannot be; keeping it would lose its content.
                    return pte;
                }
                frames::user().ref_dec(pte.gpa());
                pte.with_gpa(target)
            });
        }
        let set = targets.unwrap_or_else(|| {
            segments_of(&self.frames).iter().map(|s| Frames { start: s.gpa, count: s.len / PAGE_SIZE }).collect()
        });
        let _ = arch::release(&set);
        stats::WORKING_SET_PAGES.store(self.frames.len() as u64, Relaxed);
        *WORKING_SET.lock() = set;
        Ok(())
    }
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

/// Which frames hold memory of the host, asked for by the block.
#[derive(Default)]
pub(super) struct Committed {
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl Committed {
    /// Whether the frame does. When the host does not say, yes.
    pub(super) fn contains(&mut self, frame: Gpa) -> bool {
        let block = frame.align_down(BLOCK_PAGES * PAGE_SIZE);
        let bitmap = self.blocks.entry(block.0).or_insert_with(|| {
            let mut bitmap = alloc::vec![0xff; (BLOCK_PAGES / 8) as usize];
            let call = Call::new(Op::Committed).arg(0, block.0).arg(1, BLOCK_PAGES * PAGE_SIZE);
            if call.bytes_out(&mut bitmap).run().is_err() {
                bitmap.fill(0xff);
            }
            bitmap
        });
        let index = ((frame - block) / PAGE_SIZE) as usize;
        bitmap[index / 8] >> (index % 8) & 1 != 0
    }
}

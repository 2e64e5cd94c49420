//! Pages that have places in the store and have not been written: whoever makes an image of the
//! sandbox writes them, from guest memory, while it goes on. Their frames are kept as they are
//! until that is done (Linux calls such pages a swap cache): who reads a page has its frame, who
//! writes to it a copy.

use alloc::vec::Vec;
use core::mem;
use core::ops::Range;

use qlib::pagetable::{Action, Pte, PteFlags};
use qlib::{Frames, Gpa, PAGE_SIZE, Va};

use super::{Usage, memory_is_lost, slots};
use crate::arch::{self, heap};
use crate::errno::{Errno, Result};
use crate::executor;
use crate::mm::AddressSpace;
use crate::mm::fault::entry_flags;
use crate::mm::frames;
use crate::mm::reclaim;
use crate::mm::space::Inner;
use crate::mm::vma::Vma;
use crate::pieces::Pieces;
use crate::sync::{Mutex, mutex};
use crate::time;
use crate::wait::{self, PollMask, WaitQueue};

/// The kept pages. Each frame comes with a reference.
#[derive(Debug)]
pub struct Kept {
    /// The slot of the first of `frames`, which have slots in a row.
    pub first: u64,
    /// Numbers of the frames (address divided by page size) of pages with slots.
    pub frames: Pieces<u32>,
    /// Frames of the working set, in its order: pages that are present in spaces.
    pub set: Pieces<Frames>,
    /// Guest memory has been copied, and whoever has the copy goes by the frames.
    pub is_given: bool,
    /// Nobody needs them any more.
    pub is_over: bool,
}

/// Pages that something is done to at once.
const MOST: usize = 512;

static KEPT: Mutex<Option<Kept>> = mutex(None);
/// Notified when they are kept no more.
static OVER: WaitQueue = WaitQueue::new();

impl Kept {
    /// The frame of a slot.
    fn frame(&self, slot: u64) -> Option<Gpa> {
        let index = usize::try_from(slot.checked_sub(self.first)?).ok()?;
        self.frames.get(index).map(|number| frame_of(*number))
    }

    /// Some of the frames, which it forgets.
    fn some(&mut self) -> Option<Vec<Gpa>> {
        let mut some: Vec<Gpa> = Vec::new();
        while some.len() < MOST
            && let Some(number) = self.frames.pop()
        {
            some.push(frame_of(number));
        }
        while some.len() < MOST
            && let Some(run) = self.set.pop()
        {
            let count = run.count.min((MOST - some.len()) as u64);
            some.extend((0..count).map(|page| run.start + page * PAGE_SIZE));
            if count < run.count {
                let rest = run.start + count * PAGE_SIZE;
                // There is room where it was.
                let _ = self.set.push(Frames { start: rest, count: run.count - count });
            }
        }
        (!some.is_empty()).then_some(some)
    }

    /// All frames, neighbours joined.
    fn runs(&self) -> impl Iterator<Item = Frames> {
        let mut numbers = self.frames.iter().copied().peekable();
        core::iter::from_fn(move || {
            let start = numbers.next()?;
            let mut count = 1;
            while numbers.next_if_eq(&(start + count)).is_some() {
                count += 1;
            }
            Some(Frames { start: frame_of(start), count: count.into() })
        })
    }
}

/// The frame with this number.
fn frame_of(number: u32) -> Gpa {
    Gpa(u64::from(number) * PAGE_SIZE)
}

/// True if pages are kept.
pub fn is_any() -> bool {
    KEPT.lock().is_some()
}

/// True if the page of this slot is kept.
pub fn is_kept(slot: u64) -> bool {
    KEPT.lock().as_ref().is_some_and(|kept| kept.frame(slot).is_some())
}

/// Keeps these.
pub fn keep(kept: Kept) {
    *KEPT.lock() = Some(kept);
}

/// Guest memory is copied now. EBUSY if it has been already.
pub fn give() -> Result {
    match KEPT.lock().as_mut() {
        Some(kept) if kept.is_given || kept.is_over => Err(Errno::EBUSY),
        Some(kept) => {
            kept.is_given = true;
            Ok(())
        }
        None => Ok(()),
    }
}

/// Waits until no page is kept, or until `deadline_ns` (CLOCK_MONOTONIC). Those that nobody has a
/// copy of are kept no more at once.
pub async fn until_none(deadline_ns: Option<u64>) {
    if KEPT.lock().as_ref().is_some_and(|kept| !kept.is_given) {
        take_back();
    }
    while is_any() && deadline_ns.is_none_or(|deadline_ns| time::monotonic_ns() < deadline_ns) {
        wait::notified(&OVER, PollMask::IN, deadline_ns).await;
    }
}

/// They are written: what nobody has used meanwhile is in the store alone, and its frames are about
/// to be free. False if they had to be [taken back](take_back) before that.
pub fn written() -> bool {
    let is_first = KEPT.lock().as_mut().is_some_and(|kept| !mem::replace(&mut kept.is_over, true));
    if is_first {
        executor::spawn(let_go());
    }
    is_first
}

/// Drops what is kept, little by little: nobody waits for all of it.
async fn let_go() {
    // To give free frames back is to look through all of them.
    const AT_ONCE: usize = 16 * MOST;
    let mut dropped = 0;
    loop {
        let some = KEPT.lock().as_mut().and_then(Kept::some);
        dropped += some.as_ref().map_or(AT_ONCE, Vec::len);
        let is_last = some.is_none();
        some.into_iter().flatten().for_each(|frame| {
            frames::user().ref_dec(frame);
        });
        if dropped >= AT_ONCE {
            frames::release_free();
            heap::release_blocks();
            dropped = 0;
        }
        reclaim::note_freed();
        if is_last {
            break;
        }
        executor::yield_now().await;
    }
    let kept = KEPT.lock().take();
    drop(kept);
    OVER.wake(PollMask::IN);
}

/// They are not written, and will not be: all pages are in their frames as before.
pub fn take_back() {
    let Some(kept) = KEPT.lock().take_if(|kept| !kept.is_over) else { return };
    for mm in AddressSpace::all() {
        if let Err(error) = mm.take_back(&kept) {
            memory_is_lost(error);
        }
    }
    *KEPT.lock() = Some(kept);
    written();
    slots::give_back();
}

/// This is a copy of the sandbox that kept them: what has slots is in the store of this one, whose
/// frames hold nothing, and the whole working set is to be read, of which the rest is returned.
pub fn forget() -> Pieces<Frames> {
    let Some(kept) = KEPT.lock().take() else { return Pieces::new() };
    kept.runs().for_each(|run| frames::user().free_clean(run));
    for run in kept.set.iter() {
        (0..run.count).for_each(|page| {
            frames::user().ref_dec(run.start + page * PAGE_SIZE);
        });
    }
    kept.set
}

/// Pages around one that are looked at for others that are kept: each spares a fault.
const AROUND_PAGES: u64 = 16;

/// The entry for a page whose own is `pte`, if that names a kept page: its frame, or a copy where
/// that has as many names as a frame can have. ENOMEM.
fn entry(kept: &Kept, vma: &Vma, pte: Pte) -> Option<Result<Pte>> {
    let frame = kept.frame(pte.slot()?)?;
    if frames::user().ref_inc(frame).is_ok() {
        return Some(Ok(Pte::new(frame, entry_flags(vma, false) | PteFlags::COW)));
    }
    let copy = frames::alloc().and_then(|own| {
        arch::copy_page(own, frame).inspect_err(|_| {
            frames::user().ref_dec(own);
        })?;
        Ok(Pte::new(own, entry_flags(vma, false) | PteFlags::COW))
    });
    Some(copy)
}

/// What was shown: the slots whose entries name frames now, and whether the page asked for is among
/// those; why there are not more, or where it goes on, if there may be more.
struct Shown {
    slots: Vec<u64>,
    is_there: bool,
    rest: Result<Option<Va>>,
}

impl Shown {
    /// Gives the slots up; where it goes on.
    fn settle(self) -> Result<Option<Va>> {
        self.slots.into_iter().for_each(slots::drop_ref);
        self.rest
    }
}

impl Inner {
    /// Has the entries of `range`, which is in `vma`, that name kept pages name their frames, as
    /// far as there is memory for it. `page`: the one that is used, if not all are.
    fn show_kept(&mut self, kept: &Kept, vma: &Vma, range: Range<Va>, page: Option<Va>) -> Shown {
        let mut shown = Shown { slots: Vec::new(), is_there: false, rest: Ok(None) };
        self.table().for_each(range, &mut |va, pte| {
            if shown.slots.len() == MOST {
                shown.rest = Ok(Some(va));
                return Action::Stop;
            }
            match entry(kept, vma, pte) {
                None => Action::Keep,
                Some(Err(error)) => {
                    shown.rest = Err(error);
                    Action::Stop
                }
                Some(Ok(new)) => {
                    shown.slots.extend(pte.slot());
                    shown.is_there |= page == Some(va);
                    let is_guessed = page.is_some_and(|page| page != va);
                    let usage = if is_guessed { Usage::GUESSED } else { Usage::of(pte).seen() };
                    Action::Replace(usage.put(new))
                }
            }
        });
        shown
    }

    /// Brings the page at `page` back that lies in `slot`, if that is kept, and its neighbours that
    /// are; whether it is. ENOMEM.
    pub(super) fn bring_back_kept(&mut self, vma: &Vma, page: Va, slot: u64) -> Result<bool> {
        let guard = KEPT.lock();
        let Some(kept) = guard.as_ref().filter(|kept| kept.frame(slot).is_some()) else {
            return Ok(false);
        };
        let chunk = page.align_down(AROUND_PAGES * PAGE_SIZE);
        let range = chunk.max(vma.start)..(chunk + AROUND_PAGES * PAGE_SIZE).min(vma.end);
        let shown = self.show_kept(kept, vma, range, Some(page));
        drop(guard);
        let is_there = shown.is_there;
        let rest = shown.settle();
        // A neighbour may do without.
        if is_there { Ok(true) } else { rest.map(|_| true) }
    }
}

impl AddressSpace {
    /// Has all entries that name kept pages name their frames. ENOMEM.
    fn take_back(&self, kept: &Kept) -> Result {
        let mut inner = self.lock();
        let mut next = inner.vmas.iter().next().cloned();
        while let Some(vma) = next {
            next = inner.vmas.next_after(vma.end).cloned();
            let mut from = (!vma.is_shared()).then_some(vma.start);
            while let Some(start) = from {
                from = inner.show_kept(kept, &vma, start..vma.end, None).settle()?;
            }
        }
        Ok(())
    }
}

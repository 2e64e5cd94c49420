//! Files that lie on the host's disk (`io.quark.rootfs.upper: disk`): what they hold beyond a part
//! of memory is written to the swap file while the container runs, oldest first. What is mapped
//! stays until memory is used up.
//!
//! The swap file is part of images, and sleeps take what is left in memory to it, so files are
//! where the rest of the sandbox is. It has no name: they go with the container.

use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use qlib::{Gpa, PAGE_SIZE};

use super::{OBJECTS, Page, Shmem, object_from};
use crate::account;
use crate::errno::{Errno, Result};
use crate::mm::frames;
use crate::mm::mapped::MappedFile;
use crate::mm::rmap::Lost;
use crate::mm::swap::ahead::{self, Coming};
use crate::mm::swap::{self, Usage, kept, slots};
use crate::sync::{Mutex, mutex};
use crate::task::{current, lost, pause};

/// The part of memory that they may have.
const SHARE: u64 = 8;
/// They may have this much in any case, and not more than that, in pages.
const LEAST_PAGES: u64 = (1 << 20) / PAGE_SIZE;
const MOST_PAGES: u64 = (64 << 20) / PAGE_SIZE;
/// Pages that are written at once.
const BATCH: usize = 256;
/// Pages that are taken out of address spaces at once.
const MAPPED: usize = 1024;
/// Pages that are read at once: those that follow in the file and in the store.
const READ_PAGES: usize = 16;

/// Pages that came to memory, oldest first: number of the object and index. Some are not there any
/// more, and one that went and came again is here twice. What a wake brought is not.
static IN_MEMORY: Mutex<VecDeque<(u64, u64)>> = mutex(VecDeque::new());

/// There is, or was, a file system on disk.
static IS_ANY: AtomicBool = AtomicBool::new(false);

/// The list is not looked through before it is this long.
static LOOK_AT: AtomicUsize = AtomicUsize::new(0);

/// There is a file system on disk.
pub(super) fn begin() {
    IS_ANY.store(true, Relaxed);
}

/// A page is in memory. One for which there is no place in the list stays there.
pub(super) fn note(object: u64, index: u64) {
    let mut pages = IN_MEMORY.lock();
    if pages.try_reserve(1).is_ok() {
        pages.push_back((object, index));
    }
}

/// All pages of objects are in the store, or unseen, and noted when the object is used: nothing of
/// the list is needed.
pub fn forget_list() {
    let list = core::mem::take(&mut *IN_MEMORY.lock());
    drop(list);
    LOOK_AT.store(0, Relaxed);
}

/// How many may be in memory.
fn most() -> usize {
    (account::memory_bytes() / PAGE_SIZE / SHARE).clamp(LEAST_PAGES, MOST_PAGES) as usize
}

/// Makes room for one more, if there are as many as may be. ENOSPC when the store is full, EIO.
pub(super) fn make_room() -> Result {
    if IN_MEMORY.lock().len() < most().max(LOOK_AT.load(Relaxed)) {
        return Ok(());
    }
    // Where all that is looked at is mapped, the next look waits until some more are there.
    let is_in_vain = write_some(2 * BATCH)? == 0;
    let len = IN_MEMORY.lock().len();
    LOOK_AT.store(if is_in_vain { len + BATCH } else { 0 }, Relaxed);
    Ok(())
}

/// Writes all out that can be, as memory is used up. True if that gave something back, or the
/// system call or fault of the current thread has [`crate::task::lost`] to take some out of address
/// spaces, so that it would the next time.
pub fn write_out() -> bool {
    write_unmapped() || !kept::is_any() && take_from_mappers()
}

/// Writes all out that nobody has mapped: whether there were some.
pub(super) fn write_unmapped() -> bool {
    if write_all() {
        return true;
    }
    // What a wake brought is in the list when it is used, and not if that is by an entry of old.
    list_all();
    write_all()
}

fn write_all() -> bool {
    let (len, mut looked, mut written) = (IN_MEMORY.lock().len(), 0, 0);
    while looked < len {
        // What the store does not take is the next writer's error.
        let Ok(some) = write_some(2 * BATCH) else { break };
        looked += 2 * BATCH;
        written += some;
    }
    let mut list = IN_MEMORY.lock();
    let len = list.len();
    list.shrink_to(2 * len);
    LOOK_AT.store(0, Relaxed);
    written > 0
}

/// Makes the list anew.
fn list_all() {
    if !IS_ANY.load(Relaxed) || !may_write() {
        return;
    }
    forget_list();
    let mut next = 0;
    while let Some((number, object)) = object_from(next) {
        next = number + 1;
        if !object.is_on_disk() {
            continue;
        }
        let mut from = Some(0);
        while let Some(first) = from {
            let pages: Vec<(u64, Page)> =
                object.inner.lock().pages.from(first).take(BATCH).collect();
            let is_in_memory = |page: &&(u64, Page)| matches!(page.1, Page::Frame(..));
            pages.iter().filter(is_in_memory).for_each(|(index, _)| note(number, *index));
            from = pages.last().filter(|_| pages.len() == BATCH).map(|(index, _)| index + 1);
        }
    }
}

/// True if pages may leave: not asleep, or about to be, for frames are spoken for then; and not
/// while an image is written, whose pages have their places behind all other slots.
fn may_write() -> bool {
    !pause::is_paused() && !kept::is_any()
}

/// A page that is in memory.
struct Place {
    object: Arc<Shmem>,
    index: u64,
    frame: Gpa,
    is_mapped: bool,
}

/// Writes the oldest out, of which it looks at so many: how many it has written.
fn write_some(looks: usize) -> Result<usize> {
    if !may_write() {
        return Ok(0);
    }
    let mut some: Vec<Place> = Vec::with_capacity(BATCH);
    for _ in 0..looks {
        match oldest() {
            Some(page) if page.is_mapped => note(page.object.number, page.index),
            Some(page) => some.push(page),
            None => {}
        }
        if some.len() == BATCH {
            break;
        }
    }
    let frames: Vec<Gpa> = some.iter().map(|page| page.frame).collect();
    match swap::write_soon(&frames) {
        Ok(numbers) => {
            for (page, slot) in some.iter().zip(numbers) {
                page.object.has_left(page.index, page.frame, slot);
            }
            slots::give_back();
            Ok(some.len())
        }
        Err(error) => {
            some.iter().for_each(|page| note(page.object.number, page.index));
            Err(if error == Errno::EDQUOT { Errno::ENOSPC } else { error })
        }
    }
}

/// The oldest of the list, which is taken from it; `None` if that is not in memory any more.
fn oldest() -> Option<Place> {
    let (number, index) = IN_MEMORY.lock().pop_front()?;
    let object = OBJECTS.lock().get(&number).and_then(Weak::upgrade)?;
    let page = object.inner.lock().pages.get(index)?;
    let Page::Frame(frame, _) = page else { return None };
    Some(Place { object, index, frame, is_mapped: frames::user().ref_count(frame) > 1 })
}

/// Has the oldest that are mapped taken out of address spaces before the current thread goes on: a
/// fault brings those back that are used. Whether there are some.
fn take_from_mappers() -> bool {
    if current::get().is_none() {
        return false;
    }
    let mut rows: Vec<Lost> = Vec::new();
    let looks = IN_MEMORY.lock().len().min(MAPPED);
    for _ in 0..looks {
        let Some(Place { object, index, frame, .. }) = oldest() else { continue };
        note(object.number, index);
        // The object has one of its own, and so has who goes by the list.
        if frames::user().ref_inc(frame).is_err() {
            continue;
        }
        match rows.last_mut() {
            Some(Lost { object: last, pages, frames: Some(frames) })
                if last.identity() == object.identity() && pages.end == index =>
            {
                pages.end += 1;
                frames.push(frame);
            }
            _ => rows.push(Lost {
                object,
                pages: index..index + 1,
                frames: Some(alloc::vec![frame]),
            }),
        }
    }
    let are_some = !rows.is_empty();
    for mut row in rows {
        row.frames.iter_mut().for_each(|frames| frames.sort_unstable());
        lost::note(row);
    }
    are_some
}

impl Shmem {
    /// The page at `index` is in `slot` and no more in `frame`, unless that has changed.
    fn has_left(&self, index: u64, frame: Gpa, slot: u64) {
        let mut inner = self.inner.lock();
        match inner.pages.get(index) {
            Some(Page::Frame(now, usage)) if now == frame => {
                inner.pages.insert(index, Page::Swapped(slot, usage));
                drop(inner);
                frames::user().ref_dec(frame);
            }
            _ => {
                drop(inner);
                slots::drop_ref(slot);
            }
        }
    }

    /// Brings the page at `index` back, which is in `slot`, and those that follow it there and in
    /// the file, if it is read in its order: its frame. ENOMEM.
    pub(super) fn bring_in(&self, index: u64, slot: u64) -> Result<Gpa> {
        // If there is none, that is the next writer's error.
        let _ = make_room();
        let mut row = self.row_from(index, slot);
        if row.len() < 2 || ahead::read(&mut row, self.quota.stay()).is_err() {
            // One there may be.
            return swap::swap_in(slot, self.quota.stay());
        }
        let Some((first, rest)) = row.split_first() else { return Err(Errno::ENOMEM) };
        for page in rest {
            self.put(page.at, Page::Frame(page.frame, Usage::USED));
            slots::drop_ref(page.slot);
        }
        slots::drop_ref(first.slot);
        Ok(first.frame)
    }

    /// The page at `index`, which is in `slot`, and those behind it that are to come with it; none
    /// if it comes alone.
    fn row_from(&self, index: u64, slot: u64) -> Vec<Coming> {
        let mut row: Vec<Coming> = Vec::new();
        let inner = self.inner.lock();
        let is_in_order = index == 0 || matches!(inner.pages.get(index - 1), Some(Page::Frame(..)));
        // The slot of a page of zeros is none, and has no neighbours.
        if !is_in_order || slot == slots::ZERO {
            return row;
        }
        for (place, (at, page)) in (0..).zip(inner.pages.from(index).take(READ_PAGES)) {
            let Page::Swapped(there, _) = page else { break };
            if (at, there) != (index + place, slot + place) {
                break;
            }
            let Some(coming) = Coming::new(at, there) else { break };
            row.push(coming);
        }
        row
    }
}

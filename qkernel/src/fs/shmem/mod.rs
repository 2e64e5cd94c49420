//! Memory objects: the content of tmpfs files, of memfd_create(2) and of shared anonymous memory.
//! Sparse, made of guest frames, each with one reference of the object's own. Those of files that
//! lie [on the host's disk](pageout) leave for the swap file while the container runs.

mod pageout;
mod pages;

pub use pageout::{forget_list, write_out};

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use qlib::bitmap::Stay;
use qlib::blocks::BLOCK_SIZE;
use qlib::{Gpa, PAGE_SHIFT, PAGE_SIZE};

use self::pages::PageList;
use super::memfd;
use crate::account;
use crate::arch::{self, heap};
use crate::errno::{Errno, Result};
use crate::io::IoBuffer;
use crate::mm::frames;
use crate::mm::mapped::{MappedFile, MappedPage};
use crate::mm::reclaim;
use crate::mm::rmap::Lost;
use crate::mm::swap::ahead::{self, Brought, Coming};
use crate::mm::swap::{self, Usage, slots};
use crate::pieces::Pieces;
use crate::sync::{Mutex, mutex};
use crate::task::lost;

/// Pages that are looked at, or given up, at a time.
const PIECE: usize = 512;

/// The longest object, in bytes.
pub const MAX_BYTES: u64 = i64::MAX as u64 & !(PAGE_SIZE - 1);

/// How many pages a file system's objects may have together.
#[derive(Debug)]
pub struct Quota {
    limit_pages: AtomicU64,
    used_pages: AtomicU64,
    kind: Kind,
}

/// What becomes of the pages of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// They go with the process that made them.
    Passing,
    /// They outlive it, in memory: there is a limit for all of these together.
    Lasting,
    /// They outlive it, and need not be in memory.
    OnDisk,
}

/// One block in this many may have pages that outlive processes among others.
const FEW_SHARE: u64 = 8;

/// Pages of objects that outlive processes.
static LASTING_PAGES: AtomicU64 = AtomicU64::new(0);

impl Quota {
    /// At most `limit_pages`.
    pub fn new(limit_pages: u64) -> Arc<Self> {
        Self::of(Kind::Passing, limit_pages)
    }

    /// As [`Quota::new`], for what outlives the process that makes it: there is a limit for all of
    /// that together.
    pub fn lasting(limit_pages: u64) -> Arc<Self> {
        Self::of(Kind::Lasting, limit_pages)
    }

    /// As [`Quota::new`], for what goes to the swap file when it is not used.
    pub fn on_disk(limit_pages: u64) -> Arc<Self> {
        pageout::begin();
        Self::of(Kind::OnDisk, limit_pages)
    }

    fn of(kind: Kind, limit_pages: u64) -> Arc<Self> {
        let (limit_pages, used_pages) = (AtomicU64::new(limit_pages), AtomicU64::new(0));
        Arc::new(Quota { limit_pages, used_pages, kind })
    }

    /// Limit and use, in pages.
    pub fn state(&self) -> (u64, u64) {
        (self.limit_pages.load(Ordering::Relaxed), self.used_pages.load(Ordering::Relaxed))
    }

    /// Changes the limit (remount).
    pub fn set_limit(&self, pages: u64) {
        self.limit_pages.store(pages, Ordering::Relaxed);
    }

    /// Takes one page; how long its frame will be in use.
    fn take(&self) -> Result<Stay> {
        let (limit, used) = self.state();
        if used >= limit {
            return Err(Errno::ENOSPC);
        }
        if self.kind == Kind::Lasting {
            let lasting = LASTING_PAGES.load(Ordering::Relaxed);
            let most = account::max_lasting_pages();
            if lasting >= most {
                return Err(Errno::ENOSPC);
            }
            LASTING_PAGES.store(lasting + 1, Ordering::Relaxed);
        }
        self.used_pages.store(used + 1, Ordering::Relaxed);
        Ok(self.stay())
    }

    /// How long the frame of one of its pages is in use.
    fn stay(&self) -> Stay {
        // A few are not worth a block of their own; each may lie in another one.
        let few = account::memory_bytes() / BLOCK_SIZE / FEW_SHARE;
        match self.kind == Kind::Lasting && LASTING_PAGES.load(Ordering::Relaxed) > few {
            true => Stay::Lasting,
            false => Stay::Passing,
        }
    }

    fn give(&self, pages: u64) {
        self.used_pages.fetch_sub(pages, Ordering::Relaxed);
        if self.kind == Kind::Lasting {
            LASTING_PAGES.fetch_sub(pages, Ordering::Relaxed);
        }
    }
}

/// Where a page of an object is, with a reference of the object's own, and what is known of its
/// use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// In a frame.
    Frame(Gpa, Usage),
    /// In a slot of the swap file.
    Swapped(u64, Usage),
}

struct Inner {
    size: u64,
    pages: PageList,
}

/// A memory object.
pub struct Shmem {
    /// Its place among [`OBJECTS`].
    number: u64,
    inner: Mutex<Inner>,
    quota: Arc<Quota>,
    /// F_SEAL_* of memfd_create(2)'s files; F_SEAL_SEAL for all others.
    seals: AtomicU32,
}

/// All objects, by number. Not a list in one piece: a program may make very many, of no page each.
static OBJECTS: Mutex<BTreeMap<u64, Weak<Shmem>>> = mutex(BTreeMap::new());
static NEXT_OBJECT: AtomicU64 = AtomicU64::new(0);

impl Shmem {
    /// An object of `size` bytes that read as zeros.
    pub fn new(size: u64, quota: Arc<Quota>) -> Arc<Self> {
        let number = NEXT_OBJECT.fetch_add(1, Ordering::Relaxed);
        let object = Arc::new(Shmem {
            number,
            inner: Mutex::new(Inner { size, pages: PageList::default() }),
            quota,
            seals: AtomicU32::new(memfd::SEAL_SEAL),
        });
        OBJECTS.lock().insert(number, Arc::downgrade(&object));
        object
    }

    /// Its F_SEAL_* bits.
    pub fn seals(&self) -> u32 {
        self.seals.load(Ordering::Relaxed)
    }

    /// Replaces its seals.
    pub fn set_seals(&self, seals: u32) {
        self.seals.store(seals, Ordering::Relaxed);
    }

    /// EPERM if a seal forbids a write up to byte `end`.
    fn check_write_seals(&self, end: u64) -> Result {
        let seals = self.seals();
        let grows = end > self.size();
        if seals & (memfd::SEAL_WRITE | memfd::SEAL_FUTURE_WRITE) != 0
            || seals & memfd::SEAL_GROW != 0 && grows
        {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.inner.lock().size
    }

    /// How many pages it has.
    pub fn page_count(&self) -> u64 {
        self.inner.lock().pages.len()
    }

    /// Bytes of memory that its end would give back.
    pub fn held_bytes(&self) -> u64 {
        // What can be written out does not wait for that.
        if self.is_on_disk() { 0 } else { self.page_count() * PAGE_SIZE }
    }

    fn is_on_disk(&self) -> bool {
        self.quota.kind == Kind::OnDisk
    }

    /// Notes where a page is from now on.
    fn put(&self, index: u64, page: Page) {
        self.inner.lock().pages.insert(index, page);
        if self.is_on_disk() && matches!(page, Page::Frame(..)) {
            pageout::note(self.number, index);
        }
    }

    /// The frame of page `index`, brought in from the swap file if it is there; `None` for a hole.
    fn present(&self, index: u64) -> Result<Option<Gpa>> {
        let page = self.inner.lock().pages.get(index);
        match page {
            None => Ok(None),
            Some(Page::Frame(gpa, usage)) => {
                if usage.is_unseen() {
                    self.put(index, Page::Frame(gpa, usage.seen()));
                }
                Ok(Some(gpa))
            }
            Some(Page::Swapped(slot, usage)) => {
                let gpa = match self.is_on_disk() {
                    true => self.with_room(|| self.bring_in(index, slot))?,
                    false => swap::swap_in(slot, self.quota.stay())?,
                };
                self.put(index, Page::Frame(gpa, usage.seen()));
                Ok(Some(gpa))
            }
        }
    }

    /// The frame of page `index`, made if it is a hole.
    fn make(&self, index: u64) -> Result<Gpa> {
        if let Some(gpa) = self.present(index)? {
            return Ok(gpa);
        }
        if self.is_on_disk() {
            pageout::make_room()?;
            if heap::is_low() {
                return Err(Errno::ENOSPC);
            }
        } else if heap::is_low() {
            return Err(Errno::ENOMEM);
        }
        let stay = self.quota.take()?;
        let made = self.with_room(|| frames::alloc_zeroed_for(stay));
        let gpa = made.inspect_err(|_| self.quota.give(1))?;
        self.pay(index).inspect_err(|_| {
            frames::user().ref_dec(gpa);
            self.quota.give(1);
        })?;
        self.put(index, Page::Frame(gpa, Usage::USED));
        Ok(gpa)
    }

    /// Pays for the books of a new page at `index` that need not be in memory. ENOSPC.
    fn pay(&self, index: u64) -> Result {
        if self.is_on_disk() { self.inner.lock().pages.pay(index) } else { Ok(()) }
    }

    /// What `alloc` gives, for a file on disk after others were written out, if need be. ENOMEM.
    fn with_room(&self, alloc: impl Fn() -> Result<Gpa>) -> Result<Gpa> {
        match alloc() {
            Err(Errno::ENOMEM) if self.is_on_disk() && pageout::write_unmapped() => alloc(),
            result => result,
        }
    }

    /// Has a page of zeros at `index` if there is a hole, without a frame.
    fn make_empty(&self, index: u64) -> Result {
        let is_there = self.inner.lock().pages.get(index).is_some();
        if is_there {
            return Ok(());
        }
        if heap::is_low() {
            return Err(Errno::ENOSPC);
        }
        self.quota.take()?;
        self.pay(index).inspect_err(|_| self.quota.give(1))?;
        self.put(index, Page::Swapped(slots::ZERO, Usage::USED));
        Ok(())
    }

    /// The 32-bit word at byte `offset` (aligned), for what the kernel shares with programs: valid
    /// until something is waited for. EFAULT, ENOMEM.
    pub fn word(&self, offset: u64) -> Result<&'static AtomicU32> {
        let page = self.make(offset >> PAGE_SHIFT)?;
        arch::phys().atomic_u32(page + offset % PAGE_SIZE).ok_or(Errno::EFAULT)
    }

    /// What a transfer says that found no frame: those of files on disk wait until some are
    /// written out.
    fn wants_room(&self, error: Errno) -> Errno {
        if error != Errno::ENOMEM || !self.is_on_disk() {
            return error;
        }
        reclaim::note_short();
        Errno::ERESTARTNOMEM
    }

    /// Copies out of the object into `buffer`.
    pub fn read(&self, buffer: &mut IoBuffer<'_>, offset: u64) -> Result<usize> {
        let end = offset.saturating_add(buffer.remaining() as u64).min(self.size());
        let (mut at, mut bytes) = (offset, Vec::new());
        while at < end {
            let len = (PAGE_SIZE - at % PAGE_SIZE).min(end - at) as usize;
            let page = self.present(at >> PAGE_SHIFT).map_err(|e| self.wants_room(e));
            let stored = page.and_then(|page| match page {
                None => buffer.put_zeros(len),
                Some(gpa) => {
                    bytes.resize(len, 0);
                    arch::copy_from_gpa(&mut bytes, gpa + at % PAGE_SIZE)?;
                    buffer.put(&bytes)
                }
            });
            match stored {
                Ok(stored) => {
                    at += stored as u64;
                    if stored < len {
                        break;
                    }
                }
                Err(error) if at == offset => return Err(error),
                Err(_) => break,
            }
        }
        Ok(at.saturating_sub(offset) as usize)
    }

    /// Copies `buffer` into the object, which grows as needed.
    pub fn write(&self, buffer: &mut IoBuffer<'_>, offset: u64) -> Result<usize> {
        let end = offset
            .checked_add(buffer.remaining() as u64)
            .filter(|e| *e <= MAX_BYTES)
            .ok_or(Errno::EFBIG)?;
        self.check_write_seals(end)?;
        let (mut at, mut bytes) = (offset, Vec::new());
        while at < end {
            let len = (PAGE_SIZE - at % PAGE_SIZE).min(end - at) as usize;
            bytes.resize(len, 0);
            let before = buffer.done();
            let step = buffer.take(&mut bytes).and_then(|taken| {
                let made = self.make(at >> PAGE_SHIFT).map_err(|e| self.wants_room(e));
                let gpa = made.inspect_err(|_| buffer.rewind(before))?;
                arch::copy_to_gpa(gpa + at % PAGE_SIZE, &bytes[..taken])?;
                Ok(taken)
            });
            match step {
                Ok(taken) => {
                    at += taken as u64;
                    if taken < len {
                        break;
                    }
                }
                Err(error) if at == offset => return Err(error),
                Err(_) => break,
            }
        }
        let mut inner = self.inner.lock();
        inner.size = inner.size.max(at);
        Ok((at - offset) as usize)
    }

    /// Sets the size in bytes; what lies behind it is freed.
    pub fn truncate(self: &Arc<Self>, size: u64) -> Result {
        if size > MAX_BYTES {
            return Err(Errno::EFBIG);
        }
        let (seals, now) = (self.seals(), self.size());
        if seals & memfd::SEAL_SHRINK != 0 && size < now
            || seals & memfd::SEAL_GROW != 0 && size > now
        {
            return Err(Errno::EPERM);
        }
        if size < now {
            // All that can fail comes first: nothing of what was behind the end comes back.
            self.zero_part(size, PAGE_SIZE - size % PAGE_SIZE)?;
        }
        self.inner.lock().size = size;
        if size < now {
            let first = size.div_ceil(PAGE_SIZE);
            self.remove(first, u64::MAX, &mut free);
            self.notify_mappers(first, u64::MAX, None);
        }
        Ok(())
    }

    /// Zeros within one page, if it is there and `from` is not at its start.
    fn zero_part(&self, from: u64, len: u64) -> Result {
        if from.is_multiple_of(PAGE_SIZE) && len >= PAGE_SIZE {
            return Ok(());
        }
        if let Some(gpa) = self.present(from >> PAGE_SHIFT).map_err(|e| self.wants_room(e))? {
            let len = len.min(PAGE_SIZE - from % PAGE_SIZE);
            arch::copy_to_gpa(gpa + from % PAGE_SIZE, &alloc::vec![0; len as usize])?;
        }
        Ok(())
    }

    /// Takes the pages `first..end` out of the object, piece by piece, as this is done when memory
    /// is short: their references are `take`'s.
    fn remove(&self, first: u64, end: u64, take: &mut dyn FnMut(Page)) {
        loop {
            let piece: Vec<(u64, Page)> = {
                let mut inner = self.inner.lock();
                let here = inner.pages.from(first).take_while(|(index, _)| *index < end);
                let piece: Vec<(u64, Page)> = here.take(PIECE).collect();
                for (index, _) in &piece {
                    inner.pages.remove(*index);
                }
                piece
            };
            self.quota.give(piece.len() as u64);
            let is_last = piece.len() < PIECE;
            piece.into_iter().for_each(|(_, page)| take(page));
            if is_last {
                return;
            }
        }
    }

    /// FALLOC_FL_PUNCH_HOLE: the range reads as zeros.
    pub fn punch(self: &Arc<Self>, offset: u64, len: u64) -> Result {
        let end = offset.saturating_add(len);
        self.check_write_seals(0)?;
        let (first, last) = (offset.div_ceil(PAGE_SIZE), end / PAGE_SIZE);
        if first > last {
            return self.zero_part(offset, len);
        }
        if !offset.is_multiple_of(PAGE_SIZE) {
            self.zero_part(offset, PAGE_SIZE)?;
        }
        if !end.is_multiple_of(PAGE_SIZE) {
            self.zero_part(end - end % PAGE_SIZE, end % PAGE_SIZE)?;
        }
        if !self.is_mapped() {
            self.remove(first, last, &mut free);
            return Ok(());
        }
        // Held until no private mapping shows them any more.
        let most = last.saturating_sub(first).min(self.page_count());
        account::ask_for::<Gpa>(2 * usize::try_from(most).unwrap_or(usize::MAX / 2))?;
        let mut frames: Vec<Gpa> = Vec::new();
        self.remove(first, last, &mut |page| match page {
            Page::Frame(gpa, _) => frames.push(gpa),
            swapped => free(swapped),
        });
        frames.sort_unstable();
        self.notify_mappers(first, last, Some(frames));
        Ok(())
    }

    /// True if an address space may have it mapped: the inode has one reference; each mapping
    /// another.
    fn is_mapped(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 1
    }

    /// Has the pages `first..end`, which the object has lost, taken out of the address spaces that
    /// map them: the next touch asks again.
    fn notify_mappers(self: &Arc<Self>, first: u64, end: u64, frames: Option<Vec<Gpa>>) {
        if self.is_mapped() && first < end {
            lost::note(Lost { object: self.clone(), pages: first..end, frames });
        }
    }

    /// fallocate(2): makes the pages of the range; the size grows to its end if `grow`.
    pub fn reserve(&self, offset: u64, len: u64, grow: bool) -> Result {
        let end = offset.checked_add(len).filter(|e| *e <= MAX_BYTES).ok_or(Errno::EFBIG)?;
        if grow && end > self.size() && self.seals() & memfd::SEAL_GROW != 0 {
            return Err(Errno::EPERM);
        }
        let (limit, used) = self.quota.state();
        if (len >> PAGE_SHIFT) > limit.saturating_sub(used).saturating_add(self.page_count()) {
            return Err(Errno::ENOSPC);
        }
        for index in offset / PAGE_SIZE..end.div_ceil(PAGE_SIZE) {
            match self.is_on_disk() {
                true => self.make_empty(index)?,
                false => self.make(index).map(|_| ())?,
            }
        }
        if grow {
            let mut inner = self.inner.lock();
            inner.size = inner.size.max(end);
        }
        Ok(())
    }

    /// lseek(2) with SEEK_DATA or SEEK_HOLE.
    pub fn seek_data(&self, offset: u64, data: bool) -> Result<u64> {
        let inner = self.inner.lock();
        if offset >= inner.size {
            return Err(Errno::ENXIO);
        }
        let mut index = offset / PAGE_SIZE;
        if data {
            let (next, _) = inner.pages.from(index).next().ok_or(Errno::ENXIO)?;
            let at = (next * PAGE_SIZE).max(offset);
            return if at < inner.size { Ok(at) } else { Err(Errno::ENXIO) };
        }
        for (page, _) in inner.pages.from(index) {
            if page != index {
                break;
            }
            index += 1;
        }
        Ok((index * PAGE_SIZE).max(offset).min(inner.size))
    }

    /// Brings the next swapped pages from page `from` on back ahead of use. What is on disk is
    /// where it is to be. ENOMEM.
    pub fn bring_ahead(&self, from: u64) -> Result<Brought> {
        if self.is_on_disk() {
            return Ok(Brought::default());
        }
        let (mut coming, mut next): (Vec<Coming>, Option<u64>) = (Vec::new(), None);
        for (looks, (index, page)) in self.inner.lock().pages.from(from).enumerate() {
            if coming.len() == ahead::MOST || looks == ahead::MOST_LOOKS {
                next = Some(index);
                break;
            }
            if let Page::Swapped(slot, _) = page {
                coming.extend(Coming::new(index, slot));
            }
        }
        ahead::read(&mut coming, self.quota.stay())?;
        for page in &coming {
            let mut inner = self.inner.lock();
            if let Some(Page::Swapped(_, usage)) = inner.pages.get(page.at) {
                inner.pages.insert(page.at, Page::Frame(page.frame, usage.ahead()));
            }
            drop(inner);
            slots::drop_ref(page.slot);
        }
        Ok(Brought { pages: coming.len() as u64, next })
    }

    /// Visits the pages that are in memory. Those for which `keep(frame, usage)` is false, as they
    /// hold nothing but zeros, become holes.
    pub fn visit_frames(&self, keep: &mut dyn FnMut(Gpa, Usage) -> bool) {
        let mut from = 0;
        loop {
            let piece: Vec<(u64, Page)> = self.inner.lock().pages.from(from).take(PIECE).collect();
            for (index, page) in &piece {
                if let Page::Frame(gpa, usage) = page
                    && !keep(*gpa, *usage)
                {
                    self.remove(*index, *index + 1, &mut free);
                }
            }
            match piece.last() {
                Some((last, _)) if piece.len() == PIECE => from = last + 1,
                _ => return,
            }
        }
    }

    /// Puts the pages that are in memory to other places, where `place(frame)` says one; it answers
    /// for the references of both.
    pub fn move_frames(&self, place: &mut dyn FnMut(Gpa) -> Option<Page>) {
        self.inner.lock().pages.replace(&mut |page| match page {
            Page::Frame(gpa, _) => place(gpa),
            Page::Swapped(..) => None,
        });
    }
}

fn free(page: Page) {
    match page {
        Page::Frame(gpa, _) => {
            frames::user().ref_dec(gpa);
        }
        Page::Swapped(slot, _) => slots::drop_ref(slot),
    }
}

impl Drop for Shmem {
    fn drop(&mut self) {
        let place = OBJECTS.lock().remove(&self.number);
        drop(place);
        let pages = &mut self.inner.get_mut().pages;
        self.quota.give(pages.len());
        pages.drain().for_each(free);
    }
}

impl MappedFile for Shmem {
    fn punch_hole(self: Arc<Self>, offset: u64, length: u64) -> Result {
        self.punch(offset, length)
    }

    fn residency(&self, first: u64, last: u64) -> Option<(u64, u64)> {
        let inner = self.inner.lock();
        let (mut in_memory, mut in_store) = (0, 0);
        for (_, page) in inner.pages.from(first).take_while(|(index, _)| *index <= last) {
            match page {
                Page::Frame(..) => in_memory += 1,
                Page::Swapped(..) => in_store += 1,
            }
        }
        Some((in_memory, in_store))
    }

    fn page(&self, index: u64, _write: bool) -> Result<MappedPage> {
        if index >= self.size().div_ceil(PAGE_SIZE) {
            return Err(Errno::EFAULT);
        }
        let gpa =
            self.make(index).map_err(|e| if e == Errno::ENOSPC { Errno::EFAULT } else { e })?;
        frames::user().ref_inc(gpa).map_err(|_| Errno::ENOMEM)?;
        Ok(MappedPage::Frame(gpa))
    }

    fn frames_in_use(&self, first: u64, frames: &mut [Option<Gpa>]) {
        let end = first.saturating_add(frames.len() as u64);
        let inner = self.inner.lock();
        for (index, page) in inner.pages.from(first).take_while(|(index, _)| *index < end) {
            // Of one that was prefetched a fault is to tell whether it is used.
            if let Page::Frame(gpa, usage) = page
                && !usage.is_unseen()
                && let Some(frame) = frames.get_mut((index - first) as usize)
            {
                *frame = Some(gpa);
            }
        }
    }
}

/// Memory that processes share: `size` bytes of zeros, for mmap(2) with MAP_SHARED | MAP_ANONYMOUS.
pub fn shared_memory(size: u64) -> Result<Arc<dyn MappedFile>> {
    if size > MAX_BYTES {
        return Err(Errno::ENOMEM);
    }
    Ok(Shmem::new(size, Quota::new(u64::MAX)))
}

/// All memory objects, for hibernation. ENOMEM.
pub fn memory_objects() -> Result<Pieces<Arc<Shmem>>> {
    let mut all = Pieces::new();
    let mut next = 0;
    while let Some((number, object)) = object_from(next) {
        all.push(object)?;
        next = number + 1;
    }
    Ok(all)
}

/// The first object that lives, from this number on. One at a time: letting one go may be its end,
/// which must not come while the list is held.
pub fn object_from(number: u64) -> Option<(u64, Arc<Shmem>)> {
    OBJECTS.lock().range(number..).find_map(|(number, object)| Some((*number, object.upgrade()?)))
}

/// Pages of all memory objects that are in memory (the "Shmem" of /proc/meminfo).
pub fn resident_pages() -> u64 {
    let count = |o: &Arc<Shmem>| {
        o.inner.lock().pages.from(0).filter(|(_, p)| matches!(p, Page::Frame(..))).count() as u64
    };
    let (mut next, mut pages) = (0, 0);
    while let Some((number, object)) = object_from(next) {
        pages += count(&object);
        next = number + 1;
    }
    pages
}

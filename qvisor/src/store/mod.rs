//! The store of one sandbox: the swap file and the REAP file of section 3.4 of the Hibernate
//! Container paper.
//!
//! Both files have no name in any directory, are opened at their first use (or, for a process that
//! gives up the directory, ahead), and vanish with the process, but for those that an image has
//! taken: such layers are read, and written no more ([`Store::adopt`]). Every page has a checksum,
//! keyed with a random seed, its file and its place; the checksums stay in memory (4 bytes a page),
//! so a write that was lost is noticed as well as one that was damaged. An operation that fails
//! leaves the store as it was.
//!
//! The process should ignore SIGXFSZ: a file-size limit is then an error like a full disk.

mod file;
pub mod kept;
pub mod populate;
mod slots;
mod sums;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use qlib::host::{MAX_SWAP_IN_PAGES, Segment};
use qlib::{Gpa, PAGE_SIZE};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use self::file::{Cursor, HiddenFile, Pool};
use self::kept::Kept;
use self::slots::Slots;

use crate::sys::ordered::{Mutex, MutexGuard, place};

const PAGE: usize = PAGE_SIZE as usize;
/// Bytes moved, and then checksummed while they are in the CPU's cache, at a time.
const BATCH_BYTES: u64 = 1 << 20;
/// The directory in which stores keep their files.
pub const STORE_DIR: &str = "/var/tmp";
/// No store has more slots.
const MAX_SLOTS: u64 = 1 << 32;
/// After so many slots have been freed disk space is given back.
const MAX_FREED: u64 = 1024;

/// Guest memory, as the store reaches it. Ranges that are not guest memory give EFAULT.
pub trait PageMemory {
    /// pwritev(2) of `from` to `file` at `offset`; how many bytes were written.
    fn write_out(&self, from: &[Segment], file: BorrowedFd<'_>, offset: u64) -> io::Result<usize>;
    /// preadv(2) of `file` at `offset` into `to`; how many bytes were read.
    fn read_in(&self, to: &[Segment], file: BorrowedFd<'_>, offset: u64) -> io::Result<usize>;
    /// Copies bytes out of guest memory.
    fn copy_out(&self, from: Gpa, to: &mut [u8]) -> io::Result<()>;
    /// Copies bytes into guest memory.
    fn copy_in(&self, to: Gpa, from: &[u8]) -> io::Result<()>;
    /// Commits the memory of `ranges`, all of which is about to be filled: see [`populate`]. Only a
    /// hint.
    fn populate(&self, ranges: &[Segment]) {
        let _ = ranges;
    }
}

/// Why the store could not do something.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// More than the sandbox may store.
    #[error(
        "the store quota of {quota_bytes} bytes is used up: raise it, or give the container less \
        memory"
    )]
    Quota {
        /// The quota in bytes.
        quota_bytes: u64,
    },
    /// The file system of the store is full.
    #[error("no space for the store: {0}; free some, or put the store on another file system")]
    NoSpace(io::Error),
    /// A page is not what was stored.
    #[error("page {page} of the {file} file is damaged")]
    Damaged {
        /// "swap" or "REAP".
        file: &'static str,
        /// Slot, or index of the page.
        page: u64,
    },
    /// A range is not page aligned, a slot is not in use, or the order of calls is wrong.
    #[error("bad request to the store: {0}")]
    BadRequest(&'static str),
    /// The host failed.
    #[error("the store failed: {0}")]
    Io(io::Error),
}

impl StoreError {
    /// The Linux errno that the guest is told.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Quota { .. } => libc::EDQUOT,
            Self::NoSpace(_) => libc::ENOSPC,
            Self::Damaged { .. } => libc::EBADMSG,
            Self::BadRequest(_) => libc::EINVAL,
            Self::Io(e) if e.raw_os_error() == Some(libc::EFAULT) => libc::EFAULT,
            Self::Io(e) if e.raw_os_error() == Some(libc::EROFS) => libc::EROFS,
            Self::Io(_) => libc::EIO,
        }
    }
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => Self::NoSpace(error),
            _ => Self::Io(error),
        }
    }
}

/// The store's result.
pub type Result<T> = std::result::Result<T, StoreError>;

/// Empty files for the store of a sandbox, which can make none itself.
///
/// # Errors
/// Those of making files in its directory.
pub fn fresh_files() -> anyhow::Result<[File; FILES]> {
    let files: Vec<File> = (0..FILES).map(|_| fresh_file()).collect::<anyhow::Result<_>>()?;
    <[File; FILES]>::try_from(files).map_err(|_| anyhow::anyhow!("files are missing"))
}

/// An empty file without a name, where stores have theirs.
///
/// # Errors
/// Those of making it.
pub fn fresh_file() -> anyhow::Result<File> {
    let dir = File::open(STORE_DIR).with_context(|| format!("opening {STORE_DIR}"))?;
    let file = HiddenFile::create_file(dir.as_fd());
    file.with_context(|| format!("making a file in {STORE_DIR}"))
}

/// What the store holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStat {
    /// Pages in the swap file.
    pub swap_pages: u64,
    /// Disk space of the swap file, in bytes.
    pub swap_disk_bytes: u64,
    /// Pages in the REAP file.
    pub reap_pages: u64,
    /// Disk space of the REAP file, in bytes.
    pub reap_disk_bytes: u64,
    /// What the sandbox may store, in bytes.
    pub quota_bytes: u64,
}

/// What a store holds, but for the contents of its files.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Stored {
    /// What the checksums are keyed with.
    pub seed: u64,
    /// Checksums of the slots in use, in runs: the first slot of each.
    #[serde(with = "sums::of_runs")]
    pub swap: Vec<(u64, Vec<u32>)>,
    /// Files that are not written any more, by the slot that follows those in each, lowest first.
    pub layers: Vec<u64>,
    /// There is a file for the slots after those.
    pub own: bool,
    /// Checksums of the REAP file, if there is one.
    #[serde(with = "sums::of_one")]
    pub reap: Option<Vec<u32>>,
}

impl Stored {
    /// Past the last slot in use; `None` if they are in no order, or there are more than any store
    /// has.
    pub fn end(&self) -> Option<u64> {
        self.swap.iter().try_fold(0, |end, (first, sums)| {
            let after = first.checked_add(sums.len() as u64)?;
            (*first >= end && after <= MAX_SLOTS).then_some(after)
        })
    }

    /// The slot after the last of all layers; `None` if they are in no order, or a slot in use is
    /// in none.
    fn layers_end(&self) -> Option<u64> {
        let ends = self.layers.iter().try_fold(0, |end, next| (*next > end).then_some(*next))?;
        self.end().filter(|end| *end <= ends && ends <= MAX_SLOTS).map(|_| ends)
    }
}

/// The store of one sandbox.
#[derive(Debug)]
pub struct Store {
    source: FileSource,
    quota_bytes: AtomicU64,
    seed: AtomicU64,
    inner: Mutex<Inner, place::Store>,
}

/// Where files come from.
#[derive(Debug)]
enum FileSource {
    Dir(OwnedFd),
    Pool(Arc<Pool>),
}

impl FileSource {
    fn file(&self) -> io::Result<HiddenFile> {
        match self {
            FileSource::Dir(dir) => HiddenFile::create(dir.as_fd()),
            FileSource::Pool(pool) => pool.take(),
        }
    }
}

/// Files in use at once: swap, REAP, and the next REAP.
pub const FILES: usize = 3;

#[derive(Debug, Default)]
struct Inner {
    /// The slots below the floor, which others read too, and nobody writes any more. Lowest first.
    layers: Vec<Layer>,
    swap: Option<HiddenFile>,
    /// Places in it that are being written to the disk.
    on_their_way: Vec<Range<u64>>,
    slots: Slots,
    reap: Option<Reap>,
    /// The REAP file that is being written; takes the place of `reap` when it is whole.
    next_reap: Option<Reap>,
    /// What is not written yet of all that.
    kept: Kept,
}

/// A file with slots that are not written any more.
#[derive(Debug)]
struct Layer {
    /// The slot after its last.
    end: u64,
    file: HiddenFile,
}

impl Inner {
    /// What another store held, in these files.
    fn of(stored: &Stored, swap: Vec<Arc<File>>, reap: Arc<File>) -> Result<Inner> {
        let out_of_order = StoreError::BadRequest("slots out of order");
        let Some(end) = stored.layers_end() else { return Err(out_of_order) };
        if stored.layers.len() != swap.len() || stored.own {
            return Err(StoreError::BadRequest("a file of slots is missing"));
        }
        let mut slots = Slots::default();
        for (first, sums) in &stored.swap {
            (*first..).zip(sums).for_each(|(slot, sum)| slots.occupy(slot, *sum));
        }
        slots.keep_below(end);
        let layers = stored.layers.iter().zip(swap);
        let layers = layers.map(|(end, file)| Layer { end: *end, file: HiddenFile::of(file) });
        let sums = stored.reap.clone();
        let reap = sums.map(|sums| Reap { file: HiddenFile::of(reap), sums });
        Ok(Inner { layers: layers.collect(), slots, reap, ..Inner::default() })
    }

    /// Waits for what is on its way to the disk.
    fn settle(&mut self) -> Result<()> {
        for place in std::mem::take(&mut self.on_their_way) {
            self.swap.as_ref().map_or(Ok(()), |file| sync(file, &place))?;
        }
        Ok(())
    }

    /// Reads slots from `slot` on; false when a file ends before.
    fn read_slots(&self, mut slot: u64, mut bytes: &mut [u8]) -> io::Result<bool> {
        while !bytes.is_empty() {
            let layer = self.layers.get(self.layers.partition_point(|layer| layer.end <= slot));
            let here = layer.map_or(u64::MAX, |layer| (layer.end - slot).saturating_mul(PAGE_SIZE));
            let (part, rest) = bytes.split_at_mut(here.min(bytes.len() as u64) as usize);
            let Some(file) = layer.map(|layer| &layer.file).or(self.swap.as_ref()) else {
                return Ok(false);
            };
            if !file.read_exactly(slot * PAGE_SIZE, part)? {
                return Ok(false);
            }
            slot += part.len() as u64 / PAGE_SIZE;
            bytes = rest;
        }
        Ok(true)
    }
}

#[derive(Debug)]
struct Reap {
    file: HiddenFile,
    sums: Vec<u32>,
}

impl Reap {
    fn pages(&self) -> u64 {
        self.sums.len() as u64
    }
}

/// Which file a checksum belongs to, mixed into its key.
#[derive(Clone, Copy)]
enum Kind {
    Swap,
    Reap,
}

impl Store {
    /// A store whose files will lie in the directory `dir`, and take `quota_bytes` bytes at most.
    /// Opens the directory only; it need not be reachable by path later.
    pub fn new(dir: &Path, quota_bytes: u64) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self::in_dir(open(dir, flags, Mode::empty())?, quota_bytes))
    }

    /// As [`Store::new`] in a directory that is open already.
    pub fn in_dir(dir: OwnedFd, quota_bytes: u64) -> Self {
        Self::at(FileSource::Dir(dir), quota_bytes)
    }

    /// As [`Store::in_dir`], with all files opened now, so that nothing else of the directory can
    /// be reached by the store's descriptors. If none can be made there, the first use says so.
    pub fn opened(dir: OwnedFd, quota_bytes: u64) -> Self {
        Self::at(FileSource::Pool(Pool::new(dir.as_fd(), FILES)), quota_bytes)
    }

    fn at(source: FileSource, quota_bytes: u64) -> Self {
        // A hasher's keys come from the host's random generator.
        let seed = AtomicU64::new(RandomState::new().hash_one(0));
        let quota_bytes = AtomicU64::new(quota_bytes);
        Self { source, quota_bytes, seed, inner: Mutex::default() }
    }

    /// The same, holding what another one held: pages that were swapped out lie in `swap`, one file
    /// for each of its layers, and the working set in `reap`. No file is written.
    pub fn again(
        dir: OwnedFd,
        quota_bytes: u64,
        stored: &Stored,
        swap: Vec<Arc<File>>,
        reap: Arc<File>,
    ) -> Result<Self> {
        let inner = Inner::of(stored, swap, reap)?;
        let store = Self::opened(dir, quota_bytes);
        Ok(Self { seed: AtomicU64::new(stored.seed), inner: Mutex::new(inner), ..store })
    }

    /// Holds what another one held from now on, and nothing else, as [`Store::again`].
    pub fn become_again(
        &self,
        stored: &Stored,
        swap: Vec<Arc<File>>,
        reap: Arc<File>,
    ) -> Result<()> {
        let then = Inner::of(stored, swap, reap)?;
        let mut inner = self.lock();
        *inner = then;
        self.seed.store(stored.seed, Ordering::Relaxed);
        Ok(())
    }

    /// What it holds, and the files that there are: layers, the file of other slots, REAP.
    pub fn stored(&self) -> (Stored, Vec<Arc<File>>) {
        let inner = self.lock();
        let reap = inner.reap.as_ref();
        let stored = Stored {
            seed: self.seed(),
            swap: inner.slots.runs(),
            layers: inner.layers.iter().map(|layer| layer.end).collect(),
            own: inner.swap.is_some(),
            reap: reap.map(|reap| reap.sums.clone()),
        };
        let layers = inner.layers.iter().map(|layer| &layer.file);
        let files = layers.chain(&inner.swap).chain(reap.map(|reap| &reap.file));
        (stored, files.map(HiddenFile::file).collect())
    }

    /// Goes on with files that hold the same as its own, which it does not write: `layers` of
    /// slots, each with the slot after its last, and the REAP file, if there is one. Its own are
    /// somebody else's; what it writes next goes to `fresh`, empty files.
    pub fn adopt(
        &self,
        layers: Vec<(u64, File)>,
        reap: Option<File>,
        fresh: [File; FILES],
    ) -> Result<()> {
        let mut inner = self.lock();
        let ends = layers.iter().try_fold(0, |end, (next, _)| (*next > end).then_some(*next));
        let is_all = |end: &u64| !inner.slots.any(*end..inner.slots.end());
        let Some(end) = ends.filter(is_all) else {
            return Err(StoreError::BadRequest("a slot is in none of the files"));
        };
        if reap.is_some() != inner.reap.is_some() {
            return Err(StoreError::BadRequest("the working set is missing"));
        }
        inner.next_reap = None;
        let own_reap = inner.reap.take().zip(reap).map(|(own, file)| {
            own.file.give_up();
            Reap { file: HiddenFile::of(Arc::new(file)), sums: own.sums }
        });
        inner.reap = own_reap;
        inner.swap.take().into_iter().for_each(HiddenFile::give_up);
        inner.on_their_way.clear();
        inner.slots.keep_below(end);
        let layer = |(end, file)| Layer { end, file: HiddenFile::of(Arc::new(file)) };
        inner.layers = layers.into_iter().map(layer).collect();
        if let FileSource::Pool(pool) = &self.source {
            pool.refill(fresh);
        }
        Ok(())
    }

    fn seed(&self) -> u64 {
        self.seed.load(Ordering::Relaxed)
    }

    /// Lets it take so many bytes, if that is more than it may now.
    pub fn raise_quota(&self, quota_bytes: u64) {
        self.quota_bytes.fetch_max(quota_bytes, Ordering::Relaxed);
    }

    /// Lets it take so many bytes more than it may now.
    pub fn raise_quota_by(&self, bytes: u64) {
        let more = |quota: u64| Some(quota.saturating_add(bytes));
        let _ = self.quota_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Writes the pages of `ranges` to the swap file; one slot number for each page, in order. The
    /// bytes have left for the disk, and no error was seen, when this returns.
    pub fn swap_out(&self, memory: &impl PageMemory, ranges: &[Segment]) -> Result<Vec<u64>> {
        self.put_out(memory, ranges, true)
    }

    /// As [`Store::swap_out`], but the bytes may be on their way to the disk until more are written
    /// like this, which waits for them.
    pub fn swap_out_soon(&self, memory: &impl PageMemory, ranges: &[Segment]) -> Result<Vec<u64>> {
        self.put_out(memory, ranges, false)
    }

    fn put_out(
        &self,
        memory: &impl PageMemory,
        ranges: &[Segment],
        waits: bool,
    ) -> Result<Vec<u64>> {
        let pages = page_count(ranges)?;
        let mut inner = self.lock();
        self.check_quota(&inner, inner.next_reap.as_ref().or(inner.reap.as_ref()), pages)?;
        inner.settle()?;
        let Inner { swap, slots, on_their_way, kept, .. } = &mut *inner;
        let file = opened(swap, &self.source)?;
        // Whoever makes an image may still write what the guest kept, where it was to be.
        let places = match kept.swap.last() {
            Some(last) => {
                let first = slots.end().max(last.end());
                std::iter::once(first..first + pages).collect()
            }
            None => slots.choose(pages),
        };
        let mut sums = Vec::with_capacity(pages as usize);
        let mut cursor = Cursor::new(ranges);
        let written = (|| {
            for place in &places {
                self.write(
                    file,
                    memory,
                    &mut cursor,
                    place.start,
                    place.end - place.start,
                    Kind::Swap,
                    &mut sums,
                )?;
            }
            places.iter().filter(|_| waits).try_for_each(|place| sync(file, place))
        })();
        if let Err(error) = written {
            for place in &places {
                file.discard(
                    place.start * PAGE_SIZE,
                    (place.end - place.start) * PAGE_SIZE,
                    slots.end() * PAGE_SIZE,
                );
            }
            return Err(error);
        }
        if !waits {
            on_their_way.clone_from(&places);
        }
        let numbers: Vec<u64> = places.iter().cloned().flatten().collect();
        numbers.iter().zip(&sums).for_each(|(&slot, &sum)| slots.occupy(slot, sum));
        if kept.swap.is_empty() {
            slots.chosen(pages, &places);
        }
        if slots.are_many_free(0) {
            slots.give_back(file);
        }
        Ok(numbers)
    }

    /// The guest begins to keep pages, and keeps none from before.
    pub fn keep_begin(&self) {
        self.lock().kept = Kept::default();
    }

    /// Slots in a row for the pages of `ranges`, which the guest keeps until whoever makes an image
    /// of it has written them: the first.
    pub fn swap_keep(&self, ranges: &[Segment]) -> Result<u64> {
        let pages = page_count(ranges)?;
        let mut inner = self.lock();
        self.check_quota(&inner, inner.next_reap.as_ref().or(inner.reap.as_ref()), pages)?;
        let Inner { swap, slots, kept, .. } = &mut *inner;
        opened(swap, &self.source)?;
        let first = slots.end();
        if first + pages > MAX_SLOTS {
            return Err(StoreError::BadRequest("there are no more slots"));
        }
        slots.occupy_run(first, pages);
        kept::add(&mut kept.swap, first, ranges);
        Ok(first)
    }

    /// Has the pages of `ranges` follow in the REAP file that was begun, which the guest keeps as
    /// those of [`Store::swap_keep`].
    pub fn reap_keep(&self, ranges: &[Segment]) -> Result<()> {
        let pages = page_count(ranges)?;
        let mut inner = self.lock();
        self.check_quota(&inner, inner.next_reap.as_ref(), pages)?;
        let Inner { next_reap, kept, .. } = &mut *inner;
        let next = next_reap.as_mut().ok_or(StoreError::BadRequest("no REAP file was begun"))?;
        kept::add(&mut kept.reap, next.pages(), ranges);
        next.sums.resize(next.sums.len() + pages as usize, 0);
        Ok(())
    }

    /// What the guest keeps.
    pub fn kept(&self) -> Kept {
        self.lock().kept.clone()
    }

    /// What the guest kept is written: `now` has the checksums.
    pub fn written(&self, now: &Stored) {
        let mut inner = self.lock();
        let Inner { slots, reap, kept, .. } = &mut *inner;
        let Kept { swap, reap: of_reap } = std::mem::take(kept);
        let mut sums = now.swap.iter().flat_map(|(first, sums)| (*first..).zip(sums)).peekable();
        for slot in swap.iter().flat_map(|run| run.place..run.place + run.pages) {
            while sums.next_if(|(other, _)| *other < slot).is_some() {}
            if let Some((_, sum)) = sums.next_if(|(other, _)| *other == slot)
                && slots.sum(slot).is_some()
            {
                slots.occupy(slot, *sum);
            }
        }
        if let (Some(reap), Some(sums), false) = (reap, &now.reap, of_reap.is_empty())
            && reap.sums.len() == sums.len()
        {
            reap.sums.clone_from(sums);
        }
    }

    /// It is not, and never will be.
    pub fn not_written(&self) {
        let mut inner = self.lock();
        let kept = std::mem::take(&mut inner.kept);
        if !kept.reap.is_empty() {
            inner.reap = None;
        }
    }

    /// Reads the pages in `slot` and those that follow it into `frames`, at most
    /// [`MAX_SWAP_IN_PAGES`]. No frame is touched when a page is damaged. The slots stay in use.
    pub fn swap_in(&self, memory: &impl PageMemory, slot: u64, frames: &[Segment]) -> Result<()> {
        let pages = page_count(frames)?;
        if pages > MAX_SWAP_IN_PAGES {
            return Err(StoreError::BadRequest("too many pages at once"));
        }
        let inner = self.lock();
        let not_in_use = StoreError::BadRequest("the swap slot is not in use");
        let end = slot.checked_add(pages).filter(|&end| end <= inner.slots.end());
        let Some(end) = end else { return Err(not_in_use) };
        // Not on the stack: every thread that brings a page back would hold that much of it.
        let mut bytes = vec![0; PAGE * pages as usize];
        let whole = inner.read_slots(slot, &mut bytes)?;
        let (read, _) = bytes.as_chunks::<PAGE>();
        for (page, place) in read.iter().zip(slot..end) {
            let Some(sum) = inner.slots.sum(place) else { return Err(not_in_use) };
            if !whole || self.sum(page, Kind::Swap, place) != sum {
                return Err(StoreError::Damaged { file: "swap", page: place });
            }
        }
        for (page, frame) in read.iter().zip(file::pages(frames)) {
            memory.copy_in(frame, page)?;
        }
        Ok(())
    }

    /// Frees slots. Nothing is freed when one of them is not in use, or given twice.
    pub fn swap_free(&self, slots: &[u64]) -> Result<()> {
        let mut inner = self.lock();
        let mut sorted = slots.to_vec();
        sorted.sort_unstable();
        let twice = sorted.windows(2).any(|pair| pair[0] == pair[1]);
        if twice || sorted.iter().any(|&slot| inner.slots.sum(slot).is_none()) {
            return Err(StoreError::BadRequest("the swap slot is not in use"));
        }
        sorted.into_iter().for_each(|slot| inner.slots.vacate(slot));
        let Inner { swap: Some(file), slots, .. } = &mut *inner else { return Ok(()) };
        if slots.are_many_free(MAX_FREED) {
            slots.give_back(file);
        }
        Ok(())
    }

    /// Begins a new REAP file. What the last one holds stays until [`Store::reap_end`]; one that
    /// was begun and not ended is forgotten.
    pub fn reap_begin(&self) -> Result<()> {
        let mut inner = self.lock();
        inner.next_reap = None;
        inner.kept.reap.clear();
        inner.next_reap = Some(Reap { file: self.source.file()?, sums: Vec::new() });
        Ok(())
    }

    /// Appends pages to the REAP file that was begun. When it fails, that file is forgotten, and
    /// the last whole one stays.
    pub fn reap_append(&self, memory: &impl PageMemory, ranges: &[Segment]) -> Result<()> {
        let mut inner = self.lock();
        let mut next =
            inner.next_reap.take().ok_or(StoreError::BadRequest("no REAP file was begun"))?;
        let pages = page_count(ranges)?;
        self.check_quota(&inner, Some(&next), pages)?;
        let first = next.pages();
        self.write(
            &next.file,
            memory,
            &mut Cursor::new(ranges),
            first,
            pages,
            Kind::Reap,
            &mut next.sums,
        )?;
        inner.next_reap = Some(next);
        Ok(())
    }

    /// Puts the REAP file that was begun in the place of the last one. Its bytes have left for the
    /// disk, and no error was seen, when this succeeds; when it fails the last one stays.
    pub fn reap_end(&self) -> Result<()> {
        let mut inner = self.lock();
        let mut next =
            inner.next_reap.take().ok_or(StoreError::BadRequest("no REAP file was begun"))?;
        next.file.sync(0, next.pages() * PAGE_SIZE)?;
        inner.settle()?;
        next.sums.shrink_to_fit();
        inner.reap = Some(next);
        Ok(())
    }

    /// Forgets the REAP file, and one that was begun.
    pub fn reap_discard(&self) {
        let mut inner = self.lock();
        (inner.reap, inner.next_reap) = (None, None);
    }

    /// Reads pages of the REAP file, from page `first_page` on, in the order in which they were
    /// written. When it fails some of the memory may have been overwritten.
    pub fn reap_in(
        &self,
        memory: &impl PageMemory,
        first_page: u64,
        ranges: &[Segment],
    ) -> Result<()> {
        let pages = page_count(ranges)?;
        let inner = self.lock();
        let reap = inner.reap.as_ref().ok_or(StoreError::BadRequest("there is no REAP file"))?;
        let end = first_page.checked_add(pages).filter(|&end| end <= reap.pages());
        let end = end.ok_or(StoreError::BadRequest("beyond the end of the REAP file"))?;
        memory.populate(ranges);
        let mut cursor = Cursor::new(ranges);
        let mut page_bytes = [0; PAGE];
        let mut at = first_page;
        while at < end {
            let batch = cursor.take((end - at) * PAGE_SIZE);
            let count = batch.iter().map(|s| s.len / PAGE_SIZE).sum::<u64>();
            if !reap.file.read_pages(memory, &batch, at * PAGE_SIZE)? {
                return Err(StoreError::Damaged { file: "REAP", page: at });
            }
            let sums = &reap.sums[at as usize..(at + count) as usize];
            for ((gpa, page), &sum) in file::pages(&batch).zip(at..).zip(sums) {
                memory.copy_out(gpa, &mut page_bytes)?;
                if self.sum(&page_bytes, Kind::Reap, page) != sum {
                    return Err(StoreError::Damaged { file: "REAP", page });
                }
            }
            at += count;
        }
        Ok(())
    }

    /// What the store holds now.
    pub fn stat(&self) -> StoreStat {
        let inner = self.lock();
        StoreStat {
            swap_pages: inner.slots.used(),
            swap_disk_bytes: inner.swap.as_ref().map_or(0, HiddenFile::disk_bytes),
            reap_pages: inner.reap.as_ref().map_or(0, Reap::pages),
            reap_disk_bytes: inner.reap.as_ref().map_or(0, |r| r.file.disk_bytes()),
            quota_bytes: self.quota_bytes.load(Ordering::Relaxed),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change is made after the last thing that can fail, so a panic elsewhere leaves it
        // sound.
        self.inner.lock()
    }

    /// True if `pages` more fit beside the swap file and `reap`. While a REAP file takes the place
    /// of another, both take disk space, but only the new one counts.
    fn check_quota(&self, inner: &Inner, reap: Option<&Reap>, pages: u64) -> Result<()> {
        let held = inner.slots.used() + reap.map_or(0, Reap::pages);
        let all = held.checked_add(pages).and_then(|p| p.checked_mul(PAGE_SIZE));
        let quota_bytes = self.quota_bytes.load(Ordering::Relaxed);
        match all {
            Some(bytes) if bytes <= quota_bytes => Ok(()),
            _ => Err(StoreError::Quota { quota_bytes }),
        }
    }

    /// Writes the next `count` pages of `cursor` to the file at page `first`, and appends their
    /// checksums to `sums`.
    #[allow(clippy::too_many_arguments)]
    fn write(
        &self,
        file: &HiddenFile,
        memory: &impl PageMemory,
        cursor: &mut Cursor<'_>,
        first: u64,
        count: u64,
        kind: Kind,
        sums: &mut Vec<u32>,
    ) -> Result<()> {
        let mut page_bytes = [0; PAGE];
        let (mut at, end) = (first, first + count);
        while at < end {
            let batch = cursor.take((end - at) * PAGE_SIZE);
            let start = at;
            for gpa in file::pages(&batch) {
                memory.copy_out(gpa, &mut page_bytes)?;
                sums.push(self.sum(&page_bytes, kind, at));
                at += 1;
            }
            file.write_pages(memory, &batch, start * PAGE_SIZE)?;
            file.start_writeback(start * PAGE_SIZE, (at - start) * PAGE_SIZE);
        }
        Ok(())
    }

    /// The checksum of a page at its place.
    fn sum(&self, bytes: &[u8; PAGE], kind: Kind, place: u64) -> u32 {
        checksum(self.seed(), kind, place, bytes)
    }
}

/// The checksum of a page at its place in a store with this seed.
fn checksum(seed: u64, kind: Kind, place: u64, bytes: &[u8; PAGE]) -> u32 {
    let key = seed ^ (place << 1 | u64::from(matches!(kind, Kind::Reap)));
    let hash = XxHash3_64::oneshot_with_seed(key, bytes);
    (hash ^ hash >> 32) as u32
}

/// The pages of `ranges`, all of which must be page aligned and not empty.
fn page_count(ranges: &[Segment]) -> Result<u64> {
    let mut pages = 0u64;
    for range in ranges {
        if !range.gpa.is_page_aligned() || range.len == 0 || !range.len.is_multiple_of(PAGE_SIZE) {
            return Err(StoreError::BadRequest("a range is not page aligned"));
        }
        if range.gpa.checked_add(range.len).is_none() {
            return Err(StoreError::BadRequest("a range wraps around"));
        }
        pages = pages.saturating_add(range.len / PAGE_SIZE);
    }
    Ok(pages)
}

/// Waits until these slots are on the disk ([`HiddenFile::sync`]).
fn sync(file: &HiddenFile, place: &Range<u64>) -> Result<()> {
    Ok(file.sync(place.start * PAGE_SIZE, (place.end - place.start) * PAGE_SIZE)?)
}

/// The file, made at its first use.
fn opened<'f>(file: &'f mut Option<HiddenFile>, source: &FileSource) -> Result<&'f mut HiddenFile> {
    match file {
        Some(file) => Ok(file),
        None => Ok(file.insert(source.file()?)),
    }
}

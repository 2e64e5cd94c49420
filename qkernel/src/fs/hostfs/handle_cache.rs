//! Host handles of files, shared and kept. A regular file that is opened only for reading has no
//! state of its own on the host: position, flags and locks are the guest's. So all such opens of
//! one name use one handle, and a few handles stay open for a while after the last close, so that
//! the next open needs no host call.
//!
//! What is kept is bounded: [`MAX_KEPT`] handles in the sandbox, each until a tick of [`TICK_NS`]
//! finds that it was not used since the last. They are given up at once when the name is removed or
//! replaced, the file system unmounted, the host out of descriptors, guest memory used up, and
//! before the sandbox is hibernated.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use linux_raw_sys::general::{O_ACCMODE, O_APPEND, O_DIRECT, O_NOATIME, O_PATH, O_RDONLY, O_TRUNC};

use crate::fs::attr::Attributes;
use crate::host::Handle;
use crate::sync::{Mutex, mutex};
use crate::time;
use crate::wait::{Observer, PollMask};

/// The most handles that are kept although nobody may have them open.
pub const MAX_KEPT: usize = 64;
/// How often it is looked which of them were used, in nanoseconds. An unused one is kept for at
/// most twice as long.
pub const TICK_NS: u64 = 2_000_000_000;

/// A host file as it was at some time. The time of its last change is in it because a host's own
/// overlay keeps showing a descriptor the lower file after it was copied up (mappings of it, at
/// least).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id {
    /// Device, as `major << 32 | minor`.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// When it was changed last, in nanoseconds.
    pub ctime_ns: u64,
}

impl Id {
    /// Of what statx(2) reported.
    pub fn of(attributes: &Attributes) -> Self {
        let ctime = attributes.ctime;
        let ctime_ns =
            (ctime.sec as u64).wrapping_mul(1_000_000_000).wrapping_add(ctime.nsec as u64);
        Id { dev: attributes.dev, ino: attributes.ino, ctime_ns }
    }
}

/// A host handle of one open file or directory.
#[derive(Debug)]
pub struct FileHandle {
    handle: Handle,
    /// What it was opened on; `None` when it is not to be shared.
    id: Option<Id>,
    /// The host handle of its file system's root.
    root: u32,
    /// It is in the table.
    is_kept: AtomicBool,
    /// It was used since the last tick.
    used: AtomicBool,
}

impl FileHandle {
    /// A handle in the tree beneath `root`; with an `id` it may be shared.
    pub fn new(handle: Handle, root: u32, id: Option<Id>) -> Arc<Self> {
        let (is_kept, used) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(FileHandle { handle, id, root, is_kept, used })
    }

    /// The number, for [`crate::host::Call::on`].
    pub fn number(&self) -> u32 {
        self.handle.number()
    }

    /// What a handle that may be shared was opened on.
    pub fn id(&self) -> Option<Id> {
        self.id
    }
}

/// True if an open of a regular file with these O_* flags may use another's handle.
pub fn may_share(flags: u32) -> bool {
    let special = O_TRUNC | O_APPEND | O_DIRECT | O_NOATIME | O_PATH;
    flags & O_ACCMODE == O_RDONLY && flags & special == 0
}

/// The handles that are kept.
struct Table {
    handles: Vec<Arc<FileHandle>>,
    /// Where the search for one to displace goes on.
    hand: usize,
}

static TABLE: Mutex<Table> = mutex(Table { handles: Vec::new(), hand: 0 });
/// A tick is due.
static TICKING: AtomicBool = AtomicBool::new(false);

impl Table {
    /// Takes a handle in: the one that it displaced, which the caller drops without holding the
    /// table.
    fn insert(&mut self, handle: Arc<FileHandle>) -> Option<Arc<FileHandle>> {
        handle.is_kept.store(true, Ordering::Relaxed);
        if self.handles.len() < MAX_KEPT {
            self.handles.push(handle);
            return None;
        }
        // Second chance: what was used since the hand came by stays, unless all were.
        for _ in 0..MAX_KEPT {
            self.hand = (self.hand + 1) % MAX_KEPT;
            if !self.handles[self.hand].used.swap(false, Ordering::Relaxed) {
                break;
            }
        }
        let displaced = core::mem::replace(&mut self.handles[self.hand], handle);
        displaced.is_kept.store(false, Ordering::Relaxed);
        Some(displaced)
    }

    /// Takes those out that `which` holds for.
    fn take(&mut self, which: impl Fn(&FileHandle) -> bool) -> Vec<Arc<FileHandle>> {
        let (taken, rest) = core::mem::take(&mut self.handles).into_iter().partition(|h| which(h));
        self.handles = rest;
        let taken: Vec<Arc<FileHandle>> = taken;
        for handle in &taken {
            handle.is_kept.store(false, Ordering::Relaxed);
        }
        taken
    }
}

/// Notes that a handle that may be shared was used, and keeps it.
pub fn keep(handle: &Arc<FileHandle>) {
    handle.used.store(true, Ordering::Relaxed);
    if handle.is_kept.load(Ordering::Relaxed) {
        return;
    }
    let displaced = TABLE.lock().insert(handle.clone());
    drop(displaced);
    if !TICKING.swap(true, Ordering::Relaxed) {
        start_tick();
    }
}

/// Keeps a handle no longer: its name is gone.
pub fn give_up(handle: &Arc<FileHandle>) {
    if handle.is_kept.load(Ordering::Relaxed) {
        let taken = TABLE.lock().take(|h| core::ptr::eq(h, Arc::as_ptr(handle)));
        drop(taken);
    }
}

/// Keeps nothing of the tree beneath `root`.
pub fn give_up_tree(root: u32) {
    let taken = TABLE.lock().take(|h| h.root == root);
    drop(taken);
}

/// Keeps nothing: whether there was something. The host closes what nobody has open.
pub fn give_up_all() -> bool {
    let taken = TABLE.lock().take(|_| true);
    !taken.is_empty()
}

/// How many handles are kept.
pub fn count() -> usize {
    TABLE.lock().handles.len()
}

struct Tick;

impl Observer for Tick {
    fn notify(&self, _events: PollMask) {
        let (unused, is_empty) = {
            let mut table = TABLE.lock();
            let unused = table.take(|h| !h.used.swap(false, Ordering::Relaxed));
            (unused, table.handles.is_empty())
        };
        drop(unused);
        if is_empty {
            TICKING.store(false, Ordering::Relaxed);
        } else {
            start_tick();
        }
    }
}

fn start_tick() {
    time::insert_own(time::monotonic_ns() + TICK_NS, Arc::new(Tick));
}

#[cfg(test)]
mod tests {
    use linux_raw_sys::general::{O_CLOEXEC, O_CREAT, O_NONBLOCK, O_RDWR, O_WRONLY};

    use super::*;

    /// A handle that no host call is made for.
    fn handle(root: u32, ino: u64) -> Arc<FileHandle> {
        let handle = FileHandle::new(Handle::new(0), root, Some(Id { dev: 1, ino, ctime_ns: 0 }));
        core::mem::forget(handle.clone());
        handle
    }

    fn inodes(handles: &[Arc<FileHandle>]) -> Vec<u64> {
        handles.iter().filter_map(|h| h.id()).map(|id| id.ino).collect()
    }

    #[test]
    fn a_full_table_displaces_what_was_not_used() {
        let mut table = Table { handles: Vec::new(), hand: 0 };
        for ino in 0..MAX_KEPT as u64 {
            assert!(table.insert(handle(1, ino)).is_none());
        }
        for kept in &table.handles {
            let is_odd = kept.id().is_some_and(|id| id.ino % 2 == 1);
            kept.used.store(is_odd, Ordering::Relaxed);
        }
        let mut displaced = Vec::new();
        for ino in 0..MAX_KEPT as u64 / 2 {
            displaced.extend(table.insert(handle(1, 1000 + ino)));
        }
        let mut gone = inodes(&displaced);
        gone.sort_unstable();
        assert_eq!(gone, (0..MAX_KEPT as u64).filter(|ino| ino % 2 == 0).collect::<Vec<_>>());
        assert!(displaced.iter().all(|h| !h.is_kept.load(Ordering::Relaxed)));
        assert_eq!(table.handles.len(), MAX_KEPT);
    }

    #[test]
    fn a_table_that_is_all_in_use_still_takes_a_new_one() {
        let mut table = Table { handles: Vec::new(), hand: 0 };
        for ino in 0..3 * MAX_KEPT as u64 {
            let new = handle(1, ino);
            new.used.store(true, Ordering::Relaxed);
            table.insert(new);
            assert!(table.handles.len() <= MAX_KEPT);
        }
        assert!(inodes(&table.handles).contains(&(3 * MAX_KEPT as u64 - 1)));
    }

    #[test]
    fn what_is_taken_out_is_kept_no_more() {
        let mut table = Table { handles: Vec::new(), hand: 0 };
        for ino in 0..4 {
            table.insert(handle(ino as u32 % 2, ino));
        }
        let taken = table.take(|h| h.root == 1);
        assert_eq!(inodes(&taken), [1, 3]);
        assert_eq!(inodes(&table.handles), [0, 2]);
        assert!(taken.iter().all(|h| !h.is_kept.load(Ordering::Relaxed)));
        assert!(table.handles.iter().all(|h| h.is_kept.load(Ordering::Relaxed)));
    }

    #[test]
    fn a_tick_gives_up_what_was_not_used_since_the_last() {
        // The only test that uses the kernel's own table.
        let (used, unused) = (handle(7, 1), handle(7, 2));
        TICKING.store(true, Ordering::Relaxed);
        keep(&used);
        keep(&unused);
        Tick.notify(PollMask::empty());
        assert_eq!(count(), 2);
        keep(&used);
        Tick.notify(PollMask::empty());
        assert_eq!(inodes(&TABLE.lock().handles), [1]);
        Tick.notify(PollMask::empty());
        assert_eq!(count(), 0);
        assert!(!TICKING.load(Ordering::Relaxed), "nothing is left to look at");
    }

    #[test]
    fn only_plain_reading_shares() {
        for flags in [O_RDONLY, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_CREAT] {
            assert!(may_share(flags), "{flags:o}");
        }
        for flags in [O_WRONLY, O_RDWR, O_TRUNC, O_APPEND, O_DIRECT, O_NOATIME, O_PATH] {
            assert!(!may_share(flags), "{flags:o}");
        }
    }
}

//! What lies behind a mapping: files and other objects that supply memory page by page.

use alloc::sync::Arc;

use qlib::Gpa;

use crate::errno::{Errno, Result};

/// Memory that a file supplies for mmap(2), page by page.
pub trait MappedFile: Send + Sync {
    /// The page at `index` (in pages from the file's start) for a shared mapping or for a private
    /// read: its guest physical address. `write`: the page is about to be written through a shared
    /// mapping. EFAULT (SIGBUS for the program) past the end.
    fn page(&self, index: u64, write: bool) -> Result<MappedPage>;
    /// The number of pages from `index` on that lie contiguously behind it (at least 1), so that a
    /// fault can map them in one go.
    fn run_pages(&self, index: u64) -> u64 {
        let _ = index;
        1
    }
    /// Fills in which pages from `first` on lie in frames of guest RAM and are in use, so that a
    /// fault can map them along. No references are taken, and nothing is brought in or made.
    fn frames_in_use(&self, first: u64, frames: &mut [Option<Gpa>]) {
        let _ = (first, frames);
    }
    /// How many of the pages from `first` on, up to `last`, are in memory, and how many in the
    /// store; `None` where that is not the guest's to know.
    fn residency(&self, first: u64, last: u64) -> Option<(u64, u64)> {
        let _ = (first, last);
        None
    }
    /// Makes a hole of `length` bytes at `offset`, which reads as zeros, in what has no file that
    /// could do so. EOPNOTSUPP.
    fn punch_hole(self: Arc<Self>, offset: u64, length: u64) -> Result {
        let _ = (offset, length);
        Err(Errno::EOPNOTSUPP)
    }
    /// What /proc/PID/maps shows in place of a path, if it has no file.
    fn name(&self) -> Option<&'static [u8]> {
        None
    }
    /// What tells this object from all others that are mapped, for futexes in it: the same for all
    /// mappings of one file.
    fn identity(&self) -> usize {
        core::ptr::from_ref(self).cast::<()>() as usize
    }
}

/// What lies behind one page of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappedPage {
    /// A page of a file window: not counted, the host's page cache.
    Window(Gpa),
    /// A frame of guest RAM, for reading and writing; the mapping has taken a reference to it for
    /// the caller.
    Frame(Gpa),
}

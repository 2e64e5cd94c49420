//! Locks that others see who are not in this container: what the lock table ([`super::lock`]) asks
//! of a file system that is shared.

use alloc::sync::Arc;

use crate::errno::Result;
use crate::wait::WaitQueue;

/// A lock that stands in the way, as F_GETLK tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// First byte.
    pub start: u64,
    /// Past the last byte; `u64::MAX`: to the end of the file.
    pub end: u64,
    /// A write lock.
    pub exclusive: bool,
    /// The process; 0: one that has no number here; -1: an open file.
    pub pid: i32,
}

/// What one owner has locked of one file, as those outside see it. Locks of two owners exclude each
/// other there as here. It is all given up when this is dropped. Ranges are half open; `u64::MAX`:
/// to the end of the file. `whole_file`: flock(2), which knows no ranges, else record locks.
pub trait OutsideLocks: Send + Sync {
    /// Takes or converts a lock, at once: EAGAIN if somebody's stands in the way (after which
    /// flock(2) has lost what was to be converted), or what the host says.
    fn take(&self, whole_file: bool, start: u64, end: u64, exclusive: bool) -> Result;
    /// Gives up what is held of a range.
    fn give_up(&self, whole_file: bool, start: u64, end: u64) -> Result;
    /// What stands in the way of a record lock.
    fn test(&self, start: u64, end: u64, exclusive: bool) -> Result<Option<Holder>>;
    /// True if record locks may be exclusive.
    fn is_writable(&self) -> bool;
    /// Tells it from others that are there.
    fn number(&self) -> u32;
    /// For one wait.
    fn turn(&self, whole_file: bool) -> Arc<dyn Turn>;
}

/// A wait for the moment at which a lock may be taken. It ends when this is dropped.
pub trait Turn: Send + Sync {
    /// What is notified of that moment, with IN.
    fn queue(&self) -> &WaitQueue;
    /// Begins to look for it, unless it is looked for already. Of flock(2) `locks` holds the lock
    /// once it has come.
    fn begin(&self, locks: &dyn OutsideLocks, start: u64, end: u64, exclusive: bool) -> Result;
}

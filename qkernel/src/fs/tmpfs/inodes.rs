//! How many inodes a tmpfs may have (its option nr_inodes). As on Linux each name of a file beyond
//! its first counts as one too.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::errno::{Errno, Result};

/// The count of one file system, and its limit.
#[derive(Debug)]
pub struct Inodes {
    used: AtomicU64,
    /// 0: none.
    limit: AtomicU64,
}

impl Inodes {
    /// With so many at most; 0: without limit.
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Inodes { used: AtomicU64::new(0), limit: AtomicU64::new(limit) })
    }

    /// One more. ENOSPC.
    pub fn take(&self) -> Result {
        let limit = self.limit();
        let used = self.used.load(Relaxed);
        if limit != 0 && used >= limit {
            return Err(Errno::ENOSPC);
        }
        self.used.store(used + 1, Relaxed);
        Ok(())
    }

    /// One less.
    pub fn give(&self) {
        self.used.fetch_sub(1, Relaxed);
    }

    /// The limit, 0 for none.
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Those that are left, 0 where there is no limit.
    pub fn free(&self) -> u64 {
        self.limit().saturating_sub(self.used.load(Relaxed))
    }

    /// Whether there may be a limit of so many: not of fewer than there are, nor where there was
    /// none, for which nobody counted. EINVAL.
    pub fn check_limit(&self, limit: u64) -> Result {
        let is_too_few = limit != 0 && limit < self.used.load(Relaxed);
        if is_too_few || limit != 0 && self.limit() == 0 { Err(Errno::EINVAL) } else { Ok(()) }
    }

    /// Changes the limit.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_kept_and_changed() {
        let inodes = Inodes::new(2);
        assert_eq!((inodes.take(), inodes.take()), (Ok(()), Ok(())));
        assert_eq!(inodes.take(), Err(Errno::ENOSPC));
        assert_eq!(inodes.check_limit(1), Err(Errno::EINVAL));
        assert_eq!(inodes.check_limit(3), Ok(()));
        inodes.set_limit(3);
        assert_eq!((inodes.free(), inodes.take(), inodes.free()), (1, Ok(()), 0));
        inodes.give();
        assert_eq!(inodes.free(), 1);
        inodes.set_limit(0);
        assert_eq!((inodes.take(), inodes.check_limit(100)), (Ok(()), Err(Errno::EINVAL)));
    }
}

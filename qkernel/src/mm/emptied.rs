//! How many pages were [emptied](super::discard), and not used again as far as is known.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Those of all spaces.
static ALL: AtomicU64 = AtomicU64::new(0);

/// Those of all spaces.
pub fn all() -> u64 {
    ALL.load(Relaxed)
}

/// Those of one space.
#[derive(Default)]
pub struct Emptied(u64);

impl Emptied {
    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.0 == 0
    }

    /// So many more.
    pub fn note(&mut self, pages: u64) {
        self.0 += pages;
        ALL.fetch_add(pages, Relaxed);
    }

    /// So many, or all there are, are used again or gone.
    pub fn forget(&mut self, pages: u64) {
        let pages = pages.min(self.0);
        self.0 -= pages;
        ALL.fetch_sub(pages, Relaxed);
    }
}

impl Drop for Emptied {
    fn drop(&mut self) {
        self.forget(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_counts_no_longer_and_nothing_counts_twice() {
        let (mut one, mut other) = (Emptied::default(), Emptied::default());
        one.note(5);
        other.note(7);
        assert_eq!(all(), 12);
        one.forget(9);
        assert!(one.is_empty() && all() == 7);
        drop(other);
        assert_eq!(all(), 0);
    }
}

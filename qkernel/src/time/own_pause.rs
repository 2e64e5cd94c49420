//! Work of the kernel's own that waits for nothing but time to pass, or for memory.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

static UNDER_WAY: AtomicU32 = AtomicU32::new(0);

/// Somebody rests from work that nobody outside need do anything for: it looks blocked, and has
/// something to do all the same. Held for as long as it rests.
#[derive(Debug)]
pub struct OwnPause(());

impl OwnPause {
    /// From now on.
    pub fn begin() -> Self {
        UNDER_WAY.fetch_add(1, Relaxed);
        OwnPause(())
    }

    /// True if there are any.
    pub fn is_any() -> bool {
        UNDER_WAY.load(Relaxed) > 0
    }
}

impl Drop for OwnPause {
    fn drop(&mut self) {
        UNDER_WAY.fetch_sub(1, Relaxed);
    }
}

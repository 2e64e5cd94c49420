//! When something last came from outside that threads are about to be notified of: data, a
//! connection, a signal, a further process.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::time;

/// CLOCK_MONOTONIC; 0 for never.
static LAST_NS: AtomicU64 = AtomicU64::new(0);

/// Now.
pub fn note() {
    LAST_NS.store(time::monotonic_ns(), Relaxed);
}

/// When that was, CLOCK_MONOTONIC; 0 for never.
pub fn last_ns() -> u64 {
    LAST_NS.load(Relaxed)
}

//! When something last came from outside that threads are about to be notified of: data, a
//! connection, a signal, a further process.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::time;

/// CLOCK_MONOTONIC; 0 for never.
static LAST_NS: AtomicU64 = AtomicU64::new(0);

/// Something came since [`begin_life`].
static CAME: AtomicBool = AtomicBool::new(false);

/// Now.
pub fn note() {
    LAST_NS.store(time::monotonic_ns(), Relaxed);
    CAME.store(true, Relaxed);
}

/// When something last came, CLOCK_MONOTONIC; 0 for never.
pub fn last_ns() -> u64 {
    LAST_NS.load(Relaxed)
}

/// From now on it counts whether something [came](has_come).
pub fn begin_life() {
    CAME.store(false, Relaxed);
}

/// True if something came in this life.
pub fn has_come() -> bool {
    CAME.load(Relaxed)
}

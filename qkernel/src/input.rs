//! When something last came from outside that threads are about to be notified of: data, a
//! connection, a signal, a further process.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::time;

/// CLOCK_MONOTONIC; 0 for never.
static LAST_NS: AtomicU64 = AtomicU64::new(0);

/// Something came since [`begin_life`].
static CAME: AtomicBool = AtomicBool::new(false);

/// Requests that programs have taken, and probes ([`crate::net::probes`]).
static REQUESTS: AtomicU64 = AtomicU64::new(0);
static PROBES: AtomicU64 = AtomicU64::new(0);

/// A program takes in what somebody outside, or only a probe, has sent.
pub fn note_taken(is_probe: bool) {
    if is_probe { &PROBES } else { &REQUESTS }.fetch_add(1, Relaxed);
}

/// How many requests programs have taken, and how many probes.
pub fn taken() -> [u64; 2] {
    [REQUESTS.load(Relaxed), PROBES.load(Relaxed)]
}

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

//! When something last came from outside that threads are about to be notified of: data, a
//! connection, a signal, a further process.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::time;

/// For how long an input is fresh: whatever runs in that time may be serving it.
const FRESH_NS: u64 = 500_000_000;

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

/// Since `begin_ns` the sandbox has done nothing but read memory back. If an input was fresh then
/// it is as fresh as can be now: who serves it has had no time for that.
pub fn was_held_up_since(begin_ns: u64) {
    if fresh_until(begin_ns).is_some() {
        LAST_NS.store(time::monotonic_ns(), Relaxed);
    }
}

/// Until when the last input is fresh, if it is at `now_ns` (both CLOCK_MONOTONIC).
pub fn fresh_until(now_ns: u64) -> Option<u64> {
    fresh_until_after(LAST_NS.load(Relaxed), now_ns)
}

fn fresh_until_after(last_ns: u64, now_ns: u64) -> Option<u64> {
    Some(last_ns.saturating_add(FRESH_NS)).filter(|end| last_ns != 0 && *end > now_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_fresh_for_a_while() {
        assert_eq!(fresh_until_after(0, 5), None);
        assert_eq!(fresh_until_after(10, 10), Some(10 + FRESH_NS));
        assert_eq!(fresh_until_after(10, 9 + FRESH_NS), Some(10 + FRESH_NS));
        assert_eq!(fresh_until_after(10, 10 + FRESH_NS), None);
        // Input that came after the moment that counts.
        assert_eq!(fresh_until_after(20, 10), Some(20 + FRESH_NS));
    }

    #[test]
    fn what_is_held_up_stays_fresh_and_what_is_old_does_not_become_so() {
        note();
        let last_ns = LAST_NS.load(Relaxed);
        was_held_up_since(last_ns + FRESH_NS);
        assert_eq!(LAST_NS.load(Relaxed), last_ns, "nobody was serving it any more");
        while time::monotonic_ns() == last_ns {}
        was_held_up_since(last_ns + FRESH_NS - 1);
        assert!(LAST_NS.load(Relaxed) > last_ns);
    }
}

//! When something last came from outside that threads are about to be notified of: data, a
//! connection, a signal, a further process.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::time;
use crate::wait::{self, PollMask, WaitQueue};

/// CLOCK_MONOTONIC; 0 for never.
static LAST_NS: AtomicU64 = AtomicU64::new(0);

/// Something came since [`begin_life`].
static CAME: AtomicBool = AtomicBool::new(false);

/// Requests that programs have taken, and probes ([`crate::net::probes`]).
static REQUESTS: AtomicU64 = AtomicU64::new(0);
static PROBES: AtomicU64 = AtomicU64::new(0);

/// When something last came of which it is not known yet that it is a probe's, CLOCK_MONOTONIC; 0
/// for never.
static CAME_NS: AtomicU64 = AtomicU64::new(0);
/// When the container was used before that.
static USED_NS: AtomicU64 = AtomicU64::new(0);

/// Somebody outside, who is no probe, has been answered.
static ANSWERED: AtomicBool = AtomicBool::new(false);

/// Notified then.
static FIRST_ANSWER: WaitQueue = WaitQueue::new();

/// A program has answered somebody outside, at least with a part of an answer.
pub fn note_answered() {
    if !ANSWERED.swap(true, Relaxed) {
        FIRST_ANSWER.wake(PollMask::IN);
    }
}

/// Waits until somebody outside has been answered, if nobody has been yet.
pub async fn first_answer() {
    while !ANSWERED.load(Relaxed) {
        wait::notified(&FIRST_ANSWER, PollMask::IN, None).await;
    }
}

/// A program takes in what somebody outside, or only a probe, has sent.
pub fn note_taken(is_probe: bool) {
    if is_probe { &PROBES } else { &REQUESTS }.fetch_add(1, Relaxed);
    if is_probe {
        CAME_NS.store(0, Relaxed);
    } else {
        USED_NS.store(time::monotonic_ns(), Relaxed);
    }
}

/// A probe says that it has no more to say.
pub fn note_probe_ends() {
    CAME_NS.store(0, Relaxed);
}

/// When somebody last used the container, CLOCK_MONOTONIC: something came that was no probe's. 0
/// for never.
pub fn last_use_ns() -> u64 {
    USED_NS.load(Relaxed).max(CAME_NS.load(Relaxed))
}

/// How many requests programs have taken, and how many probes.
pub fn taken() -> [u64; 2] {
    [REQUESTS.load(Relaxed), PROBES.load(Relaxed)]
}

/// Now.
pub fn note() {
    let now_ns = time::monotonic_ns();
    LAST_NS.store(now_ns, Relaxed);
    CAME.store(true, Relaxed);
    // What came before, and no probe has taken, was use.
    USED_NS.fetch_max(CAME_NS.swap(now_ns, Relaxed), Relaxed);
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

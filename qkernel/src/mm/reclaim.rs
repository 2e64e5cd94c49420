//! Memory that comes back, and those who wait for it.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::frames;
use crate::sync::{Count, Counted};
use crate::time;
use crate::wait::{PollMask, WaitQueue};

/// Told when memory has come back: an address space is gone, or a process has ended.
static FREED: WaitQueue = WaitQueue::new();
/// When something was freed last while somebody waited, CLOCK_MONOTONIC.
static LAST_FREED_NS: AtomicU64 = AtomicU64::new(0);
/// Those who wait.
static WAITING: Count = Count::none();

/// A copy to or from user memory found no frame that anybody may have.
static SHORT: AtomicBool = AtomicBool::new(false);

/// A copy to or from user memory found no frame, or only one that is kept.
pub fn note_short() {
    SHORT.store(true, Relaxed);
}

/// True if a copy has found no frame since there was memory: who makes a call sees to it first.
#[inline]
pub fn is_short() -> bool {
    SHORT.load(Relaxed)
}

/// There is memory.
pub fn not_short() {
    SHORT.store(false, Relaxed);
}

/// Tries to get frames back at once, without waiting for anybody: whether some are free now. User
/// frames that the platform shows cannot be, so there is only what is kept to be fast.
pub fn reclaim() -> bool {
    frames::user().give_back_spare();
    frames::are_left()
}

/// Memory has come back: those who wait for it look again.
pub fn note_freed() {
    if !FREED.is_empty() {
        LAST_FREED_NS.store(time::monotonic_ns(), Relaxed);
        FREED.wake(PollMask::IN);
    }
}

/// When that was last, while somebody waited, CLOCK_MONOTONIC; 0 for never.
pub fn last_freed_ns() -> u64 {
    LAST_FREED_NS.load(Relaxed)
}

/// Woken (IN) when memory has come back.
pub fn freed() -> &'static WaitQueue {
    &FREED
}

/// Somebody waits for memory as long as the result lives.
pub fn begin_waiting() -> Counted {
    WAITING.begin()
}

/// True if somebody waits for memory.
pub fn is_awaited() -> bool {
    WAITING.is_any()
}

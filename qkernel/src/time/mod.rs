//! Time: the platform's clocks and one queue of timers over them.

pub mod breath;
pub mod clock;
mod timer_queue;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

pub use breath::Breath;
pub use clock::{Clock, deadline_after};
pub use timer_queue::{TimerKey, TimerQueue};

use crate::sync::{Mutex, mutex};
use crate::wait::{Observer, PollMask, Signal};
use crate::{arch, executor};

static TIMERS: Mutex<TimerQueue<Arc<dyn Observer>>> = mutex(TimerQueue::new());
/// What the platform's timer is armed for.
static ARMED: Mutex<u64> = mutex(u64::MAX);
/// Who waits for the next event.
static NEXT_EVENT: Mutex<Option<Arc<Signal>>> = mutex(None);

/// True if there is more to wait for since the last [`rearm`].
static IS_MORE: AtomicBool = AtomicBool::new(false);

/// CLOCK_MONOTONIC in nanoseconds.
pub fn monotonic_ns() -> u64 {
    arch::now_ns(linux_raw_sys::general::CLOCK_MONOTONIC)
}

/// How long ago `begin_ns` of CLOCK_MONOTONIC was; 0 if the host's clock has stepped back since.
pub fn elapsed_ns(begin_ns: u64) -> u64 {
    monotonic_ns().saturating_sub(begin_ns)
}

/// CLOCK_REALTIME in nanoseconds since the epoch.
pub fn realtime_ns() -> u64 {
    arch::now_ns(linux_raw_sys::general::CLOCK_REALTIME)
}

/// Notifies `observer` once CLOCK_MONOTONIC reaches `deadline_ns`.
pub fn insert(deadline_ns: u64, observer: Arc<dyn Observer>) -> TimerKey {
    IS_MORE.store(true, Relaxed);
    TIMERS.lock().insert(deadline_ns, observer)
}

/// Forgets a timer that has not fired; harmless if it has.
pub fn cancel(key: TimerKey) {
    TIMERS.lock().cancel(key);
}

/// Sets `signal` when the kernel is entered next, which is soon.
pub fn at_next_event(signal: Arc<Signal>) {
    IS_MORE.store(true, Relaxed);
    *NEXT_EVENT.lock() = Some(signal);
}

/// The platform's timer went off: nothing is armed any more.
pub fn on_timer() {
    *ARMED.lock() = u64::MAX;
}

/// No timer goes off now.
static RESTING: AtomicBool = AtomicBool::new(false);

/// True if timers rest from now on: while the sandbox sleeps, and on the way there, for a system
/// call that ended then would write to memory that has been written out. What is due goes off when
/// they rest no more.
pub fn rest(rests: bool) {
    RESTING.store(rests, Relaxed);
}

/// Fires what is due. Called at every dispatch.
pub fn advance() {
    let next_event = NEXT_EVENT.lock().take();
    if let Some(signal) = next_event {
        signal.set();
    }
    if RESTING.load(Relaxed) {
        return;
    }
    // Nothing armed: nothing can be due, and the clock need not be read.
    if TIMERS.lock().is_empty() {
        return;
    }
    // What comes to be due meanwhile is for the next time, which is soon: others have the kernel in
    // between.
    let now_ns = monotonic_ns();
    loop {
        let Some(observer) = TIMERS.lock().pop_due(now_ns) else { return };
        observer.notify(PollMask::empty());
    }
}

/// True if [`rearm`] must be called before user code runs.
pub fn needs_rearming() -> bool {
    IS_MORE.load(Relaxed)
}

/// Arms the platform's timer for the earliest deadline, if that changed.
pub fn rearm() {
    IS_MORE.store(false, Relaxed);
    let next = if !executor::is_drained() {
        // Whoever sleeps for the kernel gets it first.
        monotonic_ns() + breath::PAUSE_NS
    } else if NEXT_EVENT.lock().is_some() {
        0
    } else if RESTING.load(Relaxed) {
        u64::MAX
    } else {
        TIMERS.lock().next_deadline().unwrap_or(u64::MAX)
    };
    let mut armed = ARMED.lock();
    if *armed != next {
        *armed = next;
        arch::set_timer(next);
    }
}

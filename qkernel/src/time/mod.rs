//! Time: the platform's clocks and one timer wheel over them.

pub mod clock;
pub mod cpu;
pub mod process;
pub mod timer;
mod wheel;

use alloc::sync::Arc;

pub use clock::{Clock, deadline_after};
pub use wheel::{TimerKey, Wheel};

use crate::hibernate::state::State;
use crate::sync::{Mutex, mutex};
use crate::wait::{Observer, PollMask};
use crate::{arch, hibernate};

static WHEEL: Mutex<Wheel<Arc<dyn Observer>>> = mutex(Wheel::new());
/// What the platform's timer is armed for.
static ARMED: Mutex<u64> = mutex(u64::MAX);

/// CLOCK_MONOTONIC in nanoseconds.
pub fn monotonic_ns() -> u64 {
    arch::now_ns(linux_raw_sys::general::CLOCK_MONOTONIC)
}

/// CLOCK_REALTIME in nanoseconds since the epoch.
pub fn realtime_ns() -> u64 {
    arch::now_ns(linux_raw_sys::general::CLOCK_REALTIME)
}

/// Notifies `observer` once CLOCK_MONOTONIC reaches `deadline_ns`.
pub fn insert(deadline_ns: u64, observer: Arc<dyn Observer>) -> TimerKey {
    WHEEL.lock().insert(deadline_ns, observer)
}

/// Forgets a timer that has not fired; harmless if it has.
pub fn cancel(key: TimerKey) {
    WHEEL.lock().cancel(key);
}

/// Fires what is due. Called at every dispatch.
pub fn advance() {
    // No clock ticks while the sandbox sleeps: what is due fires when it wakes.
    if hibernate::current() == State::Hibernated {
        return;
    }
    loop {
        // Nothing armed: nothing can be due, and the clock need not be read.
        if WHEEL.lock().is_empty() {
            return;
        }
        let Some(observer) = WHEEL.lock().pop_due(monotonic_ns()) else { return };
        observer.notify(PollMask::empty());
    }
}

/// Arms the platform's timer for the earliest deadline, if that changed.
pub fn rearm() {
    let asleep = hibernate::current() == State::Hibernated;
    let next = if asleep { None } else { WHEEL.lock().next_deadline() }.unwrap_or(u64::MAX);
    let mut armed = ARMED.lock();
    if *armed != next {
        *armed = next;
        arch::set_timer(next);
    }
}

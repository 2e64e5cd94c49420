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
/// The kernel's own, which neither keep a sandbox awake nor wake it.
static OWN: Mutex<TimerQueue<Arc<dyn Observer>>> = mutex(TimerQueue::new());
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

/// The same for the kernel's own purposes, which a sleeping sandbox has none of.
pub fn insert_own(deadline_ns: u64, observer: Arc<dyn Observer>) {
    IS_MORE.store(true, Relaxed);
    OWN.lock().insert(deadline_ns, observer);
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

/// Whether timers rest: while the sandbox sleeps, and on the way there, for a system call that
/// ended then would write to memory that has been written out. What is due goes off when they rest
/// no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// They go off.
    None,
    /// The first that is due is to end the rest, see [`has_slept_enough`].
    UntilDue,
    /// However long something else takes to end it.
    Whole,
}

static REST: Mutex<Rest> = mutex(Rest::None);
/// When the kernel itself wants to end it.
static REST_ENDS: Mutex<u64> = mutex(u64::MAX);

/// Has the platform's timer go off at `deadline_ns` of CLOCK_MONOTONIC while timers rest, too;
/// `u64::MAX`: not for this.
pub fn end_rest_at(deadline_ns: u64) {
    IS_MORE.store(true, Relaxed);
    *REST_ENDS.lock() = deadline_ns;
}

/// Has timers rest like this from now on.
pub fn rest(rest: Rest) {
    IS_MORE.store(true, Relaxed);
    *REST.lock() = rest;
}

/// True if a timer of a program is due, and may end the rest.
pub fn has_slept_enough() -> bool {
    *REST.lock() == Rest::UntilDue && next_due_in_ns() == Some(0)
}

/// In how many nanoseconds the next timer of a program goes off; 0 if it is due.
pub fn next_due_in_ns() -> Option<u64> {
    TIMERS.lock().next_deadline().map(|due_ns| due_ns.saturating_sub(monotonic_ns()))
}

/// Waits for so many nanoseconds in which the sandbox is awake, for the kernel's own purposes.
pub async fn pass(ns: u64) {
    let signal = Arc::new(Signal::default());
    insert_own(deadline_after(ns), signal.clone());
    signal.wait().await;
}

/// Fires what is due. Called at every dispatch.
pub fn advance() {
    let next_event = NEXT_EVENT.lock().take();
    if let Some(signal) = next_event {
        signal.set();
    }
    if *REST.lock() != Rest::None {
        return;
    }
    // Nothing armed: nothing can be due, and the clock need not be read.
    if TIMERS.lock().is_empty() && OWN.lock().is_empty() {
        return;
    }
    // What comes to be due meanwhile is for the next time, which is soon: others have the kernel in
    // between.
    let now_ns = monotonic_ns();
    loop {
        let due = TIMERS.lock().pop_due(now_ns);
        let Some(observer) = due.or_else(|| OWN.lock().pop_due(now_ns)) else { return };
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
    } else {
        let program = || TIMERS.lock().next_deadline().unwrap_or(u64::MAX);
        let own = || OWN.lock().next_deadline().unwrap_or(u64::MAX);
        match *REST.lock() {
            Rest::None => program().min(own()),
            Rest::UntilDue => program().min(*REST_ENDS.lock()),
            Rest::Whole => *REST_ENDS.lock(),
        }
    };
    let mut armed = ARMED.lock();
    if *armed != next {
        *armed = next;
        arch::set_timer(next);
    }
}

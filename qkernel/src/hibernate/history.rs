//! When the sandbox slept and woke, what woke it, how long its wakes took, and what host memory was
//! behind its RAM before and after.

use qlib::control::{SleepCause, SleepStats, WakeCause};
use qlib::host::Op;

use super::state::State;
use crate::host::Call;
use crate::sync::{Mutex, mutex};
use crate::task::table;
use crate::time;

struct History {
    sleep: Option<Moment>,
    wake: Option<Moment>,
    cause: Option<WakeCause>,
    sleep_cause: Option<SleepCause>,
    /// How long the sleeps that are over lasted.
    asleep_ns: u64,
    wakes_ns: u64,
    wake_histogram: [u64; SleepStats::BOUNDS_NS.len() + 1],
    held_before: u64,
    held_after: u64,
}

/// A time by both clocks: one does not jump, the other means something outside.
#[derive(Clone, Copy)]
struct Moment {
    monotonic_ns: u64,
    realtime_ns: u64,
}

impl Moment {
    /// The moment `ns` ago.
    fn ago(ns: u64) -> Moment {
        Moment {
            monotonic_ns: time::monotonic_ns().saturating_sub(ns),
            realtime_ns: time::realtime_ns().saturating_sub(ns),
        }
    }
}

static HISTORY: Mutex<History> = mutex(History {
    sleep: None,
    wake: None,
    cause: None,
    sleep_cause: None,
    asleep_ns: 0,
    wakes_ns: 0,
    wake_histogram: [0; SleepStats::BOUNDS_NS.len() + 1],
    held_before: 0,
    held_after: 0,
});

/// Host memory behind RAM, in bytes; 0 if the host does not tell.
pub(super) fn ram_held() -> u64 {
    Call::new(Op::Resident).run_out().map_or(0, |(_, args)| args[0])
}

/// Notes that all is written out. `held_bytes`: what [`ram_held`] was before.
pub(super) fn slept(cause: SleepCause, held_bytes: u64) {
    let (now, held_after) = (Moment::ago(0), ram_held());
    let mut history = HISTORY.lock();
    history.sleep = Some(now);
    history.sleep_cause = Some(cause);
    history.held_before = held_bytes;
    history.held_after = held_after;
}

/// Notes a wake that took `ns`, and has just ended.
pub(super) fn woken(cause: WakeCause, ns: u64) {
    let begun = Moment::ago(ns);
    let mut history = HISTORY.lock();
    if let Some(sleep) = history.sleep {
        history.asleep_ns += begun.monotonic_ns.saturating_sub(sleep.monotonic_ns);
    }
    history.wake = Some(begun);
    history.cause = Some(cause);
    history.wakes_ns = history.wakes_ns.saturating_add(ns);
    history.wake_histogram[SleepStats::class_of(ns)] += 1;
}

/// What [`ram_held`] was when the last sleep began, and when all was written out.
pub(super) fn held_around_sleep() -> (u64, u64) {
    let history = HISTORY.lock();
    (history.held_before, history.held_after)
}

/// When it was last woken ahead of use, CLOCK_MONOTONIC, if that was its last wake.
pub(super) fn woken_ahead_ns() -> Option<u64> {
    let history = HISTORY.lock();
    let wake = history.wake.filter(|_| history.cause == Some(WakeCause::Sigcont));
    wake.map(|moment| moment.monotonic_ns)
}

/// What is told of it.
pub(super) fn collect() -> SleepStats {
    let is_asleep = super::current() == State::Hibernated;
    let started_ns = table::process(1).map(|first| first.start_ns);
    let history = HISTORY.lock();
    let since = if is_asleep { history.sleep } else { history.wake };
    let since_ns = since.map(|moment| moment.monotonic_ns).or(started_ns);
    let in_state_ns = since_ns.map_or(0, time::elapsed_ns);
    SleepStats {
        in_state_ns,
        last_sleep_at_ns: history.sleep.map(|moment| moment.realtime_ns),
        last_sleep_cause: history.sleep_cause,
        last_wake_at_ns: history.wake.map(|moment| moment.realtime_ns),
        last_wake_cause: history.cause,
        asleep_ns: history.asleep_ns + if is_asleep { in_state_ns } else { 0 },
        wakes_ns: history.wakes_ns,
        wake_histogram: history.wake_histogram,
    }
}

//! A timer that goes off once or again and again, on any clock: what setitimer(2), timer_create(2)
//! and timerfd_create(2) have in common.

use alloc::sync::{Arc, Weak};

use super::{Process, Thread};
use crate::sync::Mutex;
use crate::time::{Clock, TimerKey, cancel, insert, monotonic_ns};
use crate::wait::{Observer, PollMask};

/// What a timer runs on.
#[derive(Clone)]
pub enum Base {
    /// A clock.
    Clock(Clock),
    /// The CPU time of a process.
    ProcessCpu(Weak<Process>),
    /// The CPU time of a thread.
    ThreadCpu(Weak<Thread>),
}

/// CPU time is looked at no more often than this: programs that run in many threads overshoot by so
/// much.
const MIN_SAMPLE_NS: u64 = 1_000_000;

/// A timer that has gone off does so again no sooner than this: what was due in between is counted.
/// Otherwise one with an interval of a nanosecond would be due for ever.
const MIN_REPEAT_NS: u64 = 50_000;

impl Base {
    /// Its time in nanoseconds; `None` when what it counts is gone.
    pub fn now_ns(&self) -> Option<u64> {
        let used = match self {
            Base::Clock(clock) => return Some(clock.now_ns()),
            Base::ProcessCpu(process) => process.upgrade()?.usage(),
            Base::ThreadCpu(thread) => thread.upgrade()?.usage(),
        };
        Some(used.total_ns())
    }

    /// When to look whether it has reached `ns`, as CLOCK_MONOTONIC.
    fn look_at_ns(&self, ns: u64) -> Option<u64> {
        let threads = match self {
            Base::Clock(clock) => return Some(clock.to_monotonic_ns(ns)),
            Base::ProcessCpu(process) => process.upgrade()?.thread_count().max(1) as u64,
            Base::ThreadCpu(_) => 1,
        };
        let left = ns.saturating_sub(self.now_ns()?);
        Some(monotonic_ns().saturating_add((left / threads).max(MIN_SAMPLE_NS)))
    }
}

/// What a timer reports.
pub trait Expire: Send + Sync {
    /// It went off, `times` times since it reported last.
    fn expired(&self, times: u64);
}

/// How a timer is set, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// Until it goes off next; 0: it does not.
    pub left_ns: u64,
    /// From then on, again and again; 0: once.
    pub interval_ns: u64,
}

#[derive(Default)]
struct TimerState {
    /// The time of the base at which it goes off next; 0: it does not.
    next_ns: u64,
    interval_ns: u64,
    key: Option<TimerKey>,
}

/// A timer.
pub struct Timer {
    base: Base,
    state: Mutex<TimerState>,
    target: Weak<dyn Expire>,
    me: Weak<Timer>,
}

impl Timer {
    /// A timer that is not set. It does not keep `target` alive.
    pub fn new(base: Base, target: Weak<dyn Expire>) -> Arc<Self> {
        Arc::new_cyclic(|me| Timer { base, state: Mutex::default(), target, me: me.clone() })
    }

    /// Sets it to go off at `next_ns` of its base (0: not at all): how it was set before.
    pub fn set_at(&self, next_ns: u64, interval_ns: u64) -> Setting {
        let before = self.setting();
        {
            let mut state = self.state.lock();
            state.next_ns = next_ns;
            state.interval_ns = interval_ns;
        }
        self.schedule(0);
        before
    }

    /// Sets it to go off after a while: how it was set before.
    pub fn set(&self, setting: Setting) -> Setting {
        let next_ns = match setting.left_ns {
            0 => 0,
            left => self.base.now_ns().unwrap_or(0).saturating_add(left),
        };
        self.set_at(next_ns, setting.interval_ns)
    }

    /// How it is set now.
    pub fn setting(&self) -> Setting {
        let (next_ns, interval_ns) = {
            let state = self.state.lock();
            (state.next_ns, state.interval_ns)
        };
        if next_ns == 0 {
            // As Linux reports a timer that is not set: its interval still, if it had one.
            return Setting { left_ns: 0, interval_ns };
        }
        // One that is due and has not gone off yet is about to.
        let left_ns = next_ns.saturating_sub(self.base.now_ns().unwrap_or(0)).max(1);
        Setting { left_ns, interval_ns }
    }

    /// Enters the queue of timers for what is set, to be looked at when CLOCK_MONOTONIC is
    /// `earliest_ns` at the earliest.
    fn schedule(&self, earliest_ns: u64) {
        let (old, next_ns) = {
            let mut state = self.state.lock();
            (state.key.take(), state.next_ns)
        };
        if let Some(key) = old {
            cancel(key);
        }
        let Some(me) = self.me.upgrade().filter(|_| next_ns != 0) else { return };
        if let Some(at) = self.base.look_at_ns(next_ns) {
            let key = insert(at.max(earliest_ns), me);
            self.state.lock().key = Some(key);
        }
    }

    /// Takes it out of the queue, for good: the queue would keep it alive.
    pub fn stop(&self) {
        self.set_at(0, 0);
    }
}

/// How often a timer that was due at `next_ns` has gone off by `now_ns`, and when it is due again
/// (0: not).
fn expirations(next_ns: u64, interval_ns: u64, now_ns: u64) -> (u64, u64) {
    if interval_ns == 0 {
        return (1, 0);
    }
    let times = now_ns.saturating_sub(next_ns) / interval_ns + 1;
    (times, next_ns.saturating_add(interval_ns.saturating_mul(times)))
}

impl Observer for Timer {
    fn notify(&self, _events: PollMask) {
        let now_ns = self.base.now_ns();
        let times = {
            let mut state = self.state.lock();
            state.key = None;
            match now_ns {
                Some(now_ns) if state.next_ns != 0 && now_ns >= state.next_ns => {
                    let (times, next_ns) = expirations(state.next_ns, state.interval_ns, now_ns);
                    state.next_ns = next_ns;
                    times
                }
                Some(_) => 0,
                None => {
                    state.next_ns = 0;
                    0
                }
            }
        };
        self.schedule(monotonic_ns().saturating_add(MIN_REPEAT_NS));
        if let Some(target) = self.target.upgrade().filter(|_| times > 0) {
            target.expired(times);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::expirations;

    #[test]
    fn missed_expirations_are_counted() {
        assert_eq!(expirations(100, 0, 100), (1, 0));
        assert_eq!(expirations(100, 0, 900), (1, 0));
        assert_eq!(expirations(100, 10, 100), (1, 110));
        assert_eq!(expirations(100, 10, 109), (1, 110));
        assert_eq!(expirations(100, 10, 110), (2, 120));
        assert_eq!(expirations(100, 10, 155), (6, 160));
        assert_eq!(expirations(1, u64::MAX, u64::MAX), (1, u64::MAX));
    }
}

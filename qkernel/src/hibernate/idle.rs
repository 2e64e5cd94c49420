//! Sleep by itself: a container in which nothing has happened for long enough is put to sleep, and
//! the timers of its programs wake it.
//!
//! Idle is what nobody would miss ([`busy`]), for some time: every thread waits in a system call,
//! nothing has come from outside or lies there untaken, no process from outside runs, and no timer
//! of a program goes off soon. Nothing is counted on the way of a system call: now and then it is
//! looked at what the container has done since the last look.

use alloc::string::ToString;
use core::sync::atomic::Ordering::Relaxed;

use qlib::control::{WakeCause, Wakefulness};

use super::busy::{self, Busy};
use super::deflate::{self, Failure, Why};
use super::state::State;
use super::{called_off, dry, quiesce, stats, told};
use crate::errno::Errno;
use crate::mm::fault;
use crate::sync::{Mutex, mutex};
use crate::task::{pause, table};
use crate::{executor, input, klog, time};

/// So often it is looked in the time that a container must have been idle for.
const LOOKS: u64 = 4;
/// But not more often than this.
const SHORTEST_LOOK_NS: u64 = 10_000_000;
/// A sleep shorter than this is worth less than it costs. Whoever is content with less idleness has
/// timers that go off sooner sleep too.
const GRACE_NS: u64 = 10_000_000_000;

/// How soon it looks again after a probe, which has taken little.
const AFTER_PROBE_NS: u64 = 200_000_000;

/// How soon it looks whether all is over after an answer, if it is not.
const AFTER_ANSWER_NS: u64 = 2_000_000;

/// What a container has done in its life: while this stays as it is, it has done nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Done {
    calls: u64,
    faults: u64,
    input_ns: u64,
    wakes: u64,
    requests: u64,
    probes: u64,
}

impl Done {
    pub(super) fn until_now() -> Done {
        let [requests, probes] = input::taken();
        Done {
            requests,
            probes,
            calls: table::threads().map(|thread| thread.syscalls.load(Relaxed)).sum(),
            faults: fault::count(),
            input_ns: input::last_ns(),
            wakes: stats::wakes() + dry::wakes(),
        }
    }

    /// What would have woken a container that had slept since it had done this, and has done
    /// `self` by now. What it does for its timers is no wake where they rest.
    fn woken_since(&self, before: &Done, timers_rest: bool) -> Option<WakeCause> {
        let taken = |done: &Done| (done.input_ns, done.requests, done.probes);
        if taken(self) != taken(before) {
            Some(WakeCause::Socket)
        } else {
            (!timers_rest && self != before).then_some(WakeCause::Unfinished)
        }
    }

    /// True if it has served probes since, and nobody else.
    fn is_after_probes_only(&self, before: &Done) -> bool {
        self.requests == before.requests && self.probes != before.probes
    }
}

/// For how long nothing has been done, but for answers to probes.
struct Idleness {
    done: Done,
    since_ns: u64,
    /// At the last look a probe had come.
    probed: bool,
}

impl Idleness {
    fn begin() -> Idleness {
        Idleness { done: Done::until_now(), since_ns: time::monotonic_ns(), probed: false }
    }

    /// Looks: for how many nanoseconds nothing has been done. 0 while something is. What programs
    /// do because a timer goes off does not count where `timers_rest`.
    fn look(&mut self, timers_rest: bool) -> u64 {
        let done = Done::until_now();
        let still = is_still();
        self.probed = done.is_after_probes_only(&self.done) || self.probed && !still;
        let used = match timers_rest {
            true => done.input_ns != self.done.input_ns || done.requests != self.done.requests,
            false => done != self.done || !still,
        };
        if !self.probed && used {
            self.since_ns = time::monotonic_ns();
        }
        self.done = done;
        if still { time::elapsed_ns(self.since_ns) } else { 0 }
    }
}

/// True if nothing goes on at this moment in a container that has been started.
pub(super) fn is_still() -> bool {
    matches!(super::current(), State::Awake { .. })
        && !pause::is_paused()
        && busy::inside().is_none()
        && table::process(1).is_some_and(|first| !first.is_zombie())
}

/// When and how a container sleeps by itself.
#[derive(Clone, Copy, Debug)]
pub struct Habit {
    /// Once it has been idle for so many nanoseconds.
    pub after_ns: u64,
    /// Timers of its programs do not count, and do not wake it.
    pub timers_rest: bool,
}

impl Habit {
    /// What keeps it awake now.
    fn is_kept_by(self) -> Option<Busy> {
        busy::inside().or_else(|| busy::outside(self.timers_ns()))
    }

    /// Timers that go off within so many nanoseconds keep it awake.
    pub(super) fn timers_ns(self) -> u64 {
        if self.timers_rest { 0 } else { self.after_ns.min(GRACE_NS) }
    }
}

/// Waits until somebody outside has been answered for the first time, nobody waits for an answer
/// any more, and nothing goes on.
pub async fn served() {
    input::first_answer().await;
    while !is_still() || busy::outside(0).is_some() || busy::owes_an_answer() {
        time::pass(AFTER_ANSWER_NS).await;
    }
}

/// How this container sleeps by itself, and for how long it has been idle at the last look.
static STATE: Mutex<Option<(Habit, u64)>> = mutex(None);

/// Puts the container to sleep each time it has been idle for long enough.
pub fn watch(habit: Habit) {
    let after_ns = habit.after_ns;
    executor::spawn(async move {
        let look_ns = (after_ns / LOOKS).max(SHORTEST_LOOK_NS);
        let mut idleness = Idleness::begin();
        let mut failed = None;
        loop {
            *STATE.lock() = Some((habit, time::elapsed_ns(idleness.since_ns)));
            time::pass(if idleness.probed { look_ns.min(AFTER_PROBE_NS) } else { look_ns }).await;
            if idleness.look(habit.timers_rest) < after_ns
                || busy::outside(habit.timers_ns()).is_some()
            {
                continue;
            }
            if dry::is_on() {
                if !dry::is_asleep() {
                    sleep_dry(habit, &Done::until_now(), look_ns).await;
                }
                continue;
            }
            let failure = deflate::deflate(Why::Idle, called_off()).await.err();
            note(&failed, &failure);
            if failure.is_some() {
                // What has kept it awake may do so again: it is not tried without end.
                idleness = Idleness::begin();
            }
            failed = failure;
        }
    });
}

/// It would sleep now; when this returns it would have been woken, by what it has done since
/// `before` or by somebody else. Looks at that every `look_ns`.
pub(super) async fn sleep_dry(habit: Habit, before: &Done, look_ns: u64) {
    let woken = || Done::until_now().woken_since(before, habit.timers_rest);
    dry::sleep(look_ns, woken).await;
}

/// What keeps the container awake, and when it would sleep.
pub fn wakefulness() -> Wakefulness {
    let (habit, idle_ns) = (*STATE.lock()).unzip();
    let kept_by = match super::current() {
        State::Awake { .. } if pause::ordered_since_ns().is_some() => {
            Some("it is paused, until it is resumed".to_string())
        }
        State::Awake { .. } | State::Settling { .. } => {
            let by_habit = habit.map(Habit::is_kept_by);
            by_habit.unwrap_or_else(|| quiesce::look(u64::MAX)).map(|busy| busy.to_string())
        }
        State::Deflating { .. } | State::Hibernated | State::Inflating => None,
    };
    Wakefulness {
        kept_by,
        after_ms: habit.map_or(0, |habit| habit.after_ns / 1_000_000),
        on_pressure: told::is_heeded(),
        idle_ms: idle_ns.unwrap_or_else(|| time::elapsed_ns(input::last_ns())) / 1_000_000,
    }
}

/// Says why it does not sleep, once for each reason in a row. That something has come in the last
/// moment is none.
pub(super) fn note(before: &Option<Failure>, now: &Option<Failure>) {
    if let Some(Failure { errno, reason }) = now
        && !matches!(*errno, Errno::EINTR | Errno::EBUSY)
        && before.as_ref().is_none_or(|before| before.errno != *errno)
    {
        klog!(Warn, "it was to sleep by itself: {reason}");
    }
}

//! Sleep by itself: a container in which nothing has happened for long enough is put to sleep, and
//! the timers of its programs wake it.
//!
//! Idle is what nobody would miss: every thread waits in a system call, nothing has come from
//! outside or lies there untaken, no process from outside runs, and no timer of a program goes off
//! soon. Nothing is counted on the way of a system call: now and then it is looked at what the
//! container has done since the last look.

use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;

use super::deflate::{self, Failure, Why};
use super::state::State;
use super::{quiesce, stats};
use crate::errno::Errno;
use crate::mm::fault;
use crate::net::host;
use crate::task::{Process, pause, table};
use crate::wait::Signal;
use crate::{executor, input, klog, time};

/// So often it is looked in the time that a container must have been idle for.
const LOOKS: u64 = 4;
/// But not more often than this.
const SHORTEST_LOOK_NS: u64 = 10_000_000;
/// A sleep shorter than this is worth less than it costs. Whoever is content with less idleness has
/// timers that go off sooner sleep too.
const GRACE_NS: u64 = 10_000_000_000;

/// What a container has done in its life: while this stays as it is, it has done nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Done {
    calls: u64,
    faults: u64,
    input_ns: u64,
    wakes: u64,
}

impl Done {
    fn until_now() -> Done {
        Done {
            calls: table::threads().map(|thread| thread.syscalls.load(Relaxed)).sum(),
            faults: fault::count(),
            input_ns: input::last_ns(),
            wakes: stats::wakes(),
        }
    }
}

/// For how long nothing has been done.
struct Idleness {
    done: Done,
    since_ns: u64,
}

impl Idleness {
    fn begin() -> Idleness {
        Idleness { done: Done::until_now(), since_ns: time::monotonic_ns() }
    }

    /// Looks: for how many nanoseconds nothing has been done.
    fn look(&mut self) -> u64 {
        if self.done != Done::until_now() || !is_still() {
            *self = Idleness::begin();
        }
        time::elapsed_ns(self.since_ns)
    }
}

/// True if nothing goes on at this moment in a container that has been started.
fn is_still() -> bool {
    let lives = |process: &Arc<Process>| !process.is_zombie();
    matches!(super::current(), State::Awake { .. })
        && !pause::is_paused()
        && executor::is_drained()
        && quiesce::is_quiet()
        && table::process(1).is_some_and(|first| lives(&first))
        && !table::processes().any(|process| process.is_visitor() && lives(&process))
}

/// True if a program wants something soon: one of its timers goes off, or what came for it lies
/// there still.
fn has_business(grace_ns: u64) -> bool {
    time::is_due_by(time::deadline_after(grace_ns)) || host::holds_input()
}

/// Puts the container to sleep each time it has been idle for `after_ns`.
pub fn watch(after_ns: u64) {
    executor::spawn(async move {
        let look_ns = (after_ns / LOOKS).max(SHORTEST_LOOK_NS);
        let mut idleness = Idleness::begin();
        let mut failed = None;
        loop {
            pass(look_ns).await;
            if idleness.look() < after_ns || has_business(after_ns.min(GRACE_NS)) {
                continue;
            }
            let failure = deflate::deflate(Why::Idle).await.err();
            note(&failed, &failure);
            failed = failure;
            // What has kept it awake may do so again: it is not tried without end.
            idleness = Idleness::begin();
        }
    });
}

/// Says why it does not sleep, once for each reason in a row. That something has come in the last
/// moment is none.
fn note(before: &Option<Failure>, now: &Option<Failure>) {
    if let Some((errno, reason)) = now
        && *errno != Errno::EINTR
        && before.as_ref().is_none_or(|(before, _)| before != errno)
    {
        klog!(Warn, "it was to sleep by itself: {reason}");
    }
}

/// Waits for a time in which the container is awake at the end.
async fn pass(ns: u64) {
    let signal = Arc::new(Signal::default());
    time::insert_own(time::deadline_after(ns), signal.clone());
    signal.wait().await;
}

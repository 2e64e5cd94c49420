//! A dry run of sleep by itself: the container is told of as if it slept each time when it would
//! ([`super::idle`]), and goes on.
//!
//! What would have woken it is known from three sides: from whoever [wakes](super::wake) it, asleep
//! or not; from the first timer of a program that was set when the sleep would have begun; and from
//! what programs have taken in since, which is looked at now and then.

use alloc::sync::Arc;

use qlib::PAGE_SIZE;
use qlib::control::{DryStats, WakeCause};

use super::deflate::Why;
use super::history;
use crate::sync::{Mutex, mutex};
use crate::time::{self, Rest};
use crate::wait::Signal;
use crate::{arch, klog};

/// How often it would have slept, and for how long.
#[derive(Default)]
struct Dry {
    /// The sleep that would last.
    sleep: Option<Sleep>,
    /// Of those that would be over.
    stats: DryStats,
}

struct Sleep {
    begin_ns: u64,
    /// Set at its end.
    ended: Arc<Signal>,
}

/// `None`: containers really sleep.
static DRY: Mutex<Option<Dry>> = mutex(None);

/// From now on nothing sleeps by itself but in numbers.
pub fn begin() {
    *DRY.lock() = Some(Dry::default());
}

/// True if it is only told of.
pub(super) fn is_on() -> bool {
    DRY.lock().is_some()
}

/// How often the container would have been woken.
pub(super) fn wakes() -> u64 {
    DRY.lock().as_ref().map_or(0, |dry| dry.stats.wakes.iter().sum())
}

/// What is told of it, if it is on.
pub(super) fn collect() -> Option<DryStats> {
    let dry = DRY.lock();
    let dry = dry.as_ref()?;
    let mut stats = dry.stats.clone();
    if let Some(sleep) = &dry.sleep {
        let lasts_ns = time::elapsed_ns(sleep.begin_ns);
        stats.is_asleep = true;
        stats.add(lasts_ns);
    }
    Some(stats)
}

/// What a sleep would give back now, in bytes: host memory behind RAM but for what stays, which is
/// the objects and page tables of the kernel's heap, and its image.
fn would_free_bytes() -> u64 {
    let heap = arch::heap::HEAP.stats();
    let stays = heap.pages_held * PAGE_SIZE;
    history::ram_held().saturating_sub(stays)
}

/// The container would sleep from now on. Returns when it would have been woken. `did` tells
/// whether its programs have taken something in since then; it is asked every `look_ns`.
pub(super) async fn sleep(look_ns: u64, did: impl Fn() -> Option<WakeCause>) {
    let begin_ns = time::monotonic_ns();
    let wakes_by_timer = Why::Idle.rest_of_timers() == Rest::UntilDue;
    let due_ns = time::next_due_in_ns().filter(|_| wakes_by_timer);
    let due_ns = due_ns.map(|in_ns| begin_ns.saturating_add(in_ns));
    let ended = Arc::new(Signal::default());
    let freed_bytes = would_free_bytes();
    if let Some(dry) = DRY.lock().as_mut() {
        dry.stats.sleeps += 1;
        dry.stats.last_freed_bytes = freed_bytes;
        dry.sleep = Some(Sleep { begin_ns, ended: ended.clone() });
    }
    klog!(Warn, "dry run: it would sleep now, and give back {} KiB", freed_bytes >> 10);
    while is_asleep() {
        let now_ns = time::monotonic_ns();
        let next_ns = now_ns.saturating_add(look_ns);
        time::insert_own(next_ns.min(due_ns.unwrap_or(u64::MAX)), ended.clone());
        ended.wait().await;
        if let Some(due_ns) = due_ns.filter(|due_ns| *due_ns <= time::monotonic_ns()) {
            end(WakeCause::Timer, due_ns);
        } else if let Some(cause) = did() {
            end(cause, time::monotonic_ns());
        }
    }
}

/// True if it would sleep now.
pub(super) fn is_asleep() -> bool {
    DRY.lock().as_ref().is_some_and(|dry| dry.sleep.is_some())
}

/// Something would wake it if it slept.
pub(super) fn woken(cause: WakeCause) {
    if is_asleep() {
        end(cause, time::monotonic_ns());
    }
}

/// The sleep that would last would have been ended by this, at `end_ns` of CLOCK_MONOTONIC.
fn end(cause: WakeCause, end_ns: u64) {
    let ended = {
        let mut dry = DRY.lock();
        let Some(dry) = dry.as_mut() else { return };
        let Some(sleep) = dry.sleep.take() else { return };
        let ns = end_ns.saturating_sub(sleep.begin_ns);
        dry.stats.add(ns);
        dry.stats.count(cause);
        (sleep.ended, ns)
    };
    let (signal, ns) = ended;
    klog!(Warn, "dry run: woken by {} after {} ms of sleep", cause.name(), ns / 1_000_000);
    signal.set();
}

//! Sleep for the host's memory: while the host is short of it, a container that nobody uses goes to
//! sleep, and those that were used longest ago do so first.
//!
//! The host tells of it in events, each [of some time](LASTS_NS). For as long the container stands
//! in a line with those of other sandboxes that might sleep, in the order of their last use
//! ([`Op::PressureLine`]); the first few go to sleep, and leave the line then. So more and more
//! sleep while events go on to come, and none any more soon after the last.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use qlib::control::Timers;
use qlib::host::Op;

use super::deflate::{self, Failure, TIMERS, Why};
use super::idle::{self, Done, Habit};
use super::state::State;
use super::{background, busy, called_off, dry, history, told};
use crate::host::Call;
use crate::sync::{Mutex, mutex};
use crate::task::table;
use crate::{executor, input, klog, time};

/// Nobody has used it for so long, or it does not sleep: what was just used may be used again, and
/// what was just woken was woken for something.
const UNUSED_NS: u64 = 10_000_000_000;
/// How long an event holds. The kernel's default window brings the next, if there is one, after two
/// seconds; what sleeps meanwhile has to show in it first.
const LASTS_NS: u64 = 1_000_000_000;
/// All that are told of an event are in the line by then. What does something all the time is found
/// out meanwhile.
const GATHER_NS: u64 = 100_000_000;
/// How often it looks whether its turn has come.
const LOOK_NS: u64 = 50_000_000;
/// So many at once: writing memory out is work for a host that has trouble already.
const AT_ONCE: u64 = 2;

/// When the last event came, CLOCK_MONOTONIC.
static LAST_NS: AtomicU64 = AtomicU64::new(0);
/// Somebody stands in the line for it.
static STANDS: AtomicBool = AtomicBool::new(false);
/// Why it did not sleep the last time.
static FAILED: Mutex<Option<Failure>> = mutex(None);

/// The host is short of memory.
pub fn on_pressure() {
    LAST_NS.store(time::monotonic_ns(), Relaxed);
    background::stop();
    if !told::is_heeded() || unused_since_ns().is_none() || STANDS.swap(true, Relaxed) {
        return;
    }
    executor::spawn(async {
        stand().await;
        told::leave();
        STANDS.store(false, Relaxed);
    });
}

/// When it was used last, if that was long enough ago, and nothing goes on now.
fn unused_since_ns() -> Option<u64> {
    if !matches!(super::current(), State::Awake { .. }) || dry::is_asleep() {
        return None;
    }
    let started_ns = table::process(1)?.start_ns;
    let used_ns = started_ns.max(input::last_use_ns()).max(history::woken_ahead_ns().unwrap_or(0));
    let is_unused = time::elapsed_ns(used_ns) >= UNUSED_NS && idle::is_still();
    is_unused.then_some(used_ns)
}

/// Waits for its turn, and sleeps.
async fn stand() {
    let habit = Habit { after_ns: UNUSED_NS, timers_rest: *TIMERS.lock() == Timers::Rest };
    let Some(used_ns) = unused_since_ns() else { return };
    let before = Done::until_now();
    let mut look_ns = GATHER_NS;
    loop {
        let Ok(others) = Call::new(Op::PressureLine).arg(0, used_ns / 1000).run() else { return };
        let is_settled = look_ns != GATHER_NS;
        if is_settled && others < AT_ONCE {
            return sleep(habit, &before).await;
        }
        time::pass(look_ns).await;
        look_ns = LOOK_NS;
        let is_over = time::elapsed_ns(LAST_NS.load(Relaxed)) >= LASTS_NS;
        let is_as_before = unused_since_ns() == Some(used_ns) && Done::until_now() == before;
        if is_over || !is_as_before || busy::outside(habit.timers_ns()).is_some() {
            return;
        }
    }
}

async fn sleep(habit: Habit, before: &Done) {
    if dry::is_on() {
        return idle::sleep_dry(habit, before, UNUSED_NS).await;
    }
    let failure = deflate::deflate(Why::Pressure, called_off()).await.err();
    if failure.is_none() {
        klog!(Info, "it sleeps, as the host is short of memory");
    }
    let last = core::mem::replace(&mut *FAILED.lock(), failure.clone());
    idle::note(&last, &failure);
}

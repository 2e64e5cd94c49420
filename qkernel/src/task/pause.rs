//! Stopping all user code, and letting it go on.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use super::{Thread, table};
use crate::errno::{Errno, Result};
use crate::sync::Count;
use crate::wait::{self, PollMask, Signal, Sleeper, WaitQueue};
use crate::{executor, time};

/// Why user code is stopped. The reasons hold independently: the end of one does not end the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The sandbox goes to sleep, or sleeps. Ended by a wake.
    Sleep,
    /// `quark pause`. Ended by `quark resume` alone.
    Order,
}

/// One reason's part.
struct Pause {
    holds: AtomicBool,
    /// How many pauses have ended: a pause that began after another's end is not the same.
    ended: AtomicU64,
    /// When the last one began, CLOCK_MONOTONIC.
    begin_ns: AtomicU64,
}

impl Pause {
    const fn new() -> Pause {
        Pause {
            holds: AtomicBool::new(false),
            ended: AtomicU64::new(0),
            begin_ns: AtomicU64::new(0),
        }
    }
}

static SLEEP: Pause = Pause::new();
static ORDER: Pause = Pause::new();
/// Notified when no reason holds any more.
static RESUMED: WaitQueue = WaitQueue::new();
/// Notified at every trap while there are [`Traps`], and at the end of a pause.
static TRAPPED: WaitQueue = WaitQueue::new();
/// How many [`Traps`] there are.
static LOOKING: AtomicU32 = AtomicU32::new(0);
/// How many threads wait for the end of a pause.
static AT_GATE: Count = Count::none();

fn part(reason: Reason) -> &'static Pause {
    match reason {
        Reason::Sleep => &SLEEP,
        Reason::Order => &ORDER,
    }
}

/// True if user code is stopped, or to be.
pub fn is_paused() -> bool {
    SLEEP.holds.load(Relaxed) || ORDER.holds.load(Relaxed)
}

/// Since when `quark pause` holds, CLOCK_MONOTONIC.
pub fn ordered_since_ns() -> Option<u64> {
    ORDER.holds.load(Relaxed).then(|| ORDER.begin_ns.load(Relaxed))
}

/// Where each thread waits, at its return to user mode, while the container is paused. A dying
/// thread passes.
pub async fn wait_until_over(thread: &Arc<Thread>) {
    if !is_paused() {
        return;
    }
    let _at_gate = AT_GATE.begin();
    while is_paused() && !thread.is_dying() {
        wait::notified(&RESUMED, PollMask::IN, None).await;
    }
}

/// True if some thread waits for the end of the pause: it has something to do.
pub fn holds_somebody() -> bool {
    AT_GATE.is_any()
}

/// The threads that are in user mode or have the platform change mappings.
fn moving() -> impl Iterator<Item = Arc<Thread>> {
    let is_moving = |thread: &Arc<Thread>| {
        thread.user.is_in_user_mode() || thread.user.is_unproven() || !thread.user.is_synced()
    };
    table::threads().filter(is_moving)
}

/// True if since the pause some thread has the platform change mappings: a system call that was
/// under way goes on.
pub fn is_stirred() -> bool {
    moving().next().is_some()
}

/// Interrupts all of them: whether there are any.
fn interrupt_all() -> bool {
    moving().inspect(|thread| thread.user.interrupt()).count() > 0
}

/// A pause, or the intention: tells whether it has been ended since.
#[derive(Debug)]
pub struct Held {
    reason: Reason,
    ended: u64,
}

impl Held {
    /// Before the pause begins.
    pub fn intend(reason: Reason) -> Held {
        Held { reason, ended: part(reason).ended.load(Relaxed) }
    }

    /// EINTR when it has ended, even if another has begun since.
    pub fn still(&self) -> Result {
        if part(self.reason).ended.load(Relaxed) == self.ended { Ok(()) } else { Err(Errno::EINTR) }
    }
}

/// Somebody who rechecks at each trap.
pub struct Traps {
    signal: Arc<Signal>,
    id: u64,
}

impl Traps {
    /// From now on.
    pub fn watch() -> Traps {
        LOOKING.fetch_add(1, Relaxed);
        let signal = Arc::new(Signal::default());
        Traps { id: TRAPPED.register(PollMask::IN, signal.clone()), signal }
    }

    /// Waits for the next trap, or the end of a pause.
    pub async fn next(&self) {
        self.signal.wait().await;
    }

    /// The same, at most until `deadline_ns` (CLOCK_MONOTONIC).
    pub async fn next_until(&self, deadline_ns: u64) {
        let timer = time::insert(deadline_ns, self.signal.clone());
        self.next().await;
        time::cancel(timer);
    }
}

impl Drop for Traps {
    fn drop(&mut self) {
        TRAPPED.unregister(self.id);
        LOOKING.fetch_sub(1, Relaxed);
    }
}

/// Stops all user code: afterwards every thread waits for its end or in a system call, and none has
/// the platform change mappings. EINTR when [`resume`] came meanwhile.
pub async fn pause(reason: Reason) -> Result<Held> {
    let held = Held::intend(reason);
    if !part(reason).holds.swap(true, Relaxed) {
        part(reason).begin_ns.store(time::monotonic_ns(), Relaxed);
    }
    let traps = Traps::watch();
    loop {
        held.still()?;
        if !interrupt_all() {
            return Ok(held);
        }
        traps.next().await;
    }
}

/// Ends what stops user code for this reason, the intention too. It goes on unless the other reason
/// holds.
pub fn resume(reason: Reason) {
    part(reason).holds.store(false, Relaxed);
    part(reason).ended.fetch_add(1, Relaxed);
    if reason == Reason::Sleep {
        // A deflate that is under way sees that it has been ended before it does anything else.
        executor::release_threads();
    }
    if !is_paused() {
        RESUMED.wake(PollMask::IN);
    }
    TRAPPED.wake(PollMask::IN);
}

/// True if somebody wants to look at each trap.
pub fn is_watched() -> bool {
    LOOKING.load(Relaxed) > 0
}

/// A trap came: whoever pauses rechecks. Not every thread that leaves user mode comes to wait
/// for its end; it may block in a system call that overtook the interruption, or end.
pub fn recheck() {
    if LOOKING.load(Relaxed) > 0 {
        TRAPPED.wake(PollMask::IN);
    }
}

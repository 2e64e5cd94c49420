//! Stopping all user code, and letting it go on.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::errno::{Errno, Result};
use crate::task::{Thread, table};
use crate::wait::{PollMask, Signal, WaitQueue};

static PAUSED: AtomicBool = AtomicBool::new(false);
/// How many pauses have ended: a pause that began after another's end is not the same.
static ENDED: AtomicU64 = AtomicU64::new(0);
/// Told when the pause ends.
static RESUMED: WaitQueue = WaitQueue::new();
/// Told at every trap during a pause: a thread may have left user mode.
static TRAPPED: WaitQueue = WaitQueue::new();

/// Whether user code is stopped, or to be.
pub fn is_paused() -> bool {
    PAUSED.load(Ordering::Relaxed)
}

/// Where each thread waits, at its return to user mode, while the container is paused. A dying thread passes.
pub async fn gate(thread: &Arc<Thread>) {
    if !is_paused() {
        return;
    }
    let resumed = Arc::new(Signal::default());
    let id = RESUMED.register(PollMask::IN, resumed.clone());
    while is_paused() && !thread.is_dying() {
        resumed.wait().await;
    }
    RESUMED.unregister(id);
}

/// A pause that has stopped all user code.
#[derive(Debug)]
pub struct Held(u64);

impl Held {
    /// EINTR when it has ended, even if another has begun since.
    pub fn still(&self) -> Result {
        let holds = is_paused() && ENDED.load(Ordering::Relaxed) == self.0;
        if holds { Ok(()) } else { Err(Errno::EINTR) }
    }
}

/// Stops all user code: afterwards every thread waits in the gate or in a system call, and none has the platform change mappings. EINTR
/// when a wake came meanwhile.
pub async fn pause() -> Result<Held> {
    let held = Held(ENDED.load(Ordering::Relaxed));
    PAUSED.store(true, Ordering::Relaxed);
    let trapped = Arc::new(Signal::default());
    let id = TRAPPED.register(PollMask::IN, trapped.clone());
    let result = loop {
        if let Err(error) = held.still() {
            break Err(error);
        }
        let mut running = false;
        for thread in table::threads() {
            if thread.user.is_in_user_mode() || !thread.user.is_settled() {
                running = true;
                thread.user.interrupt();
            }
        }
        if !running {
            break Ok(());
        }
        trapped.wait().await;
    };
    TRAPPED.unregister(id);
    result.map(|()| held)
}

/// Lets user code go on.
pub fn resume() {
    PAUSED.store(false, Ordering::Relaxed);
    ENDED.fetch_add(1, Ordering::Relaxed);
    RESUMED.wake(PollMask::IN);
    TRAPPED.wake(PollMask::IN);
}

/// A trap came: whoever pauses looks again. Not every thread that leaves user mode comes to the gate; it may block in a system call
/// that overtook the interruption, or end.
pub fn look_again() {
    if is_paused() {
        TRAPPED.wake(PollMask::IN);
    }
}

//! Stopping all user code, and letting it go on.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::errno::{Errno, Result};
use crate::task::{Thread, table};
use crate::wait::{PollMask, Signal, WaitQueue};

static PAUSED: AtomicBool = AtomicBool::new(false);
/// Told when the pause ends.
static RESUMED: WaitQueue = WaitQueue::new();
/// Told when a thread has reached the gate or blocked.
static ARRIVED: WaitQueue = WaitQueue::new();

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
    ARRIVED.wake(PollMask::IN);
    while is_paused() && !thread.is_dying() {
        resumed.wait().await;
    }
    RESUMED.unregister(id);
}

/// Stops all user code: afterwards every thread waits in the gate or in a system call. EINTR when a wake came meanwhile.
pub async fn pause() -> Result {
    PAUSED.store(true, Ordering::Relaxed);
    let arrived = Arc::new(Signal::default());
    let id = ARRIVED.register(PollMask::IN, arrived.clone());
    let result = loop {
        if !is_paused() {
            break Err(Errno::EINTR);
        }
        let mut running = false;
        for thread in table::threads() {
            if thread.user.is_in_user_mode() {
                running = true;
                thread.user.interrupt();
            }
        }
        if !running {
            break Ok(());
        }
        arrived.wait().await;
    };
    ARRIVED.unregister(id);
    result
}

/// Lets user code go on.
pub fn resume() {
    PAUSED.store(false, Ordering::Relaxed);
    RESUMED.wake(PollMask::IN);
    ARRIVED.wake(PollMask::IN);
}

/// A thread ended or blocked: whoever pauses looks again.
pub fn look_again() {
    if is_paused() {
        ARRIVED.wake(PollMask::IN);
    }
}

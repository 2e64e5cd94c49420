//! Whether the container sleeps for the host's memory ([`super::pressure`]), and is told when that
//! is short: while it is awake.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use qlib::host::Op;

use crate::host::Call;
use crate::klog;

/// It sleeps for it at all.
static HEEDS: AtomicBool = AtomicBool::new(false);

/// From now on it sleeps when the host is short of memory.
pub fn heed() {
    HEEDS.store(true, Relaxed);
    watch(true);
}

/// True if it does.
pub(super) fn is_heeded() -> bool {
    HEEDS.load(Relaxed)
}

fn watch(is_on: bool) {
    if let Err(errno) = Call::new(Op::PressureWatch).arg(0, is_on.into()).run() {
        klog!(Warn, "it is not told when the host is short of memory: {errno}");
    }
}

/// It sleeps, for whatever reason: there is nothing more to give, and no event is to disturb it.
pub(super) fn fell_asleep() {
    if is_heeded() {
        leave();
        watch(false);
    }
}

/// It is awake again.
pub(super) fn woke_up() {
    if is_heeded() {
        watch(true);
    }
}

/// Leaves the line of those that sleep for it.
pub(super) fn leave() {
    // It fails only where nobody stands in a line.
    let _ = Call::new(Op::PressureLeave).run();
}

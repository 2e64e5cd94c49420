//! The kernel's entry points: boot, and the dispatch of events.

use qlib::kernel_lock::KernelLock;
use qlib::platform::{
    ABI_VERSION, BOOT_MAGIC, BootInfo, EVENT_CONTROL, EVENT_READY, EVENT_SPACE_GONE, EVENT_TIMER, EVENT_TRAP, Event,
};

use super::{BOOT, lock_wait, lock_wake};
use crate::{control, executor, log, mm, net, task, time, urgent};

static KERNEL_LOCK: KernelLock = KernelLock::new();

/// Boots: called once, before any event. The heap is already there.
pub fn boot(info: &BootInfo) {
    assert!(info.magic == BOOT_MAGIC && info.version == ABI_VERSION, "VMM and kernel image do not belong together");
    BOOT.set(*info);
    mm::init();
}

/// Takes one event; see [`qlib::platform::KernelEntry::dispatch`].
pub(super) unsafe extern "C" fn dispatch(event: *const Event) {
    // SAFETY: the platform gives a valid event for the length of the call.
    let event = unsafe { &*event };
    let is_urgent = urgent::goes_first(event, KERNEL_LOCK.waiting());
    if is_urgent {
        KERNEL_LOCK.lock_urgently(lock_wait);
    } else {
        lock();
    }
    let begin_ns = if is_urgent || log::is_kept(log::Level::Debug) { time::monotonic_ns() } else { 0 };
    handle(event);
    run_some_tasks(is_urgent);
    if begin_ns != 0 {
        note_work(event, time::monotonic_ns() - begin_ns);
    }
    unlock();
}

/// Runs tasks that are ready. Of those that are not urgent, an urgent caller leaves to others what others are there for; and everybody lets
/// an urgent one in between.
fn run_some_tasks(is_urgent: bool) {
    time::advance();
    let leave = |next_is_urgent: bool| {
        !next_is_urgent && (KERNEL_LOCK.is_wanted_urgently() || is_urgent && KERNEL_LOCK.waiting() > 0)
    };
    while executor::run_until(leave) {
        time::rearm();
        if KERNEL_LOCK.waiting() > 0 {
            // Each of them runs what is ready, once it has the lock.
            return;
        }
        unlock();
        lock();
    }
    time::rearm();
}

fn note_work(event: &Event, ns: u64) {
    /// Who waits for the kernel notices that.
    const LONG_NS: u64 = 20_000_000;
    if event.kind == EVENT_TRAP {
        urgent::worked(event.trap.token, ns);
    }
    if ns >= LONG_NS {
        let (kind, trap) = (event.kind, &event.trap);
        crate::klog!(Debug, "busy for {} us with event {kind}, trap {}, call {}", ns / 1000, trap.kind, trap.nr);
    }
}

/// Takes the kernel lock.
pub fn lock() {
    KERNEL_LOCK.lock(lock_wait);
}

/// Gives it up.
pub fn unlock() {
    KERNEL_LOCK.unlock(lock_wake);
}

/// Whether an urgent event waits for the kernel lock. Under it.
pub fn is_wanted_urgently() -> bool {
    KERNEL_LOCK.is_wanted_urgently()
}

/// Takes one event and runs all tasks that are ready then. Under the kernel lock.
pub fn serve(event: &Event) {
    handle(event);
    run_tasks();
}

fn handle(event: &Event) {
    match event.kind {
        EVENT_TRAP => task::on_trap(&event.trap),
        EVENT_READY => net::host::on_ready(event.a, event.b as u32),
        EVENT_TIMER => time::on_timer(),
        EVENT_CONTROL => control::on_request(event.a, event.b),
        EVENT_SPACE_GONE => mm::space::on_gone(event.a),
        _ => {}
    }
}

/// Fires what is due and runs all tasks that are ready. Under the kernel lock.
pub fn run_tasks() {
    time::advance();
    executor::run();
    time::rearm();
}

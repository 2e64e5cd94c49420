//! The kernel's entry points: boot, and the dispatch of events.

use qlib::platform::{
    ABI_VERSION, BOOT_MAGIC, BootInfo, EVENT_CONTROL, EVENT_READY, EVENT_SPACE_GONE, EVENT_TIMER, EVENT_TRAP, Event,
    KernelEntry,
};

use super::{BOOT, lock_wait, lock_wake};
use crate::sync::KernelLock;
use crate::{control, executor, mm, net, task, time};

static KERNEL_LOCK: KernelLock = KernelLock::new();

static ENTRY: KernelEntry = KernelEntry { version: ABI_VERSION, dispatch };

/// Boots: called once, before any event. The heap is already there.
pub fn boot(info: &BootInfo) -> *const KernelEntry {
    assert!(info.magic == BOOT_MAGIC && info.version == ABI_VERSION, "VMM and kernel image do not belong together");
    BOOT.set(*info);
    mm::init();
    &ENTRY
}

/// Takes one event; see [`KernelEntry::dispatch`].
unsafe extern "C" fn dispatch(event: *const Event) {
    // SAFETY: the platform gives a valid event for the length of the call.
    let event = unsafe { &*event };
    lock();
    serve(event);
    unlock();
}

/// Takes the kernel lock.
pub fn lock() {
    KERNEL_LOCK.lock(lock_wait);
}

/// Gives it up.
pub fn unlock() {
    KERNEL_LOCK.unlock(lock_wake);
}

/// Takes one event and runs all tasks that are ready then. Under the kernel lock.
pub fn serve(event: &Event) {
    match event.kind {
        EVENT_TRAP => task::on_trap(&event.trap),
        EVENT_READY => net::host::on_ready(event.a, event.b as u32),
        EVENT_TIMER => time::on_timer(),
        EVENT_CONTROL => control::on_request(event.a, event.b),
        EVENT_SPACE_GONE => mm::space::on_gone(event.a),
        _ => {}
    }
    run_tasks();
}

/// Fires what is due and runs all tasks that are ready. Under the kernel lock.
pub fn run_tasks() {
    time::advance();
    executor::run();
    time::rearm();
}

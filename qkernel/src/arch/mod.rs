//! The edge of the kernel: the platform's operations in safe form, the entry points, the image. The
//! only room of the kernel with `unsafe` code.
#![allow(unsafe_code)]

pub mod boot;
pub mod cache;
pub mod cell;
pub mod copy;
pub mod heap;
pub mod kvm;
pub mod lock;
pub mod ops;
#[cfg(feature = "poison")]
pub mod poison;
pub mod table;
#[cfg(test)]
pub mod test_heap;
pub mod upcalls;
pub mod user;
pub mod xstate;

use qlib::host::HostCall;
use qlib::platform::{ABI_VERSION, BOOT_MAGIC, BootInfo, Event};

pub use self::boot::{boot, gpa_of, is_kvm, phys, ram_bytes};
pub use self::ops::{
    copy_from_gpa, copy_page, copy_to_gpa, host_call, lock_wait, lock_wake, now_ns, panic, release,
    set_timer, user_block,
};
use self::upcalls::UPCALLS;

/// Boots: called once, before any event. The heap is already there.
pub fn start(info: &BootInfo) {
    assert!(
        info.magic == BOOT_MAGIC && info.version == ABI_VERSION,
        "VMM and kernel image do not belong together"
    );
    boot::set(info);
    lock::begin(info.cpus);
    (UPCALLS.boot)();
}

/// Takes one event; see [`qlib::platform::KernelEntry::dispatch`].
///
/// # Safety
/// `event` is valid for the length of the call.
pub unsafe extern "C" fn dispatch(event: *const Event) {
    // SAFETY: the platform gives a valid event for the length of the call.
    (UPCALLS.dispatch)(unsafe { &*event });
}

/// The number of the CPU that this runs on, where the kernel schedules user threads itself: the
/// caller's thread has come from that CPU if its system call has not waited for anything yet.
pub fn cpu() -> Option<u32> {
    is_kvm().then(|| kvm::cpu::this().index)
}

/// Makes a host call without segments, whose result nobody asks for; perhaps a little later, but
/// before any that follows it.
pub fn host_post(call: &mut HostCall) {
    match is_kvm() {
        true => kvm::host::host_post(call),
        false => host_call(call),
    }
}

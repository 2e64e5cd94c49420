//! A vCPU's first steps in ring 0.

use qlib::platform::{BootInfo, PLATFORM_KVM, PlatformOps};

use super::{cpu, fpu, host, sched, space, thread};
use crate::arch::{self, heap};

/// Bit of AT_HWCAP2 (asm/hwcap2.h).
const HWCAP2_FSGSBASE: u64 = 1 << 1;

/// The operations of ring 0.
pub const OPERATIONS: PlatformOps = PlatformOps {
    now: host::now,
    set_timer: sched::set_timer,
    host_call: host::host_call,
    space_new: space::space_new,
    space_drop: space::space_drop,
    space_touched: space::space_touched,
    space_time: space::space_time,
    thread_new: thread::thread_new,
    thread_drop: thread::thread_drop,
    thread_resume: thread::thread_resume,
    thread_stop: thread::thread_stop,
    thread_watch: thread::thread_watch,
    thread_bind: thread::thread_bind,
    thread_answers: thread::thread_answers,
    fpstate_read: thread::fpstate_read,
    fpstate_write: thread::fpstate_write,
    copy: host::quark_ring0_copy,
    release: host::release,
    user_block: space::user_block,
    lock_wait: host::lock_wait,
    lock_wake: host::lock_wake,
    panic: host::panic,
};

/// Runs vCPU `index` for the sandbox's life.
///
/// # Safety
/// In ring 0 with the state that [`qlib::kvm`] describes, once on each vCPU.
pub unsafe fn enter(info: &BootInfo, index: u32) -> ! {
    assert!(info.platform == PLATFORM_KVM, "entered in ring 0 for another platform");
    // SAFETY: as the caller promises.
    unsafe { cpu::init(&info.kvm, info.phys_base, index) };
    if index == 0 {
        heap::init(info);
        cpu::init_fpu();
        // AT_HWCAP2: user code may use RDFSBASE and the like.
        let hwcap2 = if cpu::this().features().fsgsbase { HWCAP2_FSGSBASE } else { 0 };
        arch::start(&BootInfo { fpstate_bytes: fpu::frame_bytes() as u64, hwcap2, ..*info });
    } else {
        cpu::init_fpu();
    }
    sched::run()
}

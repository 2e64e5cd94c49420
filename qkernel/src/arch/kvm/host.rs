//! To qvisor: doorbells, host calls, the end of the sandbox. A doorbell is one OUT: qvisor serves it on this vCPU's own thread.

use core::arch::{asm, global_asm};

use qlib::host::HostCall;
use qlib::kvm::{PORT_CALL, PORT_FAULT, PORT_LOCK_WAIT, PORT_LOCK_WAKE, PORT_PANIC, PORT_START};

use qlib::platform::Event;

use super::entry::UserContext;
use super::{clock, sched};

/// Rings a doorbell with two words.
fn ring(port: u16, first: u64, second: u64) {
    // SAFETY: a port of qvisor's, which reads the registers and checks what they say. It may write memory that the words name.
    unsafe { asm!("out dx, al", in("dx") port, in("rdi") first, in("rsi") second, options(nostack, preserves_flags)) };
}

/// Makes a host call.
pub unsafe extern "C" fn host_call(call: *mut HostCall) {
    ring(PORT_CALL, call as u64, 0);
}

/// Sleeps while the word equals `expected`.
pub unsafe extern "C" fn lock_wait(word: *const u32, expected: u32) {
    ring(PORT_LOCK_WAIT, word as u64, u64::from(expected));
}

/// Wakes one sleeper.
pub unsafe extern "C" fn lock_wake(word: *const u32) {
    ring(PORT_LOCK_WAKE, word as u64, 0);
}

/// See [`qlib::platform::PlatformOps::now`].
pub unsafe extern "C" fn now(clockid: u32) -> u64 {
    clock::now_ns(clockid)
}

/// See [`qlib::platform::PlatformOps::release`].
pub unsafe extern "C" fn release(frames: *const qlib::Frames, count: u64) -> i64 {
    let mut call = HostCall { op: 0x1_0001, args: [frames as u64, count, 0, 0, 0, 0], ..HostCall::default() };
    ring(PORT_CALL, &raw mut call as u64, 0);
    call.ret
}

/// Takes the events of the host.
pub fn take_events() {
    let mut call = HostCall { op: 0x1_0002, ..HostCall::default() };
    loop {
        call.args = [0; 6];
        ring(PORT_CALL, &raw mut call as u64, 0);
        if call.args[0] == 0 {
            return;
        }
        sched::post(Event { kind: call.args[0] as u32, a: call.args[1], b: call.args[2], ..Event::default() });
    }
}

/// Whether there are any.
pub fn has_events() -> bool {
    false
}

/// Starts vCPU `cpu`.
pub fn start(cpu: u32) {
    ring(PORT_START, u64::from(cpu), 0);
}

/// The kernel has found a bug in itself.
pub unsafe extern "C" fn panic(message: *const u8, len: u64) -> ! {
    loop {
        ring(PORT_PANIC, message as u64, len);
    }
}

/// An exception in kernel mode that nothing mends.
pub fn report_fault(context: &UserContext, address: u64) -> ! {
    loop {
        ring(PORT_FAULT, context as *const _ as u64, address);
    }
}

// `rep movsb` is restartable: when it faults, %rcx says exactly how much is left.
global_asm!(
    ".pushsection .text.quark_ring0_copy,\"ax\",@progbits",
    ".balign 16",
    ".hidden quark_ring0_copy",
    ".globl quark_ring0_copy",
    "quark_ring0_copy:",
    "mov rcx, rdx",
    "rep movsb",
    ".hidden quark_ring0_copy_exit",
    ".globl quark_ring0_copy_exit",
    "quark_ring0_copy_exit:",
    "mov rax, rcx",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    /// See [`qlib::platform::PlatformOps::copy`].
    pub fn quark_ring0_copy(dst: *mut u8, src: *const u8, len: u64) -> u64;
    fn quark_ring0_copy_exit();
}

/// Ends the copy routine early if the fault is its own: whether it was.
pub fn mend_copy(context: &mut UserContext) -> bool {
    let (start, exit) = (quark_ring0_copy as *const () as u64, quark_ring0_copy_exit as *const () as u64);
    let own = (start..exit).contains(&context.rip);
    if own {
        context.rip = exit;
    }
    own
}

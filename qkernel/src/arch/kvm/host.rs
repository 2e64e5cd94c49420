//! To qvisor and back: host calls and events through the host-call channel, other hypercalls, the
//! end of the sandbox. A hypercall is one OUT; qvisor serves it on this vCPU's own thread.

use core::arch::{asm, global_asm};

use qlib::channel::{Driver, Hypercall, Params, Port};
use qlib::host::HostCall;
use qlib::platform::Event;
use qlib::{Frames, Gpa};

use super::entry::UserContext;
use super::{clock, cpu, sched};
use crate::arch::{boot, gpa_of, phys};
use crate::sync::{Mutex, mutex};

/// How often an unanswered call is announced again.
const MAX_WAITS: u32 = 1_000_000;
/// Pauses between two of them: more than a microsecond.
const PAUSES: u32 = 100;

/// The channel. It is used under the kernel lock.
static CHANNEL: Mutex<Option<Driver<Out>>> = mutex(None);

/// A hypercall with two words in registers, which qvisor reads at some ports.
fn hypercall(port: Port, first: u64, second: u64) {
    // SAFETY: a port of qvisor's, which checks what the words say. It may read and write memory.
    unsafe {
        asm!("out dx, eax", in("dx") port as u16, in("eax") 0, in("rdi") first, in("rsi") second,
                options(nostack, preserves_flags))
    };
}

/// Rings with parameters; the result.
fn ring_with<const N: usize>(port: Port, parameters: [u64; N]) -> u64 {
    let params = Params::new(phys(), boot().kvm.channel, cpu::this().index);
    for (index, value) in parameters.into_iter().enumerate() {
        params.set(index, value);
    }
    hypercall(port, 0, 0);
    params.get(0)
}

#[derive(Debug, Default)]
struct Out {
    waits: u32,
}

impl Hypercall for Out {
    fn make(&mut self, port: Port) {
        hypercall(port, 0, 0);
    }

    fn wait(&mut self) -> bool {
        (0..PAUSES).for_each(|_| core::hint::spin_loop());
        self.waits += 1;
        !self.waits.is_multiple_of(MAX_WAITS)
    }
}

fn with_channel<T>(f: impl FnOnce(&mut Driver<Out>) -> T) -> T {
    let mut channel = CHANNEL.lock();
    f(channel.get_or_insert_with(|| {
        let driver = Driver::new(phys(), boot().kvm.channel, Out::default());
        // Events may have come before there was a place for them.
        hypercall(Port::Event, 0, 0);
        driver
    }))
}

/// Makes a host call.
pub(super) unsafe extern "C" fn host_call(call: *mut HostCall) {
    // SAFETY: the kernel's own, for the length of this call.
    let call = unsafe { &mut *call };
    with_channel(|channel| channel.call(call));
}

/// Makes a host call without segments, whose result nobody asks for, together with the next one, or
/// before the vCPU leaves the kernel.
pub fn host_post(call: &HostCall) {
    with_channel(|channel| channel.defer(call));
}

/// Makes the host calls that were put off.
pub fn flush() {
    with_channel(|channel| channel.flush());
}

/// Takes the events that have come. An interrupt comes with the next one.
pub fn take_events() {
    while let Some(event) = with_channel(|channel| channel.next_event()) {
        sched::post(Event { kind: event.kind, a: event.a, b: event.b, ..Event::default() });
    }
}

/// True if events have come that nobody has taken. Under the kernel lock.
pub fn has_events() -> bool {
    with_channel(|channel| channel.has_events())
}

/// See [`qlib::platform::PlatformOps::now`].
pub(super) unsafe extern "C" fn now(clockid: u32) -> u64 {
    clock::now_ns(clockid)
}

/// See [`qlib::platform::PlatformOps::release`].
pub(super) unsafe extern "C" fn release(frames: *const Frames, count: u64) -> i64 {
    ring_with(Port::Release, [gpa_of(frames.cast()).0, count]) as i64
}

/// Sleeps while the word equals `expected`.
pub(super) unsafe extern "C" fn lock_wait(word: *const u32, expected: u32) {
    ring_with(Port::LockWait, [gpa_of(word.cast()).0, u64::from(expected)]);
}

/// Wakes one sleeper.
pub(super) unsafe extern "C" fn lock_wake(word: *const u32) {
    ring_with(Port::LockWake, [gpa_of(word.cast()).0]);
}

/// Makes RAM usable up to `end`: up to where it is then.
pub fn grow(end: Gpa) -> Option<Gpa> {
    let ready = ring_with(Port::Grow, [end.0]);
    (ready != 0).then_some(Gpa(ready))
}

/// Waits until this vCPU's wake word is set or CLOCK_MONOTONIC is at `deadline_ns`; may return for
/// no reason. Whether the time has come.
pub fn wait(deadline_ns: u64) -> bool {
    ring_with(Port::Idle, [deadline_ns]) == 1
}

/// Ends the wait of vCPU `cpu`, whose wake word has been set.
pub fn wake(cpu: u32) {
    ring_with(Port::Wake, [u64::from(cpu)]);
}

/// Starts vCPU `cpu`.
pub fn start(cpu: u32) {
    ring_with(Port::Start, [u64::from(cpu)]);
}

/// The kernel has found a bug in itself.
pub(super) unsafe extern "C" fn panic(message: *const u8, len: u64) -> ! {
    loop {
        hypercall(Port::Panic, message as u64, len);
    }
}

/// An exception in kernel mode that has no fixup.
pub fn report_fault(context: &UserContext, address: u64) -> ! {
    loop {
        hypercall(Port::Fault, core::ptr::from_ref(context) as u64, address);
    }
}

// `rep movsb` is restartable: when it faults, %rcx says exactly how much is left.
global_asm!(
    ".pushsection .text.quark_ring0_copy,\"ax\",@progbits",
    ".balign 16",
    ".hidden quark_ring0_copy",
    ".globl quark_ring0_copy",
    ".type quark_ring0_copy,@function",
    "quark_ring0_copy:",
    "mov rcx, rdx",
    "rep movsb",
    ".hidden quark_ring0_copy_exit",
    ".globl quark_ring0_copy_exit",
    "quark_ring0_copy_exit:",
    "mov rax, rcx",
    "ret",
    ".size quark_ring0_copy, . - quark_ring0_copy",
    ".popsection",
);

unsafe extern "C" {
    /// See [`qlib::platform::PlatformOps::copy`].
    pub fn quark_ring0_copy(dst: *mut u8, src: *const u8, len: u64) -> u64;
    fn quark_ring0_copy_exit();
}

/// Ends the copy routine early if the fault is its own: whether it was.
pub fn fixup_copy(context: &mut UserContext) -> bool {
    let (start, exit) =
        (quark_ring0_copy as *const () as u64, quark_ring0_copy_exit as *const () as u64);
    let own = (start..exit).contains(&context.rip);
    if own {
        context.rip = exit;
    }
    own
}

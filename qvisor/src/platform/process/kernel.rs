//! The kernel image in this process: the operations that it calls and that are not about user
//! threads, and the way into it: its ELF entry point, then its dispatch function.
//!
//! The kernel runs in this process, so what it passes are pointers of this process. Those that name
//! guest memory are checked to do so.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, bail};
use qlib::host::{HostCall, Op};
use qlib::platform::{BootInfo, Event, PlatformOps, Resume};
use qlib::{Frames, Gpa, Va};
use rustix::io::Errno;

use super::answers::{self, Later};
use crate::sandbox::backtrace;
use crate::sandbox::hostcall::HostSide;
use crate::sandbox::loader::{IMAGE_START, LoadedKernel, OpsBytes};
use crate::sandbox::memory::{GuestMemory, copy};
use crate::sandbox::panic::{self, PANIC_STATUS};
use crate::sandbox::platform::Entry;
use crate::sys;

/// What the operations work on. There is one sandbox in a process.
static HOST: OnceLock<Arc<HostSide>> = OnceLock::new();

fn host() -> &'static HostSide {
    match HOST.get() {
        Some(host) => host,
        // Only a kernel that was entered can get here, and it is entered with the host set.
        None => die("a platform operation before the sandbox was set up"),
    }
}

fn die(message: &str) -> ! {
    sys::say_without_waiting(format!("quark: {message}\n").as_bytes());
    sys::exit_now(PANIC_STATUS)
}

/// Makes `host` the one that the operations serve. EEXIST when there is one.
pub fn set_host(host: Arc<HostSide>) -> Result<(), Errno> {
    HOST.set(host).map_err(|_| Errno::EXIST)
}

/// The operations of this module. Those on address spaces and threads fail with ENODEV until a
/// platform has put its own in their place.
pub fn operations() -> PlatformOps {
    unsafe extern "C" fn none(_: u32) -> i64 {
        -i64::from(libc::ENODEV)
    }
    unsafe extern "C" fn one(_: u64) {}
    unsafe extern "C" fn touched(_: u64, _: Va, _: u64, _: *mut u64) -> i64 {
        -i64::from(libc::ENODEV)
    }
    unsafe extern "C" fn time(_: u64) -> i64 {
        -i64::from(libc::ENOSYS)
    }
    unsafe extern "C" fn new(_: u64, _: u64, _: u64) -> i64 {
        -i64::from(libc::ENODEV)
    }
    // The host schedules user code.
    unsafe extern "C" fn watch(_: u64, _: u32) -> i64 {
        -i64::from(libc::ENOSYS)
    }
    unsafe extern "C" fn bind(_: u64, _: u64) -> i64 {
        -i64::from(libc::ENOSYS)
    }
    unsafe extern "C" fn answers(_: u64, _: u32, _: u32) {}
    unsafe extern "C" fn resume(_: u64, _: *const Resume) {}
    unsafe extern "C" fn fp_read(_: u64, _: *mut u8, _: u64) -> i64 {
        -i64::from(libc::ENODEV)
    }
    unsafe extern "C" fn fp_write(_: u64, _: *const u8, _: u64) -> i64 {
        -i64::from(libc::ENODEV)
    }
    PlatformOps {
        now,
        set_timer,
        host_call,
        space_new: none,
        space_drop: one,
        space_touched: touched,
        space_time: time,
        thread_new: new,
        thread_drop: one,
        thread_resume: resume,
        thread_stop: one,
        thread_watch: watch,
        thread_bind: bind,
        thread_answers: answers,
        fpstate_read: fp_read,
        fpstate_write: fp_write,
        copy: op_copy,
        release,
        user_block,
        lock_wait,
        lock_wake,
        panic: quark_panic,
    }
}

unsafe extern "C" fn now(clock: u32) -> u64 {
    use rustix::time::{ClockId, clock_gettime};
    let id = match clock as i32 {
        libc::CLOCK_REALTIME => ClockId::Realtime,
        libc::CLOCK_BOOTTIME => ClockId::Boottime,
        _ => ClockId::Monotonic,
    };
    let t = clock_gettime(id);
    (t.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec as u64)
}

unsafe extern "C" fn set_timer(deadline_ns: u64) {
    host().poller.set_timer(deadline_ns);
}

unsafe extern "C" fn host_call(call: *mut HostCall) {
    // SAFETY: the kernel passes a request of its own that nobody else touches until this returns.
    // (It may lie on the stack of this thread, so it is not looked for in guest memory.)
    let call = unsafe { &mut *call };
    // Which is asked on the way out.
    if call.op != Op::TakeReady as u32 {
        answers::send_all();
    }
    host().call(call);
}

unsafe extern "C" fn op_copy(dst: *mut u8, src: *const u8, len: u64) -> u64 {
    // SAFETY: the kernel promises what `copy` asks for.
    unsafe { copy::copy(dst, src, len as usize) as u64 }
}

unsafe extern "C" fn release(frames: *const Frames, count: u64) -> i64 {
    if count == 0 {
        return 0;
    }
    answers::send_all();
    // SAFETY: the kernel passes an array of `count` ranges that stays as it is until this returns.
    let frames = unsafe { std::slice::from_raw_parts(frames, count as usize) };
    match host().memory.release(frames.iter().copied()) {
        Ok(()) => 0,
        Err(e) => -i64::from(e.raw_os_error()),
    }
}

unsafe extern "C" fn user_block(block: Gpa, is_user: u32) -> i64 {
    match host().memory.set_user_block(block, is_user != 0) {
        Ok(()) => 0,
        Err(e) => -i64::from(e.raw_os_error()),
    }
}

unsafe extern "C" fn lock_wait(word: *const u32, expected: u32) {
    answers::send_all();
    // SAFETY: the kernel passes a word of its own that stays; both sides use it atomically.
    sys::futex_wait_private(unsafe { AtomicU32::from_ptr(word.cast_mut()) }, expected);
}

unsafe extern "C" fn lock_wake(word: *const u32) {
    // SAFETY: as above.
    sys::futex_wake_private(unsafe { AtomicU32::from_ptr(word.cast_mut()) });
}

// The kernel is compiled with frame pointers and this side is not: the frame pointer must be saved
// before any code of ours runs. Message and length stay where they are.
std::arch::global_asm!(
    ".pushsection .text.quark_panic,\"ax\",@progbits",
    ".hidden quark_panic",
    ".globl quark_panic",
    "quark_panic:",
    "mov rdx, rbp",
    "mov rcx, [rsp]",
    "jmp {inner}",
    ".popsection",
    inner = sym panic_with_frame,
);

unsafe extern "C" {
    fn quark_panic(message: *const u8, len: u64) -> !;
}

unsafe extern "C" fn panic_with_frame(message: *const u8, len: u64, frame: u64, caller: u64) -> ! {
    let mut text = vec![0u8; len.min(4096) as usize];
    // SAFETY: the kernel passes `len` readable bytes.
    let left = unsafe { copy::copy(text.as_mut_ptr(), message, text.len()) };
    text.truncate(text.len() - left);
    report("kernel panic", &String::from_utf8_lossy(&text), caller, frame)
}

/// Reports what happened in the kernel and where, and ends the sandbox.
fn report(what: &str, message: &str, rip: u64, frame: u64) -> ! {
    let base = HOST.get().map_or(0, |h| h.memory.base() + IMAGE_START.0);
    let trace = backtrace::describe(base, &backtrace::walk(base, rip, frame, &copy::last_look));
    panic::end_with_report(what, message, &trace)
}

/// For [`copy::set_crash_hook`]: a fault in the kernel image is reported as the kernel's panic is.
/// Any other is the VMM's.
pub fn crash(rip: u64, frame: u64, addr: u64, signo: i32) {
    let Some(host) = HOST.get() else { return };
    let image = host.memory.base() + IMAGE_START.0;
    if (image..image + backtrace::image_bytes()).contains(&rip) {
        report("kernel fault", &format!("signal {signo} at address {addr:#x}"), rip, frame)
    }
    panic::crash(rip, frame, addr, signo);
}

/// The running kernel.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    dispatch: unsafe extern "C" fn(*const Event),
}

impl Kernel {
    /// Gives the kernel one event. May be called on several threads at once.
    pub fn dispatch(&self, event: &Event) {
        // Dropped after the other.
        let _later = Later::begin();
        let _kernel = sys::ordered::enter_kernel();
        // SAFETY: the function was given by the kernel at its entry for this purpose; the event
        // lives until it returns.
        unsafe { (self.dispatch)(event) }
    }

    /// The function itself.
    #[cfg(test)]
    pub fn dispatch_fn(&self) -> unsafe extern "C" fn(*const Event) {
        self.dispatch
    }
}

/// The table of operations as it stands in the kernel image.
pub fn bytes(ops: &PlatformOps) -> OpsBytes {
    // SAFETY: the structure is nothing but pointers to functions, so it has no padding; both sides
    // are of one size.
    unsafe { std::mem::transmute_copy(ops) }
}

/// Writes the boot information and calls the entry point of the image that
/// [`crate::sandbox::loader::load`] put into `memory`. Once: guest memory stays for the rest of the
/// process' life.
pub fn enter(
    memory: Arc<GuestMemory>,
    loaded: &LoadedKernel,
    info: &BootInfo,
    entry: Entry<'_>,
) -> anyhow::Result<Kernel> {
    // The kernel will run in it from any thread at any time.
    let memory: &'static GuestMemory = Box::leak(Box::new(memory));
    memory.keep_apart(loaded.free_start);
    match entry {
        Entry::Boot => memory.write_boot_info(loaded.boot_info, info)?,
        Entry::Again(user_blocks) => check_again(memory, loaded, info, user_blocks)?,
    }
    let address = |gpa: Gpa| (memory.base() + gpa.0) as usize;
    // SAFETY: the image's entry point has this signature, the loader found it in the image's text
    // and made that executable, and the image was built with this binary.
    let boot: extern "C" fn(*const BootInfo, u32) =
        unsafe { std::mem::transmute(address(loaded.entry)) };
    // SAFETY: likewise, of the function for events.
    let dispatch: unsafe extern "C" fn(*const Event) =
        unsafe { std::mem::transmute(address(loaded.dispatch)) };
    if matches!(entry, Entry::Boot) {
        boot(address(loaded.boot_info) as *const BootInfo, 0);
    }
    Ok(Kernel { dispatch })
}

/// Checks that the kernel in filled memory knows this host, and says which blocks are user memory.
fn check_again(
    memory: &GuestMemory,
    loaded: &LoadedKernel,
    info: &BootInfo,
    user_blocks: &[u64],
) -> anyhow::Result<()> {
    if !memory.has_boot_info(loaded.boot_info, info)? {
        bail!(
            "the programs of the image have been told of another host than this is for the \
             container: give it as many processors as the one had that was saved, or save one that \
             was started with --fast-calls=off"
        );
    }
    memory.become_user_blocks(user_blocks).context("the image is damaged: its blocks")
}

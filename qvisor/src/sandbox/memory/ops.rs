//! The operations that the kernel calls on this platform and that are not about user threads, and the way into the
//! kernel: its ELF entry point, then its dispatch function.
//!
//! The kernel runs in this process, so what it passes are pointers of this process. Those that name guest memory are checked to do so.

use std::io::Write;
use std::sync::{Arc, OnceLock};

use qlib::host::HostCall;
use qlib::platform::{BootInfo, Event, PlatformOps, Resume};
use qlib::{Frames, Gpa, Va};
use rustix::io::Errno;

use super::super::hostcall::HostSide;
use super::super::loader::{IMAGE_START, LoadedKernel, LoaderError};
use super::{GuestMemory, copy};
use crate::sandbox::{backtrace, ended};

/// Exit status of a sandbox whose kernel found a bug in itself.
pub const PANIC_STATUS: i32 = 70;

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
    writeln!(std::io::stderr(), "quark: {message}").ok();
    // SAFETY: _exit has no precondition. Not exit: other threads still run kernel code.
    unsafe { libc::_exit(PANIC_STATUS) }
}

/// Makes `host` the one that the operations serve. EEXIST when there is one.
pub fn set_host(host: Arc<HostSide>) -> Result<(), Errno> {
    HOST.set(host).map_err(|_| Errno::EXIST)
}

/// The operations of this module. Those on address spaces and threads fail with ENODEV until a platform has put its own
/// in their place.
pub fn operations() -> PlatformOps {
    unsafe extern "C" fn none(_: u32) -> i64 {
        -i64::from(libc::ENODEV)
    }
    unsafe extern "C" fn one(_: u64) {}
    unsafe extern "C" fn touched(_: u64, _: Va, _: u64, _: *mut u64) -> i64 {
        -i64::from(libc::ENODEV)
    }
    unsafe extern "C" fn new(_: u64, _: u64, _: u64) -> i64 {
        -i64::from(libc::ENODEV)
    }
    unsafe extern "C" fn watch(_: u64, _: u32) -> i64 {
        // The host schedules user code.
        -i64::from(libc::ENOSYS)
    }
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
        thread_new: new,
        thread_drop: one,
        thread_resume: resume,
        thread_stop: one,
        thread_watch: watch,
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
    // SAFETY: the kernel passes a request of its own that nobody else touches until this returns. (It may lie on the
    // stack of this thread, so it is not looked for in guest memory.)
    let call = unsafe { &mut *call };
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
    wait_on(word as usize, expected);
}

unsafe extern "C" fn lock_wake(word: *const u32) {
    wake_one(word as usize);
}

/// Sleeps while the word at that address is `expected`; may return for no reason.
pub fn wait_on(word: usize, expected: u32) {
    // SAFETY: the host checks the address. Every result, also EINTR and EAGAIN, means: look again.
    unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, expected, 0usize) };
}

/// As [`wait_on`], until `deadline_ns` of CLOCK_MONOTONIC at most: whether that has come.
pub fn wait_on_until(word: usize, expected: u32, deadline_ns: u64) -> bool {
    const SECOND_NS: u64 = 1_000_000_000;
    let until = libc::timespec {
        tv_sec: i64::try_from(deadline_ns / SECOND_NS).unwrap_or(i64::MAX),
        tv_nsec: (deadline_ns % SECOND_NS) as i64,
    };
    let op = libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: as in `wait_on`; the time is on this stack.
    let rc = unsafe {
        libc::syscall(libc::SYS_futex, word, op, expected, &raw const until, 0usize, libc::FUTEX_BITSET_MATCH_ANY)
    };
    rc < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ETIMEDOUT)
}

/// Wakes one that sleeps in [`wait_on`].
pub fn wake_one(word: usize) {
    // SAFETY: as above; waking has no effect but on waiters.
    unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) };
}

// The kernel is compiled with frame pointers and this side is not: the frame pointer must be saved before any code of ours
// runs. Message and length stay where they are.
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
    report("kernel panic", &String::from_utf8_lossy(&text), caller, frame);
    // SAFETY: _exit has no precondition.
    unsafe { libc::_exit(PANIC_STATUS) }
}

/// Tells log and standard error what happened in the kernel and where.
fn report(what: &str, message: &str, rip: u64, frame: u64) {
    let base = HOST.get().map_or(0, |h| h.memory.base() + IMAGE_START.0);
    let trace = backtrace::describe(base, &backtrace::walk(base, rip, frame, &copy::last_look));
    tell(what, message, &trace);
}

fn tell(what: &str, message: &str, trace: &str) {
    ended::ended(PANIC_STATUS, &format!("{what}: {message}"));
    tracing::error!(target: "kernel", "{what}: {message}\n{trace}");
    writeln!(std::io::stderr(), "quark: {what}: {message}\n{trace}").ok();
}

/// Tells log and standard error what happened in the kernel, and ends the sandbox.
pub fn end_with_report(what: &str, message: &str, trace: &str, status: i32) -> ! {
    tell(what, message, trace);
    end(status)
}

/// Ends the sandbox at once.
pub fn end(status: i32) -> ! {
    // SAFETY: _exit has no precondition. Not exit: other threads still run the guest.
    unsafe { libc::_exit(status) }
}

/// For [`copy::set_crash_hook`]: a fault in the kernel image is reported as the kernel's panic is.
pub fn crash(rip: u64, frame: u64, addr: u64, signo: i32) {
    let Some(host) = HOST.get() else { return };
    let image = host.memory.base() + IMAGE_START.0;
    if (image..image + backtrace::image_bytes()).contains(&rip) {
        report("kernel fault", &format!("signal {signo} at address {addr:#x}"), rip, frame);
        // SAFETY: _exit has no precondition.
        unsafe { libc::_exit(PANIC_STATUS) }
    }
}

/// The running kernel.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    dispatch: unsafe extern "C" fn(*const Event),
}

impl Kernel {
    /// Gives the kernel one event. May be called on several threads at once.
    pub fn dispatch(&self, event: &Event) {
        // SAFETY: the function was given by the kernel at its entry for this purpose; the event lives until it returns.
        unsafe { (self.dispatch)(event) }
    }

    /// The function itself, for the platform.
    pub fn dispatch_fn(&self) -> unsafe extern "C" fn(*const Event) {
        self.dispatch
    }
}

/// The table of operations as it stands in the kernel image.
pub fn bytes(ops: &PlatformOps) -> [u8; size_of::<PlatformOps>()] {
    // SAFETY: the structure is nothing but pointers to functions, so it has no padding; both sides are of one size.
    unsafe { std::mem::transmute_copy(ops) }
}

/// Writes the boot information to its place.
pub fn write_boot_info(memory: &GuestMemory, loaded: &LoadedKernel, info: &BootInfo) -> Result<(), Errno> {
    // SAFETY: BootInfo is plain data without padding that matters; it is only read.
    let bytes = unsafe { std::slice::from_raw_parts((&raw const *info).cast::<u8>(), size_of::<BootInfo>()) };
    memory.write(loaded.boot_info, bytes)
}

/// Writes the boot information and calls the entry point of the image that [`super::super::loader::load`] put into
/// `memory`. Once: guest memory stays for the rest of the process' life.
pub fn enter(memory: Arc<GuestMemory>, loaded: &LoadedKernel, info: &BootInfo) -> Result<Kernel, LoaderError> {
    // The kernel will run in it from any thread at any time.
    let memory: &'static GuestMemory = Box::leak(Box::new(memory));
    write_boot_info(memory, loaded, info)?;
    memory.keep_apart(loaded.free_start);
    let address = |gpa: Gpa| (memory.base() + gpa.0) as usize;
    // SAFETY: the image's entry point has this signature, the loader found it in the image's text and made that executable, and the
    // image was built with this binary.
    let entry: extern "C" fn(*const BootInfo, u32) = unsafe { std::mem::transmute(address(loaded.entry)) };
    // SAFETY: likewise, of the function for events.
    let dispatch: unsafe extern "C" fn(*const Event) = unsafe { std::mem::transmute(address(loaded.dispatch)) };
    entry(address(loaded.boot_info) as *const BootInfo, 0);
    Ok(Kernel { dispatch })
}

/// Sets the dispositions that the sandbox process needs: writing to a closed pipe or past a file-size limit, or reading a
/// terminal from the background, gives an error, never a signal.
pub fn ignore_signals() {
    for signo in [libc::SIGPIPE, libc::SIGTTIN, libc::SIGTTOU, libc::SIGXFSZ] {
        // SAFETY: ignoring a signal has no precondition.
        unsafe { libc::signal(signo, libc::SIG_IGN) };
    }
}

/// Keeps the allocator from holding an arena for each thread.
pub fn limit_malloc() {
    // SAFETY: mallopt has no precondition.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 64 << 10);
    }
}

/// Gives what this process holds for itself and does not use back to the host: free memory of the allocator and, on its first thread, the
/// stack that deeper calls than this one have used.
#[inline(never)]
pub fn trim_process() {
    /// More than set-up uses. The host keeps far more than this free below the first thread's stack.
    const STACK_BYTES: usize = 256 << 10;
    const PAGE: usize = qlib::PAGE_SIZE as usize;
    // SAFETY: malloc_trim has no precondition.
    unsafe { libc::malloc_trim(0) };
    // SAFETY: no arguments.
    let (thread, process) = unsafe { (libc::gettid(), libc::getpid()) };
    if thread != process {
        return;
    }
    let here = 0u8;
    // Further down than anything that this function and what it calls can have there.
    let top = ((&raw const here).addr() & !(PAGE - 1)) - 2 * PAGE;
    // SAFETY: the range is unused stack, or not mapped at all: nobody has a reference into it.
    unsafe { libc::madvise((top - STACK_BYTES) as *mut libc::c_void, STACK_BYTES, libc::MADV_DONTNEED) };
}

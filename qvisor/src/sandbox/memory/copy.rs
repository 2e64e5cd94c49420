//! A memcpy that survives memory the host cannot supply. A file window past the end of its file
//! (truncated under us) answers a touch with SIGBUS, a hole in the window area with SIGSEGV; the
//! handler then lets the copy routine, and nothing else, return early.

use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

// `rep movsb` is restartable: when it faults, %rcx says exactly how much is left.
std::arch::global_asm!(
    ".pushsection .text.quark_copy,\"ax\",@progbits",
    ".balign 16",
    ".hidden quark_copy",
    ".globl quark_copy",
    "quark_copy:",
    "mov rcx, rdx",
    "rep movsb",
    ".hidden quark_copy_exit",
    ".globl quark_copy_exit",
    "quark_copy_exit:",
    "mov rax, rcx",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn quark_copy(dst: *mut u8, src: *const u8, len: usize) -> usize;
    fn quark_copy_exit();
}

/// The span of addresses that guest memory occupies in this process, as the SIGSEGV handler sees
/// it.
static GUEST_LOW: AtomicUsize = AtomicUsize::new(usize::MAX);
static GUEST_HIGH: AtomicUsize = AtomicUsize::new(0);
/// What to do with a fault that is not the copy routine's own: see [`set_crash_hook`].
static CRASH_HOOK: AtomicUsize = AtomicUsize::new(0);

/// Copies `len` bytes; how many at the end could not be copied.
///
/// # Safety
/// Whatever of `dst` lies outside guest memory must be writable, whatever of `src` does must be
/// readable, for `len` bytes, and the two must not overlap.
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> usize {
    // SAFETY: as the caller promises; the direction flag is clear by the calling convention.
    unsafe { quark_copy(dst, src, len) }
}

/// True if a fault of the copy routine is survived wherever the address lies: only while the
/// process ends.
static ANYWHERE: AtomicBool = AtomicBool::new(false);

/// Two words of this process's memory, if there is any at `address`: for the report with which the
/// process ends, and no earlier, for from now on a copy that fails for a bug of our own goes
/// unnoticed.
pub fn last_look(address: u64) -> Option<(u64, u64)> {
    ANYWHERE.store(true, Ordering::Release);
    let mut pair = [0u64; 2];
    // SAFETY: the pair is writable for 16 bytes; of the source the fault handler lets the routine
    // survive every byte.
    let left = unsafe { copy(pair.as_mut_ptr().cast(), address as *const u8, size_of_val(&pair)) };
    (left == 0).then_some((pair[0], pair[1]))
}

/// A report of a fault in code that should not fault: instruction pointer, frame pointer, address,
/// signal number.
pub type CrashHook = fn(rip: u64, rbp: u64, addr: u64, signo: i32);

/// Sets what is called (on the faulting thread, in the signal handler) before an unexpected SIGSEGV
/// or SIGBUS takes its default action.
pub fn set_crash_hook(hook: CrashHook) {
    CRASH_HOOK.store(hook as usize, Ordering::Release);
}

/// Installs the handlers, once, and adds `[base, base+len)` to what they take for guest memory.
pub fn install_handlers(base: usize, len: usize) -> io::Result<()> {
    GUEST_LOW.fetch_min(base, Ordering::AcqRel);
    GUEST_HIGH.fetch_max(base.saturating_add(len), Ordering::AcqRel);
    static INSTALLED: Once = Once::new();
    let mut result = Ok(());
    INSTALLED.call_once(|| {
        for signo in [libc::SIGBUS, libc::SIGSEGV] {
            // SAFETY: all-zero is a valid sigaction, and the handler has the signature that
            // SA_SIGINFO asks for.
            let rc = unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_fault as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
                libc::sigaction(signo, &action, std::ptr::null_mut())
            };
            if rc != 0 {
                result = Err(io::Error::last_os_error());
            }
        }
    });
    result
}

extern "C" fn on_fault(signo: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands a valid siginfo and ucontext to an SA_SIGINFO handler, ours alone
    // until it returns.
    let (info, context) = unsafe { (&*info, &mut *context.cast::<libc::ucontext_t>()) };
    let registers = &mut context.uc_mcontext.gregs;
    let rip = registers[libc::REG_RIP as usize] as usize;
    let exit = quark_copy_exit as *const () as usize;
    let start = quark_copy as *const () as usize;
    // SAFETY: SIGSEGV and SIGBUS carry an address.
    let addr = unsafe { info.si_addr() } as usize;
    let from_kernel = info.si_code > 0;
    let guest =
        (GUEST_LOW.load(Ordering::Acquire)..GUEST_HIGH.load(Ordering::Acquire)).contains(&addr);
    if from_kernel
        && (start..exit).contains(&rip)
        && (guest || signo == libc::SIGBUS || ANYWHERE.load(Ordering::Acquire))
    {
        registers[libc::REG_RIP as usize] = exit as i64;
        return;
    }
    let hook = CRASH_HOOK.swap(0, Ordering::AcqRel);
    if hook != 0 {
        // SAFETY: only `set_crash_hook` stores here, and it stores a CrashHook.
        let hook: CrashHook = unsafe { std::mem::transmute::<usize, CrashHook>(hook) };
        hook(rip as u64, registers[libc::REG_RBP as usize] as u64, addr as u64, signo);
    }
    // SAFETY: signal(2) is async-signal-safe. The fault happens again on return, now with the
    // default action; a signal that somebody sent is sent again by raise.
    unsafe {
        libc::signal(signo, libc::SIG_DFL);
        if !from_kernel {
            libc::raise(signo);
        }
    }
}

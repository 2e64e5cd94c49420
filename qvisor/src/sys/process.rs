//! This process itself: its signals, its allocator, its end.
#![allow(unsafe_code)]

/// Sets the dispositions that the sandbox process needs: writing to a closed pipe or past a
/// file-size limit, or reading a terminal from the background, gives an error, never a signal.
pub fn ignore_signals() {
    for signo in [libc::SIGPIPE, libc::SIGTTIN, libc::SIGTTOU, libc::SIGXFSZ] {
        // SAFETY: ignoring a signal has no precondition.
        unsafe { libc::signal(signo, libc::SIG_IGN) };
    }
}

/// All signals that can be caught.
pub fn all_signals() -> nix::sys::signal::SigSet {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: sigfillset writes the whole set, and leaves out what the C library needs itself.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        nix::sys::signal::SigSet::from_sigset_t_unchecked(set.assume_init())
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

/// Gives what this process holds for itself and does not use back to the host: free memory of the
/// allocator and, on its first thread, the stack that deeper calls than this one have used.
#[inline(never)]
pub fn trim_process() {
    /// More than set-up uses. The host keeps far more than this free below the first thread's
    /// stack.
    const STACK_BYTES: usize = 256 << 10;
    const PAGE: usize = qlib::PAGE_SIZE as usize;
    // SAFETY: malloc_trim has no precondition.
    unsafe { libc::malloc_trim(0) };
    if super::gettid() != std::process::id() {
        return;
    }
    let here = 0u8;
    // Further down than anything that this function and what it calls can have there.
    let top = ((&raw const here).addr() & !(PAGE - 1)) - 2 * PAGE;
    // SAFETY: the range is unused stack, or not mapped at all: nobody has a reference into it.
    unsafe {
        libc::madvise((top - STACK_BYTES) as *mut libc::c_void, STACK_BYTES, libc::MADV_DONTNEED)
    };
}

/// Ends the process at once, without running anything of its exit: other threads may still run
/// the guest.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: _exit has no precondition.
    unsafe { libc::_exit(status) }
}

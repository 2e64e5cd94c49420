//! The platform's side of address spaces and user threads, in safe form.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use qlib::platform::{
    DeferredOp, MAX_TOUCHED_PAGES, RESUME_EXIT, RESUME_GO, RESUME_HOLD, RESUME_REGS, RESUME_RETURN,
    Resume, UserRegs,
};
use qlib::{Gpa, Va};

use super::table::operation;
use crate::errno::{Errno, Result};

/// Spaces and threads that the platform has for the kernel.
static THERE: AtomicUsize = AtomicUsize::new(0);

/// True if the platform has any space or thread, also one that nobody lives in yet.
pub fn are_some_there() -> bool {
    THERE.load(Relaxed) > 0
}

/// A platform address space; dropping it ends it ([`qlib::platform::EVENT_SPACE_GONE`] follows).
#[derive(Debug, PartialEq, Eq)]
pub struct SpaceHandle(u64);

impl SpaceHandle {
    /// A new empty one; an urgent one comes before others that are on their way.
    pub fn new(urgent: bool) -> Result<Self> {
        // SAFETY: a plain number.
        let handle = unsafe { operation!(space_new)(urgent.into()) };
        if handle < 0 {
            return Err(Errno::from_ret(handle));
        }
        THERE.fetch_add(1, Relaxed);
        Ok(SpaceHandle(handle as u64))
    }

    /// Which of the pages from `va` on user code may have touched since each was shown; see
    /// [`qlib::platform::PlatformOps::space_touched`].
    pub fn touched(&self, va: Va, bitmap: &mut [u64; MAX_TOUCHED_PAGES as usize / 64]) -> Result {
        // SAFETY: a live handle; the bitmap has a bit for each page.
        let ret = unsafe {
            operation!(space_touched)(self.0, va, MAX_TOUCHED_PAGES, bitmap.as_mut_ptr())
        };
        if ret < 0 { Err(Errno::from_ret(ret)) } else { Ok(()) }
    }

    /// CPU time that the host has given it; see [`qlib::platform::PlatformOps::space_time`].
    pub fn time_ns(&self) -> Result<u64> {
        // SAFETY: a live handle.
        let ns = unsafe { operation!(space_time)(self.0) };
        if ns < 0 { Err(Errno::from_ret(ns)) } else { Ok(ns as u64) }
    }

    /// The number that comes back in EVENT_SPACE_GONE.
    pub fn number(&self) -> u64 {
        self.0
    }
}

impl Drop for SpaceHandle {
    fn drop(&mut self) {
        // SAFETY: the handle is live and given up here.
        unsafe { operation!(space_drop)(self.0) }
        THERE.fetch_sub(1, Relaxed);
    }
}

/// How a stopped or trapped thread goes on.
#[derive(Clone, Copy, Debug)]
pub enum Go<'a> {
    /// Answer the system call.
    Return(i64),
    /// With these registers.
    Regs(&'a UserRegs),
    /// As it is.
    Continue,
    /// Only carry out the operations.
    Hold,
    /// End.
    Exit,
}

/// A platform thread.
#[derive(Debug, PartialEq, Eq)]
pub struct ThreadHandle(u64);

impl ThreadHandle {
    /// A new thread, stopped. `creator`: see [`qlib::platform::PlatformOps::thread_new`].
    pub fn new(space: &SpaceHandle, creator: Option<&ThreadHandle>, token: u64) -> Result<Self> {
        // SAFETY: live handles.
        let handle = unsafe { operation!(thread_new)(space.0, creator.map_or(0, |c| c.0), token) };
        if handle < 0 {
            return Err(Errno::from_ret(handle));
        }
        THERE.fetch_add(1, Relaxed);
        Ok(ThreadHandle(handle as u64))
    }

    /// Lets it go on with the page table at `root`, `ops` first.
    pub fn resume(&self, root: Gpa, go: Go<'_>, ops: &[DeferredOp]) {
        let (kind, value, regs) = match go {
            Go::Return(value) => (RESUME_RETURN, value, UserRegs::default()),
            Go::Regs(regs) => (RESUME_REGS, 0, *regs),
            Go::Continue => (RESUME_GO, 0, UserRegs::default()),
            Go::Hold => (RESUME_HOLD, 0, UserRegs::default()),
            Go::Exit => (RESUME_EXIT, 0, UserRegs::default()),
        };
        let resume =
            Resume { kind, op_count: ops.len() as u32, value, ops: ops.as_ptr(), root, regs };
        // SAFETY: a live handle; `resume` and its operations are valid for the call, and copied by
        // it.
        unsafe { operation!(thread_resume)(self.0, &resume) }
    }

    /// Asks for it to be stopped.
    pub fn stop(&self) {
        // SAFETY: a live handle.
        unsafe { operation!(thread_stop)(self.0) }
    }

    /// True if its preemptions are to be traps; see [`qlib::platform::PlatformOps::thread_watch`].
    pub fn watch(&self, on: bool) -> Result {
        // SAFETY: a live handle.
        let ret = unsafe { operation!(thread_watch)(self.0, u32::from(on)) };
        if ret < 0 { Err(Errno::from_ret(ret)) } else { Ok(()) }
    }

    /// Has it run on these CPUs only; see [`qlib::platform::PlatformOps::thread_bind`].
    pub fn bind(&self, cpus: u64) -> Result {
        // SAFETY: a live handle.
        let ret = unsafe { operation!(thread_bind)(self.0, cpus) };
        if ret < 0 { Err(Errno::from_ret(ret)) } else { Ok(()) }
    }

    /// What it may answer itself: gettid(2) and getpid(2) with these, and sched_yield(2); see
    /// [`qlib::platform::PlatformOps::thread_answers`].
    pub fn answers(&self, own: Option<(u32, u32)>) {
        let (tid, pid) = own.unwrap_or_default();
        // SAFETY: a live handle.
        unsafe { operation!(thread_answers)(self.0, tid, pid) }
    }

    /// Its floating-point state; the thread is stopped.
    pub fn fpstate(&self, buffer: &mut [u8]) -> Result<usize> {
        // SAFETY: pointer and capacity describe `buffer`.
        let ret =
            unsafe { operation!(fpstate_read)(self.0, buffer.as_mut_ptr(), buffer.len() as u64) };
        if ret < 0 { Err(Errno::from_ret(ret)) } else { Ok(ret as usize) }
    }

    /// Sets its floating-point state (empty: initial); the thread is stopped.
    pub fn set_fpstate(&self, state: &[u8]) -> Result {
        // SAFETY: pointer and length describe `state`.
        let ret = unsafe { operation!(fpstate_write)(self.0, state.as_ptr(), state.len() as u64) };
        if ret < 0 { Err(Errno::from_ret(ret)) } else { Ok(()) }
    }
}

impl Drop for ThreadHandle {
    fn drop(&mut self) {
        // SAFETY: the handle is live and given up here.
        unsafe { operation!(thread_drop)(self.0) }
        THERE.fetch_sub(1, Relaxed);
    }
}

//! What this room calls in those above it.
//!
//! The table is the image's ([`crate::kernel::UPCALLS`], entered in `image.rs`), bound by the
//! linker, not set at boot: so it is as read-only as all tables of functions of the image are
//! (doc/security.md).

use alloc::sync::Arc;

use qlib::Va;
use qlib::platform::{Event, Trap};
use qlib::seccomp::Call;

use crate::errno::Result;

/// Functions of the kernel that the edge to the platform, and the memory of programs, call.
#[derive(Debug)]
pub struct Upcalls {
    /// Sets up what all else stands on. Once, before any event; the heap is there.
    pub boot: fn(),
    /// Takes an event of the platform, and runs tasks. Takes the kernel lock itself.
    pub dispatch: fn(&Event),
    /// Takes one event and runs all tasks that are ready then. Under the kernel lock.
    pub serve: fn(&Event),
    /// Fires what is due and runs all tasks that are ready. Under the kernel lock.
    pub run_tasks: fn(),
    /// Frees the page tables that are out of use, if there are at least so many, when no CPU walks
    /// them any more.
    pub release_tables: fn(usize),
    /// RLIMIT_STACK and RLIMIT_AS of the thread that the kernel works for, in bytes; 0 where it
    /// works for none.
    pub memory_limits: fn() -> (u64, u64),
    /// The kernel needs a page that a program has yet to see to (userfaultfd(2)), in the space at
    /// this address in memory, and is about to write to it or not. True if the thread that it works
    /// for can wait for that.
    pub page_missed: fn(usize, Va, bool) -> bool,
    /// What is to be written to such a page. True if that is done when the call is over.
    pub owe: fn(usize, Va, &[u8]) -> bool,
    /// Gives free frames of user memory back to the host.
    pub release_user_frames: fn(),
    /// Gives up what is only kept open at the host; whether anything was.
    pub give_up_handles: fn() -> bool,
    /// The kernel's side of the thread with this token.
    pub owner_of: fn(u64) -> Option<Arc<dyn Owner>>,
}

/// What becomes of a thread after a trap that was served at once, without its task.
#[derive(Debug)]
pub enum Next {
    /// It goes on; in a system call, with this answer.
    Go(i64),
    /// Its task is to be notified of the trap ([`Owner::served`]), with the result if it was
    /// served; a page fault that was has the result 0.
    Task(Option<Result<usize>>),
}

/// The kernel's side of a thread, for platforms on which that can go on in the same breath.
pub trait Owner: Send + Sync {
    /// Serves a system call, if it need not wait: it is as if the thread had never been away,
    /// unless it is to be notified of something.
    fn serve_now(self: Arc<Self>, call: &Call) -> Next;
    /// The same of a page fault, with the error code of the CPU.
    fn fault_now(self: Arc<Self>, va: Va, code: u64) -> Next;
    /// Notifies the thread's task of a trap that was not, or not wholly, served at once.
    fn served(self: Arc<Self>, trap: &Trap, served: Option<Result<usize>>);
    /// Others have its turn, while it could go on.
    fn gives_way(&self);
    /// A CPU runs it from now on, which the host has kept waiting for so long in all, in ns.
    fn runs(&self, stolen_ns: u64);
    /// That CPU does so no more; the same by now.
    fn rests(&self, stolen_ns: u64);
}

#[cfg(target_os = "none")]
unsafe extern "Rust" {
    // The image defines it with this type.
    safe static QKERNEL_UPCALLS: Upcalls;
}

#[cfg(target_os = "none")]
pub(crate) static UPCALLS: &Upcalls = &QKERNEL_UPCALLS;

/// In tests on the host there is nothing above.
#[cfg(not(target_os = "none"))]
pub(crate) static UPCALLS: &Upcalls = &Upcalls {
    boot: || {},
    dispatch: |_| {},
    serve: |_| {},
    run_tasks: || {},
    release_tables: |_| {},
    memory_limits: || (0, 0),
    page_missed: |_, _, _| false,
    owe: |_, _, _| false,
    release_user_frames: || {},
    give_up_handles: || false,
    owner_of: |_| None,
};
